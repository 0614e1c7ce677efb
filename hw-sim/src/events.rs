//! Events: a function's notifications to its driver.
//!
//! An asynchronous event is posted to the EQ whose mask contains its type, a completion event to the EQ of its CQ.
//! While a command executes, events are queued; they are posted after the command's answer and its own completion
//! event. An overrun of an EQ for asynchronous events, or an EQ that cannot be written, is fatal and reported in the
//! health buffer.

use crate::card::seat::Seat;
use crate::card::{AdminState, CardEvent};
use crate::env::Env;
use crate::eq::{EQE_BYTES, Posted, Target};
use crate::nic::Nic;
use crate::pages::{FirmwarePages, PageProfile};
use mlx_prm::{Eqe, EventType, HealthSyndrome, PortChange};
use zerocopy::IntoBytes;

impl Env {
    /// Sets whether a card's port receives light from its cable.
    pub fn set_light(&mut self, seat: Seat, light: bool) {
        self.card_mut(seat).uplink.light = light;
        self.update_ports(seat);
    }
}

impl Nic {
    /// Handles an event of the card.
    pub fn handle_card_event(&mut self, env: &mut Env, card_event: CardEvent) {
        match card_event {
            CardEvent::Port { up } => self.port_event(env, up),
            CardEvent::VportChange { vport } => {
                let mut eqe = Eqe::new();
                eqe.event_data_mut()[2..4].copy_from_slice(&vport.to_be_bytes());
                self.event(env, EventType::NIC_VPORT_CHANGE, &mut eqe);
            }
            CardEvent::Enabled(enabled) => self.enabled_by_manager(env, enabled),
            CardEvent::VfReset { vport } => self.vf_reset(env, vport),
            CardEvent::VfNeedsPages { vport } => {
                let pages = env.card(self.seat).rules.virtual_function_pages;
                self.request_pages_of(env, vport, i32::from(pages));
            }
            CardEvent::PagesAnswered(given) => self.pages_answered(env, given),
            CardEvent::Vectors(vectors) => self.set_vectors(vectors),
        }
    }

    /// Sets the physical port's administrative state on behalf of the driver.
    pub fn set_admin(&mut self, env: &mut Env, admin: AdminState) {
        let before = env.is_up(self.seat);
        env.card_mut(self.seat).uplink.admin = admin;
        env.update_ports(self.seat);
        if before && env.is_up(self.seat) {
            // The port was up already. A driver that sets it up waits for the event nevertheless (register PAOS,
            // `ase`).
            self.port_event(env, true);
        }
    }

    fn port_event(&mut self, env: &mut Env, up: bool) {
        let change = match up {
            true => self.port_up(env),
            false => PortChange::DOWN,
        };
        self.port_changed(env, change);
    }

    /// Sends an event that requests pages (positive) or offers pages back (negative).
    pub fn request_pages(&mut self, env: &mut Env, pages: i32) {
        if self.carrier_of(EventType::PAGE_REQUEST).is_none() {
            return;
        }
        self.pages.request(pages);
        let mut eqe = Eqe::new();
        eqe.event_data_mut()[4..8].copy_from_slice(&pages.to_be_bytes());
        self.event(env, EventType::PAGE_REQUEST, &mut eqe);
    }

    /// Offers to the manager the pages of a virtual function that was reset.
    fn vf_reset(&mut self, env: &mut Env, vport: u16) {
        let held = self
            .pages_of
            .get(&vport)
            .map_or(0, FirmwarePages::pages_not_offered);
        if held > 0 {
            let seat = Seat { vport, ..self.seat };
            env.vport_mut(seat).needs_pages = true;
            let back = i32::try_from(held).unwrap_or(i32::MAX);
            self.request_pages_of(env, vport, -back);
        }
    }

    /// Sends an event that requests pages for a virtual function (positive) or offers the function's pages back
    /// (negative) (Linux `pagealloc.c` `req_pages_handler`).
    pub fn request_pages_of(&mut self, env: &mut Env, function: u16, pages: i32) {
        let verify = self.profile.pages.verify;
        let account = self.pages_of.entry(function).or_insert_with(|| {
            FirmwarePages::new(PageProfile {
                verify,
                ..PageProfile::NONE
            })
        });
        account.request(pages);
        let mut eqe = Eqe::new();
        eqe.event_data_mut()[2..4].copy_from_slice(&function.to_be_bytes());
        eqe.event_data_mut()[4..8].copy_from_slice(&pages.to_be_bytes());
        self.event(env, EventType::PAGE_REQUEST, &mut eqe);
    }

    /// Returns the EQ that carries an event type.
    pub fn carrier_of(&self, event: EventType) -> Option<u32> {
        let bit = 1_u64.checked_shl(u32::from(event.0))?;
        self.objects
            .eqs
            .iter()
            .find(|(_, eq)| eq.events & bit != 0)
            .map(|(number, _)| number)
    }

    /// Posts an asynchronous event to the EQ that carries its type, if there is one.
    pub fn event(&mut self, env: &mut Env, event: EventType, eqe: &mut Eqe) {
        eqe.set_event_type(event.0);
        let bytes = eqe_bytes(eqe);
        match &mut self.after_command {
            Some(waiting) => waiting.push((Target::Carrier(event), bytes)),
            None => self.post(env, Target::Carrier(event), &bytes),
        }
    }

    /// Posts an EQE to a given EQ at once, even while a command executes. Used for the command's own completion event.
    pub fn post_now(&mut self, env: &mut Env, eqn: u32, eqe: &Eqe) {
        self.post(env, Target::Number(eqn), &eqe_bytes(eqe));
    }

    /// Posts an EQE to a given EQ. While a command executes, the EQE is queued.
    pub fn eqe(&mut self, env: &mut Env, eqn: u32, eqe: &Eqe) {
        let bytes = eqe_bytes(eqe);
        match &mut self.after_command {
            Some(waiting) => waiting.push((Target::Number(eqn), bytes)),
            None => self.post(env, Target::Number(eqn), &bytes),
        }
    }

    /// Posts the completion event of a CQ.
    pub fn completion_event(&mut self, env: &mut Env, eqn: u32, cqn: u32) {
        let mut eqe = Eqe::new();
        eqe.event_data_mut()[24..28].copy_from_slice(&cqn.to_be_bytes());
        self.eqe(env, eqn, &eqe);
    }

    /// Posts an event that names a queue pair or a shared receive queue. The queue type in the event data is 0.
    pub fn queue_event(&mut self, env: &mut Env, event: EventType, number: u32) {
        let mut eqe = Eqe::new();
        eqe.event_data_mut()[24..28].copy_from_slice(&number.to_be_bytes());
        self.event(env, event, &mut eqe);
    }

    /// Handles the failure of a CQ. Posts the error event. The attached queues move to ERR after the caller returns.
    pub fn cq_failed(&mut self, env: &mut Env, cqn: u32, syndrome: u8) {
        env.note(
            self.index,
            format_args!("cq {cqn:#x} failed, syndrome {syndrome}"),
        );
        let mut eqe = Eqe::new();
        let data = eqe.event_data_mut();
        data[0..4].copy_from_slice(&cqn.to_be_bytes());
        data[11] = syndrome;
        self.event(env, EventType::CQ_ERROR, &mut eqe);
        self.failed_cqs.push(cqn);
    }

    fn post(&mut self, env: &mut Env, target: Target, eqe: &[u8; EQE_BYTES]) {
        let eqn = match target {
            Target::Number(eqn) => Some(eqn),
            Target::Carrier(event) => self.carrier_of(event),
        };
        let Some((eqn, eq)) = eqn.and_then(|eqn| Some((eqn, self.objects.eqs.get_mut(eqn)?)))
        else {
            env.note(self.index, format_args!("event {:#04x} has no EQ", eqe[1]));
            return;
        };
        let posted = eq.post(&mut self.iommu, eqe);
        let (vector, is_async) = (eq.vector, eq.is_async());
        env.note(
            self.index,
            format_args!(
                "eqe eq={eqn:#x} type={:#04x} sub={:#04x} {posted:?}",
                eqe[1], eqe[3]
            ),
        );
        match posted {
            Posted::Written { interrupt: true } => self.raise(env, vector),
            Posted::Written { interrupt: false } => {}
            Posted::Overrun if is_async => self
                .init
                .set_health_syndrome(HealthSyndrome::ASYNC_EQ_OVERRUN.0),
            Posted::Overrun => {
                self.driver_bug(env, format!("EQ {eqn:#x} overrun: completion event lost"))
            }
            Posted::Failed => self.init.set_health_syndrome(HealthSyndrome::EQ_ERR.0),
        }
    }

    /// Starts queueing events until the command is answered.
    pub fn begin_command(&mut self) {
        self.after_command.get_or_insert_default();
    }

    /// Posts the events that were queued during the command, after its answer.
    pub fn end_command(&mut self, env: &mut Env) {
        for (target, eqe) in self.after_command.take().unwrap_or_default() {
            self.post(env, target, &eqe);
        }
    }
}

fn eqe_bytes(eqe: &Eqe) -> [u8; EQE_BYTES] {
    let mut bytes = [0; EQE_BYTES];
    bytes.copy_from_slice(eqe.as_bytes());
    bytes
}
