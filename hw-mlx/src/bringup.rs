//! Bring-up: from a reset function to one that carries traffic.
//!
//! The device dictates the order, because each step needs the one before (Linux `mlx5/core/main.c`
//! `mlx5_function_enable`, `mlx5_function_open`; rdma-core `mlx5_vfio.c` `mlx5_vfio_setup_function`). In short:
//! reset; wait until the firmware accepts commands; read the command queue's geometry, give it a page of memory and
//! enable bus mastering; wait for the firmware to boot; enable, agree on the interface step, give boot pages; read
//! and set capabilities; give init pages; initialize; read the capabilities that are in force; allocate a doorbell
//! page; create the event queues, beginning with the one for commands, after which commands complete by interrupt; and
//! configure the port: MAC, RoCE, addresses.
//!
//! Not every command is essential. If the firmware refuses one that a function can do without,
//! [`BringupReport::losses`] names the feature that is lost; the table in `docs/generations.md` lists all of them.
//!
//! [`Step`] names the steps, and [`BringupReport`] has the duration of each. A step that fails ends the sequence.
//! Dropping the function then undoes the steps before it: bus mastering is disabled before any memory is freed, and the
//! next open begins with a reset.

mod firmware;
mod record;

use std::time::Duration;

use driver::{Block, Function};
use zerocopy::{FromBytes, IntoBytes};

use crate::caps::Caps;
use crate::config::HcaConfig;
use crate::control::{Commands, Control};
use crate::device::Hca;
use crate::eq::{self, Eq};
use crate::error::{Mac, Macs, MlxError};
use crate::event::{ASYNC_EVENTS, COMMAND_EVENTS, PAGE_EVENTS};
use crate::gid::{self, GidTable};
use crate::ids;
use crate::instance::{
    EqError, Found, Own, Parts, Shared, alloc_uar, completion_events, create_eq,
};
use crate::random::Random;
use crate::report::Stopwatch;
pub use crate::report::{BringupReport, Loss, Step};
use crate::segment;
use crate::vport::{self, Port};
use firmware::{ISSI, PageStage, enable, give_pages};
use mlx_prm::{
    AccessRegIn, AllocQCounterIn, CmdStatus, Dtor, HostEndianness, InitHcaIn, QueryIssiIn,
    RegisterId, SetDriverVersionIn, SetIssiIn, UarIndex, UarPage,
};
pub use record::Record;

/// `op_mod` values of ACCESS_REG.
const WRITE: u32 = 0;
const READ: u32 = 1;
/// Values of HOST_ENDIANNESS: little-endian and big-endian host.
const HOST_LITTLE: u8 = 0;
const HOST_BIG: u8 = 0x80;
/// Sizes of event queues. Each is the number of events that may be pending at once, because an overrun is fatal.
/// `CONTROL_EVENTS`: number of events of commands and page requests. `LOG_ASYNC_ENTRIES`: log2 of the number of errors
/// and port events (Linux `MLX5_NUM_ASYNC_EQE`), within the device's limit.
const CONTROL_EVENTS: u32 = 32;
const LOG_ASYNC_ENTRIES: u32 = 12;
/// Number of completion queues that belong to no instance: QP1's and the Ethernet port's.
const SHARED_COMPLETIONS: u32 = 2;

impl Hca {
    /// Resets a function and brings it up.
    ///
    /// # Errors
    /// [`MlxError`]: the cause of the failed step, with its numbers. If the device could already access memory, it is
    /// stopped.
    pub fn open(function: Function, config: HcaConfig) -> Result<Self, MlxError> {
        open(function, config)
    }
}

fn open(function: Function, config: HcaConfig) -> Result<Hca, MlxError> {
    let _span = tracing::info_span!("open", function = function.name()).entered();
    if let Some(mac) = config.mac.filter(|mac| !vport::is_unicast(*mac)) {
        return Err(MlxError::ConfiguredMac { mac: Mac(mac) });
    }
    let mut random = Random::of_function(config.seed, function.name())?;
    let clock = function.clock();
    let mut watch = Stopwatch::new(&*clock);

    let mut control = enable(function, &config, &mut watch)?;
    agree_on_issi(&mut control)?;
    watch.done(Step::Issi);
    watch.report.boot_pages = give_pages(&mut control, PageStage::Boot)?;
    watch.done(Step::BootPages);
    let hardware = segment::hardware(&control.function, &control.registers)?;
    if ids::product(hardware.device_id).is_none() {
        tracing::warn!(
            function = control.function.name(),
            device = format_args!("{:#06x}", hardware.device_id),
            "a PCI device id this driver does not know; it is driven as a ConnectX"
        );
    }
    // A virtual function may not write this register (Linux checks `mlx5_core_is_pf`, by device ID).
    if !ids::is_virtual(hardware.device_id) {
        let told = write_host_endianness(&mut control);
        if cfg!(target_endian = "little") {
            control.optional("nothing: firmware takes a host for little-endian", told)?;
        } else {
            told?;
        }
    }
    watch.done(Step::HostEndianness);

    let offered = Caps::query(&mut control)?;
    offered.check()?;
    watch.done(Step::QueryCaps);
    let told = offered.set(&mut control, &config)?;
    watch.done(Step::SetCaps);
    watch.report.init_pages = give_pages(&mut control, PageStage::Init)?;
    watch.done(Step::InitPages);
    init_hca(&mut control, &offered, &config, &mut random)?;
    control.health.initialized();
    watch.done(Step::InitHca);
    // Besides this driver, only Snabb gives pages at this stage, on physical functions.
    let regular = give_pages(&mut control, PageStage::Regular);
    let regular = control.optional(
        "nothing: only this driver gives pages at this stage",
        regular,
    )?;
    watch.report.regular_pages = regular.unwrap_or(0);
    watch.done(Step::RegularPages);
    if offered.general().driver_version() {
        let told = send_driver_version(&mut control);
        control.optional(
            "the driver's name in what firmware and host say of it",
            told,
        )?;
    }
    watch.done(Step::DriverVersion);
    let caps = Caps::query(&mut control)?;
    caps.check()?;
    caps.check_kept(&told)?;
    if caps.general().dtor() {
        let read = read_reclaim_limit(&mut control);
        let lost = "the firmware's own limit for the return of pages";
        if let Some(limit) = control.optional(lost, read)? {
            control.reclaim_limit = control.reclaim_limit.max(limit);
        }
    }
    watch.done(Step::RequeryCaps);
    if caps.general().max_qp_cnt() > 0 {
        let set = control.exec(&AllocQCounterIn::new());
        let set = control.optional("counters of our own queue pairs", set)?;
        control.counter_set = set.map(|answer| answer.counter_set_id());
    }

    let function = control.function.clone();
    let (uar_index, uar) = alloc_uar(&mut control, &function)?;
    watch.done(Step::AllocUar);
    let completion_vector = usize::from(control.vectors > 1);
    let pages = if caps.general().page_request_disable() {
        0
    } else {
        PAGE_EVENTS
    };
    let events = |log: u32| eq::events(log.min(caps.general().log_max_eq_sz()));
    add_eq(
        &mut control,
        CONTROL_EVENTS,
        COMMAND_EVENTS | pages,
        uar_index,
        &uar,
    )?;
    control.event_mode = true;
    watch.done(Step::ControlEq);
    add_eq(
        &mut control,
        events(LOG_ASYNC_ENTRIES),
        ASYNC_EVENTS,
        uar_index,
        &uar,
    )?;
    watch.done(Step::AsyncEq);
    // Completion queues must name event queues that carry only completions (Linux `eq.c` `create_comp_eq`: an empty
    // mask).
    add_eq(&mut control, SHARED_COMPLETIONS, 0, uar_index, &uar)?;
    let eq = make_eq(
        &mut control,
        completion_events(&caps),
        0,
        completion_vector,
        uar_index,
        &uar,
    )?;
    let parts = Parts {
        uar_index,
        uar,
        eq,
        vector: completion_vector,
    };
    watch.done(Step::CompletionEq);

    let port = configure_port(
        &mut control,
        &caps,
        &config,
        hardware.device_id,
        &mut random,
    )?;
    watch.done(Step::Vport);
    let room = usize::try_from(caps.limits().gids).unwrap_or(usize::MAX);
    let gids = gid::table(port.mac, &config.addresses, room)?;
    for entry in &gids {
        gid::write_entry(&mut control, entry, caps.port_number())?;
    }
    watch.done(Step::Gids);

    control.watch_health = true;
    let mut report = watch.report;
    report.commands = control.queue.posted();
    report.losses = std::mem::take(&mut control.losses);
    tracing::info!(function = control.function.name(), device = format_args!("{:#06x}", hardware.device_id), total = ?report.total, "opened");
    control.link_up = port.link_up;
    let own = Own::new(&control, 0, completion_vector, Some(parts));
    let found = Found {
        caps,
        port,
        neighbours: config.neighbours,
        hardware,
        report,
    };
    let gids = GidTable::new(gids, room);
    Ok(Hca::new(Shared::new(control, gids, found), own))
}

/// Returns the time limit for the firmware to return a page (Linux `lib/tout.c` `tout_query_dtor`).
fn read_reclaim_limit(control: &mut Control) -> Result<Duration, MlxError> {
    let mut input = AccessRegIn::new();
    input
        .set_op_mod(READ)
        .set_register_id(RegisterId::DTOR.bits());
    let (_, image) = control.exec_reading(&input, Dtor::new().as_bytes(), Dtor::SIZE)?;
    Ok(
        Dtor::read_from_bytes(&image).map_or(Duration::ZERO, |register| {
            let limit = register.reclaim_pages_to();
            segment::time_limit(limit.to_multiplier(), limit.to_value())
        }),
    )
}

fn agree_on_issi(control: &mut Control) -> Result<(), MlxError> {
    let supported = match control.exec(&QueryIssiIn::new()) {
        Ok(answer) => answer.supported_issi_dw0(),
        // Firmware without QUERY_ISSI supports only interface step sequence 0.
        Err(error) if error.status() == Some(CmdStatus::BAD_OP) => {
            return Err(MlxError::NoIssi(error));
        }
        Err(error) => return Err(error.into()),
    };
    if supported & 1 << ISSI == 0 {
        return Err(MlxError::Issi { supported });
    }
    let mut input = SetIssiIn::new();
    input.set_current_issi(ISSI);
    control.exec(&input)?;
    Ok(())
}

fn write_host_endianness(control: &mut Control) -> Result<(), MlxError> {
    let mut input = AccessRegIn::new();
    input
        .set_op_mod(WRITE)
        .set_register_id(RegisterId::HOST_ENDIANNESS.bits());
    let mut register = HostEndianness::new();
    register.set_he(if cfg!(target_endian = "big") {
        HOST_BIG
    } else {
        HOST_LITTLE
    });
    control.exec_reading(&input, register.as_bytes(), HostEndianness::SIZE)?;
    Ok(())
}

fn init_hca(
    control: &mut Control,
    caps: &Caps,
    config: &HcaConfig,
    random: &mut Random,
) -> Result<(), MlxError> {
    let mut input = InitHcaIn::new();
    if caps.general().sw_owner_id() {
        let owner = config.owner_id.unwrap_or_else(|| random.bytes());
        input.set_sw_owner_id(&owner);
    }
    control.exec(&input)?;
    Ok(())
}

fn send_driver_version(control: &mut Control) -> Result<(), MlxError> {
    // The text has the form "OS,driver,version" as in mlx5_core; the field has 64 bytes.
    let text = concat!("Userspace,hw-mlx,", env!("CARGO_PKG_VERSION"));
    let mut input = SetDriverVersionIn::new();
    let field = input.driver_version_mut();
    let bytes = text.len().min(field.len());
    field[..bytes].copy_from_slice(&text.as_bytes()[..bytes]);
    control.exec(&input)?;
    Ok(())
}

/// Creates an event queue that all instances use.
fn add_eq(
    control: &mut Control,
    wanted: u32,
    events: u64,
    uar_index: UarIndex,
    uar: &Block<UarPage>,
) -> Result<(), MlxError> {
    let eq = make_eq(control, wanted, events, 0, uar_index, uar)?;
    control.eqs.push(eq);
    Ok(())
}

fn make_eq(
    control: &mut Control,
    wanted: u32,
    events: u64,
    vector: usize,
    uar_index: UarIndex,
    uar: &Block<UarPage>,
) -> Result<Eq, MlxError> {
    let arena = control.arena.clone();
    create_eq(control, &arena, wanted, events, vector, (uar_index, uar)).map_err(|failed| {
        let EqError { error, orphaned } = *failed;
        control.orphaned_rings.extend(orphaned);
        error
    })
}

/// Configures the port (MAC, MTU, RoCE), switches it on if the function may, and reads the state of its link.
fn configure_port(
    control: &mut Control,
    caps: &Caps,
    config: &HcaConfig,
    device_id: u16,
    random: &mut Random,
) -> Result<Port, MlxError> {
    let found = vport::query(control)?;
    let mac = vport::choose_mac(config.mac, found.mac, random);
    announce(control, caps, mac)?;
    let mut forwarding = vport::forwards_by_table(caps);
    if forwarding {
        let accepted = vport::accept_mac(control, mac);
        let lost = "frames from the cable, where no other entry leads them here";
        forwarding = control.optional(lost, accepted)?.is_some();
    }
    let mtu = vport::configure_mtu(control, &found, config.port_mtu)?;
    enable_roce(control, caps, config.loopback)?;
    // The firmware ignores a virtual function's writes of the port's state, so only a physical function switches it on.
    let switched_on = !ids::is_virtual(device_id) && vport::switch_on(control)?;
    let link_up = vport::link_is_up(control);
    let lost = "the link's state at start; assumed up";
    let link_up = control.optional(lost, link_up)?.unwrap_or(true);
    Ok(Port {
        mac,
        mtu,
        path_mtu: vport::path_mtu_code(mtu),
        link_up,
        node_guid: found.node_guid,
        switched_on,
        forwarding,
    })
}

/// Announces our MAC to the e-switch, and checks that the vport has it. Packets from all our addresses have this MAC.
///
/// A list that reads back differently is only reported: some firmware may not show a virtual function its own list.
fn announce(control: &mut Control, caps: &Caps, mac: [u8; 6]) -> Result<(), MlxError> {
    let written = vport::announce(control, &[mac]);
    let lost = "frames from others, where the e-switch knows no other way to this function";
    if control.optional(lost, written)?.is_none() {
        return Ok(());
    }
    let kept = vport::announced(control, caps);
    let lost = "the check that the e-switch has our MAC";
    let kept = control.optional(lost, kept)?;
    if let Some(kept) = kept.filter(|kept| *kept != [mac]) {
        control.lose(
            "perhaps frames from others: the e-switch may not know our MAC",
            format!(
                "the vport's list of unicast addresses was set to {} and reads {}",
                Macs(vec![mac]),
                Macs(kept)
            ),
        );
    }
    Ok(())
}

/// Enables RoCE. If the firmware refuses the loopback fields, enables RoCE without them.
fn enable_roce(control: &mut Control, caps: &Caps, loopback: bool) -> Result<(), MlxError> {
    let enabled = vport::enable_roce(control, caps, Some(loopback));
    let says_more = caps.general().disable_local_lb_uc() || caps.general().disable_local_lb_mc();
    if !says_more {
        return Ok(enabled?);
    }
    let lost = "the choice whether queue pairs of this function reach each other";
    if control.optional(lost, enabled)?.is_none() {
        vport::enable_roce(control, caps, None)?;
    }
    Ok(())
}
