//! One file, two libraries: sqlx writes a message by plain SQL, this crate sees it.

use sqlite_outbox::{Outbox, Status};
use sqlx::{Connection, SqliteConnection};

const INSERT: &str =
    "INSERT INTO outbox (channel, dedupe_key, payload) VALUES ('sales', 'S-1', '{}')";

fn main() -> anyhow::Result<()> {
    let path = std::env::temp_dir().join(format!("outbox-compat-{}.db", std::process::id()));
    let outbox = Outbox::open(&path)?;
    let url = format!("sqlite://{}", path.display());
    tokio::runtime::Builder::new_current_thread()
        .build()?
        .block_on(async {
            let mut conn = SqliteConnection::connect(&url).await?;
            let mut tx = conn.begin().await?;
            sqlx::query(INSERT).execute(&mut *tx).await?;
            tx.rollback().await?;
            let mut tx = conn.begin().await?;
            sqlx::query(INSERT).execute(&mut *tx).await?;
            tx.commit().await?;
            conn.close().await
        })?;
    let found = outbox.get_by_key("sales", "S-1")?;
    anyhow::ensure!(
        found.is_some_and(|it| it.status == Status::Pending),
        "the message is missing"
    );
    anyhow::ensure!(outbox.unsent()? == 1, "the rolled back message is there");
    drop(outbox);
    for end in ["", "-wal", "-shm"] {
        std::fs::remove_file(format!("{}{end}", path.display())).ok();
    }
    println!(
        "sqlx and sqlite-outbox share one file and one SQLite {}",
        sqlite_outbox::rusqlite::version()
    );
    Ok(())
}
