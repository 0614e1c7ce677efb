//! `datctl cmtime`: the rate at which connections are made and ended, step by step, as cmtime of rdma-core reports
//! it.
//!
//! Connections are made in groups of `--at-once`: all connections of a group complete a step before any of them begins
//! the next. For `connect` and `disconnect`, the time of a connection is from the call to the event that ends the step;
//! the others of its group are in progress meanwhile. For `create` and `free` it is the duration of the call. The rate
//! of a step is the number of connections, divided by the total time of the groups in that step. The passive end
//! creates an endpoint for each request before it accepts the request; this is part of `connect`.

use std::error::Error;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use serde::Serialize;
use udapl::{
    CloseFlags, ConnQual, ConnectFlags, ConnectionEventKind, EpHandle, Event, Qos, Timeout,
};

use crate::adapter::{PATIENCE, is_simulated, unexpected};
use crate::dialer::Dialer;
use crate::ends::{Ends, Target, connect_by};
use crate::hello::{Hello, Role};
use crate::perf::latency;
use crate::report::{Output, Report, counted, table};
use crate::value::within;
use simnic::signals::Stop;

/// `cmtime`
#[derive(clap::Args)]
pub(crate) struct Cmtime {
    #[command(flatten)]
    ends: Ends,
    /// Number of connections.
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = within(1..=u16::MAX))]
    count: u16,
    /// Number of connections that are made at a time. A number above --count is reduced to it.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = within(1..=1024_u16))]
    at_once: u16,
}

/// The steps of a connection, in their order.
const STEPS: [&str; 4] = ["create", "connect", "disconnect", "free"];

/// Times of all connections.
#[derive(Serialize)]
struct Times {
    schema: &'static str,
    adapter: String,
    peer: String,
    connections: usize,
    at_once: u16,
    simulated: bool,
    /// False if the run ended before all connections were made.
    complete: bool,
    steps: Vec<Row>,
}

#[derive(Serialize)]
struct Row {
    step: &'static str,
    total_ms: f64,
    per_second: f64,
    min_us: f64,
    median_us: f64,
    p99_us: f64,
    max_us: f64,
}

/// Times of one step: the total, and a histogram over the connections.
struct Step {
    total: Duration,
    each: Histogram<u64>,
}

impl Step {
    fn new() -> Self {
        Self {
            total: Duration::ZERO,
            each: latency::histogram(),
        }
    }

    /// Times a call that completes the step when it returns.
    fn call<T>(
        &mut self,
        work: impl FnOnce() -> Result<T, Box<dyn Error>>,
    ) -> Result<T, Box<dyn Error>> {
        let start = Instant::now();
        let made = work()?;
        let took = start.elapsed();
        latency::count(&mut self.each, took);
        self.total += took;
        Ok(made)
    }

    /// Begins a step on each endpoint, and waits until each of them has its event of this kind.
    fn event(
        &mut self,
        dialer: &mut Dialer,
        eps: &[EpHandle],
        kind: ConnectionEventKind,
        mut begin: impl FnMut(&mut Dialer, EpHandle) -> Result<(), Box<dyn Error>>,
    ) -> Result<(), Box<dyn Error>> {
        let first = Instant::now();
        let mut begun = Vec::with_capacity(eps.len());
        for &ep in eps {
            begun.push(Instant::now());
            begin(dialer, ep)?;
        }
        let mut left = eps.len();
        while left > 0 {
            let event = dialer.next()?;
            // Completions of flushed DTOs are ignored.
            if matches!(event, Event::Dto(_)) {
                continue;
            }
            let at = match &event {
                Event::Connection(change) if change.kind == kind => {
                    eps.iter().position(|&ep| ep == change.ep)
                }
                Event::ConnectionRequest(_)
                | Event::Connection(_)
                | Event::Dto(_)
                | Event::RmrBind(_)
                | Event::Async(_)
                | Event::Software(_) => None,
            };
            let at = at.ok_or_else(|| unexpected(&event, &format!("{kind:?}")))?;
            latency::count(&mut self.each, begun[at].elapsed());
            left -= 1;
        }
        self.total += first.elapsed();
        Ok(())
    }

    fn row(&self, step: &'static str) -> Row {
        // CAST: counts and nanoseconds below 2^53 are exact.
        let micros = |nanoseconds: u64| nanoseconds as f64 / 1e3;
        let at = |quantile| micros(self.each.value_at_quantile(quantile).min(self.each.max()));
        let total = self.total.as_secs_f64();
        Row {
            step,
            total_ms: total * 1e3,
            per_second: micros(self.each.len()) * 1e3 / total.max(1e-9),
            min_us: micros(self.each.min()),
            median_us: at(0.5),
            p99_us: at(0.99),
            max_us: micros(self.each.max()),
        }
    }
}

/// Runs the measurement. Returns false if it ended before all connections were made.
pub(crate) fn run(cmtime: &Cmtime, output: Output) -> Result<bool, Box<dyn Error>> {
    let stop = if cmtime.ends.is_active() {
        Stop::on_signals()?
    } else {
        Stop::never()
    };
    let Some((mut dialer, target)) = connect_by(&cmtime.ends, output)? else {
        return Ok(true);
    };
    let (steps, connections) = cmtime.measure(&mut dialer, &target, &stop)?;
    dialer.close()?;
    let complete = connections == usize::from(cmtime.count);
    output.show(&Times {
        schema: "datctl-cmtime-1",
        adapter: cmtime.ends.name.clone(),
        peer: target.address.to_string(),
        connections,
        at_once: cmtime.at_once.min(cmtime.count),
        simulated: is_simulated(&cmtime.ends.name),
        complete,
        steps: steps
            .iter()
            .zip(STEPS)
            .map(|(step, name)| step.row(name))
            .collect(),
    })?;
    Ok(complete)
}

impl Cmtime {
    fn measure(
        &self,
        dialer: &mut Dialer,
        target: &Target,
        stop: &Stop,
    ) -> Result<([Step; 4], usize), Box<dyn Error>> {
        let [mut create, mut connect, mut disconnect, mut free] = [(); 4].map(|()| Step::new());
        let patience = Timeout::from_micros(u32::try_from(PATIENCE.as_micros())?);
        let mut left = self.count;
        while left > 0 && !stop.is_asked() {
            let group = self.at_once.min(left);
            let mut eps = Vec::with_capacity(usize::from(group));
            for _ in 0..group {
                eps.push(create.call(|| dialer.adapter.endpoint(1, 1))?);
            }
            connect.event(
                dialer,
                &eps,
                ConnectionEventKind::Established,
                |dialer, ep| {
                    left -= 1;
                    let hello = Hello {
                        role: Role::Nothing,
                        more: left,
                        depth: 1,
                        bytes: 1,
                        reverse: None,
                    };
                    Ok(dialer.adapter.ia.ep_connect(
                        ep,
                        target.address,
                        ConnQual(target.qualifier),
                        patience,
                        &hello.encode(),
                        Qos::BEST_EFFORT,
                        ConnectFlags::empty(),
                    )?)
                },
            )?;
            disconnect.event(
                dialer,
                &eps,
                ConnectionEventKind::Disconnected,
                |dialer, ep| Ok(dialer.adapter.ia.ep_disconnect(ep, CloseFlags::Abrupt)?),
            )?;
            for ep in eps {
                free.call(|| Ok(dialer.adapter.ia.ep_free(ep)?))?;
            }
            // If the passive end is in this process, it handles the disconnect before the next group.
            dialer.disconnect_all()?;
        }
        let made = usize::from(self.count - left);
        Ok(([create, connect, disconnect, free], made))
    }
}

impl Report for Times {
    fn human(&self) -> String {
        let two = |figure: f64| format!("{figure:.2}");
        let rows = self.steps.iter().map(|row| {
            [
                row.step.to_owned(),
                two(row.total_ms),
                format!("{:.0}", row.per_second),
                two(row.min_us),
                two(row.median_us),
                two(row.p99_us),
                two(row.max_us),
            ]
        });
        let header = [
            "step",
            "total ms",
            "per s",
            "min us",
            "median us",
            "p99 us",
            "max us",
        ];
        let mut text = table(header, rows);
        text.push_str(&format!(
            "\n\n{}, {} at once",
            counted(self.connections, "connection"),
            self.at_once
        ));
        if self.simulated {
            text.push_str("\nsimulated: how fast the simulator is, and nothing of a card");
        }
        if !self.complete {
            text.push_str("\nnot complete: it was ended before all were made");
        }
        text
    }
}
