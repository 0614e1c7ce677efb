//! Receive WQEs: taking the next one, and scattering a message into it.
//!
//! A queue pair has its own ring, takes WQEs from a shared receive queue, or has no receive WQEs (`rq_type`). Receives
//! have no doorbell register. The device reads the doorbell record each time it needs a WQE.

use super::completion::RQ_TYPE_SRQ;
use super::core::Core;
use super::ring::Rings;
use crate::host::{DmaFault, Host, KeyError, KeyScope, XrcSource};
use mlx_prm::DataSeg;
use zerocopy::FromBytes;

const SEGMENT_BYTES: usize = 16;

/// Reason for which a message could not be written to its receive buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ScatterError {
    /// The message is longer than the buffer.
    TooLong,
    /// A key of the buffer does not permit the write.
    Key(KeyError),
}

/// Reason for which a receive WQE could not be taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TakeError {
    /// The ring or the doorbell record could not be read.
    Fault(DmaFault),
    /// The doorbell record counts more WQEs than the ring holds.
    Record,
}

/// A receive WQE to which a message is being written.
#[derive(Clone, Debug)]
pub(crate) struct ReceiveWqe {
    /// 16-bit receive counter, or index of the entry in the shared receive queue.
    pub(crate) counter: u16,
    /// Scope for the checks of the keys in the scatter list.
    scope: KeyScope,
    scatter: Vec<DataSeg>,
    /// Number of bytes written so far.
    pub(crate) written: u64,
    /// XRC SRQ that the WQE came from, if any.
    pub(super) xrc: Option<XrcSource>,
}

impl ReceiveWqe {
    /// Writes `data` to the buffer, after the bytes written so far.
    pub(crate) fn append(&mut self, host: &mut dyn Host, data: &[u8]) -> Result<(), ScatterError> {
        self.check_room(data.len() as u64)?;
        let mut skip = self.written;
        let mut rest = data;
        for segment in &self.scatter {
            if rest.is_empty() {
                break;
            }
            let here = u64::from(segment.byte_count());
            if skip >= here {
                skip -= here;
                continue;
            }
            let bytes = usize::try_from(here - skip)
                .unwrap_or(usize::MAX)
                .min(rest.len());
            let (now, later) = rest.split_at(bytes);
            let va = segment.addr().wrapping_add(skip);
            host.key_write(segment.lkey(), self.scope, va, now)
                .map_err(ScatterError::Key)?;
            skip = 0;
            rest = later;
        }
        self.written += data.len() as u64;
        Ok(())
    }

    /// Counts as written the `bytes` bytes that were scattered to the CQE instead of the buffer.
    pub(super) fn count(&mut self, bytes: u64) -> Result<(), ScatterError> {
        self.check_room(bytes)?;
        self.written += bytes;
        Ok(())
    }

    fn check_room(&self, bytes: u64) -> Result<(), ScatterError> {
        let segments = self.scatter.iter();
        let room: u64 = segments
            .map(|segment| u64::from(segment.byte_count()))
            .sum();
        if self.written + bytes > room {
            return Err(ScatterError::TooLong);
        }
        Ok(())
    }

    /// Discards the bytes written so far. An unreliable message was abandoned, and the next one reuses the WQE.
    pub(super) fn rewind(&mut self) {
        self.written = 0;
    }
}

/// Position in the queue pair's own ring.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ReceiveQueue {
    taken: u16,
    /// Number of posted WQEs modulo 2^16, as last read from the doorbell record.
    posted: u16,
}

impl ReceiveQueue {
    /// Returns the numbers of receive WQEs taken and posted, for QUERY_QP.
    pub(crate) const fn counters(self) -> (u16, u16) {
        (self.taken, self.posted)
    }

    /// Takes the next posted WQE, from the XRC SRQ `xrc_srq` if the packet names one.
    pub(super) fn take(
        &mut self,
        core: &Core,
        host: &mut dyn Host,
        xrc_srq: Option<u32>,
    ) -> Result<Option<ReceiveWqe>, TakeError> {
        if core.context.rq_type() == RQ_TYPE_SRQ {
            let number = xrc_srq.unwrap_or(core.context.srqn_rmpn_xrqn());
            let taken = host.srq_take(number).map_err(TakeError::Fault)?;
            return Ok(taken.map(|wqe| ReceiveWqe {
                counter: wqe.index,
                scope: KeyScope {
                    pd: wqe.pd,
                    ..core.local_scope()
                },
                scatter: wqe.scatter,
                written: 0,
                xrc: wqe.xrc,
            }));
        }
        self.take_own(&core.rings, core.local_scope(), host)
    }

    /// Takes the next posted WQE from the queue pair's own ring.
    pub(crate) fn take_own(
        &mut self,
        rings: &Rings,
        scope: KeyScope,
        host: &mut dyn Host,
    ) -> Result<Option<ReceiveWqe>, TakeError> {
        let Some(ring) = rings.receive else {
            return Ok(None);
        };
        self.posted = rings.receive_counter(host).map_err(TakeError::Fault)?;
        let waiting = self.posted.wrapping_sub(self.taken);
        if u32::from(waiting) > ring.entries() {
            return Err(TakeError::Record);
        }
        if waiting == 0 {
            return Ok(None);
        }
        let mut bytes = vec![0; ring.entry_bytes()];
        rings
            .read(host, ring, self.taken, &mut bytes)
            .map_err(TakeError::Fault)?;
        let counter = self.taken;
        self.taken = self.taken.wrapping_add(1);
        Ok(Some(ReceiveWqe {
            counter,
            scope,
            scatter: parse_scatter(&bytes),
            written: 0,
            xrc: None,
        }))
    }

    /// Skips the next posted WQE, so that it can be flushed. Returns its counter.
    pub(crate) fn skip(
        &mut self,
        rings: &Rings,
        host: &mut dyn Host,
    ) -> Result<Option<u16>, DmaFault> {
        let Some(ring) = rings.receive else {
            return Ok(None);
        };
        self.posted = rings.receive_counter(host)?;
        let waiting = self.posted.wrapping_sub(self.taken);
        if waiting == 0 || u32::from(waiting) > ring.entries() {
            return Ok(None);
        }
        let counter = self.taken;
        self.taken = counter.wrapping_add(1);
        Ok(Some(counter))
    }
}

/// Returns the data segments up to the terminator, which is an entry of zero bytes. The terminator's key is 0x100 or
/// the device's `terminate_scatter_list_mkey`. No other entry has zero bytes.
fn parse_scatter(bytes: &[u8]) -> Vec<DataSeg> {
    let (segments, _) = bytes.as_chunks::<SEGMENT_BYTES>();
    segments
        .iter()
        .map_while(|bytes| DataSeg::read_from_bytes(bytes).ok())
        .take_while(|segment| segment.byte_count() != 0)
        .collect()
}
