//! What the device's refusals are to `dat-core`: one table for each of our error types.

use dat_core::provider::ProviderError;

use crate::error::{CmdError, MlxError};
use mlx_prm::CmdStatus;

impl From<MlxError> for ProviderError {
    fn from(error: MlxError) -> Self {
        let text = error.to_string();
        match error {
            MlxError::Cmd(error) => error.into(),
            MlxError::Dma(_) | MlxError::TooManyPages { .. } | MlxError::Random(_) => {
                Self::Resources(text)
            }
            MlxError::TranslationTooLarge { asked, limit, .. } => Self::Limit {
                what: "bytes of a translation table",
                asked,
                limit,
            },
            MlxError::QueueTooLarge { .. }
            | MlxError::Untranslatable { .. }
            | MlxError::Address { .. }
            | MlxError::ConfiguredMac { .. } => Self::Unsupported(text),
            MlxError::TooManyGroups { most, wanted } => Self::Limit {
                what: "multicast groups",
                asked: wanted as u64,
                limit: most as u64,
            },
            MlxError::TooManyGids { asked, room } => Self::Limit {
                what: "addresses",
                asked: asked as u64,
                limit: room as u64,
            },
            MlxError::Unresolved { .. } => Self::Unreachable {
                why: "the peer's MAC is not known: `,neighbour=IP/MAC` behind the adapter's name tells it, or the adapter asks for it without `,network=off`",
                what: text,
            },
            MlxError::NoSuchGid { .. } => Self::Unreachable {
                why: "the address that this was to leave from was removed",
                what: text,
            },
            MlxError::Dead(_) => Self::Dead(text),
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
            | MlxError::NoInterrupts => Self::Device(text),
        }
    }
}

impl From<CmdError> for ProviderError {
    fn from(error: CmdError) -> Self {
        let text = error.to_string();
        match error {
            CmdError::Refused {
                status: CmdStatus::NO_RESOURCES | CmdStatus::EXCEED_LIM,
                ..
            }
            | CmdError::Memory { .. }
            | CmdError::NoSlot { .. } => Self::Resources(text),
            CmdError::Dead { .. } => Self::Dead(text),
            CmdError::Refused { .. }
            | CmdError::Delivery { .. }
            | CmdError::TimedOut { .. }
            | CmdError::ShortAnswer { .. }
            | CmdError::BadSignature { .. } => Self::Device(text),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::typed;
    use mlx_prm::NopIn;

    #[test]
    fn what_was_asked_for_and_what_the_device_answered_are_told_apart() {
        let asked = MlxError::QueueTooLarge {
            queue: "send queue",
            entries: 70_000,
            segments: Some(3),
        };
        let ProviderError::Unsupported(text) = asked.into() else {
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
        let ProviderError::Device(text) = answered.into() else {
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
        .into();
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

    #[test]
    fn an_answer_that_is_too_short_is_called_that() {
        let Err(error) = typed::<NopIn>(&[0; 7]) else {
            panic!("8 bytes at least");
        };
        assert_eq!(
            error.to_string(),
            "NOP (0x80d): 7 bytes of its answer were asked for, it has 16"
        );
        assert!(error.outcome_unknown() && !error.is_refusal() && error.status().is_none());
    }
}
