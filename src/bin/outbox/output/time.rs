//! Moments as people and programs read them.

use jiff::Timestamp;
use sqlite_outbox::{Clock, FIRST_HONEST, SystemClock};

/// Milliseconds since 1970 UTC.
pub(crate) fn now() -> i64 {
    SystemClock::default().wall()
}

/// `2026-11-29T14:05:07.250Z`; the bare number where no calendar reaches.
pub(crate) fn exact(at: i64) -> String {
    match Timestamp::from_millisecond(at) {
        Ok(moment) => moment.strftime("%Y-%m-%dT%H:%M:%S.%3fZ").to_string(),
        Err(_) => format!("{at} ms"),
    }
}

/// Whether a moment that has come was stamped by a clock that was wrong, and is looked at by a better
/// one: before any clock was right, or ahead of now.
pub(crate) fn stamped_wrong(at: i64, now: i64) -> bool {
    let ahead = at > now.saturating_add(60_000);
    ahead || (at < FIRST_HONEST && now >= FIRST_HONEST)
}

/// A span in milliseconds, in its largest unit, and the next one where that is coarse.
pub(crate) fn age(span: i64) -> String {
    let seconds = span.max(0) / 1000;
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3_600 => format!("{} min", seconds / 60),
        3_600..36_000 if seconds % 3_600 >= 60 => {
            format!("{} h {} min", seconds / 3_600, seconds % 3_600 / 60)
        }
        3_600..172_800 => format!("{} h", seconds / 3_600),
        _ => format!("{} days", seconds / 86_400),
    }
}

/// `12.5/s`, `40/min`, `-` where nothing goes.
pub(crate) fn per_second(rate: f64) -> String {
    let per_minute = rate * 60.0;
    match rate {
        it if it <= 0.0 => "-".into(),
        100.0.. => format!("{rate:.0}/s"),
        1.0.. => format!("{rate:.1}/s"),
        _ if per_minute < 9.95 => format!("{per_minute:.1}/min"),
        _ => format!("{per_minute:.0}/min"),
    }
}

/// `14 min ago`, `in 3 h`.
pub(crate) fn ago(at: i64, now: i64) -> String {
    match now.saturating_sub(at) {
        past @ 1_000.. => format!("{} ago", age(past)),
        future @ ..=-1_000 => format!("in {}", age(future.saturating_neg())),
        _ => "now".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_has_the_unit_that_tells_most() {
        for (rate, text) in [
            (0.0, "-"),
            (0.02, "1.2/min"),
            (0.5, "30/min"),
            (1.0, "1.0/s"),
            (312.5, "312/s"),
        ] {
            assert_eq!(per_second(rate), text);
        }
    }

    #[test]
    fn any_number_is_a_moment() {
        assert_eq!(exact(0), "1970-01-01T00:00:00.000Z");
        assert_eq!(exact(1_795_961_107_250), "2026-11-29T14:05:07.250Z");
        assert_eq!(exact(i64::MAX), format!("{} ms", i64::MAX));
        for (at, text) in [
            (0, "14 min ago"),
            (840_000, "now"),
            (845_000, "in 5 s"),
            (8_040_000, "in 2 h"),
            (8_000_000, "in 1 h 59 min"),
            (i64::MAX, "in 106751991167 days"),
        ] {
            assert_eq!(ago(at, 840_000), text);
        }
        assert!(ago(i64::MIN, i64::MAX).ends_with("days ago"));
        assert!(ago(i64::MAX, i64::MIN).starts_with("in "));
    }
}
