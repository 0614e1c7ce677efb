//! The self-test: it passes on every generation, and otherwise names the layer that fails.

use std::sync::Arc;

use driver::{Device, Function};
use hw_mlx::HcaConfig;
use hw_mlx::selftest::{self, Failed, Layer, Passed};
use hw_sim::{Fault, PortType, Profile, Sim, SimConfig, SimFunction};
use mlx_prm::CmdStatus;

/// Returns a simulated function without a cable or another function.
fn world(profile: Profile) -> (Sim, Arc<SimFunction>) {
    let sim = Sim::new(SimConfig::default());
    let function = sim.add_function(profile);
    (sim, function)
}

fn run(device: Arc<dyn Device>, config: HcaConfig) -> Result<Passed, Failed> {
    selftest::run(Function::in_process(device).expect("a function"), config)
}

fn test(function: &Arc<SimFunction>) -> Result<Passed, Failed> {
    run(Arc::clone(function) as Arc<dyn Device>, HcaConfig::new())
}

#[test]
fn a_function_alone_passes_on_every_generation_and_leaves_nothing_behind() {
    let mut ways = [0, 0];
    for name in Profile::generations() {
        let mut profile = Profile::generation(name).expect("a generation");
        if profile.port_type == PortType::InfiniBand {
            continue;
        }
        profile.pages.init = profile.pages.init.min(64);
        let can = profile.roce.max.fl_rc_qp_when_roce_enabled();
        for forced in [false, can] {
            profile.roce.set(|caps| {
                caps.set_fl_rc_qp_when_roce_enabled(forced);
            });
            let (sim, function) = world(profile.clone());
            let passed = test(&function).unwrap_or_else(|error| panic!("{name}: {error}"));
            assert_eq!((passed.forced, passed.bytes), (forced, 16 * 1024), "{name}");
            ways[usize::from(forced)] += 1;
            let report = sim.report(&function);
            assert!(
                report.is_clean() && report.refused.is_empty(),
                "{name}: {report:#?}"
            );
        }
    }
    assert!(ways.iter().all(|tried| *tried > 0), "{ways:?}");
}

/// The self-test passes if the vport's loopback is disabled, because forced loopback does not depend on it.
#[test]
fn a_function_whose_loopback_is_off_passes() {
    let (_sim, function) = world(Profile::default());
    let mut config = HcaConfig::new();
    config.loopback = false;
    run(function as Arc<dyn Device>, config).expect("passed");
}

#[test]
fn a_refused_command_is_named_with_the_layer_it_is_of() {
    for (opcode, command, count, layer) in [
        (0x102, "INIT_HCA", 1, Layer::BringUp),
        (0x200, "CREATE_MKEY", 1, Layer::Command),
        (0x500, "CREATE_QP", 1, Layer::Command),
        // The command is refused twice: with forced loopback, and then with the function's own address.
        (0x503, "INIT2RTR_QP", 2, Layer::Command),
    ] {
        let (sim, function) = world(Profile::default());
        sim.inject(
            &function,
            &Fault::CommandFailure {
                opcode: Some(opcode),
                status: CmdStatus::BAD_PARAM.0,
                syndrome: 0x77,
                count,
            },
        );
        let failed = test(&function).expect_err(command);
        assert_eq!(failed.layer, layer, "{failed}");
        assert!(failed.what.contains(command), "{failed}");
        test(&function).expect("it is as good as before");
    }
}

#[test]
fn firmware_that_refuses_forced_loopback_is_tried_by_its_own_address() {
    let (sim, function) = world(Profile::default());
    assert!(test(&function).expect("passed").forced);
    sim.inject(
        &function,
        &Fault::CommandFailure {
            opcode: Some(0x503),
            status: CmdStatus::BAD_PARAM.0,
            syndrome: 0x77,
            count: 1,
        },
    );
    assert!(!test(&function).expect("passed").forced);
}

#[test]
fn a_function_whose_interrupts_are_lost_is_told_from_one_that_does_nothing() {
    let (sim, function) = world(Profile::default());
    sim.inject(&function, &Fault::LostInterrupts(u32::MAX));
    let failed = test(&function).expect_err("no interrupt comes");
    assert_eq!(failed.layer, Layer::Interrupt, "{failed}");
}

/// Damaged bytes are reported with their place and values. Each case damages a later packet: of the Send, of the RDMA
/// Write, of the RDMA Read.
#[test]
fn damaged_bytes_are_reported_in_the_layer_of_data() {
    /// Number of packets of a message: 16 KiB, at the path MTU of the default port.
    const PACKETS: u32 = 16;
    for (spared, said) in [
        (0, "Send: byte 0x0 is 0xfb, 0x04 was sent"),
        (PACKETS, "RDMA Write: byte 0x0 is 0xf5, 0x0a was sent"),
        (2 * PACKETS - 1, "RDMA Write: byte 0x3c00 is "),
        (2 * PACKETS, "RDMA Read: byte 0x0 is 0xf6, 0x09 was sent"),
    ] {
        let (sim, function) = world(Profile::default());
        sim.inject(&function, &Fault::DamagedData { spared });
        let failed = test(&function).expect_err("a byte differs");
        assert_eq!(failed.layer, Layer::Data, "{failed}");
        assert!(failed.what.starts_with(said), "{failed}");
        sim.mend(&function);
        test(&function).expect("it is as good as before");
    }
}

/// The self-test names the layer in which a request is lost. Each fault survives the reset at the start of the test,
/// and affects the Send, the RDMA Write after it, or the RDMA Read after that.
#[test]
fn the_layer_in_which_something_is_lost_is_named() {
    for (fault, layer, said) in [
        (
            Fault::LostDoorbells { spared: 0 },
            Layer::Doorbell,
            "Send: 0 of 2 completions",
        ),
        (
            Fault::StuckQueues { spared: 0 },
            Layer::Queue,
            "Send: 0 of 2 completions",
        ),
        (
            Fault::LostCompletions { spared: 0 },
            Layer::Completion,
            "Send: 0 of 2 completions",
        ),
        (
            Fault::LostDoorbells { spared: 1 },
            Layer::Doorbell,
            "RDMA Write: 0 of 1 completions",
        ),
        (
            Fault::LostDoorbells { spared: 2 },
            Layer::Doorbell,
            "RDMA Read: 0 of 1 completions",
        ),
        (
            Fault::StuckQueues { spared: 1 },
            Layer::Queue,
            "RDMA Write: 0 of 1 completions",
        ),
        // The lost CQE is that of the receive or of the Send.
        (
            Fault::LostCompletions { spared: 1 },
            Layer::Completion,
            "Send: 1 of 2 completions",
        ),
        (
            Fault::LostCompletions { spared: 2 },
            Layer::Completion,
            "RDMA Write: 0 of 1 completions",
        ),
    ] {
        let (sim, function) = world(Profile::default());
        sim.inject(&function, &fault);
        let failed = test(&function).expect_err("something is lost");
        assert_eq!(failed.layer, layer, "{failed}");
        assert!(failed.what.starts_with(said), "{failed}");
    }
}
