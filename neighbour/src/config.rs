//! What a caller may choose, and the constants that are the protocols'.

use std::time::Duration;

use crate::address::Mac;

/// The most addresses that a caller may allow: with as many, a report of all groups still fits a frame.
pub(crate) const MOST_ADDRESSES: usize = 64;

/// How an address of ours is looked for on the network before, or while, it is ours.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Detection {
    /// Not at all: no DupAddrDetectTransmits (RFC 4862, 5.1).
    Never,
    /// The address serves at once. IPv6 is asked for at the same time (RFC 4429); IPv4 is announced, and conflicts are
    /// heard for good (RFC 5227, 2.4).
    #[default]
    Optimistic,
    /// The address serves when nobody has said that it is taken: RFC 5227, 2.1, after five to eight seconds; RFC 4862,
    /// 5.4, after one to two.
    First,
}

/// A neighbour module's bounds, and how patient it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Our MAC: that of one station.
    pub mac: Mac,
    /// What every delay that is drawn comes from. Two adapters want two.
    pub seed: u64,
    /// How our addresses are looked for before they are ours.
    pub detection: Detection,
    /// Most addresses of ours; never more than 64.
    pub addresses: usize,
    /// Most neighbours that are known by asking. The one that was idle for longest makes room.
    pub neighbours: usize,
    /// Most frames that wait for [`next_frame`](crate::Neighbours::next_frame). Answers take half of it, echoes a
    /// quarter.
    pub frames: usize,
    /// Most events that wait for [`next_event`](crate::Neighbours::next_event). The oldest is lost.
    pub events: usize,
    /// Questions a second, over all neighbours; as many at once after a pause.
    pub asks_per_second: u32,
    /// Answers a second to those who ask for us; as many at once after a pause.
    pub answers_per_second: u32,
    /// Echoes a second; as many at once after a pause.
    pub echoes_per_second: u32,
    /// For how long a neighbour that did not answer is not asked again.
    pub holdoff: Duration,
    /// REACHABLE_TIME, of which a half to one and a half is drawn (RFC 4861, 6.3.2).
    pub reachable: Duration,
}

impl Config {
    /// The defaults, for the adapter with this MAC.
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

/// Between two questions to one neighbour: RETRANS_TIMER (RFC 4861, 10). ARP is not asked more often, either (RFC 1122,
/// 2.3.2.1).
pub(crate) const RETRANS_TIMER: Duration = Duration::from_secs(1);
/// MAX_MULTICAST_SOLICIT (RFC 4861, 10); for ARP, by broadcast.
pub(crate) const MAX_MULTICAST_SOLICIT: u8 = 3;
/// MAX_UNICAST_SOLICIT (RFC 4861, 10).
pub(crate) const MAX_UNICAST_SOLICIT: u8 = 3;
/// DELAY_FIRST_PROBE_TIME (RFC 4861, 10).
pub(crate) const DELAY_FIRST_PROBE: Duration = Duration::from_secs(5);

/// PROBE_WAIT: the first probe for an address of IPv4 comes within this (RFC 5227, 1.1).
pub(crate) const PROBE_WAIT: Duration = Duration::from_secs(1);
/// PROBE_NUM (RFC 5227, 1.1).
pub(crate) const PROBE_NUM: u8 = 3;
/// PROBE_MIN and PROBE_MAX: between two of them (RFC 5227, 1.1).
pub(crate) const PROBE_INTERVAL: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(2)];
/// ANNOUNCE_WAIT: after the last of them (RFC 5227, 1.1).
pub(crate) const ANNOUNCE_WAIT: Duration = Duration::from_secs(2);
/// ANNOUNCE_NUM (RFC 5227, 1.1).
pub(crate) const ANNOUNCE_NUM: u8 = 2;
/// ANNOUNCE_INTERVAL (RFC 5227, 1.1).
pub(crate) const ANNOUNCE_INTERVAL: Duration = Duration::from_secs(2);
/// DEFEND_INTERVAL: one defence of an address in this (RFC 5227, 1.1).
pub(crate) const DEFEND_INTERVAL: Duration = Duration::from_secs(10);

/// MAX_RTR_SOLICITATION_DELAY: the first question for an address of IPv6 comes within this (RFC 4862, 5.4.2).
pub(crate) const MAX_RTR_SOLICITATION_DELAY: Duration = Duration::from_secs(1);
/// DupAddrDetectTransmits (RFC 4862, 5.1).
pub(crate) const DUP_ADDR_DETECT_TRANSMITS: u8 = 1;
/// MAX_NEIGHBOR_ADVERTISEMENT: how often a change is announced (RFC 4861, 7.2.6 and 10).
pub(crate) const MAX_NEIGHBOR_ADVERTISEMENT: u8 = 3;
/// Announcements do not come sooner than their interval, and up to this later, so that adapters that started together
/// part.
pub(crate) const ANNOUNCE_JITTER: Duration = Duration::from_millis(500);

/// Robustness Variable: how often a change of groups is reported (RFC 3810, 9.1).
pub(crate) const ROBUSTNESS: u8 = 2;
/// Unsolicited Report Interval: within which a report is repeated (RFC 3810, 9.11).
pub(crate) const UNSOLICITED_REPORT_INTERVAL: Duration = Duration::from_secs(1);
