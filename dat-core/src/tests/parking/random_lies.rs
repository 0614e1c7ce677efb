//! Snapshots in which fields were changed at random. Each is refused, or makes an instance that can be used and closed.
//!
//! A change walks down the snapshot: it picks a field of a structure, or an element of a list, until it has a number, a
//! handle or a state. The fields are named without `..`, so that a new field is among them.

use super::everything::Everything;
use super::*;
use crate::cm::{self, CmSnapshot, ConnId, ConnSnapshot, ListenId, ListenerSnapshot, State};
use crate::handle::{AnyHandle, HandleType};
use crate::mock::{MockCqSnapshot, MockQpSnapshot, MockRegionSnapshot, MockSrqSnapshot};
use crate::object::srq::state::{SrqMode, Watermark};
use crate::provider::{Limits, MadAddress, Path, Psn, QueuePairCounts};
use crate::snapshot::*;
use crate::stats::Counts;
use std::net::Ipv4Addr;
use strum::VariantArray;

/// Number of changed snapshots.
const SEEDS: u64 = 4_000;

/// Random numbers (splitmix64), and the number of the instance.
struct Random(u64, u32);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    /// Returns a number below `limit`.
    fn below(&mut self, limit: usize) -> usize {
        usize::try_from(self.next() % limit.max(1) as u64).expect("small")
    }

    fn one_in(&mut self, count: usize) -> bool {
        self.below(count) == 0
    }
}

/// A part of a snapshot that can be changed.
trait Harm {
    /// Changes the value.
    fn harm(&mut self, random: &mut Random);
    /// Returns a value for a field that has none, if there is one.
    fn draw(_random: &mut Random) -> Option<Self>
    where
        Self: Sized,
    {
        None
    }
}

macro_rules! harm_integers {
    ($($integer:ty),*) => {
        $(impl Harm for $integer {
            fn harm(&mut self, random: &mut Random) {
                #[allow(clippy::cast_possible_truncation, reason = "any bits")]
                let any = random.next() as $integer;
                *self = match random.below(7) {
                    0 => 0,
                    1 => <$integer>::MAX,
                    2 => self.wrapping_add(1),
                    3 => self.wrapping_sub(1),
                    4 => 1 << random.below(<$integer>::BITS as usize),
                    5 => any % 8,
                    _ => any,
                };
            }
            fn draw(random: &mut Random) -> Option<Self> {
                let mut drawn = 0;
                drawn.harm(random);
                Some(drawn)
            }
        })*
    };
}
harm_integers!(u8, u16, u32, u64, usize);

macro_rules! harm_handles {
    ($($handle:ident),*) => {
        $(impl Harm for $handle {
            fn harm(&mut self, random: &mut Random) {
                let (key, ia) = self.to_raw();
                let (key, ia) = match random.below(8) {
                    0 => (key, ia.wrapping_add(1)),
                    1 => (random.next(), ia),
                    2 => (key.wrapping_add(2 << 32), ia),
                    3 => (key.wrapping_sub(2 << 32), ia),
                    // Another object, or a free slot, of a small table.
                    _ => ((key >> 32 << 32) | random.next() % 20, ia),
                };
                *self = Self::from_raw(key, ia);
            }
            fn draw(random: &mut Random) -> Option<Self> {
                let generation = 1 + 2 * (random.next() % 2);
                Some(Self::from_raw(generation << 32 | random.next() % 20, random.1))
            }
        })*
    };
}
harm_handles!(
    PzHandle, LmrHandle, RmrHandle, EvdHandle, EpHandle, SrqHandle, PspHandle, CrHandle, CnoHandle,
    RspHandle
);

macro_rules! harm_ids {
    ($($id:ident),*) => {
        $(impl Harm for $id {
            fn harm(&mut self, random: &mut Random) {
                *self = Self::from_raw(match random.below(4) {
                    0 => random.next(),
                    1 => self.to_raw() ^ 2 << 32,
                    _ => (self.to_raw() >> 32 << 32) | random.next() % 20,
                });
            }
            fn draw(random: &mut Random) -> Option<Self> {
                Some(Self::from_raw(1 << 32 | random.next() % 20))
            }
        })*
    };
}
harm_ids!(ConnId, ListenId);

macro_rules! harm_flags {
    ($($flags:ident),*) => {
        $(impl Harm for $flags {
            fn harm(&mut self, random: &mut Random) {
                let mut bits = self.bits();
                bits ^= 1 << random.below(32);
                if random.one_in(4) {
                    bits.harm(random);
                }
                *self = Self::from_bits_retain(bits);
            }
        })*
    };
}
harm_flags!(CompletionFlags, EvdFlags, MemPrivFlags, PspFlags, Qos);

macro_rules! harm_states {
    ($($state:ident),*) => {
        $(impl Harm for $state {
            fn harm(&mut self, random: &mut Random) {
                *self = Self::VARIANTS[random.below(Self::VARIANTS.len())];
            }
        })*
    };
}
harm_states!(EpState, SrqState, Watermark, State);

impl Harm for bool {
    fn harm(&mut self, _random: &mut Random) {
        *self = !*self;
    }
}

impl<T: Harm> Harm for Option<T> {
    fn harm(&mut self, random: &mut Random) {
        match self {
            Some(value) if !random.one_in(3) => value.harm(random),
            Some(_) => *self = None,
            None => *self = T::draw(random),
        }
    }
}

impl<T: Harm + Clone> Harm for Vec<T> {
    fn harm(&mut self, random: &mut Random) {
        let at = random.below(self.len());
        match random.below(12) {
            0 if !self.is_empty() => {
                self.remove(at);
            }
            1 if !self.is_empty() => self.push(self[at].clone()),
            2 if !self.is_empty() => self.swap(at, 0),
            3 if !self.is_empty() => self.truncate(at),
            _ => match self.get_mut(at) {
                Some(one) => one.harm(random),
                None => self.extend(T::draw(random)),
            },
        }
    }
}

macro_rules! harm_tuples {
    ($(($($part:ident),*)),*) => {
        $(impl<$($part: Harm),*> Harm for ($($part,)*) {
            #[expect(non_snake_case, reason = "named as their types")]
            fn harm(&mut self, random: &mut Random) {
                let ($($part,)*) = self;
                pick(&mut [$($part),*], random);
            }
        })*
    };
}
harm_tuples!((A, B), (A, B, C));

/// Changes one of some parts.
fn pick(parts: &mut [&mut dyn Harm], random: &mut Random) {
    let at = random.below(parts.len());
    parts[at].harm(random);
}

macro_rules! harm_fields {
    ($($structure:ident$(<$($kind:ident),*>)? { $($field:ident),* $(,)? })*) => {
        $(impl$(<$($kind: Harm + Clone),*>)? Harm for $structure$(<$($kind),*>)? {
            fn harm(&mut self, random: &mut Random) {
                let Self { $($field),* } = self;
                pick(&mut [$($field),*], random);
            }
        })*
    };
}
harm_fields! {
    TableSnapshot<T, H> { objects, free }
    PzSnapshot<D> { pz, domain }
    LmrSnapshot<R> { lmr, pz, privileges, kind, region }
    CnoSnapshot { cno, triggered, released }
    EvdSnapshot<C> {
        evd, qlen, flags, is_waitable, is_enabled, cno, events, notifications, queued, overflows, wakeups, queue,
    }
    QueuedSnapshot { event, srq }
    SrqSnapshot<S> { srq, pz, max_recv_dtos, max_recv_iov, low_watermark, mode, full, queue }
    RmrSnapshot<W> { rmr, pz, posted, binds, bound_on, window_lmr, void_up_to, window }
    BindingSnapshot { lmr, triplet, privileges, rmr_context }
    EpSnapshot<Q, C> {
        ep, name, pz, recv_evd, request_evd, connect_evd, srq, attr, transport, state, conn, ends, local_port_qual,
        outgoing, path, cause, private_data, own_outstanding, idle_since, next_check, has_received, last_buffer, binds,
        marks, counts, queue_pair, discard,
    }
    PendingBindSnapshot { rmr, number, lmr, suppress }
    PspSnapshot { psp, listen, conn_qual, evd, flags, is_shared }
    RspSnapshot { rsp, listen, conn_qual, evd, ep }
    CrSnapshot {
        cr, conn, peer, conn_qual, local, remote_gid, remote_port, private_data, reads_in, local_ep, is_lent,
    }
    LmrTriplet { lmr_context, virtual_address, segment_length }
    SrqMode { state, watermark }
    EpAttr {
        max_message_size, max_rdma_size, qos, recv_completion_flags, request_completion_flags, max_recv_dtos,
        max_request_dtos, max_recv_iov, max_request_iov, max_rdma_read_in, max_rdma_read_out, srq_soft_hw,
        max_rdma_read_iov, max_rdma_write_iov,
    }
    EpTransport {
        source_address, dscp, priority, flow_label, hop_limit, ack_timeout, retry_count, rnr_retry, min_rnr_timer,
        keep_alive,
    }
    Path { source_gid_index, gid, hop_limit, traffic_class, flow_label, priority }
    Peer { path, qpn, psn, mtu, reads_out, retry_count, rnr_retry, ack_timeout }
    Counts { before, requests_failed, recvs_failed, shared_bytes, unrung, own, full }
    QueuePairCounts { requests, request_bytes, recvs, received_bytes }
    EpStats {
        requests, request_bytes, doorbells, requests_failed, recvs, received_bytes, recvs_failed, full,
        requests_outstanding, recvs_outstanding,
    }
    IaConfig {
        async_evd_min_qlen, strict_evd_sharing, local_write_implies_read, network_events, recorder, transport,
    }
    TransportConfig { retry_count, rnr_retry, ack_timeout, min_rnr_timer }
    MockCqSnapshot { number, taken }
    MockSrqSnapshot { number, posted }
    MockQpSnapshot { qpn, requests_outstanding, recvs_outstanding }
    MockRegionSnapshot { key, memory }
    ListenerSnapshot { id, service_id }
    MadAddress { path, qpn }
}

type Watermarks = crate::ep::Watermarks;
type Ends = crate::ep::Ends;
harm_fields! {
    Watermarks { soft, hard }
    Ends { local, remote, remote_port }
}

macro_rules! harm_wrapped {
    ($($number:ident),*) => {
        $(impl Harm for $number {
            fn harm(&mut self, random: &mut Random) {
                self.0.harm(random);
            }
        })*
    };
}
harm_wrapped!(ConnQual);

macro_rules! harm_masked {
    ($($number:ident),*) => {
        $(impl Harm for $number {
            fn harm(&mut self, random: &mut Random) {
                let mut number = self.get();
                number.harm(random);
                *self = Self::masked(number);
            }
            fn draw(random: &mut Random) -> Option<Self> {
                Some(Self::masked(u32::draw(random)?))
            }
        })*
    };
}
harm_masked!(Qpn, Psn);

impl Harm for [u8; 16] {
    fn harm(&mut self, random: &mut Random) {
        self[random.below(16)].harm(random);
    }
}

impl Harm for IpAddr {
    fn harm(&mut self, random: &mut Random) {
        *self = Ipv4Addr::from(u32::draw(random).unwrap_or(0)).into();
    }
}

impl Harm for core::time::Duration {
    fn harm(&mut self, random: &mut Random) {
        *self = Self::from_nanos(u64::draw(random).unwrap_or(0));
    }
}

impl Harm for Failures {
    fn harm(&mut self, random: &mut Random) {
        let mut numbers = self.to_raw();
        numbers[random.below(12)].harm(random);
        *self = Self::from_raw(numbers);
    }
}

impl Harm for EndCause {
    fn harm(&mut self, random: &mut Random) {
        *self = Self::QueuePair(u8::draw(random).unwrap_or(0));
    }
    fn draw(_random: &mut Random) -> Option<Self> {
        Some(Self::TimedOut)
    }
}

impl Harm for MemType {
    fn harm(&mut self, random: &mut Random) {
        *self = match LmrHandle::draw(random) {
            Some(lmr) if random.one_in(2) => Self::Lmr(lmr),
            _ => Self::SharedVirtual([7; 40]),
        };
    }
}

impl Harm for Event {
    fn harm(&mut self, random: &mut Random) {
        match self {
            Self::Dto(done) if !random.one_in(4) => {
                let DtoCompletion {
                    ep,
                    cookie,
                    transferred_length,
                    status,
                    request,
                    detail: _,
                } = done;
                *status = DtoStatus::ErrFlushed;
                pick(
                    &mut [ep, &mut cookie.0, transferred_length, request],
                    random,
                );
            }
            Self::ConnectionRequest(request) if !random.one_in(4) => {
                let ConnectionRequest { psp, conn_qual, cr } = request;
                pick(&mut [psp, conn_qual, cr], random);
            }
            Self::Connection(change) if !random.one_in(4) => {
                pick(&mut [&mut change.ep, &mut change.private_data_size], random);
            }
            Self::Dto(_)
            | Self::RmrBind(_)
            | Self::ConnectionRequest(_)
            | Self::Connection(_)
            | Self::Async(_)
            | Self::Software(_) => *self = Self::Async(AsyncEvent::IaCatastrophic),
        }
    }
}

impl Harm for AnyHandle {
    fn harm(&mut self, random: &mut Random) {
        macro_rules! each {
            ($($kind:ident),*) => {
                match self {
                    Self::Ia => *self = Self::Cno(CnoHandle::from_raw(random.next() % 9, random.1)),
                    $(Self::$kind(handle) => handle.harm(random),)*
                }
            };
        }
        each!(Cr, Ep, Evd, Lmr, Psp, Pz, Rmr, Rsp, Cno, Srq);
        assert_ne!(self.handle_type(), HandleType::Ia);
    }
}

/// Other tests change all fields of the connection manager's snapshot. Here, only what the instance relies on.
impl Harm for ConnSnapshot {
    fn harm(&mut self, random: &mut Random) {
        let parts: &mut [&mut dyn Harm] = &mut [
            &mut self.id,
            &mut self.state,
            &mut self.peer,
            &mut self.local_qpn,
            &mut self.owner,
            &mut self.silent,
            &mut self.released,
            &mut self.state_deadline,
        ];
        pick(parts, random);
    }
}

impl Harm for CmSnapshot {
    fn harm(&mut self, random: &mut Random) {
        if random.one_in(8) {
            let conn = self.conns[random.below(self.conns.len())].id;
            self.events.push(cm::CmEvent::Established { conn });
            return;
        }
        let parts: &mut [&mut dyn Harm] = &mut [
            &mut self.parked_at,
            &mut self.conns,
            &mut self.free_conns,
            &mut self.listeners,
            &mut self.free_listeners,
            &mut self.accepted,
        ];
        pick(parts, random);
    }
}

impl Harm for Limits {
    fn harm(&mut self, random: &mut Random) {
        pick(
            &mut [&mut self.max_qps, &mut self.mtu, &mut self.atomics],
            random,
        );
    }
}

impl Harm for IaTables<Mock> {
    fn harm(&mut self, random: &mut Random) {
        let Self {
            number,
            config,
            async_evd,
            async_evds,
            contexts,
            wakeups,
            ended,
            ended_completions,
            pzs,
            lmrs,
            cnos,
            evds,
            srqs,
            rmrs,
            eps,
            psps,
            rsps,
            crs,
        } = self;
        if random.one_in(6) {
            let alone: &mut [&mut dyn Harm] = &mut [
                number,
                config,
                async_evd,
                async_evds,
                contexts,
                wakeups,
                ended,
                ended_completions,
            ];
            return pick(alone, random);
        }
        let tables: &mut [&mut dyn Harm] =
            &mut [pzs, lmrs, cnos, evds, srqs, rmrs, psps, rsps, crs, eps];
        // Endpoints have the most fields.
        let at = random.below(tables.len() + 5).min(tables.len() - 1);
        tables[at].harm(random);
    }
}

impl Harm for IaSnapshot<Mock> {
    fn harm(&mut self, random: &mut Random) {
        let Self {
            // The nodes of the mock.
            provider: _,
            adapter: AdapterTables { limits, cm },
            instances,
        } = self;
        match random.below(20) {
            0 => limits.harm(random),
            1 | 2 => cm.harm(random),
            3 => instances.harm(random),
            _ => {
                let at = random.below(instances.len());
                let one = instances.get_mut(at);
                one.into_iter().for_each(|one| one.harm(random));
            }
        }
    }
}

/// Uses an instance as a program would that knows all its objects, and closes it.
fn use_up(mut ia: Ia<Mock>, tables: &IaTables<Mock>, net: &Net) {
    ia.progress();
    net.release();
    net.pass(2_000_000_000);
    let _counters = ia.stats().named();
    for evd in &tables.evds.objects {
        for _ in 0..40 {
            if !matches!(ia.evd_dequeue(evd.evd), Ok(Some(_))) {
                break;
            }
        }
        let _param = ia.evd_query(evd.evd);
    }
    for lmr in &tables.lmrs.objects {
        if let Ok(param) = ia.lmr_query(lmr.lmr) {
            let iov = [LmrTriplet {
                lmr_context: param.lmr_context,
                virtual_address: param.registered_address,
                segment_length: 1,
            }];
            for ep in &tables.eps.objects {
                let _sent = ia.ep_post_send(ep.ep, &iov, DtoCookie(1), NO_FLAGS);
                let _posted = ia.ep_post_recv(ep.ep, &iov, DtoCookie(2), NO_FLAGS);
            }
            for srq in &tables.srqs.objects {
                let _posted = ia.srq_post_recv(srq.srq, &iov, DtoCookie(3));
            }
        }
    }
    for cr in &tables.crs.objects {
        let _rejected = ia.cr_reject(cr.cr);
    }
    for ep in &tables.eps.objects {
        let _counters = ia.ep_stats(ep.ep);
        let _param = ia.ep_query(ep.ep);
        let _ended = ia.ep_disconnect(ep.ep, CloseFlags::Abrupt);
        let _reset = ia.ep_reset(ep.ep);
    }
    for cno in &tables.cnos.objects {
        let _woken = ia.cno_wait(cno.cno, Timeout::ZERO);
    }
    for rmr in &tables.rmrs.objects {
        let _freed = ia.rmr_free(rmr.rmr);
    }
    for lmr in &tables.lmrs.objects {
        let _freed = ia.lmr_free(lmr.lmr);
    }
    net.pass(60_000_000_000);
    ia.progress();
    ia.close(CloseFlags::Abrupt).expect("closed");
}

#[test]
fn a_snapshot_with_random_changes_is_refused_or_harmless() {
    let (mut refused, mut taken) = (0_u32, 0_u32);
    for seed in 0..SEEDS {
        let Everything { net, a, b: _b, .. } = Everything::new();
        // A further instance, whose tables may be changed, too.
        let second =
            a.ia.opened()
                .instance(net.instance_of(0), IaConfig::default());
        let ias = vec![a.ia, second.expect("opens")];
        let (snapshot, handover) = Ia::park_all(ias).expect("parks");
        let mut random = Random(seed, snapshot.instances[0].number);
        let mut changed = snapshot.clone();
        for _ in 0..=random.below(2) {
            changed.harm(&mut random);
        }
        match Ia::resume_all(&changed, handover, &()) {
            Ok(ias) => {
                taken += 1;
                for (ia, tables) in ias.into_iter().zip(&snapshot.instances) {
                    use_up(ia, tables, &net);
                }
            }
            Err(_) => refused += 1,
        }
    }
    assert!(refused > 1_000 && taken > 100, "{refused} and {taken}");
}
