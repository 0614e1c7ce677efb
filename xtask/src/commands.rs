//! The commands in groups, for the help of `cargo xtask`. A test of `lab` checks that `lab` has exactly these commands,
//! except `demo`.

/// A group: its heading, and the name and effect of each command.
pub type Group = (&'static str, &'static [(&'static str, &'static str)]);

/// All commands.
pub const GROUPS: [Group; 6] = [
    (
        "Every day",
        &[
            (
                "demo",
                "Run the main job on the built-in simulator: two functions, one connection, every DTO",
            ),
            (
                "test",
                "Run every test, then tshark and scapy on the frames of the demo",
            ),
            (
                "check",
                "Run all that CI runs: format, lints, documentation, rules, tests, bars, a kernel",
            ),
            (
                "setup",
                "Install the programs that the tests use: tshark, scapy, valgrind, cargo-deny, cargo-shear",
            ),
        ],
    ),
    (
        "Rules for the sources",
        &[
            ("tidy", "Check the house rules"),
            (
                "conformance",
                "Print clause, tests and result of every DAT clause; --write makes docs/conformance.md",
            ),
            (
                "deny",
                "Check licences, sources and versions of foreign crates",
            ),
            ("shear", "Find dependencies without a use"),
        ],
    ),
    (
        "Speed",
        &[
            (
                "bench",
                "Count instructions per operation, beside a bare loop in the same run",
            ),
            (
                "speed",
                "Compare simulated functions with UCX, libfabric and software RoCE",
            ),
        ],
    ),
    (
        "Stock kernels and programs on simulated functions",
        &[
            (
                "vm",
                "Run the driver through a stock kernel's VFIO, and stock drivers on the simulator, in QEMU",
            ),
            (
                "nvme",
                "Open a guest on the NVMe over RDMA target; test, bench, blktests, service, compare, loss",
            ),
            ("dtest", "Run Debian's dtest and dapltest, unmodified"),
            ("simnic", "Run the suite of `simnic run`"),
            (
                "matrix",
                "Write docs/simulator-matrix.md: the programs, and their demands on the simulator",
            ),
            (
                "observe",
                "Scrape a process with traffic by Debian's Prometheus, and check its rules",
            ),
            (
                "wire",
                "Check a capture with tshark and an independent ICRC computation",
            ),
        ],
    ),
    (
        "Seeds, threads and defects",
        &[
            (
                "campaign",
                "Run seeded worlds of adapters, traffic and faults",
            ),
            (
                "mutations",
                "Put known defects into a copy of the tree, and name the seed that finds each",
            ),
            (
                "sim",
                "Replay one seeded run over a faulty wire, and print its events",
            ),
            (
                "races",
                "Run loom's models, ThreadSanitizer and Miri on threaded code",
            ),
            ("miri", "Interpret the tests of rings and tables with Miri"),
        ],
    ),
    (
        "Releases",
        &[
            (
                "install",
                "Build and install the C library: libdat.so, libdat.a, dat.pc, headers",
            ),
            (
                "package",
                "Make Debian packages; --test uses them in a clean Debian",
            ),
            (
                "publish-check",
                "Pack every crate as crates.io takes it; --build builds each from its package",
            ),
            (
                "site",
                "Make the documents a site, and follow every link in it",
            ),
        ],
    ),
];
