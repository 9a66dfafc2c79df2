"""A small causal LM as the draft model."""

import collections
from collections.abc import Callable

import torch

from .. import sampling, verify
from .._upload import upload
from .costs import device_of
from .drafter import Draft, DraftBatch
from .graphs import Capture, TargetGraphs
from .own_history import OwnHistory
from .request_state import HandoverError
from .target import Bounds, Target, TargetBatch
from .target_choice import target_for

_CERTAINTIES = 10


class VocabularyMismatchError(ValueError):
    """The draft model's tokens are not the target's."""


class SmallModelDrafter:
    """Draft with a language model of the target's vocabulary, one token after the other.

    model       the draft model as a `Target` of its own (`HuggingFaceTarget`, `CausalLMTarget`, or
                anything with their `forward`), with the sizes of the target; `for_target` makes one
    block_size  drafts per block
    max_rows    rows of a pass that takes in a prompt
    vocab_size  the target's, where that is smaller; tables of one family's models are often padded
                to different sizes, and rows beyond the tokens are no tokens

    The model has its own cache. It takes in accepted tokens when it drafts next, in the pass that
    gives the first draft; what it cached of accepted drafts stays. x_k is drawn from its logits at
    the request's temperature, with the noise of stream DRAFT at x_k's position, and the logits are
    handed over as they were. If the model is row-invariant, drafts, and so a seed's tokens, do not
    depend on the batch.

    A further block of a step (`blocks_per_step`) goes on where the last one ended, as more drafts
    would.

    The confidence of x_k starts at the highest probability of its distribution, shrunk towards 0.5,
    and follows the request's own history (`OwnHistory`); it is known before x_k is drawn.

    Reads no features. Source: Leviathan et al., arXiv 2211.17192; Chen et al., arXiv 2302.01318.
    """

    num_features = 0
    method = "draft_model"
    chains_blocks = True

    def __init__(
        self,
        model: Target,
        *,
        block_size: int = 4,
        max_rows: int = 512,
        vocab_size: int | None = None,
    ) -> None:
        for name, value in (("block_size", block_size), ("max_rows", max_rows)):
            if value < 1:
                raise ValueError(
                    f"dspark_ext.engine.SmallModelDrafter: {name}: expected >= 1, got {value}"
                )
        self.model = model
        self.block_size, self._max_rows = block_size, max_rows
        self._vocab_size = min(model.vocab_size, vocab_size or model.vocab_size)
        self.max_requests, self.max_len = model.max_requests, model.max_len
        self.identity = {
            "class": type(self).__name__,
            "block_size": str(block_size),
            **{f"model {name}": text for name, text in getattr(model, "identity", {}).items()},
        }
        self._graphs: TargetGraphs | None = None
        self._kept: list[list[int]] = [[] for _ in range(self.max_requests)]
        self._cached: list[list[int]] = [[] for _ in range(self.max_requests)]
        centres = (
            torch.arange(_CERTAINTIES, dtype=torch.float32, device="cpu") + 0.5
        ) / _CERTAINTIES
        self._history = OwnHistory(self.max_requests, 0.25 + 0.5 * centres)

    @classmethod
    def for_target(
        cls,
        model: torch.nn.Module,
        target: Target,
        *,
        block_size: int = 4,
        weight_dtype: torch.dtype = torch.float32,
        tokenizers: tuple | None = None,
    ) -> "SmallModelDrafter":
        """A drafter for `target` from a transformers causal LM.

        Served as `target_for` says, with a dense cache. For other caches make it yourself.

        tokenizers  (the target's, the draft model's), to be compared: equal sizes do not mean equal
                    tokens, and other sizes not other tokens

        Raises VocabularyMismatchError where the two have other tokens, or other sizes and no
        tokenizers say that this is padding.
        """
        sizes = dict(max_requests=target.max_requests, max_len=target.max_len)
        served = target_for(model, weight_dtype=weight_dtype, **sizes)
        ours, theirs = target.vocab_size, served.vocab_size
        if tokenizers is None and ours != theirs:
            raise VocabularyMismatchError(
                "dspark_ext.engine.SmallModelDrafter: model: expected the target's vocabulary of "
                f"{ours} tokens, got {theirs}; if one of them is padded, give tokenizers"
            )
        if tokenizers is not None:
            check_tokenizers(*tokenizers)
            tokens = 1 + max(tokenizers[0].get_vocab().values(), default=-1)
            if ours != theirs and tokens > min(ours, theirs):
                raise VocabularyMismatchError(
                    f"dspark_ext.engine.SmallModelDrafter: model: expected room for {tokens} "
                    f"tokens, got {ours} in the target and {theirs} in the draft model"
                )
        return cls(served, block_size=block_size, vocab_size=ours)

    @property
    def capturable(self) -> bool:
        """Whether the model's passes can be captured as graphs; what lies between them, the
        requests' texts, is kept on the host."""
        return getattr(self.model, "capturable", False)

    @property
    def capture_obstacle(self) -> str | None:
        return getattr(self.model, "capture_obstacle", None)

    def use_graphs(self, make_capture: Callable[[], Capture]) -> None:
        """Run the model's passes over drafts and accepted tokens from graphs; see
        `DSparkEngine.use_graphs`."""
        sizes = verify.cudagraph_sizes(self.max_requests, self.block_size)
        self._graphs = TargetGraphs(self.model, sizes, make_capture(), self.block_size + 1)

    def append(
        self,
        features: torch.Tensor | None,
        positions: torch.Tensor,
        slots: torch.Tensor,
        token_ids: torch.Tensor,
    ) -> None:
        """See `Drafter.append`; features are not read, and the model does not run."""
        columns = (each.tolist() for each in (slots, positions, token_ids))
        for slot, position, token in zip(*columns, strict=True):
            if slot < 0:
                continue
            kept = self._kept[slot]
            if position > len(kept):
                raise ValueError(
                    "dspark_ext.engine.SmallModelDrafter: append: positions: expected at most "
                    f"{len(kept)} for slot {slot}, got {position}"
                )
            if position == 0:
                self._history.reset(slot)
            del kept[position:]
            kept.append(token)

    @torch.inference_mode()
    def draft(self, batch: DraftBatch, num_drafts: int, method: str) -> Draft:
        """See `Drafter.draft`. A request near its end has fewer: the model takes in no position
        beyond max_len - 2, as x_k behind it could not be verified."""
        slots, device = batch.slots, batch.anchor.device
        room = (self.max_len - 1 - batch.anchor_positions).clamp(min=0, max=num_drafts)
        greedy = method == "greedy"
        temperature = torch.zeros_like(batch.temperature) if greedy else batch.temperature
        chained = self._chained(batch)
        logits, length = self._catch_up(batch)
        ids, kept_logits, kinds = [], [], []
        for k in range(num_drafts):
            drawn = sampling.sample(
                logits,
                temperature=temperature,
                seeds=batch.seeds,
                positions=batch.anchor_positions + 1 + k,
                stream="draft",
                slots=k,
            ).ids.long()
            there = k < room
            ids.append(torch.where(there, drawn, -1))
            kept_logits.append(logits)
            kinds.append(torch.where(there, _certainty(logits, temperature), -1))
            if k + 1 < num_drafts:
                rows = slots, batch.anchor_positions + 1 + k, drawn, k + 1 < room
                logits = self._step(*rows, min(length + 1 + k, self.max_len))
        shape = (len(slots), num_drafts)
        token_ids = (
            torch.stack(ids, 1) if ids else torch.empty(shape, dtype=torch.int64, device=device)
        )
        kind = (
            torch.stack(kinds, 1) if kinds else torch.empty(shape, dtype=torch.int64, device=device)
        )
        confidence = self._history.confidence(slots.cpu(), kind.cpu(), chained).to(device)
        kept = None if greedy or not kept_logits else torch.stack(kept_logits, 1)
        return Draft(token_ids.to(device), kept, confidence, num_proposed=room.to(device))

    def observe(self, slots, verify_lens, num_accepted) -> None:
        """See `Drafter`."""
        self._history.observe(slots, verify_lens, num_accepted)

    def reserve(self, slot: int, length: int) -> bool:
        """See `SlotAllocator`: drafts may stand behind the last position of the request."""
        if not hasattr(self.model, "reserve"):
            return True
        return self.model.reserve(slot, min(length + self.block_size, self.max_len))

    def release(self, slot: int) -> None:
        """See `Drafter`."""
        self._kept[slot], self._cached[slot] = [], []
        self._history.reset(slot)
        if hasattr(self.model, "release"):
            self.model.release(slot)

    def export_slot(self, slot: int, length: int) -> dict[str, torch.Tensor]:
        """The request's history and the draft model's cache, see `handover`."""
        cached = _common_prefix(self._cached[slot], self._kept[slot])
        named = self.model.export_slot(slot, cached)
        return {**self._history.export(slot), **{f"cache.{k}": v for k, v in named.items()}}

    def check_slot(self, tensors: dict[str, torch.Tensor], token_ids) -> None:
        """HandoverError unless `import_slot` can take them."""
        history, cache, cached = _split(tensors)
        self._history.check(history)
        if cached > len(token_ids):
            raise HandoverError(
                f"dspark_ext.engine.handover: drafter: cache: expected at most {len(token_ids)} "
                f"positions, got {cached}"
            )
        self.model.check_slot(cache, list(token_ids)[:cached])

    def import_slot(self, slot: int, tensors: dict[str, torch.Tensor], token_ids) -> None:
        """Make what `export_slot` gave the slot's; token_ids of its positions."""
        self.check_slot(tensors, token_ids)
        history, cache, cached = _split(tensors)
        self._history.restore(slot, history)
        self._kept[slot] = list(token_ids)
        self._cached[slot] = list(token_ids)[:cached]
        self.model.import_slot(slot, cache, self._cached[slot])

    def token_ids(self, slot: int) -> list[int]:
        """The kept tokens of a request, in order."""
        return list(self._kept[slot])

    def _chained(self, batch: DraftBatch) -> list[bool]:
        """Whether a block starts from the last draft of another that is not verified: all before
        it is in the model's cache."""
        pairs = zip(batch.slots.tolist(), batch.anchor_positions.tolist(), strict=True)
        return [len(self._kept[slot]) < at == len(self._cached[slot]) for slot, at in pairs]

    def _catch_up(self, batch: DraftBatch) -> tuple[torch.Tensor, int]:
        """Take in what was kept since the last block, and the anchors; logits [B, V] behind
        these, and a length that holds them all."""
        rows: list[tuple[int, int, int]] = []  # token, position, slot
        columns = (each.tolist() for each in (batch.slots, batch.anchor_positions, batch.anchor))
        last = []
        for slot, position, anchor in zip(*columns, strict=True):
            chained = len(self._kept[slot]) < position == len(self._cached[slot])
            if position != len(self._kept[slot]) and not chained:
                raise ValueError(
                    "dspark_ext.engine.SmallModelDrafter: draft: anchor_positions: expected "
                    f"{len(self._kept[slot])} for slot {slot} (tokens appended so far), got "
                    f"{position}"
                )
            text = [*(self._cached if chained else self._kept)[slot], anchor]
            start = min(_common_prefix(self._cached[slot], text), position)
            rows += [(text[at], at, slot) for at in range(start, position + 1)]
            self._cached[slot] = text
            last.append(len(rows) - 1)
        length = 1 + max((position for _, position, _ in rows), default=0)
        widest = max(collections.Counter(slot for _, _, slot in rows).values(), default=0)
        wanted = upload(last, torch.int64)
        parts = []
        for first in range(0, len(rows), self._max_rows):
            chunk = upload(rows[first : first + self._max_rows], torch.int64)
            here = wanted[(wanted >= first) & (wanted < first + self._max_rows)] - first
            token_ids, positions, slots = chunk.t().contiguous()
            bounds = Bounds(length, widest)
            parts.append(self._forward(token_ids, positions, slots, bounds, here))
        if not parts:
            shape, device = (0, self._vocab_size), batch.anchor.device
            empty = torch.empty(shape, dtype=torch.float32, device=device)
            return empty, length
        return torch.cat(parts).to(batch.anchor.device), length

    def _step(self, slots, positions, token_ids, active, length: int) -> torch.Tensor:
        """Take in one draft of each request that has room for the next; logits [B, V], zero for
        the others."""
        rows = torch.nonzero(active)[:, 0]
        columns = token_ids[rows], positions[rows], slots[rows]
        found = self._forward(*columns, Bounds(length, 1))
        for slot, token in zip(slots[rows].tolist(), token_ids[rows].tolist()):
            self._cached[slot].append(token)
        logits = found.new_zeros(len(slots), self._vocab_size)
        logits[rows] = found.to(logits)
        return logits.to(token_ids.device)

    def _forward(self, token_ids, positions, slots, bounds, wanted=None) -> torch.Tensor:
        """Logits of rows `wanted`, all of them without. An id beyond the model's table, which is
        no token, reads its last row: nothing but acceptance depends on it."""
        token_ids = token_ids.clamp(max=self.model.vocab_size - 1)
        graphs = self._graphs if bounds.width <= self.block_size + 1 else None
        device = slots.device if graphs is None else device_of(self.model)
        rows = torch.arange(len(slots), device=device)
        if graphs is None and wanted is not None:
            rows = wanted
        columns = (each.to(device) for each in (token_ids, positions, slots))
        logits = (graphs or self.model).forward(TargetBatch(*columns, rows, bounds)).logits
        logits = logits[:, : self._vocab_size]
        if graphs is None:
            return logits
        return logits.clone() if wanted is None else logits[wanted.to(device)]


def check_tokenizers(target, draft) -> None:
    """Raises VocabularyMismatchError naming the first token that two tokenizers number otherwise.

    Anything with get_vocab() -> {token: id}.
    """
    ours, theirs = target.get_vocab(), draft.get_vocab()
    for token in sorted({*ours, *theirs}, key=lambda each: (ours.get(each, -1), each)):
        if ours.get(token) != theirs.get(token):
            raise VocabularyMismatchError(
                f"dspark_ext.engine.SmallModelDrafter: tokenizers: token {token!r} is "
                f"{ours.get(token)} for the target and {theirs.get(token)} for the draft model"
            )


def _split(tensors: dict[str, torch.Tensor]) -> tuple[dict, dict, int]:
    """History, cache, and the positions that the cache holds."""
    cache = {k.removeprefix("cache."): v for k, v in tensors.items() if k.startswith("cache.")}
    history = {k: v for k, v in tensors.items() if not k.startswith("cache.")}
    return history, cache, min((len(v) for v in cache.values() if v.dim()), default=0)


def _common_prefix(first: list[int], second: list[int]) -> int:
    """Length of it; lists that differ do so near the end of the shorter one, as a rule."""
    length = min(len(first), len(second))
    start = max(0, length - 64)
    if first[:start] != second[:start]:
        start = 0
    for place in range(start, length):
        if first[place] != second[place]:
            return place
    return length


def _certainty(logits: torch.Tensor, temperature: torch.Tensor) -> torch.Tensor:
    """Kind of a draft, int64 [B]: its distribution's highest probability, in tenths."""
    divisor = torch.where(temperature > 0, temperature, 1.0)[:, None]
    highest = (logits.float() / divisor).softmax(-1).amax(-1)
    return (highest * _CERTAINTIES).long().clamp(max=_CERTAINTIES - 1)
