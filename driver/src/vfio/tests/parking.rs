//! Functions under VFIO that are parked and resumed. The simulated kernel records the requests.

use super::*;
use crate::{BackendSnapshot, FunctionSnapshot, Interrupt, NamedFd, ParkError, ResumeError};

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
    let system: Arc<dyn System> = fake.clone();
    Function::resume_by(&system, snapshot, fds)
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
/// `vfio_iommu_type1.c`), so nothing has to be set again.
#[test]
fn a_function_that_is_parked_and_resumed_is_only_read() {
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
            "container",
            "group",
            "device"
        ]
    );

    // A device that is open is not asked of its group again, which is not logged.
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

    // The function is now closed as ever.
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

/// A group that was handed in leaves its container when the function is closed, by the process that closes it.
#[test]
fn a_group_that_was_handed_in_leaves_its_container_with_the_last_owner_only() {
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
        function = resume(&fake, &snapshot, fds).unwrap();
    }
    let quiet = log(&fake);
    assert!(!has(&quiet, &CHANGES), "{quiet:#?}");
    drop(function);
    let closed = log(&fake);
    assert_eq!(closed.last().unwrap(), "VFIO_GROUP_UNSET_CONTAINER");
}

/// A function of a known group can be opened beside one that was resumed without opening the group again.
#[test]
fn a_resumed_function_knows_the_number_of_its_group() {
    let (_, function) = open(kernel()).unwrap();
    let (snapshot, _fds) = park(function);
    let BackendSnapshot::Vfio(vfio) = snapshot.backend else {
        panic!("{snapshot:?}");
    };
    assert_eq!(vfio.group_number, Some(12));
    assert_eq!(vfio.mappings_left, Some(65_535));
}

#[test]
fn a_function_that_was_reset_or_left_its_container_is_refused() {
    let (fake, function) = open(kernel()).unwrap();
    function.set_bus_master(true).unwrap();
    let (snapshot, mut fds) = park(function);
    let mut error;
    let mut text;
    // Command register: memory decoding off, bus mastering off, another device.
    for (offset, byte, before, words) in [
        (4_u64, 0, 6, "memory decoding is off"),
        (4, 2, 6, "command: 2"),
        (1, 1, 0, "device: 100"),
    ] {
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
    if let BackendSnapshot::Vfio(vfio) = &mut changed.backend {
        vfio.mappings_left = Some(65_534);
    }
    (fds, error) = resume(&fake, &changed, fds).unwrap_err();
    text = error.to_string();
    assert!(text.contains("65534") && text.contains("65535"), "{text}");
    for address in ["", "3b:00.2", "0000:3B:00.2", "0000:3b:00.9"] {
        if let BackendSnapshot::Vfio(vfio) = &mut changed.backend {
            vfio.address = address.to_owned();
        }
        (fds, error) = resume(&fake, &changed, fds).unwrap_err();
        assert!(matches!(error, ResumeError::Snapshot { .. }), "{error:?}");
    }
    let function = resume(&fake, &snapshot, fds).unwrap();
    assert_eq!(function.config_read_u16(4).unwrap(), 6);
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
