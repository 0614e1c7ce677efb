//! File descriptors: an open adapter has a limited number of them, and the close returns all of them.
//!
//! A limit belongs to a process. So a test with a small limit runs itself again in a child process, with the
//! environment variable [`CHILD`] set.

use std::process::Command;

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use udapl::{CloseFlags, EpEvds, EvdFlags, Ia, OpenOptions};

/// Name of the environment variable that is set in the child process.
const CHILD: &str = "DAT_TEST_DESCRIPTORS";
/// Descriptor limit of the child.
const LIMIT: u64 = 256;
/// Maximum number of descriptors of an open adapter: eventfds of two interrupt vectors, the two eventfds of the
/// driver's `Notices`, the eventfd that wakes the instance, the memory of the arena, and the io_uring of the real-time
/// clock.
const ADAPTER: usize = 7;
/// Maximum number of descriptors of an adapter on a wire. The adapter has one more socket and, if it was opened first,
/// the socket at the wire's path.
const WIRED: usize = ADAPTER + 2;

fn open_descriptors() -> usize {
    // The count includes the descriptor that reads the directory.
    std::fs::read_dir("/proc/self/fd")
        .expect("readable")
        .count()
        - 1
}

/// Opens an adapter, and creates a PZ, an EVD and an endpoint.
fn opened(name: &str) -> Ia {
    let mut ia = udapl::ia_open(name, &OpenOptions::default()).expect(name);
    let pz = ia.pz_create().expect("a PZ");
    let streams = EvdFlags::CONNECTION | EvdFlags::DTO;
    let evd = Some(ia.evd_create(16, streams).expect("an EVD"));
    ia.ep_create(
        Some(pz),
        EpEvds {
            recv: evd,
            request: evd,
            connect: evd,
        },
        None,
    )
    .expect("an endpoint");
    ia
}

fn closed(ia: Ia) {
    let report = udapl::ia_close(ia, CloseFlags::Abrupt).expect("closed");
    assert!(report.dead.is_none());
}

/// In the parent: runs the test `test` in a child process, and returns false. In the child: lowers the descriptor limit
/// to [`LIMIT`], and returns true.
pub(crate) fn in_a_child(test: &str) -> bool {
    if std::env::var_os(CHILD).is_some() {
        let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).expect("known");
        setrlimit(Resource::RLIMIT_NOFILE, LIMIT.min(hard), hard).expect("a smaller limit");
        return true;
    }
    let myself = std::env::current_exe().expect("a name");
    let child = Command::new(myself)
        .args(["--exact", test])
        .args(["--nocapture", "--test-threads=1"])
        .env(CHILD, "1")
        .output()
        .expect("it runs");
    let said = String::from_utf8_lossy(&child.stdout);
    print!("{said}");
    assert!(
        child.status.success() && said.contains("1 passed"),
        "{said}{}",
        String::from_utf8_lossy(&child.stderr)
    );
    false
}

/// A thousand adapters are opened and closed, one after the other, in a process with 256 descriptors. Time is virtual,
/// because in real time every bring-up would sleep in its pauses.
#[test]
fn a_thousand_adapters_are_opened_and_closed_with_256_descriptors() {
    if !in_a_child("descriptors::a_thousand_adapters_are_opened_and_closed_with_256_descriptors") {
        return;
    }
    closed(opened("sim:first,time=virtual"));
    let before = open_descriptors();
    for number in 0..500 {
        let ia = opened(&format!("sim:{number},time=virtual"));
        let taken = open_descriptors() - before;
        assert!(taken <= ADAPTER, "{taken} descriptors");
        closed(ia);
        assert_eq!(open_descriptors(), before, "after sim:{number}");
    }
    for again in 0..500 {
        closed(opened("sim:first,time=virtual"));
        assert_eq!(open_descriptors(), before, "the {again}th time");
    }
}

#[test]
fn forty_adapters_are_open_at_once_with_256_descriptors() {
    if !in_a_child("descriptors::forty_adapters_are_open_at_once_with_256_descriptors") {
        return;
    }
    let before = open_descriptors();
    let adapters: Vec<Ia> = (0..40)
        .map(|number| opened(&format!("sim:{number}")))
        .collect();
    println!(
        "{} descriptors for 40 adapters",
        open_descriptors() - before
    );
    adapters.into_iter().for_each(closed);
    assert_eq!(open_descriptors(), before);
}

/// Functions on a wire return all descriptors, too. A wire is cut when its function is closed, and connected again by
/// the next open.
#[test]
fn functions_on_a_wire_give_everything_back_too() {
    if !in_a_child("descriptors::functions_on_a_wire_give_everything_back_too") {
        return;
    }
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("wire");
    let name = |side: u8| {
        let wire = path.display();
        format!("sim:wired{side},link=unix:{wire},mac=02:00:00:00:00:0{side}")
    };
    closed(opened(&name(1)));
    let before = open_descriptors();
    for _ in 0..100 {
        let first = opened(&name(1));
        let taken = open_descriptors() - before;
        assert!(taken <= WIRED, "{taken} descriptors");
        let second = opened(&name(2));
        closed(first);
        closed(second);
        assert_eq!(open_descriptors(), before);
        assert!(!path.exists());
    }
}
