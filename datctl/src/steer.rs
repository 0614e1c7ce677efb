//! `datctl sim serve --steer SOCKET` and `datctl sim ctl SOCKET`: a simulated world is steered while it is served.
//!
//! The protocol is that of the control socket (docs/control.md); here it changes something, which is why it has an
//! option of its own. Faults have the words of `--faults`.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use control::rpc::{FAILED, INVALID_PARAMS, Refusal};
use control::schema::{Counters, SCHEMA, SimCounters, SimTime, Version};
use control::{Access, Service, Subject, Tell};
use hw_sim::{LinkFaults, LinkId, Sim, SimFunction};
use serde::Serialize;
use serde_json::{Value, json};

use crate::live::{Target, ask};
use crate::report::{Report, table};
use crate::simulated::FaultOptions;

/// What can be asked.
const METHODS: [&str; 5] = [
    "version",
    "sim.link",
    "sim.function",
    "sim.time",
    "sim.counters",
];

/// A world that is served.
pub(crate) struct World {
    pub(crate) sim: Sim,
    /// The link between its two ends, if both are here.
    pub(crate) link: Option<LinkId>,
    /// What is served, and where.
    pub(crate) functions: Vec<(Arc<SimFunction>, PathBuf)>,
    pub(crate) seed: u64,
}

/// A world, and what keeps its socket: nothing is told of a world unless it is asked.
struct Steered {
    world: World,
    _tell: Tell,
}

/// Serves the socket until the result is dropped.
pub(crate) fn serve(path: &Path, world: World) -> Result<Service, Box<dyn Error>> {
    let served = control::serve(path, Access::default(), |tell| Steered {
        world,
        _tell: tell,
    });
    Ok(served?)
}

impl Subject for Steered {
    fn call(&mut self, method: &str, params: &Value) -> Result<Value, Refusal> {
        let answer = match method {
            "version" => serde_json::to_value(Version {
                schema: SCHEMA,
                library: env!("CARGO_PKG_VERSION").to_owned(),
                adapter: "sim serve".to_owned(),
                process: std::process::id(),
                methods: METHODS.map(str::to_owned).into(),
            }),
            "sim.link" => {
                self.world.set_link(word(params, "faults")?)?;
                serde_json::to_value(self.world.time())
            }
            "sim.function" => {
                self.world.inject(word(params, "event")?)?;
                serde_json::to_value(self.world.time())
            }
            "sim.time" => serde_json::to_value(self.world.time()),
            "sim.counters" => serde_json::to_value(self.world.counters()),
            _ => return Err(Refusal::unknown(method, &METHODS)),
        };
        answer.map_err(|error| Refusal::new(FAILED, error.to_string()))
    }

    fn notices(&mut self) -> Vec<Value> {
        Vec::new()
    }
}

impl World {
    fn time(&self) -> SimTime {
        SimTime {
            at: self.sim.clock().now().0,
        }
    }

    /// From now on these are the faults of the link, and no others; `none` ends them.
    fn set_link(&self, words: &str) -> Result<(), Refusal> {
        let Some(link) = self.link else {
            let what = "there is no link";
            return Err(Refusal::new(FAILED, what));
        };
        let faults = if words == "none" {
            LinkFaults::NONE
        } else {
            let list: FaultOptions = words.parse().map_err(wrong)?;
            if !FaultOptions::functions(std::slice::from_ref(&list)).is_empty() {
                let what =
                    format!("{words:?} has something that happens to a function: sim.function");
                return Err(wrong(what));
            }
            FaultOptions::link(&[list], self.seed)
        };
        self.sim.set_faults(link, faults);
        Ok(())
    }

    /// Happens to a function now.
    fn inject(&self, event: &str) -> Result<(), Refusal> {
        let list: FaultOptions = format!("{event}@0s").parse().map_err(wrong)?;
        for planned in FaultOptions::functions(&[list]) {
            let function = self.functions.get(planned.function);
            let (function, _) = function.ok_or_else(|| {
                wrong(format!(
                    "there is no function {}: {} are served, from 0 on",
                    planned.function,
                    self.functions.len()
                ))
            })?;
            self.sim.inject(function, &planned.fault);
        }
        Ok(())
    }

    fn counters(&self) -> SimCounters {
        let functions = self.functions.iter().map(|(function, path)| {
            let report = self.sim.report(function);
            let mut counters: Counters = [
                ("commands", report.opcodes.values().sum()),
                ("commands_refused", report.refused.len() as u64),
                ("dma_faults", report.dma_faults.len() as u64),
                ("driver_mistakes", report.driver_bugs.len() as u64),
                ("frames_unwanted", report.dropped.values().sum()),
                ("pages_held", report.pages_held as u64),
                ("send_doorbells", report.send_doorbells),
            ]
            .map(|(name, count)| (name.to_owned(), count))
            .into();
            for (kind, count) in &report.objects {
                counters.insert(format!("objects_{}", kind.to_lowercase()), *count as u64);
            }
            (path.display().to_string(), counters)
        });
        SimCounters {
            at: self.time().at,
            functions: functions.collect(),
        }
    }
}

fn wrong(what: String) -> Refusal {
    Refusal::new(INVALID_PARAMS, what)
}

fn word<'a>(params: &'a Value, name: &str) -> Result<&'a str, Refusal> {
    let word = params.get(name).and_then(Value::as_str);
    word.ok_or_else(|| {
        wrong(format!(
            "{name} is a text, as --faults of datctl sim serve has it"
        ))
    })
}

/// `sim ctl`
#[derive(clap::Args)]
pub(crate) struct Options {
    #[command(flatten)]
    target: Target,
    #[command(subcommand)]
    what: What,
}

#[derive(clap::Subcommand)]
enum What {
    /// Sets the faults of the link: a list like loss=1%,delay=5us, or none.
    Link {
        /// The words of --faults of `sim serve`.
        faults: String,
    },
    /// Something happens to a function: removal, ones, freeze, health:0x01, bus-error, wanted-back, link-down, link-up.
    Function {
        /// What, with the number of its socket in front if that is not 0, as 1:removal.
        event: String,
    },
    /// Says what time it is in the world.
    Time,
    /// Says what the functions have done.
    Counters,
}

/// What was answered.
#[derive(Serialize)]
#[serde(untagged)]
pub(crate) enum Answer {
    Time(SimTime),
    Counters(SimCounters),
}

pub(crate) fn run(options: &Options) -> Result<Answer, Box<dyn Error>> {
    let mut client = options.target.connect()?;
    Ok(match &options.what {
        What::Link { faults } => {
            Answer::Time(client.call("sim.link", json!({ "faults": faults }))?)
        }
        What::Function { event } => {
            Answer::Time(client.call("sim.function", json!({ "event": event }))?)
        }
        What::Time => Answer::Time(ask(&mut client, "sim.time")?),
        What::Counters => Answer::Counters(ask(&mut client, "sim.counters")?),
    })
}

impl Report for Answer {
    fn human(&self) -> String {
        match self {
            Self::Time(time) => format!("{:.6} s", seconds(time.at)),
            Self::Counters(SimCounters { at, functions }) => {
                let rows = functions.iter().flat_map(|(name, counters)| {
                    let row = |(counter, count): (&String, &u64)| {
                        [name.clone(), counter.clone(), count.to_string()]
                    };
                    counters.iter().map(row)
                });
                let table = table(["function", "counter", "count"], rows);
                format!("at {:.6} s\n{table}", seconds(*at))
            }
        }
    }
}

/// Nanoseconds as seconds, for people.
fn seconds(nanoseconds: u64) -> f64 {
    std::time::Duration::from_nanos(nanoseconds).as_secs_f64()
}
