"""From documents to a dataset: plan, parts, commit."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from tokpack.encoding.options import EncodeOptions, megatron_names, worker_count
from tokpack.progress import Progress

if TYPE_CHECKING:
    from tokpack.encoding.choose import importable_name
    from tokpack.encoding.columns import columns_in_process
    from tokpack.encoding.folder import UNFINISHED_SUFFIX
    from tokpack.encoding.part import first_batches, without_records
    from tokpack.encoding.publish import REJECTS_KIND, rejects_path
    from tokpack.encoding.request import EncodeRequest, PlanRequest
    from tokpack.encoding.resume import check_budget
    from tokpack.encoding.run import encode, encode_planned, ends_on_sigterm
    from tokpack.encoding.setup import TokenizerSetup, described, load_setup

__all__ = [
    "REJECTS_KIND",
    "UNFINISHED_SUFFIX",
    "EncodeOptions",
    "EncodeRequest",
    "PlanRequest",
    "Progress",
    "TokenizerSetup",
    "check_budget",
    "columns_in_process",
    "described",
    "encode",
    "encode_planned",
    "ends_on_sigterm",
    "first_batches",
    "importable_name",
    "load_setup",
    "megatron_names",
    "rejects_path",
    "without_records",
    "worker_count",
]

# The options alone are light, and the command line needs them; the rest is loaded when it is asked
# for.
_MODULES = {
    "importable_name": "choose",
    "columns_in_process": "columns",
    "UNFINISHED_SUFFIX": "folder",
    "first_batches": "part",
    "without_records": "part",
    "REJECTS_KIND": "publish",
    "rejects_path": "publish",
    "EncodeRequest": "request",
    "PlanRequest": "request",
    "check_budget": "resume",
    "encode": "run",
    "encode_planned": "run",
    "ends_on_sigterm": "run",
    "TokenizerSetup": "setup",
    "described": "setup",
    "load_setup": "setup",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
