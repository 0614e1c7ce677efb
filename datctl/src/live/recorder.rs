//! `datctl recorder`: the last events of the instances of a live process, if they record.

use std::error::Error;
use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;

use control::schema::Recorder;
use serde::Serialize;
use serde_json::json;

use super::Target;
use crate::accept::bytes;
use crate::report::{Report, counted};

/// Limit on the events of each instance that the process returns as a file.
const EVENTS_OF_A_FILE: u64 = 8_192;

/// `recorder`
#[derive(clap::Args)]
pub(crate) struct Options {
    #[command(flatten)]
    target: Target,
    /// Largest number of events of each instance.
    #[arg(long, value_name = "N", default_value_t = 4096, value_parser = crate::value::within(1..=65536_u64))]
    events: u64,
    /// Write the events to this file, for `datctl decode` and Wireshark; at most 8192 of each instance.
    #[arg(long, value_name = "FILE")]
    pcapng: Option<PathBuf>,
}

/// The recorded events.
#[derive(Serialize)]
#[serde(transparent)]
pub(crate) struct Shown(Recorder);

pub(crate) fn run(options: &Options) -> Result<Shown, Box<dyn Error>> {
    let mut client = options.target.connect()?;
    let Some(path) = &options.pcapng else {
        let params = json!({ "events": options.events });
        return Ok(Shown(client.call("recorder", params)?));
    };
    let params = json!({ "events": options.events.min(EVENTS_OF_A_FILE), "pcapng": true });
    let mut told: Recorder = client.call("recorder", params)?;
    let digits = told.pcapng.take().unwrap_or_default();
    let bytes = bytes(&digits).ok_or("the process sent something else than a file")?;
    let mut file = OpenOptions::new();
    file.write(true).create_new(true).mode(0o600);
    let written = file.open(path).and_then(|mut file| file.write_all(&bytes));
    written.map_err(|error| format!("{}: {error}", path.display()))?;
    Ok(Shown(told))
}

impl Report for Shown {
    fn human(&self) -> String {
        let told = self.0.instances.iter().map(|one| {
            if !one.records {
                return format!(
                    "instance {} does not record: NAME,recorder=on or DAT_RECORDER=1 when it is opened",
                    one.instance
                );
            }
            let head = format!(
                "instance {}: {}, {} before; in ms before now",
                one.instance,
                counted(one.events.len(), "event"),
                one.before
            );
            [&[head], one.events.as_slice()].concat().join("\n")
        });
        let silent = self.0.silent.iter();
        let silent =
            silent.map(|number| format!("instance {number} is silent: its thread makes no call"));
        let function = self.0.function.iter().map(|function| {
            let head = format!(
                "the function: {}, {} before; in ms before now",
                counted(function.events.len(), "event"),
                function.before
            );
            [&[head], function.events.as_slice()].concat().join("\n")
        });
        let all = told.chain(function).chain(silent);
        all.collect::<Vec<_>>().join("\n\n")
    }
}
