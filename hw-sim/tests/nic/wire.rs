//! Tests of RoCE packets: packets of other implementations are parsed, emitted packets are parsed back, malformed
//! packets are rejected.

use hw_sim::wire::icrc::{self, Encapsulation};
use hw_sim::wire::{
    AckSyndrome, AethRepr, AtomicAckEthRepr, AtomicEthRepr, BthPacket, BthRepr, DethRepr, EthRepr,
    GrhRepr, Headers, Ipv4Packet, Ipv4Repr, Ipv6Packet, Ipv6Repr, Link, LrhRepr, NakCode, Network,
    Opcode, Operation, Packet, Psn, Qpn, RethRepr, UdpPacket, UdpRepr, Vlan, WireError, emit_cnp,
    parse_cnp,
};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

fn unhex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text
        .chars()
        .filter_map(|digit| digit.to_digit(16))
        .map(|digit| u8::try_from(digit).expect("a hex digit"))
        .collect();
    digits
        .chunks(2)
        .map(|pair| pair[0] << 4 | pair[1])
        .collect()
}

/// Returns a captured UC SEND Only with its ICRC. Fields, payload and ICRC (0x78f353f3) are those of the first packet
/// in Scapy's `test/contrib/roce.uts`. Scapy 2.5.0 has built the bytes from these values.
fn captured_uc_send() -> Vec<u8> {
    unhex(
        "248a07a8fa22 248a07a8fa22 0800
         4501004004784000 4011b4d5 c0a80007 c0a80007
         c00012b7002caca2
         2460ffff000000d300cf1710
         4630818be28935d90e9a95505401be885e50 0000
         78f353f3",
    )
}

/// Returns a CNP captured on a ConnectX-4 Lx (Scapy `test/contrib/roce.uts`, last packet), with ICRC 0x82fd002a.
fn captured_cnp() -> Vec<u8> {
    unhex(
        "e41d2dab2bc2 7cfe90643b32 0800
         45c2003c718c4000 40119161 0a001101 0a001201
         000012b700280000
         8100ffff4000011800000000
         00000000000000000000000000000000
         82fd002a",
    )
}

#[test]
fn icrc_of_a_captured_uc_packet_is_the_captured_one() {
    let frame = captured_uc_send();
    let crc = icrc::compute(Encapsulation::Ipv4Udp, &frame[14..frame.len() - 4]);
    assert_eq!(crc, Some([0x78, 0xf3, 0x53, 0xf3]));
}

#[test]
fn icrc_of_a_cnp_captured_on_a_connectx_4_is_the_captured_one() {
    let frame = captured_cnp();
    let crc = icrc::compute(Encapsulation::Ipv4Udp, &frame[14..frame.len() - 4]);
    assert_eq!(crc, Some([0x82, 0xfd, 0x00, 0x2a]));
}

#[test]
fn captured_uc_packet_is_understood() {
    let frame = captured_uc_send();
    let packet = Packet::parse(&frame).expect("a valid packet");
    assert_eq!(
        packet.bth.opcode,
        Opcode::uc(Operation::SendOnly).expect("defined")
    );
    assert_eq!(packet.dest_qpn(), Qpn::new(211));
    assert_eq!(packet.bth.psn, Psn::masked(13_571_856));
    assert_eq!(
        (packet.bth.pad, packet.bth.pkey, packet.bth.migrated),
        (2, 0xffff, true)
    );
    assert_eq!(
        packet.payload,
        unhex("4630818be28935d90e9a95505401be885e50")
    );
    assert_eq!(packet.dst_gid()[10..], [0xff, 0xff, 192, 168, 0, 7]);
}

#[test]
fn captured_uc_packet_comes_back_when_emitted_but_for_the_udp_checksum() {
    let mut frame = captured_uc_send();
    let again = Packet::parse(&frame).expect("a valid packet").emit();
    frame[40..42].fill(0); // not covered by the ICRC, and we send none
    assert_eq!(again, frame);
}

#[test]
fn a_notification_of_congestion_is_emitted_as_a_connectx_4_emits_it() {
    let captured = captured_cnp();
    let eth = EthRepr {
        dst: [0xe4, 0x1d, 0x2d, 0xab, 0x2b, 0xc2],
        src: [0x7c, 0xfe, 0x90, 0x64, 0x3b, 0x32],
        ..eth(None)
    };
    let ip = Ipv4Repr {
        src: [10, 0, 17, 1],
        dst: [10, 0, 18, 1],
        // DSCP 48, the default for DCQCN's notifications, and ECT(0).
        tos: 0xc2,
        ident: 0x718c,
        dont_fragment: true,
        ttl: 64,
        payload_len: 0,
    };
    let udp = UdpRepr {
        src_port: 0,
        payload_len: 0,
    };
    let emitted = emit_cnp(&eth, &Network::Ipv4(ip, udp), Qpn::new(0x118));
    assert_eq!(emitted, captured);
    assert_eq!(parse_cnp(&captured), Ok(Qpn::new(0x118)));
    assert_eq!(
        parse_cnp(&captured_uc_send()),
        Err(WireError::Opcode(0x24)),
        "another packet is none"
    );
}

#[test]
fn congestion_notifications_are_refused_by_their_opcode() {
    assert_eq!(Packet::parse(&captured_cnp()), Err(WireError::Opcode(0x81)));
}

fn eth(vlan: Option<Vlan>) -> EthRepr {
    EthRepr {
        dst: [2, 0, 0, 0, 0, 2],
        src: [2, 0, 0, 0, 0, 1],
        vlan,
        ethertype: 0,
    }
}

fn ipv4() -> Network {
    let ip = Ipv4Repr {
        src: [10, 0, 0, 1],
        dst: [10, 0, 0, 2],
        tos: 0x68,
        ident: 0,
        dont_fragment: true,
        ttl: 64,
        payload_len: 0,
    };
    Network::Ipv4(
        ip,
        UdpRepr {
            src_port: 0xc001,
            payload_len: 0,
        },
    )
}

fn ipv6() -> Network {
    let ip = Ipv6Repr {
        src: [0xfe; 16],
        dst: [0xfd; 16],
        traffic_class: 0x68,
        flow_label: 0x1_2345,
        hop_limit: 64,
        payload_len: 0,
    };
    Network::Ipv6(
        ip,
        UdpRepr {
            src_port: 0xc001,
            payload_len: 0,
        },
    )
}

fn grh() -> Network {
    Network::Grh(GrhRepr {
        src: [0xfe; 16],
        dst: [0xfd; 16],
        traffic_class: 0,
        flow_label: 0,
        hop_limit: 1,
        payload_len: 0,
    })
}

fn bth(opcode: Opcode) -> BthRepr {
    BthRepr {
        solicited: true,
        ack_request: true,
        ..BthRepr::new(opcode, Qpn::new(0x12_3456), Psn::masked(0xab_cdef))
    }
}

/// Returns every defined opcode, with matching headers.
fn all_opcodes() -> Vec<(Opcode, Headers)> {
    let headers = |opcode: Opcode| {
        let operation = opcode.operation();
        let mut headers = Headers::NONE;
        if opcode.bits() & 0xe0 == 0x60 {
            headers.deth = Some(DethRepr {
                qkey: 0x8001_0000,
                src_qpn: Qpn::GSI,
            });
        }
        if opcode.bits() & 0xe0 == 0xa0 && !operation.is_response() {
            headers.xrc_srq = Some(0x12_3456);
        }
        if operation.has_reth() {
            headers.reth = Some(RethRepr {
                va: 0x1122_3344_5566_7788,
                rkey: 0x99aa,
                length: 5,
            });
        }
        if operation.has_atomic() {
            headers.atomic = Some(AtomicEthRepr {
                va: 8,
                rkey: 9,
                swap_add: 10,
                compare: 11,
            });
        }
        if operation.has_aeth() {
            headers.aeth = Some(AethRepr {
                syndrome: AckSyndrome::Nak(NakCode::Sequence),
                msn: 77,
            });
        }
        if operation == Operation::AtomicAcknowledge {
            headers.atomic_ack = Some(AtomicAckEthRepr {
                original: u64::MAX - 1,
            });
        }
        if operation.has_immediate() {
            headers.immediate = Some([1, 2, 3, 4]);
        }
        if operation.has_invalidate() {
            headers.invalidate = Some(0x4455_6677);
        }
        headers
    };
    (0..=u8::MAX)
        .filter_map(Opcode::from_bits)
        .map(|opcode| (opcode, headers(opcode)))
        .collect()
}

#[test]
fn every_opcode_in_every_encapsulation_comes_back_as_it_was_sent() {
    let opcodes = all_opcodes();
    assert_eq!(
        opcodes.len(),
        23 + 12 + 2 + 23,
        "RC, UC, UD and XRC opcodes"
    );
    let payload: Vec<u8> = (0..37).collect();
    for network in [ipv4(), ipv6(), grh()] {
        for vlan in [
            None,
            Some(Vlan {
                id: 0xabc,
                priority: 5,
            }),
        ] {
            for (opcode, headers) in &opcodes {
                for bytes in [0, 1, 2, 3, 4, 37] {
                    let sent = Packet {
                        link: eth(vlan).into(),
                        network,
                        bth: bth(*opcode),
                        headers: *headers,
                        payload: &payload[..bytes],
                    };
                    let frame = sent.emit();
                    let got = Packet::parse(&frame).expect("our own packet");
                    assert_eq!(got.payload, sent.payload, "{opcode:?} {bytes}");
                    assert_eq!(got.headers, sent.headers);
                    assert_eq!(
                        got.bth,
                        BthRepr {
                            pad: got.bth.pad,
                            ..sent.bth
                        }
                    );
                    let Link::Ethernet(got_eth) = got.link else {
                        panic!("{:?}", got.link)
                    };
                    assert_eq!(got_eth.vlan, vlan);
                    assert_eq!(
                        (got.network.src_gid(), got.dst_gid()),
                        (network.src_gid(), network.dst_gid())
                    );
                    assert_eq!(got.emit(), frame, "emit is the inverse of parse");
                }
            }
        }
    }
}

#[test]
fn any_single_flipped_bit_is_noticed_or_is_one_that_routers_may_change() {
    let (opcode, headers) = (Opcode::rc(Operation::WriteOnly), {
        let mut headers = Headers::NONE;
        headers.reth = Some(RethRepr {
            va: 1,
            rkey: 2,
            length: 8,
        });
        headers
    });
    for network in [ipv4(), ipv6(), grh()] {
        let sent = Packet {
            link: eth(None).into(),
            network,
            bth: bth(opcode),
            headers,
            payload: &[0x5a; 8],
        };
        let frame = sent.emit();
        let clean = Packet::parse(&frame).expect("our own packet");
        for bit in 14 * 8..frame.len() * 8 {
            let mut damaged = frame.clone();
            damaged[bit / 8] ^= 0x80 >> (bit % 8);
            if let Ok(got) = Packet::parse(&damaged) {
                // A corrupted packet passes only if the ICRC does not cover the corrupted bit. Such bits are not in
                // addresses, extension headers or payload.
                assert_eq!(
                    (got.headers, got.payload),
                    (clean.headers, clean.payload),
                    "bit {bit}"
                );
                assert_eq!(got.bth.psn, clean.bth.psn);
                assert_eq!(got.dst_gid(), clean.dst_gid());
            }
        }
    }
}

#[test]
fn every_truncation_is_refused() {
    for network in [ipv4(), ipv6(), grh()] {
        let frame = Packet {
            link: eth(None).into(),
            network,
            bth: bth(Opcode::rc(Operation::SendOnly)),
            headers: Headers::NONE,
            payload: &[1, 2, 3, 4, 5],
        }
        .emit();
        for bytes in 0..frame.len() {
            assert!(
                Packet::parse(&frame[..bytes]).is_err(),
                "{bytes} of {}",
                frame.len()
            );
            assert!(Packet::parse_ignoring_icrc(&frame[..bytes]).is_err());
        }
    }
}

#[test]
fn a_packet_of_no_whole_number_of_words_is_refused() {
    let mut frame = Packet {
        link: eth(None).into(),
        network: ipv6(),
        bth: bth(Opcode::rc(Operation::SendOnly)),
        headers: Headers::NONE,
        payload: &[1, 2, 3, 4],
    }
    .emit();
    // The payload has three bytes and no padding. All lengths and the ICRC are adjusted to that.
    let end = frame.len() - icrc::BYTES - 1;
    frame.truncate(end);
    for length in [14 + 5, 14 + 40 + 5] {
        frame[length] -= 1;
    }
    let crc = icrc::compute(Encapsulation::Ipv6Udp, &frame[14..]).expect("all headers");
    frame.extend(crc);
    assert_eq!(
        Packet::parse(&frame),
        Err(WireError::Malformed("packet length"))
    );
}

#[test]
fn ethernet_padding_behind_the_packet_is_ignored() {
    let mut frame = captured_uc_send();
    let clean = frame.clone();
    frame.extend([0xee; 9]);
    let packet = Packet::parse(&frame).expect("padding is no error");
    assert_eq!(
        packet.payload,
        Packet::parse(&clean).expect("valid").payload
    );
}

#[test]
fn random_bytes_and_damaged_packets_never_panic() {
    let mut rng = ChaCha8Rng::seed_from_u64(1);
    let seeds = [captured_uc_send(), captured_cnp()];
    for round in 0..20_000_usize {
        let mut frame = seeds[round % 2].clone();
        if round % 3 == 0 {
            frame = (0..rng.random_range(0..200))
                .map(|_| rng.random())
                .collect();
        }
        for _ in 0..rng.random_range(0..6) {
            if !frame.is_empty() {
                let at = rng.random_range(0..frame.len());
                frame[at] = rng.random();
            }
        }
        frame.truncate(rng.random_range(0..=frame.len()));
        if let Ok(packet) = Packet::parse_ignoring_icrc(&frame) {
            assert!(packet.headers.fit(packet.bth.opcode));
            assert!(packet.payload.len() < frame.len());
        }
    }
}

/// Emits into a buffer filled with `0xa5`, so that unwritten bytes can be detected.
fn emitted(bytes: usize, emit: impl FnOnce(&mut [u8])) -> Vec<u8> {
    let mut out = vec![0xa5; bytes];
    emit(&mut out);
    out
}

#[test]
fn bth_emit_writes_all_twelve_bytes() {
    let mut repr = bth(Opcode::rc(Operation::SendLast));
    repr.pad = 2;
    repr.becn = true;
    let out = emitted(BthRepr::BYTES, |out| repr.emit(out));
    assert_eq!(out, unhex("02e0ffff 40123456 80abcdef"));
    let view = BthPacket::new_checked(&out).expect("twelve bytes");
    assert_eq!(BthRepr::parse(&view), Ok(repr));
}

#[test]
fn ethernet_emit_writes_the_tag() {
    let mut repr = eth(Some(Vlan {
        id: 0x123,
        priority: 6,
    }));
    repr.ethertype = 0x86dd;
    let out = emitted(18, |out| repr.emit(out));
    assert_eq!(out, unhex("020000000002 020000000001 8100 c123 86dd"));
    assert_eq!(EthRepr::parse(&out), Ok(repr));
}

#[test]
fn ipv4_emit_writes_the_header_of_the_captured_packet() {
    let repr = Ipv4Repr {
        src: [192, 168, 0, 7],
        dst: [192, 168, 0, 7],
        tos: 1,
        ident: 1144,
        dont_fragment: true,
        ttl: 64,
        payload_len: 44,
    };
    let out = emitted(Ipv4Repr::BYTES, |out| repr.emit(out));
    assert_eq!(out, captured_uc_send()[14..34]);
    assert_eq!(
        Ipv4Repr::parse(&Ipv4Packet::new_checked(&out).expect("20 bytes")),
        Ok(repr)
    );
}

/// The headers equal those of Scapy 2.5.0: `IPv6(src='fe80::1', dst='fe80::2', tc=0x68, fl=0x12345, hlim=64) /
/// UDP(sport=0xc123, dport=4791, chksum=0)`, with 20 bytes after them.
#[test]
fn ipv6_and_udp_emit_write_the_headers_that_scapy_writes() {
    let mut low = [0; 16];
    low[..2].copy_from_slice(&[0xfe, 0x80]);
    let address = |last: u8| {
        let mut address = low;
        address[15] = last;
        address
    };
    let ip = Ipv6Repr {
        src: address(1),
        dst: address(2),
        traffic_class: 0x68,
        flow_label: 0x1_2345,
        hop_limit: 64,
        payload_len: 28,
    };
    let udp = UdpRepr {
        src_port: 0xc123,
        payload_len: 20,
    };
    let out = emitted(48, |out| {
        ip.emit(out);
        udp.emit(&mut out[40..]);
    });
    assert_eq!(
        out,
        unhex(
            "66812345001c1140 fe800000000000000000000000000001
             fe800000000000000000000000000002 c12312b7001c0000"
        )
    );
    assert_eq!(
        Ipv6Repr::parse(&Ipv6Packet::new_checked(&out).expect("48 bytes")),
        Ok(ip)
    );
    assert_eq!(
        UdpRepr::parse(&UdpPacket::new_checked(&out[40..]).expect("8 bytes")),
        Ok(udp)
    );
}

#[test]
fn extension_headers_emit_every_byte() {
    let reth = RethRepr {
        va: 0x0102_0304_0506_0708,
        rkey: 0x1112_1314,
        length: 0x2122_2324,
    };
    assert_eq!(
        emitted(RethRepr::BYTES, |out| reth.emit(out)),
        unhex("0102030405060708 11121314 21222324")
    );
    let deth = DethRepr {
        qkey: 0x8001_0000,
        src_qpn: Qpn::new(0x99_8877),
    };
    assert_eq!(
        emitted(DethRepr::BYTES, |out| deth.emit(out)),
        unhex("80010000 00998877")
    );
    let aeth = AethRepr {
        syndrome: AckSyndrome::Nak(NakCode::RemoteAccess),
        msn: 0x01_0203,
    };
    assert_eq!(
        emitted(AethRepr::BYTES, |out| aeth.emit(out)),
        unhex("62010203")
    );
    let rnr = AethRepr {
        syndrome: AckSyndrome::Rnr(12),
        msn: 0,
    };
    assert_eq!(
        emitted(AethRepr::BYTES, |out| rnr.emit(out)),
        unhex("2c000000")
    );
    let ack = AethRepr {
        syndrome: AckSyndrome::ACK,
        msn: 5,
    };
    assert_eq!(
        emitted(AethRepr::BYTES, |out| ack.emit(out)),
        unhex("1f000005")
    );
    let atomic = AtomicEthRepr {
        va: 1,
        rkey: 2,
        swap_add: 3,
        compare: 4,
    };
    assert_eq!(
        emitted(AtomicEthRepr::BYTES, |out| atomic.emit(out)),
        unhex("0000000000000001 00000002 0000000000000003 0000000000000004")
    );
}

#[test]
fn grh_area_of_an_ipv4_datagram_is_its_header_at_the_end() {
    let frame = captured_uc_send();
    let area = Packet::parse(&frame).expect("valid").network.grh_area();
    assert_eq!(area[..20], [0; 20]);
    assert_eq!(area[20..], frame[14..34]);
}

/// In every XRC request, an XRCETH follows the BTH. No XRC response has an XRCETH (IBTA volume 1, annex A14).
#[test]
fn an_xrc_request_names_its_shared_receive_queue_right_behind_the_bth() {
    let headers = Headers {
        xrc_srq: Some(0x00ab_cdef),
        immediate: Some([1, 2, 3, 4]),
        ..Headers::NONE
    };
    let opcode = Opcode::xrc(Operation::SendOnlyImmediate);
    assert_eq!(opcode.bits(), 0xa5);
    assert!(headers.fit(opcode) && !headers.fit(Opcode::rc(Operation::SendOnlyImmediate)));
    let mut bytes = [0xa5; 8];
    assert_eq!(headers.buffer_len(), bytes.len());
    headers.emit(&mut bytes);
    assert_eq!(bytes, [0, 0xab, 0xcd, 0xef, 1, 2, 3, 4]);
    assert_eq!(Headers::parse(opcode, &bytes), Ok((headers, &[][..])));
    assert!(Headers::parse(opcode, &bytes[..3]).is_err());
    assert!(Headers::NONE.fit(Opcode::xrc(Operation::ReadResponseMiddle)));
}

#[test]
fn reserved_opcodes_do_not_exist() {
    for bits in [
        0x15, 0x18, 0x1f, 0x2c, 0x31, 0x40, 0x60, 0x66, 0x80, 0x81, 0xb5, 0xc0, 0xff,
    ] {
        assert_eq!(Opcode::from_bits(bits), None, "{bits:#x}");
    }
}

/// A frame does not depend on the earlier contents of its buffer: headers write their reserved bits, too.
#[test]
fn a_used_buffer_leaves_no_trace_in_a_frame() {
    let vlan = Vlan {
        id: 0xabc,
        priority: 5,
    };
    let placed = [None, Some(vlan)]
        .into_iter()
        .flat_map(|vlan| [ipv4(), ipv6(), grh()].map(|network| (Link::from(eth(vlan)), network)))
        .chain([Network::Local, grh()].map(|network| (lrh(), network)));
    for (link, network) in placed {
        for (opcode, headers) in all_opcodes() {
            for bytes in 0..4 {
                let payload = vec![0x5a; bytes];
                let packet = Packet {
                    link,
                    network,
                    bth: bth(opcode),
                    headers,
                    payload: &payload,
                };
                let outline = packet.outline(bytes);
                let mut used = vec![0xff; outline.memory_len()];
                outline.payload_mut(&mut used).copy_from_slice(&payload);
                outline.write(&mut used, true);
                assert_eq!(used, packet.emit(), "{opcode:?} {network:?}");
            }
        }
    }
}

fn lrh() -> Link {
    Link::InfiniBand(LrhRepr {
        vl: 0,
        sl: 3,
        dlid: 0x1234,
        slid: 0x0021,
        global: false,
        packet_len: 0,
    })
}

/// The ICRC of an InfiniBand packet covers the LRH except the virtual lane. The packet is the local one of IBTA volume
/// 1, section 7.8.1, "ICRC example": LRH, BTH of an RC RDMA WRITE Only, RETH, sixteen bytes; its ICRC is 96 25 B7 5A.
#[test]
fn the_icrc_of_an_infiniband_packet_covers_the_lrh_but_for_the_virtual_lane() {
    let packet = unhex(
        "7012375c000e17d2 0a20248700 87b1b3000dec2a 01710a1c015d4002 38f27a050000000e bb884d85fd5cfba4728bc0690ed40000",
    );
    let packet = &packet[..52];
    let expected = Some([0x96, 0x25, 0xb7, 0x5a]);
    assert_eq!(icrc::compute(Encapsulation::Local, packet), expected);
    let mut other_lane = packet.to_vec();
    other_lane[0] ^= 0xf0;
    assert_eq!(icrc::compute(Encapsulation::Local, &other_lane), expected);
    other_lane[2] ^= 1;
    assert_ne!(icrc::compute(Encapsulation::Local, &other_lane), expected);
}

#[test]
fn infiniband_packets_survive_the_wire_with_and_without_a_grh() {
    for network in [Network::Local, grh()] {
        for bytes in 0..6 {
            let payload = vec![0x5a; bytes];
            let sent = Packet {
                link: lrh(),
                network,
                bth: bth(Opcode::rc(Operation::SendOnly)),
                headers: Headers::NONE,
                payload: &payload,
            };
            let wire = sent.emit();
            let got = Packet::parse_infiniband(&wire).expect("our own packet");
            let Link::InfiniBand(got_lrh) = got.link else {
                panic!("{:?}", got.link)
            };
            assert_eq!(
                (got_lrh.dlid, got_lrh.slid, got_lrh.sl, got_lrh.global),
                (0x1234, 0x0021, 3, network != Network::Local)
            );
            assert_eq!(got_lrh.packet_len + 2, wire.len(), "all but the VCRC");
            assert_eq!(got.payload, payload);
            assert_eq!(got.emit(), wire, "emit is the inverse of parse");
            for bit in 0..wire.len() * 8 {
                let mut damaged = wire.clone();
                damaged[bit / 8] ^= 0x80 >> (bit % 8);
                assert!(
                    Packet::parse_infiniband(&damaged).is_err(),
                    "bit {bit}: the VCRC covers every bit"
                );
            }
            for bytes in 0..wire.len() {
                assert!(Packet::parse_infiniband(&wire[..bytes]).is_err());
            }
        }
    }
}
