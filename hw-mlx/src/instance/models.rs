//! Models of the wakeups between instances. They check two rules: an instance that takes in the answer, event or
//! interrupt of another one wakes that one; and no instance sleeps while its inbox has an event.
//!
//! The models use the file `listeners` itself, with the types of loom, which tries every interleaving of the threads.
//! Around it they repeat the steps of the threads of two instances, under the names of the functions of the driver:
//!
//! | in the models | in the driver |
//! |---|---|
//! | `Machine::serve` | `Own::serve`, `Control::serve`, `Own::take_events` |
//! | `Machine::sleep` | `Own::sleep` |
//! | `Machine::wait` | `Hca::wait` |
//! | `Machine::exec` | `Hca::go_on` with `Control::advance` |
//! | `Machine::progress`, `end` | `Hca::process_events`, `Own::end` |
//! | `Machine::hand_over` | an instance puts work into the queue of another one, then calls that one's waker |
//! | `Machine::on_descriptors` | a program that sleeps on `Hca::interrupts`, with `Hca::woken` |
//!
//! The models have no timeouts: after a lost wakeup a thread sleeps for ever, which loom reports as a deadlock. Four
//! mistakes can be made on purpose ([`Broken`]), and the models find each of them. Each model runs with few preemptions
//! in the ordinary tests, and prints the number of executions. LOOM_MAX_PREEMPTIONS sets more (`cargo xtask races`).

use core::cell::Cell;
use std::sync::Arc as Counted;
use std::sync::atomic::{AtomicUsize, Ordering};

use loom::sync::{Arc, Condvar, Mutex, MutexGuard};
use loom::thread;

use crate::event::AsyncEvent;

#[path = "listeners.rs"]
#[allow(
    dead_code,
    clippy::duplicate_mod,
    reason = "the same file over another interrupt, of which the models need less"
)]
mod listeners;

use listeners::{Listener, Listeners};

/// The step that a model leaves out or does wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Broken {
    Nothing,
    /// An instance that processes shared events does not wake the others.
    Wake,
    /// An instance that clears the interrupt of a shared vector does not wake the others.
    Sharers,
    /// After a command, an instance becomes idle without a check for events that came in meanwhile.
    After,
    /// An instance clears its wakeup after it became idle, and may thereby discard a signal.
    TakenEarly,
}

thread_local! {
    // loom runs all threads of a model on the system thread that started the model.
    static BROKEN: Cell<Broken> = const { Cell::new(Broken::Nothing) };
}

fn is_broken(what: Broken) -> bool {
    BROKEN.get() == what
}

loom::lazy_static! {
    // All interrupts share one condition variable, so any of them can wake a thread that waits for several.
    static ref SIGNALLED: (Mutex<()>, Condvar) = (Mutex::new(()), Condvar::new());
}

/// A model of an eventfd: a counter. Clones share the counter.
#[derive(Clone)]
pub(super) struct Interrupt(Arc<Mutex<u64>>);

impl Interrupt {
    fn new() -> Self {
        Self(Arc::new(Mutex::new(0)))
    }

    fn count(&self) -> MutexGuard<'_, u64> {
        self.0.lock().expect("no thread of a model panics alone")
    }

    fn signal(&self) {
        let _all = SIGNALLED.0.lock().expect("as above");
        *self.count() += 1;
        SIGNALLED.1.notify_all();
    }

    fn take(&self) -> u64 {
        core::mem::take(&mut *self.count())
    }

    /// Sleeps until one of the interrupts is signalled. Does not clear the signal.
    fn wait(interrupts: &[Self]) {
        let mut all = SIGNALLED.0.lock().expect("as above");
        while interrupts.iter().all(|one| *one.count() == 0) {
            all = SIGNALLED.1.wait(all).expect("as above");
        }
    }
}

/// An entry that the device writes to the shared event queue.
enum Said {
    /// The command of the instance with this number is done.
    Answer(usize),
    /// An event for every instance.
    Event,
    /// QP1 has received a datagram, which any instance may process.
    Datagram,
}

/// Event queue entries that the device has written and no instance has read.
#[derive(Default)]
struct Device {
    shared: Vec<Said>,
    /// Number of completion events of each instance.
    completions: [u32; 2],
}

/// State that instances share.
struct Control {
    listeners: Listeners,
    /// True for each instance whose answer was taken in.
    answered: [bool; 2],
}

/// State that belongs to one instance.
struct Own {
    number: usize,
    /// Vector 0, the vector of the completion event queue, and the wakeup of the instance.
    interrupts: [Interrupt; 3],
    /// Number of completion events taken in.
    completions: u32,
    /// Number of completion events that `seen` has reported.
    reported: u32,
}

/// A function with two instances, whose completion event queues share one vector.
struct Machine {
    device: Mutex<Device>,
    vectors: [Interrupt; 2],
    control: Mutex<Control>,
    /// Number of datagrams not yet processed. Their result is for instance 0.
    datagrams: Mutex<u32>,
    /// Number of work items of the connection manager for each instance, behind a separate lock.
    work_items: Mutex<[u32; 2]>,
}

/// Vector of the completion event queues.
const COMPLETIONS: usize = 1;

impl Machine {
    fn new() -> (Arc<Self>, [Own; 2]) {
        let vectors = [Interrupt::new(), Interrupt::new()];
        let wakeups = [Interrupt::new(), Interrupt::new()];
        let mut listeners = Listeners::default();
        let own = wakeups.map(|wakeup| {
            let [commands, completions] = vectors.clone();
            Own {
                number: listeners.add(Listener::new(COMPLETIONS, wakeup.clone())),
                interrupts: [commands, completions, wakeup],
                completions: 0,
                reported: 0,
            }
        });
        let machine = Arc::new(Self {
            device: Mutex::new(Device::default()),
            vectors,
            control: Mutex::new(Control {
                listeners,
                answered: [false; 2],
            }),
            datagrams: Mutex::new(0),
            work_items: Mutex::new([0; 2]),
        });
        (machine, own)
    }

    fn lock(&self) -> MutexGuard<'_, Control> {
        self.control
            .lock()
            .expect("no thread of a model panics alone")
    }

    /// Writes an entry to the shared event queue, as the device does.
    fn says(&self, what: Said) {
        self.device.lock().expect("the device").shared.push(what);
        self.vectors[0].signal();
    }

    /// Writes an entry to the completion event queue of an instance, as the device does.
    fn completes(&self, number: usize) {
        self.device.lock().expect("the device").completions[number] += 1;
        self.vectors[COMPLETIONS].signal();
    }

    /// Delivers a datagram, as the device does.
    fn receives(&self) {
        *self.datagrams.lock().expect("the device") += 1;
        self.says(Said::Datagram);
    }

    /// Processes all pending events of an instance, its own and the shared ones. With `polls_datagrams`, the instance
    /// processes datagrams next, so it wakes no other instance for them.
    fn serve(&self, own: &mut Own, control: &mut Control, polls_datagrams: bool) -> bool {
        control.listeners.set_awake(own.number);
        let mut device = self.device.lock().expect("the device");
        let (mut handled, mut for_all) = (false, false);
        for said in device.shared.drain(..) {
            handled = true;
            match said {
                Said::Answer(number) => {
                    control.answered[number] = true;
                    if !is_broken(Broken::Wake) {
                        control.listeners.answered(1 << number);
                    }
                }
                Said::Event => {
                    control.listeners.push_event(AsyncEvent::PortUp);
                    for_all = true;
                }
                Said::Datagram if polls_datagrams => {
                    let inbox = control.listeners.inbox(own.number);
                    inbox.expect("it is there").call();
                }
                Said::Datagram => {
                    control.listeners.call_all();
                    for_all = true;
                }
            }
        }
        if for_all && !is_broken(Broken::Wake) {
            control.listeners.wake();
        }
        let completions = core::mem::take(&mut device.completions[own.number]);
        own.completions += completions;
        handled || completions > 0
    }

    fn sleep<'a>(
        &'a self,
        own: &Own,
        mut control: MutexGuard<'a, Control>,
    ) -> MutexGuard<'a, Control> {
        control.listeners.set_idle(own.number);
        drop(control);
        if is_broken(Broken::TakenEarly) {
            let [_, _, wakeup] = &own.interrupts;
            let _signals = wakeup.take();
        }
        Interrupt::wait(&own.interrupts);
        let mut control = self.lock();
        Self::woken(own, &mut control);
        control
    }

    fn woken(own: &Own, control: &mut Control) {
        if is_broken(Broken::Sharers) {
            for interrupt in &own.interrupts {
                let _signals = interrupt.take();
            }
            control.listeners.set_awake(own.number);
        } else {
            control.listeners.woken(own.number, &own.interrupts);
        }
    }

    /// Returns whether an instance got an event or other work since the last call, from other instances or from its own
    /// event queue.
    fn seen(own: &mut Own, control: &mut Control) -> bool {
        let inbox = control.listeners.inbox(own.number).expect("it is there");
        let (had_event, called) = (inbox.seen(), inbox.was_called());
        let news = core::mem::replace(&mut own.reported, own.completions) != own.completions;
        had_event || called || news
    }

    /// Waits until an instance has something to process.
    fn wait(&self, own: &mut Own) {
        let mut control = self.lock();
        while !(self.serve(own, &mut control, true) | Self::seen(own, &mut control)) {
            control = self.sleep(own, control);
        }
        control.listeners.set_idle(own.number);
    }

    /// Processes events without waiting.
    fn process_events(&self, own: &mut Own) {
        let mut control = self.lock();
        self.serve(own, &mut control, true);
        Self::seen(own, &mut control);
        control.listeners.set_idle(own.number);
    }

    /// Processes events and datagrams, and hands the result of datagrams to instance 0.
    fn progress(&self, own: &mut Own) {
        self.process_events(own);
        let datagrams = core::mem::take(&mut *self.datagrams.lock().expect("nobody panics"));
        if datagrams > 0 {
            self.hand_over(0);
        }
    }

    /// Ends an instance, even if it was called for work that it has not done.
    fn end(&self, own: &Own) {
        self.lock().listeners.remove(own.number);
    }

    /// Sends a command and waits for its answer. Takes in the answers of other instances too.
    fn exec(&self, own: &mut Own) {
        let mut control = self.lock();
        // An instance uses the command slot with its own number.
        control.listeners.waits_for(own.number, own.number);
        loop {
            self.serve(own, &mut control, false);
            if core::mem::take(&mut control.answered[own.number]) {
                break;
            }
            control = self.sleep(own, control);
        }
        if is_broken(Broken::After) {
            control.listeners.set_idle(own.number);
        } else {
            let news = own.reported != own.completions;
            control.listeners.set_idle_after(own.number, news);
        }
    }

    /// Hands the result of a datagram to an instance.
    fn hand_over(&self, to: usize) {
        let mut work_items = self.work_items.lock().expect("nobody panics");
        work_items[to] += 1;
        self.lock().listeners.call(to);
    }

    /// Takes the work items handed to an instance, and returns their number.
    fn take(&self, number: usize) -> u32 {
        core::mem::take(&mut self.work_items.lock().expect("nobody panics")[number])
    }

    /// Runs a program that processes events whenever one of its descriptors is signalled, until `enough` returns true.
    fn on_descriptors(&self, own: &mut Own, mut enough: impl FnMut(&Self, &Own) -> bool) {
        loop {
            Interrupt::wait(&own.interrupts);
            let mut control = self.lock();
            Self::woken(own, &mut control);
            control.listeners.set_idle(own.number);
            drop(control);
            self.process_events(own);
            if enough(self, own) {
                return;
            }
        }
    }

    fn events(&self, number: usize) -> usize {
        let mut control = self.lock();
        let inbox = control.listeners.inbox(number).expect("it is there");
        core::iter::from_fn(|| inbox.pop()).count()
    }
}

/// Runs each instance in its own thread, and the device in the calling thread.
fn beside(
    machine: &Arc<Machine>,
    own: [Own; 2],
    play: [fn(&Machine, Own); 2],
    device: impl FnOnce(&Machine),
) {
    let mut threads = Vec::new();
    for (own, play) in own.into_iter().zip(play) {
        let machine = Arc::clone(machine);
        threads.push(thread::spawn(move || play(&machine, own)));
    }
    device(machine);
    for thread in threads {
        thread.join().expect("the thread");
    }
}

/// Both instances have sent a command. The answer of instance 1 comes first.
fn answers() {
    let (machine, own) = Machine::new();
    let gives = |machine: &Machine, mut own: Own| machine.exec(&mut own);
    beside(&machine, own, [gives; 2], |machine| {
        machine.says(Said::Answer(1));
        machine.says(Said::Answer(0));
    });
}

/// Both instances wait for a completion. The one that clears the interrupt may not be the one with the completion.
fn completions() {
    let (machine, own) = Machine::new();
    let waits = |machine: &Machine, mut own: Own| {
        while own.completions == 0 {
            machine.wait(&mut own);
        }
    };
    beside(&machine, own, [waits; 2], |machine| {
        machine.completes(1);
        machine.completes(0);
    });
}

/// Both instances run programs that sleep on descriptors until a completion comes.
fn completions_on_descriptors() {
    let (machine, own) = Machine::new();
    let waits = |machine: &Machine, mut own: Own| {
        machine.on_descriptors(&mut own, |_, own| own.completions != 0);
    };
    beside(&machine, own, [waits; 2], |machine| {
        machine.completes(1);
        machine.completes(0);
    });
}

/// Both instances wait for an event, which one of them takes in for both.
fn events() {
    let (machine, own) = Machine::new();
    let waits = |machine: &Machine, mut own: Own| {
        while machine.events(own.number) == 0 {
            machine.wait(&mut own);
        }
    };
    beside(&machine, own, [waits; 2], |machine| {
        machine.says(Said::Event)
    });
}

/// Instance 0 sends a command and then waits for the result of a datagram. Instance 1 processes the datagram and hands
/// the result over at any time.
fn datagrams() {
    let (machine, own) = Machine::new();
    let waits = |machine: &Machine, mut own: Own| {
        machine.exec(&mut own);
        while machine.take(own.number) == 0 {
            machine.wait(&mut own);
        }
    };
    let finds = |machine: &Machine, mut own: Own| {
        machine.process_events(&mut own);
        machine.hand_over(0);
    };
    beside(&machine, own, [waits, finds], |machine| {
        machine.says(Said::Answer(0));
    });
}

/// A datagram comes while instance 0 waits for its result, and instance 1 finishes a command and ends. Instance 1 may
/// have been called for the datagram.
fn a_datagram_and_one_that_ends() {
    let (machine, own) = Machine::new();
    let waits = |machine: &Machine, mut own: Own| loop {
        machine.progress(&mut own);
        if machine.take(own.number) != 0 {
            return;
        }
        machine.wait(&mut own);
    };
    let ends = |machine: &Machine, mut own: Own| {
        machine.exec(&mut own);
        machine.process_events(&mut own);
        machine.end(&own);
    };
    beside(&machine, own, [waits, ends], |machine| {
        machine.says(Said::Answer(1));
        machine.receives();
    });
}

/// Instance 0 sends a command and then sleeps on its descriptors, until instance 1 hands something over.
fn descriptors() {
    let (machine, own) = Machine::new();
    let waits = |machine: &Machine, mut own: Own| {
        machine.exec(&mut own);
        machine.on_descriptors(&mut own, |machine, own| machine.take(own.number) != 0);
    };
    let finds = |machine: &Machine, mut own: Own| {
        machine.process_events(&mut own);
        machine.hand_over(0);
    };
    beside(&machine, own, [waits, finds], |machine| {
        machine.says(Said::Answer(0));
    });
}

/// A completion and an event come while instance 0 waits for a command. A program that then sleeps on its descriptors
/// still gets both. Instance 1 may take in the event.
fn news_behind_a_command() {
    let (machine, own) = Machine::new();
    let waits = |machine: &Machine, mut own: Own| {
        machine.exec(&mut own);
        let mut events = 0;
        machine.on_descriptors(&mut own, |machine, own| {
            events += machine.events(own.number);
            events != 0 && own.completions != 0
        });
    };
    let polls = |machine: &Machine, mut own: Own| machine.process_events(&mut own);
    beside(&machine, own, [waits, polls], |machine| {
        machine.completes(0);
        machine.says(Said::Event);
        machine.says(Said::Answer(0));
    });
}

/// Number of preemptions that suffices to find each of the mistakes.
const PREEMPTIONS: usize = 2;

/// Runs a model in every interleaving with up to `PREEMPTIONS` preemptions, or up to LOOM_MAX_PREEMPTIONS if that is
/// set.
fn explore(what: &str, broken: Broken, model: fn()) {
    BROKEN.set(broken);
    // `Builder::new` reads LOOM_MAX_PREEMPTIONS, LOOM_MAX_BRANCHES and others.
    let mut builder = loom::model::Builder::new();
    let bound = builder.preemption_bound.unwrap_or(PREEMPTIONS);
    builder.preemption_bound = Some(bound);
    let executions = Counted::new(AtomicUsize::new(0));
    let counted = Counted::clone(&executions);
    builder.check(move || {
        counted.fetch_add(1, Ordering::Relaxed);
        model();
    });
    println!(
        "model: instances, {what}: {} executions, up to {bound} preemptions",
        executions.load(Ordering::Relaxed)
    );
}

#[test]
fn an_answer_that_another_instance_takes_in_ends_the_wait_for_it() {
    explore("answers", Broken::Nothing, answers);
}

#[test]
fn a_completion_ends_its_instances_wait_whoever_takes_the_interrupt() {
    explore("completions", Broken::Nothing, completions);
    explore(
        "completions on descriptors",
        Broken::Nothing,
        completions_on_descriptors,
    );
}

#[test]
fn an_event_ends_every_instances_wait() {
    explore("events", Broken::Nothing, events);
}

#[test]
fn what_another_instance_hands_over_is_not_slept_over() {
    explore("datagrams", Broken::Nothing, datagrams);
    explore("datagrams on descriptors", Broken::Nothing, descriptors);
}

#[test]
fn a_datagram_is_processed_though_the_called_instance_ends() {
    explore(
        "one that ends",
        Broken::Nothing,
        a_datagram_and_one_that_ends,
    );
}

#[test]
fn what_comes_while_a_command_is_waited_for_is_not_slept_over() {
    explore("behind a command", Broken::Nothing, news_behind_a_command);
}

/// Runs a broken model and checks that loom reports a deadlock. loom then panics twice, which aborts the process, so
/// the model runs in a child process.
fn assert_deadlock(test: &str, broken: Broken, model: fn()) {
    const THE_OTHER: &str = "DAT_MODEL_TO_BREAK";
    if std::env::var_os(THE_OTHER).is_some() {
        explore("", broken, model);
        return;
    }
    let program = std::env::current_exe().expect("the tests");
    let test = format!("{}::{test}", module_path!().trim_start_matches("hw_mlx::"));
    let ended = std::process::Command::new(program)
        .args([&test, "--exact", "--nocapture"])
        .env(THE_OTHER, "1")
        .output()
        .expect("the tests once more");
    let said = String::from_utf8_lossy(&ended.stderr);
    assert!(
        !ended.status.success() && said.contains("deadlock"),
        "{said}"
    );
}

#[test]
fn the_models_find_who_serves_and_wakes_nobody() {
    let test = "the_models_find_who_serves_and_wakes_nobody";
    assert_deadlock(test, Broken::Wake, answers);
}

#[test]
fn the_models_find_a_shared_interrupt_that_is_kept() {
    let test = "the_models_find_a_shared_interrupt_that_is_kept";
    assert_deadlock(test, Broken::Sharers, completions);
}

#[test]
fn the_models_find_a_program_that_keeps_a_shared_interrupt() {
    let test = "the_models_find_a_program_that_keeps_a_shared_interrupt";
    assert_deadlock(test, Broken::Sharers, completions_on_descriptors);
}

#[test]
fn the_models_find_a_call_that_is_forgotten_behind_a_command() {
    let test = "the_models_find_a_call_that_is_forgotten_behind_a_command";
    assert_deadlock(test, Broken::After, descriptors);
}

#[test]
fn the_models_find_news_that_are_forgotten_behind_a_command() {
    let test = "the_models_find_news_that_are_forgotten_behind_a_command";
    assert_deadlock(test, Broken::After, news_behind_a_command);
}

#[test]
fn the_models_find_a_signal_that_is_taken_too_early() {
    let test = "the_models_find_a_signal_that_is_taken_too_early";
    assert_deadlock(test, Broken::TakenEarly, datagrams);
}
