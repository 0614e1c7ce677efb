//! One thread, one epoll instance, two adapters: an echo server and its client. The thread always waits for both
//! adapters.
//!
//! ```text
//! cargo run --example epoll                       # two simulated functions on a wire
//! cargo run --example epoll -- 0000:3b:00.2 0000:3b:00.3
//! ```
//!
//! An event loop sleeps on many descriptors. An armed adapter's descriptor becomes readable when the adapter has an
//! event. So each iteration of the loop arms both adapters, and sleeps only if both report that they have no event.
#![forbid(unsafe_code)]

use std::time::Duration;

use anyhow::{Context, Result, bail};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use udapl::memory::LmrSlice;
use udapl::wait::Arm;
use udapl::{
    CloseFlags, CompletionFlags, ConnQual, ConnectFlags, ConnectionEventKind, DmaMemory, DtoCookie,
    DtoStatus, EpEvds, EpHandle, EvdFlags, EvdHandle, Event, Ia, MemPrivFlags, OpenOptions,
    PspFlags, Qos, ia_close, ia_open,
};

const SERVICE: ConnQual = ConnQual::service_id(0x1_0000_0007);
const PATIENCE: Duration = Duration::from_secs(60);
const BYTES: usize = 64;
const MESSAGES: u64 = 1_000;
const NO_FLAGS: CompletionFlags = CompletionFlags::empty();

/// An adapter with an endpoint, one EVD for everything, and one buffer each for receiving and sending.
struct End {
    ia: Ia,
    events: EvdHandle,
    ep: EpHandle,
    memory: DmaMemory,
    inbox: LmrSlice,
    outbox: LmrSlice,
}

/// Events of an end that this program distinguishes.
enum EndEvent {
    Established,
    /// A message arrived, with these first bytes.
    Message(u64),
    Gone,
    /// A message of this end was sent, a DTO failed, or a request was accepted.
    Nothing,
}

impl End {
    fn open(name: &str) -> Result<Self> {
        let mut ia = ia_open(name, &OpenOptions::default())?;
        let streams = EvdFlags::CR | EvdFlags::CONNECTION | EvdFlags::DTO;
        let events = ia.evd_create(16, streams)?;
        let zone = ia.pz_create()?;
        let ep = ia.ep_create(Some(zone), EpEvds::all(events), None)?;
        let memory = udapl::alloc(&ia, 2 * BYTES)?;
        let rights = MemPrivFlags::LOCAL_READ | MemPrivFlags::LOCAL_WRITE;
        let lmr = ia.lmr_create(memory.clone(), zone, rights)?.lmr;
        let half = BYTES as u64;
        let mut end = Self {
            inbox: ia.lmr_slice(lmr, 0, half)?,
            outbox: ia.lmr_slice(lmr, half, half)?,
            ia,
            events,
            ep,
            memory,
        };
        end.receive()?;
        Ok(end)
    }

    fn receive(&mut self) -> Result<()> {
        Ok(self
            .ia
            .ep_post_recv(self.ep, &[self.inbox], DtoCookie(0), NO_FLAGS)?)
    }

    fn send(&mut self, number: u64) -> Result<()> {
        self.memory.write_from(BYTES, &number.to_be_bytes())?;
        Ok(self
            .ia
            .ep_post_send(self.ep, &[self.outbox], DtoCookie(0), NO_FLAGS)?)
    }

    /// Dequeues one event. Accepts a connection request.
    fn take(&mut self) -> Result<Option<EndEvent>> {
        let Ok(Some(event)) = self.ia.evd_dequeue(self.events) else {
            return Ok(None);
        };
        Ok(Some(match event {
            Event::ConnectionRequest(request) => {
                self.ia.cr_accept(request.cr, Some(self.ep), b"")?;
                EndEvent::Nothing
            }
            Event::Connection(event) if event.kind == ConnectionEventKind::Established => {
                EndEvent::Established
            }
            Event::Connection(event) if event.kind == ConnectionEventKind::Disconnected => {
                EndEvent::Gone
            }
            Event::Dto(done) if done.status != DtoStatus::Success => EndEvent::Nothing,
            Event::Dto(done) if done.request => EndEvent::Nothing,
            Event::Dto(_) => {
                let first = self.memory.read(0, 8)?;
                self.receive()?;
                EndEvent::Message(u64::from_be_bytes(first.try_into().expect("8 bytes")))
            }
            Event::Connection(_) | Event::RmrBind(_) | Event::Async(_) | Event::Software(_) => {
                bail!("an event nobody hoped for: {event:?}")
            }
        }))
    }
}

/// Returns the maximum duration of the loop's sleep: zero while an end has an event.
fn sleep_of(ends: &mut [End; 2]) -> Result<Duration> {
    let mut longest = Duration::from_secs(1);
    for End { ia, events, .. } in ends {
        longest = longest.min(match ia.arm(&[*events])? {
            Arm::Ready => Duration::ZERO,
            Arm::Armed(armed) => armed.timeout(),
        });
    }
    Ok(longest)
}

/// Runs both ends until the client is done. Returns the number of times that the loop slept.
fn run(names: &[String; 2]) -> Result<u64> {
    let mut ends = [End::open(&names[0])?, End::open(&names[1])?];
    let [client, server] = &mut ends;
    server
        .ia
        .psp_create(SERVICE, server.events, PspFlags::CONSUMER)?;
    let address = server.ia.query().ia.ia_address;
    let (best, none) = (Qos::BEST_EFFORT, ConnectFlags::empty());
    client
        .ia
        .ep_connect(client.ep, address, SERVICE, PATIENCE, b"", best, none)?;

    let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
    for (number, end) in ends.iter_mut().enumerate() {
        epoll.add(
            end.ia.descriptor()?,
            EpollEvent::new(EpollFlags::EPOLLIN, number as u64),
        )?;
    }
    let mut sleeps = 0;
    loop {
        let longest = sleep_of(&mut ends)?;
        if longest > Duration::ZERO {
            let milliseconds = u16::try_from(longest.as_millis())?.max(1);
            epoll.wait(
                &mut [EpollEvent::empty(); 2],
                EpollTimeout::from(milliseconds),
            )?;
            sleeps += 1;
        }
        let [client, server] = &mut ends;
        while let Some(news) = server.take()? {
            if let EndEvent::Message(number) = news {
                server.send(number)?;
            }
        }
        while let Some(news) = client.take()? {
            match news {
                EndEvent::Established => client.send(1)?,
                EndEvent::Message(MESSAGES) => {
                    client.ia.ep_disconnect(client.ep, CloseFlags::Abrupt)?
                }
                EndEvent::Message(number) => client.send(number + 1)?,
                EndEvent::Gone => {
                    for end in ends {
                        ia_close(end.ia, CloseFlags::Abrupt)?;
                    }
                    return Ok(sleeps);
                }
                EndEvent::Nothing => {}
            }
        }
    }
}

fn main() -> Result<()> {
    let names: Vec<String> = std::env::args().skip(1).collect();
    let sleeps = echo(&names)?;
    println!("{MESSAGES} messages went there and back; the loop slept {sleeps} times");
    Ok(())
}

/// Runs the example between the functions of these names, or between two simulated ones.
fn echo(names: &[String]) -> Result<u64> {
    let folder = tempfile::tempdir().context("a directory for the wire")?;
    let wire = folder.path().join("wire");
    match names {
        [] => run(&["a", "b"].map(|name| simulated(name, &wire))),
        [client, server] => run(&[client.clone(), server.clone()]),
        other => bail!(
            "{} names: none, or the client's and the server's",
            other.len()
        ),
    }
}

/// Returns the name of a simulated function on a wire. `name` is a hexadecimal digit, the last of the function's MAC.
fn simulated(name: &str, wire: &std::path::Path) -> String {
    format!(
        "sim:{name},mac=02:00:00:00:00:0{name},link=unix:{}",
        wire.display()
    )
}

#[test]
fn an_echo_goes_through_one_event_loop() {
    assert!(echo(&[]).expect("it works") > 0, "the loop never slept");
}
