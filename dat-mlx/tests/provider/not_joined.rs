//! A function that cannot take part in the network still opens and reaches the configured peers.

use std::fmt::Write as _;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};

use dat_core::NetworkEvent;
use dat_core::provider::{Provider, ProviderEvent};
use dat_mlx::{MlxProvider, NetworkState, Participation, ProviderConfig};
use driver::{Device, Function};
use hw_mlx::gid::gid_of;
use hw_mlx::{HcaConfig, MlxError};
use hw_sim::{Fault, Profile, Sim, SimConfig, SimFunction};
use mlx_prm::CmdStatus;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Dispatch, Event, Level, Metadata, Subscriber};

use crate::datapath::mad_from;

/// Changes the profile of a device.
pub(crate) type Shape = fn(&mut Profile);

/// A capability that participation in the network needs.
pub(crate) struct Missing {
    /// Name of the case.
    pub name: &'static str,
    /// Part of the text of the expected reason.
    pub why: &'static str,
    pub shape: Shape,
}

const fn missing(name: &'static str, why: &'static str, shape: Shape) -> Missing {
    Missing { name, why, shape }
}

/// All capabilities that participation needs. `profiles::matrix` brings up each generation without each of them.
pub(crate) const MISSING: [Missing; 10] = [
    missing("no Ethernet queues", "eth_net_offloads is 0", |profile| {
        profile.general.set(|caps| {
            caps.set_eth_net_offloads(false);
        });
    }),
    missing("no flow tables", "nic_flow_table is 0", |profile| {
        profile.general.set(|caps| {
            caps.set_nic_flow_table(false);
        });
    }),
    missing(
        "work queues of 32 entries",
        "log_max_wq_sz is less than the rings need",
        |profile| {
            profile.general.set(|caps| {
                caps.set_log_max_wq_sz(5);
            });
        },
    ),
    missing(
        "lists of one multicast address",
        "of which the vport's list holds 1",
        |profile| {
            profile.general.set(|caps| {
                caps.set_log_max_current_mc_list(0);
            });
        },
    ),
    // A station with one IPv6 address receives broadcasts, all nodes, and the solicited-node group of the address.
    missing(
        "lists of two multicast addresses",
        "of which the vport's list holds 2",
        |profile| {
            profile.general.set(|caps| {
                caps.set_log_max_current_mc_list(1);
            });
        },
    ),
    missing(
        "no flow tables of the receive side",
        "ft_support is 0",
        |profile| {
            profile.flow_table.set(|caps| {
                caps.flow_table_properties_nic_receive_mut()
                    .set_ft_support(false);
            });
        },
    ),
    missing(
        "flow tables of 4 entries",
        "log_max_ft_size is less than 3",
        |profile| {
            profile.flow_table.set(|caps| {
                caps.flow_table_properties_nic_receive_mut()
                    .set_log_max_ft_size(2);
            });
        },
    ),
    missing(
        "MAC addresses are not compared",
        "outer_dmac cannot be compared",
        |profile| fields(profile, false, true, true),
    ),
    missing(
        "Ethernet types are not compared",
        "outer_ether_type cannot be compared",
        |profile| fields(profile, true, false, true),
    ),
    missing(
        "IP protocols are not compared",
        "outer_ip_protocol cannot be compared",
        |profile| fields(profile, true, true, false),
    ),
];

fn fields(profile: &mut Profile, dmac: bool, ether_type: bool, protocol: bool) {
    profile.flow_table.set(|caps| {
        caps.flow_table_properties_nic_receive_mut()
            .ft_field_support_mut()
            .set_outer_dmac(dmac)
            .set_outer_ether_type(ether_type)
            .set_outer_ip_protocol(protocol)
            .set_outer_frag(true);
    });
}

fn world(shape: Shape) -> (Sim, Arc<SimFunction>) {
    let sim = Sim::new(SimConfig::default());
    let mut profile = Profile::named("sim:a", [2, 0, 0, 0, 0, 1]).ethernet();
    shape(&mut profile);
    let function = sim.add_function(profile);
    (sim, function)
}

fn open(function: &Arc<SimFunction>, network: Participation) -> Result<MlxProvider, MlxError> {
    let mut config = HcaConfig::new();
    config.addresses.push(neighbour(1).into());
    config.neighbours.push((neighbour(2), [2, 0, 0, 0, 0, 2]));
    let driver = Function::in_process(Arc::clone(function) as Arc<dyn Device>).expect("one");
    MlxProvider::open(
        driver,
        ProviderConfig {
            hca: config,
            network,
        },
    )
}

fn neighbour(n: u8) -> IpAddr {
    [192, 0, 2, n].into()
}

fn reports_not_joined(provider: &mut MlxProvider) -> bool {
    let event = ProviderEvent::Network(NetworkEvent::NotJoined);
    std::iter::from_fn(|| provider.next_event()).any(|one| one == event)
}

/// Checks that the adapter opened without the network, reports the reason, and reaches the configured peers only.
fn assert_alone(sim: &Sim, function: &Arc<SimFunction>, mut provider: MlxProvider, why: &str) {
    let state = provider.network_state();
    assert!(
        matches!(&state, NetworkState::Without(text) if text.contains(why)),
        "{why}: {state:?}"
    );
    assert!(reports_not_joined(&mut provider), "{why}");
    provider.route(gid_of(neighbour(2)), None).expect(why);
    provider
        .route(gid_of(neighbour(3)), None)
        .expect_err("nobody can be asked");
    let mut other = provider.opened().instance().expect(why).expect("open");
    assert!(reports_not_joined(&mut other), "{why}: a second instance");
    other.close().expect(why);
    let report = provider.close().expect(why);
    assert_eq!(report.objects_left, [], "{why}");
    assert!(sim.report(function).is_clean(), "{why}");
}

#[test]
fn a_function_without_a_capability_of_the_network_opens_without_and_says_why() {
    for Missing { why, shape, .. } in MISSING {
        let (sim, function) = world(shape);
        let provider = open(&function, Participation::IfPossible).expect(why);
        assert_alone(&sim, &function, provider, why);
        let error = open(&function, Participation::Required).expect_err(why);
        assert!(
            error
                .to_string()
                .starts_with("ARP and neighbour discovery are not possible: ")
                && error.to_string().contains(why),
            "{error}"
        );
        let mut provider = open(&function, Participation::Off).expect(why);
        assert_eq!(provider.network_state(), NetworkState::Off);
        assert!(
            !reports_not_joined(&mut provider),
            "{why}: it was not asked for"
        );
        provider.close().expect(why);
    }
}

/// If a card refuses CREATE_SQ, the adapter opens without the network, or fails to open if the network is required.
/// The syndrome is that of a card in real time mode (Linux commit 0f3caaa2c6fb).
#[test]
fn a_refusal_costs_the_network_and_no_more_unless_the_network_is_demanded() {
    let refusal = Fault::CommandFailure {
        opcode: Some(0x904),
        status: CmdStatus::BAD_PARAM.0,
        syndrome: 0x00d6_1c0b,
        count: 1,
    };
    let (sim, function) = world(|_| {});
    sim.inject(&function, &refusal);
    let provider = open(&function, Participation::IfPossible).expect("RDMA goes on");
    assert_alone(&sim, &function, provider, "syndrome 0x00d61c0b");
    sim.inject(&function, &refusal);
    let error = open(&function, Participation::Required).expect_err("it is demanded");
    assert!(error.to_string().contains("0x00d61c0b"), "{error}");
    let provider = open(&function, Participation::Required).expect("it is as good as before");
    assert_eq!(provider.network_state(), NetworkState::Joined);
    provider.close().expect("teardown");
}

/// If the device stops answering during the join, the opening fails, even if the network is optional.
#[test]
fn silence_in_the_middle_of_joining_ends_the_opening() {
    let (sim, function) = world(|_| {});
    sim.inject(
        &function,
        &Fault::CommandSilence {
            opcode: Some(0x904),
            count: 1,
        },
    );
    let error = open(&function, Participation::IfPossible).expect_err("silence");
    assert!(error.to_string().contains("CREATE_SQ"), "{error}");
}

/// One call of `poll_mad` skips a bounded number of datagrams that cannot be answered. A datagram behind more of them
/// is still delivered: the instance is woken to poll again.
#[test]
fn datagrams_of_strangers_do_not_stall_the_datagram_of_a_neighbour() {
    let (sim, function) = world(|_| {});
    let mut provider = open(&function, Participation::Off).expect("open");
    for _ in 0..65 {
        sim.deliver(&function, &mad_from([192, 0, 2], 77));
    }
    sim.deliver(&function, &mad_from([192, 0, 2], 2));
    let mut calls = 0;
    let (from, _) = loop {
        let limit = provider.now() + 1_000_000_000;
        assert!(provider.wait(limit).expect("alive"), "it is woken");
        calls += 1;
        if let Some(mad) = provider.poll_mad() {
            break mad;
        }
    };
    assert_eq!((calls, from.path.gid), (2, gid_of(neighbour(2))));
    provider.close().expect("closed");
}

/// A subscriber that keeps warnings: their text and fields, in one line each.
#[derive(Clone, Default)]
struct Warnings(Arc<Mutex<Vec<String>>>);

struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        write!(self.0, "{}={value:?} ", field.name()).expect("a string");
    }
}

impl Subscriber for Warnings {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= Level::WARN
    }
    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }
    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn event(&self, event: &Event<'_>) {
        let mut line = Line(String::new());
        event.record(&mut line);
        let mut lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        lines.push(line.0);
    }
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

/// Returns the warnings of an opening that succeeds.
fn warnings(function: &Arc<SimFunction>, network: Participation) -> Vec<String> {
    let kept = Warnings::default();
    // A place in the code whose first event comes while there is one subscriber asks that of its own thread, and other
    // tests' threads have none. While there are two, it asks both (tracing-core, `callsite::dispatchers`).
    let [dispatch, _second] = [(); 2].map(|()| Dispatch::new(kept.clone()));
    tracing::dispatcher::with_default(&dispatch, || {
        let provider = open(function, network).expect("it opens");
        provider.close().expect("closed");
    });
    std::mem::take(&mut *kept.0.lock().unwrap_or_else(PoisonError::into_inner))
}

/// An opening without the network is logged as a warning with the function and the reason, and so is a command whose
/// refusal costs something else. Without either, and if the network is not wanted, there is no warning.
#[test]
fn an_opening_without_an_optional_part_warns_with_the_reason() {
    let (sim, function) = world(|_| {});
    assert_eq!(warnings(&function, Participation::IfPossible), [""; 0]);
    // SET_DRIVER_VERSION is optional.
    sim.inject(
        &function,
        &Fault::CommandFailure {
            opcode: Some(0x10d),
            status: CmdStatus::BAD_PARAM.0,
            syndrome: 0x00ab_cdef,
            count: 1,
        },
    );
    let said = warnings(&function, Participation::IfPossible);
    let [line] = &said[..] else {
        panic!("{said:?}");
    };
    for part in [
        "message=going on without ",
        "the driver's name",
        "0x00abcdef",
        "sim:a",
    ] {
        assert!(line.contains(part), "{part}: {line}");
    }
    let (_sim, function) = world(MISSING[0].shape);
    let said = warnings(&function, Participation::IfPossible);
    let [line] = &said[..] else {
        panic!("{said:?}");
    };
    for part in [
        "message=no part in the network: peers are found among the configured neighbours only",
        MISSING[0].why,
        "sim:a",
    ] {
        assert!(line.contains(part), "{part}: {line}");
    }
    assert_eq!(warnings(&function, Participation::Off), [""; 0]);
}
