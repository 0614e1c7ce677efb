//! The simulated functions in a guest's slots, and their servers: `datctl sim serve`.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, ChildStdout, Command, Stdio};

use anyhow::{Context, Result, bail};
use guest::child::{Running, tied};

use super::build;
use super::log::show_tail;
use super::machine::Machine;

/// Socket of the guest's network device at its end of the wire, as a path in the folder of the run. The function's end
/// is wire.sock.
pub const NETWORK_SOCKET: &str = "net.sock";
/// Placeholder for the server's number in the arguments of the functions' servers.
const NUMBER: &str = "%";
/// Control socket of a simulator, as a path in the folder of the run. `%` stands for the server's number. Some suites
/// do not use this socket.
pub const STEER_SOCKET: &str = "steer%.sock";
/// Log of the servers, as a path in the folder of the run.
pub const LOG: &str = "functions.log";

/// Simulated functions in the PCI slots of a guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Slots {
    /// No function.
    None,
    /// One function, whose link leads to a network device of the guest.
    Networked,
    /// Two functions, each with a server of its own. The link of each leads to a process on the host.
    Wired,
    /// Two functions on one link.
    Linked,
    /// A card: its physical function, then two virtual functions. The script may change their settings in the role of
    /// the card's administrator ([`Line::Card`](super::serial::Line::Card)).
    Card,
}

impl Slots {
    /// Returns the functions' sockets, in the order of their slots.
    pub const fn sockets(self) -> &'static [&'static str] {
        match self {
            Self::None => &[],
            Self::Networked => &["0.sock"],
            Self::Linked | Self::Wired => &["0.sock", "1.sock"],
            Self::Card => &["card.pf", "card.vf0", "card.vf1"],
        }
    }

    /// Returns for each server its arguments, and the number of its sockets.
    fn servers(self) -> Vec<(Vec<&'static str>, usize)> {
        let sockets = self.sockets();
        let of = |some: &[&'static str]| {
            let arguments = some.iter().flat_map(|socket| ["--socket", socket]);
            (arguments.collect(), some.len())
        };
        match self {
            Self::None => Vec::new(),
            Self::Networked | Self::Linked => vec![of(sockets)],
            Self::Wired => sockets.chunks(1).map(of).collect(),
            Self::Card => {
                let card = vec!["--card", "card", "--vfs", "2", "--control"];
                vec![(card, sockets.len())]
            }
        }
    }
}

/// A running server of simulated functions.
struct Server {
    running: Running,
    said: BufReader<ChildStdout>,
    /// Standard input of the server of a card, which reads settings from it. `None` for other servers.
    input: Option<ChildStdin>,
}

/// All servers of the guest's functions.
pub struct Servers {
    all: Vec<Server>,
    /// Path of `datctl`, which runs in the folder of the run.
    program: PathBuf,
    folder: PathBuf,
}

impl Server {
    /// Sends a setting of a virtual function to this server, as `ip link set PF vf` would make it. Returns the answer.
    fn card(&mut self, settings: &str) -> Result<String> {
        let input = self.input.as_mut().context("there is no card")?;
        writeln!(input, "{settings}").context("datctl sim serve reads nothing")?;
        let mut line = String::new();
        self.said.read_line(&mut line)?;
        self.running.check()?;
        Ok(line.trim_end().to_owned())
    }
}

impl Servers {
    /// Sends a setting of a virtual function to the first server, as `ip link set PF vf` would make it. Returns the
    /// answer.
    pub fn card(&mut self, settings: &str) -> Result<String> {
        let server = self.all.first_mut().context("there is no server")?;
        server.card(settings)
    }

    /// Sends a request to the simulator with the number at the beginning of the request, or to the first simulator if
    /// the request begins with no number. Returns `ok` and the first line of the answer, or that of an error text.
    pub fn steer(&self, words: &str) -> Result<String> {
        let first = words.split_once(' ');
        let (number, words) = match first {
            Some((number, rest)) if number.parse::<usize>().is_ok() => (number, rest),
            _ => ("0", words),
        };
        let mut command = Command::new(&self.program);
        // The path of a socket must be short. A relative path is short even if the folder's path is long.
        command.current_dir(&self.folder);
        command.args(["sim", "ctl", &STEER_SOCKET.replace(NUMBER, number)]);
        let said = command.args(words.split_whitespace()).output()?;
        let (ok, text) = if said.status.success() {
            ("ok ", said.stdout)
        } else {
            ("", said.stderr)
        };
        let text = String::from_utf8_lossy(&text);
        Ok(format!("{ok}{}", text.lines().next().unwrap_or_default()))
    }
}

/// Starts the servers of the functions in these slots. `more` are arguments of `datctl sim serve` in addition to the
/// sockets.
pub fn serve(machine: &Machine, slots: Slots, more: &[&str]) -> Result<Servers> {
    let run = machine.path("run");
    std::fs::create_dir_all(&run)?;
    let servers = slots.servers();
    let steered = (0..servers.len()).map(|number| numbered(STEER_SOCKET, number));
    let sockets = slots.sockets().iter().chain(&[NETWORK_SOCKET]);
    for socket in sockets.map(|&socket| socket.to_owned()).chain(steered) {
        let _ = std::fs::remove_file(run.join(socket));
    }
    std::fs::write(run.join(LOG), "")?;
    let program = build::datctl()?;
    let all = servers.iter().enumerate();
    let all = all.map(|(number, (arguments, sockets))| {
        let more = more.iter().map(|word| numbered(word, number));
        let arguments = arguments.iter().map(|&word| word.to_owned()).chain(more);
        let mut server = serve_some(&program, &run, arguments.collect(), slots == Slots::Card)?;
        for _ in 0..*sockets {
            let mut line = String::new();
            server.said.read_line(&mut line)?;
            if line.is_empty() {
                show_tail(&run.join(LOG));
                server.running.check()?;
                bail!("datctl sim serve serves nothing");
            }
        }
        Ok(server)
    });
    Ok(Servers {
        all: all.collect::<Result<_>>()?,
        program,
        folder: run.clone(),
    })
}

/// Replaces the placeholder in an argument by the server's number.
fn numbered(word: &str, number: usize) -> String {
    word.replace(NUMBER, &number.to_string())
}

/// Starts one server of functions.
fn serve_some(
    program: &Path,
    run: &Path,
    arguments: Vec<String>,
    takes_input: bool,
) -> Result<Server> {
    let mut command = Command::new(program);
    // The path of a socket must be short. A relative path is short even if the folder's path is long.
    command.current_dir(run).args(["sim", "serve"]);
    command.args(arguments);
    command.env("RUST_LOG", "info").env("NO_COLOR", "1");
    let mut command = tied(&command);
    let log = File::options().append(true).open(run.join(LOG))?;
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(log);
    let mut running = Running::start("datctl sim serve", command)?;
    let said = running.child.stdout.take().context("its output")?;
    let input = running.child.stdin.take();
    Ok(Server {
        running,
        said: BufReader::new(said),
        input: input.filter(|_| takes_input),
    })
}
