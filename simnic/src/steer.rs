//! Steering of a simulation while it is served: `simnic serve --steer SOCKET` and `simnic ctl SOCKET`, which are also
//! `datctl sim serve` and `datctl sim ctl`.
//!
//! The protocol is that of the control socket (docs/control.md). Because requests change the simulation here, there is
//! a separate option for this socket. Faults have the same form as in `--faults`.

use std::error::Error;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use control::rpc::{FAILED, INVALID_PARAMS, Refusal};
use control::schema::{Counters, SCHEMA, SimCounters, SimTime, Version};
use control::{Access, Client, Notifier, Service, Side, Subject};
use hw_sim::{LinkFaults, LinkId, Sim, SimFunction};
use serde::Serialize;
use serde_json::{Value, json};

use crate::simulated::FaultOptions;

/// Methods of the socket.
const METHODS: [&str; 5] = [
    "version",
    "sim.link",
    "sim.function",
    "sim.time",
    "sim.counters",
];

/// A simulation that is served.
pub(crate) struct World {
    pub(crate) sim: Sim,
    /// Link between two cards or functions, or between one and a wire; `None` if there is a switch or only one end.
    pub(crate) link: Option<LinkId>,
    /// Functions that are served, with the paths of their sockets.
    pub(crate) functions: Vec<(Arc<SimFunction>, PathBuf)>,
    pub(crate) seed: u64,
}

/// A served simulation, with the handle that keeps its control socket open. It never sends notices.
struct Steered {
    world: World,
    _notifier: Notifier,
}

/// Serves the socket until the result is dropped.
pub(crate) fn serve(path: &Path, world: World) -> Result<Service, Box<dyn Error>> {
    let served = control::serve(path, Access::default(), |notifier| Steered {
        world,
        _notifier: notifier,
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

    /// Replaces all faults of the link; `none` removes them.
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
                    format!("{words:?} has a fault of a function, which is for sim.function");
                return Err(wrong(what));
            }
            FaultOptions::link(&[list], self.seed)
        };
        self.sim.set_faults(link, faults);
        Ok(())
    }

    /// Injects a fault into a function now.
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
                ("driver_bugs", report.driver_bugs.len() as u64),
                ("frames_unwanted", report.dropped.values().sum()),
                ("pages_held", report.pages_held as u64),
                ("resets", report.resets),
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

/// Options of `ctl`.
#[derive(clap::Args, Debug)]
pub struct Options {
    /// Socket that the server was given with --steer.
    socket: PathBuf,
    #[command(subcommand)]
    what: What,
}

#[derive(clap::Subcommand, Debug)]
enum What {
    /// Sets the faults of the link: a list like loss=1%,delay=5us, or none.
    #[command(after_help = "Examples:\n  simnic ctl /tmp/steer.sock link loss=1%,delay=5us")]
    Link {
        /// The words of --faults of `serve`.
        faults: String,
    },
    /// Applies an event to a function: removal, ones, freeze, health:0x01, bus-error, wanted-back, link-down,
    /// link-up.
    #[command(after_help = "Examples:\n  simnic ctl /tmp/steer.sock function 1:link-down")]
    Function {
        /// Event, with the number of its socket in front if that is not 0, as 1:removal.
        event: String,
    },
    /// Prints the virtual time of the simulation.
    #[command(after_help = "Examples:\n  simnic ctl /tmp/steer.sock time")]
    Time,
    /// Prints the counters of the functions.
    #[command(after_help = "Examples:\n  simnic ctl /tmp/steer.sock counters")]
    Counters,
}

/// Answer to a command.
#[derive(Serialize)]
#[serde(untagged)]
pub enum Answer {
    /// Virtual time of the simulation.
    Time(SimTime),
    /// Counters of the functions.
    Counters(SimCounters),
}

/// Sends a command to the server.
///
/// # Errors
/// There is no server at the socket, or the server refuses the command.
pub fn run(options: &Options) -> Result<Answer, Box<dyn Error>> {
    if !options.socket.exists() {
        let path = options.socket.display();
        return Err(format!("{path}: nothing is served with --steer {path}").into());
    }
    let mut client = Client::connect_alike(&options.socket, Side::World)?;
    Ok(match &options.what {
        What::Link { faults } => {
            Answer::Time(client.call("sim.link", json!({ "faults": faults }))?)
        }
        What::Function { event } => {
            Answer::Time(client.call("sim.function", json!({ "event": event }))?)
        }
        What::Time => Answer::Time(client.call("sim.time", Value::Null)?),
        What::Counters => Answer::Counters(client.call("sim.counters", Value::Null)?),
    })
}

impl fmt::Display for Answer {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Time(time) => write!(to, "{:.6} s", seconds(time.at)),
            Self::Counters(SimCounters { at, functions }) => {
                write!(to, "at {:.6} s", seconds(*at))?;
                let names = functions.keys().map(String::len);
                let counters = functions.values().flat_map(|counters| counters.keys());
                let names = names.max().unwrap_or(0);
                let width = counters.map(String::len).max().unwrap_or(0);
                for (name, counters) in functions {
                    for (counter, count) in counters {
                        write!(to, "\n{name:<names$}  {counter:<width$}  {count}")?;
                    }
                }
                Ok(())
            }
        }
    }
}

/// Converts nanoseconds to seconds for the output.
fn seconds(nanoseconds: u64) -> f64 {
    std::time::Duration::from_nanos(nanoseconds).as_secs_f64()
}

#[cfg(test)]
mod tests {
    use std::io::{ErrorKind, Read, Write};
    use std::os::unix::net::UnixStream;

    use hw_sim::SimConfig;

    use super::*;

    /// Returns whether the server has disconnected a client.
    fn is_let_go(mut stream: &UnixStream) -> bool {
        stream.set_nonblocking(true).expect("a socket");
        let read = stream.read(&mut [0; 64]);
        read.map_or_else(
            |error| error.kind() != ErrorKind::WouldBlock,
            |read| read == 0,
        )
    }

    /// A simulation is steered in time although 20 slow clients send one byte of an unfinished request in each round
    /// and reconnect whenever they are disconnected.
    #[test]
    fn a_world_is_steered_while_slow_clients_hold_all_places() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("steer");
        let world = World {
            sim: Sim::new(SimConfig::seeded(1)),
            link: None,
            functions: Vec::new(),
            seed: 1,
        };
        let _service = serve(&path, world).expect("a socket");
        let connect = || UnixStream::connect(&path).expect("it listens");
        let mut drips: Vec<UnixStream> = (0..20).map(|_| connect()).collect();
        let mut honest = Client::connect(&path).expect("it listens");
        for _ in 0..50 {
            for drip in &mut drips {
                if drip.write_all(b"x").is_err() || is_let_go(drip) {
                    *drip = connect();
                }
            }
            let _: SimTime = honest.call("sim.time", Value::Null).expect("an answer");
        }
    }
}
