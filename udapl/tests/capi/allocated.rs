//! Memory that the library allocates: `DAT_MEM_TYPE_ALLOCATED`.

// UNSAFETY: calls of the C ABI; `main.rs` expects the lint `unsafe_code`.

use std::ptr::{null, null_mut};

use udapl::capi::types::{CRegionDescription, DatHandle};
use udapl::capi::*;
use udapl::memory::LmrTriplet;

use crate::support::{INVALID_HANDLE, World, c, done, ok};

/// DAT_CLASS_ERROR|DAT_INVALID_PARAMETER, without the number of the argument.
const INVALID_PARAMETER: u32 = 0x8006_0000 + 35;
/// DAT_INSUFFICIENT_RESOURCES|MEMORY.
const MEMORY: u32 = 0x8003_0002;
/// `DAT_MEM_TYPE_ALLOCATED`.
const ALLOCATED: u32 = 0x100;
const SIZE: usize = 8192;
const BYTES: u64 = SIZE as u64;

/// Asks for memory. Returns its LMR, context and address.
fn allocated(
    world: &World,
    bytes: u64,
    pz: DatHandle,
    privileges: u32,
) -> Result<(DatHandle, u32, u64), u32> {
    let (mut lmr, mut context, mut address) = (null_mut(), 0, 0);
    match c!(create(
        world,
        bytes,
        pz,
        privileges,
        (&raw mut lmr, &raw mut context, &raw mut address)
    )) {
        0 => Ok((lmr, context, address)),
        code => Err(code),
    }
}

/// # Safety
/// That of [`dat_lmr_create`].
unsafe fn create(
    world: &World,
    bytes: u64,
    pz: DatHandle,
    privileges: u32,
    (lmr, context, address): (*mut DatHandle, *mut u32, *mut u64),
) -> u32 {
    let nothing = CRegionDescription {
        virtual_address: null_mut(),
        shared_memory_id: null(),
    };
    c!(dat_lmr_create(
        world.ia,
        ALLOCATED,
        nothing,
        bytes,
        pz,
        privileges,
        lmr,
        context,
        null_mut(),
        null_mut(),
        address,
    ))
}

/// The arguments are checked first. So a length beyond all memory does not hide another mistake.
#[test]
fn wrong_arguments_are_refused_before_anything_is_allocated() {
    let world = World::new(false);
    let refused = |bytes, pz, privileges| {
        let refused = allocated(&world, bytes, pz, privileges);
        refused.expect_err("it is refused")
    };
    assert_eq!(refused(1 << 62, null_mut(), 0x33), INVALID_HANDLE | 15);
    assert_eq!(refused(BYTES, world.evd, 0x33), INVALID_HANDLE | 15);
    assert_eq!(refused(1 << 62, world.pz, 0x8000), INVALID_PARAMETER + 6);
    // The simulated device would register as much, and the host has not so much.
    assert_eq!(refused(1 << 62, world.pz, 0x33), MEMORY);
    assert_eq!(refused(0, world.pz, 0x33), INVALID_PARAMETER + 4);
    let (mut lmr, mut context) = (null_mut(), 0);
    let out = (&raw mut lmr, &raw mut context, null_mut());
    assert_eq!(
        c!(create(&world, BYTES, world.pz, 0x33, out)),
        INVALID_PARAMETER + 10
    );
    assert!(lmr.is_null());
}

/// Memory that is freed while a receive waits for a message is used again, and is zeroed then.
#[test]
fn memory_is_zeroed_and_can_be_freed_while_a_receive_has_it() {
    let world = World::new(false);
    let mut addresses = Vec::new();
    for round in 0..3 {
        let made = allocated(&world, BYTES, world.pz, 0x33);
        let (lmr, lmr_context, virtual_address) = made.expect("memory");
        let address = usize::try_from(virtual_address).expect("an address");
        let at = std::ptr::with_exposed_provenance_mut::<[u8; SIZE]>(address);
        // SAFETY: the library has mapped so many bytes there, and no message comes.
        let bytes = unsafe { at.read_volatile() };
        assert!(bytes.iter().all(|byte| *byte == 0), "round {round}");
        // SAFETY: as above.
        unsafe { at.write_volatile([0xa5; SIZE]) };
        let segment = LmrTriplet {
            lmr_context,
            virtual_address,
            segment_length: BYTES,
        };
        ok!(dat_ep_post_recv(world.ep, 1, &raw const segment, round, 0));
        done!(dat_lmr_free(lmr));
        addresses.push(address);
    }
    addresses.dedup();
    assert!(addresses.len() < 3, "no address was used again");
}
