//! The values, and the messages about them.
//!
//! Each value is in a slot: a checksum, then its bytes. Peers read a slot at any time. If they read during a write,
//! the checksum does not match the bytes.

use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result};
use udapl::{DmaMemory, Ia};

/// Number of keys: 0 to 63.
pub const KEYS: u32 = 64;
pub const VALUE: usize = 56;
pub const SLOT: usize = 8 + VALUE;
/// Size of a message in bytes: operation, key and value. The value of a GET request is zero.
pub const MESSAGE: usize = 8 + VALUE;

pub type Value = [u8; VALUE];

/// All values, in memory that every instance registers. Clones share the memory.
#[derive(Clone)]
pub struct Values {
    pub memory: DmaMemory,
    /// Lock that a thread holds while it writes a value.
    writing: Arc<Mutex<()>>,
}

impl Values {
    pub fn new(ia: &Ia) -> Result<Self> {
        let all = Self {
            memory: udapl::alloc(ia, KEYS as usize * SLOT)?,
            writing: Arc::default(),
        };
        for key in 0..KEYS {
            all.put(key, &[0; VALUE])?;
        }
        Ok(all)
    }

    pub fn put(&self, key: u32, value: &Value) -> Result<()> {
        let _one = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        let mut slot = [0; SLOT];
        slot[..8].copy_from_slice(&checksum(value).to_be_bytes());
        slot[8..].copy_from_slice(value);
        Ok(self.memory.write_from(key as usize * SLOT, &slot)?)
    }

    pub fn get(&self, key: u32) -> Result<Value> {
        let _nobody_writes = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        let slot = self.memory.read(key as usize * SLOT, SLOT)?;
        whole(&slot).context("a value that nobody writes")
    }
}

/// Returns the value in a slot; `None` if it was read during a write.
pub fn whole(slot: &[u8]) -> Option<Value> {
    let (sum, value) = slot.split_first_chunk()?;
    let value = value.try_into().ok()?;
    (checksum(&value) == u64::from_be_bytes(*sum)).then_some(value)
}

/// Returns the FNV-1a hash of 64 bits.
fn checksum(value: &Value) -> u64 {
    value.iter().fold(0xcbf2_9ce4_8422_2325, |sum: u64, byte| {
        (sum ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    Get,
    Put,
}

/// A request, or its response.
#[derive(Clone, Copy, Debug)]
pub struct Message {
    pub what: What,
    pub key: u32,
    pub value: Value,
}

impl Message {
    pub fn to_bytes(self) -> [u8; MESSAGE] {
        let mut bytes = [0; MESSAGE];
        bytes[0] = u8::from(self.what == What::Put);
        bytes[4..8].copy_from_slice(&self.key.to_be_bytes());
        bytes[8..].copy_from_slice(&self.value);
        bytes
    }

    pub fn parse(bytes: &[u8]) -> Result<Self> {
        let bytes: &[u8; MESSAGE] = bytes.try_into().context("the length of a message")?;
        let [what, _, _, _, a, b, c, d, value @ ..] = bytes;
        let key = u32::from_be_bytes([*a, *b, *c, *d]);
        Ok(Self {
            what: match what {
                0 => What::Get,
                1 => What::Put,
                other => anyhow::bail!("request {other}: there is 0, GET, and 1, PUT"),
            },
            key: Some(key)
                .filter(|key| *key < KEYS)
                .context("there is no such key")?,
            value: *value,
        })
    }
}
