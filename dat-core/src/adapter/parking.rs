//! The state of an adapter that is parked and resumed with all of its instances.
//!
//! All arrivals were handled before, so only the connection manager is written out. The resumption derives listeners
//! from the service points, and the number of connections from endpoints and requests. The instances get their places
//! in the snapshot as their indices, because they are added in that order to an adapter without instances.

use std::collections::BTreeMap;

use super::{Adapter, InstanceIndex, Point, State};
use crate::cm::{Cm, CmSnapshot, Config, ListenId};
use crate::provider::Nanos;

impl Adapter {
    /// Returns the number of watchers.
    pub(crate) fn watcher_count(&self) -> usize {
        self.watchers().len()
    }

    /// Makes an adapter without instances.
    pub(crate) fn resume(cm: Cm) -> Self {
        let adapter = Self::new(Config::default());
        adapter.lock().replace(cm);
        adapter
    }
}

impl State {
    /// Writes the connection manager out. `order` has the indices of the instances. The owner of a connection becomes
    /// the place of its instance in `order`. A connection of an instance that has ended gets no owner: it only waits
    /// for its end.
    pub(crate) fn park(&self, now: Nanos, order: &[InstanceIndex]) -> CmSnapshot {
        let places: BTreeMap<u32, u32> = order.iter().map(|index| index.0).zip(0..).collect();
        let mut snapshot = self.cm.park(now);
        for conn in &mut snapshot.conns {
            conn.owner = conn.owner.and_then(|owner| places.get(&owner).copied());
        }
        snapshot
    }

    /// Returns the numbers of the instances.
    pub(crate) fn numbers(&self) -> impl Iterator<Item = u32> {
        self.queues.iter().flatten().map(|queue| queue.number)
    }

    /// Returns whether an instance has arrivals that it has not handled.
    pub(crate) fn has_arrivals(&self, instance_index: InstanceIndex) -> bool {
        let queue = self.queues.get(instance_index.0 as usize);
        queue
            .and_then(Option::as_ref)
            .is_some_and(|queue| !queue.arrivals.is_empty())
    }

    /// Returns whether several instances may listen at a listener.
    pub(crate) fn is_shared(&self, listen: ListenId) -> bool {
        self.points.get(listen).is_some_and(|point| point.shared)
    }

    /// Replaces the connection manager and removes the instances, which are added again.
    pub(crate) fn replace(&mut self, cm: Cm) {
        self.cm = cm;
        self.queues.clear();
        self.points.clear();
    }

    /// Directs requests at a listener to an instance that has listened there before. Returns false if another service
    /// point has the listener and they do not share it, or if the listener does not listen at `service_id`.
    pub(crate) fn listen_again(
        &mut self,
        instance_index: InstanceIndex,
        (listen, service_id): (ListenId, u64),
        shared: bool,
    ) -> bool {
        if self.cm.listener(service_id) != Some(listen) {
            return false;
        }
        if let Some(point) = self.points.get_mut(listen) {
            let may_share = shared && point.shared;
            if !may_share || point.instance_indices.contains(&instance_index) {
                return false;
            }
            point.instance_indices.push(instance_index);
            return true;
        }
        let point = Point {
            instance_indices: vec![instance_index],
            shared,
        };
        self.points.insert(listen, point).is_none()
    }

    /// Sets the number of connections and undecided requests of an instance.
    pub(crate) fn set_connections(&mut self, instance_index: InstanceIndex, connections: usize) {
        if let Some(queue) = self.queue(instance_index) {
            queue.connections = connections;
        }
    }
}
