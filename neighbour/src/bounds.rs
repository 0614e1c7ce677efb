//! Bounds of what a snapshot says.

use std::net::IpAddr;
use std::time::Duration;

use crate::address::{AddressError, Mac, is_station, is_unicast};
use crate::resume_error::ResumeError;

/// Largest value that a snapshot may have for a counter that only grows. A counter that grows ten million times in a
/// second reaches it after 228 years. Sums of such counters do not overflow. The connection manager of `dat-core` has
/// the same limit.
pub(crate) const MOST_COUNTED: u64 = 1 << 56;

/// Facts of a snapshot by which its items are checked.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    /// Our MAC.
    pub(crate) mac: Mac,
    /// Time of the parking.
    pub(crate) parked: Duration,
    /// True if the link is up. No timer is set while it is down.
    pub(crate) up: bool,
}

impl Bounds {
    /// Checks a time that has passed.
    pub(crate) fn past(
        &self,
        item: &str,
        of: &'static str,
        time: Duration,
    ) -> Result<(), ResumeError> {
        self.timer(item, of, time, Duration::ZERO)
    }

    /// Checks a time that is at most `within` later than the parking. It may have passed.
    pub(crate) fn timer(
        &self,
        item: &str,
        of: &'static str,
        time: Duration,
        within: Duration,
    ) -> Result<(), ResumeError> {
        let latest = self.parked.saturating_add(within);
        if time > latest {
            return Err(ResumeError::Time {
                item: item.to_owned(),
                of,
                time,
                latest,
            });
        }
        Ok(())
    }
}

/// Checks a number of things that an item counts.
pub(crate) fn number(
    item: &str,
    of: &'static str,
    number: impl Into<u64>,
    [least, most]: [u8; 2],
) -> Result<(), ResumeError> {
    let (number, least, most) = (number.into(), least.into(), most.into());
    if (least..=most).contains(&number) {
        return Ok(());
    }
    Err(ResumeError::Number {
        item: item.to_owned(),
        of,
        number,
        least,
        most,
    })
}

/// Checks a number that only grows.
pub(crate) fn counted(item: &str, of: &'static str, number: u64) -> Result<(), ResumeError> {
    if number <= MOST_COUNTED {
        return Ok(());
    }
    Err(ResumeError::Number {
        item: item.to_owned(),
        of,
        number,
        least: 0,
        most: MOST_COUNTED,
    })
}

/// Checks the length of a list.
pub(crate) fn length(list: &'static str, have: usize, most: usize) -> Result<(), ResumeError> {
    if have <= most {
        return Ok(());
    }
    Err(ResumeError::TooMany { list, have, most })
}

/// Returns the address of a node in canonical form.
pub(crate) fn node(address: IpAddr) -> Result<IpAddr, AddressError> {
    let address = address.to_canonical();
    if is_unicast(address) {
        Ok(address)
    } else {
        Err(AddressError::NotUnicast { address })
    }
}

/// Checks the MAC of a node.
pub(crate) fn station(mac: Mac) -> Result<Mac, AddressError> {
    if is_station(mac) {
        Ok(mac)
    } else {
        Err(AddressError::NotAMac { mac })
    }
}

/// Checks the ID of a VLAN.
pub(crate) fn vlan(id: Option<u16>) -> Result<Option<u16>, AddressError> {
    match id {
        None | Some(1..=4094) => Ok(id),
        Some(id) => Err(AddressError::Vlan { id, priority: 0 }),
    }
}

/// Returns the name of an address in a VLAN, for errors.
pub(crate) fn in_vlan(what: &str, vlan: Option<u16>) -> String {
    vlan.map_or_else(|| what.to_owned(), |id| format!("{what} in VLAN {id}"))
}
