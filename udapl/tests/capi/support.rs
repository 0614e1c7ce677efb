//! Objects of a C program.

// UNSAFETY: calls of the C ABI; `main.rs` expects the lint `unsafe_code`.

use std::ffi::{CStr, CString};
use std::mem::MaybeUninit;
use std::ptr::{null, null_mut, without_provenance_mut};
use std::sync::atomic::{AtomicU32, Ordering};

use udapl::capi::types::{CEvent, CEventData, CRegionDescription, CSoftware, CSrqAttr, DatHandle};
use udapl::capi::{
    dat_cno_create, dat_ep_create, dat_ep_post_recv, dat_evd_create, dat_evd_wait, dat_ia_close,
    dat_ia_openv, dat_lmr_create, dat_psp_create, dat_pz_create, dat_rmr_create, dat_rsp_create,
    dat_srq_create,
};
use udapl::memory::LmrTriplet;

/// Makes a call of the C ABI and returns its code.
macro_rules! c {
    ($call:expr) => {
        // SAFETY: every pointer that a test passes is null or points to memory of the type in the header.
        unsafe { $call }
    };
}
pub(crate) use c;

/// Makes a call that must succeed.
macro_rules! ok {
    ($call:expr) => {
        assert_eq!(crate::support::c!($call), 0, stringify!($call))
    };
}
pub(crate) use ok;

/// Makes a call that takes no pointers and must succeed.
macro_rules! done {
    ($call:expr) => {
        assert_eq!($call, 0, stringify!($call))
    };
}
pub(crate) use done;

pub const ABRUPT: u32 = 0;
pub const GRACEFUL: u32 = 1;
/// `DAT_TIMEOUT_INFINITE`.
pub const TIMEOUT_INFINITE: u32 = u32::MAX;
pub const SECOND: u32 = 1_000_000;
/// DAT_CLASS_ERROR|DAT_INVALID_HANDLE.
pub const INVALID_HANDLE: u32 = 0x8005_0000;

/// A null agent.
pub const NO_AGENT: udapl::capi::types::CAgent = udapl::capi::types::CAgent {
    instance_data: null_mut(),
    proxy_agent_func: None,
};

/// `DAT_SOFTWARE_EVENT`.
pub const SOFTWARE: u32 = 0x10001;

/// Makes a software event with this word.
pub fn software(word: usize) -> CEvent {
    CEvent {
        event_number: SOFTWARE,
        evd_handle: null_mut(),
        event_data: CEventData {
            software_event_data: CSoftware {
                pointer: without_provenance_mut(word),
            },
        },
    }
}

/// An adapter with one object of each kind.
pub struct World {
    pub ia: DatHandle,
    pub async_evd: DatHandle,
    pub pz: DatHandle,
    pub evd: DatHandle,
    pub cno: DatHandle,
    pub ep: DatHandle,
    pub lmr: DatHandle,
    pub lmr_context: u32,
    pub rmr: DatHandle,
    pub srq: DatHandle,
    pub psp: DatHandle,
    pub rsp: DatHandle,
    pub memory: Vec<u64>,
}

/// Returns the name of a new function.
pub fn fresh_name() -> CString {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    CString::new(format!("sim:capi{number},time=virtual")).expect("a name")
}

/// Opens an adapter with `async_evd` as the input value of the asynchronous EVD. Returns the handles of the IA and of
/// its asynchronous EVD, or the error code.
pub fn opened(
    name: &CStr,
    mut async_evd: DatHandle,
    thread_safe: bool,
) -> Result<(DatHandle, DatHandle), u32> {
    let mut ia = null_mut();
    let answer = c!(dat_ia_openv(
        name.as_ptr(),
        8,
        &raw mut async_evd,
        &raw mut ia,
        1,
        2,
        thread_safe.into()
    ));
    if answer == 0 {
        Ok((ia, async_evd))
    } else {
        Err(answer)
    }
}

impl World {
    pub fn new(thread_safe: bool) -> Self {
        Self::of(&fresh_name(), thread_safe, 0x1_0000_0001)
    }

    /// Opens an instance of the adapter `name`, and creates one object of each kind. The PSP listens at `qualifier`,
    /// the RSP at `qualifier + 1`.
    pub fn of(name: &CStr, thread_safe: bool, qualifier: u64) -> Self {
        Self::with(name, null_mut(), thread_safe, qualifier)
    }

    /// Like `of`, with the given asynchronous EVD.
    pub fn with(name: &CStr, given: DatHandle, thread_safe: bool, qualifier: u64) -> Self {
        let (ia, async_evd) = opened(name, given, thread_safe).expect("an adapter");
        let mut world = Self {
            ia,
            async_evd,
            pz: null_mut(),
            evd: null_mut(),
            cno: null_mut(),
            ep: null_mut(),
            lmr: null_mut(),
            lmr_context: 0,
            rmr: null_mut(),
            srq: null_mut(),
            psp: null_mut(),
            rsp: null_mut(),
            memory: vec![0; 512],
        };
        ok!(dat_pz_create(ia, &raw mut world.pz));
        ok!(dat_cno_create(ia, NO_AGENT, &raw mut world.cno));
        // This EVD takes software events and every stream except asynchronous events.
        ok!(dat_evd_create(ia, 64, null_mut(), 0xf1, &raw mut world.evd));
        let evd = world.evd;
        ok!(dat_ep_create(
            ia,
            world.pz,
            evd,
            evd,
            evd,
            null(),
            &raw mut world.ep
        ));
        let region = CRegionDescription {
            virtual_address: world.memory.as_mut_ptr().cast(),
            shared_memory_id: null(),
        };
        ok!(dat_lmr_create(
            ia,
            0,
            region,
            4096,
            world.pz,
            0x33,
            &raw mut world.lmr,
            &raw mut world.lmr_context,
            null_mut(),
            null_mut(),
            null_mut()
        ));
        ok!(dat_rmr_create(world.pz, &raw mut world.rmr));
        let attr = CSrqAttr {
            max_recv_dtos: 16,
            max_recv_iov: 2,
            low_watermark: 0,
        };
        ok!(dat_srq_create(
            ia,
            world.pz,
            &raw const attr,
            &raw mut world.srq
        ));
        ok!(dat_psp_create(ia, qualifier, evd, 0, &raw mut world.psp));
        ok!(dat_rsp_create(
            ia,
            qualifier + 1,
            null_mut(),
            evd,
            &raw mut world.rsp
        ));
        world
    }

    /// Returns every object, with the subtype of its kind.
    pub fn objects(&self) -> [(DatHandle, u32); 11] {
        [
            (self.ia, 11),
            (self.ep, 12),
            (self.lmr, 13),
            (self.rmr, 14),
            (self.pz, 15),
            (self.psp, 16),
            (self.rsp, 17),
            (self.cno, 19),
            (self.srq, 25),
            (self.evd, 26),
            (self.async_evd, 26),
        ]
    }

    /// Waits for one event on `evd`, for at most `timeout` µs.
    pub fn wait(&self, timeout: u32) -> Seen {
        self.wait_on(self.evd, timeout)
    }

    /// Waits for one event on the given EVD, for at most `timeout` µs.
    pub fn wait_on(&self, evd: DatHandle, timeout: u32) -> Seen {
        let (mut event, mut left) = (MaybeUninit::<CEvent>::zeroed(), 0);
        let answer = c!(dat_evd_wait(
            evd,
            timeout,
            1,
            event.as_mut_ptr(),
            &raw mut left
        ));
        // SAFETY: zeros are a valid event, and so is the value that the call has written.
        let event = unsafe { event.assume_init() };
        // SAFETY: every event's bytes are initialized; this member is its first word.
        let word = unsafe { event.event_data.software_event_data.pointer };
        Seen {
            answer,
            number: event.event_number,
            evd: event.evd_handle.addr(),
            word: word.addr(),
        }
    }

    /// Posts a receive into the first 64 bytes of the memory.
    pub fn post_recv(&self, cookie: u64) {
        let segment = self.segment();
        ok!(dat_ep_post_recv(self.ep, 1, &raw const segment, cookie, 0));
    }

    /// Returns the first 64 bytes of the memory as a local segment.
    pub fn segment(&self) -> LmrTriplet {
        LmrTriplet {
            lmr_context: self.lmr_context,
            virtual_address: self.memory.as_ptr().addr() as u64,
            segment_length: 64,
        }
    }
}

/// Return code of a wait, and the event that the wait has written; zeros if there was no event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    pub answer: u32,
    pub number: u32,
    pub evd: usize,
    /// The first word of the event's data.
    pub word: usize,
}

impl Drop for World {
    fn drop(&mut self) {
        // The test may have closed the IA already.
        let _answer = dat_ia_close(self.ia, ABRUPT);
    }
}
