//! Texts of `dat_strerror`, as C strings that are never freed.

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

/// Returns the names of a code's type and subtype.
pub(super) fn messages(value: u32) -> Option<(&'static CStr, &'static CStr)> {
    let (major, minor) = strerror(value)?;
    Some((TEXTS.get(major)?, TEXTS.get(minor)?))
}
