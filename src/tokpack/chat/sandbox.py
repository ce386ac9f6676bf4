"""The environment of templates: jinja2's sandbox with transformers' functions."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, field
from datetime import date, datetime
from functools import partial
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any

from tokpack.errors import UsageError, needs_extra, option

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from jinja2 import Undefined
    from jinja2.parser import Parser
    from jinja2.runtime import Context

    from tokpack.chat.marks import Span


with needs_extra("chat"):
    from jinja2.exceptions import SecurityError, TemplateError
    from jinja2.ext import Extension, loopcontrols
    from jinja2.nodes import ExprStmt, InternalName, Node, Scope
    from jinja2.runtime import LoopContext
    from jinja2.sandbox import ImmutableSandboxedEnvironment
    from jinja2.utils import Cycler, Joiner, Namespace


# A template gets its messages as objects that watch it: they note where each message begins in the
# text, and which messages the template reads.
#
# The text of a message may depend on later messages, for instance if the template tests for the
# last one or for their number. So every access is noted with its place in the text. If no later
# message was read before the end of message i, the text up to there is what the first i + 1
# messages alone would give, and need not be rendered again. A loop that writes nothing, such as a
# search for pictures, counts only as an access to messages up to the last one that made it set
# something.

EVERY = sys.maxsize  # stands for all messages, if a look depends on their count or the last one


@dataclass(eq=False, slots=True)
class Pass:
    """A loop over ``count`` messages from number ``first`` on.

    ``places`` are the numbers of pieces written when each round began and, at the end, when the
    loop ended; fewer if the template has left the loop early. ``effect`` is the last round with an
    effect; -1 for none.
    """

    first: int
    count: int
    effect: int
    places: list[int] = field(default_factory=list)


class Run:
    """One run of a template: its text in pieces, and which messages it has read.

    ``looks`` are (pieces so far, number of the last message that was read); ``passes`` are loops
    over messages. ``generations`` are the pieces at which generation blocks begin and end.
    ``states`` are the values that determine a generation prompt, before each round of the main loop
    (`program`).
    """

    __slots__ = (
        *("_copies", "_known", "_open", "generations", "is_disordered", "looks"),
        *("messages", "passes", "pieces", "states", "variables"),
    )

    def __init__(self, messages: Sequence[Any], variables: Mapping[str, Any]) -> None:
        self.messages, self.variables = messages, variables
        self.pieces: list[str] = []
        self.looks: list[tuple[int, int]] = []
        self.passes: list[Pass] = []
        self._open: list[Pass] = []
        self._known: set[int] = set()  # the ids of message objects
        self._copies: list[int] = []  # the pieces at which loops over lists of messages begin
        self.generations: list[list[int]] = []
        self.states: list[tuple[Any, ...]] = []
        self.is_disordered = False

    def look(self, number: int) -> None:
        """Note that something was read that depends on messages up to ``number``."""
        self.looks.append((len(self.pieces), number))

    def begin(self, first: int, count: int, *, writes: bool) -> Pass:
        """Note a loop over ``count`` messages from ``first`` on."""
        one = Pass(first, count, count if writes else -1)
        self.passes.append(one)
        if not writes:
            self._open.append(one)
        return one

    def copy(self, values: list[Any]) -> None:
        """Note a loop that may write over a list of messages that the template made itself."""
        if self.are_messages(values[0], values[-1]):
            self._copies.append(len(self.pieces))

    def are_messages(self, *values: Any) -> bool:
        """Whether at least one of the values is a message of this run."""
        if not self._known:
            self._known = {id(one) for one in self.messages}
        return not self._known.isdisjoint(map(id, values))

    @property
    def rounds(self) -> int:
        """The number of rounds of loops over messages that have begun or ended so far."""
        return sum(len(one.places) for one in self.passes)

    def effect(self) -> None:
        """Note that something was set on which later text may depend."""
        if self._open:
            self._open = [one for one in self._open if len(one.places) <= one.count]
            for one in self._open:
                one.effect = len(one.places) - 1

    def text(self) -> Text:
        """The text of the run, with its turns."""
        given = self.messages, self.variables
        ends = [0, *accumulate(map(len, self.pieces))]
        text = "".join(self.pieces)
        generations = [(ends[begin], ends[end]) for begin, end in self.generations]
        main = self._main()
        if not main:
            return Text(*given, text, None, len(text), generations, [(0, EVERY)])
        looks = [(ends[at], number) for at, number in self.looks]
        for one in self.passes:
            if one not in main and one.effect >= 0 and one.places:
                looks.append((ends[one.places[0]], one.first + one.effect))
        first, count = main[0].first, sum(one.count for one in main)
        turns: list[Span | None] = [None] * len(self.messages)
        turns[first : first + count] = [
            (ends[begin], ends[end]) for one in main for begin, end in pairwise(one.places)
        ]
        preamble = ends[main[0].places[0]]
        if preamble and len(turns) > 1 and (turns[0] is None or turns[0][0] == turns[0][1]):
            # The template wrote the system message before the loop.
            turns[0] = None if self.messages[0].get("role") == "assistant" else (0, preamble)
        states = [()] * first + self.states if len(self.states) == count else []
        return Text(*given, text, turns, ends[main[-1].places[-1]], generations, looks, states)

    def _main(self) -> list[Pass]:
        """The loop that writes the messages, with loops inside of it; [] if there are several.

        Loops that continue each other, with nothing written in between, count as one.
        """
        writing = [one for one in self.passes if one.places[-1:] > one.places[:1]]
        if not writing or self.is_disordered:
            return []
        if len(writing) == 1 and not self._copies:  # the usual case
            return writing if len(writing[0].places) > writing[0].count else []
        main = writing[:1]
        for one in writing[1:]:
            last = main[-1]
            goes_on = one.first == last.first + last.count and one.places[0] >= last.places[-1]
            if goes_on and not self._between(last.places[-1], one.places[0]):
                main.append(one)
        begin, end = main[0].places[0], main[-1].places[-1]
        inside = all(begin <= one.places[0] and one.places[-1] <= end for one in writing)
        for at in self._copies:
            inside = inside and not (self._between(end) if at >= end else self._between(at, begin))
        return main if inside and all(len(one.places) > one.count for one in main) else []

    def _between(self, begin: int, end: int | None = None) -> str:
        """The text written between two pieces, without outer white space."""
        return "".join(self.pieces[begin:end]).strip()


@dataclass(eq=False, slots=True)
class Text:
    """A rendered conversation: ``messages``, to which a template is given ``variables``.

    ``turns`` has the span of each message, or None for a message that the loop did not reach; it is
    None as a whole if there is no main loop. ``end`` is the end of the last turn: some templates
    write more after it. ``generations`` are the spans of ``{% generation %}``.

    ``looks`` are (place in the text, number of the last message that was read there). ``states``
    are the values that determine a generation prompt before each message; empty if unknown.
    """

    messages: Sequence[Any]
    variables: Mapping[str, Any]
    text: str
    turns: list[Span | None] | None
    end: int
    generations: list[Span]
    looks: list[tuple[int, int]]
    states: Sequence[tuple[Any, ...]] = ()

    def turn(self, number: int) -> Span | None:
        """The span of a message's turn; None if it is not known, or if it has none."""
        return self.turns[number] if self.turns else None

    def is_plain(self, number: int) -> bool:
        """Whether the text up to the end of a message does not depend on later messages."""
        turn, looks = self.turn(number), self.looks
        if turn is None:
            return False
        return not looks or not any(number < later and at < turn[1] for at, later in looks)

    def state(self, number: int) -> tuple[Any, ...] | None:
        """The values that determine a generation prompt in place of a message, or None if unknown.

        They are unknown if the template read the message earlier.
        """
        states = self.states
        return states[number] if number < len(states) and self.is_asked(number) else None

    def is_asked(self, number: int) -> bool:
        """Whether the text before a message does not depend on it or on later ones."""
        turn = self.turn(number)
        if turn is None:
            return False
        return not any(number <= later and at <= turn[0] for at, later in self.looks)


class Messages:
    """The messages of a run, or a part of them from number ``first`` on; a list for the
    template.
    """

    __slots__ = ("_first", "_items", "_run")

    def __init__(self, run: Run, items: Sequence[Any], first: int = 0) -> None:
        self._run, self._items, self._first = run, items, first

    def __iter__(self) -> Iterator[Any]:
        """All of them; a filter, say, may do anything with them, so all count as read."""
        self._run.look(EVERY)
        return self.rounds(writes=True)

    def rounds(self, *, writes: bool) -> Iterator[Any]:
        """The messages of a loop, with a note at each round."""
        pieces = self._run.pieces
        add = self._run.begin(self._first, len(self._items), writes=writes).places.append
        for message in self._items:
            add(len(pieces))
            yield message
        add(len(pieces))

    def __bool__(self) -> bool:
        if self._first:
            self._run.look(self._first)
        return bool(self._items)

    def __len__(self) -> int:
        self._run.look(EVERY)
        return len(self._items)

    def __getitem__(self, which: Any) -> Any:
        first = self._first
        if which.__class__ is int:
            self._run.look(first + which if which >= 0 else EVERY)
        elif which.__class__ is slice:
            begin, end = which.start or 0, which.stop
            ends = end is None or (end.__class__ is int and end >= 0)
            if which.step is None and begin.__class__ is int and begin >= 0 and ends:
                return Messages(self._run, self._items[which], first + begin)
            self._run.look(EVERY)
        return self._items[which]

    def _all(self) -> list[Any]:
        self._run.look(EVERY)
        return list(self._items)

    def __contains__(self, one: object) -> bool:
        return one in self._all()

    def __reversed__(self) -> Any:
        return self._all()[::-1]  # a list of messages, which `Run.copy` recognizes

    def __eq__(self, other: object) -> bool:
        return bool(self._all() == other)

    __hash__ = None  # type: ignore[assignment] # as that of a list

    def __add__(self, other: Any) -> Any:
        return self._all() + (other._all() if isinstance(other, Messages) else other)

    def __radd__(self, other: Any) -> Any:
        return other + self._all()

    def __repr__(self) -> str:
        return repr(self._all())


class Rounds:
    """Messages in a loop of a template that ``writes``, or else may only have other effects."""

    __slots__ = ("messages", "writes")

    def __init__(self, messages: Messages, *, writes: bool) -> None:
        self.messages, self.writes = messages, writes

    def __iter__(self) -> Iterator[Any]:
        return self.messages.rounds(writes=self.writes)


class WatchedLoop(LoopContext):
    """``loop`` in templates; over messages, it notes where each round begins."""

    _run: Run | None = None
    _first = 0
    _pieces: Sequence[str] = ()
    _add: Callable[[int], None] = staticmethod(lambda place: None)

    def __init__(self, iterable: Any, *others: Any, **named: Any) -> None:
        if iterable.__class__ is Rounds:
            writes, messages = iterable.writes, iterable.messages
            self._run, self._first, iterable = messages._run, messages._first, messages._items
            self._pieces = self._run.pieces
            self._add = self._run.begin(self._first, len(iterable), writes=writes).places.append
        super().__init__(iterable, *others, **named)

    def __next__(self) -> tuple[Any, WatchedLoop]:
        self._add(len(self._pieces))
        return super().__next__()  # type: ignore[return-value]

    def _peek_next(self) -> Any:
        self._look(self._first + self.index0 + 1)
        return super()._peek_next()

    @property
    def length(self) -> int:
        """The number of rounds."""
        self._look(EVERY)
        return super().length

    def _look(self, number: int) -> None:
        if self._run is not None:
            self._run.look(number)


class LoopMaker:
    """Makes loops for a program; ``run`` is always its current run."""

    def __init__(self) -> None:
        self.run = Run((), {})

    def __call__(self, iterable: Any, *others: Any, **named: Any) -> WatchedLoop:
        """A loop; over a generator, it may take the next element ahead of its turn."""
        loop = WatchedLoop(iterable, *others, **named)
        if loop._run is None and hasattr(iterable, "__next__"):
            loop.__class__ = _LazyLoop
            loop._run = self.run
        return loop


class _LazyLoop(WatchedLoop):
    """A loop over a generator, which may take its elements from messages.

    Reading the next element or the length takes elements ahead of their turn. Then it is unknown
    where turns are.
    """

    def _peek_next(self) -> Any:
        return self._taken(partial(LoopContext._peek_next, self))

    @property
    def length(self) -> int:
        """The number of rounds."""
        self._taken(partial(LoopContext.length.__get__, self))
        return self._length or 0

    def _taken(self, take: Callable[[], Any]) -> Any:
        run = self._run
        assert run is not None
        before, value = run.rounds, take()
        if run.rounds > before or run.are_messages(self._current, value):
            run.look(EVERY)
            run.is_disordered = True
        return value


# Templates may call the functions that transformers gives them, and nothing that leads elsewhere.


def tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON in the form of transformers' templates: characters of HTML are not escaped."""
    return json.dumps(
        list(value) if value.__class__ is Messages else value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def raise_exception(message: str) -> None:
    raise TemplateError(message)


class FixedClock:
    """``strftime_now`` with the day in the request, so that results are reproducible."""

    def __init__(self, day: date | None) -> None:
        self._day = day

    def __call__(self, form: str) -> str:
        """The day in a format of ``strftime``. UsageError if the request names none."""
        if self._day is None:
            raise UsageError(
                "the chat template asks for today's date, so tokens would change tomorrow: "
                f"set the date, {option('template_var', 'date=2026-11-23')}"
            )
        return self._day.strftime(form)


def day_of(value: object) -> date | None:
    """The day, or the time, that a request names; None for none. UsageError."""
    if value is None:
        return None
    try:
        return datetime.fromisoformat(str(value))
    except ValueError:
        raise UsageError(
            f"the variable date of a chat template is {value!r}: give a day such as 2026-11-23"
        ) from None


class DictMaker:
    """``dict`` in templates: not the class itself, whose attributes lead elsewhere."""

    def __call__(self, *values: Any, **named: Any) -> dict[Any, Any]:
        return dict(*values, **named)

    def fromkeys(self, *values: Any) -> dict[Any, Any]:
        """``dict.fromkeys``."""
        return dict.fromkeys(*values)


class SafeNamespace(Namespace):
    """``namespace`` in templates, without names that begin with an underscore."""

    def __init__(*args: Any, **named: Any) -> None:  # without self: a variable may have that name
        self, *values = args
        for name, value in dict(*values, **named).items():
            self[name] = value

    __getattribute__ = object.__getattribute__  # jinja2's own would read another dict

    def __setitem__(self, name: str, value: Any) -> None:
        if str(name).startswith("_"):
            raise SecurityError(f"a namespace cannot have the attribute {name!r}")
        self.__dict__[name] = value

    def __repr__(self) -> str:
        return f"<Namespace {self.__dict__!r}>"


STR_METHODS = frozenset(one for one in dir(str) if one[0] != "_") - {"format", "format_map"}
_MISSING = object()


class Sandbox(ImmutableSandboxedEnvironment):
    """An environment with the functions that transformers gives to templates.

    An unsafe access raises SecurityError at once. ``day`` is the result of ``strftime_now``.
    ``effect`` is called when something changes that outlasts a round of a loop.
    """

    effect: Callable[[], None]

    def __init__(self, day: date | None) -> None:
        super().__init__(
            trim_blocks=True, lstrip_blocks=True, extensions=[GenerationTag, loopcontrols]
        )
        self.filters["tojson"] = tojson
        self.globals |= {
            "raise_exception": raise_exception,
            "strftime_now": FixedClock(day),
            "dict": DictMaker(),
            "namespace": SafeNamespace,
        }
        is_sequence: Any = self.tests["sequence"]
        self.tests["sequence"] = lambda one: one.__class__ is Messages or is_sequence(one)

    def key(self, obj: Any, name: str) -> Any:
        """An attribute that no mapping has, or an element by that name."""
        if obj.__class__ is dict:
            value = obj.get(name, _MISSING)
            if value is not _MISSING:
                return value
            return self.undefined(obj=obj, name=name)
        return self.getattr(obj, name)

    def getattr(self, obj: Any, attribute: str) -> Any:
        """An attribute, or an element by that name; for common types without a detour."""
        if obj.__class__ in _OPEN and attribute[:1] != "_":
            value = getattr(obj, attribute, _MISSING)
            return self.undefined(obj=obj, name=attribute) if value is _MISSING else value
        if obj.__class__ is str and attribute in STR_METHODS:
            return getattr(obj, attribute)
        return super().getattr(obj, attribute)

    def unsafe_undefined(self, obj: Any, attribute: str) -> Undefined:
        """Refuse at once what jinja2 would refuse on first use."""
        raise SecurityError(f"access to attribute {attribute!r} of {type(obj).__name__}")

    def call(self, context: Context, function: Any, /, *values: Any, **named: Any) -> Any:
        """Call a method, a macro or a global function."""
        owner = getattr(function, "__self__", None)
        if isinstance(function, Joiner) or isinstance(owner, Cycler | LoopContext):
            self.effect()
        return super().call(context, function, *values, **named)

    def method(self, context: Context, obj: Any, name: str, *values: Any) -> Any:
        """Call a method, nearly always one of STR_METHODS."""
        if obj.__class__ is str:
            return getattr(obj, name)(*values)
        return self.call(context, self.getattr(obj, name), *values)


def plain_environment(day: date | None) -> ImmutableSandboxedEnvironment:
    """The environment that transformers uses, without anything that this module adds."""
    plain = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_PlainGeneration, loopcontrols]
    )
    plain.filters["tojson"] = tojson
    plain.globals |= {"raise_exception": raise_exception, "strftime_now": FixedClock(day)}
    return plain


class _PlainGeneration(Extension):
    """``{% generation %}`` as a scope and nothing else."""

    tags = {"generation"}  # noqa: RUF012 - so it is declared there

    def parse(self, parser: Parser) -> Scope:
        """The statements up to ``{% endgeneration %}``."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return Scope(body, lineno=line)


class GenerationTag(_PlainGeneration):
    """``{% generation %}``: a scope whose text an assistant has written.

    It begins and ends with a Python statement that no template can contain.
    """

    def parse(self, parser: Parser) -> Scope:
        """The statements up to ``{% endgeneration %}``."""
        scope = super().parse(parser)
        begin, end = (code(f"direct_generation({b})", scope.lineno) for b in (True, False))
        scope.body = [begin, *scope.body, end]
        return scope


def code(python: str, line: int) -> ExprStmt:
    """A statement of Python, which no template can contain itself."""
    name = object.__new__(InternalName)  # the compiler writes its name as it is
    Node.__init__(name, python, lineno=line)
    return ExprStmt(name, lineno=line)


# Types whose attributes are all safe, except those that begin with an underscore.
_OPEN = frozenset([LoopContext, WatchedLoop, SafeNamespace])
