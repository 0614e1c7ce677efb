//! `datctl recorder`: what the instances of a live process did last, if they record.

use std::error::Error;

use control::schema::Recorder;
use serde::Serialize;
use serde_json::json;

use super::Target;
use crate::report::Report;

/// `recorder`
#[derive(clap::Args)]
pub(crate) struct Options {
    #[command(flatten)]
    target: Target,
    /// Events of each instance, at most.
    #[arg(long, default_value_t = 4096, value_parser = clap::value_parser!(u64).range(1..=65536))]
    events: u64,
}

/// What they did.
#[derive(Serialize)]
#[serde(transparent)]
pub(crate) struct Shown(Recorder);

pub(crate) fn run(options: &Options) -> Result<Shown, Box<dyn Error>> {
    let mut client = options.target.connect()?;
    let params = json!({ "events": options.events });
    Ok(Shown(client.call("recorder", params)?))
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
                "instance {}: {} events, {} before them; in ms before now",
                one.instance,
                one.events.len(),
                one.before
            );
            [&[head], one.events.as_slice()].concat().join("\n")
        });
        let silent = self.0.silent.iter();
        let silent =
            silent.map(|number| format!("instance {number} is silent: its thread makes no call"));
        told.chain(silent).collect::<Vec<_>>().join("\n\n")
    }
}
