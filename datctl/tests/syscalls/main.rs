//! The system says no, at any call: each system call of a whole session fails once, with each error that fits it.
//!
//! The test binary starts itself as a child that plays a part ([`parts`]): a session with two adapters from opening to
//! closing, then another that nobody disturbs. A tracer (ptrace(2), [`tracer`]) follows all threads of the child and
//! makes one call fail: the call is not made and an error is put in its answer's place, or it is made for fewer bytes,
//! or it is made and answers an error all the same (close(2)). Nothing in the product knows of it.
//!
//! What must hold, whichever call it was ([`judge`]):
//! - the process ends by itself: no signal, no panic;
//! - the session succeeds all the same, or fails with an error that says what the system answered;
//! - nothing is left: not a descriptor, not a mapping more than after a session that nobody disturbed;
//! - the next session in the same process succeeds.
//!
//! The files that datctl writes are looked at by themselves ([`files`]).
//!
//! What is left alone, and why, is said in [`calls`]; a call that is neither there nor left alone fails the test. The
//! run of the tests takes each call with each error once, and a sample of the rest; `DAT_TEST_SYSCALLS=N` takes N
//! places of each call with each of its errors, `=all` takes everything, of one call only with
//! `DAT_TEST_SYSCALLS_ONLY=NAME`; what it prints is the table of docs/system-calls.md. Where tracing is forbidden the
//! tests are skipped and say so; there are none but for x86-64 with the GNU C library.
#![cfg(all(target_os = "linux", target_arch = "x86_64", target_env = "gnu"))]

mod calls;
mod files;
mod judge;
mod parts;
mod serve;
mod tracer;

/// Two adapters of this process, in virtual time, on one thread.
#[test]
fn every_call_of_a_session_on_the_simulator_may_fail() {
    judge::walk("simulator", judge::empty, &tracer::alone);
}

/// Two adapters of this process, each on an end of a wire that is a socket: threads, and the machine's time.
#[test]
fn every_call_of_a_session_on_a_wire_may_fail() {
    judge::walk("wire", judge::empty, &tracer::alone);
}

/// Two adapters whose functions another process serves. That process is not disturbed, and serves one run after the
/// other.
#[test]
fn every_call_of_a_client_of_served_functions_may_fail() {
    if judge::is_asked_for() {
        judge::walk("client", serve::Datctl::new, &tracer::alone);
    }
}

/// The process that serves, while a client that nobody disturbs has its session: the next client has one.
#[test]
fn every_call_of_a_server_of_functions_may_fail() {
    if judge::is_asked_for() {
        judge::walk("server", judge::empty, &serve::clients);
    }
}

/// The same with two worlds, whose functions are on a wire of datagrams.
#[test]
fn every_call_of_a_server_on_datagrams_may_fail() {
    if judge::is_asked_for() {
        judge::walk("datagrams", judge::empty, &serve::clients);
    }
}

/// A recording is whole or not there.
#[test]
fn every_call_that_writes_a_recording_may_fail() {
    judge::walk_files(files::RECORD);
}

/// Who accepts a card hears of what could not be kept.
#[test]
fn every_call_that_writes_what_an_acceptance_keeps_may_fail() {
    if judge::is_asked_for() {
        judge::walk_files(files::ACCEPT);
    }
}

/// Functions are served whatever becomes of the report about them and of the capture.
#[test]
fn every_call_that_writes_what_a_server_keeps_may_fail() {
    if judge::is_asked_for() {
        judge::walk_files(files::SERVE);
    }
}
