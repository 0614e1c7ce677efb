//! Opening an adapter by name, and closing it. What names say is told in [`name`](crate::name); a simulated function on
//! a wire to another process (`sim:A,link=unix:PATH`) is in module `wired`. Without feature `sim` there are none
//! of them.

#[cfg(feature = "sim")]
mod capture;
#[cfg(feature = "sim")]
pub(crate) mod simulated;

mod options;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use dat_core::{CloseFlags, DatError, IaConfig, Opened, ReturnType};
use driver::{DmaSpace, Function, FunctionError, HandedInError, PciAddress, VfioFds, handed_in};
use hw_mlx::provider::{MlxProvider, OpenedProvider};
use hw_mlx::{CloseError, CloseReport, MlxError};
use thiserror::Error;

use crate::Ia;
use crate::name::OnCard;
pub use options::{HandedIn, OpenOptions, Simulated};

/// Why an adapter could not be opened.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum OpenError {
    /// No backend understands the name.
    #[error(
        "no adapter is called {name:?}: {}names are sim:NAME, sim:CARD/pf, sim:CARD/vf0 to sim:CARD/vf7, vfio-user:SOCKET and a PCI address like 0000:3b:00.2 (DAT_PROVIDER_NOT_FOUND)",
        of_the_kernel(name)
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
    /// What passes on its wire cannot be written where that was asked for.
    #[cfg(feature = "sim")]
    #[error("{name}: pcap={}: {error}", path.display())]
    Capture {
        /// The adapter.
        name: String,
        /// The file.
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
    #[error("{error}")]
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
        error: Box<FunctionError>,
    },
    /// The adapter is simulated, and this library was built without the simulator.
    #[error(
        "{name}: this library was built without feature `sim`, the simulator (DAT_PROVIDER_NOT_FOUND)"
    )]
    NoSimulator {
        /// The adapter.
        name: String,
    },
    /// There is no such kind of device.
    #[cfg(feature = "sim")]
    #[error("{name}: profile {}", once(profile, error))]
    Profile {
        /// The adapter.
        name: String,
        /// The profile.
        profile: String,
        /// Why.
        error: Box<hw_sim_host::profile::BadProfile>,
    },
    /// The wire of a simulated function could not be laid.
    #[error("{name}: link {}", once(&path.display().to_string(), error))]
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

/// What is said of a name under which the kernel has a network device or an RDMA device.
fn of_the_kernel(name: &str) -> &'static str {
    /// How the kernel and systemd call them; a number follows.
    const BEGINNINGS: [&str; 10] = [
        "mlx5_", "mlx4_", "eth", "eno", "ens", "enp", "ib", "ibp", "rocep", "rdmap",
    ];
    let is_numbered = |beginning: &&str| {
        let rest = name.strip_prefix(beginning);
        rest.is_some_and(|rest| rest.starts_with(|first: char| first.is_ascii_digit()))
    };
    if BEGINNINGS.iter().any(is_numbered) {
        "that is a name of the kernel's, and `datctl devices` lists the PCI address of each card; "
    } else {
        ""
    }
}

/// What is said of something, which it may begin with already.
fn once(of: &str, said: impl std::fmt::Display) -> String {
    let said = said.to_string();
    if said.starts_with(of) {
        said
    } else {
        format!("{of}: {said}")
    }
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

/// The MTU of simulated functions by themselves: packets of RDMA carry 4096 bytes, as on networks made for it.
const MTU: u16 = 4200;

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
        error: Box::new(error),
    })
}

/// The fabric that a function lives in, while nobody else opens one of it.
type Held = Box<dyn std::any::Any>;

/// The function of a name without options. While the fabric it lives in is held, nobody else in this process opens one
/// of it.
fn reach(name: &str, options: &OpenOptions) -> Result<(Function, Option<Held>), OpenError> {
    if options.simulated != Simulated::default() && !name.starts_with("sim:") {
        return Err(OpenError::BadOption {
            name: name.to_owned(),
            option: format!("{:?}", options.simulated),
            why: "mac, profile, link, time and pcap are of simulated functions, sim:NAME"
                .to_owned(),
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
    let (_, place) = crate::name::on_card(simulated);
    if place == OnCard::Alone && simulated.contains('/') {
        // A slip in the name of a card's function would be a function of its own, linked with nobody.
        return Err(is_none());
    }
    let reached = Err(OpenError::NoSimulator {
        name: name.to_owned(),
    });
    #[cfg(feature = "sim")]
    let reached = reached.or_else(|_: OpenError| {
        let (function, fabric) = simulated::reach(name, simulated, options)?;
        Ok((function, Some(Box::new(fabric) as Held)))
    });
    reached
}

/// A device of this process, as a function.
#[cfg(feature = "sim")]
fn in_process<D: driver::Device + 'static>(
    function: std::sync::Arc<D>,
    options: &OpenOptions,
) -> Result<Function, OpenError> {
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
