//! Health: detects whether the device still works.
//!
//! Firmware does not announce its failure, so the driver has to poll. It reads the sensors in the order of rdma-core's
//! VFIO driver (`providers/mlx5/mlx5_vfio.c`, `mlx5_health_check_fatal_sensors`): `fw_ver` all ones (the function left
//! the bus), `nic_interface` disabled or in software reset, and a reset request with a syndrome in the health buffer.
//! Each of these means that the device is dead. A lost command queue means the same: a function-level reset by another
//! program (`/sys/bus/pci/devices/…/reset`) leaves all sensors well, restores configuration space, and destroys all
//! objects made by commands. The driver notices this by the queue's address, but only if the address could be read back
//! after INIT_HCA, because no document promises that.
//!
//! Two other sensors raise only a doubt: a syndrome byte beside the health counter (Snabb looks at it when a command is
//! not answered, Linux ignores it), and a counter that does not change for ten seconds. Busy firmware, which destroys
//! thousands of keys or is being patched, may stop the counter and recover (Linux `poll_health` only reports it). On a
//! doubt the driver sends a command that does nothing: if the device answers, with any status, it is alive; if not, it
//! is dead. While no command slot is free, the return of any command shows that it is alive.
//!
//! The system gives two notices. An error of the function that the bus reported means that the device is dead. A
//! request to release the function does not.
//!
//! Polls are a second apart. The dead state is final: a dead device is reset and opened anew, not recovered.

use std::time::Duration;

use driver::{Block, Instant, Interrupt, Notices};

use crate::error::{DeadCause, syndrome_text};
use mlx_prm::InitSegment;

/// Time between two polls, as in rdma-core's VFIO driver (mlx5_core takes two seconds).
pub(crate) const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// Number of polls without a change of the health counter after which the device is doubtful.
const MISSES: u32 = 10;
const COUNTER_MASK: u32 = 0x00ff_ffff;
/// Mask of the address bits in `cmdq_addr_l_sz`, which also holds the queue's geometry and `nic_interface`.
const QUEUE_ADDRESS: u32 = 0xffff_f000;
const NIC_DISABLED: u32 = 1;
const NIC_SOFTWARE_RESET: u32 = 7;

/// Health state of one function.
pub(crate) struct Health {
    registers: Block<InitSegment>,
    next_poll: Instant,
    counter: Option<u32>,
    misses: u32,
    /// Last value of the syndrome byte beside the counter; 0 for none. Only a new value makes the device doubtful.
    doubted: u8,
    /// Command queue's address as the driver wrote it, upper and lower half.
    written: [u32; 2],
    /// Command queue's address as read back after initialization. `None`: the device does not show the written one.
    queue: Option<[u32; 2]>,
    dead: Option<DeadCause>,
    notices: Notices,
}

/// Result of a poll.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Verdict {
    /// No sensor reports an error, no poll was due, or the device was dead already.
    Well,
    /// The device may be dead. The caller should send a command to find out.
    Doubtful,
    /// The device is dead; [`Health::dead`] returns the cause from now on.
    Dead,
}

/// A notice of the system about the function.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Heard {
    /// The function is dead; [`Health::dead`] returns the cause from now on.
    Death,
    /// The system requests the function's release. Reported once, even if the system repeats the notice.
    Request,
}

impl Health {
    /// Makes the health state of a function. `written` is the command queue's address as written, upper and lower half.
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

    /// Records the address of the command queue after INIT_HCA. If the device later shows another address, another
    /// program has reset it. If the firmware has already cleared the registers, the address is never compared.
    pub(crate) fn initialized(&mut self) {
        let shown = queue_address(&self.registers);
        self.queue = (shown == self.written).then_some(shown);
        if self.queue.is_none() {
            tracing::info!(
                "the command queue's address cannot be read back: resets by others show late"
            );
        }
    }

    /// Returns whether the device shows the address of the command queue.
    pub(crate) fn shows_queue(&self) -> bool {
        self.queue.is_some()
    }

    /// Returns the eventfds of the system's notices. They end a sleep, as the device's interrupts do.
    pub(crate) fn notices(&self) -> impl Iterator<Item = &Interrupt> {
        [&self.notices.error, &self.notices.requested]
            .into_iter()
            .flatten()
    }

    /// Returns a notice that the system gave since the last call.
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

    /// Returns why the device is dead; `None` if it is alive.
    pub(crate) fn dead(&self) -> Option<DeadCause> {
        self.dead
    }

    /// Returns the time of the next poll.
    pub(crate) fn next_poll(&self) -> Instant {
        self.next_poll
    }

    /// Reads the sensors that need no earlier value. Returns true if the device has just been found dead.
    pub(crate) fn check(&mut self) -> bool {
        if self.dead.is_none() {
            self.dead = self.read_sensors();
            return self.dead.is_some();
        }
        false
    }

    /// Reads all sensors if a poll is due. `counter_moves` is true once the function is initialized: only then is the
    /// health counter expected to change.
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
        let (synd, counter) = self.health_word();
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

    /// Marks the device as dead because the driver has stopped it.
    pub(crate) fn stopped(&mut self, cause: DeadCause) {
        self.dead.get_or_insert(cause);
    }

    /// Clears a doubt after the device has answered the test command.
    pub(crate) fn answered(&mut self) {
        tracing::warn!(
            polls = self.misses,
            "the firmware looked dead and answers all the same"
        );
        self.misses = 0;
    }

    /// Marks a doubtful device as dead, because it did not answer the test command.
    pub(crate) fn unanswered(&mut self) {
        let (synd, counter) = self.health_word();
        self.dead.get_or_insert(if synd == 0 {
            DeadCause::CounterStuck { counter }
        } else {
            DeadCause::Syndrome { synd }
        });
    }

    /// Reads the syndrome byte and the counter beside it.
    fn health_word(&self) -> (u8, u32) {
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

/// Returns the upper and the lower half of an address.
pub(crate) fn halves(address: u64) -> [u32; 2] {
    let [a, b, c, d, e, f, g, h] = address.to_be_bytes();
    [
        u32::from_be_bytes([a, b, c, d]),
        u32::from_be_bytes([e, f, g, h]),
    ]
}

/// Reads the address of the command queue from the registers, upper and lower half.
fn queue_address(registers: &Block<InitSegment>) -> [u32; 2] {
    let high = registers.read(|segment| &segment.cmdq_addr_h).get();
    let low = registers.read(|segment| &segment.cmdq_addr_l_sz).get();
    [high, low & QUEUE_ADDRESS]
}

#[cfg(test)]
mod tests;
