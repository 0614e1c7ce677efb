//! Hostile clients: the resources that they leave behind, and the time for which they can occupy a server.

use std::cell::RefCell;
use std::fs::File;
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, SealFlag, fcntl};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::unistd::pipe;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use zerocopy::IntoBytes;

use super::super::client_memory::MAX_IMPORTS;
use super::super::message::{self as wire, Command, HEADER_BYTES, MAX_FDS, TYPE_COMMAND};
use super::super::socket::{self, Socket};
use super::{Raw, Rig, Server, map, set_irqs, unmap, words};
use crate::accepting;
use crate::clock::Instant;
use crate::double::Double;
use crate::{Function, Iova, SharedMemory};

/// Time limit in tests without an honest peer; short, to keep the tests short.
const PATIENCE: Duration = Duration::from_millis(100);
/// Time limit of a server that also has an honest client; long compared with the client's needs on a busy machine.
const LONGER: Duration = Duration::from_secs(3);

/// If too many descriptors arrive, the installed ones are closed. The kernel installs as many as fit and reports that
/// it truncated the list (unix(7), "SCM_RIGHTS"; recv(2), MSG_CTRUNC).
#[test]
fn descriptors_that_are_too_many_are_closed() {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let socket = Socket::with_patience(ours, PATIENCE).unwrap();
    let (mut reader, writer) = pipe().map(|(r, w)| (File::from(r), w)).unwrap();
    let borrowed = vec![writer.as_fd(); MAX_FDS + 4];
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS + 4))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    assert!(control.push(SendAncillaryMessage::ScmRights(&borrowed)));
    let header = socket::header(1, Command::DMA_MAP.0, 0, TYPE_COMMAND, 0);
    let slices = [io::IoSlice::new(header.as_bytes())];
    sendmsg(&theirs, &slices, &mut control, SendFlags::NOSIGNAL).unwrap();
    let error = socket.receive(|| false).err().unwrap();
    assert!(error.to_string().contains("cut off"), "{error}");
    drop(writer);
    // The pipe reports its end only when all descriptors of the writing end are closed.
    assert_eq!(reader.read(&mut [0]).unwrap(), 0);
}

/// A message that arrives in pieces. Each reading of the clock advances it by a second and delivers the next piece.
#[derive(Default)]
struct SlowMessage {
    to: Option<UnixStream>,
    bytes: Vec<u8>,
    piece: usize,
    now: u64,
}

thread_local! {
    static SLOW_MESSAGE: RefCell<SlowMessage> = RefCell::default();
}

fn next_piece() -> Instant {
    SLOW_MESSAGE.with_borrow_mut(|drip| {
        drip.now += 1_000_000_000;
        let piece = drip.piece.min(drip.bytes.len());
        let bytes: Vec<u8> = drip.bytes.drain(..piece).collect();
        if let Some(mut to) = drip.to.as_ref() {
            to.write_all(&bytes).unwrap();
        }
        Instant(drip.now)
    })
}

/// A peer that sends a message byte by byte is dropped at the time limit, like a silent peer, but not before. This
/// holds for clients and servers.
#[test]
fn a_message_that_drips_is_given_up_when_its_time_is_over_and_not_before() {
    for (piece, is_taken) in [(1, false), (2, true)] {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let socket = Socket::new(ours).unwrap().by(next_piece);
        let header = socket::header(1, Command::DMA_MAP.0, 0, TYPE_COMMAND, 0);
        let (first, rest) = header.as_bytes().split_at(piece);
        (&theirs).write_all(first).unwrap();
        SLOW_MESSAGE.set(SlowMessage {
            to: Some(theirs),
            bytes: rest.to_vec(),
            piece,
            now: 0,
        });
        match socket.receive(|| true) {
            Ok(message) => assert!(is_taken && message.is_some(), "{piece} bytes a second"),
            Err(error) => {
                assert!(!is_taken, "{piece} bytes a second: {error}");
                assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
            }
        }
    }
}

/// Longest wait of an honest client behind a slow one: the time limit of a message, and two readings of the clock.
const LONGEST_WAIT: Duration = Duration::from_secs(12);

/// An honest client that connects behind a slow client waits no longer than the time limit of one message.
#[test]
fn beside_a_client_that_drips_an_honest_one_waits_as_long_as_a_message_may_take() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("nic.sock");
    let listener = UnixListener::bind(&path).unwrap();
    let mut drips = UnixStream::connect(&path).unwrap();
    let header = socket::header(1, Command::DMA_MAP.0, 40, TYPE_COMMAND, 0);
    let (first, rest) = header.as_bytes().split_at(1);
    drips.write_all(first).unwrap();
    let bytes = rest.iter().copied().chain([0; 1000]).collect();
    let server = Server::new(Arc::new(Double::new()), listener).by(next_piece);
    let served = thread::spawn(move || {
        SLOW_MESSAGE.set(SlowMessage {
            to: Some(drips),
            bytes,
            piece: 1,
            now: 0,
        });
        server.serve_next().unwrap();
        let waited = SLOW_MESSAGE.with_borrow_mut(|drip| {
            drip.to = None;
            Duration::from_nanos(drip.now)
        });
        server.serve_next().unwrap();
        waited
    });
    let mut honest = Raw::negotiated(&path);
    honest.ask(Command::DEVICE_RESET, &[], &[]).unwrap();
    drop(honest);
    let waited = served.join().unwrap();
    assert!(
        waited > socket::PATIENCE,
        "the other one dripped: {waited:?}"
    );
    assert!(waited <= LONGEST_WAIT, "{waited:?}");
}

/// The limit on descriptors applies to the whole message, although the kernel delivers those of each send separately.
#[test]
fn descriptors_of_a_message_count_together_however_many_sends_bring_them() {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let socket = Socket::with_patience(ours, PATIENCE).unwrap();
    let (mut reader, writer) = pipe().map(|(r, w)| (File::from(r), w)).unwrap();
    let each = MAX_FDS / 2 + 2;
    let borrowed = vec![writer.as_fd(); each];
    let header = socket::header(1, Command::DMA_MAP.0, 0, TYPE_COMMAND, 0);
    for half in header.as_bytes().chunks(HEADER_BYTES / 2) {
        let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        assert!(control.push(SendAncillaryMessage::ScmRights(&borrowed)));
        let slices = [io::IoSlice::new(half)];
        sendmsg(&theirs, &slices, &mut control, SendFlags::NOSIGNAL).unwrap();
    }
    let error = socket.receive(|| false).err().unwrap();
    let expected = format!("a message with {} descriptors", 2 * each);
    assert!(error.to_string().contains(&expected), "{error}");
    drop(writer);
    assert_eq!(reader.read(&mut [0]).unwrap(), 0, "they are closed");
}

#[test]
fn a_message_is_dropped_only_if_it_is_expected_and_complete() {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let mut same = ours.try_clone().unwrap();
    let socket = Socket::with_patience(ours, PATIENCE).unwrap();
    // Sends `bytes` bytes, which begin with a header that says that the message has `size`.
    let send = |size: u32, bytes: usize| {
        let mut header = socket::header(1, Command::REGION_READ.0, 0, wire::TYPE_REPLY, 0);
        header.size = size.into();
        let mut message = header.as_bytes().to_vec();
        message.resize(bytes, 7);
        (&theirs).write_all(&message).unwrap();
        message
    };
    let mut is_unread = |message: &[u8]| {
        let mut unread = vec![0; message.len()];
        same.read_exact(&mut unread).unwrap();
        unread == message
    };
    for (size, bytes) in [
        (0, 16),
        (15, 16),
        (16, 15),
        (40, 16),
        (40, 39),
        (257, 257),
        (u32::MAX, 300),
    ] {
        let message = send(size, bytes);
        let is_dropped = socket.discard_next(|_| true);
        assert!(matches!(is_dropped, Ok(false)), "{size}: {is_dropped:?}");
        assert!(is_unread(&message), "{size}");
    }
    for (size, bytes) in [(16, 16), (40, 40), (256, 256)] {
        let _message = send(size, bytes);
        assert!(!socket.discard_next(|_| false).unwrap());
        assert!(socket.discard_next(|_| true).unwrap());
        assert!(!socket.discard_next(|_| true).unwrap());
        socket.check_quiet().unwrap();
    }
}

/// Answers the messages of one client as a server with a PCI function does. Its reply to DMA_UNMAP reports success and
/// has `unmapped` zero bytes: a structure with the length 0, or nothing.
fn serve_without_unmapping(listener: &UnixListener, unmapped: usize) {
    let (stream, _) = listener.accept().unwrap();
    let socket = Socket::new(stream).unwrap();
    while let Some(asked) = socket.receive(|| true).unwrap() {
        let (id, command) = (asked.header.id.get(), asked.header.command.get());
        let mut payload = asked.payload;
        match Command(command) {
            // argsz; flags, num_regions, num_irqs.
            Command::DEVICE_GET_INFO => payload[4..16].copy_from_slice(&words([2, 9, 5])),
            Command::DEVICE_GET_IRQ_INFO | Command::REGION_READ => {}
            Command::VERSION => payload.truncate(4),
            Command::DMA_UNMAP => payload = vec![0; unmapped],
            _ => payload.clear(),
        }
        if Command(command) == Command::REGION_READ {
            payload.extend([0; 2]);
        }
        let header = (id, command, wire::TYPE_REPLY, 0);
        socket::send(&socket, header, &[&payload], &[]).unwrap();
    }
}

/// A server that has no such mapping may report success, as the kernel's VFIO does. The reply has the number of bytes.
#[test]
fn an_unmapping_of_no_bytes_is_a_refusal() {
    let directory = tempfile::tempdir().unwrap();
    for unmapped in [size_of::<wire::DmaUnmap>(), 0] {
        let path = directory.path().join(format!("{unmapped}.sock"));
        let listener = UnixListener::bind(&path).unwrap();
        let served = thread::spawn(move || serve_without_unmapping(&listener, unmapped));
        let function = Function::vfio_user(&path).unwrap();
        let memory = SharedMemory::anonymous(4096).unwrap();
        function.dma_map(Iova(0x7000), &memory, 0, 4096).unwrap();
        let refused = function.dma_unmap(Iova(0x7000), 4096);
        let text = refused.unwrap_err().to_string();
        assert!(text.contains("DMA_UNMAP"), "{text}");
        drop(function);
        served.join().unwrap();
    }
}

#[test]
fn a_silent_client_makes_room_for_the_next() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("nic.sock");
    let listener = UnixListener::bind(&path).unwrap();
    let server = Server::new(Arc::new(Double::new()), listener).with_patience(LONGER);
    let served = thread::spawn(move || (0..2).for_each(|_| server.serve_next().unwrap()));
    let silent = UnixStream::connect(&path).unwrap();
    // The next client waits until the server has dropped the silent one.
    let mut honest = Raw::negotiated(&path);
    honest.ask(Command::DEVICE_RESET, &[], &[]).unwrap();
    drop((silent, honest));
    served.join().unwrap();
}

/// Memory of the hugetlb pool is refused. A page missing from the pool at its first use raises SIGBUS, regardless of
/// the file's seals (hugetlbfs has no swap and takes pages only from the pool).
#[test]
fn memory_of_the_huge_page_pool_is_refused() {
    let flags = MFdFlags::MFD_ALLOW_SEALING | MFdFlags::MFD_HUGETLB | MFdFlags::MFD_HUGE_2MB;
    let file = match memfd_create("pool", flags) {
        Ok(fd) => File::from(fd),
        Err(Errno::ENOSYS | Errno::EINVAL | Errno::ENODEV) => {
            // The kernel has no huge pages, so such memory cannot exist.
            assert!(!std::path::Path::new("/sys/kernel/mm/hugepages/hugepages-2048kB").exists());
            return;
        }
        Err(errno) => panic!("memfd_create: {errno}"),
    };
    file.set_len(2 << 20).unwrap();
    fcntl(&file, FcntlArg::F_ADD_SEALS(SealFlag::F_SEAL_SHRINK)).unwrap();
    let rig = Rig::new(1);
    let mut raw = Raw::negotiated(&rig.path);
    let answer = raw.ask(Command::DMA_MAP, &map(3, 0, 0, 2 << 20), &[file.as_fd()]);
    assert_eq!(answer, Err(Errno::EINVAL));
    assert_eq!(rig.double.mappings(), vec![]);
}

fn file_of_a_client() -> File {
    let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
    let file = File::from(memfd_create("pages", flags).unwrap());
    fcntl(&file, FcntlArg::F_ADD_SEALS(SealFlag::F_SEAL_SHRINK)).unwrap();
    file
}

/// Makes a file longer by a page, and maps that page.
fn grow(raw: &mut Raw, file: &File, iova: u64) -> Result<(), Errno> {
    let offset = file.metadata().unwrap().len();
    file.set_len(offset + 4096).unwrap();
    let request = map(3, offset, iova, 4096);
    raw.ask(Command::DMA_MAP, &request, &[file.as_fd()])
        .map(drop)
}

/// A client's files are a limited number of mappings in the server, whether they are many files or one that grows. The
/// kernel allows a process 65,530 mappings (Linux `Documentation/admin-guide/sysctl/vm.rst`, `max_map_count`).
#[test]
fn a_client_cannot_take_all_mappings_of_the_server() {
    const PAGES: u64 = 2_000;
    let rig = Rig::new(1);
    let mut raw = Raw::negotiated(&rig.path);
    let one = file_of_a_client();
    for file in [None, Some(&one)] {
        let mut answers = (0..PAGES).map(|page| match file {
            Some(file) => grow(&mut raw, file, page * 4096),
            None => grow(&mut raw, &file_of_a_client(), page * 4096),
        });
        let mut taken = answers.by_ref().take(MAX_IMPORTS);
        assert!(taken.all(|answer| answer.is_ok()));
        assert!(answers.all(|answer| answer == Err(Errno::ENOSPC)));
        raw.ask(Command::DMA_UNMAP, &unmap(0, PAGES * 4096), &[])
            .unwrap();
        assert_eq!(rig.double.mappings(), vec![]);
    }
}

/// Temporary errors of accept(2) ("ERRORS") do not end a server. After a lack of resources it pauses.
#[test]
fn a_server_survives_temporary_errors_of_accept() {
    // Returns the client after two failures, and the number of pauses before it.
    let accepted = |errno: Errno| {
        let mut answers = [Err(errno), Err(errno), Ok("client")].into_iter();
        let accept = || Ok(answers.next().expect("three calls at most")?);
        let mut pauses = 0;
        let client = accepting::next_pausing("a listener", accept, || pauses += 1);
        (client.map_err(|error| error.raw_os_error()), pauses)
    };
    for errno in [
        Errno::EMFILE,
        Errno::ENFILE,
        Errno::ENOBUFS,
        Errno::ENOMEM,
        Errno::EPERM,
    ] {
        assert_eq!(accepted(errno), (Ok("client"), 2), "{errno}");
    }
    for errno in [Errno::EINTR, Errno::ECONNABORTED, Errno::EPROTO] {
        assert_eq!(accepted(errno), (Ok("client"), 0), "{errno}");
    }
    for errno in [Errno::EBADF, Errno::EINVAL, Errno::ENOTSOCK] {
        assert_eq!(accepted(errno), (Err(Some(errno as i32)), 0), "{errno}");
    }
}

/// A client whose eventfd counter is full blocks only itself. Adding to a full counter blocks, unless the descriptor is
/// nonblocking (eventfd(2)). The sender of the descriptor can clear that flag, because the open file is shared.
#[test]
fn a_client_whose_counter_is_full_stops_only_itself() {
    let rig = Rig::new(2);
    let mut raw = Raw::negotiated(&rig.path);
    let full = EventFd::from_value_and_flags(0, EfdFlags::EFD_CLOEXEC).unwrap();
    let set = set_irqs(wire::SET_EVENTFDS, wire::MSIX, 0, 1);
    raw.ask(Command::DEVICE_SET_IRQS, &set, &[full.as_fd()])
        .unwrap();
    let flags = OFlag::from_bits_retain(fcntl(&full, FcntlArg::F_GETFL).unwrap());
    fcntl(&full, FcntlArg::F_SETFL(flags & !OFlag::O_NONBLOCK)).unwrap();
    full.write(u64::MAX - 1).unwrap();
    for _ in 0..3 {
        rig.double.signal(0);
    }
    drop(raw);
    rig.function().reset().unwrap();
}
