//! Flow tables, groups and entries: the objects. [`super::steering`] walks them.
//!
//! A table has 2^`log_size` entries and a level. A group owns a range of entries of its table, without overlap. An
//! entry lies in its group's range and forwards to tables of higher levels, or to TIRs. A frame begins at the root
//! that software has set, or else at the driver's table of the lowest level.

use super::matching::Pattern;
use crate::card::seat::Place;
use crate::objects::{DRIVER, Table};
use mlx_prm::{FlowContext, FlowTableContext, FteMatchParam};
use std::collections::BTreeMap;

/// `table_miss_action`: continue with the named table.
pub(crate) const MISS_TABLE: u32 = 1;
/// Limit of tables of a function.
const MOST_TABLES: u32 = 1 << 12;
/// Limit of flow counters of a function.
pub(crate) const MOST_COUNTERS: u32 = 1 << 15;

/// Counts of the entries that name it. Inferred: octets are those of the frame as software sees it, without its FCS.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FlowCounter {
    /// Frames.
    pub packets: u64,
    /// Bytes.
    pub octets: u64,
}

impl FlowCounter {
    /// Counts a frame.
    pub fn count(&mut self, bytes: usize) {
        self.packets = self.packets.wrapping_add(1);
        self.octets = self.octets.wrapping_add(bytes as u64);
    }
}

/// Destination of a frame by an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Destination {
    /// Another table.
    Table(u32),
    /// A TIR.
    Tir(u32),
    /// A side of the e-switch.
    Place(Place),
}

/// An entry.
#[derive(Clone, Debug)]
pub struct Entry {
    /// The context as it was set.
    pub context: FlowContext,
    /// The list behind the context, as it was set.
    pub list: Vec<u64>,
    /// Bits that it compares.
    pub mask: Pattern,
    /// Values that it compares with.
    pub value: Pattern,
    /// Destinations of matching frames.
    pub destinations: Vec<Destination>,
    /// Counters of matching frames.
    pub counters: Vec<u32>,
}

/// A group.
#[derive(Clone, Debug)]
pub struct Group {
    /// First entry.
    pub start: u32,
    /// Last one.
    pub end: u32,
    /// `match_criteria_enable`.
    pub enable: u32,
    /// Match criteria as created.
    pub criteria: FteMatchParam,
    pub(crate) mask: Pattern,
}

/// A table.
#[derive(Clone, Debug)]
pub struct FlowTable {
    /// The context as created and modified.
    pub context: FlowTableContext,
    /// Entries by index; the lowest that matches applies.
    pub entries: BTreeMap<u32, Entry>,
    pub(crate) groups: BTreeMap<u32, Group>,
    pub(crate) next_group: u32,
}

/// The flow tables of one type: of a function's receive side, of the e-switch, or an access list of a vport.
pub struct FlowTables {
    /// By number.
    pub tables: Table<FlowTable>,
    pub(crate) root: Option<u32>,
    pub(crate) groups: usize,
    pub(crate) entries: usize,
}

impl Default for FlowTables {
    fn default() -> Self {
        Self::new()
    }
}

impl FlowTables {
    /// Returns an empty set.
    pub fn new() -> Self {
        Self {
            tables: Table::new("flow table", 0xd1, 0x00ff_fffe, MOST_TABLES),
            root: None,
            groups: 0,
            entries: 0,
        }
    }

    /// Drops all tables.
    pub fn clear(&mut self) {
        self.tables.clear();
        (self.root, self.groups, self.entries) = (None, 0, 0);
    }

    /// Returns the table that a received frame begins at.
    #[inline]
    pub fn root(&self) -> Option<u32> {
        // Fast path: nearly every access list is empty.
        if self.root.is_none() && self.tables.is_empty() {
            return None;
        }
        self.root.or_else(|| {
            // Only the driver's tables count: user contexts have tables of their own, reached from the driver's.
            let drivers = self.tables.owned_by(DRIVER);
            let level = |number| Some(self.tables.get(number)?.context.level());
            drivers
                .map(|(_, number)| number)
                .min_by_key(|&number| level(number))
        })
    }
}
