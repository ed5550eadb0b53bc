//! What the README shows, tried as a reader would try it.

/// The README's first block in this language.
pub(crate) fn block(language: &str) -> String {
    let readme = concat!(env!("CARGO_MANIFEST_DIR"), "/README.md");
    let readme = std::fs::read_to_string(readme).unwrap();
    let (_, rest) = readme.split_once(&format!("```{language}\n")).unwrap();
    rest.split_once("```").unwrap().0.to_owned()
}

#[cfg(feature = "http")]
mod with_a_server {
    use std::path::{Path, PathBuf};
    use std::process::Command;

    use crate::server::{Server, ok};

    /// Runs a program in `folder` and returns what it printed.
    fn run(program: &Path, arguments: &[&str], folder: &Path) -> String {
        let output = Command::new(program)
            .args(arguments)
            .current_dir(folder)
            .output()
            .unwrap_or_else(|error| panic!("{}: {error}", program.display()));
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// The quickstart as a program. `cargo test` builds the examples; a run of this binary alone
    /// may have to.
    fn quickstart() -> PathBuf {
        let own = std::env::current_exe().unwrap();
        let profile = own.parent().and_then(Path::parent).unwrap();
        let program = profile
            .join("examples/quickstart")
            .with_extension(std::env::consts::EXE_EXTENSION);
        if !program.exists() {
            let build = ["build", "--quiet", "--example", "quickstart"];
            run(
                Path::new(env!("CARGO")),
                &build,
                Path::new(env!("CARGO_MANIFEST_DIR")),
            );
        }
        program
    }

    #[test]
    fn the_quickstart_keeps_its_sale_until_somebody_listens() {
        let folder = tempfile::tempdir().unwrap();
        let program = quickstart();
        // Port 9 is reserved for a service that discards; nothing of this machine answers there.
        let printed = run(&program, &["http://127.0.0.1:9/erp"], folder.path());
        assert!(
            printed.starts_with("0 sent, 1 message waiting"),
            "{printed}"
        );

        let server = Server::start(|_| ok());
        let url = server.url("/erp");
        let printed = run(&program, &[&url], folder.path());
        assert_eq!(printed, "1 sent, nothing waiting\n");
        let printed = run(&program, &[&url], folder.path());
        assert_eq!(printed, "0 sent, nothing waiting\n");

        let seen = server.seen();
        assert_eq!(seen.len(), 1);
        assert_eq!(seen[0].body, br#"{"id":"S-104522","total":1250}"#);
        assert!(seen[0].header("idempotency-key").is_some());
    }

    #[cfg(feature = "cli")]
    #[test]
    fn the_plain_insert_is_delivered_and_rolled_back_it_is_never_sent() {
        use sqlite_outbox::rusqlite::Connection;

        let folder = tempfile::tempdir().unwrap();
        let tool = Path::new(env!("CARGO_BIN_EXE_outbox"));
        run(tool, &["init", "till.db"], folder.path());
        let sql = super::block("sql");
        assert!(sql.trim_end().ends_with("COMMIT;"));
        let db = Connection::open(folder.path().join("till.db")).unwrap();
        let server = Server::start(|_| ok());
        let url = server.url("/erp");
        let drain = ["drain", "till.db", "--url", &url];

        db.execute_batch(&sql.replace("COMMIT;", "ROLLBACK;"))
            .unwrap();
        run(tool, &drain, folder.path());
        assert_eq!(server.seen().len(), 0);

        db.execute_batch(&sql).unwrap();
        run(tool, &drain, folder.path());
        let seen = server.seen();
        assert_eq!(seen.len(), 1);
        assert_eq!(seen[0].body, br#"{"id":"S-104523","total":990}"#);
    }
}
