//! Register values and the boot phases, as a driver reads them.

use super::*;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::sync_channel;

fn segment() -> (InitSegment, SharedMemory) {
    let profile = Profile::default();
    let bar = SharedMemory::anonymous(profile.bar_bytes).unwrap();
    let mut segment = InitSegment::new(bar.clone(), &profile);
    segment.reset(0, boots(1_000));
    (segment, bar)
}

fn boots(until: u64) -> Boot {
    Boot {
        boots_until: until,
        ..Boot::default()
    }
}

/// A driver that sees `initializing` clear sees the whole segment. Such a driver may run in another thread, and
/// continues as soon as `initializing` is clear (Linux `mlx5_function_enable`). If a reset cleared the whole segment
/// first, including `initializing`, the driver would find the segment ready but without a revision.
#[test]
#[expect(
    clippy::disallowed_methods,
    reason = "a driver that is served by messages is another thread"
)]
fn a_driver_that_sees_the_firmware_ready_sees_the_whole_segment() {
    const ROUNDS: u32 = 500;
    let profile = Profile {
        bar_bytes: 1 << 16,
        ..Profile::default()
    };
    let bar = SharedMemory::anonymous(profile.bar_bytes).unwrap();
    let mut segment = InitSegment::new(bar.clone(), &profile);
    let boot = Boot {
        silent_until: 1,
        ..Boot::default()
    };
    let looking = AtomicU32::new(0);
    let revisions: Vec<u32> = std::thread::scope(|scope| {
        let (go, gone) = sync_channel(0);
        let (tell, told) = sync_channel(1);
        let looking = &looking;
        scope.spawn(move || {
            for round in gone {
                looking.store(round, Ordering::Release);
                while bar.load_be32(INITIALIZING) >> 31 == 1 {
                    std::hint::spin_loop();
                }
                tell.send(bar.load_be32(CMDIF_REV)).unwrap();
            }
        });
        let rounds = (1..=ROUNDS).map(|round| {
            segment.reset(0, boot);
            go.send(round).unwrap();
            while looking.load(Ordering::Acquire) != round {
                std::thread::yield_now();
            }
            segment.tick(1);
            told.recv().unwrap()
        });
        rounds.collect()
    });
    assert_eq!(revisions.iter().find(|&revision| revision >> 16 != 5), None);
}

/// A reset function first reads as ones, then loses writes. Linux waits for `initializing` to clear before it accesses
/// anything else of the segment (`mlx5_function_enable`, "pre-initializing").
#[test]
fn a_reset_function_reads_ones_then_loses_writes() {
    let (mut segment, bar) = segment();
    let boot = Boot {
        silent_until: 100,
        deaf_until: 200,
        boots_until: 300,
    };
    segment.reset(0, boot);
    for (now, ones, geometry, accepts) in [
        (0, true, 0xff, false),
        (99, true, 0xff, false),
        (100, false, 0, false),
        (199, false, 0, false),
        (200, false, 0x56, true),
        (300, false, 0x56, true),
    ] {
        segment.tick(now);
        assert_eq!(bar.load_be32(0x230) == u32::MAX, ones, "{now}");
        assert_eq!(bar.load_be32(0x14) & 0xff, geometry, "{now}");
        assert_eq!(bar.load_be32(0x1fc) >> 31, u32::from(now < 300), "{now}");
        let effect = write(&mut segment, &bar, 0x14, 0xab0f_e000);
        assert_eq!(matches!(effect, RegisterEffect::Bug(_)), !accepts, "{now}");
        assert_eq!(segment.command_queue().is_some(), accepts, "{now}");
        assert_eq!(bar.load_be32(0x14) & 0xff, geometry, "{now}");
    }
}

#[test]
fn a_counter_that_stalls_goes_on_afterwards() {
    let (mut segment, bar) = segment();
    segment.tick(50_000_000);
    segment.freeze_health_counter(5_000_000_000);
    let before = bar.load_be32(0x1010);
    segment.tick(4_999_000_000);
    assert_eq!(bar.load_be32(0x1010), before);
    segment.tick(5_000_000_000);
    assert_ne!(bar.load_be32(0x1010), before);
}

fn write(
    segment: &mut InitSegment,
    bar: &SharedMemory,
    offset: usize,
    value: u32,
) -> RegisterEffect {
    bar.store_be32(offset, value);
    segment.written(offset, &value.to_be_bytes())
}

#[test]
fn the_queue_geometry_reads_back_whatever_was_written() {
    let (mut segment, bar) = segment();
    assert_eq!(segment.command_queue(), None);
    write(&mut segment, &bar, 0x10, 7);
    write(&mut segment, &bar, 0x14, 0xab0f_e000);
    assert_eq!(segment.command_queue(), Some(0x7_ab0f_e000));
    assert_eq!(bar.load_be32(0x14), 0xab0f_e056);
}

/// The write of the low half activates the queue, so a driver that writes the high half last rings the doorbell of a
/// queue at another address. Linux `mlx5_cmd_enable` writes the high half first.
#[test]
fn a_high_half_written_last_is_reported_at_the_doorbell() {
    let (mut segment, bar) = segment();
    write(&mut segment, &bar, 0x14, 0xab0f_e000);
    let rung = write(&mut segment, &bar, 0x18, 1);
    assert_eq!(rung, RegisterEffect::CommandDoorbell(1), "below 4 GiB");
    write(&mut segment, &bar, 0x10, 7);
    assert_eq!(segment.command_queue(), Some(0xab0f_e000));
    assert_eq!(bar.load_be32(0x10), 7);
    let rung = write(&mut segment, &bar, 0x18, 1);
    assert!(matches!(rung, RegisterEffect::Bug(_)), "{rung:?}");
    write(&mut segment, &bar, 0x14, 0xab0f_e000);
    assert_eq!(segment.command_queue(), Some(0x7_ab0f_e000));
    let rung = write(&mut segment, &bar, 0x18, 1);
    assert_eq!(rung, RegisterEffect::CommandDoorbell(1));
}

#[test]
fn the_report_of_a_lost_command_doorbell_has_no_address() {
    let report = |high, low| {
        let (mut segment, bar) = segment();
        write(&mut segment, &bar, 0x14, low);
        write(&mut segment, &bar, 0x10, high);
        write(&mut segment, &bar, 0x18, 1)
    };
    let bug = report(7, 0xab0f_e000);
    assert!(matches!(bug, RegisterEffect::Bug(_)), "{bug:?}");
    assert_eq!(bug, report(5, 0x1000));
}

#[test]
fn changing_nic_interface_keeps_the_address() {
    let (mut segment, bar) = segment();
    write(&mut segment, &bar, 0x14, 0x1000);
    let effect = write(&mut segment, &bar, 0x14, 0x1100);
    assert_eq!(effect, RegisterEffect::NicInterface(NIC_DISABLED));
    segment.set_nic_interface(NIC_DISABLED);
    assert_eq!(bar.load_be32(0x14), 0x1156);
    assert_eq!(segment.command_queue(), Some(0x1000));
}

#[test]
fn read_only_registers_stay_and_the_write_is_reported() {
    let (mut segment, bar) = segment();
    assert!(matches!(
        write(&mut segment, &bar, 0x04, 0),
        RegisterEffect::Bug(_)
    ));
    assert_eq!(bar.load_be32(0x04) >> 16, 5);
}

#[test]
fn initializing_clears_and_the_health_counter_moves_with_time() {
    let (mut segment, bar) = segment();
    assert_eq!(bar.load_be32(0x1fc) >> 31, 1);
    segment.tick(1_000);
    assert_eq!(bar.load_be32(0x1fc) >> 31, 0);
    let before = bar.load_be32(0x1010);
    segment.tick(50_000_000);
    assert_ne!(bar.load_be32(0x1010), before);
}

#[test]
fn a_health_syndrome_shows_in_buffer_and_counter_word() {
    let (mut segment, bar) = segment();
    segment.set_health_syndrome(0x0c);
    assert_eq!(bar.load_u8(0x23d), 0x0c);
    assert_eq!(bar.load_u8(0x238) & 0x80, 0x80);
    assert_eq!(bar.load_be32(0x1010) >> 24, 0x0c);
}

#[test]
fn a_dark_device_reads_as_ones_and_takes_no_write() {
    let (mut segment, bar) = segment();
    segment.remove_from_bus();
    write(&mut segment, &bar, 0x14, 0x1000);
    segment.tick(9_000_000_000);
    assert_eq!(bar.load_be32(0x230), u32::MAX);
    assert_eq!(bar.load_be32(0x14), u32::MAX);
}
