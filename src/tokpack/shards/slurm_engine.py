"""Tasks on a Slurm cluster: job arrays, which outlive the command that submitted them.

There is one array with a task for each machine, which takes one shard after the other, instead of a
job for each shard. Slurm limits the tasks of an array (MaxArraySize, often 1001) and the jobs of
users and clusters, but not the work of a task. So 10,000 shards are possible, with one wait in the
queue, and no process is needed to submit the next shard. Slurm requeues a task that is preempted or
loses its node: like any task it starts with a free shard, and others may have taken its old one
meanwhile.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tokpack import machine
from tokpack.errors import UsageError, WorkerError, option
from tokpack.quantities import counted
from tokpack.shards.drive import CPUS, SAID, CommandResult

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

_LOOK_SECONDS = 10.0  # between two requests to the controller, which has other users
_PATIENCE = 600.0  # seconds to wait for a controller that does not answer
_NO_ANSWER = re.compile(r"(?i)unable to contact|timed out|connection refused|try again|temporar")
_PARTITION = re.compile(r"(?m)^#SBATCH\s+(?:--partition[= ]|-p\s*)(\S+)")
_ENDED = frozenset(("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "PREEMPTED"))
_ENDED |= {"BOOT_FAIL", "DEADLINE", "OUT_OF_MEMORY", "REVOKED", "UNKNOWN"}


@dataclass(eq=False)
class SlurmTask:
    """A task of an array; ``id`` is "" until it is submitted."""

    arguments: list[str]
    id: str = ""


class SlurmEngine:
    """An engine over sbatch, squeue, sacct and scancel.

    Existing tasks of jobs called ``name``, from an earlier command, are used first. ``given`` are
    KEY=VALUE: ``modules`` to load, ``header``, a file that begins the script, and options of
    sbatch. The output of tasks is in ``folder``. ``cpus`` is per task; None: 8, or all of a smaller
    node. UsageError without Slurm, or if it refuses; WorkerError if its controller does not answer.
    """

    def __init__(
        self,
        name: str,
        cpus: int | None,
        given: Iterable[str],
        folder: str,
        say: Callable[[str], None],
    ) -> None:
        self._name, self._folder, self._say = name, folder, say
        self._options = dict(_pair(text) for text in given)
        header = self._options.pop("header", "")
        try:
            self._header = Path(header).read_text(encoding="utf-8") if header else ""
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"{option('engine_option', f'header={header}')}: {error}") from error
        if "memory" in self._options:
            self._options["mem"] = self._options.pop("memory")
        self._modules = self._options.pop("modules", "").replace(",", " ").split()
        found = _PARTITION.search(self._header)
        self._partition = self._options.get("partition") or (found[1] if found else "")
        nodes = self._nodes()
        self.cpus = cpus or max(1, min([CPUS, *(count for _, count, _ in nodes)]))
        #: tasks that the partition can run at once, and the smallest local disk of a node in bytes,
        #: 0 if unknown
        self.places = sum(count * (cores // self.cpus) for count, cores, _ in nodes)
        self.disk = min(size << 20 for *_, size in nodes)
        if not self.places:
            raise UsageError(
                f"{option('workers', self.cpus)}: the largest node of the partition has "
                f"{max(cores for _, cores, _ in nodes)} CPUs, so no task could begin"
            )
        self._new: list[SlurmTask] = []
        self._cancelled: list[str] = []
        there = self._states().items()
        self._left = [SlurmTask([], task) for task, state in there if state not in _ENDED]
        self._due = 0.0
        if self._left:
            jobs = ", ".join(sorted({task.id.partition("_")[0] for task in self._left}))
            say(f"already in the queue: {counted(len(self._left), 'task')} of job {jobs}")

    def start(self, arguments: Sequence[str]) -> SlurmTask:
        if self._left:
            return self._left.pop()
        self._new.append(SlurmTask(list(arguments)))
        return self._new[-1]

    def ended(
        self, handles: Sequence[SlurmTask], seconds: float
    ) -> list[tuple[SlurmTask, CommandResult]]:
        self._submit()
        machine.clock.sleep(seconds)
        if machine.clock.now() < self._due:
            return []
        self._due = machine.clock.now() + _LOOK_SECONDS
        states = self._states()
        gone = [task.id for task in handles if not _of(task, states)]
        if gone:  # squeue forgets tasks some minutes after their end
            with suppress(UsageError):  # without accounting
                told = self._asked("sacct", "-nXP", "-j", ",".join(gone), "-o", "JobID,State")
                states |= dict(row.split()[0].split("|") for row in told.splitlines())
            states = dict.fromkeys(gone, "UNKNOWN") | states
        ended = [(task, state) for task in handles if (state := _of(task, states)) in _ENDED]
        return [(task, self._result(task, state)) for task, state in ended]

    def cancel(self, handle: SlurmTask) -> None:
        self._new = [task for task in self._new if task is not handle]
        self._cancelled += [handle.id] if handle.id else []

    def close(self) -> None:
        with suppress(UsageError):  # some may have ended
            if self._cancelled:
                self._asked("scancel", *self._cancelled)

    def _nodes(self) -> list[tuple[int, int, int]]:
        """The partition's kinds of nodes: their number, CPUs, and MiB of local disk."""
        lines = self._asked("sinfo", "-h", "-o", "%P|%D|%c|%d").splitlines()
        rows = [line.replace("+", "").split("|") for line in lines]
        wanted = self._partition.split(",")
        own = [
            (int(row[1]), int(row[2]), int(row[3]))
            for row in rows
            if (row[0].rstrip("*") in wanted if self._partition else row[0].endswith("*"))
        ]
        if not own:
            names = ", ".join(sorted({name.rstrip("*") for name, *_ in rows})) or "none"
            raise UsageError(
                f"{option('engine_option', f'partition={self._partition}')}: the cluster has the "
                f"partitions {names}"
            )
        return own

    def _submit(self) -> None:
        """Submit the tasks started since the last time, equal ones as an array."""
        while self._new:
            first = self._new[0].arguments
            same = [task for task in self._new if task.arguments == first]
            found = re.search(
                r"MaxArraySize\s*=\s*(\d+)", self._asked("scontrol", "show", "config")
            )
            tasks = same[: int(found[1]) if found else 1001]
            os.makedirs(self._folder, exist_ok=True)
            words = [f"--{key}={value}" for key, value in self._options.items()]
            array = ["--parsable", f"--job-name={self._name}", f"--array=0-{len(tasks) - 1}"]
            job = self._asked("sbatch", *array, *words, script=self._script(first)).strip()
            job = job.partition(";")[0]  # the name of the cluster may follow
            each = " each" if len(tasks) > 1 else ""
            cpus = f"{counted(self.cpus, 'CPU')}{each}"
            self._say(f"submitted job {job}: {counted(len(tasks), 'task')} with {cpus}")
            for number, task in enumerate(tasks):
                task.id = f"{job}_{number}"
            self._new = [task for task in self._new if not task.id]

    def _script(self, arguments: Sequence[str]) -> str:
        first, _, rest = self._header.partition("\n")
        has_shell = first.startswith("#!")
        return "\n".join(
            (
                first if has_shell else "#!/bin/bash",
                f"#SBATCH --cpus-per-task={self.cpus} --ntasks=1 --requeue --open-mode=append",
                f"#SBATCH --output={shlex.quote(self._folder)}/slurm-%A_%a.log",
                rest if has_shell else self._header,
                f"module load {shlex.join(self._modules)}" if self._modules else "",
                # exec, so that the task itself gets SIGTERM, not just its shell.
                f"exec {shlex.join([sys.executable, '-P', '-m', 'tokpack', *arguments])} "
                f'--workers "${{SLURM_CPUS_PER_TASK:-{self.cpus}}}"',
                "",
            )
        )

    def _states(self) -> dict[str, str]:
        """The states of all tasks of this name, including recently ended ones.

        Tasks that were cancelled together before they began have only their job's number.
        """
        rows = self._asked("squeue", "-h", "-r", "-t", "all", "-n", self._name, "-o", "%i|%T")
        return dict(re.sub(r"_\[.*]", "", row).split("|") for row in rows.splitlines())

    def _result(self, task: SlurmTask, state: str) -> CommandResult:
        try:
            log = Path(self._folder, f"slurm-{task.id}.log").read_bytes()[-SAID:]
        except OSError:
            log = b""
        codes = {"COMPLETED": 0, "CANCELLED": 1, "FAILED": 2}
        said = log.decode("utf-8", "replace") if state == "FAILED" else f"{state}, as job {task.id}"
        return CommandResult(codes.get(state), said)

    def _asked(self, *command: str, script: str | None = None) -> str:
        """The output of a Slurm command, as soon as the controller answers."""
        begun = machine.clock.now()
        while True:
            try:
                done = subprocess.run(
                    command,
                    input=script,
                    capture_output=True,
                    text=True,
                    check=False,
                    errors="replace",
                )
            except FileNotFoundError as error:
                raise UsageError(
                    f"{option('engine', 'slurm')} needs {command[0]}: run it where you submit jobs"
                ) from error
            if not done.returncode:
                return done.stdout
            reason = " ".join(done.stderr.split())[-SAID:]
            if not _NO_ANSWER.search(reason):
                raise UsageError(f"{command[0]}: {reason}")
            if machine.clock.now() - begun > _PATIENCE:
                raise WorkerError(f"{command[0]}: {reason}: run the same command later to continue")
            machine.clock.sleep(_LOOK_SECONDS)


def _of(task: SlurmTask, states: Mapping[str, str]) -> str:
    return states.get(task.id) or states.get(task.id.partition("_")[0], "")


def _pair(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not (equals and re.fullmatch(r"[a-z][a-z-]*", key)):
        raise UsageError(f"{option('engine_option', text)}: give KEY=VALUE, such as partition=main")
    return key, value
