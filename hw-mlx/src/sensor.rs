//! Temperature of the adapter's chip (PRM "MTMP").

use crate::control::Commands;
use crate::error::CmdError;
use crate::vport::{READ, access};
use mlx_prm::{Mtmp, RegisterId};

/// Millidegrees Celsius per unit of the register, which counts in eighths of a degree.
const MILLIDEGREES: i32 = 125;

/// Reads the temperature of the adapter's chip in thousandths of a degree Celsius. Returns `None` if the function is
/// not allowed to read it.
pub(crate) fn millidegrees(control: &mut impl Commands) -> Result<Option<i32>, CmdError> {
    let told = access(control, RegisterId::MTMP, READ, &Mtmp::new())?;
    Ok(told.map(|register| in_millidegrees(register.temperature())))
}

/// Converts the register's field, a signed 16-bit number, to millidegrees.
fn in_millidegrees(field: u32) -> i32 {
    let [_, _, high, low] = field.to_be_bytes();
    i32::from(i16::from_be_bytes([high, low])) * MILLIDEGREES
}

#[cfg(test)]
mod tests {
    use super::in_millidegrees;

    /// The temperature is in eighths of a degree and may be negative. A unit is 125 millidegrees in Linux
    /// `drivers/net/ethernet/mellanox/mlx5/core/hwmon.c`.
    #[test]
    fn a_temperature_is_in_eighths_of_a_degree_and_may_be_below_zero() {
        assert_eq!(in_millidegrees(348), 43_500);
        assert_eq!(in_millidegrees(0xfff8), -1_000);
    }
}
