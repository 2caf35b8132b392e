//! A copy of the checkout to break things in.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    process::{Command, Output},
};

use anyhow::{Context as _, Result, bail};
use serde::Deserialize;

use super::{Defect, Report, SOURCES};

/// The copy, in the target folder: always at the same place, so that the compiler's incremental work carries over from
/// defect to defect and from run to run.
pub(super) struct Workshop {
    source: PathBuf,
    /// Where finished binaries go: not among the checkout's own.
    target: PathBuf,
    /// Where everything else goes: to the checkout's, whose compiled dependencies serve the copy too.
    build: PathBuf,
    /// Held while the workshop is in use.
    _lock: File,
}

/// What became of one run of the goldens.
pub(super) enum Run {
    Passed(Report),
    Failed(Report),
    /// It did not build, or ended with neither verdict. Says why.
    Broken(String),
}

/// What is read of `cargo metadata`.
#[derive(Deserialize)]
struct Folders {
    target_directory: PathBuf,
    build_directory: PathBuf,
}

impl Workshop {
    /// Copies the files of `checkout` that git tracks or would track.
    ///
    /// # Errors
    /// When that is not a git checkout, files cannot be copied, or another run uses the workshop.
    pub(super) fn open(checkout: &Path) -> Result<Self> {
        let mut metadata = cargo(checkout);
        metadata.args(["metadata", "--no-deps", "--format-version", "1"]);
        let folders: Folders = serde_json::from_slice(&stdout(metadata)?).context("cargo metadata")?;
        let home = folders.target_directory.join("mutants");
        let source = home.join("source");
        fs::create_dir_all(&home).with_context(|| home.display().to_string())?;
        let lock_path = home.join("lock");
        let lock = File::create(&lock_path).with_context(|| lock_path.display().to_string())?;
        lock.try_lock().with_context(|| format!("{}: another run is under way", lock_path.display()))?;

        let mut tracked = Command::new("git");
        tracked.current_dir(checkout).args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"]);
        let files = String::from_utf8(stdout(tracked)?).context("git ls-files")?;
        if source.exists() {
            fs::remove_dir_all(&source).with_context(|| source.display().to_string())?;
        }
        // A file deleted but still tracked is not there to be copied.
        for file in files.split_terminator('\0').filter(|file| checkout.join(file).is_file()) {
            copy(&checkout.join(file), &source.join(file)).with_context(|| file.to_owned())?;
        }
        let manifest = source.join("Cargo.toml");
        let own = fs::read_to_string(&manifest).with_context(|| manifest.display().to_string())?;
        let renumbered = renumber(&own).with_context(|| manifest.display().to_string())?;
        fs::write(&manifest, renumbered).with_context(|| manifest.display().to_string())?;
        Ok(Self { source, target: home.join("target"), build: folders.build_directory, _lock: lock })
    }

    /// Builds the copy as it is and checks its model against the goldens.
    ///
    /// # Errors
    /// When a process cannot be started.
    pub(super) fn run(&self) -> Result<Run> {
        let mut build = cargo(&self.source);
        build.args(["build", "--quiet", "--package", "xtask", "--bin", "xtask"]);
        build.env("CARGO_TARGET_DIR", &self.target).env("CARGO_BUILD_BUILD_DIR", &self.build);
        let built = output(&mut build)?;
        if !built.status.success() {
            return Ok(Run::Broken(complaint(&built)));
        }

        let mut golden = Command::new(self.target.join("debug/xtask").with_extension(std::env::consts::EXE_EXTENSION));
        golden.args(["golden", "--device", "ndarray", "--checks", "fed,free", "--json"]);
        let checked = output(&mut golden)?;
        let report = || serde_json::from_slice(&checked.stdout).context("cargo xtask golden --json");
        Ok(match checked.status.code() {
            Some(0) => Run::Passed(report()?),
            Some(1) => Run::Failed(report()?),
            _ => Run::Broken(complaint(&checked)),
        })
    }

    /// As [`Self::run`], with `defect` in the copy meanwhile.
    ///
    /// # Errors
    /// When the defect's text does not occur once, or a file or process fails.
    pub(super) fn run_with(&self, defect: &Defect) -> Result<Run> {
        let path = self.source.join(SOURCES).join(defect.file);
        let sound = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        fs::write(&path, defect.edit(&sound)?).with_context(|| path.display().to_string())?;
        let run = self.run();
        fs::write(&path, sound).with_context(|| path.display().to_string())?;
        run
    }
}

/// A workspace manifest with another version.
///
/// Cargo tells packages of a workspace apart by name, version and place in the workspace, wherever that lies: with the
/// checkout's own version, a broken model in the shared build folder would pass for the checkout's.
fn renumber(manifest: &str) -> Result<String> {
    let is_version = |line: &&str| line.starts_with("version = ");
    match manifest.lines().filter(is_version).collect::<Vec<_>>()[..] {
        [version] => Ok(manifest.replacen(version, "version = \"0.0.0-mutant\"", 1)),
        ref versions => bail!("{} lines begin with `version = `, expected one", versions.len()),
    }
}

fn copy(from: &Path, to: &Path) -> std::io::Result<()> {
    fs::create_dir_all(to.parent().expect("a file lies in a folder"))?;
    fs::copy(from, to).map(|_| ())
}

fn cargo(folder: &Path) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(folder);
    command
}

fn output(command: &mut Command) -> Result<Output> {
    command.output().with_context(|| command.get_program().display().to_string())
}

fn stdout(mut command: Command) -> Result<Vec<u8>> {
    let output = output(&mut command)?;
    if !output.status.success() {
        bail!("{}: {}", command.get_program().display(), complaint(&output));
    }
    Ok(output.stdout)
}

/// What went wrong, in one line of the process's own, or else how it ended.
fn complaint(output: &Output) -> String {
    match first_error(&String::from_utf8_lossy(&output.stderr)) {
        Some(line) => line.to_owned(),
        None => format!("{} without a message", output.status),
    }
}

/// The first line about an error or a panic, or else the first line.
fn first_error(text: &str) -> Option<&str> {
    let telling = |line: &&str| ["error", "fatal", "thread "].iter().any(|start| line.starts_with(start));
    text.lines().find(telling).or_else(|| text.lines().next())
}

#[cfg(test)]
mod tests {
    use super::{first_error, renumber};

    #[test]
    fn the_copy_has_a_version_of_its_own() {
        let manifest = "[workspace.package]\nversion = \"0.1.0\"\n[workspace.dependencies]\na = { version = \"1\" }\n";
        let expected = manifest.replace("0.1.0", "0.0.0-mutant");
        assert_eq!(renumber(manifest).expect("one version"), expected);
        assert!(renumber("[workspace]\n").is_err());
        assert!(renumber(&manifest.repeat(2)).is_err());
    }

    #[test]
    fn the_telling_line_is_found() {
        let compiler = "warning: unused\n  at a.rs\nerror[E0425]: no `x`\nerror: aborting\n";
        assert_eq!(first_error(compiler), Some("error[E0425]: no `x`"));
        assert_eq!(first_error("something else\nmore\n"), Some("something else"));
        assert_eq!(first_error(""), None);
    }
}
