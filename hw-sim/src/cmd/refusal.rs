//! Refusals: a status, a reason as text, and numbers for the log.

use crate::buffer::BufferError;
use crate::objects::{Table, TableError};
use mlx_prm::CmdStatus;
use std::borrow::Cow;

/// A refusal of a command.
#[derive(Clone, Debug)]
pub struct Refusal {
    /// Status in the output.
    pub status: CmdStatus,
    /// Reason as text. The syndrome is computed from it.
    pub reason: &'static str,
    /// Numbers for the log.
    pub detail: Cow<'static, str>,
}

/// Makes a refusal from a status and a reason, with optional formatted numbers.
macro_rules! refuse {
    ($status:ident, $reason:literal) => {
        $crate::cmd::refusal::Refusal {
            status: ::mlx_prm::CmdStatus::$status,
            reason: $reason,
            detail: ::std::borrow::Cow::Borrowed(""),
        }
    };
    ($status:ident, $reason:literal, $($detail:tt)+) => {
        $crate::cmd::refusal::Refusal {
            status: ::mlx_prm::CmdStatus::$status,
            reason: $reason,
            detail: ::std::borrow::Cow::Owned(::std::format!($($detail)+)),
        }
    };
}
pub(crate) use refuse;

impl From<TableError> for Refusal {
    fn from(error: TableError) -> Self {
        match error {
            TableError::Unknown => refuse!(BAD_RESOURCE, "no such object"),
            TableError::Referenced(count) => {
                refuse!(BAD_RES_STATE, "object is referenced", "{count} times")
            }
            TableError::Full => refuse!(EXCEED_LIM, "no number left"),
        }
    }
}

impl From<BufferError> for Refusal {
    fn from(error: BufferError) -> Self {
        match error {
            BufferError::Short { needed, listed } => {
                refuse!(
                    BAD_INPUT_LEN,
                    "page list too short",
                    "{listed} of {needed} pages"
                )
            }
            BufferError::Unaligned(_) => refuse!(BAD_PARAM, "page address not aligned"),
        }
    }
}

/// Checks that an object named by a context exists.
///
/// # Errors
/// BAD_RESOURCE: the object does not exist.
pub(crate) fn must_exist<T>(table: &Table<T>, number: u32) -> Result<(), Refusal> {
    if table.contains(number) {
        return Ok(());
    }
    Err(Refusal {
        status: CmdStatus::BAD_RESOURCE,
        reason: "no such object",
        detail: format!("{} {number:#x}", table.kind()).into(),
    })
}
