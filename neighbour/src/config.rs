//! Configuration by the caller, and the constants of the protocols.

use std::time::Duration;

use crate::address::Mac;

/// Largest number of addresses that a caller may allow. With this number, a report of all groups still fits in a frame.
pub(crate) const MOST_ADDRESSES: usize = 64;

/// Duplicate detection for an address of ours.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Detection {
    /// No detection: DupAddrDetectTransmits is zero (RFC 4862, 5.1).
    Never,
    /// The address is usable at once. For IPv6, duplicate detection runs at the same time (RFC 4429). An IPv4 address
    /// is announced; from then on, conflicts are detected (RFC 5227, 2.4).
    #[default]
    Optimistic,
    /// The address becomes usable after detection, if no other node has claimed it: for IPv4 after four to seven
    /// seconds (RFC 5227, 2.1), for IPv6 after one to two (RFC 4862, 5.4).
    First,
}

/// Limits and timeouts of the neighbour module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Our MAC, an individual address.
    pub mac: Mac,
    /// Seed of all random delays. Every adapter needs a different seed.
    pub seed: u64,
    /// Duplicate detection for our addresses.
    pub detection: Detection,
    /// Maximum number of our addresses; at most 64.
    pub addresses: usize,
    /// Maximum number of neighbours learnt by requests. When the table is full, a new neighbour replaces the one that
    /// was unused for longest, among those without an outstanding request. Neighbours that are looked up only because a
    /// datagram has come from their address ([`Need::Sender`](crate::Need::Sender)) are strangers. They have at most a
    /// quarter of the table, in which a new one replaces the oldest, and they are the first to be replaced by others.
    pub neighbours: usize,
    /// Maximum number of frames queued for [`next_frame`](crate::Neighbours::next_frame). A reply is queued only while
    /// the queue is less than half full, an echo reply only while the queue is less than a quarter full.
    pub frames: usize,
    /// Maximum number of events queued for [`next_event`](crate::Neighbours::next_event). When the queue is full, a new
    /// event replaces the oldest.
    pub events: usize,
    /// Maximum number of requests per second to all neighbours together that are not strangers. After an idle second,
    /// this number may be sent at once. Strangers have half as many requests of their own.
    pub asks_per_second: u32,
    /// Maximum number of replies per second to requests for our addresses. After an idle second, this number may be
    /// sent at once.
    pub answers_per_second: u32,
    /// Maximum number of echo replies per second. After an idle second, this number may be sent at once.
    pub echoes_per_second: u32,
    /// Time during which we send no further request to a neighbour that did not answer.
    pub holdoff: Duration,
    /// REACHABLE_TIME. The time in use is random, between half of this value and one and a half (RFC 4861, 6.3.2).
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

/// Time between two requests to one neighbour: RETRANS_TIMER (RFC 4861, 10). The limit applies to ARP, too (RFC 1122,
/// 2.3.2.1).
pub(crate) const RETRANS_TIMER: Duration = Duration::from_secs(1);
/// Number of multicast requests: MAX_MULTICAST_SOLICIT (RFC 4861, 10). For ARP, number of broadcast requests.
pub(crate) const MAX_MULTICAST_SOLICIT: u8 = 3;
/// Number of unicast requests: MAX_UNICAST_SOLICIT (RFC 4861, 10).
pub(crate) const MAX_UNICAST_SOLICIT: u8 = 3;
/// Time in `Delay` before the first unicast request: DELAY_FIRST_PROBE_TIME (RFC 4861, 10).
pub(crate) const DELAY_FIRST_PROBE: Duration = Duration::from_secs(5);

/// PROBE_WAIT: longest time before the first probe for an IPv4 address (RFC 5227, 1.1).
pub(crate) const PROBE_WAIT: Duration = Duration::from_secs(1);
/// PROBE_NUM: number of probes (RFC 5227, 1.1).
pub(crate) const PROBE_NUM: u8 = 3;
/// PROBE_MIN and PROBE_MAX: shortest and longest time between two probes (RFC 5227, 1.1).
pub(crate) const PROBE_INTERVAL: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(2)];
/// ANNOUNCE_WAIT: time from the last probe to the first announcement (RFC 5227, 1.1).
pub(crate) const ANNOUNCE_WAIT: Duration = Duration::from_secs(2);
/// ANNOUNCE_NUM: number of announcements (RFC 5227, 1.1).
pub(crate) const ANNOUNCE_NUM: u8 = 2;
/// ANNOUNCE_INTERVAL: time between two announcements (RFC 5227, 1.1).
pub(crate) const ANNOUNCE_INTERVAL: Duration = Duration::from_secs(2);
/// DEFEND_INTERVAL: an address is defended at most once in this time (RFC 5227, 1.1).
pub(crate) const DEFEND_INTERVAL: Duration = Duration::from_secs(10);

/// MAX_RTR_SOLICITATION_DELAY: longest time before the first solicitation for an IPv6 address (RFC 4862, 5.4.2).
pub(crate) const MAX_RTR_SOLICITATION_DELAY: Duration = Duration::from_secs(1);
/// DupAddrDetectTransmits: number of solicitations of duplicate detection (RFC 4862, 5.1).
pub(crate) const DUP_ADDR_DETECT_TRANSMITS: u8 = 1;
/// MAX_NEIGHBOR_ADVERTISEMENT: number of times that a change is announced (RFC 4861, 7.2.6 and 10).
pub(crate) const MAX_NEIGHBOR_ADVERTISEMENT: u8 = 3;
/// Longest random delay that is added to the interval of announcements. Adapters that started together therefore do
/// not send together.
pub(crate) const ANNOUNCE_JITTER: Duration = Duration::from_millis(500);

/// Robustness Variable: number of times that a change of groups is reported (RFC 3810, 9.1).
pub(crate) const ROBUSTNESS: u8 = 2;
/// Unsolicited Report Interval: time within which a report is repeated (RFC 3810, 9.11).
pub(crate) const UNSOLICITED_REPORT_INTERVAL: Duration = Duration::from_secs(1);
