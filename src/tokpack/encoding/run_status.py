"""How far a run on this machine is, or was when it was stopped, from what its work folder has."""

from __future__ import annotations

import glob
import os
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from tokpack.encoding.folder import SUFFIX, WorkFolder, open_own
from tokpack.encoding.plan import Plan
from tokpack.encoding.report import NAME, parse_report
from tokpack.errors import FormatError, InputError, OutputError, ResumeError
from tokpack.files.foreign import MAX_BYTES
from tokpack.indexed import Manifest, MMapIndexedDataset
from tokpack.stores import is_url

if TYPE_CHECKING:
    from tokpack.encoding.report import Report

Condition = Literal["running", "lost", "failed", "stopped", "starting"]


@dataclass(frozen=True)
class RunStatus:
    """How a run stands that has not finished: its plan and report, None where none can be read."""

    folder: str
    plan: Plan | None
    report: Report | None

    @property
    def state(self) -> Condition:
        """``lost`` where the run has fallen silent, ``starting`` where it has said nothing yet."""
        report = self.report
        if report is None or report.state == "done":
            return "starting"
        return "lost" if report.is_lost else report.state

    @property
    def advice(self) -> str:
        """How to finish it; "" while somebody works."""
        if self.state in ("running", "starting"):
            return ""
        goes_on = self.plan is None or self.plan.is_recognizable
        way = f"the same command {'goes on where it was' if goes_on else 'begins anew'}"
        return f"once that is mended, {way}" if self.state == "failed" else way


def begun_prefix(text: str) -> str | None:
    """The prefix of a run on this machine that has begun and not finished; None for none.

    A user names the run by ``text``: its prefix, or its work folder.
    """
    for prefix in (text, text.rstrip("/").removesuffix(SUFFIX)):
        if os.path.lexists(WorkFolder(prefix + SUFFIX)("plan.json")):
            return prefix
    return None


def run_status(text: str) -> RunStatus | None:
    """The run that ``text`` names as for ``begun_prefix``, None where there is none. InputError."""
    prefix = begun_prefix(text)
    if prefix is None:
        return None
    folder = WorkFolder(prefix + SUFFIX)
    try:
        plan: Plan | None = Plan.read(folder)
    except ResumeError:
        plan = None
    except OutputError as error:  # it is not to be written here
        raise InputError(str(error)) from error
    return RunStatus(folder.path, plan, _report(folder(NAME)))


def finished(prefix: str) -> bool:
    """Whether the dataset ``prefix`` is there, or all of the run that made several."""
    if MMapIndexedDataset.exists(prefix):
        return True
    manifests = [] if is_url(prefix) else glob.glob(f"{glob.escape(prefix)}_*.json")
    several = []  # of each dataset: the keys of its run
    for name in (path.removesuffix(".json") for path in manifests):
        with suppress(InputError, FormatError):
            options = Manifest.load(name).options
            keys, is_of_key = options.get("keys"), name == f"{prefix}_{options.get('key')}"
            if not isinstance(keys, list) or "shard" in options:
                continue
            if is_of_key and MMapIndexedDataset.exists(name):
                several.append(keys)
    return any(several.count(keys) == len(keys) for keys in several)


def _report(path: str) -> Report | None:
    try:
        with open(open_own(path, os.O_RDONLY), "rb") as file:
            return parse_report(file.read(MAX_BYTES), path, os.fstat(file.fileno()).st_mtime)
    except (OSError, OutputError):
        return None
