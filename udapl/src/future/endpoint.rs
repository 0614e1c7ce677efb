//! Handles of a driver, and its endpoints.

use std::fmt;
use std::net::IpAddr;
use std::rc::Rc;

use dat_core::{
    CloseFlags, ConnQual, ConnectFlags, EpAttr, EpEvds, EpHandle, MemPrivFlags, PspFlags, Qos,
    RmrTriplet, Timeout,
};

use super::buffer::{Buffer, Pool};
use super::connecting::{Connecting, Disconnecting};
use super::error::Error;
use super::listener::Listener;
use super::table::{LinkKey, Shared, What};
use super::transfer::Transfer;

/// Makes endpoints, listeners and pools. Clones belong to the same driver. When that has ended, each call answers
/// [`Error::Closed`].
#[derive(Clone)]
pub struct Handle {
    shared: Rc<Shared>,
}

impl Handle {
    pub(super) const fn new(shared: Rc<Shared>) -> Self {
        Self { shared }
    }

    /// An endpoint with DAT's usual attributes ([`EpAttr::defaults`]), and up to 4 RDMA Reads each way at a time.
    ///
    /// # Errors
    /// DAT_INSUFFICIENT_RESOURCES; [`Error::Closed`].
    pub fn endpoint(&self) -> Result<Endpoint, Error> {
        /// RDMA Reads.
        const READS: u32 = 4;
        let attr = self.shared.with(|core| {
            let ia = core.peek()?.query().ia;
            Ok::<_, Error>(EpAttr {
                max_rdma_read_in: ia.max_rdma_read_per_ep_in.min(READS),
                max_rdma_read_out: ia.max_rdma_read_per_ep_out.min(READS),
                ..EpAttr::defaults(ia)
            })
        })?;
        self.endpoint_with(&attr)
    }

    /// An endpoint with these attributes.
    ///
    /// # Errors
    /// As [`Ia::ep_create`](dat_core::Ia::ep_create); [`Error::Closed`].
    pub fn endpoint_with(&self, attr: &EpAttr) -> Result<Endpoint, Error> {
        let link = self.shared.with(|core| {
            let (zone, dtos, events) = (core.zone, core.dtos, core.connections);
            let ep =
                core.ia()?
                    .ep_create(Some(zone), EpEvds::dto(dtos).connect(events), Some(attr))?;
            Ok::<_, Error>(core.add_link(ep))
        })?;
        Ok(Endpoint {
            shared: Rc::clone(&self.shared),
            link,
        })
    }

    /// Listens at a connection qualifier.
    ///
    /// # Errors
    /// As [`Ia::psp_create`](dat_core::Ia::psp_create); [`Error::Closed`].
    pub fn listen(&self, conn_qual: ConnQual) -> Result<Listener, Error> {
        let psp = self.shared.with(|core| {
            let events = core.connections;
            let psp = core
                .ia()?
                .psp_create(conn_qual, events, PspFlags::CONSUMER)?;
            core.listens(psp);
            Ok::<_, Error>(psp)
        })?;
        Ok(Listener::new(Rc::clone(&self.shared), psp))
    }

    /// Listens at a connection qualifier beside other instances of the adapter, each of which gets some of the
    /// requests.
    ///
    /// # Errors
    /// As [`Ia::psp_create_shared`](dat_core::Ia::psp_create_shared); [`Error::Closed`].
    pub fn listen_shared(&self, conn_qual: ConnQual) -> Result<Listener, Error> {
        let psp = self.shared.with(|core| {
            let events = core.connections;
            let psp = core
                .ia()?
                .psp_create_shared(conn_qual, events, PspFlags::CONSUMER)?;
            core.listens(psp);
            Ok::<_, Error>(psp)
        })?;
        Ok(Listener::new(Rc::clone(&self.shared), psp))
    }

    /// A pool of `count` buffers of `bytes` bytes, in a region with these rights. Sending and writing from a buffer
    /// takes LOCAL_READ, receiving and reading into it LOCAL_WRITE. The other rights are for peers.
    ///
    /// # Errors
    /// [`Error::Memory`]; as [`Ia::lmr_create`](dat_core::Ia::lmr_create); [`Error::Closed`].
    pub fn pool(&self, count: u32, bytes: u32, rights: MemPrivFlags) -> Result<Pool, Error> {
        Pool::new(&self.shared, count, bytes, rights)
    }

    /// The adapter's address, to tell peers.
    ///
    /// # Errors
    /// [`Error::Closed`].
    pub fn address(&self) -> Result<IpAddr, Error> {
        self.shared
            .with(|core| Ok(core.peek()?.query().ia.ia_address))
    }
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handle").finish_non_exhaustive()
    }
}

/// An endpoint. When it is dropped, it ends, and its connection and its transfers with it.
pub struct Endpoint {
    shared: Rc<Shared>,
    link: LinkKey,
}

impl Endpoint {
    /// Connects to the service at a qualifier of a host, and waits for the answer.
    ///
    /// Errors of the future: as [`Ia::ep_connect`](dat_core::Ia::ep_connect); [`Error::Connection`] says what came
    /// instead.
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

    /// The private data with which the peer accepted or rejected; empty on the side that accepted.
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
    /// Errors of the transfer: as [`Ia::ep_post_send`](dat_core::Ia::ep_post_send), [`Error::Full`],
    /// [`Error::Transfer`].
    pub fn send(&self, buffer: Buffer) -> Transfer {
        self.post(buffer, &What::Send)
    }

    /// Receives one message, of up to the capacity of the buffer. Receives are served in the order of posting, and may
    /// be posted before the endpoint is connected.
    ///
    /// Errors of the transfer: as [`Ia::ep_post_recv`](dat_core::Ia::ep_post_recv), [`Error::Full`],
    /// [`Error::Transfer`].
    pub fn recv(&self, buffer: Buffer) -> Transfer {
        self.post(buffer, &What::Recv)
    }

    /// Writes the content of the buffer into the peer's memory.
    ///
    /// Errors of the transfer: as [`Ia::ep_post_rdma_write`](dat_core::Ia::ep_post_rdma_write), [`Error::Full`],
    /// [`Error::Transfer`].
    pub fn write(&self, buffer: Buffer, to: RmrTriplet) -> Transfer {
        self.post(buffer, &What::Write(to))
    }

    /// Reads a piece of the peer's memory, all of it, into the buffer.
    ///
    /// Errors of the transfer: as [`Ia::ep_post_rdma_read`](dat_core::Ia::ep_post_rdma_read), [`Error::Bounds`],
    /// [`Error::Full`], [`Error::Transfer`].
    pub fn read(&self, buffer: Buffer, from: RmrTriplet) -> Transfer {
        self.post(buffer, &What::Read(from))
    }

    fn post(&self, buffer: Buffer, what: &What) -> Transfer {
        match self.shared.with(|core| core.post(self.link, buffer, what)) {
            Ok(op) => Transfer::posted(Rc::clone(&self.shared), op),
            Err((error, buffer)) => Transfer::refused(error, buffer),
        }
    }

    /// Ends the connection and waits until it has ended. With GRACEFUL it first completes the requests that are posted.
    ///
    /// Errors of the future: as [`Ia::ep_disconnect`](dat_core::Ia::ep_disconnect).
    pub fn disconnect(&self, flags: CloseFlags) -> Disconnecting {
        let begun = self.shared.with(|core| {
            let ep = core.ep(self.link)?;
            core.ia()?.ep_disconnect(ep, flags).map_err(Error::Dat)
        });
        Disconnecting::new(begun.map(|()| self.waited_for()))
    }

    /// Waits until the connection has ended, whatever ends it.
    pub fn disconnected(&self) -> Disconnecting {
        Disconnecting::new(Ok(self.waited_for()))
    }

    /// DAT's handle of it.
    ///
    /// # Errors
    /// [`Error::Closed`].
    pub fn ep(&self) -> Result<EpHandle, Error> {
        self.shared.with(|core| {
            core.peek()?;
            core.ep(self.link)
        })
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
