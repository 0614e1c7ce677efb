//! Compares the layouts with a recording of a real ConnectX-4 Lx and Linux's mlx5_core.
//!
//! The driver and the simulator use the same layouts, so they agree even if a layout is wrong. This recording is
//! independent of both (see `testdata/README.md`). A test that only decodes proves little: a table that lacks a field
//! still decodes. So the tests also encode every message again from its named fields alone, and compare the bytes. The
//! tests list the exceptions.

mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use mlx_prm::{
    AccessRegIn, AllocUarIn, AtomicCaps, CapType, CmdHcaCap, CmdStatus, Command, CommandOutput,
    CreateEqIn, CreateEqOut, DeliveryStatus, EnableHcaIn, EthOffloadCaps, EventType,
    HostEndianness, InitHcaIn, InputHeader, Layout, ManagePagesIn, Opcode, QueryAdapterIn,
    QueryAdapterOut, QueryHcaCapIn, QueryIssiIn, QueryIssiOut, QueryPagesIn, QueryPagesOut,
    RegisterId, RoceCap, SetHcaCapIn, SetIssiIn, TRANSPORT_PCIE,
};
use support::trace::{self, Recorded};

/// Reads the beginning of `bytes` as a layout. Missing bytes are read as zero, because drivers may omit trailing zeros.
fn layout<T: Layout>(bytes: &[u8]) -> T {
    let mut whole = vec![0; T::SIZE];
    let given = bytes.len().min(T::SIZE);
    whole[..given].copy_from_slice(&bytes[..given]);
    T::read_from_bytes(&whole).expect("the layout's own size")
}

/// Returns the offset of each dword of `value` that has set bits without a name, and those bits.
fn unnamed<T: Layout>(value: &T) -> Vec<(usize, u32)> {
    let words = |bytes: &[u8]| -> Vec<u32> {
        bytes
            .chunks(4)
            .map(|word| {
                word.iter()
                    .fold(0, |value, byte| value << 8 | u32::from(*byte))
            })
            .collect()
    };
    let (all, named) = (words(value.as_bytes()), words(value.reencode().as_bytes()));
    let lost: Vec<_> = all
        .iter()
        .zip(&named)
        .map(|(all, named)| all ^ named)
        .enumerate()
        .collect();
    lost.into_iter()
        .filter(|(_, bits)| *bits != 0)
        .map(|(index, bits)| (index * 4, bits))
        .collect()
}

/// Returns the set bits without a name in a command's input and output; `None` if the command has no layout.
fn unnamed_of(command: &Recorded) -> Option<Vec<(usize, u32)>> {
    fn both<C: Command>(command: &Recorded) -> Vec<(usize, u32)> {
        let (input, output) = (
            layout::<C>(&command.question()),
            layout::<C::Out>(&command.answer()),
        );
        assert_eq!(
            input.reserved_bits().is_none(),
            unnamed(&input).is_empty(),
            "{}",
            C::NAME
        );
        assert_eq!(output.status(), CmdStatus::OK, "{}", C::NAME);
        [unnamed(&input), unnamed(&output)].concat()
    }
    macro_rules! by_opcode {
        ($($input:ident),*) => {
            match command.opcode {
                $( <$input as Command>::OPCODE => Some(both::<$input>(command)), )*
                _ => None,
            }
        };
    }
    by_opcode!(
        EnableHcaIn,
        QueryIssiIn,
        SetIssiIn,
        QueryPagesIn,
        ManagePagesIn,
        AccessRegIn,
        QueryHcaCapIn,
        SetHcaCapIn,
        InitHcaIn,
        QueryAdapterIn,
        AllocUarIn,
        CreateEqIn
    )
}

fn xor(bytes: &[u8]) -> u8 {
    bytes.iter().fold(0, |sum, byte| sum ^ byte)
}

/// Returns all recorded outputs of an opcode with an op_mod.
fn answers(opcode: Opcode, op_mod: u32) -> Vec<Vec<u8>> {
    let asked = trace::connectx4lx()
        .into_iter()
        .filter(|command| command.opcode == opcode && command.op_mod() == op_mod);
    asked.map(|command| command.answer()).collect()
}

/// Returns the capability page in a message, which follows the first 16 bytes.
fn page<T: Layout>(message: &[u8]) -> T {
    layout(&message[0x10..])
}

/// Compares text with a checked-in file, or writes the file if `TRACE_BLESS` is set.
fn expect_file(name: &str, actual: &str) {
    let path = format!("{}/testdata/{name}", env!("CARGO_MANIFEST_DIR"));
    if std::env::var_os("TRACE_BLESS").is_some() {
        std::fs::write(&path, actual).expect("testdata is writable");
    }
    let expected = std::fs::read_to_string(&path).expect("testdata is part of the source");
    assert_eq!(actual, expected, "differs from {path}");
}

/// The driver signs every input. The device signs its outputs until INIT_HCA, when the capabilities that the driver
/// has set take effect, among them `cmdif_checksum` 0. After that the device keeps the driver's signature, which is
/// wrong for every output that is not empty.
#[test]
fn every_entry_decodes_and_is_signed_until_init_hca() {
    let mut signed = true;
    for command in trace::connectx4lx() {
        let entry = &command.input.entry;
        assert_eq!(entry.r#type(), TRANSPORT_PCIE);
        assert_eq!(entry.reserved_bits(), None);
        assert!(entry.ownership());
        assert_eq!(entry.status(), DeliveryStatus::OK);
        assert_eq!(xor(entry.as_array()), 0xff, "{}", command.opcode);
        assert_eq!(unnamed(entry), []);
        assert_eq!(
            layout::<InputHeader>(&command.question()).opcode(),
            command.opcode
        );

        let done = &command.output.entry;
        assert_eq!(done.reserved_bits(), None);
        assert!(!done.ownership());
        assert_eq!(done.status(), DeliveryStatus::OK);
        let inline = xor(done.command_output_inline_data());
        // The device signed with the ownership bit set. The bit is clear now, so the XOR is 0xfe, not 0xff.
        assert_eq!(
            xor(done.as_array()),
            if signed { 0xfe } else { 0xfe ^ inline },
            "{}",
            command.opcode
        );
        signed &= command.opcode != Opcode::INIT_HCA;
        assert_eq!(done.token(), entry.token());
        assert_eq!(
            done.command_input_inline_data(),
            entry.command_input_inline_data()
        );
    }
}

#[test]
fn tokens_are_never_zero_and_count_up() {
    let tokens: Vec<u32> = trace::connectx4lx()
        .iter()
        .map(|command| command.input.entry.token())
        .collect();
    assert_eq!(tokens, (1..=42).collect::<Vec<_>>());
}

/// Mailboxes are numbered, linked, and carry the token. Their signatures are 0 in both directions, because the driver
/// has disabled checksums for mailboxes (`cmdif_checksum` is 0).
#[test]
fn mailboxes_are_numbered_linked_and_carry_the_token() {
    for command in trace::connectx4lx() {
        for image in [&command.input, &command.output] {
            for (number, block) in image.mailboxes.iter().enumerate() {
                assert_eq!(block.reserved_bits(), None);
                assert_eq!(usize::try_from(block.block_number()).ok(), Some(number));
                assert_eq!(block.token(), image.entry.token());
                assert_eq!((block.ctrl_signature(), block.signature()), (0, 0));
                assert_eq!(block.next_pointer() % 1024, 0);
                assert_eq!(unnamed(block), []);
            }
            for pair in image.mailboxes.windows(2) {
                assert_ne!(pair[0].next_pointer(), 0);
            }
        }
    }
}

/// The recorder cuts off messages: it stops when its offset, which counts the entry and whole mailboxes, reaches the
/// message's length.
#[test]
fn recorder_cuts_off_the_longest_message_and_those_little_longer_than_an_entry() {
    let mut cut = Vec::new();
    for command in trace::connectx4lx() {
        let sides = [
            (&command.input, command.input.entry.input_length()),
            (&command.output, command.output.entry.output_length()),
        ];
        for (image, bytes) in sides {
            if image.mailboxes.len() != trace::mailboxes_for(bytes) {
                cut.push((
                    command.opcode,
                    bytes,
                    image.mailboxes.len(),
                    trace::mailboxes_for(bytes),
                ));
            }
        }
    }
    assert_eq!(
        cut,
        [
            (Opcode::MANAGE_PAGES, 64, 0, 1),
            (Opcode::ACCESS_REG, 32, 0, 1),
            (Opcode::ACCESS_REG, 32, 0, 1),
            (Opcode::MANAGE_PAGES, 102_960, 179, 202),
        ]
    );
}

#[test]
fn every_command_encodes_back_from_its_named_fields() {
    let mut commands: BTreeMap<Opcode, (usize, bool)> = BTreeMap::new();
    for command in trace::connectx4lx() {
        let lost = unnamed_of(&command);
        assert_eq!(lost.clone().unwrap_or_default(), [], "{}", command.opcode);
        let (count, has_layout) = commands.entry(command.opcode).or_default();
        *count += 1;
        *has_layout = lost.is_some();
    }
    println!("opcode                      count  layout");
    for (opcode, (count, has_layout)) in &commands {
        println!(
            "{:#05x} {:20} {count:6}  {has_layout}",
            opcode.0,
            format!("{opcode}")
        );
    }
    let without: Vec<_> = commands
        .iter()
        .filter(|(_, (_, has_layout))| !has_layout)
        .collect();
    assert_eq!(without, [], "opcodes without a layout");
    assert!(commands.keys().all(|opcode| opcode.name().is_some()));
}

/// Capability pages encode back, except for bits that the card reports and no table names. Firmware 14.12.1220 sets
/// these bits in both modes (maximum and current).
#[test]
fn capability_pages_encode_back_except_for_known_bits() {
    fn lost<T: Layout>(page_type: CapType) -> Vec<Vec<(usize, u32)>> {
        let mut lost = Vec::new();
        for op_mod in [page_type.max(), page_type.current()] {
            lost.extend(
                answers(Opcode::QUERY_HCA_CAP, op_mod)
                    .iter()
                    .map(|answer| unnamed(&page::<T>(answer))),
            );
        }
        lost
    }
    assert_eq!(lost::<CmdHcaCap>(CapType::GENERAL), vec![vec![]; 4]);
    assert_eq!(lost::<AtomicCaps>(CapType::ATOMIC), vec![vec![]; 2]);
    assert_eq!(
        lost::<RoceCap>(CapType::ROCE),
        vec![vec![(0x00, 1 << 30)]; 2]
    );
    assert_eq!(
        lost::<EthOffloadCaps>(CapType::ETHERNET_OFFLOADS),
        vec![vec![(0x00, 0b11 << 21)]; 2]
    );
}

#[test]
fn firmware_is_the_one_the_recording_names() {
    assert!(
        trace::connectx4lx_text().contains("mlx5_core 0000:02:00.0: firmware version: 14.12.1220")
    );
}

/// The recorded commands are the reference sequence of bring-up, as mlx5_core issued it.
#[test]
fn commands_come_in_the_order_of_bring_up() {
    let mut table = String::new();
    for command in trace::connectx4lx() {
        let _ = writeln!(
            table,
            "{:#05x} {:<14} op_mod {:<3} in {:<6} out {:<4} {} {}",
            command.opcode.0,
            command.opcode.to_string(),
            command.op_mod(),
            command.input.entry.input_length(),
            command.output.entry.output_length(),
            command.output.entry.status(),
            CmdStatus(command.answer()[0]),
        );
    }
    expect_file("connectx4lx-commands.txt", &table);

    let first: Vec<(Opcode, u32)> = trace::connectx4lx()
        .iter()
        .take(12)
        .map(|command| (command.opcode, command.op_mod()))
        .collect();
    assert_eq!(
        first,
        [
            (Opcode::ENABLE_HCA, 0),
            (Opcode::QUERY_ISSI, 0),
            (Opcode::SET_ISSI, 0),
            (Opcode::QUERY_PAGES, 1),
            (Opcode::MANAGE_PAGES, 1),
            (Opcode::ACCESS_REG, 0),
            (Opcode::QUERY_HCA_CAP, CapType::GENERAL.max()),
            (Opcode::QUERY_HCA_CAP, CapType::GENERAL.current()),
            (Opcode::SET_HCA_CAP, CapType::GENERAL.set()),
            (Opcode::QUERY_PAGES, 2),
            (Opcode::MANAGE_PAGES, 1),
            (Opcode::INIT_HCA, 0),
        ]
    );
}

#[test]
fn interface_step_1_is_supported_and_chosen() {
    let supported: QueryIssiOut = layout(&answers(Opcode::QUERY_ISSI, 0)[0]);
    assert_eq!(
        (supported.current_issi(), supported.supported_issi_dw0()),
        (0, 0x2)
    );
    let chosen = trace::connectx4lx()
        .into_iter()
        .find(|command| command.opcode == Opcode::SET_ISSI);
    assert_eq!(
        layout::<SetIssiIn>(&chosen.expect("in the recording").question()).current_issi(),
        1
    );
}

#[test]
fn firmware_gets_the_pages_it_asked_for() {
    let asked: Vec<u32> = [1, 2]
        .map(|op_mod| layout::<QueryPagesOut>(&answers(Opcode::QUERY_PAGES, op_mod)[0]).num_pages())
        .to_vec();
    assert_eq!(asked, [6, 12_868]);
    let mut addresses = BTreeSet::new();
    let gives = trace::connectx4lx()
        .into_iter()
        .filter(|command| command.opcode == Opcode::MANAGE_PAGES);
    for (command, pages) in gives.zip(asked) {
        let question = command.question();
        let give: ManagePagesIn = layout(&question);
        assert_eq!(
            (give.op_mod(), give.function_id(), give.input_num_entries()),
            (1, 0, pages)
        );
        assert_eq!(command.input.entry.input_length(), 0x10 + 8 * pages);
        for page in question[ManagePagesIn::SIZE..].chunks_exact(8) {
            let address = u64::from_be_bytes(page.try_into().expect("8 bytes"));
            assert!(address != 0 && address % 4096 == 0, "{address:#x}");
            addresses.insert(address);
        }
    }
    // All recorded pages are different: 179 mailboxes of 64 addresses.
    assert_eq!(addresses.len(), 179 * 64);
}

#[test]
fn host_tells_its_byte_order() {
    let command = trace::connectx4lx()
        .into_iter()
        .find(|command| command.opcode == Opcode::ACCESS_REG);
    let command = command.expect("in the recording");
    let write: AccessRegIn = layout(&command.question());
    assert_eq!(
        (write.op_mod(), write.register_id()),
        (0, RegisterId::HOST_ENDIANNESS.bits())
    );
    let bytes = AccessRegIn::SIZE + HostEndianness::SIZE;
    let (entry, done) = (&command.input.entry, &command.output.entry);
    assert_eq!(
        [entry.input_length(), done.output_length()].map(usize::try_from),
        [Ok(bytes); 2]
    );
}

#[test]
fn general_capabilities_are_those_of_a_connectx_4_lx() {
    let max: CmdHcaCap = page(&answers(Opcode::QUERY_HCA_CAP, CapType::GENERAL.max())[0]);
    assert_eq!(
        (
            max.log_max_qp(),
            max.log_max_cq(),
            max.log_max_mkey(),
            max.log_max_pd()
        ),
        (23, 24, 24, 24)
    );
    assert_eq!(
        (
            max.log_max_qp_sz(),
            max.log_max_cq_sz(),
            max.log_max_eq_sz()
        ),
        (15, 22, 22)
    );
    assert_eq!((max.log_max_ra_req_qp(), max.log_max_ra_res_qp()), (4, 4));
    assert_eq!((max.max_wqe_sz_sq(), max.max_wqe_sz_rq()), (1024, 512));
    assert_eq!(
        (
            max.num_ports(),
            max.port_type(),
            max.log_pg_sz(),
            max.log_max_msg()
        ),
        (1, 1, 12, 30)
    );
    assert_eq!(
        (
            max.cqe_version(),
            max.log_bf_reg_size(),
            max.device_frequency_mhz()
        ),
        (1, 9, 275)
    );
    assert!(
        max.rc()
            && max.uc()
            && max.ud()
            && max.xrc()
            && max.roce()
            && max.atomic()
            && max.eth_net_offloads()
    );
    assert!(max.wq_signature() && max.eswitch_manager() && max.vport_group_manager() && max.bf());
    assert!(!max.pg() && !max.imaicl() && !max.hca_cap_2() && !max.page_request_disable());
}

/// SET_HCA_CAP of mlx5_core changes the number of queue pairs and no other named field; the device then reports the
/// set page as the current one.
#[test]
fn capabilities_in_force_become_those_that_were_set() {
    let current = answers(Opcode::QUERY_HCA_CAP, CapType::GENERAL.current());
    let [before, after] = current.as_slice() else {
        panic!("asked twice")
    };
    let set = trace::connectx4lx()
        .into_iter()
        .find(|command| command.opcode == Opcode::SET_HCA_CAP);
    let set: CmdHcaCap = page(&set.expect("in the recording").question());
    let (before, after): (CmdHcaCap, CmdHcaCap) = (page(before), page(after));
    assert_eq!(set, after);
    let mut edited = before.clone();
    edited.set_log_max_qp(17);
    assert_eq!((before.log_max_qp(), &edited), (14, &after));
    assert_eq!(
        (
            after.cmdif_checksum(),
            after.pkey_table_size(),
            after.log_uar_page_sz()
        ),
        (0, 0, 0)
    );
}

#[test]
fn roce_and_atomic_capabilities_are_those_of_a_connectx_4_lx() {
    for op_mod in [CapType::ROCE.max(), CapType::ROCE.current()] {
        let roce: RoceCap = page(&answers(Opcode::QUERY_HCA_CAP, op_mod)[0]);
        assert_eq!(
            (
                roce.l3_type(),
                roce.roce_version(),
                roce.roce_address_table_size()
            ),
            (7, 7, 256)
        );
        assert_eq!(
            (roce.r_roce_dest_udp_port(), roce.r_roce_min_src_udp_port()),
            (4791, 0xc000)
        );
        assert_eq!(roce.r_roce_max_src_udp_port(), 0xffff);
    }
    for op_mod in [CapType::ATOMIC.max(), CapType::ATOMIC.current()] {
        let atomic: AtomicCaps = page(&answers(Opcode::QUERY_HCA_CAP, op_mod)[0]);
        assert_eq!(
            (atomic.atomic_operations(), atomic.atomic_size_qp()),
            (0xf, 0x3c)
        );
        assert!(!atomic.supported_atomic_req_8B_endianness_mode_1());
    }
}

#[test]
fn adapter_names_its_maker() {
    let adapter: QueryAdapterOut = layout(&answers(Opcode::QUERY_ADAPTER, 0)[0]);
    let block = adapter.query_adapter_struct();
    // 0x2c9 is Mellanox's OUI (organizationally unique identifier), 0x15b3 its PCI vendor ID.
    assert_eq!(
        (block.ieee_vendor_id(), block.vsd_vendor_id()),
        (0x02c9, 0x15b3)
    );
    assert!(block.vsd_contd_psid().starts_with(b"MT_"), "{block:?}");
}

/// mlx5_core makes event queues for commands (vector 1), async events (2), pages (0), then one for each other vector.
#[test]
fn event_queues_are_made_as_the_layout_says() {
    let made: Vec<Recorded> = trace::connectx4lx()
        .into_iter()
        .filter(|command| command.opcode == Opcode::CREATE_EQ)
        .collect();
    let inputs: Vec<CreateEqIn> = made
        .iter()
        .map(|command| layout(&command.question()))
        .collect();
    let bit = |event: EventType| 1u64 << event.0;
    assert_eq!(inputs[0].event_bitmask(), bit(EventType::CMD));
    for event in [
        EventType::CQ_ERROR,
        EventType::PORT_CHANGE,
        EventType::SRQ_RQ_LIMIT,
        EventType::WQ_ACCESS_ERROR,
    ] {
        assert_ne!(inputs[1].event_bitmask() & bit(event), 0, "{event}");
    }
    assert_eq!(inputs[2].event_bitmask(), bit(EventType::PAGE_REQUEST));
    assert!(inputs[3..].iter().all(|input| input.event_bitmask() == 0));
    let (numbers, vectors): (Vec<u32>, Vec<u32>) = made
        .iter()
        .zip(&inputs)
        .map(|(command, input)| {
            let made: CreateEqOut = layout(&command.answer());
            (made.eq_number(), input.eq_context_entry().intr())
        })
        .unzip();
    assert_eq!(numbers, (16..31).collect::<Vec<_>>());
    assert_eq!(
        vectors,
        [1, 2, 0].into_iter().chain(3..15).collect::<Vec<_>>()
    );
    for (command, input) in made.iter().zip(&inputs) {
        let context = input.eq_context_entry();
        let bytes = 64 << context.log_eq_size();
        let page_bytes = 4096 << context.log_page_size();
        let list = command.question().len() - CreateEqIn::SIZE;
        assert_eq!(list, 8 * usize::div_ceil(bytes, page_bytes), "{context:?}");
    }
}

/// The checked-in text of the capability pages equals the recording. People and a simulator's profile use the text.
#[test]
fn recorded_capability_pages_are_checked_in_as_text() {
    let mut text = String::from(
        "# Capability pages of a ConnectX-4 Lx, firmware 14.12.1220 (README.md names the source).\n\
         # Offset in the page and four big-endian dwords; rows of zeros are left out.\n",
    );
    let mut seen: BTreeMap<u32, usize> = BTreeMap::new();
    for command in trace::connectx4lx() {
        if command.opcode != Opcode::QUERY_HCA_CAP {
            continue;
        }
        let op_mod = command.op_mod();
        let time = seen.entry(op_mod).or_default();
        *time += 1;
        let mode = if op_mod & 1 == 0 {
            "maximum"
        } else {
            "current"
        };
        let _ = writeln!(
            text,
            "\n{} {mode}, query {time}",
            CapType::from_bits(op_mod >> 1)
        );
        for (row, bytes) in command.answer()[0x10..].chunks(16).enumerate() {
            if bytes.iter().any(|byte| *byte != 0) {
                let _ = write!(text, "{:03x}:", row * 16);
                for (at, byte) in bytes.iter().enumerate() {
                    let _ = write!(text, "{}{byte:02x}", if at % 4 == 0 { " " } else { "" });
                }
                text.push('\n');
            }
        }
    }
    expect_file("connectx4lx-caps.txt", &text);
}
