//! Records which checks a run left out, and why. Each entry is printed at once, and again in a table at the end, since
//! the first message has scrolled out of view by then.

use std::sync::{Mutex, PoisonError};

use comfy_table::{ContentArrangement, Table};

static LEFT_OUT: Mutex<Vec<(String, String)>> = Mutex::new(Vec::new());

/// Prints and records a check that is left out.
pub fn say(what: &str, why: &str) {
    println!("left out: {what}: {why}");
    note(what, why);
}

/// Records a check that is left out and has already been printed.
pub fn note(what: &str, why: &str) {
    let mut all = LEFT_OUT.lock().unwrap_or_else(PoisonError::into_inner);
    let line = (what.to_owned(), why.to_owned());
    if !all.contains(&line) {
        all.push(line);
    }
}

/// Returns the table of all entries, if there are any.
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
