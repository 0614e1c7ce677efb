//! A function of a vfio-user server that goes over a socket and back. The server sees one client.

use std::os::unix::net::UnixListener;
use std::sync::Arc;
use std::thread;

use super::*;
use crate::double::Double;
use crate::{
    DmaArena, Function, FunctionError, FunctionSnapshot, Iova, ResumeError, SharedMemory,
    UnclaimedFunction, VfioUserServer,
};

fn park(function: Function) -> (FunctionSnapshot, Vec<NamedFd>) {
    function.park().map_err(|(_, error)| error).expect("parked")
}

fn resume(snapshot: &FunctionSnapshot, fds: Vec<NamedFd>) -> UnclaimedFunction {
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

    // The receiver has resumed the function, and refuses it. A drop without a claim changes nothing.
    let (ours, theirs) = pair();
    let refused = thread::scope(|scope| {
        scope.spawn(|| {
            let offer = receive(theirs, far()).expect("an offer");
            drop(resume(&snapshot, offer.descriptors));
            offer.claim.refuse("not this one");
        });
        let receiver = await_receiver(ours, far()).expect("ready");
        receiver.send(SNAPSHOT, fds, far()).expect_err("refused")
    });
    assert!(
        matches!(refused.error, HandoverError::Refused { .. }),
        "{refused}"
    );
    let function = resume(&snapshot, refused.descriptors).go_on(&Claimed::by_caller());
    let (snapshot, fds) = park(function);

    // The sender's deadline passes while the receiver has the function resumed. Its driving lock holds the sender off
    // until the receiver's claim has failed, and it has parked the function.
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
    let mut late_socket = late;
    let late = std::mem::take(&mut late_socket.descriptors);
    let (fds, error) = Function::resume(&snapshot, late).expect_err("locked");
    let waited = late_socket.wait_for_receiver(Instant(0));
    assert!(
        matches!(waited, Err(HandoverError::Silent { .. })),
        "{waited:?}"
    );
    assert!(matches!(error, ResumeError::Resumed { .. }), "{error}");
    let refused = offer.claim.take().expect_err("claimed by the sender");
    assert!(matches!(refused.error, HandoverError::Claimed), "{refused}");
    drop(theirs.park());
    late_socket.wait_for_receiver(far()).expect("closed");
    let function = resume(&snapshot, fds).go_on(&Claimed::by_caller());
    let (snapshot, fds) = park(function);

    // The receiver claims the handover, and goes on.
    let (ours, theirs) = pair();
    let function = thread::scope(|scope| {
        let receiver = scope.spawn(|| {
            let offer = receive(theirs, far()).expect("an offer");
            let function = resume(&snapshot, offer.descriptors);
            let claimed = offer.claim.take().expect("claimed");
            let function = function.go_on(&claimed);
            claimed.end(Ok(()));
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

/// Every request that would change something is refused before the claim, whichever object makes it. The same objects
/// can make it afterwards.
#[test]
fn an_unclaimed_function_is_only_read() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("nic.sock");
    let double = Double::new();
    let listener = UnixListener::bind(&path).expect("a listener");
    let server = VfioUserServer::new(Arc::new(double.clone()), listener);
    let served = thread::spawn(move || server.serve_next().expect("a client"));
    let function = Function::vfio_user(&path).expect("a function");
    function.set_bus_master(true).expect("a register");
    let own = SharedMemory::anonymous(1 << 12).expect("memory");
    function
        .dma_map(Iova(0x1000), &own, 0, 1 << 12)
        .expect("a mapping");
    let arena = DmaArena::with_chunk_bytes(&function, 1 << 16).expect("an arena");
    let buffer = arena.alloc(64, 64).expect("a buffer");
    let (at, bytes) = (buffer.iova(), buffer.len());
    function.hold_mappings();
    let arena_snapshot = arena.snapshot().expect("a snapshot");
    drop((buffer, arena, own));
    let (snapshot, mut fds) = park(function);
    let mapped = double.mappings();

    let check = |function: &Function, arena: &DmaArena, memory: &SharedMemory| {
        let refused = [
            function.set_bus_master(true),
            function.set_bus_master(false),
            function.config_write_u16(4, 0),
            function.stop(),
            function.reset(),
            function.dma_map(Iova(0x8000), memory, 0, 1 << 12),
            function.dma_unmap(Iova(0x1000), 1 << 12),
            function.enable_interrupts(1).map(drop),
            Function::in_process_in(Arc::new(Double::new()), &function.dma_space()).map(drop),
        ];
        let mut refusals: Vec<String> = Vec::new();
        for result in &refused {
            let error = result.as_ref().expect_err("refused");
            assert!(matches!(error, FunctionError::Unclaimed { .. }), "{error}");
            refusals.push(error.to_string());
        }
        refusals.sort();
        refusals.dedup();
        assert_eq!(refusals.len(), 8, "{refusals:#?}");
        // The chunk has no room for this, and a new one would be a new mapping.
        arena.alloc(1 << 16, 64).expect_err("refused");
        assert_eq!(function.release_mappings(), []);
        assert_eq!(function.config_read_u16(4).expect("a register"), 6);
    };
    // Each round drops the function, its clone and its memory in another order.
    for round in 0..3 {
        let unclaimed = resume(&snapshot, fds);
        let arena = DmaArena::resume(&unclaimed, &arena_snapshot).expect("an arena");
        let buffer = arena.claim(at, bytes).expect("the buffer");
        let own = unclaimed
            .claim_mapping(Iova(0x1000), 1 << 12)
            .expect("the memory");
        check(&unclaimed, &arena, &own);
        let clone = unclaimed.clone();
        if round == 1 {
            drop((buffer, arena));
            fds = unclaimed.park();
            drop(clone);
        } else {
            fds = unclaimed.park();
            check(&clone, &arena, &own);
            drop(clone);
            drop((arena, buffer));
        }
        assert_eq!(
            (double.mappings(), double.resets()),
            (mapped.clone(), 0),
            "{round}"
        );
        assert_eq!(double.times_interrupts_set(), 0);
    }
    let unclaimed = resume(&snapshot, fds);
    let clone = unclaimed.clone();
    let function = unclaimed.go_on(&Claimed::by_caller());
    clone.set_bus_master(false).expect("a register");
    drop(clone);
    assert_eq!(function.release_mappings().len(), 2);
    drop(function);
    served.join().expect("a server");
}
