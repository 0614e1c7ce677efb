//! The Rust program of docs/guide.md, as its blocks make it behind each other. That in C is built where programs of
//! the installed library are (`install`).

include!(concat!(env!("OUT_DIR"), "/guide.rs"));

#[test]
fn the_guide_s_program_in_rust_does_what_it_says() {
    main().expect("the program of the guide");
}
