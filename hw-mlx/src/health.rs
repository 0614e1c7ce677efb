//! Whether the device is still alive.
//!
//! Nobody is told when firmware dies; one has to look. The sensors, in the order rdma-core's VFIO
//! driver reads them (`providers/mlx5/mlx5_vfio.c`, `mlx5_health_check_fatal_sensors`): `fw_ver` all
//! ones (the function left the bus), `nic_interface` disabled or in software reset, a reset request
//! with a syndrome in the health buffer. Snabb adds the syndrome byte beside the health counter. And
//! the counter itself must move: equal in three polls in a row, and the firmware no longer runs.
//!
//! Two things somebody does tell: the system signals that the bus reported an error of the function, which is death like
//! the others, and that it wants the function back, which is none.
//!
//! Polls are a second apart. Death is final: a dead device is reset and opened anew, not revived.

use std::time::Duration;

use driver::{Block, Instant, Interrupt, Notices};

use crate::error::DeadCause;
use crate::prm::InitSegment;

/// Time between polls (VFIO's; mlx5_core takes two).
pub(crate) const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// Polls the counter may stand still.
const MISSES: u32 = 3;
const COUNTER_MASK: u32 = 0x00ff_ffff;
const NIC_DISABLED: u32 = 1;
const NIC_SOFTWARE_RESET: u32 = 7;

/// The pulse of one function.
pub(crate) struct Health {
    registers: Block<InitSegment>,
    next_poll: Instant,
    counter: Option<u32>,
    misses: u32,
    dead: Option<DeadCause>,
    notices: Notices,
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
    pub(crate) fn new(registers: Block<InitSegment>, notices: Notices, now: Instant) -> Self {
        Self {
            registers,
            next_poll: now + POLL_INTERVAL,
            counter: None,
            misses: 0,
            dead: None,
            notices,
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
    /// function is initialized). True if the device turns out dead now.
    pub(crate) fn poll(&mut self, now: Instant, counter_moves: bool) -> bool {
        if self.dead.is_some() || now < self.next_poll {
            return false;
        }
        self.next_poll = now + POLL_INTERVAL;
        if self.check() {
            return true;
        }
        if !counter_moves {
            return false;
        }
        let counter = self.registers.read(|segment| &segment.health_counter).get() & COUNTER_MASK;
        if self.counter.replace(counter) == Some(counter) {
            self.misses += 1;
        } else {
            self.misses = 0;
        }
        if self.misses >= MISSES {
            self.dead = Some(DeadCause::CounterStuck { counter });
        }
        self.dead.is_some()
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
        let [_irisc, synd, ext_hi, ext_lo] = read.read(|segment| &segment.synd).get().to_be_bytes();
        let reset_required = read.read(|segment| &segment.rfr_severity).get() >> 31 != 0;
        if reset_required && synd != 0 {
            return Some(DeadCause::ResetRequired {
                synd,
                ext_synd: u16::from_be_bytes([ext_hi, ext_lo]),
            });
        }
        let [synd, ..] = read
            .read(|segment| &segment.health_counter)
            .get()
            .to_be_bytes();
        (synd != 0).then_some(DeadCause::Syndrome { synd })
    }
}
