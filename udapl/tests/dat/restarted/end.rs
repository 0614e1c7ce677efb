//! An end of the connections: it posts, checks what completes, and can be parked and resumed.
//!
//! Every receive and every Send has a number in its connection, counted from 0, and a cookie made of it. A connection's
//! completions must have the numbers in their order: a completion that is missing, out of order or there twice is a
//! panic. The counts are part of what goes to the next process.

use core::time::Duration;
use std::net::IpAddr;

use udapl::error::ReturnType;
use udapl::event::DtoCompletion;
use udapl::fabric::Fabric;
use udapl::handover::{self, Parked, Resumed};
use udapl::memory::{LmrHandle, LmrSlice};
use udapl::{
    CloseFlags, ConnQual, ConnectFlags, ConnectionEventKind as Kind, DmaMemory, DtoCookie,
    DtoStatus, EpEvds, EpHandle, EvdFlags, EvdHandle, Event, Ia, MemPrivFlags, OpenOptions,
    PspFlags, Qos, ia_open,
};

use super::PATIENCE;
use crate::support::NONE;

/// Interval at which a wait looks whether it has become pointless.
pub const INTERVAL: Duration = Duration::from_millis(100);
/// Number of such intervals in `PATIENCE`.
const WAITS: u128 = PATIENCE.as_millis() / INTERVAL.as_millis();
const SERVICE: ConnQual = ConnQual::service_id(0x1_0000_0078);
/// Number of receives of a connection, and of its Sends that can be unanswered.
pub const SLOTS: u64 = 16;
const SLOT_BYTES: u64 = 1024;
/// Bits of a cookie: the connection's index above the bit of a Send, and the number below it.
const SEND: u64 = 1 << 39;
const CONNECTION_SHIFT: u32 = 40;

/// Returns the bytes of a message. They and their length differ from message to message.
pub fn message(connection: usize, number: u64) -> Vec<u8> {
    let connection = connection as u64;
    let length = 16 + (number * 37 + connection * 101) % 900;
    let head = [connection.to_be_bytes(), number.to_be_bytes()].concat();
    let bytes = head.into_iter().cycle().zip(0_u64..length);
    bytes.map(|(byte, at)| byte ^ at.to_be_bytes()[7]).collect()
}

/// A connection, with the numbers of the next ones of its operations.
pub struct Connection {
    ep: EpHandle,
    /// Number of receives that were posted.
    posted: u64,
    /// Number of receives that have completed.
    pub received: u64,
    /// Number of Sends that were posted.
    pub sent: u64,
    /// Number of Sends that have completed.
    completed: u64,
}

/// A message that has arrived.
pub struct Arrived {
    pub connection: usize,
    /// Number of the message in its connection.
    pub number: u64,
    pub bytes: Vec<u8>,
}

/// Result of a wait.
pub enum Waited {
    Arrived(Arrived),
    /// All connections have ended, and all operations have completed.
    Over,
    /// No event came.
    Nothing,
}

/// One end of all connections.
pub struct End {
    pub ia: Ia,
    evd: EvdHandle,
    lmr: LmrHandle,
    memory: DmaMemory,
    pub connections: Vec<Connection>,
    /// Number of connections that have ended.
    ended: usize,
}

impl End {
    /// Opens an adapter, with endpoints that are not connected and have receives.
    pub fn open(name: &str, side: usize, connections: usize) -> Self {
        let options = OpenOptions::default().address(Fabric::ipv4(side));
        Self::on(ia_open(name, &options).expect("a function"), connections)
    }

    /// Makes endpoints on an instance.
    pub fn on(mut ia: Ia, connections: usize) -> Self {
        let zone = ia.pz_create().expect("a zone");
        let flags = EvdFlags::DTO | EvdFlags::CONNECTION | EvdFlags::CR;
        let places = connections * 40 + 64;
        let places = u32::try_from(places).expect("small");
        let evd = ia.evd_create(places, flags).expect("an EVD");
        let bytes = usize::try_from(2 * SLOTS * SLOT_BYTES).expect("small") * connections;
        let memory = udapl::alloc(&ia, bytes).expect("memory");
        let rights = MemPrivFlags::LOCAL_READ | MemPrivFlags::LOCAL_WRITE;
        let region = ia.lmr_create(memory.clone(), zone, rights);
        let lmr = region.expect("a region").lmr;
        let connections = (0..connections).map(|_| {
            let ep = ia.ep_create(Some(zone), EpEvds::all(evd), None);
            Connection {
                ep: ep.expect("an EP"),
                posted: 0,
                received: 0,
                sent: 0,
                completed: 0,
            }
        });
        let connections: Vec<Connection> = connections.collect();
        let mut end = Self {
            ia,
            evd,
            lmr,
            memory,
            connections,
            ended: 0,
        };
        for connection in 0..end.connections.len() {
            (0..SLOTS).for_each(|_| end.receive(connection));
        }
        end
    }

    /// Returns the offset of a message's slot in the memory: receives are in the first half of a connection's part.
    fn place(connection: usize, is_send: bool, number: u64) -> u64 {
        let slot = number % SLOTS + if is_send { SLOTS } else { 0 };
        (connection as u64 * 2 * SLOTS + slot) * SLOT_BYTES
    }

    fn piece(&self, at: u64, bytes: u64) -> LmrSlice {
        self.ia.lmr_slice(self.lmr, at, bytes).expect("inside")
    }

    fn cookie(connection: usize, is_send: bool, number: u64) -> DtoCookie {
        let send = if is_send { SEND } else { 0 };
        DtoCookie((connection as u64) << CONNECTION_SHIFT | send | number)
    }

    /// Posts the next receive.
    pub fn receive(&mut self, connection: usize) {
        let number = self.connections[connection].posted;
        self.connections[connection].posted += 1;
        let piece = self.piece(Self::place(connection, false, number), SLOT_BYTES);
        let cookie = Self::cookie(connection, false, number);
        let ep = self.connections[connection].ep;
        let posted = self.ia.ep_post_recv(ep, &[piece], cookie, NONE);
        posted.expect("room");
    }

    /// Sends bytes from the next slot, whose earlier Send has been answered.
    pub fn send(&mut self, connection: usize, bytes: &[u8]) {
        let number = self.connections[connection].sent;
        self.connections[connection].sent += 1;
        let at = Self::place(connection, true, number);
        let offset = usize::try_from(at).expect("small");
        self.memory.write_from(offset, bytes).expect("inside");
        let piece = self.piece(at, bytes.len() as u64);
        let cookie = Self::cookie(connection, true, number);
        let ep = self.connections[connection].ep;
        let posted = self.ia.ep_post_send(ep, &[piece], cookie, NONE);
        posted.expect("room");
    }

    /// Waits for the next message.
    pub fn next_message(&mut self, limit: Duration) -> Waited {
        while !self.is_over() {
            match self.next(limit) {
                None => return Waited::Nothing,
                Some(Event::Dto(done)) => {
                    if let Some(arrived) = self.completed(&done) {
                        return Waited::Arrived(arrived);
                    }
                }
                Some(Event::Connection(event)) if event.kind == Kind::Disconnected => {
                    self.ended += 1;
                }
                Some(
                    other @ (Event::Connection(_)
                    | Event::ConnectionRequest(_)
                    | Event::RmrBind(_)
                    | Event::Async(_)
                    | Event::Software(_)),
                ) => panic!("{other:?}"),
            }
        }
        Waited::Over
    }

    /// Waits for the next message. `check` is called again and again, and panics if none will come.
    pub fn next_message_unless(&mut self, check: impl Fn()) -> Waited {
        for _ in 0..WAITS {
            check();
            match self.next_message(INTERVAL) {
                Waited::Nothing => {}
                waited @ (Waited::Arrived(_) | Waited::Over) => return waited,
            }
        }
        Waited::Nothing
    }

    /// Returns whether all connections have ended and all operations have completed.
    fn is_over(&self) -> bool {
        let is_idle = |it: &Connection| (it.posted, it.sent) == (it.received, it.completed);
        self.ended == self.connections.len() && self.connections.iter().all(is_idle)
    }

    /// Checks a completion: its connection, its place in the order, and its status. Returns the message of a receive.
    fn completed(&mut self, done: &DtoCompletion) -> Option<Arrived> {
        let index = usize::try_from(done.cookie.0 >> CONNECTION_SHIFT).expect("small");
        let is_send = done.cookie.0 & SEND != 0;
        let connection = &mut self.connections[index];
        assert_eq!(
            (done.ep, done.request),
            (connection.ep, is_send),
            "{done:?}"
        );
        let count = if is_send {
            &mut connection.completed
        } else {
            &mut connection.received
        };
        let number = *count;
        *count += 1;
        let wanted = Self::cookie(index, is_send, number);
        assert_eq!(done.cookie, wanted, "once and in order: {done:?}");
        if !is_send && done.status == DtoStatus::ErrFlushed {
            return None;
        }
        assert_eq!(done.status, DtoStatus::Success, "{done:?}");
        if is_send {
            return None;
        }
        let at = usize::try_from(Self::place(index, false, number)).expect("small");
        let length = usize::try_from(done.transferred_length).expect("a message");
        Some(Arrived {
            connection: index,
            number,
            bytes: self.memory.read(at, length).expect("inside"),
        })
    }

    /// Waits for the next event. `None`: it did not come within the limit.
    fn next(&mut self, limit: Duration) -> Option<Event> {
        match self.ia.evd_wait(self.evd, limit, 1) {
            Ok((event, _)) => Some(event),
            Err(error) => {
                let kind = error.return_type();
                assert_eq!(kind, ReturnType::TimeoutExpired, "{error:?}");
                None
            }
        }
    }

    fn established(&mut self) {
        let Some(Event::Connection(event)) = self.next(PATIENCE) else {
            panic!("no connection event");
        };
        assert_eq!(event.kind, Kind::Established);
    }

    /// Connects all endpoints, one after the other.
    pub fn connect(&mut self, there: IpAddr) {
        let none = ConnectFlags::empty();
        for index in 0..self.connections.len() {
            let ep = self.connections[index].ep;
            let qos = Qos::BEST_EFFORT;
            let asked = self
                .ia
                .ep_connect(ep, there, SERVICE, PATIENCE, b"", qos, none);
            asked.expect("it may ask");
            self.established();
        }
    }

    pub fn listen(&mut self) {
        let psp = self.ia.psp_create(SERVICE, self.evd, PspFlags::CONSUMER);
        psp.expect("a service point");
    }

    /// Accepts a request for each endpoint. `check` is called again and again, and panics if no request will come.
    pub fn accept(&mut self, check: impl Fn()) {
        for index in 0..self.connections.len() {
            let request = (0..WAITS).find_map(|_| {
                check();
                self.next(INTERVAL)
            });
            let Some(Event::ConnectionRequest(request)) = request else {
                panic!("no request: {request:?}");
            };
            let ep = self.connections[index].ep;
            let accepted = self.ia.cr_accept(request.cr, Some(ep), b"");
            accepted.expect("it may be accepted");
            self.established();
        }
    }

    /// Returns the number of Sends whose completion the program has not seen.
    pub fn unfinished(&self) -> u64 {
        let each = self.connections.iter().map(|it| it.sent - it.completed);
        each.sum()
    }

    pub fn disconnect(&mut self) {
        for connection in &self.connections {
            let ended = self.ia.ep_disconnect(connection.ep, CloseFlags::Graceful);
            ended.expect("connected");
        }
    }

    /// A program that still has memory cannot park. It goes on as if it had not asked.
    pub fn cannot_park_with_its_memory(self) -> Self {
        let (lmr, words) = (self.lmr, self.words(&[]));
        let Self { ia, memory, .. } = self;
        let refused = handover::park(ia, b"").expect_err("the region's memory is in use");
        let why = refused.to_string();
        let wanted = format!("has the memory of {lmr:?} (clones: 1)");
        assert!(why.contains(&wanted), "{why}");
        drop(memory);
        let ia = refused.into_ia().expect("unchanged");
        let other = udapl::alloc(&ia, 64).expect("memory");
        let refused = handover::park(ia, b"").expect_err("memory of no region is in use");
        let why = refused.to_string();
        assert!(why.contains("memory are in use"), "{why}");
        let ia = refused.into_ia().expect("it goes on");
        drop(other);
        let (end, []) = Self::of(Resumed { ia, words });
        end
    }

    /// Returns the handles and counts, behind the program's own numbers.
    fn words<const N: usize>(&self, own: &[u64; N]) -> Vec<u8> {
        let (evd, number) = self.evd.to_raw();
        let (lmr, _) = self.lmr.to_raw();
        let head = [evd, number.into(), lmr];
        let each = self.connections.iter().flat_map(|it| {
            let (ep, _) = it.ep.to_raw();
            [ep, it.posted, it.received, it.sent, it.completed]
        });
        let all = own.iter().copied().chain(head).chain(each);
        all.flat_map(u64::to_be_bytes).collect()
    }

    /// Parks the end. The handles, the counts, and `own` are the program's own bytes.
    pub fn park<const N: usize>(self, own: &[u64; N]) -> Parked {
        assert_eq!(self.ended, 0, "connected");
        let (ia, words) = self.taken(own);
        handover::park(ia, &words).expect("it can be parked")
    }

    /// Returns the instance without the program's memory, and what [`End::of`] needs.
    pub fn taken<const N: usize>(self, own: &[u64; N]) -> (Ia, Vec<u8>) {
        let words = self.words(own);
        (self.ia, words)
    }

    /// Returns the end of an instance that was parked, and the numbers that `park` got.
    pub fn of<const N: usize>(resumed: Resumed) -> (Self, [u64; N]) {
        let Resumed { ia, words } = resumed;
        let mut words = words
            .chunks_exact(8)
            .map(|it| u64::from_be_bytes(it.try_into().expect("8 bytes")));
        let mut next = || words.next().expect("a number");
        let own = std::array::from_fn(|_| next());
        let (evd, number, lmr) = (next(), next(), next());
        let number = u32::try_from(number).expect("an IA");
        let words: Vec<u64> = words.collect();
        let connections = words.chunks_exact(5).map(|it| Connection {
            ep: EpHandle::from_raw(it[0], number),
            posted: it[1],
            received: it[2],
            sent: it[3],
            completed: it[4],
        });
        let lmr = LmrHandle::from_raw(lmr, number);
        let end = Self {
            evd: EvdHandle::from_raw(evd, number),
            memory: ia.lmr_memory(lmr).expect("a region"),
            connections: connections.collect(),
            ended: 0,
            lmr,
            ia,
        };
        (end, own)
    }
}
