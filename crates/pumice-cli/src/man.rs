//! `pumice man`: one manual page for the program and its subcommands, in man(7)'s markup.
//!
//! Commands and flags come from clap; the text that it can't know stands here.

use std::io;

use clap::Command;
use clap_mangen::Man;
use pumice_heap::config::Setting;

/// The page.
pub fn page(mut program: Command) -> io::Result<Vec<u8>> {
    program.build();
    let mut page = Vec::new();
    let man = Man::new(program.clone());
    man.render_title(&mut page)?;
    man.render_name_section(&mut page)?;
    man.render_synopsis_section(&mut page)?;
    man.render_description_section(&mut page)?;
    for command in program.get_subcommands().filter(|command| command.get_name() != "help") {
        subcommand(command, "pumice", &mut page)?;
    }
    page.extend(environment().bytes());
    page.extend(REST.bytes());
    Ok(page)
}

fn subcommand(command: &Command, parent: &str, page: &mut Vec<u8>) -> io::Result<()> {
    let name = format!("{parent} {}", command.get_name());
    page.extend(format!(".SH {}\n", name.to_uppercase()).bytes());
    let man = Man::new(command.clone());
    for section in [Man::render_synopsis_section, Man::render_description_section] {
        page.extend(body(|out| section(&man, out))?);
        page.extend(b".PP\n");
    }
    if command.get_arguments().next().is_some() {
        page.extend(body(|out| man.render_options_section(out))?);
    }
    for inner in command.get_subcommands().filter(|command| command.get_name() != "help") {
        subcommand(inner, &name, page)?;
    }
    Ok(())
}

/// A section without its heading.
fn body(render: impl FnOnce(&mut dyn io::Write) -> io::Result<()>) -> io::Result<Vec<u8>> {
    let mut section = Vec::new();
    render(&mut section)?;
    let lines = section.split_inclusive(|&byte| byte == b'\n');
    Ok(lines.filter(|line| !line.starts_with(b".SH")).flatten().copied().collect())
}

fn environment() -> String {
    let mut text = String::from(ENVIRONMENT);
    for setting in Setting::ALL {
        text += &format!(".TP\n\\fB{}\\fR\nTakes {}.\n", setting.env(), setting.expects());
    }
    text
}

const ENVIRONMENT: &str = r".SH ENVIRONMENT
Each flag of \fBpumice run\fR has a variable, which holds where the flag is not given.
.TP
\fBPUMICE\fR
\fBoff\fR turns everything off in the programs that find it.
.TP
\fBPUMICE_SHIM\fR
A shared library to preload instead of the one inside \fBpumice\fR.
.TP
\fBPUMICE_READY\fR, \fBPUMICE_POOL_MAX\fR, \fBPUMICE_THRESHOLD\fR
Sizes, as \fB\-\-ready\fR, \fB\-\-pool\-max\fR and \fB\-\-threshold\fR take them.
.TP
\fBPUMICE_ONLY\fR, \fBPUMICE_SKIP\fR
Names of programs, separated by commas.
.TP
\fBPUMICE_VERIFY\fR
\fB1\fR checks at each request that memory said to be zero is.
.TP
\fBPUMICE_SOCKET\fR
The daemon's socket, for \fBpumice lease\fR and \fBpumice slots\fR.
.TP
\fBPUMICE_SLOT_TICKET\fR
Tickets of slots that are reserved for \fBpumice lease\fR, separated by commas.
.TP
\fBPUMICE_TREE\fR, \fBPUMICE_STATS\fR
Set for the programs: the name, or the number, of the shared memory (\fBipcs \-m\fR) where they count.
";

const REST: &str = r".SH EXIT STATUS
\fBpumice run\fR exits as the program does, by the same signal if one killed it.
It exits with 127 where there is no such program, 126 where it can't be executed,
2 where the input can't be used, 1 where the machine refuses something.
.SH FILES
.TP
\fI/run/pumice/libpumice\-HASH.so\fR, \fI~/.cache/pumice/libpumice\-HASH.so\fR
The shim, written once for each version: for root, and for other users. Where others could put another
file, \fI/var/lib/pumice\fR (for root), \fI$XDG_RUNTIME_DIR/pumice\fR and \fI$TMPDIR/pumice\fR are tried.
.SH EXAMPLES
.nf
pumice run \-\- python3 train.py
pumice run \-\-ready 2G \-\-report \-\- ./solver input
pumice ctl $(pidof solver) scrub_rate_pages_per_s=100000
pumice env \-\-format systemd \-\-install\-shim /usr/local/lib/pumice
pumice snapshot $(pidof qemu\-system\-x86_64) /var/lib/vm/web.mem
.fi
.SH SEE ALSO
\fBld.so\fR(8), \fBmadvise\fR(2)
";
