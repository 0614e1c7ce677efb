//! A device that returns false values.
//!
//! It wraps a complete simulated function, so that a driver gets far before the first false value. Each register write
//! and each sleep of the driver is an occasion. On certain occasions the device injects one [`Injection`]: it changes
//! an answer, forges a queue entry, sets a false register value or raises a spurious interrupt. Its information about
//! the driver is that of a device: the commands that it got, and the memory that they name. In addition it knows the
//! owners of the harness's queue pairs, and the order in which they are created.
//!
//! Virtual time advances a little whenever the driver reads the clock. If a driver is not done after `MOST_OCCASIONS`
//! occasions, the test fails because the driver hangs.

use bolero::TypeGenerator;
use driver::{Clock, Device, Instant, Interrupt, SharedMemory};
use hw_sim::{Profile, Sim, SimConfig, SimFunction};
use mlx_prm::*;
use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Number of register writes and sleeps after which the test fails because the driver hangs.
const MOST_OCCASIONS: u64 = 400_000;
/// Virtual time that each read of the clock takes.
const READ_TIME: Duration = Duration::from_nanos(200);
const UAR_BYTES: u64 = 4_096;

/// A false value, forged entry or spurious interrupt that the device injects.
#[derive(Clone, Debug, TypeGenerator)]
pub enum Injection {
    /// Flips bits of the output in the last command's entry.
    Output { at: u8, bits: u8 },
    /// Changes the dword in which a create command returns the object's number.
    Number { value: u32 },
    /// Fills the whole output of the command, mailboxes included, with this byte. The status does not change.
    Filled { byte: u8 },
    /// Flips bits in the command's first mailbox: data, next pointer, token or signature.
    Mailbox { at: u16, bits: u8 },
    /// Changes a dword in the command's mailboxes.
    Dword { at: u16, value: u32 },
    /// Changes the command's status and syndrome.
    Status { status: u8, syndrome: u32 },
    /// Changes the byte with the command's delivery status and ownership bit. If the lowest bit is set, the device
    /// never answers the command.
    Delivery { status_own: u8 },
    /// Forges an event in one of the four entries that the driver reads next.
    Event {
        queue: u8,
        kind: EventKind,
        number: u32,
        bytes: [u8; 4],
        ahead: u8,
    },
    /// Forges a completion in one of the four entries that the driver reads next.
    Completion {
        of: Of,
        opcode: u8,
        counter: u16,
        bytes: u32,
        syndrome: u8,
        ahead: u8,
    },
    /// Flips bits in a completion queue.
    CompletionBytes { queue: u8, at: u16, bits: u8 },
    /// Sets a false register value.
    Register { which: u8, value: u32 },
    /// Makes configuration space read as all ones from now on, if `really` is below 32.
    Gone { really: u8 },
    /// Raises all interrupts, as every injection does.
    Interrupts,
}

/// Event types that a driver handles.
#[derive(Clone, Copy, Debug, TypeGenerator)]
pub enum EventKind {
    Commands,
    Pages { count: i32 },
    FewPages { count: i8 },
    ReleaseAll,
    Completion,
    CqError,
    QpError,
    LastWqe,
    Limit,
    Port { sub_type: u8 },
    Any(u8),
}

/// The queue pair to which a forged completion belongs.
#[derive(Clone, Copy, Debug, TypeGenerator)]
pub enum Of {
    /// QP 1 or one of the consumer's queue pairs, with the completion queue that it uses.
    Known(u8),
    Unknown {
        queue: u8,
        qpn: u32,
        owner: u32,
    },
}

/// An injection and its time: the number of occasions since the previous injection.
#[derive(Clone, Debug, TypeGenerator)]
pub struct ScheduledInjection {
    after: u8,
    injection: Injection,
}

struct Command {
    slot: u64,
    outputs: Vec<u64>,
}

struct Ring {
    iova: u64,
    log_size: u32,
    /// IOVA of the doorbell record; 0 for event queues.
    record: u64,
    number: u32,
    consumer: u32,
}

/// Mutable state of the device.
pub struct State {
    maps: BTreeMap<u64, (SharedMemory, usize, usize)>,
    interrupts: Vec<Interrupt>,
    injections: std::vec::IntoIter<ScheduledInjection>,
    next: Option<ScheduledInjection>,
    occasions: u64,
    pub injected: usize,
    gone: bool,
    queue: u64,
    last: Option<Command>,
    eqs: Vec<Ring>,
    cqs: Vec<Ring>,
    qpns: Vec<u32>,
    /// True once the device makes no further injections.
    honest: bool,
    /// True if the intervals between injections are short.
    busy: bool,
}

/// The lying device.
pub struct FaultyDevice {
    pub sim: Sim,
    pub function: Arc<SimFunction>,
    bar: SharedMemory,
    state: Mutex<State>,
    clock: Arc<dyn Clock>,
    /// Virtual nanoseconds that reads of the clock have taken.
    reads_took: AtomicU64,
    this: std::sync::Weak<FaultyDevice>,
}

impl FaultyDevice {
    pub fn new(injections: Vec<ScheduledInjection>) -> Arc<Self> {
        let sim = Sim::new(SimConfig {
            seed: 1,
            event_log: false,
        });
        let mut profile = Profile::named("liar", [2, 0, 0x5e, 0, 0, 1]);
        profile.pages.boot = 3;
        profile.pages.init = 5;
        profile.pages.regular = 1;
        profile.pages.runtime = 2;
        profile.bar_bytes = 1 << 16;
        profile.boot_time = Duration::from_millis(1);
        let function = sim.add_function(profile);
        Arc::new_cyclic(|this| Self {
            bar: function.bar(0).expect("a BAR"),
            clock: sim.clock(),
            sim,
            function,
            state: Mutex::new(State {
                maps: BTreeMap::new(),
                interrupts: Vec::new(),
                injections: injections.into_iter(),
                next: None,
                occasions: 0,
                injected: 0,
                gone: false,
                queue: 0,
                last: None,
                eqs: Vec::new(),
                cqs: Vec::new(),
                qpns: Vec::new(),
                honest: false,
                busy: false,
            }),
            reads_took: AtomicU64::new(0),
            this: this.clone(),
        })
    }

    pub fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Replaces the injections and shortens their intervals. Called once the driver is open.
    pub fn set_injections(&self, injections: Vec<ScheduledInjection>) {
        let mut state = self.state();
        state.injections = injections.into_iter();
        state.next = None;
        state.busy = true;
    }

    /// Stops the injections. The driver has been closed, so no mapping may be left.
    pub fn stop_lying(&self) {
        let mut state = self.state();
        assert!(
            state.maps.is_empty(),
            "a driver that has ended leaves {:x?} mapped",
            state.maps.keys()
        );
        state.honest = true;
        state.gone = false;
        state.occasions = 0;
    }

    /// Handles an occasion: a register write, a sleep of the driver, or an action of the harness. Makes the next
    /// injection if it is due.
    pub fn occasion(&self) {
        let mut state = self.state();
        state.occasions += 1;
        assert!(
            state.occasions < MOST_OCCASIONS,
            "the driver does not come to an end"
        );
        if state.honest {
            return;
        }
        if state.next.is_none() {
            state.next = state.injections.next();
            if state.busy
                && let Some(scheduled) = &mut state.next
            {
                scheduled.after %= 4;
            }
        }
        let Some(scheduled) = &mut state.next else {
            return;
        };
        if scheduled.after > 0 {
            scheduled.after -= 1;
            return;
        }
        let Some(ScheduledInjection { injection, .. }) = state.next.take() else {
            return;
        };
        state.injected += 1;
        state.inject(&self.bar, &injection);
    }
}

impl State {
    fn find(&self, iova: u64, bytes: usize) -> Option<(&SharedMemory, usize)> {
        let (&start, (memory, offset, mapped)) = self.maps.range(..=iova).next_back()?;
        let at = usize::try_from(iova - start).ok()?;
        (at.checked_add(bytes)? <= *mapped).then_some((memory, offset + at))
    }

    fn read(&self, iova: u64, out: &mut [u8]) {
        if let Some((memory, at)) = self.find(iova, out.len()) {
            memory.read_bytes(at, out);
        }
    }

    fn write(&self, iova: u64, data: &[u8]) {
        if let Some((memory, at)) = self.find(iova, data.len()) {
            memory.write_bytes(at, data);
        }
    }

    fn flip(&self, iova: u64, bits: u8) {
        let mut byte = [0];
        self.read(iova, &mut byte);
        self.write(iova, &[byte[0] ^ bits]);
    }

    /// Records a command before it is executed.
    fn note_command(&mut self, slot: u64) {
        let mut entry = [0; 64];
        self.read(self.queue + slot * 64, &mut entry);
        let entry = CmdQueueEntry::from_array(entry);
        let mut outputs = Vec::new();
        let mut at = entry.output_mailbox_pointer();
        while at != 0 && outputs.len() < 16 {
            outputs.push(at);
            let mut next = [0; 8];
            self.read(at + 0x230, &mut next);
            at = u64::from_be_bytes(next);
        }
        self.last = Some(Command { slot, outputs });
    }

    /// Records the object that a command created.
    fn note_creation(&mut self, slot: u64) {
        let mut entry = [0; 64];
        self.read(self.queue + slot * 64, &mut entry);
        let opcode = Opcode(u16::from_be_bytes([entry[0x10], entry[0x11]]));
        let number = u32::from_be_bytes([0, entry[0x29], entry[0x2a], entry[0x2b]]);
        if entry[0x20] != 0
            || !matches!(
                opcode,
                Opcode::CREATE_EQ | Opcode::CREATE_CQ | Opcode::CREATE_QP
            )
        {
            return;
        }
        let entry = CmdQueueEntry::from_array(entry);
        let mut input = entry.command_input_inline_data().to_vec();
        input.resize(16 + 512, 0);
        self.read(entry.input_mailbox_pointer(), &mut input[16..]);
        let word = |at: usize| {
            input[at..at + 8]
                .iter()
                .fold(0, |value, &byte| value << 8 | u64::from(byte))
        };
        match opcode {
            Opcode::CREATE_EQ => {
                let log_size = u32::from(input[0x10 + 0x0c] & 0x1f);
                self.eqs.push(Ring {
                    iova: word(0x110),
                    log_size,
                    record: 0,
                    number: number & 0xff,
                    consumer: 0,
                });
            }
            Opcode::CREATE_CQ => {
                let log_size = u32::from(input[0x10 + 0x0c] & 0x1f);
                let record = word(0x10 + 0x38);
                self.cqs.push(Ring {
                    iova: word(0x110),
                    log_size,
                    record,
                    number,
                    consumer: 0,
                });
            }
            _ => self.qpns.push(number),
        }
    }

    /// Returns the index of the completion queue, the queue pair number and the owner for a completion.
    fn resolve(&self, of: Of) -> (usize, u32, u32) {
        match of {
            // The driver creates QP 1 and its completion queue before those of the consumer.
            Of::Known(which) => {
                let which = usize::from(which % 3);
                let owner = [0xff_ffff, 7, 8][which];
                (
                    which.min(1),
                    self.qpns.get(which).copied().unwrap_or(0),
                    owner,
                )
            }
            Of::Unknown { queue, qpn, owner } => {
                (usize::from(queue) % self.cqs.len().max(1), qpn, owner)
            }
        }
    }

    fn inject(&mut self, bar: &SharedMemory, injection: &Injection) {
        match *injection {
            Injection::Output { at, bits } => self
                .change_entry(|state, entry| state.flip(entry + 0x20 + u64::from(at % 16), bits)),
            Injection::Number { value } => {
                self.change_entry(|state, entry| state.write(entry + 0x28, &value.to_be_bytes()))
            }
            Injection::Filled { byte } => {
                self.change_entry(|state, entry| state.write(entry + 0x21, &[byte; 15]));
                self.change_mailboxes(|state, mailbox, _| state.write(mailbox, &[byte; 512]));
            }
            Injection::Mailbox { at, bits } => self.change_mailboxes(|state, mailbox, number| {
                if number == 0 {
                    state.flip(mailbox + u64::from(at) % 0x240, bits);
                }
            }),
            Injection::Dword { at, value } => self.change_mailboxes(|state, mailbox, number| {
                // The first or the second mailbox, since most fields are at the beginning of a page.
                if number == u64::from(at >> 15) {
                    state.write(mailbox + u64::from(at) % 128 * 4, &value.to_be_bytes());
                }
            }),
            Injection::Status { status, syndrome } => self.change_entry(|state, entry| {
                state.write(entry + 0x20, &[status]);
                state.write(entry + 0x24, &syndrome.to_be_bytes());
            }),
            Injection::Delivery { status_own } => {
                self.change_entry(|state, entry| state.write(entry + 0x3f, &[status_own]))
            }
            Injection::Event {
                queue,
                kind,
                number,
                bytes,
                ahead,
            } => self.event(queue, kind, number, bytes, ahead),
            Injection::Completion {
                of,
                opcode,
                counter,
                bytes,
                syndrome,
                ahead,
            } => {
                let (queue, qpn, owner) = self.resolve(of);
                // Mostly the opcode of a successful or failed request or receive.
                let opcode = if opcode < 192 {
                    [0, 2, 13, 14][usize::from(opcode) % 4]
                } else {
                    opcode % 16
                };
                let mut cqe = Cqe64::new();
                cqe.set_srqn_uidx(owner & 0xff_ffff)
                    .set_qpn(qpn & 0xff_ffff)
                    .set_byte_cnt(if bytes > 1 << 31 {
                        bytes
                    } else {
                        bytes % 4_096
                    })
                    .set_wqe_counter(counter % 32);
                let mut cqe = *cqe.as_array();
                if matches!(opcode, 13 | 14) {
                    cqe[0x37] = syndrome;
                }
                self.completion(queue, opcode, ahead, &cqe);
            }
            Injection::CompletionBytes { queue, at, bits } => {
                if let Some(ring) = self.cqs.get(usize::from(queue) % self.cqs.len().max(1)) {
                    self.flip(ring.iova + u64::from(at) % (64 << ring.log_size), bits);
                }
            }
            Injection::Register { which, value } => {
                let registers = [
                    0x00, 0x04, 0x10, 0x14, 0x18, 0x1fc, 0x230, 0x234, 0x238, 0x23c, 0x1000, 0x1010,
                ];
                bar.store_be32(registers[usize::from(which) % registers.len()], value);
            }
            Injection::Gone { really } => self.gone |= really < 32,
            Injection::Interrupts => {}
        }
        for interrupt in &self.interrupts {
            interrupt.signal();
        }
    }

    fn change_entry(&mut self, change: impl FnOnce(&Self, u64)) {
        if let Some(command) = &self.last {
            change(self, self.queue + command.slot * 64);
        }
    }

    fn change_mailboxes(&mut self, change: impl Fn(&Self, u64, u64)) {
        if let Some(command) = &self.last {
            (0..)
                .zip(&command.outputs)
                .for_each(|(number, &mailbox)| change(self, mailbox, number));
        }
    }

    fn event(&mut self, queue: u8, kind: EventKind, number: u32, bytes: [u8; 4], ahead: u8) {
        let Some(ring) = self.eqs.get(usize::from(queue) % self.eqs.len().max(1)) else {
            return;
        };
        let mut eqe = [0; 64];
        let known = [
            &self.cqs.iter().map(|ring| ring.number).collect::<Vec<_>>()[..],
            &self.qpns,
        ]
        .concat();
        let known = known
            .get(usize::from(bytes[0]) % known.len().max(1))
            .copied()
            .unwrap_or(number);
        let number = if bytes[1] < 192 { known } else { number };
        eqe[0x20..0x24].copy_from_slice(&number.to_be_bytes());
        eqe[0x38..0x3c].copy_from_slice(&number.to_be_bytes());
        eqe[0x01] = match kind {
            EventKind::Commands => {
                eqe[0x20..0x24].copy_from_slice(&bytes);
                EventType::CMD.0
            }
            EventKind::Pages { count } => {
                eqe[0x20..0x24].fill(0);
                eqe[0x24..0x28].copy_from_slice(&count.to_be_bytes());
                EventType::PAGE_REQUEST.0
            }
            EventKind::FewPages { count } => {
                eqe[0x20..0x24].fill(0);
                eqe[0x24..0x28].copy_from_slice(&i32::from(count).to_be_bytes());
                EventType::PAGE_REQUEST.0
            }
            EventKind::ReleaseAll => {
                eqe[0x20..0x24].copy_from_slice(&[0x40, 0, 0, 0]);
                EventType::PAGE_REQUEST.0
            }
            EventKind::Completion => EventType::COMP.0,
            EventKind::CqError => EventType::CQ_ERROR.0,
            EventKind::QpError => EventType::WQ_CATAS_ERROR.0,
            EventKind::LastWqe => EventType::SRQ_LAST_WQE.0,
            EventKind::Limit => EventType::SRQ_RQ_LIMIT.0,
            EventKind::Port { sub_type } => {
                eqe[0x03] = sub_type;
                EventType::PORT_CHANGE.0
            }
            EventKind::Any(kind) => kind,
        };
        // The index of one of the next four entries.
        let index = ring.consumer.wrapping_add(u32::from(ahead / 64));
        eqe[0x3f] = u8::from(index >> ring.log_size & 1 == 1);
        self.write(
            ring.iova + u64::from(index & ((1 << ring.log_size) - 1)) * 64,
            &eqe,
        );
    }

    fn completion(&mut self, queue: usize, opcode: u8, ahead: u8, cqe: &[u8; 64]) {
        let Some(ring) = self.cqs.get(queue) else {
            return;
        };
        let mut consumer = [0; 4];
        self.read(ring.record, &mut consumer);
        let index = u32::from_be_bytes(consumer).wrapping_add(u32::from(ahead / 64));
        let mut cqe = *cqe;
        cqe[0x3f] = opcode << 4 | u8::from(index >> ring.log_size & 1 == 1);
        self.write(
            ring.iova + u64::from(index & ((1 << ring.log_size) - 1)) * 64,
            &cqe,
        );
    }
}

impl Device for FaultyDevice {
    fn name(&self) -> &str {
        "liar"
    }

    fn config_read(&self, offset: u16, out: &mut [u8]) {
        self.function.config_read(offset, out);
        if self.state().gone {
            out.fill(0xff);
        }
    }

    fn config_write(&self, offset: u16, data: &[u8]) {
        self.function.config_write(offset, data);
    }

    fn bar(&self, index: u8) -> Option<SharedMemory> {
        self.function.bar(index)
    }

    fn bar_written(&self, index: u8, offset: u64, bytes: &[u8]) {
        let value = bytes
            .iter()
            .fold(0, |value, &byte| value << 8 | u64::from(byte));
        let slot = u64::from(value.trailing_zeros());
        if offset == 0x18 {
            self.state().note_command(slot);
        }
        self.function.bar_written(index, offset, bytes);
        {
            let mut state = self.state();
            match offset {
                0x10 => state.queue = value << 32,
                0x14 => state.queue = (state.queue & !0xffff_ffff) | (value & 0xffff_f000),
                0x18 => state.note_creation(slot),
                _ if matches!(offset % UAR_BYTES, 0x40 | 0x48) && offset >= UAR_BYTES => {
                    let number = value >> 24;
                    let ring = state
                        .eqs
                        .iter_mut()
                        .find(|ring| u64::from(ring.number) == number);
                    if let Some(ring) = ring {
                        ring.consumer = u32::try_from(value & 0xff_ffff).expect("24 bits");
                    }
                }
                _ => {}
            }
        }
        self.occasion();
    }

    fn reset(&self) {
        self.function.reset();
        let mut state = self.state();
        (state.last, state.queue) = (None, 0);
        state.eqs.clear();
        state.cqs.clear();
        state.qpns.clear();
    }

    fn interrupt_count(&self) -> usize {
        self.function.interrupt_count()
    }

    fn set_interrupts(&self, vectors: Vec<Interrupt>) {
        self.state().interrupts = vectors.clone();
        self.function.set_interrupts(vectors);
    }

    fn dma_map(
        &self,
        iova: u64,
        memory: SharedMemory,
        offset: usize,
        bytes: usize,
    ) -> Result<(), String> {
        self.function.dma_map(iova, memory.clone(), offset, bytes)?;
        self.state().maps.insert(iova, (memory, offset, bytes));
        Ok(())
    }

    fn dma_unmap(&self, iova: u64, bytes: usize) -> Result<(), String> {
        self.state().maps.remove(&iova);
        self.function.dma_unmap(iova, bytes)
    }

    fn iova_ranges(&self) -> Vec<RangeInclusive<u64>> {
        self.function.iova_ranges()
    }

    fn clock(&self) -> Arc<dyn Clock> {
        Arc::new(LiarClock(
            self.this.upgrade().expect("whoever asks holds it"),
        ))
    }
}

/// A clock with the simulator's time plus the time that reads of this clock have taken.
struct LiarClock(Arc<FaultyDevice>);

impl Clock for LiarClock {
    fn now(&self) -> Instant {
        let read_time = u64::try_from(READ_TIME.as_nanos()).expect("short");
        let spent = self.0.reads_took.fetch_add(read_time, Ordering::Relaxed) + read_time;
        Instant(self.0.clock.now().0 + spent)
    }

    fn wait(&self, interrupts: &[Interrupt], deadline: Instant) -> bool {
        self.0.occasion();
        let spent = self.0.reads_took.load(Ordering::Relaxed);
        self.0
            .clock
            .wait(interrupts, Instant(deadline.0.saturating_sub(spent)))
    }
}
