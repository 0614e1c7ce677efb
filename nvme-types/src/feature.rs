//! Identifiers of features (Base specification, "Feature Identifiers"; NVM Command Set specification, "Features").

/// Arbitration.
pub const ARBITRATION: u8 = 0x01;
/// Power Management.
pub const POWER: u8 = 0x02;
/// Temperature Threshold.
pub const TEMPERATURE: u8 = 0x04;
/// Error Recovery, of the NVM command set.
pub const ERROR_RECOVERY: u8 = 0x05;
/// Volatile Write Cache.
pub const WRITE_CACHE: u8 = 0x06;
/// Number of Queues.
pub const NUMBER_OF_QUEUES: u8 = 0x07;
/// Write Atomicity Normal, of the NVM command set.
pub const ATOMICITY: u8 = 0x0a;
/// Asynchronous Event Configuration.
pub const EVENTS: u8 = 0x0b;
/// Keep Alive Timer.
pub const KEEP_ALIVE: u8 = 0x0f;
/// Host Identifier.
pub const HOST_ID: u8 = 0x81;
/// Reservation Notification Mask.
pub const RESERVATION_MASK: u8 = 0x82;
/// Reservation Persistence.
pub const RESERVATION_PERSISTENCE: u8 = 0x83;
/// Namespace Write Protection Config.
pub const WRITE_PROTECTION: u8 = 0x84;
