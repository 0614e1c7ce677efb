//! The frames of the connection manager as pcapng, because no card reports them.
//!
//! The driver reports each datagram that it posted or received (events `hw_mlx::mad`). The frame around a datagram is
//! rebuilt from the report, with its checksums. Fields that the card does not report (the sender's MAC and
//! UDP port of a received frame, packet sequence numbers) are 0. The time of a frame is the time at which the driver
//! posted or received the datagram. So this capture shows the frames as *intended*; a capture at a mirror port shows
//! the frames as sent.

use std::collections::BTreeMap;
use std::error::Error;
use std::fmt;
use std::fs::File;
use std::io::BufWriter;
use std::net::Ipv6Addr;
use std::path::Path;
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use hw_mlx::recorder::Datagram;
use hw_sim::PortType;
use hw_sim::pcap::{Capture, CaptureError};
use tracing::Subscriber;
use tracing::field::{Field, Visit};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;
use udapl::recorder::{Qpn, datagram_frame};

/// The capture of the run; unset until a run begins.
static WIRE: OnceLock<Mutex<Wire>> = OnceLock::new();

struct Wire {
    /// The capture; `None` once it has ended.
    capture: Option<Capture<BufWriter<File>>>,
    /// The error that ended the capture early, if one did.
    failed: Option<CaptureError>,
    /// Interface numbers of the adapters, by name.
    adapters: BTreeMap<String, u32>,
}

/// Begins the capture.
pub(super) fn begin(path: &Path) -> Result<(), Box<dyn Error>> {
    let file = File::create(path).map_err(|error| format!("{}: {error}", path.display()))?;
    let wire = Wire {
        capture: Some(Capture::new(BufWriter::new(file))?),
        failed: None,
        adapters: BTreeMap::new(),
    };
    // If a process runs a second acceptance, as tests do, the capture continues in the first run's file.
    let _ = WIRE.set(Mutex::new(wire));
    Ok(())
}

/// Flushes the capture. Returns the error that ended it, if one did.
pub(super) fn end() -> Option<CaptureError> {
    let mut wire = WIRE.get()?.lock().unwrap_or_else(PoisonError::into_inner);
    wire.write(Capture::flush);
    wire.failed.take()
}

/// The tracing layer that receives the driver's events.
pub(crate) struct Listener;

impl<S: Subscriber> Layer<S> for Listener {
    fn on_event(&self, event: &tracing::Event<'_>, _: Context<'_, S>) {
        let Some(wire) = WIRE.get() else { return };
        let mut said = Said::default();
        event.record(&mut said);
        let Some(frame) = said.frame() else { return };
        let now = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .ok()
            .and_then(|now| u64::try_from(now.as_nanos()).ok())
            .unwrap_or_default();
        let mut wire = wire.lock().unwrap_or_else(PoisonError::into_inner);
        // A full disk ends the capture, but not the run. The error is reported at the end of the run.
        wire.frame(said.text("adapter"), now, &frame);
    }
}

impl Wire {
    /// Writes to the capture. The first error ends the capture. `None` if the capture has ended.
    fn write<T>(
        &mut self,
        write: impl FnOnce(&mut Capture<BufWriter<File>>) -> Result<T, CaptureError>,
    ) -> Option<T> {
        match write(self.capture.as_mut()?) {
            Ok(done) => Some(done),
            Err(error) => {
                self.failed = Some(error);
                let ended = self.capture.take().map(Capture::into_inner);
                // Buffered bytes are dropped: they would follow a gap in the file.
                let _held_back = ended.map(BufWriter::into_parts);
                None
            }
        }
    }

    fn frame(&mut self, adapter: &str, now: u64, frame: &[u8]) -> Option<()> {
        let number = match self.adapters.get(adapter) {
            Some(&number) => number,
            None => {
                let add =
                    |capture: &mut Capture<_>| capture.add_interface(adapter, PortType::Ethernet);
                let number = self.write(add)?;
                self.adapters.insert(adapter.to_owned(), number);
                number
            }
        };
        self.write(|capture| capture.frame(number, now, frame))
    }
}

/// The fields of an event, as text.
#[derive(Default)]
struct Said(BTreeMap<&'static str, String>);

impl Visit for Said {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.0.insert(field.name(), format!("{value:?}"));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.insert(field.name(), value.to_owned());
    }
}

impl Said {
    fn text(&self, name: &str) -> &str {
        self.0.get(name).map_or("", String::as_str)
    }

    fn number<T: std::str::FromStr>(&self, name: &str) -> Option<T> {
        self.text(name).parse().ok()
    }

    /// Returns the frame around the datagram; `None` if the event is no datagram.
    fn frame(&self) -> Option<Vec<u8>> {
        Some(datagram_frame(&Datagram {
            source_mac: self.mac("source_mac")?,
            mac: self.mac("mac")?,
            source: self.address("source")?.octets(),
            destination: self.address("destination")?.octets(),
            traffic_class: self.number("traffic_class")?,
            port: self.number("port")?,
            source_qpn: Qpn::checked(self.number("source_qpn")?)?,
            qpn: Qpn::checked(self.number("qpn")?)?,
            mad: bytes(self.text("mad"))?.try_into().ok()?,
        }))
    }

    fn address(&self, name: &str) -> Option<Ipv6Addr> {
        self.number(name)
    }

    fn mac(&self, name: &str) -> Option<[u8; 6]> {
        bytes(&self.text(name).replace(':', ""))?.try_into().ok()
    }
}

/// Parses hex digits as bytes; `None` if their number is odd, or a character is no digit.
pub(crate) fn bytes(digits: &str) -> Option<Vec<u8>> {
    // `from_str_radix` would accept a sign as the first of two characters.
    let is_hex = digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    let even = digits.len().is_multiple_of(2);
    (is_hex && even).then(|| {
        (0..digits.len())
            .step_by(2)
            .map(|at| u8::from_str_radix(&digits[at..at + 2], 16).ok())
            .collect()
    })?
}

#[cfg(test)]
mod tests {
    use hw_sim::wire::Packet;

    use super::*;

    fn said(fields: &[(&'static str, &str)]) -> Said {
        Said(
            fields
                .iter()
                .map(|&(name, text)| (name, text.to_owned()))
                .collect(),
        )
    }

    #[test]
    fn bytes_have_two_hex_digits_each() {
        assert_eq!(bytes("00fFa1"), Some(vec![0, 0xff, 0xa1]));
        for wrong in ["0", "0g", "+f", "\u{e9}"] {
            assert_eq!(bytes(wrong), None, "{wrong}");
        }
    }

    /// Returns a datagram of 256 bytes, as hex digits.
    fn mad() -> String {
        "01070103".repeat(64)
    }

    fn fields(mad: &str) -> [(&'static str, &str); 9] {
        [
            ("source_mac", "02:00:5e:10:00:01"),
            ("mac", "02:00:5e:10:00:02"),
            ("source", "fe80::5eff:fe10:1"),
            ("destination", "fe80::5eff:fe10:2"),
            ("traffic_class", "2"),
            ("port", "49152"),
            ("source_qpn", "1"),
            ("qpn", "1"),
            ("mad", mad),
        ]
    }

    #[test]
    fn a_datagram_becomes_the_frame_it_travels_in() {
        let frame = said(&fields(&mad())).frame().expect("a frame");
        let packet = Packet::parse(&frame).expect("with a good ICRC");
        assert_eq!(packet.payload[..4], [1, 7, 1, 3]);
        assert_eq!(packet.network.dst_gid()[15], 2);
        assert_eq!(packet.bth.dest_qpn, Qpn::GSI);
    }

    #[test]
    fn what_is_no_datagram_becomes_no_frame() {
        let mad = mad();
        for gone in 0..9 {
            let mut fields = fields(&mad).to_vec();
            let (name, _) = fields.remove(gone);
            assert!(said(&fields).frame().is_none(), "without {name}");
        }
        let digits = "0g".repeat(256);
        assert!(said(&fields(&digits)).frame().is_none());
    }
}
