"""The training graph of DeepSeek-V4.1 in PyTorch, made to be fast on a CPU.

The graph alone: no cache, no quantisers, no draft head, no vision. Everything is computed in one floating-point type
(f32 or f64), nothing is rounded on the way, and one call sees whole sequences from their first token.

Parameters have the names and layouts of the release (`layers.0.attn.wq_a.weight`, `[out, in]`), so that `state_dict`
and a checkpoint have the same keys. An engram's table is one float matrix, its scales multiplied in.

Shapes in the comments: B sequences, S tokens, N = B*S, D = dim, C = copies of the residual stream, H heads,
d = head_dim, r = rope_head_dim, W = window_size, T compressed positions, K = index_topk.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, fields
from itertools import accumulate
from pathlib import Path
from typing import Self

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

GATHER_FROM = 8
"""A query multiplies with every compressed position, and masks, until there are more than this many times K of them:
then it gathers the K selected ones. One large product is so much faster than a gather that this is where they meet."""


# --- Configuration ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Config:
    """The model's shape, under the keys of the reference's configuration files."""

    vocab_size: int
    dim: int
    n_layers: int
    n_heads: int
    head_dim: int
    rope_head_dim: int
    q_lora_rank: int
    o_lora_rank: int
    o_groups: int
    moe_inter_dim: int
    n_routed_experts: int
    n_shared_experts: int
    n_activated_experts: int
    score_func: str
    gate_temp: float
    norm_topk_prob: bool
    route_scale: float
    swiglu_limit: float
    window_size: int
    compress_ratios: list[int]
    kv_source_layers: list[int]
    index_source_layers: list[int]
    candidate_source_layer: int
    candidate_topk_blocks: int
    candidate_block_size: int
    index_n_heads: int
    index_head_dim: int
    index_topk: int
    hc_mult: int
    hc_sinkhorn_iters: int
    hc_eps: float
    norm_eps: float
    rope_theta: float
    compress_rope_theta: float
    rope_factor: float
    original_seq_len: int
    beta_fast: float
    beta_slow: float
    engram_layer_ids: list[int]
    engram_max_ngram_size: int
    engram_vocab_size: int
    engram_n_heads: int
    engram_head_dim: int
    engram_pad_id: int
    engram_compressed_vocab_size: int

    @classmethod
    def from_dict(cls, values: dict) -> Self:
        """From a dictionary that may hold other keys too."""
        return cls(**{f.name: values[f.name] for f in fields(cls)})

    @classmethod
    def load(cls, path: Path) -> Self:
        """From a JSON file."""
        return cls.from_dict(json.loads(path.read_text()))


# --- Small parts ------------------------------------------------------------------------------------------------------


class RMSNorm(nn.Module):
    """`weight * x / sqrt(mean(x^2) + eps)` over the last axis."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, self.weight.shape, self.weight, self.eps)


def linear(inputs: int, outputs: int) -> nn.Linear:
    """A linear layer without bias, its weight left for the caller to fill."""
    return nn.utils.skip_init(nn.Linear, inputs, outputs, bias=False)


def inverse_rms(x: Tensor, eps: float) -> Tensor:
    """`1 / sqrt(mean(x^2) + eps)` over the last axis, which is dropped."""
    return torch.rsqrt(x.square().mean(-1) + eps)


def top_k_mask(scores: Tensor, k: int) -> Tensor:
    """Marks the k best along the last axis, equal scores to the lowest index; minus infinity is never chosen."""
    possible = scores > -torch.inf
    if k >= scores.shape[-1]:
        return possible
    last_chosen = scores.topk(k, sorted=False).values.amin(-1, keepdim=True)
    above, level = scores > last_chosen, scores == last_chosen
    room = k - above.sum(-1, keepdim=True)
    return (above | (level & (level.cumsum(-1) <= room))) & possible


# --- Rotary positions -------------------------------------------------------------------------------------------------


def rope_frequencies(config: Config, compressed: bool) -> Tensor:
    """The r/2 frequencies, f32: plain ones for window layers, YaRN's for layers with a compressed stream."""
    r = config.rope_head_dim
    theta = config.compress_rope_theta if compressed else config.rope_theta
    frequencies = theta ** -(torch.arange(0, r, 2, dtype=torch.float32) / r)
    if not compressed or config.original_seq_len == 0:
        return frequencies

    def turns_at(rotations: float) -> float:
        return r * math.log(config.original_seq_len / (rotations * 2 * math.pi)) / (2 * math.log(theta))

    low = max(math.floor(turns_at(config.beta_fast)), 0)
    high = min(math.ceil(turns_at(config.beta_slow)), r - 1)
    ramp = ((torch.arange(r // 2, dtype=torch.float32) - low) / max(high - low, 1e-3)).clamp(0, 1)
    return frequencies / config.rope_factor * ramp + frequencies * (1 - ramp)


def rotations(frequencies: Tensor, length: int, step: int, dtype: torch.dtype) -> Tensor:
    """Complex rotations `[length, r/2]` of positions 0, step, 2 step, ...; made in f32 for every type."""
    angles = torch.outer(torch.arange(0, length * step, step, dtype=torch.float32), frequencies)
    return torch.polar(torch.ones_like(angles), angles).to(dtype.to_complex())


def rotate(x: Tensor, rotation: Tensor) -> Tensor:
    """Rotates adjacent pairs of the last r channels of `x`, `[..., d]`."""
    r = 2 * rotation.shape[-1]
    plain, pairs = x.split([x.shape[-1] - r, r], -1)
    rotated = torch.view_as_complex(pairs.unflatten(-1, (-1, 2))) * rotation
    return torch.cat([plain, torch.view_as_real(rotated).flatten(-2)], -1)


# --- Hyper-connections ------------------------------------------------------------------------------------------------


@dataclass
class Mix:
    """How one sublayer reads the copies and writes to them; `pre` is for the sublayer after it."""

    pre: Tensor  # [B, S, C]
    post: Tensor  # [B, S, C]
    comb: Tensor  # [B, S, C, C], from copy (third axis) to copy (last axis)


def make_mix(h: Tensor, fn: Tensor, base: Tensor, scale: Tensor, config: Config) -> Mix:
    """The mixes of a sublayer from the stream `h`, `[B, S, C, D]`.

    Tokens are the last axis until the end: every step on the little C x C matrices is then one vector operation. They
    are laid out by token at last, because a batched product copies the matrices one by one if they are not.
    """
    batch, length, copies, _ = h.shape
    eps = config.hc_eps
    stream = h.flatten(2).flatten(0, 1)
    mixes = (fn @ stream.T) * inverse_rms(stream, config.norm_eps)
    scales = scale.repeat_interleave(torch.tensor([copies, copies, copies * copies]), output_size=len(base))
    pre, post, comb = torch.addcmul(base[:, None], mixes, scales[:, None]).split([copies, copies, copies * copies])

    comb = comb.unflatten(0, (copies, copies)).softmax(1) + eps
    comb = comb / (comb.sum(0, keepdim=True) + eps)
    for _ in range(config.hc_sinkhorn_iters - 1):
        comb = comb / (comb.sum(1, keepdim=True) + eps)
        comb = comb / (comb.sum(0, keepdim=True) + eps)

    return Mix(
        pre=(pre.sigmoid() + eps).T.contiguous().view(batch, length, copies),
        post=(2 * post.sigmoid()).T.contiguous().view(batch, length, copies),
        comb=comb.permute(2, 0, 1).contiguous().view(batch, length, copies, copies),
    )


def collapse(h: Tensor, pre: Tensor) -> Tensor:
    """The weighted sum of the copies, `[B, S, D]`."""
    return (pre.unsqueeze(-2) @ h).squeeze(-2)


def expand(h: Tensor, y: Tensor, mix: Mix) -> Tensor:
    """Writes a sublayer's output `y`, `[B, S, D]`, to the copies and mixes them: `[B, S, C, D]`."""
    mixed = mix.comb.transpose(-1, -2) @ h
    return torch.addcmul(mixed, mix.post.unsqueeze(-1), y.unsqueeze(-2))


# --- Attention --------------------------------------------------------------------------------------------------------


@dataclass
class Selection:
    """The compressed positions that each query attends to."""

    mask: Tensor  # [B, S, T]
    index: Tensor | None  # [B, S, K], where gathering pays
    valid: Tensor | None  # [B, S, K], false where `index` has no further position

    @classmethod
    def of(cls, scores: Tensor, k: int) -> Self:
        """The best k of `scores`, `[B, S, T]`."""
        mask, positions = top_k_mask(scores, k), scores.shape[-1]
        if positions <= GATHER_FROM * k:
            return cls(mask, None, None)
        rank = torch.where(mask, torch.arange(positions, 0, -1), 0)
        best = rank.topk(min(k, positions))
        return cls(mask, best.indices, best.values > 0)


@dataclass
class Shared:
    """What layers leave for the layers after them."""

    latents: Tensor | None = None  # [B, T, d], rotated
    index_keys: Tensor | None = None  # [B, T, index_head_dim], rotated
    candidates: Tensor | None = None  # [B, S, T]
    selection: Selection | None = None


class Compressor(nn.Module):
    """Turns every `ratio` tokens into one latent; an unfinished group makes none."""

    def __init__(self, config: Config, ratio: int) -> None:
        super().__init__()
        self.ratio = ratio
        self.wkv = linear(config.dim, config.head_dim)
        if ratio > 1:
            self.wgate = linear(config.dim, config.head_dim)
        self.norm = RMSNorm(config.head_dim, config.norm_eps)

    def forward(self, x: Tensor) -> Tensor:
        """Latents `[B, T, d]`, not yet rotated, from `x`, `[B, S, D]`."""
        if self.ratio == 1:
            return self.norm(self.wkv(x))
        groups = x.shape[1] // self.ratio
        x = x[:, : groups * self.ratio]
        values, scores = (w(x).unflatten(1, (groups, self.ratio)) for w in (self.wkv, self.wgate))
        return self.norm((values * scores.softmax(2)).sum(2))


class Indexer(nn.Module):
    """Scores compressed positions for each query and selects the best. A choice of positions passes no gradient."""

    def __init__(self, config: Config, layer: int) -> None:
        super().__init__()
        self.config = config
        self.ratio = config.compress_ratios[layer]
        self.makes_candidates = layer == config.candidate_source_layer
        self.reads_candidates = layer > config.candidate_source_layer >= 0
        heads, width = config.index_n_heads, config.index_head_dim
        self.wq_b = linear(config.q_lora_rank, heads * width)
        self.weights_proj = linear(config.dim, heads)
        if layer in config.kv_source_layers:
            self.wk = linear(config.head_dim, width)
            self.k_norm = RMSNorm(width, config.norm_eps)

    @torch.no_grad()
    def keys(self, latents: Tensor, rotation: Tensor) -> Tensor:
        """Index keys `[B, T, index_head_dim]` of latents that are not yet rotated."""
        return rotate(self.k_norm(self.wk(latents)), rotation)

    @torch.no_grad()
    def forward(self, x: Tensor, low_rank_query: Tensor, rotation: Tensor, shared: Shared) -> None:
        """Leaves a selection in `shared`, and the candidates where this layer makes them."""
        config, keys = self.config, shared.index_keys
        visible = self.visible(x.shape[1], keys.shape[1])
        scores = self.scores(x, low_rank_query, rotation, keys).masked_fill_(~visible, -torch.inf)
        if self.makes_candidates:
            shared.candidates = self.candidate_blocks(scores)
        elif self.reads_candidates:
            scores.masked_fill_(~shared.candidates, -torch.inf)
        shared.selection = Selection.of(scores, config.index_topk)

    def scores(self, x: Tensor, low_rank_query: Tensor, rotation: Tensor, keys: Tensor) -> Tensor:
        """`sum_h w_h relu(q_h . k_t)`, `[B, S, T]`."""
        heads, width = self.config.index_n_heads, self.config.index_head_dim
        q = rotate(self.wq_b(low_rank_query).unflatten(-1, (heads, width)), rotation.unsqueeze(1))
        products = (q.flatten(1, 2) @ keys.mT).unflatten(1, (-1, heads)).relu_()
        weights = self.weights_proj(x) * (width * heads) ** -0.5
        return (weights.unsqueeze(2) @ products).squeeze(2)

    def visible(self, length: int, positions: int) -> Tensor:
        """A position is seen from its group's last token on: `[S, T]`."""
        return torch.arange(positions) < ((torch.arange(length) + 1) // self.ratio).unsqueeze(1)

    def candidate_blocks(self, scores: Tensor) -> Tensor:
        """The best blocks of positions as a mask `[B, S, T]`; the newest block that a query sees is always one."""
        config, (_, length, positions) = self.config, scores.shape
        size = config.candidate_block_size
        blocks = F.pad(scores, (0, -positions % size), value=-torch.inf).unflatten(-1, (-1, size)).amax(-1)
        newest = ((torch.arange(length) + 1) // self.ratio - 1) // size
        pinned = torch.arange(blocks.shape[-1]) == newest.unsqueeze(1)
        chosen = top_k_mask(blocks.masked_fill(pinned, torch.inf), config.candidate_topk_blocks)
        return chosen.repeat_interleave(size, -1)[..., :positions]


def window_blocks(keys: Tensor, window: int) -> tuple[Tensor, Tensor]:
    """The keys that each block of W queries can see, `[B, S/W, 2W, d]`, and which of them, `[S/W, W, 2W]`.

    A query's window lies in its own block and the one before, so a window costs two blocks and no gather.
    """
    own = keys.unflatten(1, (-1, window))
    before = F.pad(own, (0, 0, 0, 0, 1, 0))[:, :-1]
    query, key = torch.arange(window).unsqueeze(1), torch.arange(2 * window)
    visible = ((key > query) & (key <= query + window)).repeat(own.shape[1], 1, 1)
    visible[0] &= key >= window
    return torch.cat([before, own], 2), visible


def attend(
    q: Tensor, kv: Tensor, sink: Tensor, window: int, latents: Tensor | None, chosen: Selection | None
) -> Tensor:
    """One softmax over a query's window, its selected latents and the head's sink, which has no value.

    `q` is `[B, S, H, d]`, `kv` is `[B, S, d]`: key and value at once, for all heads. Returns `[B, S, H, d]`.
    """
    batch, length, heads, width = q.shape
    scale = width**-0.5
    padding = -length % window
    q, kv = F.pad(q, (0, 0, 0, 0, 0, padding)), F.pad(kv, (0, 0, 0, padding))

    near, visible = window_blocks(kv, window)
    blocks = q.view(batch, -1, window * heads, width)
    scores = (blocks @ (near * scale).mT).unflatten(2, (window, heads))
    scores = scores.masked_fill_(~visible.unsqueeze(2), -torch.inf).flatten(1, 2)
    parts = [scores, sink.expand(batch, length + padding, heads).unsqueeze(-1)]

    if latents is not None:
        # The gathered rows belong to one query and the masked ones to all, but both are a product with a matrix.
        if chosen.index is None:
            far, allowed, rows = latents, chosen.mask, q.flatten(1, 2)
        else:
            start = torch.arange(batch).view(-1, 1, 1) * latents.shape[1]
            far = F.embedding(F.pad(chosen.index, (0, 0, 0, padding)) + start, latents.flatten(0, 1))
            allowed, rows = chosen.valid, q
        scores = (rows @ (far * scale).mT).view(batch, length + padding, heads, allowed.shape[-1])
        allowed = F.pad(allowed, (0, 0, 0, padding))
        parts.append(scores.masked_fill_(~allowed.unsqueeze(2), -torch.inf))

    probabilities = torch.cat(parts, -1).softmax(-1).split([part.shape[-1] for part in parts], -1)
    out = (probabilities[0].reshape(batch, -1, window * heads, 2 * window) @ near).view_as(q)
    if latents is not None:
        out = out + (probabilities[2].reshape(*rows.shape[:-1], allowed.shape[-1]) @ far).view_as(q)
    return out[:, :length]


class Attention(nn.Module):
    """Attention of one layer: low-rank queries, one key-value vector for all heads, a grouped low-rank output."""

    def __init__(self, config: Config, layer: int) -> None:
        super().__init__()
        self.config = config
        self.ratio = config.compress_ratios[layer]
        heads, width = config.n_heads, config.head_dim
        self.attn_sink = nn.Parameter(torch.zeros(heads))
        self.wq_a = linear(config.dim, config.q_lora_rank)
        self.q_norm = RMSNorm(config.q_lora_rank, config.norm_eps)
        self.wq_b = linear(config.q_lora_rank, heads * width)
        self.wkv = linear(config.dim, width)
        self.kv_norm = RMSNorm(width, config.norm_eps)
        self.wo_a = linear(heads * width // config.o_groups, config.o_groups * config.o_lora_rank)
        self.wo_b = linear(config.o_groups * config.o_lora_rank, config.dim)
        self.compressor = Compressor(config, self.ratio) if layer in config.kv_source_layers else None
        self.indexer = Indexer(config, layer) if layer in config.index_source_layers else None
        self.frequencies = rope_frequencies(config, self.ratio > 0)

    def forward(self, x: Tensor, shared: Shared) -> Tensor:
        """`[B, S, D]` from `[B, S, D]`."""
        config, length = self.config, x.shape[1]
        rotation = rotations(self.frequencies, length, 1, x.dtype)
        low_rank_query = self.q_norm(self.wq_a(x))
        q = rotate(self.wq_b(low_rank_query).unflatten(-1, (config.n_heads, -1)), rotation.unsqueeze(1))
        kv = rotate(self.kv_norm(self.wkv(x)), rotation)

        if self.compressor is not None:
            latents = self.compressor(x)
            of_groups = rotations(self.frequencies, latents.shape[1], self.ratio, x.dtype)
            shared.index_keys = self.indexer.keys(latents, of_groups)
            shared.latents = rotate(latents, of_groups)
        if self.indexer is not None:
            self.indexer(x, low_rank_query, rotation, shared)
        far = (shared.latents, shared.selection) if self.ratio > 0 else (None, None)

        out = rotate(attend(q, kv, self.attn_sink, config.window_size, *far), rotation.conj().unsqueeze(1))
        return self.wo_b(self.groups_to_ranks(out))

    def groups_to_ranks(self, out: Tensor) -> Tensor:
        """Each group of heads through its own matrix: `[B, S, groups * rank]` from `[B, S, H, d]`."""
        groups = self.config.o_groups
        by_group = out.reshape(-1, groups, self.wo_a.in_features).transpose(0, 1)
        ranks = by_group @ self.wo_a.weight.unflatten(0, (groups, -1)).mT
        return ranks.transpose(0, 1).reshape(*out.shape[:2], -1)


# --- Mixture of experts -----------------------------------------------------------------------------------------------


class Expert(nn.Module):
    """SwiGLU with both halves clamped before the product."""

    def __init__(self, config: Config, width: int) -> None:
        super().__init__()
        self.limit = config.swiglu_limit or math.inf
        self.w1 = linear(config.dim, width)
        self.w2 = linear(width, config.dim)
        self.w3 = linear(config.dim, width)

    def forward(self, x: Tensor, weight: Tensor | None = None) -> Tensor:
        """`[n, D]` from `[n, D]`, each row times its `weight`, `[n]`, where there is one."""
        gate = self.w1(x).clamp(max=self.limit)
        up = self.w3(x).clamp(-self.limit, self.limit)
        hidden = F.silu(gate) * up
        if weight is not None:
            hidden = hidden * weight.unsqueeze(-1)
        return self.w2(hidden)


class Router(nn.Module):
    """Chooses experts by score and bias, and weighs them by score."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.weight = nn.Parameter(torch.empty(config.n_routed_experts, config.dim))
        self.register_buffer("bias", torch.zeros(config.n_routed_experts))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The chosen experts and their weights, each `[N, n_activated]`, from `x`, `[N, D]`."""
        config = self.config
        logits = F.linear(x, self.weight) / config.gate_temp
        match config.score_func:
            case "sqrtsoftplus":
                scores = F.softplus(logits).sqrt()
            case "softmax":
                scores = logits.softmax(-1)
            case "sigmoid":
                scores = logits.sigmoid()
            case other:
                raise ValueError(f"score_func is {other!r}; expected sqrtsoftplus, softmax or sigmoid")
        ranked = (scores.detach() + self.bias).sort(descending=True, stable=True).indices
        chosen = ranked[:, : config.n_activated_experts]
        weights = scores.gather(1, chosen)
        if config.norm_topk_prob and config.n_activated_experts > 1:
            weights = weights / (weights.sum(-1, keepdim=True) + 1e-20)
        return chosen, weights * config.route_scale


class MixtureOfExperts(nn.Module):
    """The shared expert plus the routed ones, each of which sees its tokens in one batch."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.gate = Router(config)
        self.experts = nn.ModuleList(Expert(config, config.moe_inter_dim) for _ in range(config.n_routed_experts))
        self.shared_experts = Expert(config, config.n_shared_experts * config.moe_inter_dim)

    def forward(self, x: Tensor) -> Tensor:
        """`[B, S, D]` from `[B, S, D]`."""
        tokens = x.flatten(0, 1)
        chosen, weights = self.gate(tokens)
        order = chosen.flatten().argsort(stable=True)
        counts = chosen.flatten().bincount(minlength=len(self.experts)).tolist()
        token = order // chosen.shape[1]
        batches = tokens.index_select(0, token).split(counts)
        shares = weights.flatten().index_select(0, order).split(counts)
        routed = torch.cat([expert(*batch) for expert, *batch in zip(self.experts, batches, shares, strict=True)])
        return self.shared_experts(tokens).index_add(0, token, routed).view_as(x)


# --- Engram -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class EngramHash:
    """The rows of one layer's table that a token's n-grams have. The token map is the identity."""

    multipliers: Tensor  # [max_ngram]
    primes: Tensor  # [slots], n-gram size major, head minor
    offsets: Tensor  # [slots]
    pad_id: int
    heads: int

    @classmethod
    def of_layers(cls, config: Config) -> dict[int, Self]:
        """The hash of every layer that has an engram; no two slots share a prime."""
        largest = config.engram_max_ngram_size
        slots = (largest - 1) * config.engram_n_heads
        primes = primes_from(config.engram_vocab_size, slots * len(config.engram_layer_ids))
        bound = max(1, np.iinfo(np.int64).max // config.engram_compressed_vocab_size // 2)
        hashes = {}
        for place, layer in enumerate(config.engram_layer_ids):
            own = primes[place * slots : (place + 1) * slots]
            drawn = np.random.default_rng(10007 * layer).integers(0, bound, largest) * 2 + 1
            offsets = [0, *accumulate(own)][:-1]
            hashes[layer] = cls(
                torch.from_numpy(drawn), torch.tensor(own), torch.tensor(offsets), config.engram_pad_id,
                config.engram_n_heads,
            )  # fmt: skip
        return hashes

    @property
    def rows(self) -> int:
        """Rows of the table."""
        return int(self.primes.sum())

    def __call__(self, ids: Tensor) -> Tensor:
        """Row numbers `[B, S, slots]` of `ids`, `[B, S]`."""
        length, look_back = ids.shape[1], len(self.multipliers) - 1
        padded = F.pad(ids, (look_back, 0), value=self.pad_id)
        value, values = ids * self.multipliers[0], []
        for back in range(1, look_back + 1):
            earlier = padded[:, look_back - back :][:, :length]
            value = value ^ (earlier * self.multipliers[back])
            values += [value] * self.heads
        return torch.stack(values, -1) % self.primes + self.offsets


def primes_from(start: int, count: int) -> list[int]:
    """The first `count` primes that are at least `start`."""
    found, number = [], max(start, 2)
    while len(found) < count:
        if all(number % divisor for divisor in range(2, math.isqrt(number) + 1)):
            found.append(number)
        number += 1
    return found


class Engram(nn.Module):
    """Adds values that are looked up by n-gram to the copies, each through a gate of its own."""

    def __init__(self, config: Config, hash_: EngramHash) -> None:
        super().__init__()
        self.config = config
        self.hash = hash_
        shape = (config.hc_mult, config.dim)
        self.q_weight = nn.Parameter(torch.ones(shape))
        self.k_weight = nn.Parameter(torch.ones(shape))
        self.embed = nn.utils.skip_init(nn.Embedding, hash_.rows, config.engram_head_dim)
        self.wkv = linear(len(hash_.primes) * config.engram_head_dim, (config.hc_mult + 1) * config.dim)

    def forward(self, h: Tensor, ids: Tensor) -> Tensor:
        """The changed copies, `[B, S, C, D]`."""
        eps, copies = self.config.norm_eps, self.config.hc_mult
        rows = self.embed(self.hash(ids)).flatten(2)
        keys, value = self.wkv(rows).unflatten(-1, (copies + 1, -1)).split([copies, 1], 2)
        dot = (h * (self.q_weight * self.k_weight) * keys).sum(-1)
        dot = dot * inverse_rms(h, eps) * inverse_rms(keys, eps) * self.config.dim**-0.5
        gate = torch.copysign(dot.abs().clamp(min=1e-6).sqrt(), dot).sigmoid()
        return torch.addcmul(h, gate.unsqueeze(-1), value)


# --- The model --------------------------------------------------------------------------------------------------------


class Block(nn.Module):
    """Engram, attention and experts around C copies of the residual stream."""

    def __init__(self, config: Config, layer: int, engram: EngramHash | None) -> None:
        super().__init__()
        self.config = config
        mixes = (2 + config.hc_mult) * config.hc_mult
        for sublayer in ("attn", "ffn"):
            self.register_parameter(f"hc_{sublayer}_fn", nn.Parameter(torch.empty(mixes, config.hc_mult * config.dim)))
            self.register_parameter(f"hc_{sublayer}_base", nn.Parameter(torch.zeros(mixes)))
            self.register_parameter(f"hc_{sublayer}_scale", nn.Parameter(torch.ones(3)))
        self.attn = Attention(config, layer)
        self.ffn = MixtureOfExperts(config)
        self.engram = Engram(config, engram) if engram else None
        self.attn_norm = RMSNorm(config.dim, config.norm_eps)
        self.ffn_norm = RMSNorm(config.dim, config.norm_eps)

    def forward(self, h: Tensor, pre: Tensor, ids: Tensor, shared: Shared) -> tuple[Tensor, Tensor]:
        """The copies and the next block's `pre`. A sublayer collapses with what the mixer before its own made."""
        if self.engram is not None:
            h = self.engram(h, ids)
        mix = make_mix(h, self.hc_attn_fn, self.hc_attn_base, self.hc_attn_scale, self.config)
        h = expand(h, self.attn(self.attn_norm(collapse(h, pre)), shared), mix)
        pre = mix.pre
        mix = make_mix(h, self.hc_ffn_fn, self.hc_ffn_base, self.hc_ffn_scale, self.config)
        h = expand(h, self.ffn(self.ffn_norm(collapse(h, pre))), mix)
        return h, mix.pre


class Model(nn.Module):
    """The whole text model."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        hashes = EngramHash.of_layers(config)
        self.embed = nn.utils.skip_init(nn.Embedding, config.vocab_size, config.dim)
        self.layers = nn.ModuleList(Block(config, layer, hashes.get(layer)) for layer in range(config.n_layers))
        self.norm = RMSNorm(config.dim, config.norm_eps)
        self.head = linear(config.dim, config.vocab_size)

    def forward(self, ids: Tensor) -> Tensor:
        """Logits `[B, S, vocabulary]` of token ids `[B, S]`."""
        copies = self.config.hc_mult
        h = self.embed(ids).unsqueeze(2).expand(-1, -1, copies, -1)
        pre = F.one_hot(torch.zeros_like(ids), copies).to(h.dtype)
        shared = Shared()
        for layer in self.layers:
            h, pre = layer(h, pre, ids, shared)
        return self.head(self.norm(collapse(h, pre)))

    @torch.no_grad()
    def fill(self, seed: int) -> None:
        """Seeded uniform weights of the sizes that the project's golden files use."""
        generator = torch.Generator().manual_seed(seed)
        for name, tensor in self.state_dict().items():
            scale, offset = weight_range(name, tensor)
            tensor.uniform_(offset - scale, offset + scale, generator=generator)


def weight_range(name: str, weight: Tensor) -> tuple[float, float]:
    """Half the width, and the middle, of the uniform values that suit a weight."""
    if name.endswith("embed.weight"):
        return 0.5, 0.0
    if name.endswith(("attn_sink", "_base")):
        return 0.1, 0.0
    if name.endswith(("norm.weight", "_scale", "q_weight", "k_weight")):
        return 0.05, 1.0
    return (0.05, 0.0) if weight.dim() == 1 else (weight.shape[-1] ** -0.5, 0.0)


def fold_scales(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Multiplies an engram table, one float for each row's element, by its scales, one for each group of a row."""
    scales = {name: scale for name, scale in weights.items() if name.endswith(".engram.embed.scale")}
    folded = {name: weight for name, weight in weights.items() if name not in scales}
    for name, scale in scales.items():
        table = name.removesuffix("scale") + "weight"
        groups = folded[table].unflatten(-1, (scale.shape[-1], -1))
        folded[table] = (groups * scale.unsqueeze(-1)).flatten(-2)
    return folded


def next_token_loss(logits: Tensor, ids: Tensor) -> Tensor:
    """Mean cross entropy of each position's logits against the token after it."""
    return F.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
