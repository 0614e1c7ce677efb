//! Several instances of an adapter, which are parked and resumed together.

use super::*;
use crate::handle::AnyHandle;
use crate::mock::Step;
use crate::provider::ProviderEvent;

/// Number of instances of the adapter.
const INSTANCES: usize = 3;
const SHARED: ConnQual = ConnQual(0x1_0000_0055);

/// An adapter with several instances, each connected to a peer of its own, and all of them at a shared listener.
struct Several {
    net: Net,
    sides: Vec<Side>,
    peers: Vec<Side>,
}

/// Opens a further instance of a side's adapter, with objects of its own.
fn further(net: &Net, first: &Side) -> Side {
    let opened = first.ia.opened();
    let ia = opened.instance(net.instance_of(0), IaConfig::default());
    Side::on(ia.expect("opens"), |_| {})
}

impl Several {
    fn new() -> Self {
        let net = Net::default();
        let mut sides = vec![Side::new(&net, |_| {})];
        // An instance that ends leaves an index that nobody has.
        let gone = further(&net, &sides[0]);
        while sides.len() < INSTANCES {
            sides.push(further(&net, &sides[0]));
        }
        gone.ia.close(CloseFlags::Abrupt).expect("closed");
        let mut peers = Vec::new();
        for side in &mut sides {
            let mut peer = Side::new(&net, |_| {});
            connect(side, &mut peer);
            peers.push(peer);
        }
        for side in &mut sides {
            side.ia
                .psp_create_shared(SHARED, side.connect, PspFlags::CONSUMER)
                .expect("they share it");
            let own = ConnQual(SHARED.0 + u64::from(side.recv.to_raw().1) + 1);
            side.ia
                .psp_create(own, side.connect, PspFlags::CONSUMER)
                .expect("listens");
        }
        Self { net, sides, peers }
    }

    /// Takes the instances of the sides, in the order of the sides.
    fn taken(sides: Vec<Side>) -> (Vec<Ia<Mock>>, Vec<Without>) {
        sides.into_iter().map(Side::without).unzip()
    }

    /// Returns the sides with other instances.
    fn again(ias: Vec<Ia<Mock>>, rest: Vec<Without>) -> Vec<Side> {
        assert_eq!(ias.len(), rest.len());
        let both = ias.into_iter().zip(rest);
        both.map(|(ia, rest)| rest(ia)).collect()
    }

    /// Sends a message on each connection, in both directions.
    fn talk(&mut self) {
        for (cookie, (side, peer)) in (1..).zip(self.sides.iter_mut().zip(&mut self.peers)) {
            pass(side, peer, cookie);
            pass(peer, side, cookie);
        }
    }

    /// Ends the connections: the events reach the instances that have them.
    fn end(mut self) {
        for (side, peer) in self.sides.iter_mut().zip(&mut self.peers) {
            peer.ia
                .ep_disconnect(peer.ep, CloseFlags::Graceful)
                .expect("ends");
            progress_both(side, peer);
        }
        for (side, peer) in self.sides.iter_mut().zip(&mut self.peers) {
            progress_both(side, peer);
            assert_eq!(
                side.connection_events(),
                [ConnectionEventKind::Disconnected]
            );
        }
        for side in self.sides {
            side.ia.close(CloseFlags::Abrupt).expect("closed");
        }
    }
}

/// Sends a message.
fn pass(from: &mut Side, to: &mut Side, cookie: u64) {
    to.post_recv(cookie).expect("posts");
    from.send(cookie, NO_FLAGS).expect("posts");
    let success = [(cookie, DtoStatus::Success)];
    assert_eq!(from.completions(from.request), success);
    assert_eq!(to.completions(to.recv), success);
}

/// A side without its instance.
type Without = Box<dyn FnOnce(Ia<Mock>) -> Side>;

impl Side {
    fn without(self) -> (Ia<Mock>, Without) {
        let Self {
            ia,
            pz,
            lmr,
            recv,
            request,
            connect,
            ep,
        } = self;
        let again = move |ia| Self {
            ia,
            pz,
            lmr,
            recv,
            request,
            connect,
            ep,
        };
        (ia, Box::new(again))
    }

    fn number(&self) -> u32 {
        self.recv.to_raw().1
    }
}

/// Parks instances, which is refused. Returns them and the text of the reason.
fn refused(ias: Vec<Ia<Mock>>) -> (Vec<Ia<Mock>>, String) {
    let refused = Ia::park_all(ias).map(drop).expect_err("cannot be parked");
    let NotParked { ias, error } = *refused;
    (ias, error.to_string())
}

fn numbers(ias: &[Ia<Mock>]) -> Vec<u32> {
    ias.iter().map(|ia| ia.async_evd().to_raw().1).collect()
}

#[test]
fn instances_of_an_adapter_go_on_together_in_the_order_in_which_they_were_given() {
    let mut all = Several::new();
    all.talk();
    all.sides.reverse();
    all.peers.reverse();
    let (ias, rest) = Several::taken(all.sides);
    let before = numbers(&ias);
    let (snapshot, handover) = Ia::park_all(ias).expect("parks");
    assert_eq!(snapshot.instances.len(), INSTANCES);
    let ias = Ia::resume_all(&snapshot, handover, &()).expect("resumes");
    assert_eq!(numbers(&ias), before);
    assert_eq!(ias[0].instances(), INSTANCES);
    let (again, handover) = Ia::park_all(ias).expect("parks");
    assert_eq!(again, snapshot);
    let ias = Ia::resume_all(&again, handover, &()).expect("resumes");
    all.sides = Several::again(ias, rest);
    all.talk();
    // Requests go to each instance at its own listener, and to all of them at the shared one.
    for at in 0..INSTANCES {
        let (side, peer) = (&mut all.sides[at], &mut all.peers[at]);
        let own = ConnQual(SHARED.0 + u64::from(side.number()) + 1);
        for service in [own, SHARED] {
            let evds = EpEvds::NONE.recv(peer.recv).request(peer.request);
            let ep = peer
                .ia
                .ep_create(Some(peer.pz), evds.connect(peer.connect), None)
                .expect("an EP");
            let (qos, flags) = (Qos::BEST_EFFORT, ConnectFlags::empty());
            let whom = side.address();
            peer.ia
                .ep_connect(ep, whom, service, Timeout::INFINITE, b"", qos, flags)
                .expect("connects");
            peer.ia.progress();
            side.ia.progress();
        }
        let events = side.events(side.connect);
        let own_ones = events
            .iter()
            .filter(|event| matches!(event, Event::ConnectionRequest(it) if it.conn_qual == own));
        assert_eq!(own_ones.count(), 1, "{events:?}");
    }
}

#[test]
fn connections_end_at_the_instances_that_have_them() {
    let mut all = Several::new();
    let (ias, rest) = Several::taken(all.sides);
    let (snapshot, handover) = Ia::park_all(ias).expect("parks");
    let ias = Ia::resume_all(&snapshot, handover, &()).expect("resumes");
    all.sides = Several::again(ias, rest);
    all.end();
}

#[test]
fn a_list_that_is_not_all_instances_of_one_adapter_is_refused_and_all_go_on() {
    let mut all = Several::new();
    let missing = all.sides.pop().expect("an instance");
    let name = missing.number();
    let (ias, mut rest) = Several::taken(all.sides);
    let before = numbers(&ias);
    let (mut ias, text) = refused(ias);
    assert_eq!(numbers(&ias), before);
    let wanted = format!("the adapter has 3 instances, and 2 were given: give IA {name}, too");
    assert!(text.starts_with(&wanted), "{text}");
    // An instance of another adapter.
    let (missing, last) = missing.without();
    ias.push(missing);
    rest.push(last);
    let stranger = Side::new(&all.net, |_| {});
    let other = stranger.number();
    ias.push(stranger.ia);
    let before = numbers(&ias);
    let (mut ias, text) = refused(ias);
    assert_eq!(numbers(&ias), before);
    assert!(
        text.starts_with(&format!("IA {other} is of another adapter")),
        "{text}"
    );
    drop(ias.pop());
    assert_eq!(refused(Vec::new()).1, "no instance was given");
    all.sides = Several::again(ias, rest);
    all.talk();
    all.end();
}

#[test]
fn more_instances_than_a_snapshot_has_room_for_are_refused() {
    let net = Net::default();
    let first = Side::new(&net, |_| {});
    let opened = first.ia.opened();
    let mut ias = vec![first.ia];
    while ias.len() < MAX_INSTANCES {
        let ia = opened.instance(net.instance_of(0), IaConfig::default());
        ias.push(ia.expect("opens"));
    }
    let (mut snapshot, handover) = Ia::park_all(ias).expect("parks");
    let mut twice = snapshot.instances[0].clone();
    twice.number += 1 << 20;
    snapshot.instances.push(twice);
    let refused = Ia::check_all(&snapshot, handover)
        .map(drop)
        .expect_err("61");
    assert!(
        refused
            .error
            .to_string()
            .contains("instances is 61, at most 60")
    );
    snapshot.instances.pop();
    let handover = refused.handover.expect("the device goes on");
    let mut ias = Ia::resume_all(&snapshot, handover, &()).expect("resumes");
    let opened = ias[0].opened();
    let more = opened.instance(net.instance_of(0), IaConfig::default());
    ias.push(more.expect("opens"));
    let text = self::refused(ias).1;
    assert_eq!(
        text,
        "61 instances were given; at most 60 are parked together"
    );
}

#[test]
fn a_thread_that_waits_in_one_instance_is_refused_by_the_name_of_its_object() {
    let mut all = Several::new();
    let side = &mut all.sides[1];
    let wait = side.ia.evd_wait_begin(side.recv, Timeout::INFINITE, 1);
    let (wait, name) = (wait.expect("waits"), side.recv);
    let (ias, rest) = Several::taken(all.sides);
    let (ias, text) = refused(ias);
    assert_eq!(text, format!("a thread waits on {name:?}"));
    all.sides = Several::again(ias, rest);
    all.sides[1].ia.evd_wait_cancel(wait);
    all.talk();
    let (ias, _) = Several::taken(all.sides);
    let _parked = Ia::park_all(ias).expect("parks");
}

/// The instances go on in the same process, on the same adapter, with their numbers.
#[test]
fn instances_whose_parking_is_refused_at_any_step_go_on_with_their_numbers() {
    let mut all = Several::new();
    for step in [Step::Begin, Step::Finish] {
        let opened = all.sides[0].ia.opened();
        let (ias, rest) = Several::taken(all.sides);
        let before = numbers(&ias);
        all.net.refuse_parking(step);
        let (ias, text) = refused(ias);
        assert!(text.contains("is refused by the test"), "{text}");
        assert_eq!(numbers(&ias), before);
        assert_eq!(opened.counters().expect("the same adapter").1, INSTANCES);
        all.sides = Several::again(ias, rest);
        all.talk();
    }
    // If it cannot be undone, the device is stopped.
    all.net.refuse_parking(Step::Finish);
    all.net.refuse_parking(Step::Cancel);
    let (ias, _) = Several::taken(all.sides);
    assert!(refused(ias).0.is_empty());
}

type Lie = (&'static str, fn(&mut IaSnapshot<Mock>));

/// Instances that no adapter has: they are refused before the claim, and their numbers are free again.
#[test]
fn snapshots_whose_instances_contradict_each_other_are_refused() {
    let lies: [Lie; 9] = [
        ("there is none", |it| it.instances.clear()),
        ("is there twice", |it| {
            it.instances[2].number = it.instances[0].number;
        }),
        ("the instances: 2 have tables, and the device has 3", |it| {
            it.instances.pop();
        }),
        ("is of instance 3 of 3", |it| {
            it.adapter.cm.conns[0].owner = Some(3);
        }),
        ("does not exist, or has another user", |it| {
            let conn = it.adapter.cm.conns.iter_mut();
            let mut conn = conn.filter(|conn| conn.owner == Some(0));
            conn.next().expect("a connection").owner = Some(1);
        }),
        ("does not exist, or has another user", |it| {
            let conn = it.instances[0].eps.objects[0].conn;
            it.instances[1].eps.objects[0].conn = conn;
        }),
        ("and does not share it", |it| {
            let psps = &mut it.instances[1].psps.objects;
            psps.iter_mut().for_each(|psp| psp.is_shared = false);
        }),
        ("and does not share it", |it| {
            let psps = &mut it.instances[1].psps.objects;
            (psps[1].listen, psps[1].conn_qual) = (psps[0].listen, psps[0].conn_qual);
        }),
        ("is of another IA", |it| it.instances.swap(1, 2)),
    ];
    for (expected, lie) in lies {
        let Several { net, sides, peers } = Several::new();
        let (ias, _rest) = Several::taken(sides);
        let before = numbers(&ias);
        let (snapshot, handover) = Ia::park_all(ias).expect("parks");
        let mut changed = snapshot.clone();
        lie(&mut changed);
        if expected == "is of another IA" {
            let number = changed.instances[1].number;
            changed.instances[1].number = changed.instances[2].number;
            changed.instances[2].number = number;
        }
        let refused = Ia::check_all(&changed, handover).map(drop);
        let Err(refused) = refused else {
            panic!("{expected}");
        };
        let text = refused.error.to_string();
        assert!(text.contains(expected), "{text}, and not {expected}");
        let handover = refused.handover.expect("the device goes on");
        let ias = Ia::resume_all(&snapshot, handover, &()).expect("the numbers are free");
        assert_eq!(numbers(&ias), before);
        drop((ias, net, peers));
    }
}

/// One of several numbers is in use.
#[test]
fn numbers_of_instances_are_taken_all_or_none() {
    let Several { net, sides, .. } = Several::new();
    let (ias, _rest) = Several::taken(sides);
    let (snapshot, handover) = Ia::park_all(ias).expect("parks");
    let other = Side::new(&net, |_| {});
    let mut changed = snapshot.clone();
    changed.instances[2].number = other.number();
    let refused = Ia::check_all(&changed, handover).map(drop);
    let NotResumed { handover, error } = *refused.expect_err("in use");
    let number = other.number();
    assert_eq!(error, ResumeError::Number { number });
    let handover = handover.expect("the device goes on");
    let count = INSTANCES;
    let refused = Ia::resume(&snapshot, handover, &()).map(drop);
    let NotResumed { handover, error } = *refused.expect_err("several");
    assert_eq!(error, ResumeError::Instances { count });
    let handover = handover.expect("the device goes on");
    let ias = Ia::resume_all(&snapshot, handover, &());
    assert_eq!(ias.expect("resumes").len(), INSTANCES);
}

/// A wrong value of one instance is named with the instance.
#[test]
fn an_error_names_the_instance_that_it_is_about() {
    let Several {
        sides,
        peers: _peers,
        ..
    } = Several::new();
    let (ias, _rest) = Several::taken(sides);
    let (mut snapshot, handover) = Ia::park_all(ias).expect("parks");
    snapshot.instances[1].wakeups = u64::MAX;
    let number = snapshot.instances[1].number;
    let refused = Ia::check_all(&snapshot, handover).map(drop);
    let text = refused.expect_err("too many").error.to_string();
    let wanted = format!("snapshot of IA {number}: the counters: wakeups is ");
    assert!(text.starts_with(&wanted), "{text}");
}

/// Events of the device, contexts and further asynchronous EVDs stay with their instances.
#[test]
fn what_an_instance_has_beside_connections_stays_with_it() {
    let mut all = Several::new();
    let mut bound = Vec::new();
    for (context, side) in (7..).zip(&mut all.sides) {
        let evd = side.ia.evd_create(4, EvdFlags::ASYNC).expect("an EVD");
        side.ia.async_evd_bind(evd).expect("bound");
        side.ia
            .set_consumer_context(AnyHandle::Ia, context)
            .expect("set");
        bound.push(evd);
    }
    let (ias, rest) = Several::taken(all.sides);
    let (snapshot, handover) = Ia::park_all(ias).expect("parks");
    let ias = Ia::resume_all(&snapshot, handover, &()).expect("resumes");
    all.sides = Several::again(ias, rest);
    let second = all.sides[1].ia.provider().node;
    all.net
        .report(second, ProviderEvent::Network(NetworkEvent::PortDown));
    for (at, side) in all.sides.iter_mut().enumerate() {
        side.ia.progress();
        let context = side.ia.get_consumer_context(AnyHandle::Ia);
        assert_eq!(context, Ok(7 + at as u64));
        let events = side.events(side.ia.async_evd());
        assert_eq!(events.len(), usize::from(at == 1), "{events:?}");
        assert_eq!(side.ia.evd_query(bound[at]).expect("exists").qlen, 4);
    }
}
