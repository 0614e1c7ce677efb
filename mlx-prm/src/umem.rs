//! User memory objects and user contexts. A user memory is registered once; queue contexts then name it by its ID. A
//! user context is the identity ("uid") that issues a command.
//!
//! Names and offsets are those of rdma-core `providers/mlx5/mlx5_ifc.h` and Linux 6.12
//! `include/linux/mlx5/mlx5_ifc.h`.

use layout::layout;

use super::command::command;
use super::{CmdStatus, Opcode};

layout! {
    /// User memory context, without the list of pages that follows it.
    pub struct Umem(0x20) {
        /// The addresses are the host's virtual ones (PCIe ATS).
        ats: 0x10[31],
        /// log2(page) − 12 of the list.
        log_page_size: 0x10[4:0],
        /// Offset in the first page, in bytes.
        page_offset: 0x14 u32,
        /// Number of entries of the list.
        num_of_mtt: 0x18 u64,
    }

    /// User context.
    pub struct Uctx(0x30) {
        /// Rights of the context beyond plain objects: bit 0 raw Ethernet transmission, bit 1 internal device
        /// resources, and further ones that capability `uctx_cap` names.
        cap: 0x00 u32,
    }
}

/// Entry of a umem's list: the device may read the page.
pub const MTT_READ: u64 = 1;
/// Entry of a umem's list: the device may write the page.
pub const MTT_WRITE: u64 = 2;

command! {
    /// The list of pages follows, one address each, with [`MTT_READ`] and [`MTT_WRITE`] in its low bits.
    CREATE_UMEM: CreateUmemIn(0x30) {
        /// ID of the user context that issues the command; 0 is the driver.
        uid: 0x00[15:0],
        umem: 0x10 Umem,
    } -> CreateUmemOut(0x10) {
        umem_id: 0x08[23:0],
    }

    DESTROY_UMEM: DestroyUmemIn(0x10) {
        /// ID of the user context that issues the command; 0 is the driver.
        uid: 0x00[15:0],
        umem_id: 0x08[23:0],
    } -> DestroyUmemOut(0x10) {}

    CREATE_UCTX: CreateUctxIn(0x40) {
        uctx: 0x10 Uctx,
    } -> CreateUctxOut(0x10) {
        /// The uid for later commands.
        uid: 0x08[15:0],
    }

    DESTROY_UCTX: DestroyUctxIn(0x10) {
        uid: 0x08[15:0],
    } -> DestroyUctxOut(0x10) {}
}
