//! Listeners and connection requests.

use std::fmt;
use std::future::Future;
use std::net::IpAddr;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use dat_core::{CrHandle, DatError, PspHandle, ReturnType, Subtype};

use super::connecting::Connecting;
use super::endpoint::Endpoint;
use super::error::Error;
use super::table::Shared;
use super::waiting::Place;

/// A listener at a service point. Dropping it stops listening and rejects all requests that were not taken by
/// `next`.
pub struct Listener {
    shared: Rc<Shared>,
    psp: PspHandle,
}

/// A future that waits for the next connection request. Dropping it leaves the request for the next call.
#[must_use = "futures do nothing unless they are polled"]
pub struct Next {
    shared: Rc<Shared>,
    psp: PspHandle,
    place: Option<Place>,
}

/// A connection request. Dropping a request that was not accepted rejects it.
pub struct Request {
    shared: Rc<Shared>,
    /// Handle of the request; `None` after the request was accepted.
    cr: Option<CrHandle>,
}

impl Listener {
    pub(super) const fn new(shared: Rc<Shared>, psp: PspHandle) -> Self {
        Self { shared, psp }
    }

    /// Waits for a connection request.
    ///
    /// Errors of the future: [`Error::Dead`], [`Error::Closed`], [`Error::Dropped`].
    pub fn next(&self) -> Next {
        Next {
            shared: Rc::clone(&self.shared),
            psp: self.psp,
            place: None,
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.shared.with(|core| core.drop_listener(self.psp));
    }
}

impl fmt::Debug for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Listener({:?})", self.psp)
    }
}

impl Drop for Next {
    fn drop(&mut self) {
        self.shared
            .with(|core| core.unregister_from_listener(self.psp, self.place));
    }
}

impl Future for Next {
    type Output = Result<Request, Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Self { shared, psp, place } = &mut *self;
        match shared.with(|core| core.request(*psp, place, cx.waker())) {
            Ok(None) => Poll::Pending,
            Ok(cr) => Poll::Ready(Ok(Request {
                shared: Rc::clone(&self.shared),
                cr,
            })),
            Err(error) => Poll::Ready(Err(error)),
        }
    }
}

impl Request {
    fn cr(&self) -> Result<CrHandle, Error> {
        self.cr.ok_or(Error::Dropped)
    }

    /// Returns the address of the peer.
    ///
    /// # Errors
    /// DAT_INVALID_HANDLE: the peer has cancelled the request. [`Error::Closed`].
    pub fn peer(&self) -> Result<IpAddr, Error> {
        let cr = self.cr()?;
        self.shared
            .with(|core| Ok(core.peek()?.cr_query(cr)?.remote_ia_address))
    }

    /// Returns the private data that the peer sent with the request.
    ///
    /// # Errors
    /// Those of [`Request::peer`].
    pub fn private_data(&self) -> Result<Vec<u8>, Error> {
        let cr = self.cr()?;
        self.shared
            .with(|core| Ok(core.peek()?.cr_query(cr)?.private_data.to_vec()))
    }

    /// Accepts the request with an endpoint, and waits until the connection is established. If the accept fails, the
    /// request is rejected.
    ///
    /// Errors of the future: those of [`Ia::cr_accept`](dat_core::Ia::cr_accept); [`Error::Connection`];
    /// [`Error::Closed`].
    pub fn accept(mut self, endpoint: &Endpoint, private_data: &[u8]) -> Connecting {
        let waited = endpoint.waited_for();
        let begun = self.cr().and_then(|cr| {
            if !endpoint.is_of(&self.shared) {
                let foreign = DatError::new(ReturnType::InvalidHandle, Subtype::HandleEp);
                return Err(foreign.because("an endpoint of another driver").into());
            }
            self.shared.with(|core| {
                let ep = core.ep(waited.1)?;
                Ok(core.ia()?.cr_accept(cr, Some(ep), private_data)?)
            })
        });
        if begun.is_ok() {
            self.cr = None;
        }
        Connecting::new(begun.map(|()| waited))
    }

    /// Rejects the request.
    pub fn reject(self) {
        drop(self);
    }
}

impl Drop for Request {
    fn drop(&mut self) {
        let Some(cr) = self.cr.take() else {
            return;
        };
        let rejected = self
            .shared
            .with(|core| core.ia().map(|ia| ia.cr_reject(cr)));
        if let Ok(Err(error)) = rejected {
            tracing::debug!(%error, "a connection request has ended already");
        }
    }
}

impl fmt::Debug for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Request({:?})", self.cr)
    }
}
