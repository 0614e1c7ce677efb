//! Parking of the mock. Its device is the [`World`](super::World), which has all state. A snapshot has the numbers by
//! which the objects are found there.

use super::queue::Queue;
use super::{Mock, MockCq, MockQp, MockSrq, Net};
use crate::provider::{
    CompletionQueue, Nanos, ParkProvider, ProviderError, Qpn, QueuePair, QueueSizes, QueuesOf,
    Registration, ResumedQp, SharedReceiveQueue,
};
use crate::types::MemPrivFlags;
use std::rc::Rc;

/// A step of the parking that can be refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    Begin,
    Finish,
    Cancel,
    Resume,
    FinishResuming,
}

/// A mock at its quiet point: the instances of an adapter, each of which is a node of its own.
pub(crate) struct MockParking(Vec<Mock>);

/// The network, which is no plain data.
pub(crate) struct MockHandover(Net);

/// A completion queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MockCqSnapshot {
    pub(crate) number: u32,
    pub(crate) taken: u64,
}

/// A shared receive queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MockSrqSnapshot {
    pub(crate) number: u32,
    pub(crate) posted: u64,
}

/// A queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MockQpSnapshot {
    pub(crate) qpn: u32,
    pub(crate) requests_outstanding: u32,
    pub(crate) recvs_outstanding: u32,
}

/// A region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MockRegionSnapshot {
    pub(crate) key: u32,
    pub(crate) memory: (u64, u64),
}

/// Length of memory that cannot be parked, in bytes.
pub(crate) const UNPARKABLE: u64 = 0x333;

impl Net {
    /// Makes the next parking, and its resumption, fail at this step.
    pub(crate) fn refuse_parking(&self, step: Step) {
        self.0.borrow_mut().refuse_parking.push(step);
    }

    /// Calls a function at the next step of this kind.
    pub(crate) fn at_step(&self, step: Step, call: impl FnOnce() + 'static) {
        self.0.borrow_mut().at_step = Some((step, Box::new(call)));
    }

    /// Fails if the test has made the step fail.
    fn passes(&self, step: Step) -> Result<(), ProviderError> {
        let call = self.0.borrow_mut().at_step.take_if(|(at, _)| *at == step);
        if let Some((_, call)) = call {
            call();
        }
        let refused = &mut self.0.borrow_mut().refuse_parking;
        match refused.iter().position(|refused| *refused == step) {
            None => Ok(()),
            Some(at) => {
                refused.remove(at);
                Err(ProviderError::Device(format!(
                    "{step:?} is refused by the test"
                )))
            }
        }
    }

    fn park(&self, adapter: usize, kind: &'static str, number: u32) {
        let is_new = self.0.borrow_mut().nodes[adapter]
            .parked
            .insert((kind, number));
        assert!(is_new, "{kind} {number:#x} was parked twice");
    }

    /// Fails unless the object was parked and not resumed.
    fn take_up(
        &self,
        adapter: usize,
        kind: &'static str,
        number: u32,
    ) -> Result<(), ProviderError> {
        let parked = &mut self.0.borrow_mut().nodes[adapter].parked;
        if parked.remove(&(kind, number)) {
            return Ok(());
        }
        different(format!("no {kind} {number:#x} was parked"))
    }
}

fn different<T>(what: String) -> Result<T, ProviderError> {
    Err(ProviderError::Device(what))
}

impl MockParking {
    fn park(&self, kind: &'static str, number: u32) {
        let first = &self.0[0];
        first.net.park(first.adapter, kind, number);
    }
}

impl ParkProvider for Mock {
    type Parking = MockParking;
    /// Indices of the nodes.
    type Snapshot = Vec<usize>;
    type Handover = MockHandover;
    type Proof = ();
    type Unclaimed<'a> = (&'a [usize], MockHandover);
    type PdSnapshot = u32;
    type CqSnapshot = MockCqSnapshot;
    type SrqSnapshot = MockSrqSnapshot;
    type QpSnapshot = MockQpSnapshot;
    type RegionSnapshot = MockRegionSnapshot;
    /// Current remote key of the window.
    type WindowSnapshot = u32;

    fn can_park_region(&self, _region: &u32, memory: &(u64, u64)) -> Result<(), ProviderError> {
        if memory.1 == UNPARKABLE {
            return Err(ProviderError::Unsupported("lent memory".to_owned()));
        }
        Ok(())
    }

    fn begin_parking(all: Vec<Self>) -> Result<MockParking, (Vec<Self>, ProviderError)> {
        match all[0].net.passes(Step::Begin) {
            Ok(()) => Ok(MockParking(all)),
            Err(error) => Err((all, error)),
        }
    }

    fn park_pd(parking: &mut MockParking, pd: u32) -> u32 {
        parking.park("pd", pd);
        pd
    }

    fn park_cq(parking: &mut MockParking, cq: MockCq) -> MockCqSnapshot {
        let number = cq.0.borrow().number;
        parking.park("cq", number);
        MockCqSnapshot {
            number,
            taken: cq.taken(),
        }
    }

    fn park_srq(parking: &mut MockParking, srq: MockSrq) -> MockSrqSnapshot {
        let number = srq.0.borrow().number;
        parking.park("srq", number);
        MockSrqSnapshot {
            number,
            posted: srq.posted(),
        }
    }

    fn park_qp(parking: &mut MockParking, qp: MockQp) -> MockQpSnapshot {
        let qpn = qp.number().get();
        parking.park("qp", qpn);
        MockQpSnapshot {
            qpn,
            requests_outstanding: qp.requests_outstanding(),
            recvs_outstanding: qp.recvs_outstanding(),
        }
    }

    fn park_region(parking: &mut MockParking, key: u32, memory: (u64, u64)) -> MockRegionSnapshot {
        parking.park("region", key);
        MockRegionSnapshot { key, memory }
    }

    fn park_window(parking: &mut MockParking, window: u32) -> u32 {
        parking.park("window", window >> 8);
        window
    }

    fn finish_parking(
        parking: MockParking,
    ) -> Result<(Vec<usize>, MockHandover), (MockParking, ProviderError)> {
        let net = parking.0[0].net.clone();
        match net.passes(Step::Finish) {
            Ok(()) => {
                let nodes = parking.0.iter().map(|mock| mock.node);
                Ok((nodes.collect(), MockHandover(net)))
            }
            Err(error) => Err((parking, error)),
        }
    }

    fn cancel_parking(parking: MockParking) -> Result<Vec<Self>, (MockParking, ProviderError)> {
        match parking.0[0].net.passes(Step::Cancel) {
            Ok(()) => Ok(parking.0),
            Err(error) => Err((parking, error)),
        }
    }

    fn check(
        nodes: &Vec<usize>,
        handover: MockHandover,
    ) -> Result<(&[usize], MockHandover), (MockHandover, ProviderError)> {
        let count = handover.0.0.borrow().nodes.len();
        if nodes.iter().all(|node| *node < count) {
            return Ok((nodes, handover));
        }
        Err((handover, ProviderError::Device("no such node".to_owned())))
    }

    fn instances((nodes, _): &(&[usize], MockHandover)) -> usize {
        nodes.len()
    }

    fn give_back((_, handover): (&[usize], MockHandover)) -> MockHandover {
        handover
    }

    fn time_of((_, handover): &(&[usize], MockHandover)) -> Nanos {
        handover.0.now()
    }

    fn go_on(
        (nodes, handover): (&[usize], MockHandover),
        _proof: &(),
    ) -> Result<Vec<Self>, (Option<MockHandover>, ProviderError)> {
        let net = handover.0.clone();
        match net.passes(Step::Resume) {
            Ok(()) => Ok(nodes.iter().map(|node| net.instance(*node)).collect()),
            Err(error) => Err((Some(handover), error)),
        }
    }

    fn resume_pd(&mut self, pd: &u32) -> Result<u32, ProviderError> {
        self.net.take_up(self.adapter, "pd", *pd)?;
        Ok(*pd)
    }

    fn resume_region(
        &mut self,
        pd: u32,
        access: MemPrivFlags,
        snapshot: &MockRegionSnapshot,
    ) -> Result<(Registration<u32>, (u64, u64)), ProviderError> {
        let MockRegionSnapshot { key, memory } = *snapshot;
        self.net.take_up(self.adapter, "region", key)?;
        let found = self.net.0.borrow().nodes[self.node]
            .regions
            .get(&key)
            .copied();
        if found != Some((pd, access, memory)) {
            return different(format!("{found:?} is not {snapshot:?}, {access:?} in {pd}"));
        }
        let is_remote = access.intersects(MemPrivFlags::REMOTE);
        let registration = Registration {
            region: key,
            lmr_context: key,
            rmr_context: if is_remote { key } else { 0 },
            address: memory.0,
            bytes: memory.1,
        };
        Ok((registration, memory))
    }

    fn resume_window(
        &mut self,
        _pd: u32,
        _outstanding_binds: u32,
        window: &u32,
    ) -> Result<u32, ProviderError> {
        self.net.take_up(self.adapter, "window", *window >> 8)?;
        Ok(*window)
    }

    fn resume_cq(
        &mut self,
        owner: u32,
        snapshot: &MockCqSnapshot,
    ) -> Result<MockCq, ProviderError> {
        let MockCqSnapshot { number, taken } = *snapshot;
        self.net.take_up(self.adapter, "cq", number)?;
        let cqs = self.net.0.borrow().nodes[self.node].cqs.clone();
        let cq = cqs.into_iter().find(|cq| cq.borrow().number == number);
        let cq = MockCq(cq.expect("a queue that was parked"));
        if cq.0.borrow().owner != owner || cq.taken() != taken {
            return different(format!("the queue of {owner} is not {snapshot:?}"));
        }
        // Events that came before the queue is watched again are lost.
        cq.0.borrow_mut().watched = false;
        Ok(cq)
    }

    fn resume_srq(
        &mut self,
        _pd: u32,
        max_recvs: u32,
        _max_segments: u32,
        _owner: u32,
        snapshot: &MockSrqSnapshot,
    ) -> Result<MockSrq, ProviderError> {
        let MockSrqSnapshot { number, posted } = *snapshot;
        self.net.take_up(self.adapter, "srq", number)?;
        let srqs = self.net.0.borrow().nodes[self.node].srqs.clone();
        let srq = srqs.into_iter().find(|srq| srq.borrow().number == number);
        let srq = MockSrq(srq.expect("a queue that was parked"));
        if srq.0.borrow().max_recvs != max_recvs || srq.posted() != posted {
            return different(format!("{max_recvs} receives, and {snapshot:?}"));
        }
        Ok(srq)
    }

    fn resume_qp(
        &mut self,
        _pd: u32,
        queues: QueuesOf<'_, Self>,
        sizes: QueueSizes,
        owner: u32,
        snapshot: &MockQpSnapshot,
    ) -> Result<MockQp, ProviderError> {
        self.net.take_up(self.adapter, "qp", snapshot.qpn)?;
        let state = self.net.peer(Qpn::masked(snapshot.qpn));
        let qp = MockQp {
            state: state.expect("a queue pair that was parked"),
            net: self.net.clone(),
        };
        let outstanding = (qp.requests_outstanding(), qp.recvs_outstanding());
        let state = qp.state.borrow();
        let is_same = Rc::ptr_eq(&state.request_cq, &queues.request_cq.0)
            && Rc::ptr_eq(&state.recv_cq, &queues.recv_cq.0)
            && state.srq.as_ref().map(Rc::as_ptr) == queues.srq.map(|srq| Rc::as_ptr(&srq.0))
            && (state.sizes, state.owner) == (sizes, owner)
            && outstanding == (snapshot.requests_outstanding, snapshot.recvs_outstanding);
        drop(state);
        if !is_same {
            return different(format!("the queue pair of {owner} is not {snapshot:?}"));
        }
        Ok(qp)
    }

    fn qp_state(&mut self, qp: &MockQp) -> Result<ResumedQp, ProviderError> {
        Ok(match qp.state.borrow().queue {
            Queue::Init => ResumedQp::Init,
            Queue::ReadyToReceive => ResumedQp::ReadyToReceive,
            Queue::ReadyToSend => ResumedQp::ReadyToSend,
            Queue::Error => ResumedQp::Error,
        })
    }

    fn finish_resuming(&mut self) -> Result<(), ProviderError> {
        self.net.passes(Step::FinishResuming)?;
        let left = self.net.0.borrow().nodes[self.adapter].parked.clone();
        if left.is_empty() {
            return Ok(());
        }
        different(format!("{left:?} were not resumed"))
    }
}
