//! The module in the port's cage: registers PMLP and MCIA, which `ethtool -m` reads through Linux' `mlx5_core`
//! (`mlx5_query_module_eeprom` in drivers/net/ethernet/mellanox/mlx5/core/port.c).
//!
//! The module is a passive copper cable of one metre, a QSFP28 as SFF-8636 describes it. Its EEPROM has the lower page
//! and upper page 0, which is all that such a cable has. It has no sensors.

use super::register::{image_of, own_port};
use super::{Cmd, Refusal, refuse};
use mlx_prm::{Mcia, Pmlp};
use zerocopy::IntoBytes;

/// Bytes of an EEPROM page.
const PAGE: usize = 128;
/// I2C address of the EEPROM.
const EEPROM: u32 = 0x50;
/// Number of lanes. They are lanes 0 to 3 of module 0 of the card (PMLP `lane_module_mapping`).
const LANES: u32 = 4;
/// Values of MCIA `status`.
const OK: u32 = 0;
const NO_EEPROM: u32 = 1;
const BAD_PAGE: u32 = 6;

/// Answers register PMLP: the module to which the port's lanes are connected.
pub(super) fn pmlp(image: &[u8], read: bool) -> Result<Vec<u8>, Refusal> {
    let register: Pmlp = image_of(image)?;
    own_port(register.local_port())?;
    if !read {
        return Err(refuse!(BAD_PARAM, "lanes of the port are fixed"));
    }
    let mut out = Pmlp::new();
    out.set_local_port(1).set_width(LANES);
    out.set_lane0_module_mapping(0)
        .set_lane1_module_mapping(1 << 16 | 1 << 24)
        .set_lane2_module_mapping(2 << 16 | 2 << 24)
        .set_lane3_module_mapping(3 << 16 | 3 << 24);
    Ok(out.as_bytes().to_vec())
}

/// Answers register MCIA: bytes of the module's EEPROM.
pub(super) fn mcia(cmd: &Cmd<'_>, image: &[u8], read: bool) -> Result<Vec<u8>, Refusal> {
    let register: Mcia = image_of(image)?;
    if !read {
        return Err(refuse!(
            BAD_PARAM,
            "a cable without electronics cannot be written"
        ));
    }
    if register.module() != 0 {
        return Err(refuse!(
            BAD_PARAM,
            "no such module",
            "{}",
            register.module()
        ));
    }
    let mut out = register.clone();
    let eeprom = eeprom(&cmd.nic.profile.name);
    // CAST: both are 16-bit fields.
    let [first, bytes] = [register.device_address(), register.size()]
        .map(|field| usize::try_from(field).unwrap_or(usize::MAX));
    let mut data = [0; Mcia::DATA];
    let found = eeprom.get(first..first.saturating_add(bytes));
    let status = match (register.i2c_device_address(), register.page_number(), found) {
        (EEPROM, 0, Some(found)) if bytes <= data.len() => {
            data[..bytes].copy_from_slice(found);
            OK
        }
        (EEPROM, ..) => BAD_PAGE,
        _ => NO_EEPROM,
    };
    out.set_status(status).set_data(&data);
    Ok(out.as_bytes().to_vec())
}

/// Returns lower page and upper page 0 (SFF-8636, tables 6-1 and 6-14).
fn eeprom(serial: &str) -> [u8; 2 * PAGE] {
    const QSFP28: u8 = 0x11;
    let mut bytes = [0; 2 * PAGE];
    // Identifier, revision 2.8, no further pages.
    bytes[..3].copy_from_slice(&[QSFP28, 8, 0x04]);
    // Identifier, power class 1, no separable connector; see the extended code for more.
    bytes[128..132].copy_from_slice(&[QSFP28, 0, 0x23, 0x80]);
    // Bit rate of 25.75 Gb/s per lane (103 units of 250 Mb/s), one metre, copper without equalization.
    bytes[140] = 0xff;
    bytes[146..148].copy_from_slice(&[1, 0xa0]);
    bytes[222] = 103;
    text(&mut bytes[148..164], "Simulated");
    text(&mut bytes[168..184], "CABLE-1M");
    text(&mut bytes[184..186], "A1");
    // Extended compliance code: 100GBASE-CR4.
    bytes[192] = 0x0b;
    text(&mut bytes[196..212], serial);
    text(&mut bytes[212..220], "260101");
    bytes[191] = sum(&bytes[128..191]);
    bytes[223] = sum(&bytes[192..223]);
    bytes
}

/// Writes a text, padded with spaces.
fn text(to: &mut [u8], text: &str) {
    let mut letters = text.bytes().filter(u8::is_ascii_graphic);
    to.fill_with(|| letters.next().unwrap_or(b' '));
}

/// Returns the low byte of the sum of the bytes (SFF-8636 check code).
fn sum(bytes: &[u8]) -> u8 {
    bytes
        .iter()
        .fold(0, |sum: u8, byte| sum.wrapping_add(*byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The EEPROM describes a QSFP28 cable and has correct check codes, at the offsets of SFF-8636.
    #[test]
    fn the_eeprom_is_a_qsfp28_cables_with_right_check_codes() {
        let bytes = eeprom("mlx5");
        assert_eq!((bytes[0], bytes[128], bytes[192]), (0x11, 0x11, 0x0b));
        for (first, code) in [(128, 191), (192, 223)] {
            let total: u32 = bytes[first..code].iter().map(|&byte| u32::from(byte)).sum();
            assert_eq!(u32::from(bytes[code]), total & 0xff);
        }
        assert_eq!(&bytes[148..164], b"Simulated       ");
        assert_eq!(&bytes[196..212], b"mlx5            ");
    }
}
