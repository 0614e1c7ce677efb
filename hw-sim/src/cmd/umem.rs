//! User memory commands, and look-up of the memory that a context names: by page list and address, or by user memory.
//!
//! A user context may always create user memory. The driver itself may if `umem_uid_0` is set.

use super::{Cmd, Outcome, Refusal, output, refuse};
use crate::buffer::QueueBuffer;
use crate::objects::{DRIVER, SHARED};
use crate::qp::QueueMemory;
use crate::umem::{Places, RecordPlace, Umem};
use mlx_prm::{
    CreateUmemIn, CreateUmemOut, DestroyUmemIn, DestroyUmemOut, MTT_READ, MTT_WRITE, Wq,
};

/// Log2 of the largest page of a page list, in bytes. The 5-bit field could code larger pages, but the pages of
/// keys have this limit too.
const LOG_MAX_PAGE: u32 = 31;
const LOG_MIN_PAGE: u32 = 12;
/// Alignment of a queue's first entry in bytes, whatever the entry size.
const QUEUE_ALIGNMENT: u64 = 64;
const RECORD_BYTES: u64 = 8;

/// Location of a queue, as the queue's context describes it.
#[derive(Clone, Copy, Debug)]
pub(super) struct QueuePlace {
    /// Number of the user memory, and the offset in it in bytes; `None` if the queue has a page list.
    pub(super) umem: Option<(u32, u64)>,
    /// Page size of the command's page list, if there is no user memory: log2, minus 12.
    pub(super) log_page_size: u32,
    /// Offset in the list's first page, in 64ths of the page.
    pub(super) page_offset: u32,
    /// Length in bytes.
    pub(super) bytes: u64,
    /// True if the device writes to the queue.
    pub(super) written: bool,
}

pub(super) fn create_umem(cmd: &mut Cmd<'_>) -> Outcome {
    announced(cmd)?;
    let input: CreateUmemIn = cmd.read();
    let umem = input.umem();
    if umem.ats() {
        return Err(refuse!(BAD_PARAM, "ATS is not supported"));
    }
    let log_page = umem.log_page_size() + LOG_MIN_PAGE;
    if log_page > LOG_MAX_PAGE {
        return Err(refuse!(BAD_PARAM, "page size", "2^{log_page}"));
    }
    let count = usize::try_from(umem.num_of_mtt()).unwrap_or(usize::MAX);
    let entries = cmd.list(CreateUmemIn::SIZE, count)?;
    if entries.is_empty() {
        return Err(refuse!(BAD_PARAM, "user memory without a page"));
    }
    let permissions = MTT_READ | MTT_WRITE;
    let allowed = entries.iter().fold(permissions, |all, entry| all & entry);
    if allowed & MTT_READ == 0 {
        // This refusal is inferred: every known driver grants read access, and the device cannot use memory without it.
        return Err(refuse!(BAD_PARAM, "user memory that may not be read"));
    }
    let offset = u64::from(umem.page_offset());
    if offset >= 1 << log_page {
        return Err(refuse!(
            BAD_PARAM,
            "offset beyond the first page",
            "{offset:#x}"
        ));
    }
    let pages: Vec<u64> = entries.iter().map(|entry| entry & !permissions).collect();
    let number = cmd.nic.objects.umems.create(Umem {
        buffer: QueueBuffer::whole(&pages, log_page, offset)?,
        writable: allowed & MTT_WRITE != 0,
    })?;
    let mut out = CreateUmemOut::new();
    out.set_umem_id(number);
    output(&out)
}

pub(super) fn destroy_umem(cmd: &mut Cmd<'_>) -> Outcome {
    announced(cmd)?;
    let number = cmd.read::<DestroyUmemIn>().umem_id();
    cmd.nic.objects.umems.remove(number)?;
    output(&DestroyUmemOut::new())
}

fn announced(cmd: &Cmd<'_>) -> Result<(), Refusal> {
    if matches!(cmd.user(), DRIVER | SHARED) && !cmd.nic.caps.general.umem_uid_0() {
        return Err(refuse!(
            BAD_OP,
            "user memory of the driver itself is not supported"
        ));
    }
    Ok(())
}

fn find<'c>(cmd: &'c Cmd<'_>, number: u32) -> Result<&'c Umem, Refusal> {
    let found = cmd.nic.objects.umems.named(number);
    found.ok_or_else(|| refuse!(BAD_RESOURCE, "no such user memory", "{number:#x}"))
}

impl Cmd<'_> {
    /// Returns the memory of a queue, if all of it is mapped for the device.
    pub(super) fn queue(&self, place: QueuePlace) -> Result<QueueBuffer, Refusal> {
        let Some((number, offset)) = place.umem else {
            return self.buffer(place.log_page_size, place.page_offset, place.bytes);
        };
        let umem = find(self, number)?;
        if place.written && !umem.writable {
            return Err(refuse!(BAD_PARAM, "user memory that may not be written"));
        }
        let Some(buffer) = umem.buffer.part(offset, place.bytes) else {
            return Err(refuse!(
                BAD_PARAM,
                "queue beyond its user memory",
                "{offset:#x}"
            ));
        };
        if !buffer.start().is_multiple_of(QUEUE_ALIGNMENT) {
            // This refusal is inferred: entries would cross page boundaries.
            return Err(refuse!(BAD_PARAM, "queue not aligned in its user memory"));
        }
        self.mapped(buffer, place.bytes)
    }

    /// Returns the DMA address of a doorbell record, which must be 8-byte aligned and not 0. Without `umem`, `address`
    /// is that DMA address. With `umem`, `address` is an offset in that user memory, and the second result contains the
    /// umem's number and the offset.
    pub(super) fn record(
        &self,
        umem: Option<u32>,
        address: u64,
    ) -> Result<(u64, Option<RecordPlace>), Refusal> {
        let Some(number) = umem else {
            return Ok((self.doorbell_record(address)?, None));
        };
        let found = find(self, number)?;
        let Some(record) = found.buffer.part(address, RECORD_BYTES) else {
            return Err(refuse!(
                BAD_PARAM,
                "doorbell record beyond its user memory",
                "{address:#x}"
            ));
        };
        let place = RecordPlace {
            umem: number,
            offset: address,
        };
        Ok((self.doorbell_record(record.iova(0))?, Some(place)))
    }
}

/// `wq_type` of a cyclic work queue.
const CYCLIC: u32 = 1;

/// Returns the ring of a send or receive queue, from the command's page list or from user memory. The ring may begin
/// anywhere in its first page, in 64ths of the page, because a raw packet queue pair has both queues in one buffer
/// (Linux `create_raw_packet_qp_sq`, drivers/infiniband/hw/mlx5/qp.c).
pub(super) fn queue_memory(
    cmd: &Cmd<'_>,
    wq: &Wq,
    strides: [u32; 2],
) -> Result<(QueueMemory, Places), Refusal> {
    if wq.wq_type() != CYCLIC || wq.wq_signature() || wq.shampo_enable() {
        return Err(refuse!(BAD_PARAM, "work queue type", "{}", wq.wq_type()));
    }
    let log_most = cmd.nic.caps.general.log_max_wq_sz();
    if wq.log_wq_sz() > log_most {
        return Err(refuse!(
            EXCEED_LIM,
            "work queue size",
            "2^{} of 2^{log_most}",
            wq.log_wq_sz()
        ));
    }
    let [least, most] = strides;
    if !(least..=most).contains(&wq.log_wq_stride()) {
        return Err(refuse!(
            BAD_PARAM,
            "work queue stride",
            "2^{}",
            wq.log_wq_stride()
        ));
    }
    let bytes = 1_u64 << (wq.log_wq_sz() + wq.log_wq_stride());
    let umem = wq
        .wq_umem_valid()
        .then(|| (wq.wq_umem_id(), wq.wq_umem_offset()));
    let record_umem = wq.dbr_umem_valid().then(|| wq.dbr_umem_id());
    let (doorbell_record, record) = cmd.record(record_umem, wq.dbr_addr())?;
    let buffer = cmd.queue(QueuePlace {
        umem,
        log_page_size: wq.log_wq_pg_sz(),
        page_offset: wq.page_offset(),
        bytes,
        written: false,
    })?;
    let memory = QueueMemory {
        buffer,
        doorbell_record,
    };
    let places = Places {
        queue: umem.map(|(number, _)| number),
        record,
    };
    Ok((memory, places))
}
