"""The forward pass of the gptneox architecture: layer norms, rotary positions on part of each head, and
attention beside the feed-forward network.

The activation is the exact GELU, x times the normal distribution function of x, as the architecture's
`hidden_act: gelu` means it. ggml computes the tanh approximation of it from a table of 16-bit floats; on the
recorded prompts the cosine of the logits that the two give is 0.99999998.
"""

import math

import numpy as np

from layers import causal_attention, rotations


def layer_norm(x, weight, bias, epsilon):
    centred = x - x.mean(axis=-1, keepdims=True)
    return centred / np.sqrt(np.mean(centred * centred, axis=-1, keepdims=True) + epsilon) * weight + bias


def rotate_halves(x, cos, sin):
    """Rotates the first dimensions of a head, the first half of them against the second."""
    half = cos.shape[-1]
    a, b, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    return np.concatenate([a * cos - b * sin, a * sin + b * cos, rest], axis=-1)


def gelu(x):
    erf = np.frompyfunc(math.erf, 1, 1)
    return x * (1 + erf(x / math.sqrt(2)).astype(np.float64)) / 2


def last_logits(file, tokens):
    """The logits that follow the last of `tokens`."""
    get = lambda name: file.metadata["gptneox." + name]
    heads, epsilon = get("attention.head_count"), get("attention.layer_norm_epsilon")
    x = file.tensor("token_embd.weight")[tokens]
    width = x.shape[1]
    base = file.metadata.get("gptneox.rope.freq_base", 10_000)
    cos, sin = rotations(len(tokens), get("rope.dimension_count"), base)

    for layer in range(get("block_count")):
        t = lambda name: file.tensor(f"blk.{layer}.{name}")
        norm = lambda x, name: layer_norm(x, t(name + ".weight"), t(name + ".bias"), epsilon)
        linear = lambda x, name: x @ t(name + ".weight").T + t(name + ".bias")

        # GGUF files hold the rows of all queries, then of all keys, then of all values.
        qkv = linear(norm(x, "attn_norm"), "attn_qkv")
        q, k, v = (qkv[:, i * width : (i + 1) * width].reshape(len(tokens), heads, -1) for i in range(3))
        attention = causal_attention(rotate_halves(q, cos, sin), rotate_halves(k, cos, sin), v)
        after = x + linear(attention, "attn_output")
        h = norm(x if get("use_parallel_residual") else after, "ffn_norm")
        x = after + linear(gelu(linear(h, "ffn_up")), "ffn_down")

    x = layer_norm(x[-1], file.tensor("output_norm.weight"), file.tensor("output_norm.bias"), epsilon)
    return file.tensor("output.weight") @ x
