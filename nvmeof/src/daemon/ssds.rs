//! Events of SSDs that the daemon drives itself.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use hw_nvme::Event;
use udapl::log_budget::LogBudget;

use super::control::Controlled;
use super::state::Daemon;
use crate::disk::ssd::SsdDisk;
use crate::lines::nanos;
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

/// Follows the events of SSDs.
pub struct SsdEvents {
    of: Controlled,
    began: Instant,
    /// Budget for lines about each open SSD.
    budgets: BTreeMap<String, LogBudget>,
}

impl SsdEvents {
    /// Follows the events of this daemon's SSDs.
    #[must_use]
    pub fn new(of: Controlled) -> Self {
        Self {
            of,
            began: Instant::now(),
            budgets: BTreeMap::new(),
        }
    }

    /// Takes one event of each SSD, logs it, and reads the sizes of the namespaces that have changed. An SSD may take
    /// seconds for each answer. The daemon is not locked meanwhile, and workers that make or delete a queue of that SSD
    /// wait.
    pub fn follow(&mut self) {
        let (target, all) = {
            let daemon = self.of.lock();
            (daemon.target().clone(), namespaces(&daemon))
        };
        self.budgets
            .retain(|name, _| all.iter().any(|(_, _, disk)| disk.ssd().name() == name));
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
            let budget = self.budgets.entry(ssd.name().to_owned()).or_default();
            let unlogged = budget.take(nanos(self.began.elapsed()));
            let Event::Namespaces { changed } = event else {
                if let Some(unlogged) = unlogged {
                    tracing::warn!(ssd = ssd.name(), ?event, unlogged, "an SSD reports");
                }
                continue;
            };
            let is_changed = |nsid: u32| changed.as_ref().is_none_or(|all| all.contains(&nsid));
            for (subsystem, nsid, on) in &all {
                if !Arc::ptr_eq(on.ssd(), ssd) || !is_changed(on.nsid()) {
                    continue;
                }
                let blocks = target.resize_namespace(subsystem, *nsid);
                let Some(unlogged) = unlogged else {
                    continue;
                };
                match blocks {
                    Ok(blocks) => {
                        tracing::info!(ssd = ssd.name(), %subsystem, nsid, blocks, unlogged, "an SSD reports a change");
                    }
                    Err(error) => {
                        tracing::error!(ssd = ssd.name(), %error, unlogged, "an SSD reports a change, and the namespace keeps its size");
                    }
                }
            }
        }
    }
}
