//! `pumice bench`: the experiments of `pumice-bench`, and that of `pumice-bench-io`, which is a crate of its own so
//! that a change of the cache builds no other experiment anew.

use clap::{Args, Subcommand};

use pumice_bench_io::IoArgs;
use pumice_command::{report_lost_output, Failure};

/// Options of `pumice bench`.
#[derive(Args, Debug)]
pub struct BenchArgs {
    #[command(subcommand)]
    experiment: Experiment,
}

/// The experiments.
#[derive(Subcommand, Debug)]
enum Experiment {
    #[command(flatten)]
    Others(pumice_bench::Experiment),
    /// Files through the kernel's page cache and through ours, under the same memory: the bonnie table
    Io(IoArgs),
}

/// Runs an experiment, prints its table, and returns the exit status.
pub fn bench(options: BenchArgs) -> Result<u8, Failure> {
    report_lost_output();
    match options.experiment {
        Experiment::Others(experiment) => pumice_bench::bench(experiment),
        Experiment::Io(options) => pumice_bench_io::io(&options).map(|()| 0),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use clap::CommandFactory;
    use pumice_bench::registry::ENTRIES;

    use super::*;

    /// Subcommands that are no experiments, and experiments that others cover.
    const EXEMPT: [(&str, &str); 5] = [
        ("all", "runs the others"),
        ("compare", "reads what all wrote"),
        ("report", "shows what all wrote"),
        ("help", "clap's"),
        ("alloc", "takes half an hour; programs runs its loads"),
    ];

    #[derive(clap::Parser)]
    struct Cli {
        #[command(flatten)]
        bench: BenchArgs,
    }

    #[test]
    fn every_subcommand_is_there_or_exempt() {
        let mut command = Cli::command();
        command.build();
        let typed: BTreeSet<_> =
            command.get_subcommands().map(|one| one.get_name().to_owned()).collect();
        let known = ENTRIES.iter().map(|entry| entry.name).chain(EXEMPT.map(|(name, _)| name));
        let known: BTreeSet<_> = known.map(str::to_owned).collect();
        assert_eq!(typed, known, "subcommands against bench/registry");
        assert_eq!(ENTRIES.len() + EXEMPT.len(), known.len(), "each once");
    }

    #[test]
    fn settings_are_what_the_subcommands_take() {
        for entry in ENTRIES {
            for setting in [entry.quick, entry.full] {
                let line = [&["bench", entry.name][..], setting.arguments].concat();
                let parsed =
                    <Cli as clap::Parser>::try_parse_from(line.iter().chain(&["--json", "x"]));
                assert!(parsed.is_ok(), "{line:?}: {:?}", parsed.err());
                assert!(setting.seconds > 0.0);
            }
            assert!(entry.quick.seconds <= entry.full.seconds, "{}", entry.name);
        }
    }
}
