//! Several instances of one adapter in one process.

// UNSAFETY: calls of the C ABI; `main.rs` expects the lint `unsafe_code`.

use std::ffi::{CStr, CString};
use std::mem::MaybeUninit;
use std::ptr::{null, null_mut, without_provenance_mut};
use std::sync::mpsc::channel;
use std::thread;

use udapl::capi::types::*;
use udapl::capi::*;

use crate::support::{
    ABRUPT, GRACEFUL, INVALID_HANDLE, SECOND, SOFTWARE, Seen, TIMEOUT_INFINITE, World, c, done,
    fresh_name, ok, opened, software,
};

/// DAT_INVALID_STATE|IA_IN_USE.
const IA_IN_USE: u32 = 0x8007_0000 | 79;
/// DAT_INSUFFICIENT_RESOURCES|DEVICE, the code of an open of a device that is in use.
const DEVICE: u32 = 0x8003_0000 | 3;
/// DAT_INVALID_HANDLE|EVD_ASYNC.
const EVD_ASYNC: u32 = INVALID_HANDLE | 24;
/// DAT_INVALID_PARAMETER|ARG2.
const INVALID_PARAMETER_2: u32 = 0x8006_0000 | 37;
const CONN_QUAL_IN_USE: u32 = 0x8002_0000;
/// `DAT_EVD_ASYNC_EXISTS`, `DAT_EVD_OUT_OF_SCOPE`.
const ASYNC_EXISTS: usize = 1;
const OUT_OF_SCOPE: usize = 2;
const ESTABLISHED: u32 = 0x4001;
const PEER_REJECTED: u32 = 0x4002;
const DISCONNECTED: u32 = 0x4005;
const SOFT_HIGH_WATERMARK: u32 = 0x8010;

/// Opens two instances of one adapter.
fn two(thread_safe: bool) -> (CString, World, World) {
    let name = fresh_name();
    let one = World::of(&name, thread_safe, 0x1_0000_0001);
    let other = World::of(&name, thread_safe, 0x1_0000_0011);
    (name, one, other)
}

/// Returns zeros, which are a valid value of every C structure.
pub fn zeros<T>() -> T {
    // SAFETY: the types have only numbers, and pointers that may be null, so zeros are valid.
    unsafe { MaybeUninit::zeroed().assume_init() }
}

/// Dequeues the oldest event of an EVD. Returns the event number and the first word of the event data.
pub fn next(evd: DatHandle) -> Option<(u32, DatHandle)> {
    let mut event: CEvent = zeros();
    let answer = c!(dat_evd_dequeue(evd, &raw mut event));
    // SAFETY: every event's bytes are initialized; this member is its first word.
    let word = unsafe { event.event_data.software_event_data.pointer };
    (answer == 0).then_some((event.event_number, word.cast()))
}

pub fn address_of(ia: DatHandle) -> *mut libc::sockaddr {
    let mut attr: CIaAttr = zeros();
    let all = 0x7_ffff_ffff;
    ok!(dat_ia_query(
        ia,
        null_mut(),
        all,
        &raw mut attr,
        0,
        null_mut()
    ));
    attr.ia_address_ptr
}

fn async_evd_of(ia: DatHandle) -> DatHandle {
    let mut evd = null_mut();
    ok!(dat_ia_query(ia, &raw mut evd, 0, null_mut(), 0, null_mut()));
    evd
}

/// Connects the endpoint of one instance to the endpoint of another instance of the adapter, which listens at
/// `qualifier`.
pub fn connect(one: &World, other: &World, qualifier: u64) {
    let to = address_of(other.ia);
    ok!(dat_ep_connect(
        one.ep,
        to,
        qualifier,
        TIMEOUT_INFINITE,
        0,
        null(),
        0,
        0
    ));
    let mut event: CEvent = zeros();
    let mut left = 0;
    ok!(dat_evd_wait(
        other.evd,
        SECOND,
        1,
        &raw mut event,
        &raw mut left
    ));
    assert_eq!(event.event_number, 0x2001, "a connection request");
    // SAFETY: the event is a connection request.
    let cr = unsafe { event.event_data.cr_arrival_event_data };
    assert_eq!(cr.sp_handle, other.psp);
    // The request belongs to the listening instance, so an endpoint of another instance cannot accept it.
    let foreign = c!(dat_cr_accept(cr.cr_handle, one.ep, 0, null()));
    assert_eq!(foreign, INVALID_HANDLE | 12);
    // No instance listens at this qualifier.
    let away = dat_cr_handoff(cr.cr_handle, 0x1_0000_0999);
    assert_eq!(away, INVALID_PARAMETER_2);
    ok!(dat_cr_accept(cr.cr_handle, other.ep, 0, null()));
    for side in [one, other] {
        let seen = side.wait(SECOND);
        assert_eq!((seen.number, seen.word), (ESTABLISHED, side.ep.addr()));
    }
}

/// Page: dat_cr_handoff.
#[test]
fn a_request_is_handed_off_to_another_instance() {
    let (_name, one, other) = two(false);
    let request_at = |world: &World| {
        let (mut event, mut left): (CEvent, _) = (zeros(), 0);
        ok!(dat_evd_wait(
            world.evd,
            SECOND,
            1,
            &raw mut event,
            &raw mut left
        ));
        assert_eq!(event.event_number, 0x2001, "a connection request");
        // SAFETY: the event is a connection request.
        let arrival = unsafe { event.event_data.cr_arrival_event_data };
        assert_eq!(arrival.sp_handle, world.psp);
        arrival.cr_handle
    };
    let to = address_of(other.ia);
    let (ep, nothing) = (one.ep, null());
    ok!(dat_ep_connect(
        ep,
        to,
        0x1_0000_0011,
        TIMEOUT_INFINITE,
        0,
        nothing,
        0,
        0
    ));
    let cr = request_at(&other);
    done!(dat_cr_handoff(cr, 0x1_0000_0001));
    assert_eq!(dat_cr_reject(cr) & !0xff, INVALID_HANDLE);
    let cr = request_at(&one);
    let mut param: CCrParam = zeros();
    ok!(dat_cr_query(cr, 1, &raw mut param));
    done!(dat_cr_reject(cr));
    assert_eq!(one.wait(SECOND).number, PEER_REJECTED);
}

/// Although the program makes no call on the first instance after `dat_ep_connect`, the connection is established.
#[test]
fn an_instance_that_nobody_calls_answers_its_peers() {
    let (_name, one, other) = two(false);
    let to = address_of(other.ia);
    let nothing = null();
    ok!(dat_ep_connect(
        one.ep,
        to,
        0x1_0000_0011,
        TIMEOUT_INFINITE,
        0,
        nothing,
        0,
        0
    ));
    let (mut event, mut left): (CEvent, _) = (zeros(), 0);
    ok!(dat_evd_wait(
        other.evd,
        SECOND,
        1,
        &raw mut event,
        &raw mut left
    ));
    // SAFETY: the event is a connection request.
    let cr = unsafe { event.event_data.cr_arrival_event_data.cr_handle };
    ok!(dat_cr_accept(cr, other.ep, 0, nothing));
    let seen = other.wait(TIMEOUT_INFINITE);
    assert_eq!((seen.number, seen.word), (ESTABLISHED, other.ep.addr()));
}

/// Sends a message of 64 bytes, and waits for the completions of the Send and of the receive.
fn message(from: &World, to: &World, cookie: u64) {
    let segment = from.segment();
    ok!(dat_ep_post_send(from.ep, 1, &raw const segment, cookie, 0));
    for side in [from, to] {
        let seen = side.wait(SECOND);
        assert_eq!((seen.number, seen.word), (1, side.ep.addr()));
    }
}

/// Clauses: IAO-9, IAQ-1.
#[test]
fn every_object_names_the_instance_it_was_made_in() {
    let (_name, one, other) = two(false);
    assert_ne!((one.ia, one.async_evd), (other.ia, other.async_evd));
    for world in [&one, &other] {
        assert_eq!(async_evd_of(world.ia), world.async_evd);
        let mut ias = Vec::new();
        macro_rules! ask {
            ($($call:ident($object:expr, $mask:expr) -> $param:ty;)*) => {$(
                let mut param: $param = zeros();
                ok!($call($object, $mask, &raw mut param));
                ias.push(param.ia_handle);
            )*};
        }
        ask! {
            dat_ep_query(world.ep, 1) -> CEpParam;
            dat_evd_query(world.evd, 1) -> CEvdParam;
            dat_evd_query(world.async_evd, 1) -> CEvdParam;
            dat_pz_query(world.pz, 1) -> CPzParam;
            dat_cno_query(world.cno, 1) -> CCnoParam;
            dat_lmr_query(world.lmr, 1) -> CLmrParam;
            dat_rmr_query(world.rmr, 1) -> CRmrParam;
            dat_srq_query(world.srq, 1) -> CSrqParam;
            dat_psp_query(world.psp, 1) -> CPspParam;
            dat_rsp_query(world.rsp, 1) -> CRspParam;
        }
        assert_eq!(ias, [world.ia; 10]);
    }
    // Each instance has its own consumer context.
    done!(dat_set_consumer_context(one.ia, 7));
    let mut word = 1;
    ok!(dat_get_consumer_context(other.ia, &raw mut word));
    assert_eq!(word, 0);
}

/// Each call that takes the handles of two objects refuses a second object of another instance as it refuses an invalid
/// handle. The function `connect` tries this with `dat_cr_accept`.
///
/// Clauses: IAO-9.
#[test]
fn a_handle_of_another_instance_is_as_good_as_none() {
    let (_name, one, other) = two(false);
    let mut out = null_mut();
    let (ia, evd, pz) = (one.ia, one.evd, one.pz);
    let to = &raw mut out;
    let invalid = |subtype: u32| INVALID_HANDLE | subtype;
    let attr = CSrqAttr {
        max_recv_dtos: 4,
        max_recv_iov: 1,
        low_watermark: 0,
    };
    let region = |address: *mut std::ffi::c_void| CRegionDescription {
        virtual_address: address,
        shared_memory_id: null(),
    };
    let mut context = 0;
    let lmr = |kind, memory, pz| {
        let out = (null_mut(), null_mut(), null_mut(), null_mut());
        c!(dat_lmr_create(
            ia, kind, memory, 64, pz, 0x11, to, out.0, out.1, out.2, out.3
        ))
    };
    let memory = one.memory.as_ptr().cast_mut().cast();
    let segment = one.segment();
    let mut param: CEpParam = zeros();
    (param.pz_handle, param.connect_evd_handle) = (other.pz, other.evd);
    let ep_attr = {
        let mut param: CEpParam = zeros();
        ok!(dat_ep_query(one.ep, 0x7fff_f7ff, &raw mut param));
        param.ep_attr
    };
    (param.recv_evd_handle, param.request_evd_handle) = (other.evd, other.evd);
    let with_srq = |pz, recv, request, connect, srq| {
        let attr = &raw const ep_attr;
        c!(dat_ep_create_with_srq(
            ia, pz, recv, request, connect, srq, attr, to
        ))
    };
    let mut qualifier = 0;
    let answers = [
        (c!(dat_evd_create(ia, 8, other.cno, 0x10, to)), invalid(19)),
        (dat_evd_modify_cno(evd, other.cno), invalid(19)),
        (c!(dat_psp_create(ia, 9, other.evd, 0, to)), invalid(20)),
        (
            c!(dat_psp_create_any(ia, &raw mut qualifier, other.evd, 0, to)),
            invalid(20),
        ),
        (
            c!(dat_rsp_create(ia, 9, null_mut(), other.evd, to)),
            invalid(20),
        ),
        (c!(dat_rsp_create(ia, 9, other.ep, evd, to)), invalid(12)),
        (
            c!(dat_ep_create(ia, other.pz, evd, evd, evd, null(), to)),
            invalid(15),
        ),
        (
            c!(dat_ep_create(ia, pz, other.evd, evd, evd, null(), to)),
            invalid(22),
        ),
        (
            c!(dat_ep_create(ia, pz, evd, other.evd, evd, null(), to)),
            invalid(21),
        ),
        (
            c!(dat_ep_create(ia, pz, evd, evd, other.evd, null(), to)),
            invalid(23),
        ),
        (with_srq(other.pz, evd, evd, evd, one.srq), invalid(15)),
        (with_srq(pz, other.evd, evd, evd, one.srq), invalid(22)),
        (with_srq(pz, evd, other.evd, evd, one.srq), invalid(21)),
        (with_srq(pz, evd, evd, other.evd, one.srq), invalid(23)),
        (with_srq(pz, evd, evd, evd, other.srq), invalid(25)),
        (
            c!(dat_ep_modify(one.ep, 0x40, &raw const param)),
            invalid(15),
        ),
        (
            c!(dat_ep_modify(one.ep, 0x80, &raw const param)),
            invalid(22),
        ),
        (
            c!(dat_ep_modify(one.ep, 0x100, &raw const param)),
            invalid(21),
        ),
        (
            c!(dat_ep_modify(one.ep, 0x200, &raw const param)),
            invalid(23),
        ),
        (
            c!(dat_ep_dup_connect(one.ep, other.ep, SECOND, 0, null(), 0)),
            invalid(12),
        ),
        (
            c!(dat_srq_create(ia, other.pz, &raw const attr, to)),
            invalid(15),
        ),
        (lmr(0, region(memory), other.pz), invalid(15)),
        (lmr(1, region(other.lmr), pz), invalid(13)),
        (
            c!(dat_rmr_bind(
                one.rmr,
                &raw const segment,
                0,
                other.ep,
                0,
                0,
                &raw mut context
            )),
            invalid(12),
        ),
    ];
    for (at, (answer, expected)) in answers.into_iter().enumerate() {
        assert_eq!(answer, expected, "call {at}: {answer:#x}");
    }
    assert!(out.is_null());
}

/// Only objects of its own instance make a graceful close fail. The close does not touch the objects of other
/// instances.
///
/// Clauses: IAC-1, IAC-6.
#[test]
fn a_graceful_close_looks_at_its_own_objects_only() {
    let name = fresh_name();
    let full = World::of(&name, false, 1);
    let (empty, async_evd) = opened(&name, null_mut(), false).expect("another instance");
    assert_eq!(dat_ia_close(full.ia, GRACEFUL), IA_IN_USE);
    let mut pz = null_mut();
    ok!(dat_pz_create(empty, &raw mut pz));
    assert_eq!(dat_ia_close(empty, GRACEFUL), IA_IN_USE);
    done!(dat_pz_free(pz));
    done!(dat_ia_close(empty, GRACEFUL));
    for handle in [empty, async_evd] {
        let mut kind = 0;
        assert_eq!(
            c!(dat_get_handle_type(handle, &raw mut kind)) & !0xff,
            INVALID_HANDLE
        );
    }
    assert_eq!(dat_ia_close(full.ia, GRACEFUL), IA_IN_USE);
    full.post_recv(1);
}

/// An abrupt close of one instance does not affect the connections, receives and waits of other instances.
///
/// Clauses: IAC-4, IAC-6.
#[test]
fn an_abrupt_close_leaves_connections_receives_and_waiters_of_others_alone() {
    let (name, one, other) = two(false);
    connect(&one, &other, 0x1_0000_0011);
    other.post_recv(1);
    other.post_recv(2);
    let third = World::of(&name, false, 0x1_0000_0021);
    message(&one, &other, 3);
    let evd = other.evd.addr();
    let waited = thread::scope(|scope| {
        let (began, begun) = channel();
        let waiter = Waiter(&other);
        let waiter = scope.spawn(move || {
            let waiter = waiter;
            began.send(()).expect("the test listens");
            waiter.0.wait(TIMEOUT_INFINITE)
        });
        begun.recv().expect("the thread runs");
        done!(dat_ia_close(third.ia, ABRUPT));
        let event = software(9);
        ok!(dat_evd_post_se(
            without_provenance_mut(evd),
            &raw const event
        ));
        waiter.join().expect("the waiter")
    });
    let expected = Seen {
        answer: 0,
        number: SOFTWARE,
        evd,
        word: 9,
    };
    assert_eq!(waited, expected, "the first event there was");
    message(&one, &other, 4);
    for (object, subtype) in third.objects() {
        let answer = dat_pz_free(object);
        assert_eq!(answer, INVALID_HANDLE | 15, "{subtype}");
    }
}

/// The objects of an instance (`World`) for use by a waiting thread.
struct Waiter<'a>(&'a World);
// SAFETY: handles are numbers, and the thread does not access the memory.
unsafe impl Send for Waiter<'_> {}

/// Closing either instance of a connection disconnects the other instance. After both are closed, in either order, the
/// device can be opened again.
///
/// Clauses: IAC-4.
#[test]
fn a_connection_between_instances_ends_with_either_and_both_orders_of_closing_are_good() {
    for first in [0, 1] {
        let (name, one, other) = two(false);
        connect(&one, &other, 0x1_0000_0011);
        let (goes, stays) = if first == 0 {
            (&one, &other)
        } else {
            (&other, &one)
        };
        done!(dat_ia_close(goes.ia, ABRUPT));
        let seen = stays.wait(SECOND);
        assert_eq!((seen.number, seen.word), (DISCONNECTED, stays.ep.addr()));
        done!(dat_ia_close(stays.ia, ABRUPT));
        // The device can be opened again.
        let (ia, _) = opened(&name, null_mut(), false).expect("closed");
        done!(dat_ia_close(ia, GRACEFUL));
    }
}

/// An abrupt close of an instance ends the waits of other threads on its EVDs and CNOs.
///
/// Clauses: IAC-4.
#[test]
fn who_waits_in_the_instance_that_closes_is_released() {
    for on_cno in [false, true] {
        let (_name, one, other) = two(false);
        done!(dat_evd_modify_cno(other.evd, other.cno));
        let answer = thread::scope(|scope| {
            let (began, begun) = channel();
            let waiter = Waiter(&other);
            let waiter = scope.spawn(move || {
                let waiter = waiter;
                began.send(()).expect("the test listens");
                if !on_cno {
                    return (waiter.0.wait(TIMEOUT_INFINITE).answer, 0);
                }
                let mut evd = waiter.0.evd;
                let answer = c!(dat_cno_wait(waiter.0.cno, TIMEOUT_INFINITE, &raw mut evd));
                (answer, evd.addr())
            });
            begun.recv().expect("the thread runs");
            done!(dat_ia_close(other.ia, ABRUPT));
            waiter.join().expect("the waiter")
        });
        // A wait on an EVD returns DAT_ABORT. A wait on a CNO succeeds with a null EVD. A wait that begins after the
        // close returns DAT_INVALID_HANDLE.
        let released = if on_cno { (0, 0) } else { (0x8001_0000, 0) };
        let late = answer.0 & !0xff == INVALID_HANDLE;
        assert!(answer == released || late, "{answer:x?}");
        one.post_recv(1);
    }
}

/// An asynchronous EVD that is passed to a second open serves both instances, and is not freed when the second instance
/// is closed.
///
/// Clauses: IAO-11, IAC-5.
#[test]
fn an_asynchronous_evd_handed_in_serves_both_and_outlives_the_close() {
    let name = fresh_name();
    let one = World::of(&name, false, 1);
    let (ia, evd) = opened(&name, one.async_evd, false).expect("the same asynchronous EVD");
    assert_eq!((evd, async_evd_of(ia)), (one.async_evd, one.async_evd));
    let mut param: CEvdParam = zeros();
    ok!(dat_evd_query(evd, 1, &raw mut param));
    assert_eq!(param.ia_handle, one.ia);
    done!(dat_ia_close(ia, GRACEFUL));
    done!(dat_ep_set_watermark(one.ep, 0, -1));
    one.post_recv(1);
    assert_eq!(next(one.evd), None, "looks around");
    assert_eq!(next(evd), Some((SOFT_HIGH_WATERMARK, one.ep)));
}

/// Clauses: IAO-4, IAO-11.
#[test]
fn events_of_an_instance_go_to_the_asynchronous_evd_it_was_given() {
    let name = fresh_name();
    let one = World::of(&name, false, 1);
    for given in [one.async_evd, without_provenance_mut(ASYNC_EXISTS)] {
        let other = World::with(&name, given, false, 11);
        done!(dat_ep_set_watermark(other.ep, 0, -1));
        other.post_recv(1);
        assert_eq!(next(other.evd), None, "looks around");
        let (mut event, mut left): (CEvent, _) = (zeros(), 0);
        let evd = one.async_evd;
        ok!(dat_evd_wait(
            evd,
            TIMEOUT_INFINITE,
            1,
            &raw mut event,
            &raw mut left
        ));
        // SAFETY: the event is an asynchronous event.
        let of = unsafe { event.event_data.asynch_error_event_data.dat_handle };
        assert_eq!((event.event_number, of), (SOFT_HIGH_WATERMARK, other.ep));
        assert_eq!(next(one.async_evd), None);
        done!(dat_ia_close(other.ia, ABRUPT));
    }
}

/// After the instance that owns an asynchronous EVD is closed, the other instances that used that EVD report
/// DAT_EVD_OUT_OF_SCOPE.
///
/// Clauses: IAO-11, IAO-12, IAC-5.
#[test]
fn an_instance_whose_asynchronous_evd_closed_with_another_has_none_in_scope() {
    let name = fresh_name();
    let first = World::of(&name, false, 1);
    let (given, _) = opened(&name, first.async_evd, false).expect("an instance");
    let (without, none) =
        opened(&name, without_provenance_mut(ASYNC_EXISTS), false).expect("an instance");
    assert_eq!(none.addr(), OUT_OF_SCOPE);
    done!(dat_ia_close(first.ia, ABRUPT));
    for ia in [given, without] {
        assert_eq!(async_evd_of(ia).addr(), OUT_OF_SCOPE);
        done!(dat_ia_close(ia, GRACEFUL));
    }
}

/// An EVD that serves as asynchronous EVD of another instance cannot be freed before that instance is closed.
///
/// Clauses: IAO-11.
#[test]
fn an_evd_that_serves_another_instance_is_kept_until_that_closes() {
    let name = fresh_name();
    let one = World::of(&name, false, 1);
    let mut evd = null_mut();
    ok!(dat_evd_create(one.ia, 4, null_mut(), 0x100, &raw mut evd));
    let (ia, _) = opened(&name, evd, false).expect("an EVD for asynchronous events");
    // DAT_INVALID_STATE|EVD_IN_USE.
    assert_eq!(dat_evd_free(evd), 0x8007_0000 | 73);
    done!(dat_ia_close(ia, GRACEFUL));
    done!(dat_evd_free(evd));
    let strangers = World::new(false);
    for evd in [one.evd, evd, strangers.async_evd, one.pz] {
        assert_eq!(opened(&name, evd, false), Err(EVD_ASYNC));
    }
    let name = fresh_name();
    assert_eq!(
        opened(&name, one.async_evd, false),
        Err(EVD_ASYNC),
        "not open"
    );
}

/// Clauses: IAO-4, IAO-10.
#[test]
fn an_event_of_an_object_goes_to_the_asynchronous_evd_of_its_instance() {
    let (_name, one, other) = two(false);
    for (mine, others) in [(&one, &other), (&other, &one)] {
        done!(dat_ep_set_watermark(mine.ep, 0, -1));
        mine.post_recv(1);
        assert_eq!(next(others.evd), None, "looks around");
        assert_eq!(next(others.async_evd), None);
        assert_eq!(next(mine.async_evd), Some((SOFT_HIGH_WATERMARK, mine.ep)));
    }
}

/// Clauses: IAO-9.
#[test]
fn instances_of_an_adapter_share_its_connection_qualifiers() {
    let (_name, one, other) = two(false);
    let mut psp = null_mut();
    let taken = c!(dat_psp_create(
        other.ia,
        0x1_0000_0001,
        other.evd,
        0,
        &raw mut psp
    ));
    assert_eq!(taken, CONN_QUAL_IN_USE);
    done!(dat_ia_close(one.ia, ABRUPT));
    ok!(dat_psp_create(
        other.ia,
        0x1_0000_0001,
        other.evd,
        0,
        &raw mut psp
    ));
}

/// Clauses: IAO-8.
#[test]
fn an_adapter_is_opened_again_with_what_it_has_and_not_with_more() {
    let name = fresh_name();
    let device = name.to_str().expect("a name");
    let with = |options: &str| CString::new(format!("{device}{options}")).expect("a name");
    let open = |name: &CStr| opened(name, null_mut(), false).map(|(ia, _)| ia);
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("file").display().to_string();
    let (pcap, folder) = (format!(",pcap={file}"), format!(",recorder={file}/"));
    let first = open(&with(
        ",address=192.0.2.1,neighbour=192.0.2.9/02:00:00:00:00:09,endpoints=100,network=off,memory=again,mtu=4200,profile=connectx-5",
    ));
    let first = first.expect("an adapter");
    for options in [
        "",
        ",address=192.0.2.1",
        ",neighbour=192.0.2.9/02:00:00:00:00:09",
        ",endpoints=60",
        ",vectors=1",
        ",network=off",
        ",memory=again",
        ",mtu=4200",
        ",profile=connectx-5",
        ",recorder=on",
        ",events=all",
    ] {
        let ia = open(&with(options)).expect("nothing new");
        done!(dat_ia_close(ia, GRACEFUL));
    }
    for options in [
        ",address=192.0.2.2",
        ",neighbour=192.0.2.9/02:00:00:00:00:08",
        ",endpoints=200",
        ",vectors=4",
        ",network=on",
        ",memory=other",
        ",mtu=1500",
        ",profile=connectx-7",
        &format!(",control={file}"),
        &pcap,
        &folder,
    ] {
        assert_eq!(open(&with(options)), Err(DEVICE), "{options}");
    }
    let made = std::fs::read_dir(directory.path()).expect("a directory");
    assert_eq!(made.count(), 0, "who is refused makes no file");
    done!(dat_ia_close(first, GRACEFUL));
    let ours = udapl::ia_open(device, &udapl::OpenOptions::default()).expect("free again");
    assert_eq!(open(&name), Err(DEVICE), "a Rust program has it");
    udapl::ia_close(ours, udapl::CloseFlags::Graceful).expect("closes");
}

/// A second open may give an option that the first open did not give, if the adapter has the value by default.
#[test]
fn an_option_that_the_adapter_has_by_default_opens_it_again() {
    let name = fresh_name();
    let device = name.to_str().expect("a name");
    let (first, _) = opened(&name, null_mut(), false).expect("an adapter");
    for options in [",endpoints=100", ",mtu=4200", ",network=on"] {
        let name = CString::new(format!("{device}{options}")).expect("a name");
        let (ia, _) = opened(&name, null_mut(), false).expect(options);
        done!(dat_ia_close(ia, GRACEFUL));
    }
    let name = CString::new(format!("{device},mtu=1500")).expect("a name");
    let other = opened(&name, null_mut(), false).map(|(ia, _)| ia);
    assert_eq!(other, Err(DEVICE));
    done!(dat_ia_close(first, GRACEFUL));
}

#[test]
fn a_hundred_instances_leave_nothing_behind() {
    let name = fresh_name();
    let (first, _) = opened(&name, null_mut(), false).expect("an adapter");
    for qualifier in 0..100 {
        let world = World::of(&name, qualifier % 2 == 0, 0x1_0000_0001);
        done!(dat_ia_close(world.ia, ABRUPT));
    }
    // The close succeeds, because `first` has no object. That a closed instance leaves none in the device is tested in
    // `tests/dat/instances.rs`.
    done!(dat_ia_close(first, GRACEFUL));
    for _ in 0..100 {
        let (ia, _) = opened(&name, null_mut(), false).expect("an adapter");
        done!(dat_ia_close(ia, GRACEFUL));
    }
}

#[test]
fn instances_that_are_not_thread_safe_are_used_by_a_thread_each() {
    let name = fresh_name();
    thread::scope(|scope| {
        for number in 0..3_u64 {
            let name = &name;
            scope.spawn(move || {
                for _ in 0..3 {
                    let world = World::of(name, false, 0x1_0000_0001 + 16 * number);
                    for cookie in 0..300 {
                        let event = software(usize::try_from(cookie).expect("small"));
                        ok!(dat_evd_post_se(world.evd, &raw const event));
                        if cookie < 16 {
                            world.post_recv(cookie);
                        }
                        let seen = next(world.evd).expect("just posted");
                        assert_eq!(seen, (SOFTWARE, event_word(&event)));
                        let mut pz = null_mut();
                        ok!(dat_pz_create(world.ia, &raw mut pz));
                        done!(dat_pz_free(pz));
                    }
                }
            });
        }
    });
}

fn event_word(event: &CEvent) -> DatHandle {
    // SAFETY: the event is a software event.
    unsafe { event.event_data.software_event_data.pointer }.cast()
}
