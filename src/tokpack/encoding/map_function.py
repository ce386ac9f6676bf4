"""``map``: a function of the user's that gets the records of a batch, and what identifies it."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import inspect
import json
import os
import re
import sys
import traceback
from types import CodeType, FunctionType, ModuleType
from typing import TYPE_CHECKING, Any

from tokpack.display import brief
from tokpack.errors import UsageError, option

if TYPE_CHECKING:
    from collections.abc import Callable

ROW = "__row__"  # the column with the number of the record in its batch

_FORMS = "module:function, path/to/file.py:function"
_MAKE = "make it a function of a module, and name it: map='module:function'"
_SIMPLE = (str, bytes, int, float, bool, type(None))
_DICT = re.compile(r"(<class ')?(typing\.|collections\.abc\.)?(dict|mapping)", re.IGNORECASE)
_DEPTH = 8  # of functions that functions use


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


def identity(named: str | Callable[..., Any]) -> dict[str, str]:
    """What a plan has of a function: its name, and a hash of all that it is known to be.

    That is the content of the file that it is in, with its place there, the values that it is bound
    to, and of a function of no file its text and the simple values and functions that it uses.
    UsageError for what cannot be known again.
    """
    function = load(named)
    digest = hashlib.sha256()
    for part in _parts(function, 0):
        digest.update(f"{len(part)} {part}".encode())
    return {"map": _name_of(function), "map_source": digest.hexdigest()}


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
    annotations = getattr(getattr(function, "func", function), "__annotations__", {})
    first = next((str(kind) for name, kind in annotations.items() if name != "return"), "")
    return _DICT.match(first) is not None


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


def _parts(function: Any, depth: int) -> list[str]:
    """The texts that a function is identified by."""
    if type(function).__name__ == "partial" and hasattr(function, "func"):
        bound = [_value(one, function, depth) for one in function.args]
        bound += [f"{k}={_value(v, function, depth)}" for k, v in sorted(function.keywords.items())]
        return [*_parts(function.func, depth), *bound]
    if not isinstance(function, FunctionType):
        what = "a method" if inspect.ismethod(function) else f"of type {type(function).__name__}"
        raise UsageError(
            f"{option('map')} is {what}, whose state nobody can know again: {_MAKE}, which "
            "makes what it needs on its first call (functools.cache)"
        )
    code = function.__code__
    parts = [function.__qualname__]
    module = sys.modules.get(function.__module__)
    file = _file_of(module) if module is not None else None
    if file is not None and os.path.samefile(file, code.co_filename):
        with open(file, encoding="utf-8", errors="surrogateescape") as source:
            parts.append(source.read().encode("utf-8", "backslashreplace").decode())
        if not function.__qualname__.isidentifier():  # a lambda, of which a line can have several
            places = sorted({place[:1] + place[2:3] for place in code.co_positions() if place[3]})
            parts.append(str(places))
    else:
        parts += [_text_of(function), *_globals(function, depth)]
    around: list[Any] = [*(function.__defaults__ or ())]
    around += sorted((function.__kwdefaults__ or {}).items())
    around += [(name, *_cell(function, name)) for name in code.co_freevars]
    return parts + [_value(value, function, depth) for value in around]


def _cell(function: FunctionType, name: str) -> tuple[Any, ...]:
    """The value that a closure has for a name, if it has one by now."""
    cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
    try:
        return (cells[name].cell_contents,)
    except ValueError:
        return ()


def _globals(function: FunctionType, depth: int) -> list[str]:
    """What a function of no file uses besides its own text: as of a notebook."""
    used = inspect.getclosurevars(function).globals
    return [f"{name}={_value(value, function, depth)}" for name, value in sorted(used.items())]


def _value(value: Any, function: Any, depth: int) -> str:
    """A value that a function is bound to, as a text. UsageError for one that has none."""
    text = None
    if isinstance(value, _SIMPLE):
        text = repr(value)
    elif isinstance(value, ModuleType):
        text = value.__name__
    elif isinstance(value, (tuple, list)):
        text = json.dumps([_value(one, function, depth) for one in value])
    elif isinstance(value, (set, frozenset)):
        text = json.dumps(sorted(_value(one, function, depth) for one in value))
    elif isinstance(value, dict):
        pairs = [[_value(k, function, depth), _value(v, function, depth)] for k, v in value.items()]
        text = json.dumps(pairs)
    elif isinstance(value, type) or inspect.isbuiltin(value) or _is_installed(value):
        text = f"{value.__module__}.{value.__qualname__}"
    elif isinstance(value, FunctionType) and depth < _DEPTH:
        text = json.dumps(_parts(value, depth + 1))
    if text is not None:
        return text
    raise UsageError(
        f"{option('map')}: {_name_of(function)} uses a value of type {type(value).__name__} from "
        f"around it, {brief(value)}, which nobody can know again: {_MAKE}"
    )


def _is_installed(value: Any) -> bool:
    """Whether it is a function of a package, which a plan does not identify either."""
    file = _file_of(sys.modules.get(getattr(value, "__module__", None) or ""))
    in_package = file is not None and f"{os.sep}site-packages{os.sep}" in file
    return in_package and hasattr(value, "__qualname__")


def _text_of(function: FunctionType) -> str:
    """The text of a function, or where nobody has it, what Python has compiled it to."""
    try:
        return inspect.getsource(function)
    except (OSError, TypeError):
        return _compiled(function.__code__)


def _compiled(code: CodeType) -> str:
    consts = [_compiled(one) if isinstance(one, CodeType) else repr(one) for one in code.co_consts]
    return json.dumps([sys.version, code.co_code.hex(), code.co_names, consts])


def _file_of(module: ModuleType | None) -> str | None:
    """The file that a module is in; None for one without, as a notebook is."""
    file = getattr(module, "__file__", None)
    return file if file and file.endswith(".py") and os.path.isfile(file) else None


def _name_of(function: Any) -> str:
    inner = getattr(function, "func", function)  # of a partial
    return str(getattr(inner, "__qualname__", type(inner).__name__))
