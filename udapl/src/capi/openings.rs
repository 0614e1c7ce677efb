//! The devices that C programs have open. Opening an open device again creates another [instance](super::instance) of
//! the same adapter. Otherwise the device itself is opened.
//!
//! Devices are compared by their names after the registry's lookup; the spelling of a PCI address does not matter. An
//! open adapter does not change its options. So it must already have the options in the name ([`name`](crate::name)),
//! except `events` and `recorder=on`, which belong to each instance. If the name has other options, or if Rust code or
//! another process has the device open, the open fails as for a device in use. If the open function lacks the name's
//! `time=virtual` or `link=`, the name means another simulated function, which is opened.
//!
//! Openings are serialized, so that two concurrent openings of one device create two instances. A thread that opens a
//! device that is being closed waits for the end of the close.

use core::time::Duration;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use dat_core::{CloseFlags, DatError, DatResult, ReturnType, Subtype};
use dat_mlx::{NetworkState, Participation};
use driver::{Interrupt, PciAddress};
use hw_mlx::MlxError;

use super::adapter::{Adapter, AsyncEvd, Instance, Open, Opened, Siblings, guard};
use super::error::{handle_error, internal};
use super::instance::{Wanted, WantedEvd};
use super::last_error::because_of;
use super::siblings;
use super::table::{IaName, Reserved};
use crate::open::OpenError;
use crate::{Ia, OpenOptions};

/// Converts an error of opening to DAT's code. Logs the error's sentence and stores it for `dat_last_error_text`.
pub(super) fn dat_error(error: OpenError) -> DatError {
    tracing::warn!(%error, "adapter");
    let sentence = error.to_string();
    because_of(number_of(error), &sentence)
}

fn number_of(error: OpenError) -> DatError {
    match error {
        OpenError::Dat(error) => error,
        OpenError::NotFound { .. }
        | OpenError::BadOption { .. }
        | OpenError::NoControl { .. }
        | OpenError::NoSimulator { .. }
        | OpenError::OtherKind { .. } => {
            DatError::new(ReturnType::ProviderNotFound, Subtype::NameNotRegistered)
        }
        OpenError::InUse { .. }
        | OpenError::Closed { .. }
        | OpenError::Function { .. }
        | OpenError::HandedIn { .. }
        | OpenError::ByDescriptors { .. }
        | OpenError::Link { .. }
        | OpenError::Recorder { .. }
        | OpenError::Thread { .. } => {
            DatError::new(ReturnType::InsufficientResources, Subtype::ResourceDevice)
        }
        #[cfg(feature = "sim")]
        OpenError::Profile { .. } => {
            DatError::new(ReturnType::ProviderNotFound, Subtype::NameNotRegistered)
        }
        #[cfg(feature = "sim")]
        OpenError::Capture { .. } => {
            DatError::new(ReturnType::InsufficientResources, Subtype::ResourceDevice)
        }
        #[cfg(feature = "control")]
        OpenError::Control { .. } => {
            DatError::new(ReturnType::InsufficientResources, Subtype::ResourceDevice)
        }
        OpenError::BringUp { error, .. } => match error {
            MlxError::Dma(_) | MlxError::TooManyPages { .. } => {
                DatError::new(ReturnType::InsufficientResources, Subtype::ResourceMemory)
            }
            // The host failed, not the device, as in an error before the bring-up.
            MlxError::Function(_) | MlxError::Random(_) => {
                DatError::new(ReturnType::InsufficientResources, Subtype::ResourceDevice)
            }
            MlxError::Cmd(_)
            | MlxError::Bar(_)
            | MlxError::CommandInterface { .. }
            | MlxError::CommandQueue { .. }
            | MlxError::Initializing { .. }
            | MlxError::Silent { .. }
            | MlxError::Gone
            | MlxError::Issi { .. }
            | MlxError::NoIssi(_)
            | MlxError::NotKept(_)
            | MlxError::Missing(_)
            | MlxError::Nonsense { .. }
            | MlxError::QueueTooLarge { .. }
            | MlxError::Untranslatable { .. }
            | MlxError::TranslationTooLarge { .. }
            | MlxError::ConfiguredMac { .. }
            | MlxError::NoNetwork(_)
            | MlxError::TooManyGroups { .. }
            | MlxError::Address { .. }
            | MlxError::NoSuchGid { .. }
            | MlxError::TooManyGids { .. }
            | MlxError::NoInterrupts
            | MlxError::Unresolved { .. }
            | MlxError::Dead(_) => internal("the device refused"),
        },
    }
}

/// An identity of a device, by which openings are compared.
#[derive(PartialEq, Eq)]
enum Device {
    Pci(PciAddress),
    Named(String),
}

impl Device {
    fn new(name: &str) -> Self {
        name.parse()
            .map_or_else(|_| Self::Named(name.to_owned()), Self::Pci)
    }
}

/// An open device with its instances.
struct Opening {
    device: Device,
    options: OpenOptions,
    adapter: crate::Adapter,
    siblings: Arc<Siblings>,
    /// Number of instances that are open or being closed.
    count: usize,
    /// Number of closes that have ended without a close, because the instance goes on.
    gone_on: u64,
}

static OPEN: Mutex<Vec<Opening>> = Mutex::new(Vec::new());
/// Condition variable, signalled when an instance has been closed.
static CLOSED: Condvar = Condvar::new();
/// Maximum time to wait for another thread's close, which normally takes less.
const PATIENCE: Duration = Duration::from_secs(10);

fn openings() -> MutexGuard<'static, Vec<Opening>> {
    OPEN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns whether an adapter that was opened with `has` satisfies the options `wants`. An option with its default
/// value requires nothing. Options of an instance are not compared.
fn serves(has: &OpenOptions, wants: &OpenOptions) -> bool {
    fn is_had<T: PartialEq>(has: &Option<T>, wanted: &Option<T>) -> bool {
        wanted.is_none() || wanted == has
    }
    let (simulated, wanted) = (&has.simulated, &wants.simulated);
    wants
        .hca
        .addresses
        .iter()
        .all(|address| has.hca.addresses.contains(address))
        && wants
            .hca
            .neighbours
            .iter()
            .all(|peer| has.hca.neighbours.contains(peer))
        && is_had(&has.hca.port_mtu, &wants.hca.port_mtu)
        // The adapter may have more QPs and vectors than the name asks for.
        && wants.hca.log_max_qp <= has.hca.log_max_qp
        && wants.hca.completion_vectors <= has.hca.completion_vectors
        && (wants.network == Participation::IfPossible || wants.network == has.network)
        && is_had(&has.handed_in, &wants.handed_in)
        && is_had(&has.memory, &wants.memory)
        && is_had(&has.control, &wants.control)
        && is_had(&has.recorder_folder, &wants.recorder_folder)
        && is_had(&simulated.mac, &wanted.mac)
        && is_had(&simulated.profile, &wanted.profile)
        && is_had(&simulated.link, &wanted.link)
        && is_had(&simulated.pcap, &wanted.pcap)
        && (!wanted.virtual_time || simulated.virtual_time)
}

/// Opens a device, or another instance of an open one.
///
/// # Errors
/// Those of [`ia_open`](crate::ia_open), of [`Adapter::instance`](crate::Adapter::instance) and of [`adopt`].
/// DAT_INVALID_HANDLE|EVD_ASYNC: an asynchronous EVD was given, but the device is not open.
pub(super) fn open(device: &str, wanted: Wanted) -> DatResult<(&'static Adapter, IaName)> {
    // Check this before the first lock: in a forked child the lock may be held by a thread that does not exist.
    guard()?;
    let mut options = OpenOptions::default();
    // DAT 1.2 has no network events, so they are off unless the name says `events=all`.
    options.ia.network_events = false;
    if let WantedEvd::New(qlen) = wanted.async_evd {
        options.ia.async_evd_min_qlen = qlen;
    }
    let (name, asked) = crate::name::parse(device, &options).map_err(dat_error)?;
    let key = Device::new(name);
    let mut openings = openings();
    let is_here = |one: &Opening| one.device == key && !one.is_elsewhere(&asked);
    let is_serving = |one: &Opening| is_here(one) && serves(&one.options, &asked);
    let find = |list: &Vec<Opening>| {
        let serving = list.iter().position(is_serving);
        serving.or_else(|| list.iter().position(is_here))
    };
    while let Some(at) = find(&openings) {
        let one = &mut openings[at];
        if serves(&one.options, &asked) {
            if let Some(opened) = another(one, &asked, &wanted)? {
                return Ok(opened);
            }
        } else if !one.siblings.is_empty() {
            let name = one.adapter.name().to_owned();
            return Err(dat_error(OpenError::InUse { name }));
        }
        let (siblings, gone_on) = (Arc::clone(&one.siblings), one.gone_on);
        let is_closing = |one: &Opening| one.is(&siblings) && one.gone_on == gone_on;
        let closing = |openings: &mut Vec<Opening>| openings.iter().any(is_closing);
        let waited = CLOSED.wait_timeout_while(openings, PATIENCE, closing);
        let (list, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
        openings = list;
        if timeout.timed_out() {
            break;
        }
    }
    if let WantedEvd::This(_) = wanted.async_evd {
        return Err(handle_error(Subtype::HandleEvdAsync));
    }
    let siblings = Siblings::new()?;
    let ia = crate::ia_open(device, &options).map_err(dat_error)?;
    let opened = crate::Adapter::of(&ia);
    let options = with_facts(asked, &ia);
    let (adapter, first) = adopt(ia, &wanted, Arc::clone(&siblings))?;
    openings.push(Opening {
        device: key,
        options,
        adapter: opened,
        siblings,
        count: 1,
        gone_on: 0,
    });
    Ok((adapter, first))
}

/// Fills in the number of QPs, the MTU and the network participation that the device has, if the name did not give
/// them. Later names may then give these values.
fn with_facts(mut asked: OpenOptions, ia: &Ia) -> OpenOptions {
    // Queue pairs 0 and 1 are not for endpoints.
    let queue_pairs = ia.query().ia.max_eps.saturating_add(2);
    asked.hca.log_max_qp = asked.hca.log_max_qp.or(Some(queue_pairs.ilog2()));
    let mtu = u16::try_from(ia.provider().hca().port().ip_mtu()).ok();
    asked.hca.port_mtu = asked.hca.port_mtu.or(mtu);
    if matches!(ia.provider().network_state(), NetworkState::Joined) {
        asked.network = Participation::Required;
    }
    asked
}

/// Opens another instance of an open device. Returns `None` if the device is being closed.
fn another(
    one: &mut Opening,
    asked: &OpenOptions,
    wanted: &Wanted,
) -> DatResult<Option<(&'static Adapter, IaName)>> {
    let given = match wanted.async_evd {
        WantedEvd::This(evd) => Some(evd),
        WantedEvd::New(_) | WantedEvd::Exists => None,
    };
    one.siblings.start_background()?;
    given.map_or(Ok(()), |evd| one.siblings.lend(evd))?;
    let made = match one.adapter.instance(asked.ia) {
        Ok(ia) => adopt(ia, wanted, Arc::clone(&one.siblings)).map(Some),
        Err(OpenError::Closed { .. }) => Ok(None),
        Err(error) => Err(dat_error(error)),
    };
    if let Some(evd) = given {
        one.siblings.end_lending(evd);
    }
    one.count += usize::from(matches!(made, Ok(Some(_))));
    made
}

impl Opening {
    /// Returns whether the options name a simulated function of another fabric or wire.
    fn is_elsewhere(&self, asked: &OpenOptions) -> bool {
        let (has, wanted) = (&self.options.simulated, &asked.simulated);
        let is_virtual = wanted.virtual_time && !has.virtual_time;
        is_virtual || wanted.link.is_some() && wanted.link != has.link
    }

    fn is(&self, siblings: &Arc<Siblings>) -> bool {
        Arc::ptr_eq(&self.siblings, siblings)
    }
}

/// Gives an IA to C: registers it as one of the instances in `siblings`.
///
/// # Errors
/// DAT_INSUFFICIENT_RESOURCES: the process has no handle or no eventfd left. Those of [`guard`]. The IA has been
/// closed.
pub(super) fn adopt(
    ia: Ia,
    wanted: &Wanted,
    siblings: Arc<Siblings>,
) -> DatResult<(&'static Adapter, IaName)> {
    let prepared = || {
        guard()?;
        Ok((Reserved::<IaName>::new()?, siblings::interrupt()?))
    };
    let (reserved, notify) = match prepared() {
        Ok(prepared) => prepared,
        Err(error) => {
            // The IA has no objects, so it can be closed. Errors of the teardown are logged.
            let _closed = crate::ia_close(ia, CloseFlags::Abrupt);
            return Err(error);
        }
    };
    let instance = Instance::new(&ia, &reserved, wanted, Arc::clone(&siblings));
    let name = instance.name;
    let adapter = Adapter::open(reserved, Open::new(ia, instance));
    join(adapter, name, &siblings, notify)?;
    Ok((adapter, name))
}

/// Adds an instance, which is in its slot, to the instances of its adapter.
///
/// # Errors
/// Those of [`Adapter::with_instance`].
pub(super) fn join(
    adapter: &'static Adapter,
    name: IaName,
    siblings: &Arc<Siblings>,
    notify: Interrupt,
) -> DatResult<()> {
    let siblings = Arc::clone(siblings);
    let sleep = adapter.with_instance(name, |open| {
        let given = open.async_evd(adapter);
        let is_lent = matches!(open.instance.async_evd, AsyncEvd::Given(_));
        let given = given.filter(|_| is_lent);
        siblings.add(Opened { adapter, ia: name }, &open.ia, given, notify);
        Ok(Arc::downgrade(&open.sleep))
    })?;
    adapter.set_when_broken(Some(Box::new(move || {
        siblings.has_broken(name);
        // Threads that wait in the adapter return an error.
        if let Some(sleep) = sleep.upgrade() {
            sleep.kick();
        }
    })));
    Ok(())
}

/// An instance that is being closed or parked. Dropping this value records the end and wakes waiting threads.
pub(super) struct Closing(Option<Arc<Siblings>>);

impl Closing {
    pub(super) fn new(instance: &Instance) -> Self {
        instance.siblings.remove(instance.name);
        Self(Some(Arc::clone(&instance.siblings)))
    }

    /// Ends the close of an instance that goes on, as `ia`. The list of instances stays, because another thread may
    /// have opened an instance meanwhile. The caller adds the instance to the list again ([`join`]).
    pub(super) fn go_on(mut self, ia: &Ia) {
        let Some(siblings) = self.0.take() else {
            return;
        };
        for one in openings().iter_mut().filter(|one| one.is(&siblings)) {
            // A parking that was cancelled late has made the adapter anew.
            one.adapter = crate::Adapter::of(ia);
            one.gone_on += 1;
        }
        CLOSED.notify_all();
    }
}

impl Drop for Closing {
    fn drop(&mut self) {
        let Some(siblings) = self.0.take() else {
            return;
        };
        let mut openings = openings();
        let mut last = true;
        openings.retain_mut(|one| {
            if !one.is(&siblings) {
                return true;
            }
            one.count -= 1;
            last = one.count == 0;
            !last
        });
        drop(openings);
        if last {
            siblings.end();
        }
        CLOSED.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use driver::{DmaError, FunctionError, MemoryError};
    use nix::errno::Errno;

    use super::*;

    /// Every option of the adapter that a name gives is compared. `endpoints` and `vectors` are compared as minimums;
    /// `events` and `recorder=on` belong to the instance and are not compared.
    #[test]
    fn an_adapter_serves_a_name_that_wants_nothing_that_the_adapter_lacks() {
        let read = |options: &str| {
            let name = format!("sim:a{options}");
            let (_, read) = crate::name::parse(&name, &OpenOptions::default()).expect("options");
            read
        };
        let plain = read("");
        for (has, other) in [
            (",address=192.0.2.1", ",address=192.0.2.2"),
            (",address=192.0.2.1/24", ",address=192.0.2.1"),
            (
                ",neighbour=192.0.2.9/02:00:00:00:00:09",
                ",neighbour=192.0.2.9/02:00:00:00:00:08",
            ),
            (",network=on", ",network=off"),
            (",endpoints=100", ",endpoints=200"),
            (",vectors=2", ",vectors=3"),
            (",group=one", ",group=two"),
            (",group=one", ",group=one,container=vfio"),
            (",memory=one", ",memory=two"),
            (",recorder=/one", ",recorder=/two"),
            (",control=/one", ",control=/two"),
            (",mac=02:00:00:00:00:01", ",mac=02:00:00:00:00:02"),
            (",profile=connectx-5", ",profile=connectx-7"),
            (",mtu=1500", ",mtu=4200"),
            (",pcap=/one", ",pcap=/two"),
            (",link=unix:/one", ",link=unix:/two"),
        ] {
            let with = read(has);
            assert!(serves(&with, &with) && serves(&with, &plain), "{has}");
            assert!(!serves(&plain, &with), "{has}");
            assert!(!serves(&with, &read(other)), "{other} where {has} is");
        }
        let in_virtual_time = read(",time=virtual");
        assert!(serves(&in_virtual_time, &plain) && !serves(&plain, &in_virtual_time));
        assert!(serves(&plain, &read(",time=real,vectors=1")));
        assert!(serves(&plain, &read(",events=all,recorder=on")));
        assert!(serves(
            &read(",endpoints=200,vectors=3"),
            &read(",endpoints=100,vectors=2")
        ));
    }

    /// A bring-up that fails for lack of memory returns DAT_INSUFFICIENT_RESOURCES. Every step of a bring-up allocates,
    /// and can fail under RLIMIT_AS.
    #[test]
    fn a_bring_up_without_memory_lacks_resources_and_is_no_internal_error() {
        let no_memory = || MemoryError::System {
            call: "mmap",
            bytes: 4096,
            errno: Errno::ENOMEM,
        };
        let no_file = FunctionError::Memory {
            name: "sim:0".to_owned(),
            error: no_memory(),
        };
        for (error, subtype) in [
            (
                MlxError::Dma(DmaError::Memory(no_memory())),
                Subtype::ResourceMemory,
            ),
            (MlxError::Function(no_file), Subtype::ResourceDevice),
        ] {
            let name = "sim:0".to_owned();
            let told = number_of(OpenError::BringUp { name, error });
            assert_eq!(
                told,
                DatError::new(ReturnType::InsufficientResources, subtype)
            );
        }
        let name = "sim:0".to_owned();
        let error = MlxError::Gone;
        let told = number_of(OpenError::BringUp { name, error });
        assert_eq!(told.return_type(), ReturnType::InternalError);
    }
}
