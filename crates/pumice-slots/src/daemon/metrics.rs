//! What is counted, in the text format that Prometheus reads.
//!
//! Written by hand: the numbers are kept for `pumice slots --stat` anyway, and the format is a line each.

use std::fmt::Write;

use crate::message::ClassRow;
use crate::stat::{Counter, WAIT_BOUNDS_US};

use super::census::Census;

/// The page.
pub fn page(census: &Census, classes: &[ClassRow]) -> String {
    let mut page = String::new();
    // Writing to a string can't fail.
    let _ = write(&mut page, census, classes);
    page
}

fn write(page: &mut String, census: &Census, classes: &[ClassRow]) -> std::fmt::Result {
    const REFUSED: &str = "refused_";
    for counter in Counter::ALL {
        let name = counter.name();
        if counter == Counter::WaitSumUs || name.starts_with(REFUSED) {
            continue;
        }
        let kind = if counter.is_gauge() { "gauge" } else { "counter" };
        writeln!(page, "# HELP pumice_slots_{name} {}", counter.help())?;
        writeln!(page, "# TYPE pumice_slots_{name} {kind}")?;
        writeln!(page, "pumice_slots_{name} {}", census.get(counter))?;
    }

    writeln!(page, "# HELP pumice_slots_refused_total Requests refused, by reason.")?;
    writeln!(page, "# TYPE pumice_slots_refused_total counter")?;
    for counter in Counter::ALL {
        let reason = counter.name().strip_prefix(REFUSED);
        if let Some(reason) = reason.and_then(|reason| reason.strip_suffix("_total")) {
            let value = census.get(counter);
            writeln!(page, "pumice_slots_refused_total{{reason=\"{reason}\"}} {value}")?;
        }
    }

    writeln!(page, "# HELP pumice_slots_wait_seconds Time that granted requests waited.")?;
    writeln!(page, "# TYPE pumice_slots_wait_seconds histogram")?;
    let mut all = 0;
    for (index, count) in census.waits().iter().enumerate() {
        all += count;
        let bound = match WAIT_BOUNDS_US.get(index) {
            Some(&bound_us) => (bound_us as f64 / 1e6).to_string(),
            None => "+Inf".to_owned(),
        };
        writeln!(page, "pumice_slots_wait_seconds_bucket{{le=\"{bound}\"}} {all}")?;
    }
    let sum_s = census.get(Counter::WaitSumUs) as f64 / 1e6;
    writeln!(page, "pumice_slots_wait_seconds_sum {sum_s}")?;
    writeln!(page, "pumice_slots_wait_seconds_count {all}")?;

    writeln!(page, "# HELP pumice_slots_class Slots of a class, by state.")?;
    writeln!(page, "# TYPE pumice_slots_class gauge")?;
    for row in classes {
        let node = row.node.map_or_else(String::new, |node| node.to_string());
        let states = [
            ("wanted", row.wanted),
            ("ready", row.ready),
            ("populating", row.populating),
            ("leased", row.leased),
            ("waited_for", row.waiting),
        ];
        for (state, count) in states {
            writeln!(
                page,
                "pumice_slots_class{{bytes=\"{}\",pages=\"{}\",node=\"{node}\",state=\"{state}\"}} \
                 {count}",
                row.bytes, row.pages
            )?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_page_has_a_value_for_each_name() {
        let mut census = Census::default();
        census.granted(Duration::from_micros(70));
        census.granted(Duration::from_secs(7_000));
        census.refused(crate::message::Reason::Quota);
        let page = page(&census, &[]);
        assert!(page.contains("\npumice_slots_granted_total 2\n"), "{page}");
        assert!(page.contains("pumice_slots_refused_total{reason=\"quota\"} 1\n"));
        assert!(page.contains("pumice_slots_wait_seconds_bucket{le=\"0.0001\"} 1\n"));
        assert!(page.contains("pumice_slots_wait_seconds_bucket{le=\"+Inf\"} 2\n"));
        assert!(page.contains("pumice_slots_wait_seconds_count 2\n"));
        for line in page.lines() {
            let is_comment = line.starts_with("# HELP ") || line.starts_with("# TYPE ");
            let value = line.rsplit(' ').next().expect("a value");
            assert!(is_comment || value.parse::<f64>().is_ok(), "{line}");
        }
    }
}
