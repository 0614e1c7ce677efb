//! A daemon that monitors a ConnectX function: no RDMA, no DAT, one io_uring loop.
//!
//! The daemon opens the function and prints its firmware version, capabilities, temperature, port and counters. It then
//! sleeps in its ring until the function has an event, a client connects for the metrics, or a second has passed.
//! Events of port, firmware pages and health are printed. If the device dies, the daemon closes it and opens it anew.
//! The daemon ends once the system requests the function's release.
//!
//! ```text
//! cargo run -p hw-mlx --example daemon -- 0000:3b:00.2 /run/card.sock
//! socat - UNIX:/run/card.sock
//! ```
//!
//! `vfio-user:SOCKET` instead of the PCI address opens a function that another process simulates. If a number follows
//! the metrics socket, the daemon ends after that many iterations of its loop.

use std::error::Error;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::time::Duration;

use driver::{Clock, Function, FunctionError, Instant, Reactor, RealClock, listen_privately};
use hw_mlx::AsyncEvent::{self, DeviceDead, DeviceRequested};
use hw_mlx::{CmdError, DeviceCounters, Hca, HcaConfig};

/// Time between two readings of temperature and counters.
const INTERVAL: Duration = Duration::from_secs(1);

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let (Some(name), Some(metrics)) = (arguments.next(), arguments.next()) else {
        return Err("usage: daemon PCI-ADDRESS|vfio-user:SOCKET METRICS-SOCKET [COUNT]".into());
    };
    let count = arguments.next().map(|number| number.parse()).transpose()?;
    let (listener, _path) = listen_privately(Path::new(&metrics))?;
    let open = || match name.strip_prefix("vfio-user:") {
        Some(socket) => Function::vfio_user(socket),
        None => Function::vfio(&name),
    };
    let mut daemon = Daemon::new(open, listener, io::stdout())?;
    for _ in 0..count.unwrap_or(u64::MAX) {
        if !daemon.run_once(INTERVAL)? {
            break;
        }
    }
    daemon.close()?;
    Ok(())
}

/// The daemon: the closure that opens the function, the output, and the card while it is open.
pub struct Daemon<O, W> {
    open: O,
    out: W,
    listener: UnixListener,
    reactor: Reactor,
    clock: RealClock,
    card: Option<Hca>,
    /// Time of the next reading of temperature and counters.
    due: Instant,
    /// Temperature in degrees Celsius, the first of the two metrics. `None` if the device does not report it, which is
    /// usual for a virtual function.
    degrees: Option<f64>,
    received_bytes: u64,
    /// Number of pages that the firmware holds, as last printed.
    pages: u64,
}

impl<O: FnMut() -> Result<Function, FunctionError>, W: Write> Daemon<O, W> {
    /// Makes a daemon that has not opened the card yet.
    pub fn new(open: O, listener: UnixListener, out: W) -> Result<Self, Box<dyn Error>> {
        listener.set_nonblocking(true)?;
        Ok(Self {
            open,
            out,
            listener,
            reactor: Reactor::new(8)?,
            clock: RealClock::new(),
            card: None,
            due: Instant(0),
            degrees: None,
            received_bytes: 0,
            pages: 0,
        })
    }

    /// Runs one iteration of the loop: opens the card if it is not open, sleeps at most for the given time, and does
    /// the work that is then due. Returns false once the system requests the function's release, for another driver.
    pub fn run_once(&mut self, patience: Duration) -> Result<bool, Box<dyn Error>> {
        if self.card.is_none()
            && let Err(error) = self.bring_up()
        {
            writeln!(self.out, "not opened: {error}")?;
        }
        let card = self.card.as_mut().map(Hca::descriptor).transpose()?;
        let mut readable = vec![self.listener.as_fd()];
        readable.extend(card.iter().map(AsFd::as_fd));
        self.reactor
            .wait_for(&readable, self.clock.now() + patience)?;
        let mut end = None;
        if let Some(mut card) = self.card.take() {
            card.woken();
            card.process_events();
            card.check_health();
            if self.due <= self.clock.now()
                && let Err(error) = self.read_sensors(&mut card)
            {
                writeln!(self.out, "not read: {error}")?;
            }
            end = self.hear(&mut card)?;
            match end {
                // Closing frees the card's memory. The next iteration opens the card again, unless the system has
                // requested its release.
                Some(_) => drop(card.close()),
                None => self.card = Some(card),
            }
        }
        self.answer();
        Ok(!matches!(end, Some(DeviceRequested)))
    }

    /// Closes the card.
    pub fn close(mut self) -> Result<(), Box<dyn Error>> {
        self.card.take().map(Hca::close).transpose()?;
        Ok(())
    }

    fn bring_up(&mut self) -> Result<(), Box<dyn Error>> {
        let mut card = Hca::open((self.open)()?, HcaConfig::new())?;
        let (major, minor, sub_minor) = card.firmware_version();
        let (name, id, limits) = (card.name(), card.device_id(), card.caps().limits());
        let out = &mut self.out;
        let firmware = format!("{major}.{minor:02}.{sub_minor:04}");
        writeln!(out, "{name}: device {id:#06x}, firmware {firmware}")?;
        let (qps, cqs) = (limits.qps, limits.cqs);
        writeln!(out, "{qps} queue pairs, {cqs} completion queues")?;
        let speed = card.port_megabits()?;
        let port = card.port();
        let mac = port.mac.map(|byte| format!("{byte:02x}")).join(":");
        let speed = speed.map_or(String::new(), |speed| format!(", {speed} Mb/s"));
        let state = if card.link_is_up() { "up" } else { "down" };
        let mtu = port.ip_mtu();
        writeln!(out, "port: MAC {mac}, MTU {mtu}, {state}{speed}")?;
        self.read_sensors(&mut card)?;
        if let Some(degrees) = self.degrees {
            writeln!(self.out, "temperature: {degrees} degrees Celsius")?;
        }
        let DeviceCounters { queue, port, .. } = card.counters()?;
        let named = queue.iter().flat_map(|of| of.named());
        for (name, count) in named.chain(port.iter().flat_map(|of| of.named())) {
            writeln!(self.out, "{name}: {count}")?;
        }
        self.card = Some(card);
        Ok(())
    }

    /// Reads temperature and counters.
    fn read_sensors(&mut self, card: &mut Hca) -> Result<(), CmdError> {
        self.due = self.clock.now() + INTERVAL;
        let milli = card.millidegrees()?;
        self.degrees = milli.map(|milli| f64::from(milli) / 1000.0);
        let vport = card.counters()?.vport;
        let named = vport.iter().flat_map(|counters| counters.named());
        let bytes = named.filter(|(name, _)| name.starts_with("rx_") && name.ends_with("_bytes"));
        self.received_bytes = bytes.map(|(_, count)| count).sum();
        Ok(())
    }

    /// Prints the function's events. Returns the event that requires the card to be closed, if there was one.
    fn hear(&mut self, card: &mut Hca) -> io::Result<Option<AsyncEvent>> {
        let mut end = None;
        while let Some(event) = card.next_async() {
            writeln!(self.out, "{event}")?;
            // A device that is being unplugged also dies, after the request. The request takes precedence.
            if matches!(event, DeviceDead { .. } | DeviceRequested) && end != Some(DeviceRequested)
            {
                end = Some(event);
            }
        }
        let counts = card.page_counts();
        let pages = counts.given.saturating_sub(counts.returned);
        if pages != std::mem::replace(&mut self.pages, pages) {
            writeln!(self.out, "the firmware has {pages} pages of 4 KiB")?;
        }
        Ok(end)
    }

    /// Writes the metrics to a client that has connected. Each iteration serves one client, so that clients do not
    /// delay events.
    fn answer(&mut self) {
        if let Ok((mut client, _)) = self.listener.accept() {
            let text = |at| format!("card_temperature_celsius {at}\n");
            let degrees = self.degrees.map_or(String::new(), text);
            // If the client has disconnected, the write fails. The error is ignored: no client needs the metrics.
            let bytes = self.received_bytes;
            let _gone = writeln!(client, "{degrees}card_received_bytes_total {bytes}");
        }
    }
}
