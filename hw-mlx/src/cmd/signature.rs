//! Command signatures (PRM "Command Interface", signatures).
//!
//! A signature is one byte. Its value makes the XOR of all bytes that it covers 0xff. There are three: over the 64
//! bytes of a command entry as the device gets them, over a mailbox's control part, and over a whole mailbox. The
//! device checks signatures only if its `cmdif_checksum` capability is set. We always write them, because a device that
//! does not check them ignores them.

/// Returns the XOR of `bytes`.
pub(crate) fn xor8(bytes: &[u8]) -> u8 {
    bytes.iter().fold(0, |sum, byte| sum ^ byte)
}

/// Returns the signature of `bytes`, in which the signature field is still zero: with it, the XOR of all is 0xff.
pub(crate) fn closing(bytes: &[u8]) -> u8 {
    xor8(bytes) ^ 0xff
}

/// Returns whether the XOR of `bytes` is 0xff.
pub(crate) fn holds(bytes: &[u8]) -> bool {
    xor8(bytes) == 0xff
}

#[cfg(test)]
mod tests {
    use super::{closing, holds};

    /// The signature of an entry is equal to that of the recorded ENABLE_HCA, the first command of a ConnectX-4 Lx
    /// start-up: 0xfd at 0x3d (snabbco/snabb, `src/apps/mellanox/trace-mlx5_core.txt.gz`).
    #[test]
    fn entry_signature_is_the_one_mlx5_core_put_into_the_recorded_enable_hca() {
        let mut entry = [0u8; 64];
        entry[0x00] = 0x07;
        entry[0x07] = 0x10;
        entry[0x10] = 0x01;
        entry[0x11] = 0x04;
        entry[0x3b] = 0x10;
        entry[0x3c] = 0x01;
        entry[0x3f] = 0x01;
        assert_eq!(closing(&entry), 0xfd);
        entry[0x3d] = 0xfd;
        assert!(holds(&entry));
    }

    /// The signature also covers the mailbox pointers: it is 0xd7 for the second recorded command, QUERY_ISSI with an
    /// output mailbox.
    #[test]
    fn entry_signature_covers_the_mailbox_pointers() {
        let mut entry = [0u8; 64];
        entry[0x00] = 0x07;
        entry[0x07] = 0x10;
        entry[0x10..0x12].copy_from_slice(&[0x01, 0x0a]);
        entry[0x30..0x3c].copy_from_slice(&[0, 0, 0, 7, 0xab, 0x0f, 0xe4, 0, 0, 0, 0, 0x70]);
        entry[0x3c] = 0x02;
        entry[0x3f] = 0x01;
        assert_eq!(closing(&entry), 0xd7);
    }
}
