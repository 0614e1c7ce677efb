//! User memory objects and user contexts: memory that the device is told of once and that queue contexts then name by
//! number, and the identities ("uid") on whose behalf commands are given.
//!
//! Names and places are those of rdma-core `providers/mlx5/mlx5_ifc.h` and Linux 6.12 `include/linux/mlx5/mlx5_ifc.h`.

use layout::layout;

use super::command::command;
use super::{CmdStatus, Opcode};

layout! {
    /// User memory context, without the list of pages behind it.
    pub struct Umem(0x20) {
        /// The addresses are the host's virtual ones (PCIe ATS).
        ats: 0x10[31],
        /// log2(page) − 12 of the list.
        log_page_size: 0x10[4:0],
        /// Bytes into the first page.
        page_offset: 0x14 u32,
        /// Entries of the list.
        num_of_mtt: 0x18 u64,
    }

    /// User context.
    pub struct Uctx(0x30) {
        /// What the context may do beyond plain objects: 0 raw Ethernet transmission, 1 internal device resources,
        /// and what capability `uctx_cap` names besides.
        cap: 0x00 u32,
    }
}

/// Entry of a umem's list: the device may read the page.
pub const MTT_READ: u64 = 1;
/// Entry of a umem's list: the device may write the page.
pub const MTT_WRITE: u64 = 2;

command! {
    /// The list of pages follows, an address each, with [`MTT_READ`] and [`MTT_WRITE`] in its low bits.
    CREATE_UMEM: CreateUmemIn(0x30) {
        /// User context on whose behalf; 0 is the driver itself.
        uid: 0x00[15:0],
        umem: 0x10 Umem,
    } -> CreateUmemOut(0x10) {
        umem_id: 0x08[23:0],
    }

    DESTROY_UMEM: DestroyUmemIn(0x10) {
        /// User context on whose behalf; 0 is the driver itself.
        uid: 0x00[15:0],
        umem_id: 0x08[23:0],
    } -> DestroyUmemOut(0x10) {}

    CREATE_UCTX: CreateUctxIn(0x40) {
        uctx: 0x10 Uctx,
    } -> CreateUctxOut(0x10) {
        /// What later commands give as theirs.
        uid: 0x08[15:0],
    }

    DESTROY_UCTX: DestroyUctxIn(0x10) {
        uid: 0x08[15:0],
    } -> DestroyUctxOut(0x10) {}
}
