//! `datctl info`: what an adapter is, can do, and how it is.

use std::error::Error;

use dat::{CloseFlags, Ia};
use hw_mlx::Hca;
use hw_mlx::ids;
use serde::Serialize;

use crate::adapter::AdapterOptions;
use crate::report::{Report, pairs, table};

/// `info`
#[derive(clap::Args)]
pub(crate) struct Info {
    /// The adapter: a PCI address, vfio-user:SOCKET or sim:NAME.
    name: String,
    #[command(flatten)]
    options: AdapterOptions,
}

/// What an adapter is.
#[derive(Serialize)]
pub(crate) struct Adapter {
    adapter: String,
    vendor: String,
    product: &'static str,
    device_id: String,
    revision: u32,
    firmware: String,
    dat_version: String,
    port: Port,
    gids: Vec<Gid>,
    capabilities: Capabilities,
    limits: Limits,
    bring_up: BringUp,
    pub(crate) health: Health,
}

#[derive(Serialize)]
struct Port {
    mac: String,
    link_up: bool,
    /// As the hardware counts, with Ethernet header, VLAN tag and check sequence.
    mtu_bytes: u32,
    /// Payload of the largest packet.
    path_mtu_bytes: u32,
    node_guid: String,
}

#[derive(Serialize)]
struct Gid {
    index: u8,
    address: String,
}

#[derive(Serialize)]
struct Capabilities {
    reliable_connections: bool,
    roce_v2: bool,
    udp_source_port_from: Option<u16>,
    atomics_in_host_order: bool,
    memory_windows: bool,
    cqe_version: u32,
    log_largest_key_page: u32,
    clock_khz: u32,
}

#[derive(Serialize)]
struct Limits {
    endpoints: u32,
    dtos_per_endpoint: u32,
    segments_per_dto: u32,
    rdma_reads_per_endpoint_in: u32,
    rdma_reads_per_endpoint_out: u32,
    evds: u32,
    events_per_evd: u32,
    srqs: u32,
    receives_per_srq: u32,
    lmrs: u32,
    bytes_per_lmr: u64,
    zones: u32,
    bytes_per_message: u64,
    bytes_per_rdma: u64,
}

#[derive(Serialize)]
struct BringUp {
    /// On the function's clock, which is virtual in a simulation.
    milliseconds: f64,
    commands: u64,
    firmware_pages: u64,
}

#[derive(Serialize)]
pub(crate) struct Health {
    pub(crate) alive: bool,
    cause: Option<String>,
}

pub(crate) fn run(info: &Info) -> Result<Adapter, Box<dyn Error>> {
    let mut ia = dat::ia_open(&info.name, &info.options.open_options())?;
    ia.progress();
    let mut adapter = Adapter::of(&ia);
    let report = dat::ia_close(ia, CloseFlags::Graceful)?;
    if let Some(cause) = report.dead {
        adapter.health = Health {
            alive: false,
            cause: Some(cause.to_string()),
        };
    }
    Ok(adapter)
}

impl Adapter {
    fn of(ia: &Ia) -> Self {
        let (query, hca) = (ia.query(), ia.provider().hca());
        let (device_id, revision) = hca.hardware_version();
        let (major, minor, sub_minor) = hca.firmware_version();
        let (dat_major, dat_minor) = query.provider.dapl_version;
        let attributes = query.ia;
        Self {
            adapter: attributes.adapter_name.clone(),
            vendor: attributes.vendor_name.clone(),
            product: ids::product(hca.device_id()).unwrap_or("unknown"),
            device_id: format!("{device_id:#06x}"),
            revision,
            firmware: format!("{major}.{minor}.{sub_minor}"),
            dat_version: format!("{dat_major}.{dat_minor}"),
            port: Port::of(hca),
            gids: hca
                .gids()
                .iter()
                .map(|entry| Gid {
                    index: entry.index,
                    address: entry.address.to_string(),
                })
                .collect(),
            capabilities: Capabilities::of(hca),
            limits: Limits {
                endpoints: attributes.max_eps,
                dtos_per_endpoint: attributes.max_dto_per_ep,
                segments_per_dto: attributes.max_iov_segments_per_dto,
                rdma_reads_per_endpoint_in: attributes.max_rdma_read_per_ep_in,
                rdma_reads_per_endpoint_out: attributes.max_rdma_read_per_ep_out,
                evds: attributes.max_evds,
                events_per_evd: attributes.max_evd_qlen,
                srqs: attributes.max_srqs,
                receives_per_srq: attributes.max_recv_per_srq,
                lmrs: attributes.max_lmrs,
                bytes_per_lmr: attributes.max_lmr_block_size,
                zones: attributes.max_pzs,
                bytes_per_message: attributes.max_message_size,
                bytes_per_rdma: attributes.max_rdma_size,
            },
            bring_up: BringUp {
                milliseconds: hca.bringup_report().total.as_secs_f64() * 1e3,
                commands: hca.bringup_report().commands,
                firmware_pages: hca.page_counts().given,
            },
            health: Health {
                alive: !hca.is_dead(),
                cause: hca.dead_cause().map(|cause| cause.to_string()),
            },
        }
    }
}

impl Port {
    fn of(hca: &Hca) -> Self {
        let port = hca.port();
        let mac: Vec<String> = port.mac.iter().map(|byte| format!("{byte:02x}")).collect();
        Self {
            mac: mac.join(":"),
            link_up: port.link_up,
            mtu_bytes: port.mtu,
            // 1..=5 for 256..=4096.
            path_mtu_bytes: 128 << port.path_mtu.min(5),
            node_guid: format!("{:#018x}", port.node_guid),
        }
    }
}

impl Capabilities {
    fn of(hca: &Hca) -> Self {
        /// Bit of RoCE v2 in `roce_version`.
        const ROCE_V2: u32 = 1 << 2;
        let caps = hca.caps();
        Self {
            reliable_connections: caps.general().rc(),
            roce_v2: caps
                .roce()
                .is_some_and(|roce| roce.roce_version() & ROCE_V2 != 0),
            udp_source_port_from: caps.udp_source_port(),
            atomics_in_host_order: caps.atomics_in_host_order(),
            memory_windows: caps.memory_windows(),
            cqe_version: caps.cqe_version(),
            log_largest_key_page: caps.limits().log_max_mkey_page,
            clock_khz: caps.limits().clock_khz,
        }
    }
}

const fn yes_no(yes: bool) -> &'static str {
    if yes { "yes" } else { "no" }
}

impl Report for Adapter {
    fn human(&self) -> String {
        let (port, can, limits) = (&self.port, &self.capabilities, &self.limits);
        let yes = |it: bool| yes_no(it).to_owned();
        let link = if port.link_up { "up" } else { "down" };
        let health = match &self.health.cause {
            None => "alive".to_owned(),
            Some(cause) => format!("dead: {cause}"),
        };
        let text = pairs([
            ("adapter", self.adapter.clone()),
            (
                "device",
                format!(
                    "{} {} ({}, revision {})",
                    self.vendor, self.product, self.device_id, self.revision
                ),
            ),
            ("firmware", self.firmware.clone()),
            ("DAT version", self.dat_version.clone()),
            ("health", health),
            (
                "port",
                format!(
                    "{link}, MAC {}, MTU {} (path MTU {}), node GUID {}",
                    port.mac, port.mtu_bytes, port.path_mtu_bytes, port.node_guid
                ),
            ),
            (
                "bring-up",
                format!(
                    "{:.1} ms, {} commands, {} firmware pages",
                    self.bring_up.milliseconds,
                    self.bring_up.commands,
                    self.bring_up.firmware_pages
                ),
            ),
        ]);
        let can = pairs([
            ("reliable connections", yes(can.reliable_connections)),
            ("RoCE v2", yes(can.roce_v2)),
            (
                "UDP source port",
                can.udp_source_port_from.map_or_else(
                    || "the device's choice".to_owned(),
                    |port| format!("ours from {port}"),
                ),
            ),
            ("atomics in host order", yes(can.atomics_in_host_order)),
            ("memory windows", yes(can.memory_windows)),
            ("CQE version", can.cqe_version.to_string()),
            (
                "largest key page",
                format!("2^{} bytes", can.log_largest_key_page),
            ),
        ]);
        let limits = pairs([
            ("endpoints", limits.endpoints.to_string()),
            ("DTOs per endpoint", limits.dtos_per_endpoint.to_string()),
            ("segments per DTO", limits.segments_per_dto.to_string()),
            (
                "RDMA Reads per endpoint",
                format!(
                    "{} in, {} out",
                    limits.rdma_reads_per_endpoint_in, limits.rdma_reads_per_endpoint_out
                ),
            ),
            ("EVDs", limits.evds.to_string()),
            ("events per EVD", limits.events_per_evd.to_string()),
            ("SRQs", limits.srqs.to_string()),
            ("receives per SRQ", limits.receives_per_srq.to_string()),
            ("LMRs", limits.lmrs.to_string()),
            ("bytes per LMR", limits.bytes_per_lmr.to_string()),
            ("PZs", limits.zones.to_string()),
            ("bytes per message", limits.bytes_per_message.to_string()),
            ("bytes per RDMA", limits.bytes_per_rdma.to_string()),
        ]);
        let gids = table(
            ["GID", "address"],
            self.gids
                .iter()
                .map(|gid| [gid.index.to_string(), gid.address.clone()]),
        );
        format!("{text}\n\n{gids}\n\ncapabilities\n{can}\n\nlimits\n{limits}")
    }
}
