//! What a run has left out, and why: said when it is left out, and once more in a table at the end, since by then the
//! first is far above.

use std::sync::{Mutex, PoisonError};

use comfy_table::{ContentArrangement, Table};

static LEFT_OUT: Mutex<Vec<(String, String)>> = Mutex::new(Vec::new());

/// Leaves something out, aloud.
pub fn say(what: &str, why: &str) {
    println!("left out: {what}: {why}");
    note(what, why);
}

/// Notes what somebody else has said.
pub fn note(what: &str, why: &str) {
    let mut all = LEFT_OUT.lock().unwrap_or_else(PoisonError::into_inner);
    let line = (what.to_owned(), why.to_owned());
    if !all.contains(&line) {
        all.push(line);
    }
}

/// The table, if anything was left out.
pub fn table() -> Option<Table> {
    let all = LEFT_OUT.lock().unwrap_or_else(PoisonError::into_inner);
    if all.is_empty() {
        return None;
    }
    let mut table = Table::new();
    table.set_content_arrangement(ContentArrangement::Dynamic);
    table.set_header(["left out", "why"]);
    for (what, why) in all.iter() {
        table.add_row([what, why]);
    }
    Some(table)
}
