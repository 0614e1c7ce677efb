//! Every single fault at every command of a small simulation: two adapters, one connection, and one script.
//!
//! ```text
//! bring-up, connect, a message, an RDMA Write, an RDMA Read, a window bound and unbound, disconnect, close
//! ```
//!
//! The script is run once without a fault, to count the commands of each adapter. Then there is one simulation for each
//! command of each adapter and each [`Harm`]. The simulation runs the script, as far as possible, with that fault at
//! that command. Then it removes all faults and runs the script again, which has to succeed. All checks of random
//! simulations apply.

use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use comfy_table::Table;
use hw_sim::{Fault, Sim, SimConfig};
use mlx_prm::Opcode;
use strum::{Display, EnumIter, EnumString, IntoEnumIterator};
use udapl::CloseFlags;

use crate::bytes::SLOT;
use crate::end::{Kind, Phase};
use crate::side::CONN_QUAL;
use crate::world::World;
use crate::{Feature, Plan, panic_text};

/// Fault that affects a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Display, EnumIter, EnumString)]
#[strum(serialize_all = "kebab-case")]
pub enum Harm {
    /// The command is refused.
    RefusedOnce,
    /// The command and all later ones are refused.
    RefusedForEver,
    /// The command is not answered.
    Silent,
    /// The command is answered late, but before its timeout.
    Late,
}

impl Harm {
    fn fault(self) -> Fault {
        let refused = |count| Fault::CommandFailure {
            opcode: None,
            status: 0x0f,
            syndrome: 0,
            count,
        };
        match self {
            Self::RefusedOnce => refused(1),
            Self::RefusedForEver => refused(u32::MAX),
            Self::Silent => Fault::CommandSilence {
                opcode: None,
                count: 1,
            },
            Self::Late => Fault::CommandDelay {
                opcode: None,
                delay: Duration::from_secs(2),
                count: 1,
            },
        }
    }
}

/// A command of the script, and the fault that affects the command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Case {
    /// Index of the side that gives the command.
    pub side: usize,
    /// Number of the command among the commands of its side, from 0.
    pub command: u32,
    /// Fault that affects the command.
    pub harm: Harm,
}

/// Number of runs with a fault in which the script succeeded (`whole`), and in which it did not (`short`).
#[derive(Clone, Copy, Debug, Default)]
struct Ended {
    whole: u64,
    short: u64,
}

/// Results of all cases.
#[derive(Default)]
pub struct Exhaustive {
    /// Number of simulations that were run.
    pub worlds: u64,
    /// Failed cases, with the messages of the failed checks.
    pub failures: Vec<(Case, String)>,
    rows: BTreeMap<(&'static str, u16), BTreeMap<Harm, Ended>>,
}

impl Exhaustive {
    /// Returns a table with a row for each call and command, and a column for each fault: the number of runs in which
    /// the script succeeded, and the number of all runs.
    #[must_use]
    pub fn table(&self) -> Table {
        let mut table = Table::new();
        let mut header = vec!["call".to_owned(), "command".to_owned()];
        header.extend(Harm::iter().map(|harm| harm.to_string()));
        table.set_header(header);
        for ((call, opcode), ended) in &self.rows {
            let mut row = vec![(*call).to_owned(), format!("{:?}", Opcode(*opcode))];
            row.extend(Harm::iter().map(|harm| {
                let ended = ended.get(&harm).copied().unwrap_or_default();
                format!("{} of {}", ended.whole, ended.whole + ended.short)
            }));
            table.add_row(row);
        }
        table
    }
}

/// Returns a simulation without random actions.
fn world() -> World {
    let plan = Plan {
        seed: 1,
        steps: 0,
        functions: 2,
        features: BTreeSet::from([Feature::Windows]),
    };
    let sim = Sim::new(SimConfig {
        seed: plan.seed,
        event_log: false,
    });
    let mut world = World::new(&plan, sim, None);
    world.scripted = true;
    world
}

/// Result of a case: the call and the opcode of the command that the fault affected, and true if the script succeeded
/// nevertheless.
type CaseResult = ((&'static str, u16), bool);

/// Runs one case.
///
/// # Errors
/// If a check failed, or if the fault affected no command.
pub fn case(case: Case) -> Result<CaseResult, String> {
    let run = || {
        let mut world = world();
        world.harm(case);
        let whole = world.script();
        let Some(met) = world.cover.harmed() else {
            let Case {
                side,
                command,
                harm,
            } = case;
            let gave = world.commands[side];
            panic!("{harm} met no command: side {side} gave {gave}, and {command} was to be harmed")
        };
        world.heal();
        world.healing = false;
        assert!(
            world.script(),
            "the script does not go through when all is healed"
        );
        world.check_all();
        (met, whole)
    };
    catch_unwind(AssertUnwindSafe(run)).map_err(|panic| panic_text(&*panic))
}

/// Runs all cases. Before each case, calls `tell` with the number of the case and the number of all cases.
///
/// # Panics
/// If the script fails without a fault.
pub fn exhaustive(mut tell: impl FnMut(u64, u64)) -> Exhaustive {
    let mut peace = world();
    assert!(peace.script(), "the script does not go through in peace");
    let commands = [0, 1].map(|side| peace.commands[side]);
    let all = commands.iter().sum::<u64>() * Harm::iter().count() as u64;
    let mut sum = Exhaustive::default();
    for (side, commands) in commands.into_iter().enumerate() {
        for command in 0..u32::try_from(commands).unwrap_or(u32::MAX) {
            // The first kind of fault affects exactly this command, so its result names the row. A permanent fault
            // also affects later commands.
            let mut key = None;
            for harm in Harm::iter() {
                let one = Case {
                    side,
                    command,
                    harm,
                };
                sum.worlds += 1;
                tell(sum.worlds, all);
                match case(one) {
                    Err(what) => sum.failures.push((one, what)),
                    Ok((met, whole)) => {
                        let key = *key.get_or_insert(met);
                        let ended = sum.rows.entry(key).or_default().entry(harm).or_default();
                        if whole {
                            ended.whole += 1;
                        } else {
                            ended.short += 1;
                        }
                    }
                }
            }
        }
    }
    sum
}

impl World {
    fn harm(&mut self, case: Case) {
        let fault = Fault::Later {
            commands: case.command,
            fault: Box::new(case.harm.fault()),
        };
        self.sides[case.side].tampered = true;
        self.sim.inject(&self.sides[case.side].function, &fault);
    }

    /// Runs the simulation until `done` returns true, for 1000 loop iterations of 10 ms at most. Returns whether `done`
    /// returned true.
    fn until(&mut self, done: impl Fn(&Self) -> bool) -> bool {
        for _ in 0..1_000 {
            if done(self) {
                return true;
            }
            self.run_once(Duration::from_millis(10));
        }
        done(self)
    }

    fn is_in(&self, side: usize, phase: Phase) -> bool {
        let open = self.sides[side].open.as_ref();
        open.is_some_and(|open| open.ends[0].phase == phase)
    }

    fn is_quiet(&self) -> bool {
        let quiet = |open: &crate::side::Open| open.ends[0].requests.is_empty();
        self.sides
            .iter()
            .all(|one| one.open.as_ref().is_none_or(quiet))
    }

    /// Runs the script as far as possible. Returns whether all of it succeeded.
    fn script(&mut self) -> bool {
        let mut whole = true;
        for side in 0..2 {
            self.reopen(side);
            whole &= self.sides[side].open.is_some();
        }
        self.connect_to(0, 0, 1, CONN_QUAL, 4, false);
        whole &=
            self.until(|world| !world.is_in(0, Phase::Pending) && !world.is_in(1, Phase::Pending));
        whole &= self.is_in(0, Phase::Up) && self.is_in(1, Phase::Up);
        self.receive(1, 0);
        for kind in [Kind::Send, Kind::Write, Kind::Read] {
            self.post_one(0, 0, kind, SLOT, 0, false);
            whole &= self.until(Self::is_quiet);
        }
        self.make_window(1, 0);
        for open_it in [true, false] {
            self.bind(1, 0, 0, open_it);
            whole &= self.until(Self::is_quiet);
        }
        self.free_window(1, 0);
        whole &= self.is_in(0, Phase::Up) && self.is_in(1, Phase::Up);
        self.disconnect(0, 0, CloseFlags::Graceful);
        whole &= self.until(|world| [0, 1].iter().all(|side| world.is_in(*side, Phase::Idle)));
        for side in 0..2 {
            whole &= self.close(side);
        }
        self.check_all();
        whole
    }
}
