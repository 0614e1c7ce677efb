//! A profile in a recording: its stored form, and the checks before a function is made from it.
//!
//! Capability pages are stored as the bytes that the device would return. A recording is untrusted input, so this
//! module repeats the checks that the reader of a profile file makes.

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::time::Duration;

use super::build::{bar, can_be_lowered, pages, vectors};
use super::document::{PAGE_BYTES, wrong};
use super::{Page, Profile, ProfileError, Rest};
use crate::pages::PageProfile;
use mlx_prm::Layout;

/// Upper limit of each firmware time in a file.
const LONGEST: Duration = Duration::from_secs(3600);
/// Exclusive upper limit of the length of a recorded register, in bytes: the length field has 16 bits.
const REGISTER_BYTES: usize = 1 << 16;

pub(super) fn serialize<T: Layout, S: Serializer>(layout: &T, to: S) -> Result<S::Ok, S::Error> {
    layout.as_bytes().serialize(to)
}

pub(super) fn deserialize<'a, T: Layout, D: Deserializer<'a>>(from: D) -> Result<T, D::Error> {
    let bytes = Vec::<u8>::deserialize(from)?;
    T::read_from_bytes(&bytes)
        .map_err(|_| D::Error::custom(format!("{} bytes are no {}", bytes.len(), T::TYPE_NAME)))
}

#[derive(Serialize, Deserialize)]
struct Stored {
    max: Vec<u8>,
    current: Vec<u8>,
    rest: Rest,
}

impl<T: Layout> Serialize for Page<T> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let stored = Stored {
            max: self.max.as_bytes().to_vec(),
            current: self.current.as_bytes().to_vec(),
            rest: self.rest.clone(),
        };
        stored.serialize(to)
    }
}

impl<'a, T: Layout> Deserialize<'a> for Page<T> {
    fn deserialize<D: Deserializer<'a>>(from: D) -> Result<Self, D::Error> {
        let stored = Stored::deserialize(from)?;
        let layout = |bytes: &[u8], rest: &[u8]| {
            let whole = bytes.len() + rest.len();
            let read = T::read_from_bytes(bytes)
                .ok()
                .filter(|_| whole <= PAGE_BYTES);
            read.ok_or_else(|| D::Error::custom(format!("{whole} bytes are no {}", T::TYPE_NAME)))
        };
        Ok(Self {
            max: layout(&stored.max, &stored.rest.max)?,
            current: layout(&stored.current, &stored.rest.current)?,
            rest: stored.rest,
        })
    }
}

impl Profile {
    /// Checks that a function can be made from a profile that comes from an untrusted source.
    ///
    /// # Errors
    /// [`ProfileError`]: the wrong value.
    pub(crate) fn check(&self) -> Result<(), ProfileError> {
        let number =
            |place: &str, done: Result<(), String>| done.map_err(|what| wrong(place, what));
        number("pci.bar_bytes", bar(self.bar_bytes as u64).map(drop))?;
        number(
            "pci.msix_vectors",
            vectors(self.msix_vectors.into()).map(drop),
        )?;
        let wanted = |of: &PageProfile| {
            let PageProfile {
                boot,
                init,
                regular,
                runtime,
                ..
            } = *of;
            let mut wanted = [boot, init, regular, runtime].into_iter();
            wanted.try_for_each(|count| pages(count.into()).map(drop))
        };
        number("firmware_pages", wanted(&self.pages))?;
        if let Some(facts) = &self.virtual_functions {
            number("vf.firmware_pages", wanted(&facts.pages))?;
            number("vf.bar_bytes", bar(facts.bar_bytes as u64).map(drop))?;
            number(
                "vf.msix_vectors",
                vectors(facts.msix_vectors.into()).map(drop),
            )?;
            for most in &facts.capabilities {
                number(
                    &format!("vf.{}.{}", most.section, most.field),
                    can_be_lowered(most),
                )?;
            }
        }
        if self.psid.len() > 16 {
            return Err(wrong("firmware.psid", "has more than 16 characters"));
        }
        let times = [
            self.boot_time,
            self.silent_time,
            self.deaf_time,
            self.command_time,
            self.command_jitter,
        ];
        if times.iter().any(|time| *time > LONGEST) {
            return Err(wrong("firmware", "takes longer than an hour"));
        }
        let pages = self.other_pages.values();
        if pages
            .flat_map(|page| [&page.max, &page.current])
            .any(|half| half.len() != PAGE_BYTES)
        {
            return Err(wrong("page", format!("has not {PAGE_BYTES} bytes")));
        }
        if self
            .registers
            .values()
            .any(|image| image.len() >= REGISTER_BYTES)
        {
            return Err(wrong("register", "is too long"));
        }
        Ok(())
    }
}
