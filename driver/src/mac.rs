//! MAC addresses as text.

/// Parses a MAC address: six bytes in hex, separated by colons.
#[must_use]
pub fn mac_of(text: &str) -> Option<[u8; 6]> {
    let bytes: Option<Vec<u8>> = text
        .split(':')
        .map(|byte| {
            // `from_str_radix` would accept a sign as one of the two characters.
            let is_hex = byte.len() == 2 && byte.bytes().all(|digit| digit.is_ascii_hexdigit());
            is_hex.then(|| u8::from_str_radix(byte, 16).ok())?
        })
        .collect();
    bytes?.try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_six_bytes_in_hex_with_colons_between() {
        assert_eq!(
            mac_of("02:00:5e:10:0F:a1"),
            Some([2, 0, 0x5e, 0x10, 15, 0xa1])
        );
        for wrong in [
            "",
            "02",
            "02:00:5e:10:0f",
            "02:00:5e:10:0f:a1:00",
            "2:0:5e:10:f:a1",
            "02:00:5e:10:0f:g1",
            "02:00:5e:10:0f:+1",
        ] {
            assert_eq!(mac_of(wrong), None, "{wrong}");
        }
    }
}
