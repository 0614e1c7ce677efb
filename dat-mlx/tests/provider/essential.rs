//! Tests that refuse the commands of a bring-up, one at a time.
//!
//! Each command that is sent while an adapter opens and joins the network is refused once. If the command is essential,
//! the adapter does not open, and the error names the command. Otherwise the adapter opens, reports the lost feature,
//! and closes without leaving objects. The table of results is in `docs/generations.md`.

use std::fmt::Write as _;
use std::sync::Arc;

use dat_mlx::{MlxProvider, NetworkState, Participation, ProviderConfig};
use driver::{Device, Function};
use hw_mlx::{HcaConfig, MlxError};
use hw_sim::{Fault, Profile, Sim, SimConfig, SimFunction};
use mlx_prm::{CmdStatus, Opcode};

use crate::profiles::page;

const SYNDROME: u32 = 0x00ab_cdef;
const MARK: &str = "0x00abcdef";
/// Maximum number of commands of an opening, which bounds the test's loop.
const MOST: u32 = 500;
const ESSENTIAL: &str = "essential";
/// Result for commands whose refusal is not reported: accesses to port registers, which virtual functions may not read.
const NOT_REPORTED: &str = "lost: what the register says, as on a virtual function";

/// Returns a card that has every feature for which bring-up sends a command.
fn profile() -> Profile {
    let mut profile = Profile::generation("connectx-6-dx").expect("a generation");
    profile.pages.init = 64;
    // No page requests by event, because the test cannot refuse them: the firmware requests the pages again, and
    // another command waits for them.
    profile.pages.runtime = 0;
    profile.general.set(|caps| {
        caps.set_roce_rw_supported(true);
    });
    profile.general.current.set_roce(false);
    profile.roce.max.set_sw_r_roce_src_udp_port(true);
    profile.roce.current.set_sw_r_roce_src_udp_port(false);
    let atomic = &mut profile.atomic;
    atomic
        .max
        .set_supported_atomic_req_8B_endianness_mode_1(true);
    atomic.current.set_atomic_req_8B_endianness_mode(0);
    profile
}

/// Opens an adapter whose device executes `spared` commands and refuses the next one.
fn open(spared: u32) -> (Sim, Arc<SimFunction>, Result<MlxProvider, MlxError>) {
    let sim = Sim::new(SimConfig::default());
    let function = sim.add_function(profile());
    let refusal = Fault::CommandFailure {
        opcode: None,
        status: CmdStatus::NO_RESOURCES.0,
        syndrome: SYNDROME,
        count: 1,
    };
    sim.inject(
        &function,
        &Fault::Later {
            commands: spared,
            fault: Box::new(refusal),
        },
    );
    let opened = reopen(&function);
    (sim, function, opened)
}

fn reopen(function: &Arc<SimFunction>) -> Result<MlxProvider, MlxError> {
    let mut config = HcaConfig::new();
    config.seed = Some(1);
    let config = ProviderConfig {
        hca: config,
        network: Participation::IfPossible,
    };
    let driver = Function::in_process(Arc::clone(function) as Arc<dyn Device>).expect("a function");
    MlxProvider::open(driver, config)
}

/// Returns whether the function is bus master: bit 2 of the command register at 0x04 (PCI Local Bus, "Device
/// Control").
fn is_bus_master(function: &SimFunction) -> bool {
    let mut command = [0; 2];
    function.config_read(4, &mut command);
    command[0] & 4 != 0
}

/// Returns the command that was refused, and the result. `None`: no command was refused.
fn outcome(provider: &MlxProvider) -> Option<(String, String)> {
    let counters = provider.opened().counters().expect("it is open");
    let (opcode, _) = counters
        .commands
        .iter()
        .find(|(_, tally)| tally.refused > 0)?;
    let losses = &provider.hca().bringup_report().losses;
    let loss = losses.iter().find(|loss| loss.why.contains(MARK));
    let lost = match (loss, provider.network_state()) {
        (Some(loss), NetworkState::Joined) if loss.lost.starts_with("nothing") => {
            loss.lost.to_owned()
        }
        (Some(loss), NetworkState::Joined) => format!("lost: {}", loss.lost),
        (None, NetworkState::Without(why)) if why.contains(MARK) => {
            "lost: the part in the network".to_owned()
        }
        (None, NetworkState::Joined) => {
            assert_eq!(*opcode, Opcode::ACCESS_REG, "refused, and nothing said");
            NOT_REPORTED.to_owned()
        }
        (loss, state) => panic!("{opcode:?}: {loss:?}, {state:?}"),
    };
    Some((format!("{opcode:?}"), lost))
}

#[test]
fn every_command_of_an_opening_may_be_refused_and_costs_what_the_page_says() {
    let mut rows: Vec<(String, String)> = Vec::new();
    for spared in 0..MOST {
        let (sim, function, opened) = open(spared);
        let row = match opened {
            Err(error) => {
                let text = error.to_string();
                assert!(text.contains(MARK), "{spared}: {text}");
                assert!(!is_bus_master(&function), "{spared}: {text}");
                let again = reopen(&function)
                    .unwrap_or_else(|error| panic!("{spared}: after {text}: {error}"));
                again
                    .close()
                    .unwrap_or_else(|error| panic!("{spared}: after {text}: {error}"));
                let (command, _) = text.split_once(" (").expect("a command's name");
                (command.to_owned(), ESSENTIAL.to_owned())
            }
            Ok(provider) => {
                let Some(row) = outcome(&provider) else {
                    let mut table =
                        String::from("| command | if the firmware refuses it |\n|---|---|\n");
                    for (command, outcome) in &rows {
                        writeln!(table, "| {command} | {outcome} |").expect("a string");
                    }
                    page::keep("commands of an opening", &table);
                    return;
                };
                let report = provider
                    .close()
                    .unwrap_or_else(|error| panic!("{spared}: {row:?}: {error}"));
                assert_eq!(report.objects_left, [], "{spared}: {row:?}");
                assert_eq!(report.pages_not_returned, 0, "{spared}: {row:?}");
                row
            }
        };
        let report = sim.report(&function);
        assert!(
            report.dma_faults.is_empty() && report.driver_bugs.is_empty(),
            "{spared}: {row:?}: {report:#?}"
        );
        if !rows.contains(&row) {
            rows.push(row);
        }
    }
    panic!("an opening of more than {MOST} commands");
}
