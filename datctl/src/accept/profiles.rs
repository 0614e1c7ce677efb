//! The whole data path on every generation: each kind of DTO at every size near a limit, with bytes compared, as in
//! the acceptance run.
//!
//! The results are a table of `docs/generations.md`. On each profile either all messages pass, or bring-up reports
//! what the profile lacks.
//!
//! By default the tests run the generations of [`FEW`]. With `GENERATIONS=all` they run all, as in `cargo xtask check`.

use std::error::Error;
use std::thread;

use hw_sim::{Habits, LinkFaults, PortType, Profile, SimConfig};
use udapl::fabric::Fabric;

use super::exchange::{self, Exchanged};
use super::pair::Pair;
use super::tests::subject;

#[path = "../../../hw-sim/tests/generations_page/mod.rs"]
mod page;

/// Generations that the tests run by default: the one with the fewest capabilities and no windows, the one that the
/// driver refuses, and the newest.
const FEW: [&str; 3] = ["connectx-4-lx-14.12", "connectx-6-ib", "bluefield-3"];

/// Returns whether all generations are to run: they were asked for, or the page is to be written.
fn are_all_wanted() -> bool {
    if std::env::var_os("GENERATIONS_BLESS").is_some() {
        return true;
    }
    let asked = std::env::var_os("GENERATIONS");
    assert!(
        asked.as_ref().is_none_or(|asked| asked == "all"),
        "GENERATIONS={asked:?}: it is all, or absent"
    );
    asked.is_some()
}

/// A set of functions, and how they are linked.
struct Place {
    name: &'static str,
    /// True if the functions are virtual.
    is_virtual: bool,
    sides: &'static [usize],
    habits: Habits,
}

const USUAL: Habits = Habits {
    cuts_receive_counter: false,
    tells_every_connection: false,
    counts_queue_pairs_on: false,
};

const PLACES: [Place; 4] = [
    Place {
        name: "one function, with itself",
        is_virtual: false,
        sides: &[0],
        habits: USUAL,
    },
    Place {
        name: "two functions, a wire between",
        is_virtual: false,
        sides: &[0, 1],
        habits: USUAL,
    },
    Place {
        name: "virtual functions of two, their switches and a wire between",
        is_virtual: true,
        sides: &[0, 1],
        habits: USUAL,
    },
    Place {
        name: "the same; counters of receives cut to the ring, an event for every connection",
        is_virtual: true,
        sides: &[0, 1],
        habits: Habits {
            cuts_receive_counter: true,
            tells_every_connection: true,
            ..USUAL
        },
    },
];

impl Place {
    fn fabric(&self, kind: &Profile) -> Fabric {
        let shape = |plain: Profile| {
            let mut profile = kind.clone().called(&plain.name, plain.mac);
            profile.habits = self.habits;
            profile
        };
        let (config, faults) = (SimConfig::seeded(1), LinkFaults::default());
        if self.is_virtual && kind.virtual_functions.is_some() {
            Fabric::of_virtual(config, faults, shape)
        } else {
            Fabric::with(config, faults, shape)
        }
    }

    /// Runs the exchange on these generations, and returns the results as a row of the table.
    fn row(&self, names: &[&str]) -> String {
        let mut row = format!("| {} |", self.name);
        for name in names {
            let kind = Profile::generation(name).expect("a generation");
            let cell = match self.run(&kind) {
                Ok(exchanged) => {
                    let missing = if exchanged.windows { "" } else { ", no window" };
                    format!("{} messages{missing}", exchanged.messages)
                }
                // The driver supports only RoCE.
                Err(error)
                    if error.to_string().contains("port_type")
                        && kind.port_type == PortType::InfiniBand =>
                {
                    "port_type".to_owned()
                }
                Err(error) => panic!("{}, {name}: {error}", self.name),
            };
            row += &format!(" {cell} |");
        }
        row + "\n"
    }

    fn run(&self, kind: &Profile) -> Result<Exchanged, Box<dyn Error>> {
        let fabric = self.fabric(kind);
        let subjects: Vec<_> = self
            .sides
            .iter()
            .map(|side| subject(&fabric, *side))
            .collect();
        let exchanged = Pair::with(&subjects, exchange::everything)?;
        for side in [0, 1] {
            let report = fabric.report(side);
            if !report.is_clean() {
                return Err(format!("side {side}: {report:#?}").into());
            }
        }
        Ok(exchanged)
    }
}

#[test]
fn every_generation_carries_everything_or_says_what_it_lacks() {
    let all: Vec<&str> = Profile::generations().collect();
    let is_whole = are_all_wanted();
    let names: &[&str] = if is_whole { &all[..] } else { &FEW };
    let mut table = format!("| functions | {} |\n", names.join(" | "));
    table += &format!("|---|{}\n", "---|".repeat(names.len()));
    thread::scope(|scope| {
        let rows = PLACES
            .each_ref()
            .map(|place| scope.spawn(move || place.row(names)));
        for row in rows {
            table += &row.join().expect("a row");
        }
    });
    if is_whole {
        page::keep("data path", &table);
    } else {
        assert_eq!(columns(names), table, "docs/generations.md");
    }
}

/// Returns these columns of the page's table, and the first one.
fn columns(names: &[&str]) -> String {
    let page = include_str!("../../../docs/generations.md");
    let (_, rest) = page.split_once("<!-- data path -->\n").expect("a mark");
    let (table, _) = rest
        .split_once("<!-- end of data path -->")
        .expect("its end");
    let cells = |line: &'static str| line.trim_matches('|').split('|').collect::<Vec<_>>();
    let header = cells(table.lines().next().expect("a header"));
    let places: Vec<usize> = names
        .iter()
        .map(|name| {
            let found = header.iter().position(|cell| cell.trim() == *name);
            found.unwrap_or_else(|| panic!("the page has no column {name}"))
        })
        .collect();
    let row = |line| {
        let cells = cells(line);
        let taken = std::iter::once(0).chain(places.iter().copied());
        let taken = taken.map(|at| cells[at]);
        format!("|{}|\n", taken.collect::<Vec<_>>().join("|"))
    };
    table.lines().map(row).collect()
}
