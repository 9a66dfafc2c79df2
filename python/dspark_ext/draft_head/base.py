"""What every draft head does: take in features of verified tokens, and draft a block."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .. import draft
from .._recording import reads_values
from .config import DraftHeadConfig
from .context import BlockView, DraftContext
from .names import stays_float32
from .quantized import FLOAT_DTYPES
from .state import ContextState


class BlockDraft(NamedTuple):
    """n drafts for each of B requests.

    token_ids   int64 [B, n], x_1..x_n, target ids
    logits      [B, n, V]: exactly what each id was drawn from, before the temperature
    statistics  of the logits, those that the draws went by; see `draft.markov_sample`
    confidence  float32 [B, n], P(x_k accepted | x_1..x_{k-1} accepted); None without such a head
    """

    token_ids: Tensor
    logits: Tensor
    statistics: draft.RowStatistics
    confidence: Tensor | None


class DSparkDraftHead(nn.Module):
    """A DSpark draft model: backbone, Markov head, confidence head, and the context they read.

    state_dict() has the names and shapes of the released checkpoints. One class per family:
    `DeepSeekV41DraftHead`, `DeepSeekV4DraftHead`, `Qwen3DraftHead`, `Gemma4DraftHead`;
    `make_draft_head` picks it by the config's flavour.

    Before drafting: `bind_target` shares the target's embedding and output matrix, and
    `allocate_context` makes the slots. Then, per round, `append` takes the features of the tokens
    that were verified and kept, and `draft` proposes.

    dtype  of weights and activations; norms, hyper-connections, routing and confidence are float32.
           `to`, `half` and the like change it, and leave what is float32 as it is
    """

    # Names of state_dict() that a checkpoint may leave out.
    optional_names: Sequence[str] = ()

    def __init__(
        self, config: DraftHeadConfig, *, dtype: torch.dtype = torch.bfloat16, device=None
    ) -> None:
        super().__init__()
        if dtype not in FLOAT_DTYPES.values():
            names = ", ".join(str(each).removeprefix("torch.") for each in FLOAT_DTYPES.values())
            raise ValueError(f"dspark_ext.draft_head: dtype: expected one of {names}, got {dtype}")
        self.config, self.dtype = config, dtype
        self.context: DraftContext | None = None

    # --- what a family provides ---

    def context_entries(self) -> dict[str, tuple[int, ...]]:
        """Name -> shape of what a layer keeps per token."""
        raise TypeError(f"{type(self).__name__} is abstract; see make_draft_head")

    def combine(self, features: Tensor) -> Tensor:
        """Features [T, F] of verified tokens -> rows [T, d] that every layer reads as context."""
        raise TypeError(f"{type(self).__name__} is abstract; see make_draft_head")

    def context_rows(self, combined: Tensor, positions: Tensor) -> dict[str, Tensor]:
        """Rows [T, d] of `combine` at `positions` [T] -> name -> [num_layers, T, ...]."""
        raise TypeError(f"{type(self).__name__} is abstract; see make_draft_head")

    def backbone(self, embedded: Tensor, positions: Tensor, view: BlockView) -> Tensor:
        """Embedded inputs [B, R, d] at `positions` [B, R] -> rows [B, R, d] before the norm.

        `view`: a `BlockView`, or in training anything else with its two methods."""
        raise TypeError(f"{type(self).__name__} is abstract; see make_draft_head")

    def embed(self, token_ids: Tensor) -> Tensor:
        """Embeddings of target ids, in `dtype`."""
        return F.embedding(token_ids, self.embedding_weight).to(self.dtype)

    def base_logits(self, normed: Tensor) -> Tensor:
        """[..., V_draft] of rows after the final norm, before any Markov bias."""
        weight = self.output_weight
        return F.linear(normed.to(weight.dtype), weight)

    # --- context ---

    def allocate_context(
        self, max_requests: int, max_len: int, *, max_rollback: int = 16
    ) -> DraftContext:
        """Make `context` for so many requests of so many positions; see `DraftContext`."""
        config = self.config
        self._check_bound("allocate_context")
        self.context = DraftContext(
            config.flavour,
            config.num_layers,
            self.context_entries(),
            window=config.window,
            max_requests=max_requests,
            max_len=max_len,
            max_rollback=max_rollback,
            dtype=self.dtype,
            device=self.embedding_weight.device,
        )
        return self.context

    @torch.no_grad()
    def append(self, features: Tensor, positions: Tensor, slots: Tensor) -> None:
        """Take in tokens that the target has computed and that are kept, of any requests.

        features   [T, F], the rows' features at the layers of `config.feature_layers`, side by side
        positions  int64 [T]
        slots      int64 [T]; -1 = padding, ignored

        A prompt may come in chunks. Rows of rejected drafts must be left out or given slot -1.
        """
        expected = self.config.num_features
        if features.dim() != 2 or features.shape[1] != expected:
            raise ValueError(
                f"dspark_ext.draft_head: append: features: expected [T, {expected}], got "
                f"{list(features.shape)}"
            )
        context = self._context()
        context.check_rows(len(features), positions, slots)
        combined = self.combine(features.to(self.dtype))
        context.append(self.context_rows(combined, positions), positions, slots)

    def truncate(self, slots: Tensor, lengths: Tensor) -> None:
        """Roll requests back to `lengths` positions; see `DraftContext.truncate`."""
        self._context().truncate(slots, lengths)

    def export_state(self, slot: int) -> ContextState:
        """The context of one request, for another process; see `DraftContext.export_state`."""
        return self._context().export_state(slot)

    def import_state(self, slot: int, state: ContextState) -> None:
        """Continue a request here; see `DraftContext.import_state`."""
        self._context().import_state(slot, state)

    # --- drafting ---

    @torch.no_grad()
    def draft(
        self,
        anchor: Tensor,
        positions: Tensor,
        slots: Tensor,
        *,
        temperature: Tensor | float,
        seeds: Tensor | int,
        num_drafts: int | None = None,
        method: str = "probabilistic",
        block_drafts: int | None = None,
        exact: bool = False,
        confidence_temperatures: Tensor | None = None,
    ) -> BlockDraft:
        """Propose `num_drafts` tokens per request.

        anchor        int64 [B], x_0, the last emitted token
        positions     int64 [B], its position P; all positions before it were appended
        slots         int64 [B]; -1 = a padding request: it sees no context
        temperature   float32 [B] or a number, 0 = argmax; seeds int64 [B] or a number
        num_drafts    n >= 0; default the trained K
        method        "probabilistic" or "greedy", as in `draft.markov_sample`
        block_drafts  drafts that the block holds, >= n; default max(n, trained K). Rows attend to
                      the whole block, so with the default the first of fewer drafts are those of
                      the trained block. More than the trained K are proposals the model was not
                      trained for; less make the block smaller than trained, which a released
                      checkpoint does not draft well with. Neither changes the law of the output.
        exact         as in `draft.markov_sample`
        confidence_temperatures  float32 [n], as in `draft.confidence`
        """
        config = self.config
        count = config.trained_drafts if num_drafts is None else num_drafts
        block = max(count, config.trained_drafts) if block_drafts is None else block_drafts
        if count < 0:
            raise ValueError(
                f"dspark_ext.draft_head: draft: num_drafts: expected at least 0, got {count}"
            )
        if block < max(count, 1):
            raise ValueError(
                f"dspark_ext.draft_head: draft: block_drafts: expected at least num_drafts "
                f"{count} and 1, got {block}"
            )
        hidden = self.block_hidden(anchor, positions, slots, block)[:, :count]
        normed = self.norm(hidden)
        state = self.head_state(hidden, normed)
        drawn = draft.markov_sample(
            self.base_logits(normed),
            anchor,
            **self.markov.arguments(state),
            method=method,
            temperature=temperature,
            seeds=seeds,
            positions=positions + 1,
            d2t=self.d2t,
            exact=exact,
            vocab_size=config.vocab_size,
        )
        confidence = None
        if self.confidence is not None:
            confidence = self.confidence(state, drawn.prev_embed, confidence_temperatures)
        return BlockDraft(drawn.token_ids, drawn.logits, drawn.statistics, confidence)

    @torch.no_grad()
    def block_hidden(self, anchor: Tensor, positions: Tensor, slots: Tensor, drafts: int) -> Tensor:
        """[B, drafts, d], before the final norm: the row that proposes x_k at index k - 1."""
        config = self.config
        self._check_bound("draft")
        self._check_requests(anchor, positions, slots)
        anchor, positions, slots = (each.long() for each in (anchor, positions, slots))
        rows = drafts if config.sample_from_anchor else drafts + 1
        token_ids = anchor.new_full((len(anchor), rows), config.mask_token)
        token_ids[:, 0] = anchor
        places = positions[:, None] + torch.arange(rows, device=positions.device)
        view = self._context().view(slots, positions)
        hidden = self.backbone(self.embed(token_ids), places, view)
        return hidden[:, rows - drafts :]

    def head_state(self, hidden: Tensor, normed: Tensor) -> Tensor:
        """What the Markov and confidence heads read, of the rows before and after the norm."""
        raise TypeError(f"{type(self).__name__} is abstract; see make_draft_head")

    def _apply(self, fn, recurse: bool = True):
        """Moves the module. A cast is one of `dtype`."""
        named = (*self.named_parameters(), *self.named_buffers())
        kept = {id(tensor) for name, tensor in named if stays_float32(name)}

        def move(tensor: Tensor) -> Tensor:
            moved = fn(tensor)
            return tensor.to(moved.device) if id(tensor) in kept else moved

        self.dtype = fn(torch.empty(0, dtype=self.dtype)).dtype
        return super()._apply(move, recurse)

    def _check_bound(self, call: str) -> None:
        """Operators of torch read a meta tensor among others as if it had memory."""
        place = self.norm.weight.device
        for weight in (self.embedding_weight, self.output_weight):
            if weight is None or weight.is_meta and place.type != "meta":
                raise RuntimeError(
                    f"dspark_ext.draft_head: {call}: bind_target has not been called, and the "
                    f"checkpoint has not both the embedding and the output matrix"
                )

    def _context(self) -> DraftContext:
        if self.context is None:
            raise RuntimeError("dspark_ext.draft_head: allocate_context has not been called")
        return self.context

    def _check_requests(self, anchor: Tensor, positions: Tensor, slots: Tensor) -> None:
        given = {"anchor": anchor, "positions": positions, "slots": slots}
        for name, values in given.items():
            is_integer = not values.is_floating_point() and values.dtype != torch.bool
            if values.shape != anchor.shape or values.dim() != 1 or not is_integer:
                raise ValueError(
                    f"dspark_ext.draft_head: draft: {name}: expected int64 [B={len(anchor)}], got "
                    f"{str(values.dtype).removeprefix('torch.')} {list(values.shape)}"
                )
        if not reads_values(anchor):
            return
        strange = anchor[(anchor < 0) | (anchor >= self.config.vocab_size)]
        if len(strange):
            raise ValueError(
                f"dspark_ext.draft_head: draft: anchor: expected ids in [0, "
                f"{self.config.vocab_size}), got {int(strange[0])}"
            )

    def _check_target(self, embedding: Tensor, output: Tensor) -> None:
        config = self.config
        for name, weight in (("embedding", embedding), ("lm_head_weight", output)):
            expected = [config.vocab_size, config.hidden_size]
            if not isinstance(weight, Tensor) or not weight.is_floating_point():
                found = weight.dtype if isinstance(weight, Tensor) else type(weight).__name__
                raise ValueError(
                    f"dspark_ext.draft_head: bind_target: {name}: expected a float tensor "
                    f"{expected}, got {str(found).removeprefix('torch.')}"
                )
            if list(weight.shape) != expected:
                raise ValueError(
                    f"dspark_ext.draft_head: bind_target: {name}: expected shape {expected}, got "
                    f"{list(weight.shape)}"
                )
