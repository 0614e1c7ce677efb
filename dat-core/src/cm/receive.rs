//! Handling of received datagrams.
//!
//! Each message is first matched to a connection, by the rules of its kind, and then passed to the state table. A REQ
//! that matches no connection creates one if it is admitted. No contents of any other unmatched datagram are stored.

use super::admission::room;
use super::conn::{Conn, Role};
use super::event::{CmEvent, PeerReply, PeerRequest};
use super::name::{ConnId, ListenId, PeerName};
use super::private_data;
use super::state::{Input, State};
use super::timers::Kind;
use super::wire::{
    DrepRepr, DreqRepr, Mad, Message, MraRepr, RejRepr, RejectReason, Rejected, RepRepr, ReqRepr,
    RtuRepr,
};
use super::{Cm, scramble};
use crate::provider::{MadAddress, Nanos, Path};

impl Cm {
    /// Handles a received datagram. `random` holds 64 random bits, which are used if the datagram starts a connection.
    pub fn handle_mad(&mut self, now: Nanos, from: &MadAddress, mad: &Mad, random: u64) {
        self.counters.received += 1;
        let Ok((transaction_id, message)) = Message::parse(mad) else {
            self.counters.malformed += 1;
            return;
        };
        match message {
            Message::Req(req) => self.handle_req(now, from, &req, transaction_id, random),
            Message::Mra(mra) => self.handle_mra(now, from, mra),
            Message::Rej(rej) => self.handle_rej(now, from, &rej),
            Message::Rep(rep) => self.handle_rep(now, from, &rep, transaction_id),
            Message::Rtu(rtu) => self.handle_rtu(now, from, rtu),
            Message::Dreq(dreq) => self.handle_dreq(now, from, dreq, transaction_id),
            Message::Drep(drep) => self.handle_drep(now, from, drep),
        }
    }

    fn handle_req(
        &mut self,
        now: Nanos,
        from: &MadAddress,
        req: &ReqRepr,
        transaction_id: u64,
        random: u64,
    ) {
        if let Some(&id) = self.by_remote.get(&req_name(from, req, req.local_comm_id)) {
            let known = |conn: &&Conn| conn.role == Role::Passive;
            if self.conns.get(id).filter(known).is_none() {
                self.counters.foreign += 1;
                return;
            }
            self.counters.duplicates += 1;
            self.advance(now, id, Input::Req, None);
            return;
        }
        let refusal = match self.admit(now, from, req) {
            Ok(admitted) => {
                self.start_passive(now, from, req, transaction_id, random, admitted);
                return;
            }
            Err(reason) => reason,
        };
        self.counters.refused += 1;
        self.counters.refused_by_us.count(refusal);
        // No state is kept for a request refused here. If it is repeated, it is checked anew.
        let rej = RejRepr::new(0, req.local_comm_id, Rejected::Req, refusal);
        self.answer(from, &Message::Rej(Box::new(rej)), transaction_id);
    }

    /// Checks everything that must hold before the consumer gets a request: the listener, the contents, and the limits.
    fn admit(
        &mut self,
        now: Nanos,
        from: &MadAddress,
        req: &ReqRepr,
    ) -> Result<Admitted, RejectReason> {
        if req.transport != 0 {
            return Err(RejectReason::InvalidTransportType);
        }
        if !(1..=self.config.max_mtu).contains(&req.mtu) {
            return Err(RejectReason::InvalidMtu);
        }
        // The consumer decides by the address in the request, and sends data to it. So the request must come from that
        // address.
        if req.primary.local_gid != from.path.gid {
            return Err(RejectReason::InvalidGid);
        }
        let listen = *self
            .by_service
            .get(&req.service_id)
            .ok_or(RejectReason::InvalidServiceId)?;
        let (private_data, header) =
            private_data::decode_request(req.service_id, &req.private_data)
                .map_err(|_unknown_version| RejectReason::Unsupported)?;
        if header.is_some_and(|header| header.source != from.path.gid) {
            return Err(RejectReason::InvalidGid);
        }
        self.end_stale(now, from, req)?;
        if self.conns.len() >= room(&self.config)
            && let Some(oldest) = self.refusals.oldest()
        {
            self.step(now, oldest, Input::HoldOver, None);
        }
        let makes_room =
            self.pending
                .admit(&self.config, self.conns.len(), listen, from.path.gid)?;
        if let Some(oldest) = makes_room {
            self.step(now, oldest, Input::Exhausted, None);
        }
        Ok(Admitted {
            listen,
            private_data,
            remote_port: header.map_or(0, |header| header.source_port),
        })
    }

    /// Ends an old connection with the queue pair that now requests a new one: its peer would not request a connection
    /// for a connected queue pair. If the old connection was established, it is stale, and the request is refused (IBTA
    /// volume 1, "Stale Connection"): the peer has to wait until none of its packets can be in the network. If it was
    /// not yet established, the peer has given it up, and the request is not refused. If we are disconnecting the old
    /// connection ourselves, it sends no more packets, and the request is not refused either.
    fn end_stale(
        &mut self,
        now: Nanos,
        from: &MadAddress,
        req: &ReqRepr,
    ) -> Result<(), RejectReason> {
        let name = req_name(from, req, req.local_qpn);
        let Some(&old) = self.by_remote_qp.get(&name) else {
            return Ok(());
        };
        let stale = self.state(old) == Some(State::Established);
        self.supersede(now, old);
        if stale {
            Err(RejectReason::StaleConnection)
        } else {
            Ok(())
        }
    }

    fn supersede(&mut self, now: Nanos, id: ConnId) {
        let reason = RejectReason::StaleConnection.code();
        let event = CmEvent::Rejected {
            conn: id,
            by_consumer: false,
            reason,
            private_data: Vec::new(),
        };
        self.step(now, id, Input::Superseded, Some(event));
    }

    fn start_passive(
        &mut self,
        now: Nanos,
        from: &MadAddress,
        req: &ReqRepr,
        transaction_id: u64,
        random: u64,
        admitted: Admitted,
    ) {
        let local_id = self.fresh_comm_id(random);
        let mut conn = Conn::passive(
            &self.config,
            *from,
            req,
            transaction_id,
            local_id,
            scramble(random),
            admitted.listen,
        );
        let wait = conn.wait_after(State::Closed, Input::Req).flatten();
        let id = self.conns.insert(conn);
        if let Some(conn) = self.conns.get_mut(id) {
            let at = wait.map(|wait| now.saturating_add(wait));
            self.timers.set(id, &mut conn.deadlines, Kind::State, at);
            self.pending.follow(id, conn);
        }
        self.by_local.insert(local_id, id);
        self.by_remote
            .insert(req_name(from, req, req.local_comm_id), id);
        self.by_remote_qp
            .insert(req_name(from, req, req.local_qpn), id);
        self.counters.requests += 1;
        let request = PeerRequest {
            listen: admitted.listen,
            service_id: req.service_id,
            remote_gid: req.primary.local_gid,
            // Data goes to the GID that the request names, by the path on which the request came. Like Linux, we take
            // the hop limit of the datagram, not the one in the request.
            path: Path {
                gid: req.primary.local_gid,
                traffic_class: req.primary.traffic_class,
                flow_label: req.primary.flow_label,
                // Service level 0 may mean that the peer sends without a VLAN tag, so the priority of the datagram is
                // used.
                priority: match req.primary.sl & 7 {
                    0 => from.path.priority,
                    priority => priority,
                },
                ..from.path
            },
            remote_qpn: req.local_qpn,
            remote_psn: req.starting_psn,
            reads_in: req.initiator_depth,
            reads_out: req.responder_resources,
            mtu: req.mtu,
            ack_timeout: self.config.bounded(req.primary.ack_timeout),
            retry_count: req.retry_count,
            rnr_retry: req.rnr_retry,
            private_data: admitted.private_data,
            remote_port: admitted.remote_port,
            srq: req.srq,
        };
        self.events.push_back(CmEvent::Request {
            conn: id,
            request: Box::new(request),
        });
    }

    fn handle_mra(&mut self, now: Nanos, from: &MadAddress, mra: MraRepr) {
        let role = match mra.acknowledged {
            Rejected::Req => Role::Active,
            Rejected::Rep => Role::Passive,
            // This MRA acknowledges a LAP, but we send no LAPs.
            Rejected::Other | Rejected::Reserved => return self.ignore_foreign(),
        };
        let Some(id) = self.find(from, mra.remote_comm_id, mra.local_comm_id, role) else {
            return self.ignore_foreign();
        };
        if let Some(conn) = self
            .conns
            .get_mut(id)
            .filter(|conn| conn.state.next(Input::Mra).is_some())
        {
            if conn.has_sent_mra() {
                self.counters.unexpected += 1;
                return;
            }
            conn.extend_wait(mra.service_timeout);
        }
        self.advance(now, id, Input::Mra, None);
    }

    fn handle_rej(&mut self, now: Nanos, from: &MadAddress, rej: &RejRepr) {
        let Some(id) = self.find_rejected(from, rej) else {
            return self.ignore_foreign();
        };
        let by_consumer = rej.reason == RejectReason::Consumer;
        let private_data = match self.conns.get(id) {
            Some(conn) if by_consumer => {
                private_data::decode_reject(conn.service_id, &rej.private_data)
            }
            _ => Vec::new(),
        };
        let event = CmEvent::Rejected {
            conn: id,
            by_consumer,
            reason: rej.reason.code(),
            private_data,
        };
        let again = rej.reason == RejectReason::StaleConnection
            && rej.rejected == Rejected::Req
            && self.conns.get(id).is_some_and(Conn::may_repeat_stale);
        let input = if again { Input::RejStale } else { Input::Rej };
        self.advance(now, id, input, Some(event));
    }

    /// Finds the connection that a REJ refuses. A peer that refuses a REQ may have no communication ID of its own. A
    /// peer that gave up waiting may never have learned our communication ID.
    fn find_rejected(&self, from: &MadAddress, rej: &RejRepr) -> Option<ConnId> {
        if rej.remote_comm_id == 0 {
            if rej.reason != RejectReason::Timeout {
                return None;
            }
            let name = PeerName {
                gid: from.path.gid,
                ca_guid: rej.ca_guid()?,
                number: rej.local_comm_id,
            };
            return self.by_remote.get(&name).copied();
        }
        let id = *self.by_local.get(&rej.remote_comm_id)?;
        let conn = self
            .conns
            .get(id)
            .filter(|conn| conn.peer.path.gid == from.path.gid)?;
        let named = match conn.remote_id {
            None => rej.rejected != Rejected::Rep,
            Some(remote_id) => remote_id == rej.local_comm_id,
        };
        named.then_some(id)
    }

    fn handle_rep(&mut self, now: Nanos, from: &MadAddress, rep: &RepRepr, transaction_id: u64) {
        let Some(id) = self.find(from, rep.remote_comm_id, rep.local_comm_id, Role::Active) else {
            self.counters.foreign += 1;
            self.counters
                .refused_by_us
                .count(RejectReason::InvalidCommId);
            // We do not know the request that this REP accepts. The REJ keeps the peer from waiting for an RTU.
            let rej = RejRepr::new(
                rep.remote_comm_id,
                rep.local_comm_id,
                Rejected::Rep,
                RejectReason::InvalidCommId,
            );
            self.answer(from, &Message::Rej(Box::new(rej)), transaction_id);
            return;
        };
        let Some(conn) = self.conns.get_mut(id) else {
            return;
        };
        if !matches!(conn.state, State::ReqSent | State::ReqAcknowledged) {
            // Our REJ should contain the peer's communication ID, and this REP may be the first message that contains
            // it.
            conn.remote_id.get_or_insert(rep.local_comm_id);
            self.advance(now, id, Input::Rep, None);
            return;
        }
        let name = PeerName {
            gid: conn.peer.path.gid,
            ca_guid: rep.local_ca_guid,
            number: rep.local_comm_id,
        };
        let queue_pair = PeerName {
            gid: name.gid,
            ca_guid: name.ca_guid,
            number: rep.local_qpn,
        };
        if self.by_remote.contains_key(&name) {
            return self.ignore_foreign();
        }
        conn.remote_id = Some(rep.local_comm_id);
        conn.remote_ca_guid = rep.local_ca_guid;
        conn.remote_qpn = Some(rep.local_qpn);
        let private_data = private_data::decode_reply(conn.service_id, &rep.private_data);
        self.by_remote.insert(name, id);
        if let Some(&old) = self.by_remote_qp.get(&queue_pair) {
            // The event that ends the old connection comes before the reply, so the consumer ends the old connection
            // before the new one is ready.
            self.supersede(now, old);
        }
        self.by_remote_qp.insert(queue_pair, id);
        let reply = PeerReply {
            remote_qpn: rep.local_qpn,
            remote_psn: rep.starting_psn,
            reads_in: rep.initiator_depth,
            reads_out: rep.responder_resources,
            rnr_retry: rep.rnr_retry,
            // A REP contains no ACK timeout, but the ACK delay from which it is computed (Linux `cm.c`
            // `cm_rep_handler`).
            ack_timeout: self.config.ack_timeout(rep.target_ack_delay),
            private_data,
        };
        let event = CmEvent::Reply { conn: id, reply };
        self.advance(now, id, Input::Rep, Some(event));
    }

    fn handle_rtu(&mut self, now: Nanos, from: &MadAddress, rtu: RtuRepr) {
        match self.find(from, rtu.remote_comm_id, rtu.local_comm_id, Role::Passive) {
            Some(id) => self.advance(now, id, Input::Rtu, None),
            None => self.ignore_foreign(),
        }
    }

    fn handle_dreq(&mut self, now: Nanos, from: &MadAddress, dreq: DreqRepr, transaction_id: u64) {
        let Some(id) = self.find_either(from, dreq.remote_comm_id, dreq.local_comm_id) else {
            self.counters.foreign += 1;
            // We answer although we know no such connection, so that the peer does not repeat its DREQ.
            let drep = DrepRepr {
                local_comm_id: dreq.remote_comm_id,
                remote_comm_id: dreq.local_comm_id,
            };
            self.answer(from, &Message::Drep(drep), transaction_id);
            return;
        };
        let Some(conn) = self
            .conns
            .get_mut(id)
            .filter(|conn| conn.local_qpn == Some(dreq.remote_qpn))
        else {
            return self.ignore_foreign();
        };
        if conn.state.next(Input::Dreq).is_some() {
            conn.transaction_id = transaction_id;
        }
        self.advance(now, id, Input::Dreq, None);
    }

    fn handle_drep(&mut self, now: Nanos, from: &MadAddress, drep: DrepRepr) {
        match self.find_either(from, drep.remote_comm_id, drep.local_comm_id) {
            Some(id) => self.advance(now, id, Input::Drep, None),
            None => self.ignore_foreign(),
        }
    }

    /// Finds the connection with our ID `ours` and the peer's ID `theirs`. If the connection does not have the peer's
    /// ID yet, any `theirs` matches.
    fn find(&self, from: &MadAddress, ours: u32, theirs: u32, role: Role) -> Option<ConnId> {
        let id = *self.by_local.get(&ours)?;
        let conn = self.conns.get(id)?;
        let matches = conn.role == role
            && conn.peer.path.gid == from.path.gid
            && conn.remote_id.is_none_or(|remote_id| remote_id == theirs);
        matches.then_some(id)
    }

    /// Finds the connection, of either role, with our ID `ours` and the peer's ID `theirs`. The peer's ID must be
    /// known.
    fn find_either(&self, from: &MadAddress, ours: u32, theirs: u32) -> Option<ConnId> {
        let id = *self.by_local.get(&ours)?;
        let conn = self.conns.get(id)?;
        (conn.peer.path.gid == from.path.gid && conn.remote_id == Some(theirs)).then_some(id)
    }

    /// Applies an input caused by a message. Counts the message as unexpected if the state does not allow it.
    fn advance(&mut self, now: Nanos, id: ConnId, input: Input, event: Option<CmEvent>) {
        if !self.step(now, id, input, event) {
            self.counters.unexpected += 1;
        }
    }

    fn ignore_foreign(&mut self) {
        self.counters.foreign += 1;
    }

    /// Answers a message that belongs to no connection.
    fn answer(&mut self, to: &MadAddress, message: &Message, transaction_id: u64) {
        let mad = message.to_mad(transaction_id);
        self.counters.sent += u64::from(self.outbox.push(*to, mad));
    }
}

/// Returns the identifier of an object (a communication ID or queue pair) of the request's sender.
fn req_name<N>(from: &MadAddress, req: &ReqRepr, number: N) -> PeerName<N> {
    PeerName {
        gid: from.path.gid,
        ca_guid: req.local_ca_guid,
        number,
    }
}

/// A request that passed all checks, with the contents that were read during the checks.
struct Admitted {
    listen: ListenId,
    private_data: Vec<u8>,
    remote_port: u16,
}
