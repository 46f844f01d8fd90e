//! Two turns of a real harness: it is told to use its shell tool, and then to come to an end. All that they leave is looked at.

use serde_json::{Value, json};

use super::policy::{Reply, ScriptedPolicy, Seen};
use super::run::{Bench, assert_all_sampled};

/// What its shell is told to run: the task's verifier wants to see what it makes.
pub const MAKE: &str = "tr a-z A-Z < in/seed.txt > made.txt; cat made.txt";
/// How mini-swe-agent is told to come to an end.
pub const SUBMIT: &str = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT";
const TASK: &str = r#"{"id": "upper", "prompt": "Write in/seed.txt in capitals to made.txt: \"quoted\" & <all>.",
  "files": {"in/seed.txt": "seed\n"}, "verify": "grep -qx SEED made.txt && test ! -w /opt/harness"}"#;

/// The task that each harness is given, as a file.
pub fn task(bench: &Bench) -> String {
    bench.file("tasks.jsonl", &TASK.replace('\n', ""))
}

/// A turn that calls a tool.
pub fn call(tool: &str, arguments: &Value) -> Reply {
    Reply { text: Some("Turn {n}: I use the shell.".to_owned()), ..Reply::tools(&[(tool, &arguments.to_string())]) }
}

/// A turn of mini-swe-agent's variant without tools.
pub fn fenced(command: &str) -> Reply {
    Reply::text(format!("THOUGHT: turn {{n}}.\n\n```mswea_bash_command\n{command}\n```"))
}

/// A turn of the `ReAct` agent's variant without tools.
pub fn acted(command: &str) -> Reply {
    Reply::text(format!("Thought: turn {{n}}.\nAction:\n```bash\n{command}\n```"))
}

/// What is run, and what is expected of it.
pub struct Turns<'a> {
    /// `HARNESS` or `HARNESS:VARIANT`.
    pub harness: &'a str,
    pub wire: &'a str,
    /// The server's seed; every test has one of its own.
    pub sampling: u64,
    pub replies: [Reply; 2],
    /// Its requests are streamed.
    pub streams: bool,
    /// Rollouts at once.
    pub rollouts: u32,
    /// Samples that its one conversation becomes.
    pub samples: usize,
    /// How many containers' share of the machine it takes.
    pub weight: u32,
}

impl Turns<'_> {
    /// Runs it and checks the outcome, the calls, and that the samples are what the server sampled, bit by bit. Gives what there
    /// is to look at, and the rollouts' ids.
    pub async fn check(&self) -> (Bench, ScriptedPolicy, Vec<String>) {
        let policy = ScriptedPolicy::start(self.sampling, []).await;
        policy.each_conversation(self.replies.clone());
        let bench = Bench::new(policy.url());
        let (task, count) = (task(&bench), self.rollouts.to_string());
        let words = [self.harness, "--wire", self.wire, "--task", &task, "--samples", &count];
        let ended = bench.start(&words, self.weight * self.rollouts).await.ended().await;
        assert_eq!(ended.code, Some(0), "{ended:?}");
        let seen = policy.seen();
        assert_eq!(seen.len(), 2 * self.rollouts as usize, "{ended:?}");
        let mut ids = Vec::new();
        for rollout in ended.rollouts() {
            self.check_rollout(&bench, &rollout, &seen).await;
            ids.push(rollout["id"].as_str().unwrap().to_owned());
        }
        let exported = bench.export().await;
        assert_eq!(exported.len(), self.samples * self.rollouts as usize);
        assert_all_sampled(&exported, &seen);
        for sample in &exported {
            let end = (&sample["outcome"], &sample["reward"], &sample["status"]);
            assert_eq!(end, (&json!("passed"), &json!(1.0), &json!("complete")));
        }
        (bench, policy, ids)
    }

    async fn check_rollout(&self, bench: &Bench, rollout: &Value, seen: &[Seen]) {
        let id = rollout["id"].as_str().unwrap();
        let evidence = bench.artifact(id, "evidence.json");
        let shown = bench.show(id).await;
        let calls = shown["calls"].as_array().unwrap();
        let is_own = |seen: &&Seen| calls.iter().any(|call| call["capture"]["completion_ids"] == json!(seen.ids()));
        let own: Vec<&Seen> = seen.iter().filter(is_own).collect();
        assert_eq!(own.len(), 2, "{rollout}");
        let name = self.harness.split(':').next().unwrap();
        let tokens: usize = own.iter().map(|call| call.tokens.len()).sum();
        let expected = json!({"id": id, "harness": name, "task_id": "upper", "outcome": "passed", "reward": 1.0,
            "calls": 2, "tokens": tokens, "drift": 0});
        assert_eq!(*rollout, expected, "{evidence}");
        let evidence: Value = serde_json::from_str(&evidence).unwrap();
        assert_eq!(evidence["means"], "completed", "its own result was read: {evidence:#}");
        assert_eq!(evidence["wire"], self.wire);
        for (call, seen) in calls.iter().zip(&own) {
            let facts = (&call["wire"], &call["status"], &call["capture"]["level"]);
            assert_eq!(facts, (&json!(self.wire), &json!("done"), &json!("full")), "{call:#}");
            assert_eq!(seen.body["stream"] == true, self.streams, "{}", seen.body);
        }
        let asked = own[0].body["messages"].as_array().unwrap();
        let prompted = |message: &Value| message.to_string().contains(r#"to made.txt: \"quoted\" & <all>."#);
        assert!(asked.iter().any(prompted), "the prompt came whole: {asked:#?}");
        // That its shell ran is the verifier's to say: on a loaded machine Qwen Code loses what a command printed.
        assert_eq!(shown["samples"].as_array().unwrap().len(), self.samples, "{:#}", shown["branches"]);
        assert_eq!(shown["branches"].as_array().unwrap().len(), self.samples - 1);
        assert_eq!(shown["left_out"], json!([]));
    }
}
