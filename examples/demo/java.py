"""Java for Spark: found, installed where that needs no question, or how to get it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess

NEEDED = 17
PACKAGES = ("openjdk-17-jre-headless", "openjdk-21-jre-headless")
COMMAND = f"sudo apt-get install -y {PACKAGES[0]}"
SECONDS = 240


def found() -> bool:
    """Whether there is a Java that Spark can use."""
    home = os.environ.get("JAVA_HOME")
    java = os.path.join(home, "bin", "java") if home else shutil.which("java")
    if not java or not os.access(java, os.X_OK):
        return False
    said = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
    version = re.search(r'version "(\d+)', said)
    return version is not None and int(version[1]) >= NEEDED


def can_install() -> bool:
    """Whether it can be had without asking anybody: as root, from Debian's packages."""
    return os.geteuid() == 0 and shutil.which("apt-get") is not None


def install() -> bool:
    """Whether that worked."""
    quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    steps = [["apt-get", "update", "-qq"]]
    steps += [["apt-get", "install", "-y", "-qq", "--no-install-recommends", p] for p in PACKAGES]
    for step in steps:
        try:
            subprocess.run(step, env=quiet, capture_output=True, timeout=SECONDS, check=False)
        except subprocess.TimeoutExpired:
            return False
        if found():
            return True
    return False
