//! What each endpoint says.

#![allow(clippy::format_collect, clippy::needless_pass_by_value, reason = "tests")]

use bytes::Bytes;
use serde_json::{Value, json};

use super::{Alternative, Ended, Endpoint, Reader, Said};
use crate::call::{Failure, FailureKind};
use crate::policy::chunk::VersionSpan;

fn reader(endpoint: Endpoint) -> Reader {
    Reader::new(endpoint, true, 1 << 20)
}

/// What a stream of these events says, in pieces of so many bytes.
fn streamed(endpoint: Endpoint, events: &[Value], pieces: usize) -> (Vec<Said>, Result<(), Failure>) {
    let mut text: String = events.iter().map(|event| format!("data: {event}\n\n")).collect();
    text.push_str("data: [DONE]\n\n");
    let mut reader = reader(endpoint);
    let mut said = Vec::new();
    for piece in text.as_bytes().chunks(pieces) {
        if let Err(failure) = reader.push(&Bytes::copy_from_slice(piece), &mut said) {
            return (said, Err(failure));
        }
    }
    assert!(reader.is_done());
    (said, Ok(()))
}

fn whole(endpoint: Endpoint, body: &str) -> (Vec<Said>, Result<(), Failure>) {
    let mut said = Vec::new();
    let read = reader(endpoint).whole(&Bytes::copy_from_slice(body.as_bytes()), &mut said);
    (said, read)
}

fn span(version: &str, start: usize) -> VersionSpan {
    VersionSpan { version: version.to_owned(), start }
}

#[test]
fn vllm_says_ids_and_at_the_end_the_weights_of_each_run() {
    let entry = |id: u32, logprob: f64| json!({"token_id": id, "logprob": logprob, "rank": 1, "top_logprobs": [{"token_id": 9, "logprob": -0.5}]});
    let events = [
        json!({"request_id": "r", "choices": [{"index": 0, "token_ids": [5], "logprobs": {"content": [entry(5, -0.25)]}, "finish_reason": null,
               "weight_versions": null}], "usage": {"prompt_tokens": 3, "completion_tokens": 1}}),
        json!({"request_id": "r", "choices": [{"index": 0, "token_ids": [6, 7], "logprobs": {"content": [entry(6, -1.0), entry(7, -9999.0)]},
               "finish_reason": "stop", "stop_reason": "END", "weight_versions": [{"version": "a", "start": 0, "end": 2},
               {"version": "b", "start": 2, "end": 3}]}], "usage": {"prompt_tokens": 3, "completion_tokens": 3}}),
        json!({"request_id": "r", "choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 3,
               "prompt_tokens_details": {"cached_tokens": 2}}}),
    ];
    let top = || vec![Alternative { id: Some(9), text: None, logprob: -0.5 }];
    let first = Said {
        ids: vec![5],
        logprobs: vec![-0.25],
        logprob_ids: vec![5],
        alternatives: vec![top()],
        prompt_tokens: Some(3),
        completion_tokens: Some(1),
        ..Said::default()
    };
    let second = Said {
        ids: vec![6, 7],
        // What stands for none is not taken for one.
        logprobs: vec![-1.0, f64::NEG_INFINITY],
        logprob_ids: vec![6, 7],
        alternatives: vec![top(), top()],
        prompt_tokens: Some(3),
        completion_tokens: Some(3),
        ended: Some(Ended::Stop),
        stop: Some("END".to_owned()),
        versions: vec![span("a", 0), span("b", 2)],
        ..Said::default()
    };
    let last = Said { prompt_tokens: Some(3), completion_tokens: Some(3), cached_tokens: Some(2), ..Said::default() };
    for pieces in [1, 7, 100_000] {
        let (said, read) = streamed(Endpoint::VllmGenerate, &events, pieces);
        assert_eq!((&said[..], read), (&[first.clone(), second.clone(), last.clone()][..], Ok(())), "in pieces of {pieces}");
    }
}

#[test]
fn vllms_completions_say_ids_beside_the_old_form_of_logprobs() {
    let body = json!({"choices": [{"index": 0, "text": "Hi", "token_ids": [5, 2], "prompt_token_ids": [1], "finish_reason": "length",
        "logprobs": {"text_offset": [0, 2], "token_logprobs": [-0.5, null], "tokens": ["Hi", ""], "top_logprobs": [{"Ho": -2.0}, null]}}],
        "usage": {"prompt_tokens": 1, "completion_tokens": 2}});
    let (said, read) = whole(Endpoint::VllmCompletions, &body.to_string());
    let alternatives = vec![vec![Alternative { id: None, text: Some("Ho".to_owned()), logprob: -2.0 }], Vec::new()];
    let expected = Said {
        ids: vec![5, 2],
        logprobs: vec![-0.5],
        alternatives,
        text: Some("Hi".to_owned()),
        prompt_tokens: Some(1),
        completion_tokens: Some(2),
        ended: Some(Ended::Length),
        ..Said::default()
    };
    assert_eq!((said, read), (vec![expected], Ok(())));
}

fn sglang(ids: &[u32], all: usize, text: &str, finish: Value) -> Value {
    let logprobs: Vec<Value> = ids.iter().map(|id| json!([-f64::from(*id), id, null])).collect();
    json!({"text": text, "output_ids": ids, "meta_info": {"id": "r", "finish_reason": finish, "prompt_tokens": 4,
        "completion_tokens": all, "cached_tokens": 1, "weight_version": "b", "output_token_logprobs": logprobs,
        "weight_versions": [{"version": "a", "start": 0, "end": 1}, {"version": "b", "start": 1, "end": all}]}})
}

#[test]
fn sglang_says_in_a_stream_what_is_new() {
    let events = [
        sglang(&[5], 1, "H", Value::Null),
        sglang(&[6], 2, "é", Value::Null),
        sglang(&[], 2, "", Value::Null),
        sglang(&[7], 3, "!", json!({"type": "stop", "matched": "END"})),
    ];
    let expected = |ids: &[u32], all, text: &str| Said {
        ids: ids.to_vec(),
        logprobs: ids.iter().map(|id| -f64::from(*id)).collect(),
        logprob_ids: ids.to_vec(),
        text: Some(text.to_owned()),
        prompt_tokens: Some(4),
        completion_tokens: Some(all),
        cached_tokens: Some(1),
        versions: vec![span("a", 0), span("b", 1)],
        ..Said::default()
    };
    let last = Said { ended: Some(Ended::Stop), stop: Some("END".to_owned()), ..expected(&[7], 3, "!") };
    let expected = [expected(&[5], 1, "H"), expected(&[6], 2, "é"), expected(&[], 2, ""), last];
    let (said, read) = streamed(Endpoint::Sglang { incremental: true }, &events, 11);
    assert_eq!((&said[..], read), (&expected[..], Ok(())));
}

#[test]
fn llamacpp_loses_log_probabilities_of_incomplete_characters_and_keeps_their_ids() {
    let body = json!({"content": "é", "tokens": [5, 6, 2], "stop_type": "eos", "stopping_word": "", "tokens_evaluated": 4,
        "tokens_predicted": 3, "truncated": false, "timings": {"cache_n": 3, "prompt_n": 1},
        "completion_probabilities": [{"id": 6, "token": "é", "bytes": [195, 169], "logprob": -0.5,
            "top_logprobs": [{"id": 8, "token": "e", "bytes": [101], "logprob": -1.5}]},
            {"id": 2, "token": "", "bytes": [], "logprob": -3.402_823_5e38, "top_logprobs": []}]});
    let expected = Said {
        ids: vec![5, 6, 2],
        logprobs: vec![-0.5, f64::NEG_INFINITY],
        logprob_ids: vec![6, 2],
        alternatives: vec![vec![Alternative { id: Some(8), text: Some("e".to_owned()), logprob: -1.5 }], Vec::new()],
        text: Some("é".to_owned()),
        prompt_tokens: Some(4),
        completion_tokens: Some(3),
        cached_tokens: Some(3),
        ended: Some(Ended::Stop),
        ..Said::default()
    };
    assert_eq!(whole(Endpoint::Llamacpp, &body.to_string()), (vec![expected], Ok(())));
    let word = json!({"content": "a", "tokens": [5], "stop_type": "word", "stopping_word": "END"}).to_string();
    assert_eq!(whole(Endpoint::Llamacpp, &word).0[0].stop.as_deref(), Some("END"));
}

#[test]
fn what_breaks_a_reply_off_is_told_after_what_had_come() {
    let sampled = json!({"choices": [{"index": 0, "token_ids": [5], "finish_reason": null}]});
    let error = json!({"error": {"message": "the engine died", "type": "InternalServerError", "code": 500}});
    let (said, read) = streamed(Endpoint::VllmGenerate, &[sampled.clone(), error.clone()], 1000);
    assert_eq!((said.len(), read.unwrap_err().kind), (1, FailureKind::Cut));
    let (said, read) = streamed(Endpoint::VllmGenerate, &[error], 1000);
    assert_eq!((said.len(), read.unwrap_err().kind), (0, FailureKind::Unavailable));
    let abort = json!({"choices": [{"index": 0, "token_ids": [6], "finish_reason": "abort"}]});
    let (said, read) = streamed(Endpoint::VllmGenerate, &[sampled.clone(), abort], 1000);
    assert_eq!((said[1].ids.clone(), said[1].ended), (vec![6], None));
    assert_eq!(read.unwrap_err().message, "the server broke the reply off: finish_reason abort");
    let abort = sglang(&[6], 2, "b", json!({"type": "abort", "message": "weights are updated"}));
    let (said, read) = streamed(Endpoint::Sglang { incremental: true }, &[sglang(&[5], 1, "a", Value::Null), abort], 1000);
    assert_eq!(said.iter().flat_map(|said| said.ids.clone()).collect::<Vec<_>>(), [5, 6]);
    assert_eq!(read.unwrap_err().message, "the server broke the reply off: weights are updated");
    let (_, read) = streamed(Endpoint::VllmGenerate, &[sampled], 1000);
    assert_eq!(read.unwrap_err().message, "the stream ended before the reply did");
    for (endpoint, body) in [
        (Endpoint::VllmGenerate, "{\"choices\":"),
        (Endpoint::VllmCompletions, "[]"),
        (Endpoint::Sglang { incremental: false }, "{\"text\":\"a\",\"output_ids\":[1]}"),
        (Endpoint::Llamacpp, "{\"tokens\":[1]}"),
    ] {
        let failure = whole(endpoint, body).1.unwrap_err();
        assert!(failure.message.starts_with("the server sent something that is no reply"), "{endpoint:?}: {}", failure.message);
    }
    let unended = whole(Endpoint::Llamacpp, r#"{"content":"","tokens":[],"stop_type":"none"}"#).1.unwrap_err();
    assert_eq!(unended.message, "the server's answer does not say why it ended");
    let refused = whole(Endpoint::Sglang { incremental: false }, r#"{"error":{"message":"too long","code":400}}"#).1.unwrap_err();
    assert_eq!((refused.kind, refused.message.as_str()), (FailureKind::Refused, "too long"));
}
