//! Simulated functions by name, `sim:A`: the fabric of this process, and actions on it such as pulling a cable.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::path::PathBuf;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError, Weak};

use driver::{Device, Function, FunctionError};
use hw_sim::{
    CardConfig, Fault, LinkFaults, LinkState, Profile, Sim, SimCard, SimConfig, SimFunction,
    VfSettings,
};
use hw_sim_host::mac;
use hw_sim_host::profile::{BadProfile, profile};
use hw_sim_host::timed::{Moved, Mover, Timed};

use super::capture::{capture, other_capture};
use super::{OpenError, OpenOptions, Simulated, bring_up, in_process};
use crate::Ia;
use crate::name::OnCard;
use crate::wired::{Wired, WiredFunction};

/// Number of virtual functions of a card.
const VIRTUAL_FUNCTIONS: u16 = 8;

/// The simulated functions of this process. They keep their number, MAC and link for the life of the process, so that a
/// name always means the same function. A function that no adapter has open holds no descriptor.
pub(super) struct Fabric {
    /// Functions with real time.
    real: Linked,
    /// Functions with virtual time.
    virtual_time: Linked,
    /// Functions whose wire leads to another process, each in a simulation of its own.
    wired: BTreeMap<String, KnownWired>,
}

/// Functions linked within this process.
struct Linked {
    /// Simulation of the first two cards, which are linked.
    world: World,
    /// Cards by name; a single function counts as a card.
    cards: BTreeMap<String, Known>,
}

/// A simulation, with one card or two linked ones.
struct World {
    sim: Sim,
    /// Registration with the thread that advances the simulation's time. It exists while the time is real and a
    /// function of the simulation is open.
    moved: Weak<Moved>,
    /// File of the latest capture of the simulation.
    captured: Option<PathBuf>,
}

impl World {
    fn new() -> Self {
        Self {
            sim: unlinked_sim(),
            moved: Weak::new(),
            captured: None,
        }
    }
}

/// A card, with its simulation.
struct Known {
    card: SimCard,
    /// The card's own simulation. `None` for the first two cards, which are in `Linked::world`.
    apart: Option<World>,
}

impl Linked {
    fn new() -> Self {
        Self {
            world: World::new(),
            cards: BTreeMap::new(),
        }
    }

    /// Returns the simulation of a card.
    fn world(&mut self, card: &str) -> &mut World {
        let apart = self.cards.get_mut(card).and_then(|it| it.apart.as_mut());
        apart.unwrap_or(&mut self.world)
    }

    /// Makes the time of a card's simulation advance, until the returned value is dropped.
    fn moved(&mut self, card: &str) -> std::io::Result<Arc<Moved>> {
        /// The one thread that advances the time of all simulations.
        static MOVER: Mutex<Weak<Mover>> = Mutex::new(Weak::new());
        let World { sim, moved, .. } = self.world(card);
        if let Some(moved) = moved.upgrade() {
            return Ok(moved);
        }
        let made = Moved::by(&MOVER, sim)?;
        *moved = Arc::downgrade(&made);
        Ok(made)
    }
}

/// A function on a wire. The function exists while an adapter has it open; its properties are kept after that.
struct KnownWired {
    path: PathBuf,
    mac: [u8; 6],
    function: Weak<WiredFunction>,
    /// File of the capture of the function's wire.
    captured: Option<PathBuf>,
}

fn unlinked_sim() -> Sim {
    Sim::new(SimConfig {
        seed: 0,
        event_log: false,
    })
}

/// The fabric of `sim:` names.
static FABRIC: LazyLock<Mutex<Fabric>> = LazyLock::new(|| {
    Mutex::new(Fabric {
        real: Linked::new(),
        virtual_time: Linked::new(),
        wired: BTreeMap::new(),
    })
});

/// Opens the function of a `sim:` name. While the returned fabric lock is held, no other thread opens a function of a
/// `sim:` name.
pub(super) fn reach(
    name: &str,
    simulated: &str,
    options: &OpenOptions,
) -> Result<(Function, MutexGuard<'static, Fabric>), OpenError> {
    let (card, place) = crate::name::on_card(simulated);
    let mut fabric = FABRIC.lock().unwrap_or_else(PoisonError::into_inner);
    let Fabric {
        real,
        virtual_time,
        wired,
    } = &mut *fabric;
    let is_virtual = options.simulated.virtual_time;
    let linked = if is_virtual { virtual_time } else { real };
    let Linked { world, cards } = linked;
    let sim = &world.sim;
    let number = cards.len();
    if is_virtual && options.simulated.link.is_some() {
        return Err(OpenError::BadOption {
            name: name.to_owned(),
            option: "time=virtual with link".to_owned(),
            why: "the process at the other end of a link lives in the machine's time".to_owned(),
        });
    }
    if options.simulated.link.is_some() && options.simulated.mac.is_none() {
        // The other process would use the same default MAC: it numbers its functions from 0, too.
        return Err(OpenError::BadOption {
            name: name.to_owned(),
            option: "link without mac".to_owned(),
            why:
                "link needs mac=MAC, since the other process gives the MACs of this one to its own"
                    .to_owned(),
        });
    }
    let own_mac = options.simulated.mac.unwrap_or(mac(number));
    if let Some(path) = &options.simulated.link {
        let link = |error| OpenError::Link {
            name: name.to_owned(),
            path: path.clone(),
            error,
        };
        let known = wired.get(simulated);
        if let Some(known) = known
            && known.path != *path
        {
            let there = format!("its wire leads to {} already", known.path.display());
            return Err(link(std::io::Error::new(
                std::io::ErrorKind::AlreadyExists,
                there,
            )));
        }
        if let Some((known, function)) =
            known.and_then(|known| Some((known, known.function.upgrade()?)))
        {
            if let Some(asked) = &options.simulated.pcap
                && known.captured.as_ref() != Some(asked)
            {
                return Err(other_capture(name, asked, known.captured.as_deref()));
            }
            return Ok((driven(function, 0, options)?, fabric));
        }
        let mac = known.map_or(own_mac, |known| known.mac);
        let kind = kind_of(name, mac, &options.simulated)?;
        let (function, sim) = Wired::lay(kind, path).map_err(link)?;
        let (asked, mut captured) = (options.simulated.pcap.as_ref(), None);
        capture(name, asked, &mut captured, &sim, false)?;
        let laid = KnownWired {
            captured,
            path: path.clone(),
            mac,
            function: Arc::downgrade(&function),
        };
        wired.insert(simulated.to_owned(), laid);
        return Ok((driven(function, 0, options)?, fabric));
    }
    let virtual_functions = match place {
        OnCard::Alone => 0,
        OnCard::Physical | OnCard::Virtual(_) => VIRTUAL_FUNCTIONS,
    };
    let function = match (cards.get(card), place) {
        (Some(known), _) if known.card.virtual_functions() != usize::from(virtual_functions) => {
            return Err(OpenError::OtherKind {
                name: name.to_owned(),
                card: card.to_owned(),
                there: if known.card.virtual_functions() == 0 {
                    "a function by itself"
                } else {
                    "a card"
                },
            });
        }
        (_, OnCard::Virtual(index)) if index >= usize::from(virtual_functions) => {
            return Err(OpenError::NotFound {
                name: name.to_owned(),
            });
        }
        (known, _) => {
            let is_new = known.is_none();
            // If the name means a virtual function, the MAC of the options is not the MAC of the card.
            let physical = match place {
                OnCard::Virtual(_) => mac(number),
                OnCard::Alone | OnCard::Physical => own_mac,
            };
            let kind = kind_of(&format!("sim:{card}"), physical, &options.simulated)?;
            if virtual_functions > 0 && kind.virtual_functions.is_none() {
                return Err(OpenError::Profile {
                    name: name.to_owned(),
                    profile: kind.generation,
                    error: Box::new(BadProfile::NoVirtualFunctions),
                });
            }
            // The first two cards are linked. Every other card is unlinked, and has a simulation and a time of its own.
            let apart = (number >= 2).then(World::new);
            let made = match cards.entry(card.to_owned()) {
                Entry::Occupied(known) => known.into_mut(),
                Entry::Vacant(place) => {
                    let sim = apart.as_ref().map_or(sim, |world| &world.sim);
                    let made = sim.try_add_card(&CardConfig::new(kind, virtual_functions));
                    let made = made.map_err(|error| OpenError::Function {
                        name: name.to_owned(),
                        error: FunctionError::Memory {
                            name: format!("sim:{card}"),
                            error,
                        },
                    })?;
                    place.insert(Known { card: made, apart })
                }
            };
            let function = function_of(&made.card, place, options.simulated.mac);
            if let [one, other] = &cards.values().collect::<Vec<_>>()[..]
                && is_new
            {
                let ends = [one, other].map(|known| known.card.physical());
                sim.connect(&ends[0], &ends[1], LinkFaults::default());
            }
            function.ok_or_else(|| OpenError::NotFound {
                name: name.to_owned(),
            })?
        }
    };
    unused(&function, 1)?;
    let World { sim, captured, .. } = linked.world(card);
    let pcap = options.simulated.pcap.as_ref();
    capture(name, pcap, captured, sim, is_virtual)?;
    // The table holds one handle of the function. The returned guard keeps the table locked; without it, two concurrent
    // opens would count each other's handles.
    if is_virtual {
        return Ok((driven(function, 1, options)?, fabric));
    }
    let moved = linked.moved(card).map_err(|error| OpenError::Thread {
        name: name.to_owned(),
        error,
    })?;
    Ok((driven(Timed::before(function, moved), 0, options)?, fabric))
}

/// Actions on a simulated function of this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SimAction {
    /// Link down (false) or up (true). For a virtual function the administrator disables its link, or lets it follow
    /// the wire again. For any other function the cable is pulled or plugged in.
    Link(bool),
    /// Resets the function, even while it is open.
    Reset,
    /// The system requests the function back from its driver.
    WantBack,
}

/// Performs an action on a simulated function of this process that an adapter was opened with. On a real function a
/// person does the same at the cable or through sysfs. If the name is known in real and in virtual time, the action is
/// on the function with real time. Returns false if there is no such function, or if its wire leads to another process
/// (`link=`).
pub fn simulate(name: &str, action: SimAction) -> bool {
    let fabric = FABRIC.lock().unwrap_or_else(PoisonError::into_inner);
    let device = name.split(',').next().unwrap_or(name);
    let Some((card, place)) = device.strip_prefix("sim:").map(crate::name::on_card) else {
        return false;
    };
    let known = [&fabric.real, &fabric.virtual_time]
        .into_iter()
        .find_map(|linked| Some((linked, linked.cards.get(card)?)));
    let Some((linked, known)) = known else {
        return false;
    };
    let sim = known
        .apart
        .as_ref()
        .map_or(&linked.world.sim, |world| &world.sim);
    let card = &known.card;
    let Some(function) = function_of(card, place, None) else {
        return false;
    };
    match (action, place) {
        (SimAction::Link(up), OnCard::Virtual(index)) => {
            let Some(before) = card.vf(index) else {
                return false;
            };
            let state = if up {
                LinkState::Follow
            } else {
                LinkState::Down
            };
            return card.set_vf(index, VfSettings { state, ..before });
        }
        (SimAction::Link(true), OnCard::Alone | OnCard::Physical) => {
            sim.inject(&function, &Fault::LinkUp);
        }
        (SimAction::Link(false), OnCard::Alone | OnCard::Physical) => {
            sim.inject(&function, &Fault::LinkDown);
        }
        (SimAction::Reset, _) => function.reset(),
        (SimAction::WantBack, _) => sim.inject(&function, &Fault::WantedBack),
    }
    true
}

/// Returns a function of a card. If `mac` is given, assigns it to a virtual function before.
fn function_of(card: &SimCard, place: OnCard, mac: Option<[u8; 6]>) -> Option<Arc<SimFunction>> {
    let OnCard::Virtual(index) = place else {
        return Some(card.physical());
    };
    if mac.is_some() {
        let before = card.vf(index)?;
        card.set_vf(index, VfSettings { mac, ..before });
    }
    card.virtual_function(index)
}

/// Returns the profile for a simulated function of that name.
fn kind_of(name: &str, mac: [u8; 6], simulated: &Simulated) -> Result<Profile, OpenError> {
    let Some(wanted) = &simulated.profile else {
        // The function has Ethernet queues, as every card has. The driver uses them to resolve addresses.
        return Ok(Profile::named(name, mac).ethernet());
    };
    profile(wanted)
        .map(|kind| kind.called(name, mac))
        .map_err(|error| OpenError::Profile {
            name: name.to_owned(),
            profile: wanted.clone(),
            error: Box::new(error),
        })
}

/// Opens a simulated function. `kept` is the number of the function's handles besides `function` that belong to no
/// driver. If there are more handles, the function has a driver already, and the open fails.
pub(crate) fn open_function(
    function: Arc<SimFunction>,
    kept: usize,
    options: &OpenOptions,
) -> Result<Ia, OpenError> {
    open_device(function, kept, options)
}

/// Opens a function of a device in this process, simulated or not. `kept` is as for [`open_function`].
pub(crate) fn open_device<D: Device + 'static>(
    function: Arc<D>,
    kept: usize,
    options: &OpenOptions,
) -> Result<Ia, OpenError> {
    bring_up(driven(function, kept, options)?, options)
}

/// Fails if the function has a driver, that is, if it has more handles than `kept` and this one.
fn unused<D: Device>(function: &Arc<D>, kept: usize) -> Result<(), OpenError> {
    if Arc::strong_count(function) > kept + 1 {
        return Err(OpenError::InUse {
            name: function.name().to_owned(),
        });
    }
    Ok(())
}

/// Wraps a device that has no driver yet as a function.
fn driven<D: Device + 'static>(
    function: Arc<D>,
    kept: usize,
    options: &OpenOptions,
) -> Result<Function, OpenError> {
    unused(&function, kept)?;
    in_process(function, options)
}
