//! Results of commands (PRM "Command Interface", delivery status and command status).
//!
//! The device's command transport sets the delivery status. If it is not 0, the firmware has not read the command. The
//! firmware sets the command status.

use layout::codes;

codes! {
    /// The firmware's result of a command; byte 0 of its output.
    pub struct CmdStatus(u8) {
        /// Done.
        OK = 0x00,
        /// Internal error of the firmware.
        INTERNAL_ERR = 0x01,
        /// The firmware does not support the opcode or op_mod, or not in the current state.
        BAD_OP = 0x02,
        /// A parameter is unsupported or out of range, or a reserved field is not zero.
        BAD_PARAM = 0x03,
        /// The function is not enabled, or the system is in the wrong state for the command.
        BAD_SYS_STATE = 0x04,
        /// An object's number is reserved or not allocated, or the object's status does not allow the command.
        BAD_RESOURCE = 0x05,
        /// Another command is running on the object; this command changed nothing.
        RESOURCE_BUSY = 0x06,
        /// Not ready.
        NOT_READY = 0x07,
        /// The request exceeds a limit of the device.
        EXCEED_LIM = 0x08,
        /// The object's state or ownership does not allow the command. Typically the command destroys an object that
        /// other objects still refer to.
        BAD_RES_STATE = 0x09,
        /// An index is out of range.
        BAD_INDEX = 0x0a,
        /// Out of resources, such as pages of device context memory.
        NO_RESOURCES = 0x0f,
        /// The object is not in the state that the command requires.
        BAD_QP_STATE = 0x10,
        /// A management packet was bad, and the firmware discarded it.
        BAD_PKT = 0x30,
        /// The completion queue's new size would be smaller than the number of its outstanding entries.
        BAD_SIZE_OUTS_CQES = 0x40,
        /// The input is too short.
        BAD_INPUT_LEN = 0x50,
        /// The output is too short.
        BAD_OUTPUT_LEN = 0x51,
    }

    /// Result of the delivery of a command to the firmware; bits 7:1 of its entry's last byte.
    pub struct DeliveryStatus(u8) {
        /// The command was delivered.
        OK = 0x00,
        /// The entry's signature is wrong.
        SIGNATURE_ERR = 0x01,
        /// The entry and a mailbox carry different tokens.
        TOKEN_ERR = 0x02,
        /// Mailbox blocks are not numbered 0, 1, 2, …
        BAD_BLOCK_NUMBER = 0x03,
        /// The output mailbox pointer is not aligned.
        OUT_PTR_ALIGN_ERR = 0x04,
        /// The input mailbox pointer is not aligned.
        IN_PTR_ALIGN_ERR = 0x05,
        /// Internal error of the firmware.
        FW_ERR = 0x06,
        /// The input is shorter than 8 bytes.
        IN_LENGTH_ERR = 0x07,
        /// The output is shorter than 8 bytes.
        OUT_LENGTH_ERR = 0x08,
        /// A reserved field is not zero.
        RES_FLD_NOT_CLR_ERR = 0x09,
        /// The entry's transport type is not PCIe.
        CMD_TYPE_ERR = 0x10,
    }
}
