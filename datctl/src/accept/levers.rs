//! What this process can do from outside to a function, by its name.
//!
//! A function of this machine is reset and taken back through sysfs, and a virtual one's link through its physical one,
//! all by root. A function that another process serves can be killed off its client and opened again. To a simulated
//! function of this process the simulator does what the kernel would; but it ends with the process.

use std::fs;
use std::path::Path;

use driver::PciAddress;
use driver::pci::{Kernel, Machine, Role, Writer};
use hw_mlx::ids;
use udapl::{OpenOptions, SimAction};

use super::subject::{Lever, Levers, Subject};
use crate::adapter::is_simulated;
use crate::doctor::link_state;

/// A function by its name, with the levers there are.
pub(super) fn subject<'a>(name: &str, options: &OpenOptions, machine: &'a Machine) -> Subject<'a> {
    let (own, options) = (name.to_owned(), options.clone());
    let (same, with) = (own.clone(), options.clone());
    let (bare, without) = (without_network(name), options.clone().network(false));
    // Behind the device a name may hold options.
    let device = name.split(',').next().unwrap_or(name);
    let address: Option<PciAddress> = device.parse().ok();
    let levers = if let Some(address) = address {
        Levers {
            link: link(machine, address),
            reset: reset(machine, address),
            binding: binding(machine, address),
            outlives: Ok(()),
        }
    } else if device.starts_with("vfio-user:") {
        let why =
            "no function of this machine: whoever serves it could do that (sim serve --faults)";
        Levers {
            outlives: Ok(()),
            ..Levers::none(why)
        }
    } else {
        simulated(device)
    };
    Subject::new(
        name,
        move || udapl::ia_open(&own, &options),
        move || udapl::function_open(&same, &with),
        is_simulated(name),
        address,
        levers,
    )
    .opened_alone(move || udapl::ia_open(&bare, &without))
}

/// A name without what it says of the network.
fn without_network(name: &str) -> String {
    let parts = name.split(',').filter(|part| !part.starts_with("network="));
    parts.collect::<Vec<_>>().join(",")
}

/// What the simulator does to a function of this process.
fn simulated<'a>(device: &str) -> Levers<'a> {
    let pull = |action: SimAction| {
        let device = device.to_owned();
        move || match udapl::simulate(&device, action) {
            true => Ok(()),
            false => Err(format!("{device}: no function of this process's fabric")),
        }
    };
    let [up, down] = [true, false].map(|up| pull(SimAction::Link(up)));
    let (reset, want_back) = (pull(SimAction::Reset), pull(SimAction::WantBack));
    Levers {
        link: Ok(Box::new(move |is_up| if is_up { up() } else { down() })),
        reset: Ok(Box::new(move |()| reset())),
        // Nobody else drives it meanwhile.
        binding: Ok(Box::new(
            move |bound| if bound { Ok(()) } else { want_back() },
        )),
        outlives: Err("a simulated function of this process: it ends with it".to_owned()),
    }
}

/// The link of a virtual function, by its state on the physical function's side; given back as it was.
fn link(machine: &Machine, address: PciAddress) -> Result<Lever<'_, bool>, String> {
    let elsewhere = || {
        format!(
            "the physical function of {address} has no interface here; where it has: ip link set dev PF vf N state disable, then auto"
        )
    };
    let function = machine.function(address).ok_or_else(elsewhere)?;
    let physical = match function.role {
        // A machine that was given a virtual function sees no physical one beside it.
        Role::Physical { .. } if ids::is_virtual(function.device_id) => return Err(elsewhere()),
        Role::Physical { .. } => {
            return Err(format!(
                "{address} is no virtual function: its link is its cable, which nobody here can pull"
            ));
        }
        Role::Virtual { of } => of
            .and_then(|of| machine.function(of))
            .ok_or_else(elsewhere)?,
    };
    let number = machine
        .virtual_function_number(physical.address, address)
        .ok_or_else(elsewhere)?;
    let interface = machine
        .netdevs(&physical)
        .into_iter()
        .find(|netdev| netdev.represents().is_none())
        .ok_or_else(elsewhere)?
        .name;
    writable(&machine.device(physical.address).join("driver_override"))?;
    let before = link_state(machine, &interface, number).unwrap_or_else(|| "auto".to_owned());
    Ok(Box::new(move |up| {
        let number = number.to_string();
        let state = if up { before.as_str() } else { "disable" };
        let arguments = [
            "link", "set", "dev", &interface, "vf", &number, "state", state,
        ];
        machine
            .ask("ip", &arguments)
            .map(drop)
            .ok_or_else(|| format!("ip {}: failed", arguments.join(" ")))
    }))
}

fn reset(machine: &Machine, address: PciAddress) -> Result<Lever<'_, ()>, String> {
    let file = machine.device(address).join("reset");
    writable(&file)?;
    Ok(Box::new(move |()| write(&file, "1")))
}

/// The kernel takes a function from vfio-pci when its program has let go of it; the program is asked to.
fn binding(machine: &Machine, address: PciAddress) -> Result<Lever<'_, bool>, String> {
    let file = machine.device(address).join("driver/unbind");
    writable(&file)?;
    Ok(Box::new(move |bound| {
        if bound {
            return machine
                .bind(address, &Kernel)
                .map(drop)
                .map_err(|error| error.to_string());
        }
        write(&file, &address.to_string())
    }))
}

fn write(path: &Path, text: &str) -> Result<(), String> {
    Kernel
        .write(path, text)
        .map_err(|error| format!("{}: {error}", path.display()))
}

/// Whether a file of sysfs would take a write of ours.
fn writable(path: &Path) -> Result<(), String> {
    fs::OpenOptions::new()
        .write(true)
        .open(path)
        .map(drop)
        .map_err(|error| format!("takes root: {}: {error}", path.display()))
}
