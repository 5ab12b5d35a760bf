//! `include/pumice.h` is what cbindgen makes of the sources.

use std::path::Path;
use std::{env, fs};

use cbindgen::{Builder, Config};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn generated() -> String {
    let config = Config::from_file(root().join("cbindgen.toml")).expect("a configuration");
    // The other files are its modules.
    let builder = Builder::new().with_src(root().join("src/lib.rs"));
    let mut header = Vec::new();
    builder.with_config(config).generate().expect("sources it can read").write(&mut header);
    // To a reader of C, the text under Rust's heading is not only about safety.
    String::from_utf8(header).expect("text").replace("# Safety", "The caller sees to it that:")
}

/// `PUMICE_UPDATE_HEADER=1 cargo test -p pumice-c --test header` writes it anew.
#[test]
fn the_header_is_up_to_date() {
    let (path, generated) = (root().join("include/pumice.h"), generated());
    if env::var_os("PUMICE_UPDATE_HEADER").is_some() {
        fs::write(&path, &generated).expect("writable");
    }
    let committed = fs::read_to_string(&path).expect("a header");
    assert!(
        committed == generated,
        "include/pumice.h is out of date; set PUMICE_UPDATE_HEADER=1 and run this test again"
    );
}
