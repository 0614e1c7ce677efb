//! Teardown: from a function that carries traffic to one that holds no resources.
//!
//! Bring-up in reverse (Linux `mlx5/core/main.c`, `pagealloc.c` `mlx5_reclaim_startup_pages`): addresses, the MAC's
//! announcement and RoCE off, event queues destroyed with the one for commands last (before it, back to polling),
//! doorbell page, TEARDOWN_HCA, every page back, DISABLE_HCA, bus mastering off.
//!
//! If a step fails, the error is noted and the other steps are still done: the aim is that the memory is ours again,
//! and bus mastering off achieves that even with a device that does not answer. All of it together has the time limit
//! of one command; later steps are not sent after that. So the pages a dead device never returned are not leaked;
//! they are reported as not returned.

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

/// TEARDOWN_HCA profile: the firmware finishes its pending work.
const GRACEFUL: u32 = 0;
const RECLAIM_PAUSE: Duration = Duration::from_millis(1);

/// Report of closing an instance, and for the last one the function.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CloseReport {
    /// Number of instances that still have the function open. Unless it is 0, nothing was taken down, and the numbers
    /// of pages and objects are 0.
    pub instances_left: usize,
    /// Pages the firmware was given.
    pub pages_given: u64,
    /// Pages it returned.
    pub pages_returned: u64,
    /// Pages it still held; ours again because it can no longer reach memory.
    pub pages_not_returned: usize,
    /// Page requests we could not meet.
    pub page_requests_refused: u64,
    /// Kinds and numbers of objects that were not destroyed.
    pub objects_left: Vec<(&'static str, i64)>,
    /// Command slots that the device still held although their commands were given up.
    pub slots_quarantined: usize,
    /// Commands sent since the function was opened.
    pub commands: u64,
    /// Cause of the device's death, if it died.
    pub dead: Option<DeadCause>,
}

/// An error while closing. The memory is ours again all the same.
#[derive(Debug, Error)]
#[error("closing: {error}")]
pub struct CloseError {
    /// Report of the steps done.
    pub report: Box<CloseReport>,
    /// The first error.
    #[source]
    pub error: MlxError,
}

/// Keeps the first error.
struct First(Option<MlxError>);

impl First {
    fn note<T>(&mut self, what: &'static str, result: Result<T, CmdError>) {
        match result {
            Ok(_) => {}
            // The report says that it is dead; its other errors are not counted.
            Err(CmdError::Dead { .. }) => {}
            Err(error) => {
                tracing::warn!(what, %error, "closing");
                self.0.get_or_insert(error.into());
            }
        }
    }
}

/// Closes a function.
pub(crate) fn close(shared: Shared) -> Result<CloseReport, CloseError> {
    let _span = tracing::info_span!("close", function = shared.function.name()).entered();
    let mut first = First(None);
    let (mut control, gids, found) = shared.into_parts();
    let port = found.caps.port_number();
    let control = &mut control;
    // One time limit for all steps.
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
    settle_page_requests(control);
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
        // The device can no longer write them.
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

/// Lets page commands under way finish while there is still an event queue that reports them.
fn settle_page_requests(control: &mut Control) {
    let deadline = control.now() + control.timeout;
    while control.pages.busy() && control.health.dead().is_none() && control.now() < deadline {
        if !control.serve(None) {
            control.sleep(deadline);
            control.look_after_health(false);
        }
    }
}

/// Destroys the event queues; the one for command completions goes last, by polling.
fn destroy_eqs(control: &mut Control, first: &mut First) {
    while let Some(eq) = control.eqs.pop() {
        if control.eqs.is_empty() {
            control.event_mode = false;
        }
        let mut input = DestroyEqIn::new();
        input.set_eq_number(eq.eqn().get());
        let result = control.exec(&input);
        if result.is_err() && control.bus_master {
            // The device may still write this ring: it is not freed until bus mastering is off.
            control.orphaned_rings.push(eq.into_ring());
        }
        first.note("event queue", result);
    }
}

/// Takes pages back until the firmware has none.
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
