//! Peers that break the protocol.

use super::*;

/// Returns the error of a receiver whose peer sends these messages and then hangs up. Checks that all descriptors that
/// the receiver got are closed.
fn received_from(send: impl FnOnce(&OwnedFd, BorrowedFd<'_>)) -> HandoverError {
    let (ours, theirs) = pair();
    let (watch, named) = Watch::new("watched");
    send(&theirs, named.fd.as_fd());
    drop(named);
    // The peer hangs up after READY.
    let mut peer = Some(theirs);
    let mut wait = |fd: BorrowedFd<'_>, events| {
        if let Some(theirs) = peer.take() {
            hang_up(&theirs);
        }
        at_once(fd, events)
    };
    let error = receive_by(ours, &mut wait).expect_err("refused");
    watch.wait_until_closed();
    error
}

/// Makes a file that names `count` descriptors.
fn naming(count: usize) -> HandoverFile {
    let names: Vec<String> = (0..count).map(|at| format!("memory-{at}")).collect();
    HandoverFile::write(names.iter().map(String::as_str), SNAPSHOT).expect("a file")
}

const OFFER: u32 = Kind::Offer as u32;
const DESCRIPTORS: u32 = Kind::Descriptors as u32;

#[test]
fn a_receiver_refuses_messages_that_are_not_valid() {
    type Script = Box<dyn Fn(&OwnedFd, BorrowedFd<'_>)>;
    let cases: [(Script, &str); 14] = [
        (
            Box::new(|to, fd| send_raw(to, b"GET / HTTP/1.1\r\n", &[fd])),
            "which begins no message",
        ),
        (
            Box::new(|to, fd| send_raw(to, &header(9, 0, 0), &[fd])),
            "a message of kind 9",
        ),
        (
            Box::new(|to, fd| send_raw(to, &header(OFFER, 0, 1025), &[fd])),
            "a text of 1025 bytes, the limit is 1024",
        ),
        (
            Box::new(|to, fd| send_raw(to, &header(OFFER, 0, 0)[..15], &[fd])),
            "hung up while this one waited for OFFER",
        ),
        (
            Box::new(|to, fd| send_raw(to, &header(DESCRIPTORS, 1, 0), &[fd])),
            "Descriptors with 1 descriptors; Offer with 1 was expected",
        ),
        (
            Box::new(|to, fd| send_raw(to, &header(1, 1, 0), &[fd])),
            "Ready with 1 descriptors; Offer with 1 was expected",
        ),
        (
            Box::new(|to, _| send_raw(to, &header(OFFER, 0, 0), &[])),
            "Offer with 0 descriptors",
        ),
        (
            Box::new(|to, fd| send_raw(to, &header(OFFER, 0, 0), &[naming(0).as_fd(), fd])),
            "Offer with 2 descriptors",
        ),
        (
            Box::new(|to, fd| send_raw(to, &header(OFFER, 0, 0), &[fd])),
            "no memory that can be sealed",
        ),
        (
            Box::new(|to, _| send_raw(to, &header(OFFER, 4001, 0), &[naming(0).as_fd()])),
            "4001 descriptors, the limit of a handover is 4000",
        ),
        (
            Box::new(|to, _| send_raw(to, &header(OFFER, 2, 0), &[naming(3).as_fd()])),
            "an OFFER of 2 descriptors with a file that names 3",
        ),
        (
            Box::new(|to, fd| {
                send_raw(to, &header(OFFER, 2, 0), &[naming(2).as_fd()]);
                send_raw(to, &header(DESCRIPTORS, 2, 0), &[fd]);
            }),
            "Descriptors with 1 descriptors; Descriptors with 2 was expected",
        ),
        (
            Box::new(|to, fd| {
                send_raw(to, &header(OFFER, 2, 0), &[naming(2).as_fd()]);
                send_raw(to, &header(DESCRIPTORS, 1, 0), &[fd, fd]);
            }),
            "DESCRIPTORS that count 1 and have 2, of 2 in all",
        ),
        (
            Box::new(|to, fd| {
                let bytes = header(OFFER, 0, 0);
                send_raw(to, &bytes[..8], &[fd; MAX_FDS]);
                send_raw(to, &bytes[8..], &[fd]);
            }),
            "a message with more than 253 descriptors",
        ),
    ];
    for (script, text) in cases {
        let error = received_from(|to, fd| script(to, fd)).to_string();
        assert!(error.contains(text), "{error}");
    }
}

#[test]
fn an_offer_that_is_claimed_already_is_refused() {
    let file = naming(0);
    file.claim().expect("claimed");
    let error = received_from(|to, _| send_raw(to, &header(OFFER, 0, 0), &[file.as_fd()]));
    assert!(matches!(error, HandoverError::Claimed), "{error}");
}

/// The receiver of a later version learns why, and a sender that knows more than this receiver sends a text with OFFER.
#[test]
fn ends_without_a_common_version_refuse_each_other_with_the_reason() {
    let (ours, theirs) = pair();
    send_raw(&theirs, &header(1, 2 << 16 | 3, 0), &[]);
    await_receiver_by(ours, &mut at_once).expect_err("refused");
    let refusal = Peer::new(theirs).receive();
    assert_eq!(refusal.kind, Kind::Refused);
    let error = received_from(|to, _| {
        let text = &refusal.text;
        let length = u32::try_from(text.len()).expect("a length");
        send_raw(to, &[&header(5, 0, length)[..], text].concat(), &[]);
    });
    assert!(
        error.to_string().ends_with("this process has 1 to 1"),
        "{error}"
    );
    let error = received_from(|to, fd| {
        send_raw(
            to,
            &[&header(OFFER, 0, 4)[..], &[2, 0, 0, 0]].concat(),
            &[fd],
        );
    });
    assert!(error.to_string().contains("of a later version"), "{error}");
}

#[test]
fn a_sender_refuses_messages_that_are_not_valid_before_it_parks() {
    let cases = [
        (
            header(1, 2 << 16 | 3, 0),
            "versions 2 to 3 of the protocol, this process has 1 to 1",
        ),
        (
            header(4, 1, 0),
            "Adopted with 0 descriptors; Ready with 0 was expected",
        ),
        (header(1, 1, u32::MAX), "a text of 4294967295 bytes"),
    ];
    for (bytes, text) in cases {
        let (ours, theirs) = pair();
        send_raw(&theirs, &bytes, &[]);
        let error = await_receiver_by(ours, &mut at_once).expect_err("refused");
        assert!(error.to_string().contains(text), "{error}");
    }
    let (ours, theirs) = pair();
    let (watch, named) = Watch::new("watched");
    send_raw(&theirs, &header(1, 1, 0), &[named.fd.as_fd()]);
    drop(named);
    let error = await_receiver_by(ours, &mut at_once).expect_err("refused");
    assert!(
        error.to_string().contains("Ready with 1 descriptors"),
        "{error}"
    );
    watch.wait_until_closed();
}

/// The receiver's messages do not decide who has the handover.
#[test]
fn a_sender_keeps_what_a_receiver_says_it_has_adopted_without_a_claim() {
    let refused = Kind::Refused as u32;
    let cases = [
        (header(4, 0, 0), "ADOPTED, and had not claimed the handover"),
        (
            header(1, 1, 0),
            "Ready with 0 descriptors; Adopted with 0 was expected",
        ),
        (
            header(refused, 0, 2000),
            "a text of 2000 bytes, the limit is 1024",
        ),
        (
            [header(refused, 0, 3), b"\xff\0\n".to_vec()].concat(),
            "refuses: \u{fffd}\\0\\n",
        ),
    ];
    for (bytes, text) in cases {
        let (ours, theirs) = pair();
        send_raw(&theirs, &header(1, 1, 0), &[]);
        send_raw(&theirs, &bytes, &[]);
        let receiver = await_receiver_by(ours, &mut at_once).expect("ready");
        let kept = receiver.send_by(SNAPSHOT, descriptors(2), &mut at_once);
        let kept = kept.expect_err("kept");
        assert_are_all(&kept.descriptors, 2);
        assert!(kept.to_string().contains(text), "{kept}");
    }
}

/// A receiver that refuses while the sender still sends: the reason arrives although sending fails (EPIPE).
#[test]
fn the_reason_of_an_early_refusal_arrives() {
    let (ours, theirs) = pair();
    send_raw(&theirs, &header(1, 1, 0), &[]);
    let text = b"no room";
    send_raw(&theirs, &[&header(5, 0, 7)[..], text].concat(), &[]);
    let receiver = await_receiver_by(ours, &mut at_once).expect("ready");
    hang_up(&theirs);
    let kept = receiver.send_by(SNAPSHOT, descriptors(2), &mut at_once);
    let kept = kept.expect_err("refused");
    assert_eq!(kept.to_string(), "the other process refuses: no room");
}

/// The socket is full because the receiver reads nothing.
#[test]
fn a_sender_does_not_wait_for_room_after_its_deadline() {
    let (ours, theirs) = pair();
    send_raw(&theirs, &header(1, 1, 0), &[]);
    let mut fills = UnixStream::from(ours.try_clone().expect("a duplicate"));
    fills.set_nonblocking(true).expect("a flag");
    while fills.write(&[0; 4096]).is_ok() {}
    let receiver = await_receiver_by(ours, &mut at_once).expect("ready");
    let kept = receiver.send_by(SNAPSHOT, descriptors(2), &mut at_once);
    let kept = kept.expect_err("no room");
    assert_are_all(&kept.descriptors, 2);
    let step = "to send";
    assert!(
        matches!(kept.error, HandoverError::Silent { step: found } if found == step),
        "{kept}"
    );
    drop(theirs);
}
