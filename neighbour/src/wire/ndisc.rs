//! Neighbour solicitations and advertisements (RFC 4861, 4.3, 4.4 and 7.1).

use std::net::Ipv6Addr;

use smoltcp::wire::{EthernetAddress, Icmpv6Packet, NdiscNeighborFlags, NdiscRepr};

use super::icmpv6::{Out, ReceivedHeaders};
use super::{Advertisement, Message, Solicitation};
use crate::address::{Mac, Vlan, is_station, solicited_node};
use crate::counters::Refusal;

/// Hop limit of neighbour discovery. A received 255 proves that no router has forwarded the message (RFC 4861, 7.1).
const HOP_LIMIT: u8 = 255;
/// Unit of an option's length, in bytes (RFC 4861, 4.6).
const UNIT_BYTES: usize = 8;
const SOURCE_LINK_LAYER_ADDRESS: u8 = 1;
const TARGET_LINK_LAYER_ADDRESS: u8 = 2;

/// Parses a solicitation, with the checks of RFC 4861, 7.1.1.
pub(crate) fn solicitation<'a>(
    around: &ReceivedHeaders,
    icmp: Icmpv6Packet<&'a [u8]>,
) -> Result<Message<'a>, Refusal> {
    let target = target(around, &icmp)?;
    let mac = link_layer_address(icmp.payload(), SOURCE_LINK_LAYER_ADDRESS)?;
    let detects = around.source.is_unspecified();
    if detects && (mac.is_some() || around.destination != solicited_node(target)) {
        return Err(Refusal::Malformed);
    }
    Ok(Message::Solicitation(Solicitation {
        source: around.source,
        target,
        mac,
    }))
}

/// Parses an advertisement, with the checks of RFC 4861, 7.1.2.
pub(crate) fn advertisement<'a>(
    around: &ReceivedHeaders,
    icmp: Icmpv6Packet<&'a [u8]>,
) -> Result<Message<'a>, Refusal> {
    let target = target(around, &icmp)?;
    let mac = link_layer_address(icmp.payload(), TARGET_LINK_LAYER_ADDRESS)?;
    let solicited = icmp
        .neighbor_flags()
        .contains(NdiscNeighborFlags::SOLICITED);
    if around.source.is_unspecified() {
        return Err(Refusal::Sender);
    }
    if solicited && around.destination.is_multicast() {
        return Err(Refusal::Malformed);
    }
    Ok(Message::Advertisement(Advertisement {
        destination: around.destination,
        target,
        solicited,
        mac,
    }))
}

/// Returns the target address of a solicitation or advertisement. Checks that no router has forwarded the message, and
/// that the target is a unicast address.
fn target(around: &ReceivedHeaders, icmp: &Icmpv6Packet<&[u8]>) -> Result<Ipv6Addr, Refusal> {
    if around.hop_limit != HOP_LIMIT {
        return Err(Refusal::HopLimit);
    }
    let target = icmp.target_addr();
    if target.is_multicast() || target.is_unspecified() || target.is_loopback() {
        return Err(Refusal::Malformed);
    }
    Ok(target)
}

/// Returns the MAC in the option of the wanted kind. Skips other options. Refuses the message if any option has length
/// zero (RFC 4861, 4.6).
///
/// smoltcp's own parser is not used: it refuses a message if an option of another kind is shorter than it expects.
fn link_layer_address(mut options: &[u8], wanted: u8) -> Result<Option<Mac>, Refusal> {
    let mut found = None;
    while let [kind, units, ..] = *options {
        let bytes = usize::from(units) * UNIT_BYTES;
        if bytes == 0 {
            return Err(Refusal::Malformed);
        }
        let (option, behind) = options.split_at_checked(bytes).ok_or(Refusal::Malformed)?;
        // On Ethernet the link-layer address option is one unit long (RFC 2464, 6).
        if kind == wanted
            && let [_, _, a, b, c, d, e, f] = *option
        {
            let mac = [a, b, c, d, e, f];
            if !is_station(mac) {
                return Err(Refusal::Sender);
            }
            found = Some(mac);
        }
        options = behind;
    }
    match options {
        [] => Ok(found),
        _ => Err(Refusal::Malformed),
    }
}

/// Makes the frame of a solicitation from `source`. The destination is the target at the MAC `to`, or the target's
/// solicited-node group if `to` is `None`. The solicitation contains our MAC, unless the source is unspecified
/// (RFC 4861, 4.3).
pub(crate) fn ask(
    source: Ipv6Addr,
    target: Ipv6Addr,
    to: Option<Mac>,
    mac: Mac,
    vlan: Option<Vlan>,
) -> Vec<u8> {
    let destination = to.map_or_else(|| solicited_node(target), |_| target);
    let lladdr = (!source.is_unspecified()).then(|| EthernetAddress(mac).into());
    let message = NdiscRepr::NeighborSolicit {
        target_addr: target,
        lladdr,
    };
    emit(source, destination, to, mac, vlan, message)
}

/// Sender of the solicitation that our advertisement answers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Solicitor {
    pub(crate) address: Ipv6Addr,
    pub(crate) mac: Mac,
}

/// Makes the frame of an advertisement: to `asker`, or to all nodes if `asker` is `None`. The router flag is not set,
/// because we do not forward packets.
pub(crate) fn say(
    target: Ipv6Addr,
    asker: Option<Solicitor>,
    overrides: bool,
    mac: Mac,
    vlan: Option<Vlan>,
) -> Vec<u8> {
    let mut flags = NdiscNeighborFlags::empty();
    flags.set(NdiscNeighborFlags::SOLICITED, asker.is_some());
    flags.set(NdiscNeighborFlags::OVERRIDE, overrides);
    let message = NdiscRepr::NeighborAdvert {
        flags,
        target_addr: target,
        lladdr: Some(EthernetAddress(mac).into()),
    };
    let destination = asker.map_or(crate::address::ALL_NODES, |asker| asker.address);
    emit(
        target,
        destination,
        asker.map(|asker| asker.mac),
        mac,
        vlan,
        message,
    )
}

fn emit(
    source: Ipv6Addr,
    destination: Ipv6Addr,
    to: Option<Mac>,
    mac: Mac,
    vlan: Option<Vlan>,
    message: NdiscRepr<'_>,
) -> Vec<u8> {
    let around = Out {
        source,
        destination,
        hop_limit: HOP_LIMIT,
        options: &[],
    };
    around.emit(mac, to, vlan, message.buffer_len(), |icmp| {
        message.emit(icmp);
    })
}
