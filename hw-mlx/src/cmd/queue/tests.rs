//! Tests of the command slots. The tests act as the device.

use driver::Function;
use hw_sim::{Profile, Sim, SimConfig};

use super::*;
use crate::tables::assert_table;

#[test]
fn every_pair_of_state_and_event_is_as_the_checked_in_table_says() {
    assert_table(State::step, include_str!("../queue.table"));
}

/// Makes a queue whose address was not written to the card.
fn queue() -> CommandQueue {
    let sim = Sim::new(SimConfig {
        seed: 1,
        event_log: false,
    });
    let profile = Profile::named("sim:a", [2, 0, 0, 0, 0, 1]);
    let function = Function::in_process(sim.add_function(profile)).expect("a function");
    let arena = DmaArena::new(&function).expect("an arena");
    let registers = function.bar(0).expect("a BAR").block(0).expect("registers");
    let queue = CommandQueue::new(arena, registers, 5, 6).expect("memory");
    queue.expect("a page of entries")
}

/// Posts a NOP at time 0.
fn post(queue: &mut CommandQueue) -> Ticket {
    let mut input = [0; SHORTEST_MESSAGE];
    input[..2].copy_from_slice(&Opcode::NOP.0.to_be_bytes());
    let posted = queue.submit(SlotClass::Ordinary, &input, SHORTEST_MESSAGE, Instant(0));
    posted.expect("a free slot")
}

fn give_back(queue: &mut CommandQueue, slot: usize) {
    queue.memory.store_u8(slot * queue.stride + STATUS_OWN, 0);
    queue.harvest(u32::MAX);
}

fn counts(queue: &CommandQueue) -> (u64, u64) {
    let tally = queue.tallies[&Opcode::NOP];
    (tally.answered, tally.unanswered)
}

#[test]
fn a_command_that_was_answered_counts_as_answered_though_it_is_abandoned() {
    let mut queue = queue();
    let ticket = post(&mut queue);
    give_back(&mut queue, ticket.slot);
    assert_eq!(queue.abandon(ticket, Instant(7_000_000)), None);
    assert_eq!(counts(&queue), (1, 0));
    assert!(queue.take(ticket, Instant(8_000_000)).is_none());
    assert_eq!(counts(&queue), (1, 0));
    assert_eq!(post(&mut queue).slot, ticket.slot, "the slot is free");
}

#[test]
fn an_old_ticket_neither_takes_nor_ends_the_next_command_of_its_slot() {
    let mut queue = queue();
    let old = post(&mut queue);
    give_back(&mut queue, old.slot);
    assert!(queue.take(old, Instant(1)).is_some());
    let new = post(&mut queue);
    assert_eq!(old.slot, new.slot);
    assert_eq!(queue.abandon(old, Instant(2)), None);
    assert_eq!(queue.in_flight(), 1);
    give_back(&mut queue, new.slot);
    assert!(queue.take(old, Instant(3)).is_none());
    assert!(queue.take(new, Instant(3)).is_some());
    assert_eq!(counts(&queue), (2, 0));
}

#[test]
fn an_abandoned_command_keeps_its_slot_until_the_device_returns_it() {
    let mut queue = queue();
    let ticket = post(&mut queue);
    let told = queue.abandon(ticket, Instant(7_000_000));
    assert_eq!(told, Some((Opcode::NOP, 0, 7)));
    assert_eq!((queue.quarantined(), counts(&queue)), (1, (0, 1)));
    assert_eq!(queue.abandon(ticket, Instant(8_000_000)), None);
    assert!(queue.take(ticket, Instant(8_000_000)).is_none());
    assert_ne!(post(&mut queue).slot, ticket.slot);
    give_back(&mut queue, ticket.slot);
    assert_eq!((queue.quarantined(), counts(&queue)), (0, (0, 1)));
    assert!(queue.take(ticket, Instant(9_000_000)).is_none());
}
