//! The example, in a process of its own: its allocator is this program's.

#[path = "../examples/zeroed_vectors.rs"]
mod zeroed_vectors;

#[test]
fn the_example_runs() {
    zeroed_vectors::main();
}
