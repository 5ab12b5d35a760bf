//! `pumice bench report`: the page of results that were measured before.

use std::path::PathBuf;

use clap::Args;

use super::page;
use super::results::Results;
use pumice_command::whole_file::write_whole;
use pumice_command::Failure;

/// Options of `pumice bench report`.
#[derive(Args, Debug)]
pub struct ReportArgs {
    /// Results that 'pumice bench all --json' wrote
    #[arg(value_name = "RESULTS")]
    results: PathBuf,
    /// Write the page to FILE
    #[arg(long, value_name = "FILE")]
    html: PathBuf,
}

/// Writes the page.
pub fn report(options: &ReportArgs) -> Result<(), Failure> {
    let results = Results::load(&options.results)?;
    write_whole(&options.html, &page::page(&results))?;
    Ok(())
}
