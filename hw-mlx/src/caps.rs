//! Capabilities: those that the device has, those that we need, and those that we enable.
//!
//! The device describes itself in pages. Each is readable as a *maximum* (capabilities that could be enabled) and as a
//! *current* value (those that are enabled). A page beyond the general one is read only if the general one announces
//! it. Settable capabilities are set once, before INIT_HCA, by writing back a full copy of the current page with our
//! changes (the atomic page: zeros with our change). Afterwards all pages are read again, because counts and limits
//! change with the settings.
//!
//! We refuse a device that lacks a capability that nothing can replace (`missing`). The error names all missing ones at
//! once, so that a person reads one message and not a series of them. Optional capabilities are used if present.
//!
//! [`Caps`] keeps the pages for access to single fields, and converts the numbers that the rest of the driver needs
//! from logarithms to [`Limits`].

use zerocopy::{FromBytes, IntoBytes};

use crate::config::HcaConfig;
use crate::control::{Commands, Control};
use crate::error::{CmdError, MissingCapability, MlxError, NotKept};
use mlx_prm::{AtomicCaps, CapType, CmdHcaCap, CmdHcaCap2, QueryHcaCapIn, RoceCap, SetHcaCapIn};

/// Length of a capability page in bytes.
const PAGE_BYTES: usize = 0x1000;
const PORT_ETHERNET: u32 = 1;
const ROCE_VERSION_2: u32 = 1 << 2;
const CHECKSUM_OFF: u32 = 0;
/// Value of `cmdif_checksum` that makes the device check signatures of commands and sign its answers (mlx5_ifc.h).
const CHECKSUM_ON: u32 = 3;
/// Value of `atomic_req_8B_endianness_mode` for atomic results in host byte order.
const ATOMIC_HOST_ENDIAN: u32 = 1;
/// Mask of compare-and-swap and fetch-and-add (`MLX5_ATOMIC_OPS_CMP_SWAP`, `MLX5_ATOMIC_OPS_FETCH_ADD` in Linux).
const ATOMIC_BASIC: u32 = 0b11;
/// Bit for operands of 8 bytes in the mask of sizes, which are powers of two.
const ATOMIC_OF_8_BYTES: u32 = 8;
/// Length in bytes of a segment: WQEs consist of 16-byte units.
const SEGMENT_BYTES: u32 = 16;
/// Maximum length of a send WQE in bytes, even if the device allows longer WQEs. Linux mlx5_ib computes its maximum
/// number of send segments from the same limit (`main.c` `max_sq_desc`, `qp.c` `get_send_sge`).
const SEND_WQE_BYTES: u32 = 512;
/// Number of event queues we make: for commands, for errors, for completions of shared queues, and for completions of
/// the first instance.
const EVENT_QUEUES: u32 = 4;
/// log2 of the minimum number of entries that the device must support in an event queue. With fewer, the queues for
/// errors and for completions of an instance would overrun at a moderate load.
const LOG_EQ_ENTRIES: u32 = 10;
/// log2 of the number of entries that our own largest queues need. These are QP1's completion queue, and the longer of
/// QP1's two rings.
pub(crate) const LEAST_LOG_CQ_ENTRIES: u32 = 10;
pub(crate) const LEAST_LOG_QP_ENTRIES: u32 = 9;
/// log2 of the smallest page size of a key that works, whatever the device reports.
const SMALLEST_MKEY_PAGE: u32 = 12;
/// Length in bytes of the control segment and the remote address segment of an RC send WQE.
const SEND_WQE_HEADERS: u32 = 32;

/// A capability page, as maximum and as current value.
#[derive(Clone, Debug)]
pub struct Page<T> {
    /// Capabilities that could be enabled.
    pub max: T,
    /// Capabilities that are enabled.
    pub current: T,
    /// Bytes of the whole current page, which begins with the structure.
    image: Vec<u8>,
}

/// A capability page as QUERY_HCA_CAP returned it, with the current values.
#[derive(Clone, PartialEq, Eq, Debug, serde::Serialize, serde::Deserialize)]
pub struct CapabilityPage {
    /// The `op_mod` that reads the page.
    pub op_mod: u32,
    /// Bytes of the page from its start. The driver may keep fewer than the page has.
    pub bytes: Vec<u8>,
}

/// The device's capabilities.
#[derive(Clone, Debug)]
pub struct Caps {
    general: Page<CmdHcaCap>,
    general_2: Option<CmdHcaCap2>,
    roce: Option<Page<RoceCap>>,
    atomic: Option<Page<AtomicCaps>>,
    limits: Limits,
}

/// The device's limits, converted from logarithms to numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Number of queue pairs.
    pub qps: u32,
    /// Number of WQE basic blocks of a send queue, or of entries of a receive queue.
    pub qp_wqes: u32,
    /// Length of a send WQE in bytes.
    pub send_wqe_bytes: u32,
    /// Length of a receive WQE in bytes.
    pub recv_wqe_bytes: u32,
    /// Number of data segments of a send WQE that has a remote address segment.
    pub send_segments: u32,
    /// Number of data segments of a receive WQE.
    pub recv_segments: u32,
    /// Number of completion queues.
    pub cqs: u32,
    /// Number of entries of a completion queue.
    pub cq_entries: u32,
    /// Number of event queues.
    pub eqs: u32,
    /// Number of memory keys.
    pub mkeys: u32,
    /// Length of a memory region in bytes; 2^63 if the device reports more.
    pub region_bytes: u64,
    /// Number of shared receive queues (RMPs).
    pub srqs: u32,
    /// Number of entries of a shared receive queue.
    pub srq_entries: u32,
    /// Number of protection domains.
    pub pds: u32,
    /// Number of RDMA Reads and atomics that a queue pair can have outstanding as responder.
    pub reads_in: u32,
    /// Number of RDMA Reads and atomics that a queue pair can have outstanding as requester.
    pub reads_out: u32,
    /// Length of a message in bytes.
    pub message_bytes: u64,
    /// Number of entries of the RoCE address table.
    pub gids: u32,
    /// log2 of the largest page an mkey's translation entries may have.
    pub log_max_mkey_page: u32,
    /// log2 of the smallest page an mkey's translation entries may have.
    pub log_min_mkey_page: u32,
    /// log2 of the smallest page in the page lists of queues.
    pub log_queue_page: u32,
    /// Code n of the time that the device itself needs before it acknowledges: 4.096 us * 2^n.
    pub ack_delay: u8,
    /// Ticks of the time stamp clock per millisecond.
    pub clock_khz: u32,
}

impl Caps {
    /// Returns the general page, with its current values.
    pub fn general(&self) -> &CmdHcaCap {
        &self.general.current
    }

    /// Returns the second general page, with its current values, if the device has one and did not refuse it.
    pub fn general_2(&self) -> Option<&CmdHcaCap2> {
        self.general_2.as_ref()
    }

    /// Returns the RoCE page, with its current values, if RoCE was enabled when the pages were read.
    pub fn roce(&self) -> Option<&RoceCap> {
        self.roce.as_ref().map(|page| &page.current)
    }

    /// Returns the atomic page, with its current values, if the device has one and did not refuse it.
    pub fn atomic(&self) -> Option<&AtomicCaps> {
        self.atomic.as_ref().map(|page| &page.current)
    }

    /// Returns the port number for address table commands; `None` on functions with one port, which do not need it.
    pub(crate) fn port_number(&self) -> Option<u32> {
        (self.general().num_vhca_ports() > 0).then_some(1)
    }

    /// Returns the device's limits as numbers.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Returns the CQE version. A CQE names its queue by the user index given at creation (version 1) or by its number
    /// (version 0).
    pub fn cqe_version(&self) -> u32 {
        self.general().cqe_version()
    }

    /// Returns the first UDP source port that we may choose for RoCE v2 packets; `None` if we may not choose it.
    pub fn udp_source_port(&self) -> Option<u16> {
        let roce = self.roce()?;
        // The field has 16 bits, so the conversion does not fail.
        roce.sw_r_roce_src_udp_port()
            .then(|| u16::try_from(roce.r_roce_min_src_udp_port()).unwrap_or(0xc000))
    }

    /// Returns true if results of 8-byte atomics arrive in the host's byte order.
    pub fn atomics_in_host_order(&self) -> bool {
        self.atomic()
            .is_some_and(|atomic| atomic.atomic_req_8B_endianness_mode() == ATOMIC_HOST_ENDIAN)
    }

    /// Returns true if the device has compare-and-swap and fetch-and-add of 8 bytes, with results in the host's byte
    /// order. Linux has the same condition for reporting atomics (`get_atomic_caps`,
    /// drivers/infiniband/hw/mlx5/main.c).
    pub fn atomics(&self) -> bool {
        self.atomics_in_host_order()
            && self.atomic().is_some_and(|atomic| {
                atomic.atomic_operations() & ATOMIC_BASIC == ATOMIC_BASIC
                    && atomic.atomic_size_qp() & ATOMIC_OF_8_BYTES != 0
            })
    }

    /// Returns true if the device has memory windows of type 2 and invalidation of keys.
    pub fn memory_windows(&self) -> bool {
        self.general().imaicl()
    }

    /// Returns the pages with their current values, by the `op_mod` that reads each.
    pub(crate) fn images(&self) -> Vec<CapabilityPage> {
        let page = |kind: CapType, bytes: &[u8]| CapabilityPage {
            op_mod: kind.current(),
            bytes: bytes.to_vec(),
        };
        let mut pages = vec![page(CapType::GENERAL, &self.general.image)];
        let general_2 = self.general_2.as_ref();
        pages.extend(general_2.map(|caps| page(CapType::GENERAL_2, caps.as_bytes())));
        pages.extend(self.roce.as_ref().map(|it| page(CapType::ROCE, &it.image)));
        let atomic = self.atomic.as_ref();
        pages.extend(atomic.map(|it| page(CapType::ATOMIC, &it.image)));
        pages
    }

    /// Returns the capabilities of such pages; `None` if the general page is missing or too short. Another page that is
    /// too short counts as missing. The current value of each capability is also used as its maximum.
    pub(crate) fn of_images(pages: &[CapabilityPage]) -> Option<Self> {
        fn read<T: FromBytes + Clone>(pages: &[CapabilityPage], kind: CapType) -> Option<Page<T>> {
            let page = pages.iter().find(|page| page.op_mod == kind.current())?;
            let (current, _) = T::read_from_prefix(&page.bytes).ok()?;
            Some(Page {
                max: current.clone(),
                current,
                image: page.bytes.clone(),
            })
        }
        let general: Page<CmdHcaCap> = read(pages, CapType::GENERAL)?;
        let general_2 = read(pages, CapType::GENERAL_2).map(|page| page.current);
        let roce = read(pages, CapType::ROCE);
        let limits = Limits::new(
            &general.current,
            general_2.as_ref(),
            roce.as_ref().map(|page: &Page<RoceCap>| &page.current),
        );
        Some(Self {
            atomic: read(pages, CapType::ATOMIC),
            general,
            general_2,
            roce,
            limits,
        })
    }

    /// Returns the difference from `before`, as text, if it is in a capability that the driver uses.
    pub(crate) fn differs_in_use(&self, before: &Self) -> Option<String> {
        macro_rules! compare {
            ($now:expr, $before:expr; $($field:ident)+) => {
                $({
                    let (now, before) = ($now.$field(), $before.$field());
                    if now != before {
                        let name = stringify!($field);
                        return Some(format!("{name} is {now}, and was {before}"));
                    }
                })+
            };
        }
        compare!(self.general(), before.general();
            cmdif_checksum log_uar_page_sz mkey_by_name port_type rc ud cqe_version roce
            num_vhca_ports log_max_eq_sz log_max_msg log_max_ra_req_qp log_max_ra_res_qp
            imaicl umr_fence umr_indirect_mkey_disabled max_indirection log_max_klm_list_size
            pg relaxed_ordering_write relaxed_ordering_read relaxed_ordering_read_pci_enabled
            cq_resize log_max_wq_sz sq_ts_format rq_ts_format eth_net_offloads nic_flow_table
            disable_local_lb_uc disable_local_lb_mc log_max_current_uc_list log_max_current_mc_list
            log_max_vlan_list eswitch_manager log_max_l2_table
            vport_counters cc_query_allowed out_of_seq_cnt retransmission_q_counters
            enhanced_error_q_counters roce_accl
        );
        if let (Some(now), Some(before)) = (self.roce(), before.roce()) {
            compare!(now, before;
                roce_version qp_ts_format sw_r_roce_src_udp_port r_roce_min_src_udp_port
            );
        }
        if let (Some(now), Some(before)) = (self.atomic(), before.atomic()) {
            compare!(now, before;
                atomic_req_8B_endianness_mode atomic_operations atomic_size_qp
            );
        }
        let has = |caps: &Self| (caps.roce.is_some(), caps.atomic.is_some());
        if has(self) != has(before) {
            return Some(format!(
                "it has a RoCE page and an atomic page: {:?}, and had: {:?}",
                has(self),
                has(before)
            ));
        }
        let (now, before) = (&self.limits, &before.limits);
        (now != before).then(|| format!("its limits are {now:?}, and were {before:?}"))
    }

    /// Returns whether the device signs its answers to commands.
    pub(crate) fn is_signed(&self) -> bool {
        self.general().cmdif_checksum() == CHECKSUM_ON
    }

    /// Reads the general page, and the RoCE, atomic and second general pages if the general page announces them.
    pub(crate) fn query(control: &mut Control) -> Result<Self, MlxError> {
        let general: Page<CmdHcaCap> = query_page(control, CapType::GENERAL)?;
        let roce = if general.current.roce() {
            Some(query_page(control, CapType::ROCE)?)
        } else {
            None
        };
        let atomic = if general.current.atomic() {
            let page = query_page(control, CapType::ATOMIC);
            control.optional("atomic operations", page)?
        } else {
            None
        };
        let general_2 = if general.current.hca_cap_2() {
            let page = query_page(control, CapType::GENERAL_2);
            let lost = "what the second general page says of the pages of keys";
            let page: Option<Page<CmdHcaCap2>> = control.optional(lost, page)?;
            page.map(|page| page.current)
        } else {
            None
        };
        let limits = Limits::new(
            &general.current,
            general_2.as_ref(),
            roce.as_ref().map(|page: &Page<RoceCap>| &page.current),
        );
        Ok(Self {
            general,
            general_2,
            roce,
            atomic,
            limits,
        })
    }

    /// Enables the capabilities that we use. Returns the general page that is now expected: the page that was set, or
    /// the current page if the device refused an optional change.
    ///
    /// # Errors
    /// The device refused to change an essential capability or to report its RoCE page, or does not answer.
    pub(crate) fn set(
        &self,
        control: &mut Control,
        config: &HcaConfig,
    ) -> Result<CmdHcaCap, MlxError> {
        let mut wanted = wanted_general(&self.general, config);
        let set = set_page(
            control,
            CapType::GENERAL,
            &self.general.image,
            wanted.as_bytes(),
        );
        if self.serves(&wanted) {
            let lost = "queue pairs asked for, and keys by name: the general page stays as it is";
            if control.optional(lost, set)?.is_none() {
                wanted = self.general.current.clone();
            }
        } else {
            set?;
        }
        control
            .queue
            .check_signatures(wanted.cmdif_checksum() == CHECKSUM_ON);
        // mlx5_core writes the atomic page with all bytes zero except the mode, so firmware accepts such a page.
        if let Some(atomic) = &self.atomic
            && atomic.max.supported_atomic_req_8B_endianness_mode_1()
            && atomic.current.atomic_req_8B_endianness_mode() != ATOMIC_HOST_ENDIAN
        {
            let mut wanted = AtomicCaps::new();
            wanted.set_atomic_req_8B_endianness_mode(ATOMIC_HOST_ENDIAN);
            let set = set_page(
                control,
                CapType::ATOMIC,
                &[0; PAGE_BYTES],
                wanted.as_bytes(),
            );
            control.optional("atomic operations, whose results would need swapping", set)?;
        }
        let late;
        let roce = match &self.roce {
            Some(page) => Some(page),
            // RoCE was enabled just before, so its page can be read only now.
            None if wanted.roce() => {
                late = query_page::<RoceCap>(control, CapType::ROCE)?;
                Some(&late)
            }
            None => None,
        };
        if let Some(roce) = roce
            && roce.max.sw_r_roce_src_udp_port()
            && !roce.current.sw_r_roce_src_udp_port()
        {
            let mut wanted = roce.current.clone();
            wanted.set_sw_r_roce_src_udp_port(true);
            let set = set_page(control, CapType::ROCE, &roce.image, wanted.as_bytes());
            control.optional("the choice of UDP source ports", set)?;
        }
        Ok(wanted)
    }

    /// Returns whether the general page already has all settings of `wanted` that we rely on.
    fn serves(&self, wanted: &CmdHcaCap) -> bool {
        let is = self.general();
        (is.log_uar_page_sz(), is.cmdif_checksum(), is.roce())
            == (
                wanted.log_uar_page_sz(),
                wanted.cmdif_checksum(),
                wanted.roce(),
            )
    }

    /// Checks that the device has kept the settings that we rely on. Differences in optional settings (limits, keys by
    /// name) are only logged.
    ///
    /// # Errors
    /// [`MlxError::NotKept`] with all settings that we rely on and that the device did not keep.
    pub(crate) fn check_kept(&self, set: &CmdHcaCap) -> Result<(), MlxError> {
        let kept = self.general();
        let differing = |fields: &[(&'static str, u32, u32)]| -> Vec<NotKept> {
            fields
                .iter()
                .filter(|(_, set, kept)| set != kept)
                .map(|&(name, set, kept)| NotKept { name, set, kept })
                .collect()
        };
        for field in differing(&[
            ("log_max_qp", set.log_max_qp(), kept.log_max_qp()),
            (
                "mkey_by_name",
                set.mkey_by_name().into(),
                kept.mkey_by_name().into(),
            ),
        ]) {
            tracing::warn!("SET_HCA_CAP was not kept: {field}");
        }
        let broken = differing(&[
            // With another page size, doorbells would be written to the wrong page.
            (
                "log_uar_page_sz",
                set.log_uar_page_sz(),
                kept.log_uar_page_sz(),
            ),
            // With another setting, answers would be unsigned, or commands refused.
            (
                "cmdif_checksum",
                set.cmdif_checksum(),
                kept.cmdif_checksum(),
            ),
            ("roce", set.roce().into(), kept.roce().into()),
        ]);
        if broken.is_empty() {
            Ok(())
        } else {
            Err(MlxError::NotKept(broken))
        }
    }

    /// Checks that the device has all capabilities we cannot do without.
    ///
    /// # Errors
    /// All capabilities that are missing.
    pub(crate) fn check(&self) -> Result<(), MlxError> {
        match missing(&self.general, self.roce()) {
            lacks if lacks.is_empty() => Ok(()),
            lacks => Err(MlxError::Missing(lacks)),
        }
    }
}

/// Returns the capabilities that we need and the device lacks. If the RoCE page cannot be read yet, because RoCE is
/// still to be enabled, it is checked by the next call.
fn missing(general: &Page<CmdHcaCap>, roce: Option<&RoceCap>) -> Vec<MissingCapability> {
    let mut lacks = Vec::new();
    let mut need = |holds: bool, name: &'static str, need: &str, have: String| {
        if !holds {
            lacks.push(MissingCapability {
                name,
                need: need.to_owned(),
                have,
            });
        }
    };
    let current = &general.current;
    let bit = |value: bool| u8::from(value).to_string();
    need(
        current.port_type() == PORT_ETHERNET,
        "port_type",
        "1 (Ethernet)",
        current.port_type().to_string(),
    );
    need(current.rc(), "rc", "1", bit(current.rc()));
    need(
        current.ud(),
        "ud",
        "1 (management datagrams)",
        bit(current.ud()),
    );
    need(
        current.cqe_version() == 1,
        "cqe_version",
        "1 (user index in CQEs)",
        current.cqe_version().to_string(),
    );
    let roce_possible = current.roce() || (general.max.roce() && general.max.roce_rw_supported());
    need(roce_possible, "roce", "1, or settable", bit(current.roce()));
    need(
        current.log_pg_sz() <= 12,
        "log_pg_sz",
        "at most 12",
        current.log_pg_sz().to_string(),
    );
    need(
        current.log_max_eq() >= 2,
        "log_max_eq",
        "at least 2",
        current.log_max_eq().to_string(),
    );
    need(
        current.log_max_eq_sz() >= LOG_EQ_ENTRIES,
        "log_max_eq_sz",
        &format!("at least {LOG_EQ_ENTRIES}"),
        current.log_max_eq_sz().to_string(),
    );
    need(
        current.max_num_eqs() == 0 || current.max_num_eqs() >= EVENT_QUEUES,
        "max_num_eqs",
        &format!("0 or at least {EVENT_QUEUES}"),
        current.max_num_eqs().to_string(),
    );
    need(
        current.log_max_cq_sz() >= LEAST_LOG_CQ_ENTRIES,
        "log_max_cq_sz",
        &format!("at least {LEAST_LOG_CQ_ENTRIES}"),
        current.log_max_cq_sz().to_string(),
    );
    need(
        current.log_max_qp_sz() >= LEAST_LOG_QP_ENTRIES,
        "log_max_qp_sz",
        &format!("at least {LEAST_LOG_QP_ENTRIES}"),
        current.log_max_qp_sz().to_string(),
    );
    need(
        current.log_max_cq() >= 1,
        "log_max_cq",
        "at least 1",
        current.log_max_cq().to_string(),
    );
    need(
        current.log_max_qp() >= 2,
        "log_max_qp",
        "at least 2",
        current.log_max_qp().to_string(),
    );
    need(
        current.log_max_mkey() >= 1,
        "log_max_mkey",
        "at least 1",
        current.log_max_mkey().to_string(),
    );
    if let Some(roce) = roce {
        need(
            roce.roce_version() & ROCE_VERSION_2 != 0,
            "roce_version",
            "bit 2 (RoCE v2)",
            format!("{:#x}", roce.roce_version()),
        );
        need(
            roce.roce_address_table_size() >= 1,
            "roce_address_table_size",
            "at least 1",
            roce.roce_address_table_size().to_string(),
        );
    }
    lacks
}

/// Returns the general page that we want to set: the current page, changed to the settings that we use.
fn wanted_general(general: &Page<CmdHcaCap>, config: &HcaConfig) -> CmdHcaCap {
    let mut wanted = general.current.clone();
    let checksum = if config.command_checksums && general.max.cmdif_checksum() == CHECKSUM_ON {
        CHECKSUM_ON
    } else {
        CHECKSUM_OFF
    };
    wanted.set_cmdif_checksum(checksum);
    // Our UAR pages have 4 KiB whatever the host's page size is, because BARs are mapped by the byte.
    wanted.set_log_uar_page_sz(0);
    wanted.set_mkey_by_name(general.max.mkey_by_name());
    if general.max.roce_rw_supported() {
        wanted.set_roce(general.max.roce());
    }
    if let Some(log_qps) = config.log_max_qp {
        wanted.set_log_max_qp(log_qps.min(general.max.log_max_qp()));
    }
    wanted
}

pub(crate) fn query_page<T: FromBytes>(
    control: &mut impl Commands,
    kind: CapType,
) -> Result<Page<T>, CmdError> {
    let mut read = |op_mod: u32| {
        let mut input = QueryHcaCapIn::new();
        input.set_op_mod(op_mod);
        control
            .exec(&input)
            .map(|output| output.capability().to_vec())
    };
    let max = read(kind.max())?;
    let image = read(kind.current())?;
    Ok(Page {
        max: beginning(&max),
        current: beginning(&image),
        image,
    })
}

fn set_page(
    control: &mut impl Commands,
    kind: CapType,
    image: &[u8],
    wanted: &[u8],
) -> Result<(), CmdError> {
    let mut input = SetHcaCapIn::new();
    input.set_op_mod(kind.set());
    let page = input.capability_mut();
    page.copy_from_slice(image);
    page[..wanted.len()].copy_from_slice(wanted);
    control.exec(&input).map(|_| ())
}

/// Returns the structure at the beginning of a page.
fn beginning<T: FromBytes>(page: &[u8]) -> T {
    // PANIC: the structures have at most 0x1c0 bytes, and a page has 0x1000.
    match T::read_from_prefix(page) {
        Ok((value, _)) => value,
        Err(_) => panic!("a structure larger than {} bytes", page.len()),
    }
}

impl Limits {
    fn new(general: &CmdHcaCap, general_2: Option<&CmdHcaCap2>, roce: Option<&RoceCap>) -> Self {
        let send_wqe_bytes = general.max_wqe_sz_sq().min(SEND_WQE_BYTES);
        // If the second page is absent or reports 0, the maximum is that of the 5-bit field of every ConnectX (PRM
        // "mkey context").
        let log_max_mkey_page = match general_2.map(CmdHcaCap2::max_mkey_log_entity_size_mtt) {
            None | Some(0) => 31,
            Some(log) => log,
        };
        let log_min_mkey_page = match general_2.map(CmdHcaCap2::log_min_mkey_entity_size) {
            None => SMALLEST_MKEY_PAGE,
            // "Despite a command allowing it, the device does not support lower than 4k page size" (Linux
            // `mlx5_ib.h` `__mlx5_log_page_size_to_bitmap`).
            Some(log) => log.max(SMALLEST_MKEY_PAGE),
        };
        Self {
            qps: two_to(general.log_max_qp()),
            qp_wqes: two_to(general.log_max_qp_sz()),
            send_wqe_bytes,
            recv_wqe_bytes: general.max_wqe_sz_rq(),
            send_segments: send_wqe_bytes.saturating_sub(SEND_WQE_HEADERS) / SEGMENT_BYTES,
            recv_segments: general.max_wqe_sz_rq() / SEGMENT_BYTES,
            cqs: two_to(general.log_max_cq()),
            cq_entries: two_to(general.log_max_cq_sz()),
            eqs: match general.max_num_eqs() {
                0 => two_to(general.log_max_eq()),
                count => count,
            },
            mkeys: two_to(general.log_max_mkey()),
            region_bytes: 1 << general.log_max_mrw_sz().min(63),
            srqs: two_to(general.log_max_rmp()),
            srq_entries: two_to(general.log_max_srq_sz().min(general.log_max_wq_sz())),
            pds: two_to(general.log_max_pd()),
            reads_in: two_to(log_reads(general.log_max_ra_req_qp())),
            reads_out: two_to(log_reads(general.log_max_ra_res_qp())),
            message_bytes: 1 << general.log_max_msg(),
            gids: roce.map_or(0, RoceCap::roce_address_table_size),
            log_max_mkey_page,
            log_min_mkey_page,
            log_queue_page: general.log_pg_sz(),
            ack_delay: u8::try_from(general.local_ca_ack_delay()).unwrap_or(u8::MAX),
            clock_khz: match general.device_frequency_khz() {
                0 => general.device_frequency_mhz().saturating_mul(1000),
                khz => khz,
            },
        }
    }
}

/// Limits the log2 of a number of RDMA Reads to 7. The capability has 6 bits, but the fields `log_rra_max` and
/// `log_sra_max` of a queue pair's context have 3.
pub(crate) fn log_reads(capability: u32) -> u32 {
    capability.min(7)
}

/// Returns 2^log; the largest 32-bit number if that does not fit.
fn two_to(log: u32) -> u32 {
    1u32.checked_shl(log).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Dwords of the general page that a ConnectX-4 Lx reported as its maximum (QUERY_HCA_CAP op_mod 0 in
    /// snabbco/snabb, `src/apps/mellanox/trace-mlx5_core.txt.gz`).
    const CONNECTX4LX_MAX: [(usize, u32); 20] = [
        (0x10, 0x0f0f_0017),
        (0x18, 0x0016_0018),
        (0x1c, 0x1618_0008),
        (0x20, 0x0440_1010),
        (0x28, 0x0004_0004),
        (0x34, 0xc710_0101),
        (0x38, 0x1e00_0000),
        (0x3c, 0x0001_0001),
        (0x40, 0xc006_cc0e),
        (0x44, 0xe2fa_030f),
        (0x48, 0x0005_000c),
        (0x4c, 0xa009_0000),
        (0x50, 0x0000_0400),
        (0x54, 0x0000_0200),
        (0x64, 0x1018_0018),
        (0x70, 0x9710_0900),
        (0x74, 0x0904_0606),
        (0x78, 0x0000_000f),
        (0x7c, 0x800c_0e0a),
        (0x90, 0x1000_0008),
    ];
    /// Dwords of its current general page (op_mod 1) that differ from the maximum.
    const CONNECTX4LX_CURRENT: [(usize, u32); 3] = [
        (0x10, 0x0f0f_000e),
        (0x40, 0xc006_0c0e),
        (0x90, 0x1000_0000),
    ];
    /// Dwords of its RoCE page.
    const CONNECTX4LX_ROCE: [(usize, u32); 5] = [
        (0x00, 0x4000_0000),
        (0x10, 0x0007_0007),
        (0x14, 0x0000_12b7),
        (0x18, 0xffff_c000),
        (0x1c, 0x0000_0100),
    ];

    fn page<T: FromBytes>(words: &[&[(usize, u32)]]) -> (T, Vec<u8>) {
        let mut image = vec![0u8; PAGE_BYTES];
        for (at, word) in words.iter().copied().flatten() {
            image[*at..at + 4].copy_from_slice(&word.to_be_bytes());
        }
        (beginning(&image), image)
    }

    fn connectx4lx() -> Page<CmdHcaCap> {
        let (max, _) = page(&[&CONNECTX4LX_MAX]);
        let (current, image) = page(&[&CONNECTX4LX_MAX, &CONNECTX4LX_CURRENT]);
        Page {
            max,
            current,
            image,
        }
    }

    #[test]
    fn a_recorded_connectx4lx_lacks_nothing() {
        let (roce, _) = page(&[&CONNECTX4LX_ROCE]);
        assert_eq!(missing(&connectx4lx(), Some(&roce)), []);
    }

    #[test]
    fn limits_of_a_recorded_connectx4lx_are_those_of_its_data_sheet() {
        let (roce, _) = page::<RoceCap>(&[&CONNECTX4LX_ROCE]);
        let limits = Limits::new(&connectx4lx().current, None, Some(&roce));
        assert_eq!((limits.qps, limits.qp_wqes), (1 << 14, 32768));
        assert_eq!((limits.cqs, limits.cq_entries), (1 << 24, 1 << 22));
        assert_eq!((limits.reads_in, limits.reads_out), (16, 16));
        assert_eq!((limits.send_segments, limits.recv_segments), (30, 32));
        assert_eq!((limits.gids, limits.message_bytes), (256, 1 << 30));
    }

    /// The capabilities have 6 bits, and the fields of a queue pair's context 3.
    #[test]
    fn no_more_reads_are_promised_than_a_context_can_hold() {
        for (said, log) in [(0, 0), (4, 4), (7, 7), (8, 7), (63, 7)] {
            let mut general = connectx4lx().current;
            general
                .set_log_max_ra_req_qp(said)
                .set_log_max_ra_res_qp(said);
            let limits = Limits::new(&general, None, None);
            assert_eq!((limits.reads_in, limits.reads_out), (1 << log, 1 << log));
        }
    }

    /// Keys have no pages below 4 KiB, whatever the device reports, because smaller pages do not work (Linux
    /// `__mlx5_log_page_size_to_bitmap`).
    #[test]
    fn keys_have_no_pages_below_4_kib() {
        for (said, used) in [(0, 12), (6, 12), (12, 12), (14, 14)] {
            let mut general_2 = CmdHcaCap2::new();
            general_2.set_log_min_mkey_entity_size(said);
            let limits = Limits::new(&connectx4lx().current, Some(&general_2), None);
            assert_eq!(limits.log_min_mkey_page, used, "the device says {said}");
        }
    }

    #[test]
    fn everything_missing_is_named_at_once() {
        let (blank, image) = page::<CmdHcaCap>(&[]);
        let general = Page {
            max: blank.clone(),
            current: blank,
            image,
        };
        let (roce, _) = page(&[]);
        let lacks = missing(&general, Some(&roce));
        let names: Vec<_> = lacks.iter().map(|lack| lack.name).collect();
        assert_eq!(
            names,
            [
                "port_type",
                "rc",
                "ud",
                "cqe_version",
                "roce",
                "log_max_eq",
                "log_max_eq_sz",
                "log_max_cq_sz",
                "log_max_qp_sz",
                "log_max_cq",
                "log_max_qp",
                "log_max_mkey",
                "roce_version",
                "roce_address_table_size"
            ]
        );
        let text = MlxError::Missing(lacks).to_string();
        assert!(
            text.contains("port_type: need 1 (Ethernet), the device has 0; rc: need 1"),
            "{text}"
        );
    }

    #[test]
    fn the_general_page_is_written_back_with_the_stock_drivers_changes() {
        let wanted = wanted_general(&connectx4lx(), &HcaConfig::new());
        assert_eq!(wanted.cmdif_checksum(), 0);
        assert_eq!(wanted.log_uar_page_sz(), 0);
        // All other fields are unchanged.
        let mut restored = wanted.clone();
        restored.set_cmdif_checksum(connectx4lx().current.cmdif_checksum());
        assert_eq!(restored.as_bytes(), connectx4lx().current.as_bytes());
    }

    #[test]
    fn checksums_and_queue_pairs_are_asked_for_no_further_than_the_maximum() {
        let mut config = HcaConfig::new();
        config.command_checksums = true;
        config.log_max_qp = Some(30);
        let wanted = wanted_general(&connectx4lx(), &config);
        assert_eq!((wanted.cmdif_checksum(), wanted.log_max_qp()), (3, 23));
    }
}
