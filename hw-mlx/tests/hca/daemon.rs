//! The example daemon, which monitors a function, on a simulated function.

#[path = "../../examples/daemon.rs"]
#[allow(
    dead_code,
    reason = "a program of its own, whose main is not called here"
)]
mod example;

use std::cell::RefCell;
use std::io::{Read as _, Write};
use std::os::unix::net::UnixStream;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use driver::{Device, Function, listen_privately};
use hw_sim::{Fault, Profile, Sim, SimConfig};
use mlx_prm::RegisterId;

use example::Daemon;

/// MTMP register of a chip of 43.5 degrees: 348 eighths (Linux `hwmon.c` of mlx5_core; layout
/// `mlx5_ifc_mtmp_reg_bits`).
const WARM: [u8; 32] = {
    let mut image = [0; 32];
    [image[6], image[7]] = [0x01, 0x5c];
    image
};

/// A writer that keeps the lines of the daemon.
#[derive(Clone, Default)]
struct Lines(Rc<RefCell<Vec<u8>>>);

impl Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.borrow_mut().write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Lines {
    fn take(&self) -> String {
        String::from_utf8(self.0.take()).expect("text")
    }
}

/// The whole daemon, imports included, has at most 200 lines.
#[test]
fn the_daemon_without_dat_has_at_most_200_lines() {
    let lines = include_str!("../../examples/daemon.rs").lines().count();
    assert!(lines <= 200, "{lines} lines");
}

/// The daemon prints firmware, temperature, port, counters and pages, and receives events. It answers with two metrics,
/// and continues after the device has failed and was reset.
#[test]
fn a_daemon_without_dat_looks_after_a_function_beyond_its_death() {
    let sim = Sim::new(SimConfig::default());
    let mut profile = Profile::default();
    profile.registers.insert(RegisterId::MTMP.0, WARM.to_vec());
    let function = sim.add_function(profile);
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("metrics");
    let (listener, _path) = listen_privately(&path).expect("a socket");
    let lines = Lines::default();
    let open = || Function::in_process(Arc::clone(&function) as Arc<dyn Device>);
    let mut daemon = Daemon::new(open, listener, lines.clone()).expect("a ring");
    let run_once = |daemon: &mut Daemon<_, _>| {
        assert!(
            daemon.run_once(Duration::ZERO).expect("an iteration"),
            "wanted back"
        );
        lines.take()
    };

    let told = run_once(&mut daemon);
    for part in [
        "firmware ",
        "queue pairs",
        "port: MAC ",
        "temperature: 43.5 degrees",
        "out_of_buffer: 0\n",
        "the firmware has ",
    ] {
        assert!(told.contains(part), "{part}: {told}");
    }

    let mut asker = UnixStream::connect(&path).expect("somebody listens");
    assert_eq!(run_once(&mut daemon), "", "nothing happened");
    let mut metrics = String::new();
    asker.read_to_string(&mut metrics).expect("an answer");
    assert_eq!(
        metrics,
        "card_temperature_celsius 43.5\ncard_received_bytes_total 0\n"
    );

    // The machine's clock determines when health is polled and when pages are given, so an event may take several calls
    // of `run_once`.
    let next = |daemon: &mut Daemon<_, _>| {
        let mut told = (0..10_000).map(|_| {
            daemon
                .run_once(Duration::from_millis(10))
                .expect("an iteration");
            lines.take()
        });
        told.find(|told| !told.is_empty()).expect("an event")
    };
    sim.inject(&function, &Fault::LinkDown);
    assert_eq!(next(&mut daemon), "the port is down\n");
    sim.inject(&function, &Fault::PageRequest { pages: 8 });
    let told = next(&mut daemon);
    assert!(told.starts_with("the firmware has "), "{told}");
    sim.inject(&function, &Fault::HealthSyndrome(0x08));
    let told = next(&mut daemon);
    assert!(told.contains("the device is dead: "), "{told}");
    let told = run_once(&mut daemon);
    assert!(told.contains("firmware "), "it is open again: {told}");
    // The system unbinds the function, and waits until it is closed.
    sim.inject(&function, &Fault::WantedBack);
    let mut iterations = (0..10).map(|_| {
        daemon
            .run_once(Duration::from_millis(10))
            .expect("an iteration")
    });
    assert!(
        iterations.any(|goes_on| !goes_on),
        "the notice is heard by the sleeper that it wakes"
    );
    assert_eq!(lines.take(), "the system wants the function back\n");
    assert!(sim.report(&function).is_clean());
}
