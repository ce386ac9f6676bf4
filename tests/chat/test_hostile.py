"""Templates and records that would take for ever, take all memory, or reach out of the sandbox."""

from __future__ import annotations

import contextlib
import time
import tracemalloc
from typing import Any

import pytest
from jinja2 import UndefinedError

from tokpack.chat import ChatOptions, ConversationError, sandbox
from tokpack.chat.renderer import Renderer
from tokpack.errors import UsageError

TALK = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Good day"}]
PLAIN = "{% for m in messages %}[{{ m.role }}]{{ m.content }}.{% endfor %}"

ENDLESS = {
    "loops": "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "loops that write": (
        "{% for i in range(99999) %}{% for j in range(99999) %}x{% endfor %}{% endfor %}"
    ),
    "macros": "{% macro f(n) %}{{ f(n - 1) + f(n - 1) if n }}{% endmacro %}{{ f(60) }}",
    "a loop that calls itself": "{% for m in [1, 2] recursive %}{{ loop([1, 2]) }}{% endfor %}",
    "a macro that calls itself": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "repeated text": "{{ 'a' * 10**9 }}",
    "repeated variables": "{% set n = 10**8 %}{{ 'a' * n * n }}",
    "repeated lists": "{% set x = [0] * 10**9 %}",
    "a long range": "{% for i in range(10**9) %}{% endfor %}",
    "a wide field": "{{ 'a'.ljust(10**9) }}",
    "a centred field": "{{ 'a' | center(10**9) }}",
    "centred by name": "{{ ['a'] | map('center', 10**9) | list }}",
    "a format": "{{ '%1000000000d' % 1 }}",
    "a starred format": "{{ '%*d' % (10**9, 1) }}",
    "a format method": "{{ '{:1000000000}'.format(1) }}",
    "a nested format": "{{ '{:{}}'.format(1, 10**9) }}",
    "a format filter": "{{ '%1000000000d' | format(1) }}",
    "replacement": "{% set a = 'a' * 9999 %}{{ a.replace('a', a).replace('a', a) }}",
    "a replacement filter": "{% set a = 'a' * 9999 %}{{ a | replace('a', a) | replace('a', a) }}",
    "joins": "{% set a = 'a' * 9999 %}{{ a.join(['x'] * 9999) }}",
    "a table of letters": "{% set a = 'a' * 9999 %}{{ a.translate({97: a}) }}",
    "indentation": "{{ [1] | tojson(indent=10**9) }}",
    "indented lines": "{{ ('\n' * 9999) | indent(9999) }}",
    "bytes of a number": "{{ (1).to_bytes(10**9, 'big') }}",
    "a power": "{{ 10 ** 10 ** 9 }}",
    "doubled text": (
        "{% set n = namespace(x='ab') %}{% for i in range(60) %}"
        "{% set n.x = n.x + n.x %}{% endfor %}{{ n.x }}"
    ),
    "text next to itself": (
        "{% set n = namespace(x='ab') %}{% for i in range(60) %}"
        "{% set n.x = n.x ~ n.x %}{% endfor %}{{ n.x }}"
    ),
    "lists in lists": (
        "{% set n = namespace(x=[1]) %}{% for i in range(60) %}"
        "{% set n.x = [n.x, n.x] %}{% endfor %}{{ n.x }}"
    ),
    "dicts in dicts": (
        "{% set n = namespace(x=1) %}{% for i in range(60) %}"
        "{% set n.x = dict(a=n.x, b=n.x) %}{% endfor %}{{ n.x | tojson }}"
    ),
    "filled lists": (
        "{% set n = namespace(x=[1]) %}{% for i in range(60) %}"
        "{% set n.x = n.x | batch(2, n.x) | list %}{% endfor %}{{ n.x }}"
    ),
    "a long variable": (
        "{% set a = 'a' * 9999 %}{% set b %}{% for i in range(99999) %}{{ a }}{% endfor %}"
        "{% endset %}"
    ),
    "many long texts": (
        "{% set n = namespace(l=[], a='a' * 9999) %}{% for i in range(99999) %}"
        "{% set n.l = n.l + [n.a + 'b'] %}{% endfor %}"
    ),
    "filler": "{{ lipsum(n=10**7) }}",
}
OUTSIDE = {
    "a class": "{{ ''.__class__ }}",
    "a class by its name": "{{ ''['__class__'] }}",
    "a class by a filter": "{{ ('' | attr('__class__')).__mro__ }}",
    "globals": "{{ raise_exception.__globals__ }}",
    "a dict's type": "{{ dict.__init__ }}",
    "a namespace's inside": "{% set n = namespace(_x=1) %}{{ n }}",
    "a format's attribute": "{{ '{0.__class__}'.format('') }}",
    "a list that grows": "{{ messages.append(1) }}",
    "a frame": "{{ cycler.__init__.__globals__ }}",
    "a file": "{% include '/etc/passwd' %}",
}


@pytest.fixture
def little(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousandth of the work that a conversation may take: about 10 ms, or 10^5 characters."""
    monkeypatch.setattr(sandbox, "_UNITS", 10**7)


def refuse(template: str) -> str:
    """The error of a template, which comes in bounded processor time and memory."""
    tracemalloc.start()
    begun = time.process_time()
    try:
        with pytest.raises((UsageError, ConversationError)) as caught:
            Renderer(template, ChatOptions()).render({"messages": TALK})
        assert time.process_time() - begun < 5  # it is some 10 ms, and tracemalloc's
        assert tracemalloc.get_traced_memory()[1] < 64 << 20
    finally:
        tracemalloc.stop()
    return str(caught.value)


@pytest.mark.parametrize("name", ENDLESS)
@pytest.mark.usefixtures("little")
def test_what_takes_for_ever_is_refused(name: str) -> None:
    message = refuse(PLAIN + ENDLESS[name])
    assert any(
        reason in message
        for reason in ("takes too much work", "template fails", "cannot be compiled")
    )


@pytest.mark.parametrize("values", [[*range(1000)], "a " * 500, ["a"] * 1000])
def test_filters_take_what_they_look_at(values: Any) -> None:
    environment = sandbox.Sandbox(None)
    template = environment.from_string("{% set x = values | groupby('real') %}")
    before = environment.budget.left
    with contextlib.suppress(UndefinedError):  # a text has no such part
        template.render(values=values)
    assert before - environment.budget.left > 5_000 * len(values)  # as many nanoseconds, about


@pytest.mark.parametrize("name", OUTSIDE)
def test_nothing_leads_out_of_the_sandbox(name: str) -> None:
    message = refuse(PLAIN + OUTSIDE[name])
    assert any(reason in message for reason in ("unsafe", "template fails"))


@pytest.mark.parametrize("called", ["namespace(a=1)", "dict(a=1)", "range(1)", "joiner()"])
def test_what_a_call_block_cannot_call_is_refused(called: str) -> None:
    assert "template fails" in refuse(f"{PLAIN}{{% call(x) {called} %}}{{% endcall %}}")


def test_a_million_messages_are_refused() -> None:
    with pytest.raises(ConversationError) as caught:
        Renderer(PLAIN, ChatOptions()).render({"messages": TALK * 500_000})
    assert caught.value.reason == "too many messages"


def test_ten_thousand_messages_are_none_too_many() -> None:
    (rendered,) = Renderer(PLAIN, ChatOptions()).render({"messages": TALK * 5_000})
    assert len(rendered.trained) == 5_000


def test_a_text_of_ten_million_characters_is_none_too_long() -> None:
    talk = [TALK[0], {"role": "assistant", "content": "abcdefghij" * 10**6}]
    (rendered,) = Renderer(PLAIN, ChatOptions()).render({"messages": talk})
    ((begin, end),) = rendered.trained
    assert end - begin > 10**7


@pytest.mark.parametrize(
    "source",
    [
        "{% for m in messages %}",
        "{{ nonsense('",
        "{% generation %}",
        "{{ " + "(" * 5000 + ")" * 5000 + " }}",
        "x" * (1 << 21),
    ],
)
def test_a_template_that_is_none_is_refused_at_once(source: str) -> None:
    with pytest.raises(UsageError, match="chat template"):
        Renderer(source, ChatOptions())


def test_what_is_no_json_is_shown_to_no_template() -> None:
    class Odd:
        secret = "hidden"

    talk: list[dict[str, Any]] = [{**TALK[0], "odd": Odd()}, TALK[1]]
    template = "{% for m in messages if m.odd %}{{ m.odd }}{{ m.odd.secret }}{% endfor %}"
    (rendered,) = Renderer(template, ChatOptions()).render({"messages": talk})
    assert rendered.text == "<Odd>"


def test_values_nested_without_end_are_refused() -> None:
    deep: list[Any] = []
    for _ in range(200):
        deep = [deep]
    with pytest.raises(ConversationError) as caught:
        Renderer(PLAIN, ChatOptions()).render({"messages": [{**TALK[0], "deep": deep}, TALK[1]]})
    assert caught.value.reason == "malformed message"
