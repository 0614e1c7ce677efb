//! State shared by all parts of a queue pair.

use std::convert::Infallible;

use super::path::Path;
use super::ring::Rings;
use super::scatter_to_cqe::InEntry;
use super::state::{Service, State};
use crate::host::{ANY_PD, Host, KeyScope};
use crate::q_counters::QCounter;
use crate::wire::{BthRepr, Headers, Opcode, Packet, Psn, Qpn};
use mlx_prm::Qpc;

/// The queue pair must go to ERR, or to SQER if only its send queue failed. The error CQE, if the cause has one, is
/// already written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Broken;

/// Number, state, context, rings and path of a queue pair.
#[derive(Debug)]
pub(super) struct Core {
    pub(super) qpn: u32,
    pub(super) service: Service,
    pub(super) state: State,
    /// Context as created and modified. QUERY_QP adds the live values.
    pub(super) context: Qpc,
    pub(super) rings: Rings,
    pub(super) in_entry: InEntry,
    /// Path to the peer of a connected queue pair. Set from RTR on.
    pub(super) path: Option<Path>,
}

/// Fields of an outgoing packet that the requester or the responder decides.
#[derive(Clone, Copy, Debug)]
pub(super) struct Outgoing<'a> {
    pub(super) opcode: Opcode,
    pub(super) psn: Psn,
    pub(super) ack_request: bool,
    pub(super) solicited: bool,
    pub(super) headers: Headers,
    pub(super) payload: &'a [u8],
}

impl Core {
    /// Increments a counter of the queue pair's counter set.
    pub(super) fn count(&self, host: &mut dyn Host, what: QCounter) {
        host.count(self.context.counter_set_id(), what);
    }

    /// Returns the path MTU in bytes. Code 7 (raw Ethernet) means the maximum for datagrams, 4096.
    pub(super) fn mtu(&self) -> usize {
        match self.context.mtu() {
            code @ 1..=5 => 128 << code,
            _ => 4_096,
        }
    }

    /// Returns the maximum length of a message in bytes.
    pub(super) fn max_message(&self) -> u64 {
        1 << self.context.log_msg_max()
    }

    /// Returns the number of packets for a message of `bytes` bytes. An empty message needs one packet, too.
    pub(super) fn packets(&self, bytes: u32) -> u32 {
        // CAST: the path MTU is at most 4096.
        let mtu = u32::try_from(self.mtu()).unwrap_or(4_096);
        bytes.div_ceil(mtu).max(1)
    }

    /// Returns the scope for keys in the queue pair's own WQEs.
    pub(super) fn local_scope(&self) -> KeyScope {
        self.scope(false)
    }

    /// Returns the scope for keys that the peer names.
    pub(super) fn remote_scope(&self) -> KeyScope {
        self.scope(true)
    }

    fn scope(&self, remote: bool) -> KeyScope {
        let rlky = self.context.rlky() && !remote;
        KeyScope {
            pd: if self.service == Service::Umr {
                ANY_PD
            } else {
                self.context.pd()
            },
            qpn: self.qpn,
            remote,
            atomic: false,
            rlky,
        }
    }

    /// Returns a value that is constant for a pair of queue pairs. UDP source ports are derived from it.
    pub(super) const fn entropy(&self, remote_qpn: u32) -> u32 {
        self.qpn.wrapping_mul(0x9e37_79b1) ^ remote_qpn
    }

    /// Sends a packet to the connected peer.
    pub(super) fn transmit(&self, host: &mut dyn Host, outgoing: &Outgoing<'_>) {
        let (payload, bytes) = (outgoing.payload, outgoing.payload.len());
        let sent = self.transmit_filled(host, outgoing, bytes, |_, out| {
            out.copy_from_slice(payload);
            Ok::<(), Infallible>(())
        });
        let Ok(()) = sent;
    }

    /// Sends a packet to the connected peer. `fill` writes the payload of `bytes` bytes directly into the frame.
    pub(super) fn transmit_filled<E>(
        &self,
        host: &mut dyn Host,
        outgoing: &Outgoing<'_>,
        bytes: usize,
        fill: impl FnOnce(&mut dyn Host, &mut [u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let Some((link, network)) = self.path.as_ref().and_then(|path| path.headers(host)) else {
            host.driver_bug(format!("QP {:#x}: its source GID left the table", self.qpn));
            return Ok(());
        };
        let packet = Packet {
            link,
            network,
            bth: self.bth(outgoing, Qpn::new(self.context.remote_qpn())),
            headers: outgoing.headers,
            payload: outgoing.payload,
        };
        let mut outline = packet.outline(bytes);
        if !host.seals() {
            outline.align();
        }
        let mut frame = host.buffer(outline.memory_len());
        fill(host, outline.payload_mut(&mut frame))?;
        host.transmit_outlined(&outline, frame);
        Ok(())
    }

    pub(super) fn bth(&self, outgoing: &Outgoing<'_>, dest_qpn: Qpn) -> BthRepr {
        BthRepr {
            solicited: outgoing.solicited,
            ack_request: outgoing.ack_request,
            ..BthRepr::new(outgoing.opcode, dest_qpn, outgoing.psn)
        }
    }
}
