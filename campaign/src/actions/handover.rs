//! Handing an adapter over to the next process of its program.
//!
//! All instances of the adapter are parked together. For some steps, only the device has the adapter: frames arrive,
//! timers pass, and faults happen. Then the next process goes on with it, which is the same program without any of its
//! values but the snapshot, the descriptors and its own records. Both processes may be killed ([`crate::process`]). A
//! handover is no reason for a connection to end.

use driver::Device;
use rand::Rng;
use udapl::Ia;
use udapl::handover::{self, NotParked, NotResumed, Parked, ResumedAll};

use crate::calls;
use crate::keys::Key;
use crate::side::Open;
use crate::world::World;

/// Maximum number of attempts to go on with a parked adapter.
const ATTEMPTS: usize = 3;
/// Virtual duration in ns of an absence above which pending connects of other sides may time out.
const LONG_ABSENCE: u64 = 50_000_000;

/// The program's part of an adapter that is parked: its records, and the keys that its peers know, by side.
struct Records {
    all: Vec<(usize, Open, Vec<Key>)>,
}

/// The moment at which a process is killed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kill {
    Never,
    /// The process that parks, after so many accesses.
    Old(u32),
    /// Both, when the snapshot is complete.
    Both,
    /// The process that goes on, after so many accesses.
    New(u32),
}

impl World {
    /// Parks the adapter of a side with all its instances, and goes on with it.
    pub fn hand_over(&mut self, side: usize) {
        let (kill, damages) = (self.draw_kill(), self.random.random_ratio(1, 4));
        let words: Vec<u8> = (0..self.random.random_range(0..40_u8)).collect();
        // Memory of the function that the program has freed is checked once more. It cannot be in use while the
        // function is parked.
        self.check_all();
        let kin = self.kin(side);
        self.freed.retain(|freed| !kin.contains(&freed.side));
        let sound = self.is_sound(side);
        let (ias, mut records) = self.part_with(side);
        let kill_after = match kill {
            Kill::Old(accesses) => Some(accesses),
            Kill::Never | Kill::Both | Kill::New(_) => None,
        };
        let process = self.sides[side].process();
        let resets = self.sim.report(&self.sides[side].function).resets;
        let parked = self.timed(side, calls::PARK, |_| {
            process.run(kill_after, || handover::park_all(ias, &words))
        });
        let parked = match parked {
            None => return self.killed(side, records, "the old process"),
            Some(Ok(_)) if kill == Kill::Both => {
                return self.killed(side, records, "both processes");
            }
            Some(Ok(parked)) => parked,
            Some(Err(refused)) => {
                let (ias, error) = NotParked::into_parts(refused);
                self.trace_line(side, format_args!("not parked: {error}"));
                assert!(!sound, "side {side} is not parked: {error}");
                return self.not_parked(side, ias, records);
            }
        };
        self.cover.count("park", "done");
        self.trace_line(side, format_args!("parked"));
        let left = self.now();
        let was_reset = self.be_absent(side);
        if self.now() - left > LONG_ABSENCE {
            self.spoil("an absence", |link| link.up != [true, true]);
        }
        let kill_after = match kill {
            Kill::New(accesses) => Some(accesses),
            Kill::Never | Kill::Both | Kill::Old(_) => None,
        };
        let parked = if damages {
            self.with_damage(side, parked)
        } else {
            Ok(parked)
        };
        let parked = match parked {
            Ok(parked) => parked,
            Err(who) => return self.killed(side, records, who),
        };
        match self.go_on(side, parked, kill_after) {
            Ok(resumed) => {
                let ResumedAll { ias, words: own } = resumed;
                assert_eq!(own, words, "side {side}: the program's own bytes");
                let now = self.sim.report(&self.sides[side].function).resets;
                assert!(!was_reset, "side {side} goes on after a reset");
                assert_eq!(now, resets, "side {side}: the function was reset");
                self.take_back(ias, &mut records);
                self.cover.count("resume", "done");
            }
            Err(who) => self.killed(side, records, who),
        }
    }

    fn draw_kill(&mut self) -> Kill {
        let bits = self.random.random_range(0..10);
        let accesses = self.random.random_range(0..1 << bits);
        match self.random.random_range(0..8) {
            0 => Kill::Old(accesses),
            1 => Kill::Both,
            2 => Kill::New(accesses),
            _ => Kill::Never,
        }
    }

    /// Returns whether the adapter of a side has no reason to refuse to be parked or resumed.
    fn is_sound(&self, side: usize) -> bool {
        self.kin(side).iter().all(|other| {
            let one = &self.sides[*other];
            let lost_events = one
                .open
                .as_ref()
                .is_some_and(|open| open.dead || open.spent);
            // A short EVD may have overrun, and the program does not know yet.
            !one.tampered && !one.removed && !lost_events && !one.side_config.narrow
        })
    }

    /// Takes the instances of a side's function, and the memory of their regions, from their programs. Removes agents,
    /// which are functions of the process.
    fn part_with(&mut self, side: usize) -> (Vec<Ia>, Records) {
        let (mut ias, mut all) = (Vec::new(), Vec::new());
        for other in self.kin(side) {
            let keys = self.keys_of(other);
            self.sides[other].parked = true;
            if let Some(mut open) = self.sides[other].open.take() {
                for region in open.regions() {
                    drop(region.memory.take());
                }
                if let Some(cno) = open.spare.cno {
                    let removed = open.ia.cno_modify_agent(cno, None);
                    removed.expect("a CNO");
                }
                ias.push(open.ia.take());
                all.push((other, open, keys));
            }
        }
        (ias, Records { all })
    }

    /// Gives the instances and the memory of their regions back.
    fn take_back(&mut self, ias: Vec<Ia>, records: &mut Records) {
        assert_eq!(ias.len(), records.all.len(), "as many instances");
        for (ia, (side, mut open, _)) in ias.into_iter().zip(records.all.drain(..)) {
            for region in open.regions() {
                let memory = ia.lmr_memory(region.lmr.lmr);
                region.memory.put(memory.expect("a region"));
            }
            open.ia.put(ia);
            self.sides[side].open = Some(open);
            for other in self.kin(side) {
                self.sides[other].parked = false;
            }
        }
    }

    /// Goes on with instances that were not parked. None are left if their device was stopped.
    fn not_parked(&mut self, side: usize, ias: Vec<Ia>, mut records: Records) {
        if ias.is_empty() {
            return self.killed(side, records, "a device that was stopped");
        }
        self.cover.count("park", "refused");
        self.take_back(ias, &mut records);
    }

    /// Lets time pass while no process has the adapter, and others go on. Returns whether the function was reset
    /// meanwhile.
    fn be_absent(&mut self, side: usize) -> bool {
        for _ in 0..self.random.random_range(0..5) {
            let other = self.random.random_range(0..self.sides.len());
            if !self.sides[other].parked {
                self.action(other);
            }
            self.inject_fault();
            let moment = self.moment();
            self.run_once(moment);
        }
        let is_reset = self.random.random_ratio(1, 16);
        if is_reset {
            self.cover.count("resume", "after a reset");
            self.trace_line(side, format_args!("reset"));
            for other in self.kin(side) {
                self.sides[other].tampered = true;
            }
            self.spoil_function("a reset", side);
            Device::reset(&*self.sides[side].function);
        }
        is_reset
    }

    /// Changes a bit of the snapshot. In half of the cases the checksum is made again, so that the layers read the bit.
    /// Returns the adapter as it was parked, if the snapshot is refused without an effect; otherwise how it ended.
    fn with_damage(&mut self, side: usize, parked: Parked) -> Result<Parked, &'static str> {
        let Parked {
            snapshot,
            descriptors,
        } = parked;
        let mut damaged = snapshot.clone();
        let bit = self.random.random_range(0..damaged.len() * 8);
        damaged[bit / 8] ^= 1 << (bit % 8);
        let is_sealed = self.random.random_bool(0.5);
        if is_sealed {
            seal(&mut damaged);
        }
        let given = Parked {
            snapshot: damaged,
            descriptors,
        };
        let answer = self.timed(side, calls::RESUME, |_| handover::resume_all(given));
        let refused = match answer {
            Ok(resumed) => {
                assert!(is_sealed, "side {side}: a damaged snapshot is resumed");
                self.cover.count("resume", "damaged and sealed: done");
                // Nobody knows what such an adapter does.
                self.timed(side, calls::DROP, |_| drop(resumed));
                return Err("a process with a wrong snapshot");
            }
            Err(refused) => refused,
        };
        self.trace_line(side, format_args!("damaged: {}", refused.error));
        // Otherwise the seal would be at another place, and no layer would read the bit.
        let by_checksum = refused.error.to_string().contains("its CRC-32 is");
        assert!(
            !(is_sealed && by_checksum),
            "side {side}: {}",
            refused.error
        );
        let kind = if is_sealed {
            "damaged and sealed: refused"
        } else {
            "damaged"
        };
        self.cover.count("resume", kind);
        match refused.descriptors {
            Some(descriptors) => Ok(Parked {
                snapshot,
                descriptors,
            }),
            None => {
                assert!(
                    is_sealed,
                    "side {side}: a refusal by the checksum has an effect"
                );
                Err("a process with a wrong snapshot")
            }
        }
    }

    /// Goes on with a parked adapter.
    ///
    /// # Errors
    /// How the adapter ended.
    fn go_on(
        &mut self,
        side: usize,
        mut parked: Parked,
        mut kill_after: Option<u32>,
    ) -> Result<ResumedAll, &'static str> {
        let process = self.sides[side].process();
        for _ in 0..ATTEMPTS {
            let snapshot = parked.snapshot.clone();
            let answer = self.timed(side, calls::RESUME, |_| {
                process.run(kill_after.take(), || handover::resume_all(parked))
            });
            let NotResumed { descriptors, error } = match answer {
                None => return Err("the new process"),
                Some(Ok(resumed)) => return Ok(resumed),
                Some(Err(refused)) => refused,
            };
            self.trace_line(side, format_args!("not resumed: {error}"));
            assert!(
                self.sides[side].tampered,
                "side {side} is not resumed: {error}"
            );
            let Some(descriptors) = descriptors else {
                self.cover.count("resume", "stopped");
                return Err("a device that was stopped");
            };
            self.cover.count("resume", "refused");
            parked = Parked {
                snapshot,
                descriptors,
            };
        }
        Err("a process that gave up")
    }

    /// Ends a process whose adapter is lost: the kernel resets the function, and peers are not told.
    fn killed(&mut self, side: usize, records: Records, who: &'static str) {
        self.cover.count("killed", who);
        self.trace_line(side, format_args!("killed: {who}"));
        self.sides[side].process().end();
        self.spoil_function("a process that was killed", side);
        for other in self.kin(side) {
            self.sides[other].parked = false;
        }
        for (other, open, keys) in records.all {
            drop(open);
            self.attack_closed(other, keys);
        }
    }
}

/// Makes the checksum of a snapshot again: the CRC-32 of all other bytes, in bytes 24 to 27.
fn seal(snapshot: &mut [u8]) {
    let Some(checksum) = snapshot.get_mut(24..28) else {
        return;
    };
    checksum.fill(0);
    let mut sum = crc32fast::hash(snapshot);
    for byte in &mut snapshot[24..28] {
        *byte = u8::try_from(sum & 0xff).expect("a byte");
        sum >>= 8;
    }
}
