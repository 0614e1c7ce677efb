//! Tests of commands of a namespace with a limit. The clock is the test's own.

use super::*;
use crate::model::Limit;

/// Ten I/Os a second, without a burst: one each 100 ms.
const TEN: Limit = Limit {
    ios_per_second: Some(10),
    bytes_per_second: None,
    burst: Duration::ZERO,
};

const EACH: Duration = Duration::from_millis(100);

fn limited(source: Source, limit: Limit) -> Loop {
    let host = Loop::new(source);
    host.limit(Some(limit));
    host
}

impl Loop {
    fn limit(&self, limit: Option<Limit>) {
        let set = self.model.set_limit(&self.subsystem, 1, limit);
        set.expect("a namespace, and numbers in their ranges");
    }

    /// Lets time pass, and continues the commands whose time has come.
    fn pass(&mut self, time: Duration) {
        self.now += time;
        self.end_waits(false);
    }

    fn end_waits(&mut self, is_forced: bool) {
        let now = self.now;
        let due = if is_forced { Moment::MAX } else { now };
        while let Some(one) = self.commands.next_due(due) {
            let at = one.at;
            let act = self.with_issuer(|commands: &mut Commands, issuer: &Issuer<'_>| {
                commands.go_on(one, now, is_forced, issuer)
            });
            self.carry_out(at, act);
        }
        self.run_once();
    }

    /// Limits the host, which is listed by name for that.
    fn limit_host(&mut self, limit: Option<Limit>) {
        let host = self.connected.host.clone();
        let listed = self.model.allow_host(&self.subsystem, host.clone());
        listed.expect("a subsystem");
        let set = self.model.limit_host(&self.subsystem, &host, limit);
        set.expect("a host, and numbers in their ranges");
    }

    /// Returns the number of commands that waited because of the host's limit.
    fn waited(&self) -> u64 {
        let mut all = self.model.subsystems();
        let of = all.next().expect("a subsystem").host_limits();
        of.get(&self.connected.host).expect("a limit").waited()
    }

    fn send_reads(&mut self, count: usize) -> Vec<(u16, u32)> {
        let data = memory(65536, BLOCK);
        (0..count)
            .map(|_| self.send(transfer(opcode::READ, 0, 1), data))
            .collect()
    }

    /// Returns which of these commands have an answer.
    fn answered(&self, sent: &[(u16, u32)]) -> Vec<bool> {
        let has = |(cid, _): &(u16, u32)| self.answers.contains_key(cid);
        sent.iter().map(has).collect()
    }
}

#[test]
fn commands_begin_at_the_rate_and_in_their_order() {
    let mut host = limited(Source::Null(BYTES), TEN);
    let sent = host.send_reads(4);
    assert_eq!(host.answered(&sent), [true, false, false, false]);
    host.pass(EACH - Duration::from_nanos(1));
    assert_eq!(host.answered(&sent), [true, false, false, false]);
    host.pass(Duration::from_nanos(1));
    assert_eq!(host.answered(&sent), [true, true, false, false]);
    assert_eq!(host.commands.wake(), Some(2 * EACH));
    host.pass(2 * EACH);
    assert_eq!(host.answered(&sent), [true; 4]);
    assert_eq!(host.namespace().done().limited, 3);
    host.assert_free();
}

/// A command that waits has no buffer, and its data is not fetched.
#[test]
fn a_command_that_waits_occupies_no_buffer() {
    let limit = Limit {
        ios_per_second: None,
        bytes_per_second: Some(Limit::LEAST_BYTES),
        burst: Duration::ZERO,
    };
    let mut host = limited(Source::Memory(BYTES), limit);
    let large = 32 * BLOCK;
    let mut sent = Vec::new();
    for _ in 0..COMMANDS {
        let blocks = u32::try_from(large / BLOCK).expect("few");
        sent.push(host.send(transfer(opcode::WRITE, 0, blocks), memory(0, large)));
    }
    let states = |host: &Loop, wanted: State| {
        let all = host.commands.ios.iter();
        all.filter(|io| io.state() == wanted).count()
    };
    assert_eq!(states(&host, State::Held), sent.len() - 1);
    assert!(host.commands.buffers.free() >= BUFFERS as usize - 1);
    // 16 KiB take an eighth of a second, so two seconds are enough for the 15 others.
    for _ in 0..16 {
        host.pass(Duration::from_millis(125));
    }
    for (cid, _) in sent {
        assert_eq!(host.answer(cid), DONE);
    }
    host.assert_free();
}

#[test]
fn a_higher_limit_and_none_hold_for_commands_that_wait() {
    for (limit, within) in [
        (None, 500),
        (
            Some(Limit {
                ios_per_second: Some(1_000_000),
                ..TEN
            }),
            501,
        ),
    ] {
        let mut host = limited(Source::Null(BYTES), TEN);
        let sent = host.send_reads(16);
        host.limit(limit);
        host.pass(Duration::from_millis(500));
        host.pass(Duration::from_millis(within - 500));
        assert_eq!(host.answered(&sent), [true; 16], "{limit:?}");
        host.assert_free();
    }
}

/// The checks are repeated when the command goes on.
#[test]
fn a_command_that_waited_is_not_carried_out_on_another_namespace() {
    let mut host = limited(Source::Memory(BYTES), TEN);
    let sent = host.send_reads(2);
    let first = host.answer(sent[0].0);
    host.remove_namespace();
    host.add_namespace(Source::Memory(BYTES));
    host.pass(EACH);
    let second = host.answers.remove(&sent[1].0);
    let refused = Some(Status::INVALID_NAMESPACE.dnr());
    assert_eq!((first, second), (DONE, refused));
    host.assert_free();
}

/// A host that fills its queue, disconnects and comes back does not push the others ever further behind.
#[test]
fn the_time_of_commands_that_end_is_given_back() {
    let mut host = limited(Source::Null(BYTES), TEN);
    for _ in 0..100 {
        let sent = host.send_reads(8);
        for (cid, at) in sent {
            if host.answers.remove(&cid).is_none() {
                assert!(host.commands.orphan(at));
                host.carry_out(at, Do::Drop);
            }
        }
    }
    let sent = host.send_reads(1);
    host.pass(EACH);
    assert_eq!(host.answered(&sent), [true]);
    host.assert_free();
}

#[test]
fn a_flush_does_not_wait_and_a_held_target_lets_all_go_on() {
    let mut host = limited(Source::Null(BYTES), TEN);
    let sent = host.send_reads(8);
    assert_eq!(host.command(command(opcode::FLUSH), no_data()), DONE);
    assert_eq!(host.answered(&sent).iter().filter(|it| **it).count(), 1);
    host.end_waits(true);
    assert_eq!(host.answered(&sent), [true; 8]);
    host.assert_free();
}

#[test]
fn a_command_that_waits_ends_with_its_connection() {
    let mut host = limited(Source::Null(BYTES), TEN);
    let sent = host.send_reads(3);
    for (_, at) in &sent[1..] {
        assert!(host.commands.orphan(*at));
        host.carry_out(*at, Do::Drop);
    }
    assert_eq!(host.commands.wake(), None);
    host.assert_free();
}

/// A Copy has no data of its own, so it takes what it has read and written, and later commands wait for that, another
/// Copy as well.
#[test]
fn a_copy_takes_the_bytes_that_it_moves() {
    let limit = Limit {
        ios_per_second: None,
        bytes_per_second: Some(Limit::LEAST_BYTES),
        burst: Duration::ZERO,
    };
    let mut host = limited(Source::Memory(BYTES), limit);
    // 128 blocks, less one.
    let mut range = [0; 32];
    range[16] = 127;
    host.host[..32].copy_from_slice(&range);
    let mut copy = transfer(opcode::COPY, 1024, 1);
    copy.cdw12 = 0.into();
    assert_eq!(host.command(copy, memory(0, 32)), DONE);
    // 64 KiB were read, and as many were written: a second.
    let (second, _) = host.send(copy, memory(0, 32));
    let sent = host.send_reads(1);
    host.pass(Duration::from_millis(999));
    assert!(!host.answers.contains_key(&second));
    assert_eq!(host.answered(&sent), [false]);
    assert_eq!(host.commands.waiting.len(), 2);
    host.pass(Duration::from_millis(1));
    assert_eq!(host.answer(second), DONE);
    assert_eq!(host.answer(sent[0].0), DONE);
    host.assert_free();
}

/// A command passes the host's limit first, and takes no time of the namespace's other hosts until then. Each limit
/// counts the commands that it delays.
#[test]
fn a_command_passes_the_limit_of_its_host_and_then_that_of_the_namespace() {
    let mut host = Loop::new(Source::Null(BYTES));
    let faster = Limit {
        ios_per_second: Some(20),
        ..TEN
    };
    host.limit_host(Some(faster));
    host.limit(Some(TEN));
    let sent = host.send_reads(3);
    let counts = |host: &Loop| (host.waited(), host.namespace().done().limited);
    assert_eq!(host.answered(&sent), [true, false, false]);
    assert_eq!(counts(&host), (2, 0));
    // The second may go on by the host's limit, and then waits for the namespace's.
    host.pass(EACH / 2);
    assert_eq!(host.answered(&sent), [true, false, false]);
    assert_eq!(counts(&host), (2, 1));
    host.pass(EACH / 2);
    assert_eq!(host.answered(&sent), [true, true, false]);
    assert_eq!(counts(&host), (2, 2));
    host.pass(EACH);
    assert_eq!(host.answered(&sent), [true; 3]);
    // The host's limit is used up for a second, and the namespace's is free.
    host.pass(EACH);
    host.limit_host(Some(TEN));
    let sent = host.send_reads(12);
    host.limit_host(None);
    host.pass(Duration::from_millis(500));
    assert_eq!(host.answered(&sent).iter().filter(|it| **it).count(), 2);
    for _ in 0..10 {
        host.pass(EACH);
    }
    assert_eq!(host.answered(&sent), [true; 12]);
    host.assert_free();
}

/// The new limiter goes on with the count, because counters of metrics do not go back.
#[test]
fn a_host_that_is_limited_no_longer_goes_on_and_a_new_limit_keeps_the_count() {
    let mut host = Loop::new(Source::Null(BYTES));
    host.limit_host(Some(TEN));
    let sent = host.send_reads(16);
    assert_eq!(host.waited(), 15);
    host.limit_host(Some(Limit {
        ios_per_second: Some(1_000_000),
        ..TEN
    }));
    host.pass(Duration::from_millis(500));
    host.pass(Duration::from_millis(1));
    assert_eq!(host.answered(&sent), [true; 16]);
    assert_eq!(host.waited(), 15);
    host.limit_host(Some(TEN));
    let sent = host.send_reads(16);
    host.limit_host(None);
    host.pass(Duration::from_millis(500));
    assert_eq!(host.answered(&sent), [true; 16]);
    host.assert_free();
}

/// Another host's limit, and one of a host that is not listed, are none of this one.
#[test]
fn a_host_has_only_its_own_limit() {
    let mut host = Loop::new(Source::Null(BYTES));
    let other: Nqn = "nqn.2026-11.test:other".parse().expect("a name");
    let unlisted = host.model.limit_host(&host.subsystem, &other, Some(TEN));
    assert!(unlisted.is_err());
    let listed = host.model.allow_host(&host.subsystem, other.clone());
    listed.expect("a subsystem");
    let wrong = Limit {
        ios_per_second: Some(1),
        ..TEN
    };
    assert!(
        host.model
            .limit_host(&host.subsystem, &other, Some(wrong))
            .is_err()
    );
    let set = host.model.limit_host(&host.subsystem, &other, Some(TEN));
    set.expect("a host");
    let sent = host.send_reads(4);
    assert_eq!(host.answered(&sent), [true; 4]);
    host.assert_free();
}
