//! `cargo xtask bench` counts the instructions of parking and resuming an adapter (`udapl/benches/handover.rs`).
//!
//! The instructions of `park` and of `resume` must be linear in the number of connections: further connections cost
//! what the ones before them cost. A post and a dequeue must cost on a resumed adapter what they cost on one that was
//! never parked. Only the caller's thread is counted, and not that of the simulated function's server. A
//! doorbell here sends the server a message, whose cost depends on how far the server has read. It is subtracted.

use anyhow::{Result, ensure};
use comfy_table::Table;

use super::{LISTENER_CALL, build, counted, of_function};

/// Numbers of connections, at equal distances.
const CONNECTIONS: [u64; 3] = [100, 400, 700];
/// Maximum ratio of the cost of the last connections to that of those before them. It is 2.2 if the cost is a square. A
/// small square part passes: one of a thousandth of the linear part for each connection. Tables that grow by doubling
/// are copied in one of the two steps.
const MOST: f64 = 1.25;
/// Operations that cost the same after a resumption.
const OPERATIONS: [&str; 3] = ["post_recv", "post_rdma_write", "dequeue"];
/// Number of connections on which an operation is counted, once on each.
const ONCE_EACH: u64 = 100;
/// Maximum difference of an operation's instructions after a resumption.
const DIFFERENCE: f64 = 1.0;

/// Counts, prints two tables, and returns what exceeds its bar.
pub(super) fn run() -> Result<Vec<String>> {
    let program = build("handover")?;
    let mut over = Vec::new();
    let count = |region: &str, name: &str, connections: u64| {
        eprint!("\rcounting {name} of {connections:<30}");
        let connections = connections.to_string();
        let (_, costs) = counted(&program, region, &["count", name, &connections])?;
        let total = of_function(&costs, &format!("region_{region}"));
        ensure!(total > 0, "callgrind saw nothing of region_{region}");
        Ok((total, of_function(&costs, LISTENER_CALL)))
    };
    let mut table = Table::new();
    table.set_header([
        "handover",
        "100 connections",
        "each of the next 300",
        "each of 300 more",
        "ratio",
        "bar",
    ]);
    for name in ["park", "resume"] {
        let mut totals = [0; CONNECTIONS.len()];
        for (total, connections) in totals.iter_mut().zip(CONNECTIONS) {
            (*total, _) = count(name, name, connections)?;
        }
        let step = (CONNECTIONS[1] - CONNECTIONS[0]) as f64;
        let each = |at: usize| (totals[at + 1] as f64 - totals[at] as f64) / step;
        let ratio = each(1) / each(0);
        if ratio > MOST {
            over.push(format!(
                "{name}: {:.0} instructions a connection, then {:.0}: more than linear",
                each(0),
                each(1)
            ));
        }
        table.add_row([
            name.to_owned(),
            totals[0].to_string(),
            format!("{:.0}", each(0)),
            format!("{:.0}", each(1)),
            format!("{ratio:.2}"),
            MOST.to_string(),
        ]);
    }
    let mut posts = Table::new();
    posts.set_header(["operation", "instructions", "resumed"]);
    for name in OPERATIONS {
        let each = |(total, told): (u64, u64)| (total as f64 - told as f64) / ONCE_EACH as f64;
        let fresh = each(count(name, name, ONCE_EACH)?);
        let resumed = each(count(name, &format!("resumed_{name}"), ONCE_EACH)?);
        if (resumed - fresh).abs() > DIFFERENCE {
            over.push(format!(
                "{name}: {fresh:.1} instructions, and {resumed:.1} after a resumption"
            ));
        }
        posts.add_row([
            name.to_owned(),
            format!("{fresh:.1}"),
            format!("{resumed:.1}"),
        ]);
    }
    eprintln!("\r{:<60}", "");
    println!("{table}\n{posts}");
    Ok(over)
}
