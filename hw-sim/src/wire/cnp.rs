//! Congestion notification packets (RoCE v2 annex A17, section 17.9.3): a BTH with an opcode of its own and BECN set,
//! and sixteen zero bytes. Their only content is the queue pair that is to slow down.

use super::bytes::{low24, put};
use super::icrc;
use super::{BthPacket, BthRepr, DEFAULT_PKEY, EthRepr, Link, Network, WireError};

/// Opcode of a notification, outside of all transports.
pub const CNP: u8 = 0x81;
const RESERVED_BYTES: usize = 16;
const BECN: u8 = 0x40;

/// Writes a notification as an Ethernet frame without FCS. Lengths in `network` are set here.
#[must_use]
pub fn emit_cnp(eth: &EthRepr, network: &Network, dest_qpn: u32) -> Vec<u8> {
    let (mut eth, mut network) = (*eth, *network);
    // CAST: 32.
    let transport = BthRepr::BYTES + RESERVED_BYTES + icrc::BYTES;
    network.set_transport_len(u16::try_from(transport).unwrap_or(u16::MAX));
    eth.ethertype = network.ethertype();
    let start = eth.buffer_len();
    let bth = start + network.buffer_len();
    let mut frame = vec![0; bth + transport];
    eth.emit(&mut frame);
    network.emit(&mut frame[start..]);
    frame[bth] = CNP;
    put(&mut frame, bth + 2, DEFAULT_PKEY.to_be_bytes());
    frame[bth + 4] = BECN;
    put(&mut frame, bth + 5, low24(dest_qpn));
    let end = frame.len() - icrc::BYTES;
    // Never `None`: all the headers lie before `end`.
    let crc = icrc::compute(network.encapsulation(), &frame[start..end]).unwrap_or_default();
    put(&mut frame, end, crc);
    frame
}

/// Returns the queue pair that a notification names. The caller has found the opcode in a frame whose other headers
/// are valid.
///
/// # Errors
/// [`WireError`]: the frame is no notification, or ends too early.
pub fn parse_cnp(frame: &[u8]) -> Result<u32, WireError> {
    let eth = EthRepr::parse(frame)?;
    let packet = &frame[eth.buffer_len()..];
    let (_, headers, transport) = Network::parse(eth.ethertype, packet)?;
    let whole = packet.get(headers..headers + transport);
    let bth = BthPacket::new_checked(whole.ok_or(WireError::Truncated("packet"))?)?;
    if bth.opcode() != CNP || !bth.becn() {
        return Err(WireError::Opcode(bth.opcode()));
    }
    Ok(bth.dest_qpn())
}

/// Returns the Ethernet header of a link, which alone carries notifications.
pub(crate) const fn ethernet(link: &Link) -> Option<&EthRepr> {
    match link {
        Link::Ethernet(eth) => Some(eth),
        Link::InfiniBand(_) => None,
    }
}
