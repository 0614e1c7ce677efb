//! State shared by a driver and its handles: the instance, endpoints, transfers in flight, and waiting tasks.
//!
//! All of this state except the list of unused regions is in one `RefCell`, borrowed by [`Shared::with`]. Waking a
//! task, or dropping its last waker, runs code of the program, which may call into this module. So wakers are
//! collected in `removed`, and are woken or dropped after the borrow has ended.
//!
//! An operation is *in flight* from its post until its completion. If its future is dropped first, it is *abandoned*;
//! if its completion comes first, it is *done*. Its entry, with the buffer, exists until both have happened.
//!
//! ```text
//!   post ---> in flight ---completion---> done ---future polled, or dropped---> gone
//!                 |                                                              ^
//!                 '------future dropped------> abandoned ------completion--------'
//! ```
#![expect(
    clippy::result_large_err,
    reason = "a buffer goes back to its owner beside the error"
)]

use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::rc::Rc;
use std::task::Waker;

use dat_core::{
    AsyncEvent, ConnectionEvent, ConnectionEventKind, ConnectionRequest, CrHandle, DtoCompletion,
    DtoStatus, EpHandle, EvdHandle, Event, LmrSlice, PspHandle, PzHandle, ReturnType, SrqHandle,
    Subtype,
};
use slotmap::{Key, KeyData, SlotMap};

use super::buffer::{Buffer, SpentRegions};
use super::error::Error;
use super::waiting::{Place, RemovedWaker, Waiting};
use super::what::{Inline, Queue, What};
use crate::{DatError, DtoCookie, Ia};

slotmap::new_key_type! {
    /// Key of an operation. As a number it is the cookie of the post.
    pub(super) struct OpKey;
    /// Key of an endpoint or SRQ.
    pub(super) struct LinkKey;
}

/// Number of events after which [`Driver::run_once`](super::Driver::run_once) stops polling, so that tasks get to run.
const BUDGET: usize = 1024;

/// The table, and the regions waiting to be freed.
pub(super) struct Shared {
    core: RefCell<Core>,
    /// Regions that are to be freed. This list is outside the `core` cell, because the last buffer of a region may be
    /// dropped while `core` is borrowed.
    spent: Rc<SpentRegions>,
}

/// The DAT object that transfers are posted to.
#[derive(Clone, Copy)]
pub(super) enum Of {
    Ep(EpHandle),
    Srq(SrqHandle),
}

struct Op {
    link: LinkKey,
    /// Index of this operation in the `ops` of its endpoint or SRQ. Valid while the card may use the buffer.
    place: usize,
    /// True if the completion sets the length of the buffer.
    fills: bool,
    /// Buffer of the transfer; `None` if the data was posted inline.
    buffer: Option<Buffer>,
    stage: Stage,
}

enum Stage {
    InFlight(Option<Waker>),
    Abandoned,
    Done(Result<usize, Error>),
}

/// An endpoint with the connection state that its futures wait for, or an SRQ, which is never connected.
struct Link {
    of: Of,
    /// Operations that the card may still execute.
    ops: Vec<OpKey>,
    state: LinkState,
    waiting: Waiting,
}

/// State of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LinkState {
    /// Not connected yet, or waiting for the reply.
    Pending,
    Established,
    Ended(ConnectionEventKind),
}

#[derive(Default)]
struct Listening {
    requests: VecDeque<CrHandle>,
    waiting: Waiting,
}

pub(super) struct Core {
    /// `None` after the driver was closed or dropped.
    ia: Option<Ia>,
    pub(super) zone: PzHandle,
    pub(super) dtos: EvdHandle,
    pub(super) connections: EvdHandle,
    /// Maximum number of transfers in flight: the size of the DTO EVD.
    room: u32,
    in_flight: u32,
    ops: SlotMap<OpKey, Op>,
    links: SlotMap<LinkKey, Link>,
    by_ep: HashMap<EpHandle, LinkKey>,
    listeners: HashMap<PspHandle, Listening>,
    /// Dropped endpoints and SRQs that the device refused to free.
    refused: Vec<LinkKey>,
    /// True after the device has failed or an EVD has overflowed.
    dead: bool,
    /// True if no task has used the instance since it was armed.
    armed: bool,
    /// Waker of the driver's task, while that task sleeps.
    sleeper: Option<Waker>,
    removed: Vec<RemovedWaker>,
    /// Empty vector whose memory the next batch reuses for its posts.
    batch: Vec<(OpKey, What)>,
}

impl Shared {
    pub(super) fn new(
        ia: Ia,
        zone: PzHandle,
        [dtos, connections]: [EvdHandle; 2],
        room: u32,
    ) -> Rc<Self> {
        let core = Core {
            ia: Some(ia),
            zone,
            dtos,
            connections,
            room,
            in_flight: 0,
            ops: SlotMap::with_key(),
            links: SlotMap::with_key(),
            by_ep: HashMap::new(),
            listeners: HashMap::new(),
            refused: Vec::new(),
            dead: false,
            armed: false,
            sleeper: None,
            removed: Vec::new(),
            batch: Vec::new(),
        };
        Rc::new(Self {
            core: RefCell::new(core),
            spent: Rc::default(),
        })
    }

    /// Runs `work` on the table, then wakes the tasks that it made ready.
    pub(super) fn with<T>(&self, work: impl FnOnce(&mut Core) -> T) -> T {
        // PANIC: while the cell is borrowed, only code of this crate runs, and `Waker::clone`. No runtime calls this
        // crate from `Waker::clone`, so the cell is not borrowed twice.
        let mut core = self.core.borrow_mut();
        let result = work(&mut core);
        if core.removed.is_empty() {
            return result;
        }
        let mut removed = std::mem::take(&mut core.removed);
        drop(core);
        for waker in removed.drain(..) {
            match waker {
                RemovedWaker::Woken(waker) => waker.wake(),
                RemovedWaker::Dropped(waker) => drop(waker),
            }
        }
        let mut core = self.core.borrow_mut();
        if core.removed.is_empty() {
            // Keep the vector's memory for the next call.
            core.removed = removed;
        }
        result
    }

    /// Returns the list that gets the regions whose pools and buffers have been dropped.
    pub(super) fn spent(&self) -> Rc<SpentRegions> {
        Rc::clone(&self.spent)
    }

    /// Frees regions whose pools and buffers have been dropped. A region that the device refuses to free stays in the
    /// list for the next call.
    pub(super) fn end_regions(&self) {
        for lmr in self.spent.take() {
            let freed = self.with(|core| core.ia.as_mut().map(|ia| ia.lmr_free(lmr)));
            if let Some(Err(error)) = freed {
                tracing::warn!(%error, "cannot free a region yet");
                self.spent.push(lmr);
            }
        }
    }
}

/// Stores a task's waker in a slot. The previous waker goes to `removed`, and is dropped after the borrow.
fn store_waker(slot: &mut Option<Waker>, waker: &Waker, removed: &mut Vec<RemovedWaker>) {
    if !slot.as_ref().is_some_and(|old| old.will_wake(waker)) {
        removed.extend(slot.replace(waker.clone()).map(RemovedWaker::Dropped));
    }
}

fn cookie(op: OpKey) -> DtoCookie {
    DtoCookie(op.data().as_ffi())
}

/// Returns the first bytes of an operation's buffer, as many as the post needs.
fn slice(ops: &SlotMap<OpKey, Op>, op: OpKey, what: &What) -> Option<LmrSlice> {
    let buffer = ops.get(op)?.buffer.as_ref()?;
    buffer.slice(what.bytes(buffer))
}

impl Core {
    /// Returns the instance for a call that may consume events. The instance then no longer counts as armed, and the
    /// sleeping task of the driver is woken.
    pub(super) fn ia(&mut self) -> Result<&mut Ia, Error> {
        self.armed = false;
        self.removed
            .extend(self.sleeper.take().map(RemovedWaker::Woken));
        self.ia.as_mut().ok_or(Error::Closed)
    }

    /// Returns the instance for a query, which consumes no events. The instance stays armed.
    pub(super) fn peek(&self) -> Result<&Ia, Error> {
        self.ia.as_ref().ok_or(Error::Closed)
    }

    /// Returns the instance for the driver itself, without waking the driver's task.
    pub(super) const fn driven(&mut self) -> Option<&mut Ia> {
        self.ia.as_mut()
    }

    /// Records that the instance is armed: no event is left, and the next event signals the descriptor.
    pub(super) const fn is_armed(&mut self) {
        self.armed = true;
    }

    /// Returns whether a task has used the instance since it was armed. If not, the next use wakes the given task.
    pub(super) fn disturbed(&mut self, waker: &Waker) -> bool {
        if self.armed {
            store_waker(&mut self.sleeper, waker, &mut self.removed);
        }
        !self.armed
    }

    /// Returns whether the device has failed or an EVD has overflowed.
    pub(super) const fn is_dead(&self) -> bool {
        self.dead
    }
}

/// Transfers.
impl Core {
    /// Adds an operation of an endpoint or SRQ, before its post.
    fn insert(
        &mut self,
        link: LinkKey,
        buffer: Option<Buffer>,
        fills: bool,
    ) -> Result<OpKey, (Error, Option<Buffer>)> {
        if self.ia.is_none() {
            return Err((Error::Closed, buffer));
        }
        if self.in_flight >= self.room {
            return Err((Error::Full(self.room), buffer));
        }
        let Some(entry) = self.links.get_mut(link) else {
            return Err((Error::Dropped, buffer));
        };
        let mut buffer = buffer;
        if let Some(buffer) = &mut buffer {
            buffer.forget_completion();
        }
        let op = self.ops.insert(Op {
            link,
            place: entry.ops.len(),
            fills,
            buffer,
            stage: Stage::InFlight(None),
        });
        entry.ops.push(op);
        self.in_flight += 1;
        Ok(op)
    }

    /// Removes an operation that was not posted.
    fn take_back(&mut self, op: OpKey) -> Option<Buffer> {
        self.unlink(op);
        self.ops.remove(op)?.buffer
    }

    /// Adds an operation, after checking the size of its buffer.
    pub(super) fn enter(
        &mut self,
        link: LinkKey,
        buffer: Buffer,
        what: &What,
    ) -> Result<OpKey, (Error, Buffer)> {
        let bytes = what.bytes(&buffer);
        if buffer.slice(bytes).is_none() {
            let error = Error::Bounds {
                offset: 0,
                bytes,
                capacity: buffer.capacity(),
            };
            return Err((error, buffer));
        }
        self.insert(link, Some(buffer), what.fills())
            // PANIC: `insert` returns the buffer that it was given.
            .map_err(|(error, buffer)| (error, buffer.expect("a buffer")))
    }

    /// Posts a transfer. On error the buffer is returned.
    pub(super) fn post(
        &mut self,
        link: LinkKey,
        buffer: Buffer,
        what: &What,
    ) -> Result<OpKey, (Error, Buffer)> {
        let op = self.enter(link, buffer, what)?;
        let of = self.links.get(link).map(|link| link.of);
        let slice = slice(&self.ops, op, what);
        let cookie = cookie(op);
        let posted = self.ia().and_then(|ia| match (of.zip(slice), what) {
            (Some((Of::Ep(ep), slice)), _) => Ok(what.post(Queue::One(ia, ep), slice, cookie)?),
            (Some((Of::Srq(srq), slice)), What::Recv) => {
                Ok(ia.srq_post_recv(srq, &[slice], cookie)?)
            }
            // PANIC: `enter` added the operation above, with a buffer that is large enough, so the endpoint or SRQ and
            // the slice exist. An SRQ gets receives only.
            _ => unreachable!("an operation that was just made"),
        });
        let Err(error) = posted else {
            return Ok(op);
        };
        // PANIC: the operation was added above with a buffer.
        let buffer = self.take_back(op).expect("a buffer");
        Err((error, buffer))
    }

    /// Posts a message with inline data.
    pub(super) fn post_inline(
        &mut self,
        link: LinkKey,
        data: &[u8],
        how: Inline,
    ) -> Result<OpKey, Error> {
        let ep = self.ep(link);
        let op = self.insert(link, None, false);
        let op = op.map_err(|(error, _)| error)?;
        let posted = ep.and_then(|ep| Ok(how.post(self.ia()?, ep, data, cookie(op))?));
        if let Err(error) = posted {
            let _no_buffer = self.take_back(op);
            return Err(error);
        }
        Ok(op)
    }

    /// Returns an empty vector for the posts of a batch. `post_batch` takes the vector back.
    pub(super) fn batch_room(&mut self) -> Vec<(OpKey, What)> {
        std::mem::take(&mut self.batch)
    }

    /// Posts operations that `enter` has added, with one doorbell. An operation whose post is refused ends with that
    /// error.
    pub(super) fn post_batch(&mut self, link: LinkKey, mut posts: Vec<(OpKey, What)>) {
        let mut refused = Vec::new();
        // If the instance is closed, all these operations have ended already.
        if let Ok(ep) = self.ep(link)
            && self.ia().is_ok()
            && let Self {
                ia: Some(ia), ops, ..
            } = self
        {
            // Each post reports its own result.
            let _posted = ia.batch(ep, |batch| {
                for (op, what) in &posts {
                    let Some(slice) = slice(ops, *op, what) else {
                        continue;
                    };
                    if let Err(error) = what.post(Queue::Batch(batch), slice, cookie(*op)) {
                        refused.push((*op, error));
                    }
                }
                Ok(())
            });
        }
        for (op, error) in refused {
            self.finish(op, Err(Error::Dat(error)));
        }
        posts.clear();
        self.batch = posts;
    }

    /// Removes an operation from its endpoint's list, when the card no longer uses the buffer.
    fn unlink(&mut self, key: OpKey) {
        let Some(op) = self.ops.get(key) else {
            return;
        };
        self.in_flight -= 1;
        if let Some(link) = self.links.get_mut(op.link) {
            let place = op.place;
            link.ops.swap_remove(place);
            if let Some(moved) = link.ops.get(place) {
                self.ops[*moved].place = place;
            }
        }
    }

    /// Returns whether tasks are about to be woken.
    pub(super) fn wakes_tasks(&self) -> bool {
        let is_task = |removed: &RemovedWaker| matches!(removed, RemovedWaker::Woken(_));
        self.removed.iter().any(is_task)
    }

    /// Ends an operation with a result.
    fn finish(&mut self, key: OpKey, result: Result<usize, Error>) {
        self.unlink(key);
        let Some(op) = self.ops.get_mut(key) else {
            return;
        };
        let result = match result {
            // Fails if the device reports more bytes than the buffer holds.
            Ok(bytes) if op.fills => match &mut op.buffer {
                Some(buffer) => buffer.set_len(bytes).map(|()| bytes),
                None => Ok(bytes),
            },
            result => result,
        };
        match std::mem::replace(&mut op.stage, Stage::Done(result)) {
            Stage::InFlight(waker) => self.removed.extend(waker.map(RemovedWaker::Woken)),
            Stage::Abandoned => drop(self.ops.remove(key)),
            // PANIC: an operation that is done is no longer in its endpoint's list.
            Stage::Done(_) => unreachable!("an operation that has ended twice"),
        }
    }

    fn completed(&mut self, done: DtoCompletion) {
        let key = OpKey::from(KeyData::from_ffi(done.cookie.0));
        // A late completion of a freed endpoint names an operation that is done, or that does not exist any more.
        let is_in_flight = |op: &Op| !matches!(op.stage, Stage::Done(_));
        let op = self.ops.get_mut(key).filter(|op| is_in_flight(op));
        let Some(op) = op else {
            return;
        };
        if let Some(buffer) = &mut op.buffer {
            buffer.set_completion(done);
        }
        let result = match done.status {
            // The peer's RDMA Write with immediate data consumed the receive. Its buffer is unchanged.
            DtoStatus::Success if done.detail.is_write_immediate() => Ok(0),
            DtoStatus::Success => {
                Ok(usize::try_from(done.transferred_length).unwrap_or(usize::MAX))
            }
            DtoStatus::ErrFlushed => Err(self.flushed(done)),
            DtoStatus::ErrLocalLength
            | DtoStatus::ErrLocalEp
            | DtoStatus::ErrLocalProtection
            | DtoStatus::ErrBadResponse
            | DtoStatus::ErrRemoteAccess
            | DtoStatus::ErrRemoteResponder
            | DtoStatus::ErrTransport
            | DtoStatus::ErrReceiverNotReady
            | DtoStatus::ErrPartialPacket
            | DtoStatus::RmrOperationFailed => Err(Error::Transfer(done)),
        };
        self.finish(key, result);
    }

    /// Returns the error of a flushed transfer: the cause that ended its connection if that is known, otherwise the
    /// completion.
    fn flushed(&self, done: DtoCompletion) -> Error {
        let cause = self.ia.as_ref().map(|ia| ia.ep_end_cause(done.ep));
        match cause {
            Some(Ok(Some(cause))) => Error::Ended(cause),
            _ => Error::Transfer(done),
        }
    }

    /// Removes an operation that has ended, and returns its result and buffer. If the operation is still in flight,
    /// stores the waker and returns `None`.
    pub(super) fn ended(
        &mut self,
        key: OpKey,
        waker: &Waker,
    ) -> Option<(Result<usize, Error>, Option<Buffer>)> {
        // PANIC: the future exists, and an operation exists until its future has returned or is dropped.
        let op = self.ops.get_mut(key).expect("an operation with a future");
        if let Stage::InFlight(waiting) = &mut op.stage {
            store_waker(waiting, waker, &mut self.removed);
            return None;
        }
        let op = self.ops.remove(key)?;
        match op.stage {
            Stage::Done(result) => Some((result, op.buffer)),
            Stage::InFlight(_) | Stage::Abandoned => unreachable!("the future is there"),
        }
    }

    /// Abandons an operation whose future was dropped. Returns the buffer if the card no longer uses it; otherwise the
    /// table keeps the buffer until the completion.
    pub(super) fn abandon(&mut self, key: OpKey) -> Option<Buffer> {
        let op = self.ops.get_mut(key)?;
        match &mut op.stage {
            Stage::Done(_) => self.ops.remove(key)?.buffer,
            Stage::InFlight(waker) => {
                self.removed.extend(waker.take().map(RemovedWaker::Dropped));
                op.stage = Stage::Abandoned;
                None
            }
            Stage::Abandoned => None,
        }
    }
}

/// Connections.
impl Core {
    pub(super) fn add_link(&mut self, of: Of) -> LinkKey {
        let link = self.links.insert(Link {
            of,
            ops: Vec::new(),
            state: LinkState::Pending,
            waiting: Waiting::default(),
        });
        if let Of::Ep(ep) = of {
            self.by_ep.insert(ep, link);
        }
        link
    }

    /// Returns DAT's handle of an endpoint. The instance is checked first, because its end has removed all endpoints.
    pub(super) fn ep(&self, link: LinkKey) -> Result<EpHandle, Error> {
        self.peek()?;
        match self.links.get(link).map(|link| link.of) {
            Some(Of::Ep(ep)) => Ok(ep),
            Some(Of::Srq(_)) | None => Err(Error::Dropped),
        }
    }

    /// Returns DAT's handle of an SRQ, if it belongs to this driver.
    pub(super) fn srq(&self, link: Option<LinkKey>) -> Result<SrqHandle, Error> {
        let Some(link) = link else {
            let foreign = DatError::new(ReturnType::InvalidHandle, Subtype::HandleSrq);
            return Err(foreign.because("an SRQ of another driver").into());
        };
        self.peek()?;
        match self.links.get(link).map(|link| link.of) {
            Some(Of::Srq(srq)) => Ok(srq),
            Some(Of::Ep(_)) | None => Err(Error::Dropped),
        }
    }

    /// Returns the state of the connection. If this is not the awaited state, the next change wakes the future's task.
    pub(super) fn state(
        &mut self,
        link: LinkKey,
        is_awaited: fn(LinkState) -> bool,
        place: &mut Option<Place>,
        waker: &Waker,
    ) -> Result<LinkState, Error> {
        let closed = self.ia.is_none();
        match self.links.get_mut(link) {
            None if closed => Err(Error::Closed),
            None => Err(Error::Dropped),
            Some(link) => {
                if !is_awaited(link.state) {
                    link.waiting.register(place, waker, &mut self.removed);
                }
                Ok(link.state)
            }
        }
    }

    /// Removes the waker of a future that waits for a change of a connection.
    pub(super) fn unregister_from_link(&mut self, link: LinkKey, place: Option<Place>) {
        if let Some(link) = self.links.get_mut(link) {
            link.waiting.unregister(place, &mut self.removed);
        }
    }

    /// Removes the waker of a future that waits for connection requests.
    pub(super) fn unregister_from_listener(&mut self, psp: PspHandle, place: Option<Place>) {
        if let Some(listening) = self.listeners.get_mut(&psp) {
            listening.waiting.unregister(place, &mut self.removed);
        }
    }

    fn connection(&mut self, event: ConnectionEvent) {
        let key = self.by_ep.get(&event.ep);
        let Some(link) = key.and_then(|key| self.links.get_mut(*key)) else {
            return;
        };
        link.state = match event.kind {
            ConnectionEventKind::Established => LinkState::Established,
            ended @ (ConnectionEventKind::PeerRejected
            | ConnectionEventKind::NonPeerRejected
            | ConnectionEventKind::AcceptCompletionError
            | ConnectionEventKind::Disconnected
            | ConnectionEventKind::Broken
            | ConnectionEventKind::TimedOut
            | ConnectionEventKind::Unreachable) => LinkState::Ended(ended),
        };
        link.waiting.wake(&mut self.removed);
    }

    /// Frees a dropped endpoint or SRQ in the device, and then ends its transfers. If the device refuses, the table
    /// keeps the buffers, and `poll_evds` tries again.
    pub(super) fn drop_link(&mut self, key: LinkKey) {
        let Some(link) = self.links.get_mut(key) else {
            return;
        };
        let of = link.of;
        link.waiting.wake(&mut self.removed);
        let Ok(ia) = self.ia() else {
            return;
        };
        let freed = match of {
            Of::Ep(ep) => ia.ep_free(ep),
            Of::Srq(srq) => ia.srq_free(srq),
        };
        if let Err(error) = freed {
            tracing::warn!(%error, "cannot free an endpoint or SRQ yet");
            self.refused.push(key);
            return;
        }
        // Transfers that have completed already keep their own results.
        let dtos = self.dtos;
        while self.take_from(dtos).is_ok_and(|taken| taken > 0) {}
        let left = self.links.get_mut(key).map(|link| link.ops.clone());
        for op in left.unwrap_or_default() {
            self.finish(op, Err(Error::Dropped));
        }
        self.links.remove(key);
        if let Of::Ep(ep) = of {
            self.by_ep.remove(&ep);
        }
    }

    pub(super) fn listens(&mut self, psp: PspHandle) {
        self.listeners.insert(psp, Listening::default());
    }

    fn requested(&mut self, request: ConnectionRequest) {
        let listening = request.psp.and_then(|psp| self.listeners.get_mut(&psp));
        let Some(listening) = listening else {
            // The listener was dropped.
            if let Some(ia) = &mut self.ia
                && let Err(error) = ia.cr_reject(request.cr)
            {
                tracing::debug!(%error, "a connection request without a listener has ended already");
            }
            return;
        };
        listening.requests.push_back(request.cr);
        listening.waiting.wake(&mut self.removed);
    }

    /// Returns the oldest connection request. If there is none, the next one wakes the task.
    pub(super) fn request(
        &mut self,
        psp: PspHandle,
        place: &mut Option<Place>,
        waker: &Waker,
    ) -> Result<Option<CrHandle>, Error> {
        if self.ia.is_none() {
            return Err(Error::Closed);
        }
        let listening = self.listeners.get_mut(&psp).ok_or(Error::Dropped)?;
        let request = listening.requests.pop_front();
        if request.is_some() {
            return Ok(request);
        }
        if self.dead {
            return Err(Error::Dead);
        }
        listening.waiting.register(place, waker, &mut self.removed);
        Ok(None)
    }

    /// Frees a dropped listener's service point. Requests not yet taken are rejected.
    pub(super) fn drop_listener(&mut self, psp: PspHandle) {
        let Some(mut listening) = self.listeners.remove(&psp) else {
            return;
        };
        listening.waiting.wake(&mut self.removed);
        let Ok(ia) = self.ia() else {
            return;
        };
        if let Err(error) = ia.psp_free(psp) {
            tracing::warn!(%error, "cannot free a service point");
        }
        for cr in listening.requests {
            if let Err(error) = ia.cr_reject(cr) {
                tracing::debug!(%error, "a connection request has ended already");
            }
        }
    }
}

/// Events.
impl Core {
    /// Polls the EVDs until they are empty or about [`BUDGET`] events were taken. Returns the number of events.
    pub(super) fn poll_evds(&mut self) -> Result<usize, Error> {
        let mut taken = 0;
        let own = self.peek()?.async_evd();
        // Connection events first: a connection is established before its transfers complete.
        for evd in [own, self.connections, self.dtos] {
            while taken < BUDGET {
                match self.take_from(evd)? {
                    0 => break,
                    some => taken += some,
                }
            }
        }
        for link in std::mem::take(&mut self.refused) {
            self.drop_link(link);
        }
        Ok(taken)
    }

    fn take_from(&mut self, evd: EvdHandle) -> Result<usize, Error> {
        let mut events = [Event::NONE; 32];
        let ia = self.ia.as_mut().ok_or(Error::Closed)?;
        let taken = ia.evd_poll(evd, &mut events)?;
        for event in &events[..taken] {
            match *event {
                Event::Dto(done) => self.completed(done),
                Event::Connection(event) => self.connection(event),
                Event::ConnectionRequest(request) => self.requested(request),
                Event::Async(event) => self.async_event(event),
                // The driver's EVDs have no such streams.
                Event::RmrBind(_) | Event::Software(_) => {}
            }
        }
        Ok(taken)
    }

    fn async_event(&mut self, event: AsyncEvent) {
        match event {
            AsyncEvent::IaCatastrophic | AsyncEvent::EvdOverflow(_) => {
                tracing::error!(?event, "the instance can no longer be used");
                self.dead = true;
                for listening in self.listeners.values_mut() {
                    listening.waiting.wake(&mut self.removed);
                }
            }
            AsyncEvent::EpBroken(_)
            | AsyncEvent::SrqError(_)
            | AsyncEvent::SrqLowWatermark(_)
            | AsyncEvent::EpSoftHighWatermark(_)
            | AsyncEvent::ProviderInternalError => {
                tracing::warn!(?event, "asynchronous error of an instance")
            }
            // A lower layer logs the event. Operations that it ends report their own errors.
            AsyncEvent::Network(_) => {}
        }
    }

    /// Takes the instance out. The caller closes it at once.
    pub(super) const fn take_ia(&mut self) -> Option<Ia> {
        self.ia.take()
    }

    /// Ends all operations with `Error::Closed`, and wakes all waiting futures. The caller has closed the instance, so
    /// the card no longer uses any buffer.
    pub(super) fn end_all(&mut self) {
        self.armed = false;
        self.removed
            .extend(self.sleeper.take().map(RemovedWaker::Woken));
        let ops: Vec<OpKey> = self
            .links
            .values_mut()
            .flat_map(|link| link.ops.clone())
            .collect();
        for op in ops {
            self.finish(op, Err(Error::Closed));
        }
        for (_, mut link) in self.links.drain() {
            link.waiting.wake(&mut self.removed);
        }
        self.by_ep.clear();
        for (_, mut listening) in self.listeners.drain() {
            listening.waiting.wake(&mut self.removed);
        }
    }
}
