//! The kind and the consumer context of every object, and the names of error codes.

use udapl::adapter::{AnyHandle, HandleType};
use udapl::error::{ReturnType, Subtype};
use udapl::{CompletionFlags, EvdFlags, Event, MemPrivFlags, PspFlags};

use crate::support::shared::SRQ;
use crate::support::{self, A, B, CONN_QUAL, LONG, Pair, PairConfig, refused};

/// Returns a pair, and one object of each kind of B, with its kind and its subtype of DAT_INVALID_HANDLE.
fn one_of_each() -> (Pair, Vec<(AnyHandle, HandleType, Subtype)>) {
    let mut pair = Pair::unconnected(&PairConfig::default());
    let a = pair.sides[A].ep;
    pair.start(A, a, CONN_QUAL, LONG, b"").expect("UNCONNECTED");
    let Event::ConnectionRequest(request) = pair.wait_event(B, pair.sides[B].cr) else {
        panic!("a connection request");
    };
    let side = &mut pair.sides[B];
    let memory = udapl::alloc(&side.ia, 64).expect("memory");
    let lmr = side.ia.lmr_create(memory, side.pz, MemPrivFlags::all());
    let objects = vec![
        (AnyHandle::Ia, HandleType::Ia, Subtype::HandleIa),
        (request.cr.into(), HandleType::Cr, Subtype::HandleCr),
        (side.ep.into(), HandleType::Ep, Subtype::HandleEp),
        (side.recv.into(), HandleType::Evd, Subtype::Handle1),
        (
            lmr.expect("an LMR").lmr.into(),
            HandleType::Lmr,
            Subtype::HandleLmr,
        ),
        (pair.psp.into(), HandleType::Psp, Subtype::HandlePsp),
        (side.pz.into(), HandleType::Pz, Subtype::HandlePz),
        (
            side.ia.rmr_create(side.pz).expect("an RMR").into(),
            HandleType::Rmr,
            Subtype::HandleRmr,
        ),
        (
            side.ia
                .rsp_create(support::beside(1), None, side.cr)
                .expect("an RSP")
                .into(),
            HandleType::Rsp,
            Subtype::HandleRsp,
        ),
        (
            side.ia.cno_create(None).expect("a CNO").into(),
            HandleType::Cno,
            Subtype::HandleCno,
        ),
        (
            side.ia.srq_create(side.pz, SRQ).expect("an SRQ").into(),
            HandleType::Srq,
            Subtype::HandleSrq,
        ),
    ];
    (pair, objects)
}

/// Every object has its kind and one consumer context.
///
/// Clauses: CTX-1, CTX-2, CTX-3, HTY-1.
#[test]
fn every_object_has_its_kind_and_one_word() {
    let (mut pair, objects) = one_of_each();
    let ia = &mut pair.sides[B].ia;
    for (word, &(handle, kind, _)) in (1..).zip(&objects) {
        assert_eq!(ia.get_handle_type(handle), Ok(kind));
        assert_eq!(ia.get_consumer_context(handle), Ok(0), "{handle:?}");
        ia.set_consumer_context(handle, word).expect("exists");
    }
    // Each object has its own context, and a new context replaces the old context.
    for (word, &(handle, ..)) in (1..).zip(&objects) {
        assert_eq!(ia.get_consumer_context(handle), Ok(word), "{handle:?}");
        ia.set_consumer_context(handle, u64::MAX - word)
            .expect("exists");
        assert_eq!(ia.get_consumer_context(handle), Ok(u64::MAX - word));
        ia.set_consumer_context(handle, 0).expect("exists");
        assert_eq!(ia.get_consumer_context(handle), Ok(0));
    }
}

/// An object that was freed, or that belongs to another adapter, has neither a kind nor a consumer context.
///
/// Clauses: CTX-4, HTY-2.
#[test]
fn an_object_that_is_gone_or_elsewhere_has_neither() {
    let (mut pair, objects) = one_of_each();
    let [a, b] = &mut pair.sides;
    for &(handle, _, subtype) in objects
        .iter()
        .filter(|(handle, ..)| *handle != AnyHandle::Ia)
    {
        b.ia.set_consumer_context(handle, 7).expect("exists");
        let calls = [
            a.ia.get_handle_type(handle).err(),
            a.ia.get_consumer_context(handle).err(),
            a.ia.set_consumer_context(handle, 1).err(),
        ];
        for error in calls {
            let error = error.expect("of another adapter");
            assert_eq!(
                (error.return_type(), error.subtype()),
                (ReturnType::InvalidHandle, subtype)
            );
        }
    }
    let cno = b.ia.cno_create(None).expect("a CNO");
    b.ia.set_consumer_context(cno, 7).expect("exists");
    b.ia.cno_free(cno).expect("unused");
    refused(b.ia.get_consumer_context(cno), ReturnType::InvalidHandle);
    refused(b.ia.set_consumer_context(cno, 8), ReturnType::InvalidHandle);
    let next = b.ia.cno_create(None).expect("a CNO");
    assert_eq!(
        b.ia.get_consumer_context(next),
        Ok(0),
        "the word went with it"
    );
}

/// An object keeps its consumer context through all its states.
///
/// Clauses: CTX-5.
#[test]
fn a_word_stays_through_whatever_the_object_goes_through() {
    let mut pair = Pair::unconnected(&PairConfig::default());
    let (ep, evd) = (pair.sides[A].ep, pair.sides[A].recv);
    for handle in [AnyHandle::from(ep), evd.into()] {
        pair.sides[A]
            .ia
            .set_consumer_context(handle, 0x1234_5678_9abc_def0)
            .expect("exists");
    }
    pair.connect();
    pair.expect_alive();
    pair.disconnect();
    let ia = &mut pair.sides[A].ia;
    ia.ep_reset(ep).expect("DISCONNECTED");
    ia.evd_resize(evd, 300).expect("room");
    for handle in [AnyHandle::from(ep), evd.into()] {
        assert_eq!(ia.get_consumer_context(handle), Ok(0x1234_5678_9abc_def0));
    }
}

/// Clauses: STR-1, STR-2.
#[test]
fn the_error_of_a_call_is_called_by_its_names() {
    let mut pair = Pair::unconnected(&PairConfig::default());
    let ia = &mut pair.sides[B].ia;
    let errors = [
        ia.evd_create(0, EvdFlags::CR).expect_err("no length"),
        ia.psp_create(CONN_QUAL, pair.sides[B].cr, PspFlags::CONSUMER)
            .expect_err("in use"),
        pair.post_send(B, support::connecting::EMPTY, 1, CompletionFlags::empty())
            .expect_err("UNCONNECTED"),
    ];
    let names = errors.map(|error| udapl::error::strerror(error.code()));
    assert_eq!(
        names,
        [
            Some(("DAT_INVALID_PARAMETER", "DAT_INVALID_ARG2")),
            Some(("DAT_CONN_QUAL_IN_USE", "")),
            Some(("DAT_INVALID_STATE", "DAT_INVALID_STATE_EP_UNCONNECTED")),
        ]
    );
    assert_eq!(udapl::error::strerror(0), Some(("DAT_SUCCESS", "")));
    assert_eq!(udapl::error::strerror(0x8000_0000), None);
    assert_eq!(udapl::error::strerror(u32::MAX), None);
}
