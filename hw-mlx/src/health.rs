//! Whether the device is still alive.
//!
//! Nobody is told when firmware dies; one has to look. The sensors, in the order rdma-core's VFIO
//! driver reads them (`providers/mlx5/mlx5_vfio.c`, `mlx5_health_check_fatal_sensors`): `fw_ver` all
//! ones (the function left the bus), `nic_interface` disabled or in software reset, a reset request
//! with a syndrome in the health buffer. Those are death. So is a command queue that the device no longer has: a
//! function-level reset that somebody else asked for (`/sys/bus/pci/devices/…/reset`) leaves all sensors well, gives
//! back what configuration space held, and forgets everything that commands have made. The queue's address is looked at
//! only if it could be read when it was written, which no document promises.
//!
//! Two others only raise doubts: a syndrome byte beside the health counter (Snabb looks at it when a command does not
//! come back, Linux never), and a counter that does not move for ten seconds. Firmware that is busy, destroying
//! thousands of keys or being patched, stands still and goes on (Linux `poll_health` only reports it). A doubt is
//! settled by a command that does nothing: answered, whatever with, the device lives; unanswered, it is dead.
//!
//! Two things somebody does tell: the system signals that the bus reported an error of the function, which is death
//! like the others, and that it wants the function back, which is none.
//!
//! Polls are a second apart. Death is final: a dead device is reset and opened anew, not revived.

use std::time::Duration;

use driver::{Block, Instant, Interrupt, Notices};

use crate::error::{DeadCause, syndrome_text};
use mlx_prm::InitSegment;

/// Time between polls (VFIO's; mlx5_core takes two).
pub(crate) const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// Polls the counter may stand still before that is doubtful.
const MISSES: u32 = 10;
const COUNTER_MASK: u32 = 0x00ff_ffff;
/// The address in `cmdq_addr_l_sz`, beside geometry and `nic_interface`.
const QUEUE_ADDRESS: u32 = 0xffff_f000;
const NIC_DISABLED: u32 = 1;
const NIC_SOFTWARE_RESET: u32 = 7;

/// The pulse of one function.
pub(crate) struct Health {
    registers: Block<InitSegment>,
    next_poll: Instant,
    counter: Option<u32>,
    misses: u32,
    /// The syndrome byte beside the counter that was doubted last; 0 for none.
    doubted: u8,
    /// The command queue's address as it was written, upper and lower half.
    written: [u32; 2],
    /// The same, once the function is initialized, if the device still shows it then.
    queue: Option<[u32; 2]>,
    dead: Option<DeadCause>,
    notices: Notices,
}

/// What a look at the device came to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Verdict {
    /// Nothing is wrong.
    Well,
    /// Somebody should ask it.
    Doubtful,
    /// It is dead, as [`Health::dead`] says from now on.
    Dead,
}

/// What the system said.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Heard {
    /// The function is dead, as [`Health::dead`] says from now on.
    Death,
    /// It is wanted back. Said once, however often the system says it.
    Request,
}

impl Health {
    /// `written` is the command queue's address as it was written, upper and lower half.
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

    /// The eventfds to wake up for besides the device's own.
    pub(crate) fn notices(&self) -> impl Iterator<Item = &Interrupt> {
        [&self.notices.error, &self.notices.requested]
            .into_iter()
            .flatten()
    }

    /// What the system has said since it was last asked.
    pub(crate) fn hear(&mut self) -> Option<Heard> {
        let said = |notice: &Option<Interrupt>| notice.as_ref().is_some_and(|it| it.take() > 0);
        if said(&self.notices.error) && self.dead.is_none() {
            self.dead = Some(DeadCause::BusError);
            return Some(Heard::Death);
        }
        if said(&self.notices.requested) {
            // The system repeats itself until the function is closed.
            self.notices.requested = None;
            return Some(Heard::Request);
        }
        None
    }

    /// What it died of.
    pub(crate) fn dead(&self) -> Option<DeadCause> {
        self.dead
    }

    /// When the next poll is due.
    pub(crate) fn next_poll(&self) -> Instant {
        self.next_poll
    }

    /// Reads the sensors that need no history. True if the device turns out dead now.
    pub(crate) fn check(&mut self) -> bool {
        if self.dead.is_none() {
            self.dead = self.read_sensors();
            return self.dead.is_some();
        }
        false
    }

    /// Reads everything if a poll is due, and the counter too where it is expected to move (the
    /// function is initialized).
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

    /// It is dead because we say so.
    pub(crate) fn stopped(&mut self, cause: DeadCause) {
        self.dead.get_or_insert(cause);
    }

    /// The device answered: whatever was doubted was not death.
    pub(crate) fn answered(&mut self) {
        tracing::warn!(
            polls = self.misses,
            "the firmware looked dead and answers all the same"
        );
        self.misses = 0;
    }

    /// The device did not answer: it is what was doubted.
    pub(crate) fn unanswered(&mut self) {
        let (synd, counter) = self.pulse();
        self.dead.get_or_insert(if synd == 0 {
            DeadCause::CounterStuck { counter }
        } else {
            DeadCause::Syndrome { synd }
        });
    }

    /// The syndrome byte and the counter beside it.
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

/// Where the device says that the command queue is, upper and lower half.
fn queue_address(registers: &Block<InitSegment>) -> [u32; 2] {
    let high = registers.read(|segment| &segment.cmdq_addr_h).get();
    let low = registers.read(|segment| &segment.cmdq_addr_l_sz).get();
    [high, low & QUEUE_ADDRESS]
}
