//! `datctl sim profiles`: the profiles of a simulated function.

use std::error::Error;

use hw_mlx::ids;
use hw_sim::{PortType, Profile};
use serde::Serialize;

use crate::report::{Report, table};

/// The profiles of all generations that the simulator has.
#[derive(Serialize)]
pub(crate) struct Profiles {
    profiles: Vec<Known>,
}

#[derive(Serialize)]
struct Known {
    name: &'static str,
    product: &'static str,
    firmware: String,
    psid: String,
    /// Link type: `ethernet` or `infiniband`.
    link: &'static str,
    /// True if the profile describes virtual functions.
    virtual_functions: bool,
    /// True if RMRs can be bound (memory windows).
    memory_windows: bool,
}

pub(crate) fn run() -> Result<Profiles, Box<dyn Error>> {
    let known = |name| {
        let profile = Profile::generation(name)?;
        let (major, minor, patch) = profile.firmware;
        Ok::<_, Box<dyn Error>>(Known {
            name,
            product: ids::product(profile.device_id).unwrap_or("unknown"),
            firmware: format!("{major}.{minor}.{patch}"),
            link: match profile.port_type {
                PortType::Ethernet => "ethernet",
                PortType::InfiniBand => "infiniband",
            },
            virtual_functions: profile.virtual_functions.is_some(),
            memory_windows: profile.general.max.imaicl(),
            psid: profile.psid,
        })
    };
    let profiles = Profile::generations()
        .map(known)
        .collect::<Result<_, _>>()?;
    Ok(Profiles { profiles })
}

impl Report for Profiles {
    fn human(&self) -> String {
        let yes = |it| if it { "yes" } else { "-" }.to_owned();
        let rows = self.profiles.iter().map(|known| {
            [
                known.name.to_owned(),
                known.product.to_owned(),
                known.firmware.clone(),
                known.link.to_owned(),
                yes(known.virtual_functions),
                yes(known.memory_windows),
            ]
        });
        table(
            ["PROFILE", "PRODUCT", "FIRMWARE", "LINK", "VFS", "WINDOWS"],
            rows,
        )
    }
}
