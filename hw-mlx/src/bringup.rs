//! From a reset function to one that carries traffic.
//!
//! The order is the device's, not ours: each step needs the one before (Linux `mlx5/core/main.c`
//! `mlx5_function_enable`, `mlx5_function_open`; rdma-core `mlx5_vfio.c` `mlx5_vfio_setup_function`). In short:
//! reset; wait until the firmware listens; find the command queue's geometry, give it a page of memory and let the
//! device master the bus; wait for the firmware to boot; enable, agree on the interface step, feed it boot pages; read and set
//! capabilities; feed it init pages; initialize; read the capabilities that are in force; get a doorbell
//! page; create event queues, the one for commands first, from which moment commands complete by
//! interrupt; and make the port ours: MAC, RoCE, addresses.
//!
//! [`Step`] names the steps, [`BringupReport`] says how long each took. A step that fails ends the sequence;
//! what was begun is undone by dropping it: bus mastering goes off before any memory is freed, and the
//! next open begins with a reset.

mod record;
mod report;

use std::time::Duration;

use driver::{Be32, Block, DmaArena, Function};
use zerocopy::{FromBytes, IntoBytes};

use crate::caps::Caps;
use crate::cmd::{CommandQueue, SlotClass};
use crate::control::{Commands, Control};
use crate::device::{Hardware, Hca, HcaConfig, Port};
use crate::eq::{self, Eq};
use crate::error::{Mac, MlxError};
use crate::event::{ASYNC_EVENTS, COMMAND_EVENTS, Completions, PAGE_EVENTS};
use crate::gid::{self, GidTable};
use crate::health::Health;
use crate::ids;
use crate::instance::{Found, Listener, Listeners, NoEq, Own, Parts, Shared, alloc_uar, create_eq};
use crate::pages::{FunctionId, MOST_PAGES, Pages};
use crate::random::Random;
use crate::segment;
use crate::vport;
use mlx_prm::{
    AccessRegIn, AllocQCounterIn, CmdStatus, Dtor, EnableHcaIn, HostEndianness, InitHcaIn,
    InitSegment, QueryIssiIn, QueryPagesIn, RegisterId, SetDriverVersionIn, SetIssiIn, UarIndex,
    UarPage,
};
pub use record::Record;
use report::Stopwatch;
pub use report::{BringupReport, Step};

/// The command interface this driver speaks.
pub(crate) const COMMAND_INTERFACE_REVISION: u32 = 5;
/// The interface step sequence it speaks.
const ISSI: u32 = 1;
/// Configuration space: device id, revision, and command register with its memory space bit.
const CONFIG_DEVICE: u16 = 0x02;
const CONFIG_REVISION: u16 = 0x08;
const CONFIG_COMMAND: u16 = 0x04;
const MEMORY_SPACE: u16 = 1 << 1;
/// ACCESS_REG op_mod.
const WRITE: u32 = 0;
const READ: u32 = 1;
/// How long the firmware may return no page while it holds some (mlx5_core's bound for a physical function).
const RECLAIM_LIMIT: Duration = Duration::from_secs(5);
/// HOST_ENDIANNESS: little and big.
const HOST_LITTLE: u8 = 0;
const HOST_BIG: u8 = 0x80;
/// Interrupt vectors in use beside those for completions: for what the function says of itself.
const CONTROL_VECTORS: usize = 1;
/// Event queue sizes, as far as the device has them: what may be waiting at once, since an overrun is fatal. Commands
/// and page requests; errors of any number of queues (Linux `MLX5_NUM_ASYNC_EQE`); one event for each armed
/// completion queue, of which the provider has no more than fit.
const CONTROL_EVENTS: u32 = 32;
const LOG_ASYNC_ENTRIES: u32 = 12;
const LOG_COMPLETION_ENTRIES: u32 = 14;
/// Completion queues that belong to no instance: QP1's and the Ethernet port's.
const SHARED_COMPLETIONS: u32 = 2;

/// QUERY_PAGES op_mod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PageStage {
    Boot = 1,
    Init = 2,
    Regular = 3,
}

/// Opens a function.
pub(crate) fn open(function: Function, config: HcaConfig) -> Result<Hca, MlxError> {
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
    let hardware = read_hardware(&control)?;
    if ids::product(hardware.device_id).is_none() {
        tracing::warn!(
            function = control.function.name(),
            device = format_args!("{:#06x}", hardware.device_id),
            "a PCI device id this driver does not know; it is driven as a ConnectX"
        );
    }
    // A virtual one may not write it (Linux asks `mlx5_core_is_pf`, by device id).
    if !ids::is_virtual(hardware.device_id) {
        tell_host_endianness(&mut control)?;
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
    watch.done(Step::InitHca);
    // Only Snabb asks for this stage, on physical functions.
    let regular = give_pages(&mut control, PageStage::Regular);
    watch.report.regular_pages = optional("QUERY_PAGES regular", regular)?.unwrap_or(0);
    watch.done(Step::RegularPages);
    if offered.general().driver_version() {
        let told = tell_driver_version(&mut control);
        optional("SET_DRIVER_VERSION", told)?;
    }
    watch.done(Step::DriverVersion);
    let caps = Caps::query(&mut control)?;
    caps.check()?;
    caps.check_kept(&told)?;
    if caps.general().dtor() {
        let read = read_reclaim_limit(&mut control);
        if let Some(limit) = optional("register DTOR", read)? {
            control.reclaim_limit = control.reclaim_limit.max(limit);
        }
    }
    watch.done(Step::RequeryCaps);
    if caps.general().max_qp_cnt() > 0 {
        let set = control.exec(&AllocQCounterIn::new());
        control.counter_set = optional("ALLOC_Q_COUNTER", set.map_err(MlxError::from))?
            .map(|answer| answer.counter_set_id());
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
    // Completion queues name event queues that carry nothing else (Linux `eq.c` `create_comp_eq`: an empty mask).
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

    let port = take_port(
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
        gid::write_entry(&mut control, entry, port_number(&caps))?;
    }
    watch.done(Step::Gids);

    control.watch_health = true;
    let mut report = watch.report;
    report.commands = control.queue.posted();
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

/// From a reset to ENABLE_HCA.
fn enable(
    function: Function,
    config: &HcaConfig,
    watch: &mut Stopwatch<'_>,
) -> Result<Control, MlxError> {
    function.reset()?;
    watch.done(Step::Reset);
    let mut control = start_command_interface(function, config, watch)?;
    let boot_limit = segment::limits(&control.registers)
        .map_or(config.initializing_timeout, |(_, boot)| {
            boot.max(config.initializing_timeout)
        });
    segment::wait_for_firmware(&control.function, &control.registers, boot_limit)?;
    control.embedded_cpu = segment::is_embedded_cpu(&control.registers);
    if let Some((command, _)) = segment::limits(&control.registers) {
        control.timeout = config.command_timeout.max(command);
    }
    watch.done(Step::FirmwareReady);

    let mut input = EnableHcaIn::new();
    input.set_embedded_cpu_function(control.embedded_cpu);
    control.exec(&input)?;
    watch.done(Step::EnableHca);
    Ok(control)
}

/// From interrupts to bus mastering: the part that needs no firmware.
fn start_command_interface(
    function: Function,
    config: &HcaConfig,
    watch: &mut Stopwatch<'_>,
) -> Result<Control, MlxError> {
    let wanted = CONTROL_VECTORS + usize::from(config.completion_vectors.max(1));
    let mut interrupts = function.enable_interrupts(wanted)?;
    if interrupts.is_empty() {
        return Err(MlxError::NoInterrupts);
    }
    watch.done(Step::Interrupts);

    let command = function.config_read_u16(CONFIG_COMMAND)?;
    function.config_write_u16(CONFIG_COMMAND, command | MEMORY_SPACE)?;
    let registers: Block<InitSegment> = function.bar(0)?.block(0)?;
    watch.done(Step::MapBar);

    segment::wait_for_firmware(&function, &registers, config.initializing_timeout)?;
    watch.done(Step::PreInitialized);

    let revision = registers.read(|segment| &segment.cmdif_rev_fw_sub).get() >> 16;
    if revision != COMMAND_INTERFACE_REVISION {
        return Err(MlxError::CommandInterface { found: revision });
    }
    let geometry = registers.read(|segment| &segment.cmdq_addr_l_sz).get();
    let (log_size, log_stride) = (geometry >> 4 & 0xf, geometry & 0xf);
    watch.done(Step::CommandInterface);

    let arena = DmaArena::new(&function)?;
    let queue = CommandQueue::new(arena.clone(), registers.clone(), log_size, log_stride)?.ok_or(
        MlxError::CommandQueue {
            log_size,
            log_stride,
        },
    )?;
    let (high, low) = halves(queue.iova());
    registers.write(|segment| &segment.cmdq_addr_h, Be32::new(high));
    // The low half activates the queue; zero in bits 10:8 selects the full driver interface.
    registers.write(|segment| &segment.cmdq_addr_l_sz, Be32::new(low));
    driver::barrier::flush_write_combining();
    watch.done(Step::CommandQueue);

    let clock = function.clock();
    let notices = function.notices().clone();
    let health = Health::new(registers.clone(), notices, [high, low], clock.now());
    let vectors = interrupts.len();
    let wakeup = function.wakeup()?;
    interrupts.extend(health.notices().cloned());
    let mut control = Control {
        health,
        pages: Pages::new(arena.clone(), config.firmware_pages),
        function,
        clock,
        arena,
        registers,
        interrupts,
        vectors,
        queue,
        listeners: Listeners::first(Listener::new(usize::from(vectors > 1), wakeup)),
        completions: Completions::default(),
        objects: crate::control::Objects::default(),
        eqs: Vec::new(),
        spare: Vec::new(),
        undead_rings: Vec::new(),
        event_mode: false,
        closed: false,
        requested: false,
        link_up: false,
        wanting: false,
        watch_health: false,
        doubt: None,
        counter_set: None,
        embedded_cpu: false,
        reclaim_limit: RECLAIM_LIMIT,
        timeout: config.command_timeout,
        over_at: None,
        bus_master: false,
        stopped: false,
    };
    control.bus_master = true; // from here on dropping it switches it off
    control.function.set_bus_master(true)?;
    watch.done(Step::BusMaster);
    Ok(control)
}

fn halves(address: u64) -> (u32, u32) {
    let [a, b, c, d, e, f, g, h] = address.to_be_bytes();
    (
        u32::from_be_bytes([a, b, c, d]),
        u32::from_be_bytes([e, f, g, h]),
    )
}

/// What a step came to that we can do without: `None` if the firmware refused it.
fn optional<T>(what: &'static str, outcome: Result<T, MlxError>) -> Result<Option<T>, MlxError> {
    match outcome {
        Err(MlxError::Cmd(error)) if error.status().is_some() => {
            tracing::warn!(what, %error, "refused; going on without");
            Ok(None)
        }
        outcome => outcome.map(Some),
    }
}

/// How long the firmware wants to be waited for when it returns pages (Linux `lib/tout.c` `tout_query_dtor`).
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

/// Who we are talking to.
fn read_hardware(control: &Control) -> Result<Hardware, MlxError> {
    let (minor, major) = words(control.registers.read(|segment| &segment.fw_rev).get());
    let (_, sub_minor) = words(
        control
            .registers
            .read(|segment| &segment.cmdif_rev_fw_sub)
            .get(),
    );
    Ok(Hardware {
        device_id: control.function.config_read_u16(CONFIG_DEVICE)?,
        revision: control.function.config_read_u8(CONFIG_REVISION)?,
        firmware: (major, minor, sub_minor),
    })
}

/// The upper and the lower half of a register.
fn words(register: u32) -> (u16, u16) {
    let [a, b, c, d] = register.to_be_bytes();
    (u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d]))
}

fn agree_on_issi(control: &mut Control) -> Result<(), MlxError> {
    let supported = match control.exec(&QueryIssiIn::new()) {
        Ok(answer) => answer.supported_issi_dw0(),
        // Firmware from before there were several.
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

/// Gives what the firmware asks for at this stage; how many pages that was.
fn give_pages(control: &mut Control, stage: PageStage) -> Result<u64, MlxError> {
    let mut query = QueryPagesIn::new();
    query
        .set_op_mod(stage as u32)
        .set_embedded_cpu_function(control.embedded_cpu);
    let wanted = control.exec(&query)?;
    let asked = wanted.num_pages().cast_signed();
    let function = FunctionId {
        // The field has 16 bits.
        number: u16::try_from(wanted.function_id()).unwrap_or(0),
        embedded_cpu: control.embedded_cpu,
    };
    // A negative number would be pages to take back, of which there are none yet.
    let count = usize::try_from(asked).unwrap_or(0);
    if count > MOST_PAGES {
        return Err(MlxError::Nonsense {
            what: "QUERY_PAGES num_pages",
            value: u64::from(wanted.num_pages()),
        });
    }
    let room = control.pages.room();
    if count > room {
        return Err(MlxError::TooManyPages { asked: count, room });
    }
    if count > 0 {
        let (pages, input) = control.pages.prepare_give(function, count)?;
        let answer = control.exec_message(SlotClass::Pages, &input, 0x10);
        control
            .pages
            .finish_give(function, pages, answer.as_ref().map(|_| ()));
        answer?;
    }
    Ok(count as u64)
}

fn tell_host_endianness(control: &mut Control) -> Result<(), MlxError> {
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

fn tell_driver_version(control: &mut Control) -> Result<(), MlxError> {
    // "OS,driver,version" as mlx5_core writes it; at most 64 bytes.
    let text = concat!("Userspace,hw-mlx,", env!("CARGO_PKG_VERSION"));
    let mut input = SetDriverVersionIn::new();
    let field = input.driver_version_mut();
    let bytes = text.len().min(field.len());
    field[..bytes].copy_from_slice(&text.as_bytes()[..bytes]);
    control.exec(&input)?;
    Ok(())
}

/// Events of armed completion queues that may be waiting at once.
pub(crate) fn completion_events(caps: &Caps) -> u32 {
    eq::events(LOG_COMPLETION_ENTRIES.min(caps.general().log_max_eq_sz()))
}

/// An event queue that all share.
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
        let NoEq { error, undead } = *failed;
        control.undead_rings.extend(undead);
        error
    })
}

/// Makes the port ours: MAC, MTU, RoCE.
fn take_port(
    control: &mut Control,
    caps: &Caps,
    config: &HcaConfig,
    device_id: u16,
    random: &mut Random,
) -> Result<Port, MlxError> {
    let found = vport::query(control)?;
    let mac = vport::choose_mac(config.mac, found.mac, random);
    // All our addresses have this MAC.
    vport::announce(control, caps, &[mac])?;
    let forwarding = vport::forwards_by_table(caps);
    if forwarding {
        vport::accept_mac(control, mac)?;
    }
    let mtu = vport::settle_mtu(control, &found, config.port_mtu)?;
    vport::enable_roce(control, caps, config.loopback)?;
    // A virtual function's port is not its to switch.
    let switched_on = !ids::is_virtual(device_id) && vport::switch_on(control)?;
    let link_up = vport::link_is_up(control)?;
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

/// Which port address table commands name: only functions with several have to.
pub(crate) fn port_number(caps: &Caps) -> Option<u32> {
    (caps.general().num_vhca_ports() > 0).then_some(1)
}
