//! Functions under VFIO that are parked and resumed. The simulated kernel records the requests.

use std::cell::RefCell;
use std::rc::Rc;

use nix::fcntl::{FallocateFlags, fallocate};

use super::*;
use crate::handover::Claimed;
use crate::{
    BackendSnapshot, DmaPool, FunctionSnapshot, Interrupt, NamedFd, ParkError, ResumeError,
    UnclaimedFunction,
};

/// A kernel whose group is viable and in a container.
fn kernel() -> Fake {
    Fake {
        viable: 3,
        ..Fake::new()
    }
}

fn park(function: Function) -> (FunctionSnapshot, Vec<NamedFd>) {
    function.park().map_err(|(_, error)| error).unwrap()
}

fn resume(
    fake: &Arc<Fake>,
    snapshot: &FunctionSnapshot,
    fds: Vec<NamedFd>,
) -> Result<Function, (Vec<NamedFd>, ResumeError)> {
    Ok(unclaimed(fake, snapshot, fds)?.go_on(&Claimed::by_caller()))
}

fn unclaimed(
    fake: &Arc<Fake>,
    snapshot: &FunctionSnapshot,
    fds: Vec<NamedFd>,
) -> Result<UnclaimedFunction, (Vec<NamedFd>, ResumeError)> {
    let (_dir, roots) = sysfs(&[(ADDRESS, Some("vfio-pci"))], true);
    let system: Arc<dyn System> = fake.clone();
    Function::resume_by((&system, &roots), snapshot, fds)
}

/// Returns the log since the last call, and clears it.
fn log(fake: &Fake) -> Vec<String> {
    std::mem::take(&mut *fake.log.lock().unwrap())
}

fn has(log: &[String], names: &[&str]) -> bool {
    let begins = |line: &String| names.iter().any(|name| line.starts_with(name));
    log.iter().any(begins)
}

/// Requests that change the device, its interrupts, its mappings or its group.
const CHANGES: [&str; 8] = [
    "pwrite",
    "VFIO_SET_IOMMU",
    "VFIO_GROUP_SET_CONTAINER",
    "VFIO_GROUP_UNSET_CONTAINER",
    "VFIO_DEVICE_SET_IRQS",
    "VFIO_DEVICE_RESET",
    "VFIO_IOMMU_MAP_DMA",
    "VFIO_IOMMU_UNMAP_DMA",
];

/// The kernel has references to the eventfds, and the container has the mappings (Linux `vfio_pci_intrs.c`,
/// `vfio_iommu_type1.c`), so they are not set again.
#[test]
fn parking_and_resuming_a_function_only_read_from_it() {
    let (fake, function) = open(kernel()).unwrap();
    function.set_bus_master(true).unwrap();
    let interrupts = function.enable_interrupts(3).unwrap();
    let arena = DmaArena::with_chunk_bytes(&function, 1 << 16).unwrap();
    let buffer = arena.alloc(4096, 4096).unwrap();
    buffer.write_bytes(100, b"still here");
    let (iova, address) = (buffer.iova(), buffer.address());
    let requested = function.notices().requested.clone().unwrap();
    requested.signal();
    interrupts[2].signal();
    function.hold_mappings();
    let before = arena.snapshot().unwrap();
    log(&fake);
    drop((buffer, arena, interrupts, requested));
    let (snapshot, fds) = park(function);
    let parked = log(&fake);
    assert!(!has(&parked, &CHANGES), "{parked:#?}");
    let names: Vec<&str> = fds.iter().map(|fd| fd.name.as_str()).collect();
    assert_eq!(
        names,
        [
            "memory-0",
            "vector-0",
            "vector-1",
            "vector-2",
            "error",
            "removal",
            "lock",
            "container-0000-3b-00-2",
            "group-0000-3b-00-2",
            "device-0000-3b-00-2"
        ]
    );

    // The device is open, so it is not opened through its group again. The simulated kernel does not log that request.
    *fake.refuse.lock().unwrap() = Some((Request::GroupGetDeviceFd, Errno::EIO));
    let function = resume(&fake, &snapshot, fds).unwrap();
    let arena = DmaArena::resume(&function, &before).unwrap();
    let buffer = arena.claim(iova, 4096).unwrap();
    let interrupts = function.enable_interrupts(usize::MAX).unwrap();
    let resumed = log(&fake);
    assert!(!has(&resumed, &CHANGES), "{resumed:#?}");
    assert_eq!(buffer.read_obj::<[u8; 10]>(100), *b"still here");
    assert_eq!(buffer.address(), address);
    let counts: Vec<u64> = interrupts.iter().map(Interrupt::take).collect();
    assert_eq!(counts, [0, 0, 1]);
    let notices = function.notices();
    assert_eq!(notices.requested.as_ref().unwrap().take(), 1);
    assert!(!notices.error.as_ref().unwrap().is_pending());
    assert_eq!(function.config_read_u16(4).unwrap(), 6);
    assert_eq!(function.bar(0).unwrap().len(), BAR_BYTES);
    assert_eq!(function.release_mappings(), []);

    // The function is closed like one that was never parked.
    drop((buffer, arena, interrupts));
    log(&fake);
    drop(function);
    let closed = log(&fake).join("; ");
    let expected = format!(
        "pwrite {:#x} [2]; VFIO_DEVICE_SET_IRQS 2; VFIO_DEVICE_SET_IRQS 3; VFIO_DEVICE_SET_IRQS 4",
        CONFIG_AT + 4
    );
    assert_eq!(closed, expected);
}

/// The process that closes the function removes a group that was handed in from its container.
#[test]
fn a_handed_in_group_leaves_its_container_only_when_the_function_is_closed() {
    let (_dir, roots) = sysfs(&[(ADDRESS, Some("vfio-pci"))], true);
    let fake = Arc::new(kernel());
    let system: Arc<dyn System> = fake.clone();
    let fds = VfioFds {
        container: Some(null()),
        group: null(),
        device: None,
    };
    let vfio = Vfio::from_fds(ADDRESS.to_owned(), &roots, system, fds).unwrap();
    let mut function = Function::from_vfio(vfio).unwrap();
    log(&fake);
    for _ in 0..2 {
        let (snapshot, fds) = park(function);
        let BackendSnapshot::Vfio(vfio) = &snapshot.backend else {
            panic!("{snapshot:?}");
        };
        assert!(vfio.group_leaves);
        let mut changed = snapshot.clone();
        changed.identity.class ^= 1;
        let (fds, error) = resume(&fake, &changed, fds).unwrap_err();
        assert!(matches!(error, ResumeError::Changed { .. }), "{error:?}");
        // Dropping a function that is not claimed changes nothing either.
        let copies = fds.iter().map(|named| NamedFd {
            name: named.name.clone(),
            fd: named.fd.try_clone().unwrap(),
        });
        drop(unclaimed(&fake, &snapshot, copies.collect()).unwrap());
        let fds = unclaimed(&fake, &snapshot, fds).unwrap().park();
        function = resume(&fake, &snapshot, fds).unwrap();
    }
    let quiet = log(&fake);
    assert!(!has(&quiet, &CHANGES), "{quiet:#?}");
    drop(function);
    let closed = log(&fake);
    assert_eq!(closed.last().unwrap(), "VFIO_GROUP_UNSET_CONTAINER");
}

/// A group's file can be open only once, so another function of the group uses the file of the snapshot.
#[test]
fn a_function_of_the_same_group_is_opened_beside_one_that_was_resumed() {
    const NEIGHBOUR: &str = "0000:3b:00.3";
    let (fake, function) = open(kernel()).unwrap();
    let (snapshot, fds) = park(function);
    let first = resume(&fake, &snapshot, fds).unwrap();
    let both = [(ADDRESS, Some("vfio-pci")), (NEIGHBOUR, Some("vfio-pci"))];
    let (_dir, roots) = sysfs(&both, true);
    log(&fake);
    let address = NEIGHBOUR.parse().unwrap();
    let _second = Function::joining(address, &roots, &first.dma_space()).unwrap();
    let joined = log(&fake);
    assert!(!has(&joined, &["VFIO_GROUP"]), "{joined:#?}");
}

/// A change of the simulated kernel's device in a test: offset in configuration space, the other byte, the byte before,
/// and words of the error.
type Other = (u64, u8, u8, &'static str);

#[test]
fn a_function_with_other_registers_or_in_another_container_is_refused() {
    let (fake, function) = open(kernel()).unwrap();
    function.set_bus_master(true).unwrap();
    let (snapshot, mut fds) = park(function);
    let mut error;
    let mut text;
    // Command register: memory decoding off, bus mastering off. Vendor and device: another device.
    let others: [Other; 3] = [
        (4, 0, 6, "memory decoding is off"),
        (4, 2, 6, "command: 2"),
        (1, 1, 0, "device: 100"),
    ];
    for (offset, byte, before, words) in others {
        let at = Fake::place(CONFIG_AT + offset);
        fake.file.write_at(&[byte], at).unwrap();
        (fds, error) = resume(&fake, &snapshot, fds).unwrap_err();
        text = error.to_string();
        assert!(text.starts_with(ADDRESS) && text.contains(words), "{text}");
        fake.file.write_at(&[before], at).unwrap();
    }
    for (request, words) in [
        (Request::GetApiVersion, "VFIO_GET_API_VERSION"),
        (Request::GroupGetStatus, "VFIO_GROUP_GET_STATUS"),
        (Request::DeviceGetInfo, "VFIO_DEVICE_GET_INFO"),
        (Request::DeviceGetIrqInfo, "VFIO_DEVICE_GET_IRQ_INFO"),
        (Request::IommuGetInfo, "VFIO_IOMMU_GET_INFO"),
    ] {
        *fake.refuse.lock().unwrap() = Some((request, Errno::EIO));
        (fds, error) = resume(&fake, &snapshot, fds).unwrap_err();
        text = error.to_string();
        assert!(text.contains(words) && text.contains("EIO"), "{text}");
        *fake.refuse.lock().unwrap() = None;
    }
    let mut changed = snapshot.clone();
    for address in ["", "3b:00.2", "0000:3B:00.2", "0000:3b:00.9"] {
        if let BackendSnapshot::Vfio(vfio) = &mut changed.backend {
            vfio.address = address.to_owned();
        }
        (fds, error) = resume(&fake, &changed, fds).unwrap_err();
        text = error.to_string();
        assert!(text.contains("is no full PCI address"), "{text}");
    }
    changed = snapshot.clone();
    if let BackendSnapshot::Vfio(vfio) = &mut changed.backend {
        vfio.vector_count += 1;
    }
    (fds, error) = resume(&fake, &changed, fds).unwrap_err();
    text = error.to_string();
    assert!(text.contains("4 vectors, and there were 5"), "{text}");
    let function = resume(&fake, &snapshot, fds).unwrap();
    assert_eq!(function.config_read_u16(4).unwrap(), 6);
}

/// fstat(2) does not distinguish the device files of functions. The kernel reports the device of a file (Linux 6.18).
#[test]
fn a_device_file_of_another_function_is_refused() {
    let (fake, function) = open(kernel()).unwrap();
    let (snapshot, fds) = park(function);
    let of = |address: &str| {
        let path = format!("/sys/devices/pci0000:3a/0000:3a:00.0/{address}");
        *fake.device_path.lock().unwrap() = Some(path.into());
    };
    of("0000:3b:00.3");
    let (fds, error) = resume(&fake, &snapshot, fds).unwrap_err();
    assert_eq!(
        error.to_string(),
        "0000:3b:00.2: the device's file is that of /sys/devices/pci0000:3a/0000:3a:00.0/0000:3b:00.3"
    );
    // Before Linux 6.18 only the names of the descriptors differ.
    let mut fds = fds;
    fds.last_mut().unwrap().name = "device-0000-3b-00-3".to_owned();
    let (mut fds, error) = resume(&fake, &snapshot, fds).unwrap_err();
    assert!(matches!(error, ResumeError::Missing { .. }), "{error:?}");
    fds.last_mut().unwrap().name = "device-0000-3b-00-2".to_owned();
    of(ADDRESS);
    resume(&fake, &snapshot, fds).unwrap();
}

/// The kernel counts the mappings of a container (`VFIO_IOMMU_TYPE1_INFO_DMA_AVAIL`).
#[test]
fn a_function_whose_container_has_other_mappings_is_neither_parked_nor_resumed() {
    let (fake, function) = open(kernel()).unwrap();
    let memory = [(); 2].map(|()| SharedMemory::anonymous(0x1000).unwrap());
    for (iova, memory) in [0x1000, 0x3000].into_iter().zip(&memory) {
        function.dma_map(Iova(iova), memory, 0, 0x1000).unwrap();
    }
    drop(memory);
    fake.mappings_left.fetch_sub(1, Ordering::Relaxed);
    let (function, error) = function.park().unwrap_err();
    assert_eq!(
        error.to_string(),
        "0000:3b:00.2: its container has 3 mappings, and this process has made 2"
    );
    fake.mappings_left.fetch_add(1, Ordering::Relaxed);
    let (snapshot, fds) = park(function);
    // A mapping was left out.
    let mut changed = snapshot.clone();
    changed.space.mappings.pop();
    changed.space.memories.pop();
    let left_out = fds.into_iter().partition(|fd| fd.name == "memory-1");
    let (left_out, fds): (Vec<NamedFd>, Vec<NamedFd>) = left_out;
    let (mut fds, error) = resume(&fake, &changed, fds).unwrap_err();
    assert_eq!(
        error.to_string(),
        "0000:3b:00.2: its container has 2 mappings, and the snapshot has 1"
    );
    fds.extend(left_out);
    // A mapping was made while the function was parked.
    fake.mappings_left.fetch_sub(1, Ordering::Relaxed);
    let (fds, error) = resume(&fake, &snapshot, fds).unwrap_err();
    assert_eq!(
        error.to_string(),
        "0000:3b:00.2: the number of mappings that can still be made in its container is 65532, and was 65533"
    );
    fake.mappings_left.fetch_add(1, Ordering::Relaxed);
    resume(&fake, &snapshot, fds).unwrap();
}

/// An action of the simulated kernel, and the number of answers with the IOMMU's capabilities up to it.
type Action = (usize, Box<dyn FnOnce()>);

thread_local! {
    static ACTION: RefCell<Option<Action>> = const { RefCell::new(None) };
}

/// Lets the simulated kernel of this thread take an action with its `count`th answer with the IOMMU's capabilities.
fn act_at_answer(count: usize, action: impl FnOnce() + 'static) {
    ACTION.set(Some((count, Box::new(action))));
}

/// Returns a kernel that takes the actions.
fn acting_kernel() -> Fake {
    Fake {
        tamper: Some(|request, _, message| {
            let has_capabilities = request == Request::IommuGetInfo
                && message.field::<u32>(offset_of!(vfio_iommu_type1_info, cap_offset)) != 0;
            if !has_capabilities {
                return;
            }
            match ACTION.take() {
                Some((1, action)) => action(),
                Some((count, action)) => ACTION.set(Some((count - 1, action))),
                None => {}
            }
        }),
        ..kernel()
    }
}

/// A change of the mappings of a space by another function of it, which may map the memory.
type Change = fn(&Function, &SharedMemory);

/// Another thread may keep memory for the device, open a function in the I/O address space, or change the mappings,
/// after the mappings were described. `park` reads the IOMMU's capabilities once before the description and once after
/// it.
#[test]
fn a_function_whose_space_changes_during_park_is_given_back() {
    let (_, function) = open(acting_kernel()).unwrap();
    let pool = DmaPool::builder(&function).build(0x2000).unwrap();
    let buffer = pool.alloc(64, 64).unwrap();
    drop(pool);
    act_at_answer(2, move || buffer.arena().keep(buffer));
    let (_function, error) = function.park().unwrap_err();
    assert!(
        matches!(error, ParkError::KeptMemory { count: 1, .. }),
        "{error:?}"
    );

    const ELSEWHERE: &str = "0000:5e:00.2";
    let (fake, function) = open(acting_kernel()).unwrap();
    let (_dir, roots) = sysfs(&[(ELSEWHERE, Some("vfio-pci"))], true);
    let space = function.dma_space();
    let joined = Rc::new(RefCell::new(None));
    let other = Rc::clone(&joined);
    act_at_answer(2, move || {
        let address = ELSEWHERE.parse().unwrap();
        let joined = Function::joining(address, &roots, &space).unwrap();
        other.replace(Some(joined));
    });
    let (function, error) = function.park().unwrap_err();
    assert!(
        matches!(error, ParkError::Shared { functions: 2, .. }),
        "{error:?}"
    );
    drop(joined.take());
    log(&fake);
    drop(function);
    assert!(has(&log(&fake), &["pwrite"]), "the function is closed here");

    // A function that has joined and left the space has changed the mappings.
    let page = || SharedMemory::anonymous(0x1000).unwrap();
    let changes: [(u64, Change); 3] = [
        (0x3000, |joined, page| {
            joined.dma_map(Iova(0x3000), page, 0, 0x1000).unwrap();
        }),
        (0x1000, |joined, _| {
            joined.dma_unmap(Iova(0x1000), 0x1000).unwrap();
        }),
        (0x1000, |joined, page| {
            joined.dma_unmap(Iova(0x1000), 0x1000).unwrap();
            joined.dma_map(Iova(0x1000), page, 0, 0x1000).unwrap();
        }),
    ];
    for (changed, change) in changes {
        let (fake, function) = open(acting_kernel()).unwrap();
        function.dma_map(Iova(0x1000), &page(), 0, 0x1000).unwrap();
        let (_dir, roots) = sysfs(&[(ELSEWHERE, Some("vfio-pci"))], true);
        let (space, page) = (function.dma_space(), page());
        act_at_answer(2, move || {
            let address = ELSEWHERE.parse().unwrap();
            let joined = Function::joining(address, &roots, &space).unwrap();
            change(&joined, &page);
        });
        let (function, error) = function.park().unwrap_err();
        assert_eq!(
            error.to_string(),
            format!(
                "0000:3b:00.2: the mapping at IOVA {changed:#x} was made, replaced or removed during the call"
            )
        );
        let (snapshot, fds) = park(function);
        resume(&fake, &snapshot, fds).unwrap();
    }
}

/// A snapshot without the number would say that the kernel does not report it.
#[test]
fn a_function_whose_number_of_mappings_cannot_be_read_is_neither_parked_nor_resumed() {
    let (fake, function) = open(acting_kernel()).unwrap();
    let refuse = || {
        let fake = Arc::clone(&fake);
        move || *fake.refuse.lock().unwrap() = Some((Request::IommuGetInfo, Errno::EIO))
    };
    // The kernel refuses all questions after the first answer.
    act_at_answer(1, refuse());
    let (function, error) = function.park().unwrap_err();
    let text = error.to_string();
    assert!(
        text.contains("VFIO_IOMMU_GET_INFO") && text.contains("EIO"),
        "{text}"
    );
    *fake.refuse.lock().unwrap() = None;
    let (snapshot, fds) = park(function);
    act_at_answer(1, refuse());
    let (fds, error) = resume(&fake, &snapshot, fds).unwrap_err();
    let text = error.to_string();
    assert!(
        text.contains("VFIO_IOMMU_GET_INFO") && text.contains("EIO"),
        "{text}"
    );
    *fake.refuse.lock().unwrap() = None;
    resume(&fake, &snapshot, fds).unwrap();
}

/// A holder of the file can remove its pages (`FALLOC_FL_PUNCH_HOLE`). The device would still use the old pages, which
/// the kernel has pinned.
#[test]
fn memory_from_which_pages_were_removed_is_refused() {
    let (fake, function) = open(kernel()).unwrap();
    let memory = SharedMemory::anonymous(0x4000).unwrap();
    memory.fill(0, 0x4000, 1);
    function.dma_map(Iova(0x1000), &memory, 0, 0x4000).unwrap();
    drop(memory);
    let (snapshot, fds) = park(function);
    let flags = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
    fallocate(&fds[0].fd, flags, 0x1000, 0x1000).unwrap();
    let (fds, error) = resume(&fake, &snapshot, fds).unwrap_err();
    let text = error.to_string();
    assert!(
        text.contains("memory-0: 24 blocks") && text.contains("32 were"),
        "{text}"
    );
    assert_eq!(fds[0].name, "memory-0");
}

/// A group with fewer addresses has joined the container and left it.
#[test]
fn a_function_that_has_shared_its_container_is_parked_and_resumed() {
    const ELSEWHERE: &str = "0000:5e:00.2";
    static FEWER: AtomicBool = AtomicBool::new(false);
    let fake = Fake {
        tamper: Some(|request, _, message| {
            let answered = |message: &Message| {
                message.field::<u32>(offset_of!(vfio_iommu_type1_info, cap_offset)) != 0
            };
            let fewer = FEWER.load(Ordering::Relaxed);
            if fewer && request == Request::IommuGetInfo && answered(message) {
                // Last address of the second range.
                message.put(64, 0x1_ffff_ffff_u64);
            }
        }),
        ..kernel()
    };
    let (fake, function) = open(fake).unwrap();
    let (_dir, roots) = sysfs(&[(ELSEWHERE, Some("vfio-pci"))], true);
    let arena = DmaArena::with_chunk_bytes(&function, 1 << 16).unwrap();
    let buffer = arena.alloc(64, 64).unwrap();
    FEWER.store(true, Ordering::Relaxed);
    let space = function.dma_space();
    let other = Function::joining(ELSEWHERE.parse().unwrap(), &roots, &space).unwrap();
    drop(other);
    FEWER.store(false, Ordering::Relaxed);
    function.hold_mappings();
    let before = arena.snapshot().unwrap();
    let iova = buffer.iova();
    drop((arena, buffer, space));
    let (snapshot, fds) = park(function);
    let function = resume(&fake, &snapshot, fds).unwrap();
    let arena = DmaArena::resume(&function, &before).unwrap();
    arena.claim(iova, 64).unwrap();
}

/// Linux `VFIO_GROUP_GET_STATUS`: bit 0 viable, bit 1 in a container.
#[test]
fn a_group_in_no_container_is_refused() {
    let (_, function) = open(kernel()).unwrap();
    let (snapshot, fds) = park(function);
    let outside = Arc::new(Fake::new());
    let (_, error) = resume(&outside, &snapshot, fds).unwrap_err();
    let text = error.to_string();
    assert!(text.contains("VFIO_GROUP_GET_STATUS: flags 0x1"), "{text}");
}

#[test]
fn a_function_whose_configuration_space_reads_as_ones_is_lost() {
    let (fake, function) = open(kernel()).unwrap();
    let at = Fake::place(CONFIG_AT);
    fake.file.write_at(&[0xff; 64], at).unwrap();
    let (_function, error) = function.park().unwrap_err();
    assert!(matches!(error, ParkError::Lost { .. }), "{error:?}");
}
