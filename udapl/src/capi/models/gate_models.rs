//! Models of the gate: at most one thread at a time has access.

// UNSAFETY: accesses the cell that the gate guards.
#![expect(unsafe_code, reason = "a cell behind the gate")]

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;

use super::explore;
use super::gate::{Gate, NoTurn};
use super::primitives::{Broken, Fences, Running, between_instructions};

/// A model of an adapter: the gate and a number that it guards. loom fails a model in which two threads access the
/// number at once and one of them writes, or in which one thread does not see the other's write.
struct Guarded {
    gate: Gate,
    inside: UnsafeCell<u32>,
}

// SAFETY: the models check that only one thread at a time accesses the number.
unsafe impl Sync for Guarded {}
// SAFETY: the content is a number.
unsafe impl Send for Guarded {}

impl Guarded {
    /// Creates an adapter. Its lane is open if the modelled kernel has membarrier(2).
    fn new() -> Arc<Self> {
        let guarded = Self {
            gate: Gate::new(),
            inside: UnsafeCell::new(0),
        };
        {
            let _turn = guarded.gate.turn().expect("a closed lane has turns");
            guarded.gate.open();
        }
        Arc::new(guarded)
    }

    fn work(&self) {
        self.inside.with_mut(|inside| {
            between_instructions();
            // SAFETY: the models check that only one thread at a time is here; loom reports a violation.
            unsafe { *inside += 1 };
        });
    }

    /// Works in a turn, like `Room::look`.
    fn turn(&self) -> Result<(), NoTurn> {
        let _turn = self.gate.turn()?;
        self.work();
        Ok(())
    }

    /// Works in a turn, like `Room::try_turn`. Returns false if another thread holds a turn.
    fn tried(&self) -> bool {
        let Some(turn) = self.gate.try_turn() else {
            return false;
        };
        let _turn = turn.expect("membarrier(2) works");
        self.work();
        true
    }

    /// Works in the lane, or in a turn if the lane cannot be entered, like `Room::fast_or_in_turn`.
    fn post(&self) -> Result<(), NoTurn> {
        if !self.gate.enter() {
            return self.turn();
        }
        self.work();
        self.gate.leave();
        Ok(())
    }

    fn close_lane(&self) {
        let _turn = self.gate.turn().expect("membarrier(2) works");
        self.gate.close();
        self.work();
    }

    fn open_lane(&self) {
        let _turn = self.gate.turn().expect("membarrier(2) works");
        self.gate.open();
        self.work();
    }

    fn passed(&self) -> u32 {
        // SAFETY: all threads have been joined; loom reports a violation.
        self.inside.with(|inside| unsafe { *inside })
    }
}

/// Model: a thread posts twice while another takes two turns.
fn posts_beside_turns() {
    let guarded = Guarded::new();
    let posts = Arc::clone(&guarded);
    let poster = thread::spawn(move || {
        let _running = Running::on(0);
        posts.post().expect("membarrier(2) works");
        posts.post().expect("membarrier(2) works");
    });
    guarded.turn().expect("membarrier(2) works");
    guarded.turn().expect("membarrier(2) works");
    poster.join().expect("the thread");
    assert_eq!(guarded.passed(), 4);
}

/// Model: a thread posts while two other threads take a turn each.
fn a_post_beside_two_threads_with_turns() {
    let guarded = Guarded::new();
    let (posts, turns) = (Arc::clone(&guarded), Arc::clone(&guarded));
    let poster = thread::spawn(move || {
        let _running = Running::on(0);
        posts.post().expect("membarrier(2) works");
    });
    let other = thread::spawn(move || turns.turn().expect("membarrier(2) works"));
    guarded.turn().expect("membarrier(2) works");
    poster.join().expect("the thread");
    other.join().expect("the thread");
    assert_eq!(guarded.passed(), 3);
}

/// Model: a thread posts, another takes a turn, and the background thread takes a turn if no thread holds one.
fn a_turn_is_tried_beside_a_post_and_a_turn() {
    let guarded = Guarded::new();
    let (posts, turns) = (Arc::clone(&guarded), Arc::clone(&guarded));
    let poster = thread::spawn(move || {
        let _running = Running::on(0);
        posts.post().expect("membarrier(2) works");
    });
    let other = thread::spawn(move || turns.turn().expect("membarrier(2) works"));
    let had_one = guarded.tried();
    poster.join().expect("the thread");
    other.join().expect("the thread");
    assert_eq!(guarded.passed(), 2 + u32::from(had_one));
}

/// Model: the lane is closed, as for an agent, while a thread posts; then another thread posts, too.
fn two_threads_post_when_the_lane_has_closed() {
    let guarded = Guarded::new();
    let posts = Arc::clone(&guarded);
    let poster = thread::spawn(move || {
        let _running = Running::on(0);
        posts.post().expect("membarrier(2) works");
    });
    guarded.close_lane();
    {
        let _running = Running::on(1);
        guarded.post().expect("membarrier(2) works");
    }
    poster.join().expect("the thread");
    assert_eq!(guarded.passed(), 3);
}

/// Model: a closed lane is opened, as for a new content of a room, while a thread posts.
fn the_lane_opens_while_its_thread_posts() {
    let guarded = Guarded::new();
    guarded.close_lane();
    let posts = Arc::clone(&guarded);
    let poster = thread::spawn(move || {
        let _running = Running::on(0);
        posts.post().expect("membarrier(2) works");
        posts.post().expect("membarrier(2) works");
    });
    guarded.open_lane();
    guarded.turn().expect("membarrier(2) works");
    poster.join().expect("the thread");
    assert_eq!(guarded.passed(), 5);
}

/// Model: membarrier(2) fails, so a thread may be in the lane. No turn is granted, then or later, and the lane is
/// closed.
fn posts_beside_turns_that_are_refused() {
    let guarded = Guarded::new();
    let posts = Arc::clone(&guarded);
    let poster = thread::spawn(move || {
        let _running = Running::on(0);
        u32::from(posts.post().is_ok()) + u32::from(posts.post().is_ok())
    });
    assert_eq!(guarded.turn(), Err(NoTurn(libc::EPERM)));
    assert_eq!(guarded.turn(), Err(NoTurn(libc::EPERM)));
    let posted = poster.join().expect("the thread");
    assert_eq!(guarded.passed(), posted);
    assert!(!guarded.gate.enter());
}

const SOUND: [Fences; 2] = [Fences::Interrupts, Fences::Paired];

#[test]
fn nobody_is_in_the_lane_beside_a_turn() {
    for fences in SOUND {
        explore(
            "posts beside turns",
            (fences, Broken::Nothing),
            posts_beside_turns,
        );
    }
}

#[test]
fn nobody_is_in_the_lane_beside_turns_of_two_threads() {
    for fences in SOUND {
        let machine = (fences, Broken::Nothing);
        explore(
            "a post beside two threads with turns",
            machine,
            a_post_beside_two_threads_with_turns,
        );
    }
}

#[test]
fn nobody_is_in_the_lane_beside_a_turn_that_was_tried() {
    for fences in SOUND {
        let machine = (fences, Broken::Nothing);
        explore(
            "a turn tried beside a post and a turn",
            machine,
            a_turn_is_tried_beside_a_post_and_a_turn,
        );
    }
}

#[test]
fn a_lane_that_closes_and_opens_lets_nobody_in_beside_another() {
    for fences in SOUND {
        let machine = (fences, Broken::Nothing);
        explore(
            "the lane closes",
            machine,
            two_threads_post_when_the_lane_has_closed,
        );
        explore(
            "the lane opens",
            machine,
            the_lane_opens_while_its_thread_posts,
        );
    }
}

#[test]
fn without_membarrier_everybody_takes_turns() {
    explore(
        "no membarrier",
        (Fences::Missing, Broken::Nothing),
        posts_beside_turns,
    );
}

#[test]
fn a_membarrier_that_is_refused_lets_nobody_in_beside_who_is_in_the_lane() {
    let machine = (Fences::Refused(libc::EPERM), Broken::Nothing);
    explore(
        "membarrier is refused",
        machine,
        posts_beside_turns_that_are_refused,
    );
}

#[test]
#[should_panic(expected = "Causality violation")]
fn the_models_find_a_missing_heavy_fence() {
    explore(
        "",
        (Fences::Interrupts, Broken::HeavyFence),
        posts_beside_turns,
    );
}

#[test]
#[should_panic(expected = "Causality violation")]
fn the_models_find_a_missing_light_fence() {
    explore("", (Fences::Paired, Broken::LightFence), posts_beside_turns);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn the_models_find_a_lane_that_does_not_look_for_turns() {
    explore("", (Fences::Interrupts, Broken::Check), posts_beside_turns);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn the_models_find_a_turn_that_does_not_look_for_the_lane() {
    explore("", (Fences::Paired, Broken::Wait), posts_beside_turns);
}
