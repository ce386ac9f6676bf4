"""What may be replaced on a store: what tokpack made, is named as output, and was looked at.

Another run, or somebody else, comes in the middle of a command: at a request of it that the proxy
holds until the other is done.
"""

from __future__ import annotations

import json
import shutil
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from support import forked
from support.encoding_tools import documents, write_jsonl
from support.faults import plant
from support.stores import Fault

import tokpack
from tokpack.cli.main import main
from tokpack.errors import OutputError, StoreError
from tokpack.storage import outputs
from tokpack.storage.objects import urls as ranges
from tokpack.storage.objects.upload import TakenError
from tokpack.storage.outputs import NewObjects
from tokpack.storage.scratch import SentNote

if TYPE_CHECKING:
    from support.stores import Store

URL = "s3://texts/taken/x"
ENCODE = f"encode {{}}.jsonl -o {URL} --tokenizer t.json --workers 1 -q"
# A command that makes a dataset of "ours" or "theirs", its first file, and where the other comes.
RACES = {
    "encode": (ENCODE, "x", ["PUT x.tokpack.tmp", "PUT x.bin", "PUT x.idx", "PUT x.json"]),
    "merge": (f"merge {{}} -o {URL} -q", "x", ["POST x.bin?uploads", "POST x.bin?uploadId"]),
    "split": (f"split {{}} -o {URL} --parts 2 -q", "x_00000", ["PUT x_00001.bin"]),
    "convert": (f"convert {{}} {URL} --dtype int32 -q", "x", ["PUT x.bin", "PUT x.json"]),
}
OVER = {"encode": ["DELETE x.idx", "PUT x.bin", "PUT x.json"], "merge": ["POST x.bin?uploadId"]}


@pytest.fixture(scope="module")
def made(tokenizer: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with "old", "ours" and "theirs" as texts and as datasets."""
    folder = tmp_path_factory.mktemp("made")
    shutil.copy(tokenizer, folder / "t.json")
    for number, name in enumerate(("old", "ours", "theirs")):
        texts = write_jsonl(folder / f"{name}.jsonl", documents(30, seed=number))
        tokpack.encode(texts, folder / name, tokenizer=str(tokenizer), workers=1)
    return folder


@pytest.fixture
def work(store: Store, made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with these, to work in; nothing is at the output."""
    monkeypatch.delenv("TMPDIR", raising=False)
    for key in store.s3.keys("taken/"):
        store.s3.delete(key)
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def there(store: Store) -> dict[str, bytes]:
    """What is at the output; no upload is under way, and nothing half done is beside it."""
    assert store.s3.uploads() == 0
    assert not [key for key in store.s3.keys("taken/") if "tmp" in key]
    return {key: store.s3.get(key) or b"" for key in store.s3.keys("taken/")}


def meets(store: Store, moment: str, command: str) -> list[int]:
    """Let another process do a command at a request of ours; gives its exit code, then."""
    codes: list[int] = []

    def act() -> None:
        words = ["-m", "tokpack", *command.split()]
        codes.append(forked.run(words, capture_output=True, check=False).returncode)

    method, path = moment.split()
    store.plan.faults[:] = [Fault("call", method, f"/{path}", times=1, act=act)]
    return codes


@pytest.fixture
def in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Uploads are in parts, however small the files are."""
    monkeypatch.setattr(ranges, "PART_BYTES", 1)


@pytest.fixture
def patient(work: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """As ``work``, where commands wait for others that come meanwhile."""
    monkeypatch.setenv("TOKPACK_STORE_TIMEOUT", "300")
    return work


@pytest.mark.parametrize(
    "race",
    [(name, moment, "") for name, race in RACES.items() for moment in race[2]]
    + [(name, moment, " --overwrite") for name, moments in OVER.items() for moment in moments],
    ids=" ".join,
)
def test_one_of_two_runs_wins(
    store: Store,
    patient: Path,
    race: tuple[str, str, str],
    request: pytest.FixtureRequest,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The other says so; what is there is all of the winner's and nothing else."""
    name, moment, over = race
    if "upload" in moment:
        request.getfixturevalue("in_parts")
    command, first, _ = RACES[name]
    if over:
        assert main(command.format("old").split()) == 0
    more = " --scratch theirs" if name == "encode" else ""  # as on another machine
    theirs = meets(store, moment, command.format("theirs") + over + more)
    capsys.readouterr()
    code, said = main((command.format("ours") + over).split()), capsys.readouterr().err
    assert store.plan.faults.pop().done
    [other] = theirs
    assert sorted([code, other]) in ([0, 1], [0, 2]), said
    if code:
        [line] = said.splitlines()
        assert " exists" in line or "was removed" in line
    winner = command.format("theirs" if code else "ours").replace("s3://texts/taken/", "alone/")
    assert main(winner.split()) == 0
    found = there(store)
    assert found.keys() == {f"taken/{path.name}" for path in Path("alone").iterdir()}
    for path in Path("alone").glob("*.[bi]*"):
        assert found[f"taken/{path.name}"] == path.read_bytes()
    assert main(["verify", f"s3://texts/taken/{first}", "-q"]) == 0


def test_of_a_large_upload(
    store: Store, patient: Path, texts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In parts: what came while they were sent, before they become an object, stays."""
    monkeypatch.setattr(ranges, "PART_BYTES", 5 << 20)
    for over in ("", " --overwrite"):
        if over:
            assert main([*ENCODE.format("old").split(), "--scratch", "old"]) == 0
        command = ENCODE.replace("{}.jsonl", str(texts)) + over
        other = f"{ENCODE.format('theirs')} --scratch theirs{over}"
        theirs = meets(store, "POST x.bin?uploadId", other)
        assert main(command.split()) != 0
        assert theirs == [0]
        assert there(store)["taken/x.bin"] == Path("theirs.bin").read_bytes()
        assert main(["verify", URL, "-q"]) == 0
        for key in there(store):
            store.s3.delete(key)


@pytest.mark.parametrize(("moment", "content"), [("PUT /x.idx", b"foreign"), ("PUT /x.json", None)])
def test_a_mix_has_no_manifest(
    store: Store, patient: Path, moment: str, content: bytes | None
) -> None:
    """Where somebody writes over a file that was sent, or removes it, there is no dataset."""
    method, path = moment.split()
    change = store.s3.delete if content is None else lambda key: store.s3.put(key, content)
    act = lambda: change("taken/x.bin")  # noqa: E731
    store.plan.faults[:] = [Fault("call", method, path, times=1, act=act)]
    assert main(ENCODE.format("ours").split()) != 0
    assert there(store) == ({"taken/x.bin": content} if content else {})


def test_the_same_run_twice_is_one_dataset(store: Store, patient: Path) -> None:
    """On two machines both succeed, for the bytes are the same; on one the other has to wait."""
    for moment in ("PUT x.bin", "PUT x.json"):
        for more, code in ((" --scratch theirs --overwrite", 0), ("", 1)):
            theirs = meets(store, moment, ENCODE.format("ours") + more)
            assert main(ENCODE.format("ours").split()) == 0
            assert [bool(one) for one in theirs] == [code]
            assert there(store)["taken/x.bin"] == Path("ours.bin").read_bytes()
            assert main(["verify", URL, "-q"]) == 0
            for key in there(store):
                store.s3.delete(key)


@pytest.mark.parametrize("part_bytes", [16 << 20, 1])
def test_what_another_run_has_written_is_not_ours(
    store: Store, work: Path, monkeypatch: pytest.MonkeyPatch, part_bytes: int
) -> None:
    """Not even the same bytes, in one request or in parts: that run may remove them."""
    monkeypatch.setattr(ranges, "PART_BYTES", part_bytes)
    urls = [f"{URL}.idx", f"{URL}.json"]
    ours, theirs = (NewObjects(dict.fromkeys(urls), SentNote(".")) for _ in range(2))
    whole = [ranges.Range.of_file("ours.idx")]
    with suppress(KeyboardInterrupt), theirs:
        with ours:
            ours.write(urls[0], whole)
            with pytest.raises(TakenError):
                theirs.write(urls[0], whole)
            ours.write_last(urls[1], b"{}")
        raise KeyboardInterrupt
    assert there(store) == {"taken/x.idx": Path("ours.idx").read_bytes(), "taken/x.json": b"{}"}


@pytest.mark.parametrize("may_be_done", [True, False])
def test_files_stay_where_their_manifest_may_come_yet(
    store: Store, work: Path, monkeypatch: pytest.MonkeyPatch, *, may_be_done: bool
) -> None:
    failed = OutputError("cannot write")
    failed.__cause__ = cause = StoreError("no answer, and then a refusal")
    cause.may_be_done = may_be_done
    plant(outputs, "replace", failed, patch=monkeypatch)
    urls = [f"{URL}.idx", f"{URL}.json"]
    with suppress(OutputError), NewObjects(dict.fromkeys(urls), SentNote(".")) as objects:
        objects.write(urls[0], [ranges.Range.of_file("ours.idx")])
        objects.write_last(urls[1], b"{}")
    assert bool(there(store)) == may_be_done


@pytest.mark.usefixtures("in_parts")
def test_what_is_finished_during_an_upload_stays(
    store: Store, patient: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """``--overwrite`` is for what is there when it begins: a .bin that another run goes on with."""
    theirs = {end: Path(f"theirs.{end}").read_bytes() for end in ("bin", "idx", "json")}
    store.s3.put("taken/x.bin", theirs["bin"])

    def finish() -> None:
        for end in ("idx", "json"):
            store.s3.put(f"taken/x.{end}", theirs[end])

    store.plan.faults[:] = [Fault("call", "POST", "/x.bin?uploads", times=1, act=finish)]
    assert main(f"merge ours -o {URL} -q --overwrite".split()) == 1
    assert "another run has done so meanwhile" in capsys.readouterr().err
    assert there(store) == {f"taken/x.{end}": content for end, content in theirs.items()}


def test_a_run_that_has_to_wait_takes_nothing_from_the_other(store: Store, patient: Path) -> None:
    """The second of one machine finds a folder in which the first has made nothing yet."""
    locks: list[list[Path]] = []

    def act() -> None:
        words = ["-m", "tokpack", *ENCODE.format("theirs").split()]
        assert forked.run(words, capture_output=True, check=False).returncode == 1
        locks.append(list(Path().glob("tokpack-x-*/lock")))

    store.plan.faults[:] = [Fault("call", "HEAD", "/x.rejects.jsonl", times=1, act=act)]
    assert main(ENCODE.format("ours").split()) == 0
    assert [len(some) for some in locks] == [1]
    assert there(store)["taken/x.bin"] == Path("ours.bin").read_bytes()


@pytest.mark.parametrize("content", [b"mine\n", b'{"text": "a b"}\nbroken\n'])
@pytest.mark.parametrize("over", ["", " --overwrite"])
def test_rejects_replace_no_other_object(
    store: Store, work: Path, content: bytes, over: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """An input or any other object of that name stays; the run does not begin."""
    store.s3.put("taken/x.rejects.jsonl", content)
    Path("some.jsonl").write_bytes(b'{"text": "a b"}\nbroken\n')
    command = f"encode {{}} -o {URL} --tokenizer t.json --workers 1 -q --on-error skip{over}"
    for inputs in ("some.jsonl", f"{URL}.rejects.jsonl"):
        assert main(command.format(inputs).split()) != 0
        said = capsys.readouterr().err
        assert "is an input" in said or "is not a list of bad records" in said
        assert there(store) == {"taken/x.rejects.jsonl": content}
    store.s3.delete("taken/x.rejects.jsonl")
    for again in ("", " --overwrite --no-append-eod"):  # its own are replaced
        assert main(f"{command.format('some.jsonl')}{again}".split()) == 0
        assert b'"line": 2' in there(store)["taken/x.rejects.jsonl"]


def test_overwrite_replaces_what_tokpack_made(store: Store, work: Path) -> None:
    """Neither a JSON file nor a table that it did not make; both commands that write datasets."""
    for command in (ENCODE.format("ours"), RACES["merge"][0].format("ours")):
        store.s3.put("taken/x.docs.parquet", b"mine")
        store.s3.put("taken/x.json", b'{"mine": 1}')
        assert main([*command.split(), "--overwrite"]) != 0
        assert there(store) == {"taken/x.docs.parquet": b"mine", "taken/x.json": b'{"mine": 1}'}
        store.s3.delete("taken/x.json")
        assert main([*command.split(), "--overwrite"]) == 0
        assert there(store).pop("taken/x.docs.parquet") == b"mine"
        assert main(["verify", URL, "-q"]) == 0
        for key in there(store):
            store.s3.delete(key)


CONFLICTS = {
    ENCODE.format("ours"): ["PUT x.bin", "HEAD x.json"],
    ENCODE.format("ours") + " --overwrite": ["DELETE x.idx", "PUT x.json"],
    RACES["merge"][0].format("ours"): ["PUT x.bin?", "POST x.bin?uploadId"],
    f"plan ours.jsonl -o {URL} --tokenizer t.json --overwrite -q": ["PUT plan.jsonl"],
}


@pytest.mark.usefixtures("hasty")
@pytest.mark.parametrize(
    "case", [(one, at) for one, moments in CONFLICTS.items() for at in moments], ids=" at ".join
)
def test_a_conflict_is_tried_again_and_then_fails(
    store: Store,
    work: Path,
    monkeypatch: pytest.MonkeyPatch,
    case: tuple[str, str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    """409 says that another request for the object was under way: nothing was written."""
    command, request = case
    if "?" in request:
        monkeypatch.setattr(ranges, "PART_BYTES", 1)
    is_plan = command.startswith("plan")
    if is_plan or "--overwrite" in command:
        old = command.replace("ours", "old")
        assert main(old.split()) == 0
    before = there(store)
    method, path = request.split()
    store.plan.faults[:] = [Fault("409", method, f"/{path}")]
    capsys.readouterr()
    assert main(command.split()) != 0
    [line] = capsys.readouterr().err.splitlines()
    assert "409" in line
    store.plan.faults.clear()
    assert there(store).items() <= before.items()  # at most something of the old one is gone
    if is_plan:
        return
    store.plan.faults[:] = [Fault("409", method, f"/{path}", times=2)]
    assert main([*command.split(), *(["--overwrite"] * ("--overwrite" not in command))]) == 0
    assert store.plan.faults.pop().done == 2
    assert there(store)["taken/x.bin"] == Path("ours.bin").read_bytes()
    assert main(["verify", URL, "-q"]) == 0


@pytest.fixture(scope="module")
def many(served: Store) -> int:
    """How many objects are below s3://texts/many, a document in each."""
    count = 10
    for number in range(count):
        served.s3.put(f"many/{number:04}.jsonl", b'{"text": "a"}\n')
    return count


@pytest.mark.usefixtures("hasty")
@pytest.mark.parametrize("form", ["", "/*.jsonl"])
def test_a_listing_that_ends_in_an_error(
    store: Store,
    patient: Path,
    many: int,
    form: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With status 200: it is asked for again, and then it is an error, not the list's end."""
    store.plan.page = 4
    command = f"plan s3://texts/many{form} -o planned --tokenizer t.json -q".split()
    store.plan.faults[:] = [Fault("error", "GET", "continuation-token", times=1)]
    assert main(command) == 0
    assert store.plan.faults.pop().done
    head = Path("planned.plan/plan.jsonl").read_text().partition("\n")[0]
    assert json.loads(head)["inputs"] == many
    store.plan.faults[:] = [Fault("error", "GET", "continuation-token")]
    monkeypatch.setenv("TOKPACK_STORE_TIMEOUT", "1")
    with pytest.raises(StoreError, match="s3://texts/many"):
        tokpack.plan(command[1], "other", tokenizer="t.json")
    assert not Path("other.plan").exists()


@pytest.mark.usefixtures("hasty", "in_parts")
@pytest.mark.parametrize(
    "case",
    [
        (Fault("bare", "POST", "x.bin?uploads"), "has no UploadId"),
        (Fault("bare", "PUT", "x.bin?uploadId"), "has no ETag"),
        (Fault("lost", "POST", "x.bin?uploads"), "cannot write s3://texts/taken/x.bin"),
    ],
)
def test_answers_to_uploads(
    store: Store,
    work: Path,
    monkeypatch: pytest.MonkeyPatch,
    case: tuple[Fault, str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    """That lack something or are lost: one error, and no upload stays under way."""
    fault, words = case
    store.plan.faults[:] = [fault]
    assert main(RACES["merge"][0].format("ours").split()) != 0
    [line] = capsys.readouterr().err.splitlines()
    assert words in line
    store.plan.faults.clear()
    assert there(store) == {}


@pytest.mark.usefixtures("work")
def test_an_input_of_the_name_that_is_tried_stays(store: Store) -> None:
    text = Path("ours.jsonl").read_bytes()
    source = store.s3.put("taken/x.tokpack.tmp", text)
    assert main(ENCODE.replace("{}.jsonl", source).split()) == 0
    assert store.s3.get("taken/x.tokpack.tmp") == text
