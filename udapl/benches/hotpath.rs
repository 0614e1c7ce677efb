//! Costs of posting and dequeuing; run by `cargo xtask bench`.
//!
//! `hotpath time` times every operation natively. `hotpath instances` times posts and dequeues of 1, 2 and 4
//! instances at once. `hotpath count NAME` runs one operation, for callgrind to count inside the function
//! `region_NAME`. `time` and `count` print lines `name nanoseconds operations`: `time` the nanoseconds of one
//! operation, `count` the nanoseconds of the whole batch. `instances` prints a table.
//!
//! Comparisons:
//!
//! | through C | through Rust | common work |
//! |---|---|---|
//! | `c_post_rdma_write` | `post_rdma_write_triplet` | one `DAT_LMR_TRIPLET`, a remote triplet, a cookie that changes, no flags |
//! | `c_post_recv` | `post_recv_triplet` | the same, without the remote triplet |
//! | `c_dequeue_one` | `dequeue_one` | the success of an RDMA Write: endpoint, cookie, status, bytes |
//!
//! The calls through C and the calls through Rust make all checks. C functions are called through pointers unknown to
//! the compiler; the caller's work (arguments, call, test of the result) counts, too. Rust methods are inlined into the
//! loop, as in a Rust program, with the optimization that this allows.
//!
//! Two pairs of simulated functions are connected first: one is used through Rust, the other through C. While a region
//! runs, the simulator does not see register writes ([`FilteredFunction`]): on hardware, too, a write to a mapped BAR
//! runs no code of the process. After a region of requests, one further request rings the doorbell: the simulator reads
//! the doorbell record and executes all requests of the batch. The region of `post_and_dequeue` shows its register
//! writes, so its time includes the simulator's work.

mod c;
#[path = "../tests/hotpath/deaf.rs"]
mod deaf;
mod instances;
#[path = "../tests/hotpath/side.rs"]
mod side;

use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::time::Instant;

use deaf::FilteredFunction;
use driver::barrier;
use hw_sim::{LinkFaults, Sim, SimConfig};
use side::{Side, Sizes};
use udapl::memory::{LmrSlice, LmrTriplet, RmrTriplet};
use udapl::srq::{SrqAttr, SrqHandle};
use udapl::{
    CompletionFlags, ConnQual, DtoCookie, EpHandle, EvdHandle, Event, Ia, MemPrivFlags, PspFlags,
    Timeout,
};

/// Number of operations of one batch.
const BATCH: u64 = 1024;
/// Sizes of the endpoints of a pair: two batches are outstanding.
const SIZES: Sizes = Sizes {
    requests: 2 * 1024,
    recv_iov: 1,
    events: 8 * 1024,
};
const FLAGS: CompletionFlags = CompletionFlags::empty();
const PATIENCE: Timeout = Timeout::from_micros(10_000_000);

/// Returns the nanoseconds that `work` took.
fn timed(work: impl FnOnce()) -> u128 {
    let began = Instant::now();
    work();
    began.elapsed().as_nanos()
}

/// Two connected pairs. The first side of each pair is measured: one through Rust, the other through C.
struct Bench {
    a: Side,
    b: Side,
    c: c::CSide,
    c_device: Arc<FilteredFunction>,
    d: Side,
}

impl Bench {
    fn new() -> Self {
        let sim = Sim::new(SimConfig {
            seed: 1,
            event_log: false,
        });
        let mut a = Side::open(&sim, "sim:a", 1, SIZES);
        let mut b = Side::open(&sim, "sim:b", 2, SIZES);
        sim.connect(&a.device.device, &b.device.device, LinkFaults::default());
        a.connect(&mut b, ConnQual(0x1_0000_0001));
        let ((c, c_device), mut d) = Self::c_pair();
        d.ia.psp_create(ConnQual(0x1_0000_0001), d.events, PspFlags::CONSUMER)
            .expect("a PSP");
        c.connect(d.ia.query().ia.ia_address, 0x1_0000_0001);
        let (Event::ConnectionRequest(request), _) =
            d.ia.evd_wait(d.events, PATIENCE, 1).expect("a request")
        else {
            panic!("a connection request");
        };
        d.ia.cr_accept(request.cr, Some(d.ep), &[]).expect("accept");
        c.wait();
        d.ia.evd_wait(d.events, PATIENCE, 1).expect("established");
        Self {
            a,
            b,
            c,
            c_device,
            d,
        }
    }

    /// Creates a pair whose first side is used through C.
    fn c_pair() -> ((c::CSide, Arc<FilteredFunction>), Side) {
        let sim = Sim::new(SimConfig {
            seed: 2,
            event_log: false,
        });
        let c = Side::open(&sim, "sim:c", 3, SIZES);
        let d = Side::open(&sim, "sim:d", 4, SIZES);
        sim.connect(&c.device.device, &d.device.device, LinkFaults::default());
        ((c::CSide::new(c.ia), c.device), d)
    }

    /// Like [`Bench::without_register_writes`], for the side that is used through C.
    fn c_without_register_writes(&mut self, region: impl FnOnce(&c::CSide)) -> u128 {
        self.c_device
            .front
            .without_register_writes(|| timed(|| region(&self.c)))
    }

    /// Runs `region` without showing register writes to the simulator. Returns the duration in nanoseconds.
    fn without_register_writes(&mut self, region: impl FnOnce(&mut Side)) -> u128 {
        let device = Arc::clone(&self.a.device);
        device
            .front
            .without_register_writes(|| timed(|| region(&mut self.a)))
    }

    /// Posts one further request, and shows its doorbell to the simulator. The doorbell record counts all earlier
    /// requests, so the simulator executes them, too.
    fn ring(&mut self) {
        let Side { ia, ep, slice, .. } = &mut self.a;
        let remote = self.b.remote;
        ia.ep_post_rdma_write(*ep, &[*slice], DtoCookie(0), &remote, FLAGS)
            .expect("a post");
    }

    /// Dequeues all events of all sides.
    fn drain(&mut self) {
        self.c.drain();
        for side in [&mut self.a, &mut self.b, &mut self.d] {
            while matches!(side.ia.evd_dequeue(side.events), Ok(Some(_))) {}
        }
    }

    /// Posts `count` receives on side B for the Sends of side A.
    fn receives(&mut self, count: u64) {
        let Side { ia, ep, slice, .. } = &mut self.b;
        for _ in 0..count {
            ia.ep_post_recv(*ep, &[*slice], DtoCookie(0), FLAGS)
                .expect("a receive");
        }
    }

    /// Runs one batch of the operation `name`. Returns the time in ns and the number of operations.
    fn batch(&mut self, name: &str) -> (u128, u64) {
        let remote = self.b.remote;
        let result = match name {
            "bare_post" => (bare_post(), BATCH),
            "bare_poll" => (bare_poll(), BATCH),
            "post_send" => {
                self.receives(BATCH);
                let took = self.without_register_writes(|side| {
                    region_post_send(&mut side.ia, side.ep, side.slice)
                });
                self.ring();
                (took, BATCH)
            }
            "post_send_inline_64" => {
                self.receives(BATCH);
                let took = self.without_register_writes(|side| {
                    region_post_send_inline_64(&mut side.ia, side.ep)
                });
                self.ring();
                (took, BATCH)
            }
            "post_rdma_write" => {
                let took = self.without_register_writes(|side| {
                    region_post_rdma_write(&mut side.ia, side.ep, side.slice, &remote)
                });
                self.ring();
                (took, BATCH)
            }
            "post_rdma_write_suppressed" => {
                let took = self.without_register_writes(|side| {
                    region_post_rdma_write_suppressed(&mut side.ia, side.ep, side.slice, &remote)
                });
                self.ring();
                (took, BATCH)
            }
            "post_rdma_write_stale" => {
                let side = &mut self.a;
                let memory = udapl::alloc(&side.ia, 4096).expect("memory");
                let pz = side.pz;
                let lmr = side
                    .ia
                    .lmr_create(memory, pz, MemPrivFlags::all())
                    .expect("an LMR");
                side.ia.lmr_free(lmr.lmr).expect("freed");
                let took = self.without_register_writes(|side| {
                    region_post_rdma_write_stale(&mut side.ia, side.ep, side.slice, &remote)
                });
                self.ring();
                (took, BATCH)
            }
            "post_rdma_write_any" => {
                let took = self.without_register_writes(|side| {
                    region_post_rdma_write_any(&mut side.ia, side.ep, side.slice, &remote)
                });
                self.ring();
                (took, BATCH)
            }
            "post_rdma_write_triplet" => {
                let took = self.without_register_writes(|side| {
                    region_post_rdma_write_triplet(&mut side.ia, side.ep, side.triplet, &remote)
                });
                self.ring();
                (took, BATCH)
            }
            "post_rdma_read" => {
                let took = self.without_register_writes(|side| {
                    region_post_rdma_read(&mut side.ia, side.ep, side.slice, &remote)
                });
                self.ring();
                (took, BATCH)
            }
            "post_recv" | "post_recv_triplet" => {
                let took = self.without_register_writes(|side| {
                    if name == "post_recv" {
                        region_post_recv(&mut side.ia, side.ep, side.slice);
                    } else {
                        region_post_recv_triplet(&mut side.ia, side.ep, side.triplet);
                    }
                });
                let Side { ia, ep, slice, .. } = &mut self.b;
                for _ in 0..BATCH {
                    ia.ep_post_send(*ep, &[*slice], DtoCookie(0), FLAGS)
                        .expect("a send");
                }
                (took, BATCH)
            }
            "batch_recv_32" => {
                let took = self.without_register_writes(|side| {
                    region_batch_recv_32(&mut side.ia, side.ep, side.slice)
                });
                let Side { ia, ep, slice, .. } = &mut self.b;
                for _ in 0..BATCH {
                    ia.ep_post_send(*ep, &[*slice], DtoCookie(0), FLAGS)
                        .expect("a send");
                }
                (took, BATCH)
            }
            "srq_batch_recv_32" => {
                let side = &mut self.a;
                let attr = SrqAttr {
                    max_recv_dtos: 1024,
                    max_recv_iov: 1,
                    low_watermark: 0,
                };
                let srq = side.ia.srq_create(side.pz, attr).expect("an SRQ");
                let took = self.without_register_writes(|side| {
                    region_srq_batch_recv_32(&mut side.ia, srq, side.slice)
                });
                self.a.ia.srq_free(srq).expect("freed");
                (took, BATCH)
            }
            "batch_rdma_write_32" => {
                let took = self.without_register_writes(|side| {
                    region_batch_rdma_write_32(&mut side.ia, side.ep, side.slice, &remote)
                });
                self.ring();
                (took, BATCH)
            }
            "dequeue_one" | "poll_16" => {
                self.without_register_writes(|side| {
                    region_post_rdma_write(&mut side.ia, side.ep, side.slice, &remote)
                });
                self.ring();
                if name == "dequeue_one" {
                    (
                        self.without_register_writes(|side| {
                            region_dequeue_one(&mut side.ia, side.events)
                        }),
                        BATCH,
                    )
                } else {
                    (
                        self.without_register_writes(|side| {
                            region_poll_16(&mut side.ia, side.events)
                        }),
                        BATCH,
                    )
                }
            }
            "recorded_post_rdma_write" => {
                self.a.ia.recorder_start();
                let took = self.without_register_writes(|side| {
                    region_recorded_post_rdma_write(&mut side.ia, side.ep, side.slice, &remote)
                });
                self.a.ia.recorder_stop();
                self.ring();
                (took, BATCH)
            }
            "recorded_dequeue_one" => {
                self.without_register_writes(|side| {
                    region_post_rdma_write(&mut side.ia, side.ep, side.slice, &remote)
                });
                self.ring();
                self.a.ia.recorder_start();
                let took = self.without_register_writes(|side| {
                    region_recorded_dequeue_one(&mut side.ia, side.events)
                });
                self.a.ia.recorder_stop();
                (took, BATCH)
            }
            "dequeue_empty" => (
                self.without_register_writes(|side| {
                    region_dequeue_empty(&mut side.ia, side.events)
                }),
                BATCH,
            ),
            // Each wait follows one post, so that the EVD holds exactly one event.
            "evd_wait_ready" => {
                let mut took = 0;
                for _ in 0..BATCH {
                    self.ring();
                    took += self.without_register_writes(|side| {
                        region_evd_wait_ready(&mut side.ia, side.events)
                    });
                }
                (took, BATCH)
            }
            "post_and_dequeue" => {
                let began = Instant::now();
                region_post_and_dequeue(
                    &mut self.a.ia,
                    self.a.ep,
                    self.a.slice,
                    &remote,
                    self.a.events,
                );
                (began.elapsed().as_nanos(), BATCH)
            }
            "c_post_rdma_write" => {
                let remote = self.d.remote;
                let took = self
                    .c_without_register_writes(|side| c::region_c_post_rdma_write(side, &remote));
                self.c.ring(&remote);
                (took, BATCH)
            }
            "c_post_recv" => {
                let took = self.c_without_register_writes(c::region_c_post_recv);
                let Side { ia, ep, slice, .. } = &mut self.d;
                for _ in 0..BATCH {
                    ia.ep_post_send(*ep, &[*slice], DtoCookie(0), FLAGS)
                        .expect("a send");
                }
                (took, BATCH)
            }
            "c_post_many_write_32" => {
                let remote = self.d.remote;
                let took = self.c_without_register_writes(|side| {
                    c::region_c_post_many_write_32(side, &remote)
                });
                self.c.ring(&remote);
                (took, BATCH)
            }
            "c_post_many_recv_32" => {
                let took = self.c_without_register_writes(c::region_c_post_many_recv_32);
                let Side { ia, ep, slice, .. } = &mut self.d;
                for _ in 0..BATCH {
                    ia.ep_post_send(*ep, &[*slice], DtoCookie(0), FLAGS)
                        .expect("a send");
                }
                (took, BATCH)
            }
            "c_dequeue_one" | "c_dequeue_many_16" => {
                let remote = self.d.remote;
                self.c_without_register_writes(|side| c::region_c_post_rdma_write(side, &remote));
                self.c.ring(&remote);
                if name == "c_dequeue_one" {
                    (
                        self.c_without_register_writes(c::region_c_dequeue_one),
                        BATCH,
                    )
                } else {
                    (
                        self.c_without_register_writes(c::region_c_dequeue_many_16),
                        BATCH,
                    )
                }
            }
            "c_dequeue_empty" => (
                self.c_without_register_writes(c::region_c_dequeue_empty),
                BATCH,
            ),
            other => panic!("no operation is called {other}"),
        };
        self.drain();
        result
    }
}

#[inline(never)]
fn region_post_send(ia: &mut Ia, ep: EpHandle, slice: LmrSlice) {
    let iov = [slice];
    for cookie in 0..BATCH {
        ia.ep_post_send(ep, &iov, DtoCookie(cookie), FLAGS)
            .expect("a post");
    }
}

#[inline(never)]
fn region_post_send_inline_64(ia: &mut Ia, ep: EpHandle) {
    let data = black_box([7; 64]);
    for cookie in 0..BATCH {
        ia.ep_post_send_inline(ep, &data, DtoCookie(cookie), FLAGS)
            .expect("a post");
    }
}

#[inline(never)]
fn region_post_rdma_write(ia: &mut Ia, ep: EpHandle, slice: LmrSlice, remote: &RmrTriplet) {
    let iov = [slice];
    for cookie in 0..BATCH {
        ia.ep_post_rdma_write(ep, &iov, DtoCookie(cookie), remote, FLAGS)
            .expect("a post");
    }
}

/// Posts RDMA Writes while a flight recorder records.
#[inline(never)]
fn region_recorded_post_rdma_write(
    ia: &mut Ia,
    ep: EpHandle,
    slice: LmrSlice,
    remote: &RmrTriplet,
) {
    let iov = [slice];
    for cookie in 0..BATCH {
        ia.ep_post_rdma_write(ep, &iov, DtoCookie(cookie), remote, FLAGS)
            .expect("a post");
    }
}

#[inline(never)]
fn region_recorded_dequeue_one(ia: &mut Ia, events: EvdHandle) {
    for _ in 0..BATCH {
        dequeue(ia, events);
    }
}

/// Posts RDMA Writes with suppressed completions, as a storage program does for most requests.
#[inline(never)]
fn region_post_rdma_write_suppressed(
    ia: &mut Ia,
    ep: EpHandle,
    slice: LmrSlice,
    remote: &RmrTriplet,
) {
    let iov = [slice];
    for cookie in 0..BATCH {
        ia.ep_post_rdma_write(
            ep,
            &iov,
            DtoCookie(cookie),
            remote,
            CompletionFlags::SUPPRESS,
        )
        .expect("a post");
    }
}

/// Posts RDMA Writes with a slice that was created before another LMR was freed.
#[inline(never)]
fn region_post_rdma_write_stale(ia: &mut Ia, ep: EpHandle, slice: LmrSlice, remote: &RmrTriplet) {
    let iov = [slice];
    for cookie in 0..BATCH {
        ia.ep_post_rdma_write(ep, &iov, DtoCookie(cookie), remote, FLAGS)
            .expect("a post");
    }
}

/// Posts RDMA Writes; slice, target, cookie and flags are loaded from memory for each post.
#[inline(never)]
fn region_post_rdma_write_any(ia: &mut Ia, ep: EpHandle, slice: LmrSlice, remote: &RmrTriplet) {
    let (mut iov, mut remote, mut flags) = ([slice], *remote, FLAGS);
    for cookie in 0..BATCH {
        // The compiler must assume that `black_box` changes the values.
        black_box((&mut iov, &mut remote, &mut flags));
        ia.ep_post_rdma_write(ep, &iov, DtoCookie(cookie), &remote, flags)
            .expect("a post");
    }
}

#[inline(never)]
fn region_batch_rdma_write_32(ia: &mut Ia, ep: EpHandle, slice: LmrSlice, remote: &RmrTriplet) {
    let iov = [slice];
    for first in (0..BATCH).step_by(32) {
        let posted = ia.batch(ep, |batch| {
            (first..first + 32)
                .try_for_each(|cookie| batch.rdma_write(&iov, DtoCookie(cookie), remote, FLAGS))
        });
        posted.expect("posts");
    }
}

#[inline(never)]
fn region_batch_recv_32(ia: &mut Ia, ep: EpHandle, slice: LmrSlice) {
    let iov = [slice];
    for first in (0..BATCH).step_by(32) {
        let posted = ia.batch(ep, |batch| {
            (first..first + 32).try_for_each(|cookie| batch.recv(&iov, DtoCookie(cookie), FLAGS))
        });
        posted.expect("posts");
    }
}

#[inline(never)]
fn region_srq_batch_recv_32(ia: &mut Ia, srq: SrqHandle, slice: LmrSlice) {
    let iov = [slice];
    for first in (0..BATCH).step_by(32) {
        let posted = ia.srq_batch(srq, |batch| {
            (first..first + 32).try_for_each(|cookie| batch.recv(&iov, DtoCookie(cookie)))
        });
        posted.expect("posts");
    }
}

#[inline(never)]
fn region_post_rdma_write_triplet(
    ia: &mut Ia,
    ep: EpHandle,
    triplet: LmrTriplet,
    remote: &RmrTriplet,
) {
    let iov = [triplet];
    for cookie in 0..BATCH {
        ia.ep_post_rdma_write(ep, &iov, DtoCookie(cookie), remote, FLAGS)
            .expect("a post");
    }
}

#[inline(never)]
fn region_post_rdma_read(ia: &mut Ia, ep: EpHandle, slice: LmrSlice, remote: &RmrTriplet) {
    let iov = [slice];
    for cookie in 0..BATCH {
        ia.ep_post_rdma_read(ep, &iov, DtoCookie(cookie), remote, FLAGS)
            .expect("a post");
    }
}

#[inline(never)]
fn region_post_recv(ia: &mut Ia, ep: EpHandle, slice: LmrSlice) {
    let iov = [slice];
    for cookie in 0..BATCH {
        ia.ep_post_recv(ep, &iov, DtoCookie(cookie), FLAGS)
            .expect("a post");
    }
}

#[inline(never)]
fn region_post_recv_triplet(ia: &mut Ia, ep: EpHandle, triplet: LmrTriplet) {
    let iov = [triplet];
    for cookie in 0..BATCH {
        ia.ep_post_recv(ep, &iov, DtoCookie(cookie), FLAGS)
            .expect("a post");
    }
}

/// Dequeues one event, which must exist. The compiler must assume that `black_box` reads all fields of the event.
#[inline(always)]
fn dequeue(ia: &mut Ia, events: EvdHandle) {
    let event = ia.evd_dequeue(events);
    assert!(matches!(event, Ok(Some(_))), "{event:?}");
    black_box(&event);
}

#[inline(never)]
fn region_dequeue_one(ia: &mut Ia, events: EvdHandle) {
    for _ in 0..BATCH {
        dequeue(ia, events);
    }
}

#[inline(never)]
fn region_dequeue_empty(ia: &mut Ia, events: EvdHandle) {
    for _ in 0..BATCH {
        let event = ia.evd_dequeue(events);
        assert!(matches!(event, Ok(None)), "{event:?}");
    }
}

#[inline(never)]
fn region_evd_wait_ready(ia: &mut Ia, events: EvdHandle) {
    let found = ia.evd_wait(events, Timeout::INFINITE, 1);
    assert!(found.is_ok(), "{found:?}");
    black_box(&found);
}

#[inline(never)]
fn region_poll_16(ia: &mut Ia, evd: EvdHandle) {
    let mut events = [Event::NONE; 16];
    for _ in 0..BATCH / 16 {
        let taken = ia.evd_poll(evd, &mut events);
        assert_eq!(taken, Ok(16));
        black_box(&events);
    }
}

#[inline(never)]
fn region_post_and_dequeue(
    ia: &mut Ia,
    ep: EpHandle,
    slice: LmrSlice,
    remote: &RmrTriplet,
    events: EvdHandle,
) {
    let iov = [slice];
    for cookie in 0..BATCH {
        ia.ep_post_rdma_write(ep, &iov, DtoCookie(cookie), remote, FLAGS)
            .expect("a post");
        dequeue(ia, events);
    }
}

/// Measures the reference cost of posting a batch: 64 bytes of WQE, the doorbell record, the doorbell, and the fences
/// between these writes. Returns the time in ns.
fn bare_post() -> u128 {
    let ring: Vec<AtomicU64> = (0..8 * 64).map(AtomicU64::new).collect();
    let ring: &[AtomicU64; 8 * 64] = ring
        .as_slice()
        .try_into()
        .expect("8 words each of 64 blocks");
    let (record, register) = (AtomicU32::new(0), AtomicU64::new(0));
    let began = Instant::now();
    region_bare_post(ring, &record, &register);
    began.elapsed().as_nanos()
}

#[inline(never)]
fn region_bare_post(ring: &[AtomicU64; 8 * 64], record: &AtomicU32, register: &AtomicU64) {
    // CAST: a batch has 1024 operations.
    #[expect(clippy::cast_possible_truncation, reason = "1024 fits")]
    for index in 0..BATCH as u32 {
        let index = black_box(index);
        let block = 8 * (index as usize % 64);
        let control = u64::from(index << 8 | 0x08).to_be();
        ring[block].store(control, Ordering::Relaxed);
        ring[block + 1].store(0x0800_0000u64.to_be(), Ordering::Relaxed);
        ring[block + 2].store(u64::from(index).to_be(), Ordering::Relaxed);
        ring[block + 3].store(0x1234_5678_0000_0000u64.to_be(), Ordering::Relaxed);
        ring[block + 4].store(0x0000_0040_1234_5678u64.to_be(), Ordering::Relaxed);
        ring[block + 5].store(u64::from(index).to_be(), Ordering::Relaxed);
        ring[block + 6].store(0, Ordering::Relaxed);
        ring[block + 7].store(0, Ordering::Relaxed);
        barrier::dma_to_device();
        record.store((index & 0xffff).to_be(), Ordering::Relaxed);
        barrier::dma_to_device();
        register.store(control, Ordering::Relaxed);
        barrier::flush_write_combining();
    }
}

/// Measures the reference cost of polling a batch: the owner byte, the fence, the fields that a completion needs, and
/// the consumer index. Returns the time in ns.
fn bare_poll() -> u128 {
    let ring: Vec<[AtomicU64; 8]> = (0..BATCH)
        .map(|number| [0; 8].map(|_: u64| AtomicU64::new(number)))
        .collect();
    let owners: Vec<AtomicU8> = (0..BATCH).map(|_| AtomicU8::new(0)).collect();
    let record = AtomicU32::new(0);
    let began = Instant::now();
    black_box(region_bare_poll(&ring, &owners, &record));
    began.elapsed().as_nanos()
}

#[inline(never)]
fn region_bare_poll(ring: &[[AtomicU64; 8]], owners: &[AtomicU8], record: &AtomicU32) -> u64 {
    let mut sum = 0;
    for (index, (entry, owner)) in (0u32..).zip(ring.iter().zip(owners)) {
        if owner.load(Ordering::Relaxed) & 1 != 0 {
            break;
        }
        barrier::dma_from_device();
        let words: [u64; 4] =
            [4, 5, 6, 7].map(|at: usize| u64::from_be(entry[at].load(Ordering::Relaxed)));
        sum += black_box(words)[3];
        record.store((index & 0xff_ffff).to_be(), Ordering::Relaxed);
    }
    sum
}

const OPERATIONS: [&str; 29] = [
    "bare_post",
    "bare_poll",
    "post_send",
    "post_send_inline_64",
    "post_rdma_write",
    "post_rdma_write_any",
    "post_rdma_write_suppressed",
    "post_rdma_write_stale",
    "post_rdma_write_triplet",
    "batch_rdma_write_32",
    "batch_recv_32",
    "srq_batch_recv_32",
    "post_rdma_read",
    "post_recv",
    "post_recv_triplet",
    "dequeue_one",
    "poll_16",
    "dequeue_empty",
    "recorded_post_rdma_write",
    "recorded_dequeue_one",
    "evd_wait_ready",
    "post_and_dequeue",
    "c_post_rdma_write",
    "c_post_recv",
    "c_dequeue_one",
    "c_dequeue_empty",
    "c_post_many_write_32",
    "c_post_many_recv_32",
    "c_dequeue_many_16",
];

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["instances", ..] => instances::run(),
        ["count", name] => {
            let mut bench = Bench::new();
            let (nanoseconds, operations) = bench.batch(name);
            println!("{name} {nanoseconds} {operations}");
        }
        _ => {
            let mut bench = Bench::new();
            for name in OPERATIONS {
                // The fastest of 50 batches counts, because other processes have disturbed this batch least.
                let best = (0..50)
                    .map(|_| bench.batch(name))
                    .map(|(nanoseconds, operations)| {
                        (nanoseconds as f64 / operations as f64, operations)
                    })
                    .min_by(|one, other| one.0.total_cmp(&other.0))
                    .expect("fifty batches");
                println!("{name} {:.2} {}", best.0, best.1);
            }
        }
    }
}
