"""``map``: a function of the user's that gets the records of a batch."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import inspect
import os
import re
import sys
import traceback
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any

from tokpack.display import brief
from tokpack.errors import UsageError, option

if TYPE_CHECKING:
    from collections.abc import Callable

ROW = "__row__"  # the column with the number of the record in its batch

_FORMS = "module:function, path/to/file.py:function"
_MAKE = "make it a function of a module, and name it: map='module:function'"
_DICT = re.compile(r"(<class ')?(typing\.|collections\.abc\.)?(dict|mapping)", re.IGNORECASE)


def load(named: str | Callable[..., Any]) -> Callable[..., Any]:
    """The function that is named, or given. UsageError where there is none."""
    if callable(named):
        return named
    module_name, _, function_name = named.rpartition(":")
    if not module_name or not function_name.isidentifier():
        raise UsageError(
            f"{option('map')} is {named!r}; it can be {_FORMS}, or in Python a callable"
        )
    module = _module(module_name, named)
    function = getattr(module, function_name, None)
    if not callable(function):
        names = [name for name, one in vars(module).items() if isinstance(one, FunctionType)]
        there = ", ".join(name for name in names if not name.startswith("_")) or "none"
        raise UsageError(
            f"{option('map')} {named!r}: {_file_of(module) or module_name} has no function "
            f"{function_name!r}; its functions are {there}"
        )
    return function  # type: ignore[no-any-return]


def name_of(function: Callable[..., Any]) -> str:
    """The name of a function, for people: that of its class for an object that can be called."""
    inner = getattr(function, "func", function)  # of a partial
    return str(getattr(inner, "__qualname__", type(inner).__name__))


def importable_name(named: str | Callable[..., Any]) -> str:
    """The name by which another machine can import a function. UsageError where it has none."""
    if isinstance(named, str):
        path, _, function_name = named.rpartition(":")
        return f"{os.path.abspath(path)}:{function_name}" if path.endswith(".py") else named
    module = getattr(named, "__module__", "__main__")
    name = getattr(named, "__qualname__", "")
    if module == "__main__" or not name.isidentifier():
        raise UsageError(f"{option('map')} is {brief(named)}, which no other machine has: {_MAKE}")
    return f"{module}:{name}"


def takes_dict(function: Callable[..., Any]) -> bool:
    """Whether the annotation of a function's parameter says that it takes a dict."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # of one in C
        return False
    return any(_DICT.match(str(one.annotation)) for one in [*parameters][:1])


def place_of(error: BaseException, function: Callable[..., Any]) -> str:
    """Where in the user's code an exception comes from: file:line, in function: what it says."""
    frames = traceback.extract_tb(error.__traceback__)
    file = getattr(getattr(function, "__code__", None), "co_filename", "")
    ours = [frame for frame in frames if frame.filename == file] or frames[-1:]
    message = f"{type(error).__name__}: {brief_text(error)}"
    if not ours:
        return message
    names = (frame.name for frame in reversed(ours))
    name = next((one for one in names if not one.startswith("<")), ours[-1].name)  # no <listcomp>
    return f"{ours[-1].filename}:{ours[-1].lineno}, in {name}: {message}"


def brief_text(error: BaseException) -> str:
    """What an exception says, in one line."""
    return " ".join(str(error).split())[:500] or "no message"


def _module(name: str, named: str) -> ModuleType:
    """A module by its name, seen from the current folder, or by the path of its file."""
    here = os.getcwd()
    if here not in sys.path and "" not in sys.path:
        sys.path.insert(0, here)
    try:
        if not name.endswith(".py"):
            return importlib.import_module(name)
        path = os.path.abspath(name)
        if not os.path.isfile(path):
            raise UsageError(f"{option('map')} {named!r}: there is no file {name}")
        folder, file = os.path.split(path)
        if folder not in sys.path:
            sys.path.insert(0, folder)
        unique = f"tokpack_map_{hashlib.sha256(path.encode()).hexdigest()[:8]}_{file[:-3]}"
        if unique not in sys.modules:
            spec = importlib.util.spec_from_file_location(unique, path)
            assert spec is not None
            assert spec.loader is not None
            module = importlib.util.module_from_spec(spec)
            sys.modules[unique] = module
            try:
                spec.loader.exec_module(module)
            except BaseException:
                del sys.modules[unique]
                raise
        return sys.modules[unique]
    except UsageError:
        raise
    except ModuleNotFoundError as error:
        if error.name and name.partition(".")[0] == error.name.partition(".")[0]:
            raise UsageError(
                f"{option('map')} {named!r}: there is no module {error.name!r}; it is looked for "
                f"in {here}, and where Python looks; a file is named as path/to/file.py:function"
            ) from None
        raise UsageError(f"{option('map')} {named!r}: {_failed(error)}") from error
    except Exception as error:
        raise UsageError(f"{option('map')} {named!r}: {_failed(error)}") from error


def _failed(error: BaseException) -> str:
    """Why a module cannot be imported."""
    if isinstance(error, SyntaxError):
        return f"{error.filename}:{error.lineno}: {error.msg}"
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if "importlib" not in frame.filename and not frame.filename.startswith("<")
    ]
    place = f"{frames[-1].filename}:{frames[-1].lineno}: " if len(frames) > 1 else ""
    return f"{place}{type(error).__name__}: {brief_text(error)}"


def _file_of(module: ModuleType | None) -> str | None:
    """The file that a module is in; None for one without, as a notebook is."""
    file = getattr(module, "__file__", None)
    return file if file and file.endswith(".py") and os.path.isfile(file) else None
