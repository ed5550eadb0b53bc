//! A game against a model: whatever applications, drains, people and clocks do, in whatever order,
//! the promises hold.
//!
//! Goal: order of each lane, one at a time within it, a fence that only rises, counts that are
//! true, nothing lost, nothing sent twice without a reason, nothing sent to a paused channel, and
//! in the end everything delivered. Method: two production drains, stepped inline on one clock that
//! is set by hand; each move, and each answer of the receiver, is chosen by dice. Everything that
//! arrives is checked at that moment, and the whole file after every move. A failure prints the
//! seed of its game and the last moves; `OUTBOX_SEED=seed` plays that game again, move for move.
//! `OUTBOX_LONG=1` plays more than 200,000 moves.

mod game;
mod receiver;
mod rules;

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use game::{Figures, Game};

use crate::fixture::long;

/// Moves of one game; a file of its own each.
const MOVES: u64 = 400;

fn play(seed: u64) -> Figures {
    let game = Game::new(seed);
    let played = catch_unwind(AssertUnwindSafe(|| {
        for _ in 0..MOVES {
            game.play();
        }
        game.come_to_rest();
    }));
    if let Err(thrown) = played {
        eprintln!("{}\nOUTBOX_SEED={seed} plays this game again", game.trace());
        resume_unwind(thrown);
    }
    game.figures()
}

#[test]
fn whatever_is_done_in_whatever_order_the_promises_hold() {
    let seeds = match std::env::var("OUTBOX_SEED") {
        Ok(seed) => seed.parse().map(|seed| seed..seed + 1).unwrap(),
        Err(_) if long() => 0..520,
        Err(_) => 0..6,
    };
    let many = seeds.end - seeds.start > 1;
    let mut sum = Figures::default();
    for seed in seeds {
        sum.add(play(seed));
    }
    println!("{sum:?}");
    if many {
        for (what, count) in sum.all() {
            assert!(count > 0, "nothing {what} in the whole game: {sum:?}");
        }
    }
}
