//! Tests of flow counters: ownership, the frames that they count, and queries.

use mlx_prm::*;
use zerocopy::{FromBytes, IntoBytes};

use crate::bench::{Bench, Failure, list};
use crate::eth_support::*;

const FORWARD_AND_COUNT: u32 = flow_action::FWD_DEST | flow_action::COUNT;
const DROP_AND_COUNT: u32 = flow_action::DROP | flow_action::COUNT;

fn side() -> Side {
    Side::alone(profile(1).devx())
}

fn context(bench: &mut Bench) -> u32 {
    bench.exec(&CreateUctxIn::new()).unwrap().uid()
}

fn counter(bench: &mut Bench, uid: u32) -> u32 {
    let mut alloc = AllocFlowCounterIn::new();
    alloc.set_uid(uid);
    bench.exec(&alloc).unwrap().flow_counter_id()
}

fn dealloc(uid: u32, number: u32) -> DeallocFlowCounterIn {
    let mut dealloc = DeallocFlowCounterIn::new();
    dealloc.set_uid(uid).set_flow_counter_id(number);
    dealloc
}

fn query(first: u32, count: u32) -> QueryFlowCounterIn {
    let mut query = QueryFlowCounterIn::new();
    query.set_flow_counter_id(first).set_num_of_counters(count);
    query
}

/// Returns packets and octets of the queried consecutive counters.
fn counted(bench: &mut Bench, query: &QueryFlowCounterIn) -> Result<Vec<(u64, u64)>, Failure> {
    let count = usize::try_from(query.num_of_counters().max(1)).unwrap();
    let out = QueryFlowCounterOut::SIZE + count * TrafficCounter::SIZE;
    let bytes = bench.raw(query.as_bytes(), out)?;
    let each = bytes[QueryFlowCounterOut::SIZE..].chunks_exact(TrafficCounter::SIZE);
    Ok(each
        .map(|bytes| TrafficCounter::read_from_bytes(bytes).unwrap())
        .map(|counter| (counter.packets(), counter.octets()))
        .collect())
}

/// Creates a table with one group that matches everything, and without entries.
fn table(side: &mut Side) -> (u32, u32) {
    let table = side.table(5, 4).unwrap();
    let group = side.group(table, 0, 15, &FteMatchParam::new()).unwrap();
    (table, group)
}

/// Sets entry 0 of a flow table. The entry counts in `counters`, and forwards to the TIR if `action` has that bit.
fn set(side: &mut Side, (table, group): (u32, u32), action: u32, counters: &[u32]) -> CmdStatus {
    let forwards = action & flow_action::FWD_DEST != 0;
    let to = destination(FlowDestinationType::TIR, side.tir);
    let mut words = if forwards { vec![to] } else { Vec::new() };
    let nothing = FteMatchParam::new();
    let mut set = entry_input(table, group, 0, &nothing, action, words.len());
    set.flow_context_mut()
        .set_flow_counter_list_size(u32::try_from(counters.len()).unwrap());
    words.extend(counters.iter().map(|&number| u64::from(number) << 32));
    side.bench.status_with(&set, &list(&words))
}

#[test]
fn a_frame_counts_where_its_entry_says_whether_it_is_forwarded_or_dropped() {
    for action in [FORWARD_AND_COUNT, DROP_AND_COUNT] {
        let mut side = side();
        let number = counter(&mut side.bench, 0);
        let place = table(&mut side);
        assert_eq!(set(&mut side, place, action, &[number]), CmdStatus::OK);
        side.post_receives(2);
        let frame = plain(0, MACS[1], 100);
        side.deliver(&frame);
        side.deliver(&frame);
        let forwarded = side.received().is_some();
        assert_eq!(forwarded, action == FORWARD_AND_COUNT);
        let octets = 2 * frame.len() as u64;
        let mut query = query(number, 0);
        query.set_clear(true);
        assert_eq!(counted(&mut side.bench, &query).unwrap(), [(2, octets)]);
        assert_eq!(counted(&mut side.bench, &query).unwrap(), [(0, 0)]);
    }
}

#[test]
fn a_counter_in_use_stays_until_its_last_entry_has_gone() {
    let mut side = side();
    let (first, second) = (counter(&mut side.bench, 0), counter(&mut side.bench, 0));
    let place = table(&mut side);
    assert_eq!(
        set(&mut side, place, DROP_AND_COUNT, &[first]),
        CmdStatus::OK
    );
    assert_eq!(
        side.bench.status(&dealloc(0, first)),
        CmdStatus::BAD_RES_STATE
    );
    let mut change = entry_input(
        place.0,
        place.1,
        0,
        &FteMatchParam::new(),
        DROP_AND_COUNT,
        0,
    );
    change.set_op_mod(1).set_modify_enable_mask(8);
    change.flow_context_mut().set_flow_counter_list_size(1);
    let other = list(&[u64::from(second) << 32]);
    assert_eq!(side.bench.status_with(&change, &other), CmdStatus::OK);
    assert_eq!(side.bench.status(&dealloc(0, first)), CmdStatus::OK);
    let mut delete = DeleteFlowTableEntryIn::new();
    delete.set_table_id(place.0);
    assert_eq!(side.bench.status(&delete), CmdStatus::OK);
    assert_eq!(side.bench.status(&dealloc(0, second)), CmdStatus::OK);
}

#[test]
fn an_entry_names_as_many_counters_as_permitted_with_the_action_count() {
    let mut side = side();
    let number = counter(&mut side.bench, 0);
    let place = table(&mut side);
    for (action, counters, status) in [
        (flow_action::DROP, vec![number], CmdStatus::BAD_PARAM),
        (DROP_AND_COUNT, vec![], CmdStatus::BAD_PARAM),
        (flow_action::COUNT, vec![number], CmdStatus::BAD_PARAM),
        (DROP_AND_COUNT, vec![number, number], CmdStatus::EXCEED_LIM),
        (DROP_AND_COUNT, vec![number + 1], CmdStatus::BAD_RESOURCE),
        (DROP_AND_COUNT, vec![number], CmdStatus::OK),
    ] {
        assert_eq!(
            set(&mut side, place, action, &counters),
            status,
            "{action:#x} {counters:?}"
        );
    }
}

/// A query of consecutive counters returns zeros for counters that do not exist. Linux starts a query at a multiple of
/// four, whether or not all the counters exist (fs_counters.c `mlx5_fc_stats_query_counter_range`).
#[test]
fn a_row_of_counters_has_zeros_where_there_are_none() {
    let mut side = side();
    let number = counter(&mut side.bench, 0);
    let place = table(&mut side);
    assert_eq!(
        set(&mut side, place, DROP_AND_COUNT, &[number]),
        CmdStatus::OK
    );
    side.deliver(&plain(0, MACS[1], 100));
    let first = number & !3;
    let row = counted(&mut side.bench, &query(first, 4)).unwrap();
    let at = usize::try_from(number - first).unwrap();
    let packets: Vec<u64> = row.iter().map(|&(packets, _)| packets).collect();
    let mut expected = vec![0; 4];
    expected[at] = 1;
    assert_eq!(packets, expected);
    for (first, count, status) in [
        (first + 1, 4, CmdStatus::BAD_PARAM),
        (first, 1 << 11, CmdStatus::EXCEED_LIM),
        (u32::MAX, 1, CmdStatus::BAD_RESOURCE),
        (!3, 8, CmdStatus::OK),
    ] {
        assert_eq!(
            side.bench.status(&query(first, count)),
            status,
            "{first:#x} {count}"
        );
    }
    let mut dump = query(number, 1);
    dump.set_dump_to_memory(true).set_mkey(5);
    assert_eq!(side.bench.status(&dump), CmdStatus::BAD_PARAM);
}

#[test]
fn counters_come_one_at_a_time_and_are_their_contexts_own() {
    let mut side = side();
    let bench = &mut side.bench;
    let mut bulk = AllocFlowCounterIn::new();
    bulk.set_flow_counter_bulk(1);
    assert_eq!(bench.status(&bulk), CmdStatus::BAD_PARAM);
    let (one, other) = (context(bench), context(bench));
    let mine = counter(bench, one);
    let mut asked = query(mine, 0);
    asked.set_uid(other);
    assert_eq!(bench.status(&asked), CmdStatus::BAD_RESOURCE);
    assert_eq!(bench.status(&dealloc(other, mine)), CmdStatus::BAD_RESOURCE);
    let mut destroy = DestroyUctxIn::new();
    destroy.set_uid(one);
    assert_eq!(
        bench.status(&destroy),
        CmdStatus::BAD_RES_STATE,
        "owns a counter"
    );
    assert_eq!(bench.status(&dealloc(one, mine)), CmdStatus::OK);
    assert_eq!(bench.status(&destroy), CmdStatus::OK);
    let (mut bench, _) = Bench::usable(profile(1));
    assert_eq!(bench.status(&AllocFlowCounterIn::new()), CmdStatus::BAD_OP);
}
