//! What the port tells of priorities and congestion, and to whom.

use mlx_prm::*;
use zerocopy::IntoBytes;

use crate::bench::{Bench, Failure, modest};
use crate::strict::usable;

/// What a port does with priorities is its physical function's to set, and none of it is set by these registers here.
#[test]
fn the_port_tells_its_priorities_and_takes_none() {
    let (mut bench, _) = usable();
    let access = |bench: &mut Bench, register: RegisterId, op_mod: u32, image: &[u8]| {
        let mut input = AccessRegIn::new();
        input.set_register_id(register.bits()).set_op_mod(op_mod);
        let mut bytes = input.as_bytes().to_vec();
        bytes.extend_from_slice(image);
        bench.raw(&bytes, bytes.len())
    };
    let mut qpts = Qpts::new();
    qpts.set_local_port(1);
    let told = access(&mut bench, RegisterId::QPTS, 1, qpts.as_bytes()).unwrap();
    assert_eq!(told[0x17], 1, "it goes by the tag's priority");
    let mut qpdpm = Qpdpm::new();
    qpdpm.set_local_port(1);
    let told = access(&mut bench, RegisterId::QPDPM, 1, qpdpm.as_bytes()).unwrap();
    assert_eq!(told[0x14..0x18], [0x80, 0, 0x80, 0]);
    let refused = Err(Failure::Refused(CmdStatus::BAD_PARAM));
    for (register, image) in [
        (RegisterId::QPTS, qpts.as_bytes()),
        (RegisterId::QPDPM, qpdpm.as_bytes()),
    ] {
        assert_eq!(
            access(&mut bench, register, 0, image),
            refused,
            "{register:?}"
        );
        let mut other = image.to_vec();
        other[1] = 2;
        assert_eq!(access(&mut bench, register, 1, &other), refused, "port 2");
    }
}

#[test]
fn about_congestion_only_those_may_ask_who_are_told_so() {
    let (mut bench, _) = usable();
    let mut ask = QueryCongStatusIn::new();
    ask.set_priority(3)
        .set_cong_protocol(CongProtocol::R_ROCE_ECN_RP);
    assert_eq!(
        bench.status(&ask),
        CmdStatus::BAD_OP,
        "cc_query_allowed is 0"
    );

    let mut profile = modest();
    profile.general.set(|page| {
        page.set_cc_query_allowed(true);
    });
    let (mut bench, _) = Bench::usable(profile);
    assert!(bench.exec(&ask).unwrap().enable());
    ask.set_priority(8);
    assert_eq!(bench.status(&ask), CmdStatus::BAD_PARAM, "there are 8");
    ask.set_priority(0)
        .set_cong_protocol(CongProtocol::R_ROCE_GENERAL);
    assert_eq!(bench.status(&ask), CmdStatus::BAD_PARAM);
    let mut ask = QueryCongParamsIn::new();
    ask.set_cong_protocol(CongProtocol::R_ROCE_ECN_NP);
    let told = bench.exec(&ask).unwrap();
    assert_eq!(told.congestion_parameters()[0x18..0x1c], [0, 0, 48, 6]);
    ask.set_cong_protocol(CongProtocol(0));
    assert_eq!(bench.status(&ask), CmdStatus::BAD_PARAM);
}
