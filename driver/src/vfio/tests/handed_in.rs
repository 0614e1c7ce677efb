//! Functions opened from descriptors that a more privileged process has opened.

use super::*;

fn take_over(fake: Fake, device: Option<OwnedFd>) -> Result<Arc<Fake>, VfioError> {
    let (_dir, roots) = sysfs(&[(ADDRESS, Some("vfio-pci"))], true);
    let fake = Arc::new(fake);
    let fds = VfioFds {
        container: Some(null()),
        group: null(),
        device,
    };
    let system: Arc<dyn System> = fake.clone();
    let vfio = Vfio::from_fds(ADDRESS.to_owned(), &roots, system, fds)?;
    let function = Function::from_vfio(vfio).unwrap();
    assert_eq!(function.name(), ADDRESS);
    assert_eq!(function.config_read_u16(4).unwrap(), 2, "memory decoding");
    Ok(fake)
}

fn asked(fake: &Fake, name: &str) -> bool {
    let log = fake.log.lock().unwrap();
    log.iter().any(|line| line.starts_with(name))
}

#[test]
fn a_container_and_a_group_are_enough_and_nothing_is_opened() {
    let fake = Fake {
        refuse_open: Some(("", Errno::EACCES)),
        ..Fake::new()
    };
    let fake = take_over(fake, None).unwrap();
    assert!(asked(&fake, "VFIO_GROUP_SET_CONTAINER") && asked(&fake, "VFIO_SET_IOMMU"));
}

fn log(fake: &Fake) -> Vec<String> {
    fake.log.lock().unwrap().clone()
}

/// Returns the index of the first log line from `from` on that starts with `name`.
fn place(log: &[String], from: usize, name: &str) -> usize {
    let found = log[from..].iter().position(|line| line.starts_with(name));
    from + found.unwrap_or_else(|| panic!("no {name} behind {from} in {log:#?}"))
}

/// A group that is still in a container, with the mappings of a killed process, is removed from it before it joins its
/// new container.
#[test]
fn a_group_that_is_in_a_container_leaves_it_before_it_joins_its_own() {
    let fake = Fake {
        viable: 3,
        ..Fake::new()
    };
    let log = log(&take_over(fake, None).unwrap());
    let left = place(&log, 0, "VFIO_GROUP_UNSET_CONTAINER");
    let joined = place(&log, left, "VFIO_GROUP_SET_CONTAINER");
    place(&log, joined, "VFIO_SET_IOMMU");
}

#[test]
fn a_group_that_was_handed_in_is_out_of_its_container_when_the_function_is_closed() {
    let log = log(&take_over(Fake::new(), None).unwrap());
    let joined = place(&log, 0, "VFIO_GROUP_SET_CONTAINER");
    let quiet = place(&log, joined, "VFIO_DEVICE_SET_IRQS");
    assert_eq!(
        place(&log, quiet, "VFIO_GROUP_UNSET_CONTAINER"),
        log.len() - 1
    );
}

#[test]
fn a_group_whose_device_is_open_is_refused() {
    let fake = Fake {
        viable: 3,
        refuse: Mutex::new(Some((Request::GroupUnsetContainer, Errno::EBUSY))),
        ..Fake::new()
    };
    let error = take_over(fake, None).err().unwrap().to_string();
    assert_eq!(
        error,
        "0000:3b:00.2: VFIO_GROUP_UNSET_CONTAINER: EBUSY (16): Device or resource busy: a function of the group is open: another process has it, or this one has not let go of it"
    );
}

#[test]
fn a_group_alone_is_enough_where_everybody_may_open_a_container() {
    let (_dir, roots) = sysfs(&[(ADDRESS, Some("vfio-pci"))], true);
    let fds = || VfioFds {
        container: None,
        group: null(),
        device: None,
    };
    let open = |fake| Vfio::from_fds(ADDRESS.to_owned(), &roots, Arc::new(fake), fds());
    assert!(open(Fake::new()).is_ok());
    let refusing = Fake {
        refuse_open: Some(("vfio", Errno::EACCES)),
        ..Fake::new()
    };
    let error = open(refusing).err().unwrap().to_string();
    assert!(error.ends_with("the file should have mode 0666"), "{error}");
}

#[test]
fn a_device_that_is_open_needs_its_group_for_nothing() {
    let fake = take_over(Fake::new(), Some(null())).unwrap();
    assert!(!asked(&fake, "VFIO_GROUP") && !asked(&fake, "VFIO_SET_IOMMU"));
}

#[test]
fn descriptors_that_are_not_those_of_vfio_are_refused_by_name() {
    let fake = Fake {
        refuse: Mutex::new(Some((Request::GetApiVersion, Errno::ENOTTY))),
        ..Fake::new()
    };
    let error = take_over(fake, Some(null())).err().unwrap().to_string();
    assert_eq!(
        error,
        "0000:3b:00.2: VFIO_GET_API_VERSION: ENOTTY (25): Not a typewriter: the descriptor is none of /dev/vfio/vfio"
    );
    // The real kernel returns the same error for any other kind of descriptor.
    let fds = VfioFds {
        container: Some(null()),
        group: null(),
        device: Some(null()),
    };
    let real = Function::vfio_from_fds("3b:00.2", fds).unwrap_err();
    assert_eq!(real.to_string(), error);
}
