//! Steering: which TIRs a received frame goes to, or which sides of the e-switch.
//!
//! The walk begins at the root. In each table the entry of the lowest index that matches counts; it sends
//! the frame on to tables and TIRs, or drops it. Without one the frame follows the table's misses. Levels
//! rise from table to table, so that a walk ends; where software may ignore them it ends after so many
//! tables.

use super::flow::{Destination, Entry, FlowTables, MISS_TABLE};
use super::matching::Pattern;
use crate::card::seat::Place;
use mlx_prm::flow_action;
use std::collections::VecDeque;

/// Tables a frame visits, all its copies together.
const MOST_VISITS: usize = 256;

/// A frame is handed to a TIR.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Handed {
    /// The TIR.
    pub tirn: u32,
    /// Of the entry that did it.
    pub flow_tag: u32,
}

/// What steering does with a frame.
#[derive(Debug, Default)]
pub struct Steered {
    /// Where it goes.
    pub handed: Vec<Handed>,
    /// The counters that count it.
    pub counters: Vec<u32>,
}

/// What a walk meets.
pub enum Met<'t> {
    /// An entry that decides.
    Entry(&'t Entry),
    /// The end of a table whose misses go nowhere in particular.
    Miss,
}

impl FlowTables {
    /// The entries that decide about a frame; nothing at all without a table.
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

    /// Where a received frame goes; nowhere if steering drops it.
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
                    steered.handed.push(Handed {
                        tirn,
                        flow_tag: entry.context.flow_tag(),
                    });
                }
            }
        }
        steered
    }

    /// Where the e-switch sends a frame; `None` if no entry decides. One that forwards to a table alone leaves that to
    /// the table.
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

    /// The entry of an access list that decides about a frame, if there is one.
    pub fn list(&self, frame: Pattern) -> Option<&Entry> {
        self.walk(frame).into_iter().find_map(|met| match met {
            Met::Entry(entry) => Some(entry),
            Met::Miss => None,
        })
    }
}

impl Entry {
    /// Whether it ends a frame.
    pub fn drops(&self) -> bool {
        self.context.action() & flow_action::DROP != 0
    }
}
