"""What one rank computes in a step, as operations whose time depends on their own numbers alone.

The layers of a model are equal, so that each operation is timed once and counted. Weights are split over the ranks of
tensor parallelism, but for router, latent projections and norms. A step computes logits for one token per sequence.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from loadtest.calibrate.kernels.shape import BYTES, Experts, Latent, ModelShape


@dataclass(frozen=True, slots=True)
class Gemm:
    """[rows, inner] by [inner, columns]; `groups` of them with weights of their own, as of experts or heads."""

    rows: int
    inner: int
    columns: int
    groups: int = 1


@dataclass(frozen=True, slots=True)
class Attention:
    """`sequences` with `new` queries each, the last of `context` tokens, causal. `shared`: one latent of `key` numbers
    is keys and values of all heads, and a value is its first `value` numbers."""

    sequences: int
    new: int
    context: int
    heads: int
    kv_heads: int
    key: int
    value: int
    shared: bool = False


@dataclass(frozen=True, slots=True)
class Elementwise:
    """Norms and activations, which read and write `moved_bytes` in all."""

    moved_bytes: int


@dataclass(frozen=True, slots=True)
class AllReduce:
    moved_bytes: int


Operation = Gemm | Attention | Elementwise | AllReduce


def step_operations(shape: ModelShape, ranks: int, new: int, context: int, sequences: int = 1) -> Counter[Operation]:
    """Return the operations of a step and how often each runs: `sequences` with `new` tokens, the last of `context`."""
    tokens = sequences * new
    attention = (
        _latent(shape, shape.latent, ranks, new, context, sequences)
        if shape.latent
        else _plain(shape, ranks, new, context, sequences)
    )
    found: Counter[Operation] = Counter()
    for operation, count in attention.items():
        found[operation] += count * shape.layers
    for operation, count in _mlp(tokens, shape.hidden, shape.intermediate // ranks).items():
        found[operation] += count * shape.dense_layers
    if shape.experts is not None:
        for operation, count in _routed(shape.experts, tokens, shape.hidden, ranks).items():
            found[operation] += count * (shape.layers - shape.dense_layers)
    found[Elementwise(4 * tokens * shape.hidden * BYTES)] += (
        2 * shape.layers
    )  # norm and residual: two read, two written
    if ranks > 1:
        found[AllReduce(tokens * shape.hidden * BYTES)] += 2 * shape.layers
    found[Gemm(sequences, shape.hidden, shape.vocabulary // ranks)] += 1
    return found


def _plain(shape: ModelShape, ranks: int, new: int, context: int, sequences: int) -> Counter[Operation]:
    heads, kv_heads = shape.heads // ranks, max(1, shape.kv_heads // ranks)
    tokens = sequences * new
    return Counter(
        {
            Gemm(tokens, shape.hidden, (heads + 2 * kv_heads) * shape.head): 1,
            Attention(sequences, new, context, heads, kv_heads, shape.head, shape.head): 1,
            Gemm(tokens, heads * shape.head, shape.hidden): 1,
        }
    )


def _latent(shape: ModelShape, one: Latent, ranks: int, new: int, context: int, sequences: int) -> Counter[Operation]:
    """Prompts expand the latent to keys and values of each head; decodes absorb these matrices into queries and
    answers, and read the latents alone."""
    heads, tokens = shape.heads // ranks, sequences * new
    found: Counter[Operation] = Counter()
    if one.query_rank:
        found[Gemm(tokens, shape.hidden, one.query_rank)] += 1
    found[Gemm(tokens, one.query_rank or shape.hidden, heads * (one.nope + one.rope))] += 1
    found[Gemm(tokens, shape.hidden, one.rank + one.rope)] += 1
    if new > 1:
        found[Gemm(context * sequences, one.rank, heads * (one.nope + one.value))] += 1
        found[Attention(sequences, new, context, heads, heads, one.nope + one.rope, one.value)] += 1
    else:
        found[Gemm(tokens, one.nope, one.rank, heads)] += 1
        found[Attention(sequences, 1, context, heads, 1, one.rank + one.rope, one.rank, shared=True)] += 1
        found[Gemm(tokens, one.rank, one.value, heads)] += 1
    found[Gemm(tokens, heads * one.value, shape.hidden)] += 1
    return found


def _mlp(tokens: int, hidden: int, intermediate: int) -> Counter[Operation]:
    if not intermediate:
        return Counter()
    activation = Elementwise(3 * tokens * intermediate * BYTES)
    return Counter({Gemm(tokens, hidden, 2 * intermediate): 1, activation: 1, Gemm(tokens, intermediate, hidden): 1})


def _routed(experts: Experts, tokens: int, hidden: int, ranks: int) -> Counter[Operation]:
    """Experts that are touched get the mean number of tokens each. Every rank has a part of each expert."""
    groups = max(1, round(experts.touched(tokens)))
    rows = max(1, round(tokens * experts.per_token / groups))
    width = experts.intermediate // ranks
    found = _mlp(tokens, hidden, experts.shared_intermediate // ranks)
    found[Gemm(tokens, hidden, experts.count)] += 1
    found[Gemm(rows, hidden, 2 * width, groups)] += 1
    found[Elementwise(3 * rows * groups * width * BYTES)] += 1
    found[Gemm(rows, width, hidden, groups)] += 1
    return found
