//! Reading around the damage, page by page of a whole file.

use std::collections::BTreeSet;
use std::path::Path;

use sqlite_outbox::rusqlite::Connection;
use sqlite_outbox::{Error, Filter, Lost, Outbox};

use crate::fixture::{folder_in_memory, long};

const PAGE: usize = 512;

const COUNT: i64 = 300;

/// A file of small pages, and so with several levels above its rows; every tenth row is so large that
/// it goes on on other pages.
fn whole(path: &Path) -> Vec<u8> {
    let sql = Connection::open(path).unwrap();
    sql.execute_batch(&format!("PRAGMA page_size = {PAGE}; VACUUM"))
        .unwrap();
    drop(Outbox::open(path).unwrap());
    sql.execute_batch(&format!(
        "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {COUNT})
         INSERT INTO outbox (channel, payload)
         SELECT iif(i % 2, 'sales', 'stock'), randomblob(iif(i % 10, 20, 3000)) FROM n;
         DELETE FROM outbox WHERE id BETWEEN 100 AND 110;
         PRAGMA wal_checkpoint(TRUNCATE);
         PRAGMA journal_mode = DELETE"
    ))
    .unwrap();
    drop(sql);
    std::fs::read(path).unwrap()
}

/// All that a list finds, and the ids that it says are lost.
fn salvaged(outbox: &Outbox, mut filter: Filter) -> (Vec<i64>, BTreeSet<i64>) {
    let (mut found, mut lost) = (Vec::new(), BTreeSet::new());
    loop {
        let page = outbox.list_salvaged(&filter.clone().limit(100)).unwrap();
        found.extend(page.entries.iter().map(|it| it.id));
        for ids in page.lost {
            match ids {
                Lost::Messages(ids) => lost.extend(ids),
                other => panic!("{other}"),
            }
        }
        match page.next {
            Some(next) => filter = filter.after(next),
            None => return (found, lost),
        }
    }
}

/// Each page of the file in turn is lost; in the short form one in 29, and those above others. What a list finds, and what it says is lost, is what is found
/// and not found when each message is asked for by itself.
#[test]
fn a_list_finds_every_message_that_can_be_read_whichever_page_is_lost() {
    let folder = folder_in_memory();
    let path = folder.path().join("till.db");
    let whole = whole(&path);
    let pages = whole.len() / PAGE;
    let (mut hurt, mut most) = (0, 0);
    let above = |page: usize| whole[page * PAGE] == 5;
    for page in (1..pages).filter(|page| long() || page % 29 == 0 || above(*page)) {
        let mut damaged = whole.clone();
        damaged[page * PAGE..(page + 1) * PAGE].fill(if page % 2 == 0 { 0 } else { 0xff });
        let path = folder.path().join("damaged.db");
        std::fs::write(&path, damaged).unwrap();
        let Ok(outbox) = Outbox::open_to_read(&path) else {
            continue;
        };
        let asked = |id: i64| match outbox.get(id) {
            Ok(entry) => Some(entry.is_some()),
            Err(Error::Damaged(_)) => None,
            Err(error) => panic!("page {page}: {error:?}"),
        };
        if [1, COUNT / 2, COUNT].iter().all(|id| asked(*id).is_none()) {
            // The list of tables, or the beginning of this one.
            continue;
        }
        let asked: Vec<_> = (1..=COUNT).map(|id| (id, asked(id))).collect();
        let there = asked.iter().filter(|it| it.1 == Some(true));
        let there: Vec<_> = there.map(|it| it.0).collect();
        let gone = asked.iter().filter(|it| it.1.is_none());
        let gone: BTreeSet<_> = gone.map(|it| it.0).collect();
        let (found, lost) = salvaged(&outbox, Filter::new());
        assert_eq!(found, there, "page {page}");
        // Beside the damage an id that nobody has may not be told from one that is lost.
        assert!(lost.is_superset(&gone), "page {page}: {lost:?} {gone:?}");
        let more = lost.difference(&gone).all(|id| (100..=110).contains(id));
        assert!(more, "page {page}: {lost:?} {gone:?}");
        let (mut turned, again) = salvaged(&outbox, Filter::new().newest_first());
        turned.reverse();
        assert_eq!(turned, there, "page {page}");
        assert!(again.is_superset(&gone), "page {page}: {again:?} {gone:?}");
        let (odd, _) = salvaged(&outbox, Filter::new().channel("sales"));
        let wanted: Vec<_> = there.iter().copied().filter(|id| id % 2 == 1).collect();
        assert_eq!(odd, wanted, "page {page}");
        let (stats, _) = outbox.stats_salvaged().unwrap();
        assert!(stats.total.pending >= there.len() as u64, "page {page}");
        hurt += usize::from(!gone.is_empty());
        most = most.max(gone.len());
    }
    println!("of {pages} pages {hurt} have rows, the most of them {most}");
    assert!(hurt > 4 && most > 50, "{hurt} {most}");
}

/// Two pages of rows that stand in each other's place: a list went round for ever.
#[test]
fn a_list_of_messages_that_are_out_of_order_comes_to_its_end_and_has_each_once() {
    let folder = folder_in_memory();
    let path = folder.path().join("till.db");
    let whole = whole(&path);
    let is_leaf = |page: &usize| whole[page * PAGE] == 0x0d;
    let leaves: Vec<usize> = (1..whole.len() / PAGE).filter(is_leaf).collect();
    let step = if long() { 1 } else { 17 };
    let mut met = 0;
    for pair in leaves.windows(2).step_by(step) {
        let mut file = whole.clone();
        for (to, from) in [(pair[0], pair[1]), (pair[1], pair[0])] {
            file[to * PAGE..][..PAGE].copy_from_slice(&whole[from * PAGE..][..PAGE]);
        }
        std::fs::write(&path, file).unwrap();
        let Ok(outbox) = Outbox::open_to_read(&path) else {
            continue;
        };
        if outbox.get(1).is_err() {
            // The list of tables.
            continue;
        }
        for filter in [Filter::new(), Filter::new().newest_first()] {
            let listed = listed(&outbox, filter.clone());
            met += usize::from(matches!(listed, Err(Error::Damaged(_))));
            let (mut found, _) = salvaged(&outbox, filter);
            let count = found.len();
            found.sort_unstable();
            found.dedup();
            assert_eq!(found.len(), count, "{pair:?}");
        }
    }
    assert!(met > 0, "the pages are never those of messages");
}

/// All that a list finds, page by page.
fn listed(outbox: &Outbox, mut filter: Filter) -> Result<usize, Error> {
    let mut count = 0;
    loop {
        let page = outbox.list(&filter.clone().limit(10))?;
        let Some(last) = page.last() else {
            return Ok(count);
        };
        count += page.len();
        assert!(count <= 10 * COUNT as usize, "it goes round");
        filter = filter.after(last.id);
    }
}
