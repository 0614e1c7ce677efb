//! A device double: answers commands by script, and checks every byte that the driver hands over.
//!
//! The double is not a simulator, because it executes nothing. It decodes the command queue with its own code (offsets
//! from the PRM, none of the driver's layouts) and records every rule of the transport that the driver breaks. It
//! answers as the test scripts it: it refuses, holds, answers late, without an event, or with a wrong signature. Time
//! advances only when the driver waits, and then to the next scripted action.

use std::collections::{BTreeMap, VecDeque};
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use driver::{Clock, Device, Function, Instant, Interrupt, SharedMemory};

/// UAR page that the double allocates to the driver.
const UAR: u32 = 4;
const BAR_BYTES: usize = 0x10000;
const MAC: [u8; 6] = [0x02, 0x00, 0x5e, 0x00, 0x00, 0x01];

/// Reaction of the double to a command that matches a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Refuses the command with this status and syndrome.
    Refuse(u8, u32),
    /// Answers with this delivery status in the queue entry.
    Deliver(u8),
    /// Holds the command until [`State::release`].
    Hold,
    /// Answers without a completion event.
    NoEvent,
    /// Answers with one bit flipped after the signature was computed.
    Damage,
    /// Answers with status OK and otherwise noise from this seed. Does not execute the command.
    Noise(u64),
}

/// A command as the double received it.
#[derive(Clone, Debug)]
pub struct Seen {
    pub opcode: u16,
    pub op_mod: u16,
    pub slot: usize,
    pub token: u8,
    pub input: Vec<u8>,
    pub output_bytes: usize,
    pub input_blocks: Vec<u64>,
    pub output_blocks: Vec<u64>,
}

struct Eq {
    ring: u64,
    log_size: u32,
    mask: u64,
    vector: usize,
    producer: u32,
    consumer: u32,
    armed: bool,
}

enum ScheduledAction {
    OfDevice(Box<dyn FnOnce(&mut State) + Send>),
    OfHost(Box<dyn FnOnce() + Send>),
}

/// State of the double that changes.
pub struct State {
    bar: SharedMemory,
    config: Vec<u8>,
    maps: Vec<(u64, SharedMemory, usize, usize)>,
    interrupts: Vec<Interrupt>,
    vectors: usize,
    eqs: BTreeMap<u8, Eq>,
    /// Values written to the doorbells of event queues: the queue's number and its counter.
    pub eq_doorbells: Vec<u32>,
    rules: VecDeque<(u16, Action)>,
    held: BTreeMap<usize, Seen>,
    scheduled: Vec<(u64, ScheduledAction)>,
    numbers: u32,
    signing: bool,
    /// Time that the firmware takes to boot once it knows its command queue, and the time when it has booted.
    boots_for: u64,
    boots_until: u64,
    /// Time until which the registers read as ones after a reset.
    silent_until: u64,
    silent: bool,
    frozen_counter: bool,
    /// Capability pages that the driver has set, by type.
    set_caps: BTreeMap<u16, Vec<u8>>,
    /// Commands in the order of their arrival.
    pub seen: Vec<Seen>,
    /// Rules of the transport that the driver has broken.
    pub violations: Vec<String>,
    /// Addresses of the pages that the driver has given.
    pub pages: Vec<u64>,
    /// Numbers of pages in the answers to QUERY_PAGES, by op_mod.
    pub wants: BTreeMap<u16, u32>,
    /// Capability dwords by (type, offset). Maximum and current values are the same.
    pub caps: BTreeMap<(u16, usize), u32>,
    /// Word 0x04 of the initialization segment: command interface revision.
    pub interface: u32,
    /// Word 0x14 of the initialization segment at reset: geometry of the command queue.
    pub geometry: u32,
    /// Bit mask of supported ISSIs in the answer to QUERY_ISSI.
    pub issi: u32,
    /// Offsets and values of further registers at reset.
    pub segment: Vec<(usize, u32)>,
    /// UAR page in the answer to ALLOC_UAR.
    pub uar: u32,
    /// The vport's MAC.
    pub mac: [u8; 6],
    /// The vport's list of unicast addresses.
    pub unicast: Vec<[u8; 8]>,
    /// True if the device accepts SET_HCA_CAP without applying it.
    pub keeps_no_caps: bool,
    /// True if the device is the function of the adapter's own processor.
    pub embedded_cpu: bool,
    /// True if the device was removed from the bus.
    pub gone: bool,
    /// MTU of the vport in bytes, as the hardware counts.
    pub vport_mtu: u16,
    /// True if the device refuses to change the vport's MTU.
    pub vport_mtu_fixed: bool,
    /// MTU of the port in bytes, as the hardware counts; `None` if the device refuses access to its register.
    pub port_mtu: Option<u16>,
    /// True if the device accepts an address list without keeping it.
    pub forgets_lists: bool,
    /// Time that the firmware asks for to return its pages: `reclaim_pages_to` of register DTOR.
    pub reclaim_limit: u32,
    /// True if INIT_HCA clears the command queue's address in the initialization segment.
    pub clears_queue_address: bool,
    /// Address of the command queue that INIT_HCA has cleared.
    cleared_queue: Option<u64>,
}

/// The device double.
pub struct Double {
    state: Mutex<State>,
    clock: Arc<ManualClock>,
}

/// A clock that advances only when the driver waits.
pub struct ManualClock {
    now: AtomicU64,
    device: Weak<Double>,
}

impl Double {
    /// Makes a double on which bring-up succeeds.
    pub fn new() -> Arc<Self> {
        Arc::new_cyclic(|device| {
            let bar = SharedMemory::anonymous(BAR_BYTES).expect("memory");
            let mut config = vec![0u8; 4096];
            config[..4].copy_from_slice(&[0xb3, 0x15, 0x17, 0x10]);
            let mut caps = BTreeMap::new();
            // Capabilities of a ConnectX-4 Lx (see caps.rs), limited to those that the driver needs.
            for (at, word) in [
                (0x10, 0x0f0f_000e),
                (0x18, 0x0016_0018),
                (0x1c, 0x1618_0008),
                (0x20, 0x0440_1010),
                (0x28, 0x0004_0004),
                (0x34, 0xc610_0101),
                (0x38, 0x1e00_0000),
                (0x3c, 0x0001_0001),
                (0x40, 0x0000_c004),
                (0x44, 0x0000_000f),
                (0x48, 0x0005_000c),
                (0x4c, 0x4009_0000),
                (0x50, 0x0000_0400),
                (0x54, 0x0000_0200),
            ] {
                caps.insert((0, at), word);
            }
            for (at, word) in [
                (0x10, 0x0006_0004),
                (0x14, 4791),
                (0x18, 0xffff_c000),
                (0x1c, 16),
            ] {
                caps.insert((4, at), word);
            }
            Self {
                state: Mutex::new(State {
                    bar,
                    config,
                    maps: Vec::new(),
                    interrupts: Vec::new(),
                    vectors: 2,
                    eqs: BTreeMap::new(),
                    eq_doorbells: Vec::new(),
                    rules: VecDeque::new(),
                    held: BTreeMap::new(),
                    scheduled: Vec::new(),
                    numbers: 0x10,
                    signing: false,
                    boots_for: 0,
                    boots_until: 0,
                    silent_until: 0,
                    silent: false,
                    set_caps: BTreeMap::new(),
                    keeps_no_caps: false,
                    embedded_cpu: false,
                    gone: false,
                    vport_mtu: 1522,
                    port_mtu: Some(1522),
                    vport_mtu_fixed: false,
                    frozen_counter: false,
                    seen: Vec::new(),
                    violations: Vec::new(),
                    pages: Vec::new(),
                    wants: BTreeMap::from([(1, 3), (2, 70), (3, 0)]),
                    caps,
                    interface: 5 << 16,
                    geometry: 0x56,
                    issi: 0b10,
                    segment: Vec::new(),
                    uar: UAR,
                    mac: MAC,
                    // This entry was left by another driver.
                    unicast: vec![[0, 0, 0x02, 0xde, 0xad, 0, 0, 1]],
                    forgets_lists: false,
                    reclaim_limit: 0,
                    clears_queue_address: false,
                    cleared_queue: None,
                }),
                clock: Arc::new(ManualClock {
                    now: AtomicU64::new(1_000_000),
                    device: device.clone(),
                }),
            }
        })
    }

    /// Returns the function by which the driver accesses the double.
    pub fn function(self: &Arc<Self>) -> Function {
        Function::in_process(Arc::clone(self) as Arc<dyn Device>).expect("a function")
    }

    pub fn state(&self) -> MutexGuard<'_, State> {
        // If a test panicked while it held the lock, that test has failed already.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Applies `action` to the next command with this opcode that no earlier rule applies to.
    pub fn rule(&self, opcode: u16, action: Action) {
        self.state().rules.push_back((opcode, action));
    }

    /// Runs `action` after the given time.
    pub fn after(&self, delay: Duration, action: impl FnOnce(&mut State) + Send + 'static) {
        self.schedule(delay, ScheduledAction::OfDevice(Box::new(action)));
    }

    /// Runs `action` after the given time, while a thread of the host sleeps. `action` may use the driver.
    pub fn meanwhile(&self, delay: Duration, action: impl FnOnce() + Send + 'static) {
        self.schedule(delay, ScheduledAction::OfHost(Box::new(action)));
    }

    fn schedule(&self, delay: Duration, action: ScheduledAction) {
        let at = self.clock.now().0 + u64::try_from(delay.as_nanos()).expect("short");
        self.state().scheduled.push((at, action));
    }

    /// Answers a held command.
    pub fn release(&self, slot: usize) {
        self.state().release(slot);
    }

    /// Sets the number of MSI-X vectors. Must be called before the function is opened.
    pub fn set_vectors(&self, vectors: usize) {
        self.state().vectors = vectors;
    }

    /// Sets the PCI device id.
    pub fn set_device(&self, id: u16) {
        let [high, low] = id.to_be_bytes();
        self.state().config[2..4].copy_from_slice(&[low, high]);
    }

    /// Sets the time that the firmware takes to boot once it knows its command queue.
    pub fn boots_for(&self, time: Duration) {
        self.state().boots_for = u64::try_from(time.as_nanos()).expect("short");
    }

    /// Makes the registers read as ones until `time`. Values written before that are lost.
    pub fn silent_until(&self, time: Instant) {
        self.state().silent_until = time.0;
    }

    pub fn now(&self) -> Instant {
        self.clock.now()
    }
}

impl State {
    // --- memory -------------------------------------------------------------------------------

    fn bus_master(&self) -> bool {
        self.config[4] & 4 != 0
    }

    fn dma(&mut self, iova: u64, bytes: usize) -> Option<(SharedMemory, usize)> {
        if !self.bus_master() {
            self.violations
                .push(format!("DMA at {iova:#x} with bus mastering off"));
            return None;
        }
        let found = self.maps.iter().find_map(|(base, memory, offset, len)| {
            let at = usize::try_from(iova.checked_sub(*base)?).ok()?;
            (at + bytes <= *len).then(|| (memory.clone(), offset + at))
        });
        if found.is_none() {
            self.violations
                .push(format!("DMA at {iova:#x}: not mapped"));
        }
        found
    }

    pub fn read(&mut self, iova: u64, bytes: usize) -> Vec<u8> {
        let mut out = vec![0; bytes];
        if let Some((memory, at)) = self.dma(iova, bytes) {
            memory.read_bytes(at, &mut out);
        }
        out
    }

    pub fn write(&mut self, iova: u64, data: &[u8]) {
        if let Some((memory, at)) = self.dma(iova, data.len()) {
            memory.write_bytes(at, data);
        }
    }

    fn register(&self, at: usize) -> u32 {
        self.bar.load_be32(at)
    }

    /// Changes a register without notifying the driver.
    pub fn set_register(&self, at: usize, value: u32) {
        self.bar.store_be32(at, value);
    }

    /// Stops the health counter.
    pub fn freeze_counter(&mut self) {
        self.frozen_counter = true;
    }

    fn tick(&mut self, now: u64) {
        let silent = self.gone || now < self.silent_until;
        if silent && !self.silent {
            self.bar.fill(0, BAR_BYTES, 0xff);
        } else if !silent && self.silent {
            self.wake();
        }
        self.silent = silent;
        if silent {
            return;
        }
        let booting = if now < self.boots_until { 1 << 31 } else { 0 };
        self.set_register(0x1fc, booting | u32::from(self.embedded_cpu) << 23);
        if !self.frozen_counter {
            let counter = u32::try_from((now / 1_000_000) & 0xff_ffff).expect("24 bits");
            let kept = self.register(0x1010) & 0xff00_0000;
            self.set_register(0x1010, kept | counter);
        }
    }

    /// Sets the registers to their values after a reset.
    fn wake(&mut self) {
        self.cleared_queue = None;
        self.bar.fill(0, BAR_BYTES, 0);
        self.set_register(0x00, 35 << 16 | 16);
        self.set_register(0x04, self.interface);
        self.set_register(0x14, self.geometry);
        for (at, value) in self.segment.clone() {
            self.set_register(at, value);
        }
    }

    // --- the command interface ----------------------------------------------------------------

    fn record_violation(&mut self, what: String) {
        self.violations.push(what);
    }

    fn queue(&self) -> u64 {
        self.cleared_queue.unwrap_or_else(|| {
            u64::from(self.register(0x10)) << 32 | u64::from(self.register(0x14) & 0xffff_f000)
        })
    }

    fn entry(&self, slot: usize) -> u64 {
        self.queue() + ((slot as u64) << (self.geometry & 0xf))
    }

    /// Reads a chain of mailboxes, and checks every block. Returns the addresses of the blocks, and their data.
    fn walk(&mut self, what: &str, first: u64, bytes: usize, token: u8) -> (Vec<u64>, Vec<u8>) {
        let (mut blocks, mut data, mut at) = (Vec::new(), Vec::new(), first);
        for number in 0..bytes.saturating_sub(16).div_ceil(512) {
            if at == 0 || at % 1024 != 0 {
                self.record_violation(format!("{what} block {number} at {at:#x}"));
                break;
            }
            let block = self.read(at, 0x240);
            if u32::from_be_bytes([block[0x238], block[0x239], block[0x23a], block[0x23b]]) as usize
                != number
            {
                self.record_violation(format!("{what} block {number}: wrong number"));
            }
            if block[0x23d] != token {
                self.record_violation(format!(
                    "{what} block {number}: token {:#x}, entry has {token:#x}",
                    block[0x23d]
                ));
            }
            if xor(&block[0x200..0x23f]) != 0xff || xor(&block) != 0xff {
                self.record_violation(format!("{what} block {number}: signature"));
            }
            if block[0x200..0x230].iter().any(|byte| *byte != 0) {
                self.record_violation(format!("{what} block {number}: reserved bytes"));
            }
            blocks.push(at);
            data.extend_from_slice(&block[..512]);
            at = u64::from_be_bytes(block[0x230..0x238].try_into().expect("8 bytes"));
        }
        if at != 0 && !blocks.is_empty() {
            self.record_violation(format!("{what}: the last block links to {at:#x}"));
        }
        (blocks, data)
    }

    fn doorbell(&mut self, vector: u32) {
        for slot in (0..32).filter(|slot| vector & 1 << slot != 0) {
            let entry = self.read(self.entry(slot), 64);
            let be32 =
                |at: usize| u32::from_be_bytes(entry[at..at + 4].try_into().expect("4 bytes"));
            let be64 =
                |at: usize| u64::from_be_bytes(entry[at..at + 8].try_into().expect("8 bytes"));
            if entry[0] != 7 || entry[0x3f] != 1 || entry[0x20..0x30].iter().any(|byte| *byte != 0)
            {
                self.record_violation(format!("slot {slot}: entry {entry:02x?}"));
            }
            if xor(&entry) != 0xff {
                self.record_violation(format!("slot {slot}: entry signature"));
            }
            if self.held.contains_key(&slot) {
                self.record_violation(format!("slot {slot}: rung while the device has it"));
            }
            let (input_bytes, output_bytes) = (be32(4) as usize, be32(0x38) as usize);
            let token = entry[0x3c];
            let mut input = entry[0x10..0x20].to_vec();
            let (input_blocks, rest) = self.walk("input", be64(8), input_bytes, token);
            input.extend_from_slice(&rest);
            if input[input_bytes.min(input.len())..]
                .iter()
                .any(|byte| *byte != 0)
            {
                self.record_violation(format!("slot {slot}: bytes behind the input"));
            }
            input.truncate(input_bytes);
            let (output_blocks, _) = self.walk("output", be64(0x30), output_bytes, token);
            let command = Seen {
                opcode: u16::from_be_bytes([input[0], input[1]]),
                op_mod: u16::from_be_bytes([input[6], input[7]]),
                slot,
                token,
                input,
                output_bytes,
                input_blocks,
                output_blocks,
            };
            self.seen.push(command.clone());
            self.serve(command);
        }
    }

    fn serve(&mut self, command: Seen) {
        let rule = self
            .rules
            .iter()
            .position(|(opcode, _)| *opcode == command.opcode)
            .and_then(|at| self.rules.remove(at));
        let action = rule.map(|(_, action)| action);
        match action {
            Some(Action::Hold) => {
                self.held.insert(command.slot, command);
            }
            Some(Action::Deliver(status)) => self.finish(&command, &[], status << 1, true, false),
            Some(Action::Refuse(status, syndrome)) => {
                let mut output = vec![0; command.output_bytes];
                output[0] = status;
                output[4..8].copy_from_slice(&syndrome.to_be_bytes());
                self.finish(&command, &output, 0, true, false);
            }
            Some(Action::Noise(seed)) => {
                let mut noise = Noise(seed);
                let mut output: Vec<u8> = (0..command.output_bytes).map(|_| noise.byte()).collect();
                output[0] = 0;
                self.finish(&command, &output, 0, true, false);
            }
            Some(Action::NoEvent) | Some(Action::Damage) | None => {
                let output = self.execute(&command);
                self.finish(
                    &command,
                    &output,
                    0,
                    action != Some(Action::NoEvent),
                    action == Some(Action::Damage),
                );
            }
        }
    }

    /// Answers a held command.
    pub fn release(&mut self, slot: usize) {
        let command = self.held.remove(&slot).expect("a held command");
        let output = self.execute(&command);
        self.finish(&command, &output, 0, true, false);
    }

    /// Returns the slots of the held commands.
    pub fn held(&self) -> Vec<usize> {
        self.held.keys().copied().collect()
    }

    /// Returns the memory of a held command that the device owns: its entry and its mailbox blocks.
    pub fn image(&mut self, slot: usize) -> Vec<u8> {
        let command = self.held[&slot].clone();
        let mut image = self.read(self.entry(slot), 64);
        for block in command.input_blocks.iter().chain(&command.output_blocks) {
            image.extend(self.read(*block, 0x240));
        }
        image
    }

    fn finish(&mut self, command: &Seen, output: &[u8], status_own: u8, event: bool, damage: bool) {
        let at = self.entry(command.slot);
        let inline = output.len().min(16);
        self.write(at + 0x20, &output[..inline]);
        for (number, block) in command.output_blocks.iter().enumerate() {
            let mut image = self.read(*block, 0x240);
            let from = output.len().min(16 + number * 512);
            let piece = &output[from..output.len().min(from + 512)];
            image[..piece.len()].copy_from_slice(piece);
            if self.signing {
                image[0x23e] = 0;
                image[0x23e] = xor(&image[0x200..0x23f]) ^ 0xff;
                image[0x23f] = 0;
                image[0x23f] = xor(&image) ^ 0xff;
            }
            if damage {
                image[7] ^= 0x10;
            }
            self.write(*block, &image);
        }
        if self.signing {
            let mut entry = self.read(at, 64);
            entry[0x3d] = 0;
            entry[0x3f] = status_own;
            entry[0x3d] = xor(&entry) ^ 0xff;
            if damage && command.output_blocks.is_empty() {
                entry[0x2f] ^= 0x10;
            }
            self.write(at, &entry[..0x3f]);
        }
        self.write(at + 0x3f, &[status_own]);
        if event {
            let mut eqe = [0u8; 64];
            eqe[1] = 0x0a;
            eqe[0x20..0x24].copy_from_slice(&(1u32 << command.slot).to_be_bytes());
            self.event(eqe);
        }
    }

    /// Executes a command, as far as bring-up needs its effect, and returns its answer.
    fn execute(&mut self, command: &Seen) -> Vec<u8> {
        let mut output = vec![0u8; command.output_bytes];
        let argument = u32::from_be_bytes(command.input[8..12].try_into().expect("4 bytes"));
        match command.opcode {
            0x102 if self.clears_queue_address => {
                self.cleared_queue = Some(self.queue());
                self.set_register(0x10, 0);
                self.set_register(0x14, self.register(0x14) & 0xfff);
            }
            0x10a => output[0x6c..0x70].copy_from_slice(&self.issi.to_be_bytes()),
            0x107 => {
                let pages = self.wants.get(&command.op_mod).copied().unwrap_or(0);
                output[0xc..0x10].copy_from_slice(&pages.to_be_bytes());
            }
            0x108 if command.op_mod == 1 => {
                let pages: Vec<u64> = command.input[16..]
                    .chunks(8)
                    .map(|page| u64::from_be_bytes(page.try_into().expect("8 bytes")))
                    .collect();
                for page in pages {
                    if page == 0 || page % 4096 != 0 || self.pages.contains(&page) {
                        self.record_violation(format!("page {page:#x} given"));
                    }
                    // The firmware may write to a page that it was given.
                    self.write(page, &[0xfa; 4096]);
                    self.pages.push(page);
                }
            }
            0x108 if command.op_mod == 2 => {
                let room = (command.output_bytes - 16) / 8;
                let asked =
                    u32::from_be_bytes(command.input[12..16].try_into().expect("4 bytes")) as usize;
                let count = room.min(asked).min(self.pages.len());
                output[8..12].copy_from_slice(&u32::try_from(count).expect("few").to_be_bytes());
                for number in 0..count {
                    let page = self.pages.pop().expect("counted");
                    output[16 + 8 * number..24 + 8 * number].copy_from_slice(&page.to_be_bytes());
                }
            }
            0x100 => {
                let kind = command.op_mod >> 1;
                let set = self.set_caps.get(&kind).filter(|_| command.op_mod & 1 == 1);
                if let Some(page) = set {
                    output[0x10..].copy_from_slice(page);
                    return output;
                }
                for ((page, at), word) in &self.caps {
                    if *page == kind && 0x14 + at <= output.len() {
                        output[0x10 + at..0x14 + at].copy_from_slice(&word.to_be_bytes());
                    }
                }
            }
            0x109 => {
                if command.op_mod == 0 {
                    self.signing = argument_of(&command.input, 0x50) >> 14 & 3 == 3;
                }
                if !self.keeps_no_caps {
                    let page = command.input[0x10..].to_vec();
                    self.set_caps.insert(command.op_mod >> 1, page);
                }
            }
            0x301 => {
                let context = &command.input[0x10..0x50];
                let number = u8::try_from(self.eqs.len() + 1).expect("few");
                let eq = Eq {
                    ring: u64::from_be_bytes(
                        command.input[0x110..0x118].try_into().expect("8 bytes"),
                    ),
                    log_size: u32::from(context[0x0c] & 0x1f),
                    mask: u64::from_be_bytes(
                        command.input[0x58..0x60].try_into().expect("8 bytes"),
                    ),
                    vector: usize::from(context[0x17]),
                    producer: 0,
                    consumer: 0,
                    armed: false,
                };
                for entry in 0..1u64 << eq.log_size {
                    if self.read(eq.ring + 64 * entry + 0x3f, 1) != [1] {
                        self.record_violation(format!(
                            "EQ {number}: entry {entry} is not the device's"
                        ));
                        break;
                    }
                }
                self.eqs.insert(number, eq);
                output[0xb] = number;
            }
            0x302 => {
                let known = self.eqs.remove(&command.input[0xb]).is_some();
                output[0] = if known { 0 } else { 0x05 };
            }
            0x754 => {
                output[0x10 + 0x26..0x10 + 0x28].copy_from_slice(&self.vport_mtu.to_be_bytes());
                let mac = self.mac;
                output[0x10 + 0xf6..0x10 + 0xfc].copy_from_slice(&mac);
                let listed = u16::try_from(self.unicast.len()).expect("few");
                output[0x10 + 0xf2..0x10 + 0xf4].copy_from_slice(&listed.to_be_bytes());
                for (room, entry) in output[0x110..].chunks_exact_mut(8).zip(&self.unicast) {
                    room.copy_from_slice(entry);
                }
            }
            0x755 => {
                let context = &command.input[0x100..];
                if argument_of(&command.input, 0x0c) & 1 << 6 != 0 {
                    if self.vport_mtu_fixed {
                        output[0] = 0x03;
                        return output;
                    }
                    self.vport_mtu = u16::from_be_bytes([context[0x26], context[0x27]]);
                }
                if argument_of(&command.input, 0x0c) & 1 << 2 != 0 {
                    let count = usize::from(context[0xf2] & 0xf) << 8 | usize::from(context[0xf3]);
                    if context[0xf0] & 7 != 0 || context.len() != 0x100 + 8 * count {
                        self.record_violation(format!(
                            "unicast list of {count} entries in {:#x} bytes, type {}",
                            context.len() - 0x100,
                            context[0xf0] & 7
                        ));
                    }
                    let list = context[0x100..]
                        .chunks_exact(8)
                        .map(|entry| entry.try_into().expect("8 bytes"));
                    self.unicast = if self.forgets_lists {
                        Vec::new()
                    } else {
                        list.collect()
                    };
                }
            }
            0x802 => output[8..12].copy_from_slice(&self.uar.to_be_bytes()),
            0x800 => {
                self.numbers += 1;
                output[8..12].copy_from_slice(&self.numbers.to_be_bytes());
            }
            // Registers are echoed, except those with the MTU and the time limits.
            0x805 => {
                let bytes = output.len().min(command.input.len());
                output[16..bytes].copy_from_slice(&command.input[16..bytes]);
                if argument == 0xc00e {
                    output[0x40..0x44].copy_from_slice(&self.reclaim_limit.to_be_bytes());
                }
                if argument == 0x5003 && self.port_mtu.is_none() {
                    output.fill(0);
                    output[0] = 0x03;
                } else if let (0x5003, Some(mtu)) = (argument, self.port_mtu) {
                    // op_mod 0 writes the register, with the new MTU in admin_mtu.
                    let asked = u16::from_be_bytes([command.input[0x18], command.input[0x19]]);
                    let mtu = if command.op_mod == 0 { asked } else { mtu };
                    self.port_mtu = Some(mtu);
                    output[0x10 + 4..0x10 + 6].copy_from_slice(&10_000u16.to_be_bytes());
                    output[0x10 + 12..0x10 + 14].copy_from_slice(&mtu.to_be_bytes());
                }
            }
            _ => {}
        }
        output
    }

    // --- events -------------------------------------------------------------------------------

    /// Writes an entry to the event queue that its event type is mapped to.
    pub fn event(&mut self, eqe: [u8; 64]) {
        let kind = eqe[1];
        let Some(number) = self
            .eqs
            .iter()
            .find(|(_, eq)| eq.mask & 1 << kind != 0)
            .map(|(number, _)| *number)
        else {
            return;
        };
        self.event_to(number, eqe);
    }

    /// Writes an entry to an event queue.
    pub fn event_to(&mut self, number: u8, mut eqe: [u8; 64]) {
        let eq = &self.eqs[&number];
        let slot = eq.producer & ((1 << eq.log_size) - 1);
        if eq.producer.wrapping_sub(eq.consumer) >= 1 << eq.log_size {
            self.record_violation(format!("EQ {number} overrun"));
            return;
        }
        eqe[0x3f] = u8::from(eq.producer >> eq.log_size & 1 != 0);
        let at = eq.ring + 64 * u64::from(slot);
        self.write(at, &eqe[..0x3f]);
        self.write(at + 0x3f, &eqe[0x3f..]);
        let eq = self.eqs.get_mut(&number).expect("looked up");
        eq.producer = eq.producer.wrapping_add(1);
        self.fire(number);
    }

    fn fire(&mut self, number: u8) {
        let Some(eq) = self.eqs.get_mut(&number) else {
            return;
        };
        if eq.armed && eq.producer != eq.consumer {
            eq.armed = false;
            self.interrupts[eq.vector].signal();
        }
    }

    /// Handles a write to an event queue doorbell of the UAR page.
    fn eq_doorbell(&mut self, value: u32, arm: bool) {
        self.eq_doorbells.push(value);
        let number = u8::try_from(value >> 24).expect("8 bits");
        let Some(eq) = self.eqs.get_mut(&number) else {
            self.record_violation(format!("doorbell of EQ {number}"));
            return;
        };
        // The doorbell holds only the low 24 bits of the counter.
        eq.consumer = eq.producer & 0xff00_0000 | value & 0xff_ffff;
        eq.armed |= arm;
        self.fire(number);
    }
}

/// A stream of bytes that is the same for the same seed (SplitMix64).
pub struct Noise(pub u64);

impl Noise {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    pub fn byte(&mut self) -> u8 {
        self.next().to_be_bytes()[0]
    }
}

/// Returns the big-endian dword at byte offset `at` of a command's input.
pub fn argument_of(input: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(input[at..at + 4].try_into().expect("4 bytes"))
}

fn xor(bytes: &[u8]) -> u8 {
    bytes.iter().fold(0, |sum, byte| sum ^ byte)
}

impl Device for Double {
    fn name(&self) -> &str {
        "double"
    }

    fn config_read(&self, offset: u16, out: &mut [u8]) {
        let at = usize::from(offset);
        let state = self.state();
        if state.gone {
            return out.fill(0xff);
        }
        out.copy_from_slice(&state.config[at..at + out.len()]);
    }

    fn config_write(&self, offset: u16, data: &[u8]) {
        let at = usize::from(offset);
        self.state().config[at..at + data.len()].copy_from_slice(data);
    }

    fn bar(&self, index: u8) -> Option<SharedMemory> {
        (index == 0).then(|| self.state().bar.clone())
    }

    fn bar_written(&self, _index: u8, offset: u64, bytes: &[u8]) {
        let now = self.clock.now().0;
        let mut state = self.state();
        let value = bytes
            .iter()
            .fold(0u64, |value, byte| value << 8 | u64::from(*byte));
        let value = u32::try_from(value & 0xffff_ffff).expect("32 bits");
        let uar = u64::from(UAR) * 4096;
        match offset {
            0x18 => state.doorbell(value),
            0x10 | 0x14 if state.silent => state.set_register(0x10, u32::MAX),
            0x10 => {}
            0x14 => {
                state.boots_until = now + state.boots_for;
                state.tick(now);
            }
            at if at == uar + 0x40 => state.eq_doorbell(value, true),
            at if at == uar + 0x48 => state.eq_doorbell(value, false),
            at => state.record_violation(format!("register {at:#x} written")),
        }
    }

    fn reset(&self) {
        let mut state = self.state();
        state.wake();
        state.boots_until = 0;
        state.set_caps.clear();
        state.config[4] = 0;
        state.eqs.clear();
        state.held.clear();
        state.pages.clear();
        state.signing = false;
        state.tick(self.clock.now().0);
    }

    fn interrupt_count(&self) -> usize {
        self.state().vectors
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
        self.state().maps.push((iova, memory, offset, bytes));
        Ok(())
    }

    fn dma_unmap(&self, iova: u64, bytes: usize) -> Result<(), String> {
        let mut state = self.state();
        let before = state.maps.len();
        state
            .maps
            .retain(|(base, _, _, len)| (*base, *len) != (iova, bytes));
        if state.maps.len() == before {
            Err(format!("{iova:#x} is not mapped"))
        } else {
            Ok(())
        }
    }

    fn iova_ranges(&self) -> Vec<RangeInclusive<u64>> {
        vec![0x1_0000..=0xfedf_ffff, 0x1_0000_0000..=(1 << 39) - 1]
    }

    fn clock(&self) -> Arc<dyn Clock> {
        Arc::clone(&self.clock) as Arc<dyn Clock>
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Instant {
        Instant(self.now.load(Ordering::SeqCst))
    }

    fn wait(&self, interrupts: &[Interrupt], deadline: Instant) -> bool {
        let pending = || interrupts.iter().any(Interrupt::is_pending);
        let Some(device) = self.device.upgrade() else {
            return false;
        };
        loop {
            if pending() {
                return true;
            }
            let mut state = device.state();
            let now = self.now().0;
            let next = state
                .scheduled
                .iter()
                .enumerate()
                .min_by_key(|(_, (at, _))| *at)
                .map(|(number, (at, _))| (number, *at));
            let (time, action) = match next {
                Some((number, at)) if at <= deadline.0 => {
                    (at.max(now), Some(state.scheduled.remove(number).1))
                }
                _ => (deadline.0.max(now), None),
            };
            self.now.store(time, Ordering::SeqCst);
            state.tick(time);
            match action {
                Some(ScheduledAction::OfDevice(action)) => action(&mut state),
                Some(ScheduledAction::OfHost(action)) => {
                    drop(state);
                    action();
                }
                None => {
                    drop(state);
                    return pending();
                }
            }
        }
    }
}
