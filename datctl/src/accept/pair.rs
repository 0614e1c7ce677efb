//! Both ends of a connection in this thread: two functions, or one function that talks to itself.
//!
//! The lines of an acceptance run control both ends, so that they can compare the bytes at the destination, and inject
//! faults meanwhile. A [`Pair`] is one or two opened adapters and their events. A [`Connection`] is an endpoint and a
//! registered region at either end. Side 0 is the active one.

use std::error::Error;
use std::time::{Duration, Instant};

use udapl::event::DtoCompletion;
use udapl::srq::{SrqAttr, SrqHandle};
use udapl::{
    CloseFlags, CompletionFlags, ConnQual, ConnectFlags, ConnectionEventKind, DtoCookie, DtoStatus,
    EpHandle, Event, PspFlags, Qos, Timeout,
};

use super::subject::Subject;
use crate::adapter::{Adapter, PATIENCE, Region, deadline, dto_failed, unexpected};

/// Indices of the sides: the active one, and the passive one.
pub(super) const SIDES: [usize; 2] = [0, 1];
/// Connection qualifier of the listener: an IB service ID.
pub(super) const QUALIFIER: u64 = 0x1_0000_00ac;
/// Connection qualifier without a listener.
pub(super) const NOBODY: u64 = 0x1_0000_00ad;
/// Slots of each region: the source of a message, and its destination.
pub(super) const FROM: usize = 0;
pub(super) const INTO: usize = 1;
const SLOTS: usize = 2;
/// Number of DTOs that an endpoint may have outstanding in each direction.
const DEPTH: u32 = 16;
/// Number of polls before the first sleep, and the longest sleep. The other end makes progress between two sleeps.
const POLLS: u32 = 2_000;
const SLEEP: Duration = Duration::from_millis(1);
const NONE: CompletionFlags = CompletionFlags::empty();

/// One or two adapters.
pub(super) struct Pair {
    pub(super) adapters: Vec<Adapter>,
}

/// A connection between the sides.
pub(super) struct Connection {
    pub(super) eps: [EpHandle; 2],
    pub(super) regions: [Region; 2],
    srq: Option<SrqHandle>,
}

/// Receive queue of the passive end: that of its endpoint, or an SRQ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Receives {
    Own,
    Shared,
}

impl Pair {
    /// Opens the functions.
    pub(super) fn open(subjects: &[Subject<'_>]) -> Result<Self, Box<dyn Error>> {
        let adapters = subjects
            .iter()
            .map(|subject| Adapter::of(subject.open()?))
            .collect::<Result<_, Box<dyn Error>>>()?;
        Ok(Self { adapters })
    }

    /// Opens the functions, passes them to `line`, and closes them whatever the result of `line`.
    pub(super) fn with<T>(
        subjects: &[Subject<'_>],
        line: impl FnOnce(&mut Self) -> Result<T, Box<dyn Error>>,
    ) -> Result<T, Box<dyn Error>> {
        Self::over(Self::open(subjects)?.adapters, line)
    }

    /// Like `Pair::with`, on adapters that are open.
    pub(super) fn over<T>(
        adapters: Vec<Adapter>,
        line: impl FnOnce(&mut Self) -> Result<T, Box<dyn Error>>,
    ) -> Result<T, Box<dyn Error>> {
        let mut pair = Self { adapters };
        let found = line(&mut pair);
        let closed = pair.close();
        let found = found?;
        closed?;
        Ok(found)
    }

    /// Closes the functions after one of them was removed, and ignores the error that reports the removal. The memory
    /// of the connection is freed first, because it keeps the functions open.
    pub(super) fn abandon(self, connection: Connection) {
        drop(connection);
        if let Err(error) = self.close() {
            tracing::info!(%error, "closed after it was taken away");
        }
    }

    /// Returns the adapter of a side.
    pub(super) fn adapter(&mut self, side: usize) -> &mut Adapter {
        let last = self.adapters.len() - 1;
        &mut self.adapters[side.min(last)]
    }

    /// Returns the name of a side's adapter.
    pub(super) fn name(&mut self, side: usize) -> String {
        self.adapter(side).ia.query().ia.adapter_name.clone()
    }

    /// Connects side 0 to side 1, with slots for messages of `bytes` bytes at either end.
    pub(super) fn connect(
        &mut self,
        bytes: usize,
        receives: Receives,
    ) -> Result<Connection, Box<dyn Error>> {
        let mut connection = self.unconnected(bytes, receives)?;
        match self.establish(&mut connection) {
            Ok(()) => Ok(connection),
            Err(error) => {
                self.release(&connection)?;
                Err(error)
            }
        }
    }

    fn unconnected(
        &mut self,
        bytes: usize,
        receives: Receives,
    ) -> Result<Connection, Box<dyn Error>> {
        let active = self.adapter(0).endpoint(DEPTH, DEPTH)?;
        let passive = self.adapter(1);
        let (ep, srq) = match receives {
            Receives::Own => (passive.endpoint(DEPTH, DEPTH)?, None),
            Receives::Shared => {
                let attr = SrqAttr {
                    max_recv_dtos: DEPTH,
                    max_recv_iov: 2,
                    low_watermark: 0,
                };
                let srq = passive.ia.srq_create(passive.zone, attr)?;
                (passive.sharing_endpoint(DEPTH, srq)?, Some(srq))
            }
        };
        let regions = [
            self.adapter(0).region(SLOTS, bytes)?,
            self.adapter(1).region(SLOTS, bytes)?,
        ];
        Ok(Connection {
            eps: [active, ep],
            regions,
            srq,
        })
    }

    fn establish(&mut self, connection: &mut Connection) -> Result<(), Box<dyn Error>> {
        let passive = self.adapter(1);
        let (address, events) = (passive.address(), passive.events);
        let psp = passive
            .ia
            .psp_create(ConnQual(QUALIFIER), events, PspFlags::CONSUMER)?;
        let outcome = self.meet(connection, address);
        self.adapter(1).ia.psp_free(psp)?;
        outcome
    }

    fn meet(
        &mut self,
        connection: &Connection,
        address: std::net::IpAddr,
    ) -> Result<(), Box<dyn Error>> {
        self.call(connection.eps[0], address, QUALIFIER)?;
        let mut established = [false; 2];
        while established != [true; 2] {
            let event = self.event()?;
            if let Event::ConnectionRequest(request) = &event {
                let ep = connection.eps[1];
                let passive = self.adapter(1);
                let accepted = passive.ia.cr_accept(request.cr, Some(ep), &[]);
                accepted.map_err(|error| passive.failed(&error))?;
            } else if let Event::Connection(change) = &event
                && change.kind == ConnectionEventKind::Established
                && let Some(side) = connection.side(change.ep)
            {
                established[side] = true;
            } else {
                return Err(unexpected(&event, "a connection"));
            }
        }
        Ok(())
    }

    /// Begins to connect side 0, and does not wait.
    fn call(
        &mut self,
        ep: EpHandle,
        address: std::net::IpAddr,
        qualifier: u64,
    ) -> Result<(), Box<dyn Error>> {
        let patience = Timeout::from_micros(u32::try_from(PATIENCE.as_micros())?);
        Ok(self.adapter(0).ia.ep_connect(
            ep,
            address,
            ConnQual(qualifier),
            patience,
            &[],
            Qos::BEST_EFFORT,
            ConnectFlags::empty(),
        )?)
    }

    /// Connects to a listener that rejects (`listens`), or to a qualifier without a listener, and checks the refusal.
    pub(super) fn connect_refused(&mut self, listens: bool) -> Result<(), Box<dyn Error>> {
        let ep = self.adapter(0).endpoint(1, 1)?;
        let passive = self.adapter(1);
        let (address, events) = (passive.address(), passive.events);
        let psp = match listens {
            true => Some(
                passive
                    .ia
                    .psp_create(ConnQual(QUALIFIER), events, PspFlags::CONSUMER)?,
            ),
            false => None,
        };
        let outcome = self.await_refusal(ep, address, listens);
        if let Some(psp) = psp {
            self.adapter(1).ia.psp_free(psp)?;
        }
        self.adapter(0).ia.ep_free(ep)?;
        outcome
    }

    fn await_refusal(
        &mut self,
        ep: EpHandle,
        address: std::net::IpAddr,
        listens: bool,
    ) -> Result<(), Box<dyn Error>> {
        let (qualifier, answer) = if listens {
            (QUALIFIER, ConnectionEventKind::PeerRejected)
        } else {
            (NOBODY, ConnectionEventKind::NonPeerRejected)
        };
        self.call(ep, address, qualifier)?;
        loop {
            let event = self.event()?;
            if let Event::ConnectionRequest(request) = &event {
                self.adapter(1).ia.cr_reject(request.cr)?;
            } else if let Event::Connection(change) = &event
                && change.kind == answer
            {
                return Ok(());
            } else {
                return Err(unexpected(&event, &format!("{answer:?}")));
            }
        }
    }

    /// Ends a connection from one side, waits for the event at both sides, and frees the connection's objects.
    pub(super) fn disconnect(
        &mut self,
        connection: &Connection,
        side: usize,
    ) -> Result<(), Box<dyn Error>> {
        let ep = connection.eps[side];
        self.adapter(side)
            .ia
            .ep_disconnect(ep, CloseFlags::Abrupt)?;
        let mut over = [false; 2];
        while over != [true; 2] {
            let event = self.event()?;
            if let Event::Connection(change) = &event
                && change.kind == ConnectionEventKind::Disconnected
                && let Some(side) = connection.side(change.ep)
            {
                over[side] = true;
            } else if !matches!(&event, Event::Dto(done) if done.status == DtoStatus::ErrFlushed) {
                return Err(unexpected(&event, "a disconnect"));
            }
        }
        self.release(connection)
    }

    /// Frees the objects of a connection, whatever its state. Its last events are discarded.
    pub(super) fn release(&mut self, connection: &Connection) -> Result<(), Box<dyn Error>> {
        for side in SIDES {
            let (ep, region) = (connection.eps[side], &connection.regions[side]);
            self.adapter(side).release(ep, region)?;
        }
        if let Some(srq) = connection.srq {
            self.adapter(1).ia.srq_free(srq)?;
        }
        for adapter in &mut self.adapters {
            while adapter.poll()?.is_some() {}
        }
        Ok(())
    }

    /// Posts a receive on a side, for the first `bytes` bytes of its slot `INTO`. The receive has two segments if
    /// `bytes` is at least 3.
    pub(super) fn receive(
        &mut self,
        connection: &Connection,
        side: usize,
        bytes: usize,
        cookie: DtoCookie,
    ) -> Result<(), Box<dyn Error>> {
        let places = connection.pieces(side, INTO, bytes);
        let ep = connection.eps[side];
        let srq = connection.srq.filter(|_| side == 1);
        let ia = &mut self.adapter(side).ia;
        match srq {
            Some(srq) => ia.srq_post_recv(srq, &places, cookie)?,
            None => ia.ep_post_recv(ep, &places, cookie, NONE)?,
        }
        Ok(())
    }

    /// Returns the next `count` DTO completions, all of which must have succeeded.
    pub(super) fn completed(&mut self, count: usize) -> Result<Vec<DtoCompletion>, Box<dyn Error>> {
        (0..count)
            .map(|_| {
                let event = self.event()?;
                let Event::Dto(done) = event else {
                    return Err(unexpected(&event, "a completion"));
                };
                if done.status == DtoStatus::Success {
                    Ok(done)
                } else {
                    Err(dto_failed(&done))
                }
            })
            .collect()
    }

    /// Returns the next event of either side.
    pub(super) fn event(&mut self) -> Result<Event, Box<dyn Error>> {
        self.event_within(PATIENCE)?
            .ok_or_else(|| format!("no event for {} s", PATIENCE.as_secs()).into())
    }

    /// Returns the next event of either side; `None` if there is none within the time.
    pub(super) fn event_within(
        &mut self,
        longest: Duration,
    ) -> Result<Option<Event>, Box<dyn Error>> {
        let (mut polls, give_up) = (0_u32, (deadline() - PATIENCE) + longest);
        loop {
            for adapter in &mut self.adapters {
                if let Some(event) = adapter.poll()? {
                    return Ok(Some(event));
                }
            }
            polls += 1;
            if polls < POLLS {
                continue;
            }
            for adapter in &mut self.adapters {
                if let Some(event) = adapter.sleep(SLEEP)? {
                    return Ok(Some(event));
                }
            }
            if Instant::now() > give_up {
                return Ok(None);
            }
        }
    }

    fn close(self) -> Result<(), Box<dyn Error>> {
        // Every adapter is closed, even after an error. The first error is returned.
        let closed: Vec<_> = self.adapters.into_iter().map(Adapter::close).collect();
        closed.into_iter().collect()
    }
}

impl Connection {
    /// Returns the side of an endpoint; `None` if the endpoint is not of this connection.
    pub(super) fn side(&self, ep: EpHandle) -> Option<usize> {
        self.eps.iter().position(|&own| own == ep)
    }

    /// Returns triplets of the first `bytes` of a slot: two segments if `bytes` is 3 or more, otherwise one.
    pub(super) fn pieces(
        &self,
        side: usize,
        slot: usize,
        bytes: usize,
    ) -> Vec<udapl::memory::LmrTriplet> {
        let whole = self.regions[side].local(slot, bytes);
        let first = whole.segment_length / 3;
        if first == 0 {
            return vec![whole];
        }
        let front = udapl::memory::LmrTriplet {
            segment_length: first,
            ..whole
        };
        let back = udapl::memory::LmrTriplet {
            virtual_address: whole.virtual_address + first,
            segment_length: whole.segment_length - first,
            ..whole
        };
        vec![front, back]
    }
}
