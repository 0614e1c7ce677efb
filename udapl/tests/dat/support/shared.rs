//! Two connections whose endpoints at B share one SRQ.

use udapl::endpoint::EpAttr;
use udapl::event::DtoCompletion;
use udapl::memory::{LmrTriplet, PzHandle};
use udapl::srq::{SrqAttr, SrqHandle};
use udapl::{
    CompletionFlags, DatResult, DtoCookie, DtoStatus, EpEvds, EpHandle, EvdFlags, EvdHandle, Event,
};

use super::{A, B, Buffer, Pair, PairConfig, attributes};

/// Default attributes of the SRQ.
pub const SRQ: SrqAttr = SrqAttr {
    max_recv_dtos: 16,
    max_recv_iov: 4,
    low_watermark: 0,
};

/// Two connections and an SRQ.
pub struct Shared {
    pub pair: Pair,
    pub srq: SrqHandle,
    /// Endpoints of A.
    pub a: [EpHandle; 2],
    /// Endpoints of B, the peers of `a`, which use the SRQ.
    pub b: [EpHandle; 2],
    /// Receive EVDs of B's endpoints.
    pub recv: [EvdHandle; 2],
}

impl Shared {
    /// Creates and connects both connections, with the default SRQ and endpoint attributes.
    pub fn connected() -> Self {
        Self::connected_as(SRQ, |_| {})
    }

    /// Like `Shared::connected`, with other attributes of the SRQ or of B's endpoints.
    pub fn connected_as(attr: SrqAttr, shape: impl Fn(&mut EpAttr)) -> Self {
        let mut shared = Self::unconnected(&PairConfig::default(), attr, None, shape);
        shared.connect(0);
        shared.connect(1);
        shared
    }

    /// Like `Shared::connected_as`, but without connecting. `zone` creates the PZ of B's endpoints. With `None`, B's
    /// endpoints use the SRQ's PZ.
    pub fn unconnected(
        config: &PairConfig,
        attr: SrqAttr,
        zone: Option<fn(&mut udapl::Ia) -> PzHandle>,
        shape: impl Fn(&mut EpAttr),
    ) -> Self {
        let mut pair = Pair::unconnected(config);
        let side = &mut pair.sides[A];
        let attr_a = attributes(&side.ia);
        let (request, recv, connect) = (side.request, side.recv, side.connect);
        let second = side
            .ia
            .ep_create(
                Some(side.pz),
                EpEvds::NONE.recv(recv).request(request).connect(connect),
                Some(&attr_a),
            )
            .expect("an endpoint");
        let a = [side.ep, second];
        let side = &mut pair.sides[B];
        side.ia.ep_free(side.ep).expect("freed");
        let srq = side.ia.srq_create(side.pz, attr).expect("an SRQ");
        let zone = zone.map_or(side.pz, |make| make(&mut side.ia));
        let mut attr_b = attributes(&side.ia);
        shape(&mut attr_b);
        let other = side.ia.evd_create(64, EvdFlags::DTO).expect("an EVD");
        let recv = [side.recv, other];
        let b = recv.map(|recv| {
            let (request, connect) = (side.request, side.connect);
            side.ia
                .ep_create_with_srq(
                    Some(zone),
                    EpEvds::NONE.recv(recv).request(request).connect(connect),
                    srq,
                    &attr_b,
                )
                .expect("an endpoint")
        });
        side.ep = b[0];
        Self {
            pair,
            srq,
            a,
            b,
            recv,
        }
    }

    /// Establishes connection `which` (0 or 1).
    pub fn connect(&mut self, which: usize) {
        let (a, b) = (self.a[which], self.b[which]);
        self.pair.connect_endpoints(a, b);
    }

    /// Posts a buffer to the SRQ.
    pub fn post(&mut self, iov: &[LmrTriplet], cookie: u64) -> DatResult<()> {
        self.pair.sides[B]
            .ia
            .srq_post_recv(self.srq, iov, DtoCookie(cookie))
    }

    /// Posts a Send of A on one of the connections.
    pub fn send(
        &mut self,
        which: usize,
        iov: &[LmrTriplet],
        cookie: u64,
        flags: CompletionFlags,
    ) -> DatResult<()> {
        let ep = self.a[which];
        self.pair.sides[A]
            .ia
            .ep_post_send(ep, iov, DtoCookie(cookie), flags)
    }

    /// Waits for the next receive completion of one of the connections.
    pub fn received(&mut self, which: usize) -> DtoCompletion {
        let done = self.pair.wait_dto(B, self.recv[which]);
        assert_eq!(
            (done.ep, done.request),
            (self.b[which], false),
            "of the endpoint that took the buffer"
        );
        done
    }

    /// Waits for the next receive completion of one of the connections, which must have succeeded with this cookie and
    /// length.
    #[track_caller]
    pub fn expect_received(&mut self, which: usize, cookie: u64, bytes: usize) {
        let done = self.received(which);
        assert_eq!(
            (done.cookie.0, done.status, done.transferred_length),
            (cookie, DtoStatus::Success, bytes as u64)
        );
    }

    /// Sends a message over one of the connections, and waits for the completions of the receive and the Send.
    #[track_caller]
    pub fn exchange(&mut self, which: usize, from: &Buffer, bytes: usize, cookie: u64) {
        self.send(which, &[from.part(0, bytes)], 7, CompletionFlags::empty())
            .expect("posted");
        self.expect_received(which, cookie, bytes);
        let done = self.pair.wait_request(A);
        assert_eq!(
            (done.ep, done.cookie.0, done.status),
            (self.a[which], 7, DtoStatus::Success)
        );
    }

    /// Sends 64 bytes over one of the connections, and waits for the receive completion only.
    #[track_caller]
    pub fn exchange_next(&mut self, which: usize, from: &Buffer, cookie: u64) {
        self.send(which, &[from.part(0, 64)], 7, CompletionFlags::empty())
            .expect("posted");
        self.expect_received(which, cookie, 64);
    }

    /// Returns the SRQ's counts of available and outstanding receives.
    pub fn counts(&mut self) -> (u32, u32) {
        let param = self.pair.sides[B].ia.srq_query(self.srq).expect("exists");
        assert!(param.available_dto_count <= param.outstanding_dto_count);
        (param.available_dto_count, param.outstanding_dto_count)
    }

    /// Dequeues all completions that are on one of the receive EVDs now. Returns cookie and status of each.
    pub fn queued(&mut self, which: usize) -> Vec<(u64, DtoStatus)> {
        let evd = self.recv[which];
        let mut all = Vec::new();
        while let Ok(Some(event)) = self.pair.sides[B].ia.evd_dequeue(evd) {
            let Event::Dto(done) = event else {
                panic!("{event:?}")
            };
            assert_eq!(done.ep, self.b[which]);
            all.push((done.cookie.0, done.status));
        }
        all
    }
}
