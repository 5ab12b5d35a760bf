//! The functions of `libm.so` that the program needs, in the program: the loader would spend 50 µs on that library at
//! every start of `pumice run`. They set no `errno`, which Rust never reads. A test (`tests/program.rs`) says when one
//! is missing.

macro_rules! of_libm {
    ($($name:ident($($argument:ident),+))+) => {$(
        // SAFETY: the C library's own signature, so that any caller may take either; and it has no state.
        #[no_mangle]
        extern "C" fn $name($($argument: f64),+) -> f64 {
            libm::$name($($argument),+)
        }
    )+};
}

of_libm! {
    exp(x)
    exp2(x)
    log(x)
    log10(x)
    log1p(x)
    pow(x, y)
}
