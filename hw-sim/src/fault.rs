//! Faults of the function itself, injected by a test.
//!
//! Faults of the wire belong to the link. These belong to the function: a command that is refused, answered late or
//! not at all, firmware that stops in one of the ways that the health buffer reports, a device that is removed.
//!
//! A command fault waits for its opcode and is consumed by it. Only such a fault can be planned for later
//! ([`Fault::Later`]). Page starvation, growth, lost interrupts, lost doorbells, stuck queues, lost completions and
//! damaged data wait for their events in the same way. All faults that wait survive a reset of the function, because a
//! driver begins with a reset. They end when they are used up or by [`Sim::mend`](crate::Sim::mend). All other faults
//! take effect at once.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::Duration;

/// A fault of a function.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Fault {
    /// The next `count` commands with this opcode are answered with `status` and `syndrome`, and are not
    /// executed.
    CommandFailure {
        /// Opcode of the affected commands; `None`: any.
        opcode: Option<u16>,
        /// Output status byte.
        status: u8,
        /// Output syndrome.
        syndrome: u32,
        /// Number of affected commands.
        count: u32,
    },
    /// The next `count` commands with this opcode are not delivered: they get this delivery status and are
    /// not executed.
    CommandDelivery {
        /// Opcode of the affected commands; `None`: any.
        opcode: Option<u16>,
        /// Delivery status.
        status: u8,
        /// Number of affected commands.
        count: u32,
    },
    /// The next `count` commands with this opcode are never answered. The device continues to own their slots.
    CommandSilence {
        /// Opcode of the affected commands; `None`: any.
        opcode: Option<u16>,
        /// Number of affected commands.
        count: u32,
    },
    /// The next `count` commands with this opcode take `delay` longer.
    CommandDelay {
        /// Opcode of the affected commands; `None`: any.
        opcode: Option<u16>,
        /// Additional time.
        delay: Duration,
        /// Number of affected commands.
        count: u32,
    },
    /// The next command that creates an object waits until the driver has given this many more pages.
    PageStarvation {
        /// Number of pages that the firmware requests.
        pages: u32,
    },
    /// The firmware needs pages for new objects: one in `every` commands that create an object waits until the driver
    /// gives pages. Only [`mend`](crate::Sim::mend) ends this fault.
    Growth {
        /// Number of commands from one wait to the next.
        every: u32,
        /// Number of pages requested each time.
        pages: u32,
    },
    /// The firmware requests pages (positive) or returns pages (negative), by event.
    PageRequest {
        /// Number of pages.
        pages: i32,
    },
    /// The firmware reports a fatal health syndrome. From then on, the function executes no command and carries no
    /// traffic.
    HealthSyndrome(u8),
    /// The firmware stops running: its health counter stops and no command is answered. Traffic continues.
    HealthCounterStops,
    /// The health counter stops for this time. The counter of busy firmware may stop, too. Linux `poll_health` reads
    /// the counter every two seconds, reports the fourth equal reading, and continues.
    HealthCounterStalls(Duration),
    /// Every read of the BAR returns ones and every write is lost, as if the PCIe link to the slot were
    /// down.
    BarAllOnes,
    /// The function is removed: BAR and configuration space read ones, and there is no DMA, no interrupt and no
    /// packet.
    SurpriseRemoval,
    /// The bus reports an uncorrectable error of the function to the system, which notifies the driver.
    BusError,
    /// The system asks the driver to release the function.
    WantedBack,
    /// The next interrupts are not delivered. The value is their number.
    LostInterrupts(u32),
    /// Every vector is raised once, without a reason.
    StrayInterrupts,
    /// The port of the function's card loses its carrier.
    LinkDown,
    /// The port of the function's card gets its carrier back.
    LinkUp,
    /// Doorbells of send queues are lost after the next `spared`. Only [`mend`](crate::Sim::mend) ends this fault;
    /// resets do not.
    LostDoorbells {
        /// Number of doorbells that still arrive.
        spared: u32,
    },
    /// After the next `spared` doorbells, queue pairs read doorbell records but fetch and send nothing. Only
    /// [`mend`](crate::Sim::mend) ends this fault; resets do not.
    StuckQueues {
        /// Number of doorbells that still take effect.
        spared: u32,
    },
    /// After the next `spared` entries, no entries of completion queues are written and no completion events are sent.
    /// Only [`mend`](crate::Sim::mend) ends this fault; resets do not.
    LostCompletions {
        /// Number of entries that are still written.
        spared: u32,
    },
    /// After the next `spared` writes of data through memory keys, the first byte of each write arrives inverted. Only
    /// [`mend`](crate::Sim::mend) ends this fault; resets do not.
    DamagedData {
        /// Number of writes that are not damaged. Each segment that a packet writes counts as one write, and so does an
        /// atomic. Data scattered to a CQE does not count.
        spared: u32,
    },
    /// A command fault that takes effect after a number of matching commands have passed unaffected.
    // A recording stores fault and number separately, so that a record contains no nested fault. A skipped variant must
    // be the last, because variants after it would be read with other numbers than they were written with.
    #[serde(skip)]
    Later {
        /// Number of commands that are spared.
        commands: u32,
        /// The fault. It must be a command fault, which is one of the first four variants.
        fault: Box<Fault>,
    },
}

/// Effect of a command fault on its command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommandFault {
    /// The command is answered with this status and syndrome.
    Fail {
        /// Output status byte.
        status: u8,
        /// Output syndrome.
        syndrome: u32,
    },
    /// The command is answered with this delivery status.
    Deliver(u8),
    /// The command is never answered.
    Silence,
    /// The command is answered this many nanoseconds later.
    Delay(u64),
}

/// Kind of fault that affected a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Meeting {
    /// No fault.
    Nothing,
    /// [`Fault::CommandFailure`].
    Refused,
    /// [`Fault::CommandDelivery`].
    NotDelivered,
    /// [`Fault::CommandSilence`].
    Silent,
    /// [`Fault::CommandDelay`].
    Late,
    /// [`Fault::PageStarvation`] or [`Fault::Growth`].
    Starved,
}

impl From<Option<CommandFault>> for Meeting {
    fn from(fault: Option<CommandFault>) -> Self {
        match fault {
            None => Self::Nothing,
            Some(CommandFault::Fail { .. }) => Self::Refused,
            Some(CommandFault::Deliver(_)) => Self::NotDelivered,
            Some(CommandFault::Silence) => Self::Silent,
            Some(CommandFault::Delay(_)) => Self::Late,
        }
    }
}

/// Number of commands, by opcode and by the fault that affected them.
pub type Meetings = BTreeMap<(u16, Meeting), u64>;

#[derive(Clone, Debug)]
struct Planned {
    opcode: Option<u16>,
    fault: CommandFault,
    left: u32,
    /// Number of commands that are still spared.
    spared: u32,
}

impl Planned {
    fn is_for(&self, opcode: u16) -> bool {
        self.left > 0 && self.opcode.is_none_or(|wanted| wanted == opcode)
    }
}

/// Injected faults that wait for a command, a page, an interrupt, a doorbell, a completion or a write of data.
#[derive(Clone, Debug, Default)]
pub struct FaultPlan {
    planned: Vec<Planned>,
    /// Number of pages to request when the next object is created.
    starvation: Option<u32>,
    growth: Option<Growth>,
    lost_interrupts: u32,
    doorbells: Spared,
    fetches: Spared,
    stuck: bool,
    completions: Spared,
    data: Spared,
    met: Meetings,
}

/// Number of times that an action still takes effect; `None`: always.
#[derive(Clone, Copy, Debug, Default)]
struct Spared(Option<u32>);

impl Spared {
    /// Returns whether the action is lost, and counts it.
    fn is_lost(&mut self) -> bool {
        let Some(left) = &mut self.0 else {
            return false;
        };
        let lost = *left == 0;
        *left = left.saturating_sub(1);
        lost
    }
}

#[derive(Clone, Copy, Debug)]
struct Growth {
    every: u32,
    pages: u32,
    created: u32,
}

impl Fault {
    /// Returns whether the fault is a command fault.
    pub(crate) const fn waits_for_a_command(&self) -> bool {
        match self {
            Self::CommandFailure { .. }
            | Self::CommandDelivery { .. }
            | Self::CommandSilence { .. }
            | Self::CommandDelay { .. } => true,
            Self::Later { .. }
            | Self::PageStarvation { .. }
            | Self::Growth { .. }
            | Self::PageRequest { .. }
            | Self::HealthSyndrome(_)
            | Self::HealthCounterStops
            | Self::HealthCounterStalls(_)
            | Self::BarAllOnes
            | Self::SurpriseRemoval
            | Self::BusError
            | Self::WantedBack
            | Self::LostInterrupts(_)
            | Self::StrayInterrupts
            | Self::LinkDown
            | Self::LinkUp
            | Self::LostDoorbells { .. }
            | Self::StuckQueues { .. }
            | Self::LostCompletions { .. }
            | Self::DamagedData { .. } => false,
        }
    }
}

impl FaultPlan {
    /// Adds a fault that waits. Returns false if `fault` takes effect at once.
    ///
    /// # Panics
    /// [`Later`](Fault::Later) contains a fault that is no command fault.
    pub fn add(&mut self, fault: &Fault) -> bool {
        let (opcode, fault, left) = match *fault {
            Fault::CommandFailure {
                opcode,
                status,
                syndrome,
                count,
            } => (opcode, CommandFault::Fail { status, syndrome }, count),
            Fault::CommandDelivery {
                opcode,
                status,
                count,
            } => (opcode, CommandFault::Deliver(status), count),
            Fault::CommandSilence { opcode, count } => (opcode, CommandFault::Silence, count),
            Fault::CommandDelay {
                opcode,
                delay,
                count,
            } => {
                let delay = u64::try_from(delay.as_nanos()).unwrap_or(u64::MAX);
                (opcode, CommandFault::Delay(delay), count)
            }
            Fault::Later {
                commands,
                ref fault,
            } => {
                assert!(
                    fault.waits_for_a_command(),
                    "{fault:?} waits for no command, so it cannot come {commands} commands later"
                );
                let before = self.planned.len();
                let added = self.add(fault);
                for planned in &mut self.planned[before..] {
                    planned.spared = commands;
                }
                return added;
            }
            Fault::PageStarvation { pages } => {
                self.starvation = Some(pages);
                return true;
            }
            Fault::Growth { every, pages } => {
                self.growth = Some(Growth {
                    every: every.max(1),
                    pages,
                    created: 0,
                });
                return true;
            }
            Fault::LostInterrupts(count) => {
                self.lost_interrupts = self.lost_interrupts.saturating_add(count);
                return true;
            }
            Fault::LostDoorbells { spared } => {
                self.doorbells = Spared(Some(spared));
                return true;
            }
            Fault::StuckQueues { spared } => {
                self.fetches = Spared(Some(spared));
                return true;
            }
            Fault::LostCompletions { spared } => {
                self.completions = Spared(Some(spared));
                return true;
            }
            Fault::DamagedData { spared } => {
                self.data = Spared(Some(spared));
                return true;
            }
            Fault::PageRequest { .. }
            | Fault::HealthSyndrome(_)
            | Fault::HealthCounterStops
            | Fault::HealthCounterStalls(_)
            | Fault::BarAllOnes
            | Fault::SurpriseRemoval
            | Fault::BusError
            | Fault::WantedBack
            | Fault::StrayInterrupts
            | Fault::LinkDown
            | Fault::LinkUp => return false,
        };
        self.planned.push(Planned {
            opcode,
            fault,
            left,
            spared: 0,
        });
        true
    }

    /// Returns the fault that affects a command, if any, and consumes it. Counts the command.
    pub fn meet(&mut self, opcode: u16) -> Option<CommandFault> {
        let fault = self.planned_for(opcode);
        *self.met.entry((opcode, fault.into())).or_default() += 1;
        fault
    }

    fn planned_for(&mut self, opcode: u16) -> Option<CommandFault> {
        let meets = |planned: &Planned| planned.spared == 0 && planned.is_for(opcode);
        let at = self.planned.iter().position(meets);
        for planned in &mut self.planned {
            if planned.is_for(opcode) {
                planned.spared = planned.spared.saturating_sub(1);
            }
        }
        let at = at?;
        let planned = &mut self.planned[at];
        planned.left -= 1;
        let fault = planned.fault;
        self.planned.retain(|planned| planned.left > 0);
        Some(fault)
    }

    /// Takes the numbers of commands by opcode and fault since the last call.
    pub fn take_meetings(&mut self) -> Meetings {
        std::mem::take(&mut self.met)
    }

    /// Returns whether an interrupt is lost. Uses up one of the lost interrupts.
    pub fn loses_interrupt(&mut self) -> bool {
        let lost = self.lost_interrupts > 0;
        self.lost_interrupts = self.lost_interrupts.saturating_sub(1);
        lost
    }

    /// Counts a doorbell of a send queue, and returns whether it is lost.
    pub fn loses_doorbell(&mut self) -> bool {
        self.doorbells.is_lost()
    }

    /// Counts a doorbell that arrived. After the spared number of doorbells ([`Fault::StuckQueues`]), queue pairs are
    /// stuck.
    pub fn count_doorbell(&mut self) {
        self.stuck |= self.fetches.is_lost();
    }

    /// Returns whether queue pairs are stuck: they fetch and send nothing.
    pub const fn is_stuck(&self) -> bool {
        self.stuck
    }

    /// Counts an entry of a completion queue, and returns whether it is lost.
    pub fn loses_completion(&mut self) -> bool {
        self.completions.is_lost()
    }

    /// Counts a write of data through a memory key, and returns whether its data is damaged.
    #[inline]
    pub fn damages_data(&mut self) -> bool {
        self.data.is_lost()
    }

    /// Counts a command that creates an object. Returns the number of pages for which it must wait, if it must.
    pub fn wanted_pages(&mut self, opcode: u16) -> Option<u32> {
        let pages = self.planned_pages();
        if pages.is_some() {
            *self.met.entry((opcode, Meeting::Starved)).or_default() += 1;
        }
        pages
    }

    fn planned_pages(&mut self) -> Option<u32> {
        if let Some(pages) = self.starvation.take() {
            return Some(pages);
        }
        let growth = self.growth.as_mut()?;
        growth.created += 1;
        if growth.created < growth.every {
            return None;
        }
        growth.created = 0;
        Some(growth.pages)
    }

    /// Removes all planned faults.
    pub fn clear(&mut self) {
        *self = Self {
            met: self.take_meetings(),
            ..Self::default()
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_fault_waits_for_its_opcode_and_is_used_up() {
        let mut plan = FaultPlan::default();
        assert!(plan.add(&Fault::CommandSilence {
            opcode: Some(0x500),
            count: 2
        }));
        assert_eq!(plan.meet(0x400), None);
        assert_eq!(plan.meet(0x500), Some(CommandFault::Silence));
        assert_eq!(plan.meet(0x500), Some(CommandFault::Silence));
        assert_eq!(plan.meet(0x500), None);
        let met = [
            ((0x400, Meeting::Nothing), 1),
            ((0x500, Meeting::Nothing), 1),
            ((0x500, Meeting::Silent), 2),
        ];
        assert_eq!(plan.take_meetings(), Meetings::from(met));
        assert_eq!(plan.take_meetings(), Meetings::new());
    }

    #[test]
    fn a_fault_that_comes_later_spares_so_many_commands() {
        let mut plan = FaultPlan::default();
        let silence = Fault::CommandSilence {
            opcode: Some(0x500),
            count: 1,
        };
        assert!(plan.add(&Fault::Later {
            commands: 2,
            fault: Box::new(silence),
        }));
        let met: Vec<_> = [0x500, 0x104, 0x500, 0x500, 0x500]
            .map(|opcode| plan.meet(opcode).is_some())
            .into();
        assert_eq!(met, [false, false, false, true, false]);
    }

    /// A fault that waits for no command cannot be planned for later.
    #[test]
    fn a_fault_that_waits_for_no_command_cannot_come_later() {
        let later = |fault| Fault::Later {
            commands: 2,
            fault: Box::new(fault),
        };
        for fault in [
            Fault::SurpriseRemoval,
            Fault::LostInterrupts(1),
            Fault::PageStarvation { pages: 1 },
            later(Fault::CommandSilence {
                opcode: None,
                count: 1,
            }),
        ] {
            let said = std::panic::catch_unwind(|| FaultPlan::default().add(&later(fault)))
                .expect_err("it is refused");
            let said = said.downcast_ref::<String>().expect("a sentence");
            assert!(said.contains("waits for no command"), "{said}");
        }
    }

    #[test]
    fn interrupts_are_lost_as_often_as_was_said() {
        let mut plan = FaultPlan::default();
        assert!(plan.add(&Fault::LostInterrupts(2)));
        let lost: Vec<_> = (0..3).map(|_| plan.loses_interrupt()).collect();
        assert_eq!(lost, [true, true, false]);
    }

    #[test]
    fn growth_wants_pages_every_so_often_and_starvation_once() {
        let mut plan = FaultPlan::default();
        plan.add(&Fault::Growth { every: 2, pages: 3 });
        plan.add(&Fault::PageStarvation { pages: 9 });
        let wanted: Vec<_> = (0..5).map(|_| plan.wanted_pages(0x500)).collect();
        assert_eq!(wanted, [Some(9), None, Some(3), None, Some(3)]);
    }

    #[test]
    fn a_fault_without_opcode_meets_the_next_command() {
        let mut plan = FaultPlan::default();
        plan.add(&Fault::CommandDelivery {
            opcode: None,
            status: 6,
            count: 1,
        });
        assert_eq!(plan.meet(0x104), Some(CommandFault::Deliver(6)));
        assert_eq!(plan.meet(0x104), None);
    }
}
