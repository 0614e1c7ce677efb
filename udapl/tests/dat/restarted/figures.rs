//! Reports of the processes: lines of their standard output, and the table that is made of them.

use core::time::Duration;
use std::fmt::Write as _;

/// Begins each line of a process that belongs to it and not to the test harness, which may write in front of it.
const MARK: &str = "restarted: ";

/// A process has parked its instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parking {
    /// Time that it took.
    pub took: Duration,
    /// Length of the snapshot.
    pub bytes: usize,
    pub descriptors: usize,
    /// Number of Sends whose completion the process has not seen.
    pub unfinished: u64,
}

/// A process goes on with the instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Adoption {
    /// Time since the parking began.
    pub away: Duration,
    /// Time that the adoption took.
    pub took: Duration,
    pub descriptors: usize,
}

/// A line of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Said {
    /// The next process can be started.
    Listens,
    Parked(Parking),
    Adopted(Adoption),
}

impl Said {
    pub fn say(self) {
        match self {
            Self::Listens => println!("{MARK}listens"),
            Self::Parked(it) => {
                let took = it.took.as_micros();
                let (bytes, descriptors, unfinished) = (it.bytes, it.descriptors, it.unfinished);
                println!("{MARK}parked {took} {bytes} {descriptors} {unfinished}");
            }
            Self::Adopted(it) => {
                let (away, took) = (it.away.as_micros(), it.took.as_micros());
                println!("{MARK}adopted {away} {took} {}", it.descriptors);
            }
        }
    }

    pub fn parse(line: &str) -> Option<Self> {
        let (_, said) = line.split_once(MARK)?;
        let mut words = said.split_whitespace();
        let name = words.next()?;
        let mut next = || words.next()?.parse::<u64>().ok();
        let size = |number: u64| usize::try_from(number).ok();
        Some(match name {
            "listens" => Self::Listens,
            "parked" => Self::Parked(Parking {
                took: Duration::from_micros(next()?),
                bytes: size(next()?)?,
                descriptors: size(next()?)?,
                unfinished: next()?,
            }),
            "adopted" => Self::Adopted(Adoption {
                away: Duration::from_micros(next()?),
                took: Duration::from_micros(next()?),
                descriptors: size(next()?)?,
            }),
            _ => return None,
        })
    }
}

/// Checks that each handover was adopted with all of its descriptors, and returns the lines of a table.
pub fn table(said: &[Said], handovers: usize) -> String {
    let mut parked = Vec::new();
    let mut adopted = Vec::new();
    for one in said {
        match one {
            Said::Listens => {}
            Said::Parked(it) => parked.push(it),
            Said::Adopted(it) => adopted.push(it),
        }
    }
    let found = (parked.len(), adopted.len());
    assert_eq!(found, (handovers, handovers), "{said:?}");
    let both = || parked.iter().zip(&adopted);
    let is_whole = |(parked, adopted): (&&Parking, &&Adoption)| {
        parked.descriptors == adopted.descriptors && parked.took + adopted.took <= adopted.away
    };
    assert!(both().all(is_whole), "{said:?}");
    let had_traffic = parked.iter().any(|it| it.unfinished != 0);
    assert!(had_traffic, "no handover had work under way: {said:?}");
    let ms = |time: Duration| time.as_secs_f64() * 1e3;
    let parked = |value: fn(&Parking) -> f64| parked.iter().map(|it| value(it)).collect();
    let rows: [(&str, Vec<f64>); 7] = [
        (
            "without the adapter, ms",
            adopted.iter().map(|it| ms(it.away)).collect(),
        ),
        ("  parking, ms", parked(|it| it.took.as_secs_f64() * 1e3)),
        (
            "  to the next process, ms",
            both()
                .map(|(parked, adopted)| ms(adopted.away - parked.took - adopted.took))
                .collect(),
        ),
        (
            "  adopting, ms",
            adopted.iter().map(|it| ms(it.took)).collect(),
        ),
        ("snapshot, KiB", parked(|it| it.bytes as f64 / 1024.0)),
        ("descriptors", parked(|it| it.descriptors as f64)),
        ("answers not completed", parked(|it| it.unfinished as f64)),
    ];
    let mut text = format!("{:28}{:>10}{:>10}{:>10}\n", "", "p50", "p99", "max");
    for (name, values) in rows {
        let [half, most, max] = percentiles(values);
        writeln!(text, "{name:28}{half:>10.1}{most:>10.1}{max:>10.1}").expect("a text");
    }
    text
}

/// Returns the values at the ranks of 50, 99 and 100 percent.
fn percentiles(mut values: Vec<f64>) -> [f64; 3] {
    values.sort_by(f64::total_cmp);
    let at = |percent: usize| values[(values.len() * percent).div_ceil(100) - 1];
    [at(50), at(99), at(100)]
}

#[test]
fn percentiles_are_the_values_at_their_ranks() {
    let values = (1..=200).rev().map(f64::from).collect();
    assert_eq!(percentiles(values), [100.0, 198.0, 200.0]);
    assert_eq!(percentiles(vec![7.0]), [7.0; 3]);
}

#[test]
fn a_line_of_a_process_is_read_behind_what_the_harness_wrote() {
    let line = "test restarted::a_process_of_the_chain ... restarted: parked 1500 4096 17 3";
    let parked = Parking {
        took: Duration::from_micros(1500),
        bytes: 4096,
        descriptors: 17,
        unfinished: 3,
    };
    assert_eq!(Said::parse(line), Some(Said::Parked(parked)));
    assert_eq!(Said::parse("running 1 test"), None);
}
