//! Addresses of an adapter.

use core::net::IpAddr;

/// An address of an adapter, with its prefix, gateway and VLAN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
        let most = match address {
            IpAddr::V4(_) => 32,
            IpAddr::V6(_) => 128,
        };
        let on_link = |gateway: IpAddr| {
            let prefix = prefix.unwrap_or(0);
            prefix > 0 && gateway != address && same_network(gateway, address, prefix)
        };
        if prefix.is_some_and(|prefix| prefix > most) {
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

/// Returns whether the first `prefix` bits of two addresses are equal.
#[must_use]
pub fn same_network(a: IpAddr, b: IpAddr, prefix: u8) -> bool {
    let differs = match (a, b) {
        (IpAddr::V4(a), IpAddr::V4(b)) => (a.to_bits() ^ b.to_bits()).leading_zeros(),
        (IpAddr::V6(a), IpAddr::V6(b)) => (a.to_bits() ^ b.to_bits()).leading_zeros(),
        (IpAddr::V4(_), IpAddr::V6(_)) | (IpAddr::V6(_), IpAddr::V4(_)) => return false,
    };
    differs >= u32::from(prefix)
}
