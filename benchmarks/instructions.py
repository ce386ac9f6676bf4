"""Count instructions a byte of the kernels at two levels, in QEMU's user mode.

    python benchmarks/instructions.py build/neon

takes the program that `make neon` has built and counts what a second and a third round take,
over the manual of this repository, and over the same with Cyrillic letters for Latin ones, which
take two bytes each. Instructions are no time: processors differ in how many they do at once, and
in which are slow.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
KERNELS = ("utf8", "json", "scan gpt2", "scan o200k", "merge", "encode")
LEVELS = ("scalar", "neon")
CYRILLIC = {ord(a) + i: ord(b) + i for a, b in ("AА", "aа") for i in range(26)}  # noqa: RUF001


def main() -> None:
    build = Path(sys.argv[1])
    pages = sorted((ROOT / "docs").glob("*.md"))
    manual = "".join(path.read_text(encoding="utf-8") for path in pages)
    with tempfile.TemporaryDirectory() as folder:
        plugin = Path(folder) / "plugin.so"
        source = ROOT / "benchmarks/instructions/plugin.cpp"
        compiler = ["c++", "-std=c++17", "-O2", "-shared", "-fPIC"]
        subprocess.run([*compiler, source, "-o", plugin], check=True)
        print(f"{'instructions a byte':24}" + "".join(f"{level:>8}" for level in LEVELS))
        for name, text in (("Latin", manual), ("Cyrillic", manual.translate(CYRILLIC))):
            path = Path(folder) / name
            path.write_text(text, encoding="utf-8")
            for kernel in KERNELS:
                counts = [per_byte(build, plugin, kernel, level, path) for level in LEVELS]
                print(f"{kernel + ', ' + name:24}" + "".join(f"{count:8.2f}" for count in counts))


def per_byte(build: Path, plugin: Path, kernel: str, level: str, text: Path) -> float:
    """Return what two more rounds take, by which all that is done once cancels out."""
    counts = []
    for rounds in ("1", "3"):
        program = ["qemu-aarch64", "-plugin", str(plugin), str(build / "kernels")]
        run = subprocess.run(
            [*program, kernel, level, rounds, str(text)],
            capture_output=True,
            text=True,
            check=False,
        )
        if run.returncode != 0:
            sys.exit(f"{kernel} at {level} failed: {run.stderr.strip()}")
        counts.append(int(run.stderr))
    return (counts[1] - counts[0]) / (2 * int(run.stdout))


if __name__ == "__main__":
    main()
