//! Values of the settings file that are checked while they are read, so that an error has its line.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use serde::de::{self, Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};

use crate::args::duration;
use crate::nearest::meant;

/// A duration such as `30s`.
#[derive(Debug, Clone, Copy)]
pub(super) struct Span(pub(super) Duration);

impl<'de> Deserialize<'de> for Span {
    fn deserialize<D: Deserializer<'de>>(source: D) -> Result<Self, D::Error> {
        struct Text;
        impl Visitor<'_> for Text {
            type Value = Span;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a duration in quotes, like \"30s\", \"10m\", \"24h\" or \"7d\"")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Span, E> {
                duration(text).map(Span).map_err(E::custom)
            }
        }
        source.deserialize_str(Text)
    }
}

/// A duration such as `14d`, or `forever`.
#[derive(Debug, Clone, Copy)]
pub(super) struct Keep(pub(super) Option<Duration>);

impl<'de> Deserialize<'de> for Keep {
    fn deserialize<D: Deserializer<'de>>(source: D) -> Result<Self, D::Error> {
        struct Text;
        impl Visitor<'_> for Text {
            type Value = Keep;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a duration in quotes, like \"14d\", or \"forever\"")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Keep, E> {
                match text {
                    "forever" => Ok(Keep(None)),
                    text => duration(text).map(|it| Keep(Some(it))).map_err(E::custom),
                }
            }
        }
        source.deserialize_str(Text)
    }
}

/// A whole number within bounds.
#[derive(Debug, Clone, Copy)]
pub(super) struct Whole<const MIN: u32, const MAX: u32>(pub(super) u32);

impl<const MIN: u32, const MAX: u32> Whole<MIN, MAX> {
    pub(super) fn size(self) -> usize {
        usize::try_from(self.0).unwrap_or(usize::MAX)
    }
}

impl<'de, const MIN: u32, const MAX: u32> Deserialize<'de> for Whole<MIN, MAX> {
    fn deserialize<D: Deserializer<'de>>(source: D) -> Result<Self, D::Error> {
        let number = i64::deserialize(source)?;
        match u32::try_from(number) {
            Ok(it) if (MIN..=MAX).contains(&it) => Ok(Self(it)),
            _ => Err(de::Error::custom(format!(
                "must be {MIN} to {MAX}, not {number}"
            ))),
        }
    }
}

/// A share of time, above 0 and up to 1.
#[derive(Debug, Clone, Copy)]
pub(super) struct Share(pub(super) f64);

impl<'de> Deserialize<'de> for Share {
    fn deserialize<D: Deserializer<'de>>(source: D) -> Result<Self, D::Error> {
        struct Number;
        impl Visitor<'_> for Number {
            type Value = Share;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a number from 0.01 to 1")
            }

            fn visit_f64<E: de::Error>(self, share: f64) -> Result<Share, E> {
                match (0.01..=1.0).contains(&share) {
                    true => Ok(Share(share)),
                    false => Err(E::custom(format!("must be 0.01 to 1, not {share}"))),
                }
            }

            fn visit_i64<E: de::Error>(self, share: i64) -> Result<Share, E> {
                match share {
                    1 => Ok(Share(1.0)),
                    _ => Err(E::custom(format!("must be 0.01 to 1, not {share}"))),
                }
            }
        }
        source.deserialize_any(Number)
    }
}

/// Where a secret is found; never the secret itself.
#[derive(Debug, Clone)]
pub(super) enum Place {
    Env(String),
    File(PathBuf),
    Command(Vec<String>),
}

impl<'de> Deserialize<'de> for Place {
    fn deserialize<D: Deserializer<'de>>(source: D) -> Result<Self, D::Error> {
        struct Table;
        impl<'de> Visitor<'de> for Table {
            type Value = Place;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(PLACES)
            }

            // The text may be the secret: it must not be in the error.
            fn visit_str<E: de::Error>(self, _: &str) -> Result<Place, E> {
                Err(E::custom(format!(
                    "a secret does not stand in the settings; write {PLACES}"
                )))
            }

            fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<Place, M::Error> {
                let only = || de::Error::custom(format!("needs exactly one of {PLACES}"));
                let place = match map.next_key::<String>()?.ok_or_else(only)?.as_str() {
                    "env" => Place::Env(map.next_value()?),
                    "file" => Place::File(map.next_value()?),
                    "command" => Place::Command(map.next_value()?),
                    key => {
                        return Err(match meant(key, &["env", "file", "command"]) {
                            Some(known) => de::Error::custom(format!(
                                "has no key {key}; did you mean {known}?"
                            )),
                            None => only(),
                        });
                    }
                };
                match map.next_key::<de::IgnoredAny>()? {
                    None => Ok(place),
                    Some(_) => Err(only()),
                }
            }
        }
        source.deserialize_any(Table)
    }
}

const PLACES: &str = r#"{ env = "NAME" }, { file = "PATH" } or { command = ["PROGRAM"] }"#;

/// One text or several.
#[derive(Debug, Clone, Default)]
pub(super) struct Texts(pub(super) Vec<String>);

impl<'de> Deserialize<'de> for Texts {
    fn deserialize<D: Deserializer<'de>>(source: D) -> Result<Self, D::Error> {
        struct Any;
        impl<'de> Visitor<'de> for Any {
            type Value = Texts;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a text or a list of texts")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Texts, E> {
                Ok(Texts(vec![text.into()]))
            }

            fn visit_seq<S: SeqAccess<'de>>(self, mut list: S) -> Result<Texts, S::Error> {
                let mut texts = Vec::new();
                while let Some(text) = list.next_element()? {
                    texts.push(text);
                }
                Ok(Texts(texts))
            }
        }
        source.deserialize_any(Any)
    }
}

/// Names and values, in the order of the names.
pub(super) type Pairs<T> = BTreeMap<String, T>;
