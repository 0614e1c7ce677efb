//! Conversations between two ends that keep to the protocol.

use super::*;

/// Sends a handover from one thread and answers it in another. Returns both results.
fn hand_over<T: Send>(
    fds: Vec<NamedFd>,
    answer: impl FnOnce(Offer) -> T + Send,
) -> (Result<Sent, NotGiven>, T) {
    let (ours, theirs) = pair();
    std::thread::scope(|scope| {
        let receiver = scope.spawn(move || answer(receive(theirs, far()).expect("an offer")));
        let waiting = await_receiver(ours, far()).expect("ready");
        let sent = waiting.send(SNAPSHOT, fds, far());
        (sent, receiver.join().expect("a receiver"))
    })
}

/// 254 descriptors need two messages (unix(7): at most 253 in one).
#[test]
fn all_descriptors_arrive_with_their_names() {
    let _alone = many_descriptors();
    for count in [0, 1, 252, 253, 254, 300] {
        let (sent, offer) = hand_over(descriptors(count), |offer| {
            offer.claim.take().expect("claimed").end(Ok(()));
            (offer.snapshot, offer.descriptors)
        });
        let sent = sent.expect("sent");
        assert!(sent.unacknowledged.is_none(), "{sent:?}");
        assert_eq!(offer.0, SNAPSHOT);
        assert_are_all(&offer.1, count);
    }
}

#[test]
fn a_snapshot_of_several_megabytes_arrives() {
    let snapshot: Vec<u8> = (0..5_000_000_u32).map(|at| (at % 251) as u8).collect();
    let (ours, theirs) = pair();
    let received = std::thread::scope(|scope| {
        let receiver = scope.spawn(move || {
            let offer = receive(theirs, far()).expect("an offer");
            offer.claim.take().expect("claimed").end(Ok(()));
            offer.snapshot
        });
        let waiting = await_receiver(ours, far()).expect("ready");
        let sent = waiting.send(&snapshot, Vec::new(), far()).expect("sent");
        assert!(sent.unacknowledged.is_none());
        receiver.join().expect("a receiver")
    });
    assert!(received == snapshot);
}

#[test]
fn a_sender_has_its_descriptors_and_the_reason_after_a_refusal() {
    let reason = "version 7\u{1b}[31m\nof \"nvmeof\" is not known";
    let (sent, ()) = hand_over(descriptors(3), |offer| offer.claim.refuse(reason));
    let refused = sent.expect_err("refused");
    assert_are_all(&refused.descriptors, 3);
    assert_eq!(
        refused.to_string(),
        "the other process refuses: version 7\\u{1b}[31m\\nof \"nvmeof\" is not known"
    );
}

/// The functions belong to the receiver from its claim on, so the sender does not get its descriptors back.
#[test]
fn a_sender_has_the_reason_of_a_failure_after_the_claim() {
    let (sent, ()) = hand_over(descriptors(3), |offer| {
        let claimed = offer.claim.take().expect("claimed");
        claimed.end(Err("counter set 7 is gone"));
    });
    let error = sent.expect("sent").unacknowledged.expect("a failure");
    assert!(matches!(error, HandoverError::Failed { .. }), "{error}");
    assert_eq!(
        error.to_string(),
        "the other process has claimed the handover and failed: counter set 7 is gone"
    );
    let (sent, ()) = hand_over(descriptors(3), |offer| {
        drop(offer.claim.take().expect("claimed"));
    });
    let error = sent.expect("sent").unacknowledged.expect("no report");
    assert!(matches!(error, HandoverError::HungUp { .. }), "{error}");
}

#[test]
fn a_reason_is_cut_between_two_characters() {
    // The limit of 1024 bytes is inside a character of two bytes.
    let reason = format!("x{}", "\u{e9}".repeat(1000));
    let (sent, ()) = hand_over(descriptors(1), move |offer| offer.claim.refuse(&reason));
    let Err(NotGiven {
        error: HandoverError::Refused { reason },
        ..
    }) = sent
    else {
        panic!("{sent:?}");
    };
    assert_eq!(reason, format!("x{}", "\u{e9}".repeat(511)));
}

#[test]
fn a_handover_is_not_adopted_after_its_sender_has_given_up() {
    let (ours, theirs) = pair();
    let peer = Peer::new(ours);
    let file = HandoverFile::write(std::iter::empty(), SNAPSHOT).expect("a file");
    peer.send(Kind::Offer, 0, &[], &[file.as_fd()]);
    let offer = receive_by(theirs, &mut at_once).expect("an offer");
    file.claim().expect("claimed");
    let refused = offer.claim.take().expect_err("claimed by the sender");
    assert!(refused.claim.is_none());
    let error = refused.error;
    assert!(matches!(error, HandoverError::Claimed), "{error}");
    assert_eq!(
        error.to_string(),
        "the handover was claimed already: its descriptors must not be used again"
    );
    assert_eq!(peer.receive().kind, Kind::Ready);
    peer.wait_for_hang_up();
}

/// Errors of the caller are found before anything is sent.
#[test]
fn a_handover_that_breaks_a_limit_is_not_sent() {
    let long = "x".repeat(MAX_NAME + 1);
    let named = |names: &[&str]| -> Vec<NamedFd> {
        let named = names.iter().map(|&name| NamedFd {
            name: name.to_owned(),
            fd: memory("x"),
        });
        named.collect()
    };
    let cases: [(Vec<NamedFd>, &str); 7] = [
        (
            named(&["a", ""]),
            "descriptor \"\": the name is not allowed: it is empty",
        ),
        (
            named(&[&long]),
            "the name is not allowed: it has 129 bytes, the limit is 128",
        ),
        (
            named(&["a\nFDNAME=b"]),
            "descriptor \"a\\nFDNAME=b\": the name is not allowed: it has the byte 0x0a",
        ),
        (named(&["a:b"]), "it has the byte 0x3a"),
        (
            named(&["nic0.lock", "nic1..lock"]),
            "a part between dots has 0 bytes, and 1 to 32 are allowed",
        ),
        (named(&["\u{e9}"]), "it has the byte 0xc3"),
        (
            named(&["a", "b", "a"]),
            "there are several descriptors \"a\"",
        ),
    ];
    for (fds, text) in cases {
        let (ours, theirs) = pair();
        let peer = Peer::new(theirs);
        peer.send(Kind::Ready, 1, &[], &[]);
        let receiver = await_receiver_by(ours, &mut at_once).expect("ready");
        let count = fds.len();
        let refused = receiver
            .send_by(SNAPSHOT, fds, &mut at_once)
            .expect_err("refused");
        assert_eq!(refused.descriptors.len(), count);
        assert!(refused.to_string().contains(text), "{refused}");
        peer.wait_for_hang_up();
    }
}

/// The snapshot's pages are never touched, so the test needs no such memory.
#[test]
fn a_snapshot_above_the_limit_and_too_many_names_are_refused() {
    let too_long = usize::try_from(MAX_SNAPSHOT + 1).expect("a length");
    let bytes = vec![0; too_long];
    let error = HandoverFile::write(std::iter::empty(), &bytes).expect_err("too long");
    assert_eq!(
        error.to_string(),
        "a snapshot of 1073741825 bytes, the limit is 1073741824"
    );
    let names: Vec<String> = (0..=MAX_DESCRIPTORS).map(|at| at.to_string()).collect();
    let names = names.iter().map(String::as_str);
    let error = HandoverFile::write(names, SNAPSHOT).expect_err("too many");
    assert_eq!(
        error.to_string(),
        "4001 descriptors, the limit of a handover is 4000"
    );
}

/// unix(7), `SO_PEERCRED`: a socket that is not connected has user -1.
#[test]
fn a_peer_of_another_user_is_refused_with_its_process_and_user() {
    use super::super::channel::check_peer;
    for (uid, own) in [(0, 0), (0, 1000), (1000, 1000)] {
        check_peer(77, uid, own).expect("allowed");
    }
    for (uid, own) in [(1000, 0), (1001, 1000)] {
        let error = check_peer(77, uid, own).expect_err("another user");
        assert_eq!(
            error.to_string(),
            format!(
                "process 77 of user {uid} is at the other end; only user {own} and root are allowed"
            )
        );
    }
    use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};
    let made = |family, kind| socket(family, kind, SockFlag::SOCK_CLOEXEC, None).expect("a socket");
    for socket in [
        made(AddressFamily::Unix, SockType::Stream),
        made(AddressFamily::Inet, SockType::Stream),
    ] {
        let error = receive(socket, far()).expect_err("no peer");
        assert!(error.to_string().contains("not connected"), "{error}");
    }
    let (one, _other) = std::os::unix::net::UnixDatagram::pair().expect("a pair");
    let error = receive(one.into(), far()).expect_err("datagrams");
    assert!(error.to_string().contains("no stream socket"), "{error}");
    let error = receive(memory(""), far()).expect_err("no socket");
    assert!(
        error.to_string().contains("getsockopt(SO_PEERCRED)"),
        "{error}"
    );
}
