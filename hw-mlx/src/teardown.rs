//! Teardown: from a function that carries traffic to one that holds no resources.
//!
//! The steps are those of bring-up in reverse (Linux `mlx5/core/main.c`, `pagealloc.c` `mlx5_reclaim_startup_pages`):
//! clear the addresses, withdraw the MAC, switch RoCE off, switch the port off if bring-up switched it on, free the
//! counter set, destroy the event queues (the one for commands last, after switching to polling), free the doorbell
//! pages, TEARDOWN_HCA, take all pages back, DISABLE_HCA, bus mastering off.
//!
//! If a step fails, its error is recorded and the other steps are still done. The aim is that the device no longer uses
//! our memory, and switching bus mastering off achieves that even if the device does not answer. All steps together
//! have the time limit of one command; after it no more commands are sent. Pages that a dead device never returned are
//! freed all the same if bus mastering is off, and are reported as not returned. If bus mastering cannot be switched
//! off, and a reset fails too, all memory of the function is leaked.

use std::time::Duration;

use thiserror::Error;

use crate::cmd::SlotClass;
use crate::control::{Commands, Control};
use crate::error::{CmdError, DeadCause, MlxError};
use crate::event::FunctionId;
use crate::gid;
use crate::instance::Shared;
use crate::pages::{Pages, TAKE_PAGES};
use crate::vport;
use mlx_prm::{DeallocQCounterIn, DeallocUarIn, DestroyEqIn, DisableHcaIn, TeardownHcaIn};

/// TEARDOWN_HCA profile: the firmware finishes its pending work first.
const GRACEFUL: u32 = 0;
const RECLAIM_PAUSE: Duration = Duration::from_millis(1);

/// Report of closing an instance. The last instance also closes the function.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CloseReport {
    /// Number of instances that still have the function open. If it is not 0, the function was not closed, and the
    /// numbers of pages and objects are 0.
    pub instances_left: usize,
    /// Number of pages that the firmware was given.
    pub pages_given: u64,
    /// Number of pages that the firmware returned.
    pub pages_returned: u64,
    /// Number of pages that the firmware still held. They were freed if the device can no longer access memory.
    pub pages_not_returned: usize,
    /// Number of page requests that were refused.
    pub page_requests_refused: u64,
    /// Kinds and numbers of objects that were not destroyed.
    pub objects_left: Vec<(&'static str, i64)>,
    /// Number of command slots that the device still held although their commands were given up.
    pub slots_quarantined: usize,
    /// Number of commands sent since the function was opened.
    pub commands: u64,
    /// Cause of the device's failure; `None` if it was alive.
    pub dead: Option<DeadCause>,
}

/// Error while closing. The device no longer uses our memory all the same, or the memory is leaked because the device
/// could not be stopped.
#[derive(Debug, Error)]
#[error("closing: {error}")]
pub struct CloseError {
    /// Report of the steps done.
    pub report: Box<CloseReport>,
    /// The first error.
    #[source]
    pub error: MlxError,
}

/// Records the first error.
struct First(Option<MlxError>);

impl First {
    fn note<T>(&mut self, what: &'static str, result: Result<T, CmdError>) {
        match result {
            Ok(_) => {}
            // The report states that the device is dead, so errors that follow from this are not recorded.
            Err(CmdError::Dead { .. }) => {}
            Err(error) => {
                tracing::warn!(what, %error, "closing");
                self.0.get_or_insert(error.into());
            }
        }
    }
}

/// Closes a function whose last instance has ended.
pub(crate) fn close(shared: Shared) -> Result<CloseReport, CloseError> {
    let _span = tracing::info_span!("close", function = shared.function.name()).entered();
    let mut first = First(None);
    let (mut control, gids, found) = shared.into_parts();
    let port = found.caps.port_number();
    let control = &mut control;
    // All steps together have one time limit.
    control.one_limit(true);

    for index in gids.indices().into_iter().rev() {
        first.note("address table", gid::clear_entry(control, index, port));
    }
    first.note("unicast list", vport::withdraw(control));
    if found.port.forwarding {
        first.note("forwarding table", vport::forget_mac(control));
    }
    first.note("RoCE off", vport::disable_roce(control));
    if found.port.switched_on {
        first.note("port off", vport::switch_off(control));
    }
    finish_page_requests(control);
    let objects = control.objects.left_besides(&[
        ("EQ", control.eqs.len() + control.spare.len()),
        ("UAR", control.spare.len()),
        ("queue counter", usize::from(control.counter_set.is_some())),
    ]);
    if let Some(set) = control.counter_set.take() {
        let mut input = DeallocQCounterIn::new();
        input.set_counter_set_id(set);
        first.note("queue counters", control.exec(&input));
    }
    let mut pages = Vec::new();
    for parts in std::mem::take(&mut control.spare) {
        pages.push(parts.uar_index);
        control.eqs.push(parts.eq);
    }
    destroy_eqs(control, &mut first);
    for page in pages {
        let mut input = DeallocUarIn::new();
        input.set_uar(page.get());
        first.note("doorbell page", control.exec(&input));
    }

    let mut input = TeardownHcaIn::new();
    input.set_profile(GRACEFUL);
    first.note("TEARDOWN_HCA", control.exec(&input));
    first.note("pages", reclaim(control));
    let mut input = DisableHcaIn::new();
    input.set_embedded_cpu_function(control.embedded_cpu);
    first.note("DISABLE_HCA", control.exec(&input));

    let lent = control.pages.lent();
    let quarantined = control.queue.quarantined();
    if control.bus_master {
        control.stop_dma();
    }
    if !control.bus_master {
        // The device can no longer write to the pages.
        control.pages.forget();
    }
    let counts = control.pages.counts();
    let report = CloseReport {
        instances_left: 0,
        pages_given: counts.given,
        pages_returned: counts.returned,
        pages_not_returned: lent,
        page_requests_refused: counts.refused,
        objects_left: objects,
        slots_quarantined: quarantined,
        commands: control.queue.posted(),
        dead: control.health.dead(),
    };
    tracing::info!(function = control.function.name(), ?report, "closed");
    match first.0 {
        None => Ok(report),
        Some(error) => Err(CloseError {
            report: Box::new(report),
            error,
        }),
    }
}

/// Waits for page commands under way, while the event queue that reports their completion still exists.
fn finish_page_requests(control: &mut Control) {
    let deadline = control.now() + control.timeout;
    while control.pages.busy() && control.health.dead().is_none() && control.now() < deadline {
        if !control.serve(None) {
            control.sleep(deadline);
            control.update_health(false);
        }
    }
}

/// Destroys the event queues. The one for command completions is last; its command is polled.
fn destroy_eqs(control: &mut Control, first: &mut First) {
    while let Some(eq) = control.eqs.pop() {
        if control.eqs.is_empty() {
            control.event_mode = false;
        }
        let mut input = DestroyEqIn::new();
        input.set_eq_number(eq.eqn().get());
        let result = control.exec(&input);
        if result.is_err() && control.bus_master {
            // The device may still write to this ring, so it is not freed until bus mastering is off.
            control.orphaned_rings.push(eq.into_ring());
        }
        first.note("event queue", result);
    }
}

/// Takes pages back until the firmware has none, or stops returning them.
pub(crate) fn reclaim(control: &mut Control) -> Result<(), CmdError> {
    for function in control.pages.holders() {
        reclaim_from(control, function)?;
    }
    Ok(())
}

fn reclaim_from(control: &mut Control, function: FunctionId) -> Result<(), CmdError> {
    let mut progress = control.now();
    loop {
        let lent = control.pages.lent_to(function);
        if lent == 0 || control.health.dead().is_some() {
            return Ok(());
        }
        let (input, room) = Pages::prepare_take(function, lent.min(TAKE_PAGES));
        let answer = control.exec_message(SlotClass::Pages, &input, room)?;
        let now = control.now();
        control.pages.finish_take(function, &answer);
        if control.pages.lent_to(function) < lent {
            progress = now;
        } else if now >= progress + control.reclaim_limit {
            tracing::warn!(?function, lent, "the firmware keeps its pages");
            return Ok(());
        } else {
            control.clock.wait(&[], now + RECLAIM_PAUSE);
        }
    }
}
