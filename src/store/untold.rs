//! What an attempt came to and the row that is to hold it refuses to say.

use crate::dispatch::{Failure, Receipt};
use crate::store::settle::bounded;
use crate::verdict::Verdict;

/// What an attempt came to, where the row that is to hold it may refuse.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Untold<'a> {
    /// No attempt was made, or none whose end is known.
    Nothing,
    /// With so much of the answer as the row may keep.
    Delivered(&'a Receipt, usize),
    Failed(&'a Failure),
}

impl<'a> Untold<'a> {
    pub(crate) fn of(verdict: &'a Verdict, keep_answer: usize) -> Self {
        match verdict {
            Verdict::Sent(receipt) => Self::Delivered(receipt, keep_answer),
            Verdict::Again { failure, .. } | Verdict::Dead { failure, .. } => Self::Failed(failure),
            Verdict::Released => Self::Nothing,
        }
    }

    /// What is told of it, with what the row said when it refused.
    pub(crate) fn refused(self, refusal: &str) -> Failure {
        match self {
            Self::Nothing => Failure::new(
                Failure::ROW_REFUSES,
                format!("its row refuses to be changed: {refusal}"),
            ),
            Self::Delivered(receipt, _) => {
                let id = receipt.provider_id.as_deref();
                let id = id.map_or(String::new(), |it| format!(" as {it}"));
                let text = format!("delivered{id}, and could not be recorded: {refusal}");
                Failure::new(Failure::UNRECORDED, text)
            }
            Self::Failed(failure) => Failure::new(
                Failure::ROW_REFUSES,
                format!(
                    "its row refuses to hold what became of an attempt: {refusal} (that was: {})",
                    failure.text
                ),
            ),
        }
    }

    /// What the receiver gave, as far as it is kept.
    pub(super) fn given(self) -> (Option<&'a str>, Option<String>) {
        match self {
            Self::Delivered(receipt, keep) => (
                receipt.provider_id.as_deref(),
                bounded(receipt.answer.as_deref(), keep),
            ),
            _ => (None, None),
        }
    }
}
