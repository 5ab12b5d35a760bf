//! `pumice bench all`, `report` and `compare` from outside: files, pages, interruption, bad input.

use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use scraper::{Html, Selector};
use serde_json::{json, Value};

use crate::support::{folder, pumice, stderr, stdout};

fn text(path: &Path) -> &str {
    path.to_str().expect("a path of letters")
}

/// A page that stands alone: parsed without an error, nothing loaded from elsewhere, nothing that runs.
fn parse(path: &Path) -> Html {
    let page = fs::read_to_string(path).expect("written");
    let parsed = Html::parse_document(&page);
    assert!(parsed.errors.is_empty(), "{:?}", parsed.errors);
    for element in select(&parsed, "[src], [href], script, iframe, object, embed, link, img, style")
    {
        let value = element.value();
        let link = value.attr("href").or(value.attr("src")).unwrap_or_default();
        let is_inside = link.is_empty() || link.starts_with('#') || link == "data:,";
        assert!(is_inside, "{link}");
        assert!(["a", "link", "style"].contains(&value.name()), "{}", value.name());
    }
    assert!(!page.contains("@import") && !page.contains("url("));
    parsed
}

fn select<'p>(page: &'p Html, selector: &str) -> Vec<scraper::ElementRef<'p>> {
    page.select(&Selector::parse(selector).expect("a selector")).collect()
}

fn words(page: &Html) -> String {
    page.root_element().text().collect::<Vec<_>>().join(" ")
}

fn read(path: &Path) -> Value {
    serde_json::from_str(&fs::read_to_string(path).expect("written")).expect("JSON")
}

/// Results of one experiment, `frame`, whose rows have these rounds.
fn results(ns: &[f64]) -> Value {
    let weather = json!({"compute_ms": [10.0], "zero_ns": 100.0, "fault_ns": 1000.0});
    json!({
        "format": "pumice-bench", "version": 1, "pumice": "0.1.0", "date": "2026-01-02T03:04:05Z",
        "quick": true, "complete": true, "seconds": 3.0,
        "machine": {
            "processor": "a processor", "processors": 2, "memory_bytes": 1_u64 << 33, "kernel": "Linux 6",
            "huge_pages": "madvise", "hypervisor": null, "libc": "glibc 2", "versions": [["cc", "12"]]
        },
        "experiments": [{
            "name": "frame", "arguments": [], "state": "complete", "why": null, "seconds": 1.0,
            "rows": [{"operation": "pcp get", "ns": ns[0], "samples": {"ns": ns}}],
            "notes": ["a note"], "weather": [weather, weather],
            "noise": {"level": "quiet", "spread": 0.01, "drift": 0.0, "others": 0.0, "stolen": 0.0}
        }]
    })
}

fn write(path: &Path, value: &Value) {
    fs::write(path, value.to_string()).expect("written");
}

#[test]
fn one_experiment_becomes_a_page_and_a_file() {
    let folder = folder("bench-all");
    let (html, json) = (folder.join("page.html"), folder.join("results.json"));
    let line = [
        "bench",
        "all",
        "--quick",
        "--only",
        "frame",
        "--html",
        text(&html),
        "--json",
        text(&json),
    ];
    let output = pumice(&line).output().expect("pumice starts");
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(stdout(&output).contains("frame"), "{}", stdout(&output));

    let results = read(&json);
    assert_eq!((&results["format"], &results["version"]), (&json!("pumice-bench"), &json!(1)));
    assert_eq!((&results["complete"], &results["quick"]), (&json!(true), &json!(true)));
    let frame = &results["experiments"][0];
    assert_eq!((&frame["name"], &frame["state"]), (&json!("frame"), &json!("complete")));
    let rows = frame["rows"].as_array().expect("rows");
    assert!(rows.len() > 10);
    assert!(rows.iter().all(|row| row["samples"]["ns"].as_array().is_some_and(|it| it.len() > 2)));
    assert!(results["machine"]["kernel"].as_str().is_some_and(|it| it.starts_with("Linux")));
    // Every field of the file is described.
    let described = include_str!("../../../../../docs/report.md");
    for object in [&results, frame, &results["machine"], &frame["noise"], &frame["weather"][0]] {
        for name in object.as_object().expect("an object").keys() {
            assert!(described.contains(&format!("`{name}`")), "{name} is not in docs/report.md");
        }
    }

    let page = parse(&html);
    assert_eq!(select(&page, "svg[role=img] > title").len(), select(&page, "svg").len());
    assert!(!select(&page, "svg > desc").is_empty());
    assert!(select(&page, "thead th").iter().all(|th| th.value().attr("scope") == Some("col")));
    assert!(select(&page, "tbody tr > :first-child").iter().all(|th| th.value().name() == "th"));
    assert!(words(&page).contains("pcp get and put"));
    assert_eq!(
        select(&page, "[role=region][aria-label][tabindex='0']").len(),
        select(&page, "table").len()
    );

    // The page is a function of the results.
    let again = folder.join("again.html");
    let line = ["bench", "report", text(&json), "--html", text(&again)];
    assert!(pumice(&line).status().expect("pumice starts").success());
    assert_eq!(fs::read(&html).expect("a page"), fs::read(&again).expect("a page"));
}

#[test]
fn what_results_say_is_text() {
    let folder = folder("bench-hostile");
    let (html, json) = (folder.join("page.html"), folder.join("results.json"));
    let evil = "</title></style><script src=http://example.com/x>alert(1)</script>\"'><img src=x>";
    let mut hostile = results(&[1.0]);
    hostile["machine"]["processor"] = json!(evil);
    hostile["machine"]["versions"] = json!([[evil, evil]]);
    hostile["date"] = json!(evil);
    let frame = &mut hostile["experiments"][0];
    frame["rows"][0]["operation"] = json!(format!("pcp {evil}"));
    (frame["why"], frame["notes"], frame["state"]) = (json!(evil), json!([evil]), json!("failed"));
    let mut unknown = frame.clone();
    unknown["name"] = json!("later");
    unknown["rows"] = json!([{evil: evil}]);
    hostile["experiments"].as_array_mut().expect("a list").push(unknown);
    write(&json, &hostile);
    let output = pumice(&["bench", "report", text(&json), "--html", text(&html)]).output();
    let output = output.expect("pumice starts");
    assert!(output.status.success(), "{}", stderr(&output));
    let page = parse(&html);
    assert!(words(&page).matches("alert(1)").count() > 5);
}

#[test]
fn what_was_measured_before_an_interrupt_is_kept() {
    let folder = folder("bench-interrupt");
    let (html, json) = (folder.join("page.html"), folder.join("results.json"));
    let only = "frame,start,scrub";
    let line = ["bench", "all", "--only", only, "--html", text(&html), "--json", text(&json)];
    let mut command = pumice(&line);
    let child =
        command.env("TMPDIR", &folder).stderr(Stdio::piped()).spawn().expect("pumice starts");
    // The order is the registry's: scrub is the first, and takes more than a minute.
    let began = Instant::now();
    let rows = || {
        let inside = fs::read_dir(&folder).expect("a folder").filter_map(Result::ok);
        inside
            .map(|it| it.path().join("rows.jsonl"))
            .any(|it| it.metadata().is_ok_and(|it| it.len() > 0))
    };
    while !rows() {
        assert!(began.elapsed() < Duration::from_secs(60), "no row comes");
        std::thread::sleep(Duration::from_millis(50));
    }
    // SAFETY: a plain system call on a child that is not reaped.
    unsafe { libc::kill(child.id() as i32, libc::SIGINT) };
    let output = child.wait_with_output().expect("it ends");
    assert_eq!(output.status.code(), Some(130), "{}", stderr(&output));
    assert!(
        stderr(&output).contains("interrupted; the results so far are in"),
        "{}",
        stderr(&output)
    );

    let results = read(&json);
    assert_eq!(results["complete"], json!(false));
    let states: Vec<_> =
        (0..3).map(|index| results["experiments"][index]["state"].clone()).collect();
    assert_eq!(states, ["cut-off", "not-run", "not-run"]);
    assert!(results["experiments"][0]["rows"].as_array().is_some_and(|rows| !rows.is_empty()));
    assert!(words(&parse(&html)).contains("Not complete"));
    let left: Vec<_> = fs::read_dir(&folder).expect("a folder").collect();
    assert_eq!(left.len(), 2, "nothing but what was asked for: {left:?}");
}

fn compare(before: &Path, after: &Path, more: &[&str]) -> Output {
    let line = [&["bench", "compare", text(before), text(after)], more].concat();
    pumice(&line).output().expect("pumice starts")
}

#[test]
fn comparisons_have_known_answers() {
    let folder = folder("bench-compare");
    let [before, slower, other, said] =
        ["before", "slower", "other", "said"].map(|name| folder.join(format!("{name}.json")));
    write(&before, &results(&[100.0, 101.0, 99.0]));
    write(&slower, &results(&[150.0, 151.0, 149.0]));
    let mut elsewhere = results(&[100.0, 101.0, 99.0]);
    elsewhere["machine"]["kernel"] = json!("Linux 7");
    write(&other, &elsewhere);

    let same = compare(&before, &before, &[]);
    assert_eq!(same.status.code(), Some(0), "{}", stderr(&same));
    assert!(
        stdout(&same).starts_with("1 figures: 0 worse, 0 better, 1 within noise"),
        "{}",
        stdout(&same)
    );
    let worse = compare(&before, &slower, &["--json", text(&said)]);
    assert_eq!(worse.status.code(), Some(1), "{}", stderr(&worse));
    assert!(stdout(&worse).contains("x 1.500 ["), "{}", stdout(&worse));
    let change = read(&said)["changes"][0].clone();
    assert_eq!((&change["verdict"], &change["ratio"]), (&json!("worse"), &json!(1.5)));
    let better = compare(&slower, &before, &[]);
    assert_eq!(better.status.code(), Some(0), "{}", stderr(&better));
    assert!(stdout(&better).contains("better"), "{}", stdout(&better));
    let warned = compare(&before, &other, &[]);
    assert!(stderr(&warned).contains("kernel: Linux 6, then Linux 7"), "{}", stderr(&warned));
}

#[test]
fn bad_files_and_lines_get_one_line() {
    let folder = folder("bench-bad");
    let [good, newer, damaged] =
        ["good", "newer", "damaged"].map(|name| folder.join(format!("{name}.json")));
    write(&good, &results(&[1.0]));
    let mut value = results(&[1.0]);
    value["version"] = json!(99);
    write(&newer, &value);
    fs::write(&damaged, "{\"format\":").expect("written");
    let (good, newer, damaged) = (text(&good), text(&newer), text(&damaged));
    for (line, word) in [
        (&["compare", good, newer][..], "use a newer one"),
        (&["compare", damaged, good], "no file of results"),
        (&["compare", good, "/nowhere"], "/nowhere"),
        (&["compare", good, "/"], "no file of results"),
        (&["report", newer, "--html", "/dev/null"], "use a newer one"),
        (&["report", good, "--html", "/nowhere/page"], "/nowhere/page"),
        (&["all"], "--html"),
        (&["all", "--only", "dance", "--json", "/dev/null"], "the experiments are"),
        (&["all", "--json", "/nowhere/results"], "/nowhere/results"),
    ] {
        let output = pumice(&[&["bench"], line].concat()).output().expect("pumice starts");
        assert_eq!(output.status.code(), Some(2), "{line:?}: {}", stderr(&output));
        let said = stderr(&output);
        assert!(said.lines().count() == 1 && said.contains(word), "{line:?}: {said}");
    }
}

/// At a phone's width and a desktop's, light and dark: nothing is wider than the page, and the console
/// stays empty.
#[test]
fn a_browser_shows_it() {
    let version = Command::new("chromium").arg("--version").output();
    if !version.is_ok_and(|output| output.status.success()) {
        eprintln!("skipped: apt-get install chromium");
        return;
    }
    let folder = folder("bench-browser");
    let (html, json, frame) =
        (folder.join("page.html"), folder.join("results.json"), folder.join("frame.html"));
    write(&json, &results(&[1.0, 1.1]));
    let line = ["bench", "report", text(&json), "--html", text(&html)];
    assert!(pumice(&line).status().expect("pumice starts").success());
    for scheme in ["0", "1"] {
        for width in [360, 1280] {
            let script = format!(
                "<!doctype html><title>t</title><iframe id=f src=page.html width={width} height=800></iframe>\
                 <script>onload = () => document.body.append('wide ' + \
                 f.contentDocument.documentElement.scrollWidth)</script>"
            );
            fs::write(&frame, script).expect("written");
            let output = Command::new("chromium")
                .args([
                    "--headless",
                    "--no-sandbox",
                    "--disable-gpu",
                    "--dump-dom",
                    "--enable-logging=stderr",
                ])
                .args(["--allow-file-access-from-files", "--window-size=1400,900"])
                .arg(format!("--blink-settings=preferredColorScheme={scheme}"))
                .arg(format!("--user-data-dir={}", folder.join("profile").display()))
                .arg(format!("file://{}", frame.display()))
                .stdin(Stdio::null())
                .output()
                .expect("it starts");
            let shown = stdout(&output);
            let wide: Option<u32> = shown.rsplit_once("wide ").and_then(|(_, rest)| {
                rest.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
            });
            assert!(wide.is_some_and(|wide| wide <= width), "{width}: {wide:?} {shown}");
            assert!(!stderr(&output).contains("CONSOLE"), "{}", stderr(&output));
        }
    }
}
