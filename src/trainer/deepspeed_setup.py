"""What DeepSpeed needs before it can train: a known release, and a machine that is ready."""

from __future__ import annotations

import logging
import os
import sys
import warnings
from typing import TYPE_CHECKING, Any

import torch.distributed as dist

from tokpack.errors import UsageError

from .parallel import group_of_one

if TYPE_CHECKING:
    from .parallel import Topology

# Other releases, from 0.16 on, silently compute wrong gradients in a pipeline.
FIRST, BEFORE = (0, 19, 3), (0, 20)


def open_library(topology: Topology) -> Any:
    """DeepSpeed, ready for this machine. Raises UsageError for an unknown release."""
    cuda = topology.device.type == "cuda"
    os.environ.setdefault("DS_ACCELERATOR", "cuda" if cuda else "cpu")
    import deepspeed

    release = tuple(map(int, deepspeed.__version__.split("+")[0].split(".")[:3]))
    if not FIRST <= release < BEFORE:
        first, before = (".".join(map(str, numbers)) for numbers in (FIRST, BEFORE))
        raise UsageError(
            f"deepspeed is {deepspeed.__version__}, expected at least {first} and before {before}: "
            "others may train pipelines with wrong gradients"
        )
    logger = deepspeed.utils.logger
    logger.setLevel("WARNING" if topology.is_main else "ERROR")  # mostly all ranks say the same
    for handler in logger.handlers:  # to stderr: lines on stdout, which is buffered, come too late
        if isinstance(handler, logging.StreamHandler):
            handler.setStream(sys.stderr)
    for name in ("all_gather_into_tensor", "reduce_scatter_tensor"):
        warnings.filterwarnings("ignore", f".*{name}", FutureWarning)
    if not cuda:
        # A CPU may emulate fp16, which is slow but correct, so that scripts can be tried.
        deepspeed.accelerator.get_accelerator().is_fp16_supported = lambda: True
        # Every rank would compile this, and wait for ever for a lock that a killed run has left.
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    if not dist.is_initialized():
        group_of_one(topology.device)
        os.environ.setdefault("LOCAL_RANK", "0")
    deepspeed.init_distributed(dist_init_required=False)
    return deepspeed
