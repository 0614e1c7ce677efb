//! Futures for the start and the end of a connection.

use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use dat_core::ConnectionEventKind;

use super::error::Error;
use super::table::{LinkKey, LinkState, Shared};
use super::waiting::Place;

/// The endpoint whose connection a future waits for, or the error of the call that should start or end the connection.
type Waits = Result<(Rc<Shared>, LinkKey), Error>;

/// A future that waits until a connection has reached a state.
struct Waiter {
    waits: Waits,
    place: Option<Place>,
}

/// A future for a connection attempt. Dropping the future does not end the attempt; dropping the endpoint does.
#[must_use = "futures do nothing unless they are polled"]
pub struct Connecting(Waiter);

/// A future that waits for the end of a connection, and returns the kind of the event that reported the end. Dropping
/// the future does not affect the connection.
#[must_use = "futures do nothing unless they are polled"]
pub struct Disconnecting(Waiter);

impl Connecting {
    pub(super) const fn new(waits: Waits) -> Self {
        Self(Waiter { waits, place: None })
    }
}

impl Disconnecting {
    pub(super) const fn new(waits: Waits) -> Self {
        Self(Waiter { waits, place: None })
    }
}

impl Waiter {
    /// Returns the state of the connection, and registers the task's waker until the state is the awaited one. If the
    /// call that should start or end the connection failed, returns its error the first time.
    fn state(
        &mut self,
        is_awaited: fn(LinkState) -> bool,
        cx: &Context<'_>,
    ) -> Result<LinkState, Error> {
        let place = &mut self.place;
        match &mut self.waits {
            Ok((shared, link)) => {
                shared.with(|core| core.state(*link, is_awaited, place, cx.waker()))
            }
            Err(error) => Err(std::mem::replace(error, Error::Dropped)),
        }
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        if let Ok((shared, link)) = &self.waits {
            shared.with(|core| core.unregister_from_link(*link, self.place));
        }
    }
}

impl Future for Connecting {
    type Output = Result<(), Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match self.0.state(|state| state != LinkState::Pending, cx) {
            Ok(LinkState::Pending) => Poll::Pending,
            Ok(LinkState::Established) => Poll::Ready(Ok(())),
            Ok(LinkState::Ended(kind)) => Poll::Ready(Err(Error::Connection(kind))),
            Err(error) => Poll::Ready(Err(error)),
        }
    }
}

impl Future for Disconnecting {
    type Output = Result<ConnectionEventKind, Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let is_over = |state| matches!(state, LinkState::Ended(_));
        match self.0.state(is_over, cx) {
            Ok(LinkState::Pending | LinkState::Established) => Poll::Pending,
            Ok(LinkState::Ended(kind)) => Poll::Ready(Ok(kind)),
            Err(error) => Poll::Ready(Err(error)),
        }
    }
}
