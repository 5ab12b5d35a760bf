//! Names the shared library as it is called when it is installed, and keeps it loaded: its helper
//! threads and what it handed out outlive a dlclose.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let major = std::env::var("CARGO_PKG_VERSION_MAJOR").expect("cargo sets it");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libpumice.so.{major}");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
