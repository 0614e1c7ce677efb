//! Host memory that the firmware uses (PRM "MANAGE_PAGES").
//!
//! The device has no memory of its own for its tables; it runs on pages of the host. It reports how many it needs to
//! boot and to initialize. While it runs, it asks for more or returns some by event. It must return all of them before
//! it is disabled. A page is 4 KiB, whatever the host's page size is. It belongs to a *function id*; a physical
//! function holds the pages of its virtual functions too. Pages given to a function are taken back from that function.
//!
//! Accounting is per page: a returned address is accepted only if it was given, and to that function. Memory is taken
//! from the arena in chunks of up to a megabyte. A chunk goes back to the arena when none of its pages is lent any
//! more. If the firmware did not answer a give, its pages stay lent.
//!
//! All pages of one request are given by one command, however long its list: no driver splits it (Linux `pagealloc.c`
//! `give_pages`, rdma-core `mlx5_vfio.c` `mlx5_vfio_give_pages`, Snabb `connectx.lua` `alloc_pages`), and a recorded
//! physical function took 12,868 pages in one.
//!
//! Event-driven requests are served one command at a time, in order, on the reserved slot; a second request waits in
//! the queue. If the firmware refuses a give or a take, that is not an error of ours (mlx5_core `pagealloc.c`): the
//! pages stay with their current owner.

mod parking;

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::time::Duration;

use driver::{DmaArena, DmaBuffer, DmaError, Instant};
use zerocopy::IntoBytes;

use crate::cmd::{CommandQueue, SlotClass, SubmitError, Ticket};
use crate::error::CmdError;
use crate::event::{FunctionId, PageRequest};
use mlx_prm::ManagePagesIn;
pub use parking::{PageChunk, PageHolder, PagesSnapshot};

/// Bytes of a firmware page.
const PAGE_BYTES: usize = 4096;
/// Maximum number of pages that one allocation from the arena provides.
const CHUNK_PAGES: usize = 256;
/// Maximum number of pages that one command takes back (mlx5_core's bound in its teardown loop).
pub(crate) const TAKE_PAGES: usize = 768;
/// Maximum number of pages in one request: 4 GiB. A larger request is regarded as a firmware error. Also the maximum
/// number in total, unless the configuration sets another (`HcaConfig::firmware_pages`).
pub(crate) const MAX_PAGES: usize = 1 << 20;
/// Maximum number of requests that wait while others are served. Further requests are dropped; the firmware repeats
/// them after later answers. mlx5_core has no limit and gives each request a work item.
const MAX_PAGE_REQUESTS: usize = 1024;
/// Maximum number of pages taken back for one event (mlx5_core's bound).
const TAKE_BY_EVENT: usize = 50_000;
/// Bytes of a MANAGE_PAGES command, and of its answer, before the page list.
const HEADER_BYTES: usize = 0x10;
const OUT_COUNT: usize = 0x08;

/// `op_mod` values of MANAGE_PAGES.
const CANNOT_GIVE: u32 = 0;
const GIVE: u32 = 1;
const TAKE: u32 = 2;

/// Memory taken from the arena, with the I/O addresses of its pages that are not lent.
struct Chunk {
    memory: DmaBuffer,
    free: Vec<u64>,
}

/// The command that is being executed for a page request event.
enum Running {
    Give { ticket: Ticket, pages: Vec<u64> },
    Take { ticket: Ticket, left: usize },
    CannotGive { ticket: Ticket },
}

/// Counters of pages since the function was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct PageCounts {
    /// Number of pages given to the firmware.
    pub given: u64,
    /// Number of pages that the firmware returned.
    pub returned: u64,
    /// Number of requests that were answered with "cannot give", or dropped.
    pub refused: u64,
    /// Number of returned page addresses that the firmware did not have from us.
    pub foreign: u64,
}

/// Account of all pages that the firmware has.
pub(crate) struct Pages {
    arena: DmaArena,
    /// Chunks by the I/O address of their first page.
    chunks: BTreeMap<u64, Chunk>,
    /// Chunks that have free pages, by the I/O address of their first page.
    partial: BTreeSet<u64>,
    lent: HashMap<u64, FunctionId>,
    requests: VecDeque<PageRequest>,
    running: Option<(Running, FunctionId, Instant)>,
    counts: PageCounts,
    /// Maximum number of pages lent at once; `None` means [`MAX_PAGES`]. A host with little memory sets a smaller
    /// number, a host with much memory a larger one.
    budget: Option<usize>,
}

impl Pages {
    pub(crate) fn new(arena: DmaArena, budget: Option<usize>) -> Self {
        Self {
            arena,
            chunks: BTreeMap::new(),
            partial: BTreeSet::new(),
            lent: HashMap::new(),
            requests: VecDeque::new(),
            running: None,
            counts: PageCounts::default(),
            budget,
        }
    }

    pub(crate) fn counts(&self) -> PageCounts {
        self.counts
    }

    /// Returns the number of pages that the firmware has.
    pub(crate) fn lent(&self) -> usize {
        self.lent.len()
    }

    /// Returns the number of pages that the firmware may still get.
    pub(crate) fn room(&self) -> usize {
        let budget = self.budget.unwrap_or(MAX_PAGES);
        budget.saturating_sub(self.lent.len()).min(MAX_PAGES)
    }

    /// Returns the functions that hold pages.
    pub(crate) fn holders(&self) -> BTreeSet<FunctionId> {
        self.lent.values().copied().collect()
    }

    /// Returns the number of pages that a function holds.
    pub(crate) fn lent_to(&self, function: FunctionId) -> usize {
        self.lent
            .values()
            .filter(|holder| **holder == function)
            .count()
    }

    /// Takes `count` free pages, allocating chunks as needed. Takes none if memory is short.
    fn reserve(&mut self, count: usize) -> Result<Vec<u64>, DmaError> {
        let mut pages = Vec::with_capacity(count);
        while pages.len() < count {
            let Some(first) = self.partial.first().copied() else {
                if let Err(error) = self.grow(count - pages.len()) {
                    self.release(pages);
                    return Err(error);
                }
                continue;
            };
            // PANIC: `partial` names only existing chunks.
            let chunk = self
                .chunks
                .get_mut(&first)
                .expect("a chunk with free pages");
            let take = chunk.free.len().min(count - pages.len());
            pages.extend(chunk.free.drain(chunk.free.len() - take..));
            if chunk.free.is_empty() {
                self.partial.remove(&first);
            }
        }
        Ok(pages)
    }

    fn grow(&mut self, wanted: usize) -> Result<(), DmaError> {
        let bytes = wanted.clamp(1, CHUNK_PAGES) * PAGE_BYTES;
        let memory = self.arena.alloc(bytes, PAGE_BYTES)?;
        let first = memory.iova().0;
        // PANIC: `driver`'s allocator of I/O addresses never returns address 0. The firmware does not accept a page
        // there (mlx5_core never gives one).
        assert_ne!(first, 0, "a firmware page at I/O address 0");
        let free = (0..bytes)
            .step_by(PAGE_BYTES)
            .map(|offset| first + offset as u64)
            .rev()
            .collect();
        self.chunks.insert(first, Chunk { memory, free });
        self.partial.insert(first);
        Ok(())
    }

    /// Frees pages that are no longer lent. A chunk of which all pages are free goes back to the arena.
    fn release(&mut self, pages: impl IntoIterator<Item = u64>) {
        for page in pages {
            // PANIC: all these pages were handed out by `reserve`; the device's answer was checked against them.
            let (first, chunk) = self
                .chunks
                .range_mut(..=page)
                .next_back()
                .expect("a page of a chunk");
            let first = *first;
            chunk.free.push(page);
            if chunk.free.len() * PAGE_BYTES >= chunk.memory.len() {
                self.chunks.remove(&first);
                self.partial.remove(&first);
            } else {
                self.partial.insert(first);
            }
        }
    }

    /// Reserves `count` pages. Returns them together with the command that gives them to the firmware.
    pub(crate) fn prepare_give(
        &mut self,
        function: FunctionId,
        count: usize,
    ) -> Result<(Vec<u64>, Vec<u8>), DmaError> {
        let pages = self.reserve(count)?;
        let mut input = message(GIVE, function, count);
        for page in &pages {
            input.extend_from_slice(&page.to_be_bytes());
        }
        Ok((pages, input))
    }

    /// Accounts for the result of a give command. Pages count as lent if the firmware may have accepted them.
    pub(crate) fn finish_give(
        &mut self,
        function: FunctionId,
        pages: Vec<u64>,
        result: Result<(), &CmdError>,
    ) {
        match result {
            Err(error) if !error.outcome_unknown() => self.release(pages),
            Ok(()) | Err(_) => {
                self.counts.given += pages.len() as u64;
                self.lent
                    .extend(pages.into_iter().map(|page| (page, function)));
            }
        }
    }

    /// Returns the command that takes back up to `count` pages, and the length of its answer in bytes.
    pub(crate) fn prepare_take(function: FunctionId, count: usize) -> (Vec<u8>, usize) {
        (message(TAKE, function, count), HEADER_BYTES + 8 * count)
    }

    /// Frees the pages that the firmware returned. Addresses that the function did not have from us are counted and
    /// ignored. Returns the number of addresses in the answer.
    pub(crate) fn finish_take(&mut self, function: FunctionId, answer: &[u8]) -> usize {
        let count = answer
            .get(OUT_COUNT..OUT_COUNT + 4)
            .map_or(0, |word| be32(word) as usize);
        let list = answer.get(HEADER_BYTES..).unwrap_or(&[]);
        let mut listed = 0;
        for page in list.chunks_exact(8).take(count).map(be64) {
            listed += 1;
            if self.lent.get(&page) == Some(&function) {
                self.lent.remove(&page);
                self.release([page]);
                self.counts.returned += 1;
            } else {
                self.counts.foreign += 1;
                tracing::warn!(
                    ?function,
                    "the firmware returned page {page:#x}, which it does not have from us"
                );
            }
        }
        listed
    }

    /// Frees all pages of a function without a command, because the firmware has released them all.
    fn free_all_of(&mut self, function: FunctionId) {
        let pages: Vec<u64> = self
            .lent
            .iter()
            .filter(|(_, holder)| **holder == function)
            .map(|(page, _)| *page)
            .collect();
        for page in &pages {
            self.lent.remove(page);
        }
        self.counts.returned += pages.len() as u64;
        self.release(pages);
    }

    /// Queues a page request event, or drops it if [`MAX_PAGE_REQUESTS`] are waiting.
    pub(crate) fn request(&mut self, request: PageRequest) {
        tracing::debug!(?request, "page request");
        if self.requests.len() < MAX_PAGE_REQUESTS {
            self.requests.push_back(request);
        } else {
            self.counts.refused += 1;
            tracing::warn!(?request, "{MAX_PAGE_REQUESTS} page requests wait; dropped");
        }
    }

    /// Returns whether requests are waiting or being served.
    pub(crate) fn busy(&self) -> bool {
        self.running.is_some() || !self.requests.is_empty()
    }

    /// Serves requests as far as possible without waiting. Returns true if there was progress. `timeout` is the time
    /// limit of one command.
    pub(crate) fn pump(
        &mut self,
        queue: &mut CommandQueue,
        now: Instant,
        timeout: Duration,
    ) -> bool {
        let mut moved = false;
        loop {
            if let Some((running, function, since)) = self.running.take() {
                let ticket = running.ticket();
                let answer = match queue.take(ticket, now) {
                    Some(answer) => answer,
                    None if now >= since + timeout => match queue.abandon(ticket, now) {
                        Some((opcode, op_mod, waited_ms)) => Err(CmdError::TimedOut {
                            opcode,
                            op_mod,
                            slot: ticket.slot(),
                            waited_ms,
                        }),
                        None => return moved,
                    },
                    None => {
                        self.running = Some((running, function, since));
                        return moved;
                    }
                };
                self.finish(running, function, answer);
            } else {
                let Some(request) = self.requests.pop_front() else {
                    return moved;
                };
                if !self.start(queue, request, now) {
                    return moved;
                }
            }
            moved = true;
        }
    }

    /// Posts the command for a request. Returns false if no command slot is free; the request then stays queued.
    fn start(&mut self, queue: &mut CommandQueue, request: PageRequest, now: Instant) -> bool {
        let function = request.function;
        if request.release_all {
            self.free_all_of(function);
            return true;
        }
        let wanted = request.pages.unsigned_abs() as usize;
        let posted = match request.pages {
            0 => return true,
            1.. => self.start_give(queue, function, wanted, now),
            ..=-1 => {
                // The firmware cannot return more pages than the function holds. This number bounds the size of the
                // answer.
                let left = wanted.min(TAKE_BY_EVENT).min(self.lent_to(function));
                if left == 0 {
                    return true;
                }
                let (input, room) = Self::prepare_take(function, left.min(TAKE_PAGES));
                queue
                    .submit(SlotClass::Pages, &input, room, now)
                    .map(|ticket| Running::Take { ticket, left })
            }
        };
        match posted {
            Ok(running) => {
                self.running = Some((running, function, now));
                true
            }
            Err(SubmitError::NoSlot) => {
                self.requests.push_front(request);
                false
            }
            Err(SubmitError::Memory(error)) => {
                tracing::warn!(?request, %error, "no memory to answer a page request");
                self.counts.refused += 1;
                true
            }
        }
    }

    fn start_give(
        &mut self,
        queue: &mut CommandQueue,
        function: FunctionId,
        wanted: usize,
        now: Instant,
    ) -> Result<Running, SubmitError> {
        let affordable = wanted <= self.room();
        let prepared = if affordable {
            self.prepare_give(function, wanted).ok()
        } else {
            None
        };
        if let Some((pages, input)) = prepared {
            match queue.submit(SlotClass::Pages, &input, HEADER_BYTES, now) {
                Ok(ticket) => return Ok(Running::Give { ticket, pages }),
                Err(error) => {
                    self.release(pages);
                    if matches!(error, SubmitError::NoSlot) {
                        return Err(error);
                    }
                }
            }
        }
        tracing::warn!(
            ?function,
            wanted,
            "cannot give the pages the firmware asks for"
        );
        // This command needs no mailbox, so it can be posted even if there was no memory for the page list.
        let ticket = queue.submit(
            SlotClass::Pages,
            &message(CANNOT_GIVE, function, 0),
            HEADER_BYTES,
            now,
        )?;
        self.counts.refused += 1;
        Ok(Running::CannotGive { ticket })
    }

    fn finish(
        &mut self,
        running: Running,
        function: FunctionId,
        answer: Result<Vec<u8>, CmdError>,
    ) {
        if let Err(error) = &answer {
            tracing::warn!(?function, %error, "a page command failed");
        }
        let left = match running {
            Running::Give { pages, .. } => {
                self.finish_give(function, pages, answer.as_ref().map(|_| ()));
                0
            }
            Running::Take { left, .. } => match &answer {
                Ok(answer) => match self.finish_take(function, answer) {
                    0 => 0,
                    returned => left.saturating_sub(returned),
                },
                Err(_) => 0,
            },
            Running::CannotGive { .. } => 0,
        };
        if left != 0 {
            // PANIC: `left` is at most the 32-bit number of the request.
            let left = i32::try_from(left).expect("part of a request");
            self.requests.push_front(PageRequest {
                function,
                pages: -left,
                release_all: false,
            });
        }
    }

    /// Frees all pages: the device was removed or can no longer access memory.
    pub(crate) fn forget(&mut self) {
        self.lent.clear();
        self.chunks.clear();
        self.partial.clear();
        self.requests.clear();
        self.running = None;
    }
}

impl Running {
    fn ticket(&self) -> Ticket {
        match self {
            Self::Give { ticket, .. } | Self::Take { ticket, .. } | Self::CannotGive { ticket } => {
                *ticket
            }
        }
    }
}

/// Returns a MANAGE_PAGES command without its page list.
fn message(op_mod: u32, function: FunctionId, count: usize) -> Vec<u8> {
    let mut input = ManagePagesIn::new();
    input
        .set_op_mod(op_mod)
        .set_embedded_cpu_function(function.embedded_cpu)
        .set_function_id(u32::from(function.number))
        // PANIC: `count` is at most MAX_PAGES or TAKE_PAGES.
        .set_input_num_entries(u32::try_from(count).expect("a bounded number of pages"));
    input.as_bytes().to_vec()
}

fn be32(bytes: &[u8]) -> u32 {
    bytes
        .iter()
        .take(4)
        .fold(0, |value, byte| value << 8 | u32::from(*byte))
}

fn be64(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .take(8)
        .fold(0, |value, byte| value << 8 | u64::from(*byte))
}

#[cfg(test)]
mod tests;
