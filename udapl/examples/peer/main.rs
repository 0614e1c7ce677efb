//! This library's end of connections with a peer (`lab/src/vm/guest/peer.c`, on librdmacm and libibverbs). The cases go
//! beyond `rping`.
//!
//! | Case | Passive end | Active end |
//! |---|---|---|
//! | `prompt` | posts receives first; receives, answers, disconnects | sends, receives the answer, is disconnected |
//! | `late` | as `prompt`, but posts receives [`LATE`] after the connection | as `prompt`; sends are retried |
//! | `never` | posts no receive; is disconnected | first send fails by RNR after [`FEW`] retries; disconnects |
//! | `reject` | rejects | is rejected |
//! | `decline` | accepts, and gets a REJ for its accept | rejects the accept; DAT has no such call |
//!
//! Request, accept and rejection carry as much private data as either stack allows: a [`pattern`] that the other end
//! checks. In DAT 1.2 a rejection cannot carry private data, and a consumer cannot read that of a received rejection.
//! Each end prints what happened and stops at the first deviation.
#![forbid(unsafe_code)]

use std::net::IpAddr;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use clap::{Parser, ValueEnum};
use udapl::endpoint::EpAttr;
use udapl::error::ReturnType;
use udapl::event::DtoCompletion;
use udapl::memory::LmrTriplet;
use udapl::{
    CloseFlags, CompletionFlags, ConnQual, ConnectFlags, ConnectionEventKind, DmaMemory, DtoCookie,
    DtoStatus, EpEvds, EpHandle, EvdFlags, EvdHandle, Event, Ia, MemPrivFlags, OpenOptions,
    PspFlags, Qos, Timeout,
};

/// The RDMA-CM port.
const PORT: u64 = 7180;
/// Number of messages from the active end.
const MESSAGES: usize = 4;
/// Size of a message in bytes: several packets.
const MESSAGE: usize = 3000;
/// Longest wait for an event.
const PATIENCE: Duration = Duration::from_secs(60);
/// Time from the established connection to the receives in the case `late`.
const LATE: Duration = Duration::from_secs(1);
/// Number of RNR retries in the case `never`.
const FEW: u8 = 3;
/// Number of RNR retries in the other cases; 7 means no limit.
const FOREVER: u8 = 7;
/// Time that our end stays open after the case, so that it can acknowledge retransmissions of a peer that has missed
/// our last message.
const LINGER: Duration = Duration::from_millis(500);
/// Sizes of private data in bytes: of a request, of our accept, and of the accept of the stock stack.
const REQUEST: usize = 56;
const ACCEPT: usize = 64;
const STOCK_ACCEPT: usize = 196;
/// First cookie of the receives; cookies of sends count from 0.
const RECEIVES: u64 = 100;

/// Runs our end of a connection with the guest's `peer`.
#[derive(Parser)]
struct Arguments {
    /// The adapter's name.
    name: String,
    /// The adapter's address.
    #[arg(long)]
    address: IpAddr,
    /// The peer's address.
    #[arg(long)]
    peer: IpAddr,
    /// The end that this program is.
    role: Role,
    /// The case to run.
    case: Case,
}

/// An end of the connection.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Role {
    /// The active end.
    Connect,
    /// The passive end.
    Listen,
}

/// The cases; see the table of this module.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Case {
    Prompt,
    Late,
    Never,
    Reject,
    Decline,
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    let mut options = OpenOptions::default().address(arguments.address);
    options.ia.transport.rnr_retry = match arguments.case {
        Case::Never => FEW,
        Case::Prompt | Case::Late | Case::Reject | Case::Decline => FOREVER,
    };
    let mut end = End::open(&arguments.name, &options)?;
    match arguments.role {
        Role::Connect => end.connects(arguments.peer, arguments.case)?,
        Role::Listen => end.listens(arguments.case)?,
    }
    end.close()
}

/// One end of a connection.
struct End {
    ia: Ia,
    events: EvdHandle,
    ep: EpHandle,
    /// The messages to send, then the received messages, then one spare slot.
    memory: DmaMemory,
    place: LmrTriplet,
    /// Completions that came while the program waited for another event.
    done: Vec<DtoCompletion>,
}

impl End {
    fn open(name: &str, options: &OpenOptions) -> Result<Self> {
        let mut ia = udapl::ia_open(name, options)?;
        let flags = EvdFlags::CR | EvdFlags::CONNECTION | EvdFlags::DTO;
        let events = ia.evd_create(64, flags)?;
        let zone = ia.pz_create()?;
        let attributes = EpAttr::defaults(ia.query().ia);
        let ep = ia.ep_create(Some(zone), EpEvds::all(events), Some(&attributes))?;
        let memory = udapl::alloc(&ia, (2 * MESSAGES + 1) * MESSAGE)?;
        let region = ia.lmr_create(memory.clone(), zone, MemPrivFlags::all())?;
        let place = LmrTriplet {
            lmr_context: region.lmr_context,
            virtual_address: region.registered_address,
            segment_length: MESSAGE as u64,
        };
        Ok(Self {
            ia,
            events,
            ep,
            memory,
            place,
            done: Vec::new(),
        })
    }

    /// Runs the active end.
    fn connects(&mut self, peer: IpAddr, case: Case) -> Result<()> {
        ensure!(case != Case::Decline, "an accept cannot be rejected");
        self.post_receives(2)?;
        self.ia.ep_connect(
            self.ep,
            peer,
            ConnQual(PORT),
            Timeout::from_micros(u32::try_from(PATIENCE.as_micros())?),
            &pattern(REQUEST, 1),
            Qos::BEST_EFFORT,
            ConnectFlags::empty(),
        )?;
        if case == Case::Reject {
            self.becomes(ConnectionEventKind::PeerRejected)?;
            println!("REJ: DAT_CONNECTION_EVENT_PEER_REJECTED");
            return Ok(());
        }
        self.becomes(ConnectionEventKind::Established)?;
        let answered = self.ia.ep_private_data(self.ep)?;
        compare("REP", answered, STOCK_ACCEPT, STOCK_ACCEPT, 2)?;
        self.post_sends(MESSAGES)?;
        if case == Case::Never {
            self.ends(0, 1, DtoStatus::ErrReceiverNotReady)?;
            println!("the first send: DAT_DTO_ERR_RECEIVER_NOT_READY");
            self.ends(1, MESSAGES as u64 - 1, DtoStatus::ErrFlushed)?;
            self.becomes(ConnectionEventKind::Broken)?;
            println!("broken");
            return self.ends(RECEIVES, 2, DtoStatus::ErrFlushed);
        }
        self.ends(0, MESSAGES as u64, DtoStatus::Success)?;
        self.hears(1)?;
        println!("{MESSAGES} messages sent, 1 received");
        self.becomes(ConnectionEventKind::Disconnected)?;
        println!("disconnected by the peer");
        self.ends(RECEIVES + 1, 1, DtoStatus::ErrFlushed)
    }

    /// Runs the passive end.
    fn listens(&mut self, case: Case) -> Result<()> {
        self.ia
            .psp_create(ConnQual(PORT), self.events, PspFlags::CONSUMER)?;
        println!("listening on {}", self.ia.query().ia.ia_address);
        let event = self.event()?;
        let Event::ConnectionRequest(request) = event else {
            bail!("{event:?} instead of a request");
        };
        let asked = self.ia.cr_query(request.cr)?.private_data;
        compare("REQ", asked, REQUEST, REQUEST, 1)?;
        if case == Case::Reject {
            self.ia.cr_reject(request.cr)?;
            println!("rejected");
            return Ok(());
        }
        if case == Case::Prompt {
            self.post_receives(MESSAGES + 1)?;
        }
        let (ep, data) = (Some(self.ep), pattern(ACCEPT, 2));
        self.ia.cr_accept(request.cr, ep, &data)?;
        if case == Case::Decline {
            self.becomes(ConnectionEventKind::AcceptCompletionError)?;
            println!("REJ: DAT_CONNECTION_EVENT_ACCEPT_COMPLETION_ERROR");
            return Ok(());
        }
        self.becomes(ConnectionEventKind::Established)?;
        if case == Case::Never {
            self.becomes(ConnectionEventKind::Disconnected)?;
            println!("disconnected by the peer");
            return Ok(());
        }
        if case == Case::Late {
            self.nothing_for(LATE)?;
            self.post_receives(MESSAGES + 1)?;
        }
        self.hears(MESSAGES)?;
        self.post_sends(1)?;
        self.ends(0, 1, DtoStatus::Success)?;
        println!("{MESSAGES} messages received, 1 sent");
        self.ia.ep_disconnect(self.ep, CloseFlags::Abrupt)?;
        self.becomes(ConnectionEventKind::Disconnected)?;
        println!("disconnected by us");
        self.ends(RECEIVES + MESSAGES as u64, 1, DtoStatus::ErrFlushed)
    }

    fn post_receives(&mut self, count: usize) -> Result<()> {
        for number in 0..count {
            let (place, cookie) = (self.slot(MESSAGES + number), RECEIVES + number as u64);
            let none = CompletionFlags::empty();
            self.ia
                .ep_post_recv(self.ep, &[place], DtoCookie(cookie), none)?;
        }
        Ok(())
    }

    fn post_sends(&mut self, count: usize) -> Result<()> {
        for number in 0..count {
            self.memory
                .write_from(number * MESSAGE, &pattern(MESSAGE, number))?;
            let (place, none) = (self.slot(number), CompletionFlags::empty());
            self.ia
                .ep_post_send(self.ep, &[place], DtoCookie(number as u64), none)?;
        }
        Ok(())
    }

    fn slot(&self, number: usize) -> LmrTriplet {
        LmrTriplet {
            virtual_address: self.place.virtual_address + (number * MESSAGE) as u64,
            ..self.place
        }
    }

    /// Waits until all messages have been received, and checks their order and contents.
    fn hears(&mut self, count: usize) -> Result<()> {
        self.ends(RECEIVES, count as u64, DtoStatus::Success)?;
        for number in 0..count {
            let got = self.memory.read((MESSAGES + number) * MESSAGE, MESSAGE)?;
            ensure!(
                got == pattern(MESSAGE, number),
                "message {number} has other bytes"
            );
        }
        Ok(())
    }

    /// Waits until the DTOs with these cookies have completed, in this order and with this status. Completions of the
    /// other queue may come in between.
    fn ends(&mut self, first: u64, count: u64, status: DtoStatus) -> Result<()> {
        for cookie in first..first + count {
            let is_send =
                |done: &DtoCompletion| (done.cookie < DtoCookie(RECEIVES)) == (first < RECEIVES);
            let done = loop {
                if let Some(at) = self.done.iter().position(is_send) {
                    break self.done.remove(at);
                }
                let event = self.event()?;
                let Event::Dto(done) = event else {
                    bail!("{event:?} instead of DTO {cookie}");
                };
                self.done.push(done);
            };
            ensure!(
                (done.cookie, done.status) == (DtoCookie(cookie), status),
                "DTO {}, not {cookie} {status:?}: {}",
                done.cookie.0,
                udapl::explain(&done)
            );
        }
        Ok(())
    }

    /// Waits for the connection's next event, which must be this one.
    fn becomes(&mut self, kind: ConnectionEventKind) -> Result<()> {
        loop {
            let event = self.event()?;
            if let Event::Dto(done) = event {
                self.done.push(done);
                continue;
            }
            ensure!(
                matches!(&event, Event::Connection(change) if change.kind == kind),
                "{event:?} instead of {kind:?}"
            );
            return Ok(());
        }
    }

    fn event(&mut self) -> Result<Event> {
        let patience = Timeout::from_micros(u32::try_from(PATIENCE.as_micros())?);
        let (event, _) = self
            .ia
            .evd_wait(self.events, patience, 1)
            .context("waiting for an event")?;
        Ok(event)
    }

    /// Checks that for this time no event comes except completions of flushed DTOs.
    fn nothing_for(&mut self, time: Duration) -> Result<()> {
        let until = Instant::now() + time;
        while let Some(left) = until.checked_duration_since(Instant::now()) {
            let left = Timeout::from_micros(u32::try_from(left.as_micros())?.max(1));
            match self.ia.evd_wait(self.events, left, 1) {
                Ok((event, _)) => ensure!(
                    matches!(&event, Event::Dto(done) if done.status == DtoStatus::ErrFlushed),
                    "{event:?} out of nothing"
                ),
                Err(error) if error.return_type() == ReturnType::TimeoutExpired => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    fn close(mut self) -> Result<()> {
        self.nothing_for(LINGER)?;
        let report = udapl::ia_close(self.ia, CloseFlags::Abrupt)?;
        ensure!(report.dead.is_none(), "the device died: {:?}", report.dead);
        Ok(())
    }
}

/// Returns `count` bytes: the first one is `count`, the others depend on the tag.
fn pattern(count: usize, tag: usize) -> Vec<u8> {
    (0..count)
        .map(|at| if at == 0 { count } else { tag + 7 * at })
        .map(|word| word.to_be_bytes()[size_of::<usize>() - 1])
        .collect()
}

/// Checks received private data: a pattern of `count` bytes, padded with zeros to `room` bytes, the size of the field
/// in the message.
fn compare(what: &str, got: &[u8], room: usize, count: usize, tag: usize) -> Result<()> {
    let mut expected = pattern(count, tag);
    expected.resize(room, 0);
    ensure!(
        got == expected,
        "{what}: {} bytes of private data, not {room}, or others: {got:02x?}",
        got.len()
    );
    println!("{what}: {count} bytes of private data as they were given");
    Ok(())
}
