//! Tests of the end of an instance.

use driver::Device;
use hw_sim::{Profile, Sim, SimConfig};

use super::*;
use crate::config::HcaConfig;

/// `close` ends an instance and then drops it. An instance that is made in between has the number of the ended one,
/// and keeps it.
#[test]
fn an_instance_that_ends_takes_nothing_from_one_that_gets_its_number() {
    let sim = Sim::new(SimConfig::default());
    let device = sim.add_function(Profile::named("sim:a", [2, 0, 0, 0, 0, 1]));
    let function = Function::in_process(device as Arc<dyn Device>).expect("a function");
    let first = Hca::open(function, HcaConfig::new()).expect("bring-up");
    let instance = || first.opened().instance().expect("an instance");
    let mut ended = instance().expect("it is open");
    ended.own.end(&mut ended.shared.lock());
    let next = instance().expect("it is open");
    assert_eq!(next.own.number, ended.own.number);
    drop(ended);
    assert_eq!(first.instances(), 2);
    assert_eq!(next.close().expect("closed").instances_left, 1);
    assert_eq!(first.close().expect("closed").instances_left, 0);
}
