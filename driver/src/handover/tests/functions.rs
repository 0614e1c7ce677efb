//! A function of a vfio-user server that goes over a socket and back. The server sees one client.

use std::os::unix::net::UnixListener;
use std::sync::Arc;
use std::thread;

use super::*;
use crate::double::Double;
use crate::{DmaArena, Function, FunctionSnapshot, ResumeError, VfioUserServer};

fn park(function: Function) -> (FunctionSnapshot, Vec<NamedFd>) {
    function.park().map_err(|(_, error)| error).expect("parked")
}

fn resume(snapshot: &FunctionSnapshot, fds: Vec<NamedFd>) -> Function {
    let resumed = Function::resume(snapshot, fds);
    resumed.map_err(|(_, error)| error).expect("resumed")
}

#[test]
fn a_function_goes_over_and_comes_back_if_it_is_refused() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("nic.sock");
    let double = Double::new();
    let listener = UnixListener::bind(&path).expect("a listener");
    let server = VfioUserServer::new(Arc::new(double.clone()), listener);
    let served = thread::spawn(move || server.serve_next().expect("a client"));

    let function = Function::vfio_user(&path).expect("a function");
    function.set_bus_master(true).expect("a register");
    let arena = DmaArena::with_chunk_bytes(&function, 1 << 16).expect("an arena");
    let buffer = arena.alloc(64, 64).expect("a buffer");
    buffer.write_bytes(0, b"before");
    let (at, bytes) = (buffer.iova(), buffer.len());
    function.hold_mappings();
    let arena_snapshot = arena.snapshot().expect("a snapshot");
    drop((buffer, arena));
    let (snapshot, fds) = park(function);

    // The receiver has resumed the function, and refuses it: it parks it first, which changes nothing.
    let (ours, theirs) = pair();
    let refused = thread::scope(|scope| {
        scope.spawn(|| {
            let offer = receive(theirs, far()).expect("an offer");
            let function = resume(&snapshot, offer.descriptors);
            drop(park(function));
            offer.answer.refuse("not this one");
        });
        let receiver = await_receiver(ours, far()).expect("ready");
        receiver.send(SNAPSHOT, fds, far()).expect_err("refused")
    });
    assert!(
        matches!(refused.error, HandoverError::Refused { .. }),
        "{refused}"
    );
    let function = resume(&snapshot, refused.descriptors);
    let (snapshot, fds) = park(function);

    // The sender's deadline passes while the receiver has the function resumed. Its driving lock holds the sender off
    // until the receiver has learnt that it may not adopt, and has parked the function.
    let (ours, theirs) = pair();
    let mut peer = Some(theirs);
    let mut offer = None;
    send_raw(peer.as_ref().expect("a socket"), &header(1, 1, 0), &[]);
    let receiver = await_receiver_by(ours, &mut at_once).expect("ready");
    let mut wait = |fd: BorrowedFd<'_>, events| {
        if let Some(theirs) = peer.take() {
            offer = Some(receive_by(theirs, &mut at_once).expect("an offer"));
        }
        at_once(fd, events)
    };
    let late = receiver.send_by(SNAPSHOT, fds, &mut wait);
    let late = late.expect_err("too late");
    let offer = offer.expect("an offer");
    let theirs = resume(&snapshot, offer.descriptors);
    let (fds, error) = Function::resume(&snapshot, late.descriptors).expect_err("locked");
    assert!(matches!(error, ResumeError::Resumed { .. }), "{error}");
    let error = offer.answer.adopt().expect_err("claimed by the sender");
    assert!(matches!(error, HandoverError::Claimed), "{error}");
    drop(park(theirs));
    let function = resume(&snapshot, fds);
    let (snapshot, fds) = park(function);

    // The receiver adopts.
    let (ours, theirs) = pair();
    let function = thread::scope(|scope| {
        let receiver = scope.spawn(|| {
            let offer = receive(theirs, far()).expect("an offer");
            let function = resume(&snapshot, offer.descriptors);
            offer.answer.adopt().expect("adopted");
            function
        });
        let waiting = await_receiver(ours, far()).expect("ready");
        let sent = waiting.send(SNAPSHOT, fds, far()).expect("sent");
        assert!(sent.unacknowledged.is_none());
        receiver.join().expect("a receiver")
    });
    let arena = DmaArena::resume(&function, &arena_snapshot).expect("an arena");
    let buffer = arena.claim(at, bytes).expect("the buffer");
    assert_eq!(buffer.read_obj::<[u8; 6]>(0), *b"before");
    assert_eq!(double.resets(), 0);
    drop((buffer, arena, function));
    served.join().expect("a server");
}
