//! Handles of DAT 2.0. A program's handle is the address of a cell. The cell begins with the provider's address, by
//! which the registry finds the function for a handle that it does not know.
//!
//! ```text
//!    program --handle--> cell: | provider --> name, functions | handle of DAT 1.2 |
//! ```
//!
//! The second word is the object's number in [`table`](crate::capi::table), which knows the numbers in use and their
//! objects. Each entry of the table has one cell, so no cell is allocated, and the cell of a number is computed.
//!
//! Cells are never freed. The registry of DAT 2.0 dereferences every handle before this library gets it. If the handle
//! is freed, the registry still calls a function of this library, which finds an invalid number in the cell. A handle
//! that is not the address of a cell is refused here. A cell is used again only after all other free cells of its
//! kind; a stale handle then names the new object.

use core::ptr::{NonNull, null_mut};
use core::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

use super::provider::Provider;
use crate::capi::fork::{Wiped, wiped};
use crate::capi::table::{KINDS, PER_KIND, handle_of, number, place_of};
use crate::capi::types::DatHandle;

#[repr(C)]
struct Cell {
    /// The provider, read by the registry.
    provider: AtomicPtr<Provider>,
    /// The handle of DAT 1.2.
    handle: AtomicU64,
}

/// All cells, in whole pages. They are zero at the start, so only the pages with cells in use occupy memory.
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

/// Returns the memory of all cells, which is whole pages.
pub(in crate::capi) fn pages() -> (NonNull<u8>, usize) {
    wiped(&PAGES)
}

/// A number that is neither null nor a valid handle.
const NOBODY: u64 = 1;
/// `DAT_EVD_OUT_OF_SCOPE`, the largest handle that is a constant.
const LAST_CONSTANT: u64 = 2;

/// Returns the cell at the address that a program uses as a handle.
fn at(handle: DatHandle) -> Option<&'static Cell> {
    let offset = handle.addr().checked_sub(CELLS.as_ptr().addr())?;
    let index = offset / size_of::<Cell>();
    if !offset.is_multiple_of(size_of::<Cell>()) {
        return None;
    }
    CELLS.as_flattened().get(index)
}

/// Converts a program's handle to the DAT 1.2 handle. An invalid handle becomes a DAT 1.2 handle that has no object.
pub(super) fn known(handle: DatHandle) -> DatHandle {
    if number(handle) <= LAST_CONSTANT {
        return handle;
    }
    let found = at(handle).map_or(NOBODY, |cell| cell.handle.load(Ordering::Acquire));
    handle_of(found.max(NOBODY))
}

/// Returns the provider of a program's handle, or null if the handle is not the address of a cell.
pub(super) fn provider(handle: DatHandle) -> *mut Provider {
    at(handle).map_or(null_mut(), |cell| cell.provider.load(Ordering::Acquire))
}

/// Converts a handle of DAT 1.2 to the program's handle, and stores the handle and the provider in its cell.
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

/// Converts a handle of DAT 1.2 to the program's handle. Returns null if the program was never given this handle.
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
