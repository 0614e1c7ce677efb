//! Flow tables, groups and entries: the objects. [`super::steering`] walks them.
//!
//! A table has 2^`log_size` entries and a level; a group owns a range of entries nobody else owns; an
//! entry lies in its group's range and forwards to tables of higher levels, or to TIRs. The first table of
//! a frame is the root that software has named, or else the driver's table of the lowest level.

use super::matching::Pattern;
use crate::card::seat::Place;
use crate::objects::{DRIVER, Table};
use mlx_prm::{FlowContext, FlowTableContext, FteMatchParam};
use std::collections::BTreeMap;

/// `table_miss_action`: on with the table named.
pub(crate) const MISS_TABLE: u32 = 1;
/// Tables of a function.
const MOST_TABLES: u32 = 1 << 12;
/// Flow counters of a function.
pub(crate) const MOST_COUNTERS: u32 = 1 << 15;

/// What entries that name it have met. Inferred: octets are those of the frame as software sees it, without its FCS.
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

/// Where an entry sends a frame.
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
    /// As it was set.
    pub context: FlowContext,
    /// The list behind it, as it was set.
    pub list: Vec<u64>,
    /// What it compares.
    pub mask: Pattern,
    /// With what.
    pub value: Pattern,
    /// Where it sends frames.
    pub destinations: Vec<Destination>,
    /// What it counts in.
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
    /// As it was created.
    pub criteria: FteMatchParam,
    pub(crate) mask: Pattern,
}

/// A table.
#[derive(Clone, Debug)]
pub struct FlowTable {
    /// As created and modified.
    pub context: FlowTableContext,
    /// Entries by index; the lowest that matches counts.
    pub entries: BTreeMap<u32, Entry>,
    pub(crate) groups: BTreeMap<u32, Group>,
    pub(crate) next_group: u32,
}

/// The flow tables of one type: a function's for what it receives, the e-switch's, or an access list of one of its
/// vports.
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
    /// None.
    pub fn new() -> Self {
        Self {
            tables: Table::new("flow table", 0xd1, 0x00ff_fffe, MOST_TABLES),
            root: None,
            groups: 0,
            entries: 0,
        }
    }

    /// Drops all of them.
    pub fn clear(&mut self) {
        self.tables.clear();
        (self.root, self.groups, self.entries) = (None, 0, 0);
    }

    /// The table a received frame begins at.
    #[inline]
    pub fn root(&self) -> Option<u32> {
        // As for nearly every access list.
        if self.root.is_none() && self.tables.is_empty() {
            return None;
        }
        self.root.or_else(|| {
            // User contexts have theirs beside it, and are sent frames by the driver's.
            let drivers = self.tables.owned_by(DRIVER);
            let level = |number| Some(self.tables.get(number)?.context.level());
            drivers
                .map(|(_, number)| number)
                .min_by_key(|&number| level(number))
        })
    }
}
