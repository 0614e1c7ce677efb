//! Conversion of a document to a [`Profile`].
//!
//! Every statement must have a meaning here. An unknown section or field is an error, so that a misspelt name is not
//! ignored. A page that the file contains as a whole is returned unchanged; recorded statements about its fields must
//! agree with it.

use super::document::{
    Document, Evidence, PAGE_BYTES, ProfileError, RawPage, Stated, VIRTUAL, virtual_place, wrong,
};
use super::{Most, Page, PortType, Profile, Rest, VirtualFacts, simulated};
use crate::pages::PageProfile;
use mlx_prm::{
    AtomicCaps, CapType, CmdHcaCap, CmdHcaCap2, EthOffloadCaps, Field, FlowTableNicCap, Layout,
    OdpCaps, RoceCap, Shape,
};

/// Maximum number of pages that the firmware requests at a time.
const MOST_PAGES: u32 = 1 << 20;

/// Names and values of the fields that state the size of the simulator's command queue.
const QUEUE: [(&str, u32); 2] = [
    ("log_cmdq_size", crate::init_segment::LOG_CMDQ_SIZE),
    ("log_cmdq_stride", crate::init_segment::LOG_CMDQ_STRIDE),
];

impl Profile {
    /// Returns the device that a document with all its bases describes.
    pub(super) fn build(document: &Document) -> Result<Self, ProfileError> {
        let mut profile = Self {
            name: document.name.clone(),
            generation: document.name.clone(),
            ..Self::blank()
        };
        let mut seen = Vec::new();
        let mut virtual_functions = VirtualFacts::default();
        for ((section, field), statement) in &document.statements {
            let place = format!("{section}.{field}");
            let known = match (&statement.value, section.as_str()) {
                (Stated::Word(text), _) => profile.word(section, field, text)?,
                (Stated::Number { max, current }, VIRTUAL) => virtual_functions
                    .number(field, *max, *current)
                    .map_err(|problem| wrong(&place, problem))?,
                (Stated::Number { max, .. }, "pci" | "port" | "segment" | "firmware_pages") => {
                    profile
                        .number(section, field, *max)
                        .map_err(|problem| wrong(&place, problem))?
                }
                // Statements about capability pages are used below.
                (Stated::Number { .. }, _) => capability_type(section).is_some(),
            };
            if !known {
                return Err(wrong(place, "is nothing of a profile"));
            }
            seen.push(place);
        }
        for needed in [
            "pci.device_id",
            "pci.bar_bytes",
            "pci.msix_vectors",
            "firmware.version",
        ] {
            if !seen.iter().any(|place| place == needed) {
                return Err(wrong(needed, "is missing"));
            }
        }
        let named = seen.iter().any(|place| place == "vf.device_id");
        profile.virtual_functions = (named && !document.is_virtual).then_some(virtual_functions);
        profile.general = page(document, "general")?;
        profile.general_2 = page(document, "general_2")?;
        profile.atomic = page(document, "atomic")?;
        profile.roce = page(document, "roce")?;
        profile.odp = page(document, "odp")?;
        profile.eth_offloads = page(document, "ethernet_offloads")?;
        profile.flow_table = page(document, "flow_table")?;
        profile.other_pages = document
            .pages
            .iter()
            .filter(|(kind, _)| section_of(CapType(**kind)).is_none())
            .map(|(kind, page)| (*kind, page.clone()))
            .collect();
        profile.registers.clone_from(&document.registers);
        Ok(profile)
    }

    fn word(&mut self, section: &str, field: &str, text: &str) -> Result<bool, ProfileError> {
        let place = || format!("{section}.{field}");
        match (section, field) {
            ("firmware", "version") => {
                let parts: Option<Vec<u16>> =
                    text.split('.').map(|part| part.parse().ok()).collect();
                let Some(&[major, minor, sub]) = parts.as_deref() else {
                    return Err(wrong(
                        place(),
                        format!("{text:?} is not a version like 16.35.1012"),
                    ));
                };
                self.firmware = (major, minor, sub);
            }
            ("firmware", "psid") if text.len() > 16 => {
                return Err(wrong(
                    place(),
                    format!("{text:?} has more than 16 characters"),
                ));
            }
            ("firmware", "psid") => text.clone_into(&mut self.psid),
            ("port", "type") => {
                self.port_type = match text {
                    "ethernet" => PortType::Ethernet,
                    "infiniband" => PortType::InfiniBand,
                    _ => {
                        return Err(wrong(
                            place(),
                            format!("{text:?} is neither ethernet nor infiniband"),
                        ));
                    }
                }
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Sets a field of the profile. Returns false if there is no field of this name.
    fn number(&mut self, section: &str, field: &str, value: u64) -> Result<bool, String> {
        match (section, field) {
            ("pci", "vendor_id") => self.vendor_id = fits(value)?,
            ("pci", "device_id") => self.device_id = fits(value)?,
            ("pci", "subsystem_id") => self.subsystem_id = fits(value)?,
            ("pci", "revision") => self.revision = fits(value)?,
            ("pci", "subclass") => self.subclass = fits(value)?,
            ("pci", "bar_bytes") => self.bar_bytes = bar(value)?,
            ("pci", "msix_vectors") => self.msix_vectors = vectors(value)?,
            ("port", "max_mtu") => self.max_mtu = fits(value)?,
            ("segment", "issi") => self.issi = fits(value)?,
            ("firmware_pages", _) => return self.pages.number(field, value),
            ("segment", _) => {
                let Some((_, ours)) = QUEUE.iter().find(|(name, _)| *name == field) else {
                    return Ok(false);
                };
                if value != u64::from(*ours) {
                    return Err(format!(
                        "is {value}; the simulator's command queue has {ours}"
                    ));
                }
            }
            _ => return Ok(false),
        }
        Ok(true)
    }
}

impl VirtualFacts {
    /// Sets a field of the virtual functions. Returns false if there is no field of this name.
    fn number(&mut self, field: &str, max: u64, current: u64) -> Result<bool, String> {
        match virtual_place(field) {
            ("pci", "device_id") => self.device_id = fits(max)?,
            ("pci", "bar_bytes") => self.bar_bytes = bar(max)?,
            ("pci", "msix_vectors") => self.msix_vectors = vectors(max)?,
            ("firmware_pages", name) => return self.pages.number(name, max),
            (section, name) => {
                if fields(section)
                    .and_then(|fields| find(fields, name))
                    .is_none()
                {
                    return Ok(false);
                }
                let most = Most {
                    section: section.to_owned(),
                    field: name.to_owned(),
                    max,
                    current,
                };
                can_be_lowered(&most)?;
                self.capabilities.push(most);
            }
        }
        Ok(true)
    }
}

impl PageProfile {
    /// Sets a number of pages. Returns false if there is no field of this name.
    fn number(&mut self, field: &str, value: u64) -> Result<bool, String> {
        match field {
            "boot" => self.boot = pages(value)?,
            "init" => self.init = pages(value)?,
            "regular" => self.regular = pages(value)?,
            "runtime" => self.runtime = pages(value)?,
            _ => return Ok(false),
        }
        Ok(true)
    }
}

impl Profile {
    /// Lowers a capability to its upper limit, if it is higher.
    pub(super) fn lower(&mut self, most: &Most) {
        match most.section.as_str() {
            "general" => lower(&mut self.general, most),
            "ethernet_offloads" => lower(&mut self.eth_offloads, most),
            "odp" => lower(&mut self.odp, most),
            "atomic" => lower(&mut self.atomic, most),
            "roce" => lower(&mut self.roce, most),
            "flow_table" => lower(&mut self.flow_table, most),
            "general_2" => lower(&mut self.general_2, most),
            // PANIC: `can_be_lowered` accepts only sections that have fields.
            other => unreachable!("{other} is no page"),
        }
    }
}

/// Checks that a limit names an existing capability, and that its values fit the field.
pub(super) fn can_be_lowered(most: &Most) -> Result<(), String> {
    let found = fields(&most.section).and_then(|fields| find(fields, &most.field));
    let (base, field) = found.ok_or("is nothing of a profile")?;
    let (max, current) = (most.max, most.current);
    let mut room = [0; PAGE_BYTES];
    if !field.store(&mut room[base..], max) || !field.store(&mut room[base..], current) {
        return Err(format!("{max:#x} or {current:#x} does not fit"));
    }
    Ok(())
}

fn lower<T: Layout>(page: &mut Page<T>, most: &Most) {
    // PANIC: `can_be_lowered` has checked that the field exists and that the value fits.
    let (base, field) = find(T::FIELDS, &most.field).expect("a field");
    for (half, most) in [(&mut page.max, most.max), (&mut page.current, most.current)] {
        let bytes = &mut half.as_mut_bytes()[base..];
        if field.value(bytes).is_some_and(|value| value > most) {
            assert!(field.store(bytes, most), "{most:#x} fits");
        }
    }
}

fn fits<T: TryFrom<u64>>(value: u64) -> Result<T, String> {
    T::try_from(value).map_err(|_| format!("{value:#x} does not fit"))
}

/// Checks and returns the length of BAR 0 in bytes. The minimum holds the segment and a few doorbell pages, and the
/// maximum can always be mapped.
pub(super) fn bar(value: u64) -> Result<usize, String> {
    match usize::try_from(value) {
        Ok(bytes) if bytes.is_power_of_two() && (1 << 16..=1 << 28).contains(&bytes) => Ok(bytes),
        _ => Err(format!(
            "{value:#x} is not a power of two from 64 KiB to 256 MiB"
        )),
    }
}

pub(super) fn vectors(value: u64) -> Result<u16, String> {
    match u16::try_from(value) {
        Ok(count @ 1..=2048) => Ok(count),
        _ => Err(format!("{value} is not 1 to 2048")),
    }
}

/// Checks and returns a number of pages, at most 4 GiB in total.
pub(super) fn pages(value: u64) -> Result<u32, String> {
    match u32::try_from(value) {
        Ok(count @ 0..=MOST_PAGES) => Ok(count),
        _ => Err(format!("{value} is more than {MOST_PAGES} pages")),
    }
}

/// Returns the type of the page that a section describes.
pub(super) fn capability_type(section: &str) -> Option<CapType> {
    SECTIONS
        .iter()
        .find(|(name, ..)| *name == section)
        .map(|(_, kind, _)| *kind)
}

/// Returns the fields of the page that a section describes.
fn fields(section: &str) -> Option<&'static [Field]> {
    SECTIONS
        .iter()
        .find(|(name, ..)| *name == section)
        .map(|(.., fields)| *fields)
}

/// Returns whether a section describes a capability page.
#[cfg(test)]
pub(super) fn is_page(section: &str) -> bool {
    capability_type(section).is_some()
}

fn section_of(kind: CapType) -> Option<&'static str> {
    SECTIONS
        .iter()
        .find(|(_, found, _)| *found == kind)
        .map(|(name, ..)| *name)
}

/// Sections that describe capability pages, with the type and the fields of the page.
const SECTIONS: [(&str, CapType, &[Field]); 7] = [
    ("general", CapType::GENERAL, CmdHcaCap::FIELDS),
    (
        "ethernet_offloads",
        CapType::ETHERNET_OFFLOADS,
        EthOffloadCaps::FIELDS,
    ),
    ("odp", CapType::ODP, OdpCaps::FIELDS),
    ("atomic", CapType::ATOMIC, AtomicCaps::FIELDS),
    ("roce", CapType::ROCE, RoceCap::FIELDS),
    ("flow_table", CapType::FLOW_TABLE, FlowTableNicCap::FIELDS),
    ("general_2", CapType::GENERAL_2, CmdHcaCap2::FIELDS),
];

/// Returns a capability page: the recorded page if there is one, and otherwise a page built from statements.
fn page<T: Layout>(document: &Document, section: &str) -> Result<Page<T>, ProfileError> {
    let kind = capability_type(section).ok_or_else(|| wrong(section, "is not a page"))?;
    let recorded = document.pages.get(&kind.0);
    let mut blank = RawPage {
        max: vec![0; PAGE_BYTES],
        current: vec![0; PAGE_BYTES],
    };
    for ((_, field), statement) in document
        .statements
        .iter()
        .filter(|((of, _), _)| of == section)
    {
        let Stated::Number { max, current } = statement.value else {
            continue;
        };
        let place = format!("{section}.{field}");
        let Some((base, found)) = find(T::FIELDS, field) else {
            return Err(wrong(place, format!("{} has no such field", T::TYPE_NAME)));
        };
        if let Some(page) = recorded {
            // A recorded page takes precedence over the statements of a base, because these may be about another
            // firmware.
            let said = statement.evidence == Evidence::Recorded;
            let has = (
                found.value(&page.max[base..]),
                found.value(&page.current[base..]),
            );
            if said && has != (Some(max), Some(current)) {
                return Err(wrong(
                    place,
                    format!("is {max} and {current}, the page has {has:?}"),
                ));
            }
            continue;
        }
        let announced = |value| simulated::announced(section, field, value);
        if !found.store(&mut blank.max[base..], announced(max))
            || !found.store(&mut blank.current[base..], announced(current))
        {
            return Err(wrong(
                place,
                format!("{max:#x} or {current:#x} does not fit"),
            ));
        }
    }
    let page = recorded.unwrap_or(&blank);
    let part = |bytes: &[u8]| {
        T::read_from_prefix(bytes)
            .map(|(layout, rest)| (layout, rest.to_vec()))
            .map_err(|_| wrong(section, "is shorter than its structure"))
    };
    let ((max, max_rest), (current, current_rest)) = (part(&page.max)?, part(&page.current)?);
    Ok(Page {
        max,
        current,
        rest: Rest {
            max: max_rest,
            current: current_rest,
        },
    })
}

/// Returns a field by its path, and the offset of the structure that contains the field.
fn find(fields: &'static [Field], path: &str) -> Option<(usize, Field)> {
    let (name, inner) = match path.split_once('.') {
        Some((name, inner)) => (name, Some(inner)),
        None => (path, None),
    };
    let field = fields.iter().find(|field| field.name == name)?;
    match (inner, field.shape) {
        (None, _) => Some((0, *field)),
        (Some(inner), Shape::Nested { fields, .. }) => {
            let (base, found) = find(fields, inner)?;
            Some((field.offset + base, found))
        }
        (Some(_), _) => None,
    }
}
