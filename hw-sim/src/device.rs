//! Handles of the simulator: [`Sim`] for tests and [`SimFunction`] for the driver.

use crate::alarm::{Alarm, Watch};
use crate::card::seat::Seat;
use crate::card::{Card, CardConfig, PortQos, VfSettings};
use crate::clock::SimClock;
use crate::config_space::CONFIG_BYTES;
use crate::fault::{Fault, Meetings};
use crate::init_segment::SEGMENT_BYTES;
use crate::iommu::Iommu;
use crate::link::LinkFaults;
use crate::nic::Nic;
use crate::pcap::{Capture, CaptureError};
use crate::profile::Profile;
use crate::record::recorder::{Recorder, WatchedMemory};
use crate::record::{Header, Record, RecordError, recorder};
use crate::report::FunctionReport;
use crate::subnet::Manager;
use crate::time::nanoseconds;
use crate::world::{Drive, Tap, World, lock, lock_to_go_on};
use driver::{
    Clock, Device, Instant, Interrupt, MemoryError, MessageMemory, Notices, SharedMemory,
};
use mlx_prm::Qpc;
use std::collections::VecDeque;
use std::io::{BufWriter, Write};
use std::ops::RangeInclusive;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

/// Configuration of a simulator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SimConfig {
    /// Seed of all random numbers.
    pub seed: u64,
    /// True if the event log is kept. Without the log, long runs use less memory.
    pub event_log: bool,
}

impl Default for SimConfig {
    fn default() -> Self {
        Self {
            seed: 0,
            event_log: true,
        }
    }
}

impl SimConfig {
    /// Returns a configuration with the given seed and an event log.
    pub const fn seeded(seed: u64) -> Self {
        Self {
            seed,
            event_log: true,
        }
    }
}

/// A link of a [`Sim`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkId(pub(crate) usize);

/// A simulator of cards and functions. Clones refer to the same simulator.
#[derive(Clone)]
pub struct Sim {
    seed: u64,
    pub(crate) world: Arc<Mutex<World>>,
}

impl Sim {
    /// Returns an empty simulator at time 0, driven inline.
    pub fn new(config: SimConfig) -> Self {
        Self {
            seed: config.seed,
            world: Arc::new(Mutex::new(World::new(config.seed, config.event_log))),
        }
    }

    /// Returns the seed.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// Adds a function, as after power-on. The function becomes the physical function of a new card.
    ///
    /// # Errors
    /// There is no memory for its BAR.
    pub fn try_add_function(&self, profile: Profile) -> Result<Arc<SimFunction>, MemoryError> {
        let card = self.try_add_card(&CardConfig::new(profile, 0))?;
        Ok(card.physical)
    }

    /// Adds a card, as after power-on. If the card has virtual functions, its physical function is named `NAME/pf` and
    /// the virtual functions `NAME/vf0` and so on.
    ///
    /// # Errors
    /// There is no memory for a BAR.
    ///
    /// # Panics
    /// Virtual functions are requested, but the profile describes none (`Profile::virtual_functions`).
    pub fn try_add_card(&self, config: &CardConfig) -> Result<SimCard, MemoryError> {
        let mut physical = config.physical.clone();
        if config.virtual_functions > 0 {
            physical.name += "/pf";
        }
        let virtual_functions: Vec<Profile> = (0..config.virtual_functions)
            .map(|index| {
                // PANIC: documented above.
                let function = config.physical.virtual_function(index);
                function.expect("known virtual functions")
            })
            .collect();
        // The BAR memory belongs to this process: drivers are in this process, or access the BAR by messages. The
        // memory of all BARs is allocated before any function is added.
        let bar = |profile: &Profile| SharedMemory::of_this_process(profile.bar_bytes);
        let of_physical = bar(&physical)?;
        let of_virtual: Vec<SharedMemory> = virtual_functions
            .iter()
            .map(bar)
            .collect::<Result<_, _>>()?;
        let card = {
            let mut world = lock(&self.world);
            world.input(|| Record::Card {
                physical: Box::new(config.physical.clone()),
                virtual_functions: config.virtual_functions,
                rules: config.rules,
            });
            let cards = &mut world.env.cards;
            cards.push(Card::new(&config.physical, config.rules));
            cards.len() - 1
        };
        Ok(SimCard {
            physical: self.add_to(card, physical, of_physical),
            virtual_functions: virtual_functions
                .into_iter()
                .zip(of_virtual)
                .map(|(profile, bar)| self.add_to(card, profile, bar))
                .collect(),
        })
    }

    /// Adds a card, as after power-on.
    ///
    /// # Panics
    /// There is no memory for a BAR; or as [`Sim::try_add_card`].
    pub fn add_card(&self, config: &CardConfig) -> SimCard {
        self.try_add_card(config).expect("memory for the BARs")
    }

    fn add_to(&self, card: usize, profile: Profile, bar: SharedMemory) -> Arc<SimFunction> {
        let name = profile.name.clone();
        let mut world = lock(&self.world);
        let index = world.nics.len();
        let vport = world.env.cards[card].add(index, &profile);
        if world.env.subnet_manager == Manager::Outside {
            world.env.cards[card].unmanage();
        }
        let seat = Seat { card, vport };
        let nic = Nic::new(index, seat, profile, bar.clone(), &mut world.env);
        world.nics.push(nic);
        Arc::new(SimFunction {
            index,
            name,
            bar,
            world: Arc::clone(&self.world),
        })
    }

    /// Adds a function, as after power-on.
    ///
    /// # Panics
    /// There is no memory for its BAR.
    pub fn add_function(&self, profile: Profile) -> Arc<SimFunction> {
        self.try_add_function(profile).expect("memory for a BAR")
    }

    /// Connects the ports of two functions' cards.
    pub fn connect(&self, a: &SimFunction, b: &SimFunction, faults: LinkFaults) -> LinkId {
        let mut world = lock(&self.world);
        let ends = (a.index, b.index);
        world.input(|| Record::Link { ends, faults });
        LinkId(world.connect(a.index, b.index, faults))
    }

    /// Connects a function's port to the outside of the simulator. Frames that the function sends wait for
    /// [`Sim::take_frames`]; the caller passes frames for the function to [`Sim::deliver`]. The carrier does not
    /// change. Only the faults of the outward direction, `a_to_b`, apply.
    pub fn connect_outside(&self, function: &SimFunction, faults: LinkFaults) -> LinkId {
        let mut world = lock(&self.world);
        let function = function.index;
        world.input(|| Record::LinkOutside { function, faults });
        LinkId(world.connect_outside(function, faults))
    }

    /// Takes the frames that a function's port has sent out of the simulator since the last call. This frees queue
    /// space, so that more frames may follow at once.
    pub fn take_frames(&self, function: &SimFunction) -> VecDeque<Vec<u8>> {
        let mut frames = VecDeque::new();
        self.exchange_frames(function, &mut frames);
        frames
    }

    /// Like [`Sim::take_frames`], but reuses the buffers of `frames` for other frames. Afterwards `frames` holds the
    /// frames that were sent out.
    pub fn exchange_frames(&self, function: &SimFunction, frames: &mut VecDeque<Vec<u8>>) {
        let mut world = lock_to_go_on(&self.world);
        let function = function.index;
        if world.has_outside(function) {
            world.input(|| Record::FramesTaken { function });
        } else {
            world.record_idle();
        }
        world.exchange_outside(function, frames);
        world.driven();
    }

    /// Changes the faults of a link.
    pub fn set_faults(&self, link: LinkId, faults: LinkFaults) {
        let mut world = lock(&self.world);
        let link = link.0;
        world.input(|| Record::Faults { link, faults });
        world.set_faults(link, faults);
    }

    /// Removes the faults of every link.
    pub fn heal(&self) {
        let mut world = lock(&self.world);
        world.input(|| Record::Heal);
        world.heal();
    }

    /// Returns the simulator's clock.
    pub fn clock(&self) -> Arc<dyn Clock> {
        Arc::new(SimClock::new(Arc::clone(&self.world)))
    }

    /// Sets the way in which register writes drive the simulation.
    pub fn set_drive(&self, drive: Drive) {
        let mut world = lock(&self.world);
        world.input(|| Record::Stepped(drive == Drive::Stepped));
        world.drive = drive;
        world.driven();
    }

    /// Sets whether register writes of the drivers are posted, as on a bus: a function sees a posted write only after
    /// the driver has continued. Host memory may then be newer than the write, which is not reported as a driver bug.
    pub fn set_posted_writes(&self, posted: bool) {
        let mut world = lock(&self.world);
        world.input(|| Record::Posted(posted));
        world.env.posted_writes = posted;
    }

    /// Runs one event. If no event is due now, first advances time to the next event. Returns false if there is none.
    pub fn step(&self) -> bool {
        let mut world = lock(&self.world);
        world.input(|| Record::Stepping);
        if world.step_now() {
            return true;
        }
        let Some(due) = world.next_due() else {
            return false;
        };
        world.set_time(due);
        world.step_now();
        true
    }

    /// Runs everything that is due now, without advancing time.
    pub fn run_until_idle(&self) {
        let mut world = lock_to_go_on(&self.world);
        world.input(|| Record::Idle);
        world.run_until_idle();
    }

    /// Advances time by `duration`, and runs everything that becomes due meanwhile.
    pub fn advance(&self, duration: Duration) {
        let mut world = lock_to_go_on(&self.world);
        let deadline = world.env.now.saturating_add(nanoseconds(duration));
        world.input(|| Record::Time { now: deadline });
        while world.wait_step(deadline) {}
    }

    /// Returns the time of the next event, or `None` if there is none. The time is not in the future if an event is due
    /// already. Callers that make the simulator's time follow another clock need it.
    pub fn next_due(&self) -> Option<Instant> {
        lock_to_go_on(&self.world).next_due().map(Instant)
    }

    /// Returns the time until the next event, at most `limit`. The alarm rings once if an event becomes due before that
    /// time. Callers that make the simulator's time follow the machine's clock sleep until then.
    pub fn watch(&self, alarm: &Arc<Alarm>, limit: Duration) -> Duration {
        let mut world = lock_to_go_on(&self.world);
        let now = world.env.now;
        let latest = now.saturating_add(nanoseconds(limit));
        let until = world.next_due().map_or(latest, |due| due.min(latest));
        world.watch = Some(Watch::new(Arc::clone(alarm), until));
        Duration::from_nanos(until.saturating_sub(now))
    }

    /// Returns the event log so far.
    pub fn event_log(&self) -> Vec<u8> {
        lock(&self.world).env.log.bytes().to_vec()
    }

    /// Captures as pcapng every frame that functions transmit from now on, and every frame delivered from outside.
    ///
    /// # Errors
    /// The writer refused the header.
    pub fn pcap(&self, writer: impl Write + Send + 'static) -> Result<(), CaptureError> {
        let writer: Box<dyn Write + Send> = Box::new(writer);
        self.tap(Tap::new(Capture::new(writer)?))
    }

    /// Like [`Sim::pcap`], but flushes each frame at once, for a live viewer or a process that may end at any moment.
    /// `now` is the present time in the file's time scale, whose origin the caller chooses.
    ///
    /// # Errors
    /// The writer refused the header.
    pub fn pcap_live(
        &self,
        writer: impl Write + Send + 'static,
        now: Duration,
    ) -> Result<(), CaptureError> {
        let now = u64::try_from(now.as_nanos()).unwrap_or(u64::MAX);
        let writer: Box<dyn Write + Send> = Box::new(BufWriter::new(writer));
        let mut tap = Tap::new(Capture::new(writer)?);
        tap.origin = now.saturating_sub(lock(&self.world).env.now);
        tap.live = true;
        tap.capture.flush()?;
        self.tap(tap)
    }

    /// Returns whether frames are captured. The capture ends when the writer fails for a frame.
    #[must_use]
    pub fn is_captured(&self) -> bool {
        lock(&self.world).is_tapped()
    }

    fn tap(&self, tap: Tap) -> Result<(), CaptureError> {
        let mut world = lock(&self.world);
        world.input(|| Record::Seal);
        world.tap(tap)
    }

    /// Records all inputs of the simulator, which must be empty. `about` is a description for the reader.
    ///
    /// # Errors
    /// [`RecordError`]: there are functions already, time has advanced, or the writer failed.
    pub fn record(
        &self,
        writer: impl Write + Send + 'static,
        about: &str,
    ) -> Result<(), RecordError> {
        let mut world = lock(&self.world);
        if !world.nics.is_empty() || world.env.now > 0 {
            return Err(RecordError::Begun);
        }
        let header = Header {
            seed: self.seed,
            simulator: env!("CARGO_PKG_VERSION").to_owned(),
            about: about.to_owned(),
        };
        let recorder = Recorder::new(Box::new(writer), &header)?;
        world.env.log.collect_lines();
        world.tape = Some(Arc::new(Mutex::new(recorder)));
        Ok(())
    }

    /// Flushes the buffer of the recording. Returns false if there is no recording, or if the recording has ended
    /// early, which was logged.
    pub fn flush_record(&self) -> bool {
        let mut world = lock(&self.world);
        let World { tape, env, .. } = &mut *world;
        tape.as_ref()
            .is_some_and(|tape| recorder::lock(tape).flush(&mut env.log))
    }

    /// Starts collecting lines of the log for [`Sim::take_lines`].
    pub(crate) fn collect_lines(&self) {
        lock(&self.world).env.log.collect_lines();
    }

    /// Takes the lines that were added to the log since the last call.
    pub(crate) fn take_lines(&self) -> String {
        lock(&self.world).env.log.take_lines()
    }

    /// Runs one event that is due by `until`. Returns whether there may be more such events.
    pub(crate) fn wait_step(&self, until: u64) -> bool {
        lock_to_go_on(&self.world).wait_step(until)
    }

    /// Returns the number of memory mappings of all functions.
    pub(crate) fn mappings(&self) -> usize {
        let world = lock(&self.world);
        world.nics.iter().map(|nic| nic.iommu.len()).sum()
    }

    /// Returns the number of frames that have arrived plus the number of register writes that wait. If there are
    /// switches, the frames on cables count as well.
    pub(crate) fn under_way(&self) -> usize {
        lock(&self.world).under_way()
    }

    /// Returns the number of bytes of all frames that are on cables, have arrived, or wait to be fetched from outside.
    pub(crate) fn frame_bytes(&self) -> usize {
        lock(&self.world).frame_bytes()
    }

    /// Flushes the buffer of the capture.
    ///
    /// # Errors
    /// The writer failed.
    pub fn flush_pcap(&self) -> Result<(), CaptureError> {
        lock(&self.world).flush_tap()
    }

    /// Returns the report about a function.
    pub fn report(&self, function: &SimFunction) -> FunctionReport {
        let world = lock(&self.world);
        world.nics[function.index].report(&world.env)
    }

    /// Makes every frame from now on carry an ICRC that is checked. This happens automatically as soon as frames leave
    /// or enter the simulator, or are captured, kept for [`Sim::overheard`], or damaged.
    pub fn seal_frames(&self) {
        let mut world = lock(&self.world);
        world.input(|| Record::Seal);
        world.env.seal();
    }

    /// Keeps the last `frames` frames that functions send from now on, for [`Sim::overheard`].
    pub fn overhear(&self, frames: usize) {
        let mut world = lock(&self.world);
        world.input(|| Record::Seal);
        world.overhear(frames);
    }

    /// Returns one of the kept frames, counted from the oldest.
    #[must_use]
    pub fn overheard(&self, at: usize) -> Option<Vec<u8>> {
        lock(&self.world).overheard(at).map(<[u8]>::to_vec)
    }

    /// Returns a queue pair's context, as QUERY_QP would.
    #[must_use]
    pub fn queue_pair(&self, function: &SimFunction, qpn: u32) -> Option<Qpc> {
        let world = lock(&self.world);
        let slot = world.nics[function.index].objects.qps.get(qpn)?;
        Some(slot.qp.as_ref()?.query())
    }

    /// Delivers a frame from outside of the simulator to a function's port, as if over a link.
    pub fn deliver(&self, function: &SimFunction, frame: &[u8]) {
        self.deliver_in_place(function, &mut frame.to_vec());
    }

    /// Like [`Sim::deliver`], but takes the frame's buffer and replaces it by another one with arbitrary contents.
    pub fn deliver_in_place(&self, function: &SimFunction, frame: &mut Vec<u8>) {
        let mut world = lock_to_go_on(&self.world);
        world.input(|| Record::Frame {
            function: function.index,
            bytes: frame.to_vec(),
        });
        world.arrive_from_outside(function.index, frame);
        world.driven();
    }

    /// Injects a fault into a function.
    ///
    /// # Panics
    /// [`Later`](Fault::Later) contains a fault that does not wait for a command.
    pub fn inject(&self, function: &SimFunction, fault: &Fault) {
        let mut world = lock(&self.world);
        world.input(|| Record::inject(function.index, fault));
        let World { env, nics, .. } = &mut *world;
        nics[function.index].inject(env, fault);
        world.driven();
    }

    /// Takes the counts of a function's commands since the last call, by opcode and by the fault that affected them.
    pub fn take_meetings(&self, function: &SimFunction) -> Meetings {
        lock(&self.world).nics[function.index]
            .faults
            .take_meetings()
    }

    /// Removes all faults of a function that wait for a command, a page, an interrupt, a doorbell or a completion.
    /// Stuck queue pairs continue.
    pub fn mend(&self, function: &SimFunction) {
        let mut world = lock(&self.world);
        let function = function.index;
        world.input(|| Record::Mend { function });
        let World { env, nics, .. } = &mut *world;
        nics[function].mend(env);
        world.driven();
    }
}

/// A card of a [`Sim`].
pub struct SimCard {
    physical: Arc<SimFunction>,
    virtual_functions: Vec<Arc<SimFunction>>,
}

impl SimCard {
    /// Returns the card's physical function.
    pub fn physical(&self) -> Arc<SimFunction> {
        Arc::clone(&self.physical)
    }

    /// Returns the number of the card's virtual functions.
    pub fn virtual_functions(&self) -> usize {
        self.virtual_functions.len()
    }

    /// Returns a virtual function, counted from 0.
    pub fn virtual_function(&self, index: usize) -> Option<Arc<SimFunction>> {
        self.virtual_functions.get(index).map(Arc::clone)
    }

    /// Applies the settings of `ip link set … vf INDEX` to a virtual function, for a card whose physical function's
    /// driver does not do it. Returns false if there is no such function.
    pub fn set_vf(&self, index: usize, settings: VfSettings) -> bool {
        let Some(function) = self.virtual_functions.get(index) else {
            return false;
        };
        function.administer(settings);
        true
    }

    /// Sets the port's priorities and congestion control, as tools on the physical function's host would.
    ///
    /// # Panics
    /// [`PortQos::check`] refuses the settings.
    pub fn set_qos(&self, qos: PortQos) {
        self.physical.set_qos(qos);
    }

    /// Returns the settings of a virtual function.
    pub fn vf(&self, index: usize) -> Option<VfSettings> {
        let function = self.virtual_functions.get(index)?;
        Some(function.with(|nic, env| env.vport(nic.seat).settings))
    }
}

/// A function of a [`Sim`], as a driver's device.
pub struct SimFunction {
    pub(crate) index: usize,
    name: String,
    bar: SharedMemory,
    world: Arc<Mutex<World>>,
}

impl SimFunction {
    /// Runs a call that is not recorded. In the inline drive, then runs the simulator until it is idle.
    fn with<R>(&self, call: impl FnOnce(&mut Nic, &mut crate::env::Env) -> R) -> R {
        let mut world = lock(&self.world);
        world.record_idle();
        self.call(world, call)
    }

    /// Runs a call that is recorded. In the inline drive, then runs the simulator until it is idle.
    fn recorded_call<R>(
        &self,
        record: impl FnOnce(usize) -> Record,
        call: impl FnOnce(&mut Nic, &mut crate::env::Env) -> R,
    ) -> R {
        let mut world = lock(&self.world);
        world.input(|| record(self.index));
        self.call(world, call)
    }

    fn call<R>(
        &self,
        mut world: MutexGuard<'_, World>,
        call: impl FnOnce(&mut Nic, &mut crate::env::Env) -> R,
    ) -> R {
        let World { env, nics, .. } = &mut *world;
        let result = call(&mut nics[self.index], env);
        world.driven();
        result
    }
}

impl SimFunction {
    /// Applies the administrator's settings of a virtual function.
    pub(crate) fn administer(&self, settings: VfSettings) {
        let record = |function| Record::Administered { function, settings };
        self.recorded_call(record, |nic, env| {
            env.vport_mut(nic.seat).set(settings);
            env.update_ports(nic.seat);
        });
    }

    /// Sets the port's priorities and congestion control, as the port's host would.
    pub(crate) fn set_qos(&self, qos: PortQos) {
        let checked = qos.check();
        assert!(checked.is_ok(), "settings of a port: {checked:?}");
        let record = |function| Record::Qos {
            function,
            qos: Box::new(qos.clone()),
        };
        self.recorded_call(record, |nic, env| {
            env.card_mut(nic.seat).uplink.set_qos(qos.clone());
        });
    }

    /// Maps memory. If the simulator is recorded, the device's accesses to the memory are recorded too.
    fn map(&self, iova: u64, bytes: usize, writable: bool, memory: Mapped) -> Result<(), String> {
        let function = self.index;
        let mut world = lock(&self.world);
        world.record_idle();
        let World { tape, nics, .. } = &mut *world;
        let iommu = &mut nics[function].iommu;
        let mapped = match (tape, memory) {
            (None, Mapped::Here(memory, at)) if writable => iommu.map(iova, memory, at, bytes),
            (None, Mapped::Here(memory, at)) => iommu.map_read_only(iova, memory, at, bytes),
            (None, Mapped::Asked(memory)) => iommu.map_asked(iova, memory, bytes, writable),
            (Some(tape), Mapped::Here(memory, at)) => {
                WatchedMemory::here(tape, function, iova, memory, at, bytes)
                    .and_then(|memory| iommu.map_asked(iova, memory, bytes, writable))
            }
            (Some(tape), Mapped::Asked(memory)) => {
                let memory = WatchedMemory::asked(tape, function, iova, memory);
                iommu.map_asked(iova, memory, bytes, writable)
            }
        };
        if mapped.is_ok() {
            world.input(|| Record::Map {
                function,
                iova,
                bytes: bytes as u64,
                writable,
            });
        }
        world.driven();
        mapped
    }
}

/// Memory that a driver maps.
enum Mapped {
    /// Memory of this process, starting at an offset.
    Here(SharedMemory, usize),
    /// Memory of another process, accessed by messages.
    Asked(Arc<dyn MessageMemory>),
}

impl Device for SimFunction {
    fn name(&self) -> &str {
        &self.name
    }

    fn config_read(&self, offset: u16, out: &mut [u8]) {
        debug_assert!(
            usize::from(offset) + out.len() <= CONFIG_BYTES,
            "checked by Function"
        );
        self.with(|nic, _| nic.config_read(offset, out));
    }

    fn config_write(&self, offset: u16, data: &[u8]) {
        let record = |function| Record::Configuration {
            function,
            offset,
            bytes: data.to_vec(),
        };
        self.recorded_call(record, |nic, env| nic.config_write(env, offset, data));
    }

    fn bar(&self, index: u8) -> Option<SharedMemory> {
        (index == 0).then(|| self.bar.clone())
    }

    fn bar_written(&self, index: u8, offset: u64, bytes: &[u8]) {
        if index == 0 && !bytes.is_empty() && bytes.len() <= 8 {
            let record = |function| Record::Register {
                function,
                offset,
                bytes: bytes.to_vec(),
            };
            let mut world = lock_to_go_on(&self.world);
            if offset < SEGMENT_BYTES {
                world.routes.clear();
            }
            world.input(|| record(self.index));
            self.call(world, |nic, env| nic.bar_written(env, offset, bytes));
        }
    }

    fn reset(&self) {
        let record = |function| Record::Reset { function };
        self.recorded_call(record, |nic, env| {
            if !nic.removed() {
                nic.reset_by_driver(env);
            }
        });
    }

    fn interrupt_count(&self) -> usize {
        self.with(|nic, _| usize::from(nic.profile.msix_vectors))
    }

    fn set_interrupts(&self, vectors: Vec<Interrupt>) {
        let many = vectors.len();
        let record = |function| Record::Interrupts {
            function,
            vectors: many,
        };
        self.recorded_call(record, |nic, env| nic.set_interrupts(env, vectors));
    }

    fn set_notices(&self, notices: Notices) {
        self.with(|nic, _| nic.set_notices(notices));
    }

    fn dma_map(
        &self,
        iova: u64,
        memory: SharedMemory,
        offset: usize,
        bytes: usize,
    ) -> Result<(), String> {
        self.map(iova, bytes, true, Mapped::Here(memory, offset))
    }

    fn dma_map_read_only(
        &self,
        iova: u64,
        memory: SharedMemory,
        offset: usize,
        bytes: usize,
    ) -> Result<(), String> {
        self.map(iova, bytes, false, Mapped::Here(memory, offset))
    }

    fn dma_map_by_message(
        &self,
        iova: u64,
        memory: Arc<dyn MessageMemory>,
        bytes: usize,
        writable: bool,
    ) -> Result<(), String> {
        self.map(iova, bytes, writable, Mapped::Asked(memory))
    }

    fn dma_unmap(&self, iova: u64, bytes: usize) -> Result<(), String> {
        let record = |function| Record::Unmap {
            function,
            iova,
            bytes: bytes as u64,
        };
        self.recorded_call(record, |nic, _| nic.iommu.unmap(iova, bytes))
    }

    fn iova_ranges(&self) -> Vec<RangeInclusive<u64>> {
        Iommu::ranges()
    }

    fn clock(&self) -> Arc<dyn Clock> {
        Arc::new(SimClock::new(Arc::clone(&self.world)))
    }
}
