//! A whole packet, on Ethernet (RoCE) or InfiniBand.

use std::ops::Range;

use super::bytes::put;
use super::frame::{ETHERTYPE_ROCE_V1, IPV4, IPV6};
use super::icrc::{self, Encapsulation};
use super::{
    BthPacket, BthRepr, Ecn, EthRepr, GrhPacket, GrhRepr, Headers, Ipv4Packet, Ipv4Repr,
    Ipv6Packet, Ipv6Repr, LrhPacket, LrhRepr, Qpn, UdpPacket, UdpRepr, VCRC_BYTES, WireError, vcrc,
};

/// Alignment in bytes of the payload in a frame whose headers are not written yet. Without this alignment, copies of
/// the payload would cross a cache line every fourth time.
const PAYLOAD_ALIGN: usize = 64;

/// Number of bytes that a datagram receive places before the payload.
pub const GRH_AREA_BYTES: usize = 40;

/// Link header of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Link {
    /// Ethernet header. [`Packet::emit`] sets the ethertype.
    Ethernet(EthRepr),
    /// LRH of InfiniBand. [`Packet::emit`] sets the length and the next header.
    InfiniBand(LrhRepr),
}

impl From<EthRepr> for Link {
    fn from(eth: EthRepr) -> Self {
        Self::Ethernet(eth)
    }
}

impl Link {
    const fn buffer_len(&self) -> usize {
        match self {
            Self::Ethernet(eth) => eth.buffer_len(),
            Self::InfiniBand(_) => LrhRepr::BYTES,
        }
    }

    fn emit(&self, out: &mut [u8]) {
        match self {
            Self::Ethernet(eth) => eth.emit(out),
            Self::InfiniBand(lrh) => lrh.emit(out),
        }
    }
}

/// Headers between the link header and the BTH.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Network {
    /// No header: InfiniBand within a subnet.
    Local,
    /// GRH: RoCE v1, or InfiniBand between subnets.
    Grh(GrhRepr),
    /// RoCE v2 over IPv4.
    Ipv4(Ipv4Repr, UdpRepr),
    /// RoCE v2 over IPv6.
    Ipv6(Ipv6Repr, UdpRepr),
}

impl Network {
    /// Returns the ethertype that announces these headers.
    pub const fn ethertype(&self) -> u16 {
        match self {
            Self::Local | Self::Grh(_) => ETHERTYPE_ROCE_V1,
            Self::Ipv4(..) => IPV4,
            Self::Ipv6(..) => IPV6,
        }
    }

    /// Returns the source address as a GID. An IPv4 address becomes `::ffff:a.b.c.d`; without a header the GID is zero.
    pub const fn src_gid(&self) -> [u8; 16] {
        match self {
            Self::Local => [0; 16],
            Self::Grh(grh) => grh.src,
            Self::Ipv4(ip, _) => mapped(ip.src),
            Self::Ipv6(ip, _) => ip.src,
        }
    }

    /// Returns the ECN state. RoCE v1 and InfiniBand have no ECN bits.
    #[must_use]
    pub const fn ecn(&self) -> Ecn {
        match self {
            Self::Local | Self::Grh(_) => Ecn::NotCapable,
            Self::Ipv4(ip, _) => Ecn::of(ip.tos),
            Self::Ipv6(ip, _) => Ecn::of(ip.traffic_class),
        }
    }

    /// Returns the destination address as a GID. Without a header the GID is zero.
    pub const fn dst_gid(&self) -> [u8; 16] {
        match self {
            Self::Local => [0; 16],
            Self::Grh(grh) => grh.dst,
            Self::Ipv4(ip, _) => mapped(ip.dst),
            Self::Ipv6(ip, _) => ip.dst,
        }
    }

    /// Returns the network header in the form in which it is placed before the payload of a received datagram: a GRH or
    /// IPv6 header, or an IPv4 header at the end of the area (annex A17, "UD"). The area exists even without a network
    /// header; its bytes are zero then.
    pub fn grh_area(&self) -> [u8; GRH_AREA_BYTES] {
        let mut area = [0; GRH_AREA_BYTES];
        match self {
            Self::Local => {}
            Self::Grh(grh) => grh.emit(&mut area),
            Self::Ipv4(ip, _) => ip.emit(&mut area[GRH_AREA_BYTES - Ipv4Repr::BYTES..]),
            Self::Ipv6(ip, _) => ip.emit(&mut area),
        }
        area
    }

    pub(super) const fn encapsulation(&self) -> Encapsulation {
        match self {
            Self::Local => Encapsulation::Local,
            Self::Grh(_) => Encapsulation::Grh,
            Self::Ipv4(..) => Encapsulation::Ipv4Udp,
            Self::Ipv6(..) => Encapsulation::Ipv6Udp,
        }
    }

    pub(super) const fn buffer_len(&self) -> usize {
        match self {
            Self::Local => 0,
            Self::Grh(_) => GrhRepr::BYTES,
            Self::Ipv4(..) => Ipv4Repr::BYTES + UdpRepr::BYTES,
            Self::Ipv6(..) => Ipv6Repr::BYTES + UdpRepr::BYTES,
        }
    }

    /// Sets every length field. `bytes` is the number of bytes from the BTH to the ICRC.
    pub(super) fn set_transport_len(&mut self, bytes: u16) {
        match self {
            Self::Local => {}
            Self::Grh(grh) => grh.payload_len = bytes,
            Self::Ipv4(ip, udp) => {
                udp.payload_len = bytes;
                ip.payload_len = bytes.saturating_add(8);
            }
            Self::Ipv6(ip, udp) => {
                udp.payload_len = bytes;
                ip.payload_len = bytes.saturating_add(8);
            }
        }
    }

    pub(super) fn emit(&self, out: &mut [u8]) {
        match self {
            Self::Local => {}
            Self::Grh(grh) => grh.emit(out),
            Self::Ipv4(ip, udp) => {
                ip.emit(out);
                udp.emit(&mut out[Ipv4Repr::BYTES..]);
            }
            Self::Ipv6(ip, udp) => {
                ip.emit(out);
                udp.emit(&mut out[Ipv6Repr::BYTES..]);
            }
        }
    }

    /// Reads the headers that an ethertype announces. Also returns their length, and the number of bytes from the BTH
    /// to the ICRC.
    pub(super) fn parse(ethertype: u16, bytes: &[u8]) -> Result<(Self, usize, usize), WireError> {
        match ethertype {
            ETHERTYPE_ROCE_V1 => {
                let grh = GrhRepr::parse(&GrhPacket::new_checked(bytes)?)?;
                Ok((Self::Grh(grh), GrhRepr::BYTES, usize::from(grh.payload_len)))
            }
            IPV4 => {
                let ip = Ipv4Repr::parse(&Ipv4Packet::new_checked(bytes)?)?;
                let udp = parse_udp(&bytes[Ipv4Repr::BYTES..], ip.payload_len)?;
                let headers = Ipv4Repr::BYTES + UdpRepr::BYTES;
                Ok((Self::Ipv4(ip, udp), headers, usize::from(udp.payload_len)))
            }
            IPV6 => {
                let ip = Ipv6Repr::parse(&Ipv6Packet::new_checked(bytes)?)?;
                let udp = parse_udp(&bytes[Ipv6Repr::BYTES..], ip.payload_len)?;
                let headers = Ipv6Repr::BYTES + UdpRepr::BYTES;
                Ok((Self::Ipv6(ip, udp), headers, usize::from(udp.payload_len)))
            }
            _ => Err(WireError::NotRoce),
        }
    }
}

fn parse_udp(bytes: &[u8], ip_payload_len: u16) -> Result<UdpRepr, WireError> {
    let udp = UdpRepr::parse(&UdpPacket::new_checked(bytes)?)?;
    if udp.payload_len.checked_add(8) != Some(ip_payload_len) {
        return Err(WireError::Malformed("UDP length"));
    }
    Ok(udp)
}

/// Returns an IPv4 address as the IPv4-mapped GID `::ffff:a.b.c.d`.
const fn mapped(ip: [u8; 4]) -> [u8; 16] {
    let [a, b, c, d] = ip;
    [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, a, b, c, d]
}

/// A packet: its headers as values, its payload by reference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet<'a> {
    /// Link header.
    pub link: Link,
    /// Network headers. [`Packet::emit`] sets their lengths.
    pub network: Network,
    /// Base transport header. [`Packet::emit`] sets its pad count.
    pub bth: BthRepr,
    /// Extension headers.
    pub headers: Headers,
    /// Payload, without padding.
    pub payload: &'a [u8],
}

impl<'a> Packet<'a> {
    /// Parses an Ethernet frame. Checks every length and the ICRC.
    ///
    /// # Errors
    /// [`WireError`] for the first header, length or CRC that is wrong. [`WireError::NotRoce`] if the frame belongs to
    /// another protocol.
    pub fn parse(frame: &'a [u8]) -> Result<Self, WireError> {
        Self::parse_frame(frame, true)
    }

    /// Parses an InfiniBand packet. Checks every length and both CRCs.
    ///
    /// # Errors
    /// [`WireError`] as in [`Packet::parse`].
    pub fn parse_infiniband(packet: &'a [u8]) -> Result<Self, WireError> {
        let lrh = LrhRepr::parse(&LrhPacket::new_checked(packet)?)?;
        let end = lrh.packet_len;
        let covered = packet.get(..end).ok_or(WireError::Truncated("packet"))?;
        if packet.get(end..end + VCRC_BYTES) != Some(&vcrc(covered)) {
            return Err(WireError::Vcrc);
        }
        let rest = covered
            .get(LrhRepr::BYTES..)
            .ok_or(WireError::Truncated("packet"))?;
        let network = if lrh.global {
            Network::Grh(GrhRepr::parse(&GrhPacket::new_checked(rest)?)?)
        } else {
            Network::Local
        };
        let headers_len = network.buffer_len();
        let transport_len = rest.len() - headers_len;
        if let Network::Grh(grh) = &network
            && usize::from(grh.payload_len) != transport_len
        {
            return Err(WireError::Malformed("GRH length"));
        }
        Self::parse_transport(
            Link::InfiniBand(lrh),
            network,
            covered,
            LrhRepr::BYTES + headers_len,
            true,
        )
    }

    /// Parses an Ethernet frame like [`Packet::parse`], but does not check the ICRC. Used for frames without an ICRC,
    /// and for fuzzing, whose random frames never have a valid ICRC.
    ///
    /// # Errors
    /// [`WireError`] as in [`Packet::parse`], but never [`WireError::Icrc`].
    pub fn parse_ignoring_icrc(frame: &'a [u8]) -> Result<Self, WireError> {
        Self::parse_frame(frame, false)
    }

    fn parse_frame(frame: &'a [u8], check_icrc: bool) -> Result<Self, WireError> {
        let eth = EthRepr::parse(frame)?;
        let packet = &frame[eth.buffer_len()..];
        let (network, headers_len, transport_len) = Network::parse(eth.ethertype, packet)?;
        // Ethernet may pad short frames, so the packet's length comes from the network header.
        let end = headers_len + transport_len;
        let packet = packet.get(..end).ok_or(WireError::Truncated("packet"))?;
        Self::parse_transport(eth.into(), network, packet, headers_len, check_icrc)
    }

    /// Parses the part that all links have in common. `packet` begins with the first byte that the ICRC covers and ends
    /// after the ICRC. The BTH is at offset `start`.
    fn parse_transport(
        link: Link,
        network: Network,
        packet: &'a [u8],
        start: usize,
        check_icrc: bool,
    ) -> Result<Self, WireError> {
        let end = packet.len().saturating_sub(icrc::BYTES);
        if end < start + BthRepr::BYTES {
            return Err(WireError::Truncated("BTH"));
        }
        let (covered, received) = packet.split_at(end);
        if check_icrc
            && icrc::compute(covers(&link, &network), covered).is_none_or(|crc| crc != received)
        {
            return Err(WireError::Icrc);
        }
        let transport = &covered[start..];
        let bth = BthRepr::parse(&BthPacket::new_checked(transport)?)?;
        let (headers, padded) = Headers::parse(bth.opcode, &transport[BthRepr::BYTES..])?;
        // A packet is padded to a multiple of four bytes (IBTA volume 1, section 9.2.3).
        if !padded.len().is_multiple_of(4) {
            return Err(WireError::Malformed("packet length"));
        }
        let payload_len = padded
            .len()
            .checked_sub(usize::from(bth.pad))
            .ok_or(WireError::Malformed("BTH pad count"))?;
        Ok(Self {
            link,
            network,
            bth,
            headers,
            payload: &padded[..payload_len],
        })
    }

    /// Builds the packet as an Ethernet frame without FCS, or as an InfiniBand packet.
    ///
    /// # Panics
    ///
    /// If the headers do not fit the opcode, or the packet exceeds the maximum IP length. Both are bugs of the caller,
    /// which must segment by path MTU.
    pub fn emit(&self) -> Vec<u8> {
        let outline = self.outline(self.payload.len());
        let mut frame = vec![0; outline.frame_len()];
        outline
            .payload_mut(&mut frame)
            .copy_from_slice(self.payload);
        outline.write(&mut frame, true);
        frame
    }

    /// Returns the layout of this packet's frame with a payload of `payload_len` bytes instead of the packet's own.
    ///
    /// # Panics
    ///
    /// As [`Packet::emit`].
    #[must_use]
    pub fn outline(&self, payload_len: usize) -> Outline {
        let mut outline = Outline {
            link: self.link,
            network: self.network,
            bth: self.bth,
            headers: self.headers,
            lead: 0,
            transport: 0,
            payload: 0,
            payload_len,
        };
        outline.measure();
        outline
    }

    /// Returns the destination address as a GID.
    pub const fn dst_gid(&self) -> [u8; 16] {
        self.network.dst_gid()
    }

    /// Returns the number of the destination queue pair.
    pub const fn dest_qpn(&self) -> Qpn {
        self.bth.dest_qpn
    }
}

/// Layout of a frame whose payload is written and whose headers are not. The headers are written only if the bytes of
/// the frame are needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outline {
    link: Link,
    network: Network,
    bth: BthRepr,
    headers: Headers,
    /// Number of unused bytes before the frame in its buffer.
    lead: usize,
    /// Offset of the BTH in the frame.
    transport: usize,
    /// Offset and length of the payload.
    payload: usize,
    payload_len: usize,
}

impl Outline {
    /// Computes all offsets, and sets the length fields of the headers.
    fn measure(&mut self) {
        assert!(
            self.headers.fit(self.bth.opcode),
            "headers {:?} of opcode {:?}",
            self.headers,
            self.bth.opcode
        );
        let pad = self.payload_len.wrapping_neg() & 3;
        let headers_len = BthRepr::BYTES + self.headers.buffer_len();
        let transport_len = headers_len + self.payload_len + pad + icrc::BYTES;
        let Ok(announced) = u16::try_from(transport_len) else {
            panic!("packet of {transport_len} bytes");
        };
        self.network.set_transport_len(announced);
        match &mut self.link {
            Link::Ethernet(eth) => eth.ethertype = self.network.ethertype(),
            Link::InfiniBand(lrh) => {
                lrh.global = matches!(self.network, Network::Grh(_));
                lrh.packet_len = LrhRepr::BYTES + self.network.buffer_len() + transport_len;
            }
        }
        // CAST: the value has two bits.
        self.bth.pad = u8::try_from(pad).unwrap_or(0);
        self.transport = self.link.buffer_len() + self.network.buffer_len();
        self.payload = self.transport + headers_len;
    }

    /// Moves the start of the frame in its buffer so that the payload is aligned.
    pub const fn align(&mut self) {
        self.lead = self.payload.wrapping_neg() % PAYLOAD_ALIGN;
    }

    /// Returns the number of bytes after the ICRC.
    const fn trailer(&self) -> usize {
        match self.link {
            Link::Ethernet(_) => 0,
            Link::InfiniBand(_) => VCRC_BYTES,
        }
    }

    /// Returns the length of the frame in bytes.
    #[must_use]
    pub const fn frame_len(&self) -> usize {
        let pad = self.payload_len.wrapping_neg() & 3;
        self.payload + self.payload_len + pad + icrc::BYTES + self.trailer()
    }

    /// Returns the number of bytes that the buffer of the frame needs.
    #[must_use]
    pub const fn memory_len(&self) -> usize {
        self.lead + self.frame_len()
    }

    const fn place(&self) -> Range<usize> {
        let start = self.lead + self.payload;
        start..start + self.payload_len
    }

    /// Returns the part of a buffer that holds the payload. The buffer has at least `memory_len` bytes.
    ///
    /// # Panics
    /// If the buffer is too short.
    pub fn payload_mut<'f>(&self, memory: &'f mut [u8]) -> &'f mut [u8] {
        &mut memory[self.place()]
    }

    /// Returns the link header.
    #[must_use]
    pub const fn link(&self) -> Link {
        self.link
    }

    /// Returns the packet in a frame whose payload is already in the buffer.
    ///
    /// # Panics
    /// If the buffer is too short.
    #[must_use]
    pub fn packet<'f>(&self, memory: &'f [u8]) -> Packet<'f> {
        Packet {
            link: self.link,
            network: self.network,
            bth: self.bth,
            headers: self.headers,
            payload: &memory[self.place()],
        }
    }

    /// Writes everything except the payload. This turns a buffer of `memory_len` bytes into the frame. If `seal` is
    /// false, an Ethernet frame gets no ICRC.
    ///
    /// # Panics
    /// If the buffer is too short.
    pub fn write(&self, frame: &mut Vec<u8>, seal: bool) {
        frame.drain(..self.lead);
        let (start, trailer) = (self.link.buffer_len(), self.trailer());
        // The buffer has arbitrary contents. Headers write all of their bytes, but nothing below writes the padding.
        frame[self.payload + self.payload_len..].fill(0);
        self.link.emit(frame);
        self.network.emit(&mut frame[start..]);
        self.bth.emit(&mut frame[self.transport..]);
        self.headers
            .emit(&mut frame[self.transport + BthRepr::BYTES..]);
        let end = frame.len() - icrc::BYTES - trailer;
        let covered = match self.link {
            Link::Ethernet(_) => &frame[start..end],
            Link::InfiniBand(_) => &frame[..end],
        };
        if seal || trailer > 0 {
            // `compute` never returns `None` here, because all headers are before `end`.
            let crc = icrc::compute(covers(&self.link, &self.network), covered).unwrap_or_default();
            put(frame, end, crc);
        }
        if trailer > 0 {
            let end = frame.len() - trailer;
            let crc = vcrc(&frame[..end]);
            put(frame, end, crc);
        }
    }
}

/// A frame that a function sends.
#[derive(Clone, Debug)]
pub(crate) struct Frame {
    bytes: Vec<u8>,
    /// Layout of the frame, if only its payload is written so far.
    outline: Option<Outline>,
}

impl From<Vec<u8>> for Frame {
    fn from(bytes: Vec<u8>) -> Self {
        Self {
            bytes,
            outline: None,
        }
    }
}

impl Frame {
    /// Returns a frame whose headers are not written yet. `bytes` holds the payload.
    pub(crate) const fn outlined(outline: Outline, bytes: Vec<u8>) -> Self {
        Self {
            bytes,
            outline: Some(outline),
        }
    }

    /// Returns the layout and the buffer of a frame whose headers are not written yet.
    pub(crate) fn outline(&self) -> Option<(&Outline, &[u8])> {
        Some((self.outline.as_ref()?, &self.bytes))
    }

    /// Takes the frame's buffer for reuse. Its contents are arbitrary.
    pub(crate) fn take_memory(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.bytes)
    }

    /// Writes the headers if they are missing, and the ICRC.
    pub(crate) fn seal(&mut self) {
        match self.outline.take() {
            Some(outline) => outline.write(&mut self.bytes, true),
            None => seal(&mut self.bytes),
        }
    }

    /// Returns the bytes of the frame. Writes the headers if they are missing, but adds no ICRC.
    pub(crate) fn into_bytes(mut self) -> Vec<u8> {
        if let Some(outline) = self.outline {
            outline.write(&mut self.bytes, false);
        }
        self.bytes
    }
}

/// Adds the ICRC to an Ethernet frame that was emitted without one. A frame that is not a RoCE packet stays unchanged.
pub(crate) fn seal(frame: &mut [u8]) {
    let Ok(packet) = Packet::parse_frame(frame, false) else {
        return;
    };
    let start = packet.link.buffer_len();
    let covers = covers(&packet.link, &packet.network);
    let end = start
        + packet.network.buffer_len()
        + BthRepr::BYTES
        + packet.headers.buffer_len()
        + packet.payload.len()
        + usize::from(packet.bth.pad);
    if let Some(crc) = icrc::compute(covers, &frame[start..end]) {
        put(frame, end, crc);
    }
}

/// Returns the kind of headers that the ICRC covers.
const fn covers(link: &Link, network: &Network) -> Encapsulation {
    match (link, network) {
        (Link::InfiniBand(_), Network::Grh(_)) => Encapsulation::Global,
        _ => network.encapsulation(),
    }
}
