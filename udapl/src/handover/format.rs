//! The form of a snapshot in bytes.
//!
//! ```text
//!   bytes     contents (numbers are little-endian)
//!   0..8      MAGIC
//!   8..12     version of this form
//!   12..16    number of layers
//!   16..24    length of the contents
//!   24..28    CRC-32 of all other bytes
//!   28..      the layers: 16 bytes with the name, 4 with the version of its snapshots
//!             the contents: the instances of an adapter, or a list of them for several adapters, and the program's
//!             own bytes, in postcard's form
//! ```
//!
//! postcard's form has no names and no types, so both sides must know the same ones. Each layer has a version, which
//! changes with any type in its snapshots. A snapshot with another version is refused with the name of the layer.
//!
//! A snapshot is not trusted. The lengths of its parts are checked first. A list takes memory only for elements that
//! the snapshot has. Each layer checks its numbers when it resumes. If a type changes and the version of its layer does
//! not, the snapshot is read wrongly, and is refused only if a number is not possible.

use dat_core::provider::ParkProvider;
use dat_core::snapshot::{IaSnapshot, IaTables};
use serde::{Deserialize, Serialize};
use thiserror::Error;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::adapters::MAX_ADAPTERS;

/// Maximum number of a program's own bytes.
pub const MAX_WORDS: usize = 16 << 20;

const MAGIC: [u8; 8] = *b"udapl\r\n\x1a";
/// Version of a snapshot of one adapter.
const VERSION: u32 = 2;
/// Version of a snapshot of several adapters, whose contents begin with a list.
const SEVERAL: u32 = 3;
/// The layers, and the versions of their snapshots. A version changes if the form of a type in the layer's snapshots
/// does, including types of other crates in them. It does not change if a variant is added at the end of an
/// enumeration: an older library refuses that variant when it reads it.
const LAYERS: [(&str, u32); 5] = [
    ("driver", 1),
    ("hw-mlx", 1),
    ("neighbour", 1),
    ("dat-core", 2),
    ("dat-mlx", 2),
];
const NAME_BYTES: usize = 16;

/// Reasons why bytes are not a snapshot that can be read, or why a snapshot cannot be written.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum FormatError {
    /// The snapshot is shorter than its parts, or longer.
    #[error("the snapshot has {bytes} bytes; its header and its parts have {counted}")]
    Length {
        /// Length of the snapshot.
        bytes: u64,
        /// Length according to the header; the header's own length if the snapshot is shorter.
        counted: u64,
    },
    /// The bytes do not begin as a snapshot does.
    #[error("not a snapshot: the first bytes are {found:02x?}")]
    Magic {
        /// Its first bytes.
        found: [u8; 8],
    },
    /// The form has another version.
    #[error("a snapshot in form {found}; this library reads forms {VERSION} and {SEVERAL}")]
    Version {
        /// The version.
        found: u32,
    },
    /// A layer has another version, or other layers are there.
    #[error("a snapshot of layers {found}; this library reads {wanted}")]
    Layers {
        /// The snapshot's layers, with their versions.
        found: String,
        /// This library's.
        wanted: String,
    },
    /// Bytes were changed.
    #[error(
        "the snapshot is damaged: its CRC-32 is {computed:#010x}, and its header has {stated:#010x}"
    )]
    Checksum {
        /// The CRC of the bytes.
        computed: u32,
        /// The CRC in the header.
        stated: u32,
    },
    /// The contents are not those of a snapshot.
    #[error("the snapshot's contents: {why}")]
    Contents {
        /// postcard's reason.
        why: String,
    },
    /// The program's own bytes are too many.
    #[error("the program's own data has {bytes} bytes; a snapshot has room for {MAX_WORDS}")]
    Words {
        /// Their number.
        bytes: usize,
    },
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Header {
    magic: [u8; 8],
    version: U32,
    layers: U32,
    content_bytes: U64,
    checksum: U32,
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Layer {
    name: [u8; NAME_BYTES],
    version: U32,
}

impl Layer {
    fn new(name: &str, version: u32) -> Self {
        let mut bytes = [0; NAME_BYTES];
        bytes[..name.len()].copy_from_slice(name.as_bytes());
        Self {
            name: bytes,
            version: version.into(),
        }
    }

    /// Returns name and version, for messages.
    fn describe(&self) -> String {
        let name = self.name.split(|byte| *byte == 0).next();
        let name = name.unwrap_or_default().escape_ascii();
        format!("{name} {}", self.version)
    }
}

/// Returns the layers of this library.
fn layers() -> Vec<Layer> {
    let all = LAYERS.iter();
    all.map(|(name, version)| Layer::new(name, *version))
        .collect()
}

fn describe(layers: &[Layer]) -> String {
    let all: Vec<String> = layers.iter().map(Layer::describe).collect();
    all.join(", ")
}

#[derive(Serialize)]
#[serde(bound = "IaSnapshot<P>: Serialize")]
struct Written<'a, P: ParkProvider> {
    ias: &'a IaSnapshot<P>,
    #[serde(with = "serde_bytes")]
    words: &'a [u8],
}

#[derive(Serialize)]
#[serde(bound = "IaSnapshot<P>: Serialize")]
struct WrittenSeveral<'a, P: ParkProvider> {
    adapters: &'a [IaSnapshot<P>],
    #[serde(with = "serde_bytes")]
    words: &'a [u8],
}

#[derive(Deserialize)]
#[serde(bound = "IaSnapshot<P>: Deserialize<'de>")]
struct Read<P: ParkProvider> {
    ias: IaSnapshot<P>,
    #[serde(with = "serde_bytes")]
    words: Vec<u8>,
}

#[derive(Deserialize)]
#[serde(bound = "IaSnapshot<P>: Deserialize<'de>")]
struct ReadSeveral<P: ParkProvider> {
    adapters: Vec<IaSnapshot<P>>,
    #[serde(with = "serde_bytes")]
    words: Vec<u8>,
}

/// Writes a snapshot of adapters.
pub(super) fn write<P: ParkProvider>(
    adapters: &[IaSnapshot<P>],
    words: &[u8],
) -> Result<Vec<u8>, FormatError>
where
    P::Snapshot: Serialize,
    IaTables<P>: Serialize,
{
    let (version, written) = match adapters {
        [ias] => (VERSION, postcard::to_stdvec(&Written { ias, words })),
        [..] => {
            let several = WrittenSeveral { adapters, words };
            (SEVERAL, postcard::to_stdvec(&several))
        }
    };
    let contents = written.map_err(contents)?;
    let layers = layers();
    let mut header = Header {
        magic: MAGIC,
        version: version.into(),
        // PANIC: five layers.
        layers: u32::try_from(layers.len()).expect("a small number").into(),
        // CAST: usize has at most 64 bits on every target Rust has.
        content_bytes: (contents.len() as u64).into(),
        checksum: 0.into(),
    };
    header.checksum = checksum(header, layers.as_bytes(), &contents).into();
    Ok([header.as_bytes(), layers.as_bytes(), &contents].concat())
}

/// Reads a snapshot: its adapters, at least one, and the program's own bytes.
pub(super) fn read<P: ParkProvider>(
    bytes: &[u8],
) -> Result<(Vec<IaSnapshot<P>>, Vec<u8>), FormatError>
where
    P::Snapshot: for<'de> Deserialize<'de>,
    IaTables<P>: for<'de> Deserialize<'de>,
{
    // CAST: as above.
    let length = |counted: u64| FormatError::Length {
        bytes: bytes.len() as u64,
        counted,
    };
    let short = |_| length(size_of::<Header>() as u64);
    let (header, rest) = Header::read_from_prefix(bytes).map_err(short)?;
    if header.magic != MAGIC {
        let found = header.magic;
        return Err(FormatError::Magic { found });
    }
    let found = header.version.get();
    if ![VERSION, SEVERAL].contains(&found) {
        return Err(FormatError::Version { found });
    }
    let layer_bytes = u64::from(header.layers.get()) * size_of::<Layer>() as u64;
    let counted = header.content_bytes.get().checked_add(layer_bytes);
    // CAST: as above.
    if counted != Some(rest.len() as u64) {
        return Err(length(
            counted
                .unwrap_or(u64::MAX)
                .saturating_add(size_of::<Header>() as u64),
        ));
    }
    // PANIC: at most the length of `rest`.
    let at = usize::try_from(layer_bytes).expect("inside the snapshot");
    let (there, contained) = rest.split_at(at);
    let (computed, stated) = (checksum(header, there, contained), header.checksum.get());
    if computed != stated {
        return Err(FormatError::Checksum { computed, stated });
    }
    let wanted = layers();
    if there != wanted.as_bytes() {
        let found = there.as_chunks::<{ size_of::<Layer>() }>().0.iter();
        // PANIC: the chunk has the layer's size, and every bit pattern is a layer.
        let found = found.map(|it| Layer::read_from_bytes(it).expect("a layer's bytes"));
        let found: Vec<Layer> = found.take(2 * wanted.len()).collect();
        let (found, wanted) = (describe(&found), describe(&wanted));
        return Err(FormatError::Layers { found, wanted });
    }
    let (adapters, words, after) = if found == SEVERAL {
        let read = postcard::take_from_bytes::<ReadSeveral<P>>(contained);
        let (ReadSeveral { adapters, words }, after) = read.map_err(contents)?;
        (adapters, words, after)
    } else {
        let read = postcard::take_from_bytes::<Read<P>>(contained);
        let (Read { ias, words }, after) = read.map_err(contents)?;
        (vec![ias], words, after)
    };
    let count = adapters.len();
    if found == SEVERAL && !(2..=MAX_ADAPTERS).contains(&count) {
        let why = format!("{count} adapters");
        return Err(FormatError::Contents { why });
    }
    if !after.is_empty() {
        let why = format!("{} bytes follow them", after.len());
        return Err(FormatError::Contents { why });
    }
    let bytes = words.len();
    if bytes > MAX_WORDS {
        return Err(FormatError::Words { bytes });
    }
    Ok((adapters, words))
}

/// Returns the CRC-32 of all bytes except the checksum itself.
fn checksum(mut header: Header, layers: &[u8], contents: &[u8]) -> u32 {
    header.checksum = 0.into();
    let mut crc = crc32fast::Hasher::new();
    crc.update(header.as_bytes());
    crc.update(layers);
    crc.update(contents);
    crc.finalize()
}

fn contents(error: postcard::Error) -> FormatError {
    let why = error.to_string();
    FormatError::Contents { why }
}
