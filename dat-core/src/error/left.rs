//! Numbers of objects left in an object that should be closed, by kind. Each count has 12 bits.

use core::fmt;

use crate::handle::HandleType;

/// Number of bits of a count.
const BITS: u32 = 12;
/// Largest count, which also stands for all larger ones.
const MOST: u16 = (1 << BITS) - 1;
/// Number of counts in one packed 60-bit number.
const HALF: usize = 5;

/// Kinds of objects that may be left, in the order in which they are printed.
const KINDS: [(HandleType, &str, &str); 2 * HALF] = [
    (HandleType::Ep, "EP", "EPs"),
    (HandleType::Srq, "SRQ", "SRQs"),
    (HandleType::Evd, "EVD", "EVDs"),
    (HandleType::Cno, "CNO", "CNOs"),
    (HandleType::Lmr, "LMR", "LMRs"),
    (HandleType::Rmr, "RMR", "RMRs"),
    (HandleType::Pz, "PZ", "PZs"),
    (HandleType::Psp, "PSP", "PSPs"),
    (HandleType::Rsp, "RSP", "RSPs"),
    (HandleType::Cr, "CR", "CRs"),
];

/// Number of objects left, by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Left([u16; 2 * HALF]);

impl Left {
    /// Packs the counts into two numbers of 60 bits.
    pub(super) fn packed(self) -> (u64, u64) {
        let pack = |counts: &[u16]| {
            let counts = counts.iter().copied().map(u64::from);
            counts.fold(0, |packed, count| packed << BITS | count)
        };
        let (first, second) = self.0.split_at(HALF);
        (pack(first), pack(second))
    }

    pub(super) fn unpacked(first: u64, second: u64) -> Self {
        let mut left = Self::default();
        let (one, other) = left.0.split_at_mut(HALF);
        for (counts, mut packed) in [(one, first), (other, second)] {
            for count in counts.iter_mut().rev() {
                *count = u16::try_from(packed & u64::from(MOST)).unwrap_or(MOST);
                packed >>= BITS;
            }
        }
        left
    }
}

impl FromIterator<HandleType> for Left {
    fn from_iter<T: IntoIterator<Item = HandleType>>(objects: T) -> Self {
        let mut left = Self::default();
        for object in objects {
            if let Some(at) = KINDS.iter().position(|(kind, ..)| *kind == object) {
                left.0[at] = left.0[at].saturating_add(1).min(MOST);
            }
        }
        left
    }
}

impl fmt::Display for Left {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut separator = "";
        for (&count, (_, one, many)) in self.0.iter().zip(KINDS) {
            let more = if count == MOST { " or more" } else { "" };
            match count {
                0 => continue,
                1 => write!(f, "{separator}1 {one}")?,
                _ => write!(f, "{separator}{count}{more} {many}")?,
            }
            separator = ", ";
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_left_survive_packing_and_are_counted_by_kind() {
        let left: Left = KINDS
            .iter()
            .enumerate()
            .flat_map(|(at, (kind, ..))| core::iter::repeat_n(*kind, at * 700))
            .collect();
        let (first, second) = left.packed();
        assert!(first >> 60 == 0 && second >> 60 == 0);
        assert_eq!(Left::unpacked(first, second), left);
        assert_eq!(
            left.to_string(),
            "700 SRQs, 1400 EVDs, 2100 CNOs, 2800 LMRs, 3500 RMRs, 4095 or more PZs, 4095 or more PSPs, \
             4095 or more RSPs, 4095 or more CRs"
        );
        let few: Left = [
            HandleType::Lmr,
            HandleType::Ep,
            HandleType::Evd,
            HandleType::Evd,
        ]
        .into_iter()
        .collect();
        assert_eq!(few.to_string(), "1 EP, 2 EVDs, 1 LMR");
    }
}
