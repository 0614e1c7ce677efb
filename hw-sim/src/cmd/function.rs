//! Commands for the function as a whole: enabling, pages, start and teardown.

use super::{Cmd, Outcome, Refusal, output, refuse};
use crate::card::seat::{PHYSICAL, Seat};
use crate::card::{CardEvent, Life};
use crate::nic::Stage;
use crate::pages::{FirmwarePages, GiveError, TakeFinding};
use crate::subnet::IEEE_MELLANOX;
use mlx_prm::{
    DisableHcaIn, DisableHcaOut, EnableHcaIn, EnableHcaOut, HealthSyndrome, InitHcaIn, InitHcaOut,
    ManagePagesIn, ManagePagesOut, NopOut, QueryAdapterOut, QueryIssiOut, QueryLagOut,
    QueryPagesIn, QueryPagesOut, SetDriverVersionOut, SetIssiIn, SetIssiOut, TeardownHcaIn,
    TeardownHcaOut,
};
use zerocopy::IntoBytes;

/// Teardown profiles (`profile` of TEARDOWN_HCA).
const GRACEFUL: u32 = 0;
const FORCE: u32 = 1;

/// Returns the function that a command names: the commanding function, which is number 0, or a virtual function of
/// its card. There is no embedded CPU.
fn named_function(cmd: &Cmd<'_>, embedded_cpu: bool, function_id: u32) -> Result<Seat, Refusal> {
    match (embedded_cpu, function_id) {
        (false, 0) => Ok(cmd.nic.seat),
        (false, number) => virtual_function(cmd, number),
        (true, number) => Err(refuse!(
            BAD_RESOURCE,
            "no such function",
            "{number:#x} of an embedded CPU"
        )),
    }
}

/// Returns a virtual function of the card, if this function is its manager. A function's number is that of its vport
/// (Linux `include/linux/mlx5/vport.h`).
pub(super) fn virtual_function(cmd: &Cmd<'_>, number: u32) -> Result<Seat, Refusal> {
    let own = cmd.nic.seat;
    let vport = u16::try_from(number).ok().filter(|&vport| {
        let manages = !own.is_virtual() && cmd.nic.caps.general.vport_group_manager();
        manages && vport != PHYSICAL && cmd.env.card(own).vport(vport).is_some()
    });
    let Some(vport) = vport else {
        return Err(refuse!(
            BAD_RESOURCE,
            "no such function",
            "{number:#x}, asked for by vport {}",
            own.vport
        ));
    };
    Ok(Seat {
        card: own.card,
        vport,
    })
}

/// Refuses a command that is out of order. A function's own ENABLE_HCA is the first command of all. The manager
/// sends ENABLE_HCA for a virtual function after its own INIT_HCA.
pub(super) fn check_stage(own: bool, wanted: bool) -> Result<(), Refusal> {
    if own != wanted {
        return Err(refuse!(BAD_SYS_STATE, "not at this stage of bring-up"));
    }
    Ok(())
}

/// Boots a virtual function (Linux `sriov.c` `mlx5_device_enable_sriov`), as soon as the function has its memory. A
/// second ENABLE_HCA is refused. This was observed for sub-functions, and is inferred for virtual functions.
fn enable_virtual(cmd: &mut Cmd<'_>, seat: Seat) -> Result<(), Refusal> {
    check_life_state(cmd, seat, cmd.env.vport(seat).life == Life::Disabled)?;
    let pages = cmd.env.card(seat).rules.virtual_function_pages;
    if pages == 0 {
        run_virtual(cmd, seat);
        return Ok(());
    }
    cmd.env.vport_mut(seat).life = Life::WaitingForPages;
    cmd.nic
        .request_pages_of(cmd.env, seat.vport, i32::from(pages));
    Ok(())
}

/// Starts a virtual function that has its memory.
fn run_virtual(cmd: &mut Cmd<'_>, seat: Seat) {
    let vport = cmd.env.vport_mut(seat);
    vport.life = Life::Running;
    vport.needs_pages = false;
    let function = vport.function;
    cmd.env
        .card_events
        .push_back((function, CardEvent::Enabled(true)));
}

/// Disables a virtual function, whatever its driver does, and requests the return of its memory. Linux waits for the
/// return (`pagealloc.c` `mlx5_wait_for_pages`).
fn disable_virtual(cmd: &mut Cmd<'_>, seat: Seat) -> Result<(), Refusal> {
    check_life_state(cmd, seat, cmd.env.vport(seat).life != Life::Disabled)?;
    let vport = cmd.env.vport_mut(seat);
    vport.life = Life::Disabled;
    let function = vport.function;
    cmd.env
        .card_events
        .push_back((function, CardEvent::Enabled(false)));
    let held = cmd
        .nic
        .pages_of
        .get(&seat.vport)
        .map_or(0, FirmwarePages::pages_not_offered);
    if held > 0 {
        let back = i32::try_from(held).unwrap_or(i32::MAX);
        cmd.nic.request_pages_of(cmd.env, seat.vport, -back);
    }
    Ok(())
}

fn check_life_state(cmd: &Cmd<'_>, seat: Seat, fits: bool) -> Result<(), Refusal> {
    if !fits {
        return Err(refuse!(
            BAD_RES_STATE,
            "function is in that state already",
            "{:?} {}",
            cmd.env.vport(seat).life,
            seat.vport
        ));
    }
    Ok(())
}

pub(super) fn enable_hca(cmd: &mut Cmd<'_>) -> Outcome {
    let input: EnableHcaIn = cmd.read();
    let seat = named_function(cmd, input.embedded_cpu_function(), input.function_id())?;
    check_stage(seat == cmd.nic.seat, cmd.nic.stage == Stage::Reset)?;
    if seat != cmd.nic.seat {
        enable_virtual(cmd, seat)?;
        return output(&EnableHcaOut::new());
    }
    cmd.nic.stage = Stage::Enabled;
    cmd.env.vport_mut(seat).driven = true;
    output(&EnableHcaOut::new())
}

pub(super) fn disable_hca(cmd: &mut Cmd<'_>) -> Outcome {
    let input: DisableHcaIn = cmd.read();
    let seat = named_function(cmd, input.embedded_cpu_function(), input.function_id())?;
    let running = cmd.nic.stage == Stage::Initialised;
    check_stage(seat == cmd.nic.seat, !running)?;
    if seat != cmd.nic.seat {
        disable_virtual(cmd, seat)?;
        return output(&DisableHcaOut::new());
    }
    let held = cmd.nic.pages.held();
    if held != 0 {
        // This refusal is inferred: drivers reclaim every page first.
        return Err(refuse!(BAD_SYS_STATE, "the firmware holds pages", "{held}"));
    }
    cmd.nic.stage = Stage::Reset;
    cmd.env.vport_mut(seat).driven = false;
    output(&DisableHcaOut::new())
}

pub(super) fn query_issi(cmd: &mut Cmd<'_>) -> Outcome {
    let mut out = QueryIssiOut::new();
    out.set_current_issi(cmd.nic.issi)
        .set_supported_issi_dw0(cmd.nic.profile.issi);
    output(&out)
}

pub(super) fn set_issi(cmd: &mut Cmd<'_>) -> Outcome {
    let issi = cmd.read::<SetIssiIn>().current_issi();
    if issi >= 32 || cmd.nic.profile.issi >> issi & 1 == 0 {
        return Err(refuse!(BAD_PARAM, "interface step not supported", "{issi}"));
    }
    cmd.nic.issi = issi;
    output(&SetIssiOut::new())
}

pub(super) fn query_pages(cmd: &mut Cmd<'_>) -> Outcome {
    let input: QueryPagesIn = cmd.read();
    let seat = named_function(cmd, input.embedded_cpu_function(), input.function_id())?;
    if seat != cmd.nic.seat {
        // The firmware requests the virtual function's pages by events only, so this command reports none.
        return output(QueryPagesOut::new().set_function_id(input.function_id()));
    }
    let initialised = cmd.nic.stage == Stage::Initialised;
    let pages = &mut cmd.nic.pages;
    let wanted = match cmd.op_mod {
        1 => pages.query_boot(),
        2 if pages.booted() => pages.query_init(),
        2 => return Err(refuse!(NO_RESOURCES, "boot pages are missing")),
        _ if initialised => pages.query_regular(),
        _ => return Err(refuse!(BAD_SYS_STATE, "regular pages before INIT_HCA")),
    };
    let mut out = QueryPagesOut::new();
    out.set_num_pages(wanted);
    output(&out)
}

pub(super) fn manage_pages(cmd: &mut Cmd<'_>) -> Outcome {
    let input: ManagePagesIn = cmd.read();
    let seat = named_function(cmd, input.embedded_cpu_function(), input.function_id())?;
    let entries = usize::try_from(input.input_num_entries()).unwrap_or(usize::MAX);
    if seat != cmd.nic.seat {
        return manage_pages_of(cmd, seat, entries);
    }
    match cmd.op_mod {
        0 => {
            cmd.nic.pages.cannot_give();
            cmd.nic.pages_answered(cmd.env, false);
            output(&ManagePagesOut::new())
        }
        1 => give_pages(cmd, entries),
        _ => take_pages(cmd, entries),
    }
}

fn give_pages(cmd: &mut Cmd<'_>, entries: usize) -> Outcome {
    let addresses = cmd.list(ManagePagesIn::SIZE, entries)?;
    let nic = &mut *cmd.nic;
    nic.pages
        .give(&mut nic.iommu, &addresses)
        .map_err(|error| not_given(error, entries))?;
    if !nic.pages.starving() {
        nic.pages_answered(cmd.env, true);
    }
    output(&ManagePagesOut::new())
}

fn not_given(error: GiveError, entries: usize) -> Refusal {
    match error {
        GiveError::TooMany => refuse!(
            BAD_PARAM,
            "more pages than the firmware asked for",
            "{entries}"
        ),
        GiveError::Pieces { missing } => refuse!(
            BAD_PARAM,
            "pages to start with come in one command",
            "{entries} of {missing}"
        ),
        GiveError::Address(_) => refuse!(BAD_PARAM, "page address not aligned"),
        GiveError::Unreachable(_) => refuse!(BAD_PARAM, "page not reachable by the device"),
        GiveError::Owned(_) => refuse!(BAD_RESOURCE, "page given twice"),
    }
}

/// Gives or takes pages of a virtual function. The pages are in its manager's memory, which the device accesses
/// through the manager's mappings.
fn manage_pages_of(cmd: &mut Cmd<'_>, seat: Seat, entries: usize) -> Outcome {
    let addresses = match cmd.op_mod {
        1 => cmd.list(ManagePagesIn::SIZE, entries)?,
        _ => Vec::new(),
    };
    check_output_room(cmd, entries)?;
    let nic = &mut *cmd.nic;
    let Some(pages) = nic.pages_of.get_mut(&seat.vport) else {
        return Err(refuse!(
            BAD_PARAM,
            "more pages than the firmware asked for",
            "{entries} of function {}",
            seat.vport
        ));
    };
    match cmd.op_mod {
        0 => {
            pages.cannot_give();
            report_pages(cmd, seat, false);
        }
        1 => {
            pages
                .give(&mut nic.iommu, &addresses)
                .map_err(|error| not_given(error, entries))?;
            let starving = pages.starving();
            if !starving && cmd.env.vport(seat).life == Life::WaitingForPages {
                run_virtual(cmd, seat);
            } else if !starving {
                report_pages(cmd, seat, true);
            }
        }
        _ => {
            let in_use = cmd.env.vport(seat).life != Life::Disabled;
            let (taken, findings) = pages.take(&mut nic.iommu, entries, in_use);
            return pages_taken(cmd, &taken, findings);
        }
    }
    output(&ManagePagesOut::new())
}

/// Sends a running virtual function the answer to its request for memory. `given` is true if the manager gave the
/// memory.
fn report_pages(cmd: &mut Cmd<'_>, seat: Seat, given: bool) {
    let vport = cmd.env.vport_mut(seat);
    if vport.life == Life::Running && vport.needs_pages {
        vport.needs_pages = !given;
        let function = vport.function;
        cmd.env
            .card_events
            .push_back((function, CardEvent::PagesAnswered(given)));
    }
}

fn check_output_room(cmd: &Cmd<'_>, entries: usize) -> Result<(), Refusal> {
    let room = cmd.room.saturating_sub(ManagePagesOut::SIZE) / 8;
    if cmd.op_mod == 2 && room < entries {
        return Err(refuse!(
            BAD_OUTPUT_LEN,
            "no room for the pages taken",
            "{room} of {entries}"
        ));
    }
    Ok(())
}

fn take_pages(cmd: &mut Cmd<'_>, entries: usize) -> Outcome {
    check_output_room(cmd, entries)?;
    let nic = &mut *cmd.nic;
    let in_use = nic.stage == Stage::Initialised;
    let (pages, findings) = nic.pages.take(&mut nic.iommu, entries, in_use);
    pages_taken(cmd, &pages, findings)
}

/// Returns the answer to a take, and reports defects of the pages that were taken.
fn pages_taken(cmd: &mut Cmd<'_>, pages: &[u64], findings: Vec<TakeFinding>) -> Outcome {
    let nic = &mut *cmd.nic;
    for finding in findings {
        match finding {
            TakeFinding::Modified(_) => {
                nic.driver_bug(
                    cmd.env,
                    "software wrote into a page the firmware owned".to_owned(),
                );
            }
            TakeFinding::Unreachable(_) => nic
                .init
                .set_health_syndrome(HealthSyndrome::ICM_FETCH_PCI_ERR.0),
        }
    }
    let mut out = ManagePagesOut::new();
    // CAST: there are at most `entries` pages, and `entries` comes from a 32-bit field.
    out.set_output_num_entries(u32::try_from(pages.len()).unwrap_or(u32::MAX));
    let mut bytes = out.as_bytes().to_vec();
    bytes.extend(pages.iter().flat_map(|page| page.to_be_bytes()));
    Ok(bytes)
}

pub(super) fn init_hca(cmd: &mut Cmd<'_>) -> Outcome {
    let input: InitHcaIn = cmd.read();
    if !cmd.nic.caps.general.sw_owner_id() && input.sw_owner_id() != &[0; 16] {
        return Err(refuse!(BAD_PARAM, "sw_owner_id without that capability"));
    }
    if !cmd.nic.pages.ready_to_init() {
        return Err(refuse!(
            NO_RESOURCES,
            "init pages are missing",
            "{} held",
            cmd.nic.pages.held()
        ));
    }
    cmd.nic.pages.initialised();
    cmd.nic.stage = Stage::Initialised;
    let caps = cmd.nic.caps.clone();
    cmd.nic.objects.set_limits(&caps);
    output(&InitHcaOut::new())
}

pub(super) fn teardown_hca(cmd: &mut Cmd<'_>) -> Outcome {
    let field = cmd.read::<TeardownHcaIn>().profile();
    // Snabb passes the profile as op_mod.
    let profile = if field == 0 { cmd.op_mod } else { field };
    let caps = &cmd.nic.caps.general;
    let supported = match profile {
        GRACEFUL => true,
        FORCE => caps.force_teardown(),
        2 => caps.fast_teardown(),
        _ => return Err(refuse!(BAD_PARAM, "teardown profile", "{profile}")),
    };
    let mut out = TeardownHcaOut::new();
    if !supported {
        // State 1 means refused. The driver then does a graceful teardown.
        out.set_state(true);
        return output(&out);
    }
    // Prepare-fast only prepares the teardown. The driver then writes `nic_interface`.
    if profile != 2 {
        cmd.nic.stop(cmd.env);
    }
    output(&out)
}

pub(super) fn set_driver_version(cmd: &mut Cmd<'_>) -> Outcome {
    if !cmd.nic.caps.general.driver_version() {
        return Err(refuse!(BAD_OP, "driver_version is not supported"));
    }
    output(&SetDriverVersionOut::new())
}

pub(super) fn query_adapter(cmd: &mut Cmd<'_>) -> Outcome {
    let mut psid = [0; 16];
    let text = cmd.nic.profile.psid.as_bytes();
    let length = text.len().min(psid.len());
    psid[..length].copy_from_slice(&text[..length]);
    let mut out = QueryAdapterOut::new();
    out.query_adapter_struct_mut()
        .set_ieee_vendor_id(IEEE_MELLANOX)
        .set_vsd_vendor_id(u32::from(cmd.nic.profile.vendor_id))
        .set_vsd_contd_psid(&psid);
    output(&out)
}

/// Executes QUERY_LAG. Answers that the ports are not bonded, since bonding is not simulated.
pub(super) fn query_lag(_: &mut Cmd<'_>) -> Outcome {
    output(&QueryLagOut::new())
}

pub(super) fn nop(_: &mut Cmd<'_>) -> Outcome {
    output(&NopOut::new())
}
