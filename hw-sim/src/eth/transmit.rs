//! Sending: from a WQE in the ring to frames on the port.
//!
//! A WQE is a control segment, an Ethernet segment with the frame's first bytes, and data segments (PRM "Ethernet
//! Segment"). A NOP sends nothing and only completes. A SEND is one frame, an LSO several ([`super::segment`]). Frames
//! shorter than Ethernet's minimum are padded. Frames longer than the port's MTU are dropped at the port, and the WQE
//! still completes. A malformed WQE, or one whose keys do not cover its memory, completes with an error and moves the
//! queue to ERR. The following WQEs are then flushed, if the context has `flush_in_error_en`.

use super::State;
use super::checksum;
use super::segment::{Offload, segment};
use super::sq::Sq;
use crate::host::{Host, KeyError};
use crate::qp::send_queue::{BadWqe, MAX_WQE_BYTES};
use crate::qp::wqe::{Data, Malformed, SEGMENT_BYTES, SEGMENTS_PER_BLOCK, data_segments, gather};
use crate::wire::frame::{
    CUSTOMER_TAG, ETHERNET_BYTES, Headers, IPV4, IPV6, MIN_FRAME, SERVICE_TAG, TAG_BYTES, with_tag,
};
use mlx_prm::{Cqe64, CqeOpcode, CtrlSeg, ErrCqe, EthSeg, Syndrome, WqeOpcode};
use zerocopy::FromBytes;

/// Bit of `cs_flags` that requests the IPv4 header's checksum.
const NETWORK_CHECKSUM: u8 = 1 << 6;
/// Bit of `cs_flags` that requests TCP's or UDP's checksum.
const TRANSPORT_CHECKSUM: u8 = 1 << 7;
/// Bit of `inline_hdr_sz`: the field for inline headers holds a VLAN tag to insert.
const INSERT_TAG: u16 = 1 << 15;
/// Bytes of inline headers that are in the Ethernet segment itself.
const INLINE_IN_SEGMENT: usize = 2;
/// Maximum data of a large send in bytes, whatever the capability allows.
const MOST_DATA: u64 = 1 << 18;
/// Maximum number of frames of a large send: 256 KiB in pieces of eight bytes, the smallest that Linux' TCP ever makes
/// (`TCP_MIN_SND_MSS`, minus the longest options).
const MOST_PIECES: u64 = MOST_DATA / 8;

/// Headers that every WQE must have inline.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Inline {
    /// None.
    #[default]
    None,
    /// The Ethernet header.
    Ethernet,
    /// The Ethernet and IP headers.
    Network,
    /// The Ethernet and IP headers, and 8 bytes of the transport header.
    Transport,
}

/// Limits of a send queue, from its function and port.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    /// Longest frame in bytes, without the check sequence.
    pub longest: usize,
    /// True if the device can insert VLAN tags.
    pub insert_tag: bool,
    /// Headers that every WQE must have inline.
    pub inline: Inline,
    /// Maximum data of a large send in bytes; 0 if large sends are not supported.
    pub large: u64,
}

/// Result of executing a WQE.
#[derive(Debug, Default)]
pub struct Sent {
    /// Frames for the port.
    pub frames: Vec<Vec<u8>>,
    /// Number of frames that were dropped because they were too long for the port.
    pub oversize: usize,
}

/// The reason why a WQE fails.
enum Failure {
    Malformed(Malformed),
    Key(KeyError),
}

impl From<Malformed> for Failure {
    fn from(why: Malformed) -> Self {
        Self::Malformed(why)
    }
}

impl From<KeyError> for Failure {
    fn from(error: KeyError) -> Self {
        Self::Key(error)
    }
}

/// The parts of a WQE that carries a frame.
struct Parts {
    segment: EthSeg,
    header: Vec<u8>,
    data: Vec<Data>,
    length: u64,
}

impl Parts {
    /// Parses the part of a WQE that follows the control segment.
    fn parse(bytes: &[u8], rules: &Rules) -> Result<Self, Malformed> {
        let (segment, _) =
            EthSeg::read_from_prefix(bytes).map_err(|_| Malformed("Ethernet segment"))?;
        let inserts = rules.insert_tag && segment.inline_hdr_sz() & INSERT_TAG != 0;
        let inline = if inserts {
            0
        } else {
            usize::from(segment.inline_hdr_sz())
        };
        let start = EthSeg::SIZE - INLINE_IN_SEGMENT;
        let header = bytes
            .get(start..start + inline)
            .ok_or(Malformed("inline headers"))?
            .to_vec();
        let whole = EthSeg::SIZE
            + inline
                .saturating_sub(INLINE_IN_SEGMENT)
                .next_multiple_of(SEGMENT_BYTES);
        let data = data_segments(bytes.get(whole..).ok_or(Malformed("inline headers"))?)?;
        let length = data.iter().map(Data::bytes).sum();
        Ok(Self {
            segment,
            header,
            data,
            length,
        })
    }

    fn tag(&self, rules: &Rules) -> Option<[u8; 2]> {
        let inserts = rules.insert_tag && self.segment.inline_hdr_sz() & INSERT_TAG != 0;
        inserts.then(|| *self.segment.inline_hdr_start())
    }

    fn offload(&self) -> Offload {
        let flags = self.segment.cs_flags();
        Offload {
            network: flags & NETWORK_CHECKSUM != 0,
            transport: flags & TRANSPORT_CHECKSUM != 0,
        }
    }
}

/// Protocols of IP with a transport header of 8 bytes or more that Linux sends inline (`__skb_get_poff`): ICMP, IGMP,
/// TCP, UDP, DCCP, ICMPv6, SCTP, UDP-Lite.
const TRANSPORTS: [u8; 8] = [1, 2, 6, 17, 33, 58, 132, 136];

impl Inline {
    /// Returns the headers for a code of `min_wqe_inline_mode`.
    pub const fn of(code: u32) -> Option<Self> {
        match code {
            0 => Some(Self::None),
            1 => Some(Self::Ethernet),
            2 => Some(Self::Network),
            3 => Some(Self::Transport),
            _ => None,
        }
    }

    /// Returns whether a WQE's inline headers suffice. One VLAN tag counts as part of the Ethernet header: rdma-core
    /// and DPDK send 18 bytes for it, however many tags there are (`MLX5_ETH_L2_INLINE_HEADER_SIZE`,
    /// `MLX5_INLINE_HSIZE_L2`). The IP header without options is required if the EtherType after the tags is IPv4 or
    /// IPv6. Then 8 bytes of the transport header are required, too, unless the packet is a fragment or has a protocol
    /// for which Linux (`mlx5e_calc_min_inline`) may send none.
    fn suffices(self, header: &[u8]) -> bool {
        let Some(headers) = Headers::of(header) else {
            return self == Self::None;
        };
        // A byte that is not there is 0. Such a header is too short for the IP header in any case.
        let at = headers.payload_at;
        let byte = |offset: usize| header.get(at + offset).copied().unwrap_or(0);
        let (network, protocol, is_fragment) = match headers.ethertype {
            // A fragment has the flag More Fragments or an offset.
            IPV4 => (20, byte(9), byte(6) & 0x3f != 0 || byte(7) != 0),
            // In a fragment, the protocol is that of the fragment header, which `TRANSPORTS` does not contain.
            IPV6 => (40, byte(6), false),
            _ => (0, 0, true),
        };
        // True if the header ends inside a tag. A third tag counts as payload.
        let is_cut = matches!(headers.ethertype, CUSTOMER_TAG | SERVICE_TAG)
            && header.len() < at + TAG_BYTES;
        let tags = usize::from(is_cut || headers.tag.is_some()) * TAG_BYTES;
        let link = ETHERNET_BYTES + tags;
        let has_transport = !is_fragment && TRANSPORTS.contains(&protocol);
        let needed = match self {
            Self::None => 0,
            Self::Ethernet => link,
            // The EtherType is beyond the inline header.
            Self::Network | Self::Transport if is_cut => return false,
            Self::Network => link + network,
            Self::Transport => link + network + usize::from(has_transport) * 8,
        };
        header.len() >= needed
    }
}

impl Sq {
    /// Handles a doorbell with these eight bytes.
    pub fn doorbell(&mut self, value: [u8; 8], host: &mut dyn Host) {
        match self.state {
            State::Ready => {
                let checked = self
                    .queue
                    .read_record(&self.rings, host)
                    .and_then(|()| self.queue.check_doorbell(value, &self.rings, host));
                if let Err(bad) = checked {
                    self.refuse(&bad, host);
                }
            }
            State::Error => {
                // The queue is in error already, so a bad record changes nothing.
                let _ = self.queue.read_record(&self.rings, host);
            }
            State::Reset => {
                host.driver_bug(format!("SQ {:#x}: doorbell in reset", self.number));
            }
        }
    }

    /// Returns whether [`Sq::run`] has something to do.
    pub fn pending(&self) -> bool {
        match self.state {
            State::Reset => false,
            State::Ready => self.queue.has_more(),
            State::Error => self.context.flush_in_error_en() && self.queue.has_more(),
        }
    }

    /// Executes one WQE, or flushes one if the queue is in error.
    pub fn run(&mut self, rules: &Rules, host: &mut dyn Host) -> Sent {
        if !self.pending() {
            return Sent::default();
        }
        if self.state == State::Error {
            if let Some((index, opcode)) = self.queue.skip(&self.rings, host) {
                self.error(index, opcode, Syndrome::WR_FLUSH_ERR, host);
            }
            return Sent::default();
        }
        let mut room = [0; MAX_WQE_BYTES];
        let (opcode, bytes) = match self.queue.peek(&self.rings, self.number, host, &mut room) {
            Ok(wqe) => wqe,
            Err(bad) => {
                self.refuse(&bad, host);
                return Sent::default();
            }
        };
        let index = self.queue.next_index();
        let Ok((control, _)) = CtrlSeg::read_from_prefix(bytes) else {
            return Sent::default();
        };
        // CAST: `ds` is a 6-bit field.
        let blocks = u16::try_from(control.ds().div_ceil(SEGMENTS_PER_BLOCK)).unwrap_or(1);
        match self.execute(&control, opcode, &bytes[CtrlSeg::SIZE..], rules, host) {
            Ok(sent) => {
                self.queue.advance(blocks);
                self.queue.complete(index, blocks);
                if matches!(control.ce(), 2 | 3) {
                    self.complete(index, opcode, control.ce() == 3, host);
                }
                sent
            }
            Err(failure) => {
                let (syndrome, why) = match failure {
                    Failure::Malformed(Malformed(why)) => {
                        (Syndrome::LOCAL_QP_OP_ERR, why.to_owned())
                    }
                    Failure::Key(error) => (Syndrome::LOCAL_PROT_ERR, error.to_string()),
                };
                host.driver_bug(format!("SQ {:#x}, WQE {index:#06x}: {why}", self.number));
                self.queue.advance(blocks);
                self.queue.complete(index, blocks);
                self.error(index, opcode, syndrome, host);
                self.state = State::Error;
                Sent::default()
            }
        }
    }

    fn execute(
        &self,
        control: &CtrlSeg,
        opcode: WqeOpcode,
        bytes: &[u8],
        rules: &Rules,
        host: &mut dyn Host,
    ) -> Result<Sent, Failure> {
        let large = match opcode {
            WqeOpcode::NOP => return Ok(Sent::default()),
            WqeOpcode::SEND => false,
            WqeOpcode::LSO if rules.large > 0 => true,
            _ => return Err(Malformed("opcode that send queues do not have").into()),
        };
        if control.opmod() != 0 {
            return Err(Malformed("opcode modifier").into());
        }
        if self.context.tis_lst_sz() == 0 {
            return Err(Malformed("frame on a queue without a TIS").into());
        }
        let parts = Parts::parse(bytes, rules)?;
        let inline = Inline::of(self.context.min_wqe_inline_mode()).unwrap_or_default();
        let tag = parts.tag(rules);
        if !rules.inline.suffices(&parts.header) || !inline.suffices(&parts.header) {
            return Err(Malformed("too few inline headers").into());
        }
        let frames = if large {
            self.cut(&parts, rules, host)?
        } else {
            let length = parts.header.len() as u64 + parts.length;
            if length < ETHERNET_BYTES as u64 {
                return Err(Malformed("frame shorter than its header").into());
            }
            if length > rules.longest as u64 {
                // The frame is dropped before its data is fetched, because the length that the driver states may be
                // arbitrarily large.
                return Ok(Sent {
                    frames: Vec::new(),
                    oversize: 1,
                });
            }
            let mut frame = parts.header.clone();
            let start = frame.len();
            // CAST: the length is at most that of the longest frame.
            frame.resize(usize::try_from(length).unwrap_or(0), 0);
            gather(&parts.data, host, self.scope(), 0, &mut frame[start..])?;
            let Offload { network, transport } = parts.offload();
            checksum::fill(&mut frame, network, transport);
            vec![frame]
        };
        let mut sent = Sent::default();
        for mut frame in frames {
            if let Some([high, low]) = tag {
                frame = with_tag(&frame, u16::from_be_bytes([high, low]));
            }
            if frame.len() > rules.longest {
                sent.oversize += 1;
                continue;
            }
            if frame.len() < MIN_FRAME {
                frame.resize(MIN_FRAME, 0);
            }
            sent.frames.push(frame);
        }
        Ok(sent)
    }

    /// Returns the frames of a large send.
    fn cut(
        &self,
        parts: &Parts,
        rules: &Rules,
        host: &mut dyn Host,
    ) -> Result<Vec<Vec<u8>>, Failure> {
        if parts.length > rules.large.min(MOST_DATA) {
            return Err(Malformed("large send beyond what is announced").into());
        }
        let mss = usize::from(parts.segment.mss());
        if parts.length.div_ceil(mss.max(1) as u64) > MOST_PIECES {
            return Err(Malformed("large send of more than 2^15 pieces").into());
        }
        // CAST: the length is at most 256 KiB.
        let mut data = vec![0; usize::try_from(parts.length).unwrap_or(0)];
        gather(&parts.data, host, self.scope(), 0, &mut data)?;
        segment(&parts.header, &data, mss, parts.offload()).ok_or_else(|| {
            Malformed("large send whose inline headers are not TCP's or UDP's").into()
        })
    }

    fn refuse(&mut self, bad: &BadWqe, host: &mut dyn Host) {
        let index = self.queue.next_index();
        let (opcode, why) = match bad {
            BadWqe::Malformed(opcode, Malformed(why)) => (*opcode, (*why).to_owned()),
            BadWqe::Fault(fault) => (WqeOpcode::NOP, fault.to_string()),
        };
        host.driver_bug(format!("SQ {:#x}, WQE {index:#06x}: {why}", self.number));
        // Skips the WQE, so that the flush does not complete it again.
        self.queue.skip(&self.rings, host);
        self.error(index, opcode, Syndrome::LOCAL_QP_OP_ERR, host);
        self.state = State::Error;
    }

    fn complete(&self, index: u16, opcode: WqeOpcode, event: bool, host: &mut dyn Host) {
        let mut cqe = Cqe64::new();
        cqe.set_srqn_uidx(self.user_index(host))
            .set_timestamp(host.now())
            .set_send_wqe_opcode(opcode.bits())
            .set_qpn(self.number)
            .set_wqe_counter(index)
            .set_op_own_parts(CqeOpcode::REQ, 0, event, false);
        host.complete(self.context.cqn(), cqe, event);
    }

    fn error(&self, index: u16, opcode: WqeOpcode, syndrome: Syndrome, host: &mut dyn Host) {
        let mut cqe = ErrCqe::new();
        cqe.set_srqn_uidx(self.user_index(host))
            .set_syndrome(syndrome.0)
            .set_send_wqe_opcode(opcode.bits())
            .set_qpn(self.number)
            .set_wqe_counter(index)
            .set_op_own(CqeOpcode::REQ_ERR.0 << 4);
        host.complete(self.context.cqn(), cqe.into(), true);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the first `bytes` bytes of a frame with these EtherTypes and this protocol of IP.
    fn header(ethertypes: &[u16], protocol: u8, bytes: usize) -> Vec<u8> {
        let mut header = vec![0; 12];
        for (number, ethertype) in ethertypes.iter().enumerate() {
            if number > 0 {
                header.extend([0, 5]);
            }
            header.extend(ethertype.to_be_bytes());
        }
        match ethertypes.last() {
            Some(&IPV4) => header.extend([0x45, 0, 0, 0, 0, 0, 0, 0, 64, protocol]),
            Some(&IPV6) => header.extend([0x60, 0, 0, 0, 0, 0, protocol, 64]),
            Some(_) | None => {}
        }
        header.resize(bytes, 0);
        header
    }

    /// The sizes of 18 and 58 bytes are those of rdma-core and DPDK.
    #[test]
    fn inline_headers_reach_as_far_as_the_mode_says_behind_tags_too() {
        const UDP: u8 = 17;
        const OSPF: u8 = 89;
        for (ethertypes, protocol, least) in [
            (&[0x88b5][..], 0, [0, 14, 14, 14]),
            (&[IPV4], UDP, [0, 14, 34, 42]),
            (&[IPV4], OSPF, [0, 14, 34, 34]),
            (&[IPV6], UDP, [0, 14, 54, 62]),
            (&[CUSTOMER_TAG, IPV4], UDP, [0, 18, 38, 46]),
            (&[SERVICE_TAG, CUSTOMER_TAG, IPV6], OSPF, [0, 18, 58, 58]),
            (&[SERVICE_TAG, CUSTOMER_TAG, IPV6], UDP, [0, 18, 58, 66]),
            (&[SERVICE_TAG, CUSTOMER_TAG, IPV4], UDP, [0, 18, 38, 46]),
            (
                &[SERVICE_TAG, CUSTOMER_TAG, CUSTOMER_TAG, IPV4],
                UDP,
                [0, 18, 26, 26],
            ),
        ] {
            for (code, least) in (0..).zip(least) {
                let mode = Inline::of(code).expect("a mode");
                for bytes in 0..100 {
                    assert_eq!(
                        mode.suffices(&header(ethertypes, protocol, bytes)),
                        bytes >= least,
                        "{mode:?} of {ethertypes:x?}: {bytes}"
                    );
                }
            }
        }
        // Options do not count, and a fragment has no transport header.
        let mut options = header(&[IPV4], UDP, 41);
        options[14] = 0x4f;
        assert!(!Inline::Transport.suffices(&options));
        options.push(0);
        assert!(Inline::Transport.suffices(&options));
        for fragment in [[0x20, 0], [0, 1]] {
            let mut header = header(&[IPV4], UDP, 34);
            header[20..22].copy_from_slice(&fragment);
            assert!(Inline::Transport.suffices(&header), "{fragment:x?}");
        }
    }
}
