"""What a run says of itself while it is under way."""

from __future__ import annotations

from tokpack.encoding.status import RunReporter, parse_report
from tokpack.encoding.worker import Counters, Meter
from tokpack.sources import DocumentBatch


def test_a_report_tells_what_where_and_map_did() -> None:
    written: list[bytes] = []
    reporter = RunReporter(written.append, None, beat=0)
    meter = Meter(reporter, 1000, 2)
    for values in meter.shared:
        counters = Counters(values)
        chosen = {"left_out": 1_200, "mapped_in": 1}
        counters.add(DocumentBatch({}, [], 9, 9, bytes_read=50, counts=chosen), 5, 70)
    meter.show("encode", now=True)
    report = parse_report(written[-1], "report.json")
    assert report is not None
    assert (report.done, report.documents, report.tokens) == (100, 10, 140)
    assert report.chosen() == ["2,400 left out by where", "2 added by map"]
    # A report of before has no such counts.
    old = written[-1].replace(b'"left_out"', b'"unknown"')
    assert parse_report(old, "report.json") is not None
