//! How a page's leaving ends, when it was written or could not be.

use crate::backing::Outgoing;
use crate::page_table::pager::Evicted;
use crate::reclaim::members::{AnyTask, Attached};
use crate::space::region::Page;
use crate::space::write_back::{WriteBack, WriteFailed};
use crate::space::Transit;

/// A page that was to be written in place was not.
pub(super) fn give_up_write_back(space: &Attached, task: &AnyTask<'_>, begun: WriteBack) {
    let page = begun.page().page;
    task.end_write_back(begun, Err(WriteFailed));
    space.backing().dirty_again(space.id, page);
}

/// A page went to `to`, where its content may be noted, or stays. Returns whether it went: a fault may have taken it
/// back.
pub(super) fn end_in_transit(
    task: &AnyTask<'_>,
    transit: Transit,
    to: Option<Evicted>,
    note: Option<&mut dyn FnMut(&Page)>,
) -> bool {
    match (to, note) {
        (Some(to), Some(note)) => task.end_swap_out_noting(transit, to, note).is_ok(),
        (Some(to), None) => task.end_swap_out(transit, to).is_ok(),
        (None, _) => {
            task.cancel_swap_out(transit);
            false
        }
    }
}

/// A page was written in place, or could not be. It goes if it is clean still and nobody uses it. Whether it went.
pub(super) fn end_in_place(
    space: &Attached,
    task: &AnyTask<'_>,
    begun: WriteBack,
    page: &Outgoing,
    is_written: bool,
) -> bool {
    let written = begun.page();
    match is_written {
        true => task.end_write_back(begun, Ok(())),
        false => give_up_write_back(space, task, begun),
    }
    let is_idle = is_written && task.test_and_clear_young(page.page) == Some(false);
    let transit = if is_idle { task.begin_swap_out(page.page) } else { None };
    let has_gone = transit.is_some_and(|transit| {
        let is_it = transit.page() == written && !transit.is_dirty();
        let to = if is_it { space.backing().drop_clean(page) } else { None };
        end_in_transit(task, transit, to, None)
    });
    space.backing().let_go(space.id, page.page);
    has_gone
}
