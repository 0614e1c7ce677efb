//! Judges the steps of `guest/vfio`.

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::vm::libtest;
use crate::vm::report::Step;

/// Text that the server logs for the function whose mapping the test `iommu` removes.
const REFUSED: &str = "1.sock: the IOMMU refused the key";
/// Number of functions in the guest.
const FUNCTIONS: usize = 2;

/// Judges a step and returns its figures.
pub fn judge(step: &Step) -> Result<String> {
    match step.name.as_str() {
        "bind" => bind(step),
        "doctor" => doctor(step),
        "info" => info(step),
        "daemon" => daemon(step),
        "ping" => ping(step),
        "perf" => perf(step),
        "demo" => demo(step),
        "functions" => functions(step),
        "given" => handover(step),
        "parked" => parked(step),
        name if name.starts_with("ppoll-") => without_rings(step),
        "ssd" => ssd(step),
        "huge-pages" => Ok(step.line_with("HugePages_Free")?.to_owned()),
        _ => libtest::judge(step),
    }
}

/// Checks that vfio-pci has both functions, each in an IOMMU group of its own, and that the kernel uses an IOMMU.
fn bind(step: &Step) -> Result<String> {
    let bound = step.lines_with("driver vfio-pci IOMMU group ");
    ensure!(
        bound.len() == FUNCTIONS,
        "vfio-pci owns {} functions",
        bound.len()
    );
    let groups: Vec<&str> = bound
        .iter()
        .filter_map(|line| line.split_whitespace().last())
        .collect();
    ensure!(groups[0] != groups[1], "both are in IOMMU group {groups:?}");
    for group in groups {
        step.line_with(&format!("/dev/vfio/{group}"))?;
    }
    step.line_with("DMAR: Intel(R) Virtualization Technology for Directed I/O")?;
    Ok(bound.join("\n"))
}

/// Checks that QEMU's SSD was taken from the kernel's driver, after two refusals, and its test. The figure is the
/// number of I/Os.
fn ssd(step: &Step) -> Result<String> {
    for line in [
        "not taken from nvme, because nvme0n1 is a swap area: end that use first",
        "has /dev/nvme0n1 open: end that use first",
        "bound to vfio-pci, was bound to nvme",
    ] {
        step.line_with(line)?;
    }
    step.line_with("test result: ok. 1 passed")?;
    Ok(step.line_with("I/Os compared on")?.to_owned())
}

fn json(step: &Step) -> Result<Value> {
    serde_json::from_str(&step.said.join("\n")).context("datctl --json")
}

/// Checks that every line of the checklist is ok, including the optional lines. The line `pf setup` may be unknown,
/// since the guest has no mlxconfig.
fn doctor(step: &Step) -> Result<String> {
    /// Checklist lines that concern the machine.
    const MACHINE: [&str; 4] = ["iommu", "interrupt remapping", "modules", "io_uring"];
    /// Checklist lines that each function has.
    const FUNCTION: [&str; 4] = ["driver", "group", "access", "reset"];
    let diagnosis = json(step)?;
    let lines = diagnosis["lines"].as_array().context("no lines")?;
    for line in lines {
        let is_unknown_setup = line["check"] == "pf setup" && line["ok"].is_null();
        ensure!(is_unknown_setup || line["ok"] == true, "not ok: {line}");
    }
    let count = |check: &str| lines.iter().filter(|line| line["check"] == check).count();
    for check in MACHINE {
        ensure!(count(check) == 1, "{check} is not looked at");
    }
    for check in FUNCTION {
        ensure!(
            count(check) == FUNCTIONS,
            "{check} is not looked at for each function"
        );
    }
    Ok(format!("{} lines ok", lines.len()))
}

fn info(step: &Step) -> Result<String> {
    let firmware = step.line_with("firmware")?.trim();
    step.line_with("0000:01:00.0")?;
    Ok(firmware.to_owned())
}

/// Checks that the daemon opened the function and printed its firmware version and port.
fn daemon(step: &Step) -> Result<String> {
    let firmware = step.line_with("firmware ")?.trim();
    step.line_with("port: MAC ")?;
    step.line_with("the firmware has ")?;
    Ok(firmware.to_owned())
}

/// Texts that `guest/handover.c` prints when a process continues to use the function of another process.
const GONE_ON: [&str; 5] = [
    "the queue's address reads 0x10000000",
    "the device wrote into the first memory",
    "the vector has counted 2",
    "the first memory is unmapped",
    "done",
];

/// Checks that a process continued to use the function of another process. The function must not have been reset in
/// between, and must have been reset when the second process had closed it.
pub(in crate::vm) fn handover(step: &Step) -> Result<String> {
    for text in GONE_ON {
        step.line_with(text)?;
    }
    let process = |text: &str| -> Result<_> {
        Ok(step.line_with(text)?.split_once(text).map(|(_, pid)| pid))
    };
    let first = process("opened by ")?;
    let second = process("the device wrote into memory of ")?;
    ensure!(first != second, "process {first:?} did both");
    let line = step.line_with("resets: ")?;
    let counts: Vec<u64> = line
        .split(|sign: char| !sign.is_ascii_digit())
        .filter_map(|digits| digits.parse().ok())
        .collect();
    let [before, after, end] = counts[..] else {
        anyhow::bail!("{line}");
    };
    ensure!(before > 0 && before == after, "it was reset: {line}");
    ensure!(end > after, "the last close did not reset it: {line}");
    Ok(line.to_owned())
}

/// Texts in the figures of the test `restarted`.
const CHAINED: [&str; 5] = [
    " handovers of 64 connections",
    "counters of repetitions and errors are unchanged",
    "longest time between two answers",
    "without the adapter, ms",
    "snapshot, KiB",
];

/// Checks that an adapter with its connections went from process to process, and that its function was not reset
/// meanwhile. Returns the figures.
pub(in crate::vm) fn parked(step: &Step) -> Result<String> {
    let figures = libtest::figures(step)?;
    for text in CHAINED {
        ensure!(
            figures.iter().any(|line| line.contains(text)),
            "no figure contains {text:?}"
        );
    }
    let resets = figures.iter().find(|line| line.starts_with("resets: "));
    let resets = resets.context("no figure of resets")?;
    let (before, after) = resets
        .strip_prefix("resets: ")
        .and_then(|it| it.strip_suffix(" after")?.split_once(" before, "))
        .with_context(|| (*resets).to_owned())?;
    ensure!(before.parse::<u64>()? > 0 && before == after, "{resets}");
    Ok(figures.join("\n"))
}

/// Beginning of the error of a program that needs a disk and may not use io_uring (`driver::ReactorError::NoDisks`).
const NO_DISKS: &str = "disks need io_uring, which this process may not use";

/// Checks a program that ran while the kernel refused io_uring. A program that only waits must work; a program that
/// needs a disk must fail and say why. A kernel that cannot refuse io_uring is accepted.
fn without_rings(step: &Step) -> Result<String> {
    if let [line] = step.lines_with(" has no io_uring_disabled")[..] {
        return Ok(format!("left out: {line}"));
    }
    let (code, said) = match step.name.as_str() {
        "ppoll-doctor" => (
            0,
            step.line_with("waiting goes by ppoll(2), and disks are refused")
                .map(|_| "says what is left".to_owned()),
        ),
        "ppoll-ping" => (
            0,
            step.line_with("\"messages\":100,")
                .map(|_| "100 messages".to_owned()),
        ),
        "ppoll-daemon" => (0, daemon(step)),
        "ppoll-demo" | "ppoll-nvmeofd" => (
            1,
            step.line_with(NO_DISKS).map(|line| line.trim().to_owned()),
        ),
        name => anyhow::bail!("no program is known as {name}"),
    };
    step.line_with(&format!(
        "io_uring_disabled 2, the command ended with {code}, io_uring_disabled 0"
    ))?;
    said
}

fn ping(step: &Step) -> Result<String> {
    let trips = json(step)?;
    let (messages, median) = (&trips["messages"], &trips["median_us"]);
    ensure!(messages.as_u64() > Some(0), "no messages");
    Ok(format!(
        "{messages} of {} bytes there and back, median {:.0} us",
        trips["bytes"],
        number(median)?
    ))
}

/// Checks that each operation was measured, and returns both figures of each row.
fn perf(step: &Step) -> Result<String> {
    let figures = json(step)?;
    let rows = figures["rows"].as_array().context("no rows")?;
    let mut text = Vec::new();
    for operation in ["send", "write", "read"] {
        let rows: Vec<&Value> = rows
            .iter()
            .filter(|row| row["operation"] == operation)
            .collect();
        ensure!(!rows.is_empty(), "{operation} was not measured");
        for row in rows {
            text.push(format!(
                "{operation} {} bytes: {:.0} us, {:.2} MB/s",
                row["bytes"],
                number(&row["latency"]["median_us"])?,
                number(&row["bandwidth"]["bytes_per_second"])? / 1e6
            ));
        }
    }
    Ok(text.join("\n"))
}

fn number(value: &Value) -> Result<f64> {
    value
        .as_f64()
        .filter(|number| *number > 0.0)
        .with_context(|| format!("{value} is no figure"))
}

/// Checks that four kinds of DTO transferred the same bytes, that a copy is on disk, and that both sides ended in
/// order.
fn demo(step: &Step) -> Result<String> {
    let mut figures = Vec::new();
    for kind in ["Send/Recv", "Send/Recv by SRQ", "RDMA Write", "RDMA Read"] {
        let row = step
            .said
            .iter()
            .map(|line| line.split('|').map(str::trim).collect::<Vec<_>>())
            .find(|cells| cells.get(1) == Some(&kind))
            .with_context(|| format!("no line about {kind}"))?;
        let [_, _, messages, bytes, .., speed, verified, _] = row[..] else {
            anyhow::bail!("{kind}: {row:?}");
        };
        ensure!(verified == "yes", "{kind}: the bytes differ");
        figures.push(format!(
            "{kind}: {bytes} bytes in {messages} messages, {speed} MB/s, verified"
        ));
    }
    ensure!(
        step.line_with("written back by io_uring")?
            .ends_with("(yes)"),
        "the copy differs"
    );
    for side in ["side A: orderly disconnect", "side B: orderly disconnect"] {
        step.line_with(side)?;
    }
    Ok(figures.join("\n"))
}

/// Checks that the functions report no mistake of their drivers. The only refused accesses must be those that the test
/// `iommu` provokes.
fn functions(step: &Step) -> Result<String> {
    let mistakes = step.broken_rules();
    ensure!(mistakes.is_empty(), "{}", mistakes.join("\n"));
    let refused = step.lines_with("the IOMMU refused");
    let wanted = refused.iter().filter(|line| line.contains(REFUSED)).count();
    ensure!(
        wanted > 0,
        "no access was refused, where a test takes a mapping away"
    );
    ensure!(
        wanted == refused.len(),
        "accesses refused that should not have been made:\n{}",
        refused.join("\n")
    );
    Ok(format!(
        "{wanted} accesses refused, as a test wants it\n{}",
        refused[0]
            .split_once("sim:")
            .map_or(refused[0], |(_, what)| what)
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns whether a doctor step passes that has this line in addition to the required lines.
    fn is_well(line: &str) -> bool {
        let machine = ["iommu", "interrupt remapping", "modules", "io_uring"].iter();
        let functions = ["driver", "group", "access", "reset"].iter();
        let well = |check: &&str| format!(r#"{{"check":"{check}","ok":true}}"#);
        let lines: Vec<String> = machine
            .chain(functions.clone())
            .chain(functions)
            .map(well)
            .chain([line.to_owned()])
            .collect();
        let said = format!(r#"{{"ok":true,"lines":[{}]}}"#, lines.join(","));
        judge(&Step::succeeded("doctor", &[said.as_str()])).is_ok()
    }

    #[test]
    fn a_reset_between_two_processes_is_noticed() {
        for (resets, well) in [
            ("resets: 4 before, 4 after, 5 at the end", true),
            ("resets: 4 before, 5 after, 6 at the end", false),
            ("resets: 4 before, 4 after, 4 at the end", false),
            ("resets: no answer before, 4 after, 4 at the end", false),
        ] {
            let mut said = GONE_ON.to_vec();
            said.extend(["opened by 7", "the device wrote into memory of 8", resets]);
            assert_eq!(handover(&Step::succeeded("given", &said)).is_ok(), well);
        }
    }

    #[test]
    fn a_reset_of_a_parked_adapter_and_a_missing_figure_are_noticed() {
        let all: Vec<String> = CHAINED.map(|text| format!("figure: 100{text} 1.0")).into();
        let judged = |resets: &str, figures: &[String]| {
            let resets = format!("figure: {resets}");
            let passed = "test result: ok. 1 passed; 0 failed";
            let said: Vec<&str> = ["on functions a and b", passed, &resets]
                .into_iter()
                .chain(figures.iter().map(String::as_str))
                .collect();
            judge(&Step::succeeded("parked", &said))
        };
        assert!(judged("resets: 4 before, 4 after", &all).is_ok());
        assert!(judged("resets: 4 before, 5 after", &all).is_err());
        assert!(judged("resets: 0 before, 0 after", &all).is_err());
        for missing in 0..all.len() {
            let mut some = all.clone();
            some.remove(missing);
            let judged = judged("resets: 4 before, 4 after", &some);
            assert!(judged.is_err(), "{missing}");
        }
    }

    #[test]
    fn without_io_uring_a_program_that_waits_works_and_one_that_needs_a_disk_says_why_not() {
        let ended = |code: u32| {
            format!("io_uring_disabled 2, the command ended with {code}, io_uring_disabled 0")
        };
        let judged = |name: &str, said: &[&str], code: &str| {
            judge(&Step::succeeded(name, &[said, &[code]].concat()))
        };
        let trips = r#"{"bytes":64,"messages":100,"median_us":700.0}"#;
        assert!(judged("ppoll-ping", &[trips], &ended(0)).is_ok());
        assert!(judged("ppoll-ping", &[trips], &ended(1)).is_err());
        assert!(judged("ppoll-ping", &[], &ended(0)).is_err());
        let still_on = "io_uring_disabled 0, the command ended with 0, io_uring_disabled 0";
        assert!(judged("ppoll-ping", &[trips], still_on).is_err());
        let left_off = "io_uring_disabled 2, the command ended with 0, io_uring_disabled 2";
        assert!(judged("ppoll-ping", &[trips], left_off).is_err());
        let old = "Linux 6.1.0-50-amd64 has no io_uring_disabled";
        assert!(judge(&Step::succeeded("ppoll-ping", &[old])).is_ok());
        let refused = udapl::reactor::ReactorError::NoDisks {
            source: std::io::Error::from_raw_os_error(1),
        };
        let refused = refused.to_string();
        for name in ["ppoll-demo", "ppoll-nvmeofd"] {
            assert!(judged(name, &[&refused], &ended(1)).is_ok(), "{name}");
            assert!(judged(name, &[&refused], &ended(0)).is_err(), "{name}");
            assert!(
                judged(name, &["Error: EPERM"], &ended(1)).is_err(),
                "{name}"
            );
        }
        assert!(judged("ppoll-other", &[trips], &ended(0)).is_err());
    }

    #[test]
    fn every_line_of_the_checklist_is_ok_but_a_setup_that_cannot_be_asked_for() {
        for (check, ok, required, well) in [
            ("numa", "true", true, true),
            ("numa", "false", false, false),
            ("numa", "null", false, false),
            ("pf setup", "true", true, true),
            ("pf setup", "null", true, true),
            ("pf setup", "false", true, false),
            ("pf setup", "false", false, false),
        ] {
            let line = format!(r#"{{"check":"{check}","ok":{ok},"required":{required}}}"#);
            assert_eq!(is_well(&line), well, "{line}");
        }
    }
}
