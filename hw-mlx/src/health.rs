//! Health: detects whether the device is still alive.
//!
//! Firmware does not announce its death; the driver has to poll. The sensors, in the order in which rdma-core's VFIO
//! driver reads them (`providers/mlx5/mlx5_vfio.c`, `mlx5_health_check_fatal_sensors`): `fw_ver` all ones (the
//! function left the bus), `nic_interface` disabled or in software reset, a reset request with a syndrome in the
//! health buffer. Each of these means death. So does a command queue that the device no longer has: a function-level
//! reset by another program (`/sys/bus/pci/devices/…/reset`) leaves all sensors well, restores configuration space,
//! and forgets all objects made by commands. The queue's address is checked only if it read back when it was written,
//! which no document promises.
//!
//! Two others only raise doubts: a syndrome byte beside the health counter (Snabb reads it when a command does not
//! come back, Linux never does), and a counter that does not move for ten seconds. Busy firmware, which destroys
//! thousands of keys or is being patched, may stand still and go on (Linux `poll_health` only reports it). A doubt is
//! settled by a command that does nothing: if the device answers, with any status, it lives; if not, it is dead.
//!
//! Two events are announced by the system: that the bus reported an error of the function, which means death, and
//! that it wants the function back, which does not.
//!
//! Polls are a second apart. Death is final: a dead device is reset and opened anew, not revived.

use std::time::Duration;

use driver::{Block, Instant, Interrupt, Notices};

use crate::error::{DeadCause, syndrome_text};
use mlx_prm::InitSegment;

/// Time between polls (VFIO's; mlx5_core takes two).
pub(crate) const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// Number of polls for which the counter may stand still before that is doubtful.
const MISSES: u32 = 10;
const COUNTER_MASK: u32 = 0x00ff_ffff;
/// Mask of the address in `cmdq_addr_l_sz`, which also holds geometry and `nic_interface`.
const QUEUE_ADDRESS: u32 = 0xffff_f000;
const NIC_DISABLED: u32 = 1;
const NIC_SOFTWARE_RESET: u32 = 7;

/// Health state of one function.
pub(crate) struct Health {
    registers: Block<InitSegment>,
    next_poll: Instant,
    counter: Option<u32>,
    misses: u32,
    /// The syndrome byte beside the counter that was last doubted; 0 for none.
    doubted: u8,
    /// The command queue's address as written, upper and lower half.
    written: [u32; 2],
    /// The command queue's address as read after initialization, if the device still shows it then.
    queue: Option<[u32; 2]>,
    dead: Option<DeadCause>,
    notices: Notices,
}

/// Result of a poll.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Verdict {
    /// No sensor reports an error.
    Well,
    /// A command should be sent to test the device.
    Doubtful,
    /// The device is dead; [`Health::dead`] returns the cause from now on.
    Dead,
}

/// A notice of the system.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Heard {
    /// The function is dead; [`Health::dead`] returns the cause from now on.
    Death,
    /// The system wants it back. Reported once, however often the system says it.
    Request,
}

impl Health {
    /// `written` is the command queue's address as written, upper and lower half.
    pub(crate) fn new(
        registers: Block<InitSegment>,
        notices: Notices,
        written: [u32; 2],
        now: Instant,
    ) -> Self {
        Self {
            registers,
            next_poll: now + POLL_INTERVAL,
            counter: None,
            misses: 0,
            doubted: 0,
            written,
            queue: None,
            dead: None,
            notices,
        }
    }

    /// Records the address of the command queue after INIT_HCA. A device that shows another one later was reset by
    /// another program. If the firmware has cleared the registers by now, the comparison is off.
    pub(crate) fn initialized(&mut self) {
        let shown = queue_address(&self.registers);
        self.queue = (shown == self.written).then_some(shown);
        if self.queue.is_none() {
            tracing::info!(
                "the command queue's address cannot be read back: resets by others show late"
            );
        }
    }

    /// Returns the eventfds of the system's notices, which end a sleep like the device's own.
    pub(crate) fn notices(&self) -> impl Iterator<Item = &Interrupt> {
        [&self.notices.error, &self.notices.requested]
            .into_iter()
            .flatten()
    }

    /// Returns the system's notice since the last call.
    pub(crate) fn hear(&mut self) -> Option<Heard> {
        let said = |notice: &Option<Interrupt>| notice.as_ref().is_some_and(|it| it.take() > 0);
        if said(&self.notices.error) && self.dead.is_none() {
            self.dead = Some(DeadCause::BusError);
            return Some(Heard::Death);
        }
        if said(&self.notices.requested) {
            // The system repeats the notice until the function is closed.
            self.notices.requested = None;
            return Some(Heard::Request);
        }
        None
    }

    /// Returns the cause of its death.
    pub(crate) fn dead(&self) -> Option<DeadCause> {
        self.dead
    }

    /// Returns the time of the next poll.
    pub(crate) fn next_poll(&self) -> Instant {
        self.next_poll
    }

    /// Reads the sensors that need no history. Returns true if the device turns out to be dead.
    pub(crate) fn check(&mut self) -> bool {
        if self.dead.is_none() {
            self.dead = self.read_sensors();
            return self.dead.is_some();
        }
        false
    }

    /// Reads all sensors if a poll is due. Includes the counter if it is expected to move (the function is
    /// initialized).
    pub(crate) fn poll(&mut self, now: Instant, counter_moves: bool) -> Verdict {
        if self.dead.is_some() || now < self.next_poll {
            return Verdict::Well;
        }
        self.next_poll = now + POLL_INTERVAL;
        if self.check() {
            return Verdict::Dead;
        }
        if !counter_moves {
            return Verdict::Well;
        }
        let (synd, counter) = self.pulse();
        if self.counter.replace(counter) == Some(counter) {
            self.misses += 1;
        } else {
            self.misses = 0;
        }
        let new_syndrome = synd != 0 && synd != self.doubted;
        self.doubted = synd;
        if new_syndrome {
            tracing::warn!(synd, text = syndrome_text(synd), "a health syndrome");
        }
        if new_syndrome || self.misses >= MISSES {
            Verdict::Doubtful
        } else {
            Verdict::Well
        }
    }

    /// Marks the device as dead because we have stopped it.
    pub(crate) fn stopped(&mut self, cause: DeadCause) {
        self.dead.get_or_insert(cause);
    }

    /// Clears a doubt: the device answered.
    pub(crate) fn answered(&mut self) {
        tracing::warn!(
            polls = self.misses,
            "the firmware looked dead and answers all the same"
        );
        self.misses = 0;
    }

    /// Turns a doubt into death: the device did not answer.
    pub(crate) fn unanswered(&mut self) {
        let (synd, counter) = self.pulse();
        self.dead.get_or_insert(if synd == 0 {
            DeadCause::CounterStuck { counter }
        } else {
            DeadCause::Syndrome { synd }
        });
    }

    /// Reads the syndrome byte and the counter beside it.
    fn pulse(&self) -> (u8, u32) {
        let word = self.registers.read(|segment| &segment.health_counter).get();
        let [synd, ..] = word.to_be_bytes();
        (synd, word & COUNTER_MASK)
    }

    fn read_sensors(&self) -> Option<DeadCause> {
        let read = &self.registers;
        if read.read(|segment| &segment.fw_ver).get() == u32::MAX {
            return Some(DeadCause::Gone);
        }
        match read.read(|segment| &segment.cmdq_addr_l_sz).get() >> 8 & 7 {
            NIC_DISABLED => return Some(DeadCause::Disabled),
            NIC_SOFTWARE_RESET => return Some(DeadCause::SoftwareReset),
            _ => {}
        }
        if self.queue.is_some_and(|queue| queue_address(read) != queue) {
            return Some(DeadCause::ResetByOthers);
        }
        let [_irisc, synd, ext_hi, ext_lo] = read.read(|segment| &segment.synd).get().to_be_bytes();
        let reset_required = read.read(|segment| &segment.rfr_severity).get() >> 31 != 0;
        (reset_required && synd != 0).then_some(DeadCause::ResetRequired {
            synd,
            ext_synd: u16::from_be_bytes([ext_hi, ext_lo]),
        })
    }
}

/// Reads the address of the command queue from the registers, upper and lower half.
fn queue_address(registers: &Block<InitSegment>) -> [u32; 2] {
    let high = registers.read(|segment| &segment.cmdq_addr_h).get();
    let low = registers.read(|segment| &segment.cmdq_addr_l_sz).get();
    [high, low & QUEUE_ADDRESS]
}
