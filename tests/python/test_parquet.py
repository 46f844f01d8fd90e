"""`gleaner export samples --out X.parquet` is read by pyarrow, polars, duckdb and `datasets` as one expects: every column of every row
is what the JSON Lines export of the same store says.

Another pair of files is checked by naming them: GLEANER_SAMPLES=PATH, without the ending.
"""

import base64
import json
import os
import pathlib
import subprocess

import pytest

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import datasets
import duckdb
import httpx
import polars
import pyarrow.parquet
import programs

SAMPLES = os.environ.get("GLEANER_SAMPLES")
# Columns whose text is JSON, since what they hold has no fixed shape.
JSON = ("messages", "tools", "metadata")
PIXEL = base64.b64encode(base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==")).decode()


def export(folder, out, *more, check=True):
    command = [programs.GLEANER, "export", "samples", "--database", str(folder / "gleaner.db"), "--out", str(out), *more]
    return subprocess.run(command, check=check, env=programs.environment(), capture_output=True, text=True)


def say(gleaner, rollout, messages, **fields):
    body = {"model": "any", "messages": messages, "stream": False, **fields}
    answer = gleaner.http.post("/v1/chat/completions", json=body, headers={"authorization": f"Bearer {rollout['key']}"})
    answer.raise_for_status()
    return answer.json()["choices"][0]["message"]


def end(gleaner, rollout, **fields):
    gleaner.http.post(f"/api/v1/rollouts/{rollout['id']}/finish", json=fields).raise_for_status()


def reward(gleaner, rollout, value, **fields):
    gleaner.http.post(f"/api/v1/rollouts/{rollout['id']}/reward", json={"reward": value, **fields}).raise_for_status()


def user(text):
    return {"role": "user", "content": text}


def fill(policy, gleaner):
    """Rollouts with all that a sample can have, and with as little."""
    tools = [{"type": "function", "function": {"name": "sh", "parameters": {"type": "object", "x": [1.0, 1e-7, None]}}}]
    call = {"name": "sh", "arguments": '{"command": "ls \\"a b\\""}'}
    policy.bind("[rich]", [{"reasoning": "I look 👀.", "text": "ok", "tool_calls": [call]}, {"text": "Grüße,\nende."}])
    rich = gleaner.rollout(group_id="g", group_size=4, task_id="täsk", harness="codex", purpose="train",
                           metadata={"deep": {"list": [1, None, "x"]}, "n": 1.5})
    first = say(gleaner, rich, [user("[rich] 你好")], tools=tools, temperature=0.5, stop=["\n\n", "END"])
    answer = {"role": "tool", "tool_call_id": first["tool_calls"][0]["id"], "content": "a.txt"}
    say(gleaner, rich, [user("[rich] 你好"), first, answer], tools=tools)
    reward(gleaner, rich, -0.1)
    reward(gleaner, rich, 1e300, name="style")
    reward(gleaner, rich, 0.5, name="step", call_id=gleaner.calls(rich)[0]["id"])
    end(gleaner, rich)
    # Two conversations that part: the second sample has a parent.
    forked = gleaner.rollout(group_id="g", group_size=4)
    begin = say(gleaner, forked, [user("begin")])
    for branch in ("left", "right"):
        say(gleaner, forked, [user("begin"), begin, user(branch)])
    end(gleaner, forked, no_reward=True)
    seen = gleaner.rollout()
    picture = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PIXEL}"}}
    say(gleaner, seen, [{"role": "user", "content": [{"type": "text", "text": "look"}, picture]}], max_tokens=1)
    # One without any sample.
    gleaner.rollout()


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """The same samples as JSON Lines and as Parquet."""
    if SAMPLES:
        return pathlib.Path(f"{SAMPLES}.jsonl"), pathlib.Path(f"{SAMPLES}.parquet")
    folder = tmp_path_factory.mktemp("store")
    with programs.scripting() as policy, programs.serving(policy.url, folder) as gleaner:
        fill(policy, gleaner)
    lines, columns = folder / "s.jsonl", folder / "s.parquet"
    for out in (lines, columns):
        said = export(folder, out, "--check").stderr
        assert "every invariant holds" in said, said
    return lines, columns


def expected(lines):
    rows = [json.loads(line) for line in lines.read_text(encoding="utf-8").splitlines()]
    for row in rows:
        for span in row["spans"]:
            span.setdefault("abandoned", False)
            span.setdefault("abandoned_as", None)
            span.setdefault("realigned", False)
    return rows


def as_json(row):
    """A row of Parquet in the form of JSON Lines."""
    def named(rewards):
        return {reward["name"]: reward["value"] for reward in rewards}

    row = {name: json.loads(value) if name in JSON else value for name, value in row.items()}
    row["rewards"] = named(row["rewards"])
    row["spans"] = [{**span, "sampling": json.loads(span["sampling"]), "rewards": named(span["rewards"])} for span in row["spans"]]
    return row


def by_pyarrow(path, _):
    return pyarrow.parquet.read_table(path).to_pylist()


def by_pandas(path, _):
    # Its frames make arrays of lists and NaN of nulls; what it reads is what pyarrow's table holds.
    return pyarrow.Table.from_pandas(pyarrow.parquet.read_table(path).to_pandas(types_mapper=_arrow)).to_pylist()


def _arrow(kind):
    import pandas
    return pandas.ArrowDtype(kind)


def by_polars(path, _):
    return polars.read_parquet(path).to_dicts()


def by_duckdb(path, _):
    found = duckdb.sql(f"SELECT * FROM read_parquet('{path}')")
    return [dict(zip(found.columns, row)) for row in found.fetchall()]


def by_datasets(path, cache):
    return list(datasets.load_dataset("parquet", data_files=str(path), split="train", cache_dir=str(cache)))


@pytest.mark.parametrize("read", [by_pyarrow, by_pandas, by_polars, by_duckdb, by_datasets])
def test_every_value_is_that_of_json_lines(files, tmp_path, read):
    lines, columns = files
    rows, wanted = [as_json(row) for row in read(columns, tmp_path)], expected(lines)
    assert len(rows) == len(wanted)
    for row, want in zip(rows, wanted):
        assert list(row) == list(want)
        for name, value in want.items():
            assert row[name] == value, f"{name} of sample {want['id']}"
            # 0.0 == -0.0 == False; the types must be the same too.
            assert json.dumps(row[name]) == json.dumps(value), f"{name} of sample {want['id']}"


def test_the_store_provoked_what_there_is(files):
    """Nulls, empty lists and their contraries: otherwise the comparison says little."""
    rows = expected(files[0])
    if SAMPLES:
        pytest.skip("another export than the test's own")
    for name in ("group_id", "task_id", "harness", "outcome", "reward", "parent"):
        assert {row[name] is None for row in rows} == {True, False}, name
    for name in ("rewards", "tools", "images", "metadata"):
        assert {bool(row[name]) for row in rows} == {True, False}, name
    spans = [span for row in rows for span in row["spans"]]
    assert {bool(span["rewards"]) for span in spans} == {True, False}
    assert {"stop", "temperature"} <= {name for span in spans for name in span["sampling"]}
    assert {row["status"] for row in rows} == {"complete", "truncated"}


def test_types_are_what_trainers_expect(files):
    schema = pyarrow.parquet.read_schema(files[1])
    named = {name: str(schema.field(name).type) for name in ("token_ids", "loss_mask", "logprobs", "prompt_length", "messages")}
    assert named == {
        "token_ids": "list<element: int32 not null>",
        "loss_mask": "list<element: int8 not null>",
        "logprobs": "list<element: double>",
        "prompt_length": "int64",
        "messages": "string",
    }
    assert schema.metadata[b"gleaner.schema"] == b"gleaner.sample.v1"


@pytest.fixture
def small_disk(tmp_path):
    """A disk of 16 KiB."""
    at = tmp_path / "disk"
    at.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16k", "gleaner-test", str(at)], capture_output=True, text=True)
    if mounted.returncode != 0:
        assert "GLEANER_TEST_NO_MOUNT" in os.environ, f"needs root to mount a tmpfs; GLEANER_TEST_NO_MOUNT=1 skips: {mounted.stderr}"
        pytest.skip("no tmpfs can be mounted")
    yield at
    subprocess.run(["umount", "-l", str(at)], check=True)


@pytest.mark.skipif(bool(SAMPLES), reason="another export than the test's own")
def test_a_disk_that_fills_leaves_what_was_there(files, small_disk):
    store = files[0].parent
    old = small_disk / "s.parquet"
    old.write_bytes(b"old")
    (small_disk / "ballast").write_bytes(b"x" * 8192)
    done = export(store, old, check=False)
    assert done.returncode == 1
    assert "could not write" in done.stderr and "No space left on device" in done.stderr and str(old) in done.stderr, done.stderr
    assert "make room" in done.stderr
    assert sorted(path.name for path in small_disk.iterdir()) == ["ballast", "s.parquet"] and old.read_bytes() == b"old"
