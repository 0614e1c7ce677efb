//! A free ends a peer's access, or fails. The tests cover every command that frees an object, and every way in which a
//! device can fail the command. Either the call fails and the object still exists, or the call succeeds and no peer can
//! access the memory any more, if necessary because the driver has stopped the function.
//!
//! A cell is a combination of object, command and fault. Its test frees an object of side B while the device has the
//! fault. Then B writes other data (a canary) to the memory, and side A, which knows the old keys, tries to access the
//! memory.

use std::time::Duration;

use hw_sim::{Fault, Faults, LinkFaults};
use mlx_prm::Opcode;
use udapl::endpoint::EpState;
use udapl::error::ReturnType;
use udapl::event::AsyncEvent;
use udapl::memory::{LmrHandle, LmrTriplet, PzHandle, RmrCookie, RmrHandle, RmrTriplet};
use udapl::srq::{SrqAttr, SrqHandle};
use udapl::{
    CloseFlags, DatError, DatResult, DtoCookie, DtoStatus, EpHandle, EvdFlags, EvdHandle, Event,
};

use crate::support::windows::{BOTH_WAYS, window};
use crate::support::{A, B, Buffer, LONG, NONE, Pair};

/// Contents of the memory after the free, which A must neither read nor change.
const CANARY: &[u8; 32] = b"the program's own data, private!";
/// Bytes that the peer tries to write.
const ATTACK_DATA: &[u8; 32] = b"WRITTEN BY A REMOTE PEER, GOTCHA";
/// Time limit of a call: the time limit of a command (`HcaConfig::command_timeout`), and a second for everything else.
const LIMIT: Duration = Duration::from_secs(61);

/// Misbehaviour of the device on a command: a refusal, no answer, or a late answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum How {
    RefusedOnce,
    RefusedForEver,
    Undelivered,
    Silent,
    SilentForEver,
    TooLate,
    Slow,
}

const WAYS: [How; 7] = [
    How::RefusedOnce,
    How::RefusedForEver,
    How::Undelivered,
    How::Silent,
    How::SilentForEver,
    How::TooLate,
    How::Slow,
];

impl How {
    /// Returns the fault to inject for the command `opcode`.
    fn fault(self, opcode: Opcode) -> Fault {
        let opcode = Some(opcode.0);
        let refused = |count| Fault::CommandFailure {
            opcode,
            status: 0x06,
            syndrome: 0xbad,
            count,
        };
        let silent = |count| Fault::CommandSilence { opcode, count };
        let late = |seconds| Fault::CommandDelay {
            opcode,
            delay: Duration::from_secs(seconds),
            count: 1,
        };
        match self {
            Self::RefusedOnce => refused(1),
            Self::RefusedForEver => refused(u32::MAX),
            Self::Undelivered => Fault::CommandDelivery {
                opcode,
                status: 0x06,
                count: 1,
            },
            Self::Silent => silent(1),
            Self::SilentForEver => silent(u32::MAX),
            Self::TooLate => late(90),
            Self::Slow => late(50),
        }
    }

    /// Returns whether the device refuses the command and changes nothing.
    fn is_refusal(self) -> bool {
        matches!(self, Self::RefusedOnce | Self::RefusedForEver)
    }
}

/// An object of side B, and the call that frees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum What {
    Lmr,
    Rmr,
    EpFree,
    EpDisconnect,
    Srq,
    Evd,
    Pz,
}

/// Each object with each command of its free, and whether the object still works after the device has refused the
/// command.
const ENDS: [(What, Opcode, bool); 9] = [
    (What::Lmr, Opcode::DESTROY_MKEY, true),
    (What::Rmr, Opcode::DESTROY_MKEY, true),
    (What::EpFree, Opcode::TO_ERR_QP, true),
    (What::EpFree, Opcode::TO_RST_QP, false),
    (What::EpFree, Opcode::DESTROY_QP, false),
    (What::EpDisconnect, Opcode::TO_ERR_QP, true),
    (What::Srq, Opcode::DESTROY_RMP, true),
    (What::Evd, Opcode::DESTROY_CQ, true),
    (What::Pz, Opcode::DEALLOC_PD, true),
];

/// Objects of side B, and the keys that A knows.
struct Fixture {
    pair: Pair,
    what: What,
    /// A's endpoint of a second connection.
    second: EpHandle,
    target: Buffer,
    inbox: Buffer,
    rmr: RmrHandle,
    /// A's triplet for the memory: the key of the LMR, or the window.
    known: RmrTriplet,
    srq: SrqHandle,
    evd: EvdHandle,
    pz: PzHandle,
}

impl Fixture {
    fn new(what: What) -> Self {
        let mut pair = Pair::binding();
        let second = pair.another_ep(A);
        let other = pair.another_ep(B);
        pair.connect_endpoints(second, other);
        let (target, inbox) = (pair.buffer(B, 64), pair.buffer(B, 64));
        let rmr = pair.rmr(B);
        let known = if what == What::Rmr {
            let context = pair.bind(B, rmr, &target.all(), BOTH_WAYS);
            window(&target, context, 0, 32)
        } else {
            target.remote(0, 32)
        };
        pair.post_recv(B, &[inbox.all()], 0x1b0, NONE)
            .expect("a receive");
        let in_pz = pair.sides[B].pz;
        let ia = &mut pair.sides[B].ia;
        let attr = SrqAttr {
            max_recv_dtos: 4,
            max_recv_iov: 1,
            low_watermark: 0,
        };
        let srq = ia.srq_create(in_pz, attr).expect("an SRQ");
        ia.srq_post_recv(srq, &[inbox.all()], DtoCookie(1))
            .expect("posted");
        let evd = ia.evd_create(8, EvdFlags::DTO).expect("an EVD");
        let pz = ia.pz_create().expect("a PZ");
        Self {
            pair,
            what,
            second,
            target,
            inbox,
            rmr,
            known,
            srq,
            evd,
            pz,
        }
    }

    /// Makes the call that frees or disconnects the object.
    fn end(&mut self) -> DatResult<()> {
        let lmr: LmrHandle = self.target.lmr.lmr;
        let side = &mut self.pair.sides[B];
        match self.what {
            What::Lmr => side.ia.lmr_free(lmr),
            What::Rmr => side.ia.rmr_free(self.rmr),
            What::EpFree => side.ia.ep_free(side.ep),
            What::EpDisconnect => side.ia.ep_disconnect(side.ep, CloseFlags::Abrupt),
            What::Srq => side.ia.srq_free(self.srq),
            What::Evd => side.ia.evd_free(self.evd),
            What::Pz => side.ia.pz_free(self.pz),
        }
    }

    fn inject(&self, fault: &Fault) {
        let sim = &self.pair.fabric.sim;
        sim.inject(&self.pair.fabric.function(B), fault);
    }

    fn mend(&self) {
        let sim = &self.pair.fabric.sim;
        sim.mend(&self.pair.fabric.function(B));
    }

    /// Writes the canary to the memory, and lets A access the memory with the keys that it knows. Returns the accesses
    /// that succeeded.
    fn attack(&mut self) -> Vec<&'static str> {
        let pair = &mut self.pair;
        self.target.write(0, CANARY);
        self.inbox.write(0, CANARY);
        let (attack_data, read_buffer) = (pair.buffer(A, 32), pair.buffer(A, 32));
        attack_data.write(0, ATTACK_DATA);
        let (ep, known) = (pair.sides[A].ep, self.known);
        let ia = &mut pair.sides[A].ia;
        let mut posted = 0;
        // A posts these requests before it gets any event.
        for done in match self.what {
            What::Lmr | What::Rmr => vec![
                ia.ep_post_rdma_read(
                    self.second,
                    &[read_buffer.all()],
                    DtoCookie(1),
                    &known,
                    NONE,
                ),
                ia.ep_post_rdma_write(ep, &[attack_data.all()], DtoCookie(2), &known, NONE),
            ],
            What::EpFree | What::EpDisconnect => vec![
                ia.ep_post_send(ep, &[attack_data.all()], DtoCookie(3), NONE),
                ia.ep_post_rdma_write(ep, &[attack_data.all()], DtoCookie(4), &known, NONE),
            ],
            What::Srq | What::Evd | What::Pz => vec![],
        } {
            done.expect("posted");
            posted += 1;
        }
        let mut done = Vec::new();
        for _ in 0..posted {
            let completion = pair.wait_request(A);
            if completion.status == DtoStatus::Success {
                done.push(match completion.cookie.0 {
                    1 => "read",
                    3 => "sent",
                    _ => "written",
                });
            }
        }
        let reached = [
            ("read", read_buffer.read(0, 32) == CANARY),
            ("sent", self.inbox.read(0, 32) != CANARY),
            ("written", self.target.read(0, 32) != CANARY),
        ];
        for (what, reached) in reached {
            // The completion agrees with the effect on the memory.
            assert_eq!(reached, done.contains(&what), "{what}: {done:?}");
        }
        done.sort_unstable();
        done
    }

    /// Returns the accesses that succeed while the object works.
    fn attack_data(&self) -> &'static [&'static str] {
        match self.what {
            What::Lmr | What::Rmr => &["read", "written"],
            What::EpFree | What::EpDisconnect => &["sent", "written"],
            What::Srq | What::Evd | What::Pz => &[],
        }
    }

    /// Returns whether the object still exists in its state before the free.
    fn exists(&mut self) -> bool {
        let lmr = self.target.lmr.lmr;
        let side = &mut self.pair.sides[B];
        match self.what {
            What::Lmr => side.ia.lmr_query(lmr).is_ok(),
            What::Rmr => side
                .ia
                .rmr_query(self.rmr)
                .is_ok_and(|it| it.binding.is_some()),
            What::EpFree => side.ia.ep_query(side.ep).is_ok(),
            What::EpDisconnect => {
                side.ia.ep_get_status(side.ep).expect("exists").state == EpState::Connected
            }
            What::Srq => side
                .ia
                .srq_query(self.srq)
                .is_ok_and(|it| it.outstanding_dto_count >= 1),
            What::Evd => side.ia.evd_query(self.evd).is_ok(),
            What::Pz => side.ia.pz_query(self.pz).is_ok(),
        }
    }

    /// Returns whether side B's device has been reported dead.
    fn is_dead(&mut self) -> bool {
        let evd = self.pair.sides[B].ia.async_evd();
        self.pair.sides[B].ia.progress();
        match self.pair.sides[B].ia.evd_dequeue(evd) {
            Ok(Some(event)) => {
                assert!(
                    matches!(event, Event::Async(AsyncEvent::IaCatastrophic)),
                    "{event:?}"
                );
                true
            }
            Ok(None) | Err(_) => false,
        }
    }
}

/// Tests one cell. `keeps` is true if the object still works after a refusal. The error describes what went wrong.
fn cell(what: What, opcode: Opcode, keeps: bool, how: How) -> Result<(), String> {
    let mut fixture = Fixture::new(what);
    let says = |text: &str| Err(format!("{what:?} {opcode:?} {how:?}: {text}"));
    fixture.inject(&how.fault(opcode));
    let begun = fixture.pair.now();
    let ended = fixture.end();
    let took = fixture.pair.now() - begun;
    if took > LIMIT {
        return says(&format!("the call took {took:?}"));
    }
    match &ended {
        Err(error) => {
            if !how.is_refusal() {
                return says(&format!("{error}, and nobody knows what the device did"));
            }
            if error.return_type() != ReturnType::InternalError {
                return says(&format!("{error}"));
            }
            if !fixture.exists() {
                return says("the call failed, and the object is not what it was");
            }
            let achieved = fixture.attack();
            let expected = if keeps { fixture.attack_data() } else { &[] };
            if achieved != expected {
                return says(&format!("the object does not work as before: {achieved:?}"));
            }
            if fixture.is_dead() {
                return says("a refusal, and the device is dead");
            }
            fixture.mend();
            if let Err(error) = fixture.end() {
                return says(&format!("the second time: {error}"));
            }
        }
        Ok(()) if how.is_refusal() => return says("refused, and the call succeeded"),
        Ok(()) => {}
    }
    let achieved = fixture.attack();
    if !achieved.is_empty() {
        return says(&format!("the call succeeded, and a peer has {achieved:?}"));
    }
    let dead = fixture.is_dead();
    if dead == (how.is_refusal() || how == How::Slow) {
        return says(&format!("the device is dead: {dead}"));
    }
    // In every case the close takes at most 2 s, and the device finds no error of the driver.
    let Fixture { pair, .. } = fixture;
    let begun = pair.now();
    let [a, b] = pair.sides;
    let closed = udapl::ia_close(b.ia, CloseFlags::Abrupt);
    let took = pair.fabric.sim.clock().now() - begun;
    if closed.is_err() || took > Duration::from_secs(2) {
        return says(&format!("closing took {took:?}: {:?}", closed.err()));
    }
    let report = pair.fabric.report(B);
    // Accesses that a function tries when it is no longer bus master are no fault of the driver.
    let faults: Vec<_> = report
        .dma_faults
        .iter()
        .filter(|it| it.cause == hw_sim::FaultCause::Unmapped)
        .collect();
    if !faults.is_empty() || !report.driver_bugs.is_empty() {
        return says(&format!("{faults:?} {:?}", report.driver_bugs));
    }
    udapl::ia_close(a.ia, CloseFlags::Abrupt).expect("the peer closes");
    Ok(())
}

/// Tests all cells of one object.
#[track_caller]
fn row(of: What) {
    let mut broken = Vec::new();
    for (what, opcode, keeps) in ENDS.into_iter().filter(|(what, ..)| *what == of) {
        for how in WAYS {
            broken.extend(cell(what, opcode, keeps, how).err());
        }
    }
    assert!(broken.is_empty(), "{broken:#?}");
}

/// Clauses: LMRF-2.
#[test]
fn a_freed_lmr_is_out_of_reach_or_its_free_fails() {
    row(What::Lmr);
}

/// Clauses: RMRF-3.
#[test]
fn a_freed_rmr_is_out_of_reach_or_its_free_fails() {
    row(What::Rmr);
}

/// Clauses: EPF-1.
#[test]
fn a_freed_endpoint_takes_nothing_or_its_free_fails() {
    row(What::EpFree);
}

#[test]
fn a_disconnected_endpoint_takes_nothing_or_its_disconnect_fails() {
    row(What::EpDisconnect);
}

#[test]
fn a_freed_srq_is_gone_or_its_free_fails() {
    row(What::Srq);
}

#[test]
fn a_freed_evd_is_gone_or_its_free_fails() {
    row(What::Evd);
}

#[test]
fn a_freed_zone_is_gone_or_its_free_fails() {
    row(What::Pz);
}

/// A peer's disconnect ends the peer's access, or the driver stops the function. No call could report a failure, so the
/// driver sends a refused command again, and stops the function if the command fails again.
#[test]
fn a_peers_disconnect_ends_access_or_the_function() {
    for (how, dies) in [
        (How::RefusedOnce, false),
        (How::RefusedForEver, true),
        (How::Silent, true),
        (How::Slow, false),
    ] {
        let mut fixture = Fixture::new(What::EpDisconnect);
        fixture.inject(&how.fault(Opcode::TO_ERR_QP));
        let ep = fixture.pair.sides[A].ep;
        let left = fixture.pair.sides[A]
            .ia
            .ep_disconnect(ep, CloseFlags::Abrupt);
        left.expect("CONNECTED");
        let (connect, b) = (fixture.pair.sides[B].connect, fixture.pair.sides[B].ep);
        let event = fixture.pair.wait_event(B, connect);
        assert!(matches!(event, Event::Connection(_)), "{how:?}: {event:?}");
        assert_eq!(fixture.pair.state(B), EpState::Disconnected, "{how:?}");
        assert_eq!(fixture.is_dead(), dies, "{how:?}");
        fixture.mend();
        let reset = fixture.pair.sides[B].ia.ep_reset(b);
        assert_eq!(reset.is_err(), dies, "{how:?}: {reset:?}");
    }
}

/// An abrupt close ends within one time limit for all objects together, however many there are and however slow each
/// is, and ends all access.
#[test]
fn an_abrupt_close_is_over_in_the_time_of_one_command_and_ends_all_access() {
    let late = |seconds| Fault::CommandDelay {
        opcode: Some(Opcode::DESTROY_MKEY.0),
        delay: Duration::from_secs(seconds),
        count: u32::MAX,
    };
    let each = |how: How| how.fault(Opcode::DESTROY_MKEY);
    for (fault, dies) in [
        (each(How::RefusedOnce), false),
        (each(How::RefusedForEver), true),
        (each(How::SilentForEver), true),
        (late(5), true),
        (late(1), false),
    ] {
        let mut fixture = Fixture::new(What::Lmr);
        for _ in 0..40 {
            fixture.pair.buffer(B, 64);
        }
        fixture.inject(&fault);
        let begun = fixture.pair.now();
        let known = fixture.known;
        let Fixture {
            pair,
            target,
            second,
            ..
        } = fixture;
        let sim = pair.fabric.sim.clone();
        let [mut a, b] = pair.sides;
        target.write(0, CANARY);
        let attack_data = udapl::alloc(&a.ia, 64).expect("memory");
        let attack_data =
            a.ia.lmr_create(attack_data, a.pz, udapl::MemPrivFlags::all());
        let attack_data = attack_data.expect("an LMR").lmr;
        let [part, read_buffer] =
            [0, 32].map(|at| a.ia.lmr_slice(attack_data, at, 32).expect("inside"));
        let report = udapl::ia_close(b.ia, CloseFlags::Abrupt).expect("closes");
        let took = sim.clock().now() - begun;
        assert!(took <= LIMIT, "{fault:?}: {took:?}");
        assert_eq!(report.dead.is_some(), dies, "{fault:?}: {report:?}");
        target.write(0, CANARY);
        // If A has not got an event of the disconnect yet, these requests are posted, and must fail.
        let written =
            a.ia.ep_post_rdma_write(a.ep, &[part], DtoCookie(1), &known, NONE);
        let read =
            a.ia.ep_post_rdma_read(second, &[read_buffer], DtoCookie(2), &known, NONE);
        for posted in [written, read].into_iter().flatten() {
            let () = posted;
            let (event, _) = a.ia.evd_wait(a.request, LONG, 1).expect("it ends");
            let Event::Dto(done) = event else {
                panic!("{event:?}")
            };
            assert_ne!(done.status, DtoStatus::Success, "{fault:?}");
        }
        assert_eq!(target.read(0, 32), CANARY, "{fault:?}");
        udapl::ia_close(a.ia, CloseFlags::Abrupt).expect("the peer closes");
    }
}

/// If a window cannot be unbound, the driver stops the function. A failed bind must unbind the window from its previous
/// memory, and no call could report that the unbind failed.
#[test]
fn a_window_that_cannot_be_unbound_ends_the_function() {
    for (how, dies) in [
        (How::RefusedOnce, false),
        (How::RefusedForEver, true),
        (How::Silent, true),
    ] {
        let mut fixture = Fixture::new(What::Rmr);
        fixture.pair.disconnect();
        fixture.inject(&how.fault(Opcode::DESTROY_MKEY));
        let (rmr, elsewhere) = (fixture.rmr, fixture.inbox.all());
        let bind = fixture
            .pair
            .post_bind(B, rmr, &elsewhere, BOTH_WAYS, 1, NONE);
        bind.expect("legal in DISCONNECTED");
        let request = fixture.pair.sides[B].request;
        let event = fixture.pair.wait_event(B, request);
        assert!(
            matches!(event, Event::RmrBind(done) if done.status == DtoStatus::ErrFlushed),
            "{event:?}"
        );
        assert_eq!(fixture.is_dead(), dies, "{how:?}");
        fixture.mend();
        // The window is unbound, so A's second connection cannot access memory through it.
        fixture.target.write(0, CANARY);
        let read_buffer = fixture.pair.buffer(A, 32);
        let (second, known) = (fixture.second, fixture.known);
        let side = &mut fixture.pair.sides[A];
        let read =
            side.ia
                .ep_post_rdma_read(second, &[read_buffer.all()], DtoCookie(1), &known, NONE);
        read.expect("posted");
        assert_ne!(
            fixture.pair.wait_request(A).status,
            DtoStatus::Success,
            "{how:?}"
        );
        assert_ne!(read_buffer.read(0, 32), CANARY, "{how:?}");
        let lmr = fixture.target.lmr.lmr;
        fixture.pair.sides[B]
            .ia
            .lmr_free(lmr)
            .expect("nothing is bound to it");
    }
}

/// A bind fails, and before the library unbinds the window, the program posts an unbind on another endpoint. The
/// library leaves the window to that unbind, so the other connection continues.
#[test]
fn a_failed_bind_leaves_its_window_to_a_later_unbind_on_another_endpoint() {
    let mut pair = Pair::binding();
    let (far, near) = (pair.another_ep(A), pair.another_ep(B));
    pair.connect_endpoints(far, near);
    let (target, elsewhere) = (pair.buffer(B, 64), pair.buffer(B, 64));
    let rmr = pair.rmr(B);
    pair.bind(B, rmr, &target.all(), BOTH_WAYS);
    pair.disconnect();
    pair.post_bind(B, rmr, &elsewhere.all(), BOTH_WAYS, 1, NONE)
        .expect("legal in DISCONNECTED");
    // The device flushes the bind, and B makes no call.
    for _ in 0..100 {
        pair.fabric.pass_time();
    }
    // The link is cut, so that the RDMA Read and the fenced unbind behind it wait.
    pair.cut();
    let remote = pair.buffer(A, 64).all_remote();
    let ia = &mut pair.sides[B].ia;
    ia.ep_post_rdma_read(near, &[elsewhere.all()], DtoCookie(2), &remote, NONE)
        .expect("posted");
    let nothing = LmrTriplet {
        segment_length: 0,
        ..target.all()
    };
    let (none, fence) = (
        udapl::MemPrivFlags::empty(),
        udapl::CompletionFlags::BARRIER_FENCE,
    );
    ia.rmr_bind(rmr, &nothing, none, near, RmrCookie(3), fence)
        .expect("the bind before it is over");
    pair.run_for(1);
    let whole = LinkFaults::both(Faults::NONE);
    pair.fabric.sim.set_faults(pair.fabric.link, whole);
    pair.expect_bind(B, rmr, 1, DtoStatus::ErrFlushed);
    let read = pair.wait_request(B);
    assert_eq!((read.cookie.0, read.status), (2, DtoStatus::Success));
    pair.expect_bind(B, rmr, 3, DtoStatus::Success);
    assert_eq!(pair.state_of(B, near), EpState::Connected);
    pair.sides[B]
        .ia
        .lmr_free(target.lmr.lmr)
        .expect("nothing is bound to it");
}

/// An LMR is in use until the unbind of its last window has completed.
#[test]
fn an_lmr_a_window_still_reaches_through_stays() {
    let mut fixture = Fixture::new(What::Rmr);
    let (rmr, elsewhere, lmr) = (fixture.rmr, fixture.inbox.all(), fixture.target.lmr.lmr);
    // The link is cut, so the RDMA Read and the fenced bind behind it do not complete.
    fixture.pair.cut();
    let far = fixture.pair.buffer(A, 64);
    let near = fixture.pair.buffer(B, 64);
    let remote = far.all_remote();
    fixture
        .pair
        .post_read(B, &[near.all()], 1, &remote, NONE)
        .expect("posted");
    let fence = udapl::CompletionFlags::BARRIER_FENCE;
    fixture
        .pair
        .post_bind(B, rmr, &elsewhere, BOTH_WAYS, 2, fence)
        .expect("posted");
    let refused: DatError = fixture.pair.sides[B]
        .ia
        .lmr_free(lmr)
        .expect_err("the window still reaches through it");
    assert_eq!(refused.return_type(), ReturnType::InvalidState);
    assert_eq!(refused.subtype(), udapl::error::Subtype::StateLmrInUse);
    // The end of the connection fails the bind, and then the driver unbinds the window.
    for _ in 0..2 {
        let request = fixture.pair.sides[B].request;
        fixture.pair.wait_event(B, request);
    }
    fixture.pair.sides[B]
        .ia
        .lmr_free(lmr)
        .expect("nobody reaches through it");
}
