"""The committed table of what every kernel needs on every architecture, resources.json.

A change of it is deliberate: update.py in this folder records it.
"""

import json
import pathlib

from kernel_binaries import Kernel

TABLE = pathlib.Path(__file__).with_name("resources.json")


def read_table() -> dict:
    """{backend: {"compiler": ..., "kernels": {architecture: {kernel: resources}}}}."""
    return json.loads(TABLE.read_text())


def entries(kernels: tuple[Kernel, ...]) -> dict[str, dict[str, dict[str, int]]]:
    """The table's form of the kernels that can be launched."""
    table = {}
    for kernel in kernels:
        if not kernel.is_foreign:
            table.setdefault(kernel.architecture, {})[kernel.name] = kernel.resources
    return table


def write_table(table: dict) -> None:
    """One line per kernel, so that a change reads well as a difference."""
    lines = ["{"]
    for backend in sorted(table):
        compiler = json.dumps(table[backend]["compiler"])
        lines += [f'  "{backend}": {{', f'    "compiler": {compiler},', '    "kernels": {']
        architectures = table[backend]["kernels"]
        for architecture in sorted(architectures):
            lines.append(f"      {json.dumps(architecture)}: {{")
            for name, resources in sorted(architectures[architecture].items()):
                lines.append(f"        {json.dumps(name)}: {json.dumps(resources)},")
            lines[-1] = lines[-1].removesuffix(",")
            lines.append("      },")
        lines[-1] = lines[-1].removesuffix(",")
        lines += ["    }", "  },"]
    lines[-1] = lines[-1].removesuffix(",")
    TABLE.write_text("\n".join([*lines, "}"]) + "\n")
