"""One bad line can fail a whole file: it is found before anything is sent."""

from __future__ import annotations

import pytest

from include.batches.line_check import LineCheck
from include.errors import BatchInferenceError
from tests.batches.submitting import SPACE


class TestEveryLineIsCheckedBeforeItIsSent:
    GOOD = b'{"custom_id":"a","url":"/v1/embeddings","body":{"model":"text-embedding-3-small"}}\n'

    def test_a_good_line_passes_and_one_of_another_protocol_too(self) -> None:
        check = LineCheck(SPACE)
        check([self.GOOD], ["a"])
        check([b'{"custom_id":"a","params":{"model":"text-embedding-3-small"}}\n'], ["a"])
        check([b'{"custom_id":"a","body":{"input":["x"]}}\n'], ["a"])

    @pytest.mark.parametrize(
        ("line", "what"),
        [
            (GOOD.replace(b'"a"', b'"b"'), "custom_id 'b'"),
            (GOOD.replace(b"embeddings", b"completions", 1), "is for '/v1/completions'"),
            (GOOD.replace(b"3-small", b"3-large"), "model 'text-embedding-3-large'"),
            (GOOD[:-5] + b"\n", "JSON object"),
            (GOOD[:-1], "one line with its newline"),
            (GOOD.replace(b",", b",\n", 1), "one line with its newline"),
            (b"[]\n", "JSON object"),
            (b'"a"\n', "JSON object"),
        ],
    )
    def test_a_bad_line_is_named(self, line: bytes, what: str) -> None:
        with pytest.raises(BatchInferenceError, match=what):
            LineCheck(SPACE)([self.GOOD, line], ["a", "a"])

    def test_a_line_with_its_fields_in_another_order_is_parsed_like_the_first(self) -> None:
        other = b'{"url":"/v1/embeddings","custom_id":"b","body":{"model":"text-embedding-3-small"}}\n'
        LineCheck(SPACE)([self.GOOD, other], ["a", "b"])
        with pytest.raises(BatchInferenceError, match="3-large"):
            LineCheck(SPACE)([other.replace(b"small", b"large").replace(b'"b"', b'"a"')], ["a"])

    def test_a_beginning_that_is_cut_short_is_found(self) -> None:
        with pytest.raises(BatchInferenceError, match="JSON object"):
            LineCheck(SPACE)([self.GOOD, self.GOOD[:20] + b"\n"], ["a", "a"])

    def test_the_check_works_again_after_a_bad_line(self) -> None:
        check = LineCheck(SPACE)
        with pytest.raises(BatchInferenceError):
            check([b"{\n"], ["a"])
        check([self.GOOD], ["a"])
