//! `datctl ping`: messages back and forth over a connection.
//!
//! The listener prints its address and echoes what it receives until the peer disconnects. The other side sends one
//! message at a time, checks that the same bytes come back, and prints how long that took.

use std::error::Error;
use std::io::{Write, stdout};
use std::net::{IpAddr, Ipv6Addr};
use std::time::{Duration, Instant};

use comfy_table::Table;
use dat::{
    CloseFlags, CompletionFlags, ConnectFlags, ConnectionEventKind, DmaMemory, DtoStatus, EpHandle,
    EvdFlags, EvdHandle, Event, Ia, LmrTriplet, MemPrivFlags, OpenOptions, PspFlags, Qos, Timeout,
};

use crate::Ping;

/// For a message, or for the peer to answer.
const PATIENCE: Timeout = Timeout::from_micros(10_000_000);
/// Cookies.
const SEND: u64 = 1;
const RECEIVE: u64 = 2;

/// An endpoint and what it needs.
struct Side {
    ia: Ia,
    events: EvdHandle,
    ep: EpHandle,
    memory: DmaMemory,
    outbox: LmrTriplet,
    inbox: LmrTriplet,
    bytes: usize,
}

pub(crate) fn run(arguments: &Ping) -> Result<(), Box<dyn Error>> {
    let mut side = Side::open(arguments)?;
    match arguments.connect {
        Some(peer) => side.ping(peer, arguments)?,
        None => side.echo(arguments)?,
    }
    dat::ia_close(side.ia, CloseFlags::Abrupt)?;
    Ok(())
}

impl Side {
    fn open(arguments: &Ping) -> Result<Self, Box<dyn Error>> {
        let bytes = usize::try_from(arguments.bytes.max(1))?;
        let mut ia = dat::ia_open(&arguments.name, &OpenOptions::default())?;
        let events = ia.evd_create(16, EvdFlags::CR | EvdFlags::CONNECTION | EvdFlags::DTO)?;
        let zone = ia.pz_create()?;
        let ep = ia.ep_create(Some(zone), Some(events), Some(events), Some(events), None)?;
        let memory = dat::alloc(&ia, 2 * bytes)?;
        let rights = MemPrivFlags::LOCAL_READ | MemPrivFlags::LOCAL_WRITE;
        let region = ia.lmr_create(memory.clone(), zone, rights)?;
        let part = |offset: usize| LmrTriplet {
            lmr_context: region.lmr_context,
            virtual_address: region.registered_address + offset as u64,
            segment_length: bytes as u64,
        };
        let (outbox, inbox) = (part(0), part(bytes));
        ia.ep_post_recv(ep, &[inbox], RECEIVE, CompletionFlags::empty())?;
        Ok(Self {
            ia,
            events,
            ep,
            memory,
            outbox,
            inbox,
            bytes,
        })
    }

    fn event(&mut self, timeout: Timeout) -> Result<Event, Box<dyn Error>> {
        Ok(self.ia.evd_wait(self.events, timeout, 1)?.0)
    }

    fn established(&mut self) -> Result<(), Box<dyn Error>> {
        let event = self.event(PATIENCE)?;
        if matches!(&event, Event::Connection(event) if event.kind == ConnectionEventKind::Established)
        {
            Ok(())
        } else {
            Err(format!("no connection: {event:?}").into())
        }
    }

    fn send(&mut self) -> Result<(), Box<dyn Error>> {
        Ok(self
            .ia
            .ep_post_send(self.ep, &[self.outbox], SEND, CompletionFlags::empty())?)
    }

    fn receive(&mut self) -> Result<(), Box<dyn Error>> {
        Ok(self
            .ia
            .ep_post_recv(self.ep, &[self.inbox], RECEIVE, CompletionFlags::empty())?)
    }

    fn echo(&mut self, arguments: &Ping) -> Result<(), Box<dyn Error>> {
        self.ia
            .psp_create(arguments.qualifier, self.events, PspFlags::CONSUMER)?;
        println!("listening on {}", self.ia.query().ia.ia_address);
        stdout().flush()?;
        let request = loop {
            match self.ia.evd_wait(self.events, PATIENCE, 1) {
                Ok((Event::ConnectionRequest(request), _)) => break request,
                Ok((other, _)) => return Err(format!("no connection request: {other:?}").into()),
                // Nobody has come yet.
                Err(waited) if waited.error.return_type() == dat::ReturnType::TimeoutExpired => {}
                Err(error) => return Err(error.into()),
            }
        };
        self.ia.cr_accept(request.cr, Some(self.ep), b"")?;
        self.established()?;
        let mut answered = 0;
        loop {
            // Anything else is the end of the connection.
            let Event::Dto(done) = self.event(PATIENCE)? else {
                break;
            };
            if done.status != DtoStatus::Success {
                break;
            }
            if done.cookie == RECEIVE {
                let data = dat::read(&self.memory, self.bytes, self.bytes);
                dat::write(&self.memory, 0, &data);
                self.receive()?;
                self.send()?;
                answered += 1;
            }
        }
        println!("answered {answered} messages");
        Ok(())
    }

    fn ping(&mut self, peer: Ipv6Addr, arguments: &Ping) -> Result<(), Box<dyn Error>> {
        let (ep, peer) = (self.ep, IpAddr::V6(peer));
        self.ia.ep_connect(
            ep,
            peer,
            arguments.qualifier,
            PATIENCE,
            b"",
            Qos::BEST_EFFORT,
            ConnectFlags::empty(),
        )?;
        self.established()?;
        let mut trips = Vec::new();
        for number in 0..arguments.count {
            let data: Vec<u8> = number
                .to_be_bytes()
                .into_iter()
                .cycle()
                .take(self.bytes)
                .collect();
            dat::write(&self.memory, 0, &data);
            let start = Instant::now();
            self.send()?;
            let mut open = [SEND, RECEIVE].to_vec();
            while !open.is_empty() {
                let event = self.event(PATIENCE)?;
                let Event::Dto(done) = &event else {
                    return Err(format!("message {number}: {event:?}").into());
                };
                if done.status != DtoStatus::Success {
                    return Err(format!("message {number}: {event:?}").into());
                }
                open.retain(|&is| is != done.cookie);
            }
            trips.push(start.elapsed());
            if dat::read(&self.memory, self.bytes, self.bytes) != data {
                return Err(format!("message {number} came back changed").into());
            }
            self.receive()?;
        }
        self.ia.ep_disconnect(ep, CloseFlags::Abrupt)?;
        print(&trips, self.bytes);
        Ok(())
    }
}

fn print(trips: &[Duration], bytes: usize) {
    let mut sorted = trips.to_vec();
    sorted.sort_unstable();
    let micros = |trip: Option<&Duration>| {
        trip.map_or_else(String::new, |trip| format!("{} us", trip.as_micros()))
    };
    let mut table = Table::new();
    table.load_preset(comfy_table::presets::NOTHING);
    table.set_header(["messages", "bytes", "shortest", "median", "longest"]);
    table.add_row([
        trips.len().to_string(),
        bytes.to_string(),
        micros(sorted.first()),
        micros(sorted.get(sorted.len() / 2)),
        micros(sorted.last()),
    ]);
    println!("{table}");
}
