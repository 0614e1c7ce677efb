//! Reservations that outlive their process ([`crate::model::parking`]).

use super::{REGISTRANTS, REGISTRANTS_OF_A_NAME, Reservations};
use crate::model::refusal::ModelResumeError as Error;
use crate::model::snapshot::{RegistrantSnapshot, ReservationsSnapshot};
use crate::nvme::Nqn;

impl Reservations {
    /// Writes the reservation and its registrants out.
    pub(in crate::model) fn park(&self) -> ReservationsSnapshot {
        // Each registrant has a name, because the model registers by `step_of` alone.
        let registrants = self.names.iter().filter_map(|(host, name)| {
            let key = *self.keys.get(host)?;
            Some(RegistrantSnapshot {
                host_id: *host,
                key,
                name: name.to_string(),
            })
        });
        ReservationsSnapshot {
            generation: self.generation,
            registrants: registrants.collect(),
            held: self.held,
        }
    }

    /// Goes on with a parked reservation and its registrants. `of` is the namespace, for errors.
    pub(in crate::model) fn resume(of: &str, parked: &ReservationsSnapshot) -> Result<Self, Error> {
        // CAST: lengths, widening.
        let (count, most) = (parked.registrants.len() as u64, REGISTRANTS as u64);
        Error::check_range(of, [("registrants", count, most)])?;
        let mut all = Self {
            generation: parked.generation,
            held: parked.held,
            ..Self::default()
        };
        for one in &parked.registrants {
            let name = Nqn::of_host(&one.name, false)
                .map_err(|error| Error::snapshot(of, format!("name of a registrant: {error}")))?;
            let same = all.names.values().filter(|other| **other == name).count();
            let what = format!("{name} has more than {REGISTRANTS_OF_A_NAME} registrants");
            Error::check(same < REGISTRANTS_OF_A_NAME, of, what)?;
            all.names.insert(one.host_id, name);
            let is_new = all.keys.insert(one.host_id, one.key).is_none();
            let what = format!("registrant {:02x?} is there twice", one.host_id);
            Error::check(is_new, of, what)?;
        }
        if let Some((holder, kind)) = all.held {
            // Each registrant holds a reservation of all registrants, also if the host that acquired it has gone.
            let has_holder = if kind.is_of_all() {
                !all.keys.is_empty()
            } else {
                all.keys.contains_key(&holder)
            };
            let what = format!("the holder {holder:02x?} is no registrant");
            Error::check(has_holder, of, what)?;
        }
        Ok(all)
    }
}
