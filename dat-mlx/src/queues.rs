//! The card's queues, wrapped in types that implement the traits of `dat-core`.
//!
//! Each type wraps a card's queue and nothing else (`repr(transparent)`), and each call is forwarded to the queue. Two
//! things differ: a completion's status is one of DAT's ([`crate::status`]), and after 2,048 entries a completion queue
//! sets the obstacle that its caller must poll its other sources ([`Obstacles::set_poll_others`]).

use dat_core::provider::{
    Completion, CompletionEntry, CompletionQueue, DataSegment, InlineError, Obstacles, Plain,
    PostedRecv, ProviderError, Qpn, QueueFull, QueuePair, QueuePairCounts, RequestFlags, RequestOp,
    SharedReceiveQueue, WindowTarget,
};
use hw_mlx::completion;
use hw_mlx::window::Window;

use crate::status::dto_status;

/// A completion queue entry.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub struct Entry(pub hw_mlx::cq::Cqe);

/// A completion queue.
#[derive(Debug)]
#[repr(transparent)]
pub struct Cq(pub hw_mlx::cq::Cq);

/// A reliable connected queue pair.
#[derive(Debug)]
#[repr(transparent)]
pub struct Qp(pub hw_mlx::qp::Qp);

/// A shared receive queue.
#[derive(Debug)]
#[repr(transparent)]
pub struct Srq(pub hw_mlx::srq::Srq);

/// Converts a completion to DAT's.
#[inline(always)]
fn into_dat(completion: completion::Completion) -> Completion {
    let completion::Completion {
        cookie,
        status,
        transferred,
        request,
        bind,
        own,
        unsignalled,
        solicited,
        detail,
    } = completion;
    Completion {
        cookie,
        status: dto_status(status),
        transferred,
        request,
        bind,
        own,
        unsignalled,
        solicited,
        detail,
    }
}

impl CompletionEntry for Entry {
    #[inline]
    fn owner(&self) -> u32 {
        self.0.owner()
    }

    #[inline]
    fn is_request(&self) -> bool {
        self.0.is_request()
    }
}

impl CompletionQueue for Cq {
    type Entry = Entry;

    #[inline]
    fn peek(&self) -> Option<Entry> {
        self.0.peek().map(Entry)
    }

    #[inline(always)]
    fn advance(&mut self, obstacles: &mut Obstacles) {
        if self.0.advance() {
            obstacles.set_poll_others();
        }
    }

    #[inline(always)]
    fn take_while(
        &mut self,
        obstacles: &mut Obstacles,
        mut take: impl FnMut(&Entry) -> bool,
    ) -> bool {
        self.0
            .take_while(|| obstacles.set_poll_others(), |entry| take(&Entry(*entry)))
    }

    #[inline]
    fn written(&self) -> Option<u64> {
        self.0.written()
    }

    #[inline]
    fn arm(&mut self, solicited_only: bool) {
        self.0.arm(solicited_only);
    }

    #[inline]
    fn is_armed(&self) -> bool {
        self.0.is_armed()
    }

    #[inline]
    fn capacity(&self) -> u32 {
        self.0.capacity()
    }

    #[inline]
    fn taken(&self) -> u64 {
        self.0.taken()
    }
}

impl QueuePair for Qp {
    type Entry = Entry;
    type Window = Window;

    #[inline(always)]
    fn post_request<I>(
        &mut self,
        op: RequestOp,
        segments: I,
        cookie: u64,
        flags: RequestFlags,
    ) -> Result<(), QueueFull>
    where
        I: Iterator<Item = DataSegment> + Clone,
    {
        self.0.post_request(op, segments, cookie, flags)
    }

    #[inline(always)]
    fn post_one<const RING: bool>(
        &mut self,
        op: RequestOp,
        segment: DataSegment,
        cookie: u64,
        flags: RequestFlags,
    ) -> Result<(), QueueFull> {
        self.0.post_one::<RING>(op, segment, cookie, flags)
    }

    #[inline]
    fn post_own(&mut self) -> Result<(), QueueFull> {
        self.0.post_own()
    }

    #[inline]
    fn ring_last(&mut self) {
        self.0.ring_last();
    }

    #[inline]
    fn post_bind(
        &mut self,
        window: &mut Window,
        target: &WindowTarget,
        cookie: u64,
        flags: RequestFlags,
    ) -> Result<u32, QueueFull> {
        self.0.post_bind(window, target, cookie, flags)
    }

    #[inline(always)]
    fn post_send_inline(
        &mut self,
        op: RequestOp,
        data: &[u8],
        cookie: u64,
        flags: RequestFlags,
    ) -> Result<(), InlineError> {
        self.0.post_send_inline(op, data, cookie, flags)
    }

    #[inline]
    fn send_inline_limit(&self) -> usize {
        self.0.send_inline_limit()
    }

    #[inline(always)]
    fn post_recv<I>(&mut self, segments: I, cookie: u64, unsignalled: bool) -> Result<(), QueueFull>
    where
        I: Iterator<Item = DataSegment> + Clone,
    {
        self.0.post_recv(segments, cookie, unsignalled)
    }

    #[inline(always)]
    fn post_one_recv<const PUBLISH: bool>(
        &mut self,
        segment: DataSegment,
        cookie: u64,
        unsignalled: bool,
    ) -> Result<(), QueueFull> {
        self.0
            .post_one_recv::<PUBLISH>(segment, cookie, unsignalled)
    }

    #[inline]
    fn publish_recvs(&mut self) {
        self.0.publish_recvs();
    }

    #[inline(always)]
    fn complete_plain(&mut self, entry: &Entry) -> Option<Plain> {
        self.0.complete_plain(&entry.0)
    }

    #[inline]
    fn complete_behind_suppressed(&mut self, entry: &Entry) -> Option<Plain> {
        self.0.complete_behind_suppressed(&entry.0)
    }

    fn complete(&mut self, entry: &Entry) -> Option<Completion> {
        self.0.complete(&entry.0).map(into_dat)
    }

    fn take_outstanding(&mut self) -> Option<Completion> {
        self.0.take_outstanding().map(into_dat)
    }

    fn take_lost(&mut self) -> Option<Completion> {
        self.0.take_lost().map(into_dat)
    }

    #[inline]
    fn ends_silently(&self) -> bool {
        self.0.ends_silently()
    }

    #[inline]
    fn posted_recvs(&self) -> Option<Vec<PostedRecv>> {
        self.0.posted_recvs()
    }

    #[inline]
    fn requests_outstanding(&self) -> u32 {
        self.0.requests_outstanding()
    }

    #[inline]
    fn recvs_outstanding(&self) -> u32 {
        self.0.recvs_outstanding()
    }

    #[inline]
    fn counts(&self) -> QueuePairCounts {
        self.0.counts()
    }

    #[inline]
    fn number(&self) -> Qpn {
        self.0.number()
    }
}

impl SharedReceiveQueue for Srq {
    type Entry = Entry;

    #[inline]
    fn post_recv<I>(&mut self, segments: I, cookie: u64) -> Result<(), QueueFull>
    where
        I: Iterator<Item = DataSegment> + Clone,
    {
        self.0.post_recv(segments, cookie)
    }

    #[inline(always)]
    fn post_recv_unpublished<I>(&mut self, segments: I, cookie: u64) -> Result<(), QueueFull>
    where
        I: Iterator<Item = DataSegment> + Clone,
    {
        self.0.post_recv_unpublished(segments, cookie)
    }

    #[inline(always)]
    fn publish(&mut self) {
        self.0.publish();
    }

    #[inline(always)]
    fn complete_plain(&mut self, entry: &Entry) -> Option<Plain> {
        self.0.complete_plain(&entry.0)
    }

    fn complete(&mut self, entry: &Entry) -> Option<Completion> {
        self.0.complete(&entry.0).map(into_dat)
    }

    #[inline]
    fn outstanding(&self) -> u32 {
        self.0.outstanding()
    }

    #[inline]
    fn posted(&self) -> u64 {
        self.0.posted()
    }

    #[inline]
    fn set_max_recvs(&mut self, max_recvs: u32) -> Result<(), ProviderError> {
        self.0.set_max_recvs(max_recvs).map_err(|room| {
            ProviderError::Resources(format!(
                "{max_recvs} shared receives in a ring made for {room}"
            ))
        })
    }
}
