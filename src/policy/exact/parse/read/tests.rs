//! What replies are read as, and that nothing depends on how they come.

use proptest::prelude::*;

use super::*;
use crate::call::{Fold, Raw, Reply, Tool, ToolKind};
use crate::policy::stub;

const THINK: Thinking = Thinking { start: "<think>", end: "</think>" };

/// A reply in short: reasoning, text, calls.
type Said = (String, String, Vec<(String, String)>);

fn tool(name: &str, kind: ToolKind, namespace: Option<&str>, parameters: &str) -> Tool {
    Tool {
        kind,
        namespace: namespace.map(Text::new),
        name: Text::new(name),
        description: None,
        parameters: Some(Raw::from_json(parameters.as_bytes().to_vec())),
        rest: Vec::new(),
    }
}

fn asked() -> Arc<Call> {
    let properties = r#"{"properties":{"path":{"type":"string"},"lines":{"type":"integer"},"all":{"type":"array"}}}"#;
    let tools = vec![
        tool("f", ToolKind::Function, None, properties),
        tool("patch", ToolKind::Custom, None, "{}"),
        tool("read", ToolKind::Function, Some("fs"), properties),
    ];
    Arc::new(Call { tools, ..stub::call() })
}

struct Read {
    reply: Reply,
    kept: Option<String>,
    notes: Vec<String>,
}

fn read<'a>(form: Option<Form>, opened: Option<bool>, pieces: impl IntoIterator<Item = &'a str>) -> Read {
    let call = asked();
    let mut reader = Reader::new(&call, Names::of(&call), opened.map(|_| THINK), form, opened == Some(true));
    let mut events = Vec::new();
    for piece in pieces {
        reader.push(piece, &mut events);
    }
    let kept = reader.finish(&mut events);
    let mut fold = Fold::default();
    for event in &events {
        fold.push(event);
    }
    Read { reply: fold.reply(), kept, notes: reader.notes() }
}

fn said(reply: &Reply) -> Said {
    let plain = |text: &Option<Text>| text.as_ref().map_or_else(String::new, |text| text.decode().into_owned());
    let calls = reply.tool_calls.iter().map(|call| {
        let namespace = call.namespace.as_ref().map_or_else(String::new, |name| format!("{}.", name.decode()));
        (namespace + &call.name.decode(), call.arguments.decode().into_owned())
    });
    (plain(&reply.reasoning), plain(&reply.text), calls.collect())
}

/// Reads a reply whole, byte by byte (as far as characters allow) and in halves; all must be the same.
#[track_caller]
fn every_way(form: Form, opened: Option<bool>, text: &str) -> (Said, Vec<String>) {
    let whole = read(Some(form), opened, [text]);
    let found = (said(&whole.reply), whole.notes.clone(), whole.kept.clone());
    let chars: Vec<&str> = text.char_indices().map(|(at, c)| &text[at..at + c.len_utf8()]).collect();
    let slow = read(Some(form), opened, chars.iter().copied());
    assert_eq!((said(&slow.reply), slow.notes, slow.kept), found, "char by char: {text:?}");
    for cut in text.char_indices().map(|(at, _)| at) {
        let halves = read(Some(form), opened, [&text[..cut], &text[cut..]]);
        assert_eq!((said(&halves.reply), halves.notes, halves.kept), found, "cut at {cut}: {text:?}");
    }
    (found.0, found.1)
}

#[track_caller]
fn check(form: Form, opened: Option<bool>, text: &str, expected: (&str, &str, &[(&str, &str)]), notes: &[&str]) {
    let (found, found_notes) = every_way(form, opened, text);
    let calls = expected.2.iter().map(|(name, arguments)| ((*name).to_owned(), (*arguments).to_owned())).collect();
    assert_eq!(found, (expected.0.to_owned(), expected.1.to_owned(), calls), "{text:?}");
    assert_eq!(found_notes, notes, "{text:?}");
}

const CUT: &str = "a tool call in the reply stayed text: cut off before its end";
const NOT_JSON: &str = "a tool call in the reply stayed text: not JSON";
const FORM: &str = "a tool call in the reply stayed text: not of the form that this model's calls have";
const NO_CALL: &str = "a tool call in the reply stayed text: without a tool's name and arguments";

#[test]
fn hermes_calls_are_read_to_the_letter() {
    let odd = r#"{"path":"a\u00e9 </tool_call> <tool_call>","lines" : 1.0}"#;
    let text = format!("Let me see.\n<tool_call>\n{{\"name\": \"f\", \"arguments\": {odd}}}\n</tool_call>");
    check(Form::Hermes, None, &text, ("", "Let me see.\n", &[("f", odd)]), &[]);
    let two = "<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>\n<tool_call>\n{\"arguments\": {\"a\": [1]}, \"name\": \"g\"}</tool_call>\n";
    check(Form::Hermes, None, two, ("", "", &[("f", "{}"), ("g", "{\"a\": [1]}")]), &[]);
    // A reply that ends without the last marker, or inside it, has called all the same.
    for end in ["", "\n", "\n</tool_"] {
        let text = format!("<tool_call>{{\"name\": \"f\"}}{end}");
        check(Form::Hermes, None, &text, ("", "", &[("f", "{}")]), &[]);
    }
}

#[test]
fn text_around_calls_is_told_and_the_white_space_after_them_is_not() {
    let call = "<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>";
    let calls = [("f", "{}"), ("f", "{}")];
    check(Form::Hermes, None, &format!(" \n{call}\n\n{call} \n"), ("", " \n", &calls), &[]);
    check(Form::Hermes, None, &format!("a{call}\n b {call}c"), ("", "a\n b c", &calls), &[]);
    check(Form::Hermes, None, &format!("{call}\n<tool_call>no{call}"), ("", "\n<tool_call>no", &calls), &[NOT_JSON]);
    let far = "\n".repeat(LONGEST_SPACE + 1);
    check(Form::Hermes, None, &format!("{call}{far}"), ("", &far, &calls[..1]), &[]);
}

#[test]
fn what_is_no_call_stays_text_to_the_letter() {
    for (text, note) in [
        ("use the <tool_call> tag", NOT_JSON),
        ("<tool_call>\n{\"name\": \"f\", \"arguments\": {\"path\": \"half", CUT),
        ("<tool_call>\n{\"name\": \"f\", \"arguments\": {\"path\": \"a\nb\"}}\n</tool_call>", NOT_JSON),
        ("<tool_call>{\"name\": \"f\", \"arguments\": {}} and so on</tool_call>", FORM),
        ("<tool_call>{\"tool\": \"f\", \"arguments\": {}}</tool_call>", NO_CALL),
        ("<tool_call>[{\"name\": \"f\"}]</tool_call>", FORM),
        ("<tool_call>", CUT),
    ] {
        check(Form::Hermes, None, text, ("", text, &[]), &[note]);
    }
    for text in ["", " \n", "a <tool_cal", "<tool_", "</tool_call>", "{\"name\": \"f\", \"arguments\": {}}", "é <tool call>"] {
        check(Form::Hermes, None, text, ("", text, &[]), &[]);
    }
    // The next one is found where the bad one went wrong.
    let text = "<tool_call>{\"name\": \"f\", <tool_call>{\"name\": \"g\"}</tool_call>";
    check(Form::Hermes, None, text, ("", "<tool_call>{\"name\": \"f\", ", &[("g", "{}")]), &[NOT_JSON]);
}

#[test]
fn reasoning_stands_between_its_markers() {
    let call = "<tool_call>{\"name\": \"f\"}</tool_call>";
    let calls = [("f", "{}")];
    for (opened, text, expected) in [
        (false, "<think>\nhm\n</think>\n\nHello", ("\nhm\n", "\n\nHello", &calls[..0])),
        (true, "hm\n</think>\n\nHello", ("hm\n", "\n\nHello", &calls[..0])),
        (true, "\n<think>hm</think>Hello", ("\nhm", "Hello", &calls[..0])),
        (false, "Hello <think>hm</think>", ("", "Hello <think>hm</think>", &calls[..0])),
        (false, " \n<think>a</think><think>b</think>", ("a", " \n<think>b</think>", &calls[..0])),
        (true, "cut off </thi", ("cut off </thi", "", &calls[..0])),
        (true, "", ("", "", &calls[..0])),
        (false, "<think", ("", "<think", &calls[..0])),
        (true, "</think>", ("", "", &calls[..0])),
    ] {
        check(Form::Hermes, Some(opened), text, expected, &[]);
    }
    let text = format!("I'd {call}</think>\n\n{call}");
    check(Form::Hermes, Some(true), &text, (&format!("I'd {call}"), "\n\n", &calls), &[]);
}

const CODER: &str = "<tool_call>\n<function=f>\n<parameter=path>\na \"b\"\n</parameter>\n<parameter=lines>\n12\n</parameter>\n</function>\n</tool_call>";
const CODER_ARGUMENTS: &str = r#"{"path": "a \"b\"", "lines": 12}"#;

#[test]
fn coder_calls_are_read_with_their_tools_types() {
    let called = [("f", CODER_ARGUMENTS), ("f", CODER_ARGUMENTS)];
    check(Form::Coder, None, &format!("ok\n\n{CODER}\n{CODER}"), ("", "ok\n\n", &called), &[]);
    // Without the outer marker, with and without its end.
    let bare = &CODER["<tool_call>\n".len()..];
    check(Form::Coder, None, bare, ("", "", &called[..1]), &[]);
    check(Form::Coder, None, bare.trim_end_matches("</tool_call>"), ("", "", &called[..1]), &[]);
    check(Form::Coder, None, CODER.trim_end_matches("</tool_call>"), ("", "", &called[..1]), &[]);
    check(Form::Coder, None, "<function=g>\n</function> done", ("", " done", &[("g", "{}")]), &[]);
    // A value may be about such tags.
    let text =
        "<tool_call><function=f><parameter=path>\n\n</parameter> is a tag, </function> too\n</parameter></function></tool_call>";
    let arguments = r#"{"path": "\n</parameter> is a tag, </function> too"}"#;
    check(Form::Coder, None, text, ("", "", &[("f", arguments)]), &[]);
    let text = "<function=fs__read><parameter=path>null</parameter><parameter=all>[1 ,2]</parameter></function>";
    check(Form::Coder, None, text, ("", "", &[("fs.read", r#"{"path": "null", "all": [1 ,2]}"#)]), &[]);
}

#[test]
fn coder_text_that_is_no_call_stays_text() {
    for (cut, _) in CODER.char_indices().skip("<tool_call>".len()) {
        let text = &CODER[..cut];
        if cut < CODER.find("\n</tool_call>").unwrap() {
            check(Form::Coder, None, text, ("", text, &[]), &[CUT]);
        }
    }
    for text in [
        "<tool_call>{\"name\": \"f\"}</tool_call>",
        "<function=>",
        "<function=f\n>",
        "<function=f>x</function>",
        "<tool_call><function=f></function>x</tool_call>",
    ] {
        check(Form::Coder, None, text, ("", text, &[]), &[FORM]);
    }
}

#[test]
fn a_call_ends_reasoning_that_has_no_end() {
    let called = [("f", CODER_ARGUMENTS)];
    check(Form::Coder, Some(true), &format!("So:\n{CODER}\n"), ("So:\n", "", &called), &[]);
    let quoted = format!("like <tool_call> or {CODER}, I think");
    check(Form::Coder, Some(true), &format!("{quoted}</think>\n{CODER}"), (&quoted, "\n", &called), &[]);
    check(Form::Coder, Some(true), "a <tool_call>", ("a <tool_call>", "", &[]), &[]);
    check(Form::Coder, Some(true), "a <tool_call> <fun", ("a <tool_call> <fun", "", &[]), &[]);
}

#[test]
fn mistral_calls_are_lists_or_named() {
    let called = [("f", "{\"a\":1}"), ("g", "{}")];
    let list =
        "ok[TOOL_CALLS] [{\"name\": \"f\", \"arguments\": {\"a\":1}}, {\"name\": \"g\", \"arguments\": {}, \"id\": \"x\"}]";
    check(Form::Mistral, None, list, ("", "ok", &called), &[]);
    check(Form::Mistral, None, "[TOOL_CALLS]f[ARGS]{\"a\":1}[TOOL_CALLS]g{}", ("", "", &called), &[]);
    check(Form::Mistral, None, "[TOOL_CALLS]f[CALL_ID]abc123[ARGS]{\"a\":1}", ("", "", &called[..1]), &[]);
    check(Form::Mistral, None, "[TOOL_CALLS]{\"name\": \"g\"}", ("", "", &called[1..]), &[]);
    let long = format!("[TOOL_CALLS]{}", "n".repeat(300));
    for (text, note) in [
        ("[TOOL_CALLS]", CUT),
        ("[TOOL_CALLS]f[ARG", CUT),
        ("[TOOL_CALLS]f[ARGS]{\"a\":", CUT),
        ("[TOOL_CALLS] []", NO_CALL),
        ("[TOOL_CALLS]f[ARGS]x", FORM),
        ("[TOOL_CALLS]two words{}", FORM),
        (&long, FORM),
    ] {
        check(Form::Mistral, None, text, ("", text, &[]), &[note]);
    }
}

#[test]
fn llama_calls_have_a_tag_or_are_the_answer() {
    let called = [("f", "{\"a\":1}"), ("g", "[]")];
    let calls = "{\"name\": \"f\", \"parameters\": {\"a\":1}}; {\"name\": \"g\", \"parameters\": []}";
    check(Form::Llama, None, calls, ("", "", &called), &[]);
    check(Form::Llama, None, &format!("ok <|python_tag|>{calls}\n"), ("", "ok ", &called), &[]);
    check(Form::Llama, None, "\n{\"name\": \"g\", \"parameters\": []} ok", ("", " ok", &called[1..]), &[]);
    // An answer in JSON is none, and nobody thought that it was.
    for text in ["{\"name\": \"Ada\"}", "{\"a\": 1}", "{not json", "{\"a\": ", "see {\"name\": \"g\", \"parameters\": {}}", "[1]"]
    {
        check(Form::Llama, None, text, ("", text, &[]), &[]);
    }
    check(Form::Llama, None, "<|python_tag|>print(1)", ("", "<|python_tag|>print(1)", &[]), &[NOT_JSON]);
    check(Form::Json, None, "[{\"name\": \"f\", \"arguments\": {\"a\":1}}]", ("", "", &called[..1]), &[]);
}

#[test]
fn what_somebody_else_reads_is_kept_from_its_marker_on() {
    let form = Form::Kept { markers: &["<calls>"], bare: Some(b'[') };
    for (text, told, kept) in
        [("a <calls>b <calls>", "a ", Some("<calls>b <calls>")), (" [x", "", Some(" [x")), ("a [x <cal", "a [x <cal", None)]
    {
        check(form, None, text, ("", told, &[]), &[]);
        assert_eq!(read(Some(form), None, [text]).kept.as_deref(), kept);
    }
    let huge = format!("<calls>{}", "x".repeat(LARGEST_KEPT));
    let read = read(Some(form), None, [&huge[..9], &huge[9..], "rest"]);
    assert_eq!((said(&read.reply).1, read.kept), (huge + "rest", None));
}

#[test]
fn custom_and_grouped_tools_are_the_clients_own() {
    let text = "<tool_call>{\"name\": \"patch\", \"arguments\": {\"input\": \"*** Begin\\n\"}}</tool_call>\
                <tool_call>{\"name\": \"fs__read\", \"arguments\": {}}</tool_call>";
    check(Form::Hermes, None, text, ("", "", &[("patch", "*** Begin\n"), ("fs.read", "{}")]), &[]);
    let found = read(Some(Form::Hermes), None, [text]);
    let ids: Vec<_> = found.reply.tool_calls.iter().map(|call| call.id.decode().into_owned()).collect();
    for id in &ids {
        let digits = id.strip_prefix("call_").unwrap();
        assert!(digits.len() == 24 && digits.bytes().all(|byte| byte.is_ascii_hexdigit()), "{id}");
    }
    assert_ne!(ids[0], ids[1]);
}

#[test]
fn without_a_form_all_is_text() {
    let text = "a <tool_call>{\"name\": \"f\"}</tool_call>\n";
    assert_eq!(said(&read(None, None, [text]).reply), (String::new(), text.to_owned(), vec![]));
}

#[test]
fn text_leaves_at_once() {
    let call = asked();
    let mut reader = Reader::new(&call, Names::of(&call), Some(THINK), Some(Form::Hermes), true);
    for (piece, told) in [
        ("think ", Some(Event::Reasoning("think ".into()))),
        ("more <", Some(Event::Reasoning("more ".into()))),
        ("b> </th", Some(Event::Reasoning("<b> ".into()))),
        ("ink>a", Some(Event::Text("a".into()))),
        (" b<", Some(Event::Text(" b".into()))),
        ("p>", Some(Event::Text("<p>".into()))),
        ("<tool_call>{", None),
    ] {
        let mut events = Vec::new();
        reader.push(piece, &mut events);
        assert_eq!(events, Vec::from_iter(told), "{piece:?}");
    }
}

/// Garbage of a size, of kinds that have cost parsers their time or their stack.
fn hostile(size: usize) -> Vec<String> {
    vec![
        "<tool_call>".repeat(size),
        "<tool_call>{\"a\":".repeat(size),
        "<tool_call>\n<function=f><parameter=p></parameter>".repeat(size),
        "<tool_call><function=f>".repeat(size),
        format!("<function=f><parameter=p>{}", "</parameter> ".repeat(size)),
        format!("<function=f><parameter=p></parameter>{}", " ".repeat(10 * size)),
        format!("<tool_call>{}", "{\"a\":".repeat(size)),
        format!("<tool_call>{}", "[".repeat(10 * size)),
        format!("<tool_call>{{\"name\": \"f\"}}{}", " ".repeat(10 * size)),
        format!("<tool_call>{}", " ".repeat(10 * size)),
        format!("<tool_call>{{\"name\": \"{}", "x".repeat(10 * size)),
        format!("{{\"name\": \"f\", \"parameters\": {{}}}}{}", " ".repeat(10 * size)),
        "[TOOL_CALLS]f[ARGS]".repeat(size),
        format!("[TOOL_CALLS]f[ARGS]{}", " ".repeat(10 * size)),
        format!("[TOOL_CALLS]{}", " ".repeat(10 * size)),
        format!("[TOOL_CALLS]{}", "x".repeat(10 * size)),
        "<think></think>".repeat(size),
        "<".repeat(10 * size),
        " ".repeat(10 * size),
        "<tool_call>{\"name\": \"f\"}</tool_call>\n".repeat(size),
        format!("{CODER}\n").repeat(size / 8),
        "<tool_call> <function=".repeat(size),
        format!("{}<tool_call><function=", "<tool_call> <function=f>".repeat(size)),
    ]
}

#[test]
fn work_is_linear_and_what_is_told_bounded() {
    let pieces =
        |text: &str| text.as_bytes().chunks(3).map(|piece| String::from_utf8(piece.to_vec()).unwrap()).collect::<Vec<_>>();
    for form in [Form::Hermes, Form::Coder, Form::Mistral, Form::Llama, Form::Json] {
        for opened in [None, Some(false), Some(true)] {
            for text in hostile(1000) {
                let head: String = text.chars().take(40).collect();
                let pieces = pieces(&text);
                let mut cut = None;
                let looked = marker::tests::count(|| cut = Some(read(Some(form), opened, pieces.iter().map(String::as_str))));
                // White space that is held back is looked at with each piece, but never more of it than the bound.
                let most = (LONGEST_SPACE / 3 + 32) * text.len();
                assert!(looked < most, "{form:?} {opened:?}: {looked} bytes looked at of {} in {head}", text.len());
                let (whole, cut) = (read(Some(form), opened, [text.as_str()]), cut.unwrap());
                assert_eq!(said(&whole.reply), said(&cut.reply), "{form:?} {opened:?} {head}");
                assert!(whole.notes.len() <= Why::ALL.len());
                let looked = marker::tests::count(|| drop(read(Some(form), opened, [text.as_str()])));
                assert!(
                    looked < 16 * text.len() + 64,
                    "{form:?} {opened:?}: {looked} bytes looked at of {} in {head}",
                    text.len()
                );
            }
        }
    }
}

/// Larger than is kept: text from there on, wherever it was cut.
#[test]
fn a_call_without_end_is_given_up_at_the_bound() {
    let text = format!("<tool_call>{{\"name\": \"{}\"}}</tool_call>", "é".repeat(LARGEST / 2));
    let note = "a tool call in the reply stayed text: larger or deeper than is read";
    let whole = read(Some(Form::Hermes), None, [text.as_str()]);
    assert_eq!((said(&whole.reply).1 == text, whole.notes), (true, vec![note.to_owned()]));
    let (begin, end) = text.split_at(text.floor_char_boundary(LARGEST));
    let cut = read(Some(Form::Hermes), None, [begin, end]);
    assert_eq!((said(&cut.reply).1 == text, cut.notes), (true, vec![note.to_owned()]));
}

const PARTS: [&str; 40] = [
    "<tool_call>",
    "</tool_call>",
    "<function=",
    "f",
    ">",
    "</function>",
    "<parameter=",
    "path",
    "</parameter>",
    "[TOOL_CALLS]",
    "[ARGS]",
    "[CALL_ID]",
    "<|python_tag|>",
    "<think>",
    "</think>",
    "\n",
    " ",
    "{\"name\": \"f\", \"arguments\": {\"a\": 1}}",
    "{\"name\": \"f\", \"parameters\": {}}",
    "{",
    "}",
    "[",
    "]",
    "\"",
    ":",
    ",",
    ";",
    "\\",
    "<",
    "</",
    "é",
    "👩‍🚀",
    "\"name\"",
    "\"arguments\"",
    "text",
    "<tool_",
    "1",
    "true",
    CODER,
    "<|",
];

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(2000) })]

    #[test]
    fn any_cut_gives_the_same_reply_and_no_text_is_lost(
        parts in prop::collection::vec(prop::sample::select(&PARTS[..]), 0..14),
        form in prop::sample::select(vec![Form::Hermes, Form::Coder, Form::Mistral, Form::Llama, Form::Json]),
        opened in prop::sample::select(vec![None, Some(false), Some(true)]),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..6),
    ) {
        let text = parts.concat();
        let whole = read(Some(form), opened, [text.as_str()]);
        let mut places: Vec<usize> = cuts.iter().map(|cut| text.floor_char_boundary(cut.index(text.len() + 1))).collect();
        places.extend([0, text.len()]);
        places.sort_unstable();
        let pieces = places.windows(2).map(|ends| &text[ends[0]..ends[1]]);
        let cut = read(Some(form), opened, pieces);
        prop_assert_eq!(said(&whole.reply), said(&cut.reply));
        prop_assert_eq!(&whole.notes, &cut.notes);
        let chars = read(Some(form), opened, text.char_indices().map(|(at, c)| &text[at..at + c.len_utf8()]));
        prop_assert_eq!(said(&whole.reply), said(&chars.reply));
        // Without a call, all that is missing is the markers of reasoning; those are there at most once.
        let (reasoning, answer, calls) = said(&whole.reply);
        if calls.is_empty() {
            let missing = text.len() - reasoning.len() - answer.len();
            let markers = [0, "<think>".len(), "</think>".len(), "<think></think>".len()];
            prop_assert!(markers.contains(&missing), "{missing} bytes are missing of {text:?}: {reasoning:?} {answer:?}");
        }
    }
}
