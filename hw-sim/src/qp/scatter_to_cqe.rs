//! Scatter to CQE: short received data is written into the CQE, and software copies it to the WQE's buffer (rdma-core
//! `mlx5_copy_to_recv_wqe`, `mlx5_copy_to_send_wqe` in providers/mlx5/qp.c).
//!
//! A queue pair has it for messages it receives (`cs_res`), for the answers to its reads and atomics (`cs_req`), or
//! for both, up to 32 bytes or up to 64. Up to 32 bytes replace the CQE's first fields, which have no meaning on a
//! connection (format 1). Up to 64 lie in the half before the 64-byte CQE, so that entries have 128 bytes (format 2).
//! That short data uses the 64-byte place where 64 are allowed is inferred.
//!
//! No memory is written, so no key is checked; this is inferred from mlx5dv_create_mkey(3), which forbids scatter to
//! CQE with keys that transform data.

use super::state::Service;
use crate::host::Host;
use mlx_prm::{Cqe64, Qpc};
use zerocopy::IntoBytes;

/// Bytes of a CQE's first fields.
const IN_FRONT: usize = 32;
/// Bytes of the half before the 64-byte CQE.
const FIRST_HALF: usize = 64;

/// Largest data scattered to the CQE, in bytes; 0 is none.
#[derive(Clone, Copy, Debug)]
pub(super) struct InEntry {
    /// For the answer to a read or an atomic.
    pub(super) answers: usize,
    /// For a received message.
    pub(super) receives: usize,
}

impl InEntry {
    /// Returns the sizes of a context; `None` if there is no such size, or the service does not support it. Linux
    /// sets it on RC, and for receives on UC as well (`create_user_qp` in drivers/infiniband/hw/mlx5/qp.c).
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

/// Returns whether data of this size is scattered to a CQE that takes up to `most` bytes.
#[inline]
pub(super) const fn is_in_entry(bytes: usize, most: usize) -> bool {
    bytes <= most && bytes > 0
}

/// Writes a CQE with data of up to `most` bytes.
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
        // PANIC: callers have checked the length by `is_in_entry`.
        cqe.as_mut_bytes()[..data.len()].copy_from_slice(data);
        host.complete(cqn, cqe, event);
    } else {
        cqe.set_format(2);
        let mut first = [0; FIRST_HALF];
        first[..data.len()].copy_from_slice(data); // PANIC: as above
        host.complete_wide(cqn, first, cqe, event);
    }
}

/// Returns whether a context needs CQEs of 128 bytes: for its send queue, and for its receive queue.
pub(crate) const fn needs_wide_entries(context: &Qpc) -> (bool, bool) {
    (context.cs_req() == 0x22, context.cs_res() == 2)
}
