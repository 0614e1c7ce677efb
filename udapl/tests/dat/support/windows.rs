//! Helpers for RMRs: pairs whose endpoints may bind RMRs, and binds.

use super::{A, Buffer, NONE, Pair, PairConfig, attributes};
use udapl::endpoint::EpAttr;
use udapl::event::RmrBindCompletion;
use udapl::memory::{LmrTriplet, RmrCookie, RmrHandle, RmrTriplet};
use udapl::{CompletionFlags, DatResult, DtoStatus, EpEvds, EvdFlags, Event, MemPrivFlags};

/// Rights that most tests give the peer on a window: remote read and write.
pub const BOTH_WAYS: MemPrivFlags = MemPrivFlags::REMOTE_READ.union(MemPrivFlags::REMOTE_WRITE);

impl Pair {
    /// Makes a connected pair whose endpoints may bind RMRs.
    pub fn binding() -> Self {
        Self::binding_with(|_| {})
    }

    /// Like `Pair::binding`, with other attributes of both endpoints.
    pub fn binding_with(shape: impl Fn(&mut EpAttr)) -> Self {
        let mut pair = Self::unconnected_binding(shape);
        pair.connect();
        pair
    }

    /// Like `Pair::binding_with`, but without connecting.
    pub fn unconnected_binding(shape: impl Fn(&mut EpAttr)) -> Self {
        let mut pair = Self::unconnected(&PairConfig::default());
        for side in &mut pair.sides {
            let ia = &mut side.ia;
            ia.ep_free(side.ep).expect("the endpoint is freed");
            ia.evd_free(side.request).expect("the EVD is freed");
            side.request = ia
                .evd_create(256, EvdFlags::DTO | EvdFlags::RMR_BIND)
                .expect("an EVD");
            let mut attr = attributes(ia);
            shape(&mut attr);
            let (recv, request, connect) = (side.recv, side.request, side.connect);
            side.ep = ia
                .ep_create(
                    Some(side.pz),
                    EpEvds::NONE.recv(recv).request(request).connect(connect),
                    Some(&attr),
                )
                .expect("an endpoint");
        }
        pair
    }

    /// Makes an RMR in the side's PZ.
    pub fn rmr(&mut self, side: usize) -> RmrHandle {
        let pz = self.sides[side].pz;
        self.sides[side].ia.rmr_create(pz).expect("an RMR")
    }

    /// Posts a bind on the side's endpoint.
    pub fn post_bind(
        &mut self,
        side: usize,
        rmr: RmrHandle,
        triplet: &LmrTriplet,
        privileges: MemPrivFlags,
        cookie: u64,
        flags: CompletionFlags,
    ) -> DatResult<u32> {
        let ep = self.sides[side].ep;
        self.sides[side]
            .ia
            .rmr_bind(rmr, triplet, privileges, ep, RmrCookie(cookie), flags)
    }

    /// Binds an RMR, waits for the completion, and returns the new context.
    #[track_caller]
    pub fn bind(
        &mut self,
        side: usize,
        rmr: RmrHandle,
        triplet: &LmrTriplet,
        privileges: MemPrivFlags,
    ) -> u32 {
        let context = self
            .post_bind(side, rmr, triplet, privileges, 0xb1d, NONE)
            .expect("the bind is posted");
        self.expect_bind(side, rmr, 0xb1d, DtoStatus::Success);
        context
    }

    /// Waits for the next event of the side's request EVD, which must be the completion of this bind.
    #[track_caller]
    pub fn expect_bind(
        &mut self,
        side: usize,
        rmr: RmrHandle,
        cookie: u64,
        status: DtoStatus,
    ) -> RmrBindCompletion {
        let event = self.wait_event(side, self.sides[side].request);
        assert_eq!(event.number(), 0x01001, "{event:?}");
        let Event::RmrBind(done) = event else {
            panic!("side {side}: a bind completion, not {event:?}");
        };
        assert_eq!(
            (done.rmr, done.cookie.0, done.status),
            (rmr, cookie, status),
            "side {side}"
        );
        done
    }

    /// Checks that A can read a window of B, and that the window's memory holds `content`.
    #[track_caller]
    pub fn expect_readable(&mut self, window: &RmrTriplet, content: &[u8]) {
        let local = self.buffer(A, content.len());
        self.post_read(A, &[local.all()], 0x4ead, window, NONE)
            .expect("the read is posted");
        self.expect_request(A, 0x4ead, DtoStatus::Success);
        assert_eq!(local.read(0, content.len()), content);
    }

    /// Checks that A's access to B's memory fails for lack of rights, and that this breaks the connection at both ends.
    #[track_caller]
    pub fn expect_no_access(&mut self, rdma: super::rdma::Rdma, window: &RmrTriplet) {
        let bytes = usize::try_from(window.segment_length).expect("small");
        let local = self.buffer(A, bytes);
        rdma.post(self, A, &[local.all()], 0xbad, window, NONE)
            .expect("the request is posted");
        self.expect_request(A, 0xbad, DtoStatus::ErrRemoteAccess);
        self.expect_broken();
    }

    /// Resets both DISCONNECTED endpoints and connects them again.
    pub fn reconnect(&mut self) {
        for side in &mut self.sides {
            side.ia.ep_reset(side.ep).expect("the reset");
        }
        self.connect();
    }
}

/// Returns a window of a buffer as a triplet for the peer.
pub fn window(buffer: &Buffer, context: u32, offset: usize, bytes: usize) -> RmrTriplet {
    RmrTriplet {
        rmr_context: context,
        ..buffer.remote(offset, bytes)
    }
}

/// An empty triplet, for an unbind.
pub const NOTHING: LmrTriplet = LmrTriplet {
    lmr_context: 0,
    virtual_address: 0,
    segment_length: 0,
};
