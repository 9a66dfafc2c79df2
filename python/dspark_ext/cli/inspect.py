"""Tell what a checkpoint is: flavour, parameters and bytes by part, missing and unexpected tensors.

Takes a draft head (safetensors file, directory, config.json) or a target's directory. Of released
heads only headers are read. Exit status 1 if the tensors do not make up what the checkpoint claims
to be.
"""

import json
from pathlib import Path

from .errors import UserError, one_line, told_of


def add_arguments(parser) -> None:
    parser.add_argument("checkpoint", metavar="CHECKPOINT", help="file or directory, or `demo`")
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")


def run(options) -> int:
    path = _path(options.checkpoint)
    facts = describe(path)
    if options.json:
        print(json.dumps(facts, indent=2))
    else:
        print(_text(facts))
    return int(bool(facts["findings"]))


def describe(path: Path) -> dict:
    """kind, flavour, config, parts (see `draft_head.ledger`), findings (kind -> list)."""
    from ..draft_head.checkpoint_files import CheckpointError, CheckpointFiles

    if path.suffix == ".json":
        return _of_config(path)
    try:
        files = CheckpointFiles(path)
    except CheckpointError as error:
        return _facts(path, "unknown", None, {}, None, error.groups)
    from ..draft_head.compact import FORMAT

    if files.metadata.get("format") == FORMAT:
        return _of_compact(files)
    from ..draft_head.names import recognise_flavour

    if recognise_flavour(files.names) is not None or not _is_target(files):
        return _of_draft_head(path)
    return _of_target(files)


def _path(word: str) -> Path:
    if word == "demo":
        from ..demo.loading import DRAFTER

        return DRAFTER
    path = Path(word)
    if not path.exists():
        raise UserError(f"CHECKPOINT: {word}: no such file or directory")
    return path


def _facts(path, kind, flavour, config, ledger, findings) -> dict:
    return {
        "path": str(path),
        "kind": kind,
        "flavour": flavour,
        "config": config,
        "parts": None if ledger is None else ledger.to_dict()["parts"],
        "table": None if ledger is None else str(ledger),
        "findings": findings,
    }


def _of_config(path: Path) -> dict:
    from ..draft_head.config import ConfigError, read_config
    from ..draft_head.ledger import ledger

    with told_of(f"CHECKPOINT: {path}"):
        values = json.loads(path.read_text(encoding="utf-8"))
    try:
        config = read_config(values)
    except ConfigError as error:
        return _facts(path, "config", None, {}, None, {"config": [one_line(error)]})
    return _facts(path, "config", config.flavour, config.to_dict(), ledger(config), {})


def _of_draft_head(path: Path) -> dict:
    from ..draft_head.checkpoint import check_draft_head, read_checkpoint_config
    from ..draft_head.checkpoint_files import CheckpointError
    from ..draft_head.ledger import ledger

    findings, config, parts = {}, None, None
    try:
        config = read_checkpoint_config(path)
        check_draft_head(path)
    except CheckpointError as error:
        findings = error.groups
    except ValueError as error:
        findings = {"config": [one_line(error)]}
    try:
        parts = ledger(path)
    except ValueError as error:
        findings = findings or {"ledger": [one_line(error)]}
    flavour = None if config is None else config.flavour
    values = {} if config is None else config.to_dict()
    return _facts(path, "draft head", flavour, values, parts, findings)


def _of_compact(files) -> dict:
    from ..draft_head.checkpoint_files import CheckpointError
    from ..draft_head.compact import CompactDraftHead
    from ..draft_head.ledger import ledger

    config, findings = {}, {}
    try:
        config = json.loads(files.metadata.get("config", "{}"))
        CompactDraftHead.load(files.file)
    except CheckpointError as error:
        findings = error.groups
    except ValueError as error:
        findings = {"config": [one_line(error)]}
    return _facts(files.path, "draft head", "compact", config, ledger(files.file), findings)


def _is_target(files) -> bool:
    architectures = (files.config or {}).get("architectures") or [""]
    return str(architectures[0]).endswith(("ForCausalLM", "ForConditionalGeneration"))


def _of_target(files) -> dict:
    config = files.config
    known = ("model_type", "vocab_size", "hidden_size", "num_hidden_layers", "dtype")
    return _facts(
        files.path,
        "target",
        config["architectures"][0],
        {name: config[name] for name in known if name in config},
        None,
        {},
    )


def _text(facts: dict) -> str:
    flavour = f", {facts['flavour']}" if facts["flavour"] else ""
    text = [f"{facts['path']}: {facts['kind']}{flavour}"]
    if facts["config"]:
        text += ["", *(f"  {name}: {value}" for name, value in facts["config"].items())]
    if facts["table"]:
        text += ["", *facts["table"].splitlines()[1:]]
    text.append("")
    for kind, found in facts["findings"].items():
        text += [f"{kind} ({len(found)}):", *(f"  {finding}" for finding in found)]
    if not facts["findings"]:
        text.append("Complete: no tensor is missing, unexpected or of another shape.")
        if facts["kind"] == "config":
            text[-1] = "A config alone: there are no tensors to check."
        if facts["kind"] == "target":
            text[-1] = (
                "A target model, for --target; only draft heads are checked tensor by tensor."
            )
    return "\n".join(text)
