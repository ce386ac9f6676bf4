"""Every example script at its full size: its flags -> Config."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.flags_tools import changed
from support.places import EXAMPLES

from tokpack.errors import worded
from tokpack.trainer.config.flags import resolve

LIBAI = ["1", "8", "0", "10.10.0.8", "2", "4", "true", "true", "24", "384"]
RECORD = """\
#!{python} -IS
import sys
words = sys.argv[1:]
open({out!r}, "w").write("\\n".join(words[words.index("tokpack.trainer") + 1:]))
"""


def script_flags(tmp_path: Path, script: str, *words: str, **names: str) -> list[str]:
    """The flags that an example gives to the trainer, as it stands."""
    out, folder = tmp_path / "words", tmp_path / "bin"
    folder.mkdir(exist_ok=True)
    for launcher in ("python", "python3", "torchrun", "deepspeed"):
        (folder / launcher).write_text(RECORD.format(python=sys.executable, out=str(out)))
        (folder / launcher).chmod(0o755)
    path = f"{folder}{os.pathsep}{os.environ['PATH']}"
    bash = shutil.which("bash")
    assert bash is not None
    subprocess.run(
        [bash, str(EXAMPLES / script), *words],
        cwd=tmp_path,
        env={"PATH": path, **names},
        check=True,
        timeout=60,
    )
    return out.read_text().splitlines()


SCRIPTS: dict[str, tuple[int, list[str], dict[str, str]]] = {
    "bigscience_gpt2.sh": (2, [], {}),
    "megatron_1.1.5.sh": (2, [], {"STAGE": "0"}),
    "megatron_1.1.5.sh, ZeRO 2": (2, [], {"STAGE": "2"}),
    "megatron_gpt.sh": (8, ["here", "board", "v.json", "m.txt", "data"], {}),
    "microsoft_gpt3.sh": (64, [], {}),
    "libai_comparison.sh": (8, LIBAI, {"ZERO_STAGE": "", "STAGES": "7 7 6 4"}),
    "libai_comparison.sh, ZeRO 1": (8, LIBAI, {"ZERO_STAGE": "1", "STAGES": "7 7 6 4"}),
    "neox_20b.yml": (96, [], {}),
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_what_a_script_asks_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """All that is not as by default, and the notes, as scripts.json has them."""
    world, words, names = SCRIPTS[name]
    script = name.partition(",")[0]
    words = (
        [str(EXAMPLES / script)]
        if script.endswith(".yml")
        else script_flags(tmp_path, script, *words, **names)
    )
    monkeypatch.chdir(tmp_path)
    found = resolve(words, world).config
    told = {"settings": changed(found), "notes": [worded(note) for note in found.notes]}
    expected = json.loads(Path(__file__).with_name("scripts.json").read_text())
    assert json.loads(json.dumps(told)) == expected[name]
