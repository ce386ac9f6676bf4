"""Records become text with the spans of its turns and of what is trained."""

from __future__ import annotations

import pickle

import pytest

from tokpack.chat import ChatOptions, ConversationError, sandbox
from tokpack.chat.renderer import Renderer
from tokpack.errors import TokpackError

CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] "
    "+ '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
TALK = [
    {"role": "system", "content": "Be kind."},
    {"role": "user", "content": "Hello"},
    {"role": "assistant", "content": "Good day"},
    {"role": "user", "content": "Bye"},
    {"role": "assistant", "content": "Farewell"},
]


def trained(renderer: Renderer, record: dict[str, object]) -> list[str]:
    """The trained texts of a record's one conversation."""
    (rendered,) = renderer.render(record)
    return [rendered.text[begin:end] for begin, end in rendered.trained]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (ChatOptions(), ["Good day<|im_end|>", "Farewell<|im_end|>"]),
        (ChatOptions(loss="last"), ["Farewell<|im_end|>"]),
        (ChatOptions(loss_on_eot=False), ["Good day", "Farewell"]),
        (ChatOptions(loss="system,user", loss_on_eot=False), ["Be kind.", "Hello", "Bye"]),
    ],
)
def test_what_is_trained_is_chosen(options: ChatOptions, expected: list[str]) -> None:
    assert trained(Renderer(CHATML, options), {"messages": TALK}) == expected


def test_all_of_a_text_is_trained() -> None:
    (rendered,) = Renderer(CHATML, ChatOptions(loss="all")).render({"messages": TALK})
    assert rendered.trained == ((0, len(rendered.text)),)


def test_turns_have_their_roles_and_cover_the_text() -> None:
    (rendered,) = Renderer(CHATML, ChatOptions()).render({"messages": TALK})
    assert [role for _, _, role in rendered.turns] == [message["role"] for message in TALK]
    pieces = [rendered.text[begin:end] for begin, end, _ in rendered.turns]
    assert "".join(pieces) == rendered.text
    assert pieces[1] == "<|im_start|>user\nHello<|im_end|>\n"


def test_a_text_that_jinja2_alone_does_not_give_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    template = CHATML.replace("message['content']", "message['content'].strip()")
    Renderer(template, ChatOptions()).render({"messages": TALK})
    monkeypatch.setattr(
        sandbox.Sandbox, "method", lambda self, context, text, *others: text.lower()
    )
    renderer = Renderer(template, ChatOptions())
    with pytest.raises(TokpackError, match=r"'be kind.*'Be kind"):
        renderer.render({"messages": TALK})


def test_a_pickled_renderer_renders_the_same() -> None:
    renderer = Renderer(CHATML, ChatOptions(loss="last"))
    again = pickle.loads(pickle.dumps(renderer))
    assert again.render({"messages": TALK}) == renderer.render({"messages": TALK})
    assert again.identity() == renderer.identity()


def test_a_message_of_weight_0_is_not_trained() -> None:
    talk = [{**TALK[2], "weight": 0} if i == 2 else one for i, one in enumerate(TALK)]
    assert trained(Renderer(CHATML, ChatOptions()), {"messages": talk}) == ["Farewell<|im_end|>"]


def test_a_record_without_a_conversation_is_refused() -> None:
    with pytest.raises(ConversationError) as caught:
        Renderer(CHATML, ChatOptions()).render({"text": "Hello"})
    assert caught.value.reason == "no conversation"
