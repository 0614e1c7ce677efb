//! The command queue: entry, mailbox, and the common parts of every command (PRM "Command Interface").
//!
//! A slot is a 64-byte entry with the first 16 bytes of input and output; the rest is in chains of mailboxes. Both
//! carry the same token. A signature makes the XOR of the bytes that it covers 0xff: all 64 of an entry (ownership
//! bit set), 0x200..0x23f of a mailbox for its control signature, all 576 for its signature.

use super::{CmdStatus, DeliveryStatus, Opcode};
use layout::{Layout, layout};

layout! {
    /// Command queue entry (PRM "Command Queue Entry Layout").
    pub struct CmdQueueEntry(0x40) {
        /// Transport; 7 is PCIe, the only one.
        r#type: 0x00[31:24],
        /// Length of the input in bytes, including those in the entry.
        input_length: 0x04 u32,
        /// First input mailbox; the low 9 bits are zero. Ignored if the input fits the entry.
        input_mailbox_pointer: 0x08 u64,
        /// Input bytes 0 to 15.
        command_input_inline_data: 0x10 [u8; 16],
        /// Output bytes 0 to 15.
        command_output_inline_data: 0x20 [u8; 16],
        /// First output mailbox; the low 9 bits are zero.
        output_mailbox_pointer: 0x30 u64,
        /// Room for output in bytes, including that in the entry.
        output_length: 0x38 u32,
        /// A number that every mailbox of the command carries, too.
        token: 0x3c[31:24],
        /// Signature; see the module's description.
        signature: 0x3c[23:16],
        /// Delivery status, written by the device.
        status: 0x3c (DeliveryStatus[7:1]),
        /// Set: the device owns the entry.
        ownership: 0x3c[0],
    }

    /// Mailbox block (PRM "Command Interface Mailbox Layout").
    pub struct CmdMailbox(0x240) {
        /// Message bytes from 16 + 512 k on, for block k.
        mailbox_data: 0x000 [u8; 512],
        /// The next block, or 0.
        next_pointer: 0x230 u64,
        /// Number of this block in its chain, from 0.
        block_number: 0x238 u32,
        /// The entry's token.
        token: 0x23c[23:16],
        /// Signature over 0x200..0x23f.
        ctrl_signature: 0x23c[15:8],
        /// Signature over the whole block.
        signature: 0x23c[7:0],
    }

    /// Beginning of every input.
    pub struct InputHeader(0x08) {
        /// The command.
        opcode: 0x00 (Opcode[31:16]),
        /// ID of the user context that issues the command, if it has one; 0 is the driver.
        uid: 0x00[15:0],
        /// Variant of the command.
        op_mod: 0x04[15:0],
    }

    /// Beginning of every output.
    pub struct OutputHeader(0x08) {
        /// Result of the command.
        status: 0x00 (CmdStatus[31:24]),
        /// The firmware's reason for a refusal.
        syndrome: 0x04 u32,
    }

    /// Health buffer, at 0x200 of the initialization segment (PRM "Health Buffer").
    pub struct HealthBuffer(0x40) {
        /// Six dwords for the firmware's vendor.
        assert_var: 0x00 [u8; 24],
        /// Address of the firmware's assertion.
        assert_exit_ptr: 0x20 u32,
        /// Return address of the firmware's assertion.
        assert_callra: 0x24 u32,
        /// Time of the assertion.
        time: 0x2c u32,
        /// All ones when the device is gone.
        fw_ver: 0x30 u32,
        /// Hardware ID.
        hw_id: 0x34 u32,
        /// Reset required.
        rfr: 0x38[31],
        /// True if `severity` is valid.
        severity_valid: 0x38[27],
        /// Severity of the error.
        severity: 0x38[26:24],
        /// Index of the internal processor.
        irisc_index: 0x3c[31:24],
        /// 0 healthy; see [`HealthSyndrome`](super::HealthSyndrome).
        synd: 0x3c[23:16],
        /// Detail of `synd`.
        ext_synd: 0x3c[15:0],
    }
}

/// Message bytes in the entry itself, in each direction.
pub const INLINE_BYTES: usize = 16;
/// Message bytes in one mailbox.
pub const MAILBOX_BYTES: usize = 512;
/// The entry's `type`: PCIe transport.
pub const TRANSPORT_PCIE: u32 = 7;

/// A command's input, with its opcode and its output.
///
/// Lists that follow the fixed part (page addresses, translation entries) are not included.
pub trait Command: Layout {
    /// The command's opcode.
    const OPCODE: Opcode;
    /// The PRM's name of the command.
    const NAME: &'static str;
    /// The fixed part of its output.
    type Out: CommandOutput;
}

/// A command's output.
pub trait CommandOutput: Layout {
    /// Returns the result of the command.
    fn status(&self) -> CmdStatus;
    /// Returns the firmware's reason for a refusal.
    fn syndrome(&self) -> u32;
    /// Sets status and syndrome.
    fn set_outcome(&mut self, status: CmdStatus, syndrome: u32);
}
