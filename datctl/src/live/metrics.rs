//! `datctl metrics`: the counters of a live process as OpenMetrics text, printed once or served by HTTP.

use std::error::Error;
use std::io::{self, Write};
use std::net::{SocketAddr, TcpListener};
use std::time::Duration;

use control::Client;
use control::metrics::{self, Kind, Text, label};
use control::schema::{Histogram, Instance, Stat};

use super::{Target, ask, measure};

/// Counters that are gauges: numbers of present objects, and longest times. All others only grow.
const GAUGES: [&str; 14] = [
    "eps",
    "evds",
    "srqs",
    "pzs",
    "lmrs",
    "rmrs",
    "requests_outstanding",
    "recvs_outstanding",
    "firmware_pages",
    "regions",
    "registered_bytes",
    "neighbours",
    "longest_nanoseconds",
    "silent",
];
/// Boundaries of histograms, as exponents of two in nanoseconds: 256 ns to 69 s. They never change, because quantiles
/// over several scrapes need the same boundaries.
const BOUNDARIES: core::ops::RangeInclusive<u32> = 8..=36;
/// Suffixes of the names of a command's counters.
const OF_COMMANDS: [&str; 5] = [
    "_longest_nanoseconds",
    "_nanoseconds",
    "_unanswered",
    "_answered",
    "_refused",
];

/// Descriptions of the adapter's own counters, by group and name. The device's counters have no entry, because their
/// names are those of `rdma statistic` and `ethtool -S`.
const HELP: [(&str, &str, &str); 32] = [
    (
        "connections",
        "connects",
        "Connections that were asked for.",
    ),
    (
        "connections",
        "requests",
        "Requests of peers that consumers were asked about.",
    ),
    (
        "connections",
        "accepted",
        "Requests of peers that consumers accepted.",
    ),
    ("connections", "established", "Connections that came about."),
    ("connections", "ended", "Connections that ended."),
    (
        "connections",
        "unreachable",
        "Attempts to connect without an answer.",
    ),
    (
        "connections",
        "timed_out",
        "Attempts to connect whose time was over.",
    ),
    (
        "connections",
        "accept_failed",
        "Accepted requests that did not become a connection.",
    ),
    (
        "connections",
        "mads_dropped",
        "Datagrams of connection management that were dropped because too many others waited.",
    ),
    (
        "memory",
        "firmware_pages",
        "Pages of 4 KiB that the firmware holds.",
    ),
    (
        "memory",
        "registrations",
        "Regions that were registered since the opening.",
    ),
    ("memory", "regions", "Regions that are registered now."),
    (
        "memory",
        "registered_bytes",
        "Bytes of the regions that are registered now.",
    ),
    (
        "network",
        "neighbours",
        "Neighbours that are in the table now.",
    ),
    ("instance", "requests", "DTOs and binds that were posted."),
    (
        "instance",
        "request_bytes",
        "Bytes of requests, those that RDMA Reads ask for among them.",
    ),
    (
        "instance",
        "doorbells",
        "Doorbells that were rung for requests; a batch rings one.",
    ),
    (
        "instance",
        "recvs",
        "Receives that were posted to endpoints.",
    ),
    (
        "instance",
        "received_bytes",
        "Bytes of messages that arrived.",
    ),
    (
        "instance",
        "full",
        "Posts that were refused because a queue was full.",
    ),
    (
        "instance",
        "requests_failed",
        "Requests that failed or were flushed.",
    ),
    (
        "instance",
        "recvs_failed",
        "Receives that failed or were flushed.",
    ),
    (
        "instance",
        "requests_outstanding",
        "Requests that are not known to be done, now.",
    ),
    (
        "instance",
        "recvs_outstanding",
        "Receives that are not known to be done, now.",
    ),
    (
        "instance",
        "wakeups",
        "Times that a wait which slept ran again.",
    ),
    (
        "instance",
        "completions",
        "Completions that were taken from the device.",
    ),
    ("instance", "eps", "Endpoints, now."),
    ("instance", "evds", "Event dispatchers, now."),
    ("instance", "srqs", "Shared receive queues, now."),
    ("instance", "pzs", "Protection zones, now."),
    ("instance", "lmrs", "Local memory regions, now."),
    ("instance", "rmrs", "Remote memory regions, now."),
];

/// Returns whether the metric of this name may fall.
fn is_gauge(name: &str) -> bool {
    let mut all = GAUGES.iter();
    all.any(|gauge| name.ends_with(&format!("_{gauge}")))
}

/// Returns the description of a group's counter.
fn help(group: &str, counter: &str) -> String {
    let own = HELP
        .iter()
        .find(|(of, name, _)| (*of, *name) == (group, counter));
    if let Some((_, _, help)) = own {
        return (*help).to_owned();
    }
    let of = match group {
        "queue" => "of the device's queue pairs, as `rdma statistic` calls it",
        "vport" => "of the function's vport, as `ethtool -S` calls it",
        "port" => "of the card's port, as `ethtool -S` calls it",
        "priorities" => "of a priority of the card's port, after `ethtool -S`",
        "connections" => "of the connection manager: datagrams",
        "network" => "of ARP, neighbour discovery and echoes: frames",
        "instance" => "of an instance of the adapter",
        _ => "of the adapter",
    };
    format!("Counter {counter} {of}.")
}

/// Returns the description of a command's counter, by its suffix.
fn help_of_command(ending: &str) -> &'static str {
    match ending {
        "_answered" => "Commands of this kind that the device has answered.",
        "_refused" => "Commands of this kind among those answered that the device refused.",
        "_unanswered" => "Commands of this kind that the device did not answer.",
        "_longest_nanoseconds" => "The longest time that a command of this kind took.",
        _ => "Time that all commands of this kind took, in nanoseconds.",
    }
}

/// `metrics`
#[derive(clap::Args)]
pub(crate) struct Options {
    #[command(flatten)]
    target: Target,
    /// The address to serve on, such as 127.0.0.1:9401. Without it the text is printed once, as for node_exporter's
    /// textfile collector.
    #[arg(long, value_name = "IP:PORT", value_parser = crate::value::socket)]
    listen: Option<SocketAddr>,
    /// Make the process measure the time of some requests and of wakeups, as long as this command runs.
    #[arg(long, requires = "listen")]
    latencies: bool,
}

impl Options {
    fn connect(&self) -> Result<Client, Box<dyn Error>> {
        let mut client = self.target.connect()?;
        if self.latencies {
            measure(&mut client)?;
        }
        Ok(client)
    }
}

pub(crate) fn run(options: &Options) -> Result<(), Box<dyn Error>> {
    let mut client = options.connect()?;
    let Some(address) = options.listen else {
        let stat: Stat = ask(&mut client, "stat")?;
        io::stdout().write_all(text(&stat).as_bytes())?;
        return Ok(());
    };
    let listener = TcpListener::bind(address).map_err(|error| format!("{address}: {error}"))?;
    writeln!(io::stdout(), "http://{}/metrics", listener.local_addr()?)?;
    metrics::serve(&listener, || scraped(&mut client, options))
}

/// Returns the process's counters as text. Connects again after an error, because the process may have been restarted.
fn scraped(client: &mut Client, options: &Options) -> Result<String, Box<dyn Error>> {
    if let Ok(stat) = ask::<Stat>(client, "stat") {
        return Ok(text(&stat));
    }
    *client = options.connect()?;
    Ok(text(&ask(client, "stat")?))
}

/// Returns the counters as OpenMetrics text.
fn text(stat: &Stat) -> String {
    let mut made = Text::default();
    let adapter = label(&stat.adapter);
    let mut add = |name: String, help: &str, labels: String, count: u64| {
        let kind = if is_gauge(&name) {
            Kind::Gauge
        } else {
            Kind::Counter
        };
        made.add(&name, kind, help, &labels, count);
    };
    for (group, counters) in &stat.groups {
        for (counter, count) in counters.iter().flatten() {
            let labels = format!("adapter=\"{adapter}\"");
            match group.as_str() {
                "commands" => {
                    let Some(ending) = OF_COMMANDS
                        .iter()
                        .find(|ending| counter.ends_with(**ending))
                    else {
                        continue;
                    };
                    let command = label(counter.trim_end_matches(ending));
                    let labels = format!("{labels},command=\"{command}\"");
                    let help = help_of_command(ending);
                    add(format!("udapl_command{ending}"), help, labels, *count);
                }
                "refused_by_us" | "refused_by_peers" => {
                    let labels = format!("{labels},reason=\"{}\"", label(counter));
                    let who = group.trim_start_matches("refused_by_");
                    let help = format!("Connections refused by {who}, by the reason of the REJ.");
                    add(format!("udapl_connections_{group}"), &help, labels, *count);
                }
                group => {
                    let help = help(group, counter);
                    add(format!("udapl_{group}_{counter}"), &help, labels, *count);
                }
            }
        }
    }
    for instance in &stat.instances {
        let labels = format!("adapter=\"{adapter}\",ia=\"{}\"", instance.instance);
        for (counter, count) in &instance.counters {
            match counter.split_once("_DAT_") {
                Some((side, status)) => {
                    let labels = format!("{labels},status=\"DAT_{}\"", label(status));
                    let help = format!("What of {side} failed or was flushed, by status.");
                    add(
                        format!("udapl_instance_{side}_ended"),
                        &help,
                        labels,
                        *count,
                    );
                }
                None => {
                    let (name, help) = (
                        format!("udapl_instance_{counter}"),
                        help("instance", counter),
                    );
                    add(name, &help, labels.clone(), *count);
                }
            }
        }
        let silent = stat.silent.contains(&instance.instance);
        let help = "1 while the instance's thread makes no call, so that its figures are old.";
        add(
            "udapl_instance_silent".to_owned(),
            help,
            labels,
            silent.into(),
        );
    }
    histogram(
        &mut made,
        "udapl_instance_completion_latency_seconds",
        "Time from the doorbell of a request until its completion was taken in; some requests are timed.",
        stat,
        |instance| instance.latency.completion.as_ref(),
    );
    histogram(
        &mut made,
        "udapl_instance_wakeup_latency_seconds",
        "Time from when the device wrote a completion until the wait that slept ran again.",
        stat,
        |instance| instance.latency.wakeup.as_ref(),
    );
    made.finish()
}

/// Adds one histogram to the text, with the buckets of each instance that has it.
fn histogram(
    text: &mut Text,
    name: &str,
    help: &str,
    stat: &Stat,
    of: impl Fn(&Instance) -> Option<&Histogram>,
) {
    let adapter = label(&stat.adapter);
    for instance in &stat.instances {
        let Some(all) = of(instance) else { continue };
        let labels = format!("adapter=\"{adapter}\",ia=\"{}\"", instance.instance);
        // Samples above the last boundary are counted only in the bucket +Inf.
        let buckets = BOUNDARIES.map(|power| {
            let below = all.buckets.iter().filter(|(end, _)| *end <= 1 << power);
            (seconds(1 << power), below.map(|(_, count)| count).sum())
        });
        text.histogram(name, help, &labels, buckets, (all.count, seconds(all.sum)));
    }
}

fn seconds(nanoseconds: u64) -> f64 {
    Duration::from_nanos(nanoseconds).as_secs_f64()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use control::schema::Latency;
    use udapl::fabric::Fabric;

    use super::*;

    /// Our counters that only grow, by group. A counter that is not here has to be in `GAUGES`. The device's counters
    /// all only grow.
    const GROW: [(&str, &[&str]); 4] = [
        (
            "connections",
            &[
                "connects",
                "requests",
                "accepted",
                "established",
                "ended",
                "unreachable",
                "timed_out",
                "accept_failed",
                "mads_dropped",
            ],
        ),
        ("memory", &["registrations"]),
        (
            "network",
            &[
                "received",
                "asked_all",
                "asked_one",
                "answered",
                "unanswered",
                "echoed",
                "announced",
                "conflicts",
                "contradicted",
                "moved",
                "evicted",
            ],
        ),
        (
            "instance",
            &[
                "requests",
                "request_bytes",
                "doorbells",
                "recvs",
                "received_bytes",
                "full",
                "requests_failed",
                "recvs_failed",
                "completions",
                "wakeups",
            ],
        ),
    ];

    /// A counter must not fall (OpenMetrics 1.0.0, "Counter"). Each counter that an adapter and an instance have is
    /// known to grow, or is a gauge, and the page names the gauges.
    #[test]
    fn what_can_fall_is_a_gauge_and_what_only_grows_is_none() -> Result<(), Box<dyn Error>> {
        let fabric = Fabric::pair(1);
        let ia = fabric.open(0)?;
        let mut groups = udapl::Adapter::of(&ia).stats()?.groups();
        let of_instance = ia.stats().named().into_iter();
        let of_instance = of_instance.map(|(name, count)| (name.to_owned(), count));
        groups.insert("instance", Some(of_instance.collect()));
        let mut fall = vec!["longest_nanoseconds".to_owned(), "silent".to_owned()];
        let page = include_str!("../../../docs/observability.md");
        let (of_now, _) = page.split_once("\n| Counted by").ok_or("no table")?;
        for (group, grow) in GROW {
            let counters = groups.remove(group).flatten().ok_or(group)?;
            // The counts by status are parts of `requests_failed` and `recvs_failed`.
            for name in counters.into_keys().filter(|name| !name.contains("_DAT_")) {
                let grows = grow.contains(&name.as_str());
                assert_ne!(
                    is_gauge(&format!("udapl_{group}_{name}")),
                    grows,
                    "{group}: {name}"
                );
                assert_ne!(of_now.contains(&format!("`{name}`")), grows, "{name}");
                if !grows {
                    fall.push(name);
                }
            }
        }
        fall.sort_unstable();
        let mut gauges = GAUGES.to_vec();
        gauges.sort_unstable();
        assert_eq!(fall, gauges);
        Ok(())
    }

    #[test]
    fn how_long_things_took_is_a_histogram_with_boundaries_that_stay() {
        let stat = Stat {
            adapter: "a".to_owned(),
            instances: vec![Instance {
                instance: 7,
                latency: Latency {
                    completion: Some(Histogram {
                        count: 5,
                        sum: 6_000,
                        buckets: vec![(224, 2), (1_024, 1), (1_152, 2)],
                    }),
                    wakeup: None,
                },
                ..Instance::default()
            }],
            ..Stat::default()
        };
        let text = text(&stat);
        metrics::check(&text).expect("OpenMetrics");
        let name = "udapl_instance_completion_latency_seconds";
        let has = |line: &str| {
            let line = format!("{name}{line}\n");
            assert!(text.contains(&line), "{line}{text}");
        };
        let labels = "adapter=\"a\",ia=\"7\"";
        has(&format!("_bucket{{{labels},le=\"0.000000256\"}} 2"));
        has(&format!("_bucket{{{labels},le=\"0.000001024\"}} 3"));
        has(&format!("_bucket{{{labels},le=\"0.000002048\"}} 5"));
        has(&format!("_bucket{{{labels},le=\"+Inf\"}} 5"));
        has(&format!("_sum{{{labels}}} 0.000006"));
        has(" histogram");
        assert!(!text.contains("wakeup_latency"), "{text}");
        let mut stat = stat;
        stat.instances[0].latency.wakeup = stat.instances[0].latency.completion.take();
        let text = super::text(&stat);
        let wakeups =
            format!("udapl_instance_wakeup_latency_seconds_bucket{{{labels},le=\"+Inf\"}} 5\n");
        assert!(text.contains(&wakeups), "{text}");
    }

    #[test]
    fn counters_are_metrics_with_labels_and_what_is_of_now_is_a_gauge() {
        let counters = |all: &[(&str, u64)]| {
            let all = all.iter();
            all.map(|(name, count)| ((*name).to_owned(), *count))
                .collect()
        };
        let stat = Stat {
            adapter: "sim:\"a\"".to_owned(),
            groups: BTreeMap::from([
                ("port".to_owned(), None),
                (
                    "queue".to_owned(),
                    Some(counters(&[("out_of_sequence", 3)])),
                ),
                ("memory".to_owned(), Some(counters(&[("regions", 2)]))),
                (
                    "commands".to_owned(),
                    Some(counters(&[("query_qp_answered", 5)])),
                ),
                (
                    "refused_by_us".to_owned(),
                    Some(counters(&[("Consumer", 1)])),
                ),
            ]),
            instances: vec![Instance {
                instance: 7,
                counters: counters(&[("requests", 9), ("requests_DAT_DTO_ERR_FLUSHED", 4)]),
                ..Instance::default()
            }],
            silent: vec![7],
            ..Stat::default()
        };
        let expected = "\
# HELP udapl_command_answered Commands of this kind that the device has answered.
# TYPE udapl_command_answered counter
udapl_command_answered_total{adapter=\"sim:\\\"a\\\"\",command=\"query_qp\"} 5
# HELP udapl_connections_refused_by_us Connections refused by us, by the reason of the REJ.
# TYPE udapl_connections_refused_by_us counter
udapl_connections_refused_by_us_total{adapter=\"sim:\\\"a\\\"\",reason=\"Consumer\"} 1
# HELP udapl_instance_requests DTOs and binds that were posted.
# TYPE udapl_instance_requests counter
udapl_instance_requests_total{adapter=\"sim:\\\"a\\\"\",ia=\"7\"} 9
# HELP udapl_instance_requests_ended What of requests failed or was flushed, by status.
# TYPE udapl_instance_requests_ended counter
udapl_instance_requests_ended_total{adapter=\"sim:\\\"a\\\"\",ia=\"7\",status=\"DAT_DTO_ERR_FLUSHED\"} 4
# HELP udapl_instance_silent 1 while the instance's thread makes no call, so that its figures are old.
# TYPE udapl_instance_silent gauge
udapl_instance_silent{adapter=\"sim:\\\"a\\\"\",ia=\"7\"} 1
# HELP udapl_memory_regions Regions that are registered now.
# TYPE udapl_memory_regions gauge
udapl_memory_regions{adapter=\"sim:\\\"a\\\"\"} 2
# HELP udapl_queue_out_of_sequence Counter out_of_sequence of the device's queue pairs, as `rdma statistic` calls it.
# TYPE udapl_queue_out_of_sequence counter
udapl_queue_out_of_sequence_total{adapter=\"sim:\\\"a\\\"\"} 3
# EOF
";
        assert_eq!(text(&stat), expected);
        metrics::check(expected).expect("OpenMetrics");
    }
}
