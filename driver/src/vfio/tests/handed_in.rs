//! Descriptors that somebody with more rights has opened.

use super::*;

fn take_over(fake: Fake, device: Option<OwnedFd>) -> Result<Arc<Fake>, VfioError> {
    let (_dir, roots) = sysfs(&[(ADDRESS, Some("vfio-pci"))], true);
    let fake = Arc::new(fake);
    let fds = VfioFds {
        container: null(),
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

#[test]
fn a_group_that_is_in_the_container_stays_there() {
    let fake = Fake {
        viable: 3,
        ..Fake::new()
    };
    let fake = take_over(fake, None).unwrap();
    assert!(!asked(&fake, "VFIO_GROUP_SET_CONTAINER") && !asked(&fake, "VFIO_SET_IOMMU"));
}

#[test]
fn a_device_that_is_open_needs_its_group_for_nothing() {
    let fake = take_over(Fake::new(), Some(null())).unwrap();
    assert!(!asked(&fake, "VFIO_GROUP") && !asked(&fake, "VFIO_SET_IOMMU"));
}

#[test]
fn descriptors_that_are_not_those_of_vfio_are_refused_by_name() {
    let fake = Fake {
        refuse: Some((Request::GetApiVersion, Errno::ENOTTY)),
        ..Fake::new()
    };
    let error = take_over(fake, Some(null())).err().unwrap().to_string();
    assert_eq!(
        error,
        "0000:3b:00.2: VFIO_GET_API_VERSION: ENOTTY (25): Not a typewriter: the kernel does not know this request; is the descriptor one of VFIO?"
    );
    // The real kernel says the same of a descriptor that is something else.
    let fds = VfioFds {
        container: null(),
        group: null(),
        device: Some(null()),
    };
    let real = Function::vfio_from_fds("3b:00.2", fds).unwrap_err();
    assert_eq!(real.to_string(), error);
}
