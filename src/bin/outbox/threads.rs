//! The one place of the tool that starts a thread.

use std::sync::{Mutex, PoisonError};
use std::thread::{Builder, JoinHandle};

/// Starts a thread; it ends with the process if it does not end before.
#[allow(clippy::disallowed_methods)]
pub(crate) fn start(
    name: &str,
    work: impl FnOnce() + Send + 'static,
) -> std::io::Result<JoinHandle<()>> {
    Builder::new().name(name.into()).spawn(work)
}

/// Does some work for each item, a few side by side, and answers in their order.
#[allow(clippy::disallowed_methods)]
pub(crate) fn side_by_side<T: Send, R: Send>(
    items: Vec<T>,
    work: impl Fn(T) -> R + Sync,
) -> Vec<R> {
    const MOST: usize = 16;
    let threads = items.len().min(MOST);
    let left = Mutex::new(items.into_iter().enumerate());
    let done = Mutex::new(Vec::new());
    let take = || left.lock().unwrap_or_else(PoisonError::into_inner).next();
    let go = || {
        while let Some((place, item)) = take() {
            let answer = (place, work(item));
            done.lock()
                .unwrap_or_else(PoisonError::into_inner)
                .push(answer);
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..threads {
            // What no thread can be had for is done by this one.
            let _ = Builder::new().spawn_scoped(scope, go);
        }
        go();
    });
    let mut done = done.into_inner().unwrap_or_else(PoisonError::into_inner);
    done.sort_by_key(|(place, _)| *place);
    done.into_iter().map(|(_, answer)| answer).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_come_in_the_order_of_the_items() {
        let doubled = side_by_side((0..100).collect(), |it| it * 2);
        assert_eq!(doubled, (0..100).map(|it| it * 2).collect::<Vec<_>>());
        assert!(side_by_side(Vec::<u8>::new(), |it| it).is_empty());
    }
}
