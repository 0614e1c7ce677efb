//! Registers of the port (PRM "ACCESS_REG").

use crate::control::Commands;
use crate::error::CmdError;
use mlx_prm::{AccessRegIn, CmdStatus, Layout, RegisterId};

/// Number of the function's port in port registers.
pub(crate) const LOCAL_PORT: u32 = 1;
/// `op_mod` values of ACCESS_REG.
pub(crate) const WRITE: u32 = 0;
pub(crate) const READ: u32 = 1;

/// Reads or writes a register of the port. Returns `None` if the firmware refuses, as it does most accesses of virtual
/// functions. A refusal with INTERNAL_ERR is an error.
pub(crate) fn access<R: Layout>(
    control: &mut impl Commands,
    register: RegisterId,
    op_mod: u32,
    image: &R,
) -> Result<Option<R>, CmdError> {
    let mut input = AccessRegIn::new();
    input.set_op_mod(op_mod).set_register_id(register.bits());
    match control.exec_reading(&input, image.as_bytes(), R::SIZE) {
        Ok((_, image)) => Ok(R::read_from_bytes(&image).ok()),
        Err(error)
            if error
                .status()
                .is_some_and(|status| status != CmdStatus::INTERNAL_ERR) =>
        {
            tracing::debug!(%error, %register, "no access to the port");
            Ok(None)
        }
        Err(error) => Err(error),
    }
}
