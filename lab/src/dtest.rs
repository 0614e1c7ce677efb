//! `cargo xtask dtest`: runs unmodified DAT 2.0 programs from Debian's packages on our library.
//!
//! ```text
//!   dtest -P ia          --> libdat2.so.2 --DAT_OVERRIDE=0.conf--> our libdat.so --> sim:0 --.
//!                                                                                             wire
//!   dtest -P ia -h host  --> libdat2.so.2 --DAT_OVERRIDE=1.conf--> our libdat.so --> sim:1 --'
//! ```
//!
//! Server and client are two processes. Each has its own `dat.conf`, in which the same name leads to a simulated
//! function of its own. One wire connects the functions. Every mode of `dtest` that works on reliable connections is
//! run, with `dtestx`, `dtestcm` and the tests of `dapltest`, and a table shows the result of each. Before that, a C
//! compiler checks our structures of DAT 2.0 against the package's headers.
//!
//! The packages are unpacked under the target directory, not installed. If they are not available, a message says so.

mod distribution;
mod pair;

use std::time::Instant;

use anyhow::{Result, ensure};
use clap::Args;
use comfy_table::Table;

use crate::{install, left_out};
use distribution::Distribution;
use pair::{Outcome, Pair};

/// Options of `cargo xtask dtest`.
#[derive(Args)]
pub struct Arguments {
    /// Also run dtest without options: 8 GB by RDMA Write, about a minute.
    #[arg(long)]
    long: bool,
    /// Cargo profile of the library: `release`, or `test` for a quick build.
    #[arg(long, default_value = "test")]
    profile: String,
    /// Print the output of server and client.
    #[arg(long)]
    show: bool,
}

/// One test: a server and a client with certain options.
struct Mode {
    program: Program,
    /// Options of the client. The servers of dtest, dtestcm and dtestx get them, too.
    options: &'static str,
    what: &'static str,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Program {
    Dtest,
    Dtestcm,
    Dtestx,
    Dapltest,
    /// A single process that prints how many objects it could create.
    Limit,
}

const fn dtest(options: &'static str, what: &'static str) -> Mode {
    Mode {
        program: Program::Dtest,
        options,
        what,
    }
}

const fn dtestcm(options: &'static str, what: &'static str) -> Mode {
    Mode {
        program: Program::Dtestcm,
        options,
        what,
    }
}

const fn dtestx(options: &'static str, what: &'static str) -> Mode {
    Mode {
        program: Program::Dtestx,
        options,
        what,
    }
}

const fn dapltest(options: &'static str, what: &'static str) -> Mode {
    Mode {
        program: Program::Dapltest,
        options,
        what,
    }
}

const fn limit(options: &'static str, what: &'static str) -> Mode {
    Mode {
        program: Program::Limit,
        options,
        what,
    }
}

const LONG: Mode = dtest(
    "",
    "1000 writes of 4 MiB each way, reads, 100 messages of 4 MiB",
);

const MODES: &[Mode] = &[
    dtest("-b 4096 -B 100", "writes, reads, messages; evd_wait"),
    dtest("-b 4096 -B 100 -p", "the same, polling"),
    dtest("-b 4096 -B 100 -c", "the same, by a CNO"),
    dtest("-b 4096 -B 100 -t", "the same, with times"),
    dtest("-b 4096 -B 100 -v", "the same, telling each step"),
    dtest("-b 4096 -B 20 -d 1", "the request is accepted late"),
    dtest("-b 64 -B 100 -S 50", "every 50th write is signalled"),
    dtest("-b 1048576 -B 20", "1 MiB"),
    dtest(
        "-b 4096 -B 100 -w",
        "writes only, the last with immediate data",
    ),
    dtest("-b 4096 -B 100 -w -u", "writes only, one way"),
    dtest("-b 4096 -B 100 -w -p -u", "the same, polling"),
    dtest("-b 4096 -B 100 -w -c", "writes only, by a CNO"),
    dtest("-W -B 200", "write ping-pong, watching memory"),
    dtest("-W -D -b 1000 -B 200", "the same, data checked"),
    dtest(
        "-W -a -b 64 -B 50",
        "the same, all sizes that are powers of 2",
    ),
    dtest("-W -i 100 -b 300 -B 50", "the same, sizes in steps"),
    dtestx(
        "",
        "writes with immediate data, compare-and-swap, fetch-and-add",
    ),
    dtestx("-v -b 4096", "the same, telling each step"),
    dtestcm("-c 500", "500 connections at once, and their end; polling"),
    dtestcm("-c 500 -w", "the same, waiting"),
    dtestcm("-c 500 -m -w", "the same, a service point for each"),
    dapltest(
        "-T T -i 50 -t 1 -w 1 client SR 256 server SR 256",
        "Send and Receive",
    ),
    dapltest(
        "-T T -i 20 -V -t 4 -w 8 client SR 1024 server SR 1024",
        "4 threads, 8 endpoints each, data checked",
    ),
    dapltest(
        "-T T -i 50 -P -t 1 -w 1 client SR 256 server SR 256",
        "the same, polling",
    ),
    dapltest(
        "-T T -i 20 -r -t 1 -w 4 client SR 256 server SR 256",
        "reserved service points",
    ),
    dapltest(
        "-T T -i 50 -V -t 2 -w 2 client RW 4096 2 server RW 4096 2 client SR 1024 2 server SR 1024 2",
        "RDMA Write",
    ),
    dapltest(
        "-T T -i 50 -V -t 2 -w 2 client RR 4096 2 server RR 4096 2 client SR 1024 2 server SR 1024 2",
        "RDMA Read",
    ),
    dapltest(
        "-T T -i 100 -P -t 2 -w 4 client RW 4096 1 server RW 2048 4 server RR 1024 1 client RR 2048 1 client SR 1024 3 -f server SR 256 3 -f",
        "all of them, several segments",
    ),
    dapltest(
        "-T P -i 1024 -p 64 -m b RW 4096 2",
        "performance, RDMA Write, waiting",
    ),
    dapltest(
        "-T P -i 1024 -p 64 -m p RW 4096 2",
        "performance, RDMA Write, polling",
    ),
    dapltest("-T P -i 1024 -p 4 -m b RR 4096 2", "performance, RDMA Read"),
    limit("limit_ia", "100 instances"),
    // With -w 8, the other limits would give endpoints of all instances a connection EVD of the first instance, which
    // DAT forbids.
    limit("-w 8 limit_pz", "100 PZs in 8 instances"),
    limit("-w 8 limit_cno", "100 CNOs in 8 instances"),
    limit("-w 8 limit_evd", "100 EVDs in 8 instances"),
    limit("limit_pz", "100 PZs"),
    limit("limit_cno", "100 CNOs"),
    limit("limit_evd", "100 EVDs"),
    limit("limit_ep", "100 endpoints"),
    limit("limit_rsp", "100 reserved service points"),
    limit("limit_psp", "100 public service points"),
    limit("limit_lmr", "100 LMRs"),
    limit("limit_rpost", "receives of an endpoint"),
    limit("limit_size_lmr", "an LMR of 1 GiB"),
];

/// Runs all modes.
///
/// # Errors
/// A component is not available, or a mode failed.
pub fn run(arguments: &Arguments) -> Result<()> {
    let distribution = Distribution::prepare()?;
    run_on(&distribution, arguments)
}

/// Runs all modes as one of the checks. If the packages are not available, reports that and returns success.
///
/// # Errors
/// A mode failed.
pub fn check() -> Result<()> {
    match Distribution::prepare() {
        Ok(distribution) => {
            let arguments = Arguments {
                long: false,
                profile: "test".into(),
                show: false,
            };
            run_on(&distribution, &arguments)
        }
        Err(error) => {
            left_out::say("programs of DAT 2.0 on our library", &format!("{error:#}"));
            Ok(())
        }
    }
}

fn run_on(distribution: &Distribution, arguments: &Arguments) -> Result<()> {
    distribution.hold_layouts()?;
    let folder = tempfile::tempdir()?;
    install::install(folder.path(), &arguments.profile)?;
    let pair = Pair::new(distribution, folder.path())?;
    let mut table = Table::new();
    table.set_header(["program", "options", "what", "result", "figure", "s"]);
    let mut failed = 0;
    for mode in MODES.iter().chain(arguments.long.then_some(&LONG)) {
        let start = Instant::now();
        let (name, ran) = match mode.program {
            Program::Dtest => ("dtest", pair.dtest(mode.options)),
            Program::Dtestcm => ("dtestcm", pair.dtestcm(mode.options)),
            Program::Dtestx => ("dtestx", pair.dtestx(mode.options)),
            Program::Dapltest => ("dapltest", pair.dapltest(mode.options)),
            Program::Limit => ("dapltest -T L", pair.limit(mode.options)),
        };
        let Outcome {
            passed,
            figure,
            said,
        } = ran?;
        let result = if passed { "passed" } else { "FAILED" };
        println!("dtest: {name} {}: {result}", mode.options);
        if arguments.show || !passed {
            println!("{said}");
        }
        failed += usize::from(!passed);
        table.add_row([
            name.to_owned(),
            mode.options.to_owned(),
            mode.what.to_owned(),
            result.to_owned(),
            figure,
            format!("{:.1}", start.elapsed().as_secs_f64()),
        ]);
    }
    println!("{table}");
    ensure!(failed == 0, "{failed} modes failed");
    Ok(())
}
