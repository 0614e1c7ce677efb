//! The shortest useful program: a client writes into a server's memory, and then sends it a message.
//!
//! ```text
//! cargo run --example hello                                  # two simulated functions on a wire
//! cargo run --example hello -- 0000:3b:00.2 0000:3b:00.3     # the client's function and the server's
//! ```
//!
//! Both ends run in one thread here, so the code is in the order of events. docs/guide.md explains each step.
#![forbid(unsafe_code)]

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use udapl::memory::{LmrCreated, RmrTriplet};
use udapl::{
    CloseFlags, CompletionFlags, ConnQual, ConnectFlags, ConnectionEventKind, DmaMemory, DtoCookie,
    DtoStatus, EpEvds, EpHandle, EvdFlags, EvdHandle, Event, Ia, MemPrivFlags, OpenOptions,
    PspFlags, Qos, explain, ia_close, ia_open,
};

/// Connection qualifier of the server: numbers above 0xffff are InfiniBand service IDs, others TCP ports of `rdma_cm`.
const SERVICE: ConnQual = ConnQual::service_id(0x1_0000_0001);
const PATIENCE: Duration = Duration::from_secs(60);
const NO_FLAGS: CompletionFlags = CompletionFlags::empty();
const ESTABLISHED: u32 = ConnectionEventKind::Established.number();

/// An end: an adapter, one EVD for all events, an endpoint, and memory that the device can reach.
struct End {
    ia: Ia,
    events: EvdHandle,
    ep: EpHandle,
    memory: DmaMemory,
    region: LmrCreated,
}

impl End {
    fn open(name: &str) -> Result<Self> {
        let mut ia = ia_open(name, &OpenOptions::default())?;
        let zone = ia.pz_create()?;
        let events = ia.evd_create(16, EvdFlags::DEFAULT - EvdFlags::ASYNC)?;
        let ep = ia.ep_create(Some(zone), EpEvds::all(events), None)?;
        let memory = udapl::alloc(&ia, 4096)?;
        let region = ia.lmr_create(memory.clone(), zone, MemPrivFlags::all())?;
        Ok(Self {
            ia,
            events,
            ep,
            memory,
            region,
        })
    }

    fn event(&mut self) -> Result<Event> {
        Ok(self.ia.evd_wait(self.events, PATIENCE, 1)?.0)
    }

    fn success(&mut self) -> Result<()> {
        let Event::Dto(done) = self.event()? else {
            bail!("something else than a completion");
        };
        ensure!(done.status == DtoStatus::Success, "{}", explain(&done));
        Ok(())
    }
}

/// Runs the example. Returns the bytes that the server received by the RDMA Write and by the message.
fn hello(client: &str, server: &str) -> Result<[String; 2]> {
    let mut server = End::open(server).context("the server's adapter")?;
    let mut client = End::open(client).context("the client's adapter")?;

    // The server listens. It posts a buffer before the client can send to it.
    server
        .ia
        .psp_create(SERVICE, server.events, PspFlags::CONSUMER)?;
    let inbox = server.ia.lmr_slice(server.region.lmr, 0, 64)?;
    server
        .ia
        .ep_post_recv(server.ep, &[inbox], DtoCookie(1), NO_FLAGS)?;

    // The client connects. The accept's private data contains the address of the server's memory.
    let address = server.ia.query().ia.ia_address;
    let (best, none) = (Qos::BEST_EFFORT, ConnectFlags::empty());
    let ia = &mut client.ia;
    ia.ep_connect(client.ep, address, SERVICE, PATIENCE, b"", best, none)?;
    let Event::ConnectionRequest(request) = server.event()? else {
        bail!("something else than a request to connect");
    };
    let place = RmrTriplet {
        rmr_context: server.region.rmr_context,
        target_address: server.region.registered_address + 64,
        segment_length: 64,
    };
    server
        .ia
        .cr_accept(request.cr, Some(server.ep), &place.to_bytes())?;
    for end in [&mut client, &mut server] {
        let event = end.event().context("the connection")?;
        ensure!(event.number() == ESTABLISHED, "no connection: {event:?}");
    }

    // The client writes, then sends. When the message arrives, the bytes of the RDMA Write are in memory.
    let place = client.ia.ep_private_data(client.ep)?;
    let remote = RmrTriplet {
        segment_length: 13,
        ..RmrTriplet::from_bytes(place).context("where to write")?
    };
    client.memory.write_from(0, b"Hello, memory")?;
    client.memory.write_from(64, b"Hello, server")?;
    let written = client.ia.lmr_slice(client.region.lmr, 0, 13)?;
    let sent = client.ia.lmr_slice(client.region.lmr, 64, 13)?;
    let ia = &mut client.ia;
    ia.ep_post_rdma_write(client.ep, &[written], DtoCookie(2), &remote, NO_FLAGS)?;
    ia.ep_post_send(client.ep, &[sent], DtoCookie(3), NO_FLAGS)?;
    server.success().context("the message")?;
    client.success().context("the RDMA Write")?;
    client.success().context("the Send")?;
    let (written, sent) = (server.memory.read(64, 13)?, server.memory.read(0, 13)?);

    ia_close(client.ia, CloseFlags::Abrupt)?;
    ia_close(server.ia, CloseFlags::Abrupt)?;
    Ok([String::from_utf8(written)?, String::from_utf8(sent)?])
}

fn main() -> Result<()> {
    let names: Vec<String> = std::env::args().skip(1).collect();
    let [written, sent] = match &names[..] {
        [] => hello("sim:client", "sim:server")?,
        [client, server] => hello(client, server)?,
        _ => bail!("two names, please: the client's and the server's adapter"),
    };
    println!("written into the server's memory: {written}\nsent to the server: {sent}");
    Ok(())
}

#[test]
fn the_server_finds_both_texts() {
    let found = hello("sim:client", "sim:server").expect("it works");
    assert_eq!(found, ["Hello, memory", "Hello, server"]);
}
