"""A template's syntax tree, made to tell where messages begin and whether it looks ahead.

A template is *looking ahead* when what it writes for a message may depend on a later one. All its
reads of the messages are found in the tree; those that may see later messages get a signal.
Where a render gave none, its text up to the end of message i is what the template makes of the
first i + 1 messages alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from jinja2 import nodes
from jinja2.visitor import NodeTransformer

from tokpack.chat.sandbox import GENERATION_BEGINS, GENERATION_ENDS, signal

if TYPE_CHECKING:
    from collections.abc import Iterator

TURN = "a turn begins"  # filters, by names that no template can write
TURNS_END = "turns end"
AHEAD = "looks ahead"
BEHIND = "looks behind"
STEP = "does a step"
DEEP = "puts values together"
MADE = "makes text"

PROMPT = "add_generation_prompt"
_MESSAGES = "messages"
_PAST = frozenset(["index", "index0", "first", "previtem", "cycle", "changed", "depth", "depth0"])
_KINDS = frozenset(["defined", "undefined", "none", "sequence", "iterable", "mapping", "string"])
_BUFFERED = (nodes.Macro, nodes.CallBlock, nodes.FilterBlock, nodes.AssignBlock, nodes.Block)


class Instrumented:
    """A tree with its signals.

    ``has_turns``: there is one loop over the messages that writes, and it tells where each begins.
    ``fixed_prompt``: the generation prompt does not depend on the messages. ``generation``: there
    are generation blocks. ``reads_parts``: the template loops over the parts of a content.
    """

    def __init__(self, tree: nodes.Template) -> None:
        self.aliases = _aliases(tree)
        self._assigned = _assigned(tree)
        loops = [
            loop
            for loop in _direct(tree.body)
            if isinstance(loop, nodes.For)
            and isinstance(loop.target, nodes.Name)
            and not loop.recursive
            and self.is_messages(loop.iter)
            and any(map(_writes, loop.find_all(nodes.Output)))
        ]
        inner = {id(one) for loop in loops for one in loop.find_all(nodes.For)}
        loops = [loop for loop in loops if id(loop) not in inner]
        self.main = loops[0] if len(loops) == 1 else None
        self.has_turns = self.main is not None
        self.fixed_prompt = self._prompt_is_fixed(tree)
        self.reads_parts = any(_is_content(f.iter, tree) for f in tree.find_all(nodes.For))
        self.reads_arguments_as_text = any(
            test.name == "string" and "arguments" in _names(test.node)
            for test in tree.find_all(nodes.Test)
        )
        direct = [node.node for node in _direct(tree.body) if isinstance(node, nodes.ExprStmt)]
        inline = [node for node in direct if isinstance(node, nodes.Filter)]
        self.generation = any(node.name == GENERATION_BEGINS for node in inline)
        for node in tree.find_all(nodes.Filter):
            if node.name in (GENERATION_BEGINS, GENERATION_ENDS) and node not in inline:
                node.name = STEP  # its place in the text is not known there
        if self.main is not None:
            self._watch_rest(tree.body, self.main)
        self.tree = _Signals(self).visit(tree)
        self.tree.set_environment(tree.environment)

    def is_messages(self, node: nodes.Node | None) -> bool:
        """Whether an expression is the messages, or all of them from a certain one on."""
        return _is_messages(node, self.aliases)

    def _prompt_is_fixed(self, tree: nodes.Template) -> bool:
        """Whether the generation prompt stands where no message, nor what is left of one, counts.

        That is after the messages or at the end of their loop's body, on a condition and with a
        text of variables that the template never sets.
        """
        fixed = 0
        for node in (*self._around(tree.body), *(self.main.body if self.main else [])):
            if isinstance(node, nodes.If) and PROMPT in _names(node.test):
                inside = self.main is not None and node in self.main.body
                if self._is_free(node) and (not inside or "last" in _names(node.test)):
                    fixed += _prompts(node)
        return fixed == _prompts(tree)

    def _around(self, body: list[nodes.Node]) -> Iterator[nodes.Node]:
        """The statements outside of loops, under conditions that no message decides."""
        for node in body:
            yield node
            if isinstance(node, nodes.If) and PROMPT not in _names(node.test):
                for part in _bodies(node) if self._is_free(node.test) else ():
                    yield from self._around(part)

    def _is_free(self, node: nodes.Node) -> bool:
        """Whether there are only variables that the template is given, but messages."""
        names = _names(node) - {PROMPT, "loop"}
        return not names & (self._assigned | self.aliases)

    def _watch_rest(self, body: list[Any], main: nodes.For) -> bool:
        """Signal the end of the main loop, and what may write after it; whether it is in there."""
        for i, node in enumerate(body):
            inside = any(self._watch_rest(part, main) for part in _bodies(node))
            if node is main or inside:
                rest = body[i + 1 :]
                marks = [signal(TURNS_END, node.lineno)] if node is main else []
                if any(map(self._may_differ, rest)):
                    marks.append(signal(AHEAD, node.lineno))
                body[i + 1 :] = [*marks, *rest]
                return True
        return False

    def _may_differ(self, node: nodes.Node) -> bool:
        """Whether a statement after the messages may write something for some of them alone."""
        writes = isinstance(node, nodes.Output) or next(node.find_all(nodes.Output), None)
        only_prompt = isinstance(node, nodes.If) and not node.elif_ and not node.else_
        if not writes or (only_prompt and _off(node.test)):  # type: ignore[attr-defined]
            return False
        return not self._is_free(node)


def _is_messages(node: nodes.Node | None, names: set[str]) -> bool:
    """As `Instrumented.is_messages`, of such variables."""
    if isinstance(node, nodes.CondExpr):
        return _is_messages(node.expr1, names) and _is_messages(node.expr2, names)
    if isinstance(node, nodes.Name):
        return node.name in names
    return _is_tail(node) and _is_messages(node.node, names)  # type: ignore[union-attr]


def _writes(node: nodes.Output) -> bool:
    """Whether a statement writes more than white space, and does not only raise an exception."""
    for one in node.nodes:
        if isinstance(one, nodes.TemplateData):
            if one.data.strip():
                return True
        elif not isinstance(one, nodes.Call) or "raise_exception" not in _names(one.node):
            return True
    return False


def _prompts(node: nodes.Node) -> int:
    return sum(one.name == PROMPT for one in node.find_all(nodes.Name))


def _is_tail(node: nodes.Node | None) -> bool:
    """Whether an expression is ``x[n:]``."""
    if not isinstance(node, nodes.Getitem) or not isinstance(node.arg, nodes.Slice):
        return False
    part = node.arg
    return part.stop is None and part.step is None and _at_least(part.start, 0)


def _at_least(node: nodes.Node | None, least: int) -> bool:
    """Whether a node is a whole number from ``least``; nothing counts as 0."""
    if node is None:
        return least <= 0
    return isinstance(node, nodes.Const) and isinstance(node.value, int) and node.value >= least


def _aliases(tree: nodes.Template) -> set[str]:
    """The variables that are the messages, or some last ones of them, somewhere."""
    names = {_MESSAGES}

    before = 0
    while before != len(names):
        before = len(names)
        for node in tree.find_all(nodes.Assign):
            if isinstance(node.target, nodes.Name) and _is_messages(node.node, names):
                names.add(node.target.name)
    return names


def _assigned(tree: nodes.Template) -> set[str]:
    """All names that the template gives values to."""
    stored = {n.name for n in tree.find_all(nodes.Name) if n.ctx in ("store", "param")}
    return stored | {m.name for m in tree.find_all(nodes.Macro)}


def _names(node: nodes.Node) -> set[str]:
    """The variables and attributes in a tree."""
    names = {n.name for n in node.find_all(nodes.Name)}
    if isinstance(node, nodes.Name):
        names.add(node.name)
    for one in (node, *node.find_all((nodes.Getattr, nodes.Getitem))):
        if isinstance(one, nodes.Getattr):
            names.add(one.attr)
        elif isinstance(one, nodes.Getitem) and isinstance(one.arg, nodes.Const):
            names.add(str(one.arg.value))
    return names


def _is_content(node: nodes.Node, tree: nodes.Template) -> bool:
    """Whether an expression is the content of a message, by its own name or by a variable's."""
    if isinstance(node, nodes.Getattr) and node.attr == "content":
        return True
    if isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Const):
        return bool(node.arg.value == "content")
    return isinstance(node, nodes.Name) and node.name == "content"


def _direct(body: list[nodes.Node]) -> Iterator[nodes.Node]:
    """The statements whose text goes straight to the output, not through a variable or a macro."""
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


def _off(node: nodes.Node) -> bool:
    """Whether a condition is false wherever no generation prompt is asked for."""
    if isinstance(node, nodes.And):
        return _off(node.left) or _off(node.right)
    return isinstance(node, nodes.Name) and node.name == PROMPT


class _Signals(NodeTransformer):
    """Puts the signals in."""

    def __init__(self, found: Instrumented) -> None:
        self._found = found
        self._loops: list[bool] = []  # of the loops around: are they over messages?

    def visit_For(self, node: nodes.For) -> nodes.For:  # noqa: N802 - jinja2's names
        """A loop: its rounds are counted; those of the main loop begin turns."""
        over = self._found.is_messages(node.iter)
        if node is not self._found.main:
            node.iter = self.visit(node.iter)
        self._loops.append(over)
        if node.test is not None:
            node.test = self.visit(node.test)
        node.body = self._all(node.body)
        self._loops.pop()
        node.else_ = self._all(node.else_)
        target = next(
            n for n in (node.target, *node.target.find_all(nodes.Name)) if isinstance(n, nodes.Name)
        )
        name = TURN if node is self._found.main else STEP
        node.body.insert(0, signal(name, node.lineno, target.name))
        return node

    def _all(self, body: list[Any]) -> list[Any]:
        return [self.visit(node) for node in body]

    def visit_Name(self, node: nodes.Name) -> nodes.Node:  # noqa: N802
        """The messages as a whole, or ``loop`` as a whole."""
        whole = node.name in self._found.aliases
        if node.ctx == "load" and (whole or (node.name == "loop" and self._in_messages())):
            return _filtered(node, AHEAD)
        return node

    def _in_messages(self) -> bool:
        return bool(self._loops) and self._loops[-1]

    def visit_Assign(self, node: nodes.Assign) -> nodes.Node:  # noqa: N802
        """A variable; another name of the messages does not look at them."""
        target = node.target
        if not (isinstance(target, nodes.Name) and target.name in self._found.aliases):
            node.node = self.visit(node.node)
        elif isinstance(node.node, nodes.CondExpr):
            node.node.test = self.visit(node.node.test)
        elif not self._found.is_messages(node.node):
            node.node = self.visit(node.node)
        return node

    def visit_Getattr(self, node: nodes.Getattr) -> nodes.Node:  # noqa: N802
        """Attributes of ``loop``."""
        if isinstance(node.node, nodes.Name) and node.node.name == "loop":
            fine = node.attr in _PAST or not self._in_messages()
            return node if fine else _filtered(node, AHEAD)
        return self.generic_visit(node)

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:  # noqa: N802
        """One of the messages, or several."""
        if not self._found.is_messages(node.node):
            return self.generic_visit(node)
        if _at_least(node.arg, 0):
            return node
        if _is_past(node.arg):
            node.arg = _filtered(node.arg, BEHIND)
            return node
        return _filtered(node, AHEAD)

    def visit_And(self, node: nodes.And) -> nodes.Node:  # noqa: N802
        """A condition; what is false without a generation prompt decides nothing of messages."""
        if _off(node):
            return node
        return self._condition(node)

    def visit_Or(self, node: nodes.Or) -> nodes.Node:  # noqa: N802
        """A condition."""
        return self._condition(node)

    def _condition(self, node: Any) -> nodes.Node:
        """There are messages, now and in every beginning of them."""
        for side in ("left", "right"):
            part = getattr(node, side)
            if not self._found.is_messages(part):
                setattr(node, side, self.visit(part))
        return node  # type: ignore[no-any-return]

    def visit_If(self, node: nodes.If) -> nodes.Node:  # noqa: N802
        """As `_condition`."""
        if not self._found.is_messages(node.test):
            node.test = self.visit(node.test)
        for part in _bodies(node):
            part[:] = self._all(part)
        return node

    def visit_Compare(self, node: nodes.Compare) -> nodes.Node:  # noqa: N802
        """Comparisons: that of the number of messages with 0 is one of those conditions."""
        counted = node.expr
        if (
            isinstance(counted, nodes.Filter)
            and counted.name in ("length", "count")
            and self._found.is_messages(counted.node)
            and [one.op for one in node.ops] in (["gt"], ["ne"], ["eq"])
            and isinstance(node.ops[0].expr, nodes.Const)
            and node.ops[0].expr.value == 0
        ):
            return node
        return self.generic_visit(node)

    def visit_Test(self, node: nodes.Test) -> nodes.Node:  # noqa: N802
        """Tests of what the messages are, whoever they are."""
        if node.name in _KINDS and self._found.is_messages(node.node):
            return node
        return self.generic_visit(node)

    def visit_ExprStmt(self, node: nodes.ExprStmt) -> nodes.Node:  # noqa: N802
        """Signals stay as they are."""
        inner = node.node
        if isinstance(inner, nodes.Filter) and " " in inner.name:
            return node
        return self.generic_visit(node)

    def visit_List(self, node: nodes.List) -> nodes.Node:  # noqa: N802
        """What is put together is counted."""
        return self._counted(node)

    visit_Tuple = visit_Dict = visit_List  # noqa: N815

    def _counted(self, node: Any) -> nodes.Node:
        node = self.generic_visit(node)
        if getattr(node, "ctx", "load") != "load" or next(node.find_all(nodes.Name), None) is None:
            return node  # type: ignore[no-any-return]
        return _filtered(node, DEEP)

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802
        """``~`` is counted too."""
        return _filtered(self.generic_visit(node), MADE)


def _filtered(node: Any, name: str) -> nodes.Filter:
    return nodes.Filter(node, name, [], [], None, None, lineno=node.lineno)


def _is_past(node: nodes.Node) -> bool:
    """Whether an index is that of the loop's message or of one before it."""
    if isinstance(node, nodes.Sub) and _at_least(node.right, 0):
        least = 1 if getattr(node.left, "attr", "") == "index" else 0
        return _at_least(node.right, least) and _is_past_name(node.left)
    return isinstance(node, nodes.Getattr) and node.attr == "index0" and _is_past_name(node)


def _is_past_name(node: nodes.Node) -> bool:
    return (
        isinstance(node, nodes.Getattr)
        and isinstance(node.node, nodes.Name)
        and node.node.name == "loop"
        and node.attr in ("index", "index0")
    )
