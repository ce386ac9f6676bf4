"""What merge, split and convert share: flags, and what they say at the end."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from tokpack.cli.parser import flag
from tokpack.cli.terminal import folded, say
from tokpack.quantities import bytes_text, time_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tokpack.indexed import Manifest

OVERWRITE = flag("--overwrite", action="store_true", help="replace what is there")
JSON = flag("--json", action="store_true", help="print what was made as JSON on stdout")


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
        for part in folded(describe(prefix, manifest), sys.stderr):
            say(part)
    say(pace(sum(manifest.bin["bytes"] for _, manifest in results), seconds))
