//! A subnet that a stock program manages: opensm runs on one of two InfiniBand ports that a switch connects. Debian's
//! infiniband-diags, IPoIB and `rdma_cm` use the subnet.
//!
//! The ports are in Init and have no LID until opensm has configured them. ([`REPORT`] lists the requests to the
//! functions.)

use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::vm::functions::Slots;
use crate::vm::image::Image;
use crate::vm::report::Step;
use crate::vm::suite::{Ssd, Suite};

/// Name of the report of the requests to the functions.
const REPORT: &str = "report-subnet.txt";
/// Number of ports of the functions, without those of the switch.
const PORTS: usize = 2;

/// Returns the suite.
pub fn subnet() -> Suite {
    Suite {
        image: Image {
            name: "stock-subnet",
            modules: &[
                "ib_uverbs",
                "ib_umad",
                "rdma_ucm",
                "ib_ipoib",
                "mlx5_core",
                "mlx5_ib",
            ],
            packages: &[
                "ibverbs-utils",
                "ibverbs-providers",
                "iproute2",
                "infiniband-diags",
                "opensm",
                "rdmacm-utils",
            ],
            script: concat!(
                include_str!("../guest/roce"),
                include_str!("../guest/stock-subnet")
            ),
            variables: &[],
        },
        slots: Slots::Linked,
        ssd: Ssd::None,
        memory: "1G",
        patience: Duration::from_secs(900),
        serve: &[
            "--profile",
            "ib,sm=outside",
            "--switch",
            "ib",
            "--report",
            REPORT,
        ],
        beside: None,
        lost: None,
        programs: |_| Ok(Vec::new()),
        shown: &[],
        judge,
    }
}

fn judge(step: &Step) -> Result<String> {
    match step.name.as_str() {
        "waiting" => every(step, "2: INIT, 5: LinkUp, LID 0x0"),
        "opensm" => {
            every(step, "4: ACTIVE, LID")?;
            Ok(step.line_with("SUBNET UP")?.to_owned())
        }
        "ibstat" => every(step, "State: Active"),
        "ibnetdiscover" => discovered(step, PORTS, 1),
        "iblinkinfo" => linked(step, PORTS),
        "sminfo" => Ok(step.line_with("SMINFO_MASTER")?.to_owned()),
        "saquery" => {
            let records = step.lines_with("NodeRecord dump").len();
            ensure!(records == PORTS + 1, "{records} nodes");
            Ok(format!("{records} nodes"))
        }
        "smpquery" => {
            step.line_with("NodeType:........................Switch")?;
            step.line_with("LinkState:.......................Active")?;
            Ok(step.line_with("LinearFdbTop:")?.to_owned())
        }
        "perfquery" => cleared(step),
        "ipoib" => Ok(step.line_with(" 0% packet loss")?.to_owned()),
        "rdma_cm" => {
            step.both_succeeded()?;
            Ok("rping, 20 rounds".to_owned())
        }
        "ibportstate" => {
            step.line_with("2 is off: 1: DOWN")?;
            Ok(step.line_with("2 is on: 4: ACTIVE")?.to_owned())
        }
        "opensm-log" => {
            let complaints = step.lines_with("ERR ").len();
            ensure!(complaints == 0, "{}", step.said.join("\n"));
            Ok("no error".to_owned())
        }
        _ => super::judge(step),
    }
}

/// Checks that the output has this text once for each port.
fn every(step: &Step, what: &str) -> Result<String> {
    let ports = step.lines_with(what);
    ensure!(ports.len() == PORTS, "{} ports: {what}", ports.len());
    Ok(ports[0].trim().to_owned())
}

/// Checks that ibnetdiscover found this many adapters and switches.
pub(super) fn discovered(step: &Step, adapters: usize, switches: usize) -> Result<String> {
    let found = ["Ca\t", "Switch\t"].map(|node| step.lines_with(node).len());
    let said = format!("{} adapters, {} switches", found[0], found[1]);
    ensure!(found == [adapters, switches], "{said}");
    Ok(said)
}

/// Checks that iblinkinfo lists this many active cables, each at both of its ends.
pub(super) fn linked(step: &Step, cables: usize) -> Result<String> {
    let ends = step.lines_with("Active/  LinkUp");
    ensure!(
        ends.len() == 2 * cables,
        "{} ends of active links",
        ends.len()
    );
    Ok(ends[0].trim().to_owned())
}

/// Checks that the packet counter is lower after the counters were cleared. Returns both values.
pub(super) fn cleared(step: &Step) -> Result<String> {
    let packets = |line: &&str| {
        let number = line.rsplit('.').next().unwrap_or_default();
        number.parse::<u64>().with_context(|| (*line).to_owned())
    };
    let counts = step.lines_with("PortRcvPkts:");
    let counts: Vec<u64> = counts.iter().map(packets).collect::<Result<_>>()?;
    let (first, last) = (counts.first().copied(), counts.last().copied());
    let (first, last) = first.zip(last).context("no counters")?;
    ensure!(last < first, "{counts:?} packets, cleared before the last");
    Ok(format!("{first} packets, {last} after they were cleared"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_subnet_of_which_one_port_is_not_up_fails() {
        let port = "4: ACTIVE, LID 0x1, SM LID 0x1";
        let up = "SUBNET UP";
        assert!(judge(&Step::succeeded("opensm", &[port, port, up])).is_ok());
        assert!(judge(&Step::succeeded("opensm", &[port, up])).is_err());
        assert!(judge(&Step::succeeded("opensm", &[port, port])).is_err());
    }

    #[test]
    fn counters_that_a_set_does_not_clear_fail() {
        let said = [
            "PortRcvPkts:.....................90",
            "PortRcvPkts:.....................3",
        ];
        assert_eq!(
            judge(&Step::succeeded("perfquery", &said)).expect("cleared"),
            "90 packets, 3 after they were cleared"
        );
        assert!(judge(&Step::succeeded("perfquery", &[said[1], said[0]])).is_err());
    }
}
