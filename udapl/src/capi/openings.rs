//! Which devices C programs have open. Opening one of them once more makes another instance of the same adapter
//! ([`instance`](super::instance)); any other is opened.
//!
//! A device is known by what its name says once the registry has been asked, however it is spelled. What else the name says
//! ([`name`](crate::name)) must be what the first opening has asked for, or less: an adapter does not change its addresses
//! for another opening. If it is more, or the device is open elsewhere, in Rust or in another process, the answer is that of
//! the device: it is in use.
//!
//! Openings are made one at a time, so that two at once of one device are two instances; who opens a device that is just
//! being closed waits until it is.

use core::time::Duration;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use dat_core::{CloseFlags, DatResult, Subtype};
use driver::PciAddress;

use super::adapter::{Adapter, Open, handle_error};
use super::fork;
use super::ia::dat_error;
use super::instance::{Instance, Wanted, WantedEvd};
use super::table::{IaName, Reserved};
use crate::{Ia, OpenOptions};

/// A device.
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

/// A device that is open.
struct Opening {
    device: Device,
    options: OpenOptions,
    adapter: &'static Adapter,
    first: IaName,
}

static OPEN: Mutex<Vec<Opening>> = Mutex::new(Vec::new());
/// One of them has been closed.
static CLOSED: Condvar = Condvar::new();
/// Longer than it takes to close a device.
const PATIENCE: Duration = Duration::from_secs(10);

fn openings() -> MutexGuard<'static, Vec<Opening>> {
    OPEN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether an adapter that was opened with `has` is what `wants` asks for.
fn serves(has: &OpenOptions, wants: &OpenOptions) -> bool {
    let (simulated, wanted) = (&has.simulated, &wants.simulated);
    wants.hca.gids.iter().all(|gid| has.hca.gids.contains(gid))
        && wants
            .hca
            .neighbours
            .iter()
            .all(|peer| has.hca.neighbours.contains(peer))
        && (wanted.mac.is_none() || wanted.mac == simulated.mac)
        && (wanted.link.is_none() || wanted.link == simulated.link)
}

/// Opens a device, or an open one once more.
///
/// # Errors
/// Those of [`ia_open`](crate::ia_open), of [`Open::join`] and of [`fork::guard`]. DAT_INVALID_HANDLE|EVD_ASYNC: an asynchronous EVD was given, and
/// the device is not open.
pub(super) fn open(device: &str, wanted: Wanted) -> DatResult<(&'static Adapter, IaName)> {
    // Before the first lock: in a child of fork its holder may be gone.
    fork::guard()?;
    let mut options = OpenOptions::default();
    if let WantedEvd::New(qlen) = wanted.async_evd {
        options.ia.async_evd_min_qlen = qlen;
    }
    let (name, asked) = crate::name::parse(device, &options).map_err(dat_error)?;
    let key = Device::new(name);
    let mut openings = openings();
    while let Some(one) = openings.iter().find(|one| one.device == key) {
        let (adapter, first) = (one.adapter, one.first);
        let serves = serves(&one.options, &asked);
        let reserved = Reserved::new()?;
        let joined = adapter.of_opening(first, |open| {
            serves
                .then(|| open.join(adapter, reserved, &wanted))
                .transpose()
        })?;
        match joined {
            Some(Some(ia)) => return Ok((adapter, ia)),
            Some(None) => break,
            None => {}
        }
        let closing = |openings: &mut Vec<Opening>| openings.iter().any(|one| one.first == first);
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
    let ia = crate::ia_open(device, &options).map_err(dat_error)?;
    let (adapter, first) = adopt(ia, &wanted)?;
    openings.push(Opening {
        device: key,
        options: asked,
        adapter,
        first,
    });
    Ok((adapter, first))
}

/// Makes an adapter of an IA.
///
/// # Errors
/// DAT_INSUFFICIENT_RESOURCES: the process has no handle left, or those of [`fork::guard`]; the IA has been closed.
pub(super) fn adopt(ia: Ia, wanted: &Wanted) -> DatResult<(&'static Adapter, IaName)> {
    let reserved = match fork::guard().and_then(|()| Reserved::<IaName>::new()) {
        Ok(reserved) => reserved,
        Err(error) => {
            // Nothing is in it; what the teardown has to say is in the log.
            let _closed = crate::ia_close(ia, CloseFlags::Abrupt);
            return Err(error);
        }
    };
    let instance = Instance::new(&ia, &reserved, wanted);
    let first = instance.name;
    let adapter = Adapter::open(reserved, Open::new(ia, instance));
    adapter.turn_of(first, |open| {
        open.settle_first(adapter, wanted.async_evd);
        Ok(())
    })?;
    Ok((adapter, first))
}

/// A device that is being closed; closed when this is dropped.
pub(super) struct Closing(pub(super) IaName);

impl Drop for Closing {
    fn drop(&mut self) {
        openings().retain(|one| one.first != self.0);
        CLOSED.notify_all();
    }
}
