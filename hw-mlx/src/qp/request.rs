//! Encoding of a request in a WQE: its opcode, the last word of its control segment, and the units between the control
//! segment and the data.

use rdma_types::RequestOp;

use crate::wqe::{self, Unit};
use mlx_prm::WqeOpcode;

/// Returns the number of units before the data, control segment included.
#[inline]
pub(super) const fn head_units(op: RequestOp) -> usize {
    match op {
        RequestOp::Send | RequestOp::SendImmediate(_) | RequestOp::SendInvalidate { .. } => 1,
        RequestOp::RdmaWrite { .. }
        | RequestOp::RdmaWriteImmediate { .. }
        | RequestOp::RdmaRead { .. } => 2,
        RequestOp::FetchAdd { .. } | RequestOp::CompareSwap { .. } => 3,
    }
}

/// Returns the WQE opcode of an operation.
#[inline]
pub(super) const fn opcode(op: RequestOp) -> WqeOpcode {
    match op {
        RequestOp::Send => WqeOpcode::SEND,
        RequestOp::SendImmediate(_) => WqeOpcode::SEND_IMM,
        RequestOp::SendInvalidate { .. } => WqeOpcode::SEND_INVAL,
        RequestOp::RdmaWrite { .. } => WqeOpcode::RDMA_WRITE,
        RequestOp::RdmaWriteImmediate { .. } => WqeOpcode::RDMA_WRITE_IMM,
        RequestOp::RdmaRead { .. } => WqeOpcode::RDMA_READ,
        RequestOp::FetchAdd { .. } => WqeOpcode::ATOMIC_FA,
        RequestOp::CompareSwap { .. } => WqeOpcode::ATOMIC_CS,
    }
}

/// Returns the last word of the control segment: immediate data, the key to invalidate, or 0.
#[inline]
pub(super) const fn last_word(op: RequestOp) -> u32 {
    match op {
        RequestOp::SendImmediate(immediate) | RequestOp::RdmaWriteImmediate { immediate, .. } => {
            immediate
        }
        RequestOp::SendInvalidate { rmr_context } => rmr_context,
        RequestOp::Send
        | RequestOp::RdmaWrite { .. }
        | RequestOp::RdmaRead { .. }
        | RequestOp::FetchAdd { .. }
        | RequestOp::CompareSwap { .. } => 0,
    }
}

/// Returns the remote address unit; `None` for operations without a remote address.
#[inline]
pub(super) const fn remote_unit(op: RequestOp) -> Option<Unit> {
    match op {
        RequestOp::Send | RequestOp::SendImmediate(_) | RequestOp::SendInvalidate { .. } => None,
        RequestOp::RdmaWrite {
            address,
            rmr_context,
        }
        | RequestOp::RdmaWriteImmediate {
            address,
            rmr_context,
            ..
        }
        | RequestOp::RdmaRead {
            address,
            rmr_context,
        }
        | RequestOp::FetchAdd {
            address,
            rmr_context,
            ..
        }
        | RequestOp::CompareSwap {
            address,
            rmr_context,
            ..
        } => Some(wqe::remote_address(address, rmr_context)),
    }
}

/// Returns the operands unit of an atomic operation; `None` for other operations.
#[inline]
pub(super) const fn atomic_unit(op: RequestOp) -> Option<Unit> {
    match op {
        RequestOp::FetchAdd { add, .. } => Some(wqe::atomic(add, 0)),
        RequestOp::CompareSwap { compare, swap, .. } => Some(wqe::atomic(swap, compare)),
        RequestOp::Send
        | RequestOp::SendImmediate(_)
        | RequestOp::SendInvalidate { .. }
        | RequestOp::RdmaWrite { .. }
        | RequestOp::RdmaWriteImmediate { .. }
        | RequestOp::RdmaRead { .. } => None,
    }
}
