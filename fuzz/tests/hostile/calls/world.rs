//! The two adapters beside the model: each step is executed on the adapters, and its results are compared with the
//! model.

use std::fmt::Debug;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::Ordering;
use std::time::Duration;

use hw_sim::{LinkFaults, SimConfig};
use udapl::endpoint::EpState;
use udapl::error::ReturnType;
use udapl::event::AsyncEvent;
use udapl::fabric::Fabric;
use udapl::registry::Registry;
use udapl::{CloseFlags, ConnectionEventKind as Kind, DatError, DatResult, Event, Ia};

use super::model::{Ep, Expected, Place, Side};
use super::op::Step;

/// Result of a call: success, or an error of this type.
pub type Verdict = Result<(), ReturnType>;

/// An adapter. It is `None` only between a close and the next opening.
pub struct Adapter(Option<Ia>);

impl Adapter {
    pub fn take(&mut self) -> Option<Ia> {
        self.0.take()
    }

    pub fn put(&mut self, ia: Ia) {
        self.0 = Some(ia);
    }
}

impl Deref for Adapter {
    type Target = Ia;

    fn deref(&self) -> &Ia {
        self.0.as_ref().expect("it is open")
    }
}

impl DerefMut for Adapter {
    fn deref_mut(&mut self) -> &mut Ia {
        self.0.as_mut().expect("it is open")
    }
}

pub struct World {
    pub fabric: Fabric,
    pub ias: [Adapter; 2],
    pub registry: Registry,
    /// True at an index if a provider is registered under the name with this index.
    pub registered: [bool; super::op::PLACES],
    pub sides: [Side; 2],
    /// Random seed of the last opening after a close. Counts up from 1000.
    pub lives: u64,
    /// Number of regions created so far.
    pub regions: u64,
}

/// Compares the result of a call with the expected one.
pub fn compare<T: Debug>(got: DatResult<T>, want: Verdict) -> Result<Option<T>, String> {
    match (got, want) {
        (Ok(value), Ok(())) => Ok(Some(value)),
        (Err(error), Err(kind)) if error.return_type() == kind => Ok(None),
        (got, want) => Err(format!("returned {got:?}, not {want:?}")),
    }
}

/// Compares two values.
pub fn equal<T: Debug + PartialEq>(what: &str, got: T, want: T) -> Result<(), String> {
    if got == want {
        Ok(())
    } else {
        Err(format!("{what}: {got:?}, not {want:?}"))
    }
}

/// Returns the expected result of a call that names the object in a slot: success or DAT_INVALID_HANDLE.
pub fn named<T>(place: &Place<T>) -> Verdict {
    place.live().map(|_| ()).ok_or(ReturnType::InvalidHandle)
}

impl World {
    pub fn new(seed: u64) -> Self {
        let config = SimConfig {
            event_log: false,
            ..SimConfig::seeded(seed)
        };
        let fabric = Fabric::with(config, LinkFaults::default(), |profile| profile);
        let ias = [0, 1].map(|side| fabric.open(side).expect("the adapter opens"));
        Self {
            fabric,
            ias: ias.map(|ia| Adapter(Some(ia))),
            registry: Registry::with_conf(""),
            registered: Default::default(),
            sides: [Side::new(), Side::new()],
            lives: 1000,
            regions: 0,
        }
    }

    /// Runs one step with all its effects. Returns false if the slots do not allow the call.
    pub fn step(&mut self, step: &Step) -> Result<bool, String> {
        let Some(slow) = self.call(step.side, &step.op)? else {
            return Ok(false);
        };
        self.run_until_idle(slow);
        for side in [0, 1] {
            self.check_notifications(side)?;
        }
        Ok(true)
    }

    /// Compares the asynchronous events and the agent calls of a side with the model.
    fn check_notifications(&mut self, side: usize) -> Result<(), String> {
        let (ia, model) = (&mut self.ias[side], &mut self.sides[side]);
        let evd = ia.async_evd();
        while let Ok(Some(event)) = ia.evd_dequeue(evd) {
            let told = |wanted: &AsyncEvent| event == Event::Async(*wanted);
            let Some(found) = model.async_events.iter().position(told) else {
                return Err(format!(
                    "side {side} is told {event:?}, not {:?}",
                    model.async_events
                ));
            };
            model.async_events.swap_remove(found);
        }
        equal("not told", &model.async_events[..], &[])?;
        for cno in model.cnos.iter().filter_map(Place::any) {
            equal("calls", cno.agent_calls.load(Ordering::Relaxed), cno.calls)?;
        }
        Ok(())
    }

    /// Runs both sides until they are idle. `slow` allows for the retries of a sender that gives up.
    fn run_until_idle(&mut self, slow: bool) {
        let (turns, time) = if slow {
            (8, Duration::from_millis(10))
        } else {
            (3, Duration::from_micros(20))
        };
        for _ in 0..turns {
            self.process_input();
            self.fabric.sim.advance(time);
        }
        self.process_input();
    }

    /// Lets both sides process all input. A call on an EVD makes the provider notice an error of that EVD. Setting the
    /// CNO that the EVD already has is such a call, without another effect.
    fn process_input(&mut self) {
        for (ia, side) in self.ias.iter_mut().zip(&self.sides) {
            ia.progress();
            for evd in side.evds.iter().filter_map(Place::live) {
                let cno = evd.cno.and_then(|at| side.cnos[at].live());
                // The handles are valid. If this call fails for another reason, the next step finds the error.
                let _modified = ia.evd_modify_cno(evd.handle, cno.map(|cno| cno.handle));
            }
        }
    }

    /// Ends the connection of an endpoint on both sides. `here` and `there` are the kinds of event that each side may
    /// get.
    pub fn disconnect(&mut self, side: usize, ep: usize, here: &[Kind], there: &[Kind]) {
        let peer = self.sides[side].eps[ep].live().and_then(|ep| ep.peer);
        self.sides[side].end(ep, here);
        if let Some(peer) = peer {
            self.sides[1 - side].end(peer, there);
        }
    }

    /// Records that an endpoint gave up connecting before the other side has decided about its request.
    pub fn abandon(&mut self, side: usize, ep: usize) {
        for cr in &mut self.sides[1 - side].crs {
            if cr.from == Some(ep) {
                cr.from = None;
            }
        }
    }

    /// Compares an event dequeued from an EVD with the model, and removes it from the expected events.
    pub fn taken(&mut self, side: usize, evd: usize, event: Option<Event>) -> Result<(), String> {
        let queue = match self.sides[side].evds[evd].live_mut() {
            Some(evd) => &mut evd.queue,
            None => return Err(format!("{event:?} of an EVD that is gone")),
        };
        let Some(event) = event else {
            return match queue.first() {
                None => Ok(()),
                Some(first) => Err(format!("no event, not {:?}", first.what)),
            };
        };
        let found = queue
            .iter()
            .position(|queued| queued.what.is_of_stream(&event));
        let Some(found) = found.filter(|&at| queue[at].what.is(&event)) else {
            let stream = found.map(|at| queue[at].what.clone());
            return Err(format!("{event:?}, not {stream:?}"));
        };
        let queued = queue.remove(found);
        if let Some(srq) = queued
            .srq
            .and_then(|srq| self.sides[side].srqs[srq].live_mut())
        {
            srq.undequeued -= 1;
        }
        if let (Expected::Request(cr), Event::ConnectionRequest(request)) = (queued.what, event) {
            self.sides[side].crs[cr].handle = Some(request.cr);
            let told = self.ias[side].cr_query(request.cr);
            let told = told.map_err(|error| format!("cr_query: {error}"))?.local_ep;
            let model = &mut self.sides[side];
            if model.crs[cr].lent {
                let handle = told.ok_or("no endpoint was lent")?;
                model.crs[cr].ep = Some(model.eps.len());
                model.eps.push(Place::Taken(Ep {
                    handle,
                    state: EpState::TentativeConnectionPending,
                    pz: None,
                    evds: [None; 3],
                    srq: None,
                    recvs: Default::default(),
                    peer: None,
                    qualifier: None,
                    context: 0,
                    soft: None,
                    hard: None,
                    modes: [0, 0],
                }));
            } else {
                let want = model.crs[cr].ep.and_then(|ep| model.eps[ep].any());
                equal("local_ep", told, want.map(|ep| ep.handle))?;
            }
        }
        Ok(())
    }

    /// Closes both adapters at the end of a sequence, and checks that no object is left in the devices.
    pub fn close(self) -> Result<(), String> {
        let Self {
            fabric, mut ias, ..
        } = self;
        for ia in ias.iter_mut().filter_map(Adapter::take) {
            udapl::ia_close(ia, CloseFlags::Abrupt).map_err(|error| format!("close: {error}"))?;
        }
        for side in [0, 1] {
            let report = fabric.report(side);
            equal("leaks", report.leaked.is_empty(), true)
                .map_err(|_| format!("side {side} leaks {:?}", report.leaked))?;
            if !report.driver_bugs.is_empty() || !report.dma_faults.is_empty() {
                return Err(format!(
                    "side {side}: {:?} {:?}",
                    report.driver_bugs, report.dma_faults
                ));
            }
        }
        Ok(())
    }
}

/// Returns the DAT return type of an error.
pub fn kind(error: DatError) -> ReturnType {
    error.return_type()
}
