//! Tests with random commands, register writes and doorbells: none may panic or block the simulator.

use hw_sim::Profile;
use mlx_prm::*;
use rand::{Rng, RngCore, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::bench::{Bench, Resources, list, modest};

const ROUNDS: u32 = 3_000;

fn opcode(rng: &mut ChaCha8Rng) -> Opcode {
    // TEARDOWN_HCA and DISABLE_HCA are skipped, because they would end the test early.
    loop {
        let opcode = Opcode::ALL[rng.random_range(0..Opcode::ALL.len())];
        if !matches!(opcode, Opcode::TEARDOWN_HCA | Opcode::DISABLE_HCA) {
            return opcode;
        }
    }
}

/// Returns a command body that is mostly zero, so that it sometimes passes the check of reserved bits.
fn body(rng: &mut ChaCha8Rng, resources: &Resources, memory: u64) -> Vec<u8> {
    let mut bytes = vec![0; rng.random_range(8..0x400)];
    for _ in 0..rng.random_range(0..24) {
        let at = rng.random_range(0..bytes.len());
        let interesting = [1, 2, 3, 7, 0x0f, 0x1f, 0x3f, 0x80, 0xff, rng.random()];
        bytes[at] = interesting[rng.random_range(0..interesting.len())];
    }
    // Numbers of existing objects are written at dword offsets, where commands have object numbers.
    let numbers = [resources.uar, resources.pd, resources.eq.number];
    for _ in 0..rng.random_range(0..6) {
        let at = rng.random_range(0..bytes.len() / 4) * 4;
        let number = numbers[rng.random_range(0..numbers.len())];
        if let Some(word) = bytes.get_mut(at..at + 4) {
            word.copy_from_slice(&number.to_be_bytes());
        }
    }
    if bytes.len() > 0x120 {
        bytes[0x110..0x118].copy_from_slice(&memory.to_be_bytes());
    }
    bytes
}

fn noise(seed: u64, profile: Profile) {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let (mut bench, mut resources) = Bench::usable(profile);
    let (_, memory) = bench.alloc(1 << 20);
    for _ in 0..ROUNDS {
        match rng.random_range(0..10) {
            0 => {
                let offset = u64::from(rng.random_range(0..0x10_0000_u32)) & !3;
                bench.write32(offset.max(0x4000), rng.next_u32());
            }
            1 => {
                let register = [0x20, 0x40, 0x48, 0x800, 0x900, 0xa04][rng.random_range(0..6)];
                let uar = u64::from(resources.uar) << 12;
                bench.write64((uar | register) & !7, rng.next_u64());
            }
            _ => {
                let mut input = body(&mut rng, &resources, memory);
                input[..2].copy_from_slice(&opcode(&mut rng).0.to_be_bytes());
                let _ = bench.raw(&input, rng.random_range(8..0x200));
            }
        }
        bench.drain_eq(&mut resources.eq);
        if bench.bar.load_u8(0x23d) != 0 {
            return; // it is dead and reports it
        }
    }
    bench.exec(&NopIn::new()).expect("still answering");
}

#[test]
fn random_commands_are_refused_or_ignored_and_never_fatal_to_the_simulator() {
    for seed in 0..6 {
        noise(seed, modest());
    }
}

#[test]
fn random_commands_with_every_optional_feature() {
    let mut profile = modest();
    profile.general.set(|page| {
        page.set_fixed_buffer_size(true)
            .set_relaxed_ordering_write(true)
            .set_uc(true)
            .set_wq_signature(true)
            .set_sctr_data_cqe(true)
            .set_cqe_compression(true);
    });
    for seed in 100..104 {
        noise(seed, profile.clone());
    }
}

#[test]
fn a_fixed_size_list_of_the_largest_entities_does_not_overflow() {
    let mut profile = modest();
    profile
        .general
        .set(|page| _ = page.set_fixed_buffer_size(true));
    let (mut bench, resources) = Bench::usable(profile);
    let inner = bench.create_pa_key(resources.pd);
    let mut create = CreateMkeyIn::new();
    create.set_translations_octword_actual_size(2);
    create
        .memory_key_mkey_entry_mut()
        .set_pd(resources.pd)
        .set_qpn(0xff_ffff)
        .set_access_mode_1_0(3)
        .set_start_addr(u64::MAX - 0xfff)
        .set_len(0xfff)
        .set_log_page_size(63)
        .set_translations_octword_size(2);
    let entry = u64::from(inner);
    let status = bench.status_with(&create, &list(&[entry, 0, entry, 0]));
    assert_eq!(status, CmdStatus::BAD_PARAM);
}
