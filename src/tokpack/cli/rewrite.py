"""What merge, split and convert share: a progress line, and what they say at the end."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from tokpack.cli.parser import flag
from tokpack.cli.terminal import bytes_text, say, time_text

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tokpack.cli.terminal import Reporter
    from tokpack.indexed import Manifest

OVERWRITE = flag("--overwrite", action="store_true", help="replace what is there")
JSON = flag("--json", action="store_true", help="print what was made as JSON on stdout")


def meter(stage: str, report: Reporter) -> Callable[[int, int], None]:
    """Turn (done, total) into the progress line."""
    from tokpack.encoding import Progress

    began = time.monotonic()

    def tell(done: int, total: int) -> None:
        report(
            Progress(
                stage=stage,
                bytes_done=done,
                bytes_total=total,
                text_bytes=0,
                documents=0,
                tokens=0,
                rejected=0,
                seconds=time.monotonic() - began,
                bottleneck="",
                workers=1,
            )
        )

    return tell


def describe(prefix: str, manifest: Manifest) -> str:
    """One line about a dataset."""
    return (
        f"{prefix}: {manifest.documents:,} documents, {manifest.tokens:,} tokens as "
        f"{manifest.dtype}, {bytes_text(manifest.bin['bytes'])}"
    )


def pace(size: int, seconds: float) -> str:
    """How long it took, and for more than a little how fast it was."""
    rate = f", {bytes_text(size / seconds)}/s" if size > 10_000_000 else ""
    return f"  in {time_text(seconds)}{rate}"


def show(results: Sequence[tuple[str, Manifest]], seconds: float) -> None:
    """Tell people what was made and how long it took."""
    for prefix, manifest in results:
        say(describe(prefix, manifest))
    say(pace(sum(manifest.bin["bytes"] for _, manifest in results), seconds))
