//! Errors, one enum per layer.
//!
//! A command can fail in four main ways, which need different reactions. The transport refused the descriptor
//! ([`CmdError::Delivery`]: our bug or broken memory). The firmware executed the command and refused it
//! ([`CmdError::Refused`]: read status and syndrome). The firmware did not answer ([`CmdError::TimedOut`]: the device
//! still owns the memory). Or the device is dead ([`CmdError::Dead`]).

mod parking;

use std::fmt;
use std::net::IpAddr;

use driver::{BarError, DmaError, FunctionError};
use thiserror::Error;

pub use mlx_prm::known_syndromes;
use mlx_prm::{CmdStatus, DeliveryStatus, Opcode, known_syndrome};
pub(crate) use parking::ask_twice;
pub use parking::{NotResumed, ParkError, ResumeError};
use rdma_types::Address;

/// The error of a command that failed.
#[derive(Debug, Error)]
pub enum CmdError {
    /// The transport refused the descriptor; the firmware never read it.
    #[error("{opcode:?} ({:#05x}, op_mod {op_mod:#x}): not delivered: {} (delivery status {:#04x})", opcode.0, delivery_text(*status), status.0)]
    Delivery {
        /// Opcode of the command.
        opcode: Opcode,
        /// Modifier of the command.
        op_mod: u16,
        /// Delivery status of the entry.
        status: DeliveryStatus,
    },
    /// The firmware executed the command and refused it.
    #[error("{opcode:?} ({:#05x}, op_mod {op_mod:#x}): refused: {} (status {:#04x}, syndrome {syndrome:#010x}{})", opcode.0, status_text(*status), status.0, Known(*opcode, *syndrome))]
    Refused {
        /// Opcode of the command.
        opcode: Opcode,
        /// Modifier of the command.
        op_mod: u16,
        /// Status byte of the answer.
        status: CmdStatus,
        /// The firmware's detail code. The vendor publishes no list. Some codes were observed on cards and have a
        /// public description ([`mlx_prm::KNOWN_SYNDROMES`]).
        syndrome: u32,
    },
    /// The firmware did not answer in time. The entry still belongs to the device; its memory must not be reused.
    #[error("{opcode:?} ({:#05x}, op_mod {op_mod:#x}): no answer after {waited_ms} ms; slot {slot} is quarantined", opcode.0)]
    TimedOut {
        /// Opcode of the command.
        opcode: Opcode,
        /// Modifier of the command.
        op_mod: u16,
        /// Number of the command's slot.
        slot: usize,
        /// Milliseconds waited.
        waited_ms: u64,
    },
    /// The answer has an invalid signature. It was damaged in transfer, or the device did not sign it. Signatures are
    /// checked only if `cmdif_checksum` is on.
    #[error("{opcode:?} ({:#05x}, op_mod {op_mod:#x}): bad signature in the answer's {}", opcode.0, block.map_or_else(|| "entry".to_owned(), |n| format!("mailbox {n}")))]
    BadSignature {
        /// Opcode of the command.
        opcode: Opcode,
        /// Modifier of the command.
        op_mod: u16,
        /// Number of the mailbox; `None` for the entry itself.
        block: Option<usize>,
    },
    /// The firmware executed the command, but the requested length of the answer is too short for its fixed part. This
    /// is an error of the driver.
    #[error("{opcode:?} ({:#05x}): {bytes} bytes of its answer were asked for, it has {fixed}", opcode.0)]
    ShortAnswer {
        /// Opcode of the command.
        opcode: Opcode,
        /// Requested length of the answer in bytes.
        bytes: usize,
        /// Length in bytes of the fixed part, which every answer to this command has.
        fixed: usize,
    },
    /// Every slot was in use or quarantined for the whole wait.
    #[error("{opcode:?} ({:#05x}): no command slot free after {waited_ms} ms ({quarantined} quarantined)", opcode.0)]
    NoSlot {
        /// Opcode of the command.
        opcode: Opcode,
        /// Milliseconds waited for a slot.
        waited_ms: u64,
        /// Number of slots that the device still holds although their commands were given up.
        quarantined: usize,
    },
    /// No memory could be allocated for the command's mailboxes.
    #[error("{opcode:?} ({:#05x}): {error}", opcode.0)]
    Memory {
        /// Opcode of the command.
        opcode: Opcode,
        /// The cause.
        error: DmaError,
    },
    /// The device is dead. The command was not sent, or its answer will not come.
    #[error("{opcode:?} ({:#05x}): the device is dead: {cause}", opcode.0)]
    Dead {
        /// Opcode of the command.
        opcode: Opcode,
        /// Cause of the device's death.
        cause: DeadCause,
    },
}

impl CmdError {
    /// Returns the firmware's status if the firmware refused the command.
    pub fn status(&self) -> Option<CmdStatus> {
        match self {
            Self::Refused { status, .. } => Some(*status),
            Self::Delivery { .. }
            | Self::TimedOut { .. }
            | Self::BadSignature { .. }
            | Self::ShortAnswer { .. }
            | Self::NoSlot { .. }
            | Self::Memory { .. }
            | Self::Dead { .. } => None,
        }
    }

    /// Returns true if the command had no effect and the device is alive: the firmware refused the command, or there
    /// was no memory to send it. False for `NoSlot`: the command was not sent, but the device freed no slot in time.
    pub fn is_refusal(&self) -> bool {
        match self {
            Self::Refused { .. } | Self::Memory { .. } => true,
            Self::Delivery { .. }
            | Self::TimedOut { .. }
            | Self::BadSignature { .. }
            | Self::ShortAnswer { .. }
            | Self::NoSlot { .. }
            | Self::Dead { .. } => false,
        }
    }

    /// Returns true if the device may still write to the memory that the command refers to, including rings in a page
    /// list, because it is unknown whether the command took effect.
    pub fn outcome_unknown(&self) -> bool {
        match self {
            Self::TimedOut { .. } | Self::BadSignature { .. } | Self::ShortAnswer { .. } => true,
            Self::Delivery { .. }
            | Self::Refused { .. }
            | Self::NoSlot { .. }
            | Self::Memory { .. }
            | Self::Dead { .. } => false,
        }
    }
}

/// The text about a refusal's syndrome; empty if the syndrome is unknown.
struct Known(Opcode, u32);

impl fmt::Display for Known {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match known_syndrome(self.0, self.1) {
            Some(known) => write!(f, ", met before: {} [{}]", known.means, known.source),
            None => Ok(()),
        }
    }
}

/// Cause of a device's death.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum DeadCause {
    /// The register `fw_ver` reads all ones, so the function is no longer on the bus.
    #[error("the function is gone from the bus (fw_ver reads all ones)")]
    Gone,
    /// The register `nic_interface` reads disabled (1) while we use the function.
    #[error("the NIC interface was disabled (nic_interface 1)")]
    Disabled,
    /// The register `nic_interface` reads software reset (7).
    #[error("the NIC is in software reset (nic_interface 7)")]
    SoftwareReset,
    /// The function no longer has the address of the command queue, because another program reset it.
    #[error("somebody else reset the function: it has forgotten where our commands are")]
    ResetByOthers,
    /// The health buffer requests a reset and reports a syndrome.
    #[error("the firmware asks for a reset: {} (syndrome {synd:#04x}, extended {ext_synd:#06x})", syndrome_text(*synd))]
    ResetRequired {
        /// Health syndrome.
        synd: u8,
        /// Extended syndrome.
        ext_synd: u16,
    },
    /// The health syndrome register is not zero, and a command was not answered: the firmware stopped on an assertion.
    #[error("the firmware stopped: {} (health syndrome {synd:#04x})", syndrome_text(*synd))]
    Syndrome {
        /// Health syndrome.
        synd: u8,
    },
    /// The system reported an uncorrectable bus error of the function.
    #[error("the bus reports an uncorrectable error of the function (AER)")]
    BusError,
    /// A command that ends the device's use of memory, or that moves a completion queue, was not answered, or the
    /// answer was invalid. It is then unknown which memory the device accesses, so we have stopped the device.
    #[error("stopped by us: it did not answer {opcode:?} ({:#05x}), which ends its use of memory", opcode.0)]
    Unended {
        /// Opcode of the command.
        opcode: Opcode,
    },
    /// We have stopped the device for the reason in `why`.
    #[error("stopped by us, for what it refused or did too slowly: {why}")]
    Stopped {
        /// The reason.
        why: &'static str,
    },
    /// The health counter does not advance, and a command was not answered.
    #[error(
        "the firmware's health counter stands still at {counter:#08x}, and it answers no command"
    )]
    CounterStuck {
        /// Value of the counter.
        counter: u32,
    },
}

/// The error that the device lacks a capability we need.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{name}: need {need}, the device has {have}")]
pub struct MissingCapability {
    /// Field of the capability page, in the PRM's spelling.
    pub name: &'static str,
    /// Value that we need.
    pub need: String,
    /// Value that the device reports.
    pub have: String,
}

/// The error that a capability was set and reads back differently.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{name}: set to {set}, reads back {kept}")]
pub struct NotKept {
    /// Field of the capability page, in the PRM's spelling.
    pub name: &'static str,
    /// Value given to SET_HCA_CAP.
    pub set: u32,
    /// Value that QUERY_HCA_CAP returns after INIT_HCA.
    pub kept: u32,
}

/// A MAC address in the usual notation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mac(pub [u8; 6]);

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

/// A list of MAC addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Macs(pub Vec<[u8; 6]>);

impl fmt::Display for Macs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list: Vec<String> = self.0.iter().map(|mac| Mac(*mac).to_string()).collect();
        write!(f, "[{}]", list.join(", "))
    }
}

/// Error of an operation on a function.
#[derive(Debug, Error)]
pub enum MlxError {
    /// A command failed.
    #[error(transparent)]
    Cmd(#[from] CmdError),
    /// An operation of the host on the function failed.
    #[error(transparent)]
    Function(#[from] FunctionError),
    /// DMA memory could not be allocated.
    #[error(transparent)]
    Dma(#[from] DmaError),
    /// A register block is outside its BAR, or misaligned.
    #[error(transparent)]
    Bar(#[from] BarError),
    /// The device has another revision of the command interface.
    #[error(
        "command interface revision {found}, need {}",
        mlx_prm::COMMAND_INTERFACE_REVISION
    )]
    CommandInterface {
        /// The revision in the initialization segment.
        found: u32,
    },
    /// The device reports an invalid geometry of the command queue.
    #[error("command queue of 2^{log_size} entries of 2^{log_stride} bytes")]
    CommandQueue {
        /// log2 of the number of entries.
        log_size: u32,
        /// log2 of the distance between entries in bytes.
        log_stride: u32,
    },
    /// The firmware did not finish its boot: `initializing` stays set.
    #[error("the firmware is still initializing after {waited_ms} ms")]
    Initializing {
        /// Milliseconds waited.
        waited_ms: u64,
    },
    /// The function's registers read all ones for longer than a boot may take.
    #[error(
        "the function's registers read all ones for {waited_ms} ms: it does not boot, or is gone from the bus"
    )]
    Silent {
        /// Milliseconds waited.
        waited_ms: u64,
    },
    /// The function is no longer on the bus.
    #[error(
        "the function is gone from the bus: its registers and its configuration space read all ones"
    )]
    Gone,
    /// The device does not offer the interface step sequence that this driver uses.
    #[error("ISSI 1 is not among the supported ones ({supported:#x})")]
    Issi {
        /// Mask of the supported sequences: bit n is sequence n.
        supported: u32,
    },
    /// The device supports only the first interface step sequence, which this driver does not use.
    #[error("this driver needs ISSI 1, and the device does not know of ISSIs: {0}")]
    NoIssi(#[source] CmdError),
    /// The device accepted SET_HCA_CAP but did not keep the settings.
    #[error("the device did not keep what SET_HCA_CAP set: {}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
    NotKept(Vec<NotKept>),
    /// The device lacks capabilities we cannot do without; all of them are listed.
    #[error("the device lacks: {}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
    Missing(Vec<MissingCapability>),
    /// The device returned an implausible number.
    #[error("the device answered {what} = {value:#x}")]
    Nonsense {
        /// Name of the number.
        what: &'static str,
        /// Value that the device returned.
        value: u64,
    },
    /// The requested queue is larger than the format of its ring, or of an entry, allows.
    #[error("a {queue} of {entries} entries{}: its format ends before", segments.map_or_else(String::new, |most| format!(" of up to {most} segments")))]
    QueueTooLarge {
        /// Kind of queue.
        queue: &'static str,
        /// Number of entries requested.
        entries: u32,
        /// Number of segments per entry requested; `None` for a queue whose entries have no segments.
        segments: Option<u32>,
    },
    /// The memory to be registered cannot be translated by any page size of the device: it is empty, it exceeds the end
    /// of an address space, or the two addresses have different offsets in the smallest page.
    #[error(
        "{bytes} bytes at {address:#x}, I/O address {iova:#x}: cannot be translated by pages of 2^{log_min_page} bytes or more"
    )]
    Untranslatable {
        /// Address that peers and requests use.
        address: u64,
        /// I/O address that the device accesses.
        iova: u64,
        /// Length in bytes.
        bytes: u64,
        /// log2 of the smallest page size.
        log_min_page: u32,
    },
    /// The memory to be registered needs a larger translation table than one command can carry.
    #[error("{bytes} bytes take a translation table of {asked} bytes, a command carries {limit}")]
    TranslationTooLarge {
        /// Length of the memory in bytes.
        bytes: u64,
        /// Length of its translation table in bytes.
        asked: u64,
        /// Maximum length of a table in bytes.
        limit: u64,
    },
    /// The firmware requests more pages than the configuration allows.
    #[error("the firmware asks for {asked} pages, HcaConfig::firmware_pages leaves {room}")]
    TooManyPages {
        /// Number of pages requested.
        asked: usize,
        /// Number of pages that the firmware may still get.
        room: usize,
    },
    /// The configured MAC is not a unicast address.
    #[error("HcaConfig::mac is {mac}, which is not a unicast address")]
    ConfiguredMac {
        /// The address.
        mac: Mac,
    },
    /// The function cannot have an Ethernet port for ARP and neighbour discovery, for this reason.
    #[error("ARP and neighbour discovery are not possible: {0}")]
    NoNetwork(String),
    /// More multicast groups are needed than the vport's list holds.
    #[error(
        "{wanted} multicast groups, of which the vport's list holds {most} (log_max_current_mc_list)"
    )]
    TooManyGroups {
        /// Number of groups that the list holds.
        most: usize,
        /// Number of groups that are needed.
        wanted: usize,
    },
    /// The address is invalid, or not allowed in this call.
    #[error("address {address}: {why}")]
    Address {
        /// The address, with its prefix, gateway and VLAN.
        address: Address,
        /// The rule that it violates.
        why: &'static str,
    },
    /// The address was removed in the meantime.
    #[error("the address at index {index} was removed")]
    NoSuchGid {
        /// Index of the address in the RoCE address table.
        index: u8,
    },
    /// The RoCE address table cannot hold that many addresses.
    #[error("{asked} addresses, the RoCE address table holds {room}")]
    TooManyGids {
        /// Number of addresses requested, including the link-local one.
        asked: usize,
        /// Number of entries of the table.
        room: usize,
    },
    /// The function has no interrupt vector.
    #[error("the function has no MSI-X vector")]
    NoInterrupts,
    /// The MAC of an address is unknown.
    #[error("no neighbour entry for {address}")]
    Unresolved {
        /// The address.
        address: IpAddr,
    },
    /// The device is dead.
    #[error("the device is dead: {0}")]
    Dead(DeadCause),
    /// The system provided no random numbers, without which identifiers could be guessed.
    #[error("the system gives no random numbers: {0}")]
    Random(String),
}

/// Returns the text of a delivery status (PRM "Command Queue Entry", status).
pub fn delivery_text(status: DeliveryStatus) -> &'static str {
    match status.0 {
        0x00 => "delivered",
        0x01 => "signature error",
        0x02 => "token error",
        0x03 => "bad block number",
        0x04 => "output pointer not aligned",
        0x05 => "input pointer not aligned",
        0x06 => "firmware internal error",
        0x07 => "input length error",
        0x08 => "output length error",
        0x09 => "reserved field not zero",
        0x10 => "bad command type",
        _ => "unknown delivery status",
    }
}

/// Returns the text of a command status.
pub fn status_text(status: CmdStatus) -> &'static str {
    command_status(status.0).unwrap_or("unknown status")
}

/// Returns the name of a command's status. If the name does not explain itself, a colon and the meaning follow (PRM
/// "Command Status").
#[must_use]
pub const fn command_status(code: u8) -> Option<&'static str> {
    Some(match code {
        0x00 => "OK",
        0x01 => "INTERNAL_ERR: firmware internal error",
        0x02 => "BAD_OP: command or modifier not supported, or not now",
        0x03 => "BAD_PARAM: a parameter is out of range or a reserved field not zero",
        0x04 => "BAD_SYS_STATE: wrong function state for the command",
        0x05 => "BAD_RESOURCE: no such object, or a reserved one",
        0x06 => "RESOURCE_BUSY: another command runs on the object",
        0x07 => "NOT_READY",
        0x08 => "EXCEED_LIM: beyond the device's limits",
        0x09 => "BAD_RES_STATE: object in the wrong state or still referenced",
        0x0a => "BAD_INDEX",
        0x0f => "NO_RESOURCES: the device has no resources left",
        0x10 => "BAD_QP_STATE: the queue pair is not in the state presumed",
        0x30 => "BAD_PKT: bad management packet",
        0x40 => "BAD_SIZE_OUTS_CQES: more CQEs outstanding than the new size",
        0x50 => "BAD_INPUT_LEN",
        0x51 => "BAD_OUTPUT_LEN",
        _ => return None,
    })
}

/// Returns the name of a command's delivery status; `None` if the PRM has no name for the code.
#[must_use]
pub const fn delivery_status(code: u8) -> Option<&'static str> {
    DeliveryStatus(code).name()
}

/// Returns the text of a health syndrome.
pub fn syndrome_text(synd: u8) -> &'static str {
    health_syndrome(synd).unwrap_or("unknown syndrome")
}

/// Returns the meaning of a health syndrome (rdma-core `providers/mlx5/mlx5_vfio.c`, `hsynd_str`).
#[must_use]
pub const fn health_syndrome(synd: u8) -> Option<&'static str> {
    Some(match synd {
        0x01 => "firmware internal error",
        0x07 => "internal processor not responding",
        0x08 => "unrecoverable hardware error",
        0x09 => "firmware CRC error",
        0x0a => "firmware memory (ICM) fetch over PCI failed",
        0x0b => "fatal hardware error",
        0x0c => "asynchronous event queue overrun",
        0x0d => "event queue error",
        0x0e => "invalid event queue referenced",
        0x0f => "FFSER error",
        0x10 => "too hot",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_says_what_is_known_of_its_syndrome_and_where_it_is_told() {
        let refused = |opcode, syndrome| {
            let status = CmdStatus::BAD_PARAM;
            CmdError::Refused {
                opcode,
                op_mod: 0,
                status,
                syndrome,
            }
            .to_string()
        };
        let text = refused(Opcode::CREATE_SQ, 0x00d6_1c0b);
        for part in [
            "CREATE_SQ (0x904, op_mod 0x0): refused: BAD_PARAM",
            "syndrome 0x00d61c0b, met before: ts_format does not fit the clock",
            "Linux commit 0f3caaa2c6fb",
        ] {
            assert!(text.contains(part), "{part:?} in {text}");
        }
        for (opcode, syndrome) in [(Opcode::CREATE_SQ, 0x00d6_1c0c), (Opcode::NOP, 0x00d6_1c0b)] {
            let text = refused(opcode, syndrome);
            assert!(!text.contains("met before"), "{text}");
        }
    }
}
