"""pytest -m nightly: how long a run takes, a limit that it keeps, and JUnit's XML of one that is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path
from xml.etree import ElementTree

import pytest

from repro.ledger.read import History
from tests.builders.sample_rows import check_row, fix_row
from tests.house.test_nightly import Runs
from tests.nightly.junit import Row, unfinished
from tests.nightly.plan import CHECK_S, MINUTES_MIN, OPENING_S, Costs, costs, is_campaign, plan

CAMPAIGNS = tuple(f"jobs.py::test_campaign[0.5.23/emulated {runner} triton]" for runner in "abcdefgh")
CHECKS = tuple(f"jobs.py::test_seed[{number}]" for number in range(60))
EACH = Costs(check=10.0, fix=30.0, measured=True)


def test_an_estimate_adds_up_what_each_job_takes() -> None:
    night = plan((*CAMPAIGNS, *CHECKS, "jobs.py::test_fix[1]", "jobs.py::test_known_issue[a]"), 2, EACH, minutes=10.0)
    assert (night.checks, night.fixes, night.campaigns, night.minutes) == (60, 1, 8, 10.0)
    assert night.seconds == (60 * 10 + 30) / 2 + 4 * (600 + OPENING_S)
    (line,) = night.lines()
    assert line.startswith(
        "about 47 min with 2 workers: 8 campaigns of 10 minutes, 60 stored cases of 10 s and 1 fix of"
    )


@pytest.mark.parametrize(("limit", "workers"), [(20.0, 1), (20.0, 2), (60.0, 2), (12.0, 4), (500.0, 3)])
def test_a_limit_has_room_for_a_campaign_of_each_pair(limit: float, workers: int) -> None:
    night = plan((*CAMPAIGNS, *CHECKS), workers, EACH, minutes=10.0, limit=limit)
    assert night.fits and MINUTES_MIN <= night.minutes <= 10.0
    campaigns = -(-8 // workers) * (60 * night.minutes + OPENING_S)
    assert campaigns <= 60 * limit
    # What the campaigns leave is the stored cases'; where that is less than they take, the plan says so.
    assert (night.seconds <= 60 * limit + 1e-6) or "after " in night.lines()[1]


def test_a_limit_without_room_is_noticed() -> None:
    night = plan(CAMPAIGNS, 1, EACH, minutes=10.0, limit=2.0)
    assert not night.fits and night.minutes == MINUTES_MIN
    assert night.lines()[1] == "2 minutes are too few for a campaign of each pair: the last ones do not begin"


def test_costs_are_the_medians_of_the_ledger() -> None:
    assert costs(History(path=Path("l.db"))) == Costs()
    checks = tuple(
        check_row(str(number), "PASS", tried=3, seconds=seconds) for number, seconds in enumerate((1, 4, 90))
    )
    proof = (fix_row("1", seconds=2.0), fix_row("1", role="fixed", seconds=3.0))
    assert costs(History(path=Path("l.db"), checks=checks, fixes=proof)) == Costs(check=4, fix=5.0, measured=True)
    assert costs(History(path=Path("l.db"), fixes=proof)).check == CHECK_S


def test_an_unfinished_file_is_not_green() -> None:
    rows = (Row(name="a", seconds=1.5), Row(name="b \x00", seconds=0.0, tag="failure", text="x\x1b\nhere"))
    suite = ElementTree.fromstring(unfinished(rows, "killed").encode())[0]
    assert (suite.get("tests"), suite.get("failures"), suite.get("errors")) == ("3", "1", "1")
    assert [[part.tag for part in case] for case in suite] == [[], ["failure"], ["error"]]
    assert suite[2][0].get("message") == "killed"


@pytest.mark.slow
def test_a_run_keeps_its_limit_and_says_so_before(tmp_path: Path) -> None:
    _, text = Runs(tmp_path)("--max-minutes", "0.00001", targets="clean/toy")
    assert "1e-05 minutes are too few for a campaign of each pair" in text
    assert "not begun, as 1e-05 minutes are over" in text and "nothing was measured" in text


@pytest.mark.slow
def test_a_run_that_is_killed_leaves_its_junit(tmp_path: Path) -> None:
    run, junit = Runs(tmp_path), tmp_path / "junit.xml"
    with subprocess.Popen(
        run.command("--max-minutes", "30", targets="clean/toy"),
        env=os.environ,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    ) as process:
        end = time.monotonic() + 120
        while not (junit.exists() and "<testcase" in junit.read_text()) and time.monotonic() < end:
            time.sleep(0.05)
        os.killpg(process.pid, signal.SIGKILL)
    suite = ElementTree.parse(junit).getroot()[0]
    (error,) = suite.iter("error")
    assert error.get("message") == "killed, or still running: not every job has ended"


def test_campaigns_are_known_by_their_ids() -> None:
    assert is_campaign(CAMPAIGNS[0]) and not is_campaign(CHECKS[0])
