//! Operations of the `hotpath` benchmark through the C ABI. The regions call the C functions through pointers that are
//! unknown to the compiler.

// UNSAFETY: calls of the C ABI.
#![expect(unsafe_code, reason = "calls of the C ABI")]

use std::hint::black_box;
use std::ptr::{null, null_mut};

use udapl::Ia;
use udapl::capi::types::{
    CEpAttr, CEpParam, CEvent, CPost, CRegionDescription, DatHandle, DatReturn,
};
use udapl::capi::{
    dat_ep_connect, dat_ep_create, dat_ep_modify, dat_ep_post_many, dat_ep_post_rdma_write,
    dat_ep_post_recv, dat_ep_query, dat_evd_create, dat_evd_dequeue, dat_evd_dequeue_many,
    dat_evd_wait, dat_lmr_create, dat_pz_create, lend,
};
use udapl::memory::{LmrTriplet, RmrTriplet};

use super::BATCH;

/// One side of a connection, used through C.
pub struct CSide {
    ep: DatHandle,
    evd: DatHandle,
    triplet: LmrTriplet,
    _memory: Vec<u8>,
}

#[inline(always)]
fn ok(answer: DatReturn) {
    if answer != 0 {
        refused(answer);
    }
}

#[cold]
#[inline(never)]
fn refused(answer: DatReturn) -> ! {
    panic!("{answer:#010x}");
}

/// Makes a call that must succeed.
macro_rules! call {
    ($call:expr) => {
        // SAFETY: the pointers point to locals and borrowed values; the registered memory lives until the last call.
        ok(unsafe { $call })
    };
}

impl CSide {
    /// Registers the IA in the handle table of the C ABI. Creates a PZ, an EVD, an endpoint and an LMR in the IA.
    pub fn new(ia: Ia) -> Self {
        let ia = lend(ia, false).expect("a handle");
        let (mut pz, mut evd, mut ep, mut lmr) = (null_mut(), null_mut(), null_mut(), null_mut());
        let mut memory = vec![0_u8; 4096];
        let region = CRegionDescription {
            virtual_address: memory.as_mut_ptr().cast(),
            shared_memory_id: null(),
        };
        let (mut context, mut address) = (0, 0);
        let mut param = std::mem::MaybeUninit::<CEpParam>::uninit();
        call!(dat_pz_create(ia, &raw mut pz));
        call!(dat_evd_create(ia, 8 * 1024, null_mut(), 0x60, &raw mut evd));
        call!(dat_ep_create(ia, pz, evd, evd, evd, null(), &raw mut ep));
        call!(dat_ep_query(ep, 0x7fff_f7ff, param.as_mut_ptr()));
        // SAFETY: the query succeeded and has written `param`.
        let mut param = unsafe { param.assume_init() };
        param.ep_attr = CEpAttr {
            max_recv_dtos: 2 * 1024,
            max_request_dtos: 2 * 1024,
            max_recv_iov: 1,
            max_request_iov: 4,
            ..param.ep_attr
        };
        call!(dat_ep_modify(ep, 0x3c_0000, &raw const param));
        call!(dat_lmr_create(
            ia,
            0,
            region,
            4096,
            pz,
            0x33,
            &raw mut lmr,
            &raw mut context,
            null_mut(),
            null_mut(),
            &raw mut address,
        ));
        Self {
            ep,
            evd,
            triplet: LmrTriplet {
                lmr_context: context,
                virtual_address: address,
                segment_length: 64,
            },
            _memory: memory,
        }
    }

    pub fn connect(&self, address: std::net::IpAddr, conn_qual: u64) {
        let std::net::IpAddr::V6(address) = address else {
            panic!("a link-local address")
        };
        // SAFETY: all zeros is a valid socket address.
        let mut remote: libc::sockaddr_in6 = unsafe { std::mem::zeroed() };
        remote.sin6_family = 10;
        remote.sin6_addr.s6_addr = address.octets();
        call!(dat_ep_connect(
            self.ep,
            (&raw const remote).cast(),
            conn_qual,
            10_000_000,
            0,
            null(),
            0,
            0,
        ));
    }

    pub fn wait(&self) {
        let (mut event, mut more) = (std::mem::MaybeUninit::<CEvent>::uninit(), 0);
        call!(dat_evd_wait(
            self.evd,
            10_000_000,
            1,
            event.as_mut_ptr(),
            &raw mut more
        ));
    }

    /// Dequeues all events of the EVD.
    pub fn drain(&self) {
        let mut event = std::mem::MaybeUninit::<CEvent>::uninit();
        // SAFETY: the pointer points to a local.
        while unsafe { dat_evd_dequeue(self.evd, event.as_mut_ptr()) } == 0 {}
    }

    /// Posts one RDMA Write.
    pub fn ring(&self, remote: &RmrTriplet) {
        call!(dat_ep_post_rdma_write(
            self.ep,
            1,
            &raw const self.triplet,
            0,
            remote,
            0
        ));
    }
}

#[inline(never)]
pub fn region_c_post_rdma_write(side: &CSide, remote: &RmrTriplet) {
    let post: unsafe extern "C" fn(_, _, _, _, *const RmrTriplet, u32) -> _ =
        black_box(dat_ep_post_rdma_write);
    for cookie in 0..BATCH {
        call!(post(side.ep, 1, &raw const side.triplet, cookie, remote, 0));
    }
}

#[inline(never)]
pub fn region_c_post_recv(side: &CSide) {
    let post: unsafe extern "C" fn(_, _, _, _, u32) -> _ = black_box(dat_ep_post_recv);
    for cookie in 0..BATCH {
        call!(post(side.ep, 1, &raw const side.triplet, cookie, 0));
    }
}

#[inline(never)]
pub fn region_c_dequeue_one(side: &CSide) {
    let dequeue: unsafe extern "C" fn(_, _) -> _ = black_box(dat_evd_dequeue);
    for _ in 0..BATCH {
        let mut event = std::mem::MaybeUninit::<CEvent>::uninit();
        call!(dequeue(side.evd, event.as_mut_ptr()));
        black_box(&event);
    }
}

/// Returns 32 entries of the given operation (`DAT_POST_OPERATION`) for one `dat_ep_post_many`.
fn posts(side: &CSide, operation: u32, remote: *const RmrTriplet) -> [CPost; 32] {
    [(); 32].map(|()| CPost {
        operation,
        num_segments: 1,
        local_iov: &raw const side.triplet,
        user_cookie: 0,
        remote_buffer: remote,
        completion_flags: 0,
        value: 0,
        operand: 0,
        swap: 0,
    })
}

#[inline(never)]
pub fn region_c_post_many_write_32(side: &CSide, remote: &RmrTriplet) {
    let post: unsafe extern "C" fn(_, _, _, _) -> _ = black_box(dat_ep_post_many);
    let (posts, mut posted) = (posts(side, 1, remote), 0);
    for _ in 0..BATCH / 32 {
        call!(post(side.ep, 32, posts.as_ptr(), &raw mut posted));
    }
}

#[inline(never)]
pub fn region_c_post_many_recv_32(side: &CSide) {
    let post: unsafe extern "C" fn(_, _, _, _) -> _ = black_box(dat_ep_post_many);
    let (posts, mut posted) = (posts(side, 3, null()), 0);
    for _ in 0..BATCH / 32 {
        call!(post(side.ep, 32, posts.as_ptr(), &raw mut posted));
    }
}

#[inline(never)]
pub fn region_c_dequeue_many_16(side: &CSide) {
    let dequeue: unsafe extern "C" fn(_, _, _, _) -> _ = black_box(dat_evd_dequeue_many);
    let mut events = [const { std::mem::MaybeUninit::<CEvent>::uninit() }; 16];
    let mut taken = 0;
    for _ in 0..BATCH / 16 {
        call!(dequeue(
            side.evd,
            16,
            events.as_mut_ptr().cast(),
            &raw mut taken
        ));
        assert_eq!(taken, 16);
        black_box(&events);
    }
}

#[inline(never)]
pub fn region_c_dequeue_empty(side: &CSide) {
    let dequeue: unsafe extern "C" fn(_, _) -> u32 = black_box(dat_evd_dequeue);
    for _ in 0..BATCH {
        let mut event = std::mem::MaybeUninit::<CEvent>::uninit();
        // SAFETY: the EVD is open, and `event` has memory for an event.
        let answer = unsafe { dequeue(side.evd, event.as_mut_ptr()) };
        assert_ne!(answer, 0);
    }
}
