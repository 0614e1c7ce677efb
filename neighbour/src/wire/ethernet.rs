//! Ethernet frames, with or without an 802.1Q tag.

use smoltcp::wire::{EthernetAddress, EthernetFrame, EthernetProtocol};

use crate::address::{Mac, Vlan};
use crate::counters::Refusal;

const HEADER_BYTES: usize = 14;
const TAG_BYTES: usize = 4;
/// Length of the shortest frame in bytes, without the FCS, which the adapter adds (IEEE 802.3, 4.4.2).
pub(crate) const LEAST_FRAME_BYTES: usize = 60;
/// Length of the longest frame that we send, in bytes: header, tag and a packet of 1,500, without FCS.
pub const MOST_FRAME_BYTES: usize = HEADER_BYTES + TAG_BYTES + MOST_PAYLOAD_BYTES;
/// Longest packet in a frame, in bytes.
pub(crate) const MOST_PAYLOAD_BYTES: usize = 1_500;
/// EtherType of a customer tag (IEEE 802.1Q, 9.4). Other tags, and a second tag, are not supported.
const TAG_PROTOCOL: u16 = 0x8100;

/// Header of an Ethernet frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Link {
    pub(crate) source: Mac,
    pub(crate) destination: Mac,
    /// VLAN ID; `None` for a frame without a tag, or with VLAN ID 0, which carries only a priority (IEEE 802.1Q, table
    /// 9-2).
    pub(crate) vlan: Option<u16>,
    pub(crate) protocol: EthernetProtocol,
}

/// Parses the header of a frame. Returns the header and the payload.
pub(crate) fn parse(bytes: &[u8]) -> Result<(Link, &[u8]), Refusal> {
    let frame = EthernetFrame::new_checked(bytes).map_err(|_| Refusal::Malformed)?;
    let mut link = Link {
        source: frame.src_addr().0,
        destination: frame.dst_addr().0,
        vlan: None,
        protocol: frame.ethertype(),
    };
    let mut payload = frame.payload();
    if link.protocol == EthernetProtocol::Unknown(TAG_PROTOCOL) {
        let (tag, behind) = payload
            .split_first_chunk::<TAG_BYTES>()
            .ok_or(Refusal::Malformed)?;
        let [control_high, control_low, high, low] = *tag;
        let id = u16::from_be_bytes([control_high & 0x0f, control_low]);
        link.vlan = (id != 0).then_some(id);
        link.protocol = u16::from_be_bytes([high, low]).into();
        payload = behind;
    }
    Ok((link, payload))
}

/// Makes a frame from `source` to `destination`. `write` fills its payload of `bytes` bytes.
pub(crate) fn emit(
    (source, destination): (Mac, Mac),
    vlan: Option<Vlan>,
    protocol: EthernetProtocol,
    bytes: usize,
    write: impl FnOnce(&mut [u8]),
) -> Vec<u8> {
    let start = HEADER_BYTES + vlan.map_or(0, |_| TAG_BYTES);
    let mut frame = vec![0; (start + bytes).max(LEAST_FRAME_BYTES)];
    write(&mut frame[start..start + bytes]);
    let outer = vlan.map_or(protocol, |_| EthernetProtocol::Unknown(TAG_PROTOCOL));
    let mut header = EthernetFrame::new_unchecked(&mut frame[..]);
    header.set_src_addr(EthernetAddress(source));
    header.set_dst_addr(EthernetAddress(destination));
    header.set_ethertype(outer);
    if let Some(Vlan { id, priority }) = vlan {
        let control = u16::from(priority) << 13 | id;
        let tag = &mut header.payload_mut()[..TAG_BYTES];
        tag[..2].copy_from_slice(&control.to_be_bytes());
        tag[2..].copy_from_slice(&u16::from(protocol).to_be_bytes());
    }
    frame
}
