"""Completion, by the shells themselves."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest
from support.optional import needs_program
from support.report_tools import run

if TYPE_CHECKING:
    from pathlib import Path

# What is typed, and some of what the shell must offer, and must not.
TYPED = [
    ("tokpack ", {"encode", "train", "doctor"}, {"--tokenizer"}),
    ("tokpack en", {"encode"}, {"merge"}),
    ("tokpack encode --tok", {"--tokenizer", "--tokenizer-model"}, {"--trace"}),
    ("tokpack encode --no-a", {"--no-append-eod"}, {"--append-eod"}),
    ("tokpack encode x.jsonl --dtype ", {"auto", "uint16", "int32"}, {"x.jsonl"}),
    ("tokpack train --zero-st", {"--zero-stage"}, {"--tokenizer"}),
    ("tokpack shards ", {"plan", "status", "commit"}, {"encode"}),
    ("tokpack shards plan --shard-s", {"--shard-size"}, {"--shard"}),
    ("tokpack tokenizer train --ty", {"--type"}, {"--text"}),
    ("tokpack vocab --ty", {"--type"}, {"--text"}),
    ("tokpack inspect da", {"data.idx"}, {"other"}),
]
ASK = {
    "bash": """
        source ./script
        function=$(complete -p tokpack | grep -o '_shtab[a-z_]*')
        COMP_WORDS=($1); [[ $1 == *" " ]] && COMP_WORDS+=("")
        COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); COMPREPLY=()
        $function
        # What the shell does where a function offers nothing: complete -o default.
        [ ${#COMPREPLY[@]} -eq 0 ] && COMPREPLY=($(compgen -f -- "${COMP_WORDS[COMP_CWORD]}"))
        printf '%s\\n' "${COMPREPLY[@]}"
    """,
    "fish": "source ./script; complete -C $argv[1]",
}


@pytest.mark.parametrize("shell", ["bash", pytest.param("fish", marks=needs_program("fish"))])
def test_a_shell_completes(shell: str, tmp_path: Path) -> None:
    (tmp_path / "script").write_text(run("--completion", shell).stdout)
    (tmp_path / "data.idx").touch()
    (tmp_path / "other").touch()
    for typed, there, away in TYPED:
        words = [ASK[shell], typed] if shell == "fish" else [ASK[shell], shell, typed]
        done = subprocess.run(
            [shell, "-c", *words], cwd=tmp_path, capture_output=True, text=True, check=True
        )
        found = {line.split("\t")[0] for line in done.stdout.splitlines()}
        assert not done.stderr
        assert there <= found, (typed, found)
        assert not away & found, (typed, found)


@needs_program("zsh")
def test_zsh_reads_the_script(tmp_path: Path) -> None:
    (tmp_path / "_tokpack").write_text(run("--completion", "zsh").stdout)
    # In a terminal, since its completion does not work without one.
    script = f"""
        zmodload zsh/zpty
        zpty shell zsh -f -i
        zpty -w shell "cd {tmp_path}; fpath=({tmp_path} \\$fpath)"
        zpty -w shell "autoload -U compinit; compinit -D -u"
        zpty -w shell "PS1='ready:'; echo be'gin'"
        zpty -r -m shell line '*begin*'
        zpty -w -n shell $'tokpack encode --spl\\t'
        zpty -r -m shell line '*--split-sentences*'
        print -r -- "$line"
    """
    done = subprocess.run(
        ["zsh", "-f", "-c", script], capture_output=True, text=True, check=True, timeout=60
    )
    assert "--split-sentences" in done.stdout


def test_unknown_shells_are_refused() -> None:
    assert "--completion ksh: name one of bash, zsh" in run("--completion", "ksh", code=1).stderr
    assert "name one of" in run("--completion", code=1).stderr
