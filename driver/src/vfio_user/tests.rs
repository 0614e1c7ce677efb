//! Client and server connected to each other, and each of them connected to a peer that violates the protocol.

mod hostile;
mod parking;
mod twin;

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use tempfile::TempDir;
use zerocopy::{FromBytes, FromZeros, IntoBytes};

use super::Server;
use super::message::{
    self as wire, Command, DeviceInfo, DmaMap, DmaUnmap, Header, IrqInfo, RegionAccess, SetIrqs,
    Version,
};
use super::socket::{self, Message, Socket};
use crate::double::{BAR_BYTES, Double};
use crate::{
    Be32, Be64, Clock, DmaArena, Function, FunctionError, Instant, Interrupt, Iova, RealClock, Ro,
    Rw, SharedMemory, Wo,
};

/// A simulated device behind a socket.
struct Rig {
    double: Double,
    path: PathBuf,
    _directory: TempDir,
    served: JoinHandle<()>,
}

impl Rig {
    /// Starts a server that serves `clients` clients and then ends.
    fn new(clients: usize) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("nic.sock");
        let double = Double::new();
        let server = Server::new(Arc::new(double.clone()), UnixListener::bind(&path).unwrap());
        let served = thread::spawn(move || {
            for _ in 0..clients {
                server.serve_next().unwrap();
            }
        });
        Self {
            double,
            path,
            _directory: directory,
            served,
        }
    }

    fn function(&self) -> Function {
        Function::vfio_user(&self.path).unwrap()
    }

    /// Returns the simulated device once the server has ended.
    fn finished(self) -> Double {
        self.served.join().unwrap();
        self.double
    }
}

#[derive(FromBytes)]
#[repr(C)]
struct Sample {
    version: Ro<Be32>,
    rsvd_04: [u32; 1],
    doorbell: Wo<Be64>,
    control: Rw<Be32>,
    narrow: Rw<u16>,
    byte: Wo<u8>,
    rsvd_17: u8,
}

#[test]
fn register_writes_arrive_once_in_order_with_their_width_and_a_read_comes_behind_them() {
    let rig = Rig::new(1);
    let function = rig.function();
    let bar = function.bar(0).unwrap();
    assert_eq!(bar.len(), u64::try_from(BAR_BYTES).unwrap());
    let block = bar.block::<Sample>(0x100).unwrap();
    block.write(|r| &r.doorbell, Be64::new(0x0102_0304_0506_0708));
    block.write(|r| &r.control, Be32::new(0xa1b2_c3d4));
    block.write(|r| &r.byte, 0x5a);
    block.write(|r| &r.narrow, 0x7777);
    assert_eq!(block.read(|r| &r.control).get(), 0xa1b2_c3d4);
    let expected: Vec<(u8, u64, Vec<u8>)> = vec![
        (0, 0x108, vec![1, 2, 3, 4, 5, 6, 7, 8]),
        (0, 0x110, vec![0xa1, 0xb2, 0xc3, 0xd4]),
        (0, 0x116, vec![0x5a]),
        (0, 0x114, vec![0x77, 0x77]),
    ];
    assert_eq!(rig.double.writes(), expected);
    rig.double.bar_memory().store_be32(0x100, 7);
    assert_eq!(block.read(|r| &r.version).get(), 7);
    assert!(matches!(
        function.bar(1),
        Err(FunctionError::NoBar { index: 1, .. })
    ));
}

#[test]
fn configuration_space_is_the_devices() {
    let rig = Rig::new(1);
    let function = rig.function();
    function.config_write_u32(0x40, 0x1122_3344).unwrap();
    function.config_write_u8(0x43, 0xaa).unwrap();
    assert_eq!(function.config_read_u16(0x42).unwrap(), 0xaa22);
    function.set_bus_master(true).unwrap();
    let direct = rig.double.function();
    assert_eq!(direct.config_read_u32(0x40).unwrap(), 0xaa22_3344);
    assert_eq!(direct.config_read_u16(0x04).unwrap(), 0x0006);
}

#[test]
fn dma_memory_is_the_same_on_both_sides_until_it_is_unmapped() {
    let rig = Rig::new(1);
    let function = rig.function();
    let arena = DmaArena::with_chunk_bytes(&function, 1 << 16).unwrap();
    let buffer = arena.alloc(8192, 4096).unwrap();
    let (memory, at) = rig.double.reach(buffer.iova().0 + 4096);
    buffer.write_bytes(4096, b"from the driver");
    let mut seen = [0; 15];
    memory.read_bytes(at, &mut seen);
    assert_eq!(&seen, b"from the driver");
    memory.write_bytes(at, b"from the device");
    buffer.read_bytes(4096, &mut seen);
    assert_eq!(&seen, b"from the device");
    drop((buffer, arena));
    assert_eq!(rig.double.mappings(), vec![]);
}

/// A pool for a function in another process never uses huge pages, because a page missing from the hugetlb pool would
/// kill a server.
#[test]
fn a_pool_for_a_function_in_another_process_is_on_base_pages_or_none() {
    let rig = Rig::new(1);
    let builder = crate::DmaPool::builder(&rig.function());
    let refused = builder
        .clone()
        .pages(crate::PageSize::Huge2M)
        .build(1 << 21);
    let text = refused.unwrap_err().to_string();
    assert!(
        text.contains("nic.sock") && text.contains("0x200000"),
        "{text}"
    );
    let pool = builder
        .pages_up_to(crate::PageSize::Huge1G)
        .build(1 << 21)
        .unwrap();
    assert_eq!(pool.page_size(), crate::PageSize::Base);
}

#[test]
fn a_mapping_starts_where_it_was_asked_to_in_the_memory() {
    let rig = Rig::new(1);
    let function = rig.function();
    let memory = SharedMemory::anonymous(3 * 4096).unwrap();
    function.dma_map(Iova(0x7000), &memory, 4096, 8192).unwrap();
    memory.store_be32(2 * 4096 + 8, 0xfeed);
    let (theirs, at) = rig.double.reach(0x8008);
    assert_eq!(theirs.load_be32(at), 0xfeed);
    let error = function.dma_unmap(Iova(0x7000), 4096).unwrap_err();
    let text = error.to_string();
    assert!(
        text.contains("dma_unmap") && text.contains("nothing was mapped exactly there"),
        "{text}"
    );
    assert!(text.contains("nic.sock"), "{text}");
}

/// Waits until a thread of the server has signalled the eventfd.
fn arrives(interrupt: &Interrupt) -> bool {
    RealClock::new().wait(std::slice::from_ref(interrupt), Instant(u64::MAX))
}

#[test]
fn interrupts_of_the_device_arrive_in_the_other_process() {
    let rig = Rig::new(1);
    let function = rig.function();
    assert_eq!(function.interrupt_count(), 2);
    let interrupts = function.enable_interrupts(usize::MAX).unwrap();
    rig.double.signal(1);
    assert!(
        function
            .clock()
            .wait(&interrupts, function.clock().now() + crate::clock::MAX_WAIT)
    );
    assert!(!interrupts[0].is_pending());
    assert_eq!(interrupts[1].take(), 1);
    assert_eq!(rig.double.times_interrupts_set(), 1, "all at once");
}

#[test]
fn what_the_devices_system_says_reaches_the_other_process_until_it_goes() {
    let rig = Rig::new(1);
    let function = rig.function();
    let ours = function.notices().clone();
    let theirs = rig.double.notices();
    theirs.requested.unwrap().signal();
    assert!(arrives(&ours.requested.unwrap()));
    let error = ours.error.unwrap();
    assert!(!error.is_pending());
    theirs.error.unwrap().signal();
    assert!(arrives(&error));
    drop(function);
    let left = rig.finished().notices();
    assert!(left.error.is_none() && left.requested.is_none());
}

#[test]
fn a_client_that_goes_is_reset_and_unmapped_before_the_next_one() {
    let rig = Rig::new(2);
    let function = rig.function();
    function.reset().unwrap();
    assert_eq!(rig.double.resets(), 1);
    let memory = SharedMemory::anonymous(4096).unwrap();
    function.dma_map(Iova(0x1000), &memory, 0, 4096).unwrap();
    drop(function);
    let next = rig.function();
    assert_eq!(rig.double.mappings(), vec![]);
    assert_eq!(rig.double.resets(), 2);
    next.dma_map(Iova(0x1000), &memory, 0, 4096).unwrap();
    drop(next);
    assert_eq!(rig.finished().resets(), 3);
}

/// A client that can send any message, even an invalid one.
struct Raw {
    socket: Socket,
    id: u16,
}

impl Raw {
    fn connect(path: &Path) -> Self {
        let stream = UnixStream::connect(path).unwrap();
        Self {
            socket: Socket::new(stream).unwrap(),
            id: 0x4000,
        }
    }

    /// Connects and exchanges VERSION.
    fn negotiated(path: &Path) -> Self {
        let mut raw = Self::connect(path);
        let reply = raw.ask(Command::VERSION, &version(b""), &[]).unwrap();
        assert_eq!(wire::capability(&reply[4..], "max_msg_fds"), Some(16));
        assert_eq!(wire::capability(&reply[4..], "max_dma_maps"), Some(65_535));
        raw
    }

    fn ask(
        &mut self,
        command: Command,
        payload: &[u8],
        fds: &[BorrowedFd<'_>],
    ) -> Result<Vec<u8>, Errno> {
        self.ask_message(command, payload, fds)
            .map(|message| message.payload)
    }

    fn ask_message(
        &mut self,
        command: Command,
        payload: &[u8],
        fds: &[BorrowedFd<'_>],
    ) -> Result<Message, Errno> {
        self.id += 1;
        socket::send(&self.socket, (self.id, command.0, 0, 0), &[payload], fds).unwrap();
        let message = self.socket.receive(|| false).unwrap().unwrap();
        let answer = message.is_reply_to(self.id, command);
        let refused = answer.expect("a reply to it");
        assert!(refused.is_ok() || message.payload.is_empty());
        refused.map(|()| message)
    }
}

/// Returns the payload of a VERSION message 0.1 with the given capabilities.
fn version(json: &[u8]) -> Vec<u8> {
    let version = Version {
        major: 0.into(),
        minor: 1.into(),
    };
    [version.as_bytes(), json].concat()
}

fn words<const N: usize>(words: [u32; N]) -> Vec<u8> {
    words
        .iter()
        .flat_map(|&word| zerocopy::little_endian::U32::new(word).as_bytes().to_vec())
        .collect()
}

fn access(offset: u64, region: u32, count: u32, data: &[u8]) -> Vec<u8> {
    let access = RegionAccess {
        offset: offset.into(),
        region: region.into(),
        count: count.into(),
    };
    [access.as_bytes(), data].concat()
}

fn map(flags: u32, offset: u64, iova: u64, size: u64) -> Vec<u8> {
    let mut map = DmaMap::new_zeroed();
    map.flags = flags.into();
    map.offset = offset.into();
    map.iova = iova.into();
    map.size = size.into();
    map.as_bytes().to_vec()
}

fn set_irqs(flags: u32, index: u32, start: u32, count: u32) -> Vec<u8> {
    let mut set = SetIrqs::new_zeroed();
    set.flags = flags.into();
    set.index = index.into();
    set.start = start.into();
    set.count = count.into();
    set.as_bytes().to_vec()
}

#[test]
fn messages_with_wrong_numbers_get_an_errno_and_the_connection_goes_on() {
    let rig = Rig::new(1);
    let mut raw = Raw::negotiated(&rig.path);
    let bar = u64::try_from(BAR_BYTES).unwrap();
    let refused: Vec<(Command, Vec<u8>)> = vec![
        (Command::VERSION, vec![0, 0, 1, 0]),
        (Command(0), vec![]),
        (Command(0xffff), vec![1; 100]),
        (Command::DMA_READ, vec![0; 16]),
        (Command::DEVICE_RESET, vec![0]),
        (Command::DEVICE_GET_INFO, vec![0; 15]),
        (Command::DEVICE_GET_INFO, words([15, 0, 0, 0])),
        (
            Command::DEVICE_GET_REGION_INFO,
            words([32, 0, 9, 0, 0, 0, 0, 0]),
        ),
        (
            Command::DEVICE_GET_REGION_INFO,
            words([31, 0, 0, 0, 0, 0, 0, 0]),
        ),
        (Command::DEVICE_GET_IRQ_INFO, words([16, 0, 5, 0])),
        (Command::REGION_READ, access(0, 0, 0, &[])),
        (Command::REGION_READ, access(0, 0, 65_537, &[])),
        (Command::REGION_READ, access(0, 0, u32::MAX, &[])),
        (Command::REGION_READ, access(bar - 3, 0, 4, &[])),
        (Command::REGION_READ, access(u64::MAX, 0, 4, &[])),
        (Command::REGION_READ, access(0, 1, 4, &[])),
        (Command::REGION_READ, access(0, u32::MAX, 4, &[])),
        (
            Command::REGION_READ,
            access(4093, wire::CONFIG_REGION, 4, &[]),
        ),
        (Command::REGION_READ, access(0, 0, 4, &[0])),
        (Command::REGION_WRITE, access(0, 0, 0, &[])),
        (Command::REGION_WRITE, access(0, 0, 4, &[0; 3])),
        (Command::REGION_WRITE, access(0, 0, 9, &[0; 9])),
        (Command::REGION_WRITE, access(bar, 0, 1, &[0])),
        (Command::REGION_WRITE, access(u64::MAX - 3, 7, 4, &[0; 4])),
        (Command::REGION_WRITE, vec![0; 15]),
        (Command::DMA_UNMAP, vec![0; 23]),
        (Command::DMA_UNMAP, words([24, 0, 0x1000, 0, 0, 0])),
        (Command::DMA_UNMAP, words([24, 0, 0x1000, 0, 4095, 0])),
        (Command::DMA_UNMAP, words([24, 0, 0x1000, !0, 0, !0])),
        (Command::DMA_UNMAP, words([24, 2, 0x1000, 0, 0, 0])),
        (
            Command::DEVICE_SET_IRQS,
            set_irqs(wire::SET_EVENTFDS, 2, 0, 3),
        ),
        (
            Command::DEVICE_SET_IRQS,
            set_irqs(wire::SET_EVENTFDS, 2, u32::MAX, 1),
        ),
        (
            Command::DEVICE_SET_IRQS,
            set_irqs(wire::SET_EVENTFDS, 9, 0, 1),
        ),
        (Command::DEVICE_SET_IRQS, set_irqs(0x3f, 2, 0, 1)),
    ];
    for (command, payload) in refused {
        let answer = raw.ask(command, &payload, &[]);
        assert!(answer.is_err(), "{command} {payload:02x?}: {answer:?}");
    }
    assert_eq!(rig.double.writes(), vec![]);
    assert_eq!(rig.double.times_interrupts_set(), 0);
    let info = raw
        .ask(Command::DEVICE_GET_INFO, &words([16, 0, 0, 0]), &[])
        .unwrap();
    let info = DeviceInfo::read_from_bytes(&info).unwrap();
    assert_eq!((info.num_regions.get(), info.num_irqs.get()), (9, 5));
    let info = raw
        .ask(Command::DEVICE_GET_IRQ_INFO, &words([16, 0, 2, 0]), &[])
        .unwrap();
    assert_eq!(IrqInfo::read_from_bytes(&info).unwrap().count.get(), 2);
}

#[test]
fn memory_that_could_harm_the_server_is_refused() {
    let rig = Rig::new(1);
    let mut raw = Raw::negotiated(&rig.path);
    let good = SharedMemory::anonymous(8192).unwrap();
    let good = good.as_fd().unwrap();
    let shrinks = tempfile::tempfile().unwrap();
    shrinks.set_len(8192).unwrap();
    let not_memory = File::open("/dev/null").unwrap();
    // A file on a disk has no seals. A file in memory may have none, or seals other than the required one.
    let memory_with = |seals: SealFlag| {
        let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
        let file = File::from(memfd_create(c"test", flags).unwrap());
        file.set_len(8192).unwrap();
        fcntl(&file, FcntlArg::F_ADD_SEALS(seals)).unwrap();
        file
    };
    let unsealed = memory_with(SealFlag::empty());
    let grows_not = memory_with(SealFlag::F_SEAL_GROW | SealFlag::F_SEAL_SEAL);
    let refused: [(Vec<u8>, &[BorrowedFd<'_>]); 13] = [
        (map(3, 0, 0x1000, 4096), &[shrinks.as_fd()]),
        (map(3, 0, 0x1000, 4096), &[unsealed.as_fd()]),
        (map(3, 0, 0x1000, 4096), &[grows_not.as_fd()]),
        (map(3, 0, 0x1000, 4096), &[not_memory.as_fd()]),
        (map(3, 0, 0x1000, 4096), &[good, good]),
        (map(0, 0, 0x1000, 4096), &[good]),
        (map(2, 0, 0x1000, 4096), &[good]),
        (map(3, 0, 0x1000, 0), &[good]),
        (map(3, 0, 0x1001, 4096), &[good]),
        (map(3, 4096, 0x1000, 8192), &[good]),
        (map(3, u64::MAX - 4095, 0x1000, 4096), &[good]),
        (map(3, 0, 0x1000, u64::MAX - 4095), &[good]),
        (map(3, 0, u64::MAX - 4095, 8192), &[good]),
    ];
    for (payload, fds) in refused {
        let answer = raw.ask(Command::DMA_MAP, &payload, fds);
        assert!(answer.is_err(), "{payload:02x?}: {answer:?}");
    }
    assert_eq!(rig.double.mappings(), vec![]);
    assert_eq!(
        raw.ask(Command::DEVICE_RESET, &[], &[good]),
        Err(Errno::EINVAL)
    );
    raw.ask(Command::DMA_MAP, &map(3, 4096, 0x1000, 4096), &[good])
        .unwrap();
    let again = raw.ask(Command::DMA_MAP, &map(3, 0, 0x1000, 4096), &[good]);
    assert_eq!(again, Err(Errno::EEXIST));
    let mut all = DmaUnmap::new_zeroed();
    all.flags = wire::UNMAP_ALL.into();
    raw.ask(Command::DMA_UNMAP, all.as_bytes(), &[]).unwrap();
    assert_eq!(rig.double.mappings(), vec![]);
}

fn unmap(iova: u64, size: u64) -> Vec<u8> {
    let mut unmap = DmaUnmap::new_zeroed();
    unmap.iova = iova.into();
    unmap.size = size.into();
    unmap.as_bytes().to_vec()
}

/// Thousands of pages of one file can be mapped one by one and unmapped in ranges, as a virtual machine with a virtual
/// IOMMU does.
#[test]
fn thousands_of_pages_of_one_file_are_mapped_and_taken_back_by_range() {
    const PAGES: u64 = 5_000;
    let rig = Rig::new(1);
    let mut raw = Raw::negotiated(&rig.path);
    let memory = SharedMemory::anonymous(4096 * usize::try_from(PAGES).unwrap()).unwrap();
    let fd = memory.as_fd().unwrap();
    // The mappings take every second page of the I/O address space, and the file's pages in reverse order.
    for page in 0..PAGES {
        let message = map(3, (PAGES - 1 - page) * 4096, page * 8192, 4096);
        raw.ask(Command::DMA_MAP, &message, &[fd]).unwrap();
    }
    assert_eq!(rig.double.mappings().len(), 5_000);
    memory.store_be32(4096 * 3 + 8, 0x3333);
    let (theirs, at) = rig.double.reach((PAGES - 4) * 8192 + 8);
    assert_eq!(theirs.load_be32(at), 0x3333);
    // The range has holes, so the reply has the number of bytes that were unmapped.
    let reply = raw
        .ask(Command::DMA_UNMAP, &unmap(0, 1 << 24), &[])
        .unwrap();
    let taken = DmaUnmap::read_from_bytes(&reply).unwrap().size.get();
    assert_eq!(taken, (1 << 24) / 2);
    assert_eq!(rig.double.mappings().len(), 5_000 - 2_048);
    // Unmapping a range without mappings is not an error.
    let reply = raw
        .ask(Command::DMA_UNMAP, &unmap(0, 1 << 24), &[])
        .unwrap();
    assert_eq!(DmaUnmap::read_from_bytes(&reply).unwrap().size.get(), 0);
}

#[test]
fn an_unmapping_that_would_cut_a_mapping_in_two_changes_nothing() {
    let rig = Rig::new(1);
    let mut raw = Raw::negotiated(&rig.path);
    let memory = SharedMemory::anonymous(4 * 4096).unwrap();
    let fd = memory.as_fd().unwrap();
    raw.ask(Command::DMA_MAP, &map(3, 0, 0x4000, 0x2000), &[fd])
        .unwrap();
    raw.ask(Command::DMA_MAP, &map(3, 0x2000, 0x8000, 0x2000), &[fd])
        .unwrap();
    for (iova, size) in [(0x5000, 0x5000), (0x4000, 0x5000), (0x5000, 0x1000)] {
        let answer = raw.ask(Command::DMA_UNMAP, &unmap(iova, size), &[]);
        assert_eq!(answer, Err(Errno::EINVAL), "{iova:#x}+{size:#x}");
    }
    assert_eq!(
        rig.double.mappings(),
        vec![(0x4000, 0x2000), (0x8000, 0x2000)]
    );
}

#[test]
fn memory_for_reading_is_so_to_the_device_and_memory_without_a_descriptor_is_not_there() {
    let rig = Rig::new(1);
    let mut raw = Raw::negotiated(&rig.path);
    let memory = SharedMemory::anonymous(2 * 4096).unwrap();
    let fd = memory.as_fd().unwrap();
    raw.ask(Command::DMA_MAP, &map(1, 4096, 0x4000, 4096), &[fd])
        .unwrap();
    assert_eq!(rig.double.read_only(), vec![0x4000]);
    // The memory is a ROM of a virtual machine. The mapping is accepted, because a guest maps all of its memory.
    raw.ask(Command::DMA_MAP, &map(1, 0, 0xf_0000, 0x1_0000), &[])
        .unwrap();
    raw.ask(Command::DMA_MAP, &map(3, 0, 0x10_0000, 0x1_0000), &[])
        .unwrap();
    assert_eq!(rig.double.mappings(), vec![(0x4000, 4096)]);
    let again = raw.ask(Command::DMA_MAP, &map(3, 0, 0xf_8000, 4096), &[fd]);
    assert_eq!(again, Err(Errno::EEXIST), "it is known all the same");
    raw.ask(Command::DMA_UNMAP, &unmap(0xf_0000, 0x2_0000), &[])
        .unwrap();
    raw.ask(Command::DMA_MAP, &map(3, 0, 0xf_8000, 4096), &[fd])
        .unwrap();
}

#[test]
fn descriptors_that_are_no_eventfds_or_too_few_are_refused() {
    let rig = Rig::new(1);
    let mut raw = Raw::negotiated(&rig.path);
    let interrupt = Interrupt::new().unwrap();
    let file = tempfile::tempfile().unwrap();
    let both = set_irqs(wire::SET_EVENTFDS, wire::MSIX, 0, 2);
    let notice = |count| set_irqs(wire::SET_EVENTFDS, wire::REQUEST_NOTICE, 0, count);
    for (payload, fds) in [
        (notice(1), &[file.as_fd()][..]),
        (notice(1), &[interrupt.as_fd(), interrupt.as_fd()]),
        (notice(2), &[interrupt.as_fd()]),
        (
            set_irqs(wire::SET_EVENTFDS, wire::ERROR_NOTICE, 1, 1),
            &[interrupt.as_fd()],
        ),
    ] {
        let answer = raw.ask(Command::DEVICE_SET_IRQS, &payload, fds);
        assert_eq!(answer, Err(Errno::EINVAL));
    }
    assert!(rig.double.notices().requested.is_none());
    for fds in [
        &[interrupt.as_fd()][..],
        &[interrupt.as_fd(), file.as_fd()],
        &[interrupt.as_fd(), interrupt.as_fd(), interrupt.as_fd()],
    ] {
        let answer = raw.ask(Command::DEVICE_SET_IRQS, &both, fds);
        assert_eq!(answer, Err(Errno::EINVAL));
    }
    assert_eq!(rig.double.times_interrupts_set(), 0);
    let one = set_irqs(wire::SET_EVENTFDS, wire::MSIX, 1, 1);
    raw.ask(Command::DEVICE_SET_IRQS, &one, &[interrupt.as_fd()])
        .unwrap();
    rig.double.signal(0);
    rig.double.signal(1);
    assert!(arrives(&interrupt));
    assert_eq!(interrupt.take(), 1, "vector 0 is not its");
}

/// Sends bytes after which the server drops the client. Returns the bytes that the server answered.
fn dropped(bytes: &[u8]) -> Vec<u8> {
    let rig = Rig::new(2);
    let mut stream = UnixStream::connect(&rig.path).unwrap();
    stream.write_all(bytes).unwrap();
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    // The server then serves the next client.
    rig.function().reset().unwrap();
    answer
}

fn header(command: Command, size: u32, flags: u32) -> Vec<u8> {
    let header = Header {
        id: 1.into(),
        command: command.0.into(),
        size: size.into(),
        flags: flags.into(),
        error: 0.into(),
    };
    header.as_bytes().to_vec()
}

#[test]
fn a_client_that_cannot_be_followed_is_dropped_and_the_next_one_served() {
    let version = [header(Command::VERSION, 20, 0), vec![0, 0, 1, 0]].concat();
    let cases: [(&str, Vec<u8>); 8] = [
        (
            "a message smaller than its header",
            header(Command::VERSION, 15, 0),
        ),
        ("a message of 4 GiB", header(Command::VERSION, u32::MAX, 0)),
        ("half a header", vec![1; 7]),
        ("half a payload", header(Command::VERSION, 1000, 0)),
        ("a reply", header(Command::VERSION, 16, 1)),
        ("no VERSION", header(Command::DEVICE_RESET, 16, 0)),
        (
            "another major version",
            [header(Command::VERSION, 20, 0), vec![9, 0, 0, 0]].concat(),
        ),
        (
            "a VERSION without a version",
            header(Command::VERSION, 16, 0),
        ),
    ];
    for (case, bytes) in cases {
        let answer = dropped(&bytes);
        let error = answer
            .get(8)
            .is_some_and(|flags| u32::from(*flags) & wire::ERROR != 0);
        assert!(answer.is_empty() || error, "{case}: {answer:02x?}");
    }
    assert!(!dropped(&version).is_empty());
}

/// Connects to a server that answers VERSION with the bytes of `answer` and then closes. Returns the client's error.
fn connect_to(answer: impl FnOnce(Message) -> Vec<u8> + Send + 'static) -> FunctionError {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("nic.sock");
    let listener = UnixListener::bind(&path).unwrap();
    let server = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let socket = Socket::new(stream.try_clone().unwrap()).unwrap();
        let message = socket.receive(|| false).unwrap().unwrap();
        stream.write_all(&answer(message)).unwrap();
    });
    let error = Function::vfio_user(&path).unwrap_err();
    server.join().unwrap();
    error
}

#[test]
fn a_server_that_answers_nonsense_is_an_error_that_names_the_message() {
    let nothing = connect_to(|_| Vec::new()).to_string();
    assert!(nothing.contains("VERSION"), "{nothing}");
    let other = connect_to(|_| header(Command::DMA_MAP, 16, 1)).to_string();
    assert!(other.contains("reply makes no sense"), "{other}");
    let huge = connect_to(|_| header(Command::VERSION, u32::MAX, 1)).to_string();
    assert!(huge.contains("0xffffffff bytes"), "{huge}");
    let major = connect_to(|message| {
        let id = message.header.id.get();
        let header = socket::header(id, Command::VERSION.0, 4, wire::TYPE_REPLY, 0);
        [header.as_bytes(), &[3, 0, 0, 0]].concat()
    })
    .to_string();
    assert!(major.contains("version 3.0"), "{major}");
}

#[test]
fn a_server_that_dies_is_a_device_that_is_gone() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("nic.sock");
    let listener = UnixListener::bind(&path).unwrap();
    let double = Double::new();
    let server = Server::new(Arc::new(double), listener);
    let handle: OwnedFd;
    let function = {
        // A thread serves the session. The test shuts down its end of the connection, as if the process had died.
        let client = thread::spawn({
            let path = path.clone();
            move || Function::vfio_user(path).unwrap()
        });
        let (stream, _) = server.listener().accept().unwrap();
        handle = stream.try_clone().unwrap().into();
        thread::spawn(move || server.serve_stream(stream));
        client.join().unwrap()
    };
    let block = function.bar(0).unwrap().block::<Sample>(0).unwrap();
    UnixStream::from(handle)
        .shutdown(std::net::Shutdown::Both)
        .unwrap();
    block.write(|r| &r.control, Be32::new(1));
    assert_eq!(block.read(|r| &r.version).get(), u32::MAX);
    let error = function.config_read_u16(0).unwrap_err().to_string();
    // Timing determines which message fails first.
    assert!(
        error.contains("REGION_") && error.contains("nic.sock"),
        "{error}"
    );
}

#[test]
fn a_lost_server_does_not_keep_others_from_memory() {
    let rig = Rig::new(1);
    let function = rig.function();
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("lost.sock");
    let server = Server::new(Arc::new(Double::new()), UnixListener::bind(&path).unwrap());
    let space = function.dma_space();
    let client = thread::spawn(move || Function::vfio_user_in(path, &space).unwrap());
    let (stream, _) = server.listener().accept().unwrap();
    let handle = stream.try_clone().unwrap();
    let served = thread::spawn(move || server.serve_stream(stream));
    let lost = client.join().unwrap();
    handle.shutdown(std::net::Shutdown::Both).unwrap();
    let memory = SharedMemory::anonymous(8192).unwrap();
    // This call is the first that finds the server lost.
    function.dma_map(Iova(0x1000), &memory, 0, 4096).unwrap();
    assert!(lost.lost().is_some());
    lost.dma_map(Iova(0x2000), &memory, 4096, 4096).unwrap();
    assert_eq!(rig.double.mappings(), [(0x1000, 4096), (0x2000, 4096)]);
    served.join().unwrap();
    drop(function);
    // No function is left that could access the memory.
    let refused = lost.dma_map(Iova(0x3000), &memory, 0, 4096).unwrap_err();
    assert!(refused.to_string().contains("lost.sock"), "{refused}");
    drop(lost);
    assert_eq!(rig.finished().mappings(), []);
}

#[test]
fn capabilities_are_found_in_any_spelling_of_the_json() {
    let find = |json: &str| wire::capability(json.as_bytes(), "max_msg_fds");
    assert_eq!(find("{\"capabilities\":{\"max_msg_fds\":8}}\0"), Some(8));
    assert_eq!(find("{ \"max_msg_fds\" : 16 , \"x\": 1}"), Some(16));
    assert_eq!(find("{\"max_msg_fds\":-1}"), None);
    assert_eq!(find("{\"max_msg_fds\""), None);
    assert_eq!(find(""), None);
    let find = |json: &str| wire::twin_socket(json.as_bytes()).map(|twin| twin.fd_index);
    assert_eq!(
        find("{\"twin_socket\": {\"supported\" : true, \"fd_index\": 3}, \"x\":{}}\0"),
        Some(Some(3))
    );
    assert_eq!(find("{\"twin_socket\":{\"supported\":true}}"), Some(None));
    assert_eq!(find("{\"twin_socket\":{\"supported\":false}}"), None);
    assert_eq!(find("{\"twin_socket\":{},\"supported\":true}"), None);
    assert_eq!(find("{\"twin_socket\":true}"), None);
}
