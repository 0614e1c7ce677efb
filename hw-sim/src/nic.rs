//! One function: its registers, its tables, and the connections between its parts.
//!
//! A [`Nic`] does nothing by itself. The simulation's step loop passes it register writes, frames and timers, each with
//! the [`Env`] (time, randomness, log, work queues) as an argument. A [`Nic`] owns everything that a function-level
//! reset erases, except the state of its port, which is in its card.
//!
//! Two rules hold everywhere. First, events caused by a command are posted after the command has been answered. While
//! the command executes, they collect in `after_command`. Second, a completion queue that fails moves the attached
//! queues to ERR, but only after the method of the queue that caused the failure has returned. Until then,
//! `failed_cqs` lists the completion queue.

use crate::capabilities::Capabilities;
use crate::card::CardEvent;
use crate::card::seat::Seat;
use crate::cmd::slots::CommandInterface;
use crate::config_space::{ConfigEffect, ConfigSpace};
use crate::device_memory::window;
use crate::env::{Doorbell, Env, Timer};
use crate::eq::{EQE_BYTES, Target};
use crate::fault::{Fault, FaultPlan};
use crate::init_segment::{Boot, InitSegment, NIC_DISABLED, NIC_FULL_DRIVER, RegisterEffect};
use crate::iommu::Iommu;
use crate::mkey::{KeyRules, Piece};
use crate::object_tables::{Objects, QpRefs, QpSlot};
use crate::pages::FirmwarePages;
use crate::profile::Profile;
use crate::qp::Qp;
use crate::report::{Asked, FunctionReport, Refused};
use crate::time::nanoseconds;
use driver::{Interrupt, Notices, SharedMemory};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Maximum number of driver bugs, and of refused commands, that are kept as records. Later bugs are only logged, and
/// later refusals only counted.
const MAX_RECORDS: usize = 1_000;

/// Progress of bring-up (PRM "Initialization"). Whether an enabled function has its boot pages is recorded separately
/// ([`FirmwarePages::booted`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// After a reset or DISABLE_HCA.
    Reset,
    /// After ENABLE_HCA or TEARDOWN_HCA.
    Enabled,
    /// After INIT_HCA.
    Initialised,
}

/// Counters and notes about a function's driver, which survive resets.
#[derive(Debug, Default)]
pub struct Record {
    /// Number of send doorbells rung.
    pub send_doorbells: u64,
    /// Number of resets by the driver or by its system.
    resets: u64,
    driver_bugs: Vec<String>,
    leaked: BTreeMap<&'static str, usize>,
    opcodes: BTreeMap<u16, u64>,
    refused: Vec<Refused>,
    refusals: BTreeMap<u16, u64>,
    registers: BTreeMap<u16, Asked>,
    dropped: BTreeMap<&'static str, u64>,
}

/// A function.
pub struct Nic {
    /// Index of the function in the simulation.
    pub(crate) index: usize,
    /// Position of the function on its card.
    pub(crate) seat: Seat,
    /// Properties of the function.
    pub(crate) profile: Profile,
    /// BAR 0.
    pub(crate) bar: SharedMemory,
    /// Configuration space.
    pub(crate) config: ConfigSpace,
    /// Initialization segment.
    pub(crate) init: InitSegment,
    /// The IOMMU, for DMA.
    pub(crate) iommu: Iommu,
    /// Progress of bring-up.
    pub(crate) stage: Stage,
    /// Current interface step (ISSI).
    pub(crate) issi: u32,
    /// Current capabilities.
    pub(crate) caps: Capabilities,
    /// Firmware pages.
    pub(crate) pages: FirmwarePages,
    /// Firmware pages of the virtual functions that this function manages, by function number.
    pub(crate) pages_of: BTreeMap<u16, FirmwarePages>,
    /// Numbered objects.
    pub(crate) objects: Objects,
    /// Number of the queue pair that receives packets for QP 1.
    pub(crate) gsi: Option<u32>,
    /// Number of the queue pair that receives packets for QP 0.
    pub(crate) smi: Option<u32>,
    /// Command queue.
    pub(crate) commands: CommandInterface,
    /// Injected faults that wait for a command, a page, an interrupt, a doorbell or a completion.
    pub(crate) faults: FaultPlan,
    /// First halves of doorbells that arrive as two 4-byte stores, by UAR page and register.
    pub(crate) halves: BTreeMap<(u32, u32), [u8; 4]>,
    /// Counters and notes for the report.
    pub(crate) record: Record,
    vectors: Vec<Interrupt>,
    notices: Notices,
    latched: BTreeSet<u16>,
    /// Events of the command that executes, until the command is answered. `None` if no command executes.
    pub(crate) after_command: Option<Vec<(Target, [u8; EQE_BYTES])>>,
    /// Buffer for the pieces of an access through a key.
    pub(crate) pieces: Vec<Piece>,
    /// CQs that failed, and whose attached queues must still be moved to ERR.
    pub(crate) failed_cqs: Vec<u32>,
    removed: bool,
}

impl Nic {
    /// Returns a function in its power-on state.
    pub fn new(
        index: usize,
        seat: Seat,
        profile: Profile,
        bar: SharedMemory,
        env: &mut Env,
    ) -> Self {
        let caps = Capabilities::new(&profile);
        let mut nic = Self {
            index,
            seat,
            config: ConfigSpace::new(&profile, seat.is_virtual()),
            init: InitSegment::new(bar.clone(), &profile),
            iommu: Iommu::default(),
            stage: Stage::Reset,
            issi: 0,
            pages: FirmwarePages::new(profile.pages),
            pages_of: BTreeMap::new(),
            objects: Objects::new(&profile, &caps),
            gsi: None,
            smi: None,
            commands: CommandInterface::default(),
            faults: FaultPlan::default(),
            halves: BTreeMap::new(),
            record: Record::default(),
            vectors: Vec::new(),
            notices: Notices::default(),
            latched: BTreeSet::new(),
            after_command: None,
            pieces: Vec::new(),
            failed_cqs: Vec::new(),
            removed: false,
            caps,
            profile,
            bar,
        };
        nic.reset(env);
        nic
    }

    /// Performs a function-level reset: erases every object, queue address, capability setting and page. The IOMMU's
    /// mappings and the eventfds belong to the host and stay.
    pub fn reset(&mut self, env: &mut Env) {
        env.note(self.index, format_args!("reset"));
        self.config.reset();
        self.iommu.set_bus_master(false);
        self.stage = Stage::Reset;
        self.issi = 0;
        self.caps = Capabilities::new(&self.profile);
        self.pages.reset();
        self.pages_of.clear();
        env.reset_port(self.seat, &self.profile);
        self.objects.clear();
        self.objects.set_limits(&self.caps);
        if !self.profile.habits.counts_queue_pairs_on {
            self.objects.qps.restart_numbering();
        }
        self.gsi = None;
        self.smi = None;
        self.commands.reset();
        self.halves.clear();
        self.latched.clear();
        self.failed_cqs.clear();
        env.forget(self.index);
        let after = |time: Duration| {
            let time = time.min(self.profile.boot_time);
            env.now.saturating_add(nanoseconds(time))
        };
        // A virtual function waits in pre-initialization until its manager enables it, possibly forever.
        let waits = !env.vport(self.seat).is_running();
        let boot = Boot {
            silent_until: after(self.profile.silent_time),
            deaf_until: after(self.profile.deaf_time),
            boots_until: if waits {
                u64::MAX
            } else {
                after(self.profile.boot_time)
            },
        };
        self.init.reset(env.now, boot);
        for moment in boot.moments() {
            if moment > env.now && moment < u64::MAX {
                env.schedule(moment, self.index, Timer::Booted);
            }
        }
    }

    /// Resets the function on behalf of its driver or of the driver's system. If the function is virtual, its manager
    /// is notified, because the function's memory belongs to the manager.
    pub fn reset_by_driver(&mut self, env: &mut Env) {
        self.record.resets += 1;
        self.reset(env);
        let vport = self.seat.vport;
        if self.seat.is_virtual()
            && let Some(manager) = env.manager(self.seat)
        {
            env.card_events
                .push_back((manager, CardEvent::VfReset { vport }));
        }
    }

    /// Sets the number of interrupt vectors of a virtual function, as its manager decided, and rebuilds configuration
    /// space.
    pub fn set_vectors(&mut self, vectors: u16) {
        self.profile.msix_vectors = vectors;
        self.config = ConfigSpace::new(&self.profile, self.seat.is_virtual());
    }

    /// Resets a virtual function that its manager has enabled or disabled.
    pub fn enabled_by_manager(&mut self, env: &mut Env, enabled: bool) {
        env.note(
            self.index,
            format_args!("enabled by its manager: {enabled}"),
        );
        self.reset(env);
    }

    /// Updates the registers to the virtual time `now`.
    pub fn tick(&mut self, now: u64) {
        self.init.tick(now);
    }

    /// Returns whether the function has been removed from the bus.
    pub fn removed(&self) -> bool {
        self.removed
    }

    /// Returns whether the function is on the bus and reports no fatal health syndrome. Otherwise it executes no
    /// command, and its data path stands still.
    pub fn alive(&self) -> bool {
        !self.removed && self.init.health_syndrome() == 0 && !self.init.is_off_bus()
    }

    /// Reads configuration space.
    pub fn config_read(&self, offset: u16, out: &mut [u8]) {
        if self.removed {
            out.fill(0xff);
        } else {
            self.config.read(offset, out);
        }
    }

    /// Writes configuration space.
    pub fn config_write(&mut self, env: &mut Env, offset: u16, data: &[u8]) {
        if self.removed {
            return;
        }
        let effect = self.config.write(offset, data);
        let bus_master = self.config.bus_master();
        if bus_master != self.iommu.bus_master() {
            env.note(
                self.index,
                format_args!("bus master {}", if bus_master { "on" } else { "off" }),
            );
            self.iommu.set_bus_master(bus_master);
        }
        if effect == ConfigEffect::FunctionLevelReset {
            self.reset_by_driver(env);
        }
    }

    /// Handles a write to BAR 0. The bytes are in memory already. Memory space enable is not checked, because the host
    /// enables it when it opens the function for the driver, as VFIO does.
    pub fn bar_written(&mut self, env: &mut Env, offset: u64, bytes: &[u8]) {
        let in_bar = usize::try_from(offset)
            .ok()
            .filter(|&offset| self.bar.contains(offset, bytes.len()));
        let Some(at) = in_bar else {
            self.driver_bug(env, format!("write beyond BAR 0 at {offset:#x}"));
            return;
        };
        if self.removed || self.init.is_off_bus() {
            self.bar.fill(at, bytes.len(), 0xff);
            return;
        }
        let is_silent = self.init.is_silent();
        if !is_silent && window(&self.profile, &self.caps.general).contains(&offset) {
            // The store is in the BAR already, but the device may have written to the same bytes since. Writing the
            // bytes again makes the BAR equal to the device's copy.
            self.bar.write_bytes(at, bytes);
            if !self.objects.device_memory.write(offset, bytes) {
                self.driver_bug(
                    env,
                    format!(
                        "store to device memory at {offset:#x}, outside of every allocated piece"
                    ),
                );
            }
            return;
        }
        if offset >= crate::init_segment::SEGMENT_BYTES && !is_silent {
            let mut value = [0; 8];
            value[..bytes.len()].copy_from_slice(bytes);
            env.doorbells.push_back((
                self.index,
                Doorbell::Uar {
                    offset,
                    value,
                    length: bytes.len(),
                },
            ));
            return;
        }
        match self.init.written(at, bytes) {
            RegisterEffect::None => {}
            RegisterEffect::CommandDoorbell(slots) => {
                env.doorbells
                    .push_back((self.index, Doorbell::Command(slots)));
            }
            RegisterEffect::NicInterface(state) => self.nic_interface_written(env, state),
            RegisterEffect::Bug(what) => self.driver_bug(env, what),
        }
    }

    fn nic_interface_written(&mut self, env: &mut Env, state: u32) {
        env.note(self.index, format_args!("nic_interface {state}"));
        match state {
            NIC_DISABLED => {
                // Fast teardown: the device drops all objects and confirms.
                self.stop(env);
                self.init.set_nic_interface(NIC_DISABLED);
            }
            NIC_FULL_DRIVER => self.init.set_nic_interface(NIC_FULL_DRIVER),
            crate::init_segment::NIC_SOFTWARE_RESET => self.reset_by_driver(env),
            _ => self.driver_bug(env, format!("nic_interface {state} is not supported")),
        }
    }

    /// Tears the function down (TEARDOWN_HCA). Objects that still exist count as leaked.
    pub fn stop(&mut self, env: &mut Env) {
        for (kind, count) in self.objects.census() {
            *self.record.leaked.entry(kind).or_default() += count;
        }
        self.objects.clear();
        if !self.seat.is_virtual() {
            env.card_mut(self.seat).forget_manager();
        }
        self.gsi = None;
        self.smi = None;
        self.halves.clear();
        env.forget_queues(self.index);
        self.pages.torn_down();
        if self.stage == Stage::Initialised {
            self.stage = Stage::Enabled;
        }
    }

    /// Sets the eventfds of all vectors, and signals the vectors that were raised before.
    pub fn set_interrupts(&mut self, env: &mut Env, vectors: Vec<Interrupt>) {
        self.vectors = vectors;
        for vector in std::mem::take(&mut self.latched) {
            self.raise(env, vector);
        }
    }

    /// Sets the eventfds for notices of the operating system.
    pub fn set_notices(&mut self, notices: Notices) {
        self.notices = notices;
    }

    /// Signals a notice of the operating system, if its eventfd was set.
    fn signal_notice(env: &mut Env, notice: Option<&Interrupt>) {
        if let Some(notice) = notice {
            notice.signal();
            env.signals += 1;
        }
    }

    /// Raises an MSI-X vector. An interrupt of a vector without an eventfd is kept until an eventfd is set.
    pub fn raise(&mut self, env: &mut Env, vector: u16) {
        if !self.iommu.bus_master() {
            // An MSI-X message is a memory write, so the function cannot send it without bus mastering.
            env.note(
                self.index,
                format_args!("interrupt {vector} lost: no bus master"),
            );
            return;
        }
        if self.faults.loses_interrupt() {
            env.note(self.index, format_args!("interrupt {vector} lost"));
            return;
        }
        match self.vectors.get(usize::from(vector)) {
            Some(interrupt) => {
                env.note(self.index, format_args!("interrupt {vector}"));
                interrupt.signal();
                env.signals += 1;
            }
            None => {
                env.note(self.index, format_args!("interrupt {vector} latched"));
                self.latched.insert(vector);
            }
        }
    }

    /// Reports that the driver broke a rule for which the device has no error code.
    pub fn driver_bug(&mut self, env: &mut Env, what: String) {
        env.note(self.index, format_args!("driver bug: {what}"));
        let kept = &mut self.record.driver_bugs;
        if kept.len() < MAX_RECORDS {
            // A driver that keeps writing doorbells repeats the same message a thousand times, for example after
            // another program reset its function. So a message equal to the last one is not logged again.
            if kept.last() != Some(&what) {
                tracing::warn!(function = %self.profile.name, "driver bug: {what}");
            }
            kept.push(what);
        }
    }

    /// Counts a command of this opcode.
    pub fn count_opcode(&mut self, opcode: u16) {
        *self.record.opcodes.entry(opcode).or_default() += 1;
    }

    /// Counts a refused command, and records it if the limit permits.
    pub fn count_refusal(&mut self, refused: Refused) {
        *self.record.refusals.entry(refused.opcode).or_default() += 1;
        if self.record.refused.len() < MAX_RECORDS {
            self.record.refused.push(refused);
        }
    }

    /// Counts an ACCESS_REG command for this register.
    pub fn count_register(&mut self, register: u16, refused: bool) {
        let asked = self.record.registers.entry(register).or_default();
        asked.times += 1;
        asked.refused += u64::from(refused);
    }

    /// Counts a dropped frame.
    pub fn count_drop(&mut self, env: &mut Env, reason: &'static str) {
        env.note(self.index, format_args!("frame dropped: {reason}"));
        *self.record.dropped.entry(reason).or_default() += 1;
    }

    /// Returns the function's report.
    pub fn report(&self, env: &Env) -> FunctionReport {
        let port = env.port(self.seat);
        let mut leaked = self.record.leaked.clone();
        let objects = self.objects.census();
        for (&kind, &count) in &objects {
            *leaked.entry(kind).or_default() += count;
        }
        FunctionReport {
            objects,
            leaked,
            pages_held: self.pages.held(),
            dma_faults: self.iommu.faults().to_vec(),
            driver_bugs: self.record.driver_bugs.clone(),
            opcodes: self.record.opcodes.clone(),
            registers: self.record.registers.clone(),
            refused: self.record.refused.clone(),
            refusals: self.record.refusals.clone(),
            dropped: self.record.dropped.clone(),
            transmitted: port.transmitted,
            received: port.received,
            send_doorbells: self.record.send_doorbells,
            resets: self.record.resets,
        }
    }

    /// Drops the injected faults that are still waiting. Queue pairs that were stuck continue with their work.
    pub fn mend(&mut self, env: &mut Env) {
        self.faults.clear();
        for (qpn, slot) in self.objects.qps.iter_mut() {
            if !slot.queued && slot.qp.as_ref().is_some_and(|qp| qp.pending()) {
                slot.queued = true;
                env.runnable.push_back((self.index, qpn));
            }
        }
    }

    /// Injects a fault.
    pub fn inject(&mut self, env: &mut Env, fault: &Fault) {
        env.note(self.index, format_args!("fault {fault:?}"));
        if self.faults.add(fault) {
            return;
        }
        match *fault {
            Fault::PageRequest { pages } => self.request_pages(env, pages),
            Fault::HealthSyndrome(syndrome) => self.init.set_health_syndrome(syndrome),
            Fault::HealthCounterStops => self.init.freeze_health_counter(u64::MAX),
            Fault::HealthCounterStalls(time) => {
                let until = env.now.saturating_add(nanoseconds(time));
                self.init.freeze_health_counter(until);
            }
            Fault::BarAllOnes => self.init.remove_from_bus(),
            Fault::SurpriseRemoval => {
                self.init.remove_from_bus();
                self.removed = true;
                self.iommu.set_bus_master(false);
                self.objects.clear();
                self.commands.reset();
                env.forget(self.index);
            }
            Fault::BusError => Self::signal_notice(env, self.notices.error.as_ref()),
            Fault::WantedBack => Self::signal_notice(env, self.notices.requested.as_ref()),
            Fault::StrayInterrupts => {
                for vector in (0..=u16::MAX).take(self.vectors.len()) {
                    self.raise(env, vector);
                }
            }
            Fault::LinkDown => env.set_light(self.seat, false),
            Fault::LinkUp => env.set_light(self.seat, true),
            Fault::CommandFailure { .. }
            | Fault::CommandDelivery { .. }
            | Fault::CommandSilence { .. }
            | Fault::CommandDelay { .. }
            | Fault::PageStarvation { .. }
            | Fault::LostInterrupts(_)
            | Fault::LostDoorbells { .. }
            | Fault::StuckQueues { .. }
            | Fault::LostCompletions { .. }
            | Fault::DamagedData { .. }
            | Fault::Later { .. }
            | Fault::Growth { .. } => {}
        }
    }

    /// Returns the function's properties that apply to all keys.
    pub fn key_rules(&self) -> KeyRules {
        KeyRules {
            reserved_lkey: self.profile.reserved_lkey,
            max_indirection: self.caps.general.max_indirection(),
        }
    }

    /// Adds a queue pair to the tables.
    pub fn insert_qp(&mut self, qpn: u32, qp: Qp, service: u32, refs: QpRefs, pages: Vec<u64>) {
        let slot = QpSlot {
            qp: Some(Box::new(qp)),
            service,
            refs,
            pages,
            queued: false,
            timer: None,
        };
        self.objects.qps.insert(qpn, slot);
    }
}
