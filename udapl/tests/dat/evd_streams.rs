//! Streams of an EVD: the streams that an EVD accepts, the streams that may share an EVD, and the objects that cannot
//! be freed while they are in use.

use udapl::adapter::IaConfig;
use udapl::endpoint::{EpAttr, EpChange};
use udapl::error::{ReturnType, Subtype};
use udapl::event::SoftwareEvent;
use udapl::srq::SrqAttr;
use udapl::wait::EvdState;
use udapl::{
    CompletionFlags, ConnQual, DatResult, EpEvds, EpHandle, EvdFlags, EvdHandle, PspFlags,
};

use crate::support::waiting::FOREVER;
use crate::support::{A, B, NONE, Pair, PairConfig, attributes, refused};

#[test]
fn the_state_of_an_evd_follows_the_streams_attached_to_it() {
    let cases = [
        (CompletionFlags::UNSIGNALLED, EvdState::CONFIG_NOTIFY),
        (CompletionFlags::SOLICITED_WAIT, EvdState::CONFIG_SOLICITED),
        (CompletionFlags::EVD_THRESHOLD, EvdState::CONFIG_THRESHOLD),
        (CompletionFlags::empty(), EvdState::CONFIG_THRESHOLD),
    ];
    let mut pair = Pair::unconnected(&PairConfig::default());
    for (flags, expected) in cases {
        let evd = pair.evd(8, EvdFlags::DTO);
        let side = &mut pair.sides[A];
        let attr = EpAttr {
            recv_completion_flags: flags,
            ..attributes(&side.ia)
        };
        let config =
            |ia: &udapl::Ia| ia.evd_query(evd).expect("exists").state & EvdState::CONFIG_THRESHOLD;
        let ep = side
            .ia
            .ep_create(Some(side.pz), EpEvds::NONE.recv(evd), Some(&attr))
            .expect("an endpoint");
        assert_eq!(config(&side.ia), expected, "{flags:?}");
        side.ia.ep_free(ep).expect("freed");
        assert_eq!(config(&side.ia), EvdState::CONFIG_THRESHOLD);
    }
}

/// Makes an endpoint of A with these EVDs and completion flags.
fn endpoint(
    pair: &mut Pair,
    [recv, request, connect]: [Option<EvdHandle>; 3],
    [recv_flags, request_flags]: [CompletionFlags; 2],
) -> DatResult<EpHandle> {
    let side = &mut pair.sides[A];
    let attr = EpAttr {
        recv_completion_flags: recv_flags,
        request_completion_flags: request_flags,
        ..attributes(&side.ia)
    };
    side.ia.ep_create(
        Some(side.pz),
        EpEvds {
            recv,
            request,
            connect,
        },
        Some(&attr),
    )
}

const UNSIGNALLED: CompletionFlags = CompletionFlags::UNSIGNALLED;

const SOLICITED: CompletionFlags = CompletionFlags::SOLICITED_WAIT;

const THRESHOLD: CompletionFlags = CompletionFlags::EVD_THRESHOLD;

/// Cases of the sharing rules: the EVD (0 or 1) of an endpoint's receives, requests and connection events, the
/// completion flags of its receives and requests, and true if the combination is legal.
const SHARING: [([usize; 3], [CompletionFlags; 2], bool); 16] = [
    // If all completions notify, all streams may share an EVD.
    ([0, 0, 0], [THRESHOLD, THRESHOLD], true),
    ([0, 0, 0], [NONE, THRESHOLD], true),
    ([0, 1, 0], [THRESHOLD, THRESHOLD], true),
    // Rule 1: streams on one EVD have equal flags.
    ([0, 0, 1], [UNSIGNALLED, THRESHOLD], false),
    ([0, 0, 1], [THRESHOLD, UNSIGNALLED], false),
    ([0, 0, 1], [SOLICITED, THRESHOLD], false),
    ([0, 0, 1], [SOLICITED, UNSIGNALLED], false),
    ([0, 0, 1], [UNSIGNALLED, UNSIGNALLED], true),
    // Each stream on its own EVD.
    ([0, 1, 1], [UNSIGNALLED, THRESHOLD], true),
    ([0, 1, 1], [SOLICITED, THRESHOLD], true),
    // Rule 2: streams of completions that do not always notify may not share an EVD with another kind of stream.
    ([0, 1, 0], [UNSIGNALLED, THRESHOLD], false),
    ([1, 0, 0], [THRESHOLD, UNSIGNALLED], false),
    ([0, 0, 0], [UNSIGNALLED, UNSIGNALLED], false),
    // Rule 4: solicited receives share their EVD with no other stream.
    ([0, 1, 0], [SOLICITED, THRESHOLD], false),
    ([0, 0, 0], [SOLICITED, THRESHOLD], false),
    ([0, 1, 1], [SOLICITED, UNSIGNALLED], false),
];

/// Clauses: EPC-6.
#[test]
fn streams_share_an_evd_as_the_rules_have_it() {
    for (row, (evds, flags, legal)) in SHARING.into_iter().enumerate() {
        for strict in [true, false] {
            let mut config = PairConfig::default();
            config.options[A].ia = IaConfig {
                strict_evd_sharing: strict,
                ..IaConfig::default()
            };
            let mut pair = Pair::unconnected(&config);
            let made = [0; 2].map(|_| pair.evd(300, EvdFlags::DTO | EvdFlags::CONNECTION));
            let streams = evds.map(|evd| Some(made[evd]));
            let result = endpoint(&mut pair, streams, flags);
            if legal || !strict {
                let ep = result.unwrap_or_else(|error| panic!("row {row}: {error}"));
                pair.sides[A].ia.ep_free(ep).expect("freed");
            } else {
                let error = refused(result, ReturnType::InvalidParameter);
                assert_eq!(error.subtype(), Subtype::Arg6, "row {row}");
            }
            // A refused or freed endpoint keeps no reference to the EVDs.
            for evd in made {
                pair.sides[A].ia.evd_free(evd).expect("nothing feeds it");
            }
            pair.assert_no_complaints();
        }
    }
}

#[test]
fn endpoints_that_share_an_evd_must_agree() {
    let mut pair = Pair::unconnected(&PairConfig::default());
    for (first, second, legal) in [
        (UNSIGNALLED, UNSIGNALLED, true),
        (SOLICITED, SOLICITED, true),
        (THRESHOLD, NONE, true),
        (UNSIGNALLED, SOLICITED, false),
        (SOLICITED, UNSIGNALLED, false),
        (THRESHOLD, UNSIGNALLED, false),
        (SOLICITED, THRESHOLD, false),
    ] {
        let evd = pair.evd(300, EvdFlags::DTO);
        let one = endpoint(&mut pair, [Some(evd), None, None], [first, NONE]).expect("alone");
        let two = endpoint(&mut pair, [Some(evd), None, None], [second, NONE]);
        assert_eq!(two.is_ok(), legal, "{first:?} and {second:?}");
        // A change by `ep_modify` follows the same rules as the creation.
        let moved = endpoint(&mut pair, [None, None, None], [second, NONE]).expect("nowhere");
        let there = EpChange {
            recv_evd: Some(Some(evd)),
            ..EpChange::default()
        };
        let changed = pair.sides[A].ia.ep_modify(moved, &there);
        assert_eq!(changed.is_ok(), legal, "{first:?} and {second:?}");
        if let Err(error) = changed {
            assert_eq!(
                (error.return_type(), error.subtype()),
                (ReturnType::InvalidParameter, Subtype::Arg3)
            );
        }
        // Freed endpoints no longer restrict the EVD.
        pair.sides[A].ia.ep_free(one).expect("freed");
        pair.sides[A].ia.ep_free(moved).expect("freed");
        if let Ok(two) = two {
            pair.sides[A].ia.ep_free(two).expect("freed");
        }
        let alone =
            endpoint(&mut pair, [Some(evd), None, None], [second, NONE]).expect("alone now");
        pair.sides[A].ia.ep_free(alone).expect("freed");
        pair.sides[A].ia.evd_free(evd).expect("unused");
    }
    pair.assert_no_complaints();
}

#[test]
fn service_points_and_software_events_share_with_streams_that_count_only() {
    let mut pair = Pair::unconnected(&PairConfig::default());
    let all = EvdFlags::DTO | EvdFlags::CR | EvdFlags::CONNECTION;
    for (flags, legal) in [(UNSIGNALLED, false), (SOLICITED, false), (THRESHOLD, true)] {
        // Case 1: the endpoint is created first.
        let evd = pair.evd(300, all);
        let ep = endpoint(&mut pair, [Some(evd), None, None], [flags, NONE]).expect("alone");
        let psp = pair.sides[A]
            .ia
            .psp_create(ConnQual(5), evd, PspFlags::CONSUMER);
        assert_eq!(psp.is_ok(), legal, "{flags:?}");
        match psp {
            Ok(psp) => pair.sides[A].ia.psp_free(psp).expect("exists"),
            Err(error) => assert_eq!(error.return_type(), ReturnType::InvalidParameter),
        }
        pair.sides[A].ia.ep_free(ep).expect("freed");
        // Case 2: the service point is created first.
        let psp = pair.sides[A]
            .ia
            .psp_create(ConnQual(5), evd, PspFlags::CONSUMER)
            .expect("alone");
        assert_eq!(
            endpoint(&mut pair, [Some(evd), None, None], [flags, NONE]).is_ok(),
            legal,
            "{flags:?}"
        );
        pair.sides[A].ia.psp_free(psp).expect("exists");
        // Case 3: the EVD also takes software events.
        let evd = pair.evd(300, all | EvdFlags::SOFTWARE);
        assert_eq!(
            endpoint(&mut pair, [Some(evd), None, None], [flags, NONE]).is_ok(),
            legal,
            "{flags:?}"
        );
    }
}

/// Clauses: EPC-4.
#[test]
fn an_evd_takes_only_the_streams_it_was_made_for() {
    let mut pair = Pair::unconnected(&PairConfig::default());
    let bare = pair.evd(300, EvdFlags::SOFTWARE);
    let foreign = pair.sides[B].recv;
    let gone = pair.evd(300, EvdFlags::all());
    pair.sides[A].ia.evd_free(gone).expect("unused");
    for evd in [bare, foreign, gone] {
        for (at, subtype) in [
            Subtype::HandleEvdRecv,
            Subtype::HandleEvdRequest,
            Subtype::HandleEvdConn,
        ]
        .into_iter()
        .enumerate()
        {
            let mut evds = [None; 3];
            evds[at] = Some(evd);
            let error = refused(
                endpoint(&mut pair, evds, [NONE; 2]),
                ReturnType::InvalidHandle,
            );
            assert_eq!(error.subtype(), subtype);
        }
        let error = refused(
            pair.sides[A]
                .ia
                .psp_create(ConnQual(5), evd, PspFlags::CONSUMER),
            ReturnType::InvalidHandle,
        );
        assert_eq!(error.subtype(), Subtype::HandleEvdCr);
    }
    let ia = &mut pair.sides[A].ia;
    for evd in [foreign, gone] {
        refused(ia.evd_dequeue(evd), ReturnType::InvalidHandle);
        refused(ia.evd_query(evd).map(drop), ReturnType::InvalidHandle);
        refused(ia.evd_free(evd), ReturnType::InvalidHandle);
        refused(
            ia.evd_post_se(evd, SoftwareEvent(1)),
            ReturnType::InvalidHandle,
        );
        refused(ia.evd_set_unwaitable(evd), ReturnType::InvalidHandle);
        refused(ia.evd_clear_unwaitable(evd), ReturnType::InvalidHandle);
        let error = ia.evd_wait(evd, FOREVER, 1).expect_err("no such EVD").error;
        assert_eq!(error.return_type(), ReturnType::InvalidHandle);
    }
}

#[test]
fn what_is_in_use_cannot_be_freed_and_can_when_it_no_longer_is() {
    let mut pair = Pair::unconnected(&PairConfig::default());
    let buffer = pair.buffer(A, 64);
    let side = &mut pair.sides[A];
    let (ia, pz) = (&mut side.ia, side.pz);
    let in_use = |result: DatResult<()>, subtype| {
        assert_eq!(refused(result, ReturnType::InvalidState).subtype(), subtype);
    };
    let evd = ia.evd_create(8, EvdFlags::all()).expect("an EVD");
    let asynchronous = ia.async_evd();
    in_use(ia.evd_free(asynchronous), Subtype::StateEvdInUse);
    // A PZ cannot be freed while it has an endpoint and an LMR, only an LMR, or only an SRQ.
    in_use(ia.pz_free(pz), Subtype::StatePzInUse);
    ia.ep_free(side.ep).expect("unconnected");
    in_use(ia.pz_free(pz), Subtype::StatePzInUse);
    ia.lmr_free(buffer.lmr.lmr).expect("nothing is bound to it");
    let attr = SrqAttr {
        max_recv_dtos: 4,
        max_recv_iov: 1,
        low_watermark: 0,
    };
    let srq = ia.srq_create(pz, attr).expect("an SRQ");
    in_use(ia.pz_free(pz), Subtype::StatePzInUse);
    // An EVD cannot be freed while receives, requests, connections or connection requests feed it.
    let streams = [
        [Some(evd), None, None],
        [None, Some(evd), None],
        [None, None, Some(evd)],
    ];
    for [recv, request, connect] in streams {
        let ep = ia
            .ep_create(
                None,
                EpEvds {
                    recv,
                    request,
                    connect,
                },
                None,
            )
            .expect("an endpoint");
        in_use(ia.evd_free(evd), Subtype::StateEvdInUse);
        // After `ep_modify` to another EVD, the new EVD is in use.
        let other = ia.evd_create(8, EvdFlags::all()).expect("an EVD");
        let away = EpChange {
            recv_evd: recv.map(|_| Some(other)),
            request_evd: request.map(|_| Some(other)),
            connect_evd: connect.map(|_| Some(other)),
            ..EpChange::default()
        };
        ia.ep_modify(ep, &away).expect("UNCONNECTED");
        in_use(ia.evd_free(other), Subtype::StateEvdInUse);
        ia.ep_free(ep).expect("unconnected");
        ia.evd_free(other).expect("nothing feeds it");
    }
    let psp = ia
        .psp_create(ConnQual(5), evd, PspFlags::CONSUMER)
        .expect("a PSP");
    in_use(ia.evd_free(evd), Subtype::StateEvdInUse);
    ia.psp_free(psp).expect("never in use");
    ia.evd_free(evd).expect("nothing feeds it");
    // An SRQ cannot be freed before its endpoints. The endpoint here has another PZ than the SRQ.
    let zone = ia.pz_create().expect("a PZ");
    let usual = attributes(ia);
    let ep = ia
        .ep_create_with_srq(Some(zone), EpEvds::NONE, srq, &usual)
        .expect("an endpoint");
    in_use(ia.srq_free(srq), Subtype::StateSrqInUse);
    in_use(ia.pz_free(zone), Subtype::StatePzInUse);
    ia.ep_free(ep).expect("unconnected");
    ia.srq_free(srq).expect("no endpoint uses it");
    for pz in [zone, pz] {
        ia.pz_free(pz).expect("nothing is in it");
        assert_eq!(
            refused(ia.pz_free(pz), ReturnType::InvalidHandle).subtype(),
            Subtype::HandlePz
        );
    }
    assert_eq!(
        refused(ia.srq_free(srq), ReturnType::InvalidHandle).subtype(),
        Subtype::HandleSrq
    );
    assert_eq!(
        refused(ia.ep_free(ep), ReturnType::InvalidHandle).subtype(),
        Subtype::HandleEp
    );
    assert_eq!(
        refused(ia.psp_free(psp), ReturnType::InvalidHandle).subtype(),
        Subtype::HandlePsp
    );
    assert_eq!(
        refused(ia.lmr_free(buffer.lmr.lmr), ReturnType::InvalidHandle).subtype(),
        Subtype::HandleLmr
    );
    pair.assert_no_complaints();
}
