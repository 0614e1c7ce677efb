//! The flight recorder: the last actions of an instance. DAT 1.2 has no such calls.

use crate::event::ConnectionEventKind;
use crate::handle::{EpKey, index_of};
use crate::ia::instance::Ia;
use crate::object::ep::state::EpState;
use crate::object::recorder::{
    Keeper, Occasion, Posted, Record, RecordedEp, Recorder, RecorderDump,
};
use crate::provider::{Completion, Provider, QueuePair};

impl<P: Provider> Ia<P> {
    /// Starts recording posts, completions and the states of endpoints: the last [`RECORDS`](crate::recorder::RECORDS)
    /// of them, in 2 MiB that are allocated here. Posts and dequeues are slower while the instance records. Does
    /// nothing if the instance records already.
    ///
    /// The provider also starts recording commands, datagrams and events of the device, and continues until the adapter
    /// is closed.
    ///
    /// A buffer of an SRQ is recorded when it completes, not when it is posted.
    pub fn recorder_start(&mut self) {
        if self.recorder.is_none() {
            self.recorder = Some(Box::new(Recorder::new(self.id)));
            self.provider.record();
            self.observe();
            self.set_recorded_everywhere(true);
        }
    }

    /// Stops recording and discards the records.
    pub fn recorder_stop(&mut self) {
        if self.recorder.take().is_some() {
            self.observe();
            self.set_recorded_everywhere(false);
        }
    }

    /// Returns the records; `None` if the instance does not record.
    #[must_use]
    pub fn recorder_dump(&self) -> Option<RecorderDump> {
        let recorder = self.recorder.as_ref()?;
        let endpoints = self.eps.iter().map(|(key, ep)| RecordedEp {
            ep: index_of(key),
            qp_number: ep.qp.get().map(QueuePair::number),
            peer: ep.ends.map(|ends| ends.remote),
        });
        Some(recorder.dump(self.provider.now(), endpoints.collect()))
    }

    /// Passes the records to `keeper` when a connection breaks, at most eight times in ten seconds, and when the thread
    /// panics. [`Ia::recorder_stop`] removes `keeper`. Does nothing while the instance does not record.
    pub fn recorder_keep(&mut self, keeper: Keeper) {
        if let Some(recorder) = &mut self.recorder {
            recorder.set_keeper(keeper);
        }
    }

    /// Records why a connection, or an attempt to connect, ended. Passes the records to the keeper if the connection
    /// broke.
    pub(in crate::ia) fn record_end(&mut self, key: EpKey, kind: ConnectionEventKind) {
        if self.recorder.is_none() || kind == ConnectionEventKind::Established {
            return;
        }
        let (now, ep) = (self.provider.now(), index_of(key));
        let cause = self.eps.get(key).and_then(|ep| ep.cause);
        let Some(recorder) = &mut self.recorder else {
            return;
        };
        if let Some(cause) = cause {
            recorder.push(Record::ended(now, ep, cause));
        }
        if kind == ConnectionEventKind::Broken
            && recorder.is_wanted(now)
            && let Some(dump) = self.recorder_dump()
            && let Some(recorder) = &mut self.recorder
        {
            recorder.call_keeper(Occasion::Broken { ep, cause }, dump);
        }
    }

    /// Updates the flag that posts and completions on the ordered path check: true if recording or measuring is on.
    pub(in crate::ia) fn observe(&mut self) {
        let measured = self.latencies.as_ref().is_some_and(|all| all.on);
        self.observed = self.recorder.is_some() || measured;
    }

    fn set_recorded_everywhere(&mut self, on: bool) {
        let eps: Vec<_> = self.eps.iter().map(|(key, _)| key).collect();
        for key in eps {
            self.eps[key].set_recorded(on);
        }
        let evds: Vec<_> = self.evds.iter().map(|(key, _)| key).collect();
        for key in evds {
            self.evds[key].set_recorded(on);
        }
    }

    /// Records a state change of an endpoint, if its state differs from `from`, and logs the end of an attempt to
    /// connect.
    pub(in crate::ia) fn state_changed(&mut self, key: EpKey, from: EpState) {
        if let Some(ep) = self.eps.get(key)
            && ep.hot.state != from
        {
            self.log.state_changed(key, ep.hot.state);
        }
        if let Some(recorder) = &mut self.recorder
            && let Some(ep) = self.eps.get(key)
            && ep.hot.state != from
        {
            let now = self.provider.now();
            let qpn = ep.qp.get().map(QueuePair::number);
            recorder.push(Record::state(now, index_of(key), qpn, from, ep.hot.state));
        }
    }

    /// Records a post. `what` is a pair: the kind of the post, and an RMR context. For a bind, that is the context that
    /// the bind returned; for any other post, the context that the post names, or 0 if it names none.
    #[inline]
    pub(in crate::ia) fn record_post(
        &mut self,
        key: EpKey,
        what: (Posted, u32),
        bytes: u64,
        cookie: u64,
    ) {
        if self.observed {
            self.observe_post(key, what, bytes, cookie);
        }
    }

    #[cold]
    fn observe_post(&mut self, key: EpKey, what: (Posted, u32), bytes: u64, cookie: u64) {
        if let Some(recorder) = &mut self.recorder {
            let now = self.provider.now();
            recorder.push(Record::posted(now, index_of(key), what, bytes, cookie));
        }
    }

    /// Records a completion, and its latency if the request is being timed.
    #[cold]
    pub(in crate::ia) fn observe_done(&mut self, key: EpKey, done: &Completion) {
        if let Some(recorder) = &mut self.recorder {
            recorder.push(Record::done(self.provider.now(), index_of(key), done));
        }
        if done.request {
            self.time_done(key, done);
        }
    }
}
