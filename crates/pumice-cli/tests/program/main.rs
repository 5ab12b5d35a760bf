//! The program, tested from outside. All tests of it are one program: one for each subject would cost a link each, and
//! leave processors idle at its end.

mod bad_input;
mod bench;
mod env;
mod estimate;
mod files;
mod install;
mod itself;
mod profile;
mod run;
mod shim;
mod slots;
mod small;
mod stat;
mod support;
mod top;
mod trace;
