//! Two honest programs that only connect, send and disconnect, besides all other programs. Each of their operations
//! must end within [`MOST`] loop iterations.
//!
//! ```text
//! connect --> message, message, ... --> disconnect --> connect, on other endpoints
//! ```
//!
//! Each honest program has a function of its own, one on each card. No fault is injected into these functions, but
//! attackers send to them. Both programs must get an event for each operation. The duration of an operation is counted
//! in loop iterations of the honest programs. An operation is not judged if a fault of the wire, or a long call of
//! another program that blocks all others, happens during the operation.

use hw_sim::SimCard;
use udapl::connection::CrHandle;
use udapl::event::AsyncEvent;
use udapl::memory::LmrTriplet;
use udapl::{
    CloseFlags, CompletionFlags, ConnQual, ConnectFlags, ConnectionEventKind, DtoCookie, DtoStatus,
    EpHandle, Event, Qos, Timeout,
};

use crate::address::Address;
use crate::bytes;
use crate::cover::Coverage;
use crate::keys::Region;
use crate::side::{CONN_QUAL, Open, Side, SideConfig};

/// Maximum number of loop iterations of an operation.
const MOST: u64 = 8;
/// Number of loop iterations after which an operation that is not judged is abandoned.
const PATIENCE: u64 = 400;
/// Number of loop iterations from one operation to the next.
const PAUSE: u64 = 4;
/// Number of messages per connection.
const MESSAGES: u64 = 6;
const BYTES: u32 = 64;
/// Private data of the client's requests.
const WORD: &[u8] = b"a neighbour";

/// The current operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Doing {
    Nothing,
    Connect,
    Message(u64),
    Disconnect,
}

/// The two honest programs: the listener (0) and the client (1).
pub struct Honest {
    sides: [Side; 2],
    ends: [Option<EpHandle>; 2],
    doing: Doing,
    /// True for each program that has got its event for the current operation.
    are_done: [bool; 2],
    /// Number of loop iterations since the current operation began, or since the last operation ended.
    turns: u64,
    /// True if a cause other than a neighbour may have delayed the current operation or made it fail.
    is_spoiled: bool,
    messages: u64,
    /// Number of consecutive connects whose call returned an error.
    refused: u64,
    /// Duration of the longest operation, in loop iterations.
    pub longest: u64,
}

fn piece(region: &Region) -> LmrTriplet {
    LmrTriplet {
        lmr_context: region.lmr.lmr_context,
        virtual_address: region.lmr.registered_address,
        segment_length: BYTES.into(),
    }
}

impl Honest {
    /// Opens both programs' adapters, on the virtual function `index` of each card.
    pub fn new(cards: &[SimCard; 2], seed: u64, index: usize) -> Self {
        let mut card = 0;
        let sides = cards.each_ref().map(|of| {
            let function = of.virtual_function(index).expect("just made");
            let place = (usize::MAX - card, card);
            let mut side = Side::new(
                (function, None),
                place,
                seed ^ card as u64,
                SideConfig::default(),
            );
            side.open(0xff).expect("nothing is done to it");
            card += 1;
            side
        });
        Self {
            sides,
            ends: [None; 2],
            doing: Doing::Nothing,
            are_done: [false; 2],
            turns: 0,
            is_spoiled: false,
            messages: 0,
            refused: 0,
            longest: 0,
        }
    }

    /// Returns the address of one of the programs, and the index of its card.
    pub fn address(&self, at: usize) -> Option<(Address, usize)> {
        let side = &self.sides[at];
        let open = side.open.as_ref()?;
        Some((Address::of(open.ia.query().ia.ia_address)?, side.card))
    }

    pub fn functions(&self) -> impl Iterator<Item = &hw_sim::SimFunction> {
        self.sides.iter().map(|side| &*side.function)
    }

    fn open(&mut self, at: usize) -> &mut Open {
        self.sides[at].open.as_mut().expect("it is open")
    }

    /// Frees a program's endpoint and makes another.
    fn renew(&mut self, at: usize) -> EpHandle {
        let old = self.ends[at].take();
        let open = self.open(at);
        if let Some(old) = old {
            open.ia.ep_free(old).expect("it may be freed");
        }
        let ep = open.make_ep(false).expect("there are endpoints");
        self.ends[at] = Some(ep);
        ep
    }

    /// Records that the current operation is not judged.
    pub const fn spoil(&mut self) {
        self.is_spoiled = true;
    }

    /// Runs one loop iteration of both programs. `is_disturbed` is true if the wire may lose or delay frames.
    pub fn run_once(&mut self, cover: &mut Coverage, is_disturbed: bool) {
        self.turns += 1;
        self.is_spoiled |= is_disturbed;
        for at in [0, 1] {
            self.open(at).ia.progress();
            while let Some(event) = self.next(at) {
                self.event(at, event);
            }
        }
        let (doing, turns) = (self.doing, self.turns);
        if doing == Doing::Nothing {
            if turns >= PAUSE && !is_disturbed {
                self.begin();
            }
            return;
        }
        if self.are_done == [true, true] {
            let what = match doing {
                _ if self.is_spoiled => "not judged",
                Doing::Connect => "connect",
                Doing::Message(_) => "message",
                Doing::Nothing | Doing::Disconnect => "disconnect",
            };
            cover.count("honest", what);
            if !self.is_spoiled {
                self.longest = self.longest.max(turns);
            }
            (self.doing, self.turns) = (Doing::Nothing, 0);
            self.messages = match doing {
                Doing::Message(number) => number,
                Doing::Connect => 0,
                Doing::Nothing | Doing::Disconnect => u64::MAX,
            };
        } else if !self.is_spoiled {
            let are_done = self.are_done;
            assert!(
                turns < MOST,
                "the honest programs wait for {turns} turns, and nothing has happened to them: {doing:?}, done: {are_done:?}"
            );
        } else if turns > PATIENCE {
            self.start_over();
        }
    }

    fn start_over(&mut self) {
        (self.doing, self.turns, self.messages) = (Doing::Nothing, 0, u64::MAX);
    }

    /// Starts the next operation. An endpoint of an abandoned connection is replaced before it is used again.
    fn begin(&mut self) {
        (self.turns, self.are_done, self.is_spoiled) = (0, [false; 2], false);
        match (self.messages, self.ends) {
            (number, [Some(server), Some(client)]) if number < MESSAGES => {
                self.doing = Doing::Message(number + 1);
                let none = CompletionFlags::empty();
                let open = self.open(0);
                let to = [piece(&open.inbox)];
                let posted = open.ia.ep_post_recv(server, &to, DtoCookie(number), none);
                posted.expect("there is room");
                let open = self.open(1);
                bytes::put(&open.source.memory, 0, number);
                let from = [piece(&open.source)];
                let posted = open.ia.ep_post_send(client, &from, DtoCookie(number), none);
                posted.expect("there is room");
            }
            (MESSAGES, [Some(_), Some(client)]) => {
                self.doing = Doing::Disconnect;
                let ended = self.open(1).ia.ep_disconnect(client, CloseFlags::Abrupt);
                ended.expect("it is connected");
            }
            _ => {
                self.doing = Doing::Connect;
                let there = self.open(0).ia.query().ia.ia_address;
                let (ep, qual) = (self.renew(1), ConnQual(CONN_QUAL));
                let (patience, qos) = (Timeout::from_micros(20_000_000), Qos::BEST_EFFORT);
                let none = ConnectFlags::empty();
                let ia = &mut self.open(1).ia;
                let asked = ia.ep_connect(ep, there, qual, patience, WORD, qos, none);
                // The call may be refused because the driver does not know yet that the port is up again.
                if let Err(error) = asked {
                    self.refused += 1;
                    assert!(self.refused < MOST, "the client may not ask: {error}");
                    self.start_over();
                } else {
                    self.refused = 0;
                }
            }
        }
    }

    fn next(&mut self, at: usize) -> Option<Event> {
        let open = self.open(at);
        let evds = [open.dto, open.cr, open.connect, open.ia.async_evd()];
        evds.into_iter()
            .find_map(|evd| open.ia.evd_dequeue(evd).expect("an EVD"))
    }

    fn event(&mut self, at: usize, event: Event) {
        match event {
            Event::ConnectionRequest(request) => self.decide(at, request.cr),
            Event::Connection(event) if self.ends[at] == Some(event.ep) => {
                let awaited = match self.doing {
                    Doing::Connect => Some(ConnectionEventKind::Established),
                    Doing::Disconnect => Some(ConnectionEventKind::Disconnected),
                    Doing::Nothing | Doing::Message(_) => None,
                };
                let is_it = awaited == Some(event.kind);
                self.heard(at, is_it, &event.kind);
            }
            Event::Dto(done) if self.ends[at] == Some(done.ep) => {
                let is_it =
                    matches!(self.doing, Doing::Message(_)) && done.status == DtoStatus::Success;
                if is_it && at == 0 {
                    let open = self.open(0);
                    let is_it = bytes::is(&open.inbox.memory, 0, done.cookie.0, BYTES as usize);
                    assert!(is_it, "another message: {done:?}");
                }
                self.heard(at, is_it, &done);
            }
            // These are events of abandoned endpoints, or events of the port.
            Event::Connection(_) | Event::Dto(_) | Event::Async(AsyncEvent::Network(_)) => {}
            Event::Async(event) => self.heard(at, false, &event),
            Event::RmrBind(_) | Event::Software(_) => panic!("honest program {at}: {event:?}"),
        }
    }

    /// Handles an event of one program. If `is_it` is true, the operation is done for this program. Otherwise the
    /// operation has failed, which is allowed only if the operation is not judged.
    fn heard(&mut self, at: usize, is_it: bool, what: &dyn std::fmt::Debug) {
        if is_it {
            self.are_done[at] = true;
            return;
        }
        assert!(
            self.is_spoiled,
            "honest program {at}: {what:?}, and nothing has happened to it: {:?}",
            self.doing
        );
        self.start_over();
    }

    fn decide(&mut self, at: usize, cr: CrHandle) {
        let asks = self.open(at).ia.cr_query(cr).expect("it has just come");
        if at == 0 && asks.private_data.starts_with(WORD) {
            let ep = self.renew(0);
            let accepted = self.open(0).ia.cr_accept(cr, Some(ep), b"");
            assert!(self.is_spoiled || accepted.is_ok(), "{accepted:?}");
        } else {
            let rejected = self.open(at).ia.cr_reject(cr);
            rejected.expect("it may be refused");
        }
    }
}
