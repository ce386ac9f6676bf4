"""Templates and records that would take for ever, take all memory, or reach out of the sandbox."""

from __future__ import annotations

import multiprocessing
import resource
import signal
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tokpack import apart
from tokpack.chat import ChatOptions, ConversationError, Rendered
from tokpack.chat.renderer import Renderer
from tokpack.chat.template import ChatTemplate
from tokpack.chat.tokens import Rendering, process_for
from tokpack.errors import LimitError, UsageError, WorkerError

TALK = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Good day"}]
PLAIN = "{% for m in messages %}[{{ m.role }}]{{ m.content }}.{% endfor %}"

# Each of them for hours, or with more memory than there is.
ENDLESS = {
    "tabs": "{{ ('\\t' * 10**5).expandtabs(10**5) | length }}",
    "joins of lazy maps": (
        "{{ range(10**5) | map('string') | join(range(10**5) | join) | length }}"
    ),
    "indentation": "{{ ([1] * 10**5) | tojson(indent=10**5) | length }}",
    "one argument many times": "{{ ('{0}' * 10**5).format('a' * 10**5) | length }}",
    "one name many times": "{{ ('%(a)s' * 10**5) % {'a': 'b' * 10**5} }}",
    "a loop that leaves all out": (
        "{% set r = range(10**5) | list %}"
        "{% for i in r %}{% for a in r if false %}{% endfor %}{% endfor %}"
    ),
    "loops that write": (
        "{% for i in range(99999) %}{% for j in range(99999) %}x{% endfor %}{% endfor %}"
    ),
    "macros": "{% macro f(n) %}{{ f(n - 1) + f(n - 1) if n }}{% endmacro %}{{ f(60) }}",
    "a constant": "{{ 'a' * 10**10 }}",
    "repeated variables": "{% set n = 10**8 %}{{ 'a' * n * n }}",
    "repeated lists": "{% set x = [0] * 10**10 %}",
    "a power": "{% set n = 10**9 %}{{ 10 ** n }}",
    "a wide field": "{{ 'a'.ljust(10**10) }}",
    "centred by name": "{{ ['a'] | map('center', 10**10) | list }}",
    "a format": "{{ '%2000000000d' % 1 }}",
    "a nested format": "{{ '{:{}}'.format(1, 2 * 10**9) }}",
    "replacement": "{% set a = 'a' * 99999 %}{{ a.replace('a', a) }}",
    "a table of letters": "{% set a = 'a' * 99999 %}{{ a.translate({97: a}) }}",
    "doubled text": (
        "{% set n = namespace(x='ab') %}{% for i in range(60) %}"
        "{% set n.x = n.x ~ n.x %}{% endfor %}{{ n.x }}"
    ),
    "lists in lists": (
        "{% set n = namespace(x=[1]) %}{% for i in range(60) %}"
        "{% set n.x = [n.x, n.x] %}{% endfor %}{{ n.x }}"
    ),
    "filler": "{{ lipsum(n=10**7) }}",
}
# What jinja2 and Python end themselves.
REFUSED = {
    "a loop that calls itself": "{% for m in [1, 2] recursive %}{{ loop([1, 2]) }}{% endfor %}",
    "a macro that calls itself": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "a long range": "{% for i in range(10**9) %}{% endfor %}",
    "a call of a namespace": "{% call(x) namespace(a=1) %}{% endcall %}",
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
    """Limits that are met in a moment, and still leave room for all that is honest."""
    monkeypatch.setattr(apart, "SECONDS", 0.4)
    monkeypatch.setattr(apart, "MEMORY", 256 << 20)


def render(template: str, *messages: Any, **options: Any) -> list[Rendered]:
    """What a template makes of messages, in a process of its own."""
    record = {"messages": [*messages] or TALK}
    made: list[Rendered] | ConversationError = apart.apart(
        "it", Rendering(ChatTemplate(template), ChatOptions(**options)), record
    )
    if isinstance(made, ConversationError):
        raise made
    return made


def refuse(template: str) -> str:
    with pytest.raises((UsageError, ConversationError)) as caught:
        Renderer(template, ChatOptions()).render({"messages": TALK})
    return str(caught.value)


@pytest.mark.parametrize("name", ENDLESS)
@pytest.mark.usefixtures("little")
def test_what_takes_for_ever_meets_a_limit(name: str) -> None:
    # For this record, and for none of those that are tried.
    template = "{% if messages[0].content == 'Hello' %}" + ENDLESS[name] + "{% endif %}"
    with pytest.raises(LimitError):
        render(template + PLAIN)


@pytest.mark.parametrize("name", ["macros", "a constant", "doubled text"])
@pytest.mark.usefixtures("little")
def test_what_takes_for_ever_where_it_is_tried(name: str) -> None:
    with pytest.raises(LimitError):
        render(ENDLESS[name] + PLAIN)


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.usefixtures("little")
def test_what_python_ends_is_an_error_of_the_record(name: str) -> None:
    template = "{% if messages[0].content == 'Hello' %}" + REFUSED[name] + "{% endif %}"
    with pytest.raises(ConversationError, match="template fails"):
        render(template + PLAIN)


def test_a_text_that_is_too_long_meets_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apart, "CHARACTERS", 10_000)
    assert render(PLAIN, TALK[0], {"role": "assistant", "content": "a" * 9000})
    with pytest.raises(LimitError, match="10000"):
        render(PLAIN, TALK[0], {"role": "assistant", "content": "a" * 10_000})


def test_a_process_that_dies_is_told() -> None:
    def die() -> None:
        signal.raise_signal(signal.SIGKILL)

    with pytest.raises(WorkerError, match=r"\bit\b.* -9\b"):
        apart.apart("it", die)


@pytest.mark.usefixtures("little")
def test_a_process_is_kept_until_a_limit_ends_it() -> None:
    endless = "{% if messages[0].content == 'Hello' %}" + ENDLESS["macros"] + "{% endif %}"
    template, options = ChatTemplate(endless + PLAIN), ChatOptions()
    honest = {"messages": [{"role": "user", "content": "Hi"}, TALK[1]]}
    process = process_for(template, options)
    expected = process(honest)
    assert process_for(template, options) is process
    with ThreadPoolExecutor(1) as threads:
        assert threads.submit(process_for, template, options).result() is not process
    with pytest.raises(LimitError, match=r"0\.4 s"):
        process({"messages": TALK})
    assert not process.is_there
    assert process_for(template, options)(honest) == expected


def test_the_process_of_the_user_is_not_limited() -> None:
    before = resource.getrlimit(resource.RLIMIT_DATA), signal.getitimer(signal.ITIMER_PROF)
    render(PLAIN)
    Renderer(PLAIN, ChatOptions(), apart.Limits()).render({"messages": TALK})
    with apart.Limits():
        assert resource.getrlimit(resource.RLIMIT_DATA) == before[0]
    after = resource.getrlimit(resource.RLIMIT_DATA), signal.getitimer(signal.ITIMER_PROF)
    assert after == before


def test_limits_end_with_the_rendering() -> None:
    def look() -> tuple[Any, ...]:
        limits, before = apart.Limits(), resource.getrlimit(resource.RLIMIT_DATA)
        with limits:
            inside = resource.getrlimit(resource.RLIMIT_DATA)
            timer = signal.getitimer(signal.ITIMER_PROF)[0]
        after = resource.getrlimit(resource.RLIMIT_DATA), signal.getitimer(signal.ITIMER_PROF)[0]
        return before, inside, timer, after

    before, inside, timer, after = apart.apart("it", look)
    assert inside[0] >= apart.MEMORY
    assert timer > 0
    assert after == (before, 0)


def test_a_process_that_may_have_none_renders_itself() -> None:
    with multiprocessing.get_context("fork").Pool(1) as pool:  # a daemon has no children
        assert pool.apply(render, (PLAIN,)) == render(PLAIN)


def test_a_long_conversation_with_tools_meets_no_limit() -> None:
    text = {"type": "string", "description": "what to look for " * 50}
    tools = [
        {"type": "function", "function": {"name": f"find{i}", "parameters": {"properties": text}}}
        for i in range(50)
    ]
    talk = [{"role": one["role"], "content": "Good day to you. " * 60} for one in TALK * 1000]
    (rendered,) = render("{{ tools | tojson }}" + PLAIN, *talk, variables={"tools": tools})
    assert len(rendered.trained) == 1000
    assert len(rendered.text) > 2_000_000


def test_each_run_of_a_template_has_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apart, "SECONDS", 1)
    slow = "{% for i in range(200) %}{% for j in range(200) %}{% endfor %}{% endfor %}"
    # What is last decides what is written, so each answer is rendered by itself.
    template = (
        "{% for m in messages %}[{{ m.role }}]{{ m.content if m.role == 'user' or loop.last }}."
        "{% endfor %}{% if messages[0].content == 'Hello' %}" + slow + "{% endif %}"
        "{% if add_generation_prompt %}[assistant]{% endif %}"
    )
    assert len(render(template, *TALK * 150, rewriting="split")) == 150


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
        "{{ 10 ** 5000 }}",
        "x" * (1 << 21),
    ],
)
def test_a_template_that_is_none_is_refused_at_once(source: str) -> None:
    with pytest.raises(UsageError):
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
