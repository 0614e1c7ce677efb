//! Health: signs that the device is dead, signs that it may be dead, and the destruction of a dead device's objects.

use std::time::Duration;

use driver::Device as _;
use hw_mlx::{AsyncEvent, CmdError, DeadCause, Hca, HcaConfig, MlxError};
use mlx_prm::{AllocPdIn, DeallocPdIn, NopIn};

use crate::double::{Action, Double};

fn address(text: &str) -> hw_mlx::Address {
    text.parse::<std::net::IpAddr>().expect("an address").into()
}

fn config() -> HcaConfig {
    let mut config = HcaConfig::new();
    config.addresses.push(address("10.1.2.3"));
    config
}

/// A change of the double's registers after which the device counts as dead.
type Kill = fn(&mut crate::double::State);

/// Returns the ways in which a device dies, with the causes that the driver should report.
fn deaths() -> Vec<(&'static str, Kill, DeadCause)> {
    vec![
        (
            "gone",
            |state| state.set_register(0x230, u32::MAX),
            DeadCause::Gone,
        ),
        (
            "disabled",
            |state| state.set_register(0x14, 0x0001_0156),
            DeadCause::Disabled,
        ),
        (
            "software reset",
            |state| state.set_register(0x14, 0x0001_0756),
            DeadCause::SoftwareReset,
        ),
        (
            "reset required",
            |state| {
                state.set_register(0x238, 1 << 31);
                state.set_register(0x23c, 0x000b_1234);
            },
            DeadCause::ResetRequired {
                synd: 0x0b,
                ext_synd: 0x1234,
            },
        ),
    ]
}

#[test]
fn every_way_to_die_is_noticed_within_a_second_and_told_once() {
    for (name, kill, cause) in deaths() {
        let double = Double::new();
        let mut hca = Hca::open(double.function(), config()).expect("bring-up");
        kill(&mut double.state());
        let begun = hca.now();
        let error = hca.wait(begun + Duration::from_secs(30)).expect_err("dead");
        assert!(
            matches!(error, MlxError::Dead(found) if found == cause),
            "{name}: {error}"
        );
        assert!(hca.now() - begun <= Duration::from_secs(1), "{name}");
        assert!(hca.is_dead());
        assert_eq!(
            hca.next_async(),
            Some(AsyncEvent::DeviceDead { cause }),
            "{name}"
        );
        assert_eq!(hca.next_async(), None, "{name}");
        let mut command = [0u8; 2];
        double.config_read(4, &mut command);
        assert_eq!(command[0] & 4, 0, "{name}: bus master is off");
    }
}

/// Waits until the given time. Events may end single waits earlier.
fn wait_until(hca: &mut Hca, end: driver::Instant) -> Result<(), MlxError> {
    while hca.now() < end {
        hca.wait(end)?;
    }
    Ok(())
}

/// If the firmware clears the command queue's address at INIT_HCA, the driver does not compare the address later.
/// Another value there is not taken for a reset, and the device works on.
#[test]
fn firmware_that_clears_the_queue_address_at_init_hca_is_not_taken_for_reset_by_others() {
    let double = Double::new();
    double.state().clears_queue_address = true;
    let mut hca = Hca::open(double.function(), config()).expect("bring-up");
    double.state().set_register(0x10, 7);
    let end = hca.now() + Duration::from_secs(30);
    wait_until(&mut hca, end).expect("alive");
    hca.exec(&NopIn::new()).expect("it answers");
    let report = hca.close().expect("teardown");
    assert_eq!(report.dead, None);
    assert_eq!(double.state().violations, [""; 0]);
}

/// A device that shows another address of the command queue than before was reset by another program.
#[test]
fn another_queue_address_than_after_init_hca_is_a_reset_by_others() {
    let double = Double::new();
    let mut hca = Hca::open(double.function(), config()).expect("bring-up");
    double.state().set_register(0x10, 7);
    let end = hca.now() + Duration::from_secs(30);
    let error = wait_until(&mut hca, end).expect_err("dead");
    assert!(
        matches!(error, MlxError::Dead(DeadCause::ResetByOthers)),
        "{error}"
    );
}

/// A device whose health counter stands still is dead only if it does not answer a command. Busy firmware may stop the
/// counter and recover; Linux only reports that (`health.c` `poll_health`).
#[test]
fn a_health_counter_that_stands_still_is_death_only_if_a_command_stays_unanswered() {
    let nops = |double: &Double| {
        let state = double.state();
        state
            .seen
            .iter()
            .filter(|seen| seen.opcode == 0x80d)
            .count()
    };
    let double = Double::new();
    let mut hca = Hca::open(double.function(), config()).expect("bring-up");
    let wait = |hca: &mut Hca, seconds| {
        let end = hca.now() + Duration::from_secs(seconds);
        wait_until(hca, end)
    };
    wait(&mut hca, 100).expect("alive");
    double.state().freeze_counter();
    wait(&mut hca, 9).expect("alive");
    assert_eq!(nops(&double), 0, "nine seconds are nothing");
    wait(&mut hca, 60).expect("it answers");
    let asked = nops(&double);
    assert!((4..=7).contains(&asked), "asked {asked} times in a minute");

    for _ in 0..3 {
        double.rule(0x80d, Action::Hold);
    }
    let begun = hca.now();
    let error = wait(&mut hca, 60).expect_err("dead");
    assert!(
        matches!(error, MlxError::Dead(DeadCause::CounterStuck { .. })),
        "{error}"
    );
    let took = hca.now() - begun;
    assert!(
        took >= Duration::from_secs(10) && took <= Duration::from_secs(22),
        "{took:?}"
    );
}

/// While all command slots are in use, no NOP can be posted. The return of any pending command then shows that the
/// device is alive.
#[test]
fn a_device_that_returns_a_command_is_alive_although_no_slot_is_free_for_a_nop() {
    let double = Double::new();
    let mut hca = Hca::open(double.function(), config()).expect("bring-up");
    double.state().freeze_counter();
    let pending: Vec<_> = (0..31)
        .map(|_| {
            double.rule(0x80d, Action::Hold);
            hca.submit(&NopIn::new(), &[]).expect("a free slot")
        })
        .collect();
    let begun = hca.now();
    double.after(Duration::from_secs(15), |state| state.release(0));
    wait_until(&mut hca, begun + Duration::from_secs(24)).expect("it has returned a command");
    let error = wait_until(&mut hca, begun + Duration::from_secs(60)).expect_err("dead");
    assert!(
        matches!(error, MlxError::Dead(DeadCause::CounterStuck { .. })),
        "{error}"
    );
    drop(pending);
}

/// A device with a syndrome beside the counter is dead only if it does not answer a command. Linux ignores this
/// syndrome, and Snabb looks at it only when a command is not answered.
#[test]
fn a_syndrome_beside_the_counter_is_death_only_if_a_command_stays_unanswered() {
    let double = Double::new();
    let mut hca = Hca::open(double.function(), config()).expect("bring-up");
    double.state().set_register(0x1010, 0x0100_0001);
    let end = hca.now() + Duration::from_secs(60);
    wait_until(&mut hca, end).expect("it answers");
    let asked = {
        let state = double.state();
        let nops = state.seen.iter().filter(|seen| seen.opcode == 0x80d);
        nops.count()
    };
    assert_eq!(asked, 1, "one doubt for one syndrome");

    double.rule(0x80d, Action::Hold);
    double.state().set_register(0x1010, 0x0b00_0001);
    let begun = hca.now();
    let error = wait_until(&mut hca, begun + Duration::from_secs(60)).expect_err("dead");
    assert!(
        matches!(error, MlxError::Dead(DeadCause::Syndrome { synd: 0x0b })),
        "{error}"
    );
    assert!(hca.now() - begun <= Duration::from_secs(12));
}

#[test]
fn a_dead_device_fails_commands_but_lets_everything_be_destroyed() {
    let double = Double::new();
    let mut hca = Hca::open(double.function(), config()).expect("bring-up");
    let pd = hca.exec(&AllocPdIn::new()).expect("a PD").pd();
    double.state().set_register(0x238, 1 << 31);
    double.state().set_register(0x23c, 0x000b_1234);
    hca.wait(hca.now() + Duration::from_secs(5))
        .expect_err("dead");
    let sent = double.state().seen.len();

    let error = hca.exec(&AllocPdIn::new()).expect_err("dead");
    assert!(
        matches!(
            error,
            CmdError::Dead {
                cause: DeadCause::ResetRequired { synd: 0x0b, .. },
                ..
            }
        ),
        "{error}"
    );
    assert_eq!(
        error.to_string(),
        "ALLOC_PD (0x800): the device is dead: the firmware asks for a reset: fatal hardware error \
         (syndrome 0x0b, extended 0x1234)"
    );
    let mut input = DeallocPdIn::new();
    input.set_pd(pd);
    hca.exec(&input).expect("unwinding");
    let report = hca.close().expect("unwound");
    assert_eq!(
        double.state().seen.len(),
        sent,
        "nothing is sent to a dead device"
    );
    assert!(
        matches!(
            report.dead,
            Some(DeadCause::ResetRequired { synd: 0x0b, .. })
        ),
        "{:?}",
        report.dead
    );
    assert_eq!(report.objects_left, []);
    assert_eq!(report.pages_not_returned, 73);
    assert_eq!(double.state().violations, [""; 0]);
}

#[test]
fn a_command_the_device_dies_over_ends_with_the_cause_and_not_with_its_time_limit() {
    let double = Double::new();
    let mut hca = Hca::open(double.function(), config()).expect("bring-up");
    double.rule(0x80d, Action::Hold);
    double.after(Duration::from_millis(2500), |state| {
        state.set_register(0x230, u32::MAX)
    });
    let begun = hca.now();
    let error = hca.exec(&NopIn::new()).expect_err("dead");
    assert!(
        matches!(
            error,
            CmdError::Dead {
                cause: DeadCause::Gone,
                ..
            }
        ),
        "{error}"
    );
    assert!(hca.now() - begun <= Duration::from_millis(3500));
}
