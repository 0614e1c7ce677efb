//! Options for the served functions and their link: `--profile` and `--faults`.
//!
//! Both options are comma-separated lists and may be given several times. A later word overrides an earlier one. Faults
//! of the link are rates and times that apply from the start. A fault of a function happens once, at a time after the
//! start.

use std::str::FromStr;
use std::time::Duration;

use hw_sim::{Fault, Faults, LinkFaults, PortType, Profile};
use hw_sim_host::profile::{BadProfile, profile};

/// Scale of rates, which are in parts per million frames.
const MILLION: u32 = 1_000_000;

/// `--faults`: one list of faults.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FaultOptions {
    words: Vec<FaultWord>,
}

#[derive(Clone, Debug, PartialEq)]
enum FaultWord {
    /// Fault rates that are drawn from the seed.
    Swarm,
    Loss(u32),
    Duplicate(u32),
    Reorder(u32),
    Corrupt(u32),
    Delay(u64),
    Jitter(u64),
    ReorderTime(u64),
    Function(FunctionFault),
}

/// A planned fault of a function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FunctionFault {
    /// Number of the function among the served functions, from 0: first those of cards, then those of `--socket`.
    pub function: usize,
    /// Time of the fault, from the start.
    pub after: Duration,
    /// Fault to inject.
    pub fault: Fault,
}

impl FromStr for FaultOptions {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let words = text
            .split(',')
            .map(|word| fault_word(word.trim()))
            .collect::<Result<_, _>>()?;
        Ok(Self { words })
    }
}

impl FaultOptions {
    /// Returns the faults of the link that all lists specify together. They are the same in both directions, unless
    /// they are drawn from the seed.
    pub fn link(lists: &[Self], seed: u64) -> LinkFaults {
        let mut faults = LinkFaults::NONE;
        for word in lists.iter().flat_map(|list| &list.words) {
            if *word == FaultWord::Swarm {
                faults = LinkFaults::swarm(seed);
            }
            for way in [&mut faults.a_to_b, &mut faults.b_to_a] {
                word.apply(way);
            }
        }
        faults
    }

    /// Returns the planned faults of functions in all lists, in order of time.
    pub fn functions(lists: &[Self]) -> Vec<FunctionFault> {
        let mut planned: Vec<FunctionFault> = lists
            .iter()
            .flat_map(|list| &list.words)
            .filter_map(|word| match word {
                FaultWord::Function(planned) => Some(planned.clone()),
                FaultWord::Swarm
                | FaultWord::Loss(_)
                | FaultWord::Duplicate(_)
                | FaultWord::Reorder(_)
                | FaultWord::Corrupt(_)
                | FaultWord::Delay(_)
                | FaultWord::Jitter(_)
                | FaultWord::ReorderTime(_) => None,
            })
            .collect();
        planned.sort_by_key(|planned| planned.after);
        planned
    }
}

impl FaultWord {
    fn apply(&self, way: &mut Faults) {
        match *self {
            Self::Loss(ppm) => way.loss_ppm = ppm,
            Self::Duplicate(ppm) => way.duplicate_ppm = ppm,
            Self::Reorder(ppm) => way.reorder_ppm = ppm,
            Self::Corrupt(ppm) => way.corrupt_ppm = ppm,
            Self::Delay(ns) => way.delay_ns = ns,
            Self::Jitter(ns) => way.jitter_ns = ns,
            Self::ReorderTime(ns) => way.reorder_ns = ns,
            Self::Swarm | Self::Function(_) => {}
        }
        // Frames can be reordered only if they are held back for some time.
        if way.reorder_ppm > 0 && way.reorder_ns == 0 {
            way.reorder_ns = 50_000;
        }
    }
}

fn fault_word(word: &str) -> Result<FaultWord, String> {
    if word == "swarm" {
        return Ok(FaultWord::Swarm);
    }
    if let Some((what, when)) = word.split_once('@') {
        return function_fault(what, when).map(FaultWord::Function);
    }
    let known = "loss, duplicate, reorder, corrupt (1%, 300ppm), delay, jitter, reorder-time (5us), swarm, or what happens to a function at a time: removal@5s, ones@5s, freeze@5s, health:0x01@5s, bus-error@5s, wanted-back@5s, link-down@5s, link-up@6s, each with the number of its socket in front (1:removal@5s)";
    let (name, value) = word
        .split_once('=')
        .ok_or_else(|| format!("{word:?} is no fault; there are {known}"))?;
    match name {
        "loss" => rate(value).map(FaultWord::Loss),
        "duplicate" => rate(value).map(FaultWord::Duplicate),
        "reorder" => rate(value).map(FaultWord::Reorder),
        "corrupt" => rate(value).map(FaultWord::Corrupt),
        "delay" => nanos(value).map(FaultWord::Delay),
        "jitter" => nanos(value).map(FaultWord::Jitter),
        "reorder-time" => nanos(value).map(FaultWord::ReorderTime),
        _ => Err(format!("{name:?} is no fault; there are {known}")),
    }
}

fn function_fault(what: &str, when: &str) -> Result<FunctionFault, String> {
    let after = duration(when)?;
    let (function, kind) = match what.split_once(':') {
        Some((number, kind)) if !number.is_empty() && number != "health" => {
            let number = number
                .parse()
                .map_err(|_| format!("{number:?} is not the number of a socket"))?;
            (number, kind)
        }
        Some(_) | None => (0, what),
    };
    let fault = match kind {
        "removal" => Fault::SurpriseRemoval,
        "ones" => Fault::BarAllOnes,
        "freeze" => Fault::HealthCounterStops,
        "bus-error" => Fault::BusError,
        "wanted-back" => Fault::WantedBack,
        "link-down" => Fault::LinkDown,
        "link-up" => Fault::LinkUp,
        _ => match kind.strip_prefix("health:").and_then(byte) {
            Some(syndrome) => Fault::HealthSyndrome(syndrome),
            None => {
                return Err(format!(
                    "{kind:?} happens to no function: removal, ones, freeze, health:0x01, bus-error, wanted-back, link-down and link-up do"
                ));
            }
        },
    };
    Ok(FunctionFault {
        function,
        after,
        fault,
    })
}

fn byte(text: &str) -> Option<u8> {
    // The parsers of the standard library accept a sign.
    if text.contains('+') {
        return None;
    }
    match text.strip_prefix("0x") {
        Some(hex) => u8::from_str_radix(hex, 16).ok(),
        None => text.parse().ok(),
    }
}

/// Parses a rate such as `1%`, `0.05%` or `300ppm`. Returns it in parts per million.
fn rate(text: &str) -> Result<u32, String> {
    let ppm = match (text.strip_suffix('%'), text.strip_suffix("ppm")) {
        (Some(percent), _) => percent.parse().map(|percent: f64| percent * 10_000.0),
        (None, Some(ppm)) => ppm.parse(),
        (None, None) => return Err(format!("{text:?} is no rate like 1% or 300ppm")),
    };
    match ppm {
        // CAST: between 0 and a million.
        #[expect(clippy::cast_possible_truncation, reason = "the range is checked")]
        #[expect(clippy::cast_sign_loss, reason = "the range is checked")]
        Ok(ppm) if (0.0..=f64::from(MILLION)).contains(&ppm) => Ok(ppm.round() as u32),
        Ok(_) | Err(_) => Err(format!("{text:?} is no rate from 0% to 100%")),
    }
}

fn nanos(text: &str) -> Result<u64, String> {
    let nanos = duration(text)?.as_nanos();
    u64::try_from(nanos).map_err(|_| format!("{text:?} is longer than 584 years"))
}

/// Parses a duration: a number with a unit (ns, us, ms or s).
pub fn duration(text: &str) -> Result<Duration, String> {
    let wrong = || format!("{text:?} is no time like 5us, 20ms or 1.5s");
    let at = text
        .find(|letter: char| letter.is_ascii_alphabetic())
        .ok_or_else(wrong)?;
    let (number, unit) = text.split_at(at);
    let seconds = match unit {
        "ns" => 1e-9,
        "us" => 1e-6,
        "ms" => 1e-3,
        "s" => 1.0,
        _ => return Err(wrong()),
    };
    let number: f64 = number.parse().map_err(|_| wrong())?;
    Duration::try_from_secs_f64(number * seconds).map_err(|_| wrong())
}

/// `--profile`: one list that describes the simulated device.
#[derive(Clone, Debug, Default)]
pub struct ProfileOptions {
    words: Vec<ProfileWord>,
}

#[derive(Clone, Debug)]
enum ProfileWord {
    /// Device of a generation given by name, or described by a file.
    Device(Box<Profile>),
    InfiniBand,
    /// True if an external program manages the subnet.
    Managed(bool),
    Roce,
    DevX(bool),
    Vectors(u16),
    Mtu(u16),
    BootTime(Duration),
    CommandTime(Duration),
    CommandJitter(Duration),
}

impl FromStr for ProfileOptions {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let words = text
            .split(',')
            .map(|word| profile_word(word.trim()))
            .collect::<Result<_, _>>()?;
        Ok(Self { words })
    }
}

impl ProfileOptions {
    /// Returns the device that all lists describe together, with this name and MAC address.
    pub fn profile(lists: &[Self], name: &str, mac: [u8; 6]) -> Profile {
        let mut profile = Profile::named(name, mac);
        let (mut stock, mut devx) = (false, None);
        for word in lists.iter().flat_map(|list| &list.words) {
            match *word {
                ProfileWord::Device(ref device) => {
                    profile = Profile::clone(device).called(name, mac);
                }
                ProfileWord::InfiniBand => profile = profile.infiniband(),
                ProfileWord::Managed(_) => {}
                ProfileWord::Roce => (profile, stock) = (profile.ethernet(), true),
                ProfileWord::DevX(wanted) => devx = Some(wanted),
                ProfileWord::Vectors(vectors) => profile.msix_vectors = vectors,
                ProfileWord::Mtu(mtu) => profile.max_mtu = mtu,
                ProfileWord::BootTime(time) => profile.boot_time = time,
                ProfileWord::CommandTime(time) => profile.command_time = time,
                ProfileWord::CommandJitter(time) => profile.command_jitter = time,
            }
        }
        if devx.unwrap_or(stock && profile.may_have_devx()) {
            profile = profile.devx();
        }
        profile
    }

    /// Returns whether the device that all lists describe together has an InfiniBand port.
    pub fn is_infiniband(lists: &[Self]) -> bool {
        Self::profile(lists, "", [0; 6]).port_type == PortType::InfiniBand
    }

    /// Returns whether an external program manages the subnet of the ports. Always false for ports that are not
    /// InfiniBand.
    ///
    /// # Errors
    /// The lists name a manager for ports that are not InfiniBand.
    pub fn has_manager(lists: &[Self]) -> Result<bool, String> {
        let words = lists.iter().flat_map(|list| &list.words);
        let managed = |word: &ProfileWord| {
            if let ProfileWord::Managed(outside) = *word {
                Some(outside)
            } else {
                None
            }
        };
        let said = words.rev().find_map(managed);
        match said {
            Some(_) if !Self::is_infiniband(lists) => {
                Err("--profile: sm= is of InfiniBand ports, which ib gives".to_owned())
            }
            said => Ok(said.unwrap_or(false)),
        }
    }
}

fn profile_word(word: &str) -> Result<ProfileWord, String> {
    let known = || {
        let generations: Vec<&str> = Profile::generations().collect();
        format!(
            "{}, the path of a file, ib, sm=outside, roce, devx, nodevx, vectors=1..2048, mtu=1500..9978, boot=20ms, command=5us, command-jitter=5us; \
             without any it is connectx-5 with fewer firmware pages",
            generations.join(", ")
        )
    };
    let Some((name, value)) = word.split_once('=') else {
        return match word {
            "ib" | "infiniband" => Ok(ProfileWord::InfiniBand),
            "roce" | "ethernet" => Ok(ProfileWord::Roce),
            "devx" => Ok(ProfileWord::DevX(true)),
            "nodevx" => Ok(ProfileWord::DevX(false)),
            _ => match profile(word) {
                Ok(device) => Ok(ProfileWord::Device(Box::new(device))),
                Err(BadProfile::Unknown) => {
                    Err(format!("{word:?} is no profile; there are {}", known()))
                }
                Err(error) => Err(error.to_string()),
            },
        };
    };
    let number = |least: u16, most: u16| {
        value
            .parse()
            .ok()
            .filter(|number| (least..=most).contains(number))
            .ok_or_else(|| format!("{name} is {least} to {most}, not {value:?}"))
    };
    match name {
        "vectors" => number(1, 2048).map(ProfileWord::Vectors),
        "mtu" => number(1500, 9978).map(ProfileWord::Mtu),
        "sm" => match value {
            "outside" => Ok(ProfileWord::Managed(true)),
            "preset" => Ok(ProfileWord::Managed(false)),
            _ => Err(format!("sm is preset or outside, not {value:?}")),
        },
        "boot" => duration(value).map(ProfileWord::BootTime),
        "command" => duration(value).map(ProfileWord::CommandTime),
        "command-jitter" => duration(value).map(ProfileWord::CommandJitter),
        _ => Err(format!(
            "{name:?} is nothing of a profile; there are {}",
            known()
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_subnet_that_a_program_manages_is_one_of_infiniband_ports() {
        let lists = |text: &str| [text.parse::<ProfileOptions>().expect("a profile")];
        assert_eq!(
            ProfileOptions::has_manager(&lists("ib,sm=outside")),
            Ok(true)
        );
        for preset in ["ib", "ib,sm=outside,sm=preset", "roce"] {
            assert_eq!(ProfileOptions::has_manager(&lists(preset)), Ok(false));
        }
        let error = ProfileOptions::has_manager(&lists("roce,sm=outside")).expect_err("Ethernet");
        assert!(error.contains("InfiniBand"), "{error}");
        let error = "sm=inside".parse::<ProfileOptions>().expect_err("nobody's");
        assert!(error.contains("preset or outside"), "{error}");
    }

    #[test]
    fn a_byte_is_decimal_or_has_hex_digits_without_a_sign() {
        let read = ["5", "0x5f", "+5", "0x+5", "256", "0x"].map(byte);
        assert_eq!(read, [Some(5), Some(0x5f), None, None, None, None]);
    }

    #[test]
    fn rates_and_times_of_the_link_hold_both_ways_and_later_words_win() {
        let lists: Vec<FaultOptions> = ["loss=1%,corrupt=300ppm,delay=5us", "loss=0.05%"]
            .iter()
            .map(|text| text.parse().expect("faults"))
            .collect();
        let expected = Faults {
            loss_ppm: 500,
            corrupt_ppm: 300,
            delay_ns: 5_000,
            ..Faults::NONE
        };
        assert_eq!(FaultOptions::link(&lists, 1), LinkFaults::both(expected));
        assert_eq!(FaultOptions::functions(&lists), []);
    }

    #[test]
    fn a_swarm_is_the_seeds_and_what_follows_it_changes_it() {
        let lists = ["swarm,loss=0%".parse().expect("faults")];
        let mut expected = LinkFaults::swarm(7);
        expected.a_to_b.loss_ppm = 0;
        expected.b_to_a.loss_ppm = 0;
        assert_eq!(FaultOptions::link(&lists, 7), expected);
    }

    #[test]
    fn frames_that_are_to_be_reordered_are_held_back_for_some_time() {
        let lists = ["reorder=2%".parse().expect("faults")];
        assert_eq!(FaultOptions::link(&lists, 1).a_to_b.reorder_ns, 50_000);
        let lists = ["reorder=2%,reorder-time=1ms".parse().expect("faults")];
        assert_eq!(FaultOptions::link(&lists, 1).b_to_a.reorder_ns, 1_000_000);
    }

    #[test]
    fn faults_of_functions_come_in_order_of_time() {
        let lists = [
            "1:removal@5s,health:0x11@20ms,0:health:3@1s,link-down@1500us"
                .parse()
                .expect("faults"),
        ];
        let planned: Vec<(usize, u128, Fault)> = FaultOptions::functions(&lists)
            .into_iter()
            .map(|planned| (planned.function, planned.after.as_micros(), planned.fault))
            .collect();
        assert_eq!(
            planned,
            [
                (0, 1_500, Fault::LinkDown),
                (0, 20_000, Fault::HealthSyndrome(0x11)),
                (0, 1_000_000, Fault::HealthSyndrome(3)),
                (1, 5_000_000, Fault::SurpriseRemoval),
            ]
        );
    }

    #[test]
    fn words_that_mean_nothing_are_refused_by_name() {
        for (text, part) in [
            ("los=1%", "\"los\" is no fault"),
            ("loss", "\"loss\" is no fault"),
            ("loss=1", "no rate like"),
            ("loss=101%", "from 0% to 100%"),
            ("loss=-1%", "from 0% to 100%"),
            ("delay=5", "no time like"),
            ("delay=-5us", "no time like"),
            ("explode@5s", "\"explode\" happens to no function"),
            ("x:removal@5s", "not the number of a socket"),
            ("health:0x100@1s", "happens to no function"),
        ] {
            let error = text.parse::<FaultOptions>().expect_err(text);
            assert!(error.contains(part), "{text}: {error}");
        }
        for (text, part) in [
            ("connectx-99", "is no profile; there are connectx-4,"),
            ("/no/such/file", "/no/such/file: No such file"),
            ("vectors=0", "vectors is 1 to 2048"),
            ("mtu=100000", "mtu is 1500 to 9978"),
            ("colour=red", "is nothing of a profile"),
            ("boot=soon", "no time like"),
        ] {
            let error = text.parse::<ProfileOptions>().expect_err(text);
            assert!(error.contains(part), "{text}: {error}");
        }
    }

    #[test]
    fn a_profile_is_the_default_device_with_what_was_said_changed() {
        let lists = ["vectors=8,mtu=1500".parse().expect("a profile")];
        let profile = ProfileOptions::profile(&lists, "sim:x", [2, 0, 0, 0, 0, 1]);
        assert_eq!(
            (profile.msix_vectors, profile.max_mtu, profile.name.as_str()),
            (8, 1500, "sim:x")
        );
        let lists = ["connectx-7-vf,vectors=4".parse().expect("a profile")];
        let profile = ProfileOptions::profile(&lists, "sim:x", [2, 0, 0, 0, 0, 1]);
        assert_eq!(
            (profile.device_id, profile.msix_vectors, profile.mac),
            (0x101e, 4, [2, 0, 0, 0, 0, 1])
        );
        let lists = ["ib".parse().expect("a profile")];
        let profile = ProfileOptions::profile(&lists, "sim:x", [2, 0, 0, 0, 0, 1]);
        assert_eq!(profile.port_type, hw_sim::PortType::InfiniBand);
        let lists = ["roce,vectors=4".parse().expect("a profile")];
        let profile = ProfileOptions::profile(&lists, "sim:x", [2, 0, 0, 0, 0, 1]);
        assert_eq!(profile.port_type, hw_sim::PortType::Ethernet);
        assert!(profile.general.current.eth_net_offloads());
    }

    #[test]
    fn devx_comes_with_roce_unless_the_card_is_older_or_the_list_says_no() {
        for (text, expected) in [
            ("roce", true),
            ("nodevx,roce", false),
            ("vectors=4", false),
            ("devx", true),
            ("connectx-4-lx-14.32,roce", false),
            ("connectx-6-dx,roce", true),
            ("ib", false),
        ] {
            let lists = [text.parse().expect("a profile")];
            let profile = ProfileOptions::profile(&lists, "sim:x", [2, 0, 0, 0, 0, 1]);
            let contexts = profile.general.current.log_max_uctx();
            assert_eq!(contexts > 0, expected, "{text}");
        }
    }
}
