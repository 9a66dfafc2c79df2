"""A calibration as a file: JSON, versioned, checked when it is read."""

import json
import math
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch

from .draft import calibrate

FORMAT = "dspark_ext.calibration"
VERSION = 1
# Temperatures are float32 in the end, where beyond these is 0 or infinity.
SMALLEST, LARGEST = 1e-37, 1e37


@dataclass(frozen=True)
class Calibration:
    """Temperatures by draft position, and how they were found.

    Attributes:
        temperatures: K numbers from 1e-37 to 1e37; K is the number of drafts they serve.
        dataset: where the blocks came from.
        num_samples: how many there were.
        ece_before, ece_after: expected calibration error of the survivals by position, without and
            with the temperatures, on those blocks; K numbers or none (NaN where nothing was seen).
        conditions: what it was measured under: sampling temperature, filters, acceptance rule,
            target and its quantisation. Free text or numbers; elsewhere, calibrate again.

    Raises ValueError naming the field.
    """

    temperatures: tuple[float, ...]
    dataset: str = ""
    num_samples: int = 0
    ece_before: tuple[float, ...] = ()
    ece_after: tuple[float, ...] = ()
    conditions: dict = field(default_factory=dict)

    def __post_init__(self):
        for name in ("temperatures", "ece_before", "ece_after"):
            values = getattr(self, name)
            if not isinstance(values, list | tuple):
                raise _error(f"{name}: expected a list of numbers, got {values!r}")
            for i, value in enumerate(values):
                number = isinstance(value, int | float) and not isinstance(value, bool)
                if not number or (name == "temperatures" and not SMALLEST <= value <= LARGEST):
                    kind = "a finite number > 0" if name == "temperatures" else "a number"
                    raise _error(f"{name}[{i}]: expected {kind}, got {value!r}")
            object.__setattr__(self, name, tuple(float(value) for value in values))
        for name in ("ece_before", "ece_after"):
            if len(getattr(self, name)) not in (0, len(self.temperatures)):
                raise _error(
                    f"{name}: expected {len(self.temperatures)} numbers as in temperatures, or "
                    f"none, got {len(getattr(self, name))}"
                )
        if not isinstance(self.dataset, str):
            raise _error(f"dataset: expected a string, got {self.dataset!r}")
        if not isinstance(self.num_samples, int) or self.num_samples < 0:
            raise _error(f"num_samples: expected an integer >= 0, got {self.num_samples!r}")
        if not isinstance(self.conditions, dict):
            raise _error(f"conditions: expected a mapping, got {self.conditions!r}")

    def tensor(self, device: torch.device | str | None = None) -> torch.Tensor:
        """float32 [K] for `dspark_ext.draft.confidence` and `calibrate`. To change the calibration
        of a captured graph, copy into the tensor it holds."""
        return torch.tensor(self.temperatures, dtype=torch.float32, device=device)

    def apply(self, conf_logits: torch.Tensor) -> torch.Tensor:
        """Calibrated CONDITIONAL confidences, float32, of logits [..., K]."""
        return calibrate(conf_logits, self.tensor(conf_logits.device))

    def save(self, path: str | Path) -> None:
        """Writes JSON; SGLang reads it too."""
        form = {"format": FORMAT, "version": VERSION, **asdict(self)}
        for name in ("ece_before", "ece_after"):  # JSON has no NaN
            form[name] = [None if math.isnan(value) else value for value in form[name]]
        text = json.dumps(form, indent=2, allow_nan=False) + "\n"
        Path(path).write_text(text, encoding="utf-8")

    @staticmethod
    def load(path: str | Path, num_drafts: int | None = None) -> "Calibration":
        """Reads a file of `save`, or one of SGLang (the same without format and version).

        num_drafts: if given, the number of temperatures there must be.

        Raises ValueError naming file and field.
        """
        try:
            calibration = _from_form(json.loads(Path(path).read_text(encoding="utf-8")))
            if num_drafts is not None and len(calibration.temperatures) != num_drafts:
                raise _error(
                    f"temperatures: expected {num_drafts}, one per draft, "
                    f"got {len(calibration.temperatures)}"
                )
        except (ValueError, RecursionError) as error:
            reason = str(error).removeprefix("dspark_ext.Calibration: ")
            raise ValueError(f"dspark_ext.Calibration: {path}: {reason}") from None
        return calibration


def _error(text: str) -> ValueError:
    return ValueError(f"dspark_ext.Calibration: {text}")


def _from_form(form) -> Calibration:
    if not isinstance(form, dict):
        raise _error(f"expected a JSON object, got {type(form).__name__}")
    if "format" in form or "version" in form:
        if form.get("format") != FORMAT:
            raise _error(f"format: expected {FORMAT!r}, got {form.get('format')!r}")
        if form.get("version") != VERSION:
            raise _error(f"version: expected {VERSION}, got {form.get('version')!r}")
        known = {"format", "version", *Calibration.__dataclass_fields__}
        unknown = sorted(set(form) - known)
        if unknown:
            raise _error(f"{unknown[0]}: unknown field, expected {', '.join(sorted(known))}")
    if "temperatures" not in form:
        raise _error(f"temperatures: missing, found {sorted(form)}")
    values = {name: form[name] for name in Calibration.__dataclass_fields__ if name in form}
    for name in ("ece_before", "ece_after"):
        if isinstance(values.get(name), list):
            values[name] = [math.nan if value is None else value for value in values[name]]
    return Calibration(**values)
