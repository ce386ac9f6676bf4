"""Requests for conversations: templates, options, checks on every run, one record to look at."""

from __future__ import annotations

import functools
import gzip
import json
from typing import TYPE_CHECKING, Any

import pytest
from support.chatml_twin import RECORDS, TEMPLATE, Chats, rendered, write_records
from support.faults import kill, plant

import tokpack
import tokpack.chat
from tokpack import apart
from tokpack.apart import Limits
from tokpack.chat.rendered import NO_CONVERSATION
from tokpack.chat.renderer import Renderer
from tokpack.encoding import plan
from tokpack.errors import (
    LimitError,
    RecordError,
    ResumeError,
    TokenizerError,
    UsageError,
    WorkerError,
)

if TYPE_CHECKING:
    from pathlib import Path

pytest.importorskip("jinja2")


# Templates.


def test_no_template(chats: Chats, bpe: Path) -> None:
    says = "no chat template .*chat_template='FILE'"
    chats.refused(RECORDS, says, UsageError, tokenizer=str(bpe))
    file = chats.folder / "mine.jinja"
    file.write_text("{% for m in messages %}{{ m.role }}: {{ m.content }}|{% endfor %}")
    chats.encode(RECORDS[:3], tokenizer=str(bpe), chat_template=str(file))
    (ids, mask), *_ = chats.rows()
    text = tokpack.load_tokenizer(bpe).decode(ids)
    assert text.startswith(f"{RECORDS[0]['messages'][0]['role']}: ")
    assert any(mask)
    file.write_text("{% for %}")
    chats.refused(RECORDS, "wrong in line 1", UsageError, chat_template=str(file), overwrite=True)


def test_a_template_that_is_changed_is_another_request(chats: Chats) -> None:
    file = chats.folder / "mine.jinja"
    file.write_text(TEMPLATE)
    chats.encode(RECORDS, chat_template=str(file))
    file.write_text(TEMPLATE + " ")
    with pytest.raises((tokpack.OutputError, ResumeError), match=r"chat template = '\w{64}', "):
        chats.encode(RECORDS, chat_template=str(file))


def test_variables_of_a_template(chats: Chats) -> None:
    file = chats.folder / "mine.jinja"
    file.write_text("{{ greeting }}" + TEMPLATE)
    chats.encode(RECORDS[:2], chat_template=str(file), template_var={"greeting": "the of"})
    text = tokpack.load_tokenizer(chats.tokenizer).decode(chats.rows()[0][0])
    assert text.startswith("the of<|im_start|>")


# Requests that make no sense.


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"chat": False, "max_length": 3}, "max_length needs chat=True"),
        ({"split_sentences": True}, "split_sentences is for documents"),
        ({"keys": "messages"}, "messages_key"),
        ({"special_tokens": "text"}, "encoded as their ids"),
        ({"truncate": "up"}, "truncate is .*drop, left, right"),
        ({"tool_arguments": "json"}, "tool_arguments is .*auto, mapping, text, as-is"),
        ({"truncate": "left"}, "truncate='left' .* add max_length"),
        ({"max_length": 0}, "max_length is 0"),
        ({"pairs": ["a", "a"]}, "two different keys"),
        ({"template_var": {"a": {1}}}, "template_var: .*not JSON"),
        ({"template_var": {"add_generation_prompt": True}}, "template_var='add_generation_prompt'"),
        ({"template_var": {"messages": []}}, "template_var='messages'"),
        ({"role_map": "a"}, "takes a mapping"),
        ({"loss": "martian"}, "role 'martian' is unknown"),
        ({"map": "os:getcwd"}, "map is for documents"),
    ],
)
def test_wrong_requests(chats: Chats, options: dict[str, Any], says: str) -> None:
    chats.refused(RECORDS[:1], says, UsageError, **options)


def test_a_tokenizer_without_special_tokens_in_text(chats: Chats) -> None:
    words = chats.folder / "words.json"
    words.write_text(json.dumps({"<unk>": 0, "<|endoftext|>": 1}))
    options = {"vocab_file": str(words), "tokenizer_type": "Whitespace", "tokenizer": None}
    file = chats.folder / "mine.jinja"
    file.write_text(TEMPLATE)
    says = "never encodes special tokens"
    chats.refused(RECORDS, says, TokenizerError, chat_template=str(file), **options)


# Templates that meet a limit.


def gz(records: list[dict[str, Any]], folder: Path) -> str:
    path = folder / "in.jsonl.gz"
    path.write_bytes(gzip.compress("".join(json.dumps(one) + "\n" for one in records).encode()))
    return str(path)


LOOPS = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"


@pytest.mark.parametrize(
    ("kind", "limit"),
    [("lines", "memory"), ("ranges", "time"), ("stream", "memory"), ("documents", "time")],
)
def test_a_limit_ends_the_run_at_its_record(
    chats: Chats, monkeypatch: pytest.MonkeyPatch, kind: str, limit: str
) -> None:
    workers, work = {
        "memory": (1, "{{ ('\\t' * 100000).expandtabs(100000) | length }}"),
        "time": (2, LOOPS),
    }[limit]
    monkeypatch.setattr(apart, "SECONDS", 0.5)
    monkeypatch.setattr(apart, "MEMORY", 256 << 20)
    if kind == "ranges":
        cut = plan.make_parts
        monkeypatch.setattr(plan, "MIN_PART_BYTES", 1)
        monkeypatch.setattr(plan, "make_parts", lambda *a, **k: cut(*a, **k, smallest_bytes=9000))
    records = [*RECORDS] * 3
    records[133] = {"messages": [{"role": "user", "content": "Stop"}, *RECORDS[0]["messages"][1:]]}
    file = chats.folder / "mine.jinja"

    def encode(template: str) -> None:
        file.write_text(template)
        options: dict[str, Any] = {"chat_template": str(file), "on_error": "skip"}
        given = {"lines": records, "ranges": records, "documents": iter(records)}
        inputs = given.get(kind) or gz(records, chats.folder)
        chats.encode(inputs, workers=workers, overwrite=True, **options)

    with pytest.raises(RecordError, match=r"mine\.jinja") as caught:
        encode(TEMPLATE + "{% if messages[0].content == 'Stop' %}" + work + "{% endif %}")
    assert caught.value.line == 134
    assert not list(chats.folder.glob("out.*json*"))
    encode(TEMPLATE)
    chats.right(records)


def test_a_worker_that_is_killed_names_its_record(
    chats: Chats, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(limits: Limits, record: int, real: Any = Limits.at) -> None:
        real(limits, record)  # which says where it is
        kill()  # as where the system has no memory left

    plant(Limits, "at", killed, when=lambda _, record: record == 34, patch=monkeypatch)
    chats.refused(RECORDS, r"SIGKILL .*in\.jsonl, line 34;", WorkerError)


def test_a_limit_that_a_template_meets_by_itself(
    chats: Chats, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(apart, "MEMORY", 256 << 20)
    file = chats.folder / "mine.jinja"
    file.write_text(TEMPLATE + "{{ 'a' * 10**10 }}")
    says = r"mine\.jinja: the chat template takes more than 256 MiB"
    chats.refused(RECORDS, says, LimitError, chat_template=str(file), on_error="skip")
    assert {one.name for one in chats.folder.iterdir()} == {"mine.jinja", "in.jsonl"}


# Checks on every run.


def test_what_is_trained_outside_of_an_answer_is_refused(
    chats: Chats, monkeypatch: pytest.MonkeyPatch
) -> None:
    def shifted(self: Renderer, *given: Any, real: Any = Renderer.render_all) -> Any:
        for made in real(self, *given):
            yield [one._replace(trained=((0, 3), *one.trained)) for one in made]

    monkeypatch.setattr(Renderer, "render_all", shifted)
    says = r"in\.jsonl:1: trained outside of an answer: '<\|i' at character 0"
    chats.refused(RECORDS, says, RecordError)


def test_marks_are_held_to_the_library(chats: Chats, monkeypatch: pytest.MonkeyPatch) -> None:
    from tokpack import _core

    def wrong(*arrays: Any, real: Any = _core.mark_tokens) -> Any:
        calls.append(1)
        return real(*arrays) ^ (len(calls) == 1)

    calls: list[int] = []
    monkeypatch.setattr(_core, "mark_tokens", wrong)
    chats.refused(RECORDS, "fails its self-check: .* give different mask", TokenizerError)


# One record, to look at.


def test_render_gives_what_encode_writes(chats: Chats) -> None:
    chats.encode(RECORDS)
    for record, (ids, mask) in zip(RECORDS[:6], chats.rows()[:6], strict=True):
        (made,) = tokpack.chat.render(record, tokenizer=chats.tokenizer)
        assert (made.ids.tolist(), made.mask.tolist()) == (ids, mask)
        assert (made.text, list(made.trained)) == rendered(record["messages"])
        assert [turn.role for turn in made.turns] == [one["role"] for one in record["messages"]]


def test_render_says_what_is_wrong(chats: Chats) -> None:
    render = functools.partial(tokpack.chat.render, tokenizer=chats.tokenizer)
    with pytest.raises(tokpack.chat.ConversationError, match=f"{NO_CONVERSATION}: .*text"):
        render({"text": "a"})
    with pytest.raises(UsageError, match=r"'los': .*\bloss\b"):
        render(RECORDS[0], los="last")
    with pytest.raises(UsageError, match=r"messages.* list$"):
        render([])  # type: ignore[arg-type]
    assert render(RECORDS[0], loss="all")[0].mask.all()
    assert "trained>" in repr(render(RECORDS[0])[0])


def test_a_dry_run_shows_what_is_trained(chats: Chats, capsys: pytest.CaptureFixture[str]) -> None:
    from tokpack.cli.main import main

    source = write_records(chats.folder / "in.jsonl", [*RECORDS[:2], {"text": "a"}])
    words = ["encode", str(source), "-o", str(chats.output), "--tokenizer", str(chats.tokenizer)]
    assert main([*words, "--chat", "--dry-run"]) == 1
    assert f"{source}:3: no conversation" in capsys.readouterr().err
    assert main([*words, "--chat", "--dry-run", "--on-error", "skip"]) == 0
    said = capsys.readouterr().out
    assert "3 records: 2 documents" in said
    assert "no conversation (1)" in said
    assert f"{source}:3: no conversation" in said
    assert "<|im_start|>assistant" in said
    assert "<|im_end|>]]" in said
    assert "in all 2 documents" in said
    assert not list(chats.folder.glob("out*"))
    assert main([*words, "--dry-run"]) == 1
    assert "conversations are encoded with --chat" in capsys.readouterr().err
