"""The results of a check as SARIF 2.1.0: a result for each cause, under the rule of its oracle."""

from __future__ import annotations

import re
from urllib.parse import quote

from fuzz.check.causes import Cause
from fuzz.check.guard import Checked
from fuzz.check.summary import doubts, exit_code, sentences
from repro.cases.places import log_line, printed_json
from repro.traces.exit_codes import ExitCode

SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
ROOT = "%SRCROOT%"


def sarif(checked: Checked, unknown: str = "") -> str:
    """unknown: as for the exit code, which the file states. Files are named below the root of sglang's repository; a
    cause whose line is not known has no location."""
    code = exit_code(checked, unknown)
    rules = list(dict.fromkeys(cause.first.oracle for cause in checked.causes))
    driver = {
        "name": "eagleeye",
        "rules": [
            {"id": oracle, "shortDescription": {"text": _text(f"eagleeye's oracle {oracle} fails")}} for oracle in rules
        ],
    }
    notes = [f"{title}: {text}" for title, texts in doubts(checked) for text in texts]
    invocation = {
        "executionSuccessful": code is not ExitCode.ERROR,
        "exitCode": int(code),
        "toolExecutionNotifications": [{"level": "warning", "message": {"text": _text(note)}} for note in notes],
    }
    run = {
        "tool": {"driver": driver},
        "invocations": [invocation],
        "originalUriBaseIds": {ROOT: {"description": {"text": "the root of sglang's repository"}}},
        "results": [_result(checked, cause, rules.index(cause.first.oracle)) for cause in checked.causes],
    }
    return printed_json({"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}) + "\n"


def _result(checked: Checked, cause: Cause, rule: int) -> dict[str, object]:
    first, line = cause.first, cause.location
    return {
        "ruleId": first.oracle,
        "ruleIndex": rule,
        "level": "error",
        "message": {"text": _text(" ".join(sentences(cause)))},
        "locations": [_place(checked.names.path(line), line.line)] if line else [],
        "fingerprints": {"identity/v1": first.fingerprint},
        # GitHub knows results again by this name alone.
        "partialFingerprints": {"primaryLocationLineHash": f"{first.fingerprint}:1"},
        "properties": {"runner": first.runner, "backends": list(cause.backends), "replay": checked.replay(cause)},
    }


def _place(file: str, line: int) -> dict[str, object]:
    artifact = {"uri": quote(file), "uriBaseId": ROOT}
    return {"physicalLocation": {"artifactLocation": artifact, "region": {"startLine": line}}}


def _text(text: str) -> str:
    """A text in which a bracket before a parenthesis is no link."""
    return re.sub(r"\](?=\()", r"\]", log_line(text))
