//! The active end of `ping` and `perf`: connects, and waits for its events.
//!
//! Waiting polls for a while, because on hardware the event is there sooner than any sleep ends, and then sleeps. If
//! the passive end is in this process too ([`Dialer::beside`]), it is served meanwhile.

use std::error::Error;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use udapl::{
    CloseFlags, CompletionFlags, ConnQual, ConnectFlags, ConnectionEventKind, DtoCompletion,
    DtoCookie, DtoStatus, EpHandle, Event, OpenOptions, Qos, RmrTriplet, Timeout,
};

use crate::adapter::{Adapter, PATIENCE, Region, deadline, dto_failed, unexpected};
use crate::hello::{Hello, Role, decode_memory};
use crate::listener::Listener;

/// Polls before the first sleep.
const POLLS: u32 = 2_000;
/// The longest sleep. The other end, if it is ours, has its turn in between.
const SLEEP: Duration = Duration::from_millis(1);
/// How often a peer that only lends its memory hears of us.
const BEAT: Duration = Duration::from_secs(2);
/// Cookie of an empty message that tells the peer we are alive.
const BEAT_COOKIE: u64 = u64::MAX;

/// The active end.
pub(crate) struct Dialer {
    pub(crate) adapter: Adapter,
    listener: Option<Listener>,
    session: Option<Session>,
}

struct Session {
    ep: EpHandle,
    region: Region,
    remote: RmrTriplet,
    /// `None` if the peer hears of us anyway.
    next_beat: Option<Instant>,
}

impl Dialer {
    pub(crate) fn open(name: &str, options: &OpenOptions) -> Result<Self, Box<dyn Error>> {
        Ok(Self::on(Adapter::open(name, options)?))
    }

    /// On an adapter that is open.
    pub(crate) const fn on(adapter: Adapter) -> Self {
        Self {
            adapter,
            listener: None,
            session: None,
        }
    }

    /// With the passive end in the same process and thread.
    pub(crate) fn beside(self, listener: Listener) -> Self {
        Self {
            listener: Some(listener),
            ..self
        }
    }

    /// Connects, with `slots` of memory for the longest message on our side.
    pub(crate) fn connect(
        &mut self,
        peer: IpAddr,
        qualifier: u64,
        hello: &Hello,
        slots: usize,
    ) -> Result<(), Box<dyn Error>> {
        let most = self.adapter.most_dtos();
        // One more for the message that says we are alive.
        let requests = hello.depth.saturating_add(1);
        if requests > most {
            return Err(format!(
                "a depth of {}; the adapter can do {}",
                hello.depth,
                most - 1
            )
            .into());
        }
        let ep = self.adapter.endpoint(requests, requests)?;
        let region = self.adapter.region(slots, usize::try_from(hello.bytes)?)?;
        let patience = Timeout::from_micros(u32::try_from(PATIENCE.as_micros())?);
        self.adapter.ia.ep_connect(
            ep,
            peer,
            ConnQual(qualifier),
            patience,
            &hello.encode(),
            Qos::BEST_EFFORT,
            ConnectFlags::empty(),
        )?;
        let event = self.next()?;
        let up = matches!(&event, Event::Connection(event) if event.kind == ConnectionEventKind::Established);
        if !up {
            return Err(unexpected(&event, &format!("a connection to {peer}")));
        }
        let told = self.adapter.ia.ep_private_data(ep)?;
        let remote = decode_memory(told).filter(|remote| remote.segment_length >= hello.bytes);
        let remote = remote.ok_or_else(|| {
            format!("{peer} answers, but not as a datctl of this version: {told:02x?}")
        })?;
        self.session = Some(Session {
            ep,
            region,
            remote,
            // An echo would send the empty message back, and we would take it for that of what we measure.
            next_beat: (hello.role == Role::Memory).then(|| Instant::now() + BEAT),
        });
        Ok(())
    }

    /// The connection's endpoint, our memory and the peer's.
    // PANIC: only our own bug calls it without a connection.
    pub(crate) fn session(&self) -> (EpHandle, &Region, RmrTriplet) {
        let session = self.session.as_ref().expect("a connection");
        (session.ep, &session.region, session.remote)
    }

    /// The next event.
    pub(crate) fn next(&mut self) -> Result<Event, Box<dyn Error>> {
        let (mut polls, mut give_up) = (0, None);
        loop {
            if let Some(event) = self.adapter.poll()? {
                return Ok(event);
            }
            if let Some(listener) = &mut self.listener
                && listener.serve()?
            {
                continue;
            }
            polls += 1;
            if polls < POLLS {
                continue;
            }
            if let Some(event) = self.adapter.sleep(SLEEP)? {
                return Ok(event);
            }
            if Instant::now() > *give_up.get_or_insert_with(deadline) {
                return Err(format!("no event for {} s", PATIENCE.as_secs()).into());
            }
        }
    }

    /// Gives the passive end, if it is in this process, a turn: it posts receives again before they are needed.
    pub(crate) fn give_turn(&mut self) -> Result<(), Box<dyn Error>> {
        if let Some(listener) = &mut self.listener {
            listener.serve()?;
        }
        Ok(())
    }

    /// The next DTO that ends, which was a success.
    pub(crate) fn completed(&mut self) -> Result<DtoCompletion, Box<dyn Error>> {
        loop {
            let event = self.next()?;
            let Event::Dto(done) = event else {
                return Err(unexpected(&event, "a completion"));
            };
            if done.status != DtoStatus::Success {
                return Err(dto_failed(&done));
            }
            if done.cookie != DtoCookie(BEAT_COOKIE) {
                return Ok(done);
            }
        }
    }

    /// Tells a peer that only lends its memory that we are alive, if it is time for that.
    pub(crate) fn beat(&mut self) -> Result<(), Box<dyn Error>> {
        let now = Instant::now();
        if let Some(session) = &mut self.session
            && session.next_beat.is_some_and(|due| now >= due)
        {
            session.next_beat = Some(now + BEAT);
            let nothing = session.region.local(0, 0);
            let flags = CompletionFlags::empty();
            self.adapter
                .ia
                .ep_post_send(session.ep, &[nothing], DtoCookie(BEAT_COOKIE), flags)?;
        }
        Ok(())
    }

    /// Ends the connection, and waits until the peer knows.
    pub(crate) fn hang_up(&mut self) -> Result<(), Box<dyn Error>> {
        let Some(session) = self.session.take() else {
            return Ok(());
        };
        self.adapter
            .ia
            .ep_disconnect(session.ep, CloseFlags::Abrupt)?;
        loop {
            let event = self.next()?;
            if let Event::Connection(event) = &event
                && event.kind == ConnectionEventKind::Disconnected
            {
                break;
            }
            // Besides that only receives that are flushed.
            if !matches!(event, Event::Dto(_)) {
                return Err(unexpected(&event, "a disconnect"));
            }
        }
        self.adapter.release(session.ep, &session.region)?;
        // The other end hears of it too before anything else happens.
        let give_up = deadline();
        while let Some(listener) = &mut self.listener
            && listener.has_session()
        {
            listener.serve()?;
            if Instant::now() > give_up {
                return Err("the other end does not hear of the disconnect".into());
            }
        }
        Ok(())
    }

    pub(crate) fn close(self) -> Result<(), Box<dyn Error>> {
        let listener = self.listener.map_or(Ok(()), Listener::close);
        self.adapter.close()?;
        listener
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SERVICE: u64 = 0x1_0000_0001;
    const NONE: CompletionFlags = CompletionFlags::empty();
    const BYTES: usize = 64;

    /// However long a measurement takes, an echo sends back what it was sent, and nothing else.
    #[test]
    fn an_echo_gets_no_message_that_nobody_waits_for() -> Result<(), Box<dyn Error>> {
        let options = OpenOptions::default();
        let listener = Listener::open("sim:echo", &options, SERVICE)?;
        let peer = listener.address();
        let mut dialer = Dialer::open("sim:dialer", &options)?.beside(listener);
        for role in [Role::Echo, Role::Memory] {
            let hello = Hello {
                role,
                more: u8::from(role == Role::Echo),
                depth: 1,
                bytes: BYTES as u64,
            };
            dialer.connect(peer, SERVICE, &hello, 2)?;
            for _ in 0..6 {
                // As if it had been a while.
                let session = dialer.session.as_mut().expect("a connection");
                session.next_beat = session.next_beat.map(|_| Instant::now());
                dialer.beat()?;
                let (ep, region, remote) = dialer.session();
                let (outbox, inbox) = (region.local(0, BYTES), region.local(1, BYTES));
                let ia = &mut dialer.adapter.ia;
                if role == Role::Memory {
                    ia.ep_post_rdma_read(ep, &[inbox], DtoCookie(1), &remote, NONE)?;
                    assert_eq!(dialer.completed()?.cookie, DtoCookie(1));
                    dialer.give_turn()?;
                    continue;
                }
                ia.ep_post_recv(ep, &[inbox], DtoCookie(1), NONE)?;
                ia.ep_post_send(ep, &[outbox], DtoCookie(2), NONE)?;
                for _ in 0..2 {
                    let done = dialer.completed()?;
                    assert_eq!(done.transferred_length, BYTES as u64, "{done:?}");
                }
            }
            dialer.hang_up()?;
        }
        dialer.close()
    }
}
