//! A request in progress: its packets, and the answers that match it.
//!
//! Everything here is computed from the WQE and a position in it. So a retransmitted packet equals the first one,
//! except that its data is read from memory again.

use super::core::{Core, Outgoing};
use super::scatter_to_cqe::is_in_entry;
use super::state::Service;
use super::wqe::{Action, SendWqe, Signal};
use crate::host::{Host, KeyError, UmrRequest};
use crate::wire::{AtomicEthRepr, Headers, Opcode, Operation, Packet, Psn, RethRepr};
use mlx_prm::Syndrome;

/// A send WQE in progress.
#[derive(Debug)]
pub(super) struct Request {
    pub(super) wqe: SendWqe,
    pub(super) first: Psn,
    /// Number of PSNs; 0 for a WQE that is executed inside the function.
    pub(super) packets: u32,
    /// Number of response packets of a read or atomic that have arrived.
    answered: u32,
    /// Response data that will be scattered to the CQE, if any.
    in_entry: Option<Box<[u8]>>,
}

impl Request {
    /// Returns a request for a WQE, with PSNs from `first` on.
    pub(super) fn new(core: &Core, wqe: SendWqe, first: Psn) -> Self {
        let packets = match wqe.action {
            Action::Nop | Action::Umr { .. } => 0,
            Action::CompareSwap { .. } | Action::FetchAdd { .. } => 1,
            Action::Send { .. }
            | Action::Write { .. }
            | Action::Read { .. }
            | Action::Datagram { .. } => core.packets(wqe.length),
        };
        Self {
            wqe,
            first,
            packets,
            answered: 0,
            in_entry: None,
        }
    }

    /// Returns whether the request is longer than the maximum message. A WQE that is executed inside the function is
    /// not a message: the queue pair for UMRs has a `log_msg_max` of 12 (Linux `__mlx5_ib_modify_qp`) and gets tables
    /// of a megabyte (`mlx5r_umr_update_mr_pas`).
    pub(super) fn is_too_long(&self, core: &Core) -> bool {
        !self.wqe.action.is_local() && u64::from(self.wqe.length) > core.max_message()
    }

    /// Returns the PSN that follows the last PSN of the request.
    pub(super) const fn end(&self) -> Psn {
        self.first.advance(self.packets)
    }

    /// Returns the first PSN whose response is missing, if the request is a read or atomic.
    pub(super) const fn missing_answer(&self) -> Option<Psn> {
        if self.wqe.action.is_read_or_atomic() && self.answered < self.packets {
            Some(self.first.advance(self.answered))
        } else {
            None
        }
    }

    /// Sends the packet at `psn`, and returns the PSN to continue from. A read or atomic has a single request packet,
    /// which covers the rest of the request from any position.
    pub(super) fn send(
        &self,
        core: &Core,
        host: &mut dyn Host,
        psn: Psn,
        ack_interval: u32,
    ) -> Result<Psn, Syndrome> {
        let position = psn.distance_from(self.first);
        let is_last = position + 1 == self.packets;
        let asks = self.wqe.action.is_read_or_atomic();
        let (operation, headers) = self.headers(core, position, is_last)?;
        let opcode = match core.service {
            Service::Uc => Opcode::uc(operation).ok_or(Syndrome::LOCAL_QP_OP_ERR)?,
            Service::Xrc => Opcode::xrc(operation),
            Service::Rc | Service::Ud | Service::Gsi | Service::Smi | Service::Umr => {
                Opcode::rc(operation)
            }
        };
        let bytes = if asks {
            0
        } else {
            self.segment_bytes(core, position)
        };
        let is_due = is_last || psn.get() % ack_interval == ack_interval - 1;
        let outgoing = Outgoing {
            opcode,
            psn,
            ack_request: is_due && !asks && core.service.is_reliable(),
            solicited: self.wqe.solicited && is_last && !asks,
            headers,
            payload: &[],
        };
        core.transmit_filled(host, &outgoing, bytes, |host, out| {
            self.wqe
                .gather(host, core.local_scope(), offset(core, position), out)
        })
        .map_err(|_| Syndrome::LOCAL_PROT_ERR)?;
        Ok(if asks { self.end() } else { psn.advance(1) })
    }

    fn headers(
        &self,
        core: &Core,
        position: u32,
        is_last: bool,
    ) -> Result<(Operation, Headers), Syndrome> {
        let mut headers = Headers {
            xrc_srq: self.wqe.xrc_srq,
            ..Headers::NONE
        };
        let is_first = position == 0;
        let operation = match self.wqe.action {
            Action::Send {
                immediate,
                invalidate,
            } => {
                headers.immediate = immediate.filter(|_| is_last);
                headers.invalidate = invalidate.filter(|_| is_last);
                send_operation(is_first, is_last, immediate.is_some(), invalidate.is_some())
            }
            Action::Write {
                va,
                rkey,
                immediate,
            } => {
                if is_first {
                    headers.reth = Some(RethRepr {
                        va,
                        rkey,
                        length: self.wqe.length,
                    });
                }
                headers.immediate = immediate.filter(|_| is_last);
                write_operation(is_first, is_last, immediate.is_some())
            }
            Action::Read { va, rkey } => {
                let done = offset(core, position);
                let left = u64::from(self.wqe.length).saturating_sub(done);
                // CAST: `left` is a part of a 32-bit length.
                let length = u32::try_from(left).unwrap_or(u32::MAX);
                headers.reth = Some(RethRepr {
                    va: va.wrapping_add(done),
                    rkey,
                    length,
                });
                Operation::ReadRequest
            }
            Action::CompareSwap {
                va,
                rkey,
                swap,
                compare,
            } => {
                headers.atomic = Some(AtomicEthRepr {
                    va,
                    rkey,
                    swap_add: swap,
                    compare,
                });
                Operation::CompareSwap
            }
            Action::FetchAdd { va, rkey, add } => {
                headers.atomic = Some(AtomicEthRepr {
                    va,
                    rkey,
                    swap_add: add,
                    compare: 0,
                });
                Operation::FetchAdd
            }
            Action::Nop | Action::Datagram { .. } | Action::Umr { .. } => {
                return Err(Syndrome::LOCAL_QP_OP_ERR);
            }
        };
        Ok((operation, headers))
    }

    /// Accepts the response packet for the PSN that [`Request::missing_answer`] returns.
    pub(super) fn take_answer(
        &mut self,
        core: &Core,
        host: &mut dyn Host,
        packet: &Packet<'_>,
    ) -> Result<(), Syndrome> {
        let operation = packet.bth.opcode.operation();
        let fits = match self.wqe.action {
            Action::Read { .. } => self.response_fits(core, operation, packet.payload),
            Action::CompareSwap { .. } | Action::FetchAdd { .. } => {
                operation == Operation::AtomicAcknowledge
            }
            Action::Nop
            | Action::Send { .. }
            | Action::Write { .. }
            | Action::Datagram { .. }
            | Action::Umr { .. } => false,
        };
        if !fits {
            return Err(Syndrome::BAD_RESP_ERR);
        }
        let original = packet
            .headers
            .atomic_ack
            .map(|ack| atomic_result(host, ack.original));
        let data = original
            .as_ref()
            .map_or(packet.payload, |original| original.as_slice());
        let whole = usize::try_from(self.wqe.length).is_ok_and(|length| length == data.len());
        if is_in_entry(data.len(), core.in_entry.answers) && whole {
            self.keep(core, host, data);
        } else {
            self.wqe
                .scatter(host, core.local_scope(), offset(core, self.answered), data)
                .map_err(|_| Syndrome::LOCAL_PROT_ERR)?;
        }
        self.answered += 1;
        Ok(())
    }

    /// Keeps response data for the CQE of this request. If the request has no CQE, the data is lost. This is inferred:
    /// Linux enables scatter to CQE only where every request has a CQE (`configure_requester_scat_cqe` in
    /// drivers/infiniband/hw/mlx5/qp.c).
    fn keep(&mut self, core: &Core, host: &mut dyn Host, data: &[u8]) {
        if self.wqe.signal == Signal::OnError {
            host.driver_bug(format!(
                "QP {:#x}, WQE {:#06x}: scatter to CQE of a request without a CQE",
                core.qpn, self.wqe.index
            ));
        } else {
            self.in_entry = Some(data.into());
        }
    }

    /// Returns whether a response packet matches its position in the read. After a retry the response may begin
    /// anywhere in the read, so First and Middle are equivalent, and so are Last and Only.
    fn response_fits(&self, core: &Core, operation: Operation, payload: &[u8]) -> bool {
        let operation_fits = if self.answered + 1 == self.packets {
            matches!(
                operation,
                Operation::ReadResponseLast | Operation::ReadResponseOnly
            )
        } else {
            matches!(
                operation,
                Operation::ReadResponseFirst | Operation::ReadResponseMiddle
            )
        };
        operation_fits && payload.len() == self.segment_bytes(core, self.answered)
    }

    /// Returns the number of payload bytes of the packet at `position`.
    fn segment_bytes(&self, core: &Core, position: u32) -> usize {
        let rest = u64::from(self.wqe.length).saturating_sub(offset(core, position));
        usize::try_from(rest).unwrap_or(usize::MAX).min(core.mtu())
    }

    /// Executes a WQE that sends no packet, such as a UMR.
    pub(super) fn execute_locally(&self, core: &Core, host: &mut dyn Host) -> Result<(), Syndrome> {
        let Action::Umr {
            key,
            control,
            context,
        } = &self.wqe.action
        else {
            return Ok(());
        };
        let scope = core.local_scope();
        let mut entries = vec![0; usize::try_from(self.wqe.length).unwrap_or(0)];
        self.wqe
            .gather(host, scope, 0, &mut entries)
            .map_err(|_| Syndrome::LOCAL_PROT_ERR)?;
        let request = UmrRequest {
            key: *key,
            scope,
            fast: core.context.fre(),
            control,
            context,
            entries: &entries,
        };
        host.umr(request).map_err(|error| match error {
            KeyError::Access { .. } | KeyError::Range { .. } | KeyError::Dma(_) => {
                Syndrome::LOCAL_PROT_ERR
            }
            KeyError::Missing { .. }
            | KeyError::Free { .. }
            | KeyError::Variant { .. }
            | KeyError::ProtectionDomain { .. }
            | KeyError::QueuePair { .. }
            | KeyError::FastRegistration { .. }
            | KeyError::Memory { .. }
            | KeyError::Reserved
            | KeyError::Unsupported => Syndrome::MW_BIND_ERR,
        })
    }

    /// Writes the CQE of a successful request, if the WQE requests one.
    pub(super) fn signal(&self, core: &Core, host: &mut dyn Host) {
        let wqe = &self.wqe;
        if wqe.signal != Signal::OnError {
            let bytes = if wqe.action.is_read_or_atomic() {
                wqe.length
            } else {
                0
            };
            let event = wqe.signal == Signal::AlwaysWithEvent;
            let data = self.in_entry.as_deref().unwrap_or_default();
            core.complete_send(host, wqe.index, wqe.opcode, bytes, data, event);
        }
    }
}

/// Returns the byte offset in the message at which the packet at `position` begins.
fn offset(core: &Core, position: u32) -> u64 {
    u64::from(position) * core.mtu() as u64
}

const fn send_operation(first: bool, last: bool, immediate: bool, invalidate: bool) -> Operation {
    match (first, last) {
        (true, false) => Operation::SendFirst,
        (false, false) => Operation::SendMiddle,
        (false, true) if immediate => Operation::SendLastImmediate,
        (false, true) if invalidate => Operation::SendLastInvalidate,
        (false, true) => Operation::SendLast,
        (true, true) if immediate => Operation::SendOnlyImmediate,
        (true, true) if invalidate => Operation::SendOnlyInvalidate,
        (true, true) => Operation::SendOnly,
    }
}

const fn write_operation(first: bool, last: bool, immediate: bool) -> Operation {
    match (first, last) {
        (true, false) => Operation::WriteFirst,
        (false, false) => Operation::WriteMiddle,
        (false, true) if immediate => Operation::WriteLastImmediate,
        (false, true) => Operation::WriteLast,
        (true, true) if immediate => Operation::WriteOnlyImmediate,
        (true, true) => Operation::WriteOnly,
    }
}

/// Returns the bytes of an atomic's original value as they are written to local memory.
fn atomic_result(host: &dyn Host, original: u64) -> [u8; 8] {
    if host.atomic_reply_big_endian() {
        return original.to_be_bytes();
    }
    #[expect(
        clippy::little_endian_bytes,
        reason = "the simulated host is little-endian, and the mode says host order"
    )]
    original.to_le_bytes()
}
