//! Tests of virtual functions: identity, permissions, pages, and the state that a reset keeps.

use super::rig::*;
use crate::bench::{Bench, READ, WRITE};
use hw_sim::{CardRules, VfSettings};
use mlx_prm::*;
use zerocopy::IntoBytes;

fn context(bench: &mut Bench) -> NicVportContext {
    let out = bench.exec(&QueryNicVportContextIn::new()).unwrap();
    out.nic_vport_context().clone()
}

fn general(bench: &mut Bench) -> CmdHcaCap {
    let page = bench.capability(CapType::GENERAL.current()).unwrap();
    zerocopy::FromBytes::read_from_prefix(&page).unwrap().0
}

fn mac_of(context: &NicVportContext) -> [u8; 6] {
    let address = context.permanent_address();
    let [_, _, a, b] = address.mac_addr_47_32().to_be_bytes();
    let [c, d, e, f] = address.mac_addr_31_0().to_be_bytes();
    [a, b, c, d, e, f]
}

/// A virtual function has no address until its administrator gives it one. Linux: `main.c` `mlx5_core_pci_table` has
/// the device ID; `en_main.c` `mlx5e_set_netdev_dev_addr` generates an address if there is none; `eswitch.c`
/// `node_guid_gen_from_mac` derives the GUID.
#[test]
fn a_virtual_function_has_no_address_until_its_administrator_gives_one() {
    let mut rig = Rig::new();
    let mut id = [0; 4];
    driver::Device::config_read(&*rig.vfs[0].bench.function, 0, &mut id);
    assert_eq!(id, [0xb3, 0x15, 0x18, 0x10]);
    assert_eq!(
        driver::Device::interrupt_count(&*rig.vfs[0].bench.function),
        12
    );
    let before = context(&mut rig.vfs[0].bench);
    assert_eq!((mac_of(&before), before.node_guid()), ([0; 6], 0));
    let physical = context(&mut rig.pf.bench);
    assert_eq!(before.system_image_guid(), physical.system_image_guid());
    rig.set_vf(
        0,
        VfSettings {
            mac: Some([0x52, 0x54, 0, 0, 0, 1]),
            ..VfSettings::default()
        },
    );
    let after = context(&mut rig.vfs[0].bench);
    assert_eq!(mac_of(&after), [0x52, 0x54, 0, 0, 0, 1]);
    assert_eq!(after.node_guid(), 0x5254_00ff_fe00_0001);
}

/// A function cannot write the permanent address of its own vport, unless its card permits it. In Linux `vport.c`,
/// a driver never writes its own permanent address, and a manager writes those of other vports with `other_vport`.
#[test]
fn a_function_cannot_write_its_own_permanent_address() {
    let mut rig = Rig::new();
    let mut modify = ModifyNicVportContextIn::new();
    modify.field_select_mut().set_permanent_address(true);
    modify
        .nic_vport_context_mut()
        .permanent_address_mut()
        .set_mac_addr_31_0(5);
    let before = mac_of(&context(&mut rig.pf.bench));
    assert_eq!(rig.pf.bench.status(&modify), CmdStatus::BAD_PARAM);
    assert_eq!(rig.vfs[0].bench.status(&modify), CmdStatus::BAD_PARAM);
    assert_eq!(mac_of(&context(&mut rig.pf.bench)), before);
    let mut lenient = Rig::with(CardRules {
        own_permanent_address: true,
        ..CardRules::default()
    });
    assert_eq!(lenient.vfs[0].bench.status(&modify), CmdStatus::OK);
}

/// The manager writes the inline mode of a vport, and the vport's function reads it back: Linux `eswitch_offloads.c`
/// `mlx5_devlink_eswitch_inline_mode_set` writes it, `vport.c` `mlx5_query_min_inline` reads it. The mode survives a
/// reset of the function, as the manager's other settings do. A virtual function cannot write its own mode.
#[test]
fn the_inline_mode_that_the_manager_writes_is_the_one_that_the_function_reads() {
    let mut rig = Rig::new();
    let mut modify = ModifyNicVportContextIn::new();
    modify.field_select_mut().set_min_inline(true);
    modify.nic_vport_context_mut().set_min_wqe_inline_mode(2);
    assert_eq!(rig.vfs[0].bench.status(&modify), CmdStatus::BAD_PARAM);
    modify.set_other_vport(true).set_vport_number(1);
    rig.pf.bench.exec(&modify).unwrap();
    let modes = |rig: &mut Rig| {
        let [first, second] = &mut rig.vfs;
        [&mut rig.pf, first, second].map(|side| context(&mut side.bench).min_wqe_inline_mode())
    };
    assert_eq!(modes(&mut rig), [0, 2, 0]);
    let mut query = QueryNicVportContextIn::new();
    query.set_other_vport(true).set_vport_number(1);
    let read = |rig: &mut Rig| {
        let out = rig.pf.bench.exec(&query).unwrap();
        out.nic_vport_context().min_wqe_inline_mode()
    };
    driver::Device::reset(&*rig.vfs[0].bench.function);
    assert_eq!(read(&mut rig), 2);
    modify.nic_vport_context_mut().set_min_wqe_inline_mode(4);
    assert_eq!(rig.pf.bench.status(&modify), CmdStatus::BAD_PARAM);
    assert_eq!(read(&mut rig), 2);
}

/// A virtual function may not access other vports or functions, nor the forwarding table. The table belongs to the port
/// (the commit that added Linux's `lib/mpfs.c`). The manager controls the other vports and functions. A refused command
/// changes nothing.
#[test]
fn a_virtual_function_may_not_name_others_nor_the_switch() {
    let mut rig = Rig::announced();
    let capabilities = general(&mut rig.vfs[0].bench);
    assert!(!capabilities.vport_group_manager() && !capabilities.eswitch_manager());
    assert_eq!(capabilities.log_max_l2_table(), 0);
    let bench = &mut rig.vfs[0].bench;
    let mut entry = SetL2TableEntryIn::new();
    entry.mac_address_mut().set_mac_addr_31_0(5);
    assert_eq!(bench.status(&entry), CmdStatus::BAD_OP);
    let mut state = ModifyVportStateIn::new();
    state.set_op_mod(1);
    state
        .set_other_vport(true)
        .set_vport_number(2)
        .set_admin_state(0);
    assert_eq!(bench.status(&state), CmdStatus::BAD_RESOURCE);
    let mut own = ModifyVportStateIn::new();
    own.set_op_mod(1);
    own.set_admin_state(1);
    assert_eq!(bench.status(&own), CmdStatus::BAD_RESOURCE);
    let mut query = QueryNicVportContextIn::new();
    query.set_other_vport(true).set_vport_number(0);
    assert_eq!(bench.status(&query), CmdStatus::BAD_RESOURCE);
    let mut enable = EnableHcaIn::new();
    enable.set_function_id(2);
    assert_eq!(bench.status(&enable), CmdStatus::BAD_RESOURCE);
    let mut caps = QueryHcaCapIn::new();
    caps.set_other_function(true).set_function_id(2);
    assert_eq!(bench.status(&caps), CmdStatus::BAD_RESOURCE);
    let mut counter = QueryVportCounterIn::new();
    counter.set_other_vport(true).set_vport_number(2);
    assert_eq!(bench.status(&counter), CmdStatus::BAD_RESOURCE);
    let vlan = ModifyEswVportContextIn::new();
    assert_eq!(bench.status(&vlan), CmdStatus::BAD_OP);
    assert!(link_is_up(&mut rig.vfs[1]));
}

/// Writes of a virtual function to port registers are accepted without effect. Complete logs of ConnectX-5 virtual
/// functions (firmware 16.26, 16.27) contain no refused register access, although mlx5e writes PAOS and PMTU on every
/// function.
#[test]
fn a_virtual_functions_writes_to_the_port_are_taken_without_effect() {
    let mut rig = Rig::announced();
    let mut paos = Paos::new();
    paos.set_local_port(1).set_ase(true).set_admin_status(2);
    let bench = &mut rig.vfs[0].bench;
    let mut pmtu = Pmtu::new();
    pmtu.set_local_port(1).set_admin_mtu(9000);
    for (register, image) in [
        (RegisterId::PAOS, paos.as_bytes()),
        (RegisterId::PMTU, pmtu.as_bytes()),
        (
            RegisterId::HOST_ENDIANNESS,
            HostEndianness::new().as_bytes(),
        ),
    ] {
        let written = bench.register(register, WRITE, image);
        assert!(written.is_ok(), "{register:?}: {written:?}");
    }
    for side in [&mut rig.pf, &mut rig.vfs[0]] {
        let mut asked = Pmtu::new();
        asked.set_local_port(1);
        let out = side
            .bench
            .register(RegisterId::PMTU, READ, asked.as_bytes());
        let pmtu: Pmtu = zerocopy::FromBytes::read_from_bytes(&out.unwrap()).unwrap();
        assert_eq!(pmtu.oper_mtu(), 1522);
        assert!(link_is_up(side));
    }
}

/// A virtual function's own QUERY_PAGES requests no pages: its memory is given by the physical function's driver (Linux
/// `pagealloc.c` `func_id_to_type`).
#[test]
fn a_virtual_function_wants_no_pages() {
    let rig = Rig::new();
    let function = card(&rig.sim, CardRules::default()).virtual_function(0);
    let mut bench = Bench::of(&rig.sim, function.expect("one"));
    bench.start();
    bench.exec(&EnableHcaIn::new()).unwrap();
    assert_eq!((bench.query_pages(1), bench.query_pages(2)), (0, 0));
    bench.exec(&InitHcaIn::new()).unwrap();
}

/// A reset of a virtual function empties its address lists, because they belong to the function. Address, GUID and link
/// state belong to the switch and are kept.
#[test]
fn a_reset_empties_the_lists_and_leaves_the_administrators_settings() {
    let mut rig = Rig::announced();
    let given = VfSettings {
        mac: Some(VF_MACS[0]),
        state: hw_sim::LinkState::Up,
        ..VfSettings::default()
    };
    rig.set_vf(0, given);
    driver::Device::reset(&*rig.vfs[0].bench.function);
    assert_eq!(rig.card.vf(0), Some(given));
    send(&mut rig.far, &frame(FAR_MAC, VF_MACS[0]));
    assert_eq!(rig.pf.dropped("unannounced address"), 1);
}
