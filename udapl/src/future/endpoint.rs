//! Endpoints.
#![expect(
    clippy::result_large_err,
    reason = "a buffer goes back to its owner beside the error"
)]

use std::fmt;
use std::net::IpAddr;
use std::rc::Rc;

use dat_core::{CloseFlags, ConnQual, ConnectFlags, EndCause, EpHandle, Qos, RmrTriplet, Timeout};

use super::batch::Batch;
use super::buffer::Buffer;
use super::connecting::{Connecting, Disconnecting};
use super::error::Error;
use super::srq::Srq;
use super::table::{LinkKey, Shared};
use super::transfer::{InlineTransfer, Transfer};
use super::what::{Inline, What};

/// An endpoint. Dropping it ends its connection, and its transfers with [`Error::Dropped`]. Closing the driver ends its
/// transfers and waits with [`Error::Closed`].
pub struct Endpoint {
    shared: Rc<Shared>,
    link: LinkKey,
    /// Keeps the SRQ alive as long as the endpoint.
    _srq: Option<Srq>,
}

impl Endpoint {
    pub(super) const fn new(shared: Rc<Shared>, link: LinkKey, srq: Option<Srq>) -> Self {
        Self {
            shared,
            link,
            _srq: srq,
        }
    }

    /// Connects to a service of a host, and waits for the reply.
    ///
    /// Errors of the future: those of [`Ia::ep_connect`](dat_core::Ia::ep_connect). [`Error::Connection`] with the
    /// event if another event than ESTABLISHED has arrived. [`Error::Closed`].
    pub fn connect(
        &self,
        address: IpAddr,
        conn_qual: ConnQual,
        timeout: impl Into<Timeout>,
        private_data: &[u8],
    ) -> Connecting {
        let (quality, flags) = (Qos::BEST_EFFORT, ConnectFlags::empty());
        let begun = self.shared.with(|core| {
            let ep = core.ep(self.link)?;
            let ia = core.ia()?;
            let begun = ia.ep_connect(
                ep,
                address,
                conn_qual,
                timeout,
                private_data,
                quality,
                flags,
            );
            begun.map_err(Error::Dat)
        });
        Connecting::new(begun.map(|()| self.waited_for()))
    }

    /// Returns the private data that the peer sent when it accepted or rejected. They are empty on the side that
    /// accepted.
    ///
    /// # Errors
    /// [`Error::Closed`].
    pub fn private_data(&self) -> Result<Vec<u8>, Error> {
        self.shared.with(|core| {
            let ep = core.ep(self.link)?;
            Ok(core.peek()?.ep_private_data(ep)?.to_vec())
        })
    }

    /// Sends the content of the buffer as one message.
    ///
    /// Errors of the transfer: those of [`Ia::ep_post_send`](dat_core::Ia::ep_post_send), [`Error::Full`],
    /// [`Error::Transfer`], [`Error::Ended`].
    pub fn send(&self, buffer: Buffer) -> Transfer {
        self.post(buffer, &What::Send)
    }

    /// Receives one message, of up to the capacity of the buffer. Messages fill the receives in the order of posting.
    /// Receives may be posted before the endpoint is connected. Immediate data and similar details are in
    /// [`Buffer::completion`].
    ///
    /// Errors of the transfer: those of [`Ia::ep_post_recv`](dat_core::Ia::ep_post_recv), [`Error::Full`],
    /// [`Error::Transfer`]. [`Error::Ended`]: the connection has ended, and no more messages come.
    pub fn recv(&self, buffer: Buffer) -> Transfer {
        self.post(buffer, &What::Recv)
    }

    /// Writes the content of the buffer into the peer's memory.
    ///
    /// Errors of the transfer: those of [`Ia::ep_post_rdma_write`](dat_core::Ia::ep_post_rdma_write),
    /// [`Error::Full`], [`Error::Transfer`], [`Error::Ended`].
    pub fn write(&self, buffer: Buffer, to: RmrTriplet) -> Transfer {
        self.post(buffer, &What::Write(to))
    }

    /// Reads the memory of the peer that an RMR triplet names, in its whole length, into the buffer.
    ///
    /// Errors of the transfer: those of [`Ia::ep_post_rdma_read`](dat_core::Ia::ep_post_rdma_read),
    /// [`Error::Bounds`], [`Error::Full`], [`Error::Transfer`], [`Error::Ended`].
    pub fn read(&self, buffer: Buffer, from: RmrTriplet) -> Transfer {
        self.post(buffer, &What::Read(from))
    }

    /// Like [`send`](Self::send), with four bytes of immediate data, which the peer gets in the
    /// [`Buffer::completion`] of its receive.
    ///
    /// Errors of the transfer: those of [`Ia::ep_post_send_immediate`](dat_core::Ia::ep_post_send_immediate) and of
    /// [`send`](Self::send).
    pub fn send_immediate(&self, buffer: Buffer, immediate: u32) -> Transfer {
        self.post(buffer, &What::SendImmediate(immediate))
    }

    /// Like [`send`](Self::send), and invalidates an RMR context of the peer.
    ///
    /// Errors of the transfer: those of [`Ia::ep_post_send_invalidate`](dat_core::Ia::ep_post_send_invalidate) and of
    /// [`send`](Self::send).
    pub fn send_invalidate(&self, buffer: Buffer, rmr_context: u32) -> Transfer {
        self.post(buffer, &What::SendInvalidate(rmr_context))
    }

    /// Like [`write`](Self::write), and completes a receive of the peer with four bytes of immediate data
    /// ([`Buffer::completion`]). The length of that receive's buffer becomes 0.
    ///
    /// Errors of the transfer: those of
    /// [`Ia::ep_post_rdma_write_immediate`](dat_core::Ia::ep_post_rdma_write_immediate) and of
    /// [`write`](Self::write).
    pub fn write_immediate(&self, buffer: Buffer, to: RmrTriplet, immediate: u32) -> Transfer {
        self.post(buffer, &What::WriteImmediate(to, immediate))
    }

    /// Adds to an 8-byte number in the peer's memory. The buffer receives the previous value: 8 bytes in the byte
    /// order of this machine.
    ///
    /// Errors of the transfer: those of [`Ia::ep_post_fetch_add`](dat_core::Ia::ep_post_fetch_add) and of
    /// [`read`](Self::read).
    pub fn fetch_add(&self, result: Buffer, remote: RmrTriplet, add: u64) -> Transfer {
        self.post(result, &What::FetchAdd(remote, add))
    }

    /// Replaces an 8-byte number in the peer's memory by `swap` if it equals `compare`. In any case the buffer receives
    /// the previous value, as in [`fetch_add`](Self::fetch_add).
    ///
    /// Errors of the transfer: those of [`fetch_add`](Self::fetch_add).
    pub fn compare_swap(
        &self,
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
        self.post(result, &what)
    }

    /// Sends a copy of `data` as one message, without a buffer.
    ///
    /// Errors of the transfer: those of [`Ia::ep_post_send_inline`](dat_core::Ia::ep_post_send_inline) and of
    /// [`send`](Self::send).
    pub fn send_inline(&self, data: &[u8]) -> InlineTransfer {
        self.post_inline(data, Inline::Plain)
    }

    /// Like [`send_inline`](Self::send_inline), with immediate data ([`send_immediate`](Self::send_immediate)).
    pub fn send_inline_immediate(&self, data: &[u8], immediate: u32) -> InlineTransfer {
        self.post_inline(data, Inline::Immediate(immediate))
    }

    /// Like [`send_inline`](Self::send_inline), and invalidates an RMR context of the peer
    /// ([`send_invalidate`](Self::send_invalidate)).
    pub fn send_inline_invalidate(&self, data: &[u8], rmr_context: u32) -> InlineTransfer {
        self.post_inline(data, Inline::Invalidate(rmr_context))
    }

    /// Runs the closure `post`, and then posts the posts that it added to the batch, in their order: requests with one
    /// doorbell, receives with one update of the doorbell record ([`Ia::batch`](dat_core::Ia::batch)). The transfer of
    /// a refused post ends with the error; the other posts are posted.
    ///
    /// ```no_run
    /// # async fn program(endpoint: udapl::future::Endpoint, pool: udapl::future::Pool, to: udapl::memory::RmrTriplet) -> Option<()> {
    /// let (page, header) = (pool.take()?, pool.take()?);
    /// let (written, sent) = endpoint.batch(|batch| (batch.write(page, to), batch.send(header)));
    /// # drop((written.await, sent.await));
    /// # None }
    /// ```
    pub fn batch<T>(&self, post: impl FnOnce(&mut Batch<'_>) -> T) -> T {
        post(&mut Batch::new(&self.shared, self.link))
    }

    fn post(&self, buffer: Buffer, what: &What) -> Transfer {
        let posted = self.shared.with(|core| core.post(self.link, buffer, what));
        Transfer::of(&self.shared, posted)
    }

    fn post_inline(&self, data: &[u8], how: Inline) -> InlineTransfer {
        let posted = self
            .shared
            .with(|core| core.post_inline(self.link, data, how));
        InlineTransfer::of(&self.shared, posted)
    }

    /// Returns the cause for which the connection, or the attempt to connect, has ended; `None` if it has not ended.
    ///
    /// # Errors
    /// [`Error::Closed`].
    pub fn end_cause(&self) -> Result<Option<EndCause>, Error> {
        self.shared.with(|core| {
            let ep = core.ep(self.link)?;
            Ok(core.peek()?.ep_end_cause(ep)?)
        })
    }

    /// Ends the connection and waits for its end. With GRACEFUL, the posted requests are completed first.
    ///
    /// Errors of the future: those of [`Ia::ep_disconnect`](dat_core::Ia::ep_disconnect). [`Error::Closed`].
    pub fn disconnect(&self, flags: CloseFlags) -> Disconnecting {
        let begun = self.shared.with(|core| {
            let ep = core.ep(self.link)?;
            core.ia()?.ep_disconnect(ep, flags).map_err(Error::Dat)
        });
        Disconnecting::new(begun.map(|()| self.waited_for()))
    }

    /// Waits until the connection has ended for any reason.
    pub fn disconnected(&self) -> Disconnecting {
        Disconnecting::new(Ok(self.waited_for()))
    }

    /// Returns the endpoint's DAT handle.
    ///
    /// # Errors
    /// [`Error::Closed`].
    pub fn ep(&self) -> Result<EpHandle, Error> {
        self.shared.with(|core| core.ep(self.link))
    }

    pub(super) fn waited_for(&self) -> (Rc<Shared>, LinkKey) {
        (Rc::clone(&self.shared), self.link)
    }

    pub(super) fn is_of(&self, shared: &Rc<Shared>) -> bool {
        Rc::ptr_eq(&self.shared, shared)
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        self.shared.with(|core| core.drop_link(self.link));
    }
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Endpoint({:?})", self.link)
    }
}
