//! Tests that need a process of their own: one to be killed, or one that the system gives no room.

use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Tells an ignored test that it is such a process, and where it is to write.
const FOLDER: &str = "DSV41_TEST_FOLDER";

/// A command that is this test program again, to run one ignored test, named by its path from `run` on.
pub(super) fn child(test: &str, folder: &Path) -> Command {
    let [program, arguments @ ..] = words(test);
    let mut command = Command::new(program);
    command.args(arguments).env(FOLDER, folder);
    command
}

/// The same where no file can have more than 64 KiB, beyond which writes fail and the process goes on.
#[cfg(unix)]
pub(super) fn child_without_room(test: &str, folder: &Path) -> Command {
    let limited = "trap '' XFSZ; ulimit -f 64; exec \"$0\" \"$@\"";
    let mut command = Command::new("sh");
    command.args(["-c", limited]).args(words(test)).env(FOLDER, folder);
    command
}

/// Where a child is to write; `None` for who runs ignored tests by hand.
pub(super) fn folder_of_child() -> Option<PathBuf> {
    env::var_os(FOLDER).map(PathBuf::from)
}

fn words(test: &str) -> [OsString; 5] {
    let program = env::current_exe().unwrap().into_os_string();
    [program, "--exact".into(), "--ignored".into(), "--nocapture".into(), format!("run::{test}").into()]
}
