"""The reports of shards that are being made: ``PREFIX.plan/00017.json``, see encoding/report.

A shard is done when its manifest is there, whatever its report says.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tokpack.encoding.report import BEAT_SECONDS, LOCAL_BEAT_SECONDS, RunReporter, parse_report
from tokpack.shards import storage
from tokpack.shards.plan import plan_folder, report_path
from tokpack.stores import is_url

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tokpack.encoding.report import Report
    from tokpack.indexed import Manifest
    from tokpack.progress import Show


def reporter_of(prefix: str, number: int, show: Show | None) -> RunReporter:
    """Writes the reports of a shard that this process makes, and passes progress on to ``show``."""
    path = report_path(prefix, number)
    return RunReporter(
        lambda content: storage.write(path, content),
        show,
        shard=number,
        beat=BEAT_SECONDS if is_url(prefix) else LOCAL_BEAT_SECONDS,
    )


def finish(reporter: RunReporter, made: Manifest) -> None:
    """Report that a shard is done, with its counts; nothing where it had been made before."""
    if reporter.has_told:
        reporter.end(
            "done",
            done=reporter.last.total,
            documents=made.documents,
            tokens=made.tokens,
            text_bytes=made.text_bytes,
        )


def reports(prefix: str, numbers: Sequence[int]) -> list[Report | None]:
    """The reports of some shards; None where there is none that can be understood. InputError."""
    paths = [report_path(prefix, number) for number in numbers]
    there = storage.listed(plan_folder(prefix) + "/")
    contents = storage.read_all(paths)
    return [
        parse_report(content, path, there[path].written if path in there else 0.0)
        for content, path in zip(contents, paths, strict=True)
    ]
