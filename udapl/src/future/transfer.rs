//! A request or a receive that is in flight.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use super::buffer::Buffer;
use super::error::Error;
use super::table::{OpKey, Shared};

/// A transfer with its buffer. It is ready with the number of bytes moved, or with the error, and with the buffer.
///
/// Dropping it does not end the transfer: the buffer goes back to its pool when the card is done with it.
#[must_use = "a transfer that is dropped goes on, and nobody hears of it"]
pub struct Transfer(State);

enum State {
    InFlight(Rc<Shared>, OpKey),
    /// It was never posted.
    Refused(Error, Buffer),
    Over,
}

impl Transfer {
    pub(super) const fn posted(shared: Rc<Shared>, op: OpKey) -> Self {
        Self(State::InFlight(shared, op))
    }

    pub(super) const fn refused(error: Error, buffer: Buffer) -> Self {
        Self(State::Refused(error, buffer))
    }
}

impl Future for Transfer {
    type Output = (Result<usize, Error>, Buffer);

    /// # Panics
    /// It is polled after it was ready.
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let ended = match std::mem::replace(&mut self.0, State::Over) {
            State::InFlight(shared, op) => match shared.with(|core| core.ended(op, cx.waker())) {
                Some(ended) => ended,
                None => {
                    self.0 = State::InFlight(shared, op);
                    return Poll::Pending;
                }
            },
            State::Refused(error, buffer) => (Err(error), buffer),
            State::Over => panic!("a transfer was polled after it was ready"),
        };
        Poll::Ready(ended)
    }
}

impl Drop for Transfer {
    fn drop(&mut self) {
        if let State::InFlight(shared, op) = &self.0 {
            // A buffer that comes back goes to its pool.
            drop(shared.with(|core| core.abandon(*op)));
        }
    }
}

impl fmt::Debug for Transfer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            State::InFlight(_, op) => write!(f, "Transfer({op:?})"),
            State::Refused(error, buffer) => write!(f, "Transfer({error}, {buffer:?})"),
            State::Over => write!(f, "Transfer(over)"),
        }
    }
}
