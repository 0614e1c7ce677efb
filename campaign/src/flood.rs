//! A flood: far more connection requests than programs make, all well-formed, at one service point. An honest client
//! uses the same service point, and the listening program also has a connection that carries messages.
//!
//! ```text
//! client --+-- messages, at most 8 outstanding -->   listening program: receives messages,
//!          '-- connect, disconnect, again -->        accepts or rejects requests
//! attackers -- a number of requests per turn -->
//! ```
//!
//! A turn is [`TURN`] of virtual time, in which each program handles all its events once and the attackers send twice.
//! The first phase has no attack. The second phase is the flood. Both phases count messages, connects and requests.
//! After the flood, the state of the remaining requests expires. One request in four has an attacker's own source
//! address. Each of the others has a different spoofed address that no node has.

use std::fs;
use std::time::{Duration, Instant};

use comfy_table::Table;
use dat_core::cm::wire::{Message, ReqRepr};
use dat_core::provider::Qpn;
use hw_sim::{CardConfig, LinkFaults, Profile, Sim, SimConfig, VfSettings};
use udapl::connection::CrHandle;
use udapl::endpoint::EpAttr;
use udapl::memory::LmrTriplet;
use udapl::{
    CloseFlags, CompletionFlags, ConnQual, ConnectFlags, ConnectionEventKind, DtoCookie, EpEvds,
    EpHandle, EvdHandle, Event, Qos, Timeout,
};

use crate::address::Address;
use crate::bytes::STRIDE;
use crate::keys::Region;
use crate::off_path_attacker::{ATTACKER, a_request, datagram};
use crate::side::{CONN_QUAL, Open, Side, SideConfig};

/// Virtual time of a turn.
pub const TURN: Duration = Duration::from_micros(200);
/// Maximum number of outstanding messages.
const WINDOW: usize = 8;
/// Length of a message in bytes.
const BYTES: u64 = 1024;
/// Number of turns between the end of a connection or attempt of the honest client and its next attempt.
const PAUSE: u64 = 5;
/// Number of turns of the phase before the flood.
const BASELINE_TURNS: u64 = 512;
/// Timeout of a connect of the honest client.
const PATIENCE: Timeout = Timeout::from_micros(20_000_000);
/// Maximum number of turns of a phase, including the turns after the attack until the client has connected.
const LAST: u64 = 200_000;
/// Maximum virtual time after the flood to wait until the listener has freed the state of all requests
/// (docs/decisions/strangers.md).
const GONE: Duration = Duration::from_secs(200);
/// Private data of the honest client's requests and of the request for the traffic's connection.
const HONEST: &[u8] = b"honest";

const LISTENER: [u8; 6] = [2, 0xca, 0, 0, 1, 0];
const CLIENT: [u8; 6] = [2, 0xca, 0, 0, 1, 1];

/// The size of a flood.
#[derive(Clone, Copy, Debug)]
pub struct Flood {
    /// Total number of requests.
    pub requests: u32,
    /// Number of requests per turn.
    pub per_turn: u32,
}

/// Counts of one phase, with or without the flood.
#[derive(Clone, Debug, Default)]
pub struct Counted {
    /// Number of turns of the phase.
    pub turns: u64,
    /// Number of messages that arrived on the established connection.
    pub messages: u64,
    /// Duration of each successful connect of the honest client, and the number of datagrams that the listener handled
    /// meanwhile.
    pub connects: Vec<(Duration, u64)>,
    /// Number of attempts of the honest client that were refused or timed out.
    pub refused: u64,
    /// Number of datagrams that the listener's connection manager handled.
    pub handled: u64,
    /// Number of requests of attackers that reached the program, which rejected them.
    pub asked: u64,
    /// Real time spent in calls of the listening program.
    pub real: Duration,
}

/// Results of a flood.
#[derive(Clone, Debug, Default)]
pub struct FloodResult {
    /// Counts of the phase without the flood.
    pub peace: Counted,
    /// Counts of the flood.
    pub flood: Counted,
    /// Number of connections in any state in the listener's connection manager: before the flood, the maximum, and at
    /// the end.
    pub connections: [usize; 3],
    /// Virtual time after the flood until the number of connections was as low as before, or until the wait ended.
    pub gone_after: Duration,
    /// Resident memory of the process in bytes, including the simulator: before the flood, and the maximum.
    pub resident: [u64; 2],
}

impl FloodResult {
    /// Returns the listener's real time per handled datagram, without the time per turn of the phase before the flood.
    /// The result includes the simulator's work for the answers.
    #[must_use]
    pub fn each(&self) -> Duration {
        let turns = u32::try_from(self.flood.turns).unwrap_or(u32::MAX);
        let peace = self.peace.real * turns / u32::try_from(self.peace.turns).unwrap_or(1).max(1);
        let handled = u32::try_from(self.flood.handled).unwrap_or(u32::MAX).max(1);
        self.flood.real.saturating_sub(peace) / handled
    }
}

impl Counted {
    /// Returns the mean number of messages per turn.
    #[must_use]
    pub fn per_turn(&self) -> f64 {
        self.messages as f64 / self.turns.max(1) as f64
    }

    /// Returns the duration of the longest connect, with its number of datagrams.
    #[must_use]
    pub fn longest(&self) -> (Duration, u64) {
        self.connects.iter().copied().max().unwrap_or_default()
    }

    fn median(&self) -> (Duration, u64) {
        let mut all = self.connects.clone();
        all.sort_unstable();
        all.get(all.len() / 2).copied().unwrap_or_default()
    }
}

struct Ends {
    /// Endpoint of the connection with messages. `honest` is the endpoint of the honest client's connections.
    traffic: EpHandle,
    honest: EpHandle,
}

struct FloodSim {
    sim: Sim,
    /// The listener (0) and the client (1).
    sides: [Side; 2],
    ends: [Ends; 2],
    /// Number of outstanding messages.
    sent: usize,
    /// Time of the client's first attempt since its last connect, and the number of datagrams that the listener had
    /// handled then.
    asked_at: Option<(u64, u64)>,
    /// True while the client has an outstanding request or a connection.
    asks: bool,
    /// Number of turns until the client's next request.
    pause: u64,
    counted: Counted,
}

fn depth(open: &Open) -> EpAttr {
    let depth = u32::try_from(2 * WINDOW).unwrap_or(u32::MAX);
    EpAttr {
        max_recv_dtos: depth,
        max_request_dtos: depth,
        max_recv_iov: 1,
        max_request_iov: 1,
        ..EpAttr::defaults(open.ia.query().ia)
    }
}

fn ends(open: &mut Open) -> Ends {
    let attr = depth(open);
    let mut make = || {
        let (dto, connect) = (Some(open.dto), Some(open.connect));
        let made = open.ia.ep_create(
            Some(open.pz),
            EpEvds {
                recv: dto,
                request: dto,
                connect,
            },
            Some(&attr),
        );
        made.expect("there are queue pairs")
    };
    Ends {
        traffic: make(),
        honest: make(),
    }
}

fn piece(region: &Region, slot: usize) -> LmrTriplet {
    LmrTriplet {
        lmr_context: region.lmr.lmr_context,
        virtual_address: region.lmr.registered_address + (slot * STRIDE) as u64,
        segment_length: BYTES,
    }
}

/// Returns the resident memory of the process in bytes.
fn resident() -> u64 {
    let statm = fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = statm.split_whitespace().nth(1);
    pages.and_then(|pages| pages.parse().ok()).unwrap_or(0) * 4096
}

impl FloodSim {
    fn new() -> Self {
        let sim = Sim::new(SimConfig {
            seed: 1,
            event_log: false,
        });
        let cards = [0, 1].map(|card: u8| {
            let profile = Profile::named(&format!("card{card}"), [2, 0xca, 0, card, 0, 0]);
            sim.add_card(&CardConfig::new(profile, 1))
        });
        let (a, b) = (cards[0].physical(), cards[1].physical());
        let _wire = sim.connect(&a, &b, LinkFaults::default());
        let mut sides = [0_u8, 1].map(|number| {
            let card = &cards[usize::from(number)];
            let settings = VfSettings {
                mac: Some(if number == 0 { LISTENER } else { CLIENT }),
                ..VfSettings::default()
            };
            assert!(card.set_vf(0, settings));
            let function = card.virtual_function(0).expect("just made");
            Side::new(
                (function, None),
                (usize::from(number), usize::from(number)),
                7 + u64::from(number),
                SideConfig::default(),
            )
        });
        let ends = [0, 1].map(|at| {
            sides[at].open(at).expect("it opens");
            ends(sides[at].open.as_mut().expect("it is open"))
        });
        let mut flood_sim = Self {
            sim,
            sides,
            ends,
            sent: 0,
            asked_at: None,
            asks: false,
            pause: 0,
            counted: Counted::default(),
        };
        for slot in 0..WINDOW {
            flood_sim.receive(slot);
        }
        flood_sim.ask(flood_sim.ends[1].traffic);
        for _ in 0..BASELINE_TURNS {
            flood_sim.run_once(|_| {});
        }
        let (messages, asked) = (flood_sim.counted.messages, flood_sim.counted.connects.len());
        assert!(messages > 0 && asked > 0, "there is peace");
        flood_sim
    }

    fn open(&mut self, side: usize) -> &mut Open {
        self.sides[side].open.as_mut().expect("it is open")
    }

    fn now(&self) -> u64 {
        self.sim.clock().now().0
    }

    fn handled(&mut self) -> u64 {
        self.open(0).ia.cm_counters().received
    }

    fn receive(&mut self, slot: usize) {
        let ep = self.ends[0].traffic;
        let open = self.open(0);
        let to = [piece(&open.inbox, slot)];
        let none = CompletionFlags::empty();
        let posted = open.ia.ep_post_recv(ep, &to, DtoCookie(slot as u64), none);
        posted.expect("there is room for a receive");
    }

    fn ask(&mut self, ep: EpHandle) {
        let there = self.open(0).ia.query().ia.ia_address;
        let flags = ConnectFlags::empty();
        let asked = self.open(1).ia.ep_connect(
            ep,
            there,
            ConnQual(CONN_QUAL),
            PATIENCE,
            HONEST,
            Qos::BEST_EFFORT,
            flags,
        );
        asked.expect("it may ask");
    }

    /// Runs one turn: each program acts once, and the attackers send before and after the client acts.
    fn run_once(&mut self, mut wave: impl FnMut(&mut Self)) {
        self.counted.turns += 1;
        let started = Instant::now();
        self.open(0).ia.progress();
        self.events(0);
        self.counted.real += started.elapsed();
        wave(self);
        self.open(1).ia.progress();
        self.events(1);
        self.send();
        self.pause = self.pause.saturating_sub(1);
        if !self.asks && self.pause == 0 {
            let ep = self.ends[1].honest;
            // The reset is refused until the endpoint is UNCONNECTED or DISCONNECTED.
            if self.open(1).ia.ep_reset(ep).is_ok() {
                let now = (self.now(), self.handled());
                self.asked_at.get_or_insert(now);
                self.asks = true;
                self.ask(ep);
            }
        }
        wave(self);
        self.sim.advance(TURN);
    }

    fn send(&mut self) {
        let ep = self.ends[1].traffic;
        while self.sent < WINDOW {
            let slot = self.sent;
            let open = self.open(1);
            let from = [piece(&open.source, slot)];
            let none = CompletionFlags::empty();
            if open
                .ia
                .ep_post_send(ep, &from, DtoCookie(slot as u64), none)
                .is_err()
            {
                return;
            }
            self.sent += 1;
        }
    }

    fn next(&mut self, side: usize) -> Option<Event> {
        let open = self.open(side);
        let evds: [EvdHandle; 4] = [open.dto, open.cr, open.connect, open.ia.async_evd()];
        evds.into_iter()
            .find_map(|evd| open.ia.evd_dequeue(evd).ok().flatten())
    }

    fn events(&mut self, side: usize) {
        while let Some(event) = self.next(side) {
            match event {
                Event::Dto(done) if done.ep == self.ends[side].traffic => {
                    assert!(
                        done.status == udapl::DtoStatus::Success,
                        "the connection carries on: {done:?}"
                    );
                    if done.request {
                        self.sent -= 1;
                    } else {
                        self.counted.messages += 1;
                        self.receive(usize::try_from(done.cookie.0).expect("a slot"));
                    }
                }
                Event::ConnectionRequest(request) => self.decide(request.cr),
                Event::Connection(event) => self.connection(side, event.ep, event.kind),
                Event::Dto(_) => {}
                Event::RmrBind(_) | Event::Async(_) | Event::Software(_) => {
                    panic!("side {side}: {event:?}")
                }
            }
        }
    }

    fn decide(&mut self, cr: CrHandle) {
        let Ends { traffic, honest } = self.ends[0];
        let open = self.open(0);
        let asks = open.ia.cr_query(cr).expect("it has just come");
        if !asks.private_data.starts_with(HONEST) {
            open.ia.cr_reject(cr).expect("it may be refused");
            self.counted.asked += 1;
            return;
        }
        let accepted = [traffic, honest].into_iter().any(|ep| {
            let _ = open.ia.ep_reset(ep);
            open.ia.cr_accept(cr, Some(ep), b"").is_ok()
        });
        if !accepted {
            open.ia.cr_reject(cr).expect("it may be refused");
        }
    }

    fn connection(&mut self, side: usize, ep: EpHandle, kind: ConnectionEventKind) {
        if ep == self.ends[side].traffic {
            assert_eq!(
                kind,
                ConnectionEventKind::Established,
                "the connection lives"
            );
            return;
        }
        if side == 0 {
            return;
        }
        if kind == ConnectionEventKind::Established {
            let (at, handled) = self.asked_at.take().expect("it asked");
            let took = Duration::from_nanos(self.now() - at);
            let meanwhile = self.handled() - handled;
            self.counted.connects.push((took, meanwhile));
            let ended = self.open(1).ia.ep_disconnect(ep, CloseFlags::Abrupt);
            ended.expect("it is connected");
        } else {
            if kind != ConnectionEventKind::Disconnected {
                self.counted.refused += 1;
            }
            (self.asks, self.pause) = (false, PAUSE);
        }
    }

    /// Runs a phase of `turns` turns with attackers, and continues without attackers until the client has connected
    /// once. Returns the counts, and the maximum number of connections in the listener's connection manager.
    fn count(&mut self, turns: u64, mut wave: impl FnMut(&mut Self)) -> (Counted, usize) {
        self.counted = Counted::default();
        let before = self.open(0).ia.cm_counters();
        let mut most = 0;
        for turn in 0..LAST {
            if turn >= turns && !self.counted.connects.is_empty() {
                break;
            }
            self.run_once(|flood_sim| {
                if turn < turns {
                    wave(flood_sim);
                }
            });
            most = most.max(self.open(0).ia.cm_connections());
        }
        let after = self.open(0).ia.cm_counters();
        let mut counted = std::mem::take(&mut self.counted);
        counted.handled = after.received - before.received;
        (counted, most)
    }
}

/// Returns an address that no node has, derived from a number.
fn unused_address(number: u32) -> Address {
    let [a, b, c, d] = number.to_be_bytes();
    Address::of_mac([2, 0xee, a, b, c, d])
}

/// Runs a flood, and counts the service that the honest client gets meanwhile.
///
/// # Panics
/// If the established connection ends, or a message on it fails.
#[must_use]
pub fn flood(plan: Flood) -> FloodResult {
    let mut flood_sim = FloodSim::new();
    let (peace, _) = flood_sim.count(BASELINE_TURNS, |_| {});
    let before = flood_sim.open(0).ia.cm_connections();
    let target = Address::of_mac(LISTENER);
    let card = flood_sim.sides[0].function.clone();
    let like: ReqRepr = a_request(target, CONN_QUAL);
    let mut left = plan.requests;
    let turns = u64::from(plan.requests.div_ceil(plan.per_turn.max(1)));
    let (start, mut most_resident) = (resident(), 0);
    let (flood, most) = flood_sim.count(turns, |flood_sim| {
        for _ in 0..(plan.per_turn / 2).max(1).min(left) {
            left -= 1;
            let from = if left.is_multiple_of(4) {
                ATTACKER
            } else {
                unused_address(left)
            };
            let mut req = like.clone();
            (req.local_comm_id, req.local_qpn) = (left, Qpn::masked(left));
            req.local_ca_guid = 0x1_0000_0000 | u64::from(left);
            req.primary.local_gid = from.gid;
            let mad = Message::Req(Box::new(req)).to_mad(u64::from(left));
            let frame = datagram(from, target, left, &mad);
            flood_sim.sim.deliver(&card, &frame);
        }
        if left % 1024 < plan.per_turn {
            most_resident = most_resident.max(resident());
        }
    });
    let over = flood_sim.now();
    let at = |flood_sim: &FloodSim| Duration::from_nanos(flood_sim.now() - over);
    while flood_sim.open(0).ia.cm_connections() > before && at(&flood_sim) < GONE {
        flood_sim.open(0).ia.progress();
        flood_sim.events(0);
        flood_sim.open(1).ia.progress();
        flood_sim.events(1);
        flood_sim.sim.advance(Duration::from_millis(20));
    }
    FloodResult {
        peace,
        flood,
        connections: [before, most, flood_sim.open(0).ia.cm_connections()],
        gone_after: at(&flood_sim),
        resident: [start, most_resident.max(start)],
    }
}

/// Returns a table of floods of `requests` requests at several rates.
#[must_use]
pub fn flood_table(requests: u32, rates: &[u32]) -> Table {
    let mut table = Table::new();
    table.set_header([
        "requests each turn",
        "handled",
        "the program was asked",
        "honest connects",
        "refused",
        "median, datagrams before",
        "longest, datagrams before",
        "messages each turn",
        "listener's real time each turn",
        "each request",
        "connections held: before, most, after",
        "gone after",
        "resident: before, most (MiB)",
    ]);
    let mut row = |name: String, counted: &Counted, flood_result: Option<&FloodResult>| {
        let held = |flood_result: &FloodResult| {
            flood_result
                .connections
                .map(|count| count.to_string())
                .join(", ")
        };
        let mib = |flood_result: &FloodResult| {
            flood_result
                .resident
                .map(|bytes| (bytes >> 20).to_string())
                .join(", ")
        };
        let took = |(took, datagrams): (Duration, u64)| format!("{took:.1?}, {datagrams}");
        let real = counted.real / u32::try_from(counted.turns).unwrap_or(u32::MAX).max(1);
        table.add_row([
            name,
            counted.handled.to_string(),
            counted.asked.to_string(),
            counted.connects.len().to_string(),
            counted.refused.to_string(),
            took(counted.median()),
            took(counted.longest()),
            format!("{:.2}", counted.per_turn()),
            format!("{real:.0?}"),
            flood_result.map_or_else(String::new, |flood_result| {
                format!("{:.1?}", flood_result.each())
            }),
            flood_result.map_or_else(String::new, held),
            flood_result.map_or_else(String::new, |flood_result| {
                format!("{:.0?}", flood_result.gone_after)
            }),
            flood_result.map_or_else(String::new, mib),
        ]);
    };
    for (at, &per_turn) in rates.iter().enumerate() {
        let flood_result = flood(Flood { requests, per_turn });
        if at == 0 {
            row("none".to_owned(), &flood_result.peace, None);
        }
        row(
            per_turn.to_string(),
            &flood_result.flood,
            Some(&flood_result),
        );
    }
    table
}
