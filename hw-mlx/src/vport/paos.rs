//! The port's administrative state (PRM "Ports Administrative and Operational Status", register PAOS).
//!
//! The state belongs to the card, and stays when a driver ends. The kernel's driver switches a port off together with
//! its network interface (Linux `en_main.c` `mlx5e_close`, `mlx5e_modify_admin_state`), so a function that is taken
//! over from the kernel may have its port off. A physical function switches the port on at bring-up, and off again at
//! the end if the port was off before. The ports of virtual functions follow the physical one; the firmware accepts
//! their writes without effect.

use super::register::{LOCAL_PORT, READ, WRITE, access};
use crate::control::Commands;
use crate::error::CmdError;
use mlx_prm::{Paos, RegisterId};

const UP: u32 = 1;
const DOWN: u32 = 2;

/// Switches the port on if it is administratively down. Returns true if that changed its state.
pub(crate) fn switch_on(control: &mut impl Commands) -> Result<bool, CmdError> {
    let mut register = Paos::new();
    register.set_local_port(LOCAL_PORT);
    let found = access(control, RegisterId::PAOS, READ, &register)?;
    if found.is_none_or(|found| found.admin_status() != DOWN) {
        return Ok(false);
    }
    let taken = set(control, UP)?;
    if taken {
        tracing::info!(
            "the port was administratively down, as a driver before us left it; switched on"
        );
    } else {
        tracing::warn!(
            "the port is administratively down, and the firmware does not let us switch it on"
        );
    }
    Ok(taken)
}

/// Switches the port off again, as [`switch_on`] found it.
pub(crate) fn switch_off(control: &mut impl Commands) -> Result<(), CmdError> {
    set(control, DOWN).map(|_| ())
}

/// Sets the administrative state. Returns false if the firmware refuses.
fn set(control: &mut impl Commands, status: u32) -> Result<bool, CmdError> {
    let mut register = Paos::new();
    register
        .set_local_port(LOCAL_PORT)
        .set_admin_status(status)
        .set_ase(true);
    access(control, RegisterId::PAOS, WRITE, &register).map(|answer| answer.is_some())
}
