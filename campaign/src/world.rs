//! State and main loop of a simulation: two cards, their virtual functions, the wire between the cards, and the steps
//! until all activity has ended.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use hw_sim::{
    CardConfig, CardRules, Fault, FaultCause, LinkFaults, LinkId, Meeting, Profile, Sim, SimCard,
    VfSettings,
};
use mlx_prm::Opcode;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use udapl::registry::Registry;
use udapl::{DatResult, EpHandle};

use crate::bytes::{self, Freed};
use crate::cover::Coverage;
use crate::driver_warnings::WarningCollector;
use crate::end::{CloseNotice, Link, Name};
use crate::honest::Honest;
use crate::keys::Key;
use crate::process::Process;
use crate::side::{APART, LOG_SHORT_EQ, Open, Side, SideConfig, offered_tag};
use crate::trace::Trace;
use crate::{CALL_LIMIT, Feature, Plan, calls, judge};

/// Number of additional instances of a function in a simulation with `Feature::Instances`, by the function's index
/// modulo 4.
const MORE: [usize; 4] = [2, 0, 1, 0];
/// Maximum number of freed regions whose bytes are still checked.
const WATCHED: usize = 64;
/// Number of steps between two checks of all bytes.
const CHECK_EVERY: u32 = 16;
/// Virtual duration of a call above which pending connects of other sides may time out. A call of a healthy device must
/// not take longer, except an opening.
const LONG_CALL: Duration = Duration::from_millis(50);

/// Number of captured packets that the attacker can use: the most recent ones.
pub const CAPTURED_FRAMES: usize = 64;
/// Commands that end a peer's access to memory. At least four of ten random command faults wait for one of these.
pub const ENDINGS: [Opcode; 4] = [
    Opcode::DESTROY_MKEY,
    Opcode::TO_ERR_QP,
    Opcode::TO_RST_QP,
    Opcode::DESTROY_QP,
];

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
    pub warnings: WarningCollector,
    pub registry: Registry,
    trace: Option<Trace>,
    /// Last number drawn. Numbers identify messages, requests and connection attempts, and order events.
    pub number: u64,
    /// Number of changes of MAC addresses so far.
    pub macs: u16,
    /// Virtual time in ns at which the current fault of the wire (loss, partition, pulled cable) ends; `None` if there
    /// is none.
    pub until: Option<u64>,
    /// Virtual time in ns at which the wire stops duplicating frames; `None` if it does not duplicate frames.
    pub repeats: Option<u64>,
    /// Keys of an adapter that has just closed, with which its peers write. Empty except during these attacks.
    pub closed_keys: Vec<Key>,
    /// Endpoints that must get an event because their peer has closed.
    pub close_notices: Vec<CloseNotice>,
    /// Virtual time in ns at which link training ends after the last fault of the wire. Connection requests before that
    /// time may be lost.
    pub trained: u64,
    pub healing: bool,
    /// True in a simulation with a script: every connection request is accepted. Before the last phase, an opening does
    /// not remove faults that wait for a command.
    pub scripted: bool,
    /// Number of commands that the driver of each side has given.
    pub commands: Vec<u64>,
    /// The honest programs with functions of their own, in a run with `Feature::Neighbours`.
    pub honest: Option<Honest>,
}

impl World {
    pub fn new(plan: &Plan, sim: Sim, trace: Option<Trace>) -> Self {
        let warnings = WarningCollector::new();
        let of_card = (plan.functions / 2).max(1);
        let cards = [0, 1].map(|card: u8| {
            let mut profile = Profile::named(&format!("card{card}"), [2, 0xca, 0, card, 0, 0]);
            if let Some(facts) = &mut profile.virtual_functions
                && plan.features.contains(&Feature::Pages)
            {
                (facts.pages.boot, facts.pages.init) = (2, 10);
                facts.pages.given_back = 3;
            }
            let short = plan.features.contains(&Feature::Overrun);
            if short {
                profile.general.set(|page| {
                    page.set_log_max_eq_sz(LOG_SHORT_EQ);
                });
            }
            let own = u16::from(plan.features.contains(&Feature::Neighbours));
            let mut config = CardConfig::new(profile, of_card + own);
            if short {
                // Link training is off, so each carrier change is a link change and causes an event.
                config.rules.link_training = Duration::ZERO;
            }
            sim.add_card(&config)
        });
        let has = |feature| plan.features.contains(&feature);
        let mut sides: Vec<Side> = Vec::new();
        let mut processes = BTreeMap::new();
        let mut add = |place: usize, instance: usize| {
            let (at, index) = (place / usize::from(of_card), place % usize::from(of_card));
            let number = u8::try_from(sides.len()).expect("few");
            let settings = VfSettings {
                mac: Some([2, 0xca, 0, 0, 1, number]),
                ..VfSettings::default()
            };
            assert!(instance > 0 || cards[at].set_vf(index, settings));
            let function = cards[at].virtual_function(index).expect("just made");
            let side_config = SideConfig {
                tight: has(Feature::Evds) && number % 2 == 0,
                shares: has(Feature::Srq) && number % 3 != 2,
                windows: has(Feature::Windows) || has(Feature::Invalidation),
                narrow: has(Feature::Overrun) && number % 2 == 1,
                mixed: has(Feature::Strangers) && number % 4 == 2,
                several: has(Feature::Instances) && MORE[place % MORE.len()] > 0,
                apart: instance as u64 * APART,
            };
            let seed = plan.seed << 8 | u64::from(number);
            let process = has(Feature::Handover).then(|| {
                let of_function = processes.entry(place);
                let new = || Arc::new(Process::new(Arc::clone(&function)));
                Arc::clone(of_function.or_insert_with(new))
            });
            sides.push(Side::new(
                (function, process),
                (place, at),
                seed,
                side_config,
            ));
        };
        let places = 2 * usize::from(of_card);
        for place in 0..places {
            add(place, 0);
        }
        for place in (0..places).filter(|_| has(Feature::Instances)) {
            for instance in 1..=MORE[place % MORE.len()] {
                add(place, instance);
            }
        }
        if has(Feature::Strangers) {
            sim.overhear(CAPTURED_FRAMES);
        }
        let commands = vec![0; sides.len()];
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
            warnings,
            registry: Registry::with_conf(""),
            trace,
            number: 0,
            macs: 0,
            until: None,
            repeats: None,
            closed_keys: Vec::new(),
            close_notices: Vec::new(),
            trained: 0,
            healing: false,
            scripted: false,
            commands,
            honest: None,
        }
    }

    pub fn run(&mut self) {
        // With short event queues, the card's port events would also overrun the event queues of the honest programs.
        if self.has(Feature::Neighbours) && !self.has(Feature::Overrun) {
            self.honest = Some(Honest::new(&self.cards, self.plan.seed, self.of_card()));
        }
        for side in 0..self.sides.len() {
            self.reopen(side);
        }
        for step in 0..self.plan.steps {
            // Each step has its own random generator, so that an omitted action in one step changes no later random
            // numbers.
            self.random = ChaCha8Rng::seed_from_u64(self.plan.seed ^ u64::from(step + 1) << 40);
            let side = self.random.random_range(0..self.sides.len());
            self.action(side);
            self.inject_fault();
            if self.has(Feature::Strangers) && self.random.random_ratio(1, 2) {
                self.attack_from_network();
            }
            let moment = self.moment();
            self.run_once(moment);
            if step % CHECK_EVERY == 0 {
                self.check_all();
            }
        }
        self.heal();
    }

    pub fn has(&self, feature: Feature) -> bool {
        self.plan.features.contains(&feature)
    }

    /// Returns the number of virtual functions of a card, without the function of an honest program.
    pub fn of_card(&self) -> usize {
        usize::from(self.plan.functions / 2).max(1)
    }

    pub fn next_number(&mut self) -> u64 {
        self.number += 1;
        self.number
    }

    pub fn now(&self) -> u64 {
        self.sim.clock().now().0
    }

    /// Runs an action of a side, checks its duration in virtual time, and counts the commands of the side's function
    /// during the action for the named call.
    pub fn timed<R>(
        &mut self,
        side: usize,
        what: &'static str,
        call: impl FnOnce(&mut Self) -> R,
    ) -> R {
        let before = self.now();
        let answer = call(self);
        let took = Duration::from_nanos(self.now() - before);
        assert!(took <= CALL_LIMIT, "{what} took {took:?}");
        let calm = !self.sides[side].tampered && !self.has(Feature::Interrupts);
        assert!(
            took <= LONG_CALL || !calm || what == "dat_ia_open",
            "side {side}: {what} took {took:?} of a healthy device"
        );
        if took > LONG_CALL {
            self.spoil("a call that took long", |link| link.up != [true, true]);
            self.spoil_honest();
        }
        let met = self.sim.take_meetings(&self.sides[side].function);
        let ends = |opcode: u16| ENDINGS.iter().any(|ending| ending.0 == opcode);
        let unanswered = met
            .keys()
            .any(|&(opcode, meeting)| meeting == Meeting::Silent && ends(opcode));
        for other in self.kin(side) {
            self.sides[other].unanswered |= unanswered;
        }
        self.commands[side] += met
            .iter()
            .filter(|((_, meeting), _)| *meeting != Meeting::Starved)
            .map(|(_, times)| times)
            .sum::<u64>();
        self.cover.commands(what, &met);
        answer
    }

    /// Returns the state of an adapter under the name that the coverage uses.
    pub fn state_of(&self, side: usize) -> &'static str {
        let one = &self.sides[side];
        match &one.open {
            Some(open) if open.dead => "dead",
            Some(_) | None if one.tampered => "tampered",
            Some(_) | None => "healthy",
        }
    }

    /// Makes a call on an open adapter and counts it under the adapter's state.
    pub fn call<R>(
        &mut self,
        side: usize,
        name: &'static str,
        call: impl FnOnce(&mut Open) -> DatResult<R>,
    ) -> Option<DatResult<R>> {
        self.sides[side].open.as_ref()?;
        let state = self.state_of(side);
        let answer = self.timed(side, name, |world| {
            world.sides[side].open.as_mut().map(call)
        })?;
        self.cover.call(name, state, answer.is_ok());
        self.trace_line(
            side,
            format_args!("{name}, {state}: {:?}", answer.as_ref().err()),
        );
        Some(answer)
    }

    /// Makes a call on an endpoint, counts the call under the endpoint's state before it, and checks the state after
    /// it.
    pub fn ep_call<R>(
        &mut self,
        side: usize,
        name: &'static str,
        ep: EpHandle,
        call: impl FnOnce(&mut Open) -> DatResult<R>,
    ) -> Option<DatResult<R>> {
        let open = self.sides[side].open.as_ref()?;
        let state = |open: &Open| open.ia.ep_get_status(ep).ok().map(|status| status.state);
        let before = state(open)?;
        let answer = self.timed(side, name, |world| {
            world.sides[side].open.as_mut().map(call)
        })?;
        self.cover.call(name, judge::name(before), answer.is_ok());
        let after = self.sides[side].open.as_ref().and_then(state);
        self.trace_line(
            side,
            format_args!(
                "{name} {ep:?}, {before:?} to {after:?}: {:?}",
                answer.as_ref().err()
            ),
        );
        if let Err(wrong) = judge::judge(name, before, after, answer.as_ref().err()) {
            panic!("side {side}: {wrong}");
        }
        Some(answer)
    }

    /// Adds a line to the trace, if this run writes one.
    pub fn trace_line(&self, side: usize, text: std::fmt::Arguments<'_>) {
        if let Some(trace) = &self.trace {
            trace.line(self.now(), side, text);
        }
    }

    /// Records that an event may end the connections and attempts that `which` selects.
    pub fn spoil(&mut self, why: &'static str, which: impl Fn(&Link) -> bool) {
        for link in &mut self.links {
            if which(link) {
                link.spoil(why);
            }
        }
    }

    /// Records a fault of the wire: it may lose any frame.
    pub fn spoil_wire(&mut self) {
        self.spoil("the wire", |_| true);
        self.spoil_honest();
        self.close_notices.clear();
    }

    /// Records that the current operation of the honest programs is not judged.
    fn spoil_honest(&mut self) {
        if let Some(honest) = &mut self.honest {
            honest.spoil();
        }
    }

    /// Records an event at an adapter that may end its connections and attempts.
    pub fn spoil_side(&mut self, why: &'static str, side: usize) {
        let place = self.sides[side].place;
        self.spoil(why, |link| link.concerns(side, place));
    }

    /// Draws the time until the next step.
    pub fn moment(&mut self) -> Duration {
        let micros = match self.random.random_range(0..10) {
            0..=5 => self.random.random_range(1..20),
            6..=8 => self.random.random_range(20..2_000),
            _ => self.random.random_range(2_000..200_000),
        };
        Duration::from_micros(micros)
    }

    /// Runs one loop iteration of every program that does not sleep, then advances virtual time by `moment`.
    pub fn run_once(&mut self, moment: Duration) {
        for side in 0..self.sides.len() {
            self.crowd(side);
        }
        for side in 0..self.sides.len() {
            let sleeps = self.sleeps(side);
            if sleeps == Some(true) {
                continue;
            }
            self.timed(side, calls::PROGRESS, |world| {
                if let Some(open) = &mut world.sides[side].open {
                    open.ia.progress();
                }
            });
            if sleeps.is_none() {
                self.events(side);
            }
        }
        self.check_close_notices();
        self.run_honest_once();
        self.sim.advance(moment);
        if self.until.is_some_and(|until| self.now() >= until) {
            self.mend_wire();
        }
        self.mend_repeats();
    }

    /// Runs one loop iteration of the honest programs, if there are any.
    fn run_honest_once(&mut self) {
        let is_disturbed = self.until.is_some() || self.now() < self.trained;
        let Some(honest) = self.honest.as_mut().filter(|_| !self.healing) else {
            return;
        };
        honest.run_once(&mut self.cover, is_disturbed);
    }

    /// Ends all faults of the wire except its delay, and brings both ports up.
    pub fn mend_wire(&mut self) {
        self.until = None;
        let training = CardRules::default().link_training.as_nanos();
        self.trained = self.now() + u64::try_from(training).expect("a moment");
        self.sim.heal();
        for card in &self.cards {
            self.sim.inject(&card.physical(), &Fault::LinkUp);
        }
    }

    /// Checks that no byte outside of granted memory has changed, and that no device or driver reports an error.
    pub fn check_all(&self) {
        assert_eq!(
            self.warnings.first(),
            None,
            "a driver logged a wrong completion entry"
        );
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
                for window_memory in open
                    .window_memories
                    .iter()
                    .filter(|window_memory| window_memory.closed)
                {
                    if let Some(at) = bytes::changed(&window_memory.region.memory) {
                        panic!(
                            "byte {at} of memory of side {side} has changed, which no window opens"
                        );
                    }
                }
                let counter = bytes::number(&open.counter.memory, 0);
                assert!(
                    counter <= open.asked && open.counted.last().is_none_or(|was| *was < counter),
                    "the counter of side {side} is {counter}, peers asked {} times and were told {:?}",
                    open.asked,
                    open.counted.last()
                );
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
                .filter(|fault| fault.cause == FaultCause::Unmapped)
                .collect();
            assert!(unmapped.is_empty(), "side {side}: {unmapped:?}");
        }
        for function in self.honest.iter().flat_map(Honest::functions) {
            let report = self.sim.report(function);
            assert!(report.driver_bugs.is_empty(), "{:?}", report.driver_bugs);
            assert!(report.dma_faults.is_empty(), "{:?}", report.dma_faults);
        }
    }

    /// Adds memory that no peer may access any more to the regions whose bytes are checked.
    pub fn watch(&mut self, freed: Freed) {
        self.freed.push_back(freed);
        if self.freed.len() > WATCHED {
            self.check_all();
            self.freed.pop_front();
        }
    }
}
