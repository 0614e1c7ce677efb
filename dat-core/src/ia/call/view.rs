//! Views of an instance for observers outside of it ([`crate::object::view`]).

use crate::event::{AsyncEvent, ConnectionEventKind};
use crate::handle::{EpKey, index_of};
use crate::ia::instance::Ia;
use crate::object::ep::Ep;
use crate::object::ep::state::EpState;
use crate::object::view::{
    EpView, EvdView, Happened, InstanceView, LatencyView, LmrView, Notice, Wanted,
};
use crate::provider::{Provider, QueuePair};

impl<P: Provider> Ia<P> {
    /// Returns the number that identifies the instance to observers.
    #[doc(hidden)] // for the C facade
    #[must_use]
    pub const fn number(&self) -> u32 {
        self.id
    }

    /// Returns the requested view of the instance.
    #[doc(hidden)] // for the C facade
    #[must_use]
    pub fn view(&self, wanted: Wanted) -> InstanceView {
        let eps = self.eps.iter().take(wanted.objects);
        let evds = self.evds.iter().take(wanted.objects);
        let srqs = self.srqs.iter().take(wanted.objects);
        let lmrs = self.regions.iter().take(wanted.objects);
        let psps = self.psps.values().map(|psp| psp.conn_qual.0);
        let rsps = self.rsps.values().filter(|rsp| !rsp.is_spent());
        let listeners = psps.chain(rsps.map(|rsp| rsp.conn_qual.0));
        InstanceView {
            number: self.id,
            at: self.provider.now(),
            stats: self.stats(),
            eps: eps
                .map(|(key, ep)| EpView {
                    latencies: self.latencies_of(key),
                    ..ep_view(key, ep)
                })
                .collect(),
            evds: evds
                .map(|(key, evd)| EvdView {
                    number: index_of(key),
                    flags: evd.flags,
                    qlen: evd.qlen,
                    stats: evd.stats(),
                })
                .collect(),
            srqs: srqs
                .map(|(key, srq)| (index_of(key), srq.stats()))
                .collect(),
            lmrs: lmrs
                .map(|lmr| LmrView {
                    lmr_context: lmr.created.lmr_context,
                    address: lmr.created.address,
                    bytes: lmr.created.bytes,
                    privileges: lmr.privileges,
                })
                .collect(),
            listeners: listeners.take(wanted.objects).collect(),
            addresses: self.provider.addresses(),
            latencies: self.latencies(),
            recorded: (wanted.events != 0)
                .then(|| self.recorder_dump())
                .flatten()
                .map(|dump| dump.last(wanted.events)),
        }
    }

    /// Reports a connection event to the watchers.
    pub(in crate::ia) fn notice_connection(&self, key: EpKey, kind: ConnectionEventKind) {
        let Some(ep) = self.eps.get(key) else { return };
        let view = ep_view(key, ep);
        self.notice(Happened::Connection {
            ep: view.number,
            qp_number: view.qp_number,
            peer: view.peer,
            kind,
            cause: view.cause,
        });
    }

    /// Reports an asynchronous event to the watchers.
    pub(in crate::ia) fn notice_async(&self, event: AsyncEvent) {
        self.notice(Happened::Async(event));
    }

    fn notice(&self, what: Happened) {
        let notice = Notice {
            instance: self.id,
            at: self.provider.now(),
            what,
        };
        self.adapter.notice(&notice);
    }
}

fn ep_view<P: Provider>(key: EpKey, ep: &Ep<P>) -> EpView {
    EpView {
        number: index_of(key),
        qp_number: ep.qp.get().map(QueuePair::number),
        state: ep.hot.state,
        peer: ep.ends.map(|ends| ends.remote),
        port_qual: ep.ends.map_or(0, |ends| ends.remote_port),
        cause: ep.cause.filter(|_| ep.hot.state == EpState::Disconnected),
        transport: ep.transport,
        stats: ep.stats(),
        latencies: LatencyView::default(),
    }
}
