//! The device's counters: the counter set of our queue pairs, the vport, the port.
//!
//! Fields have the names of `rdma statistic` (`hw_counters` of Linux mlx5_ib, `counters.c`) and of `ethtool -S`
//! (mlx5e, `en_stats.c`). If a device lacks the counters, or refuses to report them, the result is `None`, never an
//! error.

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

/// Number of priorities of an Ethernet port.
pub const PRIORITIES: usize = 8;

/// Counters of a function at one time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeviceCounters {
    /// Counter set that the queue pairs of all our instances use.
    pub queue: Option<QueueCounters>,
    /// Counters of the vport, which is the function's port of the e-switch.
    pub vport: Option<VportCounters>,
    /// Counters of the card's port, which include the frames of all functions of the card.
    pub port: Option<PortCounters>,
    /// The port's counters by priority (IEEE 802.1Q PCP).
    pub priorities: Option<[PriorityTraffic; PRIORITIES]>,
}

macro_rules! queue_counters {
    ($($(#[$doc:meta])* $name:ident: $group:ident;)*) => {
        /// Counters of a counter set (PRM "QUERY_Q_COUNTER"), under the names of `rdma statistic`. Each has 32 bits
        /// in the device, and wraps to 0. A counter is `None` if the device does not have it.
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

/// Groups of counters. A capability announces each group except `Basic` (Linux `mlx5_ib_fill_counters`).
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
    /// RDMA Write requests received from peers.
    rx_write_requests: Basic;
    /// RDMA Read requests received from peers.
    rx_read_requests: Basic;
    /// Atomic requests received from peers.
    rx_atomic_requests: Basic;
    /// Packets that found no receive posted, each repetition included.
    out_of_buffer: Basic;
    /// Request packets that arrived out of sequence, because an earlier packet was lost on the way here.
    out_of_sequence: OutOfSequence;
    /// Request packets that had already been executed.
    duplicate_request: Retransmission;
    /// Number of times that the peer had no receive posted and a retry was left.
    rnr_nak_retry_err: Retransmission;
    /// Number of times that the peer reported a missing packet of ours and a retry was left.
    packet_seq_err: Retransmission;
    /// Number of times that a response showed the loss of an earlier response and a retry was left.
    implied_nak_seq_err: Retransmission;
    /// Number of times that no acknowledgement arrived in time and a retry was left.
    local_ack_timeout_err: Retransmission;
    /// Receives that were too short for the message.
    resp_local_length_error: Error;
    /// Receives that completed with an error, including flushed ones.
    resp_cqe_error: Error;
    /// Requests that completed with an error, including flushed ones.
    req_cqe_error: Error;
    /// Requests that the peer found invalid.
    req_remote_invalid_request: Error;
    /// Requests that failed because the peer did not allow the memory access.
    req_remote_access_errors: Error;
    /// Requests of peers that failed because we did not allow the memory access.
    resp_remote_access_errors: Error;
    /// Receives that were flushed.
    resp_cqe_flush_error: Error;
    /// Requests that were flushed.
    req_cqe_flush_error: Error;
    /// Requests that failed because no acknowledgement came within the allowed retries.
    req_transport_retries_exceeded: Error;
    /// Requests that failed because the peer had no receive posted within the allowed retries.
    req_rnr_retries_exceeded: Error;
    /// Retransmissions by adaptive retransmission.
    roce_adp_retrans: Congestion;
    /// Timeouts of adaptive retransmission.
    roce_adp_retrans_to: Congestion;
    /// Number of times that slow restart was used.
    roce_slow_restart: Congestion;
    /// Congestion notification packets generated by slow restart.
    roce_slow_restart_cnps: Congestion;
    /// Number of times that a queue pair entered slow restart.
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
            /// Returns the names and values of the counters.
            pub fn named(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$((stringify!($name), self.$name),)*].into_iter()
            }
        }
    };
}

plain_counters! {
    /// Frames and bytes of the vport (PRM "QUERY_VPORT_COUNTER"), under the names of `ethtool -S`. Counters with
    /// `rdma` in the name count frames of queue pairs; the others count those of the Ethernet port.
    VportCounters {
        /// Unicast frames received by queue pairs.
        rx_vport_rdma_unicast_packets,
        /// Bytes of these frames.
        rx_vport_rdma_unicast_bytes,
        /// Unicast frames sent by queue pairs.
        tx_vport_rdma_unicast_packets,
        /// Bytes of these frames.
        tx_vport_rdma_unicast_bytes,
        /// Multicast frames received by queue pairs.
        rx_vport_rdma_multicast_packets,
        /// Bytes of these frames.
        rx_vport_rdma_multicast_bytes,
        /// Multicast frames sent by queue pairs.
        tx_vport_rdma_multicast_packets,
        /// Bytes of these frames.
        tx_vport_rdma_multicast_bytes,
        /// Other unicast frames received.
        rx_vport_unicast_packets,
        /// Bytes of these frames.
        rx_vport_unicast_bytes,
        /// Other unicast frames sent.
        tx_vport_unicast_packets,
        /// Bytes of these frames.
        tx_vport_unicast_bytes,
        /// Other multicast frames received.
        rx_vport_multicast_packets,
        /// Bytes of these frames.
        rx_vport_multicast_bytes,
        /// Other multicast frames sent.
        tx_vport_multicast_packets,
        /// Bytes of these frames.
        tx_vport_multicast_bytes,
        /// Other broadcast frames received.
        rx_vport_broadcast_packets,
        /// Bytes of these frames.
        rx_vport_broadcast_bytes,
        /// Other broadcast frames sent.
        tx_vport_broadcast_packets,
        /// Bytes of these frames.
        tx_vport_broadcast_bytes,
        /// Frames looped back, which the function sent itself.
        vport_loopback_packets,
        /// Bytes of these frames.
        vport_loopback_bytes,
        /// Received frames with errors (`received_errors`; `ethtool` has no name for it).
        rx_vport_error_packets,
        /// Frames that could not be sent (`transmit_errors`; `ethtool` has no name for it).
        tx_vport_error_packets,
    }
}

plain_counters! {
    /// Frames and bytes of the port (PRM register PPCNT, groups IEEE 802.3 and RFC 2863), under the names of `ethtool
    /// -S`. They count for all functions of the card together, since it was powered on.
    PortCounters {
        /// Frames sent.
        tx_packets_phy,
        /// Frames received.
        rx_packets_phy,
        /// Frames with a wrong check sequence, usually caused by a bad cable or module.
        rx_crc_errors_phy,
        /// Bytes sent.
        tx_bytes_phy,
        /// Bytes received.
        rx_bytes_phy,
        /// Multicast frames sent.
        tx_multicast_phy,
        /// Broadcast frames sent.
        tx_broadcast_phy,
        /// Multicast frames received.
        rx_multicast_phy,
        /// Broadcast frames received.
        rx_broadcast_phy,
        /// Frames whose length field was wrong.
        rx_in_range_len_errors_phy,
        /// Frames whose length field exceeds the maximum length of a frame.
        rx_out_of_range_len_phy,
        /// Frames longer than the port's MTU.
        rx_oversize_pkts_phy,
        /// Frames with a symbol error.
        rx_symbol_err_phy,
        /// MAC control frames sent.
        tx_mac_control_phy,
        /// MAC control frames received.
        rx_mac_control_phy,
        /// MAC control frames received with an operation that the port does not support.
        rx_unsupported_op_phy,
        /// Pause frames received.
        rx_pause_ctrl_phy,
        /// Pause frames sent.
        tx_pause_ctrl_phy,
        /// Received frames that the port dropped because its buffer was full (`if_in_discards`).
        rx_discards_phy,
        /// Frames that were not sent because a buffer was full (`if_out_discards`).
        tx_discards_phy,
        /// Frames that were not sent because of an error (`if_out_errors`).
        tx_errors_phy,
    }
}

plain_counters! {
    /// Counters of one priority (PRM register PPCNT, group "per priority"). In `ethtool -S` the priority is part of the
    /// name: `rx_prio3_bytes`.
    PriorityTraffic {
        /// Bytes received.
        rx_bytes,
        /// Frames received.
        rx_packets,
        /// Received frames that were dropped because the buffer was full.
        rx_discards,
        /// Bytes sent.
        tx_bytes,
        /// Frames sent.
        tx_packets,
        /// Pause frames received.
        rx_pause,
        /// Microseconds for which the other end paused our transmission.
        rx_pause_duration,
        /// Pause frames sent.
        tx_pause,
        /// Microseconds for which we paused the other end's transmission.
        tx_pause_duration,
        /// Number of times that the other end began to pause our transmission.
        rx_pause_transition,
    }
}

/// Turns a refusal by the firmware into `None`: in nearly all cases the device does not have the counters.
fn had<T>(answer: Result<T, CmdError>) -> Result<Option<T>, CmdError> {
    match answer {
        Ok(answer) => Ok(Some(answer)),
        Err(error) if error.status().is_some() => {
            tracing::debug!(%error, "counters that the device does not have");
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

/// Reads all counters.
///
/// # Errors
/// [`CmdError`]: the device does not answer, or there is no memory to ask it.
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

/// Reads a group of the port's counters; `None` if the function may not read it.
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
    // The counters are never too short: the register has space for the longest group.
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

#[cfg(test)]
mod tests {
    use super::*;
    use driver::DmaError;
    use mlx_prm::{CmdStatus, Opcode};

    #[test]
    fn counters_are_missing_if_the_firmware_refuses_and_not_for_lack_of_memory() {
        let opcode = Opcode::QUERY_Q_COUNTER;
        let refused = CmdError::Refused {
            opcode,
            op_mod: 0,
            status: CmdStatus::BAD_OP,
            syndrome: 0,
        };
        assert!(matches!(had::<()>(Err(refused)), Ok(None)));
        let error = DmaError::Request { bytes: 0, align: 0 };
        let unsent = CmdError::Memory { opcode, error };
        assert!(matches!(
            had::<()>(Err(unsent)),
            Err(CmdError::Memory { .. })
        ));
    }
}
