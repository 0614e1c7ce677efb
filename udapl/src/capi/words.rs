//! What C knows of a parked instance: its handles, and the program's own bytes. They go along with the snapshot as the
//! own bytes of a program, because the snapshot knows only Rust's handles.
//!
//! ```text
//!   bytes   contents
//!   0..8    MAGIC, with the version of the form
//!   8..     `Words`, in postcard's form
//! ```
//!
//! The bytes are not trusted. The handles are checked when their places are reserved
//! ([`Withdrawn::reserve`](super::table::Withdrawn::reserve)); the keys here. The handle of a key that names no object
//! is refused as that of a freed object.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use super::adapter::Names;
use super::table::KINDS;

/// The last byte is the version of the form.
const MAGIC: [u8; 8] = *b"DAT C\r\n\x01";
/// Number of indices of each kind of object. A table has as many slots as there were objects at a time.
const MOST_INDICES: usize = 1 << 20;

/// A handle and its object.
#[derive(Clone, Copy, Serialize, Deserialize)]
pub(super) struct Name {
    /// Key of the object in its table.
    pub(super) key: u64,
    /// C's handle.
    pub(super) handle: u64,
    /// False if the object was freed. Events that wait may still name it.
    pub(super) is_valid: bool,
}

/// The record of a region, for queries.
#[derive(Serialize, Deserialize)]
pub(super) struct RegionWords {
    /// C's handle of the LMR.
    pub(super) lmr: u64,
    pub(super) address: u64,
    pub(super) length: u64,
    pub(super) source: u64,
    #[serde(with = "serde_bytes")]
    pub(super) cookie: Option<Vec<u8>>,
}

/// What goes along with a snapshot.
#[derive(Serialize, Deserialize)]
pub(super) struct Words {
    /// C's handle of the IA.
    pub(super) ia: u64,
    pub(super) thread_safe: bool,
    /// True if the asynchronous events go to the IA's own EVD.
    pub(super) has_async_evd: bool,
    pub(super) local: IpAddr,
    /// Handles of each kind of object, in the order of the keys' indices.
    pub(super) names: [Vec<Name>; KINDS],
    pub(super) regions: Vec<RegionWords>,
    /// The program's own bytes.
    #[serde(with = "serde_bytes")]
    pub(super) state: Vec<u8>,
}

impl Words {
    pub(super) fn write(&self) -> Vec<u8> {
        // PANIC: a vector takes all bytes, and no type here refuses to be written.
        postcard::to_extend(self, MAGIC.to_vec()).expect("plain data")
    }

    /// Reads the words.
    ///
    /// # Errors
    /// The reason why they are none.
    pub(super) fn read(bytes: &[u8]) -> Result<Self, String> {
        let Some(contents) = bytes.strip_prefix(&MAGIC) else {
            return Err("it was not parked by dat_ia_park of this version".to_owned());
        };
        let (words, after): (Self, &[u8]) =
            postcard::take_from_bytes(contents).map_err(|error| error.to_string())?;
        if !after.is_empty() {
            return Err(format!("{} bytes follow it", after.len()));
        }
        for name in words.names.iter().flatten() {
            if index(name.key) >= MOST_INDICES {
                return Err(format!("key {:#x} is not possible", name.key));
            }
        }
        Ok(words)
    }

    /// Returns all handles that are valid.
    pub(super) fn handles(&self) -> impl Iterator<Item = u64> {
        let valid = self.names.iter().flatten().filter(|name| name.is_valid);
        core::iter::once(self.ia).chain(valid.map(|name| name.handle))
    }

    /// Returns the lists of handles by index.
    pub(super) fn names(&self) -> Names {
        let mut names = Names::default();
        for (list, given) in names.0.iter_mut().zip(&self.names) {
            for name in given {
                let at = index(name.key);
                if list.len() <= at {
                    list.resize(at + 1, (0, 0));
                }
                list[at] = (name.key, name.handle);
            }
        }
        names
    }
}

/// Returns the index in a key.
const fn index(key: u64) -> usize {
    // CAST: the index is the lower half.
    #[expect(clippy::cast_possible_truncation, reason = "the index of the key")]
    let index = key as u32;
    // CAST: widening, on every target that `types` allows.
    index as usize
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    fn words() -> Words {
        let mut names: [Vec<Name>; KINDS] = Default::default();
        names[1] = vec![
            Name {
                key: 0x3_0000_0002,
                handle: 7,
                is_valid: true,
            },
            Name {
                key: 0x1_0000_0004,
                handle: 8,
                is_valid: false,
            },
        ];
        Words {
            ia: 5,
            thread_safe: true,
            has_async_evd: true,
            local: Ipv4Addr::LOCALHOST.into(),
            names,
            regions: Vec::new(),
            state: b"state".to_vec(),
        }
    }

    #[test]
    fn words_come_back_as_they_were_written() {
        let read = Words::read(&words().write()).expect("words");
        assert_eq!(read.handles().collect::<Vec<_>>(), [5, 7]);
        let names = read.names();
        assert_eq!(names.0[1][2], (0x3_0000_0002, 7));
        assert_eq!(names.0[1][4], (0x1_0000_0004, 8));
        assert_eq!(read.state, b"state");
    }

    #[test]
    fn every_cut_of_words_is_refused_and_so_is_a_byte_more() {
        let whole = words().write();
        for bytes in 0..whole.len() {
            assert!(Words::read(&whole[..bytes]).is_err(), "{bytes} bytes");
        }
        let longer = [&whole[..], &[0]].concat();
        assert!(Words::read(&longer).is_err());
    }

    /// A list by index takes memory for all indices below its highest one.
    #[test]
    fn a_key_with_an_index_that_no_table_has_is_refused() {
        let mut wrong = words();
        wrong.names[1][0].key = MOST_INDICES as u64;
        assert!(Words::read(&wrong.write()).is_err());
    }
}
