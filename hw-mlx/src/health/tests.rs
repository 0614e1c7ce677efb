use std::sync::Arc;

use driver::{Device, Function, SharedMemory};
use hw_sim::{Profile, Sim, SimConfig};

use super::*;

const WRITTEN: [u32; 2] = [0x12, 0x3456_7000];

/// Returns the health state of a function to which the driver wrote [`WRITTEN`], and the function's registers. The
/// function shows `shown`.
fn health(shown: [u32; 2]) -> (Health, SharedMemory) {
    let sim = Sim::new(SimConfig::default());
    let device = sim.add_function(Profile::default());
    let bar = device.bar(0).expect("a BAR");
    let function = Function::in_process(device as Arc<dyn Device>).expect("a function");
    let registers = function.bar(0).expect("a BAR").block(0).expect("registers");
    // Registers of a function that has not booted read as ones.
    bar.fill(0, size_of::<InitSegment>(), 0);
    show(&bar, shown);
    let health = Health::new(registers, Notices::default(), WRITTEN, Instant(0));
    (health, bar)
}

/// Makes the registers show this address of the command queue. Bits below the address hold the queue's geometry.
fn show(bar: &SharedMemory, [high, low]: [u32; 2]) {
    bar.store_be32(0x10, high);
    bar.store_be32(0x14, low | 0x56);
}

#[test]
fn an_address_that_does_not_read_back_after_init_hca_is_not_compared_later() {
    for shown in [[0, 0], [WRITTEN[0], 0], [0, WRITTEN[1]], [0x13, WRITTEN[1]]] {
        let (mut health, bar) = health(shown);
        health.initialized();
        assert!(!health.check(), "{shown:x?}");
        show(&bar, [0, 0x1000]);
        assert!(!health.check(), "{shown:x?}");
        assert_eq!(health.dead(), None, "{shown:x?}");
    }
}

#[test]
fn an_address_that_reads_back_after_init_hca_and_changes_later_is_a_reset_by_others() {
    for later in [[0, 0], [0, WRITTEN[1]], [WRITTEN[0], 0x3456_8000]] {
        let (mut health, bar) = health(WRITTEN);
        health.initialized();
        assert!(!health.check(), "{later:x?}");
        show(&bar, later);
        assert!(health.check(), "{later:x?}");
        assert_eq!(health.dead(), Some(DeadCause::ResetByOthers), "{later:x?}");
    }
}

/// Before INIT_HCA the driver has not read the address back, so another address is no sign of a reset.
#[test]
fn a_changed_address_before_init_hca_is_not_a_reset() {
    let (mut health, bar) = health(WRITTEN);
    show(&bar, [0, 0]);
    assert!(!health.check());
    assert_eq!(health.dead(), None);
}
