//! Scatter to CQE: short data that arrives lies in the completion queue's entry, and software takes it from there to
//! where its WQE says (rdma-core `mlx5_copy_to_recv_wqe`, `mlx5_copy_to_send_wqe` in providers/mlx5/qp.c).
//!
//! A queue pair has it for messages it receives (`cs_res`), for what its reads and atomics bring back (`cs_req`), or
//! for both, up to 32 bytes or up to 64. Up to 32 take the place of an entry's first fields, which say nothing on a
//! connection (format 1); up to 64 lie in the half before the entry proper, so that entries have 128 bytes (format 2).
//! Which of the two a short message has where 64 are allowed is inferred: that of the 64.
//!
//! No memory is written, so no key is looked at; this is inferred from mlx5dv_create_mkey(3), which forbids it with
//! keys that change data on its way.

use super::state::Service;
use crate::host::Host;
use mlx_prm::{Cqe64, Qpc};
use zerocopy::IntoBytes;

/// Bytes of an entry's first fields.
const IN_FRONT: usize = 32;
/// Bytes of the half before the entry proper.
const FIRST_HALF: usize = 64;

/// Up to how many bytes of what arrives lie in the entry; 0 is none.
#[derive(Clone, Copy, Debug)]
pub(super) struct InEntry {
    /// Of the answer to a read or an atomic.
    pub(super) answers: usize,
    /// Of a message received.
    pub(super) receives: usize,
}

impl InEntry {
    /// As a context has it; `None` if there is no such size, or the service does not have it. Linux asks for it on RC,
    /// and for receives on UC as well (`create_user_qp` in drivers/infiniband/hw/mlx5/qp.c).
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

/// Whether so many bytes lie in an entry that takes up to `most`.
#[inline]
pub(super) const fn is_in_entry(bytes: usize, most: usize) -> bool {
    bytes <= most && bytes > 0
}

/// Writes an entry, with the data that lies in one of up to `most` bytes.
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
        // PANIC: who puts data into entries has asked `is_in_entry`.
        cqe.as_mut_bytes()[..data.len()].copy_from_slice(data);
        host.complete(cqn, cqe, event);
    } else {
        cqe.set_format(2);
        let mut first = [0; FIRST_HALF];
        first[..data.len()].copy_from_slice(data); // PANIC: as above
        host.complete_wide(cqn, first, cqe, event);
    }
}

/// Whether a context's entries have to be of 128 bytes: those of what is sent, and those of what is received.
pub(crate) const fn needs_wide_entries(context: &Qpc) -> (bool, bool) {
    (context.cs_req() == 0x22, context.cs_res() == 2)
}
