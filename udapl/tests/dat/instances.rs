//! Several instances of one adapter. Each instance has its own queues, objects and events. The instances share the
//! port, the memory and the connection manager.

use std::thread;
use std::time::Duration;

use dat_core::provider::Provider;
use hw_sim::Fault;
use udapl::adapter::IaConfig;
use udapl::connection::PspHandle;
use udapl::error::{OpenError, ReturnType};
use udapl::event::{AsyncEvent, SoftwareEvent};
use udapl::fabric::Fabric;
use udapl::memory::{LmrSlice, PzHandle, RmrTriplet};
use udapl::{
    Adapter, CloseFlags, ConnQual, ConnectFlags, ConnectionEventKind, DtoCookie, DtoStatus, EpEvds,
    EpHandle, EvdFlags, EvdHandle, Event, Ia, MemPrivFlags, PspFlags, Qos, Timeout, ia_close,
};

use crate::support::{A, B, LONG, NONE, Pair, PairConfig, attributes, pattern, refused};

const ELSEWHERE: ConnQual = ConnQual::service_id(0x1_0000_0777);

/// Returns the qualifier `at` above [`ELSEWHERE`].
const fn beside(at: u64) -> ConnQual {
    ConnQual::service_id(ELSEWHERE.0 + at)
}
/// A timeout of 0: the wait polls once.
const NOW: Timeout = Timeout::from_micros(0);

/// An instance with one EVD for everything, an endpoint, and memory.
struct Instance {
    ia: Ia,
    pz: PzHandle,
    events: EvdHandle,
    ep: EpHandle,
    memory: udapl::DmaMemory,
    all: LmrSlice,
    remote: RmrTriplet,
}

const BYTES: usize = 4096;

impl Instance {
    fn new(mut ia: Ia) -> Self {
        let memory = udapl::alloc(&ia, BYTES).expect("memory");
        let pz = ia.pz_create().expect("a PZ");
        let all = EvdFlags::DTO | EvdFlags::CONNECTION | EvdFlags::CR;
        let events = ia.evd_create(256, all).expect("an EVD");
        let attr = attributes(&ia);
        let ep = ia.ep_create(Some(pz), EpEvds::all(events), Some(&attr));
        let lmr = ia
            .lmr_create(memory.clone(), pz, MemPrivFlags::all())
            .expect("an LMR");
        Self {
            pz,
            events,
            ep: ep.expect("an EP"),
            all: ia.lmr_slice(lmr.lmr, 0, BYTES as u64).expect("a slice"),
            remote: RmrTriplet {
                rmr_context: lmr.rmr_context,
                target_address: lmr.registered_address,
                segment_length: BYTES as u64,
            },
            memory,
            ia,
        }
    }

    /// Opens another instance of the same adapter.
    fn another(&self) -> Self {
        let adapter = Adapter::of(&self.ia);
        Self::new(adapter.instance(IaConfig::default()).expect("an instance"))
    }

    fn connect(&mut self, to: &Self, qual: ConnQual) {
        let address = to.ia.query().ia.ia_address;
        self.ia
            .ep_connect(
                self.ep,
                address,
                qual,
                LONG,
                b"",
                Qos::BEST_EFFORT,
                ConnectFlags::empty(),
            )
            .expect("begun");
    }

    fn event(&mut self) -> Option<Event> {
        self.ia.evd_dequeue(self.events).ok().flatten()
    }
}

/// Two linked functions, with several instances of each.
struct Instances {
    pair: Pair,
    of: [Vec<Instance>; 2],
}

impl Instances {
    fn new(count: [usize; 2]) -> Self {
        let pair = Pair::unconnected(&PairConfig::default());
        let of = [A, B].map(|side| {
            let adapter = Adapter::of(&pair.sides[side].ia);
            let another =
                |_| Instance::new(adapter.instance(IaConfig::default()).expect("one more"));
            (0..count[side]).map(another).collect()
        });
        Self { pair, of }
    }

    /// Calls `progress` of all instances once, and advances time.
    fn pump(&mut self) {
        for instance in self.of.iter_mut().flatten() {
            instance.ia.progress();
        }
        self.pair.pump();
    }

    #[track_caller]
    fn wait(&mut self, side: usize, at: usize) -> Event {
        for _ in 0..10_000 {
            if let Some(event) = self.of[side][at].event() {
                return event;
            }
            self.pump();
        }
        panic!("nothing came for instance {at} of side {side}");
    }

    /// Connects the instance `a` of A to the instance `b` of B, which listens at `qual`.
    fn connect(&mut self, a: usize, b: usize, qual: ConnQual) {
        let [of_a, of_b] = &mut self.of;
        of_a[a].connect(&of_b[b], qual);
        let Event::ConnectionRequest(request) = self.wait(B, b) else {
            panic!("a request");
        };
        let to = &mut self.of[B][b];
        to.ia
            .cr_accept(request.cr, Some(to.ep), b"")
            .expect("accepted");
        self.established(a, b);
    }

    fn established(&mut self, a: usize, b: usize) {
        for (side, at) in [(A, a), (B, b)] {
            let event = self.wait(side, at);
            assert!(
                matches!(event, Event::Connection(c) if c.kind == ConnectionEventKind::Established),
                "{event:?}"
            );
        }
    }

    /// Writes from the instance `a` of A into the memory of the instance `b` of B, and checks the bytes.
    fn write(&mut self, a: usize, b: usize, seed: u64) {
        let data = pattern(seed, BYTES);
        self.of[A][a].memory.write_from(0, &data).expect("inside");
        let target = self.of[B][b].remote;
        let from = &mut self.of[A][a];
        from.ia
            .ep_post_rdma_write(from.ep, &[from.all], DtoCookie(seed), &target, NONE)
            .expect("posted");
        let event = self.wait(A, a);
        assert!(
            matches!(event, Event::Dto(done) if done.cookie.0 == seed && done.status == DtoStatus::Success),
            "{event:?}"
        );
        assert_eq!(self.of[B][b].memory.read(0, BYTES).expect("inside"), data);
    }

    fn listen(&mut self, at: usize, qual: ConnQual) {
        let Instance { ia, events, .. } = &mut self.of[B][at];
        ia.psp_create(qual, *events, PspFlags::CONSUMER)
            .expect("listens");
    }
}

#[test]
fn each_instance_has_connections_and_traffic_of_its_own() {
    let mut all = Instances::new([3, 3]);
    let own = |at: usize| {
        let hca = all.of[A][at].ia.provider().hca();
        (hca.uar_index().get(), hca.comp_eqn().get())
    };
    let ((page, queue), (other_page, other_queue)) = (own(0), own(1));
    assert!(page != other_page && queue != other_queue);
    for at in 0..3 {
        let qual = beside(at as u64);
        all.listen(at, qual);
        all.connect(at, at, qual);
    }
    for round in 0..4 {
        for at in 0..3 {
            all.write(at, at, 1 + round * 3 + at as u64);
        }
    }
    all.pair.assert_no_complaints();
}

/// When an instance is closed, the other instances continue. The function is closed with its last instance.
#[test]
fn an_adapter_is_closed_with_its_last_instance() {
    let mut all = Instances::new([2, 2]);
    for at in 0..2 {
        all.listen(at, beside(at as u64));
        all.connect(at, at, beside(at as u64));
    }
    let gone = all.of[A].remove(0);
    assert_eq!(gone.ia.instances(), 3);
    let report = ia_close(gone.ia, CloseFlags::Abrupt).expect("closed");
    assert_eq!((report.instances_left, report.pages_given), (2, 0));
    let event = all.wait(B, 0);
    assert!(
        matches!(event, Event::Connection(c) if c.kind == ConnectionEventKind::Disconnected),
        "{event:?}"
    );
    all.write(0, 1, 77);

    let Instances { pair, of: [a, b] } = all;
    let adapter = Adapter::of(&a[0].ia);
    for instance in a.into_iter().chain(b) {
        ia_close(instance.ia, CloseFlags::Abrupt).expect("closed");
    }
    let [a, b] = pair.sides;
    for side in [a, b] {
        let report = ia_close(side.ia, CloseFlags::Abrupt).expect("closed");
        assert_eq!(report.instances_left, 0);
        assert_eq!(report.objects_left, []);
        assert_eq!(report.pages_not_returned, 0);
        assert!(report.pages_given > 0);
    }
    let again = adapter.instance(IaConfig::default());
    assert!(matches!(again, Err(OpenError::Closed { .. })));
}

/// A later instance reuses the device resources of a closed instance, so that it takes few commands.
#[test]
fn instances_that_come_and_go_use_no_more_of_the_device() {
    let all = Instances::new([1, 0]);
    let adapter = Adapter::of(&all.of[A][0].ia);
    for _ in 0..100 {
        let ia = adapter.instance(IaConfig::default()).expect("an instance");
        ia_close(ia, CloseFlags::Graceful).expect("closed");
    }
    let Instances { pair, of: [a, _] } = all;
    for instance in a {
        ia_close(instance.ia, CloseFlags::Abrupt).expect("closed");
    }
    let [side, _] = pair.sides;
    let report = ia_close(side.ia, CloseFlags::Abrupt).expect("closed");
    assert_eq!(report.objects_left, []);
    assert!(report.commands < 200, "{} commands", report.commands);
}

/// The device has no object of a closed instance, however the instance was closed.
#[test]
fn instances_closed_with_objects_leave_none_in_the_device() {
    let all = Instances::new([1, 0]);
    let adapter = Adapter::of(&all.of[A][0].ia);
    for round in 0..20 {
        let ia = adapter.instance(IaConfig::default()).expect("an instance");
        let Instance { ia, .. } = Instance::new(ia);
        match round % 2 {
            0 => drop(ia),
            _ => {
                ia_close(ia, CloseFlags::Abrupt).expect("closed");
            }
        }
    }
    let Instances { pair, of: [a, _] } = all;
    for instance in a {
        ia_close(instance.ia, CloseFlags::Abrupt).expect("closed");
    }
    let [side, _] = pair.sides;
    let report = ia_close(side.ia, CloseFlags::Abrupt).expect("closed");
    assert_eq!(
        (report.instances_left, &report.objects_left[..]),
        (0, &[][..])
    );
}

/// A connection request can be handed off to another instance, and accepted there.
///
/// Page: dat_cr_handoff.
#[test]
fn a_request_can_be_accepted_in_another_instance() {
    let mut all = Instances::new([1, 2]);
    all.listen(0, ELSEWHERE);
    all.listen(1, beside(1));
    let [a, b] = &mut all.of;
    a[0].connect(&b[0], ELSEWHERE);
    let Event::ConnectionRequest(request) = all.wait(B, 0) else {
        panic!("a request");
    };
    let ia = &mut all.of[B][0].ia;
    ia.cr_handoff(request.cr, beside(1)).expect("handed off");
    refused(ia.cr_query(request.cr), ReturnType::InvalidHandle);
    let Event::ConnectionRequest(request) = all.wait(B, 1) else {
        panic!("the same request");
    };
    assert_eq!(request.conn_qual, beside(1));
    let to = &mut all.of[B][1];
    to.ia
        .cr_accept(request.cr, Some(to.ep), b"")
        .expect("accepted");
    all.established(0, 1);
    all.write(0, 1, 5);
    all.pair.assert_no_complaints();
}

#[test]
fn a_request_is_handed_off_to_nobody_who_does_not_listen() {
    let mut all = Instances::new([1, 2]);
    all.listen(0, ELSEWHERE);
    let [a, b] = &mut all.of;
    a[0].connect(&b[0], ELSEWHERE);
    let Event::ConnectionRequest(request) = all.wait(B, 0) else {
        panic!("a request");
    };
    let ia = &mut all.of[B][0].ia;
    refused(
        ia.cr_handoff(request.cr, ConnQual(0x1_0000_0999)),
        ReturnType::InvalidParameter,
    );
    ia.cr_query(request.cr).expect("nothing has changed");
}

#[test]
fn requests_to_a_shared_service_point_are_spread_over_its_instances() {
    let mut all = Instances::new([8, 4]);
    for at in 0..4 {
        let Instance { ia, events, .. } = &mut all.of[B][at];
        ia.psp_create_shared(ELSEWHERE, *events, PspFlags::CONSUMER)
            .expect("listens");
    }
    let Instance { ia, events, .. } = &mut all.of[B][0];
    let again = ia.psp_create_shared(ELSEWHERE, *events, PspFlags::CONSUMER);
    refused(again, ReturnType::ConnQualInUse);
    for at in 0..8 {
        let [a, b] = &mut all.of;
        a[at].connect(&b[0], ELSEWHERE);
    }
    let mut arrived = [0; 4];
    for _ in 0..10_000 {
        all.pump();
        for (at, count) in arrived.iter_mut().enumerate() {
            let event = all.of[B][at].event();
            *count += usize::from(matches!(event, Some(Event::ConnectionRequest(_))));
        }
        if arrived.iter().sum::<usize>() == 8 {
            break;
        }
    }
    assert_eq!(arrived, [2; 4]);
}

/// All instances can register the same memory, each with its own key, which serves only its own connections. The free
/// of one instance's key does not affect the key of another instance.
#[test]
fn memory_is_every_instances_and_a_key_is_one_instances() {
    let mut all = Instances::new([1, 2]);
    for at in 0..2 {
        all.listen(at, beside(at as u64));
    }
    all.connect(0, 0, ELSEWHERE);
    let memory = all.of[B][0].memory.clone();
    let first = all.of[B][0].remote;
    let Instance { ia, pz, .. } = &mut all.of[B][1];
    let [second, freed] = [0; 2].map(|_| {
        ia.lmr_create(memory.clone(), *pz, MemPrivFlags::all())
            .expect("the adapter's memory")
    });
    assert_ne!(second.rmr_context, first.rmr_context);
    ia.lmr_free(freed.lmr).expect("freed");
    // The first instance's key still works after the free of one of the second instance's keys.
    all.write(0, 0, 9);
    // The second instance's key is valid, but the connection is to the first instance, so the key gives no access.
    let target = RmrTriplet {
        rmr_context: second.rmr_context,
        ..first
    };
    let from = &mut all.of[A][0];
    from.ia
        .ep_post_rdma_write(from.ep, &[from.all], DtoCookie(10), &target, NONE)
        .expect("posted");
    let event = all.wait(A, 0);
    assert!(
        matches!(event, Event::Dto(done) if done.status == DtoStatus::ErrRemoteAccess),
        "{event:?}"
    );
    let ia = &mut all.of[B][1].ia;
    ia.lmr_free(second.lmr).expect("it was valid until now");
}

/// When an instance is dropped, its peers get an event, no object of it is left, and the device continues for the other
/// instances.
#[test]
fn an_instance_that_is_dropped_ends_alone() {
    let mut all = Instances::new([2, 2]);
    for at in 0..2 {
        all.listen(at, beside(at as u64));
        all.connect(at, at, beside(at as u64));
    }
    drop(all.of[A].remove(0));
    let event = all.wait(B, 0);
    assert!(
        matches!(event, Event::Connection(c) if c.kind == ConnectionEventKind::Disconnected),
        "{event:?}"
    );
    all.write(0, 1, 77);
    let another = all.of[A][0].another();
    all.of[A].push(another);
    all.of[B].remove(0);
    all.pair.assert_no_complaints();
}

/// A call from another instance prevents the next sleep of an instance, even if the instance is about to sleep.
#[test]
fn a_call_from_another_instance_is_not_slept_over() {
    let mut all = Instances::new([1, 0]);
    let Instance { ia, .. } = &mut all.of[A][0];
    ia.progress();
    let call = ia.provider().waker();
    call();
    let begun = ia.provider().now();
    let woken = ia
        .provider_mut()
        .wait(begun + 1_000_000_000)
        .expect("alive");
    assert_eq!((woken, ia.provider().now() - begun), (true, 0));
    // One call of the waker prevents only one sleep.
    let woken = ia.provider_mut().wait(begun + 1_000_000).expect("alive");
    assert_eq!((woken, ia.provider().now() - begun), (false, 1_000_000));
}

/// An instance that is opened later knows the device's state from earlier events.
#[test]
fn a_later_instance_knows_that_the_link_has_come_up() {
    let fabric = Fabric::pair(1);
    fabric.sim.inject(&fabric.function(A), &Fault::LinkDown);
    let mut first = fabric.open(A).expect("opens");
    let peer = fabric.open(B).expect("opens");
    fabric.sim.inject(&fabric.function(A), &Fault::LinkUp);
    first.progress();
    let mut later = Instance::new(
        Adapter::of(&first)
            .instance(IaConfig::default())
            .expect("one more"),
    );
    // Wait longer than a link may train.
    for _ in 0..20 {
        fabric.sim.advance(Duration::from_secs(1));
        first.progress();
        later.ia.progress();
    }
    let to = peer.query().ia.ia_address;
    let begun = later.ia.ep_connect(
        later.ep,
        to,
        ELSEWHERE,
        LONG,
        b"",
        Qos::BEST_EFFORT,
        ConnectFlags::empty(),
    );
    assert_eq!(begun, Ok(()), "{:?}", later.ia.last_device_error());
}

#[test]
fn a_later_instance_hears_that_the_device_is_wanted_back() {
    let all = Instances::new([1, 0]);
    let function = all.pair.fabric.function(A);
    all.pair.fabric.sim.inject(&function, &Fault::WantedBack);
    let mut first = all.of;
    let first = &mut first[A][0].ia;
    let evd = first.async_evd();
    let heard = first.evd_wait(evd, LONG, 1).map(|(event, _)| event);
    assert_eq!(heard, Ok(Event::Async(AsyncEvent::IaCatastrophic)));
    let mut later = Adapter::of(first)
        .instance(IaConfig::default())
        .expect("it lives");
    let evd = later.async_evd();
    let heard = later.evd_wait(evd, LONG, 1).map(|(event, _)| event);
    assert_eq!(heard, Ok(Event::Async(AsyncEvent::IaCatastrophic)));
}

#[test]
fn a_dead_device_has_no_more_instances() {
    let mut all = Instances::new([1, 0]);
    let function = all.pair.fabric.function(A);
    all.pair
        .fabric
        .sim
        .inject(&function, &Fault::SurpriseRemoval);
    let Instance { ia, .. } = &mut all.of[A][0];
    let evd = ia.async_evd();
    ia.evd_wait(evd, LONG, 1).expect("IA_CATASTROPHIC");
    let again = Adapter::of(ia).instance(IaConfig::default());
    assert!(matches!(again, Err(OpenError::BringUp { .. })));
}

impl Instances {
    /// Has an instance of B listen at the shared service point, with an EVD that has room for this many events.
    fn listen_with_room(&mut self, at: usize, room: usize) -> EvdHandle {
        let ia = &mut self.of[B][at].ia;
        let evd = ia
            .evd_create(1, EvdFlags::CR | EvdFlags::SOFTWARE)
            .expect("an EVD");
        let qlen = ia.evd_query(evd).expect("an EVD").qlen as usize;
        for _ in room..qlen {
            ia.evd_post_se(evd, SoftwareEvent(0)).expect("room");
        }
        ia.psp_create_shared(ELSEWHERE, evd, PspFlags::CONSUMER)
            .expect("listens");
        evd
    }

    /// Makes a shared service point of the two instances of B, and connects A's to it. The second instance receives the
    /// request for the first, which makes no call. Returns the first instance's part of the service point.
    fn request_for_the_first(&mut self) -> PspHandle {
        let [first, _] = [0, 1].map(|at| {
            let Instance { ia, events, .. } = &mut self.of[B][at];
            ia.psp_create_shared(ELSEWHERE, *events, PspFlags::CONSUMER)
                .expect("listens")
        });
        let [a, b] = &mut self.of;
        a[0].connect(&b[0], ELSEWHERE);
        for _ in 0..100 {
            self.of[B][1].ia.progress();
            self.of[A][0].ia.progress();
            self.pair.fabric.pass_time();
        }
        assert!(self.of[B][1].event().is_none(), "it is for the first");
        first
    }
}

/// If an instance with an undequeued request to a shared service point is closed, another instance of the service point
/// gets the request.
#[test]
fn a_request_that_an_instance_leaves_behind_is_for_another_that_listens_there() {
    let mut all = Instances::new([1, 2]);
    all.request_for_the_first();
    ia_close(all.of[B].remove(0).ia, CloseFlags::Abrupt).expect("closed");
    assert!(matches!(all.wait(B, 0), Event::ConnectionRequest(_)));
}

/// If an instance frees its part of a shared service point before it handles a request, another instance of the service
/// point gets the request.
#[test]
fn a_request_to_a_freed_part_of_a_shared_service_point_is_for_another_instance() {
    let mut all = Instances::new([1, 2]);
    let first = all.request_for_the_first();
    all.of[B][0].ia.psp_free(first).expect("freed");
    let Event::ConnectionRequest(request) = all.wait(B, 1) else {
        panic!("a request");
    };
    let to = &mut all.of[B][1];
    to.ia
        .cr_accept(request.cr, Some(to.ep), b"")
        .expect("accepted");
    all.established(0, 1);
}

/// If the EVD of one instance of a shared service point is full, another instance gets the request. If the EVDs of both
/// are full, the request is declined.
#[test]
fn a_request_that_one_instance_has_no_room_for_is_for_another_at_the_service_point() {
    let mut all = Instances::new([2, 2]);
    // The first instance that listens gets the first request, because none has a connection.
    all.listen_with_room(0, 0);
    let second = all.listen_with_room(1, 1);
    for at in 0..2 {
        let [a, b] = &mut all.of;
        a[at].connect(&b[0], ELSEWHERE);
        for _ in 0..1000 {
            all.pump();
        }
    }
    assert!(all.of[A][0].event().is_none(), "its request is undecided");
    let declined = all.of[A][1].event();
    assert!(
        matches!(declined, Some(Event::Connection(c)) if c.kind == ConnectionEventKind::NonPeerRejected),
        "{declined:?}"
    );
    let ia = &mut all.of[B][1].ia;
    let events = std::iter::from_fn(|| ia.evd_dequeue(second).ok().flatten());
    let requests = events.filter(|event| matches!(event, Event::ConnectionRequest(_)));
    assert_eq!(requests.count(), 1);
}

/// If the instance that a request was handed to closes before it handles the request, a third instance gets it.
#[test]
fn a_request_that_was_handed_on_outlives_the_close_of_the_instance_that_got_it() {
    let mut all = Instances::new([1, 3]);
    all.listen_with_room(0, 0);
    for at in [1, 2] {
        let Instance { ia, events, .. } = &mut all.of[B][at];
        ia.psp_create_shared(ELSEWHERE, *events, PspFlags::CONSUMER)
            .expect("listens");
    }
    let [a, b] = &mut all.of;
    a[0].connect(&b[0], ELSEWHERE);
    // The first instance hands the request to the second, which makes no call.
    for _ in 0..100 {
        all.of[B][0].ia.progress();
        all.of[A][0].ia.progress();
        all.pair.fabric.pass_time();
    }
    assert!(all.of[B][2].event().is_none(), "it is for the second");
    ia_close(all.of[B].remove(1).ia, CloseFlags::Abrupt).expect("closed");
    assert!(matches!(all.wait(B, 1), Event::ConnectionRequest(_)));
}

#[test]
fn every_instance_hears_of_the_end_of_the_device() {
    let mut all = Instances::new([3, 0]);
    let function = all.pair.fabric.function(A);
    all.pair
        .fabric
        .sim
        .inject(&function, &Fault::SurpriseRemoval);
    for at in 0..3 {
        let Instance { ia, .. } = &mut all.of[A][at];
        let evd = ia.async_evd();
        let heard = ia.evd_wait(evd, LONG, 1).map(|(event, _)| event);
        assert_eq!(heard, Ok(Event::Async(AsyncEvent::IaCatastrophic)));
    }
}

/// A connection request that one instance receives for another instance is returned by the other instance's next wait.
#[test]
fn what_one_instance_takes_in_wakes_the_other() {
    let mut all = Instances::new([1, 2]);
    all.listen(0, ELSEWHERE);
    let [a, b] = &mut all.of;
    a[0].connect(&b[0], ELSEWHERE);
    // Only the second instance of B polls. It receives the connection request for the first instance.
    for _ in 0..100 {
        all.of[B][1].ia.progress();
        all.of[A][0].ia.progress();
        all.pair.fabric.pass_time();
    }
    let first = &mut all.of[B][0];
    let waited = first
        .ia
        .evd_wait(first.events, NOW, 1)
        .map(|(event, _)| event);
    assert!(
        matches!(waited, Ok(Event::ConnectionRequest(_))),
        "{waited:?}"
    );
}

/// Instances are sent to threads, and work there at the same time.
#[test]
fn each_thread_has_an_instance() {
    let mut all = Instances::new([4, 4]);
    for at in 0..4 {
        all.listen(at, beside(at as u64));
        all.connect(at, at, beside(at as u64));
    }
    let targets: Vec<RmrTriplet> = all.of[B].iter().map(|to| to.remote).collect();
    let of_a = std::mem::take(&mut all.of[A]);
    let threads = of_a.into_iter().zip(targets).map(|(mut from, target)| {
        thread::spawn(move || {
            for cookie in 0..500 {
                from.ia
                    .ep_post_rdma_write(from.ep, &[from.all], DtoCookie(cookie), &target, NONE)
                    .expect("posted");
                let (event, _) = from.ia.evd_wait(from.events, LONG, 1).expect("done");
                let Event::Dto(done) = event else {
                    panic!("{event:?}");
                };
                assert_eq!((done.cookie.0, done.status), (cookie, DtoStatus::Success));
                if cookie % 50 == 0 {
                    // The registrations make commands of several instances overlap.
                    let lmr = from
                        .ia
                        .lmr_create(from.memory.clone(), from.pz, MemPrivFlags::all());
                    from.ia.lmr_free(lmr.expect("an LMR").lmr).expect("freed");
                }
            }
            from
        })
    });
    let threads: Vec<_> = threads.collect();
    all.of[A] = threads
        .into_iter()
        .map(|thread| thread.join().expect("no panic"))
        .collect();
    all.pair.assert_no_complaints();
}
