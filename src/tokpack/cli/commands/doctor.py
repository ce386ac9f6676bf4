"""``tokpack doctor``: what is installed here, and what this machine and folder can do."""

from __future__ import annotations

import contextlib
import errno
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
from tokpack.files.durable import sync_folder
from tokpack.quantities import bytes_text

if TYPE_CHECKING:
    import argparse

PAGE = Page(
    "doctor",
    "Say what is installed, what is missing, and what this machine and this folder can do.",
    (Group("flags", flags("--json  print it as JSON on stdout")),),
    """\
It looks at the current folder, or at the one that is named: run it where the data will lie.

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
    facts = {
        "tokpack": __version__,
        "python": {"version": platform.python_version(), "path": sys.executable},
        "packages": {name: installed.version(name) for name in installed.requirements()[""]},
        "extras": {one.name: {"missing": one.missing} for one in installed.extras()},
        "machine": _machine(),
        "folder": _folder(folder),
        "caches": _caches(),
    }
    if arguments.json:
        terminal.put_json(facts, indent=2)
    else:
        _print(facts)
    return 0


def _machine() -> dict[str, Any]:
    from tokpack.machine import affine_cores, cpu_limit, usable_cores

    return {
        "system": f"{platform.system()} {platform.release()}",
        "processor": _processor(),
        "instructions": installed.instructions(),
        "cores": {
            "usable": usable_cores(),
            "affinity": affine_cores(),
            "limit": cpu_limit(),
            "all": os.cpu_count(),
        },
    }


def _processor() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _folder(folder: str) -> dict[str, Any]:
    """What the file system of a folder can do; what it cannot is the system's reason."""
    usage = shutil.disk_usage(folder)
    facts: dict[str, Any] = {
        "path": os.path.realpath(folder),
        "file_system": _file_system(os.path.realpath(folder)),
        "free_bytes": usage.free,
        "bytes": usage.total,
    }
    try:
        with tempfile.TemporaryDirectory(prefix=".tokpack-doctor-", dir=folder) as work:
            tests = {"copy_file_range": _copies, "folder_sync": _syncs, "locks": _locks}
            facts["can"] = {name: _tried(test, work) for name, test in tests.items()}
    except OSError as error:
        facts["can"] = {"write": error.strerror}
    return facts


def _tried(test: Any, work: str) -> bool | str:
    try:
        test(work)
    except OSError as error:
        return error.strerror or str(error)
    except (AttributeError, ImportError):
        return os.strerror(errno.ENOSYS)
    return True


def _copies(work: str) -> None:
    Path(work, "source").write_bytes(b"tokens")
    with open(f"{work}/source", "rb") as source, open(f"{work}/target", "wb") as target:
        if os.copy_file_range(source.fileno(), target.fileno(), 6, 0, 0) != 6:
            raise OSError(errno.EOPNOTSUPP, "it copies nothing")


def _syncs(work: str) -> None:
    if not sync_folder(work):
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))


def _locks(work: str) -> None:
    import fcntl

    with open(f"{work}/lock", "wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _file_system(path: str) -> str | None:
    """The type of the file system that a path is on, such as ext4, where the system says it."""
    best, kind = "", None
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/mounts").read_text(errors="replace").splitlines():
            _, mount, name, *_ = line.split(" ")
            inside = path == mount or path.startswith(mount.rstrip("/") + "/")
            if inside and len(mount) >= len(best):
                best, kind = mount, name
    return kind


def _caches() -> list[dict[str, Any]]:
    """The folders that tokpack reads tokenizers from and keeps them in."""
    from tokpack.files.cache_root import cache_root
    from tokpack.tokenizers.hub import hub_cache

    places = {"tokpack": cache_root(), "Hugging Face": hub_cache()}
    return [
        {"name": name, "path": str(path), "bytes": _size(path)} for name, path in places.items()
    ]


def _size(folder: Path) -> int | None:
    """Bytes of all files in a folder, links not followed; None where there is no such folder."""
    if not folder.is_dir():
        return None
    total = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(OSError):
            total += 0 if path.is_symlink() or path.is_dir() else path.stat().st_size
    return total


def _print(facts: dict[str, Any]) -> None:
    from tokpack.cli.figures import bold, table

    machine, folder = facts["machine"], facts["folder"]
    python = facts["python"]
    packages = [f"{name} {number or 'MISSING'}" for name, number in facts["packages"].items()]
    terminal.put(bold(f"tokpack {facts['tokpack']}"))
    rows = [
        ["python", f"{python['version']}, {python['path']}"],
        ["packages", ", ".join(packages)],
    ]
    for name, extra in facts["extras"].items():
        missing = ", ".join(extra["missing"])
        advice = f'no {missing}: pip install "tokpack[{name}]"' if missing else "installed"
        rows.append([f"extra {name}", advice])
    rows += [
        ["system", machine["system"]],
        ["processor", machine["processor"]],
        ["instructions", f"{machine['instructions'][-1]}, of {', '.join(machine['instructions'])}"],
        ["cores", _cores(machine["cores"])],
        ["folder", f"{folder['path']}, on {folder['file_system'] or 'an unknown file system'}"],
        ["free", f"{bytes_text(folder['free_bytes'])} of {bytes_text(folder['bytes'])}"],
    ]
    for name, answer in folder["can"].items():
        rows.append([name.replace("_", " "), "yes" if answer is True else f"no: {answer}"])
    for cache in facts["caches"]:
        size = "not there" if cache["bytes"] is None else bytes_text(cache["bytes"])
        rows.append([f"cache {cache['name']}", f"{cache['path']}, {size}"])
    table(rows, left=(0, 1))


def _cores(cores: dict[str, Any]) -> str:
    text = f"{cores['usable']} usable of {cores['all']}"
    if cores["affinity"] != cores["all"]:
        text += f"; the process may run on {cores['affinity']}"
    if cores["limit"]:
        text += f"; its control group allows {cores['limit']:g}"
    return text
