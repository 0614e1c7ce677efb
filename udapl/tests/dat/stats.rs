//! Counters of adapters, instances, endpoints, EVDs and SRQs, and of the device.

use std::time::Duration;

use hw_sim::{Fault, Faults, LinkFaults};
use udapl::counters::{DeviceCounters, EpStats};
use udapl::error::OpenError;
use udapl::{Adapter, CloseFlags, DtoCookie, DtoStatus};

use crate::support::{A, B, NONE, Pair, PairConfig};

/// Size of a message that needs many packets, in bytes.
const LONG_MESSAGE: usize = 64 << 10;

/// Connects both sides, and sends `messages` messages of [`LONG_MESSAGE`] bytes from A to B.
fn sent(config: &PairConfig, messages: usize) -> Pair {
    let mut pair = Pair::connected_with(config);
    let (from, to) = (pair.buffer(A, LONG_MESSAGE), pair.buffer(B, LONG_MESSAGE));
    for _ in 0..messages {
        pair.send(&from, &to, LONG_MESSAGE);
    }
    pair
}

fn device(pair: &Pair, side: usize) -> DeviceCounters {
    let stats = Adapter::of(&pair.sides[side].ia).stats();
    stats.expect("an adapter that is open").device
}

/// Returns the error counters of a side's queue pairs that are not 0: name and count.
fn error_counters(pair: &Pair, side: usize) -> Vec<(&'static str, u64)> {
    const ASKED_FOR: [&str; 3] = [
        "rx_write_requests",
        "rx_read_requests",
        "rx_atomic_requests",
    ];
    let counters = device(pair, side).queue.expect("a counter set");
    let named: Vec<_> = counters.named().collect();
    named
        .into_iter()
        .filter(|(name, times)| *times != 0 && !ASKED_FOR.contains(name))
        .collect()
}

#[test]
fn a_good_wire_leaves_the_troubles_of_queue_pairs_at_zero_and_counts_frames() {
    let pair = sent(&PairConfig::default(), 3);
    assert_eq!(
        (error_counters(&pair, A), error_counters(&pair, B)),
        (vec![], vec![])
    );
    let [a, b] = [A, B].map(|side| device(&pair, side).vport.expect("a vport that counts"));
    let bytes = 3 * LONG_MESSAGE as u64;
    assert!(a.tx_vport_rdma_unicast_bytes > bytes, "{a:?}");
    assert_eq!(
        (
            b.rx_vport_rdma_unicast_packets,
            b.rx_vport_rdma_unicast_bytes
        ),
        (
            a.tx_vport_rdma_unicast_packets,
            a.tx_vport_rdma_unicast_bytes
        ),
        "what the one has sent the other has received"
    );
    let port = device(&pair, B).port.expect("a port that may be asked");
    assert!(port.rx_bytes_phy >= b.rx_vport_rdma_unicast_bytes);
    let priorities = device(&pair, B).priorities.expect("likewise");
    let all: u64 = priorities.iter().map(|one| one.rx_bytes).sum();
    assert_eq!(all, port.rx_bytes_phy);
    pair.assert_no_complaints();
}

#[test]
fn a_wire_that_loses_packets_is_seen_in_the_counters_of_both_sides() {
    let lossy = Faults {
        loss_ppm: 50_000,
        ..Faults::default()
    };
    let config = PairConfig {
        faults: LinkFaults {
            a_to_b: lossy,
            b_to_a: lossy,
        },
        ..PairConfig::default()
    };
    let pair = sent(&config, 20);
    let names = |side| {
        let error_counters = error_counters(&pair, side).into_iter();
        error_counters.map(|(name, _)| name).collect::<Vec<_>>()
    };
    let (a, b) = (names(A), names(B));
    assert!(a.contains(&"packet_seq_err"), "{a:?}");
    assert!(b.contains(&"out_of_sequence"), "{b:?}");
    assert!(b.contains(&"duplicate_request"), "{b:?}");
}

#[test]
fn a_device_that_does_not_tell_has_no_counters_and_is_open_all_the_same() {
    const ALLOC_Q_COUNTER: u16 = 0x771;
    const QUERY_VPORT_COUNTER: u16 = 0x770;
    const ACCESS_REG: u16 = 0x805;
    let pair = Pair::unconnected(&PairConfig::default());
    let Some(fabric) = pair.fabric.simulated() else {
        return;
    };
    let refuse = |opcode, count| {
        let fault = Fault::CommandFailure {
            opcode: Some(opcode),
            status: 3,
            syndrome: 0,
            count,
        };
        fabric.sim.inject(&fabric.function(A), &fault);
    };
    refuse(QUERY_VPORT_COUNTER, 1);
    refuse(ACCESS_REG, 2);
    let counters = device(&pair, A);
    assert!(counters.queue.is_some());
    assert_eq!(
        (counters.vport, counters.port, counters.priorities),
        (None, None, None)
    );
    let Pair {
        sides: [a, _b],
        fabric,
        ..
    } = pair;
    let options = udapl::fabric::Fabric::options(A);
    udapl::ia_close(a.ia, CloseFlags::Abrupt).expect("closes");
    let simulated = fabric.simulated().expect("as above");
    let fault = Fault::CommandFailure {
        opcode: Some(ALLOC_Q_COUNTER),
        status: 3,
        syndrome: 0,
        count: 1,
    };
    simulated.sim.inject(&simulated.function(A), &fault);
    let ia = fabric.open_side(A, &options).expect("opens without");
    let stats = Adapter::of(&ia).stats().expect("open");
    assert!(stats.device.queue.is_none() && stats.device.vport.is_some());
}

#[test]
fn an_adapter_counts_its_commands_regions_and_connections() {
    let mut pair = sent(&PairConfig::default(), 1);
    let adapter = Adapter::of(&pair.sides[B].ia);
    let before = adapter.stats().expect("open");
    let named = |name| {
        let all = before.commands.iter();
        let mut of = all.filter(|command| command.name == Some(name));
        *of.next().unwrap_or_else(|| panic!("no {name}"))
    };
    let create = named("CREATE_MKEY");
    assert_eq!(create.refused, 0);
    assert!(create.answered >= before.registrations);
    assert!(create.longest <= create.time);
    assert_eq!(
        (before.instances, before.regions, before.registered_bytes),
        (1, 1, LONG_MESSAGE as u64)
    );
    assert!(before.firmware_pages > 0);
    let connections = before.connections;
    assert_eq!(
        (
            connections.requests,
            connections.accepted,
            connections.established,
            connections.refused_by_us.total(),
        ),
        (1, 1, 1, 0)
    );
    slow_registration(&mut pair);
    pair.disconnect();
    let after = adapter.stats().expect("open").connections;
    assert_eq!((after.established, after.ended), (1, 1));
}

/// Delays one CREATE_MKEY of B by 7 ms. Checks that the counters report at least 7 ms as the longest CREATE_MKEY.
fn slow_registration(pair: &mut Pair) {
    const CREATE_MKEY: u16 = 0x200;
    const SLOW: Duration = Duration::from_millis(7);
    let Some(fabric) = pair.fabric.simulated() else {
        return;
    };
    let fault = Fault::CommandDelay {
        opcode: Some(CREATE_MKEY),
        delay: SLOW,
        count: 1,
    };
    fabric.sim.inject(&fabric.function(B), &fault);
    pair.buffer(B, 4096);
    let stats = Adapter::of(&pair.sides[B].ia).stats().expect("open");
    let mut of = stats.commands.iter();
    let create = of.find(|command| command.opcode == CREATE_MKEY);
    let create = create.expect("one was sent");
    assert!(create.longest >= SLOW && create.time >= create.longest);
}

#[test]
fn a_closed_adapter_has_no_stats() {
    let Pair { sides: [a, _b], .. } = Pair::unconnected(&PairConfig::default());
    let adapter = Adapter::of(&a.ia);
    udapl::ia_close(a.ia, CloseFlags::Abrupt).expect("closes");
    assert!(matches!(adapter.stats(), Err(OpenError::Closed { .. })));
}

#[test]
fn who_asks_while_an_adapter_is_closed_leaves_nothing_behind_on_the_device() {
    for _ in 0..16 {
        let Pair { sides: [a, _b], .. } = Pair::unconnected(&PairConfig::default());
        let adapter = Adapter::of(&a.ia);
        let report = std::thread::scope(|scope| {
            scope.spawn(move || while adapter.stats().is_ok() {});
            udapl::ia_close(a.ia, CloseFlags::Abrupt)
        });
        let report = report.expect("closes");
        assert_eq!((report.instances_left, report.objects_left), (0, vec![]));
    }
}

/// Returns the counters of a side's endpoint.
fn ep(pair: &Pair, side: usize) -> EpStats {
    let side = &pair.sides[side];
    side.ia.ep_stats(side.ep).expect("it exists")
}

#[test]
fn an_endpoint_counts_what_is_posted_and_what_arrives_and_its_instance_all_of_them() {
    let bytes = 3 * LONG_MESSAGE as u64;
    let pair = sent(&PairConfig::default(), 3);
    let (a, b) = (ep(&pair, A), ep(&pair, B));
    assert_eq!((a.requests, a.request_bytes, a.doorbells), (3, bytes, 3));
    assert_eq!((b.recvs, b.received_bytes), (3, bytes));
    assert_eq!((b.requests, a.recvs, a.received_bytes), (0, 0, 0));
    for one in [a, b] {
        assert_eq!(
            (one.requests_failed.total(), one.recvs_failed.total()),
            (0, 0)
        );
        assert_eq!((one.full, one.requests_outstanding), (0, 0));
    }
    for (side, evd, stats) in [(A, pair.sides[A].request, a), (B, pair.sides[B].recv, b)] {
        let ia = &pair.sides[side].ia;
        let queue = ia.evd_stats(evd).expect("it exists");
        assert_eq!(
            (queue.completions, queue.overflows, queue.waiting),
            (3, 0, 0)
        );
        let all = ia.stats();
        assert_eq!((all.traffic, all.completions), (stats, 3));
        assert_eq!((all.eps, all.evds, all.srqs, all.lmrs), (1, 5, 0, 1));
    }
}

#[test]
fn a_batch_has_one_doorbell_and_a_post_behind_it_that_is_made_in_order_rings_for_it() {
    let mut pair = Pair::connected();
    let (from, to) = (pair.buffer(A, 64), pair.buffer(B, 64));
    let side = &mut pair.sides[A];
    let write = |batch: &mut udapl::endpoint::Batch<'_, dat_mlx::MlxProvider>, cookie: u64| {
        let remote = to.all_remote();
        batch.rdma_write(&[from.all()], DtoCookie(cookie), &remote, NONE)
    };
    let posted = side
        .ia
        .batch(side.ep, |batch| (0..16).try_for_each(|at| write(batch, at)));
    posted.expect("there is room");
    assert_eq!((ep(&pair, A).requests, ep(&pair, A).doorbells), (16, 1));
    let side = &mut pair.sides[A];
    let two = [from.part(0, 8), from.part(8, 8)];
    let posted = side.ia.batch(side.ep, |batch| {
        write(batch, 16)?;
        batch.rdma_write(&two, DtoCookie(17), &to.all_remote(), NONE)?;
        write(batch, 18)
    });
    posted.expect("there is room");
    assert_eq!((ep(&pair, A).requests, ep(&pair, A).doorbells), (19, 3));
    assert_eq!(ep(&pair, A).request_bytes, 18 * 64 + 16);
}

#[test]
fn posts_without_room_are_counted_and_what_is_flushed_by_status() {
    let mut pair = Pair::connected();
    let buffer = pair.buffer(A, 64);
    for cookie in 0..64 {
        pair.post_recv(A, &[buffer.all()], cookie, NONE)
            .expect("room for 64");
    }
    let refused = pair.post_recv(A, &[buffer.all()], 64, NONE);
    assert!(refused.is_err(), "there is no room for more");
    assert_eq!((ep(&pair, A).recvs, ep(&pair, A).full), (64, 1));
    assert_eq!(ep(&pair, A).recvs_outstanding, 64);
    pair.disconnect();
    for cookie in 0..64 {
        pair.expect_recv(A, cookie, DtoStatus::ErrFlushed);
    }
    let stats = ep(&pair, A);
    assert_eq!(stats.recvs_failed.of(DtoStatus::ErrFlushed), 64);
    assert_eq!(
        (stats.recvs_failed.total(), stats.recvs_outstanding),
        (64, 0)
    );
    let named: Vec<_> = stats
        .recvs_failed
        .each()
        .filter(|(_, times)| *times != 0)
        .collect();
    assert_eq!(named, [(DtoStatus::ErrFlushed, 64)]);
}

#[test]
fn a_reset_loses_no_count_and_an_instance_counts_endpoints_that_are_no_more() {
    let mut pair = sent(&PairConfig::default(), 2);
    let (a, b) = (pair.sides[A].ep, pair.sides[B].ep);
    pair.disconnect();
    let before = [ep(&pair, A), ep(&pair, B)];
    pair.sides[A].ia.ep_reset(a).expect("DISCONNECTED");
    pair.sides[B].ia.ep_reset(b).expect("DISCONNECTED");
    assert_eq!([ep(&pair, A), ep(&pair, B)], before);
    pair.connect();
    let (from, to) = (pair.buffer(A, 100), pair.buffer(B, 100));
    pair.send(&from, &to, 100);
    let bytes = 2 * LONG_MESSAGE as u64 + 100;
    let last = ep(&pair, A);
    assert_eq!((last.requests, last.request_bytes), (3, bytes));
    assert_eq!(ep(&pair, B).received_bytes, bytes);
    pair.sides[A].ia.ep_free(a).expect("it goes");
    let all = pair.sides[A].ia.stats();
    assert_eq!((all.traffic, all.eps), (last, 0));
}

#[test]
fn messages_that_take_buffers_of_an_srq_are_their_endpoints() {
    let config = PairConfig {
        srq: Some(8),
        ..PairConfig::default()
    };
    let mut pair = Pair::connected_with(&config);
    let (from, to) = (pair.buffer(A, 64), pair.buffer(B, 64));
    let srq = pair.srq.expect("an SRQ");
    for cookie in 0..8 {
        let posted = pair.sides[B]
            .ia
            .srq_post_recv(srq, &[to.all()], DtoCookie(cookie));
        posted.expect("room for eight");
    }
    let refused = pair.sides[B]
        .ia
        .srq_post_recv(srq, &[to.all()], DtoCookie(8));
    assert!(refused.is_err(), "there is no room for more");
    for cookie in 0..3 {
        pair.post_send(A, &[from.all()], cookie, NONE)
            .expect("posted");
        assert_eq!(pair.wait_recv(B).status, DtoStatus::Success);
    }
    assert_eq!(
        (ep(&pair, B).recvs, ep(&pair, B).received_bytes),
        (0, 3 * 64)
    );
    let queue = pair.sides[B].ia.srq_stats(srq).expect("it exists");
    assert_eq!((queue.posted, queue.outstanding, queue.full), (8, 5, 1));
}
