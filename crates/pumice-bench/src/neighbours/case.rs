//! A case: neighbours of one kind, in a session or a control group, and their loss to work in the background.

use clap::Args;

use super::{wait_until_all_work, Neighbour, Session, Work};
use crate::harness::Output;
use crate::registry::Row;
use crate::team::control_group::ControlGroup;
use pumice_command::Failure;

/// Options of an experiment with neighbours.
#[derive(Args, Debug)]
pub struct CaseArgs {
    /// Pairs of windows for each case
    #[arg(long, value_name = "N", default_value_t = 15, value_parser = clap::value_parser!(u32).range(6..=1000))]
    pub pairs: u32,
    /// Only the cases whose name starts with this
    #[arg(long, value_name = "CASE", default_value = "")]
    case: String,
}

/// A case with neighbours.
#[derive(Debug)]
pub struct Case {
    pub name: String,
    pub neighbours: usize,
    pub work: Work,
    pub session: Session,
    pub group: Option<GroupKind>,
}

/// The processes that a control group holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GroupKind {
    /// The neighbours, without a limit.
    Neighbours,
    /// The neighbours and this process, with a quota of one processor.
    WithQuota,
}

/// Neighbours at work.
#[derive(Debug)]
pub struct Beside {
    neighbours: Vec<Neighbour>,
    _group: Option<ControlGroup>,
}

impl Case {
    /// Starts the neighbours, and waits until they work. `Err` says why the case can't be measured here.
    pub fn start(&self) -> Result<Beside, String> {
        let group = self.group.map(|_| ControlGroup::of_processors()).transpose();
        let group = group.map_err(|error| format!("no control group: {error}"))?;
        if let (Some(group), Some(GroupKind::WithQuota)) = (&group, self.group) {
            group.set_quota_of_one().map_err(|error| format!("no quota: {error}"))?;
            group.enter(std::process::id()).map_err(|error| error.to_string())?;
        }
        let neighbours = (0..self.neighbours)
            .map(|_| Neighbour::start(self.work, self.session))
            .collect::<Result<Vec<_>, _>>()
            .map_err(|error| format!("no neighbour: {error}"))?;
        if let (Some(group), Some(GroupKind::Neighbours)) = (&group, self.group) {
            for neighbour in &neighbours {
                group.enter(neighbour.pid()).map_err(|error| error.to_string())?;
            }
        }
        wait_until_all_work(&neighbours)?;
        Ok(Beside { neighbours, _group: group })
    }
}

impl Beside {
    /// The work of all of them so far.
    pub fn work_done(&self) -> u64 {
        self.neighbours.iter().map(Neighbour::work_done).sum()
    }
}

/// Measures the cases whose names begin so, `alone` first. A case that can't be measured is skipped, and that is said.
pub fn measure(
    cases: &[Case],
    args: &CaseArgs,
    output: &mut Output,
    alone: impl FnOnce() -> Result<Row, Failure>,
    mut beside: impl FnMut(&Case) -> Result<Row, String>,
) -> Result<(), Failure> {
    if "alone".starts_with(&*args.case) {
        output.show(alone()?)?;
    }
    for case in cases.iter().filter(|case| case.name.starts_with(&*args.case)) {
        match beside(case) {
            Ok(row) => output.show(row)?,
            Err(why) => eprintln!("{}: skipped, {why}", case.name),
        }
    }
    Ok(())
}

/// Says so where autogroup is off: then a session of its own makes no difference.
pub fn look_for_autogroup(consequence: &str) {
    let autogroup = std::fs::read_to_string("/proc/sys/kernel/sched_autogroup_enabled");
    if !autogroup.is_ok_and(|text| text.trim() == "1") {
        eprintln!("autogroup is off: {consequence}");
    }
}
