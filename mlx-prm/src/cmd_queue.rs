//! The command queue: entry, mailbox, and the common parts of every command (PRM "Command Interface").
//!
//! A 64-byte entry carries the first 16 bytes of a command's input and output. Chains of mailboxes carry the rest.
//! The entry and its mailboxes carry the same token. A signature byte is chosen so that the XOR of all bytes that
//! the signature covers is 0xff. An entry's signature covers its 64 bytes, with the ownership bit set. A mailbox's
//! control signature covers 0x200..0x23f, and its other signature covers all 576 bytes.

use super::{CmdStatus, DeliveryStatus, Opcode};
use layout::{Layout, layout};

layout! {
    /// Command queue entry (PRM "Command Queue Entry Layout").
    pub struct CmdQueueEntry(0x40) {
        /// Transport; 7 (PCIe) is the only defined value.
        r#type: 0x00[31:24],
        /// Length of the input in bytes, including the 16 bytes in the entry.
        input_length: 0x04 u32,
        /// Address of the first input mailbox; the low 9 bits are zero. Ignored if the input fits in the entry.
        input_mailbox_pointer: 0x08 u64,
        /// Input bytes 0 to 15.
        command_input_inline_data: 0x10 [u8; 16],
        /// Output bytes 0 to 15.
        command_output_inline_data: 0x20 [u8; 16],
        /// Address of the first output mailbox; the low 9 bits are zero.
        output_mailbox_pointer: 0x30 u64,
        /// Capacity for the output in bytes, including the 16 bytes in the entry.
        output_length: 0x38 u32,
        /// Number of the command; every mailbox of the command carries the same number.
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
        /// Message bytes; block k has the 512 bytes of the message from 16 + 512 k on.
        mailbox_data: 0x000 [u8; 512],
        /// Address of the next block, or 0 for the last block.
        next_pointer: 0x230 u64,
        /// Number of this block in its chain, from 0.
        block_number: 0x238 u32,
        /// Token of the command queue entry.
        token: 0x23c[23:16],
        /// Signature over 0x200..0x23f.
        ctrl_signature: 0x23c[15:8],
        /// Signature over the whole block.
        signature: 0x23c[7:0],
    }

    /// Beginning of every command's input.
    pub struct InputHeader(0x08) {
        /// The command.
        opcode: 0x00 (Opcode[31:16]),
        /// ID of the user context that issues the command; 0 is the driver. Some commands have no such field.
        uid: 0x00[15:0],
        /// Variant of the command.
        op_mod: 0x04[15:0],
    }

    /// Beginning of every command's output.
    pub struct OutputHeader(0x08) {
        /// Result of the command.
        status: 0x00 (CmdStatus[31:24]),
        /// Vendor-specific reason why the firmware refused the command.
        syndrome: 0x04 u32,
    }

    /// Health buffer, at 0x200 of the initialization segment (PRM "Health Buffer").
    pub struct HealthBuffer(0x40) {
        /// Six dwords of vendor-specific details of the firmware's assertion.
        assert_var: 0x00 [u8; 24],
        /// Address of the firmware code whose assertion failed.
        assert_exit_ptr: 0x20 u32,
        /// Return address at the failed assertion of the firmware.
        assert_callra: 0x24 u32,
        /// Time at which the firmware's assertion failed.
        time: 0x2c u32,
        /// Firmware version; all ones when the device is not on the bus any more.
        fw_ver: 0x30 u32,
        /// Hardware ID.
        hw_id: 0x34 u32,
        /// Set: the device requires a reset.
        rfr: 0x38[31],
        /// True if `severity` is valid.
        severity_valid: 0x38[27],
        /// Severity of the error.
        severity: 0x38[26:24],
        /// Index of the internal processor that reported the error.
        irisc_index: 0x3c[31:24],
        /// Cause of the error; 0 is healthy. See [`HealthSyndrome`](super::HealthSyndrome).
        synd: 0x3c[23:16],
        /// Detail of `synd`.
        ext_synd: 0x3c[15:0],
    }
}

/// Number of message bytes in the command queue entry, for input and output each.
pub const INLINE_BYTES: usize = 16;
/// Number of message bytes in a mailbox.
pub const MAILBOX_BYTES: usize = 512;
/// Value of the entry's `type` for the PCIe transport.
pub const TRANSPORT_PCIE: u32 = 7;

/// The fixed part of a command's input, with the command's opcode and the type of its output.
///
/// The variable lists that follow the fixed part (page addresses, translation entries) are not included.
pub trait Command: Layout {
    /// The command's opcode.
    const OPCODE: Opcode;
    /// The PRM's name of the command.
    const NAME: &'static str;
    /// The fixed part of the command's output.
    type Out: CommandOutput;
}

/// The fixed part of a command's output.
pub trait CommandOutput: Layout {
    /// Returns the command's status.
    fn status(&self) -> CmdStatus;
    /// Returns the vendor-specific reason why the firmware refused the command.
    fn syndrome(&self) -> u32;
    /// Sets status and syndrome.
    fn set_outcome(&mut self, status: CmdStatus, syndrome: u32);
}
