"""A compiled template: one call gives its text, and where in it each message begins."""

from __future__ import annotations

from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from jinja2 import nodes
from jinja2.compiler import CodeGenerator
from jinja2.visitor import NodeTransformer

from tokpack.apart import Limits
from tokpack.chat.rendered import UNSAFE, ConversationError
from tokpack.chat.sandbox import (
    STR_METHODS,
    LoopMaker,
    Messages,
    Rounds,
    Run,
    Sandbox,
    code,
    plain_environment,
)
from tokpack.display import first_line
from tokpack.errors import UsageError, needs_extra

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from datetime import date

    from jinja2 import Template

    from tokpack.chat.sandbox import Text


# A template's syntax tree is analysed, then changed and compiled. In the program, loops report
# where each round begins, and the most frequent operations are direct calls, without jinja2's
# detours.

# The names of filters that are put into the tree; no template can write a name with spaces.
SOME = "some length"
EACH = "each of them"
EACH_WRITTEN = "each of them, which is written"
TOLD = "what is told of a round"

PROMPT = "add_generation_prompt"
_MESSAGES = "messages"
_BUFFERED = (nodes.Macro, nodes.CallBlock, nodes.FilterBlock, nodes.AssignBlock, nodes.Block)
_BOOLEANS = (nodes.Compare, nodes.Not, nodes.Test)
_DICT_NAMES = frozenset(dir(dict))


class Syntax:
    """Facts from a template's tree, before it is changed.

    ``decides`` are the attributes of namespaces, (name, attribute), that determine the generation
    prompt and the text after all messages: empty if these never change, None if they may depend on
    more. ``generation``: there are generation blocks. ``reads_parts``: the template loops
    over the parts of a content. ``asks_for_none``: it tests whether a content is none.
    """

    def __init__(self, tree: nodes.Template) -> None:
        self._bound = _bound(tree)
        self._spaces = {
            one.target.name
            for one in tree.body
            if isinstance(one, nodes.Assign)
            and isinstance(one.target, nodes.Name)
            and isinstance(one.node, nodes.Call)
            and _variables(one.node.node) == {"namespace"}
        }
        self._found: set[tuple[str, str]] = set()
        self._loops: list[nodes.For] = []
        prompts = self._prompts(tree.body)
        is_known = prompts is not None and prompts == _asks(tree)
        self.decides = tuple(sorted(self._found)) if is_known else None
        self.reads_parts = any(_is_content(f.iter) for f in tree.find_all(nodes.For))
        tests = [one.node for one in tree.find_all(nodes.Test) if one.name == "none"]
        self.asks_for_none = any(map(_is_content, tests))
        direct = _direct(tree.body)
        inline = {id(one.node) for one in direct if isinstance(one, nodes.ExprStmt)}
        marks = list(tree.find_all(nodes.InternalName))
        self.generation = bool(marks) and all(id(one) in inline for one in marks)
        for node in marks:
            if id(node) not in inline:
                node.name = "None"  # in a macro or variable its place in the text is not known

    def watch(self) -> None:
        """Make the loops that write messages report the values of ``decides`` in each round."""
        for loop in self._loops if self.decides else ():
            values = [
                nodes.Getattr(nodes.Name(n, "load"), a, "load") for n, a in self.decides or ()
            ]
            call = _filtered(nodes.Tuple(values, "load", lineno=loop.lineno), TOLD)
            loop.body.insert(0, nodes.ExprStmt(call, lineno=loop.lineno))

    def _prompts(self, body: list[Any]) -> int | None:
        """The number of conditions on a prompt that depend only on ``_found``, not on messages.

        They are after the loop that writes messages, or at its end under ``loop.last``. None if the
        text there may depend on anything else.
        """
        loops = [i for i, node in enumerate(body) if _has_writing_loop(node)]
        if not loops:
            return 0
        node, behind = body[loops[-1]], body[loops[-1] + 1 :]
        sets = any(one.find(nodes.NSRef) for one in behind)
        if sets or not all(self._is_known(one) for one in behind if _writes(one)):
            return None
        counts = [sum(map(_asks, behind))]
        if isinstance(node, nodes.For):
            self._loops.append(node)
            counts += [_asks(one) for one in node.body if self._is_last_prompt(one)]
        elif isinstance(node, nodes.If) and self._is_free(node.test):
            inside = [self._prompts(part) for part in _bodies(node)]
            if None in inside:
                return None
            counts += [count or 0 for count in inside]
        else:
            return None
        return sum(counts)

    def _is_last_prompt(self, node: nodes.Node) -> bool:
        """Whether a statement in the loop's body writes the prompt after the last message."""
        if not isinstance(node, nodes.If) or not {PROMPT, "last"} <= _names(node.test):
            return False
        return not (_names(node) - {PROMPT, "loop", "last"}) & self._bound

    def _is_known(self, node: nodes.Node) -> bool:
        """Whether a tree reads only variables that are given to the template, and namespaces."""
        reads = [
            (one.node.name, one.attr)
            for one in node.find_all(nodes.Getattr)
            if isinstance(one.node, nodes.Name) and one.node.name in self._spaces
        ]
        names = [one.name for one in node.find_all(nodes.Name) if one.name in self._spaces]
        if len(reads) != len(names):
            return False
        self._found.update(reads)
        return not (_variables(node) - {PROMPT, *names}) & self._bound

    def _is_free(self, node: nodes.Node) -> bool:
        """Whether a tree reads only variables that are given to the template, except messages."""
        return not (_variables(node) - {PROMPT}) & self._bound


def _bound(tree: nodes.Template) -> set[str]:
    """The variables that may depend on messages: not set from given variables alone."""
    stored = [n.name for n in tree.find_all(nodes.Name) if n.ctx in ("store", "param")]
    bound = {*stored, *(m.name for m in tree.find_all(nodes.Macro)), _MESSAGES}
    for one in tree.body:  # in order
        if isinstance(one, nodes.Assign) and isinstance(one.target, nodes.Name):
            name = one.target.name
            used = _variables(one.node) - {name, PROMPT}
            if stored.count(name) == 1 and not used & bound and not one.node.find(nodes.Call):
                bound.discard(name)
    return bound


def _has_writing_loop(node: nodes.Node) -> bool:
    loops = [node] if isinstance(node, nodes.For) else []
    return not isinstance(node, _BUFFERED) and any(
        map(_writes, (*loops, *node.find_all(nodes.For)))
    )


def _writes(node: nodes.Node) -> bool:
    """Whether a statement writes more than white space, and does not only raise an exception."""
    if isinstance(node, nodes.Macro):
        return False
    outputs = [node] if isinstance(node, nodes.Output) else node.find_all(nodes.Output)
    for one in (part for output in outputs for part in output.nodes):
        if isinstance(one, nodes.TemplateData):
            if one.data.strip():
                return True
        elif not isinstance(one, nodes.Call) or "raise_exception" not in _names(one.node):
            return True
    return False


def _asks(node: nodes.Node) -> int:
    """How often a condition tests whether there is to be a prompt."""
    return sum(one.name == PROMPT and one.ctx == "load" for one in node.find_all(nodes.Name)) - sum(
        isinstance(one.node, nodes.Name) and one.node.name == PROMPT
        for one in node.find_all(nodes.Test)
    )


def _variables(node: nodes.Node) -> set[str]:
    """The variables in a tree."""
    names = {node.name} if isinstance(node, nodes.Name) else set()
    return names | {n.name for n in node.find_all(nodes.Name)}


def _names(node: nodes.Node) -> set[str]:
    """The variables and attributes in a tree."""
    names = _variables(node)
    for one in (node, *node.find_all((nodes.Getattr, nodes.Getitem))):
        if isinstance(one, nodes.Getattr):
            names.add(one.attr)
        elif isinstance(one, nodes.Getitem) and isinstance(one.arg, nodes.Const):
            names.add(str(one.arg.value))
    return names


def _is_content(node: nodes.Node) -> bool:
    """Whether an expression is the content of a message, as a key or as a variable."""
    if isinstance(node, nodes.Getattr) and node.attr == "content":
        return True
    if isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Const):
        return bool(node.arg.value == "content")
    return isinstance(node, nodes.Name) and node.name == "content"


def _direct(body: list[nodes.Node]) -> Iterator[nodes.Node]:
    """The statements that write directly to the output, not through a variable or macro."""
    for node in body:
        yield node
        if not isinstance(node, _BUFFERED):
            for part in _bodies(node):
                yield from _direct(part)


def _bodies(node: nodes.Node) -> Iterator[list[Any]]:
    """The lists of statements in a statement."""
    for name in ("body", "elif_", "else_"):
        part = getattr(node, name, None)
        if isinstance(part, list):
            yield part


class Watcher(NodeTransformer):
    """Changes a tree so that it reports loops and their effects."""

    def visit_For(self, node: Any) -> Any:  # noqa: N802 - jinja2's names
        """Let a loop report its rounds, by a filter around what it loops over."""
        outputs = (part.find(nodes.Output) or isinstance(part, nodes.Output) for part in node.body)
        writes = bool(node.else_) or any(outputs)
        node = self.generic_visit(node)
        if not node.recursive:
            node.iter = _filtered(node.iter, EACH_WRITTEN if writes else EACH)
        return node

    def visit_Assign(self, node: Any) -> Any:  # noqa: N802
        """Report that an attribute of a namespace is set, which outlasts a round of a loop."""
        node = self.generic_visit(node)
        if isinstance(node.target, nodes.NSRef) or node.target.find(nodes.NSRef):
            return [node, code("direct_effect()", node.lineno)]
        return node

    visit_AssignBlock = visit_Assign  # noqa: N815

    def visit_Compare(self, node: Any) -> Any:  # noqa: N802
        """A comparison of a length with 0 only tests whether there is a message.

        So it does not count as reading the number of messages, which depends on all of them.
        """
        node = self.generic_visit(node)
        counted, (first, *others) = node.expr, node.ops
        with_zero = not others and isinstance(first.expr, nodes.Const) and first.expr.value == 0
        is_length = isinstance(counted, nodes.Filter) and counted.name in ("length", "count")
        if is_length and with_zero:
            counted.name = SOME
        return node

    def visit_And(self, node: Any) -> Any:  # noqa: N802
        """Evaluate the test for a prompt first in a condition.

        Without a prompt, the other side, such as ``loop.last``, is then not read.
        """
        node = self.generic_visit(node)
        first, then = node.left, node.right
        gives_bool = isinstance(first, _BOOLEANS) or getattr(first, "attr", "") == "last"
        if gives_bool and isinstance(then, nodes.Name) and then.name == PROMPT:
            node.left, node.right = then, first
        return node


def _filtered(node: Any, name: str) -> nodes.Filter:
    return nodes.Filter(node, name, [], [], None, None, lineno=node.lineno)


class Writer(CodeGenerator):
    """Generates Python in which the most frequent operations are calls of ``direct`` functions."""

    def visit_Getattr(self, node: nodes.Getattr, frame: Any) -> None:  # noqa: N802
        """An attribute; of a mapping, a key, unless mappings have this attribute."""
        is_method = node.attr in _DICT_NAMES
        is_dict = not is_method and self._of_dict(node.node, node.attr, frame)
        self.write("direct_attribute(" if is_method else "direct_key(")
        self.visit(node.node, frame)
        self.write(f", {node.attr!r})" + ")" * is_dict)

    def visit_Getitem(self, node: nodes.Getitem, frame: Any) -> None:  # noqa: N802
        """An element."""
        key = node.arg.value if isinstance(node.arg, nodes.Const) else None
        is_dict = isinstance(key, str) and self._of_dict(node.node, key, frame)
        super().visit_Getitem(node, frame)
        self.write(")" * is_dict)

    def _of_dict(self, node: nodes.Node, key: str, frame: Any) -> bool:
        """Write ``the value of a key if a variable is a dict with it, else``.

        The caller must write the rest. Returns whether anything was written.
        """
        if not isinstance(node, nodes.Name) or node.name == "loop":
            return False
        ref = frame.symbols.ref(node.name)
        self.write(f"({ref}[{key!r}] if {ref}.__class__ is dict and {key!r} in {ref} else ")
        return True

    def visit_Call(  # noqa: N802
        self, node: nodes.Call, frame: Any, forward_caller: bool = False
    ) -> None:
        """A call, without jinja2's variables of loops, which no function here needs."""
        called = node.node
        plain = not (node.kwargs or node.dyn_args or node.dyn_kwargs or forward_caller)
        if plain and isinstance(called, nodes.Getattr) and called.attr in STR_METHODS:
            self.write("direct_method(context, ")
            self.visit(called.node, frame)
            self.write(f", {called.attr!r}")
        else:
            self.write("environment.call(context, ")
            self.visit(called, frame)
        self.signature(node, frame, {"caller": "caller"} if forward_caller else None)
        self.write(")")


with needs_extra("chat"):
    from jinja2.exceptions import SecurityError, TemplateError, TemplateSyntaxError
    from jinja2.meta import find_undeclared_variables
    from jinja2.runtime import Context


_MOST_SOURCE = 1 << 20  # characters; the longest published templates have 20,000


class Program:
    """A chat template, compiled. It belongs to one thread.

    ``reads`` are the variables that it reads. ``limits`` are told of each run.
    """

    def __init__(self, source: str, where: str, day: date | None) -> None:
        if len(source) > _MOST_SOURCE:
            raise UsageError(f"{where}: the chat template has more than {_MOST_SOURCE} characters")
        self.source, self.where, self.limits = source, where, Limits()
        self._environment = environment = Sandbox(day)
        self._loops = LoopMaker()
        environment.effect = self._effect
        environment.filters |= self._filters()
        environment.code_generator_class = Writer
        try:
            tree = environment.parse(source)
            self.reads = frozenset(find_undeclared_variables(tree))
            self.syntax = Syntax(tree)
            watched = Watcher().visit(tree)
            self.syntax.watch()
            watched.set_environment(environment)
            code = environment.compile(watched)
        except TemplateSyntaxError as error:
            raise UsageError(
                f"{where}: the chat template is wrong in line {error.lineno}: {error.message}"
            ) from None
        except MemoryError:
            raise
        except Exception as error:  # constant expressions are evaluated here, and may fail
            raise UsageError(
                f"{where}: the chat template cannot be compiled: {first_line(error)}"
            ) from None
        names: dict[str, Any] = {"environment": environment}
        exec(code, names)
        names |= {
            "LoopContext": self._loops,
            "direct_attribute": environment.getattr,
            "direct_effect": environment.effect,
            "direct_key": environment.key,
            "direct_generation": self._generation,
            "direct_method": environment.method,
        }
        self._write, self._blocks = names["root"], names["blocks"]
        self._globals = dict(environment.globals)
        self._day = day

    def _filters(self) -> dict[str, Any]:
        """The filters that were put into the template's tree, see `Syntax` and `Watcher`."""

        def some(value: Any) -> Any:
            return int(bool(value)) if value.__class__ is Messages else len(value)

        return {
            SOME: some,
            TOLD: self._tell,
            EACH: partial(self._each, writes=False),
            EACH_WRITTEN: partial(self._each, writes=True),
        }

    def _each(self, value: Any, *, writes: bool) -> Any:
        """The object of a loop: messages are wrapped so that they report rounds."""
        if value.__class__ is Messages:
            return Rounds(value, writes=writes)
        if writes and value.__class__ is list and value:
            self._loops.run.copy(value)
        return value

    def _tell(self, values: tuple[Any, ...]) -> None:
        """Note the values that decide a generation prompt, before a round of the main loop."""
        self._loops.run.states.append(values)

    def _effect(self) -> None:
        """Note that something was set that outlasts a round of a loop."""
        self._loops.run.effect()

    def _generation(self, begins: bool) -> None:
        """Note that a generation block begins or ends."""
        run = self._loops.run
        if begins:
            run.generations.append([len(run.pieces), -1])
        else:
            next(one for one in reversed(run.generations) if one[1] < 0)[1] = len(run.pieces)

    @cached_property
    def _plain(self) -> Template:
        return plain_environment(self._day).from_string(self.source)

    def plain_text(self, messages: Sequence[Any], variables: Mapping[str, Any]) -> str:
        """The text from jinja2 alone, which `run` must match; or why it fails."""
        try:
            return self._plain.render({**variables, "messages": messages, PROMPT: False})
        except MemoryError:
            raise
        except Exception as error:  # if only jinja2 fails, that is a difference, too
            return f"{type(error).__name__}: {first_line(error)}"

    def run(
        self, messages: Sequence[Any], variables: Mapping[str, Any], *, prompt: bool = False
    ) -> Text:
        """The text of messages, with the beginning of an answer if ``prompt``.

        ``variables`` has the tools, the documents and all others. Raises ConversationError.
        """
        self.limits.go_on()
        self._loops.run = run = Run(messages, variables)
        given = {"messages": Messages(run, messages), PROMPT: prompt}
        values = {**self._globals, **variables, **given}
        add = run.pieces.append
        try:
            for piece in self._write(Context(self._environment, values, None, self._blocks)):
                add(piece)  # one by one: loops note the number of pieces so far
            text = run.text()
        except SecurityError as error:
            raise ConversationError(UNSAFE, first_line(error)) from None
        except (UsageError, ConversationError, MemoryError):
            raise
        except RecursionError:
            raise ConversationError("the template fails", "it calls itself without end") from None
        except Exception as error:  # the template may do anything to the values of a record
            if type(error) is TemplateError:  # raised by the template itself
                raise ConversationError("refused by the template", first_line(error)) from None
            name = type(error).__name__
            raise ConversationError("the template fails", f"{name}: {first_line(error)}") from None
        self.limits.check(text.text)
        return text
