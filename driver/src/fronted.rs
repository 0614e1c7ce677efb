//! A device with a front: code that intercepts some of its calls.
//!
//! The same device model may be connected to a wire, served to other processes, or observed by a test. Each of these
//! adds work to some of the driver's calls. [`Fronted`] is a [`Device`] that passes every call on to the model, except
//! five that a [`Front`] may intercept: register writes, configuration writes, resets, DMA mappings, and the clock.
//!
//! A call that a front does not override goes straight to the model. An override decides itself when to pass the call
//! on: before or after its own work, or not at all.

use std::ops::RangeInclusive;
use std::sync::Arc;

use crate::clock::Clock;
use crate::device::{Device, MessageMemory};
use crate::interrupt::{Interrupt, Notices};
use crate::memory::SharedMemory;

/// Code that intercepts some calls to a device.
pub trait Front<D: Device>: Send + Sync {
    /// Handles a register write of the driver ([`Device::bar_written`]).
    fn bar_written(&self, device: &D, index: u8, offset: u64, bytes: &[u8]) {
        device.bar_written(index, offset, bytes);
    }

    /// Handles a configuration space write of the driver ([`Device::config_write`]).
    fn config_write(&self, device: &D, offset: u16, data: &[u8]) {
        device.config_write(offset, data);
    }

    /// Handles a reset of the function by the driver ([`Device::reset`]).
    fn reset(&self, device: &D) {
        device.reset();
    }

    /// Handles a DMA mapping of the driver ([`Device::dma_map`]).
    ///
    /// # Errors
    /// The reason of a refusal.
    fn dma_map(
        &self,
        device: &D,
        iova: u64,
        memory: SharedMemory,
        offset: usize,
        bytes: usize,
    ) -> Result<(), String> {
        device.dma_map(iova, memory, offset, bytes)
    }

    /// Returns the clock that the driver sees ([`Device::clock`]).
    fn clock(&self, device: &D) -> Arc<dyn Clock> {
        device.clock()
    }
}

/// A device and the front that intercepts its calls.
pub struct Fronted<D, F> {
    /// The device.
    pub device: Arc<D>,
    /// The front.
    pub front: F,
}

impl<D: Device, F: Front<D>> Device for Fronted<D, F> {
    fn name(&self) -> &str {
        self.device.name()
    }

    fn config_read(&self, offset: u16, out: &mut [u8]) {
        self.device.config_read(offset, out);
    }

    fn config_write(&self, offset: u16, data: &[u8]) {
        self.front.config_write(&self.device, offset, data);
    }

    fn bar(&self, index: u8) -> Option<SharedMemory> {
        self.device.bar(index)
    }

    fn bar_written(&self, index: u8, offset: u64, bytes: &[u8]) {
        self.front.bar_written(&self.device, index, offset, bytes);
    }

    fn reset(&self) {
        self.front.reset(&self.device);
    }

    fn interrupt_count(&self) -> usize {
        self.device.interrupt_count()
    }

    fn set_interrupts(&self, vectors: Vec<Interrupt>) {
        self.device.set_interrupts(vectors);
    }

    fn dma_map(
        &self,
        iova: u64,
        memory: SharedMemory,
        offset: usize,
        bytes: usize,
    ) -> Result<(), String> {
        self.front
            .dma_map(&self.device, iova, memory, offset, bytes)
    }

    fn dma_map_read_only(
        &self,
        iova: u64,
        memory: SharedMemory,
        offset: usize,
        bytes: usize,
    ) -> Result<(), String> {
        self.device.dma_map_read_only(iova, memory, offset, bytes)
    }

    fn dma_map_by_message(
        &self,
        iova: u64,
        memory: Arc<dyn MessageMemory>,
        bytes: usize,
        writable: bool,
    ) -> Result<(), String> {
        self.device
            .dma_map_by_message(iova, memory, bytes, writable)
    }

    fn dma_unmap(&self, iova: u64, bytes: usize) -> Result<(), String> {
        self.device.dma_unmap(iova, bytes)
    }

    fn iova_ranges(&self) -> Vec<RangeInclusive<u64>> {
        self.device.iova_ranges()
    }

    fn set_notices(&self, notices: Notices) {
        self.device.set_notices(notices);
    }

    fn clock(&self) -> Arc<dyn Clock> {
        self.front.clock(&self.device)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;
    use crate::clock::Instant;
    use crate::double::{BAR_BYTES, Double};
    use crate::function::Function;
    use crate::real_clock::RealClock;

    /// A front that overrides nothing.
    struct NoOverride;
    impl Front<Double> for NoOverride {}

    /// A front that records writes and resets, does not pass on BAR writes, and returns a clock of its own.
    #[derive(Default)]
    struct Guard(Mutex<Vec<String>>);

    impl Guard {
        fn note(&self, text: String) {
            self.0.lock().unwrap().push(text);
        }
    }

    struct Stopped;
    impl Clock for Stopped {
        fn now(&self) -> Instant {
            Instant(7)
        }
        fn wait(&self, _: &[Interrupt], _: Instant) -> bool {
            false
        }
    }

    impl Front<Double> for Guard {
        fn bar_written(&self, device: &Double, index: u8, offset: u64, bytes: &[u8]) {
            self.note(format!("BAR {index}+{offset:#x}: {bytes:?}"));
            assert_eq!(device.writes(), [], "not told yet");
        }
        fn config_write(&self, device: &Double, offset: u16, data: &[u8]) {
            self.note(format!("config+{offset:#x}"));
            device.config_write(offset, data);
        }
        fn reset(&self, device: &Double) {
            self.note(format!("reset {}", device.resets()));
            device.reset();
        }
        fn clock(&self, _: &Double) -> Arc<dyn Clock> {
            Arc::new(Stopped)
        }
    }

    fn fronted<F: Front<Double>>(front: F) -> (Double, Arc<Fronted<Double, F>>) {
        let double = Double::new();
        let device = Arc::new(double.clone());
        (double, Arc::new(Fronted { device, front }))
    }

    #[test]
    fn what_a_front_leaves_alone_reaches_the_device_and_comes_back() {
        let (double, device) = fronted(NoOverride);
        let function = Function::in_process(Arc::clone(&device) as Arc<dyn Device>).unwrap();
        assert_eq!(function.name(), "double");
        assert!(device.bar(0).is_some() && device.bar(1).is_none());
        assert_eq!(device.bar(0).unwrap().len(), BAR_BYTES);
        device.config_write(4, &[6, 0]);
        let mut config = [0; 2];
        device.config_read(4, &mut config);
        assert_eq!(config, [6, 0]);
        device.bar_written(0, 8, &[0; 4]);
        assert_eq!(double.writes(), [(0, 8, vec![0; 4])]);
        device.reset();
        assert_eq!(double.resets(), 1);
        assert_eq!(device.interrupt_count(), double.interrupt_count());
        device.set_interrupts(vec![Interrupt::new().unwrap()]);
        double.signal(0);
        assert_eq!(double.times_interrupts_set(), 1);
        assert_eq!(device.iova_ranges(), double.iova_ranges());
        let memory = SharedMemory::anonymous(0x2000).unwrap();
        device.dma_map(0x1000, memory.clone(), 0, 0x1000).unwrap();
        device
            .dma_map_read_only(0x8000, memory, 0x1000, 0x1000)
            .unwrap();
        assert_eq!(double.mappings(), [(0x1000, 0x1000), (0x8000, 0x1000)]);
        assert_eq!(double.read_only(), [0x8000]);
        device.dma_unmap(0x1000, 0x1000).unwrap();
        device.dma_unmap(0x1000, 0x1000).unwrap_err();
        assert_eq!(double.mappings(), [(0x8000, 0x1000)]);
        assert!(device.clock().now() <= RealClock::new().now());
    }

    #[test]
    fn a_front_gets_calls_first_and_decides() {
        let (double, device) = fronted(Guard::default());
        device.bar_written(0, 0x10, &[1, 2, 3, 4]);
        device.config_write(4, &[6, 0]);
        device.reset();
        let heard = device.front.0.lock().unwrap().clone();
        assert_eq!(heard, ["BAR 0+0x10: [1, 2, 3, 4]", "config+0x4", "reset 0"]);
        assert_eq!((double.writes(), double.resets()), (vec![], 1));
        assert_eq!(device.clock().now(), Instant(7));
    }
}
