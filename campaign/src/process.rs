//! The process of a program as its function sees it: until the process is killed.
//!
//! A process is killed at a write to a register, or at an access to configuration space, interrupts or mappings: the
//! function learns neither of that access nor of later ones. The access unwinds with [`Killed`], so that the values of
//! the process are dropped. Reads of registers are not counted. [`Process::end`] does what the kernel does when the
//! last descriptor of the function is closed.

use std::ops::RangeInclusive;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use driver::{Clock, Device, Interrupt, Notices, SharedMemory};
use hw_sim::SimFunction;

/// The value with which a killed process unwinds.
pub struct Killed;

#[derive(Default)]
struct State {
    /// Number of accesses before the one at which the process is killed. `None` if it is not to be killed.
    left: Option<u32>,
    is_killed: bool,
    /// I/O addresses and lengths of what is mapped.
    mapped: Vec<(u64, usize)>,
}

/// A function, and the process that has it.
pub struct Process {
    function: Arc<SimFunction>,
    state: Mutex<State>,
}

impl Process {
    pub fn new(function: Arc<SimFunction>) -> Self {
        Self {
            function,
            state: Mutex::default(),
        }
    }

    /// Runs a part of a program. If `kill_after` is a number, the process is killed after so many accesses. `None`: it
    /// was killed.
    pub fn run<R>(&self, kill_after: Option<u32>, part: impl FnOnce() -> R) -> Option<R> {
        self.state().left = kill_after;
        let ended = catch_unwind(AssertUnwindSafe(part));
        self.state().left = None;
        match ended {
            Ok(result) => Some(result),
            Err(killed) if killed.is::<Killed>() => None,
            Err(panic) => resume_unwind(panic),
        }
    }

    /// Ends the process: the function is reset, and has no interrupts and no memory any more.
    pub fn end(&self) {
        let State { mapped, .. } = std::mem::take(&mut *self.state());
        self.function.set_interrupts(Vec::new());
        self.function.set_notices(Notices::default());
        Device::reset(&*self.function);
        for (iova, bytes) in mapped {
            self.function.dma_unmap(iova, bytes).expect("it is mapped");
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts an access. Returns whether it reaches the function.
    fn reaches(&self) -> bool {
        let mut state = self.state();
        match &mut state.left {
            Some(0) => {
                (state.left, state.is_killed) = (None, true);
                drop(state);
                resume_unwind(Box::new(Killed));
            }
            Some(left) => *left -= 1,
            None => {}
        }
        !state.is_killed
    }
}

impl Device for Process {
    fn name(&self) -> &str {
        self.function.name()
    }

    fn config_read(&self, offset: u16, out: &mut [u8]) {
        if self.reaches() {
            self.function.config_read(offset, out);
        } else {
            out.fill(0xff);
        }
    }

    fn config_write(&self, offset: u16, data: &[u8]) {
        if self.reaches() {
            self.function.config_write(offset, data);
        }
    }

    fn bar(&self, index: u8) -> Option<SharedMemory> {
        self.function.bar(index)
    }

    fn bar_written(&self, index: u8, offset: u64, bytes: &[u8]) {
        if self.reaches() {
            self.function.bar_written(index, offset, bytes);
        }
    }

    fn reset(&self) {
        if self.reaches() {
            Device::reset(&*self.function);
        }
    }

    fn interrupt_count(&self) -> usize {
        self.function.interrupt_count()
    }

    fn set_interrupts(&self, vectors: Vec<Interrupt>) {
        if self.reaches() {
            self.function.set_interrupts(vectors);
        }
    }

    fn dma_map(
        &self,
        iova: u64,
        memory: SharedMemory,
        offset: usize,
        bytes: usize,
    ) -> Result<(), String> {
        if !self.reaches() {
            return Err("the process was killed".to_owned());
        }
        self.function.dma_map(iova, memory, offset, bytes)?;
        self.state().mapped.push((iova, bytes));
        Ok(())
    }

    fn dma_unmap(&self, iova: u64, bytes: usize) -> Result<(), String> {
        if !self.reaches() {
            return Ok(());
        }
        self.function.dma_unmap(iova, bytes)?;
        self.state().mapped.retain(|it| *it != (iova, bytes));
        Ok(())
    }

    fn iova_ranges(&self) -> Vec<RangeInclusive<u64>> {
        self.function.iova_ranges()
    }

    fn set_notices(&self, notices: Notices) {
        if self.reaches() {
            self.function.set_notices(notices);
        }
    }

    fn can_be_parked(&self) -> bool {
        true
    }

    fn clock(&self) -> Arc<dyn Clock> {
        self.function.clock()
    }
}
