//! Commands at random, with pauses at random, and snapshots with wrong bits.

use rand_chacha::ChaCha20Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};

use super::refusals::rich;
use super::*;

/// Returns a number below a limit.
fn below(random: &mut ChaCha20Rng, limit: u32) -> u32 {
    random.next_u32() % limit
}

fn one_of<T: Copy>(random: &mut ChaCha20Rng, all: &[T]) -> T {
    let at = below(random, u32::try_from(all.len()).expect("few"));
    all[usize::try_from(at).expect("few")]
}

/// Does something at random with a model at the time `now`, and returns what came of it, without times. Two models in
/// the same state, with the same random numbers, do the same.
fn act(model: &mut Model, random: &mut ChaCha20Rng, now: Moment) -> String {
    let host = one_of(random, &[HOST, OTHER]);
    let ids: Vec<u16> = model.controllers().map(Controller::id).collect();
    let id = if ids.is_empty() {
        1
    } else {
        one_of(random, &ids)
    };
    let nsid = one_of(random, &[0, 1, 2, 3, u32::MAX]);
    let mut command = |sqe: &Sqe| format!("{:?}", model.command(id, 0, sqe, 1 << 17, now));
    let said = match below(random, 16) {
        0 => {
            let subsystem = one_of(random, &[DISCOVERY, "nqn.2026-11.test:disks"]);
            let data = data(&name(subsystem), host, 0xffff);
            let made = model.connect(place(0), asked(0), &data, now);
            format!("{:?}", made.map(|one| (one.controller, one.connection)))
        }
        1 | 2 => {
            let queue = one_of(random, &[1, 2, 3]);
            let data = data(&disks(), host, id);
            let made = model.connect(place(queue), asked(queue), &data, now);
            format!("{:?}", made.map(|one| (one.queue, one.connection)))
        }
        3 => {
            let value = one_of(
                random,
                &[
                    0x0046_0001,
                    0x0046_0001,
                    0x0046_0000,
                    0x0046_4001,
                    0x0045_0001,
                ],
            );
            command(&sqe(0x7f, 0, [0, 0x14, value, 0]))
        }
        4 => command(&sqe(0x7f, 4, [0, one_of(random, &[0x14, 0x1c]), 0, 0])),
        5 | 6 => {
            let feature = one_of(random, &[1, 4, 5, 0x0b, 0x0b, 0x0f, 0x82, 0x84]);
            let values = [0, 1, 4, 0x100, 0x900, 1 << 31, 1000, 0xffff];
            command(&sqe(0x09, nsid, [feature, one_of(random, &values), 0, 0]))
        }
        7 => {
            let feature = one_of(random, &[1, 4, 5, 7, 0x0b, 0x0f, 0x81, 0x82, 0x84]);
            command(&sqe(0x0a, nsid, [feature, 1, 0, 0]))
        }
        8 => command(&sqe(0x0c, 0, [0; 4])),
        9 => {
            let page = one_of(random, &[1, 2, 4, 0x0c, 0x70, 0x80]);
            let retain = one_of(random, &[0, 1 << 15]);
            command(&sqe(0x02, nsid, [page | retain | 15 << 16, 0, 0, 0]))
        }
        10 | 11 => {
            let opcode = one_of(random, &[0x0d, 0x0d, 0x11, 0x15, 0x0e]);
            let dword = one_of(random, &[0, 1, 2]) | below(random, 7) << 8;
            let keys = [0; 2].map(|_| u64::from(below(random, 3)));
            let sqe = sqe(opcode, one_of(random, &[1, 2]), [dword, 1, 0, 0]);
            // Only an I/O queue carries these commands.
            let has_queue = model
                .controller(id)
                .is_some_and(|one| one.queues().next().is_some());
            if has_queue {
                format!("{:?}", model.reserve(id, 1, &sqe, keys, 4096))
            } else {
                String::new()
            }
        }
        12 => {
            let (queue, connection) = (
                one_of(random, &[0, 1, 2]),
                u64::from(random.next_u32() % 40),
            );
            model.queue_lost(id, queue, connection);
            String::new()
        }
        13 => {
            let access = one_of(random, &[Access::Optimized, Access::Inaccessible]);
            format!("{:?}", model.set_access(1, 1, access))
        }
        14 => {
            model.limit_queues(id, one_of(random, &[1, 7, 128]));
            model.hear(id, now);
            format!("{:?}", model.next_event(id))
        }
        _ => {
            let due = model.expire(now);
            format!("{:?}", due.map(|due| due - now))
        }
    };
    format!("{said} {:?}", model.take_notices())
}

/// One model goes through the pauses, and the other one has none. Their clocks differ by the pauses.
#[test]
fn a_model_with_pauses_does_what_one_without_does() {
    let mut parked = 0;
    for seed in 0..40 {
        let mut random = ChaCha20Rng::seed_from_u64(seed);
        let mut never = model(true);
        never.add_namespace(&disks(), disk()).expect("a namespace");
        let mut paused = like(&never);
        let (mut now, mut pauses) = (secs(1), Moment::ZERO);
        for step in 0..400 {
            now += Moment::from_millis(one_of(&mut random, &[0, 10, 300]));
            let mut same = random.clone();
            let said = act(&mut never, &mut random, now);
            assert_eq!(
                act(&mut paused, &mut same, now + pauses),
                said,
                "seed {seed}, step {step}"
            );
            if below(&mut random, 10) == 0 {
                let pause = secs(below(&mut random, 1000).into());
                paused = moved(&paused, now + pauses, now + pauses + pause);
                paused.take_notices();
                pauses += pause;
                parked += 1;
            }
        }
        assert_eq!(paused.park(now + pauses), never.park(now), "seed {seed}");
    }
    assert!(parked > 1000, "{parked}");
}

/// Each bit of a snapshot is wrong once. Such a snapshot is no snapshot any more, is refused, or is that of another
/// possible model.
#[test]
fn a_snapshot_with_a_wrong_bit_is_refused_or_makes_a_model_that_goes_on() {
    let old = rich();
    let bytes = postcard::to_stdvec(&old.park(secs(1)).expect("parked")).expect("bytes");
    let mut next = like(&old);
    let before = next.park(secs(1));
    let (mut refused, mut resumed) = (0, 0);
    for bit in 0..bytes.len() * 8 {
        let mut wrong = bytes.clone();
        wrong[bit / 8] ^= 1 << (bit % 8);
        let Ok(snapshot) = postcard::from_bytes::<ModelSnapshot>(&wrong) else {
            continue;
        };
        if next.resume(&snapshot, secs(1)).is_err() {
            refused += 1;
            continue;
        }
        resumed += 1;
        let mut model = core::mem::replace(&mut next, like(&old));
        let mut random = ChaCha20Rng::seed_from_u64(7);
        for second in 1..4 {
            act(&mut model, &mut random, secs(second));
        }
        moved(&model, secs(4), secs(4));
    }
    assert_eq!(next.park(secs(1)), before, "refusals change nothing");
    assert!(refused > 100 && resumed > 100, "{refused} {resumed}");
}
