//! What is not a handle of the right kind is refused, with the subtype of the kind, whatever it is.

use std::mem::MaybeUninit;
use std::ptr::{null, null_mut, without_provenance_mut};

use dat::LmrTriplet;
use dat::capi::types::{
    CCnoParam, CCrParam, CEpParam, CEvdParam, CEvent, CIaAttr, CLmrParam, CPspParam, CPzParam,
    CRmrParam, CRspParam, CSrqParam, DatHandle, DatReturn,
};
use dat::capi::*;

use crate::support::{ABRUPT, GRACEFUL, INVALID_HANDLE, NO_AGENT, World, c, done, ok};

/// A call on its first handle, everything else being good.
type Call = (&'static str, u32, fn(DatHandle) -> DatReturn);

fn segment() -> LmrTriplet {
    LmrTriplet {
        lmr_context: 0,
        virtual_address: 0,
        segment_length: 0,
    }
}

/// Calls `$call` with room for an `$out`.
macro_rules! out {
    ($out:ty, |$to:ident| $call:expr) => {{
        let mut room = MaybeUninit::<$out>::uninit();
        let $to = room.as_mut_ptr();
        c!($call)
    }};
}

/// Every call that begins with a handle, and the subtype that names its kind.
const CALLS: &[Call] = &[
    ("dat_ia_query", 11, |h| {
        out!(CIaAttr, |to| dat_ia_query(
            h,
            null_mut(),
            1,
            to,
            0,
            null_mut()
        ))
    }),
    ("dat_pz_create", 11, |h| {
        out!(DatHandle, |to| dat_pz_create(h, to))
    }),
    ("dat_evd_create", 11, |h| {
        out!(DatHandle, |to| dat_evd_create(h, 8, null_mut(), 1, to))
    }),
    ("dat_cno_create", 11, |h| {
        out!(DatHandle, |to| dat_cno_create(h, NO_AGENT, to))
    }),
    ("dat_ia_close", 11, |h| dat_ia_close(h, GRACEFUL)),
    ("dat_lmr_sync_rdma_read", 11, |h| {
        c!(dat_lmr_sync_rdma_read(h, null(), 0))
    }),
    ("dat_lmr_sync_rdma_write", 11, |h| {
        c!(dat_lmr_sync_rdma_write(h, null(), 0))
    }),
    ("dat_ep_query", 12, |h| {
        out!(CEpParam, |to| dat_ep_query(h, 1, to))
    }),
    ("dat_ep_get_status", 12, |h| {
        c!(dat_ep_get_status(h, null_mut(), null_mut(), null_mut()))
    }),
    ("dat_ep_recv_query", 12, |h| {
        c!(dat_ep_recv_query(h, null_mut(), null_mut()))
    }),
    ("dat_ep_set_watermark", 12, |h| {
        dat_ep_set_watermark(h, -1, -1)
    }),
    ("dat_ep_reset", 12, |h| dat_ep_reset(h)),
    ("dat_ep_free", 12, |h| dat_ep_free(h)),
    ("dat_ep_disconnect", 12, |h| dat_ep_disconnect(h, ABRUPT)),
    ("dat_ep_dup_connect", 12, |h| {
        c!(dat_ep_dup_connect(h, h, 1, 0, null(), 0))
    }),
    ("dat_ep_post_send", 12, |h| {
        c!(dat_ep_post_send(h, 1, &raw const ZERO, 0, 0))
    }),
    ("dat_ep_post_recv", 12, |h| {
        c!(dat_ep_post_recv(h, 0, null(), 0, 0))
    }),
    ("dat_ep_post_rdma_read", 12, |h| {
        c!(dat_ep_post_rdma_read(h, 1, &raw const ZERO, 0, null(), 0))
    }),
    ("dat_ep_post_rdma_write", 12, |h| {
        c!(dat_ep_post_rdma_write(h, -1, null(), 0, null(), 0))
    }),
    ("dat_lmr_query", 13, |h| {
        out!(CLmrParam, |to| dat_lmr_query(h, 1, to))
    }),
    ("dat_lmr_free", 13, |h| dat_lmr_free(h)),
    ("dat_rmr_query", 14, |h| {
        out!(CRmrParam, |to| dat_rmr_query(h, 1, to))
    }),
    ("dat_rmr_bind", 14, |h| {
        out!(u32, |to| dat_rmr_bind(h, &raw const ZERO, 0, h, 0, 0, to))
    }),
    ("dat_rmr_free", 14, |h| dat_rmr_free(h)),
    ("dat_pz_query", 15, |h| {
        out!(CPzParam, |to| dat_pz_query(h, 1, to))
    }),
    ("dat_rmr_create", 15, |h| {
        out!(DatHandle, |to| dat_rmr_create(h, to))
    }),
    ("dat_pz_free", 15, |h| dat_pz_free(h)),
    ("dat_psp_query", 16, |h| {
        out!(CPspParam, |to| dat_psp_query(h, 1, to))
    }),
    ("dat_psp_free", 16, |h| dat_psp_free(h)),
    ("dat_rsp_query", 17, |h| {
        out!(CRspParam, |to| dat_rsp_query(h, 1, to))
    }),
    ("dat_rsp_free", 17, |h| dat_rsp_free(h)),
    ("dat_cr_query", 18, |h| {
        out!(CCrParam, |to| dat_cr_query(h, 1, to))
    }),
    ("dat_cr_accept", 18, |h| {
        c!(dat_cr_accept(h, null_mut(), 0, null()))
    }),
    ("dat_cr_reject", 18, |h| dat_cr_reject(h)),
    ("dat_cr_handoff", 18, |h| dat_cr_handoff(h, 1)),
    ("dat_cno_query", 19, |h| {
        out!(CCnoParam, |to| dat_cno_query(h, 1, to))
    }),
    ("dat_cno_modify_agent", 19, |h| {
        c!(dat_cno_modify_agent(h, NO_AGENT))
    }),
    ("dat_cno_wait", 19, |h| {
        out!(DatHandle, |to| dat_cno_wait(h, 0, to))
    }),
    ("dat_cno_free", 19, |h| dat_cno_free(h)),
    ("dat_srq_query", 25, |h| {
        out!(CSrqParam, |to| dat_srq_query(h, 1, to))
    }),
    ("dat_srq_post_recv", 25, |h| {
        c!(dat_srq_post_recv(h, 1, &raw const ZERO, 0))
    }),
    ("dat_srq_resize", 25, |h| dat_srq_resize(h, 8)),
    ("dat_srq_set_lw", 25, |h| dat_srq_set_lw(h, 1)),
    ("dat_srq_free", 25, |h| dat_srq_free(h)),
    ("dat_evd_query", 26, |h| {
        out!(CEvdParam, |to| dat_evd_query(h, 1, to))
    }),
    ("dat_evd_modify_cno", 26, |h| {
        dat_evd_modify_cno(h, null_mut())
    }),
    ("dat_evd_enable", 26, |h| dat_evd_enable(h)),
    ("dat_evd_disable", 26, |h| dat_evd_disable(h)),
    ("dat_evd_set_unwaitable", 26, |h| dat_evd_set_unwaitable(h)),
    ("dat_evd_clear_unwaitable", 26, |h| {
        dat_evd_clear_unwaitable(h)
    }),
    ("dat_evd_resize", 26, |h| dat_evd_resize(h, 8)),
    ("dat_evd_dequeue", 26, |h| {
        out!(CEvent, |to| dat_evd_dequeue(h, to))
    }),
    ("dat_evd_wait", 26, |h| {
        out!(CEvent, |to| dat_evd_wait(h, 0, 1, to, &raw mut LEFT))
    }),
    ("dat_evd_free", 26, |h| dat_evd_free(h)),
];

static ZERO: LmrTriplet = LmrTriplet {
    lmr_context: 0,
    virtual_address: 0,
    segment_length: 0,
};

/// Where nothing is written, because every call that gets it is refused.
static mut LEFT: i32 = 0;

/// Numbers that are no handles: null, small, addresses, all ones, and handles with a bit changed.
fn not_handles(world: &World) -> Vec<DatHandle> {
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

#[test]
fn a_number_that_is_no_handle_is_refused_with_the_subtype_of_the_kind() {
    let world = World::new(false);
    for handle in not_handles(&world) {
        for (name, subtype, call) in CALLS {
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
    for (name, subtype, call) in CALLS {
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
    // DAT_HANDLE_TYPE, in the order of `objects`.
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
    for handle in not_handles(&world) {
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

/// In Rust neither can be said: the arguments are references, and the context is returned.
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
