//! System calls that fail: each system call of a whole session fails once, with each error that it can return.
//!
//! The test binary starts itself as a child that runs a part ([`parts`]): a session with two adapters from opening
//! to closing, then an undisturbed one. A tracer (ptrace(2), [`tracer`]) follows all threads of the child and
//! disturbs one call: the call is not made and returns an error; or it is made for half of the bytes; or it is made and
//! returns an error all the same (close(2), shutdown(2)). The product contains no code for this.
//!
//! These conditions must hold for every call ([`judge`]):
//! - the process ends by itself: no signal, no panic;
//! - the session succeeds all the same, or fails with an error that names the system's error (with the exceptions in
//!   [`judge`]);
//! - nothing is left: no more descriptors and mappings than after an undisturbed session;
//! - the next session in the same process succeeds.
//!
//! The files that datctl writes have tests of their own ([`files`]).
//!
//! [`calls`] lists the calls that are disturbed and, with reasons, those that are not. Any other call fails the test.
//! By default only three tests run: `simulator`, `wire`, and that of the recording. In each of them every call fails
//! once with each of its errors, at one of its occurrences in the session. 20 more combinations of call, error and
//! occurrence follow. With `DAT_TEST_SYSCALLS=N` the other tests run, too, with N occurrences of each call for each of
//! its errors (`=all`: all occurrences). That of the acceptance run, whose trace has about 270,000 writes, needs N of 2
//! or more. `DAT_TEST_SYSCALLS_ONLY=NAME` limits the tests to one call. The output is the table of
//! docs/system-calls.md. Where tracing is forbidden the tests are skipped and say so. They exist only for x86-64 with
//! the GNU C library.
#![cfg(all(target_os = "linux", target_arch = "x86_64", target_env = "gnu"))]

mod calls;
mod files;
mod judge;
mod parts;
mod serve;
mod tracer;

/// The conditions hold for two adapters of this process, in virtual time, on one thread.
#[test]
fn every_call_of_a_session_on_the_simulator_may_fail() {
    judge::walk("simulator", judge::empty, &tracer::alone);
}

/// The conditions hold for two adapters of this process, each on an end of a wire that is a socket, with threads and
/// the machine's time.
#[test]
fn every_call_of_a_session_on_a_wire_may_fail() {
    judge::walk("wire", judge::empty, &tracer::alone);
}

/// The conditions hold for two adapters whose functions another process serves. That process is undisturbed, and serves
/// one run after the other.
#[test]
fn every_call_of_a_client_of_served_functions_may_fail() {
    if judge::is_asked_for(1) {
        judge::walk("client", serve::Datctl::new, &tracer::alone);
    }
}

/// The conditions hold for the server process during the session of an undisturbed client, and the next client
/// succeeds.
#[test]
fn every_call_of_a_server_of_functions_may_fail() {
    if judge::is_asked_for(1) {
        judge::walk("server", judge::empty, &serve::clients);
    }
}

/// The conditions hold for a server of two simulators, whose functions are linked by datagrams.
#[test]
fn every_call_of_a_server_on_datagrams_may_fail() {
    if judge::is_asked_for(1) {
        judge::walk("datagrams", judge::empty, &serve::clients);
    }
}

/// A recording is complete or absent, whichever call fails.
#[test]
fn every_call_that_writes_a_recording_may_fail() {
    judge::walk_files(files::RECORD);
}

/// An acceptance run reports the files that could not be written.
#[test]
fn every_call_that_writes_what_an_acceptance_keeps_may_fail() {
    if judge::is_asked_for(2) {
        judge::walk_files(files::ACCEPT);
    }
}

/// A server continues to serve functions even if its report and capture cannot be written.
#[test]
fn every_call_that_writes_what_a_server_keeps_may_fail() {
    if judge::is_asked_for(1) {
        judge::walk_files(files::SERVE);
    }
}
