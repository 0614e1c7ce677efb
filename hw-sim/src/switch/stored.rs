//! Serde representations of switch and port settings, for types that serde does not support.

/// Stores the trust state as the register encodes it.
pub(crate) mod trust {
    use mlx_prm::TrustState;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub(crate) fn serialize<S: Serializer>(trust: &TrustState, to: S) -> Result<S::Ok, S::Error> {
        trust.0.serialize(to)
    }

    pub(crate) fn deserialize<'a, D: Deserializer<'a>>(from: D) -> Result<TrustState, D::Error> {
        u8::deserialize(from).map(TrustState)
    }
}

/// Stores the priorities of the 64 DSCPs as two arrays of 32, because serde supports arrays only up to 32 entries.
pub(crate) mod code_points {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub(crate) fn serialize<S: Serializer>(all: &[u8; 64], to: S) -> Result<S::Ok, S::Error> {
        let (low, high) = all.split_at(32);
        (
            <&[u8; 32]>::try_from(low).map_err(serde::ser::Error::custom)?,
            <&[u8; 32]>::try_from(high).map_err(serde::ser::Error::custom)?,
        )
            .serialize(to)
    }

    pub(crate) fn deserialize<'a, D: Deserializer<'a>>(from: D) -> Result<[u8; 64], D::Error> {
        let halves = <[[u8; 32]; 2]>::deserialize(from)?;
        let mut all = [0; 64];
        for (at, half) in all.chunks_exact_mut(32).zip(halves) {
            at.copy_from_slice(&half);
        }
        Ok(all)
    }
}
