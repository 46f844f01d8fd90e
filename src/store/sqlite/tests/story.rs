//! What goes in comes out.

use super::*;
use crate::call::{Base64Form, ImageHash, RawKind};
use crate::store::{Finish, Outcome, Reward, RolloutFilter, RolloutStatus};

#[tokio::test]
async fn a_call_comes_back_whole() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("new/folder/g.db");
    let (store, process) = open(&path).await;
    let mut writer = store.writer().unwrap();
    let rollout = new_rollout(None);
    let (full, bare) = (start(rollout.id, process), start(rollout.id, process));
    write_all(&mut *writer, [Write::NewRollout(rollout.clone().into()), Write::CallStart(full.clone())]);
    assert_eq!(store.call(full.id).await.unwrap(), Some(unended(&full, CallStatus::Running, None)));
    let (full_end, bare_end) = (end(&full), bare_end(&bare));
    // The bare call's start was not written: its end brings it.
    write_all(&mut *writer, [Write::CallEnd(full_end.clone().into()), Write::CallEnd(bare_end.clone().into())]);
    assert_eq!(store.call(full.id).await.unwrap(), Some(recorded(&full_end, None)));
    write_all(&mut *writer, [Write::Delivered(full.id), Write::Delivered(full.id)]);
    assert_eq!(store.calls(rollout.id).await.unwrap(), vec![recorded(&full_end, Some(true)), recorded(&bare_end, None)]);
    for (call, kind, bytes) in [
        (&full, RawKind::Request, &full.request),
        (&full, RawKind::Upstream, &full_end.raw.upstream),
        (&full, RawKind::Response, &full_end.raw.response),
        (&full, RawKind::Prompt, &full_end.raw.prompt),
        (&bare, RawKind::Request, &bare.request),
        (&bare, RawKind::Upstream, &Bytes::new()),
        (&bare, RawKind::Response, &Bytes::new()),
        (&bare, RawKind::Prompt, &Bytes::new()),
    ] {
        assert_eq!(store.raw(call.id, kind).await.unwrap().as_ref(), Some(bytes), "{kind:?}");
    }
    assert_eq!(store.call(CallId::generate()).await.unwrap(), None);
    assert_eq!(store.raw(CallId::generate(), RawKind::Upstream).await.unwrap(), None);
    // Once the writer has ended in order, what is not noted as delivered was not.
    drop(writer);
    assert_eq!(store.calls(rollout.id).await.unwrap(), vec![recorded(&full_end, Some(true)), recorded(&bare_end, Some(false))]);
}

#[tokio::test]
async fn images_that_are_sent_with_every_turn_are_kept_once() {
    const TURNS: usize = 10;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("g.db");
    let (store, process) = open(&path).await;
    let mut writer = store.writer().unwrap();
    let rollout = new_rollout(None);
    write_all(&mut *writer, [Write::NewRollout(rollout.clone().into())]);
    // A megabyte of image, which nothing makes smaller.
    let mut state = 1_u64;
    let image: Vec<u8> = std::iter::repeat_with(|| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        state.to_be_bytes()[0]
    })
    .take(1 << 20)
    .collect();
    let mut url = b"data:image/png;base64,".to_vec();
    Base64Form::of_code(2).unwrap().write(&image, &mut url);
    let url = String::from_utf8(url).unwrap();
    let mut bodies = Vec::new();
    for turn in 0..TURNS {
        let more = r#",{"role":"user","content":"turn"}"#.repeat(turn);
        let request = format!(
            r#"{{"messages":[{{"role":"user","content":[{{"type":"image_url","image_url":{{"url":"{url}"}}}}]}}{more}]}}"#
        );
        let start = Arc::new(CallStart { request: request.clone().into(), ..(*start(rollout.id, process)).clone() });
        let upstream = Bytes::from(request.replacen('{', r#"{"model":"policy","#, 1));
        let end = CallEnd { raw: RawParts { upstream: upstream.clone(), ..RawParts::default() }, ..bare_end(&start) };
        // Some ends bring their start with them.
        let both = [Write::CallStart(start.clone()), Write::CallEnd(end.into())];
        write_all(&mut *writer, both.into_iter().skip(usize::from(turn == 7)));
        bodies.push((start.id, Bytes::from(request), upstream));
    }
    for (id, request, upstream) in bodies {
        assert!(store.raw(id, RawKind::Request).await.unwrap() == Some(request));
        assert!(store.raw(id, RawKind::Upstream).await.unwrap() == Some(upstream));
        assert_eq!(store.call(id).await.unwrap().map(|call| call.images), Some(vec![ImageHash::of(&image)]));
    }
    assert!(store.image(ImageHash::of(&image)).await.unwrap().as_deref() == Some(image.as_slice()));
    assert_eq!(store.image(ImageHash::of(b"other")).await.unwrap(), None);
    drop(writer);
    let size = std::fs::metadata(&path).unwrap().len();
    assert!(size < (3 << 20) / 2, "{size} bytes for one image in {TURNS} turns");
    let db = rusqlite::Connection::open(&path).unwrap();
    let counts = db.query_row("SELECT (SELECT count(*) FROM blobs), (SELECT count(*) FROM call_blobs)", [], |row| {
        Ok((row.get::<_, isize>(0)?, row.get::<_, isize>(1)?))
    });
    assert_eq!(counts.unwrap(), (1, TURNS.cast_signed()));
}

#[tokio::test]
async fn a_rollout_adds_its_calls_up() {
    let dir = tempfile::tempdir().unwrap();
    let (store, process) = open(&dir.path().join("g.db")).await;
    let mut writer = store.writer().unwrap();
    let (new, other) = (new_rollout(Some("g")), new_rollout(Some("g")));
    let late = Arc::new(CallStart { started_at: 2_900, ..(*start(new.id, process)).clone() });
    let early = start(new.id, process);
    let counted = CallEnd { version: WeightVersion { version: Some("w0".into()), ..Default::default() }, ..end(&early) };
    // No usage: the ids are counted.
    let uncounted = CallEnd { usage: None, ..end(&late) };
    write_all(
        &mut *writer,
        [
            Write::NewRollout(new.clone().into()),
            Write::NewRollout(other.clone().into()),
            Write::CallEnd(uncounted.clone().into()),
            Write::CallEnd(CallEnd { usage: Some(Usage { completion_tokens: 5, ..Default::default() }), ..counted }.into()),
            Write::CallStart(start(new.id, process)),
            Write::Reward(Reward { rollout_id: new.id, call_id: None, name: "reward".into(), value: 0.5 }),
            Write::Reward(Reward { rollout_id: new.id, call_id: None, name: "reward".into(), value: 0.1 + 0.2 }),
            Write::Reward(Reward { rollout_id: new.id, call_id: Some(late.id), name: "step".into(), value: -1.0 }),
        ],
    );
    let read = store.rollout(new.id).await.unwrap().unwrap();
    assert_eq!((read.calls, read.tokens, read.last_call_at, read.index), (3, 7, Some(2_900), 0));
    assert_eq!(read.policy_versions, ["w0", "w1"]);
    assert_eq!(read.rewards.into_iter().collect::<Vec<_>>(), [("reward".to_owned(), 0.1 + 0.2)]);
    assert_eq!(read.call_rewards, [(late.id, "step".to_owned(), -1.0)]);
    assert_eq!((read.status, read.outcome, read.ended_at, read.no_reward), (RolloutStatus::Open, None, None, false));
    assert_eq!((read.key, read.created_at, read.purpose, read.ttl_s), (new.key.clone(), 1_000, Purpose::Train, Some(60)));
    assert_eq!((read.task_id, read.group_id, read.group_size), (new.task_id.clone(), new.group_id.clone(), Some(2)));
    assert_eq!((read.harness, read.policy, read.sampling), (new.harness.clone(), new.policy.clone(), new.sampling.clone()));
    assert_eq!(serde_json::to_string(&read.metadata).unwrap(), serde_json::to_string(&new.metadata).unwrap());
    assert_eq!(store.rollout(other.id).await.unwrap().unwrap().index, 1);
    assert_eq!(store.rollout_by_key(&new.key).await.unwrap().map(|rollout| rollout.id), Some(new.id));
    assert!(store.rollout_by_key(&RolloutKey::generate()).await.unwrap().is_none());

    let evidence = Some(serde_json::json!({"exit": 1}));
    let finish =
        |at, outcome| Write::Finish(Finish { rollout_id: new.id, at, outcome, no_reward: true, evidence: evidence.clone() });
    write_all(&mut *writer, [finish(9, Outcome::TimedOut), finish(10, Outcome::Passed)]);
    let read = store.rollout(new.id).await.unwrap().unwrap();
    assert_eq!((read.status, read.outcome, read.ended_at), (RolloutStatus::Finished, Some(Outcome::TimedOut), Some(9)));
    assert_eq!((read.no_reward, read.evidence), (true, evidence.clone()));
}

#[tokio::test]
async fn a_repeat_makes_no_second_rollout() {
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = open(&dir.path().join("g.db")).await;
    let mut writer = store.writer().unwrap();
    let first = NewRollout { idempotency_key: Some("k".into()), ..new_rollout(None) };
    let same_key = NewRollout { idempotency_key: Some("k".into()), ..new_rollout(None) };
    let same_id = NewRollout { id: first.id, ..new_rollout(None) };
    write_all(&mut *writer, [&first, &same_key, &same_id].map(|new| Write::NewRollout(Box::new(new.clone()))));
    let all = store.rollouts(&RolloutFilter::default()).await.unwrap();
    assert_eq!(all.iter().map(|rollout| (rollout.id, &rollout.key)).collect::<Vec<_>>(), [(first.id, &first.key)]);
    assert_eq!(store.rollout_by_idempotency_key("k").await.unwrap().map(|rollout| rollout.id), Some(first.id));
    assert!(store.rollout_by_idempotency_key("other").await.unwrap().is_none());
}

#[tokio::test]
async fn a_conversation_is_its_newest_open_rollout() {
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = open(&dir.path().join("g.db")).await;
    let mut writer = store.writer().unwrap();
    let talk = || NewRollout { conversation: Some("c".into()), ..new_rollout(None) };
    let (old, new) = (talk(), talk());
    write_all(&mut *writer, [Write::NewRollout(old.clone().into()), Write::NewRollout(new.clone().into())]);
    let found = async || store.rollout_by_conversation("c").await.unwrap().map(|rollout| rollout.id);
    assert_eq!(found().await, Some(new.id));
    let finish =
        |rollout_id| Write::Finish(Finish { rollout_id, at: 1, outcome: Outcome::Passed, no_reward: false, evidence: None });
    write_all(&mut *writer, [finish(new.id)]);
    assert_eq!(found().await, Some(old.id));
    write_all(&mut *writer, [finish(old.id)]);
    assert_eq!(found().await, None);
}

#[tokio::test]
async fn pages_hold_each_rollout_once() {
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = open(&dir.path().join("g.db")).await;
    let mut writer = store.writer().unwrap();
    let new: Vec<_> = (0..7).map(|at| new_rollout(Some(if at % 2 == 0 { "even" } else { "odd" }))).collect();
    write_all(&mut *writer, new.iter().map(|new| Write::NewRollout(Box::new(new.clone()))));
    let finish = Finish { rollout_id: new[4].id, at: 1, outcome: Outcome::Failed, no_reward: false, evidence: None };
    write_all(&mut *writer, [Write::Finish(finish)]);
    let ids = async |filter: RolloutFilter| {
        store.rollouts(&filter).await.unwrap().into_iter().map(|rollout| rollout.id).collect::<Vec<_>>()
    };
    let all: Vec<_> = new.iter().map(|new| new.id).collect();
    let mut paged = Vec::new();
    loop {
        let page = ids(RolloutFilter { after: paged.last().copied(), limit: 3, ..Default::default() }).await;
        paged.extend_from_slice(&page);
        if page.len() < 3 {
            break;
        }
    }
    assert_eq!(paged, all);
    let group = |name: &str| RolloutFilter { group_id: Some(name.into()), ..Default::default() };
    assert_eq!(ids(group("odd")).await, [all[1], all[3], all[5]]);
    assert_eq!(ids(RolloutFilter { status: Some(RolloutStatus::Open), ..group("even") }).await, [all[0], all[2], all[6]]);
    assert_eq!(ids(RolloutFilter { outcome: Some(Outcome::Failed), ..Default::default() }).await, [all[4]]);
    assert_eq!(ids(RolloutFilter { purpose: Some(Purpose::Eval), ..Default::default() }).await, []);
    assert_eq!(ids(RolloutFilter { task_id: Some("task".into()), after: Some(all[5]), ..Default::default() }).await, [all[6]]);
    assert_eq!(ids(RolloutFilter { harness: Some("none".into()), ..Default::default() }).await, []);
    // Indexes within a group count from 0.
    let indexes: Vec<_> = store.rollouts(&group("even")).await.unwrap().iter().map(|rollout| rollout.index).collect();
    assert_eq!(indexes, [0, 1, 2, 3]);
}
