//! Transport-specific attributes of an endpoint (`DAT_NAMED_ATTR`). Each is a name and a text, which [`EpTransport`]
//! parses.

// UNSAFETY: reads through pointers of a C program.
#![expect(unsafe_code, reason = "the caller's pointers")]

use core::ffi::CStr;

use dat_core::{DatResult, EpTransport, Subtype};

use super::argument::count;
use super::error::parameter;
use super::last_error::because_of;
use super::types::{CEpAttr, CNamedAttr};

/// Maximum number of attributes, which is above the number of settings. It detects a count that the program did not
/// initialize.
const MOST: usize = 64;

/// Returns the transport settings in the transport-specific attributes of an endpoint.
pub(super) fn settings(given: &CEpAttr, argument: Subtype) -> DatResult<EpTransport> {
    let refused = |why| parameter(argument).because(why);
    let entries = count(given.ep_transport_specific_count, argument)?;
    let entries = usize::try_from(entries).unwrap_or(usize::MAX);
    let mut settings = EpTransport::default();
    if entries == 0 {
        return Ok(settings);
    }
    if entries > MOST {
        return Err(refused("ep_transport_specific_count is beyond 64"));
    }
    if given.ep_transport_specific.is_null() {
        return Err(refused("ep_transport_specific is null"));
    }
    // SAFETY: contract GIVEN: the pointer is not null and leads to `entries` elements.
    let list = unsafe { core::slice::from_raw_parts(given.ep_transport_specific, entries) };
    for CNamedAttr { name, value } in list {
        if name.is_null() || value.is_null() {
            return Err(refused(
                "a transport-specific attribute without name or value",
            ));
        }
        // SAFETY: the pointer is not null, so by contract GIVEN it leads to a string.
        let name = unsafe { CStr::from_ptr(*name) }.to_str();
        // SAFETY: as for the name.
        let value = unsafe { CStr::from_ptr(*value) }.to_str();
        let (Ok(name), Ok(value)) = (name, value) else {
            return Err(refused("a transport-specific attribute is not UTF-8"));
        };
        if let Err(error) = settings.set(name, value) {
            tracing::warn!(%error, "transport-specific attributes of an endpoint");
            return Err(because_of(
                refused("a transport-specific attribute is unknown or out of its range"),
                &error,
            ));
        }
    }
    Ok(settings)
}
