//! Addresses of RoCE v2: GIDs, the port's GID table, and the MAC addresses of peers.
//!
//! A GID is an IPv6 address; an IPv4 address is written `::ffff:a.b.c.d`. The device keeps a table of
//! our own addresses. A queue pair names an entry of this table, and the device takes the source MAC, source IP, IP
//! version and encapsulation of the queue pair's packets from the entry (PRM "RoCE Address Table").
//!
//! Index 0 is always the link-local address made of our MAC (RFC 4291, modified EUI-64). It contains the MAC of its
//! owner, so two functions on one link can communicate without any configuration. Other peers are found among the
//! static neighbours of the configuration, or by ARP and neighbour discovery (`dat-mlx`, module `network`).

mod entry;
mod table;

use std::net::IpAddr;

use rdma_types::Address;

use crate::control::Commands;
use crate::error::{CmdError, MlxError};
use mlx_prm::{QueryRoceAddressIn, RoceAddr, SetRoceAddressIn};

use entry::entry_of;
pub use entry::{GidEntry, address_of, gid_of, link_local, mac_of_link_local};
pub use table::{GidSnapshot, GidTableSnapshot, RetiringSnapshot};
pub(crate) use table::{GidTable, Use};

/// `roce_version` value of RoCE v2 in the address layout. The capability of the same name is a bit mask instead.
const ROCE_V2: u32 = 2;
const L3_IPV4: u32 = 0;
const L3_IPV6: u32 = 1;

/// Returns the initial table of a port: the link-local address first, then `addresses` in their order without
/// duplicates.
pub(crate) fn table(
    mac: [u8; 6],
    addresses: &[Address],
    room: usize,
) -> Result<Vec<GidEntry>, MlxError> {
    let mut table: Vec<Address> = vec![IpAddr::V6(link_local(mac)).into()];
    for address in addresses {
        let address = address.to_canonical();
        address
            .check()
            .map_err(|why| MlxError::Address { address, why })?;
        match table
            .iter_mut()
            .find(|other| other.address == address.address)
        {
            None => table.push(address),
            // The entry has only default attributes so far. The configured address replaces it.
            Some(other) if *other == other.address.into() => *other = address,
            Some(other) if *other == address => {}
            Some(_) => {
                return Err(MlxError::Address {
                    address,
                    why: "it is there already, and differs",
                });
            }
        }
    }
    if table.len() > room {
        return Err(MlxError::TooManyGids {
            asked: table.len(),
            room,
        });
    }
    table
        .into_iter()
        .enumerate()
        .map(|(index, address)| {
            // The index of an entry has 8 bits in the address path.
            let index = u8::try_from(index).map_err(|_| MlxError::TooManyGids {
                asked: index + 1,
                room: 256,
            })?;
            Ok(entry_of(index, mac, &address))
        })
        .collect()
}

/// Returns the device's form of an entry.
fn layout(entry: &GidEntry) -> RoceAddr {
    let [a, b, c, d, e, f] = entry.mac;
    let mut address = RoceAddr::new();
    address
        .set_source_l3_address(&entry.gid)
        .set_source_mac_47_32(u32::from(u16::from_be_bytes([a, b])))
        .set_source_mac_31_0(u32::from_be_bytes([c, d, e, f]))
        .set_roce_version(ROCE_V2)
        .set_roce_l3_type(if entry.address.address.is_ipv4() {
            L3_IPV4
        } else {
            L3_IPV6
        });
    if let Some(vlan) = entry.address.vlan {
        address.set_vlan_valid(true).set_vlan_id(u32::from(vlan.id));
    }
    address
}

/// Writes one entry. `port` is given only on devices with several ports per function.
pub(crate) fn write_entry(
    control: &mut impl Commands,
    entry: &GidEntry,
    port: Option<u32>,
) -> Result<(), CmdError> {
    write(control, entry.index, &layout(entry), port)
}

/// Clears one entry: writes the zero address, with the RoCE version of all our entries (v2). Version 0 would be
/// RoCE v1, which a function may not support (Linux `mlx5_ib_del_gid`, `set_roce_addr`).
pub(crate) fn clear_entry(
    control: &mut impl Commands,
    index: u8,
    port: Option<u32>,
) -> Result<(), CmdError> {
    let mut address = RoceAddr::new();
    address.set_roce_version(ROCE_V2).set_roce_l3_type(L3_IPV6);
    write(control, index, &address, port)
}

fn write(
    control: &mut impl Commands,
    index: u8,
    address: &RoceAddr,
    port: Option<u32>,
) -> Result<(), CmdError> {
    let mut input = SetRoceAddressIn::new();
    input
        .set_roce_address_index(u32::from(index))
        .set_vhca_port_num(port.unwrap_or(0))
        .set_roce_address(address);
    control.exec(&input).map(|_| ())
}

/// Reads one entry. Returns its GID and its MAC.
pub(crate) fn read_entry(
    control: &mut impl Commands,
    index: u8,
    port: Option<u32>,
) -> Result<([u8; 16], [u8; 6]), CmdError> {
    let mut input = QueryRoceAddressIn::new();
    input
        .set_roce_address_index(u32::from(index))
        .set_vhca_port_num(port.unwrap_or(0));
    let output = control.exec(&input)?;
    let address = output.roce_address();
    let [_, _, a, b] = address.source_mac_47_32().to_be_bytes();
    let [c, d, e, f] = address.source_mac_31_0().to_be_bytes();
    Ok((*address.source_l3_address(), [a, b, c, d, e, f]))
}

/// Returns the MAC of the station with a GID: our own, a static neighbour's, or the MAC that a link-local GID contains.
pub(crate) fn resolve(
    gid: [u8; 16],
    own: &[GidEntry],
    neighbours: &[(IpAddr, [u8; 6])],
) -> Result<[u8; 6], MlxError> {
    let address = address_of(gid);
    own.iter()
        .find(|entry| entry.gid == gid)
        .map(|entry| entry.mac)
        .or_else(|| {
            neighbours
                .iter()
                .find(|(neighbour, _)| neighbour.to_canonical() == address)
                .map(|(_, mac)| *mac)
        })
        .or_else(|| mac_of_link_local(gid))
        .ok_or(MlxError::Unresolved { address })
}

/// Returns our entry from which packets to `gid` are sent: the entry on the same link with the longest prefix, or
/// the first entry with a gateway if none is on the same link. Link-local entries reach only link-local GIDs.
pub(crate) fn source(gid: [u8; 16], own: &[GidEntry]) -> Option<&GidEntry> {
    let address = address_of(gid);
    let is_local =
        |address| matches!(address, IpAddr::V6(address) if address.is_unicast_link_local());
    let scope = |entry: &&GidEntry| {
        let own = entry.address.address;
        own.is_ipv4() == address.is_ipv4() && is_local(own) == is_local(address)
    };
    let on_link = own
        .iter()
        .filter(scope)
        .filter(|entry| entry.address.shares_prefix(address));
    // `max_by_key` returns the last maximum, so the reversed order selects the first entry with the longest prefix.
    on_link
        .rev()
        .max_by_key(|entry| entry.address.prefix_bits())
        .or_else(|| {
            own.iter()
                .filter(scope)
                .find(|entry| entry.address.gateway.is_some())
        })
}

#[cfg(test)]
mod tests {
    use zerocopy::IntoBytes;

    use std::net::Ipv6Addr;

    use super::*;

    const MAC: [u8; 6] = [0x02, 0x00, 0x5e, 0x10, 0x20, 0x30];

    fn ip(text: &str) -> IpAddr {
        text.parse().expect("an address")
    }

    #[test]
    fn link_local_address_of_a_mac_is_the_one_of_rfc_4291() {
        // The example of RFC 4291, appendix A, as a MAC: 34-56-78-9A-BC-DE.
        assert_eq!(
            link_local([0x34, 0x56, 0x78, 0x9a, 0xbc, 0xde]),
            "fe80::3656:78ff:fe9a:bcde"
                .parse::<Ipv6Addr>()
                .expect("an address")
        );
    }

    #[test]
    fn link_local_address_names_its_mac_and_others_do_not() {
        assert_eq!(mac_of_link_local(link_local(MAC).octets()), Some(MAC));
        for other in [
            "fe80::1",
            "fe80:0:0:1:0:5eff:fe10:2030",
            "2001:db8::5eff:fe10:2030",
            "::ffff:10.0.0.1",
        ] {
            assert_eq!(mac_of_link_local(gid_of(ip(other))), None, "{other}");
        }
    }

    #[test]
    fn table_begins_with_the_link_local_address_and_repeats_nothing() {
        let own = table(
            MAC,
            &[
                ip("10.0.0.1").into(),
                ip("2001:db8::1").into(),
                ip("10.0.0.1").into(),
                ip("fe80::5eff:fe10:2030").into(),
            ],
            8,
        )
        .expect("room");
        let addresses: Vec<_> = own
            .iter()
            .map(|entry| (entry.index, entry.address.address.to_string()))
            .collect();
        assert_eq!(
            addresses,
            [
                (0, "fe80::5eff:fe10:2030".to_owned()),
                (1, "10.0.0.1".to_owned()),
                (2, "2001:db8::1".to_owned())
            ]
        );
    }

    #[test]
    fn table_larger_than_the_devices_is_refused_with_both_numbers() {
        let error =
            table(MAC, &[ip("10.0.0.1").into(), ip("10.0.0.2").into()], 2).expect_err("no room");
        assert_eq!(
            error.to_string(),
            "3 addresses, the RoCE address table holds 2"
        );
    }

    #[test]
    fn ipv4_entry_is_laid_out_as_mlx5_ib_does() {
        let own = table(MAC, &[ip("192.168.1.2").into()], 8).expect("room");
        let mut expected = [0u8; 0x20];
        expected[..16].copy_from_slice(&[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 192, 168, 1, 2]);
        expected[0x12..0x18].copy_from_slice(&MAC);
        expected[0x1b] = 2;
        assert_eq!(layout(&own[1]).as_bytes(), expected);
        // IPv6: L3 type 1 in bits 11:8.
        assert_eq!(layout(&own[0]).as_bytes()[0x18..], [0, 0, 1, 2, 0, 0, 0, 0]);
    }

    #[test]
    fn resolving_prefers_ourselves_then_the_configuration_then_the_address() {
        let own = table(MAC, &[ip("10.0.0.1").into()], 8).expect("room");
        let other = [2, 0, 0, 0, 0, 9];
        let neighbours = [
            (ip("10.0.0.2"), other),
            (IpAddr::V6(link_local([2, 0, 0, 0, 0, 7])), other),
        ];
        assert_eq!(
            resolve(gid_of(ip("10.0.0.1")), &own, &neighbours).expect("own"),
            MAC
        );
        assert_eq!(
            resolve(gid_of(ip("10.0.0.2")), &own, &neighbours).expect("static"),
            other
        );
        assert_eq!(
            resolve(link_local([2, 0, 0, 0, 0, 7]).octets(), &own, &neighbours).expect("static"),
            other
        );
        assert_eq!(
            resolve(link_local([2, 0, 0, 0, 0, 8]).octets(), &own, &neighbours).expect("named"),
            [2, 0, 0, 0, 0, 8]
        );
        let error = resolve(gid_of(ip("10.0.0.3")), &own, &neighbours).expect_err("nobody");
        assert_eq!(error.to_string(), "no neighbour entry for 10.0.0.3");
    }

    #[test]
    fn source_is_on_the_link_of_the_destination_or_has_a_gateway() {
        let within = |text: &str, prefix, gateway: Option<&str>| Address {
            prefix: Some(prefix),
            gateway: gateway.map(ip),
            ..ip(text).into()
        };
        let own = table(
            MAC,
            &[
                within("10.0.0.1", 8, None),
                within("10.1.0.1", 16, Some("10.1.0.254")),
                within("10.2.0.1", 16, Some("10.2.0.254")),
                within("10.1.0.2", 16, None),
                within("2001:db8::1", 64, None),
            ],
            8,
        )
        .expect("room");
        let index = |address: &str| source(gid_of(ip(address)), &own).map(|entry| entry.index);
        assert_eq!(
            [
                "10.9.9.9",
                "10.1.9.9",
                "10.2.9.9",
                "192.0.2.1",
                "2001:db8::9",
                "2001:db8:1::9"
            ]
            .map(index),
            [Some(1), Some(2), Some(3), Some(2), Some(5), None]
        );
    }

    #[test]
    fn source_has_the_ip_version_and_scope_of_the_destination() {
        let own = table(MAC, &[ip("10.0.0.1").into(), ip("2001:db8::1").into()], 8).expect("room");
        let index = |address: &str| source(gid_of(ip(address)), &own).map(|entry| entry.index);
        assert_eq!(
            (index("fe80::1"), index("10.9.9.9"), index("2001:db8::9")),
            (Some(0), Some(1), Some(2))
        );
        assert_eq!(source(gid_of(ip("10.9.9.9")), &own[..1]), None);
    }
}
