//! Calls on the adapter as a whole, on any kind of object, and on the registry.

use std::sync::Arc;

use udapl::adapter::AnyHandle;
use udapl::error::{ReturnType, Subtype, strerror};
use udapl::fabric::Fabric;
use udapl::registry::ProviderInfo;
use udapl::{CloseFlags, ConnectionEventKind as Kind};

use super::model::Place;
use super::op::Op;
use super::world::{Verdict, World, compare, equal, named};

const NAMES: [&str; 3] = ["one", "another", ""];

impl World {
    pub fn call_adapter(&mut self, side: usize, op: &Op) -> Result<Option<()>, String> {
        match *op {
            Op::GetHandleType { kind, at } => {
                let Some((handle, want)) = self.object(side, kind, at) else {
                    return Ok(None);
                };
                if let Some(found) = compare(self.ias[side].get_handle_type(handle), want)? {
                    equal("kind", found as u32, kind)?;
                }
            }
            Op::Strerror(value) => {
                let (kind, subtype) = (
                    ReturnType::from_value(value & 0x3fff_0000),
                    u16::try_from(value & 0xffff)
                        .ok()
                        .and_then(Subtype::from_value),
                );
                let known =
                    value == 0 || (value & 0x4000_0000 == 0 && kind.is_some() && subtype.is_some());
                equal("a text", strerror(value).is_some(), known)?;
            }
            Op::IaQuery => {
                let (ia, name) = (&self.ias[side], format!("sim:{side}"));
                let param = ia.query();
                equal("adapter_name", &param.ia.adapter_name, &name)?;
                equal("async_evd", param.async_evd, ia.async_evd())?;
            }
            Op::IaClose { graceful } => self.ia_close(side, graceful)?,
            Op::RegistryAdd { name, init } => {
                let info = ProviderInfo::of_this_crate(NAMES[name]);
                let want = if NAMES[name].is_empty() {
                    Err(ReturnType::InvalidParameter)
                } else if self.registered[name] {
                    Err(ReturnType::ProviderAlreadyRegistered)
                } else {
                    Ok(())
                };
                let got = if init {
                    self.registry.provider_init(info, "sim:0")
                } else {
                    let opener = |options: &udapl::OpenOptions| udapl::ia_open("sim:0", options);
                    self.registry.add_provider(info, Arc::new(opener))
                };
                compare(got, want)?;
                self.registered[name] |= want.is_ok();
            }
            Op::RegistryRemove { name, fini } => {
                let info = ProviderInfo::of_this_crate(NAMES[name]);
                let want = if self.registered[name] {
                    Ok(())
                } else {
                    Err(ReturnType::InvalidParameter)
                };
                let got = if fini {
                    self.registry.provider_fini(&info)
                } else {
                    self.registry.remove_provider(&info)
                };
                compare(got, want)?;
                self.registered[name] = false;
            }
            Op::RegistryList(max) => {
                // This registry has no static entries, and it does not list providers that a program registers.
                let listed = self.registry.list_providers(max);
                equal("listed", listed.map(|list| list.len()), Ok(0))?;
            }
            _ => return Ok(None),
        }
        Ok(Some(()))
    }

    /// Returns the handle in slot `at` for an object kind (`DAT_HANDLE_TYPE`), and the expected result of a call on the
    /// handle. Returns `None` if the slot has never had an object.
    fn object(&self, side: usize, kind: u32, at: usize) -> Option<(AnyHandle, Verdict)> {
        let model = &self.sides[side];
        Some(match kind {
            0 => {
                let cr = model.crs.get(at)?;
                let gone = Err(ReturnType::InvalidHandle);
                let there = if cr.decided { gone } else { Ok(()) };
                (cr.handle?.into(), there)
            }
            1 => (model.eps[at].any()?.handle.into(), named(&model.eps[at])),
            2 => (model.evds[at].any()?.handle.into(), named(&model.evds[at])),
            3 => (AnyHandle::Ia, Ok(())),
            4 => (
                model.lmrs[at].any()?.created.lmr.into(),
                named(&model.lmrs[at]),
            ),
            5 => (model.psps[at].any()?.handle.into(), named(&model.psps[at])),
            6 => (model.pzs[at].any()?.handle.into(), named(&model.pzs[at])),
            7 => (model.rmrs[at].any()?.handle.into(), named(&model.rmrs[at])),
            8 => (model.rsps[at].any()?.handle.into(), named(&model.rsps[at])),
            9 => (model.cnos[at].any()?.handle.into(), named(&model.cnos[at])),
            _ => (model.srqs[at].any()?.handle.into(), named(&model.srqs[at])),
        })
    }

    /// Returns whether the consumer of a side has no objects. An endpoint that the provider lent with an undecided
    /// request does not belong to the consumer, and an RSP whose request has arrived does not prevent a close.
    fn unused(&self, side: usize) -> bool {
        let model = &self.sides[side];
        let lent = |at: usize| {
            let mut crs = model.crs.iter();
            crs.any(|cr| cr.lent && !cr.decided && cr.ep == Some(at))
        };
        fn none<T>(places: &[Place<T>]) -> bool {
            places.iter().all(|place| place.live().is_none())
        }
        let eps = model.eps.iter().enumerate();
        none(&model.pzs)
            && none(&model.lmrs)
            && none(&model.rmrs)
            && none(&model.evds)
            && none(&model.cnos)
            && none(&model.srqs)
            && none(&model.psps)
            && model
                .rsps
                .iter()
                .filter_map(Place::live)
                .all(|rsp| rsp.spent)
            && eps
                .filter(|(_, ep)| ep.live().is_some())
                .all(|(at, _)| lent(at))
    }

    /// Closes an adapter, and opens it again if the close succeeded.
    fn ia_close(&mut self, side: usize, graceful: bool) -> Result<(), String> {
        let flags = if graceful {
            CloseFlags::Graceful
        } else {
            CloseFlags::Abrupt
        };
        let want = if graceful && !self.unused(side) {
            Err(ReturnType::InvalidState)
        } else {
            Ok(())
        };
        let ia = self.ias[side].take().ok_or("no adapter")?;
        let provider = match ia.close(flags) {
            Ok(provider) => {
                compare(Ok(()), want)?;
                provider
            }
            Err(refused) => {
                self.ias[side].put(refused.ia);
                compare::<()>(Err(refused.error), want)?;
                return Ok(());
            }
        };
        provider
            .close()
            .map_err(|error| format!("close: {error}"))?;
        let report = self.fabric.report(side);
        equal("leaks", report.leaked.is_empty(), true)
            .map_err(|_| format!("side {side} leaks {:?}", report.leaked))?;
        self.all_ended(side);
        // Each opening uses another random seed, as on a real machine.
        self.lives += 1;
        let mut options = Fabric::options(side);
        options.hca.seed = Some(self.lives);
        let ia = self.fabric.open_with(side, &options);
        self.ias[side].put(ia.map_err(|error| format!("open: {error}"))?);
        Ok(())
    }

    /// Applies a close of an adapter to the model: ends the adapter's objects, and expects the events at the peer and
    /// the calls of the agents.
    fn all_ended(&mut self, side: usize) {
        // Requests end before connections: a peer's EVD with space for only one more event gets the rejection.
        for cr in 0..self.sides[side].crs.len() {
            if let Some(from) = self.sides[side].crs[cr].from.take() {
                self.sides[1 - side].end(from, &[Kind::NonPeerRejected]);
            }
        }
        for ep in 0..self.sides[side].eps.len() {
            let Some(object) = self.sides[side].eps[ep].live() else {
                continue;
            };
            let peer = object.peer;
            self.abandon(side, ep);
            if let Some(peer) = peer {
                self.sides[1 - side].end(peer, &[Kind::Disconnected]);
            }
        }
        let model = &mut self.sides[side];
        for cno in model.cnos.iter_mut().filter_map(Place::live_mut) {
            cno.dissolve();
        }
        model.end_all();
    }
}
