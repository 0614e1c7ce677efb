//! Tests of two servers that are connected by a wire, like two machines with one function each.

use udapl::error::OpenError;
use udapl::{CloseFlags, ConnectionEventKind, DtoCookie, DtoStatus, Event, OpenOptions};

use crate::served::{NONE, Process, Side, connect};

/// Starts a server whose function is connected to the socket `wire`, and returns the function's name.
fn server(directory: &tempfile::TempDir, side: &str) -> (Process, String) {
    let path = |name: &str| directory.path().join(name).display().to_string();
    let link = format!("unix:{}", path("wire"));
    let mut server = Process::datctl(&["sim", "serve", "--socket", &path(side), "--link", &link]);
    let name = server.line();
    assert_eq!(name, format!("vfio-user:{}", path(side)));
    (server, name)
}

fn exchange(a: &mut Side, b: &mut Side, data: &[u8]) {
    let (from, to) = (a.buffer(Some(data), data.len()), b.buffer(None, data.len()));
    b.ia.ep_post_recv(b.ep, &[to.local()], DtoCookie(1), NONE)
        .expect("a receive");
    a.ia.ep_post_send(a.ep, &[from.local()], DtoCookie(2), NONE)
        .expect("a send");
    a.completes(2);
    b.completes(1);
    assert!(to.holds(data));
}

#[test]
fn functions_of_two_servers_talk_over_a_socket_and_again_when_one_server_is_new() {
    let directory = tempfile::tempdir().expect("a directory");
    let (_first, name_a) = server(&directory, "a");
    let (mut second, name_b) = server(&directory, "b");
    let [mut a, mut b] = connect(Side::open(&name_a), Side::open(&name_b));
    exchange(&mut a, &mut b, &[7; 20_000]);
    exchange(&mut b, &mut a, &[8; 20_000]);

    // The second server ends, as if its machine were switched off. Its client has a dead device, and the peer has a
    // broken connection.
    second.kill();
    let outbox = a.buffer(Some(b"is anybody there"), 16);
    a.ia.ep_post_send(a.ep, &[outbox.local()], DtoCookie(3), NONE)
        .expect("a send");
    let Event::Dto(done) = a.event() else {
        panic!("the end of the send");
    };
    assert_eq!(done.status, DtoStatus::ErrTransport);
    let Event::Connection(ended) = a.event() else {
        panic!("the end of the connection");
    };
    assert_eq!(ended.kind, ConnectionEventKind::Broken);
    let report = udapl::ia_close(b.ia, CloseFlags::Abrupt).expect("the adapter is gone");
    assert!(report.dead.is_some());
    // The function stays open until its memory is dropped.
    drop(outbox);
    a.close();

    let (_second, name_b) = server(&directory, "b");
    let [mut a, mut b] = connect(Side::open(&name_a), Side::open(&name_b));
    exchange(&mut a, &mut b, b"and again");
    a.close();
    b.close();
}

#[test]
fn a_link_has_two_ends_and_no_more() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = |name: &str| directory.path().join(name).display().to_string();
    let (a, b, link) = (path("a"), path("b"), format!("unix:{}", path("wire")));
    let mut server = Process::datctl(&[
        "sim", "serve", "--socket", &a, "--socket", &b, "--link", &link,
    ]);
    assert!(!server.child.wait().expect("it ends").success());
    assert!(udapl::ia_open(&format!("vfio-user:{a}"), &OpenOptions::default()).is_err());
}

/// Returns the name of a simulated function of this process that is connected to the socket `wire`.
fn wired(directory: &tempfile::TempDir, name: &str, wire: &str) -> String {
    let wire = directory.path().join(wire);
    format!(
        "sim:{name},link=unix:{},mac=02:00:00:00:00:07",
        wire.display()
    )
}

#[test]
fn a_function_of_this_process_talks_over_a_socket_to_one_of_another_and_again_when_it_is_opened_anew()
 {
    let directory = tempfile::tempdir().expect("a directory");
    let (_server, served) = server(&directory, "a");
    let own = wired(&directory, "wired", "wire");
    for data in [[7; 20_000], [8; 20_000]] {
        let [mut a, mut b] = connect(Side::open(&served), Side::open(&own));
        exchange(&mut a, &mut b, &data);
        exchange(&mut b, &mut a, &data);
        a.close();
        b.close();
    }
}

#[test]
fn a_wired_function_has_a_mac_of_its_own_and_one_wire() {
    let directory = tempfile::tempdir().expect("a directory");
    let open = |name: &str| udapl::ia_open(name, &OpenOptions::default());
    for name in [
        "sim:macless,link=unix:/nowhere/wire",
        "vfio-user:/nowhere,mac=02:00:00:00:00:07",
    ] {
        let refused = open(name).err();
        assert!(
            matches!(refused, Some(OpenError::BadOption { .. })),
            "{refused:?}"
        );
    }
    let nowhere = "sim:lost,link=unix:/nowhere/wire,mac=02:00:00:00:00:07";
    let refused = open(nowhere).err();
    assert!(
        matches!(refused, Some(OpenError::Link { .. })),
        "{refused:?}"
    );
    let first = open(&wired(&directory, "laid", "one")).expect("nobody is at the other end yet");
    let again = open(&wired(&directory, "laid", "one")).err();
    assert!(matches!(again, Some(OpenError::InUse { .. })), "{again:?}");
    udapl::ia_close(first, CloseFlags::Abrupt).expect("closed");
    let other = open(&wired(&directory, "laid", "other")).err();
    assert!(matches!(other, Some(OpenError::Link { .. })), "{other:?}");
}
