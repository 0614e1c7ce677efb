//! Helpers for connecting: start a connection, get the request, check the outcome.

use hw_sim::{Fault, Faults, LinkFaults};
use mlx_prm::Opcode;
use udapl::connection::CrHandle;
use udapl::endpoint::EpState;
use udapl::event::ConnectionEvent;
use udapl::memory::LmrTriplet;
use udapl::{
    ConnQual, ConnectFlags, ConnectionEventKind as Kind, DatResult, DtoStatus, EpEvds, EpHandle,
    Event, Qos, Timeout,
};

use super::{A, B, CONN_QUAL, LONG, NONE, Pair, attributes};

/// An empty I/O vector, with its type.
pub const EMPTY: &[LmrTriplet] = &[];
/// One second of virtual time, in nanoseconds.
pub const SECOND: u64 = 1_000_000_000;

impl Pair {
    /// Starts a connection from an endpoint of `side` to a qualifier of the other side.
    pub fn start(
        &mut self,
        side: usize,
        ep: EpHandle,
        conn_qual: ConnQual,
        timeout: Timeout,
        data: &[u8],
    ) -> DatResult<()> {
        let address = self.sides[1 - side].ia.query().ia.ia_address;
        let none = ConnectFlags::empty();
        self.sides[side].ia.ep_connect(
            ep,
            address,
            conn_qual,
            timeout,
            data,
            Qos::BEST_EFFORT,
            none,
        )
    }

    /// Starts a connection from A's endpoint to `CONN_QUAL` of B.
    pub fn start_usual(&mut self) {
        let ep = self.sides[A].ep;
        self.start(A, ep, CONN_QUAL, LONG, b"request")
            .expect("UNCONNECTED");
    }

    /// Waits for the next connection request at a side, and returns it.
    #[track_caller]
    pub fn request(&mut self, side: usize) -> CrHandle {
        let Event::ConnectionRequest(request) = self.wait_event(side, self.sides[side].cr) else {
            panic!("a connection request");
        };
        request.cr
    }

    /// Makes another endpoint of a side, with the same EVDs.
    pub fn another_ep(&mut self, side: usize) -> EpHandle {
        let side = &mut self.sides[side];
        let attr = attributes(&side.ia);
        let (recv, request, connect) = (side.recv, side.request, side.connect);
        side.ia
            .ep_create(
                Some(side.pz),
                EpEvds::NONE.recv(recv).request(request).connect(connect),
                Some(&attr),
            )
            .expect("an endpoint")
    }

    /// Returns the state of any endpoint of a side.
    pub fn state_of(&self, side: usize, ep: EpHandle) -> EpState {
        self.sides[side]
            .ia
            .ep_get_status(ep)
            .expect("a status")
            .state
    }

    /// Waits for the next connection event of a side, and returns it.
    #[track_caller]
    pub fn connection_event(&mut self, side: usize) -> ConnectionEvent {
        let event = self.wait_event(side, self.sides[side].connect);
        let Event::Connection(event) = event else {
            panic!("a connection event, not {event:?}");
        };
        event
    }

    /// Checks that the side's connection, or its attempt to connect, ends with this one event, and that the endpoint is
    /// DISCONNECTED when the event arrives.
    #[track_caller]
    pub fn expect_end(&mut self, side: usize, kind: Kind) {
        let event = self.connection_event(side);
        assert_eq!(
            (event.kind, event.ep),
            (kind, self.sides[side].ep),
            "side {side}"
        );
        assert_eq!(event.private_data_size, 0);
        assert_eq!(self.state(side), EpState::Disconnected, "side {side}");
        self.expect_nothing(side, self.sides[side].connect);
    }

    /// Posts a receive without segments on the side's endpoint.
    pub fn receive(&mut self, side: usize, cookie: u64) {
        self.post_recv(side, EMPTY, cookie, NONE)
            .expect("legal in every state");
    }

    /// Drops all frames on the wire from now on.
    pub fn cut(&mut self) {
        let nothing = Faults {
            loss_ppm: 1_000_000,
            ..Faults::NONE
        };
        self.fabric
            .sim
            .set_faults(self.fabric.link, LinkFaults::both(nothing));
    }

    /// Runs the simulator and both sides for this many milliseconds.
    pub fn run_for(&mut self, millis: u64) {
        for _ in 0..millis * 10 {
            self.pump();
        }
    }

    /// Checks that the connection carries messages both ways.
    #[track_caller]
    pub fn expect_alive(&mut self) {
        for (from, to) in [(A, B), (B, A)] {
            let (data, sink) = (self.buffer(from, 32), self.buffer(to, 32));
            data.write(0, b"it is alive, is it not? It is it");
            self.post_recv(to, &[sink.all()], 51, NONE).expect("posted");
            self.post_send(from, &[data.all()], 52, NONE)
                .expect("posted");
            self.expect_request(from, 52, DtoStatus::Success);
            self.expect_recv(to, 51, DtoStatus::Success);
            assert_eq!(sink.read(0, 32), data.read(0, 32));
        }
    }

    /// Checks that neither side has an asynchronous event.
    #[track_caller]
    pub fn expect_no_async_event(&mut self) {
        for side in [A, B] {
            let evd = self.sides[side].ia.async_evd();
            self.expect_nothing(side, evd);
        }
    }

    /// Makes the firmware fail the side's next command with this opcode, for lack of resources.
    pub fn refuse_next(&mut self, side: usize, opcode: Opcode) {
        let fault = Fault::CommandFailure {
            opcode: Some(opcode.0),
            status: 0x0f,
            syndrome: 0x1234,
            count: 1,
        };
        self.fabric.sim.inject(&self.fabric.function(side), &fault);
    }
}
