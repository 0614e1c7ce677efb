//! Illegal datagrams. The `fuzz` crate has a harness with a fuzzing engine. The tests here run with every test run,
//! and know the random numbers that an attacker would have to guess.

use super::*;

/// Makes a datagram of the CM class with random contents, and with IDs from `names` in some of the ID fields.
fn plausible(random: &mut Random, names: &[u32]) -> Mad {
    let mut mad = [0; wire::MAD_BYTES];
    for chunk in mad.chunks_mut(8) {
        chunk.copy_from_slice(&random.next().to_be_bytes());
    }
    mad[..4].copy_from_slice(&[1, 7, 2, 3]);
    mad[16] = 0;
    mad[17] = 0x10 + random.next().to_be_bytes()[0] % 8;
    for offset in [24, 28] {
        let choice = usize::try_from(random.below(8)).expect("small");
        if let Some(name) = names.get(choice) {
            mad[offset..offset + 4].copy_from_slice(&name.to_be_bytes());
        }
    }
    if random.below(2) == 0 {
        mad[32..40].copy_from_slice(&SERVICE.to_be_bytes());
    }
    if random.below(2) == 0 {
        mad[40..48].copy_from_slice(&config(A).local_ca_guid.to_be_bytes());
    }
    mad
}

#[test]
fn random_datagrams_do_no_harm_beyond_what_they_say() {
    for seed in 1..40 {
        let mut random = Random(seed * 0x0123_4567_89ab_cdef);
        let (mut pair, a, b) = match seed % 3 {
            0 => Pair::requested(),
            1 => Pair::replied(),
            _ => Pair::established(),
        };
        pair.b.config.max_connections = 50;
        let names: Vec<u32> = [pair.a.conns.get(a), pair.b.conns.get(b)]
            .into_iter()
            .flatten()
            .map(|conn| conn.local_id)
            .collect();
        for _ in 0..2_000 {
            let mad = plausible(&mut random, &names);
            let (now, bits) = (pair.now, random.next());
            pair.b.handle_mad(now, &A.address(), &mad, bits);
            pair.a.handle_mad(now, &B.address(), &mad, bits);
            pair.a.poll_transmit();
            while pair.b.poll_transmit().is_some() {}
            while let Some(event) = pair.b.poll_event() {
                match random.below(4) {
                    0 => drop(pair.b.accept(now, event.conn(), accept_params())),
                    1 => drop(pair.b.reject(now, event.conn(), RejectReason::Consumer)),
                    2 => pair.b.release(now, event.conn()),
                    _ => {}
                }
            }
            pair.now += random.below(SECOND);
            pair.a.handle_timeout(pair.now);
            pair.b.handle_timeout(pair.now);
            assert!(pair.b.connections() <= 50);
        }
        assert_eq!(
            pair.b.counters().received,
            2_000 + pair.sent.iter().filter(|(end, _)| *end == A).count() as u64
        );
    }
}

#[test]
fn noise_is_counted_as_malformed_and_not_answered() {
    let mut cm = Cm::new(config(B));
    let mut random = Random(99);
    for _ in 0..1_000 {
        let mut mad = plausible(&mut random, &[]);
        mad[1] = 0x81;
        cm.handle_mad(0, &A.address(), &mad, random.next());
    }
    assert_eq!((cm.counters().malformed, cm.counters().sent), (1_000, 0));
    assert_eq!(
        (cm.poll_transmit(), cm.poll_event(), cm.next_timeout()),
        (None, None, None)
    );
}

#[test]
fn service_id_resolution_is_ignored() {
    let mut cm = Cm::new(config(B));
    let mut mad = plausible(&mut Random(1), &[]);
    for attribute in [0x17, 0x18, 0x19, 0x1a] {
        mad[17] = attribute;
        cm.handle_mad(0, &A.address(), &mad, 0);
    }
    assert_eq!((cm.counters().malformed, cm.poll_transmit()), (4, None));
}
