//! Addresses of an adapter.

use core::net::IpAddr;

/// Prefix length of fe80::/64, in bits (RFC 4291, 2.5.6).
const LINK_LOCAL_PREFIX: u8 = 64;

/// An address of an adapter, with its prefix, gateway and VLAN.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Address {
    /// The IP address.
    pub address: IpAddr,
    /// Number of leading bits that all addresses on the link have in common. With 0, every address of the family is on
    /// the link. `None` means 0, or 64 for a link-local address.
    pub prefix: Option<u8>,
    /// The router on the link through which all other addresses are reached.
    pub gateway: Option<IpAddr>,
    /// The VLAN of the address's frames; `None` for frames without a tag.
    pub vlan: Option<Vlan>,
}

/// A VLAN, and the priority of our frames in it. Networks that make RoCE lossless by priority flow control use tags.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Vlan {
    /// VLAN ID, 1..=4094.
    pub id: u16,
    /// Priority in the tag, 0..=7.
    pub priority: u8,
}

impl From<IpAddr> for Address {
    fn from(address: IpAddr) -> Self {
        Self {
            address,
            prefix: None,
            gateway: None,
            vlan: None,
        }
    }
}

impl Address {
    /// Returns the address with an IPv4-mapped IPv6 address converted to IPv4.
    #[must_use]
    pub fn to_canonical(self) -> Self {
        Self {
            address: self.address.to_canonical(),
            gateway: self.gateway.map(|gateway| gateway.to_canonical()),
            ..self
        }
    }

    /// Returns the length of the prefix in bits, with the default if `prefix` is `None`.
    #[must_use]
    pub fn prefix_bits(&self) -> u8 {
        self.prefix.unwrap_or(match self.address {
            IpAddr::V6(address) if address.is_unicast_link_local() => LINK_LOCAL_PREFIX,
            IpAddr::V4(_) | IpAddr::V6(_) => 0,
        })
    }

    /// Returns the length of the longest possible prefix in bits.
    #[must_use]
    pub fn longest_prefix(&self) -> u8 {
        if self.address.is_ipv4() { 32 } else { 128 }
    }

    /// Returns the VLAN ID; `None` without a VLAN.
    #[must_use]
    pub fn vlan_id(&self) -> Option<u16> {
        self.vlan.map(|vlan| vlan.id)
    }

    /// Returns whether `other` has the prefix of this address.
    #[must_use]
    pub fn shares_prefix(&self, other: IpAddr) -> bool {
        let shared = match (self.address, other) {
            (IpAddr::V4(a), IpAddr::V4(b)) => (a.to_bits() ^ b.to_bits()).leading_zeros(),
            (IpAddr::V6(a), IpAddr::V6(b)) => (a.to_bits() ^ b.to_bits()).leading_zeros(),
            (IpAddr::V4(_), IpAddr::V6(_)) | (IpAddr::V6(_), IpAddr::V4(_)) => return false,
        };
        shared >= u32::from(self.prefix_bits())
    }

    /// Checks that the address is valid for an adapter, with its prefix, gateway and VLAN.
    ///
    /// # Errors
    /// The rule that the address violates.
    pub fn check(&self) -> Result<(), &'static str> {
        let Self {
            address,
            prefix,
            gateway,
            vlan,
        } = *self;
        let on_link = |gateway: IpAddr| {
            prefix.is_some_and(|bits| bits > 0) && gateway != address && self.shares_prefix(gateway)
        };
        if self.prefix_bits() > self.longest_prefix() {
            Err("its prefix is longer than it")
        } else if gateway.is_some_and(|gateway| !on_link(gateway.to_canonical())) {
            Err("its gateway is not another address within its prefix")
        } else if vlan.is_some_and(|vlan| !(1..=4094).contains(&vlan.id)) {
            Err("VLANs are 1..=4094")
        } else if vlan.is_some_and(|vlan| vlan.priority > 7) {
            Err("priorities are 0..=7")
        } else {
            Ok(())
        }
    }
}

impl core::fmt::Display for Address {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{}", self.address)?;
        if let Some(prefix) = self.prefix {
            write!(f, "/{prefix}")?;
        }
        if let Some(gateway) = self.gateway {
            write!(f, " over {gateway}")?;
        }
        if let Some(Vlan { id, priority }) = self.vlan {
            write!(f, " in VLAN {id} with priority {priority}")?;
        }
        Ok(())
    }
}
