//! Compares the layouts of CREATE_QP with a command that Linux's mlx5_core sent to a real ConnectX-4, and with the
//! card's output.
//!
//! `trace.rs` cannot do this, because the start-up trace ends before the first queue pair. See `testdata/README.md`.

use mlx_prm::{CmdStatus, CreateQpIn, CreateQpOut, Layout, Opcode};
use zerocopy::{FromBytes, IntoBytes};

const RECORDED: &str = include_str!("../testdata/connectx4-create_qp.txt");

/// Returns the bytes below a heading of the file. Each row of the file has an offset and four words.
fn dump(heading: &str) -> Vec<u8> {
    let rows = RECORDED
        .lines()
        .skip_while(|line| *line != heading)
        .skip(1)
        .map_while(|line| line.split_once(": "));
    let mut bytes = Vec::new();
    for (offset, words) in rows {
        assert_eq!(usize::from_str_radix(offset, 16), Ok(bytes.len()));
        for word in words.split(' ') {
            let word = u32::from_str_radix(word, 16).expect("a word");
            bytes.extend_from_slice(&word.to_be_bytes());
        }
    }
    bytes
}

#[test]
fn create_qp_of_a_real_card_decodes_and_encodes_back_to_the_same_bytes() {
    let sent = dump("INPUT");
    let (input, pages) = CreateQpIn::read_from_prefix(&sent).expect("a whole command");
    assert_eq!((input.opcode(), input.uid()), (Opcode::CREATE_QP, 2));
    assert_eq!(input.reserved_bits(), None, "every bit has a name");
    assert_eq!(input.reencode().as_bytes(), &sent[..CreateQpIn::SIZE]);
    // The work queues occupy two pages.
    let pages: Vec<_> = pages.chunks(8).collect();
    let addresses = [0x0006_180c_0000_u64, 0x0005_4420_0000].map(u64::to_be_bytes);
    assert_eq!(pages, addresses);

    let answered = dump("OUTPUT");
    let output = CreateQpOut::read_from_bytes(&answered).expect("a whole answer");
    assert_eq!((output.status(), output.qpn()), (CmdStatus::OK, 0x04_0121));
    assert_eq!(output.reencode().as_bytes(), &answered);
}

#[test]
fn the_context_of_a_real_queue_pair_says_what_verbs_asked_for() {
    let (input, _) = CreateQpIn::read_from_prefix(&dump("INPUT")).expect("a whole command");
    let qpc = input.qpc();
    // RC is service type 0; path migration is "migrated".
    assert_eq!((qpc.st(), qpc.pm_state(), qpc.pd()), (0, 3, 0x18));
    assert_eq!(
        (qpc.log_rq_size(), qpc.log_rq_stride(), qpc.log_sq_size()),
        (7, 0, 9)
    );
    // The pages have 64 KiB. The queues begin at 12/64 of the first page.
    assert_eq!((qpc.log_page_size(), qpc.page_offset()), (4, 12));
    assert_eq!((qpc.cqn_snd(), qpc.cqn_rcv()), (0x10d, 0x10d));
    assert_eq!((qpc.uar_page(), qpc.user_index()), (0x15, 0x03_ff5d));
    // Linux sets its own XRC domain and SRQ in each context. With rq_type 0 the device uses neither.
    assert_eq!(
        (qpc.xrcd(), qpc.rq_type(), qpc.srqn_rmpn_xrqn()),
        (0x11, 0, 0x101)
    );
    assert_eq!(qpc.dbr_addr(), 0x0005_5b6f_e7c0);
    assert_eq!((qpc.cs_req(), qpc.cs_res()), (0, 1));
}
