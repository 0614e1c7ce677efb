//! Parsing and building of frames.
//!
//! [`ethernet`] parses the header of a frame. [`parse`] parses its message, and makes every check that needs no state.
//! The other files parse and build one protocol each. smoltcp's wire layer has the fields and the checksums; the legal
//! values of a field are checked here.
//!
//! Received bytes come from untrusted senders. Lengths are checked before anything is read, nothing is stored, and
//! nothing is allocated.

pub(crate) mod arp;
pub(crate) mod echo;
pub(crate) mod ethernet;
pub(crate) mod icmpv6;
pub(crate) mod ipv4;
pub(crate) mod ipv6;
pub(crate) mod mld;
pub(crate) mod ndisc;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use smoltcp::wire::EthernetProtocol;

use crate::address::Mac;
use crate::counters::Refusal;
use ethernet::Link;

/// A received message of a kind that we handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Message<'a> {
    Arp(Arp),
    Solicitation(Solicitation),
    Advertisement(Advertisement),
    Echo(Echo<'a>),
    EchoReply(Echo<'a>),
    Query(Query),
}

/// An ARP packet for IPv4 on Ethernet (RFC 826).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Arp {
    /// True for a reply, false for a request.
    pub(crate) reply: bool,
    pub(crate) sender_mac: Mac,
    /// Address of the sender; 0.0.0.0 in a probe (RFC 5227, 2.1.1).
    pub(crate) sender: Ipv4Addr,
    pub(crate) target: Ipv4Addr,
}

/// A received neighbour solicitation that passed the checks of RFC 4861, 7.1.1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Solicitation {
    /// Source address; unspecified if the sender detects duplicates.
    pub(crate) source: Ipv6Addr,
    pub(crate) target: Ipv6Addr,
    /// MAC in the source link-layer address option.
    pub(crate) mac: Option<Mac>,
}

/// A received neighbour advertisement that passed the checks of RFC 4861, 7.1.2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Advertisement {
    pub(crate) destination: Ipv6Addr,
    pub(crate) target: Ipv6Addr,
    pub(crate) solicited: bool,
    /// MAC in the target link-layer address option.
    pub(crate) mac: Option<Mac>,
}

/// An echo request, or the reply to one (RFC 792; RFC 4443, 4.1 and 4.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Echo<'a> {
    pub(crate) source: IpAddr,
    pub(crate) destination: IpAddr,
    pub(crate) identifier: u16,
    pub(crate) sequence: u16,
    pub(crate) data: &'a [u8],
}

/// An MLDv2 query for one group, or for all groups (RFC 3810, 5.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Query {
    /// Group of the query; unspecified for all groups.
    pub(crate) group: Ipv6Addr,
    /// Time within which we must answer.
    pub(crate) within: Duration,
}

/// Parses the message in the payload of a frame.
pub(crate) fn parse<'a>(link: &Link, payload: &'a [u8]) -> Result<Message<'a>, Refusal> {
    match link.protocol {
        EthernetProtocol::Arp => arp::parse(payload).map(Message::Arp),
        EthernetProtocol::Ipv4 => ipv4::parse(payload),
        EthernetProtocol::Ipv6 => ipv6::parse(payload),
        EthernetProtocol::Unknown(_) => Err(Refusal::Kind),
    }
}
