//! Levers that this process has on a function, selected by the function's name. A lever is an action on a function
//! from outside the driver, such as a reset.
//!
//! A function of this machine is reset and unbound through sysfs. A virtual function's link is set through its physical
//! function. All of this needs root. If another process serves the function, this process can kill the function's
//! client and open the function again. On a simulated function of this process the simulator acts as the kernel would,
//! but the function does not outlive the process.

use std::fs;
use std::path::Path;

use driver::PciAddress;
use driver::pci::{Kernel, Machine, Role, Writer};
use hw_mlx::ids;
use udapl::OpenOptions;
use udapl::fabric::SimAction;

use super::subject::{Lever, Levers, Subject};
use crate::adapter::is_simulated;
use crate::doctor::link_state;

/// Returns the function with this name and its levers.
pub(super) fn subject<'a>(name: &str, options: &OpenOptions, machine: &'a Machine) -> Subject<'a> {
    let (own, options) = (name.to_owned(), options.clone());
    let (same, with) = (own.clone(), options.clone());
    let (bare, without) = (without_network(name), options.clone().network(false));
    // Options may follow the device in a name.
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
        move || udapl::adapter::function_open(&same, &with),
        is_simulated(name),
        address,
        levers,
    )
    .opened_alone(move || udapl::ia_open(&bare, &without))
}

/// Returns a name without its network options.
fn without_network(name: &str) -> String {
    let parts = name.split(',').filter(|part| !part.starts_with("network="));
    parts.collect::<Vec<_>>().join(",")
}

/// Returns the simulator's levers on a simulated function of this process.
fn simulated<'a>(device: &str) -> Levers<'a> {
    let pull = |action: SimAction| {
        let device = device.to_owned();
        move || match udapl::fabric::simulate(&device, action) {
            true => Ok(()),
            false => Err(format!("{device}: no function of this process's fabric")),
        }
    };
    let [up, down] = [true, false].map(|up| pull(SimAction::Link(up)));
    let (reset, want_back) = (pull(SimAction::Reset), pull(SimAction::WantBack));
    Levers {
        link: Ok(Box::new(move |is_up| if is_up { up() } else { down() })),
        reset: Ok(Box::new(move |()| reset())),
        // No other driver took the function, so there is nothing to do to bind it again.
        binding: Ok(Box::new(
            move |bound| if bound { Ok(()) } else { want_back() },
        )),
        outlives: Err("a simulated function of this process: it ends with it".to_owned()),
    }
}

/// Returns the lever on a virtual function's link, which sets the link state at the physical function. Setting the link
/// up restores the former state.
fn link(machine: &Machine, address: PciAddress) -> Result<Lever<'_, bool>, String> {
    let elsewhere = || {
        format!(
            "the physical function of {address} has no interface here; where it has: ip link set dev PF vf N state disable, then auto"
        )
    };
    let function = machine.function(address).ok_or_else(elsewhere)?;
    let physical = match function.role {
        // A guest with a virtual function sees no physical function beside it.
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

/// Returns the lever that unbinds a function from its driver and binds the function to vfio-pci again. On an unbind,
/// the kernel requests the program that has the function open to release it, and waits for the release.
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

/// Checks that this process may write to a file of sysfs.
fn writable(path: &Path) -> Result<(), String> {
    fs::OpenOptions::new()
        .write(true)
        .open(path)
        .map(drop)
        .map_err(|error| format!("takes root: {}: {error}", path.display()))
}
