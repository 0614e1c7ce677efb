//! What adapters are called: a device, and behind it what else there is to say of it, as in
//! `sim:a,address=192.0.2.1,neighbour=192.0.2.2/02:00:5e:10:00:02`.
//!
//! | device | is |
//! |---|---|
//! | `sim:A` | function A of the process's own simulated fabric; made when it is first opened. The first two, or two cards, are linked |
//! | `sim:A/pf`, `sim:A/vf0` … `sim:A/vf7` | the physical function of card A of that fabric, or one of its virtual functions |
//! | `vfio-user:/run/nic.sock` | the function that another process serves at that socket, such as `datctl sim serve` |
//! | `0000:3b:00.2`, `3b:00.2` | the PCI function at that address, bound to vfio-pci |
//!
//! A program that opens adapters by name alone, as all of C's do, has no [`OpenOptions`] to fill. Each option begins with a
//! comma:
//!
//! | option | adds |
//! |---|---|
//! | `,address=IP` | an address of ours |
//! | `,neighbour=IP/MAC` | a peer whose address does not contain its MAC |
//! | `,endpoints=N` | room for so many endpoints, of all instances together, if the device can have them; otherwise it has what it has |
//! | `,vectors=N` | so many interrupt vectors for completions, if there are as many; one for each instance is best where they sleep |
//! | `,memory=NAME` | memory in common with the other adapters of this process that have the same name here: pinned once for all, and what one has registered another can register too ([`OpenOptions::memory`]) |
//! | `,mac=MAC` | the MAC of a simulated function; of a virtual one, what its administrator gives it |
//! | `,profile=NAME` | the kind of device a simulated function is: a generation such as `connectx-7-vf`, or the path of a file |
//! | `,link=unix:PATH` | the wire of a simulated function: to that of another process that names the same path |

use crate::open::{OpenError, OpenOptions};

const ADDRESS: &str = ",address=";
const NEIGHBOUR: &str = ",neighbour=";
const ENDPOINTS: &str = ",endpoints=";
const VECTORS: &str = ",vectors=";
const MEMORY: &str = ",memory=";
const MAC: &str = ",mac=";
const LINK: &str = ",link=";
const PROFILE: &str = ",profile=";

/// What a name after `sim:` says of a function's place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OnCard {
    /// A function by itself.
    Alone,
    /// A card's physical function.
    Physical,
    /// A virtual one, from 0.
    Virtual(usize),
}

/// The card in a simulated function's name, and the function's place on it: `a/pf`, `a/vf0`. Anything else is a function
/// by itself, whatever its name is made of.
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

/// The device in a name, and the options with what the name adds. [`ia_open`](crate::ia_open) asks this itself; a program
/// that reads names from people asks it before there is anything to open. Whether there is such a device it does not say.
///
/// ```
/// use udapl::{OpenOptions, name};
///
/// let (device, options) = name::parse("sim:a,address=192.0.2.1", &OpenOptions::default())?;
/// assert_eq!((device, options.hca.gids.len()), ("sim:a", 1));
/// assert!(name::parse("sim:a,address=here", &options).is_err());
/// # Ok::<(), udapl::OpenError>(())
/// ```
///
/// # Errors
/// [`OpenError::BadOption`].
pub fn parse<'a>(
    name: &'a str,
    options: &OpenOptions,
) -> Result<(&'a str, OpenOptions), OpenError> {
    let mut options = options.clone();
    let first = [
        ADDRESS, NEIGHBOUR, ENDPOINTS, VECTORS, MEMORY, MAC, LINK, PROFILE,
    ]
    .into_iter()
    .filter_map(|option| name.find(option))
    .min();
    let Some(first) = first else {
        return Ok((name, options));
    };
    let (device, rest) = name.split_at(first);
    for option in rest.split(',').skip(1) {
        let added = match option.split_once('=') {
            Some(("address", address)) => address
                .parse()
                .ok()
                .map(|address| options.clone().address(address)),
            Some(("neighbour", neighbour)) => neighbour.split_once('/').and_then(|(ip, mac)| {
                Some(options.clone().neighbour(ip.parse().ok()?, mac_of(mac)?))
            }),
            Some(("endpoints", number)) => number
                .parse()
                .ok()
                .and_then(|number| options.clone().endpoints(number)),
            Some(("vectors", number)) => number
                .parse()
                .ok()
                .and_then(|number| options.clone().vectors(number)),
            Some(("memory", name)) => (!name.is_empty()).then(|| options.clone().memory(name)),
            Some(("mac", mac)) => mac_of(mac).map(|mac| options.clone().mac(mac)),
            Some(("profile", profile)) => {
                (!profile.is_empty()).then(|| options.clone().profile(profile))
            }
            Some(("link", link)) => link
                .strip_prefix("unix:")
                .filter(|path| !path.is_empty())
                .map(|path| options.clone().link(path)),
            Some(_) | None => None,
        };
        options = added.ok_or_else(|| OpenError::BadOption {
            name: name.to_owned(),
            option: option.to_owned(),
        })?;
    }
    Ok((device, options))
}

/// A MAC address as text: six bytes in hex, colons between.
#[must_use]
pub fn mac_of(text: &str) -> Option<[u8; 6]> {
    let bytes: Option<Vec<u8>> = text
        .split(':')
        .map(|byte| (byte.len() == 2).then(|| u8::from_str_radix(byte, 16).ok())?)
        .collect();
    bytes?.try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_without_options_is_the_device() {
        let options = OpenOptions::default();
        for name in ["sim:a", "vfio-user:/run/a,b.sock", "0000:3b:00.2", ""] {
            let (device, parsed) = parse(name, &options).expect("no option");
            assert_eq!(device, name);
            assert!(parsed.hca.gids.is_empty());
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
        let addresses: Vec<String> = parsed.hca.gids.iter().map(ToString::to_string).collect();
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
        let name = "sim:a,mac=02:00:00:00:00:07,profile=connectx-7,link=unix:/run/wire";
        let (device, parsed) = parse(name, &OpenOptions::default()).expect("three options");
        assert_eq!(parsed.simulated.profile, Some("connectx-7".to_owned()));
        assert_eq!(device, "sim:a");
        assert_eq!(parsed.simulated.mac, Some([2, 0, 0, 0, 0, 7]));
        assert_eq!(parsed.simulated.link, Some("/run/wire".into()));
    }

    #[test]
    fn an_option_that_is_none_is_named() {
        for (name, bad) in [
            ("sim:a,address=here", "address=here"),
            ("sim:a,address=192.0.2.1,peer=1", "peer=1"),
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
        ] {
            let error = parse(name, &OpenOptions::default()).expect_err(name);
            assert!(
                matches!(&error, OpenError::BadOption { option, .. } if option == bad),
                "{error}"
            );
        }
    }
}
