"""Lossless DSpark speculative decoding as one PyTorch extension."""

import torch  # noqa: F401  (loads the libraries that _C links against)

from . import _C, _fake  # _C registers torch.ops.dspark_ext
