//! The card: two simulated functions, in this process or in the slots of the machine.

use core::time::Duration;
use std::io::BufRead;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

use driver::{Clock, Device, RealClock, VfioUserServer};
use hw_sim::{Fault, LinkFaults, Profile, Sim, SimConfig, SimFunction};
use udapl::fabric::mac;

use crate::support::functions;

/// The card.
pub struct Card {
    /// Names of the adapters: that of the chain and that of the peer.
    pub adapters: [String; 2],
    served: Option<Served>,
}

/// Functions of this process, each behind a vfio-user server, in real time.
struct Served {
    sim: Sim,
    functions: [Arc<SimFunction>; 2],
    threads: Vec<JoinHandle<()>>,
    over: Arc<AtomicBool>,
}

impl Card {
    /// Takes the functions that the environment names, or serves functions at sockets in the folder.
    pub fn new(folder: &Path) -> Self {
        if let Some(adapters) = functions::named() {
            return Self {
                adapters,
                served: None,
            };
        }
        let path = |side: usize| folder.join(side.to_string());
        Self {
            adapters: [0, 1].map(|side| format!("vfio-user:{}", path(side).display())),
            served: Some(Served::new(folder)),
        }
    }

    /// Returns the number of resets of the chain's function. A machine's functions are asked by the program that runs
    /// this test: it reads a line, and answers with a number.
    pub fn resets(&self) -> u64 {
        if let Some(served) = &self.served {
            return served.sim.report(&served.functions[0]).resets;
        }
        println!("resets?");
        let mut answer = String::new();
        let read = std::io::stdin().lock().read_line(&mut answer);
        read.expect("an answer");
        let number = answer.trim().parse();
        number.unwrap_or_else(|_| panic!("a number and not {answer:?}"))
    }

    /// Makes a function of this process refuse all commands.
    pub fn refuse_commands(&self, side: usize) {
        let served = self.served.as_ref().expect("functions of this process");
        let fault = Fault::CommandFailure {
            opcode: None,
            status: 0x0f,
            syndrome: 0,
            count: u32::MAX,
        };
        served.sim.inject(&served.functions[side], &fault);
    }

    /// Ends the servers. Their clients have closed the functions.
    pub fn end(self) {
        let Some(served) = self.served else {
            return;
        };
        served.over.store(true, Ordering::Relaxed);
        for thread in served.threads {
            thread.join().expect("no panic");
        }
    }
}

impl Served {
    fn new(folder: &Path) -> Self {
        let sim = Sim::new(SimConfig {
            seed: 0,
            event_log: false,
        });
        sim.set_posted_writes(true);
        let functions = [0, 1].map(|side| {
            let mut profile = Profile::named(&format!("restarted{side}"), mac(side)).ethernet();
            profile.pages.init = profile.pages.init.min(64);
            sim.add_function(profile)
        });
        sim.connect(&functions[0], &functions[1], LinkFaults::NONE);
        let mut threads = Vec::new();
        for (side, function) in functions.iter().enumerate() {
            let path = folder.join(side.to_string());
            let (listener, taken) = driver::listen_at(&path).expect("a path");
            let device = Arc::clone(function) as Arc<dyn Device>;
            threads.push(thread::spawn(move || {
                let _taken = taken;
                let served = VfioUserServer::new(device, listener).serve_next();
                served.expect("a client");
            }));
        }
        let over = Arc::new(AtomicBool::new(false));
        let (is_over, moved) = (Arc::clone(&over), sim.clone());
        threads.push(thread::spawn(move || {
            let clock = RealClock::new();
            while !is_over.load(Ordering::Relaxed) {
                moved.advance(Duration::from_millis(1));
                clock.wait(&[], clock.now() + Duration::from_millis(1));
            }
        }));
        Self {
            sim,
            functions,
            threads,
            over,
        }
    }
}
