//! Links the shim freestanding: no C library, no start files, nothing needed at run time.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    let arguments = [
        // Neither libraries nor crti.o and crtbeginS.o, whose constructors call libc.
        "-nostdlib",
        "-nostartfiles",
        "-Wl,-soname,libpumice_preload.so",
        // Every relocation is done before the first call of malloc comes.
        "-Wl,-z,now",
        "-Wl,-z,relro",
        "-Wl,-z,noexecstack",
    ];
    for argument in arguments {
        println!("cargo:rustc-cdylib-link-arg={argument}");
    }
}
