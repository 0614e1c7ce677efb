//! Endpoint attributes (`DAT_EP_ATTR`): legal values, and the limits of an IA.

use crate::attributes::IaAttr;
use crate::error::{DatError, DatResult, Subtype};
use crate::object::evd::streams::DtoMode;
use crate::types::{CompletionFlags, Qos};

/// Endpoint attributes that the consumer chooses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct EpAttr {
    /// Maximum length of a Send, in bytes.
    pub max_message_size: u64,
    /// Maximum length of an RDMA Read or Write, in bytes.
    pub max_rdma_size: u64,
    /// Quality of service.
    pub qos: Qos,
    /// Flag UNSIGNALLED, SOLICITED_WAIT or EVD_THRESHOLD; no flag means EVD_THRESHOLD.
    pub recv_completion_flags: CompletionFlags,
    /// Flag UNSIGNALLED or EVD_THRESHOLD; no flag means EVD_THRESHOLD.
    pub request_completion_flags: CompletionFlags,
    /// Maximum number of outstanding receives. Ignored if the endpoint uses an SRQ.
    pub max_recv_dtos: u32,
    /// Maximum number of outstanding requests.
    pub max_request_dtos: u32,
    /// Maximum number of segments per receive. Ignored if the endpoint uses an SRQ.
    pub max_recv_iov: u32,
    /// Maximum number of segments per Send, and the default limit for RDMA Reads and RDMA Writes.
    pub max_request_iov: u32,
    /// Maximum number of the peer's RDMA Reads that may be outstanding here.
    pub max_rdma_read_in: u32,
    /// Maximum number of our RDMA Reads that may be outstanding at the peer.
    pub max_rdma_read_out: u32,
    /// SRQ soft high watermark; `None` is DAT_HW_DEFAULT, the only supported value.
    pub srq_soft_hw: Option<u32>,
    /// Maximum number of segments per RDMA Read; 0 means the device's limit, but at most `max_request_iov`.
    pub max_rdma_read_iov: u32,
    /// Maximum number of segments per RDMA Write; 0 means `max_request_iov`.
    pub max_rdma_write_iov: u32,
}

impl EpAttr {
    /// Attributes of the value in an empty slot, which is no endpoint.
    pub(crate) const NONE: Self = Self {
        max_message_size: 0,
        max_rdma_size: 0,
        qos: Qos::BEST_EFFORT,
        recv_completion_flags: CompletionFlags::empty(),
        request_completion_flags: CompletionFlags::empty(),
        max_recv_dtos: 0,
        max_request_dtos: 0,
        max_recv_iov: 0,
        max_request_iov: 0,
        max_rdma_read_in: 0,
        max_rdma_read_out: 0,
        srq_soft_hw: None,
        max_rdma_read_iov: 0,
        max_rdma_write_iov: 0,
    };

    /// Returns the default attributes: 16 requests and 16 receives with 4 segments each, the IA's maximum message
    /// sizes, and no RDMA Reads.
    #[must_use]
    pub fn defaults(ia: &IaAttr) -> Self {
        Self {
            max_message_size: ia.max_message_size,
            max_rdma_size: ia.max_rdma_size,
            qos: Qos::BEST_EFFORT,
            recv_completion_flags: CompletionFlags::EVD_THRESHOLD,
            request_completion_flags: CompletionFlags::EVD_THRESHOLD,
            max_recv_dtos: ia.max_dto_per_ep.min(16),
            max_request_dtos: ia.max_dto_per_ep.min(16),
            max_recv_iov: ia.max_iov_segments_per_dto.min(4),
            max_request_iov: ia.max_iov_segments_per_dto.min(4),
            max_rdma_read_in: 0,
            max_rdma_read_out: 0,
            srq_soft_hw: None,
            max_rdma_read_iov: 0,
            max_rdma_write_iov: 0,
        }
    }

    /// Returns the maximum number of segments of an RDMA Read.
    pub(crate) fn read_iov(&self, ia: &IaAttr) -> u32 {
        match self.max_rdma_read_iov {
            0 => self.max_request_iov.min(ia.max_iov_segments_per_rdma_read),
            iov => iov,
        }
    }

    /// Returns the maximum number of segments of an RDMA Write.
    pub(crate) const fn write_iov(&self) -> u32 {
        match self.max_rdma_write_iov {
            0 => self.max_request_iov,
            iov => iov,
        }
    }

    pub(crate) const fn recv_mode(&self) -> DtoMode {
        DtoMode::of(self.recv_completion_flags)
    }

    pub(crate) const fn request_mode(&self) -> DtoMode {
        DtoMode::of(self.request_completion_flags)
    }

    /// Checks that all values are legal and within the IA's limits. `argument` is the subtype that names the attributes
    /// in the C prototype of the call.
    pub(crate) fn check(&self, ia: &IaAttr, uses_srq: bool, argument: Subtype) -> DatResult<()> {
        let error = DatError::parameter(argument, "attr");
        let bad = |detail| Err(error.because(detail));
        let over = |asked, limit, detail| Err(error.because(detail).over(asked, limit));
        if !is_one_of(
            self.recv_completion_flags,
            &[
                CompletionFlags::UNSIGNALLED,
                CompletionFlags::SOLICITED_WAIT,
                CompletionFlags::EVD_THRESHOLD,
            ],
        ) {
            return bad("recv_completion_flags: one of UNSIGNALLED, SOLICITED_WAIT, EVD_THRESHOLD");
        }
        if !is_one_of(
            self.request_completion_flags,
            &[CompletionFlags::UNSIGNALLED, CompletionFlags::EVD_THRESHOLD],
        ) {
            return bad("request_completion_flags: one of UNSIGNALLED, EVD_THRESHOLD");
        }
        let limits = [
            (
                self.max_message_size,
                ia.max_message_size,
                "max_message_size is beyond the IA's",
            ),
            (
                self.max_rdma_size,
                ia.max_rdma_size,
                "max_rdma_size is beyond the IA's",
            ),
            (
                self.max_request_dtos.into(),
                ia.max_dto_per_ep.into(),
                "max_request_dtos is beyond max_dto_per_ep",
            ),
            (
                self.max_request_iov.into(),
                ia.max_iov_segments_per_dto.into(),
                "max_request_iov is beyond max_iov_segments_per_dto",
            ),
            (
                self.max_rdma_read_in.into(),
                ia.max_rdma_read_per_ep_in.into(),
                "max_rdma_read_in is beyond max_rdma_read_per_ep_in",
            ),
            (
                self.max_rdma_read_out.into(),
                ia.max_rdma_read_per_ep_out.into(),
                "max_rdma_read_out is beyond max_rdma_read_per_ep_out",
            ),
            (
                self.max_rdma_read_iov.into(),
                ia.max_iov_segments_per_rdma_read.into(),
                "max_rdma_read_iov is beyond max_iov_segments_per_rdma_read",
            ),
            (
                self.max_rdma_write_iov.into(),
                ia.max_iov_segments_per_rdma_write.into(),
                "max_rdma_write_iov is beyond max_iov_segments_per_rdma_write",
            ),
        ];
        for (asked, limit, detail) in limits {
            if asked > limit {
                return over(asked, limit, detail);
            }
        }
        if !uses_srq {
            if self.max_recv_dtos > ia.max_dto_per_ep {
                let (asked, limit) = (self.max_recv_dtos.into(), ia.max_dto_per_ep.into());
                return over(asked, limit, "max_recv_dtos is beyond max_dto_per_ep");
            }
            if self.max_recv_iov > ia.max_iov_segments_per_dto {
                let (asked, limit) = (self.max_recv_iov.into(), ia.max_iov_segments_per_dto.into());
                return over(
                    asked,
                    limit,
                    "max_recv_iov is beyond max_iov_segments_per_dto",
                );
            }
        }
        self.qos.check()?;
        if self.srq_soft_hw.is_some() {
            return Err(DatError::unsupported().because("srq_soft_hw: only DAT_HW_DEFAULT"));
        }
        Ok(())
    }
}

fn is_one_of(flags: CompletionFlags, legal: &[CompletionFlags]) -> bool {
    flags.is_empty() || legal.contains(&flags)
}
