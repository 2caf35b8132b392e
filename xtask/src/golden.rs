//! `cargo xtask golden`.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Instant,
};

use anyhow::{Context as _, Result, bail};
use burn::tensor::DType;
use clap::Args;
use dsv41::ModelBackend;
use dsv41::Numerics;
use dsv41_cli::{
    device::{DeviceName, DeviceTask, Precision},
    weights::GoldenWeights,
};
use dsv41_config::Config;
use dsv41_golden::{Check, Fixture, Golden, GradientGolden, Inputs};

use crate::{
    burn_run::BurnRun,
    checks::{Outcome, run_check},
    engram_hash, gradients,
    implementation::{Implementation, OracleRun},
    make::{Made, fixture_config, make},
    report::Report,
};

/// Check the oracle and the model against golden files, or make golden files.
///
/// With no arguments: every golden in goldens/, goldens/oracle/ and goldens/gradients/, the oracle and the model on ndarray
/// and flex, all three checks; gradients in f64, of the model alone. Exit code 0 when all pass, 1 on any breach, 2 on bad input.
#[derive(Debug, Args)]
pub struct GoldenArgs {
    /// Check this golden file instead of the repository's (may be given more than once).
    #[arg(long, value_name = "PATH")]
    file: Vec<PathBuf>,
    /// Devices to run the model on.
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "ndarray,flex")]
    device: Vec<String>,
    /// Only the goldens of these names.
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    only: Vec<String>,
    /// Which checks: fed (every layer gets the golden's input and choices), forced (end to end with its choices), free.
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "fed,forced,free")]
    checks: Vec<String>,
    /// One row for each regime; with --json, every capture's comparison too.
    #[arg(long)]
    verbose: bool,
    /// Print JSON instead of a table.
    #[arg(long)]
    json: bool,
    /// Run this fixture with the oracle and write a golden file.
    #[arg(long, value_name = "FIXTURE.json", requires = "out", conflicts_with_all = ["file", "regenerate"])]
    make: Option<PathBuf>,
    /// Where --make writes; the whole tensors go beside it.
    #[arg(long, value_name = "FILE", requires = "make")]
    out: Option<PathBuf>,
    /// Make every golden in goldens/oracle/ again from its own fixture.
    #[arg(long, conflicts_with = "file")]
    regenerate: bool,
    /// With --regenerate's work but no writing: fail if any byte would change.
    #[arg(long, conflicts_with_all = ["file", "make"])]
    check: bool,
}

impl GoldenArgs {
    /// Does what the arguments ask for; whether everything held.
    ///
    /// # Errors
    /// On bad input: exit code 2.
    pub fn run(&self) -> Result<bool> {
        if let (Some(fixture), Some(out)) = (&self.make, &self.out) {
            let Made { golden, inputs } = make(Fixture::read(fixture)?, fixture, out)?;
            inputs.write()?;
            golden.write()?;
            println!("wrote {} and {}", out.display(), golden.inputs_path().display());
            return Ok(true);
        }
        if self.regenerate || self.check {
            return regenerate(self.check, &self.only);
        }
        let checks = self.checks.iter().map(|name| parse_check(name)).collect::<Result<Vec<_>>>()?;
        let devices = self.device.iter().map(|name| Ok(name.parse()?)).collect::<Result<Vec<DeviceName>>>()?;
        for &device in &devices {
            device.dispatch(Precision::F32, Presence)?;
        }
        let report = check_all(&self.files()?, &devices, &checks, self.verbose)?;
        if self.json {
            println!("{}", report.to_json());
        } else {
            println!("{report}");
        }
        Ok(report.passed())
    }

    fn files(&self) -> Result<Vec<PathBuf>> {
        let wanted = |path: &PathBuf| self.only.is_empty() || self.only.iter().any(|name| *name == stem(path));
        let mut files = self.file.clone();
        if files.is_empty() {
            files = json_files(&folder("goldens"))?;
            files.extend(json_files(&folder("goldens/oracle"))?);
            files.extend(json_files(&folder("goldens/gradients"))?);
        }
        let chosen: Vec<PathBuf> = files.iter().filter(|path| wanted(path)).cloned().collect();
        if chosen.is_empty() {
            let names: Vec<String> = files.iter().map(|path| stem(path)).collect();
            bail!("no golden is called {}: there are {}", self.only.join(", "), names.join(", "));
        }
        Ok(chosen)
    }
}

/// Tells whether a device is there at all, before any work is put into it.
struct Presence;

impl DeviceTask for Presence {
    type Output = ();

    fn run<B: ModelBackend>(self, _device: B::Device, _dtype: DType) {}
}

/// The repository's folder of that name.
fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lies in the repository").join(name)
}

fn stem(path: &Path) -> String {
    path.file_stem().unwrap_or_default().to_string_lossy().into_owned()
}

fn json_files(folder: &Path) -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(folder).with_context(|| folder.display().to_string())?;
    let mut files = entries.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?;
    files.retain(|path| path.extension().is_some_and(|extension| extension == "json"));
    files.sort();
    Ok(files)
}

/// Whether a file is a golden of the n-gram hash, by what is in it.
fn is_engram_hash(path: &Path) -> Result<bool> {
    #[derive(serde::Deserialize)]
    struct Keys {
        hash_ids: Option<serde::de::IgnoredAny>,
    }
    let text = fs::read_to_string(path).with_context(|| path.display().to_string())?;
    Ok(serde_json::from_str::<Keys>(&text).is_ok_and(|keys| keys.hash_ids.is_some()))
}

fn parse_check(name: &str) -> Result<Check> {
    match name {
        "fed" => Ok(Check::Fed),
        "forced" => Ok(Check::Forced),
        "free" => Ok(Check::Free),
        _ => bail!("unknown check `{name}`: expected fed, forced or free"),
    }
}

/// A golden ready to be checked.
struct Subject {
    golden: Golden,
    inputs: Option<Inputs>,
    config: Config,
    weights: GoldenWeights,
}

/// Runs one implementation over one golden.
struct Job<'a> {
    subject: &'a Subject,
    /// The oracle where absent.
    device: Option<DeviceName>,
}

impl Job<'_> {
    fn implementation(&self) -> String {
        self.device.map_or("oracle".to_owned(), |device| device.to_string())
    }

    fn run(&self, checks: &[Check]) -> Result<Vec<(Check, Outcome)>> {
        match self.device {
            None => {
                let Subject { golden, config, weights, .. } = self.subject;
                self.run_checks(checks, &mut OracleRun::new(config, weights, &golden.fixture)?)
            }
            Some(device) => {
                let Subject { golden, config, weights, .. } = self.subject;
                let (numerics, precision) = (Numerics::Reference, Precision::F32);
                let mut run = BurnRun::new(config, weights, &golden.fixture, numerics, device, precision)?;
                self.run_checks(checks, &mut run)
            }
        }
    }

    fn run_checks(&self, checks: &[Check], run: &mut dyn Implementation) -> Result<Vec<(Check, Outcome)>> {
        let Subject { golden, inputs, .. } = self.subject;
        checks.iter().map(|&check| Ok((check, run_check(check, golden, inputs.as_ref(), run)?))).collect()
    }
}

fn check_all(files: &[PathBuf], devices: &[DeviceName], checks: &[Check], by_regime: bool) -> Result<Report> {
    let mut report = Report::default();
    let mut subjects = Vec::new();
    for path in files {
        if is_engram_hash(path)? {
            let begun = Instant::now();
            let released = Config::load(&folder("configs").join("v4.1-flash.json"))?;
            report.hashes(&engram_hash::compare(path, &released)?, begun.elapsed());
            continue;
        }
        if GradientGolden::is_one(path)? {
            for check in gradients::check(path, devices)? {
                report.gradients(&check);
            }
            continue;
        }
        let golden = Golden::read(path)?;
        let config = fixture_config(path, &golden.fixture)?;
        let inputs = golden.inputs()?;
        let begun = Instant::now();
        let weights = golden.make_weights()?;
        report.weights(&golden.fixture.name, golden.weights.len(), begun.elapsed());
        subjects.push(Subject { golden, inputs, config, weights: GoldenWeights(weights) });
    }

    let jobs: Vec<Job> = subjects
        .iter()
        .flat_map(|subject| {
            [None].into_iter().chain(devices.iter().copied().map(Some)).map(move |device| Job { subject, device })
        })
        .collect();
    for (job, outcomes) in jobs.iter().zip(in_parallel(&jobs, |job| job.run(checks))) {
        for (check, outcome) in outcomes? {
            report.outcome(&job.subject.golden.fixture.name, &job.implementation(), check, &outcome, by_regime);
        }
    }
    Ok(report)
}

/// `work` of every item, on all cores, in the items' order.
fn in_parallel<T: Sync, R: Send>(items: &[T], work: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let next = AtomicUsize::new(0);
    let results = Mutex::new(Vec::with_capacity(items.len()));
    let workers = std::thread::available_parallelism().map_or(1, usize::from).min(items.len());
    std::thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(|| {
                loop {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    let Some(item) = items.get(index) else { break };
                    let result = work(item);
                    results.lock().expect("no worker panics while it holds the lock").push((index, result));
                }
            });
        }
    });
    let mut results = results.into_inner().expect("no worker panics while it holds the lock");
    results.sort_by_key(|(index, _)| *index);
    results.into_iter().map(|(_, result)| result).collect()
}

/// Makes every golden of the oracle again; with `only_check`, tells whether the files on disk are what would be written.
fn regenerate(only_check: bool, only: &[String]) -> Result<bool> {
    let mut unchanged = true;
    for path in json_files(&folder("goldens/oracle"))? {
        if !only.is_empty() && !only.contains(&stem(&path)) {
            continue;
        }
        let begun = Instant::now();
        let Made { golden, inputs } = make(Fixture::read(&path)?, &path, &path)?;
        if !only_check {
            inputs.write()?;
            golden.write()?;
        }
        let state = if only_check {
            let same = is(&path, &golden.to_bytes()?)? && is(&golden.inputs_path(), &inputs.to_bytes()?)?;
            unchanged &= same;
            if same { "unchanged" } else { "WOULD CHANGE" }
        } else {
            "written"
        };
        println!("{}: {state} ({:.2}s)", stem(&path), begun.elapsed().as_secs_f64());
    }
    Ok(unchanged)
}

fn is(path: &Path, bytes: &[u8]) -> Result<bool> {
    Ok(fs::read(path).with_context(|| path.display().to_string())? == bytes)
}
