//! Batches: requests that are posted with one doorbell, and events that are dequeued together.
//!
//! A batch has the same effect as single calls for its requests, and the records are the same. A refused request of a
//! batch changes nothing. The earlier requests of the batch are posted, whatever the program's closure then returns.

use rand::Rng;
use udapl::error::{ReturnType, Subtype};
use udapl::post::FetchAdd;
use udapl::{DatError, DtoCookie, Event};

use super::traffic::{Prepared, immediate};
use crate::end::Kind;
use crate::world::World;

/// Maximum number of requests that are prepared for a batch. An endpoint has only `WINDOW` slots.
const LONGEST: usize = 6;
/// Maximum number of events dequeued together.
const MAX_POLLED: usize = 24;

impl World {
    /// Posts several requests in one batch.
    pub fn post_batch(&mut self, side: usize, at: usize, bytes: usize) {
        let count = self.random.random_range(1..=LONGEST);
        let (gives_up, goes_on) = (self.random.random_bool(0.25), self.random.random_bool(0.5));
        let mut all: Vec<Prepared> = Vec::new();
        for _ in 0..count {
            let kind = match self.random.random_range(0..4) {
                0 => Kind::Send,
                1 => Kind::Write,
                2 => Kind::Count,
                _ => Kind::Read,
            };
            let fence = self.random.random_ratio(1, 8);
            let Some(one) = self.prepare(side, at, (kind, bytes, 0, fence), &all) else {
                break;
            };
            all.push(one);
        }
        let Some(ep) = all.first().map(|one| one.ep) else {
            return;
        };
        let mut answers = Vec::new();
        let answer = self.ep_call(side, "batch", ep, |open| {
            open.ia.batch(ep, |batch| {
                for one in &all {
                    let answer = match one.work.kind {
                        Kind::Read => batch.rdma_read(
                            &one.to,
                            DtoCookie(one.work.cookie),
                            &one.target,
                            one.flags,
                        ),
                        Kind::Send => {
                            let cookie = DtoCookie(one.work.cookie);
                            match immediate(one.work.cookie) {
                                Some(data) => {
                                    batch.send_immediate(&one.from, cookie, data, one.flags)
                                }
                                None => batch.send(&one.from, cookie, one.flags),
                            }
                        }
                        Kind::Count => {
                            let one_more = FetchAdd {
                                remote: &one.target,
                                add: 1,
                            };
                            let cookie = DtoCookie(one.work.cookie);
                            batch.fetch_add(&one.to, cookie, one_more, one.flags)
                        }
                        Kind::Invalidate(context) => {
                            let cookie = DtoCookie(one.work.cookie);
                            batch.send_invalidate(&one.from, cookie, context, one.flags)
                        }
                        Kind::Write | Kind::Attack | Kind::Empty | Kind::Bind(_) => batch
                            .rdma_write(
                                &one.from,
                                DtoCookie(one.work.cookie),
                                &one.target,
                                one.flags,
                            ),
                    };
                    answers.push(answer);
                    if !goes_on {
                        answer?;
                    }
                }
                if gives_up {
                    return Err(DatError::new(ReturnType::Abort, Subtype::None));
                }
                // If all requests were refused, the closure returns the error of the last one.
                match answers.last() {
                    Some(&Err(error)) if answers.iter().all(Result::is_err) => Err(error),
                    Some(_) | None => Ok(()),
                }
            })
        });
        if answer.is_none() {
            return;
        }
        let posted = answers.iter().filter(|answer| answer.is_ok()).count();
        let came_to = match posted {
            0 => "refused",
            _ if gives_up && posted == all.len() => "done, and given up",
            _ if posted == all.len() => "done",
            _ => "done in part",
        };
        self.cover.count("post a batch", came_to);
        for (one, answer) in all.into_iter().zip(answers) {
            if answer.is_ok() {
                self.posted(side, at, one);
            }
        }
    }

    /// Dequeues all completions of a side, several at a time.
    pub fn poll(&mut self, side: usize) {
        let room = self.random.random_range(1..=MAX_POLLED);
        loop {
            let mut events = [Event::NONE; MAX_POLLED];
            let taken = self.call(side, "evd_poll", |open| {
                open.ia.evd_poll(open.dto, &mut events[..room])
            });
            let Some(Ok(taken)) = taken else { return };
            let came_to = match taken {
                0 => "nothing",
                1 => "one",
                _ if taken == room => "as many as there is room for",
                _ => "several",
            };
            self.cover.count("poll", came_to);
            for event in events.into_iter().take(taken) {
                self.event(side, event);
            }
            if taken < room {
                return;
            }
        }
    }
}
