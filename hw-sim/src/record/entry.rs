//! What a recording consists of.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::card::{CardRules, PortQos, VfSettings};
use crate::fault::Fault;
use crate::link::LinkFaults;
use crate::profile::Profile;
use crate::switch::SwitchConfig;

/// Something that came from outside of a world, or what came of it. Functions, cards and links are named by their
/// numbers, in the order in which they were made; times are nanoseconds.
///
/// The place of a variant is its number in the file: new ones go to the end.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Record {
    /// A card was added.
    Card {
        /// Its physical function.
        physical: Box<Profile>,
        /// How many virtual functions it has.
        virtual_functions: u16,
        /// Its habits.
        rules: CardRules,
    },
    /// The cards of two functions were linked.
    Link {
        /// The functions.
        ends: (usize, usize),
        /// Faults of the link.
        faults: LinkFaults,
    },
    /// A link was laid from a function's card out of the world.
    LinkOutside {
        /// The function.
        function: usize,
        /// Faults of the way out.
        faults: LinkFaults,
    },
    /// The faults of a link were changed.
    Faults {
        /// The link.
        link: usize,
        /// From now on.
        faults: LinkFaults,
    },
    /// The faults of every link ended.
    Heal,
    /// Whether register writes are posted.
    Posted(bool),
    /// Whether the world waits to be stepped.
    Stepped(bool),
    /// From now on frames have their ICRC.
    Seal,
    /// A fault was put into a function.
    Inject {
        /// The function.
        function: usize,
        /// For [`Fault::Later`]: commands that are spared.
        later: Option<u32>,
        /// The fault.
        fault: Fault,
    },
    /// Command faults of a function were forgotten.
    Mend {
        /// The function.
        function: usize,
    },
    /// Something was said of a virtual function.
    Administered {
        /// The virtual function, by its number among all functions.
        function: usize,
        /// What.
        settings: VfSettings,
    },
    /// Memory can be reached.
    Map {
        /// By this function.
        function: usize,
        /// At this address.
        iova: u64,
        /// So many bytes.
        bytes: u64,
        /// Also to be written.
        writable: bool,
    },
    /// Memory cannot be reached any more.
    Unmap {
        /// By this function.
        function: usize,
        /// From this address on.
        iova: u64,
        /// So many bytes.
        bytes: u64,
    },
    /// A register was written.
    Register {
        /// Of this function.
        function: usize,
        /// Offset in BAR 0.
        offset: u64,
        /// The bytes, as they stand in memory.
        bytes: Vec<u8>,
    },
    /// Configuration space was written.
    Configuration {
        /// Of this function.
        function: usize,
        /// Offset.
        offset: u16,
        /// The bytes.
        bytes: Vec<u8>,
    },
    /// A function level reset.
    Reset {
        /// Of this function.
        function: usize,
    },
    /// The driver has enabled so many vectors.
    Interrupts {
        /// Of this function.
        function: usize,
        /// The first ones.
        vectors: usize,
    },
    /// A frame arrived from outside.
    Frame {
        /// At the port of this function.
        function: usize,
        /// The frame.
        bytes: Vec<u8>,
    },
    /// Those that have left were taken.
    FramesTaken {
        /// Through the port of this function.
        function: usize,
    },
    /// Time moved on, and what fell due on the way was done.
    Time {
        /// Until now.
        now: u64,
    },
    /// One thing was done by who waits, until a deadline at most.
    Waited {
        /// The deadline.
        until: u64,
    },
    /// One thing was done, whenever it was due.
    Stepping,
    /// Everything that was due was done.
    Idle,
    /// A DMA read: what it found, or nothing if the memory's owner did not give it.
    Read {
        /// By this function.
        function: usize,
        /// From this address on.
        iova: u64,
        /// The bytes.
        bytes: Option<Vec<u8>>,
    },
    /// DMA writes that came of the record before.
    Wrote {
        /// How many.
        writes: u64,
        /// CRC-32 over function, address and bytes of each.
        sum: u32,
    },
    /// A DMA write that the memory's owner did not take.
    NotWritten {
        /// By this function.
        function: usize,
        /// From this address on.
        iova: u64,
    },
    /// Lines of the event log that came of the record before.
    Log(String),
    /// A switch was put into the world.
    Switch(Box<SwitchConfig>),
    /// A cable was laid to a switch. It is a link, counted with those.
    Cable {
        /// Where it goes.
        ends: [CableEnd; 2],
        /// Faults of the cable.
        faults: LinkFaults,
    },
    /// An address is at a port.
    FixedAddress {
        /// Of this switch.
        switch: usize,
        /// The address.
        mac: [u8; 6],
        /// The port.
        port: usize,
    },
    /// What a port does with priorities and about congestion.
    Qos {
        /// The port of this function's card.
        function: usize,
        /// What.
        qos: Box<PortQos>,
    },
    /// The subnet of InfiniBand ports is left to a manager.
    SubnetManager,
    /// An InfiniBand switch was put into the world.
    SubnetSwitch {
        /// How many ports it has.
        ports: usize,
    },
    /// A cable was laid to an InfiniBand switch. It is a link, counted with those.
    SubnetCable {
        /// From the port of this function's card.
        function: usize,
        /// To this switch.
        switch: usize,
        /// To this port of it, counted from 1.
        port: usize,
        /// Faults of the cable.
        faults: LinkFaults,
    },
}

/// Where an end of a cable goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum CableEnd {
    /// Into the port of this function's card.
    Function(usize),
    /// Into a port of a switch.
    Port {
        /// Which switch.
        switch: usize,
        /// Which port.
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
    /// A fault is put into a function.
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

    /// Whether it is something from outside, and not what came of it.
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
            Self::LinkOutside { function, .. } => write!(f, "f{function} link out of the world"),
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
            Self::Mend { function } => write!(f, "f{function} without command faults"),
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
                write!(f, "f{function} DMA write at {iova:#x}, which is not taken")
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
