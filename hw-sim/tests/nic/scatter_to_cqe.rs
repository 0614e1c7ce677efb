//! Tests of scatter to CQE: the device writes short data into the CQE and not to memory (QPC `cs_res` for receives,
//! `cs_req` for responses to requests). As rdma-core expects (providers/mlx5/cq.c), the data is in the first half of
//! the CQE, or in the 64 bytes before the CQE.

use hw_sim::link::Port;
use hw_sim::qp::Qp;
use hw_sim::wire::Operation;
use mlx_prm::{CmdStatus, Cqe64, CqeOpcode, ServiceType, Syndrome};

use crate::bench::{Bench, Failure, Resources, cq_input, list, modest, qp_input};
use crate::rc_support::*;

const NOTHING: [u8; 64] = [0xee; 64];
/// `cs_req` and `cs_res` for data of up to 32 bytes, and for data of up to 64 bytes.
const UP_TO_32: (u32, u32) = (0x11, 1);
const UP_TO_64: (u32, u32) = (0x22, 2);

fn pair((cs_req, cs_res): (u32, u32)) -> Pair {
    let mut pair = Pair::with(&Options {
        cs_req,
        cs_res,
        ..Options::default()
    });
    for side in [&mut pair.a, &mut pair.b] {
        side.host.write(DATA, &NOTHING);
    }
    pair
}

/// Returns the data in a CQE: of up to 32 bytes, of up to 64 bytes, or `None` if the CQE has no data.
fn in_entry(side: &Side, cqe: &Cqe64) -> Option<Vec<u8>> {
    let bytes = usize::try_from(cqe.byte_cnt()).expect("small");
    match cqe.format() {
        0 => None,
        1 => Some(cqe.as_array()[..bytes].to_vec()),
        2 => Some(side.host.first_halves.last().expect("a wide entry")[..bytes].to_vec()),
        other => panic!("format {other}"),
    }
}

fn sent_and_received(scatter: (u32, u32), bytes: u32) -> (Vec<u8>, Option<Vec<u8>>, Vec<u8>) {
    let mut pair = pair(scatter);
    let data = pattern(bytes as usize, 3);
    pair.a.host.write(DATA, &data);
    pair.b.post_receive(&[(KEY, DATA, 4096)]);
    pair.a.post(&Wqe::send(DATA, bytes));
    pair.run_until_idle();
    let receives = pair.b.receives();
    assert_eq!(receives.len(), 1, "{bytes} bytes");
    assert_eq!(receives[0].opcode(), CqeOpcode::RESP_SEND);
    assert_eq!((receives[0].byte_cnt(), receives[0].qpn()), (bytes, qpn(2)));
    let memory = pair.b.host.read(DATA, 64).to_vec();
    (data, in_entry(&pair.b, &receives[0]), memory)
}

#[test]
fn a_short_send_lies_in_the_entry_and_not_in_memory() {
    for (scatter, bytes) in [(UP_TO_32, [1, 31, 32]), (UP_TO_64, [1, 33, 64])] {
        for bytes in bytes {
            let (data, entry, memory) = sent_and_received(scatter, bytes);
            assert_eq!(
                (entry, memory),
                (Some(data), NOTHING.to_vec()),
                "{bytes} bytes"
            );
        }
    }
}

#[test]
fn an_empty_or_a_longer_send_is_scattered_to_memory_as_ever() {
    for (scatter, bytes) in [(UP_TO_32, [0, 33, 4 * MTU]), (UP_TO_64, [0, 65, 4 * MTU])] {
        for bytes in bytes {
            let (data, entry, memory) = sent_and_received(scatter, bytes);
            let compared = data.len().min(64);
            assert_eq!(entry, None);
            assert_eq!(memory[..compared], data[..compared], "{bytes} bytes");
        }
    }
}

#[test]
fn immediate_data_and_an_invalidated_key_stay_beside_the_bytes() {
    let mut pair = pair(UP_TO_32);
    pair.a.host.write(DATA, &pattern(8, 1));
    for _ in 0..2 {
        pair.b.post_receive(&[(KEY, DATA, 64)]);
    }
    pair.a.post(&Wqe::send_immediate(DATA, 8, 0x0102_0304));
    pair.a.post(&Wqe::send_invalidate(DATA, 8, READ_ONLY));
    pair.run_until_idle();
    let seen: Vec<_> = pair
        .b
        .receives()
        .iter()
        .map(|cqe| (cqe.opcode(), cqe.format(), cqe.imm_inval_pkey()))
        .collect();
    assert_eq!(
        seen,
        [
            (CqeOpcode::RESP_SEND_IMM, 1, 0x0102_0304),
            (CqeOpcode::RESP_SEND_INV, 1, READ_ONLY),
        ]
    );
}

#[test]
fn a_shared_receive_queues_wqe_is_named_by_its_index() {
    let mut pair = Pair::with(&Options {
        cs_res: 1,
        shared_receive_queue: true,
        ..Options::default()
    });
    pair.b.post_receive(&[(KEY, DATA, 64)]);
    pair.b.post_receive(&[(KEY, DATA, 64)]);
    for _ in 0..2 {
        pair.a.post(&Wqe::send_inline(&pattern(12, 5)));
    }
    pair.run_until_idle();
    let receives = pair.b.receives();
    let seen: Vec<_> = receives
        .iter()
        .map(|cqe| (cqe.wqe_counter(), in_entry(&pair.b, cqe)))
        .collect();
    assert_eq!(seen, [(0, Some(pattern(12, 5))), (3, Some(pattern(12, 5)))]);
}

#[test]
fn an_unreliable_connection_scatters_to_the_entry_too() {
    let mut pair = Pair::with(&Options {
        service: ServiceType::UC.bits(),
        cs_res: 1,
        ..Options::default()
    });
    pair.b.post_receive(&[(KEY, DATA, 64)]);
    pair.a.post(&Wqe::send_inline(&pattern(12, 5)));
    pair.run_until_idle();
    assert_eq!(
        in_entry(&pair.b, &pair.b.receives()[0]),
        Some(pattern(12, 5))
    );
}

/// The device does not access the receive buffer if the data is written into the CQE. So the device checks the length
/// of the receive, but not its key.
#[test]
fn a_short_send_that_its_receive_has_no_room_for_is_a_length_error() {
    let mut pair = pair(UP_TO_32);
    pair.b.post_receive(&[(NO_KEY, DATA, 8)]);
    pair.b.post_receive(&[(KEY, DATA, 8)]);
    pair.a.post(&Wqe::send_inline(&pattern(8, 5)));
    pair.run_until_idle();
    assert_eq!(pair.b.receive_results(), [(0, 0)]);
    pair.a.post(&Wqe::send_inline(&pattern(9, 5)));
    pair.run_until_idle();
    assert_eq!(
        pair.b.receive_results()[1],
        (1, Syndrome::LOCAL_LENGTH_ERR.0)
    );
    assert_eq!(pair.b.receives()[1].format(), 0, "errors have no data");
}

#[test]
fn a_write_with_immediate_goes_to_memory_however_short_it_is() {
    let mut pair = pair(UP_TO_32);
    pair.a.host.write(DATA, &pattern(8, 2));
    pair.b.post_receive(&[]);
    pair.a.post(&Wqe::write_immediate(DATA, 8, DATA, 7));
    pair.run_until_idle();
    assert_eq!(pair.b.receives()[0].format(), 0);
    assert_eq!(pair.b.host.read(DATA, 8), pattern(8, 2));
}

#[test]
fn a_short_read_comes_back_in_the_entry() {
    for (scatter, bytes, expected) in [
        (UP_TO_32, 32, true),
        (UP_TO_32, 33, false),
        (UP_TO_64, 64, true),
        (UP_TO_64, 65, false),
        ((0, 1), 8, false),
    ] {
        let mut pair = pair(scatter);
        let data = pattern(bytes as usize, 9);
        pair.b.host.write(DATA + 128, &data);
        pair.a.post(&Wqe::read(DATA, bytes, DATA + 128, KEY));
        pair.run_until_idle();
        let sends = pair.a.sends();
        assert_eq!(
            (sends[0].send_wqe_opcode(), sends[0].byte_cnt()),
            (0x10, bytes)
        );
        let (entry, memory) = (in_entry(&pair.a, &sends[0]), pair.a.host.read(DATA, 8));
        if expected {
            assert_eq!(
                (entry, memory),
                (Some(data), &NOTHING[..8]),
                "{bytes} bytes"
            );
        } else {
            assert_eq!((entry, memory), (None, &data[..8]), "{bytes} bytes");
        }
    }
}

/// Returns a number in the byte order of the simulated little-endian host.
fn in_host_order(value: u64) -> [u8; 8] {
    let mut bytes = value.to_be_bytes();
    bytes.reverse();
    bytes
}

#[test]
fn the_original_of_an_atomic_is_in_the_cqe_in_memory_order() {
    let mut pair = pair(UP_TO_32);
    pair.b.host.write(DATA + 128, &in_host_order(77));
    pair.a.post(&Wqe::fetch_add(DATA, DATA + 128, KEY, 3));
    pair.a.post(&Wqe::compare_swap(DATA, DATA + 128, 80, 1));
    pair.run_until_idle();
    let sends = pair.a.sends();
    let seen: Vec<_> = sends.iter().map(|cqe| in_entry(&pair.a, cqe)).collect();
    let found = |value: u64| Some(in_host_order(value).to_vec());
    assert_eq!(seen, [found(77), found(80)]);
    assert_eq!(pair.a.host.read(DATA, 64), NOTHING);
}

#[test]
fn a_read_whose_answer_is_lost_is_in_the_entry_once() {
    let mut pair = pair(UP_TO_32);
    pair.b.host.write(DATA + 128, &pattern(16, 4));
    pair.filter = Box::new(|from, number, _| from != Port::B || number > 0);
    pair.a.post(&Wqe::read(DATA, 16, DATA + 128, KEY));
    assert!(pair.run_while(|pair| pair.a.sends().is_empty()));
    assert_eq!(pair.count(Port::A, Operation::ReadRequest), 2);
    let sends = pair.a.sends();
    assert_eq!(sends.len(), 1);
    assert_eq!(in_entry(&pair.a, &sends[0]), Some(pattern(16, 4)));
}

/// A short read without a CQE is a driver bug, because its data has no destination. Linux sets `cs_req` only if every
/// request is signalled, or if a program promises to signal the requests whose data it needs
/// (drivers/infiniband/hw/mlx5/qp.c, `configure_requester_scat_cqe`).
#[test]
fn a_short_read_without_an_entry_has_nowhere_to_put_its_data() {
    let mut pair = pair(UP_TO_32);
    let mut read = Wqe::read(DATA, 8, DATA + 128, KEY);
    read.flags = 0;
    pair.a.post(&read);
    pair.a.post(&Wqe::read(DATA, 40, DATA + 128, KEY));
    pair.run_until_idle();
    assert_eq!(pair.a.send_results(), [(1, 0)]);
    assert_eq!(pair.a.host.bugs.len(), 1, "{:?}", pair.a.host.bugs);
}

#[test]
fn sizes_that_do_not_exist_and_services_without_them_are_refused() {
    for (service, cs_req, cs_res, good) in [
        (ServiceType::RC, 0x11, 2, true),
        (ServiceType::RC, 0x33, 0, false),
        (ServiceType::RC, 0, 3, false),
        (ServiceType::UC, 0, 1, true),
        (ServiceType::UC, 0x11, 0, false),
        (ServiceType::UD, 0, 1, false),
    ] {
        let context = create_context(&Options {
            service: service.bits(),
            cs_req,
            cs_res,
            ..Options::default()
        });
        let created = Qp::create(qpn(1), &context, memory(&context));
        assert_eq!(created.is_ok(), good, "{service:?} {cs_req:#x} {cs_res}");
    }
}

fn cq(bench: &mut Bench, resources: &Resources, cqe_sz: u32) -> Result<u32, Failure> {
    let (ring, record) = bench.ring_and_record();
    let mut create = cq_input(resources.uar, resources.eq.number, 4, record);
    create.cq_context_mut().set_cqe_sz(cqe_sz);
    Ok(bench.exec_with(&create, &list(&[ring]))?.cqn())
}

/// Data of up to 64 bytes needs CQEs of 128 bytes. With CQEs of 64 bytes, the 64 bytes before a CQE are the previous
/// CQE.
#[test]
fn sixty_four_bytes_need_entries_of_twice_that_size() {
    let (mut bench, resources) = Bench::usable(modest());
    let [narrow, wide] = [0, 1].map(|size| cq(&mut bench, &resources, size).unwrap());
    let (page, record) = bench.ring_and_record();
    for (send, receive, (cs_req, cs_res), status) in [
        (narrow, narrow, UP_TO_32, CmdStatus::OK),
        (wide, wide, UP_TO_32, CmdStatus::OK),
        (wide, wide, UP_TO_64, CmdStatus::OK),
        (wide, narrow, UP_TO_64, CmdStatus::BAD_PARAM),
        (narrow, wide, UP_TO_64, CmdStatus::BAD_PARAM),
    ] {
        let mut create = qp_input(&resources, send, record);
        create
            .qpc_mut()
            .set_cqn_rcv(receive)
            .set_cs_req(cs_req)
            .set_cs_res(cs_res);
        assert_eq!(
            bench.status_with(&create, &list(&[page])),
            status,
            "{cs_req:#x} {cs_res}"
        );
    }
    let mut profile = modest();
    profile
        .general
        .set(|page| _ = page.set_sctr_data_cqe(false));
    let (mut bench, resources) = Bench::usable(profile);
    let cqn = cq(&mut bench, &resources, 0).unwrap();
    let mut create = qp_input(&resources, cqn, record);
    create.qpc_mut().set_cs_res(1);
    assert_eq!(
        bench.status_with(&create, &list(&[page])),
        CmdStatus::BAD_PARAM
    );
}

/// A ConnectX-5 has padded CQEs of 128 bytes (`cqe_128_always`). Linux reports to programs that CQEs may be padded
/// (`MLX5_IB_QUERY_DEV_RESP_FLAGS_CQE_128B_PAD` in drivers/infiniband/hw/mlx5/main.c); libmlx5 then requests `cqe_sz`
/// 2.
#[test]
fn padded_entries_of_128_bytes_are_a_connectx_5s() {
    const PADDED: u32 = 2;
    let mut without = modest();
    without
        .general
        .set(|page| _ = page.set_cqe_128_always(false));
    let refused = Some(Failure::Refused(CmdStatus::BAD_PARAM));
    for (profile, failure) in [(modest(), None), (without, refused)] {
        let (mut bench, resources) = Bench::usable(profile);
        assert_eq!(cq(&mut bench, &resources, PADDED).err(), failure);
    }
}
