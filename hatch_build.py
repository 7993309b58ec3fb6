"""Build hook: a wheel brings the compiled code of the kernels that commands run, so that no user waits for a compiler.

A wheel is then one for its Python and system. Where numba or the compiler fails, a line says so, and the wheel brings none:
each kernel is compiled when it is first called. An editable installation compiles in place.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

PACKAGES = ("hardware_profiles", "simulator", "planners", "experiments")


class CompiledKernels(BuildHookInterface):
    """Compiles the kernels of a copy of the sources, and adds what numba kept of them to the wheel."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """As hatchling calls it. version: "standard" or "editable"."""
        root = Path(self.root)
        if version == "editable":
            self.compiled(root, "--studies")
            return
        self.copy = Path(tempfile.mkdtemp(prefix="pipeplan-"))
        for name in PACKAGES:
            shutil.copytree(root / name, self.copy / name, ignore=shutil.ignore_patterns("__pycache__"))
        if self.compiled(self.copy, **shipped_processor(self.copy)):
            build_data["pure_python"], build_data["infer_tag"] = False, True
            for kept in sorted(self.copy.rglob("*.nb[ic]")):
                build_data["force_include"][str(kept)] = kept.relative_to(self.copy).as_posix()

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """As hatchling calls it: the copy goes."""
        if version != "editable":
            shutil.rmtree(self.copy, ignore_errors=True)

    def compiled(self, folder: Path, *words: str, **variables: str) -> bool:
        """Compile the kernels of the packages in a folder, beside their modules; False and a warning where that fails."""
        done = run(folder, "-m", "experiments.compile_kernels", *words, **variables)
        if done.returncode:
            last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
            self.app.display_warning(f"pipeplan: kernels are compiled when they are first called: {last}")
        return done.returncode == 0


def shipped_processor(folder: Path) -> dict[str, str]:
    """The variables that make numba compile for what a package is compiled for; empty where this processor is another kind."""
    if platform.machine().lower() not in ("x86_64", "amd64"):
        return {}
    asked = (
        "from simulator.compiled.kept_code import SHIPPED_PROCESSOR, SHIPPED_FEATURES as f; print(SHIPPED_PROCESSOR, f)"
    )
    done = run(folder, "-c", asked)
    return dict(zip(("NUMBA_CPU_NAME", "NUMBA_CPU_FEATURES"), done.stdout.split(), strict=False))


def run(folder: Path, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Python in a folder whose packages it imports, with no cache of the user's."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("NUMBA_", "PIPEPLAN_"))}
    build = filter(None, [str(folder), os.environ.get("PYTHONPATH")])  # an isolated build finds its packages by it
    environment |= {"PYTHONPATH": os.pathsep.join(build), **variables}
    return subprocess.run(
        [sys.executable, *words], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
