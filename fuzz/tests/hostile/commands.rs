//! Hostile software on a whole function: commands, mailboxes, registers, configuration space, mappings.
//!
//! The first harness attacks a function with live queues and keys. It sends commands with numbers of existing objects
//! in their fields and some bits flipped. It also rings doorbells of every kind, rewrites queue memory, and unmaps
//! memory while the device uses it. The second harness ignores the rules of the device and writes bytes anywhere.
//! Meanwhile another function executes commands (in the first harness, the peer of the attacked function). Afterwards
//! time still advances. After a function-level reset no object is left, and the function can be started again.

use crate::bench::{BASE, Bench};
use crate::extent;
use crate::honest::Longest;
use crate::live::{ATTACKED, End, HEALTHY, PAGE, RareChoice, Spoil, World, now_us, run, small};
use bolero::{TypeGenerator, check, produce};
use driver::Device;
use hw_sim::cmd::opcodes;
use mlx_prm::*;
use std::collections::BTreeSet;
use zerocopy::IntoBytes;

/// Number of bytes of the bench's memory that attacks may change: command queue, mailboxes, and all later allocations.
const REACH: u32 = 0x30_0000;

/// A number for a command: that of an existing object, or an arbitrary one.
#[derive(Clone, Copy, Debug, TypeGenerator)]
enum Number {
    Uar,
    Pd,
    AsyncEq,
    CompletionEq,
    Cq {
        healthy: bool,
    },
    Qp {
        healthy: bool,
    },
    KeyIndex,
    /// The number that a successful creation returned; 0 is the latest.
    Created(u8),
    Small(u8),
    Any(u32),
}

/// A command input.
#[derive(Clone, Debug, TypeGenerator)]
struct Command {
    which: u8,
    op_mod: u8,
    /// Rare choice: a command that has only one op_mod gets another one.
    odd_op_mod: RareChoice,
    /// Value of the field that names the command's object, at 0x08 in most commands. If it is `None`, the field names
    /// an object of the kind that the command needs.
    object: Option<Number>,
    /// 64-bit words after the fixed part, such as page lists.
    list: Vec<Word>,
    /// Dword fields at random offsets, and their values.
    fields: [(u8, Number); 2],
    fields_when: RareChoice,
    spoil: Spoil,
    /// Input and output length in the command queue entry of a corrupted command.
    lengths: (u32, u32),
    /// Rare choice: the command queue entry and the mailbox are corrupted.
    undeliverable: RareChoice,
    entry: Spoil,
    mailbox: Spoil,
}

/// A word of a list.
#[derive(Clone, Copy, Debug, TypeGenerator)]
enum Word {
    /// The address of a page of the bench's memory.
    Page(u16),
    Any(u64),
}

/// One action of the hostile software.
#[derive(Clone, Debug, TypeGenerator)]
enum Attack {
    Command(Command),
    /// Sends a well-formed create command, so that later attacks have an object.
    Create {
        what: u8,
        spoil: Spoil,
    },
    /// Rings a doorbell on the UAR page.
    Doorbell {
        register: u8,
        number: Number,
        word: u32,
        wide: bool,
    },
    /// Writes a register of BAR 0.
    Register {
        offset: u16,
        bytes: [u8; 8],
        length: u8,
        when: RareChoice,
    },
    Config {
        offset: u16,
        bytes: [u8; 4],
        length: u8,
        when: RareChoice,
    },
    /// Overwrites memory that the device uses.
    Scribble {
        at: u32,
        bytes: Vec<u8>,
        when: RareChoice,
    },
    /// Overwrites a word of the rings or doorbell records of a queue pair.
    Queue {
        healthy: bool,
        at: u16,
        value: u32,
    },
    /// Unmaps all memory from the device.
    Unmap {
        when: RareChoice,
    },
    /// Maps the memory again.
    Map,
    /// Sets up the interrupts again, possibly fewer of them.
    Interrupts {
        count: u8,
    },
    Wait {
        microseconds: u16,
    },
}

/// Returns the inputs from which a [`Command`] chooses one: all commands of the simulator. Each is zero except for the
/// opcode.
fn inputs() -> Vec<Vec<u8>> {
    macro_rules! inputs {
        ($($name:ident),* $(,)?) => { vec![$( $name::new().as_bytes().to_vec(), )*] };
    }
    inputs![
        EnableHcaIn,
        DisableHcaIn,
        QueryIssiIn,
        SetIssiIn,
        QueryPagesIn,
        ManagePagesIn,
        InitHcaIn,
        TeardownHcaIn,
        SetDriverVersionIn,
        QueryAdapterIn,
        NopIn,
        QueryHcaCapIn,
        SetHcaCapIn,
        AccessRegIn,
        AllocUarIn,
        DeallocUarIn,
        AllocPdIn,
        DeallocPdIn,
        AllocTransportDomainIn,
        DeallocTransportDomainIn,
        AllocXrcdIn,
        DeallocXrcdIn,
        AllocQCounterIn,
        DeallocQCounterIn,
        QueryQCounterIn,
        QuerySpecialContextsIn,
        CreateEqIn,
        DestroyEqIn,
        QueryEqIn,
        GenEqeIn,
        CreateCqIn,
        DestroyCqIn,
        QueryCqIn,
        ModifyCqIn,
        CreateMkeyIn,
        QueryMkeyIn,
        DestroyMkeyIn,
        CreateRmpIn,
        ModifyRmpIn,
        QueryRmpIn,
        DestroyRmpIn,
        CreateQpIn,
        DestroyQpIn,
        QueryQpIn,
        Rst2InitQpIn,
        Init2InitQpIn,
        Init2RtrQpIn,
        Rtr2RtsQpIn,
        Rts2RtsQpIn,
        SqErr2RtsQpIn,
        SqdRtsQpIn,
        ToErrQpIn,
        ToRstQpIn,
        QueryVportStateIn,
        ModifyVportStateIn,
        QueryNicVportContextIn,
        ModifyNicVportContextIn,
        QueryVportCounterIn,
        SetRoceAddressIn,
        QueryRoceAddressIn,
        CreateUmemIn,
        DestroyUmemIn,
        CreateXrcSrqIn,
        DestroyXrcSrqIn,
        QueryXrcSrqIn,
        ArmXrcSrqIn,
        MadIfcIn,
        QueryLagIn,
        QueryCongStatusIn,
        QueryCongParamsIn,
        ModifyCongParamsIn,
        QueryCongStatisticsIn,
        CreateUctxIn,
        DestroyUctxIn,
        AllocMemicIn,
        DeallocMemicIn,
        AttachToMcgIn,
        DetachFromMcgIn,
        QueryVnicEnvIn,
        ModifyEswVportContextIn,
        QueryEswVportContextIn,
        SetL2TableEntryIn,
        QueryL2TableEntryIn,
        DeleteL2TableEntryIn,
        QueryHcaVportContextIn,
        ModifyHcaVportContextIn,
        QueryHcaVportGidIn,
        QueryHcaVportPkeyIn,
        CreateTirIn,
        ModifyTirIn,
        DestroyTirIn,
        QueryTirIn,
        CreateSqIn,
        ModifySqIn,
        DestroySqIn,
        QuerySqIn,
        CreateRqIn,
        ModifyRqIn,
        DestroyRqIn,
        QueryRqIn,
        CreateTisIn,
        ModifyTisIn,
        DestroyTisIn,
        QueryTisIn,
        CreateRqtIn,
        ModifyRqtIn,
        DestroyRqtIn,
        QueryRqtIn,
        SetFlowTableRootIn,
        CreateFlowTableIn,
        DestroyFlowTableIn,
        QueryFlowTableIn,
        ModifyFlowTableIn,
        CreateFlowGroupIn,
        DestroyFlowGroupIn,
        QueryFlowGroupIn,
        SetFlowTableEntryIn,
        QueryFlowTableEntryIn,
        DeleteFlowTableEntryIn,
        AllocFlowCounterIn,
        DeallocFlowCounterIn,
        QueryFlowCounterIn,
    ]
}

fn put(bytes: &mut [u8], at: usize, value: u32) {
    if let Some(field) = bytes.get_mut(at..at + 4) {
        field.copy_from_slice(&value.to_be_bytes());
    }
}

/// The simulated functions and the state of the hostile driver.
struct Driver {
    world: World,
    /// Numbers of the created objects, with the opcodes of their create commands.
    created: Vec<(Opcode, u32)>,
}

impl Number {
    fn resolve(self, driver: &Driver) -> u32 {
        let end = &driver.world.a;
        let which = |healthy: bool| if healthy { HEALTHY } else { ATTACKED };
        match self {
            Self::Uar => end.resources.uar,
            Self::Pd => end.resources.pd,
            Self::AsyncEq => end.resources.eq.number,
            Self::CompletionEq => end.completion_eqn,
            Self::Cq { healthy } => end.qps[which(healthy)].cq.number,
            Self::Qp { healthy } => end.qps[which(healthy)].qpn,
            Self::KeyIndex => end.qps[ATTACKED].key >> 8,
            Self::Created(back) => {
                let index = driver.created.len().checked_sub(1 + usize::from(back % 8));
                index.map_or(0, |index| driver.created[index].1)
            }
            Self::Small(value) => u32::from(value),
            Self::Any(value) => value,
        }
    }
}

impl Word {
    fn value(self) -> u64 {
        match self {
            Self::Page(page) => BASE + u64::from(page) % 0x300 * PAGE as u64,
            Self::Any(value) => value,
        }
    }
}

/// The object that a command names if its input does not choose another.
enum Named {
    /// An object that exists from the start, at 0x08.
    Live(Number),
    /// The newest object of a create command, at this offset.
    Newest(Opcode, usize),
}

/// Returns the object that a command names, if it names one.
fn named(opcode: Opcode) -> Option<Named> {
    use Opcode as O;
    let newest = |created| Some(Named::Newest(created, 8));
    match opcode {
        O::DEALLOC_UAR => newest(O::ALLOC_UAR),
        O::DEALLOC_PD => newest(O::ALLOC_PD),
        O::DEALLOC_TRANSPORT_DOMAIN => newest(O::ALLOC_TRANSPORT_DOMAIN),
        O::DEALLOC_XRCD => newest(O::ALLOC_XRCD),
        O::DEALLOC_Q_COUNTER => newest(O::ALLOC_Q_COUNTER),
        O::DEALLOC_FLOW_COUNTER => newest(O::ALLOC_FLOW_COUNTER),
        O::MODIFY_RMP | O::QUERY_RMP | O::DESTROY_RMP => newest(O::CREATE_RMP),
        O::DESTROY_XRC_SRQ | O::QUERY_XRC_SRQ | O::ARM_XRC_SRQ => newest(O::CREATE_XRC_SRQ),
        O::DESTROY_UMEM => newest(O::CREATE_UMEM),
        O::DESTROY_UCTX => newest(O::CREATE_UCTX),
        O::MODIFY_TIR | O::DESTROY_TIR | O::QUERY_TIR => newest(O::CREATE_TIR),
        O::MODIFY_SQ | O::DESTROY_SQ | O::QUERY_SQ => newest(O::CREATE_SQ),
        O::MODIFY_RQ | O::DESTROY_RQ | O::QUERY_RQ => newest(O::CREATE_RQ),
        O::MODIFY_TIS | O::DESTROY_TIS | O::QUERY_TIS => newest(O::CREATE_TIS),
        O::MODIFY_RQT | O::DESTROY_RQT | O::QUERY_RQT => newest(O::CREATE_RQT),
        O::QUERY_FLOW_COUNTER => Some(Named::Newest(O::ALLOC_FLOW_COUNTER, 0x1c)),
        O::SET_FLOW_TABLE_ROOT
        | O::DESTROY_FLOW_TABLE
        | O::QUERY_FLOW_TABLE
        | O::MODIFY_FLOW_TABLE
        | O::CREATE_FLOW_GROUP
        | O::SET_FLOW_TABLE_ENTRY
        | O::QUERY_FLOW_TABLE_ENTRY
        | O::DELETE_FLOW_TABLE_ENTRY => Some(Named::Newest(O::CREATE_FLOW_TABLE, 0x14)),
        O::DESTROY_FLOW_GROUP | O::QUERY_FLOW_GROUP => {
            Some(Named::Newest(O::CREATE_FLOW_GROUP, 0x18))
        }
        O::DESTROY_EQ | O::QUERY_EQ => Some(Named::Live(Number::CompletionEq)),
        O::DESTROY_CQ | O::QUERY_CQ | O::MODIFY_CQ => {
            Some(Named::Live(Number::Cq { healthy: false }))
        }
        O::DESTROY_MKEY | O::QUERY_MKEY => Some(Named::Live(Number::KeyIndex)),
        O::DESTROY_QP
        | O::QUERY_QP
        | O::RST2INIT_QP
        | O::INIT2INIT_QP
        | O::INIT2RTR_QP
        | O::RTR2RTS_QP
        | O::RTS2RTS_QP
        | O::SQERR2RTS_QP
        | O::SQD_RTS_QP
        | O::TO_ERR_QP
        | O::TO_RST_QP
        | O::ATTACH_TO_MCG
        | O::DETACH_FROM_MCG => Some(Named::Live(Number::Qp { healthy: false })),
        _ => None,
    }
}

fn has_variants(opcode: Opcode) -> bool {
    matches!(
        opcode,
        Opcode::QUERY_HCA_CAP
            | Opcode::SET_HCA_CAP
            | Opcode::QUERY_PAGES
            | Opcode::MANAGE_PAGES
            | Opcode::TEARDOWN_HCA
            | Opcode::MODIFY_CQ
            | Opcode::QUERY_VPORT_STATE
            | Opcode::MODIFY_VPORT_STATE
            | Opcode::ACCESS_REG
            | Opcode::MAD_IFC
            | Opcode::SET_FLOW_TABLE_ROOT
            | Opcode::SET_FLOW_TABLE_ENTRY
    )
}

impl Driver {
    /// Returns the number of the newest object that a command created, or 0.
    fn newest(&self, opcode: Opcode) -> u32 {
        let mut of_it = self
            .created
            .iter()
            .filter(|(created, _)| *created == opcode);
        of_it.next_back().map_or(0, |&(_, number)| number)
    }

    /// Submits a command and lets the device execute it.
    fn submit(
        &mut self,
        input: &[u8],
        output: usize,
        spoil: impl FnOnce(&Bench, &mut CmdQueueEntry),
    ) {
        let bench = &mut self.world.a.bench;
        let mut submission = bench.prepare(input, output);
        spoil(bench, &mut submission.entry);
        bench.submit(&submission);
        run(&self.world.sim, 1);
        let entry = self.world.a.bench.entry(submission.slot);
        let answer = entry.command_output_inline_data();
        let is_done = !entry.ownership() && entry.status() == DeliveryStatus::OK;
        if is_done && answer[0] == 0 {
            let opcode = Opcode(u16::from_be_bytes([input[0], input[1]]));
            self.created.extend(answer.first_chunk::<12>().map(|bytes| {
                let number = bytes[8..].iter();
                (opcode, number.fold(0, |n, &byte| n << 8 | u32::from(byte)))
            }));
        }
    }

    fn command(&mut self, command: &Command) {
        let inputs = inputs();
        let mut input = inputs[usize::from(command.which) % inputs.len()].clone();
        let opcode = Opcode(u16::from_be_bytes([input[0], input[1]]));
        if has_variants(opcode) || command.odd_op_mod.now() {
            input[7] = command.op_mod % 4;
        }
        let (at, number) = match (command.object, named(opcode)) {
            (Some(number), Some(Named::Newest(_, at))) => (at, number.resolve(self)),
            (Some(number), _) | (None, Some(Named::Live(number))) => (8, number.resolve(self)),
            (None, Some(Named::Newest(created, at))) => (at, self.newest(created)),
            (None, None) => (8, 0),
        };
        put(&mut input, at, number);
        if command.fields_when.now() {
            for (at, number) in command.fields {
                put(
                    &mut input,
                    usize::from(at) % 68 * 4 + 4,
                    number.resolve(self),
                );
            }
        }
        command.spoil.apply(&mut input);
        input.extend(
            command
                .list
                .iter()
                .flat_map(|word| word.value().to_be_bytes()),
        );
        if !command.undeliverable.now() {
            return self.submit(&input, 0x1010, |_, _| {});
        }
        self.submit(&input, 0x800, |bench, entry| {
            let (input, output) = command.lengths;
            entry.set_input_length(input).set_output_length(output);
            command.entry.apply(&mut entry.as_mut_bytes()[..0x3f]);
            bench.edit_mailbox(false, 0, |image| {
                command.mailbox.apply(image.as_mut_bytes())
            });
        });
    }
}

/// Returns a well-formed create command. If it needs an object that another create command makes, it names the newest
/// such object.
fn creation(driver: &Driver, what: u8) -> Vec<u8> {
    // Object numbers have 24 bits. A scribble into the output can put anything into the upper eight.
    let (world, newest) = (&driver.world, |opcode| driver.newest(opcode) & 0x00ff_ffff);
    let (uar, pd, eqn) = (
        world.a.resources.uar,
        world.a.resources.pd,
        world.a.completion_eqn,
    );
    let live = &world.a.qps[ATTACKED];
    let at = |offset: usize| BASE + offset as u64;
    let with_list = |input: &[u8], words: &[u64]| [input, &crate::bench::list(words)].concat();
    match what % 18 {
        0 => {
            let mut create = CreateEqIn::new();
            create
                .eq_context_entry_mut()
                .set_log_eq_size(3)
                .set_uar_page(uar)
                .set_intr(1);
            with_list(create.as_bytes(), &[at(live.ring)])
        }
        1 => {
            let create = crate::bench::cq_input(uar, eqn, 4, at(live.record));
            with_list(create.as_bytes(), &[at(live.ring)])
        }
        2 => {
            let mut create = CreateMkeyIn::new();
            create.set_translations_octword_actual_size(1);
            let context = create.memory_key_mkey_entry_mut();
            context
                .set_pd(pd)
                .set_qpn(0xff_ffff)
                .set_access_mode_1_0(1)
                .set_log_page_size(12);
            context
                .set_start_addr(live.va)
                .set_len(PAGE as u64)
                .set_translations_octword_size(1)
                .set_lr(true)
                .set_rr(true);
            with_list(create.as_bytes(), &[live.va, 0])
        }
        3 => {
            let mut create = CreateMkeyIn::new();
            create.set_translations_octword_actual_size(2);
            let context = create.memory_key_mkey_entry_mut();
            context
                .set_pd(pd)
                .set_qpn(0xff_ffff)
                .set_access_mode_1_0(2)
                .set_translations_octword_size(2);
            context
                .set_len(PAGE as u64)
                .set_lr(true)
                .set_rr(true)
                .set_rw(true)
                .set_umr_en(true);
            let entry = (PAGE as u64 / 2) << 32 | u64::from(live.key);
            with_list(create.as_bytes(), &[entry, live.va, entry, live.va + 1_024])
        }
        4 => {
            let mut create = CreateQpIn::new();
            let context = create.qpc_mut();
            context
                .set_pd(pd)
                .set_uar_page(uar)
                .set_log_sq_size(5)
                .set_log_rq_size(4)
                .set_log_rq_stride(2)
                .set_pm_state(3);
            context
                .set_cqn_snd(live.cq.number)
                .set_cqn_rcv(live.cq.number)
                .set_dbr_addr(at(live.record));
            with_list(create.as_bytes(), &[at(live.ring)])
        }
        5 => {
            let mut create = CreateUmemIn::new();
            create
                .umem_mut()
                .set_num_of_mtt(1)
                .set_page_offset(u32::from(what / 18) * 64);
            with_list(create.as_bytes(), &[at(live.ring) | MTT_READ | MTT_WRITE])
        }
        6 => {
            let mut create = crate::bench::cq_input(uar, eqn, 4, 0);
            let umem = newest(Opcode::CREATE_UMEM);
            create.set_cq_umem_valid(true).set_cq_umem_id(umem);
            let context = create.cq_context_mut();
            context.set_dbr_umem_valid(true).set_dbr_umem_id(umem);
            create.as_bytes().to_vec()
        }
        7 => AllocTransportDomainIn::new().as_bytes().to_vec(),
        8 => {
            let mut create = CreateRqIn::new();
            let context = create.ctx_mut();
            context.set_cqn(live.cq.number).set_flush_in_error_en(true);
            let wq = context.wq_mut();
            wq.set_wq_type(1).set_pd(pd).set_dbr_addr(at(live.record));
            wq.set_log_wq_stride(5).set_log_wq_sz(4);
            with_list(create.as_bytes(), &[at(live.ring)])
        }
        9 => {
            let mut create = CreateSqIn::new();
            let context = create.ctx_mut();
            context.set_cqn(live.cq.number).set_flush_in_error_en(true);
            let tis = newest(Opcode::CREATE_TIS);
            context
                .set_tis_lst_sz(u32::from(tis != 0))
                .set_tis_num_0(tis);
            let wq = context.wq_mut();
            wq.set_wq_type(1).set_pd(pd).set_uar_page(uar);
            wq.set_dbr_addr(at(live.record))
                .set_log_wq_stride(6)
                .set_log_wq_sz(5);
            with_list(create.as_bytes(), &[at(live.ring)])
        }
        10 => {
            let mut create = CreateTisIn::new();
            let domain = newest(Opcode::ALLOC_TRANSPORT_DOMAIN);
            create.ctx_mut().set_transport_domain(domain);
            create.as_bytes().to_vec()
        }
        11 => {
            let mut create = CreateRqtIn::new();
            let context = create.rqt_context_mut();
            context.set_rqt_max_size(4).set_rqt_actual_size(1);
            let rqn = newest(Opcode::CREATE_RQ).to_be_bytes();
            [create.as_bytes(), &rqn].concat()
        }
        12 => {
            let mut create = CreateTirIn::new();
            create.ctx_mut().set_inline_rqn(newest(Opcode::CREATE_RQ));
            create.as_bytes().to_vec()
        }
        13 => {
            let mut create = CreateTirIn::new();
            let context = create.ctx_mut().set_disp_type(1);
            context.set_indirect_table(newest(Opcode::CREATE_RQT));
            create.as_bytes().to_vec()
        }
        14 => {
            let mut create = CreateFlowTableIn::new();
            let level = newest(Opcode::CREATE_FLOW_TABLE) % 4;
            let context = create.flow_table_context_mut();
            context.set_level(level).set_log_size(2);
            create.as_bytes().to_vec()
        }
        15 => {
            let mut create = CreateFlowGroupIn::new();
            create
                .set_table_id(newest(Opcode::CREATE_FLOW_TABLE))
                .set_end_flow_index(3);
            create.as_bytes().to_vec()
        }
        16 => {
            let mut set = SetFlowTableEntryIn::new();
            set.set_table_id(newest(Opcode::CREATE_FLOW_TABLE));
            set.flow_context_mut()
                .set_group_id(newest(Opcode::CREATE_FLOW_GROUP))
                .set_action(flow_action::FWD_DEST)
                .set_destination_list_size(1);
            let tir = newest(Opcode::CREATE_TIR);
            let to = crate::eth_support::destination(FlowDestinationType::TIR, tir);
            with_list(set.as_bytes(), &[to])
        }
        _ => {
            let mut create = CreateRmpIn::new();
            let context = create.ctx_mut();
            context.set_state(1);
            context
                .wq_mut()
                .set_pd(pd)
                .set_dbr_addr(at(live.record))
                .set_log_wq_stride(6)
                .set_log_wq_sz(4);
            with_list(create.as_bytes(), &[at(live.ring)])
        }
    }
}

impl Attack {
    fn make(&self, driver: &mut Driver) {
        let world = &mut driver.world;
        match self {
            Self::Command(command) => driver.command(command),
            Self::Create { what, spoil } => {
                let mut input = creation(driver, *what);
                spoil.apply(&mut input[8..]);
                driver.submit(&input, 16, |_, _| {});
            }
            Self::Doorbell {
                register,
                number,
                word,
                wide,
            } => {
                let register =
                    [0x20, 0x40, 0x48, 0x800, 0x900, 0x24, 0x804][usize::from(*register) % 7];
                let at = u64::from(world.a.resources.uar) << 12 | register;
                let number = number.resolve(driver);
                let world = &driver.world;
                match (wide & register.is_multiple_of(8), register) {
                    (true, 0x20) => world
                        .a
                        .bench
                        .write64(at, u64::from(*word) << 32 | u64::from(number)),
                    (true, _) => world
                        .a
                        .bench
                        .write64(at, u64::from(*word) << 32 | u64::from(number) << 8 | 1),
                    (false, 0x40 | 0x48) => {
                        world.a.bench.write32(at, number << 24 | word & 0xff_ffff)
                    }
                    (false, _) => world.a.bench.write32(at, *word),
                }
            }
            Self::Register {
                offset,
                bytes,
                length,
                when,
            } if when.now() => write_bar(&world.a.bench, *offset, bytes, *length),
            Self::Config {
                offset,
                bytes,
                length,
                when,
            } if when.now() => write_config(&world.a.bench, *offset, bytes, *length),
            Self::Scribble { at, bytes, when } if when.now() => {
                world
                    .a
                    .bench
                    .memory
                    .write_bytes(usize::try_from(at % REACH).unwrap(), bytes);
            }
            Self::Unmap { when } if when.now() => {
                let bytes = world.a.bench.memory.len();
                // The call fails if the memory is unmapped already.
                let _ = world.a.bench.function.dma_unmap(BASE, bytes);
            }
            Self::Register { .. }
            | Self::Config { .. }
            | Self::Scribble { .. }
            | Self::Unmap { .. } => {}
            Self::Map => map(&world.a.bench),
            Self::Queue { healthy, at, value } => {
                let live = &world.a.qps[usize::from(*healthy)];
                let places = [
                    live.ring + usize::from(*at) % 1_023 * 4,
                    live.record,
                    live.record + 4,
                    live.cq.record,
                ];
                world
                    .a
                    .bench
                    .memory
                    .store_be32(places[usize::from(*at) % 4], *value);
            }
            Self::Interrupts { count } => {
                let some = world
                    .a
                    .bench
                    .interrupts
                    .iter()
                    .take(usize::from(*count) % 3)
                    .cloned()
                    .collect();
                world.a.bench.function.set_interrupts(some);
            }
            Self::Wait { microseconds } => world.run(u64::from(*microseconds)),
        }
        run(&driver.world.sim, 1);
    }
}

fn map(bench: &Bench) {
    // The call fails if the memory is mapped already.
    let _ = bench
        .function
        .dma_map(BASE, bench.memory.clone(), 0, bench.memory.len());
}

fn write_bar(bench: &Bench, offset: u16, bytes: &[u8; 8], length: u8) {
    let bytes = &bytes[..usize::from(length) % 8 + 1];
    // The order is that of `Function`: first the BAR's memory, if the BAR has memory at this offset, then the
    // notification.
    if bench.bar.contains(usize::from(offset), bytes.len()) {
        bench.bar.write_bytes(usize::from(offset), bytes);
    }
    bench.function.bar_written(0, u64::from(offset), bytes);
}

fn write_config(bench: &Bench, offset: u16, bytes: &[u8; 4], length: u8) {
    let length = [1, 2, 4][usize::from(length) % 3];
    let offset = offset % 4_096 / 4 * 4;
    bench.function.config_write(offset, &bytes[..length]);
    let mut read = [0; 4];
    bench.function.config_read(offset, &mut read[..length]);
}

/// Upper bound, in virtual microseconds, on the time in which a function that is not attacked executes a command.
const MOST_US: u64 = 1;

/// Executes a NOP command on a function that is not attacked, and records the time.
fn check_honest(bench: &mut Bench, longest: &Longest) {
    let submission = bench.prepare(NopIn::new().as_bytes(), 16);
    bench.submit(&submission);
    let (mut answer, sim) = (None, bench.sim.clone());
    let mut is_answered = || {
        answer = answer.take().or_else(|| bench.collect(submission.slot));
        answer.is_some()
    };
    longest.wait(|| now_us(&sim), &mut is_answered, || run(&sim, 1));
    let (delivery, output) = answer.expect("an answer");
    assert_eq!(
        (delivery, CmdStatus(output[0])),
        (DeliveryStatus::OK, CmdStatus::OK)
    );
}

/// Whatever commands a function with live queues gets, time advances, its peer still works, and a reset frees
/// everything.
#[test]
fn a_hostile_driver_leaves_nothing_behind() {
    static BESIDE: Longest = Longest::new("a hostile driver", "us", MOST_US);
    let (iterations, time) = extent(3_000, 5);
    check!()
        .with_generator(produce::<Vec<Attack>>().with().len(0..120_usize))
        .with_iterations(iterations)
        .with_test_time(time)
        .for_each(|attacks| {
            let mut driver = Driver {
                world: World::new(),
                created: Vec::new(),
            };
            for attack in attacks {
                attack.make(&mut driver);
                check_honest(&mut driver.world.b.bench, &BESIDE);
            }
            let Driver { mut world, .. } = driver;
            world.run(1_000);
            // The peer has lost at most its connections.
            check_honest(&mut world.b.bench, &BESIDE);
            assert_eq!(world.b.syndrome(), 0);
            world.b.check_canaries();
            map(&world.a.bench);
            world.check_reset();
        });
    BESIDE.report();
}

/// The inputs have every opcode of the simulator. The well-formed create commands succeed in the order of this test.
#[test]
fn commands_of_the_attack_are_all_that_the_simulator_has() {
    let sent: BTreeSet<u16> = inputs()
        .iter()
        .map(|input| u16::from_be_bytes([input[0], input[1]]))
        .collect();
    let known: BTreeSet<u16> = opcodes().map(|opcode| opcode.0).collect();
    assert_eq!(sent, known);

    let mut driver = Driver {
        world: World::new(),
        created: Vec::new(),
    };
    for what in [0, 1, 2, 3, 4, 5, 6, 7, 10, 8, 9, 11, 12, 13, 14, 15, 16, 17] {
        let (input, before) = (creation(&driver, what), driver.created.len());
        driver.submit(&input, 16, |_, _| {});
        let created: Vec<u16> = driver.created[before..]
            .iter()
            .map(|(one, _)| one.0)
            .collect();
        let opcode = u16::from_be_bytes([input[0], input[1]]);
        assert_eq!(created, [opcode], "creation {what}");
    }
}

/// One action of software that ignores the rules of the device.
#[derive(Clone, Debug, TypeGenerator)]
enum Blind {
    Register {
        offset: u16,
        bytes: [u8; 8],
        length: u8,
    },
    Config {
        offset: u16,
        bytes: [u8; 4],
        length: u8,
    },
    /// Writes the address of the command queue; `ours` places it in the bench's memory.
    Queue {
        at: u32,
        ours: bool,
    },
    /// Writes a command queue entry and hands it to the device.
    Entry {
        slot: u8,
        bytes: [u8; 32],
        mailbox: u16,
    },
    Memory {
        at: u16,
        bytes: Vec<u8>,
    },
    Wait {
        microseconds: u16,
    },
}

/// After writes of any bytes to any place, a reset restores the function.
#[test]
fn blind_writes_leave_nothing_behind() {
    static BESIDE: Longest = Longest::new("blind writes", "us", MOST_US);
    let (iterations, time) = extent(5_000, 3);
    check!()
        .with_type::<Vec<Blind>>()
        .with_iterations(iterations)
        .with_test_time(time)
        .for_each(|actions| {
            let bench = Bench::power_on(small("blind", 1));
            bench.start();
            let function = bench.function.clone();
            let honest = Bench::in_world(&bench.sim, small("honest", 2));
            let mut honest = End::power_on(honest, 2).bench;
            for action in actions {
                match action {
                    Blind::Register {
                        offset,
                        bytes,
                        length,
                    } => write_bar(&bench, *offset, bytes, *length),
                    Blind::Config {
                        offset,
                        bytes,
                        length,
                    } => write_config(&bench, *offset, bytes, *length),
                    Blind::Queue { at, ours } => {
                        bench.write32(0x10, 0);
                        bench.write32(
                            0x14,
                            if *ours {
                                0x4000_0000 + at % 4 * 4_096
                            } else {
                                *at
                            },
                        );
                    }
                    Blind::Entry {
                        slot,
                        bytes,
                        mailbox,
                    } => {
                        let mut entry = CmdQueueEntry::new();
                        let (input, rest) = bytes.split_at(16);
                        entry
                            .set_type(7)
                            .set_ownership(true)
                            .set_token(u32::from(rest[0] % 2));
                        entry.set_command_input_inline_data(input.try_into().unwrap());
                        entry
                            .set_input_length(u32::from(rest[1]) << 2)
                            .set_output_length(u32::from(rest[2]) << 4);
                        let mailbox = BASE + u64::from(mailbox % 64) * 0x200;
                        entry
                            .set_input_mailbox_pointer(mailbox)
                            .set_output_mailbox_pointer(mailbox);
                        let slot = usize::from(*slot) % 32;
                        bench.memory.write_obj(slot * 64, &entry);
                        bench.write32(0x18, 1 << slot);
                    }
                    Blind::Memory { at, bytes } => {
                        bench.memory.write_bytes(usize::from(*at), bytes)
                    }
                    Blind::Wait { microseconds } => run(&bench.sim, u64::from(*microseconds)),
                }
                check_honest(&mut honest, &BESIDE);
            }
            function.reset();
            let report = bench.sim.report(&function);
            assert!(
                report.objects.is_empty() && report.pages_held == 0,
                "{report:?}"
            );
            bench.memory.fill(0, 4_096, 0);
            let mut bench = bench;
            bench.start();
            bench.exec(&EnableHcaIn::new()).unwrap();
            bench.satisfy_pages(1);
        });
    BESIDE.report();
}
