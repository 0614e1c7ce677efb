//! Transport-specific attributes of an endpoint, through C (`DAT_NAMED_ATTR`).

// UNSAFETY: calls of the C ABI; `main.rs` expects the lint `unsafe_code`.

use std::ffi::{CStr, CString};
use std::mem::MaybeUninit;
use std::ptr::null_mut;

use udapl::capi::types::{CEpAttr, CEpParam, CNamedAttr, DatCount, DatHandle};
use udapl::capi::*;

use crate::support::{World, c, ok};

/// DAT_EP_FIELD_EP_ATTR_NUM_TRANSPORT_ATTR and _TRANSPORT_SPECIFIC_ATTR.
const TRANSPORT: u64 = 0x800_0000 | 0x1000_0000;
/// DAT_EP_FIELD_ALL.
const ALL: u64 = 0x7fff_f7ff;
/// DAT_CLASS_ERROR|DAT_INVALID_PARAMETER|ARG3.
const ARG3: u32 = 0x8006_0000 | 38;

/// Names and values as C strings.
struct Settings(Vec<(CString, CString)>);

impl Settings {
    fn new(settings: &[(&str, &str)]) -> Self {
        let text = |text: &str| CString::new(text).expect("a text");
        let texts = settings.iter();
        Self(
            texts
                .map(|(name, value)| (text(name), text(value)))
                .collect(),
        )
    }

    fn list(&self) -> Vec<CNamedAttr> {
        let entries = self.0.iter().map(|(name, value)| CNamedAttr {
            name: name.as_ptr(),
            value: value.as_ptr(),
        });
        entries.collect()
    }
}

fn query(ep: DatHandle) -> CEpParam {
    let mut param = MaybeUninit::<CEpParam>::zeroed();
    ok!(dat_ep_query(ep, ALL, param.as_mut_ptr()));
    // SAFETY: the call succeeded and has written `param`.
    unsafe { param.assume_init() }
}

/// Returns the names and values of an endpoint's transport-specific attributes.
fn attributes(ep: DatHandle) -> Vec<(String, String)> {
    let CEpAttr {
        ep_transport_specific: list,
        ep_transport_specific_count: count,
        ..
    } = query(ep).ep_attr;
    let count = usize::try_from(count).expect("a count");
    let text = |text| {
        // SAFETY: the text belongs to the library, and lives as long as the endpoint.
        let text = unsafe { CStr::from_ptr(text) };
        text.to_str().expect("UTF-8").to_owned()
    };
    let entry = |at| {
        // SAFETY: the list has `count` elements.
        let place = unsafe { list.add(at) };
        // SAFETY: the element is inside the list, and the library has written it.
        let entry = unsafe { place.read() };
        (text(entry.name), text(entry.value))
    };
    (0..count).map(entry).collect()
}

fn modify(ep: DatHandle, list: &mut [CNamedAttr], count: usize) -> u32 {
    let mut param = query(ep);
    param.ep_attr.ep_transport_specific = list.as_mut_ptr();
    param.ep_attr.ep_transport_specific_count = DatCount::try_from(count).expect("few");
    c!(dat_ep_modify(ep, TRANSPORT, &raw const param))
}

/// Page: dat_ep_modify (DAT_EP_ATTR: ep_transport_specific).
#[test]
fn settings_are_given_and_told_by_name_and_what_is_wrong_changes_nothing() {
    let world = World::new(false);
    assert_eq!(attributes(world.ep), []);
    let good = [
        ("dscp", "26"),
        ("flow_label", "7"),
        ("keep_alive_ms", "500"),
    ];
    let settings = Settings::new(&good);
    assert_eq!(modify(world.ep, &mut settings.list(), 3), 0);
    let expected = good.map(|(name, value)| (name.to_owned(), value.to_owned()));
    assert_eq!(attributes(world.ep), expected);
    for bad in [("dscp", "64"), ("colour", "blue"), ("dscp", ""), ("", "")] {
        let settings = Settings::new(&[("priority", "1"), bad]);
        assert_eq!(modify(world.ep, &mut settings.list(), 2), ARG3, "{bad:?}");
    }
    let nameless = CNamedAttr {
        name: null_mut(),
        value: null_mut(),
    };
    assert_eq!(modify(world.ep, &mut [nameless], 1), ARG3);
    assert_eq!(
        modify(world.ep, &mut settings.list(), 65),
        ARG3,
        "never read"
    );
    assert_eq!(attributes(world.ep), expected);
    assert_eq!(modify(world.ep, &mut [], 0), 0);
    assert_eq!(
        attributes(world.ep),
        [],
        "those that are not named are the adapter's"
    );
}

/// Page: dat_ep_create.
#[test]
fn an_endpoint_is_created_with_settings_or_not_at_all() {
    let world = World::new(false);
    let mut attr = query(world.ep).ep_attr;
    let create = |attr: &CEpAttr, ep: &mut DatHandle| {
        c!(dat_ep_create(
            world.ia, world.pz, world.evd, world.evd, world.evd, attr, ep
        ))
    };
    let good = Settings::new(&[("priority", "5")]);
    let mut list = good.list();
    attr.ep_transport_specific = list.as_mut_ptr();
    attr.ep_transport_specific_count = 1;
    let mut ep = null_mut();
    assert_eq!(create(&attr, &mut ep), 0);
    assert_eq!(attributes(ep), [("priority".to_owned(), "5".to_owned())]);
    assert_eq!(dat_ep_free(ep), 0);
    let bad = Settings::new(&[("priority", "8")]);
    let mut list = bad.list();
    attr.ep_transport_specific = list.as_mut_ptr();
    let mut none = null_mut();
    assert_ne!(create(&attr, &mut none), 0);
    assert!(none.is_null());
}
