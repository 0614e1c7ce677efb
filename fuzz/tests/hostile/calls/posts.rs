//! Posts, and their effects at both ends.

use udapl::endpoint::EpState as S;
use udapl::error::ReturnType;
use udapl::{CompletionFlags, DtoCookie, DtoStatus};

use super::endpoints::BROKEN;
use super::model::{Buffer, DTOS, Expected, Place};
use super::op::{Op, Parts, Remote};
use super::world::{Verdict, World, compare, named};

const INVALID_STATE: Verdict = Err(ReturnType::InvalidState);
const INVALID_PARAMETER: Verdict = Err(ReturnType::InvalidParameter);
const LOCAL_READ: u32 = 0x01;
const REMOTE_READ: u32 = 0x02;
const LOCAL_WRITE: u32 = 0x10;
const REMOTE_WRITE: u32 = 0x20;
pub const SUPPRESS: u32 = 0x01;
const SOLICITED: u32 = 0x02;
pub const UNSIGNALLED: u32 = 0x04;

/// Returns the flags that a request on an endpoint with this completion mode may have.
pub const fn allowed(mode: u32) -> u32 {
    0x0b | mode & UNSIGNALLED
}

/// A request that was posted.
#[derive(Clone, Copy)]
pub struct Request {
    pub cookie: u64,
    pub bytes: u64,
    pub flags: u32,
}

impl World {
    /// Makes a post. Returns true if completions may take longer: those of an RDMA operation, of a sender that gives up
    /// after its retries, or of a receive that the device finds only at its next read of the ring. Returns `None` if
    /// the call is not a post, or the slots do not allow it.
    pub fn call_post(&mut self, side: usize, op: &Op) -> Result<Option<bool>, String> {
        match *op {
            Op::PostSend {
                ep,
                parts,
                cookie,
                flags,
            } => self.post_request(side, ep, parts, None, cookie, flags),
            Op::PostWrite {
                ep,
                parts,
                remote,
                cookie,
                flags,
            } => {
                let target = Some((remote, REMOTE_WRITE));
                self.post_request(side, ep, parts, target, cookie, flags)
            }
            Op::PostRead {
                ep,
                parts,
                remote,
                cookie,
                flags,
            } => {
                let target = Some((remote, REMOTE_READ));
                self.post_request(side, ep, parts, target, cookie, flags)
            }
            Op::PostRecv {
                ep,
                parts,
                cookie,
                flags,
            } => self.post_recv(side, ep, parts, cookie, flags),
            Op::RmrBind {
                rmr,
                ep,
                part,
                rights,
                cookie,
                flags,
            } => {
                let bytes = part.bytes;
                let request = Request {
                    cookie,
                    bytes,
                    flags,
                };
                self.bind(side, rmr, ep, part, rights, request)
            }
            Op::SrqPostRecv { srq, parts, cookie } => {
                let Some(object) = self.sides[side].srqs[srq].any() else {
                    return Ok(None);
                };
                let Some(local) = self.local(side, parts, Some(object.pz), LOCAL_WRITE) else {
                    return Ok(None);
                };
                let full = object.buffers.len() + object.undequeued as usize;
                let room = if full < object.length as usize {
                    Ok(())
                } else {
                    Err(ReturnType::InsufficientResources)
                };
                let want = named(&self.sides[side].srqs[srq])
                    .and(local.verdict)
                    .and(room);
                let handle = object.handle;
                compare(
                    self.ias[side].srq_post_recv(handle, &local.iov, DtoCookie(cookie)),
                    want,
                )?;
                if want.is_ok()
                    && let Some(object) = self.sides[side].srqs[srq].live_mut()
                {
                    object.buffers.push_back(Buffer {
                        cookie,
                        quiet: false,
                        segments: local.pieces,
                    });
                }
                Ok(Some(false))
            }
            _ => Ok(None),
        }
    }

    fn post_recv(
        &mut self,
        side: usize,
        ep: usize,
        parts: Parts,
        cookie: u64,
        flags: u32,
    ) -> Result<Option<bool>, String> {
        let place = &self.sides[side].eps[ep];
        let Some(object) = place.any() else {
            return Ok(None);
        };
        let Some(local) = self.local(side, parts, object.pz, LOCAL_WRITE) else {
            return Ok(None);
        };
        // The device may or may not see this receive, which is flushed at once, so the model cannot predict the soft
        // high watermark event.
        let held = object.recvs.len();
        if object.state == S::Disconnected && object.soft.is_some_and(|mark| held >= mark as usize)
        {
            return Ok(None);
        }
        let want = if named(place).is_err() {
            named(place)
        } else if object.srq.is_some() || object.pz.is_none() {
            INVALID_STATE
        } else if flags & !(object.modes[0] & UNSIGNALLED) != 0 {
            INVALID_PARAMETER
        } else if local.verdict.is_err() {
            local.verdict
        } else if object.recvs.len() >= DTOS as usize {
            Err(ReturnType::InsufficientResources)
        } else {
            Ok(())
        };
        let handle = object.handle;
        let flags = CompletionFlags::from_bits_retain(flags);
        compare(
            self.ias[side].ep_post_recv(handle, &local.iov, DtoCookie(cookie), flags),
            want,
        )?;
        if want.is_ok()
            && let Some(object) = self.sides[side].eps[ep].live_mut()
        {
            object.recvs.push_back(Buffer {
                cookie,
                quiet: flags.bits() & UNSIGNALLED != 0,
                segments: local.pieces,
            });
            if object.state == S::Disconnected {
                self.sides[side].flush(ep);
                // A posted receive rings no doorbell, so the device finds this receive only when it next reads the
                // ring.
                return Ok(Some(true));
            }
            self.check_watermarks(side, ep);
        }
        Ok(Some(false))
    }

    fn post_request(
        &mut self,
        side: usize,
        ep: usize,
        parts: Parts,
        remote: Option<(Remote, u32)>,
        cookie: u64,
        flags: u32,
    ) -> Result<Option<bool>, String> {
        let place = &self.sides[side].eps[ep];
        let Some(object) = place.any() else {
            return Ok(None);
        };
        let right = match remote {
            Some((_, REMOTE_READ)) => LOCAL_WRITE,
            Some(_) | None => LOCAL_READ,
        };
        let Some(local) = self.local(side, parts, object.pz, right) else {
            return Ok(None);
        };
        let bytes = match remote {
            Some((remote, REMOTE_READ)) => remote.part.bytes,
            Some(_) | None => local.bytes(),
        };
        let request = Request {
            cookie,
            bytes,
            flags,
        };
        let reading = remote.is_some_and(|(_, right)| right == REMOTE_READ);
        let target = match remote {
            Some((remote, right)) => match self.remote(side, remote, right, request.bytes) {
                Some(target) => Some(target),
                None => return Ok(None),
            },
            None => None,
        };
        let length = match target {
            Some((target, ..)) if reading && local.bytes() < target.segment_length => {
                Err(ReturnType::LengthError)
            }
            Some((target, ..)) if !reading && local.bytes() > target.segment_length => {
                Err(ReturnType::LengthError)
            }
            Some(_) | None => Ok(()),
        };
        let want = if named(place).is_err() {
            named(place)
        } else if !matches!(object.state, S::Connected | S::Disconnected) || object.pz.is_none() {
            INVALID_STATE
        } else if request.flags & !allowed(object.modes[1]) != 0 {
            INVALID_PARAMETER
        } else {
            local.verdict.and(length)
        };
        let (handle, state, peer) = (object.handle, object.state, object.peer);
        let flags = CompletionFlags::from_bits_retain(request.flags);
        let ia = &mut self.ias[side];
        let got = match target {
            None => ia.ep_post_send(handle, &local.iov, DtoCookie(request.cookie), flags),
            Some((target, ..)) if reading => ia.ep_post_rdma_read(
                handle,
                &local.iov,
                DtoCookie(request.cookie),
                &target,
                flags,
            ),
            Some((target, ..)) => ia.ep_post_rdma_write(
                handle,
                &local.iov,
                DtoCookie(request.cookie),
                &target,
                flags,
            ),
        };
        compare(got, want)?;
        if want.is_err() {
            return Ok(Some(false));
        }
        if state == S::Disconnected {
            self.complete(side, ep, request, DtoStatus::ErrFlushed);
            return Ok(Some(false));
        }
        let Some(peer) = peer else {
            return Err("CONNECTED without a peer".to_owned());
        };
        let Some((_, zone, reachable)) = target else {
            return Ok(Some(self.message(side, ep, peer, request)));
        };
        let peer_zone = self.sides[1 - side].eps[peer].live().and_then(|ep| ep.pz);
        if request.bytes == 0 || (reachable && peer_zone == Some(zone)) {
            self.complete(side, ep, request, DtoStatus::Success);
        } else {
            self.complete(side, ep, request, DtoStatus::ErrRemoteAccess);
            self.disconnect(side, ep, BROKEN, BROKEN);
        }
        Ok(Some(true))
    }

    /// Expects the completion of a request.
    fn complete(&mut self, side: usize, ep: usize, request: Request, status: DtoStatus) {
        let Some(object) = self.sides[side].eps[ep].live() else {
            return;
        };
        if status == DtoStatus::Success && request.flags & SUPPRESS != 0 {
            return;
        }
        let done = Expected::Dto {
            ep: object.handle,
            request: true,
            cookie: request.cookie,
            bytes: request.bytes,
            status,
        };
        let evd = object.evds[1];
        let notify = status != DtoStatus::Success || request.flags & UNSIGNALLED == 0;
        self.sides[side].expect_one(evd, done, None, notify);
    }

    /// Delivers a message to an endpoint. Returns true if no receive is posted, so that the sender gives up after its
    /// retries.
    fn message(&mut self, side: usize, ep: usize, peer: usize, request: Request) -> bool {
        let there = &mut self.sides[1 - side];
        let Some(target) = there.eps[peer].live_mut() else {
            return false;
        };
        let (handle, evd, srq) = (target.handle, target.evds[0], target.srq);
        let chosen = target.modes[0] == SOLICITED;
        let buffer = match srq.map(|at| there.srqs[at].live_mut()) {
            Some(pool) => pool.and_then(|pool| pool.buffers.pop_front()),
            None => target.recvs.pop_front(),
        };
        let Some(buffer) = buffer else {
            self.complete(side, ep, request, DtoStatus::ErrReceiverNotReady);
            self.disconnect(side, ep, BROKEN, BROKEN);
            return true;
        };
        if let Some(srq) = srq {
            there.check_low_watermark(srq);
        }
        let gone = buffer
            .touched(request.bytes)
            .any(|at| !there.has_region(at));
        let (sent, received) = if request.bytes > buffer.bytes() {
            (DtoStatus::ErrRemoteResponder, DtoStatus::ErrLocalLength)
        } else if gone {
            (DtoStatus::ErrRemoteResponder, DtoStatus::ErrLocalProtection)
        } else {
            (DtoStatus::Success, DtoStatus::Success)
        };
        let done = Expected::Dto {
            ep: handle,
            request: false,
            cookie: buffer.cookie,
            bytes: request.bytes,
            status: received,
        };
        // Without an EVD there is no completion to dequeue.
        if let Some(pool) = srq.and_then(|at| there.srqs[at].live_mut())
            && evd.is_some()
        {
            pool.undequeued += 1;
        }
        let quiet = buffer.quiet || (chosen && request.flags & SOLICITED == 0);
        let notify = received != DtoStatus::Success || !quiet;
        there.expect_one(evd, done, srq, notify);
        self.complete(side, ep, request, sent);
        if sent != DtoStatus::Success {
            self.disconnect(side, ep, BROKEN, BROKEN);
        }
        false
    }

    /// Makes any call. Returns `None` if the slots do not allow the call. Otherwise returns whether completions may
    /// take longer, as `call_post` does.
    pub fn call(&mut self, side: usize, op: &Op) -> Result<Option<bool>, String> {
        if let Some(slow) = self.call_post(side, op)? {
            return Ok(Some(slow));
        }
        let done = self
            .call_memory(side, op)?
            .or(self.call_events(side, op)?)
            .or(self.call_srq(side, op)?)
            .or(self.call_ep(side, op)?)
            .or(self.call_listener(side, op)?)
            .or(self.call_cr(side, op)?)
            .or(self.call_adapter(side, op)?);
        Ok(done.map(|()| false))
    }

    /// Returns the number of connected endpoints, which shows whether sequences make progress.
    pub fn connected(&self) -> usize {
        let eps = self.sides.iter().flat_map(|side| &side.eps);
        eps.filter_map(Place::live)
            .filter(|ep| ep.state == S::Connected)
            .count()
    }
}
