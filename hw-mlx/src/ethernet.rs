//! The function's Ethernet port, for the protocols that precede RDMA (ARP, neighbour discovery, echo).
//!
//! A send queue sends whole frames through a TIS. A receive queue receives frames through a TIR. Module `steering`
//! directs only those frames to the TIR that a station must receive. RDMA traffic does not use this port. Both queues
//! report to one completion queue, on the event queue that all instances use, as QP1's completion queue does.
//!
//! ```text
//!   frame -> send queue -> TIS -> port -> flow table -> TIR -> receive queue -> frame
//! ```
//!
//! Frames are copied: into one of our slots before they are sent, and out of a slot after they have arrived
//! (module `slot_queue`). They are few and short. The first bytes of a frame are inline in the WQE, as many as any
//! setting of `min_wqe_inline_mode` requires (Linux `en_tx.c` `mlx5e_calc_min_inline`: up to the transport header).
//!
//! A frame that we send contains its VLAN tag as bytes. The device does not remove the tag of a received frame (`vsd`).
//!
//! An error entry means that the queue is in error. Both queues are then taken through RESET to READY again. Frames
//! in flight are lost, which their protocols allow for ([`Ethernet::repair`]).
//!
//! A function may lack the required features (Ethernet queues, flow tables, an Ethernet port) and then has no such
//! port; [`Ethernet::why_not`] returns the reason. The time stamps of completions are not used, so on a device with
//! several clocks the queues use the default one.

mod objects;
mod parking;
mod steering;

use driver::{DmaArena, DmaBuffer, Instant};
use mlx_prm::{
    AllocPdIn, AllocTransportDomainIn, CapType, CreateRqIn, CreateSqIn, CreateTirIn, CreateTisIn,
    EthOffloadCaps, FlowTableNicCap, ModifyRqIn, ModifySqIn, QueryNicVportContextIn, Wq,
};
use rdma_types::QueueFull;
use zerocopy::IntoBytes;

pub use self::objects::Object;
use self::objects::Objects;
pub use self::parking::EthernetSnapshot;
use crate::caps;
use crate::cq::{Cq, Cqe};
use crate::device::Hca;
use crate::error::{CmdError, MlxError};
use crate::qp::{RecvQueue, RecvSizes, SendQueue, SendSizes};
use crate::ring::{Lent, RingMemory};
use crate::slot_queue::{self, SLOT_ALIGN, SlotQueue, SlotSizes};
use crate::uar::Doorbells;
use crate::vport;

/// Maximum number of frames that are being sent.
const SENDS: u32 = 64;
/// Maximum number of frames that may arrive between two polls.
const RECEIVES: u32 = 64;
/// Number of inline bytes of a frame in its WQE: two in the Ethernet segment and five units of 16. They exceed the
/// Ethernet, VLAN, IPv6 and TCP headers together.
const INLINE: usize = 2 + 5 * 16;
/// Number of segments that a send WQE can hold besides its control segment and a remote address segment. A frame has no
/// remote address, so its Ethernet segment, five units of inline bytes and a data segment fit in two blocks.
const SEND_SEGMENTS: u32 = 6;
/// Length in bytes of the longest frame we send, without its check sequence: an MTU of 1500 and a VLAN tag.
pub const SEND_BYTES: usize = 1518;
/// States of send and receive queues.
const RESET: u32 = 0;
const READY: u32 = 1;
const ERROR: u32 = 3;
/// Value of `wq_type` for a ring.
const CYCLIC: u32 = 1;
/// Broadcast MAC address.
pub const BROADCAST: [u8; 6] = [0xff; 6];
/// Value of `wqe_inline_mode`: the vport's context determines how many bytes must be inline.
const INLINE_BY_VPORT: u32 = 1;

/// Name of the queues in messages.
const NAME: &str = "an Ethernet queue";

/// The Ethernet port of a function.
pub struct Ethernet {
    queue: SlotQueue,
    numbers: Numbers,
    /// Objects of the device for the port, except the completion queue.
    objects: Objects,
    memory: Lent<Memory>,
    /// Multicast and broadcast addresses whose frames the vport accepts.
    groups: Vec<[u8; 6]>,
    /// Buffer into which a received frame is copied.
    frame: Vec<u8>,
}

/// Rings that the device may access.
#[derive(Debug)]
struct Memory {
    send: RingMemory,
    recv: RingMemory,
}

/// Numbers by which the device identifies the objects.
#[derive(Clone, Copy, Debug)]
struct Numbers {
    sqn: u32,
    rqn: u32,
    lkey: u32,
    /// Number of the doorbell page of the send queue and the completion queue.
    uar: u32,
}

impl Memory {
    fn alloc(arena: &DmaArena, sizes: &Sizes) -> Result<Self, MlxError> {
        Ok(Self {
            send: RingMemory::alloc(arena, sizes.send.bytes())?,
            recv: RingMemory::alloc(arena, sizes.recv.bytes())?,
        })
    }
}

/// Returns the sizes of the slots of a port whose longest frame has `port_bytes`.
fn slot_sizes(port_bytes: u32) -> SlotSizes {
    // CAST: the length of a frame fits.
    let recv_bytes = (port_bytes as usize).max(SEND_BYTES);
    SlotSizes {
        sends: SENDS,
        send_bytes: SEND_BYTES,
        receives: RECEIVES,
        recv_bytes: recv_bytes.next_multiple_of(SLOT_ALIGN),
    }
}

struct Sizes {
    send: SendSizes,
    recv: RecvSizes,
}

impl Sizes {
    fn new() -> Self {
        // PANIC: the arguments are constants and valid.
        Self {
            send: SendSizes::new(SENDS, SEND_SEGMENTS, 0).expect("a short ring"),
            recv: RecvSizes::new(RECEIVES, 1).expect("a short ring"),
        }
    }
}

impl Ethernet {
    /// Returns the reason why a function cannot have an Ethernet port; `None` if its capabilities are sufficient.
    /// Resources of which one is enough (transport domains, TISes, queues, TIRs) are not checked, because even the
    /// smallest logarithm, 0, means one.
    ///
    /// # Errors
    /// The device does not report its flow tables.
    pub fn why_not(hca: &mut Hca) -> Result<Option<&'static str>, CmdError> {
        let general = hca.caps().general();
        let sizes = Sizes::new();
        let longest = sizes.send.ring_blocks.max(sizes.recv.entries).ilog2();
        let queues = [
            (general.eth_net_offloads(), "eth_net_offloads is 0"),
            (general.nic_flow_table(), "nic_flow_table is 0"),
            (
                general.log_max_wq_sz() >= longest,
                "log_max_wq_sz is less than the rings need",
            ),
        ];
        let first = |reasons: &[(bool, &'static str)]| {
            let mut missing = reasons.iter().filter(|(has, _)| !has);
            missing.next().map(|(_, why)| *why)
        };
        if let Some(why) = first(&queues) {
            return Ok(Some(why));
        }
        let page = caps::query_page::<FlowTableNicCap>(hca, CapType::FLOW_TABLE)?;
        let tables = page.current.flow_table_properties_nic_receive();
        let fields = tables.ft_field_support();
        // A page without any field gives no information; the device then refuses later, when a group is created.
        let names = fields.as_bytes().iter().any(|byte| *byte != 0);
        Ok(first(&[
            (tables.ft_support(), "ft_support is 0"),
            (
                tables.log_max_ft_size() >= steering::LOG_ENTRIES,
                "log_max_ft_size is less than 3",
            ),
            (
                !names || fields.outer_dmac(),
                "outer_dmac cannot be compared",
            ),
            (
                !names || fields.outer_ether_type(),
                "outer_ether_type cannot be compared",
            ),
            (
                !names || fields.outer_ip_protocol(),
                "outer_ip_protocol cannot be compared",
            ),
        ]))
    }

    /// Creates the queues, and directs to them the frames that a station must receive. If a step fails, the objects
    /// created before are destroyed.
    ///
    /// # Errors
    /// No memory, a missing capability ([`MlxError::NoNetwork`]), or device refusal.
    pub fn create(hca: &mut Hca, doorbells: &Doorbells) -> Result<Self, MlxError> {
        if let Some(why) = Self::why_not(hca)? {
            return Err(MlxError::NoNetwork(why.to_owned()));
        }
        let sizes = Sizes::new();
        let slot_sizes = slot_sizes(hca.port().mtu);
        let memory = Memory::alloc(hca.arena(), &sizes)?;
        let slots = slot_sizes.alloc(hca.arena())?;
        // All instances use the port, so its completion queue reports to the common event queue.
        let eqn = hca.shared_eqn();
        let mut cq = Cq::create_on(hca, eqn, doorbells, SENDS + RECEIVES)?;
        let memory = Lent::new(memory, hca.arena().downgrade());
        let slots = Lent::new(slots, hca.arena().downgrade());
        let mut objects = Objects::default();
        let made = make(
            hca,
            cq.cqn(),
            (memory.get(), slots.get()),
            &sizes,
            &mut objects,
        );
        let numbers = match made {
            Ok(numbers) => numbers,
            Err(error) => {
                let undone = objects.destroy(hca).and_then(|()| cq.destroy(hca));
                match undone {
                    Ok(()) => drop((memory.give_back(), slots.give_back())),
                    Err(error) => {
                        tracing::warn!(%error, "could not destroy the Ethernet queues; their memory is kept")
                    }
                }
                return Err(error);
            }
        };
        let Numbers { sqn, rqn, lkey, .. } = numbers;
        let Memory { send, recv } = memory.get();
        let queues = (
            SendQueue::new(sizes.send, &send.ring, 0, &send.record, doorbells, sqn),
            RecvQueue::new(sizes.recv, &recv.ring, &recv.record, rqn),
        );
        let mut ethernet = Self {
            queue: SlotQueue::new(
                (NAME, hca.broken_queues()),
                cq,
                queues,
                slot_sizes,
                (slots, lkey),
            ),
            numbers,
            objects,
            frame: vec![0; slot_sizes.recv_bytes],
            memory,
            groups: Vec::new(),
        };
        ethernet.queue.post_receives();
        Ok(ethernet)
    }

    /// Destroys the port.
    ///
    /// # Errors
    /// Device refusal. The memory of objects that the device still has stays allocated.
    pub fn destroy(mut self, hca: &mut Hca) -> Result<(), MlxError> {
        self.hear(hca, &[])?;
        self.objects.destroy(hca)?;
        self.queue.destroy(hca)?;
        drop(self.memory.give_back());
        Ok(())
    }

    /// Sets the group MAC addresses whose frames the port receives. Before the first call the port receives no group
    /// frames. To receive broadcasts, include [`BROADCAST`].
    ///
    /// # Errors
    /// [`MlxError::TooManyGroups`], or device refusal; the set is unchanged.
    pub fn hear(&mut self, hca: &mut Hca, groups: &[[u8; 6]]) -> Result<(), MlxError> {
        if self.groups != groups {
            let log_most = hca.caps().general().log_max_current_mc_list();
            if groups.len() > 1 << log_most {
                return Err(MlxError::TooManyGroups {
                    most: 1 << log_most,
                    wanted: groups.len(),
                });
            }
            vport::hear(hca, groups)?;
            self.groups = groups.to_vec();
        }
        Ok(())
    }

    /// Returns the number of the port's completion queue. Completion events of the port name this number.
    #[must_use]
    pub fn cqn(&self) -> u32 {
        self.queue.cq().cqn()
    }

    /// Returns the device's numbers of the send queue and the receive queue.
    #[must_use]
    pub fn numbers(&self) -> (u32, u32) {
        (self.numbers.sqn, self.numbers.rqn)
    }

    /// Counts a completion event of the port's completion queue. The queue must be armed again for the next event.
    pub fn notified(&mut self) {
        self.queue.notified();
    }

    /// Sends a frame, from destination address to the end of its payload.
    ///
    /// # Errors
    /// [`QueueFull`]: all send slots are in flight, the queue is broken, or the frame is longer than [`SEND_BYTES`].
    pub fn send(&mut self, frame: &[u8]) -> Result<(), QueueFull> {
        if frame.len() > SEND_BYTES {
            return Err(QueueFull);
        }
        let (inline, rest) = frame.split_at(frame.len().min(INLINE));
        self.queue.send(rest, |queue, segment, cookie| {
            queue.post_frame(inline, (!rest.is_empty()).then_some(segment), cookie)
        })
    }

    /// Processes completions, and passes each received frame to `each`. One call takes in at most two queue capacities
    /// of entries. If entries remain, the completion queue raises an event, which asks for the next call.
    pub fn take_in(&mut self, mut each: impl FnMut(&[u8])) {
        self.drain(&mut each);
        if !self.queue.is_broken() && self.queue.arm() {
            self.drain(&mut each);
        }
    }

    fn drain(&mut self, each: &mut impl FnMut(&[u8])) {
        let frame = &mut self.frame;
        // No other queue reports to this completion queue.
        let is_ours = |_: &Cqe| true;
        self.queue.drain(is_ours, |arrival| {
            let bytes = usize::try_from(arrival.bytes).map_or(0, |bytes| bytes.min(frame.len()));
            let frame = &mut frame[..bytes];
            arrival.read(0, frame);
            each(frame);
        });
    }

    /// Resets both queues after one of them failed. Does nothing if none failed, if the device is dead, or before
    /// [`Ethernet::repair_due`].
    ///
    /// # Errors
    /// The device refused a command or did not take it in: the port stays broken, and is to be repaired again after a
    /// pause. Or a command was not answered as it should be, or found no free slot in time: the port is given up.
    pub fn repair(&mut self, hca: &mut Hca) -> Result<(), MlxError> {
        if self.repair_due().is_none_or(|due| hca.now() < due) || hca.is_dead() {
            return Ok(());
        }
        let Numbers { sqn, rqn, .. } = self.numbers;
        tracing::warn!(sqn, rqn, "an Ethernet queue broke; both are reset");
        let repaired = self.restart(hca);
        match &repaired {
            Err(error) if slot_queue::ends_repairs(error) => self.queue.give_up(),
            Err(_) => self.queue.repair_failed(hca.now()),
            Ok(()) => self.queue.repaired(hca.now()),
        }
        Ok(repaired?)
    }

    fn restart(&mut self, hca: &mut Hca) -> Result<(), CmdError> {
        let Numbers { sqn, rqn, .. } = self.numbers;
        // Only the device knows the state of each queue, so both source states are tried, and one is refused.
        for from in [READY, ERROR] {
            ignore_refusal(send_state(hca, sqn, from, RESET))?;
            ignore_refusal(recv_state(hca, rqn, from, RESET))?;
        }
        self.queue.reset();
        send_state(hca, sqn, RESET, READY)?;
        recv_state(hca, rqn, RESET, READY)?;
        self.queue.post_receives();
        Ok(())
    }

    /// Returns whether the port was given up, because the device did not answer a command that repairs it.
    #[must_use]
    pub const fn is_given_up(&self) -> bool {
        self.queue.is_given_up()
    }

    /// Returns the time from which the port is to be repaired; `None` if it works, or was given up.
    #[must_use]
    pub fn repair_due(&self) -> Option<Instant> {
        self.queue.repair_due()
    }
}

/// Creates the device's objects of the port, and adds them to `objects`.
fn make(
    hca: &mut Hca,
    cqn: u32,
    (memory, slots): (&Memory, &DmaBuffer),
    sizes: &Sizes,
    objects: &mut Objects,
) -> Result<Numbers, MlxError> {
    let inline_mode = inline_mode(hca)?;
    let general = hca.caps().general();
    let (send_clock, recv_clock) = (
        ts_format(general.sq_ts_format()),
        ts_format(general.rq_ts_format()),
    );
    let pd = hca.exec(&AllocPdIn::new())?.pd();
    objects.add(Object::Pd(pd));
    let (index, lkey) = slot_queue::create_key(hca, pd, slots)?;
    objects.add(Object::Mkey(index));
    let domain = hca.exec(&AllocTransportDomainIn::new())?.transport_domain();
    objects.add(Object::TransportDomain(domain));

    let mut input = CreateTisIn::new();
    input.ctx_mut().set_transport_domain(domain);
    let tis = hca.exec(&input)?.tisn();
    objects.add(Object::Tis(tis));
    let mut input = CreateSqIn::new();
    let context = input.ctx_mut();
    context
        .set_cqn(cqn)
        .set_flush_in_error_en(true)
        .set_ts_format(send_clock)
        .set_min_wqe_inline_mode(inline_mode)
        .set_tis_lst_sz(1)
        .set_tis_num_0(tis);
    describe(
        context.wq_mut(),
        pd,
        &memory.send,
        sizes.send.ring_blocks,
        crate::wqe::BLOCK_BYTES,
    );
    context.wq_mut().set_uar_page(hca.uar_index().get());
    let sqn = hca.exec_with(&input, &memory.send.pages())?.sqn();
    objects.add(Object::Sq(sqn));
    send_state(hca, sqn, RESET, READY)?;

    let mut input = CreateRqIn::new();
    let context = input.ctx_mut();
    context
        .set_cqn(cqn)
        .set_flush_in_error_en(true)
        .set_ts_format(recv_clock)
        .set_vsd(true);
    // CAST: the stride is the number of bytes of one entry.
    describe(
        context.wq_mut(),
        pd,
        &memory.recv,
        sizes.recv.entries,
        sizes.recv.stride as usize,
    );
    let rqn = hca.exec_with(&input, &memory.recv.pages())?.rqn();
    objects.add(Object::Rq(rqn));
    recv_state(hca, rqn, RESET, READY)?;

    let mut input = CreateTirIn::new();
    // Each bit of `self_lb_block` admits one kind of our own frames. No bit is set, so the device does not deliver our
    // own frames to this TIR (Linux `mlx5e_refresh_tirs`).
    input
        .ctx_mut()
        .set_inline_rqn(rqn)
        .set_transport_domain(domain);
    let tir = hca.exec(&input)?.tirn();
    objects.add(Object::Tir(tir));
    steering::steer_to(hca, tir, objects)?;
    Ok(Numbers {
        sqn,
        rqn,
        lkey,
        uar: hca.uar_index().get(),
    })
}

/// Returns the `ts_format` of a queue on a device with this capability. 0 is the free-running clock. 1 is the device's
/// default on devices with a choice of clocks or with real time only, and is reserved on other devices (DPDK
/// `mlx5_ts_format_conv`).
fn ts_format(capability: u32) -> u32 {
    u32::from(capability != 0)
}

/// Returns the inline mode for the send queue's context: the vport's mode if the device lets the vport decide,
/// otherwise 0 (Linux `en_main.c` `mlx5e_create_sq`).
fn inline_mode(hca: &mut Hca) -> Result<u32, MlxError> {
    let page = caps::query_page::<EthOffloadCaps>(hca, CapType::ETHERNET_OFFLOADS)?;
    if page.current.wqe_inline_mode() != INLINE_BY_VPORT {
        return Ok(0);
    }
    let vport = hca.exec(&QueryNicVportContextIn::new())?;
    Ok(vport.nic_vport_context().min_wqe_inline_mode())
}

/// Fills a queue's context with the description of its ring.
fn describe(wq: &mut Wq, pd: u32, memory: &RingMemory, entries: u32, stride: usize) {
    wq.set_wq_type(CYCLIC)
        .set_pd(pd)
        .set_dbr_addr(memory.record_address())
        .set_log_wq_stride(stride.ilog2())
        .set_log_wq_pg_sz(memory.log_page_size())
        .set_log_wq_sz(entries.ilog2());
}

/// Turns a refusal by the device into success, and returns any other error.
fn ignore_refusal(moved: Result<(), CmdError>) -> Result<(), CmdError> {
    moved.or_else(|error| error.status().map_or(Err(error), |_| Ok(())))
}

fn send_state(hca: &mut Hca, sqn: u32, from: u32, to: u32) -> Result<(), CmdError> {
    let mut input = ModifySqIn::new();
    input
        .set_sqn(sqn)
        .set_sq_state(from)
        .ctx_mut()
        .set_state(to);
    hca.exec(&input).map(|_| ())
}

fn recv_state(hca: &mut Hca, rqn: u32, from: u32, to: u32) -> Result<(), CmdError> {
    let mut input = ModifyRqIn::new();
    input
        .set_rqn(rqn)
        .set_rq_state(from)
        .ctx_mut()
        .set_state(to);
    hca.exec(&input).map(|_| ())
}

impl core::fmt::Debug for Ethernet {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Ethernet")
            .field("numbers", &self.numbers)
            .field("queue", &self.queue)
            .finish_non_exhaustive()
    }
}
