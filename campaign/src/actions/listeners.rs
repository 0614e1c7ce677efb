//! Making and freeing service points.

use rand::Rng;
use udapl::{ConnQual, PspFlags};

use crate::end::Phase;
use crate::side::{COMMON_QUAL, CONN_QUAL, LENDING_QUAL, OTHER_QUAL, RESERVED_QUAL};
use crate::world::World;

impl World {
    /// Creates or frees a service point of a random kind, or accepts or rejects all held requests.
    pub fn listen(&mut self, side: usize, at: usize) {
        let draw = self.random.random_range(0..12);
        let apart = self.sides[side].side_config.apart;
        let Some(open) = &self.sides[side].open else {
            return;
        };
        let (cr, spare) = (open.cr, &open.spare);
        let (other, lending, any, psp) = (spare.other, spare.lending, spare.any, open.psp);
        match draw {
            0..=1 => {
                let other = self.point(side, other, OTHER_QUAL + apart, PspFlags::CONSUMER);
                if let Some(open) = &mut self.sides[side].open {
                    open.spare.other = other;
                }
            }
            2..=3 => {
                let lending = self.point(side, lending, LENDING_QUAL + apart, PspFlags::PROVIDER);
                if let Some(open) = &mut self.sides[side].open {
                    open.spare.lending = lending;
                }
            }
            4 => {
                let psp = self.point(side, psp, CONN_QUAL + apart, PspFlags::CONSUMER);
                if let Some(open) = &mut self.sides[side].open {
                    open.psp = psp;
                }
            }
            5 => {
                let any = match any {
                    Some(psp) => {
                        let freed = self.call(side, "dat_psp_free", |open| open.ia.psp_free(psp));
                        Some(psp).filter(|_| freed.is_none_or(|freed| freed.is_err()))
                    }
                    None => {
                        let made = self.call(side, "dat_psp_create_any", |open| {
                            open.ia.psp_create_any(cr, PspFlags::CONSUMER)
                        });
                        made.and_then(Result::ok).map(|(_, psp)| psp)
                    }
                };
                if let Some(open) = &mut self.sides[side].open {
                    open.spare.any = any;
                }
            }
            6..=8 => self.reserve(side, at),
            _ => self.decide_held(side),
        }
    }

    /// Frees the service point `psp`, or makes one at `qual` if there is none. Returns the service point that exists
    /// afterwards.
    pub fn point(
        &mut self,
        side: usize,
        psp: Option<udapl::connection::PspHandle>,
        qual: u64,
        flags: PspFlags,
    ) -> Option<udapl::connection::PspHandle> {
        let Some(psp) = psp else {
            let made = self.call(side, "dat_psp_create", |open| {
                let cr = open.cr;
                if qual == COMMON_QUAL {
                    open.ia.psp_create_shared(ConnQual(qual), cr, flags)
                } else {
                    open.ia.psp_create(ConnQual(qual), cr, flags)
                }
            });
            return made.and_then(Result::ok);
        };
        let asked = self.call(side, "dat_psp_query", |open| open.ia.psp_query(psp));
        if let Some(Ok(param)) = asked {
            assert_eq!((param.conn_qual, param.flags), (ConnQual(qual), flags));
        }
        // Requests that have not arrived yet will find no service point.
        let place = self.sides[side].place;
        self.spoil("a service point freed", |link| {
            let asked = link.ends[1].0 == side || link.anybody == Some(place);
            asked && link.up != [true, true]
        });
        let freed = self.call(side, "dat_psp_free", |open| open.ia.psp_free(psp));
        Some(psp).filter(|_| freed.is_none_or(|freed| freed.is_err()))
    }

    /// Makes a reserved service point for an idle endpoint, or frees the existing one.
    fn reserve(&mut self, side: usize, at: usize) {
        let Some(open) = &self.sides[side].open else {
            return;
        };
        if open.spare.reserved.is_some() {
            self.release_reserved(side);
            return;
        }
        let end = &open.ends[at];
        let (Some(ep), Phase::Idle) = (end.ep, end.phase) else {
            return;
        };
        let qual = RESERVED_QUAL + self.sides[side].side_config.apart;
        let made = self.ep_call(side, "dat_rsp_create", ep, |open| {
            let cr = open.cr;
            open.ia.rsp_create(ConnQual(qual), Some(ep), cr)
        });
        let (Some(Ok(rsp)), Some(open)) = (made, &mut self.sides[side].open) else {
            return;
        };
        open.ends[at].phase = Phase::Reserved;
        open.spare.reserved = Some((rsp, at));
        let asked = self.call(side, "dat_rsp_query", |open| open.ia.rsp_query(rsp));
        if let Some(Ok(param)) = asked {
            assert_eq!((param.conn_qual, param.ep), (ConnQual(qual), Some(ep)));
        }
    }

    /// Frees a reserved service point. If a request has arrived for its endpoint, the endpoint stays with the request.
    pub fn release_reserved(&mut self, side: usize) {
        self.spoil("a service point freed", |link| {
            link.ends[1].0 == side && link.up != [true, true]
        });
        self.free_reserved(side);
        let Some(open) = &mut self.sides[side].open else {
            return;
        };
        for end in &mut open.ends {
            let status = end.ep.map(|ep| open.ia.ep_get_status(ep));
            if end.phase == Phase::Reserved
                && let Some(Ok(status)) = status
                && status.state == udapl::endpoint::EpState::Unconnected
            {
                end.phase = Phase::Idle;
            }
        }
    }

    /// Frees the reserved service point, and returns the index of its endpoint if that succeeded.
    pub fn free_reserved(&mut self, side: usize) -> Option<usize> {
        let (rsp, at) = self.sides[side].open.as_ref()?.spare.reserved?;
        let freed = self.call(side, "dat_rsp_free", |open| open.ia.rsp_free(rsp))?;
        freed.ok()?;
        self.sides[side].open.as_mut()?.spare.reserved = None;
        Some(at)
    }
}
