//! Faults of the wire and of the functions.

use std::time::Duration;

use hw_sim::{Fault, Faults, LinkFaults, VfSettings};
use mlx_prm::{DeliveryStatus, Opcode};
use rand::Rng;

use crate::Feature;
use crate::world::{ENDINGS, World};

/// Commands that a fault may wait for: commands that start and stop an adapter, and that create, modify, query and
/// destroy its objects.
const COMMANDS: [Opcode; 40] = [
    Opcode::ENABLE_HCA,
    Opcode::QUERY_HCA_CAP,
    Opcode::SET_HCA_CAP,
    Opcode::QUERY_ISSI,
    Opcode::SET_ISSI,
    Opcode::QUERY_PAGES,
    Opcode::MANAGE_PAGES,
    Opcode::INIT_HCA,
    Opcode::SET_DRIVER_VERSION,
    Opcode::QUERY_VPORT_STATE,
    Opcode::QUERY_NIC_VPORT_CONTEXT,
    Opcode::MODIFY_NIC_VPORT_CONTEXT,
    Opcode::SET_ROCE_ADDRESS,
    Opcode::QUERY_ROCE_ADDRESS,
    Opcode::ALLOC_Q_COUNTER,
    Opcode::DEALLOC_Q_COUNTER,
    Opcode::ALLOC_PD,
    Opcode::DEALLOC_PD,
    Opcode::ALLOC_UAR,
    Opcode::DEALLOC_UAR,
    Opcode::CREATE_MKEY,
    Opcode::DESTROY_MKEY,
    Opcode::CREATE_EQ,
    Opcode::DESTROY_EQ,
    Opcode::CREATE_CQ,
    Opcode::MODIFY_CQ,
    Opcode::DESTROY_CQ,
    Opcode::CREATE_QP,
    Opcode::DESTROY_QP,
    Opcode::RST2INIT_QP,
    Opcode::INIT2RTR_QP,
    Opcode::RTR2RTS_QP,
    Opcode::TO_ERR_QP,
    Opcode::TO_RST_QP,
    Opcode::QUERY_QP,
    Opcode::CREATE_RMP,
    Opcode::MODIFY_RMP,
    Opcode::DESTROY_RMP,
    Opcode::TEARDOWN_HCA,
    Opcode::DISABLE_HCA,
];

/// Names of all injected faults in the coverage, by kind.
pub const FAULTS: [(&str, &[&str]); 5] = [
    ("wire", &["faulty", "repeats"]),
    ("partition", &["both ways", "one way"]),
    ("cable", &["pulled"]),
    (
        "delivery status",
        &[
            "BAD_BLOCK_NUMBER",
            "CMD_TYPE_ERR",
            "FW_ERR",
            "IN_LENGTH_ERR",
            "IN_PTR_ALIGN_ERR",
            "OUT_LENGTH_ERR",
            "OUT_PTR_ALIGN_ERR",
            "RES_FLD_NOT_CLR_ERR",
            "SIGNATURE_ERR",
            "TOKEN_ERR",
        ],
    ),
    (
        "fault",
        &[
            "another MAC",
            "bus error",
            "command not delivered",
            "firmware stops",
            "event queues full",
            "event queues half full",
            "event queues overrun",
            "health stall",
            "health syndrome",
            "late command",
            "lost interrupts",
            "page request",
            "page starvation",
            "reads ones for ever",
            "refused command",
            "silent command",
            "stray interrupts",
            "surprise removal",
        ],
    ),
];

impl World {
    /// In one call of eight, draws a random fault, and injects it into the wire or a function if the simulation has the
    /// fault's feature.
    pub fn inject_fault(&mut self) {
        if !self.random.random_ratio(1, 8) {
            return;
        }
        let side = self.random.random_range(0..self.sides.len());
        let (draw, small) = (
            self.random.random_range(0..50),
            self.random.random_range(1..4),
        );
        match draw {
            0..=9 => self.inject_wire_fault(side, draw, small),
            10..=17 | 44..=45 => self.inject_command_fault(side, draw, small),
            18..=20 if self.has(Feature::Pages) => {
                let pages = i32::try_from(small).unwrap_or(1) * 10 - 20;
                self.inject(side, "page request", &Fault::PageRequest { pages });
                self.inject(
                    side,
                    "page starvation",
                    &Fault::PageStarvation { pages: small },
                );
            }
            21 if self.has(Feature::Death) => {
                let (what, fault) = match small {
                    1 => ("health syndrome", Fault::HealthSyndrome(1)),
                    2 => ("firmware stops", Fault::HealthCounterStops),
                    _ => ("bus error", Fault::BusError),
                };
                self.inject(side, what, &fault);
            }
            46 if self.has(Feature::Removal) => {
                let (what, fault) = if small == 1 {
                    ("reads ones for ever", Fault::BarAllOnes)
                } else {
                    ("surprise removal", Fault::SurpriseRemoval)
                };
                for other in self.kin(side) {
                    self.sides[other].removed = true;
                }
                self.inject(side, what, &fault);
            }
            22..=23 if self.has(Feature::Stall) => {
                let stall = Duration::from_millis(u64::from(small) * 1_000);
                self.inject(side, "health stall", &Fault::HealthCounterStalls(stall));
            }
            24..=27 if self.has(Feature::Interrupts) => {
                let (what, fault) = match small {
                    1 => ("stray interrupts", Fault::StrayInterrupts),
                    lost => ("lost interrupts", Fault::LostInterrupts(lost)),
                };
                self.cover.count("fault", what);
                self.sim.inject(&self.sides[side].function, &fault);
            }
            28 if self.has(Feature::Mac) => self.change_mac(side),
            47 if self.has(Feature::Overrun) => self.toggle_carrier(side, small),
            _ => {}
        }
    }

    fn inject_wire_fault(&mut self, side: usize, draw: u32, small: u32) {
        let for_a_while = self.random.random_range(1..3_000_000_000_u64);
        let ppm = self.random.random_range(0..200_000);
        let faults = Faults {
            loss_ppm: ppm,
            duplicate_ppm: ppm,
            reorder_ppm: ppm,
            corrupt_ppm: ppm / 2,
            delay_ns: 2_000,
            jitter_ns: 50_000,
            reorder_ns: 400_000,
        };
        let gone = Faults {
            loss_ppm: 1_000_000,
            ..Faults::NONE
        };
        let until = Some(self.now() + for_a_while);
        match draw {
            0..=1 if self.has(Feature::Wire) => {
                self.repeat_frames(for_a_while);
                return;
            }
            2..=5 if self.has(Feature::Wire) => {
                self.cover.count("wire", "faulty");
                self.until = until;
                self.sim.set_faults(self.wire, LinkFaults::both(faults));
            }
            6..=7 if self.has(Feature::Partition) => {
                self.cover.count(
                    "partition",
                    if small == 1 { "both ways" } else { "one way" },
                );
                self.until = until;
                let faults = LinkFaults {
                    a_to_b: gone,
                    b_to_a: if small == 1 { gone } else { Faults::NONE },
                };
                self.sim.set_faults(self.wire, faults);
            }
            8..=9 if self.has(Feature::Flap) => {
                self.cover.count("cable", "pulled");
                self.until = until;
                let card = &self.cards[self.sides[side].card];
                self.sim.inject(&card.physical(), &Fault::LinkDown);
            }
            _ => return,
        }
        self.trace_line(side, format_args!("the wire suffers, {draw} {small}"));
        self.spoil_wire();
    }

    /// Makes the wire duplicate half of the frames for `for_a_while` ns, without other faults. No connection may end
    /// because of that. Does nothing while the wire has another fault.
    fn repeat_frames(&mut self, for_a_while: u64) {
        if self.until.is_some() {
            return;
        }
        self.cover.count("wire", "repeats");
        self.trace_line(0, format_args!("the wire repeats"));
        let twice = Faults {
            duplicate_ppm: 500_000,
            ..Faults::NONE
        };
        self.repeats = Some(self.now() + for_a_while);
        self.sim.set_faults(self.wire, LinkFaults::both(twice));
    }

    /// Ends the duplication of frames, once its time is over.
    pub fn mend_repeats(&mut self) {
        if self.repeats.is_some_and(|until| self.now() >= until) {
            self.repeats = None;
            if self.until.is_none() {
                self.sim.set_faults(self.wire, LinkFaults::default());
            }
        }
    }

    fn inject_command_fault(&mut self, side: usize, draw: u32, small: u32) {
        let (which, pick) = (
            self.random.random_range(0..10),
            self.random.random_range(0..COMMANDS.len()),
        );
        let opcode = match which {
            0..=2 => None,
            3..=6 => Some(ENDINGS[pick % ENDINGS.len()].0),
            _ => Some(COMMANDS[pick].0),
        };
        match draw {
            10..=13 if self.has(Feature::Refused) => self.inject(
                side,
                "refused command",
                &Fault::CommandFailure {
                    opcode,
                    status: if small == 1 { 0x06 } else { 0x0f },
                    syndrome: 0,
                    count: small,
                },
            ),
            14 if self.has(Feature::Silent) => {
                let fault = Fault::CommandSilence {
                    opcode,
                    count: small,
                };
                self.inject(side, "silent command", &fault);
            }
            15..=17 if self.has(Feature::Late) => self.inject(
                side,
                "late command",
                &Fault::CommandDelay {
                    opcode,
                    delay: Duration::from_millis(u64::from(small) * 900),
                    count: small,
                },
            ),
            44..=45 if self.has(Feature::Refused) => {
                // The first status is OK.
                let failures = &DeliveryStatus::ALL[1..];
                let status = failures[pick % failures.len()];
                let name = status.name().unwrap_or("unknown");
                self.cover.count("delivery status", name);
                let fault = Fault::CommandDelivery {
                    opcode,
                    status: status.0,
                    count: small,
                };
                self.inject(side, "command not delivered", &fault);
            }
            _ => {}
        }
    }

    pub fn inject(&mut self, side: usize, what: &'static str, fault: &Fault) {
        self.cover.count("fault", what);
        self.trace_line(side, format_args!("{fault:?}"));
        for other in self.kin(side) {
            self.sides[other].tampered = true;
        }
        self.spoil_function(what, side);
        self.sim.inject(&self.sides[side].function, fault);
    }

    /// Changes the MAC address of a virtual function as its administrator does. Closes all instances of the function
    /// before the change, so the driver sees the change after the reset of the next opening.
    fn change_mac(&mut self, side: usize) {
        if self.sides[side].parked {
            return;
        }
        self.cover.count("fault", "another MAC");
        for other in self.kin(side) {
            self.close(other);
        }
        let place = self.sides[side].place;
        let (card, index) = (place / self.of_card(), place % self.of_card());
        self.macs += 1;
        let [low, high] =
            [self.macs, self.macs >> 8].map(|byte| u8::try_from(byte & 0xff).unwrap_or(0));
        let settings = VfSettings {
            mac: Some([2, 0xca, 1, 0, high, low]),
            ..VfSettings::default()
        };
        assert!(self.cards[card].set_vf(index, settings));
    }
}
