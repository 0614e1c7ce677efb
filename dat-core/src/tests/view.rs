//! Views of an instance for another thread, and events for watchers.

use std::net::IpAddr;
use std::sync::mpsc::channel;

use super::{Side, connect};
use crate::event::ConnectionEventKind as Kind;
use crate::mock::Net;
use crate::types::CloseFlags;
use crate::{AsyncEvent, EndCause, Happened, Wanted};

const ALL: Wanted = Wanted {
    objects: 100,
    events: 0,
};

#[test]
fn an_instance_answers_when_it_next_looks_after_itself_and_not_before() {
    let net = Net::default();
    let (mut a, mut b) = (Side::new(&net, |_| {}), Side::new(&net, |_| {}));
    connect(&mut a, &mut b);
    let (numbers, answers) = a.ia.opened().ask(ALL).expect("it is open");
    assert_eq!(numbers, [a.ia.number()]);
    assert!(answers.try_recv().is_err(), "its thread has made no call");
    a.ia.progress();
    let view = answers.try_recv().expect("an answer");
    assert!(answers.recv().is_err(), "one for each instance");
    assert_eq!(view.number, a.ia.number());
    assert_eq!(
        (view.eps.len(), view.evds.len(), view.lmrs.len()),
        (1, 4, 1)
    );
    let [ep] = view.eps.as_slice() else {
        panic!("{view:?}");
    };
    assert_eq!(ep.qp_number, Some(a.qpn()));
    assert_eq!(ep.peer, Some(b.address()));
    assert_eq!(view.lmrs[0].lmr_context, a.lmr.lmr_context);
    let none = a.ia.view(Wanted::default());
    assert_eq!(
        (none.eps.len(), none.stats.eps),
        (0, 1),
        "counted all the same"
    );
}

#[test]
fn a_closed_adapter_is_not_asked() {
    let net = Net::default();
    let a = Side::new(&net, |_| {});
    let opened = a.ia.opened();
    a.ia.close(CloseFlags::Abrupt).expect("closes");
    assert!(opened.ask(ALL).is_none());
    assert!(!opened.watch(Box::new(|_| {})));
}

#[test]
fn watchers_are_told_of_connections_with_the_peer_and_the_cause_and_of_errors() {
    let net = Net::default();
    let (mut a, mut b) = (Side::new(&net, |_| {}), Side::new(&net, |_| {}));
    let (to, heard) = channel();
    let watched = a.ia.opened().watch(Box::new(move |notice| {
        let _ = to.send(*notice);
    }));
    assert!(watched);
    connect(&mut a, &mut b);
    b.ia.ep_disconnect(b.ep, CloseFlags::Abrupt).expect("ends");
    super::progress_both(&mut a, &mut b);
    net.kill(0);
    a.ia.progress();
    let told: Vec<(Kind, Option<IpAddr>, Option<EndCause>)> = heard
        .try_iter()
        .filter_map(|notice| match notice.what {
            Happened::Connection {
                kind, peer, cause, ..
            } => Some((kind, peer, cause)),
            Happened::Async(event) => {
                assert_eq!(event, AsyncEvent::IaCatastrophic);
                None
            }
        })
        .collect();
    let peer = Some(b.address());
    let ended = Some(EndCause::PeerDisconnected);
    assert_eq!(
        told,
        [
            (Kind::Established, peer, None),
            (Kind::Disconnected, peer, ended)
        ]
    );
}

#[test]
fn a_watcher_may_ask_the_adapter_and_add_a_watcher() {
    let net = Net::default();
    let (mut a, mut b) = (Side::new(&net, |_| {}), Side::new(&net, |_| {}));
    let opened = a.ia.opened();
    let (to, heard) = channel();
    let watched = a.ia.opened().watch(Box::new(move |_| {
        let (counters, instances) = opened.counters().expect("it is open");
        let asked = opened.ask(ALL).expect("it is open").0.len();
        let added = opened.watch(Box::new(|_| {})) && opened.measure(true) && opened.measure(false);
        let _ = to.send((counters.established, instances, asked, added));
    }));
    assert!(watched);
    connect(&mut a, &mut b);
    assert_eq!(heard.try_iter().collect::<Vec<_>>(), [(1, 1, 1, true)]);
}
