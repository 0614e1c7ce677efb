//! `datctl metrics`: the counters of a live process as OpenMetrics text, once or to whoever asks by HTTP.
//!
//! The server answers `GET /metrics` and nothing else, one client at a time, with bounds on what it reads and on how
//! long.

use std::collections::BTreeMap;
use std::error::Error;
use std::fmt::Write as _;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use control::Client;
use control::schema::{Histogram, Instance, Stat};

use super::{Target, ask, measure};

/// OpenMetrics 1.0.0, section "Overall Structure".
const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
/// Bytes of a request's head.
const LONGEST_HEAD: usize = 8 * 1024;
/// How long a client may take to ask and to read.
const PATIENCE: Duration = Duration::from_secs(5);
/// What is a number of now; all else only grows.
const GAUGES: [&str; 13] = [
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
    "longest_nanoseconds",
    "silent",
];
/// Boundaries of histograms, as powers of two of nanoseconds: 256 ns to 69 s. They are always the same, as quantiles
/// over several scrapes need it.
const BOUNDARIES: core::ops::RangeInclusive<u32> = 8..=36;
/// Endings of a command's counters.
const OF_COMMANDS: [&str; 5] = [
    "_longest_nanoseconds",
    "_nanoseconds",
    "_unanswered",
    "_answered",
    "_refused",
];

/// `metrics`
#[derive(clap::Args)]
pub(crate) struct Options {
    #[command(flatten)]
    target: Target,
    /// Where to answer, such as 127.0.0.1:9401. Without it the text is printed once, as for node_exporter's textfile
    /// collector.
    #[arg(long)]
    listen: Option<SocketAddr>,
    /// Have the process take the time of some requests and of wakeups for as long as this runs.
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
    for stream in listener.incoming() {
        let stream = match stream {
            Ok(stream) => stream,
            Err(error) => {
                tracing::warn!(%error, "a scraper");
                continue;
            }
        };
        let asked = match head(&stream) {
            Ok(asked) => asked,
            Err(error) => {
                tracing::warn!(%error, "a scraper");
                continue;
            }
        };
        let sent = match asked.as_deref() {
            Some("/metrics") => answer(&stream, "200 OK", &scraped(&mut client, options)?),
            Some(_) => answer(&stream, "404 Not Found", "there is /metrics\n"),
            None => answer(&stream, "400 Bad Request", "GET /metrics\n"),
        };
        if let Err(error) = sent {
            tracing::warn!(%error, "a scraper");
        }
    }
    Ok(())
}

/// What the process counts now. It may have been started anew.
fn scraped(client: &mut Client, options: &Options) -> Result<String, Box<dyn Error>> {
    if let Ok(stat) = ask::<Stat>(client, "stat") {
        return Ok(text(&stat));
    }
    *client = options.connect()?;
    Ok(text(&ask(client, "stat")?))
}

/// The path that is asked for by GET. `None`: something else.
fn head(mut stream: &TcpStream) -> io::Result<Option<String>> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let mut head = Vec::new();
    let mut some = [0; 1024];
    while !head.windows(4).any(|end| end == b"\r\n\r\n") {
        let read = stream.read(&mut some)?;
        head.extend_from_slice(&some[..read]);
        if read == 0 || head.len() > LONGEST_HEAD {
            return Ok(None);
        }
    }
    let head = String::from_utf8_lossy(&head);
    let mut words = head.lines().next().unwrap_or_default().split(' ');
    let (method, path) = (words.next(), words.next());
    Ok(path.filter(|_| method == Some("GET")).map(str::to_owned))
}

fn answer(mut stream: &TcpStream, status: &str, body: &str) -> io::Result<()> {
    let bytes = body.len();
    write!(
        stream,
        "HTTP/1.1 {status}\r\nContent-Type: {CONTENT_TYPE}\r\nContent-Length: {bytes}\r\nConnection: close\r\n\r\n{body}"
    )
}

/// Samples of one metric: labels and number.
type Samples = Vec<(String, u64)>;

/// The text of what was counted.
fn text(stat: &Stat) -> String {
    let mut metrics: BTreeMap<String, Samples> = BTreeMap::new();
    let adapter = label(&stat.adapter);
    let mut add = |name: String, labels: String, count: u64| {
        metrics.entry(name).or_default().push((labels, count));
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
                    add(format!("udapl_command{ending}"), labels, *count);
                }
                "refused_by_us" | "refused_by_peers" => {
                    let labels = format!("{labels},reason=\"{}\"", label(counter));
                    add(format!("udapl_connections_{group}"), labels, *count);
                }
                group => add(format!("udapl_{group}_{counter}"), labels, *count),
            }
        }
    }
    for instance in &stat.instances {
        let labels = format!("adapter=\"{adapter}\",ia=\"{}\"", instance.instance);
        for (counter, count) in &instance.counters {
            match counter.split_once("_DAT_") {
                Some((side, status)) => {
                    let labels = format!("{labels},status=\"DAT_{}\"", label(status));
                    add(format!("udapl_instance_{side}_ended"), labels, *count);
                }
                None => add(format!("udapl_instance_{counter}"), labels.clone(), *count),
            }
        }
        let silent = stat.silent.contains(&instance.instance);
        add("udapl_instance_silent".to_owned(), labels, silent.into());
    }
    let mut text = String::new();
    for (name, samples) in &metrics {
        let is_gauge = GAUGES
            .iter()
            .any(|gauge| name.ends_with(&format!("_{gauge}")));
        let (kind, suffix) = if is_gauge {
            ("gauge", "")
        } else {
            ("counter", "_total")
        };
        let _ = writeln!(text, "# TYPE {name} {kind}");
        for (labels, count) in samples {
            let _ = writeln!(text, "{name}{suffix}{{{labels}}} {count}");
        }
    }
    histogram(
        &mut text,
        "udapl_instance_completion_latency_seconds",
        stat,
        |instance| instance.latency.completion.as_ref(),
    );
    histogram(
        &mut text,
        "udapl_instance_wakeup_latency_seconds",
        stat,
        |instance| instance.latency.wakeup.as_ref(),
    );
    text.push_str("# EOF\n");
    text
}

/// One histogram, of each instance that has it.
fn histogram(
    text: &mut String,
    name: &str,
    stat: &Stat,
    of: impl Fn(&Instance) -> Option<&Histogram>,
) {
    let adapter = label(&stat.adapter);
    let mut is_first = true;
    for instance in &stat.instances {
        let Some(all) = of(instance) else { continue };
        if core::mem::take(&mut is_first) {
            let _ = writeln!(text, "# TYPE {name} histogram\n# UNIT {name} seconds");
        }
        let labels = format!("adapter=\"{adapter}\",ia=\"{}\"", instance.instance);
        // What takes longer than the last boundary is in none.
        for power in BOUNDARIES {
            let below = all.buckets.iter().filter(|(end, _)| *end <= 1 << power);
            let below: u64 = below.map(|(_, count)| count).sum();
            let boundary = seconds(1 << power);
            let _ = writeln!(text, "{name}_bucket{{{labels},le=\"{boundary}\"}} {below}");
        }
        let count = all.count;
        let _ = writeln!(text, "{name}_bucket{{{labels},le=\"+Inf\"}} {count}");
        let _ = writeln!(text, "{name}_count{{{labels}}} {count}");
        let _ = writeln!(text, "{name}_sum{{{labels}}} {}", seconds(all.sum));
    }
}

fn seconds(nanoseconds: u64) -> f64 {
    Duration::from_nanos(nanoseconds).as_secs_f64()
}

/// A label's value (OpenMetrics 1.0.0, "Escaping").
fn label(text: &str) -> String {
    text.replace('\\', "\\\\")
        .replace('"', "\\\"")
        .replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use control::schema::Latency;

    use super::*;

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
# TYPE udapl_command_answered counter
udapl_command_answered_total{adapter=\"sim:\\\"a\\\"\",command=\"query_qp\"} 5
# TYPE udapl_connections_refused_by_us counter
udapl_connections_refused_by_us_total{adapter=\"sim:\\\"a\\\"\",reason=\"Consumer\"} 1
# TYPE udapl_instance_requests counter
udapl_instance_requests_total{adapter=\"sim:\\\"a\\\"\",ia=\"7\"} 9
# TYPE udapl_instance_requests_ended counter
udapl_instance_requests_ended_total{adapter=\"sim:\\\"a\\\"\",ia=\"7\",status=\"DAT_DTO_ERR_FLUSHED\"} 4
# TYPE udapl_instance_silent gauge
udapl_instance_silent{adapter=\"sim:\\\"a\\\"\",ia=\"7\"} 1
# TYPE udapl_memory_regions gauge
udapl_memory_regions{adapter=\"sim:\\\"a\\\"\"} 2
# TYPE udapl_queue_out_of_sequence counter
udapl_queue_out_of_sequence_total{adapter=\"sim:\\\"a\\\"\"} 3
# EOF
";
        assert_eq!(text(&stat), expected);
    }
}
