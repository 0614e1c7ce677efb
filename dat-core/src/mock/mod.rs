//! An in-memory provider for the tests of this crate: any number of nodes on one wire. Only a test can make the wire
//! lose datagrams. The clock advances when a node sleeps, or when a test advances it.
//!
//! Requests are carried out when they are posted. After [`Net::hold`] they wait for [`Net::release`]. The mock
//! transfers only lengths, flags and statuses; tests that check data bytes run against the simulator.

mod parking;
mod queue;

pub(crate) use parking::{
    MockCqSnapshot, MockHandover, MockQpSnapshot, MockRegionSnapshot, MockSrqSnapshot, Step,
    UNPARKABLE,
};

use crate::address::Address;
use crate::event::NetworkEvent;
use crate::provider::{
    Limits, MadAddress, Nanos, Path, Provider, ProviderError, ProviderEvent, Psn, Qpn, QueueSizes,
    ReadyToReceive, ReadyToSend, Registration,
};
use crate::types::{DtoStatus, MemPrivFlags};
use queue::{CqState, QpState, Queue, SrqState};
pub(crate) use queue::{MockCq, MockQp, MockSrq, POLL_OTHERS_EVERY};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::IpAddr;
use std::rc::Rc;

pub(crate) type Mad = [u8; 256];

/// State of the mock network: the wire and the nodes on it.
#[derive(Default)]
pub(crate) struct World {
    nodes: Vec<Node>,
    qps: BTreeMap<Qpn, Rc<RefCell<QpState>>>,
    next: u32,
    time: Nanos,
    held: bool,
    release_at: Option<Nanos>,
    drop_mads: bool,
    /// True if no device reports the last SRQ buffer of a queue pair.
    drop_last_buffers: bool,
    /// True if the next command that moves a queue pair to RTS is refused.
    refuse_next: bool,
    /// Steps of the next parking that are refused.
    refuse_parking: Vec<parking::Step>,
    /// Function to call at the next step of this kind.
    at_step: Option<(parking::Step, Box<dyn FnOnce()>)>,
    /// Number of datagrams that a node may send before it sleeps, and how many of them are left; `None` is unlimited.
    mad_room: Option<(usize, usize)>,
    /// All datagrams sent.
    mads: Vec<Mad>,
    /// Time after which a command that moves a queue pair to RTS or rewinds it fails without an answer; `None` if the
    /// device answers.
    silence: Option<Nanos>,
    /// Age of every completion queue entry by the device's clock; `None` if the device has no clock.
    age: Option<Nanos>,
    random: u64,
}

#[derive(Default)]
struct Node {
    /// Index of the first instance of the adapter, which is a node, too. Its address is the adapter's, and it has the
    /// adapter's datagrams.
    adapter: usize,
    mads: VecDeque<(MadAddress, Mad)>,
    events: VecDeque<ProviderEvent>,
    /// Addresses of the node except the first address, which cannot be removed.
    addresses: Vec<Address>,
    cqs: Vec<Rc<RefCell<CqState>>>,
    srqs: Vec<Rc<RefCell<SrqState>>>,
    /// Protection domain, rights and memory of each region, by its key.
    regions: BTreeMap<u32, (u32, MemPrivFlags, (u64, u64))>,
    /// Objects that were parked and not resumed: kind, and number.
    parked: BTreeSet<(&'static str, u32)>,
    live: BTreeMap<&'static str, i64>,
    dead: bool,
}

/// Handle by which the tests control the mock network.
#[derive(Clone, Default)]
pub(crate) struct Net(Rc<RefCell<World>>);

impl Net {
    pub(crate) fn node(&self) -> Mock {
        let node = self.0.borrow().nodes.len();
        self.instance_of(node)
    }

    /// Returns a further instance of an adapter, which is named by its first one. It has queues and events of its own.
    pub(crate) fn instance_of(&self, adapter: usize) -> Mock {
        let mut world = self.0.borrow_mut();
        let node = world.nodes.len();
        world.nodes.push(Node {
            adapter,
            ..Node::default()
        });
        drop(world);
        self.instance(node)
    }

    /// Returns the provider of a node.
    fn instance(&self, node: usize) -> Mock {
        let adapter = self.0.borrow().nodes[node].adapter;
        Mock {
            net: self.clone(),
            node,
            adapter,
            limits: limits(adapter),
        }
    }

    /// Returns the number of polls and arms of all existing completion queues so far.
    pub(crate) fn steps(&self) -> u64 {
        let world = self.0.borrow();
        let cqs = world.nodes.iter().flat_map(|node| &node.cqs);
        cqs.map(|cq| cq.borrow().steps).sum()
    }

    /// Holds requests, from now on, instead of carrying them out.
    pub(crate) fn hold(&self) {
        self.0.borrow_mut().held = true;
    }

    /// Carries out the held requests. Later requests are carried out when they are posted.
    pub(crate) fn release(&self) {
        self.0.borrow_mut().held = false;
        let qps: Vec<_> = self.0.borrow().qps.values().cloned().collect();
        qps.iter().for_each(|qp| self.run(qp));
    }

    /// Calls `release` when a node sleeps until or past `time`.
    pub(crate) fn release_at(&self, time: Nanos) {
        self.0.borrow_mut().release_at = Some(time);
    }

    /// Switches the loss of the connection manager's datagrams on or off.
    pub(crate) fn drop_mads(&self, lost: bool) {
        self.0.borrow_mut().drop_mads = lost;
    }

    /// Makes commands that move a queue pair to RTS or rewind it fail without an answer, from now on. Each takes
    /// `waits` ns.
    pub(crate) fn silence(&self, waits: Nanos) {
        self.0.borrow_mut().silence = Some(waits);
    }

    /// Makes every device suppress its reports of last SRQ buffers, from now on.
    pub(crate) fn drop_last_buffers(&self) {
        self.0.borrow_mut().drop_last_buffers = true;
    }

    /// Makes the next command that moves a queue pair to RTS fail.
    pub(crate) fn refuse_next(&self) {
        self.0.borrow_mut().refuse_next = true;
    }

    /// Returns the capacities of a node's completion queues.
    pub(crate) fn cq_capacities(&self, node: usize) -> Vec<u32> {
        let world = self.0.borrow();
        let cqs = world.nodes[node].cqs.iter();
        cqs.map(|cq| cq.borrow().capacity).collect()
    }

    fn answers(&self) -> Result<(), ProviderError> {
        let mut world = self.0.borrow_mut();
        let Some(waits) = world.silence else {
            return Ok(());
        };
        world.time += waits;
        Err(ProviderError::Device("no answer".to_owned()))
    }

    /// Limits the number of datagrams that a node can send before it sleeps.
    pub(crate) fn narrow(&self, room: usize) {
        self.0.borrow_mut().mad_room = Some((room, room));
    }

    /// Returns all management datagrams sent, including lost ones.
    pub(crate) fn mads(&self) -> Vec<Mad> {
        self.0.borrow().mads.clone()
    }

    /// Returns the first packet sequence numbers that a queue pair expects and sends.
    pub(crate) fn first_psns(&self, qpn: Qpn) -> (Psn, Psn) {
        let world = self.0.borrow();
        let qp = world.qps[&qpn].borrow();
        (qp.receive_psn, qp.send_psn)
    }

    /// Returns the number of requests posted to a queue pair, including those of the library.
    pub(crate) fn posted(&self, qpn: Qpn) -> u64 {
        self.0.borrow().qps[&qpn].borrow().requests_posted
    }

    /// Returns the RNR retries of a queue pair.
    pub(crate) fn rnr_retry(&self, qpn: Qpn) -> u8 {
        self.0.borrow().qps[&qpn].borrow().rnr_retry
    }

    /// Returns the ACK timeout code of a queue pair.
    pub(crate) fn ack_timeout(&self, qpn: Qpn) -> u8 {
        self.0.borrow().qps[&qpn].borrow().ack_timeout
    }

    /// Advances the clock without events.
    pub(crate) fn pass(&self, time: Nanos) {
        self.0.borrow_mut().time += time;
    }

    /// Gives the devices clocks. By these clocks, every completion queue entry is `age` old.
    pub(crate) fn age(&self, age: Nanos) {
        self.0.borrow_mut().age = Some(age);
    }

    pub(crate) fn now(&self) -> Nanos {
        self.0.borrow().time
    }

    /// Makes the next request of the queue pair complete with this status.
    pub(crate) fn fail_next(&self, qpn: Qpn, status: DtoStatus) {
        self.0.borrow().qps[&qpn].borrow_mut().fail_next = Some(status);
    }

    /// Stops the first queue pair of a node, as the device does after an error. Reports nothing.
    pub(crate) fn stop_qp(&self, node: usize) {
        let world = self.0.borrow();
        let mut qps = world.qps.values();
        let qp = qps.find(|qp| qp.borrow().node == node);
        qp.expect("a queue pair").borrow_mut().stop();
    }

    /// Queues an event of a node's device.
    pub(crate) fn report(&self, node: usize, event: ProviderEvent) {
        self.0.borrow_mut().nodes[node].events.push_back(event);
    }

    pub(crate) fn kill(&self, node: usize) {
        self.0.borrow_mut().nodes[node].dead = true;
        self.report(node, ProviderEvent::DeviceDead);
    }

    /// Returns the kinds of objects that a node has created and not destroyed.
    pub(crate) fn leaked(&self, node: usize) -> Vec<&'static str> {
        let world = self.0.borrow();
        world.nodes[node]
            .live
            .iter()
            .filter(|(_, count)| **count != 0)
            .map(|(name, _)| *name)
            .collect()
    }

    fn count(&self, node: usize, name: &'static str, by: i64) {
        *self.0.borrow_mut().nodes[node]
            .live
            .entry(name)
            .or_default() += by;
    }

    fn number(&self) -> u32 {
        let mut world = self.0.borrow_mut();
        world.next += 1;
        world.next + 0x40
    }

    fn peer(&self, qpn: Qpn) -> Option<Rc<RefCell<QpState>>> {
        self.0.borrow().qps.get(&qpn).cloned()
    }

    /// Carries out the requests of a queue pair.
    fn run(&self, qp: &Rc<RefCell<QpState>>) {
        while !self.0.borrow().held {
            let Some(request) = qp.borrow_mut().next_request() else {
                return;
            };
            let forced = qp.borrow_mut().fail_next.take();
            let status = match forced {
                Some(status) => status,
                None => self.carry_out(qp, &request),
            };
            let failed = qp.borrow_mut().finish(request, status);
            if failed {
                self.stop(qp);
            }
        }
    }

    fn carry_out(&self, qp: &Rc<RefCell<QpState>>, request: &queue::Request) -> DtoStatus {
        let remote = qp.borrow().remote;
        let Some(peer) = remote
            .and_then(|qpn| self.peer(qpn))
            .filter(|peer| peer.borrow().receives())
        else {
            return DtoStatus::ErrTransport;
        };
        if !request.is_send {
            return DtoStatus::Success;
        }
        let arrived = peer
            .borrow_mut()
            .receive(request.bytes, request.solicited, request.detail);
        match arrived {
            None => DtoStatus::ErrReceiverNotReady,
            Some(true) => DtoStatus::Success,
            Some(false) => {
                self.stop(&peer);
                let (node, owner) = (peer.borrow().node, peer.borrow().owner);
                self.report(node, ProviderEvent::QpError { owner, event: 5 });
                DtoStatus::ErrRemoteResponder
            }
        }
    }

    /// Moves a queue pair to the error state, which flushes all outstanding work.
    fn stop(&self, qp: &Rc<RefCell<QpState>>) {
        let last_buffer = qp.borrow_mut().stop();
        if last_buffer && !self.0.borrow().drop_last_buffers {
            let (node, owner) = (qp.borrow().node, qp.borrow().owner);
            self.report(node, ProviderEvent::SrqLastBuffer { owner });
        }
    }
}

fn limits(node: usize) -> Limits {
    Limits {
        adapter_name: format!("mock{node}"),
        vendor_name: "nobody".into(),
        hardware_version: (1, 0),
        firmware_version: (1, 2, 3),
        gid: gid(node),
        max_qps: 1000,
        max_dtos: 64,
        max_reads_in: 16,
        max_reads_out: 16,
        max_cqs: 1000,
        max_cq_entries: 1024,
        max_request_segments: 8,
        max_read_segments: 6,
        max_recv_segments: 8,
        max_regions: 1000,
        max_region_bytes: 1 << 40,
        max_windows: 100,
        max_window_bytes: 1 << 32,
        max_pds: 100,
        max_message_bytes: 1 << 30,
        atomics: true,
        max_srqs: 10,
        max_srq_recvs: 64,
        mtu: 3,
        // The nodes have different delays, so that a test can tell whose delay was used.
        ack_delay: if node == 0 { 16 } else { 19 },
    }
}

fn gid(node: usize) -> [u8; 16] {
    let mut gid = [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0xff, 0xfe, 0, 0, 0];
    gid[15] = u8::try_from(node + 1).expect("few nodes");
    gid
}

/// The provider of one node.
pub(crate) struct Mock {
    pub(crate) net: Net,
    pub(crate) node: usize,
    adapter: usize,
    limits: Limits,
}

impl std::fmt::Debug for Mock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Mock({})", self.node)
    }
}

impl Mock {
    fn path_to(&self, gid: [u8; 16]) -> Path {
        Path {
            source_gid_index: 0,
            gid,
            hop_limit: 1,
            traffic_class: 0,
            flow_label: 0,
            priority: 0,
        }
    }

    fn woken(&self) -> bool {
        let world = self.net.0.borrow();
        let node = &world.nodes[self.node];
        let fired = node.cqs.iter().fold(false, |fired, cq| {
            let mut cq = cq.borrow_mut();
            // A watched queue stays fired until its event has been taken.
            let now = cq.fired;
            cq.fired &= cq.watched;
            fired | now
        });
        fired || !world.nodes[self.adapter].mads.is_empty() || !node.events.is_empty()
    }

    fn alive(&self) -> Result<(), ProviderError> {
        if self.net.0.borrow().nodes[self.node].dead {
            return Err(ProviderError::Dead("killed by the test".into()));
        }
        Ok(())
    }
}

impl Provider for Mock {
    type Cq = MockCq;
    type Qp = MockQp;
    type Srq = MockSrq;
    type Pd = u32;
    /// Address and length in bytes.
    type Memory = (u64, u64);
    type Region = u32;
    /// Current remote key of the window.
    type Window = u32;

    fn limits(&self) -> &Limits {
        &self.limits
    }

    fn now(&self) -> Nanos {
        self.net.now()
    }

    fn since(&self, _written: u64) -> Option<Nanos> {
        self.net.0.borrow().age
    }

    fn wait(&mut self, deadline: Nanos) -> Result<bool, ProviderError> {
        self.alive()?;
        if let Some((room, left)) = &mut self.net.0.borrow_mut().mad_room
            && *left < *room
        {
            *left = *room;
            return Ok(true);
        }
        if self.woken() {
            return Ok(true);
        }
        let due = self.net.0.borrow().release_at.filter(|at| *at <= deadline);
        if let Some(at) = due {
            self.net.0.borrow_mut().release_at = None;
            self.net.0.borrow_mut().time = at;
            self.net.release();
            return Ok(self.woken());
        }
        let mut world = self.net.0.borrow_mut();
        world.time = world.time.max(deadline);
        Ok(false)
    }

    fn progress(&mut self) {}

    fn next_event(&mut self) -> Option<ProviderEvent> {
        let node = &mut self.net.0.borrow_mut().nodes[self.node];
        for cq in &node.cqs {
            let mut cq = cq.borrow_mut();
            if cq.watched && std::mem::take(&mut cq.fired) {
                return Some(ProviderEvent::CqEntries { owner: cq.owner });
            }
        }
        node.events.pop_front()
    }

    fn alloc_pd(&mut self) -> Result<u32, ProviderError> {
        self.net.count(self.node, "pd", 1);
        Ok(self.net.number())
    }

    fn free_pd(&mut self, _pd: u32) -> Result<(), ProviderError> {
        self.net.count(self.node, "pd", -1);
        Ok(())
    }

    fn register(
        &mut self,
        pd: u32,
        memory: &(u64, u64),
        access: MemPrivFlags,
    ) -> Result<Registration<u32>, ProviderError> {
        let (address, bytes) = *memory;
        if bytes == 0 {
            return Err(ProviderError::Unsupported("a region of no bytes".into()));
        }
        self.net.count(self.node, "region", 1);
        let key = self.net.number() << 8 | 0x5a;
        let node = &mut self.net.0.borrow_mut().nodes[self.node];
        node.regions.insert(key, (pd, access, *memory));
        let rmr_context = if access.intersects(MemPrivFlags::REMOTE) {
            key
        } else {
            0
        };
        Ok(Registration {
            region: key,
            lmr_context: key,
            rmr_context,
            address,
            bytes,
        })
    }

    fn stop(&mut self, _why: &'static str) {
        self.net.kill(self.node);
    }

    fn one_limit(&mut self, _on: bool) {}

    fn deregister(&mut self, region: &mut u32) -> Result<(), ProviderError> {
        self.net.0.borrow_mut().nodes[self.node]
            .regions
            .remove(region);
        self.net.count(self.node, "region", -1);
        Ok(())
    }

    /// Returns whether memory is shared: all memory is, except regions that begin at an odd address.
    fn is_shared(&self, memory: &(u64, u64)) -> bool {
        memory.0.is_multiple_of(2)
    }

    fn create_window(&mut self, _pd: u32) -> Result<u32, ProviderError> {
        self.alive()?;
        self.net.count(self.node, "window", 1);
        Ok(self.net.number() << 8)
    }

    fn unbind_window(&mut self, _pd: u32, window: &mut u32) -> Result<(), ProviderError> {
        *window = self.net.number() << 8;
        Ok(())
    }

    fn destroy_window(&mut self, _window: &mut u32) -> Result<(), ProviderError> {
        self.net.count(self.node, "window", -1);
        Ok(())
    }

    fn create_cq(&mut self, entries: u32, owner: u32) -> Result<MockCq, ProviderError> {
        self.alive()?;
        self.net.count(self.node, "cq", 1);
        let cq = Rc::new(RefCell::new(CqState::new(
            entries.next_power_of_two(),
            owner,
            self.net.number(),
        )));
        self.net.0.borrow_mut().nodes[self.node]
            .cqs
            .push(Rc::clone(&cq));
        Ok(MockCq(cq))
    }

    fn watch_cq(&mut self, cq: &MockCq) {
        cq.0.borrow_mut().watched = true;
    }

    fn resize_cq(&mut self, cq: &mut MockCq, entries: u32) -> Result<(), ProviderError> {
        self.alive()?;
        if !cq.0.borrow_mut().resize(entries.next_power_of_two()) {
            return Err(ProviderError::Device("more is in it".into()));
        }
        Ok(())
    }

    fn destroy_cq(&mut self, cq: &mut MockCq) -> Result<(), ProviderError> {
        self.net.count(self.node, "cq", -1);
        self.net.0.borrow_mut().nodes[self.node]
            .cqs
            .retain(|other| !Rc::ptr_eq(other, &cq.0));
        Ok(())
    }

    fn create_srq(
        &mut self,
        _pd: u32,
        max_recvs: u32,
        _max_segments: u32,
        _owner: u32,
    ) -> Result<MockSrq, ProviderError> {
        self.net.count(self.node, "srq", 1);
        let srq = SrqState::new(max_recvs, self.net.number());
        let srq = Rc::new(RefCell::new(srq));
        self.net.0.borrow_mut().nodes[self.node]
            .srqs
            .push(Rc::clone(&srq));
        Ok(MockSrq(srq))
    }

    fn arm_srq_limit(&mut self, _srq: &MockSrq, _limit: u32) -> Result<(), ProviderError> {
        Ok(())
    }

    fn destroy_srq(&mut self, srq: &mut MockSrq) -> Result<(), ProviderError> {
        self.net.0.borrow_mut().nodes[self.node]
            .srqs
            .retain(|other| !Rc::ptr_eq(other, &srq.0));
        self.net.count(self.node, "srq", -1);
        Ok(())
    }

    fn create_qp(
        &mut self,
        _pd: u32,
        request_cq: &MockCq,
        recv_cq: &MockCq,
        srq: Option<&MockSrq>,
        sizes: QueueSizes,
        owner: u32,
    ) -> Result<MockQp, ProviderError> {
        self.alive()?;
        self.net.count(self.node, "qp", 1);
        let qpn = Qpn::new(self.net.number());
        let state = QpState::new(qpn, self.node, owner, sizes, request_cq, recv_cq, srq);
        let state = Rc::new(RefCell::new(state));
        self.net.0.borrow_mut().qps.insert(qpn, Rc::clone(&state));
        Ok(MockQp {
            state,
            net: self.net.clone(),
        })
    }

    fn ready_to_receive(
        &mut self,
        qp: &mut MockQp,
        attributes: &ReadyToReceive,
    ) -> Result<(), ProviderError> {
        self.alive()?;
        let mut state = qp.state.borrow_mut();
        assert_eq!(state.queue, Queue::Init, "INIT to RTR");
        state.queue = Queue::ReadyToReceive;
        state.remote = Some(attributes.remote_qpn);
        state.receive_psn = attributes.receive_psn;
        Ok(())
    }

    fn ready_to_send(
        &mut self,
        qp: &mut MockQp,
        attributes: &ReadyToSend,
    ) -> Result<(), ProviderError> {
        self.alive()?;
        self.net.answers()?;
        if std::mem::take(&mut self.net.0.borrow_mut().refuse_next) {
            return Err(ProviderError::Device("refused by the test".to_owned()));
        }
        let mut state = qp.state.borrow_mut();
        assert_eq!(state.queue, Queue::ReadyToReceive, "RTR to RTS");
        state.queue = Queue::ReadyToSend;
        state.send_psn = attributes.send_psn;
        state.ack_timeout = attributes.ack_timeout;
        state.rnr_retry = attributes.rnr_retry;
        Ok(())
    }

    fn to_error(&mut self, qp: &mut MockQp) -> Result<(), ProviderError> {
        if self.alive().is_err() {
            // A dead device has nothing to stop and nothing to flush.
            return Ok(());
        }
        self.net.stop(&qp.state);
        Ok(())
    }

    fn reset_qp(
        &mut self,
        qp: &mut MockQp,
        _request_cq: &mut MockCq,
        _recv_cq: Option<&mut MockCq>,
    ) -> Result<(), ProviderError> {
        self.alive()?;
        qp.state.borrow_mut().reset();
        Ok(())
    }

    fn rewind_qp(
        &mut self,
        qp: &mut MockQp,
        _request_cq: &mut MockCq,
        _recv_cq: Option<&mut MockCq>,
    ) -> Result<bool, ProviderError> {
        self.alive()?;
        self.net.answers()?;
        qp.state.borrow_mut().rewind();
        Ok(true)
    }

    fn destroy_qp(
        &mut self,
        qp: &mut MockQp,
        _request_cq: &mut MockCq,
        _recv_cq: Option<&mut MockCq>,
    ) -> Result<(), ProviderError> {
        self.net.count(self.node, "qp", -1);
        qp.state.borrow_mut().reset();
        self.net.0.borrow_mut().qps.remove(&qp.state.borrow().qpn);
        Ok(())
    }

    fn sync_for_device(&self) {}

    fn sync_for_cpu(&self) {}

    fn gid(&self, index: u8) -> Option<[u8; 16]> {
        (index == 0).then_some(self.limits().gid)
    }

    fn addresses(&self) -> Vec<Address> {
        let first = crate::attributes::address_of(self.limits().gid).into();
        let world = self.net.0.borrow();
        let others = world.nodes[self.node].addresses.iter().copied();
        core::iter::once(first).chain(others).collect()
    }

    fn add_address(&mut self, address: &Address) -> Result<(), ProviderError> {
        if self.addresses().contains(address) {
            return Err(ProviderError::Unsupported("it is there".to_owned()));
        }
        let node = &mut self.net.0.borrow_mut().nodes[self.node];
        node.addresses.push(*address);
        let added = NetworkEvent::AddressAdded(address.address);
        node.events.push_back(ProviderEvent::Network(added));
        Ok(())
    }

    fn remove_address(&mut self, address: IpAddr) -> Result<(), ProviderError> {
        let node = &mut self.net.0.borrow_mut().nodes[self.node];
        let at = node
            .addresses
            .iter()
            .position(|other| other.address == address)
            .ok_or_else(|| ProviderError::Unsupported(format!("{address} is none")))?;
        node.addresses.remove(at);
        node.events.push_back(ProviderEvent::AddressRemoved {
            source_gid_index: u8::try_from(at + 1).expect("few"),
            address,
        });
        Ok(())
    }

    fn route(&self, gid: [u8; 16], _source: Option<IpAddr>) -> Result<Path, ProviderError> {
        if gid[..2] == [0xfe, 0x80] {
            Ok(self.path_to(gid))
        } else {
            Err(ProviderError::Unreachable {
                why: "not on this wire",
                what: crate::attributes::address_of(gid).to_string(),
            })
        }
    }

    fn send_mad(&mut self, to: &MadAddress, mad: &Mad) -> Result<(), ProviderError> {
        let from = MadAddress {
            path: self.path_to(gid(self.adapter)),
            qpn: Qpn::GSI,
        };
        let mut world = self.net.0.borrow_mut();
        match &mut world.mad_room {
            Some((_, 0)) => return Err(ProviderError::Resources("the wire is narrow".to_owned())),
            Some((_, left)) => *left -= 1,
            None => {}
        }
        world.mads.push(*mad);
        if !world.drop_mads
            && let Some(node) = (0..world.nodes.len()).find(|node| gid(*node) == to.path.gid)
        {
            world.nodes[node].mads.push_back((from, *mad));
        }
        Ok(())
    }

    fn await_mads(&mut self, _deadline: Nanos) {}

    fn poll_mad(&mut self) -> Option<(MadAddress, Mad)> {
        self.net.0.borrow_mut().nodes[self.adapter].mads.pop_front()
    }

    fn random(&mut self) -> u64 {
        let mut world = self.net.0.borrow_mut();
        world.random = world.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        world.random ^ world.random >> 29
    }
}
