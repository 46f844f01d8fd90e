//! Token in, token out through the binary, against each kind of server: what was sampled is what the record and the samples have, in one
//! sample a conversation, also when a server dies in the middle of a reply.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::format_push_string, clippy::format_collect, reason = "tests")]

mod support;

use std::sync::Arc;

use serde_json::{Value, json};
use support::chat::{Reply as Seen, Tool};
use support::client::get;
use support::gleaner::{Gleaner, Made, Start};
use support::policy::exact::vocabulary::{self, SIZE};
use support::policy::exact::{Asked, Kind, TokenServer, Weights};
use support::policy::{Fault, Gate, Reply, ScriptedPolicy};
use support::record::Record;
use support::until;

const PATH: &str = "/v1/chat/completions";
const KINDS: [Kind; 4] = [Kind::Vllm, Kind::VllmCompletions, Kind::Sglang, Kind::Llamacpp];

/// No model is named here: template and tokenizer are the server's own.
const SERVED: &str = "# the server's own";

struct Stage {
    servers: Vec<TokenServer>,
    gleaner: Gleaner,
    made: Made,
}

impl Stage {
    /// Gleaner before `replicas` servers of one model, with more lines for its policy.
    async fn new(kind: Kind, weights: &Arc<Weights>, replicas: usize, lines: &str) -> Self {
        let mut servers = Vec::new();
        for _ in 0..replicas {
            servers.push(TokenServer::start(kind, weights).await);
        }
        Self::before(servers, lines).await
    }

    /// Gleaner before these.
    async fn before(servers: Vec<TokenServer>, lines: &str) -> Self {
        let dir = Arc::new(tempfile::tempdir().unwrap());
        vocabulary::write(dir.path());
        let others: Vec<String> = servers[1..].iter().map(TokenServer::url).collect();
        let folder = format!("tokenizer = {:?}\n", dir.path().to_str().unwrap());
        // Without one, the server's own is asked.
        let folder = if lines == SERVED { "" } else { &folder };
        let config = format!("[policies.default]\ntokens = \"exact\"\nretry_s = 20\nurls = {others:?}\n{folder}{lines}");
        let start = Start { dir: Some(dir), ..Start::new(servers[0].url()).config(config) };
        let gleaner = start.run().await;
        let made = gleaner.plain_rollout().await;
        Self { servers, gleaner, made }
    }

    /// Sends one turn; what the client sees, and the call's record.
    async fn turn(&self, body: &Value) -> (Seen, Record) {
        let mut answer = self.gleaner.call(PATH, &self.made.key, body).await;
        assert_eq!(answer.status(), 200, "{}\n{}", String::from_utf8_lossy(&answer.bytes().await.unwrap()), self.gleaner.log());
        let id = answer.call_id();
        let seen = Seen::read(&mut answer).await;
        (seen, self.gleaner.record(&id).await)
    }

    /// All that was asked of the servers.
    fn asked(&self) -> Vec<Asked> {
        self.servers.iter().flat_map(TokenServer::asked).collect()
    }

    async fn samples(&self, count: usize) -> Vec<Value> {
        let (samples, left_out) = until("the samples", async || {
            let (samples, left_out) = self.gleaner.samples(&self.made.id).await;
            (samples.len() == count).then_some((samples, left_out))
        })
        .await;
        assert_eq!(left_out, Vec::<Value>::new());
        samples
    }
}

fn user(text: &str) -> Value {
    json!({"role": "user", "content": text})
}

fn request(messages: &[Value], stream: bool) -> Value {
    let tools = json!([{"type": "function", "function": {"name": "bash", "parameters": {"type": "object", "properties": {"command": {"type": "string"}}}}}]);
    json!({"model": "any", "messages": messages, "tools": tools, "stream": stream, "stream_options": {"include_usage": true}})
}

/// What a sample's masked tokens are.
fn trained(sample: &Value) -> (Vec<u32>, Vec<f64>) {
    let ids: Vec<u32> = serde_json::from_value(sample["token_ids"].clone()).unwrap();
    let mask: Vec<u8> = serde_json::from_value(sample["loss_mask"].clone()).unwrap();
    let logprobs: Vec<Option<f64>> = serde_json::from_value(sample["logprobs"].clone()).unwrap();
    let masked = mask.iter().zip(ids.iter().zip(&logprobs)).filter(|(mask, _)| **mask == 1);
    masked.map(|(_, (id, logprob))| (*id, logprob.unwrap())).unzip()
}

#[tokio::test]
async fn a_conversation_is_one_sample_whatever_the_server_and_the_client_make_of_it() {
    for kind in KINDS {
        let weights = Weights::new(
            7,
            [
                Reply::tools(&[("bash", r#"{"command":"ls  -l","n":[1,2]}"#)]).thinking("They want the listing, I think."),
                Reply::text("There are three entries in the list.").thinking("Done then."),
                Reply::text("Certainly, the other one is larger. "),
            ],
        );
        let stage = Stage::new(kind, &weights, 1, "").await;
        let stream = kind != Kind::Llamacpp;
        let mut messages = vec![user("What is there?")];
        let (first, record) = stage.turn(&request(&messages, true)).await;
        assert_eq!((record.status(), record.level()), ("done", "full"), "{kind:?} {record:?}");
        assert_eq!(first.reasoning.trim(), "They want the listing, I think.", "{kind:?}");
        let [Tool { id, name, arguments }] = &first.tools[..] else { panic!("{kind:?}: {first:?}") };
        assert_eq!((name.as_str(), first.finish.as_deref()), ("bash", Some("tool_calls")));
        assert_eq!(arguments, r#"{"command":"ls  -l","n":[1,2]}"#, "{kind:?}: arguments come as the model wrote them");
        // The harness writes them anew, and drops the reasoning.
        let call = json!({"id": id, "type": "function", "function": {"name": name, "arguments": "{\"n\": [1, 2], \"command\": \"ls  -l\"}"}});
        messages.push(json!({"role": "assistant", "content": null, "tool_calls": [call]}));
        messages.push(json!({"role": "tool", "tool_call_id": id, "content": "a\nb\nc"}));
        let (second, record) = stage.turn(&request(&messages, stream)).await;
        assert_eq!((record.level(), second.text.trim()), ("full", "There are three entries in the list."), "{kind:?} {record:?}");
        messages.push(json!({"role": "assistant", "content": second.text.trim()}));
        messages.push(user("And the other?"));
        let (third, record) = stage.turn(&request(&messages, false)).await;
        assert_eq!((record.level(), third.finish.as_deref()), ("full", Some("stop")), "{kind:?} {record:?}");
        let asked = stage.asked();
        for pair in asked.windows(2) {
            let whole: Vec<u32> = pair[0].prompt.iter().copied().chain(pair[0].ids()).collect();
            assert!(pair[1].prompt.starts_with(&whole), "{kind:?}: the next prompt does not go on from what was sampled");
        }
        let samples = stage.samples(1).await;
        let (ids, logprobs) = trained(&samples[0]);
        assert_eq!(ids, asked.iter().flat_map(Asked::ids).collect::<Vec<_>>(), "{kind:?}");
        assert_eq!(logprobs, asked.iter().flat_map(Asked::logprobs).collect::<Vec<_>>(), "{kind:?}");
        let text = vocabulary::decode(&ids);
        assert_ne!(vocabulary::encode(&text), ids, "{kind:?}: re-encoding would give the same, which proves nothing");
    }
}

#[tokio::test]
async fn a_reply_whose_server_dies_is_ended_by_another_in_one_sample() {
    for kind in [Kind::Vllm, Kind::VllmCompletions, Kind::Sglang] {
        let cut = Reply::text("The answer to the other question is, in short, forty-two.").with(Fault::CutAfter { events: 9 });
        let weights = Weights::new(8, [cut, Reply::text("Yes.")]);
        let stage = Stage::new(kind, &weights, 2, "").await;
        let mut messages = vec![user("Hm?")];
        let (seen, record) = stage.turn(&request(&messages, true)).await;
        assert_eq!(seen.text, "The answer to the other question is, in short, forty-two.", "{kind:?}");
        assert!(seen.complete && seen.error.is_none(), "{kind:?}: {seen:?}");
        assert_eq!((record.status(), record.level()), ("done", "full"), "{kind:?} {record:?}");
        let asked = stage.asked();
        let [before, after] = &asked[..] else { panic!("{kind:?}: asked {} times", asked.len()) };
        assert_eq!((before.ids().len(), after.prompt.len()), (9, before.prompt.len() + 9), "{kind:?}");
        let whole: Vec<u32> = asked.iter().flat_map(Asked::ids).collect();
        assert_eq!(record.completion_ids(), whole, "{kind:?}");
        let notes = record.0["notes"].to_string();
        assert!(notes.contains("the reply broke off after 9 tokens at"), "{kind:?}: {notes}");
        messages.push(json!({"role": "assistant", "content": seen.text}));
        messages.push(user("Sure?"));
        stage.turn(&request(&messages, true)).await;
        let samples = stage.samples(1).await;
        let (ids, logprobs) = trained(&samples[0]);
        assert_eq!(ids, stage.asked_in_order(&record), "{kind:?}");
        assert_eq!(logprobs.len(), ids.len());
    }
}

impl Stage {
    /// The ids of a first reply and of all that was asked later.
    fn asked_in_order(&self, first: &Record) -> Vec<u32> {
        let later =
            self.asked().into_iter().find(|asked| asked.prompt.len() > first.prompt_ids().len() + first.completion_ids().len());
        first.completion_ids().into_iter().chain(later.unwrap().ids()).collect()
    }
}

#[tokio::test]
async fn new_weights_in_the_middle_of_a_reply_are_a_run_of_their_own() {
    for kind in [Kind::Vllm, Kind::Sglang] {
        let gate = Gate::closed();
        let weights = Weights::new(9, [Reply::text("One two three four five.").behind(&gate)]);
        let stage = Stage::new(kind, &weights, 1, "").await;
        let mut answer = stage.gleaner.call(PATH, &stage.made.key, &request(&[user("Count.")], true)).await;
        let id = answer.call_id();
        gate.pass(4);
        assert!(Seen::next_text(&mut answer).await.is_some());
        until("four events", async || (gate.is_empty()).then_some(())).await;
        weights.update("v2");
        gate.open();
        let (events, whole) = answer.events().await;
        assert!(whole && events.last().unwrap().1.data == "[DONE]", "{kind:?}: {events:?}");
        let record = stage.gleaner.record(&id).await;
        assert_eq!(record.level(), "full", "{kind:?} {record:?}");
        let runs = &record.0["capture"]["runs"];
        let of = |at: usize| {
            (runs[at]["start"].as_u64(), runs[at]["version"]["version"].as_str(), runs[at]["version"]["seq"].as_i64())
        };
        assert_eq!((of(0), of(1)), ((Some(0), Some("v1"), Some(0)), (Some(4), Some("v2"), Some(1))), "{kind:?}: {runs}");
    }
}

#[tokio::test]
async fn stop_strings_and_limits_cut_the_text_and_not_the_record() {
    for kind in KINDS {
        let weights = Weights::new(
            10,
            [Reply::text("one two STOP three"), Reply::text("ab👩‍🚀cd"), Reply::text("no end").with_finish("length")],
        );
        let stage = Stage::new(kind, &weights, 1, "").await;
        let mut body = request(&[user("Count.")], kind != Kind::Llamacpp);
        body["stop"] = json!(["STOP"]);
        let (seen, record) = stage.turn(&body).await;
        assert_eq!((seen.text.as_str(), seen.finish.as_deref()), ("one two ", Some("stop")), "{kind:?}");
        assert_eq!(vocabulary::decode(&record.completion_ids()), "one two STOP", "{kind:?}");
        // llama.cpp tells no log-probabilities of a stop string's tokens.
        assert_eq!(record.level(), if kind == Kind::Llamacpp { "ids" } else { "full" }, "{kind:?} {record:?}");
        let mut body = request(&[user("Fly.")], kind != Kind::Llamacpp);
        body["max_tokens"] = json!(4);
        let (seen, record) = stage.turn(&body).await;
        assert_eq!((seen.text.as_str(), seen.finish.as_deref()), ("ab\u{fffd}", Some("length")), "{kind:?}: half a character");
        assert_eq!(record.completion_ids(), [97, 98, 240, 159], "{kind:?}");
        assert_eq!(record.level(), if kind == Kind::Llamacpp { "ids" } else { "full" }, "{kind:?} {record:?}");
        let (seen, record) = stage.turn(&request(&[user("Go.")], true)).await;
        assert_eq!((seen.text.as_str(), seen.finish.as_deref(), record.level()), ("no end", Some("length"), "full"), "{kind:?}");
        assert!(!record.completion_ids().contains(&vocabulary::END), "{kind:?}: there is no end token");
    }
}

#[tokio::test]
async fn tokens_that_can_not_be_trusted_are_not_trained_and_say_why() {
    let faults = [
        (Fault::Miscount { prompt: 1, completion: 0 }, "text", "prompt ids were sent, but the server counted"),
        (Fault::Miscount { prompt: 0, completion: -1 }, "text", "completion ids, but the server counted"),
        (Fault::Logprob { value: "null".to_owned() }, "ids", "log-probabilities for"),
        (Fault::Logprob { value: "\"1e999\"".to_owned() }, "ids", "log-probability inf of token 0 is none"),
        (Fault::Logprob { value: "0.5".to_owned() }, "ids", "log-probability 0.5 of token 0 is none"),
        (Fault::Foreign { id: SIZE }, "text", "token 0 is 279, of a vocabulary of 279"),
    ];
    for kind in KINDS {
        for (fault, level, reason) in &faults {
            let weights = Weights::new(11, [Reply::text("Fine.").with(fault.clone()), Reply::text("Fine again.")]);
            let stage = Stage::new(kind, &weights, 1, "").await;
            let (_, record) = stage.turn(&request(&[user("Well?")], kind != Kind::Llamacpp)).await;
            let said = record.0["capture"]["reason"].as_str().unwrap_or_default();
            assert_eq!((record.status(), record.level()), ("done", *level), "{kind:?} {fault:?}: {said}");
            assert!(said.contains(reason), "{kind:?} {fault:?}: {said}");
            // The next call is as it should be: the model was compared anew, and is the same.
            let (_, record) = stage.turn(&request(&[user("And now?")], false)).await;
            assert_eq!(record.level(), "full", "{kind:?} {fault:?}");
        }
    }
}

#[tokio::test]
async fn a_server_with_another_tokenizer_is_not_served() {
    let weights = Weights::new(12, []);
    weights.shift();
    let stage = Stage::new(Kind::Vllm, &weights, 1, "").await;
    let mut ready = get(stage.gleaner.addr, "/readyz", &[]).await;
    let said = String::from_utf8(ready.bytes().await.unwrap()).unwrap();
    assert_eq!(ready.status(), 503, "{said}");
    let mut answer = stage.gleaner.call(PATH, &stage.made.key, &request(&[user("Hi")], true)).await;
    assert_eq!(answer.status(), 503);
    let error = answer.json().await.to_string();
    assert!(error.contains("the tokenizer is not the server's: of a question, token 0 is"), "{error}");
    assert!(stage.asked().is_empty());
}

#[tokio::test]
async fn a_server_that_changes_its_tokenizer_is_found_out_by_its_count() {
    let weights = Weights::new(13, [Reply::text("Fine.").with(Fault::Miscount { prompt: 3, completion: 0 })]);
    let stage = Stage::new(Kind::Vllm, &weights, 1, "").await;
    assert_eq!(get(stage.gleaner.addr, "/readyz", &[]).await.status(), 200);
    weights.shift();
    let (_, record) = stage.turn(&request(&[user("Well?")], true)).await;
    assert_eq!(record.level(), "text");
    let mut answer = stage.gleaner.call(PATH, &stage.made.key, &request(&[user("And now?")], true)).await;
    assert_eq!(answer.status(), 503);
    assert!(answer.json().await.to_string().contains("the tokenizer is not the server's"));
    assert_eq!(stage.asked().len(), 1, "the second call was not sampled");
}

#[tokio::test]
async fn a_prompt_that_fills_the_window_is_refused_and_a_limit_that_does_is_lowered() {
    let weights = Weights::new(14, [Reply::text("Fine.")]);
    let stage = Stage::new(Kind::Vllm, &weights, 1, "context_window = 500").await;
    let mut answer = stage.gleaner.call(PATH, &stage.made.key, &request(&[user(&"x".repeat(500))], true)).await;
    assert_eq!(answer.status(), 400);
    assert!(answer.json().await.to_string().contains("maximum context length is 500 tokens"));
    assert!(stage.asked().is_empty(), "it was not asked");
    let mut body = request(&[user("Hi")], true);
    body["max_tokens"] = json!(10_000);
    let (_, record) = stage.turn(&body).await;
    let left = 500 - record.prompt_ids().len();
    assert_eq!(record.max_tokens(), (&json!(10_000), &json!(left)));
    assert_eq!(stage.asked()[0].body["sampling_params"]["max_tokens"], json!(left));
}

#[tokio::test]
async fn without_files_of_a_model_the_servers_own_words_do() {
    for kind in [Kind::Vllm, Kind::Llamacpp] {
        let weights = Weights::new(15, [Reply::text("The first."), Reply::text("The other.")]);
        let stage = Stage::new(kind, &weights, 1, SERVED).await;
        let mut messages = vec![user("Which?")];
        let (seen, record) = stage.turn(&request(&messages, true)).await;
        assert_eq!((seen.text.as_str(), record.level()), ("The first.", "full"), "{kind:?} {record:?}");
        messages.push(json!({"role": "assistant", "content": seen.text}));
        messages.push(user("And then?"));
        let (seen, record) = stage.turn(&request(&messages, true)).await;
        assert_eq!((seen.text.as_str(), record.level()), ("The other.", "full"), "{kind:?} {record:?}");
        stage.samples(1).await;
    }
}

#[tokio::test]
async fn a_server_with_another_tokenizer_than_its_replicas_is_passed_over() {
    let other = Weights::new(17, []);
    other.shift();
    for other_first in [true, false] {
        let gate = Gate::closed();
        let weights = Weights::new(16, [Reply::text("The first.").behind(&gate), Reply::text("The second.")]);
        let of = |first: bool| if first == other_first { &other } else { &weights };
        let servers = [TokenServer::start(Kind::Vllm, of(true)).await, TokenServer::start(Kind::Vllm, of(false)).await];
        let stage = Stage::before(servers.into(), "").await;
        let ready = get(stage.gleaner.addr, "/readyz", &[]).await;
        assert_eq!(ready.status(), 200, "one of them has the model; the other is first: {other_first}");
        // While one call runs the other server is the less busy one.
        let meanwhile = async {
            until("the first call", async || (stage.asked().len() == 1).then_some(())).await;
            let second = stage.turn(&request(&[user("And?")], true)).await;
            gate.open();
            second
        };
        let first = request(&[user("Hm?")], true);
        let ((first, one), (second, two)) = tokio::join!(stage.turn(&first), meanwhile);
        assert_eq!((one.level(), two.level()), ("full", "full"), "{one:?} {two:?}");
        assert_eq!((first.text.as_str(), second.text.as_str()), ("The first.", "The second."));
        let asked = stage.servers.iter().map(|server| server.asked().len()).collect::<Vec<_>>();
        assert_eq!(asked, if other_first { [0, 2] } else { [2, 0] }, "only the model's own server samples");
        let (log, wrong) = (stage.gleaner.log(), stage.servers[usize::from(!other_first)].url());
        let said = format!("{wrong}: the tokenizer is not the server's: of a question, token 0 is");
        assert!(log.contains("a server is passed over") && log.contains(&said), "{log}");
    }
}

#[tokio::test]
async fn servers_of_which_none_has_the_model_are_each_named() {
    let weights = Weights::new(18, []);
    weights.shift();
    let stage = Stage::new(Kind::Vllm, &weights, 2, "").await;
    assert_eq!(get(stage.gleaner.addr, "/readyz", &[]).await.status(), 503);
    let mut answer = stage.gleaner.call(PATH, &stage.made.key, &request(&[user("Hi")], true)).await;
    assert_eq!(answer.status(), 503);
    let error = answer.json().await.to_string();
    for server in &stage.servers {
        assert!(error.contains(&format!("{}: the tokenizer is not the server's", server.url())), "{error}");
    }
    assert!(stage.asked().is_empty());
}

#[tokio::test]
async fn a_call_with_an_image_is_had_by_the_servers_own_tokens_and_the_conversation_goes_on() {
    let chat = ScriptedPolicy::start(19, [Reply::text("A red pixel."), Reply::text("Nothing else.")]).await;
    let weights = Weights::new(20, [Reply::text("Yes, here."), Reply::text("Of what?")]);
    let server = TokenServer::beside(Kind::Vllm, &weights, Some(chat.addr)).await;
    let stage = Stage::before(vec![server], "").await;
    let mut texts = vec![user("Are you there?")];
    let (seen, _) = stage.turn(&request(&texts, true)).await;
    texts.push(json!({"role": "assistant", "content": seen.text}));
    // The same conversation, with an image in it: all its ids are the server's.
    let mut messages = texts.clone();
    let image = json!({"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}});
    messages.push(json!({"role": "user", "content": [image, {"type": "text", "text": "What is this?"}]}));
    for (turn, text) in ["A red pixel.", "Nothing else."].into_iter().enumerate() {
        let (seen, record) = stage.turn(&request(&messages, turn == 0)).await;
        assert_eq!((seen.text.as_str(), record.status(), record.level()), (text, "done", "full"), "{record:?}");
        let there = chat.last();
        assert_eq!((record.prompt_ids(), record.completion_ids()), (there.prompt_ids.clone(), there.ids()));
        assert!(there.prompt_ids.len() > there.body["messages"].as_array().unwrap().len(), "the server expands the image");
        assert!(record.0["capture"]["rendered"].is_null(), "{record:?}");
        assert!(
            record.0["notes"].to_string().contains("it was asked as chat completions, with the server's own tokens"),
            "{record:?}"
        );
        messages.push(json!({"role": "assistant", "content": seen.text}));
        messages.push(user("And else?"));
    }
    // One that goes on from before the image is spliced as if nothing had been.
    texts.push(user("A picture, please."));
    let (seen, record) = stage.turn(&request(&texts, true)).await;
    assert_eq!((seen.text.as_str(), record.level()), ("Of what?", "full"), "{record:?}");
    let asked = stage.asked();
    let [first, second] = &asked[..] else { panic!("{} calls were asked with ids", asked.len()) };
    let whole: Vec<u32> = first.prompt.iter().copied().chain(first.ids()).collect();
    assert!(second.prompt.starts_with(&whole), "the conversation does not go on from what was sampled before the image");
    // Text calls are one sample, those about the image another.
    let samples = stage.samples(2).await;
    let mut masked: Vec<usize> = samples.iter().map(|sample| trained(sample).0.len()).collect();
    masked.sort_unstable();
    let mut expected = vec![first.ids().len() + second.ids().len(), chat.seen().iter().map(|seen| seen.ids().len()).sum()];
    expected.sort_unstable();
    assert_eq!(masked, expected);
}
