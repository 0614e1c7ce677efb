//! A C program that compiles only if the structures of DAT 2.0 are what crate `udapl` takes them for.
//!
//! `cargo xtask dtest` has a compiler hold it against the headers that a distribution packages.
#![forbid(unsafe_code)]

use udapl::capi::dat2::{LAYOUT, types::LAYOUTS};

fn main() {
    println!("#include <dat2/udat.h>\n#include <dat2/dat_registry.h>");
    for (name, size, fields) in LAYOUTS.iter().chain([&LAYOUT]) {
        println!("_Static_assert(sizeof({name}) == {size}, \"{name}\");");
        for (field, at) in *fields {
            // Rust has no field of the name `type`.
            let field = field.trim_end_matches('_');
            println!(
                "_Static_assert(__builtin_offsetof({name}, {field}) == {at}, \"{name}.{field}\");"
            );
        }
    }
}
