//! Of a damaged file, what can be explained.

use crate::condition::Lost;
use crate::dispatch::Dispatcher;
use crate::error::{Error, Result, unless_damaged};
use crate::outbox::Outbox;
use crate::store::why as evidence;
use crate::why::explain::{Asked, Whole};
use crate::why::kinds::add;
use crate::why::{Why, WhyGroup};

/// Some messages.
pub(super) fn each(
    outbox: &Outbox,
    ids: &[i64],
    dispatcher: Option<&dyn Dispatcher>,
    whole: &Whole,
) -> Result<(Vec<Why>, Vec<Lost>)> {
    let conn = outbox.shared().reader()?;
    let asked = Asked::new(outbox, &conn, dispatcher, whole);
    let (mut whys, mut lost) = (Vec::new(), Vec::new());
    for id in ids {
        whys.extend(one(&asked, *id, &mut lost)?);
    }
    Ok((whys, lost))
}

/// One message of each kind in each channel.
pub(super) fn all(
    outbox: &Outbox,
    dispatcher: Option<&dyn Dispatcher>,
) -> Result<(Vec<WhyGroup>, Vec<Lost>)> {
    let conn = outbox.shared().reader()?;
    let whole = Whole::default();
    let asked = Asked::new(outbox, &conn, dispatcher, &whole);
    let (kinds, mut lost) = evidence::kinds_salvaged(&conn, asked.now)?;
    let mut groups = Vec::new();
    for (messages, id) in kinds {
        if let Some(why) = one(&asked, id, &mut lost)? {
            add(&mut groups, messages, why);
        }
    }
    Ok((groups, lost))
}

fn one(asked: &Asked<'_>, id: i64, lost: &mut Vec<Lost>) -> Result<Option<Why>> {
    let why = asked.why(id);
    if matches!(why, Err(Error::Damaged(_))) && !lost.contains(&Lost::Reasons) {
        lost.push(Lost::Reasons);
    }
    unless_damaged(why)
}
