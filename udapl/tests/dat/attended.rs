//! A background thread serves an adapter whose program makes no calls.

use std::path::Path;
use std::time::Duration;

use driver::{Clock, RealClock};
use hw_sim::Fault;
use nix::sys::signal::Signal;
use udapl::fabric::Fabric;
use udapl::{
    Adapter, CloseFlags, ConnQual, ConnectFlags, ConnectionEventKind as Kind, EpEvds, EvdFlags,
    Event, Ia, OpenOptions, Qos, Timeout,
};

use crate::support::{A, LONG};

/// Qualifier at which no service listens.
const NOBODY: ConnQual = ConnQual::service_id(0x1_0000_0099);

fn opened(name: &str, wire: &Path, side: u8) -> Ia {
    let (other, wire) = (3 - side, wire.display());
    let name = format!(
        "sim:{name}{side},link=unix:{wire},mac=02:00:00:00:01:0{side},address=192.0.2.{side},neighbour=192.0.2.{other}/02:00:00:00:01:0{other}"
    );
    udapl::ia_open(&name, &OpenOptions::default()).expect("an adapter")
}

fn closed(ia: Ia) {
    udapl::ia_close(ia, CloseFlags::Abrupt).expect("it closes");
}

/// Sends a connection request to the qualifier `NOBODY` of 192.0.2.2. Returns the kind of the connection event.
fn asked(ia: &mut Ia) -> Kind {
    let zone = Some(ia.pz_create().expect("a PZ"));
    let flags = EvdFlags::CONNECTION | EvdFlags::DTO;
    let evd = ia.evd_create(8, flags).expect("an EVD");
    let evds = EpEvds {
        recv: Some(evd),
        request: Some(evd),
        connect: Some(evd),
    };
    let ep = ia.ep_create(zone, evds, None).expect("an endpoint");
    let (peer, flags) = (
        "192.0.2.2".parse().expect("an address"),
        ConnectFlags::empty(),
    );
    ia.ep_connect(ep, peer, NOBODY, LONG, b"", Qos::BEST_EFFORT, flags)
        .expect("a connect");
    let (event, _) = ia
        .evd_wait(evd, Timeout::from_micros(120_000_000), 1)
        .expect("an event");
    let Event::Connection(event) = event else {
        panic!("of the connection, not {event:?}");
    };
    event.kind
}

/// Returns whether the threads of this name block SIGTERM.
fn takes_no_signal(name: &str) -> bool {
    let tasks = std::fs::read_dir("/proc/self/task").expect("our threads");
    let blocked: Vec<u64> = tasks
        .filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("status")).ok())
        .filter(|status| status.starts_with(&format!("Name:\t{name}\n")))
        .filter_map(|status| {
            let (_, mask) = status.split_once("\nSigBlk:\t")?;
            u64::from_str_radix(mask.lines().next()?, 16).ok()
        })
        .collect();
    let bit = 1 << (Signal::SIGTERM as i32 - 1);
    !blocked.is_empty() && blocked.iter().all(|mask| mask & bit != 0)
}

#[test]
fn a_request_is_answered_while_the_program_is_busy() {
    let directory = tempfile::tempdir().expect("a directory");
    let wire = directory.path().join("wire");
    let [mut asks, busy] = [1, 2].map(|side| opened("attended", &wire, side));
    let background = Adapter::of(&busy).background_thread().expect("a thread");
    // The test makes no call on the other adapter, so the background thread has to reject the request.
    assert_eq!(asked(&mut asks), Kind::NonPeerRejected);
    assert!(background.is_at_work());
    assert!(takes_no_signal("udapl-progress"));
    // The background thread keeps the adapter open until the thread ends.
    let adapter = Adapter::of(&busy);
    closed(busy);
    assert!(
        adapter
            .instance(udapl::adapter::IaConfig::default())
            .is_ok()
    );
    drop(background);
    assert!(
        adapter.background_thread().is_err(),
        "its last instance is gone"
    );
    closed(asks);
}

#[test]
fn an_attendant_ends_with_its_device() {
    let fabric = Fabric::pair(1);
    let ia = fabric.open(A).expect("an adapter");
    let background = Adapter::of(&ia).background_thread().expect("a thread");
    assert!(background.is_at_work());
    let dies = Fault::HealthSyndrome(1);
    fabric.sim.inject(&fabric.function(A), &dies);
    let clock = RealClock::new();
    for _ in 0..60_000 {
        if !background.is_at_work() {
            break;
        }
        clock.wait(&[], clock.now() + Duration::from_millis(1));
    }
    assert!(!background.is_at_work());
}
