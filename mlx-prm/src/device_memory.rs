//! Device memory (MEMIC), which programs access through the BAR, and queue pairs through memory keys. The layouts are
//! those of Linux (`mlx5_ifc_device_mem_cap_bits`, `mlx5_ifc_alloc_memic_in_bits`; drivers/infiniband/hw/mlx5/dm.c).
//!
//! The window is the part of the BAR that has the device memory. Software passes a range of the window, in whole
//! host pages, and the device chooses an address within that range. Addresses are offsets from the start of the BAR.

use layout::layout;

use super::command::command;
use super::{CmdStatus, Opcode};

layout! {
    /// Device memory capabilities (type 0x0f).
    pub struct DeviceMemCap(0x100) {
        /// Set: the device has such memory.
        memic: 0x00[31],
        log_min_memic_alloc_size: 0x04[20:16],
        /// Largest `log_memic_addr_alignment`.
        log_max_memic_addr_alignment: 0x04[7:0],
        /// Start of the window, as an offset from the beginning of the BAR.
        memic_bar_start_addr: 0x08 u64,
        /// Size of the window in bytes.
        memic_bar_size: 0x10 u32,
        /// Largest size of one allocation in bytes.
        max_memic_size: 0x14 u32,
        steering_sw_icm_start_address: 0x18 u64,
        log_header_modify_sw_icm_size: 0x20[23:16],
        log_sw_icm_alloc_granularity: 0x20[13:8],
        log_steering_sw_icm_size: 0x20[7:0],
        header_modify_sw_icm_start_address: 0x28 u64,
        /// Bit per operation for which MODIFY_MEMIC can allocate an address.
        memic_operations: 0x40 u32,
    }
}

command! {
    /// Allocates device memory in a range of the window.
    ALLOC_MEMIC: AllocMemicIn(0x20) {
        /// log2 of the alignment, in units of 64 bytes.
        log_memic_addr_alignment: 0x0c[7:0],
        range_start_addr: 0x10 u64,
        range_size: 0x18 u32,
        memic_size: 0x1c u32,
    } -> AllocMemicOut(0x10) {
        memic_start_addr: 0x08 u64,
    }
}

command! {
    /// Frees device memory.
    DEALLOC_MEMIC: DeallocMemicIn(0x20) {
        memic_start_addr: 0x10 u64,
        memic_size: 0x18 u32,
    } -> DeallocMemicOut(0x10) {}
}
