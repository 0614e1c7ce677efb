//! A controller: reset and enable, admin commands, I/O queues, and its end.
//!
//! ```text
//!   open:  EN=0 --RDY=0--> admin queues --EN=1--> --RDY=1--> Identify, number of queues --> ready
//!   stop:  SHN --SHST=10b--> EN=0 --RDY=0--> function level reset --> stopped    (one that has ended is only reset)
//! ```
//!
//! A wait for CSTS.RDY has the limit that the controller names, and an admin command that of [`Config`]. A controller
//! whose registers read as ones is gone; CSTS.CFS is a fatal error. Both end the controller: nothing is submitted any
//! more, and [`Controller::stop`] returns the commands that have no answer. Their data belongs to the controller until
//! then.

use core::time::Duration;
use std::sync::Arc;

use driver::pci::Kind;
use driver::{
    Bar, Block, Clock, DmaArena, DmaBuffer, Function, FunctionError, Instant, Interrupt, Iova,
    Le32, Register,
};
use nvme_types::command::admin;
use nvme_types::identify::{self, cns};
use nvme_types::{Sqe, Status, feature};
use zerocopy::FromBytes;

use crate::error::{Cause, NvmeError};
use crate::health::Health;
use crate::prp::{PAGE, Piece};
use crate::queue::{Ended, QueuePair, Rings, SubmitError};
use crate::quirks::{Quirks, REFUSED};
use crate::registers::{self, Cap, Doorbell, GONE, Properties, cc, csts};

/// Number of entries of the admin queues.
const ADMIN_ENTRIES: u32 = 32;
/// Cookies of the admin queue: that of a command, and that of the event request.
const COMMAND: u64 = 0;
pub(crate) const EVENT: u64 = 1;
/// Interval at which CSTS is read while it has to change.
const POLL: Duration = Duration::from_millis(1);
/// Longest transfer of a command that this driver makes: its list of pages fits into a page.
const MAX_TRANSFER: u64 = 1 << 20;
/// Upper bound of the time until a controller is ready. CAP.TO says at most 128 s, and CRTO up to nine hours.
const LONGEST_READY: Duration = Duration::from_secs(600);
/// Bounds of the time limit of a shutdown, as with Linux (`nvme_init_identify`): RTD3E may be 0, or more than an hour.
const SHUTDOWN: [Duration; 2] = [Duration::from_secs(5), Duration::from_secs(60)];
/// Maximum number of namespaces that are listed.
const MOST_NAMESPACES: usize = 1024;

/// Settings of a controller.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Config {
    /// Number of I/O queues that are asked for.
    pub queues: u16,
    /// Number of entries of an I/O queue, a power of two. The controller's limit is the upper bound.
    pub entries: u32,
    /// True if completion queues signal interrupts, false if they are only polled.
    pub has_interrupts: bool,
    /// Time limit of an admin command.
    pub admin_limit: Duration,
    /// Upper bound of the time limit of a shutdown, which follows from what the controller says.
    pub shutdown_limit: Duration,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            queues: 1,
            entries: 256,
            has_interrupts: true,
            admin_limit: Duration::from_secs(60),
            shutdown_limit: SHUTDOWN[1],
        }
    }
}

/// Names and limits of a controller.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Identity {
    /// SN.
    pub serial: String,
    /// MN.
    pub model: String,
    /// FR.
    pub firmware: String,
    /// Longest transfer of a command in bytes.
    pub max_transfer: u64,
    /// True if there is a volatile write cache, so that a write is durable only with FUA or after a Flush.
    pub has_write_cache: bool,
    /// ONCS: optional commands. Bit 0 Compare, 2 Dataset Management, 3 Write Zeroes, 7 Verify, 8 Copy.
    pub commands: u16,
    /// NN: the highest namespace number.
    pub namespaces: u32,
}

impl Identity {
    /// Returns whether there is the command Dataset Management.
    #[must_use]
    pub const fn has_dataset_management(&self) -> bool {
        self.commands & 1 << 2 != 0
    }

    /// Returns whether there is the command Write Zeroes.
    #[must_use]
    pub const fn has_write_zeroes(&self) -> bool {
        self.commands & 1 << 3 != 0
    }
}

/// A namespace.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Namespace {
    /// Number.
    pub nsid: u32,
    /// Number of blocks.
    pub blocks: u64,
    /// Bytes of a block.
    pub block_bytes: u32,
    /// True if it cannot be written.
    pub is_write_protected: bool,
}

/// A controller that was not stopped.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct NotStopped {
    /// The controller.
    pub controller: Controller,
    /// Its queues.
    pub queues: Vec<QueuePair>,
    /// The reason.
    #[source]
    pub error: FunctionError,
}

/// A controller that is ready. If it is dropped, it is stopped. If that fails, the memory of its queues is never freed;
/// the controller may still access the data of commands, and no error says so.
pub struct Controller {
    function: Function,
    clock: Arc<dyn Clock>,
    bar: Bar,
    properties: Block<Properties>,
    cap: Cap,
    arena: DmaArena,
    /// Data of admin commands.
    pub(crate) data: DmaBuffer,
    admin: QueuePair,
    /// Completion of the event request, which was not read yet.
    pub(crate) event: Option<Ended>,
    identity: Identity,
    quirks: Quirks,
    config: Config,
    /// Number of I/O queues that the controller has granted.
    granted: u16,
    /// Time limit of a shutdown.
    shutdown_limit: Duration,
    /// Highest number of an I/O queue that was created, and the numbers below it that are free again.
    created: u16,
    free: Vec<u16>,
    interrupts: Vec<Interrupt>,
    health: Arc<Health>,
}

impl Controller {
    /// Resets a controller, enables it and reads what it is. No other program uses the controller.
    ///
    /// # Errors
    /// [`NvmeError`]. After all but [`NvmeError::NotStopped`], the controller has no access to memory.
    pub fn open(function: Function, config: Config) -> Result<Self, NvmeError> {
        let quirks = check_kind(&function, &config)?;
        let arena = DmaArena::new(&function)?;
        Self::enabled(&function, arena.clone(), config, quirks).map_err(|error| {
            // A controller that was enabled half-way must not reach the memory of its queues.
            match function.stop() {
                Ok(()) => error,
                Err(stop) => {
                    std::mem::forget(arena);
                    let error = Box::new(error);
                    NvmeError::NotStopped { error, stop }
                }
            }
        })
    }

    fn enabled(
        function: &Function,
        arena: DmaArena,
        config: Config,
        quirks: Quirks,
    ) -> Result<Self, NvmeError> {
        let bar = function.bar(0)?;
        let properties: Block<Properties> = bar.block(0)?;
        let clock = function.clock();
        let health = Arc::new(Health::default());
        let reset = Reset {
            name: function.name(),
            clock: &clock,
            properties: &properties,
            health: &health,
        };
        let cap = reset.cap()?;
        if let Err(Cause::Ready { .. }) = reset.disable(cap, quirks) {
            function.reset()?;
        }
        let disabled = reset.disable(cap, quirks);
        disabled.map_err(|cause| reset.ended(cause))?;

        let data = arena.alloc(identify::BYTES, 4096)?;
        let rings = Rings::new(&arena, ADMIN_ENTRIES, 1)?;
        function.set_bus_master(true)?;
        let interrupts = if config.has_interrupts {
            function.enable_interrupts(1 + usize::from(config.queues))?
        } else {
            Vec::new()
        };
        reset.set_admin_queues(&rings);
        // Some controllers change CAP after the first write of CC (Linux `nvme_enable_ctrl`).
        let cap = reset.cap()?;
        let enabled = reset.enable(cap, quirks, config.has_interrupts);
        enabled.map_err(|cause| reset.ended(cause))?;
        let doorbells = doorbells(&bar, cap, 0)?;
        let admin = QueuePair::new(
            0,
            rings,
            doorbells,
            Arc::clone(&health),
            interrupts.first().cloned(),
        );
        let mut controller = Self {
            clock,
            bar,
            properties,
            cap,
            arena,
            data,
            admin,
            event: None,
            identity: Identity {
                serial: String::new(),
                model: String::new(),
                firmware: String::new(),
                max_transfer: PAGE,
                has_write_cache: true,
                commands: 0,
                namespaces: 0,
            },
            quirks,
            config,
            granted: 0,
            shutdown_limit: SHUTDOWN[0],
            created: 0,
            free: Vec::new(),
            interrupts,
            health,
            function: function.clone(),
        };
        let events = controller.identify()?;
        controller.ask_for_queues()?;
        controller.begin_events(events)?;
        Ok(controller)
    }

    /// Returns names and limits.
    #[must_use]
    pub const fn identity(&self) -> &Identity {
        &self.identity
    }

    /// Returns the number of I/O queues that can be created.
    #[must_use]
    pub const fn queues(&self) -> u16 {
        self.granted
    }

    /// Returns the function.
    #[must_use]
    pub const fn function(&self) -> &Function {
        &self.function
    }

    /// Returns the arena of the function, for the data of commands.
    #[must_use]
    pub const fn arena(&self) -> &DmaArena {
        &self.arena
    }

    /// Returns the reason why the controller has ended, if it has. Reads CSTS.
    pub fn check(&self) -> Option<Cause> {
        if let Some(cause) = self.health.cause() {
            return Some(cause);
        }
        let status = self.properties.read(|r| &r.csts).get();
        let cause = match status {
            GONE => Cause::Gone,
            status if status & csts::FATAL != 0 => Cause::Fatal,
            _ => return None,
        };
        Some(self.health.end(cause))
    }

    /// Reads names and limits. Returns the events that the controller has (OAES).
    fn identify(&mut self) -> Result<u32, NvmeError> {
        let page: identify::Controller = self.identify_page(cns::CONTROLLER, 0)?;
        // MDTS is in units of the smallest page, which is 4 KiB here. 0 means no limit.
        let own = match page.max_transfer {
            shift @ 1..8 => PAGE << shift,
            0 | 8.. => MAX_TRANSFER,
        };
        let [least, most] = SHUTDOWN;
        let time = Duration::from_micros(page.shutdown_time.get().into());
        self.shutdown_limit = time.clamp(least, most).min(self.config.shutdown_limit);
        let zeroes = if self.quirks.no_write_zeroes {
            1 << 3
        } else {
            0
        };
        self.identity = Identity {
            serial: text(&page.serial),
            model: text(&page.model),
            firmware: text(&page.firmware),
            max_transfer: own,
            has_write_cache: page.write_cache & 1 != 0,
            commands: page.commands.get() & !zeroes,
            namespaces: page.namespaces.get(),
        };
        Ok(page.events.get())
    }

    fn ask_for_queues(&mut self) -> Result<(), NvmeError> {
        let wanted = u32::from(self.config.queues - 1);
        let mut sqe = Sqe::of(admin::SET_FEATURES);
        sqe.cdw10 = u32::from(feature::NUMBER_OF_QUEUES).into();
        sqe.cdw11 = (wanted << 16 | wanted).into();
        let granted = self.admin(sqe)?;
        // The controller may grant more or fewer than were asked for.
        let least = (granted & 0xffff).min(granted >> 16) + 1;
        self.granted = u16::try_from(least).unwrap_or(u16::MAX);
        self.granted = self.granted.min(self.config.queues);
        Ok(())
    }

    /// Returns the numbers of the active namespaces, at most 1,024. A controller that has no such list may have all
    /// namespaces up to its highest number, which are returned.
    ///
    /// # Errors
    /// [`NvmeError`].
    pub fn namespaces(&mut self) -> Result<Vec<u32>, NvmeError> {
        // Version 1.0 has no list (Linux `nvme_scan_ns_sequential`).
        if self.properties.read(|r| &r.vs).get() < 0x0001_0100 {
            let last = self.identity.namespaces;
            return Ok((1..=last).take(MOST_NAMESPACES).collect());
        }
        let list: [zerocopy::little_endian::U32; MOST_NAMESPACES] =
            self.identify_page(cns::ACTIVE_NAMESPACES, 0)?;
        let mut last = 0;
        let mut all = Vec::new();
        for nsid in list.iter().map(|nsid| nsid.get()) {
            if nsid == 0 {
                break;
            }
            if nsid <= last || nsid > self.identity.namespaces {
                let highest = self.identity.namespaces;
                return Err(NvmeError::Unsupported {
                    name: self.function.name().to_owned(),
                    what: format!(
                        "its list of namespaces has {nsid} after {last}, and the highest number is {highest}"
                    ),
                });
            }
            last = nsid;
            all.push(nsid);
        }
        Ok(all)
    }

    /// Reads size and format of a namespace.
    ///
    /// # Errors
    /// [`NvmeError::Unsupported`]: it is not active, or has metadata or blocks of another size than 512 to 65,536
    /// bytes.
    pub fn namespace(&mut self, nsid: u32) -> Result<Namespace, NvmeError> {
        let page: identify::Namespace = self.identify_page(cns::NAMESPACE, nsid)?;
        let unsupported = |what: String| NvmeError::Unsupported {
            name: self.function.name().to_owned(),
            what: format!("namespace {nsid}: {what}"),
        };
        let blocks = page.blocks.get();
        let index = page.format & 0x0f | (page.format & 0x60) >> 1;
        let format = page.block_formats.get(usize::from(index));
        let format = format.filter(|_| index <= page.formats);
        let Some(format) = format else {
            let what = format!("format {index} of {}", u16::from(page.formats) + 1);
            return Err(unsupported(what));
        };
        let (shift, metadata) = (format.shift, format.metadata.get());
        let bytes = 1_u64.checked_shl(shift.into()).unwrap_or(0);
        let is_possible = (9..=16).contains(&shift) && blocks.checked_mul(bytes).is_some();
        if blocks == 0 || metadata != 0 || !is_possible {
            return Err(unsupported(format!(
                "{blocks} blocks of 2^{shift} bytes with {metadata} bytes of metadata"
            )));
        }
        Ok(Namespace {
            nsid,
            blocks,
            // CAST: at most 2^16.
            #[expect(clippy::cast_possible_truncation, reason = "at most 2^16")]
            block_bytes: bytes as u32,
            is_write_protected: page.attributes & 1 != 0,
        })
    }

    /// Creates the next pair of I/O queues. If that fails, its number is not used again, and its memory is kept until
    /// the controller was stopped.
    ///
    /// # Errors
    /// [`NvmeError`]. [`NvmeError::Argument`]: all queues that were granted exist.
    pub fn create_queue(&mut self) -> Result<QueuePair, NvmeError> {
        let number = self.free.last().copied().unwrap_or(self.created + 1);
        if number > self.granted {
            let what = format!("queue {number} of {} that were granted", self.granted);
            return Err(NvmeError::Argument { what });
        }
        let most = match (self.cap.max_entries(), self.quirks.entries) {
            (1, Some(entries)) => entries,
            (most, _) => most,
        };
        if most < 2 {
            return Err(NvmeError::Unsupported {
                name: self.function.name().to_owned(),
                what: "a queue may have one entry (CAP.MQES is 0)".to_owned(),
            });
        }
        // The largest power of two that is not above the limit.
        let entries = self.config.entries.min(1 << most.ilog2());
        // CAST: at most 256.
        let pages = (self.identity.max_transfer / PAGE) as usize;
        let rings = Rings::new(&self.arena, entries, pages)?;
        let (completion, submission) = (rings.completion(), rings.submission());
        let interrupt = self.interrupts.get(usize::from(number)).cloned();
        let has_vector = interrupt.is_some();
        let doorbells = doorbells(&self.bar, self.cap, number)?;
        let health = Arc::clone(&self.health);
        // From here on, the controller may have the memory, and a drop of the pair keeps it.
        let pair = QueuePair::new(number, rings, doorbells, health, interrupt);
        if self.free.pop().is_none() {
            self.created = number;
        }
        let size = (entries - 1) << 16 | u32::from(number);
        let mut sqe = Sqe::of(admin::CREATE_COMPLETION_QUEUE);
        sqe.cdw10 = size.into();
        // The vector, whether it is used, and that the queue is contiguous.
        sqe.cdw11 = if has_vector {
            (u32::from(number) << 16 | 0b11).into()
        } else {
            0b01.into()
        };
        self.admin_with_queue(sqe, completion)?;
        let mut sqe = Sqe::of(admin::CREATE_SUBMISSION_QUEUE);
        sqe.cdw10 = size.into();
        // Medium priority, which some controllers expect without being asked for priorities.
        sqe.cdw11 = (u32::from(number) << 16 | 2 << 1 | 1).into();
        self.admin_with_queue(sqe, submission)?;
        Ok(pair)
    }

    /// Deletes a pair of I/O queues that has no outstanding command. Its number can be used again. If that fails, its
    /// memory is kept until the controller was stopped.
    ///
    /// # Errors
    /// [`NvmeError`]. [`NvmeError::Argument`]: a command is outstanding.
    ///
    /// # Panics
    /// If the queue is that of another controller.
    pub fn delete_queue(&mut self, queue: QueuePair) -> Result<(), NvmeError> {
        assert!(queue.is_of(&self.health), "a queue of another controller");
        let (number, outstanding) = (queue.number(), queue.outstanding());
        if outstanding > 0 {
            let what = format!("queue {number} has {outstanding} outstanding commands");
            return Err(NvmeError::Argument { what });
        }
        for opcode in [
            admin::DELETE_SUBMISSION_QUEUE,
            admin::DELETE_COMPLETION_QUEUE,
        ] {
            let mut sqe = Sqe::of(opcode);
            sqe.cdw10 = u32::from(number).into();
            self.admin(sqe)?;
        }
        queue.deleted();
        self.free.push(number);
        Ok(())
    }

    /// Checks whether a command of a queue has no answer for longer than `limit`. That ends the controller. A
    /// completion that can be taken may be the answer, until twice the limit has passed.
    ///
    /// # Panics
    /// If the queue is that of another controller.
    pub fn check_time(&self, queue: &QueuePair, now: Instant, limit: Duration) -> Option<Cause> {
        assert!(queue.is_of(&self.health), "a queue of another controller");
        let (opcode, age) = queue.oldest(now)?;
        let may_be_answered = age <= 2 * limit && queue.has_completion();
        (age > limit && !may_be_answered).then(|| {
            self.check().unwrap_or_else(|| {
                let queue = queue.number();
                self.health.end(Cause::Silent {
                    queue,
                    opcode,
                    limit,
                })
            })
        })
    }

    /// Stops the controller, whatever its state. Afterwards it reaches no memory. Returns the function, and the cookies
    /// of the commands whose answers were not taken, by queue. Pairs that were not given return theirs by
    /// [`QueuePair::unanswered`]. No other thread may be inside a method of such a pair: it could ring a doorbell of
    /// the controller after the function was opened again.
    ///
    /// # Errors
    /// The function cannot be stopped. The controller may still access the memory of the commands, so the caller keeps
    /// it until a later call succeeds. If the function is [lost](Function::lost), none will.
    ///
    /// # Panics
    /// If a queue is that of another controller.
    pub fn stop(
        self,
        mut queues: Vec<QueuePair>,
    ) -> Result<(Function, Vec<Vec<u64>>), Box<NotStopped>> {
        let are_own = queues.iter().all(|queue| queue.is_of(&self.health));
        assert!(are_own, "a queue of another controller");
        let are_all_here = queues.len() + self.free.len() == usize::from(self.created);
        let is_idle = are_all_here && queues.iter().all(|queue| queue.outstanding() == 0);
        if let Err(error) = self.halt(is_idle) {
            return Err(Box::new(NotStopped {
                controller: self,
                queues,
                error,
            }));
        }
        let unanswered = queues.iter_mut().filter_map(QueuePair::unanswered);
        Ok((self.function.clone(), unanswered.collect()))
    }

    /// Ends the controller's access to memory. A controller that answers is shut down before, so that it writes back
    /// what is in its cache. `is_idle`: no command is outstanding.
    fn halt(&self, is_idle: bool) -> Result<(), FunctionError> {
        let reset = Reset {
            name: self.function.name(),
            clock: &self.clock,
            properties: &self.properties,
            health: &self.health,
        };
        let was_ready = self.health.cause().is_none();
        // A pair whose method is called from here on rings no doorbell.
        self.health.end(Cause::Stopped);
        let function = self.function.name();
        if was_ready && let Err(cause) = reset.shut_down(is_idle, self.shutdown_limit) {
            tracing::warn!(function, %cause, "is not shut down (CC.SHN)");
        }
        // A controller that answers finishes what it writes. The reset of the function ends the others.
        if was_ready && reset.disable(self.cap, self.quirks).is_err() {
            tracing::warn!(function, "does not stop by CC.EN, and is reset");
        }
        self.function.stop()?;
        self.health.set_stopped();
        Ok(())
    }

    fn identify_page<T: FromBytes>(&mut self, cns: u8, nsid: u32) -> Result<T, NvmeError> {
        self.data.fill(0, identify::BYTES, 0);
        let mut sqe = Sqe::of(admin::IDENTIFY);
        sqe.nsid = nsid.into();
        sqe.cdw10 = u32::from(cns).into();
        let data = Piece {
            iova: self.data.iova(),
            bytes: 4096,
        };
        self.admin_command(sqe, &[data])?;
        Ok(self.data.read_obj(0))
    }

    /// Carries out an admin command without data. Returns its result.
    pub(crate) fn admin(&mut self, sqe: Sqe) -> Result<u32, NvmeError> {
        self.admin_command(sqe, &[])
    }

    /// Carries out an admin command whose pointer is the memory of a queue.
    fn admin_with_queue(&mut self, sqe: Sqe, memory: Iova) -> Result<u32, NvmeError> {
        let data = Piece {
            iova: memory,
            bytes: 4096,
        };
        self.admin_command(sqe, &[data])
    }

    fn ended(&self, cause: Cause) -> NvmeError {
        NvmeError::Ended {
            name: self.function.name().to_owned(),
            cause,
        }
    }

    /// Submits a command to the admin queue.
    pub(crate) fn submit_admin(
        &mut self,
        sqe: Sqe,
        data: &[Piece],
        cookie: u64,
    ) -> Result<(), NvmeError> {
        match self.admin.submit(sqe, data, cookie, self.clock.now()) {
            Ok(()) => {}
            Err(SubmitError::Ended(cause)) => return Err(self.ended(cause)),
            Err(error @ (SubmitError::Full | SubmitError::Data(_))) => {
                let what = format!("{}: {error}", described(&sqe));
                return Err(NvmeError::Argument { what });
            }
        }
        self.admin.ring();
        Ok(())
    }

    /// Takes the next completion of the admin queue that is not that of the event request.
    fn poll_admin(&mut self) -> Result<Option<Ended>, NvmeError> {
        let mut place = [Ended::NONE];
        loop {
            let taken = self.admin.poll(&mut place);
            let [ended] = place;
            match taken {
                Ok(0) => return Ok(None),
                Ok(_) if ended.cookie == EVENT => self.event = Some(ended),
                Ok(_) => return Ok(Some(ended)),
                Err(cause) => return Err(self.ended(cause)),
            }
        }
    }

    /// Takes the completion of the event request, if it is there.
    pub(crate) fn take_event(&mut self) -> Result<(), NvmeError> {
        // No other command is outstanding between two calls.
        self.poll_admin().map(|_none| ())
    }

    pub(crate) fn admin_command(&mut self, sqe: Sqe, data: &[Piece]) -> Result<u32, NvmeError> {
        self.submit_admin(sqe, data, COMMAND)?;
        let until = self.clock.now() + self.config.admin_limit;
        let interrupts: Vec<Interrupt> = self.admin.interrupt().cloned().into_iter().collect();
        loop {
            if let Some(ended) = self.poll_admin()? {
                if ended.status.is_success() {
                    return Ok(ended.result);
                }
                return Err(NvmeError::Status {
                    name: self.function.name().to_owned(),
                    command: described(&sqe),
                    status: ended.status,
                });
            }
            if let Some(cause) = self.check() {
                return Err(self.ended(cause));
            }
            let now = self.clock.now();
            if now >= until {
                let cause = Cause::Silent {
                    queue: 0,
                    opcode: sqe.opcode,
                    limit: self.config.admin_limit,
                };
                return Err(self.ended(self.health.end(cause)));
            }
            // An interrupt may be lost, so the queue is looked at again after a short time.
            self.clock.wait(&interrupts, (now + POLL * 10).min(until));
            for interrupt in &interrupts {
                let _signals = interrupt.take();
            }
        }
    }
}

impl Drop for Controller {
    fn drop(&mut self) {
        if self.health.is_stopped() {
            return;
        }
        let is_idle = self.free.len() == usize::from(self.created);
        if let Err(error) = self.halt(is_idle) {
            tracing::error!(function = self.function.name(), %error, "cannot be stopped");
            std::mem::forget((self.arena.clone(), self.data.clone()));
        }
    }
}

impl core::fmt::Debug for Controller {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Controller")
            .field("function", &self.function.name())
            .field("identity", &self.identity)
            .finish_non_exhaustive()
    }
}

/// Returns the doorbells of a pair: that of the tail of its submission queue, and that of the head of its completion
/// queue.
fn doorbells(
    bar: &Bar,
    cap: Cap,
    queue: u16,
) -> Result<(Register<Le32>, Register<Le32>), NvmeError> {
    let doorbell = |is_completion| {
        let at = registers::doorbell(cap, queue, is_completion);
        let block: Block<Doorbell> = bar.block(at)?;
        Ok::<_, NvmeError>(block.register(|r| &r.index))
    };
    Ok((doorbell(false)?, doorbell(true)?))
}

/// Checks settings, and the kind of a function, before anything is done to it. Returns its deviations.
fn check_kind(function: &Function, config: &Config) -> Result<Quirks, NvmeError> {
    let unsupported = |what: String| NvmeError::Unsupported {
        name: function.name().to_owned(),
        what,
    };
    let Config {
        queues, entries, ..
    } = *config;
    if !entries.is_power_of_two() || !(2..=1 << 16).contains(&entries) || queues == 0 {
        let what = format!("{queues} queues of {entries} entries");
        return Err(NvmeError::Argument { what });
    }
    let class = function.config_read_u32(8)? >> 8;
    if Kind::of_class(class) != Some(Kind::Nvme) {
        return Err(unsupported(format!(
            "class code {class:06x}, and an NVMe controller has {:06x}",
            Kind::NVME_CLASS
        )));
    }
    let (vendor, device) = (function.config_read_u16(0)?, function.config_read_u16(2)?);
    if REFUSED.contains(&(vendor, device)) {
        return Err(unsupported(format!(
            "device {vendor:04x}:{device:04x} has entries of another size, or one vector for all queues"
        )));
    }
    Ok(Quirks::of(vendor, device))
}

/// Returns the name of an admin command with its numbers.
fn described(sqe: &Sqe) -> String {
    let (first, second, nsid) = (sqe.cdw10.get(), sqe.cdw11.get(), sqe.nsid.get());
    let (low, high) = (first & 0xffff, first >> 16);
    match sqe.opcode {
        admin::GET_LOG_PAGE => format!("Get Log Page ({:#04x})", first & 0xff),
        admin::ASYNC_EVENT => "Asynchronous Event Request".to_owned(),
        admin::IDENTIFY => format!("Identify (CNS {:#04x}, NSID {nsid})", first & 0xff),
        admin::SET_FEATURES => format!("Set Features ({:#04x}, value {second:#x})", first & 0xff),
        admin::CREATE_COMPLETION_QUEUE => format!(
            "Create I/O Completion Queue {low} ({} entries, vector {})",
            high + 1,
            second >> 16
        ),
        admin::CREATE_SUBMISSION_QUEUE => {
            format!("Create I/O Submission Queue {low} ({} entries)", high + 1)
        }
        admin::DELETE_SUBMISSION_QUEUE => format!("Delete I/O Submission Queue {low}"),
        admin::DELETE_COMPLETION_QUEUE => format!("Delete I/O Completion Queue {low}"),
        opcode => format!("admin command {opcode:#04x}"),
    }
}

/// Returns a text of a controller: printable characters, without blanks at the end.
fn text(field: &[u8]) -> String {
    let printable = field.iter().map(|byte| match byte {
        0x20..=0x7e => char::from(*byte),
        _ => '?',
    });
    printable.collect::<String>().trim().to_owned()
}

/// The part of a controller that resets and enables it.
struct Reset<'a> {
    name: &'a str,
    clock: &'a Arc<dyn Clock>,
    properties: &'a Block<Properties>,
    health: &'a Arc<Health>,
}

impl Reset<'_> {
    fn ended(&self, cause: Cause) -> NvmeError {
        let name = self.name.to_owned();
        let cause = self.health.end(cause);
        NvmeError::Ended { name, cause }
    }

    fn cap(&self) -> Result<Cap, NvmeError> {
        let low = self.properties.read(|r| &r.cap_low).get();
        let high = self.properties.read(|r| &r.cap_high).get();
        if (low, high) == (GONE, GONE) {
            return Err(self.ended(Cause::Gone));
        }
        let cap = Cap(u64::from(high) << 32 | u64::from(low));
        if !cap.has_nvm_commands() || cap.min_page() > PAGE {
            return Err(NvmeError::Unsupported {
                name: self.name.to_owned(),
                what: format!(
                    "CAP {:#018x}: no NVM command set, or pages of {} bytes at least",
                    cap.0,
                    cap.min_page()
                ),
            });
        }
        Ok(cap)
    }

    /// Disables the controller, and waits until it is not ready.
    fn disable(&self, cap: Cap, quirks: Quirks) -> Result<(), Cause> {
        let now = self.properties.read(|r| &r.cc).get();
        if now == GONE {
            return Err(Cause::Gone);
        }
        if now & cc::ENABLE != 0 {
            // A controller that is being enabled becomes ready first. One that does not is disabled all the same.
            if self.wait_for(true, cap.ready_limit()) == Err(Cause::Gone) {
                return Err(Cause::Gone);
            }
            let disabled = now & !(cc::ENABLE | cc::SHUTDOWN_MASK);
            self.properties.write(|r| &r.cc, Le32::new(disabled));
            self.pause(quirks.ready_delay);
        }
        self.wait_for(false, cap.ready_limit())
    }

    fn set_admin_queues(&self, rings: &Rings) {
        let size = rings.entries() - 1;
        let halves = |address: u64| {
            // CAST: the halves.
            #[expect(clippy::cast_possible_truncation, reason = "the halves")]
            [address as u32, (address >> 32) as u32].map(Le32::new)
        };
        let properties = self.properties;
        properties.write(|r| &r.aqa, Le32::new(size << 16 | size));
        let [low, high] = halves(rings.submission().0);
        properties.write(|r| &r.asq_low, low);
        properties.write(|r| &r.asq_high, high);
        let [low, high] = halves(rings.completion().0);
        properties.write(|r| &r.acq_low, low);
        properties.write(|r| &r.acq_high, high);
        let disabled = cc::SUBMISSION_ENTRY | cc::COMPLETION_ENTRY;
        properties.write(|r| &r.cc, Le32::new(disabled));
    }

    fn enable(&self, cap: Cap, quirks: Quirks, has_interrupts: bool) -> Result<(), Cause> {
        if !has_interrupts {
            // Without MSI-X, completions of the admin queue would assert the pin.
            self.properties.write(|r| &r.intms, Le32::new(u32::MAX));
        }
        let enabled = cc::SUBMISSION_ENTRY | cc::COMPLETION_ENTRY | cc::ENABLE;
        self.properties.write(|r| &r.cc, Le32::new(enabled));
        self.pause(quirks.ready_delay);
        let mut limit = cap.ready_limit();
        if cap.has_ready_limit() {
            let crto = self.properties.read(|r| &r.crto).get();
            if crto == GONE {
                return Err(Cause::Gone);
            }
            limit = limit.max(registers::media_limit(crto)).min(LONGEST_READY);
        }
        self.wait_for(true, limit)
    }

    /// Shuts the controller down, and waits until it has written back what is in its cache.
    fn shut_down(&self, is_idle: bool, limit: Duration) -> Result<(), Cause> {
        let now = self.properties.read(|r| &r.cc).get();
        if now == GONE {
            return Err(Cause::Gone);
        }
        let kind = if is_idle {
            cc::SHUTDOWN_NORMAL
        } else {
            cc::SHUTDOWN_ABRUPT
        };
        let shut_down = Le32::new(now & !cc::SHUTDOWN_MASK | kind);
        self.properties.write(|r| &r.cc, shut_down);
        let mut has_failed = false;
        let is_over = self.wait_until(limit, |status| {
            has_failed = status & csts::FATAL != 0;
            has_failed || status & csts::SHUTDOWN_MASK == csts::SHUTDOWN_COMPLETE
        })?;
        match (has_failed, is_over) {
            (true, _) => Err(Cause::Fatal),
            (false, true) => Ok(()),
            (false, false) => Err(Cause::ShutDown { limit }),
        }
    }

    /// Waits until CSTS.RDY has a value.
    fn wait_for(&self, wanted: bool, limit: Duration) -> Result<(), Cause> {
        let is_fatal = |status| wanted && status & csts::FATAL != 0;
        let mut has_failed = false;
        let is_over = self.wait_until(limit, |status| {
            has_failed = is_fatal(status);
            has_failed || (status & csts::READY != 0) == wanted
        })?;
        if has_failed {
            return Err(Cause::Fatal);
        }
        if is_over {
            return Ok(());
        }
        Err(Cause::Ready { wanted, limit })
    }

    /// Waits until CSTS fulfils a condition. Returns false if it has not within `limit`.
    fn wait_until(
        &self,
        limit: Duration,
        mut is_over: impl FnMut(u32) -> bool,
    ) -> Result<bool, Cause> {
        let until = self.clock.now() + limit;
        loop {
            let status = self.properties.read(|r| &r.csts).get();
            if status == GONE {
                return Err(Cause::Gone);
            }
            if is_over(status) {
                return Ok(true);
            }
            let now = self.clock.now();
            if now >= until {
                return Ok(false);
            }
            self.clock.wait(&[], (now + POLL).min(until));
        }
    }

    fn pause(&self, time: Duration) {
        if !time.is_zero() {
            self.clock.wait(&[], self.clock.now() + time);
        }
    }
}

/// Returns whether a status says that a command may succeed if it is repeated: the controller has not set DNR.
#[must_use]
pub fn may_repeat(status: Status) -> bool {
    !status.is_success() && status.dnr() != status
}
