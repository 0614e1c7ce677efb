//! The world: two cards, their virtual functions, the wire between them, and the run from the first step to the quiet
//! at the end.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use dat::CloseFlags;
use hw_sim::{CardConfig, Fault, LinkFaults, LinkId, Profile, Sim, SimCard, SimConfig, VfSettings};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::bytes::{self, Freed};
use crate::cover::Coverage;
use crate::end::{Link, Name, Phase};
use crate::side::{ENDS, Side, offered_tag};
use crate::{CALL_LIMIT, Feature, Plan, Run};

/// Virtual functions of a card.
const OF_CARD: u16 = 2;
/// Adapters.
pub const SIDES: usize = 2 * OF_CARD as usize;
/// Memory that is watched after it was freed.
const WATCHED: usize = 64;
/// Steps from one look at all bytes to the next.
const LOOK_EVERY: u32 = 16;
/// How often a function may refuse to be opened when all is healed.
const ATTEMPTS: usize = 64;
/// Turns, of a millisecond each, that healing may take: timeouts of the connection manager and of the transport among it.
const HEALING: u32 = 400_000;

pub struct World {
    pub plan: Plan,
    pub sim: Sim,
    pub cards: [SimCard; 2],
    pub wire: LinkId,
    pub sides: Vec<Side>,
    pub links: Vec<Link>,
    pub by_name: BTreeMap<Name, usize>,
    pub freed: VecDeque<Freed>,
    pub random: ChaCha8Rng,
    pub cover: Coverage,
    /// Numbers messages, requests and attempts.
    pub number: u64,
    /// When a partition or a pulled cable ends.
    pub until: Option<u64>,
    pub healing: bool,
}

impl World {
    pub fn new(plan: &Plan, capture: Option<std::fs::File>) -> Self {
        let sim = Sim::new(SimConfig {
            seed: plan.seed,
            event_log: true,
        });
        if let Some(file) = capture {
            sim.pcap(file).expect("the capture begins");
        }
        let cards = [0, 1].map(|card: u8| {
            let profile = Profile::named(&format!("card{card}"), [2, 0xca, 0, card, 0, 0]);
            sim.add_card(&CardConfig::new(profile, OF_CARD))
        });
        let mut sides = Vec::new();
        for (at, card) in cards.iter().enumerate() {
            for index in 0..usize::from(OF_CARD) {
                let number = u8::try_from(2 * at + index).expect("few");
                let settings = VfSettings {
                    mac: Some([2, 0xca, 0, 0, 1, number]),
                    ..VfSettings::default()
                };
                assert!(card.set_vf(index, settings));
                sides.push(Side {
                    function: card.virtual_function(index).expect("just made"),
                    seed: plan.seed << 8 | u64::from(number),
                    openings: 0,
                    open: None,
                    tampered: false,
                });
            }
        }
        let (a, b) = (cards[0].physical(), cards[1].physical());
        let wire = sim.connect(&a, &b, LinkFaults::default());
        Self {
            plan: plan.clone(),
            sim,
            cards,
            wire,
            sides,
            links: Vec::new(),
            by_name: BTreeMap::new(),
            freed: VecDeque::new(),
            random: ChaCha8Rng::seed_from_u64(plan.seed),
            cover: Coverage::default(),
            number: 0,
            until: None,
            healing: false,
        }
    }

    pub fn run(mut self) -> Run {
        for side in 0..SIDES {
            self.sides[side]
                .open(side)
                .expect("a healthy function opens");
        }
        for step in 0..self.plan.steps {
            let side = self.random.random_range(0..SIDES);
            self.deed(side);
            self.trouble();
            let moment = self.moment();
            self.turn(moment);
            if step % LOOK_EVERY == 0 {
                self.look();
            }
        }
        self.heal();
        Run {
            log: self.sim.event_log(),
            coverage: self.cover,
        }
    }

    pub fn has(&self, feature: Feature) -> bool {
        self.plan.features.contains(&feature)
    }

    pub fn next_number(&mut self) -> u64 {
        self.number += 1;
        self.number
    }

    fn now(&self) -> u64 {
        self.sim.clock().now().0
    }

    /// Does something and holds it to its limit.
    pub fn timed<R>(&mut self, what: &'static str, call: impl FnOnce(&mut Self) -> R) -> R {
        let before = self.now();
        let answer = call(self);
        let took = Duration::from_nanos(self.now() - before);
        assert!(took <= CALL_LIMIT, "{what} took {took:?}");
        answer
    }

    /// How long until the next step.
    fn moment(&mut self) -> Duration {
        let micros = match self.random.random_range(0..10) {
            0..=5 => self.random.random_range(1..20),
            6..=8 => self.random.random_range(20..2_000),
            _ => self.random.random_range(2_000..200_000),
        };
        Duration::from_micros(micros)
    }

    /// Everybody's software runs, and time passes.
    pub fn turn(&mut self, moment: Duration) {
        for side in 0..SIDES {
            self.timed("progress", |world| {
                if let Some(open) = &mut world.sides[side].open {
                    open.ia.progress();
                }
            });
            self.events(side);
        }
        self.sim.advance(moment);
        if self.until.is_some_and(|until| self.now() >= until) {
            self.mend_wire();
        }
    }

    /// The wire carries again.
    pub fn mend_wire(&mut self) {
        self.until = None;
        self.sim.heal();
        for card in &self.cards {
            self.sim.inject(&card.physical(), &Fault::LinkUp);
        }
    }

    /// Nothing has changed that nobody was granted.
    pub fn look(&self) {
        for freed in &self.freed {
            if let Some(at) = freed.changed() {
                panic!(
                    "byte {at} of memory of side {} has changed, {}",
                    freed.side, freed.what
                );
            }
        }
        for (side, one) in self.sides.iter().enumerate() {
            if let Some(open) = &one.open {
                let slots = open.offered.memory.len() / bytes::STRIDE;
                for (what, region) in [
                    ("source", &open.source),
                    ("inbox", &open.inbox),
                    ("written", &open.written),
                    ("offered", &open.offered),
                    ("sink", &open.sink),
                ] {
                    assert!(
                        bytes::gaps_are_whole(&region.memory, slots),
                        "a gap of memory {what} of side {side} has changed"
                    );
                }
                for slot in 0..slots {
                    assert!(
                        bytes::is(&open.offered.memory, slot, offered_tag(side), bytes::SLOT),
                        "slot {slot} of what side {side} offers has changed"
                    );
                }
            }
            let report = self.sim.report(&one.function);
            assert!(
                report.driver_bugs.is_empty(),
                "side {side}: {:?}",
                report.driver_bugs
            );
            let unmapped: Vec<_> = report
                .dma_faults
                .iter()
                .filter(|fault| fault.unmapped)
                .collect();
            assert!(unmapped.is_empty(), "side {side}: {unmapped:?}");
        }
    }

    /// Watches memory that nobody may reach any more.
    pub fn watch(&mut self, freed: Freed) {
        self.freed.push_back(freed);
        if self.freed.len() > WATCHED {
            self.look();
            self.freed.pop_front();
        }
    }

    /// No faults any more, and it becomes quiet.
    fn heal(&mut self) {
        self.healing = true;
        self.mend_wire();
        // What was put into a function and has not happened may still happen: it ends with the opening.
        for side in 0..SIDES {
            if self.sides[side].tampered {
                self.close(side, CloseFlags::Abrupt);
            }
        }
        self.settle("every attempt to connect ends", |phase| {
            phase != Phase::Pending
        });
        for side in 0..SIDES {
            for end in 0..ENDS {
                self.disconnect(side, end, CloseFlags::Abrupt);
            }
        }
        self.settle(
            "every connection ends, and all that was posted comes back",
            |phase| phase == Phase::Idle,
        );
        for side in 0..SIDES {
            self.close(side, CloseFlags::Abrupt);
        }
        for side in 0..SIDES {
            // Each attempt uses up what was put into the function and has not happened.
            for _ in 0..ATTEMPTS {
                if self.sides[side].open.is_none() {
                    self.reopen(side);
                }
            }
            assert!(
                self.sides[side].open.is_some(),
                "side {side} never opens again"
            );
            self.close(side, CloseFlags::Abrupt);
        }
        self.look();
    }

    /// Goes on until all endpoints are so far.
    fn settle(&mut self, what: &str, done: impl Fn(Phase) -> bool) {
        let open = |world: &Self| {
            let mut left = Vec::new();
            for (side, one) in world.sides.iter().enumerate() {
                for (at, end) in one
                    .open
                    .iter()
                    .flat_map(|open| open.ends.iter().enumerate())
                {
                    if end.ep.is_some() && !done(end.phase) {
                        left.push((side, at, end.phase, end.requests.len(), end.receives.len()));
                    }
                }
            }
            left
        };
        for _ in 0..HEALING {
            if open(self).is_empty() {
                return;
            }
            self.turn(Duration::from_millis(1));
        }
        panic!("{what}, but not these: {:?}", open(self));
    }
}
