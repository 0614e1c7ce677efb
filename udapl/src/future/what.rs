//! Kinds of posts, and how each is posted.

use dat_core::post::{CompareSwap, FetchAdd};
use dat_core::{DatResult, EpHandle, LmrSlice, RmrTriplet};
use dat_mlx::MlxProvider;

use super::buffer::Buffer;
use crate::{CompletionFlags, DtoCookie, Ia};

const NO_FLAGS: CompletionFlags = CompletionFlags::empty();
/// Size of the operand of an atomic operation, in bytes.
const ATOMIC_BYTES: usize = 8;

/// A post with a buffer.
#[derive(Clone, Copy)]
pub(super) enum What {
    Recv,
    Send,
    SendImmediate(u32),
    SendInvalidate(u32),
    Write(RmrTriplet),
    WriteImmediate(RmrTriplet, u32),
    Read(RmrTriplet),
    FetchAdd(RmrTriplet, u64),
    CompareSwap {
        remote: RmrTriplet,
        compare: u64,
        swap: u64,
    },
}

/// A post with inline data.
#[derive(Clone, Copy)]
pub(super) enum Inline {
    Plain,
    Immediate(u32),
    Invalidate(u32),
}

/// An endpoint's queue, or a batch of posts to it.
pub(super) enum Queue<'a, 'b> {
    One(&'a mut Ia, EpHandle),
    Batch(&'a mut dat_core::Batch<'b, MlxProvider>),
}

/// Posts by the method `$one` of the instance, or by the method `$many` of the batch.
macro_rules! post {
    ($queue:ident, $one:ident, $many:ident, $iov:expr, $($argument:expr),*) => {
        match $queue {
            Queue::One(ia, ep) => ia.$one(ep, $iov, $($argument),*, NO_FLAGS),
            Queue::Batch(batch) => batch.$many($iov, $($argument),*, NO_FLAGS),
        }
    };
}

impl What {
    /// Returns whether the completion sets the length of the buffer.
    pub(super) const fn fills(&self) -> bool {
        matches!(
            self,
            Self::Recv | Self::Read(_) | Self::FetchAdd(..) | Self::CompareSwap { .. }
        )
    }

    /// Returns how many bytes of the buffer the post uses.
    pub(super) fn bytes(&self, buffer: &Buffer) -> usize {
        match self {
            Self::Recv => buffer.capacity(),
            Self::Read(remote) => usize::try_from(remote.segment_length).unwrap_or(usize::MAX),
            Self::FetchAdd(..) | Self::CompareSwap { .. } => ATOMIC_BYTES,
            Self::Send
            | Self::SendImmediate(_)
            | Self::SendInvalidate(_)
            | Self::Write(_)
            | Self::WriteImmediate(..) => buffer.len(),
        }
    }

    pub(super) fn post(
        &self,
        queue: Queue<'_, '_>,
        slice: LmrSlice,
        cookie: DtoCookie,
    ) -> DatResult<()> {
        let iov = &[slice];
        match *self {
            Self::Recv => post!(queue, ep_post_recv, recv, iov, cookie),
            Self::Send => post!(queue, ep_post_send, send, iov, cookie),
            Self::SendImmediate(data) => {
                post!(
                    queue,
                    ep_post_send_immediate,
                    send_immediate,
                    iov,
                    cookie,
                    data
                )
            }
            Self::SendInvalidate(context) => post!(
                queue,
                ep_post_send_invalidate,
                send_invalidate,
                iov,
                cookie,
                context
            ),
            Self::Write(to) => post!(queue, ep_post_rdma_write, rdma_write, iov, cookie, &to),
            Self::WriteImmediate(to, data) => post!(
                queue,
                ep_post_rdma_write_immediate,
                rdma_write_immediate,
                iov,
                cookie,
                &to,
                data
            ),
            Self::Read(from) => post!(queue, ep_post_rdma_read, rdma_read, iov, cookie, &from),
            Self::FetchAdd(remote, add) => match queue {
                Queue::One(ia, ep) => ia.ep_post_fetch_add(ep, iov, cookie, &remote, add, NO_FLAGS),
                Queue::Batch(batch) => {
                    let remote = &remote;
                    batch.fetch_add(iov, cookie, FetchAdd { remote, add }, NO_FLAGS)
                }
            },
            Self::CompareSwap {
                remote,
                compare,
                swap,
            } => match queue {
                Queue::One(ia, ep) => {
                    ia.ep_post_compare_swap(ep, iov, cookie, &remote, compare, swap, NO_FLAGS)
                }
                Queue::Batch(batch) => {
                    let operation = CompareSwap {
                        remote: &remote,
                        compare,
                        swap,
                    };
                    batch.compare_swap(iov, cookie, operation, NO_FLAGS)
                }
            },
        }
    }
}

impl Inline {
    pub(super) fn post(
        self,
        ia: &mut Ia,
        ep: EpHandle,
        data: &[u8],
        cookie: DtoCookie,
    ) -> DatResult<()> {
        match self {
            Self::Plain => ia.ep_post_send_inline(ep, data, cookie, NO_FLAGS),
            Self::Immediate(with) => {
                ia.ep_post_send_inline_immediate(ep, data, cookie, with, NO_FLAGS)
            }
            Self::Invalidate(context) => {
                ia.ep_post_send_inline_invalidate(ep, data, cookie, context, NO_FLAGS)
            }
        }
    }
}
