//! Recorded bytes of foreign messages, and offsets of ours.
//!
//! The handshake of two InfiniBand hosts is from `infiniband.pcap` of the Wireshark sample captures, frames 7 to 9
//! (IPoIB connected mode, captured in 2008), from the MAD header on. The REQ of a RoCE v2 host was sent by an mlx5
//! adapter under Linux `rdma_cm`, and is kept word for word in the translator's connection script of
//! `jonlanglet/DTA`. MRA, REJ, DREQ and DREP were in no recording at hand: their offsets were taken from Linux
//! (`include/rdma/ibta_vol1_c12.h`) by hand.
//!
//! Wireshark's dissector agrees with every field below but two: it reads the flow label and the packet rate of a path
//! from the wrong bytes (version 4.0 shows rate 0 where frame 7 has 3).

use super::*;
use crate::provider::{Psn, Qpn};

/// Makes a datagram from hexadecimal words; the rest is zero.
fn mad(words: &str) -> Mad {
    let digits: Vec<u8> = words.bytes().filter(u8::is_ascii_hexdigit).collect();
    let mut mad = [0; MAD_BYTES];
    for (byte, pair) in mad.iter_mut().zip(digits.chunks_exact(2)) {
        let pair = str::from_utf8(pair).expect("hexadecimal digits are ASCII");
        *byte = u8::from_str_radix(pair, 16).expect("hexadecimal digits");
    }
    mad
}

/// Encodes `message` into a buffer whose bytes are all 0xa5.
fn emitted(transaction_id: u64, message: &Message) -> Mad {
    let mut mad = [0xa5; MAD_BYTES];
    message.emit(transaction_id, &mut mad);
    mad
}

/// Returns the non-zero bytes after the MAD header, each with its offset in the message.
fn non_zero(mad: &Mad) -> Vec<(usize, u8)> {
    mad[24..]
        .iter()
        .copied()
        .enumerate()
        .filter(|&(_, byte)| byte != 0)
        .collect()
}

fn gid(words: &str) -> [u8; 16] {
    *mad(words).first_chunk().expect("16 bytes")
}

fn ib_req() -> Mad {
    mad("01070203 00000000 00000010 278648e9 \
         00100000 00000000 e9488627 00000000 \
         10000000 00000404 0002c902 0024f634 \
         00000000 00000000 87040804 00000000 \
         000000a0 000000a0 ffff40f8 00040001 \
         fe800000 00000000 0002c902 0024f636 \
         fe800000 00000000 0002c902 0020b4dd \
         00000003 00000898 00000000 00000000 \
         00000000 00000000 00000000 00000000 \
         00000000 00000000 00000000 00000000 \
         00000000 00000405 0000fff4")
}

fn ib_rep() -> Mad {
    mad("01070203 00000000 00000010 278648e9 \
         00130000 00000000 f9024539 e9488627 \
         00000000 fc040700 00000000 d40a5500 \
         00007810 0002c902 0020b4dc 00000404 \
         0000fff4")
}

fn ib_rtu() -> Mad {
    mad("01070203 00000000 00000010 278648e9 \
         00140000 00000000 e9488627 f9024539")
}

fn roce_req() -> Mad {
    mad("01070203 00000000 00000006 7c313d63 \
         00100000 30000000 633d317c 000015b3 \
         00000000 01060539 b8cef603 00d21326 \
         00000000 00000000 0011b903 00000003 \
         000000b0 e6fb20b3 ffff30f0 ffffffff \
         00000000 00000000 0000ffff 0a000065 \
         00000000 00000000 0000ffff 0a000033 \
         943e0007 00400098 00000000 00000000 \
         00000000 00000000 00000000 00000000 \
         00000000 00000000 00000000 00000000 \
         00000000 0040d079 00000000 00000000 \
         00000000 0a000065 00000000 00000000 \
         00000000 0a000033")
}

#[test]
fn recorded_ib_req_comes_back_byte_for_byte() {
    let mut private_data = [0; 92];
    private_data[..8].copy_from_slice(&[0, 0, 4, 5, 0, 0, 0xff, 0xf4]);
    let req = ReqRepr {
        local_comm_id: 0xe948_8627,
        service_id: 0x1000_0000_0000_0404,
        local_ca_guid: 0x0002_c902_0024_f634,
        local_q_key: 0,
        local_qpn: Qpn::new(0x87_0408),
        responder_resources: 4,
        local_eecn: 0,
        initiator_depth: 0,
        remote_eecn: 0,
        remote_response_timeout: 0x14,
        transport: 0,
        flow_control: false,
        starting_psn: Psn::masked(0),
        local_response_timeout: 0x14,
        retry_count: 0,
        partition_key: 0xffff,
        mtu: 4,
        rdc_exists: false,
        rnr_retry: 0,
        max_cm_retries: 15,
        srq: true,
        extended_transport: 0,
        primary: PathRepr {
            local_lid: 4,
            remote_lid: 1,
            local_gid: gid("fe800000 00000000 0002c902 0024f636"),
            remote_gid: gid("fe800000 00000000 0002c902 0020b4dd"),
            flow_label: 0,
            packet_rate: 3,
            traffic_class: 0,
            hop_limit: 0,
            sl: 0,
            subnet_local: true,
            ack_timeout: 0x13,
        },
        alternate: PathRepr::default(),
        private_data,
    };
    let message = Message::Req(Box::new(req));
    assert_eq!(
        Message::parse(&ib_req()),
        Ok((0x10_2786_48e9, message.clone()))
    );
    assert_eq!(emitted(0x10_2786_48e9, &message), ib_req());
}

#[test]
fn recorded_ib_rep_comes_back_byte_for_byte() {
    let (transaction_id, message) = Message::parse(&ib_rep()).expect("a REP");
    assert_eq!(emitted(transaction_id, &message), ib_rep());
    let Message::Rep(rep) = message else {
        panic!("{message:?}")
    };
    let mut private_data = [0; 196];
    private_data[..8].copy_from_slice(&[0, 0, 4, 4, 0, 0, 0xff, 0xf4]);
    let expected = RepRepr {
        local_comm_id: 0xf902_4539,
        remote_comm_id: 0xe948_8627,
        local_q_key: 0,
        local_qpn: Qpn::new(0xfc_0407),
        local_eecn: 0,
        starting_psn: Psn::masked(0xd4_0a55),
        responder_resources: 0,
        initiator_depth: 0,
        target_ack_delay: 15,
        failover_accepted: 0,
        flow_control: false,
        rnr_retry: 0,
        srq: true,
        local_ca_guid: 0x0002_c902_0020_b4dc,
        private_data,
    };
    assert_eq!(*rep, expected);
}

#[test]
fn recorded_ib_rtu_comes_back_byte_for_byte() {
    let rtu = Message::Rtu(RtuRepr {
        local_comm_id: 0xe948_8627,
        remote_comm_id: 0xf902_4539,
    });
    assert_eq!(Message::parse(&ib_rtu()), Ok((0x10_2786_48e9, rtu.clone())));
    assert_eq!(emitted(0x10_2786_48e9, &rtu), ib_rtu());
}

#[test]
fn recorded_roce_req_is_parsed_and_emitted_without_unknown_fields() {
    let (transaction_id, message) = Message::parse(&roce_req()).expect("a REQ");
    let Message::Req(req) = &message else {
        panic!("{message:?}")
    };
    assert_eq!(req.service_id, crate::cm::rdma_cm::service_id(1337));
    assert_eq!(req.local_ca_guid, 0xb8ce_f603_00d2_1326);
    assert_eq!(
        (req.local_qpn.get(), req.starting_psn.get()),
        (0x11b9, 0xe6_fb20)
    );
    assert_eq!((req.responder_resources, req.initiator_depth), (3, 3));
    assert_eq!(
        (req.remote_response_timeout, req.local_response_timeout),
        (22, 22)
    );
    assert_eq!(
        (req.retry_count, req.rnr_retry, req.max_cm_retries),
        (3, 0, 15)
    );
    assert_eq!((req.transport, req.mtu, req.srq), (0, 3, false));
    let path = PathRepr {
        local_lid: 0xffff,
        remote_lid: 0xffff,
        local_gid: gid("00000000 00000000 0000ffff 0a000065"),
        remote_gid: gid("00000000 00000000 0000ffff 0a000033"),
        flow_label: 0x9_43e0,
        packet_rate: 7,
        traffic_class: 0,
        hop_limit: 64,
        sl: 0,
        subnet_local: false,
        ack_timeout: 19,
    };
    assert_eq!(req.primary, path);

    // These bytes are enhanced connection establishment (a vendor ID and its options), which we do not offer.
    let mut plain = roce_req();
    plain[20..24].fill(0);
    plain[28..32].fill(0);
    assert_eq!(emitted(transaction_id, &message), plain);
}

#[test]
fn req_puts_every_field_at_its_place() {
    let req = ReqRepr {
        local_comm_id: 0x0102_0304,
        service_id: 0x1112_1314_1516_1718,
        local_ca_guid: 0x2122_2324_2526_2728,
        local_q_key: 0x3132_3334,
        local_qpn: Qpn::new(0x41_4243),
        responder_resources: 0x44,
        local_eecn: 0x45_4647,
        initiator_depth: 0x48,
        remote_eecn: 0x49_4a4b,
        remote_response_timeout: 0x1f,
        transport: 1,
        flow_control: true,
        starting_psn: Psn::masked(0x51_5253),
        local_response_timeout: 0x11,
        retry_count: 6,
        partition_key: 0x6162,
        mtu: 5,
        rdc_exists: true,
        rnr_retry: 7,
        max_cm_retries: 9,
        srq: false,
        extended_transport: 1,
        primary: PathRepr {
            local_lid: 0x7172,
            remote_lid: 0x7374,
            local_gid: [0x75; 16],
            remote_gid: [0x76; 16],
            flow_label: 0xa_bcde,
            packet_rate: 0x2a,
            traffic_class: 0x77,
            hop_limit: 0x78,
            sl: 0xc,
            subnet_local: true,
            ack_timeout: 0x15,
        },
        alternate: PathRepr {
            local_lid: 0x8182,
            remote_gid: [0x86; 16],
            ack_timeout: 1,
            ..PathRepr::default()
        },
        private_data: [0x99; 92],
    };
    let message = Message::Req(Box::new(req));
    let mad = emitted(0x0a0b_0c0d_0e0f_1011, &message);
    assert_eq!(Message::parse(&mad), Ok((0x0a0b_0c0d_0e0f_1011, message)));
    let expected = self::mad(
        "01070203 00000000 0a0b0c0d 0e0f1011 00100000 00000000 \
         01020304 00000000 11121314 15161718 21222324 25262728 00000000 31323334 \
         41424344 45464748 494a4bfb 5152538e 61625f91 71727374 \
         75757575 75757575 75757575 75757575 76767676 76767676 76767676 76767676 \
         abcde02a 7778c8a8 \
         81820000 00000000 00000000 00000000 00000000 86868686 86868686 86868686 86868686 \
         00000000 00000008",
    );
    assert_eq!(mad[..24 + 140], expected[..24 + 140]);
    assert_eq!(mad[24 + 140..], [0x99; 92]);
}

#[test]
fn rep_puts_every_field_at_its_place() {
    let rep = RepRepr {
        local_comm_id: 0x0102_0304,
        remote_comm_id: 0x0506_0708,
        local_q_key: 0x1112_1314,
        local_qpn: Qpn::new(0x21_2223),
        local_eecn: 0x24_2526,
        starting_psn: Psn::masked(0x27_2829),
        responder_resources: 0x31,
        initiator_depth: 0x32,
        target_ack_delay: 0x15,
        failover_accepted: 2,
        flow_control: true,
        rnr_retry: 5,
        srq: true,
        local_ca_guid: 0x4142_4344_4546_4748,
        private_data: [0x99; 196],
    };
    let message = Message::Rep(Box::new(rep));
    let mad = emitted(7, &message);
    assert_eq!(Message::parse(&mad), Ok((7, message)));
    let expected = self::mad(
        "01070203 00000000 00000000 00000007 00130000 00000000 \
         01020304 05060708 11121314 21222300 24252600 27282900 3132adb0 41424344 45464748",
    );
    assert_eq!(mad[..24 + 36], expected[..24 + 36]);
    assert_eq!(mad[24 + 36..], [0x99; 196]);
}

#[test]
fn rej_puts_every_field_at_its_place() {
    let rej = RejRepr::new(
        0x0102_0304,
        0x0506_0708,
        Rejected::Rep,
        RejectReason::Timeout,
    )
    .with_ca_guid(0x1112_1314_1516_1718);
    let message = Message::Rej(Box::new(rej));
    let mad = emitted(7, &message);
    assert_eq!(Message::parse(&mad), Ok((7, message)));
    let expected = self::mad(
        "01070203 00000000 00000000 00000007 00120000 00000000 \
         01020304 05060708 40100004 11121314 15161718",
    );
    assert_eq!(mad, expected);
}

#[test]
fn mra_rtu_dreq_and_drep_put_every_field_at_its_place() {
    let (local_comm_id, remote_comm_id) = (0x0100_0000, 2);
    let mra = MraRepr {
        local_comm_id,
        remote_comm_id,
        acknowledged: Rejected::Rep,
        service_timeout: 0x15,
    };
    let dreq = DreqRepr {
        local_comm_id,
        remote_comm_id,
        remote_qpn: Qpn::new(0x21_2223),
    };
    let names = vec![(0, 1), (7, 2)];
    for (message, attribute, rest) in [
        (Message::Mra(mra), 0x11, vec![(8, 0x40), (9, 0xa8)]),
        (
            Message::Rtu(RtuRepr {
                local_comm_id,
                remote_comm_id,
            }),
            0x14,
            vec![],
        ),
        (
            Message::Dreq(dreq),
            0x15,
            vec![(8, 0x21), (9, 0x22), (10, 0x23)],
        ),
        (
            Message::Drep(DrepRepr {
                local_comm_id,
                remote_comm_id,
            }),
            0x16,
            vec![],
        ),
    ] {
        let mad = emitted(7, &message);
        assert_eq!(mad[16..18], [0, attribute]);
        assert_eq!(
            non_zero(&mad),
            [names.clone(), rest].concat(),
            "{message:?}"
        );
        assert_eq!(Message::parse(&mad), Ok((7, message)));
    }
}

#[test]
fn reject_reasons_have_the_numbers_of_the_specification() {
    for code in 0..64 {
        assert_eq!(RejectReason::from_code(code).code(), code);
    }
    let named = [
        (RejectReason::NoResources, 3),
        (RejectReason::Timeout, 4),
        (RejectReason::InvalidServiceId, 8),
        (RejectReason::StaleConnection, 10),
        (RejectReason::Consumer, 28),
    ];
    for (reason, code) in named {
        assert_eq!(RejectReason::from_code(code), reason);
    }
}

#[test]
fn datagrams_of_other_kinds_are_told_apart() {
    let mut other = ib_rtu();
    other[1] = 0x03;
    let class = ParseError::Class {
        base_version: 1,
        class: 3,
        class_version: 2,
    };
    assert_eq!(Message::parse(&other), Err(class));
    let mut get = ib_rtu();
    get[3] = 0x01;
    assert_eq!(Message::parse(&get), Err(ParseError::Method(1)));
    let mut sidr = ib_rtu();
    sidr[17] = 0x17;
    assert_eq!(Message::parse(&sidr), Err(ParseError::Attribute(0x17)));
}
