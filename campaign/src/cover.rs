//! What happened, how often: a zero is a thing that no world has tried.

use std::collections::BTreeMap;

use comfy_table::Table;

/// Deeds and faults, and how often each came to what.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Coverage(BTreeMap<(&'static str, &'static str), u64>);

impl Coverage {
    /// It happened once more.
    pub fn count(&mut self, what: &'static str, came_to: &'static str) {
        *self.0.entry((what, came_to)).or_default() += 1;
    }

    /// What happened in another world, too.
    pub fn add(&mut self, other: &Self) {
        for (what, times) in &other.0 {
            *self.0.entry(*what).or_default() += times;
        }
    }

    /// How often something happened.
    #[must_use]
    pub fn times(&self, what: &str) -> u64 {
        let these = self.0.iter().filter(|((deed, _), _)| *deed == what);
        these.map(|(_, times)| times).sum()
    }

    /// For people.
    #[must_use]
    pub fn table(&self) -> Table {
        let mut table = Table::new();
        table.set_header(["deed or fault", "came to", "times"]);
        for ((what, came_to), times) in &self.0 {
            table.add_row([*what, *came_to, &times.to_string()]);
        }
        table
    }
}
