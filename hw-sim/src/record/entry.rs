//! The records that a recording consists of.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::card::{CardRules, PortQos, VfSettings};
use crate::fault::Fault;
use crate::link::LinkFaults;
use crate::profile::Profile;
use crate::switch::SwitchConfig;

/// An external input of the simulation, or a result of such an input. Functions, cards and links are named by their
/// numbers, in order of creation. Times are in nanoseconds.
///
/// The position of a variant is its number in the file, so append new variants at the end. A change of a variant's
/// fields needs a new version of the file ([`VERSION`](super::VERSION)).
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Record {
    /// A card was added.
    Card {
        /// Profile of the card's physical function.
        physical: Box<Profile>,
        /// Number of the card's virtual functions.
        virtual_functions: u16,
        /// Behaviour of the card.
        rules: CardRules,
    },
    /// The cards of two functions were linked.
    Link {
        /// Numbers of the two functions.
        ends: (usize, usize),
        /// Faults of the link.
        faults: LinkFaults,
    },
    /// A link was connected from a function's card to the outside.
    LinkOutside {
        /// Number of the function.
        function: usize,
        /// Faults of frames that leave the simulation.
        faults: LinkFaults,
    },
    /// The faults of a link were changed.
    Faults {
        /// Number of the link.
        link: usize,
        /// The new faults.
        faults: LinkFaults,
    },
    /// The faults of every link ended.
    Heal,
    /// Posting of register writes was enabled (true) or disabled.
    Posted(bool),
    /// The simulation was switched to stepped (true) or to inline operation.
    Stepped(bool),
    /// Frames were sealed: they carry an ICRC from now on.
    Seal,
    /// A fault was injected into a function.
    Inject {
        /// Number of the function.
        function: usize,
        /// Number of commands to pass before the fault, for [`Fault::Later`].
        later: Option<u32>,
        /// The injected fault.
        fault: Fault,
    },
    /// All waiting faults of a function were dropped.
    Mend {
        /// Number of the function.
        function: usize,
    },
    /// The administrator changed the settings of a virtual function.
    Administered {
        /// Number of the virtual function among all functions.
        function: usize,
        /// The new settings.
        settings: VfSettings,
    },
    /// Memory was mapped.
    Map {
        /// Number of the function that can access the memory.
        function: usize,
        /// First address.
        iova: u64,
        /// Length in bytes.
        bytes: u64,
        /// True if the device may write the memory.
        writable: bool,
    },
    /// Memory was unmapped.
    Unmap {
        /// Number of the function that could access the memory.
        function: usize,
        /// First address.
        iova: u64,
        /// Length in bytes.
        bytes: u64,
    },
    /// A driver wrote to a register.
    Register {
        /// Number of the function.
        function: usize,
        /// Offset in BAR 0.
        offset: u64,
        /// Written bytes, in memory order.
        bytes: Vec<u8>,
    },
    /// A driver wrote to configuration space.
    Configuration {
        /// Number of the function.
        function: usize,
        /// Offset in configuration space.
        offset: u16,
        /// Written bytes.
        bytes: Vec<u8>,
    },
    /// A function was reset (function-level reset).
    Reset {
        /// Number of the function.
        function: usize,
    },
    /// The driver enabled interrupt vectors.
    Interrupts {
        /// Number of the function.
        function: usize,
        /// Number of enabled vectors, from vector 0 on.
        vectors: usize,
    },
    /// A frame arrived from outside of the simulation.
    Frame {
        /// Number of the function whose port received the frame.
        function: usize,
        /// Bytes of the frame.
        bytes: Vec<u8>,
    },
    /// The caller fetched the frames that had left the simulation.
    FramesTaken {
        /// Number of the function through whose port the frames had left.
        function: usize,
    },
    /// Time advanced, and the simulation ran everything that became due.
    Time {
        /// New virtual time.
        now: u64,
    },
    /// A waiting thread ran one event that was due by a deadline.
    Waited {
        /// Virtual time of the deadline.
        until: u64,
    },
    /// The simulation ran one event, whenever it was due.
    Stepping,
    /// The simulation ran everything that was due.
    Idle,
    /// A function read memory by DMA.
    Read {
        /// Number of the function.
        function: usize,
        /// First address.
        iova: u64,
        /// Bytes read, or `None` if the owner of the memory did not answer.
        bytes: Option<Vec<u8>>,
    },
    /// Functions wrote memory by DMA, as a result of the record before.
    Wrote {
        /// Number of writes.
        writes: u64,
        /// CRC-32 over function, address and bytes of each write.
        sum: u32,
    },
    /// The owner of the memory refused a DMA write.
    NotWritten {
        /// Number of the function.
        function: usize,
        /// First address.
        iova: u64,
    },
    /// Lines of the event log that the record before caused.
    Log(String),
    /// A switch was added.
    Switch(Box<SwitchConfig>),
    /// A cable was connected to a switch. The cable is a link, and is numbered among the links.
    Cable {
        /// Both ends of the cable.
        ends: [CableEnd; 2],
        /// Faults of the cable.
        faults: LinkFaults,
    },
    /// A MAC address was bound to a port of a switch.
    FixedAddress {
        /// Number of the switch.
        switch: usize,
        /// MAC address.
        mac: [u8; 6],
        /// Number of the port.
        port: usize,
    },
    /// A port's settings for priorities and congestion control changed.
    Qos {
        /// Number of a function on the card that has the port.
        function: usize,
        /// The new settings.
        qos: Box<PortQos>,
    },
    /// An outside manager took over the subnet of the InfiniBand ports.
    SubnetManager,
    /// An InfiniBand switch was added.
    SubnetSwitch {
        /// Number of ports of the switch.
        ports: usize,
    },
    /// A cable was connected to an InfiniBand switch. The cable is a link, and is numbered among the links.
    SubnetCable {
        /// Number of a function on the card whose port the cable connects.
        function: usize,
        /// Number of the InfiniBand switch.
        switch: usize,
        /// Number of the switch's port, from 1.
        port: usize,
        /// Faults of the cable.
        faults: LinkFaults,
    },
}

/// An end of a cable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum CableEnd {
    /// The port of the card of the function with this number.
    Function(usize),
    /// A port of a switch.
    Port {
        /// Number of the switch.
        switch: usize,
        /// Number of the port.
        port: usize,
    },
}

impl fmt::Display for CableEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Function(function) => write!(f, "f{function}"),
            Self::Port { switch, port } => write!(f, "port {port} of switch {switch}"),
        }
    }
}

impl Record {
    /// Returns the record of an injected fault.
    pub(crate) fn inject(function: usize, fault: &Fault) -> Self {
        let (later, fault) = if let Fault::Later { commands, fault } = fault {
            (Some(*commands), &**fault)
        } else {
            (None, fault)
        };
        Self::Inject {
            function,
            later,
            fault: fault.clone(),
        }
    }

    /// Returns whether the record is an external input, and not a result.
    #[must_use]
    pub const fn is_input(&self) -> bool {
        !matches!(
            self,
            Self::Read { .. } | Self::Wrote { .. } | Self::NotWritten { .. } | Self::Log(_)
        )
    }
}

impl fmt::Display for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Card {
                physical,
                virtual_functions,
                ..
            } => write!(
                f,
                "card {}, a {} with {virtual_functions} virtual functions",
                physical.name, physical.generation
            ),
            Self::Link { ends: (a, b), .. } => write!(f, "link of f{a} and f{b}"),
            Self::LinkOutside { function, .. } => write!(f, "f{function} link to the outside"),
            Self::Faults { link, faults } => write!(f, "faults of link {link}: {faults:?}"),
            Self::Heal => f.write_str("links without faults"),
            Self::Posted(on) => write!(f, "posted register writes {on}"),
            Self::Stepped(on) => write!(f, "stepped {on}"),
            Self::Seal => f.write_str("frames have their ICRC"),
            Self::Inject {
                function,
                later,
                fault,
            } => {
                write!(f, "f{function} fault {fault:?}")?;
                later.map_or(Ok(()), |commands| write!(f, ", {commands} commands later"))
            }
            Self::Mend { function } => write!(f, "f{function} without waiting faults"),
            Self::Administered { function, settings } => write!(f, "f{function} is {settings:?}"),
            Self::Map {
                function,
                iova,
                bytes,
                writable,
            } => {
                let kind = if *writable { "" } else { " to be read" };
                write!(f, "f{function} map {iova:#x}+{bytes:#x}{kind}")
            }
            Self::Unmap {
                function,
                iova,
                bytes,
            } => write!(f, "f{function} unmap {iova:#x}+{bytes:#x}"),
            Self::Register {
                function,
                offset,
                bytes,
            } => write!(f, "f{function} register {offset:#x} = {bytes:02x?}"),
            Self::Configuration {
                function,
                offset,
                bytes,
            } => write!(f, "f{function} configuration {offset:#x} = {bytes:02x?}"),
            Self::Reset { function } => write!(f, "f{function} reset"),
            Self::Interrupts { function, vectors } => write!(f, "f{function} {vectors} vectors"),
            Self::Frame { function, bytes } => {
                write!(f, "f{function} frame of {} bytes arrives", bytes.len())
            }
            Self::FramesTaken { function } => write!(f, "f{function} frames taken"),
            Self::Time { now } => write!(f, "time {now}"),
            Self::Waited { until } => write!(f, "waited until {until}"),
            Self::Stepping => f.write_str("step"),
            Self::Idle => f.write_str("run to idle"),
            Self::Read {
                function,
                iova,
                bytes: Some(bytes),
            } => write!(
                f,
                "f{function} DMA read of {} bytes at {iova:#x}",
                bytes.len()
            ),
            Self::Read { function, iova, .. } => {
                write!(
                    f,
                    "f{function} DMA read at {iova:#x}, which is not answered"
                )
            }
            Self::Wrote { writes, sum } => write!(f, "{writes} DMA writes, sum {sum:#010x}"),
            Self::NotWritten { function, iova } => {
                write!(f, "f{function} DMA write at {iova:#x}, which is refused")
            }
            Self::Switch(config) => write!(
                f,
                "switch of {} ports, {} bit/s",
                config.ports, config.rate_bps
            ),
            Self::Cable { ends: [a, b], .. } => write!(f, "cable of {a} and {b}"),
            Self::FixedAddress { switch, mac, port } => {
                write!(f, "address {mac:02x?} at port {port} of switch {switch}")
            }
            Self::Qos { function, qos } => write!(f, "f{function} port is {qos:?}"),
            Self::SubnetManager => f.write_str("a manager has the subnet"),
            Self::SubnetSwitch { ports } => write!(f, "InfiniBand switch of {ports} ports"),
            Self::SubnetCable {
                function,
                switch,
                port,
                ..
            } => write!(
                f,
                "cable of f{function} and port {port} of InfiniBand switch {switch}"
            ),
            Self::Log(text) => write!(f, "{} lines of the log", text.lines().count()),
        }
    }
}
