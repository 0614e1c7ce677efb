//! What C knows of a parked instance: its handles, and the program's own bytes. They go along with the snapshot as the
//! own bytes of a program, because the snapshot knows only Rust's handles.
//!
//! ```text
//!   bytes   contents
//!   0..8    MAGIC, with the version of the form
//!   8..     `Words` and the program's own bytes, in postcard's form
//! ```
//!
//! The bytes are not trusted. The valid handles are checked when their places are reserved
//! ([`Withdrawn::reserve`](super::table::Withdrawn::reserve)); keys, kinds and serial numbers here. The handle of a key
//! that names no object is refused as that of a freed object.

use std::collections::BTreeSet;
use std::net::IpAddr;

use serde::{Deserialize, Serialize};
use serde_bytes::Bytes;

use super::adapter::Names;
use super::table::{KINDS, SERIALS, place_of, serial_of};

/// The last byte is the version of the form.
const MAGIC: [u8; 8] = *b"DAT C\r\n\x02";
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
    /// A number above the serial numbers of all handles that the process had given out.
    pub(super) next_serial: u64,
    pub(super) thread_safe: bool,
    /// True if the asynchronous events go to the IA's own EVD.
    pub(super) has_async_evd: bool,
    pub(super) local: IpAddr,
    /// Handles of each kind of object, in the order of the keys' indices.
    pub(super) names: [Vec<Name>; KINDS],
    pub(super) regions: Vec<RegionWords>,
}

impl Words {
    /// Writes the words, and the program's own bytes.
    pub(super) fn write(&self, own: &[u8]) -> Vec<u8> {
        let all = (self, Bytes::new(own));
        // PANIC: a vector takes all bytes, and no type here refuses to be written.
        postcard::to_extend(&all, MAGIC.to_vec()).expect("plain data")
    }

    /// Reads the words, and the program's own bytes.
    ///
    /// # Errors
    /// The reason why they are none.
    pub(super) fn read(bytes: &[u8]) -> Result<(Self, &[u8]), String> {
        let Some(contents) = bytes.strip_prefix(&MAGIC) else {
            return Err("it was not parked by dat_ia_park of this version".to_owned());
        };
        let ((words, own), after): ((Self, &Bytes), &[u8]) =
            postcard::take_from_bytes(contents).map_err(|error| error.to_string())?;
        if !after.is_empty() {
            return Err(format!("{} bytes follow it", after.len()));
        }
        words.check()?;
        Ok((words, own))
    }

    /// Checks what concerns no other object of the process.
    fn check(&self) -> Result<(), String> {
        let next = self.next_serial;
        if next > SERIALS {
            return Err(format!("serial number {next:#x} is not possible"));
        }
        let mut handles = BTreeSet::from([self.ia]);
        if serial_of(self.ia) >= next {
            return Err(format!("handle {:#x} is from later on", self.ia));
        }
        for (kind, list) in self.names.iter().enumerate() {
            let mut indices = BTreeSet::new();
            for &Name { key, handle, .. } in list {
                if index(key) >= MOST_INDICES || !indices.insert(index(key)) {
                    return Err(format!("key {key:#x} is not possible, or not the only one"));
                }
                if place_of(handle).0 != kind || !handles.insert(handle) {
                    return Err(format!(
                        "handle {handle:#x} is of another kind, or not the only one"
                    ));
                }
                if serial_of(handle) >= next {
                    return Err(format!("handle {handle:#x} is from later on"));
                }
            }
        }
        Ok(())
    }

    /// Returns all handles that are valid.
    pub(super) fn handles(&self) -> impl Iterator<Item = u64> {
        let valid = self.names.iter().flatten().filter(|name| name.is_valid);
        core::iter::once(self.ia).chain(valid.map(|name| name.handle))
    }

    /// Returns the lists of handles by index. The handle of a freed object is 0 if `is_in_use` accepts it.
    pub(super) fn names(&self, is_in_use: impl Fn(u64) -> bool) -> Names {
        let mut names = Names::default();
        for (list, given) in names.0.iter_mut().zip(&self.names) {
            for name in given {
                let at = index(name.key);
                if list.len() <= at {
                    list.resize(at + 1, (0, 0));
                }
                let is_kept = name.is_valid || !is_in_use(name.handle);
                list[at] = (name.key, if is_kept { name.handle } else { 0 });
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

    /// Returns a handle of kind 1 with this serial number.
    const fn handle(serial: u64) -> u64 {
        serial << 26 | 1 << 22
    }

    fn words() -> Words {
        let mut names: [Vec<Name>; KINDS] = Default::default();
        names[1] = vec![
            Name {
                key: 0x3_0000_0002,
                handle: handle(7),
                is_valid: true,
            },
            Name {
                key: 0x1_0000_0004,
                handle: handle(8),
                is_valid: false,
            },
        ];
        Words {
            ia: 5,
            next_serial: 9,
            thread_safe: true,
            has_async_evd: true,
            local: Ipv4Addr::LOCALHOST.into(),
            names,
            regions: Vec::new(),
        }
    }

    #[test]
    fn words_come_back_as_they_were_written() {
        let written = words().write(b"state");
        let (read, own) = Words::read(&written).expect("words");
        assert_eq!(read.handles().collect::<Vec<_>>(), [5, handle(7)]);
        let names = read.names(|_| false);
        assert_eq!(names.0[1][2], (0x3_0000_0002, handle(7)));
        assert_eq!(names.0[1][4], (0x1_0000_0004, handle(8)));
        // A freed object's handle that is the handle of an object here is not kept.
        let names = read.names(|_| true);
        assert_eq!(names.0[1][2], (0x3_0000_0002, handle(7)));
        assert_eq!(names.0[1][4], (0x1_0000_0004, 0));
        assert_eq!((own, read.next_serial), (&b"state"[..], 9));
    }

    #[test]
    fn every_cut_of_words_is_refused_and_so_is_a_byte_more() {
        let whole = words().write(b"state");
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
        assert!(Words::read(&wrong.write(b"")).is_err());
    }

    #[test]
    fn lists_that_no_process_has_are_refused() {
        type Lie = fn(&mut Words);
        let lies: [(&str, Lie); 8] = [
            ("an index twice", |it| it.names[1][1].key = 0x5_0000_0002),
            ("a handle twice", |it| it.names[1][1].handle = handle(7)),
            ("the IA's handle", |it| it.names[0].push(of_the_ia())),
            ("another kind", |it| it.names.swap(1, 2)),
            ("a later handle", |it| it.names[1][0].handle = handle(9)),
            ("a later freed handle", |it| {
                it.names[1][1].handle = handle(9);
            }),
            ("a later IA", |it| it.ia = handle(9)),
            ("a serial number", |it| it.next_serial = SERIALS + 1),
        ];
        for (what, lie) in lies {
            let mut wrong = words();
            lie(&mut wrong);
            assert!(Words::read(&wrong.write(b"")).is_err(), "{what}");
        }
        assert!(Words::read(&words().write(b"")).is_ok());
    }

    const fn of_the_ia() -> Name {
        Name {
            key: 1,
            handle: 5,
            is_valid: false,
        }
    }
}
