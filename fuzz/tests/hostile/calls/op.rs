//! The calls of a sequence, drawn from a seed, and their form in Rust.

use rand::Rng;
use rand_chacha::ChaCha8Rng;

/// Number of slots for objects of each kind on each side. A slot may be empty, taken, or hold the handle of an object
/// that was freed.
pub const PLACES: usize = 3;
/// Connection qualifiers. No service point listens at the last one.
pub const QUALIFIERS: [u64; 3] = [0x1_0000_0001, 0x1_0000_0002, 0x4711];
/// Length of every region in bytes.
pub const REGION: u64 = 256;

/// Queue length of an EVD with completions: more events than arrive in a sequence.
pub const EVD_LENGTH: u32 = 8192;

/// A call on one of two adapters.
#[derive(Clone, Debug)]
pub struct Step {
    pub side: usize,
    pub op: Op,
}

/// A part of a region. A length of zero bytes means no part.
#[derive(Clone, Copy, Debug)]
pub struct Part {
    pub lmr: usize,
    pub at: u64,
    pub bytes: u64,
}

/// Buffers of a post, used one after the other. An endpoint accepts at most [`SEGMENTS`] of them.
pub type Parts = [Option<Part>; 3];
/// Largest number of segments of a request or a receive.
pub const SEGMENTS: u32 = 2;

/// A part of the other side's memory as an RDMA operation names it: by the RMR context of a region, or by the present
/// or the previous context of an RMR.
#[derive(Clone, Copy, Debug)]
pub struct Remote {
    pub part: Part,
    pub rmr: Option<usize>,
    pub stale: bool,
}

/// A call. Fields of type `usize` are indexes: of slots, of requests from the newest (`cr`), of `QUALIFIERS`, of
/// provider names. `RegistryList` has the largest number of entries to list.
#[derive(Clone, Debug)]
pub enum Op {
    PzCreate(usize),
    PzQuery(usize),
    PzFree(usize),
    LmrCreate {
        lmr: usize,
        pz: usize,
        rights: u32,
    },
    LmrCreateFromLmr {
        lmr: usize,
        source: usize,
        pz: usize,
        rights: u32,
    },
    LmrQuery(usize),
    LmrFree(usize),
    LmrSync {
        part: Part,
        write: bool,
    },
    RmrCreate {
        rmr: usize,
        pz: usize,
    },
    RmrQuery(usize),
    RmrBind {
        rmr: usize,
        ep: usize,
        part: Part,
        rights: u32,
        cookie: u64,
        flags: u32,
    },
    RmrFree(usize),
    EvdCreate {
        evd: usize,
        qlen: u32,
        flags: u32,
        cno: Option<usize>,
    },
    EvdQuery(usize),
    EvdResize {
        evd: usize,
        qlen: u32,
    },
    EvdPostSe {
        evd: usize,
        word: u64,
    },
    EvdDequeue(usize),
    EvdWait {
        evd: usize,
        threshold: u32,
        micros: u32,
    },
    EvdEnable(usize),
    EvdDisable(usize),
    EvdSetUnwaitable(usize),
    EvdClearUnwaitable(usize),
    EvdModifyCno {
        evd: usize,
        cno: Option<usize>,
    },
    EvdFree(usize),
    CnoCreate(usize),
    CnoQuery(usize),
    CnoModifyAgent {
        cno: usize,
        agent: bool,
    },
    CnoWait {
        cno: usize,
        micros: u32,
    },
    CnoFree(usize),
    SrqCreate {
        srq: usize,
        pz: usize,
        length: u32,
    },
    SrqQuery(usize),
    SrqResize {
        srq: usize,
        length: u32,
    },
    SrqSetLw {
        srq: usize,
        mark: u32,
    },
    SrqPostRecv {
        srq: usize,
        parts: Parts,
        cookie: u64,
    },
    SrqFree(usize),
    EpCreate {
        ep: usize,
        pz: Option<usize>,
        evds: [Option<usize>; 3],
        srq: Option<usize>,
        /// Completion flags of receives and of requests: 0 EVD_THRESHOLD, 2 SOLICITED_WAIT, 4 UNSIGNALLED.
        modes: [u32; 2],
    },
    EpQuery(usize),
    EpGetStatus(usize),
    EpRecvQuery(usize),
    EpSetWatermark {
        ep: usize,
        soft: Option<u32>,
        hard: Option<u32>,
    },
    EpModify {
        ep: usize,
        pz: Option<usize>,
        evds: [Option<usize>; 3],
    },
    EpConnect {
        ep: usize,
        qualifier: usize,
    },
    EpDupConnect {
        ep: usize,
        dup: usize,
    },
    EpDisconnect {
        ep: usize,
        graceful: bool,
    },
    EpReset(usize),
    EpFree(usize),
    PspCreate {
        psp: usize,
        qualifier: usize,
        evd: usize,
        provider: bool,
    },
    PspCreateAny {
        psp: usize,
        evd: usize,
        provider: bool,
    },
    PspQuery(usize),
    PspFree(usize),
    RspCreate {
        rsp: usize,
        qualifier: usize,
        ep: Option<usize>,
        evd: usize,
    },
    RspQuery(usize),
    RspFree(usize),
    CrQuery(usize),
    CrAccept {
        cr: usize,
        ep: Option<usize>,
    },
    CrReject(usize),
    CrHandoff {
        cr: usize,
        qualifier: usize,
    },
    PostSend {
        ep: usize,
        parts: Parts,
        cookie: u64,
        flags: u32,
    },
    PostRecv {
        ep: usize,
        parts: Parts,
        cookie: u64,
        flags: u32,
    },
    PostWrite {
        ep: usize,
        parts: Parts,
        remote: Remote,
        cookie: u64,
        flags: u32,
    },
    PostRead {
        ep: usize,
        parts: Parts,
        remote: Remote,
        cookie: u64,
        flags: u32,
    },
    SetContext {
        ep: usize,
        word: u64,
    },
    GetContext(usize),
    GetHandleType {
        kind: u32,
        at: usize,
    },
    Strerror(u32),
    IaQuery,
    /// Closes the adapter. If the close succeeds, opens it again.
    IaClose {
        graceful: bool,
    },
    /// Uses `dat_registry_add_provider` or `dat_provider_init`.
    RegistryAdd {
        name: usize,
        init: bool,
    },
    /// Uses `dat_registry_remove_provider` or `dat_provider_fini`.
    RegistryRemove {
        name: usize,
        fini: bool,
    },
    RegistryList(usize),
}

impl Part {
    fn draw(rng: &mut ChaCha8Rng) -> Self {
        let bytes = [0, 1, 16, 64, REGION][rng.random_range(0..5)];
        // Some parts extend beyond the region.
        let at = [0, 0, 32, REGION - 1][rng.random_range(0..4)];
        Self {
            lmr: place(rng),
            at,
            bytes,
        }
    }
}

impl Remote {
    fn draw(rng: &mut ChaCha8Rng) -> Self {
        Self {
            part: Part::draw(rng),
            rmr: rng.random_ratio(1, 3).then(|| place(rng)),
            stale: rng.random_ratio(1, 4),
        }
    }
}

/// Draws the parts of a post, mostly only one.
fn parts(rng: &mut ChaCha8Rng) -> Parts {
    let [second, third] = [3, 9].map(|rare| rng.random_ratio(1, rare).then(|| Part::draw(rng)));
    [Some(Part::draw(rng)), second, third]
}

fn mark(rng: &mut ChaCha8Rng) -> Option<u32> {
    rng.random_ratio(1, 2).then(|| rng.random_range(0..6))
}

fn place(rng: &mut ChaCha8Rng) -> usize {
    rng.random_range(0..PLACES)
}

fn maybe(rng: &mut ChaCha8Rng) -> Option<usize> {
    rng.random_ratio(9, 10).then(|| place(rng))
}

/// Draws flags of a request: none (4 of 10), a valid flag (3), UNSIGNALLED, which few endpoints allow (2), or an
/// unknown flag (1).
fn flags(rng: &mut ChaCha8Rng) -> u32 {
    [0, 0, 0, 0, 1, 2, 8, 4, 4, 0x100][rng.random_range(0..10)]
}

impl Step {
    /// Draws a call. Calls that create or use connections are more frequent.
    pub fn draw(rng: &mut ChaCha8Rng) -> Self {
        let side = rng.random_range(0..2);
        let at = place(rng);
        let evds = [maybe(rng), maybe(rng), maybe(rng)];
        let cookie = rng.random();
        let qualifier = rng.random_range(0..QUALIFIERS.len());
        // The numbers after the fixed qualifiers name those that the other side's `psp_create_any` returned.
        let found = rng.random_range(QUALIFIERS.len()..QUALIFIERS.len() + PLACES);
        let anybody = [qualifier, found][usize::from(rng.random_ratio(1, 6))];
        // Half of the calls establish connections or use them.
        let what = match rng.random_range(0..4) {
            0 => [29, 29, 47, 80, 82, 89, 98, 102, 103][rng.random_range(0..9)],
            1 => [rng.random_range(110..128), 130][usize::from(rng.random_ratio(1, 9))],
            _ => rng.random_range(0..150_u32),
        };
        let op = match what {
            0..4 => Op::PzCreate(at),
            4 => Op::PzQuery(at),
            5 => Op::PzFree(at),
            6..11 => Op::LmrCreate {
                lmr: at,
                pz: place(rng),
                rights: [0x33, 0x33, 0x33, 0x01, 0x10, 0x100][rng.random_range(0..6)],
            },
            11 => Op::LmrQuery(at),
            12 => Op::LmrFree(at),
            13 => Op::LmrSync {
                part: Part::draw(rng),
                write: rng.random(),
            },
            14 => Op::RmrCreate {
                rmr: at,
                pz: place(rng),
            },
            15 => Op::RmrQuery(at),
            16 => Op::RmrFree(at),
            17..23 => {
                // The combinations, in this order: a short EVD for SOFTWARE; DTO and CONNECTION with RMR_BIND, with CR,
                // and with CR and SOFTWARE; DTO and RMR_BIND; CONNECTION and CR, so short that it overflows; an unknown
                // flag.
                let (flags, qlen) = [
                    (0x001, rng.random_range(0..4)),
                    (0x0e0, EVD_LENGTH),
                    (0x070, EVD_LENGTH),
                    (0x071, EVD_LENGTH),
                    (0x0a0, EVD_LENGTH),
                    (0x050, rng.random_range(1..4)),
                    (0x200, 4),
                ][rng.random_range(0..7)];
                let cno = rng.random_ratio(1, 3).then(|| place(rng));
                Op::EvdCreate {
                    evd: at,
                    qlen,
                    flags,
                    cno,
                }
            }
            23 => Op::EvdQuery(at),
            24 => Op::EvdResize {
                evd: at,
                qlen: [0, 1, 4, EVD_LENGTH, EVD_LENGTH + 500, u32::MAX][rng.random_range(0..6)],
            },
            25..29 => Op::EvdPostSe {
                evd: at,
                word: cookie,
            },
            29..46 => Op::EvdDequeue(at),
            46..49 => Op::EvdWait {
                evd: at,
                threshold: rng.random_range(0..4),
                micros: [0, 0, 100][rng.random_range(0..3)],
            },
            49 => Op::EvdEnable(at),
            50 => Op::EvdDisable(at),
            51 => Op::EvdSetUnwaitable(at),
            52 => Op::EvdClearUnwaitable(at),
            53 => Op::EvdModifyCno {
                evd: at,
                cno: maybe(rng),
            },
            54 => Op::EvdFree(at),
            55 => Op::CnoCreate(at),
            56 => Op::CnoQuery(at),
            57..60 => Op::CnoWait {
                cno: at,
                micros: [0, 0, 100][rng.random_range(0..3)],
            },
            60 => Op::CnoFree(at),
            61..63 => Op::SrqCreate {
                srq: at,
                pz: place(rng),
                length: rng.random_range(0..5),
            },
            63 => Op::SrqQuery(at),
            64 => Op::SrqResize {
                srq: at,
                length: rng.random_range(0..9),
            },
            65..68 => Op::SrqPostRecv {
                srq: at,
                parts: parts(rng),
                cookie,
            },
            68 => Op::SrqFree(at),
            69..76 => Op::EpCreate {
                ep: at,
                pz: maybe(rng),
                evds,
                srq: rng.random_ratio(1, 4).then(|| place(rng)),
                modes: if rng.random_ratio(2, 3) {
                    [0, 0]
                } else {
                    [
                        [0, 2, 4, 4][rng.random_range(0..4)],
                        [0, 2, 4, 4][rng.random_range(0..4)],
                    ]
                },
            },
            76 => Op::EpQuery(at),
            77 => Op::EpGetStatus(at),
            78 => Op::EpRecvQuery(at),
            79 => Op::EpModify {
                ep: rng.random_range(0..PLACES + 4),
                pz: maybe(rng),
                evds,
            },
            80..87 => Op::EpConnect {
                ep: at,
                qualifier: anybody,
            },
            87 => Op::EpDupConnect {
                ep: at,
                dup: place(rng),
            },
            88 => Op::EpDisconnect {
                ep: at,
                graceful: rng.random(),
            },
            89..91 => Op::EpReset(at),
            91 => Op::EpFree(rng.random_range(0..PLACES + 4)),
            92..96 => Op::PspCreate {
                psp: at,
                qualifier,
                evd: place(rng),
                provider: rng.random_ratio(1, 4),
            },
            96 => Op::PspQuery(at),
            97 => Op::PspFree(at),
            98 => Op::RspCreate {
                rsp: at,
                qualifier,
                ep: maybe(rng),
                evd: place(rng),
            },
            99 => Op::RspQuery(at),
            100 => Op::RspFree(at),
            101 => Op::CrQuery(rng.random_range(0..8)),
            102..108 => Op::CrAccept {
                cr: rng.random_range(0..4) * rng.random_range(0..2),
                ep: rng.random_ratio(4, 5).then_some(at),
            },
            108 => Op::CrReject(rng.random_range(0..8)),
            109 => Op::CrHandoff {
                cr: rng.random_range(0..8),
                qualifier,
            },
            110..115 => Op::PostSend {
                ep: at,
                parts: parts(rng),
                cookie,
                flags: flags(rng),
            },
            115..122 => Op::PostRecv {
                ep: at,
                parts: parts(rng),
                cookie,
                flags: if rng.random_ratio(1, 8) {
                    flags(rng)
                } else {
                    0
                },
            },
            122..125 => Op::PostWrite {
                ep: at,
                parts: parts(rng),
                remote: Remote::draw(rng),
                cookie,
                flags: flags(rng),
            },
            125..128 => Op::PostRead {
                ep: at,
                parts: parts(rng),
                remote: Remote::draw(rng),
                cookie,
                flags: flags(rng),
            },
            128 => Op::SetContext {
                ep: at,
                word: cookie,
            },
            129 => Op::GetContext(at),
            130..134 => Op::RmrBind {
                rmr: at,
                ep: place(rng),
                part: Part::draw(rng),
                rights: [0x00, 0x02, 0x20, 0x33, 0x33, 0x100][rng.random_range(0..6)],
                cookie,
                flags: flags(rng),
            },
            134 => Op::LmrCreateFromLmr {
                lmr: at,
                source: place(rng),
                pz: place(rng),
                rights: [0x33, 0x33, 0x01, 0x100][rng.random_range(0..4)],
            },
            135..137 => Op::SrqSetLw {
                srq: at,
                mark: rng.random_range(0..6),
            },
            137..139 => Op::EpSetWatermark {
                ep: at,
                soft: mark(rng),
                hard: mark(rng),
            },
            139 => Op::PspCreateAny {
                psp: at,
                evd: place(rng),
                provider: rng.random_ratio(1, 4),
            },
            140..142 => Op::CnoModifyAgent {
                cno: at,
                agent: rng.random_ratio(3, 4),
            },
            142 => Op::GetHandleType {
                kind: rng.random_range(0..11),
                at,
            },
            143 => Op::Strerror(if rng.random() {
                0x8000_0000 | rng.random_range(0..0x16) << 16 | rng.random_range(0..0x70)
            } else {
                rng.random()
            }),
            144 => Op::IaQuery,
            145 => Op::IaClose {
                graceful: rng.random_ratio(7, 8),
            },
            146 => Op::RegistryAdd {
                name: at,
                init: rng.random(),
            },
            147 => Op::RegistryRemove {
                name: at,
                fini: rng.random(),
            },
            148 => Op::RegistryList(at),
            _ => Op::PzQuery(at),
        };
        Self { side, op }
    }

    /// Returns the first calls of most sequences, which create objects for later calls: on each side memory, EVDs,
    /// three endpoints (one with an SRQ, one with UNSIGNALLED completions) and a listener.
    pub fn prelude() -> Vec<Self> {
        let ops = [
            Op::PzCreate(0),
            Op::RmrCreate { rmr: 0, pz: 0 },
            Op::LmrCreate {
                lmr: 0,
                pz: 0,
                rights: 0x33,
            },
            Op::EvdCreate {
                evd: 0,
                qlen: EVD_LENGTH,
                flags: 0x070,
                cno: None,
            },
            Op::EvdCreate {
                evd: 1,
                qlen: EVD_LENGTH,
                flags: 0x0e0,
                cno: None,
            },
            Op::EvdCreate {
                evd: 2,
                qlen: EVD_LENGTH,
                flags: 0x0a0,
                cno: None,
            },
            Op::SrqCreate {
                srq: 0,
                pz: 0,
                length: 4,
            },
            Op::EpCreate {
                ep: 0,
                pz: Some(0),
                evds: [Some(0), Some(1), Some(0)],
                srq: None,
                modes: [0, 0],
            },
            Op::EpCreate {
                ep: 1,
                pz: Some(0),
                evds: [Some(1), Some(1), Some(1)],
                srq: Some(0),
                modes: [0, 0],
            },
            Op::EpCreate {
                ep: 2,
                pz: Some(0),
                evds: [Some(2), Some(2), Some(0)],
                srq: None,
                modes: [4, 4],
            },
            Op::PspCreate {
                psp: 0,
                qualifier: 0,
                evd: 0,
                provider: false,
            },
        ];
        let both = ops.into_iter().flat_map(|op| [(0, op.clone()), (1, op)]);
        both.map(|(side, op)| Self { side, op }).collect()
    }

    /// Returns a few calls that belong together if the objects of the prelude still exist: a connection, messages on
    /// the connection, or RDMA through an RMR.
    pub fn scene(rng: &mut ChaCha8Rng) -> Vec<Self> {
        let here: usize = rng.random_range(0..2);
        let [ep, peer] = [(); 2].map(|()| place(rng));
        let at = |side: usize, op: Op| Self { side, op };
        let there = 1 - here;
        let cookie = rng.random();
        let part = Part {
            lmr: 0,
            at: 0,
            bytes: [1, 16, 64][rng.random_range(0..3)],
        };
        let parts = [Some(part), rng.random_ratio(1, 2).then_some(part), None];
        match rng.random_range(0..4) {
            0 => {
                let take = at(there, Op::EvdDequeue(0));
                vec![
                    at(here, Op::EpReset(ep)),
                    at(there, Op::EpReset(peer)),
                    at(here, Op::EpConnect { ep, qualifier: 0 }),
                    take.clone(),
                    take.clone(),
                    take,
                    at(
                        there,
                        Op::CrAccept {
                            cr: 0,
                            ep: Some(peer),
                        },
                    ),
                ]
            }
            1 => {
                let whole = Part {
                    bytes: REGION,
                    ..part
                };
                let room = [Some(part), Some(whole), None];
                let own = Op::PostRecv {
                    ep,
                    parts: room,
                    cookie,
                    flags: [0, 0, 4][rng.random_range(0..3)],
                };
                let shared = Op::SrqPostRecv {
                    srq: 0,
                    parts: room,
                    cookie,
                };
                let send = Op::PostSend {
                    ep: peer,
                    parts,
                    cookie,
                    flags: flags(rng),
                };
                vec![at(here, own), at(here, shared), at(there, send)]
            }
            _ => {
                let bind = Op::RmrBind {
                    rmr: 0,
                    ep,
                    part: Part {
                        at: 32,
                        bytes: 64,
                        ..part
                    },
                    rights: [0x02, 0x20, 0x33][rng.random_range(0..3)],
                    cookie,
                    flags: flags(rng),
                };
                let mut remote = Remote::draw(rng);
                remote.rmr = Some(0);
                remote.part.at = [0, 0, 32][rng.random_range(0..3)];
                let write = Op::PostWrite {
                    ep: peer,
                    parts,
                    remote,
                    cookie,
                    flags: flags(rng),
                };
                let read = Op::PostRead {
                    ep: peer,
                    parts,
                    remote,
                    cookie,
                    flags: flags(rng),
                };
                vec![at(here, bind), at(there, write), at(there, read)]
            }
        }
    }

    /// Returns the step as a line of Rust that replays it.
    pub fn code(&self) -> String {
        format!("Step {{ side: {}, op: Op::{:?} }},", self.side, self.op)
    }
}
