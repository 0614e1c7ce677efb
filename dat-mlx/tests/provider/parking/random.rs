//! Random calls on two connected nodes, of which one is parked at random moments.

use hw_mlx::random::Random;

use super::*;

/// Number of calls of a run.
const STEPS: usize = 120;

/// The messages of one direction, by number. Slots are used in turn.
#[derive(Default, Debug)]
struct Direction {
    /// Messages posted, and their completions.
    sent: u32,
    sends_done: u32,
    /// Receives posted, and their completions.
    posted: u32,
    received: u32,
}

/// A world with a connection, and all that was posted.
struct Run {
    world: World,
    nodes: [Node; 2],
    /// Messages from the first node to the second, and back.
    directions: [Direction; 2],
    is_stopped: bool,
    random: Random,
    text: String,
}

impl Run {
    fn new(seed: u64) -> Self {
        let world = World::new();
        let mut random = Random::new(Some(seed)).expect("seeded");
        let first = world.open(1);
        let mut nodes = [
            if random.number().is_multiple_of(2) {
                Node::new(first)
            } else {
                Node::with_srq(first)
            },
            Node::new(world.open(2)),
        ];
        let [a, b] = &mut nodes;
        connect(a, b);
        Self {
            world,
            nodes,
            directions: [Direction::default(), Direction::default()],
            is_stopped: false,
            random,
            text: format!("seed {seed}"),
        }
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.random.number() % limit
    }

    fn send(&mut self, from: usize) {
        let direction = &mut self.directions[from];
        if direction.sent - direction.sends_done < SLOTS {
            let number = direction.sent;
            direction.sent += 1;
            self.nodes[from].send_as(number);
        }
    }

    fn receive(&mut self, from: usize) {
        let direction = &mut self.directions[from];
        if direction.posted - direction.received < SLOTS {
            let number = direction.posted;
            direction.posted += 1;
            self.nodes[1 - from].receive_as(number);
        }
    }

    /// Takes the completions of a node, and checks that each is the next one.
    fn poll(&mut self, at: usize) {
        for done in self.nodes[at].completions() {
            assert_eq!(done.status, DtoStatus::Success, "{}: {done:?}", self.text);
            if done.request {
                let direction = &mut self.directions[at];
                let number = u64::from(direction.sends_done);
                assert_eq!(done.cookie, number, "{}", self.text);
                direction.sends_done += 1;
            } else {
                let direction = &mut self.directions[1 - at];
                let number = direction.received;
                let slot = u32::try_from(done.cookie).expect("a number") % SLOTS;
                let bytes = self.nodes[at].read(SLOTS + slot);
                assert_eq!(bytes, pattern(number % 97), "{}", self.text);
                direction.received += 1;
            }
        }
    }

    fn stop_or_go_on(&mut self, stops: bool) {
        if self.is_stopped != stops {
            self.is_stopped = stops;
            if stops {
                self.world.stop_time();
            } else {
                self.world.go_on();
            }
        }
    }

    /// Parks the first node, and resumes it or cancels the parking.
    fn hand_over(self) -> Self {
        let Self {
            world,
            nodes: [a, b],
            directions,
            is_stopped: _,
            mut random,
            text,
        } = self;
        let cancels = random.number().is_multiple_of(3);
        let (parking, objects) = a.written_out();
        let parked = if cancels {
            Err(parking)
        } else {
            let finished = MlxProvider::finish_parking(parking);
            Ok(finished.map_err(|(_, error)| error).expect("parked"))
        };
        // Commands need time.
        world.go_on();
        let provider = match parked {
            Ok((snapshot, descriptors)) => resume(&snapshot, descriptors)
                .map_err(|(_, error)| error)
                .expect(&text),
            Err(parking) => only(
                MlxProvider::cancel_parking(parking)
                    .map_err(|(_, error)| error)
                    .expect(&text),
            ),
        };
        Self {
            nodes: [objects.resume(provider), b],
            world,
            directions,
            is_stopped: false,
            random,
            text,
        }
    }

    fn step(mut self) -> Self {
        let at = usize::from(self.below(2) == 0);
        match self.below(20) {
            0..7 => self.send(at),
            7..14 => self.receive(at),
            14..16 => self.poll(at),
            16 => self.nodes[at].things.cq.arm(false),
            17 => {
                let stops = self.below(2) == 0;
                self.stop_or_go_on(stops);
            }
            18 => self.nodes[at].provider.progress(),
            _ => return self.hand_over(),
        }
        self
    }

    /// Lets all messages arrive. The nodes sleep until events of their queues come.
    fn finish(mut self) {
        self.stop_or_go_on(false);
        loop {
            // Receives that are done make room for those that the messages need.
            [0, 1].into_iter().for_each(|at| self.poll(at));
            for from in [0, 1] {
                while self.directions[from].posted < self.directions[from].sent
                    && self.directions[from].posted - self.directions[from].received < SLOTS
                {
                    self.receive(from);
                }
            }
            let busy = [0, 1].into_iter().find(|at| {
                let [ours, theirs] = [&self.directions[*at], &self.directions[1 - *at]];
                ours.sends_done < ours.sent || theirs.received < theirs.sent
            });
            let Some(at) = busy else {
                break;
            };
            let text = self.text.clone();
            self.nodes[at].things.cq.arm(false);
            self.nodes[at].wait_for_event(&text);
        }
        assert_eq!(self.nodes[0].things.qp.0.unmatched_entries(), 0);
        let Self { world, nodes, .. } = self;
        drop(nodes);
        world.finish();
    }
}

/// Each message arrives once and in order, whenever the node is parked.
#[test]
fn messages_arrive_once_and_in_order_whenever_a_node_is_parked() {
    for seed in 0..12 {
        let mut run = Run::new(seed);
        let before = run.world.resets();
        for _ in 0..STEPS {
            run = run.step();
        }
        assert_eq!(run.world.resets(), before, "seed {seed}");
        run.finish();
    }
}
