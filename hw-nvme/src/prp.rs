//! Physical region pages: the addresses of a command's data (Base specification 2.0, "Physical Region Page Entry and
//! List").
//!
//! The first entry may begin anywhere in a page, at a multiple of 4. All others are whole pages. The second field of
//! the command is the second page, or the address of a list of all further pages. A list fits into one page, because a
//! transfer has at most [`MOST_PAGES`] pages behind the first.

use driver::{DmaBuffer, Iova};
use zerocopy::little_endian::U64;

/// Bytes of a memory page of the controller: CC.MPS is 0.
pub const PAGE: u64 = 4096;
/// Maximum number of pages of a list. One more entry is behind the last one.
pub const MOST_PAGES: usize = 511;
/// An address that no memory has. It is behind the last page of the data, so that a controller that reads more data
/// than there is, because the command names more blocks, does not find pages of an earlier command. Data of two pages
/// has no list: if its command names more blocks, the controller takes the second page for one.
const NOWHERE: u64 = 0xffff_ffff_ffff_f000;
/// Upper bound of the I/O addresses of data.
const LAST: u64 = 1 << 63;

/// A piece of a command's data.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Piece {
    /// I/O address of the first byte.
    pub iova: Iova,
    /// Length in bytes.
    pub bytes: u32,
}

/// Pieces that page entries cannot describe.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum PrpError {
    /// The first piece does not begin at a multiple of 4.
    #[error("the data begins at IOVA {iova:#x}, no multiple of 4")]
    Start {
        /// I/O address.
        iova: u64,
    },
    /// A piece that is not the first begins inside a page, or one that is not the last ends inside a page.
    #[error(
        "the data has a gap at IOVA {iova:#x}: only its first piece may begin inside a page, and only its last may end there"
    )]
    Gap {
        /// I/O address at which the piece begins, or behind which it ends.
        iova: u64,
    },
    /// There are more pages than a command of this queue may have.
    #[error("the data has more than {most} pages behind the first")]
    Pages {
        /// Maximum number.
        most: usize,
    },
    /// A piece is empty, or reaches beyond 2^63.
    #[error("a piece of {bytes:#x} bytes at IOVA {iova:#x}")]
    Piece {
        /// I/O address.
        iova: u64,
        /// Length in bytes.
        bytes: u32,
    },
}

/// Writes the list of a command's data into `list`, from byte `at` on, where there is room for `most` pages and one
/// more entry. Returns the two fields of the command.
pub fn write(
    pieces: &[Piece],
    (list, at): (&DmaBuffer, usize),
    most: usize,
) -> Result<[u64; 2], PrpError> {
    let Some(first) = pieces.first() else {
        return Ok([0; 2]);
    };
    let start = first.iova.0;
    if !start.is_multiple_of(4) {
        return Err(PrpError::Start { iova: start });
    }
    let (mut count, mut second) = (0, NOWHERE);
    for (number, piece) in pieces.iter().enumerate() {
        let (iova, bytes) = (piece.iova.0, piece.bytes);
        let end = iova.checked_add(bytes.into());
        let end = end.filter(|end| bytes > 0 && *end <= LAST);
        let end = end.ok_or(PrpError::Piece { iova, bytes })?;
        if number > 0 && !iova.is_multiple_of(PAGE) {
            return Err(PrpError::Gap { iova });
        }
        if number + 1 < pieces.len() && !end.is_multiple_of(PAGE) {
            return Err(PrpError::Gap { iova: end });
        }
        let mut page = iova - iova % PAGE;
        if number == 0 {
            page += PAGE;
        }
        while page < end {
            if count == most {
                return Err(PrpError::Pages { most });
            }
            if count == 0 {
                second = page;
            }
            list.write_obj(at + 8 * count, &U64::new(page));
            count += 1;
            page += PAGE;
        }
    }
    if count > 1 {
        list.write_obj(at + 8 * count, &U64::new(NOWHERE));
        second = list.iova().advance(at).0;
    }
    Ok([start, second])
}
