//! Bring-up of the provider on every generation that the simulator has a profile of, under the variations between
//! cards.

mod matrix;
#[path = "../../../../hw-sim/tests/generations_page/mod.rs"]
pub mod page;

use std::sync::Arc;

use driver::{Device, Function};
use hw_sim::card::CardConfig;
use hw_sim::{CardRules, Profile, Sim, SimCard, SimConfig, SimFunction};

/// A simulator with one card, and the function of the card that is driven.
struct World {
    sim: Sim,
    card: SimCard,
    function: Arc<SimFunction>,
}

impl World {
    /// Adds a card with this profile. Drives its virtual function if `is_virtual`, otherwise its physical function.
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

    /// Checks that the function has leaked no object, holds no memory, had no fault and saw no driver error.
    fn assert_clean(&self, case: &str) {
        let report = self.sim.report(&self.function);
        assert!(report.is_clean(), "{case}: {report:#?}");
    }
}

fn generation(name: &str) -> Profile {
    Profile::generation(name).expect("a generation")
}
