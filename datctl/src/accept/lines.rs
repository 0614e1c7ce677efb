//! The lines of an acceptance run that need only the functions.
//!
//! Each line opens the functions it needs, does one thing, reports its result in a sentence, and closes them.

use std::error::Error;
use std::path::Path;
use std::time::{Duration, Instant};

use udapl::CloseFlags;
use udapl::adapter::{self, CloseReport};

use super::between::{self, Between};
use super::exchange::{self, Exchanged, Kind, LONGEST};
use super::pair::{Pair, QUALIFIER, Receives};
use super::subject::Subject;
use crate::adapter::Adapter;
use crate::dialer::Dialer;
use crate::ends::Target;
use crate::info;
use crate::listener::{Listener, pattern};
use crate::perf::{Figures, Plan};
use crate::record;
use simnic::signals::Stop;

/// Number of times that a function is brought up.
const BRING_UPS: usize = 10;
/// Number of connections that the line "connections" makes.
const CONNECTIONS: usize = 100;
/// One in this many connections of the line "connections" is refused.
const REFUSED: usize = 10;
/// Size in bytes of a slot for messages that only show that a connection works.
pub(super) const SHORT: usize = 4096;
/// Number of operations of a measurement on a simulated function.
const SIMULATED_COUNT: u64 = 50;
/// Number of messages on a connection of the soak before it makes a new connection.
const MESSAGES_PER_CONNECTION: usize = 200;

/// Opens and closes a function repeatedly. Its identity must be the same each time, and it must leave no resource
/// behind.
pub(super) fn bring_up(subject: &Subject<'_>) -> Result<String, Box<dyn Error>> {
    let (mut times, mut first) = (Vec::new(), None);
    let mut commands = 0;
    for number in 1..=BRING_UPS {
        let start = Instant::now();
        let ia = subject
            .open()
            .map_err(|error| format!("bring-up {number}: {error}"))?;
        times.push(start.elapsed());
        let hca = adapter::hca(&ia);
        let identity = (
            hca.device_id(),
            hca.firmware_version(),
            hca.port().node_guid,
        );
        let report = udapl::ia_close(ia, CloseFlags::Graceful)
            .map_err(|error| format!("the end of bring-up {number}: {error}"))?;
        left_behind(&report).map_or(Ok(()), |what| {
            Err(format!("the end of bring-up {number}: {what}"))
        })?;
        let known = *first.get_or_insert(identity);
        if known != identity {
            return Err(
                format!("bring-up {number}: {identity:x?}, and {known:x?} at first").into(),
            );
        }
        commands = report.commands;
    }
    times.sort_unstable();
    Ok(format!(
        "{BRING_UPS} times, {:.1} ms in the middle, {:.1} ms at most; {commands} commands each; nothing left behind",
        millis(times[BRING_UPS / 2]),
        millis(times[BRING_UPS - 1])
    ))
}

/// Writes the function's record to a file.
pub(super) fn record(subject: &Subject<'_>, file: &Path) -> Result<String, Box<dyn Error>> {
    record::keep(&subject.name, file, || subject.function()).map(|recorded| recorded.summary())
}

/// Returns the first problem that a close reports: the device died, or a resource was not given back. `None` if there
/// is no problem.
fn left_behind(report: &CloseReport) -> Option<String> {
    if let Some(cause) = &report.dead {
        return Some(format!("the device died: {cause}"));
    }
    if report.pages_not_returned > 0 {
        return Some(format!(
            "{} of {} pages were not given back",
            report.pages_not_returned, report.pages_given
        ));
    }
    if report.page_requests_refused > 0 {
        return Some(format!(
            "{} requests for pages could not be met",
            report.page_requests_refused
        ));
    }
    if let Some((kind, number)) = report.objects_left.first() {
        return Some(format!("{kind} {number:#x} was not destroyed"));
    }
    (report.slots_quarantined > 0)
        .then(|| format!("{} commands were never answered", report.slots_quarantined))
}

/// Checks that the link is up, and that the e-switch knows the function's MAC.
pub(super) fn port(subject: &Subject<'_>) -> Result<(String, info::Adapter), Box<dyn Error>> {
    let mut ia = subject.open()?;
    let adapter = info::Adapter::of(&mut ia);
    udapl::ia_close(ia, CloseFlags::Abrupt)?;
    let adapter = adapter?;
    let port = &adapter.port;
    if !port.link_up {
        return Err(format!(
            "the link is down (the vport's owner says: {}): is the physical function's interface up, and the cable in? datctl doctor",
            port.vport_admin
        )
        .into());
    }
    if !port.unicast.contains(&port.mac) {
        return Err(format!(
            "the e-switch was not told of {}, only of: {}",
            port.mac,
            port.unicast.join(", ")
        )
        .into());
    }
    Ok((adapter.summary(), adapter))
}

/// Transfers messages of every kind and size, within one function or between two. Also tests a shared receive queue, a
/// memory window and an invalid key.
pub(super) fn dtos(subjects: &[Subject<'_>]) -> Result<String, Box<dyn Error>> {
    let done = Pair::with(subjects, exchange::everything)?;
    let window = if done.windows {
        "a window"
    } else {
        "no window, which the device does not have"
    };
    Ok(format!(
        "{} messages, {} bytes, all compared: sends (also inline, and into a shared receive queue), RDMA Writes and Reads, {window}; a key that nobody was given is refused",
        done.messages, done.bytes
    ))
}

/// Checks that two functions reach each other.
pub(super) fn meet(
    subjects: &[Subject<'_>],
    keep: impl FnOnce(&Between) -> Result<(), Box<dyn Error>>,
) -> Result<String, Box<dyn Error>> {
    Pair::with(subjects, |pair| {
        between::counted(pair, keep, |pair| {
            for from in [0, 1] {
                one_message(pair, from)?;
            }
            let (one, other) = (pair.name(0), pair.name(1));
            Ok(format!("{one} and {other} reach each other"))
        })
    })
}

/// Makes a connection, sends one message on the connection, and disconnects.
pub(super) fn one_message(pair: &mut Pair, from: usize) -> Result<(), Box<dyn Error>> {
    let connection = pair.connect(SHORT, Receives::Own)?;
    exchange::one(pair, &connection, from, Kind::Send, SHORT / 2)?;
    pair.disconnect(&connection, from)
}

/// Makes and ends `CONNECTIONS` connections, some of which the peer refuses.
pub(super) fn churn(
    subjects: &[Subject<'_>],
    keep: impl FnOnce(&Between) -> Result<(), Box<dyn Error>>,
) -> Result<String, Box<dyn Error>> {
    Pair::with(subjects, |pair| {
        between::counted(pair, keep, connect_repeatedly)
    })
}

fn connect_repeatedly(pair: &mut Pair) -> Result<String, Box<dyn Error>> {
    let start = Instant::now();
    for number in 0..CONNECTIONS {
        let outcome = if number % REFUSED == REFUSED - 1 {
            pair.connect_refused(number % (2 * REFUSED) == REFUSED - 1)
        } else {
            one_message(pair, number % 2)
        };
        outcome.map_err(|error| format!("connection {number}: {error}"))?;
    }
    let each = start.elapsed() / u32::try_from(CONNECTIONS)?;
    Ok(format!(
        "{CONNECTIONS} connections, {} of them refused as they should be; {:.2} ms each",
        CONNECTIONS / REFUSED,
        millis(each)
    ))
}

/// Measures latency and bandwidth between two functions.
pub(super) fn perf(
    one: &Subject<'_>,
    other: &Subject<'_>,
) -> Result<(String, Figures), Box<dyn Error>> {
    let simulated = one.simulated || other.simulated;
    let plan = Plan::brief(simulated.then_some(SIMULATED_COUNT));
    let listener = Listener::on(Adapter::of(other.open()?)?, QUALIFIER)?;
    let target = Target {
        address: listener.address(),
        qualifier: QUALIFIER,
    };
    let mut dialer = Dialer::on(Adapter::of(one.open()?)?).beside(listener);
    let figures = plan.figures(&mut dialer, &target, &one.name, &Stop::never());
    let closed = dialer.close();
    let figures = figures?;
    closed?;
    Ok((figures.summary(), figures))
}

/// Sends messages of all kinds and sizes on connection after connection, until `is_over`.
pub(super) fn soak(
    subjects: &[Subject<'_>],
    mut is_over: impl FnMut() -> bool,
) -> Result<String, Box<dyn Error>> {
    let (mut done, mut connections) = (Exchanged::default(), 0_u64);
    Pair::with(subjects, |pair| {
        while !is_over() {
            let connection = pair.connect(LONGEST, Receives::Own)?;
            // Kinds and sizes of the messages follow from the connection's number, so that a failure can be reproduced.
            let dice = pattern(
                u32::try_from(connections & 0xffff)?,
                4 * MESSAGES_PER_CONNECTION,
            );
            for (number, dice) in dice.chunks_exact(4).enumerate() {
                let kind = Kind::ALL[usize::from(dice[0]) % Kind::ALL.len()];
                let bytes = size(dice[1], u16::from_be_bytes([dice[2], dice[3]]));
                let sent = exchange::one(pair, &connection, usize::from(dice[0] >> 7), kind, bytes)
                    .map_err(|error| {
                        format!("connection {connections}, message {number}: {error}")
                    })?;
                if sent {
                    done.add(bytes);
                }
                if is_over() {
                    break;
                }
            }
            let side = usize::from(connections % 2 == 1);
            pair.disconnect(&connection, side)?;
            connections += 1;
        }
        Ok(())
    })?;
    Ok(format!(
        "{} messages, {} bytes, all compared, on {connections} connections",
        done.messages, done.bytes
    ))
}

/// Returns a size of 1 byte to 64 KiB. `log` selects its logarithm, so that short sizes are as frequent as long ones.
fn size(log: u8, bits: u16) -> usize {
    let most = 1_usize << (log % 17);
    usize::from(bits) % most + 1
}

pub(super) fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}
