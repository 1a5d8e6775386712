"""What both architectures share. Activations are float64, one row a token."""

import numpy as np


def softmax(scores):
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True)


def rotations(positions, dimensions, base):
    """Cosines and sines of the rotary embedding: one row a position, one column a pair of dimensions."""
    angles = np.outer(np.arange(positions), base ** (-np.arange(0, dimensions, 2) / dimensions))
    return np.cos(angles)[:, None], np.sin(angles)[:, None]


def causal_attention(q, k, v):
    """`q`, `k` and `v` are [token, head, dimension]; each key head serves as many query heads in a row as
    there are more of these."""
    tokens, heads, dimension = q.shape
    group = heads // k.shape[1]
    k, v = np.repeat(k, group, axis=1), np.repeat(v, group, axis=1)
    scores = np.einsum("qhd,khd->hqk", q, k) / np.sqrt(dimension)
    scores[:, np.triu(np.ones((tokens, tokens), bool), 1)] = -np.inf
    return np.einsum("hqk,khd->qhd", softmax(scores), v).reshape(tokens, heads * dimension)
