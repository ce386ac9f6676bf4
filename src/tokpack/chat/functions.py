"""What templates may call: what transformers gives them, and nothing that leads elsewhere."""

from __future__ import annotations

import json
from datetime import date, datetime
from typing import Any

from tokpack.chat.watched import Messages
from tokpack.errors import UsageError, needs_extra, option

with needs_extra("chat"):
    from jinja2.exceptions import SecurityError, TemplateError
    from jinja2.utils import Namespace


def tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as transformers' templates get it: nothing is made safe for HTML."""
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
    """``strftime_now``: the day that the request names, since the same request has one result."""

    def __init__(self, day: date | None) -> None:
        self._day = day

    def __call__(self, form: str) -> str:
        """The day in a format of ``strftime``. UsageError where the request names none."""
        if self._day is None:
            raise UsageError(
                "the chat template asks for today's date, which would make other tokens tomorrow: "
                f"say which day it is to be, {option('template_var', 'date=2026-11-23')}"
            )
        return self._day.strftime(form)


def day_of(value: object) -> date | None:
    """The day, or the moment, that a request names. UsageError."""
    if value is None:
        return None
    try:
        return datetime.fromisoformat(str(value))
    except ValueError:
        raise UsageError(
            f"the variable date of a chat template is {value!r}: give a day such as 2026-11-23"
        ) from None


class DictMaker:
    """``dict`` in templates: no class, whose attributes lead elsewhere."""

    def __call__(self, *values: Any, **named: Any) -> dict[Any, Any]:
        return dict(*values, **named)

    def fromkeys(self, *values: Any) -> dict[Any, Any]:
        """As ``dict.fromkeys``."""
        return dict.fromkeys(*values)


class SafeNamespace(Namespace):
    """``namespace`` in templates, without names that begin with an underscore."""

    def __init__(*args: Any, **named: Any) -> None:  # a variable may be named self
        self, *values = args
        for name, value in dict(*values, **named).items():
            self[name] = value

    __getattribute__ = object.__getattribute__  # jinja2's looks into a dict of its own

    def __setitem__(self, name: str, value: Any) -> None:
        if str(name).startswith("_"):
            raise SecurityError(f"a namespace cannot have the attribute {name!r}")
        self.__dict__[name] = value

    def __repr__(self) -> str:
        return f"<Namespace {self.__dict__!r}>"
