"""Whether a drafter fits a target and the settings."""

from .config import SpeculativeConfig, check_positions
from .drafter import Drafter
from .target import Target


def num_drafts(config: SpeculativeConfig, drafter: Drafter) -> int:
    """Drafts per block."""
    wanted = config.num_speculative_tokens
    if wanted is not None and wanted > drafter.block_size:
        raise ValueError(
            "dspark_ext.engine: num_speculative_tokens: expected at most the drafter's block of "
            f"{drafter.block_size}, got {wanted}"
        )
    return drafter.block_size if wanted is None else wanted


def check_pair(target: Target, drafter: Drafter, config: SpeculativeConfig) -> None:
    """ValueError naming what does not fit."""
    names = ["max_requests", "max_len"]
    if drafter.num_features:
        names.append("num_features")
    for name in names:
        if getattr(target, name) != getattr(drafter, name):
            raise ValueError(
                f"dspark_ext.engine: drafter: expected the target's {name} "
                f"{getattr(target, name)}, got {getattr(drafter, name)}"
            )
    made_for = getattr(drafter, "method", None)
    if None not in (config.method, made_for) and config.method != made_for:
        raise ValueError(
            f"dspark_ext.engine: method: the settings say {config.method!r}, the drafter is "
            f"{made_for!r}"
        )
    reason = getattr(drafter, "chain_obstacle", "no chains_blocks")
    if config.blocks_per_step > 1 and not getattr(drafter, "chains_blocks", False):
        raise ValueError(
            f"dspark_ext.engine: blocks_per_step: {type(drafter).__name__} cannot draft behind a "
            f"block that is not verified yet ({reason}): expected 1, got {config.blocks_per_step}"
        )
    check_positions(config, num_drafts(config, drafter))
