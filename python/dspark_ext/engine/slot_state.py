"""What a cache holds of one request, as named tensors: to copy out, to check, to put back."""

from collections.abc import Mapping, Sequence

import torch

from .request_state import take


def flat_stores(
    keys: Mapping[int, torch.Tensor] | Sequence[torch.Tensor],
    values: Mapping[int, torch.Tensor] | Sequence[torch.Tensor],
) -> dict[str, torch.Tensor]:
    """Stores [S, L, ...] of layers as `keys.0`, `values.0`, ...: views [S * L, ...]."""
    named = {}
    for name, stores in (("keys", keys), ("values", values)):
        layers = sorted(stores) if isinstance(stores, Mapping) else range(len(stores))
        named.update({f"{name}.{layer}": stores[layer].flatten(0, 1) for layer in layers})
    return named


def copy_out(stores: Mapping[str, torch.Tensor], cells: torch.Tensor) -> dict[str, torch.Tensor]:
    """Cells int64 [n] of each store, on the CPU."""
    return {name: store[cells.to(store.device)].cpu() for name, store in stores.items()}


def check_rows(
    stores: Mapping[str, torch.Tensor], tensors: Mapping[str, torch.Tensor], count: int, part: str
) -> None:
    """HandoverError unless `tensors` are `count` rows of each store."""
    expected = {name: (store.dtype, (count, *store.shape[1:])) for name, store in stores.items()}
    take(tensors, expected, part)


def copy_in(
    stores: Mapping[str, torch.Tensor], cells: torch.Tensor, tensors: Mapping[str, torch.Tensor]
) -> None:
    """The opposite of `copy_out`."""
    for name, store in stores.items():
        store[cells.to(store.device)] = tensors[name].to(store.device)
