//! What a capture of the link holds that no end of a connection says: refusals for want of a receive.
//!
//! An RNR NAK is an Acknowledge packet of RC (opcode 0x11) whose AETH syndrome begins with 001; the five bits behind
//! are the code of the time after which the sender may try again (IBTA volume 1, "ACK Extended Transport Header").

use std::collections::BTreeMap;
use std::fs::File;
use std::io::BufReader;
use std::net::Ipv4Addr;
use std::path::Path;

use anyhow::{Context, Result};
use pcap_file::PcapError;
use pcap_file::pcapng::{Block, PcapNgReader};

/// Who refused, and with which timer code.
type Refusal = (Ipv4Addr, u8);

/// A line for everybody who sent RNR NAKs over IPv4, and each timer code: how many.
///
/// # Errors
/// There is no such file, or it is no capture.
pub fn refusals(path: &Path) -> Result<Vec<String>> {
    let file = File::open(path).with_context(|| path.display().to_string())?;
    let mut capture = PcapNgReader::new(BufReader::new(file))?;
    let mut count: BTreeMap<Refusal, u32> = BTreeMap::new();
    while let Some(block) = capture.next_block() {
        match block {
            Ok(Block::EnhancedPacket(packet)) => {
                if let Some(refusal) = refusal(&packet.data) {
                    *count.entry(refusal).or_default() += 1;
                }
            }
            Ok(_) => {}
            // Its writer was ended in the middle of a packet.
            Err(PcapError::IncompleteBuffer) => break,
            Err(error) => return Err(error).with_context(|| path.display().to_string()),
        }
    }
    Ok(count
        .iter()
        .map(|((from, timer), count)| format!("{from}: {count} RNR NAKs, timer code {timer}"))
        .collect())
}

/// The frame's RNR NAK, if it is one.
fn refusal(frame: &[u8]) -> Option<Refusal> {
    let (ethernet, ip) = frame.split_at_checked(14)?;
    if ethernet[12..] != [0x08, 0x00] || *ip.first()? >> 4 != 4 || *ip.get(9)? != 17 {
        return None;
    }
    let from: [u8; 4] = ip.get(12..16)?.try_into().ok()?;
    let udp = ip.get(usize::from(ip[0] & 0xf) * 4..)?;
    if udp.get(2..4)? != 4791_u16.to_be_bytes() {
        return None;
    }
    let (opcode, syndrome) = (*udp.get(8)?, *udp.get(8 + 12)?);
    (opcode == 0x11 && syndrome >> 5 == 1).then_some((from.into(), syndrome & 0x1f))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An Acknowledge packet as Linux' software RoCE sends it, up to its AETH.
    fn acknowledge(opcode: u8, syndrome: u8) -> Vec<u8> {
        let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x08, 0x00];
        frame.extend([0x45, 0, 0, 48, 0, 0, 0x40, 0, 64, 17, 0, 0]);
        frame.extend([10, 0, 0, 1, 10, 0, 0, 2]);
        frame.extend([0xc0, 0x00, 0x12, 0xb7, 0, 28, 0, 0]);
        frame.extend([opcode, 0, 0xff, 0xff, 0, 0, 0, 17, 0, 0, 0, 5]);
        frame.extend([syndrome, 0, 0, 1, 0, 0, 0, 0]);
        frame
    }

    #[test]
    fn a_refusal_is_an_acknowledge_with_an_rnr_syndrome_and_is_of_its_sender() {
        let sender = Ipv4Addr::new(10, 0, 0, 1);
        assert_eq!(refusal(&acknowledge(0x11, 0x2c)), Some((sender, 12)));
        assert_eq!(refusal(&acknowledge(0x11, 0x20)), Some((sender, 0)));
        // An ACK, a NAK, the first packet of a read response.
        for (opcode, syndrome) in [(0x11, 0x1f), (0x11, 0x60), (0x0d, 0x2c)] {
            assert_eq!(refusal(&acknowledge(opcode, syndrome)), None);
        }
    }

    #[test]
    fn what_is_cut_off_or_no_roce_is_no_refusal() {
        let whole = acknowledge(0x11, 0x2c);
        for length in 0..14 + 20 + 8 + 12 {
            assert_eq!(refusal(&whole[..length]), None, "{length} bytes");
        }
        for (at, byte) in [(13, 0xdd), (14, 0x65), (23, 6), (37, 0xb8)] {
            let mut other = whole.clone();
            other[at] = byte;
            assert_eq!(refusal(&other), None, "byte {at}");
        }
    }
}
