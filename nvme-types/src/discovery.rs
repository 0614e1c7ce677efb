//! The discovery log page (Base specification, "Discovery Log Page"; RDMA transport, figure 5).

use core::mem::offset_of;

use static_assertions::const_assert_eq;
use zerocopy::little_endian::{U16, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// The header of the discovery log page.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Head {
    /// Generation counter: number of changes of the page.
    pub generation: U64,
    /// Number of entries that follow.
    pub entries: U64,
    /// Record format, 0.
    pub format: U16,
    rsvd_12: [u8; 1006],
}

const_assert_eq!(size_of::<Head>(), 1024);

/// A discovery log page entry.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Entry {
    /// TRTYPE: transport type, 1 is RDMA.
    pub transport: u8,
    /// ADRFAM: address family, 1 is IPv4, 2 is IPv6.
    pub family: u8,
    /// SUBTYPE: a [`Kind`].
    pub kind: u8,
    /// TREQ: bit 2, the host may disable flow control of the submission queue.
    pub requirements: u8,
    /// PORTID: number of the subsystem port.
    pub port: U16,
    /// CNTLID: 0xffff, because controllers are dynamic.
    pub controller: U16,
    /// ASQSZ: maximum number of entries of the admin submission queue.
    pub admin_queue: U16,
    /// EFLAGS: bit 1, persistent connections are supported.
    pub flags: U16,
    rsvd_0c: [u8; 20],
    /// TRSVCID: TCP port number of RDMA CM, in decimal.
    pub service: [u8; 32],
    rsvd_40: [u8; 192],
    /// SUBNQN: name of the subsystem.
    pub subsystem: [u8; 256],
    /// TRADDR: IP address, as text.
    pub address: [u8; 256],
    /// RDMA_QPTYPE: 1, reliable connected queue pairs.
    pub queue_pair: u8,
    /// RDMA_PRTYPE: provider type, 4 is RoCE version 2.
    pub provider: u8,
    /// RDMA_CMS: 1, connections are managed by RDMA CM.
    pub connection_manager: u8,
    rsvd_303: [u8; 253],
}

const_assert_eq!(size_of::<Entry>(), 1024);
const_assert_eq!(offset_of!(Entry, service), 32);
const_assert_eq!(offset_of!(Entry, subsystem), 256);
const_assert_eq!(offset_of!(Entry, address), 512);
const_assert_eq!(offset_of!(Entry, queue_pair), 768);

/// Type of the subsystem that an entry names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// Another discovery service.
    Referral = 1,
    /// A subsystem with namespaces.
    Nvm = 2,
    /// The discovery service that returns this page.
    Current = 3,
}

impl Head {
    /// Returns the header of a page with this many entries.
    #[must_use]
    pub fn new(generation: u64, entries: u64) -> Self {
        Self {
            generation: generation.into(),
            entries: entries.into(),
            format: 0.into(),
            rsvd_12: [0; 1006],
        }
    }
}

impl Entry {
    /// Returns the entry of a subsystem or a discovery service. `port` is the number of the subsystem port, `at` its
    /// RDMA address.
    #[must_use]
    pub fn new(kind: Kind, name: &super::Nqn, port: u16, at: std::net::SocketAddr) -> Self {
        let mut entry = Self {
            transport: 1,
            family: if at.is_ipv4() { 1 } else { 2 },
            kind: kind as u8,
            requirements: 1 << 2,
            port: port.into(),
            controller: 0xffff.into(),
            admin_queue: 32.into(),
            flags: u16::from(kind != Kind::Nvm).wrapping_shl(1).into(),
            rsvd_0c: [0; 20],
            service: [0; 32],
            rsvd_40: [0; 192],
            subsystem: name.field(),
            address: [0; 256],
            queue_pair: 1,
            provider: 4,
            connection_manager: 1,
            rsvd_303: [0; 253],
        };
        let put = |field: &mut [u8], text: String| {
            field[..text.len()].copy_from_slice(text.as_bytes());
        };
        put(&mut entry.service, at.port().to_string());
        put(&mut entry.address, at.ip().to_string());
        entry
    }
}
