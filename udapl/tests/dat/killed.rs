//! Keep-alive between processes: one process is killed, and the other process gets an event. This also holds if the
//! other process has posted only suppressed requests, whose queue slots stay in use after they have succeeded.
//!
//! Module `keep_alive` tests the time limits in virtual time. Here time is real, and is not measured.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use core::time::Duration;
use udapl::connection::EndCause;
use udapl::endpoint::{EpChange, EpTransport};
use udapl::memory::LmrSlice;
use udapl::{
    CompletionFlags, ConnQual, ConnectFlags, ConnectionEventKind as Kind, DtoCookie, EpEvds,
    EpHandle, EvdFlags, EvdHandle, Event, Ia, MemPrivFlags, OpenOptions, PspFlags, Qos, ia_open,
};

use crate::support::NONE;

/// Environment variable that names the child's adapter.
const CHILD: &str = "UDAPL_TEST_KILLED";
const SERVICE: ConnQual = ConnQual::service_id(0x1_0000_0077);
/// Time limit of each wait, long enough for a busy machine.
const PATIENCE: Duration = Duration::from_secs(300);

struct End {
    ia: Ia,
    evd: EvdHandle,
    ep: EpHandle,
    piece: LmrSlice,
}

impl End {
    fn open(name: &str) -> Self {
        let mut ia = ia_open(name, &OpenOptions::default()).expect("a function");
        let zone = ia.pz_create().expect("a zone");
        let flags = EvdFlags::DTO | EvdFlags::CONNECTION | EvdFlags::CR;
        let evd = ia.evd_create(64, flags).expect("an EVD");
        let ep = ia
            .ep_create(Some(zone), EpEvds::all(evd), None)
            .expect("an EP");
        let transport = EpTransport {
            keep_alive: Some(Duration::from_millis(500)),
            ack_timeout: Some(14),
            ..EpTransport::default()
        };
        let change = EpChange {
            transport: Some(transport),
            ..EpChange::default()
        };
        ia.ep_modify(ep, &change).expect("unconnected");
        let memory = udapl::alloc(&ia, 4096).expect("memory");
        let rights = MemPrivFlags::LOCAL_READ | MemPrivFlags::LOCAL_WRITE;
        let region = ia.lmr_create(memory, zone, rights).expect("a region");
        let piece = ia.lmr_slice(region.lmr, 0, 64).expect("inside");
        ia.ep_post_recv(ep, &[piece], DtoCookie(1), NONE)
            .expect("room");
        Self { ia, evd, ep, piece }
    }

    fn next(&mut self) -> Event {
        let event = self.ia.evd_wait(self.evd, PATIENCE, 1);
        event.expect("an event before the patience is over").0
    }
}

/// Program of the child process, which the other test kills. Without the environment variable `CHILD`, this test does
/// nothing.
#[test]
fn the_side_that_is_killed() {
    let Ok(name) = std::env::var(CHILD) else {
        return;
    };
    let mut end = End::open(&name);
    let psp = end.ia.psp_create(SERVICE, end.evd, PspFlags::CONSUMER);
    psp.expect("a service point");
    println!("listens");
    loop {
        match end.next() {
            Event::ConnectionRequest(request) => {
                let accepted = end.ia.cr_accept(request.cr, Some(end.ep), b"");
                accepted.expect("it may be accepted");
            }
            Event::Dto(_) => println!("has the message"),
            Event::Connection(_) | Event::RmrBind(_) | Event::Async(_) | Event::Software(_) => {}
        }
    }
}

#[test]
fn a_peer_whose_process_is_killed_is_noticed_after_a_send_suppressed_or_not() {
    for (flags, suffix) in [(NONE, 1), (CompletionFlags::SUPPRESS, 2)] {
        let folder = tempfile::tempdir().expect("a folder");
        let name = |side: u8| {
            let own = folder.path().file_name().expect("a name");
            format!(
                "sim:killed{side}-{},mac=02:00:00:00:0{suffix}:0{side},link=unix:{}",
                own.display(),
                folder.path().join("wire").display()
            )
        };
        let mut child = Command::new(std::env::current_exe().expect("this program"))
            .args(["--exact", "killed::the_side_that_is_killed", "--nocapture"])
            .env(CHILD, name(1))
            .stdout(Stdio::piped())
            .spawn()
            .expect("a child");
        let mut said = BufReader::new(child.stdout.take().expect("its output")).lines();
        let mut says = |what: &str| {
            let mut said = said.by_ref().map_while(Result::ok);
            assert!(said.any(|line| line.ends_with(what)), "the child: {what}");
        };
        let mut end = End::open(&name(2));
        says("listens");
        let there = format!("fe80::ff:fe00:{suffix:x}01");
        let there = there.parse().expect("an address");
        let (qos, none) = (Qos::BEST_EFFORT, ConnectFlags::empty());
        let asked = end
            .ia
            .ep_connect(end.ep, there, SERVICE, PATIENCE, b"", qos, none);
        asked.expect("it may ask");
        let Event::Connection(event) = end.next() else {
            panic!("no connection event");
        };
        assert_eq!(event.kind, Kind::Established);
        let posted = end
            .ia
            .ep_post_send(end.ep, &[end.piece], DtoCookie(2), flags);
        posted.expect("room");
        says("has the message");
        child.kill().expect("it runs");
        child.wait().expect("it has ended");
        let kind = loop {
            match end.next() {
                Event::Connection(event) => break event.kind,
                Event::Dto(_) => {}
                other @ (Event::ConnectionRequest(_)
                | Event::RmrBind(_)
                | Event::Async(_)
                | Event::Software(_)) => panic!("{other:?}"),
            }
        };
        assert_eq!(kind, Kind::Broken, "{flags:?}");
        let cause = end.ia.ep_end_cause(end.ep).expect("an EP");
        assert!(
            matches!(cause, Some(EndCause::KeepAlive { .. })),
            "{flags:?}: {cause:?}"
        );
    }
}
