//! `cargo xtask mutate`: proof that the goldens notice what can go wrong in the graph.

mod defects;
mod workshop;

use std::{
    collections::BTreeSet,
    fmt::Write as _,
    path::{Path, PathBuf},
    time::Instant,
};

use anyhow::{Result, bail};
use clap::Args;
use serde::Deserialize;

use defects::DEFECTS;
use workshop::{Run, Workshop};

/// Break the model on purpose, one defect after another, and see that the goldens notice each.
///
/// Works on a copy of the checkout under the target folder and changes nothing else: every defect is an edit of a few
/// words there, after which the model is built again and checked, fed and free, on ndarray. Exit code 0 when every defect
/// was noticed, 1 when one was not, 2 when there is nothing to compare with: the copy does not build or pass unedited.
#[derive(Debug, Args)]
pub struct MutateArgs {
    /// Only the defects of these names.
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    only: Vec<String>,
    /// List the defects and stop.
    #[arg(long, conflicts_with = "markdown")]
    list: bool,
    /// Print docs/mutations.md instead of a line for each defect, which then go to standard error.
    #[arg(long)]
    markdown: bool,
}

impl MutateArgs {
    /// Does what the arguments ask for; whether every defect was noticed.
    ///
    /// # Errors
    /// On an unknown name, or when the unedited copy does not build or pass.
    pub fn run(&self) -> Result<bool> {
        let defects = self.selected()?;
        if self.list {
            for Defect { name, file, what, .. } in defects {
                println!("{name} ({file}): {what}");
            }
            return Ok(true);
        }
        let workshop = Workshop::open(&checkout())?;
        let goldens = unedited(&workshop)?;
        let mut findings = Vec::new();
        for defect in defects {
            let begun = Instant::now();
            let finding = examine(defect, &workshop)?;
            let line = format!("{}: {} ({:.0}s)", defect.name, finding.describe(), begun.elapsed().as_secs_f64());
            if self.markdown {
                eprintln!("{line}");
            } else {
                println!("{line}");
            }
            findings.push((defect, finding));
        }
        if self.markdown {
            print!("{}", markdown(&findings, &goldens));
        }
        Ok(findings.iter().all(|(_, finding)| matches!(finding, Finding::Noticed(_))))
    }

    fn selected(&self) -> Result<Vec<&'static Defect>> {
        if let Some(unknown) = self.only.iter().find(|name| DEFECTS.iter().all(|defect| defect.name != **name)) {
            bail!("no defect is called `{unknown}`: --list names them all");
        }
        let wanted = |defect: &&Defect| self.only.is_empty() || self.only.iter().any(|name| name == defect.name);
        Ok(DEFECTS.iter().filter(wanted).collect())
    }
}

fn checkout() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").components().collect()
}

/// Where the files that defects are edits of lie in a checkout.
const SOURCES: &str = "crates/model/src";

/// Something to get wrong, as an edit of the model.
struct Defect {
    name: &'static str,
    /// What the edited model does.
    what: &'static str,
    /// Under [`SOURCES`].
    file: &'static str,
    /// Text that occurs once in the file.
    from: &'static str,
    /// What takes its place.
    to: &'static str,
}

impl Defect {
    /// `source` with the edit made.
    fn edit(&self, source: &str) -> Result<String> {
        match source.matches(self.from).count() {
            1 => Ok(source.replacen(self.from, self.to, 1)),
            found => bail!("{}: {} holds `{}` {found} times, expected once", self.name, self.file, self.from),
        }
    }
}

/// What became of a defect.
enum Finding {
    Noticed(Notice),
    Missed,
    /// The edit gives no model to check: it does not build, or breaks off. Says why.
    Broken(String),
}

/// How goldens noticed a defect.
struct Notice {
    /// The goldens that noticed.
    goldens: BTreeSet<String>,
    /// The first of them, with its check and the place of its first breach.
    first: String,
    breaches: usize,
}

impl Finding {
    fn describe(&self) -> String {
        match self {
            Self::Noticed(Notice { goldens, first, breaches }) => {
                format!("noticed, first {first} (goldens: {}, captures: {breaches})", goldens.len())
            }
            Self::Missed => "NOT NOTICED".to_owned(),
            Self::Broken(why) => format!("NOT CHECKED: {why}"),
        }
    }
}

/// What this command reads of `cargo xtask golden --json`.
#[derive(Deserialize)]
struct Report {
    rows: Vec<Row>,
}

#[derive(Deserialize)]
struct Row {
    golden: String,
    check: String,
    verdict: String,
    breaches: Vec<String>,
}

/// The names of the goldens, all of which the unedited copy passes.
fn unedited(workshop: &Workshop) -> Result<BTreeSet<String>> {
    match workshop.run()? {
        Run::Passed(report) => Ok(report.rows.into_iter().map(|row| row.golden).collect()),
        Run::Failed(_) => bail!("the goldens do not pass as it is: see `cargo xtask golden`"),
        Run::Broken(why) => bail!("the unedited copy does not get through: {why}"),
    }
}

fn examine(defect: &Defect, workshop: &Workshop) -> Result<Finding> {
    Ok(match workshop.run_with(defect)? {
        Run::Passed(_) => Finding::Missed,
        Run::Failed(report) => Finding::Noticed(Notice::new(&report)),
        Run::Broken(why) => Finding::Broken(why),
    })
}

impl Notice {
    fn new(report: &Report) -> Self {
        let failed = || report.rows.iter().filter(|row| row.verdict == "fail");
        let first = failed().next().map(|row| match row.breaches.first() {
            Some(breach) => format!("`{}` {}, {}", row.golden, row.check, place(breach)),
            None => format!("`{}`, {}", row.golden, row.check),
        });
        Self {
            goldens: failed().map(|row| row.golden.clone()).collect(),
            first: first.unwrap_or_default(),
            // A row of hash ids is one capture and tells no more of itself than its verdict.
            breaches: failed().map(|row| row.breaches.len().max(1)).sum(),
        }
    }
}

/// The call and capture of a breach: `REGIME: CAPTURE: numbers`, or `REGIME: LAYER: query N chooses other CHOICES ..`.
fn place(breach: &str) -> String {
    let mut parts = breach.splitn(3, ": ");
    let (regime, capture, detail) = (parts.next(), parts.next(), parts.next().unwrap_or_default());
    let choice = detail.split_once(" chooses other ").and_then(|(_, choices)| choices.split(' ').next());
    let choice = choice.map_or_else(String::new, |choice| format!(", choice of {choice}"));
    format!("{} `{}`{choice}", regime.unwrap_or_default(), capture.unwrap_or_default())
}

/// The page docs/mutations.md.
fn markdown(findings: &[(&Defect, Finding)], goldens: &BTreeSet<String>) -> String {
    let mut page = format!(
        "# Defects that the goldens notice

`cargo xtask mutate --markdown` wrote this page. It copies the checkout, makes one edit at a time in the copy's
`crates/model/src`, builds that model and runs `cargo xtask golden --device ndarray --checks fed,free` with it; the
unedited copy passes. Each edit below is one way to get the graph wrong, most of them seen in other implementations.
*Noticed by* lists the goldens of which a check failed; *first breach* is the first capture, in the order of the
computation, of the first of these goldens, and *breaches* counts the captures (and choices) of all of them that broke a
bound. A breach in one capture usually spreads within its layer; in the fed check every layer starts from the golden's
own input again. The edits themselves are in `xtask/src/mutate/defects.rs`.

The {} goldens: {}.

| defect | file | noticed by | first breach | breaches |
|---|---|---|---|---:|
",
        goldens.len(),
        list(goldens),
    );
    for (Defect { name, what, file, .. }, finding) in findings {
        let cells = match finding {
            Finding::Noticed(Notice { goldens: noticed, first, breaches }) => {
                let by = if noticed.len() == goldens.len() { "all".to_owned() } else { list(noticed) };
                format!("{by} | {first} | {breaches}")
            }
            Finding::Missed => "**nothing** | - | 0".to_owned(),
            Finding::Broken(why) => format!("**not checked**: {why} | - | 0"),
        };
        writeln!(page, "| **{name}**: {what} | `{file}` | {cells} |").expect("a string takes any text");
    }
    page.push_str(
        "
No value in these goldens is so small that a floor under a quantiser's largest magnitude shows:
`crates/model/tests/rounding.rs` holds the floors to scalar code instead.
",
    );
    page
}

fn list(names: &BTreeSet<String>) -> String {
    names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn every_edit_still_has_its_place() {
        for defect in DEFECTS {
            let path = checkout().join(SOURCES).join(defect.file);
            let source = fs::read_to_string(&path).expect("the file of a defect");
            let edited = defect.edit(&source).expect("the text occurs once");
            assert_ne!(edited, source, "{}", defect.name);
            assert!(!defect.what.contains('|'), "{}: would end a cell of the table", defect.name);
        }
    }

    #[test]
    fn names_are_unique() {
        let names: BTreeSet<_> = DEFECTS.iter().map(|defect| defect.name).collect();
        assert_eq!(names.len(), DEFECTS.len());
    }

    #[test]
    fn an_edit_needs_one_place() {
        let defect = Defect { name: "test", what: "", file: "a.rs", from: "x", to: "y" };
        assert_eq!(defect.edit("a x b").expect("one place"), "a y b");
        let error = defect.edit("x x").expect_err("two places").to_string();
        assert_eq!(error, "test: a.rs holds `x` 2 times, expected once");
    }

    #[test]
    fn a_notice_names_the_first_breach_in_the_table() {
        let row = |golden: &str, check: &str, verdict: &str, breaches: &[&str]| Row {
            golden: golden.to_owned(),
            check: check.to_owned(),
            verdict: verdict.to_owned(),
            breaches: breaches.iter().map(|&breach| breach.to_owned()).collect(),
        };
        let rows = vec![
            row("batch", "fed", "pass", &[]),
            row("tiny", "fed", "fail", &["decode12: L2: query 0 chooses other topk where no scores are close"]),
            row("tiny", "free", "fail", &["decode12: L2.sa_o: 1 of 3 equal", "decode12: logits: 0 of 3 equal"]),
            row("short", "fed", "fail", &["decode1: L0.sa_o: 1 of 3 equal"]),
        ];
        let notice = Notice::new(&Report { rows });
        assert_eq!(notice.first, "`tiny` fed, decode12 `L2`, choice of topk");
        assert_eq!((notice.goldens.len(), notice.breaches), (2, 4));

        let hashes = Notice::new(&Report { rows: vec![row("engram-hash", "ids, model", "fail", &[])] });
        assert_eq!((hashes.first.as_str(), hashes.breaches), ("`engram-hash`, ids, model", 1));
    }
}
