"""The forward pass of the llama architecture: RMS norms, grouped-query attention, rotary positions, SwiGLU."""

import numpy as np

from layers import causal_attention, rotations


def rms_norm(x, weight, epsilon):
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + epsilon) * weight


def rotate_pairs(x, cos, sin):
    """Rotates (x0, x1), (x2, x3), ...: GGUF files of this architecture hold query and key rows permuted so
    that the two halves a checkpoint rotates against each other lie side by side."""
    even, odd = x[..., 0::2], x[..., 1::2]
    return np.stack([even * cos - odd * sin, even * sin + odd * cos], axis=-1).reshape(x.shape)


def silu(x):
    return x / (1 + np.exp(-x))


def last_logits(file, tokens):
    """The logits that follow the last of `tokens`."""
    get = lambda name: file.metadata["llama." + name]
    heads, kv_heads = get("attention.head_count"), get("attention.head_count_kv")
    epsilon = get("attention.layer_norm_rms_epsilon")
    embeddings = file.tensor("token_embd.weight")
    x = embeddings[tokens]
    dimension = x.shape[1] // heads
    cos, sin = rotations(len(tokens), dimension, get("rope.freq_base"))

    for layer in range(get("block_count")):
        w = lambda name: file.tensor(f"blk.{layer}.{name}.weight")
        h = rms_norm(x, w("attn_norm"), epsilon)
        q = (h @ w("attn_q").T).reshape(-1, heads, dimension)
        k = (h @ w("attn_k").T).reshape(-1, kv_heads, dimension)
        v = (h @ w("attn_v").T).reshape(-1, kv_heads, dimension)
        attention = causal_attention(rotate_pairs(q, cos, sin), rotate_pairs(k, cos, sin), v)
        x = x + attention @ w("attn_output").T
        h = rms_norm(x, w("ffn_norm"), epsilon)
        x = x + (silu(h @ w("ffn_gate").T) * (h @ w("ffn_up").T)) @ w("ffn_down").T

    x = rms_norm(x[-1], file.tensor("output_norm.weight"), epsilon)
    tied = "output.weight" not in file.tensors
    return (embeddings if tied else file.tensor("output.weight")) @ x
