//! A controller that others have made: that of QEMU, through a stock kernel's VFIO and an IOMMU. `cargo xtask vm test`
//! has one, and names it in an environment variable. Without the variable, the test does nothing.

use std::time::Duration;

use driver::Clock;
use driver::{DmaBuffer, Function, Instant, RealClock};
use hw_nvme::{Cause, Config, Controller, Ended, QueuePair, block_command, command, opcode};
use nvme_types::Status;

use crate::whole;

/// PCI address of the function.
const FUNCTION: &str = "NVME_TEST_FUNCTION";
/// Number of I/Os.
const IOS: &str = "NVME_TEST_IOS";
const NSID: u32 = 1;
const QUEUES: usize = 2;
/// Number of commands of a queue at a time.
const DEPTH: usize = 16;
/// Longest I/O in blocks.
const LONGEST: u64 = 64;
const SLOT: usize = 40 << 10;
const LIMIT: Duration = Duration::from_secs(60);

/// A generator of numbers that is the same in each run (xorshift64).
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }
}

/// An I/O under way.
struct Io {
    is_write: bool,
    first: u64,
    blocks: u64,
    data: DmaBuffer,
    /// Content of the blocks after a write.
    seed: u64,
}

/// The disk, and what its blocks must contain: a number for each.
struct Disk {
    queues: Vec<QueuePair>,
    contents: Vec<u64>,
    under_way: Vec<Option<Io>>,
    memory: DmaBuffer,
    numbers: Numbers,
    block: usize,
    done: u64,
}

fn now() -> Instant {
    RealClock::new().now()
}

/// Bytes of a block: its number and what was written last, again and again.
fn fill(data: &DmaBuffer, at: usize, block: usize, number: u64, content: u64) {
    for word in 0..block / 16 {
        data.write_obj(at + 16 * word, &[number, content]);
    }
}

impl Disk {
    fn new(controller: &mut Controller) -> Self {
        let namespace = controller.namespace(NSID).expect("it is active");
        let block = usize::try_from(namespace.block_bytes).expect("small");
        let queues: Vec<QueuePair> = (0..QUEUES)
            .map(|_| controller.create_queue().expect("a queue"))
            .collect();
        let places = QUEUES * DEPTH;
        let memory = controller.arena().alloc(places * SLOT, 4096);
        Self {
            queues,
            contents: vec![0; usize::try_from(namespace.blocks).expect("small")],
            under_way: (0..places).map(|_| None).collect(),
            memory: memory.expect("memory"),
            numbers: Numbers(0x9e37_79b9_7f4a_7c15),
            block,
            done: 0,
        }
    }

    /// Begins an I/O at a random place that no other one has.
    fn begin(&mut self, place: usize) {
        let count = self.contents.len() as u64;
        let blocks = 1 + self.numbers.below(LONGEST);
        let first = self.numbers.below(count - blocks);
        let overlaps = |io: &Io| first < io.first + io.blocks && io.first < first + blocks;
        if self.under_way.iter().flatten().any(overlaps) {
            return;
        }
        let is_write = self.numbers.below(2) == 0;
        let bytes = usize::try_from(blocks).expect("small") * self.block;
        // Anywhere in the first page, at a multiple of 4.
        let offset = usize::try_from(self.numbers.below(1024)).expect("small") * 4;
        let data = self.memory.part(place * SLOT + offset, bytes);
        let seed = self.numbers.below(u64::MAX);
        for at in 0..blocks {
            let offset = usize::try_from(at).expect("small") * self.block;
            let content = if is_write { seed } else { !0 };
            fill(&data, offset, self.block, first + at, content);
        }
        let opcode = if is_write {
            opcode::WRITE
        } else {
            opcode::READ
        };
        let length = u32::try_from(blocks).expect("small");
        let sqe = block_command(opcode, NSID, first, length, seed.is_multiple_of(8));
        let queue = &mut self.queues[place / DEPTH];
        let submitted = queue.submit(sqe, &[whole(&data)], place as u64, now());
        submitted.expect("room");
        self.under_way[place] = Some(Io {
            is_write,
            first,
            blocks,
            data,
            seed,
        });
    }

    /// Checks an I/O that has ended.
    fn ended(&mut self, ended: Ended) {
        assert_eq!(ended.status, Status::SUCCESS);
        let place = usize::try_from(ended.cookie).expect("small");
        let io = self.under_way[place].take().expect("it ends once");
        for at in 0..io.blocks {
            let number = usize::try_from(io.first + at).expect("small");
            if io.is_write {
                self.contents[number] = io.seed;
                continue;
            }
            let offset = usize::try_from(at).expect("small") * self.block;
            let wanted = match self.contents[number] {
                0 => [0, 0],
                content => [io.first + at, content],
            };
            for word in [0, self.block / 16 - 1] {
                let found: [u64; 2] = io.data.read_obj(offset + 16 * word);
                assert_eq!(found, wanted, "block {number}");
            }
        }
        self.done += 1;
    }

    /// Keeps I/Os under way until so many are done.
    fn run(&mut self, controller: &Controller, count: u64) {
        let mut places = [Ended::NONE; DEPTH];
        while self.done < count {
            for place in 0..self.under_way.len() {
                if self.under_way[place].is_none() {
                    self.begin(place);
                }
            }
            for at in 0..self.queues.len() {
                self.queues[at].ring();
                let taken = self.queues[at].poll(&mut places).expect("possible");
                places[..taken].iter().for_each(|one| self.ended(*one));
                let late = controller.check_time(&self.queues[at], now(), LIMIT);
                assert_eq!(late, None);
            }
        }
    }
}

fn opened(function: Function, has_interrupts: bool) -> Controller {
    let config = Config {
        queues: u16::try_from(QUEUES).expect("small"),
        entries: 32,
        has_interrupts,
        ..Config::default()
    };
    Controller::open(function, config).expect("it opens")
}

/// Rings, and waits for the answer of the only command.
fn answer(controller: &Controller, queue: &mut QueuePair) -> Status {
    queue.ring();
    let mut place = [Ended::NONE];
    while queue.poll(&mut place).expect("possible") == 0 {
        assert_eq!(controller.check_time(queue, now(), LIMIT), None);
    }
    place[0].status
}

/// Waits for a command by the queue's interrupt.
fn flushed(queue: &mut QueuePair) {
    let flush = command(opcode::FLUSH, NSID);
    queue.submit(flush, &[], 0, now()).expect("room");
    queue.ring();
    let until = now() + LIMIT;
    let interrupts = [queue.interrupt().expect("its vector").clone()];
    let mut place = [Ended::NONE];
    while queue.poll(&mut place).expect("possible") == 0 {
        assert!(RealClock::new().wait(&interrupts, until), "an interrupt");
        let _signals = interrupts[0].take();
    }
    assert_eq!(place[0].status, Status::SUCCESS);
}

#[test]
fn random_ios_on_the_controller_of_the_machine_are_what_was_written() {
    let Ok(name) = std::env::var(FUNCTION) else {
        println!("skipped: {FUNCTION} names no function");
        return;
    };
    let ios = std::env::var(IOS).map_or(20_000, |text| text.parse().expect("a number"));
    let mut controller = opened(Function::vfio(&name).expect("a function"), true);
    println!("{:?}", controller.identity());
    assert_eq!(controller.namespaces().expect("a list"), [NSID]);
    let mut disk = Disk::new(&mut controller);
    flushed(&mut disk.queues[0]);
    disk.run(&controller, ios / 2);

    // Blocks beyond the end.
    let outside = disk.contents.len() as u64;
    let mut other = disk.queues.pop().expect("a queue");
    other.ring();
    while other.outstanding() > 0 {
        let mut places = [Ended::NONE; DEPTH];
        let taken = other.poll(&mut places).expect("possible");
        places[..taken].iter().for_each(|one| disk.ended(*one));
        assert_eq!(controller.check_time(&other, now(), LIMIT), None);
    }
    let data = disk.memory.part(0, disk.block);
    let read = block_command(opcode::READ, NSID, outside, 1, false);
    other.submit(read, &[whole(&data)], 1, now()).expect("room");
    assert_eq!(answer(&controller, &mut other), Status::LBA_RANGE.dnr());
    disk.queues.push(other);

    // A stop with commands under way, and another opening of the same function.
    disk.run(&controller, disk.done + 100);
    for place in 0..disk.under_way.len() {
        if disk.under_way[place].is_none() {
            disk.begin(place);
        }
    }
    disk.queues.iter_mut().for_each(QueuePair::ring);
    let left: usize = disk.queues.iter().map(QueuePair::outstanding).sum();
    assert!(left > 0);
    let queues = std::mem::take(&mut disk.queues);
    let (function, drained) = controller.stop(queues).expect("it stops");
    assert_eq!(drained.iter().map(Vec::len).sum::<usize>(), left);
    // Writes that had no answer may have been carried out or not.
    let mut unknown = Vec::new();
    for io in disk.under_way.iter_mut().filter_map(Option::take) {
        unknown.extend((io.first..io.first + io.blocks).filter(|_| io.is_write));
    }
    // From here on the controller reaches this memory no more, which is checked at the end.
    let (abandoned, mark) = (disk.memory, vec![0xa5; SLOT]);
    for at in (0..abandoned.len()).step_by(SLOT) {
        let bytes = SLOT.min(abandoned.len() - at);
        abandoned.write_bytes(at, &mark[..bytes]);
    }
    let mut controller = opened(function, true);
    let mut again = Disk::new(&mut controller);
    again.contents = disk.contents;
    // Interrupts work after the reset, too.
    flushed(&mut again.queues[1]);
    for number in unknown {
        let data = again.memory.part(0, again.block);
        fill(&data, 0, again.block, number, 7);
        let write = block_command(opcode::WRITE, NSID, number, 1, false);
        let queue = &mut again.queues[0];
        queue
            .submit(write, &[whole(&data)], 1, now())
            .expect("room");
        assert_eq!(answer(&controller, queue), Status::SUCCESS);
        again.contents[usize::try_from(number).expect("small")] = 7;
    }
    again.run(&controller, ios / 2);
    assert_eq!(controller.check(), None::<Cause>);
    let mut left = vec![0; SLOT];
    for at in (0..abandoned.len()).step_by(SLOT) {
        let bytes = SLOT.min(abandoned.len() - at);
        abandoned.read_bytes(at, &mut left[..bytes]);
        assert_eq!(
            left[..bytes],
            mark[..bytes],
            "written after the stop, at {at}"
        );
    }

    // A third opening, which only polls.
    let (function, _unanswered) = controller.stop(again.queues).expect("it stops");
    let mut controller = opened(function, false);
    let mut queue = controller.create_queue().expect("a queue");
    assert!(queue.interrupt().is_none());
    let flush = command(opcode::FLUSH, NSID);
    queue.submit(flush, &[], 1, now()).expect("room");
    assert_eq!(answer(&controller, &mut queue), Status::SUCCESS);
    println!("{} I/Os compared on {name}", disk.done + again.done);
}
