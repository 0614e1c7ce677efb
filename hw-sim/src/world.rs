//! The simulated world: functions, links, virtual time, and the event loop.
//!
//! All pending work is in queues of the [`World`]. [`World::step_now`] takes one item from the first queue that is not
//! empty, in this order: events of cards, register writes in the order they were made, frames leaving ports, frames
//! arriving at a function, frames arriving over links, events of switches, queue pairs with work, timers. There is no
//! other activity. A run is therefore determined by the seed and by the actions of software, and its log can be
//! compared byte by byte.
//!
//! [`World::run_until_idle`] may process several items at once if nothing can come between them: if a packet is the
//! only pending work, it goes to the queue pair at the other end of a cable in one step, without being written as a
//! frame. The results and the log are the same.
//!
//! Virtual time advances only when a caller waits or requests it ([`World::wait_step`], `Sim::advance`, `Sim::step`),
//! and only to the next time at which something is due. In the inline drive, every register write runs the simulation
//! until it is idle, without advancing time, before the write returns. In the stepped drive, the write is only queued.
//!
//! One lock protects the whole world. The external calls under this lock signal and check eventfds, access memory of
//! other processes by messages, and write the capture and the recording.

use crate::alarm::Watch;
use crate::card::seat::{PHYSICAL, Place, Seat};
use crate::card::switch::Lost;
use crate::env::{Doorbell, Env, Timer};
use crate::link::{Link, LinkFaults, Port as LinkPort};
use crate::network::{End, Network, NotConnected, Sent, switch_mac};
use crate::nic::Nic;
use crate::pcap::{Capture, CaptureError};
use crate::profile::{PortType, Profile};
use crate::record::Record;
use crate::record::recorder::{self, Tape};
use crate::subnet::is_of_management_lane;
use crate::subnet::switch::SubnetSwitch;
use crate::switch::{Switch, SwitchConfig, SwitchError};
use crate::wire::{LrhPacket, seal};
use rand::RngCore;
use std::borrow::Cow;
use std::collections::{BTreeMap, VecDeque};
use std::io::Write;
use std::sync::{Mutex, MutexGuard, PoisonError};

mod fast_path;
mod routes;
mod subnet;

use routes::RouteCache;

/// Way in which register writes drive the simulation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Drive {
    /// A register write runs the simulation until it is idle, at the current time.
    #[default]
    Inline,
    /// A register write is only queued. The test steps the simulation explicitly.
    Stepped,
}

/// A link with its two ends.
struct Cable {
    link: Link,
    ends: [End; 2],
}

/// Returns which side of a cable `end` is on, and the other end.
fn side_of(cable: &Cable, end: End) -> (LinkPort, End) {
    if cable.ends[0] == end {
        (LinkPort::A, cable.ends[1])
    } else {
        (LinkPort::B, cable.ends[0])
    }
}

/// Maximum number of frames per card that wait to be fetched from outside. Further frames are dropped, as in a switch.
const OUTSIDE_FRAMES: usize = 4096;
/// Number of waiting frames of a card at which the card's queue pairs stop running. So earlier frames reach the wire
/// before new frames are created, and an acknowledgement does not queue behind megabytes of data.
const EGRESS_FRAMES: usize = 64;

/// Destination of a copy of a frame, and the copy's bytes if they differ from the frame.
type Outgoing = (Place, Option<Vec<u8>>);

/// Packet capture of the frames on the wire.
pub(crate) struct Tap {
    pub(crate) capture: Capture<Box<dyn Write + Send>>,
    /// Time stamp in the capture file of virtual time 0, in ns.
    pub(crate) origin: u64,
    /// True if each frame is flushed to the file at once.
    pub(crate) live: bool,
    /// Capture interfaces of the functions, by function index. A new function gets its interface at the next frame.
    interfaces: Vec<u32>,
}

impl Tap {
    pub(crate) const fn new(capture: Capture<Box<dyn Write + Send>>) -> Self {
        Self {
            capture,
            origin: 0,
            live: false,
            interfaces: Vec::new(),
        }
    }

    /// Adds an interface to the capture for each function that has none yet.
    fn describe(&mut self, nics: &[Nic]) -> Result<(), CaptureError> {
        for nic in nics.iter().skip(self.interfaces.len()) {
            let Profile {
                name, port_type, ..
            } = &nic.profile;
            let interface = self.capture.add_interface(name, *port_type)?;
            self.interfaces.push(interface);
        }
        Ok(())
    }

    fn frame(
        &mut self,
        nics: &[Nic],
        nic: usize,
        now: u64,
        frame: &[u8],
    ) -> Result<(), CaptureError> {
        self.describe(nics)?;
        let now = self.origin.saturating_add(now);
        self.capture.frame(self.interfaces[nic], now, frame)?;
        if self.live {
            self.capture.flush()?;
        }
        Ok(())
    }
}

/// Locks the world for any change. Clears the cached routes.
pub(crate) fn lock(world: &Mutex<World>) -> MutexGuard<'_, World> {
    let mut world = lock_to_go_on(world);
    world.routes.clear();
    world
}

/// Locks the world for reading, for running the simulation, or for writing a doorbell. Keeps the cached routes.
pub(crate) fn lock_to_go_on(world: &Mutex<World>) -> MutexGuard<'_, World> {
    // A panic under the lock is a bug of the simulator. The state is used nevertheless, because it is the best
    // available for a report.
    world.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The simulated world: functions, links and virtual time.
pub struct World {
    /// Virtual time, random generator, log and queues.
    pub env: Env,
    /// The functions.
    pub nics: Vec<Nic>,
    /// Way in which register writes drive the simulation.
    pub drive: Drive,
    cables: Vec<Cable>,
    /// Frames that left the simulator through an outside connection, by card. The caller has not fetched them yet.
    outside: BTreeMap<usize, VecDeque<Vec<u8>>>,
    tap: Option<Tap>,
    /// Ethernet switches, and the switch connections of cards.
    network: Option<Box<Network>>,
    /// InfiniBand switches.
    subnet: Vec<SubnetSwitch>,
    /// Reusable buffer for frames that `network` puts onto cables.
    sent: Vec<Sent>,
    /// Alarm that is notified of the time of the next event.
    pub(crate) watch: Option<Watch>,
    /// Recorder of inputs, if the simulation is recorded.
    pub(crate) tape: Option<Tape>,
    /// Last frames that functions have sent, and the maximum number to keep.
    heard: (VecDeque<Vec<u8>>, usize),
    /// Cached routes of frames. They are valid until something outside the data path happens.
    pub(crate) routes: RouteCache,
}

impl World {
    /// Creates an empty world at time 0.
    pub fn new(seed: u64, log: bool) -> Self {
        Self {
            env: Env::new(seed, log),
            nics: Vec::new(),
            drive: Drive::default(),
            cables: Vec::new(),
            outside: BTreeMap::new(),
            tap: None,
            network: None,
            subnet: Vec::new(),
            sent: Vec::new(),
            watch: None,
            tape: None,
            heard: (VecDeque::new(), 0),
            routes: RouteCache::default(),
        }
    }

    /// Records an input from outside, if the simulation is recorded.
    pub(crate) fn input(&mut self, record: impl FnOnce() -> Record) {
        if let Some(tape) = &self.tape {
            recorder::lock(tape).input(&mut self.env.log, record());
        }
    }

    /// Records that a caller runs the simulation until it is idle, without any other input. Records nothing in the
    /// stepped drive, or if the simulation is idle already.
    pub(crate) fn record_idle(&mut self) {
        if self.tape.is_some() && self.drive == Drive::Inline && !self.is_idle() {
            self.input(|| Record::Idle);
        }
    }

    fn is_idle(&self) -> bool {
        let env = &self.env;
        env.card_events.is_empty()
            && env.doorbells.is_empty()
            && env.frames.is_empty()
            && env.arrivals.is_empty()
            && env.runnable.is_empty()
            && self.next_due().is_none_or(|due| due > env.now)
    }

    /// Starts to keep the frames that functions send. The last `frames` frames are kept.
    pub fn overhear(&mut self, frames: usize) {
        self.env.seal();
        self.heard = (VecDeque::new(), frames);
    }

    /// Returns one of the kept frames, counted from the oldest.
    pub fn overheard(&self, at: usize) -> Option<&[u8]> {
        self.heard.0.get(at).map(Vec::as_slice)
    }

    /// Connects the cards of two functions by a link. Returns the number of the link.
    pub fn connect(&mut self, a: usize, b: usize, faults: LinkFaults) -> usize {
        let seed = self.env.rng.next_u64();
        if faults.corrupts() {
            self.env.seal();
        }
        let ends = [a, b].map(|nic| self.nics[nic].seat);
        self.cables.push(Cable {
            link: Link::new(seed, faults),
            ends: ends.map(|seat| End::Card(seat.card)),
        });
        for seat in ends {
            self.env.set_light(seat, true);
        }
        self.cables.len() - 1
    }

    /// Connects the port of a function's card to the outside. The carrier stays unchanged, because it is unknown
    /// whether there is a peer. Returns the number of the link.
    pub fn connect_outside(&mut self, nic: usize, faults: LinkFaults) -> usize {
        let seed = self.env.rng.next_u64();
        let card = self.nics[nic].seat.card;
        self.env.seal();
        self.cables.push(Cable {
            link: Link::new(seed, faults),
            ends: [End::Card(card), End::Outside],
        });
        self.outside.insert(card, VecDeque::new());
        self.cables.len() - 1
    }

    /// Returns whether frames of a function's card have left to the outside since they were last fetched.
    pub fn has_outside(&self, nic: usize) -> bool {
        let left = self.outside.get(&self.nics[nic].seat.card);
        left.is_some_and(|left| !left.is_empty())
    }

    /// Adds an Ethernet switch. Returns its number.
    ///
    /// # Errors
    /// [`SwitchError`] if the configuration is invalid.
    pub fn add_switch(&mut self, config: SwitchConfig) -> Result<usize, SwitchError> {
        config.check()?;
        self.input(|| Record::Switch(Box::new(config.clone())));
        let seed = self.env.rng.next_u64();
        let network = self.network.get_or_insert_default();
        let number = network.switches.len();
        let switch = Switch::new(config, switch_mac(number), seed)?;
        network.switches.push(switch);
        Ok(number)
    }

    /// Returns a switch by its number.
    pub fn switch_mut(&mut self, number: usize) -> Option<&mut Switch> {
        self.network.as_mut()?.switches.get_mut(number)
    }

    /// Connects two ends by a link. At least one of them is a switch port. Returns the number of the link.
    ///
    /// # Errors
    /// [`NotConnected`] if an end cannot take the cable, or if the cable would close a loop in which a frame may be
    /// flooded.
    pub fn connect_switch(
        &mut self,
        ends: [End; 2],
        faults: LinkFaults,
        record: impl FnOnce() -> Record,
    ) -> Result<usize, NotConnected> {
        let network = self.network.as_ref().ok_or(NotConnected::Port)?;
        let taken = |end: &End| match *end {
            End::Switch { switch, port } => network.is_taken(switch, port),
            End::Card(card) => {
                let laid = |cable: &Cable| cable.ends.contains(&End::Card(card));
                card >= self.env.cards.len() || self.cables.iter().any(laid)
            }
            End::Subnet { .. } | End::Outside => true,
        };
        let is_on_switch = |end: &End| matches!(end, End::Switch { .. });
        if ends[0] == ends[1] || ends.iter().any(taken) || !ends.iter().any(is_on_switch) {
            return Err(NotConnected::Port);
        }
        if network.would_flood(ends) {
            return Err(NotConnected::Circle);
        }
        self.input(record);
        if let Some(network) = &mut self.network {
            network.laid(self.cables.len(), ends);
        }
        let seed = self.env.rng.next_u64();
        if faults.corrupts() {
            self.env.seal();
        }
        self.cables.push(Cable {
            link: Link::new(seed, faults),
            ends,
        });
        for end in ends {
            if let End::Card(card) = end {
                let rate = self
                    .network
                    .as_ref()
                    .and_then(|network| network.rate_bps(card));
                let vport = PHYSICAL;
                let seat = Seat { card, vport };
                if let Some(rate) = rate {
                    self.env.card_mut(seat).uplink.rate_bps = rate;
                }
                self.env.set_light(seat, true);
            }
        }
        Ok(self.cables.len() - 1)
    }

    /// Returns the number of frames that have arrived plus the number of register writes that wait. If there are
    /// switches, which multiply frames, the frames on cables count as well.
    pub fn under_way(&self) -> usize {
        let cables = self.cables.iter().filter(|_| self.network.is_some());
        let on_cables: usize = cables.map(|cable| cable.link.under_way()).sum();
        on_cables + self.env.arrivals.len() + self.env.doorbells.len()
    }

    /// Returns the number of bytes of all frames that are on cables, have arrived, or wait to be fetched from outside.
    pub fn frame_bytes(&self) -> usize {
        let cables = self.cables.iter().map(|cable| cable.link.bytes());
        let arrivals = self.env.arrivals.iter().map(|(_, frame, _)| frame.len());
        let outside = self.outside.values().flatten().map(Vec::len);
        cables.chain(arrivals).chain(outside).sum()
    }

    /// Puts frames whose transmission begins onto their cables.
    fn put_onto_cables(&mut self, mut sent: Vec<Sent>) {
        for (cable, side, out, frame) in sent.drain(..) {
            self.cables[cable].link.send(out, side, frame);
        }
        self.sent = sent;
    }

    /// Runs everything that is due at switches and at cards' ports on switches. Returns false if nothing was due.
    fn run_network(&mut self) -> bool {
        let now = self.env.now;
        let Some(network) = &mut self.network else {
            return false;
        };
        if network.next_due().is_none_or(|due| due > now) {
            return false;
        }
        let mut sent = std::mem::take(&mut self.sent);
        network.run(now, &mut sent);
        self.put_onto_cables(sent);
        true
    }

    /// Moves the frames of a function's card that have left to the outside into `frames`. The buffers that were in
    /// `frames` are reused.
    pub fn exchange_outside(&mut self, nic: usize, frames: &mut VecDeque<Vec<u8>>) {
        frames.drain(..).for_each(|frame| self.env.recycle(frame));
        let card = self.nics[nic].seat.card;
        if let Some(left) = self.outside.get_mut(&card) {
            std::mem::swap(left, frames);
        }
    }

    /// Changes the faults of a link.
    pub fn set_faults(&mut self, number: usize, faults: LinkFaults) {
        if faults.corrupts() {
            self.env.seal();
            self.seal_links();
        }
        if let Some(cable) = self.cables.get_mut(number) {
            cable.link.set_faults(faults);
        }
    }

    /// Adds the ICRC to frames that were already on links when something first needed complete frames.
    fn seal_links(&mut self) {
        if self.env.seal_links() {
            for cable in &mut self.cables {
                cable.link.in_flight(seal);
            }
        }
    }

    /// Removes the faults of every link.
    pub fn heal(&mut self) {
        for cable in &mut self.cables {
            cable.link.heal();
        }
    }

    /// Captures every frame that functions transmit from now on, and every frame delivered from outside.
    ///
    /// # Errors
    /// [`CaptureError`] if the writer fails for the interface descriptions. There is no capture then.
    pub fn tap(&mut self, mut tap: Tap) -> Result<(), CaptureError> {
        self.env.seal();
        tap.describe(&self.nics)?;
        self.tap = Some(tap);
        Ok(())
    }

    /// Flushes the capture's buffer.
    ///
    /// # Errors
    /// [`CaptureError`] if the writer fails.
    pub fn flush_tap(&mut self) -> Result<(), CaptureError> {
        self.tap.as_mut().map_or(Ok(()), |tap| tap.capture.flush())
    }

    /// Processes one item that is due now. Returns false if there is none.
    pub fn step_now(&mut self) -> bool {
        self.step(false)
    }

    /// Processes one item that is due now. If `in_one_go` is set, may process several items between which nothing can
    /// come.
    fn step(&mut self, in_one_go: bool) -> bool {
        if let Some((nic, card_event)) = self.env.card_events.pop_front() {
            self.routes.clear();
            self.pass_port_event(nic, card_event);
            self.nics[nic].handle_card_event(&mut self.env, card_event);
        } else if let Some((nic, doorbell)) = self.env.doorbells.pop_front() {
            match doorbell {
                Doorbell::Command(slots) => {
                    self.routes.clear();
                    self.nics[nic].command_doorbell(&mut self.env, slots);
                }
                Doorbell::Uar {
                    offset,
                    value,
                    length,
                } => {
                    if self.nics[nic].alive() {
                        self.nics[nic].uar_written(&mut self.env, offset, value, length);
                    }
                }
            }
        } else if in_one_go && self.env.frames.len() == 1 && self.pass_directly() {
            // `pass_directly` has delivered the frame.
        } else if let Some((nic, frame)) = self.env.frames.pop_front() {
            self.transmit(nic, frame.into_bytes());
        } else if let Some((nic, frame, origin)) = self.env.arrivals.pop_front() {
            self.nics[nic].frame_received(&mut self.env, &frame, origin);
            self.env.recycle(frame);
        } else if self.deliver() {
            // Arrived frames are handled before queue pairs run, because a port does not wait for queue pairs.
            // Otherwise a responder, which answers without delay in virtual time, would never have many unanswered
            // requests.
        } else if self.network.is_some() && self.run_network() {
            // Switches are also handled before queue pairs continue, for the same reason.
        } else if let Some((nic, qpn)) = self.next_runnable() {
            self.run_qp(nic, qpn);
        } else {
            return self.timer();
        }
        true
    }

    /// Returns the next queue pair to run. Skips queue pairs whose card already has too many frames to send.
    fn next_runnable(&mut self) -> Option<(usize, u32)> {
        let may = |&(nic, qpn): &(usize, u32)| {
            let card = self.nics[nic].seat.card;
            let left = self.outside.get(&card);
            left.is_none_or(|left| left.len() < EGRESS_FRAMES)
                && self.network.as_ref().is_none_or(|network| {
                    let classes = || self.env.cards[card].uplink.qos.classes();
                    let priority = self.nics[nic].priority_of(qpn, classes);
                    !network.is_full(card, priority)
                })
        };
        let at = self.env.runnable.iter().position(may)?;
        self.env.runnable.remove(at)
    }

    fn run_qp(&mut self, nic: usize, qpn: u32) {
        let function = &mut self.nics[nic];
        if function.objects.eth.sqs.contains(qpn) {
            if function.alive() {
                function.run_sq(&mut self.env, qpn);
            }
            return;
        }
        if let Some(slot) = function.objects.qps.get_mut(qpn) {
            slot.queued = false;
        }
        if function.alive() && !function.faults.is_stuck() {
            function.with_qp(&mut self.env, qpn, |qp, view| qp.run(view));
        }
    }

    /// Forwards a frame that a function sends to its destinations on the card's switch.
    fn transmit(&mut self, nic: usize, frame: Vec<u8>) {
        // Seal the frames that are already on links before this frame is sent. This frame may come from software, and
        // its own ICRC must not be replaced.
        self.seal_links();
        let seat = self.nics[nic].seat;
        if !self.env.is_up(seat) {
            self.env.vport_mut(seat).lost_while_down[1] += 1;
            self.nics[nic].count_drop(&mut self.env, "port down");
            return;
        }
        self.capture(nic, &frame);
        let (heard, kept) = &mut self.heard;
        if *kept > 0 {
            if heard.len() == *kept {
                heard.pop_front();
            }
            heard.push_back(frame.clone());
        }
        if self.nics[nic].profile.port_type == PortType::InfiniBand {
            self.transmit_to_subnet(nic, frame);
            return;
        }
        let from = Place::Vport(seat.vport);
        if let Some(to) = self.passes(seat, from, &frame) {
            let port = self.env.port_mut(seat);
            if to == from {
                port.looped.count(frame.len());
            } else {
                port.transmitted.count(frame.len());
            }
            self.put(nic, to, frame);
            return;
        }
        let copies = match self.forward(seat, from, &frame) {
            Ok(copies) => copies,
            Err(reason) => {
                self.nics[nic].count_drop(&mut self.env, reason);
                return;
            }
        };
        let port = self.env.port_mut(seat);
        if copies.iter().any(|&(to, _)| to == from) {
            port.looped.count(frame.len());
        }
        if copies.iter().any(|&(to, _)| to != from) {
            port.transmitted.count(frame.len());
        }
        for (to, copy) in into_copies(frame, copies) {
            self.put(nic, to, copy);
        }
    }

    /// Delivers a frame that a function sent to one destination on the card's switch.
    fn put(&mut self, nic: usize, to: Place, frame: Vec<u8>) {
        let seat = self.nics[nic].seat;
        match to {
            Place::Wire => self.onto_cable(nic, frame),
            to if to == Place::Vport(seat.vport) => self.env.loop_back(nic, frame),
            Place::Vport(vport) => {
                let card = seat.card;
                self.enter(Seat { card, vport }, frame);
            }
        }
    }

    /// Returns the destination of a frame that a card's switch forwards unchanged to a single destination, if the fast
    /// path of the card finds it. Otherwise returns `None`, and `forward` decides.
    fn passes(&self, seat: Seat, from: Place, frame: &[u8]) -> Option<Place> {
        let card = self.env.card(seat);
        let to = card.passes(from, frame)?;
        debug_assert!(
            matches!(
                card.forward(from, frame, &mut Vec::new()).as_deref(),
                Ok([(place, Cow::Borrowed(_))]) if *place == to
            ),
            "{from:?} to {to:?}"
        );
        Some(to)
    }

    /// Returns the destinations of a frame on a card's switch, with the frame's bytes where the switch changes them. A
    /// vport that is down counts the frames that it would have received (Linux `esw/legacy.c`
    /// `mlx5_esw_query_vport_drop_stats`).
    fn forward(&mut self, seat: Seat, from: Place, frame: &[u8]) -> Result<Vec<Outgoing>, Lost> {
        let mut down = Vec::new();
        let copies = self.env.card(seat).forward(from, frame, &mut down);
        let copies = copies.map(|copies| {
            let changed = |(to, copy): (Place, Cow<'_, [u8]>)| match copy {
                Cow::Borrowed(_) => (to, None),
                Cow::Owned(copy) => (to, Some(copy)),
            };
            copies.into_iter().map(changed).collect()
        });
        for vport in down {
            let card = seat.card;
            self.env.vport_mut(Seat { card, vport }).lost_while_down[0] += 1;
        }
        copies
    }

    /// Sends an InfiniBand packet. An InfiniBand card has no switch. A packet to one of the port's own LIDs loops back.
    fn transmit_to_subnet(&mut self, nic: usize, frame: Vec<u8>) {
        if !is_of_management_lane(&frame) && self.nics[nic].is_managed_only(&self.env) {
            self.nics[nic].count_drop(&mut self.env, "port not active");
            return;
        }
        let port = self.env.port_mut(self.nics[nic].seat);
        if LrhPacket::new_checked(&frame).is_ok_and(|lrh| port.owns_lid(lrh.dlid())) {
            port.looped.count(frame.len());
            self.env.loop_back(nic, frame);
            return;
        }
        port.transmitted.count(frame.len());
        self.onto_cable(nic, frame);
    }

    /// Puts a frame of a function onto its card's cable.
    fn onto_cable(&mut self, nic: usize, frame: Vec<u8>) {
        let (now, card) = (self.env.now, self.nics[nic].seat.card);
        let end = End::Card(card);
        let cable = self
            .cables
            .iter_mut()
            .find(|cable| cable.ends.contains(&end));
        let Some(cable) = cable else {
            self.nics[nic].count_drop(&mut self.env, "no link");
            return;
        };
        let (from, other) = side_of(cable, end);
        match (&mut self.network, other) {
            (Some(network), End::Switch { .. }) => {
                let mut sent = std::mem::take(&mut self.sent);
                network.enqueue(now, card, &self.env.cards[card], frame, &mut sent);
                self.put_onto_cables(sent);
            }
            _ => cable.link.send(now, from, frame),
        }
    }

    /// Delivers a frame from the card's switch to a function.
    fn enter(&mut self, seat: Seat, frame: Vec<u8>) {
        let vport = self.env.vport_mut(seat);
        vport.port.received.count(frame.len());
        let function = vport.function;
        self.env.arrives(function, frame);
    }

    /// Delivers the frame on the links that arrived first; at equal times, the frame of the first link. Returns false
    /// if no frame has arrived.
    fn deliver(&mut self) -> bool {
        self.seal_links();
        let now = self.env.now;
        let due = self
            .cables
            .iter_mut()
            .filter(|cable| cable.link.next_due().is_some_and(|due| due <= now))
            .min_by_key(|cable| cable.link.next_due());
        let Some(cable) = due else {
            return false;
        };
        let Some(delivery) = cable.link.pop_due(now) else {
            return false;
        };
        let to = match delivery.to {
            LinkPort::A => cable.ends[0],
            LinkPort::B => cable.ends[1],
        };
        match to {
            End::Outside => {
                if let End::Card(card) = cable.ends[0]
                    && let Some(left) = self.outside.get_mut(&card)
                    && left.len() < OUTSIDE_FRAMES
                {
                    left.push_back(delivery.frame);
                }
            }
            End::Switch { switch, port } => {
                if let Some(network) = &mut self.network {
                    let mut sent = std::mem::take(&mut self.sent);
                    network.reach(now, switch, port, delivery.frame, &mut sent);
                    self.put_onto_cables(sent);
                }
            }
            End::Subnet { switch, port } => self.subnet_receives(switch, port, delivery.frame),
            End::Card(card) => {
                if !self.is_control(card, &delivery.frame)
                    && let Some(seat) = self.physical(card)
                {
                    self.arrive(seat, delivery.frame);
                }
            }
        }
        true
    }

    /// Delivers a frame from outside to the port of a function's card. Leaves another buffer in `frame`.
    pub fn arrive_from_outside(&mut self, nic: usize, frame: &mut Vec<u8>) {
        self.env.seal();
        self.capture(nic, frame);
        // The caller gets a buffer of the same length for its next frame.
        let room = self.env.buffer(frame.len());
        let frame = std::mem::replace(frame, room);
        self.arrive(self.nics[nic].seat, frame);
    }

    /// Handles a control frame of a switch, which the card's port consumes. Returns false for any other frame.
    fn is_control(&mut self, card: usize, frame: &[u8]) -> bool {
        let Some(network) = &mut self.network else {
            return false;
        };
        let mut sent = std::mem::take(&mut self.sent);
        let is = network.control(
            self.env.now,
            card,
            &mut self.env.cards[card],
            frame,
            &mut sent,
        );
        self.put_onto_cables(sent);
        is
    }

    /// Returns the seat of a card's physical function.
    fn physical(&self, card: usize) -> Option<Seat> {
        let seat = Seat {
            card,
            vport: PHYSICAL,
        };
        (card < self.env.cards.len()).then_some(seat)
    }

    /// Returns whether frames are captured.
    pub fn is_tapped(&self) -> bool {
        self.tap.is_some()
    }

    fn capture(&mut self, nic: usize, frame: &[u8]) {
        if let Some(tap) = &mut self.tap
            && let Err(error) = tap.frame(&self.nics, nic, self.env.now, frame)
        {
            tracing::error!("{error}");
            self.tap = None;
        }
    }

    /// Handles a frame that arrives at a card's port. The physical function counts frames that are lost at the port.
    fn arrive(&mut self, seat: Seat, frame: Vec<u8>) {
        let Some(physical) = self.physical(seat.card) else {
            return;
        };
        let function = self.env.vport(physical).function;
        if self.nics[function].profile.port_type == PortType::Ethernet
            && let Some(Place::Vport(vport)) = self.passes(seat, Place::Wire, &frame)
        {
            let card = seat.card;
            self.enter(Seat { card, vport }, frame);
            return;
        }
        let forwarded = if self.nics[function].profile.port_type == PortType::Ethernet {
            self.forward(seat, Place::Wire, &frame)
        } else if self.env.is_up(physical) {
            Ok(vec![(Place::Vport(physical.vport), None)])
        } else {
            Err("port down")
        };
        let copies = match forwarded {
            Ok(copies) => copies,
            Err(reason) => {
                self.nics[function].count_drop(&mut self.env, reason);
                return;
            }
        };
        for (to, copy) in into_copies(frame, copies) {
            if let Place::Vport(vport) = to {
                let card = seat.card;
                self.enter(Seat { card, vport }, copy);
            }
        }
    }

    /// Runs the earliest timer that has expired. Returns false if none has.
    fn timer(&mut self) -> bool {
        let now = self.env.now;
        if let Some((&key, &(nic, timer))) = self.env.timers.first_key_value()
            && key.0 <= now
        {
            self.env.timers.remove(&key);
            self.routes.clear();
            match timer {
                Timer::Booted => self.nics[nic].tick(now),
                Timer::Command(slot) => self.nics[nic].execute_command(&mut self.env, slot),
                Timer::Trained => self.env.update_ports(self.nics[nic].seat),
                Timer::Retrain => self.retrain(nic),
            }
            return true;
        }
        if let Some(&(due, nic, qpn)) = self.env.qp_timers.first()
            && due <= now
        {
            self.env.qp_timers.remove(&(due, nic, qpn));
            let function = &mut self.nics[nic];
            if let Some(slot) = function.objects.qps.get_mut(qpn) {
                slot.timer = None;
            }
            if function.alive() {
                function.with_qp(&mut self.env, qpn, |qp, view| qp.timer(view));
            }
            return true;
        }
        false
    }

    /// Processes everything that is due now.
    pub fn run_until_idle(&mut self) {
        while self.step(true) {}
    }

    /// In the inline drive, processes everything that is due after an input. Notifies the alarm of the next event.
    pub fn driven(&mut self) {
        if self.drive == Drive::Inline {
            self.run_until_idle();
        }
        if self.watch.is_some()
            && let Some(due) = self.next_due()
            && let Some(watch) = &mut self.watch
        {
            watch.due(due);
        }
    }

    /// Returns the time of the next event.
    pub fn next_due(&self) -> Option<u64> {
        let timer = self.env.timers.first_key_value().map(|(key, _)| key.0);
        let qp_timer = self.env.qp_timers.first().map(|&(due, ..)| due);
        let frame = self
            .cables
            .iter()
            .filter_map(|cable| cable.link.next_due())
            .min();
        let network = self.network.as_ref().and_then(|network| network.next_due());
        [timer, qp_timer, frame, network]
            .into_iter()
            .flatten()
            .min()
    }

    /// Advances time to `to`. A time in the past changes nothing.
    pub fn set_time(&mut self, to: u64) {
        if to > self.env.now {
            self.env.now = to;
            for nic in &mut self.nics {
                nic.tick(to);
            }
        }
    }

    /// Processes one item. If nothing is due now, advances time to the next event first, but not beyond `deadline`.
    /// Returns false if the deadline is reached and nothing is due any more.
    pub fn wait_step(&mut self, deadline: u64) -> bool {
        if self.step_now() {
            return true;
        }
        match self.next_due() {
            Some(due) if due <= deadline => {
                self.set_time(due);
                self.step_now() || due < deadline
            }
            Some(_) | None => {
                self.set_time(deadline);
                false
            }
        }
    }
}

/// Returns the copies of a frame. The last unchanged copy is the frame itself, which saves one copy.
fn into_copies(frame: Vec<u8>, copies: Vec<Outgoing>) -> impl Iterator<Item = (Place, Vec<u8>)> {
    let last = copies.iter().rposition(|(_, changed)| changed.is_none());
    let mut frame = Some(frame);
    let deal = move |(at, (to, changed)): (usize, Outgoing)| {
        let unchanged = || {
            if Some(at) == last {
                frame.take()
            } else {
                frame.clone()
            }
        };
        (to, changed.or_else(unchanged).unwrap_or_default())
    };
    copies.into_iter().enumerate().map(deal)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::card::{Card, CardRules};
    use driver::SharedMemory;

    #[test]
    fn queue_pairs_of_a_function_wait_while_too_many_of_its_frames_do() {
        let (mut world, frame) = (World::new(1, false), vec![0; 60]);
        let profile = Profile::default();
        for index in [0, 1] {
            let mut card = Card::new(&profile, CardRules::default());
            let vport = card.add(index, &profile);
            world.env.cards.push(card);
            let bar = SharedMemory::anonymous(profile.bar_bytes).expect("memory");
            let seat = Seat { card: index, vport };
            let nic = Nic::new(index, seat, profile.clone(), bar, &mut world.env);
            world.nics.push(nic);
        }
        let (busy, other) = ((0, 0x58), (1, 0x58));
        let waiting = |frames| std::iter::repeat_n(frame.clone(), frames).collect();
        world.outside.insert(0, waiting(EGRESS_FRAMES));
        world.env.runnable.extend([busy, other]);
        assert_eq!(world.next_runnable(), Some(other), "those of others go on");
        assert_eq!(world.next_runnable(), None);
        let mut left = VecDeque::new();
        world.exchange_outside(0, &mut left);
        assert_eq!(left.len(), EGRESS_FRAMES);
        assert_eq!(world.next_runnable(), Some(busy), "now there is room");
        world.outside.insert(0, waiting(EGRESS_FRAMES - 1));
        world.env.runnable.push_back(busy);
        assert_eq!(world.next_runnable(), Some(busy), "for one more there is");
    }
}
