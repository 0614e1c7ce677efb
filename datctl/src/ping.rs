//! `datctl ping`: messages back and forth over a connection.
//!
//! The passive end echoes what it receives. The active end sends one message at a time, checks that the same bytes come
//! back, and says how long that took.

use std::error::Error;
use std::time::{Duration, Instant};

use serde::Serialize;
use udapl::{CompletionFlags, DtoCookie};

use crate::dialer::Dialer;
use crate::ends::{Ends, Target, connect_by};
use crate::hello::{Hello, Role};
use crate::listener::pattern;
use crate::report::{Output, Report, table};

/// Cookies.
const SEND: u64 = 1;
const RECEIVE: u64 = 2;

/// `ping`
#[derive(clap::Args)]
pub(crate) struct Ping {
    #[command(flatten)]
    ends: Ends,
    /// Round trips.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..))]
    count: u32,
    /// Bytes of a message.
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=1 << 30))]
    bytes: u32,
}

/// What the round trips took.
#[derive(Serialize)]
pub(crate) struct Trips {
    adapter: String,
    peer: String,
    messages: usize,
    bytes: u32,
    shortest_us: f64,
    median_us: f64,
    longest_us: f64,
}

pub(crate) fn run(ping: &Ping, output: Output) -> Result<(), Box<dyn Error>> {
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

impl Ping {
    fn trips(&self, dialer: &mut Dialer, target: &Target) -> Result<Vec<Duration>, Box<dyn Error>> {
        let bytes = usize::try_from(self.bytes)?;
        let hello = Hello {
            role: Role::Echo,
            more: 0,
            depth: 1,
            bytes: u64::from(self.bytes),
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
        dialer.hang_up()?;
        Ok(trips)
    }
}

impl Trips {
    pub(crate) fn new(adapter: &str, peer: &str, bytes: u32, mut trips: Vec<Duration>) -> Self {
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
