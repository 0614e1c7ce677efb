//! Waiting for a connection to come, and to end.

use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use dat_core::ConnectionEventKind;

use super::error::Error;
use super::table::{LinkKey, LinkState, Shared};

/// An endpoint whose connection somebody waits for; or there is nothing to wait for.
type Waits = Result<(Rc<Shared>, LinkKey), Error>;

/// A connection that is being made. Dropped, it goes on being made; an endpoint that is dropped ends it.
#[must_use = "futures do nothing unless they are polled"]
pub struct Connecting(Waits);

/// The end of a connection. Ready with what ended it. Dropped, nothing changes.
#[must_use = "futures do nothing unless they are polled"]
pub struct Disconnecting(Waits);

impl Connecting {
    pub(super) const fn new(waits: Waits) -> Self {
        Self(waits)
    }
}

impl Disconnecting {
    pub(super) const fn new(waits: Waits) -> Self {
        Self(waits)
    }
}

/// How far the connection is, if anybody asks for the first time after it was refused: why.
fn state(waits: &mut Waits, cx: &Context<'_>) -> Result<LinkState, Error> {
    match waits {
        Ok((shared, link)) => shared.with(|core| core.state(*link, cx.waker())),
        Err(error) => Err(std::mem::replace(error, Error::Dropped)),
    }
}

impl Future for Connecting {
    type Output = Result<(), Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match state(&mut self.0, cx) {
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
        match state(&mut self.0, cx) {
            Ok(LinkState::Pending | LinkState::Established) => Poll::Pending,
            Ok(LinkState::Ended(kind)) => Poll::Ready(Ok(kind)),
            Err(error) => Poll::Ready(Err(error)),
        }
    }
}
