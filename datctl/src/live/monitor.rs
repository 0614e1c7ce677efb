//! `datctl monitor`: events of a live process, line by line: link, addresses, neighbours, connections, and the reasons
//! why connections end.

use std::error::Error;
use std::time::Duration;

use control::ClientError;
use control::schema::Event;
use serde::Serialize;
use serde_json::Value;

use super::Target;
use crate::report::{Output, Report};

/// `monitor`
#[derive(clap::Args)]
pub(crate) struct Options {
    #[command(flatten)]
    target: Target,
    /// Number of lines after which it ends. Without it, it ends with the inspected process, or by Ctrl-C.
    #[arg(long, value_name = "N", value_parser = crate::value::within(1..=u64::MAX))]
    count: Option<u64>,
}

/// One line of output.
#[derive(Serialize)]
#[serde(transparent)]
struct Line(Event);

pub(crate) fn run(options: &Options, output: Output) -> Result<(), Box<dyn Error>> {
    let mut client = options.target.connect()?;
    let _: bool = client.call("subscribe", Value::Null)?;
    let mut lines = 0;
    while options.count.is_none_or(|count| lines < count) {
        let told: Option<Event> = match client.notice(Some(Duration::from_secs(3600))) {
            Err(ClientError::Over(_)) => return Ok(()),
            told => told?,
        };
        if let Some(event) = told {
            output.show(&Line(event))?;
            lines += 1;
        }
    }
    Ok(())
}

impl Report for Line {
    fn human(&self) -> String {
        let event = &self.0;
        let mut line = format!(
            "{:>14.6} ia {} {} {}",
            // CAST: the time is shown in microseconds.
            event.at as f64 / 1e9,
            event.instance,
            event.kind,
            event.what
        );
        if let Some(ep) = event.endpoint {
            line.push_str(&format!(" ep {ep}"));
        }
        if let Some(qp) = event.queue_pair {
            line.push_str(&format!(" qp {qp:#x}"));
        }
        if let Some(peer) = &event.peer {
            line.push_str(&format!(" peer {peer}"));
        }
        if let Some(cause) = &event.cause {
            line.push_str(&format!(": {cause}"));
        }
        if let Some(lost) = event.lost {
            line.push_str(&format!(" ({lost} before it were lost)"));
        }
        line
    }
}
