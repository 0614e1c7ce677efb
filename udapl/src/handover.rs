//! An adapter that outlives its process.
//!
//! [`park`] turns an instance, the only one of its adapter, into a [`Parked`]: bytes and descriptors. No command stops
//! the device, and it goes on with its work: it acknowledges, fills posted receives and writes completions. [`resume`]
//! makes an instance of the bytes and descriptors, in another process or in the same one. Handles, cookies, contexts
//! and memory addresses stay. Peers notice only a pause.
//!
//! The bytes and descriptors go to the next process over a UNIX socket ([`await_receiver`], [`receive`]), or by
//! systemd's descriptor store ([`store`], [`take_stored`]). Module [`driver::handover`] describes the protocol, and the
//! rule by which only one process can have a handover. [`adopt`] follows that rule.
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

mod format;

use std::fmt;
use std::sync::{Mutex, PoisonError};

use dat_core::snapshot::IaSnapshot;
use dat_core::{ParkError, ResumeError};
use dat_mlx::MlxProvider;
use driver::NamedFd;
use driver::handover::{Claimed, NotTaken};
use thiserror::Error;

pub use driver::ServiceManager;
pub use driver::handover::{
    HandoverError, NotGiven, Offer, Receiver, Sent, StoredDescriptors, StoredRefusal, Undecided,
    await_receiver, receive, store, take_stored,
};
pub use format::{FormatError, MAX_WORDS};

use crate::Ia;

/// An instance that was parked. Its function is reset when the last duplicate of its descriptors is closed.
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

/// Reasons why an instance was not parked.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ParkFailure {
    /// The program's own bytes are too many.
    #[error("the program's own data has {bytes} bytes; a snapshot has room for {MAX_WORDS}")]
    Words {
        /// Their number.
        bytes: usize,
    },
    /// The instance cannot be parked.
    #[error(transparent)]
    Instance(#[from] ParkError),
    /// The snapshot cannot be written.
    #[error(transparent)]
    Format(#[from] FormatError),
}

/// An instance that was not parked.
#[derive(Debug, Error)]
#[error("{error}")]
pub struct NotParked {
    /// The instance. It is in a mutex because an `Ia` is not `Sync`, and an error must be.
    ia: Mutex<Option<Box<Ia>>>,
    /// The reason.
    #[source]
    pub error: ParkFailure,
}

impl NotParked {
    fn new(ia: Option<Ia>, error: ParkFailure) -> Self {
        let ia = Mutex::new(ia.map(Box::new));
        Self { ia, error }
    }

    /// Returns the instance, which goes on. If the last step of the parking was refused, earlier wakers, descriptors
    /// and [`Adapter`](crate::Adapter) values are of no use any more, and the recorder and measurements begin anew.
    /// `None` if the instance could not go on; its device is stopped then.
    #[must_use]
    pub fn into_ia(self) -> Option<Ia> {
        let ia = self.ia.into_inner();
        ia.unwrap_or_else(PoisonError::into_inner).map(|ia| *ia)
    }
}

/// Reasons why an instance was not resumed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ResumeFailure {
    /// The bytes are not a snapshot that this library can read.
    #[error(transparent)]
    Format(#[from] FormatError),
    /// The snapshot is not that of this function as it is now.
    #[error(transparent)]
    Instance(#[from] ResumeError),
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
    /// The snapshot cannot be read, or it is not that of these descriptors, or this process cannot have the instance:
    /// an address or the number of the instance is in use. The offer is unchanged.
    #[error("the offer is refused: {error}")]
    Refused {
        /// The offer. If the caller refuses or drops its claim, the process that has parked the instance can go on with
        /// it, and a stored offer stays in the store. If the caller takes the claim and drops the descriptors, the
        /// function is reset, and can be opened as usual.
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
    /// The instance was not resumed after the offer was claimed.
    #[error("the instance is not resumed: {error}")]
    Resume {
        /// The offer's snapshot and descriptors, if the device is unchanged: the caller can repeat [`resume`]. If
        /// they are dropped, or there are none, the function is reset as soon as the process that has parked it has
        /// closed its descriptors, too, and can then be opened as usual.
        parked: Option<Parked>,
        /// The reason.
        #[source]
        error: ResumeFailure,
    },
}

/// An instance that was not resumed.
#[derive(Debug, Error)]
#[error("{error}")]
pub struct NotResumed {
    /// The descriptors, if the device is unchanged. `None` if the device was stopped.
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
    let bytes = words.len();
    if bytes > MAX_WORDS {
        return Err(NotParked::new(Some(ia), ParkFailure::Words { bytes }));
    }
    let (snapshot, descriptors) = match ia.park() {
        Ok(parked) => parked,
        Err(refused) => return Err(NotParked::new(refused.ia, refused.error.into())),
    };
    match format::write(&snapshot, words) {
        Ok(snapshot) => Ok(Parked {
            snapshot,
            descriptors,
        }),
        Err(error) => {
            let ia = Ia::resume(&snapshot, descriptors, &Claimed::by_caller());
            let ia = ia.inspect_err(|refused| {
                let error = &refused.error;
                tracing::error!(%error, "an instance that was not parked cannot go on");
            });
            Err(NotParked::new(ia.ok(), error.into()))
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

/// Does the same as [`adopt`], if `may` accepts the program's own bytes. It comes before all other checks. Returns its
/// result, too.
///
/// # Errors
/// [`NotAdopted`]. The error of `may` is the reason of a [`ResumeFailure::Words`].
pub(crate) fn adopt_if<T>(
    offer: Offer,
    may: impl FnOnce(&[u8]) -> Result<T, String>,
) -> Result<(Resumed, T), NotAdopted> {
    let (tables, words, accepted) = match read(&offer.snapshot, may) {
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
    let unclaimed = match Ia::check(&tables, descriptors) {
        Ok(unclaimed) => unclaimed,
        Err(refused) => {
            // A check that is refused has changed nothing, so the descriptors are there.
            let descriptors = refused.handover.unwrap_or_default();
            let offer = again(snapshot, descriptors, claim);
            let error = refused.error.into();
            return Err(NotAdopted::Refused { offer, error });
        }
    };
    let claimed = match claim.take() {
        Ok(claimed) => claimed,
        Err(NotTaken { claim, error }) => {
            let descriptors = unclaimed.give_back();
            let offer = claim.map(|claim| again(snapshot, descriptors, claim));
            return Err(NotAdopted::Claim { offer, error });
        }
    };
    match unclaimed.go_on(&claimed) {
        Ok(ia) => {
            claimed.end(Ok(()));
            Ok((Resumed { ia, words }, accepted))
        }
        Err(refused) => {
            claimed.end(Err(&refused.error.to_string()));
            let parked = refused.handover.map(|descriptors| Parked {
                snapshot,
                descriptors,
            });
            let error = refused.error.into();
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

/// Does the same as [`resume`], if `may` accepts the program's own bytes. It comes before all other checks. Returns its
/// result, too.
///
/// # Errors
/// [`NotResumed`]. The error of `may` is the reason of a [`ResumeFailure::Words`].
pub(crate) fn resume_if<T>(
    snapshot: &[u8],
    descriptors: Vec<NamedFd>,
    may: impl FnOnce(&[u8]) -> Result<T, String>,
) -> Result<(Resumed, T), NotResumed> {
    let (snapshot, words, accepted) = match read(snapshot, may) {
        Ok(read) => read,
        Err(error) => {
            return Err(NotResumed {
                descriptors: Some(descriptors),
                error,
            });
        }
    };
    match Ia::resume(&snapshot, descriptors, &Claimed::by_caller()) {
        Ok(ia) => Ok((Resumed { ia, words }, accepted)),
        Err(refused) => Err(NotResumed {
            descriptors: refused.handover,
            error: refused.error.into(),
        }),
    }
}

/// Reads a snapshot with the program's own bytes, and lets `may` check these.
fn read<T>(
    snapshot: &[u8],
    may: impl FnOnce(&[u8]) -> Result<T, String>,
) -> Result<(IaSnapshot<MlxProvider>, Vec<u8>, T), ResumeFailure> {
    let (tables, words) = format::read::<MlxProvider>(snapshot)?;
    let accepted = may(&words).map_err(|why| ResumeFailure::Words { why })?;
    Ok((tables, words, accepted))
}
