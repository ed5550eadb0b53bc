//! The stored contract: looking for it, installing it, bringing it up to date.

use std::path::Path;
use std::sync::OnceLock;

use rusqlite::{Connection, OptionalExtension, TransactionBehavior};

use crate::error::{Error, Result, unless_damaged};

/// The tables, indexes, triggers and views, as a script that an application's own migrations may
/// run too. Running it again changes nothing.
pub const SCHEMA: &str = include_str!("../schema.sql");

/// The schema version of [`SCHEMA`], kept as `schema_version` in `outbox_meta`.
pub const SCHEMA_VERSION: i64 = 1;

/// What leads from one version to the next. Runs before [`SCHEMA`], which then adds what is new;
/// a trigger that changes is dropped here. It sets `min_writer` where older writers must stop.
struct Step {
    to: i64,
    sql: &'static str,
}

/// The way from version 1 to the present one, in order.
const STEPS: &[Step] = &[];

/// Makes sure that the outbox is in the file, complete and not newer than this program.
///
/// Looks first and writes nothing when all is well. Only with `create` it installs, completes or
/// upgrades, in one immediate transaction: processes that do it at once queue up there, and all
/// but the first find it done.
pub(crate) fn install(conn: &mut Connection, path: &Path, create: bool) -> Result<()> {
    let tx = conn.transaction()?;
    let ready = look(&tx)?.ready(path, create)?;
    tx.finish()?;
    if ready {
        return Ok(());
    }
    let tx = conn.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let found = look(&tx)?;
    if !found.ready(path, create)? {
        found.clear_unreadable(&tx)?;
        write(&tx, found.schema_version, STEPS)?;
    }
    Ok(tx.commit()?)
}

/// Makes sure that the outbox in the file can be read. Columns are only added, so one of the future
/// can, even where it forbids writers as old as this program. What is missing is met where it is read.
pub(crate) fn check_readable(conn: &Connection, path: &Path) -> Result<()> {
    let mut found = look(conn)?;
    found.min_writer = 0;
    unless_damaged(found.ready(path, false).map(drop))
}

fn write(conn: &Connection, found: Option<i64>, steps: &[Step]) -> Result<()> {
    let Some(found) = found else {
        return Ok(conn.execute_batch(SCHEMA)?);
    };
    for step in steps.iter().filter(|step| step.to > found) {
        conn.execute_batch(step.sql)?;
    }
    conn.execute_batch(SCHEMA)?;
    conn.execute(
        "UPDATE outbox_meta SET value = ?1
          WHERE key = 'schema_version' AND CAST(value AS INTEGER) < CAST(?1 AS INTEGER)",
        [SCHEMA_VERSION.to_string()],
    )?;
    Ok(())
}

/// The random name of this file.
pub(crate) fn instance_id(conn: &Connection) -> Result<String> {
    match fact(conn, "instance_id")? {
        Fact::Is(value) => Ok(value),
        lacking => Err(lacking.incomplete("instance_id")),
    }
}

/// Refuses where a newer program has forbidden writers as old as this one. Within a transaction
/// that holds the write lock, it holds until the commit.
pub(crate) fn check_writer(conn: &Connection) -> Result<()> {
    let key = "min_writer";
    match fact(conn, key)? {
        unreadable @ Fact::Unreadable => Err(unreadable.incomplete(key)),
        least => match least.number() {
            Some(least) if least > SCHEMA_VERSION => Err(Error::SchemaTooNew {
                found: version(conn)?.unwrap_or(least),
                supported: SCHEMA_VERSION,
            }),
            _ => Ok(()),
        },
    }
}

/// What of the schema is not there.
pub(crate) fn missing(conn: &Connection) -> Result<Vec<String>> {
    Ok(look(conn)?.missing)
}

/// The schema version that the file has, where it can be read.
pub(crate) fn version(conn: &Connection) -> Result<Option<i64>> {
    Ok(fact(conn, "schema_version")?.number())
}

/// The rows of `outbox_meta` without which the file is not complete.
const FACTS: [&str; 3] = ["schema_version", "min_writer", "instance_id"];

/// What `outbox_meta` has under a key.
enum Fact {
    Is(String),
    Absent,
    /// Nothing that we ever write there: a version that is no number, a name that is no text.
    Unreadable,
}

impl Fact {
    fn number(&self) -> Option<i64> {
        match self {
            Self::Is(value) => value.parse().ok(),
            _ => None,
        }
    }

    /// How it is called among what is not there.
    fn missing(&self, key: &str) -> String {
        let why = match self {
            Self::Unreadable => " (unreadable)",
            _ => "",
        };
        format!("outbox_meta.{key}{why}")
    }

    fn incomplete(&self, key: &str) -> Error {
        Error::Incomplete {
            missing: vec![self.missing(key)],
        }
    }
}

fn fact(conn: &Connection, key: &str) -> Result<Fact> {
    let sql = "SELECT CAST(value AS TEXT) FROM outbox_meta WHERE key = ?1";
    let value = conn
        .prepare_cached(sql)?
        .query_row([key], |row| {
            Ok(row.get_ref(0)?.as_str().ok().map(String::from))
        })
        .optional()?;
    Ok(match value {
        None => Fact::Absent,
        Some(Some(value)) if key == "instance_id" || value.parse::<i64>().is_ok() => {
            Fact::Is(value)
        }
        Some(_) => Fact::Unreadable,
    })
}

/// A table, index, trigger or view.
struct Object {
    kind: String,
    name: String,
    sql: String,
    /// Of a table only.
    columns: Vec<String>,
}

impl Object {
    /// Whether nothing works without it: what statements of ours name. Without one of the other
    /// triggers, or of the views for people, messages still go out.
    fn is_vital(&self) -> bool {
        matches!(&*self.kind, "table" | "index") || self.name.ends_with("_procedure")
    }
}

/// What is in the file.
struct Found {
    schema_version: Option<i64>,
    min_writer: i64,
    /// Nothing of ours is there.
    bare: bool,
    /// What is not there, rows of `outbox_meta` too.
    missing: Vec<String>,
    /// Rows of `outbox_meta` that are there and say nothing.
    unreadable: Vec<&'static str>,
    /// Nothing works without some of it.
    broken: bool,
}

impl Found {
    /// Whether nothing is to be written; an error when nothing may be.
    fn ready(&self, path: &Path, create: bool) -> Result<bool> {
        let supported = SCHEMA_VERSION;
        if self.min_writer > supported {
            let found = self.schema_version.unwrap_or(self.min_writer);
            return Err(Error::SchemaTooNew { found, supported });
        }
        let Some(found) = self.schema_version else {
            return match create {
                true => Ok(false),
                false if self.bare => Err(Error::NoOutbox(path.into())),
                false => Err(self.incomplete()),
            };
        };
        match found.cmp(&supported) {
            // It lets us write, so all we need is there; completing it is not our business.
            std::cmp::Ordering::Greater => Ok(true),
            std::cmp::Ordering::Less if create => Ok(false),
            std::cmp::Ordering::Less => Err(Error::SchemaTooOld { found, supported }),
            std::cmp::Ordering::Equal if create => Ok(self.missing.is_empty()),
            std::cmp::Ordering::Equal if self.broken => Err(self.incomplete()),
            std::cmp::Ordering::Equal => Ok(true),
        }
    }

    /// Makes room for those that the script puts there.
    fn clear_unreadable(&self, conn: &Connection) -> Result<()> {
        for key in &self.unreadable {
            conn.execute("DELETE FROM outbox_meta WHERE key = ?1", [key])?;
        }
        Ok(())
    }

    fn incomplete(&self) -> Error {
        let missing = self.missing.clone();
        Error::Incomplete { missing }
    }
}

/// Reads what is there under our names. What is not ours is an error.
fn look(conn: &Connection) -> Result<Found> {
    let there = objects(conn)?;
    let find = |name: &str| there.iter().find(|it| it.name.eq_ignore_ascii_case(name));
    let mut found = Found {
        schema_version: None,
        min_writer: 0,
        bare: true,
        missing: Vec::new(),
        unreadable: Vec::new(),
        broken: false,
    };
    if let Some(table) = find("outbox_meta") {
        let has = |column: &str| table.columns.iter().any(|it| it == column);
        if !has("key") || !has("value") {
            return Err(Error::ForeignTable(table.name.clone()));
        }
        found.schema_version = version(conn)?;
        for key in FACTS {
            let fact = fact(conn, key)?;
            found.min_writer = match (key, &fact) {
                // A newer program may have forbidden it.
                ("min_writer", Fact::Unreadable) => found.schema_version.unwrap_or(0),
                ("min_writer", fact) => fact.number().unwrap_or(0),
                _ => found.min_writer,
            };
            if !matches!(fact, Fact::Is(_)) {
                found.missing.push(fact.missing(key));
                found.broken = true;
            }
            if matches!(fact, Fact::Unreadable) {
                found.unreadable.push(key);
            }
        }
        // Another program may have a table like it: only beside all of ours it is ours to mend.
        let ours = |it: &Object| it.kind != "table" || find(&it.name).is_some();
        if found.unreadable.contains(&"schema_version") && !expected()?.iter().all(ours) {
            return Err(Error::ForeignTable(table.name.clone()));
        }
    }
    let newest = found.schema_version.is_none_or(|it| it >= SCHEMA_VERSION);
    for wanted in expected()? {
        let table = wanted.kind == "table";
        let Some(object) = find(&wanted.name) else {
            found.missing.push(wanted.name.clone());
            found.broken |= wanted.is_vital();
            continue;
        };
        found.bare = false;
        // An older version of ours may lack columns: the upgrade adds them.
        let complete = !newest || wanted.columns.iter().all(|it| object.columns.contains(it));
        // Without our version number an object of our name must be exactly what we would make.
        let ours = table || found.schema_version.is_some() || object.sql == wanted.sql;
        if object.kind != wanted.kind || !complete || !ours {
            return Err(Error::ForeignTable(object.name.clone()));
        }
    }
    Ok(found)
}

/// Everything in the database whose name starts with `outbox`.
fn objects(conn: &Connection) -> Result<Vec<Object>> {
    let mut statement = conn.prepare(
        "SELECT type, name, coalesce(sql, '') FROM sqlite_master WHERE lower(name) LIKE 'outbox%'",
    )?;
    let mut objects = statement
        .query_map([], |row| {
            Ok(Object {
                kind: row.get(0)?,
                name: row.get(1)?,
                sql: row.get(2)?,
                columns: Vec::new(),
            })
        })?
        .collect::<rusqlite::Result<Vec<_>>>()?;
    let mut statement = conn.prepare("SELECT name FROM pragma_table_info(?1)")?;
    for table in objects.iter_mut().filter(|it| it.kind == "table") {
        table.columns = statement
            .query_map([&table.name], |row| row.get(0))?
            .collect::<rusqlite::Result<Vec<_>>>()?;
    }
    Ok(objects)
}

/// A trigger on a table or view of ours that is none of ours.
#[derive(Debug)]
pub(crate) struct Trigger {
    pub(crate) name: String,
    pub(crate) table: String,
    pub(crate) sql: String,
}

/// Triggers of other hands on what is ours, by name.
pub(crate) fn foreign_triggers(conn: &Connection) -> Result<Vec<Trigger>> {
    let ours = expected()?;
    let known = |name: &str| ours.iter().any(|it| it.name.eq_ignore_ascii_case(name));
    // What a newer version has more than this one is not foreign.
    let newer = version(conn)?.is_some_and(|it| it > SCHEMA_VERSION);
    let mut statement = conn.prepare(
        "SELECT name, tbl_name, coalesce(sql, '') FROM sqlite_master
          WHERE type = 'trigger' AND lower(tbl_name) LIKE 'outbox%' ORDER BY name",
    )?;
    let mut triggers = statement
        .query_map([], |row| {
            Ok(Trigger {
                name: row.get(0)?,
                table: row.get(1)?,
                sql: row.get(2)?,
            })
        })?
        .collect::<rusqlite::Result<Vec<_>>>()?;
    triggers.retain(|it| {
        let own = known(&it.name) || newer && it.name.starts_with("outbox");
        known(&it.table) && !own
    });
    Ok(triggers)
}

/// What the script makes: asked of SQLite itself, so that it is written down only once.
fn expected() -> Result<&'static [Object]> {
    static EXPECTED: OnceLock<Vec<Object>> = OnceLock::new();
    if let Some(known) = EXPECTED.get() {
        return Ok(known);
    }
    let scratch = Connection::open_in_memory()?;
    scratch.execute_batch(SCHEMA)?;
    let made = objects(&scratch)?;
    Ok(EXPECTED.get_or_init(|| made))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stored_version(conn: &Connection) -> i64 {
        version(conn).unwrap().unwrap()
    }

    #[test]
    fn the_script_may_run_again_and_again() {
        let conn = Connection::open_in_memory().unwrap();
        for _ in 0..3 {
            conn.execute_batch(SCHEMA).unwrap();
        }
        assert_eq!(stored_version(&conn), SCHEMA_VERSION);
    }

    #[test]
    fn an_upgrade_runs_the_missing_steps_in_order_and_once() {
        let conn = Connection::open_in_memory().unwrap();
        conn.execute_batch(SCHEMA).unwrap();
        let old = SCHEMA_VERSION - 2;
        let set = "UPDATE outbox_meta SET value = ?1 WHERE key = 'schema_version'";
        conn.execute(set, [old.to_string()]).unwrap();
        let steps = [
            Step {
                to: old,
                sql: "this was run before",
            },
            Step {
                to: old + 1,
                sql: "CREATE TABLE outbox_later (a)",
            },
            Step {
                to: old + 2,
                sql: "ALTER TABLE outbox_later ADD COLUMN b",
            },
        ];
        write(&conn, Some(old), &steps).unwrap();
        assert_eq!(stored_version(&conn), SCHEMA_VERSION);
        conn.prepare("SELECT a, b FROM outbox_later").unwrap();
    }

    #[test]
    fn an_older_schema_is_upgraded_only_on_request() {
        let mut conn = Connection::open_in_memory().unwrap();
        conn.execute_batch(SCHEMA).unwrap();
        conn.execute_batch("UPDATE outbox_meta SET value = '0' WHERE key = 'schema_version'")
            .unwrap();
        let path = Path::new("till.db");
        let refused = install(&mut conn, path, false).unwrap_err();
        assert!(
            matches!(refused, Error::SchemaTooOld { found: 0, supported } if supported == SCHEMA_VERSION)
        );
        assert_eq!(stored_version(&conn), 0);
        install(&mut conn, path, true).unwrap();
        assert_eq!(stored_version(&conn), SCHEMA_VERSION);
    }
}
