#!/usr/bin/env bash
# Checks that this machine can build the package: a Python >= 3.10 with headers and venv, and a C++
# compiler. Usage: check_system.sh [--list] PYTHON
# Says on stderr what is missing and the command that installs it on Debian and Ubuntu, and exits 1;
# with --list it prints only the names of the missing Debian packages and exits 0.
set -euo pipefail

list_only=no
if [ "${1:-}" = --list ]; then
    list_only=yes
    shift
fi
python=${1:-python3}

# Debian names the add-ons after the interpreter: python3-venv, python3.12-venv.
package=$(basename "$python")
[[ $package =~ ^python3(\.[0-9]+)?$ ]] || package=python3

missing=()
reasons=()
if ! command -v "$python" >/dev/null; then
    missing+=("$package" "$package-venv" "$package-dev")
    reasons+=("no Python interpreter '$python' (choose one with PYTHON=...)")
elif ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))'; then
    echo "dspark_ext: Python >= 3.10 is needed, '$python' is $("$python" -V 2>&1);" \
        "choose another with PYTHON=..." >&2
    exit 1
else
    if ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
        missing+=("$package-venv")
        reasons+=("'$python' cannot create virtual environments (no ensurepip)")
    fi
    if ! "$python" -c 'import os, sysconfig as s; open(os.path.join(s.get_path("include"), "Python.h"))' \
        2>/dev/null; then
        missing+=("$package-dev")
        reasons+=("'$python' has no C headers (Python.h)")
    fi
fi
compiler=${CXX:-}
for name in c++ g++ clang++; do
    [ -n "$compiler" ] || compiler=$(command -v "$name" || true)
done
# CXX may have arguments: "ccache g++", "g++ -m64".
if [ -z "$compiler" ] || ! command -v "${compiler%% *}" >/dev/null; then
    missing+=("g++")
    reasons+=("no C++ compiler${CXX:+ '$CXX'}")
fi

if [ $list_only = yes ]; then
    echo "${missing[@]}"
elif [ ${#missing[@]} -gt 0 ]; then
    printf 'dspark_ext: %s\n' "${reasons[@]}" >&2
    sudo=$([ "$(id -u)" = 0 ] || echo "sudo ")
    printf 'On Debian or Ubuntu run:\n    %sapt-get update && %sapt-get install -y %s\n' \
        "$sudo" "$sudo" "${missing[*]}" >&2
    exit 1
fi
