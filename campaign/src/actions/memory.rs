//! Registering and freeing memory, and memory windows.

use rand::Rng;
use udapl::memory::RmrCookie;
use udapl::{CompletionFlags, MemPrivFlags};

use super::outcome;
use super::traffic::local;
use crate::bytes::{Freed, SLOT};
use crate::end::{Kind, Phase, WINDOW, Work};
use crate::keys::Key;
use crate::side::Open;
use crate::world::World;

/// Maximum number of an adapter's regions that peers may write to and that may be freed at any time.
const MAX_FREEABLE: usize = 3;

impl World {
    pub fn register_or_free(&mut self, side: usize) {
        let free = self.random.random_bool(0.5);
        if self.random.random_ratio(1, 8) {
            self.register_foreign(side);
        }
        let Some(open) = &self.sides[side].open else {
            return;
        };
        if !free && open.freeable.len() < MAX_FREEABLE {
            let answer = match self.slot_of_kin(side) {
                Some(memory) => {
                    self.call(side, "dat_lmr_create", |open| open.register_memory(memory))
                }
                None => self.call(side, "dat_lmr_create", Open::lend),
            };
            if let Some(answer) = answer {
                self.cover.count("register", outcome(&answer));
            }
            return;
        }
        self.free_region(side);
    }

    /// Registers memory of another adapter. The call must be refused.
    fn register_foreign(&mut self, side: usize) {
        let other = (side + 1) % self.sides.len();
        let kin = self.sides[other].place == self.sides[side].place;
        let Some(theirs) = self.sides[other].open.as_ref().filter(|_| !kin) else {
            return;
        };
        let memory = theirs.offered.memory.clone();
        let answer = self.call(side, "dat_lmr_create", |open| {
            let rights = MemPrivFlags::all();
            open.ia.lmr_create(memory, open.pz, rights).map(|_| ())
        });
        assert!(
            answer.is_none_or(|answer| answer.is_err()),
            "side {side} registers memory of side {other}"
        );
    }

    /// Frees the oldest region that may be freed, and watches its memory.
    pub fn free_region(&mut self, side: usize) {
        let number = self.next_number();
        let open = self.sides[side].open.as_ref();
        let Some(lmr) = open.and_then(|open| {
            open.freeable
                .first()
                .map(|freeable| freeable.region.lmr.lmr)
        }) else {
            return;
        };
        let Some(answer) = self.call(side, "dat_lmr_free", |open| open.ia.lmr_free(lmr)) else {
            return;
        };
        self.cover.count("free memory", outcome(&answer));
        if answer.is_ok()
            && let Some(open) = &mut self.sides[side].open
        {
            let mut freeable = open.freeable.remove(0);
            open.remember(freeable.key, number);
            let memory = freeable.region.memory.take();
            self.watch(Freed::watch(memory, side, "which was freed"));
        }
    }

    /// Makes, binds, unbinds, queries or frees a memory window, or tries to free its memory.
    pub fn window(&mut self, side: usize, at: usize) {
        let (which, draw) = (
            self.random.random_range(0..crate::side::WINDOW_COUNT),
            self.random.random_range(0..10),
        );
        let Some(open) = &self.sides[side].open else {
            return;
        };
        let Some(window_memory) = open.window_memories.get(which) else {
            return;
        };
        let Some(rmr) = window_memory.rmr else {
            self.make_window(side, which);
            return;
        };
        match draw {
            0 => {
                let (bound, binds, claimed) = (
                    window_memory.key.is_some(),
                    window_memory.binds,
                    window_memory.claimed,
                );
                let asked = self.call(side, "dat_rmr_query", |open| open.ia.rmr_query(rmr));
                // After an invalidation by a peer the window may be unbound before the program knows.
                if let Some(Ok(param)) = asked.filter(|_| !claimed) {
                    assert!(
                        param.binding.is_none() || bound,
                        "side {side}: window {which} is bound, and was not"
                    );
                    assert!(
                        param.binding.is_some() || !bound || binds > 0,
                        "side {side}: window {which} is not bound, and was"
                    );
                }
            }
            1 => self.free_window(side, which),
            2 => {
                // Memory to which a window may be bound cannot be freed. If no window is bound, the memory is not
                // freed here either, because later binds need it.
                let lmr = window_memory.region.lmr.lmr;
                if window_memory.key.is_some() && window_memory.binds == 0 && !window_memory.claimed
                {
                    let answer = self.call(side, "dat_lmr_free", |open| open.ia.lmr_free(lmr));
                    assert!(
                        answer.is_none_or(|answer| answer.is_err()),
                        "side {side}: memory is freed that window {which} is bound to"
                    );
                }
            }
            _ => self.bind(side, at, which, draw < 7),
        }
    }

    pub fn make_window(&mut self, side: usize, which: usize) {
        let made = self.call(side, "dat_rmr_create", |open| open.ia.rmr_create(open.pz));
        if let (Some(Ok(rmr)), Some(open)) = (made, &mut self.sides[side].open) {
            open.window_memories[which].rmr = Some(rmr);
        }
    }

    pub fn free_window(&mut self, side: usize, which: usize) {
        let number = self.next_number();
        let open = self.sides[side].open.as_ref();
        let Some(rmr) = open.and_then(|open| open.window_memories[which].rmr) else {
            return;
        };
        self.spoil_takers(side, which);
        let Some(answer) = self.call(side, "dat_rmr_free", |open| open.ia.rmr_free(rmr)) else {
            return;
        };
        self.cover.count("free a window", outcome(&answer));
        if answer.is_ok()
            && let Some(open) = &mut self.sides[side].open
        {
            open.window_memories[which].rmr = None;
            open.window_memories[which].context = None;
            open.bind_done(which, false, number);
        }
    }

    /// Binds or unbinds a window.
    pub fn bind(&mut self, side: usize, at: usize, which: usize, open_it: bool) {
        let none = CompletionFlags::empty();
        self.bind_with(side, at, which, open_it, MemPrivFlags::empty(), none);
    }

    /// Binds or unbinds a window, with the rights `more` in addition to reading and writing, and with completion flags.
    pub fn bind_with(
        &mut self,
        side: usize,
        at: usize,
        which: usize,
        open_it: bool,
        more: MemPrivFlags,
        flags: CompletionFlags,
    ) {
        let cookie = self.next_number();
        let Some(open) = &self.sides[side].open else {
            return;
        };
        let end = &open.ends[at];
        let (Some(ep), Phase::Up | Phase::Over) = (end.ep, end.phase) else {
            return;
        };
        let window_memory = &open.window_memories[which];
        let Some(rmr) = window_memory.rmr.filter(|_| end.holding() < WINDOW) else {
            return;
        };
        let bytes = if open_it { SLOT } else { 0 };
        let what = local(&window_memory.region, 0, bytes);
        let rights = MemPrivFlags::REMOTE_READ | MemPrivFlags::REMOTE_WRITE | more;
        let address = window_memory.region.lmr.registered_address;
        self.spoil_takers(side, which);
        let answer = self.ep_call(side, "dat_rmr_bind", ep, |open| {
            open.ia
                .rmr_bind(rmr, &what, rights, ep, RmrCookie(cookie), flags)
        });
        let Some(answer) = answer else { return };
        let action = if open_it {
            "bind a window"
        } else {
            "unbind a window"
        };
        self.cover.count(action, outcome(&answer));
        let (Ok(context), Some(open)) = (answer, &mut self.sides[side].open) else {
            return;
        };
        let window_memory = &mut open.window_memories[which];
        assert!(
            window_memory.context.replace(context) != Some(context),
            "side {side}: window {which} has the context {context:#x} that it had before the bind"
        );
        window_memory.closed = false;
        window_memory.claimed = false;
        window_memory.binds += 1;
        let key = open_it.then_some(Key {
            address,
            context,
            void: None,
            yields: more.contains(MemPrivFlags::REMOTE_INVALIDATE),
        });
        let before = std::mem::replace(&mut window_memory.key, key);
        window_memory.before.extend(before);
        open.ends[at].requests.push_back(Work {
            cookie,
            kind: Kind::Bind(which),
            slot: 0,
            bytes,
            void: None,
        });
    }
}
