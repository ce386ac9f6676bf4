"""The report of ``gpu.py``: tables, sentences and a plot."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import torch
from common import machine

if TYPE_CHECKING:
    from pathlib import Path

Row = dict[str, Any]

PARTS = {  # what belongs to a part of the profile, by words in the names of kernels
    "attention": ("flash", "fmha", "sdpa", "flex", "scaled_dot"),
    "matrix products": ("gemm", "nvjet", "cutlass", "aten::mm", "addmm", "bmm", "matmul"),
    "optimizer": ("adam", "multi_tensor", "foreach"),
    "copies": ("memcpy", "memset", "copy_", "fill_", "zero_"),
}


def best_rows(found: dict[str, list[Row]]) -> list[Row]:
    """Of each size that was measured, the row with the most tokens a second."""
    best: dict[str, Row] = {}
    for row in found.get("sizes", ()):
        if "failed" not in row:
            before = best.get(row["size"], row)
            best[row["size"]] = max(before, row, key=lambda one: one["tokens_per_second"])
    return list(best.values())


def write_report(folder: Path, found: dict[str, list[Row]], device: str) -> None:
    """FOLDER/report.md, and FOLDER/report.png where matplotlib is installed."""
    name = torch.cuda.get_device_name() if device == "cuda" else machine()["cpu"]
    lines = [f"# The trainer on {name}", "", f"torch {torch.__version__}", ""]
    for row in best_rows(found):
        mfu = "MFU not known" if row["mfu"] is None else f"{row['mfu']:.1%} MFU"
        lines += [
            f"- {row['size']}: {row['tokens_per_second']:,.0f} tokens/s, {mfu}, "
            f"{row['peak_memory'] / 1e9:.1f} GB with a micro batch of {row['micro_batch']}."
        ]
    for row in found.get("profile", ()):
        if "failed" in row:
            continue
        shares = sorted(row["shares"].items(), key=lambda item: -item[1])
        idle = "" if row["idle"] is None else f"; the GPU has nothing to do {row['idle']:.0%} of it"
        words = ", ".join(f"{share:.0%} {part}" for part, share in shares)
        lines += [
            f"- What limits {row['size']}: of a step of {row['seconds']:.3g} s {words}{idle}."
        ]
    for section in ("parity", "waiting", "compilation", "layouts", "sizes"):
        if section in found:
            lines += ["", f"## {section.capitalize()}", "", *_table(found[section])]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "report.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    with contextlib.suppress(ImportError):
        if "sizes" in found:
            _draw(folder / "report.png", found)


def _table(rows: list[Row]) -> list[str]:
    names = list(dict.fromkeys(name for row in rows for name in row))
    texts = [[_cell(row.get(name)) for name in names] for row in rows]
    return [f"| {' | '.join(cells)} |" for cells in (names, ["---"] * len(names), *texts)]


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    return str(value)


def _draw(path: Path, found: dict[str, list[Row]]) -> None:
    """Tokens/s by micro batch, and shares of a step."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4), layout="constrained")
    speeds, shares = figure.subplots(1, 2)
    for size in dict.fromkeys(row["size"] for row in found["sizes"]):
        rows = [row for row in found["sizes"] if row["size"] == size and "failed" not in row]
        pairs = [(row["micro_batch"], row["tokens_per_second"]) for row in rows]
        if pairs:
            speeds.plot(*zip(*pairs, strict=True), marker="o", label=size)
    speeds.set(xlabel="micro batch", ylabel="tokens/s", xscale="log", yscale="log")
    speeds.legend()
    profiles = [row for row in found["profile"] if "failed" not in row]
    ends = dict.fromkeys((row["size"] for row in profiles), 0.0)
    for part in (*PARTS, "everything else"):
        widths = [row["shares"][part] for row in profiles]
        shares.barh(list(ends), widths, left=list(ends.values()), label=part)
        ends = {size: end + width for (size, end), width in zip(ends.items(), widths, strict=True)}
    shares.set(xlabel="share of a step")
    shares.legend(fontsize="small")
    figure.savefig(path, dpi=120)
