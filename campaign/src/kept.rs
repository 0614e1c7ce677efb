//! A value that a program does not have while its adapter is parked.

use std::ops::{Deref, DerefMut};

/// The value. It may be used only while it is there.
pub struct Kept<T>(Option<T>);

impl<T> Kept<T> {
    pub const fn new(value: T) -> Self {
        Self(Some(value))
    }

    /// Takes the value, until another one is put.
    pub fn take(&mut self) -> T {
        self.0.take().expect("it is not parked")
    }

    pub fn put(&mut self, value: T) {
        self.0 = Some(value);
    }
}

impl<T> Deref for Kept<T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.0.as_ref().expect("it is not parked")
    }
}

impl<T> DerefMut for Kept<T> {
    fn deref_mut(&mut self) -> &mut T {
        self.0.as_mut().expect("it is not parked")
    }
}
