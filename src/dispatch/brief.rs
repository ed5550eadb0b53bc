//! An error without what it says twice.

use super::Failure;

impl Failure {
    /// A stored error without the start of an answer that only says again what stands before it.
    ///
    /// ```
    /// # use sqlite_outbox::Failure;
    /// let error = r#"no article; HTTP 422 Unprocessable Entity: {"detail":"no article"}"#;
    /// assert_eq!(Failure::brief(error), "no article; HTTP 422 Unprocessable Entity");
    /// ```
    pub fn brief(error: &str) -> &str {
        brief(error).unwrap_or(error)
    }
}

fn brief(error: &str) -> Option<&str> {
    /// So much of it in the answer is no chance; a long answer is cut.
    const START: usize = 60;
    let (head, _) = error.split_once("; HTTP ")?;
    let told = head.split("; ").next()?;
    let end = told.char_indices().nth(START).map_or(told.len(), |it| it.0);
    let (status, answer) = error.get(head.len()..)?.split_once(": ")?;
    let again = answer.contains(told.get(..end)?);
    again.then(|| error.get(..head.len() + status.len()))?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_says_a_thing_once() {
        let long = r#"no such item; HTTP 422 Unprocessable Entity: {"detail":"no such item"}"#;
        let short = "no such item; HTTP 422 Unprocessable Entity";
        assert_eq!(Failure::brief(long), short);
        let words = "ünknown ".repeat(40);
        let cut = format!("{words}…; HTTP 422 No: {{\"detail\":\"{}…", &words[..200]);
        assert_eq!(Failure::brief(&cut), format!("{words}…; HTTP 422 No"));
        for whole in [
            r#"no such item; HTTP 422 Unprocessable Entity: {"detail":"other"}"#,
            "HTTP 502 Bad Gateway: <html>",
            "erp.example refuses the connection",
            "; HTTP ",
            "",
        ] {
            assert_eq!(Failure::brief(whole), whole);
        }
    }
}
