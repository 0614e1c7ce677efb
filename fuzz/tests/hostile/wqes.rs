//! Hostile software on one queue pair: invalid work queue entries, doorbells, doorbell records and transitions.
//!
//! Two functions have two connected queue pairs each. Hostile software of the first function uses one queue pair: it
//! posts corrupted entries to both queues, writes doorbell records and registers that contradict each other, and
//! commands transitions with corrupted contexts. Meanwhile and afterwards the other queue pairs carry messages as
//! usual. The firmware keeps running, memory without a key is unchanged, and after a reset no object is left.

use crate::extent;
use crate::honest::Longest;
use crate::live::{self, ATTACKED, MOST_US, RECEIVES, Spoil, World, data_segment, run};
use bolero::{TypeGenerator, check, produce};
use mlx_prm::*;
use zerocopy::IntoBytes;

/// One action of the software at its queue pair.
#[derive(Clone, Debug, TypeGenerator)]
enum Attack {
    /// Posts a send WQE that is valid except for flipped bits. Updates the doorbell record and writes the doorbell.
    Send {
        kind: u8,
        bytes: u16,
        remote: u8,
        spoil: Spoil,
        doorbell: Spoil,
    },
    /// Posts arbitrary bytes instead of a send WQE.
    Raw { bytes: Vec<u8>, spoil: Spoil },
    /// The peer posts a valid request, which uses the attacked side's receives and keys.
    PeerSends { kind: u8, bytes: u16 },
    /// Posts a receive WQE that is valid except for flipped bits.
    Receive { bytes: u16, spoil: Spoil },
    /// The peer posts a valid receive.
    PeerReceives { bytes: u16 },
    /// Changes the send or receive counter in the doorbell record.
    Record { send: bool, by: i16, spoil: Spoil },
    /// Writes the consumer index of the completion queue, and sometimes its arm word.
    Consumer {
        counter: u32,
        arm: Option<u32>,
        spoil: Spoil,
    },
    /// Polls completions.
    Poll,
    /// Commands a state transition with a corrupted context.
    Transition { which: u8, mask: u32, spoil: Spoil },
    /// Connects both attacked queue pairs again.
    Reconnect,
    /// Virtual time passes.
    Wait { microseconds: u8 },
}

/// Returns a send WQE of some kind.
fn wqe(world: &World, at_a: bool, kind: u8, bytes: u16, remote: u8) -> Vec<u8> {
    let (own, peer) = if at_a {
        (&world.a, &world.b)
    } else {
        (&world.b, &world.a)
    };
    let (live, peer) = (&own.qps[ATTACKED], &peer.qps[ATTACKED]);
    // The length is mostly inside the page.
    let bytes = u32::from(bytes % 5_000);
    let memory = data_segment(live.key, live.va, bytes.max(1));
    let mut raddr = RaddrSeg::new();
    raddr
        .set_rkey(peer.key)
        .set_raddr(peer.va + u64::from(remote) * 8);
    let raddr = raddr.as_bytes().to_vec();
    let mut imm = 0x1234_5678;
    let (opcode, body) = match kind % 13 {
        0 => (WqeOpcode::SEND, memory),
        1 => (WqeOpcode::SEND_IMM, memory),
        2 => {
            imm = peer.key;
            (WqeOpcode::SEND_INVAL, memory)
        }
        3 => (WqeOpcode::RDMA_WRITE, [raddr, memory].concat()),
        4 => (WqeOpcode::RDMA_WRITE_IMM, [raddr, memory].concat()),
        5 => (WqeOpcode::RDMA_READ, [raddr, memory].concat()),
        6 => (
            WqeOpcode::ATOMIC_CS,
            [raddr, vec![7; 16], data_segment(live.key, live.va, 8)].concat(),
        ),
        7 => (
            WqeOpcode::ATOMIC_FA,
            [raddr, vec![7; 16], data_segment(live.key, live.va, 8)].concat(),
        ),
        8 => (WqeOpcode::NOP, Vec::new()),
        9 => {
            imm = live.key;
            (
                WqeOpcode::UMR,
                [vec![0x80; 48], vec![0; 64], vec![0; 16]].concat(),
            )
        }
        10 => {
            let inline = usize::try_from(bytes % 100).unwrap();
            let mut data = ((1 << 31) | (bytes % 100)).to_be_bytes().to_vec();
            data.resize((4 + inline).next_multiple_of(16), 0x77);
            (WqeOpcode::SEND, data)
        }
        11 => (WqeOpcode::SEND, [memory.clone(), memory].concat()),
        // Most of these WQEs have more than one basic block.
        _ => (
            WqeOpcode::RDMA_WRITE,
            [raddr, memory.repeat(usize::from(remote) % 40 + 1)].concat(),
        ),
    };
    let mut control = CtrlSeg::new();
    control
        .set_opcode(u32::from(opcode.0))
        .set_ce(2)
        .set_imm(imm);
    control.set_ds(u32::try_from(1 + body.len() / 16).unwrap().min(0x3f));
    control
        .set_wqe_index(u32::from(live.sends))
        .set_qp_or_sq(live.qpn);
    [control.as_bytes(), &body].concat()
}

/// Returns a doorbell made of the first eight bytes of a WQE. The queue pair number is that of the attacked queue pair,
/// because another number might ring the doorbell of a healthy queue pair.
fn doorbell(wqe: &[u8], qpn: u32, spoil: Option<Spoil>) -> [u8; 8] {
    let mut value = [0; 8];
    let bytes = wqe.len().min(8);
    value[..bytes].copy_from_slice(&wqe[..bytes]);
    if let Some(spoil) = spoil {
        spoil.apply(&mut value);
    }
    value[4..7].copy_from_slice(&qpn.to_be_bytes()[1..]);
    value
}

impl Attack {
    fn make(&self, world: &mut World) {
        match self {
            Self::Send {
                kind,
                bytes,
                remote,
                spoil,
                doorbell: spoilt_doorbell,
            } => {
                let mut entry = wqe(world, true, *kind, *bytes, *remote);
                spoil.apply(&mut entry);
                world.a.place(ATTACKED, &entry);
                world.a.ring(doorbell(
                    &entry,
                    world.a.qps[ATTACKED].qpn,
                    Some(*spoilt_doorbell),
                ));
            }
            Self::Raw { bytes, spoil } => {
                if spoil.any() {
                    world.a.place(ATTACKED, bytes);
                    world
                        .a
                        .ring(doorbell(bytes, world.a.qps[ATTACKED].qpn, None));
                }
            }
            Self::PeerSends { kind, bytes } => {
                let entry = wqe(world, false, *kind, *bytes, 0);
                world.b.place(ATTACKED, &entry);
                world
                    .b
                    .ring(doorbell(&entry, world.b.qps[ATTACKED].qpn, None));
            }
            Self::Receive { bytes, spoil } => {
                let live = &world.a.qps[ATTACKED];
                let mut entry = data_segment(live.key, live.va, u32::from(bytes % 5_000));
                entry.extend(data_segment(0x100, 0, 0));
                spoil.apply(&mut entry);
                world.a.post_receive(ATTACKED, &entry);
            }
            Self::PeerReceives { bytes } => {
                let live = &world.b.qps[ATTACKED];
                let entry = data_segment(live.key, live.va, u32::from(*bytes));
                world.b.post_receive(ATTACKED, &entry);
            }
            Self::Record { send, by, spoil } => {
                let live = &mut world.a.qps[ATTACKED];
                let counter = if *send {
                    &mut live.sends
                } else {
                    &mut live.receives
                };
                if spoil.any() {
                    // A positive change is less than the length of the send ring.
                    *counter = counter.wrapping_add_signed(if *by > 0 { *by % 32 } else { *by });
                }
                let value = u32::from(*counter);
                world
                    .a
                    .bench
                    .memory
                    .store_be32(live.record + usize::from(*send) * 4, value);
            }
            Self::Consumer {
                counter,
                arm,
                spoil,
            } => {
                let cq = &world.a.qps[ATTACKED].cq;
                if spoil.any() {
                    world.a.bench.memory.store_be32(cq.record, *counter);
                }
                if let Some(word) = arm {
                    world.a.bench.memory.store_be32(cq.record + 4, *word);
                    let value = u64::from(*word) << 32 | u64::from(cq.number);
                    world
                        .a
                        .bench
                        .write64(u64::from(world.a.resources.uar) << 12 | 0x20, value);
                }
            }
            Self::Poll => while world.a.poll(ATTACKED).is_some() {},
            Self::Transition { which, mask, spoil } => transition(world, *which, *mask, *spoil),
            Self::Reconnect => world.reconnect(),
            Self::Wait { microseconds } => world.run(u64::from(*microseconds)),
        }
    }
}

fn transition(world: &mut World, which: u8, mask: u32, spoil: Spoil) {
    let qpn = Qpn::new(world.a.qps[ATTACKED].qpn);
    // These fields have the values of the original connection, unless `spoil` corrupts them.
    let mut good = Init2RtrQpIn::for_qp(qpn, if spoil.any() { mask } else { 0 });
    good.qpc_mut()
        .set_mtu(1)
        .set_log_msg_max(20)
        .set_remote_qpn(world.b.qps[ATTACKED].qpn);
    good.qpc_mut()
        .set_next_rcv_psn(live::FIRST_PSN)
        .set_next_send_psn(live::FIRST_PSN)
        .set_rre(true)
        .set_rwe(true);
    good.qpc_mut()
        .primary_address_path_mut()
        .set_rgid_rip(&live::gid(2))
        .set_rmac_31_0(0x5e00_0002);
    let opcode = [
        Opcode::RST2INIT_QP,
        Opcode::INIT2INIT_QP,
        Opcode::INIT2RTR_QP,
        Opcode::RTR2RTS_QP,
        Opcode::RTS2RTS_QP,
        Opcode::SQERR2RTS_QP,
        Opcode::SQD_RTS_QP,
        Opcode::TO_ERR_QP,
        Opcode::TO_RST_QP,
    ][usize::from(which) % 9];
    let mut input = good.as_bytes().to_vec();
    spoil.apply(&mut input[0x18..]);
    input[..2].copy_from_slice(&opcode.0.to_be_bytes());
    if matches!(opcode, Opcode::TO_ERR_QP | Opcode::TO_RST_QP) {
        input.truncate(0x10);
    }
    let submission = world.a.bench.prepare(&input, 16);
    world.a.bench.submit(&submission);
    run(&world.sim, 1);
    // The device may accept or reject the transition. The test only checks that it answers the command.
    assert!(
        !world.a.bench.entry(submission.slot).ownership(),
        "{opcode} is not answered"
    );
}

/// Hostile software on a queue pair affects only that queue pair.
#[test]
fn a_hostile_queue_pair_hurts_only_itself() {
    static BESIDE: Longest = Longest::new("a hostile queue pair", "us", MOST_US);
    let (iterations, time) = extent(3_000, 5);
    check!()
        .with_generator(produce::<Vec<Attack>>().with().len(0..80_usize))
        .with_iterations(iterations)
        .with_test_time(time)
        .for_each(|attacks| {
            let mut world = World::new();
            // Both sides post some valid receives, so that sends find a buffer.
            for _ in 0..RECEIVES / 2 {
                for end in [&mut world.a, &mut world.b] {
                    let entry = data_segment(end.qps[ATTACKED].key, end.qps[ATTACKED].va, 4_096);
                    end.post_receive(ATTACKED, &entry);
                }
            }
            for (number, attack) in attacks.iter().enumerate() {
                attack.make(&mut world);
                if number % 4 == 0 {
                    world.check_healthy(&BESIDE);
                }
            }
            world.run(2_000);
            assert_eq!(
                (world.a.syndrome(), world.b.syndrome()),
                (0, 0),
                "the firmware died"
            );
            world.a.check_canaries();
            world.b.check_canaries();
            world.check_healthy(&BESIDE);
            world.check_reset();
        });
    BESIDE.report();
}
