//! The flight recorder of an adapter over a simulated device.

use udapl::{DtoCookie, OpenOptions};

use crate::support::{A, B, NONE, Pair, PairConfig};

#[test]
fn the_text_of_a_recorder_shows_a_message_on_both_sides() {
    let mut pair = Pair::connected_with(&PairConfig::default());
    let (from, to) = (pair.buffer(A, 64), pair.buffer(B, 64));
    for side in [A, B] {
        pair.sides[side].ia.recorder_start();
    }
    pair.send(&from, &to, 64);
    let [a, b] = [A, B].map(|side| {
        let dump = pair.sides[side].ia.recorder_dump();
        dump.expect("it records").to_string()
    });
    assert!(a.contains(": Send posted, 64 bytes"), "{a}");
    assert!(a.contains(": request done, DAT_DTO_SUCCESS"), "{a}");
    assert!(b.contains(": receive posted, "), "{b}");
    assert!(
        b.contains(": receive done, DAT_DTO_SUCCESS, 64 bytes"),
        "{b}"
    );
    pair.assert_no_complaints();
}

#[test]
fn posts_of_a_batch_are_recorded_one_by_one() {
    let mut pair = Pair::connected_with(&PairConfig::default());
    let from = pair.buffer(A, 64);
    let (ep, side) = (pair.sides[A].ep, &mut pair.sides[A]);
    side.ia.recorder_start();
    let posted = side.ia.batch(ep, |batch| {
        for cookie in 0..4 {
            batch.send(&[from.part(0, 64)], DtoCookie(cookie), NONE)?;
        }
        Ok(())
    });
    posted.expect("posts");
    let dump = side.ia.recorder_dump().expect("it records");
    assert_eq!(dump.records.len(), 4, "{dump}");
}

#[test]
fn an_adapter_records_from_its_opening_if_its_options_say_so() {
    let options = OpenOptions::default().recorder(true);
    let ia = udapl::ia_open("sim:recorded", &options).expect("opens");
    assert!(ia.recorder_dump().is_some());
    udapl::ia_close(ia, udapl::CloseFlags::Abrupt).expect("closes");
}

/// Returns the files in a folder with this extension.
fn files(folder: &std::path::Path, end: &str) -> Vec<std::path::PathBuf> {
    let entries = std::fs::read_dir(folder).expect("a folder");
    let paths = entries.map(|entry| entry.expect("an entry").path());
    let mut paths: Vec<_> = paths
        .filter(|path| path.extension().is_some_and(|is| is == end))
        .collect();
    paths.sort();
    paths
}

/// Makes a pair whose side A dumps its recordings to a folder.
fn pair_with_recorder(folder: &std::path::Path) -> Pair {
    let mut config = PairConfig::default();
    let options = config.options[A].clone();
    config.options[A] = options.recorder_folder(folder);
    Pair::connected_with(&config)
}

/// Posts an RDMA Write with a wrong RMR context, which breaks the connection.
fn break_connection(pair: &mut Pair) {
    let (from, to) = (pair.buffer(A, 64), pair.buffer(B, 64));
    let mut remote = to.remote(0, 64);
    remote.rmr_context ^= 0x100;
    let (ep, side) = (pair.sides[A].ep, &mut pair.sides[A]);
    let one = [from.part(0, 64)];
    let posted = side
        .ia
        .ep_post_rdma_write(ep, &one, DtoCookie(7), &remote, NONE);
    posted.expect("posts");
    let done = pair.wait_dto(A, pair.sides[A].request);
    assert_eq!(done.status, udapl::DtoStatus::ErrRemoteAccess);
    pair.wait_event(A, pair.sides[A].connect);
}

#[test]
fn what_was_recorded_is_kept_as_text_and_pcapng_when_a_connection_breaks() {
    use std::os::unix::fs::PermissionsExt;
    let directory = tempfile::tempdir().expect("a directory");
    let folder = directory.path().join("kept");
    let mut pair = pair_with_recorder(&folder);
    assert!(files(&folder, "txt").is_empty(), "nothing has broken yet");
    break_connection(&mut pair);
    let ([text], [capture]) = (&files(&folder, "txt")[..], &files(&folder, "pcapng")[..]) else {
        panic!("two files");
    };
    for file in [text, capture] {
        let mode = file.metadata().expect("a file").permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{}", file.display());
    }
    let text = std::fs::read_to_string(text).expect("a file");
    for line in [
        "the connection of EP 0 broke",
        "RDMA Write posted, 64 bytes",
        "request done, DAT_DTO_ERR_REMOTE_ACCESS",
        "function: datagram sent: REQ of queue pair",
        "function: command RST2INIT_QP: done, after",
    ] {
        assert!(text.contains(line), "{line}: {text}");
    }
}

#[test]
fn no_more_than_sixteen_dumps_of_a_process_are_kept() {
    let directory = tempfile::tempdir().expect("a directory");
    for _ in 0..17 {
        break_connection(&mut pair_with_recorder(directory.path()));
    }
    assert_eq!(files(directory.path(), "txt").len(), 16);
    assert_eq!(files(directory.path(), "pcapng").len(), 16);
}

#[test]
fn a_thread_that_panics_leaves_what_it_did_last() {
    let directory = tempfile::tempdir().expect("a directory");
    let folder = directory.path().to_owned();
    let panicked = std::thread::spawn(move || {
        let _pair = pair_with_recorder(&folder);
        panic!("for a test");
    });
    assert!(panicked.join().is_err());
    let texts = files(directory.path(), "txt");
    let text = std::fs::read_to_string(&texts[0]).expect("a file");
    assert!(
        text.contains("the thread of the instance panicked")
            && text.contains("-> CONNECTED")
            && text.contains("function: datagram received: REP"),
        "{text}"
    );
}

#[test]
fn a_folder_in_which_a_stranger_can_put_links_is_refused() {
    use std::os::unix::fs::{PermissionsExt, symlink};
    let directory = tempfile::tempdir().expect("a directory");
    let of_all = directory.path().join("of-all");
    std::fs::create_dir(&of_all).expect("a folder");
    std::fs::set_permissions(&of_all, PermissionsExt::from_mode(0o777)).expect("its mode");
    let link = directory.path().join("link");
    symlink(directory.path(), &link).expect("a link");
    let file = directory.path().join("file");
    std::fs::write(&file, "").expect("a file");
    for path in [of_all, link, file] {
        let options = OpenOptions::default().recorder_folder(&path);
        let error = udapl::ia_open("sim:nowhere", &options).expect_err("refused");
        assert!(
            matches!(&error, udapl::error::OpenError::Recorder { .. }),
            "{}: {error}",
            path.display()
        );
    }
}
