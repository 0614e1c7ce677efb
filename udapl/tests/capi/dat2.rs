//! The table of functions that this library registers with the registry of DAT 2.0. A substitute for that registry
//! (`registry2.c`) stores it.

// UNSAFETY: calls of the C ABI; `main.rs` expects the lint `unsafe_code`.

use std::ffi::{CStr, c_char, c_void};
use std::net::Ipv4Addr;
use std::path::Path;
use std::process::Command;
use std::ptr::{null, null_mut};
use std::sync::OnceLock;

use libloading::Library;
use udapl::capi::dat2;
use udapl::capi::dat2::types::{CCrArrival, CEpParam, CEvent, CIaAttr};
use udapl::capi::types::{CProviderInfo, DatHandle};
use udapl::capi::{dat_provider_fini, dat_provider_init};

use crate::instances::zeros;
use crate::support::{ABRUPT, INVALID_HANDLE, SECOND, TIMEOUT_INFINITE, c};

/// DAT_PROVIDER_NOT_FOUND|NAME_NOT_REGISTERED of DAT 2.0.
const NOT_REGISTERED: u32 = 0x800a_0064;
/// `DAT_CONNECTION_REQUEST_EVENT`.
const REQUEST: u32 = 0x2001;
const QUALIFIER: u64 = 0x1_0000_0001;
/// Software events, and every stream except asynchronous events.
const STREAMS: u32 = 0xf1;

/// Address of the table of functions, which is never freed.
fn table() -> usize {
    static TABLE: OnceLock<usize> = OnceLock::new();
    *TABLE.get_or_init(|| {
        let folder = tempfile::tempdir().expect("a directory");
        let library = folder.path().join("libdat2.so.2");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c/registry2.c");
        let built = Command::new("cc")
            .args(["-shared", "-fPIC", "-Wl,-soname,libdat2.so.2", "-o"])
            .args([&library, &source])
            .status();
        assert!(built.expect("a C compiler").success());
        // SAFETY: the library has no constructors.
        let registry = unsafe { Library::new(library) }.expect("a library");
        init(&info(c"dat2table", 0), c"sim:dat2table");
        // SAFETY: the function has this type.
        let table = unsafe { registry.get::<extern "C" fn() -> *const c_void>("registered_table") };
        let table = table.expect("a function")();
        assert!(!table.is_null(), "registered");
        // The registry stays in the process.
        std::mem::forget(registry);
        table.expose_provenance()
    })
}

/// Returns the function of a member of the table, for `call!`.
fn function(member: &str) -> *const c_void {
    let mut members = dat2::LAYOUT.2.iter();
    let (_, at) = members.find(|(name, _)| *name == member).expect(member);
    let place = std::ptr::with_exposed_provenance::<*const c_void>(table() + at);
    // SAFETY: the place is in the table, whose members after the name are addresses.
    unsafe { place.read() }
}

/// Calls a function of the table with arguments of these types.
macro_rules! call {
    ($member:literal, $($argument:expr => $kind:ty),*) => {{
        let function = function($member);
        // SAFETY: the function has the type that `udat_redirection.h` of DAT 2.0 declares.
        let function = unsafe {
            std::mem::transmute::<*const c_void, unsafe extern "C" fn($($kind),*) -> u32>(function)
        };
        c!(function($($argument),*))
    }};
}

fn info(name: &CStr, minor: u32) -> CProviderInfo {
    let mut ia_name: [c_char; 256] = [0; 256];
    for (to, from) in ia_name.iter_mut().zip(name.to_bytes()) {
        *to = from.cast_signed();
    }
    CProviderInfo {
        ia_name,
        dapl_version_major: 2,
        dapl_version_minor: minor,
        is_thread_safe: 1,
    }
}

fn init(info: &CProviderInfo, device: &CStr) {
    c!(dat_provider_init(info, device.as_ptr()));
}

fn open(name: &CStr) -> Result<DatHandle, u32> {
    let (mut evd, mut ia) = (null_mut(), null_mut());
    let answer = call!(
        "ia_open_func",
        name.as_ptr() => *const c_char,
        8 => i32,
        &raw mut evd => *mut DatHandle,
        &raw mut ia => *mut DatHandle
    );
    if answer == 0 { Ok(ia) } else { Err(answer) }
}

fn close(ia: DatHandle) {
    assert_eq!(call!("ia_close_func", ia => DatHandle, ABRUPT => u32), 0);
}

/// An instance with an EVD.
struct Side {
    ia: DatHandle,
    pz: DatHandle,
    evd: DatHandle,
}

impl Side {
    fn new(name: &CStr) -> Self {
        let ia = open(name).expect("an adapter");
        let mut side = Self {
            ia,
            pz: null_mut(),
            evd: null_mut(),
        };
        let made = call!("pz_create_func", ia => DatHandle, &raw mut side.pz => *mut DatHandle);
        assert_eq!(made, 0);
        side.evd = side.another_evd();
        side
    }

    fn another_evd(&self) -> DatHandle {
        let mut evd = null_mut();
        let made = call!(
            "evd_create_func",
            self.ia => DatHandle,
            64 => i32,
            null_mut() => DatHandle,
            STREAMS => u32,
            &raw mut evd => *mut DatHandle
        );
        assert_eq!(made, 0);
        evd
    }

    fn rsp(&self, evd: DatHandle) -> DatHandle {
        let mut rsp = null_mut();
        let made = call!(
            "rsp_create_func",
            self.ia => DatHandle,
            QUALIFIER => u64,
            null_mut() => DatHandle,
            evd => DatHandle,
            &raw mut rsp => *mut DatHandle
        );
        assert_eq!(made, 0, "{made:#x}");
        rsp
    }

    /// Returns the address that the instance says it has.
    fn address(&self) -> *mut libc::sockaddr {
        let mut attr: CIaAttr = zeros();
        let told = call!(
            "ia_query_func",
            self.ia => DatHandle,
            null_mut() => *mut DatHandle,
            0x3f_ffff_ffff => u64,
            &raw mut attr => *mut CIaAttr,
            0 => u64,
            null_mut() => *mut c_void
        );
        assert_eq!(told, 0);
        attr.ia_address_ptr
    }

    fn endpoint(&self) -> DatHandle {
        let mut ep = null_mut();
        let made = call!(
            "ep_create_func",
            self.ia => DatHandle,
            self.pz => DatHandle,
            self.evd => DatHandle,
            self.evd => DatHandle,
            self.evd => DatHandle,
            null() => *const c_void,
            &raw mut ep => *mut DatHandle
        );
        assert_eq!(made, 0);
        ep
    }

    /// Requests a connection with `to` from a new endpoint.
    fn request(&self, to: &Self) {
        self.request_at(to.address());
    }

    /// Requests a connection with the adapter that has this address.
    fn request_at(&self, address: *const libc::sockaddr) {
        let begun = call!(
            "ep_connect_func",
            self.endpoint() => DatHandle,
            address => *const libc::sockaddr,
            QUALIFIER => u64,
            TIMEOUT_INFINITE => u32,
            0 => i32,
            null() => *const c_void,
            0 => u32,
            0 => u32
        );
        assert_eq!(begun, 0, "{begun:#x}");
    }
}

/// Waits for an event for at most a second of virtual time.
fn wait(evd: DatHandle) -> Option<CEvent> {
    let (mut event, mut left): (CEvent, _) = (zeros(), 0);
    let answer = call!(
        "evd_wait_func",
        evd => DatHandle,
        SECOND => u32,
        1 => i32,
        &raw mut event => *mut CEvent,
        &raw mut left => *mut i32
    );
    (answer == 0).then_some(event)
}

/// Waits for the next connection request.
fn requested(evd: DatHandle) -> CCrArrival {
    let event = wait(evd).expect("a request");
    assert_eq!(event.event_number, REQUEST);
    // SAFETY: the event is a connection request.
    unsafe { event.event_data.cr_arrival_event_data }
}

fn rsp_free(rsp: DatHandle) -> u32 {
    call!("rsp_free_func", rsp => DatHandle)
}

/// DAT_INVALID_HANDLE|RSP: the RSP does not exist.
const NO_RSP: u32 = INVALID_HANDLE | 17;

/// A request event names its RSP, even if another RSP has the qualifier by then. An RSP is freed once, before its
/// request or after it, and does not outlive its adapter.
///
/// Page: dat_rsp_free.
#[test]
fn a_request_names_its_rsp_of_dat_2_which_is_freed_once() {
    // The first call loads the registry.
    table();
    init(&info(c"dat2rsp", 0), c"sim:dat2rsp,time=virtual");
    let (one, other) = (Side::new(c"dat2rsp"), Side::new(c"dat2rsp"));
    let (second_evd, idle) = (other.another_evd(), other.another_evd());

    // No request has arrived at this RSP when it is freed.
    let idle_rsp = other.rsp(other.evd);
    assert_eq!((rsp_free(idle_rsp), rsp_free(idle_rsp)), (0, NO_RSP));

    // The first request arrives, and is not dequeued yet, when the qualifier gets further RSPs.
    let first = other.rsp(other.evd);
    one.request(&other);
    assert!(wait(idle).is_none());
    let second = other.rsp(second_evd);
    one.request(&other);
    assert!(wait(idle).is_none());
    let third = other.rsp(other.evd);
    one.request(&other);
    assert!(wait(idle).is_none());
    assert_eq!(requested(second_evd).sp_handle, second);
    assert_eq!(requested(other.evd).sp_handle, first);
    assert_eq!((rsp_free(first), rsp_free(first)), (0, NO_RSP));
    // The program frees the third RSP before it learns of the request, so the event names no RSP.
    assert_eq!((rsp_free(third), rsp_free(third)), (0, NO_RSP));
    assert!(requested(other.evd).sp_handle.is_null());

    close(other.ia);
    assert_eq!(rsp_free(second), NO_RSP);
    close(one.ia);
}

/// Returns the IPv4 address at a pointer.
fn ipv4(address: *const libc::sockaddr) -> Ipv4Addr {
    // SAFETY: the library's addresses are as large as the larger of both families, and aligned for both.
    let address = unsafe { address.cast::<libc::sockaddr_in>().read() };
    assert_eq!(i32::from(address.sin_family), libc::AF_INET);
    u32::from_be(address.sin_addr.s_addr).into()
}

/// An endpoint without a connection has the address of its instance, which is the first of the device's name. A request
/// names the address to which it was sent.
#[test]
fn an_endpoint_and_a_request_name_the_address_of_the_device_s_name() {
    table();
    init(
        &info(c"dat2own", 0),
        c"sim:dat2own,address=10.1.2.3/8,address=10.1.2.4/8,time=virtual",
    );
    let (one, other) = (Side::new(c"dat2own"), Side::new(c"dat2own"));
    let own = Ipv4Addr::new(10, 1, 2, 3);
    assert_eq!(ipv4(one.address()), own);
    let mut param: CEpParam = zeros();
    let told = call!(
        "ep_query_func",
        one.endpoint() => DatHandle,
        1 => u32,
        &raw mut param => *mut CEpParam
    );
    assert_eq!(told, 0);
    assert_eq!(ipv4(param.local_ia_address_ptr), own);
    other.rsp(other.evd);
    one.request(&other);
    assert_eq!(ipv4(requested(other.evd).local_ia_address_ptr), own);
    let second = Ipv4Addr::new(10, 1, 2, 4);
    let mut address: libc::sockaddr_in = zeros();
    address.sin_family = u16::try_from(libc::AF_INET).expect("a family");
    address.sin_addr.s_addr = u32::from(second).to_be();
    other.rsp(other.evd);
    one.request_at((&raw const address).cast());
    assert_eq!(ipv4(requested(other.evd).local_ia_address_ptr), second);
    close(one.ia);
    close(other.ia);
}

/// Clauses: PINI-2.
#[test]
fn a_name_with_several_versions_of_dat_2_is_that_of_the_last_that_is_registered() {
    table();
    let name = c"dat2name";
    let versions = [info(name, 0), info(name, 1)];
    let (good, bad) = (c"sim:dat2name,time=virtual", c"sim:dat2name,colour=red");
    let fini = |info: &CProviderInfo| c!(dat_provider_fini(info));
    init(&versions[0], good);
    let ia = open(name).expect("an adapter");
    // The later version is for a device that does not exist.
    init(&versions[1], bad);
    assert!(open(name).is_err());
    fini(&versions[1]);
    close(open(name).expect("the version that is left"));
    // A version that is registered again counts as the last one.
    init(&versions[1], bad);
    init(&versions[0], good);
    close(open(name).expect("the last version"));
    fini(&versions[0]);
    assert!(open(name).is_err(), "the version for no device");
    init(&versions[1], good);
    close(open(name).expect("its new device"));
    fini(&versions[1]);
    assert_eq!(open(name), Err(NOT_REGISTERED));
    // The adapter that is open does not need its registration.
    close(ia);
}
