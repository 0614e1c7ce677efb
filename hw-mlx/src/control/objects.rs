//! Objects of the device: how many there are of each kind, and which of them a process knows that has resumed the
//! function.

use std::collections::BTreeSet;

use mlx_prm::Opcode;

/// Number of existing objects of each kind, counted by the commands that create and destroy them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Objects {
    alive: [i64; KINDS.len()],
}

/// Kinds of objects, each with the commands that create and destroy it.
const KINDS: [(&str, Opcode, Opcode); 18] = [
    ("mkey", Opcode::CREATE_MKEY, Opcode::DESTROY_MKEY),
    ("EQ", Opcode::CREATE_EQ, Opcode::DESTROY_EQ),
    ("CQ", Opcode::CREATE_CQ, Opcode::DESTROY_CQ),
    ("QP", Opcode::CREATE_QP, Opcode::DESTROY_QP),
    ("XRC SRQ", Opcode::CREATE_XRC_SRQ, Opcode::DESTROY_XRC_SRQ),
    ("RMP", Opcode::CREATE_RMP, Opcode::DESTROY_RMP),
    ("PD", Opcode::ALLOC_PD, Opcode::DEALLOC_PD),
    ("UAR", Opcode::ALLOC_UAR, Opcode::DEALLOC_UAR),
    (
        "transport domain",
        Opcode::ALLOC_TRANSPORT_DOMAIN,
        Opcode::DEALLOC_TRANSPORT_DOMAIN,
    ),
    ("XRC domain", Opcode::ALLOC_XRCD, Opcode::DEALLOC_XRCD),
    (
        "queue counter",
        Opcode::ALLOC_Q_COUNTER,
        Opcode::DEALLOC_Q_COUNTER,
    ),
    (
        "multicast attachment",
        Opcode::ATTACH_TO_MCG,
        Opcode::DETACH_FROM_MCG,
    ),
    ("TIS", Opcode::CREATE_TIS, Opcode::DESTROY_TIS),
    ("TIR", Opcode::CREATE_TIR, Opcode::DESTROY_TIR),
    ("SQ", Opcode::CREATE_SQ, Opcode::DESTROY_SQ),
    ("RQ", Opcode::CREATE_RQ, Opcode::DESTROY_RQ),
    (
        "flow table",
        Opcode::CREATE_FLOW_TABLE,
        Opcode::DESTROY_FLOW_TABLE,
    ),
    (
        "flow group",
        Opcode::CREATE_FLOW_GROUP,
        Opcode::DESTROY_FLOW_GROUP,
    ),
];

impl Objects {
    pub(crate) fn count(&mut self, opcode: Opcode) {
        for (alive, (_, makes, destroys)) in self.alive.iter_mut().zip(KINDS) {
            if opcode == makes {
                *alive += 1;
            } else if opcode == destroys {
                *alive -= 1;
            }
        }
    }

    /// Returns the number of objects of the kind that a command creates; 0 if the kind is unknown.
    pub(crate) fn alive(&self, creates: Opcode) -> i64 {
        let kind = KINDS.iter().position(|(_, makes, _)| *makes == creates);
        kind.map_or(0, |kind| self.alive[kind])
    }

    /// Returns the number of objects of each kind of which there are some, by the opcode that creates the kind.
    pub(crate) fn numbers(&self) -> Vec<(u16, i64)> {
        let all = self.alive.iter().zip(KINDS);
        all.filter(|(alive, _)| **alive != 0)
            .map(|(alive, (_, makes, _))| (makes.0, *alive))
            .collect()
    }

    /// Makes the counts from such numbers. Returns `None` if a kind is unknown or is there twice, or if a number is not
    /// possible.
    pub(crate) fn resume(numbers: &[(u16, i64)]) -> Option<Self> {
        let mut objects = Self::default();
        for &(opcode, number) in numbers {
            let kind = KINDS.iter().position(|(_, makes, _)| makes.0 == opcode)?;
            // Numbers of objects have 24 bits.
            if !(1..=1 << 24).contains(&number) || objects.alive[kind] != 0 {
                return None;
            }
            objects.alive[kind] = number;
        }
        Some(objects)
    }

    /// Returns the kinds of objects that cannot be parked and of which there are some, with their numbers.
    pub(crate) fn not_parked(&self) -> Vec<(&'static str, i64)> {
        let all = self.alive.iter().zip(KINDS);
        all.filter(|(alive, (_, makes, _))| **alive != 0 && !PARKED.contains(makes))
            .map(|(alive, (kind, ..))| (kind, *alive))
            .collect()
    }

    /// Returns the kinds of objects that use memory and whose number differs from that in `known`, with the difference.
    /// A positive difference is the number of missing objects.
    pub(crate) fn with_memory_besides(&self, known: &Known) -> Vec<(&'static str, i64)> {
        let alive = self.alive.iter().zip(KINDS);
        alive
            .filter(|(_, (_, makes, _))| WITH_MEMORY.contains(makes))
            .map(|(alive, (kind, makes, _))| (kind, alive - known.count(makes)))
            .filter(|(_, missing)| *missing != 0)
            .collect()
    }

    pub(super) fn destroys(opcode: Opcode) -> bool {
        KINDS.iter().any(|(_, _, destroys)| *destroys == opcode)
    }

    /// Returns the kinds whose number of objects differs from `expected`, with the difference.
    pub(crate) fn left_besides(
        &self,
        expected: &[(&'static str, usize)],
    ) -> Vec<(&'static str, i64)> {
        let expected = |kind| {
            expected
                .iter()
                .find(|(other, _)| *other == kind)
                .map_or(0, |(_, count)| i64::try_from(*count).unwrap_or(i64::MAX))
        };
        self.alive
            .iter()
            .zip(KINDS)
            .map(|(alive, (kind, ..))| (kind, alive - expected(kind)))
            .filter(|(_, left)| *left != 0)
            .collect()
    }
}

/// Opcodes that create the kinds of objects that use memory of the host.
const WITH_MEMORY: [Opcode; 8] = [
    Opcode::CREATE_MKEY,
    Opcode::CREATE_EQ,
    Opcode::CREATE_CQ,
    Opcode::CREATE_QP,
    Opcode::CREATE_XRC_SRQ,
    Opcode::CREATE_RMP,
    Opcode::CREATE_SQ,
    Opcode::CREATE_RQ,
];

/// Opcodes that create the kinds of objects that can be parked.
const PARKED: [Opcode; 15] = [
    Opcode::CREATE_MKEY,
    Opcode::CREATE_EQ,
    Opcode::CREATE_CQ,
    Opcode::CREATE_QP,
    Opcode::CREATE_RMP,
    Opcode::ALLOC_PD,
    Opcode::ALLOC_UAR,
    Opcode::ALLOC_Q_COUNTER,
    Opcode::ALLOC_TRANSPORT_DOMAIN,
    Opcode::CREATE_TIS,
    Opcode::CREATE_TIR,
    Opcode::CREATE_SQ,
    Opcode::CREATE_RQ,
    Opcode::CREATE_FLOW_TABLE,
    Opcode::CREATE_FLOW_GROUP,
];

/// Objects that use memory, and doorbell pages, that this process knows: it has resumed or created them. Each is there
/// once, so an object that is resumed twice does not stand for another one.
#[derive(Debug, Default)]
pub(crate) struct Known(BTreeSet<(Opcode, u32)>);

impl Known {
    /// Adds an object that was resumed, by the command that creates its kind and its number. Returns false if it is
    /// known already.
    #[must_use]
    pub(crate) fn resume(&mut self, creates: Opcode, number: u32) -> bool {
        self.0.insert((creates, number))
    }

    /// Returns whether an object is known, by the command that creates its kind and its number.
    pub(crate) fn has(&self, creates: Opcode, number: u32) -> bool {
        self.0.contains(&(creates, number))
    }

    /// Notes the success of a command. `input` is the third word of the command, and `answer` that of its answer: the
    /// number of the object is in the one or in the other.
    pub(super) fn note(&mut self, opcode: Opcode, input: u32, answer: u32) {
        const NUMBER: u32 = 0xff_ffff;
        for (_, makes, destroys) in KINDS {
            if opcode == makes {
                self.0.insert((makes, answer & NUMBER));
            } else if opcode == destroys {
                self.0.remove(&(makes, input & NUMBER));
            }
        }
    }

    fn count(&self, creates: Opcode) -> i64 {
        let of_kind = (creates, 0)..=(creates, u32::MAX);
        // The sum does not overflow, because numbers of objects have 24 bits.
        self.0.range(of_kind).fold(0, |count, _| count + 1)
    }
}
