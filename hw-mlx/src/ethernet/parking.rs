//! The Ethernet port of a function that is handed over to another process.
//!
//! The device goes on to receive: frames that come meanwhile are in the receive slots, as many as there are slots.
//! Frames in flight were sent once. Their protocols repeat lost ones.
//!
//! The driver knows the flow table, its entries, and the objects of both queues' paths by their numbers only, and does
//! not query them. A port whose frames go elsewhere receives nothing, and the protocols above notice that.

use mlx_prm::{Opcode, QueryRqIn, QuerySqIn, Wq};

use super::objects::{Object, Objects};
use super::{Ethernet, Memory, NAME, Numbers, READY, RECEIVES, SENDS, Sizes, describe};
use crate::cq::Cq;
use crate::device::{Hca, ParkingHca};
use crate::error::{MlxError, ParkError, ResumeError, ask_twice};
use crate::mkey;
use crate::qp::{RecvQueue, SendQueue};
use crate::ring::{Lent, RingMemory, RingSnapshot};
use crate::slot_queue::{self, SLOT_ALIGN, SlotQueue, SlotQueueSnapshot, SlotSizes};

/// Maximum length of a receive slot in bytes: no port has a longer MTU.
const MAX_SLOT: u32 = 1 << 16;
/// Maximum number of group addresses, more than any vport's list has.
const MAX_GROUPS: usize = 1 << 16;
/// Mask of numbers of 24 bits.
const NUMBER_MASK: u32 = 0xff_ffff;

/// An Ethernet port.
#[derive(Clone, PartialEq, Eq, Debug, serde::Serialize, serde::Deserialize)]
pub struct EthernetSnapshot {
    /// Number of the doorbell page: that of an instance, or of one that has ended.
    pub uar: u32,
    /// Objects of the device for the port, in order of creation, except the completion queue.
    pub objects: Vec<Object>,
    /// Memory of the send ring, and its doorbell record.
    pub send: RingSnapshot,
    /// Memory of the receive ring, and its doorbell record.
    pub recv: RingSnapshot,
    /// The queues.
    pub queue: SlotQueueSnapshot,
    /// Length of a receive slot in bytes.
    pub slot_bytes: u32,
    /// Multicast and broadcast addresses whose frames the vport accepts.
    pub groups: Vec<[u8; 6]>,
}

impl Ethernet {
    /// Describes the port for another process. Its memory is the other process's from then on.
    ///
    /// # Errors
    /// The unchanged port, and [`ParkError::Broken`]: it has failed since the quiet point, and is not repaired
    /// ([`Ethernet::repair_due`]).
    pub fn park(
        self,
        at_quiet_point: &ParkingHca,
    ) -> Result<EthernetSnapshot, Box<(Self, ParkError)>> {
        let Self {
            queue,
            numbers,
            objects,
            mut memory,
            groups,
            frame,
        } = self;
        // A send queue and a receive queue have a doorbell record each.
        let records = [&memory.get().send.record, &memory.get().recv.record];
        let queue = match queue.park(at_quiet_point, records) {
            Ok(queue) => queue,
            Err(refused) => {
                let (queue, error) = *refused;
                let unchanged = Self {
                    queue,
                    numbers,
                    objects,
                    memory,
                    groups,
                    frame,
                };
                return Err(Box::new((unchanged, error)));
            }
        };
        memory.returned();
        Ok(EthernetSnapshot {
            uar: numbers.uar,
            objects: objects.all().to_vec(),
            send: memory.get().send.snapshot(),
            recv: memory.get().recv.snapshot(),
            queue,
            // PANIC: a slot is as long as a frame.
            slot_bytes: u32::try_from(frame.len()).expect("a slot's size"),
            groups,
        })
    }

    /// Makes the port again, and compares its queues with the device's. Nothing is posted. The caller counts the events
    /// of its completion queue next ([`Hca::next_shared_completion`], [`Ethernet::notified`]), and then receives.
    ///
    /// # Errors
    /// [`ResumeError`]: numbers of the snapshot contradict each other or what is in memory, the memory is not there, or
    /// the device's objects are others or count differently.
    pub fn resume(hca: &mut Hca, snapshot: &EthernetSnapshot) -> Result<Self, ResumeError> {
        let EthernetSnapshot {
            uar,
            ref objects,
            send: ref send_memory,
            recv: ref recv_memory,
            ref queue,
            slot_bytes,
            ref groups,
        } = *snapshot;
        let refused = |what: String| ResumeError::snapshot(NAME, what);
        let sizes = Sizes::new();
        let Made {
            pd,
            mkey_index,
            sqn,
            rqn,
        } = Made::of(objects)
            .ok_or_else(|| refused(format!("{} objects, not each kind once", objects.len())))?;
        // CAST: widening, on every target of the driver.
        let recv_bytes = slot_bytes as usize;
        let are_sizes = (queue.send.sizes, queue.recv.sizes) == (sizes.send, sizes.recv);
        let is_possible = are_sizes
            && slot_bytes <= MAX_SLOT
            && recv_bytes >= super::SEND_BYTES
            && recv_bytes.is_multiple_of(SLOT_ALIGN)
            && groups.len() <= MAX_GROUPS;
        if !is_possible {
            return Err(refused(format!(
                "{:?} and {:?}, slots of {slot_bytes} bytes, {} groups",
                queue.send.sizes,
                queue.recv.sizes,
                groups.len()
            )));
        }
        let doorbells = hca.doorbells_at(NAME, uar)?;
        let slot_sizes = SlotSizes {
            sends: SENDS,
            send_bytes: super::SEND_BYTES,
            receives: RECEIVES,
            recv_bytes,
        };
        let slots = slot_sizes.claim(hca.arena(), queue.slots)?;
        let key = slot_queue::key_request(pd, slots.get());
        let slots = mkey::resume(hca, mkey_index, &key, slots)?;
        let cq = Cq::resume_on(hca, &doorbells, uar, &queue.cq)?;
        let (send_memory, recv_memory) = (
            RingMemory::resume(hca.arena(), send_memory)?,
            RingMemory::resume(hca.arena(), recv_memory)?,
        );
        let RingMemory { ring, record, .. } = send_memory.get();
        let send = SendQueue::resume(&queue.send, (ring, 0), record, &doorbells, (sqn, false))?;
        let RingMemory { ring, record, .. } = recv_memory.get();
        let recv = RecvQueue::resume(&queue.recv, ring, record, rqn)?;
        let of_send = Ring {
            memory: send_memory.get(),
            entries: sizes.send.ring_blocks,
            stride: crate::wqe::BLOCK_BYTES,
            uar,
        };
        // CAST: the stride is the number of bytes of one entry.
        let of_recv = Ring {
            memory: recv_memory.get(),
            entries: sizes.recv.entries,
            stride: sizes.recv.stride as usize,
            uar: 0,
        };
        let cqn = cq.cqn();
        ask_twice(|| {
            let mut input = QuerySqIn::new();
            input.set_sqn(sqn);
            let answer = hca.exec_reading(&input, &[], of_send.memory.pages().len());
            let (answer, pages) = answer.map_err(MlxError::from)?;
            let context = answer.sq_context();
            of_send.check(pd, context.wq(), &pages)?;
            let described = ("send queue", sqn, cqn);
            check_state(described, (context.state(), context.cqn()))?;
            let announced = queue.send.announced;
            let [known, fetched] = counters(context.wq());
            let is_counted = send.are_counted(announced, known.into(), fetched.into());
            check_counters(described, context.state(), is_counted, [known, fetched])
        })?;
        hca.count_resumed(Opcode::CREATE_SQ, sqn)?;
        ask_twice(|| {
            let mut input = QueryRqIn::new();
            input.set_rqn(rqn);
            let answer = hca.exec_reading(&input, &[], of_recv.memory.pages().len());
            let (answer, pages) = answer.map_err(MlxError::from)?;
            let context = answer.rq_context();
            of_recv.check(pd, context.wq(), &pages)?;
            let described = ("receive queue", rqn, cqn);
            check_state(described, (context.state(), context.cqn()))?;
            let [known, fetched] = counters(context.wq());
            let taken = u32::from(fetched).wrapping_sub(recv.completed()) & 0xffff;
            let is_counted = taken <= recv.outstanding();
            check_counters(described, context.state(), is_counted, [known, fetched])
        })?;
        hca.count_resumed(Opcode::CREATE_RQ, rqn)?;
        let lkey = mkey_index << 8;
        let name = (NAME, hca.broken_queues());
        let queue = SlotQueue::resume(name, cq, (send, recv), slot_sizes, (slots, lkey), queue)?;
        let memory = Memory {
            send: send_memory.give_back(),
            recv: recv_memory.give_back(),
        };
        Ok(Self {
            queue,
            numbers: Numbers {
                sqn,
                rqn,
                lkey,
                uar,
            },
            objects: Objects::of(objects),
            memory: Lent::new(memory, hca.arena().downgrade()),
            groups: groups.clone(),
            frame: vec![0; recv_bytes],
        })
    }
}

/// Numbers of the objects that the queues need.
struct Made {
    pd: u32,
    mkey_index: u32,
    sqn: u32,
    rqn: u32,
}

impl Made {
    /// Finds the numbers in a list of objects. Returns `None` if an object is not there exactly once, or if a number is
    /// impossible.
    fn of(objects: &[Object]) -> Option<Self> {
        /// Number of objects that a port has.
        const ALL: usize = 16;
        let one = |number: fn(Object) -> Option<u32>| {
            let mut all = objects.iter().copied().filter_map(number);
            let first = all.next().filter(|number| *number <= NUMBER_MASK);
            first.filter(|_| all.next().is_none())
        };
        macro_rules! number {
            ($kind:ident) => {
                one(|object| {
                    if let Object::$kind(number) = object {
                        Some(number)
                    } else {
                        None
                    }
                })?
            };
        }
        let made = Self {
            pd: number!(Pd),
            mkey_index: number!(Mkey),
            sqn: number!(Sq),
            rqn: number!(Rq),
        };
        (objects.len() <= ALL).then_some(made)
    }
}

/// A ring of the port, and what its context says of it.
struct Ring<'a> {
    memory: &'a RingMemory,
    entries: u32,
    stride: usize,
    /// Number of the doorbell page; 0 for the receive queue, which needs none.
    uar: u32,
}

impl Ring<'_> {
    /// Compares the ring with the device's.
    fn check(&self, pd: u32, wq: &Wq, pages: &[u8]) -> Result<(), ResumeError> {
        let mut created = Wq::new();
        describe(&mut created, pd, self.memory, self.entries, self.stride);
        let shape = |wq: &Wq| {
            (
                [wq.wq_type(), wq.pd(), wq.page_offset()],
                [wq.log_wq_stride(), wq.log_wq_sz()],
                wq.dbr_addr(),
            )
        };
        let (ours, devices) = (shape(&created), shape(wq));
        let is_there = self.memory.is_at(pages);
        let is_heard = self.uar == 0 || wq.uar_page() == self.uar;
        if ours == devices && is_there && is_heard {
            return Ok(());
        }
        Err(ResumeError::changed(format!(
            "{NAME} has wq_type, pd, page_offset, log_wq_stride, log_wq_sz and dbr_addr {devices:x?}, and not {ours:x?}; ring expected at {:#x}, page list matches: {is_there}; its doorbell page is {:#x}",
            self.memory.ring.iova().0,
            wq.uar_page()
        )))
    }
}

/// Compares the state of a queue, and its completion queue, with the device's. A queue in error reports its entries as
/// flushed, and is repaired then.
fn check_state(
    (kind, number, cqn): (&str, u32, u32),
    (state, devices): (u32, u32),
) -> Result<(), ResumeError> {
    if devices == cqn && [READY, super::ERROR].contains(&state) {
        return Ok(());
    }
    Err(ResumeError::changed(format!(
        "{kind} {number:#x} of the Ethernet port is in state {state}, and reports to completion queue {devices:#x}, not {cqn:#x}"
    )))
}

/// Returns the low halves of a queue's counters: the entries that the device knows, and those that it has fetched.
#[expect(clippy::cast_possible_truncation, reason = "the low halves")]
fn counters(wq: &Wq) -> [u16; 2] {
    [wq.sw_counter() as u16, wq.hw_counter() as u16]
}

/// Refuses a working queue whose counters are not ours. A queue in error has flushed its entries, or is about to.
fn check_counters(
    (kind, number, _): (&str, u32, u32),
    state: u32,
    is_counted: bool,
    counters: [u16; 2],
) -> Result<(), ResumeError> {
    if is_counted || state != READY {
        return Ok(());
    }
    Err(ResumeError::changed(format!(
        "{kind} {number:#x} of the Ethernet port has counted {counters:x?} entries known and fetched, which contradicts the outstanding ones"
    )))
}
