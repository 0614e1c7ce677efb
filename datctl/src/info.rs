//! `datctl info`: identity, capabilities and state of an adapter.

use std::error::Error;

use hw_mlx::{CmdError, VportAdmin, VportState, ids};
use serde::Serialize;
use udapl::adapter::{self, Hca};
use udapl::network::{self, NetworkState};
use udapl::{CloseFlags, Ia};

use crate::adapter::AdapterOptions;
use crate::counted::Counted;
use crate::qos::Qos;
use crate::report::{Report, pairs, table};
use crate::selftest;

/// `info`
#[derive(clap::Args)]
pub(crate) struct Info {
    /// The adapter: a PCI address, vfio-user:SOCKET or sim:NAME.
    name: String,
    /// Also print its capabilities, its limits and its counters.
    #[arg(long)]
    all: bool,
    /// First test a queue pair that sends to itself, which reports the layer that fails. No program may have the
    /// function open.
    #[arg(long)]
    selftest: bool,
    #[command(flatten)]
    options: AdapterOptions,
}

/// The description of an adapter that the command prints.
#[derive(Serialize)]
pub(crate) struct Adapter {
    adapter: String,
    vendor: String,
    product: &'static str,
    device_id: String,
    revision: u32,
    firmware: String,
    dat_version: String,
    pub(crate) port: Port,
    port_qos: Qos,
    gids: Vec<Gid>,
    capabilities: Capabilities,
    limits: Limits,
    /// State in the network, or the reason why the adapter cannot join it.
    network: String,
    /// Features that the function lacks because its firmware refused a command.
    without: Vec<String>,
    bring_up: BringUp,
    pub(crate) health: Health,
    /// Result of the self test; only if requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    selftest: Option<String>,
    /// Counters so far, which only `datctl info` reads.
    #[serde(skip_serializing_if = "Option::is_none")]
    counters: Option<Counted>,
    /// True if the table for a person shows everything.
    #[serde(skip)]
    all: bool,
}

#[derive(Serialize)]
pub(crate) struct Port {
    pub(crate) mac: String,
    /// True if frames can be sent and received now.
    pub(crate) link_up: bool,
    /// Link state that the vport's owner has set: `up`, `down`, or `follows` for that of the port.
    pub(crate) vport_admin: String,
    /// MTU without the Ethernet header, as IP counts it; `None` if neither port nor vport reports one.
    ip_mtu_bytes: Option<u32>,
    /// MTU as the hardware counts it, with Ethernet header, VLAN tag and check sequence.
    mtu_bytes: u32,
    /// MTU of the vport, as the hardware counts it.
    vport_mtu_bytes: Option<u32>,
    /// MTU of the port, as the hardware counts it, and its maximum; `None` if the function may not read it.
    port_mtu_bytes: Option<[u32; 2]>,
    /// Size of the largest packet's payload, in bytes.
    path_mtu_bytes: u32,
    node_guid: String,
    /// Lists that the driver gave to the e-switch: unicast and multicast addresses, and VLANs.
    pub(crate) unicast: Vec<String>,
    multicast: Vec<String>,
    vlans: Vec<u16>,
}

#[derive(Serialize)]
struct Gid {
    index: u8,
    address: String,
    /// Length of the network prefix of the address, in bits.
    prefix: u8,
    gateway: Option<String>,
    vlan: Option<u16>,
    /// Priority of frames in the VLAN.
    priority: Option<u8>,
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
    /// Time of bring-up in milliseconds on the function's clock, which is virtual in a simulation.
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
    let options = info.options.open_options();
    let selftest = info
        .selftest
        .then(|| selftest::sentence(adapter::function_open(&info.name, &options)?))
        .transpose()?;
    let mut ia = udapl::ia_open(&info.name, &options).map_err(|error| {
        let passed = selftest.as_ref();
        passed.map_or_else(
            || error.to_string(),
            |passed| format!("{passed}; but: {error}"),
        )
    })?;
    ia.progress();
    let mut adapter = Adapter::of(&mut ia)?;
    adapter.selftest = selftest;
    let stats = udapl::Adapter::of(&ia).stats()?;
    adapter.counters = Some(Counted::of(&stats));
    adapter.all = info.all;
    let report = udapl::ia_close(ia, CloseFlags::Graceful)?;
    if let Some(cause) = report.dead {
        adapter.health = Health {
            alive: false,
            cause: Some(cause.to_string()),
        };
    }
    Ok(adapter)
}

impl Adapter {
    pub(crate) fn of(ia: &mut Ia) -> Result<Self, CmdError> {
        let state = adapter::hca_mut(ia).vport_state()?;
        let qos = adapter::hca_mut(ia).port_qos()?;
        let (query, hca) = (ia.query(), adapter::hca(ia));
        let (device_id, revision) = hca.hardware_version();
        let (major, minor, sub_minor) = hca.firmware_version();
        let (dat_major, dat_minor) = query.provider.dapl_version;
        let attributes = query.ia;
        Ok(Self {
            adapter: attributes.adapter_name.clone(),
            vendor: attributes.vendor_name.clone(),
            product: ids::product(hca.device_id()).unwrap_or("unknown"),
            device_id: format!("{device_id:#06x}"),
            revision,
            firmware: format!("{major}.{minor}.{sub_minor}"),
            dat_version: format!("{dat_major}.{dat_minor}"),
            port: Port::of(hca, &state),
            port_qos: Qos::of(&qos),
            gids: hca
                .gids()
                .iter()
                .map(|entry| Gid {
                    index: entry.index,
                    address: entry.address.address.to_string(),
                    prefix: entry.address.prefix_bits(),
                    gateway: entry.address.gateway.map(|gateway| gateway.to_string()),
                    vlan: entry.address.vlan_id(),
                    priority: entry.address.vlan.map(|vlan| vlan.priority),
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
            network: match network::state(ia) {
                NetworkState::Off => "off".to_owned(),
                NetworkState::Joined => "joined".to_owned(),
                NetworkState::Without(why) => format!("without: {why}"),
            },
            without: hca
                .bringup_report()
                .losses
                .iter()
                .map(|loss| format!("{}: {}", loss.lost, loss.why))
                .collect(),
            bring_up: BringUp {
                milliseconds: hca.bringup_report().total.as_secs_f64() * 1e3,
                commands: hca.bringup_report().commands,
                firmware_pages: hca.page_counts().given,
            },
            health: Health {
                alive: !hca.is_dead(),
                cause: hca.dead_cause().map(|cause| cause.to_string()),
            },
            selftest: None,
            counters: None,
            all: true,
        })
    }
}

impl Port {
    fn of(hca: &Hca, state: &VportState) -> Self {
        let port = hca.port();
        Self {
            mac: mac(&port.mac),
            link_up: state.is_up,
            vport_admin: match state.admin {
                VportAdmin::Down => "down".to_owned(),
                VportAdmin::Up => "up".to_owned(),
                VportAdmin::Follows => "follows".to_owned(),
                VportAdmin::Other(code) => format!("code {code}"),
            },
            ip_mtu_bytes: state.ip_mtu(),
            mtu_bytes: port.mtu,
            vport_mtu_bytes: state.vport_mtu,
            port_mtu_bytes: state.port_mtu.map(|(now, most)| [now, most]),
            // The code is 1..=5 for a payload of 256..=4096 bytes.
            path_mtu_bytes: 128 << port.path_mtu.min(5),
            node_guid: format!("{:#018x}", port.node_guid),
            unicast: state.unicast.iter().map(mac).collect(),
            multicast: state.multicast.iter().map(mac).collect(),
            vlans: state.vlans.clone(),
        }
    }

    /// Returns link, MTUs and lists, as one pair of name and value for each row.
    fn rows(&self) -> [(&'static str, String); 5] {
        let known =
            |mtu: Option<u32>| mtu.map_or_else(|| "unknown".to_owned(), |it| it.to_string());
        let list = |entries: &[String]| match entries {
            [] => "none".to_owned(),
            entries => entries.join(", "),
        };
        let link = if self.link_up { "up" } else { "down" };
        let port_mtu = self.port_mtu_bytes.map_or_else(
            || "not ours to see".to_owned(),
            |[now, most]| format!("{now} of {most}"),
        );
        let vlans: Vec<String> = self.vlans.iter().map(u16::to_string).collect();
        [
            (
                "port",
                format!("{link}, MAC {}, node GUID {}", self.mac, self.node_guid),
            ),
            ("vport", format!("its owner says: {}", self.vport_admin)),
            (
                "MTU",
                format!(
                    "{} for IP, {} in a packet; in frames: vport {}, port {port_mtu}",
                    known(self.ip_mtu_bytes),
                    self.path_mtu_bytes,
                    known(self.vport_mtu_bytes)
                ),
            ),
            (
                "MACs",
                format!(
                    "unicast {}; multicast {}",
                    list(&self.unicast),
                    list(&self.multicast)
                ),
            ),
            ("VLANs", list(&vlans)),
        ]
    }
}

impl Capabilities {
    fn of(hca: &Hca) -> Self {
        /// Bit of RoCE v2 in the capability `roce_version`.
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

impl Adapter {
    /// Returns a summary of the device and its port in one sentence. The caller has checked that the link is up.
    pub(crate) fn summary(&self) -> String {
        let (_, mtu) = self.port.rows()[2].clone();
        format!(
            "{}, firmware {}, link up, {}; MTU {mtu}",
            self.product, self.firmware, self.port.mac
        )
    }
}

fn mac(bytes: &[u8; 6]) -> String {
    let digits: Vec<String> = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    digits.join(":")
}

const fn yes_no(yes: bool) -> &'static str {
    if yes { "yes" } else { "no" }
}

impl Report for Adapter {
    fn human(&self) -> String {
        let (port, can, limits) = (&self.port, &self.capabilities, &self.limits);
        let yes = |it: bool| yes_no(it).to_owned();
        let health = match &self.health.cause {
            None => "alive".to_owned(),
            Some(cause) => format!("dead: {cause}"),
        };
        let first = [
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
        ];
        let bring_up = (
            "bring-up",
            format!(
                "{:.1} ms, {} commands, {} firmware pages",
                self.bring_up.milliseconds, self.bring_up.commands, self.bring_up.firmware_pages
            ),
        );
        let text = pairs(
            first
                .into_iter()
                .chain(port.rows())
                .chain(self.port_qos.rows())
                .chain([("network", self.network.clone())])
                .chain([bring_up])
                .chain(self.without.iter().map(|what| ("without", what.clone())))
                .chain(self.selftest.iter().map(|what| ("self test", what.clone()))),
        );
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
            ["GID", "address", "gateway", "VLAN", "priority"],
            self.gids.iter().map(|gid| {
                let or_none = |it: Option<String>| it.unwrap_or_else(|| "none".to_owned());
                [
                    gid.index.to_string(),
                    format!("{}/{}", gid.address, gid.prefix),
                    or_none(gid.gateway.clone()),
                    or_none(gid.vlan.map(|vlan| vlan.to_string())),
                    or_none(gid.priority.map(|priority| priority.to_string())),
                ]
            }),
        );
        if !self.all {
            return format!("{text}\n\n{gids}\n\nmore with --all: capabilities, limits, counters");
        }
        let counters = self.counters.as_ref();
        let counters = counters.map_or_else(String::new, |all| format!("\n\n{}", all.human()));
        format!("{text}\n\n{gids}\n\ncapabilities\n{can}\n\nlimits\n{limits}{counters}")
    }
}
