"""Shape and dtype rules (fake kernels) of every operator, for torch.compile and torch.export."""

from . import attention, decoder, draft, formats, linear, moe, sampling, verify  # noqa: F401
