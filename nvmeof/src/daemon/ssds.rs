//! Events of SSDs that the daemon drives itself.

use std::sync::Arc;

use hw_nvme::Event;

use super::control::Controlled;
use super::state::Daemon;
use crate::disk::ssd::SsdDisk;
use crate::model::Subsystem;
use crate::nvme::Nqn;

/// A namespace on an SSD: its subsystem, its number, and its disk.
type OnSsd = (Nqn, u32, Arc<SsdDisk>);

fn namespaces(daemon: &Daemon) -> Vec<OnSsd> {
    daemon.target().with(|model| {
        let of = |subsystem: &Subsystem| {
            let name = subsystem.name().clone();
            let all = subsystem.namespaces();
            let on_ssds =
                all.filter_map(move |one| Some((name.clone(), one.nsid(), one.disk().ssd()?)));
            on_ssds.collect::<Vec<_>>()
        };
        model.subsystems().flat_map(of).collect()
    })
}

/// Logs the events of SSDs, one of each, and reads the sizes of namespaces that have changed. Nobody else waits while
/// an SSD is asked for its event.
pub fn follow_ssds(of: &Controlled) {
    let all = namespaces(&of.lock());
    let mut asked = Vec::new();
    for (_, _, disk) in &all {
        let ssd = disk.ssd();
        if asked.iter().any(|known| Arc::ptr_eq(known, ssd)) {
            continue;
        }
        asked.push(Arc::clone(ssd));
        let Some(event) = ssd.next_event() else {
            continue;
        };
        tracing::warn!(ssd = ssd.name(), ?event, "an SSD reports");
        let Event::Namespaces { changed } = event else {
            continue;
        };
        let is_changed = |nsid: u32| changed.as_ref().is_none_or(|all| all.contains(&nsid));
        for (subsystem, nsid, on) in &all {
            if Arc::ptr_eq(on.ssd(), ssd)
                && is_changed(on.nsid())
                && let Err(error) = of.lock().resize_namespace(subsystem, *nsid)
            {
                tracing::error!(%error, "a namespace keeps its size");
            }
        }
    }
}
