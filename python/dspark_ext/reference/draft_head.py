"""The draft heads' forward pass for one request, in float64, one function per step.

`w` maps state_dict() names to tensors, `config` is a `DeepSeekDraftConfig` or `DenseDraftConfig`.
`features` [P, F] are those of positions 0 .. P-1 and the anchor stands at P. Nothing here is
batched, cached or shared with the modules. Source: DSpark paper sections 3 and 5.1; DeepSpec's
modeling files; the DeepSeek-V4 and V4.1 checkpoints.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor


class Block(NamedTuple):
    """Rows of a block in the order of the drafts: what the Markov and confidence heads read, and
    the logits before any Markov bias."""

    state: Tensor  # [K, d]
    base_logits: Tensor  # [K, V_draft]


def block(w, config, features: Tensor, anchor: int, num_drafts: int, embedding, output) -> Block:
    """The block [anchor, mask, ...] of `num_drafts` drafts; embedding [V, d], output [V_draft, d]
    are the target's."""
    w = {name: value.double() for name, value in w.items()}
    embedding, output, features = embedding.double(), output.double(), features.double()
    if config.flavour.startswith("deepseek"):
        rows = num_drafts if config.sample_from_anchor else num_drafts + 1
        ids = [anchor] + [config.dspark_noise_token_id] * (rows - 1)
        hidden, normed = deepseek_backbone(w, config, features, ids, embedding)
        state = hidden  # before the norm
    else:
        rows = num_drafts if config.sample_from_anchor else num_drafts + 1
        ids = [anchor] + [config.mask_token_id] * (rows - 1)
        hidden, normed = dense_backbone(w, config, features, ids, embedding)
        state = normed  # after the norm
    logits = torch.stack([output @ row for row in normed])
    cap = getattr(config, "final_logit_softcapping", None)
    if cap is not None:
        logits = cap * torch.tanh(logits / cap)
    return Block(state[rows - num_drafts :], logits[rows - num_drafts :])


# --- steps that all flavours know ---


def rms_norm(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    """x [n] over its root mean square, times weight."""
    y = x / torch.sqrt((x * x).mean() + eps)
    return y if weight is None else y * weight


def silu(x: Tensor) -> Tensor:
    return x / (1 + torch.exp(-x))


def turn_pair(a: Tensor, b: Tensor, angle: float) -> tuple[Tensor, Tensor]:
    return a * math.cos(angle) - b * math.sin(angle), b * math.cos(angle) + a * math.sin(angle)


def weighted_values(query: Tensor, keys, values, scale: float, sink: float | None) -> Tensor:
    """Softmax attention of one query head [D] over lists of keys and values [D]."""
    scores = [scale * float(query @ key) for key in keys]
    highest = max([*scores, *([] if sink is None else [sink])])
    weights = [math.exp(score - highest) for score in scores]
    total = sum(weights) + (0.0 if sink is None else math.exp(sink - highest))
    mixed = torch.zeros_like(query)
    for weight, value in zip(weights, values):
        mixed = mixed + weight / total * value
    return mixed


# --- DeepSeek V4.1 and V4 ---


def deepseek_backbone(w, config, features, ids, embedding) -> tuple[Tensor, Tensor]:
    """Rows before and after the final norm, [R, d] each."""
    v41 = config.flavour == "deepseek_v41"
    eps, last = config.rms_norm_eps, f"mtp.{config.num_nextn_predict_layers - 1}."
    main = [
        rms_norm(w["mtp.0.main_proj.weight"] @ row, w["mtp.0.main_norm.weight"], eps)
        for row in features
    ]
    streams = [embedding[token].repeat(config.hc_mult, 1) for token in ids]
    delayed = [[1.0] + [0.0] * (config.hc_mult - 1) for _ in ids]  # V4.1 only
    for stage in range(config.num_nextn_predict_layers):
        stage_w = _below(w, f"mtp.{stage}.")
        for sublayer in ("attn", "ffn"):
            mixes = [stream_mixes(stage_w, f"hc_{sublayer}_", config, x) for x in streams]
            inputs = []
            for x, mix, before in zip(streams, mixes, delayed):
                weights = before if v41 else mix[0]
                row = sum(weights[j] * x[j] for j in range(config.hc_mult))
                inputs.append(rms_norm(row, stage_w[f"{sublayer}_norm.weight"], eps))
            if sublayer == "attn":
                outputs = latent_attention(_below(stage_w, "attn."), config, main, inputs)
            else:
                outputs = [mixture(_below(stage_w, "ffn."), config, row) for row in inputs]
            streams = [spread(x, y, mix) for x, y, mix in zip(streams, outputs, mixes)]
            delayed = [mix[0] for mix in mixes]
    hidden = []
    for x, before in zip(streams, delayed):
        weights = before if v41 else head_mix(w, last, config, x)
        hidden.append(sum(weights[j] * x[j] for j in range(config.hc_mult)))
    normed = [rms_norm(row, w[last + "norm.weight"], eps) for row in hidden]
    return torch.stack(hidden), torch.stack(normed)


def stream_mixes(w, prefix: str, config, x: Tensor):
    """(pre [c], post [c], comb [c][c]) of the copies x [c, d]."""
    c, eps = config.hc_mult, config.hc_eps
    flat = x.flatten()
    z = (w[prefix + "fn"] @ flat) / torch.sqrt((flat * flat).mean() + config.rms_norm_eps)
    scale, base = w[prefix + "scale"], w[prefix + "base"]
    pre = [float(torch.sigmoid(z[j] * scale[0] + base[j])) + eps for j in range(c)]
    post = [2 * float(torch.sigmoid(z[c + j] * scale[1] + base[c + j])) for j in range(c)]
    comb = [
        [float(z[2 * c + c * i + j] * scale[2] + base[2 * c + c * i + j]) for j in range(c)]
        for i in range(c)
    ]
    return pre, post, doubly_stochastic(comb, config.hc_sinkhorn_iters, eps)


def doubly_stochastic(logits, iterations: int, eps: float):
    """Softmax of the rows, then columns and rows normalised in turn, ending with columns."""
    size = range(len(logits))
    m = []
    for row in logits:
        exps = [math.exp(value - max(row)) for value in row]
        m.append([value / sum(exps) + eps for value in exps])
    for step in range(iterations):
        if step > 0:
            m = [[value / (sum(row) + eps) for value in row] for row in m]
        columns = [sum(m[i][j] for i in size) + eps for j in size]
        m = [[m[i][j] / columns[j] for j in size] for i in size]
    return m


def spread(x: Tensor, output: Tensor, mix) -> Tensor:
    """New copies: copy j = sum over i of comb[i][j] x[i], plus post[j] times the output."""
    _, post, comb = mix
    copies = range(len(x))
    return torch.stack([sum(comb[i][j] * x[i] for i in copies) + post[j] * output for j in copies])


def head_mix(w, last: str, config, x: Tensor):
    """V4's learned weights of the copies at the end."""
    flat = x.flatten()
    z = (w[last + "hc_head_fn"] @ flat) / torch.sqrt((flat * flat).mean() + config.rms_norm_eps)
    z = z * w[last + "hc_head_scale"] + w[last + "hc_head_base"]
    return [float(torch.sigmoid(value)) + config.hc_eps for value in z]


def turn_tail(x: Tensor, position: int, config, sign: float = 1.0) -> Tensor:
    """The last qk_rope_head_dim entries of x [D], neighbours as pairs."""
    dim = config.qk_rope_head_dim
    start, out = len(x) - dim, x.clone()
    for pair in range(dim // 2):
        angle = sign * position * config.rope_theta ** (-2 * pair / dim)
        i = start + 2 * pair
        out[i], out[i + 1] = turn_pair(x[i], x[i + 1], angle)
    return out


def latent_key(w, config, x: Tensor, position: int) -> Tensor:
    return turn_tail(rms_norm(w["wkv.weight"] @ x, w["kv_norm.weight"], config.rms_norm_eps),
                     position, config)  # fmt: skip


def latent_attention(w, config, main, inputs) -> list[Tensor]:
    """Block rows at P, P+1, ...; context rows `main` at 0 .. P-1, the last window of them seen."""
    start, dim, eps = len(main), config.head_dim, config.rms_norm_eps
    first = max(0, start - config.sliding_window)
    keys = [latent_key(w, config, main[p], p) for p in range(first, start)]
    keys += [latent_key(w, config, x, start + k) for k, x in enumerate(inputs)]
    outputs = []
    for k, x in enumerate(inputs):
        low = rms_norm(w["wq_a.weight"] @ x, w["q_norm.weight"], eps)
        queries = (w["wq_b.weight"] @ low).view(config.num_attention_heads, dim)
        heads = []
        for head, query in enumerate(queries):
            if config.flavour == "deepseek_v4":
                query = rms_norm(query, None, eps)
            query = turn_tail(query, start + k, config)
            mixed = weighted_values(query, keys, keys, dim**-0.5, float(w["attn_sink"][head]))
            heads.append(turn_tail(mixed, start + k, config, sign=-1.0))
        outputs.append(grouped_output(w, config, torch.cat(heads)))
    return outputs


def grouped_output(w, config, mixed: Tensor) -> Tensor:
    groups, rank = config.o_groups, config.o_lora_rank
    part = len(mixed) // groups
    low = [
        w["wo_a.weight"][g * rank : (g + 1) * rank] @ mixed[g * part : (g + 1) * part]
        for g in range(groups)
    ]
    return w["wo_b.weight"] @ torch.cat(low)


def mixture(w, config, x: Tensor) -> Tensor:
    """Routed experts and the shared one, for one row."""
    scores = torch.sqrt(torch.log1p(torch.exp(w["gate.weight"] @ x)))
    biased = [
        (-float(score + bias), i) for i, (score, bias) in enumerate(zip(scores, w["gate.bias"]))
    ]
    chosen = [i for _, i in sorted(biased)[: config.dspark_num_experts_per_tok]]
    total = sum(float(scores[i]) for i in chosen) + 1e-20
    out = clamped_swiglu(_below(w, "shared_experts."), config, x)
    for i in chosen:
        weight = float(scores[i]) / total * config.routed_scaling_factor
        out = out + weight * clamped_swiglu(_below(w, f"experts.{i}."), config, x)
    return out


def clamped_swiglu(w, config, x: Tensor) -> Tensor:
    limit = config.swiglu_limit or math.inf
    gate, up = (w["w1.weight"] @ x).clamp(max=limit), (w["w3.weight"] @ x).clamp(-limit, limit)
    return w["w2.weight"] @ (silu(gate) * up)


# --- DeepSpec's Qwen3 and Gemma4 drafts ---


def dense_backbone(w, config, features, ids, embedding) -> tuple[Tensor, Tensor]:
    """Rows before and after the final norm, [R, d] each."""
    gemma, eps = config.flavour == "gemma4", config.rms_norm_eps
    context = [rms_norm(w["fc.weight"] @ row, w["hidden_norm.weight"], eps) for row in features]
    scale = math.sqrt(config.hidden_size) if gemma else 1.0
    rows = [embedding[token] * scale for token in ids]
    for layer in range(config.num_hidden_layers):
        p = _below(w, f"layers.{layer}.")
        normed = [rms_norm(x, p["input_layernorm.weight"], eps) for x in rows]
        mixed = dense_attention(_below(p, "self_attn."), config, context, normed)
        for k, x in enumerate(rows):
            y = mixed[k]
            if gemma:
                x = x + rms_norm(y, p["post_attention_layernorm.weight"], eps)
                y = dense_mlp(p, x, p["pre_feedforward_layernorm.weight"], gelu_tanh, eps)
                x = x + rms_norm(y, p["post_feedforward_layernorm.weight"], eps)
                rows[k] = x * p["layer_scalar"]
            else:
                x = x + y
                rows[k] = x + dense_mlp(p, x, p["post_attention_layernorm.weight"], silu, eps)
    normed = [rms_norm(x, w["norm.weight"], eps) for x in rows]
    return torch.stack(rows), torch.stack(normed)


def dense_mlp(p, x: Tensor, norm: Tensor, activation, eps: float) -> Tensor:
    n = rms_norm(x, norm, eps)
    gate, up = p["mlp.gate_proj.weight"] @ n, p["mlp.up_proj.weight"] @ n
    return p["mlp.down_proj.weight"] @ (activation(gate) * up)


def gelu_tanh(x: Tensor) -> Tensor:
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def turn_halves(x: Tensor, position: int, config) -> Tensor:
    """x [D]: entry i pairs with entry i + D/2; only the first share of the pairs turns."""
    half, out = len(x) // 2, x.clone()
    for i in range(int(config.partial_rotary_factor * len(x) // 2)):
        angle = position * config.rope_theta ** (-2 * i / len(x))
        out[i], out[i + half] = turn_pair(x[i], x[i + half], angle)
    return out


def dense_attention(p, config, context, inputs) -> list[Tensor]:
    """Every row sees all context rows, at 0 .. P-1, and the whole block, at P, P+1, ..."""
    gemma, eps, dim = config.flavour == "gemma4", config.rms_norm_eps, config.head_dim
    scale = 1.0 if gemma else dim**-0.5
    start, groups = len(context), config.num_key_value_heads
    keys, values = [[] for _ in range(groups)], [[] for _ in range(groups)]
    for position, x in enumerate([*context, *inputs]):
        key = (p["k_proj.weight"] @ x).view(groups, dim)
        value = key if config.attention_k_eq_v else (p["v_proj.weight"] @ x).view(groups, dim)
        for g in range(groups):
            keys[g].append(turn_halves(rms_norm(key[g], p["k_norm.weight"], eps), position, config))
            values[g].append(rms_norm(value[g], None, eps) if gemma else value[g])
    outputs = []
    for k, x in enumerate(inputs):
        heads = []
        for head, query in enumerate((p["q_proj.weight"] @ x).view(-1, dim)):
            g = head * groups // config.num_attention_heads
            query = turn_halves(rms_norm(query, p["q_norm.weight"], eps), start + k, config)
            heads.append(weighted_values(query, keys[g], values[g], scale, None))
        outputs.append(p["o_proj.weight"] @ torch.cat(heads))
    return outputs


# --- the sequential heads, along given drafts ---


def markov_logits(
    kind: str, base_logits: Tensor, state: Tensor, previous_ids, w1, w2, weight=None, bias=None
) -> Tensor:
    """[K, V_draft]: what x_k is drawn from, given x_{k-1} = previous_ids[k-1] for every k."""
    w1, w2 = w1.double(), w2.double()
    rank, rows = w1.shape[1], []
    memory = torch.zeros(rank, dtype=torch.float64)
    for base, h, previous in zip(base_logits, state, previous_ids):
        e = w1[previous]
        if kind == "vanilla":
            inner = e
        elif kind == "gated":
            gate = torch.sigmoid(weight.double() @ torch.cat([h, e]) + bias.double())
            inner = gate * e
        else:
            z = weight.double() @ torch.cat([memory, e, h]) + bias.double()
            gate, candidate, out = z[:rank], z[rank : 2 * rank], z[2 * rank :]
            gate = torch.sigmoid(gate)
            memory = gate * memory + (1 - gate) * torch.tanh(candidate)
            inner = torch.tanh(out)
        rows.append(base + w2 @ inner)
    return torch.stack(rows)


def confidences(state: Tensor, previous_embeds: Tensor | None, weight: Tensor, bias=None) -> Tensor:
    """[K]: sigmoid(weight . [h_k ; w1[x_{k-1}]] + bias)."""
    rows = state if previous_embeds is None else torch.cat([state, previous_embeds.double()], 1)
    logits = rows @ weight.double().flatten()
    return torch.sigmoid(logits if bias is None else logits + bias.double())


def _below(w, prefix: str):
    return {name[len(prefix) :]: value for name, value in w.items() if name.startswith(prefix)}
