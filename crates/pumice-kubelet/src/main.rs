//! `pumice-kubelet`: a device plugin of Kubernetes for the slots of `pumice serve`, which is reached by the client of
//! `pumice-slots`. See `docs/kubernetes.md`.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use pumice_kubelet::{run, Options};
use pumice_slots::default_socket;
use tokio::signal::unix::{signal, SignalKind};

/// Gives the slots of 'pumice serve' to pods, as devices of the kubelet's
#[derive(Parser, Debug)]
#[command(name = "pumice-kubelet", version)]
struct Arguments {
    /// The daemon's socket; that of one's own or the system's daemon if not given
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// The daemon's socket for clients with tickets (its --ticket-socket); containers get its folder
    #[arg(long, value_name = "PATH", default_value = "/run/pumice/tickets/slots.sock")]
    ticket_socket: PathBuf,
    /// The folder in containers that gets the socket; the same as on the machine if not given
    #[arg(long, value_name = "FOLDER")]
    mount: Option<PathBuf>,
    /// The kubelet's folder for device plugins
    #[arg(long, value_name = "FOLDER", default_value = "/var/lib/kubelet/device-plugins")]
    kubelet_dir: PathBuf,
    /// The kubelet's socket that lists pods; where it is missing, only time releases tickets
    #[arg(
        long,
        value_name = "PATH",
        default_value = "/var/lib/kubelet/pod-resources/kubelet.sock"
    )]
    pod_resources: PathBuf,
    /// The file of the tickets that were given out, in a folder of root's
    #[arg(long, value_name = "FILE", default_value = "/var/lib/pumice/kubelet-tickets")]
    state: PathBuf,
    /// The first part of the names of resources, such as pumice.dev/slot-4g
    #[arg(long, value_name = "NAME", default_value = "pumice.dev")]
    domain: String,
    /// How long a slot is kept for a pod that does not use it, such as 10m; 24h at most
    #[arg(long, value_name = "TIME", value_parser = time, default_value = "10m")]
    limit: Duration,
    /// How long a pod must be gone from the kubelet's list before its slot is kept no more
    #[arg(long, value_name = "TIME", value_parser = time, default_value = "30s")]
    grace: Duration,
    /// How often the daemon and the kubelet are looked at
    #[arg(long, value_name = "TIME", value_parser = time, default_value = "1s")]
    every: Duration,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let folder = arguments.ticket_socket.parent().map(PathBuf::from).unwrap_or_default();
    let options = Options {
        socket: arguments.socket.unwrap_or_else(default_socket),
        ticket_socket: arguments.ticket_socket,
        mount: arguments.mount.unwrap_or(folder),
        kubelet_dir: arguments.kubelet_dir,
        pod_resources: arguments.pod_resources,
        state: arguments.state,
        domain: arguments.domain,
        limit: arguments.limit,
        grace: arguments.grace,
        every: arguments.every,
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let ended = runtime.and_then(|runtime| {
        let ended = runtime.block_on(async {
            let (mut term, mut interrupt) =
                (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
            let end = async {
                tokio::select! {
                    _ = term.recv() => {}
                    _ = interrupt.recv() => {}
                }
            };
            run(options, end).await
        });
        // A call that waits for the daemon does not hold up the end.
        runtime.shutdown_background();
        ended
    });
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("pumice-kubelet: {error}");
            ExitCode::FAILURE
        }
    }
}

fn time(text: &str) -> Result<Duration, String> {
    const DAY: Duration = Duration::from_secs(24 * 3600);
    let time = humantime::parse_duration(text).map_err(|error| error.to_string())?;
    let fits = time >= Duration::from_millis(1) && time <= DAY;
    fits.then_some(time).ok_or_else(|| "a time is from 1ms to 24h".to_owned())
}
