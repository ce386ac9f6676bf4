"""The guide to lm-evaluation-harness: its task runs on an export, with the likelihoods of ours."""

from __future__ import annotations

import re
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import pytest

torch = pytest.importorskip("torch")

from support.places import ROOT  # noqa: E402
from support.rounding import PRODUCTS, TERMS, likely  # noqa: E402
from support.trainer_model_tools import Memory, model_of  # noqa: E402

from tokpack import cli  # noqa: E402
from tokpack.tokenizers import load_tokenizer  # noqa: E402
from tokpack.trainer.checkpoints.export import export  # noqa: E402

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [
    pytest.mark.skipif(
        find_spec("lm_eval") is None, reason="needs lm-eval: pip install 'lm-eval[hf]'"
    ),
    pytest.mark.filterwarnings("ignore"),  # of the harness and its libraries
]


def test_the_task_of_the_guide(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name, value in (("HF_HUB_OFFLINE", "1"), ("HF_HOME", str(tmp_path / "hub"))):
        monkeypatch.setenv(name, value)
    page = (ROOT / "docs/guides/lm-eval.md").read_text()
    questions = re.findall(r"^    (\{.*\})$", page, re.MULTILINE)
    (tmp_path / "questions.jsonl").write_text("\n".join(questions) + "\n")
    (tmp_path / "tasks").mkdir()
    task = page.partition("```yaml\n")[2].partition("```")[0]
    (tmp_path / "tasks/questions.yaml").write_text(task)
    (tmp_path / "text.txt").write_text("to be or not to be is it was that in\n" * 20)
    words = ["tokenizer", "train", "text.txt", "-o", "tokenizer.json", "--vocab-size", "280"]
    assert cli.main(words) == 0
    tokenizer = load_tokenizer("tokenizer.json")
    weights = Memory(model_of())
    weights.tokenizer = tokenizer.describe()
    export(weights, tmp_path / "my-gpt", tokenizer=tokenizer)

    from lm_eval import simple_evaluate
    from lm_eval.tasks import TaskManager

    found: Any = simple_evaluate(
        model="hf",
        model_args={"pretrained": "my-gpt", "dtype": "float32"},
        tasks=["questions"],
        task_manager=TaskManager(include_path="tasks", include_defaults=False),
        device="cpu",
        bootstrap_iters=0,
    )
    bound = 2 * likely(PRODUCTS * TERMS, "float32")
    right = []
    for sample in found["samples"]["questions"]:
        ours = []
        for question, choice in sample["arguments"]:
            before, after = map(tokenizer.encode, (question, choice))
            chances = torch.log_softmax(weights.logits(torch.tensor([before + after])), -1)[0]
            places = range(len(before) - 1, len(before) + len(after) - 1)
            ours.append(sum(float(chances[i, t]) for i, t in zip(places, after, strict=True)))
        theirs = [response[0][0] for response in sample["resps"]]
        assert theirs == pytest.approx(ours, rel=bound)
        right.append(ours.index(max(ours)) == sample["doc"]["answer"])
    assert found["results"]["questions"]["acc,none"] == sum(right) / len(right)
    assert len(right) == len(questions) == 2
