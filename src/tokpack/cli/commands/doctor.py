"""``tokpack doctor``: what is installed here, and what this machine and folder can do."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import platform
import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokpack import __version__
from tokpack.cli import installed, terminal
from tokpack.cli.parser import Group, Page, flags
from tokpack.errors import UsageError
from tokpack.machine import affine_cores, cpu_limit, usable_cores
from tokpack.quantities import bytes_text
from tokpack.storage.disk import sync_folder

if TYPE_CHECKING:
    import argparse

PAGE = Page(
    "doctor",
    "Say what is installed, what is missing, and what this machine and this folder can do.",
    (Group("flags", flags("--json  print it as JSON on stdout")),),
    """\
It looks at the current folder, or at FOLDER: name the one where the data will be.

examples:
  tokpack doctor
  tokpack doctor data --json
""",
    usage="[FOLDER] [flags]",
)


def run(arguments: argparse.Namespace) -> int:
    """Run ``tokpack doctor``."""
    folder = arguments.inputs[0] if arguments.inputs else "."
    if not os.path.isdir(folder):
        raise UsageError(f"{folder}: no such folder")
    packages = installed.packages_by_extra()
    facts = {
        "tokpack": __version__,
        "python": {"version": platform.python_version(), "path": sys.executable},
        "packages": packages.pop(""),
        "extras": {
            name: {"missing": [package for package, number in versions.items() if number is None]}
            for name, versions in packages.items()
        },
        "machine": {
            "system": f"{platform.system()} {platform.release()}",
            "processor": _field("/proc/cpuinfo", "model name") or platform.processor(),
            "instructions": installed.instructions(),
            "cores": {
                "usable": usable_cores(),
                "affinity": affine_cores(),
                "limit": cpu_limit(),
                "all": os.cpu_count(),
            },
        },
        "folder": _folder(folder),
        "tokenizers": _tokenizers(),
        "caches": _caches(),
    }
    if arguments.json:
        terminal.put_json(facts, indent=2)
    else:
        _print(facts)
    return 0


def _field(path: str, name: str) -> str:
    """The first value with this name in a file of the system, or "" if it has none."""
    with contextlib.suppress(OSError):
        for line in Path(path).read_text().splitlines():
            key, _, value = line.partition(":")
            if key.strip() == name:
                return value.strip()
    return ""


def _folder(folder: str) -> dict[str, Any]:
    """What the file system of a folder can do: True, or the reason of the system why not."""
    usage, path = shutil.disk_usage(folder), os.path.realpath(folder)
    can: dict[str, bool | str | None] = {}
    try:
        with tempfile.TemporaryDirectory(prefix=".tokpack-doctor-", dir=folder) as work:
            for name, test in _TESTS.items():
                try:
                    can[name] = test(work) or os.strerror(errno.EOPNOTSUPP)
                except OSError as error:
                    can[name] = error.strerror
    except OSError as error:
        can = {"write": error.strerror}
    return {
        "path": path,
        "file_system": _file_system(path),
        "free_bytes": usage.free,
        "bytes": usage.total,
        "can": can,
    }


def _copy_file_range(work: str) -> bool:
    Path(work, "source").write_bytes(b"tokens")
    if not hasattr(os, "copy_file_range"):
        return False
    with open(f"{work}/source", "rb") as source, open(f"{work}/target", "wb") as target:
        return os.copy_file_range(source.fileno(), target.fileno(), 6, 0, 0) == 6


def _locks(work: str) -> bool:
    with open(f"{work}/lock", "wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return True


_TESTS = {"copy_file_range": _copy_file_range, "folder_sync": sync_folder, "locks": _locks}


def _file_system(path: str) -> str | None:
    """The type of the file system that a path is on, such as ext4, where the system says it."""
    mounts: dict[str, str] = {}
    with contextlib.suppress(OSError):
        lines = Path("/proc/self/mounts").read_text(errors="replace").splitlines()
        mounts = {line.split(" ")[1]: line.split(" ")[2] for line in lines}
    inside = (folder for folder in (path, *map(str, Path(path).parents)) if folder in mounts)
    return mounts.get(next(inside, ""))


def _caches() -> list[dict[str, Any]]:
    """The folders of tokenizers, with the bytes in them; None where there is no such folder."""
    from tokpack.machine import cache_root
    from tokpack.tokenizers import hub_cache

    return [
        {"name": name, "path": str(path), "bytes": _size(path) if path.is_dir() else None}
        for name, path in {"tokpack": cache_root(), "Hugging Face": hub_cache()}.items()
    ]


def _tokenizers() -> dict[str, dict[str, str | None]]:
    """The tokenizers that are known by a name: where they are, or what a first use downloads."""
    from tokpack.tokenizers import named_tokenizers

    return {
        name: {"path": str(folder), "needs": None} if folder else {"path": None, "needs": needed}
        for name, (folder, needed) in named_tokenizers().items()
    }


def _size(folder: Path) -> int:
    """Bytes of all files in a folder, links not followed."""
    total = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(OSError):
            total += 0 if path.is_symlink() or path.is_dir() else path.stat().st_size
    return total


def _print(facts: dict[str, Any]) -> None:
    from tokpack.cli.figures import bold, table

    machine, folder, cores = facts["machine"], facts["folder"], facts["machine"]["cores"]
    usable = f"{cores['usable']} usable of {cores['all']}"
    if cores["affinity"] != cores["all"]:
        usable += f"; the process may run on {cores['affinity']}"
    if cores["limit"]:
        usable += f"; its control group allows {cores['limit']:g}"
    rows = {
        "python": "{version}, {path}".format(**facts["python"]),
        "packages": ", ".join(
            f"{name} {has or 'MISSING'}" for name, has in facts["packages"].items()
        ),
    }
    for name, extra in facts["extras"].items():
        missing = ", ".join(extra["missing"])
        state = f'no {missing}: pip install "tokpack[{name}]"' if missing else "installed"
        rows[f"extra {name}"] = f"{installed.PURPOSES[name]}; {state}"
    rows |= {
        "system": machine["system"],
        "processor": machine["processor"],
        "SIMD": f"{machine['instructions'][-1]} (available: {', '.join(machine['instructions'])})",
        "cores": usable,
        "folder": f"{folder['path']}, on {folder['file_system'] or 'an unknown file system'}",
        "free": f"{bytes_text(folder['free_bytes'])} of {bytes_text(folder['bytes'])}",
    }
    for name, answer in folder["can"].items():
        rows[name.replace("_", " ")] = "yes" if answer is True else f"no: {answer}"
    for name, where in facts["tokenizers"].items():
        fetched = f"not here: downloaded when first used; without a network put {where['needs']}"
        rows[f"tokenizer {name}"] = where["path"] or fetched
    for cache in facts["caches"]:
        size = "not there" if cache["bytes"] is None else bytes_text(cache["bytes"])
        rows[f"cache {cache['name']}"] = f"{cache['path']}, {size}"
    terminal.put(bold(f"tokpack {facts['tokpack']}"))
    table(list(rows.items()), left=(0, 1))
