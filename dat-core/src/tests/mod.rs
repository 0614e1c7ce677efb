//! Tests of the calls from the consumer's side, over the in-memory provider. Each file covers one group of calls.

mod asynchronous;
mod at_once;
mod checks;
mod close;
mod connect;
mod disconnect;
mod evd;
mod flood;
mod latency;
mod lmr;
mod network;
mod parking;
mod post;
mod recorder;
mod rmr;
mod sharing;
mod srq;
mod status;
mod steps;
mod transport;
mod view;

use crate::mock::{Mock, Net};
use crate::provider::{Provider, Qpn};
use crate::*;
use std::net::IpAddr;

/// Connection qualifier at which these tests listen.
pub(super) const QUAL: ConnQual = ConnQual(0x1_0000_0001);
/// Address and length of every side's memory, in bytes.
pub(super) const MEMORY: (u64, u64) = (0x10_0000, 0x1_0000);

/// An IA with the objects that a connection needs.
pub(super) struct Side {
    pub(super) ia: Ia<Mock>,
    pub(super) pz: PzHandle,
    pub(super) lmr: LmrCreated,
    pub(super) recv: EvdHandle,
    pub(super) request: EvdHandle,
    pub(super) connect: EvdHandle,
    pub(super) ep: EpHandle,
}

impl Side {
    pub(super) fn new(net: &Net, adjust: impl FnOnce(&mut EpAttr)) -> Self {
        Self::with(net, IaConfig::default(), adjust)
    }

    pub(super) fn with(net: &Net, config: IaConfig, adjust: impl FnOnce(&mut EpAttr)) -> Self {
        Self::on(Ia::open(net.node(), config).expect("opens"), adjust)
    }

    /// Makes the objects of a side on an instance.
    pub(super) fn on(mut ia: Ia<Mock>, adjust: impl FnOnce(&mut EpAttr)) -> Self {
        let pz = ia.pz_create().expect("a PZ");
        let lmr = ia
            .lmr_create(MEMORY, pz, MemPrivFlags::all())
            .expect("an LMR");
        let recv = ia.evd_create(32, EvdFlags::DTO).expect("an EVD");
        let request = ia.evd_create(32, EvdFlags::DTO).expect("an EVD");
        let connect = ia
            .evd_create(8, EvdFlags::CONNECTION | EvdFlags::CR)
            .expect("an EVD");
        let mut attr = EpAttr::defaults(ia.query().ia);
        attr.max_rdma_read_in = 4;
        attr.max_rdma_read_out = 4;
        adjust(&mut attr);
        let ep = ia
            .ep_create(
                Some(pz),
                EpEvds::NONE.recv(recv).request(request).connect(connect),
                Some(&attr),
            )
            .expect("an EP");
        Self {
            ia,
            pz,
            lmr,
            recv,
            request,
            connect,
            ep,
        }
    }

    /// Returns the triplet of `bytes` bytes of the memory, at offset `at`.
    pub(super) fn triplet(&self, at: u64, bytes: u64) -> LmrTriplet {
        LmrTriplet {
            lmr_context: self.lmr.lmr_context,
            virtual_address: MEMORY.0 + at,
            segment_length: bytes,
        }
    }

    /// Returns the triplet with which the peer addresses the first `bytes` bytes of the memory.
    pub(super) fn remote(&self, bytes: u64) -> RmrTriplet {
        RmrTriplet {
            rmr_context: self.lmr.rmr_context,
            target_address: MEMORY.0,
            segment_length: bytes,
        }
    }

    pub(super) fn address(&self) -> IpAddr {
        self.ia.query().ia.ia_address
    }

    pub(super) fn state(&self) -> EpState {
        self.ia.ep_get_status(self.ep).expect("exists").state
    }

    pub(super) fn qpn(&self) -> Qpn {
        self.ia.qp_number(self.ep).expect("made")
    }

    pub(super) fn send(&mut self, cookie: u64, flags: CompletionFlags) -> DatResult<()> {
        let iov = [self.triplet(0, 16)];
        self.ia
            .ep_post_send(self.ep, &iov, DtoCookie(cookie), flags)
    }

    pub(super) fn post_recv(&mut self, cookie: u64) -> DatResult<()> {
        let iov = [self.triplet(0, 64)];
        self.ia
            .ep_post_recv(self.ep, &iov, DtoCookie(cookie), CompletionFlags::empty())
    }

    /// Dequeues and returns all events of an EVD.
    pub(super) fn events(&mut self, evd: EvdHandle) -> Vec<Event> {
        parking::park_if_asked(&mut self.ia);
        std::iter::from_fn(|| self.ia.evd_dequeue(evd).ok().flatten()).collect()
    }

    /// Dequeues all connection events, and returns their kinds.
    pub(super) fn connection_events(&mut self) -> Vec<ConnectionEventKind> {
        kinds(&self.events(self.connect))
    }

    /// Dequeues all completions of an EVD, and returns their cookies and statuses.
    pub(super) fn completions(&mut self, evd: EvdHandle) -> Vec<(u64, DtoStatus)> {
        dtos(&self.events(evd))
    }
}

pub(super) fn kinds(events: &[Event]) -> Vec<ConnectionEventKind> {
    events
        .iter()
        .filter_map(|event| {
            if let Event::Connection(event) = event {
                Some(event.kind)
            } else {
                None
            }
        })
        .collect()
}

pub(super) fn dtos(events: &[Event]) -> Vec<(u64, DtoStatus)> {
    events
        .iter()
        .filter_map(|event| {
            if let Event::Dto(dto) = event {
                Some((dto.cookie.0, dto.status))
            } else {
                None
            }
        })
        .collect()
}

/// Runs the housekeeping of both sides eight times, which is enough for all messages of a handshake or of a disconnect.
pub(super) fn progress_both(a: &mut Side, b: &mut Side) {
    for round in 0..8 {
        a.ia.progress();
        b.ia.progress();
        if round % 4 == 1 {
            parking::park_if_asked(&mut a.ia);
            parking::park_if_asked(&mut b.ia);
        }
    }
}

/// Starts a connection from `a` to `b`, which listens. Returns the request that arrived at `b`.
pub(super) fn request(a: &mut Side, b: &mut Side, private_data: &[u8]) -> CrHandle {
    if b.ia.listener(QUAL).is_none() {
        b.ia.psp_create(QUAL, b.connect, PspFlags::CONSUMER)
            .expect("listens");
    }
    a.ia.ep_connect(
        a.ep,
        b.address(),
        QUAL,
        Timeout::INFINITE,
        private_data,
        Qos::BEST_EFFORT,
        ConnectFlags::empty(),
    )
    .expect("connects");
    progress_both(a, b);
    match b.ia.evd_dequeue(b.connect) {
        Ok(Some(Event::ConnectionRequest(request))) => request.cr,
        other => panic!("no request but {other:?}"),
    }
}

/// Makes two connected sides; their ESTABLISHED events are already dequeued.
pub(super) fn connected_with(adjust: impl Fn(&mut EpAttr)) -> (Net, Side, Side) {
    let net = Net::default();
    let (mut a, mut b) = (Side::new(&net, &adjust), Side::new(&net, &adjust));
    connect(&mut a, &mut b);
    (net, a, b)
}

pub(super) fn connect(a: &mut Side, b: &mut Side) {
    let cr = request(a, b, b"");
    b.ia.cr_accept(cr, Some(b.ep), b"").expect("accepts");
    progress_both(a, b);
    assert_eq!(
        (a.connection_events(), b.connection_events()),
        (
            vec![ConnectionEventKind::Established],
            vec![ConnectionEventKind::Established]
        )
    );
}

pub(super) fn connected() -> (Net, Side, Side) {
    connected_with(|_| {})
}

pub(super) const NO_FLAGS: CompletionFlags = CompletionFlags::empty();

/// Returns the time of a side's clock, in nanoseconds.
pub(super) fn now(side: &Side) -> u64 {
    side.ia.provider().now()
}

/// Compares the rows of a state table with the checked-in file. A failure names the first row that differs, and
/// prints the current table.
#[track_caller]
pub(crate) fn assert_table(rows: impl IntoIterator<Item = String>, checked_in: &str) {
    let rows: Vec<String> = rows.into_iter().collect();
    let now = rows.join("\n");
    for (row, expected) in rows.iter().zip(checked_in.lines()) {
        assert_eq!(row, expected, "the table is now:\n{now}\n");
    }
    assert_eq!(
        rows.len(),
        checked_in.lines().count(),
        "the table is now:\n{now}\n"
    );
}
