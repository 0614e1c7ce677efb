//! Judges the steps of `guest/card`.

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::vm::report::{Step, count_broken};
use crate::vm::{interop, stock};

/// MAC addresses of the first virtual function: the initial one and a later one.
const OUR_MAC: &str = "02:00:00:00:00:01";
const NEW_MAC: &str = "02:00:00:00:00:07";
/// Text in the server's report for frames that the e-switch dropped because their source address was forged.
const SPOOFED: &str = "source address is not the vport's";
/// Lines of an acceptance run that each function has.
const OF_EACH: [&str; 7] = [
    "self test",
    "doctor",
    "record",
    "RDMA alone",
    "bring-up",
    "port",
    "loopback",
];
/// Number of functions that are accepted.
const FUNCTIONS: usize = 2;
/// Lines of an acceptance run that are there once. The line `link` is skipped: it needs `ip link set PF vf` for the
/// link of a virtual function, which the guest's kernel cannot execute.
const ONCE: [&str; 9] = [
    "e-switch",
    "DTOs",
    "connections",
    "kernel peer",
    "reset",
    "unbind",
    "kill",
    "perf",
    "soak",
];
const SKIPPED: &str = "link";
/// Files that a diagnostic bundle must contain. Those with a number are there for each function.
const BUNDLE: [&str; 19] = [
    "bundle/report.txt",
    "bundle/report.json",
    "bundle/doctor-0.json",
    "bundle/doctor-1.json",
    "bundle/info-0.json",
    "bundle/info-1.json",
    "bundle/record-0.toml",
    "bundle/record-1.toml",
    "bundle/counters-e-switch.txt",
    "bundle/counters-e-switch.json",
    "bundle/counters-connections.json",
    "bundle/perf.json",
    "bundle/kernel.log",
    "bundle/machine-0-before.txt",
    "bundle/machine-0-after.txt",
    "bundle/machine-1-before.txt",
    "bundle/machine-1-after.txt",
    "bundle/trace.log",
    "bundle/wire.pcapng",
];

/// Texts of the errors that doorbells rung after a reset cause.
const AFTER_RESET: [&str; 2] = ["without a command queue", "which is not allocated"];

pub fn judge(step: &Step) -> Result<String> {
    match step.name.as_str() {
        "probe" => probe(step),
        "bind" => {
            let bound = step.lines_with(": bound to vfio-pci, was bound to mlx5_core");
            ensure!(bound.len() == 2, "{bound:?}");
            Ok(bound.join("\n"))
        }
        "huge-pages" => Ok(step.line_with("HugePages_Free")?.to_owned()),
        "stock" => Ok(step.line_with("stock ")?.to_owned()),
        "info" => {
            ports(step, &[true])?;
            listed(step, OUR_MAC)
        }
        "connect" | "listen" => interop::both(step),
        "ping" => {
            step.line_with("\"messages\":100,")?;
            Ok("100 messages".to_owned())
        }
        "interface-down" => interface_down(step),
        "spoofed" => {
            let ended = step.line_with("ours ended with ")?;
            ensure!(!ended.ends_with(" 0"), "what it sends still arrives");
            let reason = step.said.last().context("no reason")?;
            Ok(format!("{ended}: {}", reason.trim()))
        }
        "moved" => {
            listed(step, NEW_MAC)?;
            interop::both(step)
        }
        "by-ip" => {
            step.line_with("sriov_numvfs: No such file or directory")?;
            Ok(step.line_with("ip: ")?.to_owned())
        }
        "disabled" => ports(step, &[false]),
        "auto" => ports(step, &[true]),
        "enabled" => {
            let port = ports(step, &[true])?;
            ensure!(port.ends_with("\"up\""), "{port}");
            Ok(format!("{port}; {}", step.line_with(" 20 ")?.trim()))
        }
        "accept" => accept(step),
        "lost" => Ok(step.line_with(SPOOFED)?.to_owned()),
        "bundle" => {
            for file in BUNDLE {
                step.line_with(file)?;
            }
            Ok(format!("{} files", step.said.len() - 1))
        }
        "functions" => functions(step),
        _ => stock::judge(step),
    }
}

/// Checks that `mlx5_core` drives all three functions, and that the virtual functions have another device number than
/// the physical one.
fn probe(step: &Step) -> Result<String> {
    let lines = step.lines_with(" driver mlx5_core with ");
    let numbers: Vec<&str> = lines
        .iter()
        .filter_map(|line| line.split_whitespace().nth(1))
        .collect();
    let [physical, one, other] = numbers[..] else {
        anyhow::bail!("mlx5_core drives {lines:?}");
    };
    ensure!(physical != one && one == other, "{numbers:?}");
    Ok(lines.join("\n"))
}

/// Returns the parsed output of each `datctl info` in the step.
fn infos(step: &Step) -> Result<Vec<Value>> {
    let lines = step.said.iter().filter(|line| line.contains("\"link_up\""));
    let infos = lines.map(|line| {
        let mut info: Value = serde_json::from_str(line).context("datctl --json info")?;
        Ok(info["port"].take())
    });
    infos.collect()
}

/// Checks that each `datctl info` reports the link as up or down, as expected.
fn ports(step: &Step, wanted: &[bool]) -> Result<String> {
    let ports = infos(step)?;
    let up: Vec<bool> = ports.iter().map(|port| port["link_up"] == true).collect();
    ensure!(up == wanted, "the link is up: {up:?}, not {wanted:?}");
    let port = ports.last().context("no port was shown")?;
    Ok(format!(
        "link up: {up:?}; its owner says: {}",
        port["vport_admin"]
    ))
}

/// Checks that the function has this MAC address, and that the e-switch lists it.
fn listed(step: &Step, mac: &str) -> Result<String> {
    let ports = infos(step)?;
    let port = ports.last().context("no port was shown")?;
    ensure!(port["mac"] == mac, "its MAC is {}", port["mac"]);
    let list = &port["unicast"];
    let list = list.as_array().context("no list")?;
    ensure!(list.contains(&Value::from(mac)), "listed are {list:?}");
    Ok(format!("{mac}, and the e-switch knows"))
}

/// Checks an interface that goes down and up. A waiting program gets both events, a query shows the same state, a
/// connection attempt fails while the interface is down, and a later attempt succeeds.
fn interface_down(step: &Step) -> Result<String> {
    ports(step, &[false, true])?;
    step.line_with("event=the port is down")?;
    step.line_with("event=the port is up")?;
    let ended = step.line_with("to connect ended with ")?;
    ensure!(
        !ended.ends_with(" 0"),
        "a connection over a port that is down"
    );
    let refused = step
        .line_with("datctl: ")
        .or_else(|_| step.line_with("error"))?;
    Ok(format!("{}\n{}", refused.trim(), interop::both(step)?))
}

/// Checks the acceptance table: all lines passed, and only the line that cannot be run in the guest is skipped.
fn accept(step: &Step) -> Result<String> {
    let report = step.line_with("\"rows\":")?;
    let report: Value = serde_json::from_str(report).context("datctl --json accept")?;
    let rows = report["rows"].as_array().context("no rows")?;
    let mut said = Vec::new();
    for row in rows {
        let [line, verdict, found] = ["line", "verdict", "found"].map(|key| {
            let value = &row[key];
            value.as_str().unwrap_or_default().to_owned()
        });
        let wanted = if line == SKIPPED { "skipped" } else { "ok" };
        ensure!(verdict == wanted, "{line}: {verdict}: {found}");
        said.push(format!("{line}: {found}"));
    }
    let each = OF_EACH.iter().map(|line| (*line, FUNCTIONS));
    for (line, wanted) in each.chain(ONCE.iter().map(|line| (*line, 1))) {
        let count = rows.iter().filter(|row| row["line"] == line).count();
        ensure!(
            count == wanted,
            "{count} lines {line:?} instead of {wanted}"
        );
    }
    ensure!(report["ok"] == true, "not accepted");
    Ok(said.join("\n"))
}

/// Checks that neither driver made a mistake. Doorbells after a reset are allowed: a driver that is working when the
/// function is reset rings doorbells of queues that no longer exist until it notices the reset.
fn functions(step: &Step) -> Result<String> {
    let mistakes = step.broken_rules();
    let (after_reset, mistakes): (Vec<&str>, Vec<&str>) = mistakes
        .into_iter()
        .partition(|line| AFTER_RESET.iter().any(|what| line.contains(what)));
    ensure!(mistakes.is_empty(), "{}", mistakes.join("\n"));
    let refused = step.lines_with("the IOMMU refused");
    ensure!(refused.is_empty(), "{}", refused.join("\n"));
    Ok(format!(
        "no rule broken; {} doorbells after a reset",
        count_broken(&after_reset)
    ))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn info(up: bool, mac: &str, listed: &str) -> String {
        json!({ "port": { "mac": mac, "link_up": up, "vport_admin": "follows", "unicast": [listed] } })
            .to_string()
    }

    fn judged(name: &str, said: &[&str]) -> Result<String> {
        judge(&Step::succeeded(name, said))
    }

    #[test]
    fn a_port_has_to_say_what_was_done_to_it() {
        let (up, down) = (info(true, OUR_MAC, OUR_MAC), info(false, OUR_MAC, OUR_MAC));
        assert!(judged("info", &[&up]).is_ok());
        assert!(judged("disabled", &[&down]).is_ok());
        assert!(judged("disabled", &[&up]).is_err());
        assert!(judged("auto", &[]).is_err(), "no port was shown");
        let unlisted = info(true, OUR_MAC, NEW_MAC);
        assert!(judged("info", &[&unlisted]).is_err());
        assert!(judged("info", &[&info(true, NEW_MAC, NEW_MAC)]).is_err());
    }

    #[test]
    fn an_interface_that_goes_down_has_to_be_told_to_who_waits_and_to_who_asks() {
        let (up, down) = (info(true, OUR_MAC, OUR_MAC), info(false, OUR_MAC, OUR_MAC));
        let said = [
            down.as_str(),
            "datctl: the port is down",
            "to connect ended with 1",
            up.as_str(),
            "INFO dat_core::ia::call::address: network event=the port is down",
            "INFO dat_core::ia::call::address: network event=the port is up, 100000 Mb/s",
            " messages  bytes  shortest   median     longest",
            " 20        64     2646.0 us  7953.7 us  26707.3 us",
            "client 0 server 0",
        ];
        assert!(judged("interface-down", &said).is_ok());
        for missing in [0, 1, 2, 3, 4, 5, 8] {
            let mut less = said.to_vec();
            less.remove(missing);
            assert!(judged("interface-down", &less).is_err(), "{missing}");
        }
        let mut connected = said;
        connected[2] = "to connect ended with 0";
        assert!(judged("interface-down", &connected).is_err());
    }

    #[test]
    fn what_pretends_has_to_fail_and_to_be_counted() {
        assert!(judged("spoofed", &["ours ended with 1", "datctl: no answer"]).is_ok());
        assert!(judged("spoofed", &["ours ended with 0", "fine"]).is_err());
        assert!(
            judged(
                "lost",
                &["lost 8 frames: source address is not the vport's"]
            )
            .is_ok()
        );
        assert!(judged("lost", &["lost 8 frames: port down"]).is_err());
    }

    /// Returns the report of an acceptance run in which the lines `link` and `changed` have these verdicts.
    fn report(link: &str, changed: &str, verdict: &str) -> Value {
        let each = OF_EACH.iter().flat_map(|line| [line; FUNCTIONS]);
        let lines = each.chain(&ONCE).map(|line| {
            let verdict = if *line == changed { verdict } else { "ok" };
            json!({ "line": line, "verdict": verdict, "found": "well" })
        });
        let mut rows: Vec<Value> = lines.collect();
        rows.push(json!({ "line": SKIPPED, "verdict": link, "found": "its cable" }));
        json!({ "ok": true, "rows": rows })
    }

    fn accepted(report: &Value) -> bool {
        let progress = "ok       soak of 0000:02:00.0, 18.0 s";
        judged("accept", &[progress, &report.to_string()]).is_ok()
    }

    #[test]
    fn an_acceptance_run_has_all_its_lines_and_skips_the_one_that_cannot_be_done() {
        assert!(accepted(&report("skipped", "soak", "ok")));
        assert!(!accepted(&report("ok", "soak", "ok")));
        for line in OF_EACH.iter().chain(&ONCE) {
            assert!(!accepted(&report("skipped", line, "skipped")), "{line}");
        }
        let whole = report("skipped", "soak", "ok");
        for missing in 0..FUNCTIONS * OF_EACH.len() + ONCE.len() {
            let mut less = whole.clone();
            let rows = less["rows"].as_array_mut().expect("rows");
            let removed = rows.remove(missing);
            assert!(!accepted(&less), "{removed}");
        }
        assert!(!accepted(&json!({ "ok": true, "rows": [] })));
    }

    /// The lines are those of the calls `self.row("NAME", …)` in `datctl accept`.
    #[test]
    fn the_judge_knows_every_line_that_an_acceptance_run_has() {
        let path = crate::shell::root().join("datctl/src/accept/mod.rs");
        let text = std::fs::read_to_string(&path).expect("datctl accept");
        let calls = text.split("self.row(\"").skip(1);
        let mut has: Vec<&str> = calls.filter_map(|call| call.split('"').next()).collect();
        let mut knows = [&OF_EACH[..], &ONCE[..], &[SKIPPED]].concat();
        has.sort_unstable();
        knows.sort_unstable();
        assert_eq!(knows, has);
    }

    #[test]
    fn a_bundle_without_one_of_its_files_fails() {
        let mut whole = vec!["bundle/"];
        whole.extend(BUNDLE);
        assert_eq!(judged("bundle", &whole).expect("whole"), "19 files");
        for missing in 1..whole.len() {
            let mut less = whole.clone();
            let removed = less.remove(missing);
            assert!(judged("bundle", &less).is_err(), "{removed}");
        }
    }

    #[test]
    fn doorbells_behind_a_reset_are_no_mistake_and_everything_else_is() {
        let after = "sim:card/vf0: driver bug: command doorbell 0x1 without a command queue";
        assert!(judged("functions", &[after]).is_ok());
        let mistake = "sim:card/vf0: driver bug: a write behind a UMR without a fence";
        assert!(judged("functions", &[after, mistake]).is_err());
        assert!(judged("functions", &["sim:card/vf1: the IOMMU refused the key"]).is_err());
    }
}
