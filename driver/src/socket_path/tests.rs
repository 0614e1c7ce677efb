use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::net::UnixStream;
use std::thread;

use super::*;
use crate::{FrameDatagrams, FrameEnd};

/// A function that binds a socket to a path and then frees the path.
type Take = fn(&Path) -> Result<(), String>;

/// All functions that bind a socket to a path.
const TAKERS: [Take; 3] = [
    |path| listen_at(path).map(drop).map_err(|error| error.to_string()),
    |path| {
        FrameEnd::at(path)
            .map(drop)
            .map_err(|error| error.to_string())
    },
    |path| {
        FrameDatagrams::bind(path, Path::new("/there"))
            .map(drop)
            .map_err(|error| error.to_string())
    },
];

/// Returns the names in a directory.
fn names(directory: &Path) -> Vec<String> {
    let entries = directory.read_dir().expect("readable");
    let mut names: Vec<String> = entries
        .map(|entry| entry.expect("an entry").file_name())
        .map(|name| name.into_string().expect("text"))
        .collect();
    names.sort();
    names
}

#[test]
fn what_is_no_socket_stays_as_it_is_and_is_named() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    fs::write(at("file"), "precious").unwrap();
    fs::create_dir(at("directory")).unwrap();
    symlink(at("file"), at("link")).unwrap();
    symlink(at("nowhere"), at("dangling")).unwrap();
    nix::unistd::mkfifo(&at("fifo"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    let before = names(directory.path());
    for take in TAKERS {
        for (name, kind) in [
            ("file", "a regular file"),
            ("directory", "a directory"),
            ("link", "a symbolic link"),
            ("dangling", "a symbolic link"),
            ("fifo", "a FIFO"),
        ] {
            let error = take(&at(name)).expect_err(name);
            let named = error.contains(&format!("/{name} is {kind}, not a socket"));
            assert!(named, "{error}");
        }
        assert_eq!(names(directory.path()), before);
        assert_eq!(fs::read_to_string(at("file")).unwrap(), "precious");
    }
}

#[test]
fn a_folder_that_is_not_there_is_named_and_no_lock_is() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    fs::write(at("file"), "").unwrap();
    for take in TAKERS {
        for (folder, what) in [("none", "not there"), ("file", "a regular file")] {
            let error = take(&at(folder).join("socket")).unwrap_err();
            let expected = format!("the folder {} is {what}", at(folder).display());
            assert_eq!(error, expected);
        }
    }
    assert_eq!(names(directory.path()), ["file"]);
    // A path without a folder is in the working directory.
    assert!(folder_of(Path::new("socket")).is_ok());
}

#[test]
fn a_link_to_a_socket_is_not_followed() {
    let directory = tempfile::tempdir().unwrap();
    let [socket, link] = ["socket", "link"].map(|name| directory.path().join(name));
    drop(UnixListener::bind(&socket).unwrap());
    symlink(&socket, &link).unwrap();
    for take in TAKERS {
        assert!(take(&link).unwrap_err().contains("a symbolic link"));
    }
    assert_eq!(names(directory.path()), ["link", "socket"]);
}

#[test]
fn a_socket_that_a_process_has_open_is_left_alone() {
    let directory = tempfile::tempdir().unwrap();
    let [stream, datagrams] = ["stream", "datagrams"].map(|name| directory.path().join(name));
    let server = UnixListener::bind(&stream).unwrap();
    let peer = UnixDatagram::bind(&datagrams).unwrap();
    for take in TAKERS {
        for path in [&stream, &datagrams] {
            let error = take(path).unwrap_err();
            assert!(error.contains("another process has open"), "{error}");
        }
    }
    // A socket that is connected to a single peer counts as open, too.
    peer.connect(&datagrams).unwrap();
    let error = listen_at(&datagrams).unwrap_err();
    assert!(matches!(error, SocketPathError::InUse { .. }), "{error}");
    // The tests for an open socket left no entry in the listener's queue.
    let client = UnixStream::connect(&stream).unwrap();
    let (accepted, _) = server.accept().unwrap();
    drop(client);
    let mut end = [0];
    assert_eq!(io::Read::read(&mut &accepted, &mut end).unwrap(), 0);
    server.set_nonblocking(true).unwrap();
    assert_eq!(server.accept().unwrap_err().kind(), ErrorKind::WouldBlock);
}

#[test]
fn a_socket_left_behind_is_replaced_and_what_was_made_is_removed() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("socket");
    for take in TAKERS {
        drop(UnixListener::bind(&path).unwrap());
        take(&path).unwrap();
        assert!(names(directory.path()).is_empty(), "neither it nor a lock");
    }
    let (listener, taken) = listen_at(&path).unwrap();
    assert_eq!(names(directory.path()), ["socket"], "the lock is gone");
    drop((taken, listener));
    assert!(names(directory.path()).is_empty());
}

#[test]
fn another_users_socket_is_not_ours_to_remove() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("socket");
    drop(UnixListener::bind(&path).unwrap());
    let owner = geteuid().as_raw();
    let beside = directory.path().join("socket.lock");
    let claim = PathClaim {
        path: path.clone(),
        user: owner + 1,
        _lock: Lock::take(&beside, owner).unwrap(),
    };
    let error = claim.bind(|path| UnixListener::bind(path)).unwrap_err();
    assert!(
        matches!(error, SocketPathError::OtherUsersSocket { owner: theirs, .. } if theirs == owner),
        "{error}"
    );
    assert_eq!(names(directory.path()), ["socket"]);
}

#[test]
fn a_path_that_has_become_anothers_is_not_removed() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("socket");
    let (listener, taken) = listen_at(&path).unwrap();
    fs::remove_file(&path).unwrap();
    fs::write(&path, "another's").unwrap();
    drop((taken, listener));
    assert_eq!(fs::read_to_string(&path).unwrap(), "another's");
}

fn mode_of(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o7777
}

/// A private socket has no group or other permissions from the start. Giving it away never changes the owner or mode of
/// another file that has replaced it, even through a symbolic link.
#[test]
fn a_private_socket_is_so_from_the_first_moment_on_and_is_given_away_by_itself() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("socket");
    let (listener, taken) = listen_privately(&path).unwrap();
    assert_eq!(mode_of(&path) & 0o077, 0, "before anything else is done");
    taken.give_to(None, None, 0o660).unwrap();
    assert_eq!(mode_of(&path), 0o660);
    drop(UnixStream::connect(&path).unwrap());
    listener.accept().unwrap();
    let file = directory.path().join("file");
    fs::write(&file, "precious").unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o400)).unwrap();
    fs::remove_file(&path).unwrap();
    symlink(&file, &path).unwrap();
    let error = taken.give_to(None, None, 0o666).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::AlreadyExists, "{error}");
    fs::remove_file(&path).unwrap();
    fs::write(&path, "another's").unwrap();
    assert!(taken.give_to(None, None, 0o606).is_err());
    assert_eq!(mode_of(&file), 0o400);
    assert_ne!(mode_of(&path), 0o606);
}

#[test]
fn what_lies_at_the_locks_path_is_neither_followed_nor_written() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    fs::write(at("file"), "precious").unwrap();
    symlink(at("file"), at("a.lock")).unwrap();
    symlink(at("nowhere"), at("b.lock")).unwrap();
    fs::write(at("c.lock"), "notes").unwrap();
    fs::create_dir(at("d.lock")).unwrap();
    let before = names(directory.path());
    for take in TAKERS {
        for (name, what) in [
            ("a", "a symbolic link"),
            ("b", "a symbolic link"),
            ("c", "a file of 5 bytes"),
            ("d", "a directory"),
        ] {
            let error = take(&at(name)).expect_err(name);
            let named = error.contains(&format!("/{name}.lock, where")) && error.contains(what);
            assert!(named, "{error}");
        }
    }
    assert_eq!(names(directory.path()), before);
    assert_eq!(fs::read_to_string(at("file")).unwrap(), "precious");
    assert_eq!(fs::read_to_string(at("c.lock")).unwrap(), "notes");
    let error = Lock::take(&at("e.lock"), geteuid().as_raw() + 1).unwrap_err();
    assert!(error.to_string().contains("of user"), "{error}");
}

#[test]
fn a_process_that_waited_for_a_removed_lock_makes_a_new_one() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("lock");
    let user = geteuid().as_raw();
    let first = Lock::take(&path, user).unwrap();
    assert_eq!(
        fs::metadata(&path).unwrap().permissions().mode() & 0o777,
        0o600
    );
    assert!(Lock::try_take(&path, user).unwrap().is_none(), "held");
    thread::scope(|scope| {
        let second = scope.spawn(|| Lock::take(&path, user).unwrap());
        drop(first);
        drop(second.join().unwrap());
    });
    assert!(names(directory.path()).is_empty());
}
