"""A stand-in for a GPU's graphs: it replays the recorded operations, and nothing but these, on the
recorded tensors, so whatever a pass leaves to the host is as stale as it would be there."""

import torch

from dspark_ext._recording import recording, storage_of, tensors_of

UNFILLED = ("aten::empty", "aten::new_empty", "aten::empty_like", "aten::empty_strided")


class ReplayedCapture:
    """A `Capture` for the CPU.

    Its graphs share memory as those of a GPU do that have one pool: a replay spoils the results of
    all others. Reads of the host raise, as they do in a capture.
    """

    def __init__(self):
        self.captures = self.replays = 0
        self._results = []

    def __call__(self, run):
        self.captures += 1
        run()  # the warm-up, in which tensors are made that stay
        with recording() as calls:
            results = run()
        self._results += [each for each in results if each is not None]
        calls = [each for each in map(_Replayed, calls) if each.writes]
        for call in calls:
            call.spoil()

        @torch.inference_mode()
        def replay():
            self.replays += 1
            for result in self._results:
                _spoil(result)
            for call in calls:
                call()

        with torch.inference_mode():
            for result in self._results:
                _spoil(result)
        return replay, results


class _Replayed:
    """An operation that writes into the tensors it made, or was given, at the recording."""

    def __init__(self, call):
        self._call = call
        given = {storage_of(each) for each in tensors_of((call.args, call.kwargs))}
        self._made = [
            (place, each)
            for place, each in enumerate(tensors_of(call.result))
            if storage_of(each) not in given
        ]
        self.writes = bool(self._made) or call.function._schema.is_mutable

    @torch.inference_mode()
    def spoil(self):
        for _, tensor in self._made:
            _spoil(tensor)

    def __call__(self):
        call = self._call
        if call.function._schema.name in UNFILLED:
            self.spoil()
            return
        results = tensors_of(call.function(*call.args, **call.kwargs))
        for place, tensor in self._made:
            tensor.copy_(results[place])


def _spoil(tensor):
    """What other memory may hold: nothing that a right pass could read unnoticed."""
    if tensor.dtype.is_floating_point:
        tensor.fill_(float("nan"))
    elif tensor.dtype == torch.bool:
        tensor.logical_not_()
    else:
        tensor.fill_(torch.iinfo(tensor.dtype).max)
