"""Which RoPE a target can serve."""

from .target import unsupported


def check_rope(owner: str, model, config, max_len: int) -> None:
    """UnsupportedModelError for frequencies that would follow the longest request of a pass: those
    of types dynamic and longrope do beyond the length they were made for."""
    rope = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    kind = rope.get("rope_type", rope.get("type")) if isinstance(rope, dict) else None
    if kind not in ("dynamic", "longrope"):
        return
    limit = rope.get("original_max_position_embeddings")
    limit = limit or getattr(config, "original_max_position_embeddings", None)
    limit = limit or config.max_position_embeddings
    if max_len > limit:
        raise unsupported(
            owner,
            model,
            f"its RoPE is of type {kind}, whose frequencies change with the longest request of a "
            f"pass beyond {limit} positions: expected max_len at most {limit}, got {max_len}",
        )
