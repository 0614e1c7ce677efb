//! Directed routes: packets that name, for each node on their way, the port by which the node sends them on (IBTA
//! volume 1, section 14.2.2).
//!
//! ```text
//!   sender       hop pointer 0 -> 1, leaves by initial path 1
//!   switch n     pointer n < count:  return path n = port it came in by; pointer n + 1; leaves by initial path n + 1
//!   receiver     pointer == count:   return path n = port it came in by; pointer count + 1; the agent answers
//!   and back     pointer p: p - 1, leaves by return path p - 1, until it is 0 at the sender
//! ```
//!
//! A route may have a part by LID before its directed part (DrSLID other than 0xffff). A part by LID behind the
//! directed part (DrDLID) is not simulated; packets with such a route are lost.

use mlx_prm::{MadClass, Smp};

use super::port_info::PERMISSIVE_LID;

/// Bit 15 of the status. It is set in a packet that returns to the sender.
const RETURNS: u16 = 1 << 15;

/// Next hop of a packet at a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// The packet is for the agent of this node.
    Agent,
    /// The packet leaves by this port.
    Port(u8),
    /// The packet continues to this LID, by LID routing.
    Lid(u16),
    /// The packet is for the sender of the request, which is on this node.
    Sender,
    /// The packet is lost, because its route is invalid.
    Nowhere,
}

/// Returns whether a packet is of the class for directed routes.
pub fn is_directed(smp: &Smp) -> bool {
    MadClass(smp.mgmt_class()) == MadClass::SUBNET_DIRECTED_ROUTE
}

/// Returns whether a packet is returning to the sender.
pub fn returns(smp: &Smp) -> bool {
    smp.status() & RETURNS != 0
}

/// Updates a directed-route packet that arrived by port `by`, and returns its next hop.
pub fn arrives(smp: &mut Smp, by: u8) -> Step {
    let (pointer, count) = (smp.hop_pointer(), smp.hop_count());
    if usize::from(count) >= smp.initial_path().len() {
        return Step::Nowhere;
    }
    if returns(smp) {
        return goes_back(smp, pointer, count);
    }
    match pointer {
        // The packet came by LID, and its directed part begins at this node.
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

/// Marks a packet as returning, for the answer to a request, and returns the answer's next hop.
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
