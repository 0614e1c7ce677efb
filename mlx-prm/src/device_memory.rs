//! Memory of the device that programs reach through the BAR and queue pairs through keys (MEMIC). As Linux has it
//! (`mlx5_ifc_device_mem_cap_bits`, `mlx5_ifc_alloc_memic_in_bits`; drivers/infiniband/hw/mlx5/dm.c).
//!
//! Software gives a range of the window, in whole pages of its own, and the device chooses a place in it. Addresses
//! count from the beginning of the BAR.

use layout::layout;

use super::command::command;
use super::{CmdStatus, Opcode};

layout! {
    /// Device memory capabilities (type 0x0f).
    pub struct DeviceMemCap(0x100) {
        /// There is such memory.
        memic: 0x00[31],
        log_min_memic_alloc_size: 0x04[20:16],
        /// Largest `log_memic_addr_alignment`.
        log_max_memic_addr_alignment: 0x04[7:0],
        /// Where the window begins, from the beginning of the BAR.
        memic_bar_start_addr: 0x08 u64,
        /// Bytes of the window.
        memic_bar_size: 0x10 u32,
        /// Bytes at a time.
        max_memic_size: 0x14 u32,
        steering_sw_icm_start_address: 0x18 u64,
        log_header_modify_sw_icm_size: 0x20[23:16],
        log_sw_icm_alloc_granularity: 0x20[13:8],
        log_steering_sw_icm_size: 0x20[7:0],
        header_modify_sw_icm_start_address: 0x28 u64,
        /// Operations that an address in the window may stand for (MODIFY_MEMIC).
        memic_operations: 0x40 u32,
    }
}

command! {
    /// Takes device memory from a range of the window.
    ALLOC_MEMIC: AllocMemicIn(0x20) {
        /// In units of 64 bytes, as a power of two.
        log_memic_addr_alignment: 0x0c[7:0],
        range_start_addr: 0x10 u64,
        range_size: 0x18 u32,
        memic_size: 0x1c u32,
    } -> AllocMemicOut(0x10) {
        memic_start_addr: 0x08 u64,
    }
}

command! {
    /// Gives device memory back.
    DEALLOC_MEMIC: DeallocMemicIn(0x20) {
        memic_start_addr: 0x10 u64,
        memic_size: 0x18 u32,
    } -> DeallocMemicOut(0x10) {}
}
