//! BAR 0 as register blocks: the initialization segment at its beginning, and a doorbell page (PRM
//! "Initialization Segment", "User Access Region").
//!
//! Every register is big-endian; software accesses a register with one access of the register's width. A register has
//! no accessors for its bit fields, because a driver reads the register once and then decodes it. The comment on the
//! register lists its bit fields.

use driver::{Be32, Be64, Ro, Rw, Wo};
use static_assertions::const_assert_eq;
use zerocopy::FromBytes;

/// Command interface revision that has these layouts; every driver requires it (Linux `cmd.c` `CMD_IF_REV`).
pub const COMMAND_INTERFACE_REVISION: u32 = 5;

/// Initialization segment, the beginning of BAR 0 (PRM "Initialization Segment").
#[derive(FromBytes)]
#[repr(C)]
pub struct InitSegment {
    /// Firmware revision: minor in 31:16, major in 15:0.
    pub fw_rev: Ro<Be32>,
    /// Command interface revision in 31:16, firmware sub-minor in 15:0.
    pub cmdif_rev_fw_sub: Ro<Be32>,
    rsvd_08: [u32; 2],
    /// Bits 63:32 of the command queue's address; the driver writes this register before `cmdq_addr_l_sz`.
    pub cmdq_addr_h: Rw<Be32>,
    /// Command queue: address 31:12, interface mode 10:8, log size 7:4 and log stride 3:0. The driver first reads the
    /// sizes from this register. Writing it activates the queue.
    pub cmdq_addr_l_sz: Rw<Be32>,
    /// Doorbell: writing bit n gives command queue entry n to the device.
    pub cmd_dbell: Wo<Be32>,
    rsvd_1c: [u32; 120],
    /// Bit 31 is set while the firmware boots.
    pub initializing: Ro<Be32>,
    /// Health buffer: six dwords of vendor-specific details of the assertion.
    pub assert_var: [Ro<Be32>; 6],
    rsvd_218: [u32; 2],
    /// Health buffer: address of the firmware code whose assertion failed.
    pub assert_exit_ptr: Ro<Be32>,
    /// Health buffer: return address at the failed assertion.
    pub assert_callra: Ro<Be32>,
    rsvd_228: u32,
    /// Health buffer: time at which the assertion failed.
    pub health_time: Ro<Be32>,
    /// Health buffer: firmware version; all ones when the device is gone.
    pub fw_ver: Ro<Be32>,
    /// Health buffer: hardware ID.
    pub hw_id: Ro<Be32>,
    /// Health buffer: reset required in bit 31, severity valid in 27, severity in 26:24.
    pub rfr_severity: Ro<Be32>,
    /// Health buffer: processor in 31:24, syndrome in 23:16, its detail in 15:0.
    pub synd: Ro<Be32>,
    /// Not used by drivers.
    pub no_dram_nic_offset: Ro<Be32>,
    rsvd_244: [u32; 877],
    /// Longest time that a command may take: unit in 31:29 (0 ms, 1 s, 2 min, 3 h), value in 19:0.
    pub cmd_exec_to: Ro<Be32>,
    /// Longest time until the command queue is ready, in the format of `cmd_exec_to`.
    pub cmd_q_init_to: Ro<Be32>,
    /// Free-running timer, high half. Drivers read it again after the low half, to detect a carry.
    pub internal_timer_h: Ro<Be32>,
    /// Free-running timer, low half.
    pub internal_timer_l: Ro<Be32>,
    rsvd_1008: u32,
    /// Bit 0 clears the legacy interrupt.
    pub clear_int: Wo<Be32>,
    /// Bits 31:24: syndrome. Bits 23:0: counter, which stops if the firmware stops.
    pub health_counter: Ro<Be32>,
    rsvd_1014: [u32; 11],
    /// Real-time clock, high half.
    pub real_time_h: Ro<Be32>,
    /// Real-time clock, low half.
    pub real_time_l: Ro<Be32>,
    rsvd_1048: [u32; 1006],
}

const_assert_eq!(size_of::<InitSegment>(), 0x2000);
const_assert_eq!(core::mem::offset_of!(InitSegment, fw_rev), 0x000);
const_assert_eq!(core::mem::offset_of!(InitSegment, cmdq_addr_h), 0x010);
const_assert_eq!(core::mem::offset_of!(InitSegment, cmdq_addr_l_sz), 0x014);
const_assert_eq!(core::mem::offset_of!(InitSegment, cmd_dbell), 0x018);
const_assert_eq!(core::mem::offset_of!(InitSegment, initializing), 0x1fc);
const_assert_eq!(core::mem::offset_of!(InitSegment, assert_var), 0x200);
const_assert_eq!(core::mem::offset_of!(InitSegment, assert_exit_ptr), 0x220);
const_assert_eq!(core::mem::offset_of!(InitSegment, health_time), 0x22c);
const_assert_eq!(core::mem::offset_of!(InitSegment, fw_ver), 0x230);
const_assert_eq!(core::mem::offset_of!(InitSegment, rfr_severity), 0x238);
const_assert_eq!(core::mem::offset_of!(InitSegment, synd), 0x23c);
const_assert_eq!(
    core::mem::offset_of!(InitSegment, no_dram_nic_offset),
    0x240
);
const_assert_eq!(core::mem::offset_of!(InitSegment, cmd_exec_to), 0xff8);
const_assert_eq!(core::mem::offset_of!(InitSegment, internal_timer_h), 0x1000);
const_assert_eq!(core::mem::offset_of!(InitSegment, clear_int), 0x100c);
const_assert_eq!(core::mem::offset_of!(InitSegment, health_counter), 0x1010);
const_assert_eq!(core::mem::offset_of!(InitSegment, real_time_h), 0x1040);

/// The initialization segment up to its timers as plain words, for copying its contents.
#[derive(FromBytes)]
#[repr(C)]
pub struct InitSegmentWords {
    /// Dword n is at offset 4n.
    pub words: [Ro<Be32>; 0x400],
}

const_assert_eq!(
    size_of::<InitSegmentWords>(),
    core::mem::offset_of!(InitSegment, internal_timer_h)
);

/// A doorbell page: 4 KiB of BAR 0 (PRM "User Access Region").
///
/// Of the send doorbells (0x800, 0x900, 0xa00, …) only the first is declared. The others exist so that write-combined
/// stores can alternate between doorbells; we map BARs uncached.
#[derive(FromBytes)]
#[repr(C)]
pub struct UarPage {
    rsvd_000: [u32; 8],
    /// Arms a completion queue: the arm word of the doorbell record, then the queue's number.
    pub cq_doorbell: Wo<Be64>,
    rsvd_028: [u32; 6],
    /// Event queue number in 31:24 and consumer counter in 23:0. A write updates the counter and arms the queue.
    pub eq_arm: Wo<Be32>,
    rsvd_044: u32,
    /// Event queue number and consumer counter, as in `eq_arm`. A write updates the counter without arming the queue.
    pub eq_update: Wo<Be32>,
    rsvd_04c: [u32; 493],
    /// Doorbell for sends: first eight bytes of the last posted WQE.
    pub send_doorbell: Wo<Be64>,
    rsvd_808: [u32; 510],
}

const_assert_eq!(size_of::<UarPage>(), 0x1000);
const_assert_eq!(core::mem::offset_of!(UarPage, cq_doorbell), 0x020);
const_assert_eq!(core::mem::offset_of!(UarPage, eq_arm), 0x040);
const_assert_eq!(core::mem::offset_of!(UarPage, eq_update), 0x048);
const_assert_eq!(core::mem::offset_of!(UarPage, send_doorbell), 0x800);
