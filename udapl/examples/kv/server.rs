//! A thread of the server: an instance, an SRQ, and the instance's connections.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use udapl::endpoint::EpAttr;
use udapl::error::ReturnType;
use udapl::event::{ConnectionRequest, DtoCompletion};
use udapl::memory::{LmrCreated, LmrSlice, PzHandle, RmrTriplet};
use udapl::srq::{SrqAttr, SrqHandle};
use udapl::{
    CloseFlags, CompletionFlags, ConnectionEventKind, DmaMemory, DtoCookie, DtoStatus, EpEvds,
    EpHandle, EvdFlags, EvdHandle, Event, Ia, MemPrivFlags, PspFlags, explain, ia_close,
};

use super::SERVICE;
use super::values::{MESSAGE, Message, Values, What};

/// Number of request buffers. If no buffer is free, the card answers RNR, and clients retry.
const BUFFERS: u32 = 32;
const NO_FLAGS: CompletionFlags = CompletionFlags::empty();
/// Longest time until the thread notices that it should end.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// Flag in the cookie of an answer's Send. The other bits are the number of the answer's buffer.
const ANSWER: u64 = 1 << 32;

/// Counters of a thread.
#[derive(Debug, Default)]
pub struct Served {
    pub connections: u64,
    pub puts: u64,
    pub gets: u64,
}

pub struct Server {
    ia: Ia,
    zone: PzHandle,
    events: EvdHandle,
    srq: SrqHandle,
    /// Memory of the buffers: each has a request, followed by its answer.
    memory: DmaMemory,
    local: LmrSlice,
    values: Values,
    /// Registration of the values in this instance.
    window: LmrCreated,
    served: Served,
}

impl Server {
    pub fn new(mut ia: Ia, values: &Values) -> Result<Self> {
        let zone = ia.pz_create()?;
        let streams = EvdFlags::CR | EvdFlags::CONNECTION | EvdFlags::DTO;
        let events = ia.evd_create(256, streams)?;
        let attr = SrqAttr {
            max_recv_dtos: BUFFERS,
            max_recv_iov: 1,
            low_watermark: 0,
        };
        let srq = ia.srq_create(zone, attr)?;
        let bytes = BUFFERS as usize * 2 * MESSAGE;
        let memory = udapl::alloc(&ia, bytes)?;
        let rights = MemPrivFlags::LOCAL_READ | MemPrivFlags::LOCAL_WRITE;
        let lmr = ia.lmr_create(memory.clone(), zone, rights)?.lmr;
        let local = ia.lmr_slice(lmr, 0, bytes as u64)?;
        // The memory is pinned once for all instances, but each instance has a key of its own.
        let shared = values.memory.clone();
        let window = ia.lmr_create(shared, zone, MemPrivFlags::REMOTE_READ)?;
        let mut server = Self {
            ia,
            zone,
            events,
            srq,
            memory,
            local,
            values: values.clone(),
            window,
            served: Served::default(),
        };
        for buffer in 0..BUFFERS {
            server.post_buffer(buffer)?;
        }
        server
            .ia
            .psp_create_shared(SERVICE, events, PspFlags::CONSUMER)?;
        Ok(server)
    }

    /// Serves until `over` is true.
    pub fn serve(mut self, over: &AtomicBool) -> Result<Served> {
        while !over.load(Ordering::Acquire) {
            match self.ia.evd_wait(self.events, POLL_INTERVAL, 1) {
                Ok((event, _)) => self.take(event)?,
                Err(waited) if waited.return_type() == ReturnType::TimeoutExpired => {}
                Err(waited) => return Err(waited.into()),
            }
        }
        ia_close(self.ia, CloseFlags::Abrupt)?;
        Ok(self.served)
    }

    fn take(&mut self, event: Event) -> Result<()> {
        match event {
            Event::ConnectionRequest(request) => self.accept(request),
            Event::Connection(event) => match event.kind {
                ConnectionEventKind::Established => {
                    self.served.connections += 1;
                    Ok(())
                }
                ConnectionEventKind::Disconnected => Ok(self.ia.ep_free(event.ep)?),
                kind @ (ConnectionEventKind::PeerRejected
                | ConnectionEventKind::NonPeerRejected
                | ConnectionEventKind::AcceptCompletionError
                | ConnectionEventKind::Broken
                | ConnectionEventKind::TimedOut
                | ConnectionEventKind::Unreachable) => bail!("a connection: {kind:?}"),
            },
            Event::Dto(done) => self.completed(&done),
            Event::RmrBind(_) | Event::Async(_) | Event::Software(_) => {
                bail!("an event nobody hoped for: {event:?}")
            }
        }
    }

    fn accept(&mut self, request: ConnectionRequest) -> Result<()> {
        let attr = EpAttr {
            max_rdma_read_in: 4,
            ..EpAttr::defaults(self.ia.query().ia)
        };
        let zone = Some(self.zone);
        let ep = self
            .ia
            .ep_create_with_srq(zone, EpEvds::all(self.events), self.srq, &attr)?;
        let place = RmrTriplet {
            rmr_context: self.window.rmr_context,
            target_address: self.window.registered_address,
            segment_length: self.window.registered_size,
        };
        Ok(self.ia.cr_accept(request.cr, Some(ep), &place.to_bytes())?)
    }

    fn completed(&mut self, done: &DtoCompletion) -> Result<()> {
        let buffer = u32::try_from(done.cookie.0 & !ANSWER)?;
        // An answer was sent, or the client has disconnected.
        if done.request || done.status == DtoStatus::ErrFlushed {
            return self.post_buffer(buffer);
        }
        ensure!(done.status == DtoStatus::Success, "{}", explain(done));
        let length = usize::try_from(done.transferred_length)?;
        let at = buffer as usize * 2 * MESSAGE;
        let request = Message::parse(&self.memory.read(at, length)?)?;
        let mut answer = request;
        match request.what {
            What::Put => {
                self.values.put(request.key, &request.value)?;
                self.served.puts += 1;
            }
            What::Get => {
                answer.value = self.values.get(request.key)?;
                self.served.gets += 1;
            }
        }
        self.memory.write_from(at + MESSAGE, &answer.to_bytes())?;
        self.answer(done.ep, buffer)
    }

    fn answer(&mut self, ep: EpHandle, buffer: u32) -> Result<()> {
        let answer = self.part(buffer, MESSAGE)?;
        let cookie = DtoCookie(ANSWER | u64::from(buffer));
        Ok(self.ia.ep_post_send(ep, &[answer], cookie, NO_FLAGS)?)
    }

    fn post_buffer(&mut self, buffer: u32) -> Result<()> {
        let request = self.part(buffer, 0)?;
        Ok(self
            .ia
            .srq_post_recv(self.srq, &[request], DtoCookie(u64::from(buffer)))?)
    }

    /// Returns the slice of a message in a buffer.
    fn part(&self, buffer: u32, offset: usize) -> Result<LmrSlice> {
        let at = buffer as usize * 2 * MESSAGE + offset;
        let part = self.local.part(at as u64, MESSAGE as u64);
        part.context("inside the memory")
    }
}
