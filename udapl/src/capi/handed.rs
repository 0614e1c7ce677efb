//! `dat_ia_park`, `dat_ia_resume` and the calls around them: an IA that goes on in the program's next process. DAT 1.2
//! has no such calls. [`handover`] documents them.
//!
//! A parked IA, a receiver and an offer are objects of the process and of no IA. Their handles are numbers in a map. A
//! call takes the object out of its entry, and puts it back if the program still has it afterwards. Otherwise the entry
//! goes. So two calls never use an object at a time, and a used one is a handle of nothing. A call that makes an object
//! makes the entry first, so that nothing is parked or received for which there is no room.
//!
//! | object | made by | ends with |
//! |---|---|---|
//! | parked IA | `dat_ia_park`, `dat_parked_create` | `dat_ia_resume` or `dat_parked_send`, if they succeed |
//! | receiver | `dat_receiver_await` | `dat_parked_send` |
//! | offer | `dat_offer_receive` | `dat_offer_adopt`, if it succeeds, or `dat_offer_refuse` |
//! | any of them | | `dat_handover_free` |

// UNSAFETY: reads and writes through pointers of a C program, and duplicates its descriptors.
#![expect(unsafe_code, reason = "the caller's pointers and descriptors")]

use core::ffi::{CStr, c_char, c_int, c_void};
use core::time::Duration;
use std::collections::btree_map::Entry as Place;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::CString;
use std::io::Error;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};

use dat_core::{DatError, DatResult, ReturnType, Subtype};
use driver::handover::{MAX_DESCRIPTORS, MAX_SNAPSHOT};
use driver::{Clock, Instant, NamedFd, RealClock};

use super::adapter::guard;
use super::answer::call;
use super::argument::{as_count, bytes, count, given, put};
use super::call::look_up;
use super::error::{handle_error, internal, parameter, state};
use super::fork::{is_child, not_a_child};
use super::ia::OUT_OF_SCOPE;
use super::last_error::because_of;
use super::parking::{self, Prepared};
use super::table::{IaName, fresh_number, handle_of, number};
use super::types::{CNamedFd, DatCount, DatHandle, DatReturn};
use crate::handover::{
    self, HandoverError, MAX_WORDS, NotAdopted, NotGiven, NotResumed, Offer, Parked, Receiver,
    ResumeFailure, Resumed, Sent, Undecided,
};

/// `DAT_TIMEOUT_INFINITE`.
const INFINITE: u32 = u32::MAX;
/// Stands for a time without end.
const VERY_LONG: Duration = Duration::from_secs(365 * 24 * 3600);
/// Number of parked IAs, receivers and offers that a process may have.
const MOST_OBJECTS: usize = 64;
/// Lowest number of a duplicated descriptor: above those of standard input, output and error.
const LOWEST_FD: c_int = 3;

/// A parked IA, with the names of its descriptors as C strings.
struct Bundle {
    parked: Parked,
    names: Vec<CString>,
}

impl Bundle {
    fn new(parked: Parked) -> Self {
        Self::again(parked, Vec::new())
    }

    /// Makes a bundle of the contents of another one. The program may have pointers to its names, so those are kept.
    fn again(parked: Parked, names: Vec<CString>) -> Self {
        let mut before: BTreeSet<CString> = names.into_iter().collect();
        let names = parked.descriptors.iter().map(|named| {
            // A name is ASCII, or the snapshot refuses it later.
            let name = CString::new(named.name.as_str()).unwrap_or_default();
            before.take(name.as_c_str()).unwrap_or(name)
        });
        Self {
            names: names.collect(),
            parked,
        }
    }
}

/// An object of these calls.
enum Handed {
    Parked(Bundle),
    /// A parked IA that was sent, and of which this process does not know who has it.
    Undecided(Vec<u8>, Vec<CString>, Box<Undecided>),
    Receiver(Receiver),
    Offer(Box<Offer>),
    /// An offer that this process has claimed, and with which it did not go on. The device is unchanged.
    Claimed(Bundle),
}

/// Objects by number. An entry without an object is that of an object that a call uses or makes.
static OBJECTS: Mutex<BTreeMap<u64, Option<Handed>>> = Mutex::new(BTreeMap::new());

fn objects() -> MutexGuard<'static, BTreeMap<u64, Option<Handed>>> {
    OBJECTS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// An entry whose object is used or made. Dropping this value removes the entry.
struct Entry(u64);

impl Entry {
    /// Makes an entry for a new object.
    ///
    /// # Errors
    /// DAT_INSUFFICIENT_RESOURCES: the process has [`MOST_OBJECTS`].
    fn new() -> DatResult<Self> {
        let mut objects = objects();
        if objects.len() >= MOST_OBJECTS {
            return Err(lacking(
                "the process has too many parked IAs, receivers and offers",
            ));
        }
        loop {
            let number = fresh_number();
            if let Place::Vacant(place) = objects.entry(number) {
                place.insert(None);
                return Ok(Self(number));
            }
        }
    }

    /// Puts the object into its entry, and returns its handle.
    fn put(self, object: Handed) -> DatHandle {
        let number = self.0;
        objects().insert(number, Some(object));
        core::mem::forget(self);
        handle_of(number)
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        objects().remove(&self.0);
    }
}

/// Takes the object of a handle out, if `is_its` accepts it.
///
/// # Errors
/// DAT_INVALID_HANDLE with the subtype of the argument.
fn take(
    handle: DatHandle,
    argument: Subtype,
    is_its: impl FnOnce(&Handed) -> bool,
) -> DatResult<(Entry, Handed)> {
    // A child of fork(2) has no objects, and a thread that does not exist there may hold the lock.
    if is_child() {
        return Err(handle_error(argument));
    }
    let number = number(handle);
    let mut objects = objects();
    let entry = objects.get_mut(&number);
    let object = entry.and_then(|entry| entry.take_if(|object| is_its(object)));
    let object = object.ok_or(handle_error(argument))?;
    Ok((Entry(number), object))
}

const fn is_parked(object: &Handed) -> bool {
    match object {
        Handed::Parked(_) | Handed::Undecided(..) => true,
        Handed::Receiver(_) | Handed::Offer(_) | Handed::Claimed(_) => false,
    }
}

const fn is_receiver(object: &Handed) -> bool {
    matches!(object, Handed::Receiver(_))
}

const fn is_offer(object: &Handed) -> bool {
    match object {
        Handed::Offer(_) | Handed::Claimed(_) => true,
        Handed::Parked(_) | Handed::Undecided(..) | Handed::Receiver(_) => false,
    }
}

/// Returns DAT_INSUFFICIENT_RESOURCES with a reason.
const fn lacking(why: &'static str) -> DatError {
    DatError::new(ReturnType::InsufficientResources, Subtype::ResourceMemory).because(why)
}

/// Converts an error of a handover.
fn handover_error(error: &HandoverError, why: &'static str) -> DatError {
    let code = if matches!(error, HandoverError::Silent { .. }) {
        DatError::new(ReturnType::TimeoutExpired, Subtype::None).because(why)
    } else if matches!(error, HandoverError::Peer { .. }) {
        DatError::new(ReturnType::PrivilegesViolation, Subtype::None).because(why)
    } else {
        state(why)
    };
    tracing::warn!(%error, "{why}");
    because_of(code, error)
}

/// Converts the reason of a resumption that was refused. A snapshot that cannot be read is a wrong argument.
fn resume_error(error: &ResumeFailure, is_over: bool) -> DatError {
    let why = if is_over {
        "the IA is not resumed, and its device is stopped"
    } else {
        "the IA is not resumed"
    };
    let code = match error {
        ResumeFailure::Format(_) => parameter(Subtype::Arg1).because(why),
        ResumeFailure::Instance(_)
        | ResumeFailure::OfAdapter { .. }
        | ResumeFailure::Adapters { .. }
        | ResumeFailure::Name { .. }
        | ResumeFailure::Words { .. } => state(why),
    };
    because_of(code, error)
}

/// Returns the end of a time limit in microseconds.
fn deadline(timeout: u32) -> Instant {
    let limit = match timeout {
        INFINITE => VERY_LONG,
        micros => Duration::from_micros(micros.into()),
    };
    RealClock::new().now() + limit
}

/// Duplicates a descriptor of the program.
///
/// # Safety
/// No other thread closes the descriptor before this returns.
unsafe fn duplicate(fd: c_int, argument: Subtype) -> DatResult<OwnedFd> {
    // SAFETY: this command of fcntl(2) reads and writes no memory of the process, and fails if the number is that of no
    // descriptor.
    let copy = unsafe { libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, LOWEST_FD) };
    if copy < 0 {
        let error = Error::last_os_error();
        let why = "a descriptor cannot be duplicated";
        let refused = match error.raw_os_error() {
            Some(libc::EMFILE | libc::ENFILE) => lacking(why),
            Some(_) | None => parameter(argument).because(why),
        };
        return Err(because_of(refused, &error));
    }
    // SAFETY: fcntl(2) has just made this descriptor, so it is open and nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(copy) })
}

/// Writes the handles of a resumed IA.
///
/// # Safety
/// The pointers are null or point to handles.
unsafe fn show(
    (ia, evd): (DatHandle, Option<DatHandle>),
    async_evd_handle: *mut DatHandle,
    ia_handle: *mut DatHandle,
) {
    // SAFETY: contract ROOM.
    unsafe { put(async_evd_handle, evd.unwrap_or(handle_of(OUT_OF_SCOPE))) };
    // SAFETY: contract ROOM.
    unsafe { put(ia_handle, ia) };
}

/// Parks an IA. If it succeeds, all handles of the IA are invalid, and the device goes on with its work.
///
/// # Safety
/// `state` is null or points to `state_size` bytes. `parked` is null or points to a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dat_ia_park(
    ia_handle: DatHandle,
    state_size: DatCount,
    state: *const c_void,
    parked: *mut DatHandle,
) -> DatReturn {
    call(|| {
        look_up::<IaName>(ia_handle)?;
        given(parked, Subtype::Arg4)?;
        // SAFETY: contract GIVEN.
        let own = unsafe { bytes(state_size, state, Subtype::Arg2, Subtype::Arg3) }?;
        if own.len() > MAX_WORDS {
            return Err(parameter(Subtype::Arg2).because("the program's own data is too long"));
        }
        let entry = Entry::new()?;
        let made = Bundle::new(parking::park(ia_handle, own)?);
        // SAFETY: contract ROOM.
        unsafe { put(parked, entry.put(Handed::Parked(made))) };
        Ok(())
    })
}

/// Returns the snapshot and the descriptors of a parked IA. They belong to it and are valid as long as it is.
///
/// # Safety
/// `fds` is null or points to `max_fds` elements. The other pointers are null or point to what the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dat_parked_query(
    parked: DatHandle,
    snapshot: *mut *const c_void,
    snapshot_size: *mut u64,
    max_fds: DatCount,
    fds: *mut CNamedFd,
    num_fds: *mut DatCount,
) -> DatReturn {
    call(|| {
        if is_child() {
            return Err(handle_error(Subtype::Handle1));
        }
        let objects = objects();
        let Some(Some(Handed::Parked(Bundle {
            parked:
                Parked {
                    snapshot: contents,
                    descriptors,
                },
            names,
        }))) = objects.get(&number(parked))
        else {
            return Err(handle_error(Subtype::Handle1));
        };
        let room = count(max_fds, Subtype::Arg4)?;
        if room != 0 {
            given(fds, Subtype::Arg5)?;
        }
        let all = names.iter().zip(descriptors);
        // CAST: widening, on every target that `types` allows.
        for (at, (name, NamedFd { fd, .. })) in all.take(room as usize).enumerate() {
            let told = CNamedFd {
                name: name.as_ptr(),
                fd: fd.as_raw_fd(),
            };
            // SAFETY: contract ROOM: `fds` has `room` elements.
            let place = unsafe { fds.add(at) };
            // SAFETY: likewise.
            unsafe { put(place, told) };
        }
        // SAFETY: contract ROOM.
        unsafe { put(snapshot, contents.as_ptr().cast()) };
        // SAFETY: contract ROOM.
        unsafe { put(snapshot_size, contents.len() as u64) };
        // SAFETY: contract ROOM.
        unsafe { put(num_fds, as_count(descriptors.len())) };
        Ok(())
    })
}

/// Makes a parked IA of a snapshot and descriptors. Copies the bytes and duplicates the descriptors.
///
/// # Safety
/// `snapshot` is null or points to `snapshot_size` bytes, and `fds` to `num_fds` elements, whose names are strings.
/// `parked` is null or points to a handle. Contract OPEN for the descriptors.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dat_parked_create(
    snapshot_size: u64,
    snapshot: *const c_void,
    num_fds: DatCount,
    fds: *const CNamedFd,
    parked: *mut DatHandle,
) -> DatReturn {
    call(|| {
        not_a_child()?;
        guard()?;
        if snapshot_size == 0 || snapshot_size > MAX_SNAPSHOT {
            return Err(parameter(Subtype::Arg1));
        }
        given(snapshot, Subtype::Arg2)?;
        // CAST: widening, on every target that `types` allows.
        let number_of_fds = count(num_fds, Subtype::Arg3)? as usize;
        if number_of_fds == 0 || number_of_fds > MAX_DESCRIPTORS {
            return Err(parameter(Subtype::Arg3));
        }
        given(fds, Subtype::Arg4)?;
        given(parked, Subtype::Arg5)?;
        // CAST: at most `MAX_SNAPSHOT`; pointers have 64 bits, as `types` asserts.
        #[expect(clippy::cast_possible_truncation, reason = "64-bit pointers only")]
        let length = snapshot_size as usize;
        // SAFETY: the pointer is not null, so by contract GIVEN it leads to so many bytes.
        let contents = unsafe { core::slice::from_raw_parts(snapshot.cast::<u8>(), length) };
        let entry = Entry::new()?;
        let mut copy = Vec::new();
        copy.try_reserve_exact(length)
            .map_err(|_| lacking("there is no memory for the snapshot"))?;
        copy.extend_from_slice(contents);
        // SAFETY: the pointer is not null, so by contract GIVEN it leads to so many elements.
        let list = unsafe { core::slice::from_raw_parts(fds, number_of_fds) };
        let mut descriptors = Vec::with_capacity(list.len());
        for named in list {
            given(named.name, Subtype::Arg4)?;
            // SAFETY: the pointer is not null, so by contract TEXT it leads to a string.
            let name = unsafe { CStr::from_ptr(named.name) };
            let name = name.to_str().map_err(|_| parameter(Subtype::Arg4))?;
            // SAFETY: contract OPEN.
            let fd = unsafe { duplicate(named.fd, Subtype::Arg4) }?;
            let name = name.to_owned();
            descriptors.push(NamedFd { name, fd });
        }
        let made = Bundle::new(Parked {
            snapshot: copy,
            descriptors,
        });
        // SAFETY: contract ROOM.
        unsafe { put(parked, entry.put(Handed::Parked(made))) };
        Ok(())
    })
}

/// An IA that goes on. Otherwise what is left of the object, and the reason.
type Step<L> = Result<(Resumed, Prepared), (Option<L>, DatError)>;

/// Goes on with a parked IA.
///
/// # Errors
/// The parked IA if the device is unchanged, and the reason.
#[expect(clippy::result_large_err, reason = "once in an adapter's life")]
fn resume(bundle: Bundle) -> Step<Bundle> {
    let Bundle {
        parked: Parked {
            snapshot,
            descriptors,
        },
        names,
    } = bundle;
    handover::resume_if(&snapshot, descriptors, Prepared::new).map_err(|refused| {
        let NotResumed { descriptors, error } = refused;
        let why = resume_error(&error, descriptors.is_none());
        let left = descriptors.map(|descriptors| {
            let parked = Parked {
                snapshot,
                descriptors,
            };
            Bundle::again(parked, names)
        });
        (left, why)
    })
}

/// Goes on with the IA of an object by `step`, and writes its handles. An object of which nothing is left is used up.
///
/// # Safety
/// The pointers are null or point to handles.
unsafe fn go_on(
    handle: DatHandle,
    is_its: impl FnOnce(&Handed) -> bool,
    step: impl FnOnce(Handed) -> Step<Handed>,
    async_evd_handle: *mut DatHandle,
    ia_handle: *mut DatHandle,
) -> DatReturn {
    call(|| {
        let (entry, object) = take(handle, Subtype::Handle1, is_its)?;
        if ia_handle.is_null() {
            entry.put(object);
            return Err(parameter(Subtype::Arg3));
        }
        let (resumed, prepared) = step(object).map_err(|(left, error)| {
            if let Some(left) = left {
                entry.put(left);
            }
            error
        })?;
        let handles = prepared.seat(resumed.ia)?;
        // SAFETY: contract PASSED ON.
        unsafe { show(handles, async_evd_handle, ia_handle) };
        Ok(())
    })
}

/// Returns the refusal of an object that the call does not take.
#[expect(clippy::result_large_err, reason = "once in an adapter's life")]
fn not_its(object: Handed) -> Step<Handed> {
    Err((Some(object), handle_error(Subtype::Handle1)))
}

/// Goes on with a parked IA, in this or in another process. All handles that the IA had are valid again.
///
/// # Safety
/// `async_evd_handle` and `ia_handle` are null or point to handles.
#[expect(clippy::result_large_err, reason = "once in an adapter's life")]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dat_ia_resume(
    parked: DatHandle,
    async_evd_handle: *mut DatHandle,
    ia_handle: *mut DatHandle,
) -> DatReturn {
    let step = |object| match object {
        Handed::Parked(bundle) => {
            resume(bundle).map_err(|(left, error)| (left.map(Handed::Parked), error))
        }
        Handed::Undecided(snapshot, names, undecided) => settle(snapshot, names, *undecided),
        other @ (Handed::Receiver(_) | Handed::Offer(_) | Handed::Claimed(_)) => not_its(other),
    };
    // SAFETY: contract PASSED ON.
    unsafe { go_on(parked, is_parked, step, async_evd_handle, ia_handle) }
}

/// Finds out who has a parked IA that was sent, and goes on with it if this process has it.
///
/// # Errors
/// What is left of the object, and the reason.
#[expect(clippy::result_large_err, reason = "once in an adapter's life")]
fn settle(snapshot: Vec<u8>, names: Vec<CString>, undecided: Undecided) -> Step<Handed> {
    match undecided.claim() {
        Err(NotGiven { descriptors, .. }) => {
            let parked = Parked {
                snapshot,
                descriptors,
            };
            resume(Bundle::again(parked, names))
                .map_err(|(left, error)| (left.map(Handed::Parked), error))
        }
        Ok(Sent {
            undecided: Some(undecided),
            ..
        }) => {
            let sentence = undecided.error.to_string();
            let left = Handed::Undecided(snapshot, names, undecided);
            Err((Some(left), because_of(state(UNDECIDED), &sentence)))
        }
        Ok(Sent { .. }) => Err((None, state("another process has claimed the IA"))),
    }
}

const UNDECIDED: &str = "it is not known whether the other process has the IA";

/// Returns the program's own bytes of an IA that was resumed. They are valid until the IA is closed or parked.
///
/// # Safety
/// `state_size` and `state` are null or point to what the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dat_ia_state(
    ia_handle: DatHandle,
    state_size: *mut DatCount,
    state: *mut *const c_void,
) -> DatReturn {
    call(|| {
        let (length, at) = parking::own_bytes(ia_handle)?;
        // SAFETY: contract ROOM.
        unsafe { put(state_size, as_count(length)) };
        // SAFETY: contract ROOM.
        unsafe { put(state, at.cast()) };
        Ok(())
    })
}

/// Waits at a connected UNIX stream socket until the next process is ready. Duplicates the socket.
///
/// # Safety
/// `receiver` is null or points to a handle. Contract OPEN for the socket.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dat_receiver_await(
    socket: c_int,
    timeout: u32,
    receiver: *mut DatHandle,
) -> DatReturn {
    call(|| {
        not_a_child()?;
        guard()?;
        given(receiver, Subtype::Arg3)?;
        // SAFETY: contract OPEN.
        let socket = unsafe { duplicate(socket, Subtype::Arg1) }?;
        let entry = Entry::new()?;
        let ready = handover::await_receiver(socket, deadline(timeout))
            .map_err(|error| handover_error(&error, "no process is ready for the IA"))?;
        // SAFETY: contract ROOM.
        unsafe { put(receiver, entry.put(Handed::Receiver(ready))) };
        Ok(())
    })
}

/// Hands a parked IA over to a receiver, which is used up in any case. If this succeeds, the other process has the IA.
#[unsafe(no_mangle)]
pub extern "C" fn dat_parked_send(
    parked: DatHandle,
    receiver: DatHandle,
    timeout: u32,
) -> DatReturn {
    call(|| {
        let (entry, object) = take(parked, Subtype::Handle1, is_parked)?;
        let Handed::Parked(bundle) = object else {
            entry.put(object);
            return Err(state(UNDECIDED));
        };
        let next = match take(receiver, Subtype::Handle2, is_receiver) {
            Ok((_used_up, Handed::Receiver(next))) => next,
            // Only receivers are taken.
            other @ (Ok(_) | Err(_)) => {
                entry.put(Handed::Parked(bundle));
                return Err(other.err().unwrap_or(handle_error(Subtype::Handle2)));
            }
        };
        let Bundle {
            parked: Parked {
                snapshot,
                descriptors,
            },
            names,
        } = bundle;
        match next.send(&snapshot, descriptors, deadline(timeout)) {
            Ok(Sent {
                undecided: Some(undecided),
                ..
            }) => {
                let sentence = undecided.error.to_string();
                entry.put(Handed::Undecided(snapshot, names, undecided));
                Err(because_of(state(UNDECIDED), &sentence))
            }
            Ok(Sent {
                unacknowledged: Some(error),
                ..
            }) => Err(because_of(
                internal("the other process has the IA, and has not reported success"),
                &error,
            )),
            Ok(Sent { .. }) => Ok(()),
            Err(kept) => {
                let NotGiven {
                    descriptors, error, ..
                } = kept;
                let kept = Parked {
                    snapshot,
                    descriptors,
                };
                entry.put(Handed::Parked(Bundle::again(kept, names)));
                Err(because_of(
                    state("the IA is not handed over: this process has it"),
                    &error,
                ))
            }
        }
    })
}

/// Reports at a connected UNIX stream socket that this process is ready, and waits for an IA. Duplicates the socket.
///
/// # Safety
/// `offer` is null or points to a handle. Contract OPEN for the socket.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dat_offer_receive(
    socket: c_int,
    timeout: u32,
    offer: *mut DatHandle,
) -> DatReturn {
    call(|| {
        not_a_child()?;
        guard()?;
        given(offer, Subtype::Arg3)?;
        // SAFETY: contract OPEN.
        let socket = unsafe { duplicate(socket, Subtype::Arg1) }?;
        let entry = Entry::new()?;
        let received = handover::receive(socket, deadline(timeout))
            .map_err(|error| handover_error(&error, "no IA was received"))?;
        // SAFETY: contract ROOM.
        unsafe { put(offer, entry.put(Handed::Offer(Box::new(received)))) };
        Ok(())
    })
}

/// Checks an offer, claims it, and goes on with the IA. All handles that the IA had are valid again.
///
/// # Safety
/// `async_evd_handle` and `ia_handle` are null or point to handles.
#[expect(clippy::result_large_err, reason = "once in an adapter's life")]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dat_offer_adopt(
    offer: DatHandle,
    async_evd_handle: *mut DatHandle,
    ia_handle: *mut DatHandle,
) -> DatReturn {
    let step = |object| match object {
        Handed::Offer(offer) => adopt(*offer),
        Handed::Claimed(bundle) => {
            resume(bundle).map_err(|(left, error)| (left.map(Handed::Claimed), error))
        }
        other @ (Handed::Parked(_) | Handed::Undecided(..) | Handed::Receiver(_)) => not_its(other),
    };
    // SAFETY: contract PASSED ON.
    unsafe { go_on(offer, is_offer, step, async_evd_handle, ia_handle) }
}

/// Adopts an offer.
///
/// # Errors
/// What is left of the object, and the reason.
#[expect(clippy::result_large_err, reason = "once in an adapter's life")]
fn adopt(offer: Offer) -> Step<Handed> {
    const CLAIM: &str = "the offer is not claimed";
    handover::adopt_if(offer, Prepared::new).map_err(|refused| match refused {
        NotAdopted::Refused { offer, error } => {
            (Some(Handed::Offer(offer)), resume_error(&error, false))
        }
        NotAdopted::Claim { offer, error } => {
            (offer.map(Handed::Offer), because_of(state(CLAIM), &error))
        }
        NotAdopted::Resume { parked, error } => {
            let why = resume_error(&error, parked.is_none());
            let left = parked.map(|parked| Handed::Claimed(Bundle::new(parked)));
            (left, why)
        }
    })
}

/// Refuses an offer, with a reason for the log of the process that has made it. That process can go on with the IA.
///
/// # Safety
/// `reason` is null or a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dat_offer_refuse(offer: DatHandle, reason: *const c_char) -> DatReturn {
    call(|| {
        let reason = if reason.is_null() {
            "no reason was given".into()
        } else {
            // SAFETY: the pointer is not null, so by contract TEXT it leads to a string.
            unsafe { CStr::from_ptr(reason) }.to_string_lossy()
        };
        match take(offer, Subtype::Handle1, is_offer)? {
            (_used_up, Handed::Offer(offer)) => {
                offer.claim.refuse(&reason);
                Ok(())
            }
            // Only offers are taken.
            (entry, claimed) => {
                entry.put(claimed);
                Err(state(
                    "this process has claimed the offer: dat_offer_adopt goes on with it, dat_handover_free ends it",
                ))
            }
        }
    })
}

/// Frees a parked IA, a receiver or an offer, and closes its descriptors. A parked IA's function is reset when its last
/// descriptor is closed. The process that has made an offer can go on with the IA.
#[unsafe(no_mangle)]
pub extern "C" fn dat_handover_free(handed: DatHandle) -> DatReturn {
    call(|| {
        let (entry, object) = take(handed, Subtype::Handle1, |_| true)?;
        // The object is over when its handle is invalid.
        drop(object);
        drop(entry);
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use core::ptr::{null, null_mut};
    use std::fs::File;

    use super::*;

    const INVALID_HANDLE: DatReturn = 0x8005_001a;
    const INVALID_STATE: DatReturn = 0x8007_0000;

    /// Returns a parked IA whose snapshot is none.
    fn bundle() -> Bundle {
        let file = File::open("/dev/null").expect("a file");
        Bundle::new(Parked {
            snapshot: b"no snapshot".to_vec(),
            descriptors: vec![NamedFd {
                name: "config".to_owned(),
                fd: file.into(),
            }],
        })
    }

    #[test]
    fn an_offer_that_was_claimed_is_adopted_again_or_freed_and_not_refused() {
        let offer = Entry::new().expect("room").put(Handed::Claimed(bundle()));
        let mut ia = null_mut();
        for _ in 0..2 {
            // SAFETY: contract ROOM for the handle.
            let adopted = unsafe { dat_offer_adopt(offer, null_mut(), &raw mut ia) };
            assert_eq!(adopted, parameter(Subtype::Arg1).code());
            // SAFETY: the reason is null.
            assert_eq!(unsafe { dat_offer_refuse(offer, null()) }, INVALID_STATE);
        }
        // SAFETY: contract ROOM for the handle.
        let resumed = unsafe { dat_ia_resume(offer, null_mut(), &raw mut ia) };
        assert_eq!(resumed, INVALID_HANDLE);
        assert_eq!(dat_handover_free(offer), 0);
        assert_eq!(dat_handover_free(offer), INVALID_HANDLE);
    }

    #[test]
    fn the_names_of_descriptors_stay_where_they_are_in_any_order() {
        let before = bundle();
        let at = before.names[0].as_ptr();
        let Bundle { mut parked, names } = before;
        let other = parked.descriptors[0].fd.try_clone().expect("a duplicate");
        let other = NamedFd {
            name: "another".to_owned(),
            fd: other,
        };
        parked.descriptors.insert(0, other);
        let after = Bundle::again(parked, names);
        assert_eq!(after.names[1].as_ptr(), at);
        assert_eq!(after.names[0].as_c_str(), c"another");
    }
}
