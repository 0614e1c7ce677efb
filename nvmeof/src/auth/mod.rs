//! In-band authentication: DH-HMAC-CHAP (Base specification, "NVMe In-band Authentication").
//!
//! ```text
//!   host                      target
//!   NEGOTIATE  ------------->            hashes and groups that it has
//!              <-------------  CHALLENGE one of each; a random value, and g^x
//!   REPLY      ------------->            HMAC(key, challenge...), and g^y; its own challenge if it wants an answer
//!              <-------------  SUCCESS1  the answer to that
//!   SUCCESS2   ------------->            only if there was one
//! ```
//!
//! With a group, the challenge is combined with the shared secret. FAILURE1 reports any error, without details of the
//! secret, and ends the exchange; the host cannot try again. Keys are zeroized when dropped. The host's response is
//! compared in constant time.

#[cfg(test)]
pub(crate) mod cost;
mod dh;
mod exchange;
mod primes;

use core::fmt;
use core::str::FromStr;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, Mac};
use sha2::{Digest, Sha256, Sha384, Sha512};
use zeroize::{Zeroize, Zeroizing};

pub use dh::Group;
pub use exchange::{Exchange, ExchangeSnapshot, Parties};

/// A hash function. The values are the identifiers in messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Hash {
    /// SHA-256.
    Sha256 = 1,
    /// SHA-384.
    Sha384 = 2,
    /// SHA-512.
    Sha512 = 3,
}

impl Hash {
    /// Returns the hash with this identifier.
    #[must_use]
    pub const fn of(number: u8) -> Option<Self> {
        Some(match number {
            1 => Self::Sha256,
            2 => Self::Sha384,
            3 => Self::Sha512,
            _ => return None,
        })
    }

    /// Returns the length of a digest in bytes.
    #[must_use]
    pub const fn bytes(self) -> usize {
        match self {
            Self::Sha256 => 32,
            Self::Sha384 => 48,
            Self::Sha512 => 64,
        }
    }

    fn hash(self, bytes: &[u8]) -> Zeroizing<Vec<u8>> {
        #[cfg(test)]
        cost::hashed(bytes.len());
        Zeroizing::new(match self {
            Self::Sha256 => Sha256::digest(bytes).to_vec(),
            Self::Sha384 => Sha384::digest(bytes).to_vec(),
            Self::Sha512 => Sha512::digest(bytes).to_vec(),
        })
    }

    fn hmac(self, key: &[u8], parts: &[&[u8]]) -> Zeroizing<Vec<u8>> {
        fn of<M: Mac + hmac::digest::KeyInit>(key: &[u8], parts: &[&[u8]]) -> Vec<u8> {
            // HMAC accepts a key of any length.
            let Ok(mut mac) = <M as Mac>::new_from_slice(key) else {
                return Vec::new();
            };
            for part in parts {
                #[cfg(test)]
                cost::hashed(part.len());
                mac.update(part);
            }
            mac.finalize().into_bytes().to_vec()
        }
        Zeroizing::new(match self {
            Self::Sha256 => of::<Hmac<Sha256>>(key, parts),
            Self::Sha384 => of::<Hmac<Sha384>>(key, parts),
            Self::Sha512 => of::<Hmac<Sha512>>(key, parts),
        })
    }
}

/// A secret, as `nvme gen-dhchap-key` writes it: `DHHC-1:hh:base64 of the key and its CRC-32:`.
#[derive(Clone, PartialEq, Eq)]
pub struct Key {
    bytes: Zeroizing<Vec<u8>>,
    /// Hash by which the key is bound to a name; `None` if the key is used as it is.
    transform: Option<Hash>,
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Key({} bytes)", self.bytes.len())
    }
}

/// Reason why a text is not a valid secret. The error does not contain the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    /// The text does not have the form of a secret.
    #[error("a secret reads DHHC-1:hh:base64:, where hh is 00 to 03")]
    Form,
    /// The key has a wrong length, in bytes.
    #[error("a secret has 32, 48 or 64 bytes, and as many as the hash it is for: {0}")]
    Length(usize),
    /// The CRC does not match, probably because of a typing error.
    #[error("the secret's checksum is wrong: the secret was probably mistyped")]
    Sum,
}

impl FromStr for Key {
    type Err = KeyError;

    fn from_str(text: &str) -> Result<Self, KeyError> {
        let text = text.trim().strip_prefix("DHHC-1:").ok_or(KeyError::Form)?;
        let (hash, text) = text.split_once(':').ok_or(KeyError::Form)?;
        let text = text.strip_suffix(':').ok_or(KeyError::Form)?;
        let transform = match hash {
            "00" => None,
            "01" => Some(Hash::Sha256),
            "02" => Some(Hash::Sha384),
            "03" => Some(Hash::Sha512),
            _ => return Err(KeyError::Form),
        };
        let mut bytes = Zeroizing::new(STANDARD.decode(text).map_err(|_| KeyError::Form)?);
        let length = bytes.len().saturating_sub(4);
        let fits = transform.is_none_or(|hash| hash.bytes() == length);
        if !matches!(length, 32 | 48 | 64) || !fits {
            return Err(KeyError::Length(length));
        }
        let sum = crc32fast::hash(&bytes[..length]);
        if zerocopy::IntoBytes::as_bytes(&zerocopy::little_endian::U32::new(sum))
            != &bytes[length..]
        {
            return Err(KeyError::Sum);
        }
        bytes[length..].zeroize();
        bytes.truncate(length);
        Ok(Self { bytes, transform })
    }
}

impl Key {
    /// Returns the key, bound to the name of its owner if the key has a hash for that.
    fn of(&self, name: &str) -> Zeroizing<Vec<u8>> {
        match self.transform {
            None => self.bytes.clone(),
            Some(hash) => hash.hmac(&self.bytes, &[name.as_bytes(), b"NVMe-over-Fabrics"]),
        }
    }
}

/// Keys with which a host and the target authenticate each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Keys {
    /// The host's key.
    pub host: Key,
    /// The target's key, for hosts that authenticate the target.
    pub controller: Option<Key>,
    /// Only hash that is allowed; `None` to take the first that the host offers.
    pub hash: Option<Hash>,
    /// Only group that is allowed; `None` to take the first that the host offers, and the null group only if it offers
    /// no other.
    pub group: Option<Group>,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Key made by another implementation of the format (Python's base64 and zlib) from the bytes 0 to 31. It is not
    /// the key in nvme-cli's documentation of `gen-dhchap-key`.
    const TEXT: &str = "DHHC-1:01:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR:";

    #[test]
    fn a_secret_has_a_form_a_length_and_a_sum() {
        let key: Key = TEXT.parse().expect("a key");
        assert_eq!(&key.bytes[..4], [0, 1, 2, 3]);
        assert_eq!(format!("{key:?}"), "Key(32 bytes)", "it is not printed");
        for (from, to, error) in [
            ("DHHC-1", "DHHC-2", KeyError::Form),
            (":01:", ":04:", KeyError::Form),
            (":01:", ":02:", KeyError::Length(32)),
            ("AAEC", "AAED", KeyError::Sum),
            ("AAEC", "A*EC", KeyError::Form),
            ("AAECAwQF", "", KeyError::Length(26)),
        ] {
            assert_eq!(
                TEXT.replacen(from, to, 1).parse::<Key>(),
                Err(error),
                "{from} {to}"
            );
        }
        assert_eq!(
            TEXT.trim_end_matches(':').parse::<Key>(),
            Err(KeyError::Form)
        );
    }
}
