//! Compiles the sandbox's init (`src/harness/init/main.rs`) into one static program that the binary embeds.

use std::env;
use std::fs;
use std::path::PathBuf;
use std::process::Command;

const FOLDER: &str = "src/harness/init";

fn main() {
    println!("cargo::rerun-if-changed={FOLDER}");
    // Embedded by `include_dir!`, which can't tell cargo so.
    println!("cargo::rerun-if-changed=harnesses");
    println!("cargo::rerun-if-changed=build.rs");
    let variable = |name: &str| env::var(name).unwrap_or_else(|_| panic!("cargo sets {name} for build scripts"));
    let source = format!("{FOLDER}/main.rs");
    let out = PathBuf::from(variable("OUT_DIR")).join("init");
    if variable("CARGO_CFG_TARGET_OS") != "linux" {
        // Elsewhere the proxy and the exports work; running harnesses says what it lacks.
        fs::write(&out, []).unwrap_or_else(|error| panic!("write {}: {error}", out.display()));
        return;
    }
    // Its own rustc run: crt-static for the whole build would break proc-macros, and a second [[bin]] would be dynamic.
    let mut rustc = Command::new(variable("RUSTC"));
    rustc
        .args(["--edition=2024", "--crate-name=init", "--crate-type=bin", "-O", "-Cpanic=abort", "-Cstrip=symbols"])
        .arg("-Ctarget-feature=+crt-static")
        .args(["--target", &variable("TARGET")])
        .arg("-o")
        .arg(&out)
        .arg(&source);
    if let Ok(linker) = env::var("RUSTC_LINKER") {
        rustc.arg(format!("-Clinker={linker}"));
    }
    let status = rustc.status().unwrap_or_else(|error| panic!("run rustc for {source}: {error}"));
    assert!(status.success(), "rustc could not compile {source} as a static program");
}
