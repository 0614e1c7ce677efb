//! Options of a card: its path, its number of virtual functions, and their administrative settings.
//!
//! A card at `/run/card` is served as `/run/card.pf`, `/run/card.vf0` and so on. Its port is one end of the link.

use std::error::Error;
use std::io::{BufRead, Write, stdin, stdout};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::thread;

use hw_sim::wire::Vlan;
use hw_sim::{CardConfig, CardRules, LinkState, Sim, SimCard, SimFunction, VfSettings};
use hw_sim_host::mac;
use hw_sim_host::profile::BadProfile;

use crate::address::address_number;
use crate::simulated::{ProfileOptions, duration};

/// `--vf`: the settings of `ip link set … vf N`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VfOptions {
    index: usize,
    settings: VfSettings,
}

impl FromStr for VfOptions {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong =
            || format!("{text:?} is no virtual function's number, a colon and its settings");
        let (index, words) = text.split_once(':').ok_or_else(wrong)?;
        let index = index.parse().map_err(|_| wrong())?;
        let mut settings = VfSettings::default();
        for word in words.split(',') {
            set(&mut settings, word.trim())?;
        }
        Ok(Self { index, settings })
    }
}

fn set(settings: &mut VfSettings, word: &str) -> Result<(), String> {
    let known = "mac=02:00:00:00:00:01, trust, spoofchk, vlan=100 or vlan=100/3 (priority), state=auto, enable or disable";
    let unknown = || format!("{word:?} is no setting of a virtual function; there are {known}");
    match word.split_once('=') {
        None if word == "trust" => settings.trust = true,
        None if word == "spoofchk" => settings.spoof_check = true,
        Some(("mac", mac)) => settings.mac = Some(station(mac).ok_or_else(unknown)?),
        Some(("vlan", vlan)) => settings.vlan = Some(vlan_of(vlan).ok_or_else(unknown)?),
        Some(("state", state)) => {
            settings.state = match state {
                "auto" => LinkState::Follow,
                "enable" => LinkState::Up,
                "disable" => LinkState::Down,
                _ => return Err(unknown()),
            }
        }
        _ => return Err(unknown()),
    }
    Ok(())
}

/// Parses a unicast MAC address; refuses a group address.
fn station(text: &str) -> Option<[u8; 6]> {
    driver::mac_of(text).filter(|mac| mac[0] & 1 == 0)
}

fn vlan_of(text: &str) -> Option<Vlan> {
    let (id, priority) = text.split_once('/').unwrap_or((text, "0"));
    let vlan = Vlan {
        id: id.parse().ok()?,
        priority: priority.parse().ok()?,
    };
    // IEEE 802.1Q reserves 4095 (FFFh), and 0 means that a frame has only a priority.
    ((1..=4094).contains(&vlan.id) && vlan.priority <= 7).then_some(vlan)
}

/// `--card-rules`: optional behaviour of the card.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RuleOptions(CardRules);

impl FromStr for RuleOptions {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut rules = CardRules::default();
        for word in text.split(',') {
            match word.split_once('=') {
                Some(("link-training", time)) => rules.link_training = duration(time)?,
                None if word == "flood" => rules.unknown_unicast_passes = true,
                None if word == "factory-address" => rules.factory_address_passes = true,
                _ => {
                    return Err(format!(
                        "{word:?} is no rule of a card; there are link-training=2s, flood and factory-address"
                    ));
                }
            }
        }
        Ok(Self(rules))
    }
}

/// Cards of a server, which have the same settings.
#[derive(clap::Args, Debug, Default)]
pub struct CardOptions {
    /// Base path of a card: its physical function is served at PATH.pf, its virtual ones at PATH.vf0 and so on; once
    /// or twice.
    #[arg(id = "card", long = "card", value_name = "PATH")]
    pub paths: Vec<PathBuf>,
    /// Number of virtual functions of a card.
    #[arg(long, value_name = "N", default_value_t = 0, requires = "card")]
    pub vfs: u16,
    /// Administrative settings of a virtual function: 0:mac=02:00:00:00:00:01,trust,spoofchk,vlan=100/3,state=auto.
    #[arg(long, value_name = "N:SETTINGS", requires = "card")]
    pub vf: Vec<VfOptions>,
    /// Do not serve the physical function of a card: the card manages its virtual ones itself.
    #[arg(long, requires = "card")]
    pub no_pf: bool,
    /// Read settings of virtual functions, as for --vf, from the lines of standard input. Each is answered by a line:
    /// ok, or the problem.
    #[arg(long, requires = "card")]
    pub control: bool,
    /// Optional behaviour of a card, a list like link-training=2s.
    #[arg(long, value_name = "RULES", requires = "card")]
    pub card_rules: Option<RuleOptions>,
}

/// A function and the path of its socket.
pub(crate) type Served = (Arc<SimFunction>, PathBuf);

impl CardOptions {
    /// Adds a card with this profile, and with the rules and settings of the options, to the simulation.
    pub(crate) fn add(
        &self,
        sim: &Sim,
        path: &Path,
        profile: &[ProfileOptions],
    ) -> Result<SimCard, Box<dyn Error>> {
        let name = format!("sim:{}", path.display());
        let profile = ProfileOptions::profile(profile, &name, mac(address_number(path)));
        if self.vfs > 0 && profile.virtual_functions.is_none() {
            let generation = &profile.generation;
            return Err(format!("{generation}: {}", BadProfile::NoVirtualFunctions).into());
        }
        let rules = self.card_rules.unwrap_or_default().0;
        let card = sim.try_add_card(&CardConfig::new(profile, self.vfs).with_rules(rules))?;
        for options in &self.vf {
            apply(&card, options)?;
        }
        Ok(card)
    }

    /// Returns the functions of a card that are to be served, each with the path of its socket.
    pub(crate) fn served(&self, card: &SimCard, path: &Path) -> Vec<Served> {
        let at = |ending: String| {
            let mut name = path.as_os_str().to_owned();
            name.push(ending);
            PathBuf::from(name)
        };
        let physical = (!self.no_pf).then(|| (card.physical(), at(".pf".to_owned())));
        let virtual_ones = (0..card.virtual_functions())
            .filter_map(|index| Some((card.virtual_function(index)?, at(format!(".vf{index}")))));
        physical.into_iter().chain(virtual_ones).collect()
    }
}

/// Applies settings to a virtual function of the card.
fn apply(card: &SimCard, VfOptions { index, settings }: &VfOptions) -> Result<(), String> {
    if card.set_vf(*index, *settings) {
        return Ok(());
    }
    Err(format!(
        "virtual function {index}: the card has {} virtual functions, counted from 0",
        card.virtual_functions()
    ))
}

/// Starts a thread for `--control`. Each line of standard input has the same form as `--vf`, and the thread answers it
/// with one line. At the end of the input the settings stay in force.
pub(crate) fn control(card: SimCard) {
    thread::spawn(move || {
        for line in stdin().lock().lines() {
            let answer = line
                .map_err(|error| error.to_string())
                .and_then(|line| line.parse())
                .and_then(|options| apply(&card, &options))
                .map_or_else(|wrong| wrong, |()| "ok".to_owned());
            let mut output = stdout().lock();
            if writeln!(output, "{answer}")
                .and_then(|()| output.flush())
                .is_err()
            {
                // The reader of the answers has closed the pipe.
                return;
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_of_a_virtual_function_are_read() {
        let text = "1:mac=02:00:00:00:00:07,trust,spoofchk,vlan=100/3,state=enable";
        let expected = VfOptions {
            index: 1,
            settings: VfSettings {
                mac: Some([2, 0, 0, 0, 0, 7]),
                trust: true,
                spoof_check: true,
                vlan: Some(Vlan {
                    id: 100,
                    priority: 3,
                }),
                state: LinkState::Up,
            },
        };
        assert_eq!(text.parse(), Ok(expected));
        for id in [1, 4094] {
            let read = format!("0:vlan={id}").parse::<VfOptions>();
            let vlan = read.expect("a VLAN").settings.vlan;
            assert_eq!(vlan, Some(Vlan { id, priority: 0 }));
        }
    }

    #[test]
    fn settings_that_mean_nothing_are_refused_by_name() {
        for (text, part) in [
            ("mac=02:00:00:00:00:07", "is no virtual function's number"),
            (
                "0:mac=01:00:5e:00:00:01",
                "is no setting of a virtual function",
            ),
            ("0:vlan=0", "is no setting of a virtual function"),
            ("0:vlan=4095", "is no setting of a virtual function"),
            ("0:vlan=5/8", "is no setting of a virtual function"),
            ("0:state=up", "is no setting of a virtual function"),
            ("0:", "is no setting of a virtual function"),
        ] {
            let error = text.parse::<VfOptions>().expect_err(text);
            assert!(error.contains(part), "{text}: {error}");
        }
        let error = "flod".parse::<RuleOptions>().expect_err("a habit");
        assert!(error.contains("is no rule of a card"), "{error}");
    }
}
