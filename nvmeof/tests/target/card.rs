//! Simulated functions behind vfio-user servers, because functions of this process cannot be parked.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::Result;
use driver::{Clock, Device, RealClock, VfioUserServer};
use udapl::fabric::{Fabric, LinkFaults, Profile, Sim, SimConfig, SimFunction, mac};
use udapl::{Ia, OpenOptions, ia_open};

/// Pairs of functions, each with a link and behind a server, in real time. The first one of a pair is a target's, and
/// the second one a host's.
pub struct Card {
    pub names: Vec<String>,
    sim: Sim,
    functions: Vec<Arc<SimFunction>>,
    threads: Vec<JoinHandle<()>>,
    is_over: Arc<AtomicBool>,
}

impl Card {
    /// Serves each function to one client.
    pub fn new(folder: &Path) -> Result<Self> {
        Self::serving(folder, 1)
    }

    /// Serves the first function to this many clients, one after the other, and the second one to one.
    pub fn serving(folder: &Path, clients: usize) -> Result<Self> {
        Self::pairs(folder, 1, clients)
    }

    /// Serves the first function of each pair to this many clients, one after the other, and the second one to one.
    pub fn pairs(folder: &Path, pairs: usize, clients: usize) -> Result<Self> {
        let sim = Sim::new(SimConfig {
            seed: 0,
            event_log: false,
        });
        sim.set_posted_writes(true);
        let sides = 0..2 * pairs;
        let functions = sides.clone().map(|side| {
            let mut profile = Profile::named(&format!("restarted{side}"), mac(side)).ethernet();
            profile.pages.init = profile.pages.init.min(64);
            sim.add_function(profile)
        });
        let functions: Vec<Arc<SimFunction>> = functions.collect();
        for pair in functions.chunks_exact(2) {
            sim.connect(&pair[0], &pair[1], LinkFaults::NONE);
        }
        let mut names = Vec::new();
        let mut threads = Vec::new();
        for (side, function) in sides.zip(&functions) {
            let path = &folder.join(format!("function{side}"));
            names.push(format!("vfio-user:{}", path.display()));
            let clients = if side % 2 == 0 { clients } else { 1 };
            let (listener, taken) = driver::listen_at(path)?;
            let device = Arc::clone(function) as Arc<dyn Device>;
            threads.push(thread::spawn(move || {
                let _taken = taken;
                let server = VfioUserServer::new(device, listener);
                for _ in 0..clients {
                    server.serve_next().expect("a client");
                }
            }));
        }
        let is_over = Arc::new(AtomicBool::new(false));
        let (over, moved) = (Arc::clone(&is_over), sim.clone());
        threads.push(thread::spawn(move || {
            let clock = RealClock::new();
            while !over.load(Ordering::Relaxed) {
                moved.advance(Duration::from_millis(1));
                clock.wait(&[], clock.now() + Duration::from_millis(1));
            }
        }));
        Ok(Self {
            names,
            sim,
            functions,
            threads,
            is_over,
        })
    }

    pub fn open(&self, side: usize) -> Result<Ia> {
        let options = OpenOptions::default().address(Fabric::ipv4(side));
        Ok(ia_open(&self.names[side], &options)?)
    }

    /// Returns the number of resets of the target's functions.
    pub fn resets(&self) -> u64 {
        let targets = self.functions.iter().step_by(2);
        targets.map(|one| self.sim.report(one).resets).sum()
    }

    /// Ends the servers. Their clients have closed the functions.
    pub fn end(self) {
        self.is_over.store(true, Ordering::Relaxed);
        for thread in self.threads {
            thread.join().expect("no panic");
        }
    }
}
