//! Changed snapshots against `udapl::handover`: each is refused, and none makes the library panic.
//!
//! The checksum is that of the changed bytes, so that the changed contents are read. There are no descriptors, so a
//! snapshot that can be read is refused, too. The tests of each layer (`dat-core`, `dat-mlx`, `hw-mlx`, `neighbour`,
//! `driver`) change the numbers in the layer's own snapshots.

use bolero::check;
use udapl::handover::{Parked, resume_all};
use zerocopy::IntoBytes;
use zerocopy::little_endian::U32;

const SNAPSHOT: &[u8] = include_bytes!("../../../udapl/tests/dat/snapshots/form-2.bin");
/// Place of the checksum in the header.
const CHECKSUM: core::ops::Range<usize> = 24..28;

#[test]
fn changed_snapshots() {
    check!()
        .with_type::<(Vec<(u16, u8)>, u16)>()
        .for_each(|(changes, cut)| {
            let mut snapshot = SNAPSHOT.to_vec();
            for (at, byte) in changes {
                let at = usize::from(*at) % snapshot.len();
                snapshot[at] = *byte;
            }
            // One in four is shorter, too.
            if cut % 4 == 0 {
                snapshot.truncate(snapshot.len() - usize::from(*cut) % snapshot.len());
            }
            if snapshot.len() >= CHECKSUM.end {
                snapshot[CHECKSUM].fill(0);
                let checksum = U32::new(crc32fast::hash(&snapshot));
                snapshot[CHECKSUM].copy_from_slice(checksum.as_bytes());
            }
            let descriptors = Vec::new();
            let refused = resume_all(Parked {
                snapshot,
                descriptors,
            });
            assert!(!refused.expect_err("no descriptors").to_string().is_empty());
        });
}
