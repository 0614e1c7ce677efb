//! What is counted, as OpenMetrics text.

use control::metrics::{Kind, Text, label};

use super::status::Status;

/// The text.
#[must_use]
pub fn text(status: &Status) -> String {
    let mut text = Text::default();
    for subsystem in &status.subsystems {
        let of = format!("subsystem=\"{}\"", label(&subsystem.nqn));
        for one in &subsystem.namespaces {
            let labels = format!("{of},nsid=\"{}\"", one.nsid);
            let counters = [
                ("reads", one.reads),
                ("writes", one.writes),
                ("read_bytes", one.read_bytes),
                ("written_bytes", one.written_bytes),
            ];
            let gauges = [("size_bytes", one.bytes)];
            add(&mut text, "namespace", &labels, &counters, &gauges);
        }
        let connected = status.controllers.iter();
        let connected = connected.filter(|one| one.subsystem == subsystem.nqn);
        let (controllers, queues) = connected.fold((0, 0), |(controllers, queues), one| {
            (controllers + 1, queues + one.queues.len() as u64) // CAST: widening.
        });
        let gauges = [("controllers", controllers), ("io_queues", queues)];
        add(&mut text, "subsystem", &of, &[], &gauges);
    }
    for port in &status.ports {
        for one in &port.workers {
            let labels = format!("port=\"{}\",worker=\"{}\"", port.id, one.worker);
            let counters = [
                ("commands", one.commands),
                ("refused", one.refused),
                ("connections", one.connections),
                ("sleeps", one.sleeps),
                ("refused_hosts", one.refused_hosts),
                ("refused_guests", one.refused_guests),
                ("displaced_guests", one.displaced_guests),
                ("overdrawn", one.overdrawn),
            ];
            let gauges = [
                ("serves", one.serves.into()),
                ("entries_left", one.entries_left.into()),
                ("host_queues", one.host_queues.into()),
                ("guests", one.guests.into()),
            ];
            add(&mut text, "worker", &labels, &counters, &gauges);
        }
    }
    text.finish()
}

/// Adds what is counted of one thing, and what it is at.
fn add(text: &mut Text, of: &str, labels: &str, counters: &[(&str, u64)], gauges: &[(&str, u64)]) {
    let kinds = [(Kind::Counter, counters), (Kind::Gauge, gauges)];
    for (kind, all) in kinds {
        for (name, value) in all {
            text.add(&format!("nvmeof_{of}_{name}"), kind, labels, *value);
        }
    }
}
