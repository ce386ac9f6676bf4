"""The pages as a web application that only one person on this machine can use."""

from __future__ import annotations

import re
import secrets
import socket
from importlib import resources
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from tokpack.errors import InputError, TokpackError, UsageError, needs_extra, option
from tokpack.look.facts import bases, few_text, size_text
from tokpack.look.page import shared
from tokpack.look.pages import dataset_pages, encode_pages, run_pages, sample_pages
from tokpack.look.pages.items import BlendItem, DatasetItem, EncodeItem, RunItem
from tokpack.look.pages.site import SCRIPTS, TABLES, Pages, Query
from tokpack.look.plots import (
    Html,
    bar,
    html,
    legend,
    none,
    section,
    sparkline,
    stack,
    table,
    tag,
    thinned,
)
from tokpack.quantities import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from starlette.requests import Request
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from tokpack.look.pages.items import Item

    Page = Callable[[Pages, int, Any, Query], Html | dict[str, Any]]


_SPARKS = 100  # losses of a sparkline


def home_page(site: Pages) -> Html:
    """The list of everything that can be looked at: datasets, runs and blends."""
    items = list(enumerate(site.items))
    runs = [_run(site, number, item) for number, item in items if isinstance(item, RunItem)]
    data = [(number, item) for number, item in items if isinstance(item, DatasetItem)]
    most = max((item.dataset.token_count for _, item in data), default=1) or 1
    datasets = [[_name(site, number, item), *_dataset(item, most)] for number, item in data]
    blends = [_blend(site, number, item) for number, item in items if isinstance(item, BlendItem)]
    making = [[site.link(item.name, n)] for n, item in items if isinstance(item, EncodeItem)]
    head = ["dataset", "tokens", "documents", "size", "tokenizer"]
    return site.page(
        "Datasets and runs",
        section("In progress", table([""], making)) if making else "",
        tag("div", *runs, *blends, class_="grid cards"),
        section("Datasets", table(head, datasets, "numbers texts")) if datasets else "",
    )


def _run(site: Pages, number: int, item: RunItem) -> Html:
    """The state of a run."""
    title = tag("h2", "Run ", site.link(item.name, number))
    try:
        points, state = item.points, item.state
    except (TokpackError, OSError) as error:
        return tag("section", title, none(str(error)))
    losses, step, steps = points.of["loss"][""], points.last.get("iteration", 0), points.end
    position = f" step {step:,}" if steps is None else f" step {step:,} of {steps:,} "
    how = tag("b", state, class_=f"state {state}"), position, bar(step / steps) if steps else ""
    parts = [title, tag("p", *how)]
    if losses:  # without the first tenth, whose drop would flatten the rest
        spark = thinned(losses[len(losses) // 10 :], _SPARKS)
        parts.append(sparkline([y for _, y in spark], "loss by step"))
        parts.append(tag("p", "loss ", tag("b", f"{losses[-1][1]:.4f}")))
    return tag("section", *parts)


def _name(site: Pages, number: int, item: DatasetItem) -> Html:
    of = few_text(bases(item.dataset))
    return html(site.link(item.name, number), tag("small", f" a view of {of}") if of else "")


def _dataset(item: DatasetItem, most: int) -> list[object]:
    data = item.dataset
    tokens = html(bar(data.token_count / most), f"{data.token_count:,}")
    return [tokens, f"{data.documents:,}", size_text(data), item.tokenizer]


def _blend(site: Pages, number: int, item: BlendItem) -> Html:
    """The request of a blend; the result is on its own page."""
    entries = item.spec.datasets
    total = sum(entry.weight or 0.0 for entry in entries) or 1.0
    shares = [((e.weight or 0.0) / total, n, e.prefix) for n, e in enumerate(entries)]
    names = (e.prefix + ("" if e.weight is None else f" {e.weight:g}") for e in entries)
    words = f"{counted(len(entries), 'dataset')}, samples of {item.spec.seq_length:,} tokens"
    title = tag("h2", "Blend ", site.link(item.name, number))
    return tag("section", title, tag("p", words), stack(shares), legend(enumerate(names)))


HOST = "127.0.0.1"
_ITEM = re.compile("[0-9]{1,9}")
HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; connect-src 'self'; "
    "style-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}
PAGES: dict[str, dict[str, Page]] = {
    "dataset": {
        "": dataset_pages.dataset_page,
        "documents": dataset_pages.documents_page,
        "document": dataset_pages.document_page,
        "search": dataset_pages.search_page,
    },
    "blend": {"": sample_pages.blend_page, "sample": sample_pages.sample_page},
    "run": {
        "": run_pages.run_page,
        "curves": run_pages.curves_json,
        "blend": sample_pages.blend_page,
        "step": sample_pages.step_page,
        "sample": sample_pages.sample_page,
        "seen": sample_pages.seen_page,
    },
    "encode": {"": encode_pages.encode_page},
}


class HostCheck:
    """Lets a request pass if its host is this machine and it has the token.

    Checking the host keeps out pages of other sites whose names resolve to this machine (DNS
    rebinding); the token keeps out other users of this machine. Only GET and HEAD pass, and every
    answer has HEADERS.
    """

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app, self._base = app, f"/{token}/"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or refuse it."""
        if scope["type"] != "http":
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                given = [*message.get("headers", ())]
                more = [(name.encode(), value.encode()) for name, value in HEADERS.items()]
                more = [pair for pair in more if pair[0] not in dict(given)]
                message = {**message, "headers": [*given, *more]}
            await send(message)

        refusal = self._refuse(scope)
        if refusal is not None:
            await refusal(scope, receive, send_guarded)
            return
        inner = {**scope, "path": "/" + scope["path"][len(self._base) :]}
        inner.pop("raw_path", None)
        await self._app(inner, receive, send_guarded)

    def _refuse(self, scope: Scope) -> Response | None:
        hosts = [value for name, value in scope["headers"] if name == b"host"]
        names = [host.lower().partition(b":")[0].decode("latin-1") for host in hosts]
        if names not in ([HOST], ["localhost"]):  # any port: it may be forwarded
            return PlainTextResponse("no server for this Host\n", 400)
        path = scope["path"][: len(self._base)]
        if not secrets.compare_digest(path.encode(), self._base.encode()):
            return PlainTextResponse("the address lacks its token\n", 403)
        if scope["method"] not in ("GET", "HEAD"):
            return PlainTextResponse("read-only: GET or HEAD\n", 405, {"allow": "GET, HEAD"})
        return None


def application(items: Sequence[Item], token: str) -> ASGIApp:
    """The pages of items, below /TOKEN/."""
    site = Pages(list(items), f"/{token}/")
    folder = resources.files("tokpack.look.pages")
    sheet = shared("page.css") + folder.joinpath("view.css").read_text("utf-8")
    texts = plotly(), folder.joinpath("view.js").read_text("utf-8"), shared(TABLES)
    scripts = dict(zip((*SCRIPTS, TABLES), texts, strict=True))

    def front(request: Request) -> Response:
        return HTMLResponse(home_page(site))

    def css(request: Request) -> Response:
        return Response(sheet, media_type="text/css")

    def script(request: Request) -> Response:
        kept = {"cache-control": "private, max-age=86400"}  # the next run has another address
        name = request.url.path.rpartition("/")[2]
        return Response(scripts[name], media_type="text/javascript", headers=kept)

    def page(request: Request) -> Response:  # in a thread of its own
        word, name = request.path_params["item"], request.path_params.get("page", "")
        number = int(word) if _ITEM.fullmatch(word) else len(site.items)
        if number >= len(site.items):
            raise HTTPException(404, f"there is no item {word[:20]}")
        make = PAGES[site.items[number].kind].get(name)
        if make is None:
            raise HTTPException(404, f"a {site.items[number].kind} has no page {name}")
        content = make(site, number, site.items[number], Query(request.query_params))
        return JSONResponse(content) if isinstance(content, dict) else HTMLResponse(content)

    def failed(request: Request, error: Exception) -> Response:
        code, text = 500, f"{type(error).__name__}: {error}"
        if isinstance(error, HTTPException):
            code, text = error.status_code, error.detail
        elif isinstance(error, TokpackError):
            code, text = 500, str(error)
        if isinstance(error, UsageError | InputError | FileNotFoundError):
            code = 404
        return HTMLResponse(site.page("This cannot be shown", tag("p", text)), code)

    routes = [
        Route("/", front),
        Route("/style.css", css),
        *(Route(f"/{name}", script) for name in scripts),
        Route("/{item}/", page),
        Route("/{item}/{page}", page),
    ]
    caught: dict[Any, Any] = dict.fromkeys((HTTPException, TokpackError, OSError), failed)
    packed = [Middleware(GZipMiddleware, compresslevel=6)]  # for what is forwarded over a network
    return HostCheck(Starlette(routes=routes, exception_handlers=caught, middleware=packed), token)


def plotly() -> bytes:
    """The script of the package ``plotly`` that draws curves. UsageError without it."""
    with needs_extra("view"):
        spec = find_spec("plotly")  # importing it takes longer than all the rest
        if spec is None or spec.origin is None:
            raise ModuleNotFoundError("No module named 'plotly'", name="plotly")
    return Path(spec.origin).parent.joinpath("package_data", "plotly.min.js").read_bytes()


def serve(items: Sequence[Item], port: int, announce: Callable[[str], None]) -> None:
    """Serve the pages on this machine until a signal ends it; ``announce`` is told the address.

    ``port`` 0 is any free one. UsageError if the port is taken.
    """
    token = secrets.token_urlsafe(24)
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((HOST, port))
        except (OSError, OverflowError) as error:
            reason = error.strerror if isinstance(error, OSError) else "ports end at 65,535"
            raise UsageError(
                f"port {port}: {reason}: give another {option('port')}, or none"
            ) from None
        listener.listen()
        config = uvicorn.Config(
            application(items, token),
            log_level="warning",
            access_log=False,
            lifespan="off",
            server_header=False,
            proxy_headers=False,
        )
        announce(f"http://{HOST}:{listener.getsockname()[1]}/{token}/")
        uvicorn.Server(config).run(sockets=[listener])
