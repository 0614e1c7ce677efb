//! A connection as one sequence of both sides, as far as the peer's side is recorded.
//!
//! Two files have two clocks. Messages that one side sent and the other received limit the offset between the clocks,
//! because a message cannot arrive before it was sent. If the limits permit an offset of 0, no offset is added.
//! Otherwise the offset is the middle between the limits, or the limit if there is only one.

use std::collections::VecDeque;

use serde::Serialize;

use super::connection::{Connection, Kind, Row};
use super::read::File;
use crate::report::table;

/// Side to which a row belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Side {
    /// Our side.
    Here,
    /// The peer's side.
    Peer,
}

/// A row of the sequence.
#[derive(Serialize)]
pub(super) struct Step {
    /// Time since the first row of the sequence, in nanoseconds.
    pub(super) at: u64,
    /// Side of the row.
    pub(super) side: Side,
    /// The row itself.
    #[serde(flatten)]
    pub(super) row: Row,
    /// Index of the step that has the same message at the other side.
    #[serde(skip)]
    pub(super) partner: Option<usize>,
}

/// A connection from both sides.
#[derive(Serialize)]
pub(crate) struct Sequence {
    /// Title of the sequence, in one line.
    pub(super) title: String,
    /// Reason why the file was written.
    pub(super) reason: String,
    /// Name of our side.
    pub(super) here: String,
    /// Name of the peer.
    pub(super) peer: String,
    /// True if the peer's side is recorded.
    pub(super) both: bool,
    /// Number of earlier rows that are not shown.
    pub(super) before: usize,
    /// The steps, in order.
    pub(super) steps: Vec<Step>,
}

impl Sequence {
    pub(super) fn of(
        file: &File,
        ours: &Connection,
        theirs: Option<&Connection>,
        other: Option<&File>,
        last: usize,
    ) -> Self {
        let process = file
            .process
            .map_or(String::new(), |process| format!(" in process {process}"));
        let qpn = |qpn: Option<u32>| qpn.map_or("unknown".to_owned(), |qpn| format!("{qpn:#x}"));
        let peer = ours.peer.clone().unwrap_or_else(|| "the peer".to_owned());
        let title = format!(
            "EP {} of instance {} of {}{process}, queue pair {}, with {peer}, queue pair {}",
            ours.endpoint,
            ours.instance,
            file.adapter,
            qpn(ours.queue_pair),
            qpn(ours.peer_queue_pair),
        );
        let offset = theirs.map_or(0, |theirs| clock_offset(&ours.rows, &theirs.rows));
        let here = ours.rows.iter().map(|row| (row.at, Side::Here, row));
        let there = theirs.into_iter().flat_map(|theirs| &theirs.rows);
        let there = there.map(|row| (row.at.saturating_add_signed(offset), Side::Peer, row));
        let rows = merge(here.collect(), there.collect());
        let before = rows.len().saturating_sub(last);
        let start = rows.first().map_or(0, |(at, ..)| *at);
        let mut steps: Vec<Step> = rows
            .into_iter()
            .skip(before)
            .map(|(at, side, row)| Step {
                at: at - start,
                side,
                row: row.clone(),
                partner: None,
            })
            .collect();
        link_messages(&mut steps);
        Self {
            title,
            reason: file.reason.clone(),
            here: file.adapter.clone(),
            peer: other.map_or(peer, |other| other.adapter.clone()),
            both: theirs.is_some(),
            before,
            steps,
        }
    }

    /// Returns the sequence as a table.
    pub(super) fn human(&self) -> String {
        let rows = self.steps.iter().map(|step| {
            let arrow = match (step.row.kind, step.side) {
                (Kind::Sent | Kind::Post, Side::Here) | (Kind::Received, Side::Peer) => "-> ",
                (Kind::Received, Side::Here) | (Kind::Sent | Kind::Post, Side::Peer) => "<- ",
                (
                    Kind::Event
                    | Kind::State
                    | Kind::PostReceive
                    | Kind::Done
                    | Kind::DoneReceive
                    | Kind::Refused
                    | Kind::Failed
                    | Kind::Flushed
                    | Kind::End,
                    _,
                ) => "",
            };
            let says = format!("{arrow}{}", step.row.says);
            let (here, peer) = match step.side {
                Side::Here => (says, String::new()),
                Side::Peer => (String::new(), says),
            };
            [milliseconds(step.at), here, peer]
        });
        let there = if self.both {
            self.peer.clone()
        } else {
            format!("{} (nothing was recorded there)", self.peer)
        };
        let told = table(["ms", &self.here, &there], rows);
        let left_out = match self.before {
            0 => String::new(),
            before => format!("\n{before} rows before these are left out (--last)"),
        };
        format!("{}\n{}{left_out}\n\n{told}", self.title, self.reason)
    }
}

pub(super) fn milliseconds(at: u64) -> String {
    format!("{}.{:06}", at / 1_000_000, at % 1_000_000)
}

type Rows<'a> = VecDeque<(u64, Side, &'a Row)>;

/// Merges the rows of both sides by time; those of each side keep their order. If a message arrives at the time at
/// which it was sent, as in virtual time, its arrival follows its departure.
fn merge<'a>(mut here: Rows<'a>, mut peer: Rows<'a>) -> Vec<(u64, Side, &'a Row)> {
    let mut settled: Vec<(u64, Side, &Row)> = Vec::new();
    loop {
        let from = match (here.front(), peer.front()) {
            (None, None) => return settled,
            (Some(_), None) => &mut here,
            (None, Some(_)) => &mut peer,
            (Some(one), Some(other)) => {
                // A received message must come after the row in which the other side sent it.
                let waits = |row: &Row, other: &Rows<'_>| {
                    row.kind == Kind::Received
                        && other
                            .iter()
                            .any(|(_, _, sent)| sent.kind == Kind::Sent && sent.mad == row.mad)
                };
                let here_waits = one.0 >= other.0 && waits(one.2, &peer);
                let peer_waits = other.0 >= one.0 && waits(other.2, &here);
                if here_waits || (one.0 > other.0 && !peer_waits) {
                    &mut peer
                } else {
                    &mut here
                }
            }
        };
        settled.extend(from.pop_front());
    }
}

/// Finds the row in which each sent message arrives, and links both rows.
fn link_messages(steps: &mut [Step]) {
    for at in 0..steps.len() {
        let sent = &steps[at];
        if sent.row.kind != Kind::Sent {
            continue;
        }
        let arrives = steps.iter().enumerate().position(|(_, step)| {
            step.row.kind == Kind::Received
                && step.side != sent.side
                && step.partner.is_none()
                && step.row.mad == sent.row.mad
        });
        if let Some(there) = arrives {
            steps[at].partner = Some(there);
            steps[there].partner = Some(at);
        }
    }
}

/// Returns the offset in nanoseconds that converts times of the peer's clock to our clock.
fn clock_offset(ours: &[Row], theirs: &[Row]) -> i64 {
    let (mut least, mut most) = (i64::MIN, i64::MAX);
    let signed = |at: u64| i64::try_from(at).unwrap_or(i64::MAX);
    for our in ours.iter().filter(|row| row.mad.is_some()) {
        for their in theirs.iter().filter(|row| row.mad == our.mad) {
            let apart = signed(our.at).saturating_sub(signed(their.at));
            // A message cannot arrive at one side before the other side sent it, in either direction.
            if our.kind == Kind::Sent && their.kind == Kind::Received {
                least = least.max(apart);
            } else if our.kind == Kind::Received && their.kind == Kind::Sent {
                most = most.min(apart);
            }
        }
    }
    match (least, most) {
        (i64::MIN, i64::MAX) => 0,
        (least, most) if least <= 0 && most >= 0 => 0,
        (least, i64::MAX) => least,
        (i64::MIN, most) => most,
        (least, most) => least.midpoint(most),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(at: u64, kind: Kind, message: u8) -> Row {
        Row {
            at,
            kind,
            says: String::new(),
            name: String::new(),
            mad: Some(Box::new([message; 256])),
        }
    }

    #[test]
    fn clocks_that_differ_are_set_by_what_was_sent_and_received() {
        let ours = [row(100, Kind::Sent, 1), row(140, Kind::Received, 2)];
        let theirs = [row(5_110, Kind::Received, 1), row(5_120, Kind::Sent, 2)];
        assert_eq!(clock_offset(&ours, &theirs), -4_995);
        let same = [row(110, Kind::Received, 1), row(120, Kind::Sent, 2)];
        assert_eq!(clock_offset(&ours, &same), 0);
    }

    #[test]
    fn what_arrives_at_the_time_it_was_sent_comes_behind_it() {
        let ours = [row(7, Kind::Received, 2), row(7, Kind::Sent, 3)];
        let theirs = [row(7, Kind::Sent, 2), row(7, Kind::Received, 3)];
        let here = ours.iter().map(|row| (row.at, Side::Here, row));
        let there = theirs.iter().map(|row| (row.at, Side::Peer, row));
        let order: Vec<_> = merge(here.collect(), there.collect())
            .iter()
            .map(|(_, side, row)| (*side, row.kind))
            .collect();
        assert_eq!(
            order,
            [
                (Side::Peer, Kind::Sent),
                (Side::Here, Kind::Received),
                (Side::Here, Kind::Sent),
                (Side::Peer, Kind::Received)
            ]
        );
    }
}
