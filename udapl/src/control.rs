//! The control socket of an adapter: shows the state of a live process to other processes.
//!
//! The protocol is JSON-RPC 2.0 over a Unix socket. docs/control.md lists the methods; `datctl resource`, `stat`,
//! `top`, `monitor`, `recorder` and `metrics` use them. No method changes what the process does, except that a client
//! can turn on latency measurement while it is connected (method `measure`). A program requests a socket by the
//! adapter's name (`0000:3b:00.2,control=/run/target.sock`), by
//! [`OpenOptions::control`](crate::OpenOptions::control), by `DAT_CONTROL` in its environment, or by [`serve`].
//!
//! An instance belongs to one thread, and only that thread can read the instance's counters. The thread does so inside
//! its next call that processes events: a wait, a dequeue of an empty EVD, `Ia::progress`. An instance that has not
//! answered after 200 ms is reported as silent: `resource` and `stat` repeat its previous answer, `recorder` omits it.

use std::collections::{BTreeMap, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use control::rpc::{FAILED, INVALID_PARAMS, Refusal};
use control::schema::{
    Endpoint, Evd, Event, Histogram, Instance, Latency, Recorded, RecordedFunction, Recorder,
    Region, Resource, SCHEMA, Srq, Stat, Version,
};
pub use control::{Access, ServeError, Service};
use control::{Notifier, Subject};
use dat_core::provider::Qpn;
use dat_core::{
    EvdFlags, EvdView, Happened, InstanceView, LatencyView, MemPrivFlags, Notice, Wanted,
};
use dat_mlx::InWords;
use serde_json::Value;

use crate::counters::Counters;
use crate::open::{Adapter, OpenError};
use crate::recorder::{self, Dump};

/// Maximum time to wait for the answers of all instances.
const PATIENCE: Duration = Duration::from_millis(200);
/// Default limit on the objects of each kind reported for each instance.
const OBJECTS: u64 = 4_096;
/// Default limit on the flight recorder events reported for each instance.
const EVENTS: u64 = 4_096;
/// Maximum number of events of each instance, and of the function, in a pcapng answer. It limits the size of the
/// answer, which holds the file as hex digits.
const MAX_FILE_EVENTS: u64 = 8_192;
/// Maximum number of notices queued for the socket's thread.
const NOTICES: usize = 4_096;
/// The methods of the socket.
const METHODS: [&str; 8] = [
    "version",
    "resource",
    "stat",
    "recorder",
    "subscribe",
    "unsubscribe",
    "measure",
    "unmeasure",
];

/// Serves the control socket of an adapter until the [`Service`] is dropped. If the caller calls `Service::detach`
/// instead of dropping it, the socket is served until the adapter is closed.
///
/// # Errors
/// [`OpenError::Control`]; [`OpenError::Closed`].
pub fn serve(adapter: &Adapter, path: &Path, access: Access) -> Result<Service, OpenError> {
    let notices = Arc::new(Mutex::new(NoticeQueue::default()));
    let mut is_open = false;
    let served = control::serve(&with_process(path), access, |notifier| {
        is_open = watch(adapter, notifier, &notices);
        Observed {
            adapter: adapter.clone(),
            notices,
            last: BTreeMap::new(),
            measures: false,
        }
    });
    let service = served.map_err(|error| OpenError::Control {
        name: adapter.name().to_owned(),
        error,
    })?;
    if is_open {
        Ok(service)
    } else {
        Err(OpenError::Closed {
            name: adapter.name().to_owned(),
        })
    }
}

/// Replaces `{pid}` in a path by the process ID.
fn with_process(path: &Path) -> PathBuf {
    match path.to_str() {
        Some(text) => text
            .replace("{pid}", &std::process::id().to_string())
            .into(),
        None => path.to_owned(),
    }
}

/// Notices that the socket's thread has not fetched, and the number of notices lost because this queue was full.
#[derive(Default)]
struct NoticeQueue {
    notices: VecDeque<Notice>,
    lost: u64,
}

/// Queues the adapter's notices for the socket's thread. Returns false if the adapter is closed. The closure that
/// queues the notices is freed with the adapter.
fn watch(adapter: &Adapter, notifier: Notifier, notices: &Arc<Mutex<NoticeQueue>>) -> bool {
    let to = Arc::clone(notices);
    adapter.dat().watch(Box::new(move |notice| {
        let mut waiting = to.lock().unwrap_or_else(PoisonError::into_inner);
        if waiting.notices.len() < NOTICES {
            waiting.notices.push_back(*notice);
        } else {
            waiting.lost += 1;
        }
        drop(waiting);
        notifier.notify();
    }))
}

/// An adapter served on a control socket.
struct Observed {
    adapter: Adapter,
    notices: Arc<Mutex<NoticeQueue>>,
    /// Last answer of each instance, by the instance's number.
    last: BTreeMap<u32, InstanceView>,
    /// True while latencies are measured for a client.
    measures: bool,
}

impl Drop for Observed {
    fn drop(&mut self) {
        self.measure(false);
    }
}

impl Subject for Observed {
    fn call(&mut self, method: &str, params: &Value) -> Result<Value, Refusal> {
        let answer = match method {
            "version" => serde_json::to_value(self.version()),
            "resource" => serde_json::to_value(self.resource(params)?),
            "stat" => serde_json::to_value(self.stat()?),
            "recorder" => serde_json::to_value(self.recorder(params)?),
            _ => return Err(Refusal::unknown(method, &METHODS)),
        };
        answer.map_err(|error| Refusal::new(FAILED, error.to_string()))
    }

    fn notices(&mut self) -> Vec<Value> {
        let mut waiting = self.notices.lock().unwrap_or_else(PoisonError::into_inner);
        let lost = core::mem::take(&mut waiting.lost);
        let notices = core::mem::take(&mut waiting.notices);
        drop(waiting);
        let mut events: Vec<Event> = notices.iter().map(event).collect();
        if lost != 0
            && let Some(last) = events.last_mut()
        {
            last.lost = Some(lost);
        }
        let values = events.iter().map(serde_json::to_value);
        values.filter_map(Result::ok).collect()
    }

    fn measure(&mut self, on: bool) -> bool {
        if self.measures != on {
            self.measures = self.adapter.dat().measure(on) && on;
        }
        self.measures == on
    }
}

impl Observed {
    fn version(&self) -> Version {
        Version {
            schema: SCHEMA,
            library: env!("CARGO_PKG_VERSION").to_owned(),
            adapter: self.adapter.name().to_owned(),
            process: std::process::id(),
            methods: METHODS.map(str::to_owned).into(),
        }
    }

    /// Requests a view from each instance and waits up to [`PATIENCE`] for the answers. Returns the last view of each
    /// instance, and the numbers of the instances that did not answer.
    fn ask(&mut self, wanted: Wanted) -> Result<(Vec<InstanceView>, Vec<u32>), Refusal> {
        let closed = || Refusal::new(FAILED, format!("{} is closed", self.adapter.name()));
        let asked = self.adapter.dat().ask(wanted);
        let (mut silent, answers) = asked.ok_or_else(closed)?;
        let until = Instant::now() + PATIENCE;
        self.last.retain(|number, _| silent.contains(number));
        while !silent.is_empty() {
            let left = until.saturating_duration_since(Instant::now());
            let Ok(view) = answers.recv_timeout(left) else {
                break;
            };
            silent.retain(|number| *number != view.number);
            self.last.insert(view.number, view);
        }
        let told = self.last.values().cloned();
        let views = told.map(|mut view| {
            // The old answer of a silent instance may have more objects than this request allows.
            view.eps.truncate(wanted.objects);
            view.evds.truncate(wanted.objects);
            view.srqs.truncate(wanted.objects);
            view.lmrs.truncate(wanted.objects);
            view.listeners.truncate(wanted.objects);
            view
        });
        Ok((views.collect(), silent))
    }

    fn resource(&mut self, params: &Value) -> Result<Resource, Refusal> {
        let objects = number(params, "objects", OBJECTS, 1 << 24)?;
        let wanted = Wanted {
            objects,
            ..Wanted::default()
        };
        let (views, silent) = self.ask(wanted)?;
        let addresses = views.first().map(|view| view.addresses.as_slice());
        Ok(Resource {
            adapter: self.adapter.name().to_owned(),
            addresses: addresses
                .unwrap_or_default()
                .iter()
                .map(ToString::to_string)
                .collect(),
            instances: views.iter().map(instance).collect(),
            silent,
        })
    }

    fn recorder(&mut self, params: &Value) -> Result<Recorder, Refusal> {
        let as_file = match params.get("pcapng") {
            None => false,
            Some(asked) => asked.as_bool().ok_or_else(|| {
                Refusal::new(INVALID_PARAMS, "pcapng is true or false".to_owned())
            })?,
        };
        let most = if as_file { MAX_FILE_EVENTS } else { 1 << 16 };
        let wanted = Wanted {
            events: number(params, "events", EVENTS, most)?,
            ..Wanted::default()
        };
        let (views, silent) = self.ask(wanted)?;
        let function = self.adapter.device().recorder();
        let function = function
            .and_then(|recorder| recorder.dump())
            .map(|dump| dump.last(wanted.events));
        let answered = views.iter().filter(|view| !silent.contains(&view.number));
        let instances = answered.map(|view| Recorded {
            instance: view.number,
            records: view.recorded.is_some(),
            before: view.recorded.as_ref().map_or(0, |dump| dump.before),
            events: view.recorded.as_ref().map_or_else(Vec::new, |dump| {
                dump.to_string()
                    .lines()
                    .skip(1)
                    .map(str::to_owned)
                    .collect()
            }),
        });
        let instances = instances.collect();
        let held = views.iter().filter(|view| !silent.contains(&view.number));
        let held = held.filter_map(|view| view.recorded.clone()).collect();
        let now = views.iter().map(|view| view.at).max();
        let dump = Dump::new(
            self.adapter.name(),
            "asked for from outside",
            held,
            function,
        );
        let pcapng = if as_file {
            let mut file = Vec::new();
            dump.write_pcapng(&mut file)
                .map_err(|error| Refusal::new(FAILED, error.to_string()))?;
            Some(file.iter().map(|byte| format!("{byte:02x}")).collect())
        } else {
            None
        };
        let function = dump.function.as_ref().map(|held| RecordedFunction {
            before: held.before,
            events: held
                .records
                .iter()
                .map(|told| {
                    let ago = recorder::before(now.unwrap_or_else(|| dump.at()), told.at);
                    format!("{ago:>12} {}", InWords(&told.what))
                })
                .collect(),
        });
        Ok(Recorder {
            adapter: self.adapter.name().to_owned(),
            instances,
            function,
            silent,
            pcapng,
        })
    }

    fn stat(&mut self) -> Result<Stat, Refusal> {
        let (views, silent) = self.ask(Wanted::default())?;
        let stats = self.adapter.stats();
        let stats = stats.map_err(|error| Refusal::new(FAILED, error.to_string()))?;
        let mut groups: BTreeMap<String, Option<Counters>> = stats
            .groups()
            .into_iter()
            .map(|(name, group)| (name.to_owned(), group))
            .collect();
        let commands = stats.commands.iter().flat_map(|command| {
            let name = command
                .name
                .map_or_else(|| format!("{:#06x}", command.opcode), str::to_lowercase);
            let nanoseconds = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
            [
                (format!("{name}_answered"), command.answered),
                (format!("{name}_refused"), command.refused),
                (format!("{name}_unanswered"), command.unanswered),
                (format!("{name}_nanoseconds"), nanoseconds(command.time)),
                (
                    format!("{name}_longest_nanoseconds"),
                    nanoseconds(command.longest),
                ),
            ]
        });
        groups.insert("commands".to_owned(), Some(commands.collect()));
        Ok(Stat {
            adapter: self.adapter.name().to_owned(),
            at: views.iter().map(|view| view.at).max().unwrap_or(0),
            groups,
            instances: views.iter().map(instance).collect(),
            silent,
        })
    }
}

/// Returns a number from the parameters, or `usual` if the parameter is missing. A number above `most` is refused.
fn number(params: &Value, name: &str, usual: u64, most: u64) -> Result<usize, Refusal> {
    let number = match params.get(name) {
        None => Some(usual),
        Some(asked) => asked.as_u64().filter(|asked| *asked <= most),
    };
    let number = number.ok_or_else(|| {
        Refusal::new(
            INVALID_PARAMS,
            format!("{name} is a number from 0 to {most}"),
        )
    })?;
    Ok(usize::try_from(number).unwrap_or(usize::MAX))
}

fn instance(view: &InstanceView) -> Instance {
    Instance {
        instance: view.number,
        counters: counters(view.stats.named()),
        latency: latency(&view.latencies),
        endpoints: view
            .eps
            .iter()
            .map(|ep| Endpoint {
                endpoint: ep.number,
                queue_pair: ep.qp_number.map(Qpn::get),
                state: format!("{:?}", ep.state),
                peer: ep.peer.map(|peer| peer.to_string()),
                port: ep.port_qual,
                cause: ep.cause.map(|cause| cause.to_string()),
                transport: ep.transport.to_string(),
                counters: counters(ep.stats.named()),
                latency: latency(&ep.latencies),
            })
            .collect(),
        evds: view.evds.iter().map(evd).collect(),
        srqs: view
            .srqs
            .iter()
            .map(|(number, stats)| Srq {
                srq: *number,
                counters: counters(stats.named()),
            })
            .collect(),
        regions: view
            .lmrs
            .iter()
            .map(|lmr| Region {
                lmr_context: lmr.lmr_context,
                address: lmr.address,
                length: lmr.bytes,
                rights: flags(
                    lmr.privileges
                        .iter_names()
                        .map(|(name, _): (&str, MemPrivFlags)| name),
                ),
            })
            .collect(),
        listeners: view.listeners.clone(),
    }
}

fn evd(evd: &EvdView) -> Evd {
    Evd {
        evd: evd.number,
        streams: flags(
            evd.flags
                .iter_names()
                .map(|(name, _): (&str, EvdFlags)| name),
        ),
        length: evd.qlen,
        counters: counters(evd.stats.named()),
    }
}

fn latency(view: &LatencyView) -> Latency {
    let told = |which: &dat_core::latency::Histogram| Histogram {
        count: which.count(),
        sum: which.sum(),
        buckets: which.places().collect(),
    };
    Latency {
        completion: view.completion.as_deref().map(told),
        wakeup: view.wakeup.as_deref().map(told),
    }
}

fn flags<'a>(names: impl Iterator<Item = &'a str>) -> String {
    names.collect::<Vec<_>>().join("|")
}

/// Returns counters by name. Omits completion statuses with a count of 0.
fn counters(named: dat_core::stats::Named) -> Counters {
    let told = named.into_iter();
    let told = told.filter(|(name, count)| *count != 0 || !name.contains("_DAT_"));
    told.map(|(name, count)| (name.to_owned(), count)).collect()
}

fn event(notice: &Notice) -> Event {
    let told = Event {
        at: notice.at,
        instance: notice.instance,
        ..Event::default()
    };
    match notice.what {
        Happened::Connection {
            ep,
            qp_number,
            peer,
            kind,
            cause,
        } => Event {
            kind: "connection".to_owned(),
            what: format!("{kind:?}"),
            endpoint: Some(ep),
            queue_pair: qp_number.map(Qpn::get),
            peer: peer.map(|peer| peer.to_string()),
            cause: cause.map(|cause| cause.to_string()),
            ..told
        },
        Happened::Async(dat_core::AsyncEvent::Network(event)) => Event {
            kind: "network".to_owned(),
            what: event.to_string(),
            ..told
        },
        Happened::Async(event) => Event {
            kind: "error".to_owned(),
            what: format!("{event:?}"),
            ..told
        },
        _ => told,
    }
}
