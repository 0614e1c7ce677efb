//! The line about RDMA without the Ethernet path.
//!
//! An adapter has an Ethernet port beside its queue pairs: queues, a flow table and the vport's lists, about twenty
//! commands by which neighbours are found. RDMA needs none of it. This line opens a function with the network switched
//! off (`,network=off`) and exchanges messages within it, before any line opens it whole: what fails here is the
//! command queue, a queue pair, a key or QP1, and what fails behind it is the Ethernet path.

use std::error::Error;

use super::Outcome;
use super::exchange::{self, Kind};
use super::lines::SHORT;
use super::pair::{Pair, Receives};
use super::subject::Subject;
use crate::adapter::Adapter;

/// One message of each kind, from and to the function itself.
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
            // An inline send has room for little.
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
