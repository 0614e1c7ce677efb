//! A model of a controller with one namespace, for the tests of the driver. It carries out a command when its doorbell
//! is written. It can break the rules in the ways that [`Lie`] names.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use driver::{Clock, Device, Instant, Interrupt, SharedMemory};
use nvme_types::command::{admin, io};
use nvme_types::identify::{self, BlockFormat, cns};
use nvme_types::{Cqe, Sqe, Status, feature};
use zerocopy::{FromBytes, FromZeros, IntoBytes};

pub const BLOCKS: usize = 2048;
pub const BLOCK: usize = 512;
const BAR_BYTES: usize = 0x4000;
/// 256 entries, 2 s, NVM command set, pages of 4 KiB.
const CAP: u64 = 1 << 37 | 3 << 24 | 0xff;

/// A way in which the controller breaks the rules.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Lie {
    /// It never becomes ready.
    NeverReady,
    /// It has a fatal error when it is enabled.
    FatalAtEnable,
    /// It answers no I/O command.
    Silent,
    /// A completion has an identifier that no command has.
    UnknownCommand,
    /// Each completion comes twice.
    Twice,
    /// A completion names another queue.
    OtherQueue,
    /// The head of the submission queue is beyond its end.
    HeadBeyond,
    /// The head of the submission queue is beyond what was announced.
    HeadAhead,
    /// It never completes a shutdown.
    NoShutdown,
}

/// A clock whose time passes only in waits.
#[derive(Default)]
pub struct TestClock(AtomicU64);

impl Clock for TestClock {
    fn now(&self) -> Instant {
        Instant(self.0.load(Ordering::Relaxed))
    }

    fn wait(&self, interrupts: &[Interrupt], deadline: Instant) -> bool {
        if interrupts.iter().any(Interrupt::is_pending) {
            return true;
        }
        self.0.fetch_max(deadline.0, Ordering::Relaxed);
        false
    }
}

#[derive(Default)]
struct Queue {
    submission: u64,
    completion: u64,
    entries: u32,
    completion_entries: u32,
    vector: Option<usize>,
    head: u32,
    /// Number of completions that were written, and of those that the driver has taken.
    written: u32,
    taken: u32,
}

#[derive(Default)]
struct State {
    config: BTreeMap<u16, u8>,
    mappings: BTreeMap<u64, (SharedMemory, usize, usize)>,
    queues: BTreeMap<u16, Queue>,
    interrupts: Vec<Interrupt>,
    blocks: Vec<u8>,
    lie: Option<Lie>,
    is_gone: bool,
    resets: u32,
    /// Opcodes of the I/O commands that were carried out.
    done: Vec<u8>,
    /// Lists of pages that were read.
    lists: u32,
    doorbells: u32,
    /// SHN of each shutdown.
    shutdowns: Vec<u32>,
    /// Identifier of the outstanding event request.
    request: Option<u16>,
    /// Log page of an event, and its content.
    log: (u8, Vec<u8>),
    /// Value of the feature of events.
    events: u32,
}

/// The model.
pub struct Ssd {
    bar: SharedMemory,
    state: Mutex<State>,
    pub clock: Arc<TestClock>,
}

impl Ssd {
    pub fn new() -> Arc<Self> {
        let ssd = Self {
            bar: SharedMemory::of_this_process(BAR_BYTES).expect("memory"),
            state: Mutex::default(),
            clock: Arc::default(),
        };
        let mut state = ssd.state();
        state.blocks = vec![0; BLOCKS * BLOCK];
        // QEMU's IDs, and the class code.
        state.config.extend((0..).zip([0x36, 0x1b, 0x10, 0x00]));
        state.config.extend((8..).zip([0, 0x02, 0x08, 0x01]));
        drop(state);
        ssd.bar.write_bytes(0, &CAP.to_le_bytes());
        // Version 1.4.
        ssd.bar.write_bytes(8, &0x0001_0400_u32.to_le_bytes());
        Arc::new(ssd)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no panic")
    }

    /// Makes it a device of another class.
    pub fn set_class(&self, class: [u8; 3]) {
        self.state().config.extend((9..).zip(class));
    }

    /// Sets the capabilities.
    pub fn set_cap(&self, cap: u64) {
        self.bar.write_bytes(0, &cap.to_le_bytes());
    }

    /// Returns the address of a queue's submission queue.
    pub fn submission(&self, queue: u16) -> u64 {
        self.state().queues[&queue].submission
    }

    /// Enables the controller as another program would have left it.
    pub fn leave_enabled(&self) {
        self.bar.write_bytes(0x14, &1_u32.to_le_bytes());
        self.set_status(1);
    }

    pub fn resets(&self) -> u32 {
        self.state().resets
    }

    pub fn lie(&self, lie: Lie) {
        self.state().lie = Some(lie);
    }

    /// Removes the controller: its registers read as ones.
    pub fn remove(&self) {
        self.state().is_gone = true;
        self.bar.fill(0, 0x1000, 0xff);
    }

    pub fn done(&self) -> Vec<u8> {
        self.state().done.clone()
    }

    pub fn lists(&self) -> u32 {
        self.state().lists
    }

    pub fn doorbells(&self) -> u32 {
        self.state().doorbells
    }

    /// Returns whether the controller can reach memory: it is enabled, and bus master.
    pub fn is_running(&self) -> bool {
        let state = self.state();
        let master = state.config.get(&4).copied().unwrap_or(0) & 4 != 0;
        master && self.register(0x14) & 1 != 0 && !state.is_gone
    }

    fn register(&self, offset: usize) -> u32 {
        u32::from_le_bytes(self.bar.read_obj(offset))
    }

    fn set_status(&self, status: u32) {
        self.bar.write_bytes(0x1c, &status.to_le_bytes());
    }

    /// Reports an event: dword 0 of the completion, and the log page.
    pub fn report(&self, result: u32, page: Vec<u8>) {
        let mut state = self.state();
        let cid = state.request.take().expect("a request is outstanding");
        state.log = (u8::try_from(result >> 16 & 0xff).expect("a byte"), page);
        self.complete(&mut state, 0, cid, (Status::SUCCESS, result));
    }

    /// Forgets the log page of the last event.
    pub fn forget_log(&self) {
        self.state().log = (0, Vec::new());
    }

    /// Returns the events that the driver has enabled.
    pub fn events(&self) -> u32 {
        self.state().events
    }

    /// Returns SHN of each shutdown.
    pub fn shutdowns(&self) -> Vec<u32> {
        self.state().shutdowns.clone()
    }

    fn configured(&self, state: &mut State) {
        let enabled = self.register(0x14) & 1 != 0;
        let (shutdown, status) = (self.register(0x14) >> 14 & 3, self.register(0x1c));
        if enabled && shutdown != 0 && status >> 2 & 3 == 0 {
            state.shutdowns.push(shutdown);
            // SHST: occurring, or complete.
            let done = u32::from(state.lie != Some(Lie::NoShutdown)) + 1;
            return self.set_status(status | done << 2);
        }
        let is_ready = self.register(0x1c) & 1 != 0;
        match (enabled, is_ready) {
            (true, false) if state.lie == Some(Lie::NeverReady) => {}
            (true, false) if state.lie == Some(Lie::FatalAtEnable) => self.set_status(2),
            (true, false) => {
                // Without MSI-X, the pin must be masked (Base specification 2.0, INTMS).
                let is_masked = self.register(0xc) == u32::MAX;
                assert_eq!(is_masked, state.interrupts.is_empty(), "the pin");
                let sizes = self.register(0x24);
                let address = |at: usize| u64::from_le_bytes(self.bar.read_obj(at));
                let admin = Queue {
                    submission: address(0x28),
                    completion: address(0x30),
                    entries: (sizes & 0xfff) + 1,
                    completion_entries: (sizes >> 16 & 0xfff) + 1,
                    vector: Some(0),
                    ..Queue::default()
                };
                state.queues.insert(0, admin);
                self.set_status(1);
            }
            (false, _) => {
                state.queues.clear();
                state.request = None;
                self.set_status(0);
            }
            (true, true) => {}
        }
    }

    /// Takes the new head of a completion queue.
    fn take(state: &mut State, number: u16, head: u32) {
        let queue = state.queues.get_mut(&number).expect("a queue");
        assert!(head < queue.completion_entries, "head {head}");
        let before = queue.taken % queue.completion_entries;
        let count = (head + queue.completion_entries - before) % queue.completion_entries;
        assert!(count > 0, "the head does not move");
        queue.taken += count;
        assert!(queue.taken <= queue.written, "more than were written");
    }

    /// Fetches and carries out the commands of a queue up to its new tail.
    fn ring(&self, state: &mut State, number: u16, tail: u32) {
        state.doorbells += u32::from(number > 0);
        assert!(
            state.queues.contains_key(&number),
            "doorbell of queue {number}"
        );
        while let Some(queue) = state.queues.get(&number) {
            assert!(tail < queue.entries, "tail {tail} of {}", queue.entries);
            if queue.head == tail {
                break;
            }
            let at = queue.submission + u64::from(queue.head) * 64;
            let sqe = Sqe::read_from_bytes(&read(state, at, 64)).expect("64 bytes");
            let entries = queue.entries;
            let queue = state.queues.get_mut(&number).expect("it is there");
            queue.head = (queue.head + 1) % entries;
            let answer = if number == 0 && sqe.opcode == admin::ASYNC_EVENT {
                assert_eq!(state.request, None, "one request is outstanding");
                state.request = Some(sqe.cid.get());
                continue;
            } else if number == 0 {
                admin_command(state, &sqe)
            } else if state.lie == Some(Lie::Silent) {
                continue;
            } else {
                let status = io_command(state, &sqe);
                state.done.push(sqe.opcode);
                (status, 0)
            };
            self.complete(state, number, sqe.cid.get(), answer);
        }
    }

    fn complete(&self, state: &mut State, number: u16, cid: u16, (status, result): (Status, u32)) {
        let lie = state.lie.filter(|_| number > 0);
        for _ in 0..if lie == Some(Lie::Twice) { 2 } else { 1 } {
            let queue = state.queues.get_mut(&number).expect("it is there");
            let at = queue.written % queue.completion_entries;
            let phase = 1 - (queue.written / queue.completion_entries) % 2;
            queue.written += 1;
            assert!(
                queue.written - queue.taken <= queue.completion_entries,
                "overrun"
            );
            let head = match lie {
                Some(Lie::HeadBeyond) => queue.entries,
                Some(Lie::HeadAhead) => (queue.head + 1) % queue.entries,
                _ => queue.head,
            };
            let cqe = Cqe {
                result: u64::from(result).into(),
                sq_head: u16::try_from(head).expect("small").into(),
                sqid: (number + u16::from(lie == Some(Lie::OtherQueue))).into(),
                cid: (cid
                    ^ if lie == Some(Lie::UnknownCommand) {
                        0x40
                    } else {
                        0
                    })
                .into(),
                status: (status.field() | u16::try_from(phase).expect("a bit")).into(),
            };
            let (address, vector) = (queue.completion + u64::from(at) * 16, queue.vector);
            write(state, address, cqe.as_bytes());
            if let Some(interrupt) = vector.and_then(|vector| state.interrupts.get(vector)) {
                interrupt.signal();
            }
        }
    }
}

/// Returns memory that the controller reaches. Every access is to mapped memory.
fn reach(state: &State, iova: u64, bytes: usize) -> (SharedMemory, usize) {
    let command = state.config.get(&4).copied().unwrap_or(0);
    assert!(command & 4 != 0, "it is bus master");
    let below = state.mappings.range(..=iova).next_back();
    let (start, (memory, offset, length)) = below.expect("it is mapped");
    let into = usize::try_from(iova - start).expect("small");
    assert!(into + bytes <= *length, "{bytes} bytes at {iova:#x}");
    (memory.clone(), offset + into)
}

fn read(state: &State, iova: u64, bytes: usize) -> Vec<u8> {
    let (memory, at) = reach(state, iova, bytes);
    let mut out = vec![0; bytes];
    memory.read_bytes(at, &mut out);
    out
}

fn write(state: &State, iova: u64, bytes: &[u8]) {
    let (memory, at) = reach(state, iova, bytes.len());
    memory.write_bytes(at, bytes);
}

/// Returns the pieces of a command's data: addresses and lengths. Entries behind the data have no memory.
fn pieces(state: &mut State, sqe: &Sqe, bytes: usize) -> Vec<(u64, usize)> {
    let [first, second] = sqe.prp();
    let in_page = 4096 - usize::try_from(first % 4096).expect("small");
    let mut all = vec![(first, in_page.min(bytes))];
    let mut left = bytes.saturating_sub(in_page);
    assert!(bytes <= 128 << 10, "{bytes} bytes, and MDTS is 5");
    if left > 4096 {
        state.lists += 1;
        assert!(second.is_multiple_of(8), "list at {second:#x}");
        for number in 0..left.div_ceil(4096) {
            let entry = read(state, second + 8 * number as u64, 8);
            let page = u64::from_le_bytes(entry.try_into().expect("8 bytes"));
            assert!(page.is_multiple_of(4096), "page {page:#x}");
            all.push((page, left.min(4096)));
            left = left.saturating_sub(4096);
        }
        let behind = read(state, second + 8 * (all.len() as u64 - 1), 8);
        let behind = u64::from_le_bytes(behind.try_into().expect("8 bytes"));
        assert_eq!(behind, !0xfff, "the entry behind the last one");
    } else if left > 0 {
        assert!(second.is_multiple_of(4096), "page {second:#x}");
        all.push((second, left));
    }
    all
}

fn admin_command(state: &mut State, sqe: &Sqe) -> (Status, u32) {
    let (first, second) = (sqe.cdw10.get(), sqe.cdw11.get());
    let number = u16::try_from(first & 0xffff).expect("16 bits");
    match sqe.opcode {
        admin::IDENTIFY => match identify_page(first, sqe.nsid.get()) {
            Some(page) => {
                let mut from = 0;
                for (iova, bytes) in pieces(state, sqe, page.len()) {
                    write(state, iova, &page[from..from + bytes]);
                    from += bytes;
                }
                (Status::SUCCESS, 0)
            }
            None => (Status::INVALID_FIELD.dnr(), 0),
        },
        admin::SET_FEATURES if first & 0xff == u32::from(feature::NUMBER_OF_QUEUES) => {
            // Three of each, whatever was asked for.
            (Status::SUCCESS, 2 << 16 | 2)
        }
        admin::SET_FEATURES if first & 0xff == u32::from(feature::EVENTS) => {
            state.events = second;
            (Status::SUCCESS, 0)
        }
        admin::GET_LOG_PAGE => {
            let bytes = usize::try_from(first >> 16).expect("small") * 4 + 4;
            let (page, mut content) = state.log.clone();
            if u32::from(page) != first & 0xff {
                return (Status::LOG_PAGE.dnr(), 0);
            }
            content.resize(bytes, 0);
            let mut from = 0;
            for (iova, bytes) in pieces(state, sqe, bytes) {
                write(state, iova, &content[from..from + bytes]);
                from += bytes;
            }
            (Status::SUCCESS, 0)
        }
        admin::CREATE_COMPLETION_QUEUE => {
            let queue = Queue {
                completion: sqe.prp()[0],
                completion_entries: (first >> 16) + 1,
                vector: (second & 2 != 0).then_some((second >> 16) as usize),
                ..Queue::default()
            };
            state.queues.insert(number, queue);
            (Status::SUCCESS, 0)
        }
        admin::CREATE_SUBMISSION_QUEUE => {
            let queue = state.queues.get_mut(&number).expect("its completion queue");
            (queue.submission, queue.entries) = (sqe.prp()[0], (first >> 16) + 1);
            (Status::SUCCESS, 0)
        }
        _ => (Status::INVALID_OPCODE.dnr(), 0),
    }
}

fn identify_page(cdw10: u32, nsid: u32) -> Option<Vec<u8>> {
    let which = u8::try_from(cdw10 & 0xff).expect("a byte");
    match which {
        cns::CONTROLLER => {
            let mut page = identify::Controller::new_zeroed();
            page.serial = identify::padded("S1");
            page.model = identify::padded("model");
            page.firmware = identify::padded("1.0");
            page.max_transfer = 5;
            page.write_cache = 1;
            page.events = (1 << 8).into();
            page.commands = (1 << 3).into();
            page.namespaces = 256.into();
            Some(page.as_bytes().to_vec())
        }
        cns::ACTIVE_NAMESPACES => {
            let mut list = vec![0; 4096];
            list[..4].copy_from_slice(&1_u32.to_le_bytes());
            Some(list)
        }
        cns::NAMESPACE if nsid == 1 => {
            let mut page = identify::Namespace::new_zeroed();
            page.blocks = (BLOCKS as u64).into();
            page.block_formats[0] = BlockFormat {
                metadata: 0.into(),
                shift: 9,
                performance: 0,
            };
            Some(page.as_bytes().to_vec())
        }
        cns::NAMESPACE => Some(vec![0; 4096]),
        _ => None,
    }
}

fn io_command(state: &mut State, sqe: &Sqe) -> Status {
    let first = usize::try_from(sqe.first_block()).expect("small");
    let count = usize::try_from(sqe.blocks()).expect("small");
    if sqe.opcode == io::FLUSH {
        return Status::SUCCESS;
    }
    if first + count > BLOCKS {
        return Status::LBA_RANGE.dnr();
    }
    let mut at = first * BLOCK;
    for (iova, bytes) in pieces(state, sqe, count * BLOCK) {
        if sqe.opcode == io::READ {
            write(state, iova, &state.blocks[at..at + bytes]);
        } else {
            let data = read(state, iova, bytes);
            state.blocks[at..at + bytes].copy_from_slice(&data);
        }
        at += bytes;
    }
    Status::SUCCESS
}

impl Device for Ssd {
    fn name(&self) -> &str {
        "ssd"
    }

    fn config_read(&self, offset: u16, out: &mut [u8]) {
        let state = self.state();
        for (at, byte) in (offset..).zip(out) {
            *byte = state.config.get(&at).copied().unwrap_or(0);
        }
    }

    fn config_write(&self, offset: u16, data: &[u8]) {
        let bytes = (offset..).zip(data.iter().copied());
        self.state().config.extend(bytes);
    }

    fn bar(&self, index: u8) -> Option<SharedMemory> {
        (index == 0).then(|| self.bar.clone())
    }

    fn bar_written(&self, _index: u8, offset: u64, bytes: &[u8]) {
        let mut state = self.state();
        if state.is_gone {
            return;
        }
        let value = u32::from_le_bytes(bytes.try_into().expect("a register of 32 bits"));
        match offset {
            0x14 => self.configured(&mut state),
            0x1000.. => {
                let number = (offset - 0x1000) / 4;
                let queue = u16::try_from(number / 2).expect("small");
                // Heads of completion queues have odd numbers.
                if number.is_multiple_of(2) {
                    self.ring(&mut state, queue, value);
                } else {
                    Self::take(&mut state, queue, value);
                }
            }
            // AQA, ASQ and ACQ.
            0x24..0x38 => {
                let enabled = self.register(0x14) & 1 != 0;
                assert!(!enabled, "register {offset:#x} while it is enabled");
            }
            _ => {}
        }
    }

    fn reset(&self) {
        let mut state = self.state();
        state.resets += 1;
        state.queues.clear();
        state.request = None;
        if !state.is_gone {
            self.bar.fill(0x14, 0x20, 0);
        }
    }

    fn interrupt_count(&self) -> usize {
        3
    }

    fn set_interrupts(&self, vectors: Vec<Interrupt>) {
        self.state().interrupts = vectors;
    }

    fn dma_map(
        &self,
        iova: u64,
        memory: SharedMemory,
        offset: usize,
        bytes: usize,
    ) -> Result<(), String> {
        let mut state = self.state();
        let end = iova + u64::try_from(bytes).expect("64 bits");
        if let Some((at, (_, _, length))) = state.mappings.range(..end).next_back() {
            let before = at + u64::try_from(*length).expect("64 bits");
            assert!(
                before <= iova,
                "{iova:#x} is mapped already, from {at:#x} on"
            );
        }
        state.mappings.insert(iova, (memory, offset, bytes));
        Ok(())
    }

    fn dma_unmap(&self, iova: u64, bytes: usize) -> Result<(), String> {
        let removed = self.state().mappings.remove(&iova);
        let (_, _, length) = removed.ok_or_else(|| "it is not mapped".to_owned())?;
        assert_eq!(length, bytes, "a part of a mapping at {iova:#x}");
        Ok(())
    }

    fn iova_ranges(&self) -> Vec<RangeInclusive<u64>> {
        vec![0x1000..=u64::MAX >> 16]
    }

    fn clock(&self) -> Arc<dyn Clock> {
        Arc::clone(&self.clock) as Arc<dyn Clock>
    }
}
