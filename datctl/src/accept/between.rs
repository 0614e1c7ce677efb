//! Records how much the counters of both sides grow during a line of the acceptance run, and concludes from this where
//! a fault is.
//!
//! A line between two functions fails in one of three places: at the sender, at the receiver, or between them, in the
//! e-switch or on the wire. The vports' counters distinguish these cases: the frames of queue pairs that the sender's
//! vport has sent, and those that the receiver's vport has received (PRM "QUERY_VPORT_COUNTER"). The counters are read
//! before and after a line. No other program uses the vport meanwhile.

use std::error::Error;

use serde::Serialize;
use udapl::adapter::hca_mut;
use udapl::counters::{DeviceCounters, QueueCounters, VportCounters};

use super::pair::Pair;
use crate::report::{Report, table};

/// Increments of the counters during a line: one entry for each side, or one entry if the function talks to itself.
#[derive(Serialize)]
pub(super) struct Between {
    sides: Vec<Side>,
    /// True if the line failed.
    failed: bool,
}

/// Increments of one function's counters during the line.
#[derive(Serialize)]
struct Side {
    name: String,
    /// Increments of its vport's counters that are not 0; `None` if the device does not report them.
    vport: Option<Counts>,
    /// Increments of its queue pairs' counters that are not 0; `None` if the device does not report them.
    queue: Option<Counts>,
}

type Counts = Vec<(&'static str, u64)>;

/// Mask of the queue pairs' counters, which have 32 bits and wrap.
const QUEUE_COUNTER: u64 = 0xffff_ffff;

/// Runs a line on a pair and passes the counters to `keep`. Returns the line's result with the text of
/// [`Between::end`] appended.
pub(super) fn counted(
    pair: &mut Pair,
    keep: impl FnOnce(&Between) -> Result<(), Box<dyn Error>>,
    line: impl FnOnce(&mut Pair) -> Result<String, Box<dyn Error>>,
) -> Result<String, Box<dyn Error>> {
    let before = read(pair);
    let outcome = line(pair);
    let after = read(pair);
    let (before, after) = match (before, after) {
        (Ok(before), Ok(after)) => (before, after),
        (Err(why), _) | (_, Err(why)) => {
            return with(outcome, &format!("the counters were not read: {why}"));
        }
    };
    let names = (0..after.len())
        .map(|side| pair.name(side))
        .collect::<Vec<_>>();
    let between = Between::of(names, &before, &after, outcome.is_err());
    let kept = keep(&between);
    let outcome = with(outcome, &between.end());
    match kept {
        Ok(()) => outcome,
        Err(why) => with(outcome, &format!("the counters were not kept: {why}")),
    }
}

/// Appends `more` to the result of a line.
fn with(outcome: Result<String, Box<dyn Error>>, more: &str) -> Result<String, Box<dyn Error>> {
    match outcome {
        Ok(found) => Ok(format!("{found}; {more}")),
        Err(error) => Err(format!("{error}; {more}").into()),
    }
}

fn read(pair: &mut Pair) -> Result<Vec<DeviceCounters>, Box<dyn Error>> {
    let all = pair.adapters.iter_mut();
    all.map(|adapter| Ok(hca_mut(&mut adapter.ia).counters()?))
        .collect()
}

fn vport(counters: &VportCounters) -> Counts {
    counters.named().collect()
}

fn queue(counters: &QueueCounters) -> Counts {
    counters.named().collect()
}

/// Returns the counters that grew, with their increments.
fn added(before: &[(&'static str, u64)], after: &[(&'static str, u64)], width: u64) -> Counts {
    let was = |name: &str| before.iter().find(|(other, _)| *other == name);
    let more = |(name, now): &(&'static str, u64)| {
        let was = was(name).map_or(0, |(_, count)| *count);
        (*name, now.wrapping_sub(was) & width)
    };
    after
        .iter()
        .map(more)
        .filter(|(_, more)| *more > 0)
        .collect()
}

impl Between {
    fn of(
        names: Vec<String>,
        before: &[DeviceCounters],
        after: &[DeviceCounters],
        failed: bool,
    ) -> Self {
        let sides = names.into_iter().zip(before.iter().zip(after));
        let sides = sides.map(|(name, (before, after))| Side {
            name,
            vport: before
                .vport
                .zip(after.vport)
                .map(|(before, after)| added(&vport(&before), &vport(&after), u64::MAX)),
            queue: before
                .queue
                .zip(after.queue)
                .map(|(before, after)| added(&queue(&before), &queue(&after), QUEUE_COUNTER)),
        });
        Self {
            sides: sides.collect(),
            failed,
        }
    }

    /// Returns the directions, from each side to the other. A function that talks to itself has one.
    fn ways(&self) -> Vec<Way<'_>> {
        let way = |from, to| Way { from, to };
        match &self.sides[..] {
            [one] => vec![way(one, one)],
            [one, other] => vec![way(one, other), way(other, one)],
            _ => Vec::new(),
        }
    }

    /// Returns the number of frames that queue pairs sent in each direction, in words.
    fn frames(&self) -> String {
        let told: Option<Vec<String>> = self
            .ways()
            .iter()
            .map(|way| Some(format!("{} from {}", way.sent()?, way.from.name)))
            .collect();
        told.map_or_else(
            || "frames of the vports are not told".to_owned(),
            |told| format!("frames of queue pairs: {}", told.join(", ")),
        )
    }

    /// Returns the conclusion if the line failed, and the numbers of frames otherwise.
    fn end(&self) -> String {
        if self.failed {
            self.conclusion()
        } else {
            self.frames()
        }
    }

    /// Returns a text that names the place of the fault, from the first direction in which frames are missing.
    pub(super) fn conclusion(&self) -> String {
        let ways = self.ways();
        let found = ways.iter().find_map(Way::fault);
        let mut text = found.unwrap_or_else(|| match ways.first() {
            None => "nothing was counted".to_owned(),
            Some(way) if way.sent().is_none() => {
                "the device does not tell what its vport counted, so nothing follows from it".to_owned()
            }
            Some(way) => format!(
                "all that was sent was received ({}): the e-switch and the wire deliver, and the fault is in a queue pair, a key or the connection manager of {}",
                self.frames(),
                way.to.name
            ),
        });
        for side in &self.sides {
            let told: Vec<String> = side
                .queue
                .iter()
                .flatten()
                .map(|(name, count)| format!("{name} {count}"))
                .collect();
            if !told.is_empty() {
                text += &format!("; {} counted besides: {}", side.name, told.join(", "));
            }
        }
        text
    }
}

impl Side {
    /// Returns a counter of the vport; `None` if the device does not report it.
    fn count(&self, name: &str) -> Option<u64> {
        let counts = self.vport.as_ref()?;
        let count = counts.iter().find(|(other, _)| *other == name);
        Some(count.map_or(0, |(_, count)| *count))
    }
}

/// The direction from one side to the other.
struct Way<'a> {
    from: &'a Side,
    to: &'a Side,
}

impl Way<'_> {
    fn sent(&self) -> Option<u64> {
        self.from.count("tx_vport_rdma_unicast_packets")
    }

    fn received(&self) -> Option<u64> {
        self.to.count("rx_vport_rdma_unicast_packets")
    }

    /// Returns the number of RDMA frames that the sender's vport received.
    fn heard(&self) -> u64 {
        self.from
            .count("rx_vport_rdma_unicast_packets")
            .unwrap_or(0)
    }

    /// Returns the number of other Ethernet frames that the sender's vport sent, such as those of neighbour discovery.
    fn others(&self) -> u64 {
        ["unicast", "multicast", "broadcast"]
            .into_iter()
            .filter_map(|kind| self.from.count(&format!("tx_vport_{kind}_packets")))
            .sum()
    }

    /// Returns the fault in this direction; `None` if all frames arrived, or the device has no counters.
    fn fault(&self) -> Option<String> {
        let (sent, received) = (self.sent()?, self.received()?);
        let (from, to) = (&self.from.name, &self.to.name);
        match (sent, received) {
            (0, _) if self.heard() > 0 => Some(format!(
                "{from} received {} frames of queue pairs and sent none: the fault is there, in a queue pair or the connection manager, and not in the e-switch",
                self.heard()
            )),
            (0, _) if self.others() > 0 => Some(format!(
                "{from} sent no frame of a queue pair, and {} others: it looked for the MAC of {to} and did not find it, or a queue pair could not be made",
                self.others()
            )),
            (0, _) => Some(format!(
                "nothing was sent by {from}: the fault is there, in a queue pair, its doorbell or the connection manager, and not in the e-switch"
            )),
            (sent, 0) => Some(format!(
                "{sent} frames were sent by {from} and none was received by {to}: they were lost between, by the e-switch ({to}'s MAC in its vport's list; spoof check, VLAN and link state of both) or on the wire, and not in a queue pair"
            )),
            (sent, received) if received < sent => Some(format!(
                "{sent} frames were sent by {from} and {received} were received by {to}: some were lost between: a full queue, congestion, or frames longer than an MTU on the way"
            )),
            _ => None,
        }
    }
}

impl Report for Between {
    fn human(&self) -> String {
        let rows = self.sides.iter().flat_map(|side| {
            let group = |of: &str, counts: &Option<Counts>| match counts {
                None => vec![[
                    side.name.clone(),
                    of.to_owned(),
                    "not told".to_owned(),
                    String::new(),
                ]],
                Some(counts) => counts
                    .iter()
                    .map(|(name, count)| {
                        let count = count.to_string();
                        [side.name.clone(), of.to_owned(), (*name).to_owned(), count]
                    })
                    .collect(),
            };
            [
                group("vport", &side.vport),
                group("queue pairs", &side.queue),
            ]
            .concat()
        });
        let counters = table(["function", "of", "counter", "while it ran"], rows);
        format!("{counters}\n\n{}", self.end())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn side(name: &str, counts: Option<&[(&'static str, u64)]>) -> Side {
        Side {
            name: name.to_owned(),
            vport: counts.map(<[_]>::to_vec),
            queue: None,
        }
    }

    const SENT: &str = "tx_vport_rdma_unicast_packets";
    const RECEIVED: &str = "rx_vport_rdma_unicast_packets";

    fn concluded(one: &[(&'static str, u64)], other: &[(&'static str, u64)]) -> String {
        let sides = vec![side("a", Some(one)), side("b", Some(other))];
        Between {
            sides,
            failed: true,
        }
        .conclusion()
    }

    #[test]
    fn where_frames_were_lost_follows_from_what_both_sides_counted() {
        for (one, other, begins, part) in [
            (
                &[][..],
                &[][..],
                "nothing was sent by a",
                "not in the e-switch",
            ),
            (
                &[("tx_vport_multicast_packets", 3)],
                &[],
                "a sent no frame of a queue pair, and 3 others",
                "the MAC of b",
            ),
            (
                &[(SENT, 7)],
                &[],
                "7 frames were sent by a and none was received by b",
                "spoof check",
            ),
            (
                &[(SENT, 7)],
                &[(RECEIVED, 5), (SENT, 5)],
                "7 frames were sent by a and 5 were received by b",
                "MTU",
            ),
            // Frames are missing in the opposite direction.
            (
                &[(SENT, 7)],
                &[(RECEIVED, 7), (SENT, 6)],
                "6 frames were sent by b and none was received by a",
                "a's MAC",
            ),
            (
                &[(SENT, 7)],
                &[(RECEIVED, 7), ("tx_vport_multicast_packets", 3)],
                "b received 7 frames of queue pairs and sent none",
                "connection manager",
            ),
            (
                &[(SENT, 7), (RECEIVED, 6)],
                &[(RECEIVED, 7), (SENT, 6)],
                "all that was sent was received",
                "7 from a, 6 from b",
            ),
        ] {
            let text = concluded(one, other);
            assert!(text.starts_with(begins) && text.contains(part), "{text}");
        }
    }

    #[test]
    fn a_function_with_itself_has_one_way_and_one_that_counts_nothing_says_so() {
        let sides = vec![side("a", Some(&[(SENT, 7)]))];
        let text = Between {
            sides,
            failed: true,
        }
        .conclusion();
        assert!(
            text.starts_with("7 frames were sent by a and none"),
            "{text}"
        );
        let sides = vec![side("a", None), side("b", None)];
        let text = Between {
            sides,
            failed: true,
        }
        .conclusion();
        assert!(text.contains("nothing follows"), "{text}");
    }

    #[test]
    fn a_counter_of_a_queue_pair_that_wrapped_has_its_difference() {
        let before = [("out_of_sequence", QUEUE_COUNTER)];
        let after = [("out_of_sequence", 2), ("duplicate_request", 0)];
        let added = added(&before, &after, QUEUE_COUNTER);
        assert_eq!(added, [("out_of_sequence", 3)]);
    }
}
