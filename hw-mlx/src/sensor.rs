//! The card's temperature (PRM "MTMP").

use crate::control::Commands;
use crate::error::CmdError;
use crate::vport::{READ, access};
use mlx_prm::{Mtmp, RegisterId};

/// Thousandths of a degree in the register's unit, an eighth of a degree.
const MILLIDEGREES: i32 = 125;

/// Reads the temperature of the card's chip in thousandths of a degree Celsius; `None` if the function may not see
/// it.
pub(crate) fn millidegrees(control: &mut impl Commands) -> Result<Option<i32>, CmdError> {
    let told = access(control, RegisterId::MTMP, READ, &Mtmp::new())?;
    Ok(told.map(|register| in_millidegrees(register.temperature())))
}

/// The field holds 16 bits with a sign.
fn in_millidegrees(field: u32) -> i32 {
    let [_, _, high, low] = field.to_be_bytes();
    i32::from(i16::from_be_bytes([high, low])) * MILLIDEGREES
}

#[cfg(test)]
mod tests {
    use super::in_millidegrees;

    /// Linux `drivers/net/ethernet/mellanox/mlx5/core/hwmon.c`: a unit is 125 millidegrees.
    #[test]
    fn a_temperature_is_in_eighths_of_a_degree_and_may_be_below_zero() {
        assert_eq!(in_millidegrees(348), 43_500);
        assert_eq!(in_millidegrees(0xfff8), -1_000);
    }
}
