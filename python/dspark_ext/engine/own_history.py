"""Confidences from what happened to a request's own earlier drafts."""

from collections.abc import Mapping, Sequence

import torch

from .request_state import HandoverError, take


class OwnHistory:
    """P(x_k accepted | x_1 .. x_{k-1} accepted) by request and kind of draft.

    A drafter sorts its drafts into kinds by something it knows before it draws them: the length of
    a match, the certainty of a distribution. A request's estimate for a kind starts at `prior` and
    moves with the verified drafts of that kind:

        c = (accepted + prior_weight * prior) / (reached + prior_weight)

    "reached" counts drafts that were verified with all before them accepted. Counts are forgotten
    exponentially: each further observation of a kind weighs the older ones by `decay`.

    Lossless: the confidences of a block are made of the kinds of its drafts and of blocks verified
    before it. A request's depend on no other request, so a seed's tokens do not depend on the batch
    where the schedule looks at confidences either.

    num_slots  requests at a time
    prior      acceptance by kind, [kinds]
    """

    def __init__(
        self, num_slots: int, prior: torch.Tensor, prior_weight: float = 4.0, decay: float = 0.97
    ) -> None:
        self._prior = prior.double()
        self._prior_weight, self._decay = prior_weight, decay
        self._reached = torch.zeros(num_slots, len(prior), dtype=torch.float64, device="cpu")
        self._accepted = torch.zeros_like(self._reached)
        self._kinds: list[list[int]] = [[] for _ in range(num_slots)]

    def reset(self, slot: int) -> None:
        """Another request takes the slot."""
        self._reached[slot] = 0
        self._accepted[slot] = 0
        self._kinds[slot] = []

    def export(self, slot: int) -> dict[str, torch.Tensor]:
        """The counts of a request, by name: fp64 [kinds] each."""
        return {"reached": self._reached[slot].clone(), "accepted": self._accepted[slot].clone()}

    def check(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """HandoverError unless `restore` can take them."""
        counts = dict.fromkeys(("reached", "accepted"), (torch.float64, self._prior.shape))
        reached, accepted = take(tensors, counts, "drafter")
        if not bool(((accepted >= 0) & (accepted <= reached) & reached.isfinite()).all()):
            raise HandoverError(
                "dspark_ext.engine.handover: drafter: accepted: expected counts from 0 to reached"
            )

    def restore(self, slot: int, tensors: Mapping[str, torch.Tensor]) -> None:
        """Take over counts that `export` gave."""
        self.check(tensors)
        self.reset(slot)
        self._reached[slot], self._accepted[slot] = tensors["reached"], tensors["accepted"]

    def confidence(
        self, slots: torch.Tensor, kinds: torch.Tensor, chained: Sequence[bool] | None = None
    ) -> torch.Tensor:
        """fp32 [B, K] of drafts of these kinds, int64 [B, K], the block that `observe` will be told
        of; -1 = no draft, 0. A `chained` block is told of together with the one before."""
        chained = [False] * len(slots) if chained is None else chained
        for slot, row, behind in zip(slots.tolist(), kinds.tolist(), chained, strict=True):
            self._kinds[slot] = self._kinds[slot] + row if behind else row
        index = kinds.clamp(min=0)
        weight = self._prior_weight
        reached = self._reached[slots].gather(1, index)
        accepted = self._accepted[slots].gather(1, index)
        found = (accepted + weight * self._prior[index]) / (reached + weight)
        return torch.where(kinds < 0, 0.0, found).float()

    def observe(
        self, slots: torch.Tensor, verify_lens: torch.Tensor, num_accepted: torch.Tensor
    ) -> None:
        """Of each request's last blocks, how many drafts were verified and accepted."""
        columns = (each.tolist() for each in (slots, verify_lens, num_accepted))
        for slot, verified, accepted in zip(*columns, strict=True):
            for place, kind in enumerate(self._kinds[slot][:verified]):
                if place > accepted or kind < 0:
                    break
                self._reached[slot, kind] = self._reached[slot, kind] * self._decay + 1
                self._accepted[slot, kind] *= self._decay
                self._accepted[slot, kind] += place < accepted
            self._kinds[slot] = []
