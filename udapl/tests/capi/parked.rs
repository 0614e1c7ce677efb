//! An IA of a C program that goes on in another process, or in the same one after it was parked.
//!
//! The functions are behind vfio-user servers in this process, which go on while an IA is parked.

// UNSAFETY: calls of the C ABI; `main.rs` expects the lint `unsafe_code`.

use std::ffi::{CStr, CString, c_char};
use std::fs::File;
use std::io::ErrorKind;
use std::net::Shutdown;
use std::os::fd::AsRawFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::Command;
use std::ptr::{null, null_mut, without_provenance_mut};
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use driver::{Clock, RealClock};
use udapl::capi::types::{
    CAgent, CEvdParam, CEvent, CLmrParam, CNamedFd, CRegionDescription, DatHandle,
};
use udapl::capi::*;
use udapl::memory::LmrTriplet;

use crate::calls::CALLS;
use crate::instances::zeros;
use crate::served::{Served, connect};
use crate::support::{
    ABRUPT, INVALID_HANDLE, NO_AGENT, SECOND, World, c, done, ok, opened, software,
};

/// DAT_CLASS_ERROR|DAT_INVALID_STATE.
const INVALID_STATE: u32 = 0x8007_0000;
/// DAT_CLASS_ERROR|DAT_INVALID_PARAMETER, without the number of the argument.
const INVALID_PARAMETER: u32 = 0x8006_0000 + 35;
/// DAT_INVALID_HANDLE of a CNO, and of the IA that it belongs to.
const NO_OBJECT: [u32; 2] = [INVALID_HANDLE | 19, INVALID_HANDLE | 11];
/// DAT_CLASS_ERROR|DAT_TIMEOUT_EXPIRED.
const TIMEOUT_EXPIRED: u32 = 0x800f_0000;
/// `DAT_MEM_TYPE_ALLOCATED`.
const ALLOCATED: u32 = 0x100;
/// `DAT_DTO_COMPLETION_EVENT`, `DAT_SOFTWARE_EVENT`.
const DTO: u32 = 1;
const SOFTWARE: u32 = 0x10001;
const BYTES: usize = 4096;
const MESSAGE: usize = 64;
/// Time limit of each step, long enough for a busy machine.
const PATIENCE: u32 = 300 * SECOND;
/// The program's own data.
const STATE: &[u8] = b"what the program knows";
/// Environment variable with the path of the socket, in the process that takes an IA over.
const SOCKET: &str = "UDAPL_TEST_PARKED";

/// Memory that the library has allocated, with its LMR.
struct Region {
    lmr: DatHandle,
    local: LmrTriplet,
}

impl Region {
    fn new(world: &World) -> Self {
        let mut region = Self {
            lmr: null_mut(),
            local: LmrTriplet {
                lmr_context: 0,
                virtual_address: 0,
                segment_length: MESSAGE as u64,
            },
        };
        let nothing = CRegionDescription {
            virtual_address: null_mut(),
            shared_memory_id: null(),
        };
        ok!(dat_lmr_create(
            world.ia,
            ALLOCATED,
            nothing,
            BYTES as u64,
            world.pz,
            0x33,
            &raw mut region.lmr,
            &raw mut region.local.lmr_context,
            null_mut(),
            null_mut(),
            &raw mut region.local.virtual_address,
        ));
        region
    }

    fn at(&self) -> *mut u8 {
        let address = usize::try_from(self.local.virtual_address).expect("an address");
        // The number comes from the library, which has mapped the memory.
        std::ptr::with_exposed_provenance_mut(address)
    }

    fn put(&self, message: [u8; MESSAGE]) {
        // SAFETY: the memory is the region's, which exists; the device reads it only after a post.
        unsafe { self.at().cast::<[u8; MESSAGE]>().write_volatile(message) };
    }

    fn get(&self) -> [u8; MESSAGE] {
        // SAFETY: as above; the receive has completed.
        unsafe { self.at().cast::<[u8; MESSAGE]>().read_volatile() }
    }
}

/// An adapter all of whose memory the library has allocated.
struct Side {
    world: World,
    region: Region,
}

impl Side {
    fn new(served: &Served, number: u8) -> Self {
        let world = served.world(number);
        done!(dat_lmr_free(world.lmr));
        let region = Region::new(&world);
        Self { world, region }
    }

    /// Returns a connected pair.
    fn pair(served: &Served) -> [Self; 2] {
        let pair = [1, 2].map(|number| Self::new(served, number));
        connect(&pair[0].world, &pair[1].world);
        pair
    }

    /// Returns every object, with its `DAT_HANDLE_TYPE`.
    fn objects(&self) -> [(DatHandle, u32); 11] {
        let World {
            ia,
            async_evd,
            pz,
            evd,
            cno,
            ep,
            rmr,
            srq,
            psp,
            rsp,
            ..
        } = self.world;
        [
            (ia, 3),
            (ep, 1),
            (self.region.lmr, 4),
            (rmr, 7),
            (pz, 6),
            (psp, 5),
            (rsp, 8),
            (cno, 9),
            (srq, 10),
            (evd, 2),
            (async_evd, 2),
        ]
    }

    fn receive(&self, cookie: u64) {
        let segment = &raw const self.region.local;
        ok!(dat_ep_post_recv(self.world.ep, 1, segment, cookie, 0));
    }

    fn send(&self, message: [u8; MESSAGE], cookie: u64) {
        self.region.put(message);
        let segment = &raw const self.region.local;
        ok!(dat_ep_post_send(self.world.ep, 1, segment, cookie, 0));
    }

    /// Waits for a successful completion, and returns its cookie.
    fn completed(&self) -> u64 {
        completed(self.world.evd, self.world.ep)
    }

    /// Sends a message to `other`, which has posted no receive.
    fn greet(&self, other: &Self, letter: u8) {
        other.receive(11);
        self.send([letter; MESSAGE], 12);
        assert_eq!((other.completed(), self.completed()), (11, 12));
        assert_eq!(other.region.get(), [letter; MESSAGE]);
    }
}

/// Waits for a successful completion on an endpoint, and returns its cookie.
fn completed(evd: DatHandle, ep: DatHandle) -> u64 {
    let (mut event, mut left): (CEvent, _) = (zeros(), 0);
    ok!(dat_evd_wait(
        evd,
        PATIENCE,
        1,
        &raw mut event,
        &raw mut left
    ));
    assert_eq!((event.event_number, event.evd_handle), (DTO, evd));
    // SAFETY: the event is a DTO completion.
    let told = unsafe { event.event_data.dto_completion_event_data };
    assert_eq!((told.status, told.ep_handle), (0, ep));
    told.user_cookie
}

/// Posts a software event.
fn post(evd: DatHandle, word: usize) {
    let event = software(word);
    ok!(dat_evd_post_se(evd, &raw const event));
}

fn park(ia: DatHandle) -> Result<DatHandle, u32> {
    let mut parked = null_mut();
    let length = i32::try_from(STATE.len()).expect("short");
    match c!(dat_ia_park(
        ia,
        length,
        STATE.as_ptr().cast(),
        &raw mut parked
    )) {
        0 => Ok(parked),
        code => Err(code),
    }
}

/// Resumes a parked IA. Returns the handles of its asynchronous EVD and of itself.
fn resume(parked: DatHandle) -> Result<[DatHandle; 2], u32> {
    let [mut evd, mut ia] = [null_mut(); 2];
    match c!(dat_ia_resume(parked, &raw mut evd, &raw mut ia)) {
        0 => Ok([evd, ia]),
        code => Err(code),
    }
}

/// Returns the text of the thread's last error.
fn why() -> String {
    let mut text: *const c_char = null();
    ok!(dat_last_error_text(null_mut(), &raw mut text));
    // SAFETY: the call has written a string.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_string_lossy().into_owned()
}

/// Snapshot, and descriptors with their names.
type Contents = (Vec<u8>, Vec<(CString, i32)>);

fn contents(parked: DatHandle) -> Contents {
    let (mut bytes, mut length, mut count) = (null(), 0, 0);
    ok!(dat_parked_query(
        parked,
        &raw mut bytes,
        &raw mut length,
        0,
        null_mut(),
        &raw mut count
    ));
    let nothing = CNamedFd {
        name: null(),
        fd: -1,
    };
    let mut fds = vec![nothing; usize::try_from(count).expect("a count")];
    ok!(dat_parked_query(
        parked,
        null_mut(),
        null_mut(),
        count,
        fds.as_mut_ptr(),
        null_mut()
    ));
    let length = usize::try_from(length).expect("a length");
    // SAFETY: the bytes are valid as long as `parked` is.
    let bytes = unsafe { std::slice::from_raw_parts(bytes.cast::<u8>(), length) };
    let named = fds.iter().map(|named| {
        // SAFETY: as above.
        let name = unsafe { CStr::from_ptr(named.name) };
        (name.to_owned(), named.fd)
    });
    (bytes.to_vec(), named.collect())
}

/// Returns the pointers that a query returns: those of the snapshot and of the names.
fn pointers(parked: DatHandle) -> (usize, Vec<usize>) {
    let (mut bytes, mut count): (*const std::ffi::c_void, _) = (null(), 0);
    let nothing = CNamedFd {
        name: null(),
        fd: -1,
    };
    let mut fds = [nothing; 64];
    ok!(dat_parked_query(
        parked,
        &raw mut bytes,
        null_mut(),
        64,
        fds.as_mut_ptr(),
        &raw mut count
    ));
    let count = usize::try_from(count).expect("a count");
    let names = fds[..count].iter().map(|named| named.name.addr());
    (bytes.addr(), names.collect())
}

fn create((bytes, fds): &Contents) -> Result<DatHandle, u32> {
    let fds: Vec<CNamedFd> = fds
        .iter()
        .map(|(name, fd)| CNamedFd {
            name: name.as_ptr(),
            fd: *fd,
        })
        .collect();
    let mut parked = null_mut();
    match c!(dat_parked_create(
        bytes.len() as u64,
        bytes.as_ptr().cast(),
        i32::try_from(fds.len()).expect("few"),
        fds.as_ptr(),
        &raw mut parked
    )) {
        0 => Ok(parked),
        code => Err(code),
    }
}

fn own_bytes(ia: DatHandle) -> Vec<u8> {
    let (mut length, mut at) = (0, null());
    ok!(dat_ia_state(ia, &raw mut length, &raw mut at));
    let length = usize::try_from(length).expect("a length");
    // SAFETY: the call has written where the bytes are, and how many.
    unsafe { std::slice::from_raw_parts(at.cast::<u8>(), length) }.to_vec()
}

/// Bytes and descriptors are all that is needed. What happens meanwhile is found afterwards.
#[test]
fn an_ia_is_resumed_from_bytes_and_descriptors_with_all_of_its_handles() {
    let served = Served::new();
    let [one, peer] = Side::pair(&served);
    let World { ia, evd, ep, .. } = one.world;
    for (handle, _) in one.objects() {
        done!(dat_set_consumer_context(handle, handle.addr() as u64));
    }
    post(evd, 5);
    one.receive(21);

    let parked = park(ia).expect("it can be parked");
    for (name, subtype, call) in CALLS {
        for (handle, _) in one.world.objects() {
            assert_eq!(call(handle), INVALID_HANDLE | subtype, "{name}");
        }
    }
    peer.send(
        *b"a message to a process that is not there yet, of sixty-four byte",
        22,
    );
    assert_eq!(peer.completed(), 22);
    let copy = create(&contents(parked)).expect("a copy");
    done!(dat_handover_free(parked));
    assert_eq!(dat_handover_free(parked), INVALID_HANDLE | 26);
    assert_eq!(resume(copy).expect("unchanged"), [one.world.async_evd, ia]);

    for (handle, kind) in one.objects() {
        let (mut found, mut context) = (0, 0);
        ok!(dat_get_handle_type(handle, &raw mut found));
        ok!(dat_get_consumer_context(handle, &raw mut context));
        assert_eq!((found, context), (kind, handle.addr() as u64));
    }
    let event = one.world.wait(PATIENCE);
    assert_eq!((event.number, event.word), (SOFTWARE, 5));
    assert_eq!(completed(evd, ep), 21);
    let message = one.region.get();
    assert!(
        message.starts_with(b"a message to a process"),
        "{message:?}"
    );
    assert_eq!(own_bytes(ia), STATE);
    let mut region: CLmrParam = zeros();
    ok!(dat_lmr_query(one.region.lmr, 0x3ff, &raw mut region));
    assert_eq!(
        (region.mem_type, region.registered_address, region.length),
        (0, one.region.local.virtual_address, BYTES as u64)
    );
    one.greet(&peer, b'x');
    peer.greet(&one, b'y');
    // The parked IA was used up.
    assert_eq!(resume(copy), Err(INVALID_HANDLE | 26));
    assert_eq!(dat_handover_free(copy), INVALID_HANDLE | 26);
}

#[test]
fn an_ia_that_cannot_be_parked_says_why_and_goes_on_with_its_handles() {
    extern "C" fn agent(_data: *mut std::ffi::c_void, _evd: DatHandle) {}
    let served = Served::new();
    let [one, peer] = Side::pair(&served);
    let ia = one.world.ia;
    let refused = |words: &str| {
        assert_eq!(park(ia), Err(INVALID_STATE), "{words}");
        let why = why();
        assert!(why.contains(words), "{why}");
        one.greet(&peer, b'x');
        peer.greet(&one, b'y');
    };

    let mut lent = vec![0_u64; 512];
    let (mut lmr, mut context) = (null_mut(), 0);
    let description = CRegionDescription {
        virtual_address: lent.as_mut_ptr().cast(),
        shared_memory_id: null(),
    };
    ok!(dat_lmr_create(
        ia,
        0,
        description,
        4096,
        one.world.pz,
        0x33,
        &raw mut lmr,
        &raw mut context,
        null_mut(),
        null_mut(),
        null_mut()
    ));
    refused("has lent the memory");
    done!(dat_lmr_free(lmr));

    let own = CAgent {
        instance_data: null_mut(),
        proxy_agent_func: Some(agent),
    };
    ok!(dat_cno_modify_agent(one.world.cno, own));
    refused("a CNO has an agent");
    ok!(dat_cno_modify_agent(one.world.cno, NO_AGENT));

    let second = opened(&served.name(1), null_mut(), false);
    let (second, _) = second.expect("another instance");
    refused("other instances");
    done!(dat_ia_close(second, ABRUPT));

    let waiting = one.world.cno.addr();
    std::thread::scope(|scope| {
        let waiter = scope.spawn(move || {
            let (mut evd, cno) = (null_mut(), without_provenance_mut(waiting));
            // While the IA is parked, it has no CNO.
            loop {
                match c!(dat_cno_wait(cno, PATIENCE, &raw mut evd)) {
                    0 => return evd.addr(),
                    code => assert!(NO_OBJECT.contains(&code), "{code:#x}"),
                }
            }
        });
        // The IA is parked until the wait has begun.
        let refused = loop {
            assert!(
                !waiter.is_finished(),
                "the wait has ended: {:?}",
                waiter.join()
            );
            match park(ia) {
                Ok(parked) => resume(parked).expect("unchanged"),
                Err(code) => break code,
            };
            std::thread::yield_now();
        };
        assert_eq!(refused, INVALID_STATE);
        assert!(why().contains("a thread waits"), "{}", why());
        done!(dat_evd_modify_cno(one.world.evd, one.world.cno));
        post(one.world.evd, 6);
        assert_eq!(waiter.join().expect("no panic"), one.world.evd.addr());
        assert_eq!(one.world.wait(PATIENCE).word, 6);
    });
    let parked = park(ia).expect("nothing is in its way any more");
    assert_eq!(resume(parked).expect("unchanged")[1], ia);
    one.greet(&peer, b'z');
}

#[test]
fn wrong_arguments_are_refused_by_their_place_and_change_nothing() {
    let served = Served::new();
    let [one, peer] = Side::pair(&served);
    let ia = one.world.ia;
    let mut parked = null_mut();
    let at = STATE.as_ptr().cast();
    let to = &raw mut parked;
    assert_eq!(
        c!(dat_ia_park(ia, 1, at, null_mut())),
        INVALID_PARAMETER + 4
    );
    assert_eq!(c!(dat_ia_park(ia, -1, at, to)), INVALID_PARAMETER + 2);
    assert_eq!(c!(dat_ia_park(ia, 1, null(), to)), INVALID_PARAMETER + 3);
    let long = vec![0; (16 << 20) + 1];
    let bytes = i32::try_from(long.len()).expect("a count");
    let refused = c!(dat_ia_park(ia, bytes, long.as_ptr().cast(), to));
    assert_eq!(refused, INVALID_PARAMETER + 2);
    one.greet(&peer, b'x');
    ok!(dat_ia_state(ia, null_mut(), null_mut()));
    assert_eq!(own_bytes(ia), b"");

    let parked = park(ia).expect("it can be parked");
    assert_eq!(
        c!(dat_ia_resume(parked, null_mut(), null_mut())),
        INVALID_PARAMETER + 3
    );
    let query = |max, fds| {
        let no = null_mut();
        c!(dat_parked_query(
            parked,
            null_mut(),
            null_mut(),
            max,
            fds,
            no
        ))
    };
    assert_eq!(query(-1, null_mut()), INVALID_PARAMETER + 4);
    assert_eq!(query(1, null_mut()), INVALID_PARAMETER + 5);
    let (bytes, fds) = contents(parked);
    let without = |fds: &[(CString, i32)]| create(&(bytes.clone(), fds.to_vec()));
    assert_eq!(without(&[]), Err(INVALID_PARAMETER + 3));
    assert_eq!(
        without(&[(fds[0].0.clone(), -1)]),
        Err(INVALID_PARAMETER + 4)
    );
    let mut made = null_mut();
    let none = c!(dat_parked_create(0, at, 1, null(), &raw mut made));
    assert_eq!(none, INVALID_PARAMETER + 1);
    let none = c!(dat_parked_create(u64::MAX, at, 1, null(), &raw mut made));
    assert_eq!(none, INVALID_PARAMETER + 1);
    let none = c!(dat_parked_create(1, null(), 1, null(), &raw mut made));
    assert_eq!(none, INVALID_PARAMETER + 2);
    let none = c!(dat_parked_create(1, at, 1, null(), &raw mut made));
    assert_eq!(none, INVALID_PARAMETER + 4);

    // A damaged snapshot, and one whose descriptors are not all there.
    let mut damaged = bytes.clone();
    damaged[100] ^= 1;
    let wrong = create(&(damaged, fds.clone())).expect("bytes and descriptors");
    assert_eq!(resume(wrong), Err(INVALID_PARAMETER + 1));
    assert!(why().contains("damaged"), "{}", why());
    done!(dat_handover_free(wrong));
    let wrong = without(&fds[1..]).expect("bytes and descriptors");
    assert_eq!(resume(wrong), Err(INVALID_STATE));
    assert!(why().contains("is missing"), "{}", why());
    done!(dat_handover_free(wrong));
    // A descriptor of another file under a known name.
    let null_device = File::open("/dev/null").expect("a file");
    let mut others = fds.clone();
    others[0].1 = null_device.as_raw_fd();
    let wrong = without(&others).expect("bytes and descriptors");
    assert_eq!(resume(wrong), Err(INVALID_STATE));
    assert!(why().contains("it was inode"), "{}", why());
    done!(dat_handover_free(wrong));

    // Handles of another kind, and an IA that is in use.
    let copy = without(&fds).expect("a copy");
    assert_eq!(dat_parked_send(copy, copy, 1), INVALID_HANDLE | 27);
    assert_eq!(
        c!(dat_offer_adopt(copy, null_mut(), &raw mut made)),
        INVALID_HANDLE | 26
    );
    assert_eq!(c!(dat_offer_refuse(copy, null())), INVALID_HANDLE | 26);
    assert_eq!(resume(parked).expect("unchanged")[1], ia);
    let before = pointers(copy);
    assert_eq!(resume(copy), Err(INVALID_STATE));
    assert!(why().contains("the place of handle"), "{}", why());
    assert_eq!(pointers(copy), before, "what a query has returned");
    done!(dat_handover_free(copy));
    one.greet(&peer, b'x');
}

#[test]
fn a_socket_without_another_process_is_refused_or_times_out() {
    let mut made = null_mut();
    let to = &raw mut made;
    let [here, there] = <[UnixStream; 2]>::from(UnixStream::pair().expect("sockets"));
    let fd = here.as_raw_fd();
    assert_eq!(
        c!(dat_receiver_await(fd, 1, null_mut())),
        INVALID_PARAMETER + 3
    );
    assert_eq!(c!(dat_receiver_await(-1, 1, to)), INVALID_PARAMETER + 1);
    assert_eq!(c!(dat_offer_receive(-1, 1, to)), INVALID_PARAMETER + 1);
    assert_eq!(c!(dat_receiver_await(fd, 1000, to)), TIMEOUT_EXPIRED);
    drop(there);
    assert_eq!(c!(dat_receiver_await(fd, PATIENCE, to)), INVALID_STATE);
    let file = File::open("/dev/null").expect("a file");
    assert_ne!(c!(dat_offer_receive(file.as_raw_fd(), PATIENCE, to)), 0);
    assert!(made.is_null());
}

/// Both ends are in one process here.
#[test]
fn an_offer_that_is_refused_returns_to_its_process_with_the_reason() {
    let served = Served::new();
    let [one, peer] = Side::pair(&served);
    let ia = one.world.ia;
    let [here, there] = <[UnixStream; 2]>::from(UnixStream::pair().expect("sockets"));
    let refuses = std::thread::spawn(move || {
        let mut offer = null_mut();
        ok!(dat_offer_receive(
            there.as_raw_fd(),
            PATIENCE,
            &raw mut offer
        ));
        let reason = c"not on a Sunday";
        ok!(dat_offer_refuse(offer, reason.as_ptr()));
        assert_eq!(
            c!(dat_offer_refuse(offer, reason.as_ptr())),
            INVALID_HANDLE | 26
        );
        there
    });
    let mut receiver = null_mut();
    ok!(dat_receiver_await(
        here.as_raw_fd(),
        PATIENCE,
        &raw mut receiver
    ));
    let parked = park(ia).expect("it can be parked");
    let before = pointers(parked);
    assert_eq!(dat_parked_send(parked, receiver, PATIENCE), INVALID_STATE);
    assert!(why().contains("not on a Sunday"), "{}", why());
    assert_eq!(pointers(parked), before, "what a query has returned");
    // The send does not wait until the other end is closed.
    drop(refuses.join().expect("it refuses"));
    // The receiver was used up, and the IA was not.
    assert_eq!(
        dat_parked_send(parked, receiver, PATIENCE),
        INVALID_HANDLE | 27
    );
    assert_eq!(resume(parked).expect("unchanged")[1], ia);
    one.greet(&peer, b'x');
}

/// The sender has stopped waiting, and has the IA. So the offer is used up.
#[test]
fn an_offer_that_is_adopted_too_late_is_refused_for_good() {
    let served = Served::new();
    let [one, peer] = Side::pair(&served);
    let ia = one.world.ia;
    let [here, there] = <[UnixStream; 2]>::from(UnixStream::pair().expect("sockets"));
    let receives = std::thread::spawn(move || {
        let mut offer = null_mut();
        ok!(dat_offer_receive(
            there.as_raw_fd(),
            PATIENCE,
            &raw mut offer
        ));
        there.shutdown(Shutdown::Both).expect("a socket");
        offer.addr()
    });
    let mut receiver = null_mut();
    ok!(dat_receiver_await(
        here.as_raw_fd(),
        PATIENCE,
        &raw mut receiver
    ));
    let parked = park(ia).expect("it can be parked");
    assert_eq!(dat_parked_send(parked, receiver, PATIENCE), INVALID_STATE);
    assert!(why().contains("hung up"), "{}", why());
    let offer = without_provenance_mut(receives.join().expect("it receives"));
    let adopt = || {
        let mut ia = null_mut();
        c!(dat_offer_adopt(offer, null_mut(), &raw mut ia))
    };
    assert_eq!(adopt(), INVALID_STATE);
    assert!(why().contains("not claimed"), "{}", why());
    assert_eq!(adopt(), INVALID_HANDLE | 26);
    assert_eq!(dat_handover_free(offer), INVALID_HANDLE | 26);
    assert_eq!(resume(parked).expect("unchanged")[1], ia);
    one.greet(&peer, b'x');
}

/// An agent of the test: it says that it runs, waits until it may go on, and tells its EVD.
struct Slow {
    runs: Sender<()>,
    goes_on: Mutex<Receiver<()>>,
    told: Sender<usize>,
}

/// # Safety
/// `data` points to a [`Slow`].
unsafe extern "C" fn slow(data: *mut std::ffi::c_void, evd: DatHandle) {
    // SAFETY: the test passes one that outlives the agent.
    let slow = unsafe { &*data.cast::<Slow>() };
    slow.runs.send(()).expect("the test listens");
    let goes_on = slow.goes_on.lock().expect("no panic");
    goes_on.recv().expect("the test lets it go on");
    slow.told.send(evd.addr()).expect("the test listens");
}

#[test]
fn an_agent_that_is_about_to_be_called_gets_its_evd_if_the_ia_is_not_parked() {
    let world = World::new(false);
    let (runs, running) = channel();
    let (go, goes_on) = channel();
    let (told, tells) = channel();
    let slow_one = Slow {
        runs,
        goes_on: Mutex::new(goes_on),
        told,
    };
    let agent = CAgent {
        instance_data: (&raw const slow_one).cast_mut().cast(),
        proxy_agent_func: Some(slow),
    };
    let [mut cno, mut evd] = [null_mut(); 2];
    ok!(dat_cno_create(world.ia, agent, &raw mut cno));
    ok!(dat_evd_create(world.ia, 8, cno, 1, &raw mut evd));
    ok!(dat_cno_modify_agent(world.cno, agent));
    done!(dat_evd_modify_cno(world.evd, world.cno));
    post(world.evd, 1);
    running.recv().expect("the first agent");
    // The thread that calls agents is busy, so this call waits.
    post(evd, 2);
    let ia = world.ia.addr();
    let refused = std::thread::scope(|scope| {
        // The world's memory is lent, so the IA cannot be parked.
        let parks =
            scope.spawn(move || park(without_provenance_mut(ia)).map(|parked| parked.addr()));
        let mut pz = null_mut();
        while !parks.is_finished() && c!(dat_pz_create(world.ia, &raw mut pz)) == 0 {
            done!(dat_pz_free(pz));
            std::thread::yield_now();
        }
        for _ in 0..2 {
            go.send(()).expect("an agent waits for it");
        }
        parks.join().expect("no panic")
    });
    assert_eq!(refused, Err(INVALID_STATE));
    let agents = [(); 2].map(|()| tells.recv().expect("an agent"));
    assert_eq!(agents, [world.evd.addr(), evd.addr()]);
    done!(dat_ia_close(world.ia, ABRUPT));
}

/// Program of the next process: takes an IA over, whose handles are in the program's own data, and answers a message.
/// Without the environment variable, this test does nothing.
#[test]
fn the_next_process() {
    let Ok(path) = std::env::var(SOCKET) else {
        return;
    };
    let socket = UnixStream::connect(Path::new(&path)).expect("the process before");
    let (mut offer, mut ia) = (null_mut(), null_mut());
    ok!(dat_offer_receive(
        socket.as_raw_fd(),
        PATIENCE,
        &raw mut offer
    ));
    ok!(dat_offer_adopt(offer, null_mut(), &raw mut ia));
    let known = own_bytes(ia);
    let word = |at: usize| {
        let bytes = known[8 * at..][..8].try_into().expect("eight bytes");
        u64::from_be_bytes(bytes)
    };
    let handle = |at: usize| {
        let number = usize::try_from(word(at)).expect("a handle");
        without_provenance_mut(number)
    };
    let [evd, ep] = [1, 2].map(handle);
    assert_eq!(handle(0), ia);
    let mut region: CLmrParam = zeros();
    ok!(dat_lmr_query(handle(3), 0x3ff, &raw mut region));
    let local = LmrTriplet {
        lmr_context: region.lmr_context,
        virtual_address: region.registered_address,
        segment_length: MESSAGE as u64,
    };
    // The old process had freed two EVDs. Their handles are those of nothing, and so they stay.
    let freed = [4, 5].map(handle);
    let is_there = |evd| {
        let mut param: CEvdParam = zeros();
        c!(dat_evd_query(evd, 0, &raw mut param)) == 0
    };
    let mut made = [null_mut(); 2];
    for evd in &mut made {
        ok!(dat_evd_create(ia, 8, null_mut(), 1, evd));
    }
    assert!(made.into_iter().all(is_there));
    assert!(!freed.into_iter().any(is_there));
    assert_eq!(completed(evd, ep), 31);
    ok!(dat_ep_post_send(ep, 1, &raw const local, 32, 0));
    assert_eq!(completed(evd, ep), 32);
    done!(dat_ia_close(ia, ABRUPT));
}

#[test]
fn an_ia_goes_to_the_next_process_with_a_message_on_its_way() {
    let served = Served::new();
    let [one, peer] = Side::pair(&served);
    let path = served.folder().join("next");
    let listener = UnixListener::bind(&path).expect("a path");
    let mut next = Command::new(std::env::current_exe().expect("this program"))
        .args(["--exact", "parked::the_next_process", "--nocapture"])
        .env(SOCKET, &path)
        .spawn()
        .expect("a process");
    listener.set_nonblocking(true).expect("a socket");
    let clock = RealClock::new();
    let socket = loop {
        match listener.accept() {
            Ok((socket, _)) => break socket,
            Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock, "{error}"),
        }
        let ended = next.try_wait().expect("its status");
        assert!(ended.is_none(), "the next process: {ended:?}");
        clock.wait(&[], clock.now() + Duration::from_millis(1));
    };
    one.receive(31);
    let World { ia, evd, ep, .. } = one.world;
    let mut freed = [null_mut(); 2];
    for evd in &mut freed {
        ok!(dat_evd_create(ia, 8, null_mut(), 1, evd));
    }
    for evd in freed {
        done!(dat_evd_free(evd));
    }
    let known = [ia, evd, ep, one.region.lmr, freed[0], freed[1]];
    let known = known.map(|it| (it.addr() as u64).to_be_bytes());
    let known = known.concat();
    let (mut receiver, mut parked) = (null_mut(), null_mut());
    ok!(dat_receiver_await(
        socket.as_raw_fd(),
        PATIENCE,
        &raw mut receiver
    ));
    ok!(dat_ia_park(
        ia,
        i32::try_from(known.len()).expect("short"),
        known.as_ptr().cast(),
        &raw mut parked
    ));
    // The message arrives while the IA is parked. Its answer comes from the next process.
    peer.send([b'm'; MESSAGE], 41);
    assert_eq!(peer.completed(), 41);
    peer.region.put([0; MESSAGE]);
    peer.receive(42);
    done!(dat_parked_send(parked, receiver, PATIENCE));
    assert_eq!(dat_handover_free(parked), INVALID_HANDLE | 26);
    assert_eq!(peer.completed(), 42);
    assert_eq!(peer.region.get(), [b'm'; MESSAGE]);
    assert!(next.wait().expect("its status").success());
}
