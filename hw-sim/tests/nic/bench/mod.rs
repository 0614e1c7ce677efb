//! A minimal driver for tests: it accesses configuration space, registers and DMA memory, runs one command at a time,
//! and makes no checks of its own.
//!
//! The bench uses the same layouts as the simulator, and no logic of any driver: it writes exactly what the test
//! requests.

use driver::{Clock, Device, Instant, Interrupt, SharedMemory};
use hw_sim::{Profile, Sim, SimConfig, SimFunction};
use mlx_prm::*;
use std::sync::Arc;
use std::time::Duration;
use zerocopy::{FromBytes, IntoBytes};

/// DMA address of the bench's memory.
pub const BASE: u64 = 0x4000_0000;
const MEMORY: usize = 32 << 20;
const QUEUE: usize = 0;
const INPUT_MAILBOXES: usize = 0x1_0000;
const OUTPUT_MAILBOXES: usize = 0x10_0000;
const FREE: usize = 0x20_0000;
const MAILBOX_SPACING: usize = 0x400;

/// A function, and the state of a minimal driver for it.
pub struct Bench {
    pub sim: Sim,
    pub function: Arc<SimFunction>,
    pub bar: SharedMemory,
    pub memory: SharedMemory,
    pub clock: Arc<dyn Clock>,
    pub interrupts: Vec<Interrupt>,
    next: usize,
    slot: usize,
}

/// Failure of a command: the device did not deliver it, or refused it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    Delivery(DeliveryStatus),
    Refused(CmdStatus),
}

/// A command queue entry that is not submitted yet.
#[derive(Clone)]
pub struct Submission {
    pub entry: CmdQueueEntry,
    pub slot: usize,
}

impl Bench {
    /// Creates a function after power-on. Its DMA memory is mapped, and the driver has done nothing else.
    pub fn power_on(profile: Profile) -> Self {
        let sim = Sim::new(SimConfig::seeded(1));
        Self::in_world(&sim, profile)
    }

    pub fn in_world(sim: &Sim, profile: Profile) -> Self {
        Self::of(sim, sim.add_function(profile))
    }

    /// Creates a bench for an existing function.
    pub fn of(sim: &Sim, function: Arc<SimFunction>) -> Self {
        let memory = SharedMemory::anonymous(MEMORY).unwrap();
        function.dma_map(BASE, memory.clone(), 0, MEMORY).unwrap();
        let bar = function.bar(0).unwrap();
        let clock = function.clock();
        Self {
            sim: sim.clone(),
            function,
            bar,
            memory,
            clock,
            interrupts: Vec::new(),
            next: FREE,
            slot: 0,
        }
    }

    /// Creates a function whose firmware has booted. The command queue address is written and bus mastering is on.
    pub fn ready(profile: Profile) -> Self {
        let bench = Self::power_on(profile);
        bench.start();
        bench
    }

    /// Waits until the firmware accepts writes, then writes the command queue address and enables bus mastering.
    pub fn start(&self) {
        self.sleep(Duration::from_millis(100));
        self.write32(0x10, high(BASE));
        self.write32(0x14, low(BASE));
        self.function.config_write(4, &[0x06, 0x00]);
    }

    /// Creates a function and brings it up to ENABLE_HCA.
    pub fn enabled(profile: Profile) -> Self {
        let mut bench = Self::ready(profile);
        bench.exec(&EnableHcaIn::new()).unwrap();
        bench
    }

    /// Creates a function and brings it up to the stage where it has its boot pages.
    pub fn booted(profile: Profile) -> Self {
        let mut bench = Self::enabled(profile);
        bench.satisfy_pages(1);
        bench
    }

    /// Creates a function and brings it up to INIT_HCA.
    pub fn initialised(profile: Profile) -> Self {
        let mut bench = Self::booted(profile);
        bench.bring_up();
        bench
    }

    /// Gives a booted function its init pages and runs INIT_HCA.
    pub fn bring_up(&mut self) {
        self.satisfy_pages(2);
        self.exec(&InitHcaIn::new()).unwrap();
    }

    /// Creates a function that is ready for use, with a UAR, a PD, and an armed EQ on vector 0 for all events.
    pub fn usable(profile: Profile) -> (Self, Resources) {
        let mut bench = Self::initialised(profile);
        let resources = bench.resources();
        (bench, resources)
    }

    pub fn resources(&mut self) -> Resources {
        self.interrupts = (0..self.function.interrupt_count())
            .map(|_| Interrupt::new().unwrap())
            .collect();
        self.function.set_interrupts(self.interrupts.clone());
        let uar = self.exec(&AllocUarIn::new()).unwrap().uar();
        let pd = self.exec(&AllocPdIn::new()).unwrap().pd();
        let eq = self.create_eq(uar, 1, 0, 8).unwrap();
        Resources { uar, pd, eq }
    }

    pub fn sleep(&self, duration: Duration) {
        let deadline = self.clock.now() + duration;
        while self.clock.now() < deadline {
            self.clock.wait(&[], deadline);
        }
    }

    pub fn write32(&self, offset: u64, value: u32) {
        self.bar.store_be32(usize::try_from(offset).unwrap(), value);
        self.function.bar_written(0, offset, &value.to_be_bytes());
    }

    pub fn write64(&self, offset: u64, value: u64) {
        self.bar.store_be64(usize::try_from(offset).unwrap(), value);
        self.function.bar_written(0, offset, &value.to_be_bytes());
    }

    pub fn read32(&self, offset: usize) -> u32 {
        self.bar.load_be32(offset)
    }

    /// Allocates memory of the bench. Returns the offset in the memory and the DMA address.
    pub fn alloc(&mut self, bytes: usize) -> (usize, u64) {
        let at = self.next.next_multiple_of(4096);
        self.next = at + bytes;
        assert!(self.next <= MEMORY, "bench memory");
        (at, BASE + at as u64)
    }

    /// Prepares a command queue entry for a command, and fills its mailboxes.
    pub fn prepare(&mut self, input: &[u8], output_length: usize) -> Submission {
        let slot = self.slot;
        self.slot = (self.slot + 1) % 4;
        let mut entry = CmdQueueEntry::new();
        entry.set_type(7).set_ownership(true);
        entry.set_input_length(u32::try_from(input.len()).unwrap());
        entry.set_output_length(u32::try_from(output_length).unwrap());
        let mut inline = [0; 16];
        let length = input.len().min(16);
        inline[..length].copy_from_slice(&input[..length]);
        entry.set_command_input_inline_data(&inline);
        let rest = input.get(16..).unwrap_or_default();
        if !rest.is_empty() {
            entry.set_input_mailbox_pointer(self.chain(INPUT_MAILBOXES, rest));
        }
        if output_length > 16 {
            entry.set_output_mailbox_pointer(
                self.chain(OUTPUT_MAILBOXES, &vec![0; output_length - 16]),
            );
        }
        Submission { entry, slot }
    }

    fn chain(&self, at: usize, data: &[u8]) -> u64 {
        let count = data.chunks(512).count();
        for (number, chunk) in data.chunks(512).enumerate() {
            let here = at + number * MAILBOX_SPACING;
            let mut mailbox = CmdMailbox::new();
            mailbox.mailbox_data_mut()[..chunk.len()].copy_from_slice(chunk);
            mailbox.set_block_number(u32::try_from(number).unwrap());
            if number + 1 < count {
                mailbox.set_next_pointer(BASE + (here + MAILBOX_SPACING) as u64);
            }
            self.memory.write_obj(here, &mailbox);
        }
        BASE + at as u64
    }

    /// Edits a mailbox in memory, in order to corrupt it.
    pub fn edit_mailbox(&self, output: bool, number: usize, edit: impl FnOnce(&mut CmdMailbox)) {
        let at = if output {
            OUTPUT_MAILBOXES
        } else {
            INPUT_MAILBOXES
        } + number * MAILBOX_SPACING;
        let mut mailbox: CmdMailbox = self.memory.read_obj(at);
        edit(&mut mailbox);
        self.memory.write_obj(at, &mailbox);
    }

    pub fn submit(&self, submission: &Submission) {
        self.memory
            .write_obj(QUEUE + submission.slot * 64, &submission.entry);
        self.write32(0x18, 1 << submission.slot);
    }

    pub fn entry(&self, slot: usize) -> CmdQueueEntry {
        self.memory.read_obj(QUEUE + slot * 64)
    }

    /// Waits until the device returns ownership of the slot. Returns `None` after ten seconds of virtual time.
    pub fn collect(&self, slot: usize) -> Option<(DeliveryStatus, Vec<u8>)> {
        for _ in 0..1_000 {
            let entry = self.entry(slot);
            if !entry.ownership() {
                return Some((entry.status(), self.output(&entry)));
            }
            self.sleep(Duration::from_millis(10));
        }
        None
    }

    fn output(&self, entry: &CmdQueueEntry) -> Vec<u8> {
        let length = usize::try_from(entry.output_length()).unwrap();
        let mut output = entry.command_output_inline_data().to_vec();
        let mut at = OUTPUT_MAILBOXES;
        while output.len() < length {
            let mailbox: CmdMailbox = self.memory.read_obj(at);
            output.extend_from_slice(mailbox.mailbox_data());
            at += MAILBOX_SPACING;
        }
        output.truncate(length);
        output
    }

    /// Runs a command given as raw bytes. Returns the output.
    pub fn raw(&mut self, input: &[u8], output_length: usize) -> Result<Vec<u8>, Failure> {
        let submission = self.prepare(input, output_length);
        self.submit(&submission);
        let (delivery, output) = self.collect(submission.slot).expect("an answer");
        if delivery != DeliveryStatus::OK {
            return Err(Failure::Delivery(delivery));
        }
        match CmdStatus(output[0]) {
            CmdStatus::OK => Ok(output),
            status => Err(Failure::Refused(status)),
        }
    }

    pub fn exec<C: Command>(&mut self, input: &C) -> Result<C::Out, Failure> {
        self.exec_with(input, &[])
    }

    /// Runs a command that has further bytes after its fixed part.
    pub fn exec_with<C: Command>(&mut self, input: &C, tail: &[u8]) -> Result<C::Out, Failure> {
        let mut bytes = input.as_bytes().to_vec();
        bytes.extend_from_slice(tail);
        let output = self.raw(&bytes, C::Out::SIZE)?;
        Ok(C::Out::read_from_bytes(&output).unwrap())
    }

    /// Runs a command. Returns its status.
    pub fn status<C: Command>(&mut self, input: &C) -> CmdStatus {
        self.status_with(input, &[])
    }

    pub fn status_with<C: Command>(&mut self, input: &C, tail: &[u8]) -> CmdStatus {
        match self.exec_with(input, tail) {
            Ok(_) => CmdStatus::OK,
            Err(Failure::Refused(status)) => status,
            Err(Failure::Delivery(status)) => panic!("not delivered: {status:?}"),
        }
    }

    pub fn query_pages(&mut self, op_mod: u32) -> u32 {
        let mut query = QueryPagesIn::new();
        query.set_op_mod(op_mod);
        self.exec(&query).unwrap().num_pages()
    }

    /// Gives the device the pages that QUERY_PAGES requests. Returns their addresses.
    pub fn satisfy_pages(&mut self, op_mod: u32) -> Vec<u64> {
        let count = self.query_pages(op_mod);
        self.give_pages(count)
    }

    pub fn give_pages(&mut self, count: u32) -> Vec<u64> {
        let pages: Vec<u64> = (0..count).map(|_| self.alloc(4096).1).collect();
        self.manage_pages(1, &pages).unwrap();
        pages
    }

    pub fn manage_pages(&mut self, op_mod: u32, pages: &[u64]) -> Result<ManagePagesOut, Failure> {
        let mut give = ManagePagesIn::new();
        give.set_op_mod(op_mod)
            .set_input_num_entries(u32::try_from(pages.len()).unwrap());
        self.exec_with(&give, &list(pages))
    }

    /// Takes at most `most` pages back from the device. Returns their addresses.
    pub fn take_pages(&mut self, most: u32) -> Vec<u64> {
        let mut take = ManagePagesIn::new();
        take.set_op_mod(2).set_input_num_entries(most);
        let output = self.raw(take.as_bytes(), 16 + 8 * most as usize).unwrap();
        let count = u32::from_be_bytes(output[8..12].try_into().unwrap()) as usize;
        output[16..16 + 8 * count]
            .chunks(8)
            .map(|word| u64::from_be_bytes(word.try_into().unwrap()))
            .collect()
    }

    /// Creates an EQ with 2^log_size entries for `ALL_EVENTS`, or for no event if `kind` is 0, and arms it.
    pub fn create_eq(
        &mut self,
        uar: u32,
        kind: u32,
        vector: u32,
        log_size: u32,
    ) -> Result<EventQueue, Failure> {
        let events = if kind == 0 { 0 } else { ALL_EVENTS };
        self.create_eq_for(uar, events, vector, log_size)
    }

    pub fn create_eq_for(
        &mut self,
        uar: u32,
        events: u64,
        vector: u32,
        log_size: u32,
    ) -> Result<EventQueue, Failure> {
        let (at, iova) = self.alloc((64 << log_size).max(4096));
        for entry in 0..1 << log_size {
            self.memory.store_u8(at + entry * 64 + 63, 1);
        }
        let pages: Vec<u64> = (0..(64_u64 << log_size).div_ceil(4096))
            .map(|page| iova + page * 4096)
            .collect();
        let mut create = CreateEqIn::new();
        create.set_event_bitmask(events);
        create
            .eq_context_entry_mut()
            .set_log_eq_size(log_size)
            .set_uar_page(uar)
            .set_intr(vector);
        let number = self.exec_with(&create, &list(&pages))?.eq_number();
        let queue = EventQueue {
            number,
            at,
            log_size,
            uar,
            consumer: 0,
        };
        self.arm_eq(&queue);
        Ok(queue)
    }

    pub fn arm_eq(&self, eq: &EventQueue) {
        self.write32(
            u64::from(eq.uar) << 12 | 0x40,
            eq.number << 24 | (eq.consumer & 0xff_ffff),
        );
    }

    /// Consumes the next entry of an EQ, if there is one.
    pub fn next_eqe(&self, eq: &mut EventQueue) -> Option<Eqe> {
        let slot = (eq.consumer & ((1 << eq.log_size) - 1)) as usize;
        let eqe: Eqe = self.memory.read_obj(eq.at + slot * 64);
        let lap = eq.consumer >> eq.log_size & 1 == 1;
        if eqe.owner() != lap {
            return None;
        }
        eq.consumer += 1;
        Some(eqe)
    }

    /// Consumes all entries of an EQ and arms it. Returns the event types.
    pub fn drain_eq(&self, eq: &mut EventQueue) -> Vec<EventType> {
        let mut types = Vec::new();
        while let Some(eqe) = self.next_eqe(eq) {
            types.push(EventType(eqe.event_type()));
        }
        self.arm_eq(eq);
        types
    }

    /// Creates a CQ with 2^log_size entries.
    pub fn create_cq(
        &mut self,
        uar: u32,
        eqn: u32,
        log_size: u32,
    ) -> Result<CompletionQueue, Failure> {
        let (at, iova) = self.alloc((64 << log_size).max(4096));
        let (record, record_iova) = self.alloc(64);
        for entry in 0..1 << log_size {
            self.memory.store_u8(at + entry * 64 + 63, 0xf0);
        }
        let create = cq_input(uar, eqn, log_size, record_iova);
        let pages: Vec<u64> = (0..(64_u64 << log_size).div_ceil(4096))
            .map(|page| iova + page * 4096)
            .collect();
        let number = self.exec_with(&create, &list(&pages))?.cqn();
        Ok(CompletionQueue {
            number,
            at,
            record,
            log_size,
        })
    }

    /// Creates a key for all DMA addresses, with local and remote rights to read and write.
    pub fn create_pa_key(&mut self, pd: u32) -> u32 {
        let mut create = CreateMkeyIn::new();
        create
            .memory_key_mkey_entry_mut()
            .set_pd(pd)
            .set_qpn(0xff_ffff)
            .set_length64(true)
            .set_lr(true)
            .set_lw(true)
            .set_rr(true)
            .set_rw(true)
            .set_mkey_7_0(0x42);
        self.exec(&create).unwrap().mkey_index() << 8 | 0x42
    }

    /// Announces a MAC address to the card: in the vport's unicast list, and also in the port's forwarding table unless
    /// the function is virtual.
    pub fn announce(&mut self, mac: [u8; 6]) {
        self.list_addresses(0, &[mac]);
        if !self.is_virtual() {
            self.let_in(0, mac);
        }
    }

    /// Sets an entry of the port's forwarding table, so that the port accepts frames to this address.
    pub fn let_in(&mut self, index: u32, mac: [u8; 6]) {
        let mut set = SetL2TableEntryIn::new();
        set.set_table_index(index);
        set.mac_address_mut()
            .set_mac_addr_47_32(u32::from(mac[0]) << 8 | u32::from(mac[1]))
            .set_mac_addr_31_0(u32::from_be_bytes([mac[2], mac[3], mac[4], mac[5]]));
        self.exec(&set).unwrap();
    }

    /// Writes an address list of the vport. `kind` is 0 for unicast, 1 for multicast.
    pub fn list_addresses(&mut self, kind: u32, macs: &[[u8; 6]]) {
        let mut modify = ModifyNicVportContextIn::new();
        modify.field_select_mut().set_addresses_list(true);
        modify
            .nic_vport_context_mut()
            .set_allowed_list_type(kind)
            .set_allowed_list_size(u32::try_from(macs.len()).unwrap());
        let entries: Vec<u64> = macs.iter().map(|&mac| entry(mac)).collect();
        self.exec_with(&modify, &list(&entries)).unwrap();
    }

    /// Returns whether the function has the PCI device ID 0x1018 of a virtual function.
    pub fn is_virtual(&self) -> bool {
        let mut id = [0; 2];
        self.function.config_read(2, &mut id);
        id == [0x18, 0x10]
    }

    /// Enables RoCE, announces the address, and sets GID 0.
    pub fn enable_roce(&mut self, gid: [u8; 16], mac: [u8; 6]) {
        let mut modify = ModifyNicVportContextIn::new();
        modify.field_select_mut().set_roce_en(true);
        modify.nic_vport_context_mut().set_roce_en(true);
        self.exec(&modify).unwrap();
        self.announce(mac);
        let mut set = SetRoceAddressIn::new();
        set.set_vhca_port_num(1);
        set.roce_address_mut()
            .set_source_l3_address(&gid)
            .set_source_mac_47_32(u32::from(mac[0]) << 8 | u32::from(mac[1]))
            .set_source_mac_31_0(u32::from_be_bytes([mac[2], mac[3], mac[4], mac[5]]))
            .set_roce_version(2)
            .set_roce_l3_type(1);
        self.exec(&set).unwrap();
    }

    pub fn function_bus_master(&self) {
        self.function.config_write(4, &[0x06, 0x00]);
    }

    pub fn now(&self) -> Instant {
        self.clock.now()
    }

    pub fn log(&self) -> String {
        String::from_utf8(self.sim.event_log()).unwrap()
    }
}

/// Bit mask of the event types that the bench subscribes to.
pub const ALL_EVENTS: u64 = 0x001f_2ebe;

/// Objects that most tests need.
pub struct Resources {
    pub uar: u32,
    pub pd: u32,
    pub eq: EventQueue,
}

pub struct EventQueue {
    pub number: u32,
    pub at: usize,
    pub log_size: u32,
    pub uar: u32,
    pub consumer: u32,
}

pub struct CompletionQueue {
    pub number: u32,
    pub at: usize,
    pub record: usize,
    pub log_size: u32,
}

pub fn cq_input(uar: u32, eqn: u32, log_size: u32, record: u64) -> CreateCqIn {
    let mut create = CreateCqIn::new();
    create
        .cq_context_mut()
        .set_log_cq_size(log_size)
        .set_uar_page(uar)
        .set_c_eqn_or_apu_element(eqn)
        .set_dbr_addr(record);
    create
}

/// Returns the numbers as big-endian bytes, in order.
pub fn list(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_be_bytes()).collect()
}

/// Returns a MAC address as an entry of a vport's address list.
pub fn entry([a, b, c, d, e, f]: [u8; 6]) -> u64 {
    u64::from_be_bytes([0, 0, a, b, c, d, e, f])
}

/// Returns a profile that needs few pages, and none at run time.
pub fn modest() -> Profile {
    let mut profile = Profile::default();
    profile.pages.init = 8;
    profile.pages.boot = 4;
    profile.pages.runtime = 0;
    profile
}

fn high(value: u64) -> u32 {
    u32::try_from(value >> 32).unwrap()
}

fn low(value: u64) -> u32 {
    u32::try_from(value & 0xffff_ffff).unwrap()
}
