//! An end that hangs up or is silent at each step. A process that dies closes its socket, so both are the same here.

use super::*;

/// Steps of a receiver, after each of which it ends.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Step {
    Begun,
    Ready,
    File,
    FirstDescriptors,
    AllDescriptors,
    Claimed,
    Adopted,
}

const ALL: [Step; 7] = [
    Step::Begun,
    Step::Ready,
    Step::File,
    Step::FirstDescriptors,
    Step::AllDescriptors,
    Step::Claimed,
    Step::Adopted,
];

/// Hands 300 descriptors over to a receiver that makes the steps up to `last`. If `is_silent`, it then keeps its socket
/// open and does nothing; otherwise it hangs up. Returns the sender's result, and the sender's view of its file.
fn send_to(last: Step, is_silent: bool) -> (Result<Sent, NotGiven>, Option<HandoverFile>) {
    let (ours, theirs) = pair();
    let mut peer = Some(Peer::new(theirs));
    let open = peer.as_ref().expect("a peer");
    if last >= Step::Ready {
        open.send(Kind::Ready, 1, &[], &[]);
    } else if !is_silent {
        peer = None;
    }
    let receiver = match await_receiver_by(ours, &mut at_once) {
        Ok(receiver) => receiver,
        Err(error) => {
            return (Err(NotGiven::new(Vec::new(), error)), None);
        }
    };
    let mut file = None;
    if last == Step::Ready && !is_silent {
        peer = None;
    }
    // The sender waits only for the answer. By then it has sent everything.
    let mut wait = |fd: BorrowedFd<'_>, events| {
        if file.is_none()
            && let Some(open) = &peer
        {
            if last >= Step::File {
                file = Some(open.file());
            }
            if last >= Step::FirstDescriptors {
                assert_eq!(open.receive().fds.len(), 253);
            }
            if last >= Step::AllDescriptors {
                assert_eq!(open.receive().fds.len(), 47);
            }
            if last >= Step::Claimed {
                file.as_ref().expect("a file").claim().expect("claimed");
            }
            if last >= Step::Adopted {
                open.send(Kind::Adopted, 0, &[], &[]);
            }
            if !is_silent {
                peer = None;
            }
        }
        at_once(fd, events)
    };
    let sent = receiver.send_by(SNAPSHOT, descriptors(300), &mut wait);
    (sent, file)
}

/// For each step: the sender has its descriptors and the receiver can no longer claim, or the receiver has claimed.
#[test]
fn a_handover_whose_receiver_ends_at_any_step_has_exactly_one_owner() {
    let _alone = many_descriptors();
    for is_silent in [false, true] {
        for last in ALL {
            let (sent, file) = send_to(last, is_silent);
            let text = format!("{last:?}, silent: {is_silent}: {sent:?}");
            let is_cause = |error: &HandoverError| {
                if is_silent {
                    matches!(error, HandoverError::Silent { .. })
                } else {
                    matches!(error, HandoverError::HungUp { .. })
                }
            };
            match sent {
                Err(kept) => {
                    assert!(last < Step::Claimed && is_cause(&kept.error), "{text}");
                    if last > Step::Begun {
                        assert_are_all(&kept.descriptors, 300);
                    }
                    if let Some(file) = file {
                        let late = file.claim();
                        assert!(matches!(late, Err(HandoverError::Claimed)), "{text}");
                    }
                }
                Ok(Sent { unacknowledged, .. }) => match unacknowledged {
                    None => assert_eq!(last, Step::Adopted, "{text}"),
                    Some(error) => assert!(last == Step::Claimed && is_cause(&error), "{text}"),
                },
            }
        }
    }
}

#[test]
fn a_sender_that_ends_at_any_step_leaves_its_receiver_everything_or_nothing() {
    let _alone = many_descriptors();
    for is_silent in [false, true] {
        for steps in 0..4 {
            let (ours, theirs) = pair();
            let mut fds = descriptors(300);
            let (watch, watched) = Watch::new("watched");
            fds[0] = watched;
            let names = fds.iter().map(|named| named.name.as_str());
            let file = HandoverFile::write(names, SNAPSHOT).expect("a file");
            let peer = Peer::new(theirs);
            let borrowed: Vec<BorrowedFd<'_>> = fds.iter().map(|named| named.fd.as_fd()).collect();
            if steps >= 1 {
                peer.send(Kind::Offer, 300, &[], &[file.as_fd()]);
            }
            if steps >= 2 {
                peer.send(Kind::Descriptors, 253, &[], &borrowed[..253]);
            }
            if steps >= 3 {
                peer.send(Kind::Descriptors, 47, &[], &borrowed[253..]);
            }
            drop(borrowed);
            drop(fds);
            let mut peer = Some(peer);
            // The sender ends after it has received READY.
            let mut wait = |fd: BorrowedFd<'_>, events| {
                if !is_silent {
                    peer = None;
                }
                at_once(fd, events)
            };
            let received = receive_by(ours, &mut wait);
            match received {
                Ok(offer) => {
                    assert_eq!(steps, 3);
                    assert_eq!(offer.descriptors.len(), 300);
                    offer.claim.take().expect("claimed").end(Ok(()));
                    assert!(matches!(file.claim(), Err(HandoverError::Claimed)));
                    drop(offer.descriptors);
                }
                Err(HandoverError::HungUp { .. }) => assert!(steps < 3 && !is_silent, "{steps}"),
                Err(HandoverError::Silent { .. }) => {
                    assert!(steps < 3 && is_silent, "{steps}");
                    // The sender learns of the refusal, and keeps its function.
                    let peer = peer.as_ref().expect("a peer");
                    assert_eq!(peer.receive().kind, Kind::Ready);
                    let refusal = peer.receive();
                    assert_eq!(refusal.kind, Kind::Refused);
                    let text = String::from_utf8(refusal.text).expect("text");
                    assert!(text.contains("the deadline has passed"), "{text}");
                    file.claim().expect("claimed");
                }
                Err(error) => panic!("{steps}: {error}"),
            }
            watch.wait_until_closed();
        }
    }
}

#[test]
fn no_step_is_done_after_the_deadline() {
    use super::super::channel::until;
    let (ours, theirs) = pair();
    send_raw(&theirs, &header(1, 1, 0), &[]);
    // READY has arrived, but only after the deadline.
    let error = await_receiver(ours, Instant(0)).expect_err("too late");
    assert_eq!(
        error.to_string(),
        "the deadline has passed while this process waited for READY"
    );
    let (ours_end, theirs) = pair();
    let error = receive(theirs, Instant(0)).expect_err("too late");
    assert_eq!(
        error.to_string(),
        "the deadline has passed while this process waited to send"
    );
    let mut sent = Vec::new();
    File::from(ours_end).read_to_end(&mut sent).expect("a read");
    assert_eq!(sent, []);
    let (ours, theirs) = pair();
    send_raw(&theirs, &header(1, 1, 0), &[]);
    let receiver = await_receiver(ours, far()).expect("ready");
    let kept = receiver.send(SNAPSHOT, descriptors(1), Instant(0));
    assert_are_all(&kept.expect_err("too late").descriptors, 1);
    File::from(theirs).read_to_end(&mut sent).expect("a read");
    assert_eq!(sent, []);
    let (ours, _theirs) = pair();
    assert!(until(far())(ours.as_fd(), PollFlags::POLLOUT).expect("ready"));
}

/// A peer that sends single bytes gets no more time than one that is silent.
#[test]
fn a_message_that_arrives_byte_by_byte_ends_at_the_deadline() {
    let (ours, theirs) = pair();
    let bytes = header(1, 1, 0);
    let mut sent = 0;
    let mut wait = |_: BorrowedFd<'_>, _| {
        send_raw(&theirs, &bytes[sent..=sent], &[]);
        sent += 1;
        Ok(sent < 10)
    };
    let error = await_receiver_by(ours, &mut wait).expect_err("too slow");
    assert!(matches!(error, HandoverError::Silent { .. }), "{error}");
    assert_eq!(sent, 10);
}
