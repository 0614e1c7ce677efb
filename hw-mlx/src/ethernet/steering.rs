//! Steering: the flow table that passes to the host the frames that every station must receive, and no others.
//!
//! The flow table is the root of the NIC's receive side. It has one flow group for each set of fields that are
//! compared:
//!
//! | Destination | Protocol | Entries |
//! |---|---|---|
//! | broadcast, our MAC | ARP | 2 |
//! | our MAC | ICMP over IPv4, ICMPv6 over IPv6 | 2 |
//! | 33:33:..., the multicast addresses of IPv6 (RFC 2464, 7) | ICMPv6 over IPv6 | 1 |
//!
//! The vport's list decides which multicast addresses reach the function. The device compares the EtherType behind a
//! VLAN tag, so the entries are the same in every VLAN. A frame that matches no entry is dropped. RDMA packets do not
//! reach this table.

use mlx_prm::{
    CreateFlowGroupIn, CreateFlowTableIn, DestFormat, FlowDestinationType, FteMatchParam,
    FteMatchSetLyr24, SetFlowTableEntryIn, SetFlowTableRootIn, flow_action, match_criteria,
};
use zerocopy::IntoBytes;

use super::objects::{Object, Objects};
use crate::device::Hca;
use crate::error::MlxError;

/// log2 of the number of entries of the table.
pub(super) const LOG_ENTRIES: u32 = 3;
const BROADCAST: [u8; 6] = [0xff; 6];
/// Prefix of IPv6 multicast MAC addresses, and its mask.
const MULTICAST: [u8; 6] = [0x33, 0x33, 0, 0, 0, 0];
const MULTICAST_MASK: [u8; 6] = [0xff, 0xff, 0, 0, 0, 0];
const WHOLE: [u8; 6] = [0xff; 6];
const ARP: u32 = 0x0806;
const IPV4: u32 = 0x0800;
const IPV6: u32 = 0x86dd;
/// IP protocol numbers.
const ICMP: u32 = 1;
const ICMPV6: u32 = 58;

/// Destination MAC, EtherType and IP protocol of frames: either the values, or masks with ones in the compared bits.
#[derive(Clone, Copy)]
struct Fields {
    destination: [u8; 6],
    ethertype: u32,
    protocol: u32,
}

impl Fields {
    fn layout(self) -> FteMatchParam {
        let [a, b, c, d, e, f] = self.destination;
        let mut param = FteMatchParam::new();
        let outer: &mut FteMatchSetLyr24 = param.outer_headers_mut();
        outer
            .set_dmac_47_16(u32::from_be_bytes([a, b, c, d]))
            .set_dmac_15_0(u32::from(u16::from_be_bytes([e, f])))
            .set_ethertype(self.ethertype)
            .set_ip_protocol(self.protocol);
        param
    }
}

/// Creates the flow table that directs to `tir` the frames that a station with the port's MAC must receive.
pub(super) fn steer_to(hca: &mut Hca, tir: u32, objects: &mut Objects) -> Result<(), MlxError> {
    let mac = hca.mac();
    let mut input = CreateFlowTableIn::new();
    input.flow_table_context_mut().set_log_size(LOG_ENTRIES);
    let table = hca.exec(&input)?.table_id();
    objects.add(Object::FlowTable(table));

    let of = |destination, ethertype, protocol| Fields {
        destination,
        ethertype,
        protocol,
    };
    let groups: [(Fields, &[Fields]); 3] = [
        (
            of(WHOLE, 0xffff, 0),
            &[of(BROADCAST, ARP, 0), of(mac, ARP, 0)],
        ),
        (
            of(WHOLE, 0xffff, 0xff),
            &[of(mac, IPV4, ICMP), of(mac, IPV6, ICMPV6)],
        ),
        (
            of(MULTICAST_MASK, 0xffff, 0xff),
            &[of(MULTICAST, IPV6, ICMPV6)],
        ),
    ];
    let mut next = 0;
    for (criteria, entries) in groups {
        // CAST: each group has one or two entries.
        let end = next + u32::try_from(entries.len()).unwrap_or(0);
        let mut input = CreateFlowGroupIn::new();
        input
            .set_table_id(table)
            .set_start_flow_index(next)
            .set_end_flow_index(end - 1)
            .set_match_criteria_enable(match_criteria::OUTER_HEADERS);
        *input.match_criteria_mut() = criteria.layout();
        let group = hca.exec(&input)?.group_id();
        objects.add(Object::FlowGroup { table, group });
        for (index, entry) in (next..end).zip(entries) {
            let mut input = SetFlowTableEntryIn::new();
            input.set_table_id(table).set_flow_index(index);
            let context = input.flow_context_mut();
            context
                .set_group_id(group)
                .set_action(flow_action::FWD_DEST)
                .set_destination_list_size(1);
            *context.match_value_mut() = entry.layout();
            let mut to = DestFormat::new();
            to.set_destination_type(FlowDestinationType::TIR)
                .set_destination_id(tir);
            hca.exec_with(&input, to.as_bytes())?;
            objects.add(Object::FlowEntry { table, index });
        }
        next = end;
    }
    let mut input = SetFlowTableRootIn::new();
    input.set_table_id(table);
    hca.exec(&input)?;
    Ok(())
}
