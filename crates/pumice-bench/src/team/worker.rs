//! A worker as its parent sees it, and how it hears and answers: a line of JSON each.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::answer::Answer;
use crate::interrupts::Interrupts;
use crate::slot_daemon::{die_with_us, own_program};
use pumice_command::{Explain, Failure};

/// How often a signal is looked for meanwhile.
const LOOK: Duration = Duration::from_millis(100);

/// A worker's answer.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Reply {
    /// It has prepared.
    Ready,
    /// It has measured.
    Done(Answer),
    /// It could not: the reason.
    Failed(String),
}

/// The next line that a worker is told, `None` when nothing more will come.
pub fn next<T: DeserializeOwned>() -> Result<Option<T>, Failure> {
    let mut line = String::new();
    let read = std::io::stdin().lock().read_line(&mut line);
    match read {
        Ok(0) => Ok(None),
        Ok(_) => serde_json::from_str(&line)
            .map(Some)
            .map_err(|error| Failure::usage(format!("not for people: {error}"))),
        Err(error) => Err(Failure::system(format!("can't read: {error}"))),
    }
}

/// A worker's answer.
pub fn say(reply: &Reply) -> Result<(), Failure> {
    let line = serde_json::to_string(reply);
    let mut out = std::io::stdout().lock();
    let said = line.map_err(std::io::Error::from).and_then(|line| {
        writeln!(out, "{line}")?;
        out.flush()
    });
    said.or_fail("can't answer")
}

/// Says that the worker is ready, and answers each request until its input ends.
pub fn answer_all<R: DeserializeOwned>(
    answer: impl Fn(&R) -> Result<Answer, String>,
) -> Result<(), Failure> {
    say(&Reply::Ready)?;
    while let Some(request) = next::<R>()? {
        say(&answer(&request).map_or_else(Reply::Failed, Reply::Done))?;
    }
    Ok(())
}

/// A process. Dropping it kills it.
#[derive(Debug)]
pub struct Worker {
    child: Child,
    input: ChildStdin,
    replies: Receiver<String>,
}

impl Worker {
    /// Starts one of this experiment and kind, which has nothing yet.
    pub fn start(experiment: &str, kind: &str) -> Result<Worker, Failure> {
        let mut command = Command::new(own_program()?);
        command.args(["bench", experiment, "--worker", kind]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let child = die_with_us(&mut command).spawn();
        let mut child = child.or_fail("can't start a worker")?;
        let (input, output) = child.stdin.take().zip(child.stdout.take()).expect("pipes");
        let (said, replies) = mpsc::channel();
        // It ends with the worker.
        thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                if said.send(line).is_err() {
                    break;
                }
            }
        });
        Ok(Worker { child, input, replies })
    }

    /// Its process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Whether it was killed, as the kernel does where memory is short.
    pub fn was_killed(&mut self) -> bool {
        // Its pipe closes a moment before it has ended.
        thread::sleep(LOOK);
        let status = self.child.try_wait().ok().flatten();
        status.is_some_and(|status| status.signal() == Some(libc::SIGKILL))
    }

    /// Gives it its setup.
    pub fn prepare(&mut self, setup: &impl Serialize, signals: &Interrupts) -> Result<(), Failure> {
        match self.ask(setup, signals)? {
            Reply::Ready => Ok(()),
            other => Err(Failure::system(format!("a worker answered {other:?}"))),
        }
    }

    /// Has it do something.
    pub fn run(
        &mut self,
        request: &impl Serialize,
        signals: &Interrupts,
    ) -> Result<Answer, Failure> {
        match self.ask(request, signals)? {
            Reply::Done(answer) => Ok(answer),
            other => Err(Failure::system(format!("a worker answered {other:?}"))),
        }
    }

    fn ask(&mut self, what: &impl Serialize, signals: &Interrupts) -> Result<Reply, Failure> {
        let gone = || Failure::system("a worker ended: was it killed for its memory?");
        let line = serde_json::to_string(what).or_fail("can't send a request to a worker")?;
        writeln!(self.input, "{line}").map_err(|_| gone())?;
        loop {
            match self.replies.recv_timeout(LOOK) {
                Ok(line) => {
                    return match serde_json::from_str(&line) {
                        Ok(Reply::Failed(error)) => Err(Failure::system(error)),
                        Ok(reply) => Ok(reply),
                        Err(error) => Err(Failure::system(format!("a worker's answer: {error}"))),
                    }
                }
                Err(RecvTimeoutError::Timeout) if signals.came().is_some() => {
                    return Err(Failure::system("interrupted"))
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return Err(gone()),
            }
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
