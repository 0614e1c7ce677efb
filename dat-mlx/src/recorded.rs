//! Entries of a function's recorder as text, with the names of the connection manager's messages.

use core::fmt;
use std::net::Ipv6Addr;

use hw_mlx::recorder::Recorded;

/// Formats a recorder entry as text. A management datagram is shown with the name of its connection manager message.
#[derive(Clone, Copy, Debug)]
pub struct InWords<'a>(pub &'a Recorded);

impl fmt::Display for InWords<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Recorded::Datagram {
            sent,
            datagram: Some(datagram),
        } = self.0
        {
            let gid = |gid: [u8; 16]| Ipv6Addr::from(gid).to_canonical();
            return write!(
                f,
                "datagram {}: {}, {} to {}",
                if *sent { "sent" } else { "received" },
                dat_core::cm::wire::in_words(&datagram.mad),
                gid(datagram.source),
                gid(datagram.destination)
            );
        }
        self.0.fmt(f)
    }
}
