"""Any `DSparkDraftHead` as the engine's drafter."""

import functools

import torch

from ..draft_head import ContextState, DraftHeadConfig, DSparkDraftHead
from .capture_check import drafter_obstacle
from .drafter import Draft, DraftBatch
from .identity import fingerprint
from .request_state import HandoverError


class HeadDrafter:
    """Serve a draft head of any flavour.

    head          bound to its target, its weights loaded. It gets a context of this drafter's own,
                  so that several drafters of one target may serve one head, by turns
    max_requests  cache slots, the target's
    max_len       positions per slot, the target's
    block_size    most drafts per block; default what the head was trained for. More is possible
                  and drafts less well from there on.

    The head's matrix products may round a row differently with the rows beside it, so the drafts of
    a seed, and with them its tokens, may depend on the batch; their law does not.
    """

    method = "dspark"
    chain_obstacle = "its context takes in verified tokens alone"

    def __init__(
        self,
        head: DSparkDraftHead,
        *,
        max_requests: int,
        max_len: int,
        block_size: int | None = None,
    ) -> None:
        self.head = head
        self.block_size = head.config.trained_drafts if block_size is None else block_size
        if not isinstance(self.block_size, int) or self.block_size < 1:
            raise ValueError(
                f"dspark_ext.engine.HeadDrafter: block_size: expected an integer >= 1, got "
                f"{block_size!r}"
            )
        self.num_features = head.config.num_features
        self.max_requests = max_requests
        self.max_len = max_len
        self._context = head.allocate_context(max_requests, max_len)
        self._empty = head.export_state(0)
        self.identity = {
            "class": type(self).__name__,
            "weights": fingerprint(head),
            **self._empty.header,
        }

    @classmethod
    def for_target(
        cls, head: DSparkDraftHead, target, block_size: int | None = None
    ) -> "HeadDrafter":
        """A drafter that shares the embedding, the output matrix and the sizes of `target`."""
        head.bind_target(target.embedding, target.lm_head_weight)
        return cls(
            head,
            max_requests=target.max_requests,
            max_len=target.max_len,
            block_size=block_size,
        )

    @functools.cached_property
    def capture_obstacle(self) -> str | None:
        """Why drafts cannot be captured as a graph, None if they can; see `capture_check`."""
        return drafter_obstacle(self, self.head.embedding_weight.device)

    @property
    def capturable(self) -> bool:
        """Whether drafts can be captured as graphs."""
        return self.capture_obstacle is None

    def append(
        self,
        features: torch.Tensor,
        positions: torch.Tensor,
        slots: torch.Tensor,
        token_ids: torch.Tensor | None = None,
    ) -> None:
        """See `Drafter.append`; token_ids are not read."""
        self._own_head().append(features, positions, slots)

    def draft(self, batch: DraftBatch, num_drafts: int, method: str) -> Draft:
        """See `Drafter.draft`; without a confidence head every draft counts as certain."""
        drawn = self._own_head().draft(
            batch.anchor,
            batch.anchor_positions,
            batch.slots,
            temperature=batch.temperature,
            seeds=batch.seeds,
            num_drafts=num_drafts,
            method=method,
        )
        confidence = drawn.confidence
        if confidence is None:
            confidence = torch.ones_like(drawn.token_ids, dtype=torch.float32)
        if method == "greedy":
            return Draft(drawn.token_ids, None, confidence)
        return Draft(drawn.token_ids, drawn.logits, confidence, drawn.statistics)

    def export_slot(self, slot: int, length: int) -> dict[str, torch.Tensor]:
        """What a block at position `length` sees of its context, see `handover`."""
        state = self._own_head().export_state(slot)
        return {"positions": state.positions, **state.tensors}

    def check_slot(self, tensors: dict[str, torch.Tensor], token_ids) -> None:
        """HandoverError unless `import_slot` can take them."""
        state, like = self._state(tensors), self._empty.tensors
        layers = {name: tensor.shape[0] for name, tensor in like.items()}
        entries = {name: tuple(tensor.shape[2:]) for name, tensor in like.items()}
        try:
            state.check(self._empty.header, layers, entries)
        except ValueError as error:
            raise HandoverError(str(error)) from None
        if state.length != len(token_ids):
            raise HandoverError(
                f"dspark_ext.engine.handover: drafter: positions: expected {len(token_ids)} of the "
                f"request, got {state.length}"
            )

    def import_slot(self, slot: int, tensors: dict[str, torch.Tensor], token_ids) -> None:
        """Make what `export_slot` gave the slot's; token_ids of its positions."""
        self.check_slot(tensors, token_ids)
        self._own_head().import_state(slot, self._state(tensors))

    def _own_head(self) -> DSparkDraftHead:
        if self.head.context is not self._context:
            self.head.context = self._context
        return self.head

    def _state(self, tensors: dict[str, torch.Tensor]) -> ContextState:
        named = dict(tensors)
        positions = named.pop("positions", torch.empty(0, device="cpu"))
        return ContextState(self._empty.header, positions, named)


def output_taps(config: DraftHeadConfig) -> list[int]:
    """The features of a head as outputs of decoder layers, for `HuggingFaceTarget`'s `taps`.

    The input of layer l is the output of layer l - 1; -1 is the embedding, which is no tap there.
    A target with hyper-connections must average its copies (`draft_head.mean_of_copies`).
    """
    shift = 1 if config.features_from == "inputs" else 0
    return [layer - shift for layer in config.feature_layers]
