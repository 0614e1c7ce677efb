//! Steering: the TIRs, or ports of the e-switch, to which a frame is sent.
//!
//! The look-up begins at the root table. In each table the matching entry with the lowest index applies: the entry
//! sends the frame to tables, TIRs or ports, or drops the frame. If no entry matches, the table's miss action applies.
//! Levels increase from table to table, so that the look-up ends. If software may ignore levels, the look-up ends after
//! 256 tables.

use super::flow::{Destination, Entry, FlowTables, MISS_TABLE};
use super::matching::Pattern;
use crate::card::seat::Place;
use mlx_prm::flow_action;
use std::collections::VecDeque;

/// Maximum number of tables that a frame visits, summed over all its copies.
const MOST_VISITS: usize = 256;

/// A TIR to which steering has sent a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SteeredTir {
    /// Number of the TIR.
    pub tirn: u32,
    /// Flow tag of the entry that sent the frame.
    pub flow_tag: u32,
}

/// Result of steering a frame.
#[derive(Debug, Default)]
pub struct Steered {
    /// TIRs that receive the frame.
    pub handed: Vec<SteeredTir>,
    /// Counters of the entries that the frame matched.
    pub counters: Vec<u32>,
}

/// Result of the look-up in one table.
pub enum Met<'t> {
    /// The matching entry.
    Entry(&'t Entry),
    /// No entry matches, and the table has no miss table.
    Miss,
}

impl FlowTables {
    /// Returns the results of the tables that a frame visits. A table that sends the frame on to its miss table has no
    /// result. The list is empty if there is no root table.
    pub fn walk(&self, frame: Pattern) -> Vec<Met<'_>> {
        let mut met = Vec::new();
        let mut open: VecDeque<u32> = self.root().into_iter().collect();
        for _ in 0..MOST_VISITS {
            let Some(table) = open.pop_front().and_then(|number| self.tables.get(number)) else {
                break;
            };
            let entry = table
                .entries
                .values()
                .find(|entry| frame.under(entry.mask) == entry.value);
            let Some(entry) = entry else {
                let context = &table.context;
                if context.table_miss_action() == MISS_TABLE {
                    open.push_back(context.table_miss_id());
                } else {
                    met.push(Met::Miss);
                }
                continue;
            };
            met.push(Met::Entry(entry));
            if !entry.drops() {
                open.extend(entry.destinations.iter().filter_map(|to| match *to {
                    Destination::Table(number) => Some(number),
                    Destination::Tir(_) | Destination::Place(_) => None,
                }));
            }
        }
        met
    }

    /// Returns the TIRs for a received frame, and the counters of the matching entries. Returns no TIR if steering
    /// drops the frame.
    pub fn steer(&self, frame: Pattern) -> Steered {
        let mut steered = Steered::default();
        for met in self.walk(frame) {
            let Met::Entry(entry) = met else { continue };
            steered.counters.extend_from_slice(&entry.counters);
            if entry.drops() {
                continue;
            }
            for destination in &entry.destinations {
                if let Destination::Tir(tirn) = *destination {
                    steered.handed.push(SteeredTir {
                        tirn,
                        flow_tag: entry.context.flow_tag(),
                    });
                }
            }
        }
        steered
    }

    /// Returns the e-switch's destinations for a frame; `None` if no entry decides. An entry that only forwards to a
    /// table does not decide; the table does.
    pub fn switch(&self, frame: Pattern) -> Option<Vec<Place>> {
        let mut decided = None;
        for met in self.walk(frame) {
            let Met::Entry(entry) = met else { continue };
            if entry.drops() {
                decided.get_or_insert_with(Vec::new);
                continue;
            }
            for to in &entry.destinations {
                if let Destination::Place(place) = *to {
                    decided.get_or_insert_with(Vec::new).push(place);
                }
            }
        }
        decided
    }

    /// Returns the matching entry of an access list.
    pub fn list(&self, frame: Pattern) -> Option<&Entry> {
        self.walk(frame).into_iter().find_map(|met| match met {
            Met::Entry(entry) => Some(entry),
            Met::Miss => None,
        })
    }
}

impl Entry {
    /// Returns whether the entry drops frames.
    pub fn drops(&self) -> bool {
        self.context.action() & flow_action::DROP != 0
    }
}
