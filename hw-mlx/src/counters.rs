//! The device's counters: the counter set of our queue pairs, the vport, the port.
//!
//! Fields have the names of `rdma statistic` (`hw_counters` of Linux mlx5_ib, `counters.c`) and of `ethtool -S`
//! (mlx5e, `en_stats.c`). A device without the counters and one that refuses to report them are treated alike:
//! `None`, never an error.

use crate::caps::Caps;
use crate::control::Commands;
use crate::error::CmdError;
use crate::vport::{LOCAL_PORT, READ, access};
use mlx_prm::{
    CmdHcaCap, Ieee8023Counters, PortCounterGroup, Ppcnt, PriorityCounters, QueryQCounterIn,
    QueryQCounterOut, QueryVportCounterIn, QueryVportCounterOut, RegisterId, Rfc2863Counters,
    TrafficCounter,
};
use zerocopy::FromBytes;

/// Priorities of an Ethernet port.
pub const PRIORITIES: usize = 8;

/// Counters of a function at one time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeviceCounters {
    /// The counter set of our queue pairs, those of all instances.
    pub queue: Option<QueueCounters>,
    /// The function's own port of the e-switch.
    pub vport: Option<VportCounters>,
    /// The card's port, whose counters include the frames of all its functions.
    pub port: Option<PortCounters>,
    /// The port's counters by priority (IEEE 802.1Q PCP).
    pub priorities: Option<[PriorityTraffic; PRIORITIES]>,
}

macro_rules! queue_counters {
    ($($(#[$doc:meta])* $name:ident: $group:ident;)*) => {
        /// Counters of a counter set (PRM "QUERY_Q_COUNTER"), under the names of `rdma statistic`. Each has 32 bits
        /// in the device, and wraps to 0. `None`: the device does not have it.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct QueueCounters {
            $($(#[$doc])* pub $name: Option<u32>,)*
        }

        impl QueueCounters {
            /// Decodes an answer for a function with these capabilities.
            fn of(answer: &QueryQCounterOut, caps: &CmdHcaCap) -> Self {
                Self {
                    $($name: Group::$group.is_there(caps).then(|| answer.$name()),)*
                }
            }

            /// Returns names and values of the counters that the device has.
            pub fn named(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$((stringify!($name), self.$name),)*]
                    .into_iter()
                    .filter_map(|(name, count)| Some((name, u64::from(count?))))
            }
        }
    };
}

/// Groups of counters, each announced by a capability (Linux `mlx5_ib_fill_counters`).
#[derive(Clone, Copy)]
enum Group {
    Basic,
    OutOfSequence,
    Retransmission,
    Error,
    Congestion,
}

impl Group {
    fn is_there(self, caps: &CmdHcaCap) -> bool {
        match self {
            Self::Basic => true,
            Self::OutOfSequence => caps.out_of_seq_cnt(),
            Self::Retransmission => caps.retransmission_q_counters(),
            Self::Error => caps.enhanced_error_q_counters(),
            Self::Congestion => caps.roce_accl(),
        }
    }
}

queue_counters! {
    /// RDMA Writes of peers.
    rx_write_requests: Basic;
    /// RDMA Reads of peers.
    rx_read_requests: Basic;
    /// Atomic operations of peers.
    rx_atomic_requests: Basic;
    /// Packets that found no receive posted, each repetition included.
    out_of_buffer: Basic;
    /// Request packets that arrived before an earlier one: a packet was lost on the way here.
    out_of_sequence: OutOfSequence;
    /// Request packets that had been executed before.
    duplicate_request: Retransmission;
    /// Times that the peer had no receive posted, while a retry was left.
    rnr_nak_retry_err: Retransmission;
    /// Times that the peer missed a packet of ours, while a retry was left.
    packet_seq_err: Retransmission;
    /// Times that an answer showed an earlier one to be lost, while a retry was left.
    implied_nak_seq_err: Retransmission;
    /// Times that no acknowledgement came in time, while a retry was left.
    local_ack_timeout_err: Retransmission;
    /// Receives that were too short for the message.
    resp_local_length_error: Error;
    /// Receives that completed with an error, including flushed ones.
    resp_cqe_error: Error;
    /// Requests that completed with an error, including flushed ones.
    req_cqe_error: Error;
    /// Requests that the peer found invalid.
    req_remote_invalid_request: Error;
    /// Requests for memory that the peer did not grant.
    req_remote_access_errors: Error;
    /// Requests of peers for memory that we did not grant.
    resp_remote_access_errors: Error;
    /// Receives that were flushed.
    resp_cqe_flush_error: Error;
    /// Requests that were flushed.
    req_cqe_flush_error: Error;
    /// Requests that failed because no acknowledgement came within the allowed retries.
    req_transport_retries_exceeded: Error;
    /// Requests that failed because the peer had no receive posted within the allowed retries.
    req_rnr_retries_exceeded: Error;
    /// Repetitions by adaptive retransmission.
    roce_adp_retrans: Congestion;
    /// Timeouts of adaptive retransmission.
    roce_adp_retrans_to: Congestion;
    /// Times that slow restart was used.
    roce_slow_restart: Congestion;
    /// Congestion notification packets generated by slow restart.
    roce_slow_restart_cnps: Congestion;
    /// Times that a queue pair entered slow restart.
    roce_slow_restart_trans: Congestion;
}

macro_rules! plain_counters {
    ($(#[$struct_doc:meta])* $struct:ident { $($(#[$doc:meta])* $name:ident,)* }) => {
        $(#[$struct_doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct $struct {
            $($(#[$doc])* pub $name: u64,)*
        }

        impl $struct {
            /// Names and numbers.
            pub fn named(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$((stringify!($name), self.$name),)*].into_iter()
            }
        }
    };
}

plain_counters! {
    /// Frames and bytes of the vport (PRM "QUERY_VPORT_COUNTER"), under the names of `ethtool -S`. Counters with
    /// `rdma` in the name are those of queue pairs; the others are those of the Ethernet port.
    VportCounters {
        /// Frames of queue pairs.
        rx_vport_rdma_unicast_packets,
        /// Their bytes.
        rx_vport_rdma_unicast_bytes,
        /// Frames of queue pairs.
        tx_vport_rdma_unicast_packets,
        /// Their bytes.
        tx_vport_rdma_unicast_bytes,
        /// Frames of queue pairs, for groups.
        rx_vport_rdma_multicast_packets,
        /// Their bytes.
        rx_vport_rdma_multicast_bytes,
        /// Frames of queue pairs, for groups.
        tx_vport_rdma_multicast_packets,
        /// Their bytes.
        tx_vport_rdma_multicast_bytes,
        /// Other frames for us alone.
        rx_vport_unicast_packets,
        /// Their bytes.
        rx_vport_unicast_bytes,
        /// Other frames to one station.
        tx_vport_unicast_packets,
        /// Their bytes.
        tx_vport_unicast_bytes,
        /// Other frames for groups.
        rx_vport_multicast_packets,
        /// Their bytes.
        rx_vport_multicast_bytes,
        /// Other frames for groups.
        tx_vport_multicast_packets,
        /// Their bytes.
        tx_vport_multicast_bytes,
        /// Other frames for all.
        rx_vport_broadcast_packets,
        /// Their bytes.
        rx_vport_broadcast_bytes,
        /// Other frames for all.
        tx_vport_broadcast_packets,
        /// Their bytes.
        tx_vport_broadcast_bytes,
        /// Frames that the function sent itself.
        vport_loopback_packets,
        /// Their bytes.
        vport_loopback_bytes,
        /// Received frames with errors (`received_errors`; `ethtool` has no name for it).
        rx_vport_error_packets,
        /// Frames that could not be sent (`transmit_errors`; likewise).
        tx_vport_error_packets,
    }
}

plain_counters! {
    /// Frames and bytes of the port (PRM register PPCNT, groups IEEE 802.3 and RFC 2863), under the names of `ethtool
    /// -S`. They count for the whole card, all its functions together, since it was powered on.
    PortCounters {
        /// Frames sent.
        tx_packets_phy,
        /// Frames received.
        rx_packets_phy,
        /// Frames whose check sequence was wrong: a bad cable or module.
        rx_crc_errors_phy,
        /// Bytes sent.
        tx_bytes_phy,
        /// Bytes received.
        rx_bytes_phy,
        /// Frames for groups sent.
        tx_multicast_phy,
        /// Frames for all sent.
        tx_broadcast_phy,
        /// Frames for groups received.
        rx_multicast_phy,
        /// Frames for all received.
        rx_broadcast_phy,
        /// Frames whose length field was wrong.
        rx_in_range_len_errors_phy,
        /// Frames whose length field says more than a frame has.
        rx_out_of_range_len_phy,
        /// Frames longer than the port's MTU.
        rx_oversize_pkts_phy,
        /// Frames with a symbol error.
        rx_symbol_err_phy,
        /// Frames of MAC control sent.
        tx_mac_control_phy,
        /// Frames of MAC control received.
        rx_mac_control_phy,
        /// Frames of MAC control that the port does not know.
        rx_unsupported_op_phy,
        /// Pause frames received.
        rx_pause_ctrl_phy,
        /// Pause frames sent.
        tx_pause_ctrl_phy,
        /// Frames dropped for want of room in the port (`if_in_discards`).
        rx_discards_phy,
        /// Frames not sent for want of room (`if_out_discards`).
        tx_discards_phy,
        /// Frames not sent for an error (`if_out_errors`).
        tx_errors_phy,
    }
}

plain_counters! {
    /// Counters of one priority (PRM register PPCNT, group "per priority"). `ethtool -S` has the priority in the
    /// name: `rx_prio3_bytes`.
    PriorityTraffic {
        /// Bytes received.
        rx_bytes,
        /// Frames received.
        rx_packets,
        /// Frames dropped for want of room.
        rx_discards,
        /// Bytes sent.
        tx_bytes,
        /// Frames sent.
        tx_packets,
        /// Pause frames received.
        rx_pause,
        /// Microseconds for which we were paused by the other end.
        rx_pause_duration,
        /// Pause frames sent.
        tx_pause,
        /// Microseconds for which we paused the other end.
        tx_pause_duration,
        /// Times that we began to be paused.
        rx_pause_transition,
    }
}

/// Turns a refusal into `None`: the device does not have the counters.
fn had<T>(answer: Result<T, CmdError>) -> Result<Option<T>, CmdError> {
    match answer {
        Ok(answer) => Ok(Some(answer)),
        Err(error) if error.is_refusal() => {
            tracing::debug!(%error, "counters that the device does not have");
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

/// Reads all counters.
///
/// # Errors
/// [`CmdError`]: the device does not answer.
pub(crate) fn read(
    device: &mut impl Commands,
    caps: &Caps,
    counter_set: Option<u32>,
) -> Result<DeviceCounters, CmdError> {
    let queue = match counter_set {
        Some(set) => {
            had(query_set(device, set))?.map(|out| QueueCounters::of(&out, caps.general()))
        }
        None => None,
    };
    let vport = if caps.general().vport_counters() {
        let out = had(device.exec(&QueryVportCounterIn::new()))?;
        out.map(|out| VportCounters::of(&out))
    } else {
        None
    };
    Ok(DeviceCounters {
        queue,
        vport,
        port: port(device)?,
        priorities: priorities(device)?,
    })
}

/// Reads a counter set.
pub(crate) fn query_set(
    device: &mut impl Commands,
    set: u32,
) -> Result<QueryQCounterOut, CmdError> {
    let mut input = QueryQCounterIn::new();
    input.set_counter_set_id(set);
    device.exec(&input)
}

impl VportCounters {
    fn of(out: &QueryVportCounterOut) -> Self {
        let both = |counter: &TrafficCounter| (counter.packets(), counter.octets());
        let mut all = Self {
            rx_vport_error_packets: out.received_errors().packets(),
            tx_vport_error_packets: out.transmit_errors().packets(),
            ..Self::default()
        };
        (
            all.rx_vport_rdma_unicast_packets,
            all.rx_vport_rdma_unicast_bytes,
        ) = both(out.received_ib_unicast());
        (
            all.tx_vport_rdma_unicast_packets,
            all.tx_vport_rdma_unicast_bytes,
        ) = both(out.transmitted_ib_unicast());
        (
            all.rx_vport_rdma_multicast_packets,
            all.rx_vport_rdma_multicast_bytes,
        ) = both(out.received_ib_multicast());
        (
            all.tx_vport_rdma_multicast_packets,
            all.tx_vport_rdma_multicast_bytes,
        ) = both(out.transmitted_ib_multicast());
        (all.rx_vport_unicast_packets, all.rx_vport_unicast_bytes) =
            both(out.received_eth_unicast());
        (all.tx_vport_unicast_packets, all.tx_vport_unicast_bytes) =
            both(out.transmitted_eth_unicast());
        (all.rx_vport_multicast_packets, all.rx_vport_multicast_bytes) =
            both(out.received_eth_multicast());
        (all.tx_vport_multicast_packets, all.tx_vport_multicast_bytes) =
            both(out.transmitted_eth_multicast());
        (all.rx_vport_broadcast_packets, all.rx_vport_broadcast_bytes) =
            both(out.received_eth_broadcast());
        (all.tx_vport_broadcast_packets, all.tx_vport_broadcast_bytes) =
            both(out.transmitted_eth_broadcast());
        (all.vport_loopback_packets, all.vport_loopback_bytes) = both(out.local_loopback());
        all
    }
}

/// Reads a group of the port's counters; `None` if the function may not.
fn group<T: FromBytes>(
    device: &mut impl Commands,
    group: PortCounterGroup,
    priority: u32,
) -> Result<Option<T>, CmdError> {
    let mut register = Ppcnt::new();
    register
        .set_local_port(LOCAL_PORT)
        .set_grp(group.bits())
        .set_prio_tc(priority);
    let answer = access(device, RegisterId::PPCNT, READ, &register)?;
    // Never short: a group is as long as the register has room for.
    Ok(answer.and_then(|answer| T::read_from_bytes(answer.counter_set()).ok()))
}

fn port(device: &mut impl Commands) -> Result<Option<PortCounters>, CmdError> {
    let Some(ieee) = group::<Ieee8023Counters>(device, PortCounterGroup::IEEE_802_3, 0)? else {
        return Ok(None);
    };
    let mut all = PortCounters {
        tx_packets_phy: ieee.a_frames_transmitted_ok(),
        rx_packets_phy: ieee.a_frames_received_ok(),
        rx_crc_errors_phy: ieee.a_frame_check_sequence_errors(),
        tx_bytes_phy: ieee.a_octets_transmitted_ok(),
        rx_bytes_phy: ieee.a_octets_received_ok(),
        tx_multicast_phy: ieee.a_multicast_frames_xmitted_ok(),
        tx_broadcast_phy: ieee.a_broadcast_frames_xmitted_ok(),
        rx_multicast_phy: ieee.a_multicast_frames_received_ok(),
        rx_broadcast_phy: ieee.a_broadcast_frames_received_ok(),
        rx_in_range_len_errors_phy: ieee.a_in_range_length_errors(),
        rx_out_of_range_len_phy: ieee.a_out_of_range_length_field(),
        rx_oversize_pkts_phy: ieee.a_frame_too_long_errors(),
        rx_symbol_err_phy: ieee.a_symbol_error_during_carrier(),
        tx_mac_control_phy: ieee.a_mac_control_frames_transmitted(),
        rx_mac_control_phy: ieee.a_mac_control_frames_received(),
        rx_unsupported_op_phy: ieee.a_unsupported_opcodes_received(),
        rx_pause_ctrl_phy: ieee.a_pause_mac_ctrl_frames_received(),
        tx_pause_ctrl_phy: ieee.a_pause_mac_ctrl_frames_transmitted(),
        ..PortCounters::default()
    };
    if let Some(rfc) = group::<Rfc2863Counters>(device, PortCounterGroup::RFC_2863, 0)? {
        all.rx_discards_phy = rfc.if_in_discards();
        all.tx_discards_phy = rfc.if_out_discards();
        all.tx_errors_phy = rfc.if_out_errors();
    }
    Ok(Some(all))
}

fn priorities(
    device: &mut impl Commands,
) -> Result<Option<[PriorityTraffic; PRIORITIES]>, CmdError> {
    let mut all = [PriorityTraffic::default(); PRIORITIES];
    for (place, priority) in all.iter_mut().zip(0..) {
        let Some(one) =
            group::<PriorityCounters>(device, PortCounterGroup::PER_PRIORITY, priority)?
        else {
            return Ok(None);
        };
        *place = PriorityTraffic {
            rx_bytes: one.rx_octets(),
            rx_packets: one.rx_frames(),
            rx_discards: one.rx_discards(),
            tx_bytes: one.tx_octets(),
            tx_packets: one.tx_frames(),
            rx_pause: one.rx_pause(),
            rx_pause_duration: one.rx_pause_duration(),
            tx_pause: one.tx_pause(),
            tx_pause_duration: one.tx_pause_duration(),
            rx_pause_transition: one.rx_pause_transition(),
        };
    }
    Ok(Some(all))
}
