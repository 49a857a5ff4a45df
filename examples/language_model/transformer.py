"""A small transformer in terms of operators: it runs wherever ``ops`` leads.

With ``opdispatch.ops`` that is this process; with ``session.ops`` an interpreter, call by call; and
in a function that is a program, it is recorded. The architecture is Llama's, and the weights have
the names that they have in checkpoints of Llama.
"""

from dataclasses import dataclass

import numpy as np

TEXT = (
    "The quick brown fox jumps over the lazy dog, while five boxing wizards vex a jolly sphinx "
    "of quartz, and nobody asks them why.\n"
)


@dataclass(frozen=True)
class Config:
    """Sizes, in Llama's words."""

    vocab_size: int = 128
    hidden_size: int = 256
    intermediate_size: int = 704
    num_hidden_layers: int = 4
    num_attention_heads: int = 8
    num_key_value_heads: int = 2
    max_position_embeddings: int = 256
    rope_theta: float = 10000.0
    rms_norm_eps: float = 1e-6

    @property
    def head_dim(self):
        return self.hidden_size // self.num_attention_heads


def make_weights(config, seed=0):
    """Random weights by name, float32; what flows through them keeps its size."""
    random = np.random.default_rng(seed)
    width, hidden = config.hidden_size, config.intermediate_size
    narrow = config.num_key_value_heads * config.head_dim

    def matrix(rows, columns):
        return (random.standard_normal((rows, columns)) / np.sqrt(columns)).astype(np.float32)

    weights = {"model.embed_tokens": matrix(config.vocab_size, width)}
    for number in range(config.num_hidden_layers):
        layer = f"model.layers.{number}"
        weights |= {
            f"{layer}.input_layernorm": np.ones(width, np.float32),
            f"{layer}.self_attn.q_proj": matrix(width, width),
            f"{layer}.self_attn.k_proj": matrix(narrow, width),
            f"{layer}.self_attn.v_proj": matrix(narrow, width),
            f"{layer}.self_attn.o_proj": matrix(width, width),
            f"{layer}.post_attention_layernorm": np.ones(width, np.float32),
            f"{layer}.mlp.gate_proj": matrix(hidden, width),
            f"{layer}.mlp.up_proj": matrix(hidden, width),
            f"{layer}.mlp.down_proj": matrix(width, hidden),
        }
    weights["model.norm"] = np.ones(width, np.float32)
    weights["lm_head"] = matrix(config.vocab_size, width)
    return {f"{name}.weight": array for name, array in weights.items()}


def make_caches(config):
    """Room for the keys and the values of each layer."""
    shape = (config.num_key_value_heads, config.max_position_embeddings, config.head_dim)
    layers = range(config.num_hidden_layers)
    return [(np.zeros(shape, np.float32), np.zeros(shape, np.float32)) for _ in layers]


def compute_hidden(ops, config, weights, caches, tokens, positions):
    """Compute the output layer's input: a row of ``hidden_size`` for each token.

    ``tokens`` and ``positions`` are int64 (sequence,). The caches, which have the keys and values
    of the positions before, are written to.
    """
    lm, array = ops.lm, ops.array

    def linear(name, x):
        return lm.linear(x, weights[f"{name}.weight"])

    def norm(name, x):
        return lm.rms_norm(x, weights[f"{name}.weight"], config.rms_norm_eps)

    def heads(count, x):
        return array.permute_dims(array.reshape(x, [-1, count, config.head_dim]), [1, 0, 2])

    def rotated(x):
        return lm.rotary_embedding(x, positions, base=config.rope_theta)

    x = lm.embedding(weights["model.embed_tokens.weight"], tokens)
    for number, caches_of_layer in enumerate(caches):
        layer = f"model.layers.{number}"
        y = norm(f"{layer}.input_layernorm", x)
        query = heads(config.num_attention_heads, linear(f"{layer}.self_attn.q_proj", y))
        key = heads(config.num_key_value_heads, linear(f"{layer}.self_attn.k_proj", y))
        value = heads(config.num_key_value_heads, linear(f"{layer}.self_attn.v_proj", y))
        y = lm.sdpa_with_kv_cache(rotated(query), rotated(key), value, *caches_of_layer, positions)
        y = array.reshape(array.permute_dims(y, [1, 0, 2]), [-1, config.hidden_size])
        x = array.add.Tensor(x, linear(f"{layer}.self_attn.o_proj", y))
        y = norm(f"{layer}.post_attention_layernorm", x)
        gate, up = linear(f"{layer}.mlp.gate_proj", y), linear(f"{layer}.mlp.up_proj", y)
        x = array.add.Tensor(x, linear(f"{layer}.mlp.down_proj", lm.swiglu(gate, up)))
    return norm("model.norm", x)


def choose_tokens(ops, weights, hidden):
    """Return the likeliest token after each row, int64 (sequence,), in host memory."""
    logits = ops.lm.linear(hidden, weights["lm_head.weight"])
    return ops.lm.to(ops.array.argmax(logits, axis=-1), "cpu")


def fit_output_layer(ops, config, weights, tokens):
    """Weights whose output layer makes the transformer recite a text; nothing else is trained.

    A least-squares fit, from what the layers below make of each beginning of the text to the
    token that comes next.
    """
    inputs, positions = tokens[:-1], np.arange(len(tokens) - 1)
    hidden = compute_hidden(ops, config, weights, make_caches(config), inputs, positions)
    wanted = np.eye(config.vocab_size)[tokens[1:]]
    fitted, *_ = np.linalg.lstsq(hidden.astype(np.float64), wanted, rcond=1e-6)
    return {**weights, "lm_head.weight": fitted.T.astype(np.float32)}


def encode(text):
    """ASCII characters as tokens."""
    return np.frombuffer(text.encode("ascii"), np.uint8).astype(np.int64)


def decode(tokens):
    return bytes(int(token) for token in tokens).decode("ascii", "replace")
