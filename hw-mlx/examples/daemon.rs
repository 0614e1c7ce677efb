//! A daemon that looks after a ConnectX function: no RDMA, no DAT, one io_uring loop.
//!
//! It opens the function, prints the firmware, what the device can do, its temperature, its port and its counters, and
//! then sleeps in its ring until the function has something to say, somebody asks for the metrics, or a second has
//! passed. Events of port, firmware pages and health are printed. A device that dies is closed and opened anew.
//!
//! ```text
//! cargo run -p hw-mlx --example daemon -- 0000:3b:00.2 /run/card.sock
//! socat - UNIX:/run/card.sock
//! ```
//!
//! `vfio-user:SOCKET` instead of the PCI address is a function that another process plays. A number behind the socket
//! ends the daemon after so many turns.

use std::error::Error;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::time::Duration;

use driver::{Clock, Function, FunctionError, Reactor, RealClock, listen_privately};
use hw_mlx::{AsyncEvent, CmdError, DeviceCounters, Hca, HcaConfig};

/// Time between two readings of temperature and counters.
const INTERVAL: Duration = Duration::from_secs(1);

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let (Some(name), Some(metrics)) = (arguments.next(), arguments.next()) else {
        return Err("usage: daemon PCI-ADDRESS|vfio-user:SOCKET METRICS-SOCKET [TURNS]".into());
    };
    let turns = arguments.next().map(|turns| turns.parse()).transpose()?;
    let (listener, _path) = listen_privately(Path::new(&metrics))?;
    let open = || match name.strip_prefix("vfio-user:") {
        Some(socket) => Function::vfio_user(socket),
        None => Function::vfio(&name),
    };
    let mut daemon = Daemon::new(open, listener, io::stdout())?;
    for _ in 0..turns.unwrap_or(u64::MAX) {
        daemon.turn(INTERVAL)?;
    }
    daemon.close()?;
    Ok(())
}

/// The daemon: the address of the function, the output, and the card while it is open.
pub struct Daemon<O, W> {
    open: O,
    out: W,
    listener: UnixListener,
    reactor: Reactor,
    clock: RealClock,
    card: Option<Hca>,
    /// The two metrics.
    millidegrees: i32,
    received_bytes: u64,
    /// Pages that the firmware has, as last printed.
    pages: u64,
}

impl<O: FnMut() -> Result<Function, FunctionError>, W: Write> Daemon<O, W> {
    /// A daemon that has opened nothing yet.
    pub fn new(open: O, listener: UnixListener, out: W) -> Result<Self, Box<dyn Error>> {
        listener.set_nonblocking(true)?;
        Ok(Self {
            open,
            out,
            listener,
            reactor: Reactor::new(8)?,
            clock: RealClock::new(),
            card: None,
            millidegrees: 0,
            received_bytes: 0,
            pages: 0,
        })
    }

    /// Opens the card if it is not open, sleeps at most the given time, and does the work that is then due.
    pub fn turn(&mut self, patience: Duration) -> Result<(), Box<dyn Error>> {
        if self.card.is_none() {
            self.bring_up()?;
        }
        let until = self.clock.now() + patience;
        let card = self.card.as_mut().map(Hca::descriptor).transpose()?;
        let mut readable = vec![self.listener.as_fd()];
        readable.extend(card.iter().map(AsFd::as_fd));
        self.reactor.wait_for(&readable, until)?;
        if let Some(mut card) = self.card.take() {
            card.woken();
            card.process_events();
            card.check_health();
            let looked = self.look(&mut card);
            if self.hear(&mut card)? {
                self.card = Some(card);
                looked?;
            } else {
                // Its memory is ours again, and the next turn opens it.
                let _refused_by_a_dead_device = card.close();
            }
        }
        self.answer()?;
        Ok(())
    }

    /// Gives the card back.
    pub fn close(mut self) -> Result<(), Box<dyn Error>> {
        if let Some(card) = self.card.take() {
            let report = card.close()?;
            writeln!(self.out, "closed after {} commands", report.commands)?;
        }
        Ok(())
    }

    fn bring_up(&mut self) -> Result<(), Box<dyn Error>> {
        let opened = (self.open)().map_err(|error| error.to_string());
        let opened = opened.and_then(|function| {
            Hca::open(function, HcaConfig::new()).map_err(|error| error.to_string())
        });
        let mut card = match opened {
            Ok(card) => card,
            Err(error) => {
                writeln!(self.out, "not opened: {error}")?;
                return Ok(());
            }
        };
        let (major, minor, sub_minor) = card.firmware_version();
        let (limits, port) = (card.caps().limits(), card.port());
        writeln!(
            self.out,
            "{}: device {:#06x}, firmware {major}.{minor:02}.{sub_minor:04}; {} queue pairs, {} completion queues, messages of {} bytes",
            card.name(),
            card.device_id(),
            limits.qps,
            limits.cqs,
            limits.message_bytes
        )?;
        writeln!(
            self.out,
            "port: MAC {}, MTU {}, {}",
            port.mac.map(|byte| format!("{byte:02x}")).join(":"),
            port.ip_mtu(),
            if card.link_is_up() { "up" } else { "down" }
        )?;
        if let Some(megabits) = card.port_megabits()? {
            writeln!(self.out, "port: {megabits} Mb/s")?;
        }
        self.look(&mut card)?;
        let degrees = f64::from(self.millidegrees) / 1000.0;
        writeln!(self.out, "temperature: {degrees} degrees Celsius")?;
        let DeviceCounters { queue, port, .. } = card.counters()?;
        let queue = queue.iter().flat_map(|counters| counters.named());
        let port = port.iter().flat_map(|counters| counters.named());
        for (name, count) in queue.chain(port).filter(|(_, count)| *count > 0) {
            writeln!(self.out, "{name}: {count}")?;
        }
        self.card = Some(card);
        Ok(())
    }

    /// Takes in temperature and counters.
    fn look(&mut self, card: &mut Hca) -> Result<(), CmdError> {
        self.millidegrees = card.millidegrees()?.unwrap_or(0);
        let vport = card.counters()?.vport;
        let named = vport.iter().flat_map(|counters| counters.named());
        let bytes = named.filter(|(name, _)| name.starts_with("rx_") && name.ends_with("_bytes"));
        self.received_bytes = bytes.map(|(_, count)| count).sum();
        Ok(())
    }

    /// Prints the function's events. Returns false if the device is dead.
    fn hear(&mut self, card: &mut Hca) -> io::Result<bool> {
        let mut lives = true;
        while let Some(event) = card.next_async() {
            writeln!(self.out, "{event}")?;
            lives &= !matches!(event, AsyncEvent::DeviceDead { .. });
        }
        let counts = card.page_counts();
        let pages = counts.given.saturating_sub(counts.returned);
        if pages != std::mem::replace(&mut self.pages, pages) {
            writeln!(self.out, "the firmware has {pages} pages of 4 KiB")?;
        }
        Ok(lives)
    }

    /// Writes the metrics to all who have connected.
    fn answer(&mut self) -> io::Result<()> {
        let degrees = f64::from(self.millidegrees) / 1000.0;
        let bytes = self.received_bytes;
        while let Ok((mut asker, _)) = self.listener.accept() {
            // A client that leaves before the answer does not want it.
            let _gone = asker.write_all(
                format!("card_temperature_celsius {degrees}\ncard_received_bytes_total {bytes}\n")
                    .as_bytes(),
            );
        }
        Ok(())
    }
}
