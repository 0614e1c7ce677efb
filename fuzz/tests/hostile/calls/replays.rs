//! Sequences that once failed, or that fail if a certain defect is put into the code.

use super::op::{Op, Part, Remote, Step};
use super::replay;

#[test]
fn a_message_without_a_receive_breaks_the_connection_of_the_one_that_sent_it() {
    let place = Some(0);
    replay(&[
        Step {
            side: 0,
            op: Op::PzCreate(0),
        },
        Step {
            side: 1,
            op: Op::PzCreate(0),
        },
        Step {
            side: 0,
            op: Op::EvdCreate {
                evd: 0,
                qlen: 64,
                flags: 0x070,
                cno: None,
            },
        },
        Step {
            side: 1,
            op: Op::EvdCreate {
                evd: 0,
                qlen: 64,
                flags: 0x070,
                cno: None,
            },
        },
        Step {
            side: 0,
            op: Op::EpCreate {
                ep: 0,
                pz: place,
                evds: [place; 3],
                srq: None,
                modes: [0, 0],
            },
        },
        Step {
            side: 0,
            op: Op::EpCreate {
                ep: 1,
                pz: place,
                evds: [place; 3],
                srq: None,
                modes: [0, 0],
            },
        },
        Step {
            side: 1,
            op: Op::EpCreate {
                ep: 0,
                pz: place,
                evds: [None, None, place],
                srq: None,
                modes: [0, 0],
            },
        },
        Step {
            side: 1,
            op: Op::PspCreate {
                psp: 0,
                qualifier: 0,
                evd: 0,
                provider: false,
            },
        },
        Step {
            side: 0,
            op: Op::EpConnect {
                ep: 1,
                qualifier: 0,
            },
        },
        Step {
            side: 0,
            op: Op::EpConnect {
                ep: 0,
                qualifier: 0,
            },
        },
        Step {
            side: 1,
            op: Op::EvdDequeue(0),
        },
        Step {
            side: 1,
            op: Op::CrAccept { cr: 1, ep: place },
        },
        Step {
            side: 0,
            op: Op::PostSend {
                ep: 1,
                parts: [None; 3],
                cookie: 7,
                flags: 0,
            },
        },
        Step {
            side: 1,
            op: Op::EpGetStatus(0),
        },
        Step {
            side: 0,
            op: Op::EpGetStatus(1),
        },
        Step {
            side: 0,
            op: Op::EpGetStatus(0),
        },
    ]);
}

#[test]
fn a_region_ends_for_the_device_too_when_the_bind_that_named_it_was_flushed() {
    replay(&[
        Step {
            side: 0,
            op: Op::PzCreate(0),
        },
        Step {
            side: 1,
            op: Op::PzCreate(0),
        },
        Step {
            side: 0,
            op: Op::RmrCreate { rmr: 0, pz: 0 },
        },
        Step {
            side: 0,
            op: Op::LmrCreate {
                lmr: 0,
                pz: 0,
                rights: 51,
            },
        },
        Step {
            side: 0,
            op: Op::EvdCreate {
                evd: 0,
                qlen: 8192,
                flags: 112,
                cno: None,
            },
        },
        Step {
            side: 1,
            op: Op::EvdCreate {
                evd: 0,
                qlen: 8192,
                flags: 112,
                cno: None,
            },
        },
        Step {
            side: 0,
            op: Op::EvdCreate {
                evd: 1,
                qlen: 8192,
                flags: 224,
                cno: None,
            },
        },
        Step {
            side: 1,
            op: Op::EvdCreate {
                evd: 1,
                qlen: 8192,
                flags: 224,
                cno: None,
            },
        },
        Step {
            side: 0,
            op: Op::SrqCreate {
                srq: 0,
                pz: 0,
                length: 4,
            },
        },
        Step {
            side: 1,
            op: Op::SrqCreate {
                srq: 0,
                pz: 0,
                length: 4,
            },
        },
        Step {
            side: 0,
            op: Op::EpCreate {
                ep: 1,
                pz: Some(0),
                evds: [Some(1), Some(1), Some(1)],
                srq: Some(0),
                modes: [0, 0],
            },
        },
        Step {
            side: 1,
            op: Op::EpCreate {
                ep: 1,
                pz: Some(0),
                evds: [Some(1), Some(1), Some(1)],
                srq: Some(0),
                modes: [0, 0],
            },
        },
        Step {
            side: 0,
            op: Op::PspCreate {
                psp: 0,
                qualifier: 0,
                evd: 0,
                provider: false,
            },
        },
        Step {
            side: 1,
            op: Op::PspCreate {
                psp: 0,
                qualifier: 0,
                evd: 0,
                provider: false,
            },
        },
        Step {
            side: 0,
            op: Op::EpConnect {
                ep: 1,
                qualifier: 0,
            },
        },
        Step {
            side: 1,
            op: Op::EvdDequeue(0),
        },
        Step {
            side: 1,
            op: Op::CrAccept { cr: 0, ep: Some(1) },
        },
        Step {
            side: 0,
            op: Op::RmrBind {
                rmr: 0,
                ep: 1,
                part: Part {
                    lmr: 0,
                    at: 32,
                    bytes: 64,
                },
                rights: 2,
                cookie: 14584769429918818145,
                flags: 0,
            },
        },
        Step {
            side: 0,
            op: Op::PostSend {
                ep: 1,
                parts: [
                    Some(Part {
                        lmr: 0,
                        at: 0,
                        bytes: 1,
                    }),
                    None,
                    None,
                ],
                cookie: 18114370901523562132,
                flags: 0,
            },
        },
        Step {
            side: 1,
            op: Op::LmrCreate {
                lmr: 2,
                pz: 0,
                rights: 51,
            },
        },
        Step {
            side: 0,
            op: Op::SrqPostRecv {
                srq: 0,
                parts: [
                    Some(Part {
                        lmr: 0,
                        at: 0,
                        bytes: 16,
                    }),
                    Some(Part {
                        lmr: 0,
                        at: 0,
                        bytes: 256,
                    }),
                    None,
                ],
                cookie: 8048328603080699638,
            },
        },
        Step {
            side: 0,
            op: Op::RmrBind {
                rmr: 0,
                ep: 1,
                part: Part {
                    lmr: 0,
                    at: 32,
                    bytes: 64,
                },
                rights: 32,
                cookie: 16426223260106065545,
                flags: 0,
            },
        },
        Step {
            side: 0,
            op: Op::EpReset(1),
        },
        Step {
            side: 1,
            op: Op::EpReset(1),
        },
        Step {
            side: 1,
            op: Op::EpConnect {
                ep: 1,
                qualifier: 0,
            },
        },
        Step {
            side: 0,
            op: Op::LmrFree(0),
        },
        Step {
            side: 0,
            op: Op::EvdDequeue(0),
        },
        Step {
            side: 0,
            op: Op::CrAccept { cr: 0, ep: Some(1) },
        },
        Step {
            side: 1,
            op: Op::PostSend {
                ep: 1,
                parts: [
                    Some(Part {
                        lmr: 2,
                        at: 0,
                        bytes: 16,
                    }),
                    None,
                    None,
                ],
                cookie: 703024153283665185,
                flags: 0,
            },
        },
        Step {
            side: 0,
            op: Op::EpReset(1),
        },
    ]);
}

#[test]
fn the_context_an_rmr_had_before_its_last_bind_breaks_the_connection() {
    replay(&[
        Step {
            side: 0,
            op: Op::PzCreate(0),
        },
        Step {
            side: 1,
            op: Op::PzCreate(0),
        },
        Step {
            side: 0,
            op: Op::RmrCreate { rmr: 0, pz: 0 },
        },
        Step {
            side: 0,
            op: Op::LmrCreate {
                lmr: 0,
                pz: 0,
                rights: 51,
            },
        },
        Step {
            side: 1,
            op: Op::LmrCreate {
                lmr: 0,
                pz: 0,
                rights: 51,
            },
        },
        Step {
            side: 0,
            op: Op::EvdCreate {
                evd: 0,
                qlen: 64,
                flags: 112,
                cno: None,
            },
        },
        Step {
            side: 1,
            op: Op::EvdCreate {
                evd: 0,
                qlen: 64,
                flags: 112,
                cno: None,
            },
        },
        Step {
            side: 0,
            op: Op::EvdCreate {
                evd: 1,
                qlen: 64,
                flags: 224,
                cno: None,
            },
        },
        Step {
            side: 0,
            op: Op::EpCreate {
                ep: 0,
                pz: Some(0),
                evds: [Some(0), Some(1), Some(0)],
                srq: None,
                modes: [0, 0],
            },
        },
        Step {
            side: 1,
            op: Op::EpCreate {
                ep: 0,
                pz: Some(0),
                evds: [Some(0), Some(0), Some(0)],
                srq: None,
                modes: [0, 0],
            },
        },
        Step {
            side: 0,
            op: Op::PspCreate {
                psp: 0,
                qualifier: 0,
                evd: 0,
                provider: false,
            },
        },
        Step {
            side: 1,
            op: Op::EpConnect {
                ep: 0,
                qualifier: 0,
            },
        },
        Step {
            side: 0,
            op: Op::EvdDequeue(0),
        },
        Step {
            side: 0,
            op: Op::CrAccept { cr: 0, ep: Some(0) },
        },
        Step {
            side: 0,
            op: Op::RmrBind {
                rmr: 0,
                ep: 0,
                part: Part {
                    lmr: 0,
                    at: 32,
                    bytes: 64,
                },
                rights: 0x22,
                cookie: 1,
                flags: 0,
            },
        },
        Step {
            side: 1,
            op: Op::PostWrite {
                ep: 0,
                parts: [
                    Some(Part {
                        lmr: 0,
                        at: 0,
                        bytes: 64,
                    }),
                    None,
                    None,
                ],
                remote: Remote {
                    part: Part {
                        lmr: 0,
                        at: 0,
                        bytes: 64,
                    },
                    rmr: Some(0),
                    stale: false,
                },
                cookie: 2,
                flags: 0,
            },
        },
        Step {
            side: 0,
            op: Op::RmrBind {
                rmr: 0,
                ep: 0,
                part: Part {
                    lmr: 0,
                    at: 32,
                    bytes: 64,
                },
                rights: 0x22,
                cookie: 3,
                flags: 0,
            },
        },
        Step {
            side: 1,
            op: Op::PostRead {
                ep: 0,
                parts: [
                    Some(Part {
                        lmr: 0,
                        at: 0,
                        bytes: 64,
                    }),
                    None,
                    None,
                ],
                remote: Remote {
                    part: Part {
                        lmr: 0,
                        at: 0,
                        bytes: 64,
                    },
                    rmr: Some(0),
                    stale: true,
                },
                cookie: 4,
                flags: 0,
            },
        },
        Step {
            side: 1,
            op: Op::EpGetStatus(0),
        },
        Step {
            side: 0,
            op: Op::EvdDequeue(1),
        },
        Step {
            side: 0,
            op: Op::EvdDequeue(1),
        },
    ]);
}

#[test]
fn an_adapter_that_closes_refuses_requests_before_it_ends_connections() {
    replay(&[
        Step {
            side: 0,
            op: Op::CnoCreate(1),
        },
        Step {
            side: 1,
            op: Op::PzCreate(2),
        },
        Step {
            side: 0,
            op: Op::EvdCreate {
                evd: 1,
                qlen: 8192,
                flags: 224,
                cno: None,
            },
        },
        Step {
            side: 0,
            op: Op::PzCreate(0),
        },
        Step {
            side: 1,
            op: Op::EvdCreate {
                evd: 0,
                qlen: 8192,
                flags: 112,
                cno: None,
            },
        },
        Step {
            side: 0,
            op: Op::EvdCreate {
                evd: 0,
                qlen: 1,
                flags: 80,
                cno: Some(1),
            },
        },
        Step {
            side: 0,
            op: Op::PzCreate(2),
        },
        Step {
            side: 0,
            op: Op::EvdCreate {
                evd: 2,
                qlen: 8192,
                flags: 112,
                cno: None,
            },
        },
        Step {
            side: 1,
            op: Op::EvdCreate {
                evd: 1,
                qlen: 8192,
                flags: 113,
                cno: None,
            },
        },
        Step {
            side: 1,
            op: Op::EpCreate {
                ep: 2,
                pz: Some(2),
                evds: [Some(0), Some(1), Some(0)],
                srq: None,
                modes: [0, 0],
            },
        },
        Step {
            side: 1,
            op: Op::PspCreate {
                psp: 0,
                qualifier: 0,
                evd: 1,
                provider: true,
            },
        },
        Step {
            side: 0,
            op: Op::PspCreate {
                psp: 2,
                qualifier: 0,
                evd: 0,
                provider: false,
            },
        },
        Step {
            side: 1,
            op: Op::EpConnect {
                ep: 2,
                qualifier: 0,
            },
        },
        Step {
            side: 0,
            op: Op::EpCreate {
                ep: 2,
                pz: Some(0),
                evds: [Some(2), Some(1), Some(0)],
                srq: None,
                modes: [0, 0],
            },
        },
        Step {
            side: 0,
            op: Op::EpCreate {
                ep: 0,
                pz: Some(2),
                evds: [Some(2), Some(1), Some(0)],
                srq: None,
                modes: [0, 0],
            },
        },
        Step {
            side: 0,
            op: Op::EpConnect {
                ep: 0,
                qualifier: 0,
            },
        },
        Step {
            side: 0,
            op: Op::EvdDequeue(0),
        },
        Step {
            side: 0,
            op: Op::CrAccept { cr: 0, ep: Some(2) },
        },
        Step {
            side: 0,
            op: Op::EvdDequeue(0),
        },
        Step {
            side: 1,
            op: Op::IaClose { graceful: false },
        },
        Step {
            side: 0,
            op: Op::EvdDequeue(0),
        },
    ]);
}

#[test]
fn service_points_on_one_evd_take_no_room_from_each_others_requests() {
    let ep = |ep, evd: usize, connection: usize, modes| Op::EpCreate {
        ep,
        pz: Some(0),
        evds: [Some(evd), Some(evd), Some(connection)],
        srq: None,
        modes,
    };
    let evd = |evd, qlen, flags| Op::EvdCreate {
        evd,
        qlen,
        flags,
        cno: None,
    };
    let connect = |ep| Op::EpConnect { ep, qualifier: 0 };
    let steps = [
        (1, Op::PzCreate(1)),
        (1, evd(1, 3, 0x050)),
        (
            1,
            Op::PspCreate {
                psp: 1,
                qualifier: 0,
                evd: 1,
                provider: true,
            },
        ),
        (1, evd(2, 8192, 0x070)),
        (0, Op::PzCreate(0)),
        (0, evd(0, 8192, 0x070)),
        (0, evd(1, 8192, 0x0e0)),
        (0, evd(2, 8192, 0x0a0)),
        (0, ep(1, 1, 1, [0, 0])),
        (0, ep(2, 2, 0, [4, 4])),
        (0, connect(1)),
        (
            0,
            Op::EpDisconnect {
                ep: 1,
                graceful: false,
            },
        ),
        (0, Op::EpReset(1)),
        (0, connect(1)),
        (
            1,
            Op::RspCreate {
                rsp: 1,
                qualifier: 1,
                ep: None,
                evd: 1,
            },
        ),
        (0, connect(2)),
        (0, Op::EvdDequeue(0)),
    ];
    replay(&steps.map(|(side, op)| Step { side, op }));
}
