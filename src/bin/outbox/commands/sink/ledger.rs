//! What a sink has taken: a document for each key, as a good receiver does it.

use std::collections::{HashMap, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};

/// Keys that are remembered.
const REMEMBERED: usize = 100_000;

#[derive(Debug, Default)]
pub(super) struct Ledger {
    documents: u64,
    known: HashMap<String, (u64, u64)>,
    order: VecDeque<String>,
}

/// What the ledger has for a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Booked {
    pub(super) document: u64,
    pub(super) repeated: bool,
    pub(super) changed: bool,
}

impl Ledger {
    pub(super) fn book(&mut self, key: Option<&str>, body: &[u8]) -> Booked {
        let mut hasher = DefaultHasher::new();
        body.hash(&mut hasher);
        let content = hasher.finish();
        if let Some((document, former)) = key.and_then(|key| self.known.get(key)) {
            return Booked {
                document: *document,
                repeated: true,
                changed: *former != content,
            };
        }
        self.documents += 1;
        if let Some(key) = key {
            self.known.insert(key.into(), (self.documents, content));
            self.order.push_back(key.into());
            if self.order.len() > REMEMBERED
                && let Some(oldest) = self.order.pop_front()
            {
                self.known.remove(&oldest);
            }
        }
        Booked {
            document: self.documents,
            repeated: false,
            changed: false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_has_one_document() {
        let mut ledger = Ledger::default();
        let booked = |document, repeated, changed| Booked {
            document,
            repeated,
            changed,
        };
        assert_eq!(ledger.book(Some("a"), b"1"), booked(1, false, false));
        assert_eq!(ledger.book(Some("b"), b"1"), booked(2, false, false));
        assert_eq!(ledger.book(Some("a"), b"1"), booked(1, true, false));
        assert_eq!(ledger.book(Some("a"), b"2"), booked(1, true, true));
        assert_eq!(ledger.book(None, b"1"), booked(3, false, false));
        assert_eq!(ledger.book(None, b"1"), booked(4, false, false));
    }
}
