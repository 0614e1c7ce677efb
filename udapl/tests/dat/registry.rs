//! The registry: adapters by name, from `dat.conf` and from entries added at run time.

use std::sync::Arc;

use udapl::error::{OpenError, ReturnType, Subtype};
use udapl::registry::{ProviderInfo, Registry};
use udapl::{CloseFlags, DatError, OpenOptions};

const CONF: &str = r#"
# name     API   thread safety  section    library         provider  IA parameters     platform
first      u1.2  nonthreadsafe  default    libdat.so.1     mlx5.0.1  "sim:registry-1"  ""
first      u1.2  nonthreadsafe  default    libdat.so       mlx5.0.1  "no such device"  ""
kernel     k1.2  nonthreadsafe  default    libdat.so       mlx5.0.1  ""                ""
aside      u1.2  nonthreadsafe  nondefault libdat.so       mlx5.0.1  ""                ""
this is no record
foreign    u2.0  threadsafe     default    libdaplofa.so.2 dapl.2.0  "mlx5_0 1"        ""
"#;

fn info(ia_name: &str, minor: u32) -> ProviderInfo {
    ProviderInfo {
        dapl_version: (1, minor),
        ..ProviderInfo::of_this_crate(ia_name)
    }
}

/// Returns the error of an open, as type and subtype.
fn refusal(registry: &mut Registry, wanted: &ProviderInfo) -> (ReturnType, Subtype) {
    match registry.open(wanted, &OpenOptions::default()) {
        Err(OpenError::Dat(error)) => (error.return_type(), error.subtype()),
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("{wanted:?} was opened"),
    }
}

/// Adds an entry that opens the simulated function `device`.
fn add(registry: &mut Registry, info: ProviderInfo, device: &'static str) -> udapl::DatResult<()> {
    registry.add_provider(
        info,
        Arc::new(move |options: &OpenOptions| udapl::ia_open(device, options)),
    )
}

/// The static registry is listed if the caller's list is long enough.
///
/// Clauses: REGL-1, REGL-2.
#[test]
fn the_static_registry_is_listed_as_far_as_there_is_room() {
    let registry = Registry::with_conf(CONF);
    let list = registry.list_providers(2).expect("room for both");
    assert_eq!(list[0], info("first", 2));
    assert_eq!(
        (
            &*list[1].ia_name,
            list[1].dapl_version,
            list[1].is_thread_safe
        ),
        ("foreign", (2, 0), true)
    );
    assert_eq!(list.len(), 2);
    for room in [0, 1] {
        let refused = registry.list_providers(room).expect_err("no room");
        assert_eq!(refused.error.return_type(), ReturnType::InvalidParameter);
        assert_eq!(refused.available, 2);
    }
    // The dynamic registry is not listed.
    let mut registry = Registry::with_conf("");
    add(&mut registry, info("added", 2), "sim:registry-0").expect("a new name");
    assert_eq!(registry.list_providers(0).expect("nothing to list"), []);
    assert_eq!(Registry::default().list_providers(8), Ok(vec![]), "no file");
}

/// A record of this library is opened by its name, and the entry is in use as long as the adapter is open.
///
/// Clauses: IAO-1, IAO-5, PINI-1, PINI-2, REGR-2.
#[test]
fn an_entry_of_ours_is_opened_by_its_name_and_in_use_meanwhile() {
    let mut registry = Registry::with_conf(CONF);
    let wanted = info("first", 2);
    let opened = registry.open(&wanted, &OpenOptions::default());
    let opened = opened.expect("the first record of the name");
    assert_eq!(opened.ia.query().ia.adapter_name, "sim:registry-1");
    let error = registry.provider_fini(&wanted).expect_err("it is open");
    assert_eq!(error.return_type(), ReturnType::ProviderInUse);
    opened.close(CloseFlags::Graceful).expect("unused");
    registry.provider_fini(&wanted).expect("it is closed");
    let error = registry.provider_fini(&wanted).expect_err("it is gone");
    assert_eq!(error.return_type(), ReturnType::InvalidParameter);
    // The record is still there, so the next open registers it again.
    let opened = registry.open(&wanted, &OpenOptions::default());
    let opened = opened.expect("as before");
    opened.close(CloseFlags::Abrupt).expect("closed");
}

/// An open finds the entry with its name, version and thread safety, or fails with the mismatch as subtype.
///
/// Clauses: IAO-5, IAO-6.
#[test]
fn an_open_names_what_is_there_or_hears_what_does_not_fit() {
    let mut registry = Registry::with_conf(CONF);
    let other_version = ProviderInfo {
        dapl_version: (2, 0),
        ..info("first", 0)
    };
    let thread_safe = ProviderInfo {
        is_thread_safe: true,
        ..info("first", 2)
    };
    for (wanted, subtype) in [
        (info("nobody", 2), Subtype::NameNotRegistered),
        // Records of other libraries, of the kernel, and outside the default section.
        (info("foreign", 2), Subtype::NameNotRegistered),
        (info("kernel", 2), Subtype::NameNotRegistered),
        (info("aside", 2), Subtype::NameNotRegistered),
        (other_version, Subtype::MajorNotFound),
        (thread_safe, Subtype::ThreadSafetyNotFound),
        (info("first", 3), Subtype::MinorNotFound),
    ] {
        assert_eq!(
            refusal(&mut registry, &wanted),
            (ReturnType::ProviderNotFound, subtype),
            "{wanted:?}"
        );
    }
    for name in [String::new(), "x".repeat(256)] {
        assert_eq!(
            refusal(&mut registry, &info(&name, 2)),
            (ReturnType::InvalidParameter, Subtype::Arg1)
        );
    }
}

/// Of several minor versions, an open selects the smallest version that is not below the requested version.
///
/// Clauses: REGA-1, IAO-5.
#[test]
fn of_the_minor_versions_the_smallest_that_serves_is_taken() {
    let mut registry = Registry::with_conf("");
    for (minor, device) in [
        (4, "sim:registry-4"),
        (2, "sim:registry-2"),
        (3, "sim:registry-3"),
    ] {
        add(&mut registry, info("many", minor), device).expect("a new key");
    }
    for (wanted, expected) in [
        (0, "sim:registry-2"),
        (3, "sim:registry-3"),
        (4, "sim:registry-4"),
    ] {
        let opened = registry.open(&info("many", wanted), &OpenOptions::default());
        let opened = opened.expect("one serves");
        assert_eq!(opened.ia.query().ia.adapter_name, expected);
        opened.close(CloseFlags::Graceful).expect("unused");
    }
}

/// Clauses: REGA-2, REGA-3, REGR-1, REGR-3.
#[test]
fn an_entry_is_added_once_and_removed_once() {
    let mut registry = Registry::with_conf("");
    let key = info("sim:registry-5", 2);
    add(&mut registry, key.clone(), "sim:registry-5").expect("a new key");
    let again = add(&mut registry, key.clone(), "sim:registry-5");
    let again: DatError = again.expect_err("there already");
    assert_eq!(again.return_type(), ReturnType::ProviderAlreadyRegistered);
    for name in [String::new(), "x".repeat(256)] {
        let error = add(&mut registry, info(&name, 2), "sim:registry-5").expect_err("no name");
        assert_eq!(error.return_type(), ReturnType::InvalidParameter);
    }
    registry.remove_provider(&key).expect("there");
    assert_eq!(
        refusal(&mut registry, &key),
        (ReturnType::ProviderNotFound, Subtype::NameNotRegistered)
    );
    let error = registry.remove_provider(&key).expect_err("gone");
    assert_eq!(error.return_type(), ReturnType::InvalidParameter);
    // Without instance data, the entry's name is also the name of the device.
    registry.provider_init(key.clone(), " ").expect("a new key");
    let opened = registry.open(&key, &OpenOptions::default());
    opened
        .expect("sim: names are devices")
        .close(CloseFlags::Graceful)
        .expect("unused");
}
