//! The `codes!` macro: numeric codes with names, which can also have values without a name.
//!
//! Firmware sends codes that its manual does not list. Therefore a code is a newtype of its number, with the known
//! values as constants. A `match` over a code always needs an arm for the other values.

/// Defines a newtype per list of codes, with constants, names, and `Debug` and `Display` that print the name.
#[macro_export]
macro_rules! codes {
    ($( $(#[$meta:meta])* pub struct $name:ident($int:ident) { $( $(#[$doc:meta])* $code:ident = $value:literal $($label:literal)?, )* } )+) => {$(
        $(#[$meta])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(pub $int);

        impl $name {
            $(
                $(#[$doc])*
                #[doc = concat!("\n\n", stringify!($value), ".")]
                pub const $code: Self = Self($value);
            )*
            /// All codes that have a name.
            pub const ALL: &'static [Self] = &[$(Self::$code),*];

            /// Returns the name, if the code has one.
            #[must_use]
            pub const fn name(self) -> Option<&'static str> {
                Some(match self {
                    $( Self::$code => $crate::codes!(@label $code $($label)?), )*
                    _ => return None,
                })
            }

            /// Makes the code from the value of a field.
            #[inline]
            #[must_use]
            #[allow(clippy::cast_possible_truncation, reason = "fields of a code are no wider than the code")]
            pub const fn from_bits(bits: u32) -> Self {
                // CAST: see the reason above.
                Self(bits as $int)
            }

            /// Returns the code as the value of a field.
            #[inline]
            #[must_use]
            pub const fn bits(self) -> u32 {
                // CAST: widens to u32.
                self.0 as u32
            }
        }

        impl core::fmt::Debug for $name {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                match self.name() {
                    Some(name) => f.write_str(name),
                    None => write!(f, concat!(stringify!($name), "({:#x})"), self.0),
                }
            }
        }

        impl core::fmt::Display for $name {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                core::fmt::Debug::fmt(self, f)
            }
        }
    )+};
    (@label $code:ident $label:literal) => { $label };
    (@label $code:ident) => { stringify!($code) };
}
