"""Print what an extra of this package needs, one requirement a line, for ``pip install -r``.

    python tools/requirements.py dev

The Makefile installs these while the compiler still builds the package itself.
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

PROJECT = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]


def needs(extra: str) -> Iterator[str]:
    """What an extra asks for, and the extras of this package that it names."""
    for requirement in PROJECT["optional-dependencies"][extra]:
        if own := re.fullmatch(r"tokpack\[(.*)\]", requirement):
            for name in own[1].split(","):
                yield from needs(name)
        else:
            yield requirement


if __name__ == "__main__":
    print(*sorted({*PROJECT["dependencies"], *needs(sys.argv[1])}), sep="\n")
