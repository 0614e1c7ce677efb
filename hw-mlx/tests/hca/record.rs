//! `Record`: a recorded function becomes a profile, and a simulated function with this profile reads the same.

use std::sync::Arc;

use driver::{Device, Function};
use hw_mlx::bringup::Record;
use hw_mlx::{CmdError, Hca, HcaConfig};
use hw_sim::card::CardConfig;
use hw_sim::{Profile, Sim, SimConfig, SimFunction};
use mlx_prm::{CapType, QueryHcaCapIn};

/// A simulator with one card, and the card's physical function. The card has no virtual functions.
struct World {
    sim: Sim,
    function: Arc<SimFunction>,
}

impl World {
    fn new(profile: Profile) -> Self {
        let sim = Sim::new(SimConfig::default());
        let card = sim.add_card(&CardConfig::new(profile, 0));
        let function = card.physical();
        Self { sim, function }
    }

    fn driver_function(&self) -> Function {
        Function::in_process(Arc::clone(&self.function) as Arc<dyn Device>).expect("a function")
    }

    /// Checks that the function leaked nothing, holds nothing, had no DMA fault and saw no driver error.
    fn assert_clean(&self, case: &str) {
        let report = self.sim.report(&self.function);
        assert!(report.is_clean(), "{case}: {report:#?}");
    }
}

fn generation(name: &str) -> Profile {
    Profile::generation(name).expect("a generation")
}

const MAC: [u8; 6] = [0x02, 0xba, 0xdc, 0x0f, 0xfe, 0xe5];

fn record(profile: Profile) -> (World, String) {
    let world = World::new(profile);
    let record = Record::take(world.driver_function(), &HcaConfig::new()).expect("a record");
    (world, record.text("mine"))
}

/// Returns the answers of an opened function to QUERY_HCA_CAP, by `op_mod`; `None` for refused queries.
fn pages(profile: Profile) -> Vec<(u32, Option<Vec<u8>>)> {
    // A record states no runtime pages, so the original is compared without runtime pages too.
    let mut general = profile.clone();
    general.pages.runtime = 0;
    let world = World::new(general);
    let mut hca = Hca::open(world.driver_function(), HcaConfig::new()).expect("bring-up");
    (0..0x60)
        // Bring-up sets current values of types up to RoCE, so only the maxima of these types are compared.
        .filter(|op_mod| op_mod & 1 == 0 || *op_mod > CapType::ROCE.current())
        .map(|op_mod| {
            let mut input = QueryHcaCapIn::new();
            input.set_op_mod(op_mod);
            match hca.exec(&input) {
                Ok(output) => (op_mod, Some(output.capability().to_vec())),
                Err(CmdError::Refused { .. }) => (op_mod, None),
                Err(error) => panic!("{error}"),
            }
        })
        .collect()
}

/// A recorded function can be loaded as a profile. The loaded device answers byte for byte like the recorded one, its
/// own record is the same file, and bring-up succeeds on it.
#[test]
fn a_recorded_function_answers_like_the_original() {
    for name in Profile::generations() {
        let original = generation(name);
        let (world, text) = record(original.clone());
        world.assert_clean(name);
        let loaded = Profile::load(&text).unwrap_or_else(|error| panic!("{name}: {error}\n{text}"));
        assert_eq!(
            (
                loaded.device_id,
                loaded.bar_bytes,
                loaded.msix_vectors,
                loaded.firmware
            ),
            (
                original.device_id,
                original.bar_bytes,
                original.msix_vectors,
                original.firmware
            ),
            "{name}"
        );
        assert_eq!(
            (&loaded.psid, loaded.pages.init),
            (&original.psid, original.pages.init),
            "{name}"
        );
        let (_, again) = record(loaded.clone());
        assert_eq!(again, text, "{name}: the record of the loaded profile");
        if name != "connectx-6-ib" {
            assert_eq!(pages(loaded), pages(original), "{name}");
        }
    }
}

/// A record contains nothing that identifies the card: no MAC, and no GUID made of it, in hex with or without spaces or
/// colons.
#[test]
fn a_record_names_no_card() {
    let mut profile = generation("connectx-5");
    profile.mac = MAC;
    // The firmware could show its MAC in a part of a page that has no field name.
    profile.general.rest.max = vec![0; 0xf00];
    profile.general.rest.current = vec![0; 0xf00];
    profile.general.rest.max[0x123..0x129].copy_from_slice(&MAC);
    let guid = profile.port_guid().to_be_bytes();
    profile.general.rest.current[0x200..0x208].copy_from_slice(&guid);
    let (_, text) = record(profile);
    let squeezed: String = text
        .chars()
        .filter(|letter| letter.is_ascii_alphanumeric())
        .collect();
    for secret in [&MAC[..], &guid[..], &MAC[3..]] {
        let hex: String = secret.iter().map(|byte| format!("{byte:02x}")).collect();
        assert!(!squeezed.to_ascii_lowercase().contains(&hex), "{hex}");
    }
    assert!(text.contains("permanent address present"), "{text}");
    let replaced: String = text
        .lines()
        .filter(|line| line.starts_with("220:"))
        .collect();
    assert!(
        replaced.contains("02 0000"),
        "the MAC's place is still visible: {replaced}"
    );
}

/// A record lists every command that was sent, and the commands that were refused.
#[test]
fn a_record_lists_the_commands_and_what_was_refused() {
    let (_, text) = record(generation("connectx-4-lx-14.12"));
    for line in [
        "\"ENABLE_HCA: ok\"",
        "\"QUERY_PAGES Init: 12868 pages\"",
        "\"QUERY_HCA_CAP op_mod 0x00: ok\"",
        "\"QUERY_HCA_CAP op_mod 0x40: status 0x02",
        "\"DISABLE_HCA: ok\"",
        "vport: admin state",
        "log_max_qp = { max = 0x17, current = 0xe }",
        "psid = { is = \"MT_2430110027\" }",
    ] {
        assert!(text.contains(line), "{line} in {text}");
    }
    assert!(!text.contains("SET_HCA_CAP"), "nothing is set");
}

/// A record has the contents of the initialization segment at three times, the changes of the capabilities by INIT_HCA,
/// and the result of the test whether the vport keeps its unicast list.
#[test]
fn a_record_has_the_segment_three_times_and_says_whether_the_unicast_list_is_kept() {
    let (world, text) = record(generation("connectx-5"));
    world.assert_clean("connectx-5");
    for line in [
        "segment before the queue's address: the queue's address is zero",
        // The row at offset 0 is listed, because the firmware revision in it is not zero.
        "segment before the queue's address: 000: ",
        "segment behind ENABLE_HCA: the queue's address is there as written",
        "segment behind INIT_HCA: the queue's address is there as written",
        "pages behind INIT_HCA: as before",
        "keys: reserved ",
        "unicast list: 0 entries found, 1 written; it reads as written",
        "\"QUERY_ROCE_ADDRESS index 0: ",
        "\"QUERY_VPORT_COUNTER: ok\"",
        "\"MODIFY_NIC_VPORT_CONTEXT unicast list, as found: ok\"",
    ] {
        assert!(text.contains(line), "{line} in {text}");
    }
}

/// If the firmware does not let a function write its unicast list, the record notes the status and the syndrome, and
/// goes on.
#[test]
fn a_record_of_a_function_that_may_not_write_its_list_says_so_with_the_syndrome() {
    let world = World::new(generation("connectx-5"));
    let fault = hw_sim::Fault::CommandFailure {
        opcode: Some(0x755),
        status: 0x03,
        syndrome: 0x00ab_cdef,
        count: 1,
    };
    world.sim.inject(&world.function, &fault);
    let taken = Record::take(world.driver_function(), &HcaConfig::new()).expect("a record");
    let line = "MODIFY_NIC_VPORT_CONTEXT unicast list: status 0x03, syndrome 0x00abcdef";
    assert!(taken.refused().iter().any(|refused| refused == line));
    let text = taken.text("mine");
    for line in [
        line,
        "unicast list: 0 entries found, 1 written; it may not be written",
    ] {
        assert!(text.contains(line), "{line} in {text}");
    }
}
