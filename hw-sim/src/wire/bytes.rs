//! Access to big-endian fields in byte slices. The caller has checked the length.

/// Returns the `N` bytes at offset `at`.
pub(super) fn array<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let mut out = [0; N];
    // PANIC: the range exists, because a header view checks the header's length before it reads any field.
    out.copy_from_slice(&bytes[at..at + N]);
    out
}

pub(super) fn be16(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes(array(bytes, at))
}

pub(super) fn be24(bytes: &[u8], at: usize) -> u32 {
    let [a, b, c] = array(bytes, at);
    u32::from_be_bytes([0, a, b, c])
}

pub(super) fn be32(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(array(bytes, at))
}

pub(super) fn be64(bytes: &[u8], at: usize) -> u64 {
    u64::from_be_bytes(array(bytes, at))
}

/// Writes `value` at offset `at` of a buffer that the caller has sized.
pub(super) fn put<const N: usize>(bytes: &mut [u8], at: usize, value: [u8; N]) {
    bytes[at..at + N].copy_from_slice(&value);
}

/// Returns the low 24 bits of `value`, big-endian.
pub(super) fn low24(value: u32) -> [u8; 3] {
    let [_, a, b, c] = value.to_be_bytes();
    [a, b, c]
}

/// Returns the one's complement sum of the Internet checksum (RFC 1071), folded to 16 bits and not inverted.
pub(crate) fn ones_complement_sum(bytes: &[u8]) -> u16 {
    let (pairs, rest) = bytes.as_chunks::<2>();
    let mut sum: u64 = pairs
        .iter()
        .map(|&pair| u64::from(u16::from_be_bytes(pair)))
        .sum();
    if let [last] = rest {
        sum += u64::from(u16::from_be_bytes([*last, 0]));
    }
    while sum > 0xffff {
        sum = (sum >> 16) + (sum & 0xffff);
    }
    // CAST: the loop has folded the sum to 16 bits.
    u16::try_from(sum).unwrap_or(u16::MAX)
}

/// Returns the Internet checksum after a covered 16-bit word has changed (RFC 1624, equation 3).
pub(crate) fn updated_checksum(checksum: u16, before: u16, after: u16) -> u16 {
    let words = [!checksum, !before, after].map(u16::to_be_bytes);
    !ones_complement_sum(words.as_flattened())
}
