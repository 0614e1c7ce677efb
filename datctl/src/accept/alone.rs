//! Line `RDMA alone` of the acceptance run: RDMA without the Ethernet path.
//!
//! The Ethernet path consists of the Ethernet queues, a flow table and the vport's multicast list (docs/generations.md
//! has its commands). RDMA needs none of them. This line opens a function with `,network=off` and sends messages within
//! it, before any other line opens it with the Ethernet path. If this line fails, the cause is the command queue, a
//! queue pair, a key or QP1. If it passes and `bring-up` fails, the cause is the Ethernet path.

use std::error::Error;

use super::Outcome;
use super::exchange::{self, Kind};
use super::lines::SHORT;
use super::pair::{Pair, Receives};
use super::subject::Subject;
use crate::adapter::Adapter;

/// Sends one message of each kind from the function to itself.
pub(super) fn rdma_alone(subject: &Subject<'_>) -> Result<Outcome, Box<dyn Error>> {
    let Some(ia) = subject.open_alone() else {
        return Ok(Outcome::Skipped(
            "it cannot be opened without its network".to_owned(),
        ));
    };
    let adapters = vec![Adapter::of(ia?)?];
    let messages = Pair::over(adapters, |pair| {
        let connection = pair.connect(SHORT, Receives::Own)?;
        let mut messages = 0;
        for kind in Kind::ALL {
            // An inline Send takes only short messages.
            let bytes = if kind == Kind::InlineSend {
                1
            } else {
                SHORT / 2
            };
            messages += usize::from(exchange::one(pair, &connection, 0, kind, bytes)?);
        }
        pair.disconnect(&connection, 0)?;
        Ok(messages)
    })?;
    Ok(Outcome::Ok(format!(
        "opened without the Ethernet path; {messages} messages within the function, all compared"
    )))
}
