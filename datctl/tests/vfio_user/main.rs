//! Tests of the data path between processes. `datctl sim serve` serves two functions on one link, and this process or
//! another opens them by their sockets. This needs no virtual machine, privilege or kernel module.
//!
//! These tests run in real time. Waits have limits, and no test asserts a duration.

#[path = "../../../udapl/tests/dat/support/functions.rs"]
mod functions;
mod killed;
mod lent;
mod linked;
mod perftest;
mod served;

use served::{NONE, Process, Served, Side, connected, pattern};
use udapl::{CloseFlags, DtoCookie, MemPrivFlags, OpenOptions};

#[test]
fn all_four_kinds_of_dto_move_bytes_between_functions_of_another_process() {
    let served = Served::new(&[]);
    let [mut a, mut b] = connected(&served);
    let bytes = 50_000;
    let (sent, written, asked) = (pattern(1, bytes), pattern(2, bytes), pattern(3, bytes));

    let (from, to) = (a.buffer(Some(&sent), bytes), b.buffer(None, bytes));
    b.ia.ep_post_recv(b.ep, &[to.local()], DtoCookie(1), NONE)
        .expect("a receive");
    a.ia.ep_post_send(a.ep, &[from.local()], DtoCookie(2), NONE)
        .expect("a send");
    a.completes(2);
    b.completes(1);
    assert!(to.holds(&sent));

    from.memory.write_from(0, &written).expect("inside");
    a.ia.ep_post_rdma_write(a.ep, &[from.local()], DtoCookie(3), &to.remote(), NONE)
        .expect("a write");
    a.completes(3);
    assert!(to.holds(&written));

    let (source, target) = (b.buffer(Some(&asked), bytes), a.buffer(None, bytes));
    a.ia.ep_post_rdma_read(
        a.ep,
        &[target.local()],
        DtoCookie(4),
        &source.remote(),
        NONE,
    )
    .expect("a read");
    a.completes(4);
    assert!(target.holds(&asked));

    a.close();
    b.close();
}

#[test]
fn a_capture_of_what_two_processes_said_is_whole_while_the_server_still_runs() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("wire.pcapng");
    let mut served = Served::new(&["--pcap", &file.display().to_string(), "--seed", "7"]);
    let mut listener = Process::datctl(&["ping", &served.name("a"), "--listen"]);
    let address = listener
        .line()
        .strip_prefix("listening on ")
        .expect("an address")
        .to_owned();
    let mut pinger = Process::datctl(&[
        "ping",
        &served.name("b"),
        "--connect",
        &address,
        "--count",
        "5",
    ]);
    assert!(pinger.child.wait().expect("it ends").success());
    assert_eq!(listener.line(), "answered 5 messages");
    assert!(listener.child.wait().expect("it ends").success());
    // The server flushes the capture whenever it is idle. Opening a function once more gives it time for that.
    Side::open(&served.name("a")).close();
    served.server.kill();
    let capture = std::fs::read(&file).expect("the capture");
    assert!(capture.len() > 10 * 64, "{} bytes", capture.len());
}

#[test]
fn a_client_that_is_killed_leaves_a_function_that_the_next_one_can_use() {
    let served = Served::new(&[]);
    for _ in 0..3 {
        let mut listener = Process::datctl(&["ping", &served.name("a"), "--listen"]);
        assert!(listener.line().starts_with("listening on fe80::"));
        listener.kill();
    }
    let [a, b] = connected(&served);
    a.close();
    b.close();
}

#[test]
fn a_server_that_is_killed_is_a_dead_device_and_not_a_dead_client() {
    let mut served = Served::new(&[]);
    let [mut a, _b] = connected(&served);
    served.server.kill();
    let memory = udapl::alloc(&a.ia, 4096).expect("memory that is mapped already");
    let region = a.ia.lmr_create(memory, a.pz, MemPrivFlags::all());
    assert!(
        region.is_err(),
        "a region of a device that is gone: {region:?}"
    );
    // The close of a dead device reports that the device was dead. The close neither panics nor waits for ever.
    let report = udapl::ia_close(a.ia, CloseFlags::Abrupt).expect("the adapter is gone");
    assert!(report.dead.is_some(), "{report:?}");
}

#[test]
fn a_socket_that_nobody_serves_is_an_error_with_its_path() {
    let error = udapl::ia_open("vfio-user:/nonexistent/nic.sock", &OpenOptions::default())
        .expect_err("nobody is there")
        .to_string();
    assert!(
        error.contains("/nonexistent/nic.sock: no server there: `datctl sim serve --socket /nonexistent/nic.sock`"),
        "{error}"
    );
    assert!(matches!(
        udapl::ia_open("vfio-user:", &OpenOptions::default()),
        Err(udapl::error::OpenError::NotFound { .. })
    ));
}
