//! Reads traces in the format of mlx5_core's debug output (Linux
//! `drivers/net/ethernet/mellanox/mlx5/core/cmd.c`, `dump_command`).
//!
//! A dump is a line `dump command NAME(OPCODE) INPUT`, then hex lines `offset: word word word word`: the 64 bytes of
//! the entry, then 576 bytes per mailbox. A trace has two dumps of every command: one as the driver sent it, one as the
//! device returned it. Other log lines may be between the lines of dumps.

use std::io::Read as _;

use mlx_prm::{CmdMailbox, CmdQueueEntry, INLINE_BYTES, MAILBOX_BYTES, Opcode};
use zerocopy::FromBytes as _;

/// The recorded ConnectX-4 Lx start-up; see `testdata/README.md`.
const CONNECTX4LX: &[u8] = include_bytes!("../../testdata/connectx4lx-mlx5_core-trace.txt.gz");

/// One dump: an entry and the mailboxes printed with it.
#[derive(Clone)]
pub struct Image {
    pub entry: CmdQueueEntry,
    pub mailboxes: Vec<CmdMailbox>,
}

/// A recorded command.
#[derive(Clone)]
pub struct Recorded {
    /// Opcode in the dump's heading.
    pub opcode: Opcode,
    /// The command as the driver sent it, with the input's mailboxes.
    pub input: Image,
    /// The command as the device returned it, with the output's mailboxes.
    pub output: Image,
}

impl Image {
    fn message(&self, inline: &[u8; INLINE_BYTES], bytes: u32) -> Vec<u8> {
        let mut message = inline.to_vec();
        for mailbox in &self.mailboxes {
            message.extend_from_slice(mailbox.mailbox_data());
        }
        message.truncate(usize::try_from(bytes).expect("a length"));
        message
    }
}

impl Recorded {
    /// Returns the input message. The recorder may have cut it off.
    pub fn question(&self) -> Vec<u8> {
        self.input.message(
            self.input.entry.command_input_inline_data(),
            self.input.entry.input_length(),
        )
    }

    /// Returns the output message. The recorder may have cut it off.
    pub fn answer(&self) -> Vec<u8> {
        self.output.message(
            self.output.entry.command_output_inline_data(),
            self.output.entry.output_length(),
        )
    }

    /// Returns the command's op_mod.
    pub fn op_mod(&self) -> u32 {
        let inline = self.input.entry.command_input_inline_data();
        u32::from(inline[6]) << 8 | u32::from(inline[7])
    }
}

/// Returns the number of mailboxes for a message of `bytes` bytes.
pub fn mailboxes_for(bytes: u32) -> usize {
    usize::try_from(bytes)
        .expect("a length")
        .saturating_sub(INLINE_BYTES)
        .div_ceil(MAILBOX_BYTES)
}

/// Returns the text of the recorded ConnectX-4 Lx start-up.
pub fn connectx4lx_text() -> String {
    let mut text = String::new();
    flate2::read::GzDecoder::new(CONNECTX4LX)
        .read_to_string(&mut text)
        .expect("the recording is gzipped text");
    text
}

/// Returns the commands of the recorded ConnectX-4 Lx start-up, in order.
pub fn connectx4lx() -> Vec<Recorded> {
    parse(&connectx4lx_text())
}

/// Returns the commands of a trace, in the order in which they were sent to the device.
pub fn parse(text: &str) -> Vec<Recorded> {
    let mut commands = Vec::new();
    let mut pending: Option<(Opcode, Image)> = None;
    for (opcode, is_input, bytes) in dumps(text) {
        let image = image(&bytes);
        if is_input {
            assert!(pending.is_none(), "two commands at once: {opcode}");
            pending = Some((opcode, image));
        } else {
            let (asked, input) = pending.take().expect("an answer follows a question");
            assert_eq!(asked, opcode);
            commands.push(Recorded {
                opcode,
                input,
                output: image,
            });
        }
    }
    assert!(pending.is_none(), "the last command has no answer");
    commands
}

/// Returns every dump: the opcode, true for the input's dump, and the bytes.
fn dumps(text: &str) -> Vec<(Opcode, bool, Vec<u8>)> {
    let mut dumps: Vec<(Opcode, bool, Vec<u8>)> = Vec::new();
    for line in text.lines() {
        if let Some((_, dump)) = line.split_once("dump command ") {
            let (name, direction) = dump.rsplit_once(' ').expect("a direction");
            let (_, opcode) = name.rsplit_once("(0x").expect("an opcode");
            let opcode = u16::from_str_radix(opcode.trim_end_matches(')'), 16).expect("an opcode");
            dumps.push((Opcode(opcode), direction == "INPUT", Vec::new()));
        } else if let Some((offset, row)) = hex_row(line) {
            let (opcode, _, bytes) = dumps.last_mut().expect("a dump");
            assert_eq!(offset, bytes.len(), "{opcode}: a row is missing");
            bytes.extend_from_slice(&row);
        }
    }
    dumps
}

/// Returns the offset and the 16 bytes of a hex line.
fn hex_row(line: &str) -> Option<(usize, [u8; 16])> {
    let (_, dump) = line.split_once("] ")?;
    let (offset, words) = dump.split_once(": ")?;
    let offset = usize::from_str_radix(offset, 16).ok()?;
    let digits: String = words.split(' ').collect();
    let value = (digits.len() == 32).then(|| u128::from_str_radix(&digits, 16).ok())??;
    Some((offset, value.to_be_bytes()))
}

fn image(bytes: &[u8]) -> Image {
    let (entry, rest) = CmdQueueEntry::read_from_prefix(bytes).expect("an entry");
    let mut blocks = rest.chunks_exact(CmdMailbox::SIZE);
    let mailboxes = blocks
        .by_ref()
        .map(|block| CmdMailbox::read_from_bytes(block).expect("a block"))
        .collect();
    assert!(blocks.remainder().is_empty(), "half a mailbox");
    Image { entry, mailboxes }
}
