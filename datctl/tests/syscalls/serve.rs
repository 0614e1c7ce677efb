//! Functions that are served: by a process that nobody disturbs, and by a child that is traced.

use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

use driver::VfioUserServer;
use hw_sim::{LinkFaults, Profile, Sim, SimConfig};
use nix::unistd::getppid;
use tempfile::TempDir;
use udapl::fabric;
use udapl::fabric::pace::Pace;

use super::judge::Place;
use super::parts::{heard, kept, served, session, tell};

/// How what a client says begins.
pub const CLIENT: &str = "client: ";
/// How often a server is asked what it still keeps of a client that has gone.
const ASK: usize = 200;

/// `datctl sim serve`, killed when the test is over.
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
        // It may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Played by a child: serves two functions on a link, and does what it is told. What fails before it serves is its answer.
pub fn played(directory: &Path) {
    println!("\nready");
    heard();
    let _mark = getppid();
    let serving = started(directory);
    if let Err(error) = &serving {
        tell("first", &Err(error.clone()));
    } else {
        println!("\nserving {}", kept());
    }
    loop {
        match heard().trim() {
            // The marks are one before the first client, and one behind it.
            "enough" => {
                let _mark = getppid();
            }
            "kept" => println!("\nkept {}", kept()),
            "again" => tell("again", &started(directory)),
            _ => return,
        }
    }
}

/// Two functions in a world of their own, whose time follows the machine's.
fn started(directory: &Path) -> Result<(), String> {
    let sim = Sim::new(SimConfig {
        seed: 0,
        event_log: false,
    });
    sim.set_posted_writes(true);
    let (mut functions, mut listeners) = (Vec::new(), Vec::new());
    for (number, side) in ["a", "b"].into_iter().enumerate() {
        let profile = Profile::named(side, fabric::mac(number));
        functions.push(
            sim.try_add_function(profile)
                .map_err(|error| error.to_string())?,
        );
        let listener = driver::listen_at(&directory.join(side));
        listeners.push(listener.map_err(|error| error.to_string())?);
    }
    sim.connect(&functions[0], &functions[1], LinkFaults::default());
    let thread = |name: &str| thread::Builder::new().name(name.into());
    let (mut moved, mut begin) = (Vec::new(), Vec::new());
    for (function, (listener, path)) in functions.into_iter().zip(listeners) {
        let (all, there) = channel();
        begin.push(all);
        let serves = thread("server").spawn(move || {
            let _taken = path;
            // Without one of the threads there is no server.
            if there.recv().is_err() {
                return;
            }
            let error = VfioUserServer::serve(function, listener);
            println!("\nended {error}");
        });
        moved.push(serves);
    }
    let (all, there) = channel();
    begin.push(all);
    moved.push(thread("time").spawn(move || {
        if there.recv().is_err() {
            return;
        }
        let mut pace = Pace::new(Instant::now());
        let (_never, nothing) = channel::<()>();
        loop {
            sim.advance(pace.step(Instant::now()));
            let _time = nothing.recv_timeout(Duration::from_millis(1));
        }
    }));
    let failed = moved.iter().find_map(|thread| thread.as_ref().err());
    if let Some(error) = failed.map(|error| format!("thread: {error}")) {
        drop(begin);
        // The paths are free when they have ended.
        for thread in moved.into_iter().flatten() {
            let _ended = thread.join();
        }
        return Err(error);
    }
    // It is for each that has one.
    let _begun: Vec<_> = begin.into_iter().map(|thread| thread.send(())).collect();
    Ok(())
}

/// Two clients, one after the other, of a server that is disturbed while it has the first; what is to be said of it.
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
    // Whatever it is doing, it ends with this.
    let _gone = stdin.write_all(b"over\n");
    drop(stdin);
    // It says something at its end.
    let _cut = stdout.read_to_end(&mut Vec::new());
    said
}

fn talk(
    directory: &Path,
    stdin: &mut ChildStdin,
    stdout: &mut BufReader<ChildStdout>,
    said: &mut String,
) -> Result<(), String> {
    let mut tells = |word: &str| stdin.write_all(format!("{word}\n").as_bytes());
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
    tells("go").map_err(text)?;
    let (started, idle) = answer(&["serving ", "@first "])?;
    let names = served(directory);
    let first = |outcome: &Result<(), String>| match outcome {
        Ok(()) => "ok".to_owned(),
        Err(error) => format!("{CLIENT}{}", error.replace('\n', " ")),
    };
    if started == "serving " {
        let outcome = session(&names);
        *said += &format!("@first {}\n@idle {idle}\n", first(&outcome));
        tells("enough").map_err(text)?;
    } else {
        // It could not begin, says why, and can when it is asked again.
        *said += &format!("@first {idle}\n@kept 0 descriptors, 0 bytes\n");
        tells("enough").map_err(text)?;
        tells("again").map_err(text)?;
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
            tells("kept").map_err(text)?;
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
