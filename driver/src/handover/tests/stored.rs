//! Handovers by a descriptor store.

use std::fs::exists;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::UnixDatagram;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use super::super::channel::until;
use super::super::name;
use super::super::store::store_by;
use super::descriptor_store::{Manager, client};
use super::*;
use crate::{ServiceManager, handed_in, names_handed_in};

/// Number of the first descriptor that a service gets (sd_listen_fds(3)).
const FIRST: RawFd = 3;
/// Number of descriptors that a service of these tests gets. A shell can close only the numbers 3 to 9 for it. The
/// program that has started the tests may have left others open.
const MOST: usize = 7;
/// Number of descriptors of a handover: all except its file and one other.
const COUNT: usize = MOST - 2;
/// Name of the environment variable that has the role of a child.
const ROLE: &str = "DRIVER_HANDOVER_SERVICE";

#[test]
fn a_store_has_each_descriptor_by_its_name_and_the_file_last() {
    let _alone = many_descriptors();
    let manager = Manager::start(1000, Vec::new());
    let sent = stored_in(
        &manager.client(Some(302)),
        SNAPSHOT,
        descriptors(300),
        far(),
    );
    assert!(sent.expect("stored").unacknowledged.is_none());
    let kept = manager.end();
    assert_eq!(kept.kept.len(), 301);
    assert_eq!(kept.names()[..2], ["handover", "handover.memory-299"]);
    let stores = |message: &&String| message.starts_with("FDSTORE=1");
    let last: Vec<&String> = kept.messages.iter().rev().filter(stores).take(2).collect();
    assert_eq!(
        last,
        [
            "FDSTORE=1\nFDNAME=handover-canary\nFDPOLL=0",
            "FDSTORE=1\nFDNAME=handover\nFDPOLL=0"
        ]
    );
    assert_eq!(kept.messages.last().expect("a message"), "BARRIER=1");

    let duplicates = kept.duplicates();
    let manager = Manager::start(1000, kept.kept);
    let offer = StoredDescriptors::new(duplicates)
        .open(&manager.client(None))
        .expect("whole");
    assert_are_all(&offer.descriptors, 300);
    assert_eq!(offer.snapshot, SNAPSHOT);
    offer.claim.take().expect("claimed").end(Ok(()));
    assert_eq!(manager.end().names(), Vec::<&str>::new());
}

/// systemd.service(5), `FileDescriptorStoreMax=`: further descriptors are closed, and the sender learns nothing.
#[test]
fn a_store_that_has_dropped_descriptors_is_refused_with_their_names() {
    // Five descriptors, the file, and the canary.
    for most in 0..7 {
        let manager = Manager::start(most, Vec::new());
        let kept = stored_in(&manager.client(None), SNAPSHOT, descriptors(5), far());
        let kept = kept.expect_err("noticed");
        assert!(
            matches!(kept.error, HandoverError::NotKept { needed: 7 }),
            "{kept}"
        );
        assert_are_all(&kept.descriptors, 5);
        let after = manager.end();
        assert_eq!(after.names(), Vec::<&str>::new());
    }
    let manager = Manager::start(7, Vec::new());
    let _sent = stored_in(&manager.client(None), SNAPSHOT, descriptors(5), far()).expect("stored");
    assert_eq!(manager.end().kept.len(), 6);
    let manager = Manager::start(10, Vec::new());
    let _stored =
        stored_in(&manager.client(None), SNAPSHOT, descriptors(5), far()).expect("stored");
    let mut kept = manager.end();
    kept.kept
        .retain(|named| !["handover.memory-1", "handover.memory-4"].contains(&&*named.name));
    let refused = StoredDescriptors::new(kept.kept)
        .open(&nobody())
        .expect_err("not whole");
    assert!(
        refused
            .to_string()
            .contains("missing: memory-1, memory-4; 3 of 5 were found"),
        "{refused}"
    );
    assert_eq!(refused.stored.names().len(), 4);
}

/// The check costs a wait. Without the number of places it says nothing about a handover.
#[test]
fn a_store_that_was_checked_and_reports_its_places_is_not_checked_again() {
    for (room, checks) in [(Some(10), 1), (None, 2)] {
        let manager = Manager::start(10, Vec::new());
        let checked = check_store(&manager.client(room), far()).expect("kept");
        let _sent = stored_in(&checked, SNAPSHOT, descriptors(5), far()).expect("stored");
        let after = manager.end();
        let is_check = |message: &&String| message.starts_with("FDSTORE=1\nFDNAME=handover-canary");
        assert_eq!(after.messages.iter().filter(is_check).count(), checks);
        assert_eq!(after.kept.len(), 6);
    }
    let manager = Manager::start(0, Vec::new());
    let refused = check_store(&manager.client(Some(10)), far()).expect_err("noticed");
    assert!(
        matches!(refused, HandoverError::NotKept { needed: 2 }),
        "{refused}"
    );
    let refused = check_store(&manager.client(Some(1)), far()).expect_err("noticed");
    assert!(
        matches!(refused, HandoverError::NoRoom { room: 1, needed: 2 }),
        "{refused}"
    );
    manager.end();
}

/// systemd keeps an open file only once, under its first name.
#[test]
fn a_handover_that_has_one_open_file_twice_is_refused() {
    let mut fds = descriptors(2);
    fds[1].fd = fds[0].fd.try_clone().expect("a duplicate");
    let manager = Manager::start(10, Vec::new());
    let _stored = stored_in(&manager.client(None), SNAPSHOT, fds, far()).expect("not noticed");
    let refused = StoredDescriptors::new(manager.end().kept)
        .open(&nobody())
        .expect_err("not whole");
    assert!(
        refused
            .to_string()
            .contains("missing: memory-1; 1 of 2 were found"),
        "{refused}"
    );
}

#[test]
fn a_store_with_repeated_descriptors_is_refused() {
    let kept = || {
        let manager = Manager::start(10, Vec::new());
        let _stored =
            stored_in(&manager.client(None), SNAPSHOT, descriptors(2), far()).expect("stored");
        manager.end().kept
    };
    let named = |name: &str| NamedFd {
        name: name.to_owned(),
        fd: memory("x"),
    };
    let cases = [
        (
            "handover.memory-1",
            "several descriptors \"handover.memory-1\"",
        ),
        ("handover", "several descriptors \"handover\""),
    ];
    for (name, text) in cases {
        let mut all = kept();
        all.push(named(name));
        let refused = StoredDescriptors::new(all)
            .open(&nobody())
            .expect_err("refused");
        assert!(refused.to_string().contains(text), "{refused}");
        assert_eq!(refused.stored.names().len(), 4);
        let manager = Manager::start(10, refused.stored.duplicates());
        refused
            .stored
            .forget(&manager.client(None), far())
            .expect("forgotten");
        assert_eq!(manager.end().names(), Vec::<&str>::new());
    }
}

#[test]
fn a_later_handover_replaces_an_earlier_one_of_the_same_open_files() {
    let manager = Manager::start(10, Vec::new());
    let fds = descriptors(3);
    let duplicates = |fds: &[NamedFd]| -> Vec<NamedFd> {
        let duplicate = |named: &NamedFd| NamedFd {
            name: named.name.clone(),
            fd: named.fd.try_clone().expect("a duplicate"),
        };
        fds.iter().map(duplicate).collect()
    };
    let to = manager.client(None);
    let _first = stored_in(&to, b"first", duplicates(&fds), far()).expect("stored");
    let _second = stored_in(&to, b"second", fds, far()).expect("stored");
    let stored = StoredDescriptors::new(manager.end().kept)
        .open(&nobody())
        .expect("whole");
    assert_eq!(stored.snapshot, b"second");
}

#[test]
fn a_handover_that_does_not_fit_is_not_sent() {
    let manager = Manager::start(10, Vec::new());
    let kept =
        stored_in(&manager.client(Some(5)), SNAPSHOT, descriptors(5), far()).expect_err("no room");
    assert_eq!(
        kept.to_string(),
        "the descriptor store of this service has 5 places (FileDescriptorStoreMax=), and 7 are needed"
    );
    assert_are_all(&kept.descriptors, 5);
    let mut fds = descriptors(1);
    fds[0].name = "a\nFDSTOREREMOVE=1".to_owned();
    let kept = stored_in(&manager.client(None), SNAPSHOT, fds, far()).expect_err("a name");
    assert!(matches!(kept.error, HandoverError::Name { .. }), "{kept}");
    assert_eq!(manager.end().messages, Vec::<String>::new());
}

/// The manager has the messages and may handle them later. The process goes on with its function, so what the store
/// then has must be refused.
#[test]
fn a_handover_that_a_silent_manager_keeps_later_is_refused() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("notify");
    let socket = UnixDatagram::bind(&path).expect("a socket");
    let to = client(&path, None);
    // With this deadline, a message is sent if the socket has room, but no process waits.
    let kept = stored_in(&to, SNAPSHOT, descriptors(2), Instant(0)).expect_err("silent");
    assert_eq!(
        kept.to_string(),
        "the service manager has not handled all messages (BARRIER=1) before the deadline"
    );
    assert_are_all(&kept.descriptors, 2);
    // A process that another thread starts has the socket until its exec, so the name must go, too.
    drop(socket);
    std::fs::remove_file(&path).expect("removed");
    let kept = stored_in(&to, SNAPSHOT, kept.descriptors, far()).expect_err("absent");
    assert!(
        kept.to_string().contains("connect to NOTIFY_SOCKET"),
        "{kept}"
    );
}

#[test]
fn a_stored_handover_is_claimed_once() {
    let manager = Manager::start(10, Vec::new());
    let _stored =
        stored_in(&manager.client(None), SNAPSHOT, descriptors(2), far()).expect("stored");
    let kept = manager.end();
    let open = |to: &ServiceManager| StoredDescriptors::new(kept.duplicates()).open(to);
    let manager = Manager::start(10, Vec::new());
    let to = manager.client(None);
    // The manager does not answer: nothing is lost, and the call is repeated.
    let directory = tempfile::tempdir().expect("a directory");
    let silent = directory.path().join("notify");
    let socket = UnixDatagram::bind(&silent).expect("a socket");
    let one = open(&client(&silent, None)).expect("whole");
    let other = open(&to).expect("whole");
    let failed = one.claim.take_until(Instant(0)).expect_err("silent");
    assert!(
        matches!(failed.error, HandoverError::ServiceManager(_)),
        "{failed}"
    );
    let again = failed.claim.expect("a claim");
    drop(socket);
    let failed = again.take().expect_err("absent");
    failed.claim.expect("a claim").refuse("no manager");
    assert_are_all(&one.descriptors, 2);

    let third = open(&to).expect("whole");
    let _claimed = other.claim.take().expect("claimed");
    let refused = third.claim.take().expect_err("claimed before");
    assert!(matches!(refused.error, HandoverError::Claimed), "{refused}");
    assert!(refused.claim.is_none());
    let refused = open(&to).expect_err("claimed before");
    assert!(matches!(refused.error, HandoverError::Claimed), "{refused}");
    assert_eq!(refused.stored.names().len(), 3);
    manager.end();
}

/// Stores a handover. The simulated service manager closes descriptors at once, so the test does not wait for that.
fn stored_in(
    manager: &ServiceManager,
    snapshot: &[u8],
    descriptors: Vec<NamedFd>,
    deadline: Instant,
) -> Result<Sent, NotGiven> {
    store_by(
        manager,
        snapshot,
        descriptors,
        deadline,
        (Duration::ZERO, Duration::ZERO),
    )
}

/// A process that died while it stored, or a canary, may leave names that the next handover does not have.
#[test]
fn what_an_earlier_handover_has_left_does_not_prevent_a_later_one() {
    let manager = Manager::start(10, Vec::new());
    let _first = stored_in(&manager.client(None), b"first", descriptors(4), far());
    let mut left = manager.end().kept;
    left.push(NamedFd {
        name: "handover-canary".to_owned(),
        fd: memory("x"),
    });
    let manager = Manager::start(20, left);
    let to = manager.client(None);
    let _sent = stored_in(&to, SNAPSHOT, descriptors(2), far()).expect("stored");
    let kept = manager.end();
    assert!(kept.has("handover.memory-3") && !kept.has("handover-canary"));
    let manager = Manager::start(20, kept.duplicates());
    let to = manager.client(None);
    let offer = StoredDescriptors::new(kept.kept).open(&to).expect("whole");
    assert_are_all(&offer.descriptors, 2);
    assert_eq!(offer.snapshot, SNAPSHOT);
    offer.claim.take().expect("claimed").end(Ok(()));
    assert_eq!(manager.end().names(), Vec::<&str>::new());
}

/// The next process gets all names in one environment variable, which the kernel limits.
#[test]
fn names_that_are_too_long_for_the_environment_are_refused() {
    let names: Vec<String> = (0..4000)
        .map(|at| name::stored(&format!("{at:032}")))
        .collect();
    let error = name::check_stored(&names).expect_err("too long");
    assert_eq!(
        error.to_string(),
        "the names of the descriptors have 168008 bytes in the store, the limit is 114688"
    );
    name::check_stored(&names[..2000]).expect("short");
}

/// Returns a manager that is not there. Opening a handover sends nothing.
fn nobody() -> ServiceManager {
    client(std::path::Path::new("/nonexistent"), None)
}

#[test]
fn an_address_that_is_no_unix_socket_is_refused_with_it() {
    for address in [
        "",
        "@",
        "notify",
        "vsock:2:1234",
        &format!("/{}", "x".repeat(200)),
    ] {
        let error = ServiceManager::at(address.as_bytes(), None).expect_err("refused");
        assert!(
            error
                .to_string()
                .contains(&format!("NOTIFY_SOCKET is {address:?}")),
            "{error}"
        );
    }
    let name = format!("driver-handover-{}", std::process::id());
    use std::os::linux::net::SocketAddrExt;
    let address = std::os::unix::net::SocketAddr::from_abstract_name(&name).expect("an address");
    let socket = UnixDatagram::bind_addr(&address).expect("a socket");
    let manager = ServiceManager::at(format!("@{name}").as_bytes(), None).expect("an address");
    manager.notify("STATUS=here", Instant(0)).expect("sent");
    assert_eq!(super::descriptor_store::received(&socket).0, "STATUS=here");
    // The queue of the socket is full: the call does not wait after the deadline.
    let error = loop {
        if let Err(error) = manager.notify("STATUS=here", Instant(0)) {
            break error;
        }
    };
    assert_eq!(
        error.to_string(),
        "the service manager has not received messages before the deadline"
    );
}

/// Starts a service with these descriptors from number 3 on, and returns its report.
fn report_of(kept: &[NamedFd], notify: &std::path::Path) -> String {
    assert!(kept.len() <= MOST, "{}", kept.len());
    let (ours, theirs) = pair();
    let mut child = Command::new("sh")
        .args([
            "-c",
            "exec 3<&- 4<&- 5<&- 6<&- 7<&- 8<&- 9<&-; exec \"$0\" --exact \"$1\" --nocapture",
        ])
        .arg(std::env::current_exe().expect("this program"))
        .arg("handover::tests::stored::the_service")
        .env(ROLE, "start")
        .env("NOTIFY_SOCKET", notify)
        .env_remove("FDSTORE")
        .stdin(Stdio::from(theirs))
        .stdout(Stdio::null())
        .spawn()
        .expect("a child");
    let peer = Peer::new(ours);
    for named in kept {
        let name = named.name.as_bytes();
        let message = (Kind::Descriptors, 1, name);
        let sent = peer
            .channel
            .send("to send", message, &[named.fd.as_fd()], &mut until(far()));
        sent.expect("a message");
    }
    peer.send(Kind::Ready, 0, &[], &[]);
    let report = peer
        .channel
        .receive("for the report", &mut until(far()))
        .expect("a report");
    assert!(child.wait().expect("a child").success());
    String::from_utf8(report.text).expect("text")
}

/// Receives descriptors, gives them the numbers from 3 on, and executes the program again as the service.
fn start() {
    let socket = io::stdin()
        .as_fd()
        .try_clone_to_owned()
        .expect("a duplicate");
    let channel = Channel::new(socket).expect("a socket");
    let (mut names, mut fds) = (Vec::new(), Vec::new());
    loop {
        let message = channel
            .receive("for a descriptor", &mut until(far()))
            .expect("a message");
        if message.kind == Kind::Ready {
            break;
        }
        names.push(String::from_utf8(message.text).expect("a name"));
        for fd in message.fds {
            fds.push(rustix::io::fcntl_dupfd_cloexec(&fd, 500).expect("a number"));
        }
    }
    drop(channel);
    // The numbers from 3 on are free. Each is first taken by a file, which is then replaced.
    let mut placed = Vec::new();
    for (at, fd) in fds.iter().enumerate() {
        let mut place = OwnedFd::from(File::open("/dev/null").expect("a file"));
        assert_eq!(
            place.as_raw_fd(),
            FIRST + RawFd::try_from(at).expect("a number")
        );
        nix::unistd::dup2(fd, &mut place).expect("a duplicate");
        placed.push(place);
    }
    let error = Command::new(std::env::current_exe().expect("this program"))
        .args([
            "--exact",
            "handover::tests::stored::the_service",
            "--nocapture",
        ])
        .env(ROLE, "serve")
        .env("LISTEN_PID", std::process::id().to_string())
        .env("LISTEN_FDS", placed.len().to_string())
        .env("LISTEN_FDNAMES", names.join(":"))
        .exec();
    panic!("{error}");
}

/// Takes the handover, and returns what happened.
fn serve() -> String {
    // Other descriptors stay available, and those of the handover are taken once.
    let other = handed_in("other").map(|fd| content(&fd));
    let stored = take_stored().expect("a number");
    assert!(take_stored().expect("a number").is_none());
    let names: Vec<&str> = names_handed_in().collect();
    let Some(stored) = stored else {
        return format!("none; {names:?}");
    };
    handed_in("handover").expect_err("taken");
    let manager = ServiceManager::of_environment()
        .expect("an address")
        .expect("a manager");
    let offer = match stored.open(&manager) {
        Ok(offer) => offer,
        Err(refused) => {
            refused.stored.forget(&manager, far()).expect("forgotten");
            return format!("refused: {}", refused.error);
        }
    };
    let claimed = match offer.claim.take() {
        Ok(claimed) => claimed,
        Err(refused) => return format!("not claimed: {}", refused.error),
    };
    let count = offer.descriptors.len();
    assert_are_all(&offer.descriptors, count);
    assert_eq!(offer.snapshot, SNAPSHOT);
    // They are this process's only descriptors of these files: a drop closes them.
    let numbers: Vec<RawFd> = offer
        .descriptors
        .iter()
        .map(|named| named.fd.as_raw_fd())
        .collect();
    drop(offer.descriptors);
    claimed.end(Ok(()));
    for number in numbers {
        assert!(
            !exists(format!("/proc/self/fd/{number}")).expect("proc"),
            "{number}"
        );
    }
    format!(
        "{count} descriptors; {names:?}; {}",
        other.expect("a descriptor")
    )
}

/// Plays the role of the environment. Without a role, this test does nothing.
#[test]
fn the_service() {
    match std::env::var(ROLE).as_deref() {
        Ok("start") => start(),
        Ok(_) => {
            let report = serve();
            let socket = io::stdin()
                .as_fd()
                .try_clone_to_owned()
                .expect("a duplicate");
            let channel = Channel::new(socket).expect("a socket");
            let message = (Kind::Refused, 0, report.as_bytes());
            channel
                .send("to report", message, &[], &mut until(far()))
                .expect("a report");
        }
        Err(_) => {}
    }
}

#[test]
fn the_next_process_of_a_service_takes_its_descriptors_once() {
    let manager = Manager::start(1000, Vec::new());
    let to = manager.client(None);
    let _stored = stored_in(&to, SNAPSHOT, descriptors(COUNT), far()).expect("stored");
    let mut kept = manager.end();
    kept.kept.push(NamedFd {
        name: "other".to_owned(),
        fd: memory("a disk"),
    });
    let manager = Manager::start(1000, kept.duplicates());
    let report = report_of(&kept.kept, &manager.path);
    assert_eq!(report, format!("{COUNT} descriptors; [\"other\"]; a disk"));
    assert_eq!(manager.end().names(), ["other"]);

    // The manager hands the same descriptors in again, as one that has not handled FDSTOREREMOVE would.
    let manager = Manager::start(1000, kept.duplicates());
    let report = report_of(&kept.kept, &manager.path);
    assert!(
        report.starts_with("refused: the handover was claimed already"),
        "{report}"
    );
    assert_eq!(manager.end().names(), ["other"]);

    kept.kept.retain(|named| named.name == "other");
    let report = report_of(&kept.kept, std::path::Path::new("/nonexistent"));
    assert_eq!(report, "none; [\"other\"]");
}

#[test]
fn the_next_process_refuses_what_is_not_whole_and_names_it() {
    let manager = Manager::start(10, Vec::new());
    let _stored =
        stored_in(&manager.client(None), SNAPSHOT, descriptors(3), far()).expect("stored");
    let mut kept = manager.end();
    kept.kept.retain(|named| named.name != "handover.memory-1");
    let manager = Manager::start(10, kept.duplicates());
    let report = report_of(&kept.kept, &manager.path);
    assert!(
        report.contains("missing: memory-1; 2 of 3 were found"),
        "{report}"
    );
    let after = manager.end();
    assert!(!after.has("handover") && after.kept.is_empty());
}
