"""A small file system of its own for a round, that can be filled up and freed again."""

from __future__ import annotations

import contextlib
import os
import subprocess
from pathlib import Path
from typing import Final

SIZE_MIB: Final = 12
LEFT_BYTES: Final = 0


class SmallDisk:
    """A tmpfs; where none can be mounted ``real`` is false and filling does nothing."""

    def __init__(self, where: Path, size_mib: int = SIZE_MIB) -> None:
        self.where = where
        where.mkdir(parents=True)
        command = ["mount", "-t", "tmpfs", "-o", f"size={size_mib}m", "quiver-chaos", str(where)]
        try:
            done = subprocess.run(command, capture_output=True, check=False)
        except OSError:
            self.real = False
            return
        self.real = done.returncode == 0

    def fill(self, leave: int = LEFT_BYTES) -> None:
        """Take all the space there is but ``leave`` bytes."""
        if not self.real:
            return
        filler = os.open(self.where / "filler", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            free = os.statvfs(self.where)
            space = free.f_bavail * free.f_frsize - leave
            with contextlib.suppress(OSError):
                while space > 0:
                    space -= os.write(filler, bytes(min(space, 1 << 16)))
        finally:
            os.close(filler)

    def free(self) -> None:
        """Give the space back."""
        with contextlib.suppress(FileNotFoundError):
            (self.where / "filler").unlink()

    def close(self) -> None:
        """Unmount it; also when a process has not quite let go of it."""
        if self.real:
            subprocess.run(["umount", "--lazy", str(self.where)], capture_output=True, check=False)
