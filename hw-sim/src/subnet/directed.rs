//! Directed routes: packets that name the port by which each node on their way sends them (IBTA volume 1, section
//! 14.2.2).
//!
//! ```text
//!   sender       hop pointer 0 -> 1, leaves by initial path 1
//!   switch n     pointer n < count:  return path n = port it came in by; pointer n + 1; leaves by initial path n + 1
//!   receiver     pointer == count:   return path n = port it came in by; pointer count + 1; the agent answers
//!   and back     pointer p: p - 1, leaves by return path p - 1, until it is 0 at the sender
//! ```
//!
//! A route may have a part by LID before its directed part (DrSLID other than 0xffff). One behind it (DrDLID) is not
//! simulated: such packets are lost.

use mlx_prm::{MadClass, Smp};

use super::port_info::PERMISSIVE_LID;

/// Bit 15 of the status: the packet is on its way back.
const RETURNS: u16 = 1 << 15;

/// Next hop of a packet at a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// To the agent of this node.
    Agent,
    /// Out of a port.
    Port(u8),
    /// On by LID.
    Lid(u16),
    /// To the sender of the request, on this node.
    Sender,
    /// Nowhere: the route is invalid.
    Nowhere,
}

/// Returns whether a packet's class is that of directed routes.
pub fn is_directed(smp: &Smp) -> bool {
    MadClass(smp.mgmt_class()) == MadClass::SUBNET_DIRECTED_ROUTE
}

/// Returns whether it is on its way back.
pub fn returns(smp: &Smp) -> bool {
    smp.status() & RETURNS != 0
}

/// Returns the next hop of a directed-route packet that arrived by a port.
pub fn arrives(smp: &mut Smp, by: u8) -> Step {
    let (pointer, count) = (smp.hop_pointer(), smp.hop_count());
    if usize::from(count) >= smp.initial_path().len() {
        return Step::Nowhere;
    }
    if returns(smp) {
        return goes_back(smp, pointer, count);
    }
    match pointer {
        // It came by LID, and its directed part begins here.
        0 if count > 0 && smp.dr_slid() != PERMISSIVE_LID => {
            smp.set_hop_pointer(1);
            Step::Port(smp.initial_path()[1])
        }
        0 if count > 0 => Step::Nowhere,
        pointer if pointer < count => {
            note(smp, pointer, by);
            smp.set_hop_pointer(pointer + 1);
            Step::Port(smp.initial_path()[usize::from(pointer) + 1])
        }
        pointer if pointer == count => {
            if count > 0 {
                note(smp, pointer, by);
            }
            smp.set_hop_pointer(count + 1);
            if smp.dr_dlid() == PERMISSIVE_LID {
                Step::Agent
            } else {
                Step::Nowhere
            }
        }
        _ => Step::Nowhere,
    }
}

/// Turns a request into an answer; returns its next hop.
pub fn answers(smp: &mut Smp) -> Step {
    smp.set_status(smp.status() | RETURNS);
    let (pointer, count) = (smp.hop_pointer(), smp.hop_count());
    goes_back(smp, pointer, count)
}

fn goes_back(smp: &mut Smp, pointer: u8, count: u8) -> Step {
    match pointer {
        0 => Step::Sender,
        1 => {
            smp.set_hop_pointer(0);
            match smp.dr_slid() {
                PERMISSIVE_LID => Step::Sender,
                lid => Step::Lid(lid),
            }
        }
        pointer if pointer <= count + 1 => {
            smp.set_hop_pointer(pointer - 1);
            Step::Port(smp.return_path()[usize::from(pointer) - 1])
        }
        _ => Step::Nowhere,
    }
}

fn note(smp: &mut Smp, pointer: u8, by: u8) {
    let mut path = *smp.return_path();
    path[usize::from(pointer)] = by;
    smp.set_return_path(&path);
}
