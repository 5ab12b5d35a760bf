//! `pumice top` in a terminal, driven by keys, and its screen looked at.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::support::served::{end, served};
use crate::support::{folder, pumice, stderr, Folder};

/// Far longer than anything here takes.
const PATIENCE: Duration = Duration::from_secs(60);

/// A terminal of its own, with a shell in it.
struct Terminal {
    folder: Folder,
}

impl Terminal {
    /// `None` without tmux.
    fn new(name: &str, width: u32, height: u32) -> Option<Terminal> {
        if !Command::new("tmux").arg("-V").output().is_ok_and(|output| output.status.success()) {
            eprintln!("skipped: no tmux");
            return None;
        }
        let terminal = Terminal { folder: folder(name) };
        let (width, height) = (width.to_string(), height.to_string());
        let size = ["-x", &width, "-y", &height];
        terminal.tmux(&[&["new-session", "-d"], &size[..], &["sh"]].concat());
        // The shell's prompt.
        terminal.wait_for("a prompt", |screen| screen.contains(['$', '#']));
        Some(terminal)
    }

    fn tmux(&self, arguments: &[&str]) -> String {
        let output = Command::new("tmux")
            .args(["-S", self.folder.join("socket").to_str().expect("letters"), "-f", "/dev/null"])
            .args(arguments)
            .env("PS1", "$ ")
            .env_remove("TMUX")
            .env_remove("NO_COLOR")
            .output()
            .expect("tmux runs");
        assert!(output.status.success(), "tmux {arguments:?}: {}", stderr(&output));
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    fn keys(&self, keys: &[&str]) {
        self.tmux(&[&["send-keys"], keys].concat());
    }

    fn screen(&self) -> String {
        self.tmux(&["capture-pane", "-p"])
    }

    fn wait_for(&self, what: &str, is_there: impl Fn(&str) -> bool) -> String {
        let until = Instant::now() + PATIENCE;
        loop {
            let screen = self.screen();
            if is_there(&screen) {
                return screen;
            }
            assert!(Instant::now() < until, "waited in vain for {what}:\n{screen}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        self.tmux(&["kill-server"]);
    }
}

const PUMICE: &str = env!("CARGO_BIN_EXE_pumice");

#[test]
fn a_program_is_watched() {
    let Some((child, pid)) = served() else { return };
    let Some(terminal) = Terminal::new("top", 80, 24) else { return };
    let start = format!("LC_ALL=C {PUMICE} top --interval 0.1 {}; echo gone $?", child.id());
    terminal.keys(&[&start, "Enter"]);
    let screen = terminal.wait_for("the program", |screen| {
        ["pumice top", "python3", "q quit"].iter().all(|part| screen.contains(part))
    });
    let lines: Vec<_> = screen.lines().collect();
    assert!(lines[0].starts_with("pumice top  1 program, 1 tree  pool "), "{screen}");
    assert!(lines[1].starts_with("pool   ##"), "{screen}");
    assert!(lines[2].starts_with("       # in use "), "{screen}");
    for (line, label) in lines[3..6].iter().zip(["hits  ", "scrub ", "CPU   "]) {
        assert!(line.starts_with(label), "{screen}");
    }
    let heading = "    PID PROGRAM              POOLv HITS%    SCRUB/s  CPU%    REQ/s SPLIT";
    assert_eq!(lines[6].trim_end(), heading, "{screen}");
    assert!(lines[7].starts_with(&format!("{pid:>7} python3")), "{screen}");
    let footer = "q quit  h help  s sort: pool  r reverse  p pause  every 0.1 s";
    assert_eq!(lines[23].trim_end(), footer, "{screen}");

    terminal.keys(&["?"]);
    terminal.wait_for("help", |screen| screen.contains("this help"));
    terminal.keys(&["?", "3", "p"]);
    terminal.wait_for("another order", |screen| {
        screen.contains("SCRUB/sv") && screen.contains("paused") && !screen.contains("this help")
    });
    terminal.keys(&["Down"]);
    terminal.wait_for("what was chosen", |screen| screen.contains(&format!("python3 ({pid})")));
    terminal.tmux(&["resize-window", "-x", "40", "-y", "10"]);
    // Between two sizes the screen may be empty.
    let small = terminal
        .wait_for("the other size", |screen| screen.contains("POOL") && !screen.contains("HITS%"));
    assert!(small.lines().all(|line| line.chars().count() <= 40), "{small}");
    terminal.tmux(&["resize-window", "-x", "10", "-y", "3"]);
    terminal.wait_for("too small a size", |screen| screen.contains("too small"));
    terminal.tmux(&["resize-window", "-x", "100", "-y", "20"]);
    terminal.wait_for("a greater size", |screen| screen.contains("RUN"));

    terminal.keys(&["q"]);
    terminal.wait_for("the shell, and the screen as it was", |screen| {
        screen.contains("gone 0") && !screen.contains("HITS%")
    });

    // A signal gives the terminal back, too: it echoes again.
    terminal.keys(&["clear", "Enter"]);
    let file = terminal.folder.join("pid");
    let start = format!("sh -c 'echo $$ > {}; exec {PUMICE} top'; echo gone $?", file.display());
    terminal.keys(&[&start, "Enter"]);
    terminal.wait_for("the program", |screen| screen.contains("HITS%"));
    let top = std::fs::read_to_string(&file).expect("written").trim().parse().expect("a number");
    // SAFETY: the program that this test has just started.
    unsafe { libc::kill(top, libc::SIGTERM) };
    terminal.wait_for("the shell", |screen| screen.contains("gone 143"));
    terminal.keys(&["stty -a | grep -o ' echo '", "Enter"]);
    terminal.wait_for("echo", |screen| screen.lines().any(|line| line.trim() == "echo"));
    end(child);
}

#[test]
fn it_stops_and_goes_on() {
    let Some(terminal) = Terminal::new("top-stopped", 80, 24) else { return };
    let is_shown = |screen: &str| screen.contains("HITS%");
    terminal.keys(&["set -m", "Enter"]);
    terminal.keys(&[&format!("{PUMICE} top --interval 60"), "Enter"]);
    terminal.wait_for("top", is_shown);
    for told in [true, false] {
        if told {
            let pane = terminal.tmux(&["display-message", "-p", "#{pane_pid}"]);
            let children = format!("/proc/{0}/task/{0}/children", pane.trim());
            let children = std::fs::read_to_string(children).expect("the shell's children");
            let top: i32 = children.split_whitespace().next().expect("top").parse().expect("one");
            // SAFETY: the program that this test has just started.
            unsafe { libc::kill(top, libc::SIGTSTP) };
        } else {
            terminal.keys(&["C-z"]);
        }
        terminal.wait_for("the shell", |screen| !is_shown(screen));
        terminal.keys(&["stty -a | grep -o ' echo '; fg", "Enter"]);
        terminal.wait_for("top again", is_shown);
    }
    // Keys are read one by one, as before.
    terminal.keys(&["q"]);
    terminal.wait_for("the shell, and each echo", |screen| {
        !is_shown(screen) && screen.lines().filter(|line| line.trim() == "echo").count() == 2
    });
}

#[test]
fn without_colours_all_is_told_by_letters() {
    let Some((child, _)) = served() else { return };
    let Some(terminal) = Terminal::new("top-plain", 80, 24) else { return };
    let command = |before: &str| format!("{before} {PUMICE} top --interval 0.1 {}", child.id());
    // SGR 30 to 37 set a colour, 38 one of 256.
    let is_colored = |screen: &str| {
        screen.contains("\u{1b}[38;5;")
            || (30..38).any(|color| screen.contains(&format!("\u{1b}[{color}m")))
    };
    for (before, letter, has_colors) in
        [("NO_COLOR=1 LC_ALL=C.UTF-8", '█', false), ("LC_ALL=C", '#', true)]
    {
        terminal.keys(&[&command(before), "Enter"]);
        terminal.wait_for("the program", |screen| {
            screen.contains("HITS%") && screen.contains("python3") && screen.contains(letter)
        });
        let screen = terminal.tmux(&["capture-pane", "-p", "-e"]);
        assert_eq!(is_colored(&screen), has_colors, "{screen}");
        terminal.keys(&["q"]);
        terminal.wait_for("the shell", |screen| !screen.contains("HITS%"));
    }
    end(child);
}

#[test]
fn without_a_terminal_stat_is_named() {
    for arguments in [&["top"][..], &["top", "--once"]] {
        let output = pumice(arguments).stdin(Stdio::null()).output().expect("pumice starts");
        assert_eq!(output.status.code(), Some(2));
        assert_eq!(stderr(&output).lines().count(), 1, "{}", stderr(&output));
        assert!(stderr(&output).contains("pumice stat"), "{}", stderr(&output));
    }
}
