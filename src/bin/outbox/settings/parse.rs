//! From the text to the model: what cannot be understood is told and left out, so that one look
//! tells all that is wrong.

use std::collections::BTreeSet;

use serde::Deserialize;
use toml::Spanned;
use toml::de::{DeTable, DeValue, Deserializer};

use super::fault::{Fault, Hint, Source, is_duplicate};
use super::model::File;
use super::route::PLACEHOLDER;

/// Faults that are told; whoever has mended these looks again.
const MOST: usize = 50;

/// What the text says as far as it can be understood, and what of it cannot. Nothing is understood
/// where it is no TOML.
pub(super) fn parse(source: &Source<'_>) -> (Option<File>, Vec<Fault>) {
    let (mut table, errors) = DeTable::parse_recoverable(source.text);
    if !errors.is_empty() {
        let mut faults = source.duplicates(&errors);
        let others = errors.iter().filter(|it| !is_duplicate(it));
        faults.extend(others.map(|it| source.parse_fault(it).0));
        return (None, faults);
    }
    let mut faults = Vec::new();
    // What was left out is not missing.
    let mut out = BTreeSet::new();
    while faults.len() < MOST {
        let error = match File::deserialize(Deserializer::from(table.clone())) {
            Ok(file) => return (Some(file), faults),
            Err(error) => error,
        };
        let (fault, hint) = source.parse_fault(&error);
        let path = source.path_at(error.span().map_or(0, |it| it.start));
        let missing = |key: &str| [&path[..], &[key.to_string()]].concat();
        match &hint {
            Some(Hint::Missing(key)) if out.contains(&missing(key)) => {}
            _ => faults.push(fault),
        }
        if !mend(table.get_mut(), &path, hint.as_ref()) {
            break;
        }
        out.insert(path);
    }
    (None, faults)
}

/// Takes out what stands at a path, or gives it the name that was meant; gives a section without a
/// URL one that means nothing. False when there is nothing.
fn mend(table: &mut DeTable<'_>, path: &[String], hint: Option<&Hint>) -> bool {
    let Some((first, rest)) = path.split_first() else {
        return false;
    };
    let no_url = matches!(hint, Some(Hint::Missing(key)) if key == "url");
    if rest.is_empty() && !no_url {
        let known = table.remove_entry(first.as_str());
        if let (Some((key, value)), Some(Hint::Meant(name))) = (&known, hint)
            && !table.contains_key(name.as_str())
        {
            let name = Spanned::new(key.span(), name.clone().into());
            table.insert(name, value.clone());
        }
        return known.is_some();
    }
    let Some(DeValue::Table(inner)) = table.get_mut(first.as_str()).map(Spanned::get_mut) else {
        return false;
    };
    if rest.is_empty() {
        let url = DeValue::String(PLACEHOLDER.into());
        let key = Spanned::new(0..0, "url".into());
        return inner.insert(key, Spanned::new(0..0, url)).is_none();
    }
    mend(inner, rest, hint)
}
