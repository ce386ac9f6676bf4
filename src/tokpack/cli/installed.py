"""The packages that are installed besides tokpack: those that can decide bytes, and those of
extras.
"""

from __future__ import annotations

import platform
import re
import sys
import unicodedata
from importlib import metadata

from tokpack import __version__

# Libraries that may decide ids or texts: other tokenizers, sentences, repaired Unicode, readers.
DECIDING = ("tokenizers", "sentencepiece", "ujson", "ftfy", "nltk", "pyarrow", "datasets")
# What extras are for; others are for those who develop tokpack.
PURPOSES = {
    "chat": "conversations: encode --chat",
    "hf": "Hugging Face datasets: encode hf://NAME",
    "parquet": "parquet, Arrow, CSV; encode --keep and --trace",
    "ftfy": "repaired Unicode: encode --ftfy",
    "select": "SQL: encode --where, select --where",
    "sentences": "encode --split-sentences",
    "sentencepiece": "SentencePiece models that the core does not read",
    "s3": "s3:// instead of files",
    "gcs": "gs:// instead of files",
    "azure": "az:// instead of files",
    "remote": "https://, hf://datasets/ and other URLs",
    "ray": "shards on a Ray cluster: encode --engine ray",
    "view": "pages in a browser: view",
    "train": "train, generate, model import and export",
    "wandb": "curves at Weights & Biases: train --wandb-project; encode --report-to",
    "fp8": "train --fp8",
    "deepspeed": "train --engine deepspeed",
}


def version(package: str) -> str | None:
    """The version of a package, or None if it is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def instructions() -> list[str]:
    """The instruction sets of this processor for which the core has kernels; the last is used."""
    from tokpack import _core

    return list(_core.simd_levels())


def version_text() -> str:
    """tokpack's version, and then a line for each package that can decide bytes."""
    versions = {package: version(package) for package in DECIDING}
    libraries = ", ".join(f"{package} {number}" for package, number in versions.items() if number)
    python = f"{platform.python_implementation()} {platform.python_version()}"
    return (
        f"tokpack {__version__}\ninstructions: {instructions()[-1]} ({platform.machine()}, "
        f"{sys.platform})\npython: {python}, Unicode {unicodedata.unidata_version}\nlibraries: "
        f"{libraries}\n"
    )


def packages_by_extra() -> dict[str, dict[str, str | None]]:
    """The packages of each extra, with their versions; those under "" are always needed."""
    packages: dict[str, dict[str, str | None]] = {"": {}}
    for line in metadata.requires("tokpack") or []:
        package = re.match(r"[\w.-]+", line)
        extra = re.search(r"extra == ['\"](\w+)['\"]", line)
        name = extra[1] if extra else ""
        if package and (not name or name in PURPOSES):
            packages.setdefault(name, {})[package[0]] = version(package[0])
    return packages
