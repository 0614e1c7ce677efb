//! Tests of the services other than reliable connections: datagrams, the general services interface and unreliable
//! connections; and tests of key changes by UMR.

use hw_sim::link::Port;
use hw_sim::qp::{State, Transition};
use hw_sim::wire::{Headers, Link, Opcode, Operation, Packet};
use mlx_prm::{CqeOpcode, Syndrome, UmrCtrlSeg};

use crate::rc_support::*;

const UC: u32 = 1;
const UD: u32 = 2;
const GSI: u32 = 8;
const REG_UMR: u32 = 0xc;
const GSI_QKEY: u32 = 0x8001_0000;
const QKEY: u32 = 0x1234;

fn datagrams() -> Options {
    Options {
        service: UD,
        mtu_code: 3,
        q_key: QKEY,
        ..Options::default()
    }
}

fn unreliable() -> Options {
    Options {
        service: UC,
        ..Options::default()
    }
}

#[test]
fn datagram_over_ipv4_arrives_behind_its_right_aligned_header() {
    let mut pair = Pair::with(&datagrams());
    let data = pattern(1000, 3);
    pair.a.host.write(DATA, &data);
    pair.b
        .post_receive(&[(KEY, DATA, 40), (KEY, DATA + 0x1000, 1024)]);
    let frames = std::rc::Rc::new(std::cell::RefCell::new(Vec::new()));
    let log = frames.clone();
    pair.filter = Box::new(move |_, _, packet| {
        log.borrow_mut().push(packet.emit());
        true
    });
    pair.a
        .post(&Wqe::datagram(2, QKEY, 0, DATA, 1000).flags(SOLICITED));
    pair.run_until_idle();
    assert_eq!(pair.a.send_results(), [(0, 0)]);
    assert_eq!(pair.b.host.read(DATA + 0x1000, 1000), data);
    let area = pair.b.host.read(DATA, 40);
    assert_eq!(area[..20], [0; 20]);
    assert_eq!(
        area[20..],
        frames.borrow()[0][14..34],
        "the header as it was on the wire"
    );
    let cqe = &pair.b.receives()[0];
    assert_eq!((cqe.opcode(), cqe.byte_cnt()), (CqeOpcode::RESP_SEND, 1040));
    assert_eq!(
        cqe.flags_rqpn(),
        1 << 28 | 2 << 24 | qpn(1),
        "GRH in buffer, IPv4, source QPN"
    );
    assert_eq!(cqe.imm_inval_pkey(), 0xffff);
    assert!(cqe.solicited());
}

#[test]
fn datagram_over_ipv6_and_roce_v1_says_so_and_in_which_vlan_it_came() {
    for (gid_index, l3_type, vlan) in [(1, 1, Some(5)), (2, 0, None)] {
        let mut pair = Pair::with(&datagrams());
        pair.b.post_receive(&[(KEY, DATA, 2000)]);
        pair.a.post(&Wqe::datagram(2, QKEY, gid_index, DATA, 4));
        pair.run_until_idle();
        let cqe = &pair.b.receives()[0];
        assert_eq!(cqe.flags_rqpn() >> 24, 1 << 4 | l3_type);
        let tagged = cqe.l4_l3_hdr_type() & 1 == 1;
        assert_eq!(tagged.then(|| cqe.vlan_info() & 0xfff), vlan);
        let area = pair.b.host.read(DATA, 40);
        assert_eq!(
            (area[0] >> 4, &area[8..24], &area[24..]),
            (6, &gid6(1)[..], &gid6(2)[..])
        );
    }
}

#[test]
fn datagram_with_another_qkey_or_without_receive_is_dropped() {
    let mut pair = Pair::with(&datagrams());
    pair.a.post(&Wqe::datagram(2, QKEY, 0, DATA, 4));
    pair.run_until_idle();
    pair.b.post_receive(&[(KEY, DATA, 2000)]);
    pair.a.post(&Wqe::datagram(2, QKEY + 1, 0, DATA, 4));
    pair.run_until_idle();
    assert_eq!(
        pair.a.send_results(),
        [(0, 0), (2, 0)],
        "senders do not notice"
    );
    assert_eq!(pair.b.host.completions.len(), 0);
}

#[test]
fn controlled_qkey_in_a_wqe_means_the_contexts() {
    let mut pair = Pair::with(&datagrams());
    pair.b.post_receive(&[(KEY, DATA, 2000)]);
    pair.a.post(&Wqe::datagram(2, 0xffff_ffff, 0, DATA, 4));
    pair.run_until_idle();
    assert_eq!(pair.b.receive_results(), [(0, 0)]);
}

#[test]
fn datagram_longer_than_the_mtu_stops_the_send_queue_only() {
    let mut pair = Pair::with(&datagrams());
    pair.a.post(&Wqe::datagram(2, QKEY, 0, DATA, 1025));
    pair.a
        .post(&Wqe::datagram(2, QKEY, 0, DATA, 4).unsignalled());
    pair.run_until_idle();
    let too_long = Syndrome::LOCAL_LENGTH_ERR.0;
    assert_eq!(pair.a.send_results(), [(0, too_long), (2, FLUSHED)]);
    assert_eq!(pair.a.qp.state(), State::SendQueueError);
    pair.a.post_receive(&[(KEY, DATA, 2000)]);
    pair.b.post(&Wqe::datagram(1, QKEY, 0, DATA, 4));
    pair.run_until_idle();
    assert_eq!(pair.a.receive_results(), [(0, 0)], "it still receives");
    pair.a.modify(Transition::SqErrToRts);
    pair.b.post_receive(&[(KEY, DATA, 2000)]);
    pair.a.post(&Wqe::datagram(2, QKEY, 0, DATA, 4));
    pair.run_until_idle();
    assert_eq!(pair.a.send_results().last(), Some(&(4, 0)));
}

#[test]
fn receive_shorter_than_a_datagram_is_a_length_error() {
    let mut pair = Pair::with(&datagrams());
    pair.b.post_receive(&[(KEY, DATA, 50)]);
    pair.a.post(&Wqe::datagram(2, QKEY, 0, DATA, 11));
    pair.run_until_idle();
    assert_eq!(
        pair.b.receive_results(),
        [(0, Syndrome::LOCAL_LENGTH_ERR.0)]
    );
    assert_eq!(pair.b.qp.state(), State::Error);
}

#[test]
fn unused_source_address_of_a_datagram_is_an_operation_error() {
    let mut pair = Pair::with(&datagrams());
    pair.a.post(&Wqe::datagram(2, QKEY, 77, DATA, 4));
    pair.run_until_idle();
    assert_eq!(pair.a.send_results(), [(0, Syndrome::LOCAL_QP_OP_ERR.0)]);
    assert_eq!(pair.a.host.bugs.len(), 1);
}

#[test]
fn rdma_on_a_datagram_queue_pair_is_an_operation_error() {
    let mut pair = Pair::with(&datagrams());
    pair.a.post(&Wqe::write(DATA, 4, DATA, KEY));
    pair.run_until_idle();
    assert_eq!(pair.a.send_results(), [(0, Syndrome::LOCAL_QP_OP_ERR.0)]);
}

#[test]
fn general_services_send_as_queue_pair_one() {
    let options = Options {
        service: GSI,
        mtu_code: 1,
        q_key: GSI_QKEY,
        ..Options::default()
    };
    let mut pair = Pair::with(&options);
    pair.b.post_receive(&[(KEY, DATA, 300)]);
    pair.a.post(&Wqe::datagram(2, GSI_QKEY, 0, DATA, 256));
    pair.run_until_idle();
    let cqe = &pair.b.receives()[0];
    assert_eq!((cqe.flags_rqpn() & 0xff_ffff, cqe.byte_cnt()), (1, 296));
    assert_eq!(pair.a.qp.query().next_send_psn(), FIRST_PSN + 1);
}

#[test]
fn unreliable_messages_arrive_and_are_never_answered() {
    for bytes in [0, 1, MTU, MTU + 1, 5 * MTU] {
        let mut pair = Pair::with(&unreliable());
        let data = pattern(bytes as usize, 4);
        pair.a.host.write(DATA, &data);
        pair.b.post_receive(&[(KEY, DATA, 4096)]);
        pair.a.post(&Wqe::send(DATA, bytes));
        pair.a.post(&Wqe::write(DATA, bytes, DATA + 0x2000, KEY));
        pair.run_until_idle();
        assert_eq!(pair.a.send_results(), [(0, 0), (1, 0)]);
        assert_eq!(pair.b.receive_results(), [(0, 0)]);
        assert_eq!(pair.b.host.read(DATA, data.len()), data);
        assert_eq!(pair.b.host.read(DATA + 0x2000, data.len()), data);
        assert_eq!(pair.operations(Port::B), []);
        assert_eq!(pair.a.qp.timer_due(), None);
    }
}

#[test]
fn unreliable_message_with_a_hole_is_lost_and_its_receive_serves_the_next() {
    let mut pair = Pair::with(&unreliable());
    let data = pattern(3 * MTU as usize, 4);
    pair.a.host.write(DATA, &data);
    pair.b.post_receive(&[(KEY, DATA, 4096)]);
    pair.filter = Box::new(|_, count, _| count != 1);
    pair.a.post(&Wqe::send_inline(&[0xee; 600]));
    pair.run_until_idle();
    assert_eq!(pair.b.host.completions.len(), 0);
    pair.a.post(&Wqe::send(DATA, 3 * MTU));
    pair.run_until_idle();
    assert_eq!(pair.b.receive_results(), [(0, 0)]);
    assert_eq!(pair.b.host.read(DATA, data.len()), data);
}

#[test]
fn unreliable_write_without_rights_is_dropped() {
    let mut pair = Pair::with(&unreliable());
    pair.a.post(&Wqe::write(DATA, 4, DATA, NO_KEY));
    pair.run_until_idle();
    assert_eq!(pair.a.send_results(), [(0, 0)]);
    assert_eq!(pair.b.qp.state(), State::ReadyToSend);
    assert_eq!(pair.b.host.events, [mlx_prm::EventType(0); 0]);
}

#[test]
fn reads_on_an_unreliable_connection_are_operation_errors() {
    let mut pair = Pair::with(&unreliable());
    pair.a.post(&Wqe::read(DATA, 4, DATA, KEY));
    pair.run_until_idle();
    assert_eq!(pair.a.send_results(), [(0, Syndrome::LOCAL_QP_OP_ERR.0)]);
}

#[test]
fn unreliable_connection_sends_again_after_an_error_in_the_middle_of_a_message() {
    let mut pair = Pair::with(&unreliable());
    let half = Wqe::send(DATA, 2 * MTU).data(NO_KEY, DATA, MTU);
    pair.a.post(&half);
    pair.a.post(&Wqe::send(DATA, 4));
    pair.run_until_idle();
    let protection = Syndrome::LOCAL_PROT_ERR.0;
    assert_eq!(pair.a.send_results(), [(0, protection), (1, FLUSHED)]);
    assert_eq!(pair.a.qp.state(), State::SendQueueError);
    pair.a.modify(Transition::SqErrToRts);
    pair.b.post_receive(&[(KEY, DATA, 64)]);
    pair.a.post(&Wqe::send(DATA, 4));
    pair.run_until_idle();
    assert_eq!(pair.a.send_results().last(), Some(&(2, 0)));
    assert_eq!(
        pair.b.receive_results(),
        [(0, 0)],
        "the half message was abandoned"
    );
}

/// WQEs that were posted before SQERR2RTS are flushed, and WQEs that were posted after it are executed (IBTA volume 1,
/// "Send Queue Error": work requests after the failed one complete with a flush error; in RTS they are processed). The
/// test posts more WQEs than the device flushes in one call.
#[test]
fn a_send_posted_after_the_recovery_is_not_flushed_with_those_before_it() {
    let half = Wqe::send(DATA, 2 * MTU).data(NO_KEY, DATA, MTU);
    let too_long = Wqe::datagram(2, QKEY, 0, DATA, 1025);
    let datagram = Wqe::datagram(2, QKEY, 0, DATA, 4);
    for (options, bad, good, syndrome, blocks) in [
        (
            datagrams(),
            too_long,
            datagram,
            Syndrome::LOCAL_LENGTH_ERR,
            2,
        ),
        (
            unreliable(),
            half,
            Wqe::send(DATA, 4),
            Syndrome::LOCAL_PROT_ERR,
            1,
        ),
    ] {
        let mut pair = Pair::with(&options);
        pair.a.post(&bad);
        for _ in 0..20 {
            pair.a.post(&good);
        }
        while pair.a.qp.state() != State::SendQueueError {
            assert!(pair.a.qp.pending(), "the first WQE fails");
            pair.a.qp.run(&mut pair.a.host);
        }
        pair.a.modify(Transition::SqErrToRts);
        pair.a.post(&good);
        pair.run_until_idle();
        let flushed = (1..=20).map(|place| (place * blocks, FLUSHED));
        let expected: Vec<(u16, u8)> = std::iter::once((0, syndrome.0))
            .chain(flushed)
            .chain([(21 * blocks, 0)])
            .collect();
        assert_eq!(pair.a.send_results(), expected);
        assert_eq!(pair.a.qp.state(), State::ReadyToSend);
    }
}

#[test]
fn packets_of_another_transport_are_dropped() {
    let mut pair = Pair::new();
    pair.a.post(&Wqe::send_inline(&[1; 4]));
    pair.a.run();
    let frame = pair.a.host.frames.pop_front().expect("a packet to copy");
    let mut packet = Packet::parse(&frame).expect("our own packet");
    packet.bth.opcode = Opcode::uc(Operation::SendOnly).expect("defined");
    packet.headers = Headers::NONE;
    pair.b.post_receive(&[(KEY, DATA, 64)]);
    let frame = packet.emit();
    pair.deliver(Port::B, &frame);
    pair.run_until_idle();
    assert_eq!(pair.b.host.completions.len(), 0);
}

#[test]
fn key_changes_reach_the_function_in_order_and_complete() {
    for service in [0, REG_UMR] {
        let mut pair = Pair::changed(|options| options.service = service);
        pair.a.post(&Wqe::umr(0x4400, &[7; 64]));
        pair.a
            .post(&Wqe::umr(0x5500, &[]).unsignalled().flags(UMR_FENCED));
        pair.run_until_idle();
        assert_eq!(pair.a.host.umrs, [(0x4400, vec![7; 64]), (0x5500, vec![])]);
        assert_eq!(pair.a.send_results(), [(0, 0)]);
        assert_eq!(pair.a.sends()[0].send_wqe_opcode(), 0x25);
    }
}

#[test]
fn a_wqe_behind_a_key_change_waits_for_it_or_is_a_driver_bug() {
    // Fence modes 1 and 4 wait for a UMR, mode 3 waits for everything, mode 2 waits only for reads.
    for (mode, complaints) in [(0, 1), (1, 0), (2, 1), (3, 0), (4, 0)] {
        let mut pair = Pair::new();
        pair.b.post_receive(&[(KEY, DATA, 64)]);
        pair.b.post_receive(&[(KEY, DATA, 64)]);
        pair.a.post(&Wqe::umr(0x4400, &[7; 64]));
        pair.a.post(&Wqe::send(DATA, 64).flags(mode << 5));
        pair.a.post(&Wqe::send(DATA, 64));
        pair.run_until_idle();
        assert_eq!(pair.a.send_results(), [(0, 0), (3, 0), (4, 0)]);
        assert_eq!(pair.a.host.bugs.len(), complaints, "mode {mode}");
    }
}

/// In an InfiniBand subnet, an address vector without its extension is sufficient. UCX's `ud_x` posts such vectors if
/// the device has `compact_address_vector` (`uct_ib_mlx5_wqe_av_size`). On Ethernet the extension is required, because
/// it contains the destination.
#[test]
fn an_address_vector_without_its_extension_is_enough_inside_a_subnet() {
    for lid in [Some(5), None] {
        let mut pair = Pair::with(&datagrams());
        let side = &mut pair.a;
        side.host.lid = lid;
        side.host.write(DATA, &[9; 20]);
        let mut wqe = Wqe::datagram(2, QKEY, 0, DATA, 20);
        let data = wqe.body.split_off(48);
        wqe.body.truncate(16);
        wqe.body[8] = 0;
        wqe.body[14..16].copy_from_slice(&[0, 7]);
        wqe.body.extend(data);
        side.post(&wqe);
        side.run();
        if lid.is_none() {
            assert_eq!(side.send_results(), [(0, Syndrome::LOCAL_QP_OP_ERR.0)]);
            continue;
        }
        assert_eq!(side.send_results(), [(0, 0)]);
        let frame = side.host.frames.pop_front().expect("a frame");
        let packet = Packet::parse_infiniband(&frame).expect("a packet");
        assert_eq!(
            (packet.dest_qpn().get(), packet.payload),
            (qpn(2), &[9; 20][..])
        );
        assert!(matches!(packet.link, Link::InfiniBand(lrh) if lrh.dlid == 7));
    }
}

/// A WQE after a local invalidation needs no fence. Linux `mlx5_ib_post_send` (drivers/infiniband/hw/mlx5/wr.c) fences
/// the WQE after a registration (`next_fence`), but not after a local invalidation: NFS over RDMA posts its Sends like
/// that.
#[test]
fn a_wqe_behind_a_local_invalidation_needs_no_fence() {
    let mut pair = Pair::new();
    pair.b.post_receive(&[(KEY, DATA, 64)]);
    pair.a.post(&Wqe::invalidate(0x4400));
    pair.a.post(&Wqe::invalidate(0x5500));
    pair.a.post(&Wqe::send(DATA, 64));
    pair.run_until_idle();
    assert_eq!(pair.a.send_results(), [(0, 0), (2, 0), (4, 0)]);
    assert_eq!(pair.a.host.bugs, [""; 0]);
}

/// A UMR may carry a translation table that is longer than the largest message, because a table is not a message. The
/// kernel's queue pair for UMRs has `log_msg_max` 12 (Linux `__mlx5_ib_modify_qp`) and gets tables of up to a megabyte
/// (`mlx5r_umr_update_mr_pas`).
#[test]
fn a_key_changes_by_a_table_longer_than_the_largest_message() {
    for service in [0, REG_UMR] {
        let mut pair = Pair::with(&Options {
            service,
            log_msg_max: 12,
            ..Options::default()
        });
        let table = pattern(64 << 10, 3);
        pair.a.host.write(DATA, &table);
        pair.a.post(&Wqe::umr_pointed(0x4400, DATA, 64 << 10));
        pair.run_until_idle();
        assert_eq!(pair.a.send_results(), [(0, 0)]);
        assert_eq!(pair.a.host.umrs, [(0x4400, table)]);
        pair.a.post(&Wqe::send(DATA, 4097));
        pair.run_until_idle();
        let results = pair.a.send_results();
        let expected = if service == REG_UMR {
            Syndrome::LOCAL_QP_OP_ERR // it sends nothing
        } else {
            Syndrome::LOCAL_LENGTH_ERR
        };
        assert_eq!(results[1].1, expected.0, "a message is still limited");
    }
}

/// A UMR WQE must contain exactly the entries that its `klm_octwords` announces. For a bind of zero bytes, rdma-core's
/// `set_bind_wr` ends the WQE after the key context (`ds` 8). Otherwise it pads the inline entries to whole blocks.
/// Linux `set_reg_wr` and `handle_local_inv` do the same.
#[test]
fn a_key_change_brings_the_entries_it_announces_and_no_more() {
    let announces = |octowords: u32, bytes: usize| {
        let mut wqe = Wqe::umr(0x4400, &[0; 64]);
        let mut control = UmrCtrlSeg::new();
        control.set_inline(true).set_klm_octwords(octowords);
        wqe.body.truncate(48 + 64);
        wqe.body[..48].copy_from_slice(control.as_array());
        wqe.body.resize(48 + 64 + bytes, 0);
        wqe
    };
    let pointed = |octowords: u32, bytes: u32| {
        let mut wqe = Wqe::umr_pointed(0x4400, DATA, bytes);
        let mut control = UmrCtrlSeg::new();
        control.set_klm_octwords(octowords);
        wqe.body[..48].copy_from_slice(control.as_array());
        wqe
    };
    for (wqe, is_good) in [
        (announces(0, 0), true),
        (announces(0, 64), false),
        (announces(1, 16), false),
        (announces(1, 64), true),
        (announces(4, 64), true),
        (announces(4, 0), false),
        (announces(5, 64), false),
        (announces(5, 128), true),
        (pointed(8, 128), true),
        (pointed(8, 64), false),
        (pointed(0, 64), false),
        (pointed(4, 0), false),
    ] {
        let mut pair = Pair::new();
        pair.a.post(&wqe);
        pair.run_until_idle();
        let expected = if is_good {
            0
        } else {
            Syndrome::LOCAL_QP_OP_ERR.0
        };
        assert_eq!(pair.a.send_results(), [(0, expected)], "{wqe:x?}");
        assert_eq!(pair.a.host.bugs.is_empty(), is_good);
    }
}

#[test]
fn refused_key_change_is_a_bind_error() {
    let mut pair = Pair::new();
    pair.a.post(&Wqe::umr(NO_KEY, &[]));
    pair.run_until_idle();
    assert_eq!(pair.a.send_results(), [(0, Syndrome::MW_BIND_ERR.0)]);
}
