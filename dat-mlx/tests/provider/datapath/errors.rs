//! Failed requests: their statuses, and their effect on the rest of the queue.

use dat_core::provider::{
    Completion, Path, Provider, ProviderError, ProviderEvent, Psn, Qpn, QueuePair, QueueSizes,
    ReadyToReceive, ReadyToSend, RequestFlags, RequestOp,
};
use dat_core::types::{DtoStatus, MemPrivFlags};
use driver::DmaMemory;
use hw_mlx::qp::control;
use hw_sim::{Fault, Faults, LinkFaults};

use super::pair::{REPORTED, SIZES, SUPPRESSED, TERMS, Terms, pair, read, write};

fn summary(done: &[Completion]) -> Vec<(u64, DtoStatus)> {
    done.iter().map(|done| (done.cookie, done.status)).collect()
}

#[test]
fn a_wrong_remote_key_fails_the_request_and_flushes_what_follows() {
    let mut p = pair();
    let (mut qa, mut qb) = p.connected();
    qa.post_recv(std::iter::once(p.a.segment(0, 64)), 50, false)
        .unwrap();
    qb.post_recv(std::iter::once(p.b.segment(0, 64)), 60, false)
        .unwrap();
    let op = RequestOp::RdmaWrite {
        address: p.b.address(0),
        rmr_context: p.b.rkey ^ 0x100,
    };
    let one = p.a.segment(0, 64);
    qa.post_request(op, std::iter::once(one), 1, SUPPRESSED)
        .unwrap();
    qa.post_request(op, std::iter::once(one), 2, SUPPRESSED)
        .unwrap();
    let done = p.a.completions(&mut qa, 3);
    let requests: Vec<_> = done.iter().copied().filter(|done| done.request).collect();
    assert_eq!(
        summary(&requests),
        [(1, DtoStatus::ErrRemoteAccess), (2, DtoStatus::ErrFlushed)]
    );
    assert_eq!(requests[0].detail.syndrome().0, 0x13);
    // A post to a queue pair in the error state is flushed too.
    qa.post_request(op, std::iter::once(one), 3, REPORTED)
        .unwrap();
    assert_eq!(
        summary(&p.a.completions(&mut qa, 1)),
        [(3, DtoStatus::ErrFlushed)]
    );
    // The peer's queue pair is in error too, and the peer's device reports this by an event.
    assert_eq!(
        summary(&p.b.completions(&mut qb, 1)),
        [(60, DtoStatus::ErrFlushed)]
    );
    p.b.provider.progress();
    let event = p.b.provider.next_event();
    assert!(
        matches!(
            event,
            Some(ProviderEvent::QpError {
                owner: 0xb,
                event: 0x11
            })
        ),
        "{event:?}"
    );
    p.finish(qa, qb);
}

#[test]
fn memory_registered_for_reading_refuses_writes() {
    let mut p = pair();
    let (mut qa, qb) = p.connected();
    let memory = DmaMemory::Arena {
        buffer: p.b.buffer.clone(),
        offset: 0,
        bytes: 4096,
    };
    let mut readable =
        p.b.provider
            .register(
                p.b.pd,
                &memory,
                MemPrivFlags::LOCAL_READ | MemPrivFlags::REMOTE_READ,
            )
            .unwrap();
    let one = p.a.segment(0, 64);
    let op = RequestOp::RdmaRead {
        address: readable.address,
        rmr_context: readable.rmr_context,
    };
    qa.post_request(op, std::iter::once(one), 1, REPORTED)
        .unwrap();
    assert_eq!(
        summary(&p.a.completions(&mut qa, 1)),
        [(1, DtoStatus::Success)]
    );
    let op = RequestOp::RdmaWrite {
        address: readable.address,
        rmr_context: readable.rmr_context,
    };
    qa.post_request(op, std::iter::once(one), 2, REPORTED)
        .unwrap();
    assert_eq!(
        summary(&p.a.completions(&mut qa, 1)),
        [(2, DtoStatus::ErrRemoteAccess)]
    );
    p.b.provider.deregister(&mut readable.region).unwrap();
    p.finish(qa, qb);
}

#[test]
fn a_wrong_local_key_is_a_local_protection_error() {
    let mut p = pair();
    let (mut qa, qb) = p.connected();
    let op = write(&p.b, 0);
    let mut bad = p.a.segment(0, 64);
    bad.address += p.a.buffer.len() as u64;
    qa.post_request(op, std::iter::once(bad), 1, REPORTED)
        .unwrap();
    assert_eq!(
        summary(&p.a.completions(&mut qa, 1)),
        [(1, DtoStatus::ErrLocalProtection)]
    );
    p.finish(qa, qb);
}

#[test]
fn a_message_too_long_for_its_buffer_is_a_length_error_there_and_a_responder_error_here() {
    let mut p = pair();
    let (mut qa, mut qb) = p.connected();
    qb.post_recv(std::iter::once(p.b.segment(0, 63)), 7, false)
        .unwrap();
    qa.post_request(
        RequestOp::Send,
        std::iter::once(p.a.segment(0, 64)),
        1,
        REPORTED,
    )
    .unwrap();
    assert_eq!(
        summary(&p.b.completions(&mut qb, 1)),
        [(7, DtoStatus::ErrLocalLength)]
    );
    assert_eq!(
        summary(&p.a.completions(&mut qa, 1)),
        [(1, DtoStatus::ErrRemoteResponder)]
    );
    p.finish(qa, qb);
}

#[test]
fn a_peer_without_a_buffer_is_not_ready() {
    let mut p = pair();
    let (mut qa, qb) = p.connected_with(
        SIZES,
        Terms {
            rnr_retry: 2,
            ..TERMS
        },
    );
    qa.post_request(
        RequestOp::Send,
        std::iter::once(p.a.segment(0, 64)),
        1,
        REPORTED,
    )
    .unwrap();
    assert_eq!(
        summary(&p.a.completions(&mut qa, 1)),
        [(1, DtoStatus::ErrReceiverNotReady)]
    );
    p.finish(qa, qb);
}

#[test]
fn a_peer_that_does_not_answer_is_a_transport_error() {
    let mut p = pair();
    let (mut qa, qb) = p.connected_with(
        SIZES,
        Terms {
            retry_count: 2,
            ..TERMS
        },
    );
    p.sim.set_faults(
        p.link,
        LinkFaults::both(Faults {
            loss_ppm: 1_000_000,
            ..Faults::NONE
        }),
    );
    let op = write(&p.b, 0);
    qa.post_request(op, std::iter::once(p.a.segment(0, 64)), 1, SUPPRESSED)
        .unwrap();
    let done = p.a.completions(&mut qa, 1);
    assert_eq!(summary(&done), [(1, DtoStatus::ErrTransport)]);
    assert_eq!(done[0].detail.syndrome().0, 0x15);
    p.sim.heal();
    p.finish(qa, qb);
}

#[test]
fn reads_are_refused_where_none_were_agreed() {
    let mut p = pair();
    let (mut qa, qb) = p.connected_with(SIZES, Terms { reads: 0, ..TERMS });
    let op = read(&p.b, 0);
    qa.post_request(op, std::iter::once(p.a.segment(0, 64)), 1, REPORTED)
        .unwrap();
    assert_eq!(
        summary(&p.a.completions(&mut qa, 1)),
        [(1, DtoStatus::ErrRemoteResponder)]
    );
    p.finish(qa, qb);
}

#[test]
fn as_many_reads_as_fit_the_queue_go_through_any_agreed_depth() {
    for reads in [1, 2, 3, 5, 16] {
        let mut p = pair();
        let (mut qa, qb) = p.connected_with(SIZES, Terms { reads, ..TERMS });
        for n in 0..16 {
            let op = read(&p.b, 0);
            qa.post_request(op, std::iter::once(p.a.segment(0, 20_000)), n, REPORTED)
                .unwrap();
        }
        let done = p.a.completions(&mut qa, 16);
        assert!(
            done.iter().all(|done| done.status == DtoStatus::Success),
            "depth {reads}: {done:?}"
        );
        p.finish(qa, qb);
    }
}

#[test]
fn the_error_state_flushes_both_queues_in_order() {
    let mut p = pair();
    let (mut qa, qb) = p.connected();
    p.sim.set_faults(
        p.link,
        LinkFaults::both(Faults {
            loss_ppm: 1_000_000,
            ..Faults::NONE
        }),
    );
    for n in 0..16 {
        qa.post_recv(std::iter::once(p.a.segment(0, 64)), 100 + n, false)
            .unwrap();
        let op = write(&p.b, 0);
        qa.post_request(op, std::iter::once(p.a.segment(0, 64)), n, SUPPRESSED)
            .unwrap();
    }
    p.a.provider.to_error(&mut qa).unwrap();
    let done = p.a.completions(&mut qa, 32);
    assert!(
        done.iter().all(|done| done.status == DtoStatus::ErrFlushed),
        "{done:?}"
    );
    let cookies = |request| {
        done.iter()
            .filter(|done| done.request == request)
            .map(|done| done.cookie)
            .collect::<Vec<_>>()
    };
    assert_eq!(cookies(true), (0..16).collect::<Vec<_>>());
    assert_eq!(cookies(false), (100..116).collect::<Vec<_>>());
    assert_eq!((qa.requests_outstanding(), qa.recvs_outstanding()), (0, 0));
    p.finish(qa, qb);
}

#[test]
fn a_reset_queue_pair_connects_again_and_its_old_entries_are_gone() {
    let mut p = pair();
    let (mut qa, mut qb) = p.connected();
    for round in 0..5 {
        for n in 0..3 {
            qa.post_recv(std::iter::once(p.a.segment(0, 64)), n, false)
                .unwrap();
            let op = write(&p.b, 0);
            qa.post_request(op, std::iter::once(p.a.segment(0, 64)), n, REPORTED)
                .unwrap();
        }
        // Three entries are in the completion queue, not yet polled.
        p.a.reset_qp(&mut qa);
        p.b.reset_qp(&mut qb);
        assert_eq!((qa.requests_outstanding(), qa.recvs_outstanding()), (0, 0));
        assert_eq!(p.a.polled(&mut qa), [], "round {round}");
        p.connect(&mut qa, &mut qb, TERMS);
        qb.post_recv(std::iter::once(p.b.segment(0, 64)), 7, false)
            .unwrap();
        qa.post_request(
            RequestOp::Send,
            std::iter::once(p.a.segment(0, 64)),
            8,
            REPORTED,
        )
        .unwrap();
        assert_eq!(
            summary(&p.a.completions(&mut qa, 1)),
            [(8, DtoStatus::Success)]
        );
        assert_eq!(
            summary(&p.b.completions(&mut qb, 1)),
            [(7, DtoStatus::Success)]
        );
    }
    assert_eq!((qa.0.unmatched_entries(), qb.0.unmatched_entries()), (0, 0));
    p.finish(qa, qb);
}

#[test]
fn query_tells_the_state_and_the_numbers_of_the_connection() {
    let mut p = pair();
    let (mut qa, qb) = p.connected();
    let context = control::query(p.a.provider.hca_mut(), qa.number()).unwrap();
    assert_eq!(
        (context.state(), context.remote_qpn(), context.user_index()),
        (3, qb.number().get(), 0xa)
    );
    p.a.provider.to_error(&mut qa).unwrap();
    assert_eq!(
        control::query(p.a.provider.hca_mut(), qa.number())
            .unwrap()
            .state(),
        6
    );
    p.finish(qa, qb);
}

#[test]
fn sizes_beyond_the_limits_are_refused_without_asking_the_device() {
    let mut p = pair();
    let limits = p.a.provider.limits().clone();
    let cq = p.a.cq.take().unwrap();
    let mut refused = |sizes: QueueSizes| {
        let outcome = p.a.provider.create_qp(p.a.pd, &cq, &cq, None, sizes, 1);
        matches!(outcome, Err(ProviderError::Limit { asked, limit, .. }) if asked > limit)
    };
    assert!(refused(QueueSizes {
        max_requests: limits.max_dtos + 1,
        ..SIZES
    }));
    assert!(refused(QueueSizes {
        max_recvs: limits.max_dtos + 1,
        ..SIZES
    }));
    assert!(refused(QueueSizes {
        max_request_segments: limits.max_request_segments + 1,
        ..SIZES
    }));
    assert!(refused(QueueSizes {
        max_read_segments: limits.max_read_segments + 1,
        ..SIZES
    }));
    assert!(refused(QueueSizes {
        max_recv_segments: limits.max_recv_segments + 1,
        ..SIZES
    }));
    // One queue pair can have all limits at once.
    let all = QueueSizes {
        max_requests: limits.max_dtos,
        max_recvs: limits.max_dtos,
        max_request_segments: limits.max_request_segments,
        max_read_segments: limits.max_read_segments,
        max_recv_segments: limits.max_recv_segments,
        binds: false,
    };
    let qp =
        p.a.provider
            .create_qp(p.a.pd, &cq, &cq, None, all, 1)
            .unwrap();
    p.a.cq = Some(cq);
    p.a.destroy_qp(qp);
    p.finish_bare();
}

/// Each connection attribute that is out of range is refused. A flow label of more than 20 bits is accepted.
#[test]
fn attributes_that_do_not_fit_are_refused_and_not_a_panic() {
    let mut p = pair();
    let mut qa = p.a.create_qp(SIZES, 1);
    let path = p.a.provider.route(p.b.gid(), None).unwrap();
    let good = ReadyToReceive {
        path,
        remote_qpn: Qpn::new(5),
        receive_psn: Psn::masked(5),
        mtu: 3,
        reads_in: 1,
        min_rnr_timer: 1,
    };
    let bad = [
        ReadyToReceive { mtu: 0, ..good },
        ReadyToReceive { mtu: 6, ..good },
        ReadyToReceive {
            reads_in: 255,
            ..good
        },
        ReadyToReceive {
            min_rnr_timer: 32,
            ..good
        },
    ];
    for attributes in bad {
        let refused = p.a.provider.ready_to_receive(&mut qa, &attributes);
        match refused {
            Err(ProviderError::Limit { asked, limit, .. }) => assert!(asked > limit),
            Err(ProviderError::Unsupported(text)) => assert_eq!(text, "path MTU code 0"),
            other => panic!("{attributes:?}: {other:?}"),
        }
    }
    let wild = Path {
        flow_label: u32::MAX,
        traffic_class: 0xff,
        hop_limit: 0xff,
        ..path
    };
    p.a.provider
        .ready_to_receive(&mut qa, &ReadyToReceive { path: wild, ..good })
        .unwrap();
    let good = ReadyToSend {
        send_psn: Psn::masked(5),
        reads_out: 1,
        retry_count: 1,
        rnr_retry: 1,
        ack_timeout: 1,
    };
    let bad = [
        ReadyToSend {
            reads_out: 255,
            ..good
        },
        ReadyToSend {
            retry_count: 8,
            ..good
        },
        ReadyToSend {
            rnr_retry: 8,
            ..good
        },
        ReadyToSend {
            ack_timeout: 32,
            ..good
        },
    ];
    for attributes in bad {
        let refused = p.a.provider.ready_to_send(&mut qa, &attributes);
        assert!(
            matches!(refused, Err(ProviderError::Limit { asked, limit, .. }) if asked > limit),
            "{attributes:?}: {refused:?}"
        );
    }
    p.a.provider.ready_to_send(&mut qa, &good).unwrap();
    p.a.destroy_qp(qa);
    p.finish_bare();
}

/// If the device does not answer CREATE_CQ, the command may have taken effect. So the queue's memory is never used
/// again, and all other objects keep working.
#[test]
fn a_silent_creation_costs_memory_and_nothing_else() {
    let mut p = pair();
    p.sim.inject(
        &p.a.function,
        &Fault::CommandSilence {
            opcode: Some(0x400),
            count: 1,
        },
    );
    let outcome = p.a.provider.create_cq(16, 1);
    assert!(
        matches!(outcome, Err(ProviderError::Device(_))),
        "{outcome:?}"
    );
    let (mut qa, qb) = p.connected();
    let op = write(&p.b, 0);
    qa.post_request(op, std::iter::once(p.a.segment(0, 64)), 1, REPORTED)
        .unwrap();
    assert_eq!(
        summary(&p.a.completions(&mut qa, 1)),
        [(1, DtoStatus::Success)]
    );
    p.a.destroy_qp(qa);
    p.b.destroy_qp(qb);
}

#[test]
fn the_objects_of_a_provider_can_move_between_threads() {
    fn sendable<T: Send>() {}
    sendable::<dat_mlx::MlxProvider>();
    sendable::<dat_mlx::queues::Qp>();
    sendable::<dat_mlx::queues::Cq>();
    sendable::<dat_mlx::queues::Srq>();
}

/// If the device refuses one of the commands that create a queue pair, no object is left behind.
#[test]
fn a_refused_creation_leaves_nothing_behind() {
    for opcode in [0x500, 0x502] {
        let mut p = pair();
        p.sim.inject(
            &p.a.function,
            &Fault::CommandFailure {
                opcode: Some(opcode),
                status: 0x0f,
                syndrome: 7,
                count: 1,
            },
        );
        let cq = p.a.cq.take().unwrap();
        let outcome = p.a.provider.create_qp(p.a.pd, &cq, &cq, None, SIZES, 1);
        assert!(
            matches!(outcome, Err(ProviderError::Resources(_))),
            "{outcome:?}"
        );
        p.a.cq = Some(cq);
        p.finish_bare();
    }
}

/// A reset that fails half-way leaves the queue pair in RESET. In that state `destroy_qp` sends no 2RST before
/// DESTROY_QP, like Linux (`destroy_qp_common`): an injected refusal of 2RST affects only the next queue pair.
#[test]
fn a_queue_pair_left_in_reset_is_destroyed_without_another_reset() {
    const TO_RST: u16 = 0x50a;
    const RST_TO_INIT: u16 = 0x502;
    for status in [0x10, 0x09] {
        let mut p = pair();
        let mut qp = p.a.create_qp(SIZES, 1);
        let refuse = |opcode, status| Fault::CommandFailure {
            opcode: Some(opcode),
            status,
            syndrome: 7,
            count: 1,
        };
        p.sim.inject(&p.a.function, &refuse(RST_TO_INIT, 0x0f));
        let mut cq = p.a.cq.take().unwrap();
        p.a.provider
            .reset_qp(&mut qp, &mut cq, None)
            .expect_err("half-way");
        p.sim.inject(&p.a.function, &refuse(TO_RST, status));
        p.a.provider
            .destroy_qp(&mut qp, &mut cq, None)
            .expect("gone");
        p.a.cq = Some(cq);
        let mut other = p.a.create_qp(SIZES, 1);
        let mut cq = p.a.cq.take().unwrap();
        p.a.provider
            .reset_qp(&mut other, &mut cq, None)
            .expect_err("2RST was not sent yet");
        p.a.provider
            .destroy_qp(&mut other, &mut cq, None)
            .expect("gone");
        p.a.cq = Some(cq);
        p.finish_bare();
    }
}

/// A bind of zero bytes has no translation table: rdma-core `set_bind_wr` ends it after the key's context, at eight
/// units (two blocks). The next request follows directly in the ring.
#[test]
fn a_bind_to_nothing_has_no_table() {
    use dat_core::provider::WindowTarget;
    use dat_core::types::MemPrivFlags;
    let mut p = pair();
    let mut sizes = SIZES;
    sizes.binds = true;
    let (mut qa, qb) = p.connected_with(sizes, TERMS);
    let mut window = p.a.provider.create_window(p.a.pd).unwrap();
    let (lmr_context, address) = (p.a.lkey, p.a.address(0));
    let target = |bytes| WindowTarget {
        lmr_context,
        address,
        bytes,
        access: MemPrivFlags::REMOTE_WRITE,
    };
    let lengths: Vec<usize> = [64, 0]
        .iter()
        .map(|bytes| window.body(&target(*bytes)).units().len())
        .collect();
    assert_eq!(lengths, [11, 7], "units behind the control segment");
    for (n, bytes) in [64, 0, 0, 128].into_iter().enumerate() {
        let bind = target(bytes);
        qa.post_bind(&mut window, &bind, n as u64, REPORTED)
            .unwrap();
        assert_eq!(
            summary(&p.a.completions(&mut qa, 1)),
            [(n as u64, DtoStatus::Success)]
        );
    }
    p.a.provider.destroy_window(&mut window).unwrap();
    p.finish(qa, qb);
}

#[test]
fn flags_of_a_request_do_not_leak_into_the_next() {
    let mut p = pair();
    let (mut qa, mut qb) = p.connected();
    for solicited in [true, false] {
        qb.post_recv(std::iter::once(p.b.segment(0, 64)), 0, false)
            .unwrap();
        qa.post_request(
            RequestOp::Send,
            std::iter::once(p.a.segment(0, 64)),
            0,
            RequestFlags {
                solicited,
                ..REPORTED
            },
        )
        .unwrap();
        assert_eq!(p.b.completions(&mut qb, 1)[0].solicited, solicited);
        p.a.completions(&mut qa, 1);
    }
    p.finish(qa, qb);
}
