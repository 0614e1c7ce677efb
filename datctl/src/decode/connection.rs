//! The part of a file that belongs to one connection.
//!
//! An endpoint has one connection after another, with a reset between them. REQ and REP contain the number of the queue
//! pair, and all messages of the connection manager contain the communication IDs. So the number of a queue pair links
//! an endpoint to its messages. These messages contain the number of the peer's queue pair, which links the connection
//! to its other side.

use std::collections::BTreeMap;

use control::schema::Entry;
use serde::Serialize;
use udapl::recorder::{Mad, Message, Qpn};

use super::read::{File, What};

/// A connection of an endpoint.
#[derive(Clone, Serialize)]
pub(crate) struct Connection {
    /// Number of the instance.
    pub(super) instance: u32,
    /// Number of the endpoint in the instance.
    pub(super) endpoint: u32,
    /// Number of the queue pair.
    pub(super) queue_pair: Option<u32>,
    /// Number of the peer's queue pair, if a message has it.
    pub(super) peer_queue_pair: Option<u32>,
    /// Address of the peer.
    pub(super) peer: Option<String>,
    /// Reason why the connection ended.
    pub(super) ended: Option<String>,
    /// Events, in the order of time.
    pub(super) rows: Vec<Row>,
}

/// An event of a connection.
#[derive(Clone, Serialize)]
pub(crate) struct Row {
    /// Time in nanoseconds of the file's clock.
    pub(super) at: u64,
    /// Kind of the event.
    pub(super) kind: Kind,
    /// The event in words.
    pub(super) says: String,
    /// Short name, which is written on an arrow.
    #[serde(skip)]
    pub(super) name: String,
    /// Bytes of the message, by which the same message is found at the other side.
    #[serde(skip)]
    pub(super) mad: Option<Box<Mad>>,
}

/// Kinds of events.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Kind {
    /// A message arrived.
    Received,
    /// An event of the device or the link.
    Event,
    /// The endpoint changed its state.
    State,
    /// A request was posted.
    Post,
    /// A receive was posted.
    PostReceive,
    /// A request completed without an error.
    Done,
    /// A receive completed without an error.
    DoneReceive,
    /// A completion with an error that the peer reported.
    Refused,
    /// A completion with another error.
    Failed,
    /// A completion with the status "flushed": the connection had ended already.
    Flushed,
    /// The connection ended.
    End,
    /// A message was sent.
    Sent,
}

impl Kind {
    /// Returns the rank of this kind among events of the same time; the lowest rank comes first.
    const fn rank(self) -> u8 {
        match self {
            Self::Received | Self::Event => 0,
            Self::State
            | Self::Post
            | Self::PostReceive
            | Self::Done
            | Self::DoneReceive
            | Self::Refused
            | Self::Failed
            | Self::Flushed
            | Self::End => 1,
            Self::Sent => 2,
        }
    }

    fn of(entry: &Entry) -> Option<Self> {
        let receive = entry.receive == Some(true);
        let what = entry.what.as_deref();
        Some(match entry.kind.as_str() {
            "state" => Self::State,
            "end" => Self::End,
            "post" if receive => Self::PostReceive,
            "post" => Self::Post,
            "completion" => match what {
                Some("DAT_DTO_SUCCESS") if receive => Self::DoneReceive,
                Some("DAT_DTO_SUCCESS") => Self::Done,
                Some("DAT_DTO_ERR_FLUSHED") => Self::Flushed,
                Some(
                    "DAT_DTO_ERR_REMOTE_ACCESS"
                    | "DAT_DTO_ERR_REMOTE_RESPONDER"
                    | "DAT_DTO_ERR_RECEIVER_NOT_READY",
                ) if !receive => Self::Refused,
                _ => Self::Failed,
            },
            _ => return None,
        })
    }
}

impl Connection {
    /// Returns true if `other` is the other side of this connection: each names the other's queue pair, and this side
    /// received a message that `other` sent. The numbers alone do not suffice, because two functions may use the same
    /// queue pair number.
    pub(super) fn is_other_side_of(&self, other: &Self) -> bool {
        let received = |row: &Row| {
            let mut rows = self.rows.iter();
            rows.any(|own| own.kind == Kind::Received && own.mad == row.mad)
        };
        self.queue_pair.is_some()
            && self.queue_pair == other.peer_queue_pair
            && self.peer_queue_pair == other.queue_pair
            && other
                .rows
                .iter()
                .any(|row| row.kind == Kind::Sent && received(row))
    }

    /// Adds the connection's messages of the connection manager between two times.
    fn add_messages(&mut self, file: &File, from: u64, until: u64) {
        let messages = || {
            file.events.iter().filter_map(|event| match &event.what {
                What::Message { sent, message, mad } if (from..until).contains(&event.at) => {
                    Some((event.at, *sent, &**message, mad))
                }
                What::Message { .. } | What::Note(_) => None,
            })
        };
        let own = messages().find(|(_, sent, message, _)| {
            let whose = message.queue_pair().map(Qpn::get);
            *sent && whose.is_some() && whose == self.queue_pair
        });
        let Some((_, _, first, _)) = own else { return };
        let ids = first.comm_ids();
        for (at, sent, message, mad) in messages() {
            let its = message.comm_ids();
            let belongs = if sent {
                its.local == ids.local
            } else {
                // A REQ from the peer lacks our communication ID. Our messages have the REQ's ID as their remote ID.
                its.remote == Some(ids.local)
                    || matches!(message, Message::Req(_)) && ids.remote == Some(its.local)
            };
            if !belongs {
                continue;
            }
            if !sent && let Some(qpn) = message.queue_pair() {
                self.peer_queue_pair = Some(qpn.get());
            }
            let kind = if sent { Kind::Sent } else { Kind::Received };
            self.rows.push(Row {
                at,
                kind,
                says: message.to_string(),
                name: message.name().to_owned(),
                mad: Some(mad.clone()),
            });
        }
    }

    /// Adds the events that concern every connection: link events, device events, and commands that did not succeed.
    fn add_events(&mut self, file: &File, from: u64, until: u64) {
        for event in &file.events {
            let What::Note(entry) = &event.what else {
                continue;
            };
            let is_bad_command = entry.kind == "command" && !entry.says.contains(": done, ");
            if (entry.kind == "event" || is_bad_command) && (from..=until).contains(&event.at) {
                self.rows.push(Row {
                    at: event.at,
                    kind: Kind::Event,
                    says: entry.says.clone(),
                    name: String::new(),
                    mad: None,
                });
            }
        }
    }
}

/// Returns all connections of a file, sorted by instance and endpoint. The connections of one endpoint are in the order
/// of time.
pub(super) fn all_of(file: &File) -> Vec<Connection> {
    let mut of_endpoints: BTreeMap<(u32, u32), Vec<Connection>> = BTreeMap::new();
    let mut over = BTreeMap::new();
    for event in &file.events {
        let What::Note(entry) = &event.what else {
            continue;
        };
        let (Some(instance), Some(endpoint), Some(kind)) =
            (entry.instance, entry.endpoint, Kind::of(entry))
        else {
            continue;
        };
        let key = (instance, endpoint);
        let all = of_endpoints.entry(key).or_default();
        if all.is_empty() || over.remove(&key).is_some() {
            all.push(Connection {
                instance,
                endpoint,
                queue_pair: None,
                peer_queue_pair: None,
                peer: None,
                ended: None,
                rows: Vec::new(),
            });
        }
        let Some(current) = all.last_mut() else {
            continue;
        };
        current.queue_pair = entry.queue_pair.or(current.queue_pair);
        if kind == Kind::End {
            current.ended.clone_from(&entry.what);
        }
        if kind == Kind::State && entry.from.as_deref() == Some("DISCONNECTED") {
            over.insert(key, ());
        }
        let of_whom = format!("EP {endpoint}: ");
        let says = entry.says.strip_prefix(&of_whom).unwrap_or(&entry.says);
        current.rows.push(Row {
            at: event.at,
            kind,
            says: says.to_owned(),
            name: entry.what.clone().unwrap_or_default(),
            mad: None,
        });
    }
    let mut found = Vec::new();
    for mut all in of_endpoints.into_values() {
        if let Some(last) = all.last_mut() {
            let known = file.endpoints.iter().find(|entry| {
                (entry.instance, entry.endpoint) == (Some(last.instance), Some(last.endpoint))
            });
            last.peer = known.and_then(|entry| entry.peer.clone());
            last.queue_pair = last
                .queue_pair
                .or_else(|| known.and_then(|entry| entry.queue_pair));
        }
        let first = |one: &Connection| one.rows.first().map_or(0, |row| row.at);
        let last = |one: &Connection| one.rows.last().map_or(0, |row| row.at);
        let bounds: Vec<_> = all.iter().map(|one| (first(one), last(one))).collect();
        for (at, one) in all.iter_mut().enumerate() {
            let after = at.checked_sub(1).map_or(0, |before| bounds[before].1);
            let until = bounds.get(at + 1).map_or(u64::MAX, |next| next.0);
            let (from, to) = bounds[at];
            one.add_messages(file, after, until);
            one.add_events(file, from, to);
            one.rows.sort_by_key(|row| (row.at, row.kind.rank()));
        }
        found.extend(all);
    }
    found
}
