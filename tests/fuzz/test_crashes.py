"""Sessions that are killed cost no case and no finding: a small form of python -m tests.crashes."""

from __future__ import annotations

import pytest

from tests import crashes


@pytest.mark.exhaustive
def test_no_case_and_no_finding_is_lost_or_doubled(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("ray", reason="Ray is not installed: make setup-checks")
    assert crashes.main(["--cases", "600", "--crashes", "12"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "0 cases lost, 0 findings lost or doubled"
