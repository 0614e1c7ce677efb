//! Congestion notification packets (CNP; RoCE v2 annex A17, section 17.9.3). A CNP has a BTH with its own opcode and
//! BECN set, and sixteen zero bytes. Its only content is the number of the queue pair that has to slow down.

use super::bytes::{low24, put};
use super::icrc;
use super::{BthPacket, BthRepr, DEFAULT_PKEY, EthRepr, Link, Network, Qpn, WireError};

/// Opcode of a CNP, which belongs to no transport.
pub const CNP: u8 = 0x81;
const RESERVED_BYTES: usize = 16;
const BECN: u8 = 0x40;

/// Builds a CNP as an Ethernet frame without FCS. Ignores the lengths in `network`, and writes the correct lengths.
#[must_use]
pub fn emit_cnp(eth: &EthRepr, network: &Network, dest_qpn: Qpn) -> Vec<u8> {
    let (mut eth, mut network) = (*eth, *network);
    // CAST: the value is 32.
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
    put(&mut frame, bth + 5, low24(dest_qpn.get()));
    let end = frame.len() - icrc::BYTES;
    // `compute` never returns `None` here, because all headers are before `end`.
    let crc = icrc::compute(network.encapsulation(), &frame[start..end]).unwrap_or_default();
    put(&mut frame, end, crc);
    frame
}

/// Returns the number of the queue pair that a CNP notifies. The caller has already found the CNP opcode in a frame
/// whose other headers are valid.
///
/// # Errors
/// [`WireError`] if the frame is not a CNP or ends too early.
pub fn parse_cnp(frame: &[u8]) -> Result<Qpn, WireError> {
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

/// Returns the Ethernet header of a link. Only Ethernet frames carry CNPs.
pub(crate) const fn ethernet(link: &Link) -> Option<&EthRepr> {
    match link {
        Link::Ethernet(eth) => Some(eth),
        Link::InfiniBand(_) => None,
    }
}
