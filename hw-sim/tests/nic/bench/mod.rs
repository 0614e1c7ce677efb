//! A minimal driver for tests: it accesses configuration space, registers and DMA memory, runs one command at a time,
//! and makes no checks of its own.
//!
//! The bench uses the same layouts as the simulator, and no logic of any driver: it writes exactly what the test
//! requests.
//!
//! This module has the commands and the bring-up of a function, and [`queues`] its event queues, completion queues and
//! queue pairs. The function with one reliable connection (`side`), the one with Ethernet queues (`eth_support`) and
//! the card with virtual functions (`eswitch`) are built on the bench.

mod queues;

pub use queues::*;

use driver::{Clock, Device, Instant, Interrupt, SharedMemory};
use hw_sim::{FunctionReport, Profile, Sim, SimConfig, SimFunction};
use mlx_prm::*;
use std::io::Write;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use zerocopy::{FromBytes, IntoBytes};

/// MAC addresses of the two functions of a test.
pub const MACS: [[u8; 6]; 2] = [[2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]];
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
        self.function_bus_master();
    }

    /// Creates a function and brings it up to ENABLE_HCA.
    pub fn enabled(profile: Profile) -> Self {
        let mut bench = Self::ready(profile);
        bench.exec(&EnableHcaIn::new()).unwrap();
        bench
    }

    /// Creates a function and brings it up to the stage where it has its boot pages.
    pub fn booted(profile: Profile) -> Self {
        let mut bench = Self::power_on(profile);
        bench.boot();
        bench
    }

    /// Creates a function and brings it up to INIT_HCA.
    pub fn initialised(profile: Profile) -> Self {
        let mut bench = Self::power_on(profile);
        bench.initialise();
        bench
    }

    /// Brings a function after power-on or reset to the stage where it has its boot pages.
    pub fn boot(&mut self) {
        self.start();
        self.exec(&EnableHcaIn::new()).unwrap();
        self.satisfy_pages(1);
    }

    /// Gives a booted function its init pages and runs INIT_HCA.
    pub fn bring_up(&mut self) {
        self.satisfy_pages(2);
        self.exec(&InitHcaIn::new()).unwrap();
    }

    /// Brings a function after power-on or reset up to INIT_HCA.
    pub fn initialise(&mut self) {
        self.boot();
        self.bring_up();
    }

    /// Creates a function that is ready for use, with a UAR, a PD, and an armed EQ on vector 0 for all events.
    pub fn usable(profile: Profile) -> (Self, Resources) {
        Self::power_on(profile).with_resources()
    }

    /// Brings a function after power-on up to INIT_HCA, and creates its [`Resources`].
    pub fn with_resources(mut self) -> (Self, Resources) {
        self.initialise();
        let resources = self.resources();
        (self, resources)
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

    /// Creates a key for all DMA addresses, with local and remote rights to read and write.
    pub fn create_pa_key(&mut self, pd: u32) -> u32 {
        let mut create = pa_key(pd);
        create
            .memory_key_mkey_entry_mut()
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
        let (high, low) = halves(mac);
        set.set_table_index(index)
            .mac_address_mut()
            .set_mac_addr_47_32(high)
            .set_mac_addr_31_0(low);
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
        self.allow_roce();
        self.announce(mac);
        self.set_gid(gid, mac);
    }

    /// Enables RoCE on the vport.
    pub fn allow_roce(&mut self) {
        let mut modify = ModifyNicVportContextIn::new();
        modify.field_select_mut().set_roce_en(true);
        modify.nic_vport_context_mut().set_roce_en(true);
        self.exec(&modify).unwrap();
    }

    /// Sets GID 0, for RoCE v2 over IPv4 or IPv6.
    pub fn set_gid(&mut self, gid: [u8; 16], mac: [u8; 6]) {
        let is_ipv4 = gid[..12] == [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff];
        let (high, low) = halves(mac);
        let mut set = SetRoceAddressIn::new();
        set.set_vhca_port_num(1);
        set.roce_address_mut()
            .set_source_l3_address(&gid)
            .set_source_mac_47_32(high)
            .set_source_mac_31_0(low)
            .set_roce_version(2)
            .set_roce_l3_type(u32::from(!is_ipv4));
        self.exec(&set).unwrap();
    }

    /// Returns a capability page. `op_mod` selects the page and its maximum or current values.
    pub fn capability(&mut self, op_mod: u32) -> Result<[u8; 0x1000], Failure> {
        let mut query = QueryHcaCapIn::new();
        query.set_op_mod(op_mod);
        Ok(*self.exec(&query)?.capability())
    }

    /// Accesses a register of the port. Returns the register's image from the command's output.
    pub fn register(
        &mut self,
        number: RegisterId,
        op_mod: u32,
        image: &[u8],
    ) -> Result<Vec<u8>, Failure> {
        let mut input = AccessRegIn::new();
        input.set_register_id(number.bits()).set_op_mod(op_mod);
        let bytes = [input.as_bytes(), image].concat();
        let output = self.raw(&bytes, bytes.len())?;
        Ok(output[AccessRegOut::SIZE..].to_vec())
    }

    /// Runs a command given as raw bytes on behalf of a user context, even if the command has no field for the uid.
    pub fn raw_as(
        &mut self,
        uid: u32,
        input: &[u8],
        output_length: usize,
    ) -> Result<Vec<u8>, Failure> {
        let mut input = input.to_vec();
        input[2..4].copy_from_slice(&u16::try_from(uid).unwrap().to_be_bytes());
        self.raw(&input, output_length)
    }

    pub fn report(&self) -> FunctionReport {
        self.sim.report(&self.function)
    }

    pub fn driver_bugs(&self) -> Vec<String> {
        self.report().driver_bugs
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

/// Returns the numbers as big-endian bytes, in order.
pub fn list(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_be_bytes()).collect()
}

/// Returns the command for a key of all DMA addresses with the right to read locally.
pub fn pa_key(pd: u32) -> CreateMkeyIn {
    let mut create = CreateMkeyIn::new();
    create
        .memory_key_mkey_entry_mut()
        .set_pd(pd)
        .set_qpn(0xff_ffff)
        .set_length64(true)
        .set_lr(true);
    create
}

/// Op_mods of ACCESS_REG.
pub const WRITE: u32 = 0;
pub const READ: u32 = 1;

/// Returns the first two and the last four bytes of a MAC address as numbers, as most layouts have them.
pub fn halves([a, b, c, d, e, f]: [u8; 6]) -> (u32, u32) {
    let high = u32::from(u16::from_be_bytes([a, b]));
    (high, u32::from_be_bytes([c, d, e, f]))
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

/// A writer whose bytes can be read back.
#[derive(Clone, Default)]
pub struct Tape(Arc<Mutex<Vec<u8>>>);

impl Tape {
    pub fn bytes(&self) -> Vec<u8> {
        self.0.lock().unwrap().clone()
    }
}

impl Write for Tape {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}
