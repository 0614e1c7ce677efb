//! Serves functions to clients, either by an undisturbed `datctl` process or by a traced child.

use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{channel, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use driver::VfioUserServer;
use hw_sim::{LinkFaults, Profile, Sim, SimConfig, SimFunction};
use nix::unistd::getppid;
use tempfile::TempDir;
use udapl::fabric;
use udapl::fabric::pace::Pace;
use udapl::fabric::wire::{Wire, WirePath};

use super::judge::Place;
use super::parts::{heard, kept, report, served, session};

/// Prefix of an error in a client's report.
pub const CLIENT: &str = "client: ";
/// Limit on the polls in which the test waits until the server has freed the resources of a client that has ended.
const ASK: usize = 200;

/// A running `datctl sim serve`, which is killed when the test ends.
pub struct Datctl {
    child: Child,
    directory: TempDir,
}

impl Datctl {
    pub fn new() -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let mut command = Command::new(env!("CARGO_BIN_EXE_datctl"));
        command.args(["sim", "serve"]);
        for side in ["a", "b"] {
            command.arg("--socket").arg(directory.path().join(side));
        }
        let mut child = command.stdout(Stdio::piped()).spawn().expect("it runs");
        let mut lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
        for _ in 0..2 {
            let line = lines.next().expect("a line").expect("readable");
            assert!(line.starts_with("vfio-user:"), "{line}");
        }
        Self { child, directory }
    }
}

impl Place for Datctl {
    fn directory(&self) -> &Path {
        self.directory.path()
    }
}

impl Drop for Datctl {
    fn drop(&mut self) {
        // The child may have ended already; both errors are ignored.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The link between two served functions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Between {
    /// A link inside one simulation, which has both functions.
    Link,
    /// A datagram socket between two simulations, with one function each.
    Datagrams,
}

/// Runs in a child: serves two functions and executes the test's commands, one per line. Reports an error that occurs
/// before the functions are served.
pub fn played(directory: &Path, between: Between) {
    println!("\nready");
    heard();
    let _mark = getppid();
    let serving = started(directory, between);
    if let Err(error) = &serving {
        report("first", &Err(error.clone()));
    } else {
        println!("\nserving {}", kept());
    }
    loop {
        match heard().trim() {
            // This getppid(2) is the second mark. It follows the first client; the first mark precedes the start.
            "enough" => {
                let _mark = getppid();
            }
            "kept" => println!("\nkept {}", kept()),
            "again" => report("again", &started(directory, between)),
            _ => return,
        }
    }
}

/// A simulation whose virtual time follows real time, and its wire to the other simulation.
struct World {
    sim: Sim,
    wire: Option<Arc<Wire>>,
}

impl World {
    fn new() -> Self {
        let sim = Sim::new(SimConfig {
            seed: 0,
            event_log: false,
        });
        sim.set_posted_writes(true);
        Self { sim, wire: None }
    }

    fn function(&self, number: usize, side: &str) -> Result<Arc<SimFunction>, String> {
        let profile = Profile::named(side, fabric::mac(number));
        let function = self.sim.try_add_function(profile);
        function.map_err(|error| error.to_string())
    }

    /// Advances the simulation until the process ends.
    fn go_on(&self) {
        let mut pace = Pace::new(Instant::now());
        let (_never, nothing) = channel::<()>();
        loop {
            self.sim.advance(pace.step(Instant::now()));
            if let Some(wire) = &self.wire {
                wire.send();
            }
            let _time = nothing.recv_timeout(Duration::from_millis(1));
        }
    }
}

impl Drop for World {
    /// Cuts the wire, which frees the path of its socket.
    fn drop(&mut self) {
        if let Some(wire) = &self.wire {
            wire.cut();
        }
    }
}

/// Returns the simulations and the two functions, one for each side.
fn worlds(
    directory: &Path,
    between: Between,
) -> Result<(Vec<World>, Vec<Arc<SimFunction>>), String> {
    if between == Between::Link {
        let world = World::new();
        let functions = [world.function(0, "a")?, world.function(1, "b")?];
        let [a, b] = &functions;
        world.sim.connect(a, b, LinkFaults::default());
        return Ok((vec![world], functions.into()));
    }
    let (mut worlds, mut functions): (Vec<World>, Vec<_>) = (Vec::new(), Vec::new());
    for (number, [here, there]) in [["a", "b"], ["b", "a"]].into_iter().enumerate() {
        let mut world = World::new();
        let function = world.function(number, here)?;
        let [leads, to] = [here, there].map(|side| directory.join(format!("{side}.wire")));
        let path = WirePath::Datagrams {
            here: leads,
            there: to,
        };
        // The simulation advances every millisecond, so nothing has to wake it when a frame arrives.
        let (poke, _nobody_listens) = sync_channel(1);
        let wire = Wire::lay(&world.sim, &function, &path, LinkFaults::default(), poke);
        world.wire = Some(wire.map_err(|error| error.to_string())?);
        worlds.push(world);
        functions.push(function);
    }
    Ok((worlds, functions))
}

/// Starts two functions and their simulations. One thread serves each function, and one advances each simulation.
fn started(directory: &Path, between: Between) -> Result<(), String> {
    let (worlds, functions) = worlds(directory, between)?;
    let mut listeners = Vec::new();
    for side in ["a", "b"] {
        let listener = driver::listen_at(&directory.join(side));
        listeners.push(listener.map_err(|error| error.to_string())?);
    }
    let thread = |name: &str| thread::Builder::new().name(name.into());
    let (mut moved, mut begin) = (Vec::new(), Vec::new());
    for (function, (listener, path)) in functions.into_iter().zip(listeners) {
        let (all, there) = channel();
        begin.push(all);
        let serves = thread("server").spawn(move || {
            let _taken = path;
            // The sender is dropped if any thread failed to start; then this thread does not serve.
            if there.recv().is_err() {
                return;
            }
            let error = VfioUserServer::serve(function, listener);
            println!("\nended {error}");
        });
        moved.push(serves);
    }
    for world in worlds {
        let (all, there) = channel();
        begin.push(all);
        moved.push(thread("time").spawn(move || {
            if there.recv().is_ok() {
                world.go_on();
            }
        }));
    }
    let failed = moved.iter().find_map(|thread| thread.as_ref().err());
    if let Some(error) = failed.map(|error| format!("thread: {error}")) {
        drop(begin);
        // The threads own the paths of the sockets. The paths are free only when the threads have ended.
        for thread in moved.into_iter().flatten() {
            let _ended = thread.join();
        }
        return Err(error);
    }
    // Sends each thread the signal to begin.
    let _begun: Vec<_> = begin.into_iter().map(|thread| thread.send(())).collect();
    Ok(())
}

/// Runs two clients, one after the other. A system call of the server fails during the first. Returns the report.
pub fn clients(
    directory: &Path,
    mut stdin: ChildStdin,
    mut stdout: BufReader<ChildStdout>,
) -> String {
    let mut said = String::new();
    let talk = talk(directory, &mut stdin, &mut stdout, &mut said);
    if let Err(what) = talk {
        said += &format!("@broken {what}\n");
    }
    // This line ends the child in whichever state it is.
    let _gone = stdin.write_all(b"over\n");
    drop(stdin);
    // The rest of the child's output is read and discarded.
    let _cut = stdout.read_to_end(&mut Vec::new());
    said
}

fn talk(
    directory: &Path,
    stdin: &mut ChildStdin,
    stdout: &mut BufReader<ChildStdout>,
    said: &mut String,
) -> Result<(), String> {
    let mut send = |word: &str| stdin.write_all(format!("{word}\n").as_bytes());
    let mut answer = |keys: &[&str]| loop {
        let mut line = String::new();
        if stdout
            .read_line(&mut line)
            .map_err(|error| error.to_string())?
            == 0
        {
            return Err("it has ended".to_owned());
        }
        if let Some(key) = keys.iter().find(|key| line.starts_with(*key)) {
            return Ok(((*key).to_owned(), line[key.len()..].trim().to_owned()));
        }
        if line.starts_with("ended ") {
            return Err(line);
        }
    };
    let text = |error: std::io::Error| error.to_string();
    send("go").map_err(text)?;
    let (started, idle) = answer(&["serving ", "@first "])?;
    let names = served(directory);
    let first = |outcome: &Result<(), String>| match outcome {
        Ok(()) => "ok".to_owned(),
        Err(error) => format!("{CLIENT}{}", error.replace('\n', " ")),
    };
    if started == "serving " {
        let outcome = session(&names);
        *said += &format!("@first {}\n@idle {idle}\n", first(&outcome));
        send("enough").map_err(text)?;
    } else {
        // The server failed to start and reported why. It must start at the second attempt.
        *said += &format!("@first {idle}\n@kept 0 descriptors, 0 bytes\n");
        send("enough").map_err(text)?;
        send("again").map_err(text)?;
        let (_, again) = answer(&["@again "])?;
        if again != "ok" {
            return Err(format!("again: {again}"));
        }
        *said += &format!(
            "@second {}\n@kept 0 descriptors, 0 bytes\n",
            match session(&names) {
                Ok(()) => "ok".to_owned(),
                Err(error) => error,
            }
        );
        return Ok(());
    }
    let mut settled = |said: &mut String| -> Result<(), String> {
        let mut left = String::new();
        for _ in 0..ASK {
            send("kept").map_err(text)?;
            left = answer(&["kept "])?.1;
            if left == idle {
                break;
            }
            thread::yield_now();
        }
        *said += &format!("@kept {left}\n");
        Ok(())
    };
    settled(said)?;
    let second = session(&names);
    *said += &format!(
        "@second {}\n",
        second.map_or_else(|error| error, |()| "ok".to_owned())
    );
    settled(said)
}
