//! An adapter that outlives its process.
//!
//! [`park`] turns an instance, the only one of its adapter, into a [`Parked`]: bytes and descriptors. No command stops
//! the device, and it goes on with its work: it acknowledges, fills posted receives and writes completions. [`resume`]
//! makes an instance of the bytes and descriptors, in another process or in the same one. Handles, cookies, contexts
//! and memory addresses stay. Peers notice only a pause.
//!
//! An adapter with several instances is parked as a whole: [`park_all`] takes all of them, and [`resume_all`] and
//! [`adopt_all`] return as many, in the same order. The program's threads give their instances to the one that parks
//! them.
//!
//! A program with several adapters hands them over together: [`park_adapters`], [`adopt_adapters_if`]. All of them go
//! on, or none.
//!
//! The bytes and descriptors go to the next process over a UNIX socket ([`await_receiver`], [`receive`]), or by
//! systemd's descriptor store ([`check_store`], [`store`], [`take_stored`]). Module [`driver::handover`] describes the
//! protocol, and the rule by which only one process can have a handover. [`adopt`] follows that rule.
//!
//! The device goes on as long as there are receives and room for completions: [`Ia::reserve`] says how many, and the
//! log says it when the adapter is parked.
//!
//! A parked instance keeps its number, which is in all handles, and the first instance of each process has number 1. So
//! the next process adopts before it opens an adapter of its own.
//!
//! ```no_run
//! use std::os::fd::OwnedFd;
//! use udapl::handover::{self, Parked};
//! # fn deadline() -> driver::Instant { driver::Instant(0) }
//!
//! // The old process. It drops its own `DmaMemory` first: regions keep theirs.
//! fn give(ia: udapl::Ia, socket: OwnedFd) -> Result<(), Box<dyn std::error::Error>> {
//!     let next = handover::await_receiver(socket, deadline())?;
//!     let Parked {
//!         snapshot,
//!         descriptors,
//!     } = handover::park(ia, b"state of the program")?;
//!     if let Err(kept) = next.send(&snapshot, descriptors, deadline()) {
//!         // Nobody else has the function. This process goes on with it.
//!         kept.wait_for_receiver(deadline())?;
//!         let descriptors = kept.descriptors;
//!         handover::resume(Parked { snapshot, descriptors })?;
//!     }
//!     Ok(())
//! }
//!
//! // The new process, which is initialised as far as it goes without the card.
//! fn take(socket: OwnedFd) -> Result<udapl::Ia, Box<dyn std::error::Error>> {
//!     let resumed = handover::adopt(handover::receive(socket, deadline())?)?;
//!     assert_eq!(resumed.words, b"state of the program");
//!     Ok(resumed.ia)
//! }
//! ```
//!
//! A region's memory is that of the parked process, at the same address; [`Ia::lmr_memory`] returns it.
//!
//! The page `docs/decisions/parked-functions.md` of the repository lists what is refused, and what is not detected.

mod adapters;
mod format;

use std::fmt;
use std::sync::{Mutex, PoisonError};

use dat_core::UnclaimedIas;
use dat_core::{ParkError, ResumeError};
use dat_mlx::MlxProvider;
use driver::handover::{Claimed, NotTaken};
use thiserror::Error;

pub use adapters::MAX_ADAPTERS;
pub use dat_core::Reserve;
pub use driver::handover::{
    HandoverError, NotGiven, Offer, Receiver, Sent, StoredDescriptors, StoredRefusal, Undecided,
    await_receiver, check_store, receive, store, take_stored,
};
pub use driver::{NamedFd, ServiceManager};
pub use format::{FormatError, MAX_WORDS};

use crate::Ia;

/// The instances of an adapter, or of several, that were parked. A function is reset when the last duplicate of its
/// descriptors is closed.
#[derive(Debug)]
pub struct Parked {
    /// The snapshot. Its form has versions: another version of this library may refuse it.
    pub snapshot: Vec<u8>,
    /// The descriptors, with the names that the snapshot knows them by.
    pub descriptors: Vec<NamedFd>,
}

/// An instance that was resumed.
pub struct Resumed {
    /// The instance.
    pub ia: Ia,
    /// The program's own bytes, as [`park`] got them.
    pub words: Vec<u8>,
}

impl fmt::Debug for Resumed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut out = f.debug_struct("Resumed");
        out.field("adapter", &self.ia.provider().hca().name());
        out.field("words", &self.words.len())
            .finish_non_exhaustive()
    }
}

/// The instances of an adapter that were resumed.
pub struct ResumedAll {
    /// The instances, in the order in which [`park_all`] got them.
    pub ias: Vec<Ia>,
    /// The program's own bytes, as [`park_all`] got them.
    pub words: Vec<u8>,
}

impl ResumedAll {
    /// Returns the instance of a snapshot that has one.
    fn only(self) -> Resumed {
        let Self { mut ias, words } = self;
        // PANIC: `read` refuses several instances for calls that return one, and a snapshot without any is refused.
        let ia = ias.pop().expect("an instance");
        Resumed { ia, words }
    }
}

impl fmt::Debug for ResumedAll {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let adapter = self.ias.first().map(|ia| ia.provider().hca().name());
        let mut out = f.debug_struct("ResumedAll");
        out.field("adapter", &adapter);
        out.field("instances", &self.ias.len());
        out.field("words", &self.words.len())
            .finish_non_exhaustive()
    }
}

/// Adapters that were resumed together.
pub struct ResumedAdapters {
    /// The instances of each adapter, in the order in which [`park_adapters`] got them.
    pub adapters: Vec<Vec<Ia>>,
    /// The program's own bytes, as [`park_adapters`] got them.
    pub words: Vec<u8>,
}

impl ResumedAdapters {
    /// Returns the instances of a snapshot that has one adapter.
    fn only(self) -> ResumedAll {
        let Self {
            mut adapters,
            words,
        } = self;
        // PANIC: `read` refuses several adapters for calls that return one, and a snapshot without any is refused.
        let ias = adapters.pop().expect("an adapter");
        ResumedAll { ias, words }
    }
}

impl fmt::Debug for ResumedAdapters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let adapters = self.adapters.iter().flat_map(|ias| ias.first());
        let adapters: Vec<&str> = adapters.map(|ia| ia.provider().hca().name()).collect();
        let mut out = f.debug_struct("ResumedAdapters");
        out.field("adapters", &adapters);
        out.field("words", &self.words.len())
            .finish_non_exhaustive()
    }
}

/// Reasons why instances were not parked.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ParkFailure {
    /// The program's own bytes are too many.
    #[error("the program's own data has {bytes} bytes; a snapshot has room for {MAX_WORDS}")]
    Words {
        /// Their number.
        bytes: usize,
    },
    /// The adapters are too many.
    #[error("{count} adapters; a handover has room for {MAX_ADAPTERS}")]
    Adapters {
        /// Their number.
        count: usize,
    },
    /// The instances cannot be parked.
    #[error(transparent)]
    Instance(#[from] ParkError),
    /// The snapshot cannot be written.
    #[error(transparent)]
    Format(#[from] FormatError),
}

/// Instances that were not parked.
#[derive(Debug, Error)]
#[error("{error}")]
pub struct NotParked {
    /// The instances of each adapter. They are in a mutex because an `Ia` is not `Sync`, and an error must be.
    adapters: Mutex<Vec<Vec<Ia>>>,
    /// The reason.
    #[source]
    pub error: ParkFailure,
}

impl NotParked {
    fn new(adapters: Vec<Vec<Ia>>, error: ParkFailure) -> Self {
        let adapters = Mutex::new(adapters);
        Self { adapters, error }
    }

    /// Returns the instances, which go on, in the order in which they were given. If the last step of the parking was
    /// refused, earlier wakers, descriptors and [`Adapter`](crate::Adapter) values are of no use any more, and
    /// recorders and measurements begin anew. None if the instances could not go on: then
    /// their descriptors are closed, and the kernel resets the function.
    #[must_use]
    pub fn into_ias(self) -> Vec<Ia> {
        self.into_parts().0
    }

    /// Returns the instances, as [`NotParked::into_ias`], and the reason.
    #[must_use]
    pub fn into_parts(self) -> (Vec<Ia>, ParkFailure) {
        let (adapters, error) = self.into_adapters();
        (adapters.into_iter().flatten().collect(), error)
    }

    /// Returns the instances of each adapter that [`park_adapters`] got, in their order, and the reason. An adapter
    /// that could not go on has none.
    #[must_use]
    pub fn into_adapters(self) -> (Vec<Vec<Ia>>, ParkFailure) {
        let adapters = self.adapters.into_inner();
        let adapters = adapters.unwrap_or_else(PoisonError::into_inner);
        (adapters, self.error)
    }

    /// Returns the instance that [`park`] got, as [`NotParked::into_ias`]. `None` if it could not go on. Only for
    /// [`park`]: of the instances that [`park_all`] got, it closes all but the last.
    #[must_use]
    pub fn into_ia(self) -> Option<Ia> {
        self.into_ias().pop()
    }
}

/// Reasons why instances were not resumed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ResumeFailure {
    /// The bytes are not a snapshot that this library can read.
    #[error(transparent)]
    Format(#[from] FormatError),
    /// The snapshot is not that of this function as it is now.
    #[error(transparent)]
    Instance(#[from] ResumeError),
    /// The same, for one of several adapters.
    #[error("{name}: {error}")]
    OfAdapter {
        /// Name of the adapter.
        name: String,
        /// The reason.
        error: Box<ResumeError>,
    },
    /// The snapshot has several adapters, and the call returns one. Nothing was changed.
    #[error("the snapshot has {count} adapters; this call goes on with one")]
    Adapters {
        /// Their number.
        count: usize,
    },
    /// A descriptor has no number of an adapter in its name, or that of none. Nothing was changed.
    #[error("descriptor {name:?} is of none of the adapters")]
    Name {
        /// The name.
        name: String,
    },
    /// The program's own bytes are refused. Nothing was changed.
    #[error("the program's own data: {why}")]
    Words {
        /// The reason.
        why: String,
    },
}

/// Reasons why an offer was not adopted.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum NotAdopted {
    /// The snapshot cannot be read, or it is not that of these descriptors, or this process cannot have the instances:
    /// an address or the number of an instance is in use, or the call adopts one and there are several. The offer is
    /// unchanged.
    #[error("the offer is refused: {error}")]
    Refused {
        /// The offer. If the caller refuses or drops its claim, the process that has parked the instances can go on
        /// with them, and a stored offer stays in the store. If the caller takes the claim and drops the descriptors,
        /// the function is reset, and can be opened as usual.
        offer: Box<Offer>,
        /// The reason.
        #[source]
        error: ResumeFailure,
    },
    /// The offer was not claimed.
    #[error("the offer is not claimed: {error}")]
    Claim {
        /// The offer, if the claim can be repeated: the service manager has not answered. `None` if another process has
        /// claimed it.
        offer: Option<Box<Offer>>,
        /// The reason.
        #[source]
        error: HandoverError,
    },
    /// The instances were not resumed after the offer was claimed.
    #[error("the instance is not resumed: {error}")]
    Resume {
        /// The offer's snapshot and descriptors, if no device has changed: the caller can repeat [`resume_adapters`].
        /// If they are dropped, or there are none, the function is reset as soon as the process that has parked it
        /// has closed its descriptors, too, and can then be opened as usual.
        parked: Option<Parked>,
        /// The reason.
        #[source]
        error: ResumeFailure,
    },
}

/// Instances that were not resumed.
#[derive(Debug, Error)]
#[error("{error}")]
pub struct NotResumed {
    /// The descriptors, if no device has changed. `None` if the device was stopped, or the first of several adapters
    /// had already gone on.
    pub descriptors: Option<Vec<NamedFd>>,
    /// The reason.
    #[source]
    pub error: ResumeFailure,
}

/// Parks an instance, the only one of its adapter. `words` are the program's own bytes, at most [`MAX_WORDS`].
/// [`resume`] and [`adopt`] return them.
///
/// The program first drops its own clones of DMA memory, ends threads that wait in the instance, and removes agents,
/// watchers and keepers.
///
/// # Errors
/// [`NotParked`], with the instance and the reason.
pub fn park(ia: Ia, words: &[u8]) -> Result<Parked, NotParked> {
    park_all(vec![ia], words)
}

/// Parks all instances of an adapter together, as [`park`] does with one; at most
/// [`MAX_INSTANCES`](dat_core::MAX_INSTANCES). [`resume_all`] and [`adopt_all`] return them in the order of `ias`.
///
/// # Errors
/// [`NotParked`], with the instances and the reason. [`ParkError::Instances`], [`ParkError::OtherAdapter`],
/// [`ParkError::NoInstance`]: an instance of the adapter is missing from the list, one is of another adapter, or the
/// list is empty.
pub fn park_all(ias: Vec<Ia>, words: &[u8]) -> Result<Parked, NotParked> {
    park_adapters(vec![ias], words)
}

/// Parks several adapters together, as [`park_all`] does with one; at most [`MAX_ADAPTERS`]. [`resume_adapters`] and
/// [`adopt_adapters_if`] return them in the order of `adapters`.
///
/// # Errors
/// As [`park_all`]. The adapters that were parked before the one that is refused go on, too.
pub fn park_adapters(adapters: Vec<Vec<Ia>>, words: &[u8]) -> Result<Parked, NotParked> {
    let (bytes, count) = (words.len(), adapters.len());
    if bytes > MAX_WORDS {
        return Err(NotParked::new(adapters, ParkFailure::Words { bytes }));
    }
    if count == 0 {
        return Err(NotParked::new(adapters, ParkError::NoInstance.into()));
    }
    if count > MAX_ADAPTERS {
        return Err(NotParked::new(adapters, ParkFailure::Adapters { count }));
    }
    let (mut snapshots, mut descriptors) = (Vec::new(), Vec::new());
    let mut waiting = adapters.into_iter();
    let mut reserves = Vec::new();
    while let Some(ias) = waiting.next() {
        reserves.push(Reserve::least(ias.iter().map(Ia::reserve)));
        match Ia::park_all(ias) {
            Ok((snapshot, handover)) => {
                snapshots.push(snapshot);
                descriptors.push(handover);
            }
            Err(refused) => {
                let mut all = adapters::take_back(&snapshots, descriptors);
                all.push(refused.ias);
                all.extend(waiting);
                return Err(NotParked::new(all, refused.error.into()));
            }
        }
    }
    match format::write(&snapshots, words) {
        Ok(snapshot) => {
            for (parked, reserve) in snapshots.iter().zip(reserves) {
                let adapter = &parked.adapter.limits.adapter_name;
                let Reserve { recvs, completions } = reserve;
                tracing::info!(%adapter, ?recvs, ?completions, "parked: the device goes on by itself");
            }
            Ok(Parked {
                snapshot,
                descriptors: adapters::join(descriptors),
            })
        }
        Err(error) => {
            let all = adapters::take_back(&snapshots, descriptors);
            Err(NotParked::new(all, error.into()))
        }
    }
}

/// Checks an offer as far as that changes nothing, claims it, and goes on with the instance in it. The process that has
/// made the offer learns the outcome.
///
/// # Errors
/// [`NotAdopted`].
pub fn adopt(offer: Offer) -> Result<Resumed, NotAdopted> {
    adopt_if(offer, |_| Ok(())).map(|(resumed, ())| resumed)
}

/// Does the same as [`adopt`] with all instances in the offer.
///
/// # Errors
/// [`NotAdopted`].
pub fn adopt_all(offer: Offer) -> Result<ResumedAll, NotAdopted> {
    adopt_all_if(offer, |_| Ok(())).map(|(resumed, ())| resumed)
}

/// Does the same as [`adopt_all`], if `may` accepts the program's own bytes. It comes before all checks. So a program
/// makes of them what it needs before it claims the offer, and a state that it cannot use is refused. Returns the
/// result of `may`, too.
///
/// # Errors
/// [`NotAdopted`]. The error of `may` is the reason of a [`ResumeFailure::Words`].
pub fn adopt_all_if<T>(
    offer: Offer,
    may: impl FnOnce(&[u8]) -> Result<T, String>,
) -> Result<(ResumedAll, T), NotAdopted> {
    let (resumed, accepted) = adopt_some(offer, Wanted::All, may)?;
    Ok((resumed.only(), accepted))
}

/// Does the same as [`adopt_all_if`] with all adapters in the offer. If one of them does not go on after the claim, the
/// others are closed.
///
/// # Errors
/// [`NotAdopted`], as [`adopt_all_if`].
pub fn adopt_adapters_if<T>(
    offer: Offer,
    may: impl FnOnce(&[u8]) -> Result<T, String>,
) -> Result<(ResumedAdapters, T), NotAdopted> {
    adopt_some(offer, Wanted::Adapters, may)
}

/// The instances that a call returns.
#[derive(Clone, Copy)]
enum Wanted {
    /// The only one. A snapshot with several instances is refused.
    One,
    /// All of the only adapter. A snapshot with several adapters is refused.
    All,
    /// All of all adapters.
    Adapters,
}

/// Does the same as [`adopt`], if `may` accepts the program's own bytes. It comes before all checks
/// but that of the number of instances. Returns its result, too.
///
/// # Errors
/// [`NotAdopted`]. The error of `may` is the reason of a [`ResumeFailure::Words`].
pub(crate) fn adopt_if<T>(
    offer: Offer,
    may: impl FnOnce(&[u8]) -> Result<T, String>,
) -> Result<(Resumed, T), NotAdopted> {
    let (all, accepted) = adopt_some(offer, Wanted::One, may)?;
    Ok((all.only().only(), accepted))
}

fn adopt_some<T>(
    offer: Offer,
    wanted: Wanted,
    may: impl FnOnce(&[u8]) -> Result<T, String>,
) -> Result<(ResumedAdapters, T), NotAdopted> {
    let (tables, words, accepted) = match read(&offer.snapshot, wanted, may) {
        Ok(read) => read,
        Err(error) => {
            let offer = Box::new(offer);
            return Err(NotAdopted::Refused { offer, error });
        }
    };
    let Offer {
        snapshot,
        descriptors,
        claim,
    } = offer;
    let again = |snapshot, descriptors, claim| {
        Box::new(Offer {
            snapshot,
            descriptors,
            claim,
        })
    };
    let unclaimed = match adapters::check(&tables, descriptors) {
        Ok(unclaimed) => unclaimed,
        Err((descriptors, error)) => {
            let offer = again(snapshot, descriptors, claim);
            return Err(NotAdopted::Refused { offer, error });
        }
    };
    let claimed = match claim.take() {
        Ok(claimed) => claimed,
        Err(NotTaken { claim, error }) => {
            let parts = unclaimed.into_iter().map(UnclaimedIas::give_back);
            let descriptors = adapters::join(parts.collect());
            let offer = claim.map(|claim| again(snapshot, descriptors, claim));
            return Err(NotAdopted::Claim { offer, error });
        }
    };
    match adapters::go_on(&tables, unclaimed, &claimed) {
        Ok(adapters) => {
            claimed.end(Ok(()));
            Ok((ResumedAdapters { adapters, words }, accepted))
        }
        Err((descriptors, error)) => {
            claimed.end(Err(&error.to_string()));
            let parked = descriptors.map(|descriptors| Parked {
                snapshot,
                descriptors,
            });
            Err(NotAdopted::Resume { parked, error })
        }
    }
}

/// Goes on with an instance that this or another process has parked. The caller makes sure that no other process goes
/// on with it. [`adopt`] does that for an offer.
///
/// # Errors
/// [`NotResumed`] with the reason: the bytes are of another version, or damaged; another function; rings or counters
/// that disagree with the snapshot; a device that died or was reset meanwhile.
pub fn resume(parked: Parked) -> Result<Resumed, NotResumed> {
    let Parked {
        snapshot,
        descriptors,
    } = parked;
    resume_if(&snapshot, descriptors, |_| Ok(())).map(|(resumed, ())| resumed)
}

/// Does the same as [`resume`] with all instances that were parked together.
///
/// # Errors
/// [`NotResumed`].
pub fn resume_all(parked: Parked) -> Result<ResumedAll, NotResumed> {
    let Parked {
        snapshot,
        descriptors,
    } = parked;
    let resumed = resume_some(&snapshot, descriptors, Wanted::All, |_| Ok(()));
    resumed.map(|(resumed, ())| resumed.only())
}

/// Does the same as [`resume`] with all adapters that were parked together.
///
/// # Errors
/// [`NotResumed`].
pub fn resume_adapters(parked: Parked) -> Result<ResumedAdapters, NotResumed> {
    let Parked {
        snapshot,
        descriptors,
    } = parked;
    let resumed = resume_some(&snapshot, descriptors, Wanted::Adapters, |_| Ok(()));
    resumed.map(|(resumed, ())| resumed)
}

/// Goes on with adapters that this process has parked itself, and that no other process has got. Unlike
/// [`resume_adapters`], each goes on for itself. An adapter that cannot has no instances in the result: its descriptors
/// are closed, the kernel resets the function, and the log has the reason.
///
/// # Errors
/// [`NotResumed`]: these are not the bytes and descriptors of [`park_adapters`].
pub fn take_back(parked: Parked) -> Result<Vec<Vec<Ia>>, NotResumed> {
    let Parked {
        snapshot,
        descriptors,
    } = parked;
    let given = |descriptors, error| NotResumed { descriptors, error };
    let (tables, _) = match format::read::<MlxProvider>(&snapshot) {
        Ok(read) => read,
        Err(error) => return Err(given(Some(descriptors), error.into())),
    };
    adapters::take_back_all(&tables, descriptors)
        .map_err(|(descriptors, error)| given(Some(descriptors), error))
}

/// Does the same as [`resume`], if `may` accepts the program's own bytes. It comes before all checks
/// but that of the number of instances. Returns its result, too.
///
/// # Errors
/// [`NotResumed`]. The error of `may` is the reason of a [`ResumeFailure::Words`].
pub(crate) fn resume_if<T>(
    snapshot: &[u8],
    descriptors: Vec<NamedFd>,
    may: impl FnOnce(&[u8]) -> Result<T, String>,
) -> Result<(Resumed, T), NotResumed> {
    let (all, accepted) = resume_some(snapshot, descriptors, Wanted::One, may)?;
    Ok((all.only().only(), accepted))
}

fn resume_some<T>(
    snapshot: &[u8],
    descriptors: Vec<NamedFd>,
    wanted: Wanted,
    may: impl FnOnce(&[u8]) -> Result<T, String>,
) -> Result<(ResumedAdapters, T), NotResumed> {
    let (tables, words, accepted) = match read(snapshot, wanted, may) {
        Ok(read) => read,
        Err(error) => {
            return Err(NotResumed {
                descriptors: Some(descriptors),
                error,
            });
        }
    };
    let resumed = adapters::check(&tables, descriptors)
        .map_err(|(descriptors, error)| (Some(descriptors), error))
        .and_then(|unclaimed| adapters::go_on(&tables, unclaimed, &Claimed::by_caller()));
    match resumed {
        Ok(adapters) => Ok((ResumedAdapters { adapters, words }, accepted)),
        Err((descriptors, error)) => Err(NotResumed { descriptors, error }),
    }
}

/// Reads a snapshot with the program's own bytes, and lets `may` check these.
///
/// # Errors
/// The bytes cannot be read or are refused, or one instance or adapter is wanted and there are several.
fn read<T>(
    snapshot: &[u8],
    wanted: Wanted,
    may: impl FnOnce(&[u8]) -> Result<T, String>,
) -> Result<(Vec<adapters::Snapshot>, Vec<u8>, T), ResumeFailure> {
    let (tables, words) = format::read::<MlxProvider>(snapshot)?;
    match (wanted, tables.as_slice()) {
        (Wanted::One, [one]) if one.instances.len() > 1 => {
            let count = one.instances.len();
            return Err(ResumeError::Instances { count }.into());
        }
        (Wanted::One | Wanted::All, [_]) | (Wanted::Adapters, _) => {}
        (Wanted::One | Wanted::All, several) => {
            let count = several.len();
            return Err(ResumeFailure::Adapters { count });
        }
    }
    let accepted = may(&words).map_err(|why| ResumeFailure::Words { why })?;
    Ok((tables, words, accepted))
}
