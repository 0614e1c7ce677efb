//! Handles that are invalid or of another kind are refused, with the subtype of the expected kind.

use std::collections::BTreeSet;
use std::ptr::{null, null_mut, without_provenance_mut};

use udapl::capi::types::DatHandle;
use udapl::capi::*;
use udapl::memory::LmrTriplet;

use crate::calls::{CALLS, CALLS_OF_ANY, ZERO};
use crate::support::{ABRUPT, INVALID_HANDLE, World, c, done, ok};

fn segment() -> LmrTriplet {
    LmrTriplet {
        lmr_context: 0,
        virtual_address: 0,
        segment_length: 0,
    }
}

/// Returns invalid handles: null, small and large numbers, the address of a local, and the world's handles with one bit
/// changed.
fn invalid_handles(world: &World) -> Vec<DatHandle> {
    let local = segment();
    let mut numbers = vec![
        0,
        1,
        2,
        3,
        32,
        0xffff,
        usize::MAX,
        usize::MAX - 1,
        1 << 63,
        (1 << 63) + 32,
        (&raw const local).addr(),
    ];
    for (handle, _) in world.objects() {
        numbers.extend((0..64).map(|bit| handle.addr() ^ 1 << bit));
    }
    numbers.into_iter().map(without_provenance_mut).collect()
}

/// Returns the functions that a header declares with a handle as the first argument.
fn declared_with_a_handle(header: &str) -> BTreeSet<&str> {
    let declared = header.lines().filter_map(|line| {
        let (name, arguments) = line.strip_prefix("DAT_RETURN ")?.split_once('(')?;
        let first = arguments.split([',', ')']).next()?;
        let (kind, argument) = first.split_once(' ')?;
        (kind.ends_with("_HANDLE") && !argument.starts_with('*')).then_some(name)
    });
    declared.collect()
}

/// The tables have each function of `udat.h` whose first argument is a handle, and no other.
#[test]
fn the_tables_of_calls_have_every_call_that_takes_a_handle() {
    let declared = declared_with_a_handle(include_str!("../../include/dat/udat.h"));
    let all = CALLS.iter().chain(CALLS_OF_ANY);
    let listed: BTreeSet<&str> = all.map(|(name, ..)| *name).collect();
    assert_eq!(listed, declared);
    assert_eq!(listed.len(), CALLS.len() + CALLS_OF_ANY.len(), "none twice");
}

#[test]
fn a_number_that_is_no_handle_is_refused_with_the_subtype_of_the_kind() {
    let world = World::new(false);
    for handle in invalid_handles(&world) {
        for (name, subtype, call) in CALLS.iter().chain(CALLS_OF_ANY) {
            assert_eq!(
                call(handle),
                INVALID_HANDLE | subtype,
                "{name} of {handle:?}"
            );
        }
    }
}

#[test]
fn a_handle_of_another_kind_is_refused_with_the_subtype_of_the_kind_asked_for() {
    let world = World::new(false);
    for (name, subtype, call) in CALLS {
        for (handle, kind) in world.objects() {
            if kind != *subtype {
                assert_eq!(call(handle), INVALID_HANDLE | subtype, "{name} of {kind}");
            }
        }
    }
}

#[test]
fn a_freed_handle_is_refused_even_when_its_place_is_taken_again() {
    let world = World::new(false);
    let mut stale = Vec::new();
    for _ in 0..1000 {
        let mut pz = null_mut();
        ok!(dat_pz_create(world.ia, &raw mut pz));
        assert!(!stale.contains(&pz), "a handle came back");
        done!(dat_pz_free(pz));
        stale.push(pz);
    }
    for pz in stale {
        assert_eq!(dat_pz_free(pz), INVALID_HANDLE | 15);
    }
}

#[test]
fn the_handles_of_a_closed_adapter_are_refused() {
    let world = World::new(false);
    let objects = world.objects();
    done!(dat_ia_close(world.ia, ABRUPT));
    for (name, subtype, call) in CALLS.iter().chain(CALLS_OF_ANY) {
        for (handle, _) in objects {
            assert_eq!(call(handle), INVALID_HANDLE | subtype, "{name}");
        }
    }
}

#[test]
fn an_object_of_another_adapter_is_refused_by_the_place_it_is_given_in() {
    let (world, other) = (World::new(false), World::new(false));
    let mut ep = null_mut();
    let mut create = |pz, recv, request, connect| {
        c!(dat_ep_create(
            world.ia,
            pz,
            recv,
            request,
            connect,
            null(),
            &raw mut ep
        ))
    };
    let (pz, evd) = (world.pz, world.evd);
    assert_eq!(create(other.pz, evd, evd, evd), INVALID_HANDLE | 15);
    assert_eq!(create(pz, other.evd, evd, evd), INVALID_HANDLE | 22);
    assert_eq!(create(pz, evd, other.evd, evd), INVALID_HANDLE | 21);
    assert_eq!(create(pz, evd, evd, other.evd), INVALID_HANDLE | 23);
    assert_eq!(
        dat_evd_modify_cno(world.evd, other.cno),
        INVALID_HANDLE | 19
    );
    let mut psp = null_mut();
    let answer = c!(dat_psp_create(world.ia, 9, other.evd, 0, &raw mut psp));
    assert_eq!(answer, INVALID_HANDLE | 20);
}

#[test]
fn every_object_knows_its_kind_and_keeps_a_word() {
    let world = World::new(false);
    // DAT_HANDLE_TYPE of each object, in the order of `objects`.
    let kinds = [3, 1, 4, 7, 6, 5, 8, 9, 10, 2, 2];
    for ((handle, _), kind) in world.objects().into_iter().zip(kinds) {
        let mut found = u32::MAX;
        ok!(dat_get_handle_type(handle, &raw mut found));
        assert_eq!(found, kind);
        let mut word = 1;
        ok!(dat_get_consumer_context(handle, &raw mut word));
        assert_eq!(word, 0);
        done!(dat_set_consumer_context(handle, handle.addr() as u64));
        ok!(dat_get_consumer_context(handle, &raw mut word));
        assert_eq!(word, handle.addr() as u64);
    }
    for handle in invalid_handles(&world) {
        let mut kind = 0;
        assert_eq!(
            c!(dat_get_handle_type(handle, &raw mut kind)),
            INVALID_HANDLE | 26
        );
        assert_eq!(dat_set_consumer_context(handle, 1), INVALID_HANDLE | 26);
    }
}

#[test]
fn null_pointers_are_named_by_their_place_in_the_call() {
    let world = World::new(false);
    let argument = |number: u32| 0x8006_0000 + 35 + number;
    let ia = world.ia;
    assert_eq!(c!(dat_pz_create(ia, null_mut())), argument(2));
    assert_eq!(c!(dat_evd_dequeue(world.evd, null_mut())), argument(2));
    assert_eq!(
        c!(dat_evd_create(ia, 8, null_mut(), 1, null_mut())),
        argument(5)
    );
    assert_eq!(c!(dat_ep_query(world.ep, 1, null_mut())), argument(3));
    assert_eq!(c!(dat_ep_query(world.ep, 0x800, null_mut())), argument(2));
    assert_eq!(c!(dat_ep_post_recv(world.ep, 1, null(), 0, 0)), argument(3));
    assert_eq!(
        c!(dat_ep_post_recv(world.ep, -1, null(), 0, 0)),
        argument(2)
    );
    let write = c!(dat_ep_post_rdma_write(
        world.ep,
        1,
        &raw const ZERO,
        0,
        null(),
        0
    ));
    assert_eq!(write, argument(5));
    assert_eq!(
        c!(dat_ia_query(ia, null_mut(), 1, null_mut(), 0, null_mut())),
        argument(4)
    );
    ok!(dat_ia_query(ia, null_mut(), 0, null_mut(), 0, null_mut()));
    assert_eq!(c!(dat_strerror(0, null_mut(), null_mut())), argument(2));
}

/// `dat_ep_post_rdma_read` refuses a null remote buffer. `dat_rmr_bind` refuses a null LMR triplet and a null
/// `rmr_context`. Rust cannot express these errors: the arguments are references, and the context is returned.
///
/// Clauses: READ-R2, BIND-R3.
#[test]
fn a_read_from_nowhere_and_a_bind_of_nothing_or_to_nowhere_are_refused() {
    let world = World::new(false);
    let argument = |number: u32| 0x8006_0000 + 35 + number;
    let read = c!(dat_ep_post_rdma_read(
        world.ep,
        1,
        &raw const ZERO,
        0,
        null(),
        0
    ));
    assert_eq!(read, argument(5));
    let mut context = 0;
    let bind = |triplet, context| c!(dat_rmr_bind(world.rmr, triplet, 0, world.ep, 0, 0, context));
    assert_eq!(bind(null(), &raw mut context), argument(2));
    assert_eq!(bind(&raw const ZERO, null_mut()), argument(7));
    assert_eq!(context, 0);
}
