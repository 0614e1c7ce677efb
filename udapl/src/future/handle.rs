//! Handles of a driver.

use std::fmt;
use std::net::IpAddr;
use std::rc::Rc;

use dat_core::{ConnQual, EpAttr, EpEvds, MemPrivFlags, PspFlags, SrqAttr};

use super::buffer::{Pool, Shape};
use super::endpoint::Endpoint;
use super::error::Error;
use super::listener::Listener;
use super::srq::Srq;
use super::table::{Of, Shared};

/// A handle of a driver, which creates endpoints, listeners and pools. Clones belong to the same driver. After the
/// driver has been closed, each call returns [`Error::Closed`].
#[derive(Clone)]
pub struct Handle {
    shared: Rc<Shared>,
}

impl Handle {
    pub(super) const fn new(shared: Rc<Shared>) -> Self {
        Self { shared }
    }

    /// Creates an endpoint with DAT's default attributes ([`EpAttr::defaults`]), and with up to 4 outstanding RDMA
    /// Reads in each direction.
    ///
    /// # Errors
    /// DAT_INSUFFICIENT_RESOURCES; [`Error::Closed`].
    pub fn endpoint(&self) -> Result<Endpoint, Error> {
        /// Maximum number of outstanding RDMA Reads in each direction.
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

    /// Creates an endpoint with these attributes.
    ///
    /// # Errors
    /// Those of [`Ia::ep_create`](dat_core::Ia::ep_create); [`Error::Closed`].
    pub fn endpoint_with(&self, attr: &EpAttr) -> Result<Endpoint, Error> {
        self.make(attr, None)
    }

    /// Creates an endpoint with these attributes. The endpoint takes its receive buffers from a shared receive queue.
    ///
    /// # Errors
    /// Those of [`Ia::ep_create_with_srq`](dat_core::Ia::ep_create_with_srq): DAT_INVALID_HANDLE|SRQ if the SRQ
    /// belongs to another driver. [`Error::Closed`].
    pub fn endpoint_with_srq(&self, srq: &Srq, attr: &EpAttr) -> Result<Endpoint, Error> {
        self.make(attr, Some(srq))
    }

    fn make(&self, attr: &EpAttr, srq: Option<&Srq>) -> Result<Endpoint, Error> {
        let link = self.shared.with(|core| {
            let (zone, dtos, events) = (Some(core.zone), core.dtos, core.connections);
            let evds = EpEvds::dto(dtos).connect(events);
            let queue = srq.map(|srq| core.srq(srq.link_of(&self.shared)));
            let ep = match queue.transpose()? {
                Some(queue) => core.ia()?.ep_create_with_srq(zone, evds, queue, attr)?,
                None => core.ia()?.ep_create(zone, evds, Some(attr))?,
            };
            Ok::<_, Error>(core.add_link(Of::Ep(ep)))
        })?;
        Ok(Endpoint::new(Rc::clone(&self.shared), link, srq.cloned()))
    }

    /// Creates a shared receive queue.
    ///
    /// # Errors
    /// Those of [`Ia::srq_create`](dat_core::Ia::srq_create); [`Error::Closed`].
    pub fn srq(&self, attr: SrqAttr) -> Result<Srq, Error> {
        let link = self.shared.with(|core| {
            let zone = core.zone;
            let srq = core.ia()?.srq_create(zone, attr)?;
            Ok::<_, Error>(core.add_link(Of::Srq(srq)))
        })?;
        Ok(Srq::new(Rc::clone(&self.shared), link))
    }

    /// Listens at a connection qualifier.
    ///
    /// # Errors
    /// Those of [`Ia::psp_create`](dat_core::Ia::psp_create); [`Error::Closed`].
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

    /// Listens at a connection qualifier together with other instances of the adapter. Each instance gets some of the
    /// requests.
    ///
    /// # Errors
    /// Those of [`Ia::psp_create_shared`](dat_core::Ia::psp_create_shared); [`Error::Closed`].
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

    /// Creates a pool of `count` buffers of `bytes` bytes, in a region with these access rights. To send or write from
    /// a buffer, the region needs LOCAL_READ. To receive or read into a buffer, it needs LOCAL_WRITE. The other rights
    /// are for peers.
    ///
    /// # Errors
    /// [`Error::Memory`]; those of [`Ia::lmr_create`](dat_core::Ia::lmr_create); [`Error::Closed`].
    pub fn pool(&self, count: u32, bytes: u32, rights: MemPrivFlags) -> Result<Pool, Error> {
        let shape = Shape::new(count, bytes)?;
        let spent = self.shared.spent();
        self.shared.with(|core| {
            let zone = core.zone;
            Pool::new(core.ia()?, zone, shape, rights, spent)
        })
    }

    /// Returns the adapter's address, by which peers connect to it.
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
