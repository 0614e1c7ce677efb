//! Values of features that a controller stores.

use std::collections::BTreeMap;

use super::refusal::ModelResumeError;
use crate::nvme::Status;
use crate::nvme::feature as id;

/// Features whose value is stored until the controller is reset. Only the temperature threshold has an effect: a
/// warning in the health log page. The target fulfils the other features in any case: commands are executed in order of
/// arrival (arbitration); there is one power state; a disk's errors are reported at once (error recovery); blocks are
/// written as a whole (atomicity).
#[derive(Debug, Default)]
pub(super) struct Kept(BTreeMap<(u8, u32), u32>);

/// Mask of bits 21:16 of the temperature threshold feature: the threshold type (over or under), and the sensor.
pub(super) const SENSOR_MASK: u32 = 0x3f << 16;
/// Sensor value that selects all sensors.
const ALL_SENSORS: u32 = 0xf << 16;

impl Kept {
    /// Returns the default value of a feature.
    pub(super) const fn usual(feature: u8) -> u32 {
        match feature {
            // Arbitration burst 7 means no limit.
            id::ARBITRATION => 7,
            id::TEMPERATURE => 0xffff,
            _ => 0,
        }
    }

    /// Returns the value to store; `None` if the value is invalid.
    const fn checked(feature: u8, value: u32) -> Option<u32> {
        match feature {
            // Bits 7:3 are reserved.
            id::ARBITRATION => Some(value & !0xf8),
            // Bits 4:0 are the power state; bits 7:5 are a hint.
            id::POWER if value & 0x1f == 0 => Some(value & 0xe0),
            id::TEMPERATURE if matches!(value & SENSOR_MASK, 0 | ALL_SENSORS) => {
                Some(value & 0xffff)
            }
            // Bit 16 requests errors for deallocated blocks, which are not supported (NSFEAT).
            id::ERROR_RECOVERY if value & 1 << 16 == 0 => Some(value & 0xffff),
            id::ATOMICITY => Some(value & 1),
            _ => None,
        }
    }

    pub(super) fn set(&mut self, feature: u8, nsid: u32, value: u32) -> Result<(), Status> {
        let value = Self::checked(feature, value).ok_or(Status::INVALID_FIELD.dnr())?;
        self.0.insert((feature, nsid), value);
        Ok(())
    }

    /// Writes the values out: feature, namespace or 0, value.
    pub(super) fn park(&self) -> Vec<(u8, u32, u32)> {
        let all = self.0.iter();
        all.map(|(&(feature, nsid), &value)| (feature, nsid, value))
            .collect()
    }

    /// Goes on with parked values. `of` is the controller, for errors. `namespaces` is the highest number of one.
    pub(super) fn resume(
        of: &str,
        parked: &[(u8, u32, u32)],
        namespaces: u32,
    ) -> Result<Self, ModelResumeError> {
        let mut all = BTreeMap::new();
        for &(feature, nsid, value) in parked {
            let has_namespace = match feature {
                id::ERROR_RECOVERY => (1..=namespaces).contains(&nsid),
                _ => nsid == 0,
            };
            let is_value = Self::checked(feature, value) == Some(value);
            let is_new = all.insert((feature, nsid), value).is_none();
            let what = format!(
                "feature {feature:#x} of namespace {nsid} is {value:#x}, which is impossible, or twice"
            );
            ModelResumeError::check(has_namespace && is_value && is_new, of, what)?;
        }
        Ok(Self(all))
    }

    pub(super) fn get(&self, feature: u8, nsid: u32) -> u32 {
        let kept = self.0.get(&(feature, nsid)).copied();
        kept.unwrap_or(Self::usual(feature))
    }

    /// Returns whether a temperature has reached the threshold at which the host wants a warning.
    pub(super) fn exceeds_threshold(&self, kelvin: u16) -> bool {
        self.get(id::TEMPERATURE, 0) <= kelvin.into()
    }

    /// Restores the default values.
    pub(super) fn forget(&mut self) {
        self.0.clear();
    }
}
