//! Conversion of the driver's errors to those of `dat-core`: one table for each error type of the driver.

use dat_core::provider::ProviderError;
use hw_mlx::{CmdError, MlxError, ParkError, ResumeError};
use mlx_prm::CmdStatus;

/// Conversion of a driver result to a provider result.
pub(super) trait ForDat<T> {
    /// Returns the result with its error as a `ProviderError`.
    fn for_dat(self) -> Result<T, ProviderError>;
}

impl<T, E: DriverError> ForDat<T> for Result<T, E> {
    fn for_dat(self) -> Result<T, ProviderError> {
        self.map_err(DriverError::into_dat)
    }
}

/// An error of the driver.
pub(super) trait DriverError {
    /// Returns the error as a `ProviderError`.
    fn into_dat(self) -> ProviderError;
}

impl DriverError for MlxError {
    fn into_dat(self) -> ProviderError {
        let text = self.to_string();
        match self {
            MlxError::Cmd(error) => error.into_dat(),
            MlxError::Dma(_) | MlxError::TooManyPages { .. } | MlxError::Random(_) => {
                ProviderError::Resources(text)
            }
            MlxError::TranslationTooLarge { asked, limit, .. } => ProviderError::Limit {
                what: "bytes of a translation table",
                asked,
                limit,
            },
            MlxError::QueueTooLarge { .. }
            | MlxError::Untranslatable { .. }
            | MlxError::Address { .. }
            | MlxError::ConfiguredMac { .. } => ProviderError::Unsupported(text),
            MlxError::TooManyGroups { most, wanted } => ProviderError::Limit {
                what: "multicast groups",
                asked: wanted as u64,
                limit: most as u64,
            },
            MlxError::TooManyGids { asked, room } => ProviderError::Limit {
                what: "addresses",
                asked: asked as u64,
                limit: room as u64,
            },
            MlxError::Unresolved { .. } => ProviderError::Unreachable {
                why: "the peer's MAC is not known: `,neighbour=IP/MAC` behind the adapter's name tells it, or the adapter asks for it without `,network=off`",
                what: text,
            },
            MlxError::NoSuchGid { .. } => ProviderError::Unreachable {
                why: "the address that this was to leave from was removed",
                what: text,
            },
            MlxError::Dead(_) => ProviderError::Dead(text),
            MlxError::Function(_)
            | MlxError::Bar(_)
            | MlxError::CommandInterface { .. }
            | MlxError::CommandQueue { .. }
            | MlxError::Initializing { .. }
            | MlxError::Issi { .. }
            | MlxError::NoIssi(_)
            | MlxError::NotKept(_)
            | MlxError::Silent { .. }
            | MlxError::Gone
            | MlxError::Missing(_)
            | MlxError::NoNetwork(_)
            | MlxError::Nonsense { .. }
            | MlxError::NoInterrupts => ProviderError::Device(text),
        }
    }
}

impl DriverError for CmdError {
    fn into_dat(self) -> ProviderError {
        let text = self.to_string();
        match self {
            CmdError::Refused {
                status: CmdStatus::NO_RESOURCES | CmdStatus::EXCEED_LIM,
                ..
            }
            | CmdError::Memory { .. }
            | CmdError::NoSlot { .. } => ProviderError::Resources(text),
            CmdError::Dead { .. } => ProviderError::Dead(text),
            CmdError::Refused { .. }
            | CmdError::Delivery { .. }
            | CmdError::TimedOut { .. }
            | CmdError::ShortAnswer { .. }
            | CmdError::BadSignature { .. } => ProviderError::Device(text),
        }
    }
}

impl DriverError for ParkError {
    fn into_dat(self) -> ProviderError {
        let text = self.to_string();
        match self {
            ParkError::Dead(_) => ProviderError::Dead(text),
            ParkError::Instances { .. }
            | ParkError::NoInstance
            | ParkError::OtherFunction { .. }
            | ParkError::Closed
            | ParkError::Requested
            | ParkError::Doubtful
            | ParkError::Limited
            | ParkError::Unfinished
            | ParkError::Commands { .. }
            | ParkError::PageRequests { .. }
            | ParkError::OrphanedRings { .. }
            | ParkError::Readers { .. }
            | ParkError::Objects { .. }
            | ParkError::TooManyInstances { .. }
            | ParkError::TimeLimit { .. }
            | ParkError::Broken { .. }
            | ParkError::MemoryInUse { .. }
            | ParkError::Arena(_)
            | ParkError::Function(_) => ProviderError::Device(text),
        }
    }
}

impl DriverError for ResumeError {
    fn into_dat(self) -> ProviderError {
        let text = self.to_string();
        match self {
            ResumeError::Device(error) => error.into_dat(),
            ResumeError::Function(_)
            | ResumeError::Snapshot { .. }
            | ResumeError::Claim { .. }
            | ResumeError::Changed { .. }
            | ResumeError::Missing { .. } => ProviderError::Device(text),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_asked_for_and_what_the_device_answered_are_told_apart() {
        let asked = MlxError::QueueTooLarge {
            queue: "send queue",
            entries: 70_000,
            segments: Some(3),
        };
        let ProviderError::Unsupported(text) = asked.into_dat() else {
            panic!("we asked for it");
        };
        assert_eq!(
            text,
            "a send queue of 70000 entries of up to 3 segments: its format ends before"
        );
        let answered = MlxError::Nonsense {
            what: "QUERY_PAGES num_pages",
            value: 0x7fff_ffff,
        };
        let ProviderError::Device(text) = answered.into_dat() else {
            panic!("the device says so");
        };
        assert_eq!(
            text,
            "the device answered QUERY_PAGES num_pages = 0x7fffffff"
        );
    }

    #[test]
    fn a_limit_is_told_in_numbers() {
        let error: ProviderError = MlxError::TranslationTooLarge {
            bytes: 1 << 40,
            asked: 1 << 31,
            limit: 1 << 24,
        }
        .into_dat();
        assert!(
            matches!(
                error,
                ProviderError::Limit {
                    asked: 0x8000_0000,
                    limit: 0x100_0000,
                    ..
                }
            ),
            "{error:?}"
        );
        assert_eq!(
            error.to_string(),
            "not supported by the device: bytes of a translation table: 2147483648 asked for, 16777216 at most"
        );
    }
}
