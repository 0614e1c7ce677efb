//! What is counted, as OpenMetrics text.

use control::metrics::{Kind, Text, label};

use super::status::Status;

/// The text.
#[must_use]
pub fn text(status: &Status) -> String {
    let mut text = Text::default();
    for subsystem in &status.subsystems {
        let of = format!("subsystem=\"{}\"", label(&subsystem.nqn));
        for namespace in &subsystem.namespaces {
            let labels = format!("{of},nsid=\"{}\"", namespace.nsid);
            let mut count = |name: &str, count| {
                text.add(
                    &format!("nvmeof_namespace_{name}"),
                    Kind::Counter,
                    &labels,
                    count,
                );
            };
            count("reads", namespace.reads);
            count("writes", namespace.writes);
            count("read_bytes", namespace.read_bytes);
            count("written_bytes", namespace.written_bytes);
            text.add(
                "nvmeof_namespace_size_bytes",
                Kind::Gauge,
                &labels,
                namespace.bytes,
            );
        }
        let connected = status.controllers.iter();
        let connected = connected.filter(|one| one.subsystem == subsystem.nqn);
        let (controllers, queues) = connected.fold((0, 0), |(controllers, queues), one| {
            (controllers + 1, queues + one.queues.len() as u64) // CAST: widening.
        });
        text.add(
            "nvmeof_subsystem_controllers",
            Kind::Gauge,
            &of,
            controllers,
        );
        text.add("nvmeof_subsystem_io_queues", Kind::Gauge, &of, queues);
    }
    for port in &status.ports {
        for worker in &port.workers {
            let labels = format!("port=\"{}\",worker=\"{}\"", port.id, worker.worker);
            let mut count = |name: &str, count| {
                text.add(
                    &format!("nvmeof_worker_{name}"),
                    Kind::Counter,
                    &labels,
                    count,
                );
            };
            count("commands", worker.commands);
            count("refused", worker.refused);
            count("connections", worker.connections);
            count("sleeps", worker.sleeps);
            text.add(
                "nvmeof_worker_serves",
                Kind::Gauge,
                &labels,
                worker.serves.into(),
            );
        }
    }
    text.finish()
}
