"""Rows of a folder of chunks, and the batch of a step as a pure function of seed and step."""

from __future__ import annotations

import hashlib
import random
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from target_samples import CHUNKS, Chunk
from torch import Tensor

from .settings import Settings, SettingsError


@dataclass
class Batch:
    """R rows, A anchors each, K drafts per anchor."""

    features: Tensor  # [R, T, taps*d] bf16, zero after a row's end
    anchor_positions: Tensor  # [R, A]
    token_ids: Tensor  # [R, A, K+1]: the anchor and what followed it
    target_hidden: Tensor  # [R, A, K, d] bf16: what predicts each of the K tokens
    target_logsumexp: Tensor  # [R, A, K]
    valid: Tensor  # [R, A, K]: the row reaches that far


class Samples:
    """The rows of a folder, in the order of its files."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.chunks = [_open(path) for path in sorted(folder.glob(CHUNKS))]
        self.index = [(chunk, i) for chunk in self.chunks for i in range(len(chunk.rows))]
        if not self.index:
            raise SettingsError(f"{folder}: no samples (chunk*.safetensors); see `sample`")
        self._epoch, self._order = -1, []

    @property
    def num_tokens(self) -> int:
        return sum(row["length"] for chunk in self.chunks for row in chunk.rows)

    @property
    def num_features(self) -> int:
        return self.chunks[0].features.get_shape()[1]

    @property
    def hidden_size(self) -> int:
        return self.chunks[0].hidden.get_shape()[1]

    def check_target(self, hidden_size: int, vocab_size: int) -> None:
        """Raises SettingsError for samples of another target, as far as sizes tell."""
        most = max(int(chunk.tokens.max()) for chunk in self.chunks)
        findings = []
        if self.hidden_size != hidden_size:
            findings.append(f"rows of hidden size {self.hidden_size}, the target has {hidden_size}")
        if most >= vocab_size:
            findings.append(f"a token {most}, the target's vocabulary has {vocab_size}")
        if findings:
            raise SettingsError(f"{self.folder}: " + "; ".join(findings))

    def prompts(self):
        return (row["prompt"] for chunk in self.chunks for row in chunk.rows)

    def fingerprint(self) -> str:
        """Of the tokens in their order."""
        digest = hashlib.sha256()
        for chunk in self.chunks:
            digest.update(chunk.tokens.numpy().tobytes())
        return digest.hexdigest()[:16]

    def token_counts(self, vocab_size: int) -> Tensor:
        """How often each token occurs inside responses."""
        counts = torch.zeros(vocab_size, dtype=torch.int64)
        for chunk, i in self.index:
            tokens = chunk.row_tokens(i)[chunk.rows[i]["response_start"] :]
            counts += torch.bincount(tokens, minlength=vocab_size)
        return counts

    def batch(self, step: int, settings: Settings, num_drafts: int) -> Batch:
        """Of one step. Nothing is remembered between steps, so a run can start at any of them."""
        first = step * settings.rows_per_step
        rows = [self._row(first + i, settings.seed) for i in range(settings.rows_per_step)]
        generator = random.Random(f"anchors {settings.seed} {step}")
        anchors = []
        for row in rows:
            start, end = row["response_start"], row["length"]
            drawn = (generator.randrange(start, end) for _ in range(settings.anchors_per_row))
            anchors.append(sorted(drawn))
        return collate(rows, torch.tensor(anchors), num_drafts)

    def _row(self, place: int, seed: int) -> dict:
        """Row `place` of an endless sequence of epochs, each in an order of its own."""
        epoch, place = divmod(place, len(self.index))
        if epoch != self._epoch:
            self._epoch, self._order = epoch, list(range(len(self.index)))
            random.Random(f"order {seed} {epoch}").shuffle(self._order)
        chunk, i = self.index[self._order[place]]
        return chunk.row(i)


def check_samples(samples: Samples, trainee) -> None:
    """Raises SettingsError for samples of another target than a head's."""
    if samples.num_features != trainee.num_features:
        raise SettingsError(
            f"{samples.folder}: rows of {samples.num_features} features, the head reads "
            f"{trainee.num_features}"
        )
    config = trainee.head.config
    samples.check_target(config.hidden_size, config.vocab_size)


def _open(path: Path) -> Chunk:
    """A chunk whose rows are all there, each with an answer."""
    try:
        chunk = Chunk(path)
        for number, row in enumerate(chunk.rows):
            if not 0 <= row["response_start"] < row["length"]:
                raise ValueError(
                    f"row {number}: expected an answer within {row['length']} tokens, got one "
                    f"from {row['response_start']} on"
                )
        length, count = sum(row["length"] for row in chunk.rows), len(chunk.rows)
        sizes = {
            "tokens": (len(chunk.tokens), length + count),
            "features": (chunk.features.get_shape()[0], length),
            "hidden": (chunk.hidden.get_shape()[0], length),
            "logsumexp": (len(chunk.logsumexp), length),
        }
        for name, (found, expected) in sizes.items():
            if found != expected:
                raise ValueError(f"{name}: expected {expected} of {count} rows, got {found}")
        if count and int(chunk.tokens.min()) < 0:
            raise ValueError(f"tokens: expected ids, got {int(chunk.tokens.min())}")
        return chunk
    except (SafetensorError, OSError, KeyError, TypeError, ValueError) as error:
        text = f"missing {error}" if isinstance(error, KeyError) else error
        raise SettingsError(f"{path}: no chunk of samples: {text}") from None


def collate(rows: list[dict], anchors: Tensor, num_drafts: int) -> Batch:
    """The batch of `anchors` [R, A], positions in `rows`."""
    length = int(anchors.max())
    width = rows[0]["features"].shape[1]
    features = torch.zeros(len(rows), length, width, dtype=torch.bfloat16)
    token_ids, hidden, logsumexp, valid = [], [], [], []
    for row, positions, padded in zip(rows, anchors, features, strict=True):
        used = min(length, row["length"])
        padded[:used] = row["features"][:used]
        reached = positions[:, None] + torch.arange(num_drafts + 1)
        token_ids.append(row["tokens"][reached.clamp(max=row["length"])])
        predicting = reached[:, :-1].clamp(max=row["length"] - 1)
        hidden.append(row["hidden"][predicting])
        logsumexp.append(row["logsumexp"][predicting])
        valid.append(reached[:, :-1] < row["length"])
    return Batch(features, anchors, *map(torch.stack, (token_ids, hidden, logsumexp, valid)))
