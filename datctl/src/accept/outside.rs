//! The lines that act on a function from outside while it works.
//!
//! Messages pass, and then the act occurs. If the link goes down, the port must report this within `NOTICE_LIMIT`, and
//! messages must pass again once the link is up. After every other act the driver must report an error within
//! `NOTICE_LIMIT` and release the function. Then the functions must open again and pass messages. A driver that
//! continues as if nothing had happened is as wrong as one that hangs.

use std::error::Error;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use udapl::{CompletionFlags, DtoCookie, DtoStatus, Event, adapter};

use super::Outcome;
use super::exchange::{self, Kind};
use super::lines::{SHORT, millis, one_message};
use super::pair::{Connection, FROM, Pair, QUALIFIER, Receives, SIDES};
use super::subject::Subject;
use crate::adapter::{Adapter, PATIENCE};
use crate::dialer::Dialer;
use crate::hello::{Hello, Role};

/// Number of messages before the act.
const BEFORE: usize = 20;
/// Time within which a driver must notice the act.
pub(super) const NOTICE_LIMIT: Duration = PATIENCE;

/// Takes the link of the first function down and up again.
pub(super) fn link(subjects: &[Subject<'_>], within: Duration) -> Result<Outcome, Box<dyn Error>> {
    let lever = match &subjects[0].levers.link {
        Ok(lever) => lever,
        Err(why) => return Ok(Outcome::Skipped(why.clone())),
    };
    let found = Pair::with(subjects, |pair| {
        let connection = busy(pair)?;
        lever(false)?;
        let outcome = while_down(pair, &connection, within);
        // The link is set up again in any case: a failed line must not leave it down.
        lever(true)?;
        let fell = outcome?;
        let rose = until_port(pair, true, within)?;
        pair.release(&connection)?;
        one_message(pair, 0).map_err(|error| format!("after the link was up again: {error}"))?;
        Ok(format!(
            "down was seen after {:.0} ms, up after {:.0} ms; messages pass again",
            millis(fell),
            millis(rose)
        ))
    })?;
    Ok(Outcome::Ok(found))
}

/// Checks that the port reports that its link is down, at most `within` after the act. Checks that then no message
/// arrives, if there are two functions. Returns the time until the report.
fn while_down(
    pair: &mut Pair,
    connection: &Connection,
    within: Duration,
) -> Result<Duration, Box<dyn Error>> {
    let fell = until_port(pair, false, within)?;
    if pair.adapters.len() > 1
        && let Ok(true) = exchange::one(pair, connection, 0, Kind::Send, 1)
    {
        return Err("the port says it is down, and a message arrived all the same".into());
    }
    Ok(fell)
}

/// Waits until the first function's port is in the wanted state, and returns the time. The time is that of the
/// function's clock, because a simulated link is trained in virtual time, however slow the machine is.
fn until_port(pair: &mut Pair, up: bool, within: Duration) -> Result<Duration, Box<dyn Error>> {
    let start = adapter::hca(&pair.adapter(0).ia).now();
    loop {
        let hca = adapter::hca_mut(&mut pair.adapter(0).ia);
        let state = hca.vport_state()?;
        let passed = hca.now().since(start);
        if state.is_up == up {
            return Ok(passed);
        }
        if passed > within {
            let word = if up { "up" } else { "down" };
            return Err(format!(
                "the link was taken {word}, and after {:.1} s the port still says otherwise (the vport's owner says: {:?})",
                within.as_secs_f64(),
                state.admin
            )
            .into());
        }
        // This call advances time and handles events. The state of the connection is checked elsewhere.
        pair.event_within(Duration::from_millis(1))?;
    }
}

/// Resets the first function while it works.
pub(super) fn reset(subjects: &[Subject<'_>], within: Duration) -> Result<Outcome, Box<dyn Error>> {
    let lever = match &subjects[0].levers.reset {
        Ok(lever) => lever,
        Err(why) => return Ok(Outcome::Skipped(why.clone())),
    };
    let mut pair = Pair::open(subjects)?;
    let connection = busy(&mut pair)?;
    lever(())?;
    let noticed = until_noticed(&mut pair, &connection, within);
    pair.abandon(connection);
    again(subjects, &noticed?).map(Outcome::Ok)
}

/// Unbinds the first function while it works, and binds it to its driver again.
pub(super) fn unbind(
    subjects: &[Subject<'_>],
    within: Duration,
) -> Result<Outcome, Box<dyn Error>> {
    let lever = match &subjects[0].levers.binding {
        Ok(lever) => lever,
        Err(why) => return Ok(Outcome::Skipped(why.clone())),
    };
    let mut pair = Pair::open(subjects)?;
    let connection = busy(&mut pair)?;
    // The unbind returns only when the function has been released, so another thread calls it.
    let noticed = thread::scope(|scope| {
        let asked = scope.spawn(|| lever(false));
        let noticed = until_noticed(&mut pair, &connection, within);
        pair.abandon(connection);
        match asked.join() {
            Ok(Ok(())) => noticed,
            Ok(Err(why)) => Err(why.into()),
            Err(_) => Err("asking for the function panicked".into()),
        }
    });
    lever(true)?;
    again(subjects, &noticed?).map(Outcome::Ok)
}

/// Kills the process that drives the first function while the second function talks with it.
pub(super) fn kill(
    subjects: &[Subject<'_>],
    program: &std::path::Path,
) -> Result<Outcome, Box<dyn Error>> {
    let [victim, other] = subjects else {
        return Ok(Outcome::Skipped("takes two functions".to_owned()));
    };
    if let Err(why) = &victim.levers.outlives {
        return Ok(Outcome::Skipped(why.clone()));
    }
    let mut listener = Listening::start(program, &victim.name)?;
    let mut dialer = Dialer::on(Adapter::of(other.open()?)?);
    let noticed = send_until_killed(&mut dialer, &mut listener);
    let closed = dialer.close();
    let noticed = noticed?;
    closed.map_err(|error| format!("{}, whose peer was killed: {error}", other.name))?;
    again(subjects, &noticed).map(Outcome::Ok)
}

fn send_until_killed(
    dialer: &mut Dialer,
    listener: &mut Listening,
) -> Result<String, Box<dyn Error>> {
    let hello = Hello {
        role: Role::Sink,
        more: 0,
        depth: 1,
        bytes: SHORT as u64,
        reverse: None,
    };
    dialer.connect(listener.address.parse()?, QUALIFIER, &hello, 1)?;
    let post = |dialer: &mut Dialer| {
        let (ep, region, _) = dialer.session();
        let place = region.local(0, SHORT);
        let flags = CompletionFlags::empty();
        dialer
            .adapter
            .ia
            .ep_post_send(ep, &[place], DtoCookie(1), flags)
    };
    for _ in 0..BEFORE {
        post(dialer)?;
        dialer.completed()?;
    }
    listener.kill()?;
    let start = Instant::now();
    while start.elapsed() < NOTICE_LIMIT {
        let said = match post(dialer) {
            Ok(()) => heard(dialer.adapter.sleep(NOTICE_LIMIT))?,
            Err(refused) => Some(refused.to_string()),
        };
        if let Some(said) = said {
            return Ok(format!("after {:.0} ms: {said}", millis(start.elapsed())));
        }
    }
    Err(format!(
        "messages to a killed process are taken for {} s",
        NOTICE_LIMIT.as_secs()
    )
    .into())
}

/// A process that runs `datctl ping NAME --listen`.
struct Listening {
    child: Child,
    address: String,
}

impl Listening {
    fn start(program: &std::path::Path, name: &str) -> Result<Self, Box<dyn Error>> {
        let child = Command::new(program)
            .args(["ping", name, "--listen", "--qualifier"])
            .arg(QUALIFIER.to_string())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| format!("{}: {error}", program.display()))?;
        let mut listening = Self {
            child,
            address: String::new(),
        };
        let mut line = String::new();
        if let Some(output) = listening.child.stdout.take() {
            BufReader::new(output).read_line(&mut line)?;
        }
        let address = line.trim_end().strip_prefix("listening on ");
        listening.address = address
            .ok_or_else(|| format!("{name}: the listener said {line:?} and no address"))?
            .to_owned();
        Ok(listening)
    }

    fn kill(&mut self) -> Result<(), Box<dyn Error>> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        // An error is ignored, because a drop cannot return it.
        let _ = self.kill();
    }
}

/// Returns a connection over which messages have passed.
fn busy(pair: &mut Pair) -> Result<Connection, Box<dyn Error>> {
    let connection = pair.connect(SHORT, Receives::Own)?;
    for number in 0..BEFORE {
        exchange::one(pair, &connection, number % 2, Kind::Send, SHORT / 2)?;
    }
    Ok(connection)
}

/// Sends messages until one fails or the connection ends. Returns the time this took and the error, in words.
fn until_noticed(
    pair: &mut Pair,
    connection: &Connection,
    within: Duration,
) -> Result<String, Box<dyn Error>> {
    let start = Instant::now();
    let bytes = SHORT / 2;
    while start.elapsed() < within {
        let place = connection.pieces(0, FROM, bytes);
        let ep = connection.eps[0];
        let posted = pair
            .receive(connection, 1, bytes, DtoCookie(0))
            .and_then(|()| {
                let flags = CompletionFlags::empty();
                Ok(pair
                    .adapter(0)
                    .ia
                    .ep_post_send(ep, &place, DtoCookie(0), flags)?)
            });
        let mut said = posted.err().map(|refused| refused.to_string());
        // A message has two events: one of the Send, one of the receive.
        for _ in SIDES {
            if said.is_none() {
                said = heard(pair.event_within(NOTICE_LIMIT))?;
            }
        }
        // There may be an event that belongs to no message. Polling for it also advances a simulated function's time.
        if said.is_none() {
            said = match pair.event_within(Duration::ZERO) {
                Ok(None) => None,
                event => heard(event)?,
            };
        }
        if let Some(said) = said {
            return Ok(format!("after {:.0} ms: {said}", millis(start.elapsed())));
        }
    }
    Err(format!(
        "the driver goes on for {:.1} s as if nothing had happened",
        within.as_secs_f64()
    )
    .into())
}

/// Returns the error that an event reports after the act, or `None` if the message passed. Fails if a message has no
/// event, which is an error of the driver.
fn heard(event: Result<Option<Event>, Box<dyn Error>>) -> Result<Option<String>, Box<dyn Error>> {
    Ok(match event {
        Err(said) => Some(said.to_string()),
        Ok(None) => {
            return Err(format!(
                "nothing is heard of a message for {} s, not even that it failed",
                NOTICE_LIMIT.as_secs()
            )
            .into());
        }
        Ok(Some(Event::Dto(done))) if done.status == DtoStatus::Success => None,
        Ok(Some(Event::Dto(done))) => Some(udapl::explain(&done)),
        Ok(Some(Event::Connection(change))) => Some(format!("the connection is {:?}", change.kind)),
        Ok(Some(other)) => Some(format!("event {:#07x}", other.number())),
    })
}

/// Opens the functions again and checks that messages pass.
fn again(subjects: &[Subject<'_>], noticed: &str) -> Result<String, Box<dyn Error>> {
    Pair::with(subjects, |pair| one_message(pair, 0))
        .map_err(|error| format!("noticed {noticed}; opened again: {error}"))?;
    Ok(format!(
        "noticed {noticed}; opened again, and messages pass"
    ))
}
