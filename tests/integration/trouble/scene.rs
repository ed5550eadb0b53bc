//! A shop's file behind a VFS whose calls can be made to fail, and the deeds that are tried on it.

use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::Duration;

use sqlite_outbox::rusqlite::{Connection, TransactionBehavior};
use sqlite_outbox::testing::{Inline, ManualClock};
use sqlite_outbox::{
    Delivery, Error, Message, Outbox, Outcome, Policy, Result, Selection, Settings,
};
use tempfile::TempDir;

use crate::fixture::{column, folder_in_memory};
use crate::vfs::Vfs;

const NOW: i64 = 1_800_000_000_000;

/// One file with its outbox and a drain.
pub(super) struct Scene {
    folder: TempDir,
    pub(super) path: PathBuf,
    pub(super) vfs: Vfs,
    pub(super) clock: ManualClock,
    outbox: RefCell<Option<Outbox>>,
    drain: RefCell<Option<Inline>>,
    /// What arrived, by message id.
    pub(super) arrived: Mutex<Vec<String>>,
}

/// Something that the outbox does for someone.
pub(super) struct Deed {
    pub(super) name: &'static str,
    /// It is done in one transaction: whole or not at all.
    pub(super) whole: bool,
    pub(super) before: fn(&Scene),
    pub(super) run: fn(&Scene) -> Result<()>,
}

/// Makes the file that every scene starts from: fresh, retried, dead, cancelled and sent messages
/// in and outside lanes.
pub(super) fn template(folder: &Path, journal: &str) -> PathBuf {
    let path = folder.join("template.db");
    let conn = Connection::open(&path).unwrap();
    let script =
        format!("PRAGMA journal_mode = {journal}; CREATE TABLE sale (id TEXT PRIMARY KEY)");
    conn.execute_batch(&script).unwrap();
    let clock = ManualClock::at(NOW);
    let outbox = Outbox::options().clock(clock.shared()).open(&path).unwrap();
    let sell = |key: &str, lane: Option<&str>| {
        let message = Message::text("sales", format!("{key} {}", "x".repeat(2_000)));
        let message = message.dedupe_key(key);
        let message = match lane {
            Some(lane) => message.ordering_key(lane),
            None => message,
        };
        let sold = outbox.transaction(|tx| {
            tx.execute("INSERT INTO sale VALUES (?1)", [key])?;
            outbox.enqueue(tx, &message)
        });
        sold.unwrap();
    };
    for n in 0..6 {
        sell(&format!("old-{n}"), None);
    }
    let mut drain = Inline::new(&outbox, settings()).unwrap();
    drain
        .until_idle(&|_: &Delivery| Ok(Outcome::delivered()))
        .unwrap();
    sell("dead-1", None);
    drain
        .until_idle(&|_: &Delivery| Ok(Outcome::rejected("no")))
        .unwrap();
    for n in 0..4 {
        sell(&format!("lane-{n}"), Some("a"));
        sell(&format!("free-{n}"), None);
    }
    path
}

pub(super) fn settings() -> Settings {
    Settings::default()
        .default_policy(Policy::default().run_length(2))
        .keep_payload(Some(Duration::from_secs(3600)))
        .keep_sent(Some(Duration::from_secs(7200)))
}

impl Scene {
    /// A copy of the template. `pages` is how many it may grow by.
    pub(super) fn new(template: &Path, vfs: &Vfs, pages: Option<u32>) -> Self {
        let folder = folder_in_memory();
        let path = folder.path().join("till.db");
        std::fs::copy(template, &path).unwrap();
        let scene = Self {
            folder,
            path,
            vfs: vfs.clone(),
            clock: ManualClock::at(NOW + 1_000),
            outbox: RefCell::default(),
            drain: RefCell::default(),
            arrived: Mutex::default(),
        };
        scene.open(pages).unwrap();
        scene
    }

    pub(super) fn open(&self, pages: Option<u32>) -> Result<()> {
        self.close();
        *self.outbox.borrow_mut() = Some(self.open_at(&self.path, pages)?);
        Ok(())
    }

    pub(super) fn open_at(&self, path: &Path, pages: Option<u32>) -> Result<Outbox> {
        let mut options = Outbox::options()
            .clock(self.clock.shared())
            .vfs(self.vfs.name());
        if let Some(pages) = pages {
            options = options.on_connect(move |conn| {
                let count: u32 = conn.query_row("PRAGMA page_count", [], |row| row.get(0))?;
                let limit = format!("PRAGMA max_page_count = {}", count + pages);
                conn.query_row(&limit, [], |_| Ok(()))
            });
        }
        options.open(path)
    }

    pub(super) fn close(&self) {
        self.drain.take();
        self.outbox.take();
    }

    pub(super) fn outbox(&self) -> Outbox {
        self.outbox.borrow().clone().unwrap()
    }

    /// As anyone sees it, past the VFS.
    pub(super) fn sql(&self) -> Connection {
        Connection::open(&self.path).unwrap()
    }

    pub(super) fn beside(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// One step of the drain; its receiver takes everything.
    pub(super) fn step(&self) -> Result<()> {
        let mut drain = self.drain.borrow_mut();
        if drain.is_none() {
            *drain = Some(Inline::new(&self.outbox(), settings())?.seeded(1));
        }
        let arrived = &self.arrived;
        let receive = |it: &Delivery| {
            arrived.lock().unwrap().push(it.message_id.clone());
            Ok(Outcome::delivered())
        };
        let step = drain.as_mut().unwrap().step(&receive);
        self.clock.advance(Duration::from_millis(600));
        step.map(drop)
    }

    /// What can be seen of the file, without what is drawn by lot.
    pub(super) fn state(&self) -> String {
        let conn = self.sql();
        let queries = [
            "SELECT id FROM sale",
            "SELECT dedupe_key || ' ' || status || ' ' || claims || ' ' || length(payload) FROM outbox",
            "SELECT action || ' ' || coalesce(message, channel) FROM outbox_audit",
            "SELECT channel || ' ' || (paused_at IS NOT NULL) FROM outbox_channel",
        ];
        let rows = queries.iter().flat_map(|query| column(&conn, query));
        rows.collect::<Vec<_>>().join("\n")
    }

    fn id(&self, key: &str) -> i64 {
        let conn = self.sql();
        conn.query_row(
            "SELECT id FROM outbox WHERE dedupe_key = ?1",
            [key],
            |row| row.get(0),
        )
        .unwrap()
    }
}

fn nothing(_: &Scene) {}

/// A sale that is done right: any error ends the transaction.
fn sell(scene: &Scene) -> Result<()> {
    let outbox = scene.outbox();
    let message = Message::text("sales", "x".repeat(9_000)).dedupe_key("new-1");
    outbox.transaction(|tx| {
        tx.execute("INSERT INTO sale VALUES ('new-1')", [])?;
        outbox.enqueue(tx, &message.ordering_key("a")).map(drop)
    })
}

/// A sale with two messages, by a program that looks at no error but the last.
fn sell_carelessly(scene: &Scene) -> Result<()> {
    let outbox = scene.outbox();
    let mut conn = outbox.connection()?;
    let tx = conn.transaction_with_behavior(TransactionBehavior::Immediate)?;
    tx.execute("INSERT INTO sale VALUES ('new-1')", [])?;
    let message = |key: &str| Message::text("sales", "x".repeat(9_000)).dedupe_key(key);
    let first = outbox.enqueue(&tx, &message("new-1"));
    let second = outbox.enqueue(&tx, &message("new-1 receipt"));
    let committed = tx.commit();
    first.and(second)?;
    Ok(committed?)
}

fn steps(scene: &Scene, n: usize) -> Result<()> {
    (0..n).try_for_each(|_| scene.step())
}

fn due_for_retention(scene: &Scene) {
    for _ in 0..60 {
        steps(scene, 1).unwrap();
    }
    scene.clock.advance(Duration::from_secs(2 * 3600));
    // The clock is trusted again after a while.
    steps(scene, 2).unwrap();
}

pub(super) const DEEDS: &[Deed] = &[
    Deed {
        name: "enqueue",
        whole: true,
        before: nothing,
        run: sell,
    },
    Deed {
        name: "careless",
        whole: false,
        before: nothing,
        run: sell_carelessly,
    },
    Deed {
        name: "claim",
        whole: true,
        before: nothing,
        run: |it| it.step(),
    },
    Deed {
        name: "settle",
        whole: true,
        before: |it| it.step().unwrap(),
        run: |it| it.step(),
    },
    Deed {
        name: "drain",
        whole: false,
        before: nothing,
        run: |it| steps(it, 20),
    },
    Deed {
        name: "retention",
        whole: false,
        before: due_for_retention,
        run: |it| steps(it, 20),
    },
    Deed {
        name: "retry",
        whole: true,
        before: nothing,
        run: |it| it.outbox().operator("anna").retry(it.id("dead-1")),
    },
    Deed {
        name: "cancel",
        whole: true,
        before: nothing,
        run: |it| it.outbox().operator("anna").cancel(it.id("lane-0")),
    },
    Deed {
        name: "edit",
        whole: true,
        before: nothing,
        run: |it| {
            it.outbox()
                .operator("anna")
                .edit(it.id("free-0"), "y".repeat(5_000))
                .map(|_| ())
        },
    },
    Deed {
        name: "pause",
        whole: true,
        before: nothing,
        run: |it| it.outbox().operator("anna").pause("sales"),
    },
    Deed {
        name: "cancel all",
        whole: true,
        before: nothing,
        run: |it| {
            let all = Selection::new().channel("sales");
            it.outbox().operator("anna").cancel_all(&all).map(drop)
        },
    },
    Deed {
        name: "purge",
        whole: true,
        before: |it| it.clock.advance(Duration::from_secs(7 * 86_400)),
        run: |it| {
            it.outbox()
                .operator("anna")
                .purge(Duration::from_secs(1))
                .map(drop)
        },
    },
    Deed {
        name: "compact",
        whole: true,
        before: |it| {
            it.sql()
                .execute_batch("DELETE FROM outbox WHERE dedupe_key LIKE 'old-%'")
                .unwrap();
        },
        run: |it| it.outbox().compact().map(drop),
    },
    #[cfg(feature = "backup")]
    Deed {
        name: "backup",
        whole: true,
        before: nothing,
        run: |it| {
            let copied = it.outbox().backup(it.beside("copy.db")).map(drop);
            let copy = it.beside("copy.db");
            assert_eq!(copy.exists(), copied.is_ok(), "a half copy is left");
            if copy.exists() {
                std::fs::remove_file(copy).unwrap();
            }
            copied
        },
    },
    Deed {
        name: "look",
        whole: true,
        before: nothing,
        run: |it| {
            let outbox = it.outbox();
            outbox.stats()?;
            outbox.list(&Default::default())?;
            outbox.why_all()?;
            outbox.check().map(drop)
        },
    },
    Deed {
        name: "open",
        whole: true,
        before: Scene::close,
        run: |it| it.open(None),
    },
    Deed {
        name: "mend",
        whole: true,
        before: |it| {
            it.close();
            it.sql()
                .execute_batch("DROP TRIGGER outbox_inserted; DROP INDEX outbox_due")
                .unwrap();
        },
        run: |it| it.open(None),
    },
    Deed {
        name: "create",
        whole: true,
        before: nothing,
        run: |it| {
            let other = it.open_at(&it.beside("new.db"), None)?;
            other.transaction(|tx| {
                other.enqueue(tx, &Message::text("sales", "one").dedupe_key("1"))
            })?;
            assert_eq!(other.unsent()?, 1);
            drop(other);
            for name in ["new.db", "new.db-wal", "new.db-shm", "new.db-journal"] {
                let _ = std::fs::remove_file(it.beside(name));
            }
            Ok::<_, Error>(())
        },
    },
];
