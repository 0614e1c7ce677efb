//! Tests of several functions in one container.

use super::*;

const NEIGHBOUR: &str = "0000:3b:00.3";
const ELSEWHERE: &str = "0000:5e:00.2";

/// Makes a sysfs tree with two functions in group 12, and one in group 13.
fn tree() -> (TempDir, Roots) {
    let (dir, roots) = sysfs(
        &[(ADDRESS, Some("vfio-pci")), (NEIGHBOUR, Some("vfio-pci"))],
        true,
    );
    let device = roots.sysfs.join("bus/pci/devices").join(ELSEWHERE);
    let members = roots.sysfs.join("kernel/iommu_groups/13/devices");
    fs::create_dir_all(&device).unwrap();
    fs::create_dir_all(&members).unwrap();
    symlink(
        "../../../../kernel/iommu_groups/13",
        device.join("iommu_group"),
    )
    .unwrap();
    symlink(&device, members.join(ELSEWHERE)).unwrap();
    symlink("../../drivers/vfio-pci", device.join("driver")).unwrap();
    (dir, roots)
}

fn first(roots: &Roots) -> (Arc<Fake>, Function) {
    let fake = Arc::new(Fake::new());
    let system: Arc<dyn System> = fake.clone();
    let vfio = Vfio::open(ADDRESS.parse().unwrap(), roots, system).unwrap();
    (fake, Function::from_vfio(vfio).unwrap())
}

fn beside(address: &str, roots: &Roots, first: &Function) -> Result<Function, FunctionError> {
    Function::joining(address.parse().unwrap(), roots, &first.dma_space())
}

/// Returns the number of requests of each kind since the last call, and clears the log. `VFIO_IOMMU_GET_INFO` is sent
/// twice for each answer, the first time to obtain its length.
fn asked<const N: usize>(fake: &Fake, requests: [Request; N]) -> [usize; N] {
    let log = std::mem::take(&mut *fake.log.lock().unwrap());
    requests.map(|request| {
        let of = |line: &&String| line.split(' ').next() == Some(request.name());
        log.iter().filter(of).count()
    })
}

const JOINING: [Request; 4] = [
    Request::GroupGetStatus,
    Request::GroupSetContainer,
    Request::SetIommu,
    Request::IommuGetInfo,
];
const MAPPING: [Request; 2] = [Request::IommuMapDma, Request::IommuUnmapDma];

/// A function of a new group makes its group join the container without setting the IOMMU again; a function of a known
/// group needs neither step. Linux `drivers/vfio/container.c` returns EINVAL to `VFIO_SET_IOMMU` on a container that
/// has its IOMMU, and attaches a further group by itself.
#[test]
fn a_further_group_joins_the_container_and_one_of_a_known_group_is_in_it() {
    let (_dir, roots) = tree();
    let (fake, first) = first(&roots);
    assert_eq!(asked(&fake, JOINING), [1, 1, 1, 2]);
    let elsewhere = beside(ELSEWHERE, &roots, &first).unwrap();
    assert_eq!(asked(&fake, JOINING), [1, 1, 0, 2]);
    let neighbour = beside(NEIGHBOUR, &roots, &first).unwrap();
    assert_eq!(asked(&fake, JOINING), [0, 0, 0, 2]);
    drop((first, neighbour));
    // The group's file is closed, so the next function opens it again.
    beside(NEIGHBOUR, &roots, &elsewhere).unwrap();
    assert_eq!(asked(&fake, JOINING), [1, 1, 0, 2]);
}

#[test]
fn memory_is_mapped_once_for_all_functions_of_a_container_and_goes_with_the_last() {
    let (_dir, roots) = tree();
    let (fake, first) = first(&roots);
    let second = beside(ELSEWHERE, &roots, &first).unwrap();
    let arena = DmaArena::new(&first).unwrap();
    let kept = arena.alloc(4096, 4096).unwrap();
    let given_back = DmaArena::new(&second).unwrap().alloc(64, 64).unwrap();
    assert_eq!(asked(&fake, MAPPING), [2, 0]);
    drop(given_back);
    assert_eq!(asked(&fake, MAPPING), [0, 1]);
    drop((first, arena));
    assert_eq!(asked(&fake, MAPPING), [0, 0], "the other one may use it");
    drop(second);
    assert_eq!(asked(&fake, MAPPING), [0, 1]);
    drop(kept);
    assert_eq!(asked(&fake, MAPPING), [0, 0], "it was taken back");
}

#[test]
fn addresses_that_a_further_function_cannot_reach_are_not_given_out_any_more() {
    let (_dir, roots) = tree();
    let mut fake = Fake::new();
    // The second answer has fewer addresses than the first.
    static ASKED: Mutex<usize> = Mutex::new(0);
    fake.tamper = Some(|request, _, message| {
        let answered = |message: &Message| {
            message.field::<u32>(offset_of!(vfio_iommu_type1_info, cap_offset)) != 0
        };
        if request == Request::IommuGetInfo && answered(message) {
            let mut asked = ASKED.lock().unwrap();
            *asked += 1;
            if *asked > 1 {
                // First and last address of the second range.
                message.put(56, 0x1_0000_0000_u64);
                message.put(64, 0x1_ffff_ffff_u64);
            }
        }
    });
    let system: Arc<dyn System> = Arc::new(fake);
    let vfio = Vfio::open(ADDRESS.parse().unwrap(), &roots, system).unwrap();
    let first = Function::from_vfio(vfio).unwrap();
    assert_eq!(first.iova_ranges()[1], 0xfef0_0000..=0x7f_ffff_ffff);
    let _second = beside(ELSEWHERE, &roots, &first).unwrap();
    let after = [0..=0xfedf_ffff, 0x1_0000_0000..=0x1_ffff_ffff];
    assert_eq!(first.iova_ranges(), after);
    let space = first.space();
    space.alloc_iova(0xfed0_0000, 0x1000, 0).unwrap();
    assert_eq!(
        space.alloc_iova(0x1000_0000, 0x1000, 0).unwrap(),
        Iova(0x1_0000_0000)
    );
    assert!(space.alloc_iova(0x1_0000_0000, 0x1000, 0).is_err());
}

/// A refused group is not counted as joined: its next function asks the kernel again.
#[test]
fn a_group_that_the_kernel_refuses_is_an_error_with_the_reason() {
    let (_dir, roots) = tree();
    let (fake, first) = first(&roots);
    asked(&fake, JOINING);
    *fake.refuse.lock().unwrap() = Some((Request::GroupSetContainer, Errno::EBUSY));
    for _ in 0..2 {
        let refused = beside(ELSEWHERE, &roots, &first).unwrap_err().to_string();
        assert_eq!(
            refused,
            format!(
                "{ELSEWHERE}: VFIO_GROUP_SET_CONTAINER: EBUSY (16): Device or resource busy: the group is in another container already: another process has it"
            )
        );
        assert_eq!(asked(&fake, JOINING), [1, 1, 0, 0]);
    }
    *fake.refuse.lock().unwrap() = None;
    let _second = beside(ELSEWHERE, &roots, &first).unwrap();
    assert_eq!(asked(&fake, JOINING), [1, 1, 0, 2]);
}

#[test]
fn a_function_that_is_not_there_does_not_join() {
    let (_dir, roots) = tree();
    let (fake, first) = first(&roots);
    asked(&fake, JOINING);
    let missing = beside("0000:3b:00.7", &roots, &first).unwrap_err();
    assert!(
        missing.to_string().contains("no such PCI function"),
        "{missing}"
    );
    assert_eq!(asked(&fake, JOINING), [0; 4]);
}

/// This crate refuses to open a function a second time while it is open in the container, because Linux
/// (`drivers/vfio/group.c` `vfio_df_open`) opens the device of a group any number of times.
#[test]
fn a_function_that_is_open_in_the_container_is_not_opened_a_second_time() {
    let (_dir, roots) = tree();
    let (fake, first) = first(&roots);
    asked(&fake, [Request::DeviceReset]);
    let again = beside(ADDRESS, &roots, &first).unwrap_err().to_string();
    assert_eq!(
        again,
        format!(
            "{ADDRESS}: this process has the device open already, in the same I/O address space"
        )
    );
    assert_eq!(
        *fake.log.lock().unwrap(),
        [""; 0],
        "the kernel was not asked"
    );

    let elsewhere = beside(ELSEWHERE, &roots, &first).unwrap();
    let again = beside(ELSEWHERE, &roots, &first).unwrap_err().to_string();
    assert!(again.starts_with(ELSEWHERE), "{again}");
    drop(first);
    let first = beside(ADDRESS, &roots, &elsewhere).unwrap();
    drop(elsewhere);
    let _elsewhere = beside(ELSEWHERE, &roots, &first).unwrap();
}

#[test]
fn a_function_whose_opening_failed_can_be_opened() {
    let (_dir, roots) = tree();
    let mut fake = Fake::new();
    static FLAGS: Mutex<u32> = Mutex::new(3);
    // The kernel reports once that the device is not a PCI device.
    fake.tamper = Some(|request, _, message| {
        if request == Request::DeviceGetInfo {
            let flags = *FLAGS.lock().unwrap();
            message.put(offset_of!(vfio_device_info, flags), flags);
        }
    });
    let system: Arc<dyn System> = Arc::new(fake);
    let vfio = Vfio::open(ADDRESS.parse().unwrap(), &roots, system).unwrap();
    let first = Function::from_vfio(vfio).unwrap();
    *FLAGS.lock().unwrap() = 1;
    let refused = beside(NEIGHBOUR, &roots, &first).unwrap_err().to_string();
    assert!(refused.contains("not a PCI device"), "{refused}");
    *FLAGS.lock().unwrap() = 3;
    beside(NEIGHBOUR, &roots, &first).unwrap();
}
