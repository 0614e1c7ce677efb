//! Each line is ok on functions without a fault, and reports a fault that is injected into a function.

use std::path::Path;
use std::time::Duration;

use hw_sim::{Fault, Faults, LinkFaults, SimConfig};
use udapl::fabric::Fabric;

use super::between::{self, Between};
use super::outside::NOTICE_LIMIT;
use super::pair::Pair;
use super::subject::{Levers, Subject};
use super::{Outcome, alone, lines, outside};

/// Index of the first function, into which faults are injected.
const A: usize = 0;
/// Time limit for cases in which the driver can notice nothing.
const SHORT: Duration = Duration::from_millis(20);
/// Opcodes (PRM, "Command Opcodes").
const ENABLE_HCA: u16 = 0x104;
const CREATE_MKEY: u16 = 0x200;
const DESTROY_EQ: u16 = 0x302;
const CREATE_QP: u16 = 0x500;
const INIT2RTR_QP: u16 = 0x503;
const CREATE_RMP: u16 = 0x90c;
const CREATE_FLOW_TABLE: u16 = 0x930;

fn pair() -> Fabric {
    Fabric::pair(1)
}

/// Returns two functions on a wire that drops all frames.
fn cut() -> Fabric {
    let lost = Faults {
        loss_ppm: 1_000_000,
        ..Faults::NONE
    };
    Fabric::with(SimConfig::seeded(1), LinkFaults::both(lost), |profile| {
        profile
    })
}

/// Returns a function without levers.
pub(super) fn subject(fabric: &Fabric, side: usize) -> Subject<'_> {
    with_levers(fabric, side, Levers::none("a test"))
}

fn with_levers<'a>(fabric: &'a Fabric, side: usize, levers: Levers<'a>) -> Subject<'a> {
    let name = format!("sim:{side}");
    let function = move || {
        driver::Function::in_process(fabric.function(side)).map_err(|error| {
            let name = format!("sim:{side}");
            udapl::error::OpenError::Function { name, error }
        })
    };
    Subject::new(
        name,
        move || fabric.open(side),
        function,
        true,
        None,
        levers,
    )
    .opened_alone(move || {
        let options = Fabric::options(side).network(false);
        fabric.open_with(side, &options)
    })
}

/// Discards the counters of a line.
fn nowhere(_: &Between) -> Result<(), Box<dyn std::error::Error>> {
    Ok(())
}

fn both(fabric: &Fabric) -> [Subject<'_>; 2] {
    [subject(fabric, 0), subject(fabric, 1)]
}

/// Returns both functions; the first has these levers.
fn both_with<'a>(fabric: &'a Fabric, levers: Levers<'a>) -> [Subject<'a>; 2] {
    [with_levers(fabric, 0, levers), subject(fabric, 1)]
}

fn inject(fabric: &Fabric, fault: &Fault) {
    fabric.sim.inject(&fabric.function(A), fault);
}

/// Makes the firmware of function `A` refuse its next command with this opcode.
fn refuse(fabric: &Fabric, opcode: u16) {
    let fault = Fault::CommandFailure {
        opcode: Some(opcode),
        status: 0x0f,
        syndrome: 0x00ab_cdef,
        count: 1,
    };
    inject(fabric, &fault);
}

fn found<T>(outcome: Result<T, Box<dyn std::error::Error>>) -> T {
    outcome.unwrap_or_else(|error| panic!("not ok: {error}"))
}

/// Checks that a line failed, and that its error contains all of these parts.
fn wrong<T: std::fmt::Debug>(outcome: Result<T, Box<dyn std::error::Error>>, parts: &[&str]) {
    let error = outcome.expect_err("it is not ok").to_string();
    for part in parts {
        assert!(error.contains(part), "{part:?} in: {error}");
    }
}

#[test]
fn self_test_finds_lost_doorbells_and_lost_completions_and_names_the_layer_and_what_to_check() {
    for (fault, layer, advice) in [
        (
            Fault::LostDoorbells { spared: 0 },
            "the self test ends at the layer doorbell: Send: 0 of 2 completions",
            "; the device did not read the doorbell record: the UAR page",
        ),
        (
            Fault::LostCompletions { spared: 0 },
            "the self test ends at the layer completion: Send: 0 of 2 completions",
            "; the request was fetched: the completion queue's pages",
        ),
    ] {
        let fabric = pair();
        let test = || {
            let function = subject(&fabric, A).function()?;
            crate::selftest::sentence(function)
        };
        let said = found(test());
        assert!(said.ends_with("compared; interrupts come"), "{said}");
        inject(&fabric, &fault);
        wrong(test(), &[layer, advice]);
    }
}

#[test]
fn bring_up_finds_nothing_on_a_good_function_and_names_the_time_and_the_command_on_a_bad_one() {
    let fabric = pair();
    assert!(found(lines::bring_up(&subject(&fabric, A))).starts_with("10 times, "));
    refuse(&fabric, CREATE_QP);
    wrong(
        lines::bring_up(&subject(&fabric, A)),
        &["bring-up 1: ", "CREATE_QP", "0x00abcdef"],
    );
    // A resource that is left behind at the close is reported too.
    refuse(&fabric, DESTROY_EQ);
    wrong(
        lines::bring_up(&subject(&fabric, A)),
        &["the end of bring-up 1: "],
    );
}

#[test]
fn record_finds_a_function_that_does_not_answer_and_leaves_no_file_of_it() {
    let fabric = pair();
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("record-0.toml");
    let said = found(lines::record(&subject(&fabric, A), &file));
    assert!(said.contains("ConnectX-5, firmware"), "{said}");
    let text = std::fs::read_to_string(&file).expect("the record");
    hw_sim::Profile::load(&text).expect("a profile");
    wrong(
        lines::record(&subject(&fabric, A), &file),
        &["record-0.toml: is there already"],
    );
    refuse(&fabric, ENABLE_HCA);
    let other = directory.path().join("record-1.toml");
    wrong(
        lines::record(&subject(&fabric, A), &other),
        &["sim:0: recording: ", "ENABLE_HCA", "0x00abcdef"],
    );
    let left = std::fs::read_dir(directory.path())
        .expect("readable")
        .count();
    assert_eq!(left, 1, "the first record alone");
}

#[test]
fn port_finds_a_link_that_is_down() {
    let fabric = pair();
    let (said, _) = found(lines::port(&subject(&fabric, A)));
    assert!(said.contains("link up"), "{said}");
    inject(&fabric, &Fault::LinkDown);
    let outcome = lines::port(&subject(&fabric, A)).map(|(said, _)| said);
    wrong(
        outcome,
        &["the link is down", "physical function's interface"],
    );
}

#[test]
fn loopback_finds_memory_that_cannot_be_registered() {
    let fabric = pair();
    let said = found(lines::dtos(&[subject(&fabric, A)]));
    assert!(said.contains("all compared"), "{said}");
    let one = [subject(&fabric, A)];
    // Every CREATE_MKEY fails. The first one is for the adapter's own key, which covers all its memory.
    let fault = Fault::CommandFailure {
        opcode: Some(CREATE_MKEY),
        status: 0x0f,
        syndrome: 0x00ab_cdef,
        count: 100,
    };
    inject(&fabric, &fault);
    wrong(lines::dtos(&one), &["CREATE_MKEY"]);
}

#[test]
fn e_switch_finds_a_wire_on_which_nothing_arrives() {
    let fabric = pair();
    let mut kept = None;
    let said = found(lines::meet(&both(&fabric), |between| {
        kept = Some(crate::report::Report::human(between));
        Ok(())
    }));
    let begin = "sim:0 and sim:1 reach each other; frames of queue pairs: ";
    assert!(said.starts_with(begin), "{said}");
    let kept = kept.expect("it was kept");
    assert!(kept.contains("tx_vport_rdma_unicast_packets"), "{kept}");
    // The counters of both sides show that neither side is at fault.
    let fabric = cut();
    let wanted = [
        "instead of a connection",
        "frames were sent by sim:0 and none was received by sim:1",
        "and not in a queue pair",
    ];
    wrong(lines::meet(&both(&fabric), nowhere), &wanted);
}

#[test]
fn connections_that_fail_at_the_receiver_are_not_blamed_on_the_e_switch() {
    let fabric = pair();
    // The second function receives the request, but cannot make its queue pair ready.
    let fault = Fault::CommandFailure {
        opcode: Some(INIT2RTR_QP),
        status: 0x03,
        syndrome: 0x00ab_cdef,
        count: 100,
    };
    let outcome = Pair::with(&both(&fabric), |pair| {
        fabric.sim.inject(&fabric.function(1), &fault);
        between::counted(pair, nowhere, |pair| {
            lines::one_message(pair, 0)?;
            Ok("it passed".to_owned())
        })
    });
    wrong(
        outcome,
        &[
            "INIT2RTR_QP",
            "0x00abcdef",
            "sim:1 received 2 frames of queue pairs and sent none",
        ],
    );
}

#[test]
fn rdma_alone_passes_where_the_ethernet_path_is_refused_and_names_what_rdma_itself_lacks() {
    let fabric = pair();
    let fault = Fault::CommandFailure {
        opcode: Some(CREATE_FLOW_TABLE),
        status: 0x03,
        syndrome: 0x00ab_cdef,
        count: 100,
    };
    inject(&fabric, &fault);
    let Outcome::Ok(said) = found(alone::rdma_alone(&subject(&fabric, A))) else {
        panic!("it was skipped");
    };
    assert!(
        said.ends_with("4 messages within the function, all compared"),
        "{said}"
    );
    refuse(&fabric, CREATE_QP);
    wrong(
        alone::rdma_alone(&subject(&fabric, A)),
        &["CREATE_QP", "0x00abcdef"],
    );
}

#[test]
fn dtos_find_a_receive_queue_that_cannot_be_shared() {
    let fabric = pair();
    found(lines::dtos(&both(&fabric)));
    let subjects = [subject(&fabric, 1), subject(&fabric, A)];
    refuse(&fabric, CREATE_RMP);
    wrong(lines::dtos(&subjects), &["DAT_INSUFFICIENT_RESOURCES"]);
}

#[test]
fn connections_find_one_that_cannot_be_made_by_its_number() {
    let fabric = pair();
    let said = found(lines::churn(&both(&fabric), nowhere));
    assert!(
        said.starts_with("100 connections, 10 of them refused"),
        "{said}"
    );
    let fabric = cut();
    wrong(lines::churn(&both(&fabric), nowhere), &["connection 0: "]);
}

/// Returns a lever on the link that acts through the simulator; the other levers are missing.
fn link_lever(fabric: &Fabric) -> Levers<'_> {
    Levers {
        link: Ok(Box::new(|up| {
            inject(fabric, if up { &Fault::LinkUp } else { &Fault::LinkDown });
            Ok(())
        })),
        ..Levers::none("a test")
    }
}

#[test]
fn link_finds_a_port_that_does_not_hear_of_it_and_one_that_stays_down() {
    let fabric = pair();
    let outcome = outside::link(&both_with(&fabric, link_lever(&fabric)), NOTICE_LIMIT);
    let Outcome::Ok(said) = found(outcome) else {
        panic!("it was skipped");
    };
    assert!(said.ends_with("messages pass again"), "{said}");

    let deaf = Levers {
        link: Ok(Box::new(|_| Ok(()))),
        ..Levers::none("a test")
    };
    let outcome = outside::link(&both_with(&fabric, deaf), SHORT);
    wrong(
        outcome,
        &["the link was taken down", "still says otherwise"],
    );

    let stuck = Levers {
        link: Ok(Box::new(|_| {
            inject(&fabric, &Fault::LinkDown);
            Ok(())
        })),
        ..Levers::none("a test")
    };
    let outcome = outside::link(&both_with(&fabric, stuck), SHORT);
    wrong(outcome, &["the link was taken up", "still says otherwise"]);
    assert_eq!(
        found(outside::link(&both(&fabric), SHORT)),
        Outcome::Skipped("a test".to_owned())
    );
}

#[test]
fn reset_finds_a_driver_that_notices_nothing_and_a_function_that_does_not_come_back() {
    let lever = |fault: Option<Fault>, fabric: &'static Fabric| Levers {
        reset: Ok(Box::new(move |()| {
            if let Some(fault) = &fault {
                inject(fabric, fault);
            }
            Ok(())
        })),
        ..Levers::none("a test")
    };
    let fabric: &'static Fabric = Box::leak(Box::new(pair()));
    let subjects = both_with(fabric, lever(Some(Fault::HealthSyndrome(1)), fabric));
    let Outcome::Ok(said) = found(outside::reset(&subjects, NOTICE_LIMIT)) else {
        panic!("it was skipped");
    };
    assert!(said.ends_with("opened again, and messages pass"), "{said}");
    let subjects = both_with(fabric, lever(None, fabric));
    wrong(
        outside::reset(&subjects, SHORT),
        &["as if nothing had happened"],
    );
    let subjects = both_with(fabric, lever(Some(Fault::SurpriseRemoval), fabric));
    wrong(
        outside::reset(&subjects, NOTICE_LIMIT),
        &["noticed after", "opened again: "],
    );
}

#[test]
fn unbind_finds_a_driver_that_does_not_let_go_and_a_function_that_nobody_gives_back() {
    let fabric = &pair();
    let lever = |asks: bool| Levers {
        binding: Ok(Box::new(move |bound| {
            if !bound && asks {
                inject(fabric, &Fault::WantedBack);
            }
            Ok(())
        })),
        ..Levers::none("a test")
    };
    let subjects = both_with(fabric, lever(true));
    let Outcome::Ok(said) = found(outside::unbind(&subjects, NOTICE_LIMIT)) else {
        panic!("it was skipped");
    };
    assert!(said.contains("opened again, and messages pass"), "{said}");
    let subjects = both_with(fabric, lever(false));
    wrong(
        outside::unbind(&subjects, SHORT),
        &["as if nothing had happened"],
    );
    let kept = Levers {
        binding: Ok(Box::new(|bound| match bound {
            true => Err("no driver wants it".to_owned()),
            false => {
                inject(fabric, &Fault::WantedBack);
                Ok(())
            }
        })),
        ..Levers::none("a test")
    };
    let subjects = both_with(fabric, kept);
    wrong(
        outside::unbind(&subjects, NOTICE_LIMIT),
        &["no driver wants it"],
    );
}

#[test]
fn kill_finds_a_process_that_cannot_have_the_function() {
    let fabric = pair();
    let levers = Levers {
        outlives: Ok(()),
        ..Levers::none("a test")
    };
    let subjects = both_with(&fabric, levers);
    let outcome = outside::kill(&subjects, Path::new("/bin/false"));
    wrong(outcome, &["sim:0: the listener said \"\""]);
    let outcome = outside::kill(&both(&fabric), Path::new("/bin/false"));
    assert_eq!(found(outcome), Outcome::Skipped("a test".to_owned()));
}

#[test]
fn perf_finds_a_wire_on_which_nothing_arrives() {
    let fabric = pair();
    let [one, other] = both(&fabric);
    let (said, _) = found(lines::perf(&one, &other));
    assert!(said.starts_with("Send "), "{said}");
    let fabric = cut();
    let [one, other] = both(&fabric);
    let outcome = lines::perf(&one, &other).map(|(said, _)| said);
    wrong(outcome, &["instead of a connection to"]);
}

#[test]
fn soak_finds_a_function_that_is_pulled_out_by_connection_and_message() {
    let fabric = pair();
    let after = |count: u32, fault: Option<Fault>| {
        let (mut asked, fabric) = (0, &fabric);
        move || {
            asked += 1;
            if asked == count / 2
                && let Some(fault) = &fault
            {
                inject(fabric, fault);
            }
            asked > count
        }
    };
    let said = found(lines::soak(&both(&fabric), after(500, None)));
    assert!(said.contains("all compared, on 3 connections"), "{said}");
    let removal = after(500, Some(Fault::SurpriseRemoval));
    wrong(
        lines::soak(&both(&fabric), removal),
        &["connection 1, message "],
    );
}
