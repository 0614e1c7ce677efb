//! A foreign node requests more connections than a program decides about.
//!
//! Undecided requests cost the listener memory, so their number is limited for each address. Requests beyond the limit
//! are rejected without an event for the program. Requests from other addresses are served as before.

use dat_core::cm::wire::Message;
use dat_core::provider::Qpn;
use udapl::connection::CrHandle;
use udapl::{ConnQual, EvdFlags, Event, PspFlags};

use crate::address::Address;
use crate::calls;
use crate::off_path_attacker::{ATTACKER, a_request, datagram};
use crate::world::World;

/// Connection qualifier of these requests.
const UNDECIDED_QUAL: u64 = 0x1_0000_007b;
/// Number of requests beyond the limit.
const MORE: u32 = 64;
/// Number of requests that arrive before the listener handles them.
const AT_A_TIME: u32 = 64;

impl World {
    /// Delivers a connection request of the attacker. Each request has other numbers than all earlier requests.
    pub fn send_attacker_request(&mut self, side: usize, to: Address, qual: u64) {
        let number = u32::try_from(self.next_number()).unwrap_or(u32::MAX);
        let mut req = a_request(to, qual);
        (req.local_comm_id, req.local_qpn) = (number, Qpn::masked(number));
        let mad = Message::Req(Box::new(req)).to_mad(number.into());
        let card = self.cards[self.sides[side].card].physical();
        self.sim
            .deliver(&card, &datagram(ATTACKER, to, number, &mad));
    }

    /// Makes the library serve a side's connections. The program dequeues no events.
    pub fn serve_connections(&mut self, side: usize) {
        self.timed(side, calls::PROGRESS, |world| {
            if let Some(open) = &mut world.sides[side].open {
                open.ia.progress();
            }
        });
    }

    /// Sends more connection requests to a new service point than may be undecided per peer (`max_pending_per_peer`).
    /// The program at that service point rejects the requests only after the last one was sent.
    pub fn flood(&mut self, side: usize) {
        let most = dat_core::cm::Config::default().max_pending_per_peer;
        let requests = u32::try_from(most).expect("some thousands") + MORE;
        let one = &self.sides[side];
        if one.tampered || one.open.as_ref().is_none_or(|open| open.dead) {
            return;
        }
        let Some(to) = self.address(side) else { return };
        let point = self.call(side, "dat_psp_create", |open| {
            let evd = open.ia.evd_create(requests, EvdFlags::CR)?;
            Ok((
                evd,
                open.ia
                    .psp_create(ConnQual(UNDECIDED_QUAL), evd, PspFlags::CONSUMER)?,
            ))
        });
        let Some(Ok((evd, psp))) = point else { return };
        for asked in 1..=requests {
            self.send_attacker_request(side, to, UNDECIDED_QUAL);
            if asked.is_multiple_of(AT_A_TIME) {
                self.serve_connections(side);
            }
        }
        let asked = self.call(side, "dat_evd_dequeue", |open| {
            let next = || match open.ia.evd_dequeue(evd) {
                Ok(Some(Event::ConnectionRequest(request))) => Some(request.cr),
                Ok(_) | Err(_) => None,
            };
            let asked: Vec<CrHandle> = std::iter::from_fn(next).collect();
            Ok(asked)
        });
        let asked = asked.and_then(Result::ok).unwrap_or_default();
        assert!(
            asked.len() <= most,
            "side {side} is asked about {} requests of one address that nobody has decided",
            asked.len()
        );
        self.cover
            .count("attacker", "more requests than are decided");
        for cr in asked {
            self.call(side, "dat_cr_reject", |open| open.ia.cr_reject(cr));
        }
        self.call(side, "dat_psp_free", |open| open.ia.psp_free(psp));
        self.call(side, "dat_evd_free", |open| open.ia.evd_free(evd));
    }
}
