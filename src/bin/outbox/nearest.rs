//! What was probably meant by a name that is not there.

use std::cmp::Reverse;

use crate::output::{cut, thousands};

/// All of so few are told.
const FEW: usize = 8;

/// Of more than that, the nearest.
const NEAREST: usize = 3;

/// Names may be of any length.
const ROOM: usize = 60;

/// How far one name is from another: lower is nearer.
fn distance(one: &str, other: &str) -> usize {
    strsim::damerau_levenshtein(one, other)
}

/// The known name that was probably meant, if any is near enough.
pub(crate) fn meant<'a>(unknown: &str, known: &[&'a str]) -> Option<&'a str> {
    let near = known.iter().map(|it| (distance(unknown, it), *it)).min();
    near.filter(|(distance, _)| *distance <= 1 + unknown.chars().count() / 3)
        .map(|(_, name)| name)
}

/// `there are sales, returns`, the nearest first; of many only these, and how many there are.
pub(crate) fn there_are<'a>(unknown: &str, known: impl IntoIterator<Item = &'a str>) -> String {
    let mut names: Vec<_> = known.into_iter().collect();
    // What is longer than any name people type is far from it, and too long to be compared.
    let far = |it: &str| match it.len().max(unknown.len()) {
        0..256 => distance(unknown, it),
        long => long,
    };
    let begun = |it: &str| it.starts_with(unknown) || unknown.starts_with(it);
    names.sort_by_cached_key(|it| (far(it), Reverse(begun(it)), *it));
    let told = |names: &[&str]| {
        let names: Vec<_> = names.iter().map(|it| cut(it, ROOM)).collect();
        names.join(", ")
    };
    match names.len() {
        0 => "there is none yet".into(),
        1 => format!("there is {}", told(&names)),
        2..=FEW => format!("there are {}", told(&names)),
        many => format!(
            "there are {}, the nearest are {}",
            thousands(many as u64),
            told(names.get(..NEAREST).unwrap_or_default())
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_of_many_are_told_and_all_of_few() {
        assert_eq!(there_are("sale", []), "there is none yet");
        assert_eq!(there_are("sale", ["tax", "sales"]), "there are sales, tax");
        let many: Vec<_> = (0..10_000).map(|it| format!("ch{it:04}")).collect();
        assert_eq!(
            there_are("ch99999", many.iter().map(String::as_str)),
            "there are 10,000, the nearest are ch9999, ch0999, ch1999"
        );
    }

    #[test]
    fn a_name_of_any_length_takes_its_room_only() {
        let long = "x".repeat(1_000_000);
        assert!(there_are("sale", [&*long]).len() < 200);
    }
}
