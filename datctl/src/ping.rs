//! `datctl ping`: messages back and forth over a connection, or ICMP echoes of any node of the network (`--icmp`).
//!
//! The passive end echoes what it receives. The active end sends one message at a time, checks that the same bytes come
//! back, and reports how long that took.

use std::error::Error;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use serde::Serialize;
use udapl::{CompletionFlags, DtoCookie};

use crate::adapter::{Adapter, deadline};
use crate::dialer::Dialer;
use crate::ends::{Ends, Target, connect_by};
use crate::hello::{Hello, Role};
use crate::listener::pattern;
use crate::perf::amount::size;
use crate::report::{Output, Report, table};
use crate::value::within;

/// Longest wait for the answer to an echo request.
const ECHO_WITHIN: Duration = Duration::from_secs(2);
/// Interval between two polls for the answer.
const POLL_INTERVAL: Duration = Duration::from_millis(10);
/// Cookies of the Send and of the receive.
const SEND: u64 = 1;
const RECEIVE: u64 = 2;

/// `ping`
#[derive(clap::Args)]
pub(crate) struct Ping {
    #[command(flatten)]
    ends: Ends,
    /// Send ICMP echo requests to the address of --connect, which may be any node of the network, without RDMA.
    #[arg(long, requires = "connect", conflicts_with = "bytes")]
    icmp: bool,
    /// Number of round trips.
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = within(1..=u32::MAX))]
    count: u32,
    /// Bytes of a message, such as 64, 4k or 1M.
    #[arg(long, value_name = "SIZE", default_value_t = 64, value_parser = size, allow_negative_numbers = true)]
    bytes: u64,
}

/// Times of the round trips.
#[derive(Serialize)]
pub(crate) struct Trips {
    adapter: String,
    peer: String,
    messages: usize,
    bytes: u64,
    shortest_us: f64,
    median_us: f64,
    longest_us: f64,
}

pub(crate) fn run(ping: &Ping, output: Output) -> Result<(), Box<dyn Error>> {
    if let Some(node) = ping.ends.connect.filter(|_| ping.icmp) {
        return echoes(ping, node, output);
    }
    let Some((mut dialer, target)) = connect_by(&ping.ends, output)? else {
        return Ok(());
    };
    let trips = ping.trips(&mut dialer, &target)?;
    dialer.close()?;
    output.show(&Trips::new(
        &ping.ends.name,
        &target.address.to_string(),
        ping.bytes,
        trips,
    ))?;
    Ok(())
}

/// Sends ICMP echoes to a node, one after the other.
fn echoes(ping: &Ping, node: IpAddr, output: Output) -> Result<(), Box<dyn Error>> {
    let name = &ping.ends.name;
    let mut adapter = Adapter::open(name, &ping.ends.options.open_options())?;
    let (mut trips, mut bytes) = (Vec::new(), 0);
    for number in 0..ping.count {
        // CAST: sequence numbers of echoes wrap at 16 bits.
        #[expect(clippy::cast_possible_truncation, reason = "they wrap")]
        let sequence = number as u16;
        let give_up = deadline();
        while !adapter.ia.echo(node, sequence)? {
            adapter.sleep(POLL_INTERVAL)?;
            if Instant::now() > give_up {
                return Err(format!("{node} is not found").into());
            }
        }
        let give_up = Instant::now() + ECHO_WITHIN;
        while Instant::now() < give_up {
            adapter.sleep(POLL_INTERVAL)?;
            if let Some(echo) = adapter.ia.echo_answered() {
                trips.push(echo.took);
                bytes = echo.bytes as u64;
                break;
            }
        }
    }
    let answered = trips.len();
    output.show(&Trips::new(name, &node.to_string(), bytes, trips))?;
    adapter.close()?;
    if answered < ping.count as usize {
        return Err(format!("{node} answered {answered} of {} echoes", ping.count).into());
    }
    Ok(())
}

impl Ping {
    fn trips(&self, dialer: &mut Dialer, target: &Target) -> Result<Vec<Duration>, Box<dyn Error>> {
        let bytes = usize::try_from(self.bytes)?;
        let hello = Hello {
            role: Role::Echo,
            more: 0,
            depth: 1,
            bytes: self.bytes,
            reverse: None,
        };
        dialer.connect(target.address, target.qualifier, &hello, 2)?;
        let mut trips = Vec::new();
        for number in 0..self.count {
            let (ep, region, _) = dialer.session();
            let (outbox, inbox) = (region.local(0, bytes), region.local(1, bytes));
            let (memory, at) = (region.memory.clone(), region.offset(1));
            let data = pattern(number, bytes);
            memory.write_from(0, &data)?;
            let start = Instant::now();
            let ia = &mut dialer.adapter.ia;
            ia.ep_post_recv(ep, &[inbox], DtoCookie(RECEIVE), CompletionFlags::empty())?;
            ia.ep_post_send(ep, &[outbox], DtoCookie(SEND), CompletionFlags::empty())?;
            let mut received = None;
            for _ in [SEND, RECEIVE] {
                let done = dialer
                    .completed()
                    .map_err(|error| format!("message {number}: {error}"))?;
                if done.cookie == DtoCookie(RECEIVE) {
                    trips.push(start.elapsed());
                    received = Some(done.transferred_length);
                }
            }
            if received != Some(bytes as u64) || memory.read(at, bytes)? != data {
                return Err(format!("message {number} came back changed").into());
            }
        }
        dialer.disconnect_all()?;
        Ok(trips)
    }
}

impl Trips {
    pub(crate) fn new(adapter: &str, peer: &str, bytes: u64, mut trips: Vec<Duration>) -> Self {
        trips.sort_unstable();
        let micros = |at: usize| trips.get(at).map_or(0.0, |trip| trip.as_secs_f64() * 1e6);
        Self {
            adapter: adapter.to_owned(),
            peer: peer.to_owned(),
            messages: trips.len(),
            bytes,
            shortest_us: micros(0),
            median_us: micros(trips.len() / 2),
            longest_us: micros(trips.len().saturating_sub(1)),
        }
    }
}

impl Report for Trips {
    fn human(&self) -> String {
        let micros = |trip: f64| format!("{trip:.1} us");
        table(
            ["messages", "bytes", "shortest", "median", "longest"],
            [[
                self.messages.to_string(),
                self.bytes.to_string(),
                micros(self.shortest_us),
                micros(self.median_us),
                micros(self.longest_us),
            ]],
        )
    }
}
