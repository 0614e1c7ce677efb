//! Recording of a function: brings the function up, sends all queries, and tears the function down.
//!
//! A driver's behaviour depends on the device's answers, few of which are published. A [`Record`] contains them:
//! identity, capability pages of every type as maximum and current, registers, the state of vport and port, and the
//! commands sent with their answers. Nothing is set except what the order of commands needs (the interface step,
//! firmware pages): no capability, no register, no address. There is one exception: the vport's list of unicast
//! addresses is written, to test whether it reads back as written. Its original content is restored.
//!
//! The initialization segment is recorded at three times: before the address of the command queue is written, after
//! ENABLE_HCA, and after INIT_HCA. Capabilities in force are read once more after INIT_HCA. The record lists the
//! changes.
//!
//! Records are meant to be published, so data that identifies a card or its owner is replaced before it is written:
//! the MAC and GUIDs, wherever their bytes appear in the segment, a page or a register. Serial numbers, node
//! descriptions and addresses of memory are not queried. The text has the format of the simulator's profiles
//! ([`Record::text`]).

use std::fmt::Write as _;

use driver::Function;
use zerocopy::{FromBytes, IntoBytes};

use super::firmware::{CONFIG_COMMAND, ISSI, MEMORY_SPACE, PageStage, enable, give_pages};
use crate::config::HcaConfig;
use crate::control::{Commands, Control};
use crate::error::{CmdError, MlxError};
use crate::health::halves;
use crate::report::Stopwatch;
use crate::segment::{self, Hardware};
use crate::teardown;
use crate::vport::{LIST_UNICAST, is_unicast, mac_of, read_list, write_list};
use mlx_prm::{
    AccessRegIn, AtomicCaps, CapType, CmdHcaCap, CmdHcaCap2, Command, DisableHcaIn, EthOffloadCaps,
    Field, FlowTableNicCap, InitHcaIn, InitSegmentWords, MacAddress, OdpCaps, Opcode,
    QueryAdapterIn, QueryHcaCapIn, QueryIssiIn, QueryNicVportContextIn, QueryRoceAddressIn,
    QuerySpecialContextsIn, QueryVnicEnvIn, QueryVportCounterIn, QueryVportStateIn, RegisterId,
    RoceCap, SetIssiIn, Shape, TeardownHcaIn, known_syndrome,
};

/// Capability types that are queried; the device refuses those that it does not have.
const CAP_TYPES: std::ops::Range<u16> = 0..0x30;
/// `op_mod` of ACCESS_REG: read.
const READ: u32 = 1;
/// Descriptive registers, and the length of each in bytes (Linux `mlx5_ifc.h`).
const REGISTERS: [(RegisterId, usize); 13] = [
    (RegisterId::PCAP, 0x14),
    (RegisterId::PMLP, 0x40),
    (RegisterId::PMTU, 0x10),
    (RegisterId::PTYS, 0x40),
    (RegisterId::PAOS, 0x10),
    (RegisterId::PFCC, 0x20),
    (RegisterId::PVLC, 0x10),
    (RegisterId::PCAM, 0x50),
    (RegisterId::MFRL, 0x10),
    (RegisterId::MTPPS, 0x40),
    (RegisterId::MCAM, 0x48),
    (RegisterId::SBCAM, 0x4c),
    (RegisterId::DTOR, 0x40),
];
/// Numbers of the registers that describe a port; the second byte of their images is the port's number.
const PORT_REGISTERS: std::ops::Range<u16> = 0x5000..0x6000;
const PROTO_INFINIBAND: u8 = 1;
const PROTO_ETHERNET: u8 = 4;
/// Offsets in PCI configuration space.
const CONFIG_VENDOR: u16 = 0x00;
const CONFIG_SUBCLASS: u16 = 0x0a;
const CONFIG_SUBSYSTEM: u16 = 0x2e;
const CAP_MSIX: u8 = 0x11;
/// Bytes that replace the MAC in a record; `NO_GUID` replaces GUIDs.
const NO_MAC: [u8; 6] = [0x02, 0, 0, 0, 0, 0x01];
/// Address that is written to the vport's list if the list is empty and the function has no MAC. No other station is
/// likely to use it.
const TEST_MAC: [u8; 6] = [0x02, 0xda, 0x7c, 0x71, 0x0c, 0x01];
const NO_GUID: [u8; 8] = [0x02, 0, 0, 0xff, 0xfe, 0, 0, 0x01];

/// A record of a function: the answers of its device to all queries.
#[derive(Clone, Debug)]
pub struct Record {
    identity: Identity,
    hardware: Hardware,
    psid: String,
    issi: u32,
    queue: (u32, u32),
    segment: [SegmentSnapshot; 3],
    pages: [u64; 3],
    caps: Vec<CapPage>,
    registers: Vec<(RegisterId, Vec<u8>)>,
    state: Vec<String>,
    commands: Vec<String>,
    refused: Vec<String>,
}

/// Identity in PCI configuration space.
#[derive(Clone, Copy, Debug)]
struct Identity {
    vendor: u16,
    subsystem: u16,
    subclass: u8,
    bar_bytes: u64,
    vectors: u16,
}

#[derive(Clone, Debug)]
struct CapPage {
    kind: CapType,
    max: Vec<u8>,
    current: Vec<u8>,
}

/// The contents of the initialization segment at one time.
#[derive(Clone, Debug)]
struct SegmentSnapshot {
    when: &'static str,
    /// Text that replaces the address of the command queue. The address itself is not recorded.
    address: &'static str,
    bytes: Vec<u8>,
}

/// The answer to a command: its structure, and the bytes after it.
type Answer<C> = (<C as Command>::Out, Vec<u8>);

/// A function that is being recorded. Each command adds a line to the record, with two exceptions: giving pages adds
/// one line per stage, and taking them back adds none.
struct Recorder {
    control: Control,
    commands: Vec<String>,
    refused: Vec<String>,
    redactions: Vec<(Vec<u8>, Vec<u8>)>,
    /// The vport's MAC; zero if it is not yet known, or if there is none.
    mac: [u8; 6],
}

impl Record {
    /// Resets a function, runs all queries, and tears the function down.
    ///
    /// # Errors
    /// [`MlxError`]: the error that ended the recording. A query that the device refuses is not an error; it is a line
    /// of the record.
    pub fn take(function: Function, config: &HcaConfig) -> Result<Self, MlxError> {
        let clock = function.clock();
        let mut watch = Stopwatch::new(&*clock);
        let before = before_address(&function, config)?;
        let control = enable(function, config, &mut watch)?;
        let identity = identity(&control)?;
        let hardware = segment::hardware(&control.function, &control.registers)?;
        let geometry = control
            .registers
            .read(|segment| &segment.cmdq_addr_l_sz)
            .get();
        let mut recorder = Recorder {
            control,
            commands: vec!["ENABLE_HCA: ok".to_owned()],
            refused: Vec::new(),
            redactions: Vec::new(),
            mac: [0; 6],
        };
        let enabled = recorder.take_snapshot("behind ENABLE_HCA")?;
        let issi = recorder.agree_on_issi()?;
        let boot = recorder.give_pages(PageStage::Boot)?;
        let mut caps = recorder.capabilities()?;
        let init = recorder.give_pages(PageStage::Init)?;
        recorder.init_hca(&caps)?;
        let initialized = recorder.take_snapshot("behind INIT_HCA")?;
        let mut segment = [before, enabled, initialized];
        let regular = recorder.give_pages(PageStage::Regular).unwrap_or(0);
        let psid = recorder.psid()?;
        let mut state = recorder.state()?;
        state.extend(recorder.capabilities_after(&caps)?);
        state.extend(recorder.contexts()?);
        state.extend(recorder.unicast_list(&caps)?);
        let mut registers = recorder.registers(&caps)?;
        for page in &mut caps {
            recorder.redact(&mut page.max);
            recorder.redact(&mut page.current);
        }
        for (_, image) in &mut registers {
            recorder.redact(image);
        }
        for snapshot in &mut segment {
            recorder.redact(&mut snapshot.bytes);
        }
        let (commands, refused) = recorder.close()?;
        Ok(Self {
            identity,
            hardware,
            psid,
            issi,
            queue: (geometry >> 4 & 0xf, geometry & 0xf),
            segment,
            pages: [boot, init, regular],
            caps,
            registers,
            state,
            commands,
            refused,
        })
    }

    /// Returns the PCI device ID.
    #[must_use]
    pub const fn device_id(&self) -> u16 {
        self.hardware.device_id
    }

    /// Returns the firmware version: major, minor, sub-minor.
    #[must_use]
    pub const fn firmware_version(&self) -> (u16, u16, u16) {
        self.hardware.firmware
    }

    /// Returns the board's PSID; `unknown` if the device does not report it.
    #[must_use]
    pub fn psid(&self) -> &str {
        &self.psid
    }

    /// Returns the number of recorded capability pages and the number of recorded registers.
    #[must_use]
    pub fn counts(&self) -> [usize; 2] {
        [self.caps.len(), self.registers.len()]
    }

    /// Returns the commands with their answers, one per line.
    #[must_use]
    pub fn commands(&self) -> &[String] {
        &self.commands
    }

    /// Returns the commands that the device refused, with status and syndrome.
    #[must_use]
    pub fn refused(&self) -> &[String] {
        &self.refused
    }

    /// Returns the record as a profile file of the simulator, with the given name.
    #[must_use]
    pub fn text(&self, name: &str) -> String {
        let mut out = String::new();
        // PANIC: writing to a string does not fail.
        self.write(&mut out, name)
            .unwrap_or_else(|error| panic!("a string: {error}"));
        out
    }

    fn write(&self, out: &mut String, name: &str) -> std::fmt::Result {
        let Hardware {
            device_id,
            revision,
            firmware: (major, minor, sub),
            ..
        } = self.hardware;
        let model = crate::ids::product(device_id).unwrap_or("unknown device");
        writeln!(
            out,
            "# A record of a function. MAC and GUIDs are replaced; rows of zeros are left out of pages and registers."
        )?;
        writeln!(out, "name = {name:?}")?;
        writeln!(
            out,
            "title = \"{model}, firmware {major}.{minor}.{sub:04}, recorded\""
        )?;
        writeln!(out, "base = \"common\"")?;
        let state = [&self.state[..], &self.segment_lines()].concat();
        list(out, "state", &state)?;
        list(out, "commands", &self.commands)?;
        let Identity {
            vendor,
            subsystem,
            subclass,
            bar_bytes,
            vectors,
        } = self.identity;
        writeln!(out, "\n[pci]")?;
        for (field, value) in [
            ("vendor_id", u64::from(vendor)),
            ("device_id", u64::from(device_id)),
            ("subsystem_id", u64::from(subsystem)),
            ("revision", u64::from(revision)),
            ("subclass", u64::from(subclass)),
            ("bar_bytes", bar_bytes),
            ("msix_vectors", u64::from(vectors)),
        ] {
            writeln!(out, "{field} = {{ is = {value:#x} }}")?;
        }
        if let Some(id) = crate::ids::virtual_of(device_id) {
            // No query returns the device ID of the virtual functions.
            writeln!(
                out,
                "\n[vf]\ndevice_id = {{ is = {id:#x}, derived = \"Linux main.c mlx5_core_pci_table\" }}"
            )?;
        }
        writeln!(
            out,
            "\n[firmware]\nversion = {{ is = \"{major}.{minor}.{sub}\" }}"
        )?;
        writeln!(out, "psid = {{ is = \"{}\" }}", self.psid)?;
        let (log_size, log_stride) = self.queue;
        writeln!(out, "\n[segment]\nissi = {{ is = {:#x} }}", self.issi)?;
        writeln!(
            out,
            "log_cmdq_size = {{ is = {log_size} }}\nlog_cmdq_stride = {{ is = {log_stride} }}"
        )?;
        let [boot, init, regular] = self.pages;
        writeln!(
            out,
            "\n[firmware_pages]\nboot = {{ is = {boot} }}\ninit = {{ is = {init} }}\nregular = {{ is = {regular} }}\nruntime = {{ is = 0 }}"
        )?;
        let port = if is_ethernet(&self.caps) {
            "ethernet"
        } else {
            "infiniband"
        };
        writeln!(out, "\n[port]\ntype = {{ is = {port:?} }}")?;
        for page in &self.caps {
            if let Some((section, fields)) = section(page.kind) {
                writeln!(out, "\n[{section}]")?;
                decoded(out, "", fields, &page.max, &page.current)?;
            }
        }
        for CapPage { kind, max, current } in &self.caps {
            writeln!(out, "\n[[page]]\ntype = {:#04x}", kind.0)?;
            writeln!(out, "name = \"{}\"", kind.name().unwrap_or("unknown"))?;
            writeln!(
                out,
                "max = '''\n{}'''\ncurrent = '''\n{}'''",
                rows(max),
                rows(current)
            )?;
        }
        for (id, image) in &self.registers {
            writeln!(
                out,
                "\n[[register]]\nid = {:#06x}\nname = \"{}\"",
                id.0,
                id.name().unwrap_or("unknown")
            )?;
            writeln!(
                out,
                "bytes = {:#x}\nimage = '''\n{}'''",
                image.len(),
                rows(image)
            )?;
        }
        Ok(())
    }
}

impl Record {
    /// Returns the first contents of the initialization segment, and the rows that differ at each later time.
    fn segment_lines(&self) -> Vec<String> {
        let mut lines = Vec::new();
        let mut last = vec![0; self.segment[0].bytes.len()];
        for SegmentSnapshot {
            when,
            address,
            bytes,
        } in &self.segment
        {
            lines.push(format!("segment {when}: {address}"));
            let both = bytes.chunks(16).zip(last.chunks(16)).enumerate();
            let changed = both.filter(|(_, (now, before))| now != before);
            lines.extend(changed.map(|(number, (now, _))| {
                format!("segment {when}: {:03x}:{}", number * 16, words(now))
            }));
            last.clone_from(bytes);
        }
        lines
    }
}

/// Resets the function and reads the segment before the address of a command queue is written.
fn before_address(function: &Function, config: &HcaConfig) -> Result<SegmentSnapshot, MlxError> {
    function.reset()?;
    let command = function.config_read_u16(CONFIG_COMMAND)?;
    function.config_write_u16(CONFIG_COMMAND, command | MEMORY_SPACE)?;
    let registers = function.bar(0)?.block(0)?;
    segment::wait_for_firmware(function, &registers, config.initializing_timeout)?;
    SegmentSnapshot::take(function, "before the queue's address", None)
}

impl SegmentSnapshot {
    /// Reads the segment. `queue` is the address of the command queue that the driver wrote to it; `None` if it wrote
    /// none.
    fn take(function: &Function, when: &'static str, queue: Option<u64>) -> Result<Self, MlxError> {
        /// Indices of the two dwords of the address: upper half, and lower half with other fields in bits 11:0.
        const HIGH: usize = 4;
        const LOW: usize = 5;
        let registers = function.bar(0)?.block::<InitSegmentWords>(0)?;
        let mut all: Vec<u32> = (0..size_of::<InitSegmentWords>() / 4)
            .map(|at| registers.read(|segment| &segment.words[at]).get())
            .collect();
        let found = [all[HIGH], all[LOW] & !0xfff];
        let address = match queue.map(halves) {
            Some(written) if written == found => "the queue's address is there as written",
            _ if found == [0, 0] => "the queue's address is zero",
            _ => "another address than the queue's is there",
        };
        (all[HIGH], all[LOW]) = (0, all[LOW] & 0xfff);
        Ok(Self {
            when,
            address,
            bytes: all.into_iter().flat_map(u32::to_be_bytes).collect(),
        })
    }
}

impl Recorder {
    fn take_snapshot(&self, when: &'static str) -> Result<SegmentSnapshot, MlxError> {
        let queue = self.control.queue.iova();
        SegmentSnapshot::take(&self.control.function, when, Some(queue))
    }

    /// Sends a command. Returns the answer, or `None` if the device refused. Any other failure ends the recording.
    fn ask<C: Command>(
        &mut self,
        what: &str,
        input: &C,
        tail: &[u8],
        extra: usize,
    ) -> Result<Option<Answer<C>>, MlxError> {
        let answer = self.control.exec_reading(input, tail, extra);
        self.answered(C::OPCODE, what, answer)
    }

    /// Records the outcome of a command. Returns the answer, or `None` if the device refused.
    fn answered<T>(
        &mut self,
        opcode: Opcode,
        what: &str,
        answer: Result<T, CmdError>,
    ) -> Result<Option<T>, MlxError> {
        match answer {
            Ok(answer) => {
                self.note(opcode, what, "ok");
                Ok(Some(answer))
            }
            Err(CmdError::Refused {
                status, syndrome, ..
            }) => {
                let known = known_syndrome(opcode, syndrome).map_or_else(String::new, |known| {
                    format!(", met before: {}", known.means)
                });
                let outcome = format!("status {:#04x}, syndrome {syndrome:#010x}{known}", status.0);
                self.note(opcode, what, &outcome);
                self.refused.extend(self.commands.last().cloned());
                Ok(None)
            }
            Err(error) => Err(error.into()),
        }
    }

    fn note(&mut self, opcode: Opcode, what: &str, outcome: &str) {
        let name = opcode.name().unwrap_or("unknown");
        let space = if what.is_empty() { "" } else { " " };
        self.commands
            .push(format!("{name}{space}{what}: {outcome}"));
    }

    /// Returns the mask of interface step sequences that the device offers. Selects sequence 1 if it is offered. A
    /// device that refuses QUERY_ISSI counts as offering only sequence 0.
    fn agree_on_issi(&mut self) -> Result<u32, MlxError> {
        let Some((answer, _)) = self.ask("", &QueryIssiIn::new(), &[], 0)? else {
            return Ok(1);
        };
        let offered = answer.supported_issi_dw0();
        if offered & 1 << ISSI != 0 {
            let mut input = SetIssiIn::new();
            input.set_current_issi(ISSI);
            self.ask("1", &input, &[], 0)?;
        }
        Ok(offered)
    }

    fn give_pages(&mut self, stage: PageStage) -> Result<u64, MlxError> {
        let given = give_pages(&mut self.control, stage);
        let outcome = match &given {
            Ok(count) => format!("{count} pages"),
            Err(error) => error.to_string(),
        };
        self.note(Opcode::QUERY_PAGES, &format!("{stage:?}"), &outcome);
        given
    }

    fn capabilities(&mut self) -> Result<Vec<CapPage>, MlxError> {
        let mut found = Vec::new();
        for kind in CAP_TYPES.map(CapType) {
            let mut half = |op_mod: u32| {
                let mut input = QueryHcaCapIn::new();
                input.set_op_mod(op_mod);
                let answer = self.ask(&format!("op_mod {op_mod:#04x}"), &input, &[], 0)?;
                Ok::<_, MlxError>(answer.map(|(output, _)| output.capability().to_vec()))
            };
            let (max, current) = (half(kind.max())?, half(kind.current())?);
            if let (Some(max), Some(current)) = (max, current) {
                found.push(CapPage { kind, max, current });
            }
        }
        Ok(found)
    }

    fn init_hca(&mut self, caps: &[CapPage]) -> Result<(), MlxError> {
        let mut input = InitHcaIn::new();
        let first = caps.iter().find(|page| page.kind == CapType::GENERAL);
        if first
            .and_then(|page| general(&page.current))
            .is_some_and(|caps| caps.sw_owner_id())
        {
            // Any owner identity except zero is valid.
            input.set_sw_owner_id(&[0x5a; 16]);
        }
        self.control.exec(&input)?;
        self.note(Opcode::INIT_HCA, "", "ok");
        Ok(())
    }

    fn psid(&mut self) -> Result<String, MlxError> {
        let Some((answer, _)) = self.ask("", &QueryAdapterIn::new(), &[], 0)? else {
            return Ok("unknown".to_owned());
        };
        let text = answer.query_adapter_struct().vsd_contd_psid();
        Ok(text
            .iter()
            .take_while(|byte| **byte != 0)
            .map(|byte| char::from(*byte))
            .map(|letter| {
                if letter.is_ascii_alphanumeric() {
                    letter
                } else {
                    '_'
                }
            })
            .collect())
    }

    /// Reads the state of the vport, and adds its identifying data to the redactions.
    fn state(&mut self) -> Result<Vec<String>, MlxError> {
        let mut lines = Vec::new();
        if let Some((answer, _)) = self.ask("", &QueryVportStateIn::new(), &[], 0)? {
            lines.push(format!(
                "vport: admin state {}, state {}",
                answer.admin_state(),
                answer.state()
            ));
        }
        if let Some((answer, _)) = self.ask("", &QueryNicVportContextIn::new(), &[], 0)? {
            let context = answer.nic_vport_context();
            let mac = mac_bytes(context.permanent_address());
            lines.push(format!(
                "vport: mtu {}, roce_en {}, permanent address {}, node GUID {}, unicast list of {}",
                context.mtu(),
                u8::from(context.roce_en()),
                present(mac != [0; 6]),
                present(context.node_guid() != 0),
                context.allowed_list_size()
            ));
            self.mac = mac;
            self.add_redaction(&mac, &NO_MAC);
            for guid in [
                context.node_guid(),
                context.port_guid(),
                context.system_image_guid(),
            ] {
                self.add_redaction(&guid.to_be_bytes(), &NO_GUID);
            }
            let [a, b, c, d, e, f] = mac;
            self.add_redaction(&[a ^ 2, b, c, 0xff, 0xfe, d, e, f], &NO_GUID);
        }
        Ok(lines)
    }

    /// Reads the capabilities in force once more. Returns a line for each dword that INIT_HCA has changed.
    fn capabilities_after(&mut self, caps: &[CapPage]) -> Result<Vec<String>, MlxError> {
        let mut lines = Vec::new();
        for page in caps {
            let mut input = QueryHcaCapIn::new();
            let op_mod = page.kind.current();
            input.set_op_mod(op_mod);
            let what = format!("op_mod {op_mod:#04x} behind INIT_HCA");
            let Some((output, _)) = self.ask(&what, &input, &[], 0)? else {
                continue;
            };
            let name = page.kind.name().unwrap_or("unknown");
            let (mut now, mut before) = (output.capability().to_vec(), page.current.clone());
            self.redact(&mut now);
            self.redact(&mut before);
            lines.extend(changed_dwords(name, &now, &before));
        }
        if lines.is_empty() {
            lines.push("pages behind INIT_HCA: as before".to_owned());
        }
        Ok(lines)
    }

    /// Runs other queries that a driver may send about its own function. Each adds its outcome to the record.
    fn contexts(&mut self) -> Result<Vec<String>, MlxError> {
        let mut lines = Vec::new();
        if let Some((keys, _)) = self.ask("", &QuerySpecialContextsIn::new(), &[], 0)? {
            lines.push(format!(
                "keys: reserved {:#x}, null {:#x}, dump/fill {:#x}, end of a list {:#x}",
                keys.resd_lkey(),
                keys.null_mkey(),
                keys.dump_fill_mkey(),
                keys.terminate_scatter_list_mkey()
            ));
        }
        self.ask("index 0", &QueryRoceAddressIn::new(), &[], 0)?;
        self.ask("", &QueryVportCounterIn::new(), &[], 0)?;
        self.ask("", &QueryVnicEnvIn::new(), &[], 0)?;
        Ok(lines)
    }

    /// Tests whether the vport's list of unicast addresses reads back as written. No public document states this for a
    /// virtual function. Restores the original content.
    fn unicast_list(&mut self, caps: &[CapPage]) -> Result<Vec<String>, MlxError> {
        let page = caps.iter().find(|page| page.kind == CapType::GENERAL);
        let Some(general) = page.and_then(|page| general(&page.current)) else {
            return Ok(Vec::new());
        };
        if !is_ethernet(caps) {
            return Ok(Vec::new());
        }
        let most = general.log_max_current_uc_list();
        let read = |recorder: &mut Self, what: &str| {
            let list = read_list::<MacAddress>(&mut recorder.control, LIST_UNICAST, most);
            let list = recorder.answered(Opcode::QUERY_NIC_VPORT_CONTEXT, what, list)?;
            let list = list.map(|list| list.iter().map(mac_of).collect::<Vec<_>>());
            Ok::<_, MlxError>(list)
        };
        let Some(found) = read(self, "unicast list")? else {
            return Ok(Vec::new());
        };
        let own = if is_unicast(self.mac) {
            self.mac
        } else {
            TEST_MAC
        };
        let written = if found.is_empty() {
            vec![own]
        } else {
            found.clone()
        };
        let write = |recorder: &mut Self, what: &str, list: &[[u8; 6]]| {
            let done = write_list(&mut recorder.control, LIST_UNICAST, list);
            recorder.answered(Opcode::MODIFY_NIC_VPORT_CONTEXT, what, done)
        };
        let outcome = match write(self, "unicast list", &written)? {
            None => Ok("it may not be written".to_owned()),
            Some(_) => read(self, "unicast list, written").map(|kept| match kept {
                Some(kept) if kept == written && written == found => {
                    "it reads as written, which proves nothing, because it read so before"
                        .to_owned()
                }
                Some(kept) if kept == written => "it reads as written".to_owned(),
                Some(kept) => format!("it reads otherwise: {} entries", kept.len()),
                None => "it may not be read then".to_owned(),
            }),
        };
        // The original list is restored before an error of the read is returned.
        let given_back = write(self, "unicast list, as found", &found);
        let mut outcome = outcome?;
        if given_back?.is_none() {
            outcome += "; the list that was found could not be written back";
        }
        Ok(vec![format!(
            "unicast list: {} entries found, {} written; {outcome}",
            found.len(),
            written.len()
        )])
    }

    fn registers(&mut self, caps: &[CapPage]) -> Result<Vec<(RegisterId, Vec<u8>)>, MlxError> {
        let ethernet = is_ethernet(caps);
        let mut found = Vec::new();
        for (id, bytes) in REGISTERS {
            let mut image = vec![0; bytes];
            if PORT_REGISTERS.contains(&id.0) {
                image[1] = 1;
            }
            if id == RegisterId::PTYS {
                image[3] = if ethernet {
                    PROTO_ETHERNET
                } else {
                    PROTO_INFINIBAND
                };
            }
            let mut input = AccessRegIn::new();
            input.set_op_mod(READ).set_register_id(id.bits());
            let name = id.name().unwrap_or("unknown");
            if let Some((_, image)) = self.ask(name, &input, &image, bytes)? {
                found.push((id, image));
            }
        }
        Ok(found)
    }

    /// Adds bytes that identify the card, and their replacement, to the redactions. Skips bytes that are all zero,
    /// because they identify nothing.
    fn add_redaction(&mut self, secret: &[u8], instead: &[u8]) {
        if secret.iter().any(|byte| *byte != 0) {
            self.redactions.push((secret.to_vec(), instead.to_vec()));
        }
    }

    fn redact(&self, bytes: &mut [u8]) {
        for (secret, instead) in &self.redactions {
            let mut at = 0;
            while let Some(window) = bytes.get_mut(at..at + secret.len()) {
                if window == &secret[..] {
                    window.copy_from_slice(instead);
                }
                at += 1;
            }
        }
    }

    /// Tears the function down. Returns the commands sent and those refused.
    fn close(mut self) -> Result<(Vec<String>, Vec<String>), MlxError> {
        self.ask("", &TeardownHcaIn::new(), &[], 0)?;
        teardown::reclaim(&mut self.control)?;
        let mut input = DisableHcaIn::new();
        input.set_embedded_cpu_function(self.control.embedded_cpu);
        self.ask("", &input, &[], 0)?;
        self.control.stop_dma();
        if !self.control.bus_master {
            self.control.pages.forget();
        }
        Ok((self.commands, self.refused))
    }
}

/// Returns a line for each dword in which a capability page differs from its contents before INIT_HCA.
fn changed_dwords(name: &str, now: &[u8], before: &[u8]) -> Vec<String> {
    let both = now.chunks(4).zip(before.chunks(4)).enumerate();
    let changed = both.filter(|(_, (now, before))| now != before);
    changed
        .map(|(at, (now, before))| {
            let at = at * 4;
            format!(
                "page {name} behind INIT_HCA: {at:#05x} reads{} instead of{}",
                words(now),
                words(before)
            )
        })
        .collect()
}

fn identity(control: &Control) -> Result<Identity, MlxError> {
    let function = &control.function;
    Ok(Identity {
        vendor: function.config_read_u16(CONFIG_VENDOR)?,
        subsystem: function.config_read_u16(CONFIG_SUBSYSTEM)?,
        subclass: function.config_read_u8(CONFIG_SUBCLASS)?,
        bar_bytes: function.bar(0)?.len(),
        vectors: vectors(function)?,
    })
}

/// Returns the number of entries of the MSI-X table, from the PCI capability list; 1 if the function has no MSI-X.
fn vectors(function: &Function) -> Result<u16, MlxError> {
    let Some(place) = function.capability(CAP_MSIX)? else {
        return Ok(1);
    };
    Ok((function.config_read_u16(place + 2)? & 0x7ff) + 1)
}

fn general(page: &[u8]) -> Option<CmdHcaCap> {
    CmdHcaCap::read_from_prefix(page).ok().map(|(caps, _)| caps)
}

/// Returns true if the function's port is an Ethernet port, or if the record has no general page.
fn is_ethernet(caps: &[CapPage]) -> bool {
    let first = caps.iter().find(|page| page.kind == CapType::GENERAL);
    let general = first.and_then(|page| general(&page.current));
    general.is_none_or(|caps| caps.port_type() == 1)
}

fn mac_bytes(address: &MacAddress) -> [u8; 6] {
    let bytes = address.as_bytes();
    let mut mac = [0; 6];
    // The MAC is in the last six of the structure's eight bytes.
    mac.copy_from_slice(&bytes[bytes.len() - 6..]);
    mac
}

fn present(is: bool) -> &'static str {
    if is { "present" } else { "zero" }
}

/// Returns the section name and the fields of a capability page; `None` if its layout is not known here.
fn section(kind: CapType) -> Option<(&'static str, &'static [Field])> {
    Some(match kind {
        CapType::GENERAL => ("general", CmdHcaCap::FIELDS),
        CapType::ETHERNET_OFFLOADS => ("ethernet_offloads", EthOffloadCaps::FIELDS),
        CapType::ODP => ("odp", OdpCaps::FIELDS),
        CapType::ATOMIC => ("atomic", AtomicCaps::FIELDS),
        CapType::ROCE => ("roce", RoceCap::FIELDS),
        CapType::FLOW_TABLE => ("flow_table", FlowTableNicCap::FIELDS),
        CapType::GENERAL_2 => ("general_2", CmdHcaCap2::FIELDS),
        _ => return None,
    })
}

/// Formats the fields that are not zero. Fields that exceed TOML's 63 bits are left out; the raw page has them.
fn decoded(
    out: &mut String,
    prefix: &str,
    fields: &[Field],
    max: &[u8],
    current: &[u8],
) -> std::fmt::Result {
    for field in fields {
        let name = field.name;
        if let Shape::Nested { fields, .. } = field.shape {
            let prefix = format!("{prefix}{name}.");
            decoded(
                out,
                &prefix,
                fields,
                &max[field.offset..],
                &current[field.offset..],
            )?;
        }
        let (Some(max), Some(current)) = (field.value(max), field.value(current)) else {
            continue;
        };
        if max | current != 0 && i64::try_from(max | current).is_ok() {
            writeln!(
                out,
                "{prefix}{name} = {{ max = {max:#x}, current = {current:#x} }}"
            )?;
        }
    }
    Ok(())
}

/// Formats the bytes in rows of 16, leaving out rows that are all zero.
fn rows(bytes: &[u8]) -> String {
    let mut out = String::new();
    for (number, row) in bytes.chunks(16).enumerate() {
        if row.iter().all(|byte| *byte == 0) {
            continue;
        }
        out += &format!("{:03x}:{}\n", number * 16, words(row));
    }
    out
}

/// Formats bytes as hexadecimal words of four bytes, each after a space.
fn words(bytes: &[u8]) -> String {
    let mut out = String::new();
    for (at, byte) in bytes.iter().enumerate() {
        let space = if at % 4 == 0 { " " } else { "" };
        out += &format!("{space}{byte:02x}");
    }
    out
}

fn list(out: &mut String, name: &str, lines: &[String]) -> std::fmt::Result {
    writeln!(out, "{name} = [")?;
    for line in lines {
        writeln!(out, "    {line:?},")?;
    }
    writeln!(out, "]")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dword_that_init_hca_changes_is_named_by_its_offset_and_both_values() {
        let before: Vec<u8> = (0..0x40).collect();
        assert_eq!(changed_dwords("GENERAL", &before, &before), [""; 0]);
        let mut now = before.clone();
        now[0x1d] = 0;
        assert_eq!(
            changed_dwords("GENERAL", &now, &before),
            ["page GENERAL behind INIT_HCA: 0x01c reads 1c001e1f instead of 1c1d1e1f"]
        );
    }
}
