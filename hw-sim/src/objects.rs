//! Numbered objects: existence, references, and the choice of the next number.
//!
//! A table allocates numbers from a range. Numbers are not dense, so that a driver that assumes 0, 1, 2 … fails. A
//! freed number is reused as late as possible: the cursor walks the whole range with a stride that is coprime to the
//! size of the range before it reaches a number again.
//!
//! References are counted per object. The creator of a referrer calls [`Table::hold`] on each object that the referrer
//! names, and [`Table::release`] when the referrer is destroyed; [`Table::remove`] refuses while the count is not zero.
//! The tables are independent of commands: the caller converts [`TableError`] to a status.
//!
//! An object belongs to the user context whose command created it ([`Table::act_for`]). For other contexts the object
//! does not exist. The driver itself, [`DRIVER`], sees all objects, and all contexts see [`SHARED`] ones. The
//! function's own look-ups use [`Table::get`], which does not check the owner; the look-ups of a command use
//! [`Table::named`], which does.

use std::collections::BTreeMap;

/// Owner of objects created without a user context: the driver itself.
pub const DRIVER: u16 = 0;
/// Owner of objects that the driver itself created and that all user contexts may name: event queues and counter sets
/// that Linux shares (`MLX5_SHARED_RESOURCE_UID`).
pub const SHARED: u16 = 0xffff;

/// Reason for which a table refused an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TableError {
    /// No object has this number.
    Unknown,
    /// The object is referenced. The value is the number of references.
    Referenced(u32),
    /// The table has as many objects as its limit permits.
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
    /// Returns a table named `kind` (for reports) whose numbers lie in `first..=last`, with at most `limit` objects.
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

    /// Returns the kind of this table's objects, for reports.
    pub fn kind(&self) -> &'static str {
        self.kind
    }

    /// Returns the number of objects.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns whether no object exists.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Changes the limit of objects, after a capability was set. Existing objects above the limit stay.
    pub fn set_limit(&mut self, limit: u32) {
        self.limit = limit.clamp(1, self.span);
    }

    /// Reserves the next number without creating an object.
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

    /// Restarts the allocation of numbers at the first number.
    pub fn restart_numbering(&mut self) {
        self.cursor = 0;
    }

    /// Creates an object under a number from [`Table::reserve`].
    ///
    /// # Panics
    /// An object has this number already.
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

    /// Sets the acting owner, who owns the objects created from now on. Look-ups of commands find only objects that the
    /// acting owner may name.
    pub fn act_for(&mut self, owner: u16) {
        self.acting = owner;
    }

    /// Returns kind and number of each object of an owner.
    pub fn owned_by(&self, owner: u16) -> impl Iterator<Item = (&'static str, u32)> {
        self.entries
            .iter()
            .filter(move |(_, entry)| entry.owner == owner)
            .map(|(&number, _)| (self.kind, number))
    }

    /// Returns the owner of an object.
    pub fn owner(&self, number: u32) -> Option<u16> {
        self.entries.get(&number).map(|entry| entry.owner)
    }

    /// Returns whether the acting owner may name an object of `owner`.
    fn reaches(&self, owner: u16) -> bool {
        matches!(self.acting, DRIVER | SHARED) || owner == self.acting || owner == SHARED
    }

    /// Returns whether the acting owner may destroy or clear an object of `owner`. A user context may do so for its own
    /// objects. The driver, which acts as [`DRIVER`] or [`SHARED`], may do so for all objects.
    fn governs(&self, owner: u16) -> bool {
        matches!(self.acting, DRIVER | SHARED) || owner == self.acting
    }

    /// Returns whether the number names an object that the acting owner may destroy or clear.
    pub fn owns(&self, number: u32) -> bool {
        let entry = self.entries.get(&number);
        entry.is_some_and(|entry| self.governs(entry.owner))
    }

    /// Returns whether the number names an object that the acting owner may name.
    pub fn contains(&self, number: u32) -> bool {
        self.named(number).is_some()
    }

    /// Returns the object that a command names by this number, if the acting owner may name it.
    pub fn named(&self, number: u32) -> Option<&T> {
        let entry = self.entries.get(&number)?;
        self.reaches(entry.owner).then_some(&entry.value)
    }

    /// Returns the object that a command names by this number, for modification, if the acting owner may name it.
    pub fn named_mut(&mut self, number: u32) -> Option<&mut T> {
        let owner = self.entries.get(&number)?.owner;
        match self.reaches(owner) {
            true => self.get_mut(number),
            false => None,
        }
    }

    /// Returns the object of this number, whatever its owner.
    pub fn get(&self, number: u32) -> Option<&T> {
        self.entries.get(&number).map(|entry| &entry.value)
    }

    /// Returns the object of this number, whatever its owner, for modification.
    pub fn get_mut(&mut self, number: u32) -> Option<&mut T> {
        self.entries.get_mut(&number).map(|entry| &mut entry.value)
    }

    /// Adds a reference to the object.
    ///
    /// # Errors
    /// [`TableError::Unknown`].
    pub fn hold(&mut self, number: u32) -> Result<(), TableError> {
        if !self.contains(number) {
            return Err(TableError::Unknown);
        }
        self.hold_any(number)
    }

    /// Adds a reference to the object on behalf of the function itself, whatever the object's owner.
    ///
    /// # Errors
    /// [`TableError::Unknown`].
    pub fn hold_any(&mut self, number: u32) -> Result<(), TableError> {
        let entry = self.entries.get_mut(&number).ok_or(TableError::Unknown)?;
        entry.references += 1;
        Ok(())
    }

    /// Removes a reference to the object.
    ///
    /// # Panics
    /// The object has no reference.
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

    /// Returns the number of references to the object; zero if it does not exist.
    pub fn references(&self, number: u32) -> u32 {
        self.entries
            .get(&number)
            .map_or(0, |entry| entry.references)
    }

    /// Checks that [`Table::remove`] would succeed.
    ///
    /// # Errors
    /// [`TableError::Unknown`], or [`TableError::Referenced`] with the number of references.
    pub fn removable(&self, number: u32) -> Result<(), TableError> {
        match self.references(number) {
            _ if !self.owns(number) => Err(TableError::Unknown),
            0 => Ok(()),
            count => Err(TableError::Referenced(count)),
        }
    }

    /// Destroys the object unless it is referenced.
    ///
    /// # Errors
    /// The errors of [`Table::removable`]. The object stays in the table.
    pub fn remove(&mut self, number: u32) -> Result<T, TableError> {
        self.removable(number)?;
        match self.entries.remove(&number) {
            Some(entry) => Ok(entry.value),
            None => Err(TableError::Unknown),
        }
    }

    /// Drops every object, referenced or not (teardown, reset). New objects get numbers that follow the previous ones.
    pub fn clear(&mut self) {
        self.entries.clear();
    }

    /// Iterates over numbers and objects, in ascending order of numbers.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        self.entries
            .iter()
            .map(|(&number, entry)| (number, &entry.value))
    }

    /// Iterates over numbers and objects, for modification.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (u32, &mut T)> {
        self.entries
            .iter_mut()
            .map(|(&number, entry)| (number, &mut entry.value))
    }
}

/// Returns a small stride that is coprime to `span`, so that the cursor visits every number before repeating one.
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
    fn an_object_of_a_user_context_does_not_exist_for_another() {
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
        assert_eq!(table.hold_any(own), Ok(()));
        table.release(own);
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
