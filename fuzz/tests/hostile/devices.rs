//! Hostile devices against the driver.
//!
//! A consumer opens a provider, uses its queues and closes it. The device returns false values at times (module
//! `liar`), or always. Every call may fail. No call may panic, hang, or accept an impossible value: a completion ends a
//! posted request, at most once, with no more bytes than the request asked for. The device never accesses an address
//! that the driver has not mapped. Once the device is honest again, a reset makes it usable.

use crate::extent;
use crate::liar::{FaultyDevice, ScheduledInjection};
use bolero::{TypeGenerator, check, produce};
use dat_core::provider::{
    CompletionEntry, CompletionQueue, DataSegment, MadAddress, Provider, ProviderError, Psn, Qpn,
    QueuePair, QueueSizes, ReadyToReceive, ReadyToSend, RequestFlags, RequestOp,
    SharedReceiveQueue,
};
use dat_core::types::{DtoStatus, MemPrivFlags};
use dat_mlx::provider::{MlxProvider, Region};
use dat_mlx::queues::{Cq, Qp, Srq};
use driver::{Clock, Device, DmaMemory, Function, Instant, Interrupt, SharedMemory};
use hw_mlx::HcaConfig;
use hw_sim::{FaultCause, Profile};
use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use zerocopy::IntoBytes;

const BYTES: usize = 4_096;
const FLAGS: RequestFlags = RequestFlags {
    suppress: false,
    solicited: false,
    fence: false,
    unsignalled: false,
};
const SIZES: QueueSizes = QueueSizes {
    max_requests: 4,
    max_recvs: 4,
    max_request_segments: 2,
    max_read_segments: 2,
    max_recv_segments: 2,
    binds: false,
};

fn config() -> HcaConfig {
    let mut config = HcaConfig::new();
    config.command_timeout = Duration::from_millis(50);
    config.initializing_timeout = Duration::from_millis(100);
    config.firmware_pages = Some(64);
    config.seed = Some(1);
    config
}

/// A queue to which requests are posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Queue {
    Qp(usize),
    Shared,
}

/// Posted requests that have not completed: their queue and length in bytes, by cookie.
#[derive(Default)]
struct Posted {
    open: BTreeMap<u64, (Queue, u64)>,
    next: u64,
    succeeded: usize,
}

impl Posted {
    fn cookie(&mut self, queue: Queue, bytes: u32) -> u64 {
        self.next += 1;
        self.open.insert(self.next, (queue, u64::from(bytes)));
        self.next
    }

    fn done(&mut self, completion: &dat_core::provider::Completion) {
        let posted = self.open.remove(&completion.cookie);
        let (_, bytes) =
            posted.unwrap_or_else(|| panic!("{completion:?} of something not outstanding"));
        // The completion of a receive for an RDMA Write with immediate data has the length of the Write, which places
        // no data in the receive's buffer.
        let is_in_buffer = !completion.detail.is_write_immediate();
        assert!(
            completion.status != DtoStatus::Success
                || !is_in_buffer
                || completion.transferred <= bytes,
            "{completion:?} of {bytes}"
        );
        self.succeeded += usize::from(completion.status == DtoStatus::Success);
    }
}

/// Two connected queue pairs of one function. The second may take its receives from a shared receive queue.
struct Session {
    provider: MlxProvider,
    pd: u32,
    cq: Cq,
    srq: Option<Srq>,
    qps: Vec<Qp>,
    memory: DmaMemory,
    lkey: u32,
    rkey: u32,
    region: Region,
    posted: Posted,
}

impl Session {
    fn open(device: Arc<dyn Device>, shared: bool) -> Result<Self, ProviderError> {
        let function = Function::in_process(device)
            .map_err(|error| ProviderError::Device(error.to_string()))?;
        let mut provider = MlxProvider::open(function, config())
            .map_err(|error| ProviderError::Device(error.to_string()))?;
        let pd = provider.alloc_pd()?;
        let cq = provider.create_cq(15, 9)?;
        let buffer = provider
            .arena()
            .alloc(BYTES, 4_096)
            .map_err(|error| ProviderError::Resources(error.to_string()))?;
        let memory = DmaMemory::Arena {
            buffer,
            offset: 0,
            bytes: BYTES,
        };
        let registration = provider.register(pd, &memory, MemPrivFlags::all())?;
        let (lkey, rkey) = (registration.lmr_context, registration.rmr_context);
        let srq = if shared {
            Some(provider.create_srq(pd, 8, 2, 5)?)
        } else {
            None
        };
        let mut session = Self {
            provider,
            pd,
            cq,
            srq,
            qps: Vec::new(),
            memory,
            lkey,
            rkey,
            region: registration.region,
            posted: Posted::default(),
        };
        for owner in [7, 8] {
            let srq = session.srq.as_ref().filter(|_| owner == 8);
            let sizes = if srq.is_some() {
                QueueSizes {
                    max_recvs: 0,
                    ..SIZES
                }
            } else {
                SIZES
            };
            let qp = session.provider.create_qp(
                session.pd,
                &session.cq,
                &session.cq,
                srq,
                sizes,
                owner,
            )?;
            session.qps.push(qp);
        }
        session.connect()?;
        Ok(session)
    }

    fn connect(&mut self) -> Result<(), ProviderError> {
        let gid = self.provider.limits().gid;
        let path = self.provider.route(gid, None)?;
        let numbers = [self.qps[1].number(), self.qps[0].number()];
        for (qp, remote_qpn) in self.qps.iter_mut().zip(numbers) {
            let receive = ReadyToReceive {
                path,
                remote_qpn,
                receive_psn: Psn::masked(5),
                mtu: 1,
                reads_in: 1,
                min_rnr_timer: 1,
            };
            self.provider.ready_to_receive(qp, &receive)?;
            let send = ReadyToSend {
                send_psn: Psn::masked(5),
                reads_out: 1,
                retry_count: 2,
                rnr_retry: 2,
                ack_timeout: 4,
            };
            self.provider.ready_to_send(qp, &send)?;
        }
        Ok(())
    }

    fn segment(&self, bytes: u32) -> impl Iterator<Item = DataSegment> + Clone + use<> {
        std::iter::once(DataSegment {
            lmr_context: self.lkey,
            address: self.memory.address(),
            bytes,
        })
    }

    fn post(&mut self, what: u8, bytes: u16) {
        let bytes = u32::from(bytes % 2_048) + 1;
        let segment = self.segment(bytes);
        let (address, rmr_context) = (self.memory.address(), self.rkey);
        let queue = match what % 6 {
            1 if self.srq.is_some() => Queue::Shared,
            1 | 2 => Queue::Qp(1),
            _ => Queue::Qp(0),
        };
        let cookie = self.posted.cookie(queue, bytes);
        let outcome = match what % 6 {
            0 => self.qps[0].post_recv(segment, cookie, false),
            1 => match &mut self.srq {
                Some(srq) => srq.post_recv(segment, cookie),
                None => self.qps[1].post_recv(segment, cookie, false),
            },
            2 => self.qps[1].post_request(RequestOp::Send, segment, cookie, FLAGS),
            3 => self.qps[0].post_request(
                RequestOp::RdmaWrite {
                    address,
                    rmr_context,
                },
                segment,
                cookie,
                FLAGS,
            ),
            4 => self.qps[0].post_request(
                RequestOp::RdmaRead {
                    address,
                    rmr_context,
                },
                segment,
                cookie,
                FLAGS,
            ),
            _ => self.qps[0].post_request(RequestOp::Send, segment, cookie, FLAGS),
        };
        if outcome.is_err() {
            self.posted.open.remove(&cookie);
        }
    }

    /// Polls completions, at most as many as the completion queue holds.
    fn poll(&mut self) {
        for _ in 0..self.cq.capacity() {
            let Some(entry) = self.cq.poll() else { return };
            let Some(qp) = self.qps.iter_mut().find(|qp| qp.0.owner() == entry.owner()) else {
                continue;
            };
            let completion = match &mut self.srq {
                Some(srq) if qp.0.owner() == 8 && !entry.is_request() => srq.complete(&entry),
                _ => qp.complete(&entry),
            };
            if let Some(completion) = completion {
                self.posted.done(&completion);
            }
        }
    }

    fn act(&mut self, action: &Action) -> Result<(), ProviderError> {
        match action {
            Action::Post { what, bytes } => {
                what.iter().for_each(|&what| self.post(what, *bytes));
            }
            Action::Poll => self.poll(),
            Action::Arm { solicited } => self.cq.arm(*solicited),
            Action::Wait { milliseconds } => {
                let deadline = self.provider.now() + u64::from(*milliseconds) * 1_000_000;
                self.provider.wait(deadline)?;
            }
            Action::Progress => {
                self.provider.progress();
                while self.provider.next_event().is_some() {}
            }
            Action::SendMad => {
                let path = self.provider.route(self.provider.limits().gid, None)?;
                // The session continues if the send queue is full.
                let _ = self.provider.send_mad(
                    &MadAddress {
                        path,
                        qpn: Qpn::GSI,
                    },
                    &[7; 256],
                );
            }
            Action::PollMad => while self.provider.poll_mad().is_some() {},
            Action::Reset { which } => {
                let which = usize::from(*which % 2);
                self.poll();
                self.provider
                    .reset_qp(&mut self.qps[which], &mut self.cq, None)?;
                // A reset drops outstanding requests, so they must not complete later.
                self.posted
                    .open
                    .retain(|_, (queue, _)| *queue != Queue::Qp(which));
            }
            Action::ToError { which } => self
                .provider
                .to_error(&mut self.qps[usize::from(*which % 2)])?,
            Action::Another => {
                let mut cq = self.provider.create_cq(3, 2)?;
                self.provider.destroy_cq(&mut cq)?;
            }
        }
        Ok(())
    }

    /// Frees all objects, including those that cannot be destroyed, since closing the provider frees these. Returns
    /// whether every call succeeded.
    fn close(self) -> bool {
        let Self {
            mut provider,
            pd,
            mut cq,
            srq,
            qps,
            mut region,
            ..
        } = self;
        let mut well = provider.deregister(&mut region).is_ok();
        for mut qp in qps {
            well &= provider.destroy_qp(&mut qp, &mut cq, None).is_ok();
        }
        if let Some(mut srq) = srq {
            well &= provider.destroy_srq(&mut srq).is_ok();
        }
        well &= provider.destroy_cq(&mut cq).is_ok();
        well &= provider.free_pd(pd).is_ok();
        provider.close().is_ok() && well
    }
}

/// One call of the consumer.
#[derive(Clone, Debug, TypeGenerator)]
enum Action {
    Post { what: [u8; 4], bytes: u16 },
    Poll,
    Arm { solicited: bool },
    Wait { milliseconds: u8 },
    Progress,
    SendMad,
    PollMad,
    Reset { which: u8 },
    ToError { which: u8 },
    Another,
}

/// Runs a session on an honest device. Every call must succeed.
fn honest_session(liar: &Arc<FaultyDevice>) {
    let mut session = Session::open(liar.clone(), false).expect("an honest device opens");
    session.post(0, 99);
    session.post(2, 99);
    for _ in 0..10 {
        session
            .act(&Action::Wait { milliseconds: 1 })
            .expect("an honest device waits");
        session.poll();
    }
    assert_eq!(
        (session.posted.succeeded, session.posted.open.len()),
        (2, 0)
    );
    assert!(session.close(), "an honest device closes");
    let report = liar.sim.report(&liar.function);
    assert_eq!(report.pages_held, 0);
    assert!(report.objects.is_empty(), "{:?}", report.objects);
}

/// The driver neither panics nor hangs, whatever false values the device returns, and works again when the device
/// returns correct ones.
#[test]
fn a_lying_device_is_survived() {
    let opening = produce::<Vec<ScheduledInjection>>().with().len(0..4_usize);
    let injections = produce::<Vec<ScheduledInjection>>().with().len(0..60_usize);
    let actions = produce::<Vec<Action>>().with().len(0..60_usize);
    let (iterations, time) = extent(1_500, 8);
    check!()
        .with_generator((opening, injections, actions, produce::<bool>()))
        .with_iterations(iterations)
        .with_test_time(time)
        .for_each(|(opening, injections, actions, shared)| {
            let liar = FaultyDevice::new(opening.clone());
            if let Ok(mut session) = Session::open(liar.clone(), *shared) {
                liar.set_injections(injections.clone());
                for action in actions {
                    liar.occasion();
                    // The consumer continues after an error.
                    let _ = session.act(action);
                }
                let faults = liar.sim.report(&liar.function).dma_faults;
                assert!(
                    !faults
                        .iter()
                        .any(|fault| fault.cause == FaultCause::Unmapped),
                    "{faults:?}"
                );
                session.close();
            }
            liar.stop_lying();
            honest_session(&liar);
        });
}

/// Behaviour of a device without state: command outputs, capability pages, register values and refusals.
#[derive(Clone, Debug, TypeGenerator)]
struct Answers {
    /// Dwords that commands return from 0x08 on, repeated. Each command starts with the dword after the previous
    /// command's first.
    numbers: [u32; 4],
    /// Dwords of capability pages that differ from a real device's.
    pages: [(u8, Extreme); 3],
    how_many: u8,
    registers: [(u8, u32); 2],
    registers_too: u8,
    /// From 192 on, this value selects the ratio of refused commands; below, no command is refused.
    refusals: u8,
}

#[derive(Clone, Copy, Debug, TypeGenerator)]
enum Extreme {
    Nothing,
    Bit(u8),
    Byte { at: u8, value: u8 },
    Zero,
    Ones,
}

/// A device without state that answers every command at once.
struct Nonsense {
    answers: Answers,
    bar: SharedMemory,
    config: Mutex<BTreeMap<u16, u8>>,
    maps: Mutex<BTreeMap<u64, (SharedMemory, usize, usize)>>,
    interrupts: Mutex<Vec<Interrupt>>,
    now: AtomicU64,
    commands: AtomicU64,
}

impl Nonsense {
    fn access(&self, iova: u64, bytes: usize, access: impl FnOnce(&SharedMemory, usize)) {
        let maps = self.maps.lock().unwrap();
        let (&start, (memory, offset, mapped)) = maps
            .range(..=iova)
            .next_back()
            .expect("an address that is mapped");
        let at = usize::try_from(iova - start).unwrap();
        assert!(at + bytes <= *mapped, "{iova:#x}+{bytes:#x} is not mapped");
        access(memory, offset + at);
    }

    /// Returns a capability page of a real device with some nonsense values in it.
    fn page(&self, kind: u16) -> Vec<u8> {
        let profile = Profile::default();
        let mut page = match kind {
            0 => profile.general.current.as_bytes().to_vec(),
            3 => profile.atomic.current.as_bytes().to_vec(),
            _ => profile.roce.current.as_bytes().to_vec(),
        };
        let pages = self.answers.pages.iter();
        for &(at, extreme) in pages.take(usize::from(self.answers.how_many / 64)) {
            let at = usize::from(at) % (page.len() / 4) * 4;
            let dword: &mut [u8; 4] = page[at..].first_chunk_mut().unwrap();
            let value = u32::from_be_bytes(*dword);
            let new = match extreme {
                Extreme::Nothing => value,
                Extreme::Bit(bit) => value ^ 1 << (bit % 32),
                Extreme::Byte { at, value: byte } => {
                    let shift = at % 4 * 8;
                    value & !(0xff << shift) | u32::from(byte) << shift
                }
                Extreme::Zero => 0,
                Extreme::Ones => u32::MAX,
            };
            *dword = new.to_be_bytes();
        }
        page
    }

    fn answer(&self, slot: u64) {
        let queue = u64::from(self.bar.load_be32(0x10)) << 32
            | u64::from(self.bar.load_be32(0x14) & 0xffff_f000);
        let mut entry = [0; 64];
        let number = self.commands.fetch_add(1, Ordering::Relaxed);
        assert!(number < 20_000, "the driver does not come to an end");
        self.access(queue + slot * 64, 64, |memory, at| {
            memory.read_bytes(at, &mut entry)
        });
        let (opcode, op_mod) = (
            u16::from_be_bytes([entry[0x10], entry[0x11]]),
            u16::from_be_bytes([entry[0x16], entry[0x17]]),
        );
        let mut output = vec![0; 0x1010];
        // Usually no command is refused. Otherwise one in `every - 180` commands is.
        let every = u64::from(self.answers.refusals);
        let refused = every >= 192 && number % (every - 180) == every - 192;
        match opcode {
            _ if refused => output[0] = 0x0f,
            // The device refuses most requests to return pages. If it accepted them and returned no page, the driver
            // would repeat the request until its time limit.
            0x108 if op_mod == 2 && !self.answers.numbers[0].is_multiple_of(16) => output[0] = 0x0f,
            0x100 => {
                let page = self.page(op_mod >> 1);
                output[0x10..0x10 + page.len()].copy_from_slice(&page);
            }
            // The driver continues only if QUERY_ISSI offers step 1.
            0x10a => output[0x6f] = 2,
            _ => {
                for (index, dword) in output[8..].chunks_exact_mut(4).enumerate() {
                    let at = (usize::try_from(number).unwrap() + index) % 4;
                    dword.copy_from_slice(&self.answers.numbers[at].to_be_bytes());
                }
                match opcode {
                    // QUERY_PAGES requests few pages.
                    0x107 => {
                        output[0x0c..0x0f].fill(0);
                        output[0x0f] &= 0x1f;
                    }
                    // ALLOC_UAR returns a page number below 32. The BAR has 16 pages.
                    0x802 => {
                        output[0x08..0x0b].fill(0);
                        output[0x0b] &= 0x1f;
                    }
                    _ => {}
                }
            }
        }
        let length =
            u32::from_be_bytes([entry[0x38], entry[0x39], entry[0x3a], entry[0x3b]]) as usize;
        let mut mailbox = u64::from_be_bytes(*entry[0x30..].first_chunk().unwrap());
        let rest = output[16..]
            .chunks(512)
            .take(length.saturating_sub(16).div_ceil(512));
        for chunk in rest {
            let mut next = [0; 8];
            self.access(mailbox, 0x240, |memory, at| {
                memory.write_bytes(at, chunk);
                memory.read_bytes(at + 0x230, &mut next);
            });
            mailbox = u64::from_be_bytes(next);
        }
        self.access(queue + slot * 64, 64, |memory, at| {
            memory.write_bytes(at + 0x20, &output[..16]);
            memory.store_u8(at + 0x3f, 0);
        });
        for interrupt in self.interrupts.lock().unwrap().iter() {
            interrupt.signal();
        }
    }
}

/// The device of a [`Nonsense`], which it shares with the device's clock.
struct NonsenseDevice(Arc<Nonsense>);

impl Device for NonsenseDevice {
    fn name(&self) -> &str {
        "nonsense"
    }

    fn config_read(&self, offset: u16, out: &mut [u8]) {
        let config = self.0.config.lock().unwrap();
        for (at, byte) in (offset..).zip(out) {
            *byte = config.get(&at).copied().unwrap_or(0);
        }
    }

    fn config_write(&self, offset: u16, data: &[u8]) {
        self.0
            .config
            .lock()
            .unwrap()
            .extend((offset..).zip(data.iter().copied()));
    }

    fn bar(&self, index: u8) -> Option<SharedMemory> {
        (index == 0).then(|| self.0.bar.clone())
    }

    fn bar_written(&self, _index: u8, offset: u64, bytes: &[u8]) {
        if offset == 0x18 {
            let value = bytes
                .iter()
                .fold(0, |value: u32, &byte| value << 8 | u32::from(byte));
            self.0.bar.store_be32(0x18, 0);
            self.0.answer(u64::from(value.trailing_zeros()));
        }
    }

    fn reset(&self) {
        self.0.bar.fill(0, self.0.bar.len(), 0);
        self.0.bar.store_be32(0x04, 5 << 16);
        self.0.bar.store_be32(0x14, 0x56);
        if self.0.answers.registers_too >= 240 {
            for (at, value) in self.0.answers.registers {
                self.0.bar.store_be32(
                    [0x00, 0x04, 0x14, 0x1fc, 0x230, 0x238, 0x23c, 0x1010][usize::from(at) % 8],
                    value,
                );
            }
        }
    }

    fn interrupt_count(&self) -> usize {
        2
    }

    fn set_interrupts(&self, vectors: Vec<Interrupt>) {
        *self.0.interrupts.lock().unwrap() = vectors;
    }

    fn dma_map(
        &self,
        iova: u64,
        memory: SharedMemory,
        offset: usize,
        bytes: usize,
    ) -> Result<(), String> {
        self.0
            .maps
            .lock()
            .unwrap()
            .insert(iova, (memory, offset, bytes));
        Ok(())
    }

    fn dma_unmap(&self, iova: u64, _bytes: usize) -> Result<(), String> {
        self.0.maps.lock().unwrap().remove(&iova);
        Ok(())
    }

    fn iova_ranges(&self) -> Vec<RangeInclusive<u64>> {
        vec![0x1_0000..=0xfedf_ffff, 1 << 32..=(1 << 39) - 1]
    }

    fn clock(&self) -> Arc<dyn Clock> {
        Arc::new(NonsenseClock(self.0.clone()))
    }
}

struct NonsenseClock(Arc<Nonsense>);

impl Clock for NonsenseClock {
    fn now(&self) -> Instant {
        Instant(self.0.now.fetch_add(500, Ordering::Relaxed))
    }

    fn wait(&self, interrupts: &[Interrupt], deadline: Instant) -> bool {
        self.0.now.fetch_max(deadline.0, Ordering::Relaxed);
        // The health counter advances, so the driver sees that the firmware runs.
        self.0.bar.store_be32(
            0x1010,
            u32::try_from((deadline.0 / 1_000) & 0xff_ffff).unwrap(),
        );
        interrupts.iter().any(Interrupt::is_pending)
    }
}

/// With a device that returns arbitrary numbers and capabilities, the driver neither panics nor hangs, and commands
/// name only addresses that the driver has mapped.
#[test]
fn nonsense_numbers_and_capabilities_are_survived() {
    let actions = produce::<Vec<Action>>().with().len(0..20_usize);
    let (iterations, time) = extent(4_000, 6);
    check!()
        .with_generator((produce::<Answers>(), actions))
        .with_iterations(iterations)
        .with_test_time(time)
        .for_each(|(answers, actions)| {
            let device = Arc::new(Nonsense {
                answers: answers.clone(),
                bar: SharedMemory::anonymous(1 << 16).unwrap(),
                config: Mutex::default(),
                maps: Mutex::default(),
                interrupts: Mutex::default(),
                now: AtomicU64::new(1),
                commands: AtomicU64::new(0),
            });
            if let Ok(mut session) = Session::open(Arc::new(NonsenseDevice(device)), false) {
                for action in actions {
                    if session.act(action).is_err() {
                        break;
                    }
                }
                session.close();
            }
        });
}
