//! A function that was closed uncleanly can be opened again in the same process. Memory that the device did not
//! return stays unused only as long as the device could access it.

use std::sync::Arc;

use dat_core::provider::Provider;
use dat_mlx::MlxProvider;
use driver::{Device, Function};
use hw_mlx::HcaConfig;
use hw_sim::{Fault, Profile, Sim, SimConfig, SimFunction};
use mlx_prm::Opcode;

fn open(function: &Arc<SimFunction>) -> Result<MlxProvider, hw_mlx::MlxError> {
    let function =
        Function::in_process(Arc::clone(function) as Arc<dyn Device>).expect("a function");
    MlxProvider::open(function, HcaConfig::new())
}

fn refusal(opcode: Opcode) -> Fault {
    Fault::CommandFailure {
        opcode: Some(opcode.0),
        status: 0x0f,
        syndrome: 0,
        count: 1,
    }
}

#[test]
fn a_refused_destroy_does_not_stand_in_the_way_of_the_next_open() {
    let sim = Sim::new(SimConfig::default());
    let function = sim.add_function(Profile::default());
    let mut provider = open(&function).expect("the first open");
    let mut cq = provider.create_cq(15, 1).expect("a CQ");
    sim.inject(&function, &refusal(Opcode::DESTROY_CQ));
    provider.destroy_cq(&mut cq).expect_err("refused");
    drop(cq);
    let error = provider
        .close()
        .expect_err("its event queue is referred to");
    assert_eq!(error.report.objects_left, [("CQ", 1)]);
    open(&function)
        .expect("the second open")
        .close()
        .expect("closed");
}

#[test]
fn queues_that_were_dropped_do_not_stand_in_the_way_of_the_next_open() {
    let sim = Sim::new(SimConfig::default());
    let function = sim.add_function(Profile::default());
    let mut provider = open(&function).expect("the first open");
    let cq = provider.create_cq(15, 1).expect("a CQ");
    drop(provider);
    drop(cq);
    open(&function)
        .expect("the second open")
        .close()
        .expect("closed");
}

#[test]
fn an_open_that_failed_half_way_can_be_tried_again() {
    let sim = Sim::new(SimConfig::default());
    let function = sim.add_function(Profile::default());
    for opcode in [
        Opcode::CREATE_CQ,
        Opcode::CREATE_MKEY,
        Opcode::CREATE_QP,
        Opcode::RTR2RTS_QP,
    ] {
        sim.inject(&function, &refusal(opcode));
        open(&function).expect_err("refused");
        open(&function)
            .expect("the next open")
            .close()
            .expect("closed");
    }
}
