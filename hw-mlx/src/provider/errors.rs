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
            MlxError::Nonsense { .. }
            | MlxError::TooManyGids { .. }
            | MlxError::Vlan { .. }
            | MlxError::ConfiguredMac { .. } => Self::Unsupported(text),
            MlxError::Unresolved { .. } => Self::Unreachable(text),
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
            | MlxError::Announced { .. }
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
            | CmdError::BadSignature { .. } => Self::Device(text),
        }
    }
}
