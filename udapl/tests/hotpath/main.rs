//! The hot path allocates nothing and makes no system call.
//!
//! The allocator of this test program counts allocator calls on the posting thread. The kernel detects system calls: a
//! thread of a child process enters strict seccomp, in which any system call except read, write, _exit and sigreturn
//! kills the thread. Then the thread dequeues and posts, and writes a line at the end. The simulator ignores register
//! writes meanwhile, so that only the driver is measured.

// UNSAFETY: a global allocator, and two libc calls without a safe wrapper.
#![expect(unsafe_code, reason = "a counting allocator, and seccomp")]

mod deaf;
mod disk;
mod side;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::process::Command;
use std::sync::Arc;

use hw_sim::{LinkFaults, Sim, SimConfig};
use side::{Side, Sizes};
use udapl::memory::RmrTriplet;
use udapl::srq::{SrqAttr, SrqHandle};
use udapl::{CompletionFlags, ConnQual, DtoCookie, DtoStatus, Event};

struct Counting;

thread_local! {
    static COUNTED: Cell<Option<u64>> = const { Cell::new(None) };
}

fn count() {
    COUNTED.with(|counted| counted.set(counted.get().map(|count| count + 1)));
}

// SAFETY: every call goes to the system's allocator with unchanged arguments; counting does not allocate.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller keeps the contract of `GlobalAlloc`, which is also the contract of the system's allocator.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count();
        // SAFETY: as above.
        unsafe { System.dealloc(pointer, layout) }
    }
    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        count();
        // SAFETY: as above.
        unsafe { System.realloc(pointer, layout, bytes) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Runs `work`. Returns the number of allocator calls (alloc, dealloc, realloc) of this thread meanwhile.
fn allocations(work: impl FnOnce()) -> u64 {
    COUNTED.with(|counted| counted.set(Some(0)));
    work();
    COUNTED
        .with(|counted| counted.take())
        .expect("was counting")
}

const BATCH: u64 = 64;
const NONE: CompletionFlags = CompletionFlags::empty();
const SIZES: Sizes = Sizes {
    requests: 256,
    recv_iov: 4,
    events: 1024,
};

/// Returns two connected sides, and an SRQ of the first one.
fn pair() -> (Side, SrqHandle, Side) {
    let sim = Sim::new(SimConfig {
        seed: 1,
        event_log: false,
    });
    let mut a = Side::open(&sim, "sim:1", 1, SIZES);
    let mut b = Side::open(&sim, "sim:2", 2, SIZES);
    sim.connect(&a.device.device, &b.device.device, LinkFaults::default());
    a.connect(&mut b, ConnQual(0x1_0000_0001));
    let attr = SrqAttr {
        max_recv_dtos: 256,
        max_recv_iov: 4,
        low_watermark: 0,
    };
    let srq = a.ia.srq_create(a.pz, attr).expect("an SRQ");
    (a, srq, b)
}

/// Posts 32 Sends, 64 RDMA Writes, 32 RDMA Reads, 32 receives and 32 receives to the SRQ: some with a slice as their
/// one segment, some with two triplets.
fn post_everything(a: &mut Side, srq: SrqHandle, remote: &RmrTriplet) {
    let device = Arc::clone(&a.device);
    device.front.without_register_writes(|| {
        for cookie in 0..BATCH / 2 {
            let (one, two) = ([a.slice], [a.triplet, a.triplet]);
            let twice = RmrTriplet {
                segment_length: 128,
                ..*remote
            };
            a.ia.ep_post_send(a.ep, &one, DtoCookie(cookie), NONE)
                .expect("a send");
            a.ia.ep_post_rdma_write(
                a.ep,
                &two,
                DtoCookie(cookie),
                &twice,
                CompletionFlags::SUPPRESS,
            )
            .expect("a write");
            a.ia.ep_post_rdma_write(a.ep, &one, DtoCookie(cookie), remote, NONE)
                .expect("a write");
            a.ia.ep_post_rdma_read(
                a.ep,
                &two,
                DtoCookie(cookie),
                &twice,
                CompletionFlags::BARRIER_FENCE,
            )
            .expect("a read");
            a.ia.ep_post_recv(a.ep, &two, DtoCookie(cookie), NONE)
                .expect("a receive");
            a.ia.srq_post_recv(srq, &one, DtoCookie(cookie))
                .expect("a shared receive");
        }
    });
}

/// Number of completions of [`post_everything`]: all requests except the suppressed RDMA Writes.
const REPORTED: u64 = 3 * BATCH / 2;

/// Posts B's receives for the Sends. Then posts one more request of A, with register writes enabled, so that the
/// simulator executes all earlier posts.
fn ring(a: &mut Side, b: &mut Side) {
    for cookie in 0..BATCH {
        b.ia.ep_post_recv(b.ep, &[b.slice], DtoCookie(cookie), NONE)
            .expect("a receive");
    }
    let remote = b.remote;
    a.ia.ep_post_rdma_write(a.ep, &[a.slice], DtoCookie(0), &remote, NONE)
        .expect("a write");
}

fn dequeue_everything(a: &mut Side) {
    let device = Arc::clone(&a.device);
    device.front.without_register_writes(|| {
        for _ in 0..REPORTED {
            let event = a.ia.evd_dequeue(a.events).expect("an event");
            assert!(matches!(event, Some(Event::Dto(done)) if done.status == DtoStatus::Success));
        }
    });
}

/// Clauses: SEND-24, RECV-21, READ-22, WRITE-12, SRQ-18.
#[test]
fn posting_and_dequeuing_allocate_nothing() {
    let (mut a, srq, mut b) = pair();
    let remote = b.remote;
    // B's receives must be posted before the simulator executes the Sends, because otherwise the Sends get RNR NAKs.
    let posts = allocations(|| post_everything(&mut a, srq, &remote));
    ring(&mut a, &mut b);
    let dequeues = allocations(|| dequeue_everything(&mut a));
    let control = allocations(|| drop(std::hint::black_box(Box::new(1))));
    assert_eq!((posts, dequeues, control), (0, 0, 2));
}

/// The child's output on success.
const SURVIVED: &str = "posted and dequeued without a system call\n";

/// Runs this test program again, for one test, with a role in `HOTPATH_ROLE`. Returns its output.
fn child(role: &str) -> String {
    let program = std::env::current_exe().expect("this program");
    let output = Command::new(program)
        .args([
            "--exact",
            "posting_and_dequeuing_make_no_system_call",
            "--nocapture",
            "--test-threads=1",
        ])
        .env("HOTPATH_ROLE", role)
        .output()
        .expect("the child runs");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Clauses: SEND-24, RECV-21, READ-22, WRITE-12, SRQ-18.
#[test]
fn posting_and_dequeuing_make_no_system_call() {
    let Ok(role) = std::env::var("HOTPATH_ROLE") else {
        assert!(
            child("work").contains(SURVIVED),
            "the kernel killed the child: a system call on the hot path"
        );
        // In the role "control" the child makes a system call, which must kill it.
        assert!(
            !child("control").contains(SURVIVED),
            "seccomp is not in force"
        );
        return;
    };
    // Strict seccomp kills the thread, not the process. The join then fails and panics, which ends the child.
    std::thread::spawn(move || work_without_system_calls(&role))
        .join()
        .expect("the thread was killed, as it should be");
}

fn work_without_system_calls(role: &str) {
    let (mut a, srq, mut b) = pair();
    let remote = b.remote;
    post_everything(&mut a, srq, &remote);
    ring(&mut a, &mut b);
    // All queues have been used once, so that only the hot path runs from here on.
    // SAFETY: PR_SET_SECCOMP takes a mode and accesses no memory.
    let entered = unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_STRICT) };
    if entered == 0 {
        dequeue_everything(&mut a);
        post_everything(&mut a, srq, &remote);
        if role == "control" {
            // SAFETY: getppid has no arguments and cannot fail. In strict mode the kernel kills the thread for it.
            let _parent = unsafe { libc::getppid() };
        }
        // SAFETY: the pointer and the length are those of a static string.
        let _written = unsafe { libc::write(1, SURVIVED.as_ptr().cast(), SURVIVED.len()) };
    }
    // The next system call ends the thread. The parent expects this.
}
