//! What each endpoint is asked.

use serde_json::{Value, json};

use super::write::{Held, held};
use super::{Asked, Endpoint, write};
use crate::call::{Call, Raw, Sampling, Text, ToolChoice};
use crate::policy::stub::call;

const SGLANG: Endpoint = Endpoint::Sglang { incremental: true };
const ALL: [Endpoint; 4] = [Endpoint::VllmGenerate, Endpoint::VllmCompletions, SGLANG, Endpoint::Llamacpp];

fn asked<'a>(call: &'a Call, sampling: &'a Sampling) -> Asked<'a> {
    Asked {
        call,
        model: "m",
        prompt: &[1, 20, 4_294_967_295],
        sampled: &[0],
        sampling,
        max_tokens: Some(9),
        stream: true,
        text: false,
        alternatives: 0,
    }
}

fn written(endpoint: Endpoint, asked: &Asked) -> (Value, Vec<String>) {
    let written = write(endpoint, asked);
    (serde_json::from_slice(&written.body).unwrap(), written.notes)
}

#[test]
fn ids_go_up_under_each_servers_names() {
    let (call, sampling) = (call(), Sampling { temperature: Some(0.5), top_k: Some(0), seed: Some(7), ..Sampling::default() });
    let asked = asked(&call, &sampling);
    let ids = json!([1, 20, 4_294_967_295_u32, 0]);
    let stream = json!({"include_usage": true, "continuous_usage_stats": true});
    let expected = [
        json!({"model": "m", "token_ids": ids, "stream": true, "stream_options": stream, "sampling_params": {
            "skip_special_tokens": false, "temperature": 0.5, "top_k": 0, "seed": 7, "logprobs": 0, "max_tokens": 9}}),
        json!({"model": "m", "prompt": ids, "return_token_ids": true, "skip_special_tokens": false, "temperature": 0.5, "top_k": 0,
            "seed": 7, "logprobs": 0, "max_tokens": 9, "stream": true, "stream_options": stream}),
        json!({"input_ids": ids, "return_logprob": true, "stream": true, "sampling_params": {
            "skip_special_tokens": false, "temperature": 0.5, "top_k": -1, "sampling_seed": 7, "max_new_tokens": 9}}),
        json!({"prompt": ids, "temperature": 0.5, "top_k": 0, "seed": 7, "n_predict": 9, "n_probs": 1, "return_tokens": true,
            "cache_prompt": true, "stream": false, "response_fields": ["content", "tokens", "completion_probabilities", "stop_type",
            "stopping_word", "truncated", "tokens_predicted", "tokens_evaluated", "tokens_cached", "generation_settings", "timings"]}),
    ];
    for (endpoint, expected) in ALL.into_iter().zip(expected) {
        assert_eq!(written(endpoint, &asked), (expected, Vec::new()), "{endpoint:?}");
    }
}

#[test]
fn without_a_limit_a_reply_is_not_cut_at_a_servers_default() {
    let (call, sampling) = (call(), Sampling::default());
    let asked = Asked { max_tokens: None, stream: false, text: true, alternatives: 3, ..asked(&call, &sampling) };
    let [generate, completions, sglang, llamacpp] = ALL.map(|endpoint| written(endpoint, &asked).0);
    assert_eq!((&generate["sampling_params"]["max_tokens"], &generate["output_mode"]), (&Value::Null, &json!("text")));
    assert!(generate["sampling_params"].get("max_tokens").is_none() && generate.get("stream").is_none());
    assert_eq!(completions.get("max_tokens"), Some(&Value::Null));
    assert_eq!(sglang["sampling_params"].get("max_new_tokens"), Some(&Value::Null));
    assert_eq!(llamacpp["n_predict"], json!(-1));
    let alternatives =
        [&generate["sampling_params"]["logprobs"], &completions["logprobs"], &sglang["top_logprobs_num"], &llamacpp["n_probs"]];
    assert_eq!(alternatives, [&json!(3); 4]);
}

#[test]
fn settings_are_translated_counted_down_or_noted() {
    let mut call = call();
    call.rest.push((Text::new("stop_regex"), Raw::from_value(&"a+")));
    call.rest.push((Text::new("bad_words"), Raw::from_value(&["no"])));
    call.rest.push((Text::new("user"), Raw::from_value(&"me")));
    let sampling = Sampling {
        repetition_penalty: Some(1.5),
        stop: Some(Raw::from_value(&["END"])),
        others: serde_json::from_value(json!({"min_tokens": 5, "ignore_eos": true, "xtc_threshold": 0.5, "logit_bias": {}}))
            .unwrap(),
        ..Sampling::default()
    };
    let asked = asked(&call, &sampling);
    let left_out = |names: &[&str]| -> Vec<String> {
        names.iter().map(|name| format!("{name} is not offered by this server's generate endpoint; left out")).collect()
    };
    let (generate, notes) = written(Endpoint::VllmGenerate, &asked);
    let params = json!({"skip_special_tokens": false, "repetition_penalty": 1.5, "stop": ["END"], "min_tokens": 4, "ignore_eos": true,
                        "bad_words": ["no"], "logprobs": 0, "max_tokens": 9});
    assert_eq!((&generate["sampling_params"], notes), (&params, left_out(&["xtc_threshold", "stop_regex"])));
    let (sglang, notes) = written(SGLANG, &asked);
    let params = json!({"skip_special_tokens": false, "repetition_penalty": 1.5, "stop": ["END"], "min_new_tokens": 4,
                        "ignore_eos": true, "stop_regex": "a+", "max_new_tokens": 9});
    assert_eq!((&sglang["sampling_params"], notes), (&params, left_out(&["xtc_threshold", "bad_words"])));
    let (llamacpp, notes) = written(Endpoint::Llamacpp, &asked);
    assert_eq!((&llamacpp["repeat_penalty"], &llamacpp["xtc_threshold"]), (&json!(1.5), &json!(0.5)));
    assert_eq!(notes, left_out(&["min_tokens", "stop_regex", "bad_words"]));
    let narrowed = ALL.map(|endpoint| held(endpoint, &call, &sampling));
    let held = |narrowed| Held { grammar: false, narrowed };
    assert_eq!(narrowed, [held(true), held(true), held(true), held(false)], "llama.cpp offers none of those that narrow");
}

#[test]
fn a_grammar_is_held_where_the_server_has_it_and_a_forced_tool_is_only_told_of() {
    let mut call = call();
    call.response_format = Some(Raw::from_value(&json!({"type": "structural_tag", "format": {}})));
    call.tool_choice = Some(ToolChoice::Required);
    call.tools.push(crate::call::Tool {
        kind: crate::call::ToolKind::Function,
        namespace: None,
        name: Text::new("f"),
        description: None,
        parameters: None,
        rest: Vec::new(),
    });
    let sampling = Sampling::default();
    let tool = "tool_choice is not forced: generate endpoints take no tools, the model is only told of them";
    let asked = asked(&call, &sampling);
    let (vllm, notes) = written(Endpoint::VllmGenerate, &asked);
    assert_eq!(notes, [tool]);
    assert!(vllm["sampling_params"]["structured_outputs"]["structural_tag"].is_string());
    let (_, notes) = written(Endpoint::Llamacpp, &asked);
    assert_eq!(notes, ["a structural tag is not offered by this server's generate endpoint; left out", tool]);
    let grammars = ALL.map(|endpoint| held(endpoint, &call, &sampling).grammar);
    assert_eq!(grammars, [true, true, true, false]);
}
