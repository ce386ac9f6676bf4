"""Conversations to tokens and masks, one core, beside transformers in the same run.

    python benchmarks/chat.py [--conversations 40000] [--slow 1500] [--runs 3] [--data DIR]
                              [--templates FILE...] [--rewriting as-is]

Conversations of two questions with their answers, about a kilobyte of English, with ChatML's
template (in ``{% generation %}`` blocks, without which transformers makes no mask) and the
tokenizer of GPT-NeoX. *tokpack* is a whole ``tokpack.encode(..., chat=True, workers=1)``, from JSON
lines to the finished dataset, with its start, its self-check and its checksums; *transformers* is a
loop of ``apply_chat_template(tokenize=True, return_assistant_tokens_mask=True)``, which is what TRL
calls, over the first ``--slow`` of the messages, in memory already. The figure is processor time,
the best of the runs; ids and masks of both have to be equal, or the exit status is 1. With
templates that have no generation blocks, as published ones, the masks are not compared. With
``--trl``, where TRL is installed: what its SFTTrainer makes of the messages before it trains.
"""

from __future__ import annotations

import json
import os
import sys
import time
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any

import common
import measure
import numpy as np

if TYPE_CHECKING:
    import argparse

SIZES = (150, 400, 100, 350)  # characters of question and answer, twice
TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' }}"
    "{% if message['role'] == 'assistant' %}"
    "{% generation %}{{ message['content'] + '<|im_end|>' }}{% endgeneration %}"
    "{% else %}{{ message['content'] + '<|im_end|>' }}{% endif %}{{ '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


def make_tokenizer(folder: Path, plain: Path) -> Path:
    """A folder with GPT-NeoX's tokenizer, the tokens of ChatML and the template."""
    definition = json.loads(plain.read_text(encoding="utf-8"))
    last = max(token["id"] for token in definition["added_tokens"])
    for number, content in enumerate(("<|im_start|>", "<|im_end|>"), last + 1):
        token = {**definition["added_tokens"][0], "content": content, "special": True}
        definition["added_tokens"].append({**token, "id": number, "normalized": False})
    folder.mkdir(exist_ok=True)
    (folder / "tokenizer.json").write_text(json.dumps(definition), encoding="utf-8")
    config = {
        "chat_template": TEMPLATE,
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<|im_end|>",
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


def make_conversations(texts: list[str], count: int) -> list[list[dict[str, str]]]:
    """Messages with texts of a corpus, each used a little further on when they come round again."""
    made = []
    for number in range(count):
        text = texts[number % len(texts)]
        at = 997 * (number // len(texts)) % max(len(text) - sum(SIZES), 1)
        messages = []
        for turn, size in enumerate(SIZES):
            role = ("user", "assistant")[turn % 2]
            messages.append({"role": role, "content": text[at : at + size].strip() or "Yes."})
            at += size
        made.append(messages)
    return made


def main() -> None:
    """Measure both with each template, compare what they made, print a table."""
    parser = common.parser(__doc__)
    parser.add_argument("--conversations", type=int, default=40_000, metavar="N")
    parser.add_argument("--slow", type=int, default=1500, metavar="N")
    parser.add_argument("--runs", type=int, default=3, metavar="N")
    parser.add_argument("--templates", nargs="+", default=[], metavar="FILE")
    parser.add_argument("--rewriting", default="refuse")
    parser.add_argument("--trl", action="store_true")
    arguments = parser.parse_args()
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    data, began = common.find_data(arguments.data), time.monotonic()
    rows = []
    with common.work_folder(arguments.work) as folder:
        tokenizer = make_tokenizer(folder / "chatml", data.find("20B_tokenizer.json"))
        texts = [text for text in data.texts("english")[:20_000] if len(text) > sum(SIZES)]
        chats = make_conversations(texts, arguments.conversations)
        with (folder / "chats.jsonl").open("w", encoding="utf-8") as file:
            file.writelines(json.dumps({"messages": one}) + "\n" for one in chats)
        if arguments.trl:
            os.environ["HF_DATASETS_CACHE"] = str(folder / "cache")
        for template in arguments.templates or [None]:
            pair = compared(folder, tokenizer, chats, template, arguments)
            rows += pair
            ratio = pair[0]["a_second"] / pair[1]["a_second"]
            print(f"{pair[0]['template']}: {ratio:.1f} times as fast, equal: {pair[0]['equal']}")
    common.print_table(list(rows[0]), [list(row.values()) for row in rows])
    print(f"{time.monotonic() - began:.0f} s in all")
    equal = all(row["equal"] for row in rows)
    if equal and not arguments.no_save:
        common.append_rows("chat", rows, common.versions("transformers", "tokenizers", "jinja2"))
    sys.exit(not equal)


def compared(
    folder: Path,
    tokenizer: Path,
    chats: list[list[dict[str, str]]],
    template: str | None,
    arguments: argparse.Namespace,
) -> list[common.Row]:
    """Both with one template, or the tokenizer's own: a row of each."""
    import transformers

    import tokpack

    options = {"tokenizer": str(tokenizer), "overwrite": True, "workers": 1}
    options |= {"chat_template": template, "rewriting": arguments.rewriting}
    text = TEMPLATE if template is None else Path(template).read_text(encoding="utf-8")
    given = {"bos_token": "<|endoftext|>"} if "bos_token" in text else {}
    options["template_var"] = {"date": str(date.today()), **given}
    source = str(folder / "chats.jsonl")

    def fast() -> tokpack.Manifest:
        return tokpack.encode(source, str(folder / "chats"), chat=True, **options)

    seconds, _ = measure.best(fast, arguments.runs)
    dataset = tokpack.MMapIndexedDataset(folder / "chats")
    library = transformers.AutoTokenizer.from_pretrained(str(tokenizer))
    has_mask = "generation %}" in text
    settings = {"tokenize": True, "return_dict": True, "return_assistant_tokens_mask": has_mask}
    settings |= {"chat_template": text, "bos_token": "<|endoftext|>"}
    some = chats[: arguments.slow]

    def slow() -> list[Any]:
        return [library.apply_chat_template(one, **settings) for one in some]

    slow_seconds, made = measure.best(slow, arguments.runs)
    equal = all(
        np.array_equal(dataset[i], one["input_ids"])
        and (not has_mask or np.array_equal(dataset.mask[i], one["assistant_masks"]))
        for i, one in enumerate(made)
    )
    size = sum(len(m["content"].encode()) for one in chats for m in one) / len(chats)
    name = "generation" if template is None else Path(template).stem
    programs = [
        ("tokpack", _figures(len(chats), seconds, size)),
        ("transformers", _figures(len(some), slow_seconds, size)),
    ]
    if arguments.trl and has_mask:
        trl_seconds, made = measure.best(lambda: by_trl(library, some, folder), arguments.runs)
        for i, one in enumerate(made):
            labels = np.where(dataset.mask[i] == 1, dataset[i].astype(np.int64), -100).tolist()
            equal &= (dataset[i].tolist(), labels) == (one["input_ids"], one["labels"])
        programs.append(("trl", _figures(len(some), trl_seconds, size)))
    return [
        {"benchmark": "chat", "template": name, "program": program, **figures, "equal": equal}
        for program, figures in programs
    ]


def by_trl(library: Any, chats: list[list[dict[str, str]]], folder: Path) -> Any:
    """The dataset that TRL's trainer trains a model on; this one has next to no weights."""
    import datasets
    import transformers
    import trl

    datasets.disable_caching()
    library.pad_token = library.eos_token
    shape = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
    config = transformers.GPTNeoXConfig(
        vocab_size=len(library), intermediate_size=8, max_position_embeddings=64, **shape
    )
    model = transformers.GPTNeoXForCausalLM(config)
    asked = trl.SFTConfig(
        str(folder / "trl"),
        assistant_only_loss=True,
        max_length=None,
        report_to=[],
        use_cpu=True,
        bf16=False,
    )
    rows = datasets.Dataset.from_list([{"messages": one} for one in chats])
    trainer = trl.SFTTrainer(model, args=asked, train_dataset=rows, processing_class=library)
    return trainer.train_dataset


def _figures(count: int, seconds: float, size: float) -> common.Row:
    return {
        "conversations": count,
        "bytes_each": round(size),
        "cpu": seconds,
        "a_second": count / seconds,
        "mb_s": count * size / seconds / 1e6,
    }


if __name__ == "__main__":
    main()
