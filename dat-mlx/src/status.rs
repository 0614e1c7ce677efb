//! Conversion of the card's completion statuses to DAT's.
//!
//! DAT has twelve statuses. The mapping is that of the InfiniBand reference implementation. An error that has no DAT
//! status ends the connection like the others, so it is reported as a transport failure.

use dat_core::types::DtoStatus;
use hw_mlx::completion::Status;

/// Returns DAT's status for a status of the card.
#[inline]
#[must_use]
pub const fn dto_status(status: Status) -> DtoStatus {
    match status {
        Status::Success => DtoStatus::Success,
        Status::LocalLength => DtoStatus::ErrLocalLength,
        Status::LocalQpOperation => DtoStatus::ErrLocalEp,
        Status::LocalProtection | Status::LocalAccess => DtoStatus::ErrLocalProtection,
        Status::Flushed => DtoStatus::ErrFlushed,
        Status::WindowBind => DtoStatus::RmrOperationFailed,
        Status::BadResponse => DtoStatus::ErrBadResponse,
        Status::RemoteInvalidRequest | Status::RemoteOperation | Status::RemoteAborted => {
            DtoStatus::ErrRemoteResponder
        }
        Status::RemoteAccess => DtoStatus::ErrRemoteAccess,
        Status::TransportRetryExceeded | Status::Unknown => DtoStatus::ErrTransport,
        Status::RnrRetryExceeded => DtoStatus::ErrReceiverNotReady,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each of the 256 syndromes has the status of the reference map, which uses the names of the verbs documentation.
    #[test]
    fn every_syndrome_has_the_status_of_the_reference_map() {
        let named = [
            (0x01, DtoStatus::ErrLocalLength),
            (0x02, DtoStatus::ErrLocalEp),
            (0x04, DtoStatus::ErrLocalProtection),
            (0x05, DtoStatus::ErrFlushed),
            (0x06, DtoStatus::RmrOperationFailed),
            (0x10, DtoStatus::ErrBadResponse),
            (0x11, DtoStatus::ErrLocalProtection),
            (0x12, DtoStatus::ErrRemoteResponder),
            (0x13, DtoStatus::ErrRemoteAccess),
            (0x14, DtoStatus::ErrRemoteResponder),
            (0x15, DtoStatus::ErrTransport),
            (0x16, DtoStatus::ErrReceiverNotReady),
            (0x22, DtoStatus::ErrRemoteResponder),
        ];
        for code in 0..=u8::MAX {
            let expected = named
                .iter()
                .find(|row| row.0 == code)
                .map_or(DtoStatus::ErrTransport, |row| row.1);
            let told = dto_status(Status::of_syndrome(code));
            assert_eq!(told, expected, "syndrome {code:#04x}");
        }
        assert_eq!(dto_status(Status::Success), DtoStatus::Success);
    }
}
