//! Memory without a descriptor, accessed over the twin socket ("twin_socket", libvfio-user `docs/vfio-user.rst`).

// UNSAFETY: tests lend memory, as a consumer would.
#![expect(unsafe_code, reason = "lending is unsafe")]

use std::io::Write;
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use nix::errno::Errno;
use zerocopy::{FromZeros, IntoBytes};

use super::super::message::{self as wire, Command, DeviceInfo, DmaAccess, IrqInfo};
use super::super::socket::{self, Message, Socket};
use super::super::twin_client::TwinClient;
use super::super::{Server, VfioUserError};
use super::{Raw, Rig, Sample, map, unmap, version};
use crate::double::Double;
use crate::fronted::{Front, Fronted};
use crate::{Be32, Device, DmaError, Function, FunctionError, Iova, LentMemory, SharedMemory};

/// Time limit of the server: short, to keep the tests short, but long compared with the needs of an honest client on
/// a busy machine.
const PATIENCE: Duration = Duration::from_secs(3);
const PAGE: usize = 4096;
/// Capabilities of a client that serves accesses to its memory.
const TWIN: &[u8] = b"{\"capabilities\":{\"twin_socket\":{\"supported\":true}}}\0";

/// Returns whole pages of the program's heap, which are never freed.
fn heap(pages: usize) -> *mut u8 {
    let bytes = vec![0; (pages + 1) * PAGE].leak().as_mut_ptr();
    bytes.wrapping_add(bytes.align_offset(PAGE))
}

fn lend(function: &Function, at: *mut u8, bytes: usize) -> Result<Arc<LentMemory>, DmaError> {
    // SAFETY: the memory is never freed, and the test accesses it only by copies.
    unsafe { LentMemory::new(function, at, bytes) }
}

fn put(at: *mut u8, bytes: &[u8]) {
    for (index, &byte) in bytes.iter().enumerate() {
        // SAFETY: the byte is inside memory of `heap`.
        unsafe { at.wrapping_add(index).write_volatile(byte) };
    }
}

fn get(at: *mut u8, bytes: usize) -> Vec<u8> {
    // SAFETY: the byte is inside memory of `heap`.
    let byte = |index| unsafe { at.wrapping_add(index).read_volatile() };
    (0..bytes).map(byte).collect()
}

fn pattern(bytes: usize, seed: usize) -> Vec<u8> {
    (0..bytes)
        .map(|at| u8::try_from((at * 7 + at / 256 + seed) % 251).unwrap())
        .collect()
}

#[test]
fn lent_memory_is_read_and_written_by_messages_until_it_is_given_back() {
    let rig = Rig::new(1);
    let function = rig.function();
    let (pages, bytes) = (40, 40 * PAGE);
    let at = heap(pages);
    // The length is more than two messages of MAX_DATA, and not a multiple of it.
    let lent = lend(&function, at, bytes - 10).unwrap();
    let iova = lent.iova().0;
    assert_eq!(rig.double.asked(), [(iova, bytes)]);
    assert_eq!(rig.double.mappings(), [], "there is nothing to be mapped");
    let memory = rig.double.asks(iova);
    put(at, &pattern(bytes, 1));
    let mut seen = vec![0; bytes - 13];
    memory.read(iova + 3, &mut seen).unwrap();
    assert_eq!(seen, pattern(bytes, 1)[3..bytes - 10]);
    memory.write(iova + 1, &pattern(bytes - 15, 2)).unwrap();
    let now = get(at, bytes);
    assert_eq!(now[1..bytes - 14], pattern(bytes - 15, 2));
    let kept = [0, bytes - 14, bytes - 13, bytes - 11, bytes - 1];
    assert!(kept.iter().all(|&at| now[at] == pattern(bytes, 1)[at]));

    drop(lent);
    assert_eq!(rig.double.asked(), []);
    let refused = memory.write(iova, &[9; 4]).unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(Errno::EFAULT as i32));
    assert_eq!(get(at, bytes), now);
    // A refusal fails one access and does not end the connection.
    let again = lend(&function, at, 16).unwrap();
    let memory = rig.double.asks(again.iova().0);
    memory.write(again.iova().0, &[9; 4]).unwrap();
    assert_eq!(get(at, 4), [9; 4]);
    drop((again, function));
    rig.finished();
}

/// A server can access only the bytes that are lent. A mapping outlives memory lent through it if a piece is still
/// lent, and its other pages may then have other owners.
#[test]
fn access_by_message_is_limited_to_the_lent_bytes() {
    let rig = Rig::new(1);
    let function = rig.function();
    let at = heap(4);
    let whole = lend(&function, at, 4 * PAGE).unwrap();
    let iova = whole.iova().0;
    let memory = rig.double.asks(iova);
    let piece = lend(&function, at.wrapping_add(PAGE + 10), 100).unwrap();
    let other = whole.part(2 * PAGE, 8).unwrap();
    assert_eq!(rig.double.asked(), [(iova, 4 * PAGE)]);
    drop(whole);
    memory.read(iova, &mut vec![0; 4 * PAGE]).unwrap();
    drop(other);
    let inside = iova + 4096 + 10;
    memory.write(inside, &[1; 100]).unwrap();
    for (address, bytes) in [
        (inside - 1, 1),
        (inside - 1, 101),
        (inside, 101),
        (inside + 100, 1),
        (iova, 4096),
        (iova + 3 * 4096, 4),
    ] {
        assert!(memory.write(address, &vec![2; bytes]).is_err());
        assert!(memory.read(address, &mut vec![0; bytes]).is_err());
    }
    let now = get(at, 4 * PAGE);
    assert!(
        now.iter()
            .enumerate()
            .all(|(at, &byte)| { byte == u8::from((PAGE + 10..PAGE + 110).contains(&at)) })
    );
    // The owner has the memory back, although a reference remains.
    piece.withdraw();
    assert!(memory.read(inside, &mut [0]).is_err());
    assert_eq!(rig.double.asked(), [(iova, 4 * PAGE)]);
    drop(piece);
    assert_eq!(rig.double.asked(), []);
}

#[test]
fn memory_that_the_device_does_not_take_is_not_reached() {
    let rig = Rig::new(1);
    let function = rig.function();
    let at = heap(2);
    let first = lend(&function, at, 16).unwrap();
    let memory = rig.double.asks(first.iova().0);
    rig.double.set_refuses_dma(true);
    let next = at.wrapping_add(PAGE);
    let refused = lend(&function, next, 16).unwrap_err().to_string();
    assert!(refused.contains("DMA_MAP: refused"), "{refused}");
    rig.double.set_refuses_dma(false);
    // The refused memory would have one of these addresses: I/O addresses are congruent to those of memory, and the
    // next ones are free.
    for page in 0..16 {
        let iova = (first.iova().0 & !0xffff) + page * 4096;
        let reached = memory.write(iova, &[1; 8]).is_ok();
        assert_eq!(reached, iova == first.iova().0, "{iova:#x}");
    }
    assert_eq!(get(next, 8), [0; 8]);
}

/// A device that accesses client memory when a register is written, before the client gets its next reply.
struct Reading {
    seen: Mutex<Vec<u8>>,
}

impl Front<Double> for Reading {
    fn bar_written(&self, device: &Double, index: u8, offset: u64, bytes: &[u8]) {
        device.bar_written(index, offset, bytes);
        if let [(iova, _)] = device.asked()[..] {
            let mut seen = vec![0; 4];
            device.asks(iova).read(iova, &mut seen).unwrap();
            device.asks(iova).write(iova + 4, &[6; 4]).unwrap();
            *self.seen.lock().unwrap() = seen;
        }
    }
}

/// A client serves accesses to its memory while it waits for a reply of the device that makes these accesses.
#[test]
fn a_client_answers_for_memory_while_it_waits_for_an_answer() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("nic.sock");
    let device = Arc::new(Fronted {
        device: Arc::new(Double::new()),
        front: Reading {
            seen: Mutex::default(),
        },
    });
    let server = Server::new(
        Arc::clone(&device) as Arc<dyn Device>,
        UnixListener::bind(&path).unwrap(),
    );
    let served = thread::spawn(move || server.serve_next().unwrap());
    let function = Function::vfio_user(&path).unwrap();
    let at = heap(1);
    put(at, &[5; 4]);
    let lent = lend(&function, at, 8).unwrap();
    let block = function.bar(0).unwrap().block::<Sample>(0).unwrap();
    block.write(|r| &r.control, Be32::new(1));
    assert_eq!(block.read(|r| &r.control).get(), 1);
    assert_eq!(*device.front.seen.lock().unwrap(), [5; 4]);
    assert_eq!(get(at, 8), [5, 5, 5, 5, 6, 6, 6, 6]);
    drop((lent, block, function));
    served.join().unwrap();
}

/// A client's end of the twin socket with two pages at 0x1000 and one at 0x8000, and the server's end.
struct Ends {
    client: TwinClient,
    main: Arc<Socket>,
    memory: SharedMemory,
    server: Raw,
    /// Server's end of the main socket.
    far: Socket,
}

impl Ends {
    fn new() -> Self {
        let (main, far) = UnixStream::pair().unwrap();
        let main = Arc::new(Socket::new(main).unwrap());
        let (server, fd) = Socket::pair(Duration::from_secs(300)).unwrap();
        let client = TwinClient::new("ends", fd, &main).unwrap();
        let memory = SharedMemory::anonymous(5 * PAGE).unwrap();
        client.insert(0x1000, &memory, PAGE, 2 * PAGE).unwrap();
        client.insert(0x8000, &memory, 4 * PAGE, PAGE).unwrap();
        Self {
            client,
            main,
            memory,
            server: Raw {
                socket: server,
                id: 7,
            },
            far: Socket::new(far).unwrap(),
        }
    }
}

fn access(address: u64, count: u64, data: &[u8]) -> Vec<u8> {
    let access = DmaAccess {
        address: address.into(),
        count: count.into(),
    };
    [access.as_bytes(), data].concat()
}

#[test]
fn requests_reach_what_is_mapped_and_nothing_else() {
    let mut ends = Ends::new();
    let refused: Vec<(Command, Vec<u8>)> = vec![
        (Command::DMA_READ, vec![]),
        (Command::DMA_READ, vec![0; 15]),
        (Command::DMA_READ, access(0x1000, 0, &[])),
        (Command::DMA_READ, access(0x1000, 4, &[0; 4])),
        (Command::DMA_READ, access(0x0fff, 2, &[])),
        (Command::DMA_READ, access(0x2fff, 2, &[])),
        (Command::DMA_READ, access(0x3000, 1, &[])),
        (Command::DMA_READ, access(0x1000, 0x2001, &[])),
        (Command::DMA_READ, access(0x1000, 65_537, &[])),
        (Command::DMA_READ, access(0x1000, u64::MAX, &[])),
        (Command::DMA_READ, access(0, 1, &[])),
        (Command::DMA_READ, access(0x9000, 1, &[])),
        (Command::DMA_READ, access(u64::MAX, 1, &[])),
        (Command::DMA_READ, access(u64::MAX, u64::MAX, &[])),
        (Command::DMA_WRITE, vec![]),
        (Command::DMA_WRITE, access(0x1000, 0, &[])),
        (Command::DMA_WRITE, access(0x1000, 4, &[1; 3])),
        (Command::DMA_WRITE, access(0x1000, 4, &[1; 5])),
        (Command::DMA_WRITE, access(0x0fff, 2, &[1; 2])),
        (Command::DMA_WRITE, access(0x2ffd, 4, &[1; 4])),
        (Command::DMA_WRITE, access(0x7fff, 1, &[1])),
        (Command::DMA_WRITE, access(u64::MAX - 1, 4, &[1; 4])),
        (Command::DMA_MAP, map(3, 0, 0x1000, 4096)),
        (Command::REGION_READ, vec![0; 16]),
        (Command(0), vec![]),
        (Command(0xffff), vec![1; 100]),
    ];
    for (command, payload) in refused {
        let answer = ends.server.ask(command, &payload, &[]);
        assert!(answer.is_err(), "{command} {payload:02x?}: {answer:?}");
    }
    let page = SharedMemory::anonymous(PAGE).unwrap();
    let with_descriptor = ends.server.ask(
        Command::DMA_READ,
        &access(0x1000, 4, &[]),
        &[page.as_fd().unwrap()],
    );
    assert_eq!(with_descriptor, Err(Errno::EINVAL));
    let mut all = vec![1; 5 * PAGE];
    ends.memory.read_bytes(0, &mut all);
    assert_eq!(all, vec![0; 5 * PAGE]);

    ends.memory.write_bytes(3 * PAGE - 2, &[3, 4]);
    let read = ends
        .server
        .ask(Command::DMA_READ, &access(0x2ffe, 2, &[]), &[]);
    assert_eq!(read.unwrap(), access(0x2ffe, 2, &[3, 4]));
    let write = access(0x8000, 3, &[7, 8, 9]);
    let written = ends.server.ask(Command::DMA_WRITE, &write, &[]).unwrap();
    assert_eq!(written, access(0x8000, 3, &[]));
    assert_eq!(ends.memory.read_obj::<[u8; 4]>(4 * PAGE), [7, 8, 9, 0]);
    // A request that wants no reply gets none. The next reply is the one to the next request.
    let (id, silent) = (1, access(0x8003, 1, &[5]));
    let header = (id, Command::DMA_WRITE.0, wire::NO_REPLY, 0);
    socket::send(&ends.server.socket, header, &[&silent], &[]).unwrap();
    let read = ends
        .server
        .ask(Command::DMA_READ, &access(0x8002, 2, &[]), &[]);
    assert_eq!(read.unwrap(), access(0x8002, 2, &[9, 5]));
}

#[test]
fn a_server_that_does_not_keep_the_rules_is_lost_on_both_sockets_and_reaches_nothing() {
    let header = super::header;
    let cases: [(&str, Vec<u8>); 5] = [
        ("nothing", vec![]),
        ("half a header", vec![0; 9]),
        ("a reply", header(Command::DMA_READ, 16, 1)),
        ("less than a header", header(Command::DMA_READ, 15, 0)),
        ("4 GiB", header(Command::DMA_WRITE, u32::MAX, 0)),
    ];
    for (case, bytes) in cases {
        let (mut stream, fd) = UnixStream::pair().unwrap();
        let (main, far) = UnixStream::pair().unwrap();
        let main = Arc::new(Socket::new(main).unwrap());
        let client = TwinClient::new("ends", fd.into(), &main).unwrap();
        let memory = SharedMemory::anonymous(PAGE).unwrap();
        client.insert(0x1000, &memory, 0, PAGE).unwrap();
        stream.write_all(&bytes).unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        let far = Socket::new(far).unwrap();
        assert!(matches!(far.receive(|| true), Ok(None)), "{case}");
        let failure = client.failure().unwrap();
        assert!(failure.starts_with("twin socket: "), "{case}: {failure}");
        assert!(client.insert(0x2000, &memory, 0, PAGE).is_err(), "{case}");
        // After the drop, only the test holds the memory.
        drop(client);
        assert_eq!(memory.load_u8(0), 0);
    }
}

/// A write that the client has answered is complete. A write that arrives while the memory is removed has no effect
/// after the removal.
#[test]
fn no_request_reaches_memory_behind_its_removal() {
    for _ in 0..50 {
        let mut ends = Ends::new();
        let (removed, server) = (Arc::new(AtomicBool::new(false)), &mut ends.server);
        thread::scope(|scope| {
            let over = Arc::clone(&removed);
            let writer = scope.spawn(move || {
                let mut value = 1;
                loop {
                    let was_over = over.load(Ordering::Acquire);
                    let write = access(0x1000, 8192, &[value; 8192]);
                    let answer = server.ask(Command::DMA_WRITE, &write, &[]);
                    match answer {
                        Ok(_) => assert!(!was_over, "written behind the removal"),
                        Err(errno) => {
                            assert_eq!(errno, Errno::EFAULT);
                            if was_over {
                                return;
                            }
                        }
                    }
                    value = value.wrapping_add(1);
                }
            });
            while ends.memory.load_u8(PAGE) < 3 {
                std::hint::spin_loop();
            }
            ends.client.remove(0x1000);
            let mut now = vec![0; 8192];
            ends.memory.read_bytes(PAGE, &mut now);
            removed.store(true, Ordering::Release);
            writer.join().unwrap();
            let mut later = vec![0; 8192];
            ends.memory.read_bytes(PAGE, &mut later);
            assert_eq!(now, later);
            assert!(now.iter().all(|&byte| byte == now[0]), "a write is whole");
        });
    }
}

#[test]
fn a_client_that_lost_its_server_answers_it_no_more() {
    let ends = Ends::new();
    ends.client.end();
    assert!(matches!(ends.server.socket.receive(|| true), Ok(None)));
    assert!(ends.client.failure().is_none(), "it did nothing");
    drop(ends.client);
    drop(ends.main);
    assert!(matches!(ends.far.receive(|| true), Ok(None)));
}

/// If the thread finds the fault first, both sockets are shut down. If the sockets are handed over first, they stay
/// open for the next process.
#[test]
fn a_fault_on_the_twin_socket_shuts_no_socket_down_that_was_handed_over() {
    for round in 0..500 {
        let ends = Ends::new();
        ends.server.socket.shut_down();
        for _ in 0..round * 20 {
            std::hint::spin_loop();
        }
        ends.client.part();
        let is_failed = ends.client.failure().is_some();
        let is_open = ends.main.check_quiet().is_ok();
        assert_eq!(is_open, !is_failed, "round {round}");
    }
    // Here the thread is first.
    let ends = Ends::new();
    ends.server.socket.shut_down();
    while ends.client.failure().is_none() {
        thread::yield_now();
    }
    ends.client.part();
    assert!(ends.main.check_quiet().is_err());
}

/// Connects a client with a twin socket, exchanges VERSION, and maps a page at 0x1000 that is accessed by messages.
fn with_twin(path: &std::path::Path) -> (Raw, Socket) {
    let mut raw = Raw::connect(path);
    let reply = raw.ask_message(Command::VERSION, &version(TWIN), &[]);
    let Message { payload, fds, .. } = reply.unwrap();
    let twin = wire::twin_socket(&payload[4..]).unwrap();
    assert_eq!((twin.fd_index, fds.len()), (Some(0), 1));
    let fd = fds.into_iter().next().unwrap();
    raw.ask(Command::DMA_MAP, &map(3, 0, 0x1000, 4096), &[])
        .unwrap();
    (raw, Socket::new(fd.into()).unwrap())
}

/// Starts a server with short time limits that serves `clients` clients and then ends.
fn impatient(clients: usize) -> (Double, PathBuf, tempfile::TempDir, JoinHandle<()>) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("nic.sock");
    let double = Double::new();
    let listener = UnixListener::bind(&path).unwrap();
    let server = Server::new(Arc::new(double.clone()), listener).with_patience(PATIENCE);
    let served = thread::spawn(move || (0..clients).for_each(|_| server.serve_next().unwrap()));
    (double, path, directory, served)
}

#[test]
fn a_client_that_does_not_answer_for_its_memory_or_answers_nonsense_is_dropped() {
    type Answer = fn(&Message) -> Option<((u16, u16, u32, u32), Vec<u8>)>;
    const READ: u16 = Command::DMA_READ.0;
    let cases: [(&str, Answer); 7] = [
        ("silence", |_| None),
        ("another number", |asked| {
            let id = asked.header.id.get() + 1;
            Some(((id, READ, 1, 0), access(0x1000, 8, &[0; 8])))
        }),
        ("another command", |asked| {
            let id = asked.header.id.get();
            Some(((id, READ + 1, 1, 0), access(0x1000, 8, &[0; 8])))
        }),
        ("a request", |asked| {
            let id = asked.header.id.get();
            Some(((id, READ, 0, 0), access(0x1000, 8, &[0; 8])))
        }),
        ("another address", |asked| {
            let id = asked.header.id.get();
            Some(((id, READ, 1, 0), access(0x1008, 8, &[0; 8])))
        }),
        ("more data than asked for", |asked| {
            let id = asked.header.id.get();
            Some(((id, READ, 1, 0), access(0x1000, 8, &[0; 9])))
        }),
        ("less data than it says", |asked| {
            let id = asked.header.id.get();
            Some(((id, READ, 1, 0), access(0x1000, 8, &[0; 7])))
        }),
    ];
    let (double, path, _directory, served) = impatient(cases.len() + 1);
    for (case, answer) in cases {
        let (raw, twin) = with_twin(&path);
        let memory = double.asks(0x1000);
        let reader = thread::spawn(move || {
            let first = memory.read(0x1000, &mut [0; 8]);
            (first.is_err(), memory.write(0x1000, &[1]).is_err())
        });
        let asked = twin.receive(|| true).unwrap().unwrap();
        assert_eq!(asked.payload, access(0x1000, 8, &[]));
        if let Some((header, payload)) = answer(&asked) {
            socket::send(&twin, header, &[&payload], &[]).unwrap();
        }
        assert_eq!(reader.join().unwrap(), (true, true), "{case}");
        // The server sends no further request, and the session is over.
        assert!(!matches!(twin.receive(|| true), Ok(Some(_))), "{case}");
        assert!(
            !matches!(raw.socket.receive(|| true), Ok(Some(_))),
            "{case}"
        );
    }
    // The next client is served. A refusal of this client fails one access and does not end the session.
    let (mut raw, twin) = with_twin(&path);
    assert_eq!(double.asked(), [(0x1000, 4096)]);
    let memory = double.asks(0x1000);
    let reader = thread::spawn(move || {
        let refused = memory.write(0x1000, &[1; 4]).unwrap_err();
        (
            refused.raw_os_error(),
            memory.write(0x1000, &[2; 4]).is_ok(),
        )
    });
    for (flags, error, reply) in [
        (wire::TYPE_REPLY | wire::ERROR, 13, vec![]),
        // The reply to DMA_WRITE has a count of 4 bytes, as in the document.
        (wire::TYPE_REPLY, 0, access(0x1000, 4, &[])[..12].to_vec()),
    ] {
        let asked = twin.receive(|| true).unwrap().unwrap();
        let (id, command) = (asked.header.id.get(), asked.header.command.get());
        socket::send(&twin, (id, command, flags, error), &[&reply], &[]).unwrap();
    }
    assert_eq!(reader.join().unwrap(), (Some(13), true));
    raw.ask(Command::DMA_UNMAP, &unmap(0x1000, 4096), &[])
        .unwrap();
    assert_eq!(double.asked(), []);
    drop((raw, twin));
    served.join().unwrap();
}

#[test]
fn memory_for_reading_is_so_by_messages_too_and_all_of_it_goes_with_the_client() {
    let (double, path, _directory, served) = impatient(2);
    let (mut raw, _twin) = with_twin(&path);
    raw.ask(Command::DMA_MAP, &map(1, 0, 0x4000, 8192), &[])
        .unwrap();
    assert_eq!(double.asked(), [(0x1000, 4096), (0x4000, 8192)]);
    assert_eq!(double.read_only(), [0x4000]);
    let again = raw.ask(Command::DMA_MAP, &map(3, 0, 0x5000, 4096), &[]);
    assert_eq!(again, Err(Errno::EEXIST));
    let memory = double.asks(0x1000);
    drop((raw, _twin));
    // The access fails at once, because the client has disconnected.
    assert!(memory.read(0x1000, &mut [0; 4]).is_err());
    drop(with_twin(&path));
    served.join().unwrap();
    assert_eq!(double.asked(), []);
}

/// The server refuses a client that offers a twin socket and accepts less than a page in a message, because an access
/// could take thousands of messages.
#[test]
fn a_client_that_takes_less_than_a_page_with_a_message_gets_no_twin_socket() {
    let rig = Rig::new(1);
    let json = b"{\"max_data_xfer_size\":4095,\"twin_socket\":{\"supported\":true}}\0";
    let refused = Raw::connect(&rig.path).ask(Command::VERSION, &version(json), &[]);
    assert_eq!(refused, Err(Errno::EINVAL));
    rig.finished();
}

/// Runs a minimal server that a client can connect to. It answers VERSION with `json` and `fds`, and requests other
/// than queries with an empty reply.
fn bare(json: &'static [u8], fds: Vec<OwnedFd>) -> (tempfile::TempDir, PathBuf, JoinHandle<()>) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("nic.sock");
    let listener = UnixListener::bind(&path).unwrap();
    let serves = thread::spawn(move || {
        let (stream, _) = listener.accept().unwrap();
        let socket = Socket::new(stream).unwrap();
        let mut fds = fds;
        while let Ok(Some(asked)) = socket.receive(|| true) {
            let command = Command(asked.header.command.get());
            let mut given = Vec::new();
            let payload = match command {
                Command::VERSION => {
                    given = std::mem::take(&mut fds);
                    version(json)
                }
                Command::DEVICE_GET_INFO => {
                    let mut info = DeviceInfo::new_zeroed();
                    info.flags = wire::DEVICE_PCI.into();
                    info.num_regions = wire::REGIONS.into();
                    info.num_irqs = wire::IRQS.into();
                    info.as_bytes().to_vec()
                }
                Command::DEVICE_GET_IRQ_INFO => IrqInfo::new_zeroed().as_bytes().to_vec(),
                _ => Vec::new(),
            };
            let header = (asked.header.id.get(), command.0, wire::TYPE_REPLY, 0);
            let fds: Vec<BorrowedFd<'_>> = given.iter().map(AsFd::as_fd).collect();
            // The client may have closed the connection.
            if socket::send(&socket, header, &[&payload], &fds).is_err() {
                return;
            }
        }
    });
    (directory, path, serves)
}

fn files(count: usize) -> Vec<OwnedFd> {
    (0..count)
        .map(|_| tempfile::tempfile().unwrap().into())
        .collect()
}

#[test]
fn a_server_without_a_twin_socket_is_not_lent_memory() {
    for json in [
        &b""[..],
        b"{\"capabilities\":{\"twin_socket\":{\"supported\":false,\"fd_index\":0}}}\0",
    ] {
        let (_directory, path, serves) = bare(json, files(1));
        let function = Function::vfio_user(path).unwrap();
        let lent = lend(&function, heap(1), 8);
        let Err(DmaError::Function(FunctionError::VfioUser { source, .. })) = lent else {
            panic!("{lent:?}");
        };
        let expected = matches!(*source, VfioUserError::NoDescriptor { .. });
        assert!(expected, "{source}");
        let memory = SharedMemory::anonymous(PAGE).unwrap();
        function.dma_map(Iova(0x1000), &memory, 0, PAGE).unwrap();
        drop(function);
        serves.join().unwrap();
    }
}

/// A client refuses a server that announces a twin socket and does not send it. The document says: "The client must
/// abort and close the connection".
#[test]
fn a_server_that_promises_a_twin_socket_and_sends_none_is_refused() {
    let cases: [(&[u8], usize, &str); 3] = [
        (TWIN, 1, "twin_socket at None of 1 descriptors"),
        (
            b"{\"twin_socket\":{\"supported\":true,\"fd_index\":2}}",
            2,
            "twin_socket at Some(2) of 2 descriptors",
        ),
        // The descriptor is a file and not a socket.
        (
            b"{\"twin_socket\":{\"supported\":true,\"fd_index\":0}}",
            1,
            "Socket operation on non-socket",
        ),
    ];
    for (json, fds, why) in cases {
        let (_directory, path, serves) = bare(json, files(fds));
        let refused = Function::vfio_user(path).unwrap_err().to_string();
        assert!(refused.contains(why), "{refused}");
        serves.join().unwrap();
    }
}

/// If the server closes the twin socket, it counts as lost, and the program's next message returns an error with the
/// cause.
#[test]
fn a_server_that_hangs_up_the_twin_socket_is_lost() {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let json = b"{\"twin_socket\":{\"supported\":true,\"fd_index\":0}}";
    let (_directory, path, serves) = bare(json, vec![theirs.into()]);
    let function = Function::vfio_user(path).unwrap();
    let lent = lend(&function, heap(1), 8).unwrap();
    assert!(function.lost().is_none());
    drop(ours);
    let why = loop {
        let _asked = function.reset();
        if let Some(lost) = function.lost() {
            break lost.to_string();
        }
    };
    assert!(why.contains("twin socket: the server hung up"), "{why}");
    drop(lent);
    assert!(lend(&function, heap(1), 8).is_err());
    drop(function);
    serves.join().unwrap();
}
