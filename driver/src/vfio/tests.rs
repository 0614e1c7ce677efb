//! The VFIO backend with a simulated kernel, whose answers and errors the test chooses, and sysfs trees in a directory.
//!
//! The texts of its errors are tested in [`refusals`].

#![expect(
    clippy::wildcard_enum_match_arm,
    reason = "the fake answers some requests and grants the rest"
)]

use core::mem::offset_of;
use std::fs::{self, File};
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use nix::errno::Errno;
use tempfile::TempDir;
use vfio_bindings::bindings::vfio::{
    vfio_device_info, vfio_group_status, vfio_iommu_type1_info, vfio_irq_info, vfio_irq_set,
    vfio_region_info,
};

use super::dma::Iommu;
use super::region::Region;
use super::sys::{Argument, Message, Request, System};
use super::*;
use crate::error::{FunctionError, MemoryError};
use crate::function::Function;
use crate::mapping::Area;
use crate::memory::SharedMemory;
use crate::register::{Be32, Rw};
use crate::{DmaArena, Iova, IovaAllocator};

mod handed_in;
mod parking;
mod refusals;
mod shared;

const ADDRESS: &str = "0000:3b:00.2";
const BAR_BYTES: u64 = 0x4000;
const CONFIG_AT: u64 = 7 << 40;

/// A function that changes the answer to a request. The number is the index of the region or interrupt.
type Tamper = fn(Request, u32, &mut Message);

/// A simulated kernel with one device, whose file has configuration space at offset 0 and BAR 0 at 0x1000.
struct Fake {
    refuse: Mutex<Option<(Request, Errno)>>,
    refuse_open: Option<(&'static str, Errno)>,
    /// Number of further resets and opens of the device that are refused because the device is locked.
    locked: AtomicU32,
    viable: u32,
    api: u32,
    /// Number of MSI-X vectors that the machine has available.
    vectors_left: u32,
    /// Function that changes an answer before it is returned.
    tamper: Option<Tamper>,
    /// Outcome of reads of regions, if not success: an error, or the smaller number of bytes moved.
    transfer: Option<Result<usize, Errno>>,
    /// True if the container has no TYPE1v2 IOMMU.
    no_type1: bool,
    /// True if no region can be mapped although its flags allow it.
    unmappable: bool,
    locked_limit: Option<u64>,
    /// Mappable areas of BAR 0: start and length in bytes of each; `None` if all of the BAR is mappable.
    sparse: Option<Vec<(u64, u64)>>,
    file: File,
    /// Number of mappings that can still be made.
    mappings_left: AtomicU32,
    /// Path of the device in sysfs, if the kernel reports it for the device's file.
    device_path: Mutex<Option<PathBuf>>,
    /// True if writes to regions fail.
    writes_fail: AtomicBool,
    log: Mutex<Vec<String>>,
}

impl Fake {
    fn new() -> Self {
        let file = tempfile::tempfile().unwrap();
        file.set_len(0x10_000).unwrap();
        Self {
            refuse: Mutex::new(None),
            refuse_open: None,
            locked: AtomicU32::new(0),
            viable: 1,
            api: 0,
            vectors_left: u32::MAX,
            tamper: None,
            transfer: None,
            no_type1: false,
            unmappable: false,
            locked_limit: None,
            sparse: None,
            file,
            mappings_left: AtomicU32::new(65_535),
            device_path: Mutex::default(),
            writes_fail: AtomicBool::new(false),
            log: Mutex::default(),
        }
    }

    /// Returns whether another holder has the device locked, and decrements the number of resets and opens that are
    /// still to be refused.
    fn is_locked(&self) -> bool {
        let once_less = |left: u32| left.checked_sub(1);
        let (set, get) = (Ordering::Relaxed, Ordering::Relaxed);
        self.locked.fetch_update(set, get, once_less).is_ok()
    }

    fn place(offset: u64) -> u64 {
        offset.checked_sub(CONFIG_AT).unwrap_or(offset + 0x1000)
    }
}

fn null() -> OwnedFd {
    File::open("/dev/null").unwrap().into()
}

/// Appends a chain of capabilities if the message is long enough, and reports the length that is needed.
fn answer_caps(
    message: &mut Message,
    fixed: usize,
    cap_offset_at: usize,
    caps: &[(u16, Vec<u64>)],
) {
    let mut at = fixed;
    let needed = fixed
        + caps
            .iter()
            .map(|(_, words)| 8 + 8 * words.len())
            .sum::<usize>();
    let room = message.bytes().len() >= needed;
    message.put(0, u32::try_from(needed).unwrap());
    if !room {
        return;
    }
    message.put(cap_offset_at, u32::try_from(at).unwrap());
    for (number, (id, words)) in caps.iter().enumerate() {
        let end = at + 8 + 8 * words.len();
        let last = number + 1 == caps.len();
        message.put(at, *id);
        message.put(at + 4, if last { 0 } else { u32::try_from(end).unwrap() });
        for (place, word) in words.iter().enumerate() {
            message.put(at + 8 + 8 * place, *word);
        }
        at = end;
    }
}

impl System for Fake {
    fn open(&self, path: &Path) -> Result<OwnedFd, Errno> {
        match self.refuse_open {
            Some((end, errno)) if path.ends_with(end) => Err(errno),
            Some(_) | None => Ok(null()),
        }
    }

    fn ioctl(
        &self,
        _: BorrowedFd<'_>,
        request: Request,
        argument: Argument<'_>,
    ) -> Result<u32, Errno> {
        let Argument::Message(message) = argument else {
            self.log.lock().unwrap().push(request.name().to_owned());
            if request == Request::DeviceReset && self.is_locked() {
                return Err(Errno::EAGAIN);
            }
            return match *self.refuse.lock().unwrap() {
                Some((refused, errno)) if refused == request => Err(errno),
                Some(_) | None => Ok(match request {
                    Request::GetApiVersion => self.api,
                    Request::CheckExtension => u32::from(!self.no_type1),
                    _ => 0,
                }),
            };
        };
        assert!(request.message_bytes().unwrap() <= message.bytes().len());
        let index: u32 = match request {
            Request::DeviceSetIrqs => message.field(offset_of!(vfio_irq_set, index)),
            Request::DeviceGetRegionInfo | Request::DeviceGetIrqInfo => message.field(8),
            _ => 0,
        };
        self.log
            .lock()
            .unwrap()
            .push(format!("{} {index}", request.name()));
        if let Some((refused, errno)) = *self.refuse.lock().unwrap()
            && refused == request
        {
            return Err(errno);
        }
        match request {
            Request::GroupGetStatus => {
                message.put(offset_of!(vfio_group_status, flags), self.viable)
            }
            Request::DeviceGetInfo => message.put(offset_of!(vfio_device_info, flags), 3_u32),
            Request::DeviceGetIrqInfo => {
                message.put(offset_of!(vfio_irq_info, flags), 1_u32);
                message.put(
                    offset_of!(vfio_irq_info, count),
                    if index == 2 { 4_u32 } else { 1 },
                );
            }
            // Linux `vfio_msi_enable` returns the number of available vectors if it is less than requested.
            Request::DeviceSetIrqs
                if index == 2 && message.field::<u32>(16) > self.vectors_left =>
            {
                return Ok(self.vectors_left);
            }
            Request::DeviceGetRegionInfo => {
                let (offset, bytes, flags) = match index {
                    0 => (0, BAR_BYTES, 7_u32),
                    7 => (CONFIG_AT, 0x1000, 3),
                    _ => (u64::from(index) << 40, 0, 0),
                };
                message.put(offset_of!(vfio_region_info, offset), offset);
                message.put(offset_of!(vfio_region_info, size), bytes);
                message.put(offset_of!(vfio_region_info, flags), flags);
                if let Some(areas) = self.sparse.as_ref().filter(|_| index == 0) {
                    message.put(offset_of!(vfio_region_info, flags), flags | 8);
                    let mut words = vec![areas.len() as u64];
                    words.extend(areas.iter().flat_map(|&(offset, bytes)| [offset, bytes]));
                    answer_caps(
                        message,
                        32,
                        offset_of!(vfio_region_info, cap_offset),
                        &[(3, vec![]), (1, words)],
                    );
                }
            }
            Request::IommuMapDma => {
                self.mappings_left.fetch_sub(1, Ordering::Relaxed);
            }
            Request::IommuUnmapDma => {
                self.mappings_left.fetch_add(1, Ordering::Relaxed);
            }
            Request::IommuGetInfo => {
                message.put(offset_of!(vfio_iommu_type1_info, flags), 3_u32);
                message.put(
                    offset_of!(vfio_iommu_type1_info, iova_pgsizes),
                    0x4020_1000_u64,
                );
                let ranges = vec![2, 0, 0xfedf_ffff, 0xfef0_0000, 0x7f_ffff_ffff];
                let left = self.mappings_left.load(Ordering::Relaxed);
                let caps = [(1, ranges), (3, vec![u64::from(left)])];
                answer_caps(
                    message,
                    24,
                    offset_of!(vfio_iommu_type1_info, cap_offset),
                    &caps,
                );
            }
            _ => {}
        }
        if let Some(tamper) = self.tamper {
            tamper(request, index, message);
        }
        Ok(0)
    }

    fn device_fd(&self, _: BorrowedFd<'_>, _: &str) -> Result<OwnedFd, Errno> {
        match *self.refuse.lock().unwrap() {
            Some((Request::GroupGetDeviceFd, errno)) => Err(errno),
            _ if self.is_locked() => Err(Errno::EAGAIN),
            Some(_) | None => Ok(null()),
        }
    }

    fn device_path(&self, _: BorrowedFd<'_>) -> Option<PathBuf> {
        self.device_path.lock().unwrap().clone()
    }

    fn map(
        &self,
        _: BorrowedFd<'_>,
        bytes: usize,
        areas: &[Area],
    ) -> Result<SharedMemory, MemoryError> {
        use std::os::fd::AsFd;
        if self.unmappable {
            let (call, errno) = ("mmap", Errno::ENOMEM);
            return Err(MemoryError::System { call, bytes, errno });
        }
        let ours: Vec<Area> = areas
            .iter()
            .map(|area| Area {
                file_offset: Self::place(area.file_offset),
                ..*area
            })
            .collect();
        SharedMemory::device(self.file.as_fd(), bytes, &ours)
    }

    fn read_at(&self, _: &File, offset: u64, out: &mut [u8]) -> io::Result<usize> {
        match self.transfer {
            None => self.file.read_at(out, Self::place(offset)),
            Some(instead) => instead.map_err(io::Error::from),
        }
    }

    fn write_at(&self, _: &File, offset: u64, data: &[u8]) -> io::Result<usize> {
        self.log
            .lock()
            .unwrap()
            .push(format!("pwrite {offset:#x} {data:x?}"));
        if self.writes_fail.load(Ordering::Relaxed) {
            return Err(io::Error::from(Errno::EIO));
        }
        self.file.write_at(data, Self::place(offset))
    }

    fn pause(&self, _: Duration) {
        self.log.lock().unwrap().push("pause".to_owned());
    }

    fn locked_memory(&self) -> (Option<u64>, u64) {
        (self.locked_limit, 4096)
    }
}

/// Makes a sysfs tree with these devices, each with its driver. If `group` is set, they are in IOMMU group 12.
fn sysfs(devices: &[(&str, Option<&str>)], group: bool) -> (TempDir, Roots) {
    let dir = tempfile::tempdir().unwrap();
    let sysfs = dir.path().to_owned();
    let members = sysfs.join("kernel/iommu_groups/12/devices");
    fs::create_dir_all(&members).unwrap();
    for (address, driver) in devices {
        let device = sysfs.join("bus/pci/devices").join(address);
        fs::create_dir_all(&device).unwrap();
        if group {
            symlink(
                "../../../../kernel/iommu_groups/12",
                device.join("iommu_group"),
            )
            .unwrap();
            symlink(&device, members.join(address)).unwrap();
        }
        if let Some(driver) = driver {
            symlink(format!("../../drivers/{driver}"), device.join("driver")).unwrap();
        }
    }
    let dev = sysfs.join("dev");
    (dir, Roots { sysfs, dev })
}

fn open(fake: Fake) -> Result<(Arc<Fake>, Function), VfioError> {
    let (_dir, roots) = sysfs(
        &[
            (ADDRESS, Some("vfio-pci")),
            ("0000:3a:00.0", Some("pcieport")),
        ],
        true,
    );
    let fake = Arc::new(fake);
    let system: Arc<dyn System> = fake.clone();
    let vfio = Vfio::open(ADDRESS.parse().unwrap(), &roots, system)?;
    Ok((fake, Function::from_vfio(vfio).unwrap()))
}

#[test]
fn addresses_are_read_with_and_without_a_domain() {
    for (text, full) in [
        ("3b:00.2", ADDRESS),
        (ADDRESS, ADDRESS),
        ("10000:E1:1f.7", "10000:e1:1f.7"),
    ] {
        assert_eq!(text.parse::<PciAddress>().unwrap().to_string(), full);
    }
    for text in [
        "",
        "3b:00",
        "3b:20.0",
        "3b:00.8",
        "sim:A",
        "0:3b:00.2",
        "+3b:00.2",
        "0000:3b:00.2.1",
        "0000:+b:00.2",
    ] {
        assert!(
            matches!(text.parse::<PciAddress>(), Err(VfioError::Address { .. })),
            "{text}"
        );
    }
}

#[test]
fn all_vectors_are_given_at_once() {
    let (fake, function) = open(Fake::new()).unwrap();
    assert_eq!(function.enable_interrupts(usize::MAX).unwrap().len(), 4);
    function.enable_interrupts(usize::MAX).unwrap();
    let log = fake.log.lock().unwrap().clone();
    assert_eq!(
        log.iter()
            .filter(|line| *line == "VFIO_DEVICE_SET_IRQS 2")
            .count(),
        1
    );
    assert!(function.notices().error.is_some() && function.notices().requested.is_some());
}

/// If too few vectors are available, the kernel sets up none and returns their number (Linux `vfio_pci_intrs.c`
/// `vfio_msi_enable`, `pci_alloc_irq_vectors`). The driver then requests only that many.
#[test]
fn only_the_vectors_wanted_are_given_and_fewer_where_the_machine_has_no_more() {
    for (left, wanted, had) in [(u32::MAX, 2, 2), (3, usize::MAX, 3), (1, 2, 1)] {
        let (fake, function) = open(Fake {
            vectors_left: left,
            ..Fake::new()
        })
        .unwrap();
        assert_eq!(function.enable_interrupts(wanted).unwrap().len(), had);
        assert_eq!(
            function.enable_interrupts(wanted).unwrap().len(),
            had,
            "asked again"
        );
        let log = fake.log.lock().unwrap().clone();
        let requests = log
            .iter()
            .filter(|line| *line == "VFIO_DEVICE_SET_IRQS 2")
            .count();
        assert_eq!(requests, if had < wanted.min(4) { 2 } else { 1 });
    }
}

#[test]
fn the_function_goes_quietly() {
    let (fake, function) = open(Fake::new()).unwrap();
    function.set_bus_master(true).unwrap();
    assert_eq!(function.config_read_u16(4).unwrap(), 6);
    let memory = SharedMemory::anonymous(0x2000).unwrap();
    function
        .dma_map(Iova(0x5000), &memory, 0x1000, 0x1000)
        .unwrap();
    assert!(
        function.dma_unmap(Iova(0x5000), 0x2000).is_err(),
        "not what was mapped"
    );
    function.enable_interrupts(usize::MAX).unwrap();
    fake.log.lock().unwrap().clear();
    drop(function);
    let log = fake.log.lock().unwrap().join("; ");
    let expected = format!(
        "pwrite {:#x} [2]; VFIO_DEVICE_SET_IRQS 2; VFIO_DEVICE_SET_IRQS 3; VFIO_DEVICE_SET_IRQS 4; VFIO_IOMMU_UNMAP_DMA 0",
        CONFIG_AT + 4
    );
    // The simulated kernel leaves `size` unchanged, as a kernel does that unmapped the whole range.
    assert_eq!(log, expected);
}

/// If disabling bus mastering fails on close, the function is reset, because its memory is unmapped next.
#[test]
fn a_function_whose_bus_mastering_does_not_go_off_is_reset() {
    let (fake, function) = open(Fake::new()).unwrap();
    function.set_bus_master(true).unwrap();
    fake.writes_fail.store(true, Ordering::Relaxed);
    fake.log.lock().unwrap().clear();
    drop(function);
    let log = fake.log.lock().unwrap().clone();
    assert_eq!(log[1], Request::DeviceReset.name(), "{log:?}");
}

#[derive(zerocopy::FromBytes)]
#[repr(C)]
struct Word {
    word: Rw<Be32>,
}

/// A reset is repeated while Linux `pci_try_reset_function` returns EAGAIN, which means that sysfs or the driver of the
/// physical function holds the device's lock. The number of attempts is limited.
#[test]
fn a_reset_that_meets_a_locked_device_is_tried_again_and_not_for_ever() {
    let (fake, function) = open(Fake {
        locked: AtomicU32::new(3),
        ..Fake::new()
    })
    .expect("the device was locked for three tries of opening it");
    let tries = |what: &str| {
        let log = fake.log.lock().unwrap();
        log.iter().filter(|line| line.as_str() == what).count()
    };
    assert_eq!(tries("pause"), 3);
    let before = tries("VFIO_DEVICE_RESET");
    fake.locked.store(2, Ordering::Relaxed);
    function.reset().unwrap();
    assert_eq!(
        (tries("VFIO_DEVICE_RESET") - before, tries("pause")),
        (3, 5)
    );
    fake.locked.store(u32::MAX, Ordering::Relaxed);
    let error = function.reset().unwrap_err().to_string();
    assert!(
        error.contains("EAGAIN") && error.contains("try again"),
        "{error}"
    );
    assert_eq!(tries("pause"), 5 + 50);
    fake.locked.store(0, Ordering::Relaxed);
}

#[test]
fn what_cannot_be_mapped_is_reached_by_system_calls() {
    let (fake, function) = open(Fake {
        sparse: Some(vec![(0, 0x1000), (0x2000, 0x2000)]),
        ..Fake::new()
    })
    .unwrap();
    let bar = function.bar(0).unwrap();
    assert_eq!(bar.len(), BAR_BYTES);
    fake.log.lock().unwrap().clear();
    for (offset, calls) in [(0x10, 0), (0x1010, 1), (0x2010, 1), (0x3ffc, 1)] {
        let block = bar.block::<Word>(offset).unwrap();
        block.write(|r| &r.word, Be32::new(0x0102_0304));
        let mut bytes = [0; 4];
        fake.file
            .read_exact_at(&mut bytes, Fake::place(offset))
            .unwrap();
        assert_eq!(bytes, [1, 2, 3, 4], "{offset:#x}");
        fake.file
            .write_at(&[9, 9, 9, 9], Fake::place(offset))
            .unwrap();
        assert_eq!(block.read(|r| &r.word), Be32::new(0x0909_0909));
        assert_eq!(fake.log.lock().unwrap().len(), calls, "{offset:#x}");
    }
    assert!(function.bar(1).is_err() && function.bar(6).is_err());
}

#[test]
fn an_arena_is_few_mappings_however_many_buffers_are_cut_from_it() {
    let (fake, function) = open(Fake::new()).unwrap();
    assert_eq!(function.dma_mappings_left(), Some(65535));
    let arena = DmaArena::new(&function).unwrap();
    let buffers: Vec<_> = (0..4000)
        .map(|_| arena.alloc(16 << 10, 4096).unwrap())
        .collect();
    let mapped = |name: &str| {
        let log = fake.log.lock().unwrap();
        log.iter().filter(|line| line.starts_with(name)).count()
    };
    assert_eq!(
        mapped("VFIO_IOMMU_MAP_DMA"),
        1,
        "62.5 MiB in one chunk of 64"
    );
    drop((buffers, arena));
    assert_eq!(mapped("VFIO_IOMMU_UNMAP_DMA"), 1);
}

#[test]
fn iova_ranges_keep_out_of_the_interrupt_window() {
    let (_, function) = open(Fake::new()).unwrap();
    assert_eq!(
        function.iova_ranges(),
        [0..=0xfedf_ffff, 0xfef0_0000..=0x7f_ffff_ffff]
    );
    let mut allocator = IovaAllocator::new(&function.iova_ranges());
    allocator.alloc(0xfe00_0000, 0x1000).unwrap();
    assert_eq!(allocator.alloc(0x100_0000, 0x1000), Ok(0xfef0_0000));
}

#[test]
fn hostile_chains_are_refused_and_end() {
    let iommu = |first: u32, id: u16, next: u32, count: u32, bytes: usize| {
        let mut message = Message::new(bytes);
        message.put(offset_of!(vfio_iommu_type1_info, flags), 2_u32);
        message.put(offset_of!(vfio_iommu_type1_info, cap_offset), first);
        message.put(24, id);
        message.put(28, next);
        message.put(32, count);
        Iommu::parse(&message)
    };
    for (first, next, count) in [
        (24, 24, 0),
        (24, 4, 0),
        (4, 0, 0),
        (u32::MAX, 0, 0),
        (24, 60, 0),
        (24, 0, 2),
        (24, 0, u32::MAX),
        (24, 0, 0),
    ] {
        assert!(
            iommu(first, 1, next, count, 64).is_err(),
            "{first} {next} {count}"
        );
    }
    assert_eq!(
        iommu(24, 77, 0, 9, 64).unwrap().ranges.len(),
        2,
        "unknown ones are passed over"
    );

    let region = |areas: &[(u64, u64)]| {
        let mut message = Message::new(48 + 16 * areas.len());
        message.put(offset_of!(vfio_region_info, flags), 15_u32);
        message.put(offset_of!(vfio_region_info, size), 0x8000_u64);
        message.put(offset_of!(vfio_region_info, cap_offset), 32_u32);
        message.put(32, 1_u16);
        message.put(40, u32::try_from(areas.len()).unwrap());
        for (number, (offset, bytes)) in areas.iter().enumerate() {
            message.put(48 + 16 * number, *offset);
            message.put(56 + 16 * number, *bytes);
        }
        Region::parse(&message)
    };
    assert!(region(&[(0x7000, 0x2000)]).is_err());
    assert!(region(&[(u64::MAX, 2)]).is_err());
    let areas = region(&[
        (0x4000, 0x2000),
        (0x10, 0x1ff0),
        (0x5000, 0x1000),
        (0x7800, 0x100),
    ])
    .unwrap()
    .areas;
    let whole: Vec<(usize, usize)> = areas.iter().map(|area| (area.at, area.bytes)).collect();
    assert_eq!(whole, [(0x1000, 0x1000), (0x4000, 0x2000)]);
}
