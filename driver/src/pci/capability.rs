//! The list of capabilities in a function's configuration space (PCI base specification, "Capabilities List").

/// Offset of the low byte of the Status register.
const STATUS: u16 = 0x06;
/// Bit of the Status register that is set if the function has a list of capabilities.
const HAS_LIST: u8 = 1 << 4;
/// Offset of the pointer to the first capability.
const FIRST: u16 = 0x34;
/// Offset after the header of configuration space. No capability lies below it.
const HEADER_END: u8 = 0x40;
/// Largest number of capabilities: they begin at multiples of four bytes, in the 192 bytes after the header.
const MOST: usize = 48;

/// Returns the offset of the capability with this ID; `None` if it is not in the list. `read` reads a byte of
/// configuration space.
pub(crate) fn find<E>(
    id: u8,
    mut read: impl FnMut(u16) -> Result<u8, E>,
) -> Result<Option<u16>, E> {
    if read(STATUS)? & HAS_LIST == 0 {
        return Ok(None);
    }
    let mut at = read(FIRST)?;
    for _ in 0..MOST {
        if at < HEADER_END {
            break;
        }
        // The two low bits of a pointer are reserved.
        let place = u16::from(at & !3);
        if read(place)? == id {
            return Ok(Some(place));
        }
        at = read(place + 1)?;
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Finds a capability in configuration space that ends after these bytes.
    fn found(id: u8, config: &[u8]) -> Result<Option<u16>, u16> {
        find(id, |at| config.get(usize::from(at)).copied().ok_or(at))
    }

    #[test]
    fn a_capability_is_found_by_its_id_and_the_walk_ends() {
        let mut config = [0; 0x100];
        assert_eq!(found(0x10, &config), Ok(None));
        config[0x34] = 0x40;
        config[0x40] = 0x01;
        assert_eq!(
            found(0x01, &config),
            Ok(None),
            "the bit of the list is not set"
        );
        config[0x06] = 0x10;
        // The reserved bits of the pointer are set.
        config[0x40..0x42].copy_from_slice(&[0x01, 0x63]);
        config[0x60..0x62].copy_from_slice(&[0x10, 0x9c]);
        config[0x9c..0x9e].copy_from_slice(&[0x11, 0x40]);
        assert_eq!(found(0x01, &config), Ok(Some(0x40)));
        assert_eq!(found(0x10, &config), Ok(Some(0x60)));
        assert_eq!(found(0x11, &config), Ok(Some(0x9c)));
        // The last pointer leads back to the first capability.
        assert_eq!(found(0x05, &config), Ok(None));
        assert_eq!(found(0x11, &config[..0x80]), Err(0x9c));
        config[0x9d] = 0x3c;
        assert_eq!(found(0x05, &config), Ok(None));
    }
}
