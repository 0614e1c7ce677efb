//! The NVMe over RDMA targets over a wire that loses and reorders packets: with and without adaptive retransmission.
//!
//! The guest is that of `nvme compare`: the kernel's target and ours, one after the other, with the kernel's own host.
//! One packet in a hundred is lost, and another one is reordered. Both suites have a ConnectX-5; in one of them it
//! lacks the capability `roce_accl`, without which nothing is retransmitted before the ACK timeout. The kernel's
//! counters show how losses were noticed. Rates depend on the load of the machine; only large
//! differences mean something.

use anyhow::{Context, Result, ensure};

use super::functions::{self, Slots};
use super::image::{Image, Program};
use super::machine::Machine;
use super::report::Step;
use super::suite::{PATIENCE, Ssd, Suite};
use super::{compare, stock};

/// Profile of a card without adaptive retransmission, and its path in the folder of the run.
const WITHOUT: &str = "\
name = \"connectx-5-slow\"
title = \"ConnectX-5 without RoCE adaptive retransmission\"
base = \"connectx-5\"

[general]
roce_accl = { is = 0, unknown = \"switched off for this measurement\" }
";
const WITHOUT_PATH: &str = "run/connectx-5-slow.toml";
/// Number of loads measured with each target.
const LOADS: usize = 4;
/// Counters of the kernel: losses noticed by the ACK timeout, and those noticed before.
const TIMEOUTS: &str = "local_ack_timeout_err";
const EARLY: &str = "roce_adp_retrans";
/// Text of the guest in place of the number of a counter that the kernel does not have.
const ABSENT: &str = "absent";

/// Returns the suite of cards with adaptive retransmission, or of cards without.
pub fn suite(early: bool) -> Suite {
    let serve: &[&str] = if early {
        &[
            "--profile",
            "connectx-5,roce",
            "--steer",
            functions::STEER_SOCKET,
        ]
    } else {
        &[
            "--profile",
            "./connectx-5-slow.toml,roce",
            "--steer",
            functions::STEER_SOCKET,
        ]
    };
    Suite {
        image: Image {
            name: "nvme-loss",
            modules: compare::MODULES,
            packages: compare::PACKAGES,
            script: concat!(
                include_str!("guest/roce"),
                include_str!("guest/nvme-targets"),
                include_str!("guest/nvme-loss")
            ),
            variables: &[],
        },
        slots: Slots::Linked,
        ssd: Ssd::None,
        memory: "2G",
        patience: PATIENCE,
        serve,
        beside: None,
        lost: None,
        programs,
        shown: &[],
        judge: if early {
            |step| judge(step, true)
        } else {
            |step| judge(step, false)
        },
    }
}

/// Writes the profile for the functions' server, and builds our target.
fn programs(machine: &Machine) -> Result<Vec<Program>> {
    std::fs::create_dir_all(machine.path("run"))?;
    let path = machine.path(WITHOUT_PATH);
    std::fs::write(&path, WITHOUT).with_context(|| path.display().to_string())?;
    compare::programs(machine)
}

fn judge(step: &Step, early: bool) -> Result<String> {
    match step.name.as_str() {
        "nvmet-clean" | "ours-clean" => compare::figures(step, LOADS),
        "nvmet-lossy" | "ours-lossy" => lossy(step, early),
        "functions" => stock::judge(step),
        _ => compare::last_words(step),
    }
}

/// Checks that the loads were measured, and that losses were noticed in the way that these cards have. Only with the
/// kernel's target do the counters show both ends.
fn lossy(step: &Step, early: bool) -> Result<String> {
    let figures = compare::figures(step, LOADS)?;
    let counted = |counter: &str| -> Result<Option<u64>> {
        let line = step.line_with(counter)?;
        let (_, count) = line.rsplit_once(' ').context("no count")?;
        match count {
            ABSENT => Ok(None),
            count => Ok(Some(count.parse().with_context(|| line.to_owned())?)),
        }
    };
    let [timeouts, before] = [counted(TIMEOUTS)?, counted(EARLY)?];
    let noticed = if early { before } else { timeouts };
    let has_counter = before.is_some();
    let shown =
        |count: Option<u64>| count.map_or_else(|| ABSENT.to_owned(), |count| count.to_string());
    let [timeouts, before] = [timeouts, before].map(shown);
    ensure!(
        has_counter == early,
        "the kernel's counter {EARLY} is {before}: the cards have another profile"
    );
    ensure!(
        noticed > Some(0) || step.name == "ours-lossy",
        "no loss was noticed: {TIMEOUTS} {timeouts}, {EARLY} {before}"
    );
    Ok(format!(
        "{figures}\n{TIMEOUTS} {timeouts}, {EARLY} {before}"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOAD: &str = "read 4 KiB, depth 32: nvmet: 46 IOPS, 690000.0 us, 184 KiB/s";

    fn judged(name: &str, early: bool, timeouts: &str, before: &str) -> Result<String> {
        let [timeouts, before] =
            [(TIMEOUTS, timeouts), (EARLY, before)].map(|(of, count)| format!("{of} {count}"));
        let said = [LOAD, LOAD, LOAD, LOAD, &timeouts, &before];
        judge(&Step::succeeded(name, &said), early)
    }

    #[test]
    fn losses_that_were_not_noticed_in_the_way_of_the_cards_fail() {
        assert!(judged("nvmet-lossy", true, "0", "12").is_ok());
        assert!(judged("nvmet-lossy", true, "9", "0").is_err());
        assert!(judged("nvmet-lossy", true, "9", "absent").is_err());
        assert!(judged("nvmet-lossy", false, "9", "absent").is_ok());
        assert!(judged("nvmet-lossy", false, "0", "absent").is_err());
        assert!(judged("nvmet-lossy", false, "9", "0").is_err());
        // The target's end has no counters of the kernel's.
        assert!(judged("ours-lossy", true, "0", "0").is_ok());
        assert!(judged("ours-lossy", true, "0", "absent").is_err());
    }

    #[test]
    fn an_absent_counter_is_shown_as_absent() {
        let shown = judged("ours-lossy", false, "absent", "absent").expect("no counter is needed");
        assert!(
            shown.ends_with("local_ack_timeout_err absent, roce_adp_retrans absent"),
            "{shown}"
        );
        let shown = judged("nvmet-lossy", true, "0", "12").expect("noticed early");
        assert!(
            shown.ends_with("local_ack_timeout_err 0, roce_adp_retrans 12"),
            "{shown}"
        );
    }

    #[test]
    fn a_load_without_data_or_figures_fails() {
        assert!(judge(&Step::succeeded("ours-clean", &[LOAD; 4]), true).is_ok());
        assert!(judge(&Step::succeeded("ours-clean", &[LOAD; 3]), true).is_err());
        let idle = "write 4 KiB, depth 1: nvmet: 0 IOPS, 0.0 us, 0 KiB/s";
        assert!(
            judge(
                &Step::succeeded("ours-clean", &[LOAD, LOAD, LOAD, idle]),
                true
            )
            .is_err()
        );
    }

    #[test]
    fn the_written_profile_is_a_card_without_adaptive_retransmission() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("card.toml");
        std::fs::write(&path, WITHOUT).expect("written");
        let path = path.to_str().expect("a name");
        // A simulated card keeps its profile while the process runs, so each has a name of its own.
        let has_early = |card: &str, profile: &str| {
            let name = format!("sim:{card},profile={profile}");
            let options = udapl::OpenOptions::default();
            let ia = udapl::ia_open(&name, &options).expect("a simulated card");
            udapl::adapter::hca(&ia).caps().general().roce_accl()
        };
        assert!(has_early("with", "connectx-5"));
        assert!(!has_early("without", path));
    }

    #[test]
    fn the_functions_without_adaptive_retransmission_have_the_profile_that_is_written() {
        let name = WITHOUT_PATH.strip_prefix("run/").expect("in the run");
        let wanted = format!("./{name},roce");
        assert!(suite(false).serve.contains(&wanted.as_str()));
        assert!(!suite(true).serve.contains(&wanted.as_str()));
    }
}
