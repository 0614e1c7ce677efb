//! BARs and the register blocks in them.
//!
//! A register block is a `#[repr(C)]` struct of cells and reserved gaps, with the layout in the device's manual.
//! [`Bar::block`] checks once that the block fits the BAR and is aligned. Afterwards each read or write names a field,
//! and is exactly one bus transaction of that field's width.
//!
//! ```
//! # #![forbid(unsafe_code)]
//! use core::mem::offset_of;
//! use driver::{Be32, Ro, Rw};
//! use zerocopy::FromBytes;
//!
//! /// The first bytes of a device's BAR 0.
//! #[derive(FromBytes)]
//! #[repr(C)]
//! pub struct InitSegment {
//!     pub fw_rev: Ro<Be32>,
//!     rsvd_04: [u32; 3],
//!     pub cmd_dbell: Rw<Be32>,
//! }
//! // Offsets are the manual's, and the device's side computes them from the same struct.
//! const _: () = assert!(offset_of!(InitSegment, cmd_dbell) == 0x10);
//!
//! fn ring(init: &driver::Block<InitSegment>) -> u32 {
//!     init.write(|r| &r.cmd_dbell, Be32::new(1));
//!     init.read(|r| &r.fw_rev).get()
//! }
//! ```
//!
//! The compiler refuses an access that the type of a cell forbids:
//!
//! ```compile_fail,E0277
//! # use driver::{Be32, Block, Ro};
//! # struct Registers { fw_rev: Ro<Be32> }
//! fn wrong(block: &Block<Registers>) {
//!     block.write(|r| &r.fw_rev, Be32::new(1));
//! }
//! ```
//!
//! A block needs only `#[derive(FromBytes)]`, so its declaration needs no unsafe code. This is sound because no
//! reference to a whole block in device memory ever exists. The closure that names the field runs on a zeroed object of
//! the same type in ordinary memory (the *shape*). The distance of the returned cell from the start of the shape is the
//! register's offset, and the access goes to the BAR at that offset. After inlining, the distance is a constant and the
//! shape is not accessed. Reserved gaps may therefore be plain words. A BAR that is reached by messages instead of a
//! mapping gets its offsets in the same way.
//!
//! No reference to a single register in device memory exists either. A reference would let the compiler read the
//! register at any time, and a read may have an effect. Two functions access the BAR, `load` and `store`. Each takes
//! a raw pointer and makes one volatile access. The types of crate volatile-register mark whether the pointer's target
//! is a readable or a writable register. Their methods take references and are not used.
//!
//! A write to an in-process device is the same volatile store into the device's BAR memory. It is followed by a call
//! that passes the written bytes to the device: once per write, in program order. For a device in another process that
//! call sends a message, and a read is also a message.

// UNSAFETY: registers live at raw addresses in a mapped BAR.
#![expect(unsafe_code, reason = "register access in a mapped BAR")]

use std::ptr::NonNull;
use std::sync::Arc;

use volatile_register::{RO, WO};
use zerocopy::{FromBytes, FromZeros, IntoBytes};

use crate::device::Device;
use crate::driving_lock::DrivingLock;
use crate::error::BarError;
use crate::memory::SharedMemory;
use crate::register::{Readable, RegisterValue, Writable};
use crate::vfio::Window;
use crate::vfio_user::Client;

/// A struct of cells and reserved gaps. Every type that is `FromBytes`, `Send` and `Sync` implements this trait.
pub trait RegisterBlock: FromBytes + Send + Sync {}
impl<T: FromBytes + Send + Sync> RegisterBlock for T {}

/// Receiver of register writes. A write also goes to the BAR's memory.
#[derive(Clone)]
pub(crate) enum Listener {
    /// A device model in this process.
    Device(Arc<dyn Device>),
    /// A vfio-user server. It also answers reads: the local memory holds only a copy of the writes.
    Remote(Arc<Client>),
    /// A VFIO region, part of which cannot be mapped. That part is accessed by system calls; the memory is its shadow.
    Window(Arc<Window>, SharedMemory),
}

/// A mapped BAR. Clones share the mapping.
#[derive(Clone)]
pub struct Bar {
    index: u8,
    memory: SharedMemory,
    listener: Option<Listener>,
    /// The function's lock. The function counts the references: while one exists in a BAR, the function is not parked,
    /// and no other process resumes it.
    _lock: Arc<Option<DrivingLock>>,
}

impl Bar {
    /// Makes a BAR. All its clones and blocks have a clone of `lock`.
    pub(crate) const fn new(
        index: u8,
        memory: SharedMemory,
        listener: Option<Listener>,
        lock: Arc<Option<DrivingLock>>,
    ) -> Self {
        Self {
            index,
            memory,
            listener,
            _lock: lock,
        }
    }

    /// Returns the length of the BAR, in bytes.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "a BAR is never empty")]
    pub fn len(&self) -> u64 {
        // CAST: usize has at most 64 bits on every target Rust has.
        self.memory.len() as u64
    }

    /// Returns the register block at `offset`, after checking that it is inside the BAR and aligned.
    ///
    /// # Errors
    /// [`BarError::Bounds`]: the block ends beyond the BAR. [`BarError::Alignment`]: `offset` is not aligned for `T`.
    pub fn block<T: RegisterBlock>(&self, offset: u64) -> Result<Block<T>, BarError> {
        let bytes = size_of::<T>();
        let at = usize::try_from(offset)
            .ok()
            .filter(|&at| self.memory.contains(at, bytes));
        let Some(at) = at else {
            return Err(BarError::Bounds {
                index: self.index,
                offset,
                bytes,
                len: self.len(),
            });
        };
        let (memory, listened) = match &self.listener {
            None => (&self.memory, false),
            Some(Listener::Device(_) | Listener::Remote(_)) => (&self.memory, true),
            // The block is accessed through the mapping only if all of it is mapped, otherwise by system calls on the
            // region.
            Some(Listener::Window(window, _)) if window.region.is_mapped(at, bytes) => {
                (&self.memory, false)
            }
            Some(Listener::Window(_, shadow)) => (shadow, true),
        };
        let base = memory.pointer(at, bytes);
        if !base.cast::<T>().is_aligned() {
            return Err(BarError::Alignment {
                index: self.index,
                offset,
                align: align_of::<T>(),
            });
        }
        Ok(Block {
            base,
            listened,
            remote: listened && !matches!(self.listener, Some(Listener::Device(_))),
            shape: Arc::new(T::new_zeroed()),
            site: Arc::new(Site {
                bar: Self {
                    memory: memory.clone(),
                    ..self.clone()
                },
                offset,
            }),
        })
    }
}

impl std::fmt::Debug for Bar {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Bar({}, {:#x} bytes)", self.index, self.len())
    }
}

/// A register block in a mapped BAR. Clones share it.
///
/// A register is read and written in one access, so the cell a closure returns has to be aligned:
///
/// ```compile_fail,E0080
/// # use driver::{Bar, Be64, Ro};
/// # use zerocopy::FromBytes;
/// #[derive(FromBytes)]
/// #[repr(C)]
/// struct Loose {
///     bytes: [u8; 16],
/// }
///
/// fn misaligned(bar: &Bar) -> Be64 {
///     let block = bar.block::<Loose>(1).unwrap();
///     // error[E0080]: a register is not aligned in its block
///     block.read(|r| Ro::<Be64>::ref_from_bytes(&r.bytes[..8]).unwrap())
/// }
/// # let _keep: fn(&Bar) -> Be64 = misaligned;
/// ```
pub struct Block<T> {
    /// Address of the block in the BAR: aligned for `T`, with `size_of::<T>()` bytes mapped while `site.bar` lives.
    base: NonNull<u8>,
    /// True if writes to this block are also passed to `site.bar.listener`. A write tests only this flag.
    listened: bool,
    /// True if `site.bar.listener` also answers reads, and the memory only shadows the writes. A read tests only this.
    remote: bool,
    /// A zeroed `T` in ordinary memory. The closures that select a register run on it, to find the register's offset.
    shape: Arc<T>,
    site: Arc<Site>,
}

/// Location of a block or a register, for accesses that are passed to the BAR's listener.
struct Site {
    bar: Bar,
    /// Offset of the block or the register in the BAR, in bytes.
    offset: u64,
}

// SAFETY: `base` points into memory outside every Rust allocation. `site.bar` keeps it mapped, and it is only accessed
// volatilely, one register at a time. The other fields are `Send` (`T` is, by the bound of `Bar::block`).
unsafe impl<T: Send + Sync> Send for Block<T> {}
// SAFETY: as above. Two threads that write one register race on the bus; Rust does not count that as a data race.
unsafe impl<T: Send + Sync> Sync for Block<T> {}

impl<T> Clone for Block<T> {
    fn clone(&self) -> Self {
        Self {
            base: self.base,
            listened: self.listened,
            remote: self.remote,
            shape: Arc::clone(&self.shape),
            site: Arc::clone(&self.site),
        }
    }
}

impl<T> std::fmt::Debug for Block<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "Block({:#x} bytes at {:#x} of {:?})",
            size_of::<T>(),
            self.site.offset,
            self.site.bar
        )
    }
}

impl Site {
    /// Passes a write to the BAR's listener. `value` is passed in a machine register, so that a write without a
    /// listener does not have to store it in memory first.
    #[cold]
    #[inline(never)]
    fn notify_listener<V: RegisterValue>(&self, at: usize, value: V) {
        match &self.bar.listener {
            // CAST: usize has at most 64 bits on every target Rust has.
            Some(Listener::Device(device)) => {
                device.bar_written(self.bar.index, self.offset + at as u64, value.as_bytes());
            }
            Some(Listener::Remote(client)) => {
                client.bar_write(self.bar.index, self.offset + at as u64, value.as_bytes());
            }
            Some(Listener::Window(window, _)) => {
                if let Err(error) = window.write(self.offset + at as u64, value.as_bytes()) {
                    tracing::error!("{error}");
                }
            }
            None => {}
        }
    }
}

/// A register of a mapped BAR that is written repeatedly and never read, such as a doorbell. This type takes less
/// than half a cache line.
pub struct Register<V: RegisterValue> {
    /// Address of the register: aligned, and mapped while `site` lives.
    at: NonNull<WO<V>>,
    /// True if writes are passed to the BAR's listener.
    listened: bool,
    site: Arc<Site>,
}

// SAFETY: as for `Block`, to which this register belongs.
unsafe impl<V: RegisterValue + Send> Send for Register<V> {}
// SAFETY: as for `Block`.
unsafe impl<V: RegisterValue + Send + Sync> Sync for Register<V> {}

impl<V: RegisterValue> Register<V> {
    /// Writes the register with one volatile store of its width, and then passes the write to the BAR's listener, if
    /// the BAR has one (a device model, a server process, or an unmapped part of a VFIO region).
    #[inline]
    pub fn write(&self, value: V) {
        // SAFETY: `Block::register` located this register in its block, which is mapped as a whole while `self.site`
        // lives. The cell that named it allows writes.
        unsafe { store(self.at, value) };
        if self.listened {
            self.notify_listener(value);
        }
    }

    /// Passes a write to the BAR's listener ([`Site::notify_listener`]). The arguments fit in two machine registers.
    #[cold]
    #[inline(never)]
    fn notify_listener(&self, value: V) {
        self.site.notify_listener(0, value);
    }
}

impl<V: RegisterValue> std::fmt::Debug for Register<V> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "Register(at {:#x} of {:?})",
            self.site.offset, self.site.bar
        )
    }
}

impl<T> Block<T> {
    /// Reads a register: with one volatile load of its width, or by a request to the listener if it answers reads.
    #[inline]
    pub fn read<C: Readable>(&self, field: impl FnOnce(&T) -> &C) -> C::Value {
        let at = self.locate(field(&self.shape));
        if self.remote {
            let mut value = C::Value::new_zeroed();
            self.ask(at, value.as_mut_bytes());
            return value;
        }
        // SAFETY: `locate` checked that a `C` lies at `at` inside the block. `C` and `RO` have the size and alignment
        // of `C::Value`.
        let register = unsafe { self.pointer::<RO<C::Value>>(at) };
        // SAFETY: `pointer` made the address from `base`, so it is aligned and mapped while `self.site` lives.
        unsafe { load(register) }
    }

    /// Writes a register with one volatile store of its width, and then passes the write to the BAR's listener, if the
    /// BAR has one.
    #[inline]
    pub fn write<C: Writable>(&self, field: impl FnOnce(&T) -> &C, value: C::Value) {
        let at = self.locate(field(&self.shape));
        // SAFETY: as in `read`.
        let register = unsafe { self.pointer::<WO<C::Value>>(at) };
        // SAFETY: as in `read`. `C` allows writes.
        unsafe { store(register, value) };
        if self.listened {
            self.site.notify_listener(at, value);
        }
    }

    /// Returns one of the block's registers, for repeated writes.
    pub fn register<C: Writable>(&self, field: impl FnOnce(&T) -> &C) -> Register<C::Value> {
        let at = self.locate(field(&self.shape));
        Register {
            // SAFETY: as in `read`.
            at: unsafe { self.pointer::<WO<C::Value>>(at) },
            listened: self.listened,
            site: Arc::new(Site {
                bar: self.site.bar.clone(),
                // CAST: usize has at most 64 bits on every target Rust has.
                offset: self.site.offset + at as u64,
            }),
        }
    }

    /// Returns the byte offset of a cell in the block.
    // PANIC: only if the closure returns a cell that is not part of the object that it was given.
    #[inline]
    fn locate<C>(&self, cell: &C) -> usize {
        const {
            assert!(
                align_of::<C>() <= align_of::<T>(),
                "a register is not aligned in its block"
            );
        }
        let at = std::ptr::from_ref(cell)
            .addr()
            .wrapping_sub(Arc::as_ptr(&self.shape).addr());
        assert!(
            at <= size_of::<T>().wrapping_sub(size_of::<C>())
                && size_of::<C>() <= size_of::<T>()
                && at.is_multiple_of(align_of::<C>()),
            "the register named is not in this block"
        );
        at
    }

    /// Returns the address of the register at byte `at` of the mapped block.
    ///
    /// # Safety
    ///
    /// A register of `R`'s size and alignment lies at `at` inside `T`.
    #[inline]
    unsafe fn pointer<R>(&self, at: usize) -> NonNull<R> {
        // SAFETY: `at` is inside the block (the caller's promise), which is mapped as a whole.
        unsafe { self.base.add(at) }.cast()
    }

    /// Reads a register through the listener: by a message to the server process, or by a read of the VFIO region.
    #[cold]
    #[inline(never)]
    fn ask(&self, at: usize, out: &mut [u8]) {
        match &self.site.bar.listener {
            // CAST: usize has at most 64 bits on every target Rust has.
            Some(Listener::Remote(client)) => {
                client.bar_read(self.site.bar.index, self.site.offset + at as u64, out);
            }
            Some(Listener::Window(window, _)) => {
                if let Err(error) = window.read(self.site.offset + at as u64, out) {
                    // The value that a bus returns for an absent device.
                    out.fill(0xff);
                    tracing::error!("{error}");
                }
            }
            Some(Listener::Device(_)) | None => {}
        }
    }
}

/// Reads a register with one volatile load of its width.
///
/// # Safety
///
/// `at` is the aligned address of a register in a mapped BAR.
#[inline(always)]
unsafe fn load<V: RegisterValue>(at: NonNull<RO<V>>) -> V {
    // SAFETY: the address is aligned and mapped (the caller's promise). Every bit pattern is a `V`, by `FromBytes`.
    unsafe { at.cast::<V>().read_volatile() }
}

/// Writes a register with one volatile store of its width.
///
/// A write can make the device access memory, but only memory that is mapped for the device. That is `DmaBuffer`s, to
/// which no Rust reference exists, and memory that a caller lent through `unsafe fn LentMemory::new`.
///
/// # Safety
///
/// `at` is the aligned address of a register in a mapped BAR, and the register may be written.
#[inline(always)]
unsafe fn store<V: RegisterValue>(at: NonNull<WO<V>>, value: V) {
    // SAFETY: the address is aligned and mapped (the caller's promise). No reference to the register exists.
    unsafe { at.cast::<V>().write_volatile(value) };
}

#[cfg(test)]
mod tests {
    use core::mem::offset_of;

    use super::*;
    use crate::double::{BAR_BYTES, Double};
    use crate::register::{Be32, Be64, Ro, Rw, Wo};

    /// One register of each kind and width.
    #[derive(FromBytes)]
    #[repr(C)]
    struct Sample {
        version: Ro<Be32>,
        rsvd_04: [u32; 1],
        doorbell: Wo<Be64>,
        control: Rw<Be32>,
        narrow: Rw<u16>,
        byte: Wo<u8>,
        rsvd_17: u8,
        array: [Rw<Be32>; 4],
    }
    static_assertions::const_assert_eq!(size_of::<Sample>(), 0x28);

    #[test]
    fn every_write_reaches_the_device_once_in_order_with_its_width_and_bytes() {
        let device = Double::new();
        let block = device
            .function()
            .bar(0)
            .unwrap()
            .block::<Sample>(0x100)
            .unwrap();
        block.write(|r| &r.doorbell, Be64::new(0x0102_0304_0506_0708));
        block.write(|r| &r.control, Be32::new(0xa1b2_c3d4));
        block.write(|r| &r.byte, 0x5a);
        block.write(|r| &r.narrow, 0x7777);
        block.write(|r| &r.array[3], Be32::new(9));
        block.clone().write(|r| &r.doorbell, Be64::new(1));
        let expected: Vec<(u8, u64, Vec<u8>)> = vec![
            (0, 0x108, vec![1, 2, 3, 4, 5, 6, 7, 8]),
            (0, 0x110, vec![0xa1, 0xb2, 0xc3, 0xd4]),
            (0, 0x116, vec![0x5a]),
            (0, 0x114, vec![0x77, 0x77]),
            (0, 0x124, vec![0, 0, 0, 9]),
            (0, 0x108, vec![0, 0, 0, 0, 0, 0, 0, 1]),
        ];
        assert_eq!(device.writes(), expected);
    }

    #[test]
    fn a_read_sees_the_device_s_write_and_is_not_passed_to_the_device() {
        let device = Double::new();
        let memory = device.function().bar(0).unwrap();
        let block = memory.block::<Sample>(0).unwrap();
        let bar = device.bar_memory();
        bar.store_be32(offset_of!(Sample, version), 0x1234_5678);
        assert_eq!(block.read(|r| &r.version), Be32::new(0x1234_5678));
        bar.store_be32(offset_of!(Sample, version), 7);
        assert_eq!(block.read(|r| &r.version).get(), 7);
        block.write(|r| &r.control, Be32::new(3));
        assert_eq!(block.read(|r| &r.control).get(), 3);
        assert_eq!(device.writes().len(), 1);
    }

    #[test]
    fn a_block_must_lie_in_its_bar() {
        let bar = Double::new().function().bar(0).unwrap();
        let len = u64::try_from(BAR_BYTES).unwrap();
        assert_eq!(bar.len(), len);
        assert!(bar.block::<Sample>(len - 0x28).is_ok());
        for offset in [len - 0x20, len, u64::MAX - 7] {
            assert_eq!(
                bar.block::<Sample>(offset).unwrap_err(),
                BarError::Bounds {
                    index: 0,
                    offset,
                    bytes: 0x28,
                    len
                }
            );
        }
    }

    #[test]
    fn a_block_must_be_aligned() {
        let bar = Double::new().function().bar(0).unwrap();
        let error = bar.block::<Sample>(0x104).unwrap_err();
        assert_eq!(
            error,
            BarError::Alignment {
                index: 0,
                offset: 0x104,
                align: 8
            }
        );
    }

    #[test]
    #[should_panic(expected = "not in this block")]
    fn a_cell_of_another_object_is_refused() {
        let bar = Double::new().function().bar(0).unwrap();
        let block = bar.block::<Sample>(0).unwrap();
        let elsewhere: &'static Sample = Box::leak(Box::new(zerocopy::FromZeros::new_zeroed()));
        block.read(|_| &elsewhere.version);
    }
}
