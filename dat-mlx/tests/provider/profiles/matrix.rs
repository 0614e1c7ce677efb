//! Bring-up on every generation, as physical and as virtual function, under all variations between cards.
//!
//! Each case either comes up, or ends with an error that names the missing capability. The expected results are in
//! [`AXES`], and in [`MISSING`] for participation in the network. The test compares the table of actual results with
//! the one in `docs/generations.md`.

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use dat_mlx::{MlxProvider, NetworkState, Participation, ProviderConfig};
use driver::{Device, Function};
use hw_mlx::VportAdmin;
use hw_mlx::{AsyncEvent, Hca, HcaConfig};
use hw_sim::{CardRules, Fault, LinkState, PortType, Profile, VfSettings};
use mlx_prm::{
    AccessRegIn, ModifyNicVportContextIn, QueryNicVportContextIn, QuerySqIn, RegisterId,
};

use super::page::keep;
use super::{World, generation};
use crate::not_joined::{MISSING, Missing, Shape};

/// The expected result of a bring-up.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Expect {
    Up,
    /// The function comes up but does not join the network, for this reason.
    Alone(&'static str),
    /// The bring-up fails with an error that contains this text.
    Refused(&'static str),
}

/// A variation between cards, firmwares, hosts or times.
#[derive(Clone, Copy)]
struct Axis {
    name: &'static str,
    shape: fn(&mut Profile, &mut HcaConfig),
    expect: Expect,
    /// Expected result for a virtual function. It may differ, because the physical function controls the vport.
    of_virtual: Expect,
}

const fn up(name: &'static str, shape: fn(&mut Profile, &mut HcaConfig)) -> Axis {
    Axis {
        name,
        shape,
        expect: Expect::Up,
        of_virtual: Expect::Up,
    }
}

const fn refused(
    name: &'static str,
    why: &'static str,
    shape: fn(&mut Profile, &mut HcaConfig),
) -> Axis {
    Axis {
        name,
        shape,
        expect: Expect::Refused(why),
        of_virtual: Expect::Refused(why),
    }
}

/// Returns the variation in which a device lacks this capability, and the change of the profile that removes it.
fn alone(missing: &Missing) -> (Axis, Shape) {
    let axis = Axis {
        name: missing.name,
        shape: |_, _| {},
        expect: Expect::Alone(missing.why),
        of_virtual: Expect::Alone(missing.why),
    };
    (axis, missing.shape)
}

/// Image of register PAOS that switches port 1 off: local_port 1, admin_status 2, and the enable bit ase.
const PORT_DOWN: [u8; 16] = [0, 1, 2, 0, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
const NEVER_BOOTS: Expect = Expect::Refused("initializing");
const LINK_DOWN: &str = "link down at start, up later";
const VPORT_DOWN: &str = "vport down at start, up later";
const VPORT_OFF: &str = "vport not enabled by its owner";
const PORT_OFF: &str = "port switched off by an earlier driver (PAOS)";
const MTU_9022: &str = "MTU of 9022 bytes";
/// Number of the first send queue of a simulated function, which is its Ethernet port's.
const FIRST_SQN: u32 = 0x80_0003;
const INLINE_NETWORK: &str = "inline mode of a virtual function's vport: network headers";
const INLINE_TRANSPORT: &str = "inline mode of a virtual function's vport: transport headers";

const AXES: &[Axis] = &[
    up("as it is", |_, _| {}),
    refused("cqe_version 0", "cqe_version", |profile, _| {
        profile.general.set(|caps| {
            caps.set_cqe_version(0);
        });
    }),
    up("time stamps: real time only", |profile, _| {
        formats(profile, 1)
    }),
    up("time stamps: both", |profile, _| formats(profile, 2)),
    up("one vector", |profile, _| profile.msix_vectors = 1),
    up("two vectors", |profile, _| profile.msix_vectors = 2),
    up(LINK_DOWN, |profile, _| profile.carrier_without_link = false),
    up(VPORT_DOWN, |_, _| {}),
    Axis {
        of_virtual: NEVER_BOOTS,
        ..up(VPORT_OFF, |_, _| {})
    },
    up(PORT_OFF, |_, _| {}),
    // IP counts 22 bytes less: Ethernet header, VLAN tag and check sequence.
    up(MTU_9022, |_, config| config.port_mtu = Some(9000)),
    up("MAC of zeros", |profile, _| profile.mac = [0; 6]),
    up("doorbell pages of 64 KiB after a reset", |profile, _| {
        profile.general.current.set_log_uar_page_sz(4);
    }),
    up("no doorbell pages of 4 KiB (uar_4k 0)", |profile, _| {
        profile.general.set(|caps| {
            caps.set_uar_4k(false);
        });
    }),
    up("no native port number (num_vhca_ports 0)", |profile, _| {
        profile.general.set(|caps| {
            caps.set_num_vhca_ports(0);
        });
    }),
    up("a native port number (num_vhca_ports 1)", |profile, _| {
        profile.general.set(|caps| {
            caps.set_num_vhca_ports(1);
        });
    }),
    up(INLINE_NETWORK, |profile, _| inline_by_vport(profile)),
    up(INLINE_TRANSPORT, |profile, _| inline_by_vport(profile)),
    refused("queue pages of 64 KiB", "log_pg_sz", |profile, _| {
        profile.general.set(|caps| {
            caps.set_log_pg_sz(16);
        });
    }),
    refused("interface step 0 only", "ISSI 1", |profile, _| {
        profile.issi = 1
    }),
    up("command checksums on", |_, config| {
        config.command_checksums = true
    }),
    up("command checksums not to be had", |profile, config| {
        config.command_checksums = true;
        profile.general.set(|caps| {
            caps.set_cmdif_checksum(0);
        });
    }),
    up("8 queue pairs, completion queues and keys", |profile, _| {
        profile.general.set(|caps| {
            caps.set_log_max_qp(3).set_log_max_cq(3).set_log_max_mkey(3);
        });
    }),
    up("firmware pages in one command", |profile, _| {
        profile.pages.boot = 6;
        profile.pages.init = 12868;
        profile.pages.in_one_command = true;
    }),
    up("one firmware page", |profile, _| {
        profile.pages.boot = 0;
        profile.pages.init = 1;
    }),
    up(
        "UMR may change neither atomic bit nor page size",
        |profile, _| {
            profile.general.set(|caps| {
                caps.set_umr_modify_atomic_disabled(true)
                    .set_umr_modify_entity_size_disabled(true);
            });
        },
    ),
    up("RoCE v2 only", |profile, _| {
        profile.roce.set(|caps| {
            caps.set_roce_version(1 << 2);
        });
    }),
    up(
        "no SET_DRIVER_VERSION, no memory windows, no vport counters",
        |profile, _| {
            profile.general.set(|caps| {
                caps.set_driver_version(false)
                    .set_imaicl(false)
                    .set_vport_counters(false);
            });
        },
    ),
    up("no atomics", |profile, _| {
        profile.general.set(|caps| {
            caps.set_atomic(false);
        });
    }),
    up("RoCE to be switched on", |profile, _| {
        profile.general.set(|caps| {
            caps.set_roce_rw_supported(true);
        });
        profile.general.current.set_roce(false);
    }),
    refused("no RoCE", "roce", |profile, _| {
        profile.general.set(|caps| {
            caps.set_roce(false);
        });
    }),
    refused("no reliable connections", "rc", |profile, _| {
        profile.general.set(|caps| {
            caps.set_rc(false);
        });
    }),
    refused("RoCE v1 only", "roce_version", |profile, _| {
        profile.roce.set(|caps| {
            caps.set_roce_version(1);
        });
    }),
    up("lists of one unicast address", |profile, _| {
        profile.general.set(|caps| {
            caps.set_log_max_current_uc_list(0);
        });
    }),
    up("lists of four multicast addresses", |profile, _| {
        profile.general.set(|caps| {
            caps.set_log_max_current_mc_list(2);
        });
    }),
    up("one transport domain, one TIS", |profile, _| {
        profile.general.set(|caps| {
            caps.set_log_max_transport_domain(0).set_log_max_tis(0);
        });
    }),
    up("no counters of queue pairs", |profile, _| {
        profile.general.set(|caps| {
            caps.set_max_qp_cnt(0);
        });
    }),
    up("four event queues at most", |profile, _| {
        profile.general.set(|caps| {
            caps.set_max_num_eqs(4);
        });
    }),
    refused("three event queues at most", "max_num_eqs", |profile, _| {
        profile.general.set(|caps| {
            caps.set_max_num_eqs(3);
        });
    }),
    refused(
        "event queues of 64 entries",
        "log_max_eq_sz",
        |profile, _| {
            profile.general.set(|caps| {
                caps.set_log_max_eq_sz(6);
            });
        },
    ),
    refused(
        "completion queues of 64 entries",
        "log_max_cq_sz",
        |profile, _| {
            profile.general.set(|caps| {
                caps.set_log_max_cq_sz(6);
            });
        },
    ),
    refused("two event queues at most", "log_max_eq", |profile, _| {
        profile.general.set(|caps| {
            caps.set_log_max_eq(1);
        });
    }),
];

fn formats(profile: &mut Profile, format: u32) {
    profile.roce.set(|caps| {
        caps.set_qp_ts_format(format);
    });
    profile.general.set(|caps| {
        caps.set_sq_ts_format(format).set_rq_ts_format(format);
    });
}

fn inline_by_vport(profile: &mut Profile) {
    profile.eth_offloads.set(|caps| {
        caps.set_wqe_inline_mode(1);
    });
}

/// Lets the physical function's driver do what this case needs before our driver opens the function: switch the port
/// off, set the port's MTU, or set the headers that send queues of the virtual function's vport must have inline.
fn prepare(axis: &Axis, world: &World, is_virtual: bool) {
    let inline = |mode| {
        let mut input = ModifyNicVportContextIn::new();
        input.set_other_vport(true).set_vport_number(1);
        input.field_select_mut().set_min_inline(true);
        input.nic_vport_context_mut().set_min_wqe_inline_mode(mode);
        input
    };
    let owner = |port_mtu| {
        let physical: Arc<dyn Device> = world.card.physical();
        let function = Function::in_process(physical).expect("a function");
        let mut config = HcaConfig::new();
        config.port_mtu = port_mtu;
        Hca::open(function, config).expect("the owner's driver")
    };
    match axis.name {
        PORT_OFF => {
            let mut owner = owner(None);
            let mut input = AccessRegIn::new();
            input.set_register_id(RegisterId::PAOS.bits());
            let written = owner.exec_reading(&input, &PORT_DOWN, PORT_DOWN.len());
            written.expect("PAOS");
            owner.close().expect("closed");
        }
        // A virtual function may not set the port's MTU.
        MTU_9022 if is_virtual => {
            owner(Some(9000)).close().expect("closed");
        }
        _ => {
            // The reset of a physical function sets its own vport's mode back to 0.
            if let Some(mode) = inline_mode(axis).filter(|_| is_virtual) {
                let mut owner = owner(None);
                owner.exec(&inline(mode)).expect("the vport's mode");
                owner.close().expect("closed");
            }
        }
    }
}

/// Returns the inline mode that the owner of a virtual function sets for its vport in this case.
fn inline_mode(axis: &Axis) -> Option<u32> {
    match axis.name {
        INLINE_NETWORK => Some(2),
        INLINE_TRANSPORT => Some(3),
        _ => None,
    }
}

/// Waits longer than a link trains.
fn wait_for_training(hca: &mut Hca) {
    let until = hca.now() + Duration::from_secs(1);
    while hca.wait(until).expect("alive") {}
}

/// Runs one case. Returns the entry for the table, or a description of the unexpected result.
fn run(
    axis: &Axis,
    mut profile: Profile,
    is_virtual: bool,
    case: &str,
) -> Result<&'static str, String> {
    let mut config = HcaConfig::new();
    config.seed = Some(1);
    (axis.shape)(&mut profile, &mut config);
    let config = ProviderConfig {
        hca: config,
        network: Participation::IfPossible,
    };
    let expect = if is_virtual {
        axis.of_virtual
    } else {
        axis.expect
    };
    let expect = match profile.port_type {
        // The port type is a capability. It can only be read after the device has booted and the interface step is
        // agreed.
        PortType::InfiniBand if profile.issi & 2 != 0 && expect != NEVER_BOOTS => {
            Expect::Refused("port_type")
        }
        PortType::InfiniBand | PortType::Ethernet => expect,
    };
    let rules = CardRules {
        virtual_functions_wait: axis.name == VPORT_OFF,
        ..CardRules::default()
    };
    let world = World::of_card(profile, is_virtual, rules);
    let owner_says = |state| {
        let settings = VfSettings {
            state,
            ..VfSettings::default()
        };
        assert!(world.card.set_vf(0, settings), "{case}");
    };
    if expect == Expect::Up {
        prepare(axis, &world, is_virtual);
    }
    let switched_off = is_virtual && axis.name == VPORT_DOWN;
    if switched_off {
        owner_says(LinkState::Down);
    }
    match (MlxProvider::open(world.driver_function(), config), expect) {
        (Ok(mut provider), Expect::Up | Expect::Alone(_)) => {
            let word = match (provider.network_state(), expect) {
                (NetworkState::Joined, Expect::Up) => "up",
                (NetworkState::Without(why), Expect::Alone(said)) if why.contains(said) => {
                    "up, no network"
                }
                (state, _) => return Err(format!("{case}: {state:?}")),
            };
            let hca = provider.hca_mut();
            if axis.name == LINK_DOWN {
                assert!(!hca.port().link_up, "{case}");
                world.sim.inject(&world.card.physical(), &Fault::LinkUp);
                wait_for_training(hca);
                assert_eq!(hca.next_async(), Some(AsyncEvent::PortUp), "{case}");
            }
            if axis.name == PORT_OFF {
                // Only the physical function switches the port on.
                wait_for_training(hca);
                let state = hca.vport_state().expect("an answer");
                let is_physical = !hw_mlx::ids::is_virtual(hca.device_id());
                assert_eq!(state.is_up, is_physical, "{case}");
            }
            if let Some(mode) = inline_mode(axis).filter(|_| is_virtual) {
                let own = hca.exec(&QueryNicVportContextIn::new()).expect("an answer");
                let found = own.nic_vport_context().min_wqe_inline_mode();
                assert_eq!(found, mode, "{case}");
                let mut query = QuerySqIn::new();
                query.set_sqn(FIRST_SQN);
                let queue = hca.exec(&query).expect("the Ethernet port's send queue");
                let found = queue.sq_context().min_wqe_inline_mode();
                assert_eq!(found, mode, "{case}");
            }
            if axis.name == MTU_9022 {
                assert_eq!((hca.port().mtu, hca.port().path_mtu), (9022, 5), "{case}");
            }
            if switched_off {
                assert!(!hca.port().link_up, "{case}");
                let state = hca.vport_state().expect("an answer");
                assert_eq!(state.admin, VportAdmin::Down, "{case}");
                owner_says(LinkState::Follow);
                // Longer than a link trains.
                let trained = hca.now() + Duration::from_secs(1);
                while hca.wait(trained).expect("alive") {}
                assert_eq!(hca.next_async(), Some(AsyncEvent::PortUp), "{case}");
            }
            let report = provider
                .close()
                .unwrap_or_else(|error| panic!("{case}: {error}"));
            assert_eq!(report.pages_not_returned, 0, "{case}");
            world.assert_clean(case);
            Ok(word)
        }
        (Err(error), Expect::Refused(why)) if error.to_string().contains(why) => Ok(why),
        (Err(error), _) => Err(format!("{case}: {error}")),
        (Ok(_), Expect::Refused(why)) => {
            Err(format!("{case}: came up, expected an error about {why}"))
        }
    }
}

/// Every generation comes up under every variation, or fails with an error that names the missing capability.
#[test]
fn every_generation_comes_up_or_says_what_it_lacks() {
    let mut table = String::from("| what varies |");
    let names: Vec<&str> = Profile::generations().collect();
    for name in &names {
        write!(table, " {name} |").expect("a string");
    }
    table += "\n|---|";
    table += &"---|".repeat(names.len());
    table.push('\n');
    let mut problems = Vec::new();
    let axes = AXES.iter().map(|axis| (*axis, (|_| {}) as Shape));
    for (axis, shape) in axes.chain(MISSING.iter().map(alone)) {
        let shaped = |name: &str| {
            let mut profile = generation(name);
            shape(&mut profile);
            profile
        };
        write!(table, "| {} |", axis.name).expect("a string");
        for name in &names {
            let case = format!("{}, {name}", axis.name);
            let mut run = |profile, is_virtual, case: &str| {
                run(&axis, profile, is_virtual, case).unwrap_or_else(|problem| {
                    problems.push(problem);
                    "?"
                })
            };
            let physical = run(shaped(name), false, &case);
            let profile = shaped(name);
            // A profile without virtual functions is the profile of a virtual function itself, so one run covers both.
            let as_virtual = if profile.virtual_functions.is_some() {
                run(profile, true, &format!("{case}, virtual function"))
            } else {
                physical
            };
            if physical == as_virtual {
                write!(table, " {physical} |").expect("a string");
            } else {
                write!(table, " {physical}, VF {as_virtual} |").expect("a string");
            }
        }
        table.push('\n');
    }
    assert!(problems.is_empty(), "{problems:#?}");
    keep("matrix", &table);
}
