"""Any Hugging Face causal LM as a target, through the model's own forward."""

import functools
import inspect
from collections.abc import Callable, Sequence

import torch

from .._upload import upload
from . import slot_state
from .adapted_pass import ComputedKeysError, FixedPass, LayerStore, Pass
from .capture_check import target_obstacle
from .identity import fingerprint
from .paging import make_pool
from .rope import check_rope
from .target import TargetBatch, TargetOutput, UnsupportedModelError, unsupported

_STATE_LAYERS = ("linear", "mamba", "conv", "recurrent", "rwkv", "ssm")


class CausalLMTarget:
    """Serve `model` (any transformers causal LM with attention, quantised ones included) by its own
    forward, with our key/value cache and attention in place of its own.

    model            used, not copied; its attention implementation is set to "dspark_ext". Outside
                     the target it still works. On the device it is on.
    taps             0-based decoder layers whose outputs are the features, in this order; none for
                     drafters that read no features
    max_requests     cache slots
    max_len          positions per slot
    block_size       None = dense cache, `max_len` positions for every slot; else positions per
                     block of a paged one
    num_blocks       blocks of the paged cache; default: enough for all slots to be full
    check_tolerance  when it is built, the target compares itself with the model: two requests, in
                     chunks, against the model's own forward over each. It may differ by this much,
                     relative L2 over the logits (a model that quantises its activations differs a
                     little); None = no check

    Rows of several requests share a pass, ragged and in any order; sliding windows and chunked
    attention are what the model's mask functions say. The model's own matrix products decide
    whether a row's bits depend on the rows beside it: usually they do, so greedy text may differ
    from plain decoding at near ties, and only the law of sampled text is promised.

    Raises UnsupportedModelError, a ValueError, that says why a model cannot be served: a recurrent
    state cannot be rolled back after a rejection, attention code of its own takes no other, and so
    on; and where the comparison fails.
    """

    row_invariant = False

    def __init__(
        self,
        model: torch.nn.Module,
        taps: Sequence[int] = (),
        *,
        max_requests: int,
        max_len: int,
        block_size: int | None = None,
        num_blocks: int | None = None,
        check_tolerance: float | None = 0.05,
    ) -> None:
        adapted_attention = _adapter(model)
        config = model.config.get_text_config(decoder=True)
        self._arguments = inspect.signature(model.forward).parameters
        _check_supported(model, config, self._arguments, max_len)
        self.model = model.eval()
        self.max_requests, self.max_len = max_requests, max_len
        self.vocab_size = _vocab_size(model, config)
        self.hidden_size = config.hidden_size
        self.num_features = len(taps) * self.hidden_size
        self.device = next(model.parameters()).device
        self.pool = make_pool(max_requests, max_len, block_size, num_blocks)
        self.store = LayerStore(self.pool)
        self.identity = {
            "model_type": config.model_type,
            "weights": fingerprint(model),
            "dtype": str(model.dtype),
        }
        self._taps = _tapped_layers(model, config, taps)
        self._cache_name = "cache" if "cache" in self._arguments else "past_key_values"
        expected = None
        samples = _check_samples(self.vocab_size, max_requests, max_len)
        if check_tolerance is not None:
            expected = [self._own_logits(ids) for ids in samples]
            self._check_causal(samples[0], expected[0], check_tolerance)
        self._adapter = adapted_attention
        adapted_attention.register()
        model.set_attn_implementation(adapted_attention.NAME)
        if expected is not None:
            self._check(samples, expected, check_tolerance)

    @property
    def embedding(self) -> torch.Tensor:
        """The input embedding [V, d], for drafters that share it."""
        return _plain_weight("embedding", self.model.get_input_embeddings())

    @property
    def lm_head_weight(self) -> torch.Tensor:
        """The output matrix [V, d], for drafters that share it."""
        return _plain_weight("lm_head_weight", self.model.get_output_embeddings())

    def reserve(self, slot: int, length: int) -> bool:
        """Room for `length` positions of a slot; False while there is none."""
        return self.pool.reserve(slot, length)

    def release(self, slot: int) -> None:
        """The request of a slot has ended."""
        self.pool.release(slot)

    def export_slot(self, slot: int, length: int) -> dict[str, torch.Tensor]:
        """Keys and values of positions 0 .. length-1, see `handover`."""
        return slot_state.copy_out(self._stores(), self._cells(slot, length))

    def check_slot(self, tensors: dict[str, torch.Tensor], token_ids: Sequence[int]) -> None:
        """HandoverError unless `import_slot` can take them."""
        slot_state.check_rows(self._stores(), tensors, len(token_ids), "target")

    @torch.inference_mode()
    def import_slot(
        self, slot: int, tensors: dict[str, torch.Tensor], token_ids: Sequence[int]
    ) -> None:
        """Make what `export_slot` gave the slot's; token_ids of its positions."""
        self.check_slot(tensors, token_ids)
        slot_state.copy_in(self._stores(), self._cells(slot, len(token_ids)), tensors)

    def _stores(self) -> dict[str, torch.Tensor]:
        if not self.store.keys:  # made when layers first write; let them write a padding row
            row = torch.tensor([-1], device="cpu")
            self.forward(TargetBatch(row + 1, row + 1, row, row + 1))
        return slot_state.flat_stores(self.store.keys, self.store.values)

    def _cells(self, slot: int, length: int) -> torch.Tensor:
        positions = torch.arange(length, device="cpu")
        slots = torch.full_like(positions, slot)
        self.pool.grow(slots, positions)
        return self.pool.rows(slots, positions)

    @torch.inference_mode()
    def forward(self, batch: TargetBatch) -> TargetOutput:
        """One pass over the rows of `batch`; see `TargetBatch` and `TargetOutput`."""
        count, device = len(batch.input_ids), self.device
        if count == 0:
            return TargetOutput(
                torch.empty(0, self.vocab_size, dtype=torch.float32, device=device),
                torch.empty(0, self.num_features, dtype=torch.float32, device=device),
            )

        def run() -> TargetOutput:
            running = Pass(self.store, batch.slots, batch.positions, device)
            return self._run(running, batch.input_ids.to(device), batch.logit_rows.to(device))

        return self._gathering(run)

    @torch.inference_mode()
    def forward_fixed(self, batch: TargetBatch) -> TargetOutput:
        """As `forward`, of a batch with bounds that wants every row's logits, so that it can be
        captured: attention is torch's, over `bounds.length` keys of min(rows, slots) requests.
        `refill` comes before it, and blocks were reserved."""

        def run() -> TargetOutput:
            running = FixedPass(self.store, batch.slots, batch.positions, batch.bounds)
            return self._run(running, batch.input_ids, None)

        return self._gathering(run)

    @torch.inference_mode()
    def refill(self) -> None:
        """Bring the block table that `forward_fixed` reads up to date."""
        self.store.refill(self.device)

    @functools.cached_property
    def capture_obstacle(self) -> str | None:
        """Why `forward_fixed` cannot be captured as a graph: what the model's own forward does;
        found out by recording it. None if it can. Overwrites the first positions of two slots."""
        return target_obstacle(self)

    @property
    def capturable(self) -> bool:
        """Whether passes can be captured as graphs."""
        return self.capture_obstacle is None

    def _gathering(self, run: Callable[[], TargetOutput]) -> TargetOutput:
        try:
            return run()
        except ComputedKeysError:
            self.store.gathers = True
            return run()

    def _run(self, running: Pass, input_ids, logit_rows: torch.Tensor | None) -> TargetOutput:
        """logit_rows  None = all"""
        count, device = len(input_ids), self.device
        arguments = {}
        if logit_rows is not None and "logits_to_keep" in self._arguments:
            arguments["logits_to_keep"], logit_rows = logit_rows, None
        shape = count, len(self._taps), self.hidden_size
        features = torch.empty(shape, dtype=torch.float32, device=device)
        hooks = [
            layer.register_forward_hook(_keep_output(features, index))
            for index, layer in enumerate(self._taps)
        ]
        try:
            with self._adapter.running_pass(running):
                output = self.model(
                    input_ids=input_ids[None],
                    position_ids=running.positions[None],
                    use_cache=True,
                    **{self._cache_name: self._adapter.PassCache(running)},
                    **arguments,
                )
        finally:
            for hook in hooks:
                hook.remove()
        logits = output.logits[0].float()
        logits = logits if logit_rows is None else logits[logit_rows]
        return TargetOutput(logits, features.flatten(1))

    @torch.inference_mode()
    def _own_logits(self, ids: torch.Tensor) -> torch.Tensor:
        """The model's, without any cache."""
        return self.model(ids[None].to(self.device), use_cache=False).logits[0].float()

    def _check_causal(self, ids: torch.Tensor, expected: torch.Tensor, tolerance: float) -> None:
        first = expected[: len(ids) // 2]
        distance = _distance(self._own_logits(ids[: len(first)]), first) if len(first) else 0.0
        if not distance <= tolerance:
            raise _unsupported(
                self.model,
                "its attention is not causal: the logits of a token change with those behind it, "
                f"by {distance:.2g} (relative L2)",
            )

    def _check(self, samples, expected, tolerance: float) -> None:
        """Both samples in chunks, in a small cache, against the model's own logits."""
        size = len(samples), max(map(len, samples))
        self.store = LayerStore(make_pool(*size, min(self.pool.block_size, 4), None))
        found: list[list[torch.Tensor]] = [[] for _ in samples]
        half = len(samples[0]) // 2
        for start, stop in ((0, half), (half, None)):
            parts = [ids[start:stop] for ids in samples]
            lengths = [len(part) for part in parts]
            rows = torch.arange(sum(lengths), device="cpu")
            batch = TargetBatch(
                torch.cat(parts),
                torch.cat([start + torch.arange(length, device="cpu") for length in lengths]),
                upload(
                    [row for row, count in enumerate(lengths) for _ in range(count)], torch.int64
                ),
                rows,
            )
            try:
                logits = self.forward(batch).logits
            except UnsupportedModelError:
                raise
            except Exception as error:
                reason = f"its forward fails with our cache: {error!r}"
                raise _unsupported(self.model, reason) from error
            for each, part in zip(found, logits.split(lengths), strict=True):
                each.append(part)
        gathers = self.store.gathers
        self.store = LayerStore(self.pool)
        self.store.gathers = gathers
        ours = torch.cat([torch.cat(each) for each in found])
        distance = _distance(ours, torch.cat(expected))
        if not distance <= tolerance:
            raise _unsupported(
                self.model,
                f"its logits with our cache differ from its own by {distance:.2g} (relative L2, "
                f"check_tolerance {tolerance})",
            )


def _adapter(model):
    """What is registered with transformers; not every version has a place for it."""
    try:
        from . import adapted_attention
    except ImportError as error:
        raise _unsupported(
            model, f"this version of transformers lets no attention be registered ({error})"
        ) from error
    return adapted_attention


def _distance(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    return float((ours - theirs).norm() / theirs.norm())


def _keep_output(features: torch.Tensor, index: int):
    def hook(module, arguments, output) -> None:
        hidden = output[0] if isinstance(output, (tuple, list)) else output
        features[:, index] = hidden.reshape(features[:, index].shape)

    return hook


def _check_samples(vocab_size: int, max_requests: int, max_len: int) -> list[torch.Tensor]:
    generator = torch.Generator("cpu").manual_seed(0)
    lengths = (min(9, max_len), min(7, max_len))[:max_requests]
    return [
        torch.randint(vocab_size, (length,), generator=generator, device="cpu")
        for length in lengths
    ]


def _check_supported(model, config, arguments, max_len: int) -> None:
    kinds = set(getattr(config, "layer_types", None) or ())
    states = sorted(kind for kind in kinds if any(word in kind for word in _STATE_LAYERS))
    if states or getattr(model, "_is_stateful", False):
        layers = f" (layers of type {', '.join(states)})" if states else ""
        raise _unsupported(
            model,
            f"it keeps a recurrent state{layers}, which cannot be rolled back to the last accepted "
            "token after a rejection",
        )
    if config.is_encoder_decoder:
        raise _unsupported(model, "it is an encoder-decoder, not a causal LM")
    if not getattr(config, "is_causal", True):
        raise _unsupported(model, "its attention is not causal")
    if not model._can_set_attn_implementation() or not model._supports_attention_backend:
        raise _unsupported(
            model,
            "its attention is code of its own, which takes no other attention function "
            "(transformers: _supports_attention_backend)",
        )
    if "position_ids" not in arguments:
        raise _unsupported(model, "its forward takes no position_ids")
    check_rope("CausalLMTarget", model, config, max_len)


def _tapped_layers(model, config, taps: Sequence[int]) -> list[torch.nn.Module]:
    count = config.num_hidden_layers
    for tap in taps:
        if not 0 <= tap < count:
            raise ValueError(
                f"dspark_ext.engine.CausalLMTarget: taps: expected layers in [0, {count}), got "
                f"{tap}"
            )
    if not taps:
        return []
    for module in model.modules():
        if isinstance(module, torch.nn.ModuleList) and len(module) == count:
            return [module[tap] for tap in taps]
    raise _unsupported(model, f"no list of its {count} decoder layers was found to tap")


def _vocab_size(model, config) -> int:
    head = model.get_output_embeddings()
    return getattr(head, "out_features", None) or config.vocab_size


def _plain_weight(name: str, module) -> torch.Tensor:
    weight = getattr(module, "weight", None)
    if not isinstance(weight, torch.Tensor) or not weight.is_floating_point():
        raise ValueError(
            f"dspark_ext.engine.CausalLMTarget: {name}: expected a module with a floating-point "
            f"weight, got {type(module).__name__}; a drafter that shares it needs it unquantised"
        )
    return weight.detach()


def _unsupported(model, reason: str) -> UnsupportedModelError:
    return unsupported("CausalLMTarget", model, reason)
