//! After fork(2), the child process has no adapters, and does not wait for locks that the parent's threads hold. The
//! test is a separate program, because it forks.

// UNSAFETY: fork(2), and calls of the C ABI.
#![expect(unsafe_code, reason = "fork(2), calls of the C ABI")]

use std::ffi::{CStr, CString, c_char, c_void};
use std::fs::{File, OpenOptions};
use std::mem::MaybeUninit;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::Command;
use std::ptr::{null, null_mut};
use std::thread;

use libloading::Library;
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, fork};
use udapl::capi::foreign::CProvider;
use udapl::capi::types::{CNamedFd, CProviderInfo, DatHandle};
use udapl::capi::{
    dat_evd_post_se, dat_handover_free, dat_ia_close, dat_offer_receive, dat_parked_create,
    dat_parked_query, dat_provider_fini, dat_provider_init, dat_pz_free, dat_receiver_await,
    dat_registry_add_provider, dat_registry_list_providers, dat_registry_remove_provider, lend,
};
use udapl::fabric::Fabric;

#[path = "capi/calls.rs"]
mod calls;
#[path = "capi/support.rs"]
#[allow(
    dead_code,
    unused_macros,
    unused_imports,
    reason = "what the other program needs"
)]
mod support;

use calls::{CALLS, CALLS_OF_ANY};
use support::{ABRUPT, INVALID_HANDLE, SECOND, World, c, done, fresh_name, ok, opened, software};

/// DAT_INSUFFICIENT_RESOURCES|DEVICE, as for a device in use. DAT 2.0 has the same number.
const DEVICE: u32 = 0x8003_0003;
/// DAT_INSUFFICIENT_RESOURCES|MEMORY.
const MEMORY: u32 = 0x8003_0002;
/// Seconds after which a signal ends a process that hangs.
const PATIENCE: u32 = 600;

/// Runs `work` in a child process. Returns the child's exit code (0 is success), or the other way in which it ended.
///
/// The child must not assert: the test harness's output is not usable there.
fn in_a_child(work: impl FnOnce() -> i32) -> Result<i32, WaitStatus> {
    // SAFETY: the child makes calls that return before they take a lock, and exits.
    match unsafe { fork() }.expect("a child") {
        ForkResult::Child => {
            // SAFETY: alarm(2) takes only a number.
            unsafe { libc::alarm(PATIENCE) };
            let answer = work();
            // SAFETY: `_exit` runs no destructor and no exit handler of the parent.
            unsafe { libc::_exit(answer) };
        }
        ForkResult::Parent { child } => {
            let ended = waitpid(child, None).expect("our child");
            if let WaitStatus::Exited(_, answer) = ended {
                Ok(answer)
            } else {
                Err(ended)
            }
        }
    }
}

/// Returns the number, from `first`, of the first check that fails; 0 if all hold.
fn first_failed(first: i32, hold: &[bool]) -> i32 {
    let wrong = (first..).zip(hold).find(|(_, holds)| !**holds);
    wrong.map_or(0, |(number, _)| number)
}

fn info(name: &CStr, major: u32) -> CProviderInfo {
    let mut ia_name: [c_char; 256] = [0; 256];
    for (to, from) in ia_name.iter_mut().zip(name.to_bytes()) {
        *to = from.cast_signed();
    }
    CProviderInfo {
        ia_name,
        dapl_version_major: major,
        dapl_version_minor: if major == 2 { 0 } else { 2 },
        is_thread_safe: 1,
    }
}

/// Returns the number of records, or the code of the error.
fn records() -> Result<i32, u32> {
    let mut count = -1;
    let answer = c!(dat_registry_list_providers(0, &raw mut count, null()));
    if answer == 0 { Ok(count) } else { Err(answer) }
}

/// Makes a parked IA of a byte and a descriptor.
fn parked() -> Result<DatHandle, u32> {
    let file = File::open("/dev/null").expect("a file");
    let fd = CNamedFd {
        name: c"null".as_ptr(),
        fd: file.as_raw_fd(),
    };
    let (byte, mut parked) = (0_u8, null_mut());
    match c!(dat_parked_create(
        1,
        (&raw const byte).cast(),
        1,
        &raw const fd,
        &raw mut parked
    )) {
        0 => Ok(parked),
        code => Err(code),
    }
}

fn query(parked: DatHandle) -> u32 {
    let no = null_mut();
    c!(dat_parked_query(
        parked,
        null_mut(),
        null_mut(),
        0,
        no,
        null_mut()
    ))
}

/// A child can use none of its parent's parked IAs, and make none.
fn a_child_has_no_parked_ia_of_its_parent() {
    let of_parent = parked().expect("a byte");
    let without = || {
        let mut made = null_mut();
        let made = &raw mut made;
        first_failed(
            240,
            &[
                query(of_parent) == INVALID_HANDLE | 26,
                dat_handover_free(of_parent) == INVALID_HANDLE | 26,
                parked() == Err(DEVICE),
                c!(dat_receiver_await(0, 1, made)) == DEVICE,
                c!(dat_offer_receive(0, 1, made)) == DEVICE,
            ],
        )
    };
    assert_eq!(in_a_child(without), Ok(0));
    assert_eq!(query(of_parent), 0);
    done!(dat_handover_free(of_parent));
}

/// The test is alone in its process, so it counts all of them.
fn a_process_has_at_most_64_objects_that_are_handed_over() {
    let made: Vec<DatHandle> = (0..64).map(|_| parked().expect("room")).collect();
    assert_eq!(parked(), Err(MEMORY));
    for one in made {
        done!(dat_handover_free(one));
    }
    done!(dat_handover_free(parked().expect("room again")));
}

/// Checks, in the child, that calls of the registry fail with the code of a failed open, and that no call waits for a
/// lock. Returns the number of the first check that fails, from 200; 0 if all hold.
fn without_a_registry() -> i32 {
    // SAFETY: null is a valid value of each function.
    let table: CProvider = unsafe { MaybeUninit::zeroed().assume_init() };
    let (name, local) = (info(c"fork", 1), 0_u64);
    let no_handle: DatHandle = (&raw const local).cast_mut().cast();
    let hold = [
        records() == Err(DEVICE),
        c!(dat_registry_add_provider(&raw const table, &raw const name)) == DEVICE,
        c!(dat_registry_remove_provider(
            &raw const table,
            &raw const name
        )) == DEVICE,
        opened(&fresh_name(), null_mut(), false) == Err(DEVICE),
        dat_pz_free(no_handle) == INVALID_HANDLE | 15,
    ];
    for major in [1, 2] {
        let name = info(c"fork", major);
        c!(dat_provider_init(&raw const name, null()));
        c!(dat_provider_fini(&raw const name));
    }
    first_failed(200, &hold)
}

/// Checks, in the child, that every call refuses the parent's handles. Returns the number, from 1, of the first call
/// that does not; otherwise the result of `without_a_registry`.
fn without_handles(worlds: &[World]) -> i32 {
    for world in worlds {
        for (handle, kind) in world.objects() {
            let of_kind = CALLS.iter().map(|call| (call, kind == call.1));
            let of_any = CALLS_OF_ANY.iter().map(|call| (call, true));
            for (number, ((_, subtype, call), takes)) in (1..).zip(of_kind.chain(of_any)) {
                if takes && call(handle) != INVALID_HANDLE | subtype {
                    return number;
                }
            }
        }
    }
    without_a_registry()
}

/// Checks that a child does not wait for a thread that was creating the registry when its parent forked. That thread
/// blocks, because `dat.conf` is a pipe.
fn a_child_does_not_wait_for_who_makes_the_registry(folder: &Path) {
    let pipe = folder.join("dat.conf");
    let path = CString::new(pipe.as_os_str().as_bytes()).expect("a path");
    // SAFETY: the path is a C string.
    assert_eq!(unsafe { libc::mkfifo(path.as_ptr(), 0o600) }, 0);
    // SAFETY: the only other thread is the harness's, which waits.
    unsafe { std::env::set_var("DAT_OVERRIDE", &pipe) };
    let ia = Fabric::pair(1).open(0).expect("an adapter");
    // The test opens the adapter without the registry.
    let ia = lend(ia, true).expect("a handle");
    let maker = thread::spawn(records);
    // SAFETY: alarm(2) takes only a number. The signal ends the process if no reader opens the pipe.
    unsafe { libc::alarm(PATIENCE) };
    let writer = OpenOptions::new().write(true).open(&pipe);
    let writer = writer.expect("it is being read");
    // SAFETY: as above.
    unsafe { libc::alarm(0) };
    assert_eq!(in_a_child(without_a_registry), Ok(0));
    drop(writer);
    assert_eq!(maker.join().expect("no panic"), Ok(0), "an empty file");
    done!(dat_ia_close(ia, ABRUPT));
}

/// `ia_open_func` of DAT 2.0.
type Open2 = unsafe extern "C" fn(*const c_char, i32, *mut DatHandle, *mut DatHandle) -> u32;
/// `ia_query_func` of DAT 2.0.
type Query2 =
    unsafe extern "C" fn(DatHandle, *mut DatHandle, u64, *mut c_void, u64, *mut c_void) -> u32;
/// `ia_close_func` of DAT 2.0.
type Close2 = unsafe extern "C" fn(DatHandle, u32) -> u32;

/// The start of a DAT 2.0 provider (`struct dat_provider` of `udat_redirection.h`).
#[repr(C)]
struct Provider2 {
    _device_name: *const c_char,
    _extension: *const c_void,
    open: Open2,
    query: Query2,
    close: Close2,
}

/// Builds and loads a substitute for DAT 2.0's registry, `libdat2.so.2`.
fn registry_of_2(folder: &Path) -> Library {
    let library = folder.join("libdat2.so.2");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c/registry2.c");
    let built = Command::new("cc")
        .args(["-shared", "-fPIC", "-Wl,-soname,libdat2.so.2", "-o"])
        .args([&library, &source])
        .status();
    assert!(built.expect("a C compiler").success());
    // SAFETY: the library has no constructors.
    unsafe { Library::new(library) }.expect("a library")
}

/// Checks that a child cannot open, query or close an adapter through the function table that this library registers
/// with the registry of DAT 2.0.
fn a_child_has_no_adapter_of_dat_2_either(folder: &Path) {
    let registry = registry_of_2(folder);
    let registered = info(c"fork2", 2);
    c!(dat_provider_init(
        &raw const registered,
        c"sim:fork2".as_ptr()
    ));
    // SAFETY: the function has this type.
    let table = unsafe { registry.get::<extern "C" fn() -> *const Provider2>("registered_table") };
    let table = table.expect("a function")();
    // SAFETY: the provider has registered the table, and never frees it.
    let functions = unsafe { table.as_ref() }.expect("registered");
    let open = |name: &CStr| {
        let (mut evd, mut ia) = (null_mut(), null_mut());
        let answer = c!((functions.open)(
            name.as_ptr(),
            8,
            &raw mut evd,
            &raw mut ia
        ));
        if answer == 0 { Ok(ia) } else { Err(answer) }
    };
    let query = |ia| {
        c!((functions.query)(
            ia,
            null_mut(),
            0,
            null_mut(),
            0,
            null_mut()
        ))
    };
    let ia = open(c"fork2").expect("an adapter");
    let without = || {
        first_failed(
            220,
            &[
                open(c"fork2") == Err(DEVICE),
                // The library checks for a child process before it looks up the name.
                open(c"of nobody") == Err(DEVICE),
                query(ia) == INVALID_HANDLE | 11,
                c!((functions.close)(ia, ABRUPT)) == INVALID_HANDLE | 11,
            ],
        )
    };
    assert_eq!(in_a_child(without), Ok(0));
    assert_eq!(query(ia), 0);
    ok!((functions.close)(ia, ABRUPT));
    c!(dat_provider_fini(&raw const registered));
}

// A single test, because a process makes its registry only once.
#[test]
fn a_child_has_none_of_its_parents_adapters_and_the_parent_has_them_all() {
    let folder = tempfile::tempdir().expect("a directory");
    a_child_does_not_wait_for_who_makes_the_registry(folder.path());
    a_child_has_no_adapter_of_dat_2_either(folder.path());
    let worlds = [World::new(false), World::new(true)];
    a_child_has_no_parked_ia_of_its_parent();
    a_process_has_at_most_64_objects_that_are_handed_over();
    assert_eq!(
        in_a_child(|| without_handles(&worlds)),
        Ok(0),
        "the number of a call, from 1, or of what else there must not be"
    );
    for world in &worlds {
        let event = software(0);
        ok!(dat_evd_post_se(world.evd, &raw const event));
        assert_eq!(world.wait(SECOND).answer, 0);
        world.post_recv(1);
    }
}
