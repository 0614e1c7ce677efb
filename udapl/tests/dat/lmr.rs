//! Memory regions (LMRs): creation from each kind of memory, query, and free.

use udapl::error::{ReturnType, Subtype};
use udapl::memory::{LmrParam, MemType, PageSize};
use udapl::{CloseFlags, DtoCookie, DtoStatus, MemPrivFlags};

use crate::support::rdma::Rdma;
use crate::support::windows::BOTH_WAYS;
use crate::support::{A, B, Buffer, NONE, Pair, PairConfig, Side, pattern, refused};

const ID: [u8; 40] = *b"forty bytes, and every one of them count";

impl Pair {
    /// Creates an LMR of the memory of `buffer`'s LMR.
    fn same_memory(&mut self, side: usize, buffer: &Buffer, rights: MemPrivFlags) -> Buffer {
        let pz = self.sides[side].pz;
        let lmr = self.sides[side]
            .ia
            .lmr_create_from_lmr(buffer.lmr.lmr, pz, rights)
            .expect("an LMR");
        Buffer {
            memory: buffer.memory.clone(),
            lmr,
            bytes: buffer.bytes,
        }
    }
}

/// A query of a region returns what was asked for at its creation.
///
/// Clauses: LMRC-1, LMRC-2, LMRC-3, LMRC-4, LMRQ-1, LMRQ-2.
#[test]
fn a_region_tells_what_it_was_asked_for() {
    let mut pair = Pair::unconnected(&PairConfig::default());
    let pz = pair.sides[A].pz;
    for bits in 0..=0x3f_u32 {
        let Some(rights) = MemPrivFlags::from_bits(bits) else {
            continue;
        };
        let buffer = pair.buffer_in(A, 5_000, pz, rights);
        let lmr = buffer.lmr;
        let remote = rights.intersects(BOTH_WAYS);
        assert_eq!(lmr.rmr_context != 0, remote, "{rights:?}");
        assert_eq!(
            (lmr.registered_address, lmr.registered_size),
            (buffer.memory.address(), 5_000)
        );
        let ia = &mut pair.sides[A].ia;
        assert_eq!(
            ia.lmr_query(lmr.lmr),
            Ok(LmrParam {
                mem_type: MemType::Virtual,
                pz,
                privileges: rights,
                lmr_context: lmr.lmr_context,
                rmr_context: lmr.rmr_context,
                registered_address: lmr.registered_address,
                registered_size: 5_000,
            })
        );
        ia.lmr_free(lmr.lmr).expect("freed");
        for gone in [ia.lmr_query(lmr.lmr).map(drop), ia.lmr_free(lmr.lmr)] {
            let error = refused(gone, ReturnType::InvalidHandle);
            assert_eq!(error.subtype(), Subtype::HandleLmr);
        }
    }
    let memory = udapl::alloc(&pair.sides[A].ia, 64).expect("memory");
    let unknown = MemPrivFlags::from_bits_retain(0x04);
    let ia = &mut pair.sides[A].ia;
    let lmr = ia.lmr_create(memory.clone(), pz, unknown);
    let error = refused(lmr, ReturnType::InvalidParameter);
    assert_eq!(error.subtype(), Subtype::Arg6);
    let elsewhere = pair.sides[B].pz;
    let lmr = pair.sides[A].ia.lmr_create(memory, elsewhere, BOTH_WAYS);
    let error = refused(lmr, ReturnType::InvalidHandle);
    assert_eq!(error.subtype(), Subtype::HandlePz);
}

/// An LMR that is created from another LMR has the same memory, with its own PZ and rights.
///
/// Clauses: LMRC-5, LMRC-6.
#[test]
fn a_region_of_a_region_is_the_same_memory_under_its_own_zone_and_rights() {
    let mut pair = Pair::connected();
    let whole = pair.filled(B, 5, 256);
    let readable = pair.same_memory(B, &whole, MemPrivFlags::REMOTE_READ);
    let lmr = readable.lmr;
    assert_ne!(lmr.lmr_context, whole.lmr.lmr_context);
    let param = pair.sides[B].ia.lmr_query(lmr.lmr).expect("exists");
    assert_eq!(param.mem_type, MemType::Lmr(whole.lmr.lmr));
    assert_eq!(
        (param.registered_address, param.registered_size),
        (whole.lmr.registered_address, 256)
    );
    // The two regions are freed independently.
    pair.sides[B].ia.lmr_free(whole.lmr.lmr).expect("freed");
    pair.expect_readable(&readable.all_remote(), &pattern(5, 256));
    pair.expect_no_access(Rdma::Write, &readable.all_remote());
    assert_eq!(readable.read(0, 256), pattern(5, 256));
    let (pz, gone) = (pair.sides[B].pz, whole.lmr.lmr);
    let ia = &mut pair.sides[B].ia;
    let lmr = ia.lmr_create_from_lmr(gone, pz, BOTH_WAYS);
    let error = refused(lmr, ReturnType::InvalidHandle);
    assert_eq!(error.subtype(), Subtype::HandleLmr);
    pair.assert_no_complaints();
}

/// LMRs that are created with the same shared memory identifier have the same memory.
///
/// Clauses: LMRC-7, LMRC-8.
#[test]
fn shared_memory_is_one_memory_for_all_who_name_it() {
    let mut pair = Pair::connected();
    let pz = pair.sides[B].pz;
    let ia = &mut pair.sides[B].ia;
    let memory = udapl::alloc(ia, 256).expect("memory");
    let elsewhere = ia.pz_create().expect("a PZ");
    let one = ia.lmr_create_shared(memory.clone(), ID, pz, MemPrivFlags::all());
    let two = ia.lmr_create_shared(memory.clone(), ID, elsewhere, MemPrivFlags::LOCAL_READ);
    let (one, two) = (one.expect("an LMR"), two.expect("another one"));
    for lmr in [one, two] {
        let param = ia.lmr_query(lmr.lmr).expect("exists");
        assert_eq!(param.mem_type, MemType::SharedVirtual(ID));
        assert_eq!(param.mem_type.number(), 2);
    }
    let shorter = udapl::alloc(ia, 255).expect("memory");
    let lmr = ia.lmr_create_shared(shorter.clone(), ID, pz, BOTH_WAYS);
    let error = refused(lmr, ReturnType::InvalidParameter);
    assert_eq!(error.subtype(), Subtype::Arg4);
    let mut other = ID;
    other[39] ^= 1;
    ia.lmr_create_shared(shorter, other, pz, BOTH_WAYS)
        .expect("the last byte counts too");
    ia.lmr_free(two.lmr).expect("freed");
    let shared = Buffer {
        memory,
        lmr: one,
        bytes: 256,
    };
    let source = pair.filled(A, 7, 256);
    pair.post_write(A, &[source.all()], 1, &shared.all_remote(), NONE)
        .expect("posted");
    pair.expect_request(A, 1, DtoStatus::Success);
    assert_eq!(shared.read(0, 256), pattern(7, 256));
    assert_eq!(pair.sides[B].ia.query().provider.lmr_mem_types_supported, 3);
}

/// After an LMR is freed, no local request and no peer can access the memory through the LMR's contexts.
///
/// Clauses: LMRF-1, LMRF-2.
#[test]
fn after_the_free_nobody_reaches_the_memory() {
    for rdma in [Rdma::Read, Rdma::Write] {
        let mut pair = Pair::connected();
        let memory = pair.filled(B, 5, 64);
        pair.sides[B].ia.lmr_free(memory.lmr.lmr).expect("freed");
        let send = pair.post_send(B, &[memory.all()], 1, NONE);
        refused(send, ReturnType::PrivilegesViolation);
        pair.expect_no_access(rdma, &memory.all_remote());
        assert_eq!(
            memory.read(0, 64),
            pattern(5, 64),
            "the memory is ours still"
        );
    }
}

/// A region cannot be freed while an RMR is bound to it.
///
/// Clauses: LMRF-3.
#[test]
fn a_region_an_rmr_is_bound_to_stays() {
    let mut pair = Pair::binding();
    let memory = pair.filled(B, 5, 64);
    let rmrs = [pair.rmr(B), pair.rmr(B)];
    for rmr in rmrs {
        pair.bind(B, rmr, &memory.all(), BOTH_WAYS);
    }
    for rmr in rmrs {
        let freed = pair.sides[B].ia.lmr_free(memory.lmr.lmr);
        let error = refused(freed, ReturnType::InvalidState);
        assert_eq!(error.subtype(), Subtype::StateLmrInUse);
        pair.expect_readable(&memory.all_remote(), &pattern(5, 64));
        pair.sides[B].ia.rmr_free(rmr).expect("freed");
    }
    let freed = pair.sides[B].ia.lmr_free(memory.lmr.lmr);
    freed.expect("nothing is bound to it");
    pair.assert_no_complaints();
}

/// The memory of another adapter is refused: every adapter starts its I/O addresses at the same value, so a key for
/// that memory would cover other bytes.
#[test]
fn memory_of_another_adapter_is_refused_by_name() {
    let pair = Pair::unconnected(&PairConfig::default());
    let [a, mut b] = pair.sides;
    let theirs = udapl::alloc(&a.ia, 64).expect("memory");
    let own = udapl::alloc(&b.ia, 64).expect("memory");
    own.write_from(0, &[0x11; 64]).expect("inside");
    let rights = MemPrivFlags::all();
    let id = [7; 40];
    for shared in [false, true] {
        let made = if shared {
            b.ia.lmr_create_shared(theirs.clone(), id, b.pz, rights)
        } else {
            b.ia.lmr_create(theirs.clone(), b.pz, rights)
        };
        let error = refused(made, ReturnType::InvalidParameter);
        assert_eq!(error.subtype(), Subtype::Arg4, "{error}");
        let why = b.ia.last_device_error().expect("a reason").to_owned();
        assert!(why.contains("sim:0") && why.contains("sim:1"), "{why}");
        assert_eq!(
            error.detail(),
            "the memory is sim:0's, which sim:1 cannot reach: open both with `,memory=NAME`"
        );
    }
    b.ia.lmr_create(own, b.pz, rights).expect("its own");
    // Memory of a closed adapter cannot be registered after the adapter is opened again, with new I/O addresses.
    udapl::ia_close(a.ia, CloseFlags::Abrupt).expect("closes");
    let mut again = pair.fabric.open(A).expect("opens");
    let pz = again.pz_create().expect("a PZ");
    let made = again.lmr_create(theirs, pz, rights);
    refused(made, ReturnType::InvalidParameter);
    let why = again.last_device_error().expect("a reason").to_owned();
    assert!(why.contains("earlier opening of sim:0"), "{why}");
}

#[test]
fn memory_of_a_pool_is_registered_and_carries_data_as_any_other() {
    let mut pair = Pair::connected();
    let pools = [A, B].map(|side| {
        let pool = udapl::memory::pool(&pair.sides[side].ia);
        let pool = pool.pages_up_to(PageSize::Huge2M).prefault(2);
        let pool = pool.build(1 << 20).expect("a pool");
        println!("{pool:?}");
        pool
    });
    let [from, to] = [A, B].map(|side| {
        let memory = pools[side].memory(5000).expect("room");
        let Side { ia, pz, .. } = &mut pair.sides[side];
        let lmr = ia.lmr_create(memory.clone(), *pz, MemPrivFlags::all());
        Buffer {
            memory,
            lmr: lmr.expect("an LMR"),
            bytes: 5000,
        }
    });
    from.write(0, &pattern(3, 5000));
    let ep = pair.sides[A].ep;
    pair.sides[A]
        .ia
        .ep_post_rdma_write(ep, &[from.all()], DtoCookie(1), &to.all_remote(), NONE)
        .expect("a write");
    assert_eq!(pair.wait_request(A).status, DtoStatus::Success);
    assert_eq!(to.read(0, 5000), pattern(3, 5000));
}

/// If two adapters were opened with shared memory, memory allocated through one adapter can be registered on both. Each
/// adapter has its own key for this memory.
#[test]
fn memory_in_common_is_registered_on_both_adapters_and_moves_between_them() {
    let mut config = PairConfig::default();
    config.options = config.options.map(|options| options.memory("in common"));
    let mut pair = Pair::unconnected(&config);
    pair.connect();
    let memory = udapl::alloc(&pair.sides[A].ia, 8192).expect("memory");
    let rights = MemPrivFlags::all();
    let [from, to] = [A, B].map(|side| {
        let Side { ia, pz, .. } = &mut pair.sides[side];
        let lmr = ia.lmr_create(memory.clone(), *pz, rights).expect("its own");
        Buffer {
            memory: memory.clone(),
            lmr,
            bytes: 8192,
        }
    });
    assert_eq!(from.lmr.registered_address, to.lmr.registered_address);
    from.write(0, &pattern(3, 4096));
    let ep = pair.sides[A].ep;
    let there = to.remote(4096, 4096);
    pair.sides[A]
        .ia
        .ep_post_rdma_write(ep, &[from.part(0, 4096)], DtoCookie(1), &there, NONE)
        .expect("a write");
    assert_eq!(pair.wait_request(A).status, DtoStatus::Success);
    assert_eq!(memory.read(4096, 4096), Ok(pattern(3, 4096)));
    // The close of the adapter that allocated the memory does not affect the other adapter: the other adapter's LMR
    // stays, and the other adapter can register the memory again.
    let Pair { fabric, sides, .. } = pair;
    let [a, mut b] = sides;
    udapl::ia_close(a.ia, CloseFlags::Abrupt).expect("closes");
    b.ia.lmr_query(to.lmr.lmr).expect("as it was");
    b.ia.lmr_create(memory.clone(), b.pz, rights)
        .expect("once more");
    // An adapter that is opened again with the same shared memory can use the memory as before.
    let again = fabric.open_side(A, &config.options[A]);
    let mut again = again.expect("opens");
    let pz = again.pz_create().expect("a PZ");
    again
        .lmr_create(memory, pz, rights)
        .expect("what its earlier opening has allocated");
}

/// The low byte of a key is random. So a key does not reveal its neighbours, nor do the keys of one open reveal those
/// of the next.
#[test]
fn variants_of_keys_are_drawn_and_a_seed_repeats_them() {
    let variants = |seed: Option<u64>| {
        let mut config = PairConfig::default();
        if let Some(seed) = seed {
            config.options[B].hca.seed = Some(seed);
        }
        let mut pair = Pair::unconnected(&config);
        let keys: Vec<u8> = (0..40)
            .map(|_| {
                let [.., variant] = pair.buffer(B, 8).lmr.rmr_context.to_be_bytes();
                variant
            })
            .collect();
        keys
    };
    let drawn = variants(Some(5));
    assert_eq!(drawn, variants(Some(5)));
    assert_ne!(drawn, variants(Some(6)));
    let steps: std::collections::BTreeSet<u8> = drawn
        .windows(2)
        .map(|pair| pair[1].wrapping_sub(pair[0]))
        .collect();
    assert!(steps.len() > 20, "{drawn:?}");
}
