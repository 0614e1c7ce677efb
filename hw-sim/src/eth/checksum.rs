//! Internet checksums: computed for sent frames, checked and summed for received frames.
//!
//! A send WQE requests the checksum of the IPv4 header, and that of TCP or UDP, by one bit each. The field's previous
//! content is ignored (drivers leave the pseudo header's sum in it). For a received frame the CQE reports whether the
//! IP header and the transport checksum are good. The CQE also carries the one's complement sum of the IP packet.
//! Software uses this sum to check the checksums of protocols that the device does not know (RFC 1071).

use crate::wire::frame::{Headers, Ip, IpVersion, Protocol, TCP, UDP};
use crate::wire::ones_complement_sum;

/// Writes the requested checksums into a frame, if the frame has these headers.
pub fn fill(frame: &mut [u8], network: bool, transport: bool) {
    let Some(headers) = Headers::of(frame) else {
        return;
    };
    let Some(ip) = headers.ip else {
        return;
    };
    if network && ip.version == IpVersion::V4 {
        put(frame, ip.at + 10, 0);
        let sum = ones_complement_sum(&frame[ip.at..ip.at + ip.header_bytes]);
        put(frame, ip.at + 10, !sum);
    }
    if let Some(found) = headers.transport
        && transport
    {
        put(frame, found.checksum_at(), 0);
        let sum = !transport_sum(frame, &ip);
        // In UDP, the value zero means that there is no checksum (RFC 768).
        let sum = if sum == 0 && found.protocol == Protocol::Udp {
            0xffff
        } else {
            sum
        };
        put(frame, found.checksum_at(), sum);
    }
}

/// Checksum fields of a received frame's CQE.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Verdict {
    /// True if the frame has a whole IP packet and, for IPv4, a correct header checksum.
    pub network_ok: bool,
    /// True if the frame has a TCP or UDP header whose checksum is correct or was not sent.
    pub transport_ok: bool,
    /// One's complement sum of the IP packet without padding; 0 if the frame has no IP packet. With the capability
    /// `cqe_checksum_full`: sum of everything after the Ethernet header.
    pub sum: u16,
}

impl Verdict {
    /// Checks a frame. With `all` the sum covers everything after the Ethernet header, otherwise the IP packet.
    pub fn of(frame: &[u8], headers: &Headers, all: bool) -> Self {
        let sum_of_all = || {
            frame
                .get(headers.payload_at..)
                .map_or(0, ones_complement_sum)
        };
        let Some(ip) = headers.ip else {
            return Self {
                sum: if all { sum_of_all() } else { 0 },
                ..Self::default()
            };
        };
        let network_ok = ip.whole
            && (ip.version == IpVersion::V6
                || ones_complement_sum(&frame[ip.at..ip.at + ip.header_bytes]) == 0xffff);
        let transport_ok = ip.whole
            && headers.transport.is_some_and(|found| {
                let unsent = found.protocol == Protocol::Udp
                    && ip.version == IpVersion::V4
                    && frame[found.checksum_at()..].starts_with(&[0, 0]);
                unsent || transport_sum(frame, &ip) == 0xffff
            });
        Self {
            network_ok,
            transport_ok,
            sum: if all {
                sum_of_all()
            } else {
                ones_complement_sum(&frame[ip.at..ip.end])
            },
        }
    }
}

/// Returns the sum over pseudo header, transport header and data.
fn transport_sum(frame: &[u8], ip: &Ip) -> u16 {
    debug_assert!(matches!(ip.protocol, TCP | UDP));
    let data = &frame[ip.at + ip.header_bytes..ip.end];
    // CAST: an IP packet has at most 64 KiB, plus the IPv6 header.
    let length = u32::try_from(data.len()).unwrap_or(u32::MAX);
    let mut pseudo = [0; 40];
    pseudo[..16].copy_from_slice(&ip.src);
    pseudo[16..32].copy_from_slice(&ip.dst);
    pseudo[32..36].copy_from_slice(&length.to_be_bytes());
    pseudo[39] = ip.protocol;
    add(ones_complement_sum(&pseudo), ones_complement_sum(data))
}

const fn add(a: u16, b: u16) -> u16 {
    let (sum, carry) = a.overflowing_add(b);
    sum + carry as u16
}

fn put(frame: &mut [u8], at: usize, value: u16) {
    frame[at..at + 2].copy_from_slice(&value.to_be_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The sum of the eight bytes in the example of RFC 1071, section 3, is the RFC's.
    #[test]
    fn the_sum_is_that_of_the_rfcs_example() {
        let sum = ones_complement_sum(&[0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7]);
        assert_eq!(sum, 0xddf2);
    }

    /// The SYN in frame 1 of Wireshark's sample capture `http.cap` (SampleCaptures).
    const SYN: &str = "feff200001000000010000000800450000300f4140008006 91eb91fea0ed41d0e4df\
        0d2c005038affe1300000000700222 38c30c0000020405b401010402";

    fn captured() -> Vec<u8> {
        let hex: Vec<u8> = SYN.bytes().filter(u8::is_ascii_hexdigit).collect();
        hex.as_chunks::<2>()
            .0
            .iter()
            .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap())
            .collect()
    }

    #[test]
    fn a_captured_packet_is_good_and_comes_out_the_same() {
        let frame = captured();
        let headers = Headers::of(&frame).unwrap();
        let verdict = Verdict::of(&frame, &headers, false);
        assert!(verdict.network_ok && verdict.transport_ok, "{verdict:?}");
        let mut filled = frame.clone();
        filled[24] ^= 0x5a;
        filled[50] ^= 0xa5;
        let damaged = Verdict::of(&filled, &headers, false);
        assert!(!damaged.network_ok && !damaged.transport_ok, "{damaged:?}");
        fill(&mut filled, true, true);
        assert_eq!(filled, frame);
    }
}
