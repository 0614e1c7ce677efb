//! The e-switch: where a frame goes.
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
//! | to a group in vports' multicast lists, all stations included | these, all-multicast vports, the wire | `esw_add_mc_addr` |
//! | to any other group, if there are all-multicast vports | these, the wire | `esw_apply_vport_rx_mode` |
//! | from the wire, if there are promiscuous vports | these | `esw_apply_vport_rx_mode` |
//! | else, from a vport | the wire | the device's miss |
//! | else, from the wire | the physical function | the device's miss |
//!
//! Promiscuity without trust changes nothing (`esw_update_vport_rx_mode`). Nothing goes back to the wire it came from, and
//! to its sender only what that lets come back. RoCE frames are frames: an address in the RoCE address table alone makes no rule.
//!
//! The forwarding table (MPFS) stands between the wire and the rules, for unicast. The physical function's driver writes
//! its own addresses into it (`lib/mpfs.c`, called by `en_fs.c`); those of the virtual functions whoever makes their
//! rules. A promiscuous vport opens it.

use super::vport::Vport;
use super::{Card, PHYSICAL};
use crate::eth::frame::{CUSTOMER_TAG, TAG_BYTES};
use crate::ingress::is_roce;
use std::borrow::Cow;

/// Where the type of a frame, or of its first tag, stands.
const TYPE: usize = 12;
/// The one kind of promiscuity that the switch's rules know, and all-multicast.
const ALL_MULTICAST: usize = 1;
const ALL: usize = 2;

/// A side of the switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// A function.
    Vport(u16),
    /// The wire.
    Wire,
}

/// Why a frame goes nowhere.
pub type Lost = &'static str;

/// A copy of a frame on its way out of the switch.
pub type Copy<'f> = (Place, Cow<'f, [u8]>);

impl Card {
    /// Where a frame goes, and as what.
    ///
    /// # Errors
    /// Nowhere: what lost the frame, or its last copy.
    pub fn forward<'f>(&self, from: Place, frame: &'f [u8]) -> Result<Vec<Copy<'f>>, Lost> {
        let frame = match from {
            Place::Vport(number) => self.enters(number, frame)?,
            Place::Wire => self.comes_in(frame)?,
        };
        let &dst = frame.first_chunk().ok_or("truncated")?;
        let mut copies = Vec::new();
        let mut lost = "for nobody";
        for to in self.rules(from, dst) {
            match self.leaves(from, to, &frame) {
                Ok(copy) => copies.push((to, copy)),
                Err(reason) => lost = reason,
            }
        }
        if copies.is_empty() {
            return Err(lost);
        }
        Ok(copies)
    }

    /// Whether all that becomes of a frame is that its sender receives it.
    pub fn turns_around(&self, number: u16, frame: &[u8]) -> bool {
        self.forward(Place::Vport(number), frame)
            .is_ok_and(|copies| matches!(copies[..], [(to, _)] if to == Place::Vport(number)))
    }

    /// A vport's frame, as it is inside the switch.
    fn enters<'f>(&self, number: u16, frame: &'f [u8]) -> Result<Cow<'f, [u8]>, Lost> {
        let vport = self.vport(number).ok_or("no such vport")?;
        if !self.is_up(vport) {
            return Err("port down");
        }
        if self.rules.vport_mtu_limits && frame.len() > vport.port.longest_frame() {
            return Err("larger than the vport's MTU");
        }
        if vport.settings.spoof_check && frame.get(6..TYPE) != Some(&vport.mac()) {
            return Err("source address is not the vport's");
        }
        let Some(vlan) = vport.settings.vlan else {
            return Ok(Cow::Borrowed(frame));
        };
        if tag_of(frame).is_some() {
            return Err("tagged by a vport that is in a VLAN");
        }
        let at = TYPE.min(frame.len());
        let control = u16::from(vlan.priority & 7) << 13 | vlan.id & 0xfff;
        let mut tagged = frame[..at].to_vec();
        tagged.extend(CUSTOMER_TAG.to_be_bytes());
        tagged.extend(control.to_be_bytes());
        tagged.extend_from_slice(&frame[at..]);
        Ok(Cow::Owned(tagged))
    }

    /// A frame from the wire that the port and the forwarding table let in.
    fn comes_in<'f>(&self, frame: &'f [u8]) -> Result<Cow<'f, [u8]>, Lost> {
        if !self.uplink.is_up() {
            return Err("port down");
        }
        if frame.len() > self.uplink.longest_frame() {
            return Err("larger than the MTU");
        }
        let &dst: &[u8; 6] = frame.first_chunk().ok_or("truncated")?;
        if dst[0] & 1 == 0 && !self.is_announced(dst) {
            return Err("address nobody announced");
        }
        Ok(Cow::Borrowed(frame))
    }

    /// Whether unicast to an address comes in from the wire.
    fn is_announced(&self, dst: [u8; 6]) -> bool {
        let made_here = |vport: &Vport| vport.number != PHYSICAL || !self.managed;
        self.rules.unknown_unicast_passes
            || self.forwarding.values().any(|&mac| mac == dst)
            || self.vports().iter().any(|vport| {
                has_effect(vport, ALL) || made_here(vport) && vport.port.lists_unicast(dst)
            })
            || self.rules.factory_address_passes
                && self.vport(PHYSICAL).is_some_and(|vport| vport.mac() == dst)
    }

    /// Whom the rules name, in order; with the sender, if it is among them.
    fn rules(&self, from: Place, dst: [u8; 6]) -> Vec<Place> {
        let those = |wanted: &dyn Fn(&Vport) -> bool| -> Vec<Place> {
            let enabled = self.vports().iter().filter(|vport| vport.enabled);
            enabled
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
            named.push(match from {
                Place::Wire => Place::Vport(PHYSICAL),
                Place::Vport(_) => Place::Wire,
            });
        }
        named
    }

    /// A copy on its way to a side, as it arrives there.
    fn leaves<'f>(
        &self,
        from: Place,
        to: Place,
        frame: &Cow<'f, [u8]>,
    ) -> Result<Cow<'f, [u8]>, Lost> {
        let number = match to {
            Place::Wire if from == Place::Wire => return Err("for nobody"),
            Place::Wire if !self.uplink.is_up() => return Err("port down"),
            Place::Wire if frame.len() > self.uplink.longest_frame() => {
                return Err("larger than the MTU");
            }
            Place::Wire => return Ok(frame.clone()),
            Place::Vport(number) => number,
        };
        let vport = self.vport(number).ok_or("no such vport")?;
        if from == to && !comes_back(vport, frame) {
            return Err("own frame");
        }
        let frame = match (vport.settings.vlan, tag_of(frame)) {
            (None, _) => frame.clone(),
            (Some(vlan), Some(control)) if control & 0xfff == vlan.id => {
                let mut bare = frame[..TYPE].to_vec();
                bare.extend_from_slice(&frame[TYPE + TAG_BYTES..]);
                Cow::Owned(bare)
            }
            (Some(_), _) => return Err("of another VLAN"),
        };
        if !self.is_up(vport) {
            return Err("port down");
        }
        if self.rules.vport_mtu_limits && frame.len() > vport.port.longest_frame() {
            return Err("larger than the vport's MTU");
        }
        Ok(frame)
    }
}

/// Whether promiscuity of a kind does anything: the vport has it, and may.
fn has_effect(vport: &Vport, kind: usize) -> bool {
    vport.enabled && vport.is_trusted() && vport.port.promiscuous[kind]
}

/// Whether a function's own frame comes back to it. Of multicast, copies come back behind the port, by its receive
/// queues' choice. Loopback of unicast can be turned off, but not that of RoCE, see
/// [`Port::loopback_off`](crate::port::Port::loopback_off).
fn comes_back(vport: &Vport, frame: &[u8]) -> bool {
    let unicast = frame.first().is_some_and(|first| first & 1 == 0);
    unicast && (!vport.port.loopback_off[0] || is_roce(frame))
}

/// The tag of a frame: priority and VLAN.
fn tag_of(frame: &[u8]) -> Option<u16> {
    let tag: &[u8; TAG_BYTES] = frame.get(TYPE..)?.first_chunk()?;
    let &[a, b, c, d] = tag;
    (u16::from_be_bytes([a, b]) == CUSTOMER_TAG).then(|| u16::from_be_bytes([c, d]))
}
