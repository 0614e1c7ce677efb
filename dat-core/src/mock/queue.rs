//! The queues of the mock: the state in the device, and the provider's queue objects.

use super::Net;
use crate::event::DtoDetail;
use crate::provider::{
    Completion, CompletionEntry, CompletionQueue, DataSegment, InlineError, Obstacles, PostedRecv,
    ProviderError, Psn, Qpn, QueueFull, QueuePair, QueuePairCounts, QueueSizes, RequestFlags,
    RequestOp, SharedReceiveQueue, WindowTarget,
};
use crate::types::DtoStatus;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    owner: u32,
    request: bool,
    /// Number of the post that this entry completes; the first post has number 0.
    post: u64,
    status: DtoStatus,
    bytes: u64,
    solicited: bool,
    detail: DtoDetail,
}

impl CompletionEntry for Entry {
    fn owner(&self) -> u32 {
        self.owner
    }

    fn is_request(&self) -> bool {
        self.request
    }
}

pub(crate) struct CqState {
    entries: VecDeque<Entry>,
    pub(super) capacity: u32,
    /// Number of entries taken since creation.
    pub(super) taken: u32,
    armed: Option<bool>,
    /// Number of polls and of arms since creation.
    pub(super) steps: u64,
    pub(super) fired: bool,
    pub(super) watched: bool,
    pub(super) owner: u32,
    /// Number by which a snapshot names the queue.
    pub(super) number: u32,
}

impl CqState {
    pub(super) fn new(capacity: u32, owner: u32, number: u32) -> Self {
        Self {
            entries: VecDeque::new(),
            capacity,
            taken: 0,
            armed: None,
            steps: 0,
            fired: false,
            watched: false,
            owner,
            number,
        }
    }

    pub(super) fn resize(&mut self, capacity: u32) -> bool {
        let fits = self.entries.len() <= capacity as usize;
        if fits {
            self.capacity = capacity;
        }
        fits
    }

    fn push(&mut self, entry: Entry) {
        assert!(
            self.entries.len() < self.capacity as usize,
            "a completion queue of the mock overran"
        );
        self.entries.push_back(entry);
        let counts = entry.solicited || entry.status != DtoStatus::Success;
        if self
            .armed
            .is_some_and(|solicited_only| !solicited_only || counts)
        {
            self.armed = None;
            self.fired = true;
        }
    }
}

/// Number of entries after which a dequeue must poll the rest of the IA.
pub(crate) const POLL_OTHERS_EVERY: u32 = 64;

pub(crate) struct MockCq(pub(super) Rc<RefCell<CqState>>);

impl CompletionQueue for MockCq {
    type Entry = Entry;

    fn peek(&self) -> Option<Entry> {
        let mut state = self.0.borrow_mut();
        state.steps += 1;
        state.entries.front().cloned()
    }

    fn advance(&mut self, obstacles: &mut Obstacles) {
        let mut state = self.0.borrow_mut();
        state.entries.pop_front();
        state.taken += 1;
        if state.taken.is_multiple_of(POLL_OTHERS_EVERY) {
            obstacles.set_poll_others();
        }
    }

    fn arm(&mut self, solicited_only: bool) {
        let mut state = self.0.borrow_mut();
        state.steps += 1;
        let counts = |entry: &Entry| {
            !solicited_only || entry.solicited || entry.status != DtoStatus::Success
        };
        if state.entries.iter().any(counts) {
            state.fired = true;
        } else {
            state.armed = Some(solicited_only);
        }
    }

    fn is_armed(&self) -> bool {
        let state = self.0.borrow();
        state.armed.is_some() || state.fired
    }

    fn written(&self) -> Option<u64> {
        self.0.borrow().entries.front().map(|_| 0)
    }

    fn capacity(&self) -> u32 {
        self.0.borrow().capacity
    }

    fn taken(&self) -> u64 {
        self.0.borrow().taken.into()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Queue {
    Init,
    ReadyToReceive,
    ReadyToSend,
    Error,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Request {
    post: u64,
    cookie: u64,
    pub(super) bytes: u64,
    pub(super) is_send: bool,
    pub(super) solicited: bool,
    suppress: bool,
    unsignalled: bool,
    bind: bool,
    own: bool,
    /// Detail that the peer's receive completion reports.
    pub(super) detail: DtoDetail,
}

impl Request {
    /// Makes a request that the library posts for itself.
    const fn own(post: u64) -> Self {
        Self {
            post,
            cookie: 0,
            bytes: 0,
            is_send: false,
            solicited: false,
            suppress: false,
            unsignalled: false,
            bind: false,
            own: true,
            detail: DtoDetail::None,
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct Recv {
    post: u64,
    cookie: u64,
    bytes: u64,
    unsignalled: bool,
}

pub(crate) struct QpState {
    pub(super) qpn: Qpn,
    pub(super) node: usize,
    pub(super) owner: u32,
    pub(super) queue: Queue,
    pub(super) remote: Option<Qpn>,
    pub(super) receive_psn: Psn,
    pub(super) send_psn: Psn,
    /// ACK timeout code given at the transition to RTS.
    pub(super) ack_timeout: u8,
    pub(super) rnr_retry: u8,
    pub(super) fail_next: Option<DtoStatus>,
    pub(super) sizes: QueueSizes,
    pub(super) request_cq: Rc<RefCell<CqState>>,
    pub(super) recv_cq: Rc<RefCell<CqState>>,
    pub(super) srq: Option<Rc<RefCell<SrqState>>>,
    /// Requests that are posted and not known to be complete.
    requests: VecDeque<Request>,
    recvs: VecDeque<Recv>,
    /// Number of requests that the device has carried out.
    requests_done: u64,
    pub(super) requests_posted: u64,
    recvs_done: u64,
    recvs_posted: u64,
}

impl QpState {
    pub(super) fn new(
        qpn: Qpn,
        node: usize,
        owner: u32,
        sizes: QueueSizes,
        request_cq: &MockCq,
        recv_cq: &MockCq,
        srq: Option<&MockSrq>,
    ) -> Self {
        Self {
            qpn,
            node,
            owner,
            queue: Queue::Init,
            remote: None,
            receive_psn: Psn::masked(0),
            send_psn: Psn::masked(0),
            ack_timeout: 0,
            rnr_retry: 0,
            fail_next: None,
            sizes,
            request_cq: Rc::clone(&request_cq.0),
            recv_cq: Rc::clone(&recv_cq.0),
            srq: srq.map(|srq| Rc::clone(&srq.0)),
            requests: VecDeque::new(),
            recvs: VecDeque::new(),
            requests_done: 0,
            requests_posted: 0,
            recvs_done: 0,
            recvs_posted: 0,
        }
    }

    pub(super) fn receives(&self) -> bool {
        matches!(self.queue, Queue::ReadyToReceive | Queue::ReadyToSend)
    }

    /// Returns the next request to carry out.
    pub(super) fn next_request(&mut self) -> Option<Request> {
        if self.queue != Queue::ReadyToSend && self.queue != Queue::Error {
            return None;
        }
        let request = *self
            .requests
            .iter()
            .find(|request| request.post >= self.requests_done)?;
        if self.queue == Queue::Error {
            self.finish(request, DtoStatus::ErrFlushed);
            return self.next_request();
        }
        Some(request)
    }

    /// Completes a request. Returns true if the queue pair must go to the error state.
    pub(super) fn finish(&mut self, request: Request, status: DtoStatus) -> bool {
        self.requests_done = request.post + 1;
        let entry = Entry {
            owner: self.owner,
            request: true,
            post: request.post,
            status,
            bytes: request.bytes,
            solicited: false,
            detail: DtoDetail::None,
        };
        // The device reports the success of a suppressed request only if the provider asked for a report. The mock asks
        // for one with every `max_requests`-th request.
        let reports = !request.suppress
            || request
                .post
                .is_multiple_of(self.sizes.max_requests.max(1).into());
        if status != DtoStatus::Success || reports {
            self.request_cq.borrow_mut().push(entry);
        }
        status != DtoStatus::Success && self.queue != Queue::Error
    }

    /// Receives a message. Returns `None` if there is no buffer, and false if the buffer is too short.
    pub(super) fn receive(
        &mut self,
        bytes: u64,
        solicited: bool,
        detail: DtoDetail,
    ) -> Option<bool> {
        let (post, room) = match &self.srq {
            Some(srq) => srq.borrow_mut().take()?,
            None => {
                let recv = *self
                    .recvs
                    .iter()
                    .find(|recv| recv.post >= self.recvs_done)?;
                self.recvs_done = recv.post + 1;
                (recv.post, recv.bytes)
            }
        };
        let fits = bytes <= room;
        let status = if fits {
            DtoStatus::Success
        } else {
            DtoStatus::ErrLocalLength
        };
        self.recv_cq.borrow_mut().push(Entry {
            owner: self.owner,
            request: false,
            post,
            status,
            bytes,
            solicited,
            detail,
        });
        Some(fits)
    }

    /// Moves to the error state. Returns true if the device must report the last buffer of the SRQ.
    pub(super) fn stop(&mut self) -> bool {
        if self.queue == Queue::Error {
            return false;
        }
        let received = self.receives();
        self.queue = Queue::Error;
        self.flush();
        self.srq.is_some() && received
    }

    fn flush(&mut self) {
        assert!(
            self.next_request().is_none(),
            "in the error state everything is flushed"
        );
        let left: Vec<u64> = self
            .recvs
            .iter()
            .map(|recv| recv.post)
            .filter(|post| *post >= self.recvs_done)
            .collect();
        for post in left {
            self.recvs_done = post + 1;
            let status = DtoStatus::ErrFlushed;
            self.recv_cq.borrow_mut().push(Entry {
                owner: self.owner,
                request: false,
                post,
                status,
                bytes: 0,
                solicited: false,
                detail: DtoDetail::None,
            });
        }
    }

    /// Returns to INIT and keeps the posted receives.
    pub(super) const fn rewind(&mut self) {
        self.queue = Queue::Init;
        self.remote = None;
    }

    pub(super) fn reset(&mut self) {
        for cq in [&self.request_cq, &self.recv_cq] {
            cq.borrow_mut()
                .entries
                .retain(|entry| entry.owner != self.owner);
        }
        self.queue = Queue::Init;
        self.remote = None;
        self.requests.clear();
        self.recvs.clear();
        self.requests_done = self.requests_posted;
        self.recvs_done = self.recvs_posted;
    }
}

pub(crate) struct MockQp {
    pub(super) state: Rc<RefCell<QpState>>,
    pub(super) net: Net,
}

fn sum(segments: impl Iterator<Item = DataSegment>, limit: u32) -> u64 {
    let segments: Vec<DataSegment> = segments.collect();
    assert!(
        segments.len() <= limit as usize,
        "more segments than the queue was made for"
    );
    assert!(
        segments.iter().all(|segment| segment.bytes != 0),
        "no empty segment reaches a provider"
    );
    segments
        .iter()
        .map(|segment| u64::from(segment.bytes))
        .sum()
}

/// Returns the detail of the peer's receive for a request.
const fn carried(op: RequestOp) -> DtoDetail {
    match op {
        RequestOp::SendImmediate(data) => DtoDetail::SendImmediate(data),
        RequestOp::SendInvalidate { rmr_context } => DtoDetail::Invalidated(rmr_context),
        RequestOp::RdmaWriteImmediate { immediate, .. } => DtoDetail::WriteImmediate(immediate),
        RequestOp::Send
        | RequestOp::RdmaWrite { .. }
        | RequestOp::RdmaRead { .. }
        | RequestOp::FetchAdd { .. }
        | RequestOp::CompareSwap { .. } => DtoDetail::None,
    }
}

impl MockQp {
    /// Carries out the posted requests, or flushes them in the error state.
    fn go(&self) {
        if self.state.borrow().queue == Queue::Error {
            self.state.borrow_mut().flush();
        } else {
            self.net.run(&self.state);
        }
    }
}

impl QueuePair for MockQp {
    type Entry = Entry;
    type Window = u32;

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
        {
            let mut state = self.state.borrow_mut();
            let limit = match op {
                RequestOp::Send
                | RequestOp::SendImmediate(_)
                | RequestOp::SendInvalidate { .. }
                | RequestOp::RdmaWrite { .. }
                | RequestOp::RdmaWriteImmediate { .. } => state.sizes.max_request_segments,
                RequestOp::RdmaRead { .. } => state.sizes.max_read_segments,
                RequestOp::FetchAdd { .. } | RequestOp::CompareSwap { .. } => 1,
            };
            let bytes = sum(segments, limit);
            if state.requests.len() >= state.sizes.max_requests as usize {
                return Err(QueueFull);
            }
            let post = state.requests_posted;
            state.requests_posted += 1;
            state.requests.push_back(Request {
                post,
                cookie,
                bytes,
                is_send: matches!(
                    op,
                    RequestOp::Send
                        | RequestOp::SendImmediate(_)
                        | RequestOp::SendInvalidate { .. }
                ),
                detail: carried(op),
                solicited: flags.solicited,
                suppress: flags.suppress,
                unsignalled: flags.unsignalled,
                bind: false,
                own: false,
            });
        }
        self.go();
        Ok(())
    }

    fn post_send_inline(
        &mut self,
        op: RequestOp,
        data: &[u8],
        cookie: u64,
        flags: RequestFlags,
    ) -> Result<(), InlineError> {
        let (bytes, limit) = (data.len(), self.send_inline_limit());
        if bytes > limit {
            return Err(InlineError::TooLong { bytes, limit });
        }
        let none = core::iter::empty::<DataSegment>();
        self.post_request(op, none, cookie, flags)
            .map_err(|QueueFull| InlineError::Full)
    }

    fn send_inline_limit(&self) -> usize {
        64
    }

    fn post_own(&mut self) -> Result<(), QueueFull> {
        {
            let mut state = self.state.borrow_mut();
            if state.requests.len() >= state.sizes.max_requests as usize {
                return Err(QueueFull);
            }
            let post = state.requests_posted;
            state.requests_posted += 1;
            state.requests.push_back(Request::own(post));
        }
        self.go();
        Ok(())
    }

    fn ends_silently(&self) -> bool {
        let state = self.state.borrow();
        state.requests.back().is_some_and(|last| last.suppress)
    }

    fn post_bind(
        &mut self,
        window: &mut u32,
        _target: &WindowTarget,
        cookie: u64,
        flags: RequestFlags,
    ) -> Result<u32, QueueFull> {
        {
            let mut state = self.state.borrow_mut();
            assert!(
                state.sizes.binds,
                "a bind on a queue that was not made for it"
            );
            if state.requests.len() >= state.sizes.max_requests as usize {
                return Err(QueueFull);
            }
            let post = state.requests_posted;
            state.requests_posted += 1;
            state.requests.push_back(Request {
                post,
                cookie,
                bytes: 0,
                is_send: false,
                detail: DtoDetail::None,
                solicited: false,
                suppress: false,
                unsignalled: flags.unsignalled,
                bind: true,
                own: false,
            });
        }
        *window += 1;
        self.go();
        Ok(*window)
    }

    fn post_recv<I>(&mut self, segments: I, cookie: u64, unsignalled: bool) -> Result<(), QueueFull>
    where
        I: Iterator<Item = DataSegment> + Clone,
    {
        let mut state = self.state.borrow_mut();
        let bytes = sum(segments, state.sizes.max_recv_segments);
        if state.recvs.len() >= state.sizes.max_recvs as usize {
            return Err(QueueFull);
        }
        let post = state.recvs_posted;
        state.recvs_posted += 1;
        state.recvs.push_back(Recv {
            post,
            cookie,
            bytes,
            unsignalled,
        });
        if state.queue == Queue::Error {
            state.flush();
        }
        Ok(())
    }

    fn complete(&mut self, entry: &Entry) -> Option<Completion> {
        let mut state = self.state.borrow_mut();
        let (status, solicited) = (entry.status, entry.solicited);
        let detail = if status == DtoStatus::Success {
            entry.detail
        } else {
            DtoDetail::Failed(0x5, 0x1)
        };
        if entry.request {
            while let Some(request) = state.requests.pop_front() {
                if request.post == entry.post {
                    let hidden = request.suppress && status == DtoStatus::Success;
                    return (!hidden).then_some(Completion {
                        cookie: request.cookie,
                        status,
                        transferred: request.bytes,
                        request: true,
                        bind: request.bind,
                        own: request.own,
                        unsignalled: request.unsignalled,
                        solicited: false,
                        detail,
                    });
                }
            }
            return None;
        }
        let recv = state
            .recvs
            .pop_front()
            .filter(|recv| recv.post == entry.post)?;
        Some(Completion {
            cookie: recv.cookie,
            status,
            transferred: entry.bytes,
            request: false,
            bind: false,
            own: false,
            unsignalled: recv.unsignalled,
            solicited,
            detail,
        })
    }

    fn take_outstanding(&mut self) -> Option<Completion> {
        let mut state = self.state.borrow_mut();
        if let Some(request) = state.requests.pop_front() {
            return Some(Completion {
                bind: request.bind,
                own: request.own,
                ..Completion::flushed(request.cookie, true, request.unsignalled)
            });
        }
        let recv = state.recvs.pop_front()?;
        Some(Completion::flushed(recv.cookie, false, recv.unsignalled))
    }

    fn take_lost(&mut self) -> Option<Completion> {
        None
    }

    fn posted_recvs(&self) -> Option<Vec<PostedRecv>> {
        let state = self.state.borrow();
        // The mock transfers no bytes, so only the lengths are kept.
        let segment = |bytes| DataSegment {
            lmr_context: 0,
            address: 0,
            bytes,
        };
        let posted = |recv: &Recv| PostedRecv {
            segments: u32::try_from(recv.bytes)
                .ok()
                .filter(|&bytes| bytes != 0)
                .map(segment)
                .into_iter()
                .collect(),
            cookie: recv.cookie,
            unsignalled: recv.unsignalled,
        };
        Some(state.recvs.iter().map(posted).collect())
    }

    fn requests_outstanding(&self) -> u32 {
        u32::try_from(self.state.borrow().requests.len()).expect("few")
    }

    fn recvs_outstanding(&self) -> u32 {
        u32::try_from(self.state.borrow().recvs.len()).expect("few")
    }

    // The mock does not count bytes.
    fn counts(&self) -> QueuePairCounts {
        let state = self.state.borrow();
        QueuePairCounts {
            requests: state.requests_posted,
            recvs: state.recvs_posted,
            ..QueuePairCounts::default()
        }
    }

    fn number(&self) -> Qpn {
        self.state.borrow().qpn
    }
}

pub(crate) struct SrqState {
    pub(super) max_recvs: u32,
    /// Number by which a snapshot names the queue.
    pub(super) number: u32,
    posted: u64,
    available: VecDeque<Recv>,
    taken: Vec<Recv>,
}

impl SrqState {
    pub(super) fn new(max_recvs: u32, number: u32) -> Self {
        Self {
            max_recvs,
            number,
            posted: 0,
            available: VecDeque::new(),
            taken: Vec::new(),
        }
    }

    fn take(&mut self) -> Option<(u64, u64)> {
        let recv = self.available.pop_front()?;
        self.taken.push(recv);
        Some((recv.post, recv.bytes))
    }
}

pub(crate) struct MockSrq(pub(super) Rc<RefCell<SrqState>>);

impl SharedReceiveQueue for MockSrq {
    type Entry = Entry;

    fn post_recv<I>(&mut self, segments: I, cookie: u64) -> Result<(), QueueFull>
    where
        I: Iterator<Item = DataSegment> + Clone,
    {
        if self.outstanding() >= self.0.borrow().max_recvs {
            return Err(QueueFull);
        }
        let mut state = self.0.borrow_mut();
        let post = state.posted;
        state.posted += 1;
        let bytes = sum(segments, u32::MAX);
        state.available.push_back(Recv {
            post,
            cookie,
            bytes,
            unsignalled: false,
        });
        Ok(())
    }

    fn complete(&mut self, entry: &Entry) -> Option<Completion> {
        let mut state = self.0.borrow_mut();
        let at = state
            .taken
            .iter()
            .position(|recv| recv.post == entry.post)?;
        let recv = state.taken.swap_remove(at);
        Some(Completion {
            cookie: recv.cookie,
            status: entry.status,
            transferred: entry.bytes,
            request: false,
            bind: false,
            own: false,
            unsignalled: false,
            solicited: entry.solicited,
            detail: entry.detail,
        })
    }

    fn set_max_recvs(&mut self, max_recvs: u32) -> Result<(), ProviderError> {
        self.0.borrow_mut().max_recvs = max_recvs;
        Ok(())
    }

    fn outstanding(&self) -> u32 {
        let state = self.0.borrow();
        u32::try_from(state.available.len() + state.taken.len()).expect("few")
    }

    fn posted(&self) -> u64 {
        self.0.borrow().posted
    }
}
