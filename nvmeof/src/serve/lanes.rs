//! Queue of authentications that wait to be computed ([`super::authenticate`]).

use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};

use super::inbox::Inbox;
use crate::model::{AuthStep, QUEUES};
use crate::nvme::Nqn;

/// Maximum number of lanes.
pub(super) const LANES: usize = 64;
/// Maximum number of steps that wait in a lane.
pub(super) const STEPS: usize = QUEUES as usize + 1;

/// Waiting steps, in one first-in first-out lane for each owner.
#[derive(Debug)]
pub(super) struct Lanes<O, J> {
    /// Lanes in the order in which they are served.
    pub lanes: VecDeque<(O, VecDeque<J>)>,
}

impl<O, J> Default for Lanes<O, J> {
    fn default() -> Self {
        Self {
            lanes: VecDeque::new(),
        }
    }
}

impl<O: PartialEq, J> Lanes<O, J> {
    /// Adds a job to the end of its owner's lane. Returns the job if the lane is full, or there are too many lanes.
    pub(super) fn put(&mut self, owner: O, job: J) -> Result<(), J> {
        let has_room = self.lanes.len() < LANES;
        match self.lanes.iter_mut().find(|(one, _)| *one == owner) {
            Some((_, waiting)) if waiting.len() < STEPS => waiting.push_back(job),
            None if has_room => self.lanes.push_back((owner, [job].into())),
            Some(_) | None => return Err(job),
        }
        Ok(())
    }

    /// Removes the first job of the next lane, and moves that lane to the end.
    pub(super) fn next(&mut self) -> Option<J> {
        let (owner, mut waiting) = self.lanes.pop_front()?;
        let job = waiting.pop_front();
        if !waiting.is_empty() {
            self.lanes.push_back((owner, waiting));
        }
        job
    }
}

/// A step to compute, with the inbox and the command that wait for its answer.
#[derive(Debug)]
pub(super) struct Job {
    pub step: Box<AuthStep>,
    pub inbox: Arc<Inbox>,
    pub io: u32,
}

/// Steps of all workers that wait to be computed.
#[derive(Debug, Default)]
pub(super) struct Waiting(Mutex<Inner>);

#[derive(Debug, Default)]
pub(super) struct Inner {
    pub lanes: Lanes<(Nqn, IpAddr), Job>,
    pub has_thread: bool,
}

impl Waiting {
    pub(super) fn with<T>(&self, act: impl FnOnce(&mut Inner) -> T) -> T {
        act(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lanes_have_their_turn_one_after_the_other_and_one_that_is_full_is_full_alone() {
        let mut lanes = Lanes::default();
        for number in 0..STEPS {
            lanes.put('a', ('a', number)).expect("room");
        }
        assert_eq!(lanes.put('a', ('a', 999)), Err(('a', 999)));
        lanes.put('b', ('b', 0)).expect("room");
        lanes.put('c', ('c', 0)).expect("room");
        let order: Vec<_> = (0..5).filter_map(|_| lanes.next()).collect();
        assert_eq!(order, [('a', 0), ('b', 0), ('c', 0), ('a', 1), ('a', 2)]);
        let mut lanes = Lanes::default();
        for number in 0..LANES {
            lanes.put(number, number).expect("room");
        }
        assert_eq!(lanes.put(LANES, 0), Err(0), "one lane too many");
        lanes.put(7, 0).expect("room in a lane that is there");
    }
}
