"""Records the resources of the kernels in this build: python tests/machine_code/update.py

Rewrites the backends that the build contains in resources.json and leaves the other as it is.
"""

from kernel_binaries import kernels_of
from resource_table import entries, read_table, write_table

import dspark_ext


def main() -> None:
    table = read_table()
    for backend in ("cuda", "hip"):
        facts = dspark_ext.build_info()[backend]
        if facts["built"]:
            kernels = entries(kernels_of(backend))
            table[backend] = {"compiler": facts["compiler"], "kernels": kernels}
            print(f"{backend}: {sum(map(len, kernels.values()))} kernels, {facts['compiler']}")
        else:
            print(f"{backend}: unchanged, {facts['reason']}")
    write_table(table)


if __name__ == "__main__":
    main()
