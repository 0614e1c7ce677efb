//! Reads captures of the link: counts RNR NAKs, which neither end of a connection reports, and collects the findings of
//! Wireshark's dissectors.
//!
//! An RNR NAK is an Acknowledge packet of RC (opcode 0x11) whose AETH syndrome begins with 001. The five bits after
//! that are the timer code: the time after which the sender may retry (IBTA volume 1, "ACK Extended Transport Header").

use std::collections::BTreeMap;
use std::fs::File;
use std::io::BufReader;
use std::net::Ipv4Addr;
use std::path::Path;

use anyhow::{Context, Result};
use pcap_file::PcapError;
use pcap_file::pcapng::{Block, PcapNgReader};

use crate::{shell, wire};

/// Severity of Wireshark's expert items: PI_ERROR (epan/proto.h).
const ERROR: u32 = 0x0080_0000;
/// Kinds of frames that Wireshark's dissector distinguishes.
pub const KINDS: [&str; 7] = [
    "ARP",
    "neighbour discovery",
    "echo",
    "RoCEv2",
    "VLAN 100 with priority 3",
    "DSCP 26",
    "ECN-capable",
];
/// Largest number of listed frames with an expert item.
const MAX_COMPLAINTS: usize = 5;

/// Sender and timer code of an RNR NAK.
type Refusal = (Ipv4Addr, u8);

/// Returns a line for each sender of RNR NAKs over IPv4 and each of its timer codes, with the number of NAKs.
///
/// # Errors
/// The file does not exist or is not a capture.
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
            // The capture ends in the middle of a packet, because its writer was killed.
            Err(PcapError::IncompleteBuffer) => break,
            Err(error) => return Err(error).with_context(|| path.display().to_string()),
        }
    }
    Ok(count
        .iter()
        .map(|((from, timer), count)| format!("{from}: {count} RNR NAKs, timer code {timer}"))
        .collect())
}

/// Returns the findings of Wireshark's dissector in a capture: the number of frames of each kind, and a line for each
/// frame with an error. Returns nothing if Wireshark is not installed.
///
/// # Errors
/// The file does not exist or is not a capture.
pub fn dissected(path: &Path) -> Result<Vec<String>> {
    if !shell::exists("tshark") {
        return Ok(Vec::new());
    }
    // A queue pair's packets over IPv6 may have no UDP checksum (IBTA annex A17), and Linux software RoCE sends none.
    let options = ["-o", "udp.ignore_ipv6_zero_checksum:TRUE"];
    let name = path.to_str().context("the capture's path is not UTF-8")?;
    let fields = [
        "frame.number",
        "_ws.col.Protocol",
        "vlan.id",
        "vlan.priority",
        "ip.dsfield.dscp",
        "ipv6.tclass.dscp",
        "ip.dsfield.ecn",
        "ipv6.tclass.ecn",
        "icmpv6.type",
        "_ws.malformed",
        "_ws.expert.severity",
        "_ws.expert.message",
        "frame.protocols",
    ];
    let mut arguments = options.to_vec();
    arguments.extend(["-T", "fields", "-E", "separator=|", "-E", "occurrence=f"]);
    for field in fields {
        arguments.extend(["-e", field]);
    }
    let text = wire::tshark(name, &arguments)?;
    Ok(count(&text))
}

/// Smallest length in bytes of an echo request that marks a position in the capture. The frames after the mark were
/// damaged on purpose.
const MARK: usize = 1000;
/// Beginnings of Wireshark's names for commands. Wireshark has a name of its own for each page, property and structure.
const COMMANDS: [&str; 10] = [
    "Get Log Page",
    "Identify",
    "Property Get",
    "Property Set",
    "Connect",
    "Authentication Send",
    "Authentication Recv",
    "Set Features",
    "Get Features",
    "Reservation",
];

/// Returns the findings of Wireshark's dissector of NVMe over RDMA in a capture: the number of each command and of
/// completions, and a line for each frame that has an error or that the dissector does not recognise. Returns nothing
/// if Wireshark is not installed.
///
/// The dissector handles only messages of one packet. It ignores a command whose in-capsule data spans several packets,
/// and the completion of such a command. It reports a log page in several packets as malformed, because it treats each
/// packet as the beginning. Both cases are counted, and are not errors.
///
/// # Errors
/// The file does not exist or is not a capture.
pub fn nvme(path: &Path) -> Result<Vec<String>> {
    if !shell::exists("tshark") {
        return Ok(Vec::new());
    }
    let name = path.to_str().context("the capture's path is not UTF-8")?;
    let mut arguments = vec!["-T", "fields", "-E", "separator=|", "-E", "occurrence=f"];
    let fields = [
        "frame.number",
        "infiniband.bth.opcode",
        "ip.src",
        "infiniband.bth.destqp",
        "frame.len",
        "icmp.type",
        "_ws.malformed",
        "_ws.col.Info",
    ];
    for field in fields {
        arguments.extend(["-e", field]);
    }
    Ok(capsules(&wire::tshark(name, &arguments)?))
}

/// Counts commands and completions in the field lines that tshark printed.
fn capsules(text: &str) -> Vec<String> {
    /// Opcodes of RC (IBTA volume 1, "OpCode field").
    const SEND_FIRST: &str = "0";
    const SEND_ONLY: [&str; 2] = ["4", "23"];
    const NOT_FIRST: [&str; 4] = ["7", "8", "14", "15"];
    /// Queue pair number of connection management (QP 1).
    const GSI: &str = "0x000001";
    /// Largest length in bytes of a frame with a completion: headers, 16 bytes of the completion, 4 bytes of an
    /// invalidated key, and the ICRC.
    const COMPLETION: usize = 14 + 20 + 8 + 12 + 16 + 4 + 4;
    let mut commands: BTreeMap<&str, u64> = BTreeMap::new();
    let (mut completions, mut long, mut behind_long, mut parts) = (0_u64, 0_u64, 0_u64, 0_u64);
    let mut complaints = Vec::new();
    for line in text.lines() {
        let fields: Vec<&str> = line.splitn(8, '|').collect();
        let at = |number: usize| fields.get(number).copied().unwrap_or_default();
        let (opcode, info) = (at(1), at(7));
        let length: usize = at(4).parse().unwrap_or(0);
        if at(5) == "8" && length >= MARK {
            break;
        }
        if !at(6).is_empty() {
            if NOT_FIRST.contains(&opcode) {
                parts += 1;
            } else {
                complaints.push(format!("tshark complains of frame {}: {line}", at(0)));
            }
            continue;
        }
        long += u64::from(opcode == SEND_FIRST);
        if !SEND_ONLY.contains(&opcode) || at(3) == GSI {
            continue;
        }
        let message = info.split_once("| ").map(|(_, message)| message);
        let message = message.map(|message| message.split_once(' ').unwrap_or((message, "")).1);
        match message {
            Some(message) if message.starts_with("CQE for ") => completions += 1,
            Some(message) => {
                let known = COMMANDS.iter().find(|name| message.starts_with(*name));
                let name = known.copied().unwrap_or(message);
                *commands.entry(name.trim_end()).or_default() += 1;
            }
            None if length <= COMPLETION => behind_long += 1,
            None => complaints.push(format!(
                "tshark complains of frame {}, a command that it does not read: {line}",
                at(0)
            )),
        }
    }
    let mut lines: Vec<String> = commands
        .iter()
        .map(|(name, count)| format!("{name}: {count}"))
        .collect();
    lines.push(format!("completions: {completions}"));
    lines.push(format!(
        "not read: {long} commands of more than one packet and {behind_long} completions, {parts} parts of pages"
    ));
    complaints.truncate(MAX_COMPLAINTS);
    lines.extend(complaints);
    lines
}

/// Counts frames by kind in the field lines that tshark printed.
fn count(text: &str) -> Vec<String> {
    let mut counts = [0_u64; KINDS.len()];
    let mut complaints = Vec::new();
    for line in text.lines() {
        let fields: Vec<&str> = line.split('|').collect();
        let at = |number: usize| fields.get(number).copied().unwrap_or_default();
        let protocols = fields.last().copied().unwrap_or_default();
        let icmpv6: u32 = at(8).parse().unwrap_or(0);
        let echo = protocols.contains(":icmp") && !protocols.contains(":icmpv6");
        let marks = [4, 5].map(at);
        let capable = [6, 7].iter().any(|&field| matches!(at(field), "1" | "2"));
        let found = [
            protocols.contains(":arp"),
            (133..=137).contains(&icmpv6),
            echo || (128..=129).contains(&icmpv6),
            protocols.contains(":infiniband"),
            (at(2), at(3)) == ("100", "3"),
            marks.contains(&"26"),
            capable,
        ];
        for (count, is_found) in counts.iter_mut().zip(found) {
            *count += u64::from(is_found);
        }
        let severe = matches!(at(10).parse(), Ok(ERROR..));
        if (severe || !at(9).is_empty()) && complaints.len() < MAX_COMPLAINTS {
            complaints.push(format!("tshark complains of frame {}: {line}", at(0)));
        }
    }
    let kinds = KINDS.iter().zip(counts);
    let mut lines: Vec<String> = kinds
        .map(|(kind, count)| format!("{kind}: {count}"))
        .collect();
    lines.extend(complaints);
    lines
}

/// Returns sender and timer code if the frame is an RNR NAK.
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

    /// Returns a frame like the Acknowledge packets of Linux software RoCE, with this opcode and AETH syndrome. The
    /// ICRC is zero.
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
        // An ACK, a NAK, and the first packet of a read response are not RNR NAKs.
        for (opcode, syndrome) in [(0x11, 0x1f), (0x11, 0x60), (0x0d, 0x2c)] {
            assert_eq!(refusal(&acknowledge(opcode, syndrome)), None);
        }
    }

    /// Frames are counted by the protocols that the dissector finds, and errors are listed (fields as tshark 4.0 prints
    /// them).
    #[test]
    fn frames_are_counted_by_what_the_dissector_finds_in_them_and_errors_are_shown() {
        let text = "\
1|ARP|100|3|||||||||eth:ethertype:vlan:ethertype:arp
2|ICMPv6||||0||0|135||||eth:ethertype:ipv6:icmpv6
3|ICMPv6||||0||0|129||||eth:ethertype:ipv6:icmpv6:data
4|ICMP|||0||0|||||| eth:ethertype:ip:icmp:data
5|RRoCE|||26||2||||||eth:ethertype:ip:udp:infiniband
6|RRoCE||||26||2|||6291456||eth:ethertype:ipv6:udp:infiniband
7|RRoCE|||0||0|||1|8388608|Malformed Packet|eth:ethertype:ip:udp:infiniband
";
        let lines = count(text);
        let counts = [1, 1, 2, 3, 1, 2, 2];
        let expected = KINDS.iter().zip(counts);
        let expected: Vec<String> = expected
            .map(|(kind, count)| format!("{kind}: {count}"))
            .collect();
        assert_eq!(lines[..KINDS.len()], expected);
        assert_eq!(lines.len(), KINDS.len() + 1, "{lines:?}");
        assert!(lines[KINDS.len()].starts_with("tshark complains of frame 7: "));
    }

    /// Capsules are counted as the dissector recognises them, up to the mark (fields as tshark 4.0 prints them).
    #[test]
    fn capsules_are_counted_as_the_dissector_reads_them_up_to_the_mark() {
        let good = "\
1|4|10.0.0.1|0x00005e|122|||RC Send Only QP=0x00005e | NVMe Get Log Page Commands Supported and Effects
2|7|10.0.0.2|0x00005e|1082||[Malformed Packet: NVMe Fabrics RDMA]|RC RDMA Write Middle QP=0x00005e [Malformed Packet]
3|23|10.0.0.2|0x00005e|78|||RC Send Only Invalidate QP=0x00005e | NVMe CQE for Get Log Page Commands Supported and Effects
4|0|10.0.0.1|0x00005e|1098|||RC Send First QP=0x00005e
5|4|10.0.0.2|0x00005e|74|||RC Send Only QP=0x00005e
6|100|10.0.0.1|0x000001|322|||CM: ConnectRequest
7|4|10.0.0.1|0x00005e|122|||RC Send Only QP=0x00005e | NVMeOF Connect
";
        let lines = capsules(good);
        let expected = [
            "Connect: 1",
            "Get Log Page: 1",
            "completions: 1",
            "not read: 1 commands of more than one packet and 1 completions, 1 parts of pages",
        ];
        assert_eq!(lines, expected);
        for bad in [
            "8|4|10.0.0.1|0x00005e|122|||RC Send Only QP=0x00005e",
            "8|4|10.0.0.1|0x00005e|122||[Malformed Packet: NVMe Fabrics RDMA]|RC Send Only QP=0x00005e [Malformed Packet]",
        ] {
            let lines = capsules(&format!("{good}{bad}\n"));
            assert!(
                lines.last().unwrap().contains("complains of frame 8"),
                "{lines:?}"
            );
            let mark = "8||10.0.0.1||1041|8||Echo (ping) request";
            assert_eq!(capsules(&format!("{good}{mark}\n{bad}\n")), expected);
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
