use serde_json::{Map, Value};

use super::*;

struct Folder(tempfile::TempDir);

impl Folder {
    /// A task as small as Harbor takes one.
    fn new() -> Self {
        let folder = Self(tempfile::tempdir().unwrap());
        folder.write("one/task.toml", "schema_version = \"1.4\"\n");
        folder.write("one/instruction.md", "<!-- a canary -->\n# the canary GUID 1\n\nDo it.\n");
        folder.write("one/environment/Dockerfile", "FROM scratch\n");
        folder.write("one/tests/test.sh", "echo 1 > /logs/verifier/reward.txt\n");
        folder
    }

    fn write(&self, path: &str, text: &str) {
        let path = self.0.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    fn load(&self) -> Result<Task, String> {
        load(&self.0.path().join("one")).map(|mut tasks| tasks.remove(0)).map_err(|error| error.to_string())
    }

    fn fault(&self) -> String {
        let error = self.load().unwrap_err();
        error.split_once("/one: ").unwrap_or_else(|| panic!("{error}")).1.to_owned()
    }
}

#[test]
fn a_small_task_has_harbor_s_defaults() {
    let folder = Folder::new();
    let task = folder.load().unwrap();
    let file = |text: &str, mode| TaskFile { content: text.as_bytes().to_vec(), mode };
    let verifier = Verifier {
        command: shell("/tests/test.sh"),
        files: BTreeMap::from([("/tests/test.sh".to_owned(), file("echo 1 > /logs/verifier/reward.txt\n", 0o755))]),
        clear: ["/tests", "/logs/verifier"].map(str::to_owned).to_vec(),
        network: true,
        timeout_s: Some(600),
        scoring: Scoring::Files(["/logs/verifier/reward.json", "/logs/verifier/reward.txt"].map(str::to_owned).to_vec()),
        ..Verifier::default()
    };
    let expected = Task {
        id: "one".to_owned(),
        image: TaskImage::Built(folder.0.path().join("one/environment")),
        user: Some(User::ROOT),
        folders: ["/logs/agent", "/logs/artifacts"].map(str::to_owned).to_vec(),
        verifier: Some(verifier),
        artifacts: vec!["/logs/artifacts".to_owned()],
        metadata: Map::from_iter([("harbor".to_owned(), serde_json::json!({"schema_version": "1.4"}))]),
        ..Task::of_prompt("Do it.\n")
    };
    assert_eq!(task, expected);
}

#[test]
fn a_whole_task_is_understood() {
    let folder = Folder::new();
    let text = r#"
version = "1.0"
artifacts = ["/app/out", { source = "/var/log/x", destination = "x" }]
[task]
name = "org/first"
keywords = ["a"]
[metadata]
difficulty = "hard"
[verifier]
timeout_sec = 90.5
user = "root"
env = { A = "b" }
[agent]
timeout_sec = 120.0
user = 1000
[environment]
docker_image = "some/image:1"
cpus = 2
memory = "2G"
storage_mb = 512
workdir = "/app"
allow_internet = false
env = { C = "${C:-d}" }
[solution]
env = { E = "f" }
"#;
    folder.write("one/task.toml", text);
    folder.write("one/solution/solve.sh", "#!/bin/sh\n");
    folder.write("one/solution/data/x", "y");
    let task = folder.load().unwrap();
    let verifier = task.verifier.unwrap();
    assert_eq!((task.id.as_str(), &task.image), ("org/first", &TaskImage::Named("some/image:1".to_owned())));
    assert_eq!((verifier.timeout_s, verifier.user, verifier.network), (Some(91), Some(User::ROOT), false));
    assert_eq!((task.user, task.workdir.as_deref()), (Some(User { uid: 1000, gid: 1000 }), Some("/app")));
    let needs = Needs { timeout_s: Some(120), cpus: Some(2.0), memory_bytes: Some(2 << 30), disk_bytes: Some(512 << 20) };
    assert_eq!(task.needs, needs);
    assert_eq!(task.artifacts, ["/app/out", "/var/log/x", "/logs/artifacts"]);
    assert_eq!((&task.env["C"], &verifier.env["A"]), (&"d".to_owned(), &"b".to_owned()));
    let solution = task.solution.unwrap();
    assert_eq!(solution.files.keys().collect::<Vec<_>>(), ["/solution/data/x", "/solution/solve.sh"]);
    assert_eq!((&solution.env["E"], solution.network, solution.command), (&"f".to_owned(), false, shell("/solution/solve.sh")));
    let expected = serde_json::json!({"difficulty": "hard", "harbor": {"version": "1.0", "task": {"keywords": ["a"]}}});
    assert_eq!(Value::Object(task.metadata), expected);
}

#[test]
fn what_is_not_done_here_is_refused_with_the_reason() {
    let refused = |path: &str, text: &str| {
        let folder = Folder::new();
        folder.write(&format!("one/{path}"), text);
        folder.fault()
    };
    for (path, text, reason) in [
        ("environment/docker-compose.yaml", "", "environment/docker-compose.yaml: tasks of several containers are not run here"),
        (
            "task.toml",
            "[[steps]]\nname = \"a\"\n",
            "task.toml: steps: tasks of several steps are not run here; make a task of each",
        ),
        ("task.toml", "[environment]\ngpus = 1\n", "task.toml: environment.gpus: sandboxes have no accelerators"),
        ("task.toml", "[environment]\nos = \"windows\"\n", "task.toml: environment.os: sandboxes are Linux"),
        (
            "task.toml",
            "[verifier]\nenvironment_mode = \"separate\"\n",
            "task.toml: verifier.environment: a verifier with an environment of its own is not run here",
        ),
        ("task.toml", "[agent]\ntimeout_sec = 0\n", "task.toml: agent.timeout_sec is 0; it must be more than 0"),
        ("task.toml", "[environment]\nmemory = \"much\"\n", "task.toml: environment.memory: \"much\" is no amount as in \"2G\""),
        ("trajectory.json", "{}", "trajectory.json: a harness begins without a history here"),
    ] {
        assert_eq!(refused(path, text), reason, "{path}: {text}");
    }
}

#[test]
fn what_is_missing_is_named() {
    for name in ["instruction.md", "tests/test.sh", "environment/Dockerfile"] {
        let folder = Folder::new();
        std::fs::remove_file(folder.0.path().join("one").join(name)).unwrap();
        assert!(folder.fault().starts_with(name), "{name}: {}", folder.fault());
        std::fs::create_dir(folder.0.path().join("one").join(name)).unwrap();
        assert!(folder.fault().starts_with(name), "{name}: {}", folder.fault());
    }
}

#[test]
fn a_folder_of_tasks_is_all_of_them_or_all_their_faults() {
    let folder = Folder::new();
    let root = folder.0.path().to_owned();
    for name in ["b", "a"] {
        for path in ["task.toml", "instruction.md", "environment/Dockerfile", "tests/test.sh"] {
            folder.write(&format!("{name}/{path}"), &std::fs::read_to_string(root.join("one").join(path)).unwrap());
        }
    }
    folder.write("notes.txt", "no task");
    let ids: Vec<String> = load(&root).unwrap().into_iter().map(|task| task.id).collect();
    assert_eq!(ids, ["a", "b", "one"]);
    for name in ["a", "one"] {
        folder.write(&format!("{name}/task.toml"), "[[steps]]\nname = \"x\"\n");
    }
    let error = load(&root).unwrap_err().to_string();
    assert!(error.starts_with(&format!("2 tasks of {} can't be run:\n", root.display())), "{error}");
    assert_eq!(error.lines().count(), 3, "{error}");
    let empty = tempfile::tempdir().unwrap();
    let error = load(empty.path()).unwrap_err().to_string();
    assert!(error.ends_with("neither it nor a folder in it has a task.toml"), "{error}");
    std::fs::write(empty.path().join("task.yaml"), "").unwrap();
    assert!(load(empty.path()).unwrap_err().to_string().contains("harbor task migrate"));
}
