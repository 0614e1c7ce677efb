//! Completions, and the meanings of the device's error codes.
//!
//! An error CQE carries a *syndrome* (PRM "Completion With Error Syndromes"; the values are the verbs statuses in
//! another order) and a *vendor syndrome* that refines it. A program needs a [`Status`]; a person needs a hint where to
//! search for the cause. This file has one table for the statuses and one for the hints. Both list every byte value, so
//! that the meaning of an unknown code is chosen on purpose.

use rdma_types::Detail;

/// The syndromes that have names (PRM "Completion With Error Syndromes").
pub mod syndrome {
    /// The message does not fit: the receive buffer is too short, or a Send exceeds the message limit.
    pub const LOCAL_LENGTH: u8 = 0x01;
    /// The queue pair or the WQE is malformed.
    pub const LOCAL_QP_OPERATION: u8 = 0x02;
    /// A local key, its range or its rights did not allow the access.
    pub const LOCAL_PROTECTION: u8 = 0x04;
    /// The request was returned unexecuted because the queue pair is in the error state.
    pub const FLUSHED: u8 = 0x05;
    /// A memory window bind failed.
    pub const WINDOW_BIND: u8 = 0x06;
    /// The response packet does not fit the request.
    pub const BAD_RESPONSE: u8 = 0x10;
    /// The responder could not access its own memory.
    pub const LOCAL_ACCESS: u8 = 0x11;
    /// The peer reported the request as invalid.
    pub const REMOTE_INVALID_REQUEST: u8 = 0x12;
    /// The peer's key, its range or its rights did not allow the access.
    pub const REMOTE_ACCESS: u8 = 0x13;
    /// The peer could not finish the operation.
    pub const REMOTE_OPERATION: u8 = 0x14;
    /// No acknowledgement came within the allowed retries.
    pub const TRANSPORT_RETRY_EXCEEDED: u8 = 0x15;
    /// The peer had no receive buffer within the allowed retries.
    pub const RNR_RETRY_EXCEEDED: u8 = 0x16;
    /// The peer aborted the operation.
    pub const REMOTE_ABORTED: u8 = 0x22;
}

/// Result of a request or a receive, in the names of the PRM.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Status {
    /// The request or receive was executed.
    Success,
    /// The message is longer than the receive that it consumed, or than the message limit.
    LocalLength,
    /// The local queue pair is inconsistent.
    LocalQpOperation,
    /// A local key refused the access.
    LocalProtection,
    /// The request or receive was not executed, or was interrupted, because the queue pair was in error.
    Flushed,
    /// A memory window was not bound.
    WindowBind,
    /// The peer's response was invalid.
    BadResponse,
    /// A request of the peer addressed memory that a local key does not allow.
    LocalAccess,
    /// The peer refused the request as invalid.
    RemoteInvalidRequest,
    /// A key of the peer refused the access.
    RemoteAccess,
    /// The peer failed while it executed the request.
    RemoteOperation,
    /// The peer did not acknowledge within the allowed retries.
    TransportRetryExceeded,
    /// The peer had no receive posted within the allowed retries.
    RnrRetryExceeded,
    /// The peer aborted the operation.
    RemoteAborted,
    /// An error with a syndrome that the PRM has no name for.
    Unknown,
}

impl Status {
    /// Returns the status of an error CQE with this syndrome. It is never [`Status::Success`], because the entry is an
    /// error entry regardless of its syndrome.
    #[must_use]
    pub const fn of_syndrome(code: u8) -> Self {
        match code {
            syndrome::LOCAL_LENGTH => Self::LocalLength,
            syndrome::LOCAL_QP_OPERATION => Self::LocalQpOperation,
            syndrome::LOCAL_PROTECTION => Self::LocalProtection,
            syndrome::LOCAL_ACCESS => Self::LocalAccess,
            syndrome::FLUSHED => Self::Flushed,
            syndrome::WINDOW_BIND => Self::WindowBind,
            syndrome::BAD_RESPONSE => Self::BadResponse,
            syndrome::REMOTE_INVALID_REQUEST => Self::RemoteInvalidRequest,
            syndrome::REMOTE_OPERATION => Self::RemoteOperation,
            syndrome::REMOTE_ABORTED => Self::RemoteAborted,
            syndrome::REMOTE_ACCESS => Self::RemoteAccess,
            syndrome::TRANSPORT_RETRY_EXCEEDED => Self::TransportRetryExceeded,
            syndrome::RNR_RETRY_EXCEEDED => Self::RnrRetryExceeded,
            0x00 | 0x03 | 0x07..=0x0f | 0x17..=0x21 | 0x23..=0xff => Self::Unknown,
        }
    }
}

/// The completion of a request or receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// Cookie that the caller gave at the post, unchanged.
    pub cookie: u64,
    /// Result of the request or receive.
    pub status: Status,
    /// Number of bytes transferred; meaningless unless `status` is success.
    pub transferred: u64,
    /// True for requests of the send queue; false for receives.
    pub request: bool,
    /// True for a bind of a memory window.
    pub bind: bool,
    /// True for a request that the queue pair posted for itself ([`Qp::post_own`](crate::qp::Qp::post_own)).
    pub own: bool,
    /// Value of [`RequestFlags::unsignalled`](rdma_types::RequestFlags::unsignalled) at the post.
    pub unsignalled: bool,
    /// True for a receive if the peer's Send carried the solicited bit.
    pub solicited: bool,
    /// The device's error codes, or the data that came with a message.
    pub detail: Detail,
}

impl Completion {
    /// Returns the completion of a request or receive that was interrupted and that the device will not report.
    #[must_use]
    pub(crate) const fn flushed(cookie: u64, request: bool, unsignalled: bool) -> Self {
        Self {
            cookie,
            status: Status::Flushed,
            transferred: 0,
            request,
            bind: false,
            own: false,
            unsignalled,
            solicited: false,
            detail: Detail::None,
        }
    }
}

/// Explains an error CQE to a person, and names the first thing to check.
///
/// No public list of vendor syndromes exists. The vendor syndromes that public reports explain have their own rows.
#[must_use]
pub const fn explain(code: u8, vendor: u8) -> &'static str {
    match (code, vendor) {
        (syndrome::LOCAL_LENGTH, _) => {
            "the message was longer than the receive buffer, or longer than a message may be: \
             compare the posted receive with what the peer sends"
        }
        (syndrome::LOCAL_QP_OPERATION, _) => {
            "the device found the work queue entry or the queue pair inconsistent: \
             a defect of the provider, please report it with these numbers"
        }
        (syndrome::LOCAL_PROTECTION, _) => {
            "a local buffer is outside its registration, or the registration lacks the right: \
             check the local key's range and rights, and that it was not freed while in use"
        }
        (syndrome::FLUSHED, _) => {
            "given back unexecuted because the connection had ended or an earlier request failed: \
             look for the first failure"
        }
        (syndrome::WINDOW_BIND, _) => {
            "the memory window could not be bound: \
             check the rights of the local key, and that its range contains the window"
        }
        (syndrome::BAD_RESPONSE, _) => {
            "the peer answered with a packet that does not belong to the request: \
             suspect the peer's device, or something rewriting packets on the way"
        }
        (syndrome::LOCAL_ACCESS, _) => {
            "an incoming request reached memory this side does not allow: \
             check the privileges of the registered memory here"
        }
        (syndrome::REMOTE_INVALID_REQUEST, 0x8a) => {
            "the peer refused the request as invalid; with this vendor code that was seen when \
             requests exceed what the peer's queue pair was set up for: \
             check its limit of outstanding RDMA Reads"
        }
        (syndrome::REMOTE_INVALID_REQUEST, _) => {
            "the peer refused the request as invalid: compare the message with the receive buffer \
             posted there, and check that RDMA is allowed there and how many RDMA Reads at a time"
        }
        (syndrome::REMOTE_ACCESS, _) => {
            "the peer's memory refused the access: \
             check the remote key, the address range and the remote rights at the peer"
        }
        (syndrome::REMOTE_OPERATION, _) => {
            "the peer failed while it carried the request out: \
             look at the peer's own completion, or its log"
        }
        (syndrome::TRANSPORT_RETRY_EXCEEDED, _) => {
            "the peer did not acknowledge within the retries allowed: check that it is alive \
             and connected, the cable, the path through the switch, MTU and loss"
        }
        (syndrome::RNR_RETRY_EXCEEDED, _) => {
            "the peer had no receive buffer posted within the retries allowed: \
             post more receives there, or slow down here"
        }
        (syndrome::REMOTE_ABORTED, 0x93) => {
            "the peer's memory was paged out and could not be brought back: \
             check that the registration there is pinned"
        }
        (syndrome::REMOTE_ABORTED, _) => "the peer aborted the operation: look at the peer's log",
        (0x00 | 0x03 | 0x07..=0x0f | 0x17..=0x21 | 0x23..=0xff, _) => {
            "the device reported a code the PRM has no name for: \
             note both numbers and the firmware version"
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_pair_of_codes_has_a_sentence_and_no_two_names_share_one() {
        let mut sentences = std::collections::BTreeSet::new();
        for code in [
            0x00, 0x01, 0x02, 0x04, 0x05, 0x06, 0x10, 0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x22,
        ] {
            assert!(
                sentences.insert(explain(code, 0)),
                "syndrome {code:#04x} borrows another one's sentence"
            );
        }
        assert_ne!(explain(0x12, 0x8a), explain(0x12, 0));
        assert_ne!(explain(0x22, 0x93), explain(0x22, 0));
        for code in 0..=u8::MAX {
            assert!(explain(code, 0xff).len() > 20, "syndrome {code:#04x}");
        }
    }
}
