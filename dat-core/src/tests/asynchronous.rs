//! Which EVDs asynchronous events go to, and the end of a part of an IA.

use super::*;
use std::sync::{Arc, Mutex};

fn async_evd(side: &mut Side, qlen: u32) -> EvdHandle {
    side.ia.evd_create(qlen, EvdFlags::ASYNC).expect("an EVD")
}

/// Has the endpoint hold more buffers than its mark allows; the event of that.
fn exceed_mark(side: &mut Side) -> Event {
    side.post_recv(0).expect("posts");
    side.ia
        .ep_set_watermark(side.ep, Some(0), None)
        .expect("a mark");
    Event::Async(AsyncEvent::EpSoftHighWatermark(side.ep))
}

/// Clauses: IAO-4, IAO-10.
#[test]
fn every_asynchronous_evd_hears_of_the_adapter() {
    let net = Net::default();
    let mut a = Side::new(&net, |_| {});
    let own = a.ia.async_evd();
    let (one, other) = (async_evd(&mut a, 4), async_evd(&mut a, 4));
    for evd in [one, other, one, own] {
        a.ia.async_evd_bind(evd).expect("once is as good as twice");
    }
    net.kill(0);
    for evd in [own, one, other] {
        let expected = [Event::Async(AsyncEvent::IaCatastrophic)];
        assert_eq!(a.events(evd), expected, "{evd:?}");
    }
}

#[test]
fn an_event_of_an_object_goes_to_the_evd_it_was_given_and_to_no_other() {
    let net = Net::default();
    let mut a = Side::new(&net, |_| {});
    let (own, mine) = (a.ia.async_evd(), async_evd(&mut a, 4));
    let refused = Err(DatError::handle(Subtype::HandleEvdAsync));
    assert_eq!(a.ia.async_evd_of(a.ep, mine), refused, "not bound");
    a.ia.async_evd_bind(mine).expect("an asynchronous EVD");
    let event = exceed_mark(&mut a);
    assert_eq!((a.events(own), a.events(mine)), (vec![event], vec![event]));
    a.ia.async_evd_of(a.ep, mine).expect("bound");
    let event = exceed_mark(&mut a);
    assert_eq!((a.events(own), a.events(mine)), (vec![], vec![event]));
}

#[test]
fn an_asynchronous_evd_is_kept_until_it_is_unbound() {
    let net = Net::default();
    let mut a = Side::new(&net, |_| {});
    let mine = async_evd(&mut a, 4);
    a.ia.async_evd_bind(mine).expect("an asynchronous EVD");
    a.ia.async_evd_of(a.ep, mine).expect("bound");
    assert_eq!(
        a.ia.evd_free(mine),
        Err(DatError::state(Subtype::StateEvdInUse))
    );
    a.ia.async_evd_unbind(mine);
    a.ia.async_evd_unbind(a.ia.async_evd());
    a.ia.evd_free(mine).expect("nobody feeds it");
    let event = exceed_mark(&mut a);
    assert_eq!(a.events(a.ia.async_evd()), [event], "it goes to those left");
    let refused = Err(DatError::handle(Subtype::HandleEvdAsync));
    for evd in [mine, a.connect] {
        assert_eq!(a.ia.async_evd_bind(evd), refused, "{evd:?}");
    }
}

#[test]
fn an_asynchronous_evd_without_room_loses_events_and_nothing_is_told_of_it() {
    let net = Net::default();
    let mut a = Side::new(&net, |_| {});
    let mine = async_evd(&mut a, 1);
    a.ia.async_evd_bind(mine).expect("an asynchronous EVD");
    a.ia.async_evd_of(a.ep, mine).expect("bound");
    a.ia.async_evd_of(mine, mine).expect("bound");
    let event = exceed_mark(&mut a);
    exceed_mark(&mut a);
    assert_eq!(
        (a.events(a.ia.async_evd()), a.events(mine)),
        (vec![], vec![event])
    );
}

/// Clauses: IAC-4, IAC-6.
#[test]
fn a_part_of_an_ia_ends_and_the_other_goes_on() {
    let (net, mut a, mut b) = connected();
    let agent_told = Arc::new(Mutex::new(Vec::new()));
    let told = Arc::clone(&agent_told);
    let agent = Agent::new(move |evd| told.lock().expect("nobody panics").push(evd));
    let cno = a.ia.cno_create(Some(agent)).expect("a CNO");
    let pz = a.ia.pz_create().expect("a PZ");
    let flags = EvdFlags::DTO | EvdFlags::CONNECTION | EvdFlags::CR;
    let evd =
        a.ia.evd_create_with_cno(8, Some(cno), flags)
            .expect("an EVD");
    let ep =
        a.ia.ep_create(Some(pz), Some(evd), Some(evd), Some(evd), None);
    let ep = ep.expect("an EP");
    let rsp = a.ia.rsp_create(7, Some(ep), evd).expect("an RSP");
    let psp = a.ia.psp_create(8, evd, PspFlags::PROVIDER).expect("a PSP");
    let memory = (MEMORY.0 + 0x10_0000, 0x1000);
    let lmr =
        a.ia.lmr_create(memory, pz, MemPrivFlags::all())
            .expect("an LMR");
    let own = a.ia.async_evd();
    a.post_recv(5).expect("posts");

    let part: [AnyHandle; 8] = [
        evd.into(),
        pz.into(),
        ep.into(),
        rsp.into(),
        psp.into(),
        lmr.lmr.into(),
        cno.into(),
        own.into(),
    ];
    a.ia.end(part);
    assert_eq!(*agent_told.lock().expect("nobody panics"), [None]);
    for object in part {
        assert!(!a.ia.is_in_use(object), "{object:?}");
        a.ia.get_handle_type(object).expect_err("it has gone");
    }
    assert_eq!(a.events(a.ia.async_evd()), [], "another one");
    a.ia.psp_create(8, a.connect, PspFlags::CONSUMER)
        .expect("nobody listens there");
    // The connection of the other part.
    settle(&mut a, &mut b);
    b.send(6, NO_FLAGS).expect("posts");
    settle(&mut a, &mut b);
    assert_eq!(a.completions(a.recv), [(5, DtoStatus::Success)]);
    a.ia.close(CloseFlags::Abrupt).expect("closes");
    assert_eq!(net.leaked(0), [""; 0]);
}

#[test]
fn what_others_refer_to_does_not_end() {
    let net = Net::default();
    let mut a = Side::new(&net, |_| {});
    let cno = a.ia.cno_create(None).expect("a CNO");
    a.ia.evd_modify_cno(a.connect, Some(cno))
        .expect("both exist");
    a.ia.end([a.pz.into(), a.recv.into(), cno.into(), AnyHandle::Ia]);
    a.ia.pz_query(a.pz).expect("the endpoint is in it");
    a.ia.evd_query(a.recv).expect("the endpoint feeds it");
    assert_eq!(a.ia.evd_query(a.connect).expect("not named").cno, None);
}
