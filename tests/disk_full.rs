//! A harness that fills the disk, by the command: it is ended soon after its bound, or told by the system where storage has quotas.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::process::Command;

#[test]
#[ignore = "needs Docker"]
fn who_fills_the_disk_is_ended() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    std::fs::create_dir_all(path("harnesses/filler")).unwrap();
    let text = "name = \"filler\"\nversion = \"1\"\ndescription = \"\"\nwire = \"chat\"\n[payload]\nbuild = \"build.sh\"\nwhere = \"host\"\n\
                [run]\ncommand = [\"sh\", \"-c\", \"head -c 60000000 /dev/zero >big || exit 9; exec sleep 1000\"]\n";
    std::fs::write(path("harnesses/filler/harness.toml"), text).unwrap();
    std::fs::write(path("harnesses/filler/build.sh"), "touch $OUT/x\n").unwrap();
    std::fs::write(path("config.toml"), "[engine]\ndisk = \"20m\"\n").unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_gleaner"))
        .args(["run", "filler", "fill it", "--json", "--timeout", "120", "--policy", "http://127.0.0.1:9"])
        .args([std::ffi::OsStr::new("--harnesses"), path("harnesses").as_os_str()])
        .args([std::ffi::OsStr::new("--database"), path("gleaner.db").as_os_str()])
        .env("GLEANER_CONFIG", path("config.toml"))
        .env("XDG_CACHE_HOME", path("cache"))
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    let evidence = std::fs::read_dir(path("artifacts")).ok().and_then(|mut found| found.next()).map(|found| {
        let text = std::fs::read_to_string(found.unwrap().path().join("evidence.json")).unwrap();
        serde_json::from_str::<serde_json::Value>(&text).unwrap()
    });
    let evidence = evidence.unwrap_or_else(|| panic!("{said}"));
    if evidence["exit"]["code"] == 9 {
        assert!(said.contains("\"outcome\":\"harness_error\"") && said.contains("No space left"), "{said} {evidence}");
        return;
    }
    assert_eq!(evidence["exit"]["capped"], "disk", "{said} {evidence}");
    assert!(evidence["disk_bytes"].as_u64().is_some_and(|used| used >= 60_000_000), "{evidence}");
    assert!(said.contains("\"outcome\":\"truncated\""), "{said}");
    assert!(said.contains("does not bound what a sandbox writes"), "{said}");
}
