//! Checks that all registers of ACCESS_REG share.

use super::{Refusal, refuse};
use mlx_prm::Layout;

/// Number of the only port.
pub(super) const PORT: u32 = 1;

/// Reads a register from its image. Refuses an image that is shorter than the register.
pub(super) fn image_of<T: Layout>(image: &[u8]) -> Result<T, Refusal> {
    let Ok((register, _)) = T::read_from_prefix(image) else {
        return Err(refuse!(
            BAD_INPUT_LEN,
            "register image too short",
            "{:#x} of {:#x}",
            image.len(),
            T::SIZE
        ));
    };
    Ok(register)
}

/// Refuses every port number but that of the only port.
pub(super) fn own_port(port: u32) -> Result<(), Refusal> {
    if port != PORT {
        return Err(refuse!(BAD_PARAM, "no such port", "{port}"));
    }
    Ok(())
}
