//! `datctl resource`: the objects of a live process, as `rdma resource show` shows those of the kernel.

use std::error::Error;

use control::schema::{Instance, Resource};
use serde::Serialize;
use serde_json::json;

use super::Target;
use crate::report::{Report, counted, table};

/// `resource`
#[derive(clap::Args)]
pub(crate) struct Options {
    #[command(flatten)]
    target: Target,
    /// Largest number of objects of each kind and instance.
    #[arg(long, value_name = "N", default_value_t = 4096, value_parser = crate::value::within(1..=u64::MAX))]
    objects: u64,
}

/// The objects of a process.
#[derive(Serialize)]
#[serde(transparent)]
pub(crate) struct Shown(Resource);

pub(crate) fn run(options: &Options) -> Result<Shown, Box<dyn Error>> {
    let mut client = options.target.connect()?;
    let params = json!({ "objects": options.objects });
    Ok(Shown(client.call("resource", params)?))
}

impl Report for Shown {
    fn human(&self) -> String {
        let Self(Resource {
            adapter,
            addresses,
            instances,
            silent,
        }) = self;
        let mut parts = vec![format!("{adapter}: {}", addresses.join(", "))];
        parts.extend(instances.iter().map(|one| of_instance(one, silent)));
        for number in silent {
            if !instances.iter().any(|one| one.instance == *number) {
                parts.push(format!(
                    "instance {number} has not answered yet: its thread makes no call"
                ));
            }
        }
        parts.join("\n\n")
    }
}

fn of_instance(instance: &Instance, silent: &[u32]) -> String {
    let count = |name: &str, what: &str| {
        let count = instance.counters.get(name).copied().unwrap_or(0);
        counted(usize::try_from(count).unwrap_or(usize::MAX), what)
    };
    let old = if silent.contains(&instance.instance) {
        ", as it last said: its thread makes no call"
    } else {
        ""
    };
    let head = format!(
        "instance {}: {}, {}, {}, {}, {}, {}{old}",
        instance.instance,
        count("eps", "endpoint"),
        count("evds", "EVD"),
        count("srqs", "SRQ"),
        count("lmrs", "LMR"),
        count("rmrs", "RMR"),
        count("pzs", "PZ")
    );
    let endpoints = table(
        [
            "ep",
            "qp",
            "state",
            "peer",
            "port",
            "requests",
            "bytes",
            "received",
            "failed",
            "transport",
        ],
        instance.endpoints.iter().map(|ep| {
            let count = |name: &str| ep.counters.get(name).copied().unwrap_or(0);
            [
                ep.endpoint.to_string(),
                ep.queue_pair
                    .map_or_else(|| "-".to_owned(), |qp| format!("{qp:#x}")),
                match &ep.cause {
                    Some(cause) => format!("{}: {cause}", ep.state),
                    None => ep.state.clone(),
                },
                ep.peer.clone().unwrap_or_else(|| "-".to_owned()),
                ep.port.to_string(),
                count("requests").to_string(),
                count("request_bytes").to_string(),
                count("received_bytes").to_string(),
                (count("requests_failed") + count("recvs_failed")).to_string(),
                ep.transport.clone(),
            ]
        }),
    );
    let evds = table(
        [
            "evd",
            "streams",
            "length",
            "completions",
            "queued",
            "waiting",
            "overflows",
            "wakeups",
        ],
        instance.evds.iter().map(|evd| {
            let count = |name: &str| evd.counters.get(name).copied().unwrap_or(0).to_string();
            [
                evd.evd.to_string(),
                evd.streams.clone(),
                evd.length.to_string(),
                count("completions"),
                count("queued"),
                count("waiting"),
                count("overflows"),
                count("wakeups"),
            ]
        }),
    );
    let regions = table(
        ["lmr context", "address", "bytes", "rights"],
        instance.regions.iter().map(|region| {
            [
                format!("{:#x}", region.lmr_context),
                format!("{:#x}", region.address),
                region.length.to_string(),
                region.rights.clone(),
            ]
        }),
    );
    let mut parts = vec![head];
    parts.extend((!instance.endpoints.is_empty()).then_some(endpoints));
    parts.extend((!instance.evds.is_empty()).then_some(evds));
    parts.extend((!instance.regions.is_empty()).then_some(regions));
    if !instance.listeners.is_empty() {
        let listeners: Vec<String> = instance
            .listeners
            .iter()
            .map(|at| format!("{at:#x}"))
            .collect();
        parts.push(format!("listens at {}", listeners.join(", ")));
    }
    parts.join("\n")
}
