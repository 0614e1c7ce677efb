//! Conversion of events to `DAT_EVENT`.

// UNSAFETY: writes an event through the caller's pointer.
#![expect(unsafe_code, reason = "the caller's pointers")]

use core::ffi::c_void;
use core::ptr::{null, null_mut};

use dat_core::provider::Plain;
use dat_core::{
    AsyncEvent, ConnectionEvent, ConnectionRequest, DatError, DatResult, DtoCompletion, DtoStatus,
    Event, ReturnType, Subtype,
};

use super::adapter::{Adapter, Open};
use super::answer::answer;
use super::argument::as_count;
use super::records::{Address, Request};
use super::table::{handle_of, number};
use super::types::{
    CAsync, CConnection, CCrArrival, CDtoCompletion, CEvent, CEventData, CRmrCompletion, CSoftware,
    DatHandle, DatReturn,
};

/// Event number `DAT_DTO_COMPLETION_EVENT`.
const DTO_COMPLETION: u32 = 0x00001;

/// Error for an empty queue. In Rust an empty queue is `None`; in C it is this error.
const NOTHING: DatError = DatError::new(ReturnType::QueueEmpty, Subtype::None);

/// DAT_QUEUE_EMPTY.
pub(super) const QUEUE_EMPTY: DatReturn = NOTHING.code();

/// Returns the dequeued event, or DAT_QUEUE_EMPTY if there is none.
pub(super) fn there(taken: Option<Event>) -> DatResult<Event> {
    taken.ok_or(NOTHING)
}

/// Returns whether a dequeue found its queue empty. Such a dequeue has processed the events of all queues of the IA, so
/// other threads may find events now.
pub(super) fn found_nothing(error: DatError) -> bool {
    error.return_type() == ReturnType::QueueEmpty
}

/// Stores the result of a dequeue in `out`, and returns the result's code.
///
/// # Safety
/// `out` points to memory for an event.
pub(super) unsafe fn store(
    adapter: &'static Adapter,
    open: &mut Open,
    evd: DatHandle,
    taken: &DatResult<Event>,
    out: *mut CEvent,
) -> DatReturn {
    match taken {
        Ok(event) => {
            let event = made(adapter, open, evd, event);
            // SAFETY: contract ROOM.
            unsafe { out.write(event) };
            open.request_forwarding();
            0
        }
        Err(error) => {
            if found_nothing(*error) {
                open.progressed();
            }
            answer(*error)
        }
    }
}

/// Returns the C event of a successful DTO.
#[inline(always)]
pub(super) fn plain(evd: DatHandle, ep: DatHandle, done: Plain) -> CEvent {
    CEvent {
        event_number: DTO_COMPLETION,
        evd_handle: evd,
        event_data: CEventData {
            dto_completion_event_data: CDtoCompletion {
                ep_handle: ep,
                user_cookie: done.cookie,
                // CAST: the discriminant is DAT's number.
                status: DtoStatus::Success as u32,
                transfered_length: done.bytes.into(),
            },
        },
    }
}

/// Converts an event to C.
pub(super) fn made(
    adapter: &'static Adapter,
    open: &mut Open,
    evd: DatHandle,
    event: &Event,
) -> CEvent {
    let event_data = match event {
        Event::Dto(done) => return dto(open, evd, done),
        Event::RmrBind(done) => CEventData {
            rmr_completion_event_data: CRmrCompletion {
                rmr_handle: open.known(done.rmr).unwrap_or(null_mut()),
                user_cookie: done.cookie.0,
                // CAST: the discriminant is DAT's number.
                status: done.status as u32,
            },
        },
        Event::ConnectionRequest(request) => CEventData {
            cr_arrival_event_data: arrival(adapter, open, request),
        },
        Event::Connection(event) => CEventData {
            connect_event_data: connection(adapter, open, event),
        },
        Event::Async(event) => CEventData {
            asynch_error_event_data: CAsync {
                dat_handle: subject(open, event),
                reason: as_count(event.reason()),
            },
        },
        Event::Software(word) => CEventData {
            software_event_data: CSoftware {
                // This number is the pointer that the consumer passed to `dat_evd_post_se`.
                pointer: handle_of(word.0).cast::<c_void>(),
            },
        },
    };
    CEvent {
        event_number: event.number(),
        evd_handle: evd,
        event_data,
    }
}

/// Returns the number of bytes that the DTO placed in its buffer. Returns 0 for a receive that a peer's RDMA Write
/// with immediate data consumed: otherwise a consumer could take old bytes of the buffer for a message.
const fn placed(done: &DtoCompletion) -> u64 {
    if done.detail.is_write_immediate() {
        0
    } else {
        done.transferred_length
    }
}

/// Converts the completion of a DTO to C.
fn dto(open: &Open, evd: DatHandle, done: &DtoCompletion) -> CEvent {
    CEvent {
        event_number: DTO_COMPLETION,
        evd_handle: evd,
        event_data: CEventData {
            dto_completion_event_data: CDtoCompletion {
                ep_handle: open.known(done.ep).unwrap_or(null_mut()),
                user_cookie: done.cookie.0,
                // CAST: the discriminant is DAT's number.
                status: done.status as u32,
                transfered_length: placed(done),
            },
        },
    }
}

fn arrival(adapter: &'static Adapter, open: &mut Open, request: &ConnectionRequest) -> CCrArrival {
    let cr_handle = open.name(adapter, request.cr);
    if cr_handle.is_null() {
        // The process has no handle left for the request. The program cannot decide about it, so reject it. The reject
        // fails if the request has already ended.
        let _gone = open.ia.cr_reject(request.cr);
    }
    let mut local = open.instance.local.pointer();
    if let Ok(cr) = open.ia.cr_query(request.cr) {
        let address = cr.local_ia_address;
        let record = Request {
            remote: Address::new(cr.remote_ia_address),
            private_data: cr.private_data.into(),
        };
        local = open.records.local(address);
        open.records.requests.insert(number(cr_handle), record);
    }
    CCrArrival {
        sp_handle: request
            .psp
            .and_then(|psp| open.known(psp))
            .unwrap_or(null_mut()),
        local_ia_address_ptr: local,
        conn_qual: request.conn_qual.0,
        cr_handle,
    }
}

fn connection(adapter: &'static Adapter, open: &mut Open, event: &ConnectionEvent) -> CConnection {
    let ep_handle = open.name(adapter, event.ep);
    let data = if event.kind.has_private_data() {
        open.ia.ep_private_data(event.ep).unwrap_or(&[])
    } else {
        &[]
    };
    CConnection {
        ep_handle,
        private_data_size: as_count(data.len()),
        private_data: if data.is_empty() {
            null()
        } else {
            // The endpoint keeps the data at this address until it is reset.
            data.as_ptr().cast()
        },
    }
}

/// Returns C's handle of the object that an asynchronous event concerns.
fn subject(open: &Open, event: &AsyncEvent) -> DatHandle {
    let known = match event {
        AsyncEvent::EvdOverflow(evd) => open.subject(*evd),
        AsyncEvent::EpBroken(ep) | AsyncEvent::EpSoftHighWatermark(ep) => open.subject(*ep),
        AsyncEvent::SrqError(srq) | AsyncEvent::SrqLowWatermark(srq) => open.subject(*srq),
        AsyncEvent::IaCatastrophic | AsyncEvent::ProviderInternalError | AsyncEvent::Network(_) => {
            Some(open.ia_handle())
        }
    };
    known.unwrap_or(null_mut())
}
