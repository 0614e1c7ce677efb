//! Checks a capture with independent programs: Wireshark's dissector, and scapy's computation of the ICRC.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use comfy_table::Table;

use crate::{left_out, setup, shell};

/// Python script that computes the ICRC of every packet with scapy and compares it with the captured ICRC.
const ICRC_SCRIPT: &str = include_str!("../scripts/icrc.py");

/// Opcodes of the base transport header that the campaign uses only for calls beyond DAT 1.2 (IBTA volume 1, "OpCode
/// field").
pub const EXTENSIONS: [(u8, &str); 4] = [
    (3, "SEND last with immediate"),
    (5, "SEND only with immediate"),
    (18, "ATOMIC acknowledge"),
    (20, "FetchAdd"),
];

/// Options that stop tshark from dissecting payloads. By default tshark takes some payload bytes for nested frames and
/// reports them as malformed, such as 24 packets of a demo that transferred an executable.
const AS_BYTES: [&str; 2] = ["-o", "infiniband.identify_payload:FALSE"];

/// Checks a capture, which must contain each of these operations. A check whose tool is missing is left out with a
/// message.
pub fn run(capture: &Path, operations: &[(u8, &str)]) -> Result<()> {
    let name = capture
        .to_str()
        .context("the capture's path is not UTF-8")?;
    let mut table = Table::new();
    table.set_header(["witness", "what", "result"]);
    if shell::exists("tshark") {
        let malformed = [&AS_BYTES[..], &["-Y", "_ws.malformed"]].concat();
        let malformed = tshark(name, &malformed)?.lines().count();
        table.add_row(["tshark", "malformed packets", &malformed.to_string()]);
        let protocols = tshark(name, &["-T", "fields", "-e", "frame.protocols"])?;
        let packets = protocols.lines().count();
        let with = |protocol| {
            let lines = protocols.lines();
            lines.filter(|line| line.contains(protocol)).count()
        };
        let roce = with("udp:infiniband");
        // Frames of ARP and neighbour discovery.
        let neighbours = with("arp") + with("icmpv6");
        table.add_row([
            "tshark",
            "packets, of them RoCEv2, of them ARP and neighbour discovery",
            &format!("{packets}, {roce}, {neighbours}"),
        ]);
        let mut cm = String::new();
        for (attribute, message) in [
            ("0x0010", "ConnectRequest"),
            ("0x0013", "ConnectReply"),
            ("0x0014", "ReadyToUse"),
            ("0x0015", "DisconnectRequest"),
            ("0x0016", "DisconnectReply"),
        ] {
            let filter = format!(
                "infiniband.mad.mgmtclass == 0x07 && infiniband.mad.attributeid == {attribute}"
            );
            let count = tshark(name, &["-Y", &filter])?.lines().count();
            ensure!(count > 0, "tshark finds no CM {message} in {name}");
            cm += &format!("{message} {count}  ");
        }
        table.add_row(["tshark", "CM messages", cm.trim()]);
        for (opcode, operation) in operations {
            let filter = format!("infiniband.bth.opcode == {opcode}");
            let count = tshark(name, &["-Y", &filter])?.lines().count();
            ensure!(count > 0, "tshark finds no {operation} in {name}");
            table.add_row(["tshark", operation, &count.to_string()]);
        }
        ensure!(malformed == 0, "tshark calls {malformed} packets malformed");
        check_sum(packets, roce, neighbours)?;
    } else {
        left_out::say(
            "the dissector of Wireshark",
            "tshark is not installed (cargo xtask setup)",
        );
    }
    if setup::scapy() {
        let report = shell::capture(shell::command(
            "/usr/bin/python3",
            &["-c", ICRC_SCRIPT, name],
        ))?;
        table.add_row(["scapy", "ICRC", report.trim()]);
    } else {
        left_out::say(
            "ICRCs computed by scapy",
            "it is not installed (cargo xtask setup)",
        );
    }
    println!("{table}");
    Ok(())
}

/// Checks that there are RoCEv2 packets, and that their number and the number of packets of ARP and neighbour discovery
/// add up to all packets. A frame that contains another frame may count as both, so the sum can also be too large.
fn check_sum(packets: usize, roce: usize, neighbours: usize) -> Result<()> {
    ensure!(
        roce > 0 && roce + neighbours == packets,
        "of {packets} packets {roce} are RoCEv2 and {neighbours} of neighbours"
    );
    Ok(())
}

/// Returns the output of `tshark` on a capture.
pub fn tshark(capture: &str, arguments: &[&str]) -> Result<String> {
    // tshark's heuristics would take some of our programs' messages for malformed RPC over RDMA.
    let quiet = ["--disable-protocol", "rpcordma"];
    let mut command = shell::command("tshark", &quiet);
    command.args(["-r", capture]);
    command.args(arguments);
    shell::capture(command)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_of_no_kind_and_packets_of_two_kinds_are_reported_with_their_numbers() {
        assert!(check_sum(5, 3, 2).is_ok());
        assert!(check_sum(2, 0, 2).is_err(), "no RoCEv2");
        for (packets, roce, neighbours) in [(6, 3, 2), (4, 3, 2)] {
            let error = check_sum(packets, roce, neighbours).expect_err("a wrong sum");
            assert_eq!(
                error.to_string(),
                format!("of {packets} packets 3 are RoCEv2 and 2 of neighbours")
            );
        }
    }
}
