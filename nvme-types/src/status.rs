//! Status codes of completions (Base specification, "Status Field").

use core::fmt;

/// Status code type, status code and the "do not retry" bit: `SCT << 8 | SC`, bit 14 is DNR.
///
/// Hosts depend on DNR. If DNR is set, a host does not retry the command, and a host that is connecting deletes its
/// controller. If DNR is clear, the host retries.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Status(u16);

/// The "do not retry" bit.
const DNR: u16 = 1 << 14;

macro_rules! statuses {
    ($($(#[$doc:meta])* $name:ident = $code:literal, $text:literal;)*) => {
        impl Status {
            $($(#[$doc])* pub const $name: Self = Self($code);)*

            /// Returns the specification's text for a status of this list.
            #[must_use]
            pub const fn text(self) -> Option<&'static str> {
                match self.0 & !DNR {
                    $($code => Some($text),)*
                    _ => None,
                }
            }
        }
    };
}

statuses! {
    /// Success.
    SUCCESS = 0x000, "Successful Completion";
    /// The opcode is unknown, or invalid on this queue.
    INVALID_OPCODE = 0x001, "Invalid Command Opcode";
    /// A field is invalid.
    INVALID_FIELD = 0x002, "Invalid Field in Command";
    /// The data could not be transferred.
    DATA_TRANSFER = 0x004, "Data Transfer Error";
    /// The target failed.
    INTERNAL = 0x006, "Internal Error";
    /// The command was aborted: by an Abort, or an event request because its controller was reset.
    ABORTED = 0x007, "Command Abort Requested";
    /// The command's queue was deleted.
    ABORTED_QUEUE = 0x008, "Command Aborted due to SQ Deletion";
    /// The other command of a fused pair failed.
    FAILED_FUSED = 0x009, "Command Aborted due to Failed Fused Command";
    /// The other command of a fused pair is missing.
    MISSING_FUSED = 0x00a, "Command Aborted due to Missing Fused Command";
    /// There is no such namespace.
    INVALID_NAMESPACE = 0x00b, "Invalid Namespace or Format";
    /// The command is out of sequence: not connected, not enabled, or connected already.
    SEQUENCE = 0x00c, "Command Sequence Error";
    /// The command has more or fewer SGL descriptors than allowed.
    SGL_COUNT = 0x00e, "Invalid Number of SGL Descriptors";
    /// The data is longer or shorter than the command says.
    SGL_LENGTH = 0x00f, "Data SGL Length Invalid";
    /// The type of an SGL descriptor is not supported.
    SGL_TYPE = 0x011, "SGL Descriptor Type Invalid";
    /// A page entry that is not the first is inside a page, or the first is no multiple of 4.
    PRP_OFFSET = 0x013, "PRP Offset Invalid";
    /// The in-capsule data is not within the capsule, or has an offset that is not supported.
    SGL_OFFSET = 0x016, "SGL Offset Invalid";
    /// The command requires the other length of the host identifier.
    HOST_ID = 0x018, "Host Identifier Inconsistent Format";
    /// The keep-alive time is not supported.
    KEEP_ALIVE = 0x01a, "Keep Alive Timeout Invalid";
    /// The namespace is write protected.
    WRITE_PROTECTED = 0x020, "Namespace is Write Protected";
    /// The command was interrupted.
    INTERRUPTED = 0x021, "Command Interrupted";
    /// The command names blocks beyond the end of the namespace.
    LBA_RANGE = 0x080, "LBA Out of Range";
    /// The capacity is exceeded.
    CAPACITY = 0x081, "Capacity Exceeded";
    /// The namespace is not ready.
    NOT_READY = 0x082, "Namespace Not Ready";
    /// Another host's reservation forbids the command.
    RESERVATION = 0x083, "Reservation Conflict";
    /// The completion queue does not exist.
    COMPLETION_QUEUE = 0x100, "Completion Queue Invalid";
    /// The identifier of a queue is out of range, or in use.
    QUEUE_IDENTIFIER = 0x101, "Invalid Queue Identifier";
    /// The number of entries of a queue is out of range.
    QUEUE_SIZE = 0x102, "Invalid Queue Size";
    /// A controller has too many Aborts at a time.
    ABORT_LIMIT = 0x103, "Abort Command Limit Exceeded";
    /// The host has more event requests outstanding than the limit.
    EVENT_LIMIT = 0x105, "Asynchronous Event Request Limit Exceeded";
    /// The interrupt vector does not exist.
    VECTOR = 0x108, "Invalid Interrupt Vector";
    /// There is no such log page.
    LOG_PAGE = 0x109, "Invalid Log Page";
    /// A completion queue is deleted while a submission queue uses it.
    QUEUE_DELETION = 0x10c, "Invalid Queue Deletion";
    /// The feature cannot be saved.
    NOT_SAVEABLE = 0x10d, "Feature Identifier Not Saveable";
    /// The feature cannot be changed.
    NOT_CHANGEABLE = 0x10e, "Feature Not Changeable";
    /// The feature is not specific to a namespace.
    NOT_OF_NAMESPACE = 0x10f, "Feature Not Namespace Specific";
    /// Copy has more ranges or blocks than the limit.
    COPY_SIZE = 0x183, "Command Size Limit Exceeded";
    /// Connect: the record format is not supported.
    CONNECT_FORMAT = 0x180, "Connect Incompatible Format";
    /// Connect: the controller is busy.
    CONTROLLER_BUSY = 0x181, "Connect Controller Busy";
    /// Connect: a parameter is invalid. The result names the parameter.
    CONNECT_PARAMETER = 0x182, "Connect Invalid Parameters";
    /// Connect: the host is not allowed.
    CONNECT_HOST = 0x184, "Connect Invalid Host";
    /// Authentication is required.
    AUTHENTICATION_REQUIRED = 0x191, "Authentication Required";
    /// The medium failed a write.
    WRITE_FAULT = 0x280, "Write Fault";
    /// The medium failed a read.
    UNRECOVERED_READ = 0x281, "Unrecovered Read Error";
    /// Compare: the blocks differ from the host's data.
    COMPARE = 0x285, "Compare Failure";
    /// Access is denied.
    ACCESS_DENIED = 0x286, "Access Denied";
    /// The path failed inside the target.
    PATH_INTERNAL = 0x300, "Internal Path Error";
    /// ANA state of this path: Persistent Loss.
    ANA_LOSS = 0x301, "Asymmetric Access Persistent Loss";
    /// ANA state of this path: Inaccessible.
    ANA_INACCESSIBLE = 0x302, "Asymmetric Access Inaccessible";
    /// ANA state of this path: Change.
    ANA_CHANGE = 0x303, "Asymmetric Access Transition";
}

impl Status {
    /// Returns the same status with DNR.
    #[inline]
    #[must_use]
    pub const fn dnr(self) -> Self {
        Self(self.0 | DNR)
    }

    /// Returns status code type and status code, without DNR.
    #[inline]
    #[must_use]
    pub const fn code(self) -> u16 {
        self.0 & !DNR
    }

    /// Returns whether the command succeeded.
    #[inline]
    #[must_use]
    pub const fn is_success(self) -> bool {
        self.0 == 0
    }

    /// Returns the Status Field of a completion. Bit 0 is the phase tag, which fabrics do not use.
    #[inline]
    #[must_use]
    pub const fn field(self) -> u16 {
        self.0 << 1
    }

    /// Reads the Status Field of a completion.
    #[inline]
    #[must_use]
    pub const fn of_field(field: u16) -> Self {
        Self(field >> 1)
    }
}

impl fmt::Debug for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#05x}", self.code())?;
        if let Some(text) = self.text() {
            write!(f, " {text}")?;
        }
        if self.0 & DNR != 0 {
            f.write_str(", do not retry")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_is_told_by_its_number_and_in_words() {
        assert_eq!(
            Status::LBA_RANGE.dnr().to_string(),
            "0x080 LBA Out of Range, do not retry"
        );
        assert_eq!(Status::of_field(0x4004 << 1).code(), 0x004);
        assert_eq!(Status(0x7f1).to_string(), "0x7f1");
    }

    /// The codes are those of Linux `include/linux/nvme.h`. Codes that Linux lacks are those of libnvme
    /// `src/nvme/types.h`: 0x183 of Copy, which has another meaning on fabrics, and 0x300.
    #[test]
    fn the_codes_are_those_of_linux() {
        for (ours, theirs, name) in [
            (Status::INVALID_OPCODE, 0x1, "INVALID_OPCODE"),
            (Status::INVALID_FIELD, 0x2, "INVALID_FIELD"),
            (Status::DATA_TRANSFER, 0x4, "DATA_XFER_ERROR"),
            (Status::INTERNAL, 0x6, "INTERNAL"),
            (Status::ABORTED, 0x7, "ABORT_REQ"),
            (Status::ABORTED_QUEUE, 0x8, "ABORT_QUEUE"),
            (Status::FAILED_FUSED, 0x9, "FUSED_FAIL"),
            (Status::MISSING_FUSED, 0xa, "FUSED_MISSING"),
            (Status::INVALID_NAMESPACE, 0xb, "INVALID_NS"),
            (Status::SEQUENCE, 0xc, "CMD_SEQ_ERROR"),
            (Status::SGL_COUNT, 0xe, "SGL_INVALID_COUNT"),
            (Status::SGL_LENGTH, 0xf, "SGL_INVALID_DATA"),
            (Status::SGL_TYPE, 0x11, "SGL_INVALID_TYPE"),
            (Status::PRP_OFFSET, 0x13, "PRP_INVALID_OFFSET"),
            (Status::SGL_OFFSET, 0x16, "SGL_INVALID_OFFSET"),
            (Status::HOST_ID, 0x18, "HOSTID_FORMAT"),
            (Status::KEEP_ALIVE, 0x1a, "KAT_INVALID"),
            (Status::WRITE_PROTECTED, 0x20, "NS_WRITE_PROTECTED"),
            (Status::INTERRUPTED, 0x21, "CMD_INTERRUPTED"),
            (Status::LBA_RANGE, 0x80, "LBA_RANGE"),
            (Status::CAPACITY, 0x81, "CAP_EXCEEDED"),
            (Status::NOT_READY, 0x82, "NS_NOT_READY"),
            (Status::RESERVATION, 0x83, "RESERVATION_CONFLICT"),
            (Status::COMPLETION_QUEUE, 0x100, "CQ_INVALID"),
            (Status::QUEUE_IDENTIFIER, 0x101, "QID_INVALID"),
            (Status::QUEUE_SIZE, 0x102, "QUEUE_SIZE"),
            (Status::VECTOR, 0x108, "INVALID_VECTOR"),
            (Status::ABORT_LIMIT, 0x103, "ABORT_LIMIT"),
            (Status::EVENT_LIMIT, 0x105, "ASYNC_LIMIT"),
            (Status::LOG_PAGE, 0x109, "INVALID_LOG_PAGE"),
            (Status::QUEUE_DELETION, 0x10c, "INVALID_QUEUE"),
            (Status::NOT_SAVEABLE, 0x10d, "FEATURE_NOT_SAVEABLE"),
            (Status::NOT_CHANGEABLE, 0x10e, "FEATURE_NOT_CHANGEABLE"),
            (Status::NOT_OF_NAMESPACE, 0x10f, "FEATURE_NOT_PER_NS"),
            (Status::CONNECT_FORMAT, 0x180, "CONNECT_FORMAT"),
            (Status::CONTROLLER_BUSY, 0x181, "CONNECT_CTRL_BUSY"),
            (Status::CONNECT_PARAMETER, 0x182, "CONNECT_INVALID_PARAM"),
            (Status::CONNECT_HOST, 0x184, "CONNECT_INVALID_HOST"),
            (Status::COPY_SIZE, 0x183, "CMD_SIZE_LIMIT_EXCEEDED"),
            (Status::AUTHENTICATION_REQUIRED, 0x191, "AUTH_REQUIRED"),
            (Status::WRITE_FAULT, 0x280, "WRITE_FAULT"),
            (Status::UNRECOVERED_READ, 0x281, "READ_ERROR"),
            (Status::COMPARE, 0x285, "COMPARE_FAILED"),
            (Status::ACCESS_DENIED, 0x286, "ACCESS_DENIED"),
            (Status::PATH_INTERNAL, 0x300, "INTERNAL_PATH_ERROR"),
            (Status::ANA_LOSS, 0x301, "ANA_PERSISTENT_LOSS"),
            (Status::ANA_INACCESSIBLE, 0x302, "ANA_INACCESSIBLE"),
            (Status::ANA_CHANGE, 0x303, "ANA_TRANSITION"),
        ] {
            assert_eq!(ours.code(), theirs, "NVME_SC_{name}");
        }
    }

    /// Linux reads the field with DNR in bit 15 and the code from bit 1 (`nvme.h`: `NVME_STATUS_DNR` is 0x4000 in the
    /// field shifted right by one).
    #[test]
    fn the_field_has_dnr_in_bit_15_and_the_code_from_bit_1() {
        assert_eq!(Status::CONNECT_HOST.dnr().field(), 0x8000 | 0x184 << 1);
        assert!(Status::SUCCESS.is_success() && !Status::SUCCESS.dnr().is_success());
    }
}
