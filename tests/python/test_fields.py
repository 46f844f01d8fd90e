"""The tables in ARCHITECTURE.md say of every field of the official SDKs' request types what becomes of it, and it does.

A row whose fields are `translated` names a test that looks at them. Every other row is tried here: a request with the field, as small
as the SDK's type allows, goes through a real gleaner to the scripted policy."""

import collections
import json
import re

import httpx
import pytest
from google import genai
from google.genai import models
from google.genai import types as genai_types

import programs
import sdk_fields

ROOT = programs.ROOT
TITLES = {"Chat completions": "chat", "Completions": "completions", "Responses": "responses", "Messages": "messages", "Gemini": "gemini"}
FATES = ["translated", "passed on", "dropped", "passed over", "refused", "not sent"]
PATHS = {
    "chat": "/v1/chat/completions",
    "completions": "/v1/completions",
    "responses": "/v1/responses",
    "messages": "/v1/messages?beta=true",
    "gemini": "/v1beta/models/m:generateContent",
}
Row = collections.namedtuple("Row", "wire types fields fate test")

# Values that say more than the smallest of their type.
VALUES = {
    "response_format": {"type": "json_object"},
    "service_tier": "flex",
    "truncation": "auto",
    "background": True,
    "best_of": 1,
    "container": "the-container",
    "n": 1,
    "responseModalities": ["AUDIO"],
    "verbosity": "low",
}


def rows():
    """The rows of all tables under the heading of the fields."""
    text = (ROOT / "ARCHITECTURE.md").read_text().split("\n## Fields of requests\n")[1].split("\n## ")[0]
    found = []
    for title, table in re.findall(r"\n### ([^\n]+)\n(.*?)(?=\n### |\Z)", text, re.S):
        for line in table.splitlines():
            if not line.startswith("| `"):
                continue
            types, fields, fate, test = (cell.strip() for cell in line.strip("|").split("|"))
            names = None if fields == "all" else re.findall(r"`([^`]+)`", fields)
            fate = next(known for known in FATES if fate.startswith(known))
            found.append(Row(TITLES[title], re.findall(r"`([^`]+)`", types), names, fate, test.strip("`")))
    return found


ROWS = rows()


def row_of(wire, kind, field):
    return next((row for row in ROWS if row.wire == wire and kind in row.types and (row.fields is None or field in row.fields)), None)


def walk(wire):
    """The types whose fields have rows: what is inside of a field that is not translated, or of a type that goes as a whole, shares
    its fate."""

    def stops(kind, field):
        row = row_of(wire, kind, field)
        return row is not None and (row.fate != "translated" or row.fields is None)

    return sdk_fields.walk(wire, stops)


@pytest.mark.parametrize("wire", sdk_fields.ROOTS)
def test_every_field_of_the_sdk_has_a_row_and_every_row_a_field(wire):
    known = collections.defaultdict(set)
    for kind in walk(wire):
        known[sdk_fields.name(kind)] |= set(sdk_fields.hints(kind))
    missing = [f"{kind}.{field}" for kind, fields in known.items() for field in sorted(fields) if row_of(wire, kind, field) is None]
    gone = [f"{kind}.{field}" for row in ROWS if row.wire == wire for kind in row.types for field in row.fields or [""]
            if kind not in known or field and field not in known[kind]]
    said = collections.Counter((kind, field) for row in ROWS if row.wire == wire for kind in row.types
                               for field in (row.fields or known.get(kind, ())))
    twice = [f"{kind}.{field}" for (kind, field), count in said.items() if count > 1]
    assert (missing, gone, twice) == ([], [], [])


def test_every_row_names_a_test_that_is_there():
    sources = "\n".join(path.read_text() for folder in ("src", "tests") for ending in ("rs", "py")
                        for path in (ROOT / folder).rglob(f"*.{ending}"))
    missing = []
    for row in ROWS:
        is_case = (ROOT / "tests/fixtures/wire" / row.wire / f"{row.test}.json").exists()
        is_function = re.search(rf"(fn|def) {re.escape(row.test)}\(", sources)
        if not (is_case or is_function) or row.fate == "translated" and row.test == "test_a_row_is_true":
            missing.append(row)
    assert missing == []


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    with programs.scripting() as policy, programs.serving(policy.url, tmp_path_factory.mktemp("fields")) as gleaner:
        yield gleaner, httpx.Client(base_url=gleaner.url, timeout=60, headers={"authorization": "Bearer " + gleaner.rollout()["key"]})


def body(wire, ways, kind, field):
    """A request that sets the field, and the value; `None` if the SDK itself does not send it."""
    value = VALUES.get(field, sdk_fields.sample(sdk_fields.hints(kind)[field], field))
    root, made = sdk_fields.request(ways, kind, field, value)
    if wire == "messages":
        return in_turns(made), value
    if wire == "responses":
        given = made.get("input", "hi")
        return made | {"input": given if isinstance(given, str) else [{"role": "user", "content": "hi"}, *given]}, value
    if wire != "gemini":
        return made, value
    return sent_by_genai(root, made), value


def sent_by_genai(root, made):
    """What google-genai sends to the Gemini API; `None` if it refuses to."""
    contents = [{"role": "user", "parts": [{"text": "hi"}]}]
    if root is genai_types.Content:
        answered = next((part["functionResponse"] for part in made.get("parts", ()) if "functionResponse" in part), None)
        called = {"functionCall": {"name": "the-name", "args": {}}} if answered else None
        contents += [{"role": "model", "parts": [called]}] if called else []
        contents.append({"role": "user"} | made)
    config = {genai_types.Tool: {"tools": [made]}, genai_types.GenerateContentConfig: made}.get(root, {})
    config = genai_types.GenerateContentConfig.model_validate(config)
    contents = [genai_types.Content.model_validate(content) for content in contents]
    asked = genai_types._GenerateContentParameters(model="m", contents=contents, config=config)
    try:
        sent = models._GenerateContentParameters_to_mldev(CLIENT._api_client, asked)
    except ValueError:
        return None

    def plain(value):
        return value.model_dump(mode="json", by_alias=True, exclude_none=True) if hasattr(value, "model_dump") else str(value)

    return json.loads(json.dumps({name: part for name, part in sent.items() if not name.startswith("_")}, default=plain))


def in_turns(request):
    """The request with what Anthropic's rules ask for around its one message."""
    [message] = request["messages"]
    kinds = [block["type"] for block in message["content"]] if isinstance(message.setdefault("content", "hi"), list) else []
    hello = {"role": "user", "content": "hi"}
    if "tool_use" in kinds:
        message["role"] = "assistant"
    if "tool_result" in kinds:
        call = {"type": "tool_use", "id": message["content"][0]["tool_use_id"], "name": "f", "input": {}}
        return request | {"messages": [hello, {"role": "assistant", "content": [call]}, message]}
    return request | {"messages": [hello, message] if message["role"] == "assistant" else [message, hello]}


CLIENT = genai.Client(api_key="none")


def stands(value, field, wanted):
    """Whether a value is somewhere in what went up, under its name."""
    if isinstance(value, dict):
        return any(name == field and inner == wanted or stands(inner, field, wanted) for name, inner in value.items())
    return isinstance(value, list) and any(stands(inner, field, wanted) for inner in value)


def try_field(served, wire, ways, kind, field, fate):
    """What is wrong; `None` if the field does become what the row says."""
    gleaner, client = served
    request, value = body(wire, ways, kind, field)
    if fate == "not sent":
        return None if request is None or not stands(request, field, value) else "the SDK does send it"
    if request is None:
        return "the SDK does not send it"
    if sdk_fields.name(kind) == "MessageCountTokensParams":
        # A count is no call, so there is no record to look at.
        answer = client.post("/v1/messages/count_tokens", json=request)
        return None if answer.status_code == 200 else f"{answer.status_code} {answer.text}"
    answer = client.post(PATHS[wire], json=request)
    if fate == "refused":
        return None if 400 <= answer.status_code < 500 and "message" in answer.text else f"{answer.status_code} {answer.text}"
    if answer.status_code != 200:
        return f"{answer.status_code} {answer.text}"
    call = answer.headers["x-gleaner-call"]
    notes = gleaner.api(f"/calls/{call}")["notes"]
    upstream = client.get(f"/api/v1/calls/{call}/upstream").json()
    if fate == "passed on":
        return None if stands(upstream, field, value) else f"{field} is not in {upstream}"
    if fate == "dropped":
        return None if notes else "no note says so"
    return "it is noted, which is more than the table says" if any(field in note for note in notes) else None


TRIED = [row for row in ROWS if row.test == "test_a_row_is_true"]


@pytest.mark.parametrize("row", TRIED, ids=lambda row: f"{row.wire}-{row.types[0]}-{(row.fields or ['all'])[0]}-{row.fate}".replace(" ", "_"))
def test_a_row_is_true(served, row):
    ways = walk(row.wire)
    wrong = {}
    for kind in ways:
        if sdk_fields.name(kind) not in row.types:
            continue
        # Of a type that goes as a whole, one field is enough: all of it goes the same way.
        fields = row.fields or sorted(sdk_fields.hints(kind))[-1:]
        for field in fields:
            if field in sdk_fields.hints(kind):
                if fault := try_field(served, row.wire, ways, kind, field, row.fate):
                    wrong[f"{sdk_fields.name(kind)}.{field}"] = fault[:300]
    assert wrong == {}
