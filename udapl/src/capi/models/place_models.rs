//! Models of the places of handles: a look-up finds a handle with all its fields or not at all, and no place is used
//! for two handles at once.

use core::ptr::{null_mut, without_provenance_mut};

use loom::sync::Arc;
use loom::thread;

use super::explore;
use super::place::{Free, Place};
use super::primitives::{AtomicPtr, AtomicU32, AtomicU64, Broken, Fences, Mutex};

/// A kind of handle with three places, the first of which is reserved.
struct Kind {
    places: [Place<u8>; 3],
    free: Mutex<Free>,
}

/// Returns the fields of a handle's object. Each field is computed from the handle, so that a look-up can check it.
fn parts(handle: u64) -> (*mut u8, u32, (u64, u32)) {
    let number = u32::try_from(handle).expect("a small number");
    // CAST: the number is small.
    let adapter = without_provenance_mut(number as usize);
    (adapter, number, (handle << 32 | handle, number))
}

impl Kind {
    fn new() -> Arc<Self> {
        let empty = || Place {
            occupant: AtomicU64::new(0),
            adapter: AtomicPtr::new(null_mut()),
            tag: AtomicU64::new(0),
            index: AtomicU32::new(0),
            owner: AtomicU32::new(0),
        };
        Arc::new(Self {
            places: core::array::from_fn(|_| empty()),
            free: Mutex::new(Free::new(3)),
        })
    }

    /// Makes an object, like `Reserved::new` and `Reserved::fill`. Returns the place's index, or `None` if no place is
    /// free.
    fn make(&self, handle: u64) -> Option<usize> {
        let at = Free::take(&self.free)? as usize;
        let (adapter, owner, object) = parts(handle);
        self.places[at].fill(handle, adapter, owner, object);
        Some(at)
    }

    /// Looks a handle up, like `find_owned`. Returns whether it is found, and asserts that all its fields are valid.
    fn finds(&self, at: usize, handle: u64) -> bool {
        let place = &self.places[at];
        let found = place.holds(handle);
        if found {
            let said = (place.adapter(), place.owner(), place.object());
            assert_eq!(said, parts(handle), "half of a handle is found");
        }
        found
    }

    /// Frees a handle, like `table::free_handle`. Returns false if the place has another handle.
    fn free(&self, at: usize, handle: u64) -> bool {
        let left = self.places[at].clear(handle);
        if left {
            let at = u32::try_from(at).expect("a small number");
            Free::give(&self.free, at);
        }
        left
    }
}

/// Model: a thread makes an object while another thread looks up the same handle.
fn a_handle_is_looked_up_while_it_is_made() {
    let kind = Kind::new();
    let makes = Arc::clone(&kind);
    let maker = thread::spawn(move || makes.make(7));
    kind.finds(1, 7);
    let at = maker.join().expect("the thread").expect("a place");
    assert!(kind.finds(at, 7));
}

/// Model: all places are in use. A thread frees one and uses it again, while another thread looks up the new handle and
/// the handle in another place.
fn a_place_is_taken_again_while_its_new_handle_is_looked_up() {
    let kind = Kind::new();
    let at = kind.make(7).expect("a place");
    let other = kind.make(8).expect("a place");
    let changes = Arc::clone(&kind);
    let changer = thread::spawn(move || {
        assert!(changes.free(at, 7));
        assert_eq!(changes.make(9), Some(at));
    });
    kind.finds(at, 9);
    assert!(kind.finds(other, 8));
    changer.join().expect("the thread");
    assert!(!kind.finds(at, 7) && kind.finds(at, 9));
}

/// Model: two threads free one handle, and each then makes an object.
fn two_threads_free_one_handle() {
    let kind = Kind::new();
    let at = kind.make(7).expect("a place");
    let _other = kind.make(8).expect("a place");
    let other = Arc::clone(&kind);
    let thread = thread::spawn(move || (other.free(at, 7), other.make(9)));
    let mine = (kind.free(at, 7), kind.make(10));
    let theirs = thread.join().expect("the thread");
    assert!(mine.0 != theirs.0, "one of them has freed it");
    let made = [mine.1, theirs.1];
    // Only one place was free, so at most one thread made an object.
    let places = made.iter().flatten().count();
    assert!(places <= 1, "a place is taken twice: {made:?}");
}

/// Model: a thread takes a certain place, as of a handle of another process, while another thread makes an object.
fn a_certain_place_is_taken_while_an_object_is_made() {
    let kind = Kind::new();
    let makes = Arc::clone(&kind);
    let maker = thread::spawn(move || makes.make(7));
    let wanted = [1].into();
    let taken = Free::take_these(&kind.free, &wanted).is_ok();
    let made = maker.join().expect("the thread");
    // There are two places.
    assert_eq!(made == Some(1), !taken, "one of them has the place");
    assert_eq!(made == Some(2), taken, "the other place is free");
}

const SOUND: (Fences, Broken) = (Fences::Interrupts, Broken::Nothing);

#[test]
fn a_handle_is_found_whole_or_not_at_all() {
    explore(
        "a handle is made",
        SOUND,
        a_handle_is_looked_up_while_it_is_made,
    );
    explore(
        "a place is taken again",
        SOUND,
        a_place_is_taken_again_while_its_new_handle_is_looked_up,
    );
}

#[test]
fn a_handle_is_freed_once_and_its_place_taken_once() {
    explore(
        "two threads free a handle",
        SOUND,
        two_threads_free_one_handle,
    );
}

#[test]
fn a_certain_place_is_taken_once() {
    explore(
        "a certain place is taken",
        SOUND,
        a_certain_place_is_taken_while_an_object_is_made,
    );
}

#[test]
#[should_panic(expected = "half of a handle is found")]
fn the_models_find_a_handle_that_is_written_before_what_it_stands_for() {
    explore(
        "",
        (Fences::Interrupts, Broken::Release),
        a_handle_is_looked_up_while_it_is_made,
    );
}

#[test]
#[should_panic(expected = "one of them has freed it")]
fn the_models_find_a_handle_that_two_threads_free() {
    explore(
        "",
        (Fences::Interrupts, Broken::Exchange),
        two_threads_free_one_handle,
    );
}
