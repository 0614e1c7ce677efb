//! Names of adapters: a name is parsed into a device and options, or the invalid option is reported.

use bolero::{TypeGenerator, check};
use udapl::OpenOptions;
use udapl::error::OpenError;
use udapl::name::parse;

use super::ExecutionCount;

/// A piece of a name.
#[derive(Clone, Debug, TypeGenerator)]
enum Piece {
    Bytes(Vec<u8>),
    Known(u8),
    Mac([u8; 6]),
    Ip(u32),
    Comma,
}

const KNOWN: [&str; 10] = [
    "sim:a",
    ",address=",
    ",neighbour=",
    ",mac=",
    ",link=unix:/",
    ",profile=connectx-7",
    "sim:card/vf",
    "vfio-user:/",
    "0000:3b:00.2",
    "=",
];

fn name(pieces: &[Piece]) -> String {
    let text = |piece: &Piece| match piece {
        Piece::Bytes(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        Piece::Known(which) => KNOWN[usize::from(*which) % KNOWN.len()].to_owned(),
        Piece::Mac([a, b, c, d, e, f]) => {
            format!("{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{f:02x}")
        }
        Piece::Ip(bits) => std::net::Ipv4Addr::from_bits(*bits).to_string(),
        Piece::Comma => ",".to_owned(),
    };
    pieces.iter().map(text).collect()
}

#[test]
fn any_name_is_a_device_with_options_or_names_the_one_that_is_none() {
    let effort = ExecutionCount::new("adapter names");
    let none = OpenOptions::default();
    check!()
        .with_type::<Vec<Piece>>()
        .with_iterations(ExecutionCount::iterations(50_000))
        .for_each(|pieces| {
            effort.one();
            let name = name(pieces);
            match parse(&name, &none) {
                Ok((device, options)) => {
                    assert!(name.starts_with(device));
                    let options_of_name = name[device.len()..].matches('=').count();
                    let found = options.hca.addresses.len() + options.hca.neighbours.len();
                    assert!(found <= options_of_name, "{name}");
                    // The parsed device name contains no further option.
                    let (again, _) = parse(device, &none).expect("no option");
                    assert_eq!(again, device);
                }
                Err(OpenError::BadOption {
                    name: of,
                    option,
                    why,
                }) => {
                    assert_eq!(of, name);
                    assert!(!why.is_empty(), "{option:?} in {name:?}");
                    assert!(name.contains(&option), "{option:?} in {name:?}");
                }
                Err(other) => panic!("{name:?}: {other}"),
            }
        });
}
