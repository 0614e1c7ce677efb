//! `datctl rping`: the protocol of librdmacm's `rping`, over DAT. The other end may be any RDMA stack with an
//! `rdma_cm`.
//!
//! | Active end | Passive end |
//! |---|---|
//! | sends the address of its text | reads the text (RDMA Read), sends a message |
//! | sends the address of its destination | writes the text there (RDMA Write), sends a message |
//! | compares, and begins again or disconnects | |
//!
//! Every message has 16 bytes, big-endian: address 8, R_Key 4, length 4 (rdma-core, librdmacm/examples/rping.c). The
//! passive end's messages carry no information. The text is a C string that fills its buffer, because a passive
//! `rping` writes back as many bytes as `strlen` returns.
//!
//! The active end is in this module and waits for one event after the other. The passive one ([`server`]) serves
//! several peers.

mod server;

use std::error::Error;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use udapl::endpoint::EpTransport;
use udapl::memory::RmrTriplet;
use udapl::{
    CloseFlags, CompletionFlags, ConnQual, ConnectFlags, ConnectionEventKind, DtoCookie, DtoStatus,
    EpHandle, Event, Qos, Timeout,
};

use crate::adapter::{Adapter, AdapterOptions, PATIENCE, Region, deadline};
use crate::ends::Listening;
use crate::ping::Trips;
use crate::report::Output;
use crate::value::{address, within};

use self::server::Server;

/// Size of a message, in bytes.
const MESSAGE_BYTES: usize = 16;
/// Size of the longest text in bytes, with its terminating zero. It is the largest buffer of `rping`.
const MAX_TEXT_BYTES: u32 = 65_535;
/// Size of the shortest text in bytes, as in `rping`: the beginning `rdma-ping-N: ` fits whatever the number is.
const MIN_TEXT_BYTES: u32 = 27;
const SLOT_BYTES: usize = 1 << 16;

/// Slots of our memory.
const OUTBOX: usize = 0;
const INBOX: usize = 1;
const SOURCE: usize = 2;
const SINK: usize = 3;
const SLOTS: usize = 4;

/// Cookies, one for each kind of DTO. At most one DTO of each kind is outstanding.
const RECEIVE: usize = 0;
const SEND: usize = 1;
const RDMA: usize = 2;
const KINDS: usize = 3;

/// `rping`
#[derive(clap::Args)]
#[command(group(clap::ArgGroup::new("end").required(true).args(["listen", "connect"])))]
pub(crate) struct Rping {
    /// The adapter: a PCI address, vfio-user:SOCKET or sim:NAME.
    name: String,
    /// Be the passive end, for --peers peers, then end.
    #[arg(long)]
    listen: bool,
    /// Number of peers that the passive end serves, several at a time. 0: no limit, until the command is ended.
    #[arg(long, value_name = "N", default_value_t = 1, conflicts_with = "connect", value_parser = within(0..=u32::MAX))]
    peers: u32,
    /// Read lines from standard input: each adds an address to the passive end's adapter or removes one, and is
    /// answered by a line: add 192.0.2.1/24,gateway=192.0.2.254,vlan=100,priority=3 or remove 192.0.2.1.
    #[arg(long, conflicts_with = "connect")]
    control: bool,
    /// Connect to this address.
    #[arg(long, value_name = "IP", value_parser = address)]
    connect: Option<IpAddr>,
    /// Settings of the endpoint (docs/network.md), a list like dscp=26,priority=3,keep_alive_ms=1000. Keep-alive is 500
    /// ms unless the list specifies it.
    #[arg(long, value_name = "SETTINGS", default_value = "", hide_default_value = true, value_parser = transport)]
    transport: EpTransport,
    /// The RDMA-CM port.
    #[arg(long, value_name = "N", default_value_t = 7174, value_parser = within(1..=u16::MAX))]
    port: u16,
    /// Number of round trips.
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = within(1..=u32::MAX))]
    count: u32,
    /// Bytes of the text.
    #[arg(
        long,
        value_name = "N",
        default_value_t = 64,
        value_parser = within(MIN_TEXT_BYTES..=MAX_TEXT_BYTES)
    )]
    bytes: u32,
    #[command(flatten)]
    options: AdapterOptions,
}

pub(crate) fn run(rping: &Rping, output: Output) -> Result<(), Box<dyn Error>> {
    let options = rping.options.open_options();
    let port = u64::from(rping.port);
    let adapter = Adapter::open(&rping.name, &options)?;
    if let Some(peer) = rping.connect {
        let to = (peer, port);
        let trips = trips(adapter, to, &rping.transport, rping.count, rping.bytes)?;
        return Ok(output.show(&Trips::new(
            &rping.name,
            &peer.to_string(),
            rping.bytes.into(),
            trips,
        ))?);
    }
    let server = Server::listen(adapter, port, rping.transport)?;
    output.show(&Listening {
        listening: server.address().to_string(),
    })?;
    let lines = rping.control.then(server::lines);
    let answered = server.run(rping.peers, lines.as_ref(), output)?;
    Ok(output.show(&answered)?)
}

/// Parses `--transport`.
fn transport(list: &str) -> Result<EpTransport, String> {
    let mut transport = EpTransport::default();
    for setting in list.split(',').filter(|_| !list.is_empty()) {
        let (name, value) = setting
            .split_once('=')
            .ok_or_else(|| format!("{setting:?} is not like dscp=26"))?;
        transport
            .set(name, value)
            .map_err(|error| error.to_string())?;
    }
    Ok(transport)
}

/// Creates an unconnected endpoint with these settings.
fn endpoint(adapter: &mut Adapter, transport: &EpTransport) -> Result<EpHandle, Box<dyn Error>> {
    let ep = adapter.endpoint(4, 2)?;
    adapter.set_transport(ep, transport)?;
    Ok(ep)
}

/// Connects to a passive `rping`, makes `count` round trips, and returns their times.
pub(crate) fn trips(
    adapter: Adapter,
    (peer, port): (IpAddr, u64),
    transport: &EpTransport,
    count: u32,
    bytes: u32,
) -> Result<Vec<Duration>, Box<dyn Error>> {
    let mut end = End::connect(adapter, peer, port, transport)?;
    let trips = (0..count)
        .map(|number| end.ask(number, bytes))
        .collect::<Result<_, _>>()?;
    end.disconnect_all()?;
    end.close()?;
    Ok(trips)
}

/// The active end of a connection.
struct End {
    adapter: Adapter,
    ep: EpHandle,
    region: Region,
    /// Lengths of the completed DTOs, by cookie.
    ended: [Option<u64>; KINDS],
}

impl End {
    /// Creates an unconnected end, with one receive posted.
    fn new(mut adapter: Adapter, transport: &EpTransport) -> Result<Self, Box<dyn Error>> {
        let ep = endpoint(&mut adapter, transport)?;
        let region = adapter.region(SLOTS, SLOT_BYTES)?;
        let mut end = Self {
            adapter,
            ep,
            region,
            ended: [None; KINDS],
        };
        end.receive()?;
        Ok(end)
    }

    fn connect(
        adapter: Adapter,
        peer: IpAddr,
        port: u64,
        transport: &EpTransport,
    ) -> Result<Self, Box<dyn Error>> {
        let mut end = Self::new(adapter, transport)?;
        let patience = Timeout::from_micros(u32::try_from(PATIENCE.as_micros())?);
        let begun = end.adapter.ia.ep_connect(
            end.ep,
            peer,
            ConnQual(port),
            patience,
            &[],
            Qos::BEST_EFFORT,
            ConnectFlags::empty(),
        );
        begun.map_err(|error| end.adapter.unreachable_error(peer, &error))?;
        end.established()?;
        Ok(end)
    }

    fn established(&mut self) -> Result<(), Box<dyn Error>> {
        // If the attempt fails, its receive is flushed, possibly before the reason is reported.
        let event = loop {
            let event = self.event()?;
            if !matches!(&event, Event::Dto(done) if done.status == DtoStatus::ErrFlushed) {
                break event;
            }
        };
        if matches!(&event, Event::Connection(change) if change.kind == ConnectionEventKind::Established)
        {
            return Ok(());
        }
        Err(self.adapter.instead_of(self.ep, "a connection", &event))
    }

    /// Makes one round trip as the active end.
    fn ask(&mut self, number: u32, bytes: u32) -> Result<Duration, Box<dyn Error>> {
        let start = Instant::now();
        let text = text(number, bytes);
        let memory = self.region.memory.clone();
        memory.write_from(self.region.offset(SOURCE), &text)?;
        for slot in [SOURCE, SINK] {
            let place = RmrTriplet {
                segment_length: u64::from(bytes),
                ..self.region.remote(slot)
            };
            self.say(&encode(&place)?)?;
            if self.hear()?.is_none() {
                return Err(format!("text {number}: the peer hung up").into());
            }
        }
        let took = start.elapsed();
        if memory.read(self.region.offset(SINK), text.len())? != text {
            return Err(format!("text {number} came back changed").into());
        }
        Ok(took)
    }

    fn receive(&mut self) -> Result<(), Box<dyn Error>> {
        let place = self.region.local(INBOX, MESSAGE_BYTES);
        let flags = CompletionFlags::empty();
        let ia = &mut self.adapter.ia;
        Ok(ia.ep_post_recv(self.ep, &[place], DtoCookie(RECEIVE as u64), flags)?)
    }

    /// Sends a message and waits for its completion.
    fn say(&mut self, message: &[u8; MESSAGE_BYTES]) -> Result<(), Box<dyn Error>> {
        let at = self.region.offset(OUTBOX);
        self.region.memory.write_from(at, message)?;
        let place = self.region.local(OUTBOX, MESSAGE_BYTES);
        let flags = CompletionFlags::empty();
        let ia = &mut self.adapter.ia;
        ia.ep_post_send(self.ep, &[place], DtoCookie(SEND as u64), flags)?;
        self.finish(SEND)
    }

    /// Waits for the next message and returns the memory range in the message, or `None` if the peer disconnects. Then
    /// posts a receive for the following message.
    fn hear(&mut self) -> Result<Option<RmrTriplet>, Box<dyn Error>> {
        let Some(length) = self.end_of(RECEIVE)? else {
            return Ok(None);
        };
        if length != MESSAGE_BYTES as u64 {
            return Err(format!("a message of {length} bytes, not {MESSAGE_BYTES}").into());
        }
        let at = self.region.offset(INBOX);
        let message = self.region.memory.read(at, MESSAGE_BYTES)?;
        self.receive()?;
        Ok(Some(decode(message.as_slice().try_into()?)))
    }

    fn finish(&mut self, kind: usize) -> Result<(), Box<dyn Error>> {
        match self.end_of(kind)? {
            Some(_) => Ok(()),
            None => Err("the peer hung up in the middle of a round trip".into()),
        }
    }

    /// Waits for the DTO of this kind and returns its length in bytes, or `None` if the peer disconnects before.
    fn end_of(&mut self, kind: usize) -> Result<Option<u64>, Box<dyn Error>> {
        loop {
            if let Some(length) = self.ended[kind].take() {
                return Ok(Some(length));
            }
            let event = self.event()?;
            if let Event::Dto(done) = &event {
                if done.status == DtoStatus::Success {
                    self.ended[usize::try_from(done.cookie.0)?] = Some(done.transferred_length);
                } else if done.status != DtoStatus::ErrFlushed {
                    return Err(self.adapter.dto_failed(done));
                }
                // Flushed DTOs belong to a connection whose end is reported separately.
            } else if let Event::Connection(change) = &event
                && change.kind == ConnectionEventKind::Disconnected
            {
                return Ok(None);
            } else {
                return Err(self.adapter.instead_of(self.ep, "a completion", &event));
            }
        }
    }

    fn event(&mut self) -> Result<Event, Box<dyn Error>> {
        let give_up = deadline();
        loop {
            let left = give_up.saturating_duration_since(Instant::now());
            if let Some(event) = self.adapter.sleep(left)? {
                return Ok(event);
            }
            if left.is_zero() {
                return Err(format!("no event for {} s", PATIENCE.as_secs()).into());
            }
        }
    }

    fn disconnect_all(&mut self) -> Result<(), Box<dyn Error>> {
        let ia = &mut self.adapter.ia;
        ia.ep_disconnect(self.ep, CloseFlags::Abrupt)?;
        match self.hear()? {
            None => Ok(()),
            Some(_) => Err("a message instead of the end of the connection".into()),
        }
    }

    fn close(mut self) -> Result<(), Box<dyn Error>> {
        self.adapter.release(self.ep, &self.region)?;
        self.adapter.close()
    }
}

/// Returns the length in bytes of a range of the peer's memory. Fails if a slot cannot hold that many bytes.
fn place_bytes(place: &RmrTriplet) -> Result<usize, Box<dyn Error>> {
    usize::try_from(place.segment_length)
        .ok()
        .filter(|&bytes| bytes <= SLOT_BYTES)
        .ok_or_else(|| format!("a text of {} bytes is too long", place.segment_length).into())
}

/// Returns a C string that fills its buffer. It differs for each number.
fn text(number: u32, bytes: u32) -> Vec<u8> {
    let letters = (b'A'..=b'z').cycle().skip(number as usize % 58);
    let mut text: Vec<u8> = format!("rdma-ping-{number}: ")
        .into_bytes()
        .into_iter()
        .chain(letters)
        .take(bytes as usize)
        .collect();
    if let Some(last) = text.last_mut() {
        *last = 0;
    }
    text
}

fn encode(place: &RmrTriplet) -> Result<[u8; MESSAGE_BYTES], Box<dyn Error>> {
    let mut message = [0; MESSAGE_BYTES];
    message[..8].copy_from_slice(&place.target_address.to_be_bytes());
    message[8..12].copy_from_slice(&place.rmr_context.to_be_bytes());
    message[12..].copy_from_slice(&u32::try_from(place.segment_length)?.to_be_bytes());
    Ok(message)
}

fn decode(message: [u8; MESSAGE_BYTES]) -> RmrTriplet {
    let [address, rest] = [0, 8].map(|at| {
        let mut half = [0; 8];
        half.copy_from_slice(&message[at..at + 8]);
        u64::from_be_bytes(half)
    });
    RmrTriplet {
        target_address: address,
        rmr_context: (rest >> 32) as u32,
        segment_length: rest & u64::from(u32::MAX),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_an_address_an_r_key_and_a_length_in_network_order() {
        let place = RmrTriplet {
            target_address: 0x7f12_3456_789a_bcde,
            rmr_context: 0x0102_0304,
            segment_length: 64,
        };
        let message = encode(&place).expect("short");
        assert_eq!(
            message,
            [
                0x7f, 0x12, 0x34, 0x56, 0x78, 0x9a, 0xbc, 0xde, 1, 2, 3, 4, 0, 0, 0, 64
            ]
        );
        assert_eq!(decode(message), place);
    }

    #[test]
    fn a_text_is_a_c_string_of_exactly_its_buffer_whatever_its_number() {
        for number in [0, 9, u32::MAX] {
            for bytes in [MIN_TEXT_BYTES, 64, MAX_TEXT_BYTES] {
                let text = text(number, bytes);
                let end = text.iter().position(|&byte| byte == 0);
                assert_eq!(
                    (text.len(), end),
                    (bytes as usize, Some(bytes as usize - 1))
                );
                assert!(text.starts_with(format!("rdma-ping-{number}: ").as_bytes()));
            }
        }
    }
}
