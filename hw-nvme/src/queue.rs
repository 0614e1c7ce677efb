//! A pair of queues: the controller fetches commands from the submission queue, and writes their completions to the
//! completion queue.
//!
//! ```text
//!   submit -> entry in the submission queue      ring  -> its tail doorbell
//!   poll   <- entry in the completion queue              -> its head doorbell, once for all that were taken
//! ```
//!
//! A completion is new if its phase bit differs from that of the pass before. The bit is loaded with the second half of
//! the entry in one access, and the first half after that. An entry is read once.
//!
//! A pair has no lock and allocates nothing after its creation. Each worker has its own.

use std::sync::Arc;

use driver::barrier::{dma_from_device, dma_hand_back, dma_to_device};
use driver::{DmaArena, DmaBuffer, DmaRing, Instant, Interrupt, Iova, Le32, Register, WeakArena};
use nvme_types::command::PSDT;
use nvme_types::{Sqe, Status};

use crate::error::{Cause, NvmeError};
use crate::health::Health;
use crate::prp::{self, MOST_PAGES, Piece, PrpError};
use crate::slots::{self, Slots};

/// Bytes of a submission queue entry.
const SQE_BYTES: usize = 64;
/// Bytes of a completion queue entry.
const CQE_BYTES: usize = 16;
/// Bytes to which a list of pages is aligned: some controllers read lists in pieces of this size (Linux quirk
/// `NVME_QUIRK_DMAPOOL_ALIGN_512`).
const LIST_ALIGN: usize = 512;
/// Phase bit in the second half of a completion.
const PHASE_SHIFT: u32 = 48;
/// Bits of the Status Field that [`Status`] has: status code, its type, and DNR.
const STATUS_MASK: u16 = 0x8ffe;

/// A command that has ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ended {
    /// Number that the caller gave with the command.
    pub cookie: u64,
    /// Status.
    pub status: Status,
    /// Dword 0 of the completion.
    pub result: u32,
}

impl Ended {
    /// A place for an ended command.
    pub const NONE: Self = Self {
        cookie: 0,
        status: Status::SUCCESS,
        result: 0,
    };
}

/// Reason why a command was not accepted. Nothing has changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum SubmitError {
    /// The queue has no room.
    #[error("the queue has no room")]
    Full,
    /// The data cannot be described.
    #[error(transparent)]
    Data(#[from] PrpError),
    /// The controller has ended.
    #[error("{0}")]
    Ended(Cause),
}

/// Memory and numbers of a pair of queues.
pub(crate) struct Rings {
    submission: DmaBuffer,
    completion: DmaBuffer,
    lists: DmaBuffer,
    entries: u32,
    /// Maximum number of pages of a command behind the first.
    pages: usize,
    list_bytes: usize,
}

impl Rings {
    /// Allocates a pair with this many entries, a power of two. A command has at most `pages` pages behind the first.
    pub(crate) fn new(arena: &DmaArena, entries: u32, pages: usize) -> Result<Self, NvmeError> {
        let page = 4096;
        let pages = pages.clamp(1, MOST_PAGES);
        let list_bytes = ((pages + 1) * 8).next_multiple_of(LIST_ALIGN);
        // CAST: widening.
        let count = entries as usize;
        let lists = count.min(usize::from(slots::MOST));
        Ok(Self {
            submission: arena.alloc(count * SQE_BYTES, page)?,
            completion: arena.alloc(count * CQE_BYTES, page)?,
            lists: arena.alloc(lists * list_bytes, page)?,
            entries,
            pages,
            list_bytes,
        })
    }

    pub(crate) fn submission(&self) -> Iova {
        self.submission.iova()
    }

    pub(crate) fn completion(&self) -> Iova {
        self.completion.iova()
    }

    pub(crate) const fn entries(&self) -> u32 {
        self.entries
    }
}

/// A pair of queues.
pub struct QueuePair {
    number: u16,
    /// `None` only while this is dropped.
    memory: Option<Rings>,
    arena: WeakArena,
    lists: DmaBuffer,
    list_bytes: usize,
    pages: usize,
    entries: u32,
    submission: DmaRing<SQE_BYTES>,
    completion: DmaRing<CQE_BYTES>,
    tail_doorbell: Register<Le32>,
    head_doorbell: Register<Le32>,
    /// Number of entries that were written to the submission queue.
    tail: u32,
    /// Number of entries that the tail doorbell has announced.
    rung: u32,
    /// Number of submission entries that the controller has fetched, according to its completions.
    fetched: u32,
    /// Number of completions that were taken.
    head: u32,
    slots: Slots,
    /// Reason why no more completions are taken.
    broken: Option<Cause>,
    health: Arc<Health>,
    interrupt: Option<Interrupt>,
}

impl QueuePair {
    /// Makes a pair, whose queues the controller has not created yet.
    pub(crate) fn new(
        number: u16,
        rings: Rings,
        doorbells: (Register<Le32>, Register<Le32>),
        health: Arc<Health>,
        interrupt: Option<Interrupt>,
    ) -> Self {
        let (entries, list_bytes, pages) = (rings.entries, rings.list_bytes, rings.pages);
        // The controller never sees a full queue, so one entry stays empty.
        let slots = u16::try_from(entries - 1).unwrap_or(u16::MAX);
        Self {
            number,
            submission: DmaRing::new(&rings.submission, 0, entries),
            completion: DmaRing::new(&rings.completion, 0, entries),
            arena: rings.submission.arena(),
            lists: rings.lists.clone(),
            list_bytes,
            pages,
            entries,
            memory: Some(rings),
            tail_doorbell: doorbells.0,
            head_doorbell: doorbells.1,
            tail: 0,
            rung: 0,
            fetched: 0,
            head: 0,
            slots: Slots::new(slots),
            broken: None,
            health,
            interrupt,
        }
    }

    /// Returns the number of the pair: 0 for the admin queues.
    #[must_use]
    pub const fn number(&self) -> u16 {
        self.number
    }

    /// Returns the interrupt of the completion queue. An interrupt is a hint: the caller polls. `None` if the queue is
    /// only polled, because interrupts are off, or the function has fewer vectors than queues.
    #[must_use]
    pub const fn interrupt(&self) -> Option<&Interrupt> {
        self.interrupt.as_ref()
    }

    /// Returns the number of outstanding commands.
    #[must_use]
    pub fn outstanding(&self) -> usize {
        self.slots.outstanding()
    }

    /// Writes a command into the submission queue. The controller sees it after [`Self::ring`]. Its identifier and its
    /// data pointer are set here. Its time limit counts from `now`. The memory of the data belongs to the controller
    /// until the command has ended, and has to be as long as the blocks that the command names.
    ///
    /// # Errors
    /// [`SubmitError`].
    #[inline]
    pub fn submit(
        &mut self,
        mut sqe: Sqe,
        data: &[Piece],
        cookie: u64,
        now: Instant,
    ) -> Result<(), SubmitError> {
        if let Some(cause) = self.health.cause() {
            return Err(SubmitError::Ended(cause));
        }
        if self.tail.wrapping_sub(self.fetched) >= self.entries - 1 {
            return Err(SubmitError::Full);
        }
        let Some((index, cid)) = self.slots.take(cookie, (sqe.opcode, self.tail), now) else {
            return Err(SubmitError::Full);
        };
        let at = usize::from(index) * self.list_bytes;
        let prp = match prp::write(data, (&self.lists, at), self.pages) {
            Ok(prp) => prp,
            Err(error) => {
                self.slots.give_back(index);
                return Err(error.into());
            }
        };
        sqe.cid = cid.into();
        sqe.flags &= !PSDT;
        sqe.set_prp(prp);
        self.submission.block(self.tail).write(&sqe);
        self.tail = self.tail.wrapping_add(1);
        Ok(())
    }

    /// Tells the controller of all commands that were submitted since the last call. Does nothing if the controller has
    /// ended.
    #[inline]
    pub fn ring(&mut self) {
        if self.rung == self.tail || self.health.cause().is_some() {
            return;
        }
        self.rung = self.tail;
        dma_to_device();
        let tail = self.submission.slot(self.tail);
        self.tail_doorbell.write(Le32::new(tail));
    }

    /// Takes completions, as many as `places` holds. Returns their number.
    ///
    /// # Errors
    /// There is no completion, and the controller has ended. After [`Cause::Impossible`] no completion is taken any
    /// more. The outstanding commands end by [`crate::Controller::stop`].
    #[inline]
    pub fn poll(&mut self, places: &mut [Ended]) -> Result<usize, Cause> {
        let mut count = 0;
        for place in places {
            if self.broken.is_some() {
                break;
            }
            let Some(second) = self.next_completion() else {
                break;
            };
            dma_from_device();
            let block = self.completion.block(self.head);
            let first = block.load_be64::<0>().get().swap_bytes();
            match self.ended(first, second) {
                Ok(ended) => *place = ended,
                Err(cause) => {
                    self.broken = Some(cause);
                    break;
                }
            }
            self.head = self.head.wrapping_add(1);
            count += 1;
        }
        if count == 0
            && let Some(cause) = self.broken.or_else(|| self.health.cause())
        {
            return Err(cause);
        }
        // After the stop, the doorbell may be that of the next controller.
        if count > 0 && self.health.cause().is_none() {
            dma_hand_back();
            let head = self.completion.slot(self.head);
            self.head_doorbell.write(Le32::new(head));
        }
        Ok(count)
    }

    /// Returns the second half of the next completion, if the controller has written it.
    #[inline]
    fn next_completion(&self) -> Option<u64> {
        let block = self.completion.block(self.head);
        let second = block.load_be64::<8>().get().swap_bytes();
        // The phase of the first pass is 1, because the ring is zeroed.
        let pass = self.head >> self.entries.trailing_zeros();
        (second >> PHASE_SHIFT & 1 != u64::from(pass & 1)).then_some(second)
    }

    /// Checks a completion, and ends its command.
    #[inline]
    fn ended(&mut self, first: u64, second: u64) -> Result<Ended, Cause> {
        // CAST: fields of 16 and 32 bits.
        #[expect(clippy::cast_possible_truncation, reason = "the fields that are meant")]
        let (sq_head, sqid, cid, status, result) = (
            second as u16,
            (second >> 16) as u16,
            (second >> 32) as u16,
            (second >> 48) as u16,
            first as u32,
        );
        let is_possible = sqid == self.number && u32::from(sq_head) < self.entries;
        let fetched = self.fetched_at(sq_head);
        // The command ends only if all numbers are possible.
        if let Some(fetched) = fetched.filter(|_| is_possible)
            && let Some(command) = self.slots.end(cid, fetched)
        {
            self.fetched = fetched;
            return Ok(Ended {
                cookie: command.cookie,
                status: Status::of_field(status & STATUS_MASK),
                result,
            });
        }
        let queue = self.number;
        Err(self.health.end(Cause::Impossible {
            queue,
            cid,
            sqid,
            sq_head,
        }))
    }

    /// Returns the number of fetched entries for a head of the submission queue. `None`: entries that were never
    /// announced would be fetched.
    #[inline]
    fn fetched_at(&self, sq_head: u16) -> Option<u32> {
        let mask = self.entries - 1;
        let ahead = u32::from(sq_head).wrapping_sub(self.fetched) & mask;
        let fetched = self.fetched.wrapping_add(ahead);
        (ahead <= self.rung.wrapping_sub(self.fetched)).then_some(fetched)
    }

    /// Returns whether a completion can be taken, for a caller that is about to sleep.
    #[must_use]
    pub fn has_completion(&self) -> bool {
        self.broken.is_none() && self.next_completion().is_some()
    }

    /// Returns opcode and age of the oldest outstanding command. `None` if there is none.
    #[must_use]
    pub fn oldest(&self, now: Instant) -> Option<(u8, core::time::Duration)> {
        let oldest = self.slots.oldest();
        oldest.map(|(opcode, since)| (opcode, now.since(since)))
    }

    /// Returns whether the pair is one of this controller.
    pub(crate) fn is_of(&self, health: &Arc<Health>) -> bool {
        Arc::ptr_eq(&self.health, health)
    }

    /// Ends all outstanding commands of a controller that was stopped, and returns their cookies. `None` if the
    /// controller was not stopped. [`crate::Controller::stop`] does this for the pairs that it gets.
    pub fn unanswered(&mut self) -> Option<Vec<u64>> {
        self.health.is_stopped().then(|| self.slots.drain())
    }
}

impl QueuePair {
    /// Frees the memory of a pair that the controller has deleted.
    pub(crate) fn deleted(mut self) {
        drop(self.memory.take());
    }
}

impl Drop for QueuePair {
    /// Until the controller was stopped, it may access the queues, so their memory is kept. Nobody learns of the
    /// commands that have no answer.
    fn drop(&mut self) {
        if !self.health.is_stopped()
            && let Some(memory) = self.memory.take()
        {
            self.arena.keep(memory);
        }
    }
}

/// Makes a command without data, such as Flush.
#[must_use]
pub fn command(opcode: u8, nsid: u32) -> Sqe {
    let mut sqe = Sqe::of(opcode);
    sqe.nsid = nsid.into();
    sqe
}

/// Makes a command that names blocks: Read, Write, Compare, Write Zeroes or Verify. `is_forced`: the data is on the
/// medium before the completion (FUA).
///
/// # Panics
/// If `blocks` is not at least 1 and at most 65,536.
#[must_use]
pub fn block_command(opcode: u8, nsid: u32, first: u64, blocks: u32, is_forced: bool) -> Sqe {
    assert!((1..=1 << 16).contains(&blocks), "{blocks} blocks");
    let mut sqe = command(opcode, nsid);
    // CAST: the halves.
    #[expect(clippy::cast_possible_truncation, reason = "the halves")]
    let halves = [first as u32, (first >> 32) as u32];
    (sqe.cdw10, sqe.cdw11) = (halves[0].into(), halves[1].into());
    sqe.cdw12 = ((blocks - 1) | (u32::from(is_forced) << 30)).into();
    sqe
}

impl core::fmt::Debug for QueuePair {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("QueuePair")
            .field("number", &self.number)
            .field("entries", &self.entries)
            .field("outstanding", &self.outstanding())
            .finish_non_exhaustive()
    }
}
