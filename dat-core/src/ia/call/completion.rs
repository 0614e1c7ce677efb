//! Effects of a completion beyond its event.
//!
//! A completion queue serves many endpoints. An entry can end the connection of its endpoint. That drains completion
//! queues, which may hold an entry that ends the next connection. To avoid recursion, an entry is only *processed* when
//! it is polled: it is converted to an event, and its effects are recorded. [`Ia::apply_effects`] carries out these
//! effects, in a loop, at the end of every call that polls.
//!
//! One effect cannot wait: a message that arrives before the handshake is complete proves that the peer considers the
//! connection established. Then ESTABLISHED is queued at once, before that message.

use crate::event::{DtoCompletion, DtoDetail, Event};
use crate::handle::{EpHandle, EpKey, EvdKey, SrqKey};
use crate::ia::effect::Effect;
use crate::ia::instance::Ia;
use crate::object::ep::cause::EndCause;
use crate::object::ep::state::{EpEvent, EpState};
use crate::provider::{
    Completion, CompletionEntry, CompletionQueue, Entry, Provider, QueuePair, SharedReceiveQueue,
};
use crate::types::{DtoCookie, DtoStatus};

/// A completion that is ready to be queued on an EVD.
pub(crate) struct ProcessedCompletion {
    /// The event, of a DTO or of a bind.
    event: Event,
    notify: bool,
    srq: Option<SrqKey>,
}

impl<P: Provider> Ia<P> {
    /// Converts a completion queue entry to a completion, and records its effects on the endpoint. Returns `None` if
    /// the entry makes no event.
    pub(in crate::ia) fn process_entry(&mut self, entry: &Entry<P>) -> Option<ProcessedCompletion> {
        let (key, ep) = self.eps.at_mut(entry.owner())?;
        let completion = match ep.srq {
            Some(srq) if !entry.is_request() => self.srqs.get_mut(srq)?.queue.complete(entry),
            _ => ep.qp.get_mut()?.complete(entry),
        };
        self.process_completion(key, entry.is_request(), completion)
    }

    /// Does the part of `process_entry` that follows after the provider has read the entry.
    pub(in crate::ia) fn process_completion(
        &mut self,
        key: EpKey,
        request: bool,
        completion: Option<Completion>,
    ) -> Option<ProcessedCompletion> {
        let ep = self.eps.get_mut(key)?;
        if request && ep.hot.state == EpState::DisconnectPending {
            self.effects.push_back(Effect::Progressed(key));
        }
        let done = completion?;
        if done.own {
            ep.own_outstanding = false;
        }
        match (done.status, ep.hot.state) {
            (DtoStatus::Success, EpState::CompletionPending) => {
                let conn = ep.conn;
                if let Some(conn) = conn
                    && let Err(error) = self
                        .adapter
                        .lock()
                        .cm
                        .communication_established(self.provider.now(), conn)
                {
                    tracing::debug!(%error, "data came on a connection the connection manager has ended");
                }
                self.established(key);
            }
            (DtoStatus::Success, _) => {}
            (_, EpState::Connected | EpState::DisconnectPending | EpState::CompletionPending) => {
                if done.status != DtoStatus::ErrFlushed {
                    let (status, syndrome) = (done.status, done.detail.syndrome());
                    let what = if done.own {
                        "the peer does not answer a keep-alive"
                    } else {
                        "a DTO failed"
                    };
                    if let Some(unlogged) = self.log.broken.take(self.provider.now()) {
                        tracing::info!(ep = ?key, status = status.name(), ?syndrome, unlogged, "{what}; its connection is broken");
                    }
                    ep.cause.get_or_insert(if done.own {
                        EndCause::KeepAlive { syndrome }
                    } else {
                        EndCause::Dto { status, syndrome }
                    });
                }
                self.effects.push_back(Effect::Failed(key));
            }
            (_, _) => {}
        }
        if let DtoDetail::Invalidated(rmr_context) = done.detail {
            self.invalidated_by_peer(rmr_context);
        }
        if done.own {
            return None;
        }
        if self.observed {
            self.observe_done(key, &done);
        }
        if let Some(ep) = self.eps.get_mut(key) {
            ep.counts.done(&done, ep.srq.is_some());
        }
        let event = if done.bind {
            self.bind_done(key, &done)?
        } else {
            Event::Dto(DtoCompletion {
                ep: EpHandle { key, ia: self.id },
                cookie: DtoCookie(done.cookie),
                transferred_length: done.transferred,
                status: done.status,
                request: done.request,
                detail: done.detail,
            })
        };
        let ep = self.eps.get(key)?;
        let by_choice =
            !done.unsignalled && (done.request || !ep.hot.solicited_wait || done.solicited);
        Some(ProcessedCompletion {
            event,
            notify: by_choice || done.status != DtoStatus::Success,
            srq: if done.request { None } else { ep.srq },
        })
    }

    /// Adds a completion to the EVD's software queue.
    pub(in crate::ia) fn queue_processed(&mut self, evd: EvdKey, processed: ProcessedCompletion) {
        if let Some(srq) = processed.srq.and_then(|srq| self.srqs.get_mut(srq)) {
            srq.taken_early();
        }
        let Some(queue) = self.evds.get_mut(evd) else {
            self.slot_returned(processed.srq);
            return;
        };
        queue.push_dto(processed.event, processed.notify, processed.srq);
        if processed.notify {
            self.notified(evd);
        }
    }

    /// Moves completions from an EVD's completion queue to its software queue. If `bounded`, the software queue holds
    /// at most as many completions as the EVD's queue length. Returns true if the completion queue is empty.
    pub(in crate::ia) fn drain_evd(&mut self, key: EvdKey, bounded: bool) -> bool {
        loop {
            let Some(evd) = self.evds.get_mut(key) else {
                return true;
            };
            let has_room = !bounded || evd.takes_dtos();
            let Some(cq) = &mut evd.cq else { return true };
            let Some(entry) = cq.peek() else { return true };
            if !has_room {
                return false;
            }
            // `advance` sets an obstacle once in many entries, so that other sources are polled too: a caller whose
            // posts find no free entry may come here again and again, without ever finding the queue empty.
            cq.advance(&mut evd.obstacles);
            if let Some(processed) = self.process_entry(&entry) {
                self.queue_processed(key, processed);
            }
        }
    }

    /// Arms and empties the discard queue of an endpoint, after the device has reported entries in it.
    pub(in crate::ia) fn empty_discard(&mut self, key: EpKey) {
        let discard = self.eps.get_mut(key).and_then(|ep| ep.discard.as_mut());
        // The queue is armed before it is emptied: a later entry interrupts again, and an earlier one is taken now.
        discard.into_iter().for_each(|cq| cq.arm(false));
        self.drain_discard(key);
    }

    /// Empties the discard queue of an endpoint. Returns true if it had entries.
    pub(in crate::ia) fn drain_discard(&mut self, key: EpKey) -> bool {
        let mut some = false;
        while let Some(entry) = self
            .eps
            .get_mut(key)
            .and_then(|ep| ep.discard.as_mut())
            .and_then(CompletionQueue::poll)
        {
            some = true;
            // The entry is processed for its effects. Its event is dropped, because the consumer gave a null EVD.
            let _unwanted = self.process_entry(&entry);
        }
        some
    }

    /// Drains all completion queue entries that refer to an endpoint, before its queue pair is reset or destroyed.
    pub(in crate::ia) fn drain_queues_of(&mut self, key: EpKey) {
        let Some(ep) = self.eps.get(key) else { return };
        let evds = [ep.request_evd, ep.recv_evd];
        for evd in evds.into_iter().flatten() {
            self.drain_evd(evd, false);
        }
        self.drain_discard(key);
    }

    /// Takes the completions of receives of endpoints whose handshake is not complete. A message shows that the peer is
    /// ready, so it is handled before deadlines that passed while no process had the instance.
    pub(in crate::ia) fn take_first_messages(&mut self) {
        let accepting = self.eps.iter();
        let accepting = accepting.filter(|(_, ep)| ep.hot.state == EpState::CompletionPending);
        let accepting: Vec<_> = accepting.map(|(key, ep)| (key, ep.recv_evd)).collect();
        for (key, recv_evd) in accepting {
            match recv_evd {
                Some(evd) => self.drain_evd(evd, true),
                None => self.drain_discard(key),
            };
        }
        self.apply_effects();
    }

    /// Carries out the recorded effects of completions.
    pub(in crate::ia) fn apply_effects(&mut self) {
        while let Some(effect) = self.effects.pop_front() {
            match effect {
                Effect::Failed(key) => self.connection_failed(key),
                Effect::Progressed(key) => self.advance_drain(key),
                Effect::BindFailed(key, bind) => self.unbind_by_command(key, bind),
            }
        }
    }

    /// Handles the device's report that the first packet has arrived. Like a first message, it shows that the peer is
    /// ready.
    pub(in crate::ia) fn communication_established(&mut self, key: EpKey) {
        let Some(ep) = self.eps.get(key) else { return };
        if ep.hot.state.next(EpEvent::Established).is_some()
            && ep.hot.state == EpState::CompletionPending
            && let Some(conn) = ep.conn
            && let Err(error) = self
                .adapter
                .lock()
                .cm
                .communication_established(self.provider.now(), conn)
        {
            tracing::debug!(%error, "communication established on a connection the connection manager has ended");
        }
    }
}
