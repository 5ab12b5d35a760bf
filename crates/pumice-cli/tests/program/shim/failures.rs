//! Calls that fail: each of the system calls about memory that a program makes with the shim fails
//! once, and the program goes on with what it has.

use crate::shim::{compare_success, compile, compile_with, most_modes};

#[test]
fn each_call_fails_once() {
    let supervisor = compile_with("cc", "fail_nth", "fail_nth", &["-static"]);
    let program = compile("fail_target");
    let program = program.to_str().expect("the folder for tests has a plain name");
    compare_success(most_modes(), supervisor, &["quick", program], b"");
}
