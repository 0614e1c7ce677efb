//! `datctl decode`: the sequence of a connection, from the file of a flight recorder.
//!
//! ```text
//!   read         reads the pcapng file of a recorder: frames, and notes of events
//!   connection   selects the records of one connection, and finds its other side in the same or another file
//!   sequence     merges both sides into one order
//!   ladder       draws the sequence as a picture
//! ```
//!
//! A file may come from an untrusted source. The command shows its contents, but does not rely on them.

mod connection;
mod ladder;
mod read;
mod sequence;

use std::error::Error;
use std::path::PathBuf;

use serde::Serialize;

use self::connection::Connection;
use self::read::File;
use self::sequence::Sequence;
use crate::report::{Report, table};

/// `decode`
#[derive(clap::Args)]
pub(crate) struct Options {
    /// The pcapng file of a flight recorder.
    file: PathBuf,
    /// Number of the connection in the list that is printed without this option. Not needed if there is only one.
    #[arg(long, value_name = "N")]
    connection: Option<usize>,
    /// Number of the connection's queue pair on this side. Of several connections that had it, the last is shown.
    #[arg(long, value_name = "N", value_parser = number, conflicts_with = "connection")]
    qp: Option<u32>,
    /// The file of the peer's recorder. Not needed if FILE contains both ends.
    #[arg(long, value_name = "FILE")]
    peer: Option<PathBuf>,
    /// Draw the sequence into this file, as an SVG ladder.
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Number of lines to show; the last ones.
    #[arg(long, value_name = "N", default_value_t = 200, value_parser = crate::value::within(1..=10_000_u32))]
    last: u32,
}

/// Parses a decimal number, or a hexadecimal number after `0x`.
fn number(text: &str) -> Result<u32, String> {
    let number = match text.strip_prefix("0x") {
        Some(digits) => crate::value::hex(digits),
        None => text.parse().ok(),
    };
    number.ok_or_else(|| format!("{text:?} is no number from 0 to 2^32 - 1"))
}

/// The output of the command.
#[derive(Serialize)]
#[serde(untagged)]
pub(crate) enum Shown {
    List { connections: Vec<Connection> },
    One(Sequence),
}

pub(crate) fn run(options: &Options) -> Result<Shown, Box<dyn Error>> {
    let file = File::read(&options.file)?;
    let connections = connection::all_of(&file);
    let path = options.file.display();
    let wanted = match (options.connection, options.qp) {
        (Some(number), _) => Some(
            number
                .checked_sub(1)
                .and_then(|at| connections.get(at))
                .ok_or_else(|| {
                    format!(
                        "{path}: there is no connection {number}, only {}",
                        connections.len()
                    )
                })?,
        ),
        (None, Some(qpn)) => Some(
            connections
                .iter()
                .rfind(|one| one.queue_pair == Some(qpn))
                .ok_or_else(|| format!("{path}: no connection of queue pair {qpn:#x}"))?,
        ),
        (None, None) => match &connections[..] {
            [one] => Some(one),
            _ => None,
        },
    };
    let other = options.peer.as_deref().map(File::read).transpose()?;
    let Some(ours) = wanted else {
        if options.svg.is_some() {
            return Err(format!(
                "{path}: {} connections: say which with --connection or --qp",
                connections.len()
            )
            .into());
        }
        return Ok(Shown::List { connections });
    };
    let theirs = match &other {
        Some(file) => {
            let all = connection::all_of(file);
            let found = all.into_iter().rfind(|one| one.is_other_side_of(ours));
            let peer = options.peer.as_deref().unwrap_or(&options.file).display();
            Some(found.ok_or_else(|| {
                format!(
                    "{peer}: nothing of the other side: queue pair {}",
                    ours.peer_queue_pair
                        .map_or("unknown".to_owned(), |qpn| format!("{qpn:#x}"))
                )
            })?)
        }
        None => connections
            .iter()
            .rfind(|one| one.is_other_side_of(ours))
            .cloned(),
    };
    let last = usize::try_from(options.last).unwrap_or(usize::MAX);
    let sequence = Sequence::of(&file, ours, theirs.as_ref(), other.as_ref(), last);
    if let Some(svg) = &options.svg {
        std::fs::write(svg, ladder::draw(&sequence))
            .map_err(|error| format!("{}: {error}", svg.display()))?;
    }
    Ok(Shown::One(sequence))
}

impl Report for Shown {
    fn human(&self) -> String {
        match self {
            Self::List { connections } if connections.is_empty() => {
                "no connection: nothing was recorded of an endpoint".to_owned()
            }
            Self::List { connections } => {
                let rows = connections.iter().enumerate().map(|(at, one)| {
                    [
                        (at + 1).to_string(),
                        one.instance.to_string(),
                        one.endpoint.to_string(),
                        one.queue_pair
                            .map_or(String::new(), |qpn| format!("{qpn:#x}")),
                        one.peer.clone().unwrap_or_default(),
                        one.rows.len().to_string(),
                        one.ended.clone().unwrap_or_default(),
                    ]
                });
                let header = [
                    "connection",
                    "instance",
                    "EP",
                    "queue pair",
                    "peer",
                    "events",
                    "ended",
                ];
                table(header, rows)
            }
            Self::One(sequence) => sequence.human(),
        }
    }
}
