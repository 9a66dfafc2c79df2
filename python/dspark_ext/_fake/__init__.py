"""Shape and dtype rules (fake kernels) of every operator, for torch.compile and torch.export."""

from . import (  # noqa: F401
    attention,
    decoder,
    draft,
    experts,
    formats,
    linear,
    moe,
    router,
    sampling,
    verify,
)
