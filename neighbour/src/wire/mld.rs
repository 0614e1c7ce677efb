//! Multicast listener discovery, version 2 (RFC 3810). A snooping switch forwards a group only to ports on which the
//! group was reported.

use std::net::Ipv6Addr;
use std::time::Duration;

use smoltcp::wire::{
    Icmpv6Message, Icmpv6Packet, MldAddressRecord, MldAddressRecordRepr, MldRecordType,
};

use super::icmpv6::{Out, ReceivedHeaders};
use super::{Message, Query};
use crate::address::{Mac, Vlan};
use crate::counters::Refusal;

/// The group of all MLDv2 routers (RFC 3810, 5.2.14).
const ROUTERS: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 0x16);
/// Hop-by-hop options before ICMPv6 (58): the router alert of MLD (RFC 2711, 2.1), and two bytes of padding.
const ALERT: [u8; 8] = [58, 0, 5, 2, 0, 0, 1, 0];
/// Length of a report's header in bytes. Its last two bytes are the number of records (RFC 3810, 5.2).
const REPORT_BYTES: usize = 8;
/// Length of a record without sources, in bytes (RFC 3810, 5.2).
const RECORD_BYTES: usize = 20;
/// Maximum number of records in a packet. A packet of 1,500 bytes has room for 72 after 40 bytes of IPv6 header, 8 of
/// options and 8 of report header; 64 is a round number.
pub(crate) const MOST_RECORDS: usize = 64;

/// Longest delay that a query can name: that of the maximum response code 0xffff (RFC 3810, 5.1.3).
pub(crate) const LONGEST_DELAY: Duration = Duration::from_millis(0x1fff << 10);

/// Parses an MLDv2 query. Refuses a query that does not come from a node on the link (RFC 3810, 5.1.14, 6.2 and 8.1).
pub(crate) fn query<'a>(
    around: &ReceivedHeaders,
    icmp: Icmpv6Packet<&'a [u8]>,
) -> Result<Message<'a>, Refusal> {
    if around.hop_limit != 1 || !around.alert {
        return Err(Refusal::HopLimit);
    }
    if !around.source.is_unicast_link_local() {
        return Err(Refusal::Sender);
    }
    Ok(Message::Query(Query {
        group: icmp.mcast_addr(),
        within: delay(icmp.max_resp_code()),
    }))
}

/// Returns the delay that a maximum response code stands for. The code is in milliseconds; from 32,768 on it is a
/// floating-point value (RFC 3810, 5.1.3).
fn delay(code: u16) -> Duration {
    let milliseconds = if code < 0x8000 {
        u32::from(code)
    } else {
        u32::from(code & 0x0fff | 0x1000) << ((code >> 12 & 7) + 3)
    };
    Duration::from_millis(milliseconds.into())
}

/// Type of a group's record in a report (RFC 3810, 5.2.12).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Record {
    /// We are in the group: the record in the answer to a query.
    Listening,
    /// We have joined the group.
    Joined,
    /// We have left the group.
    Left,
}

/// Makes the frame of a report. `source` is a link-local address of ours, or unspecified if we have none
/// (RFC 3810, 5.2.13).
pub(crate) fn report(
    source: Ipv6Addr,
    records: &[(Ipv6Addr, Record)],
    mac: Mac,
    vlan: Option<Vlan>,
) -> Vec<u8> {
    let around = Out {
        source,
        destination: ROUTERS,
        hop_limit: 1,
        options: &ALERT,
    };
    let bytes = REPORT_BYTES + records.len() * RECORD_BYTES;
    around.emit(mac, None, vlan, bytes, |icmp| {
        icmp.set_msg_type(Icmpv6Message::MldReport);
        icmp.set_msg_code(0);
        icmp.clear_reserved();
        icmp.set_nr_mcast_addr_rcrds(u16::try_from(records.len()).expect("fits a frame"));
        let places = icmp.payload_mut().chunks_exact_mut(RECORD_BYTES);
        for (place, &(group, record)) in places.zip(records) {
            let kind = match record {
                Record::Listening => MldRecordType::ModeIsExclude,
                Record::Joined => MldRecordType::ChangeToExclude,
                Record::Left => MldRecordType::ChangeToInclude,
            };
            MldAddressRecordRepr::new(kind, group)
                .emit(&mut MldAddressRecord::new_unchecked(place));
        }
    })
}
