//! The self test: passes on every generation, and names the layer that a function does not get past.

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use driver::{Clock, Device, Function, Interrupt, Notices, SharedMemory};
use hw_mlx::HcaConfig;
use hw_mlx::selftest::{self, Failed, Layer, Passed};
use hw_sim::{Fault, PortType, Profile, Sim, SimConfig, SimFunction};
use mlx_prm::CmdStatus;

/// A function alone: no cable, no other function.
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

/// Loopback is the business of the vport's switch for others, and of nobody where it is forced.
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
        // With forced loopback, and by its own address.
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

/// A function on whose send doorbells nobody listens.
struct Deaf {
    function: Arc<SimFunction>,
    /// Doorbells that reach it before.
    heard: AtomicU32,
}

impl Device for Deaf {
    fn name(&self) -> &str {
        self.function.name()
    }

    fn config_read(&self, offset: u16, out: &mut [u8]) {
        self.function.config_read(offset, out);
    }

    fn config_write(&self, offset: u16, data: &[u8]) {
        self.function.config_write(offset, data);
    }

    fn bar(&self, index: u8) -> Option<SharedMemory> {
        self.function.bar(index)
    }

    fn bar_written(&self, index: u8, offset: u64, bytes: &[u8]) {
        // The doorbell of send queues, in every UAR page.
        let is_doorbell = offset & 0xfff == 0x800;
        let spend = |left: u32| left.checked_sub(1);
        if !is_doorbell
            || self
                .heard
                .fetch_update(Ordering::Relaxed, Ordering::Relaxed, spend)
                .is_ok()
        {
            self.function.bar_written(index, offset, bytes);
        }
    }

    fn reset(&self) {
        self.function.reset();
    }

    fn interrupt_count(&self) -> usize {
        self.function.interrupt_count()
    }

    fn set_interrupts(&self, vectors: Vec<Interrupt>) {
        self.function.set_interrupts(vectors);
    }

    fn dma_map(
        &self,
        iova: u64,
        memory: SharedMemory,
        offset: usize,
        bytes: usize,
    ) -> Result<(), String> {
        self.function.dma_map(iova, memory, offset, bytes)
    }

    fn dma_unmap(&self, iova: u64, bytes: usize) -> Result<(), String> {
        self.function.dma_unmap(iova, bytes)
    }

    fn iova_ranges(&self) -> Vec<RangeInclusive<u64>> {
        self.function.iova_ranges()
    }

    fn set_notices(&self, notices: Notices) {
        self.function.set_notices(notices);
    }

    fn clock(&self) -> Arc<dyn Clock> {
        self.function.clock()
    }
}

#[test]
fn a_doorbell_that_does_not_reach_the_device_is_named_whichever_it_is() {
    for (heard, said) in [
        (0, "Send: 0 of 2 completions"),
        (1, "RDMA Write: 0 of 1 completions"),
        (2, "RDMA Read: 0 of 1 completions"),
    ] {
        let (_sim, function) = world(Profile::default());
        let deaf = Deaf {
            function,
            heard: AtomicU32::new(heard),
        };
        let failed = run(Arc::new(deaf), HcaConfig::new()).expect_err("nobody listens");
        assert_eq!(failed.layer, Layer::Doorbell, "{failed}");
        assert!(failed.what.starts_with(said), "{failed}");
    }
}
