"""A model's tokenizer and chat template, by transformers; and its sampled ids read as text while they come, as vLLM reads them."""

import codecs
import functools
import json
import os
import pathlib

import model

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
TARGET = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", pathlib.Path(__file__).resolve().parents[2] / "target"))
QWEN3 = TARGET / "tokenizers" / "qwen3"


class Tokenizer:
    def __init__(self, inner, ends):
        self.inner, self.ends = inner, frozenset(ends)
        self.vocabulary = len(inner)
        added = inner.added_tokens_decoder
        self.added = {id: token.content.encode() for id, token in added.items()}
        self.special = {id for id, token in added.items() if token.special}
        self.spelt = {character: byte for byte, character in byte_characters().items()}
        self.tokens = inner.convert_ids_to_tokens(range(self.vocabulary))

    def render(self, messages, **options):
        return self.inner.apply_chat_template(messages, tokenize=False, **options)

    def encode(self, text, add_special=False):
        return self.inner.encode(text, add_special_tokens=add_special)

    def bytes(self, id):
        """What a token stands for; it may be a part of a character."""
        if id in self.added:
            return self.added[id]
        return bytes(self.spelt[character] for character in self.tokens[id])

    def decode(self, ids, skip_special=False):
        return b"".join(self.bytes(id) for id in ids if not (skip_special and id in self.special)).decode(errors="replace")

    def token(self, id):
        return self.bytes(id).decode(errors="replace")


class Detokenizer:
    """Ids to text, a piece at a time: nothing comes of a character until it is whole."""

    def __init__(self, tokenizer, skip_special):
        self.tokenizer, self.skip_special = tokenizer, skip_special
        self.decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, id):
        hidden = self.skip_special and id in self.tokenizer.special
        return "" if hidden else self.decoder.decode(self.tokenizer.bytes(id))

    def finish(self):
        return self.decoder.decode(b"", final=True)


def byte_characters():
    """The characters that byte-level vocabularies spell bytes with."""
    plain = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in plain]
    return {byte: chr(byte) for byte in plain} | {byte: chr(256 + place) for place, byte in enumerate(others)}


@functools.cache
def qwen3():
    from transformers import AutoTokenizer

    if not (QWEN3 / "tokenizer.json").exists():
        raise FileNotFoundError(f"{QWEN3} holds no tokenizer; run scripts/setup tokenizers")
    inner = AutoTokenizer.from_pretrained(QWEN3, local_files_only=True)
    return Tokenizer(inner, inner.convert_tokens_to_ids(["<|im_end|>", "<|endoftext|>"]))


@functools.cache
def smollm2():
    """SmolLM2's, made of what stands in its GGUF file."""
    from tokenizers import AddedToken, Tokenizer as Fast, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    fields = model.read_gguf(model.smollm2_file()).fields
    field = lambda name: fields[f"tokenizer.{name}"].contents()
    tokens, kinds = field("ggml.tokens"), field("ggml.token_type")
    merges = [tuple(merge.split(" ")) for merge in field("ggml.merges")]
    fast = Fast(models.BPE({token: id for id, token in enumerate(tokens)}, merges))
    # llama.cpp's `smollm`: each digit alone, then as GPT-2.
    fast.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)])
    fast.decoder = decoders.ByteLevel()
    control = 3
    fast.add_special_tokens([AddedToken(token, special=True, normalized=False) for token, kind in zip(tokens, kinds) if kind == control])
    end = field("ggml.eos_token_id")
    inner = PreTrainedTokenizerFast(tokenizer_object=fast, eos_token=tokens[end], chat_template=field("chat_template"))
    return Tokenizer(inner, [end])


def as_template_knows(messages):
    """Messages as vLLM hands them to a template: content as text, none as an empty one; arguments as objects; reasoning under its older
    name too."""
    known = []
    for message in messages:
        message = dict(message)
        content = message.get("content") or ""
        message["content"] = content if isinstance(content, str) else "\n".join(part["text"] for part in content)
        if message.get("reasoning") is not None:
            message.setdefault("reasoning_content", message["reasoning"])
        if message.get("tool_calls"):
            message["tool_calls"] = [as_object(call) for call in message["tool_calls"]]
        else:
            message.pop("tool_calls", None)
        known.append(message)
    return known


def as_object(call):
    arguments = call["function"].get("arguments") or "{}"
    arguments = json.loads(arguments) if isinstance(arguments, str) else arguments
    return {**call, "function": {**call["function"], "arguments": arguments}}
