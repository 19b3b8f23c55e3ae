"""Launch commands of a few flags each, in the forms that people write: each becomes an aim, or is refused in one line.

tests/fuzz/test_public_reports.py has whole commands of the public tracker.
"""

from __future__ import annotations

import pytest

from fuzz.aiming import pairs
from fuzz.like import like
from repro.cases.case import Target, engine_refuses
from repro.cases.release_list import NEWEST
from repro.cases.server_args import BadOption, arguments
from runners.targets.server_arguments import argument_names

SERVER = "python3 -m sglang.launch_server --model-path meta-llama/Llama-3.1-8B-Instruct "
EAGLE = "--speculative-algorithm EAGLE --speculative-draft-model-path draft "
# The runners driven and the aim's values; or the refusal.
POSTED = [
    (
        SERVER + EAGLE + "--speculative-num-steps 1 --speculative-eagle-topk 1 --speculative-num-draft-tokens 2 --tp 8",
        "verify num_steps=1",
    ),
    (
        SERVER + EAGLE + "--speculative-eagle-topk 4 --page-size 16 --attention-backend flashinfer",
        "draft backend=flashinfer page_size=16",
    ),
    (
        SERVER + EAGLE + "--speculative-eagle-topk 4 --page-size 64 --attention-backend fa3 --dtype bfloat16",
        "draft backend=fa3 dtype=bfloat16",
    ),
    (SERVER + EAGLE + "--cuda-graph-max-bs-decode 2 --mem-fraction-static 0.7 --dtype float16", "draft dtype=float16"),
    (SERVER + EAGLE + "--enable-dp-attention --dp 8 --tp-size 8 --moe-a2a-backend deepep", "draft dp_attention=True"),
    (SERVER + EAGLE + "--attn-dp-size 4 --tp 4", "draft dp_attention=True"),
    (SERVER + EAGLE + "--kv-cache-dtype fp8_e5m2 --attention-backend triton", "draft kv_dtype=fp8_e5m2"),
    (SERVER + EAGLE + "--kv-cache-dtype fp8_e4m3 --attention-backend fa3", "draft backend=fa3"),
    (SERVER + EAGLE + "--attention-backend trtllm_mha --page-size 32", "draft page_size=32"),
    (SERVER + EAGLE + "--disable-cuda-graph-padding --cuda-graph-bs-decode 1 2 4 8", "draft padded=False"),
    (SERVER + EAGLE + "--speculative-adaptive --speculative-eagle-topk 1", "draft topk=1"),
    (
        SERVER + EAGLE + "--disable-cuda-graph --enable-dp-attention --dp-size 2 --tp-size 2",
        "verify_eager algorithm=EAGLE",
    ),
    (
        SERVER + "--speculative-algorithm EAGLE3 --speculative-draft-model-path d --speculative-token-map t.pt",
        "draft algorithm=EAGLE3",
    ),
    (SERVER + "--speculative-algorithm NEXTN --attention-backend fa3 --tp 8", "draft algorithm=NEXTN"),
    (
        SERVER + "--enable-return-hidden-states --enable-deterministic-inference",
        "decode returns_hidden=True deterministic=True",
    ),
    ("SGLANG_ENABLE_SPEC_V2=1 sglang serve --host 0.0.0.0 --port 30000 --page-size 1", "decode page_size=1"),
    (
        SERVER + "--speculative-algorithm NGRAM --speculative-num-draft-tokens 16",
        "round algorithm=NGRAM num_draft_tokens=16",
    ),
    (
        SERVER + "--speculative-algorithm DSPARK --speculative-dspark-block-size 7",
        "round algorithm=DSPARK num_draft_tokens=8",
    ),
    (SERVER + "--speculative-algorithm STANDALONE", "round algorithm=STANDALONE"),
    (SERVER + EAGLE + "--speculative-eagle-topk 16", "speculative_eagle_topk=16: outside 1..10"),
    (
        SERVER + EAGLE + "--speculative-eagle-topk 1 --speculative-num-steps 3 --speculative-num-draft-tokens 8",
        "draft num_steps=3 num_draft_tokens=4",  # sglang adjusts a chain's draft tokens
    ),
    (SERVER + EAGLE + "--page-size 24", "page_size=24: not driven; known are 1"),
    (SERVER + EAGLE + "--speculative-num-step 3", "draft num_steps=3"),
    (SERVER + "--speculative-eagle-topc 3", "no such argument of sglang; did you mean speculative_eagle_topk"),
]


@pytest.fixture(scope="module")
def known() -> frozenset[str]:
    return argument_names([Target(NEWEST, "emulated")])


@pytest.mark.emulated(NEWEST)
@pytest.mark.parametrize(("text", "expected"), POSTED, ids=[text.removeprefix(SERVER) for text, _ in POSTED])
def test_a_posted_command_is_an_aim_or_is_refused(text: str, expected: str, known: frozenset[str]) -> None:
    def refuses(setup: object) -> str:
        return engine_refuses(setup, "emulated")  # type: ignore[arg-type]  # any object with a setup's fields

    try:
        request = like(arguments(text), known, refuses)
    except BadOption as error:
        assert expected in str(error) and "\n" not in str(error)
        return
    runner, *values = expected.split()
    assert next(pairs(request, "", ""))[0] == runner
    for value in values:
        assert str(request.values[value.partition("=")[0]]) == value.partition("=")[2]
    assert all("\n" not in line for line in request.lines)


@pytest.mark.emulated(NEWEST)
def test_fields_and_flags_are_found_in_sources(known: frozenset[str]) -> None:
    assert {
        "speculative_eagle_topk",
        "cuda_graph_bs_decode",
        "tensor_parallel_size",
        "enable_dp_attention",
        "host",
    } <= known
    assert not {"speculative_eagle_topkk", "cuda_graph_bs"} & known
