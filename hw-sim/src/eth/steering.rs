//! Steering: which TIRs a received frame goes to.
//!
//! The walk begins at the root. In each table the entry of the lowest index that matches counts; it sends
//! the frame on to tables and TIRs, or drops it. Without one the frame follows the table's misses. Levels
//! rise from table to table, so that a walk ends; where software may ignore them it ends after so many
//! tables.

use super::flow::{Destination, FlowTables, MISS_TABLE};
use super::matching::Pattern;
use hw_mlx::prm::flow_action;
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

impl FlowTables {
    /// Where a frame goes; nowhere if steering drops it.
    pub fn steer(&self, frame: Pattern) -> Vec<Handed> {
        let mut handed = Vec::new();
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
                }
                continue;
            };
            if entry.context.action() & flow_action::DROP != 0 {
                continue;
            }
            for destination in &entry.destinations {
                match *destination {
                    Destination::Table(number) => open.push_back(number),
                    Destination::Tir(tirn) => handed.push(Handed {
                        tirn,
                        flow_tag: entry.context.flow_tag(),
                    }),
                }
            }
        }
        handed
    }
}
