"""Writes requirements.lock: everything that the wheel needs, pinned as constraints.txt has it, with hashes.

    python packaging/lock.py          (make lock)

pip itself resolves and names the files; `pip install --require-hashes -r requirements.lock` then takes these
very files or none. A lock is for one platform and version of Python, which its first line names.
"""

from __future__ import annotations

import json
import platform
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]


def locked(report: dict) -> list[str]:
    """A line for each package of pip's report, this one apart."""
    lines = []
    for found in report["install"]:
        hashes = found["download_info"].get("archive_info", {}).get("hashes", {})
        if "sha256" in hashes:
            name, version = found["metadata"]["name"].lower(), found["metadata"]["version"]
            lines.append(f"{name}=={version} --hash=sha256:{hashes['sha256']}")
    return sorted(lines)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        command = [sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed", "--quiet"]
        command += ["--report", str(report), "--constraint", str(ROOT / "constraints.txt"), str(ROOT)]
        subprocess.run(command, check=True)
        lines = locked(json.loads(report.read_text()))
    head = f"# {platform.system()} {platform.machine()}, Python {sys.version_info[0]}.{sys.version_info[1]}"
    (ROOT / "requirements.lock").write_text("\n".join([head, *lines]) + "\n")
    print(f"requirements.lock: {len(lines)} packages")


if __name__ == "__main__":
    main()
