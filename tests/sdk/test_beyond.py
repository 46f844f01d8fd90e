"""What official clients do beside asking for a reply: conversations, several choices, log-probabilities, counts, models, retries."""

import json

import pytest

import cases
import clients
import derive
import record

BOTH = pytest.mark.parametrize("language", cases.LANGUAGES)
TEXTS = {"text": "The first answer."}, {"text": "And the second one."}
CHAT_WIRES = ("chat", "responses", "messages", "gemini")


class Play:
    """A rollout of a test's own, with its script."""

    def __init__(self, field, name):
        self.field = field
        self.rollout = field.gleaner.rollout(task_id=name)
        self.mark = "mark" + "".join(char if char.isalnum() else "" for char in name) + "."
        self.prompt = f"{self.mark} Say something."

    def script(self, *replies):
        self.field.policy.bind(self.mark, replies)

    @property
    def sampled(self):
        return self.field.policy.sampled(self.mark)

    def ask(self, language, wire, way, key=None, **asked):
        asked = {"wire": wire, "way": way, "prompt": self.prompt} | asked
        return self.field.run(language, asked, {"key": key} if key else self.rollout)

    def calls(self, count):
        return record.settled(self.field.gleaner, self.rollout, count)

    def samples(self):
        return self.field.gleaner.samples(self.rollout)

    def assert_one_sample(self):
        """All that was sampled is one sample, and trained."""
        sampled = self.sampled
        self.calls(len(sampled))
        answer = self.samples()
        assert answer["left_out"] == []
        (sample,) = answer["samples"]
        trained = [(token, logprob) for token, bit, logprob in zip(sample["token_ids"], sample["loss_mask"], sample["logprobs"]) if bit]
        assert trained == [pair for seen in sampled for pair in zip(seen["ids"], seen["logprobs"])]
        assert sample["token_ids"] == sampled[-1]["prompt_ids"] + sampled[-1]["ids"]
        derive.check(self.field.gleaner.url, self.rollout["id"], min_trained=1)


@pytest.fixture
def play(field, request):
    return Play(field, request.node.name)


@BOTH
@pytest.mark.parametrize("way", ["several", "several_stream"])
@pytest.mark.parametrize("wire", ["chat", "completions"])
def test_each_choice_is_a_sample(play, wire, language, way):
    play.script(*TEXTS)
    got = play.ask(language, wire, way)
    assert got["error"] is None
    sampled = play.sampled
    # Which of them was asked first is nobody's business.
    assert [choice[0] for choice in got["choices"]] == [0, 1] and {choice[2] for choice in got["choices"]} == {"stop"}
    assert sorted(choice[1] for choice in got["choices"]) == sorted(text["text"] for text in TEXTS)
    if wire == "chat":
        assert got["usage"] == [len(sampled[0]["prompt_ids"]), sum(len(seen["ids"]) for seen in sampled)]
    play.calls(2)
    answer = play.samples()
    whole = sorted(seen["prompt_ids"] + seen["ids"] for seen in sampled)
    assert answer["left_out"] == [] and sorted(sample["token_ids"] for sample in answer["samples"]) == whole
    derive.check(play.field.gleaner.url, play.rollout["id"], min_trained=1)


@BOTH
@pytest.mark.parametrize("wire, way", [("chat", "logprobs"), ("chat", "logprobs_stream"), ("completions", "logprobs"),
                                       ("completions", "logprobs_stream"), ("responses", "logprobs")])
def test_log_probabilities_reach_who_asked(play, wire, way, language):
    play.script(TEXTS[0])
    got = play.ask(language, wire, way)
    assert got["error"] is None
    # Responses has them of the text's tokens only, and the token that ends a reply has no text.
    sampled = play.sampled[0]["logprobs"]
    assert got["logprobs"] == (sampled[:-1] if wire == "responses" else sampled)
    play.assert_one_sample()


@BOTH
def test_a_prompt_of_token_ids_is_the_prompt(play, language):
    ids = [90_017_000 + sum(map(ord, language)), 11, 12, 13]
    play.mark = str(ids[0])
    play.script(TEXTS[0])
    got = play.ask(language, "completions", "tokens", ids=ids)
    assert (got["error"], got["text"], got["finish"]) == (None, TEXTS[0]["text"], "stop")
    assert play.sampled[0]["prompt_ids"] == ids
    play.assert_one_sample()


@BOTH
def test_a_prompt_is_echoed(play, language):
    play.script(TEXTS[0])
    got = play.ask(language, "completions", "echo")
    assert (got["error"], got["finish"]) == (None, "stop")
    assert got["text"].endswith(TEXTS[0]["text"]) and got["text"].startswith(play.prompt)
    play.assert_one_sample()


@BOTH
def test_best_of_is_refused(play, language):
    error = play.ask(language, "completions", "best_of")["error"]
    assert (error["class"], error["status"]) == ("BadRequestError", 400) and "best_of" in error["message"]


@BOTH
def test_a_response_goes_on_from_one_that_is_kept(play, language):
    play.script(*TEXTS)
    got = play.ask(language, "responses", "chain")
    assert got["error"] is None
    assert (got["text"], got["finish"]) == (TEXTS[1]["text"], "completed")
    assert got["kept"] == [True, "completed", TEXTS[0]["text"]]
    assert got["inputs"] == [play.prompt, "And then?"]
    play.assert_one_sample()


@BOTH
def test_a_streamed_response_goes_on_from_one_that_is_kept(play, language):
    play.script({"reasoning": "Hm. "} | TEXTS[0], TEXTS[1])
    got = play.ask(language, "responses", "chain_stream")
    assert (got["error"], got["text"]) == (None, TEXTS[1]["text"])
    play.assert_one_sample()


@BOTH
@pytest.mark.parametrize("way", ["unknown", "compact"])
def test_what_is_not_served_of_responses_is_refused(play, language, way):
    error = play.ask(language, "responses", way)["error"]
    expected = {"unknown": "resp_0000", "compact": "compact"}[way]
    assert error["class"] in ("BadRequestError", "NotFoundError") and expected in error["message"]


@BOTH
@pytest.mark.parametrize("wire", ["responses", "messages", "gemini"])
def test_a_count_is_the_policys_own(play, wire, language):
    play.script(TEXTS[0])
    asked = {"tools": [cases.WEATHER]} if wire == "messages" else {}
    count = play.ask(language, wire, "count", **asked)
    assert count["error"] is None
    assert play.ask(language, wire, "whole", **asked)["error"] is None
    assert count["count"] == len(play.sampled[-1]["prompt_ids"])
    # Counting is no call.
    play.calls(1)


@BOTH
@pytest.mark.parametrize("wire", ["chat", "messages", "gemini"])
def test_models_are_listed(play, wire, language):
    got = play.ask(language, wire, "models")
    assert got["error"] is None
    name = "models/scripted" if wire == "gemini" else "scripted"
    assert (got["models"], got["model"]) == ([name], name)


@BOTH
@pytest.mark.parametrize("wire", [wire for wire in cases.WIRES])
def test_a_key_that_is_unknown_is_the_sdks_own_error(play, wire, language):
    error = play.ask(language, wire, "whole", key="glr_00000000000000000000000000000000")["error"]
    name = {"python": "ClientError", "node": "ApiError"}[language] if wire == "gemini" else "AuthenticationError"
    assert (error["class"], error["status"]) == (name, 401)


@BOTH
@pytest.mark.parametrize("wire", ["chat", "responses", "messages"])
def test_a_call_that_the_sdk_repeats_is_two_calls(play, wire, language):
    # A conflict is what SDKs repeat and Gleaner does not.
    conflict = '{"error":{"message":"somebody else is at it","type":"Conflict","code":409}}'
    play.script(cases.status(409, conflict), TEXTS[0])
    got = play.ask(language, wire, "whole", retries=2)
    assert (got["error"], got["text"]) == (None, TEXTS[0]["text"])
    calls, sampled = play.calls(2), play.sampled[-1]
    assert [call["status"] for call in calls] == ["failed", "done"]
    answer = play.samples()
    assert [(left["call_id"], left["reason"]) for left in answer["left_out"]] == [(calls[0]["id"], "upstream_error")]
    (sample,) = answer["samples"]
    assert sample["token_ids"] == sampled["prompt_ids"] + sampled["ids"]


@BOTH
@pytest.mark.parametrize("wire", CHAT_WIRES)
def test_a_finished_rollout_takes_no_calls(play, wire, language):
    play.field.gleaner.http.post(f"/api/v1/rollouts/{play.rollout['id']}/finish", json={}).raise_for_status()
    error = play.ask(language, wire, "whole")["error"]
    name = {"python": "ClientError", "node": "ApiError"}[language] if wire == "gemini" else "ConflictError"
    assert (error["class"], error["status"]) == (name, 409)


@pytest.mark.parametrize("wire", CHAT_WIRES)
def test_an_asynchronous_client_gets_the_same(play, wire):
    reply = {"reasoning": "Hm, two.\n", "text": "naïve 日本 👩‍🚀 ", "tool_calls": [cases.BERN, cases.ROME], "pause_ms": 1200}
    play.script(reply)
    got = play.ask("python", wire, "asynchronous", tools=[cases.WEATHER], reasoning=True)
    assert got["error"] is None
    assert [got["text"], got["reasoning"], got["calls"]] == record.scripted(reply)
    play.assert_one_sample()


def test_derive_finds_what_differs(play, tmp_path):
    play.script(TEXTS[0])
    assert play.ask("python", "chat", "whole")["error"] is None
    play.calls(1)
    (sample,) = play.samples()["samples"]
    start = sample["prompt_length"]
    for change in ("token_ids", "logprobs", "loss_mask"):
        changed = json.loads(json.dumps(sample))
        at = 0 if change == "loss_mask" else start
        changed[change][at] = 1 if change == "loss_mask" else changed[change][at] + 1
        path = tmp_path / "samples.jsonl"
        path.write_text(json.dumps(changed) + "\n")
        with pytest.raises(derive.Mismatch):
            derive.check(play.field.gleaner.url, play.rollout["id"], str(path))
