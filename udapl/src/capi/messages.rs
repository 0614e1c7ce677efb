//! What `dat_strerror` says, as texts C can read for as long as the program runs.

use core::ffi::CStr;
use std::collections::BTreeMap;
use std::ffi::CString;
use std::sync::LazyLock;

use dat_core::{ReturnType, Subtype, strerror};

static TEXTS: LazyLock<BTreeMap<&'static str, CString>> = LazyLock::new(|| {
    let types = ReturnType::ALL.iter().map(|kind| kind.name());
    let subtypes = Subtype::ALL.iter().map(|subtype| subtype.name());
    let names = types.chain(subtypes).chain(["DAT_SUCCESS", ""]);
    names
        .filter_map(|name| Some((name, CString::new(name).ok()?)))
        .collect()
});

/// The names of type and subtype of a return value.
pub(super) fn messages(value: u32) -> Option<(&'static CStr, &'static CStr)> {
    let (major, minor) = strerror(value)?;
    Some((TEXTS.get(major)?, TEXTS.get(minor)?))
}
