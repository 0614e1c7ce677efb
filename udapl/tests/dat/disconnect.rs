//! The end of a connection, by either side or both, gracefully or abruptly, and the endpoint's use afterwards.

use hw_sim::{Fault, Faults, LinkFaults};
use mlx_prm::Opcode;
use udapl::endpoint::EpState;
use udapl::error::{ReturnType, Subtype};
use udapl::fabric::Fabric;
use udapl::{CloseFlags, ConnectionEventKind as Kind, DtoStatus, MemPrivFlags, PspFlags};

use crate::support::connecting::EMPTY;
use crate::support::{self, A, B, CONN_QUAL, LONG, NONE, Pair, PairConfig, refused};

const FLAGS: [CloseFlags; 2] = [CloseFlags::Abrupt, CloseFlags::Graceful];

/// Either side may disconnect, gracefully or abruptly; the connection ends for both.
///
/// Clauses: DISC-1.
#[test]
fn a_disconnect_ends_the_connection_for_both_whoever_asks_and_however() {
    for side in [A, B] {
        for flags in FLAGS {
            let mut pair = Pair::connected();
            for side in [A, B] {
                pair.receive(side, 1);
                pair.receive(side, 2);
            }
            let ep = pair.sides[side].ep;
            pair.sides[side]
                .ia
                .ep_disconnect(ep, flags)
                .expect("CONNECTED");
            for side in [A, B] {
                pair.expect_end(side, Kind::Disconnected);
                pair.expect_recv(side, 1, DtoStatus::ErrFlushed);
                pair.expect_recv(side, 2, DtoStatus::ErrFlushed);
            }
            // A second disconnect is no error, and gives no event.
            for flags in FLAGS {
                pair.sides[side]
                    .ia
                    .ep_disconnect(ep, flags)
                    .expect("no effect");
            }
            for side in [A, B] {
                pair.expect_nothing(side, pair.sides[side].connect);
            }
            pair.assert_no_complaints();
        }
    }
}

#[test]
fn disconnects_of_both_at_once_end_the_connection_once_for_each() {
    for (one, other) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
        for delay in [0, 500] {
            let mut pair = Pair::connected();
            pair.set_delay(delay);
            for (side, flags) in [(A, FLAGS[one]), (B, FLAGS[other])] {
                pair.receive(side, 1);
                let ep = pair.sides[side].ep;
                pair.sides[side]
                    .ia
                    .ep_disconnect(ep, flags)
                    .expect("CONNECTED");
            }
            for side in [A, B] {
                pair.expect_end(side, Kind::Disconnected);
                pair.expect_recv(side, 1, DtoStatus::ErrFlushed);
            }
            // Wait until long after the last datagram could arrive.
            pair.run_for(2_000);
            for side in [A, B] {
                pair.expect_nothing(side, pair.sides[side].connect);
            }
            pair.assert_no_complaints();
        }
    }
}

/// A graceful disconnect completes the posted requests and refuses new ones.
///
/// Clauses: SEND-29, DISC-2.
#[test]
fn a_graceful_disconnect_finishes_what_was_posted_and_takes_nothing_new() {
    let mut pair = Pair::connected();
    let (from, to) = (pair.buffer(A, 10_000), pair.buffer(B, 10_000));
    from.write(0, &support::pattern(5, 10_000));
    for cookie in 0..4 {
        pair.post_recv(B, &[to.all()], cookie, NONE)
            .expect("posted");
    }
    pair.receive(A, 9);
    pair.set_delay(3_000);
    for cookie in 0..3 {
        pair.post_send(A, &[from.all()], cookie, NONE)
            .expect("posted");
    }
    let ep = pair.sides[A].ep;
    pair.sides[A]
        .ia
        .ep_disconnect(ep, CloseFlags::Graceful)
        .expect("CONNECTED");
    assert_eq!(pair.state(A), EpState::DisconnectPending);
    let error = refused(
        pair.post_send(A, &[from.all()], 7, NONE),
        ReturnType::InvalidState,
    );
    assert_eq!(error.subtype(), Subtype::StateEpDisconnectPending);
    refused(
        pair.post_write(A, &[from.all()], 7, &to.remote(0, 10_000), NONE),
        ReturnType::InvalidState,
    );
    refused(
        pair.post_read(A, &[from.all()], 7, &to.remote(0, 10_000), NONE),
        ReturnType::InvalidState,
    );
    pair.receive(A, 10);
    pair.sides[A]
        .ia
        .ep_disconnect(ep, CloseFlags::Graceful)
        .expect("no effect");
    assert_eq!(pair.state(A), EpState::DisconnectPending);
    for cookie in 0..3 {
        pair.expect_request(A, cookie, DtoStatus::Success);
        pair.expect_recv(B, cookie, DtoStatus::Success);
    }
    assert_eq!(to.read(0, 10_000), support::pattern(5, 10_000));
    pair.expect_end(A, Kind::Disconnected);
    pair.expect_end(B, Kind::Disconnected);
    pair.expect_recv(A, 9, DtoStatus::ErrFlushed);
    pair.expect_recv(A, 10, DtoStatus::ErrFlushed);
    pair.expect_recv(B, 3, DtoStatus::ErrFlushed);
    pair.assert_no_complaints();
}

/// Clauses: DISC-3.
#[test]
fn an_abrupt_disconnect_ends_a_graceful_one_that_takes_too_long() {
    let mut pair = Pair::connected();
    pair.cut();
    for cookie in 0..3 {
        pair.post_send(A, EMPTY, cookie, NONE).expect("posted");
    }
    let ep = pair.sides[A].ep;
    pair.sides[A]
        .ia
        .ep_disconnect(ep, CloseFlags::Graceful)
        .expect("CONNECTED");
    pair.run_for(1);
    assert_eq!(pair.state(A), EpState::DisconnectPending);
    pair.sides[A]
        .ia
        .ep_disconnect(ep, CloseFlags::Abrupt)
        .expect("DISCONNECT_PENDING");
    assert_eq!(pair.state(A), EpState::Disconnected);
    pair.expect_end(A, Kind::Disconnected);
    for cookie in 0..3 {
        pair.expect_request(A, cookie, DtoStatus::ErrFlushed);
    }
    pair.fabric.sim.heal();
    pair.expect_end(B, Kind::Disconnected);
    pair.assert_no_complaints();
}

#[test]
fn a_graceful_disconnect_that_runs_into_an_error_is_a_broken_connection() {
    let mut pair = Pair::connected();
    pair.cut();
    pair.post_send(A, EMPTY, 1, NONE).expect("posted");
    let ep = pair.sides[A].ep;
    pair.sides[A]
        .ia
        .ep_disconnect(ep, CloseFlags::Graceful)
        .expect("CONNECTED");
    pair.expect_end(A, Kind::Broken);
    pair.expect_request(A, 1, DtoStatus::ErrTransport);
}

#[test]
fn a_wire_that_is_pulled_breaks_the_connection_and_heals_for_the_next() {
    let mut pair = Pair::connected();
    let function = pair.fabric.function(B);
    pair.fabric.sim.inject(&function, &Fault::LinkDown);
    pair.post_send(A, EMPTY, 1, NONE).expect("posted");
    pair.expect_end(A, Kind::Broken);
    pair.expect_request(A, 1, DtoStatus::ErrTransport);
    pair.fabric.sim.inject(&function, &Fault::LinkUp);
    pair.expect_end(B, Kind::Disconnected);
    for side in [A, B] {
        let ep = pair.sides[side].ep;
        pair.sides[side].ia.ep_reset(ep).expect("DISCONNECTED");
    }
    pair.connect();
    pair.expect_alive();
}

/// A connect while the link trains succeeds soon after the port is up: the driver sends the lost request again as soon
/// as the port is up, not a second later. So a program that has just opened an adapter needs no special care.
#[test]
fn a_connect_while_the_link_trains_is_made_when_it_is_up() {
    let fabric = Fabric::pair(1);
    fabric.sim.inject(&fabric.function(A), &Fault::LinkDown);
    let mut pair = Pair::over(fabric, &PairConfig::default());
    let function = pair.fabric.function(A);
    pair.fabric.sim.inject(&function, &Fault::LinkUp);
    let before = pair.now();
    pair.connect();
    let took = pair.now().0 - before.0;
    assert!((90_000_000..300_000_000).contains(&took), "{took} ns");
    assert!(pair.fabric.sim.report(&function).dropped["port down"] > 0);
    pair.expect_alive();
}

/// An endpoint that was reset connects again, and shows no effect of its former connection.
///
/// Clauses: EPR-1.
#[test]
fn an_endpoint_connects_again_after_a_reset_and_has_forgotten_the_past() {
    let mut pair = Pair::connected();
    for round in 0..5 {
        pair.expect_alive();
        for cookie in 0..10 {
            pair.receive(A, cookie);
            pair.receive(B, cookie);
        }
        let side = round % 2;
        let ep = pair.sides[side].ep;
        pair.sides[side]
            .ia
            .ep_disconnect(ep, FLAGS[side])
            .expect("CONNECTED");
        for side in [A, B] {
            pair.expect_end(side, Kind::Disconnected);
            let ep = pair.sides[side].ep;
            // This receive is a marker: earlier completions precede its completion.
            pair.receive(side, 99);
            for cookie in (0..10).chain([99]) {
                pair.expect_recv(side, cookie, DtoStatus::ErrFlushed);
            }
            pair.sides[side].ia.ep_reset(ep).expect("DISCONNECTED");
            assert_eq!(pair.state(side), EpState::Unconnected);
            pair.sides[side].ia.ep_reset(ep).expect("a no-op");
            let status = pair.sides[side].ia.ep_get_status(ep).expect("exists");
            assert!(status.recv_idle && status.request_idle);
            let param = pair.sides[side].ia.ep_query(ep).expect("exists");
            assert_eq!((param.remote_ia_address, param.remote_port_qual), (None, 0));
        }
        pair.connect();
    }
    pair.expect_alive();
    pair.assert_no_complaints();
}

#[test]
fn an_endpoint_may_be_active_in_one_connection_and_passive_in_the_next() {
    let mut pair = Pair::connected();
    let evd = pair.sides[A].cr;
    pair.sides[A]
        .ia
        .psp_create(CONN_QUAL, evd, PspFlags::CONSUMER)
        .expect("a PSP");
    pair.disconnect();
    for side in [A, B] {
        let ep = pair.sides[side].ep;
        pair.sides[side].ia.ep_reset(ep).expect("DISCONNECTED");
    }
    let (a, b) = (pair.sides[A].ep, pair.sides[B].ep);
    pair.start(B, b, CONN_QUAL, LONG, b"the other way")
        .expect("starts");
    let cr = pair.request(A);
    pair.sides[A]
        .ia
        .cr_accept(cr, Some(a), b"")
        .expect("accepted");
    pair.expect_connection(A, Kind::Established);
    pair.expect_connection(B, Kind::Established);
    pair.expect_alive();
    pair.assert_no_complaints();
}

/// Clauses: RECV-R6, EPR-2.
#[test]
fn receives_posted_before_the_connection_survive_a_reset_that_does_nothing() {
    let mut pair = Pair::unconnected(&PairConfig::default());
    let to = pair.buffer(B, 64);
    pair.post_recv(B, &[to.all()], 1, NONE).expect("posted");
    pair.post_recv(B, &[to.all()], 2, NONE).expect("posted");
    let b = pair.sides[B].ep;
    pair.sides[B].ia.ep_reset(b).expect("a no-op");
    assert!(!pair.sides[B].ia.ep_get_status(b).expect("exists").recv_idle);
    pair.connect();
    let from = pair.buffer(A, 64);
    for cookie in [1, 2] {
        pair.post_send(A, &[from.all()], 9, NONE).expect("posted");
        pair.expect_recv(B, cookie, DtoStatus::Success);
    }
    pair.assert_no_complaints();
}

/// Freeing a connected endpoint disconnects the peer, and gives no event on this side.
///
/// Clauses: EPF-1.
#[test]
fn freeing_a_connected_endpoint_disconnects_the_peer_and_tells_nobody_here() {
    for side in [A, B] {
        let mut pair = Pair::connected();
        pair.receive(side, 1);
        pair.receive(1 - side, 2);
        pair.post_send(side, EMPTY, 3, NONE).expect("posted");
        let ep = pair.sides[side].ep;
        pair.sides[side].ia.ep_free(ep).expect("legal in CONNECTED");
        refused(pair.sides[side].ia.ep_free(ep), ReturnType::InvalidHandle);
        refused(
            pair.sides[side].ia.ep_get_status(ep),
            ReturnType::InvalidHandle,
        );
        pair.expect_end(1 - side, Kind::Disconnected);
        pair.run_for(10);
        pair.expect_nothing(side, pair.sides[side].connect);
        // The EVDs and the PZ of the freed endpoint can be freed.
        let (evds, pz) = (
            [
                pair.sides[side].recv,
                pair.sides[side].request,
                pair.sides[side].connect,
            ],
            pair.sides[side].pz,
        );
        for evd in evds {
            pair.sides[side].ia.evd_free(evd).expect("nothing feeds it");
        }
        pair.sides[side].ia.pz_free(pz).expect("nothing is in it");
        pair.assert_no_complaints();
    }
}

#[test]
fn connections_come_and_go_over_a_wire_that_loses_and_each_end_is_told_once() {
    for seed in 0..12 {
        let faults = Faults {
            loss_ppm: 200_000,
            duplicate_ppm: 100_000,
            reorder_ppm: 100_000,
            reorder_ns: 500_000,
            delay_ns: 20_000,
            ..Faults::NONE
        };
        let config = PairConfig {
            seed,
            faults: LinkFaults::both(faults),
            event_log: false,
            ..PairConfig::default()
        };
        let mut pair = Pair::unconnected(&config);
        for round in 0..4 {
            pair.connect();
            let side = (round + usize::from(seed % 2 == 0)) % 2;
            let ep = pair.sides[side].ep;
            pair.sides[side]
                .ia
                .ep_disconnect(ep, FLAGS[round / 2])
                .expect("CONNECTED");
            for side in [A, B] {
                pair.expect_end(side, Kind::Disconnected);
                let ep = pair.sides[side].ep;
                pair.sides[side].ia.ep_reset(ep).expect("DISCONNECTED");
            }
        }
        pair.assert_no_complaints();
    }
}

#[test]
fn memory_rights_of_a_region_are_no_matter_of_the_connection() {
    // An LMR that was registered before the connection works with this connection, and with the next connection.
    let mut pair = Pair::unconnected(&PairConfig::default());
    let pz = pair.sides[B].pz;
    let to = pair.buffer_in(
        B,
        64,
        pz,
        MemPrivFlags::LOCAL_WRITE | MemPrivFlags::REMOTE_WRITE,
    );
    let from = pair.buffer(A, 64);
    from.write(0, &[7; 64]);
    for _ in 0..2 {
        pair.connect();
        to.write(0, &[0; 64]);
        pair.post_write(A, &[from.all()], 1, &to.remote(0, 64), NONE)
            .expect("posted");
        pair.expect_request(A, 1, DtoStatus::Success);
        assert_eq!(to.read(0, 64), [7; 64]);
        pair.disconnect();
        for side in [A, B] {
            let ep = pair.sides[side].ep;
            pair.sides[side].ia.ep_reset(ep).expect("DISCONNECTED");
        }
    }
    pair.assert_no_complaints();
}

/// If the device refuses either step of a reset (2RST_QP or RST2INIT_QP), the endpoint stays DISCONNECTED and flushes
/// later posts.
#[test]
fn a_reset_the_device_refuses_leaves_the_endpoint_disconnected() {
    for opcode in [Opcode::TO_RST_QP, Opcode::RST2INIT_QP] {
        let mut pair = Pair::connected();
        pair.disconnect();
        let ep = pair.sides[A].ep;
        pair.refuse_next(A, opcode);
        refused(
            pair.sides[A].ia.ep_reset(ep),
            ReturnType::InsufficientResources,
        );
        assert_eq!(pair.state(A), EpState::Disconnected, "{opcode:?}");
        pair.receive(A, 1);
        pair.expect_recv(A, 1, DtoStatus::ErrFlushed);
        let from = pair.buffer(A, 64);
        pair.post_send(A, &[from.all()], 2, NONE).expect("posted");
        pair.expect_request(A, 2, DtoStatus::ErrFlushed);
        let again = pair.sides[A].ia.ep_reset(ep);
        again.expect("the second time it works");
        assert_eq!(pair.state(A), EpState::Unconnected);
        pair.assert_no_complaints();
    }
}

/// If the device refuses a step of `ep_free`, the endpoint stays, in the state DISCONNECTED, and flushes its earlier
/// and later receives.
#[test]
fn what_was_posted_to_an_endpoint_that_the_device_does_not_free_is_flushed() {
    for opcode in [Opcode::TO_RST_QP, Opcode::DESTROY_QP] {
        let mut pair = Pair::unconnected(&PairConfig::default());
        pair.receive(A, 1);
        pair.receive(A, 2);
        let ep = pair.sides[A].ep;
        pair.refuse_next(A, opcode);
        refused(pair.sides[A].ia.ep_free(ep), ReturnType::InternalError);
        assert_eq!(pair.state(A), EpState::Disconnected, "{opcode:?}");
        pair.receive(A, 3);
        for cookie in 1..=3 {
            pair.expect_recv(A, cookie, DtoStatus::ErrFlushed);
        }
        let again = pair.sides[A].ia.ep_free(ep);
        again.expect("the second time it works");
        pair.assert_no_complaints();
    }
}

/// If the device refuses 2RST_QP with the status "bad resource state" and then refuses DESTROY_QP, the queue pair keeps
/// its state, and each receive is flushed once.
#[test]
fn a_destroy_refused_without_a_reset_leaves_the_work_to_the_device() {
    let mut pair = Pair::unconnected(&PairConfig::default());
    pair.receive(A, 1);
    let ep = pair.sides[A].ep;
    let other_state = Fault::CommandFailure {
        opcode: Some(Opcode::TO_RST_QP.0),
        status: 0x09,
        syndrome: 0,
        count: 1,
    };
    pair.fabric
        .sim
        .inject(&pair.fabric.function(A), &other_state);
    pair.refuse_next(A, Opcode::DESTROY_QP);
    refused(pair.sides[A].ia.ep_free(ep), ReturnType::InternalError);
    assert_eq!(pair.state(A), EpState::Disconnected);
    pair.receive(A, 2);
    for cookie in 1..=2 {
        pair.expect_recv(A, cookie, DtoStatus::ErrFlushed);
    }
    pair.expect_nothing(A, pair.sides[A].recv);
    let again = pair.sides[A].ia.ep_free(ep);
    again.expect("the second time it works");
    pair.assert_no_complaints();
}
