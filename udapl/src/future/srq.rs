//! Shared receive queues.
#![expect(
    clippy::result_large_err,
    reason = "a buffer goes back to its owner beside the error"
)]

use std::fmt;
use std::rc::Rc;

use super::buffer::Buffer;
use super::table::{LinkKey, Shared};
use super::transfer::Transfer;
use super::what::What;

/// A shared receive queue, from which all its endpoints
/// ([`Handle::endpoint_with_srq`](super::Handle::endpoint_with_srq)) take their receives. Clones refer to the same
/// queue. The queue is freed when its last clone and its last endpoint are dropped; posted receives end then.
#[derive(Clone)]
pub struct Srq(Rc<Queue>);

struct Queue {
    shared: Rc<Shared>,
    link: LinkKey,
}

impl Srq {
    pub(super) fn new(shared: Rc<Shared>, link: LinkKey) -> Self {
        Self(Rc::new(Queue { shared, link }))
    }

    /// Receives one message of any of the endpoints, of up to the capacity of the buffer. [`Buffer::completion`]
    /// names the endpoint.
    ///
    /// Errors of the transfer: those of [`Ia::srq_post_recv`](dat_core::Ia::srq_post_recv),
    /// [`Error::Full`](super::Error::Full), [`Error::Transfer`](super::Error::Transfer).
    pub fn recv(&self, buffer: Buffer) -> Transfer {
        let Queue { shared, link } = &*self.0;
        Transfer::of(
            shared,
            shared.with(|core| core.post(*link, buffer, &What::Recv)),
        )
    }

    pub(super) fn link_of(&self, shared: &Rc<Shared>) -> Option<LinkKey> {
        Rc::ptr_eq(&self.0.shared, shared).then_some(self.0.link)
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        self.shared.with(|core| core.drop_link(self.link));
    }
}

impl fmt::Debug for Srq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Srq({:?})", self.0.link)
    }
}
