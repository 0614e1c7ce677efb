//! EVDs for asynchronous events.

use super::*;

fn async_evd(side: &mut Side, qlen: u32) -> EvdHandle {
    side.ia.evd_create(qlen, EvdFlags::ASYNC).expect("an EVD")
}

/// Posts more receives than the endpoint's soft high watermark allows. Returns the event that this causes.
fn exceed_watermark(side: &mut Side) -> AsyncEvent {
    side.post_recv(0).expect("posts");
    side.ia
        .ep_set_watermark(side.ep, Some(0), None)
        .expect("a mark");
    AsyncEvent::EpSoftHighWatermark(side.ep)
}

const REFUSED: DatResult<()> = Err(DatError::handle(Subtype::HandleEvdAsync));

/// Clauses: IAO-4, IAO-10.
#[test]
fn the_own_asynchronous_evd_hears_of_the_adapter_and_of_objects_and_a_bound_one_what_it_is_told() {
    let net = Net::default();
    let mut a = Side::new(&net, |_| {});
    let (own, bound) = (a.ia.async_evd(), async_evd(&mut a, 4));
    for evd in [bound, bound, own] {
        a.ia.async_evd_bind(evd).expect("once is as good as twice");
    }
    let event = exceed_watermark(&mut a);
    a.ia.progress();
    assert_eq!(a.ia.next_async_event(), Some(event));
    assert_eq!(a.ia.next_async_event(), None);
    a.ia.async_evd_post(bound, event).expect("it is bound");
    net.kill(0);
    let dead = Event::Async(AsyncEvent::IaCatastrophic);
    assert_eq!(a.events(own), [dead]);
    assert_eq!(a.events(bound), [Event::Async(event)]);
}

#[test]
fn an_asynchronous_evd_is_kept_until_it_is_unbound() {
    let net = Net::default();
    let mut a = Side::new(&net, |_| {});
    let mine = async_evd(&mut a, 4);
    let event = AsyncEvent::EpBroken(a.ep);
    assert_eq!(a.ia.async_evd_post(mine, event), REFUSED, "not bound");
    a.ia.async_evd_bind(mine).expect("an asynchronous EVD");
    assert_eq!(
        a.ia.evd_free(mine),
        Err(DatError::state(Subtype::StateEvdInUse))
    );
    a.ia.async_evd_unbind(mine);
    a.ia.async_evd_unbind(a.ia.async_evd());
    assert_eq!(a.ia.async_evd_post(mine, event), REFUSED, "no more");
    a.ia.evd_free(mine).expect("nobody feeds it");
    for evd in [mine, a.connect] {
        assert_eq!(a.ia.async_evd_bind(evd), REFUSED, "{evd:?}");
    }
}

#[test]
fn an_asynchronous_evd_without_room_loses_events_and_nothing_is_told_of_it() {
    let net = Net::default();
    let mut a = Side::new(&net, |_| {});
    let mine = async_evd(&mut a, 1);
    a.ia.async_evd_bind(mine).expect("an asynchronous EVD");
    let event = AsyncEvent::EvdOverflow(mine);
    for _ in 0..2 {
        a.ia.async_evd_post(mine, event).expect("told or lost");
    }
    assert_eq!(a.events(mine), [Event::Async(event)]);
    assert_eq!(a.events(a.ia.async_evd()), []);
}
