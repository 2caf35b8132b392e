use std::io::{self, BufRead, BufReader, Read};
use std::process::Stdio;
use std::thread;
use std::time::Duration;

use proptest::{collection::vec, prelude::*};
use tempfile::TempDir;

use super::*;
#[cfg(unix)]
use crate::run::testing::child_without_room;
use crate::run::testing::{child, folder_of_child};

fn keep(count: usize) -> NonZeroUsize {
    NonZeroUsize::new(count).unwrap()
}

fn trained(loss: f64) -> Score {
    Score { training_loss: loss, evaluation_loss: None }
}

fn evaluated(loss: f64) -> Score {
    Score { training_loss: 9.0, evaluation_loss: Some(loss) }
}

/// What the tests save at a step, in a folder below as well.
fn write(step: u64) -> impl FnOnce(&Path) -> io::Result<()> {
    move |folder| {
        fs::create_dir(folder.join("optimiser"))?;
        fs::write(folder.join("adapters"), content(step))?;
        fs::write(folder.join("optimiser/moments"), content(step + 1))
    }
}

fn content(step: u64) -> Vec<u8> {
    step.to_le_bytes().repeat(2000)
}

fn is_of_its_step(checkpoint: &Checkpoint) -> bool {
    let read = |name: &str| fs::read(checkpoint.path().join(name)).unwrap();
    read("adapters") == content(checkpoint.step()) && read("optimiser/moments") == content(checkpoint.step() + 1)
}

fn open(folder: &Path) -> Checkpoints {
    let (checkpoints, notices) = Checkpoints::open(folder, keep(2)).unwrap();
    assert!(notices.is_empty(), "{notices:?}");
    checkpoints
}

/// A folder with checkpoints of these steps and losses.
fn saved(scores: &[(u64, Score)]) -> (TempDir, Checkpoints) {
    let folder = tempfile::tempdir().unwrap();
    let mut checkpoints = open(folder.path());
    for &(step, score) in scores {
        checkpoints.save(step, score, write(step)).unwrap();
    }
    (folder, checkpoints)
}

fn steps(checkpoints: &Checkpoints) -> Vec<u64> {
    checkpoints.all().iter().map(Checkpoint::step).collect()
}

#[test]
fn the_newest_and_the_best_are_kept() {
    let losses = [4.0, 1.0, 3.0, 2.0, 2.5].map(trained);
    let (folder, checkpoints) = saved(&[1, 2, 3, 4, 5].into_iter().zip(losses).collect::<Vec<_>>());
    assert_eq!(steps(&checkpoints), [2, 4, 5]);
    assert_eq!(checkpoints.best().unwrap().step(), 2);
    assert_eq!(checkpoints.latest().0.unwrap().step(), 5);
    let again = open(folder.path());
    assert_eq!(again.all(), checkpoints.all());
    assert!(again.all().iter().all(is_of_its_step));
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 3, "nothing else is left");
}

#[test]
fn evaluation_decides_where_there_is_one_and_no_diverged_loss_is_the_best() {
    let best = |scores: &[(u64, Score)]| saved(scores).1.best().unwrap().step();
    assert_eq!(best(&[(1, trained(0.1)), (2, evaluated(3.0))]), 2);
    assert_eq!(best(&[(1, evaluated(3.0)), (2, evaluated(2.0)), (3, evaluated(f64::NAN))]), 2);
    assert_eq!(best(&[(1, trained(f64::NAN)), (2, trained(5.0))]), 2);
    assert_eq!(best(&[(1, trained(f64::NAN)), (2, trained(f64::NAN))]), 2);
    assert_eq!(best(&[(1, evaluated(1.0)), (2, evaluated(1.0))]), 2);
}

#[test]
fn steps_have_to_go_up() {
    let (_folder, mut checkpoints) = saved(&[(7, trained(1.0))]);
    let error = checkpoints.save(7, trained(0.5), write(7)).unwrap_err().to_string();
    assert!(error.ends_with("a checkpoint of step 7, expected one after step 7, which is saved already"), "{error}");
    assert!(is_of_its_step(&checkpoints.all()[0]));
}

#[test]
fn going_back_to_a_step_removes_later_checkpoints() {
    let (folder, mut checkpoints) = saved(&[(1, trained(3.0)), (2, trained(2.0))]);
    let notices = checkpoints.rewind(1).unwrap();
    assert!(matches!(&notices[..], [Notice::CheckpointRemoved { path }] if path.ends_with("step-000002")));
    assert_eq!(steps(&open(folder.path())), [1]);
    checkpoints.save(2, trained(1.0), write(2)).unwrap();
    assert_eq!(steps(&open(folder.path())), [1, 2]);
}

/// What is said about the newest of two checkpoints after `damage` to its folder; the older one has to be found.
fn fault_of(damage: impl FnOnce(&Path)) -> String {
    let (folder, checkpoints) = saved(&[(1, trained(3.0)), (2, trained(2.0))]);
    damage(checkpoints.all()[1].path());
    let (checkpoints, mut notices) = Checkpoints::open(folder.path(), keep(2)).unwrap();
    let (latest, found) = checkpoints.latest();
    notices.extend(found);
    assert_eq!(latest.unwrap().step(), 1);
    assert_eq!(notices.len(), 1, "{notices:?}");
    notices[0].to_string()
}

#[test]
fn every_damage_is_found_and_told() {
    let tells = |damage: fn(&Path), expected: &str| {
        let fault = fault_of(damage);
        assert!(fault.contains("step-000002: passed over: ") && fault.contains(expected), "{fault}");
    };
    tells(|path| fs::remove_file(path.join("manifest.json")).unwrap(), "it has no manifest.json");
    tells(|path| fs::write(path.join("manifest.json"), "{").unwrap(), "manifest.json: EOF while parsing");
    tells(
        |path| drop(fs::copy(path.with_file_name("step-000001").join("manifest.json"), path.join("manifest.json"))),
        "manifest.json is of step 1, expected 2",
    );
    tells(
        |path| fs::remove_file(path.join("optimiser/moments")).unwrap(),
        "optimiser/moments is missing, expected 16000 bytes",
    );
    tells(|path| fs::write(path.join("other"), "").unwrap(), "other is not in manifest.json");
    tells(|path| fs::write(path.join("adapters"), "").unwrap(), "adapters has 0 bytes, expected 16000");
    tells(|path| fs::write(path.join("adapters"), content(3)).unwrap(), "adapters has SHA-256 ");
}

#[test]
fn a_broken_checkpoint_gives_way_to_a_new_one_of_its_step() {
    let (folder, checkpoints) = saved(&[(1, trained(3.0)), (2, trained(2.0))]);
    fs::remove_file(checkpoints.all()[1].path().join("manifest.json")).unwrap();
    let (mut checkpoints, _) = Checkpoints::open(folder.path(), keep(2)).unwrap();
    checkpoints.save(2, trained(2.0), write(2)).unwrap();
    assert_eq!(steps(&open(folder.path())), [1, 2]);
}

#[test]
fn a_writer_that_fails_at_any_byte_leaves_earlier_checkpoints_as_they_were() {
    let (folder, mut checkpoints) = saved(&[(1, trained(3.0))]);
    for bytes in [0, 1, 4096, 15_999] {
        let error = checkpoints.save(2, trained(2.0), |folder| {
            fs::write(folder.join("adapters"), &content(2)[..bytes])?;
            Err::<(), io::Error>(io::ErrorKind::StorageFull.into())
        });
        let error = error.unwrap_err().to_string();
        assert!(error.ends_with("step-000002: the checkpoint cannot be written: no storage space"), "{error}");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "nothing is left of it");
    }
    assert!(is_of_its_step(open(folder.path()).latest().0.unwrap()));
    checkpoints.save(2, trained(2.0), write(2)).unwrap();
    assert_eq!(steps(&open(folder.path())), [1, 2]);
}

/// Not a test of its own but what the next one kills: saves until then, and acknowledges each step on standard error.
#[test]
#[ignore = "the child process of another test"]
fn child_that_saves_until_it_is_killed() {
    let Some(folder) = folder_of_child() else { return };
    let mut checkpoints = open(&folder);
    loop {
        let step = checkpoints.all().last().map_or(0, Checkpoint::step) + 1;
        checkpoints.save(step, trained((step % 7) as f64), write(step)).unwrap();
        eprintln!("{step}");
    }
}

proptest! {
    // Children do not repeat what they did, so nothing can be made smaller.
    #![proptest_config(ProptestConfig {
        cases: 1,
        max_shrink_iters: 0,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn a_kill_at_any_moment_loses_no_acknowledged_checkpoint(delays in vec(0..40_000_u64, 40)) {
        let folder = tempfile::tempdir().unwrap();
        for delay in delays {
            let acknowledged = save_until_killed(folder.path(), Duration::from_micros(delay));
            durable::remove_leftovers(folder.path()).unwrap();
            let checkpoints = open(folder.path());
            let (latest, notices) = checkpoints.latest();
            prop_assert!(notices.is_empty(), "{notices:?}");
            let step = latest.map_or(0, Checkpoint::step);
            prop_assert!(step >= acknowledged, "the newest is of step {step}, but {acknowledged} was acknowledged");
            for checkpoint in checkpoints.all() {
                prop_assert!(checkpoint.verify().is_ok() && is_of_its_step(checkpoint), "{checkpoint:?}");
            }
        }
    }
}

/// Has a child process save, kills it some time after it has begun to, and returns the last step that it acknowledged.
fn save_until_killed(folder: &Path, delay: Duration) -> u64 {
    let mut child = child("checkpoints::tests::child_that_saves_until_it_is_killed", folder)
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = BufReader::new(child.stderr.take().unwrap());
    let mut first = String::new();
    said.read_line(&mut first).unwrap();
    thread::sleep(delay);
    child.kill().unwrap();
    let mut rest = Vec::new();
    said.read_to_end(&mut rest).unwrap();
    child.wait().unwrap();
    // What is said last may be torn.
    rest.truncate(rest.iter().rposition(|&byte| byte == b'\n').map_or(0, |end| end + 1));
    let last = String::from_utf8(rest).unwrap().lines().last().map_or(first, str::to_owned);
    last.trim().parse().unwrap_or_else(|_| panic!("the child failed: {last}"))
}

/// Not a test of its own but what the next one runs where no file can be large.
#[test]
#[ignore = "the child process of another test"]
fn child_that_saves_what_is_too_large() {
    let Some(folder) = folder_of_child() else { return };
    let mut checkpoints = open(&folder);
    checkpoints.save(1, trained(3.0), write(1)).unwrap();
    let error = checkpoints.save(2, trained(2.0), |folder| fs::write(folder.join("adapters"), vec![0; 1 << 20]));
    let error = error.unwrap_err().to_string();
    assert!(error.contains("step-000002: the checkpoint cannot be written: File too large"), "{error}");
    checkpoints.save(3, trained(2.0), write(3)).unwrap();
}

#[cfg(unix)]
#[test]
fn a_file_that_the_system_has_no_room_for_leaves_earlier_checkpoints_as_they_were() {
    let folder = tempfile::tempdir().unwrap();
    let mut child = child_without_room("checkpoints::tests::child_that_saves_what_is_too_large", folder.path());
    let output = child.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let checkpoints = open(folder.path());
    assert_eq!(steps(&checkpoints), [1, 3]);
    assert!(checkpoints.all().iter().all(|checkpoint| checkpoint.verify().is_ok() && is_of_its_step(checkpoint)));
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2, "nothing else is left");
}
