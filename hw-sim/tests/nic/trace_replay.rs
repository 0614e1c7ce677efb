//! Replay of the recorded start-up of a real ConnectX-4 Lx on the simulator.
//!
//! The recording (`mlx-prm/testdata/README.md`) holds the commands of Linux's mlx5_core and the card's answers. The
//! test sends every command to the simulator in recorded order. Entries and mailboxes are the recorded ones, byte for
//! byte, except for values of the recorded machine. These are adapted: mailbox pointers, page addresses (pages and
//! event queue rings are in the test's memory), and UAR numbers, which the simulator assigns differently. Mailboxes
//! that are missing from the recording are invented: a page list has the test's own pages, a register image is zero.
//!
//! The function has the profile `connectx-4-lx-14.12`: the card's capability pages, page counts and firmware version.
//! So no command has to be split or shortened. The test compares behaviour with the recording: whether each command is
//! accepted in this order, with its lengths, tokens and reserved bits; the state after SET_HCA_CAP; the bytes that are
//! returned and the bytes that are unchanged.
//!
//! One behaviour of the card is not required of the simulator: before INIT_HCA the card signed the entries of its
//! answers although checksums were off (QUERY_PAGES, twice). The card computed the signature while the ownership bit
//! was still set. No driver checks this signature.
//!
//! `trace_replay.expected` has the result of each command: *same answer*; *same shape* (zero exactly where the card's
//! answer was zero) for numbers that each device chooses; *refused as unsupported*; or *differs*. With `TRACE_BLESS=1`
//! in the environment, the test rewrites this file.

#[path = "../../../mlx-prm/tests/support/trace.rs"]
#[allow(dead_code, reason = "shared with hw-mlx, which uses all of it")]
mod trace;

use driver::{Device, SharedMemory};
use hw_sim::Profile;
use hw_sim::profile::Page;
use mlx_prm::*;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use trace::Recorded;
use zerocopy::{FromBytes, IntoBytes};

use crate::bench::{BASE, Bench};

/// DMA address of the pages given to the firmware. The card requested 50 MiB of pages.
const PAGES: u64 = 0x8000_0000;
/// Offsets of the input and output mailboxes in the bench's memory.
const INPUT: usize = 0x1_0000;
const OUTPUT: usize = 0x10_0000;
/// Distance between mailboxes in bytes, as in mlx5_core.
const SPACING: usize = 0x400;

/// Returns the capability page in a recorded answer.
fn capability<T: FromBytes>(commands: &[Recorded], kind: CapType, current: bool) -> T {
    let op_mod = if current { kind.current() } else { kind.max() };
    let query = commands
        .iter()
        .find(|command| command.opcode == Opcode::QUERY_HCA_CAP && command.op_mod() == op_mod);
    let answer = query.expect("recorded").answer();
    T::read_from_prefix(&answer[0x10..]).expect("a page").0
}

/// Asserts that the profile's page equals the recorded page in every byte.
fn same<T: Layout>(commands: &[Recorded], kind: CapType, page: &Page<T>) {
    for (current, known, rest) in [
        (false, &page.max, &page.rest.max),
        (true, &page.current, &page.rest.current),
    ] {
        let recorded: [u8; 0x1000] = capability(commands, kind, current);
        assert_eq!(
            [known.as_bytes(), rest].concat(),
            recorded,
            "{kind:?} {current}"
        );
    }
}

/// Returns the profile made from this recording, which has the card's identity. Checks it against the recording.
fn connectx4lx(commands: &[Recorded]) -> Profile {
    let wanted = |op_mod| {
        let query = commands
            .iter()
            .find(|command| command.opcode == Opcode::QUERY_PAGES && command.op_mod() == op_mod);
        QueryPagesOut::read_from_prefix(&query.expect("recorded").answer())
            .expect("an answer")
            .0
            .num_pages()
    };
    let mut profile = Profile::generation("connectx-4-lx-14.12").expect("a generation");
    assert_eq!(
        (profile.pages.boot, profile.pages.init),
        (wanted(1), wanted(2))
    );
    profile.pages.runtime = 0;
    same(commands, CapType::GENERAL, &profile.general);
    same(commands, CapType::ATOMIC, &profile.atomic);
    same(commands, CapType::ROCE, &profile.roce);
    same(commands, CapType::ETHERNET_OFFLOADS, &profile.eth_offloads);
    same(commands, CapType::FLOW_TABLE, &profile.flow_table);
    profile
}

/// Result of the comparison for one command.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Comparison {
    Same,
    SameShape(Vec<usize>),
    Unsupported,
    Differs(String),
}

impl std::fmt::Display for Comparison {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Same => f.write_str("accepted: same answer"),
            Self::SameShape(dwords) => {
                f.write_str("accepted: same shape, other values at")?;
                dwords.iter().try_for_each(|at| write!(f, " {at:#05x}"))
            }
            Self::Unsupported => f.write_str("refused as unsupported"),
            Self::Differs(how) => write!(f, "differs: {how}"),
        }
    }
}

/// State of the replay.
struct Replay {
    bench: Bench,
    pages_given: u64,
    /// Map from the card's UAR numbers to the simulator's.
    uars: BTreeMap<u32, u32>,
}

impl Replay {
    fn new(commands: &[Recorded]) -> Self {
        let bench = Bench::ready(connectx4lx(commands));
        let bytes = 64 << 20;
        let pages = SharedMemory::anonymous(bytes).expect("memory");
        bench
            .function
            .dma_map(PAGES, pages, 0, bytes)
            .expect("free addresses");
        Self {
            bench,
            pages_given: 0,
            uars: BTreeMap::new(),
        }
    }

    /// Returns the recorded input with the addresses and numbers of this run.
    fn adapted(&mut self, command: &Recorded) -> Vec<u8> {
        let bytes = usize::try_from(command.input.entry.input_length()).expect("a length");
        let mut message = command.question();
        message.resize(bytes, 0);
        if command.opcode == Opcode::MANAGE_PAGES {
            for address in message[ManagePagesIn::SIZE..].chunks_exact_mut(8) {
                address.copy_from_slice(&(PAGES + self.pages_given * 4096).to_be_bytes());
                self.pages_given += 1;
            }
        }
        if command.opcode == Opcode::CREATE_EQ {
            let (input, pages) = CreateEqIn::mut_from_prefix(&mut message).expect("a whole input");
            let context = input.eq_context_entry_mut();
            let ours = self.uars[&context.uar_page()];
            context.set_uar_page(ours);
            for address in pages.chunks_exact_mut(8) {
                address.copy_from_slice(&self.bench.alloc(4096).1.to_be_bytes());
            }
        }
        message
    }

    /// Writes the mailbox chain for the part of a message that is not in the entry. Uses recorded mailboxes, and blank
    /// ones where the recording has none.
    fn chain(&self, at: usize, recorded: &[CmdMailbox], token: u32, rest: &[u8]) {
        let count = rest.len().div_ceil(MAILBOX_BYTES);
        for (number, data) in rest.chunks(MAILBOX_BYTES).enumerate() {
            let mut mailbox = recorded.get(number).cloned().unwrap_or_else(|| {
                let mut blank = CmdMailbox::new();
                blank
                    .set_token(token)
                    .set_block_number(u32::try_from(number).expect("few"));
                blank
            });
            mailbox.mailbox_data_mut()[..data.len()].copy_from_slice(data);
            let here = at + number * SPACING;
            let next = if number + 1 == count {
                0
            } else {
                BASE + (here + SPACING) as u64
            };
            mailbox.set_next_pointer(next);
            self.bench.memory.write_obj(here, &mailbox);
        }
    }

    /// Runs one command. Returns the entry after completion, and the output.
    fn say(&mut self, command: &Recorded) -> (CmdQueueEntry, Vec<u8>) {
        let message = self.adapted(command);
        let recorded = &command.input.entry;
        let mut entry = recorded.clone();
        let mut inline = *recorded.command_input_inline_data();
        let short = message.len().min(INLINE_BYTES);
        inline[..short].copy_from_slice(&message[..short]);
        entry.set_command_input_inline_data(&inline);
        let token = recorded.token();
        if let Some(rest) = message.get(INLINE_BYTES..).filter(|rest| !rest.is_empty()) {
            self.chain(INPUT, &command.input.mailboxes, token, rest);
            entry.set_input_mailbox_pointer(BASE + INPUT as u64);
        }
        let output_bytes = usize::try_from(recorded.output_length()).expect("a length");
        if output_bytes > INLINE_BYTES {
            self.chain(OUTPUT, &[], token, &vec![0; output_bytes - INLINE_BYTES]);
            entry.set_output_mailbox_pointer(BASE + OUTPUT as u64);
        }
        // mlx5_core uses slot 31 for page commands and the other slots for all other commands. The recording does not
        // contain slots.
        let submission = crate::bench::Submission {
            entry: entry.clone(),
            slot: 0,
        };
        self.bench.submit(&submission);
        assert!(
            self.bench.collect(0).is_some(),
            "{:?} is not answered",
            command.opcode
        );
        let handed_back = self.bench.entry(0);
        let mut output = handed_back.command_output_inline_data().to_vec();
        for number in 0..trace::mailboxes_for(recorded.output_length()) {
            let mailbox: CmdMailbox = self.bench.memory.read_obj(OUTPUT + number * SPACING);
            assert_eq!(
                (mailbox.token(), mailbox.block_number()),
                (token, u32::try_from(number).expect("few"))
            );
            output.extend_from_slice(mailbox.mailbox_data());
        }
        output.truncate(output_bytes);
        // The device leaves all fields of the entry that it does not own unchanged, as the card did.
        let mut untouched = entry;
        untouched.set_command_output_inline_data(handed_back.command_output_inline_data());
        untouched
            .set_ownership(false)
            .set_status(handed_back.status());
        assert_eq!(
            untouched.as_bytes(),
            handed_back.as_bytes(),
            "{:?}",
            command.opcode
        );
        (handed_back, output)
    }

    /// Runs one command and compares the answer with the recorded one.
    fn replay(&mut self, command: &Recorded) -> Comparison {
        let (entry, output) = self.say(command);
        let recorded = command.output.entry.status();
        if entry.status() != recorded {
            return Comparison::Differs(format!(
                "delivery {:?}, recorded {recorded:?}",
                entry.status()
            ));
        }
        let answer = command.answer();
        // The recording lacks the end of some answers, so only the recorded length is compared.
        let length = answer.len();
        let status = CmdStatus(output[0]);
        if status == CmdStatus::BAD_OP {
            return Comparison::Unsupported;
        }
        if status.0 != answer[0] {
            let refused = self.bench.report().refused;
            let reason = refused
                .last()
                .map_or(String::new(), |refused| refused.reason.clone());
            return Comparison::Differs(format!("{status:?}: {reason}"));
        }
        if command.opcode == Opcode::ALLOC_UAR {
            let number = |bytes: &[u8]| {
                AllocUarOut::read_from_prefix(bytes)
                    .expect("an answer")
                    .0
                    .uar()
            };
            self.uars.insert(number(&answer), number(&output));
        }
        compare(&answer, &output[..length])
    }
}

/// Compares two answers dword by dword.
fn compare(recorded: &[u8], ours: &[u8]) -> Comparison {
    let differing: Vec<(usize, &[u8], &[u8])> = recorded
        .chunks(4)
        .zip(ours.chunks(4))
        .enumerate()
        .filter(|(_, (recorded, ours))| recorded != ours)
        .map(|(index, (recorded, ours))| (index * 4, recorded, ours))
        .collect();
    let zero = |dword: &[u8]| dword.iter().all(|&byte| byte == 0);
    if differing.is_empty() {
        return Comparison::Same;
    }
    let other_kind: Vec<String> = differing
        .iter()
        .filter(|(_, recorded, ours)| zero(recorded) != zero(ours))
        .map(|(at, recorded, ours)| format!("{at:#05x} {recorded:02x?} is {ours:02x?}"))
        .collect();
    if other_kind.is_empty() {
        return Comparison::SameShape(differing.iter().map(|&(at, ..)| at).collect());
    }
    Comparison::Differs(other_kind.join(", "))
}

#[test]
fn the_simulator_answers_the_recorded_start_up_as_the_card_did() {
    let commands = trace::connectx4lx();
    let mut replay = Replay::new(&commands);
    let mut table: Vec<(Opcode, u32, Comparison, usize)> = Vec::new();
    for command in &commands {
        let fate = replay.replay(command);
        let row = table.iter_mut().find(|(opcode, op_mod, known, _)| {
            (*opcode, *op_mod, known) == (command.opcode, command.op_mod(), &fate)
        });
        match row {
            Some((.., count)) => *count += 1,
            None => table.push((command.opcode, command.op_mod(), fate, 1)),
        }
    }
    let mut text = String::from(
        "# opcode name op_mod count result; tests/nic/trace_replay.rs says what the results mean.\n",
    );
    for (opcode, op_mod, fate, count) in &table {
        writeln!(
            text,
            "{:#05x} {opcode} op_mod {op_mod} x{count} {fate}",
            opcode.0
        )
        .expect("memory");
    }
    let path = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/tests/nic/trace_replay.expected"
    );
    if std::env::var_os("TRACE_BLESS").is_some() {
        std::fs::write(path, &text).expect("a writable file");
    }
    let expected = std::fs::read_to_string(path).expect("the table");
    assert_eq!(text, expected, "run with TRACE_BLESS=1 if this is meant");

    let report = replay.bench.report();
    assert_eq!(
        report.driver_bugs,
        [] as [String; 0],
        "a real driver's start-up has none"
    );
    assert!(report.dma_faults.is_empty(), "{:?}", report.dma_faults);
    assert_eq!(report.pages_held as u64, replay.pages_given);
    assert_eq!(report.leaked.get("EQ"), Some(&15));
}
