//! Events, from Rust's to `DAT_EVENT`.

// UNSAFETY: an event is written where the caller's pointer says.
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

/// `DAT_DTO_COMPLETION_EVENT`.
const DTO_COMPLETION: u32 = 0x00001;

/// Nothing there, which is an error in C.
const NOTHING: DatError = DatError::new(ReturnType::QueueEmpty, Subtype::None);

/// DAT_QUEUE_EMPTY.
pub(super) const QUEUE_EMPTY: DatReturn = NOTHING.code();

/// The event, or DAT_QUEUE_EMPTY.
pub(super) fn there(taken: Option<Event>) -> DatResult<Event> {
    taken.ok_or(NOTHING)
}

/// Whether a dequeue found nothing: then it has looked after the whole adapter, and others may have to look too.
pub(super) fn found_nothing(error: DatError) -> bool {
    error.return_type() == ReturnType::QueueEmpty
}

/// Stores what a dequeue came to; its answer.
///
/// # Safety
/// `out` points to a place for an event.
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
            open.call_for_strays();
            0
        }
        Err(error) => {
            if found_nothing(*error) {
                open.looked_around();
            }
            answer(*error)
        }
    }
}

/// The success of a DTO.
#[inline(always)]
pub(super) fn plain(evd: DatHandle, ep: DatHandle, done: Plain) -> CEvent {
    CEvent {
        event_number: DTO_COMPLETION,
        evd_handle: evd,
        event_data: CEventData {
            dto_completion_event_data: CDtoCompletion {
                ep_handle: ep,
                user_cookie: done.cookie,
                // CAST: the discriminant is the number.
                status: DtoStatus::Success as u32,
                transfered_length: done.bytes.into(),
            },
        },
    }
}

/// An event in C's words.
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
                // CAST: the discriminant is the number.
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
                // A consumer's own word, which it gave as a pointer.
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

/// Bytes in the buffer of a DTO. A receive that a peer's RDMA Write with immediate data used up has none, and who takes
/// its event for a message's would read what was there before.
const fn placed(done: &DtoCompletion) -> u64 {
    if done.detail.is_write_immediate() {
        0
    } else {
        done.transferred_length
    }
}

/// The completion of a DTO.
fn dto(open: &Open, evd: DatHandle, done: &DtoCompletion) -> CEvent {
    CEvent {
        event_number: DTO_COMPLETION,
        evd_handle: evd,
        event_data: CEventData {
            dto_completion_event_data: CDtoCompletion {
                ep_handle: open.known(done.ep).unwrap_or(null_mut()),
                user_cookie: done.cookie.0,
                // CAST: the discriminant is the number.
                status: done.status as u32,
                transfered_length: placed(done),
            },
        },
    }
}

fn arrival(adapter: &'static Adapter, open: &mut Open, request: &ConnectionRequest) -> CCrArrival {
    let cr_handle = open.name(adapter, request.cr);
    if cr_handle.is_null() {
        // A request that nobody can name is nobody's to decide. If it has gone already, so much the better.
        let _gone = open.ia.cr_reject(request.cr);
    }
    if let Ok(cr) = open.ia.cr_query(request.cr) {
        let record = Request {
            remote: Address::new(cr.remote_ia_address),
            private_data: cr.private_data.into(),
        };
        open.records.requests.insert(number(cr_handle), record);
    }
    CCrArrival {
        sp_handle: request
            .psp
            .and_then(|psp| open.known(psp))
            .unwrap_or(null_mut()),
        local_ia_address_ptr: open.instance.local.pointer(),
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
            // The endpoint keeps it where it is until it is reset.
            data.as_ptr().cast()
        },
    }
}

/// The object an asynchronous event is about.
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
