//! Fast path: delivers a packet to the queue pair at the other end of a cable in one step.

use super::routes::{CableRoute, Route};
use super::{Cable, World, side_of};
use crate::card::seat::{Place, Seat};
use crate::network::End;
use crate::profile::PortType;
use crate::wire::{Frame, Packet};

impl World {
    /// Delivers the next packet directly to its queue pair, if its route is cached and nothing else would run before
    /// the packet arrives. Returns false if the packet was not delivered.
    ///
    /// Nothing reads the bytes of such a frame, so its headers are not written; the outline holds their values. The
    /// fast path does in one step what the general path does in several (`World::transmit`, the link, `World::arrive`,
    /// `Nic::frame_received`).
    pub(super) fn pass_directly(&mut self) -> bool {
        // The whole queue is taken, because moving the large `Frame` out of it would cost more.
        let mut frames = std::mem::take(&mut self.env.frames);
        let memory = frames.front_mut().and_then(|(nic, frame)| {
            let has_gone = self.pass_on(*nic, frame);
            has_gone.then(|| frame.take_memory())
        });
        let Some(memory) = memory else {
            self.env.frames = frames;
            return false;
        };
        self.env.recycle(memory);
        frames.clear();
        // Frames that the receiver has sent in the meantime are next in the queue.
        frames.append(&mut self.env.frames);
        self.env.frames = frames;
        true
    }

    /// Delivers a frame for [`World::pass_directly`]. Returns false if the frame was not delivered.
    fn pass_on(&mut self, nic: usize, frame: &Frame) -> bool {
        let Some((outline, memory)) = frame.outline() else {
            return false;
        };
        let link = outline.link();
        let length = outline.frame_len();
        let Some(over) = self.routes.find(nic, link, length) else {
            let over = self.route_of(nic, &frame.clone().into_bytes());
            self.routes.add(Route {
                nic,
                link,
                longest: length,
                over,
            });
            return false;
        };
        let Some(over) = over.filter(|over| self.is_next(over)) else {
            return false;
        };
        let packet = outline.packet(memory);
        if !self.nics[over.function].takes(&packet) {
            return false;
        }
        debug_assert_eq!(
            Packet::parse_ignoring_icrc(&frame.clone().into_bytes()).map(|read| (
                read.bth,
                read.headers,
                read.payload.to_vec()
            )),
            Ok((packet.bth, packet.headers, packet.payload.to_vec())),
        );
        self.cables[over.cable].link.pass(self.env.now, over.from);
        let seat = self.nics[nic].seat;
        self.env.port_mut(seat).transmitted.count(length);
        let receiver = &mut self.nics[over.function];
        self.env.port_mut(receiver.seat).received.count(length);
        receiver.packet_received(&mut self.env, &packet);
        true
    }

    /// Returns whether a frame on this route would arrive before anything else runs.
    fn is_next(&self, over: &CableRoute) -> bool {
        let (env, now) = (&self.env, self.env.now);
        let is_idle = env.frames.is_empty()
            && env.arrivals.is_empty()
            && env.doorbells.is_empty()
            && env.card_events.is_empty();
        let is_due = |cable: &Cable| cable.link.next_due().is_some_and(|due| due <= now);
        is_idle
            && self.cables[over.cable].link.is_free(now, over.from)
            && !self.cables.iter().any(is_due)
    }

    /// Determines the route of a frame that is about to leave. Returns a route only if the frame goes over a cable to
    /// another card and there to a function that has the destination address. Shorter frames with the same header have
    /// the same route.
    fn route_of(&self, nic: usize, frame: &[u8]) -> Option<CableRoute> {
        let seat = self.nics[nic].seat;
        let is_ethernet = |nic: usize| self.nics[nic].profile.port_type == PortType::Ethernet;
        if self.network.is_some() || !is_ethernet(nic) || !self.env.is_up(seat) {
            return None;
        }
        if self.passes(seat, Place::Vport(seat.vport), frame)? != Place::Wire {
            return None;
        }
        let end = End::Card(seat.card);
        let cable = self.cables.iter().position(|one| one.ends.contains(&end))?;
        let (from, End::Card(card)) = side_of(&self.cables[cable], end) else {
            return None;
        };
        let physical = self.physical(card)?;
        if !is_ethernet(self.env.vport(physical).function) {
            return None;
        }
        let Place::Vport(vport) = self.passes(physical, Place::Wire, frame)? else {
            return None;
        };
        let vport = self.env.vport(Seat { card, vport });
        vport.port.owns(frame).then_some(CableRoute {
            cable,
            from,
            function: vport.function,
        })
    }
}
