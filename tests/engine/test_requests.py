"""Submitted requests: admission while others run, stops, cancellation, priorities, logprobs."""

import dataclasses
import gc
import threading

import pytest
import torch

from dspark_ext import sampling
from dspark_ext.engine import DSparkEngine, SamplingParams, TargetBatch

GREEDY = SamplingParams(temperature=0.0, max_new_tokens=40)
SAMPLED = SamplingParams(temperature=0.9, top_p=0.95, seed=5, max_new_tokens=30)


@pytest.fixture(scope="module")
def greedy(serve, prompts):
    """Outputs of plain greedy decoding, one prompt at a time."""
    engine = serve(max_requests=1)
    return [engine.generate([prompt], GREEDY, speculative=False).outputs[0] for prompt in prompts]


def test_submitted_requests_equal_a_call(serve, prompts, greedy):
    engine = serve(max_requests=2)
    handles = [engine.submit(prompt, GREEDY) for prompt in prompts]
    assert [handle.id for handle in handles] == list(range(len(prompts)))
    events = {handle.id: [] for handle in handles}
    for event in engine.events():
        events[event.request].append(event)
    for handle, expected in zip(handles, greedy):
        assert handle.finished and handle.token_ids == expected.token_ids
        assert handle.output.text == handle.text == expected.text
        assert sum((event.token_ids for event in events[handle.id]), []) == expected.token_ids
        assert "".join(event.text for event in events[handle.id]) == expected.text
    assert not engine.has_work and engine.slots.available == 2


def test_a_request_joins_while_another_runs(serve, prompts, greedy):
    engine = serve(max_requests=2)
    first = engine.submit(prompts[0], GREEDY)
    taken = [next(first), next(first)]
    second = engine.submit(prompts[1], GREEDY)
    assert second.result().token_ids == greedy[1].token_ids
    taken += list(first)
    assert sum((event.token_ids for event in taken), []) == greedy[0].token_ids
    assert engine.stats.steps < first.output.passes + second.output.passes + 2
    assert list(second) and next(second, None) is None


def test_a_prompt_joins_a_stream(serve, prompts, greedy):
    engine = serve(max_requests=2)
    stream = engine.stream(prompts[:1], GREEDY)
    next(iter(stream))
    assert stream.submit(prompts[1], GREEDY) == 1
    for _ in stream:
        pass
    assert [output.token_ids for output in stream.outputs] == [
        expected.token_ids for expected in greedy[:2]
    ]
    assert stream.stats.acceptance.steps_per_request.tolist() == [
        output.passes for output in stream.outputs
    ]
    with pytest.raises(RuntimeError, match="submit: the stream has ended"):
        stream.submit(prompts[2], GREEDY)


@pytest.mark.parametrize("speculative", [True, False], ids=["speculative", "plain"])
def test_plain_and_speculative_requests_share_passes(serve, prompts, speculative):
    engine = serve(max_requests=4)
    ways = [index % 2 == speculative for index in range(4)]
    handles = [
        engine.submit(prompt, SAMPLED, speculative=way) for prompt, way in zip(prompts, ways)
    ]
    for handle, prompt, way in zip(handles, prompts, ways):
        alone = serve(max_requests=1).generate([prompt], SAMPLED, speculative=way).outputs[0]
        assert handle.result().token_ids == alone.token_ids
        assert (handle.output.stats.drafted > 0) == way


def test_priorities_leave_the_queue_first(serve, prompts):
    engine = serve(max_requests=1)
    short = SamplingParams(temperature=0.0, max_new_tokens=2)
    order = [engine.submit(prompts[0], short, priority=each).id for each in (0, 5, 0, 7)]
    seen = list(dict.fromkeys(event.request for event in engine.events()))
    assert seen == [order[3], order[1], order[0], order[2]]
    with pytest.raises(ValueError, match="priority 4: expected an integer, got 1.5"):
        engine.submit(prompts[0], priority=1.5)


def test_cancelling(serve, prompts, greedy):
    engine = serve(max_requests=1)
    running, waiting, last = (engine.submit(prompt, GREEDY) for prompt in prompts[:3])
    next(running)
    assert engine.slots.available == 0
    assert running.cancel() and engine.slots.available == 1 and running.finished
    assert engine.cancel(waiting.id)
    for handle in (running, waiting):
        assert next(handle, None) is None
        assert handle.output.finish_reason == "cancelled" and not handle.cancel()
    assert running.output.token_ids == greedy[0].token_ids[: len(running.output.token_ids)]
    assert waiting.output.token_ids == []
    assert {event.request for event in engine.events()} == {last.id}
    assert last.output.token_ids == greedy[2].token_ids
    stats = engine.stats
    assert (stats.finished, stats.cancelled) == (1, 2) and not engine.cancel(last)
    assert not engine.cancel(99)


def test_events_of_a_cancelled_request_are_dropped(serve, prompts):
    engine = serve(max_requests=2)
    handles = [engine.submit(prompt, GREEDY) for prompt in prompts[:2]]
    events = engine.events()
    first = next(events)
    other = handles[1 - handles.index(next(h for h in handles if h.id == first.request))]
    other.cancel()  # its event of the same pass is still pending
    assert {event.request for event in events} == {first.request}


def test_a_stream_goes_on_without_a_cancelled_prompt(serve, prompts, greedy):
    stream = serve(max_requests=3).stream(prompts[:3], GREEDY)
    for event in stream:
        if event.request == 1:
            assert stream.cancel(1)
        assert stream.outputs[1] is None or event.request != 1 or event.finish_reason is None
    assert stream.outputs[1].finish_reason == "cancelled"
    assert [stream.outputs[index].token_ids for index in (0, 2)] == [
        greedy[index].token_ids for index in (0, 2)
    ]
    assert stream.stats.cancelled == 1


def test_cancelling_from_another_thread(serve, prompts):
    engine = serve(max_requests=2)
    handles = [engine.submit(prompt, GREEDY) for prompt in prompts[:2]]
    seen = threading.Event()
    stopped = threading.Event()

    def cancel() -> None:
        seen.wait()
        handles[0].cancel()
        stopped.set()

    thread = threading.Thread(target=cancel)
    thread.start()
    next(handles[1])
    seen.set()
    stopped.wait()
    handles[1].result()
    thread.join()
    assert handles[0].output.finish_reason == "cancelled"
    assert engine.slots.available == 2 and not engine.has_work


def test_a_failing_pass_ends_its_requests(serve, prompts, greedy, monkeypatch):
    engine = serve(max_requests=2)
    handles = [engine.submit(prompt, GREEDY) for prompt in prompts[:3]]
    next(handles[0])
    with monkeypatch.context() as patch:

        def fail(batch):
            raise RuntimeError("no memory")

        patch.setattr(engine.target, "forward", fail)
        with pytest.raises(RuntimeError, match="no memory"):
            engine.step()
    assert [handle.finished for handle in handles] == [True, True, False]
    assert handles[0].output.finish_reason == "error" and engine.slots.available == 2
    assert handles[2].result().token_ids == greedy[2].token_ids


def test_a_request_that_would_never_fit_does_not_block_the_others(
    serve, prompts, greedy, monkeypatch
):
    engine = serve(max_requests=2)
    take = engine.slots.take

    def refuse(length):
        if length == len(prompts[1]) + 41:
            raise RuntimeError("more blocks than there are")
        return take(length)

    monkeypatch.setattr(engine.slots, "take", refuse)
    longer = dataclasses.replace(GREEDY, max_new_tokens=41)
    handles = [
        engine.submit(prompt, params)
        for prompt, params in zip(prompts[:3], (GREEDY, longer, GREEDY))
    ]
    with pytest.raises(RuntimeError, match="more blocks than there are"):
        handles[1].result()
    assert handles[1].output.finish_reason == "error"
    for index in (0, 2):
        assert handles[index].result().token_ids == greedy[index].token_ids
    with pytest.raises(RuntimeError, match="more blocks than there are"):
        engine.generate(prompts[:3], [GREEDY, longer, GREEDY])
    assert engine.slots.available == 2 and not engine.has_work


def test_a_request_that_cannot_be_restored_ends(serve, prompts, greedy, monkeypatch):
    engine = serve(max_requests=2)
    handles = [engine.submit(prompt, GREEDY) for prompt in prompts[:2]]

    def fail(slot):
        raise ValueError("what was handed over is not this model's")

    monkeypatch.setattr(handles[0].request, "restore", fail)
    with pytest.raises(ValueError, match="what was handed over"):
        engine.step()
    assert handles[0].output.finish_reason == "error" and engine.slots.available == 2
    assert handles[1].result().token_ids == greedy[1].token_ids


def test_handles_wait_for_streams(serve, prompts):
    engine = serve(max_requests=1)
    stream = engine.stream(prompts[:1], GREEDY)
    next(iter(stream))
    handle = engine.submit(prompts[1], GREEDY)
    assert engine.step() == []
    with pytest.raises(RuntimeError, match="other streams hold all cache slots"):
        handle.result()
    stream.close()
    assert len(handle.result().token_ids) == 40


def test_dropped_streams_free_their_slots(serve, prompts):
    engine = serve(max_requests=2)
    stream = engine.stream(prompts[:2], GREEDY)
    next(iter(stream))
    del stream
    gc.collect()
    assert engine.slots.available == 2


# -- where a request ends


def test_stop_strings(serve, prompts, greedy):
    engine = serve(max_requests=3)
    for prompt, expected in zip(prompts, greedy):
        for start, length in ((3, 1), (6, 4), (11, 9)):
            stop = expected.text[start : start + length]
            at = expected.text.index(stop)
            params = dataclasses.replace(GREEDY, stop=("never\0", stop))
            for speculative in (True, False):
                stream = engine.stream([prompt], params, speculative=speculative)
                shown = "".join(event.text for event in stream)
                output = stream.outputs[0]
                assert output.text == shown == expected.text[:at]
                assert output.finish_reason == "stop"
                # the token that completes the stop string is the last one (a byte is a token here)
                assert output.token_ids == expected.token_ids[: at + length]


def test_text_held_back_appears_at_the_end(serve, prompts, greedy):
    """The beginning of a stop string is not shown until it is none; a limit decides that too."""
    text = greedy[0].text
    params = dataclasses.replace(GREEDY, stop=(text[30:] + "\0",))
    stream = serve(max_requests=1).stream(prompts[:1], params)
    pieces = [event.text for event in stream]
    assert "".join(pieces) == text and len("".join(pieces[:-1])) <= 30


def test_stop_strings_need_a_tokenizer(serve):
    with pytest.raises(ValueError, match="stop 0: stop strings need an engine with a tokenizer"):
        DSparkEngine(serve().target).generate([[1]], SamplingParams(stop="x"), speculative=False)


def test_a_tokenizer_that_fails_ends_its_requests(serve, prompts, greedy):
    class Fails:
        calls = 0

        def decode(self, token_ids):
            self.calls += 1
            if self.calls == 5:
                raise UnicodeError("what is this")
            return bytes(token_ids).decode(errors="replace")

    served = serve(max_requests=2)
    engine = DSparkEngine(served.target, served.drafter, tokenizer=Fails())
    handles = [engine.submit(prompt, GREEDY) for prompt in prompts[:3]]
    with pytest.raises(UnicodeError):
        for _ in engine.events():
            pass
    assert [handle.finished for handle in handles] == [True, True, False]
    assert handles[0].output.finish_reason == "error" and engine.slots.available == 2
    assert handles[2].result().token_ids == greedy[2].token_ids


@pytest.mark.parametrize("minimum", [1, 9, 20])
def test_min_new_tokens_masks_stop_tokens(serve, prompts, greedy, minimum):
    """Greedy: the run is that of a target that cannot say the stop token before."""
    prompt, expected = prompts[0], greedy[0].token_ids
    stop = expected[4]
    params = dataclasses.replace(GREEDY, stop_token_ids=(stop, 0), min_new_tokens=minimum)
    engine = serve(max_requests=2)
    drafted, plain = (
        engine.generate([prompt], params, speculative=way).outputs[0] for way in (True, False)
    )
    assert drafted.token_ids == plain.token_ids
    masked = drafted.token_ids[:minimum]
    assert stop not in masked and len(drafted.token_ids) >= minimum
    if minimum == 1:
        assert drafted.token_ids == expected[: expected.index(stop) + 1]
    else:
        assert masked[:4] == expected[:4]


def test_min_new_tokens_passes_stop_strings_by(serve, prompts, greedy):
    text = greedy[0].text
    stop = text[2]
    after = text.index(stop, 9)  # the tenth token may be it
    params = dataclasses.replace(GREEDY, stop=(stop,), min_new_tokens=10)
    output = serve(max_requests=2).generate(prompts[:1], params).outputs[0]
    assert output.text == text[:after]


# -- log-probabilities


def test_logprobs_are_those_of_the_filtered_law(serve, prompts):
    engine = serve(max_requests=2)
    params = [
        SamplingParams(temperature=0.8, top_k=7, seed=2, max_new_tokens=12, logprobs=3),
        SamplingParams(temperature=1.2, top_p=0.8, seed=3, max_new_tokens=9, logprobs=0),
        SamplingParams(temperature=0.0, max_new_tokens=5, logprobs=2),
        SamplingParams(temperature=1.0, max_new_tokens=5),
    ]
    stream = engine.stream(prompts[:4], params)
    events = list(stream)
    for index, (output, each) in enumerate(zip(stream.outputs, params)):
        told = [event.logprobs for event in events if event.request == index]
        if each.logprobs is None:
            assert output.logprobs is None and set(map(type, told)) == {type(None)}
            continue
        assert sum(told, []) == output.logprobs
        assert len(output.logprobs) == len(output.token_ids)
        ids = torch.tensor(output.prompt_token_ids + output.token_ids[:-1])
        rows = torch.arange(len(ids))
        logits = engine.target.forward(TargetBatch(ids, rows, torch.zeros_like(ids), rows)).logits
        law = sampling.target_probs(
            logits[-len(output.token_ids) :],
            temperature=each.temperature,
            top_k=each.top_k,
            top_p=each.top_p,
        )
        for token, row, found in zip(output.token_ids, law, output.logprobs):
            assert found.logprob == pytest.approx(float(row[token].log()), abs=1e-5)
            best = [(token, p) for token, p in found.top]
            assert len(best) <= each.logprobs and all(p > -100 for _, p in best)
            for other, p in best:
                assert p == pytest.approx(float(row[other].log()), abs=1e-5)
            assert [p for _, p in best] == sorted((p for _, p in best), reverse=True)
            kept = min(each.logprobs, int((row > 0).sum()))
            assert len(best) == kept


def test_bad_request_settings_are_named(serve):
    for values, message in (
        ({"min_new_tokens": 200}, "min_new_tokens: expected an integer from 0 to max_new_tokens"),
        ({"logprobs": -1}, "logprobs: expected None or an integer from 0 to 100"),
        ({"stop": ("",)}, "stop: expected a text or texts, none of them empty"),
        ({"stop": (3,)}, "stop: expected a text or texts"),
    ):
        with pytest.raises(ValueError, match=f"SamplingParams: {message}"):
            SamplingParams(**values)
    everything = SamplingParams(stop_token_ids=tuple(range(256)), min_new_tokens=1)
    with pytest.raises(ValueError, match="stop_token_ids 0: with min_new_tokens, expected a token"):
        serve().generate([[1]], everything)
    params = SamplingParams(stop="x", logprobs=2, stop_token_ids=[3])
    assert params.stop == ("x",) and SamplingParams.from_dict(params.to_dict()) == params
