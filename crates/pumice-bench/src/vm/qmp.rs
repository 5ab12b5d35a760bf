//! QEMU's monitor protocol: as much of it as tells when a machine is there.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use pumice_command::{Explain, Failure};

/// A machine that takes longer to start is not coming.
const PATIENCE: Duration = Duration::from_secs(120);

/// Starts `command`, which is QEMU or something that starts it, and returns the seconds until it has answered
/// `query-status`. Then ends it.
pub fn time_to_status(mut command: Command, folder: &Path) -> Result<f64, Failure> {
    let path = folder.join("qmp.sock");
    let _ = std::fs::remove_file(&path);
    let listener = UnixListener::bind(&path).or_fail("no monitor socket")?;
    listener.set_nonblocking(true).or_fail("no monitor socket")?;
    command.arg("-qmp").arg(format!("unix:{}", path.display()));
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());

    let started = Instant::now();
    let mut child = command.spawn().or_fail("QEMU can't be started")?;
    let took = accept(&listener, &mut child).and_then(|stream| {
        ask(&stream).map(|()| (started.elapsed(), stream)).map_err(|error| error.to_string())
    });
    match took {
        Ok((took, mut stream)) => {
            // It forgets what it was told when the monitor is closed.
            let told = stream.write_all(b"{\"execute\":\"quit\"}\n");
            if told.is_err() {
                let _ = child.kill();
            }
            let _ = child.wait();
            Ok(took.as_secs_f64())
        }
        Err(why) => {
            let _ = child.kill();
            let output = child.wait_with_output().map(|output| output.stderr).unwrap_or_default();
            let said = String::from_utf8_lossy(&output);
            let said = said.lines().next_back().unwrap_or("nothing");
            Err(Failure::system(format!("QEMU did not start: {why}; it said {said}")))
        }
    }
}

fn accept(listener: &UnixListener, child: &mut Child) -> Result<UnixStream, String> {
    let until = Instant::now() + PATIENCE;
    while Instant::now() < until {
        if let Ok((stream, _)) = listener.accept() {
            return Ok(stream);
        }
        if let Ok(Some(status)) = child.try_wait() {
            return Err(status.to_string());
        }
        // Short beside the 50 ms that a machine takes at least.
        thread::sleep(Duration::from_micros(200));
    }
    Err("it took too long".to_owned())
}

fn ask(stream: &UnixStream) -> std::io::Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let mut lines = BufReader::new(stream).lines();
    let mut next = || lines.next().unwrap_or_else(|| Err(std::io::ErrorKind::UnexpectedEof.into()));
    let mut to = stream;
    next()?;
    to.write_all(b"{\"execute\":\"qmp_capabilities\"}\n{\"execute\":\"query-status\"}\n")?;
    while !next()?.contains("\"status\"") {}
    Ok(())
}
