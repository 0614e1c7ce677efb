//! An opened adapter with all that either end of a connection needs: a protection zone, one EVD for all events,
//! registered memory.

use std::error::Error;
use std::net::IpAddr;
use std::str::FromStr;
use std::time::{Duration, Instant};

use udapl::connection::EndCause;
use udapl::endpoint::{EpAttr, EpChange, EpTransport};
use udapl::error::ReturnType;
use udapl::event::DtoCompletion;
use udapl::memory::{LmrHandle, LmrTriplet, PzHandle, RmrTriplet};
use udapl::srq::SrqHandle;
use udapl::{
    CloseFlags, DmaMemory, DtoStatus, EpEvds, EpHandle, EvdFlags, EvdHandle, Event, Ia,
    MemPrivFlags, OpenOptions, Timeout,
};

use crate::value::address;

/// Longest wait for one step of a command: a message, an answer, the end of a connection.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);
/// Keep-alive interval. A dead peer is noticed after two intervals and the retries of a packet, which is less than
/// `PATIENCE`.
const KEEP_ALIVE: Duration = Duration::from_millis(500);
/// Number of events that an EVD holds, if the device allows that many; this limits the DTOs outstanding on all
/// connections together.
const EVENTS: u32 = 16_384;
/// Limit on the DTOs outstanding on one connection, in either direction.
const MOST: u32 = 1024;
/// Number of outstanding RDMA Reads of an endpoint in each direction, if the device supports that many.
pub(crate) const READS: u32 = 16;

/// Options for the addresses of an adapter and its neighbours.
#[derive(clap::Args, Clone, Debug, Default)]
pub(crate) struct AdapterOptions {
    /// An address of the adapter besides its link-local one.
    #[arg(long, value_name = "IP", value_parser = address)]
    address: Vec<IpAddr>,
    /// The MAC of a peer whose address does not contain it, such as 192.0.2.2=02:00:5e:10:00:02.
    #[arg(long, value_name = "IP=MAC")]
    neighbour: Vec<Neighbour>,
}

/// Value of `--neighbour`.
#[derive(Clone, Debug)]
struct Neighbour {
    address: IpAddr,
    mac: [u8; 6],
}

impl FromStr for Neighbour {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text:?} is not like 192.0.2.2=02:00:5e:10:00:02");
        let (address, mac) = text.split_once('=').ok_or_else(wrong)?;
        Ok(Self {
            address: address.parse().map_err(|_| wrong())?,
            mac: driver::mac_of(mac).ok_or_else(wrong)?,
        })
    }
}

impl AdapterOptions {
    /// Returns the options to open the adapter with. RNR is retried without limit, because a measurement may have more
    /// messages outstanding than the peer has receives.
    pub(crate) fn open_options(&self) -> OpenOptions {
        let mut options = OpenOptions::default();
        options.ia.transport.rnr_retry = 7;
        for &address in &self.address {
            options = options.address(address);
        }
        for neighbour in &self.neighbour {
            options = options.neighbour(neighbour.address, neighbour.mac);
        }
        options
    }
}

/// An opened adapter.
pub(crate) struct Adapter {
    pub(crate) ia: Ia,
    pub(crate) events: EvdHandle,
    /// Number of events that `events` holds: `EVENTS`, or as many as the device allows.
    pub(crate) most_events: u32,
    pub(crate) zone: PzHandle,
}

/// Registered memory, in slots of one size.
pub(crate) struct Region {
    pub(crate) memory: DmaMemory,
    lmr: LmrHandle,
    lmr_context: u32,
    rmr_context: u32,
    address: u64,
    slots: usize,
    slot_bytes: usize,
}

impl Region {
    /// Returns the first `bytes` bytes of a slot.
    pub(crate) fn local(&self, slot: usize, bytes: usize) -> LmrTriplet {
        LmrTriplet {
            lmr_context: self.lmr_context,
            virtual_address: self.address + (slot * self.slot_bytes) as u64,
            segment_length: bytes as u64,
        }
    }

    /// Returns a slot in the form that is sent to the peer.
    pub(crate) fn remote(&self, slot: usize) -> RmrTriplet {
        RmrTriplet {
            rmr_context: self.rmr_context,
            target_address: self.address + (slot * self.slot_bytes) as u64,
            segment_length: self.slot_bytes as u64,
        }
    }

    /// Returns the number of slots.
    pub(crate) const fn slots(&self) -> usize {
        self.slots
    }

    /// Returns the offset of a slot, in bytes.
    pub(crate) fn offset(&self, slot: usize) -> usize {
        slot * self.slot_bytes
    }
}

impl Adapter {
    pub(crate) fn open(name: &str, options: &OpenOptions) -> Result<Self, Box<dyn Error>> {
        Self::of(udapl::ia_open(name, options)?)
    }

    pub(crate) fn of(mut ia: Ia) -> Result<Self, Box<dyn Error>> {
        let most_events = EVENTS.min(ia.query().ia.max_evd_qlen);
        let events = ia.evd_create(
            most_events,
            EvdFlags::CR | EvdFlags::CONNECTION | EvdFlags::DTO | EvdFlags::RMR_BIND,
        )?;
        let zone = ia.pz_create()?;
        Ok(Self {
            ia,
            events,
            most_events,
            zone,
        })
    }

    /// Returns true if the function is simulated. In a guest, a function that a simulator provides looks like a card's
    /// function, so this returns false.
    pub(crate) fn is_simulated(&self) -> bool {
        is_simulated(&self.ia.query().ia.adapter_name)
    }

    pub(crate) fn address(&self) -> IpAddr {
        self.ia.query().ia.ia_address
    }

    /// Returns the maximum number of outstanding DTOs of an endpoint in either direction.
    pub(crate) fn most_dtos(&self) -> u32 {
        self.ia.query().ia.max_dto_per_ep.min(MOST)
    }

    fn attributes(&self, requests: u32, receives: u32) -> EpAttr {
        let limits = self.ia.query().ia;
        EpAttr {
            max_request_dtos: requests,
            max_recv_dtos: receives,
            max_rdma_read_in: limits.max_rdma_read_per_ep_in.min(READS),
            max_rdma_read_out: limits.max_rdma_read_per_ep_out.min(READS),
            ..EpAttr::defaults(limits)
        }
    }

    /// Creates an endpoint for this many requests and receives.
    pub(crate) fn endpoint(
        &mut self,
        requests: u32,
        receives: u32,
    ) -> Result<EpHandle, Box<dyn Error>> {
        let attr = self.attributes(requests, receives);
        Ok(self
            .ia
            .ep_create(Some(self.zone), EpEvds::all(self.events), Some(&attr))?)
    }

    /// Sets the transport of an unconnected endpoint. Keep-alive is on, with the interval of `transport`, or with
    /// `KEEP_ALIVE` if `transport` has none.
    pub(crate) fn set_transport(
        &mut self,
        ep: EpHandle,
        transport: &EpTransport,
    ) -> Result<(), Box<dyn Error>> {
        let transport = EpTransport {
            keep_alive: transport.keep_alive.or(Some(KEEP_ALIVE)),
            ..*transport
        };
        let change = EpChange {
            transport: Some(transport),
            ..EpChange::default()
        };
        Ok(self.ia.ep_modify(ep, &change)?)
    }

    /// Registers memory of `slots` slots, each of `slot_bytes` bytes.
    pub(crate) fn region(
        &mut self,
        slots: usize,
        slot_bytes: usize,
    ) -> Result<Region, Box<dyn Error>> {
        let bytes = slots
            .checked_mul(slot_bytes)
            .ok_or_else(|| format!("{slots} messages of {slot_bytes} bytes are too much memory"))?;
        let memory = udapl::alloc(&self.ia, bytes)?;
        let created = self
            .ia
            .lmr_create(memory.clone(), self.zone, MemPrivFlags::all())?;
        Ok(Region {
            memory,
            lmr: created.lmr,
            lmr_context: created.lmr_context,
            rmr_context: created.rmr_context,
            address: created.registered_address,
            slots,
            slot_bytes,
        })
    }

    /// Creates an endpoint whose receives come from an SRQ.
    pub(crate) fn sharing_endpoint(
        &mut self,
        requests: u32,
        srq: SrqHandle,
    ) -> Result<EpHandle, Box<dyn Error>> {
        let attr = self.attributes(requests, 0);
        Ok(self
            .ia
            .ep_create_with_srq(Some(self.zone), EpEvds::all(self.events), srq, &attr)?)
    }

    /// Frees an endpoint, and the registration of its region.
    pub(crate) fn release(&mut self, ep: EpHandle, region: &Region) -> Result<(), Box<dyn Error>> {
        self.ia.ep_free(ep)?;
        self.ia.lmr_free(region.lmr)?;
        Ok(())
    }

    /// Returns the next event, if there is one.
    pub(crate) fn poll(&mut self) -> Result<Option<Event>, Box<dyn Error>> {
        let event = self.ia.evd_dequeue(self.events);
        event.map_err(|error| self.failed(&error))
    }

    /// Returns the next event, sleeping for `longest` at most; `None` if there is none in that time.
    pub(crate) fn sleep(&mut self, longest: Duration) -> Result<Option<Event>, Box<dyn Error>> {
        let micros = u32::try_from(longest.as_micros()).unwrap_or(u32::MAX);
        match self
            .ia
            .evd_wait(self.events, Timeout::from_micros(micros), 1)
        {
            Ok((event, _)) => Ok(Some(event)),
            Err(error) if error.return_type() == ReturnType::TimeoutExpired => Ok(None),
            Err(error) => Err(self.failed(&error.error)),
        }
    }

    /// Returns the error, together with the device's last error report if there is one.
    pub(crate) fn failed(&self, error: &udapl::DatError) -> Box<dyn Error> {
        let name = &self.ia.query().ia.adapter_name;
        match self.ia.last_device_error() {
            Some(said) => format!("{name}: {error}: {said}").into(),
            None => format!("{name}: {error}").into(),
        }
    }

    /// Returns the error of an attempt to connect to a peer, if the attempt could not begin.
    pub(crate) fn unreachable_error(
        &self,
        peer: IpAddr,
        error: &udapl::DatError,
    ) -> Box<dyn Error> {
        if error.return_type() != ReturnType::InvalidAddress {
            return self.failed(error);
        }
        let ours: Vec<String> = self
            .ia
            .addresses()
            .iter()
            .map(ToString::to_string)
            .collect();
        format!(
            "{peer} is not reached from {}: `,address=IP/PREFIX` behind the adapter's name, or --address IP, gives it an address of the peer's network",
            ours.join(", ")
        )
        .into()
    }

    /// Returns a text with the cause if the connection ended because the endpoint's peer does not answer.
    fn gone(&self, ep: EpHandle) -> Option<String> {
        let cause = self.ia.ep_end_cause(ep).ok().flatten()?;
        let is_silent = matches!(
            cause,
            EndCause::KeepAlive { .. }
                | EndCause::Dto {
                    status: DtoStatus::ErrTransport,
                    ..
                }
        );
        is_silent.then(|| format!("the peer is gone: {cause}"))
    }

    /// Returns the error of a DTO. If the DTO failed because the peer is gone, the error says so.
    pub(crate) fn dto_failed(&self, done: &DtoCompletion) -> Box<dyn Error> {
        let gone = self.gone(done.ep);
        gone.map_or_else(|| dto_failed(done), Into::into)
    }

    /// Returns the error for an unexpected event on an endpoint. If its connection has ended, the error contains the
    /// reason.
    pub(crate) fn instead_of(&self, ep: EpHandle, what: &str, event: &Event) -> Box<dyn Error> {
        if let Some(gone) = self.gone(ep) {
            return gone.into();
        }
        let error = unexpected(event, what);
        match self.ia.ep_end_cause(ep) {
            Ok(Some(cause)) => format!("{error}: {cause}").into(),
            Ok(None) | Err(_) => error,
        }
    }

    pub(crate) fn close(self) -> Result<(), Box<dyn Error>> {
        let report = udapl::ia_close(self.ia, CloseFlags::Abrupt)?;
        match report.dead {
            Some(cause) => Err(format!("the device died: {cause}").into()),
            None => Ok(()),
        }
    }
}

/// Returns true if the name is that of a simulated function. A function that another process serves counts as
/// simulated.
pub(crate) fn is_simulated(name: &str) -> bool {
    name.starts_with("sim:") || name.starts_with("vfio-user:")
}

/// Returns the error of a failed DTO, as text.
pub(crate) fn dto_failed(done: &DtoCompletion) -> Box<dyn Error> {
    udapl::explain(done).into()
}

/// Returns the error for an unexpected event, as text with the event's number.
pub(crate) fn unexpected(event: &Event, instead_of: &str) -> Box<dyn Error> {
    let what = if let Event::Connection(event) = event {
        format!("the connection came to {}", event.kind.name())
    } else if let Event::Dto(done) = event {
        udapl::explain(done)
    } else {
        format!("{event:?}")
    };
    format!(
        "{what} (event {:#07x}; datctl explain) instead of {instead_of}",
        event.number()
    )
    .into()
}

/// Returns the time that is `PATIENCE` after now.
pub(crate) fn deadline() -> Instant {
    Instant::now() + PATIENCE
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_neighbour_has_an_address_and_a_mac_of_six_times_two_digits() {
        let neighbour: Neighbour = "192.0.2.2=02:00:5e:10:00:0F".parse().expect("a neighbour");
        assert_eq!(neighbour.mac, [2, 0, 0x5e, 0x10, 0, 0xf]);
        for wrong in [
            "192.0.2.2",
            "192.0.2=02:00:5e:10:00:02",
            "192.0.2.2=2:0:5e:10:0:2",
            "192.0.2.2=02:00:5e:10:00:+2",
            "192.0.2.2=02:00:5e:10:00",
        ] {
            assert!(wrong.parse::<Neighbour>().is_err(), "{wrong}");
        }
    }
}
