//! Memory keys: from the device's capabilities and PCI configuration to the bits of CREATE_MKEY, and a key that the
//! simulator accepts.

use std::sync::Arc;

use driver::{Device, Function};
use hw_mlx::mkey::{self, KeyRequest};
use hw_mlx::{Hca, HcaConfig};
use hw_sim::{Profile, Sim, SimConfig};
use mlx_prm::{AllocPdIn, QueryMkeyIn};
use rdma_types::Access;

use crate::double::{Double, argument_of};

const CREATE_MKEY: u16 = 0x200;
/// Offset of the memory key context in CREATE_MKEY, and the dwords and bits of relaxed ordering in it.
const CONTEXT: usize = 0x10;
const RELAXED_WRITE: (usize, u32) = (CONTEXT, 1 << 18);
const RELAXED_READ: (usize, u32) = (CONTEXT + 0x38, 1 << 6);
/// Dwords of the general capability page that have the bits of relaxed ordering.
const WRITE_AND_READ_BY_PCI: (u16, usize) = (0, 0x1c);
const READ: (u16, usize) = (0, 0x64);

/// Creates a key for a region that peers may not write, and destroys it. Returns whether the device reports relaxed
/// writes and relaxed reads for it.
fn register(hca: &mut Hca) -> (bool, bool) {
    let pd = hca.exec(&AllocPdIn::new()).expect("a PD").pd();
    let memory = hca.arena().alloc(4096, 4096).expect("memory");
    let request = KeyRequest {
        pd,
        address: memory.address(),
        bytes: 4096,
        access: Access::LOCAL_READ | Access::LOCAL_WRITE,
        variant: 0,
        may_have_windows: false,
    };
    let (index, _) = mkey::create(hca, &request, memory.iova()).expect("a key");
    let mut query = QueryMkeyIn::new();
    query.set_mkey_index(index);
    let answer = hca.exec(&query).expect("an answer");
    mkey::destroy(hca, index).expect("destroyed");
    let context = answer.memory_key_mkey_entry();
    (
        context.relaxed_ordering_write(),
        context.relaxed_ordering_read(),
    )
}

/// Writes are relaxed by `relaxed_ordering_write`. Reads are relaxed by `relaxed_ordering_read`, or by
/// `relaxed_ordering_read_pci_enabled` together with Enable Relaxed Ordering of PCI configuration.
#[test]
fn the_capabilities_and_the_bit_of_pci_decide_which_order_a_key_relaxes() {
    for (write, by_pci, read, enabled, expected) in [
        (0, 0, 0, true, (false, false)),
        (1 << 23, 0, 0, true, (true, false)),
        (0, 0, 1 << 21, false, (false, true)),
        (0, 1 << 22, 0, false, (false, false)),
        (0, 1 << 22, 0, true, (false, true)),
        (1 << 23, 1 << 22, 1 << 21, true, (true, true)),
    ] {
        let double = Double::new();
        {
            let mut state = double.state();
            *state.caps.entry(WRITE_AND_READ_BY_PCI).or_default() |= write | by_pci;
            *state.caps.entry(READ).or_default() |= read;
        }
        // Capabilities: power management at 0x40, then PCI Express at 0x60 with Device Control at 0x68.
        double.config_write(0x06, &[0x10]);
        double.config_write(0x34, &[0x40]);
        double.config_write(0x40, &[0x01, 0x60]);
        double.config_write(0x60, &[0x10, 0x00]);
        double.config_write(0x68, &[u8::from(enabled) << 4, 0x20]);
        let mut hca = Hca::open(double.function(), HcaConfig::new()).expect("bring-up");
        register(&mut hca);
        let state = double.state();
        let create = state.seen.iter().find(|seen| seen.opcode == CREATE_MKEY);
        let create = &create.expect("a key").input;
        let has = |(at, bit): (usize, u32)| argument_of(create, at) & bit != 0;
        let case = (write, by_pci, read, enabled);
        assert_eq!(
            (has(RELAXED_WRITE), has(RELAXED_READ)),
            expected,
            "{case:x?}"
        );
    }
}

/// The simulator's PCI configuration enables relaxed ordering, so a card with `relaxed_ordering_read_pci_enabled`
/// accepts relaxed reads.
#[test]
fn a_simulated_card_accepts_a_key_with_reads_relaxed_by_pci() {
    let mut profile = Profile::default();
    profile.general.set(|caps| {
        caps.set_relaxed_ordering_write(true)
            .set_relaxed_ordering_read_pci_enabled(true);
    });
    let sim = Sim::new(SimConfig::default());
    let function = sim.add_function(profile);
    let device = Arc::clone(&function) as Arc<dyn Device>;
    let driver = Function::in_process(device).expect("a function");
    let mut hca = Hca::open(driver, HcaConfig::new()).expect("bring-up");
    assert_eq!(register(&mut hca), (true, true));
    let report = sim.report(&function);
    assert!(report.refused.is_empty(), "{report:#?}");
}
