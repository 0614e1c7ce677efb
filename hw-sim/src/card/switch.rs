//! The e-switch: the ports to which a frame is forwarded.
//!
//! ```text
//!   a vport sends:   state, MTU -> spoof check -> tag in  --.                   .-> tag out -> state, MTU -> function
//!                                                            > rules -> each to <
//!   the wire brings: state, MTU -> forwarding table ------- '                   '-> state, MTU -> wire
//! ```
//!
//! The rules are those that Linux's legacy mode writes (`esw/legacy.c`, `eswitch.c`), most exact first:
//!
//! | frame | goes to | source |
//! |---|---|---|
//! | to a unicast address in vports' lists | all of these | `esw_add_uc_addr` |
//! | to a group (or broadcast) in vports' multicast lists | these, all-multicast vports, the wire | `esw_add_mc_addr` |
//! | to any other group, if there are all-multicast vports | these, the wire | `esw_apply_vport_rx_mode` |
//! | from the wire, if there are promiscuous vports | these | `esw_apply_vport_rx_mode` |
//! | any other, from a vport | the wire | the device's miss rule |
//! | any other, from the wire | the physical function | the device's miss rule |
//!
//! Promiscuity without trust has no effect (`esw_update_vport_rx_mode`). A promiscuous vport also counts as
//! all-multicast. A frame from the wire never returns to the wire. A frame returns to its sending vport only if it is
//! unicast, and is RoCE or the vport has loopback on. RoCE frames follow the same rules: an address that is only in
//! the RoCE address table makes no rule.
//!
//! Unicast frames from the wire pass the forwarding table (MPFS) before the rules. The physical function's driver
//! writes its own addresses into the table (`lib/mpfs.c`, called by `en_fs.c`). The addresses of the virtual functions
//! are written by the manager's driver or by the card, whichever makes the rules. While a vport is promiscuous, all
//! addresses pass the table.

use super::Card;
use super::seat::{PHYSICAL, Place, WIRE};
use super::vport::Vport;
use crate::eth::flow::{Entry, FlowTables};
use crate::eth::matching::Pattern;
use crate::wire::Vlan;
use crate::wire::frame::{Headers, is_roce, with_tag, without_tag};
use mlx_prm::flow_action::{VLAN_POP, VLAN_PUSH};
use std::borrow::Cow;

/// Index of all-multicast in the vport's promiscuity. The rules use only this kind and `ALL`.
const ALL_MULTICAST: usize = 1;
const ALL: usize = 2;
/// The reason why a frame was dropped.
pub type Lost = &'static str;
/// Reason for a drop at a vport or uplink that is down.
const PORT_DOWN: Lost = "port down";

/// A copy of a frame that the switch sends, with its destination.
pub type Copy<'f> = (Place, Cow<'f, [u8]>);

impl Card {
    /// Returns the destinations of a frame, and the frame as each receives it. Adds to `down` the vports that would
    /// have received it, but are down.
    ///
    /// # Errors
    /// The reason why the frame, or its last copy, was dropped.
    pub fn forward<'f>(
        &self,
        from: Place,
        frame: &'f [u8],
        down: &mut Vec<u16>,
    ) -> Result<Vec<Copy<'f>>, Lost> {
        let frame = match from {
            Place::Vport(number) => self.enters(number, frame)?,
            Place::Wire => self.admitted_from_wire(frame)?,
        };
        let &dst = frame.first_chunk().ok_or("truncated")?;
        let mut copies = Vec::new();
        let mut lost = "no receiver";
        for to in self.decide(from, dst, &frame) {
            match self.egress_copy(from, to, &frame) {
                Ok(copy) => copies.push((to, copy)),
                Err(reason) => {
                    if let (Place::Vport(number), PORT_DOWN) = (to, reason) {
                        down.push(number);
                    }
                    lost = reason;
                }
            }
        }
        if copies.is_empty() {
            return Err(lost);
        }
        Ok(copies)
    }

    /// Returns the destination of a frame that is forwarded unchanged to exactly one destination. This is the fast path
    /// of [`Card::forward`] for nearly all frames. `None`: the caller must use `forward`.
    pub fn passes(&self, from: Place, frame: &[u8]) -> Option<Place> {
        let &dst = frame.first_chunk()?;
        if dst[0] & 1 != 0 || self.fdb.root().is_some() {
            return None;
        }
        match from {
            Place::Wire => drop(self.admitted_from_wire(frame).ok()?),
            Place::Vport(number) => {
                let vport = self.vport(number)?;
                if vport.settings.spoof_check || !self.is_clear(vport, frame) {
                    return None;
                }
            }
        }
        let running = self.vports().iter().filter(|vport| vport.is_running());
        let mut named = running.filter(|vport| vport.port.lists_unicast(dst));
        match (named.next(), named.next(), from) {
            (Some(vport), None, _) => {
                let to = Place::Vport(vport.number);
                let passes =
                    self.is_clear(vport, frame) && (from != to || loops_back(vport, frame));
                passes.then_some(to)
            }
            (None, None, Place::Vport(_)) => {
                let passes = self.uplink.is_up() && frame.len() <= self.uplink.longest_frame();
                passes.then_some(Place::Wire)
            }
            _ => None,
        }
    }

    /// Returns whether a vport passes a frame without changing it.
    fn is_clear(&self, vport: &Vport, frame: &[u8]) -> bool {
        vport.settings.vlan.is_none()
            && vport.ingress.root().is_none()
            && vport.egress.root().is_none()
            && self.is_up(vport)
            && !(self.rules.vport_mtu_limits && frame.len() > vport.port.longest_frame())
    }

    /// Returns whether the sender is the only receiver of a frame.
    pub fn only_loops_back(&self, number: u16, frame: &[u8]) -> bool {
        let from = Place::Vport(number);
        if let Some(to) = self.passes(from, frame) {
            return to == from;
        }
        self.forward(from, frame, &mut Vec::new())
            .is_ok_and(|copies| matches!(copies[..], [(to, _)] if to == Place::Vport(number)))
    }

    /// Returns a frame from a vport as it is inside the switch, with the vport's VLAN tag.
    fn enters<'f>(&self, number: u16, frame: &'f [u8]) -> Result<Cow<'f, [u8]>, Lost> {
        let vport = self.vport(number).ok_or("no such vport")?;
        if !self.is_up(vport) {
            return Err(PORT_DOWN);
        }
        if self.rules.vport_mtu_limits && frame.len() > vport.port.longest_frame() {
            return Err("larger than the vport's MTU");
        }
        let is_own = |headers: Headers| headers.src == vport.mac();
        if vport.settings.spoof_check && !Headers::of(frame).is_some_and(is_own) {
            return Err("source address is not the vport's");
        }
        let listed = access(&vport.ingress, Place::Vport(number), frame)?;
        if let Some(tag) = listed.filter(|entry| entry.context.action() & VLAN_PUSH != 0) {
            let tag = tag.context.push_vlan();
            // CAST: the priority and the VLAN are 16 bits together.
            let control = tag.prio() << 13 | tag.vid();
            return Ok(Cow::Owned(with_tag(
                frame,
                u16::try_from(control).unwrap_or(0),
            )));
        }
        let Some(vlan) = vport.settings.vlan else {
            return Ok(Cow::Borrowed(frame));
        };
        if vlan_of(frame).is_some() {
            return Err("tagged by a vport that is in a VLAN");
        }
        Ok(Cow::Owned(with_tag(frame, vlan.control())))
    }

    /// Returns a frame from the wire if the port and the forwarding table admit it.
    fn admitted_from_wire<'f>(&self, frame: &'f [u8]) -> Result<Cow<'f, [u8]>, Lost> {
        if !self.uplink.is_up() {
            return Err(PORT_DOWN);
        }
        if frame.len() > self.uplink.longest_frame() {
            return Err("larger than the MTU");
        }
        let &dst: &[u8; 6] = frame.first_chunk().ok_or("truncated")?;
        if dst[0] & 1 == 0 && !self.is_announced(dst) {
            return Err("unannounced address");
        }
        Ok(Cow::Borrowed(frame))
    }

    /// Returns whether unicast frames from the wire to an address are admitted.
    fn is_announced(&self, dst: [u8; 6]) -> bool {
        // A manager that writes its own rules (FDB) also writes the forwarding table.
        let derived_by_card = |vport: &Vport| match vport.number {
            PHYSICAL => !self.managed,
            _ => self.fdb.root().is_none(),
        };
        self.rules.unknown_unicast_passes
            || self.forwarding.values().any(|&mac| mac == dst)
            || self.vports().iter().any(|vport| {
                has_effect(vport, ALL) || derived_by_card(vport) && vport.port.lists_unicast(dst)
            })
            || self.rules.factory_address_passes
                && self.vport(PHYSICAL).is_some_and(|vport| vport.mac() == dst)
    }

    /// Returns the destinations by the manager's tables, or by the card's own rules if the manager has no tables.
    fn decide(&self, from: Place, dst: [u8; 6], frame: &[u8]) -> Vec<Place> {
        if self.fdb.root().is_none() {
            return self.rules(from, dst);
        }
        let named = pattern(from, frame).and_then(|pattern| self.fdb.switch(pattern));
        named.unwrap_or_else(|| vec![missed(from)])
    }

    /// Returns the destinations by the card's rules, in order; the sender may be among them.
    fn rules(&self, from: Place, dst: [u8; 6]) -> Vec<Place> {
        let those = |wanted: &dyn Fn(&Vport) -> bool| -> Vec<Place> {
            let running = self.vports().iter().filter(|vport| vport.is_running());
            running
                .filter(|vport| wanted(vport))
                .map(|vport| Place::Vport(vport.number))
                .collect()
        };
        let mut named = if dst[0] & 1 == 0 {
            those(&|vport| vport.port.lists_unicast(dst))
        } else {
            let mut named = those(&|vport| {
                vport.port.lists_multicast(dst)
                    || has_effect(vport, ALL_MULTICAST)
                    || has_effect(vport, ALL)
            });
            if !named.is_empty() {
                named.push(Place::Wire);
            }
            named
        };
        if named.is_empty() && from == Place::Wire {
            named = those(&|vport| has_effect(vport, ALL));
        }
        if named.is_empty() {
            named.push(missed(from));
        }
        named
    }

    /// Returns a copy of a frame as it arrives at its destination.
    fn egress_copy<'f>(
        &self,
        from: Place,
        to: Place,
        frame: &Cow<'f, [u8]>,
    ) -> Result<Cow<'f, [u8]>, Lost> {
        let number = match to {
            Place::Wire if from == Place::Wire => return Err("no receiver"),
            Place::Wire if !self.uplink.is_up() => return Err(PORT_DOWN),
            Place::Wire if frame.len() > self.uplink.longest_frame() => {
                return Err("larger than the MTU");
            }
            Place::Wire => return Ok(frame.clone()),
            Place::Vport(number) => number,
        };
        let vport = self.vport(number).ok_or("no such vport")?;
        if from == to && !loops_back(vport, frame) {
            return Err("own frame");
        }
        let listed = access(&vport.egress, from, frame)?;
        let pops = listed.is_some_and(|entry| entry.context.action() & VLAN_POP != 0);
        let frame = match (vport.settings.vlan, vlan_of(frame)) {
            (None, Some(_)) if pops => Cow::Owned(without_tag(frame)),
            (None, _) => frame.clone(),
            (Some(vlan), Some(tag)) if tag.id == vlan.id => Cow::Owned(without_tag(frame)),
            (Some(_), _) => return Err("of another VLAN"),
        };
        if !self.is_up(vport) {
            return Err(PORT_DOWN);
        }
        if self.rules.vport_mtu_limits && frame.len() > vport.port.longest_frame() {
            return Err("larger than the vport's MTU");
        }
        Ok(frame)
    }
}

/// Returns the destination of a frame that no rule matches.
const fn missed(from: Place) -> Place {
    match from {
        Place::Wire => Place::Vport(PHYSICAL),
        Place::Vport(_) => Place::Wire,
    }
}

/// Returns the fields of a frame, with its source, as flow tables match them.
fn pattern(from: Place, frame: &[u8]) -> Option<Pattern> {
    let source = match from {
        Place::Vport(number) => number,
        Place::Wire => WIRE,
    };
    let headers = Headers::of(frame)?;
    Some(Pattern::of_headers(&headers).from(u64::from(source)))
}

/// Returns the entry of an access list that a frame matches. `None` if there is no list or no entry matches; the
/// frame then passes too. Fails if the entry drops the frame.
fn access<'t>(list: &'t FlowTables, from: Place, frame: &[u8]) -> Result<Option<&'t Entry>, Lost> {
    if list.root().is_none() {
        return Ok(None);
    }
    let entry = pattern(from, frame).and_then(|pattern| list.list(pattern));
    if entry.is_some_and(Entry::drops) {
        return Err("access list of its vport");
    }
    Ok(entry)
}

/// Returns whether promiscuity of a kind has effect: the vport has asked for it, is trusted and is running.
fn has_effect(vport: &Vport, kind: usize) -> bool {
    vport.is_running() && vport.is_trusted() && vport.port.promiscuous[kind]
}

/// Returns whether the switch returns a function's own frame to it. The switch does not return multicast frames: the
/// function copies them itself, if its TIRs accept them. Loopback of unicast can be turned off, but not for RoCE, see
/// [`Port::loopback_off`](crate::port::Port::loopback_off).
fn loops_back(vport: &Vport, frame: &[u8]) -> bool {
    let unicast = frame.first().is_some_and(|first| first & 1 == 0);
    unicast && (!vport.port.loopback_off[0] || is_roce(frame))
}

/// Returns the VLAN and the priority of a frame with a customer tag.
fn vlan_of(frame: &[u8]) -> Option<Vlan> {
    Headers::of(frame)?.vlan()
}
