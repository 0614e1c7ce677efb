//! The conditions that each run must meet, and the plan of runs.

use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use nix::errno::Errno;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use tempfile::TempDir;

use super::calls::Fault;
use super::files;
use super::serve::CLIENT;
use super::tracer::{Ended, Forbidden, Outside, Run, Wanted, play};

/// Environment variable: number of places of each call at which each of its errors is tested, or `all`.
const SCOPE: &str = "DAT_TEST_SYSCALLS";
/// Environment variable: name of the only call that fails, if set.
const ONLY: &str = "DAT_TEST_SYSCALLS_ONLY";

/// Returns the number of places that the environment requests; `None` if it requests nothing.
fn asked() -> Option<usize> {
    let asked = std::env::var(SCOPE).ok();
    asked.map(|asked| match asked.as_str() {
        "all" => usize::MAX,
        number => number.parse().expect("a number, or \"all\""),
    })
}

/// Returns true if at least this number of places is requested. Parts with two processes run only if one is requested,
/// because they need minutes on a busy machine, and the errors of their undisturbed peer depend on timing.
pub fn is_asked_for(places: usize) -> bool {
    let is_asked = asked().is_some_and(|asked| asked >= places);
    if !is_asked {
        println!("skipped: {SCOPE} is not {places} or more");
    }
    is_asked
}

/// Number of runs of a part in addition to those that test each call with each error once.
const SAMPLE: usize = 20;

/// Number of runs between two progress lines.
const PROGRESS_INTERVAL: usize = 500;

/// Number of runs in parallel.
const AT_ONCE: usize = 6;

/// A child's report of its sessions.
#[derive(Debug, PartialEq, Eq)]
struct Said {
    first: String,
    kept: [(u64, u64); 2],
    second: String,
}

impl Said {
    fn of(text: &str) -> Option<Self> {
        let lines = |key: &str| -> Vec<String> {
            let key = format!("@{key} ");
            text.lines()
                .filter_map(|line| line.strip_prefix(&key).map(str::to_owned))
                .collect()
        };
        let kept = |line: &String| {
            let (descriptors, bytes) = line.split_once(" descriptors, ")?;
            let bytes = bytes.strip_suffix(" bytes")?;
            Some((descriptors.parse().ok()?, bytes.parse().ok()?))
        };
        let all: Vec<_> = lines("kept").iter().map_while(kept).collect();
        Some(Self {
            first: lines("first").pop()?,
            kept: all.try_into().ok()?,
            second: lines("second").pop()?,
        })
    }
}

/// Checks a run. Returns true if the error was reported, and false if the session succeeded all the same.
fn check_run(run: &Run, wanted: Wanted, healthy: &Said) -> Result<bool, String> {
    if run.ended != Ended::Exit(0) {
        return Err(format!("it ended by {:?}", run.ended));
    }
    if run.complained.contains("panicked at") {
        return Err("a panic".into());
    }
    let said = Said::of(&run.said).ok_or_else(|| format!("it says only {:?}", run.said))?;
    if said.second != "ok" {
        return Err(format!("the next session: {}", said.second));
    }
    let ([after, later], [usual, usually]) = (said.kept, healthy.kept);
    // Memory whose unmap failed may remain until the next session. The check of that session covers it.
    if after.0 > usual.0 || (after.1 > usual.1 && wanted.name != "munmap") {
        return Err(format!("left over: {after:?}, and otherwise {usual:?}"));
    }
    if later.0 > usually.0 || later.1 > usually.1 {
        return Err(format!("left over later: {later:?}, otherwise {usually:?}"));
    }
    if said.first == "ok" {
        return Ok(false);
    }
    if wanted.fault == Fault::Short {
        return Err(format!("less than all is no error: {}", said.first));
    }
    // A client reports the end of its server, with an error of its own.
    if said.first.starts_with(CLIENT) {
        return Ok(true);
    }
    let names = |errno: Errno| names(&said.first, errno);
    let of_time = ["is silent for", "no reply"]
        .iter()
        .any(|words| said.first.contains(words));
    let of_a_full_queue = said.first.contains("the queue of this socket is full");
    let is_dead = [
        "is gone from the bus",
        "finds it dead",
        "the device is dead",
    ]
    .iter()
    .any(|words| said.first.contains(words));
    let of_a_thread = ["clone", "mmap (stack)", "mprotect (stack)"].contains(&wanted.name);
    match wanted.fault {
        // The C library returns EAGAIN for any failure to create a thread (pthread_create(3)).
        Fault::Error(_) if of_a_thread && names(Errno::EAGAIN) => Ok(true),
        // EAGAIN on a socket is its timeout.
        Fault::Error(Errno::EAGAIN) if of_time => Ok(true),
        // EAGAIN of connect(2) on a path is a full queue of the server.
        Fault::Error(Errno::EAGAIN) if of_a_full_queue && wanted.name == "connect" => Ok(true),
        // After the connection has ended, register reads by messages return all ones, so the device seems dead. The log
        // has the reason.
        Fault::Error(_) if is_dead => Ok(true),
        Fault::Error(errno) | Fault::Done(errno) if !names(errno) => {
            Err(format!("the error does not name it: {}", said.first))
        }
        Fault::Error(_) | Fault::Done(_) | Fault::Short => Ok(true),
    }
}

/// Returns true if a text names an error: by the text of the C library or of nix, or by its name.
pub fn names(text: &str, errno: Errno) -> bool {
    let system = std::io::Error::from(errno).to_string();
    [system, errno.desc().to_owned(), format!("{errno:?}")]
        .iter()
        .any(|name| text.contains(name))
}

/// A directory of sockets for one thread's children, with all else that they need.
pub trait Place {
    fn directory(&self) -> &Path;
}

impl Place for TempDir {
    fn directory(&self) -> &Path {
        self.path()
    }
}

/// Returns a directory without anything else.
pub fn empty() -> TempDir {
    tempfile::tempdir().expect("a directory")
}

/// Makes the calls of a part fail, one in each run. Runs wait more than they compute, so several run in parallel, each
/// in its own directory.
pub fn walk<P: Place>(part: &str, place: fn() -> P, outside: &Outside<'_>) {
    let healthy = match play(part, place().directory(), None, outside) {
        Ok(run) => run,
        Err(Forbidden(errno)) => {
            println!("skipped: this process may not trace another one: ptrace: {errno}");
            return;
        }
    };
    assert_eq!(healthy.unknown, [0_i64; 0], "calls nobody thought of");
    let usual = Said::of(&healthy.said).expect("what the child says");
    assert_eq!((&*usual.first, &*usual.second), ("ok", "ok"), "{healthy:?}");
    let verdict = |run: &Run, wanted, _: &Path| check_run(run, wanted, &usual);
    fail_each(part, &healthy, place, outside, &verdict);
}

/// Check of a run: returns true if the error was reported, and false if the run succeeded all the same.
type Verdict<'a> = dyn Fn(&Run, Wanted, &Path) -> Result<bool, String> + Sync + 'a;

/// Makes the calls fail with which a command of datctl writes its files, one in each run.
pub fn walk_files(part: &str) {
    let place = empty();
    let healthy = match play(part, place.directory(), None, &files::beside) {
        Ok(run) => run,
        Err(Forbidden(errno)) => {
            println!("skipped: this process may not trace another one: ptrace: {errno}");
            return;
        }
    };
    assert_eq!(healthy.unknown, [0_i64; 0], "calls nobody thought of");
    assert_eq!(healthy.ended, Ended::Exit(0), "{healthy:?}");
    let usual = files::left(place.directory());
    assert!(
        !usual.is_empty() && !healthy.calls.is_empty(),
        "{healthy:?}"
    );
    let verdict = |run: &Run, wanted, directory: &Path| {
        files::check_run(part, run, wanted, &files::left(directory), &usual)
    };
    fail_each(part, &healthy, empty, &files::beside, &verdict);
}

/// Plans runs from the calls of an undisturbed run, makes one call fail in each run, and checks each run.
fn fail_each<P: Place>(
    part: &str,
    healthy: &Run,
    place: fn() -> P,
    outside: &Outside<'_>,
    verdict: &Verdict<'_>,
) {
    let plan = plan(healthy);
    let verdicts = Mutex::new(Vec::new());
    let next = AtomicUsize::new(0);
    thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                let place = place();
                while let Some(&wanted) = plan.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let run = play(part, place.directory(), Some(wanted), outside);
                    let run = run.expect("it was traced before");
                    // With threads a call may occur fewer times than in the undisturbed run; then nothing failed.
                    if run.failed {
                        let verdict = verdict(&run, wanted, place.directory());
                        let verdict =
                            verdict.map_err(|what| failure_text(part, wanted, &what, &run));
                        let mut verdicts = verdicts.lock().expect("nobody panics");
                        // Failures and progress are printed at once, because all runs take long.
                        if let Err(what) = &verdict {
                            println!("BROKE: {what}");
                        }
                        verdicts.push((wanted.name, verdict));
                        if verdicts.len().is_multiple_of(PROGRESS_INTERVAL) {
                            println!("{part}: {} of {} runs", verdicts.len(), plan.len());
                        }
                    }
                }
            });
        }
    });
    let verdicts = verdicts.into_inner().expect("nobody panics");
    println!("| {part}: call | calls | failed | told | survived |\n|---|---|---|---|---|");
    for (name, (count, _)) in &healthy.calls {
        let of = |which: fn(&Result<bool, String>) -> bool| {
            let of_it = verdicts.iter().filter(|(of, _)| of == name);
            of_it.filter(|(_, verdict)| which(verdict)).count()
        };
        let (failed, told) = (of(|_| true), of(|verdict| *verdict == Ok(true)));
        let survived = of(|verdict| *verdict == Ok(false));
        println!("| {name} | {count} | {failed} | {told} | {survived} |");
    }
    let broken: Vec<&str> = verdicts
        .iter()
        .filter_map(|(_, verdict)| verdict.as_ref().err().map(String::as_str))
        .collect();
    assert!(
        broken.is_empty(),
        "{} of {} runs broke:\n{}",
        broken.len(),
        verdicts.len(),
        broken.join("\n")
    );
}

fn failure_text(part: &str, wanted: Wanted, what: &str, run: &Run) -> String {
    let Wanted {
        name,
        before,
        fault,
    } = wanted;
    let complained = &run.complained;
    format!("{part}: {name} after {before} with {fault:?}: {what}\n{complained}")
}

/// Returns each call with each of its errors once, at a place drawn from a seed, and a sample of all places. If the
/// environment requests N places, returns N for each call with each of its errors, the first of them the drawn one, and
/// the sample; or all places.
fn plan(healthy: &Run) -> Vec<Wanted> {
    let most = asked().unwrap_or(1);
    let of = |name, before, fault| Wanted {
        name,
        before,
        fault,
    };
    let only = std::env::var(ONLY).ok();
    let (mut all, mut chosen) = (Vec::new(), Vec::new());
    let mut random = ChaCha8Rng::seed_from_u64(7);
    for (&name, &(count, faults)) in &healthy.calls {
        if only.as_ref().is_some_and(|only| only != name) {
            continue;
        }
        for &fault in faults {
            // The places are spread evenly over the session.
            let places = count.min(most);
            let drawn = random.random_range(0..count);
            let spread = (0..places).map(|place| (drawn + place * count / places) % count);
            chosen.extend(spread.map(|place| of(name, place, fault)));
            all.extend((0..count).map(|place| of(name, place, fault)));
        }
    }
    if most < usize::MAX {
        chosen.extend(all.choose_multiple(&mut random, SAMPLE));
    }
    chosen
}
