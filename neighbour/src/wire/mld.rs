//! Multicast listener discovery, version 2 (RFC 3810): snooping switches forward a group only to ports where it was
//! reported.

use std::net::Ipv6Addr;
use std::time::Duration;

use smoltcp::wire::{
    Icmpv6Message, Icmpv6Packet, MldAddressRecord, MldAddressRecordRepr, MldRecordType,
};

use super::ipv6::{Around, Out};
use super::{Message, Query};
use crate::address::{Mac, Vlan};
use crate::counters::Refusal;

/// The group of all MLDv2 routers (RFC 3810, 5.2.14).
const ROUTERS: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 0x16);
/// Hop-by-hop options before ICMPv6 (58): the router alert of MLD (RFC 2711, 2.1), and two bytes of padding.
const ALERT: [u8; 8] = [58, 0, 5, 2, 0, 0, 1, 0];
/// Length of a report's header; the number of records is in its last two bytes (RFC 3810, 5.2).
const REPORT_BYTES: usize = 8;
/// Length of a record without sources (RFC 3810, 5.2).
const RECORD_BYTES: usize = 20;
/// Maximum number of records in a packet. Beside 40 bytes of header, 8 of options and 8 of report 72 would fit; 64 is
/// a round number.
pub(crate) const MOST_RECORDS: usize = 64;

/// Parses a query of MLDv2 from the link (RFC 3810, 5.1.14, 6.2 and 8.1).
pub(crate) fn query<'a>(
    around: &Around,
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

/// Returns the delay of a maximum response code, which is in milliseconds and a float from 32,768 on (RFC 3810,
/// 5.1.3).
fn delay(code: u16) -> Duration {
    let milliseconds = if code < 0x8000 {
        u32::from(code)
    } else {
        u32::from(code & 0x0fff | 0x1000) << ((code >> 12 & 7) + 3)
    };
    Duration::from_millis(milliseconds.into())
}

/// Kind of a group's record in a report (RFC 3810, 5.2.12).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Record {
    /// We listen: the answer to a query.
    Listening,
    /// We listen from now on.
    Joined,
    /// We no longer listen.
    Left,
}

/// Makes a report of ours. `source` is link-local, or unspecified while there is no such address (RFC 3810, 5.2.13).
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
