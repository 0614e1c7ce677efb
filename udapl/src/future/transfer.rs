//! Futures of transfers in flight.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use super::buffer::Buffer;
use super::error::Error;
use super::table::{OpKey, Shared};

/// A transfer with its buffer. The future's output is the number of bytes moved or the error, and the buffer.
///
/// Dropping the future does not cancel the transfer: the buffer returns to its pool when the card no longer uses it.
#[must_use = "dropping a transfer does not cancel it, and its result is lost"]
pub struct Transfer(Flight);

/// A message without a buffer ([`Endpoint::send_inline`](super::Endpoint::send_inline)). The future's output is the
/// number of bytes moved, or the error. Dropping the future does not cancel the transfer.
#[must_use = "dropping a transfer does not cancel it, and its result is lost"]
pub struct InlineTransfer(Flight);

enum Flight {
    Posted(Rc<Shared>, OpKey),
    /// The transfer was never posted.
    Refused(Error, Option<Buffer>),
    Over,
}

impl Flight {
    fn poll(&mut self, cx: &Context<'_>) -> Poll<(Result<usize, Error>, Option<Buffer>)> {
        let ended = match std::mem::replace(self, Self::Over) {
            Self::Posted(shared, op) => match shared.with(|core| core.ended(op, cx.waker())) {
                Some(ended) => ended,
                None => {
                    *self = Self::Posted(shared, op);
                    return Poll::Pending;
                }
            },
            Self::Refused(error, buffer) => (Err(error), buffer),
            Self::Over => panic!("a transfer was polled after it was ready"),
        };
        Poll::Ready(ended)
    }

    /// Abandons the operation: its future was dropped.
    fn abandon(&self) {
        if let Self::Posted(shared, op) = self {
            // Dropping a returned buffer puts it back in its pool.
            drop(shared.with(|core| core.abandon(*op)));
        }
    }
}

impl Transfer {
    pub(super) const fn posted(shared: Rc<Shared>, op: OpKey) -> Self {
        Self(Flight::Posted(shared, op))
    }

    pub(super) const fn refused(error: Error, buffer: Buffer) -> Self {
        Self(Flight::Refused(error, Some(buffer)))
    }

    pub(super) fn of(shared: &Rc<Shared>, posted: Result<OpKey, (Error, Buffer)>) -> Self {
        match posted {
            Ok(op) => Self::posted(Rc::clone(shared), op),
            Err((error, buffer)) => Self::refused(error, buffer),
        }
    }
}

impl InlineTransfer {
    pub(super) fn of(shared: &Rc<Shared>, posted: Result<OpKey, Error>) -> Self {
        Self(match posted {
            Ok(op) => Flight::Posted(Rc::clone(shared), op),
            Err(error) => Flight::Refused(error, None),
        })
    }
}

impl Future for Transfer {
    type Output = (Result<usize, Error>, Buffer);

    /// # Panics
    /// Panics if it is polled after it was ready.
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.0.poll(cx).map(|(result, buffer)| {
            // PANIC: the transfer was posted with a buffer.
            (result, buffer.expect("the buffer of a transfer"))
        })
    }
}

impl Future for InlineTransfer {
    type Output = Result<usize, Error>;

    /// # Panics
    /// Panics if it is polled after it was ready.
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.0.poll(cx).map(|(result, _no_buffer)| result)
    }
}

impl Drop for Transfer {
    fn drop(&mut self) {
        self.0.abandon();
    }
}

impl Drop for InlineTransfer {
    fn drop(&mut self) {
        self.0.abandon();
    }
}

impl fmt::Debug for Flight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Posted(_, op) => write!(f, "Transfer({op:?})"),
            Self::Refused(error, buffer) => write!(f, "Transfer({error}, {buffer:?})"),
            Self::Over => write!(f, "Transfer(over)"),
        }
    }
}

impl fmt::Debug for Transfer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Debug for InlineTransfer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
