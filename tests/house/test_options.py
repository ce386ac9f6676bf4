"""Messages name options by ``option``, which makes a name of Python's or a flag of them."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

import pytest
from support.places import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator

SRC = ROOT / "src"
# Where flags are declared, typed and read, and those who ran a command are spoken to.
COMMANDS = ("tokpack/cli/", "trainer/commands/", "trainer/__main__.py")
FLAG = re.compile(r"(?<![\w-])--[a-z{][\w{}-]*")
COMMAND_LINE = re.compile(r"`tokpack [^`]*`|tokpack [a-z]+( --[\w-]+)+")  # to be typed as it stands
# Files with other flags, and whose these are.
REASONS = {
    "tokpack/dataset/format.py": ("--append-eod", "of Megatron-DeepSpeed"),
    "tokpack/dataset/outputs.py": ("--repo-type --local-dir", "of the hub's program"),
    "tokpack/dataset/table.py": ("--keep --trace", "of encode, in messages of others"),
    "tokpack/encoding/resume.py": ("--on-error", "two options in Python: both are named"),
    "tokpack/errors.py": ("--no-{}", "made here"),
    "tokpack/look/pages/items.py": ("--{}", "of view, whose pages have no other words"),
    "tokpack/option.py": ("--{}", "made here"),
    "tokpack/shards/plan.py": ("--plan --shard", "a command that is run"),
    "tokpack/shards/tasks.py": ("--shard", "a command that is run"),
    "tokpack/shards/slurm_engine.py": (
        "--array --cpus-per-task --job-name --ntasks --open-mode --output --parsable --partition "
        "--requeue --workers --{}",
        "of sbatch, and of a command that is run",
    ),
    "tokpack/sources/archives.py": ("--sparse", "of tar"),
    "trainer/checkpoints/history.py": ("--log-dir --save", "of train, in messages of others"),
    "trainer/checkpoints/ranks.py": (
        "--{} --num_query_groups --disable_bias_linear --bias_gelu_fusion --no_bias_gelu_fusion",
        "of Megatron, which are read",
    ),
    "trainer/config/config.py": ("--bf16 --fp16", "in help that only the command shows"),
    "trainer/config/flags.py": (
        "--tensor-model-parallel-size --pipeline-model-parallel-size --no-",
        "which are read",
    ),
}


def texts(node: ast.AST) -> Iterator[str]:
    """The texts of a syntax tree, with {} for values, but for docstrings and ``flags=``."""
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return
    if isinstance(node, ast.keyword) and node.arg == "flags":
        return
    if isinstance(node, ast.JoinedStr):
        parts = [one.value if isinstance(one, ast.Constant) else "{}" for one in node.values]
        yield "".join(map(str, parts))
    elif isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    for one in ast.iter_child_nodes(node):
        if not (isinstance(node, ast.JoinedStr) and isinstance(one, ast.Constant)):
            yield from texts(one)


def flags_in(tree: ast.AST) -> set[str]:
    """The flags in texts of a file that are no part of a command line."""
    return {flag for text in texts(tree) for flag in FLAG.findall(COMMAND_LINE.sub("", text))}


def test_messages_name_options_not_flags() -> None:
    found = {}
    for path in SRC.rglob("*.py"):
        name = path.relative_to(SRC).as_posix()
        if not name.startswith(COMMANDS):
            found[name] = flags_in(ast.parse(path.read_text(encoding="utf-8")))
    known = {name: set(flags.split()) for name, (flags, _) in REASONS.items()}
    literal = {name: flags for name, flags in found.items() if flags}
    assert literal == known, 'name an option with option("name"), of tokpack.errors'


@pytest.mark.parametrize(
    ("code", "flags"),
    [
        ('raise UsageError(f"{path} exists: replace it with --overwrite")', {"--overwrite"}),
        ('raise UsageError(f"--{name} is {value}")', {"--{}"}),
        ('_log.warning("--map without " "--map-version")', {"--map", "--map-version"}),
        ("raise UsageError(f\"{option('overwrite', True)} replaces it\")", set()),
        ('raise UsageError(f"encode again: `tokpack encode {name} --overwrite`")', set()),
        ('def encode():\n    """What `--plan` makes."""', set()),
        ('field(flags="-o --output")', set()),
        ('folder = f"models--{name}"', set()),
    ],
)
def test_a_flag_in_a_message_is_found(code: str, flags: set[str]) -> None:
    assert flags_in(ast.parse(code)) == flags
