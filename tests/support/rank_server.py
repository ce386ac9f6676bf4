"""A server that has torch and DeepSpeed loaded: processes forked from it begin at once."""

from __future__ import annotations

import multiprocessing as mp
import os
import sys
from multiprocessing import forkserver
from typing import TYPE_CHECKING
from unittest.mock import patch

if TYPE_CHECKING:
    from multiprocessing.context import ForkServerContext

# What a run imports until its end, which takes seconds of every process.
LOADED = [
    "tokpack.trainer.config.flags",
    "tokpack.trainer.engine_torch",
    "tokpack.trainer.engine_ds",
    "tokpack.trainer.loop",
    "torch.utils.tensorboard",
    "torch.profiler._cupti_monitor",
    "torch.distributed.run",
    "torch._dynamo",
    "torch._inductor.compile_fx",
    "torch.nn.attention.flex_attention",
    "deepspeed",
    "deepspeed.comm.mori",
    "deepspeed.runtime.zero.stage3",
    "deepspeed.runtime.pipe.engine",
    "deepspeed.module_inject.auto_ep_layer",
    "deepspeed.ops.op_builder.all_ops",
    "deepspeed.runtime.zero.muon.muon_optimizer",
    "deepspeed.runtime.superoffload.superoffload_stage3",
    "distutils.unixccompiler",
    "encodings.idna",
    "numpy.ctypeslib",
    "support.frozen",
]
_ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "DS_ACCELERATOR": "cpu",
    # Each rank would begin others that import torch too, to compile a few small kernels.
}


def server() -> ForkServerContext:
    """The context of the server's processes; the first call starts it."""
    context = mp.get_context("forkserver")
    context.set_forkserver_preload(LOADED)
    # Processes have the environment of their server, and load helpers from its path.
    path = os.pathsep.join(filter(None, sys.path))
    with patch.dict(os.environ, {**_ENVIRONMENT, "PYTHONPATH": path}):
        forkserver.ensure_running()
    return context
