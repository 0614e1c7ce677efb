//! Configuration by the caller, and the constants of the protocols.

use std::time::Duration;

use crate::address::Mac;

/// Largest number of addresses that a caller may allow: with as many, a report of all groups still fits a frame.
pub(crate) const MOST_ADDRESSES: usize = 64;

/// Duplicate detection for an address of ours.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Detection {
    /// None: no DupAddrDetectTransmits (RFC 4862, 5.1).
    Never,
    /// The address is usable at once. For IPv6, duplicates are detected at the same time (RFC 4429). IPv4 is
    /// announced, and conflicts are watched for from then on (RFC 5227, 2.4).
    #[default]
    Optimistic,
    /// The address is usable when no other node has claimed it: RFC 5227, 2.1, after five to eight seconds; RFC 4862,
    /// 5.4, after one to two.
    First,
}

/// Limits and timeouts of the neighbour module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Our MAC, an individual address.
    pub mac: Mac,
    /// Seed of all random delays. Two adapters need two different seeds.
    pub seed: u64,
    /// Duplicate detection for our addresses.
    pub detection: Detection,
    /// Maximum number of our addresses; at most 64.
    pub addresses: usize,
    /// Maximum number of neighbours found by asking. When it is reached, the one idle for longest is dropped.
    pub neighbours: usize,
    /// Maximum number of frames queued for [`next_frame`](crate::Neighbours::next_frame). Replies take at most half
    /// of it, echoes a quarter.
    pub frames: usize,
    /// Maximum number of events queued for [`next_event`](crate::Neighbours::next_event). Beyond it the oldest is
    /// lost.
    pub events: usize,
    /// Requests per second, over all neighbours; as many at once after a pause.
    pub asks_per_second: u32,
    /// Replies per second to requests for our addresses; as many at once after a pause.
    pub answers_per_second: u32,
    /// Echo replies per second; as many at once after a pause.
    pub echoes_per_second: u32,
    /// Time for which a neighbour that did not answer is not asked again.
    pub holdoff: Duration,
    /// REACHABLE_TIME; the time used is random between half of it and one and a half (RFC 4861, 6.3.2).
    pub reachable: Duration,
}

impl Config {
    /// Makes the default configuration for the adapter with this MAC.
    #[must_use]
    pub const fn new(mac: Mac, seed: u64) -> Self {
        Self {
            mac,
            seed,
            detection: Detection::Optimistic,
            addresses: MOST_ADDRESSES,
            neighbours: 1_024,
            frames: 256,
            events: 4_096,
            asks_per_second: 256,
            answers_per_second: 256,
            echoes_per_second: 64,
            holdoff: Duration::from_secs(3),
            reachable: Duration::from_secs(30),
        }
    }
}

/// Time between two requests to one neighbour: RETRANS_TIMER (RFC 4861, 10). ARP is not repeated more often, either
/// (RFC 1122, 2.3.2.1).
pub(crate) const RETRANS_TIMER: Duration = Duration::from_secs(1);
/// MAX_MULTICAST_SOLICIT (RFC 4861, 10); for ARP, broadcast requests.
pub(crate) const MAX_MULTICAST_SOLICIT: u8 = 3;
/// MAX_UNICAST_SOLICIT (RFC 4861, 10).
pub(crate) const MAX_UNICAST_SOLICIT: u8 = 3;
/// DELAY_FIRST_PROBE_TIME (RFC 4861, 10).
pub(crate) const DELAY_FIRST_PROBE: Duration = Duration::from_secs(5);

/// PROBE_WAIT: longest time before the first probe for an IPv4 address (RFC 5227, 1.1).
pub(crate) const PROBE_WAIT: Duration = Duration::from_secs(1);
/// PROBE_NUM (RFC 5227, 1.1).
pub(crate) const PROBE_NUM: u8 = 3;
/// PROBE_MIN and PROBE_MAX: time between two probes (RFC 5227, 1.1).
pub(crate) const PROBE_INTERVAL: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(2)];
/// ANNOUNCE_WAIT: time after the last probe (RFC 5227, 1.1).
pub(crate) const ANNOUNCE_WAIT: Duration = Duration::from_secs(2);
/// ANNOUNCE_NUM (RFC 5227, 1.1).
pub(crate) const ANNOUNCE_NUM: u8 = 2;
/// ANNOUNCE_INTERVAL (RFC 5227, 1.1).
pub(crate) const ANNOUNCE_INTERVAL: Duration = Duration::from_secs(2);
/// DEFEND_INTERVAL: an address is defended at most once in this time (RFC 5227, 1.1).
pub(crate) const DEFEND_INTERVAL: Duration = Duration::from_secs(10);

/// MAX_RTR_SOLICITATION_DELAY: longest time before the first solicitation for an IPv6 address (RFC 4862, 5.4.2).
pub(crate) const MAX_RTR_SOLICITATION_DELAY: Duration = Duration::from_secs(1);
/// DupAddrDetectTransmits (RFC 4862, 5.1).
pub(crate) const DUP_ADDR_DETECT_TRANSMITS: u8 = 1;
/// MAX_NEIGHBOR_ADVERTISEMENT: number of times a change is announced (RFC 4861, 7.2.6 and 10).
pub(crate) const MAX_NEIGHBOR_ADVERTISEMENT: u8 = 3;
/// Longest random delay of an announcement beyond its interval, so that adapters that started together do not send
/// together.
pub(crate) const ANNOUNCE_JITTER: Duration = Duration::from_millis(500);

/// Robustness Variable: number of times a change of groups is reported (RFC 3810, 9.1).
pub(crate) const ROBUSTNESS: u8 = 2;
/// Unsolicited Report Interval: time within which a report is repeated (RFC 3810, 9.11).
pub(crate) const UNSOLICITED_REPORT_INTERVAL: Duration = Duration::from_secs(1);
