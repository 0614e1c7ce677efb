//! The part of the campaign that every run of the tests includes.

mod flood;
mod worlds;
