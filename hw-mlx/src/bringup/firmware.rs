//! The first part of every bring-up: from a reset function to one whose firmware accepts commands and has pages.

use std::time::Duration;

use driver::{Be32, Block, DmaArena, Function};

use crate::broken::BrokenQueues;
use crate::cmd::{CommandQueue, SlotClass};
use crate::config::HcaConfig;
use crate::control::{Commands, Control};
use crate::error::MlxError;
use crate::event::{Completions, FunctionId};
use crate::health::{Health, halves};
use crate::instance::{Listener, Listeners};
use crate::pages::{MAX_PAGES, Pages};
use crate::report::{Step, Stopwatch};
use crate::segment;
use mlx_prm::{COMMAND_INTERFACE_REVISION, EnableHcaIn, InitSegment, QueryPagesIn};

/// Number of the interface step sequence that this driver uses.
pub(super) const ISSI: u32 = 1;
/// Offset of the command register in configuration space, and its memory space bit.
pub(super) const CONFIG_COMMAND: u16 = 0x04;
pub(super) const MEMORY_SPACE: u16 = 1 << 1;
/// Time limit for the firmware to return the next page, while it still holds some (mlx5_core's bound for a physical
/// function).
const RECLAIM_LIMIT: Duration = Duration::from_secs(5);
/// Number of interrupt vectors that are used besides those for completions: one for the function's own events.
const CONTROL_VECTORS: usize = 1;

/// Stage of bring-up for which QUERY_PAGES returns the number of pages that the firmware needs (its `op_mod`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PageStage {
    Boot = 1,
    Init = 2,
    Regular = 3,
}

/// Resets the function and brings it up as far as ENABLE_HCA, inclusive.
pub(super) fn enable(
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

/// Sets up interrupts and the command queue, and enables bus mastering. Sends no command.
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
    let [high, low] = halves(queue.iova());
    registers.write(|segment| &segment.cmdq_addr_h, Be32::new(high));
    // Writing the low half activates the queue. Zero in bits 10:8 selects the full driver interface.
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
        resumed: None,
        eqs: Vec::new(),
        spare: Vec::new(),
        orphaned_rings: Vec::new(),
        event_mode: false,
        closed: false,
        is_parking: false,
        readers: 0,
        broken: BrokenQueues::default(),
        requested: false,
        link_up: false,
        slot_wanted: false,
        watch_health: false,
        probe: None,
        counter_set: None,
        losses: Vec::new(),
        embedded_cpu: false,
        reclaim_limit: RECLAIM_LIMIT,
        timeout: config.command_timeout,
        over_at: None,
        bus_master: false,
        stopped: false,
    };
    control.bus_master = true; // from here on, dropping `control` disables bus mastering
    control.function.set_bus_master(true)?;
    watch.done(Step::BusMaster);
    Ok(control)
}

/// Gives the firmware the pages that it requests at this stage. Returns their number.
pub(super) fn give_pages(control: &mut Control, stage: PageStage) -> Result<u64, MlxError> {
    let mut query = QueryPagesIn::new();
    query
        .set_op_mod(stage as u32)
        .set_embedded_cpu_function(control.embedded_cpu);
    let wanted = control.exec(&query)?;
    let asked = wanted.num_pages().cast_signed();
    let function = FunctionId {
        // The field has 16 bits, so the conversion does not fail.
        number: u16::try_from(wanted.function_id()).unwrap_or(0),
        embedded_cpu: control.embedded_cpu,
    };
    // A negative number requests the return of pages. It counts as 0, because no page is returned during bring-up.
    let count = usize::try_from(asked).unwrap_or(0);
    if count > MAX_PAGES {
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
