//! How an instance will outlive its process: what of it goes into a snapshot, what is derived, and what the provider is
//! asked for. Only the lowest part exists so far: the connection manager ([`Cm::park`](crate::cm::Cm::park)), and
//! tables that keep their keys ([`table`](crate::table)).
//!
//! The order follows from the provider, whose objects can be written out at a quiet point of the device only:
//!
//! ```text
//!   the old process                                         the new process
//!     refuse by name; carry out the effects
//!     provider: begin_parking, the quiet point
//!     the adapter's state, then the instance's tables         the provider, then its objects: domains, completion
//!       domains, regions, windows, completion queues,           queues, shared receive queues, regions, windows,
//!       shared receive queues, queue pairs                      queue pairs
//!     provider: finish  ----- snapshots, descriptors ---->    tables; derived lists; the adapter's state
//!                                                             provider: finish_resuming
//!                                                             all datagrams, then timers, then completions
//! ```
//!
//! # Refused by name, before anything changes
//!
//! - Another instance of the adapter: the provider parks a function with one.
//! - A device that is dead, or that the system wants back (`health`), and a close under way (`last_buffer_wait_left`).
//! - A thread that waits on an EVD ([`Waiter`](crate::object::evd::mode::Waiter) other than `Nobody`) or on a CNO
//!   (`Cno::waiters`): its stack cannot go over.
//! - An [`Agent`](crate::Agent) of a CNO, a watcher of the adapter, a keeper of the recorder: functions of the program.
//!   The program removes them and sets them again.
//! - Memory that another process cannot map, as the provider says of a region ([`MemType`](crate::MemType) does not
//!   tell lent memory from the provider's).
//!
//! # By object
//!
//! Each key is written out as its number, and each table with the keys of its empty slots, so that handles stay valid
//! and later ones are those that would have been given out. `pzs`, `psps`, `rsps`, `cnos` and `crs` are [`Table`]s.
//! `srqs`, `rmrs` and the LMRs of `Regions` become `Table`s, once the hot path is measured with it. [`Slots`] of
//! endpoints and of EVDs get the same two functions: their `free` list is written out, and the rest follows from the
//! keys.
//!
//! | object | in the snapshot | derived | from the provider |
//! |---|---|---|---|
//! | the IA | its number, `config`, `port_ups`, `contexts`, `async_evd`, `async_evds`, sums of counters (`ended`) | `attr`, `provider_attr` | limits, compared |
//! | adapter | [`CmSnapshot`], listeners with their instances, arrivals that are events or requests, `port_ups` | `connections`, by owner | |
//! | PZ | key | `users`, by counting | domain |
//! | EVD | length, flags, mode without waiter, CNO, `queue` with SRQs, counters | `streams`, `dtos`, obstacles, `timed` (0) | completion queue |
//! | CNO | key, `triggered`, `released` | `evds` from EVDs; `unarmed`: all of them | |
//! | PSP, RSP | all fields | | |
//! | CR | all fields | | |
//! | LMR | PZ, privileges, kind, contexts, address, length; whether it is retired | `bound`, `held`, `table`, `by_context` | region, memory |
//! | RMR | PZ, both bindings, counts of binds, `bound_on` | `rmrs_invalidatable` | window |
//! | SRQ | PZ, sizes, watermark, mode, `undequeued`, `full` | `users`, `recv_evds`, `unwanted`, from endpoints | receive queue |
//! | EP | [`Setup`], state and its causes, connection, both ends, path, private data, binds, keep-alive, watermarks, counters | `hot`, `bounds`, lists of watched EVDs, `keep_alives`, `marked`, `conns` | queue pair |
//!
//! [`CmSnapshot`]: crate::cm::CmSnapshot
//! [`Table`]: crate::table::Table
//! [`Slots`]: crate::slots::Slots
//! [`Setup`]: crate::object::ep::Setup
//!
//! Not carried: the recorder, latencies, samples and the text of the last device error, which are of the process;
//! questions of observers, who ask again; effects, which are carried out before.
//!
//! # What must be checked
//!
//! Every key of a snapshot names an object of the same snapshot, or one that was freed where the field allows it (the
//! EVD of a triggered CNO, the listener of a CR, the LMR that another one was made from). Cookies are the program's
//! words and are not interpreted. Of the connection manager: each [`owner`](crate::cm::ConnSnapshot::owner) is the
//! instance or none, each connection of an endpoint or CR exists and is its only one, and the queue pair of an endpoint
//! is the one of its connection. An endpoint in CONNECTED has a queue pair that the device shows in RTS; if it shows
//! ERR, the connection broke meanwhile, and the endpoint is treated as after the event that reported it.
//!
//! The number of the IA is in every handle. So `NEXT_IA` is raised above it, and a number that an IA of this process
//! has is refused.
//!
//! # After the resumption
//!
//! `progress` takes 64 datagrams and then handles timers. After a gap there may be as many as QP1 has receives, so
//! datagrams are taken until none is left before timers are handled for the first time: an attempt whose answer has
//! arrived would otherwise be given up. All EVDs count as unarmed, all lists of watched EVDs are polled, and the
//! addresses and the state of the port are asked for, because their events may have been lost.
//!
//! # What a provider implements
//!
//! ```text
//! /// A provider whose device goes on while no process drives it.
//! pub trait Park: Provider {
//!     /// The device at its quiet point.
//!     type Parking;
//!     /// The device and all that is not one of the objects below.
//!     type Snapshot: Clone + PartialEq + Eq + Debug;
//!     /// Descriptors that go to the other process.
//!     type Descriptors;
//!     type CqSnapshot: Clone + PartialEq + Eq + Debug;
//!     // ... and so for Qp, Srq, Pd, Region (with its Memory), Window.
//!
//!     /// Refuses by name, and gives the provider back unchanged.
//!     fn begin_parking(self) -> Result<Self::Parking, (Self, ParkError)>;
//!     /// Objects are consumed, and the device keeps them.
//!     fn park_cq(at: &Self::Parking, cq: Self::Cq) -> Self::CqSnapshot;
//!     fn park_region(at: &Self::Parking, region: Self::Region, memory: Self::Memory) -> Self::RegionSnapshot;
//!     /// Gives up the device. Refused: the parking can be finished again, or cancelled.
//!     fn finish(at: Self::Parking)
//!         -> Result<(Self::Snapshot, Self::Descriptors), (Self::Parking, ParkError)>;
//!     fn cancel(at: Self::Parking) -> Result<Self, (Self::Parking, ResumeError)>;
//!
//!     fn resume(snapshot: &Self::Snapshot, given: Self::Descriptors)
//!         -> Result<Self, (Self::Descriptors, ResumeError)>;
//!     /// Completions that came meanwhile are in the queue. `owner` is the one with which it was created.
//!     fn resume_cq(&mut self, snapshot: &Self::CqSnapshot, owner: u32) -> Result<Self::Cq, ResumeError>;
//!     // ... and so for the other objects; a queue pair names its completion queues, as in `create_qp`.
//!     /// Frees what no object has claimed. Refused if the device has objects that were not resumed.
//!     fn finish_resuming(&mut self) -> Result<(), ResumeError>;
//! }
//! ```
