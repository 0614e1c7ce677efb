//! Changing the attributes of an endpoint that has receives: `ep_modify`.

use udapl::endpoint::{EpAttr, EpChange, EpState};
use udapl::error::ReturnType;
use udapl::{CompletionFlags, ConnectionEventKind, DtoStatus, EvdFlags, MemPrivFlags, PspFlags};

use crate::support::{self, A, B, NONE, Pair, PairConfig, pattern, refused};

const NOTHING: EpChange = EpChange {
    pz: None,
    recv_evd: None,
    request_evd: None,
    connect_evd: None,
    attr: None,
    transport: None,
};

impl Pair {
    #[track_caller]
    fn modify(&mut self, side: usize, change: &EpChange) {
        let ep = self.sides[side].ep;
        let modified = self.sides[side].ia.ep_modify(ep, change);
        modified.expect("UNCONNECTED");
    }

    fn attr(&self, side: usize) -> EpAttr {
        let side = &self.sides[side];
        side.ia.ep_query(side.ep).expect("exists").attr
    }
}

/// Clauses: EPM-2, EPM-7.
#[test]
fn receives_survive_another_configuration_with_segments_cookies_and_order() {
    let mut pair = Pair::unconnected(&PairConfig::default());
    let (inbox, outbox) = (pair.untouched(B, 4_096), pair.filled(A, 5, 4_096));
    let iov = [
        inbox.part(512, 100),
        inbox.part(0, 60),
        inbox.part(2_048, 40),
    ];
    pair.post_recv(B, &iov, 1, NONE).expect("posted");
    pair.post_recv(B, &[], 2, NONE).expect("posted");
    pair.post_recv(B, &[inbox.part(3_000, 200)], 3, NONE)
        .expect("posted");
    let elsewhere = pair.sides[B].ia.evd_create(16, EvdFlags::DTO);
    let elsewhere = elsewhere.expect("an EVD");
    pair.modify(
        B,
        &EpChange {
            recv_evd: Some(Some(elsewhere)),
            attr: Some(EpAttr {
                max_recv_dtos: 3,
                max_recv_iov: 3,
                max_request_dtos: 7,
                ..pair.attr(B)
            }),
            ..NOTHING
        },
    );
    pair.sides[B].recv = elsewhere;
    pair.connect();
    for (at, bytes) in [(0, 200), (0, 0), (1_000, 200)] {
        pair.post_send(A, &[outbox.part(at, bytes)], 9, NONE)
            .expect("posted");
        pair.expect_request(A, 9, DtoStatus::Success);
    }
    for (cookie, bytes) in [(1, 200), (2, 0), (3, 200)] {
        let done = pair.expect_recv(B, cookie, DtoStatus::Success);
        assert_eq!(done.transferred_length, bytes);
    }
    let sent = pattern(5, 4_096);
    assert_eq!(inbox.read(512, 100), sent[..100]);
    assert_eq!(inbox.read(0, 60), sent[100..160]);
    assert_eq!(inbox.read(2_048, 40), sent[160..200]);
    assert_eq!(inbox.read(3_000, 200), sent[1_000..1_200]);
    pair.assert_no_complaints();
}

/// Clauses: EPM-3.
#[test]
fn a_receive_that_does_not_match_the_new_zone_fails_when_it_is_used() {
    let mut pair = Pair::unconnected(&PairConfig::default());
    let (old, outbox) = (pair.buffer(B, 64), pair.buffer(A, 64));
    pair.post_recv(B, &[old.all()], 1, NONE).expect("posted");
    let zone = pair.sides[B].ia.pz_create().expect("a PZ");
    pair.modify(
        B,
        &EpChange {
            pz: Some(Some(zone)),
            ..NOTHING
        },
    );
    let new = pair.buffer_in(B, 64, zone, MemPrivFlags::all());
    pair.post_recv(B, &[new.all()], 2, NONE).expect("posted");
    let late = pair.post_recv(B, &[old.all()], 3, NONE);
    refused(late, ReturnType::ProtectionViolation);
    pair.connect();
    pair.post_send(A, &[outbox.all()], 4, NONE).expect("posted");
    pair.expect_recv(B, 1, DtoStatus::ErrLocalProtection);
    pair.expect_recv(B, 2, DtoStatus::ErrFlushed);
    pair.expect_connection(B, ConnectionEventKind::Broken);
}

/// `ep_modify` refuses attributes that do not fit the posted receives.
///
/// Clauses: EPM-8, EPM-9.
#[test]
fn what_posted_receives_need_cannot_be_taken_from_them() {
    let mut pair = Pair::unconnected(&PairConfig::default());
    let inbox = pair.buffer(B, 64);
    let two = [inbox.part(0, 32), inbox.part(32, 32)];
    pair.post_recv(B, &two, 1, NONE).expect("posted");
    pair.post_recv(B, &[inbox.all()], 2, NONE).expect("posted");
    let (ep, attr) = (pair.sides[B].ep, pair.attr(B));
    for change in [
        EpAttr {
            max_recv_dtos: 1,
            ..attr
        },
        EpAttr {
            max_recv_iov: 1,
            ..attr
        },
        EpAttr {
            recv_completion_flags: CompletionFlags::UNSIGNALLED,
            ..attr
        },
    ] {
        let change = EpChange {
            attr: Some(change),
            ..NOTHING
        };
        refused(
            pair.sides[B].ia.ep_modify(ep, &change),
            ReturnType::InvalidState,
        );
        assert_eq!(pair.attr(B), attr, "nothing has changed");
    }
    let status = pair.sides[B].ia.ep_get_status(ep).expect("exists");
    assert!(!status.recv_idle);
    pair.connect();
    pair.expect_alive_with_receives(2);
}

impl Pair {
    /// Checks that B's next `count` receives take messages.
    fn expect_alive_with_receives(&mut self, count: u64) {
        for cookie in 1..=count {
            self.post_send(A, &[], 9, NONE).expect("posted");
            self.expect_request(A, 9, DtoStatus::Success);
            self.expect_recv(B, cookie, DtoStatus::Success);
        }
    }
}

/// The zone and the other attributes can be changed only in the states that DAT allows for each.
///
/// Clauses: EPM-1, EPM-3, EPM-4, EPM-5, EPM-6.
#[test]
fn zone_and_the_rest_change_in_their_states_only() {
    let cr_evd = |pair: &mut Pair| {
        let evd = pair.sides[B].ia.evd_create(16, EvdFlags::CR);
        evd.expect("an EVD")
    };
    for state in [
        EpState::Reserved,
        EpState::PassiveConnectionPending,
        EpState::TentativeConnectionPending,
    ] {
        let mut pair = Pair::unconnected(&PairConfig::default());
        let evd = cr_evd(&mut pair);
        let (own, zone) = (pair.sides[B].ep, pair.sides[B].ia.pz_create());
        let zone = zone.expect("a PZ");
        let ia = &mut pair.sides[B].ia;
        let qualifier = support::beside(1);
        if state == EpState::TentativeConnectionPending {
            ia.psp_create(qualifier, evd, PspFlags::PROVIDER)
                .map(drop)
                .expect("a PSP");
        } else {
            ia.rsp_create(qualifier, Some(own), evd)
                .map(drop)
                .expect("an RSP");
        }
        let mut ep = own;
        if state != EpState::Reserved {
            let a = pair.sides[A].ep;
            pair.start(A, a, qualifier, support::LONG, b"")
                .expect("starts");
            pair.sides[B].cr = evd;
            let cr = pair.request(B);
            let param = pair.sides[B].ia.cr_query(cr).expect("undecided");
            ep = param.local_ep.expect("an endpoint comes with it");
        }
        assert_eq!(pair.state_of(B, ep), state);
        let ia = &mut pair.sides[B].ia;
        let to_zone = EpChange {
            pz: Some(Some(zone)),
            ..NOTHING
        };
        let modified = ia.ep_modify(ep, &to_zone);
        if state == EpState::TentativeConnectionPending {
            modified.expect("TENTATIVE");
        } else {
            let error = refused(modified, ReturnType::InvalidState);
            assert_eq!(error.subtype(), state.subtype());
        }
        let attr = EpAttr {
            max_request_dtos: 3,
            ..ia.ep_query(ep).expect("exists").attr
        };
        let rest = EpChange {
            attr: Some(attr),
            ..NOTHING
        };
        ia.ep_modify(ep, &rest).expect("before the accept");
        assert_eq!(ia.ep_query(ep).expect("exists").attr, attr);
        let absurd = EpChange {
            attr: Some(EpAttr {
                max_request_dtos: u32::MAX,
                ..attr
            }),
            ..NOTHING
        };
        refused(ia.ep_modify(ep, &absurd), ReturnType::InvalidParameter);
        assert_eq!(ia.ep_query(ep).expect("exists").attr, attr);
    }
}
