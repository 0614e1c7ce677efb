//! Opening an adapter by name, and closing it. What names say is told in [`name`](crate::name); a simulated function on
//! a wire to another process (`sim:A,link=unix:PATH`) is in module `wired`.

mod options;

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::path::PathBuf;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError, Weak};

use dat_core::{CloseFlags, DatError, IaConfig, Opened, ReturnType};
use driver::{
    Device, DmaSpace, Function, FunctionError, HandedInError, PciAddress, VfioFds, handed_in,
};
use hw_mlx::provider::{MlxProvider, OpenedProvider};
use hw_mlx::{CloseError, CloseReport, MlxError};
use hw_sim::{
    CardConfig, Fault, LinkFaults, LinkState, Profile, Sim, SimCard, SimConfig, SimFunction,
    VfSettings,
};
use thiserror::Error;

use crate::Ia;
use crate::fabric::profile::{BadProfile, profile};
use crate::fabric::timed::{Moved, Mover, Timed};
use crate::name::OnCard;
use crate::wired::{Wired, WiredFunction};
pub use options::{HandedIn, OpenOptions, Simulated};

/// Virtual functions of a card of the fabric.
const VIRTUAL_FUNCTIONS: u16 = 8;

/// Why an adapter could not be opened.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum OpenError {
    /// No backend understands the name.
    #[error(
        "no adapter is called {name:?}: names are sim:NAME, sim:CARD/pf, sim:CARD/vf0 to sim:CARD/vf7, vfio-user:SOCKET and a PCI address like 0000:3b:00.2 (DAT_PROVIDER_NOT_FOUND)"
    )]
    NotFound {
        /// The name.
        name: String,
    },
    /// The name says something about the adapter that is not understood.
    #[error("{name}: {why} (DAT_PROVIDER_NOT_FOUND)")]
    BadOption {
        /// The whole name.
        name: String,
        /// The option.
        option: String,
        /// What is wrong with it, and what there would be.
        why: String,
    },
    /// A card's name was used for a function by itself, or the other way round.
    #[error(
        "{name}: sim:{card} was opened as {there} in this process; use one of its functions, or another name (DAT_PROVIDER_NOT_FOUND)"
    )]
    OtherKind {
        /// The adapter.
        name: String,
        /// The name before the function's.
        card: String,
        /// What it is.
        there: &'static str,
    },
    /// Somebody in this process has it open; a function has one driver.
    #[error(
        "{name} is open already, and a function has one driver at a time: `Adapter::instance` opens one more instance of it"
    )]
    InUse {
        /// The adapter.
        name: String,
    },
    /// It cannot be looked at where that was asked for.
    #[cfg(feature = "control")]
    #[error("{name}: {error}")]
    Control {
        /// The adapter.
        name: String,
        /// Why not.
        error: ::control::ServeError,
    },
    /// It was to be looked at from outside, and this library was built without that.
    #[error("{name},control={}: this library was built without feature `control` (DAT_PROVIDER_NOT_FOUND)", path.display())]
    NoControl {
        /// The adapter.
        name: String,
        /// Where.
        path: PathBuf,
    },
    /// What is recorded cannot be kept where that was asked for.
    #[error("{name}: recorder folder {}: {error}", path.display())]
    Recorder {
        /// The adapter.
        name: String,
        /// The folder.
        path: PathBuf,
        /// Why not.
        error: std::io::Error,
    },
    /// Its last instance has been closed.
    #[error("{name} is closed: its last instance is gone")]
    Closed {
        /// The adapter.
        name: String,
    },
    /// The function could not be reached.
    #[error("{name}: {error}")]
    Function {
        /// The adapter.
        name: String,
        /// Why.
        error: FunctionError,
    },
    /// A descriptor that was to be handed in is not there.
    #[error("{name}: {error}")]
    HandedIn {
        /// The adapter.
        name: String,
        /// Which descriptor, and which there are.
        error: HandedInError,
    },
    /// The function could not be reached by the descriptors that were handed in.
    #[error("{name}, by {descriptors}: {error}")]
    ByDescriptors {
        /// The adapter.
        name: String,
        /// Their names.
        descriptors: String,
        /// Why.
        error: FunctionError,
    },
    /// There is no such kind of device.
    #[error("{name}: profile {profile:?}: {error}")]
    Profile {
        /// The adapter.
        name: String,
        /// The profile.
        profile: String,
        /// Why.
        error: Box<BadProfile>,
    },
    /// The wire of a simulated function could not be laid.
    #[error("{name}: link {}: {error}", path.display())]
    Link {
        /// The adapter.
        name: String,
        /// The path.
        path: PathBuf,
        /// Why.
        error: std::io::Error,
    },
    /// The system starts no thread.
    #[error("{name}: a thread to look after it: {error}")]
    Thread {
        /// The adapter.
        name: String,
        /// Why.
        error: std::io::Error,
    },
    /// The device could not be brought up.
    #[error("{name}: bring-up: {error}")]
    BringUp {
        /// The adapter.
        name: String,
        /// Why.
        error: MlxError,
    },
    /// DAT refused.
    #[error(transparent)]
    Dat(#[from] DatError),
}

/// Why an adapter was not closed, or not well.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum NotClosed<T = Ia>
where
    T: core::fmt::Debug,
{
    /// It was to be closed gracefully, and there are objects in it.
    #[error("{}", .0.error)]
    InUse(StillOpen<T>),
    /// It is gone, but its device refused a step of that.
    #[error(transparent)]
    Teardown(#[from] CloseError),
}

/// An adapter that is open, for threads that want an instance of it each, and for a thread that looks after it while
/// they are busy ([`Adapter::attended`]).
///
/// An [`Ia`] is one thread's at a time, and it can be sent to another. The instances of an adapter have queues, objects
/// and a descriptor to sleep on of their own; a post, a poll and a dequeue share nothing with another instance. They
/// have in common the port and its addresses, memory (what was allocated through one can be registered in all), and the
/// connection manager. An adapter is closed with its last instance.
#[derive(Clone)]
pub struct Adapter {
    name: String,
    device: OpenedProvider,
    dat: Opened,
}

impl Adapter {
    /// The adapter of an instance.
    #[must_use]
    pub fn of(ia: &Ia) -> Self {
        Self {
            name: ia.provider().hca().name().to_owned(),
            device: ia.provider().opened(),
            dat: ia.opened(),
        }
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) const fn device(&self) -> &OpenedProvider {
        &self.device
    }

    pub(crate) const fn dat(&self) -> &Opened {
        &self.dat
    }

    /// Opens one more instance.
    ///
    /// # Errors
    /// [`OpenError::Closed`]; [`OpenError::BringUp`]: the device has no room for one more; DAT's refusal of `config`.
    pub fn instance(&self, config: IaConfig) -> Result<Ia, OpenError> {
        let closed = || OpenError::Closed {
            name: self.name.clone(),
        };
        let provider = self.device.instance().map_err(|error| OpenError::BringUp {
            name: self.name.clone(),
            error,
        })?;
        let made = self.dat.instance(provider.ok_or_else(closed)?, config);
        made.map(kept).map_err(|error| {
            // Its last instance was closed meanwhile.
            if error.return_type() == ReturnType::InvalidHandle {
                closed()
            } else {
                error.into()
            }
        })
    }
}

/// Functions keep their place, MAC and link for as long as the process lives, so that a name always means the same one.
/// One that no adapter has open holds no descriptor.
struct Fabric {
    /// In the machine's time.
    real: Linked,
    /// In virtual time.
    virtual_time: Linked,
    /// Those on a wire that leaves the process, each in a world of its own.
    wired: BTreeMap<String, KnownWired>,
}

/// Functions that are reached within this process.
struct Linked {
    /// The world of the first two cards.
    sim: Sim,
    /// While its time is the machine's and somebody has a function of it open.
    moved: Weak<Moved>,
    /// A function by itself is a card, too.
    cards: BTreeMap<String, Known>,
}

/// A card, and its world.
struct Known {
    card: SimCard,
    /// `None` for the first two, which share one.
    apart: Option<(Sim, Weak<Moved>)>,
}

impl Linked {
    fn new() -> Self {
        Self {
            sim: sim_by_itself(),
            moved: Weak::new(),
            cards: BTreeMap::new(),
        }
    }

    /// What has the time of a card's world go on.
    fn moved(&mut self, card: &str) -> std::io::Result<Arc<Moved>> {
        /// Moves all worlds.
        static MOVER: Mutex<Weak<Mover>> = Mutex::new(Weak::new());
        let apart = self.cards.get_mut(card).and_then(|it| it.apart.as_mut());
        let (sim, moved) = match apart {
            Some((sim, moved)) => (&*sim, moved),
            None => (&self.sim, &mut self.moved),
        };
        if let Some(moved) = moved.upgrade() {
            return Ok(moved);
        }
        let made = Moved::by(&MOVER, sim)?;
        *moved = Arc::downgrade(&made);
        Ok(made)
    }
}

/// The MTU of simulated functions by themselves: packets of RDMA carry 4096 bytes, as on networks made for it.
const MTU: u16 = 4200;

/// A function on a wire. It is there while an adapter has it open; what it is stays known.
struct KnownWired {
    path: PathBuf,
    mac: [u8; 6],
    function: Weak<WiredFunction>,
}

fn sim_by_itself() -> Sim {
    Sim::new(SimConfig {
        seed: 0,
        event_log: false,
    })
}

/// What `sim:` names live in.
static FABRIC: LazyLock<Mutex<Fabric>> = LazyLock::new(|| {
    Mutex::new(Fabric {
        real: Linked::new(),
        virtual_time: Linked::new(),
        wired: BTreeMap::new(),
    })
});

/// Opens an adapter by its [`name`](crate::name): reaches the function, brings it up, and makes an IA of it.
///
/// Page: dat_ia_open.
///
/// # Errors
/// [`OpenError`], with the step and the numbers.
pub fn ia_open(name: &str, options: &OpenOptions) -> Result<Ia, OpenError> {
    let (name, mut options) = crate::name::parse(name, options)?;
    let (function, _fabric) = reach(name, &options)?;
    let device = name.strip_prefix("sim:");
    if device.is_some_and(|device| crate::name::on_card(device).1 == OnCard::Alone) {
        options.hca.port_mtu.get_or_insert(MTU);
    }
    let ia = bring_up(function, &options)?;
    match looked_at(&ia, &options) {
        Ok(()) => Ok(ia),
        Err(error) => {
            if let Err(error) = ia_close(ia, CloseFlags::Abrupt) {
                tracing::warn!(%error, "an adapter that nobody can look at");
            }
            Err(error)
        }
    }
}

/// Serves the control socket that the options ask for, or else the environment.
fn looked_at(ia: &Ia, options: &OpenOptions) -> Result<(), OpenError> {
    let asked = options.control.clone();
    let Some(path) = asked.or_else(|| std::env::var_os("DAT_CONTROL").map(PathBuf::from)) else {
        return Ok(());
    };
    let adapter = Adapter::of(ia);
    let served = Err(OpenError::NoControl {
        name: adapter.name().to_owned(),
        path: path.clone(),
    });
    #[cfg(feature = "control")]
    let served = served.or_else(|_: OpenError| {
        let access = crate::control::Access::default();
        crate::control::serve(&adapter, &path, access).map(crate::control::Service::leave)
    });
    served
}

/// Reaches the function that a name stands for, without opening an adapter. Whoever drives it begins with a reset.
///
/// # Errors
/// [`OpenError`], with the step and the numbers.
pub fn function_open(name: &str, options: &OpenOptions) -> Result<Function, OpenError> {
    let (name, options) = crate::name::parse(name, options)?;
    reach(name, &options).map(|(function, _fabric)| function)
}

/// The PCI function whose files were handed in.
fn by_descriptors(
    name: &str,
    files: &HandedIn,
    options: &OpenOptions,
) -> Result<Function, OpenError> {
    if options.memory.is_some() {
        return Err(OpenError::BadOption {
            name: name.to_owned(),
            option: "memory with group".to_owned(),
            why: "a function that is handed in by descriptors has an I/O address space of its own, and no memory in common with others".to_owned(),
        });
    }
    let given = |descriptor: &String| {
        handed_in(descriptor).map_err(|error| OpenError::HandedIn {
            name: name.to_owned(),
            error,
        })
    };
    let fds = VfioFds {
        container: files.container.as_ref().map(given).transpose()?,
        group: given(&files.group)?,
        device: None,
    };
    Function::vfio_from_fds(name, fds).map_err(|error| OpenError::ByDescriptors {
        name: name.to_owned(),
        descriptors: match &files.container {
            Some(container) => format!("group={},container={container}", files.group),
            None => format!("group={}", files.group),
        },
        error,
    })
}

/// The function of a name without options. While the fabric it lives in is held, nobody else in this process opens one
/// of it.
fn reach(
    name: &str,
    options: &OpenOptions,
) -> Result<(Function, Option<MutexGuard<'static, Fabric>>), OpenError> {
    if options.simulated != Simulated::default() && !name.starts_with("sim:") {
        return Err(OpenError::BadOption {
            name: name.to_owned(),
            option: format!("{:?}", options.simulated),
            why: "mac, profile and link are of simulated functions, sim:NAME".to_owned(),
        });
    }
    if options.handed_in.is_some() && name.parse::<PciAddress>().is_err() {
        return Err(OpenError::BadOption {
            name: name.to_owned(),
            option: "group".to_owned(),
            why: "group and container are of PCI addresses".to_owned(),
        });
    }
    let failed = |error| OpenError::Function {
        name: name.to_owned(),
        error,
    };
    if let Some(socket) = name
        .strip_prefix("vfio-user:")
        .filter(|rest| !rest.is_empty())
    {
        let function = sharing(options, |space| match space {
            Some(space) => Function::vfio_user_in(socket, space),
            None => Function::vfio_user(socket),
        });
        return Ok((function.map_err(failed)?, None));
    }
    if let Some(files) = &options.handed_in {
        return Ok((by_descriptors(name, files, options)?, None));
    }
    if name.parse::<PciAddress>().is_ok() {
        let function = sharing(options, |space| match space {
            Some(space) => Function::vfio_in(name, space),
            None => Function::vfio(name),
        });
        return Ok((function.map_err(failed)?, None));
    }
    let is_none = || OpenError::NotFound {
        name: name.to_owned(),
    };
    let simulated = name.strip_prefix("sim:").filter(|rest| !rest.is_empty());
    let simulated = simulated.ok_or_else(is_none)?;
    let (card, place) = crate::name::on_card(simulated);
    if place == OnCard::Alone && simulated.contains('/') {
        // A slip in the name of a card's function would be a function of its own, linked with nobody.
        return Err(is_none());
    }
    let mut fabric = FABRIC.lock().unwrap_or_else(PoisonError::into_inner);
    let Fabric {
        real,
        virtual_time,
        wired,
    } = &mut *fabric;
    let is_virtual = options.simulated.virtual_time;
    let linked = if is_virtual { virtual_time } else { real };
    let Linked { sim, cards, .. } = linked;
    let number = cards.len();
    if is_virtual && options.simulated.link.is_some() {
        return Err(OpenError::BadOption {
            name: name.to_owned(),
            option: "time=virtual with link".to_owned(),
            why: "the process at the other end of a link lives in the machine's time".to_owned(),
        });
    }
    if options.simulated.link.is_some() && options.simulated.mac.is_none() {
        // The other process counts its functions from 0 too.
        return Err(OpenError::BadOption {
            name: name.to_owned(),
            option: "link without mac".to_owned(),
            why:
                "link needs mac=MAC, since the other process gives the MACs of this one to its own"
                    .to_owned(),
        });
    }
    let own_mac = options.simulated.mac.unwrap_or(mac(number));
    if let Some(path) = &options.simulated.link {
        let link = |error| OpenError::Link {
            name: name.to_owned(),
            path: path.clone(),
            error,
        };
        let known = wired.get(simulated);
        if let Some(known) = known
            && known.path != *path
        {
            let there = format!("its wire leads to {} already", known.path.display());
            return Err(link(std::io::Error::new(
                std::io::ErrorKind::AlreadyExists,
                there,
            )));
        }
        if let Some(function) = known.and_then(|known| known.function.upgrade()) {
            return Ok((driven(function, 0, options)?, Some(fabric)));
        }
        let mac = known.map_or(own_mac, |known| known.mac);
        let kind = kind_of(name, mac, &options.simulated)?;
        let function = Wired::lay(kind, path).map_err(link)?;
        let laid = KnownWired {
            path: path.clone(),
            mac,
            function: Arc::downgrade(&function),
        };
        wired.insert(simulated.to_owned(), laid);
        return Ok((driven(function, 0, options)?, Some(fabric)));
    }
    let virtual_functions = match place {
        OnCard::Alone => 0,
        OnCard::Physical | OnCard::Virtual(_) => VIRTUAL_FUNCTIONS,
    };
    let function = match (cards.get(card), place) {
        (Some(known), _) if known.card.virtual_functions() != usize::from(virtual_functions) => {
            return Err(OpenError::OtherKind {
                name: name.to_owned(),
                card: card.to_owned(),
                there: if known.card.virtual_functions() == 0 {
                    "a function by itself"
                } else {
                    "a card"
                },
            });
        }
        (_, OnCard::Virtual(index)) if index >= usize::from(virtual_functions) => {
            return Err(OpenError::NotFound {
                name: name.to_owned(),
            });
        }
        (known, _) => {
            let is_new = known.is_none();
            // The address of a virtual function is not the card's.
            let physical = match place {
                OnCard::Virtual(_) => mac(number),
                OnCard::Alone | OnCard::Physical => own_mac,
            };
            let kind = kind_of(&format!("sim:{card}"), physical, &options.simulated)?;
            if virtual_functions > 0 && kind.virtual_functions.is_none() {
                return Err(OpenError::Profile {
                    name: name.to_owned(),
                    profile: kind.generation,
                    error: Box::new(BadProfile::NoVirtualFunctions),
                });
            }
            // The first two are on a wire. Every other one is alone, and has a world and a time of its own.
            let apart = (number >= 2).then(sim_by_itself);
            let made = match cards.entry(card.to_owned()) {
                Entry::Occupied(known) => known.into_mut(),
                Entry::Vacant(place) => {
                    let sim = apart.as_ref().unwrap_or(sim);
                    let made = sim.try_add_card(&CardConfig::new(kind, virtual_functions));
                    let made = made.map_err(|error| OpenError::Function {
                        name: name.to_owned(),
                        error: FunctionError::Memory {
                            name: format!("sim:{card}"),
                            error,
                        },
                    })?;
                    place.insert(Known {
                        card: made,
                        apart: apart.map(|sim| (sim, Weak::new())),
                    })
                }
            };
            let function = function_of(&made.card, place, options.simulated.mac);
            if let [one, other] = &cards.values().collect::<Vec<_>>()[..]
                && is_new
            {
                let ends = [one, other].map(|known| known.card.physical());
                sim.connect(&ends[0], &ends[1], LinkFaults::default());
            }
            function.ok_or_else(|| OpenError::NotFound {
                name: name.to_owned(),
            })?
        }
    };
    // The table keeps one handle. It stays locked meanwhile: two openings at once count each other's.
    if is_virtual {
        return Ok((driven(function, 1, options)?, Some(fabric)));
    }
    unused(&function, 1)?;
    let moved = linked.moved(card).map_err(|error| OpenError::Thread {
        name: name.to_owned(),
        error,
    })?;
    Ok((
        driven(Timed::before(function, moved), 0, options)?,
        Some(fabric),
    ))
}

/// What can be done to a simulated function of this process from outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deed {
    /// The link of a virtual function is disabled by its administrator, or left to follow the wire again; of any other
    /// function the cable is pulled, or put back.
    Link(bool),
    /// It is reset, whoever has it open.
    Reset,
    /// The system wants it back from its driver.
    WantBack,
}

/// Does something to a simulated function of this process that an adapter has been opened by: what for a real one
/// people do at the cable, and the kernel by sysfs. False if there is no such function, or it is on a wire of its own
/// (`link=`).
pub fn do_to_simulated(name: &str, deed: Deed) -> bool {
    let fabric = FABRIC.lock().unwrap_or_else(PoisonError::into_inner);
    let device = name.split(',').next().unwrap_or(name);
    let Some((card, place)) = device.strip_prefix("sim:").map(crate::name::on_card) else {
        return false;
    };
    let known = [&fabric.real, &fabric.virtual_time]
        .into_iter()
        .find_map(|linked| Some((linked, linked.cards.get(card)?)));
    let Some((linked, known)) = known else {
        return false;
    };
    let sim = known.apart.as_ref().map_or(&linked.sim, |(sim, _)| sim);
    let card = &known.card;
    let Some(function) = function_of(card, place, None) else {
        return false;
    };
    match (deed, place) {
        (Deed::Link(up), OnCard::Virtual(index)) => {
            let Some(before) = card.vf(index) else {
                return false;
            };
            let state = if up {
                LinkState::Follow
            } else {
                LinkState::Down
            };
            return card.set_vf(index, VfSettings { state, ..before });
        }
        (Deed::Link(true), OnCard::Alone | OnCard::Physical) => {
            sim.inject(&function, &Fault::LinkUp);
        }
        (Deed::Link(false), OnCard::Alone | OnCard::Physical) => {
            sim.inject(&function, &Fault::LinkDown);
        }
        (Deed::Reset, _) => function.reset(),
        (Deed::WantBack, _) => sim.inject(&function, &Fault::WantedBack),
    }
    true
}

/// A function of a card. A virtual one is given an address if there is one to give.
fn function_of(card: &SimCard, place: OnCard, mac: Option<[u8; 6]>) -> Option<Arc<SimFunction>> {
    let OnCard::Virtual(index) = place else {
        return Some(card.physical());
    };
    if mac.is_some() {
        let before = card.vf(index)?;
        card.set_vf(index, VfSettings { mac, ..before });
    }
    card.virtual_function(index)
}

/// What a simulated function of that name is made as.
fn kind_of(name: &str, mac: [u8; 6], simulated: &Simulated) -> Result<Profile, OpenError> {
    let Some(wanted) = &simulated.profile else {
        // What every card has, by which its address is found.
        return Ok(Profile::named(name, mac).ethernet());
    };
    profile(wanted)
        .map(|kind| kind.called(name, mac))
        .map_err(|error| OpenError::Profile {
            name: name.to_owned(),
            profile: wanted.clone(),
            error: Box::new(error),
        })
}

/// A locally administered address that names the function's place in its fabric.
#[must_use]
pub const fn mac(number: usize) -> [u8; 6] {
    // CAST: a fabric of more than 2^16 functions repeats addresses.
    #[expect(
        clippy::cast_possible_truncation,
        reason = "a fabric has a handful of functions"
    )]
    let [high, low] = (number as u16 + 1).to_be_bytes();
    [0x02, 0x00, 0x5e, 0x10, high, low]
}

/// Opens a simulated function. `kept` handles on it exist besides the one given; any more is a driver's.
pub(crate) fn open_function(
    function: Arc<SimFunction>,
    kept: usize,
    options: &OpenOptions,
) -> Result<Ia, OpenError> {
    open_device(function, kept, options)
}

/// Opens a function that lives in this process, simulated or not. `kept` is as for [`open_function`].
pub(crate) fn open_device<D: Device + 'static>(
    function: Arc<D>,
    kept: usize,
    options: &OpenOptions,
) -> Result<Ia, OpenError> {
    bring_up(driven(function, kept, options)?, options)
}

/// A function has one driver: nobody has more handles on it than `kept`, and the one here.
fn unused<D: Device>(function: &Arc<D>, kept: usize) -> Result<(), OpenError> {
    if Arc::strong_count(function) > kept + 1 {
        return Err(OpenError::InUse {
            name: function.name().to_owned(),
        });
    }
    Ok(())
}

/// A device of this process that nobody drives, as a function.
fn driven<D: Device + 'static>(
    function: Arc<D>,
    kept: usize,
    options: &OpenOptions,
) -> Result<Function, OpenError> {
    unused(&function, kept)?;
    let name = function.name().to_owned();
    let opened = sharing(options, |space| match space {
        Some(space) => Function::in_process_in(function, space),
        None => Function::in_process(function),
    });
    opened.map_err(|error| OpenError::Function { name, error })
}

/// I/O address spaces by the names that adapters were opened with.
static SPACES: Mutex<BTreeMap<String, DmaSpace>> = Mutex::new(BTreeMap::new());

/// Opens a function in the I/O address space of the name in its options: the first of that name in one of its own.
fn sharing(
    options: &OpenOptions,
    open: impl FnOnce(Option<&DmaSpace>) -> Result<Function, FunctionError>,
) -> Result<Function, FunctionError> {
    let Some(name) = &options.memory else {
        return open(None);
    };
    let mut spaces = SPACES.lock().unwrap_or_else(PoisonError::into_inner);
    spaces.retain(|_, space| space.is_open());
    let function = open(spaces.get(name))?;
    spaces.insert(name.clone(), function.dma_space());
    Ok(function)
}

fn bring_up(function: Function, options: &OpenOptions) -> Result<Ia, OpenError> {
    let name = function.name().to_owned();
    let mut ia = options.ia;
    #[allow(unused_variables, reason = "a folder takes feature `control`")]
    let (recorded, folder) = recorder(&name, options)?;
    ia.recorder |= recorded;
    let reached = function.clone();
    let provider = MlxProvider::open(function, options.hca.clone());
    let provider = provider.map_err(|error| match reached.lost() {
        // What a device that is gone reads as says less.
        Some(error) => OpenError::Function { name, error },
        None => OpenError::BringUp { name, error },
    })?;
    #[cfg(feature = "control")]
    if let Some(folder) = folder.and_then(|path| crate::recorder::shared(&path).ok()) {
        // It was opened before, and is known.
        crate::recorder::keep(provider.hca().recorder(), folder);
    }
    Ok(kept(Ia::open(provider, ia)?))
}

/// Whether the environment has instances record, and where what they record is kept: where the options ask for it, or
/// else the environment.
fn recorder(name: &str, options: &OpenOptions) -> Result<(bool, Option<PathBuf>), OpenError> {
    let said = std::env::var_os("DAT_RECORDER").map(PathBuf::from);
    let folder = said
        .clone()
        .filter(|path| path.as_os_str().as_encoded_bytes().contains(&b'/'));
    let folder = options.recorder_folder.clone().or(folder);
    let on = said.is_some_and(|value| value.as_os_str() == "1");
    let Some(path) = folder else {
        return Ok((on, None));
    };
    let opened = Err(std::io::Error::new(
        std::io::ErrorKind::Unsupported,
        "this library was built without feature `control`",
    ));
    #[cfg(feature = "control")]
    let opened = opened.or_else(|_: std::io::Error| crate::recorder::shared(&path).map(drop));
    match opened {
        Ok(()) => Ok((on, Some(path))),
        Err(error) => Err(OpenError::Recorder {
            name: name.to_owned(),
            path,
            error,
        }),
    }
}

/// Has an instance keep what it records, if its adapter does.
fn kept(ia: Ia) -> Ia {
    #[cfg(feature = "control")]
    let ia = crate::recorder::kept_by(ia);
    ia
}

/// An adapter that a refused close has left as it was.
#[derive(Debug)]
pub struct StillOpen<T = Ia> {
    /// An adapter is one thread's at a time, and an error may be looked at by many.
    ia: Mutex<Box<T>>,
    /// DAT_INVALID_STATE|IA_IN_USE.
    pub error: DatError,
}

impl<T> StillOpen<T> {
    pub(crate) fn new(ia: T, error: DatError) -> Self {
        let ia = Mutex::new(Box::new(ia));
        Self { ia, error }
    }

    /// The adapter.
    #[must_use]
    pub fn into_ia(self) -> T {
        *self.ia.into_inner().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Closes an adapter: its objects, event queues and firmware pages, and then the function itself.
///
/// Page: dat_ia_close.
///
/// # Errors
/// [`NotClosed::InUse`] gives the adapter back: a graceful close found objects. [`NotClosed::Teardown`]: the device
/// refused a step, and the adapter is gone.
pub fn ia_close(ia: Ia, flags: CloseFlags) -> Result<CloseReport, NotClosed> {
    match ia.close(flags) {
        Ok(provider) => Ok(provider.close()?),
        Err(refused) => Err(NotClosed::InUse(StillOpen::new(refused.ia, refused.error))),
    }
}
