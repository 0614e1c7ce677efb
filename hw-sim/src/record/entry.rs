//! The records of a recording.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::card::{CardRules, PortQos, VfSettings};
use crate::fault::Fault;
use crate::link::LinkFaults;
use crate::profile::Profile;
use crate::switch::SwitchConfig;

/// An input of a world from outside, or a result of it. Functions, cards and links are named by their numbers, in
/// order of creation; times are in nanoseconds.
///
/// The position of a variant is its number in the file: append new ones at the end. A change of a variant's fields is
/// a new version of the file ([`VERSION`](super::VERSION)).
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Record {
    /// A card was added.
    Card {
        /// Its physical function.
        physical: Box<Profile>,
        /// Number of its virtual functions.
        virtual_functions: u16,
        /// Its behaviour.
        rules: CardRules,
    },
    /// The cards of two functions were linked.
    Link {
        /// The functions.
        ends: (usize, usize),
        /// Faults of the link.
        faults: LinkFaults,
    },
    /// A link was connected from a function's card to the outside.
    LinkOutside {
        /// The function.
        function: usize,
        /// Faults of the outward direction.
        faults: LinkFaults,
    },
    /// The faults of a link were changed.
    Faults {
        /// The link.
        link: usize,
        /// The new faults.
        faults: LinkFaults,
    },
    /// The faults of every link ended.
    Heal,
    /// Register writes are posted, or not.
    Posted(bool),
    /// The world is stepped, or driven inline.
    Stepped(bool),
    /// Frames have their ICRC from now on.
    Seal,
    /// A fault was injected into a function.
    Inject {
        /// The function.
        function: usize,
        /// For [`Fault::Later`]: number of commands that are spared.
        later: Option<u32>,
        /// The fault.
        fault: Fault,
    },
    /// All waiting faults of a function were dropped.
    Mend {
        /// The function.
        function: usize,
    },
    /// The administrator's settings of a virtual function.
    Administered {
        /// The virtual function, by its number among all functions.
        function: usize,
        /// The settings.
        settings: VfSettings,
    },
    /// Memory was mapped.
    Map {
        /// Function that can reach it.
        function: usize,
        /// First address.
        iova: u64,
        /// Length in bytes.
        bytes: u64,
        /// The device may write it.
        writable: bool,
    },
    /// Memory was unmapped.
    Unmap {
        /// Function that could reach it.
        function: usize,
        /// First address.
        iova: u64,
        /// Length in bytes.
        bytes: u64,
    },
    /// A register was written.
    Register {
        /// The function.
        function: usize,
        /// Offset in BAR 0.
        offset: u64,
        /// The bytes, in memory order.
        bytes: Vec<u8>,
    },
    /// Configuration space was written.
    Configuration {
        /// The function.
        function: usize,
        /// Offset.
        offset: u16,
        /// The bytes.
        bytes: Vec<u8>,
    },
    /// A function level reset.
    Reset {
        /// The function.
        function: usize,
    },
    /// The driver enabled interrupt vectors.
    Interrupts {
        /// The function.
        function: usize,
        /// Number of vectors, from the first on.
        vectors: usize,
    },
    /// A frame arrived from outside.
    Frame {
        /// Function whose port it arrived at.
        function: usize,
        /// The frame.
        bytes: Vec<u8>,
    },
    /// The frames that had left were taken.
    FramesTaken {
        /// Function through whose port they had left.
        function: usize,
    },
    /// Time advanced, and everything due on the way was run.
    Time {
        /// The new time.
        now: u64,
    },
    /// A waiting thread ran one event, due by a deadline.
    Waited {
        /// The deadline.
        until: u64,
    },
    /// One event was run, whenever it was due.
    Stepping,
    /// Everything due was run.
    Idle,
    /// A DMA read: its data, or nothing if the memory's owner did not answer.
    Read {
        /// The function.
        function: usize,
        /// First address.
        iova: u64,
        /// The bytes.
        bytes: Option<Vec<u8>>,
    },
    /// DMA writes caused by the record before.
    Wrote {
        /// Number of writes.
        writes: u64,
        /// CRC-32 over function, address and bytes of each.
        sum: u32,
    },
    /// A DMA write that the memory's owner refused.
    NotWritten {
        /// The function.
        function: usize,
        /// First address.
        iova: u64,
    },
    /// Lines of the event log caused by the record before.
    Log(String),
    /// A switch was added.
    Switch(Box<SwitchConfig>),
    /// A cable was connected to a switch. It is a link, and counted among them.
    Cable {
        /// Its ends.
        ends: [CableEnd; 2],
        /// Faults of the cable.
        faults: LinkFaults,
    },
    /// An address was bound to a port of a switch.
    FixedAddress {
        /// The switch.
        switch: usize,
        /// The address.
        mac: [u8; 6],
        /// The port.
        port: usize,
    },
    /// A port's settings for priorities and congestion control.
    Qos {
        /// Function whose card has the port.
        function: usize,
        /// The settings.
        qos: Box<PortQos>,
    },
    /// The subnet of InfiniBand ports was handed to an outside manager.
    SubnetManager,
    /// An InfiniBand switch was added.
    SubnetSwitch {
        /// Number of its ports.
        ports: usize,
    },
    /// A cable was connected to an InfiniBand switch. It is a link, and counted among them.
    SubnetCable {
        /// Function whose card's port it connects.
        function: usize,
        /// The switch.
        switch: usize,
        /// Port of the switch, from 1.
        port: usize,
        /// Faults of the cable.
        faults: LinkFaults,
    },
}

/// An end of a cable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum CableEnd {
    /// The port of this function's card.
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

    /// Returns whether it is an input from outside, and not a result.
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
