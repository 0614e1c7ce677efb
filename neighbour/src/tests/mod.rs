//! Tests of the whole module, by concept. `peer` makes the frames of peers by hand, byte by byte from the RFCs. `sent`
//! parses our frames by hand and by etherparse. Neither uses the code under test.

mod addresses;
mod arp;
mod discovery;
mod echo;
mod groups;
mod hostile_snapshots;
mod link;
mod ndisc;
mod parking;
mod peer;
mod recorded;
mod routes;
mod sent;
mod states;
mod strangers;
mod vlans;

use std::net::IpAddr;
use std::time::Duration;

use crate::{Address, Config, Detection, Event, Mac, Need, Neighbours, Resolution, State, Vlan};
use sent::{Said, Sent};

const OURS: Mac = [0x02, 0, 0, 0, 0, 0x01];
const PEER: Mac = [0x02, 0, 0, 0, 0, 0x02];
const OTHER: Mac = [0x02, 0, 0, 0, 0, 0x03];
const ALL: Mac = [0xff; 6];

const OUR_V4: &str = "10.0.0.1";
const PEER_V4: &str = "10.0.0.2";
const OUR_V6: &str = "2001:db8::1";
const PEER_V6: &str = "2001:db8::2";

fn ip(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn milliseconds(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds)
}

/// Parses `address/prefix`, with an optional gateway.
fn interface(text: &str, vlan: Option<Vlan>, gateway: Option<&str>) -> Address {
    let (address, prefix) = text.split_once('/').expect("address/prefix");
    Address {
        address: ip(address),
        prefix: Some(prefix.parse().expect("bits")),
        vlan,
        gateway: gateway.map(ip),
    }
}

/// The module under test, and the current time of the test.
struct Us {
    us: Neighbours,
    now: Duration,
}

impl Us {
    /// Makes a module without an address.
    fn bare(detection: Detection) -> Self {
        let config = Config {
            detection,
            ..Config::new(OURS, 7)
        };
        Self::of(config)
    }

    fn of(config: Config) -> Self {
        let now = seconds(1_000);
        Self {
            us: Neighbours::new(config, now),
            now,
        }
    }

    /// Makes a module with 10.0.0.1/24, 2001:db8::1/64 and fe80::1/64, all of them announced, and with empty queues.
    fn settled() -> Self {
        let mut us = Self::bare(Detection::Never);
        for text in ["10.0.0.1/24", "2001:db8::1/64", "fe80::1/64"] {
            us.add(text);
        }
        us.settle();
        us
    }

    fn add(&mut self, text: &str) {
        let added = self.us.add(interface(text, None, None), self.now);
        added.expect("an address");
    }

    /// Lets 30 seconds pass, so that all announcements are sent, and empties the queues of frames and events.
    fn settle(&mut self) {
        self.pass(seconds(30));
        while self
            .us
            .next_frame(&mut [0; crate::MOST_FRAME_BYTES])
            .is_some()
        {}
        self.events();
    }

    /// Advances the time, handling each timer when it is due.
    fn pass(&mut self, time: Duration) {
        let end = self.now + time;
        while let Some(due) = self.us.due().filter(|&due| due <= end) {
            self.now = self.now.max(due);
            self.us.tick(self.now);
        }
        self.now = end;
    }

    fn resolve(&mut self, source: &str, destination: &str) -> Resolution {
        self.us.resolve(ip(source), ip(destination), self.now)
    }

    fn confirm(&mut self, source: &str, destination: &str) {
        self.us.confirm(ip(source), ip(destination), self.now);
    }

    fn receive(&mut self, frame: &[u8]) {
        self.us.received(frame, self.now);
    }

    /// Returns the queued frames, parsed.
    fn sent(&mut self) -> Vec<Sent> {
        let mut out = [0xa5; crate::MOST_FRAME_BYTES];
        let mut sent = Vec::new();
        while let Some(bytes) = self.us.next_frame(&mut out) {
            sent.push(Sent::read(&out[..bytes]));
            out.fill(0xa5);
        }
        sent
    }

    /// Returns the messages of the queued frames.
    fn said(&mut self) -> Vec<Said> {
        self.sent().into_iter().map(|sent| sent.said).collect()
    }

    fn events(&mut self) -> Vec<Event> {
        std::iter::from_fn(|| self.us.next_event()).collect()
    }

    /// Returns the state of a neighbour, found by its address alone.
    fn state(&self, address: &str) -> State {
        let entry = self.us.entries().find(|entry| entry.address == ip(address));
        entry.map_or(State::Absent, |entry| entry.state.expect("no static one"))
    }

    fn mac(&self, address: &str) -> Option<Mac> {
        let entry = self.us.entries().find(|entry| entry.address == ip(address));
        entry.and_then(|entry| entry.mac)
    }
}

/// Asserts that the rows are those of a checked-in table.
fn assert_table(rows: impl IntoIterator<Item = String>, checked_in: &str) {
    let rows: Vec<String> = rows.into_iter().collect();
    let checked_in: Vec<&str> = checked_in.lines().collect();
    assert_eq!(rows, checked_in, "the table is now:\n{}\n", rows.join("\n"));
}
