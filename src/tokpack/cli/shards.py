"""The flags of plan, encode --plan, status and commit, and what these print about shards."""

from __future__ import annotations

import os
import shlex
import sys
import time
from collections import Counter
from contextlib import closing, contextmanager, redirect_stdout
from functools import partial
from hashlib import sha256
from typing import TYPE_CHECKING, Any, TypeVar

from tokpack.cli import summary, terminal
from tokpack.cli.parser import Group, flag_names, flags, given_options, parse
from tokpack.counts import counts_last
from tokpack.errors import BusyError, TokpackError, UsageError, WorkerError
from tokpack.quantities import bytes_text, count_text, counted, time_text
from tokpack.shards import SHARD_BYTES
from tokpack.storage import is_url

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator, Sequence

    from tokpack.cli.parser import Page
    from tokpack.dataset import Manifest
    from tokpack.dataset.results import RunTasks, Task
    from tokpack.encoding import EncodeOptions, RunStatus
    from tokpack.progress import Show
    from tokpack.shards import ShardEngine, ShardPlan, ShardStatus, TaskList, Work

T = TypeVar("T")
(SIZE,) = flags(
    "--shard-size SIZE  about so much text in each shard (64GB)",
    shard_size={"default": SHARD_BYTES},
)
ENGINE = flags(
    """
    --engine local|ray|slurm  this machine; a Ray cluster, with a task for each shard; or a Slurm
                           cluster, with an array of tasks that take shards (local)
    --machines N           at most so many tasks of Slurm (as many as its partition runs)
    --engine-option KEY=VALUE  an option of sbatch, such as partition=main, account, time or
                           memory; modules=A,B to load; header=FILE, which begins the script
    --ray-address ADDRESS  of the cluster ($RAY_ADDRESS, else the one on this machine)
    """,
    engine={"default": "local"},
    engine_option={"action": "append", "default": []},
)
ON_A_CLUSTER = Group("the passes over tokens on many machines", ENGINE)
GROUP = Group(
    "many machines",
    (
        *flags(
            """
            --plan PREFIX          make shards of what `tokpack shards plan` has planned
            --shard N|N,N-N|auto|next  which ones; auto: the number of this task of a Slurm,
                                   Kubernetes, ... array; next: a free one, and so on until all
                                   are done
            """,
        ),
        *ENGINE,
        SIZE,
    ),
)
_SHOWN, _TOP = 20, 5
_BESIDE_A_PLAN = frozenset(
    ("plan", "shard", "workers", "scratch", "overwrite", "log_interval", "json", "quiet", "debug")
)


def encode(arguments: argparse.Namespace, page: Page) -> int:
    """Make the shards of ``encode --plan``, one after the other."""
    from tokpack.shards import encode_shard, load_plan

    if not (arguments.plan and arguments.shard):
        raise UsageError("--plan PREFIX and --shard N belong together")
    flags, nothing = flag_names(*page.groups), parse(page, [])
    for name, value in vars(arguments).items():
        if name not in _BESIDE_A_PLAN and value != getattr(nothing, name, None):
            what = flags.get(name, "INPUT")
            raise UsageError(
                f"{what} and --plan are both given: the plan has it, so leave {what} out"
            )
    prefix, plan = load_plan(arguments.plan)
    options = given_options(encode_shard, arguments)
    make = partial(encode_shard, plan, prefix, **options)
    datasets = []
    made = each_made(plan, prefix, arguments.shard, make, arguments.log_interval)
    for number, manifests, report in made:
        names = plan.prefixes(prefix, number).values()
        for name, manifest in zip(names, manifests, strict=True):
            there = "" if report.first else " (it was there)"
            terminal.say(summary.describe(name, manifest) + there)
            datasets.append((name, manifest))
    summary.print_made(datasets, arguments)
    return 0


def each_made(
    plan: Work,
    prefix: str,
    which: str,
    make: Callable[..., T],
    interval: terminal.LineInterval | None = None,
) -> Iterator[tuple[int, T, terminal.Reporter]]:
    """Make the shards that ``which`` names, one after the other.

    Yields the number of each, what ``make`` returned, and its progress.
    """
    from tokpack.encoding import may_pass
    from tokpack.shards import free_shards, numbers_of

    takes = which == "next"
    named = [] if takes else numbers_of(which, plan.shards)
    numbers = free_shards(plan, prefix) if takes else ((number, None) for number in named)
    for number, lease in numbers:
        try:
            with terminal.Reporter(interval) as report, _outcome_is_told():
                made = make(number, lease=lease, progress=report)
        except BusyError:  # another took it first
            if not takes:
                raise
            continue
        except TokpackError as error:
            if not takes or may_pass(error):
                raise
            terminal.note(f"shard {number} failed: {error}")
            continue
        yield number, made, report


@contextmanager
def _outcome_is_told() -> Iterator[None]:
    """Tell the caller by the exit code whether another try may succeed."""
    from tokpack.encoding import may_pass
    from tokpack.shards import BUSY

    try:
        yield
    except BusyError as error:
        error.exit_code = BUSY
        raise
    except TokpackError as error:
        if may_pass(error):
            error.exit_code = WorkerError.exit_code
        raise


def check_engine(arguments: argparse.Namespace) -> None:
    """Refuse flags of another engine than the requested one. UsageError."""
    is_sized = getattr(arguments, "shard_size", SHARD_BYTES) != SHARD_BYTES
    for name, is_set, engines in (
        ("--ray-address", arguments.ray_address is not None, ("ray",)),
        ("--machines", arguments.machines is not None, ("slurm",)),
        ("--engine-option", bool(arguments.engine_option), ("slurm",)),
        ("--shard-size", is_sized, ("ray", "slurm")),
    ):
        if is_set and arguments.engine not in engines:
            more = ", and for tokpack shards plan" if name == "--shard-size" else ""
            raise UsageError(f"{name} is for --engine {' or '.join(engines)}{more}")


def encode_with_engine(arguments: argparse.Namespace, options: EncodeOptions) -> int:
    """Run ``encode --engine``: plan, make the shards by tasks, commit."""
    from tokpack.shards import check_fits, commit, make_shard_plan, save_plan

    if arguments.files:
        raise UsageError("--files is for one machine: here each shard is one, of --shard-size")
    if options.report_to is not None:
        raise UsageError(
            "--report-to is for one machine: `tokpack shards status` says how far all shards are"
        )
    prefix = options.output if is_url(options.output) else os.path.abspath(options.output)
    plan = make_shard_plan(options, arguments.shard_size)
    more = ["--scratch", arguments.scratch] if arguments.scratch else []
    with _engine(arguments, prefix, arguments.workers) as (engine, flags_of_it, machines, disk):
        if machines:
            known = 0 if arguments.scratch else disk
            for text in check_fits(plan, prefix, machines=machines, disk=known):
                terminal.note(text)
        plan = save_plan(plan, prefix, overwrite=arguments.overwrite)
        with terminal.Reporter(arguments.log_interval) as report:
            more += flags_of_it
            _drive(plan, prefix, engine, more, takers=min(machines, plan.shards), show=report)
    manifests = commit(plan, prefix, overwrite=arguments.overwrite)
    show_committed(plan, prefix, manifests, arguments)
    return 0


@contextmanager
def _engine(
    arguments: argparse.Namespace, prefix: str, cpus: int | None
) -> Iterator[tuple[ShardEngine, list[str], int, int]]:
    """The engine of ``--engine``, the flags of its tasks, and, for tasks that take shards, how many
    machines there are, with how much disk; else 0.
    """
    from tokpack.shards import plan_folder

    with redirect_stdout(sys.stderr):  # since Ray prints what happens to nodes
        if arguments.engine == "ray":
            from tokpack.shards import RayEngine

            with closing(RayEngine(arguments.ray_address, cpus)) as ray:
                yield ray, ["--quiet", "--workers", str(ray.cpus)], 0, 0
            return
        from tokpack.shards import SlurmEngine

        here = os.path.abspath(os.path.basename(prefix)) if is_url(prefix) else prefix
        # By its name a later command finds the job.
        name = f"tokpack-{os.path.basename(prefix)}-{sha256(prefix.encode()).hexdigest()[:8]}"
        given = arguments.engine_option
        with closing(SlurmEngine(name, cpus, given, plan_folder(here), terminal.note)) as slurm:
            yield slurm, ["--quiet"], arguments.machines or slurm.places, slurm.disk


def _drive(
    plan: Work,
    prefix: str,
    engine: ShardEngine,
    more: Sequence[str],
    *,
    takers: int,
    show: Show,
) -> None:
    """Make all shards on an engine."""
    from tokpack.shards import ShardRunner

    try:
        ShardRunner(plan, prefix, engine, more, takers=takers, show=show, say=terminal.note).run()
    except KeyboardInterrupt:
        if takers:
            terminal.note("the tasks go on: the same command takes them up, and finishes")
        raise


def tasks_of(arguments: argparse.Namespace, beside: str, report: Show) -> RunTasks | None:
    """A function that runs the passes of a command on its engine, or None for this machine.

    The list of tasks lies beside the dataset or view ``beside``.
    """
    check_engine(arguments)
    if arguments.engine == "local":
        return None

    def drive(work: TaskList, prefix: str) -> None:
        cpus = getattr(arguments, "threads", None) or None
        with _engine(arguments, prefix, cpus) as (engine, more, machines, _):
            _drive(work, prefix, engine, more, takers=min(machines, work.shards), show=report)

    def run(kind: str, tasks: Sequence[Task]) -> None:
        from tokpack.dataset.results import everywhere
        from tokpack.shards import run_tasks

        run_tasks(everywhere(beside), kind, tasks, drive)

    return run


def show_committed(
    plan: ShardPlan, prefix: str, manifests: Sequence[Manifest], arguments: argparse.Namespace
) -> None:
    """Print the datasets that the shards have become."""
    results = list(zip(plan.whole(prefix).values(), manifests, strict=True))
    for name, manifest in results:
        terminal.say(f"{summary.describe(name, manifest)} in {_shards(plan)}")
    terminal.say("  it points to the files of the shards: move them together")
    summary.print_made(results, arguments)


def tell_plan(plan: ShardPlan, prefix: str) -> None:
    """Print what was planned, and the next command."""
    stored = bytes_text(plan.size)
    inputs = counted(plan.inputs, "input")
    terminal.say(f"{prefix}: {_shards(plan)} of {inputs}, {stored} as they are stored")
    name = shlex.quote(prefix)
    terminal.say("next, on any machines, in any order:")
    terminal.say(f"  tokpack encode --plan {name} --shard 0    to --shard {plan.shards - 1}")
    terminal.say(f"then: tokpack shards commit {name}")


def plan_facts(plan: ShardPlan, prefix: str) -> dict[str, Any]:
    """The facts about a plan, for programs."""
    return {
        "prefix": prefix,
        "plan": plan.id,
        "shards": plan.shards,
        "inputs": plan.inputs,
        "bytes": plan.size,
    }


def status_facts(plan: ShardPlan, prefix: str, statuses: Sequence[ShardStatus]) -> dict[str, Any]:
    """The progress of a plan, for programs."""
    from tokpack.shards import missing

    return {
        **plan_facts(plan, prefix),
        "states": _counts(statuses),
        **progress_facts(plan, statuses),
        "missing": missing(statuses),
        "each": [_shard_facts(one) for one in statuses],
    }


def progress_facts(plan: ShardPlan, statuses: Sequence[ShardStatus]) -> dict[str, Any]:
    """The speed of the shards of a plan, which are slow and what went wrong, for programs.

    With many machines only some reports were read; the others count as equally fast.
    """
    states = Counter(one.state for one in statuses)
    working = [one.report for one in statuses if one.report and one.state == "running"]
    working = [report for report in working if report.seconds]
    known = states["running"] / max(1, len(working))
    speed = known * sum(report.done / report.seconds for report in working)
    stored = plan.size * (1 - states["done"] / plan.shards) - known * sum(r.done for r in working)
    hosts: dict[str, list[float]] = {}
    for report in working:
        hosts.setdefault(report.host, []).append(report.tokens / report.seconds)
    slowest = sorted((sum(rates) / len(rates), host) for host, rates in hosts.items())
    wrong = [one for one in statuses if one.report and one.state in ("failed", "lost", "stopped")]
    wrong.sort(key=lambda one: one.report.told if one.report else 0, reverse=True)
    return {
        "tokens": sum(one.tokens for one in statuses),
        "tokens_per_second": round(known * sum(r.tokens / r.seconds for r in working)),
        "seconds_left": round(max(0.0, stored) / speed, 1) if speed else None,
        "slowest": [
            {"host": host, "tokens_per_second": round(rate)} for rate, host in slowest[:_TOP]
        ],
        "failures": [_shard_facts(one) for one in wrong[:_TOP]],
    }


def show_progress(plan: ShardPlan, prefix: str, statuses: Sequence[ShardStatus]) -> None:
    """Print a screen with the speed of the shards, which are slow and what went wrong."""
    facts = progress_facts(plan, statuses)
    if sys.stdout.isatty():
        sys.stdout.write("\x1b[H\x1b[2J")
    counts = ", ".join(f"{count:,} {state}" for state, count in _counts(statuses).items())
    terminal.put(f"{time.strftime('%H:%M:%S')} {prefix}: {_shards(plan)}: {counts}")
    words = [f"{count_text(facts['tokens'])} tokens"]
    words.append(f"{count_text(facts['tokens_per_second'])} tokens/s")
    if (left := facts["seconds_left"]) is not None:
        end = time.strftime("%a %H:%M", time.localtime(time.time() + left))
        words.append(f"some {time_text(left)} left, until {end}")
    terminal.put("  " + ", ".join(words))
    for one in facts["slowest"]:
        terminal.put(f"  slowest  {one['host']}, {count_text(one['tokens_per_second'])} tokens/s")
    told = {one.number: one for one in statuses}
    for one in facts["failures"]:
        shard = told[one["shard"]]
        terminal.put(f"  {shard.state:<8} {shard.number:>5}  {_told(shard)}")
    sys.stdout.flush()


def _shard_facts(one: ShardStatus) -> dict[str, Any]:
    facts: dict[str, Any] = {"shard": one.number, "state": one.state, "tokens": one.tokens}
    if report := one.report:
        facts |= {"host": report.host, "pid": report.pid, "seconds": round(report.seconds, 1)}
        facts["message"] = report.message
    return facts


def run_facts(run: RunStatus) -> dict[str, Any]:
    """The progress of a run on this machine, for programs."""
    from dataclasses import asdict

    report = counts_last(asdict(run.report)) if run.report else {}
    return {"folder": run.folder, "state": run.state, **report}


def show_run(run: RunStatus) -> None:
    """Print the progress of a run on this machine."""
    report = run.report
    if report is None:
        terminal.put(f"{run.folder}: {run.state}")
        return
    by = f"process {report.pid} on {report.host}, for {time_text(report.seconds)}"
    terminal.put(f"{run.folder}: {run.state}, {by}")
    of = f"{bytes_text(report.done)} of {bytes_text(report.total)}"
    words = [f"{of} read" if report.total else f"{bytes_text(report.text_bytes)} of text"]
    words += [f"{count_text(report.documents)} docs, {count_text(report.tokens)} tokens"]
    words += [f"{report.rejected:,} bad records"] if report.rejected else []
    words += report.chosen()
    if run.state == "running" and report.seconds_left is not None:
        words.append(f"some {time_text(report.seconds_left)} left")
    terminal.put("  " + ", ".join(words))
    if report.message:
        terminal.put(f"  {report.message}")
    if run.advice:
        terminal.put(f"  {run.advice}")


def show_status(
    plan: ShardPlan, prefix: str, statuses: Sequence[ShardStatus], *, every: bool
) -> None:
    """Print the progress of a plan: counts, the shards that need attention, the next command."""
    from tokpack.dataset import manifest_path
    from tokpack.shards import missing, ranges
    from tokpack.storage import exists

    counts = ", ".join(f"{count:,} {state}" for state, count in _counts(statuses).items())
    terminal.put(f"{prefix}: {_shards(plan)}: {counts}")
    listed = [one for one in statuses if every or one.state not in ("done", "open")]
    for one in listed if every else listed[:_SHOWN]:
        terminal.put(f"  {one.number:>5}  {one.state:<8}{_told(one)}".rstrip())
    if not every and len(listed) > _SHOWN:
        terminal.put(f"  and {len(listed) - _SHOWN:,} more: --all lists them")
    left = missing(statuses)
    name = shlex.quote(prefix)
    # Files of a shard that was done are gone: the rest of it will be replaced.
    incomplete = [one.number for one in statuses if one.state == "open" and one.report]
    whole = sorted({*left} - {*incomplete})
    for numbers, flag in ((whole, ""), (incomplete, " --overwrite")):
        if numbers:
            command = f"tokpack encode --plan {name} --shard {ranges(numbers)}{flag}"
            terminal.put(f"to make what is missing: {command}")
    if all(one.state == "done" for one in statuses):
        # A new plan has removed the dataset that an older one made.
        is_committed = all(exists(manifest_path(one)) for one in plan.whole(prefix).values())
        terminal.put(
            "committed" if is_committed else f"all are there: tokpack shards commit {name}"
        )


def _shards(plan: ShardPlan) -> str:
    return counted(plan.shards, "shard")


def _counts(statuses: Sequence[ShardStatus]) -> dict[str, int]:
    return dict(Counter(one.state for one in statuses))


def _told(one: ShardStatus) -> str:
    report = one.report
    if report is None:
        return ""
    words = [f"{report.host}, {time_text(report.seconds)}"]
    if one.state == "running" and report.total:
        words.append(f"{min(1.0, report.done / report.total):.0%}")
    if one.tokens:
        words.append(f"{count_text(one.tokens)} tokens")
    if report.message:
        words.append(report.message)
    return ", ".join(words)
