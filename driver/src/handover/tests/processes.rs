//! Handovers between this process and a child, which is this program again, and children that are killed.

use std::process::{Child, Command, Stdio};

use nix::sys::eventfd::EventFd;
use nix::sys::signal::{Signal, raise};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use zerocopy::IntoBytes;

use super::super::channel::until;
use super::*;

/// Name of the environment variable that has the role of a child.
const ROLE: &str = "DRIVER_HANDOVER_ROLE";
const COUNT: usize = 260;

/// A child process, which is killed when the test ends.
struct Kid(Child);

impl Drop for Kid {
    fn drop(&mut self) {
        // The call fails if the child has ended.
        let _ended = self.0.kill();
        self.0.wait().expect("a child");
    }
}

/// Starts a child in a role. Its standard input is the other end of the returned socket.
fn child(role: &str, limit: usize) -> (OwnedFd, Kid) {
    let (ours, theirs) = pair();
    let child = Command::new("sh")
        .args([
            "-c",
            "ulimit -n \"$2\"; exec \"$0\" --exact \"$1\" --nocapture",
        ])
        .arg(std::env::current_exe().expect("this program"))
        .arg("handover::tests::processes::the_other_process")
        .arg(limit.to_string())
        .env(ROLE, role)
        .stdin(Stdio::from(theirs))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("a child");
    (ours, Kid(child))
}

fn die() {
    raise(Signal::SIGKILL).expect("a signal");
}

/// Receives a message in a child, or in this process while a child works.
fn next(peer: &Peer) -> super::super::channel::Message {
    let received = peer.channel.receive("for a message", &mut until(far()));
    received.expect("a message")
}

/// Receives the file and all descriptors.
fn take_all(peer: &Peer) -> (HandoverFile, Vec<OwnedFd>) {
    peer.send(Kind::Ready, 1, &[], &[]);
    let mut offer = next(peer);
    let (file, contents) = HandoverFile::read(offer.fds.pop().expect("a file")).expect("a file");
    let mut fds = Vec::new();
    while fds.len() < contents.names.len() {
        fds.append(&mut next(peer).fds);
    }
    (file, fds)
}

/// Sends the file and the first descriptors, or all of them.
fn offer_to(peer: &Peer, is_whole: bool) {
    assert_eq!(next(peer).kind, Kind::Ready);
    let fds = descriptors(COUNT);
    let names = fds.iter().map(|named| named.name.as_str());
    let file = HandoverFile::write(names, SNAPSHOT).expect("a file");
    let borrowed: Vec<BorrowedFd<'_>> = fds.iter().map(|named| named.fd.as_fd()).collect();
    peer.send(Kind::Offer, 260, &[], &[file.as_fd()]);
    peer.send(Kind::Descriptors, 253, &[], &borrowed[..253]);
    if is_whole {
        peer.send(Kind::Descriptors, 7, &[], &borrowed[253..]);
    }
}

/// Plays the role of the environment. Without a role, this test does nothing.
#[test]
fn the_other_process() {
    let Ok(role) = std::env::var(ROLE) else {
        return;
    };
    let socket = io::stdin()
        .as_fd()
        .try_clone_to_owned()
        .expect("a duplicate");
    let peer = || Peer::new(socket.try_clone().expect("a duplicate"));
    match role.as_str() {
        "receiver dies at once" | "sender dies at once" => die(),
        "receiver dies when it is ready" => {
            let peer = peer();
            peer.send(Kind::Ready, 1, &[], &[]);
            die();
        }
        "receiver dies with everything" => {
            let _all = receive(socket, far());
            die();
        }
        "receiver dies after its claim" => {
            let peer = peer();
            let (file, _fds) = take_all(&peer);
            file.claim().expect("claimed");
            die();
        }
        "receiver adopts and dies" => {
            let offer = receive(socket, far()).expect("an offer");
            offer.claim.take().expect("claimed").end(Ok(()));
            die();
        }
        "receiver adopts and counts" => {
            let offer = receive(socket, far()).expect("an offer");
            let event = offer.descriptors.last().expect("an eventfd");
            if let Ok(claimed) = offer.claim.take() {
                nix::unistd::write(&event.fd, 1_u64.as_bytes()).expect("a count");
                claimed.end(Ok(()));
            }
        }
        "receiver has no room" => {
            let refused = receive(socket, far()).expect_err("no room");
            assert!(matches!(refused, HandoverError::Cut { .. }), "{refused}");
        }
        "sender dies after READY" => {
            let _receiver = await_receiver(socket, far());
            die();
        }
        "sender dies amid the descriptors" => {
            let peer = peer();
            offer_to(&peer, false);
            die();
        }
        "sender dies before the answer" => {
            let peer = peer();
            offer_to(&peer, true);
            die();
        }
        _ => panic!("{role}"),
    }
}

/// Makes descriptors, among them the write end of a pipe and an eventfd.
fn mixed() -> (Watch, EventFd, Vec<NamedFd>) {
    let mut fds = descriptors(COUNT - 2);
    let (watch, watched) = Watch::new("watched");
    let event = EventFd::from_flags(nix::sys::eventfd::EfdFlags::EFD_NONBLOCK).expect("an eventfd");
    let named = NamedFd {
        name: "event".to_owned(),
        fd: event.as_fd().try_clone_to_owned().expect("a duplicate"),
    };
    fds.extend([watched, named]);
    (watch, event, fds)
}

#[test]
fn a_process_keeps_its_descriptors_exactly_if_its_receiver_died_without_a_claim() {
    let _alone = many_descriptors();
    let roles = [
        ("receiver dies at once", false),
        ("receiver dies when it is ready", false),
        ("receiver dies with everything", false),
        ("receiver dies after its claim", true),
        ("receiver adopts and dies", true),
        ("receiver adopts and counts", true),
    ];
    for (role, is_given) in roles {
        let (socket, _child) = child(role, 1024);
        let (watch, event, fds) = mixed();
        let receiver = match await_receiver(socket, far()) {
            Ok(receiver) => receiver,
            Err(error) => {
                assert!(
                    matches!(error, HandoverError::HungUp { .. }),
                    "{role}: {error}"
                );
                assert_eq!(role, "receiver dies at once");
                continue;
            }
        };
        match receiver.send(SNAPSHOT, fds, far()) {
            Ok(Sent { unacknowledged, .. }) => {
                assert!(is_given, "{role}");
                let is_acknowledged = role != "receiver dies after its claim";
                assert_eq!(
                    unacknowledged.is_none(),
                    is_acknowledged,
                    "{role}: {unacknowledged:?}"
                );
                // The child was the last to have it.
                watch.wait_until_closed();
                let counted = event.read().is_ok();
                assert_eq!(counted, role == "receiver adopts and counts");
            }
            Err(kept) => {
                assert!(!is_given, "{role}: {kept}");
                assert!(
                    matches!(kept.error, HandoverError::HungUp { .. }),
                    "{role}: {kept}"
                );
                assert_eq!(kept.descriptors.len(), COUNT);
                assert_are_all(&kept.descriptors[..COUNT - 2], COUNT - 2);
            }
        }
    }
}

#[test]
fn a_receiver_has_everything_or_nothing_when_its_sender_is_killed() {
    let _alone = many_descriptors();
    let roles = [
        "sender dies at once",
        "sender dies after READY",
        "sender dies amid the descriptors",
        "sender dies before the answer",
    ];
    for role in roles {
        let (socket, _child) = child(role, 1024);
        match receive(socket, far()) {
            Ok(offer) => {
                assert_eq!(role, "sender dies before the answer");
                assert_eq!(offer.snapshot, SNAPSHOT);
                assert_are_all(&offer.descriptors, COUNT);
                offer.claim.take().expect("claimed").end(Ok(()));
            }
            Err(error) => {
                assert_ne!(role, "sender dies before the answer", "{error}");
                // Linux reports EPIPE or the end of the connection, whichever comes first.
                assert!(
                    matches!(error, HandoverError::HungUp { .. }),
                    "{role}: {error}"
                );
            }
        }
    }
}

/// recv(2), `MSG_CTRUNC`: the kernel drops descriptors for which the process has no room.
#[test]
fn a_receiver_without_room_for_the_descriptors_refuses_with_the_reason() {
    let _alone = many_descriptors();
    let (socket, mut child) = child("receiver has no room", 100);
    let receiver = await_receiver(socket, far()).expect("ready");
    let kept = receiver.send(SNAPSHOT, descriptors(COUNT), far());
    let kept = kept.expect_err("refused");
    let text = kept.to_string();
    assert!(
        text.contains("the other process refuses") && text.contains("RLIMIT_NOFILE"),
        "{text}"
    );
    assert_are_all(&kept.descriptors, COUNT);
    assert!(child.0.wait().expect("a child").success());
}

/// A child that has claimed the handover counts an eventfd. If it is killed at a random moment, either this process
/// keeps the descriptors and nothing was counted, or it does not keep them.
#[test]
fn a_receiver_that_is_killed_at_any_moment_and_its_sender_never_both_have_the_handover() {
    let _alone = many_descriptors();
    let mut random = StdRng::seed_from_u64(7);
    let (mut kept, mut given) = (0, 0);
    for _ in 0..24 {
        let (socket, mut child) = child("receiver adopts and counts", 1024);
        let (watch, event, fds) = mixed();
        let receiver = await_receiver(socket, far()).expect("ready");
        let spins = 1_u32 << random.random_range(8..25);
        let sent = std::thread::scope(|scope| {
            scope.spawn(|| {
                for _ in 0..spins {
                    std::hint::spin_loop();
                }
                // The call fails if the child has ended.
                let _ended = child.0.kill();
            });
            receiver.send(SNAPSHOT, fds, far())
        });
        child.0.wait().expect("a child");
        match sent {
            Err(NotGiven {
                descriptors, error, ..
            }) => {
                kept += 1;
                assert!(matches!(error, HandoverError::HungUp { .. }), "{error}");
                assert_eq!(descriptors.len(), COUNT);
                assert!(event.read().is_err(), "the child has used it");
            }
            Ok(_claimed) => {
                given += 1;
                watch.wait_until_closed();
            }
        }
    }
    println!("{kept} kept, {given} given");
}
