//! The suite on `vfio-pci`: our driver through the kernel's own VFIO.
//!
//! The programs are those that `cargo build` and `cargo test` make. The tests of the data path are in the same program
//! that also runs on `sim:` functions; an environment variable names the functions to open. The script lists the tests
//! that run, and those that do not, with the reason (`guest/vfio`).

pub(super) mod judge;

use anyhow::Result;

use super::functions::{STEER_SOCKET, Slots};
use super::image::{Image, Program};
use super::machine::Machine;
use super::suite::{PATIENCE, Ssd, Suite};
use super::{build, c};

/// The guest's script.
const SCRIPT: &str = include_str!("guest/vfio");

/// Returns the suite.
pub fn suite() -> Suite {
    Suite {
        image: Image {
            name: "vfio",
            modules: &["vfio", "vfio_iommu_type1", "vfio-pci", "nvme"],
            packages: &[],
            script: SCRIPT,
            variables: &["WAKEUP_WAITS", "HANDOVERS", "NVME_TEST_IOS"],
        },
        slots: Slots::Linked,
        ssd: Ssd::Qemu,
        memory: "1G",
        patience: PATIENCE,
        // The link delays frames, so that waiting programs have to sleep.
        serve: &["--faults", "delay=100us", "--steer", STEER_SOCKET],
        beside: None,
        lost: None,
        programs,
        shown: &[],
        judge: judge::judge,
    }
}

/// Test programs that the script runs: that of crate `udapl`, that of `hw-nvme`, and that of `datctl` whose test kills
/// `datctl`.
const TESTED: [&str; 3] = ["dat", "ssd", "vfio_user"];

/// Builds and returns datctl, the NVMe target, the examples, our C program, and the test programs under the names
/// test-PROGRAM.
fn programs(machine: &Machine) -> Result<Vec<Program>> {
    let mut programs = vec![
        ("datctl".to_owned(), build::datctl()?),
        build::example("demo")?,
        build::example("daemon")?,
        ("nvmeofd".to_owned(), build::nvmeofd()?),
        c::alone(machine, "handover", include_str!("guest/handover.c"))?,
    ];
    programs.extend(build::test_programs(&TESTED)?);
    Ok(programs)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shell;

    /// Returns the tests that the script runs, by module, from its lines `tests MODULE SECONDS TEST...`.
    fn asked() -> Vec<(&'static str, Vec<&'static str>)> {
        let lines = SCRIPT.split('\n');
        let mut asked: Vec<(&str, Vec<&str>)> = Vec::new();
        let mut goes_on = false;
        for line in lines {
            let mut words = line.trim_end_matches('\\').split_whitespace();
            if !goes_on && line.starts_with("tests ") {
                asked.push((words.nth(1).expect("a module"), Vec::new()));
                words.next().expect("seconds");
            } else if !goes_on {
                continue;
            }
            asked.last_mut().expect("begun").1.extend(words);
            goes_on = line.ends_with('\\');
        }
        asked
    }

    #[test]
    fn every_test_that_the_script_asks_for_is_in_the_module_that_it_names() {
        let asked = asked();
        assert!(asked.len() > 15, "{asked:?}");
        for (module, tests) in asked {
            let path = shell::root().join(format!("udapl/tests/dat/{module}.rs"));
            let text = std::fs::read_to_string(&path).expect(module);
            assert!(!tests.is_empty(), "{module}");
            for test in tests {
                let declared = format!("#[test]\nfn {test}()");
                assert!(text.contains(&declared), "{module}::{test}");
            }
        }
    }

    #[test]
    fn every_test_of_module_restarted_that_a_script_asks_for_is_there() {
        let path = shell::root().join("udapl/tests/dat/restarted.rs");
        let text = std::fs::read_to_string(&path).expect("the module");
        let scripts = [
            include_str!("guest/steps"),
            include_str!("guest/service-steps"),
        ];
        let words = scripts.iter().flat_map(|script| script.split_whitespace());
        let asked: Vec<&str> = words
            .filter_map(|word| word.strip_prefix("restarted::"))
            .collect();
        assert_eq!(asked.len(), 2, "{asked:?}");
        for test in asked {
            assert!(text.contains(&format!("#[test]\nfn {test}()")), "{test}");
        }
    }
}
