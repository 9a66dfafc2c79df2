"""One of the two processes of test_handover.test_two_processes: prefill or decode, by file or by
torch.distributed."""

import json
import sys
import time
from pathlib import Path

import torch
import torch.distributed as distributed
from test_handover import PROMPT, SAMPLED, make_engine

from dspark_ext.demo import tiny
from dspark_ext.engine import HandoverError, RequestState, import_request, prefill_request

FIXTURES = Path(__file__).parents[1] / "fixtures"


def main(role: str, way: str, folder: str) -> None:
    torch.set_num_threads(1)
    pair = tiny.load_pair(
        FIXTURES / "tiny_target.safetensors", FIXTURES / "tiny_drafter.safetensors"
    )
    engine = make_engine(pair, "dspark")
    path = Path(folder) / "state.safetensors"
    if way == "gloo":
        distributed.init_process_group(
            "gloo",
            init_method=f"file://{folder}/rendezvous",
            rank=int(role == "decode"),
            world_size=2,
        )
    if role == "prefill":
        state = prefill_request(engine, PROMPT, SAMPLED)
        if way == "file":
            state.save(path)
        else:
            state.send(1)
            expect_refusal("refused there", lambda: state.send(1))
        return
    if way == "file":
        while not path.exists():
            time.sleep(0.1)
        state = RequestState.load(path)
    else:
        state = RequestState.receive(0)
        expect_refusal(
            "size: expected 1..1000 bytes", lambda: RequestState.receive(0, max_bytes=1000)
        )
    print(json.dumps(import_request(engine, state).result().token_ids))


def expect_refusal(message: str, call) -> None:
    """The second of two states is refused for its size, on both sides; nobody waits."""
    try:
        call()
    except HandoverError as error:
        assert message in str(error), error
    else:
        raise AssertionError(f"expected {message!r}")


if __name__ == "__main__":
    main(*sys.argv[1:])
