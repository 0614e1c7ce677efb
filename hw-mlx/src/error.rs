//! Errors, one enum per layer.
//!
//! A command has four ways to fail, and they ask for different reactions: the transport refused the descriptor
//! ([`CmdError::Delivery`]: our bug or broken memory), the firmware ran the command and refused it
//! ([`CmdError::Refused`]: read status and syndrome), the firmware did not answer ([`CmdError::TimedOut`]: the memory
//! is still lent), or the device is gone ([`CmdError::Dead`]).

use std::fmt;
use std::net::IpAddr;

use driver::{BarError, DmaError, FunctionError};
use thiserror::Error;

pub use mlx_prm::known_syndromes;
use mlx_prm::{CmdStatus, DeliveryStatus, Opcode, known_syndrome};
use rdma_types::Address;

/// A command that failed.
#[derive(Debug, Error)]
pub enum CmdError {
    /// The transport refused the descriptor; the firmware never read it.
    #[error("{opcode:?} ({:#05x}, op_mod {op_mod:#x}): not delivered: {} (delivery status {:#04x})", opcode.0, delivery_text(*status), status.0)]
    Delivery {
        /// The command.
        opcode: Opcode,
        /// Its modifier.
        op_mod: u16,
        /// Delivery status of the entry.
        status: DeliveryStatus,
    },
    /// The firmware ran the command and refused it.
    #[error("{opcode:?} ({:#05x}, op_mod {op_mod:#x}): refused: {} (status {:#04x}, syndrome {syndrome:#010x}{})", opcode.0, status_text(*status), status.0, Known(*opcode, *syndrome))]
    Refused {
        /// The command.
        opcode: Opcode,
        /// Its modifier.
        op_mod: u16,
        /// Status byte of the answer.
        status: CmdStatus,
        /// The firmware's detail code. The vendor publishes none; some were observed on cards and are described in
        /// public ([`mlx_prm::KNOWN_SYNDROMES`]).
        syndrome: u32,
    },
    /// The entry still belongs to the device; its memory must not be reused.
    #[error("{opcode:?} ({:#05x}, op_mod {op_mod:#x}): no answer after {waited_ms} ms; slot {slot} is quarantined", opcode.0)]
    TimedOut {
        /// The command.
        opcode: Opcode,
        /// Its modifier.
        op_mod: u16,
        /// Its slot.
        slot: usize,
        /// Milliseconds waited.
        waited_ms: u64,
    },
    /// The answer does not have a valid signature (`cmdif_checksum` on): it was damaged on its way.
    #[error("{opcode:?} ({:#05x}, op_mod {op_mod:#x}): bad signature in the answer's {}", opcode.0, block.map_or_else(|| "entry".to_owned(), |n| format!("mailbox {n}")))]
    BadSignature {
        /// The command.
        opcode: Opcode,
        /// Its modifier.
        op_mod: u16,
        /// The mailbox, or `None` for the entry itself.
        block: Option<usize>,
    },
    /// The firmware executed the command, but the requested length of the answer is too short for its fixed part: our
    /// error.
    #[error("{opcode:?} ({:#05x}): {bytes} bytes of its answer were asked for, it has {fixed}", opcode.0)]
    ShortAnswer {
        /// The command.
        opcode: Opcode,
        /// Requested bytes of the answer.
        bytes: usize,
        /// Bytes that every answer to this command has.
        fixed: usize,
    },
    /// Every slot was in use or quarantined for the whole wait.
    #[error("{opcode:?} ({:#05x}): no command slot free after {waited_ms} ms ({quarantined} quarantined)", opcode.0)]
    NoSlot {
        /// The command.
        opcode: Opcode,
        /// Milliseconds waited for a slot.
        waited_ms: u64,
        /// Slots that the device still holds although their commands were given up.
        quarantined: usize,
    },
    /// No memory for the command's mailboxes.
    #[error("{opcode:?} ({:#05x}): {error}", opcode.0)]
    Memory {
        /// The command.
        opcode: Opcode,
        /// The cause.
        error: DmaError,
    },
    /// The device is dead; the command was not sent, or its answer will not come.
    #[error("{opcode:?} ({:#05x}): the device is dead: {cause}", opcode.0)]
    Dead {
        /// The command.
        opcode: Opcode,
        /// Cause of the device's death.
        cause: DeadCause,
    },
}

impl CmdError {
    /// Returns the firmware's status if the firmware refused.
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

    /// Returns true if the device is alive and unchanged by the command: it refused, or was never asked.
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

    /// Returns true if the device may still write the memory the command pointed at (rings in a page list included),
    /// because it is unknown if the command took effect.
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

/// The part of a refusal's text about its syndrome; empty if the syndrome is unknown.
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
    /// `fw_ver` reads all ones: the function is no longer on the bus.
    #[error("the function is gone from the bus (fw_ver reads all ones)")]
    Gone,
    /// `nic_interface` reads disabled (1) while we use it.
    #[error("the NIC interface was disabled (nic_interface 1)")]
    Disabled,
    /// `nic_interface` reads software reset (7).
    #[error("the NIC is in software reset (nic_interface 7)")]
    SoftwareReset,
    /// The function has lost the command queue: another program reset it while we use it.
    #[error("somebody else reset the function: it has forgotten where our commands are")]
    ResetByOthers,
    /// The health buffer asks for a reset and gives a syndrome.
    #[error("the firmware asks for a reset: {} (syndrome {synd:#04x}, extended {ext_synd:#06x})", syndrome_text(*synd))]
    ResetRequired {
        /// Health syndrome.
        synd: u8,
        /// Extended syndrome.
        ext_synd: u16,
    },
    /// The health syndrome register is not zero, and a command stayed unanswered: the firmware stopped on an assertion.
    #[error("the firmware stopped: {} (health syndrome {synd:#04x})", syndrome_text(*synd))]
    Syndrome {
        /// Health syndrome.
        synd: u8,
    },
    /// The system says that the bus reported an uncorrectable error of the function.
    #[error("the bus reports an uncorrectable error of the function (AER)")]
    BusError,
    /// A command that ends the device's use of memory was not answered, or the answer was invalid, so the memory that
    /// the device reaches is unknown. We have stopped it.
    #[error("stopped by us: it did not answer {opcode:?} ({:#05x}), which ends its use of memory", opcode.0)]
    Unended {
        /// The command.
        opcode: Opcode,
    },
    /// We have stopped it for another reason.
    #[error("stopped by us, for what it refused or did too slowly: {why}")]
    Stopped {
        /// The reason.
        why: &'static str,
    },
    /// The health counter stands still, and a command stayed unanswered.
    #[error(
        "the firmware's health counter stands still at {counter:#08x}, and it answers no command"
    )]
    CounterStuck {
        /// Value of the counter.
        counter: u32,
    },
}

/// A capability we need and the device lacks.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{name}: need {need}, the device has {have}")]
pub struct MissingCapability {
    /// The field of the capability page, PRM spelling.
    pub name: &'static str,
    /// The value that we need.
    pub need: String,
    /// The value that the device reports.
    pub have: String,
}

/// A capability that was set and reads back differently.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{name}: told {told}, it has {kept}")]
pub struct NotKept {
    /// The field of the capability page, PRM spelling.
    pub name: &'static str,
    /// The value given to SET_HCA_CAP.
    pub told: u32,
    /// The value that QUERY_HCA_CAP returns after INIT_HCA.
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

/// Why a function could not be opened, or is no longer usable.
#[derive(Debug, Error)]
pub enum MlxError {
    /// A command failed.
    #[error(transparent)]
    Cmd(#[from] CmdError),
    /// The host's side of the function failed.
    #[error(transparent)]
    Function(#[from] FunctionError),
    /// DMA memory could not be allocated.
    #[error(transparent)]
    Dma(#[from] DmaError),
    /// The BAR is not as required.
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
    /// The command queue that the device describes is not possible.
    #[error("command queue of 2^{log_size} entries of 2^{log_stride} bytes")]
    CommandQueue {
        /// log2 of the entries.
        log_size: u32,
        /// log2 of the bytes between them.
        log_stride: u32,
    },
    /// `initializing` stays set.
    #[error("the firmware is still initializing after {waited_ms} ms")]
    Initializing {
        /// Milliseconds waited.
        waited_ms: u64,
    },
    /// The function's registers read all ones for too long.
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
    /// The device does not offer the interface step sequence we speak.
    #[error("ISSI 1 is not among the supported ones ({supported:#x})")]
    Issi {
        /// Bit n: step sequence n.
        supported: u32,
    },
    /// The device knows only the first interface step sequence, which is not ours.
    #[error("this driver needs ISSI 1, and the device does not know of ISSIs: {0}")]
    NoIssi(#[source] CmdError),
    /// The device accepted SET_HCA_CAP but does not have the settings.
    #[error("the device did not keep what SET_HCA_CAP told it: {}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
    NotKept(Vec<NotKept>),
    /// The device lacks capabilities we cannot do without; all of them are listed.
    #[error("the device lacks: {}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
    Missing(Vec<MissingCapability>),
    /// The device returned an implausible number.
    #[error("the device answered {what} = {value:#x}")]
    Nonsense {
        /// Name of the number.
        what: &'static str,
        /// Its value.
        value: u64,
    },
    /// The requested queue is larger than the format of its ring, or of an entry, allows.
    #[error("a {queue} of {entries} entries{}: its format ends before", segments.map_or_else(String::new, |most| format!(" of up to {most} segments")))]
    QueueTooLarge {
        /// Kind of queue.
        queue: &'static str,
        /// Entries requested.
        entries: u32,
        /// Segments of an entry, requested, where entries have segments.
        segments: Option<u32>,
    },
    /// Memory to be registered that no page size of the device can translate: it is empty, it runs over the end of an
    /// address space, or the two addresses do not agree within the smallest page.
    #[error(
        "{bytes} bytes at {address:#x}, I/O address {iova:#x}: nothing that pages of 2^{log_min_page} bytes translate"
    )]
    Untranslatable {
        /// The address that peers and requests use.
        address: u64,
        /// The address that the device's accesses go to.
        iova: u64,
        /// Length in bytes.
        bytes: u64,
        /// log2 of the smallest page.
        log_min_page: u32,
    },
    /// Memory to be registered that takes a larger translation table than one command can carry.
    #[error("{bytes} bytes take a translation table of {asked} bytes, a command carries {limit}")]
    TranslationTooLarge {
        /// Bytes of the memory.
        bytes: u64,
        /// Bytes of its table.
        asked: u64,
        /// The maximum length of a table.
        limit: u64,
    },
    /// The firmware wants more pages than the configuration allows it.
    #[error("the firmware asks for {asked} pages, HcaConfig::firmware_pages leaves {room}")]
    TooManyPages {
        /// Pages asked for.
        asked: usize,
        /// Pages it may still have.
        room: usize,
    },
    /// The configured MAC is not a unicast station address.
    #[error("HcaConfig::mac is {mac}, which is no address of one station")]
    ConfiguredMac {
        /// The address.
        mac: Mac,
    },
    /// The function cannot take part in the network, although the configuration requires it.
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
    /// An address that is invalid as given.
    #[error("address {address}: {why}")]
    Address {
        /// The address, with its prefix, gateway and VLAN.
        address: Address,
        /// The rule that it violates.
        why: &'static str,
    },
    /// An address that was removed in the meantime.
    #[error("the address at index {index} was removed")]
    NoSuchGid {
        /// Its index in the RoCE address table.
        index: u8,
    },
    /// More addresses than the RoCE address table holds.
    #[error("{asked} addresses, the RoCE address table holds {room}")]
    TooManyGids {
        /// Number of addresses requested, the link-local one included.
        asked: usize,
        /// Number of entries of the table.
        room: usize,
    },
    /// There is no interrupt vector.
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
    /// Random numbers could not be had; without them names could be guessed.
    #[error("the system gives no random numbers: {0}")]
    Random(String),
}

/// Returns a delivery status in words (PRM "Command Queue Entry", status).
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

/// Returns a command status in words.
pub fn status_text(status: CmdStatus) -> &'static str {
    command_status(status.0).unwrap_or("unknown status")
}

/// Returns the name of a command's status, followed by a colon and its meaning if the name does not tell it (PRM
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

/// Returns the name of the status of a command that was not delivered.
#[must_use]
pub const fn delivery_status(code: u8) -> Option<&'static str> {
    DeliveryStatus(code).name()
}

/// Returns a health syndrome in words.
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
