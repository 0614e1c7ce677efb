//! An instance that has objects of all kinds, in all states.

use core::time::Duration;

use super::*;
use crate::handle::AnyHandle;

/// An instance with objects of all kinds, and its peer. The peer's connections wait for nothing.
pub(super) struct Everything {
    pub(super) net: Net,
    pub(super) a: Side,
    pub(super) b: Side,
    pub(super) cno: CnoHandle,
    pub(super) software: EvdHandle,
    pub(super) binds: EvdHandle,
    pub(super) srq: SrqHandle,
    pub(super) rmr: RmrHandle,
    /// Region that a window uses until an outstanding bind is done.
    pub(super) held: LmrHandle,
    pub(super) cr: CrHandle,
    /// Endpoints, each with its state.
    pub(super) eps: Vec<(EpHandle, EpState)>,
}

/// Qualifiers of service points.
const LENDING: ConnQual = ConnQual(0x1_0000_0002);
const RESERVED: ConnQual = ConnQual(0x1_0000_0003);
const SPENT: ConnQual = ConnQual(0x1_0000_0004);

/// Makes an endpoint whose requests complete on `request`, or on the side's EVD.
fn ep(side: &mut Side, request: Option<EvdHandle>) -> EpHandle {
    let request = request.unwrap_or(side.request);
    let evds = EpEvds::NONE.recv(side.recv).request(request);
    let evds = evds.connect(side.connect);
    side.ia.ep_create(Some(side.pz), evds, None).expect("an EP")
}

/// Connects a new endpoint of `a`, or the given one, with a new one of `b`.
fn connected_ep(a: &mut Side, b: &mut Side, of_a: Option<EpHandle>) -> EpHandle {
    a.ep = of_a.unwrap_or_else(|| ep(a, None));
    b.ep = ep(b, None);
    connect(a, b);
    a.ep
}

/// Starts a connection from a new endpoint of `from` to `to`.
fn ask(from: &mut Side, to: &Side, at: ConnQual) -> EpHandle {
    let ep = ep(from, None);
    let (whom, timeout) = (to.address(), Timeout::INFINITE);
    let (qos, flags) = (Qos::BEST_EFFORT, ConnectFlags::empty());
    from.ia
        .ep_connect(ep, whom, at, timeout, b"please", qos, flags)
        .expect("connects");
    ep
}

impl Everything {
    pub(super) fn new() -> Self {
        let net = Net::default();
        let (mut a, mut b) = (Side::new(&net, |_| {}), Side::new(&net, |_| {}));
        let mut eps = Vec::new();
        let privileges = MemPrivFlags::all();
        let in_use = "an object";
        // Slots that are empty.
        let pz = a.ia.pz_create().expect(in_use);
        a.ia.pz_free(pz).expect("freed");
        let lmr = a.ia.lmr_create((0x40_0000, 64), a.pz, privileges);
        let lmr = lmr.expect(in_use).lmr;
        a.ia.lmr_free(lmr).expect("freed");
        let copy = a.ia.lmr_create_from_lmr(a.lmr.lmr, a.pz, privileges);
        let copy = copy.expect(in_use).lmr;
        // A triggered CNO, behind one that was freed.
        let [gone, cno] = [(); 2].map(|()| a.ia.cno_create(None).expect(in_use));
        a.ia.cno_free(gone).expect("freed");
        let software = a.ia.evd_create_with_cno(4, Some(cno), EvdFlags::SOFTWARE);
        let software = software.expect(in_use);
        a.ia.evd_post_se(software, SoftwareEvent(5))
            .expect("posted");
        let gone = a.ia.evd_create(4, EvdFlags::DTO).expect(in_use);
        a.ia.evd_free(gone).expect("freed");
        let second = a.ia.evd_create(4, EvdFlags::ASYNC).expect(in_use);
        a.ia.async_evd_bind(second).expect("bound");
        // Endpoints without a zone, and without EVDs.
        eps.push((
            a.ia.ep_create(None, EpEvds::NONE, None),
            EpState::Unconnected,
        ));
        let null = a.ia.ep_create(Some(a.pz), EpEvds::NONE, None);
        eps.push((null, EpState::Unconnected));
        let gone = a.ia.ep_create(Some(a.pz), EpEvds::NONE, None);
        a.ia.ep_free(gone.expect(in_use)).expect("freed");
        // A connection that binds an RMR; the second bind is outstanding.
        let binds = a.ia.evd_create(8, EvdFlags::DTO | EvdFlags::RMR_BIND);
        let binds = binds.expect(in_use);
        let binder = ep(&mut a, Some(binds));
        eps.push((Ok(binder), EpState::Connected));
        connected_ep(&mut a, &mut b, Some(binder));
        let rmr = a.ia.rmr_create(a.pz).expect(in_use);
        let first = a.ia.lmr_create((0x50_0000, 128), a.pz, privileges);
        let first = first.expect(in_use);
        let triplet = LmrTriplet {
            lmr_context: first.lmr_context,
            virtual_address: 0x50_0000,
            segment_length: 64,
        };
        let rights = MemPrivFlags::REMOTE_READ | MemPrivFlags::REMOTE_INVALIDATE;
        a.ia.rmr_bind(rmr, &triplet, rights, binder, RmrCookie(1), NO_FLAGS)
            .expect("bound");
        assert_eq!(a.events(binds).len(), 1);
        // Shared receives, of which one has arrived and was polled early.
        let srq = SrqAttr {
            max_recv_dtos: 8,
            max_recv_iov: 2,
            low_watermark: 0,
        };
        let srq = a.ia.srq_create(a.pz, srq).expect(in_use);
        for cookie in 0..4 {
            let iov = [a.triplet(0, 64)];
            a.ia.srq_post_recv(srq, &iov, DtoCookie(cookie))
                .expect("posted");
        }
        a.ia.srq_set_lw(srq, 2).expect("armed");
        let evds = EpEvds::NONE.recv(a.recv).request(a.request);
        let attr = EpAttr::defaults(a.ia.query().ia);
        let shares =
            a.ia.ep_create_with_srq(Some(a.pz), evds.connect(a.connect), srq, &attr);
        eps.push((shares, EpState::Connected));
        connected_ep(&mut a, &mut b, Some(shares.expect(in_use)));
        b.send(7, NO_FLAGS).expect("posted");
        a.ia.srq_query(srq).expect("polls");
        // Keep-alive, watermarks, and receives of its own.
        let kept = ep(&mut a, None);
        let keep_alive = Some(Duration::from_secs(1));
        let transport = Some(EpTransport {
            keep_alive,
            ..EpTransport::default()
        });
        let change = EpChange {
            transport,
            ..EpChange::default()
        };
        a.ia.ep_modify(kept, &change).expect("kept alive");
        eps.push((
            Ok(connected_ep(&mut a, &mut b, Some(kept))),
            EpState::Connected,
        ));
        a.ia.ep_set_watermark(kept, Some(9), Some(10)).expect("set");
        a.post_recv(31).expect("posted");
        b.send(32, NO_FLAGS).expect("posted");
        a.post_recv(33).expect("posted");
        // A connection that has ended, and one whose requests are awaited.
        let ended = connected_ep(&mut a, &mut b, None);
        a.ia.ep_disconnect(ended, CloseFlags::Abrupt)
            .expect("ended");
        eps.push((Ok(ended), EpState::Disconnected));
        progress_both(&mut a, &mut b);
        let ends = connected_ep_later(&mut a, &mut b);
        eps.push((Ok(ends), EpState::DisconnectPending));
        net.hold();
        a.ep = ends;
        a.send(40, CompletionFlags::SUPPRESS).expect("posted");
        a.ia.ep_disconnect(ends, CloseFlags::Graceful)
            .expect("ends");
        let triplet = LmrTriplet {
            lmr_context: a.lmr.lmr_context,
            virtual_address: MEMORY.0,
            segment_length: 64,
        };
        a.ia.rmr_bind(rmr, &triplet, rights, binder, RmrCookie(2), NO_FLAGS)
            .expect("posted");
        // Requests of the peer: undecided, lent an endpoint, and one for a reserved endpoint.
        a.ia.psp_create(QUAL, a.connect, PspFlags::CONSUMER)
            .expect("listens");
        a.ia.psp_create(LENDING, a.connect, PspFlags::PROVIDER)
            .expect("listens");
        let (reserved, spent) = (ep(&mut a, None), ep(&mut a, None));
        a.ia.rsp_create(RESERVED, Some(reserved), a.connect)
            .expect("listens");
        a.ia.rsp_create(SPENT, Some(spent), a.connect)
            .expect("listens");
        eps.push((Ok(reserved), EpState::Reserved));
        eps.push((Ok(spent), EpState::PassiveConnectionPending));
        for at in [QUAL, LENDING, SPENT] {
            ask(&mut b, &a, at);
            progress_both(&mut a, &mut b);
        }
        let requests: Vec<CrHandle> = a
            .events(a.connect)
            .iter()
            .filter_map(|event| match event {
                Event::ConnectionRequest(request) => Some(request.cr),
                Event::Dto(_)
                | Event::RmrBind(_)
                | Event::Connection(_)
                | Event::Async(_)
                | Event::Software(_) => None,
            })
            .collect();
        let cr = requests[0];
        let lent = a.ia.cr_query(requests[1]).expect("exists").local_ep;
        eps.push((
            lent.ok_or(DatError::unsupported()),
            EpState::TentativeConnectionPending,
        ));
        // Handshakes whose next datagrams are lost.
        ask(&mut b, &a, QUAL);
        progress_both(&mut a, &mut b);
        let accepts = match a.events(a.connect)[..] {
            [Event::ConnectionRequest(request)] => request.cr,
            ref other => panic!("{other:?}"),
        };
        net.drop_mads(true);
        let accepting = ep(&mut a, None);
        a.ia.cr_accept(accepts, Some(accepting), b"")
            .expect("accepted");
        eps.push((Ok(accepting), EpState::CompletionPending));
        eps.push((Ok(ask(&mut a, &b, QUAL)), EpState::ActiveConnectionPending));
        net.drop_mads(false);
        // Contexts of all of them.
        for (handle, context) in [
            (AnyHandle::Ia, 1),
            (kept.into(), 2),
            (cno.into(), 3),
            (copy.into(), 4),
            (cr.into(), 5),
        ] {
            a.ia.set_consumer_context(handle, context).expect("set");
        }
        a.ep = kept;
        let eps: Vec<_> = eps
            .into_iter()
            .map(|(ep, state)| (ep.expect(in_use), state))
            .collect();
        for (ep, state) in &eps {
            assert_eq!(a.ia.ep_get_status(*ep).expect("exists").state, *state);
        }
        Self {
            net,
            a,
            b,
            cno,
            software,
            binds,
            srq,
            rmr,
            held: first.lmr,
            cr,
            eps,
        }
    }
}

/// Connects new endpoints after the events of an earlier end were dequeued.
fn connected_ep_later(a: &mut Side, b: &mut Side) -> EpHandle {
    a.events(a.connect);
    b.events(b.connect);
    connected_ep(a, b, None)
}

/// All objects have the same numbers, contexts, states and events, and what was outstanding completes.
#[test]
fn objects_of_all_kinds_are_as_before() {
    let Everything {
        net,
        mut a,
        mut b,
        cno,
        software,
        binds,
        srq,
        rmr,
        held,
        cr,
        eps,
    } = Everything::new();
    let params: Vec<_> = eps
        .iter()
        .map(|(ep, _)| a.ia.ep_query(*ep).expect("exists").attr)
        .collect();
    let binding = a.ia.rmr_query(rmr).expect("exists");
    let before = a.ia.stats();
    let shared = a.ia.srq_query(srq).expect("exists");
    a = a.resumed();
    for ((ep, state), attr) in eps.iter().zip(params) {
        assert_eq!(a.ia.ep_get_status(*ep).expect("exists").state, *state);
        assert_eq!(a.ia.ep_query(*ep).expect("exists").attr, attr);
    }
    assert_eq!(a.ia.rmr_query(rmr), Ok(binding));
    assert_eq!(a.ia.stats(), before);
    assert_eq!(a.ia.srq_query(srq), Ok(shared));
    assert!(
        a.ia.lmr_free(held).is_err(),
        "the second bind is outstanding"
    );
    let private_data = a.ia.cr_query(cr).expect("exists").private_data;
    assert_eq!(&private_data[..6], b"please");
    assert_eq!(a.ia.get_consumer_context(a.ep), Ok(2));
    assert_eq!(a.ia.get_consumer_context(AnyHandle::Ia), Ok(1));
    // The CNO is triggered, and the event is there.
    assert_eq!(a.ia.cno_wait(cno, Timeout::ZERO), Ok(Some(software)));
    assert_eq!(a.events(software), [Event::Software(SoftwareEvent(5))]);
    // Outstanding work completes.
    assert!(a.ia.pz_free(a.pz).is_err(), "it has users");
    net.release();
    a.ia.progress();
    assert_eq!(a.events(binds).len(), 1, "the second bind");
    a.ia.lmr_free(held).expect("freed");
    let state = |a: &Side, at: usize| a.ia.ep_get_status(eps[at].0).expect("exists").state;
    assert_eq!(state(&a, 5), EpState::Disconnected);
    assert_eq!(state(&a, 6), EpState::Disconnected, "its request is done");
    // The handshakes go on.
    net.pass(30_000_000_000);
    progress_both(&mut a, &mut b);
    net.pass(30_000_000_000);
    progress_both(&mut a, &mut b);
    let accepted = eps[10];
    assert_eq!(accepted.1, EpState::CompletionPending);
    assert_eq!(
        a.ia.ep_get_status(accepted.0).expect("exists").state,
        EpState::Connected
    );
    a.ia.cr_reject(cr).expect("rejected");
    let closed = a.ia.close(CloseFlags::Abrupt).map(drop);
    closed.expect("closed");
    b.ia.close(CloseFlags::Abrupt).expect("closed");
    assert!(net.leaked(0).is_empty(), "{:?}", net.leaked(0));
}

/// Handles of objects that are created after the resumption.
#[test]
fn later_handles_are_those_that_the_parked_instance_would_have_given_out() {
    let create = |mut a: Side| {
        let ia = &mut a.ia;
        let srq = SrqAttr {
            max_recv_dtos: 1,
            max_recv_iov: 1,
            low_watermark: 0,
        };
        let mut all: Vec<AnyHandle> = Vec::new();
        for _ in 0..3 {
            let pz = ia.pz_create().expect("a PZ");
            let lmr = ia.lmr_create((0x70_0000, 8), pz, MemPrivFlags::all());
            let evd = ia
                .evd_create(2, EvdFlags::DTO | EvdFlags::CR)
                .expect("an EVD");
            let ep = ia.ep_create(Some(pz), EpEvds::dto(evd), None);
            let psp = ia.psp_create_any(evd, PspFlags::CONSUMER).expect("a PSP").1;
            let rsp = ConnQual(0x77_0000 + all.len() as u64);
            all.extend::<[AnyHandle; 9]>([
                pz.into(),
                lmr.expect("an LMR").lmr.into(),
                evd.into(),
                ia.srq_create(pz, srq).expect("an SRQ").into(),
                ep.expect("an EP").into(),
                ia.rmr_create(pz).expect("an RMR").into(),
                ia.cno_create(None).expect("a CNO").into(),
                psp.into(),
                ia.rsp_create(rsp, None, evd).expect("an RSP").into(),
            ]);
        }
        let number = |handle: &AnyHandle| handle.order();
        all.iter().map(number).collect::<Vec<_>>()
    };
    let plain = create(Everything::new().a);
    assert_eq!(create(Everything::new().a.resumed()), plain);
}
