//! Error messages, which contain names, numbers and advice, and the alignment of memory.

use udapl::error::NotClosed;
use udapl::{CloseFlags, EvdFlags, MemPrivFlags, OpenOptions, ia_close, ia_open};

/// Returns the message of the error with which an open of `name` fails.
fn refusal(name: &str) -> String {
    let refused = ia_open(name, &OpenOptions::default());
    refused.expect_err(name).to_string()
}

#[test]
fn a_name_of_the_kernel_s_is_told_as_that() {
    for name in ["mlx5_0", "eth0", "enp59s0f0np0", "ib0", "rocep59s0f1"] {
        let said = refusal(name);
        assert!(said.contains("a name of the kernel's"), "{said}");
        assert!(said.contains("`datctl devices`"), "{said}");
    }
    for name in ["mlx5", "ethernet", "nobody", "enp"] {
        let said = refusal(name);
        assert!(!said.contains("kernel"), "{said}");
    }
}

#[test]
fn a_socket_in_a_folder_that_is_not_there_is_refused_by_the_folder() {
    let folder = tempfile::tempdir().expect("a folder");
    let none = folder.path().join("none");
    let said = [
        format!(
            "sim:m,mac=02:00:00:00:00:01,link=unix:{}/wire",
            none.display()
        ),
        format!("sim:m2,control={}/socket", none.display()),
    ]
    .map(|name| refusal(&name));
    for said in said {
        let expected = format!("the folder {} is not there", none.display());
        assert!(said.ends_with(&expected), "{said}");
        assert!(!said.contains(".lock"), "{said}");
    }
}

#[test]
fn a_socket_that_no_server_has_is_refused_with_the_command_that_starts_one() {
    let folder = tempfile::tempdir().expect("a folder");
    let socket = folder.path().join("none");
    let said = refusal(&format!("vfio-user:{}", socket.display()));
    let expected = format!(
        "no server there: `datctl sim serve --socket {}`",
        socket.display()
    );
    assert!(said.contains(&expected), "{said}");
    // The socket file still exists after its server has ended.
    drop(std::os::unix::net::UnixListener::bind(&socket).expect("a socket"));
    let said = refusal(&format!("vfio-user:{}", socket.display()));
    assert!(said.contains(&expected), "{said}");
}

#[test]
fn a_close_and_a_free_that_are_refused_say_how_many_objects_of_each_kind_are_left() {
    let mut ia = ia_open("sim:left", &OpenOptions::default()).expect("an adapter");
    let zone = ia.pz_create().expect("a PZ");
    let memory = udapl::alloc(&ia, 64).expect("memory");
    let rights = MemPrivFlags::LOCAL_READ;
    for _ in 0..2 {
        ia.lmr_create(memory.clone(), zone, rights).expect("an LMR");
    }
    ia.evd_create(4, EvdFlags::SOFTWARE).expect("an EVD");
    let said = ia.pz_free(zone).expect_err("in use").to_string();
    assert!(said.ends_with("objects are in the zone: 2 LMRs"), "{said}");
    let Err(NotClosed::InUse(open)) = ia_close(ia, CloseFlags::Graceful) else {
        panic!("objects are left");
    };
    let said = open.error.to_string();
    assert!(
        said.ends_with("objects are left in the IA: 1 EVD, 2 LMRs, 1 PZ"),
        "{said}"
    );
    ia_close(open.into_ia(), CloseFlags::Abrupt).expect("closes");
}

#[test]
fn memory_lies_at_the_alignment_that_was_asked_for() {
    let ia = ia_open("sim:aligned", &OpenOptions::default()).expect("an adapter");
    for align in [256, 4096, 1 << 16] {
        let memory = udapl::memory::alloc_aligned(&ia, 100, align).expect("memory");
        assert_eq!(memory.len(), 100);
        assert!(memory.address().is_multiple_of(align as u64));
    }
    assert!(
        udapl::alloc(&ia, 1)
            .expect("memory")
            .address()
            .is_multiple_of(256)
    );
    for (bytes, align) in [(0, 256), (1, 3000), (1, 0)] {
        let error = udapl::memory::alloc_aligned(&ia, bytes, align).expect_err("refused");
        assert!(
            error.to_string().contains(&format!("{align:#x}")),
            "{error}"
        );
    }
}
