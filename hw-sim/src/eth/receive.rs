//! Receiving: from a frame at the port to CQEs.
//!
//! The port accepts frames to its own address, to the addresses in the vport's lists, to the broadcast address, and
//! those that promiscuity adds. Accepted frames are looked up in the flow tables. Each TIR that a frame reaches writes
//! a copy to one receive queue. A TIR accepts a frame that the function sent itself only if the TIR has loopback on, or
//! if the frame is a multicast copy of another transport domain.

use super::checksum::Verdict;
use super::matching::Pattern;
use super::rq::{Report, Taken};
use super::steering::Steered;
use crate::env::{Env, Origin};
use crate::nic::Nic;
use crate::q_counters::QCounter;
use crate::wire::frame::{CUSTOMER_TAG, Headers, IpVersion, Protocol, is_roce};
use crate::wire::seal;

/// Bits of `hds_ip_ext`: L2, L3 and L4 are good.
const L2_OK: u8 = 1;
const L3_OK: u8 = 2;
const L4_OK: u8 = 4;
/// Values of `l4_l3_hdr_type` bits 3:2: IP version.
const L3_IPV6: u8 = 1 << 2;
const L3_IPV4: u8 = 2 << 2;
/// Values of `l4_l3_hdr_type` bits 6:4: TCP without acknowledgement, UDP, TCP with only an acknowledgement, TCP with
/// data.
const L4_TCP: u8 = 1 << 4;
const L4_UDP: u8 = 2 << 4;
const L4_TCP_ACK: u8 = 3 << 4;
const L4_TCP_ACK_DATA: u8 = 4 << 4;
const TCP_ACK: u16 = 0x10;

impl Nic {
    /// Returns whether received frames are steered. Without flow tables software receives no frame.
    pub fn takes_ethernet(&self) -> bool {
        self.objects.eth.flow.root().is_some()
    }

    /// Handles a received frame that is not a RoCE packet for this function.
    pub fn ethernet_received(&mut self, env: &mut Env, frame: &[u8], origin: Origin) {
        let looped = origin.is_itself();
        let mut sealed = Vec::new();
        let frame = if env.seals() || !is_roce(frame) {
            frame
        } else {
            // The frame gets its ICRC, because software may read the ICRC.
            sealed.extend_from_slice(frame);
            seal(&mut sealed);
            &sealed
        };
        let headers = match self.for_software(env, frame, origin) {
            Ok(headers) => headers,
            Err(reason) => {
                if !looped {
                    let port = env.port_mut(self.seat);
                    port.ethernet.unwanted.count(frame.len());
                }
                self.count_drop(env, reason);
                return;
            }
        };
        if !looped {
            let received = &mut env.port_mut(self.seat).ethernet.received;
            received.count(headers.dst, frame.len());
        }
        let Steered { handed, counters } =
            self.objects.eth.flow.steer(Pattern::of_headers(&headers));
        for number in counters {
            if let Some(counter) = self.objects.eth.counters.get_mut(number) {
                counter.count(frame.len());
            }
        }
        env.note(
            self.index,
            format_args!(
                "frame type={:#06x} bytes={} tirs={}",
                headers.ethertype,
                frame.len(),
                handed.len()
            ),
        );
        if handed.is_empty() {
            self.objects.eth.discarded += 1;
            self.count_drop(env, "steering");
            return;
        }
        let mut report = self.report_on(frame, &headers);
        for to in handed {
            let eth = &self.objects.eth;
            let Some(tir) = eth.tirs.get(to.tirn) else {
                continue;
            };
            if !tir.takes(origin, headers.is_multicast()) {
                self.count_drop(env, "own frame");
                continue;
            }
            let Some((rqn, hash)) = tir.queue(eth, &headers) else {
                continue;
            };
            report.hash = hash;
            report.flow_tag = to.flow_tag;
            self.deliver(env, rqn, frame, &report);
        }
    }

    /// Returns the headers of a frame if the port passes the frame to steering. Inferred: a copy of a multicast frame
    /// that the function has sent is accepted even if its group is in no list of the port. rdma-core's tests send to
    /// such a group (`PacketConsts.DST_MAC`).
    fn for_software(
        &self,
        env: &Env,
        frame: &[u8],
        origin: Origin,
    ) -> Result<Headers, &'static str> {
        let headers = Headers::of(frame).ok_or("truncated")?;
        let vport = env.vport(self.seat);
        if matches!(origin, Origin::Domain(_)) {
            return Ok(headers);
        }
        if !vport.port.accepts(vport.mac(), headers.dst) {
            return Err("address of another");
        }
        Ok(headers)
    }

    fn deliver(&mut self, env: &mut Env, rqn: u32, frame: &[u8], report: &Report) {
        let taken = self.with_rq(env, rqn, |rq, view| {
            (rq.receive(frame, report, view), rq.counter_set())
        });
        match taken {
            Some((Taken::Whole, _)) | None => {}
            Some((Taken::NoWqe, counter_set)) => {
                self.objects.count(counter_set, QCounter::OutOfBuffer);
                self.count_drop(env, "no receive WQE");
            }
            Some((Taken::Idle, _)) => self.count_drop(env, "receive queue is not ready"),
            Some((Taken::Failed, _)) => self.count_drop(env, "receive WQE failed"),
        }
    }

    fn report_on(&self, frame: &[u8], headers: &Headers) -> Report {
        let all = self.caps.eth_offloads.cqe_checksum_full();
        let verdict = Verdict::of(frame, headers, all);
        let mut ok = L2_OK;
        if verdict.network_ok {
            ok |= L3_OK;
        }
        if verdict.transport_ok {
            ok |= L4_OK;
        }
        Report {
            check_sum: verdict.sum,
            ok,
            header_types: header_types(headers),
            vlan: headers
                .tag
                .filter(|tag| tag.kind == CUSTOMER_TAG)
                .map(|tag| tag.control),
            ..Report::default()
        }
    }

    /// Counts a frame from a send queue, and forwards it to the switch.
    pub fn frame_sent(&mut self, env: &mut Env, sqn: u32, frame: Vec<u8>) {
        let Some(headers) = Headers::of(&frame) else {
            return;
        };
        // A frame that the switch returns to this port does not count as transmitted.
        let only_loops_back = env.card(self.seat).only_loops_back(self.seat.vport, &frame);
        if env.is_up(self.seat) && !only_loops_back {
            let transmitted = &mut env.port_mut(self.seat).ethernet.transmitted;
            transmitted.count(headers.dst, frame.len());
        }
        // The switch returns unicast frames for the function's own address. Copies of multicast frames are returned
        // here.
        if headers.is_multicast()
            && let Some(domain) = self.domain_of(sqn)
            && self.wants_own_multicast(env, domain)
        {
            env.loop_back_within(self.index, frame.clone(), domain);
        }
        if !env.seals() && is_roce(&frame) {
            // Software built the frame, and its ICRC may be wrong.
            env.seal();
        }
        env.frames.push_back((self.index, frame.into()));
    }

    /// Returns the transport domain of a send queue.
    fn domain_of(&self, sqn: u32) -> Option<u32> {
        let eth = &self.objects.eth;
        let tis = eth.tises.get(eth.sqs.get(sqn)?.tis?)?;
        Some(tis.context.transport_domain())
    }

    fn wants_own_multicast(&self, env: &Env, domain: u32) -> bool {
        let mut tirs = self.objects.eth.tirs.iter();
        !env.port(self.seat).loopback_off[1]
            && tirs.any(|(_, tir)| tir.takes(Origin::Domain(domain), true))
    }
}

/// Returns `l4_l3_hdr_type`, without the VLAN bit.
fn header_types(headers: &Headers) -> u8 {
    let Some(ip) = headers.ip else {
        return 0;
    };
    let network = match ip.version {
        IpVersion::V4 => L3_IPV4,
        IpVersion::V6 => L3_IPV6,
    };
    let transport = headers.transport.map_or(0, |found| {
        let data = found.at + found.header_bytes < ip.end;
        match found.protocol {
            Protocol::Udp => L4_UDP,
            Protocol::Tcp { flags } if flags & TCP_ACK == 0 => L4_TCP,
            Protocol::Tcp { .. } if data => L4_TCP_ACK_DATA,
            Protocol::Tcp { .. } => L4_TCP_ACK,
        }
    });
    network | transport
}
