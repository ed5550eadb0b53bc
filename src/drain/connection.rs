//! How the drain's own connection behaves.

use std::time::Duration;

use rusqlite::config::DbConfig;
use rusqlite::{Connection, Row};

use crate::error::Result;
use crate::settings::SettleSync;

pub(crate) struct Manners {
    pub(crate) is_wal: bool,
    /// Its commits are synced later.
    pub(crate) lazy_sync: bool,
}

pub(crate) fn prepare(conn: &Connection, sync: SettleSync) -> Result<Manners> {
    conn.busy_handler(Some(be_patient))?;
    conn.set_prepared_statement_cache_capacity(64);
    // Else SQLite looks at the value of a LIMIT and prepares the statement anew for each.
    conn.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true)?;
    let is_wal = is_wal(conn)?;
    let lazy_sync = sync == SettleSync::Normal && is_wal;
    if lazy_sync {
        conn.pragma_update(None, "synchronous", "NORMAL")?;
    }
    if is_wal {
        checkpoint_early(conn)?;
    }
    Ok(Manners { is_wal, lazy_sync })
}

/// Small steps, so that the drain meets the moment in which an application that commits one after
/// the other leaves the lock, and an end soon, so that it can do other things meanwhile: 50 ms.
fn be_patient(tries: i32) -> bool {
    crate::clock::pause(Duration::from_micros(200));
    tries < 250
}

/// Carries the log over into the file at half the size at which other connections would, outside of
/// the lock: so the drain waits for it and not the application. Who has turned it off wants none.
fn checkpoint_early(conn: &Connection) -> Result<()> {
    let pages: i64 = conn.pragma_query_value(None, "wal_autocheckpoint", |row| row.get(0))?;
    if pages > 1 {
        let set = |row: &Row<'_>| row.get::<_, i64>(0);
        conn.pragma_update_and_check(None, "wal_autocheckpoint", pages / 2, set)?;
    }
    Ok(())
}

fn is_wal(conn: &Connection) -> Result<bool> {
    let mode: String = conn.pragma_query_value(None, "journal_mode", |row| row.get(0))?;
    Ok(mode.eq_ignore_ascii_case("wal"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const NORMAL: i64 = 1;
    const EXTRA: i64 = 3;

    /// With a rollback journal, `NORMAL` may cost the file itself.
    #[test]
    fn the_sync_is_lowered_with_a_write_ahead_log_only() {
        for (journal, sync, synchronous) in [
            ("WAL", SettleSync::Full, EXTRA),
            ("WAL", SettleSync::Normal, NORMAL),
            ("DELETE", SettleSync::Full, EXTRA),
            ("DELETE", SettleSync::Normal, EXTRA),
            ("TRUNCATE", SettleSync::Normal, EXTRA),
        ] {
            let folder = tempfile::tempdir().unwrap();
            let conn = Connection::open(folder.path().join("till.db")).unwrap();
            let set = |row: &Row<'_>| row.get::<_, String>(0);
            conn.pragma_update_and_check(None, "journal_mode", journal, set)
                .unwrap();
            conn.pragma_update(None, "synchronous", "EXTRA").unwrap();
            let manners = prepare(&conn, sync).unwrap();
            let found: i64 = conn
                .pragma_query_value(None, "synchronous", |row| row.get(0))
                .unwrap();
            assert_eq!(found, synchronous, "{journal}, {sync:?}");
            assert_eq!(manners.lazy_sync, synchronous == NORMAL);
        }
    }
}
