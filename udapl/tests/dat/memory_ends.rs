//! A free ends a peer's access, or fails. For every command that frees an object, and every way in which a device can
//! fail it: either the call fails and the object is unchanged, or it succeeds and no peer can access the memory any
//! more, if necessary because the driver has stopped the function.
//!
//! Each cell frees an object of side B while its command meets a fault. Then the program uses the memory for something
//! else (a canary), and side A, which knows the old keys, attacks it.

use std::time::Duration;

use hw_sim::Fault;
use mlx_prm::Opcode;
use udapl::endpoint::EpState;
use udapl::error::ReturnType;
use udapl::event::AsyncEvent;
use udapl::memory::{LmrHandle, PzHandle, RmrHandle, RmrTriplet};
use udapl::srq::{SrqAttr, SrqHandle};
use udapl::{
    CloseFlags, DatError, DatResult, DtoCookie, DtoStatus, EpHandle, EvdFlags, EvdHandle, Event,
};

use crate::support::windows::{BOTH_WAYS, window};
use crate::support::{A, B, Buffer, LONG, NONE, Pair};

/// Contents of the memory after the free.
const CANARY: &[u8; 32] = b"the program's own data, private!";
/// Bytes that the peer tries to write.
const LOOT: &[u8; 32] = b"WRITTEN BY A REMOTE PEER, GOTCHA";
/// Time limit of a command (`HcaConfig::command_timeout`), and of everything else in a call.
const LIMIT: Duration = Duration::from_secs(61);

/// A way in which the device fails a command.
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
    /// Returns the fault that fails a command in this way.
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
struct Scene {
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

impl Scene {
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

    /// Frees the object.
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

    /// Reuses the memory in the program, and lets A attack it. Returns the attacks that succeeded.
    fn attack(&mut self) -> Vec<&'static str> {
        let pair = &mut self.pair;
        self.target.write(0, CANARY);
        self.inbox.write(0, CANARY);
        let (loot, booty) = (pair.buffer(A, 32), pair.buffer(A, 32));
        loot.write(0, LOOT);
        let (ep, known) = (pair.sides[A].ep, self.known);
        let ia = &mut pair.sides[A].ia;
        let mut posted = 0;
        // A posts these requests before it gets any event.
        for done in match self.what {
            What::Lmr | What::Rmr => vec![
                ia.ep_post_rdma_read(self.second, &[booty.all()], DtoCookie(1), &known, NONE),
                ia.ep_post_rdma_write(ep, &[loot.all()], DtoCookie(2), &known, NONE),
            ],
            What::EpFree | What::EpDisconnect => vec![
                ia.ep_post_send(ep, &[loot.all()], DtoCookie(3), NONE),
                ia.ep_post_rdma_write(ep, &[loot.all()], DtoCookie(4), &known, NONE),
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
            ("read", booty.read(0, 32) == CANARY),
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

    /// Returns the attacks that succeed on a working object.
    fn loot(&self) -> &'static [&'static str] {
        match self.what {
            What::Lmr | What::Rmr => &["read", "written"],
            What::EpFree | What::EpDisconnect => &["sent", "written"],
            What::Srq | What::Evd | What::Pz => &[],
        }
    }

    /// Returns whether the object still exists.
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

/// Tests one cell.
fn cell(what: What, opcode: Opcode, keeps: bool, how: How) -> Result<(), String> {
    let mut scene = Scene::new(what);
    let says = |text: &str| Err(format!("{what:?} {opcode:?} {how:?}: {text}"));
    scene.inject(&how.fault(opcode));
    let begun = scene.pair.now();
    let ended = scene.end();
    let took = scene.pair.now() - begun;
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
            if !scene.exists() {
                return says("the call failed, and the object is not what it was");
            }
            let achieved = scene.attack();
            let expected = if keeps { scene.loot() } else { &[] };
            if achieved != expected {
                return says(&format!("the object does not work as before: {achieved:?}"));
            }
            if scene.is_dead() {
                return says("a refusal, and the device is dead");
            }
            scene.mend();
            if let Err(error) = scene.end() {
                return says(&format!("the second time: {error}"));
            }
        }
        Ok(()) if how.is_refusal() => return says("refused, and the call succeeded"),
        Ok(()) => {}
    }
    let achieved = scene.attack();
    if !achieved.is_empty() {
        return says(&format!("the call succeeded, and a peer has {achieved:?}"));
    }
    let dead = scene.is_dead();
    if dead == (how.is_refusal() || how == How::Slow) {
        return says(&format!("the device is dead: {dead}"));
    }
    // In every case the close is quick, and leaves no object.
    let Scene { pair, .. } = scene;
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

/// A peer's disconnect ends its access, or the function. There is no call that could report a failure, so the driver
/// sends the command again, and stops the device if it fails again.
#[test]
fn a_peers_disconnect_ends_access_or_the_function() {
    for (how, dies) in [
        (How::RefusedOnce, false),
        (How::RefusedForEver, true),
        (How::Silent, true),
        (How::Slow, false),
    ] {
        let mut scene = Scene::new(What::EpDisconnect);
        scene.inject(&how.fault(Opcode::TO_ERR_QP));
        let ep = scene.pair.sides[A].ep;
        let left = scene.pair.sides[A].ia.ep_disconnect(ep, CloseFlags::Abrupt);
        left.expect("CONNECTED");
        let (connect, b) = (scene.pair.sides[B].connect, scene.pair.sides[B].ep);
        let event = scene.pair.wait_event(B, connect);
        assert!(matches!(event, Event::Connection(_)), "{how:?}: {event:?}");
        assert_eq!(scene.pair.state(B), EpState::Disconnected, "{how:?}");
        assert_eq!(scene.is_dead(), dies, "{how:?}");
        scene.mend();
        let reset = scene.pair.sides[B].ia.ep_reset(b);
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
        let mut scene = Scene::new(What::Lmr);
        for _ in 0..40 {
            scene.pair.buffer(B, 64);
        }
        scene.inject(&fault);
        let begun = scene.pair.now();
        let known = scene.known;
        let Scene {
            pair,
            target,
            second,
            ..
        } = scene;
        let sim = pair.fabric.sim.clone();
        let [mut a, b] = pair.sides;
        target.write(0, CANARY);
        let loot = udapl::alloc(&a.ia, 64).expect("memory");
        let loot = a.ia.lmr_create(loot, a.pz, udapl::MemPrivFlags::all());
        let loot = loot.expect("an LMR").lmr;
        let [part, booty] = [0, 32].map(|at| a.ia.lmr_slice(loot, at, 32).expect("inside"));
        let report = udapl::ia_close(b.ia, CloseFlags::Abrupt).expect("closes");
        let took = sim.clock().now() - begun;
        assert!(took <= LIMIT, "{fault:?}: {took:?}");
        assert_eq!(report.dead.is_some(), dies, "{fault:?}: {report:?}");
        target.write(0, CANARY);
        // A may have got an event. Otherwise it posts these requests, and gets no answer.
        let written =
            a.ia.ep_post_rdma_write(a.ep, &[part], DtoCookie(1), &known, NONE);
        let read =
            a.ia.ep_post_rdma_read(second, &[booty], DtoCookie(2), &known, NONE);
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

/// If a window cannot be unbound, the driver stops the function. A failed bind has left the window bound to other
/// memory, and no call could report that the unbind failed.
#[test]
fn a_window_that_cannot_be_unbound_ends_the_function() {
    for (how, dies) in [
        (How::RefusedOnce, false),
        (How::RefusedForEver, true),
        (How::Silent, true),
    ] {
        let mut scene = Scene::new(What::Rmr);
        scene.pair.disconnect();
        scene.inject(&how.fault(Opcode::DESTROY_MKEY));
        let (rmr, elsewhere) = (scene.rmr, scene.inbox.all());
        let bind = scene.pair.post_bind(B, rmr, &elsewhere, BOTH_WAYS, 1, NONE);
        bind.expect("legal in DISCONNECTED");
        let request = scene.pair.sides[B].request;
        let event = scene.pair.wait_event(B, request);
        assert!(
            matches!(event, Event::RmrBind(done) if done.status == DtoStatus::ErrFlushed),
            "{event:?}"
        );
        assert_eq!(scene.is_dead(), dies, "{how:?}");
        scene.mend();
        // The window is unbound, so A's second connection cannot access memory through it.
        scene.target.write(0, CANARY);
        let booty = scene.pair.buffer(A, 32);
        let (second, known) = (scene.second, scene.known);
        let side = &mut scene.pair.sides[A];
        let read = side
            .ia
            .ep_post_rdma_read(second, &[booty.all()], DtoCookie(1), &known, NONE);
        read.expect("posted");
        assert_ne!(
            scene.pair.wait_request(A).status,
            DtoStatus::Success,
            "{how:?}"
        );
        assert_ne!(booty.read(0, 32), CANARY, "{how:?}");
        let lmr = scene.target.lmr.lmr;
        scene.pair.sides[B]
            .ia
            .lmr_free(lmr)
            .expect("nothing is bound to it");
    }
}

/// An LMR is in use until the unbind of its last window has completed.
#[test]
fn an_lmr_a_window_still_reaches_through_stays() {
    let mut scene = Scene::new(What::Rmr);
    let (rmr, elsewhere, lmr) = (scene.rmr, scene.inbox.all(), scene.target.lmr.lmr);
    // A does not answer, so these earlier requests do not complete.
    scene.pair.cut();
    let far = scene.pair.buffer(A, 64);
    let near = scene.pair.buffer(B, 64);
    let remote = far.all_remote();
    scene
        .pair
        .post_read(B, &[near.all()], 1, &remote, NONE)
        .expect("posted");
    let fence = udapl::CompletionFlags::BARRIER_FENCE;
    scene
        .pair
        .post_bind(B, rmr, &elsewhere, BOTH_WAYS, 2, fence)
        .expect("posted");
    let refused: DatError = scene.pair.sides[B]
        .ia
        .lmr_free(lmr)
        .expect_err("the window still reaches through it");
    assert_eq!(refused.return_type(), ReturnType::InvalidState);
    assert_eq!(refused.subtype(), udapl::error::Subtype::StateLmrInUse);
    // The end of the connection ends the bind, and the window is unbound then.
    for _ in 0..2 {
        let request = scene.pair.sides[B].request;
        scene.pair.wait_event(B, request);
    }
    scene.pair.sides[B]
        .ia
        .lmr_free(lmr)
        .expect("nobody reaches through it");
}
