//! `pumice top`: programs under `pumice run` on a terminal, as they change.
//!
//! | module | contents |
//! |---|---|
//! | [`state`] | the content: programs in order, their history, the changes made by keys |
//! | [`draw`] | how, for the room there is |
//! | [`glyphs`] | bars and sparklines of letters, for terminals with and without Unicode and colours |
//!
//! The terminal is given back as it was on every way out: at the end, on a panic, and on a signal; and for as
//! long as this is stopped.

mod draw;
mod glyphs;
mod state;

use std::env;
use std::io::{self, IsTerminal};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use clap::Args;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use ratatui::DefaultTerminal;

use crate::numbers::parse_pid;
use crate::run::spawn;
use crate::stat::parse_interval;
use crate::stat::sample::Sample;
use glyphs::Looks;
use pumice_command::Failure;
use state::{State, Told};

/// Somebody else than the terminal wants this to stop. Relaxed: nothing is published with it.
static IS_TO_STOP: AtomicBool = AtomicBool::new(false);

/// The arguments of `pumice top`.
#[derive(Args, Debug)]
pub struct TopArgs {
    /// Process ids of programs, or of `pumice run` for all its programs; all programs if not given
    #[arg(value_name = "PID", value_parser = parse_pid)]
    pids: Vec<u32>,
    /// Seconds between two samples
    #[arg(long, short, value_name = "SECONDS", default_value = "1", value_parser = parse_interval)]
    interval: Duration,
    /// Refused: `pumice stat` shows one sample without a terminal
    #[arg(long)]
    once: bool,
}

/// Shows them until a key, a signal or an error ends it.
pub fn top(options: &TopArgs) -> Result<(), Failure> {
    if options.once {
        return Err(Failure::usage("for one sample type 'pumice stat', or 'pumice stat --json'"));
    }
    let is_dumb = env::var_os("TERM").is_none_or(|name| name.is_empty() || name == "dumb");
    if is_dumb || !(io::stdin().is_terminal() && io::stdout().is_terminal()) {
        return Err(Failure::usage(
            "pumice top needs a terminal; without one type 'pumice stat', or 'pumice stat --watch'",
        ));
    }
    let failed = |error: io::Error| Failure::system(format!("the terminal can't be used: {error}"));
    // Before there are threads.
    let signals = spawn::block_endings_and_stop();
    let mut terminal = ratatui::try_init().map_err(failed)?;
    let watcher = thread::Builder::new().name("pumice-signals".into()).spawn(move || loop {
        let signal = spawn::wait_for(&signals);
        if signal == libc::SIGTSTP {
            IS_TO_STOP.store(true, Ordering::Relaxed);
            // SAFETY: a plain system call. As if the size had changed: it ends the wait for a key.
            unsafe { libc::kill(libc::getpid(), libc::SIGWINCH) };
            continue;
        }
        ratatui::restore();
        spawn::end_like(signal)
    });
    let shown = watcher.and_then(|_| show(&mut terminal, options));
    ratatui::restore();
    shown.map_err(failed)
}

/// Draws, waits for a key or the next sample, and so on until told to end.
fn show(terminal: &mut DefaultTerminal, options: &TopArgs) -> io::Result<()> {
    let looks = Looks::of_environment();
    let mut state = State::new(options.interval);
    state.take(Sample::take(&options.pids));
    let mut next = Instant::now() + options.interval;
    loop {
        if IS_TO_STOP.swap(false, Ordering::Relaxed) {
            stop(terminal)?;
        }
        terminal.draw(|frame| draw::draw(frame, &state, looks))?;
        let now = Instant::now();
        if now >= next {
            if !state.is_paused() {
                state.take(Sample::take(&options.pids));
            }
            next = now + options.interval;
            continue;
        }
        if event::poll(next - now)? {
            // A change of size is drawn at once, as anything else is.
            if let Event::Key(key) = event::read()? {
                if key.code == KeyCode::Char('z') && key.modifiers.contains(KeyModifiers::CONTROL) {
                    stop(terminal)?;
                } else if key.kind != KeyEventKind::Release && ends(&mut state, key) {
                    return Ok(());
                }
            }
        }
    }
}

/// Stops this process until the shell has it go on; the terminal is the shell's meanwhile.
fn stop(terminal: &mut DefaultTerminal) -> io::Result<()> {
    ratatui::restore();
    spawn::stop_like(libc::SIGTSTP);
    *terminal = ratatui::try_init()?;
    Ok(())
}

/// Handles a key. Returns whether to end.
fn ends(state: &mut State, key: KeyEvent) -> bool {
    let is_control = key.modifiers.contains(KeyModifiers::CONTROL);
    let told = match key.code {
        KeyCode::Char('c') if is_control => return true,
        KeyCode::Char('q') => return true,
        KeyCode::Char('h' | '?') => Told::Help,
        KeyCode::Char('s') => Told::NextOrder,
        KeyCode::Char('r') => Told::Reverse,
        KeyCode::Char('p' | ' ') => Told::Pause,
        KeyCode::Char(digit @ '1'..='9') => Told::SortBy(digit as usize - '1' as usize),
        KeyCode::Up | KeyCode::Char('k') => Told::Up,
        KeyCode::Down | KeyCode::Char('j') => Told::Down,
        KeyCode::Esc => Told::Back,
        _ => return false,
    };
    state.tell(told);
    false
}
