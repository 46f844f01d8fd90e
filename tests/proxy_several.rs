//! Several replies to one request through the binary: each a call and a sample of its own, one answer to the client.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::format_push_string, clippy::format_collect, reason = "tests")]

mod support;

use serde_json::{Value, json};
use support::chat::request;
use support::client::Answer;
use support::gleaner::{Gleaner, Made, assert_sampled};
use support::policy::{Fault, Gate, Reply, ScriptedPolicy, Seen};
use support::record::Record;
use support::until;

const PATH: &str = "/v1/chat/completions";
const SEED: u64 = 40;

/// A request for three replies; each one's seed says upstream which it is of.
fn three(stream: bool) -> Value {
    let mut body = request("go", stream);
    body["n"] = json!(3);
    body["seed"] = json!(SEED);
    body["stream_options"] = json!({"include_usage": true});
    body
}

async fn start(replies: impl IntoIterator<Item = Reply>) -> (ScriptedPolicy, Gleaner, Made) {
    let policy = ScriptedPolicy::start(71, replies).await;
    let gleaner = Gleaner::start(policy.url()).await;
    let made = gleaner.plain_rollout().await;
    (policy, gleaner, made)
}

/// What the policy was asked for the reply at this place.
fn asked(policy: &ScriptedPolicy, place: usize) -> Seen {
    let seed = SEED + place as u64;
    policy.seen().into_iter().find(|seen| seen.body["seed"] == seed).unwrap_or_else(|| panic!("seed {seed} never came"))
}

/// The calls of a rollout, once all have ended, by their place in the request.
async fn ended(gleaner: &Gleaner, made: &Made, count: usize) -> Vec<Record> {
    until("the end of all calls", async || {
        let calls = gleaner.calls(&made.id).await;
        (calls.len() == count && calls.iter().all(|call| call.status() != "running")).then_some(calls)
    })
    .await
}

/// What a client reads of each reply, and the usage.
#[derive(Debug, Default, PartialEq)]
struct Read {
    texts: Vec<String>,
    finishes: Vec<Option<String>>,
    usage: Value,
    done: bool,
    error: Option<Value>,
}

impl Read {
    async fn whole(answer: &mut Answer) -> Self {
        let body = answer.json().await;
        let choices = body["choices"].as_array().unwrap();
        for (place, choice) in choices.iter().enumerate() {
            assert_eq!(choice["index"], place);
        }
        Self {
            texts: choices.iter().map(|choice| choice["message"]["content"].as_str().unwrap().to_owned()).collect(),
            finishes: choices.iter().map(|choice| choice["finish_reason"].as_str().map(str::to_owned)).collect(),
            usage: body["usage"].clone(),
            done: true,
            error: None,
        }
    }

    async fn stream(answer: &mut Answer) -> Self {
        let mut read = Self { texts: vec![String::new(); 3], finishes: vec![None; 3], ..Self::default() };
        let (events, whole) = answer.events().await;
        assert!(whole);
        let (mut ids, mut roles) = (Vec::new(), [0; 3]);
        for (_, event) in events {
            assert!(!read.done && read.error.is_none(), "something follows the end: {event:?}");
            if event.data == "[DONE]" {
                read.done = true;
                continue;
            }
            let chunk: Value = serde_json::from_str(&event.data).unwrap();
            if chunk.get("error").is_some() {
                read.error = Some(chunk["error"].clone());
                continue;
            }
            ids.push(chunk["id"].clone());
            assert!(read.usage.is_null(), "the usage is the last chunk");
            read.usage = chunk["usage"].clone();
            for choice in chunk["choices"].as_array().unwrap() {
                let place = usize::try_from(choice["index"].as_u64().unwrap()).unwrap();
                assert_eq!(read.finishes[place], None, "reply {place} had ended");
                roles[place] += usize::from(choice["delta"].get("role").is_some());
                read.texts[place] += choice["delta"]["content"].as_str().unwrap_or_default();
                read.finishes[place] = choice["finish_reason"].as_str().map(str::to_owned);
            }
        }
        ids.dedup();
        assert_eq!(ids.len(), 1, "one answer has one id");
        assert_eq!(roles, [1; 3], "each begins once");
        read
    }
}

#[tokio::test]
async fn each_of_several_replies_is_an_exact_sample_of_its_own() {
    for stream in [true, false] {
        let (policy, gleaner, made) = start(["one red", "two green things", "three"].map(Reply::text)).await;
        let mut answer = gleaner.call(PATH, &made.key, &three(stream)).await;
        assert_eq!(answer.status(), 200);
        let first = answer.call_id();
        let read = if stream { Read::stream(&mut answer).await } else { Read::whole(&mut answer).await };
        let seen: Vec<Seen> = (0..3).map(|place| asked(&policy, place)).collect();
        assert!(seen.iter().all(|seen| seen.body.get("n").is_none()), "each is asked for alone");
        let said = |seen: &Seen| seen.tokens.iter().map(|token| token.piece.spoken()).collect::<String>();
        assert_eq!(read.texts, seen.iter().map(said).collect::<Vec<_>>());
        assert_eq!((&read.finishes, read.done), (&vec![Some("stop".to_owned()); 3], true));
        let counted: usize = seen.iter().map(|seen| seen.tokens.len()).sum();
        assert_eq!(
            (&read.usage["completion_tokens"], &read.usage["prompt_tokens"]),
            (&json!(counted), &json!(seen[0].prompt_ids.len()))
        );

        let calls = ended(&gleaner, &made, 3).await;
        assert_eq!(calls[0].id(), first);
        let request = gleaner.raw(calls[0].id(), "request").await;
        for (place, (call, seen)) in calls.iter().zip(&seen).enumerate() {
            assert_eq!((call.status(), call.level(), &call.0["choice"]), ("done", "full", &json!(place)));
            assert_eq!((call.prompt_ids(), call.completion_ids()), (seen.prompt_ids.clone(), seen.ids()));
            assert_eq!(call.text(), Some(read.texts[place].as_str()));
            assert_eq!(gleaner.raw(call.id(), "request").await, request, "the request is the client's own");
            assert_eq!(call.sampling("seed").0, &json!(SEED + place as u64));
        }
        until("the delivery", async || {
            gleaner.calls(&made.id).await.iter().all(|call| call.delivered() == Some(true)).then_some(())
        })
        .await;
        let (samples, left_out) = gleaner.samples(&made.id).await;
        assert_eq!((samples.len(), left_out), (3, vec![]));
        for (sample, seen) in samples.iter().zip(&seen) {
            assert_sampled(sample, std::slice::from_ref(seen));
            assert_eq!(sample["spans"][0]["abandoned"], Value::Null, "{sample}");
        }
    }
}

#[tokio::test]
async fn events_of_several_replies_come_as_they_come() {
    let gates = [Gate::closed(), Gate::closed()];
    let (policy, gleaner, made) = start([Reply::text("a b c").behind(&gates[0]), Reply::text("x y").behind(&gates[1])]).await;
    let mut body = three(true);
    body["n"] = json!(2);
    let call = gleaner.call(PATH, &made.key, &body);
    let (mut answer, ()) = tokio::join!(call, async {
        policy.asked(2).await;
        gates[0].pass(2);
    });
    let next = async |answer: &mut Answer| {
        let event = answer.event().await.unwrap().unwrap();
        serde_json::from_str::<Value>(&event.data).unwrap()["choices"][0].clone()
    };
    for index in 0..2 {
        let begun = next(&mut answer).await;
        let expected = json!({"index": index, "delta": {"role": "assistant", "content": ""}, "finish_reason": null});
        assert_eq!(begun, expected, "the official SDK adds replies in the order in which it sees them first");
    }
    let first = next(&mut answer).await;
    assert_eq!(first["delta"]["content"], "a ");
    // The other reply comes whole and has its end while the first still waits.
    gates[1].open();
    let mut seen = Vec::new();
    while seen.last().is_none_or(|choice: &Value| choice["finish_reason"].is_null()) {
        seen.push(next(&mut answer).await);
    }
    assert!(seen.iter().all(|choice| choice["index"] != first["index"]), "{seen:?}");
    gates[0].open();
    let (rest, whole) = answer.events().await;
    assert!(whole && rest.last().unwrap().1.data == "[DONE]", "{rest:?}");
}

#[tokio::test]
async fn a_reply_that_fails_before_anything_was_sent_fails_the_request() {
    for stream in [true, false] {
        let refusal = json!({"error": {"message": "no such thing", "type": "BadRequestError", "param": null, "code": 400}});
        let fault = Fault::Status { status: 400, headers: [].into(), body: refusal.to_string() };
        let gate = Gate::closed();
        let held = || Reply::text("never said").behind(&gate);
        let (_policy, gleaner, made) = start([held(), Reply::text("").with(fault), held()]).await;
        let mut answer = gleaner.call(PATH, &made.key, &three(stream)).await;
        assert_eq!((answer.status(), answer.json().await["error"]["message"].clone()), (400, json!("no such thing")));
        let calls = ended(&gleaner, &made, 3).await;
        let mut states: Vec<_> = calls.iter().map(|call| (call.status(), call.failure_kind())).collect();
        states.sort_unstable();
        assert_eq!(states, [("cancelled", Some("cancelled")), ("cancelled", Some("cancelled")), ("failed", Some("refused"))]);
        let (samples, left_out) = gleaner.samples(&made.id).await;
        assert_eq!((samples.len(), left_out.len()), (0, 3), "{left_out:?}");
    }
}

#[tokio::test]
async fn a_reply_that_breaks_off_ends_the_stream_with_an_error() {
    let gate = Gate::closed();
    let cut = Reply::text("one two three four").with(Fault::CutAfter { events: 3 });
    let (policy, gleaner, made) = start([Reply::text("whole"), cut.behind(&gate), Reply::text("whole too")]).await;
    let body = three(true);
    let call = gleaner.call(PATH, &made.key, &body);
    let opened = async {
        policy.asked(3).await;
        until("two recorded replies", async || {
            let calls = gleaner.calls(&made.id).await;
            (calls.iter().filter(|call| call.status() == "done").count() == 2).then_some(())
        })
        .await;
        gate.open();
    };
    let (mut answer, ()) = tokio::join!(call, opened);
    let read = Read::stream(&mut answer).await;
    assert!(!read.done && read.error.is_some(), "{read:?}");
    let calls = ended(&gleaner, &made, 3).await;
    let mut states: Vec<_> = calls.iter().map(Record::status).collect();
    states.sort_unstable();
    assert_eq!(states, ["done", "done", "failed"]);
    assert!(calls.iter().all(|call| call.delivered() != Some(true)), "{calls:?}");
    let (samples, left_out) = gleaner.samples(&made.id).await;
    assert_eq!(samples.len(), 0, "a client that was told of an error has no reply");
    assert!(left_out.iter().filter(|left| left["reason"] == "undelivered").count() == 2, "{left_out:?}");
}

#[tokio::test]
async fn a_whole_answer_is_all_replies_or_none() {
    let gate = Gate::closed();
    let broken = Reply::text("b").with(Fault::ErrorEvent { events: 1 });
    let mut body = three(false);
    body["n"] = json!(2);
    let status = Fault::Status { status: 422, headers: [].into(), body: "{\"error\":\"late\"}".to_owned() };
    let late = Reply { fault: Some(status), ..broken }.behind(&gate);
    let (policy, gleaner, made) = start([Reply::text("a"), late]).await;
    let mut answer = gleaner.call(PATH, &made.key, &body).await;
    assert_eq!(answer.status(), 422);
    assert_eq!(answer.json().await["error"]["message"], "late");
    assert_eq!(policy.count(), 2);
    let calls = ended(&gleaner, &made, 2).await;
    assert!(calls.iter().all(|call| call.delivered() != Some(true)), "{calls:?}");
}

#[tokio::test]
async fn a_client_that_leaves_ends_all_of_its_replies() {
    for stream in [true, false] {
        let gate = Gate::closed();
        let (policy, gleaner, made) = start([]).await;
        policy.otherwise(Reply::text("one two three four").behind(&gate));
        let bearer = format!("Bearer {}", made.key);
        let (headers, body) = ([("authorization", bearer.as_str())], three(stream).to_string());
        let call = support::client::send(gleaner.addr, "POST", PATH, &headers, body.as_bytes());
        if stream {
            let (answer, ()) = tokio::join!(call, async {
                policy.asked(3).await;
                gate.pass(6);
            });
            let mut answer = answer.unwrap();
            answer.comes(b"one").await;
            drop(answer);
        } else {
            tokio::select! {
                _ = call => panic!("an answer came"),
                () = policy.asked(3) => {}
            }
        }
        for request in 0..3 {
            policy.hung_up(request).await;
        }
        let calls = ended(&gleaner, &made, 3).await;
        assert!(calls.iter().all(|call| (call.status(), call.failure_kind()) == ("cancelled", Some("cancelled"))), "{calls:?}");
    }
}

#[tokio::test]
async fn a_rollout_that_ends_ends_all_replies_of_a_client_that_reads_nothing() {
    let gate = Gate::closed();
    let (policy, gleaner, made) = start([]).await;
    policy.otherwise(Reply::text("a flood ").with(Fault::LongLine { bytes: 5 << 20 }).behind(&gate));
    gate.pass(6);
    let mut answer = gleaner.call(PATH, &made.key, &three(true)).await;
    answer.comes(b"xxxx").await;
    let (status, _) = gleaner.api_post(&format!("/rollouts/{}/finish", made.id), json!({})).await;
    assert_eq!(status, 200);
    let calls = ended(&gleaner, &made, 3).await;
    assert!(calls.iter().all(|call| call.failure_kind() == Some("ended")), "{calls:?}");
    let (events, whole) = answer.events().await;
    assert!(whole && events.last().unwrap().1.data.contains("was finished while this call ran"));
}
