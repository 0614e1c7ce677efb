//! Execution of a plan in virtual time. Every flow writes as fast as possible, and samples are taken meanwhile.
//!
//! The driver opens every function as in a program, and its connection manager establishes the connections. A flow
//! keeps a number of RDMA Writes outstanding; a completed write counts as delivered. Time advances in steps, and
//! completions are polled and writes posted between the steps. If enough writes are outstanding, the steps cost no
//! throughput.

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use udapl::endpoint::{EpAttr, EpChange, EpTransport};
use udapl::fabric::switched::{
    CongestionCounters, PauseCounters, PortCounters, PortQos, SwitchConfig, Switched, Unknown,
};
use udapl::fabric::{Faults, LinkFaults, Sim, SimConfig};
use udapl::memory::{LmrTriplet, RmrTriplet};
use udapl::{
    CompletionFlags, ConnQual, ConnectFlags, ConnectionEventKind, DtoCookie, DtoStatus, EpEvds,
    EpHandle, EvdFlags, EvdHandle, Event, Ia, MemPrivFlags, PspFlags, Qos, Timeout,
};

use super::plan::{DSCP, PRIORITY, Plan};

/// Duration of a step.
const STEP: Duration = Duration::from_micros(4);
/// Time between two samples of queues and rates.
const SAMPLE: Duration = Duration::from_micros(100);
/// Maximum number of steps until a connection is established.
const CONNECT_STEPS: usize = 50_000;
/// Local ACK Timeout, an exponent for 4.096 us: a sender retransmits after 1 ms without an acknowledgement.
const ACK_TIMEOUT: u8 = 8;

/// A sample of the queues and the rates.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    /// Time of the sample in microseconds, from the start.
    pub us: u64,
    /// Number of queued bytes at each bottleneck.
    pub depths: Vec<usize>,
    /// Rate of each flow since the last sample, in bits per second.
    pub rates: Vec<f64>,
}

/// Outcome of a plan.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// Samples in order of time.
    pub samples: Vec<Sample>,
    /// Number of bytes delivered by each flow.
    pub delivered: Vec<u64>,
    /// Error that ended each flow early, if any.
    pub ended: Vec<Option<DtoStatus>>,
    /// Counters of all ports of all switches.
    pub ports: Vec<PortCounters>,
    /// Counters of the pause frames that each function received for the traffic's priority.
    pub pauses: Vec<PauseCounters>,
    /// Congestion counters of each function.
    pub congestion: Vec<CongestionCounters>,
}

impl Outcome {
    /// Returns the mean rate of each flow, in bits per second, over the samples after the time `from`.
    #[must_use]
    pub fn rates_from(&self, from: Duration) -> Vec<f64> {
        let late: Vec<&Sample> = self
            .samples
            .iter()
            .filter(|sample| u128::from(sample.us) > from.as_micros())
            .collect();
        let mean = |flow: usize| {
            late.iter().map(|sample| sample.rates[flow]).sum::<f64>() / late.len().max(1) as f64
        };
        (0..self.delivered.len()).map(mean).collect()
    }

    /// Returns the sum of a counter over all ports.
    #[must_use]
    pub fn total(&self, count: impl Fn(&PortCounters) -> u64) -> u64 {
        self.ports.iter().map(count).sum()
    }

    /// Returns the number of frames lost by switches.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.total(|port| port.dropped_full + port.dropped_headroom + port.dropped_watchdog)
    }
}

/// Returns the fairness of shares: 1 if they are equal, 1/n if one of n has everything (Jain, Chiu, Hawe, DEC-TR-301,
/// 1984).
#[must_use]
pub fn jain(shares: &[f64]) -> f64 {
    let (sum, squares) = shares.iter().fold((0.0, 0.0), |(sum, squares), share| {
        (sum + share, squares + share * share)
    });
    if squares == 0.0 {
        return 1.0;
    }
    sum * sum / (shares.len() as f64 * squares)
}

struct Flow {
    sender: usize,
    ep: EpHandle,
    evd: EvdHandle,
    local: LmrTriplet,
    remote: RmrTriplet,
    under_way: usize,
    delivered: u64,
    ended: Option<DtoStatus>,
}

impl Flow {
    /// Polls the flow's completions, and posts new writes for them.
    fn go_on(&mut self, ia: &mut Ia, plan: &Plan) -> Result<()> {
        while let Some(event) = ia.evd_dequeue(self.evd)? {
            let Event::Dto(done) = event else { continue };
            self.under_way -= 1;
            if done.status == DtoStatus::Success {
                self.delivered += plan.message_bytes as u64;
            } else if self.ended.is_none() {
                self.ended = Some(done.status);
            }
        }
        while self.ended.is_none() && self.under_way < plan.depth {
            ia.ep_post_rdma_write(
                self.ep,
                &[self.local],
                DtoCookie(0),
                &self.remote,
                CompletionFlags::empty(),
            )?;
            self.under_way += 1;
        }
        Ok(())
    }
}

fn fabric(plan: &Plan, sim: Sim) -> Result<Switched> {
    let config = SwitchConfig {
        rate_bps: plan.rate_bps,
        buffer: plan.buffer,
        ecn: plan.ecn,
        pfc: plan.pfc,
        unknown: Unknown::Flood,
        ..SwitchConfig::default()
    };
    let flight = LinkFaults::both(Faults {
        delay_ns: u64::try_from(plan.delay.as_nanos())?,
        ..Faults::NONE
    });
    let functions = plan.topology.functions();
    let fabric = match plan.topology {
        super::Topology::Ring(_) => Switched::ring_in(sim, functions, &config, flight)?,
        super::Topology::Incast(_) | super::Topology::Pairs(_) | super::Topology::Round(_) => {
            Switched::star_in(sim, functions, config.clone(), flight)?
        }
    };
    fabric.set_qos(&PortQos {
        reaction: plan.reaction,
        ..crate::switch::qos(&config)
    });
    Ok(fabric)
}

/// Connects the endpoints of a flow. `number` determines its connection qualifier.
fn connect(
    fabric: &Switched,
    ias: &mut [Ia],
    (sender, receiver): (usize, usize),
    number: u64,
    plan: &Plan,
) -> Result<Flow> {
    let qualifier = ConnQual::service_id(0x1_0000_0000 + number);
    let mut made = Vec::new();
    for side in [sender, receiver] {
        let ia = &mut ias[side];
        let pz = ia.pz_create()?;
        let evd = ia.evd_create(256, EvdFlags::DTO)?;
        let connections = ia.evd_create(8, EvdFlags::CONNECTION)?;
        let attr = EpAttr {
            max_request_dtos: u32::try_from(plan.depth)?,
            ..EpAttr::defaults(ia.query().ia)
        };
        let evds = EpEvds::NONE.recv(evd).request(evd).connect(connections);
        let ep = ia.ep_create(Some(pz), evds, Some(&attr))?;
        let transport = EpTransport {
            dscp: Some(DSCP),
            ack_timeout: Some(ACK_TIMEOUT),
            ..EpTransport::default()
        };
        let change = EpChange {
            transport: Some(transport),
            ..EpChange::default()
        };
        ia.ep_modify(ep, &change)?;
        let memory = udapl::alloc(ia, plan.message_bytes)?;
        let lmr = ia.lmr_create(memory, pz, MemPrivFlags::all())?;
        made.push((ep, evd, connections, lmr));
    }
    let [
        (ep, evd, connections, local),
        (far_ep, _, far_connections, far),
    ] = made.as_slice()
    else {
        bail!("two sides were made");
    };
    let requests = ias[receiver].evd_create(8, EvdFlags::CR)?;
    ias[receiver].psp_create(qualifier, requests, PspFlags::CONSUMER)?;
    let address = ias[receiver].query().ia.ia_address;
    ias[sender].ep_connect(
        *ep,
        address,
        qualifier,
        Timeout::from_micros(1_000_000),
        b"",
        Qos::BEST_EFFORT,
        ConnectFlags::empty(),
    )?;
    let mut established = 0;
    for _ in 0..CONNECT_STEPS {
        for ia in ias.iter_mut() {
            ia.progress();
        }
        if let Some(Event::ConnectionRequest(request)) = ias[receiver].evd_dequeue(requests)? {
            ias[receiver].cr_accept(request.cr, Some(*far_ep), b"")?;
        }
        for (side, evd) in [(sender, *connections), (receiver, *far_connections)] {
            if let Some(Event::Connection(event)) = ias[side].evd_dequeue(evd)? {
                ensure!(
                    event.kind == ConnectionEventKind::Established,
                    "flow {number}: {:?}",
                    event.kind
                );
                established += 1;
            }
        }
        if established == 2 {
            return Ok(Flow {
                sender,
                ep: *ep,
                evd: *evd,
                local: LmrTriplet {
                    lmr_context: local.lmr_context,
                    virtual_address: local.registered_address,
                    segment_length: plan.message_bytes as u64,
                },
                remote: RmrTriplet {
                    rmr_context: far.rmr_context,
                    target_address: far.registered_address,
                    segment_length: plan.message_bytes as u64,
                },
                under_way: 0,
                delivered: 0,
                ended: None,
            });
        }
        fabric.sim.advance(STEP);
    }
    bail!("flow {number}: no connection")
}

/// Executes a plan in a new simulation.
///
/// # Errors
/// The plan is not possible, a function does not come up, or a flow is not connected.
pub fn run(plan: &Plan) -> Result<Outcome> {
    let sim = Sim::new(SimConfig {
        seed: plan.seed,
        event_log: false,
    });
    run_in(plan, sim)
}

/// Executes a plan in an empty simulation that has the plan's seed. The simulation may be one that is recorded.
///
/// # Errors
/// As [`run`].
pub fn run_in(plan: &Plan, sim: Sim) -> Result<Outcome> {
    let fabric = fabric(plan, sim)?;
    let mut ias = (0..fabric.functions())
        .map(|number| {
            let options = fabric.options(number).mtu(4200);
            let opened = fabric.open_with(number, &options);
            opened.with_context(|| format!("function {number}"))
        })
        .collect::<Result<Vec<Ia>>>()?;
    let mut flows = Vec::new();
    for (number, ends) in (0..).zip(plan.topology.flows()) {
        flows.push(connect(&fabric, &mut ias, ends, number, plan)?);
    }
    let bottlenecks = plan.topology.bottlenecks();
    let (mut passed, mut next, mut samples) = (Duration::ZERO, SAMPLE, Vec::new());
    let mut before = vec![0; flows.len()];
    while passed < plan.time {
        for (number, flow) in (0_u32..).zip(&mut flows) {
            if passed >= plan.stagger * number {
                flow.go_on(&mut ias[flow.sender], plan)?;
            }
        }
        fabric.sim.advance(STEP);
        passed += STEP;
        if passed < next {
            continue;
        }
        next += SAMPLE;
        let depth = |&(switch, port): &(usize, usize)| {
            fabric
                .sim
                .queue_depth(fabric.switches[switch], port)
                .unwrap_or(0)
        };
        let rate = |(flow, before): (&Flow, &mut u64)| {
            let bytes = flow.delivered - *before;
            *before = flow.delivered;
            bytes as f64 * 8.0 / SAMPLE.as_secs_f64()
        };
        samples.push(Sample {
            us: u64::try_from(passed.as_micros())?,
            depths: bottlenecks.iter().map(depth).collect(),
            rates: flows.iter().zip(&mut before).map(rate).collect(),
        });
    }
    let functions = (0..fabric.functions()).map(|number| fabric.function(number));
    let functions: Vec<_> = functions.collect();
    let sim = &fabric.sim;
    let ports = |&switch| (0..).map_while(move |port| sim.switch_counters(switch, port));
    Ok(Outcome {
        samples,
        delivered: flows.iter().map(|flow| flow.delivered).collect(),
        ended: flows.iter().map(|flow| flow.ended).collect(),
        ports: fabric.switches.iter().flat_map(ports).collect(),
        pauses: functions
            .iter()
            .map(|function| fabric.sim.pauses(function)[usize::from(PRIORITY)])
            .collect(),
        congestion: functions
            .iter()
            .map(|function| fabric.sim.congestion(function))
            .collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_as_fair_as_they_are_equal() {
        assert_eq!(jain(&[5.0, 5.0, 5.0]), 1.0);
        assert_eq!(jain(&[5.0, 0.0]), 0.5);
        assert_eq!(jain(&[0.0, 0.0]), 1.0);
    }
}
