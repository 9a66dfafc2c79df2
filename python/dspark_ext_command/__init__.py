"""The command `dspark-ext`. It stands outside the package so that it can say in one line why the
package does not load, and still run `doctor` there."""

import importlib.util
import os
import pathlib
import sys


def main() -> int:
    # Idle OpenMP threads that spin take the cores from the ones that work. Read as torch is loaded.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    try:
        from dspark_ext.cli.main import main as run
    except ImportError as error:
        if sys.argv[1:2] == ["doctor"]:
            return _doctor().run_alone(sys.argv[2:])
        print(f"dspark-ext: {error}; `dspark-ext doctor` tells more", file=sys.stderr)
        return 1
    return run()


def _doctor():
    """The module dspark_ext.cli.doctor, loaded as a file; it needs nothing of its package."""
    folder = pathlib.Path(importlib.util.find_spec("dspark_ext").origin).parent
    spec = importlib.util.spec_from_file_location("dspark_doctor", folder / "cli" / "doctor.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module
