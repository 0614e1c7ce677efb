//! MAC address of a function that is alone in its server.

use std::path::Path;

/// Returns the number from which the function's MAC address is derived: a hash of the socket's path. Two servers on one
/// wire do not know each other but need different addresses, and a restart must not change an address.
pub(crate) fn address_number(socket: &Path) -> usize {
    // FNV-1a ("Fowler/Noll/Vo"): any hash that is the same in every build would do.
    let hash = socket
        .as_os_str()
        .as_encoded_bytes()
        .iter()
        .fold(0x811c_9dc5_u32, |hash, &byte| {
            (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193)
        });
    let [high, low, ..] = hash.to_be_bytes();
    0x4000 | usize::from(high & 0x3f) << 8 | usize::from(low)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_of_two_servers_have_different_addresses_that_stay() {
        let [a, b] = ["/run/a.sock", "/run/b.sock"].map(|path| address_number(Path::new(path)));
        assert_ne!(a, b);
        assert_eq!(a, address_number(Path::new("/run/a.sock")));
        assert!(
            [a, b]
                .iter()
                .all(|number| (0x4000..0x8000).contains(number))
        );
    }
}
