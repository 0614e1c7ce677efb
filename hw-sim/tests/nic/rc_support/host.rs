//! Test double of a function: flat memory, a few keys, and records of all calls.

use super::*;
use hw_sim::Habits;
use hw_sim::host::{ANY_PD, DmaFault, GidEntry, Host, KeyError, KeyScope, SrqWqe, UmrRequest};
use hw_sim::q_counters::QCounter;
use mlx_prm::{Cqe64, EventType};
use rand::{RngCore, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::collections::{BTreeMap, VecDeque};

#[derive(Clone, Copy, Debug)]
pub struct Key {
    pub start: u64,
    pub bytes: u64,
    pub pd: u32,
    pub write: bool,
}

/// Test double of a function.
pub struct TestHost {
    pub now: u64,
    pub memory: Vec<u8>,
    pub keys: BTreeMap<u32, Key>,
    pub completions: Vec<(u32, Cqe64, bool)>,
    /// First halves of the 128-byte CQEs.
    pub first_halves: Vec<[u8; 64]>,
    pub events: Vec<EventType>,
    /// Counter values by counter set and counter.
    pub counted: BTreeMap<(u32, QCounter), u32>,
    pub frames: VecDeque<Vec<u8>>,
    pub shared: VecDeque<SrqWqe>,
    pub bugs: Vec<String>,
    pub umrs: Vec<(u32, Vec<u8>)>,
    pub invalidated: Vec<u32>,
    pub gids: Vec<GidEntry>,
    pub cqe_version: u8,
    pub atomics: bool,
    pub habits: Habits,
    /// True if the simulated device has adaptive retransmission.
    pub retransmits_early: bool,
    /// LID of the port, if it is an InfiniBand port.
    pub lid: Option<u16>,
    rng: ChaCha8Rng,
}

impl TestHost {
    pub fn new(node: u8) -> Self {
        let whole = |pd, write| Key {
            start: 0,
            bytes: MEMORY as u64,
            pd,
            write,
        };
        let keys = BTreeMap::from([
            (KEY, whole(PD, true)),
            (READ_ONLY, whole(PD, false)),
            (FOREIGN, whole(PD + 1, true)),
        ]);
        Self {
            now: 0,
            memory: vec![0; MEMORY],
            keys,
            completions: Vec::new(),
            first_halves: Vec::new(),
            events: Vec::new(),
            counted: BTreeMap::new(),
            frames: VecDeque::new(),
            shared: VecDeque::new(),
            bugs: Vec::new(),
            umrs: Vec::new(),
            invalidated: Vec::new(),
            gids: vec![
                GidEntry {
                    gid: gid(node),
                    mac: mac(node),
                    roce_version: 2,
                    l3_type: 0,
                    vlan: None,
                },
                GidEntry {
                    gid: gid6(node),
                    mac: mac(node),
                    roce_version: 2,
                    l3_type: 1,
                    vlan: Some(5),
                },
                GidEntry {
                    gid: gid6(node),
                    mac: mac(node),
                    roce_version: 0,
                    l3_type: 0,
                    vlan: None,
                },
            ],
            cqe_version: 0,
            atomics: true,
            habits: Habits::default(),
            retransmits_early: false,
            lid: None,
            rng: ChaCha8Rng::seed_from_u64(u64::from(node)),
        }
    }

    fn range(
        &self,
        va: u64,
        bytes: usize,
        write: bool,
    ) -> Result<std::ops::Range<usize>, DmaFault> {
        let fault = DmaFault {
            iova: va,
            bytes,
            write,
        };
        let start = usize::try_from(va).map_err(|_| fault)?;
        let end = start
            .checked_add(bytes)
            .filter(|&end| end <= MEMORY)
            .ok_or(fault)?;
        Ok(start..end)
    }

    pub fn write(&mut self, at: u64, data: &[u8]) {
        let range = self
            .range(at, data.len(), true)
            .expect("a test's own address");
        self.memory[range].copy_from_slice(data);
    }

    pub fn read(&self, at: u64, bytes: usize) -> &[u8] {
        let range = self.range(at, bytes, false).expect("a test's own address");
        &self.memory[range]
    }
}

impl Host for TestHost {
    fn count(&mut self, set: u32, what: QCounter) {
        *self.counted.entry((set, what)).or_default() += 1;
    }

    fn has_atomics(&self) -> bool {
        self.atomics
    }

    fn now(&self) -> u64 {
        self.now
    }

    fn dma_read(&mut self, iova: u64, out: &mut [u8]) -> Result<(), DmaFault> {
        let range = self.range(iova, out.len(), false)?;
        out.copy_from_slice(&self.memory[range]);
        Ok(())
    }

    fn dma_write(&mut self, iova: u64, data: &[u8]) -> Result<(), DmaFault> {
        let range = self.range(iova, data.len(), true)?;
        self.memory[range].copy_from_slice(data);
        Ok(())
    }

    fn key_read(
        &mut self,
        key: u32,
        scope: KeyScope,
        va: u64,
        out: &mut [u8],
    ) -> Result<(), KeyError> {
        self.key_check(key, scope, va, out.len() as u64, false)?;
        Ok(self.dma_read(va, out)?)
    }

    fn key_write(
        &mut self,
        key: u32,
        scope: KeyScope,
        va: u64,
        data: &[u8],
    ) -> Result<(), KeyError> {
        self.key_check(key, scope, va, data.len() as u64, true)?;
        Ok(self.dma_write(va, data)?)
    }

    fn key_check(
        &mut self,
        key: u32,
        scope: KeyScope,
        va: u64,
        bytes: u64,
        write: bool,
    ) -> Result<(), KeyError> {
        let found = self.keys.get(&key).ok_or(KeyError::Missing { key })?;
        if scope.pd != ANY_PD && found.pd != scope.pd {
            return Err(KeyError::ProtectionDomain { key });
        }
        if write && !found.write {
            return Err(KeyError::Access { key });
        }
        let end = va.checked_add(bytes);
        if va < found.start || end.is_none_or(|end| end > found.start + found.bytes) {
            return Err(KeyError::Range { key, va, bytes });
        }
        Ok(())
    }

    fn complete(&mut self, cqn: u32, cqe: Cqe64, solicited: bool) {
        self.completions.push((cqn, cqe, solicited));
    }

    fn complete_wide(&mut self, cqn: u32, first: [u8; 64], cqe: Cqe64, solicited: bool) {
        self.first_halves.push(first);
        self.complete(cqn, cqe, solicited);
    }

    fn qp_event(&mut self, event: EventType, _qpn: u32) {
        self.events.push(event);
    }

    fn srq_take(&mut self, _srqn: u32) -> Result<Option<SrqWqe>, DmaFault> {
        Ok(self.shared.pop_front())
    }

    fn transmit(&mut self, frame: Vec<u8>) {
        self.frames.push_back(frame);
    }

    fn gid(&self, index: u8) -> Option<GidEntry> {
        self.gids.get(usize::from(index)).cloned()
    }

    fn cqe_version(&self) -> u8 {
        self.cqe_version
    }

    fn lid(&self) -> Option<u16> {
        self.lid
    }

    fn retransmits_early(&self) -> bool {
        self.retransmits_early
    }

    fn habits(&self) -> Habits {
        self.habits
    }

    fn driver_bug(&mut self, what: String) {
        self.bugs.push(what);
    }

    fn random(&mut self) -> u64 {
        self.rng.next_u64()
    }

    fn umr(&mut self, request: UmrRequest<'_>) -> Result<(), KeyError> {
        self.umrs.push((request.key, request.entries.to_vec()));
        if request.key == NO_KEY {
            Err(KeyError::Missing { key: NO_KEY })
        } else {
            Ok(())
        }
    }

    fn invalidate(&mut self, key: u32, _scope: KeyScope) -> Result<(), KeyError> {
        self.invalidated.push(key);
        self.keys
            .remove(&key)
            .map(|_| ())
            .ok_or(KeyError::Missing { key })
    }
}
