//! Error texts for a person. Each failure is caused once, and its whole text is compared.
//!
//! The texts are in `refusals.txt`, so that they can be read in sequence.

use super::*;

/// A failure and its error text, in which parts that differ from run to run are replaced.
type Said = (String, String);

/// Returns the error text of opening a function in a sysfs tree with these devices.
fn sysfs_says(devices: &[(&str, Option<&str>)], group: bool) -> String {
    let (dir, roots) = sysfs(devices, group);
    let error = roots.viable_group(ADDRESS.parse().unwrap()).unwrap_err();
    error
        .to_string()
        .replace(&dir.path().display().to_string(), "/sys")
}

/// Returns the error text of opening a function with this simulated kernel.
fn opening(fake: Fake) -> String {
    let (_dir, roots) = sysfs(&[(ADDRESS, Some("vfio-pci"))], true);
    let error = Vfio::open(ADDRESS.parse().unwrap(), &roots, Arc::new(fake));
    let error = error.err().expect("a refusal").to_string();
    error.replace(&roots.dev.display().to_string(), "/dev/vfio")
}

fn refusing(request: Request, errno: Errno) -> Fake {
    Fake {
        refuse: Mutex::new(Some((request, errno))),
        ..Fake::new()
    }
}

fn tampering(tamper: Tamper) -> Fake {
    Fake {
        tamper: Some(tamper),
        ..Fake::new()
    }
}

fn in_sysfs(said: &mut Vec<Said>) {
    type Case<'a> = (&'a str, &'a [(&'a str, Option<&'a str>)], bool);
    let cases: [Case<'_>; 5] = [
        ("no such function", &[], true),
        ("no IOMMU", &[(ADDRESS, Some("vfio-pci"))], false),
        ("no driver", &[(ADDRESS, None)], true),
        ("another driver", &[(ADDRESS, Some("mlx5_core"))], true),
        (
            "a group in use",
            &[
                (ADDRESS, Some("mlx5_vfio_pci")),
                ("0000:3a:00.0", Some("pcieport")),
                ("0000:3b:00.0", Some("mlx5_core")),
                ("0000:3b:00.3", Some("vfio-pci")),
                ("0000:3b:00.4", None),
                ("0000:3b:00.5", Some("nvme")),
            ],
            true,
        ),
    ];
    for (case, devices, group) in cases {
        said.push((case.to_owned(), sysfs_says(devices, group)));
    }
    let error = "sim:A".parse::<PciAddress>().unwrap_err();
    said.push(("no address".to_owned(), error.to_string()));
}

fn at_opening(said: &mut Vec<Said>) {
    for (file, errno) in [
        ("vfio", Errno::ENOENT),
        ("vfio", Errno::EACCES),
        ("vfio", Errno::EMFILE),
        ("12", Errno::ENOENT),
        ("12", Errno::EPERM),
        ("12", Errno::EBUSY),
        ("12", Errno::EMFILE),
    ] {
        let fake = Fake {
            refuse_open: Some((file, errno)),
            ..Fake::new()
        };
        said.push((format!("open {file} {errno:?}"), opening(fake)));
    }
    for (request, errno) in [
        (Request::GetApiVersion, Errno::ENOTTY),
        (Request::CheckExtension, Errno::EBADF),
        (Request::GroupGetStatus, Errno::ENODEV),
        (Request::GroupSetContainer, Errno::EPERM),
        (Request::GroupSetContainer, Errno::EBUSY),
        (Request::GroupSetContainer, Errno::EINVAL),
        (Request::GroupSetContainer, Errno::EBADF),
        (Request::SetIommu, Errno::EPERM),
        (Request::SetIommu, Errno::ENODEV),
        (Request::SetIommu, Errno::EBUSY),
        (Request::SetIommu, Errno::EINVAL),
        (Request::GroupGetDeviceFd, Errno::ENODEV),
        (Request::GroupGetDeviceFd, Errno::EACCES),
        (Request::GroupGetDeviceFd, Errno::EINVAL),
        (Request::GroupGetDeviceFd, Errno::EBUSY),
        (Request::GroupGetDeviceFd, Errno::EAGAIN),
        (Request::DeviceGetInfo, Errno::ENODEV),
        (Request::DeviceGetInfo, Errno::EIO),
        (Request::IommuGetInfo, Errno::EINVAL),
        (Request::DeviceGetRegionInfo, Errno::EINVAL),
        (Request::DeviceGetIrqInfo, Errno::EINVAL),
    ] {
        let fake = refusing(request, errno);
        said.push((format!("{request:?} {errno:?}"), opening(fake)));
    }
    said.push((
        "the kernel says not viable".to_owned(),
        opening(Fake {
            viable: 0,
            ..Fake::new()
        }),
    ));
    said.push((
        "another version".to_owned(),
        opening(Fake {
            api: 9,
            ..Fake::new()
        }),
    ));
    said.push((
        "no TYPE1v2".to_owned(),
        opening(Fake {
            no_type1: true,
            ..Fake::new()
        }),
    ));
    for (errno, case) in [
        (Errno::EIO, "configuration space"),
        (Errno::ENODEV, "configuration space"),
        (Errno::EINVAL, "configuration space"),
        (Errno::EPERM, "configuration space"),
    ] {
        let fake = Fake {
            transfer: Some(Err(errno)),
            ..Fake::new()
        };
        said.push((format!("{case} {errno:?}"), opening(fake)));
    }
    let short = Fake {
        transfer: Some(Ok(0)),
        ..Fake::new()
    };
    said.push(("configuration space, short".to_owned(), opening(short)));
}

fn answers(said: &mut Vec<Said>) {
    let cases: [(&str, Tamper); 7] = [
        ("no PCI device", |request, _, message| {
            if request == Request::DeviceGetInfo {
                message.put(offset_of!(vfio_device_info, flags), 4_u32);
            }
        }),
        ("an answer without end", |request, _, message| {
            if request == Request::IommuGetInfo {
                message.put(0, u32::MAX);
            }
        }),
        ("no address can be mapped", |request, _, message| {
            if request == Request::IommuGetInfo && message.bytes().len() > 32 {
                message.put(32, 0_u32);
            }
        }),
        ("a capability nowhere", |request, _, message| {
            if request == Request::IommuGetInfo && message.bytes().len() > 32 {
                message.put(offset_of!(vfio_iommu_type1_info, cap_offset), 0x10_0000_u32);
            }
        }),
        ("a region beyond any file", |request, _, message| {
            if request == Request::DeviceGetRegionInfo {
                message.put(offset_of!(vfio_region_info, offset), u64::MAX);
            }
        }),
        ("too many vectors", |request, _, message| {
            if request == Request::DeviceGetIrqInfo {
                message.put(offset_of!(vfio_irq_info, count), 2049_u32);
            }
        }),
        ("a configuration space of 4 bytes", |request, _, message| {
            if request == Request::DeviceGetRegionInfo {
                message.put(offset_of!(vfio_region_info, size), 4_u64);
            }
        }),
    ];
    for (case, tamper) in cases {
        said.push((case.to_owned(), opening(tampering(tamper))));
    }
}

fn in_use(said: &mut Vec<Said>) {
    for errno in [Errno::EINVAL, Errno::ENOTTY, Errno::EAGAIN, Errno::ENODEV] {
        let (_, function) = open(refusing(Request::DeviceReset, errno)).unwrap();
        let error = function.reset().unwrap_err().to_string();
        said.push((format!("reset {errno:?}"), error));
    }
    for errno in [Errno::ENOSPC, Errno::EINVAL, Errno::EBADF] {
        let (_, function) = open(refusing(Request::DeviceSetIrqs, errno)).unwrap();
        let error = function
            .enable_interrupts(usize::MAX)
            .unwrap_err()
            .to_string();
        said.push((format!("interrupts {errno:?}"), error));
    }
    let (_, function) = open(Fake {
        sparse: Some(vec![(0, 0x8000)]),
        ..Fake::new()
    })
    .unwrap();
    let error = function.bar(0).unwrap_err().to_string();
    said.push(("a mappable area outside".to_owned(), error));
    let (_, function) = open(Fake {
        unmappable: true,
        ..Fake::new()
    })
    .unwrap();
    let error = function.bar(0).unwrap_err().to_string();
    said.push(("a BAR that cannot be mapped".to_owned(), error));
    said.push((
        "no such BAR".to_owned(),
        function.bar(3).unwrap_err().to_string(),
    ));
}

fn dma(said: &mut Vec<Said>) {
    let memory = SharedMemory::anonymous(0x2000).unwrap();
    let address = format!("{:#x}", memory.address());
    for (errno, limit) in [
        (Errno::ENOMEM, Some(8192)),
        (Errno::ENOMEM, None),
        (Errno::ENOSPC, None),
        (Errno::EINVAL, None),
        (Errno::EEXIST, None),
        (Errno::EFAULT, None),
        (Errno::EPERM, None),
    ] {
        let (_, function) = open(Fake {
            locked_limit: limit,
            ..refusing(Request::IommuMapDma, errno)
        })
        .unwrap();
        let error = function
            .dma_map(Iova(0x5000), &memory, 0, 0x2000)
            .unwrap_err()
            .to_string()
            .replace(&address, "ADDRESS");
        let limit = limit.map_or("", |_| ", limited");
        said.push((format!("map {errno:?}{limit}"), error));
    }
    let unmap = |fake: Fake| {
        let (_, function) = open(fake).unwrap();
        function.dma_map(Iova(0x5000), &memory, 0, 0x2000).unwrap();
        let error = function.dma_unmap(Iova(0x5000), 0x2000).unwrap_err();
        // The mapping could not be removed, so its memory is leaked when the function drops.
        error.to_string()
    };
    let refused = refusing(Request::IommuUnmapDma, Errno::EINVAL);
    said.push(("unmap EINVAL".to_owned(), unmap(refused)));
    let half = tampering(|request, _, message| {
        if request == Request::IommuUnmapDma {
            message.put(16, 0x1000_u64);
        }
    });
    said.push(("half unmapped".to_owned(), unmap(half)));
    let (_, function) = open(Fake::new()).unwrap();
    let error = function.dma_unmap(Iova(0x9000), 0x1000).unwrap_err();
    said.push(("nothing to unmap".to_owned(), error.to_string()));
}

#[test]
fn everything_that_can_fail_says_what_failed_and_what_to_do() {
    let mut said = Vec::new();
    in_sysfs(&mut said);
    at_opening(&mut said);
    answers(&mut said);
    in_use(&mut said);
    dma(&mut said);
    let text: String = said
        .iter()
        .map(|(case, text)| format!("{case}\n    {text}\n"))
        .collect();
    assert_eq!(
        text,
        include_str!("refusals.txt"),
        "\nthe texts are now:\n{text}"
    );
    for (case, text) in &said {
        let named = text.contains(ADDRESS) || case == "no address";
        assert!(named, "{case} does not name the device: {text}");
    }
}
