//! The initialization segment: the first pages of BAR 0, seen from the device.
//!
//! Registers are in BAR memory, big-endian, so that a read is a plain memory access. When virtual time advances, the
//! device rewrites the registers that change by themselves (timers, health counter, `initializing`). The device
//! restores the registers that software may not write. Software may change only the command queue address, the
//! `nic_interface` bits beside its low half, and the command doorbell. A write of the word of `initializing` or of
//! `clear_int` is accepted without effect.
//!
//! A write of the low half of the command queue address activates the queue, at the high half that was written before
//! (Linux `mlx5_cmd_enable`, Snabb and illumos write the high half first). It is inferred that a later write of the
//! high half has no effect before the next write of the low half. A command doorbell between these two writes is a
//! driver bug, because the queue is not where the driver expects it.
//!
//! The word at 0x14 has two meanings. On a write it is the low address and `nic_interface`. On a read its low byte is
//! the geometry of the queue (32 entries of 64 bytes, 0x56), whatever software wrote to that byte. Drivers read the
//! word back to change `nic_interface` alone.
//!
//! A device that was removed from the bus reads as ones: [`InitSegment::remove_from_bus`] fills the segment and the
//! window of device memory with ones, and the segment ignores everything from then on.
//!
//! A device that was just reset also reads as ones for a while. After that the segment is readable, but the firmware
//! does not read it yet: revisions and geometry read zero, and writes are lost. `initializing` reads 1 in both phases.
//! Linux waits until `initializing` is clear before it reads anything else ("wait for firmware to accept
//! initialization segments configurations" in `mlx5_function_enable`,
//! drivers/net/ethernet/mellanox/mlx5/core/main.c).

use crate::device_memory;
use crate::profile::Profile;
use driver::SharedMemory;
use mlx_prm::COMMAND_INTERFACE_REVISION;
use std::ops::Range;

/// Log2 of the number of command queue entries.
pub const LOG_CMDQ_SIZE: u32 = 5;
/// Log2 of the number of bytes from one command queue entry to the next.
pub const LOG_CMDQ_STRIDE: u32 = 6;
/// Number of bytes of BAR 0 before the UAR pages.
pub const SEGMENT_BYTES: u64 = 0x4000;

const FW_REV: usize = 0x000;
const CMDIF_REV: usize = 0x004;
const CMDQ_ADDR_H: usize = 0x010;
const CMDQ_ADDR_L_SZ: usize = 0x014;
const CMD_DBELL: usize = 0x018;
const INITIALIZING: usize = 0x1fc;
const HEALTH_FW_VER: usize = 0x230;
const HEALTH_HW_ID: usize = 0x234;
const HEALTH_RFR: usize = 0x238;
const HEALTH_SYND: usize = 0x23c;
const INTERNAL_TIMER_H: usize = 0x1000;
const INTERNAL_TIMER_L: usize = 0x1004;
const CLEAR_INT: usize = 0x100c;
const HEALTH_COUNTER: usize = 0x1010;

/// `nic_interface` value: full driver.
pub const NIC_FULL_DRIVER: u32 = 0;
/// `nic_interface` value: disabled.
pub const NIC_DISABLED: u32 = 1;
/// `nic_interface` value: software reset.
pub const NIC_SOFTWARE_RESET: u32 = 7;

/// Effect of a write to the segment on the device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RegisterEffect {
    /// The write has no effect beyond the register.
    None,
    /// The driver rang the command doorbell. Bit n passes command slot n to the device.
    CommandDoorbell(u32),
    /// The driver changed `nic_interface` to this value.
    NicInterface(u32),
    /// A driver bug, which the text describes: a write of a read-only register, a write in a boot phase in which writes
    /// are lost, a write whose width is not 32 bits (for the queue's address, 64 bits are allowed, too), or a command
    /// doorbell after the driver changed only the high half of that address.
    Bug(String),
}

/// Boot phases of a function after a reset. Each field is the virtual time in ns at which a phase ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Boot {
    /// End of the phase in which the BAR reads as ones and ignores writes.
    pub silent_until: u64,
    /// End of the phase in which writes to the segment are lost.
    pub deaf_until: u64,
    /// End of the phase in which the firmware boots and `initializing` reads 1.
    pub boots_until: u64,
}

impl Boot {
    /// Returns the virtual times in ns at which the phases end.
    pub fn moments(self) -> [u64; 3] {
        [self.silent_until, self.deaf_until, self.boots_until]
    }

    fn phase(self, now: u64) -> Phase {
        if now < self.silent_until {
            Phase::Silent
        } else if now < self.deaf_until {
            Phase::Deaf
        } else {
            Phase::Listening
        }
    }
}

/// Accessibility of the segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// The segment is not accessible: the BAR reads as ones.
    Silent,
    /// The segment is readable, but writes are lost.
    Deaf,
    /// The segment is readable and writable.
    Listening,
}

/// The device's side of the initialization segment.
pub struct InitSegment {
    bar: SharedMemory,
    /// Byte range of the device memory in the BAR.
    window: Range<u64>,
    cmdq_address: u64,
    /// High half of the address as last written. The next write of the low half makes it effective.
    cmdq_high: u32,
    queue_active: bool,
    nic_interface: u32,
    boot: Boot,
    phase: Phase,
    health_syndrome: u8,
    /// Virtual time in ns until which the health counter does not advance.
    counter_stopped_until: u64,
    dark: bool,
    khz: u32,
    firmware: (u16, u16, u16),
    hw_id: u32,
}

impl InitSegment {
    /// Returns a segment at the beginning of `bar`. The caller must call [`InitSegment::reset`] before use.
    pub fn new(bar: SharedMemory, profile: &Profile) -> Self {
        Self {
            bar,
            window: device_memory::window(profile, &profile.general.current),
            cmdq_address: 0,
            cmdq_high: 0,
            queue_active: false,
            nic_interface: NIC_FULL_DRIVER,
            boot: Boot::default(),
            phase: Phase::Listening,
            health_syndrome: 0,
            counter_stopped_until: 0,
            dark: false,
            khz: profile.general.current.device_frequency_khz(),
            firmware: profile.firmware,
            hw_id: u32::from(profile.device_id),
        }
    }

    /// Restores power-on values and starts the boot phases.
    pub fn reset(&mut self, now: u64, boot: Boot) {
        if self.dark {
            return;
        }
        self.cmdq_address = 0;
        self.cmdq_high = 0;
        self.queue_active = false;
        self.nic_interface = NIC_FULL_DRIVER;
        self.boot = boot;
        self.health_syndrome = 0;
        self.counter_stopped_until = 0;
        self.enter(boot.phase(now));
        self.tick(now);
    }

    /// Returns the number of bytes at the beginning of the BAR that a reset fills. A reset does not write the doorbell
    /// pages that follow: they are several megabytes long, and opening a device must be fast. `fill_window` fills the
    /// device memory at the end of the BAR.
    fn readable(&self) -> usize {
        const READ: usize = 1 << 16;
        self.bar.len().min(READ)
    }

    fn enter(&mut self, phase: Phase) {
        self.phase = phase;
        let bytes = self.readable();
        if phase == Phase::Silent {
            self.fill_with_ones();
        } else {
            // A driver in another thread may read at the same time: `initializing` stays set until the whole segment is
            // written.
            self.bar.store_be32(INITIALIZING, 1 << 31);
            self.bar.fill(0, INITIALIZING, 0);
            let behind = INITIALIZING + 4;
            self.bar.fill(behind, bytes - behind, 0);
            self.fill_window(0);
            self.restore();
        }
    }

    fn fill_with_ones(&self) {
        self.bar.fill(0, self.readable(), 0xff);
        self.fill_window(0xff);
    }

    fn fill_window(&self, value: u8) {
        let [first, end] = [self.window.start, self.window.end]
            .map(|offset| usize::try_from(offset).unwrap_or(usize::MAX));
        self.bar.fill(first, end - first, value);
    }

    /// Returns whether the firmware still boots.
    pub fn initializing(&self, now: u64) -> bool {
        self.boot.moments().into_iter().any(|moment| now < moment)
    }

    /// Returns the DMA address of the command queue; `None` until software has written the low half of the address.
    pub fn command_queue(&self) -> Option<u64> {
        self.queue_active.then_some(self.cmdq_address)
    }

    /// Returns `nic_interface` as the device reports it.
    pub fn nic_interface(&self) -> u32 {
        self.nic_interface
    }

    /// Returns the fatal syndrome in the health buffer, 0 if none.
    pub fn health_syndrome(&self) -> u8 {
        self.health_syndrome
    }

    /// Returns whether the device was removed from the bus.
    pub fn is_off_bus(&self) -> bool {
        self.dark
    }

    /// Returns whether the BAR reads as ones, because the device was removed from the bus or is in reset.
    pub fn is_silent(&self) -> bool {
        self.dark || self.phase == Phase::Silent
    }

    /// Updates the timers, the health counter and the boot phase to the virtual time `now`.
    pub fn tick(&mut self, now: u64) {
        if self.dark {
            return;
        }
        let phase = self.boot.phase(now);
        if phase != self.phase {
            self.enter(phase);
        }
        if phase == Phase::Silent {
            return;
        }
        let initializing = u32::from(self.initializing(now)) << 31;
        self.bar.store_be32(INITIALIZING, initializing);
        let [high, low] = halves(device_ticks(now, self.khz));
        self.bar.store_be32(INTERNAL_TIMER_H, high);
        self.bar.store_be32(INTERNAL_TIMER_L, low);
        if now >= self.counter_stopped_until {
            // The health counter advances once per 10 ms, because recovery code reads it every 50 ms.
            let [_, counter] = halves((now / 10_000_000) & 0x00ff_ffff);
            self.bar.store_be32(
                HEALTH_COUNTER,
                u32::from(self.health_syndrome) << 24 | counter,
            );
        }
    }

    /// Reports a fatal health syndrome. If a syndrome is already reported, this has no effect.
    pub fn set_health_syndrome(&mut self, syndrome: u8) {
        if self.dark || self.health_syndrome != 0 {
            return;
        }
        self.health_syndrome = syndrome;
        self.restore();
        let counter = self.bar.load_be32(HEALTH_COUNTER) & 0x00ff_ffff;
        self.bar
            .store_be32(HEALTH_COUNTER, u32::from(syndrome) << 24 | counter);
    }

    /// Returns whether the firmware no longer runs: the health counter never advances again.
    pub fn is_stuck(&self) -> bool {
        self.counter_stopped_until == u64::MAX
    }

    /// Stops the health counter until the virtual time `until`, in ns.
    pub fn freeze_health_counter(&mut self, until: u64) {
        self.counter_stopped_until = until;
    }

    /// Marks the device as removed from the bus: every register reads as ones from now on.
    pub fn remove_from_bus(&mut self) {
        self.dark = true;
        self.fill_with_ones();
    }

    /// Confirms a state that software requested through `nic_interface`.
    pub fn set_nic_interface(&mut self, state: u32) {
        self.nic_interface = state & 7;
        self.restore();
    }

    /// Handles a write of `bytes` at `offset` (below [`SEGMENT_BYTES`]). The bytes are in BAR memory already.
    pub fn written(&mut self, offset: usize, bytes: &[u8]) -> RegisterEffect {
        if self.is_silent() {
            self.bar.fill(offset, bytes.len(), 0xff);
        }
        if self.dark {
            return RegisterEffect::None;
        }
        if self.phase != Phase::Listening {
            if self.phase == Phase::Deaf {
                self.restore();
            }
            return RegisterEffect::Bug(format!(
                "{}-byte write at {offset:#x} of BAR 0 is lost: the firmware has not come up from its reset",
                bytes.len()
            ));
        }
        let (offset, value) = match (offset % 4, bytes) {
            (0, &[a, b, c, d]) => (offset, u32::from_be_bytes([a, b, c, d])),
            (0, &[a, b, c, d, e, f, g, h]) if offset == CMDQ_ADDR_H => {
                self.written(CMDQ_ADDR_H, &[a, b, c, d]);
                return self.written(CMDQ_ADDR_L_SZ, &[e, f, g, h]);
            }
            _ => {
                self.restore();
                return RegisterEffect::Bug(format!(
                    "{}-byte write at {offset:#x} of the initialization segment: registers are 32 bits",
                    bytes.len()
                ));
            }
        };
        match offset {
            CMDQ_ADDR_H => {
                self.cmdq_high = value;
                RegisterEffect::None
            }
            CMDQ_ADDR_L_SZ => self.address_low_written(value),
            CMD_DBELL => {
                self.bar.store_be32(CMD_DBELL, 0);
                self.doorbell_written(value)
            }
            CLEAR_INT => RegisterEffect::None,
            // Bit 22 acknowledges a firmware reset request, which this firmware never makes.
            INITIALIZING => {
                self.restore();
                RegisterEffect::None
            }
            _ => {
                self.restore();
                RegisterEffect::Bug(format!(
                    "write of {value:#010x} to read-only register {offset:#x}"
                ))
            }
        }
    }

    fn doorbell_written(&self, slots: u32) -> RegisterEffect {
        let [high, _] = halves(self.cmdq_address);
        if self.queue_active && high != self.cmdq_high {
            // The text gets into the event log, which contains no addresses.
            return RegisterEffect::Bug(format!(
                "command doorbell {slots:#x} is lost: the high half of the queue's address was written after the \
                 low half"
            ));
        }
        RegisterEffect::CommandDoorbell(slots)
    }

    fn address_low_written(&mut self, value: u32) -> RegisterEffect {
        self.cmdq_address = u64::from(self.cmdq_high) << 32 | u64::from(value & 0xffff_f000);
        self.queue_active = true;
        let wanted = value >> 8 & 7;
        let changed = wanted != self.nic_interface;
        self.restore();
        if changed {
            RegisterEffect::NicInterface(wanted)
        } else {
            RegisterEffect::None
        }
    }

    /// Writes every register that does not depend on time.
    fn restore(&mut self) {
        let (major, minor, subminor) = self.firmware;
        let bar = &self.bar;
        if self.phase != Phase::Listening {
            for register in [FW_REV, CMDIF_REV, CMDQ_ADDR_H, CMDQ_ADDR_L_SZ, CMD_DBELL] {
                bar.store_be32(register, 0);
            }
            return;
        }
        bar.store_be32(FW_REV, u32::from(minor) << 16 | u32::from(major));
        bar.store_be32(
            CMDIF_REV,
            COMMAND_INTERFACE_REVISION << 16 | u32::from(subminor),
        );
        let [_, low] = halves(self.cmdq_address);
        bar.store_be32(CMDQ_ADDR_H, self.cmdq_high);
        let geometry = LOG_CMDQ_SIZE << 4 | LOG_CMDQ_STRIDE;
        bar.store_be32(CMDQ_ADDR_L_SZ, low | self.nic_interface << 8 | geometry);
        bar.store_be32(CMD_DBELL, 0);
        bar.store_be32(
            HEALTH_FW_VER,
            u32::from(major & 0xff) << 24 | u32::from(minor & 0xff) << 16 | u32::from(subminor),
        );
        bar.store_be32(HEALTH_HW_ID, self.hw_id);
        let reset_required = self.health_syndrome != 0;
        bar.store_be32(HEALTH_RFR, if reset_required { 0x8800_0000 } else { 0 });
        bar.store_be32(HEALTH_SYND, u32::from(self.health_syndrome) << 16);
    }
}

/// Returns the number of ticks that a clock of `khz` makes in `now` nanoseconds.
pub fn device_ticks(now: u64, khz: u32) -> u64 {
    let ticks = u128::from(now) * u128::from(khz) / 1_000_000;
    u64::try_from(ticks).unwrap_or(u64::MAX)
}

fn halves(value: u64) -> [u32; 2] {
    let [a, b, c, d, e, f, g, h] = value.to_be_bytes();
    [
        u32::from_be_bytes([a, b, c, d]),
        u32::from_be_bytes([e, f, g, h]),
    ]
}

#[cfg(test)]
mod tests;
