//! Numbered objects: who exists, who refers to whom, and which number comes next.
//!
//! A table hands out numbers from a range. Numbers are not dense (a driver that assumes 0, 1, 2 …
//! is found out) and a freed number comes back as late as possible: the cursor walks the whole
//! range with a stride that is coprime to it before it meets a number again.
//!
//! References are counted per object. Whoever creates a referrer calls [`Table::hold`] on what it
//! names and [`Table::release`] when it goes; [`Table::remove`] refuses while the count is not
//! zero. The tables know nothing of commands: the caller turns [`TableError`] into a status.
//!
//! An object belongs to the user context on whose behalf it was created ([`Table::act_for`]); to others it is as if it
//! did not exist. The driver itself, [`DRIVER`], sees everything, and everybody sees what is [`SHARED`]. What the
//! function does by itself looks objects up with [`Table::get`], which asks nobody's leave; a command does so with
//! [`Table::named`].

use std::collections::BTreeMap;

/// The owner of what was created without a user context: the driver itself.
pub const DRIVER: u16 = 0;
/// The owner of what all user contexts may name, made by the driver itself: event queues and counter sets that Linux
/// shares (`MLX5_SHARED_RESOURCE_UID`).
pub const SHARED: u16 = 0xffff;

/// Why a table refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TableError {
    /// No object has this number.
    Unknown,
    /// The object is referred to this many times.
    Referenced(u32),
    /// Every number the function may use is in use.
    Full,
}

#[derive(Clone, Debug)]
struct Entry<T> {
    value: T,
    references: u32,
    owner: u16,
}

/// The objects of one kind.
#[derive(Clone, Debug)]
pub struct Table<T> {
    kind: &'static str,
    entries: BTreeMap<u32, Entry<T>>,
    first: u32,
    span: u32,
    limit: u32,
    stride: u32,
    cursor: u32,
    acting: u16,
}

impl<T> Table<T> {
    /// A table named `kind` (for reports) whose numbers lie in `first..=last`, holding at most
    /// `limit` objects.
    ///
    /// # Panics
    /// The number range is empty, or `limit` is 0.
    pub fn new(kind: &'static str, first: u32, last: u32, limit: u32) -> Self {
        assert!(first <= last && limit > 0, "{kind}: empty number range");
        let span = last - first + 1;
        Self {
            kind,
            entries: BTreeMap::new(),
            first,
            span,
            limit: limit.min(span),
            stride: stride_of(span),
            cursor: 0,
            acting: DRIVER,
        }
    }

    /// What the objects are called.
    pub fn kind(&self) -> &'static str {
        self.kind
    }

    /// How many objects exist.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether none exists.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Changes how many objects may exist (a capability was set); objects beyond it stay.
    pub fn set_limit(&mut self, limit: u32) {
        self.limit = limit.clamp(1, self.span);
    }

    /// Takes the next number without creating anything yet.
    ///
    /// # Errors
    /// [`TableError::Full`].
    pub fn reserve(&mut self) -> Result<u32, TableError> {
        if self.entries.len() >= self.limit as usize {
            return Err(TableError::Full);
        }
        loop {
            let number = self.first + self.cursor;
            let left = self.span - self.cursor;
            self.cursor = if self.stride >= left {
                self.stride - left
            } else {
                self.cursor + self.stride
            };
            if !self.entries.contains_key(&number) {
                return Ok(number);
            }
        }
    }

    /// The next number is the first one again.
    pub fn count_anew(&mut self) {
        self.cursor = 0;
    }

    /// Creates an object under a number from [`Table::reserve`].
    ///
    /// # Panics
    /// An object has this number.
    pub fn insert(&mut self, number: u32, value: T) {
        let old = self.entries.insert(
            number,
            Entry {
                value,
                references: 0,
                owner: self.acting,
            },
        );
        assert!(old.is_none(), "{} {number:#x} created twice", self.kind);
    }

    /// Creates an object under the next number.
    ///
    /// # Errors
    /// [`TableError::Full`].
    pub fn create(&mut self, value: T) -> Result<u32, TableError> {
        let number = self.reserve()?;
        self.insert(number, value);
        Ok(number)
    }

    /// Whose commands follow. What is created from here on is theirs.
    pub fn act_for(&mut self, owner: u16) {
        self.acting = owner;
    }

    /// What somebody owns: the kind, and the number of each.
    pub fn owned_by(&self, owner: u16) -> impl Iterator<Item = (&'static str, u32)> {
        self.entries
            .iter()
            .filter(move |(_, entry)| entry.owner == owner)
            .map(|(&number, _)| (self.kind, number))
    }

    /// Who owns an object.
    pub fn owner(&self, number: u32) -> Option<u16> {
        self.entries.get(&number).map(|entry| entry.owner)
    }

    /// Whether who acts may name what this owner has.
    fn reaches(&self, owner: u16) -> bool {
        matches!(self.acting, DRIVER | SHARED) || owner == self.acting || owner == SHARED
    }

    /// Whether who acts may end or clear what this owner has: what is shared is the driver's to end.
    fn governs(&self, owner: u16) -> bool {
        matches!(self.acting, DRIVER | SHARED) || owner == self.acting
    }

    /// Whether the number names an object that who acts may end or clear.
    pub fn owns(&self, number: u32) -> bool {
        let entry = self.entries.get(&number);
        entry.is_some_and(|entry| self.governs(entry.owner))
    }

    /// Whether the number names an object for who acts.
    pub fn contains(&self, number: u32) -> bool {
        self.named(number).is_some()
    }

    /// The object that a command names by that number, if who acts may.
    pub fn named(&self, number: u32) -> Option<&T> {
        let entry = self.entries.get(&number)?;
        self.reaches(entry.owner).then_some(&entry.value)
    }

    /// The object that a command names by that number, to change it.
    pub fn named_mut(&mut self, number: u32) -> Option<&mut T> {
        let owner = self.entries.get(&number)?.owner;
        match self.reaches(owner) {
            true => self.get_mut(number),
            false => None,
        }
    }

    /// The object of that number.
    pub fn get(&self, number: u32) -> Option<&T> {
        self.entries.get(&number).map(|entry| &entry.value)
    }

    /// The object of that number, to change it.
    pub fn get_mut(&mut self, number: u32) -> Option<&mut T> {
        self.entries.get_mut(&number).map(|entry| &mut entry.value)
    }

    /// Counts one more reference to the object.
    ///
    /// # Errors
    /// [`TableError::Unknown`].
    pub fn hold(&mut self, number: u32) -> Result<(), TableError> {
        if !self.contains(number) {
            return Err(TableError::Unknown);
        }
        let entry = self.entries.get_mut(&number).ok_or(TableError::Unknown)?;
        entry.references += 1;
        Ok(())
    }

    /// Takes back one reference.
    ///
    /// # Panics
    /// Nobody holds a reference to the object.
    pub fn release(&mut self, number: u32) {
        if let Some(entry) = self.entries.get_mut(&number) {
            assert!(
                entry.references > 0,
                "{} {number:#x} released more often than held",
                self.kind
            );
            entry.references -= 1;
        }
    }

    /// How often the object is referred to; zero if it does not exist.
    pub fn references(&self, number: u32) -> u32 {
        self.entries
            .get(&number)
            .map_or(0, |entry| entry.references)
    }

    /// Whether [`Table::remove`] would succeed.
    ///
    /// # Errors
    /// [`TableError::Unknown`], or [`TableError::Referenced`] with how often.
    pub fn removable(&self, number: u32) -> Result<(), TableError> {
        match self.references(number) {
            _ if !self.owns(number) => Err(TableError::Unknown),
            0 => Ok(()),
            count => Err(TableError::Referenced(count)),
        }
    }

    /// Destroys the object unless somebody refers to it.
    ///
    /// # Errors
    /// As [`Table::removable`]; the object stays.
    pub fn remove(&mut self, number: u32) -> Result<T, TableError> {
        self.removable(number)?;
        match self.entries.remove(&number) {
            Some(entry) => Ok(entry.value),
            None => Err(TableError::Unknown),
        }
    }

    /// Drops every object, references or not (teardown, reset). Numbers go on where they were.
    pub fn clear(&mut self) {
        self.entries.clear();
    }

    /// Numbers and objects, by number.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        self.entries
            .iter()
            .map(|(&number, entry)| (number, &entry.value))
    }

    /// Numbers and objects, to change them.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (u32, &mut T)> {
        self.entries
            .iter_mut()
            .map(|(&number, entry)| (number, &mut entry.value))
    }
}

/// A small stride that is coprime to `span`, so that the cursor visits every number before
/// repeating one.
fn stride_of(span: u32) -> u32 {
    [3, 5, 7, 11, 13, 17, 19, 23, 29]
        .into_iter()
        .find(|&prime| span > prime && !span.is_multiple_of(prime))
        .unwrap_or(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_not_dense_and_come_back_last() {
        let mut table = Table::new("thing", 8, 23, 16);
        let first = table.create(()).unwrap();
        let second = table.create(()).unwrap();
        assert!(second.abs_diff(first) > 1);
        table.remove(first).unwrap();
        let rest: Vec<u32> = (0..15).map(|_| table.create(()).unwrap()).collect();
        assert_eq!(rest.last(), Some(&first), "{rest:?}");
        assert_eq!(table.create(()), Err(TableError::Full));
    }

    #[test]
    fn a_referenced_object_cannot_be_removed() {
        let mut table = Table::new("thing", 0, 9, 4);
        let number = table.create('a').unwrap();
        table.hold(number).unwrap();
        assert_eq!(table.remove(number), Err(TableError::Referenced(1)));
        table.release(number);
        assert_eq!(table.remove(number), Ok('a'));
        assert_eq!(table.remove(number), Err(TableError::Unknown));
    }

    #[test]
    fn what_a_user_context_owns_does_not_exist_for_another() {
        let mut table = Table::new("thing", 0, 9, 9);
        let drivers = table.create('d').unwrap();
        table.act_for(SHARED);
        let shared = table.create('s').unwrap();
        table.act_for(1);
        let own = table.create('1').unwrap();
        assert_eq!(
            [drivers, shared, own].map(|number| table.contains(number)),
            [false, true, true]
        );
        table.act_for(2);
        assert_eq!(table.named(own), None);
        assert_eq!(table.named_mut(own), None);
        assert_eq!(table.hold(own), Err(TableError::Unknown));
        assert_eq!(table.remove(own), Err(TableError::Unknown));
        assert_eq!(table.remove(shared), Err(TableError::Unknown));
        assert!(table.contains(shared) && !table.owns(shared));
        table.hold(shared).unwrap();
        table.act_for(DRIVER);
        assert_eq!(table.owned_by(1).collect::<Vec<_>>(), [("thing", own)]);
        assert_eq!(table.owned_by(2).count(), 0);
        assert_eq!(table.remove(own), Ok('1'));
    }

    #[test]
    fn holding_what_does_not_exist_is_refused() {
        let mut table: Table<()> = Table::new("thing", 0, 9, 4);
        assert_eq!(table.hold(3), Err(TableError::Unknown));
    }

    #[test]
    fn the_limit_counts_objects_not_numbers() {
        let mut table = Table::new("thing", 0, 99, 2);
        table.create(()).unwrap();
        table.create(()).unwrap();
        assert_eq!(table.create(()), Err(TableError::Full));
    }
}
