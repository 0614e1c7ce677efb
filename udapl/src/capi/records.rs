//! Memory for the pointers in structures that C gets: addresses, names, private data. A record is neither moved nor
//! freed while its object exists, except that a query of an endpoint frees the attributes of the query before.

// UNSAFETY: sends pointers to text between threads, together with the text.
#![expect(unsafe_code, reason = "a list of pointers that is Send")]

use std::collections::BTreeMap;
use std::ffi::CString;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use dat_core::NamedAttr;

use super::operations::Operations;
use super::types::{CNamedAttr, DatHandle};
use crate::Ia;

/// A socket address of either family, in memory that does not move.
#[derive(Clone)]
pub(super) struct Address(Box<libc::sockaddr_in6>);

impl Address {
    /// Creates the socket address. An IPv4 address is a `sockaddr_in` at the beginning of the memory.
    pub(super) fn new(address: IpAddr) -> Self {
        // CAST: AF_INET and AF_INET6 are small numbers.
        #[expect(clippy::cast_possible_truncation, reason = "AF_INET6 is 10")]
        let family = match address {
            IpAddr::V4(_) => libc::AF_INET as libc::sa_family_t,
            IpAddr::V6(_) => libc::AF_INET6 as libc::sa_family_t,
        };
        let (flowinfo, bytes) = match address {
            // sin_addr has the offset of sin6_flowinfo; its value is in network byte order.
            IpAddr::V4(v4) => (u32::from(v4).to_be(), [0; 16]),
            IpAddr::V6(v6) => (0, v6.octets()),
        };
        Self(Box::new(libc::sockaddr_in6 {
            sin6_family: family,
            sin6_port: 0,
            sin6_flowinfo: flowinfo,
            sin6_addr: libc::in6_addr { s6_addr: bytes },
            sin6_scope_id: 0,
        }))
    }

    /// Stores another socket address in the same memory.
    pub(super) fn set(&mut self, address: IpAddr) {
        *self.0 = *Self::new(address).0;
    }

    /// Returns the address.
    pub(super) fn ip(&self) -> IpAddr {
        let address = &self.0;
        if libc::c_int::from(address.sin6_family) == libc::AF_INET {
            // `new` has put sin_addr at this offset.
            return Ipv4Addr::from(u32::from_be(address.sin6_flowinfo)).into();
        }
        Ipv6Addr::from(address.sin6_addr.s6_addr).into()
    }

    pub(super) fn pointer(&self) -> *mut libc::sockaddr {
        core::ptr::from_ref(&*self.0).cast_mut().cast()
    }
}

/// Named attributes for C, with the text that they point to.
pub(super) struct Attributes {
    /// Text that the pointers in `list` point to.
    _texts: Vec<(CString, CString)>,
    list: Vec<CNamedAttr>,
}

// SAFETY: the pointers lead into `_texts`, which moves to the other thread together with them and is not changed.
unsafe impl Send for Attributes {}

impl Attributes {
    pub(super) fn new(attributes: &[NamedAttr]) -> Self {
        let texts: Vec<(CString, CString)> = attributes
            .iter()
            .filter_map(|attribute| {
                let name = CString::new(attribute.name).ok()?;
                Some((name, CString::new(attribute.value.as_str()).ok()?))
            })
            .collect();
        let list = texts.iter().map(|(name, value)| CNamedAttr {
            name: name.as_ptr(),
            value: value.as_ptr(),
        });
        Self {
            list: list.collect(),
            _texts: texts,
        }
    }

    pub(super) fn list(&self) -> &[CNamedAttr] {
        &self.list
    }
}

/// Memory of an LMR, in C's types, for `dat_lmr_query`.
#[derive(Clone)]
pub(super) struct Region {
    pub(super) address: usize,
    pub(super) length: u64,
    pub(super) source: usize,
    pub(super) cookie: Option<Box<[u8; 40]>>,
}

/// A connection request, with the memory that `dat_cr_query` points to.
pub(super) struct Request {
    pub(super) remote: Address,
    pub(super) private_data: Box<[u8]>,
}

/// An agent as the C program gave it. The library does not dereference `instance_data`.
#[derive(Clone, Copy)]
pub(super) struct GivenAgent {
    pub(super) instance_data: usize,
    pub(super) function: unsafe extern "C" fn(*mut core::ffi::c_void, DatHandle),
    /// Converts a handle of DAT 1.2 to a handle of the agent's DAT version.
    pub(super) map_handle: fn(DatHandle) -> DatHandle,
}

/// A reserved service point. The handles are those of DAT 1.2.
#[derive(Clone, Copy)]
pub(super) struct ReservedPoint {
    pub(super) conn_qual: u64,
    /// EVD that gets the request.
    pub(super) evd: u64,
    pub(super) handle: u64,
}

/// All records of an instance.
pub(super) struct Records {
    pub(super) transport: Attributes,
    pub(super) vendor: Attributes,
    /// Our addresses that connections or requests have used. Pointers to them are valid until the instance is closed.
    locals: BTreeMap<IpAddr, Address>,
    /// Peer addresses of endpoints, by C's handle.
    pub(super) remotes: BTreeMap<u64, Address>,
    /// Attributes returned by the last query of an endpoint, by C's handle.
    pub(super) settings: BTreeMap<u64, Attributes>,
    /// Connection requests, by C's handle.
    pub(super) requests: BTreeMap<u64, Request>,
    /// LMRs, by C's handle.
    pub(super) regions: BTreeMap<u64, Region>,
    /// Agents of CNOs, by C's handle.
    pub(super) agents: BTreeMap<u64, GivenAgent>,
    /// Posted operations of endpoints of a DAT 2.0 program, by the handle of DAT 1.2.
    pub(super) operations: BTreeMap<u64, Operations>,
    /// Reserved service points of a DAT 2.0 program that have not been named in a request event, the oldest first.
    pub(super) reserved: Vec<ReservedPoint>,
}

impl Records {
    /// Returns a pointer to the socket address of one of our addresses.
    pub(super) fn local(&mut self, address: IpAddr) -> *mut libc::sockaddr {
        let record = self.locals.entry(address);
        record.or_insert_with(|| Address::new(address)).pointer()
    }

    pub(super) fn new(ia: &Ia) -> Self {
        let attr = ia.query().ia;
        Self {
            transport: Attributes::new(&attr.transport_attr),
            vendor: Attributes::new(&attr.vendor_attr),
            locals: BTreeMap::new(),
            remotes: BTreeMap::new(),
            settings: BTreeMap::new(),
            requests: BTreeMap::new(),
            regions: BTreeMap::new(),
            agents: BTreeMap::new(),
            operations: BTreeMap::new(),
            reserved: Vec::new(),
        }
    }
}
