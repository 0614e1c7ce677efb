//! Measurement of one row: posts, completions and times.

use std::error::Error;
use std::time::Instant;

use serde::Serialize;
use udapl::memory::RmrTriplet;
use udapl::{CompletionFlags, DtoCookie, EpHandle};

use super::amount::Amount;
use super::latency::{self, Latency};
use super::{Measure, Operation, Plan, Row};
use crate::dialer::Dialer;
use crate::listener::{MEMORY_SEED, pattern};
use simnic::signals::Stop;

/// Cookies of the receive and of the request.
const RECEIVE: u64 = 1;
const SEND: u64 = 2;
const NONE: CompletionFlags = CompletionFlags::empty();
/// Slots of our memory: the source of Sends and Writes, the destination of Reads, and a copy of the peer's count.
pub(super) const OUTBOX: usize = 0;
pub(super) const INBOX: usize = 1;
const COUNT: usize = 2;

#[derive(Serialize)]
pub(super) struct Bandwidth {
    pub(super) operations: u64,
    seconds: f64,
    pub(super) bytes_per_second: f64,
    pub(super) operations_per_second: f64,
    /// Payload rate of the other end's own operations meanwhile; `None` if it has none.
    pub(super) reverse_bytes_per_second: Option<f64>,
}

/// The operation to post, and its data.
#[derive(Clone, Copy)]
pub(super) struct Kind<'a> {
    pub(super) operation: Operation,
    pub(super) bytes: usize,
    /// The data, if they are to be inline in the WQE.
    pub(super) inline: Option<&'a [u8]>,
}

impl Plan {
    /// Measures latency or bandwidth of a row on the existing connections.
    pub(super) fn measure_row(
        &self,
        row: &mut Row,
        measure: Measure,
        dialer: &mut Dialer,
        stop: &Stop,
    ) -> Result<(), Box<dyn Error>> {
        if stop.is_asked() {
            return Ok(());
        }
        let lanes = usize::from(self.lanes(measure));
        let bytes = usize::try_from(row.bytes)?;
        let sent = pattern(u32::try_from(row.bytes)?, bytes);
        for lane in 0..lanes {
            let (ep, region, _) = dialer.lane(lane);
            region.memory.write_from(region.offset(OUTBOX), &sent)?;
            self.check_inline(dialer, ep, bytes)?;
        }
        let kind = Kind {
            operation: row.operation,
            bytes,
            inline: self.inline.then_some(&sent[..]),
        };
        let (before, amount) = (self.before(row.bytes), self.amount(row.bytes));
        // Only lanes that had operations have bytes to compare.
        let mut used = vec![0; lanes];
        match measure {
            Measure::Latency => {
                one_by_one(dialer, kind, before, stop)?;
                let measured = one_by_one(dialer, kind, amount, stop)?;
                used[0] = measured.operations;
                row.latency = (measured.operations > 0).then_some(measured);
            }
            Measure::Bandwidth => {
                self.many(dialer, &mut used, kind, before, stop)?;
                let counted = self.counted(dialer, lanes)?;
                let (operations, seconds) = self.many(dialer, &mut used, kind, amount, stop)?;
                let reverse = self.counted(dialer, lanes)?.zip(counted);
                if operations > 0 {
                    let reverse = reverse.map(|(now, then)| {
                        let seconds = now.at.duration_since(then.at).as_secs_f64().max(1e-9);
                        reverse_rate(&then.operations, &now.operations, self.longest(), seconds)
                    });
                    row.bandwidth = Some(Bandwidth::of(
                        operations,
                        seconds,
                        row.bytes,
                        reverse.transpose()?,
                    ));
                }
            }
        }
        for lane in (0..lanes).filter(|lane| used[*lane] > 0) {
            match row.operation {
                Operation::Send => {}
                // Written bytes are read back. At first the peer's memory has its initial contents, on each connection.
                Operation::Write => {
                    let read = Kind {
                        operation: Operation::Read,
                        ..kind
                    };
                    post(dialer, lane, read, 1)?;
                    dialer.completed()?;
                    check(dialer, lane, &sent)?;
                }
                Operation::Read => check(dialer, lane, &pattern(MEMORY_SEED, bytes))?,
            }
        }
        Ok(())
    }

    /// Checks that the data fit a WQE, if the plan asks for inline data.
    pub(super) fn check_inline(
        &self,
        dialer: &Dialer,
        ep: EpHandle,
        bytes: usize,
    ) -> Result<(), Box<dyn Error>> {
        let most = dialer.adapter.ia.ep_inline_limit(ep)?;
        if self.inline && bytes > most {
            return Err(format!("--inline: at most {most} bytes fit an entry").into());
        }
        Ok(())
    }

    /// Returns the size of the longest message in bytes, which is also that of the other end's own operations.
    pub(super) fn longest(&self) -> u64 {
        self.sizes().iter().copied().max().unwrap_or(0)
    }

    /// Performs this amount of operations, and keeps as many outstanding as the depth allows. Returns their number and
    /// the seconds they took, and adds the number of each lane to `used`.
    pub(super) fn many(
        &self,
        dialer: &mut Dialer,
        used: &mut [u64],
        kind: Kind<'_>,
        amount: Amount,
        stop: &Stop,
    ) -> Result<(u64, f64), Box<dyn Error>> {
        let mut outstanding = vec![0; used.len()];
        let (mut posted, mut done) = (0, 0);
        let start = Instant::now();
        loop {
            if !stop.is_asked() && !amount.is_reached(posted, start) {
                for (lane, outstanding) in outstanding.iter_mut().enumerate() {
                    while self.depth - *outstanding >= self.batch {
                        let left = u32::try_from(amount.left(posted)).unwrap_or(u32::MAX);
                        let batch = self.batch.min(left);
                        if batch == 0 {
                            break;
                        }
                        post(dialer, lane, kind, batch)?;
                        *outstanding += batch;
                        posted += u64::from(batch);
                        used[lane] += u64::from(batch);
                    }
                }
            }
            if done == posted {
                break;
            }
            dialer.send_keep_alives()?;
            let completed = dialer.completed()?;
            outstanding[usize::try_from(completed.cookie.0 >> 32)?] -= 1;
            done += 1;
            dialer.serve_listener()?;
        }
        Ok((done, start.elapsed().as_secs_f64().max(1e-9)))
    }

    /// Reads the numbers of the other end's own operations; `None` without --both.
    fn counted(
        &self,
        dialer: &mut Dialer,
        lanes: usize,
    ) -> Result<Option<Counted>, Box<dyn Error>> {
        if !self.both {
            return Ok(None);
        }
        let mut all = Vec::new();
        for lane in 0..lanes {
            let (ep, region, reply) = dialer.lane(lane);
            let (into, at) = (region.local(COUNT, 8), region.offset(COUNT));
            let memory = region.memory.clone();
            let count = reply.count();
            let ia = &mut dialer.adapter.ia;
            ia.ep_post_rdma_read(ep, &[into], cookie(lane, SEND), &count, NONE)?;
            dialer.completed()?;
            let bytes = memory.read(at, 8)?;
            let bytes = bytes.first_chunk().ok_or("a count of fewer than 8 bytes")?;
            all.push(u64::from_be_bytes(*bytes));
        }
        Ok(Some(Counted {
            operations: all,
            at: Instant::now(),
        }))
    }
}

/// Numbers of the other end's own operations.
struct Counted {
    /// Number of each lane.
    operations: Vec<u64>,
    /// Time of reading.
    at: Instant,
}

/// Performs this amount of operations, one after the other, and measures the time of each.
pub(super) fn one_by_one(
    dialer: &mut Dialer,
    kind: Kind<'_>,
    amount: Amount,
    stop: &Stop,
) -> Result<Latency, Box<dyn Error>> {
    let mut times = latency::histogram();
    let begin = Instant::now();
    while !stop.is_asked() && !amount.is_reached(times.len(), begin) {
        dialer.send_keep_alives()?;
        let start = match kind.operation {
            Operation::Send => {
                let (ep, region, _) = dialer.lane(0);
                let inbox = region.local(INBOX, kind.bytes);
                let ia = &mut dialer.adapter.ia;
                ia.ep_post_recv(ep, &[inbox], cookie(0, RECEIVE), NONE)?;
                Instant::now()
            }
            Operation::Write | Operation::Read => Instant::now(),
        };
        post(dialer, 0, kind, 1)?;
        match kind.operation {
            Operation::Send => {
                for _ in [SEND, RECEIVE] {
                    let done = dialer.completed()?;
                    if done.cookie != cookie(0, RECEIVE) {
                        continue;
                    }
                    latency::count(&mut times, start.elapsed() / 2);
                    if done.transferred_length != kind.bytes as u64 {
                        let echo = done.transferred_length;
                        return Err(format!("an echo of {echo} bytes").into());
                    }
                }
            }
            Operation::Write | Operation::Read => {
                dialer.completed()?;
                latency::count(&mut times, start.elapsed());
            }
        }
    }
    Ok(Latency::of(kind.operation, times))
}

const fn cookie(lane: usize, what: u64) -> DtoCookie {
    // CAST: the number of lanes is small.
    DtoCookie((lane as u64) << 32 | what)
}

/// Posts `batch` operations with one doorbell: Sends and Writes from the outbox, Reads into the inbox.
pub(super) fn post(
    dialer: &mut Dialer,
    lane: usize,
    kind: Kind<'_>,
    batch: u32,
) -> Result<(), Box<dyn Error>> {
    let (ep, region, reply) = dialer.lane(lane);
    let (from, into) = (
        region.local(OUTBOX, kind.bytes),
        region.local(INBOX, kind.bytes),
    );
    let remote = RmrTriplet {
        segment_length: kind.bytes as u64,
        ..reply.memory
    };
    let cookie = cookie(lane, SEND);
    let ia = &mut dialer.adapter.ia;
    if let (Operation::Send, Some(data)) = (kind.operation, kind.inline) {
        return Ok(ia.ep_post_send_inline(ep, data, cookie, NONE)?);
    }
    if batch == 1 {
        return Ok(match kind.operation {
            Operation::Send => ia.ep_post_send(ep, &[from], cookie, NONE),
            Operation::Write => ia.ep_post_rdma_write(ep, &[from], cookie, &remote, NONE),
            Operation::Read => ia.ep_post_rdma_read(ep, &[into], cookie, &remote, NONE),
        }?);
    }
    Ok(ia.batch(ep, |posts| {
        for _ in 0..batch {
            match kind.operation {
                Operation::Send => posts.send(&[from], cookie, NONE),
                Operation::Write => posts.rdma_write(&[from], cookie, &remote, NONE),
                Operation::Read => posts.rdma_read(&[into], cookie, &remote, NONE),
            }?;
        }
        Ok(())
    })?)
}

/// Checks that the inbox holds the expected bytes.
fn check(dialer: &Dialer, lane: usize, expected: &[u8]) -> Result<(), Box<dyn Error>> {
    let (_, region, _) = dialer.lane(lane);
    let found = region.memory.read(region.offset(INBOX), expected.len())?;
    match found
        .iter()
        .zip(expected)
        .position(|(one, other)| one != other)
    {
        None => Ok(()),
        Some(at) => Err(format!(
            "byte {at} is {:#04x} and not {:#04x}",
            found[at], expected[at]
        )
        .into()),
    }
}

/// Returns the payload rate of the other end's own operations. `then` and `now` have one count for each lane.
///
/// # Errors
/// A count has fallen.
fn reverse_rate(then: &[u64], now: &[u64], bytes: u64, seconds: f64) -> Result<f64, String> {
    let mut operations = 0.0;
    for (then, now) in then.iter().zip(now) {
        let more = now.checked_sub(*then).ok_or_else(|| {
            format!("the other end's count of its operations fell from {then} to {now}")
        })?;
        operations += float(more);
    }
    Ok(operations * float(bytes) / seconds)
}

// CAST: counts below 2^53 are exact, and ours are below that. A larger count from the other end is rounded.
const fn float(number: u64) -> f64 {
    number as f64
}

impl Bandwidth {
    pub(super) fn of(operations: u64, seconds: f64, bytes: u64, reverse: Option<f64>) -> Self {
        Self {
            operations,
            seconds,
            bytes_per_second: float(operations.saturating_mul(bytes)) / seconds,
            operations_per_second: float(operations) / seconds,
            reverse_bytes_per_second: reverse,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reverse_rate_is_that_of_all_lanes() {
        assert_eq!(reverse_rate(&[10, 0], &[13, 5], 100, 2.0), Ok(400.0));
        assert_eq!(reverse_rate(&[], &[], 100, 2.0), Ok(0.0));
    }

    #[test]
    fn a_count_of_the_peer_that_falls_is_an_error() {
        let fallen = reverse_rate(&[7, 4], &[9, 3], 100, 1.0);
        let why = "the other end's count of its operations fell from 4 to 3";
        assert_eq!(fallen, Err(why.to_owned()));
    }

    #[test]
    fn counts_of_the_peer_may_have_any_value() {
        let rate = reverse_rate(&[0, 0], &[u64::MAX, u64::MAX], u64::MAX, 1.0);
        assert!(rate.is_ok_and(f64::is_finite));
    }
}
