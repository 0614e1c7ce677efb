//! Brings both sides up, connects them, and frees everything.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use udapl::connection::PspHandle;
use udapl::endpoint::EpAttr;
use udapl::error::ReturnType;
use udapl::event::ConnectionEvent;
use udapl::memory::{LmrHandle, PzHandle, RmrTriplet};
use udapl::srq::{SrqAttr, SrqHandle};
use udapl::{
    CloseFlags, ConnQual, ConnectFlags, ConnectionEventKind, DmaMemory, EpEvds, EpHandle, EvdFlags,
    EvdHandle, Event, Ia, MemPrivFlags, PspFlags, Qos, Timeout,
};

use super::kind::Kind;
use super::world::{SIDES, World};

/// Number of requests and receives in flight for each endpoint.
pub const DEPTH: usize = 32;
/// `DEPTH` as a DAT count.
const DEPTH_DTOS: u32 = 32;
/// B's qualifier for the first connection: an IB service ID.
const SERVICE: ConnQual = ConnQual::service_id(0x1_0000_0001);
/// B's qualifier for the other connections: an RDMA-CM port.
const PORT: ConnQual = ConnQual::port(18515);
/// Timeout that is longer than any step on a wire without losses.
const PATIENCE: Timeout = Timeout::from_micros(5_000_000);
/// Number of turns of both sides after which a wait fails.
const TURNS: usize = 100_000;

/// Registered memory of one side.
pub struct Region {
    pub memory: DmaMemory,
    pub lmr: LmrHandle,
    pub rmr_context: u32,
    pub address: u64,
}

impl Region {
    /// Returns the RMR triplet for the peer.
    pub const fn remote(&self, offset: usize, bytes: usize) -> RmrTriplet {
        RmrTriplet {
            rmr_context: self.rmr_context,
            target_address: self.address + offset as u64,
            segment_length: bytes as u64,
        }
    }
}

/// One side: its adapter, its objects, and its endpoints. One endpoint has its own receives; two take them from an
/// SRQ (on side B).
pub struct Side {
    pub ia: Ia,
    /// Duration of the bring-up.
    pub bring_up: Duration,
    pub pz: PzHandle,
    pub completions: EvdHandle,
    pub connections: EvdHandle,
    pub requests: EvdHandle,
    pub endpoints: Vec<EpHandle>,
    psps: Vec<PspHandle>,
}

/// State of the job: both sides and their memory.
pub struct Job {
    pub a: Side,
    pub b: Side,
    pub srq: SrqHandle,
    pub source: Region,
    pub sinks: Vec<Region>,
    /// Triplets of B's memory, which A received in the accepts.
    pub remote_sinks: Vec<RmrTriplet>,
    /// Triplet of A's memory, which B received in the requests.
    pub remote_source: Option<RmrTriplet>,
}

impl Job {
    /// Brings both functions up and registers memory for `bytes` bytes on each side.
    pub fn open(world: &World, bytes: usize) -> Result<Self> {
        let (mut a, mut b) = (side(world, 0)?, side(world, 1)?);
        let srq = b.ia.srq_create(
            b.pz,
            SrqAttr {
                max_recv_dtos: 2 * DEPTH_DTOS,
                max_recv_iov: 1,
                low_watermark: 0,
            },
        )?;
        for shared in [false, true, true] {
            for (number, side) in [&mut a, &mut b].into_iter().enumerate() {
                let attr = attributes(&side.ia);
                let (pz, done, connected) = (
                    Some(side.pz),
                    Some(side.completions),
                    Some(side.connections),
                );
                let ep = if shared && number == 1 {
                    side.ia.ep_create_with_srq(
                        pz,
                        EpEvds {
                            recv: done,
                            request: done,
                            connect: connected,
                        },
                        srq,
                        &attr,
                    )?
                } else {
                    side.ia.ep_create(
                        pz,
                        EpEvds {
                            recv: done,
                            request: done,
                            connect: connected,
                        },
                        Some(&attr),
                    )?
                };
                side.endpoints.push(ep);
            }
        }
        let source = region(&mut a, bytes)?;
        let sinks = Kind::ALL
            .iter()
            .map(|_| region(&mut b, bytes))
            .collect::<Result<_>>()?;
        Ok(Self {
            a,
            b,
            srq,
            source,
            sinks,
            remote_sinks: Vec::new(),
            remote_source: None,
        })
    }

    pub const fn sides(&self) -> [(&'static str, &Side); 2] {
        [(SIDES[0], &self.a), (SIDES[1], &self.b)]
    }

    pub const fn source(&self) -> &DmaMemory {
        &self.source.memory
    }

    pub fn sink(&self, kind: Kind) -> &DmaMemory {
        &self.sinks[kind as usize].memory
    }

    /// Makes the three connections. The private data of a request contains the triplet of A's source. The private data
    /// of the accept contains the triplet of B's sink for RDMA Writes.
    pub fn connect(&mut self, world: &World) -> Result<()> {
        for qualifier in [SERVICE, PORT] {
            let psp = self
                .b
                .ia
                .psp_create(qualifier, self.b.requests, PspFlags::CONSUMER)?;
            self.b.psps.push(psp);
        }
        let link_local = self.b.ia.query().ia.ia_address;
        let other = world.other_address(link_local);
        for (number, (address, qualifier)) in [(link_local, SERVICE), (other, PORT), (other, PORT)]
            .into_iter()
            .enumerate()
        {
            let asked = self.source.remote(0, self.source.memory.len()).to_bytes();
            self.a.ia.ep_connect(
                self.a.endpoints[number],
                address,
                qualifier,
                PATIENCE,
                &asked,
                Qos::BEST_EFFORT,
                ConnectFlags::empty(),
            )?;
            let asked = format!("side A: connecting to {address}");
            let Event::ConnectionRequest(request) = self.request().context(asked)? else {
                bail!("something else than a connection request on B's EVD for requests");
            };
            self.remote_source = Some(decode(self.b.ia.cr_query(request.cr)?.private_data)?);
            let sink = &self.sinks[Kind::Write as usize];
            let answer = sink.remote(0, sink.memory.len()).to_bytes();
            self.b
                .ia
                .cr_accept(request.cr, Some(self.b.endpoints[number]), &answer)?;
            self.expect(0, ConnectionEventKind::Established)?;
            self.expect(1, ConnectionEventKind::Established)?;
            self.remote_sinks.push(decode(
                self.a.ia.ep_private_data(self.a.endpoints[number])?,
            )?);
        }
        Ok(())
    }

    /// Waits for the next event of an EVD. Both sides make progress meanwhile.
    pub fn wait(&mut self, side: usize, evd: EvdHandle) -> Result<Event> {
        for _ in 0..TURNS {
            if let Some(event) = self.poll_both(side, evd)? {
                return Ok(event);
            }
        }
        let other = if side == 0 { &mut self.b } else { &mut self.a };
        let told = other.ia.evd_dequeue(other.connections).ok().flatten();
        let name = SIDES[1 - side];
        match told {
            Some(event) => bail!(
                "side {}: no event within {TURNS} turns; side {name} was told {event:?}",
                SIDES[side]
            ),
            None => bail!(
                "side {}: no event within {TURNS} turns, and none of the connection on side {name}",
                SIDES[side]
            ),
        }
    }

    /// Waits for the next request on side B. If side A gets a connection event first, returns that event as the error.
    fn request(&mut self) -> Result<Event> {
        for _ in 0..TURNS {
            if let Some(event) = self.poll_both(1, self.b.requests)? {
                return Ok(event);
            }
            if let Ok(Some(told)) = self.a.ia.evd_dequeue(self.a.connections) {
                bail!("{told:?}");
            }
        }
        bail!("side B: no request within {TURNS} turns")
    }

    /// Lets both sides make progress. Side `side` waits up to 100 us for an event of the EVD.
    fn poll_both(&mut self, side: usize, evd: EvdHandle) -> Result<Option<Event>> {
        let (waiting, other) = if side == 0 {
            (&mut self.a, &mut self.b)
        } else {
            (&mut self.b, &mut self.a)
        };
        other.ia.progress();
        match waiting.ia.evd_wait(evd, Timeout::from_micros(100), 1) {
            Ok((event, _)) => Ok(Some(event)),
            Err(error) if error.return_type() == ReturnType::TimeoutExpired => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    fn expect(&mut self, side: usize, kind: ConnectionEventKind) -> Result<()> {
        let evd = if side == 0 {
            self.a.connections
        } else {
            self.b.connections
        };
        let event = self.wait(side, evd)?;
        ensure!(
            matches!(event, Event::Connection(ConnectionEvent { kind: is, .. }) if is == kind),
            "side {}: {event:?} instead of {kind:?}",
            SIDES[side]
        );
        Ok(())
    }

    /// Disconnects, frees every object, and closes both adapters. Fails if a resource is left. Returns a line for each
    /// side: what the close reports, and what the simulator reports, if it is in this process.
    pub fn close(mut self, world: &World) -> Result<String> {
        for number in 0..self.a.endpoints.len() {
            self.a
                .ia
                .ep_disconnect(self.a.endpoints[number], CloseFlags::Graceful)?;
            self.expect(0, ConnectionEventKind::Disconnected)?;
            self.expect(1, ConnectionEventKind::Disconnected)?;
        }
        let Self {
            mut a,
            mut b,
            srq,
            source,
            sinks,
            ..
        } = self;
        for side in [&mut a, &mut b] {
            side.psps
                .iter()
                .try_for_each(|&psp| side.ia.psp_free(psp))?;
            side.endpoints
                .iter()
                .try_for_each(|&ep| side.ia.ep_free(ep))?;
        }
        b.ia.srq_free(srq)?;
        a.ia.lmr_free(source.lmr)?;
        sinks.iter().try_for_each(|sink| b.ia.lmr_free(sink.lmr))?;
        let mut text = String::new();
        for (number, mut side) in [a, b].into_iter().enumerate() {
            side.ia.pz_free(side.pz)?;
            for evd in [side.completions, side.connections, side.requests] {
                side.ia.evd_free(evd)?;
            }
            let closed = udapl::ia_close(side.ia, CloseFlags::Graceful)?;
            text += &format!(
                "side {}: orderly disconnect, objects freed, HCA torn down after {} commands; pages given {}, returned {}",
                SIDES[number], closed.commands, closed.pages_given, closed.pages_returned,
            );
            let mut clean = closed.pages_not_returned == 0 && closed.objects_left.is_empty();
            let report = world.report(number);
            if let Some(report) = &report {
                text += &format!(
                    "; the simulator reports leaked objects {}, pages held {}, DMA faults {}, driver bugs {}",
                    report.leaked.values().sum::<usize>(),
                    report.pages_held,
                    report.dma_faults.len(),
                    report.driver_bugs.len(),
                );
                clean &= report.is_clean();
            }
            ensure!(clean, "something is left over: {report:?} {closed:?}");
            text.push('\n');
        }
        Ok(text.trim_end().to_owned())
    }
}

fn side(world: &World, number: usize) -> Result<Side> {
    let began = Instant::now();
    let mut ia = world.open(number)?;
    Ok(Side {
        bring_up: began.elapsed(),
        pz: ia.pz_create()?,
        completions: ia.evd_create(16 * DEPTH_DTOS, EvdFlags::DTO)?,
        connections: ia.evd_create(16, EvdFlags::CONNECTION)?,
        requests: ia.evd_create(16, EvdFlags::CR)?,
        endpoints: Vec::new(),
        psps: Vec::new(),
        ia,
    })
}

fn attributes(ia: &Ia) -> EpAttr {
    EpAttr {
        max_recv_dtos: DEPTH_DTOS,
        max_request_dtos: DEPTH_DTOS,
        max_recv_iov: 1,
        max_request_iov: 1,
        max_rdma_read_in: 8,
        max_rdma_read_out: 8,
        ..EpAttr::defaults(ia.query().ia)
    }
}

fn region(side: &mut Side, bytes: usize) -> Result<Region> {
    let memory = udapl::alloc(&side.ia, bytes)?;
    let lmr = side
        .ia
        .lmr_create(memory.clone(), side.pz, MemPrivFlags::all())?;
    Ok(Region {
        memory,
        lmr: lmr.lmr,
        rmr_context: lmr.rmr_context,
        address: lmr.registered_address,
    })
}

fn decode(bytes: &[u8]) -> Result<RmrTriplet> {
    RmrTriplet::from_bytes(bytes).context("the private data is shorter than a triplet")
}

#[cfg(test)]
mod tests {
    use indicatif::ProgressBar;

    use super::*;

    const BYTES: usize = 5_000;
    const CHUNK: usize = 1_000;

    fn named(a: &str, b: &str) -> World {
        World::Named([a, b].map(str::to_owned))
    }

    /// The program need not know the functions' MACs, as with real cards, and it reports a failure of side A.
    #[test]
    fn functions_with_macs_of_their_own_do_the_job_and_a_failure_of_side_a_is_told() {
        let a = "sim:a,mac=02:00:00:00:0a:0a,time=virtual";
        let world = named(a, "sim:b,mac=02:00:00:00:0b:0b,time=virtual");
        let mut job = Job::open(&world, BYTES).expect("opened");
        job.connect(&world).expect("connected");
        for kind in Kind::ALL {
            let (messages, _) = job
                .transfer(kind, CHUNK, &ProgressBar::hidden())
                .expect("transferred");
            assert_eq!(messages, 5, "{}", kind.name());
            let [sent, arrived] = [job.source(), job.sink(kind)]
                .map(|memory| memory.read(0, BYTES).expect("all of it"));
            assert!(sent == arrived, "{}", kind.name());
        }
        job.close(&world).expect("closed");

        // The third function has no link to the first.
        let world = named(a, "sim:nowhere,time=virtual");
        let mut job = Job::open(&world, BYTES).expect("opened");
        let error = job.connect(&world).expect_err("nobody is there");
        let told = format!("{error:#}");
        assert!(
            told.contains("side A: connecting to fe80::") && told.contains("side B: no request"),
            "{told}"
        );
    }
}
