//! Handles of DAT 2.0: what a program holds is the address of a cell, and the cell begins with the address of the
//! provider, which is how the registry finds the function for a handle that it does not know.
//!
//! ```text
//!    program --handle--> cell: | provider --> name, functions | handle of DAT 1.2 |
//! ```
//!
//! Behind that word lies the number that the same object has in [`table`](crate::capi::table), and all else is the
//! table's: it knows which numbers are in use and what they stand for. Each place of the table has its cell,
//! so that nothing is allocated and the way back is arithmetic.
//!
//! Cells never go. A freed handle still leads the registry to a function, which finds a number that is none any more.
//! The registry of DAT 2.0 follows any number as if it were the address of a cell, before we see it. A number that gets
//! as far as here and is no such address names nothing. A cell serves another object after all other places of its kind
//! have been used, and then an old handle is taken for the new one's.

use core::ptr::{NonNull, null_mut};
use core::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

use super::provider::Provider;
use crate::capi::fork::{Wiped, wiped};
use crate::capi::table::{KINDS, PER_KIND, handle_of, number, place_of};
use crate::capi::types::DatHandle;

#[repr(C)]
struct Cell {
    /// The registry reads this.
    provider: AtomicPtr<Provider>,
    /// In DAT 1.2.
    handle: AtomicU64,
}

/// All zeros, so that it takes address space, and memory only where it is used. In pages of its own.
static PAGES: Wiped<[[Cell; PER_KIND]; KINDS]> = Wiped(
    [const {
        [const {
            Cell {
                provider: AtomicPtr::new(null_mut()),
                handle: AtomicU64::new(0),
            }
        }; PER_KIND]
    }; KINDS],
);
static CELLS: &[[Cell; PER_KIND]; KINDS] = &PAGES.0;

/// The pages of all cells.
pub(in crate::capi) fn pages() -> (NonNull<u8>, usize) {
    wiped(&PAGES)
}

/// A number that is no handle and not null.
const NOBODY: u64 = 1;
/// `DAT_EVD_OUT_OF_SCOPE`, the largest handle that is a number by definition.
const LAST_CONSTANT: u64 = 2;

/// The cell at an address.
fn at(handle: DatHandle) -> Option<&'static Cell> {
    let offset = handle.addr().checked_sub(CELLS.as_ptr().addr())?;
    let index = offset / size_of::<Cell>();
    if !offset.is_multiple_of(size_of::<Cell>()) {
        return None;
    }
    CELLS.as_flattened().get(index)
}

/// The handle of DAT 1.2 for what a program has given. What was never a handle becomes one that names nothing.
pub(super) fn known(handle: DatHandle) -> DatHandle {
    if number(handle) <= LAST_CONSTANT {
        return handle;
    }
    let found = at(handle).map_or(NOBODY, |cell| cell.handle.load(Ordering::Acquire));
    handle_of(found.max(NOBODY))
}

/// The provider that the object of a handle belongs to.
pub(super) fn provider(handle: DatHandle) -> *mut Provider {
    at(handle).map_or(null_mut(), |cell| cell.provider.load(Ordering::Acquire))
}

/// What a program is given for a handle of DAT 1.2.
pub(super) fn shown(provider: *mut Provider, handle: DatHandle) -> DatHandle {
    let told = number(handle);
    if told <= LAST_CONSTANT {
        return handle;
    }
    let (kind, place) = place_of(told);
    let Some(cell) = CELLS.get(kind).and_then(|cells| cells.get(place)) else {
        return null_mut();
    };
    cell.provider.store(provider, Ordering::Release);
    cell.handle.store(told, Ordering::Release);
    core::ptr::from_ref(cell).cast_mut().cast()
}

/// The handle of DAT 2.0 for one that the program has been given before; null for any other.
pub(super) fn shown_before(handle: DatHandle) -> DatHandle {
    let (kind, place) = place_of(number(handle));
    CELLS
        .get(kind)
        .and_then(|cells| cells.get(place))
        .filter(|cell| cell.handle.load(Ordering::Acquire) == number(handle))
        .map_or(null_mut(), |cell| {
            core::ptr::from_ref(cell).cast_mut().cast()
        })
}
