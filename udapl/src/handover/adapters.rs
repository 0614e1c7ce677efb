//! The adapters of one handover.
//!
//! They are checked one after the other before the claim, and go on one after the other after it. The descriptors of
//! several adapters are in one list, so each name has the number of its adapter in front: `1.memory-0`. The names of a
//! single adapter stay as they are.

use dat_core::snapshot::IaSnapshot;
use dat_mlx::MlxProvider;
use driver::NamedFd;
use driver::handover::Claimed;

use super::ResumeFailure;
use crate::Ia;

/// Maximum number of adapters of a handover.
pub const MAX_ADAPTERS: usize = 32;

/// The tables of an adapter.
pub(super) type Snapshot = IaSnapshot<MlxProvider>;
/// The reason of a refusal, and the descriptors if no device has changed.
type Refused = (Option<Vec<NamedFd>>, ResumeFailure);
type Unclaimed<'a> = dat_core::UnclaimedIas<'a, MlxProvider>;

/// Makes one list of the descriptors of all adapters.
pub(super) fn join(adapters: Vec<Vec<NamedFd>>) -> Vec<NamedFd> {
    let is_single = adapters.len() == 1;
    let all = adapters.into_iter().enumerate();
    all.flat_map(|(number, fds)| {
        fds.into_iter().map(move |NamedFd { name, fd }| NamedFd {
            name: if is_single {
                name
            } else {
                format!("{number}.{name}")
            },
            fd,
        })
    })
    .collect()
}

/// Makes lists of `count` adapters of the list of all descriptors. If a name has no number of an adapter in front, the
/// error is that name, with the list.
fn split(
    descriptors: Vec<NamedFd>,
    count: usize,
) -> Result<Vec<Vec<NamedFd>>, (Vec<NamedFd>, String)> {
    if count == 1 {
        return Ok(vec![descriptors]);
    }
    let parts = |name: &str| {
        let (number, rest) = name.split_once('.')?;
        let number: usize = number.parse().ok().filter(|number| *number < count)?;
        Some((number, rest.to_owned()))
    };
    let strange = descriptors.iter().find(|one| parts(&one.name).is_none());
    if let Some(name) = strange.map(|one| one.name.clone()) {
        return Err((descriptors, name));
    }
    let mut adapters = Vec::new();
    adapters.resize_with(count, Vec::new);
    for NamedFd { name, fd } in descriptors {
        // PANIC: all names have been looked at, and each number is less than `count`.
        let (number, name) = parts(&name).expect("a number");
        adapters[number].push(NamedFd { name, fd });
    }
    Ok(adapters)
}

fn name_of(adapter: &Snapshot) -> &str {
    &adapter.adapter.limits.adapter_name
}

/// Makes the error of an adapter, with its name if there are several.
fn failure(adapters: &[Snapshot], at: usize, error: dat_core::ResumeError) -> ResumeFailure {
    match adapters {
        [] | [_] => error.into(),
        [..] => ResumeFailure::OfAdapter {
            name: name_of(&adapters[at]).to_owned(),
            error: Box::new(error),
        },
    }
}

/// Checks all adapters, as far as that changes nothing.
///
/// # Errors
/// The descriptors, and the first reason. Nothing has changed.
pub(super) fn check(
    adapters: &[Snapshot],
    descriptors: Vec<NamedFd>,
) -> Result<Vec<Unclaimed<'_>>, (Vec<NamedFd>, ResumeFailure)> {
    let mut parts = match split(descriptors, adapters.len()) {
        Ok(parts) => parts,
        Err((descriptors, name)) => return Err((descriptors, ResumeFailure::Name { name })),
    };
    let mut checked = Vec::new();
    for (at, snapshot) in adapters.iter().enumerate() {
        match Ia::check_all(snapshot, std::mem::take(&mut parts[at])) {
            Ok(unclaimed) => checked.push(unclaimed),
            Err(refused) => {
                // PANIC: a check that is refused has changed nothing, so the descriptors are there.
                parts[at] = refused.handover.expect("the descriptors");
                for (part, unclaimed) in parts.iter_mut().zip(checked) {
                    *part = unclaimed.give_back();
                }
                return Err((join(parts), failure(adapters, at, refused.error)));
            }
        }
    }
    Ok(checked)
}

/// Goes on with all adapters.
///
/// # Errors
/// The first reason, and the descriptors if no device has changed. Otherwise all adapters are closed, and the devices
/// of those that were not reached are reset.
pub(super) fn go_on(
    adapters: &[Snapshot],
    checked: Vec<Unclaimed<'_>>,
    proof: &Claimed,
) -> Result<Vec<Vec<Ia>>, Refused> {
    let mut resumed = Vec::new();
    let mut waiting = checked.into_iter();
    for at in 0..adapters.len() {
        // PANIC: there is one for each adapter.
        let unclaimed = waiting.next().expect("one for each adapter");
        match unclaimed.go_on(proof) {
            Ok(ias) => resumed.push(ias),
            Err(refused) => {
                let mut parts: Vec<_> = refused.handover.into_iter().collect();
                let is_unchanged = at == 0 && !parts.is_empty();
                parts.extend(waiting.map(Unclaimed::give_back));
                let descriptors = is_unchanged.then(|| join(parts));
                return Err((descriptors, failure(adapters, at, refused.error)));
            }
        }
    }
    Ok(resumed)
}

/// Goes on with the adapters of a list of descriptors, each for itself.
///
/// # Errors
/// As [`check`], for names.
pub(super) fn take_back_all(
    adapters: &[Snapshot],
    descriptors: Vec<NamedFd>,
) -> Result<Vec<Vec<Ia>>, (Vec<NamedFd>, ResumeFailure)> {
    match split(descriptors, adapters.len()) {
        Ok(parts) => Ok(take_back(adapters, parts)),
        Err((descriptors, name)) => Err((descriptors, ResumeFailure::Name { name })),
    }
}

/// Goes on with adapters that this process has parked, and has not handed over. An adapter that cannot go on has no
/// instances in the result: its descriptors are closed, and the kernel resets the function.
pub(super) fn take_back(adapters: &[Snapshot], parts: Vec<Vec<NamedFd>>) -> Vec<Vec<Ia>> {
    let both = adapters.iter().zip(parts);
    both.map(|(snapshot, descriptors)| {
        let ias = Ia::resume_all(snapshot, descriptors, &Claimed::by_caller());
        ias.unwrap_or_else(|refused| {
            let (error, adapter) = (&refused.error, name_of(snapshot));
            tracing::error!(adapter, %error, "instances that were not handed over cannot go on");
            Vec::new()
        })
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(names: &[&str]) -> Vec<NamedFd> {
        let all = names.iter().map(|name| NamedFd {
            name: (*name).to_owned(),
            fd: std::fs::File::open("/dev/null").unwrap().into(),
        });
        all.collect()
    }

    fn names(fds: &[NamedFd]) -> Vec<&str> {
        fds.iter().map(|one| one.name.as_str()).collect()
    }

    #[test]
    fn descriptors_of_several_adapters_have_the_number_of_theirs() {
        let joined = join(vec![named(&["lock", "memory-0"]), named(&["lock"])]);
        assert_eq!(names(&joined), ["0.lock", "0.memory-0", "1.lock"]);
        let parts = split(joined, 2).unwrap();
        assert_eq!(names(&parts[0]), ["lock", "memory-0"]);
        assert_eq!(names(&parts[1]), ["lock"]);
        let single = split(join(vec![named(&["lock"])]), 1).unwrap();
        assert_eq!(names(&single[0]), ["lock"]);
    }

    #[test]
    fn a_name_without_the_number_of_an_adapter_is_refused_with_all_descriptors() {
        for strange in ["lock", "2.lock", "-1.lock", "x.lock", ".lock"] {
            let (back, name) = split(named(&["0.lock", strange, "1.lock"]), 2).unwrap_err();
            assert_eq!((name.as_str(), back.len()), (strange, 3));
        }
    }
}
