"""What a command says about a finished dataset: for people on stderr, for machines on stdout."""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING

from tokpack.cli.terminal import bytes_text, say, time_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tokpack.indexed import Manifest

    Result = tuple[str, Manifest]


def show(results: Sequence[Result], *, seconds: float) -> None:
    """Tell people what was written, where it is and what to type next."""
    for prefix, manifest in results:
        for line in _lines(prefix, manifest, seconds):
            say(line)
    prefix = results[0][0]
    say("next:")
    say(f'  train with --data-path {prefix} (Megatron), or "train-data-paths" (GPT-NeoX)')
    say(f"  python -c \"import tokpack; print(tokpack.MMapIndexedDataset('{prefix}')[0])\"")


def print_result(results: Sequence[Result], *, as_json: bool) -> None:
    """Print the prefixes, a line each, or one JSON object with the manifests."""
    if as_json:
        datasets = [
            {"prefix": prefix, **json.loads(manifest.to_json())} for prefix, manifest in results
        ]
        sys.stdout.write(json.dumps({"datasets": datasets}, ensure_ascii=False) + "\n")
    else:
        sys.stdout.write("".join(f"{prefix}\n" for prefix, _ in results))


def _lines(prefix: str, manifest: Manifest, seconds: float) -> list[str]:
    name = manifest.tokenizer.get("name", "?")
    per_token = manifest.text_bytes / max(1, manifest.tokens)
    rate = bytes_text(manifest.text_bytes / max(seconds, 1e-9))
    lines = [
        f"{prefix}: {manifest.documents:,} documents, {manifest.tokens:,} tokens "
        f"({per_token:.2f} bytes a token, {name}, {manifest.dtype})",
        f"  {bytes_text(manifest.text_bytes)} of text in {time_text(seconds)}: {rate}/s",
    ]
    if manifest.sequences != manifest.documents:
        lines.append(f"  {manifest.sequences:,} sequences")
    if manifest.empty:
        lines.append(f"  {manifest.empty:,} documents without tokens left out")
    if manifest.rejected:
        lines.append(f"  {manifest.rejected:,} bad records in {prefix}.rejects.jsonl")
    for suffix in (".bin", ".idx", ".json"):
        path = prefix + suffix
        lines.append(f"  {path}  {bytes_text(os.path.getsize(path))}")
    return lines
