//! Counters as OpenMetrics text.

use core::ops::RangeInclusive;
use std::time::Duration;

use control::metrics::{Kind, Text, label};

use super::status::{Status, WorkerStatus};

/// Boundaries of the latency histogram, as powers of two in nanoseconds; the same as in [`crate::serve::Took`].
const BOUNDARIES: RangeInclusive<u32> = 10..=35;

/// Name, help text and value of a metric.
type Sample<'a> = (&'a str, &'a str, u64);

/// Returns the OpenMetrics text of a status.
#[must_use]
pub fn text(status: &Status) -> String {
    let mut text = Text::default();
    for subsystem in &status.subsystems {
        let of = format!("subsystem=\"{}\"", label(&subsystem.nqn));
        for one in &subsystem.namespaces {
            let labels = format!("{of},nsid=\"{}\"", one.nsid);
            let counters = [
                ("reads", "Read commands of the namespace.", one.reads),
                ("writes", "Write commands of the namespace.", one.writes),
                (
                    "read_bytes",
                    "Bytes read from the namespace.",
                    one.read_bytes,
                ),
                (
                    "written_bytes",
                    "Bytes written to the namespace.",
                    one.written_bytes,
                ),
                (
                    "limited",
                    "Commands that waited because of the namespace's limit.",
                    one.limited,
                ),
            ];
            let gauges = [
                ("size_bytes", "Size of the namespace.", one.bytes),
                (
                    "limit_ios_per_second",
                    "I/Os per second that the namespace is limited to; 0 without such a limit.",
                    one.ios_per_second,
                ),
                (
                    "limit_bytes_per_second",
                    "Bytes per second that the namespace is limited to; 0 without such a limit.",
                    one.bytes_per_second,
                ),
            ];
            add(&mut text, "namespace", &labels, &counters, &gauges);
        }
        for one in &subsystem.host_limits {
            let labels = format!("{of},host=\"{}\"", label(&one.host));
            let counters = [(
                "limited",
                "Commands of the host that waited because of its limit.",
                one.limited,
            )];
            let gauges = [
                (
                    "limit_ios_per_second",
                    "I/Os per second that the host is limited to; 0 without such a limit.",
                    one.ios_per_second,
                ),
                (
                    "limit_bytes_per_second",
                    "Bytes per second that the host is limited to; 0 without such a limit.",
                    one.bytes_per_second,
                ),
            ];
            add(&mut text, "host", &labels, &counters, &gauges);
        }
        let connected = status.controllers.iter();
        let connected = connected.filter(|one| one.subsystem == subsystem.nqn);
        let (controllers, queues) = connected.fold((0, 0), |(controllers, queues), one| {
            (controllers + 1, queues + one.queues.len() as u64) // CAST: widening.
        });
        let gauges = [
            (
                "controllers",
                "Controllers of the subsystem: connected hosts, counted once for each path.",
                controllers,
            ),
            (
                "io_queues",
                "I/O queues of the subsystem's controllers.",
                queues,
            ),
        ];
        add(&mut text, "subsystem", &of, &[], &gauges);
    }
    for port in &status.ports {
        for one in &port.workers {
            let labels = format!("port=\"{}\",worker=\"{}\"", port.id, one.worker);
            worker(&mut text, &labels, one);
        }
    }
    text.finish()
}

fn worker(text: &mut Text, labels: &str, one: &WorkerStatus) {
    let counters = [
        (
            "commands",
            "Commands that the worker has answered.",
            one.commands,
        ),
        (
            "refused",
            "Commands among them that were refused.",
            one.refused,
        ),
        (
            "connections",
            "Connections that the worker has taken, one for each queue.",
            one.connections,
        ),
        (
            "sleeps",
            "Times that the worker had nothing to do and slept.",
            one.sleeps,
        ),
        (
            "refused_hosts",
            "Queues of hosts that were refused because of too few entries or a quota.",
            one.refused_hosts,
        ),
        (
            "refused_guests",
            "Connections that were rejected as guests.",
            one.refused_guests,
        ),
        (
            "displaced_guests",
            "Guests whose connections were ended in favour of newcomers.",
            one.displaced_guests,
        ),
        (
            "overdrawn",
            "Connections that ended because they held more commands than they may.",
            one.overdrawn,
        ),
    ];
    let gauges = [
        (
            "serves",
            "1 while the worker's thread runs.",
            one.serves.into(),
        ),
        (
            "queue_depth",
            "Commands that the worker has now: received, and their responses not yet sent.",
            one.queue_depth,
        ),
        (
            "queue_size",
            "Entries that the queues of all hosts can have together (ios of its port).",
            one.queue_size.into(),
        ),
        (
            "entries_left",
            "Entries among them that are left.",
            one.entries_left.into(),
        ),
        ("host_queues", "Queues of hosts.", one.host_queues.into()),
        (
            "guests",
            "Connections without Connect, of discovery, and not authenticated.",
            one.guests.into(),
        ),
    ];
    add(text, "worker", labels, &counters, &gauges);
    for (kind, took) in &one.latency {
        let labels = format!("{labels},kind=\"{kind}\"");
        let buckets = BOUNDARIES.map(|power| {
            let below = took.buckets.iter().filter(|(end, _)| *end <= 1 << power);
            (seconds(1 << power), below.map(|(_, count)| count).sum())
        });
        text.histogram(
            "nvmeof_worker_command_latency_seconds",
            "Time from when a command was taken in until its answer had left; one of 64 is timed.",
            &labels,
            buckets,
            (took.count, seconds(took.sum)),
        );
    }
}

fn seconds(nanoseconds: u64) -> f64 {
    Duration::from_nanos(nanoseconds).as_secs_f64()
}

/// Adds the counters and gauges of one object.
fn add(text: &mut Text, of: &str, labels: &str, counters: &[Sample<'_>], gauges: &[Sample<'_>]) {
    let kinds = [(Kind::Counter, counters), (Kind::Gauge, gauges)];
    for (kind, all) in kinds {
        for (name, help, value) in all {
            text.add(&format!("nvmeof_{of}_{name}"), kind, help, labels, *value);
        }
    }
}
