//! The command queue: entry, mailbox, and what every command has in common (PRM "Command Interface").
//!
//! A slot is a 64-byte entry with the first 16 bytes of input and output; the rest is in chains of
//! mailboxes. Both carry the same token. Signatures make the XOR of the bytes they cover 0xff: all
//! 64 of an entry (ownership bit set), 0x200..0x23f of a mailbox for the control signature, all 576
//! for the whole.

use super::{CmdStatus, DeliveryStatus, Opcode};
use layout::{Layout, layout};

layout! {
    /// Command queue entry (PRM "Command Queue Entry Layout").
    pub struct CmdQueueEntry(0x40) {
        /// Transport; 7 is PCIe, the only one.
        r#type: 0x00[31:24],
        /// Input bytes, those in the entry included.
        input_length: 0x04 u32,
        /// First input mailbox; the low 9 bits are zero. Not looked at when the input fits the entry.
        input_mailbox_pointer: 0x08 u64,
        /// Input bytes 0 to 15.
        command_input_inline_data: 0x10 [u8; 16],
        /// Output bytes 0 to 15.
        command_output_inline_data: 0x20 [u8; 16],
        /// First output mailbox; the low 9 bits are zero.
        output_mailbox_pointer: 0x30 u64,
        /// Room for output in bytes, that in the entry included.
        output_length: 0x38 u32,
        /// A number that every mailbox of the command carries too.
        token: 0x3c[31:24],
        /// See the module's description.
        signature: 0x3c[23:16],
        /// Delivery status, written by the device.
        status: 0x3c (DeliveryStatus[7:1]),
        /// Set: the device owns the entry.
        ownership: 0x3c[0],
    }

    /// Mailbox block (PRM "Command Interface Mailbox Layout").
    pub struct CmdMailbox(0x240) {
        /// Message bytes 16 + 512 k, …
        mailbox_data: 0x000 [u8; 512],
        /// The next block, or 0.
        next_pointer: 0x230 u64,
        /// Number of this block in its chain, from 0.
        block_number: 0x238 u32,
        /// The entry's token.
        token: 0x23c[23:16],
        /// Over 0x200..0x23f.
        ctrl_signature: 0x23c[15:8],
        /// Over the whole block.
        signature: 0x23c[7:0],
    }

    /// What every input begins with.
    pub struct InputHeader(0x08) {
        /// Which command.
        opcode: 0x00 (Opcode[31:16]),
        /// User context on whose behalf, in commands that have one; 0 is the driver itself.
        uid: 0x00[15:0],
        /// Variant of the command.
        op_mod: 0x04[15:0],
    }

    /// What every output begins with.
    pub struct OutputHeader(0x08) {
        /// What became of the command.
        status: 0x00 (CmdStatus[31:24]),
        /// The firmware's reason for a refusal.
        syndrome: 0x04 u32,
    }

    /// Health buffer, at 0x200 of the initialization segment (PRM "Health Buffer").
    pub struct HealthBuffer(0x40) {
        /// Six dwords for the firmware's makers.
        assert_var: 0x00 [u8; 24],
        /// Where the firmware asserted.
        assert_exit_ptr: 0x20 u32,
        /// From where.
        assert_callra: 0x24 u32,
        /// When.
        time: 0x2c u32,
        /// All ones when the device is gone.
        fw_ver: 0x30 u32,
        /// Hardware.
        hw_id: 0x34 u32,
        /// Reset required.
        rfr: 0x38[31],
        /// `severity` means something.
        severity_valid: 0x38[27],
        /// How bad.
        severity: 0x38[26:24],
        /// Which internal processor.
        irisc_index: 0x3c[31:24],
        /// 0 healthy; see [`HealthSyndrome`](super::HealthSyndrome).
        synd: 0x3c[23:16],
        /// Detail of `synd`.
        ext_synd: 0x3c[15:0],
    }
}

/// Message bytes in the entry itself, each way.
pub const INLINE_BYTES: usize = 16;
/// Message bytes in one mailbox.
pub const MAILBOX_BYTES: usize = 512;
/// The entry's `type`: PCIe transport.
pub const TRANSPORT_PCIE: u32 = 7;

/// A command's input: knows its opcode and what answers it.
///
/// Lists that follow the fixed part (page addresses, translation entries) are not part of it.
pub trait Command: Layout {
    /// Which command.
    const OPCODE: Opcode;
    /// The PRM's name for it.
    const NAME: &'static str;
    /// The fixed part of its output.
    type Out: CommandOutput;
}

/// A command's output.
pub trait CommandOutput: Layout {
    /// What became of the command.
    fn status(&self) -> CmdStatus;
    /// The firmware's reason for a refusal.
    fn syndrome(&self) -> u32;
    /// Sets both.
    fn set_outcome(&mut self, status: CmdStatus, syndrome: u32);
}
