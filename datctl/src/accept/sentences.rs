//! One sentence for each line that can fail, which distinguishes the possible causes.
//!
//! `docs/hardware.md` has the same sentences, and describes the lines.

/// Names of lines, each with the sentence that distinguishes the causes of the line's failure.
const SENTENCES: [(&str, &str); 17] = [
    (
        "doctor",
        "If `iommu`, `driver`, `pf driver` or `pf setup` is named, every line behind fails with it; if it is `vf …`, `pf interface` or `eswitch mode`, only those between two functions do.",
    ),
    (
        "record",
        "A command that was refused has a status and a syndrome (`datctl explain`); one that was not answered is the firmware's silence or memory that it cannot reach, and `kernel.log` then has faults of the IOMMU.",
    ),
    (
        "RDMA alone",
        "If `record` is ok, the command that is named here (queue pair, key, counter set, address) is what the function may not do; if this is ok and `bring-up` is not, it is the Ethernet path, and `,network=off` does without it.",
    ),
    (
        "bring-up",
        "If bring-up 1 fails and `RDMA alone` is ok, it is the Ethernet path; if a later one or an end fails, the one before left something behind, which the text names.",
    ),
    (
        "port",
        "If the vport's owner says down, the virtual function was switched off; if it says anything else, the physical function's interface or the cable is down; if the link is up and the MAC is missing, the vport's list was refused or reads otherwise (`record-N.toml`, its commands).",
    ),
    (
        "loopback",
        "A refused command is a capability or a limit; a completion with an error has a syndrome (`datctl explain`); no event at all is the interrupt or the doorbell; bytes that are wrong are DMA.",
    ),
    (
        "e-switch",
        "If frames were sent and not received, it is the e-switch (the lines `vf …` of doctor, switchdev without a bridge, a BlueField whose Arm does not forward) or the wire; if none was sent, the neighbour was not found or the sender is at fault; if all were received, the receiver is.",
    ),
    (
        "DTOs",
        "If `loopback` is ok and short messages pass here and long ones do not, an MTU on the way is too small; if all sizes fail alike, it is what `e-switch` says.",
    ),
    (
        "connections",
        "If connection 0 fails, it is what `e-switch` says; if a later one does, frames are lost (`out_of_sequence`, `local_ack_timeout_err` in the text) or objects are not given back.",
    ),
    (
        "kernel peer",
        "If the neighbour is not found, it is VLAN, address or `--neighbour`; if the peer rejects, it is its port or an rping without -S 4096; if `DTOs` is ok and messages differ here, it is our mistake.",
    ),
    (
        "link",
        "If the port never says down, the physical function's driver does not obey `state disable`; if it never says up again, the port has no link.",
    ),
    (
        "reset",
        "If nothing was noticed, the function was not reset, or its health is read from a cache; if it does not open again, the kernel's log has why.",
    ),
    (
        "unbind",
        "If nothing was noticed, the kernel's request did not reach us (`vfio-pci`'s request interrupt); if it does not open again, it was not bound back.",
    ),
    (
        "kill",
        "If the other one notices nothing, retries of its queue pair do not end; if the killed one does not open again, another process still has its group open.",
    ),
    (
        "perf",
        "If `DTOs` is ok, what fails here is load: look at `out_of_sequence` and at the pauses and discards of the physical port.",
    ),
    (
        "soak",
        "The connection and the message say when it began: in the kernel's log the same moment tells the bus, the firmware and the link apart.",
    ),
    (
        "self test",
        "The error names the layer. `bring-up` or `command`: status and syndrome (`datctl explain`). `doorbell` or `queue`: the mapping of the UAR or an I/O address (`kernel.log`). `completion` or `data`: a key or DMA. `interrupt`: MSI-X or interrupt remapping.",
    ),
];

/// Returns the names of all lines.
pub(super) fn lines() -> [&'static str; 17] {
    SENTENCES.map(|(name, _)| name)
}

/// Returns the sentence that distinguishes the causes of this line's failure.
pub(super) fn sentence(line: &str) -> Option<&'static str> {
    let found = SENTENCES.iter().find(|(name, _)| *name == line);
    found.map(|(_, sentence)| *sentence)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_of_the_run_has_a_sentence_and_the_page_has_the_same() {
        let run = include_str!("mod.rs");
        let lines = run.split("self.row(\"").skip(1);
        let lines: Vec<&str> = lines.filter_map(|rest| rest.split('"').next()).collect();
        assert!(lines.len() >= 16, "{lines:?}");
        let page = include_str!("../../../docs/hardware.md");
        for line in lines {
            let sentence = sentence(line).unwrap_or_else(|| panic!("{line}: no sentence"));
            let row = page
                .lines()
                .find(|row| row.starts_with(&format!("| {line} |")));
            let row = row.unwrap_or_else(|| panic!("{line}: no row in docs/hardware.md"));
            assert!(row.contains(sentence), "{line}: {row}");
        }
    }
}
