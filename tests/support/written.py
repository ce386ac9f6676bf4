"""What is in the datasets, blends and runs of tests/golden/written, by the public interface."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import tokpack

SAMPLES = 6


def contents(prefix: str) -> dict[str, Any]:
    """Documents, values beside their tokens, and the table of a dataset or view."""
    with tokpack.MMapIndexedDataset(prefix) as dataset:
        bounds = dataset.doc_idx.tolist()
        found: dict[str, Any] = {
            "dtype": dataset.dtype.name,
            "documents": bounds,
            "sequences": [ids.tolist() for ids in dataset],
            "tracks": {
                name: {"dtype": str(kind), "values": [v.tolist() for v in dataset.track(name)]}
                for name, kind in sorted(dataset.tracks.items())
            },
            "pairs": dataset.pairs,
            "fingerprint": f"{dataset.fingerprint:016x}",
        }
        try:
            found["table"] = [
                {name: v.hex() if isinstance(v, bytes) else v for name, v in row.items()}
                for row in dataset.table().to_pylist()
            ]
        except tokpack.InputError:
            found["table"] = None
        return found


def digests(prefix: str) -> dict[str, str]:
    """Of the files of a dataset that are the same wherever, and whenever, they are made.

    The manifest has the time, and a parquet file depends on the version of what writes it.
    """
    folder, name = Path(prefix).parent, Path(prefix).name
    return {
        path.name.removeprefix(name): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.glob(f"{name}.*"))
        if path.suffix not in (".json", ".parquet") and path.is_file()
    }


def first_samples(blend: str) -> dict[str, list[list[int]]]:
    """The tokens of the first samples of each part of a blend."""
    blends = tokpack.open_blend(blend)
    parts = {"train": blends.train, **blends.valid}
    return {
        name: [part[k]["tokens"].tolist() for k in range(min(SAMPLES, len(part)))]
        for name, part in parts.items()
    }


def losses(run: str) -> dict[str, float]:
    """The loss of each step in a run's log."""
    lines = (Path(run) / "log.jsonl").read_text().splitlines()
    events = map(json.loads, lines)
    return {str(one["iteration"]): one["loss"] for one in events if one["event"] == "step"}
