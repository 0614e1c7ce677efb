//! Large sends: one WQE, many frames (opcode LSO).
//!
//! The inline headers of the WQE become the headers of every frame. The data is divided into pieces of `mss` bytes.
//! From frame to frame the IPv4 identification is incremented and TCP's sequence number advances. FIN and PSH are set
//! in the last frame only, CWR in the first only. Length fields have each frame's own length. UDP is segmented the same
//! way; each frame is a datagram of its own (Linux `mlx5e_udp_gso_handle_tx_skb`).

use super::checksum;
use crate::wire::frame::{Headers, IpVersion, Protocol};

/// FIN and PSH, in TCP's flags byte.
const LAST_ONLY: u8 = 0x01 | 0x08;
/// CWR, in TCP's flags byte.
const FIRST_ONLY: u8 = 0x80;

/// Offloads that the Ethernet segment requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offload {
    /// True if the device computes the IPv4 header's checksum.
    pub network: bool,
    /// True if the device computes TCP's or UDP's checksum.
    pub transport: bool,
}

/// Divides `data` into frames that each begin with `header`. Returns `None` if the header does not end with a TCP or
/// UDP header, or if `mss` is 0.
pub fn segment(header: &[u8], data: &[u8], mss: usize, offload: Offload) -> Option<Vec<Vec<u8>>> {
    let headers = Headers::of(header)?;
    let transport = located(header, &headers)?;
    if mss == 0 || transport.at + transport.header_bytes != header.len() {
        return None;
    }
    let pieces = data.len().div_ceil(mss).max(1);
    let frames = (0..pieces).map(|index| {
        let from = index * mss;
        let piece = &data[from..data.len().min(from + mss)];
        let mut frame = Vec::with_capacity(header.len() + piece.len());
        frame.extend_from_slice(header);
        frame.extend_from_slice(piece);
        adjust(&mut frame, &transport, index, from, index + 1 == pieces);
        checksum::fill(&mut frame, offload.network, offload.transport);
        frame
    });
    Some(frames.collect())
}

/// Offsets of the header fields that change from frame to frame.
struct Located {
    version: IpVersion,
    ip_at: usize,
    at: usize,
    header_bytes: usize,
    tcp: bool,
}

/// Locates the headers of a large send by their types, because their length fields hold the total length or zero.
fn located(header: &[u8], headers: &Headers) -> Option<Located> {
    let ip = headers.ip?;
    let mut whole = header.to_vec();
    // CAST: a WQE's inline headers are shorter than 64 KiB.
    let behind = u16::try_from(header.len() - ip.at).unwrap_or(u16::MAX);
    match ip.version {
        IpVersion::V4 => put(&mut whole, ip.at + 2, behind),
        IpVersion::V6 => put(&mut whole, ip.at + 4, behind.saturating_sub(40)),
    }
    let transport = Headers::of(&whole)?.transport?;
    Some(Located {
        version: ip.version,
        ip_at: ip.at,
        at: transport.at,
        header_bytes: transport.header_bytes,
        tcp: matches!(transport.protocol, Protocol::Tcp { .. }),
    })
}

fn adjust(frame: &mut [u8], located: &Located, index: usize, from: usize, last: bool) {
    let behind_ip = frame.len() - located.ip_at;
    // CAST: a frame is shorter than 64 KiB. Fields that wrap are computed modulo 2^16 and 2^32.
    let short = |value: usize| u16::try_from(value & 0xffff).unwrap_or(0);
    match located.version {
        IpVersion::V4 => {
            put(frame, located.ip_at + 2, short(behind_ip));
            let first = get(frame, located.ip_at + 4);
            put(frame, located.ip_at + 4, first.wrapping_add(short(index)));
        }
        IpVersion::V6 => put(frame, located.ip_at + 4, short(behind_ip - 40)),
    }
    let at = located.at;
    if !located.tcp {
        let length = short(frame.len() - at);
        put(frame, at + 4, length);
        return;
    }
    let sequence = u32::from(get(frame, at + 4)) << 16 | u32::from(get(frame, at + 6));
    let advance = u32::try_from(from).unwrap_or(u32::MAX);
    frame[at + 4..at + 8].copy_from_slice(&sequence.wrapping_add(advance).to_be_bytes());
    if !last {
        frame[at + 13] &= !LAST_ONLY;
    }
    if index > 0 {
        frame[at + 13] &= !FIRST_ONLY;
    }
}

fn get(frame: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([frame[at], frame[at + 1]])
}

fn put(frame: &mut [u8], at: usize, value: u16) {
    frame[at..at + 2].copy_from_slice(&value.to_be_bytes());
}
