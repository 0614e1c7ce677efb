//! Commands as text, in the hexdump format of mlx5_core's debug output
//! (Linux `drivers/net/ethernet/mellanox/mlx5/core/cmd.c`, `dump_command`), so that our traces can be
//! compared with the kernel's.
//!
//! Each line is one `tracing` event at TRACE level with the target `hw_mlx::cmd`. Nothing is formatted unless a
//! subscriber is interested.

use std::fmt::Write as _;

use mlx_prm::Opcode;

/// Target of the command trace.
pub(crate) const TARGET: &str = "hw_mlx::cmd";

/// Direction of a dumped command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    /// The command as it is given to the device.
    Input,
    /// The command as the device returned it.
    Output,
}

/// Returns whether a subscriber wants the dumps.
pub(crate) fn wanted() -> bool {
    tracing::enabled!(target: TARGET, tracing::Level::TRACE)
}

/// Traces one command: its 64-byte entry, then its mailboxes.
pub(crate) fn trace(
    direction: Direction,
    opcode: Opcode,
    entry: &[u8],
    blocks: impl Iterator<Item = Vec<u8>>,
) {
    let way = match direction {
        Direction::Input => "INPUT",
        Direction::Output => "OUTPUT",
    };
    tracing::trace!(target: TARGET, "dump command {opcode:?}({:#x}) {way}", opcode.0);
    let mut offset = 0;
    for line in lines(entry, &mut offset) {
        tracing::trace!(target: TARGET, "{line}");
    }
    for block in blocks {
        tracing::trace!(target: TARGET, "command block:");
        for line in lines(&block, &mut offset) {
            tracing::trace!(target: TARGET, "{line}");
        }
    }
}

/// Formats the bytes as lines of four big-endian words, each with the offset since the beginning of the command.
fn lines(bytes: &[u8], offset: &mut usize) -> Vec<String> {
    bytes
        .chunks(16)
        .map(|row| {
            let mut line = format!("{:03x}:", *offset);
            for word in row.chunks(4) {
                line.push(' ');
                for byte in word {
                    // Writing to a String cannot fail.
                    let _ = write!(line, "{byte:02x}");
                }
            }
            *offset += row.len();
            line
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::lines;

    /// Dump lines are equal to two recorded lines of a ConnectX-4 Lx start-up (ENABLE_HCA; snabbco/snabb,
    /// `src/apps/mellanox/trace-mlx5_core.txt.gz`), without the kernel's time stamps.
    #[test]
    fn dump_lines_look_like_the_recorded_ones() {
        let mut entry = [0u8; 0x20];
        entry[0x00] = 0x07;
        entry[0x07] = 0x10;
        entry[0x10] = 0x01;
        entry[0x11] = 0x04;
        let mut offset = 0;
        assert_eq!(
            lines(&entry, &mut offset),
            [
                "000: 07000000 00000010 00000000 00000000",
                "010: 01040000 00000000 00000000 00000000"
            ]
        );
        assert_eq!(offset, 0x20);
    }

    #[test]
    fn dump_offsets_run_on_over_the_mailboxes() {
        let mut offset = 0x40;
        assert_eq!(lines(&[0xab; 8], &mut offset), ["040: abababab abababab"]);
    }
}
