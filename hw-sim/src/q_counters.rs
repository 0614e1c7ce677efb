//! Counter sets, which count errors and requests of the queues that use them (PRM "QUERY_Q_COUNTER").
//!
//! Each counter has the meaning that Linux gives it in `hw_counters` of a port, which `rdma statistic` reads
//! (`drivers/infiniband/hw/mlx5/counters.c`). A counter has 32 bits and wraps. If the function lacks the capability of
//! a group of counters, a query returns 0 for them ([`Counters::answer`]).

use mlx_prm::{CmdHcaCap, QueryQCounterOut, Syndrome};

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident: $get:ident, $set:ident, $group:ident;)*) => {
        /// A counter of a counter set. Each variant names the event that it counts.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum QCounter {
            $($(#[$doc])* $name,)*
        }

        impl Counters {
            /// Increments a counter.
            pub fn count(&mut self, what: QCounter) {
                let all = &mut self.0;
                match what {
                    $(QCounter::$name => all.$set(all.$get().wrapping_add(1)),)*
                };
            }

            /// Returns the answer to a query. It contains the counters of the groups for which the function has the
            /// capability.
            pub fn answer(&self, caps: &CmdHcaCap) -> QueryQCounterOut {
                let mut out = QueryQCounterOut::new();
                $(if Group::$group.is_there(caps) {
                    out.$set(self.0.$get());
                })*
                out
            }
        }
    };
}

/// Group of counters that need the same capability, as in Linux (`mlx5_ib_fill_counters`).
#[derive(Clone, Copy)]
enum Group {
    Basic,
    OutOfSequence,
    Retransmission,
    Error,
    Acceleration,
}

impl Group {
    fn is_there(self, caps: &CmdHcaCap) -> bool {
        match self {
            Self::Basic => true,
            Self::OutOfSequence => caps.out_of_seq_cnt(),
            Self::Retransmission => caps.retransmission_q_counters(),
            Self::Error => caps.enhanced_error_q_counters(),
            Self::Acceleration => caps.roce_accl(),
        }
    }
}

/// The counters of one set.
#[derive(Clone, Debug)]
pub struct Counters(QueryQCounterOut);

impl Default for Counters {
    fn default() -> Self {
        Self(QueryQCounterOut::new())
    }
}

counters! {
    /// The first packet of an RDMA Write request arrived.
    RxWriteRequests: rx_write_requests, set_rx_write_requests, Basic;
    /// An RDMA Read request arrived.
    RxReadRequests: rx_read_requests, set_rx_read_requests, Basic;
    /// An atomic request arrived.
    RxAtomicRequests: rx_atomic_requests, set_rx_atomic_requests, Basic;
    /// A packet arrived for which there was no receive WQE.
    OutOfBuffer: out_of_buffer, set_out_of_buffer, Basic;
    /// A request packet arrived before another one that precedes it in PSN order.
    OutOfSequence: out_of_sequence, set_out_of_sequence, OutOfSequence;
    /// A request packet arrived that the responder had already executed.
    DuplicateRequest: duplicate_request, set_duplicate_request, Retransmission;
    /// An RNR NAK arrived, and there was a retry left.
    RnrNakRetryErr: rnr_nak_retry_err, set_rnr_nak_retry_err, Retransmission;
    /// A sequence NAK arrived, and there was a retry left.
    PacketSeqErr: packet_seq_err, set_packet_seq_err, Retransmission;
    /// A response showed that an earlier response was lost, and there was a retry left.
    ImpliedNakSeqErr: implied_nak_seq_err, set_implied_nak_seq_err, Retransmission;
    /// No acknowledgement arrived within the local ACK timeout, and there was a retry left.
    LocalAckTimeoutErr: local_ack_timeout_err, set_local_ack_timeout_err, Retransmission;
    /// Packets were retransmitted early (RoCE adaptive retransmission).
    RoceAdpRetrans: roce_adp_retrans, set_roce_adp_retrans, Acceleration;
    /// The early timeout of RoCE adaptive retransmission has expired.
    RoceAdpRetransTo: roce_adp_retrans_to, set_roce_adp_retrans_to, Acceleration;
    /// The peer sent RNR NAKs until no RNR retry was left.
    ReqRnrRetriesExceeded: req_rnr_retries_exceeded, set_req_rnr_retries_exceeded, Error;
    /// A request failed because no transport retry was left.
    ReqTransportRetriesExceeded: req_transport_retries_exceeded, set_req_transport_retries_exceeded, Error;
    /// A message was longer than the memory of its receive WQE.
    RespLocalLengthError: resp_local_length_error, set_resp_local_length_error, Error;
    /// A request was longer than the maximum message size, or a datagram longer than the MTU.
    ReqLocalLengthError: req_local_length_error, set_req_local_length_error, Error;
    /// A receive failed because of an error of the queue pair.
    RespLocalQpError: resp_local_qp_error, set_resp_local_qp_error, Error;
    /// A send WQE was malformed.
    LocalOperationError: local_operation_error, set_local_operation_error, Error;
    /// A key of a receive WQE did not permit the access to its memory.
    RespLocalProtection: resp_local_protection, set_resp_local_protection, Error;
    /// A key of a send WQE did not permit the access to its memory.
    ReqLocalProtection: req_local_protection, set_req_local_protection, Error;
    /// A receive completed with an error. Flushed receives count.
    RespCqeError: resp_cqe_error, set_resp_cqe_error, Error;
    /// A send completed with an error. Flushed sends count.
    ReqCqeError: req_cqe_error, set_req_cqe_error, Error;
    /// A bind of a memory window or another UMR failed.
    ReqMwBinding: req_mw_binding, set_req_mw_binding, Error;
    /// A response was malformed.
    ReqBadResponse: req_bad_response, set_req_bad_response, Error;
    /// The peer reported an invalid request.
    ReqRemoteInvalidRequest: req_remote_invalid_request, set_req_remote_invalid_request, Error;
    /// A request of the peer was invalid.
    RespRemoteInvalidRequest: resp_remote_invalid_request, set_resp_remote_invalid_request, Error;
    /// The peer reported that a key did not permit an access.
    ReqRemoteAccessErrors: req_remote_access_errors, set_req_remote_access_errors, Error;
    /// A key that the peer named did not permit the peer's access.
    RespRemoteAccessErrors: resp_remote_access_errors, set_resp_remote_access_errors, Error;
    /// The peer reported that it could not execute a request.
    ReqRemoteOperationErrors: req_remote_operation_errors, set_req_remote_operation_errors, Error;
    /// A completion queue overflowed.
    CqOverflow: cq_overflow, set_cq_overflow, Error;
    /// A receive was flushed.
    RespCqeFlushError: resp_cqe_flush_error, set_resp_cqe_flush_error, Error;
    /// A send was flushed.
    ReqCqeFlushError: req_cqe_flush_error, set_req_cqe_flush_error, Error;
}

impl QCounter {
    /// Returns the counter that a send's error CQE increments in addition to [`QCounter::ReqCqeError`].
    pub(crate) fn of_send(syndrome: Syndrome) -> Option<Self> {
        Some(match syndrome {
            Syndrome::LOCAL_LENGTH_ERR => Self::ReqLocalLengthError,
            Syndrome::LOCAL_QP_OP_ERR => Self::LocalOperationError,
            Syndrome::LOCAL_PROT_ERR => Self::ReqLocalProtection,
            Syndrome::WR_FLUSH_ERR => Self::ReqCqeFlushError,
            Syndrome::MW_BIND_ERR => Self::ReqMwBinding,
            Syndrome::BAD_RESP_ERR => Self::ReqBadResponse,
            Syndrome::REMOTE_INVAL_REQ_ERR => Self::ReqRemoteInvalidRequest,
            Syndrome::REMOTE_ACCESS_ERR => Self::ReqRemoteAccessErrors,
            Syndrome::REMOTE_OP_ERR => Self::ReqRemoteOperationErrors,
            Syndrome::TRANSPORT_RETRY_EXC_ERR => Self::ReqTransportRetriesExceeded,
            Syndrome::RNR_RETRY_EXC_ERR => Self::ReqRnrRetriesExceeded,
            _ => return None,
        })
    }

    /// Returns the counter that a receive's error CQE increments in addition to [`QCounter::RespCqeError`].
    pub(crate) fn of_receive(syndrome: Syndrome) -> Option<Self> {
        Some(match syndrome {
            Syndrome::LOCAL_LENGTH_ERR => Self::RespLocalLengthError,
            Syndrome::LOCAL_QP_OP_ERR => Self::RespLocalQpError,
            Syndrome::LOCAL_PROT_ERR => Self::RespLocalProtection,
            Syndrome::WR_FLUSH_ERR => Self::RespCqeFlushError,
            _ => return None,
        })
    }
}
