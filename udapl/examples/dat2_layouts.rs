//! Prints a C program that compiles only if crate `udapl`'s layouts of DAT 2.0 structures are right.
//!
//! `cargo xtask dtest` compiles it with the headers of a distribution's package.
#![forbid(unsafe_code)]

use udapl::capi::dat2::{LAYOUT, types::LAYOUTS};

fn main() {
    println!("#include <dat2/udat.h>\n#include <dat2/dat_registry.h>");
    for (name, size, fields) in LAYOUTS.iter().chain([&LAYOUT]) {
        println!("_Static_assert(sizeof({name}) == {size}, \"{name}\");");
        for (field, at) in *fields {
            // Rust cannot name a field `type`.
            let field = field.trim_end_matches('_');
            println!(
                "_Static_assert(__builtin_offsetof({name}, {field}) == {at}, \"{name}.{field}\");"
            );
        }
    }
}
