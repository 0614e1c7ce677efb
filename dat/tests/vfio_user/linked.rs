//! Two servers with a wire between them: as two machines, each with its own function.

use dat::{CloseFlags, ConnectionEventKind, DtoStatus, Event, OpenOptions};

use crate::served::{NONE, Process, Side, connect};

/// A server whose function's wire ends at `wire`, and the function's name.
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
    b.ia.ep_post_recv(b.ep, &[to.local()], 1, NONE)
        .expect("a receive");
    a.ia.ep_post_send(a.ep, &[from.local()], 2, NONE)
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

    // The other machine is switched off: its consumer has a dead device, ours a connection that breaks.
    second.kill();
    let outbox = a.buffer(Some(b"is anybody there"), 16);
    a.ia.ep_post_send(a.ep, &[outbox.local()], 3, NONE)
        .expect("a send");
    let Event::Dto(done) = a.event() else {
        panic!("the end of the send");
    };
    assert_eq!(done.status, DtoStatus::ErrTransport);
    let Event::Connection(ended) = a.event() else {
        panic!("the end of the connection");
    };
    assert_eq!(ended.kind, ConnectionEventKind::Broken);
    let report = dat::ia_close(b.ia, CloseFlags::Abrupt).expect("the adapter is gone");
    assert!(report.dead.is_some());
    // Memory of a function keeps it open.
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
    assert!(dat::ia_open(&format!("vfio-user:{a}"), &OpenOptions::default()).is_err());
}
