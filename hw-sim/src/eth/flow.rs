//! Flow tables, groups and entries: the objects. [`super::steering`] looks frames up in them.
//!
//! A table has 2^`log_size` entries and a level. A group owns a range of entries of its table; the ranges do not
//! overlap. An entry is in its group's range, and forwards to tables of higher levels, to TIRs, or to ports of the
//! e-switch. The look-up of a frame begins at the root table that software has set. If software has set none, the
//! look-up begins at the driver's table of the lowest level.

use super::matching::Pattern;
use crate::card::seat::Place;
use crate::objects::{DRIVER, Table};
use mlx_prm::{FlowContext, FlowTableContext, FteMatchParam};
use std::collections::BTreeMap;

/// `table_miss_action` that continues with the named table.
pub(crate) const MISS_TABLE: u32 = 1;
/// Maximum number of flow tables of one type.
const MOST_TABLES: u32 = 1 << 12;
/// Maximum number of flow counters of a function.
pub(crate) const MOST_COUNTERS: u32 = 1 << 15;

/// Flow counter: number of frames and bytes that matched the entries that name the counter. Inferred: bytes are those
/// of the frame as software sees it, without its FCS.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FlowCounter {
    /// Number of frames.
    pub packets: u64,
    /// Number of bytes.
    pub octets: u64,
}

impl FlowCounter {
    /// Counts a frame of `bytes` bytes.
    pub fn count(&mut self, bytes: usize) {
        self.packets = self.packets.wrapping_add(1);
        self.octets = self.octets.wrapping_add(bytes as u64);
    }
}

/// Destination to which an entry sends a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Destination {
    /// The table with this number.
    Table(u32),
    /// The TIR with this number.
    Tir(u32),
    /// A port of the e-switch.
    Place(Place),
}

/// A flow table entry.
#[derive(Clone, Debug)]
pub struct Entry {
    /// The context as it was set.
    pub context: FlowContext,
    /// The list that follows the context, as it was set.
    pub list: Vec<u64>,
    /// Bits that the entry compares.
    pub mask: Pattern,
    /// Values with which the entry compares these bits.
    pub value: Pattern,
    /// Destinations of matching frames.
    pub destinations: Vec<Destination>,
    /// Numbers of the counters for matching frames.
    pub counters: Vec<u32>,
}

/// A flow group.
#[derive(Clone, Debug)]
pub struct Group {
    /// Index of the group's first entry.
    pub start: u32,
    /// Index of the group's last entry.
    pub end: u32,
    /// `match_criteria_enable`.
    pub enable: u32,
    /// Match criteria as created.
    pub criteria: FteMatchParam,
    pub(crate) mask: Pattern,
}

/// A flow table.
#[derive(Clone, Debug)]
pub struct FlowTable {
    /// The context as created and modified.
    pub context: FlowTableContext,
    /// Entries by index. Of the entries that match a frame, the one with the lowest index applies.
    pub entries: BTreeMap<u32, Entry>,
    pub(crate) groups: BTreeMap<u32, Group>,
    pub(crate) next_group: u32,
}

/// The flow tables of one type: of a function's receive side, of the e-switch, or an access list of a vport.
pub struct FlowTables {
    /// Tables by number.
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
    /// Returns an empty set of tables.
    pub fn new() -> Self {
        Self {
            tables: Table::new("flow table", 0xd1, 0x00ff_fffe, MOST_TABLES),
            root: None,
            groups: 0,
            entries: 0,
        }
    }

    /// Removes all tables.
    pub fn clear(&mut self) {
        self.tables.clear();
        (self.root, self.groups, self.entries) = (None, 0, 0);
    }

    /// Returns the number of the table in which the look-up of a frame begins.
    #[inline]
    pub fn root(&self) -> Option<u32> {
        // Fast path, because nearly every access list is empty.
        if self.root.is_none() && self.tables.is_empty() {
            return None;
        }
        self.root.or_else(|| {
            // Only the driver's tables count. Tables of user contexts are reached from the driver's tables.
            let drivers = self.tables.owned_by(DRIVER);
            let level = |number| Some(self.tables.get(number)?.context.level());
            drivers
                .map(|(_, number)| number)
                .min_by_key(|&number| level(number))
        })
    }
}
