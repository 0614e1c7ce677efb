//! Opening an adapter by name, and closing it. Module [`name`](crate::name) describes the names. Module `wired` has the
//! simulated functions whose wire leads to another process (`sim:A,link=unix:PATH`). Without feature `sim` there are no
//! simulated functions.

#[cfg(feature = "sim")]
mod capture;
#[cfg(feature = "sim")]
pub(crate) mod simulated;

mod adapter;
mod error;
mod options;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use dat_core::{CloseFlags, DatError};
use dat_mlx::{MlxProvider, ProviderConfig};
use driver::{DmaSpace, Function, FunctionError, PciAddress, VfioFds, caller_variable, handed_in};
use hw_mlx::{CloseError, CloseReport};
use thiserror::Error;

pub use adapter::Adapter;
use adapter::with_recorder_folder;
pub use error::OpenError;
pub use options::{HandedIn, OpenOptions, Simulated};

use crate::ia::Ia;
use crate::name::OnCard;

/// Reasons why an adapter was not closed, or not cleanly.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum NotClosed<T = Ia>
where
    T: core::fmt::Debug,
{
    /// A graceful close was asked for, but the adapter still has objects.
    #[error("{}", .0.error)]
    InUse(StillOpen<T>),
    /// The adapter is closed, but its device refused a step of the teardown.
    #[error(transparent)]
    Teardown(#[from] CloseError),
}

/// Default MTU of single simulated functions. RDMA packets then carry 4096 bytes, as on networks built for RDMA.
const MTU: u16 = 4200;

/// Opens an adapter by its [`name`](crate::name): opens the function, brings it up, and makes an IA of it.
///
/// Page: dat_ia_open.
///
/// # Errors
/// [`OpenError`], with the failed step and its numbers.
pub fn ia_open(name: &str, options: &OpenOptions) -> Result<Ia, OpenError> {
    let (name, mut options) = crate::name::parse(name, options)?;
    let (function, _fabric) = reach(name, &options)?;
    let device = name.strip_prefix("sim:");
    if device.is_some_and(|device| crate::name::on_card(device).1 == OnCard::Alone) {
        options.hca.port_mtu.get_or_insert(MTU);
    }
    let ia = bring_up(function, &options)?;
    match serve_control(&ia, &options) {
        Ok(()) => Ok(ia),
        Err(error) => {
            if let Err(error) = ia_close(ia, CloseFlags::Abrupt) {
                tracing::warn!(%error, "cannot close an adapter whose control socket failed");
            }
            Err(error)
        }
    }
}

/// Opens the control socket whose path the options give. If they give none, the environment variable `DAT_CONTROL`
/// gives the path; without either there is no socket. A set-user-ID program ignores the variable.
fn serve_control(ia: &Ia, options: &OpenOptions) -> Result<(), OpenError> {
    let asked = options.control.clone();
    let Some(path) = asked.or_else(|| caller_variable("DAT_CONTROL").map(PathBuf::from)) else {
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
        crate::control::serve(&adapter, &path, access).map(crate::control::Service::detach)
    });
    served
}

/// Opens the function of a name without an adapter. The caller must reset the function before using it.
///
/// # Errors
/// [`OpenError`], with the failed step and its numbers.
pub fn function_open(name: &str, options: &OpenOptions) -> Result<Function, OpenError> {
    let (name, options) = crate::name::parse(name, options)?;
    reach(name, &options).map(|(function, _fabric)| function)
}

/// Opens a PCI function by inherited VFIO descriptors.
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

/// A lock on the fabric of a function: while it is held, no other thread opens a function of that fabric.
type Held = Box<dyn std::any::Any>;

/// Opens the function of a device name, which has no options. While the returned fabric lock is held, no other thread
/// of this process opens a function of that fabric.
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
        // Refuse such a name: a mistyped function name would silently create an unlinked function.
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

/// Opens a function of a device that is implemented in this process.
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

/// I/O address spaces by the `memory` name that adapters were opened with.
static SPACES: Mutex<BTreeMap<String, DmaSpace>> = Mutex::new(BTreeMap::new());

/// Opens a function in the I/O address space that its `memory` option names. If no open function uses that name, the
/// function gets a new I/O address space.
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
    let config = ProviderConfig {
        hca: options.hca.clone(),
        network: options.network,
    };
    let provider = MlxProvider::open(function, config);
    let provider = provider.map_err(|error| match reached.lost() {
        // The device is lost. The error that says so is more useful than an error from registers that read as all ones.
        Some(error) => OpenError::Function { name, error },
        None => OpenError::BringUp { name, error },
    })?;
    #[cfg(feature = "control")]
    if let Some(folder) = folder {
        crate::recorder::keep(provider.hca().recorder(), folder);
    }
    Ok(with_recorder_folder(Ia::open(provider, ia)?))
}

/// The opened folder for dumps. Without feature `control` there is none.
#[cfg(feature = "control")]
type DumpFolder = crate::recorder::Shared;
#[cfg(not(feature = "control"))]
type DumpFolder = core::convert::Infallible;

/// Returns whether the environment enables recording (`DAT_RECORDER=1`), and opens the folder for dumps: that of the
/// options, or the value of `DAT_RECORDER` if the options name none and the value contains a `/`. A set-user-ID program
/// ignores the variable. A relative path is resolved once, because the working directory may change.
fn recorder(name: &str, options: &OpenOptions) -> Result<(bool, Option<DumpFolder>), OpenError> {
    let said = caller_variable("DAT_RECORDER").map(PathBuf::from);
    let folder = said
        .clone()
        .filter(|path| path.as_os_str().as_encoded_bytes().contains(&b'/'));
    let folder = options.recorder_folder.clone().or(folder);
    let on = said.is_some_and(|value| value.as_os_str() == "1");
    let Some(path) = folder else {
        return Ok((on, None));
    };
    #[cfg(feature = "control")]
    let opened = crate::recorder::shared(&path);
    #[cfg(not(feature = "control"))]
    let opened = Err(std::io::Error::new(
        std::io::ErrorKind::Unsupported,
        "this library was built without feature `control`",
    ));
    opened
        .map(|folder| (on, Some(folder)))
        .map_err(|error| OpenError::Recorder {
            name: name.to_owned(),
            path,
            error,
        })
}

/// An adapter whose close was refused. It is unchanged.
#[derive(Debug)]
pub struct StillOpen<T = Ia> {
    /// The adapter. It is in a mutex because an `Ia` is not `Sync`, and an error must be.
    ia: Mutex<Box<T>>,
    /// DAT_INVALID_STATE|IA_IN_USE.
    pub error: DatError,
}

impl<T> StillOpen<T> {
    pub(crate) fn new(ia: T, error: DatError) -> Self {
        let ia = Mutex::new(Box::new(ia));
        Self { ia, error }
    }

    /// Returns the adapter.
    #[must_use]
    pub fn into_ia(self) -> T {
        *self.ia.into_inner().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Closes an instance: frees its objects and its event queue. The close of the adapter's last instance also returns the
/// firmware pages and closes the function.
///
/// Page: dat_ia_close.
///
/// # Errors
/// [`NotClosed::InUse`]: a graceful close found objects; the error returns the adapter. [`NotClosed::Teardown`]: the
/// device refused a step, and the adapter is closed.
pub fn ia_close(ia: Ia, flags: CloseFlags) -> Result<CloseReport, NotClosed> {
    match ia.close(flags) {
        Ok(provider) => Ok(provider.close()?),
        Err(refused) => Err(NotClosed::InUse(StillOpen::new(refused.ia, refused.error))),
    }
}
