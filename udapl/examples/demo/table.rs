//! Output of the demo.

use std::time::Duration;

use comfy_table::Table;
use udapl::{Ia, adapter, network};

use super::kind::Kind;
use super::setup::Job;
use super::world::Counters;
use super::{mega, yes_no};

/// A row of the table: one kind of DTO.
pub struct Row {
    pub kind: Kind,
    pub messages: u64,
    pub bytes: usize,
    /// Packets and doorbells; `None` if the functions are not simulated in this process.
    pub counted: Option<Counters>,
    pub completions: u64,
    pub took: Duration,
    pub verified: bool,
}

/// Prints the bring-up, a line for each side.
pub fn print_bring_up(job: &Job) {
    let mut table = Table::new();
    table.set_header([
        "side",
        "MAC",
        "firmware",
        "commands",
        "pages boot/init",
        "bring-up",
        "on the device's clock",
    ]);
    for (name, side) in job.sides() {
        let report = adapter::bringup_report(&side.ia);
        let mac = network::port(&side.ia).mac;
        let mac: Vec<String> = mac.iter().map(|byte| format!("{byte:02x}")).collect();
        table.add_row([
            name.to_owned(),
            mac.join(":"),
            firmware(&side.ia),
            report.commands.to_string(),
            format!("{}/{}", report.boot_pages, report.init_pages),
            format!("{:.1} ms", side.bring_up.as_secs_f64() * 1e3),
            format!("{:.1} ms", report.total.as_secs_f64() * 1e3),
        ]);
    }
    println!("{table}");
}

/// Returns the firmware version from the adapter's attributes.
fn firmware(ia: &Ia) -> String {
    let attributes = &ia.query().ia.vendor_attr;
    let found = attributes.iter().find(|one| one.name == "firmware_version");
    found.map_or_else(String::new, |one| one.value.clone())
}

/// Prints the transfers, a line for each kind.
pub fn print_table(rows: &[Row]) {
    let mut table = Table::new();
    table.set_header([
        "DTO",
        "messages",
        "bytes",
        "packets",
        "doorbells",
        "completions",
        "MB/s",
        "verified",
    ]);
    for row in rows {
        let counted = |which: fn(&Counters) -> u64| match &row.counted {
            Some(counters) => which(counters).to_string(),
            None => "-".to_owned(),
        };
        table.add_row([
            row.kind.name().to_owned(),
            row.messages.to_string(),
            row.bytes.to_string(),
            counted(|counters| counters.packets),
            counted(|counters| counters.doorbells),
            row.completions.to_string(),
            format!("{:.1}", mega(row.bytes) / row.took.as_secs_f64()),
            yes_no(row.verified).to_owned(),
        ]);
    }
    println!("{table}");
}
