//! Transfers with every kind of DTO at sizes near limits. The received bytes are compared with the sent bytes.
//!
//! Each message completes before the next one begins, so that the kind, size and byte of a fault are known. The sizes
//! are at and near limits: nothing, a byte, an inline WQE, a page, a packet (the path MTU), several packets, a message
//! of megabytes. A buffer of three bytes or more has two segments, the second of which may begin unaligned. So
//! gathering and scattering are tested too.

use std::error::Error;

use udapl::memory::{LmrTriplet, RmrCookie, RmrTriplet};
use udapl::{CompletionFlags, DtoCookie, DtoStatus, Event, MemPrivFlags, network};

use super::pair::{Connection, FROM, INTO, Pair, Receives};
use crate::adapter::unexpected;
use crate::listener::pattern;

/// Size of the longest message, in bytes.
pub(super) const LONGEST: usize = 4 << 20;
/// Completion flags: none.
const NONE: CompletionFlags = CompletionFlags::empty();
/// Cookies of the request and of the receive.
const REQUEST: DtoCookie = DtoCookie(1);
const RECEIVE: DtoCookie = DtoCookie(2);
/// Fill byte of the destination before a message arrives.
const EMPTY: u8 = 0xee;
/// Number of bytes behind a message that must stay unchanged.
const BEHIND: usize = 64;

/// Kind of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Send,
    InlineSend,
    RdmaWrite,
    RdmaRead,
}

impl Kind {
    pub(super) const ALL: [Self; 4] = [
        Self::Send,
        Self::InlineSend,
        Self::RdmaWrite,
        Self::RdmaRead,
    ];
}

/// Totals of an exchange.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Exchanged {
    pub(super) messages: u64,
    pub(super) bytes: u64,
    /// True if a message went through a memory window; false if the device has no windows.
    pub(super) windows: bool,
}

impl Exchanged {
    pub(super) fn add(&mut self, bytes: usize) {
        self.messages += 1;
        self.bytes += bytes as u64;
    }
}

/// Returns the sizes to test for packets of `path_mtu` bytes of payload.
pub(super) fn sizes(path_mtu: usize) -> Vec<usize> {
    let around = |size: usize| [size - 1, size, size + 1];
    let mut sizes: Vec<usize> = [0, 1, 2, 3, 4]
        .into_iter()
        .chain([64, 256, 1024, 4096, 65_536].into_iter().flat_map(around))
        .chain(around(path_mtu))
        .chain(around(2 * path_mtu))
        .chain([1 << 20, (1 << 20) + 1, LONGEST - BEHIND])
        .collect();
    sizes.sort_unstable();
    sizes.dedup();
    sizes
}

/// Exchanges every kind and size in both directions. Then tests a window, receives of an SRQ, and an invalid key.
pub(super) fn everything(pair: &mut Pair) -> Result<Exchanged, Box<dyn Error>> {
    let path_mtu = 128_usize << network::port(&pair.adapter(0).ia).path_mtu.min(5);
    let mut exchanged = Exchanged::default();
    let connection = pair.connect(LONGEST, Receives::Own)?;
    for from in [0, 1] {
        for kind in Kind::ALL {
            for bytes in sizes(path_mtu) {
                if one(pair, &connection, from, kind, bytes)? {
                    exchanged.add(bytes);
                }
            }
        }
    }
    exchanged.windows = window(pair, &connection)?;
    if exchanged.windows {
        exchanged.add(WINDOW_BYTES);
    }
    pair.disconnect(&connection, 1)?;
    let connection = pair.connect(LONGEST, Receives::Shared)?;
    for bytes in sizes(path_mtu) {
        one(pair, &connection, 0, Kind::Send, bytes)
            .map_err(|error| format!("into a shared receive queue: {error}"))?;
        exchanged.add(bytes);
    }
    pair.disconnect(&connection, 0)?;
    refused(pair)?;
    Ok(exchanged)
}

/// Sends one message from one side to the other. Returns false if the kind is not possible at this size.
pub(super) fn one(
    pair: &mut Pair,
    connection: &Connection,
    from: usize,
    kind: Kind,
    bytes: usize,
) -> Result<bool, Box<dyn Error>> {
    let outcome = attempt(pair, connection, from, kind, bytes);
    let (one, other) = (pair.name(from), pair.name(1 - from));
    outcome.map_err(|error| format!("{kind:?} of {bytes} bytes, {one} to {other}: {error}").into())
}

fn attempt(
    pair: &mut Pair,
    connection: &Connection,
    from: usize,
    kind: Kind,
    bytes: usize,
) -> Result<bool, Box<dyn Error>> {
    let ep = connection.eps[from];
    let to = 1 - from;
    // An RDMA Read transfers from the other side's memory to this side's.
    let (source, sink) = if kind == Kind::RdmaRead {
        (to, from)
    } else {
        (from, to)
    };
    if kind == Kind::InlineSend && bytes > pair.adapter(from).ia.ep_inline_limit(ep)? {
        return Ok(false);
    }
    let seed = u32::try_from(bytes)?.wrapping_mul(8) + kind as u32;
    let data = pattern(seed, bytes);
    let source_region = &connection.regions[source];
    source_region
        .memory
        .write_from(source_region.offset(FROM), &data)?;
    let sink_region = &connection.regions[sink];
    let place = sink_region.offset(INTO);
    let room = (bytes + BEHIND).min(sink_region.offset(1));
    sink_region.memory.write_from(place, &vec![EMPTY; room])?;
    let here = connection.pieces(
        from,
        if kind == Kind::RdmaRead { INTO } else { FROM },
        bytes,
    );
    let there = |slot| RmrTriplet {
        segment_length: bytes as u64,
        ..connection.regions[to].remote(slot)
    };
    let events = match kind {
        Kind::Send | Kind::InlineSend => {
            pair.receive(connection, to, bytes, RECEIVE)?;
            2
        }
        Kind::RdmaWrite | Kind::RdmaRead => 1,
    };
    let ia = &mut pair.adapter(from).ia;
    match kind {
        Kind::Send => ia.ep_post_send(ep, &here, REQUEST, NONE)?,
        Kind::InlineSend => ia.ep_post_send_inline(ep, &data, REQUEST, NONE)?,
        Kind::RdmaWrite => ia.ep_post_rdma_write(ep, &here, REQUEST, &there(INTO), NONE)?,
        Kind::RdmaRead => ia.ep_post_rdma_read(ep, &here, REQUEST, &there(FROM), NONE)?,
    }
    for done in pair.completed(events)? {
        if done.cookie == RECEIVE && done.transferred_length != bytes as u64 {
            return Err(
                format!("{} bytes are said to have arrived", done.transferred_length).into(),
            );
        }
    }
    let sink_region = &connection.regions[sink];
    let found = sink_region.memory.read(place, room)?;
    compare(&found, &data)?;
    Ok(true)
}

/// Checks that the received bytes are those sent, and that the bytes behind them are unchanged.
fn compare(found: &[u8], sent: &[u8]) -> Result<(), String> {
    let expected = sent.iter().copied().chain(std::iter::repeat(EMPTY));
    let wrong: Vec<(usize, u8, u8)> = found
        .iter()
        .zip(expected)
        .enumerate()
        .filter(|(_, (found, expected))| *found != expected)
        .map(|(at, (&found, expected))| (at, found, expected))
        .collect();
    match wrong.first() {
        None => Ok(()),
        Some((at, found, expected)) => Err(format!(
            "{} bytes are wrong, the first is byte {at}{}: {found:#04x}, not {expected:#04x}",
            wrong.len(),
            if *at < sent.len() {
                ""
            } else {
                ", which is behind the message"
            }
        )),
    }
}

/// Size of the window, in bytes.
const WINDOW_BYTES: usize = 5000;

/// Binds a window to a part of side 1's memory, writes through it from side 0, and unbinds it. Returns false if the
/// device has no windows.
fn window(pair: &mut Pair, connection: &Connection) -> Result<bool, Box<dyn Error>> {
    let (ep, zone) = (connection.eps[1], pair.adapter(1).zone);
    let region = &connection.regions[1];
    let (memory, at) = (region.memory.clone(), region.offset(INTO));
    let place = region.local(INTO, WINDOW_BYTES);
    let passive = &mut pair.adapter(1).ia;
    if passive.query().ia.max_rmrs == 0 {
        return Ok(false);
    }
    let rmr = passive.rmr_create(zone)?;
    let rights = MemPrivFlags::REMOTE_READ | MemPrivFlags::REMOTE_WRITE;
    let context = passive.rmr_bind(rmr, &place, rights, ep, RmrCookie(0), NONE)?;
    bound(pair, "a window")?;
    let data = pattern(0xb1d, WINDOW_BYTES);
    memory.write_from(at, &vec![EMPTY; WINDOW_BYTES])?;
    let own = &connection.regions[0];
    own.memory.write_from(own.offset(FROM), &data)?;
    let target = RmrTriplet {
        rmr_context: context,
        target_address: place.virtual_address,
        segment_length: WINDOW_BYTES as u64,
    };
    let from = connection.pieces(0, FROM, WINDOW_BYTES);
    let active = &mut pair.adapter(0).ia;
    active.ep_post_rdma_write(connection.eps[0], &from, REQUEST, &target, NONE)?;
    pair.completed(1)
        .map_err(|error| format!("RDMA Write through a window: {error}"))?;
    compare(&memory.read(at, WINDOW_BYTES)?, &data)
        .map_err(|error| format!("RDMA Write through a window: {error}"))?;
    let nothing = LmrTriplet {
        segment_length: 0,
        ..place
    };
    let passive = &mut pair.adapter(1).ia;
    passive.rmr_bind(rmr, &nothing, rights, ep, RmrCookie(0), NONE)?;
    bound(pair, "the end of a window")?;
    pair.adapter(1).ia.rmr_free(rmr)?;
    Ok(true)
}

fn bound(pair: &mut Pair, what: &str) -> Result<(), Box<dyn Error>> {
    let event = pair.event()?;
    let Event::RmrBind(done) = &event else {
        return Err(unexpected(&event, what));
    };
    if done.status == DtoStatus::Success {
        Ok(())
    } else {
        Err(format!("{what}: bind: {:?}", done.status).into())
    }
}

/// Checks that an RDMA Write with an rkey that was never given out ends in an error at the sender, and writes
/// nothing.
fn refused(pair: &mut Pair) -> Result<(), Box<dyn Error>> {
    let connection = pair.connect(4096, Receives::Own)?;
    let region = &connection.regions[1];
    let (memory, at) = (region.memory.clone(), region.offset(INTO));
    memory.write_from(at, &[EMPTY; BEHIND])?;
    let target = RmrTriplet {
        segment_length: BEHIND as u64,
        // The low byte of an rkey is its variant: the key's index is valid, its variant is not.
        rmr_context: region.remote(INTO).rmr_context ^ 0x5a,
        ..region.remote(INTO)
    };
    let from = connection.pieces(0, FROM, BEHIND);
    let active = &mut pair.adapter(0).ia;
    active.ep_post_rdma_write(connection.eps[0], &from, REQUEST, &target, NONE)?;
    loop {
        let event = pair.event()?;
        if let Event::Dto(done) = &event
            && done.cookie == REQUEST
        {
            if done.status == DtoStatus::Success {
                return Err("RDMA Write by a key that nobody was given: it succeeded".into());
            }
            break;
        }
    }
    compare(&memory.read(at, BEHIND)?, &[])
        .map_err(|error| format!("RDMA Write by a key that nobody was given: {error}"))?;
    pair.release(&connection)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_lie_around_every_limit_once_and_in_order() {
        let sizes = sizes(1024);
        assert!(sizes.is_sorted_by(|one, next| one < next));
        for size in [0, 1, 63, 1023, 1025, 2047, 2049, 4097, 65_537] {
            assert!(sizes.contains(&size), "{size}");
        }
    }

    #[test]
    fn a_byte_that_is_wrong_missing_or_behind_the_message_is_told_with_its_place() {
        let sent = pattern(1, 100);
        let mut found = sent.clone();
        found.extend([EMPTY; BEHIND]);
        assert_eq!(compare(&found, &sent), Ok(()));
        let mut changed = found.clone();
        changed[17] ^= 0x01;
        changed[99] ^= 0xff;
        let error = compare(&changed, &sent).expect_err("it is wrong");
        assert!(
            error.starts_with("2 bytes are wrong, the first is byte 17: "),
            "{error}"
        );
        let mut longer = found;
        longer[100] = 0;
        let error = compare(&longer, &sent).expect_err("it is longer");
        assert!(
            error.contains("byte 100, which is behind the message"),
            "{error}"
        );
    }
}
