//! What is written is what is read back, value for value.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Seek, Write};

use serde_json::{Value, json};

use super::*;
use crate::call::{FinishReason, ImageHash, LogprobKind, Raw, Sampling, VersionSource};
use crate::ids::{CallId, RolloutId};
use crate::trajectory::{Abandoned, Kind, Parent, SampleImage, SampleStatus, Span};

/// A sample in which every field has something.
fn full() -> Sample {
    let span = |start, end, rewards: &[(&str, f64)]| Span {
        call_id: CallId::generate(),
        start,
        end,
        policy_version: Some("step-7".to_owned()),
        policy_seq: 7,
        version_source: Some(VersionSource::Polled),
        finish_reason: Some(FinishReason::Length),
        sampling: Sampling { temperature: Some(0.7), stop: Some(Raw::from_value(&["a", "\n"])), ..Sampling::default() },
        logprob_kind: LogprobKind::Processed,
        constrained: false,
        rewards: rewards.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect(),
        abandoned: true,
        abandoned_as: Some(Abandoned::Retry),
        realigned: true,
    };
    Sample {
        schema: SCHEMA.to_owned(),
        id: "s-1".to_owned(),
        rollout_id: RolloutId::generate(),
        rollout_index: 3,
        group_id: Some("g".to_owned()),
        task_id: Some("τάσκ".to_owned()),
        harness: Some("codex".to_owned()),
        purpose: "train".to_owned(),
        index: 0,
        kind: Kind::Subagent,
        token_ids: vec![1, 0, 151_643, i32::MAX.cast_unsigned(), 5, 6],
        loss_mask: vec![0, 1, 1, 0, 0, 1],
        logprobs: vec![None, Some(-0.0), Some(-1.234_567_890_123_456_7e-300), None, None, Some(-0.1)],
        prompt_length: 1,
        spans: vec![span(1, 3, &[("step", 0.5), ("é", -1.0)]), span(5, 6, &[])],
        reward: Some(0.25),
        rewards: BTreeMap::from([("reward".to_owned(), 0.25), ("style".to_owned(), 1e300)]),
        outcome: Some("passed".to_owned()),
        status: SampleStatus::Truncated,
        rollout_mask_total: 3,
        rollout_samples: 1,
        parent: Some(Parent { sample_id: "s-0".to_owned(), at: 2 }),
        policy: "default".to_owned(),
        model: "m".to_owned(),
        tokenizer_hash: Some("th".to_owned()),
        template_hash: Some("ch".to_owned()),
        // As clients write: spaces, escapes, numbers that no float holds.
        messages: vec![
            raw(r#"{"role": "user","content":"hi \u00e9 😀","n":1.00}"#),
            raw(r#"{"big":123456789012345678901234567890}"#),
        ],
        tools: vec![raw(r#"{"type":"function"}"#)],
        images: vec![
            SampleImage { hash: ImageHash::of(b"x"), mime: "image/png".to_owned(), start: Some(1), end: Some(2) },
            SampleImage { hash: ImageHash::of(b"y"), mime: "image/png".to_owned(), start: None, end: None },
        ],
        metadata: serde_json::from_value(json!({"deep": {"list": [1, null, "x"]}, "n": 1.5})).unwrap(),
    }
}

/// A sample in which nothing is that may be missing.
fn bare() -> Sample {
    let span = Span {
        policy_version: None,
        version_source: None,
        finish_reason: None,
        sampling: Sampling::default(),
        rewards: BTreeMap::new(),
        abandoned: false,
        abandoned_as: None,
        realigned: false,
        ..full().spans.remove(0)
    };
    Sample {
        group_id: None,
        task_id: None,
        harness: None,
        token_ids: Vec::new(),
        loss_mask: Vec::new(),
        logprobs: Vec::new(),
        spans: vec![span],
        reward: None,
        rewards: BTreeMap::new(),
        outcome: None,
        parent: None,
        tokenizer_hash: None,
        template_hash: None,
        messages: Vec::new(),
        tools: Vec::new(),
        images: Vec::new(),
        metadata: serde_json::Map::new(),
        ..full()
    }
}

fn raw(json: &str) -> Raw {
    Raw::from_json(json.as_bytes().to_vec())
}

/// Writes rollouts with row groups of about so many bytes.
fn written(rollouts: &[Vec<Sample>], most: usize) -> std::fs::File {
    let mut writer = Writer::with_groups(tempfile::tempfile().unwrap(), most).unwrap();
    for rollout in rollouts {
        writer.add(rollout.clone()).unwrap();
    }
    let mut file = writer.close().unwrap();
    file.rewind().unwrap();
    file
}

fn read(file: std::fs::File) -> Vec<Sample> {
    Reader::open(file).unwrap().map(Result::unwrap).collect()
}

/// How many rows each row group has.
fn groups(file: &std::fs::File) -> Vec<i64> {
    use parquet::file::reader::{FileReader, SerializedFileReader};
    let reader = SerializedFileReader::new(file.try_clone().unwrap()).unwrap();
    reader.metadata().row_groups().iter().map(parquet::file::metadata::RowGroupMetaData::num_rows).collect()
}

#[test]
fn the_leaves_are_those_of_the_schema() {
    let schema = parquet::schema::types::SchemaDescriptor::new(Arc::new(parse_message_type(COLUMNS).unwrap()));
    let columns: Vec<String> = schema.columns().iter().map(|column| column.path().string()).collect();
    let leaves: Vec<&str> = leaves::LEAVES.iter().map(|(path, _)| *path).collect();
    assert_eq!(leaves, columns);
    for named in TOKENS.iter().map(|(path, _)| path).chain(&UNIQUE) {
        assert!(leaves.contains(named), "{named} is no leaf");
    }
}

/// A field that a sample gets and that no column holds would be lost without a word.
#[test]
fn every_field_of_a_sample_has_its_column() {
    let sample = serde_json::to_value(full()).unwrap();
    let keys = |value: &Value| value.as_object().unwrap().keys().cloned().collect::<BTreeSet<_>>();
    let below = |prefix: &str| -> BTreeSet<String> {
        let paths = leaves::LEAVES.iter().filter_map(|(path, _)| path.strip_prefix(prefix));
        paths.map(|path| path.split('.').next().unwrap().to_owned()).collect()
    };
    assert_eq!(keys(&sample), below(""));
    assert_eq!(keys(&sample["spans"][0]), below("spans.list.element."));
    assert_eq!(keys(&sample["images"][0]), below("images.list.element."));
    assert_eq!(keys(&sample["parent"]), below("parent."));
}

#[test]
fn what_is_read_is_what_was_written() {
    let rollouts = [vec![full(), bare()], vec![bare()], vec![full()]];
    let file = written(&rollouts, GROUP_BYTES);
    assert_eq!(groups(&file), [4]);
    assert_eq!(read(file), rollouts.concat());
    let nothing = written(&[], GROUP_BYTES);
    assert_eq!((groups(&nothing), read(nothing)), (vec![], vec![]));
}

#[test]
fn rollouts_stay_whole_in_row_groups_of_bounded_size() {
    let long = |tokens: usize| Sample {
        token_ids: (0..u32::try_from(tokens).unwrap()).collect(),
        loss_mask: (0..tokens).map(|at| u8::from(at % 3 == 0)).collect(),
        logprobs: (0..tokens).map(|at| (at % 3 == 0).then_some(-0.5)).collect(),
        spans: Vec::new(),
        ..bare()
    };
    let most = 3 * size(&long(1000));
    // Two rollouts of one, one of two that does not fit beside them, one that is too large for any, and one.
    let rollouts = [vec![long(1000)], vec![long(1000)], vec![long(1000), long(1000)], vec![long(50_000)], vec![long(1)]];
    let file = written(&rollouts, most);
    assert_eq!(groups(&file), [2, 2, 1, 1]);
    assert_eq!(read(file), rollouts.concat());
}

#[test]
fn the_schema_is_named_in_the_file() {
    use parquet::file::reader::{FileReader, SerializedFileReader};
    let reader = SerializedFileReader::new(written(&[vec![full()]], GROUP_BYTES)).unwrap();
    let metadata = reader.metadata().file_metadata();
    let named = metadata.key_value_metadata().unwrap().iter().map(|entry| (entry.key.as_str(), entry.value.as_deref()));
    assert_eq!(named.collect::<Vec<_>>(), [(SCHEMA_KEY, Some(SCHEMA))]);
    assert!(metadata.created_by().unwrap().starts_with("gleaner "));
}

#[test]
fn an_id_that_no_int32_holds_is_refused() {
    let mut writer = Writer::new(Vec::new()).unwrap();
    let sample = Sample { token_ids: vec![1, 1 << 31], ..full() };
    let error = writer.add(vec![sample]).unwrap_err().to_string();
    assert_eq!(error, "token id 2147483648 of sample s-1 is beyond what Parquet's int32 holds; write it as .jsonl");
}

/// Takes so many bytes.
struct Disk(usize);

impl Write for Disk {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 = self.0.checked_sub(bytes.len()).ok_or(io::ErrorKind::StorageFull)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_disk_that_fills_is_told_as_what_it_is() {
    // Once: its ids are random, and so is what they are packed to.
    let sample = full();
    let whole = {
        let mut writer = Writer::new(Vec::new()).unwrap();
        writer.add(vec![sample.clone()]).unwrap();
        writer.close().unwrap().len()
    };
    for room in [0, 100, whole / 2, whole - 1] {
        let done = Writer::new(Disk(room)).and_then(|mut writer| {
            writer.add(vec![sample.clone()])?;
            writer.close()
        });
        match done {
            Err(ColumnsError::Io(error)) => assert_eq!(error.kind(), io::ErrorKind::StorageFull),
            Err(other) => panic!("with room for {room} of {whole} bytes: {other}"),
            Ok(_) => panic!("{whole} bytes went into {room}"),
        }
    }
}

#[test]
fn a_file_that_was_cut_or_is_none_is_refused() {
    use std::io::Read;
    let mut bytes = Vec::new();
    written(&[vec![full()]], GROUP_BYTES).read_to_end(&mut bytes).unwrap();
    for bytes in [&bytes[..bytes.len() - 1], &bytes[..bytes.len() / 2], b"PAR1", b""] {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(bytes).unwrap();
        file.rewind().unwrap();
        assert!(Reader::open(file).is_err(), "{} bytes were read", bytes.len());
    }
}
