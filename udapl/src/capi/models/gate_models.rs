//! Models of the gate: at most one thread at a time has access.

// UNSAFETY: accesses the cell that the gate guards.
#![expect(unsafe_code, reason = "a cell behind the gate")]

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;

use super::explore;
use super::gate::{Gate, LockLost};
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
            let _guard = guarded.gate.lock().expect("a closed lane needs no fence");
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

    /// Works under the lock, like `Room::with_no_wake`.
    fn work_locked(&self) -> Result<(), LockLost> {
        let _guard = self.gate.lock()?;
        self.work();
        Ok(())
    }

    /// Works under the lock, like `Room::try_with`. Returns false if another thread holds the lock.
    fn tried(&self) -> bool {
        let Some(guard) = self.gate.try_lock() else {
            return false;
        };
        let _guard = guard.expect("membarrier(2) works");
        self.work();
        true
    }

    /// Works in the lane, or under the lock if the lane cannot be entered, like `Room::fast_or_locked`.
    fn post(&self) -> Result<(), LockLost> {
        if !self.gate.enter() {
            return self.work_locked();
        }
        self.work();
        self.gate.exit();
        Ok(())
    }

    fn close_lane(&self) {
        let _guard = self.gate.lock().expect("membarrier(2) works");
        self.gate.close();
        self.work();
    }

    fn open_lane(&self) {
        let _guard = self.gate.lock().expect("membarrier(2) works");
        self.gate.open();
        self.work();
    }

    fn passed(&self) -> u32 {
        // SAFETY: all threads have been joined; loom reports a violation.
        self.inside.with(|inside| unsafe { *inside })
    }
}

/// Model: a thread posts twice while another takes the lock twice.
fn posts_beside_locks() {
    let guarded = Guarded::new();
    let posts = Arc::clone(&guarded);
    let poster = thread::spawn(move || {
        let _running = Running::on(0);
        posts.post().expect("membarrier(2) works");
        posts.post().expect("membarrier(2) works");
    });
    guarded.work_locked().expect("membarrier(2) works");
    guarded.work_locked().expect("membarrier(2) works");
    poster.join().expect("the thread");
    assert_eq!(guarded.passed(), 4);
}

/// Model: a thread posts while two other threads take the lock once each.
fn a_post_beside_two_locking_threads() {
    let guarded = Guarded::new();
    let (posts, locks) = (Arc::clone(&guarded), Arc::clone(&guarded));
    let poster = thread::spawn(move || {
        let _running = Running::on(0);
        posts.post().expect("membarrier(2) works");
    });
    let other = thread::spawn(move || locks.work_locked().expect("membarrier(2) works"));
    guarded.work_locked().expect("membarrier(2) works");
    poster.join().expect("the thread");
    other.join().expect("the thread");
    assert_eq!(guarded.passed(), 3);
}

/// Model: a thread posts, another takes the lock, and the background thread takes the lock if no thread holds it.
fn a_tried_lock_beside_a_post_and_a_lock() {
    let guarded = Guarded::new();
    let (posts, locks) = (Arc::clone(&guarded), Arc::clone(&guarded));
    let poster = thread::spawn(move || {
        let _running = Running::on(0);
        posts.post().expect("membarrier(2) works");
    });
    let other = thread::spawn(move || locks.work_locked().expect("membarrier(2) works"));
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
    guarded.work_locked().expect("membarrier(2) works");
    poster.join().expect("the thread");
    assert_eq!(guarded.passed(), 5);
}

/// Model: membarrier(2) fails, so a thread may be in the lane. The lock is refused, then and later, and the lane is
/// closed.
fn posts_beside_refused_locks() {
    let guarded = Guarded::new();
    let posts = Arc::clone(&guarded);
    let poster = thread::spawn(move || {
        let _running = Running::on(0);
        u32::from(posts.post().is_ok()) + u32::from(posts.post().is_ok())
    });
    assert_eq!(guarded.work_locked(), Err(LockLost(libc::EPERM)));
    assert_eq!(guarded.work_locked(), Err(LockLost(libc::EPERM)));
    let posted = poster.join().expect("the thread");
    assert_eq!(guarded.passed(), posted);
    assert!(!guarded.gate.enter());
}

const SOUND: [Fences; 2] = [Fences::Interrupts, Fences::Paired];

#[test]
fn the_lock_excludes_the_lane() {
    for fences in SOUND {
        explore(
            "posts beside locks",
            (fences, Broken::Nothing),
            posts_beside_locks,
        );
    }
}

#[test]
fn locks_of_two_threads_exclude_the_lane() {
    for fences in SOUND {
        let machine = (fences, Broken::Nothing);
        explore(
            "a post beside two locking threads",
            machine,
            a_post_beside_two_locking_threads,
        );
    }
}

#[test]
fn a_tried_lock_excludes_the_lane() {
    for fences in SOUND {
        let machine = (fences, Broken::Nothing);
        explore(
            "a tried lock beside a post and a lock",
            machine,
            a_tried_lock_beside_a_post_and_a_lock,
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
fn without_membarrier_every_thread_takes_the_lock() {
    explore(
        "no membarrier",
        (Fences::Missing, Broken::Nothing),
        posts_beside_locks,
    );
}

#[test]
fn a_membarrier_that_is_refused_lets_nobody_in_beside_who_is_in_the_lane() {
    let machine = (Fences::Refused(libc::EPERM), Broken::Nothing);
    explore("membarrier is refused", machine, posts_beside_refused_locks);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn the_models_find_a_missing_heavy_fence() {
    explore(
        "",
        (Fences::Interrupts, Broken::HeavyFence),
        posts_beside_locks,
    );
}

#[test]
#[should_panic(expected = "Causality violation")]
fn the_models_find_a_missing_light_fence() {
    explore("", (Fences::Paired, Broken::LightFence), posts_beside_locks);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn the_models_find_a_lane_that_does_not_check_the_lock() {
    explore("", (Fences::Interrupts, Broken::Check), posts_beside_locks);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn the_models_find_a_lock_that_does_not_check_the_lane() {
    explore("", (Fences::Paired, Broken::Wait), posts_beside_locks);
}
