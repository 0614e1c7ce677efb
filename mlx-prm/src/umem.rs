//! User memory objects (umem) and user contexts. Software registers a umem once; queue contexts then name it by its
//! ID. A user context gives the identity ("uid") under which commands are issued.
//!
//! Names and offsets are those of rdma-core `providers/mlx5/mlx5_ifc.h` and Linux 6.12
//! `include/linux/mlx5/mlx5_ifc.h`.

use layout::layout;

use super::command::command;
use super::{CmdStatus, Opcode};

layout! {
    /// User memory context, without the list of pages that follows it.
    pub struct Umem(0x20) {
        /// Set: the addresses are virtual addresses of the host (PCIe ATS).
        ats: 0x10[31],
        /// log2 of the size in bytes of the list's pages, minus 12.
        log_page_size: 0x10[4:0],
        /// Offset in the first page, in bytes.
        page_offset: 0x14 u32,
        /// Number of entries of the list.
        num_of_mtt: 0x18 u64,
    }

    /// User context.
    pub struct Uctx(0x30) {
        /// Rights of the context beyond plain objects: bit 0 raw Ethernet transmission, bit 1 internal device
        /// resources. Capability `uctx_cap` lists further rights.
        cap: 0x00 u32,
    }
}

/// Entry of a umem's list: the device may read the page.
pub const MTT_READ: u64 = 1;
/// Entry of a umem's list: the device may write the page.
pub const MTT_WRITE: u64 = 2;

command! {
    /// Registers a umem. The list of pages follows: one address each, with [`MTT_READ`] and [`MTT_WRITE`] in the low
    /// bits.
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
        /// The uid for commands of the new user context.
        uid: 0x08[15:0],
    }

    DESTROY_UCTX: DestroyUctxIn(0x10) {
        uid: 0x08[15:0],
    } -> DestroyUctxOut(0x10) {}
}
