//! Tests that need real functions of this machine, which an environment variable names (`support/functions.rs`). If no
//! functions are named, a test prints that it is skipped.

use std::fs;
use std::thread;

use udapl::error::ReturnType;
use udapl::event::AsyncEvent;
use udapl::{CloseFlags, EvdFlags, Event, OpenOptions, Timeout};

use crate::support::functions;

/// Time limit of a wait: far longer than any step takes, and short enough to end a stuck test.
const LONG: Timeout = Timeout::from_micros(20_000_000);
const DRIVER: &str = "/sys/bus/pci/drivers/vfio-pci";

fn functions() -> Option<[String; 2]> {
    let names = functions::named();
    if names.is_none() {
        println!("skipped: no functions in slots are named");
    }
    names
}

/// If a function is unbound while its consumer waits, the consumer gets an event and closes the function, which can
/// then be bound again. The kernel blocks in the unbind until the function is closed, so another thread unbinds it.
#[test]
fn a_function_that_is_unbound_under_a_waiting_consumer_is_asked_for_and_comes_back_bound() {
    let Some([name, _]) = functions() else {
        return;
    };
    let mut ia = udapl::ia_open(&name, &OpenOptions::default()).expect("an adapter");
    let asynchronous = ia.async_evd();
    let unbinding = thread::spawn({
        let name = name.clone();
        move || fs::write(format!("{DRIVER}/unbind"), name)
    });
    let (event, _) = ia
        .evd_wait(asynchronous, LONG, 1)
        .expect("somebody asks for the function");
    assert_eq!(event, Event::Async(AsyncEvent::IaCatastrophic));
    let said = ia.last_device_error().unwrap_or_default().to_owned();
    assert!(said.contains("wants the device back"), "{said:?}");
    assert!(!unbinding.is_finished(), "it is ours until we close it");
    let report = udapl::ia_close(ia, CloseFlags::Abrupt).expect("it closes");
    assert_eq!((report.dead, report.pages_not_returned), (None, 0));
    let unbound = unbinding.join().expect("the thread");
    unbound.expect("it is unbound");
    assert!(!fs::exists(format!("{DRIVER}/{name}")).expect("sysfs"));
    println!("figure: asked for, closed, unbound: {said}");

    fs::write(format!("{DRIVER}/bind"), &name).expect("it is bound again");
    let ia = udapl::ia_open(&name, &OpenOptions::default()).expect("the adapter opens again");
    udapl::ia_close(ia, CloseFlags::Graceful).expect("it closes");
}

/// Returns the CPU time of this process in ticks of 10 ms: utime plus stime of `/proc/self/stat` (proc_pid_stat(5)).
fn ticks() -> u64 {
    let stat = fs::read_to_string("/proc/self/stat").expect("procfs");
    let (_, fields) = stat.rsplit_once(')').expect("a name");
    let number = |field: usize| -> u64 {
        let text = fields.split_whitespace().nth(field - 3);
        text.and_then(|text| text.parse().ok()).expect("a number")
    };
    number(14) + number(15)
}

/// Returns the number of voluntary context switches of this thread so far.
fn sleeps() -> u64 {
    fs::read_to_string("/proc/thread-self/status")
        .expect("procfs")
        .lines()
        .find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"))
        .and_then(|count| count.trim().parse().ok())
        .expect("a count")
}

#[test]
fn a_consumer_that_waits_in_vain_sleeps() {
    /// Time of the wait in seconds.
    const WAIT: u32 = 5;
    /// Maximum number of sleeps: far more than the health polling needs, far fewer than busy polling.
    const WAITS: u64 = 10 * WAIT as u64;
    let Some([name, _]) = functions() else {
        return;
    };
    let mut ia = udapl::ia_open(&name, &OpenOptions::default()).expect("an adapter");
    let evd = ia
        .evd_create(16, EvdFlags::DTO | EvdFlags::CONNECTION)
        .expect("an EVD");
    let (before, slept) = (ticks(), sleeps());
    let nothing = ia
        .evd_wait(evd, Timeout::from_micros(WAIT * 1_000_000), 1)
        .expect_err("nothing happens");
    let (used, slept) = (ticks() - before, sleeps() - slept);
    assert_eq!(nothing.error.return_type(), ReturnType::TimeoutExpired);
    assert!(
        (1..=WAITS).contains(&slept),
        "it woke {slept} times in {WAIT} seconds"
    );
    println!(
        "figure: {used} ticks of 10 ms (utime + stime) in {WAIT} s of waiting, woken {slept} times"
    );
    udapl::ia_close(ia, CloseFlags::Abrupt).expect("it closes");
}
