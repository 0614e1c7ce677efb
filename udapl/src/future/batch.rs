//! Batches: several posts with one doorbell.
#![expect(
    clippy::result_large_err,
    reason = "a buffer goes back to its owner beside the error"
)]

use std::fmt;
use std::rc::Rc;

use dat_core::RmrTriplet;

use super::buffer::Buffer;
use super::table::{LinkKey, OpKey, Shared};
use super::transfer::Transfer;
use super::what::What;

/// A batch of posts to one endpoint, which reach the device together, in their order
/// ([`Endpoint::batch`](super::Endpoint::batch)). Each method works like the endpoint's method of the same name.
pub struct Batch<'a> {
    shared: &'a Rc<Shared>,
    link: LinkKey,
    posts: Vec<(OpKey, What)>,
}

impl<'a> Batch<'a> {
    pub(super) fn new(shared: &'a Rc<Shared>, link: LinkKey) -> Self {
        Self {
            shared,
            link,
            posts: shared.with(|core| core.batch_room()),
        }
    }

    /// Like [`Endpoint::recv`](super::Endpoint::recv).
    pub fn recv(&mut self, buffer: Buffer) -> Transfer {
        self.post(buffer, What::Recv)
    }

    /// Like [`Endpoint::send`](super::Endpoint::send).
    pub fn send(&mut self, buffer: Buffer) -> Transfer {
        self.post(buffer, What::Send)
    }

    /// Like [`Endpoint::send_immediate`](super::Endpoint::send_immediate).
    pub fn send_immediate(&mut self, buffer: Buffer, immediate: u32) -> Transfer {
        self.post(buffer, What::SendImmediate(immediate))
    }

    /// Like [`Endpoint::send_invalidate`](super::Endpoint::send_invalidate).
    pub fn send_invalidate(&mut self, buffer: Buffer, rmr_context: u32) -> Transfer {
        self.post(buffer, What::SendInvalidate(rmr_context))
    }

    /// Like [`Endpoint::write`](super::Endpoint::write).
    pub fn write(&mut self, buffer: Buffer, to: RmrTriplet) -> Transfer {
        self.post(buffer, What::Write(to))
    }

    /// Like [`Endpoint::write_immediate`](super::Endpoint::write_immediate).
    pub fn write_immediate(&mut self, buffer: Buffer, to: RmrTriplet, immediate: u32) -> Transfer {
        self.post(buffer, What::WriteImmediate(to, immediate))
    }

    /// Like [`Endpoint::read`](super::Endpoint::read).
    pub fn read(&mut self, buffer: Buffer, from: RmrTriplet) -> Transfer {
        self.post(buffer, What::Read(from))
    }

    /// Like [`Endpoint::fetch_add`](super::Endpoint::fetch_add).
    pub fn fetch_add(&mut self, result: Buffer, remote: RmrTriplet, add: u64) -> Transfer {
        self.post(result, What::FetchAdd(remote, add))
    }

    /// Like [`Endpoint::compare_swap`](super::Endpoint::compare_swap).
    pub fn compare_swap(
        &mut self,
        result: Buffer,
        remote: RmrTriplet,
        compare: u64,
        swap: u64,
    ) -> Transfer {
        let what = What::CompareSwap {
            remote,
            compare,
            swap,
        };
        self.post(result, what)
    }

    /// Queues a post for the end of the batch. An invalid post fails here. A post that the endpoint refuses fails when
    /// the batch is posted.
    fn post(&mut self, buffer: Buffer, what: What) -> Transfer {
        let link = self.link;
        match self.shared.with(|core| core.enter(link, buffer, &what)) {
            Ok(op) => {
                self.posts.push((op, what));
                Transfer::posted(Rc::clone(self.shared), op)
            }
            Err((error, buffer)) => Transfer::refused(error, buffer),
        }
    }
}

impl Drop for Batch<'_> {
    fn drop(&mut self) {
        let posts = std::mem::take(&mut self.posts);
        self.shared.with(|core| core.post_batch(self.link, posts));
    }
}

impl fmt::Debug for Batch<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Batch({} posts of Endpoint({:?}))",
            self.posts.len(),
            self.link
        )
    }
}
