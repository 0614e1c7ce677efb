//! `datctl perf --perftest PROGRAM`: the active end of a measurement whose passive end is one of perftest's programs.
//!
//! With `-R` a program of perftest accepts connections by `rdma_cm`: first one for control messages, then those that
//! are measured. So this needs no IP network besides the one that DAT itself uses. Both ends send their parameters in
//! turns, the active one first:
//!
//! ```text
//!   control connection                          port 18515
//!     version, two sizes, MTU                   a version that is not known ends it here
//!     handshake                                 a destination of zeros
//!   one data connection for each queue pair     the same port, where the peer listens anew
//!     handshake                                 zeros again
//!     handshakes                                one for each queue pair, twice, and one more: where the memory is
//!   the measurement
//!     handshake, report of 5 values             bandwidth of Write and Read, whose peer cannot see it by itself
//!     handshake                                 all but the latency of Write
//!   the passive end disconnects
//! ```
//!
//! No message contains the name of the peer's program, or the sizes and counts it was started with. If they differ,
//! both ends wait for messages that never come. All waits here have a time limit, and the error says how to start the
//! peer.
//!
//! Source: perftest, `src/write_bw.c` and its siblings, `src/perftest_communication.c`.

mod control;
mod message;
#[cfg(test)]
mod tests;

use std::error::Error;
use std::net::IpAddr;
use std::time::Instant;

use clap::ValueEnum;
use serde::Serialize;
use udapl::network;

use self::control::Peer;
use self::message::{Destination, Layout, Report, Version, mtu};
use super::amount::Amount;
use super::latency::{self, Latency};
use super::measure::{self, Bandwidth, INBOX, Kind, OUTBOX};
use super::{Figures, Measure, Operation, Plan, Row};
use crate::adapter::deadline;
use crate::dialer::Dialer;
use simnic::signals::Stop;

/// Default port of perftest's programs.
const PORT: u16 = 18_515;
/// Sizes that we send, of the bandwidth buffer and of a cache line. Each end uses the larger of both ends' values.
const PAGE_BYTES: u32 = 4096;
const LINE_BYTES: u32 = 64;
/// Number of polls of the memory between two polls for events.
const MEMORY_POLLS: u32 = 64;

/// The programs of perftest, each of which measures one operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Program {
    #[value(name = "ib_send_lat")]
    SendLat,
    #[value(name = "ib_send_bw")]
    SendBw,
    #[value(name = "ib_write_lat")]
    WriteLat,
    #[value(name = "ib_write_bw")]
    WriteBw,
    #[value(name = "ib_read_lat")]
    ReadLat,
    #[value(name = "ib_read_bw")]
    ReadBw,
}

/// Program and version of the peer.
#[derive(Serialize)]
pub(super) struct Other {
    pub(super) program: &'static str,
    pub(super) version: String,
}

impl Program {
    pub(super) const fn operation(self) -> Operation {
        match self {
            Self::SendLat | Self::SendBw => Operation::Send,
            Self::WriteLat | Self::WriteBw => Operation::Write,
            Self::ReadLat | Self::ReadBw => Operation::Read,
        }
    }

    pub(super) const fn measure(self) -> Measure {
        match self {
            Self::SendLat | Self::WriteLat | Self::ReadLat => Measure::Latency,
            Self::SendBw | Self::WriteBw | Self::ReadBw => Measure::Bandwidth,
        }
    }

    const fn name(self) -> &'static str {
        match self {
            Self::SendLat => "ib_send_lat",
            Self::SendBw => "ib_send_bw",
            Self::WriteLat => "ib_write_lat",
            Self::WriteBw => "ib_write_bw",
            Self::ReadLat => "ib_read_lat",
            Self::ReadBw => "ib_read_bw",
        }
    }

    /// Returns the program's default message size in bytes, and its default number of operations.
    pub(super) const fn usual(self) -> (u64, u64) {
        match self {
            Self::SendLat | Self::WriteLat | Self::ReadLat => (2, 1000),
            Self::SendBw | Self::ReadBw => (65_536, 1000),
            Self::WriteBw => (65_536, 5000),
        }
    }

    /// Returns true if both ends count operations. Then there can be no warm-up, which the peer would count, too, and
    /// no duration, because each end would reach another number of operations.
    const fn is_counted(self) -> bool {
        match self {
            Self::SendLat | Self::SendBw | Self::WriteLat => true,
            Self::WriteBw | Self::ReadLat | Self::ReadBw => false,
        }
    }
}

/// Returns the plan of a measurement with `program`: one size, and the program's defaults for values that the
/// command line does not specify.
pub(super) fn plan(asked: &Plan, program: Program) -> Result<Plan, String> {
    let (bytes, count) = program.usual();
    let mut plan = asked.clone();
    plan.operation = vec![program.operation()];
    plan.measure = vec![program.measure()];
    if plan.bytes.is_empty() {
        plan.bytes.push(bytes);
    }
    let name = program.name();
    if plan.bytes.len() > 1 {
        return Err(format!("{name} measures one size: --bytes is to be its -s"));
    }
    if program == Program::SendBw && plan.endpoints > 1 {
        return Err(format!(
            "{name} counts on each queue pair, and --count is of all: --endpoints 1"
        ));
    }
    if program.is_counted() && (plan.duration.is_some() || plan.warm_up.is_some()) {
        return Err(format!(
            "both ends count what {name} measures: --count as its -n, without --duration and --warm-up"
        ));
    }
    if plan.duration.is_none() {
        plan.count.get_or_insert(count);
    }
    plan.warm_up.get_or_insert(Amount::Operations(0));
    Ok(plan)
}

/// Returns the port for a connection qualifier: the default without one, an error if it is no port.
pub(super) fn port(qualifier: Option<u64>) -> Result<u16, String> {
    let Some(qualifier) = qualifier else {
        return Ok(PORT);
    };
    u16::try_from(qualifier)
        .map_err(|_| "perftest listens at a port: --qualifier is to be its -p, up to 65535".into())
}

/// Measures with a program that listens at this address and port.
pub(super) fn measure(
    plan: &Plan,
    program: Program,
    dialer: &mut Dialer,
    (address, port): (IpAddr, u16),
    stop: &Stop,
    figures: &mut Figures,
) -> Result<(), Box<dyn Error>> {
    let test = Test {
        plan,
        program,
        bytes: plan.longest(),
        lanes: plan.lanes(program.measure()),
    };
    test.run(dialer, (address, port), stop, figures)
        .map_err(|error| format!("{error}; the peer should run {}", test.command(port)).into())
}

/// One measurement with a program.
struct Test<'a> {
    plan: &'a Plan,
    program: Program,
    bytes: u64,
    lanes: u16,
}

impl Test<'_> {
    /// Returns the command that starts the peer for this measurement.
    fn command(&self, port: u16) -> String {
        let mut command = format!("{} -R -s {}", self.program.name(), self.bytes);
        if let (true, Some(count)) = (self.program.is_counted(), self.plan.count) {
            command += &format!(" -n {count}");
        }
        if self.lanes > 1 {
            command += &format!(" -q {}", self.lanes);
        }
        if port != PORT {
            command += &format!(" -p {port}");
        }
        command
    }

    fn run(
        &self,
        dialer: &mut Dialer,
        (address, port): (IpAddr, u16),
        stop: &Stop,
        figures: &mut Figures,
    ) -> Result<(), Box<dyn Error>> {
        // The limits are checked before the first message, because an abandoned peer waits without limit.
        let requests = dialer.requests(self.plan.depth)?;
        dialer.check_events(self.lanes.into(), self.plan.depth, requests + 1)?;
        let addresses = dialer.adapter.ia.addresses();
        let mut all = addresses.iter().map(|it| it.address);
        let ours = all.find(|it| it.is_ipv4() == address.is_ipv4());
        let ours = ours.unwrap_or_else(|| dialer.adapter.address());
        let mut peer = Peer::connect(dialer, address, port)?;
        let layout = self.greet(&mut peer, figures)?;
        let nothing = Destination::default();
        self.shake(&mut peer, layout, &nothing)?;
        let destinations = self.connect(&mut peer, requests, ours)?;
        self.shake(&mut peer, layout, &nothing)?;
        self.agree(&mut peer, layout, &destinations)?;
        let row = self.row(&mut peer, stop);
        let row = row.map_err(|error| format!("in the measurement: {error}"))?;
        let report = row.bandwidth.as_ref().map(|it| it.report(self.bytes));
        let is_whole = !stop.is_asked();
        figures.rows.push(row);
        // After an interruption a peer that counts still waits for operations, so the last handshake cannot take place.
        if is_whole || !self.program.is_counted() {
            self.part(&mut peer, layout, &destinations[0], report)?;
            peer.disconnect_all()?;
        }
        Ok(())
    }

    /// Exchanges version, sizes and MTU with the peer.
    fn greet(&self, peer: &mut Peer<'_>, figures: &mut Figures) -> Result<Layout, Box<dyn Error>> {
        let said = peer.exchange("its version", &Version::ours())?;
        let version = Version::decode(&said)?;
        let layout = version.layout()?;
        figures.perftest = Some(Other {
            program: self.program.name(),
            version: version.to_string(),
        });
        for (what, number) in [
            ("the size of its buffer", PAGE_BYTES),
            ("the size of its cache's lines", LINE_BYTES),
        ] {
            peer.exchange(what, &number.to_be_bytes())?;
        }
        let path_mtu = network::port(&peer.dialer.adapter.ia).path_mtu;
        peer.exchange("its MTU", &mtu(128 << path_mtu.min(5)))?;
        Ok(layout)
    }

    fn shake(
        &self,
        peer: &mut Peer<'_>,
        layout: Layout,
        ours: &Destination,
    ) -> Result<Destination, Box<dyn Error>> {
        let said = peer.exchange("a handshake", &ours.encode(layout))?;
        let theirs = Destination::decode(layout, &said);
        // PANIC: both directions of an exchange have the same length.
        Ok(theirs.expect("its length"))
    }

    /// Makes the connections to be measured. Returns our destination for each.
    fn connect(
        &self,
        peer: &mut Peer<'_>,
        requests: u32,
        ours: IpAddr,
    ) -> Result<Vec<Destination>, Box<dyn Error>> {
        let slot_bytes = usize::try_from(self.bytes)?.next_multiple_of(8);
        let mut destinations = Vec::new();
        for _ in 0..self.lanes {
            let adapter = &mut peer.dialer.adapter;
            let ep = adapter.endpoint(requests, 1)?;
            adapter.set_transport(ep, &udapl::endpoint::EpTransport::default())?;
            let region = adapter.region(2, slot_bytes)?;
            region.memory.write_from(0, &vec![0; 2 * slot_bytes])?;
            peer.connect_lane(ep)?;
            let memory = region.remote(INBOX);
            destinations.push(Destination {
                reads: crate::adapter::READS,
                r_key: memory.rmr_context,
                address: memory.target_address,
                gid: Destination::gid(ours),
            });
            peer.dialer.adopt(ep, region, memory);
        }
        Ok(destinations)
    }

    /// Exchanges the addresses and keys of both memories, as often as the programs do, which is more often than needed.
    fn agree(
        &self,
        peer: &mut Peer<'_>,
        layout: Layout,
        ours: &[Destination],
    ) -> Result<(), Box<dyn Error>> {
        if matches!(self.program, Program::WriteLat | Program::ReadLat) {
            self.shake(peer, layout, &ours[0])?;
        }
        for (lane, ours) in ours.iter().enumerate() {
            let theirs = self.shake(peer, layout, ours)?;
            if self.program.operation() != Operation::Send && theirs.address == 0 {
                return Err("it names no memory to write to or read from".into());
            }
            peer.dialer.redirect(lane, theirs.r_key, theirs.address);
        }
        if self.program.operation() == Operation::Send {
            self.shake(peer, layout, &ours[0])?;
        }
        for ours in ours {
            self.shake(peer, layout, ours)?;
        }
        // For Send this last message means that the peer has posted its receives.
        self.shake(peer, layout, &ours[0])?;
        Ok(())
    }

    /// Runs the measurement, and returns its row.
    fn row(&self, peer: &mut Peer<'_>, stop: &Stop) -> Result<Row, Box<dyn Error>> {
        let plan = self.plan;
        let mut row = Row {
            operation: self.program.operation(),
            bytes: self.bytes,
            latency: None,
            bandwidth: None,
        };
        let sent = crate::listener::pattern(1, usize::try_from(self.bytes)?);
        for lane in 0..usize::from(self.lanes) {
            let (ep, region, _) = peer.dialer.lane(lane);
            region.memory.write_from(region.offset(OUTBOX), &sent)?;
            plan.check_inline(peer.dialer, ep, sent.len())?;
        }
        let kind = Kind {
            operation: row.operation,
            bytes: sent.len(),
            inline: plan.inline.then_some(&sent[..]),
        };
        let (before, amount) = (plan.before(self.bytes), plan.amount(self.bytes));
        match self.program {
            Program::WriteLat => {
                let measured = self.mirror(peer, kind, amount, stop)?;
                row.latency = (measured.operations > 0).then_some(measured);
            }
            Program::SendLat | Program::ReadLat => {
                measure::one_by_one(peer.dialer, kind, before, stop)?;
                let measured = measure::one_by_one(peer.dialer, kind, amount, stop)?;
                row.latency = (measured.operations > 0).then_some(measured);
            }
            Program::SendBw | Program::WriteBw | Program::ReadBw => {
                let mut used = vec![0; self.lanes.into()];
                plan.many(peer.dialer, &mut used, kind, before, stop)?;
                let (operations, seconds) =
                    plan.many(peer.dialer, &mut used, kind, amount, stop)?;
                row.bandwidth =
                    (operations > 0).then(|| Bandwidth::of(operations, seconds, self.bytes, None));
            }
        }
        Ok(row)
    }

    /// Measures the latency of Write: each end writes after the other has written, the passive end first. An end
    /// notices a Write by its last byte, which is the number of the Write modulo 256. The time between two such notices
    /// is a round trip.
    fn mirror(
        &self,
        peer: &mut Peer<'_>,
        kind: Kind<'_>,
        amount: Amount,
        stop: &Stop,
    ) -> Result<Latency, Box<dyn Error>> {
        let (_, region, _) = peer.dialer.lane(0);
        let memory = region.memory.clone();
        let [outbox, inbox] = [OUTBOX, INBOX].map(|slot| region.offset(slot) + kind.bytes - 1);
        let mut times = latency::histogram();
        let mut seen: Option<Instant> = None;
        let (mut number, begin) = (0_u64, Instant::now());
        while !stop.is_asked() && !amount.is_reached(number, begin) {
            number += 1;
            let mark = number.to_be_bytes()[7];
            self.until_written(peer, inbox, mark)?;
            let now = Instant::now();
            if let Some(then) = seen.replace(now) {
                latency::count(&mut times, (now - then) / 2);
            }
            memory.write_from(outbox, &[mark])?;
            measure::post(peer.dialer, 0, kind, 1)?;
            peer.completed()?;
        }
        Ok(Latency::of_round_trips(times))
    }

    fn until_written(
        &self,
        peer: &mut Peer<'_>,
        at: usize,
        mark: u8,
    ) -> Result<(), Box<dyn Error>> {
        let memory = peer.dialer.lane(0).1.memory.clone();
        let give_up = deadline();
        let mut found = [0];
        loop {
            for _ in 0..MEMORY_POLLS {
                memory.read_into(at, &mut found)?;
                if found[0] == mark {
                    return Ok(());
                }
            }
            peer.poll_event()?;
            if peer.has_left() {
                memory.read_into(at, &mut found)?;
                if found[0] == mark {
                    return Ok(());
                }
                return Err(format!("the peer hung up before its message {mark}").into());
            }
            if Instant::now() > give_up {
                return Err(format!("it does not write its message {mark}").into());
            }
        }
    }

    /// Ends the exchange. A peer that cannot measure the bandwidth itself gets our figures first.
    fn part(
        &self,
        peer: &mut Peer<'_>,
        layout: Layout,
        ours: &Destination,
        report: Option<Report>,
    ) -> Result<(), Box<dyn Error>> {
        if matches!(self.program, Program::WriteBw | Program::ReadBw) {
            self.shake(peer, layout, ours)?;
            for value in report.unwrap_or_default().values() {
                peer.exchange("its report", &value)?;
            }
        }
        if self.program != Program::WriteLat {
            self.shake(peer, layout, ours)?;
        }
        Ok(())
    }
}

impl Bandwidth {
    fn report(&self, bytes: u64) -> Report {
        Report {
            bytes,
            operations: self.operations,
            mib_per_second: self.bytes_per_second / f64::from(1 << 20),
            millions_per_second: self.operations_per_second / 1e6,
        }
    }
}
