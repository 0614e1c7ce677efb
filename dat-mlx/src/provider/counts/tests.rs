use std::sync::mpsc;
use std::time::Duration;

use driver::{Device, Function};
use hw_mlx::HcaConfig;
use hw_sim::{Profile, Sim, SimConfig};

use super::super::MlxProvider;
use super::*;
use crate::config::{Participation, ProviderConfig};

/// An instance has the locks of QP1 and of the Ethernet port also while it waits for a command that repairs them.
#[test]
#[expect(
    clippy::disallowed_methods,
    reason = "a thread that waits must not stop the test"
)]
fn reading_counters_does_not_wait_for_the_locks_of_qp1_and_the_ethernet_port() {
    let sim = Sim::new(SimConfig::default());
    let function = sim.add_function(Profile::named("sim1", [2, 0, 0, 0, 0, 1]).ethernet());
    let driven = Function::in_process(function as Arc<dyn Device>).expect("a function");
    let config = ProviderConfig {
        hca: HcaConfig::new(),
        network: Participation::Required,
    };
    let provider = MlxProvider::open(driven, config).expect("it opens");
    let opened = provider.opened();
    let (tell, told) = mpsc::channel();
    let used = (provider.common.network(), provider.common.gsi());
    let reader = std::thread::spawn(move || tell.send(opened.counters().is_some()));
    let read = told.recv_timeout(Duration::from_secs(120));
    drop(used);
    let sent = reader.join().expect("no panic");
    assert_eq!((read, sent), (Ok(true), Ok(())));
    provider.close().expect("it closes");
}
