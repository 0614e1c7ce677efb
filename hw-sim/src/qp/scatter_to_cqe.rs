//! Scatter to CQE: the device writes short received data into the CQE, and software copies it to the WQE's buffer
//! (rdma-core `mlx5_copy_to_recv_wqe`, `mlx5_copy_to_send_wqe` in providers/mlx5/qp.c).
//!
//! A queue pair enables it for received messages (`cs_res`), for the responses to its reads and atomics (`cs_req`), or
//! for both, and for up to 32 or up to 64 bytes. With a limit of 32 bytes, the data replaces the CQE's first fields,
//! which have no meaning on a connection (format 1). With a limit of 64 bytes, the data is in the 64 bytes before the
//! 64-byte CQE, so that entries have 128 bytes (format 2). This also holds for data of 32 bytes or less, which is
//! inferred.
//!
//! The device writes to no buffer, so it checks no key. This is inferred from mlx5dv_create_mkey(3), which forbids
//! scatter to CQE with keys that transform data.

use super::state::Service;
use crate::host::Host;
use mlx_prm::{Cqe64, Qpc};
use zerocopy::IntoBytes;

/// Number of data bytes that fit into the CQE's first fields.
const IN_FRONT: usize = 32;
/// Size in bytes of the first half of a 128-byte entry, before the 64-byte CQE.
const FIRST_HALF: usize = 64;

/// Maximum size in bytes of data that is scattered to the CQE; 0 means that no data is.
#[derive(Clone, Copy, Debug)]
pub(super) struct InEntry {
    /// Maximum for the response to a read or an atomic.
    pub(super) answers: usize,
    /// Maximum for a received message.
    pub(super) receives: usize,
}

impl InEntry {
    /// Returns the maximum sizes that a context sets. Returns `None` if a value is undefined, or if the service does
    /// not support it. Linux enables it on RC, and for receives on UC as well (`create_user_qp` in
    /// drivers/infiniband/hw/mlx5/qp.c).
    pub(super) fn of(service: Service, context: &Qpc) -> Option<Self> {
        let answers = match context.cs_req() {
            0 => 0,
            0x11 => IN_FRONT,
            0x22 => FIRST_HALF,
            _ => return None,
        };
        let receives = match context.cs_res() {
            0 => 0,
            1 => IN_FRONT,
            2 => FIRST_HALF,
            _ => return None,
        };
        let receives_alone = service == Service::Uc && answers == 0;
        let has_it = service == Service::Rc || receives_alone || (answers, receives) == (0, 0);
        has_it.then_some(Self { answers, receives })
    }
}

/// Returns whether data of this size is scattered to the CQE, if the CQE takes up to `most` bytes.
#[inline]
pub(super) const fn is_in_entry(bytes: usize, most: usize) -> bool {
    bytes <= most && bytes > 0
}

/// Writes a CQE with `data`, which may be empty. `most` is the maximum size of such data and selects the format.
pub(super) fn complete(
    host: &mut dyn Host,
    cqn: u32,
    mut cqe: Cqe64,
    data: &[u8],
    most: usize,
    event: bool,
) {
    if data.is_empty() {
        host.complete(cqn, cqe, event);
    } else if most <= IN_FRONT {
        cqe.set_format(1);
        // PANIC: callers have checked the length with `is_in_entry`.
        cqe.as_mut_bytes()[..data.len()].copy_from_slice(data);
        host.complete(cqn, cqe, event);
    } else {
        cqe.set_format(2);
        let mut first = [0; FIRST_HALF];
        first[..data.len()].copy_from_slice(data); // PANIC: as above
        host.complete_wide(cqn, first, cqe, event);
    }
}

/// Returns whether a context needs CQEs of 128 bytes, for its send queue and for its receive queue.
pub(crate) const fn needs_wide_entries(context: &Qpc) -> (bool, bool) {
    (context.cs_req() == 0x22, context.cs_res() == 2)
}
