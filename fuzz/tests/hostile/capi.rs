//! The C ABI under a program with random arguments: any call, any handle (live, stale, of another kind, of another
//! adapter, not a handle), any number for every enumeration and count, and pointers that are null or valid.
//!
//! No call may crash, hang or panic. The C layer returns a panic as DAT_INTERNAL_ERROR, so the test looks for that.

// UNSAFETY: calls of the C ABI.
#![expect(unsafe_code, reason = "calls of the C ABI")]

use std::ffi::{CString, c_void};
use std::ptr::{null, null_mut, without_provenance_mut};

use bolero::check;
use udapl::capi::types::*;
use udapl::capi::*;
use udapl::memory::{LmrTriplet, RmrTriplet};

/// A call: its number, six picks of handles, three numbers.
type Op = (u8, [u8; 6], [u32; 3]);

/// Memory that the device may write to, valid until the process ends.
static mut MEMORY: [u64; 1024] = [0; 1024];
const BYTES: u64 = 8192;

/// The state of a program: the handles and memory contexts that it knows.
struct Program {
    handles: Vec<DatHandle>,
    contexts: Vec<u32>,
    names: [CString; 2],
}

/// Buffer large enough for any output of a call.
#[repr(C, align(16))]
struct Room([u8; 1024]);

impl Program {
    fn new() -> Self {
        let name = |name: &str| CString::new(name).expect("a name");
        let mut program = Self {
            handles: vec![null_mut()],
            contexts: vec![0],
            // The two functions of the process-wide fabric that a wire connects.
            names: [name("sim:a,time=virtual"), name("sim:b,time=virtual")],
        };
        program.open(0);
        program.open(1);
        program
    }

    fn open(&mut self, which: usize) -> u32 {
        let (mut evd, mut ia) = (null_mut(), null_mut());
        let name = self.names[which].as_ptr();
        // SAFETY: the name is a C string, and the two outputs are local variables.
        let answer = unsafe { dat_ia_openv(name, 8, &raw mut evd, &raw mut ia, 1, 2, 0) };
        self.handles.extend([evd, ia]);
        answer
    }

    fn handle(&self, pick: u8) -> DatHandle {
        let known = self.handles[usize::from(pick) % self.handles.len()];
        match pick {
            // A handle with one bit flipped, or an address far from all handles.
            250.. => without_provenance_mut(known.addr() ^ 1 << (pick % 64)),
            249 => without_provenance_mut(usize::MAX),
            _ => known,
        }
    }

    fn step(&mut self, op: &Op) -> u32 {
        let (call, picks, [x, y, z]) = *op;
        let [a, b, c, d, e, f] = picks.map(|pick| self.handle(pick));
        let mut made: DatHandle = null_mut();
        let out = &raw mut made;
        let mut room = Room([0; 1024]);
        let any = (&raw mut room).cast::<c_void>();
        let context = |number: u32| self.contexts[number as usize % self.contexts.len()];
        // CAST: the value is at most 5. The count is that of a few segments, and sometimes -1.
        let count = (x % 6).cast_signed() - 1;
        let memory = (&raw mut MEMORY).cast::<c_void>();
        let at = memory.addr() as u64;
        let segment = |number: u32| LmrTriplet {
            lmr_context: context(number),
            virtual_address: at.wrapping_add(u64::from(number % 9000)),
            segment_length: u64::from(number >> 16 & 0xfff),
        };
        let iov = [segment(x), segment(y), segment(z), segment(!x)];
        let iov = if y % 16 == 0 { null() } else { iov.as_ptr() };
        let remote = RmrTriplet {
            rmr_context: context(z),
            target_address: at,
            segment_length: u64::from(z % 4096),
        };
        let cookie = u64::from(y) << 32 | u64::from(x);
        let small = (y % 200).cast_signed() - 2;
        let region = CRegionDescription {
            virtual_address: if x % 3 == 1 { a.cast() } else { memory },
            shared_memory_id: (&raw const COOKIE).cast(),
        };
        // SAFETY: all-zero bytes are valid for a socket address, for attributes and for events.
        let mut address: libc_sockaddr_in6 = unsafe { std::mem::zeroed() };
        address[0] = [2, 10, 10, (x % 128) as u8][y as usize % 4];
        let agent = CAgent {
            instance_data: null_mut(),
            proxy_agent_func: (x % 2 == 0).then_some(agent),
        };
        macro_rules! c {
            ($call:expr) => {
                // SAFETY: handles and numbers are arbitrary; every pointer is null or points to memory as the header
                // demands.
                unsafe { $call }
            };
        }
        let timeout = y % 2000;
        let answer = match call % 62 {
            0 => self.open(x as usize % 2),
            1 if x % 32 == 0 => dat_ia_close(a, y % 3),
            1 => dat_ia_close(a, 1),
            2 => c!(dat_ia_query(
                a,
                out,
                x.into(),
                any.cast(),
                y.into(),
                null_mut()
            )),
            3 => dat_set_consumer_context(a, cookie),
            4 => c!(dat_get_consumer_context(a, any.cast())),
            5 => c!(dat_get_handle_type(a, any.cast())),
            6 => c!(dat_cno_create(a, agent, out)),
            7 => c!(dat_cno_modify_agent(a, agent)),
            8 => c!(dat_cno_query(a, x % 8, any.cast())),
            9 => dat_cno_free(a),
            10 => c!(dat_cno_wait(a, timeout, out)),
            11 => c!(dat_cr_query(a, x % 64, any.cast())),
            12 => c!(dat_cr_accept(a, b, small.min(70), memory)),
            13 => dat_cr_reject(a),
            14 => dat_cr_handoff(a, u64::from(x % 4)),
            15 | 16 => c!(dat_evd_create(
                a,
                small,
                b,
                [0x1f0, 0xf1, x][y as usize % 3],
                out
            )),
            17 => c!(dat_evd_query(a, x % 64, any.cast())),
            18 => dat_evd_modify_cno(a, b),
            19 => dat_evd_enable(a),
            20 => dat_evd_disable(a),
            21 => c!(dat_evd_wait(
                a,
                timeout,
                small,
                any.cast(),
                (&raw mut room.0[512]).cast()
            )),
            22 => dat_evd_resize(a, small),
            23 => {
                room.0[..4].copy_from_slice(&[1, (x % 2) as u8, 1, 0]);
                room.0.swap(1, 3);
                c!(dat_evd_post_se(a, any.cast()))
            }
            24..=27 => c!(dat_evd_dequeue(a, any.cast())),
            28 => dat_evd_free(a),
            29 => dat_evd_set_unwaitable(a),
            30 => dat_evd_clear_unwaitable(a),
            31 | 32 => c!(dat_ep_create(a, b, c, d, e, null(), out)),
            33 => {
                room.0[36..72].fill((x % 8) as u8);
                c!(dat_ep_create_with_srq(a, b, c, d, e, f, any.cast(), out))
            }
            34 => c!(dat_ep_query(a, x.into(), any.cast())),
            35 => c!(dat_ep_modify(a, u64::from(x), any.cast())),
            36 | 37 => c!(dat_ep_connect(
                a,
                (&raw const address).cast(),
                u64::from(x % 4),
                timeout,
                small.min(70),
                memory,
                z % 2,
                z % 3
            )),
            38 => c!(dat_ep_dup_connect(a, b, timeout, 0, null(), 0)),
            39 => dat_ep_disconnect(a, x % 3),
            40 => c!(dat_ep_post_send(a, count, iov, cookie, z % 64)),
            41 => c!(dat_ep_post_recv(a, count, iov, cookie, z % 8)),
            42 => c!(dat_ep_post_rdma_read(
                a,
                count,
                iov,
                cookie,
                &raw const remote,
                z % 64
            )),
            43 => c!(dat_ep_post_rdma_write(
                a,
                count,
                iov,
                cookie,
                &raw const remote,
                z % 64
            )),
            44 => c!(dat_ep_get_status(a, any.cast(), null_mut(), null_mut())),
            45 => c!(dat_ep_recv_query(a, any.cast(), null_mut())),
            46 => dat_ep_set_watermark(a, small, z.cast_signed()),
            47 => dat_ep_reset(a),
            48 => dat_ep_free(a),
            49 | 50 => {
                let (mut local, mut distant) = (0, 0);
                let length = if y % 8 == 0 {
                    0
                } else {
                    BYTES - u64::from(y % 4096)
                };
                let answer = c!(dat_lmr_create(
                    b,
                    x % 4,
                    region,
                    length,
                    c,
                    z % 0x80,
                    out,
                    &raw mut local,
                    &raw mut distant,
                    null_mut(),
                    null_mut()
                ));
                self.contexts.extend([local, distant]);
                answer
            }
            51 => c!(dat_lmr_query(a, x % 0x800, any.cast())),
            52 => dat_lmr_free(a),
            53 => c!(dat_lmr_sync_rdma_read(a, iov, u64::from(x % 5))),
            54 => c!(dat_rmr_create(a, out)),
            55 => c!(dat_rmr_bind(
                a,
                iov,
                x % 0x80,
                b,
                cookie,
                z % 64,
                any.cast()
            )),
            56 => dat_rmr_free(a),
            57 => c!(dat_pz_create(a, out)),
            58 if x % 2 == 0 => dat_pz_free(a),
            58 => c!(dat_psp_create(a, u64::from(y % 4), b, z % 3, out)),
            59 if x % 2 == 0 => dat_psp_free(a),
            59 => c!(dat_rsp_create(a, u64::from(y % 4), b, c, out)),
            60 if x % 4 == 0 => dat_rsp_free(a),
            60 if x % 4 == 1 => dat_srq_free(a),
            60 if x % 4 == 2 => dat_srq_resize(a, small),
            60 => dat_srq_set_lw(a, small),
            61 if x % 2 == 0 => {
                let attr = CSrqAttr {
                    max_recv_dtos: small,
                    max_recv_iov: count,
                    low_watermark: 0,
                };
                c!(dat_srq_create(a, b, &raw const attr, out))
            }
            _ => c!(dat_srq_post_recv(a, count, iov, cookie)),
        };
        if answer == 0 && !made.is_null() {
            self.handles.push(made);
        }
        answer
    }
}

/// A buffer with the length of a `sockaddr_in6`. The first byte is the address family.
#[expect(non_camel_case_types, reason = "the name in C")]
type libc_sockaddr_in6 = [u8; 28];

static COOKIE: [u8; 40] = [7; 40];

/// An agent that dequeues from the EVD for which it is called.
///
/// # Safety
/// None: it accepts any arguments.
unsafe extern "C" fn agent(_instance_data: *mut c_void, evd: DatHandle) {
    let mut room = Room([0; 1024]);
    // SAFETY: the buffer holds an event.
    let _answer = unsafe { dat_evd_dequeue(evd, (&raw mut room).cast()) };
}

impl Drop for Program {
    fn drop(&mut self) {
        for &handle in &self.handles {
            // Some of these handles are adapters that are still open.
            let _answer = dat_ia_close(handle, 0);
        }
    }
}

/// The return type bits of DAT_INTERNAL_ERROR.
const INTERNAL: u32 = 0x0004_0000;

#[test]
fn any_call_with_any_handle_and_any_number_answers() {
    check!()
        .with_type::<Vec<Op>>()
        .with_iterations(400)
        .for_each(|ops| {
            let mut program = Program::new();
            for op in ops {
                let answer = program.step(op);
                assert_ne!(answer & 0x3fff_0000, INTERNAL, "{op:?}");
            }
        });
}
