//! Simulated functions on switches, and the queues of the switches under load: `simnic fabric`.
//!
//! A [`Plan`] contains the flows and the settings of the switches. [`run`] executes it in virtual time, with the driver
//! and the connection manager that real programs use, and returns an [`Outcome`]. [`draw`] draws the outcome. The same
//! plan always has the same outcome.
//!
//! Traffic needs the library `udapl`. Therefore this module has a feature of its own (`fabric`): the simulated card
//! alone does not need the library.

mod draw;
mod options;
mod plan;
#[cfg(test)]
mod tests;
mod traffic;

use std::fmt::Write as _;

use hw_sim::CongestionCounters;
use hw_sim::switch::Buffer;

pub use self::draw::draw;
pub use self::options::{Options, print};
pub use self::plan::{PRIORITY, Plan, Topology};
pub use self::traffic::{Outcome, Sample, jain, run, run_in};

impl Plan {
    /// Describes the plan in a line.
    #[must_use]
    pub fn words(&self) -> String {
        let mut words = format!(
            "{}, {} Gb/s, {}, seed {}",
            self.topology,
            self.rate_bps as f64 / 1e9,
            match self.buffer {
                Buffer::Shared(bytes) => format!("buffer {} KiB", bytes >> 10),
                Buffer::PerPort(bytes) => format!("buffer {} KiB a port", bytes >> 10),
            },
            self.seed
        );
        match self.ecn {
            Some(red) => {
                let (kmin, kmax) = (red.kmin_bytes >> 10, red.kmax_bytes >> 10);
                let percent = red.pmax * 100.0;
                let _ = write!(words, ", ECN {kmin} to {kmax} KiB at {percent} %");
            }
            None => words += ", no ECN",
        }
        match self.pfc.map(|pfc| pfc.watchdog) {
            Some(Some(limit)) => {
                let _ = write!(words, ", PFC with a watchdog of {limit:?}");
            }
            Some(None) => words += ", PFC",
            None => words += ", no PFC",
        }
        words
    }
}

impl Outcome {
    /// Describes the outcome in a line.
    #[must_use]
    pub fn words(&self) -> String {
        let sum = |of: fn(&CongestionCounters) -> u64| self.congestion.iter().map(of).sum::<u64>();
        format!(
            "lost {}, marked {}, notifications {}, pauses {}, watchdog {}",
            self.lost(),
            self.total(|port| port.marked),
            sum(|congestion| congestion.cnps_sent),
            self.total(|port| port.pauses_sent),
            self.total(|port| port.watchdog),
        )
    }

    /// Returns a table with a line for each flow and a line for the sum.
    #[must_use]
    pub fn table(&self, plan: &Plan) -> String {
        let seconds = plan.time.as_secs_f64();
        let late = self.rates_from(plan.time / 2);
        let mut text = format!(
            "{:<10} {:>14} {:>14} {:>10}\n",
            "flow", "Gb/s, all", "Gb/s, 2nd half", "pauses"
        );
        for (number, (from, to)) in plan.topology.flows().into_iter().enumerate() {
            let all = self.delivered[number] as f64 * 8e-9 / seconds;
            let (late, pauses) = (late[number] / 1e9, self.pauses[from].received);
            let name = format!("{from} to {to}");
            let _ = write!(text, "{name:<10} {all:>14.3} {late:>14.3} {pauses:>10}");
            match self.ended[number] {
                Some(status) => {
                    let _ = writeln!(text, "  ended: {status:?}");
                }
                None => text.push('\n'),
            }
        }
        let (all, sum) = (
            self.delivered.iter().sum::<u64>() as f64,
            late.iter().sum::<f64>(),
        );
        let _ = writeln!(
            text,
            "{:<10} {:>14.3} {:>14.3}",
            "all",
            all * 8e-9 / seconds,
            sum / 1e9
        );
        let deepest = self.ports.iter().map(|port| port.deepest_bytes).max();
        let _ = writeln!(
            text,
            "\nfairness of the second half (Jain): {:.3}; deepest queue: {} KiB\n{}",
            jain(&late),
            deepest.unwrap_or(0) >> 10,
            self.words()
        );
        text
    }
}
