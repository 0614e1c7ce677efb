//! The provider on every generation that the simulator has a profile of, brought up under the variations between
//! cards.

mod matrix;
#[path = "../../../../hw-sim/tests/generations_page/mod.rs"]
pub mod page;

use std::sync::Arc;

use driver::{Device, Function};
use hw_sim::card::CardConfig;
use hw_sim::{CardRules, Profile, Sim, SimCard, SimConfig, SimFunction};

/// A card alone in its world, and the function of it that is driven.
struct World {
    sim: Sim,
    card: SimCard,
    function: Arc<SimFunction>,
}

impl World {
    /// The physical function of a card of this kind, or its virtual one.
    fn of_card(profile: Profile, is_virtual: bool, rules: CardRules) -> Self {
        let sim = Sim::new(SimConfig::default());
        let config = CardConfig::new(profile, u16::from(is_virtual)).with_rules(rules);
        let card = sim.add_card(&config);
        let function = card.virtual_function(0).unwrap_or_else(|| card.physical());
        Self {
            sim,
            card,
            function,
        }
    }

    fn driver_function(&self) -> Function {
        Function::in_process(Arc::clone(&self.function) as Arc<dyn Device>).expect("a function")
    }

    /// Checks that nothing leaked, is held, faulted or was done wrong.
    fn assert_clean(&self, case: &str) {
        let report = self.sim.report(&self.function);
        assert!(report.is_clean(), "{case}: {report:#?}");
    }
}

fn generation(name: &str) -> Profile {
    Profile::generation(name).expect("a generation")
}
