//! The number of receive buffers that an endpoint holds, and limits on that number: `ep_recv_query`,
//! `ep_set_watermark`.

use udapl::endpoint::{EpRecvParam, EpState};
use udapl::error::{ReturnType, Subtype};
use udapl::event::AsyncEvent;
use udapl::{ConnectionEventKind, DtoCookie, DtoStatus, Event};

use crate::support::connecting::EMPTY;
use crate::support::{A, B, NONE, Pair, PairConfig, refused};

/// No watermark, with its type.
const NO_MARK: Option<u32> = None;

impl Pair {
    fn held(&mut self, side: usize) -> EpRecvParam {
        let ep = self.sides[side].ep;
        self.sides[side]
            .ia
            .ep_recv_query(ep)
            .expect("legal in every state")
    }

    fn set_marks(&mut self, side: usize, soft: Option<u32>, hard: Option<u32>) {
        let ep = self.sides[side].ep;
        self.sides[side]
            .ia
            .ep_set_watermark(ep, soft, hard)
            .expect("legal in every state");
    }

    fn post_recvs(&mut self, side: usize, count: u64) {
        for cookie in 0..count {
            self.post_recv(side, EMPTY, cookie, NONE).expect("posted");
        }
    }

    /// Checks that the side's asynchronous EVD reports the soft watermark once.
    #[track_caller]
    fn expect_soft_mark(&mut self, side: usize) {
        let (evd, ep) = (self.sides[side].ia.async_evd(), self.sides[side].ep);
        let event = self.wait_event(side, evd);
        assert_eq!(event, Event::Async(AsyncEvent::EpSoftHighWatermark(ep)));
        self.expect_nothing(side, evd);
    }
}

fn both(count: u32) -> EpRecvParam {
    EpRecvParam {
        nbufs_allocated: Some(count),
        bufs_alloc_span: Some(count),
    }
}

/// Clauses: EPRQ-1, EPRQ-2, EPRQ-3, EPRQ-5.
#[test]
fn a_posted_buffer_is_held_until_its_message_has_completed() {
    let mut pair = Pair::unconnected(&PairConfig::default());
    assert_eq!(pair.held(B), both(0));
    pair.post_recvs(B, 5);
    assert_eq!(pair.held(B), both(5));
    pair.connect();
    for left in [4, 3] {
        pair.post_send(A, EMPTY, 0, NONE).expect("posted");
        pair.expect_request(A, 0, DtoStatus::Success);
        assert_eq!(pair.held(B), both(left), "though nobody dequeued");
    }
    for cookie in [0, 1] {
        pair.expect_recv(B, cookie, DtoStatus::Success);
    }
    pair.disconnect();
    assert_eq!(pair.held(B), both(0));
    for cookie in 2..5 {
        pair.expect_recv(B, cookie, DtoStatus::ErrFlushed);
    }
}

/// If an endpoint has an SRQ, the number of buffers that the endpoint holds is reported as unknown.
///
/// Clauses: EPRQ-4, EPRQ-6.
#[test]
fn what_an_endpoint_holds_of_an_srq_is_unknown() {
    let config = PairConfig {
        srq: Some(8),
        ..PairConfig::default()
    };
    let mut pair = Pair::connected_with(&config);
    let unknown = EpRecvParam {
        nbufs_allocated: None,
        bufs_alloc_span: None,
    };
    assert_eq!(pair.held(B), unknown);
    let provider = pair.sides[B].ia.query().provider;
    assert_eq!(provider.ep_recv_info_supported, 0x11);
    let (ep, elsewhere) = (pair.sides[B].ep, pair.sides[A].ep);
    let ia = &mut pair.sides[B].ia;
    ia.ep_free(ep).expect("freed");
    for gone in [ep, elsewhere] {
        let error = refused(ia.ep_recv_query(gone), ReturnType::InvalidHandle);
        assert_eq!(error.subtype(), Subtype::HandleEp);
        let marks = ia.ep_set_watermark(gone, NO_MARK, NO_MARK);
        let error = refused(marks, ReturnType::InvalidHandle);
        assert_eq!(error.subtype(), Subtype::HandleEp);
    }
}

/// Clauses: EPWM-1, EPWM-2, EPWM-4, EPWM-6.
#[test]
fn more_buffers_than_the_soft_mark_are_told_once_for_each_setting() {
    let mut pair = Pair::connected();
    let evd = pair.sides[B].ia.async_evd();
    pair.post_recvs(B, 4);
    pair.set_marks(B, Some(4), NO_MARK);
    pair.expect_nothing(B, evd);
    pair.post_recvs(B, 1);
    pair.expect_soft_mark(B);
    pair.post_recvs(B, 5);
    pair.expect_nothing(B, evd);
    // Setting the watermark again while ten buffers are held reports at once.
    pair.set_marks(B, Some(9), NO_MARK);
    pair.expect_soft_mark(B);
    // The mark 11 is replaced before it is exceeded, so only the mark 12 counts.
    pair.set_marks(B, Some(11), NO_MARK);
    pair.set_marks(B, Some(12), NO_MARK);
    pair.post_recvs(B, 2);
    pair.expect_nothing(B, evd);
    pair.set_marks(B, NO_MARK, NO_MARK);
    pair.post_recvs(B, 10);
    pair.expect_nothing(B, evd);
    assert_eq!(pair.state(B), EpState::Connected);
}

/// Clauses: EPWM-1, EPWM-3, EPWM-5.
#[test]
fn more_buffers_than_the_hard_mark_break_the_connection_from_its_first_moment() {
    for late in [false, true] {
        let mut pair = Pair::unconnected(&PairConfig::default());
        let evd = pair.sides[B].ia.async_evd();
        if late {
            pair.connect();
        }
        pair.post_recvs(B, 3);
        pair.set_marks(B, NO_MARK, Some(3));
        if !late {
            pair.connect();
        }
        assert_eq!(pair.state(B), EpState::Connected);
        pair.post_recvs(B, 1);
        pair.expect_connection(B, ConnectionEventKind::Broken);
        assert_eq!(pair.state(B), EpState::Disconnected);
        pair.expect_connection(A, ConnectionEventKind::Disconnected);
        pair.expect_nothing(B, evd);
    }
    // The mark is exceeded before there is a connection to break.
    let mut pair = Pair::unconnected(&PairConfig::default());
    pair.post_recvs(B, 4);
    pair.set_marks(B, Some(3), Some(3));
    pair.expect_soft_mark(B);
    assert_eq!(pair.state(B), EpState::Unconnected);
    pair.connect();
    pair.expect_connection(B, ConnectionEventKind::Broken);
}

/// Clauses: EPWM-7, EPWM-8.
#[test]
fn an_endpoint_with_an_srq_holds_one_buffer_at_most() {
    let config = PairConfig {
        srq: Some(8),
        ..PairConfig::default()
    };
    let mut pair = Pair::connected_with(&config);
    let (ep, srq) = (pair.sides[B].ep, pair.srq.expect("an SRQ"));
    for (soft, hard) in [(Some(0), NO_MARK), (NO_MARK, Some(0))] {
        let marks = pair.sides[B].ia.ep_set_watermark(ep, soft, hard);
        refused(marks, ReturnType::ModelNotSupported);
    }
    pair.set_marks(B, Some(1), Some(1));
    for cookie in 0..8 {
        let posted = pair.sides[B]
            .ia
            .srq_post_recv(srq, EMPTY, DtoCookie(cookie));
        posted.expect("posted");
    }
    for cookie in 0..8 {
        pair.post_send(A, EMPTY, cookie, NONE).expect("posted");
    }
    pair.expect_nothing(B, pair.sides[B].ia.async_evd());
    assert_eq!(pair.state(B), EpState::Connected);
}
