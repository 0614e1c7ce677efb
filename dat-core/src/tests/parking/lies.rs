//! Snapshots that no instance has written: each is refused by name.

use super::everything::Everything;
use super::*;
use crate::cm::State;
use crate::handle::AnyHandle;
use crate::ia::snapshot::{AdapterTables, IaTables};
use crate::object::srq::state::Watermark;
use crate::snapshot::EpSnapshot;

type Tables = IaTables<Mock>;
/// A change, and a part of the error that names it.
type Lie = (&'static str, fn(&mut Tables, &mut AdapterTables));

/// Index of the endpoint without EVDs.
const WITHOUT_EVDS: usize = 2;

/// Returns the last endpoint in a state. The last one that is connected is kept alive.
fn ep(
    tables: &mut Tables,
    state: EpState,
) -> &mut EpSnapshot<crate::mock::MockQpSnapshot, crate::mock::MockCqSnapshot> {
    let found = tables.eps.objects.iter_mut();
    let found = found.filter(|ep| ep.state == state && ep.pz.is_some());
    found.last().expect("an endpoint in the state")
}

/// Checks that lies are refused before the handover is claimed, or after it.
#[track_caller]
fn assert_refused(lies: &[Lie], is_before: bool) {
    for (expected, lie) in lies {
        let Everything { a, b: _b, .. } = Everything::new();
        let (mut snapshot, handover) = parked(a.ia);
        lie(&mut snapshot.instances[0], &mut snapshot.adapter);
        let refused = match Ia::check_all(&snapshot, handover) {
            Err(refused) => refused,
            Ok(unclaimed) => unclaimed.go_on(&()).map(drop).expect_err(expected),
        };
        let text = refused.error.to_string();
        assert!(text.contains(expected), "{text}, and not {expected}");
        assert_eq!(refused.handover.is_some(), is_before, "{text}");
    }
}

#[track_caller]
fn assert_lies(lies: &[Lie]) {
    assert_refused(lies, true);
}

#[test]
fn names_of_other_objects_are_refused() {
    assert_lies(&[
        ("is of another IA", |t, _| {
            t.pzs.objects[0].pz = PzHandle::from_raw(1 << 32 | 1, t.number + 1);
        }),
        ("the PZs: PzKey(9v1) names no slot", |t, _| {
            t.pzs.free.push(PzHandle::from_raw(1 << 32 | 9, t.number));
        }),
        ("the CNOs: the slot of", |t, _| {
            t.cnos.free.push(t.cnos.objects[0].cno);
        }),
        ("does not exist", |t, _| {
            t.lmrs.objects[0].pz = t.pzs.free[0];
        }),
        ("does not exist", |t, _| {
            for queued in t.evds.objects.iter_mut().flat_map(|evd| &mut evd.events) {
                if let Some(srq) = queued.srq {
                    let (key, ia) = srq.to_raw();
                    queued.srq = Some(SrqHandle::from_raw(key + (2 << 32), ia));
                }
            }
        }),
        ("does not exist", |t, _| {
            let free = t.cnos.free[0];
            let evds = &mut t.evds.objects;
            evds.iter_mut()
                .for_each(|evd| evd.cno = evd.cno.and(Some(free)));
        }),
        ("does not exist", |t, _| {
            let ep = t.eps.objects.iter_mut().find(|ep| !ep.binds.is_empty());
            let gone = LmrHandle::from_raw(1 << 32 | 99, t.number);
            ep.expect("an endpoint that binds").binds[0].lmr = Some(gone);
        }),
        ("the contexts: Pz(", |t, _| {
            t.contexts.push((AnyHandle::Pz(t.pzs.free[0]), 1));
        }),
        ("it has two contexts", |t, _| t.contexts.push(t.contexts[0])),
        ("was made without the flag of this stream", |t, _| {
            let evd = t.async_evd;
            t.psps.objects[0].evd = evd;
        }),
        ("the asynchronous EVDs: ", |t, _| {
            t.async_evd = t.evds.objects[1].evd
        }),
        ("has other streams, or is there twice", |t, _| {
            t.async_evds.push(t.async_evd)
        }),
    ]);
}

#[test]
fn an_endpoint_must_fit_its_state_and_its_connection() {
    assert_lies(&[
        ("and queue pair", |t, _| {
            ep(t, EpState::Connected).queue_pair = None
        }),
        ("and discard queue: false", |t, _| {
            t.eps.objects[WITHOUT_EVDS].discard = None;
        }),
        ("None in state Connected", |t, _| {
            ep(t, EpState::Connected).conn = None
        }),
        ("in state Unconnected", |t, _| {
            ep(t, EpState::Connected).state = EpState::Unconnected;
        }),
        ("does not exist, or has another user", |t, _| {
            let first = t.eps.objects.iter().find(|ep| ep.conn.is_some());
            let conn = first.expect("a connected endpoint").conn;
            ep(t, EpState::Connected).conn = conn;
        }),
        ("is in RepSent", |t, _| {
            let conn = ep(t, EpState::CompletionPending).conn;
            ep(t, EpState::Connected).conn = conn;
        }),
        ("is in Established", |t, _| {
            let ep = ep(t, EpState::Connected);
            (ep.state, ep.next_check) = (EpState::CompletionPending, None);
        }),
        ("is in state Established, and has no user", |t, _| {
            let ep = ep(t, EpState::Connected);
            (ep.state, ep.conn, ep.next_check) = (EpState::Disconnected, None, None);
        }),
        ("is in state ReqReceived, and has no user", |t, _| {
            let cr = t.crs.objects.iter().position(|cr| cr.local_ep.is_none());
            let cr = t.crs.objects.remove(cr.expect("a request")).cr;
            let (key, ia) = cr.to_raw();
            t.crs.free.push(CrHandle::from_raw(key + (2 << 32), ia));
            t.contexts.clear();
        }),
        ("no path in state ActiveConnectionPending", |t, _| {
            ep(t, EpState::ActiveConnectionPending).outgoing = None;
        }),
        ("no request or RSP for it", |t, _| {
            t.rsps.objects.iter_mut().for_each(|rsp| rsp.ep = None)
        }),
        ("is not in state TentativeConnectionPending", |t, _| {
            let lent = t.crs.objects.iter_mut().find(|cr| cr.is_lent);
            lent.expect("a request").is_lent = false;
            let other = t.crs.objects.iter_mut().find(|cr| cr.local_ep.is_none());
            other.expect("a request").is_lent = true;
            let ep = t.eps.objects[0].ep;
            let other = t.crs.objects.iter_mut().find(|cr| cr.is_lent);
            other.expect("a request").local_ep = Some(ep);
        }),
        ("check at None in state DisconnectPending", |t, _| {
            ep(t, EpState::DisconnectPending).next_check = None;
        }),
        ("next_check is 18446744073709551615", |t, _| {
            ep(t, EpState::DisconnectPending).next_check = Some(u64::MAX);
        }),
        ("shared_bytes is ", |t, _| {
            ep(t, EpState::Connected).counts.shared_bytes = u64::MAX;
        }),
        ("private_data is 257", |t, _| {
            ep(t, EpState::Connected).private_data = vec![0; 257];
        }),
        ("max_recv_dtos is beyond", |t, _| {
            ep(t, EpState::Connected).attr.max_recv_dtos = 1 << 20;
        }),
    ]);
}

#[test]
fn numbers_of_queues_regions_and_requests_have_bounds() {
    assert_lies(&[
        ("the configuration: retry_count is 8", |t, _| {
            t.config.transport.retry_count = 8;
        }),
        ("the asynchronous EVD has no room", |t, _| {
            t.config.async_evd_min_qlen = 0
        }),
        ("flags 0x0", |t, _| {
            t.evds.objects[0].flags = EvdFlags::empty()
        }),
        ("events is ", |t, _| {
            let evd = t.evds.objects.iter_mut().find(|evd| !evd.events.is_empty());
            let evd = evd.expect("an EVD with events");
            let software = Event::Software(SoftwareEvent(1));
            evd.flags |= EvdFlags::SOFTWARE;
            evd.events = vec![
                crate::snapshot::QueuedSnapshot {
                    event: software,
                    srq: None
                };
                2_000
            ];
        }),
        ("notifications is ", |t, _| {
            t.evds.objects[0].notifications = u64::MAX
        }),
        ("its streams may not share it", |t, _| {
            for ep in &mut t.eps.objects {
                ep.attr.request_completion_flags = CompletionFlags::UNSIGNALLED;
            }
            let connected = |ep: &&mut EpSnapshot<_, _>| ep.pz.is_some();
            let ep = t.eps.objects.iter_mut().find(connected);
            ep.expect("an endpoint").attr.request_completion_flags = CompletionFlags::empty();
        }),
        ("low_watermark is 99", |t, _| {
            t.srqs.objects[0].low_watermark = 99
        }),
        ("low watermark 2 in ", |t, _| {
            t.srqs.objects[0].mode.watermark = Watermark::Off;
        }),
        ("privileges 0x", |t, _| {
            t.lmrs.objects[0].privileges = MemPrivFlags::from_bits_retain(1 << 30);
        }),
        ("or has other privileges", |t, _| {
            let posted = &mut t.rmrs.objects[0].posted;
            posted.as_mut().expect("bound").privileges = MemPrivFlags::from_bits_retain(1 << 30);
        }),
        ("void up to 9", |t, _| t.rmrs.objects[0].void_up_to = 9),
        ("of which 2 were posted", |t, _| {
            let ep = t.eps.objects.iter_mut().find(|ep| !ep.binds.is_empty());
            ep.expect("an endpoint that binds").binds[0].number = 3;
        }),
        ("tables: empty slots is 104857", |t, _| {
            t.cnos.free = vec![t.cnos.free[0]; (1 << 20) + 1];
        }),
        ("does not listen at", |t, _| {
            t.psps.objects[0].conn_qual.0 += 77
        }),
        ("2 of 3 have a service point", |t, _| {
            t.psps.objects.pop();
            t.psps.free.push(PspHandle::from_raw(3 << 32 | 2, t.number));
        }),
        ("mtu is 6", |t, _| t.crs.objects[0].peer.mtu = 6),
        ("is with Some(", |t, _| {
            let qpn = &mut t.crs.objects[0].peer.qpn;
            *qpn = Qpn::masked(qpn.get() + 1);
        }),
        ("is with Some(", |t, _| {
            t.crs.objects[0].peer.path.gid[9] ^= 1
        }),
        ("is with Some(", |t, _| t.crs.objects[0].remote_gid[9] ^= 1),
        ("is with Some(", |t, _| {
            t.crs.objects[0].peer.path.source_gid_index += 1;
        }),
        ("has asked for", |t, _| {
            let outgoing = &mut ep(t, EpState::ActiveConnectionPending).outgoing;
            outgoing.as_mut().expect("a path").2 -= 1;
        }),
        ("has asked for", |t, _| {
            let outgoing = &mut ep(t, EpState::ActiveConnectionPending).outgoing;
            let psn = &mut outgoing.as_mut().expect("a path").1;
            *psn = crate::provider::Psn::masked(psn.get() + 1);
        }),
        ("has asked for", |t, _| {
            let outgoing = &mut ep(t, EpState::ActiveConnectionPending).outgoing;
            outgoing.as_mut().expect("a path").0.gid[9] ^= 1;
        }),
        ("the counters: wakeups is ", |t, _| t.wakeups = u64::MAX),
        ("the counters: ended_completions is ", |t, _| {
            t.ended_completions = (1 << 56) + 1;
        }),
        ("has events that were not handled", |_, all| {
            let conn = all.cm.conns[0].id;
            all.cm.events.push(crate::cm::CmEvent::Established { conn });
        }),
        ("the clock shows", |_, all| all.cm.parked_at += 1 << 50),
        ("is in state ", |t, all| {
            let id = t.crs.objects[0].conn;
            let conn = all.cm.conns.iter_mut().find(|conn| conn.id == id);
            conn.expect("a connection").state = State::Closed;
            conn_without_deadline(all, id);
        }),
    ]);
}

/// Values that only the device contradicts: they are refused after the claim.
#[test]
fn values_that_are_not_those_of_the_device_are_refused() {
    let lies: &[Lie] = &[
        ("no address of ours has the index 7", |t, _| {
            let path = &mut ep(t, EpState::Connected).path;
            path.as_mut().expect("a path").source_gid_index = 7;
        }),
        ("its queue pair has none", |t, _| {
            ep(t, EpState::Connected).own_outstanding = true;
        }),
        ("unrung is ", |t, _| {
            ep(t, EpState::Connected).counts.unrung = 1 << 40
        }),
        ("is not MockQpSnapshot", |t, _| {
            ep(t, EpState::Connected).attr.max_recv_dtos += 1;
        }),
        ("binds is ", |t, _| {
            let ep = t.eps.objects.iter_mut().find(|ep| !ep.binds.is_empty());
            let ep = ep.expect("an endpoint that binds");
            ep.binds = vec![ep.binds[0]; 40];
            t.rmrs.objects[0].binds = 99;
        }),
        ("its queue pair is in ReadyToSend", |t, all| {
            let ep = ep(t, EpState::Connected);
            let conn = ep.conn.expect("a connection");
            (ep.state, ep.conn, ep.next_check) = (EpState::Disconnected, None, None);
            all.cm.conns.retain(|one| one.id != conn);
            let next = crate::cm::ConnId::from_raw(conn.to_raw() + (2 << 32));
            all.cm.free_conns.push(next);
        }),
        ("the limits: ", |_, all| all.limits.max_qps += 1),
        ("qlen is ", |t, _| {
            let evd = t.evds.objects.iter_mut().find(|evd| evd.queue.is_some());
            evd.expect("an EVD with a queue").qlen += 1_024;
        }),
        ("is not a part of that LMR", |t, _| {
            let posted = &mut t.rmrs.objects[0].posted;
            posted.as_mut().expect("bound").triplet.segment_length = u64::MAX;
        }),
        ("were not resumed", |t, _| {
            t.rmrs.objects.clear();
            t.eps.objects.iter_mut().for_each(|ep| ep.binds.clear());
        }),
    ];
    assert_refused(lies, false);
}

#[test]
fn the_length_of_an_evd_without_a_queue_reserves_no_memory() {
    let a = Side::new(&Net::default(), |_| {});
    let (mut snapshot, handover) = parked(a.ia);
    snapshot.instances[0].config.async_evd_min_qlen = u32::MAX;
    snapshot.instances[0].evds.objects[0].qlen = u32::MAX;
    let evd = snapshot.instances[0].async_evd;
    assert_eq!(snapshot.instances[0].evds.objects[0].evd, evd);
    let ia = Ia::resume(&snapshot, handover, &()).expect("resumes");
    assert_eq!(ia.evd_query(evd).expect("exists").qlen, u32::MAX);
    assert!(ia.events_reserved(evd) < 1_024);
}

fn conn_without_deadline(adapter: &mut AdapterTables, id: crate::cm::ConnId) {
    for conn in adapter.cm.conns.iter_mut().filter(|conn| conn.id == id) {
        conn.state_deadline = None;
    }
}
