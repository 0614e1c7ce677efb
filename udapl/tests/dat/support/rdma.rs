//! Helpers for RDMA: posts, checks of completions, and a model of gather and scatter.

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use udapl::endpoint::{EpAttr, EpState};
use udapl::event::DtoCompletion;
use udapl::memory::{LmrTriplet, RmrTriplet};
use udapl::{CompletionFlags, ConnectionEventKind, DatResult, DtoCookie, DtoStatus, EpEvds};

use super::{A, B, Buffer, Pair, PairConfig, attributes};

/// Fill byte of memory that must not be written.
pub const UNTOUCHED: u8 = 0xa5;

/// Returns the bytes of a number in the host's byte order.
#[expect(
    clippy::host_endian_bytes,
    reason = "atomic operations work on numbers in the host's order"
)]
pub const fn number(value: u64) -> [u8; 8] {
    value.to_ne_bytes()
}

impl Pair {
    /// Connects both sides, with other attributes of the endpoints.
    pub fn shaped(shape: impl Fn(usize, &mut EpAttr)) -> Self {
        let mut pair = Self::unconnected(&PairConfig::default());
        pair.reshape(shape);
        pair.connect();
        pair
    }

    /// Replaces the endpoints of unconnected sides, with the same EVDs and PZs.
    pub fn reshape(&mut self, shape: impl Fn(usize, &mut EpAttr)) {
        for (at, side) in self.sides.iter_mut().enumerate() {
            let mut attr = attributes(&side.ia);
            shape(at, &mut attr);
            side.ia.ep_free(side.ep).expect("the endpoint is freed");
            let (recv, request, connect) = (side.recv, side.request, side.connect);
            side.ep = side
                .ia
                .ep_create(
                    Some(side.pz),
                    EpEvds::NONE.recv(recv).request(request).connect(connect),
                    Some(&attr),
                )
                .expect("an endpoint");
        }
    }

    /// Posts an RDMA Read on the side's endpoint.
    pub fn post_read(
        &mut self,
        side: usize,
        iov: &[LmrTriplet],
        cookie: u64,
        remote: &RmrTriplet,
        flags: CompletionFlags,
    ) -> DatResult<()> {
        let ep = self.sides[side].ep;
        self.sides[side]
            .ia
            .ep_post_rdma_read(ep, iov, DtoCookie(cookie), remote, flags)
    }

    /// Posts an RDMA Write on the side's endpoint.
    pub fn post_write(
        &mut self,
        side: usize,
        iov: &[LmrTriplet],
        cookie: u64,
        remote: &RmrTriplet,
        flags: CompletionFlags,
    ) -> DatResult<()> {
        let ep = self.sides[side].ep;
        self.sides[side]
            .ia
            .ep_post_rdma_write(ep, iov, DtoCookie(cookie), remote, flags)
    }

    /// Waits for the next completion of the side's requests, which must have this cookie and status.
    #[track_caller]
    pub fn expect_request(&mut self, side: usize, cookie: u64, status: DtoStatus) -> DtoCompletion {
        let done = self.wait_request(side);
        assert_eq!(
            (done.cookie.0, done.status, done.request),
            (cookie, status, true),
            "side {side}"
        );
        assert_eq!(done.ep, self.sides[side].ep, "side {side}");
        done
    }

    /// Waits for the next completion of the side's receives, which must have this cookie and status.
    #[track_caller]
    pub fn expect_recv(&mut self, side: usize, cookie: u64, status: DtoStatus) -> DtoCompletion {
        let done = self.wait_recv(side);
        assert_eq!(
            (done.cookie.0, done.status, done.request),
            (cookie, status, false),
            "side {side}"
        );
        done
    }

    /// Checks that the connection is broken at both ends, with one event each.
    #[track_caller]
    pub fn expect_broken(&mut self) {
        for side in [A, B] {
            self.expect_connection(side, ConnectionEventKind::Broken);
            assert_eq!(self.state(side), EpState::Disconnected, "side {side}");
            self.expect_nothing(side, self.sides[side].connect);
        }
    }

    /// Checks that the side has no outstanding request and no completion.
    #[track_caller]
    pub fn expect_idle(&mut self, side: usize) {
        let (ep, request) = (self.sides[side].ep, self.sides[side].request);
        self.expect_nothing(side, request);
        let status = self.sides[side].ia.ep_get_status(ep).expect("a status");
        assert!(
            status.request_idle,
            "side {side}: a refused call posted something"
        );
    }

    /// Registers new memory of a side, filled with [`UNTOUCHED`].
    pub fn untouched(&mut self, side: usize, bytes: usize) -> Buffer {
        let buffer = self.buffer(side, bytes);
        buffer.write(0, &vec![UNTOUCHED; bytes]);
        buffer
    }

    /// Registers new memory of a side, filled with bytes that differ by position and by seed.
    pub fn filled(&mut self, side: usize, seed: u64, bytes: usize) -> Buffer {
        let buffer = self.buffer(side, bytes);
        buffer.write(0, &super::pattern(seed, bytes));
        buffer
    }
}

/// Pieces of a buffer, as offset and length; they do not overlap.
#[derive(Clone, Debug)]
pub struct Pieces(pub Vec<(usize, usize)>);

impl Pieces {
    /// Makes up to eight pieces of a buffer of `bytes`, in random order, some of them empty.
    pub fn random(rng: &mut ChaCha8Rng, bytes: usize) -> Self {
        let count = rng.random_range(1..=8_usize);
        let slot = bytes / count;
        let mut pieces: Vec<(usize, usize)> = (0..count)
            .map(|at| {
                let offset = rng.random_range(0..slot / 2);
                let length = if rng.random_bool(0.15) {
                    0
                } else {
                    rng.random_range(1..=slot - offset)
                };
                (at * slot + offset, length)
            })
            .collect();
        for at in (1..count).rev() {
            pieces.swap(at, rng.random_range(0..=at));
        }
        Self(pieces)
    }

    /// Returns the total length.
    pub fn total(&self) -> usize {
        self.0.iter().map(|&(_, bytes)| bytes).sum()
    }

    /// Returns the pieces as local triplets of `buffer`.
    pub fn iov(&self, buffer: &Buffer) -> Vec<LmrTriplet> {
        self.0
            .iter()
            .map(|&(offset, bytes)| buffer.part(offset, bytes))
            .collect()
    }

    /// Returns the contents of the pieces of `memory`, in the order of the pieces.
    pub fn gather(&self, memory: &[u8]) -> Vec<u8> {
        self.0
            .iter()
            .flat_map(|&(offset, bytes)| memory[offset..offset + bytes].iter().copied())
            .collect()
    }

    /// Copies `data` into the pieces of `memory`, in the order of the pieces, until all of `data` is copied.
    pub fn scatter(&self, memory: &mut [u8], mut data: &[u8]) {
        for &(offset, bytes) in &self.0 {
            let (now, later) = data.split_at(bytes.min(data.len()));
            memory[offset..offset + now.len()].copy_from_slice(now);
            data = later;
        }
    }
}

/// Returns a random number generator with this seed.
pub fn stream(seed: u64) -> ChaCha8Rng {
    ChaCha8Rng::seed_from_u64(seed)
}

/// RDMA Read or RDMA Write, for tests of their common properties.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rdma {
    Read,
    Write,
}

/// RDMA Read and RDMA Write.
pub const BOTH: [Rdma; 2] = [Rdma::Read, Rdma::Write];

impl Rdma {
    /// Posts this operation on the side's endpoint.
    pub fn post(
        self,
        pair: &mut Pair,
        side: usize,
        iov: &[LmrTriplet],
        cookie: u64,
        remote: &RmrTriplet,
        flags: CompletionFlags,
    ) -> DatResult<()> {
        match self {
            Self::Read => pair.post_read(side, iov, cookie, remote, flags),
            Self::Write => pair.post_write(side, iov, cookie, remote, flags),
        }
    }
}
