//! Binds of RMRs, and a peer's access through them.

use udapl::endpoint::EpState as S;
use udapl::error::ReturnType;
use udapl::memory::{LmrTriplet, RmrCookie, RmrTriplet};
use udapl::{CompletionFlags, DtoStatus, MemPrivFlags};

use super::model::{Bound, Expected};
use super::op::{Part, REGION, Remote};
use super::posts::{Request, SUPPRESS, UNSIGNALLED, allowed};
use super::world::{World, compare, named};

const LOCAL: [u32; 2] = [0x01, 0x10];
const REMOTE: [u32; 2] = [0x02, 0x20];

impl World {
    /// Returns the RMR triplet of an RDMA operation, the PZ of the region or RMR, and whether the operation may access
    /// `bytes` bytes there with `right`. Returns `None` if no program can know the context.
    pub fn remote(
        &self,
        side: usize,
        remote: Remote,
        right: u32,
        bytes: u64,
    ) -> Option<(RmrTriplet, usize, bool)> {
        let there = &self.sides[1 - side];
        let Part {
            lmr,
            at,
            bytes: length,
        } = remote.part;
        let Some(window) = remote.rmr else {
            let lmr = &there.lmrs[lmr];
            let region = lmr.any()?;
            let triplet = RmrTriplet {
                rmr_context: region.created.rmr_context,
                target_address: region.created.registered_address + at,
                segment_length: length,
            };
            let reachable =
                lmr.live().is_some() && region.rights & right != 0 && at + bytes <= REGION;
            return Some((triplet, region.pz, reachable));
        };
        let place = &there.rmrs[window];
        let window = place.any()?;
        let bound = window
            .bound
            .filter(|_| !remote.stale && place.live().is_some());
        // The offset counts from the start of the bound part, or from the start of the region if the RMR is not bound.
        let start = match bound {
            Some(bound) => there.lmrs[bound.lmr].live()?.created.registered_address + bound.at,
            None => there.lmrs[lmr].any()?.created.registered_address,
        };
        let triplet = RmrTriplet {
            rmr_context: window.contexts[usize::from(remote.stale)]?,
            target_address: start + at,
            segment_length: length,
        };
        let reachable =
            bound.is_some_and(|bound| bound.rights & right != 0 && at + bytes <= bound.bytes);
        Some((triplet, window.pz, reachable))
    }

    pub fn bind(
        &mut self,
        side: usize,
        rmr: usize,
        ep: usize,
        part: Part,
        rights: u32,
        request: Request,
    ) -> Result<Option<bool>, String> {
        let model = &self.sides[side];
        let (Some(window), Some(object)) = (model.rmrs[rmr].any(), model.eps[ep].any()) else {
            return Ok(None);
        };
        let Some(lmr) = model.lmrs[part.lmr].any() else {
            return Ok(None);
        };
        let evd = object.evds[1].and_then(|at| model.evds[at].live());
        let takes_binds = evd.is_some_and(|evd| evd.flags & 0x080 != 0);
        let lacks = |which: usize| rights & REMOTE[which] != 0 && lmr.rights & LOCAL[which] == 0;
        let handles = named(&model.rmrs[rmr]).and(named(&model.eps[ep]));
        let want = if handles.is_err() {
            handles
        } else if !takes_binds {
            Err(ReturnType::InvalidHandle)
        } else if !matches!(object.state, S::Connected | S::Disconnected) || object.pz.is_none() {
            Err(ReturnType::InvalidState)
        } else if rights & !0x33 != 0 || request.flags & !allowed(object.modes[1]) != 0 {
            Err(ReturnType::InvalidParameter)
        } else if object.pz != Some(window.pz) {
            Err(ReturnType::ProtectionViolation)
        } else if part.bytes == 0 {
            Ok(())
        } else if model.lmrs[part.lmr].live().is_none() || part.at + part.bytes > REGION {
            Err(ReturnType::InvalidParameter)
        } else if lmr.pz != window.pz {
            Err(ReturnType::ProtectionViolation)
        } else if lacks(0) || lacks(1) {
            Err(ReturnType::PrivilegesViolation)
        } else {
            Ok(())
        };
        let triplet = LmrTriplet {
            lmr_context: lmr.created.lmr_context,
            virtual_address: lmr.created.registered_address + part.at,
            segment_length: part.bytes,
        };
        let (window, target, evd) = (window.handle, object.handle, object.evds[1]);
        let flushed = object.state == S::Disconnected;
        let got = self.ias[side].rmr_bind(
            window,
            &triplet,
            MemPrivFlags::from_bits_retain(rights),
            target,
            RmrCookie(request.cookie),
            CompletionFlags::from_bits_retain(request.flags),
        );
        let Some(context) = compare(got, want)? else {
            return Ok(Some(false));
        };
        let model = &mut self.sides[side];
        if let Some(window) = model.rmrs[rmr].live_mut() {
            if window.contexts.contains(&Some(context)) {
                return Err(format!("a context again: {context:#x}"));
            }
            window.contexts = [Some(context), window.contexts[0]];
            window.bound = (part.bytes != 0 && !flushed).then_some(Bound {
                lmr: part.lmr,
                at: part.at,
                bytes: part.bytes,
                rights,
            });
        }
        if flushed || request.flags & SUPPRESS == 0 {
            let status = if flushed {
                DtoStatus::ErrFlushed
            } else {
                DtoStatus::Success
            };
            let done = Expected::Bind {
                rmr: window,
                cookie: request.cookie,
                status,
            };
            let notify = flushed || request.flags & UNSIGNALLED == 0;
            model.expect_one(evd, done, None, notify);
        }
        Ok(Some(false))
    }
}
