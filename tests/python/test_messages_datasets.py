"""What `gleaner export messages` writes is read by `datasets` and by trl; where torch is installed, trl trains on it too.

The golden file is what the Rust tests of src/export/messages.rs write. `datasets` takes a file's types from its first 10 MB, so
each of its rows is also tried as the first 10 MB of a long file. Another export is checked by naming it: GLEANER_MESSAGES=PATH.
"""

import json
import os
from pathlib import Path

import pytest

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import datasets
import tokenizers
import transformers
import trl
import trl.data_utils

GOLDEN = Path(__file__).parent.parent / "fixtures" / "export" / "messages.jsonl"
FILE = Path(os.environ.get("GLEANER_MESSAGES", GOLDEN))

# As templates of models with tools and reasoning are written.
TEMPLATE = """{%- if tools %}<tools> {% for tool in tools %}{{ tool.function.name }} {% endfor %}</tools> {% endif %}
{%- for m in messages %}<{{ m.role }}> {% if m.reasoning_content is defined and m.reasoning_content %}<think> {{ m.reasoning_content }} \
</think> {% endif %}
{%- if m.role == 'assistant' %}{% generation %}{{ m.content }}{% for call in m.tool_calls or [] %} <call> {{ call.function.name }} \
{{ call.function.arguments }}{% endfor %} <end>{% endgeneration %}{% else %}{{ m.content }}{% endif %} {% endfor %}"""


def load(path, cache):
    return datasets.load_dataset("json", data_files=str(path), split="train", cache_dir=str(cache))


def rows(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_datasets_gives_back_what_was_written(tmp_path):
    assert list(load(FILE, tmp_path)) == rows(FILE)


@pytest.mark.parametrize("first", range(len(rows(GOLDEN))))
def test_rows_unlike_the_first_ten_megabytes_are_read(tmp_path, first):
    begin = rows(GOLDEN)[first]
    begin["messages"][0]["content"] = "x" * 100_000
    long = [begin] * 120 + rows(GOLDEN)
    path = tmp_path / "long.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in long))
    assert path.stat().st_size > 11_000_000
    assert list(load(path, tmp_path / "cache")) == long


@pytest.fixture(scope="module")
def tokenizer():
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({"<pad>": 0, "<eos>": 1, "<unk>": 2}, unk_token="<unk>"))
    words.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    texts = [json.dumps(row) for row in rows(FILE)] + ["<tools> </tools> <user> <assistant> <system> <tool> <think> </think>",
             "<call> <end> sh hi ho s list files a.txt I look."]
    words.train_from_iterator(texts, tokenizers.trainers.WordLevelTrainer(special_tokens=["<pad>", "<eos>", "<unk>"]))
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>")
    tokenizer.chat_template = TEMPLATE
    return tokenizer


def assert_tooled(tokenizer, ids, trained):
    """The golden file's row with tools: its tools and reasoning are in the prompt, the model's own words are trained."""
    seen = tokenizer.decode(ids)
    assert seen.startswith("<tools> sh </tools>") and "<think> I look. </think>" in seen
    assert tokenizer.decode(trained).endswith("a.txt <end>")


def test_trl_reads_it(tmp_path, tokenizer):
    data = load(FILE, tmp_path / "cache")
    assert all(trl.is_conversational(row) for row in data)
    # As its SFTTrainer does with each row.
    read = [trl.data_utils._tokenize(tokenizer, row["messages"], tools=json.loads(row["tools"]), return_assistant_tokens_mask=True)
            for row in data]
    assert all(1 in row["assistant_masks"] and 0 in row["assistant_masks"] for row in read)
    if FILE == GOLDEN:
        tooled = read[1]
        trained = [token for token, mask in zip(tooled["input_ids"], tooled["assistant_masks"]) if mask]
        assert_tooled(tokenizer, tooled["input_ids"], trained)


@pytest.mark.skipif(not transformers.utils.is_torch_available(), reason="torch is too large to be installed for this")
def test_trl_trains_on_it(tmp_path, tokenizer):
    data = load(FILE, tmp_path / "cache")
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
        max_position_embeddings=4096, pad_token_id=0, eos_token_id=1))
    config = trl.SFTConfig(output_dir=str(tmp_path / "out"), max_steps=1, per_device_train_batch_size=2, use_cpu=True, report_to=[],
                           assistant_only_loss=True, max_length=4096, bf16=False, save_strategy="no")
    trainer = trl.SFTTrainer(model=model, args=config, train_dataset=data, processing_class=tokenizer)
    assert trainer.train().training_loss > 0
    if FILE != GOLDEN:
        return
    tooled = trainer.train_dataset[1]
    assert_tooled(tokenizer, tooled["input_ids"], [label for label in tooled["labels"] if label != -100])
