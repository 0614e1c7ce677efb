//! Handles: a C program's handle is a number, which this table maps to an object.
//!
//! ```text
//!   63  62 ....................... 26  25 .. 22  21 .......... 5  4 ... 0
//!  |  1 |  serial number of the handle |  kind  |  place in table |   0   |
//! ```
//!
//! A place holds its whole handle and the object. So a look-up is a masked load and one comparison. Freed handles,
//! handles of another kind and random numbers all fail the comparison: serial numbers are never reused, and a freed
//! place is empty or has another serial number. Nothing is dereferenced before the comparison. Bit 63 is set in every
//! handle, so that no pointer of a program equals a handle.
//!
//! The places of a kind are contiguous, so that the kind is part of the index and needs no comparison of its own.
//!
//! Places ([`place`]) are atomics: a thread may look up a valid or stale handle while another thread changes the
//! place. The object of a *live* handle does not change before the handle is freed; callers of the adapter must not
//! free a handle that they still use.

// UNSAFETY: dereferences the pointer in a place.
#![expect(unsafe_code, reason = "pointers in atomics")]

use core::marker::PhantomData;
use core::ptr::null_mut;
use std::collections::BTreeSet;

use dat_core::{
    CnoHandle, CrHandle, DatError, DatResult, EpHandle, EvdHandle, HandleType, LmrHandle,
    PspHandle, PzHandle, ReturnType, RmrHandle, RspHandle, SrqHandle, Subtype,
};

use super::fork::Wiped;
use super::place::{Free, Place};
use super::primitives::{AtomicPtr, AtomicU32, AtomicU64, Mutex, Ordering};
use super::types::DatHandle;

/// Number of places for each kind. The first place of a kind is never used.
pub(super) const PER_KIND: usize = 1 << 17;
/// Number of kinds. The largest value of `DAT_HANDLE_TYPE` is 10.
pub(super) const KINDS: usize = 11;
const PLACE_SHIFT: u32 = 5;
const KIND_SHIFT: u32 = PLACE_SHIFT + PER_KIND.trailing_zeros();
const SERIAL_SHIFT: u32 = KIND_SHIFT + 4;
const OURS: u64 = 1 << 63;

/// A place has 2^PLACE_SHIFT bytes, so the masked bits of a handle are the offset of its place in bytes.
const _: () = assert!(size_of::<Place<()>>() == 1 << PLACE_SHIFT);

/// The places of a kind. A place that was never used is zero, so that it takes address space and no memory. In a child
/// of fork(2) all places are zero.
pub(super) type Places<A> = Wiped<[Place<A>; PER_KIND]>;

/// Returns places that were never used.
pub(super) const fn empty<A>() -> Places<A> {
    Wiped(
        [const {
            Place {
                occupant: AtomicU64::new(0),
                adapter: AtomicPtr::new(null_mut()),
                tag: AtomicU64::new(0),
                index: AtomicU32::new(0),
                owner: AtomicU32::new(0),
            }
        }; PER_KIND],
    )
}

/// An owner of objects that have handles, with the places for each kind of handle.
pub(super) trait Holder: Sized + 'static {
    /// Returns the places of a kind.
    fn places(kind: HandleType) -> &'static Places<Self>;
    /// Returns the places of the kind with this number, or `None` if the number is no kind.
    fn places_of(kind: usize) -> Option<&'static Places<Self>>;
}

// CAST: PER_KIND is less than 2^32.
#[expect(clippy::cast_possible_truncation, reason = "17 bits")]
static FREE: [Mutex<Free>; KINDS] = [const { Mutex::new(Free::new(PER_KIND as u32)) }; KINDS];

static SERIAL: AtomicU64 = AtomicU64::new(1);

/// A kind of object that has handles.
pub(super) trait Named: Copy {
    /// Kind of the handle, a value of `DAT_HANDLE_TYPE`.
    const KIND: HandleType;
    fn raw(self) -> (u64, u32);
    fn from_parts(key: u64, ia: u32) -> Self;
}

macro_rules! named {
    ($($handle:ident is $kind:ident,)*) => {$(
        impl Named for $handle {
            const KIND: HandleType = HandleType::$kind;
            #[inline(always)]
            fn raw(self) -> (u64, u32) {
                self.to_raw()
            }
            #[inline(always)]
            fn from_parts(key: u64, ia: u32) -> Self {
                Self::from_raw(key, ia)
            }
        }
    )*};
}

named! {
    CrHandle is Cr,
    EpHandle is Ep,
    EvdHandle is Evd,
    LmrHandle is Lmr,
    PspHandle is Psp,
    PzHandle is Pz,
    RmrHandle is Rmr,
    RspHandle is Rsp,
    CnoHandle is Cno,
    SrqHandle is Srq,
}

/// An instance number: the object of an IA's handle. Numbers are never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct IaName(u32);

impl IaName {
    /// Creates a new instance number.
    pub(super) fn fresh() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(1);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

impl Named for IaName {
    const KIND: HandleType = HandleType::Ia;
    fn raw(self) -> (u64, u32) {
        (self.0.into(), 0)
    }
    fn from_parts(key: u64, _ia: u32) -> Self {
        // CAST: the key was made from 32 bits by `raw`.
        #[expect(clippy::cast_possible_truncation, reason = "made of 32 bits")]
        Self(key as u32)
    }
}

/// Returns the object of a handle, if it is of this kind.
#[inline(always)]
pub(super) fn find<A: Holder, H: Named>(handle: DatHandle) -> Option<(&'static A, H)> {
    let (holder, place) = place::<A, H>(number(handle))?;
    let (key, ia) = place.object();
    Some((holder, H::from_parts(key, ia)))
}

/// Returns the object of a handle, and the instance that owns the object.
pub(super) fn find_owned<A: Holder, H: Named>(
    handle: DatHandle,
) -> Option<(&'static A, IaName, H)> {
    let (_, place) = place::<A, H>(number(handle))?;
    let owner = IaName(place.owner());
    let (holder, object) = find(handle)?;
    Some((holder, owner, object))
}

/// Returns the place of a live handle of kind `H`, or `None` if the handle is not live.
#[inline(always)]
fn place<A: Holder, H: Named>(handle: u64) -> Option<(&'static A, &'static Place<A>)> {
    // CAST: only the bits of the index are left by the mask.
    let place = (handle >> PLACE_SHIFT) as usize & (PER_KIND - 1);
    let place = &A::places(H::KIND).0[place];
    if !place.holds(handle) {
        return None;
    }
    // SAFETY: the pointer in a place is null or was made of a `&'static A` (`Reserved::fill`, `Withdrawn::fill`).
    let holder = unsafe { place.adapter().as_ref() }?;
    Some((holder, place))
}

/// Returns a handle as a number.
#[inline(always)]
pub(super) fn number(handle: DatHandle) -> u64 {
    handle.addr() as u64
}

/// Returns a number as a handle. The handle is not a valid pointer.
#[inline(always)]
pub(super) fn handle_of(number: u64) -> DatHandle {
    // CAST: pointers have 64 bits, as `types` asserts.
    #[expect(clippy::cast_possible_truncation, reason = "64-bit pointers only")]
    core::ptr::without_provenance_mut(number as usize)
}

/// Number of low bits of a handle that are 0.
const ZERO_BITS: u32 = PLACE_SHIFT;
/// Mask of a key's lower half, the index.
const INDEX: u64 = 0xffff_ffff;
/// Lowest bit of a key's upper half, the version. The version is odd in every key.
const ODD: u64 = INDEX + 1;

/// Encodes a C handle as a key, to name an object of another instance in an event.
pub(super) const fn as_key(handle: u64) -> u64 {
    let bits = handle >> ZERO_BITS;
    (bits & INDEX) | ODD | (bits & !INDEX) << 1
}

/// Returns the C handle that `as_key` encoded in a key.
pub(super) const fn of_key(key: u64) -> u64 {
    ((key & INDEX) | (key >> 1 & !INDEX)) << ZERO_BITS
}

/// A place reserved for an object that is being made. Dropping this value returns the place to the free list.
pub(super) struct Reserved<H: Named> {
    at: u32,
    handle: u64,
    kind: PhantomData<H>,
}

impl<H: Named> Reserved<H> {
    /// Reserves a place.
    ///
    /// # Errors
    /// DAT_INSUFFICIENT_RESOURCES|MEMORY: no place of this kind is free. A kind has [`PER_KIND`] places.
    pub(super) fn new() -> DatResult<Self> {
        let full = DatError::new(ReturnType::InsufficientResources, Subtype::ResourceMemory);
        let at = Free::take(&FREE[H::KIND as usize])
            .ok_or(full.because("the process has no handles of this kind left"))?;
        let serial = SERIAL.fetch_add(1, Ordering::Relaxed) << SERIAL_SHIFT;
        // CAST: the discriminant is DAT's number.
        let kind = (H::KIND as u64) << KIND_SHIFT;
        Ok(Self {
            at,
            handle: OURS | serial | kind | u64::from(at) << PLACE_SHIFT,
            kind: PhantomData,
        })
    }

    /// Returns the handle that the object will have.
    pub(super) const fn handle(&self) -> u64 {
        self.handle
    }

    /// Assigns the handle to the object.
    pub(super) fn fill<A: Holder>(self, holder: &'static A, owner: IaName, object: H) {
        let place = &A::places(H::KIND).0[self.at as usize];
        let holder = core::ptr::from_ref(holder).cast_mut();
        place.fill(self.handle, holder, owner.0, object.raw());
        core::mem::forget(self);
    }
}

impl<H: Named> Drop for Reserved<H> {
    fn drop(&mut self) {
        Free::give(&FREE[H::KIND as usize], self.at);
    }
}

/// Empties the place of a handle, if the handle is valid and its object belongs to this instance.
fn clear<A: Holder>(handle: u64, owner: IaName) -> bool {
    let (kind, at) = place_of(handle);
    // Handles are never reused. So the place has this owner, or another handle, as long as the handle is valid.
    handle != 0
        && A::places_of(kind).is_some_and(|places| {
            let place = &places.0[at];
            place.holds(handle) && place.owner() == owner.0 && place.clear(handle)
        })
}

/// Returns whether a handle is that of an object.
pub(super) fn is_valid<A: Holder>(handle: u64) -> bool {
    let (kind, at) = place_of(handle);
    A::places_of(kind).is_some_and(|places| places.0[at].holds(handle))
}

/// Frees a handle of an instance, which is invalid from now on. Does nothing if the handle is not valid, or is that of
/// another instance's object.
pub(super) fn free_handle<A: Holder>(handle: u64, owner: IaName) {
    let (kind, at) = place_of(handle);
    if clear::<A>(handle, owner) {
        // CAST: `at` is less than PER_KIND.
        #[expect(clippy::cast_possible_truncation, reason = "masked")]
        Free::give(&FREE[kind], at as u32);
    }
}

/// Handles whose places are taken and empty: those of an instance that is being parked, or resumed. Dropping this value
/// returns the places to the free lists.
pub(super) struct Withdrawn {
    handles: BTreeSet<u64>,
}

impl Withdrawn {
    /// Empties the places of all valid handles of an instance among these. The handles are invalid from now on.
    pub(super) fn withdraw<A: Holder>(handles: impl Iterator<Item = u64>, owner: IaName) -> Self {
        Self {
            handles: handles
                .filter(|handle| clear::<A>(*handle, owner))
                .collect(),
        }
    }

    /// Takes the places of handles that another process has given out. [`pass_serials`] comes before the handles are
    /// assigned.
    ///
    /// # Errors
    /// The first of the handles whose place is in use, or that no process has given out.
    pub(super) fn reserve(handles: impl Iterator<Item = u64>) -> Result<Self, u64> {
        let mut wanted = BTreeSet::new();
        let mut places: [BTreeSet<u32>; KINDS] = Default::default();
        for handle in handles {
            let (kind, at) = place_of(handle);
            // CAST: `at` is less than PER_KIND.
            #[expect(clippy::cast_possible_truncation, reason = "masked")]
            let at = at as u32;
            let is_ours = handle & OURS != 0 && handle & ((1 << PLACE_SHIFT) - 1) == 0;
            let is_likely = is_ours && at != 0 && serial_of(handle) < SERIALS;
            let places = places.get_mut(kind).filter(|_| is_likely);
            // Two handles with one place are not of one moment.
            if !places.is_some_and(|places| places.insert(at)) {
                return Err(handle);
            }
            wanted.insert(handle);
        }
        // If a later kind is refused, dropping this value gives the places of earlier kinds back.
        let mut all = Self {
            handles: BTreeSet::new(),
        };
        for (kind, places) in places.iter().enumerate() {
            let of_kind = |handle: &&u64| place_of(**handle).0 == kind;
            if let Err(place) = Free::take_these(&FREE[kind], places) {
                let mut its = wanted.iter().filter(of_kind);
                let handle = its.find(|handle| place_of(**handle).1 == place as usize);
                return Err(handle.copied().unwrap_or_default());
            }
            all.handles.extend(wanted.iter().filter(of_kind));
        }
        Ok(all)
    }

    /// Returns whether the handle is one of these.
    pub(super) fn contains(&self, handle: u64) -> bool {
        self.handles.contains(&handle)
    }

    /// Assigns one of the handles to an object, as the parts of its Rust handle: the key, and the IA's number. Does
    /// nothing if the handle is none of these.
    pub(super) fn fill<A: Holder>(
        &mut self,
        handle: u64,
        holder: &'static A,
        owner: IaName,
        object: (u64, u32),
    ) {
        let (kind, at) = place_of(handle);
        if !self.handles.remove(&handle) {
            return;
        }
        // The handle was checked when it was withdrawn or reserved.
        if let Some(places) = A::places_of(kind) {
            let holder = core::ptr::from_ref(holder).cast_mut();
            places.0[at].fill(handle, holder, owner.0, object);
        }
    }
}

impl Drop for Withdrawn {
    fn drop(&mut self) {
        for &handle in &self.handles {
            let (kind, at) = place_of(handle);
            // CAST: `at` is less than PER_KIND.
            #[expect(clippy::cast_possible_truncation, reason = "masked")]
            Free::give(&FREE[kind], at as u32);
        }
    }
}

/// Number of serial numbers that a process takes over. There are twice as many, so the process that takes them over has
/// as many left.
pub(super) const SERIALS: u64 = 1 << 36;

/// Returns the serial number in a handle.
pub(super) const fn serial_of(handle: u64) -> u64 {
    (handle & !OURS) >> SERIAL_SHIFT
}

/// Returns a number above the serial numbers of all handles that this process has given out.
pub(super) fn next_serial() -> u64 {
    SERIAL.load(Ordering::Relaxed)
}

/// Passes the serial numbers below `next`: no later handle of this process has one of them.
pub(super) fn pass_serials(next: u64) {
    SERIAL.fetch_max(next.min(SERIALS), Ordering::Relaxed);
}

/// Number of the kind in handles that are in no place.
const NO_KIND: u64 = 15;

/// Returns a number that has the form of a handle, is never used again, and is the handle of no object.
pub(super) fn fresh_number() -> u64 {
    let serial = SERIAL.fetch_add(1, Ordering::Relaxed) << SERIAL_SHIFT;
    OURS | serial | NO_KIND << KIND_SHIFT
}

/// Returns the kind and the place index in a handle.
pub(super) const fn place_of(handle: u64) -> (usize, usize) {
    // CAST: the masks leave 4 and 17 bits.
    (
        (handle >> KIND_SHIFT) as usize & 0xf,
        (handle >> PLACE_SHIFT) as usize & (PER_KIND - 1),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A handle of another process with a place, as [`Withdrawn::reserve`] gets it.
    fn handle_at(kind: HandleType, place: u64, serial: u64) -> u64 {
        OURS | serial << SERIAL_SHIFT | (kind as u64) << KIND_SHIFT | place << PLACE_SHIFT
    }

    /// Other tests take places, too: the first free ones. These are the last of a kind.
    #[test]
    fn places_of_another_process_are_taken_together_or_not_at_all() {
        let last = PER_KIND as u64 - 1;
        let rsp = |place, serial| handle_at(HandleType::Rsp, place, serial);
        let cno = handle_at(HandleType::Cno, last, 1);
        let both = [rsp(last, 5), cno, rsp(last - 2, 1 << 30)];
        let first = Withdrawn::reserve(both.into_iter()).expect("free places");
        assert!(both.iter().all(|handle| first.contains(*handle)));
        // One place is in use, so the other one stays free.
        let two = [rsp(last - 1, 6), rsp(last, 7)];
        assert_eq!(Withdrawn::reserve(two.into_iter()).err(), Some(two[1]));
        // The places of the kinds before the refused one are free again.
        let kinds = [rsp(last - 1, 8), cno];
        assert_eq!(Withdrawn::reserve(kinds.into_iter()).err(), Some(cno));
        let one = rsp(last - 1, 9);
        let one_alone = Withdrawn::reserve([one].into_iter());
        assert!(one_alone.is_ok_and(|taken| taken.contains(one)));
        drop(first);
        let again = Withdrawn::reserve(both.into_iter()).expect("free places");
        assert!(both.iter().all(|handle| again.contains(*handle)));
    }

    #[test]
    fn numbers_that_no_process_gives_out_as_handles_are_refused() {
        let place = PER_KIND as u64 - 9;
        let rmr = handle_at(HandleType::Rmr, place, 1);
        let no_kind = OURS | 11 << KIND_SHIFT | place << PLACE_SHIFT;
        let (last, beyond) = (SERIALS - 1, handle_at(HandleType::Rmr, place + 1, SERIALS));
        for wrong in [
            0,
            1,
            rmr & !OURS,
            rmr | 1,
            no_kind,
            fresh_number(),
            OURS,
            beyond,
        ] {
            let all = [rmr, wrong].into_iter();
            assert_eq!(Withdrawn::reserve(all).err(), Some(wrong), "{wrong:#x}");
        }
        let twice = [rmr, rmr | 1 << SERIAL_SHIFT << 1];
        assert_eq!(Withdrawn::reserve(twice.into_iter()).err(), Some(twice[1]));
        assert!(Withdrawn::reserve([rmr].into_iter()).is_ok());
        // A refused or dropped reservation passes no serial number.
        let rmr = handle_at(HandleType::Rmr, place, last);
        assert!(Withdrawn::reserve([rmr].into_iter()).is_ok());
        assert!(next_serial() < last);
    }

    #[test]
    fn no_later_handle_has_a_serial_number_that_was_passed() {
        pass_serials(1 << 30);
        assert!(serial_of(fresh_number()) >= 1 << 30);
        // A number that no process has used up does not use them up here.
        pass_serials(0);
        assert!(serial_of(fresh_number()) > 1 << 30);
    }

    #[test]
    fn a_handle_goes_through_a_key_and_comes_back() {
        for handle in [
            0,
            OURS | 0x0016_0840_0fe0,
            0x8000_0017_0840_0fe0,
            !0 << ZERO_BITS,
        ] {
            let (key, ia) = EpHandle::from_raw(as_key(handle), 0).to_raw();
            assert_eq!((of_key(key), ia), (handle, 0), "{handle:#x}");
        }
    }
}
