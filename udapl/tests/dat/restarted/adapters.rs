//! Two adapters of one program, which are handed over together. They are the ends of one connection.

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::thread;

use driver::{Clock, Instant, RealClock};
use udapl::fabric::Fabric;
use udapl::handover::{self, NotAdopted, Parked, ResumeFailure, Resumed, ResumedAdapters};
use udapl::{CloseFlags, Ia, ia_close};

use super::PATIENCE;
use super::card::Card;
use super::end::{End, Waited, message};
use crate::support::{A, B};

fn deadline() -> Instant {
    RealClock::new().now() + PATIENCE
}

/// Returns the instances of two adapters, and the words of their ends.
fn taken(ends: [End; 2]) -> (Vec<Vec<Ia>>, [Vec<u8>; 2]) {
    let [a, b] = ends.map(|end| end.taken(&[]));
    (vec![vec![a.0], vec![b.0]], [a.1, b.1])
}

fn again(adapters: Vec<Vec<Ia>>, words: [Vec<u8>; 2]) -> [End; 2] {
    let mut ias = adapters.into_iter().flatten();
    words.map(|words| {
        let ia = ias.next().expect("an instance of each adapter");
        let (end, []) = End::of(Resumed { ia, words });
        end
    })
}

/// Sends a message in each direction, and parks both adapters with it under way.
fn parked(mut ends: [End; 2]) -> (Parked, [Vec<u8>; 2]) {
    for end in &mut ends {
        let number = end.connections[0].sent;
        end.send(0, &message(0, number));
    }
    let (adapters, words) = taken(ends);
    let parked = handover::park_adapters(adapters, b"both");
    (parked.expect("they can be parked"), words)
}

/// Receives the message of each direction.
fn arrive(ends: &mut [End; 2]) {
    for end in ends {
        let Waited::Arrived(arrived) = end.next_message(PATIENCE) else {
            panic!("no message");
        };
        assert_eq!(arrived.bytes, message(0, arrived.number));
        end.receive(0);
    }
}

/// The second adapter cannot be parked. The first one, which was, goes on too.
fn refused_by_the_second(ends: [End; 2]) -> [End; 2] {
    let (adapters, words) = taken(ends);
    let memory = udapl::alloc(&adapters[1][0], 64).expect("memory");
    let refused = handover::park_adapters(adapters, b"").expect_err("memory is in use");
    let (adapters, error) = refused.into_adapters();
    let why = error.to_string();
    assert!(why.contains("memory are in use"), "{why}");
    drop(memory);
    assert_eq!(adapters.iter().map(Vec::len).collect::<Vec<_>>(), [1, 1]);
    again(adapters, words)
}

/// A call for one adapter refuses both, and a descriptor without the number of an adapter is refused. The descriptors
/// are all given back.
fn refused_without_an_effect(parked: Parked) -> Parked {
    let Parked {
        snapshot,
        descriptors,
    } = parked;
    let count = descriptors.len();
    let given = Parked {
        snapshot: snapshot.clone(),
        descriptors,
    };
    let refused = handover::resume_all(given).expect_err("there are two");
    assert!(
        matches!(refused.error, ResumeFailure::Adapters { count: 2 }),
        "{refused}"
    );
    let mut descriptors = refused.descriptors.expect("nothing was changed");
    let name = std::mem::replace(&mut descriptors[0].name, "2.lock".to_owned());
    let given = Parked {
        snapshot: snapshot.clone(),
        descriptors,
    };
    let refused = handover::resume_adapters(given).expect_err("there is no third adapter");
    let why = refused.to_string();
    assert!(why.contains("\"2.lock\" is of none"), "{why}");
    let mut descriptors = refused.descriptors.expect("nothing was changed");
    assert_eq!(descriptors.len(), count);
    descriptors[0].name = name;
    // The second adapter's own check, after the first one's has succeeded.
    let of_second = descriptors.iter().position(|it| it.name == "1.lock");
    let lock = descriptors.remove(of_second.expect("a lock"));
    let given = Parked {
        snapshot: snapshot.clone(),
        descriptors,
    };
    let refused = handover::resume_adapters(given).expect_err("a descriptor is missing");
    let why = refused.to_string();
    assert!(why.contains("lock"), "{why}");
    let mut descriptors = refused.descriptors.expect("nothing was changed");
    descriptors.push(lock);
    assert_eq!(descriptors.len(), count);
    Parked {
        snapshot,
        descriptors,
    }
}

/// Hands both over by a socket, of which the other end is a thread.
fn handed_over(ends: [End; 2]) -> [End; 2] {
    let (ours, theirs) = UnixStream::pair().expect("sockets");
    let next = thread::spawn(move || {
        let offer = handover::receive(OwnedFd::from(theirs), deadline()).expect("an offer");
        let refused = handover::adopt_all(offer).expect_err("there are two");
        let NotAdopted::Refused { offer, .. } = refused else {
            panic!("not before the claim: {refused}");
        };
        let adopted = handover::adopt_adapters_if(*offer, |words| Ok(words.to_vec()));
        let (ResumedAdapters { adapters, words }, seen) = adopted.expect("they go on");
        assert_eq!((&words[..], &seen[..]), (&b"both"[..], &b"both"[..]));
        adapters
    });
    let receiver = handover::await_receiver(OwnedFd::from(ours), deadline()).expect("ready");
    let (parked, words) = parked(ends);
    let Parked {
        snapshot,
        descriptors,
    } = parked;
    let sent = receiver.send(&snapshot, descriptors, deadline());
    assert!(sent.expect("given").unacknowledged.is_none());
    again(next.join().expect("no panic"), words)
}

/// Opens both adapters, and connects them.
fn connected(card: &Card) -> [End; 2] {
    let [mut a, mut b] = [(0, A), (1, B)].map(|(at, side)| End::open(&card.adapters[at], side, 1));
    b.listen();
    thread::scope(|scope| {
        scope.spawn(|| b.accept(|| {}));
        a.connect(Fabric::ipv4(B));
    });
    [a, b]
}

/// The second device refuses its first command, after the first one has gone on. The first adapter is closed.
#[test]
fn if_the_second_adapter_does_not_go_on_the_first_one_is_closed() {
    if crate::support::functions::named().is_some() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let card = Card::new(folder.path());
    let ends = connected(&card);
    let before = card.resets();
    let (both, _words) = parked(ends);
    card.refuse_commands(1);
    let refused = handover::resume_adapters(both).expect_err("the second refuses");
    assert!(refused.descriptors.is_none(), "{refused}");
    let ResumeFailure::OfAdapter { name, .. } = &refused.error else {
        panic!("of which adapter? {refused}");
    };
    assert!(card.adapters[1].contains(name.as_str()), "{name}");
    // Both clients are gone, so the servers end. The first function was reset.
    assert!(card.resets() > before);
    card.end();
}

#[test]
fn two_adapters_are_handed_over_together_and_go_on_together() {
    if crate::support::functions::named().is_some() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let card = Card::new(folder.path());
    let [a, b] = connected(&card);
    let before = card.resets();
    let mut ends = refused_by_the_second([a, b]);
    for _ in 0..3 {
        let (both, words) = parked(ends);
        let both = refused_without_an_effect(both);
        let resumed = handover::resume_adapters(both).expect("resumed");
        assert_eq!(resumed.words, b"both");
        ends = again(resumed.adapters, words);
        arrive(&mut ends);
        ends = handed_over(ends);
        arrive(&mut ends);
    }
    assert_eq!(card.resets(), before);
    for end in ends {
        ia_close(end.ia, CloseFlags::Abrupt).expect("closed");
    }
    card.end();
}
