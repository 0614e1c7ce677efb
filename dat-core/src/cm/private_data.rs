//! Contents of the private data of REQ, REP and REJ.
//!
//! | service ID | REQ (92 bytes) | REP (196 bytes) | REJ (148 bytes) |
//! |---|---|---|---|
//! | RDMA CM, TCP port space | IP header of 36 bytes ([`super::rdma_cm`]), consumer's up to 56, zero-padded | consumer's up to 196, zero-padded | consumer's up to 148, zero-padded |
//! | any other | exact-length header of 4 bytes, consumer's up to 88 | the same, up to 192 | the same, up to 144 |
//!
//! The RDMA CM has no field for a length, so its receiver gets the padding too. Elsewhere four bytes in front hold
//! the length, so that a DAT consumer gets exactly the bytes its peer gave:
//!
//! ```text
//!   0xda | 1 (version) | length, big-endian 16 | data | zeros
//! ```
//!
//! Private data without such a header comes from a foreign implementation; all of it goes to the consumer.
//!
//! A rejection may have no private data: if all bytes are zero, nothing goes to the consumer.

use super::rdma_cm::{self, HeaderError, IpHeader};
use super::wire::{rej, rep, req};

/// First byte of the exact-length header.
const MAGIC: u8 = 0xda;
/// Second byte of the exact-length header.
const VERSION: u8 = 1;
/// Bytes of the exact-length header.
const LENGTH_HEADER_BYTES: usize = 4;

/// Private data that cannot be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PrivateDataError {
    /// The private data is longer than the message's field.
    #[error("{given} bytes of private data, at most {limit} fit")]
    TooLong {
        /// Length given, in bytes.
        given: usize,
        /// Maximum length, in bytes.
        limit: usize,
    },
    /// The IP header cannot be encoded.
    #[error(transparent)]
    Header(#[from] HeaderError),
}

/// Returns the maximum length, in bytes, of the consumer's private data in a REQ to `service_id`.
#[must_use]
pub const fn request_limit(service_id: u64) -> usize {
    req::PRIVATE_DATA_BYTES - request_header_bytes(service_id)
}

/// Returns the maximum length, in bytes, of the consumer's private data in a REP to a REQ to `service_id`.
#[must_use]
pub const fn reply_limit(service_id: u64) -> usize {
    rep::PRIVATE_DATA_BYTES
        - if rdma_cm::is_service_id(service_id) {
            0
        } else {
            LENGTH_HEADER_BYTES
        }
}

/// Returns the maximum length, in bytes, of the consumer's private data in a REJ for a REQ to `service_id`.
#[must_use]
pub const fn reject_limit(service_id: u64) -> usize {
    rej::PRIVATE_DATA_BYTES
        - if rdma_cm::is_service_id(service_id) {
            0
        } else {
            LENGTH_HEADER_BYTES
        }
}

const fn request_header_bytes(service_id: u64) -> usize {
    if rdma_cm::is_service_id(service_id) {
        rdma_cm::HEADER_BYTES
    } else {
        LENGTH_HEADER_BYTES
    }
}

/// Encodes the private data of a REQ. `header` is used if the service ID belongs to the RDMA CM.
pub(super) fn encode_request(
    service_id: u64,
    header: &IpHeader,
    data: &[u8],
) -> Result<[u8; req::PRIVATE_DATA_BYTES], PrivateDataError> {
    check(data, request_limit(service_id))?;
    let mut field = [0; req::PRIVATE_DATA_BYTES];
    if rdma_cm::is_service_id(service_id) {
        field[..rdma_cm::HEADER_BYTES].copy_from_slice(&header.to_bytes()?);
        field[rdma_cm::HEADER_BYTES..][..data.len()].copy_from_slice(data);
    } else {
        emit_exact(&mut field, data);
    }
    Ok(field)
}

/// Returns the contents of a REQ to `service_id`: the consumer's bytes, and the IP header if the service ID belongs to
/// the RDMA CM.
pub(super) fn decode_request(
    service_id: u64,
    field: &[u8; req::PRIVATE_DATA_BYTES],
) -> Result<(Vec<u8>, Option<IpHeader>), HeaderError> {
    if !rdma_cm::is_service_id(service_id) {
        return Ok((parse_exact(field).to_vec(), None));
    }
    // PANIC: the header has 36 bytes, the field 92.
    let (header, data) = field
        .split_first_chunk()
        .expect("the field is longer than the header");
    Ok((data.to_vec(), Some(IpHeader::parse(header)?)))
}

/// Encodes the private data of a REP.
pub(super) fn encode_reply(
    service_id: u64,
    data: &[u8],
) -> Result<[u8; rep::PRIVATE_DATA_BYTES], PrivateDataError> {
    check(data, reply_limit(service_id))?;
    let mut field = [0; rep::PRIVATE_DATA_BYTES];
    if rdma_cm::is_service_id(service_id) {
        field[..data.len()].copy_from_slice(data);
    } else {
        emit_exact(&mut field, data);
    }
    Ok(field)
}

/// Returns the consumer's bytes of a REP.
pub(super) fn decode_reply(service_id: u64, field: &[u8; rep::PRIVATE_DATA_BYTES]) -> Vec<u8> {
    if rdma_cm::is_service_id(service_id) {
        field.to_vec()
    } else {
        parse_exact(field).to_vec()
    }
}

/// Encodes the private data of a REJ. The caller has checked the length with [`check_reject`].
pub(super) fn encode_reject(service_id: u64, data: &[u8]) -> [u8; rej::PRIVATE_DATA_BYTES] {
    let mut field = [0; rej::PRIVATE_DATA_BYTES];
    if rdma_cm::is_service_id(service_id) {
        field[..data.len()].copy_from_slice(data);
    } else if !data.is_empty() {
        emit_exact(&mut field, data);
    }
    field
}

/// Returns the consumer's bytes of a REJ.
pub(super) fn decode_reject(service_id: u64, field: &[u8; rej::PRIVATE_DATA_BYTES]) -> Vec<u8> {
    if field.iter().all(|&byte| byte == 0) {
        Vec::new()
    } else if rdma_cm::is_service_id(service_id) {
        field.to_vec()
    } else {
        parse_exact(field).to_vec()
    }
}

/// Checks that a REJ can carry the data.
pub(super) fn check_reject(service_id: u64, data: &[u8]) -> Result<(), PrivateDataError> {
    check(data, reject_limit(service_id))
}

fn check(data: &[u8], limit: usize) -> Result<(), PrivateDataError> {
    if data.len() > limit {
        return Err(PrivateDataError::TooLong {
            given: data.len(),
            limit,
        });
    }
    Ok(())
}

fn emit_exact(field: &mut [u8], data: &[u8]) {
    // PANIC: the caller has checked that the data fits behind the header, so its length is small.
    let length = u16::try_from(data.len())
        .expect("private data is short")
        .to_be_bytes();
    field[..LENGTH_HEADER_BYTES].copy_from_slice(&[MAGIC, VERSION, length[0], length[1]]);
    field[LENGTH_HEADER_BYTES..][..data.len()].copy_from_slice(data);
}

fn parse_exact(field: &[u8]) -> &[u8] {
    let [MAGIC, VERSION, high, low, data @ ..] = field else {
        return field;
    };
    // If the length exceeds the field, the first four bytes are not our header: the consumer gets the whole field.
    data.get(..usize::from(u16::from_be_bytes([*high, *low])))
        .unwrap_or(field)
}

#[cfg(test)]
mod tests {
    use super::*;

    const OURS: u64 = 0x1000_0000_0000_0001;
    const HEADER: IpHeader = IpHeader {
        source_port: 7,
        source: [1; 16],
        destination: [2; 16],
    };

    #[test]
    fn request_of_our_own_service_carries_the_exact_length() {
        for bytes in [0, 1, 56, 88] {
            let data = vec![0x5a; bytes];
            let field = encode_request(OURS, &HEADER, &data).expect("fits");
            assert_eq!(decode_request(OURS, &field), Ok((data, None)));
        }
    }

    #[test]
    fn request_of_the_rdma_cm_is_padded_with_zeros() {
        let service = rdma_cm::service_id(80);
        let field = encode_request(service, &HEADER, b"hello").expect("fits");
        let (data, header) = decode_request(service, &field).expect("a header");
        assert_eq!(header, Some(HEADER));
        assert_eq!(data.len(), 56);
        assert_eq!(
            data.strip_prefix(b"hello")
                .map(|rest| rest.iter().all(|&byte| byte == 0)),
            Some(true)
        );
    }

    #[test]
    fn private_data_over_the_limit_is_refused_with_both_numbers() {
        let service = rdma_cm::service_id(80);
        let too_long = |given, limit| Err(PrivateDataError::TooLong { given, limit });
        assert_eq!(
            encode_request(OURS, &HEADER, &[0; 89]).map(drop),
            too_long(89, 88)
        );
        assert_eq!(
            encode_request(service, &HEADER, &[0; 57]).map(drop),
            too_long(57, 56)
        );
        assert_eq!(encode_reply(OURS, &[0; 193]).map(drop), too_long(193, 192));
        assert_eq!(
            encode_reply(service, &[0; 197]).map(drop),
            too_long(197, 196)
        );
        assert_eq!(encode_reply(service, &[0; 196]).map(drop), Ok(()));
    }

    #[test]
    fn reply_of_either_service_comes_back() {
        let field = encode_reply(OURS, b"four").expect("fits");
        assert_eq!(field[..8], [0xda, 1, 0, 4, b'f', b'o', b'u', b'r']);
        assert_eq!(decode_reply(OURS, &field), b"four");
        let service = rdma_cm::service_id(80);
        let field = encode_reply(service, b"four").expect("fits");
        assert_eq!(decode_reply(service, &field).len(), 196);
    }

    #[test]
    fn rejection_of_either_service_comes_back_and_may_say_nothing() {
        let rdma_cm = rdma_cm::service_id(80);
        for (service, header, limit) in [(OURS, 4, 144), (rdma_cm, 0, 148)] {
            for bytes in [1, limit] {
                let data = vec![0x5a; bytes];
                assert_eq!(check_reject(service, &data), Ok(()));
                let field = encode_reject(service, &data);
                let decoded = decode_reject(service, &field);
                assert_eq!(decoded[..bytes], data);
                let padded = if header == 0 { 148 } else { bytes };
                assert_eq!(decoded.len(), padded);
            }
            let given = limit + 1;
            let refused = Err(PrivateDataError::TooLong { given, limit });
            assert_eq!(check_reject(service, &vec![1; given]), refused);
            assert_eq!(encode_reject(service, &[]), [0; 148]);
            assert_eq!(decode_reject(service, &[0; 148]), b"");
        }
        assert_eq!(encode_reject(OURS, b"no")[..6], [0xda, 1, 0, 2, b'n', b'o']);
        assert_eq!(encode_reject(rdma_cm, b"no")[..3], [b'n', b'o', 0]);
    }

    #[test]
    fn foreign_private_data_reaches_the_consumer_whole() {
        let field = [0xda; 92];
        assert_eq!(decode_request(OURS, &field), Ok((field.to_vec(), None)));
        let mut lying = [0; 92];
        lying[..4].copy_from_slice(&[0xda, 1, 0, 89]);
        assert_eq!(decode_request(OURS, &lying), Ok((lying.to_vec(), None)));
    }
}
