//! Names of adapters: a device followed by options, as in
//! `sim:a,address=192.0.2.1,neighbour=192.0.2.2/02:00:5e:10:00:02`.
//!
//! | device | meaning |
//! |---|---|
//! | `sim:A` | function A of the process's own simulated fabric, created when it is first opened. The first two functions (or two cards) are linked |
//! | `sim:A/pf`, `sim:A/vf0` … `sim:A/vf7` | the physical function of card A of that fabric, or one of its virtual functions |
//! | `vfio-user:/run/nic.sock` | the function that another process serves at that socket, for example `datctl sim serve` |
//! | `0000:3b:00.2`, `3b:00.2` | the PCI function at that address, bound to vfio-pci |
//!
//! Options are for programs that open adapters by name alone, as all programs in C do; others may use
//! [`OpenOptions`]. Each option begins with a comma. Text after a comma that is not an option is an error, which
//! lists the valid options. Only the path of a `vfio-user:` socket may contain commas: its options begin at the first
//! comma that is followed by small letters and `=`. Options of an address follow that address, as in
//! `0000:3b:00.2,address=192.0.2.1/24,gateway=192.0.2.254,vlan=100,priority=3`.
//!
//! | option | meaning |
//! |---|---|
//! | `,address=IP` or `,address=IP/PREFIX` | an address of the adapter. Peers whose first `PREFIX` bits are equal are on its link; without a prefix all of its family are |
//! | `,gateway=IP` | the gateway of that address: a router on the link, used for all peers that are not on the link |
//! | `,vlan=N` | the VLAN of that address, 1..=4094 |
//! | `,priority=N` | the priority of its frames in that VLAN, 0..=7 |
//! | `,neighbour=IP/MAC` | a static neighbour entry: the adapter does not ask for this MAC |
//! | `,network=off` | no ARP and neighbour discovery: the adapter neither asks for MACs nor answers |
//! | `,network=on` | ARP and neighbour discovery are required: the adapter does not open without them. Without either option it uses them if the device allows it ([`NetworkState`](crate::network::NetworkState)) |
//! | `,events=all`, `,events=errors` | whether the asynchronous EVD reports [`NetworkEvent`](crate::event::NetworkEvent)s beside errors. The default is `all` in Rust and `errors` in C |
//! | `,endpoints=N` | room for N endpoints, of all instances together, as far as the device allows |
//! | `,vectors=N` | N interrupt vectors for completions, as far as available. If instances sleep, one vector for each instance is best |
//! | `,group=NAME` | for a PCI address: the name of an inherited descriptor of its IOMMU group file, `/dev/vfio/N` ([`OpenOptions::vfio_group`]) |
//! | `,container=NAME` | the name of an inherited descriptor of `/dev/vfio/vfio`, for a process that may not open that file. Each adapter needs its own |
//! | `,memory=NAME` | memory shared with all adapters of this process that use the same name: pinned once for all, and memory of one adapter can be registered with the others ([`OpenOptions::memory`]) |
//! | `,recorder=on` | a flight recorder in the instance ([`OpenOptions::recorder`]) |
//! | `,recorder=FOLDER` | a flight recorder in each instance, dumped to this folder when a connection breaks or a thread panics ([`OpenOptions::recorder_folder`]). The folder's name must contain a `/` |
//! | `,control=PATH` | a control socket ([`OpenOptions::control`]); `{pid}` in the path stands for the process ID |
//! | `,mac=MAC` | the MAC of a simulated function; of a virtual function, the MAC that its administrator assigns |
//! | `,profile=NAME` | the device type of a simulated function: a generation such as `connectx-7-vf`, or the path of a profile file |
//! | `,mtu=N` | the MTU of the port, in bytes of the IP packet; RDMA packets with 4096 bytes of data need 4192. The default is 4200 for a single simulated function, and the device's own MTU for all others |
//! | `,time=virtual` | virtual time for a simulated function: it advances only when a thread waits, and then at once. This is for tests that run both sides in one thread. The default is real time ([`OpenOptions::virtual_time`]) |
//! | `,pcap=FILE` | a capture of a simulated function's wire, written to this file for Wireshark ([`OpenOptions::pcap`]) |
//! | `,link=unix:PATH` | the wire of a simulated function to the function of another process that names the same path. It needs `,mac=` too |

use std::net::IpAddr;

pub use driver::{PciAddress, mac_of};
use hw_mlx::{Address, Vlan};

use crate::open::{OpenError, OpenOptions};

/// An option: its key, the form of its value, and a function that applies the value. The function returns `None` if
/// the value is malformed.
struct Key {
    key: &'static str,
    value: &'static str,
    add: fn(OpenOptions, &str) -> Option<OpenOptions>,
}

const KEYS: [Key; 20] = [
    Key {
        key: "address",
        value: "IP[/PREFIX]",
        add: |options, text| Some(options.interface(address_of(text)?)),
    },
    Key {
        key: "gateway",
        value: "IP, behind address=IP/PREFIX",
        add: |mut options, text| {
            options.hca.addresses.last_mut()?.gateway = Some(text.parse().ok()?);
            Some(options)
        },
    },
    Key {
        key: "vlan",
        value: "1..4094, behind address=IP",
        add: |mut options, text| {
            let id = number(text, 1..=4094)?;
            options.hca.addresses.last_mut()?.vlan = Some(Vlan { id, priority: 0 });
            Some(options)
        },
    },
    Key {
        key: "priority",
        value: "0..7, behind vlan=N",
        add: |mut options, text| {
            let vlan = options.hca.addresses.last_mut()?.vlan.as_mut()?;
            vlan.priority = number(text, 0..=7)?;
            Some(options)
        },
    },
    Key {
        key: "neighbour",
        value: "IP/MAC",
        add: |options, text| {
            let (ip, mac) = text.split_once('/')?;
            Some(options.neighbour(ip.parse().ok()?, station_of(mac)?))
        },
    },
    Key {
        key: "network",
        value: "on|off",
        add: |options, text| match text {
            "on" => Some(options.network(true)),
            "off" => Some(options.network(false)),
            _ => None,
        },
    },
    Key {
        key: "events",
        value: "errors|all",
        add: |mut options, text| {
            options.ia.network_events = match text {
                "all" => true,
                "errors" => false,
                _ => return None,
            };
            Some(options)
        },
    },
    Key {
        key: "endpoints",
        value: "1..16777214",
        add: |options, text| options.endpoints(text.parse().ok()?),
    },
    Key {
        key: "vectors",
        value: "1..2047",
        add: |options, text| options.vectors(text.parse().ok()?),
    },
    Key {
        key: "group",
        value: "NAME of a descriptor that was handed in, of a PCI address",
        add: |options, text| (!text.is_empty()).then(|| options.vfio_group(text)),
    },
    Key {
        key: "container",
        value: "NAME of a descriptor that was handed in, behind group=NAME",
        add: |mut options, text| {
            let files = options.handed_in.as_mut()?;
            files.container = (!text.is_empty()).then(|| text.to_owned());
            files.container.is_some().then_some(options)
        },
    },
    Key {
        key: "memory",
        value: "NAME",
        add: |options, text| (!text.is_empty()).then(|| options.memory(text)),
    },
    Key {
        key: "recorder",
        value: "on|off|FOLDER, with a / in it",
        add: |options, text| match text {
            "on" => Some(options.recorder(true)),
            "off" => Some(options.recorder(false)),
            _ => text.contains('/').then(|| options.recorder_folder(text)),
        },
    },
    Key {
        key: "control",
        value: "PATH",
        add: |options, text| (!text.is_empty()).then(|| options.control(text)),
    },
    Key {
        key: "mac",
        value: "MAC of one station, of a sim: name",
        add: |options, text| Some(options.mac(station_of(text)?)),
    },
    Key {
        key: "profile",
        value: "NAME, of a sim: name",
        add: |options, text| (!text.is_empty()).then(|| options.profile(text)),
    },
    Key {
        key: "mtu",
        value: "256..9978",
        add: |options, text| Some(options.mtu(number(text, 256..=9978)?)),
    },
    Key {
        key: "time",
        value: "real|virtual, of a sim: name",
        add: |options, text| match text {
            "real" => Some(options.virtual_time(false)),
            "virtual" => Some(options.virtual_time(true)),
            _ => None,
        },
    },
    Key {
        key: "pcap",
        value: "FILE, of a sim: name",
        add: |options, text| (!text.is_empty()).then(|| options.pcap(text)),
    },
    Key {
        key: "link",
        value: "unix:PATH, of a sim: name",
        add: |options, text| {
            let path = text.strip_prefix("unix:").filter(|path| !path.is_empty())?;
            Some(options.link(path))
        },
    },
];

/// Position of a simulated function: alone, or on a card.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OnCard {
    /// A single function, which is no part of a named card.
    Alone,
    /// A card's physical function.
    Physical,
    /// A card's virtual function; the index counts from 0.
    Virtual(usize),
}

/// Splits a simulated function's name into its card and its position on the card (`a/pf`, `a/vf0`). Any other name is
/// a single function.
pub(crate) fn on_card(name: &str) -> (&str, OnCard) {
    let place = |text: &str| match text {
        "pf" => Some(OnCard::Physical),
        _ => text
            .strip_prefix("vf")
            .filter(|number| number.bytes().all(|digit| digit.is_ascii_digit()))
            .and_then(|number| number.parse().ok())
            .map(OnCard::Virtual),
    };
    match name.rsplit_once('/') {
        Some((card, rest)) if !card.is_empty() => match place(rest) {
            Some(place) => (card, place),
            None => (name, OnCard::Alone),
        },
        Some(_) | None => (name, OnCard::Alone),
    }
}

/// Splits a name into its device and its options. Returns the device, and a copy of `options` with the options of the
/// name added. [`ia_open`](crate::ia_open) calls this itself. A program that reads names from users can call it
/// earlier, to check them. This function does not check that the device exists.
///
/// ```
/// use udapl::{OpenOptions, name};
///
/// let (device, options) = name::parse("sim:a,address=192.0.2.1", &OpenOptions::default())?;
/// assert_eq!((device, options.hca.addresses.len()), ("sim:a", 1));
/// assert!(name::parse("sim:a,address=here", &options).is_err());
/// # Ok::<(), udapl::error::OpenError>(())
/// ```
///
/// # Errors
/// [`OpenError::BadOption`].
pub fn parse<'a>(
    name: &'a str,
    options: &OpenOptions,
) -> Result<(&'a str, OpenOptions), OpenError> {
    let mut options = options.clone();
    let may_hold_commas = name.starts_with("vfio-user:");
    let Some(first) = name
        .match_indices(',')
        .map(|(at, _)| at)
        .find(|at| !may_hold_commas || begins_an_option(&name[at + 1..]))
    else {
        return Ok((name, options));
    };
    let (device, rest) = name.split_at(first);
    for option in rest.split(',').skip(1) {
        let bad = |why| OpenError::BadOption {
            name: name.to_owned(),
            option: option.to_owned(),
            why,
        };
        let (key, value) = option.split_once('=').unwrap_or((option, ""));
        let Some(known) = KEYS.iter().find(|known| known.key == key) else {
            return Err(bad(format!(
                "{key:?} is no option; there are {}",
                all_known()
            )));
        };
        options = (known.add)(options, value).ok_or_else(|| {
            bad(format!(
                "{option:?} is not of the form {key}={}",
                known.value
            ))
        })?;
    }
    Ok((device, options))
}

/// Returns whether the text begins with an option: small letters and `=`.
fn begins_an_option(text: &str) -> bool {
    text.split_once('=').is_some_and(|(key, _)| {
        !key.is_empty() && key.bytes().all(|letter| letter.is_ascii_lowercase())
    })
}

/// Lists all options for an error message.
fn all_known() -> String {
    let keys: Vec<String> = KEYS
        .iter()
        .map(|Key { key, value, .. }| format!("{key}={value}"))
        .collect();
    keys.join("; ")
}

/// Parses a decimal number within a range.
fn number<N: std::str::FromStr + PartialOrd>(
    text: &str,
    range: std::ops::RangeInclusive<N>,
) -> Option<N> {
    text.parse().ok().filter(|number| range.contains(number))
}

/// Parses an address with an optional prefix length.
fn address_of(text: &str) -> Option<Address> {
    let Some((address, prefix)) = text.split_once('/') else {
        return Some(text.parse::<IpAddr>().ok()?.into());
    };
    let address: Address = address.parse::<IpAddr>().ok()?.into();
    Some(Address {
        prefix: Some(number(prefix, 0..=address.longest_prefix())?),
        ..address
    })
}

/// Parses a unicast MAC address (IEEE 802.3 3.2.3: the first bit is 0). Zero is refused.
fn station_of(text: &str) -> Option<[u8; 6]> {
    mac_of(text).filter(|mac| mac[0] & 1 == 0 && *mac != [0; 6])
}

#[cfg(test)]
mod tests {
    use dat_mlx::Participation;

    use super::*;
    use crate::open::HandedIn;

    #[test]
    fn a_name_without_options_is_the_device() {
        let options = OpenOptions::default();
        for name in ["sim:a", "vfio-user:/run/a,b.sock", "0000:3b:00.2", ""] {
            let (device, parsed) = parse(name, &options).expect("no option");
            assert_eq!(device, name);
            assert!(parsed.hca.addresses.is_empty());
        }
    }

    #[test]
    fn a_function_of_a_card_is_named_behind_a_slash() {
        assert_eq!(on_card("card0/pf"), ("card0", OnCard::Physical));
        assert_eq!(on_card("card0/vf11"), ("card0", OnCard::Virtual(11)));
        assert_eq!(on_card("a/b/vf0"), ("a/b", OnCard::Virtual(0)));
        for alone in [
            "card0",
            "/pf",
            "card0/",
            "card0/vf",
            "card0/vf+1",
            "card0/vfx",
        ] {
            assert_eq!(on_card(alone), (alone, OnCard::Alone));
        }
    }

    #[test]
    fn addresses_and_neighbours_are_added() {
        let name = "sim:a,address=192.0.2.1,neighbour=192.0.2.2/02:00:5e:10:00:02,address=fd00::1";
        let (device, parsed) = parse(name, &OpenOptions::default()).expect("three options");
        assert_eq!(device, "sim:a");
        let addresses: Vec<String> = parsed
            .hca
            .addresses
            .iter()
            .map(ToString::to_string)
            .collect();
        assert_eq!(addresses, ["192.0.2.1", "fd00::1"]);
        let neighbour = (
            "192.0.2.2".parse().expect("an address"),
            [2, 0, 0x5e, 0x10, 0, 2],
        );
        assert_eq!(parsed.hca.neighbours, [neighbour]);
        let (_, parsed) =
            parse("sim:a,endpoints=60000", &OpenOptions::default()).expect("an option");
        assert_eq!(parsed.hca.log_max_qp, Some(16));
        let (_, parsed) = parse("sim:a,vectors=4", &OpenOptions::default()).expect("an option");
        assert_eq!(parsed.hca.completion_vectors, 4);
        let (device, parsed) = parse("3b:00.2,memory=pool", &OpenOptions::default()).expect("one");
        assert_eq!(
            (device, parsed.memory.as_deref()),
            ("3b:00.2", Some("pool"))
        );
        let (_, parsed) = parse("3b:00.2,group=card,container=vfio", &OpenOptions::default())
            .expect("two options");
        assert_eq!(
            parsed.handed_in,
            Some(HandedIn {
                group: "card".to_owned(),
                container: Some("vfio".to_owned()),
            })
        );
        let (_, parsed) =
            parse("sim:a,mtu=1500,time=virtual", &OpenOptions::default()).expect("two options");
        assert_eq!(parsed.hca.port_mtu, Some(1500));
        assert!(parsed.simulated.virtual_time);
        let name = "sim:a,mac=02:00:00:00:00:07,profile=connectx-7,link=unix:/run/wire";
        let (device, parsed) = parse(name, &OpenOptions::default()).expect("three options");
        assert_eq!(parsed.simulated.profile, Some("connectx-7".to_owned()));
        assert_eq!(device, "sim:a");
        assert_eq!(parsed.simulated.mac, Some([2, 0, 0, 0, 0, 7]));
        assert_eq!(parsed.simulated.link, Some("/run/wire".into()));
    }

    #[test]
    fn what_is_said_of_an_address_stands_behind_it() {
        let name = "0000:3b:00.2,address=192.0.2.1/24,gateway=192.0.2.254,vlan=100,priority=3,address=2001:db8::1/64,address=10.0.0.1";
        let (device, parsed) = parse(name, &OpenOptions::default()).expect("options");
        assert_eq!(device, "0000:3b:00.2");
        let addresses: Vec<String> = parsed
            .hca
            .addresses
            .iter()
            .map(ToString::to_string)
            .collect();
        assert_eq!(
            addresses,
            [
                "192.0.2.1/24 over 192.0.2.254 in VLAN 100 with priority 3",
                "2001:db8::1/64",
                "10.0.0.1"
            ]
        );
        assert_eq!(parsed.network, Participation::IfPossible, "nothing said");
        let (_, parsed) = parse("sim:a,network=off", &OpenOptions::default()).expect("an option");
        assert_eq!(parsed.network, Participation::Off);
        let (_, parsed) = parse("sim:a,network=on", &OpenOptions::default()).expect("an option");
        assert_eq!(parsed.network, Participation::Required, "by name");
    }

    #[test]
    fn a_recorder_is_on_or_off_or_keeps_what_it_holds_in_a_folder() {
        for (name, on, folder) in [
            ("sim:a,recorder=on", true, None),
            ("sim:a,recorder=off", false, None),
            ("sim:a,recorder=/var/tmp/dat", true, Some("/var/tmp/dat")),
        ] {
            let (_, parsed) = parse(name, &OpenOptions::default()).expect(name);
            assert_eq!(parsed.ia.recorder, on, "{name}");
            assert_eq!(parsed.recorder_folder, folder.map(Into::into), "{name}");
        }
        let slip = parse("sim:a,recorder=yes", &OpenOptions::default());
        assert!(slip.is_err(), "no word, and no folder without a /");
    }

    #[test]
    fn an_option_that_is_not_known_is_an_error_that_lists_those_there_are() {
        let error = parse("sim:a,adress=192.0.2.1", &OpenOptions::default()).expect_err("a slip");
        let text = error.to_string();
        for known in [
            "sim:a,adress=192.0.2.1: \"adress\" is no option; there are ",
            "address=IP[/PREFIX]",
            "gateway=IP",
            "link=unix:PATH",
        ] {
            assert!(text.contains(known), "{text}");
        }
    }

    #[test]
    fn what_is_behind_a_comma_is_an_option_except_in_a_path() {
        for (name, option) in [
            ("sim:a,recorder", "recorder"),
            ("sim:a,b", "b"),
            ("0000:3b:00.2,", ""),
            ("0000:3b:00.2,Address=192.0.2.1", "Address=192.0.2.1"),
        ] {
            let error = parse(name, &OpenOptions::default()).expect_err(name);
            assert!(
                matches!(&error, OpenError::BadOption { option: bad, .. } if bad == option),
                "{error}"
            );
        }
    }

    #[test]
    fn an_option_with_a_wrong_value_is_told_what_it_takes_and_the_name_is_told_once() {
        let error = parse("sim:a,network=maybe", &OpenOptions::default()).expect_err("a slip");
        assert_eq!(
            error.to_string(),
            "sim:a,network=maybe: \"network=maybe\" is not of the form network=on|off (DAT_PROVIDER_NOT_FOUND)"
        );
    }

    #[test]
    fn an_option_that_is_none_is_named() {
        for (name, bad) in [
            ("sim:a,address=here", "address=here"),
            ("sim:a,address=192.0.2.1,peer=1", "peer=1"),
            ("sim:a,peer=1", "peer=1"),
            ("sim:a,address=192.0.2.1/33", "address=192.0.2.1/33"),
            ("sim:a,address=::/129", "address=::/129"),
            ("sim:a,address=192.0.2.1/", "address=192.0.2.1/"),
            ("sim:a,gateway=192.0.2.1", "gateway=192.0.2.1"),
            ("sim:a,vlan=100", "vlan=100"),
            ("sim:a,address=192.0.2.1,vlan=0", "vlan=0"),
            ("sim:a,address=192.0.2.1,vlan=4095", "vlan=4095"),
            ("sim:a,address=192.0.2.1,priority=3", "priority=3"),
            ("sim:a,address=192.0.2.1,vlan=1,priority=8", "priority=8"),
            ("sim:a,network=maybe", "network=maybe"),
            ("sim:a,neighbour=192.0.2.2", "neighbour=192.0.2.2"),
            (
                "sim:a,neighbour=192.0.2.2/02:00:5e:10:00",
                "neighbour=192.0.2.2/02:00:5e:10:00",
            ),
            ("sim:a,address=192.0.2.1,", ""),
            ("sim:a,link=/run/wire", "link=/run/wire"),
            ("sim:a,link=unix:", "link=unix:"),
            ("sim:a,mac=02", "mac=02"),
            ("sim:a,endpoints=", "endpoints="),
            ("sim:a,endpoints=0", "endpoints=0"),
            ("sim:a,endpoints=-1", "endpoints=-1"),
            ("sim:a,endpoints=16777216", "endpoints=16777216"),
            ("sim:a,vectors=0", "vectors=0"),
            ("sim:a,vectors=2048", "vectors=2048"),
            ("sim:a,vectors=-1", "vectors=-1"),
            ("sim:a,profile=", "profile="),
            ("sim:a,memory=", "memory="),
            ("3b:00.2,group=", "group="),
            ("3b:00.2,container=vfio", "container=vfio"),
            ("3b:00.2,group=card,container=", "container="),
            ("sim:a,mtu=255", "mtu=255"),
            ("sim:a,mtu=9979", "mtu=9979"),
            ("sim:a,time=", "time="),
            ("sim:a,time=fast", "time=fast"),
        ] {
            let error = parse(name, &OpenOptions::default()).expect_err(name);
            assert!(
                matches!(&error, OpenError::BadOption { option, .. } if option == bad),
                "{error}"
            );
        }
    }
}
